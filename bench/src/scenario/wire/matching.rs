//! Matches what was published to the input packets of one channel, by sequences.
//!
//! A published packet covers input sequences `[first, next)`. One published packet may cover several input packets, and
//! one input packet may be published in several. An input packet is published when the last packet with output of one
//! of its messages was received. Messages without output are covered by a later range; an input packet without any
//! output has no latency.

/// Received output of one channel.
pub(super) struct ChannelMatching<'a> {
    /// First sequence after each input packet; ascending.
    boundaries: &'a [u64],
    /// When the last output of each input packet was received, ns since 1970 UTC.
    outcomes: Vec<PacketOutcome>,
    covered_through: u64,
    /// Input packet of the last output.
    cursor: usize,
    missing: u64,
    declared_missing: u64,
}

/// What became of one input packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketOutcome {
    /// No output yet, or none at all.
    Silent,
    /// Published; the last part was received at this time, ns since 1970 UTC.
    Published(u64),
    /// At least one of its messages was lost.
    Lost,
}

impl<'a> ChannelMatching<'a> {
    pub(super) fn new(boundaries: &'a [u64]) -> Self {
        Self {
            boundaries,
            outcomes: vec![PacketOutcome::Silent; boundaries.len()],
            covered_through: 1,
            cursor: 0,
            missing: 0,
            declared_missing: 0,
        }
    }

    /// A packet with that range was received. Ranges that were covered before have no effect.
    pub(super) fn cover(&mut self, first: u64, next: u64) {
        if first > self.covered_through {
            self.missing += first - self.covered_through;
            self.lose(self.covered_through, first);
        }
        self.covered_through = self.covered_through.max(next);
    }

    /// Output of the message with that sequence was received. Output of an earlier input packet than the last one is a
    /// repetition, and has no effect.
    pub(super) fn output(&mut self, sequence: u64, received_ns: u64) {
        while self.boundaries.get(self.cursor).is_some_and(|boundary| *boundary <= sequence) {
            self.cursor += 1;
        }
        let is_repeated = self.cursor.checked_sub(1).is_some_and(|before| sequence < self.boundaries[before]);
        if is_repeated {
            return;
        }
        if let Some(outcome) = self.outcomes.get_mut(self.cursor)
            && *outcome != PacketOutcome::Lost
        {
            *outcome = PacketOutcome::Published(received_ns);
        }
    }

    /// The range was declared missing.
    pub(super) fn declare_gap(&mut self, first: u64, next: u64) {
        self.declared_missing += next.saturating_sub(first);
        self.lose(first, next);
    }

    fn lose(&mut self, first: u64, next: u64) {
        let from = self.boundaries.partition_point(|boundary| *boundary <= first);
        let until = self.boundaries.partition_point(|boundary| *boundary < next);
        let until = (until + 1).min(self.outcomes.len());
        for outcome in self.outcomes.get_mut(from..until).unwrap_or_default() {
            *outcome = PacketOutcome::Lost;
        }
    }

    /// Whether all messages before that sequence are covered.
    pub(super) fn is_covered_through(&self, next: u64) -> bool {
        self.covered_through >= next
    }

    pub(super) fn covered_through(&self) -> u64 {
        self.covered_through
    }

    /// Messages before `next` that were not received: not covered, or declared missing.
    pub(super) fn lost_messages(&self, next: u64) -> u64 {
        self.missing + self.declared_missing + next.saturating_sub(self.covered_through)
    }

    pub(super) fn outcomes(&self) -> &[PacketOutcome] {
        &self.outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::{PacketOutcome::*, *};

    /// Three input packets: [1, 4), [4, 5) and [5, 9).
    const BOUNDARIES: [u64; 3] = [4, 5, 9];

    #[test]
    fn one_published_packet_publishes_several_input_packets() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        channel.cover(1, 9);
        for sequence in [1, 3, 4, 8] {
            channel.output(sequence, 70);
        }
        assert_eq!(channel.outcomes(), [Published(70), Published(70), Published(70)]);
        assert!(channel.is_covered_through(9) && !channel.is_covered_through(10));
        assert_eq!(channel.lost_messages(9), 0);
    }

    #[test]
    fn an_input_packet_is_published_with_its_last_part() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        channel.cover(1, 2);
        channel.output(1, 70);
        channel.cover(2, 4);
        channel.output(3, 80);
        assert_eq!(channel.outcomes(), [Published(80), Silent, Silent]);
    }

    #[test]
    fn messages_without_output_are_covered_but_have_no_time() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        channel.cover(1, 3);
        channel.output(2, 70);
        // A later packet, long after, covers sequences 3 and 4, which had no output.
        channel.cover(3, 9);
        channel.output(6, 900);
        assert_eq!(channel.outcomes(), [Published(70), Silent, Published(900)]);
        assert_eq!(channel.lost_messages(9), 0);
    }

    #[test]
    fn a_missing_range_is_lost_and_has_no_time() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        channel.cover(1, 3);
        channel.output(2, 70);
        channel.cover(5, 9);
        channel.output(5, 90);
        assert_eq!(channel.outcomes(), [Lost, Lost, Published(90)]);
        assert_eq!(channel.lost_messages(9), 2);
    }

    #[test]
    fn a_declared_gap_is_lost_although_its_range_is_covered() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        channel.cover(1, 9);
        channel.output(1, 70);
        channel.declare_gap(4, 5);
        channel.output(8, 70);
        assert_eq!(channel.outcomes(), [Published(70), Lost, Published(70)]);
        assert_eq!(channel.lost_messages(9), 1);
    }

    #[test]
    fn what_was_never_received_at_the_end_is_lost() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        channel.cover(1, 4);
        channel.output(1, 70);
        assert_eq!(channel.lost_messages(9), 5);
        assert_eq!(channel.outcomes(), [Published(70), Silent, Silent]);
    }

    #[test]
    fn a_repeated_packet_changes_nothing() {
        let mut channel = ChannelMatching::new(&BOUNDARIES);
        for (first, next, received_ns) in [(1, 4, 70), (4, 5, 80), (1, 4, 85), (5, 9, 90)] {
            channel.cover(first, next);
            channel.output(first, received_ns);
        }
        assert_eq!(channel.outcomes(), [Published(70), Published(80), Published(90)]);
        assert_eq!(channel.lost_messages(9), 0);
    }
}
