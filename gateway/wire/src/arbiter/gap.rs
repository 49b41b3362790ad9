//! A gap in the sequence, and the history of declared gaps.

use std::collections::VecDeque;

use crate::identity::Sequence;

/// Input sequences that no line has delivered: `[first, next)`, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gap {
    first: Sequence,
    next: Sequence,
}

impl Gap {
    /// `None` for an empty or reversed range.
    #[must_use]
    pub fn new(first: Sequence, next: Sequence) -> Option<Self> {
        (first < next).then_some(Self { first, next })
    }

    /// First missing sequence.
    #[must_use]
    pub fn first(self) -> Sequence {
        self.first
    }

    /// First sequence after the gap.
    #[must_use]
    pub fn next(self) -> Sequence {
        self.next
    }

    /// The part before `bound`; the whole gap if no part lies before it.
    pub(crate) fn clipped_before(self, bound: Sequence) -> Self {
        Self::new(self.first, self.next.min(bound)).unwrap_or(self)
    }

    /// How many sequences are missing; at least 1.
    #[must_use]
    pub fn count(self) -> u64 {
        self.next.0 - self.first.0
    }
}

/// The latest declared gaps of a session, ascending. Distinguishes a late message from a duplicate. The oldest gaps
/// are forgotten; even later messages then count as duplicates.
#[derive(Debug)]
pub(super) struct DeclaredGaps {
    gaps: VecDeque<Gap>,
}

impl DeclaredGaps {
    pub(super) fn new() -> Self {
        Self { gaps: VecDeque::with_capacity(DECLARED_GAPS_MAX) }
    }

    pub(super) fn clear(&mut self) {
        self.gaps.clear();
    }

    pub(super) fn record(&mut self, gap: Gap) {
        if self.gaps.len() >= DECLARED_GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
    }

    /// How many of `[first, next)` lie in declared gaps. One comparison for sequences after the latest gap.
    pub(super) fn overlap(&self, first: Sequence, next: Sequence) -> u64 {
        let newer = self.gaps.iter().rev().take_while(|gap| gap.next > first);
        newer.map(|gap| gap.next.min(next).0.saturating_sub(gap.first.max(first).0)).sum()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.gaps.capacity() * size_of::<Gap>()
    }
}

const DECLARED_GAPS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(first: u64, next: u64) -> Gap {
        Gap::new(Sequence(first), Sequence(next)).unwrap()
    }

    #[test]
    fn an_empty_gap_cannot_be_constructed() {
        assert_eq!(Gap::new(Sequence(5), Sequence(5)), None);
        assert_eq!(Gap::new(Sequence(6), Sequence(5)), None);
        assert_eq!(gap(5, 8).count(), 3);
    }

    #[test]
    fn overlap_counts_only_declared_sequences() {
        let mut declared = DeclaredGaps::new();
        declared.record(gap(10, 12));
        declared.record(gap(20, 25));
        let overlap = |first, next| declared.overlap(Sequence(first), Sequence(next));
        assert_eq!(overlap(25, 30), 0);
        assert_eq!(overlap(12, 20), 0);
        assert_eq!(overlap(1, 30), 7);
        assert_eq!(overlap(11, 21), 2);
        assert_eq!(overlap(24, 40), 1);
    }

    #[test]
    fn memory_stays_bounded() {
        let mut declared = DeclaredGaps::new();
        let before = declared.memory_bytes();
        for index in 0..1_000 {
            declared.record(gap(index * 2, index * 2 + 1));
        }
        assert_eq!(declared.memory_bytes(), before);
        assert_eq!(declared.overlap(Sequence(0), Sequence(10_000)), DECLARED_GAPS_MAX as u64);
    }
}
