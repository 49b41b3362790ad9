//! What one run showed.

use hdrhistogram::Histogram;

use super::{admin_client::Answer, matching::PacketOutcome, receiver::ReceiveCounts, thread_use::ThreadUse};

/// Latencies and losses of one run.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// From the intended send time to the receiver's kernel stamp.
    pub(super) from_intended: Histogram<u64>,
    /// From the actual send to the receiver's kernel stamp.
    pub(super) from_send: Histogram<u64>,
    /// How late the sender was.
    pub(super) lateness: Histogram<u64>,
    /// Input packets without any output: no latency.
    pub(super) silent_packets: u64,
    /// Input packets of which at least one message was lost.
    pub(super) lost_packets: u64,
    /// Messages that were not published, or declared missing.
    pub(super) lost_messages: u64,
    /// Output packets that the kernel dropped at the receiver of this bench: then the losses are its own.
    pub(super) receiver_dropped: u64,
    pub(super) received: ReceiveCounts,
    /// Rate at which the sender sent.
    pub(super) achieved_per_s: f64,
    pub(super) threads: ThreadUse,
    pub(super) log_entries_read: u64,
    /// Wire to wire by the gateway's own latency log; empty without one.
    pub(super) own: Histogram<u64>,
    /// Of the admin listener.
    pub(super) answers: Vec<Answer>,
    /// When the measured packets began, ns since 1970 UTC.
    pub(super) begun_ns: u64,
    /// Time of the measured packets, ns.
    pub(super) measured_ns: u64,
}

/// Send times of an input packet, ns since 1970 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentPacket {
    pub(super) intended_ns: u64,
    pub(super) actual_ns: u64,
}

impl Outcome {
    pub(super) fn new(achieved_per_s: f64) -> Self {
        Self {
            from_intended: histogram(),
            from_send: histogram(),
            lateness: histogram(),
            silent_packets: 0,
            lost_packets: 0,
            lost_messages: 0,
            receiver_dropped: 0,
            received: ReceiveCounts::default(),
            achieved_per_s,
            threads: ThreadUse::default(),
            log_entries_read: 0,
            own: histogram(),
            answers: Vec::new(),
            begun_ns: 0,
            measured_ns: 0,
        }
    }

    /// Adds one measured input packet.
    pub(super) fn record(&mut self, sent: &SentPacket, result: PacketOutcome) {
        self.lateness.saturating_record(sent.actual_ns.saturating_sub(sent.intended_ns));
        match result {
            PacketOutcome::Published(received_ns) => {
                self.from_intended.saturating_record(received_ns.saturating_sub(sent.intended_ns));
                self.from_send.saturating_record(received_ns.saturating_sub(sent.actual_ns));
            }
            PacketOutcome::Silent => self.silent_packets += 1,
            PacketOutcome::Lost => self.lost_packets += 1,
        }
    }

    /// Whether the subject published everything.
    pub(super) fn is_complete(&self) -> bool {
        self.lost_messages == 0
    }

    /// Whether the sender reached the rate.
    pub(super) fn is_rate_reached(&self, packets_per_s: u64) -> bool {
        self.achieved_per_s >= RATE_SHARE_MIN * packets_per_s as f64
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    #[expect(clippy::expect_used, reason = "constant bounds")]
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds")
}

const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// A sender below this share of the rate measured another rate.
const RATE_SHARE_MIN: f64 = 0.99;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_sender_counts_from_the_intended_time() {
        let mut outcome = Outcome::new(100.0);
        outcome.record(&SentPacket { intended_ns: 1_000, actual_ns: 1_000 }, PacketOutcome::Published(6_000));
        outcome.record(&SentPacket { intended_ns: 2_000, actual_ns: 102_000 }, PacketOutcome::Published(106_000));
        assert_eq!((outcome.from_intended.min(), outcome.from_intended.max() / 1_000), (5_000, 104));
        assert_eq!((outcome.from_send.min(), outcome.from_send.max()), (4_000, 5_003));
        assert_eq!(outcome.lateness.max() / 1_000, 100);
    }

    #[test]
    fn packets_without_output_and_lost_ones_have_no_latency() {
        let mut outcome = Outcome::new(100.0);
        let sent = SentPacket { intended_ns: 1_000, actual_ns: 1_000 };
        outcome.record(&sent, PacketOutcome::Silent);
        outcome.record(&sent, PacketOutcome::Lost);
        assert_eq!((outcome.from_intended.len(), outcome.silent_packets, outcome.lost_packets), (0, 1, 1));
        assert!(outcome.is_complete());
        outcome.lost_messages = 1;
        assert!(!outcome.is_complete());
        assert!(outcome.is_rate_reached(101) && !outcome.is_rate_reached(102));
    }
}
