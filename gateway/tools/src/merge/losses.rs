//! Losses of one line.

use std::collections::BTreeMap;

use mdgw_feeds::{arbiter::Gap, identity::Sequence};

/// Tracks what one line delivered and missed, session by session.
#[derive(Debug)]
pub(super) struct LineLosses {
    /// Sequence that the line delivers next if nothing is lost; `None` before its first packet.
    expected: Option<Sequence>,
    /// Gaps that may still be filled: first sequence and first sequence after the gap; disjoint.
    open: BTreeMap<Sequence, Sequence>,
    listed_max: usize,
    pub(super) counts: LossCounts,
    /// The first gaps of the line.
    pub(super) listed: Vec<Gap>,
}

/// Messages that a line did not deliver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LossCounts {
    /// Messages delivered, each once.
    pub(super) messages: u64,
    /// Missing between the line's first message and the last one that it could have delivered.
    pub(super) lost_messages: u64,
    /// Of these, messages missing on all other lines too.
    pub(super) lost_by_all: u64,
    pub(super) line_gaps: u64,
    pub(super) longest_line_gap: u64,
    /// Messages delivered after a later one.
    pub(super) reordered: u64,
    /// Packets that the line had delivered before.
    pub(super) duplicate_packets: u64,
    /// At the end of the input: messages on other lines after this line's capture ended.
    pub(super) missing_after_last: u64,
}

impl LineLosses {
    pub(super) fn new(listed_max: usize) -> Self {
        Self { expected: None, open: BTreeMap::new(), listed_max, counts: LossCounts::default(), listed: Vec::new() }
    }

    /// Records that the line delivered `[first, next)` (empty for a heartbeat). Returns whether any message is new on
    /// this line.
    #[inline]
    pub(super) fn record(&mut self, first: Sequence, next: Sequence) -> bool {
        let expected = *self.expected.get_or_insert(first);
        if first == expected {
            self.counts.messages += next.0 - first.0;
            self.expected = Some(next);
            return true;
        }
        self.record_out_of_order(expected, first, next)
    }

    /// Ends a session before `ended`; the next one begins at 1.
    pub(super) fn begin_session(&mut self, ended: Option<Sequence>) {
        if let (Some(expected), Some(ended)) = (self.expected, ended)
            && let Some(missing) = Gap::new(expected, ended)
        {
            self.open.insert(missing.first(), missing.next());
        }
        self.close_all();
        // A known line is expected to deliver all of the next session.
        self.expected = self.expected.map(|_| Sequence(1));
    }

    /// Records a gap that no line filled.
    pub(super) fn lost_by_all(&mut self, gap: Gap) {
        let first = self.expected.map_or(0, |_| gap.count());
        self.counts.lost_by_all += first;
    }

    /// Ends the input, and the session before `ended`.
    pub(super) fn end_of_input(&mut self, ended: Option<Sequence>) {
        if let (Some(expected), Some(ended)) = (self.expected, ended) {
            self.counts.missing_after_last = ended.0.saturating_sub(expected.0);
        }
        self.close_all();
    }

    #[cold]
    fn record_out_of_order(&mut self, expected: Sequence, first: Sequence, next: Sequence) -> bool {
        if first > expected {
            self.open.insert(expected, first);
            if self.open.len() > OPEN_MAX
                && let Some((first, next)) = self.open.pop_first()
            {
                self.close(first, next);
            }
            self.counts.messages += next.0 - first.0;
            self.expected = Some(next);
            return true;
        }
        let filled = self.fill(first, next.min(expected));
        let beyond = next.0.saturating_sub(expected.0);
        self.counts.messages += filled + beyond;
        self.counts.reordered += filled;
        self.expected = Some(expected.max(next));
        let is_new = filled + beyond > 0;
        self.counts.duplicate_packets += u64::from(!is_new && first < next);
        is_new
    }

    /// Removes `[first, next)` from the open gaps. Returns the number of messages filled.
    fn fill(&mut self, first: Sequence, next: Sequence) -> u64 {
        let mut filled = 0;
        while let Some((&from, &until)) = self.open.range(..next).next_back().filter(|(_, until)| **until > first) {
            self.open.remove(&from);
            if from < first {
                self.open.insert(from, first);
            }
            if until > next {
                self.open.insert(next, until);
            }
            filled += until.min(next).0 - from.max(first).0;
        }
        filled
    }

    fn close_all(&mut self) {
        for (first, next) in std::mem::take(&mut self.open) {
            self.close(first, next);
        }
    }

    fn close(&mut self, first: Sequence, next: Sequence) {
        let Some(hole) = Gap::new(first, next) else { return };
        self.counts.line_gaps += 1;
        self.counts.lost_messages += hole.count();
        self.counts.longest_line_gap = self.counts.longest_line_gap.max(hole.count());
        if self.listed.len() < self.listed_max {
            self.listed.push(hole);
        }
    }
}

/// Open gaps remembered, in case a late packet fills them; older ones count as lost.
const OPEN_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(packets: &[(u64, u64)]) -> LineLosses {
        let mut losses = LineLosses::new(10);
        for (first, next) in packets {
            losses.record(Sequence(*first), Sequence(*next));
        }
        losses
    }

    fn ended(mut losses: LineLosses, end: u64) -> LossCounts {
        losses.end_of_input(Some(Sequence(end)));
        losses.counts
    }

    #[test]
    fn holes_are_messages_never_received_on_the_line() {
        let counts = ended(losses(&[(5, 8), (10, 12), (20, 21)]), 25);
        assert_eq!((counts.messages, counts.lost_messages, counts.line_gaps, counts.longest_line_gap), (6, 10, 2, 8));
        assert_eq!(counts.missing_after_last, 4);
    }

    #[test]
    fn late_packets_fill_holes_regardless_of_packet_boundaries() {
        let counts = ended(losses(&[(1, 2), (10, 12), (4, 6), (2, 3), (5, 11)]), 12);
        assert_eq!((counts.messages, counts.lost_messages, counts.line_gaps), (10, 1, 1));
        assert_eq!(counts.reordered, 7);
        let counts = ended(losses(&[(1, 2), (10, 12), (2, 11)]), 12);
        assert_eq!((counts.messages, counts.lost_messages, counts.line_gaps), (11, 0, 0));
    }

    #[test]
    fn repeated_packets_count_once() {
        let counts = ended(losses(&[(1, 4), (1, 4), (2, 3), (4, 5)]), 5);
        assert_eq!((counts.messages, counts.duplicate_packets), (4, 2));
    }

    #[test]
    fn a_known_line_is_expected_to_deliver_the_whole_next_session() {
        let mut known = losses(&[(1, 4)]);
        known.begin_session(Some(Sequence(6)));
        known.record(Sequence(3), Sequence(4));
        assert_eq!(known.listed.iter().map(|hole| hole.count()).collect::<Vec<_>>(), [2]);
        assert_eq!(ended(known, 4).lost_messages, 4);
        // A line that has not appeared yet is not expected to deliver anything.
        let mut unknown = losses(&[]);
        unknown.begin_session(Some(Sequence(6)));
        unknown.record(Sequence(3), Sequence(4));
        assert_eq!(ended(unknown, 4).lost_messages, 0);
    }

    #[test]
    fn memory_stays_bounded() {
        let mut many = LineLosses::new(10);
        for number in 1..10_000 {
            many.record(Sequence(number * 2), Sequence(number * 2 + 1));
        }
        assert!(many.open.len() <= OPEN_MAX && many.listed.len() <= 10);
        assert_eq!(ended(many, 20_000).lost_messages, 9_998);
    }
}
