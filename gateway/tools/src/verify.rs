//! Whether what was published, or what receivers made of it, kept the pair's promises. For anybody's captures: nothing
//! is taken from the gateway but its packets.
//!
//! ```text
//! captures ── merge by time ── packets ─┬─ contents    each name has one content, whoever said it
//!                                       ├─ epochs      whom receivers believe; when each epoch was published
//!                                       └─ receiver    order, completeness and blackout behind the epoch rule
//! receivers' outputs ── rows ── names once, in order, the same for all receivers
//! ```
//! A **name** is channel, session, sequence and part (of a record: its index). Each capture is one receiver's view:
//! what that receiver would have dropped by its epoch rule counts for none of its promises but that of contents.
//!
//! Deliberately not the product's own receiver: what checks must not share the faults of what it checks.

mod content;
mod coverage;
mod epochs;
mod finding;
mod receiver;
mod rows;
mod verdict;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::SocketAddr};

use mdgw_feeds::{
    drop_reason::DropReason,
    identity::{ChannelId, GroupId},
    published::packet::{PacketFlags, parse_packet},
};

use self::{content::Contents, epochs::Intervals, finding::Findings, receiver::ReceiverView};
pub use self::{
    finding::{Finding, Location, Promise},
    rows::{RowError, RowsVerifier},
    verdict::{Bucket, ChannelVerdict, DurationSummary, EpochVerdict, Shortfall, ShortfallKind, Verdict},
};

/// What is judged, and how.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Only this group.
    pub group: Option<GroupId>,
    /// Whose clock tells when an epoch was published.
    pub clock: PublishClock,
    /// By how much the clocks of two publishers may differ, ns: so much overlap is none.
    pub clock_error_ns: u64,
    /// How far an epoch may jump and still be believed, as receivers are configured.
    pub epoch_jump_max: u64,
    /// Names of each channel's session whose content is remembered. Older ones are not compared any more.
    pub names_max: usize,
    /// Findings that are told one by one; the rest is counted.
    pub findings_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            group: None,
            clock: PublishClock::default(),
            clock_error_ns: 0,
            epoch_jump_max: 1_000,
            names_max: 8 << 20,
            findings_max: 20,
        }
    }
}

/// Whose clock tells when an epoch was published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishClock {
    /// The publishers' own send times: what they said when they handed a packet over. For one host, or synchronised ones.
    #[default]
    Sender,
    /// The capture's: what was on the wire, late packets of a stopped process included.
    Capture,
}

/// One datagram of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// Where it stands.
    pub location: Location,
    /// When it was captured, ns since 1970 UTC.
    pub time_ns: u64,
    /// Where it went.
    pub dst: SocketAddr,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// What was counted besides promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Published packets.
    pub packets: u64,
    /// Answers to single receivers among them.
    pub unicast_replies: u64,
    /// The same sending, captured twice.
    pub duplicate_captures: u64,
    /// Of an epoch that receivers had left behind: they drop them.
    pub fenced: u64,
    /// Of an epoch too far above the highest to be believed.
    pub epoch_jumps: u64,
    /// Of groups that were not asked for.
    pub other_groups: u64,
    /// Datagrams of another kind.
    pub unrecognised: u64,
    /// Ours by their first bytes, but damaged; by reason.
    pub damaged: BTreeMap<&'static str, u64>,
}

/// Judges captures. Feed it all datagrams by time, then ask for the verdict.
#[derive(Debug)]
pub struct Verifier {
    options: VerifyOptions,
    counts: VerifyCounts,
    contents: BTreeMap<(GroupId, ChannelId), Contents>,
    intervals: Intervals,
    receivers: BTreeMap<usize, ReceiverView>,
    findings: Findings,
}

impl Verifier {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(options: VerifyOptions) -> Self {
        Self {
            findings: Findings::new(options.findings_max),
            options,
            counts: VerifyCounts::default(),
            contents: BTreeMap::new(),
            intervals: Intervals::default(),
            receivers: BTreeMap::new(),
        }
    }

    /// Takes the next datagram, whatever it is.
    pub fn accept(&mut self, seen: &CapturedPacket<'_>) {
        let packet = match parse_packet(seen.payload) {
            Ok(packet) => packet,
            // Requests to the retransmission service have another magic, and so has everything else on the wire.
            Err(DropReason::HeaderTruncated | DropReason::ProtocolMismatch) => return self.counts.unrecognised += 1,
            Err(reason) => return *self.counts.damaged.entry(reason.name()).or_default() += 1,
        };
        let meta = &packet.meta;
        if self.options.group.is_some_and(|group| group != meta.group) {
            return self.counts.other_groups += 1;
        }
        self.counts.packets += 1;
        let is_published = seen.dst.ip().is_multicast();
        let receiver = self.receivers.entry(seen.location.file).or_default();
        if !is_published {
            // A question may be answered by any gateway, at any time, under the highest epoch that it knows.
            self.counts.unicast_replies += 1;
            let is_end = meta.flags.contains(PacketFlags::HEARTBEAT);
            if !is_end {
                receiver.accept_reply(&packet);
            }
        } else {
            match receiver.accept_epoch(meta.group, meta.epoch, self.options.epoch_jump_max) {
                Err(DropReason::EpochJump) => return self.counts.epoch_jumps += 1,
                Err(_) => self.counts.fenced += 1,
                Ok(()) => {
                    let is_new = receiver.accept(seen, &packet, &mut self.findings);
                    self.counts.duplicate_captures += u64::from(!is_new);
                }
            }
            let (domain, time_ns) = match self.options.clock {
                PublishClock::Sender => (0, meta.send_time_ns),
                PublishClock::Capture => (seen.location.file, seen.time_ns),
            };
            self.intervals.published(domain, meta.group, meta.epoch, time_ns, seen.location);
        }
        let contents = self.contents.entry((meta.group, meta.channel)).or_default();
        contents.compare(&packet, seen.location, self.options.names_max, &mut self.findings);
    }

    /// What came of it. What is missing is known only now.
    #[must_use]
    pub fn finish(mut self) -> Verdict {
        for (file, receiver) in &self.receivers {
            receiver.report_missing(*file, &mut self.findings);
        }
        self.intervals.report_overlaps(self.options.clock_error_ns, &mut self.findings);
        Verdict::of_captures(self.counts, &self.contents, &self.intervals, &self.receivers, self.findings)
    }
}
