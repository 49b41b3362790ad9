//! Covered positions of a session: half-open ranges that don't touch.

use std::{collections::BTreeMap, ops::Range};

use mdgw_feeds::{identity::Sequence, published::packet::Packet};

/// A position in a session: the sequence above 16 bits of part index. A message in one part covers its whole sequence.
pub(super) type PartPosition = u64;

/// The first part of a sequence.
pub(super) fn position(sequence: Sequence) -> PartPosition {
    sequence.0 << PART_BITS
}

/// The sequence of a position.
pub(super) fn sequence(position: PartPosition) -> u64 {
    position >> PART_BITS
}

/// Range that a packet covers. A part that isn't the last covers itself; the first part also covers the sequences
/// without content before it.
pub(super) fn range_of(packet: &Packet<'_>) -> Range<PartPosition> {
    let (first, next) = (position(packet.meta.first), position(packet.meta.next));
    let Some(part) = packet.part else { return first..next };
    let own = position(part.sequence) + u64::from(part.part);
    let from = if part.part == 0 { first.min(own) } else { own };
    from..if part.is_last { next } else { own + 1 }
}

/// A set of ranges. With consecutive additions it stays one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage(BTreeMap<PartPosition, PartPosition>);

impl Coverage {
    /// Whether the whole range is in the set; an empty range always is.
    pub(super) fn covers(&self, range: &Range<PartPosition>) -> bool {
        range.is_empty() || self.0.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// Whether any position of the range is in the set.
    pub(super) fn overlaps(&self, range: &Range<PartPosition>) -> bool {
        !range.is_empty() && self.0.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Adds a range.
    pub(super) fn add(&mut self, range: &Range<PartPosition>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // The range before, if it touches, and all that begin within.
        while let Some((other_start, other_end)) = self.0.range(..=end).next_back().map(|(start, end)| (*start, *end)) {
            if other_end < start {
                break;
            }
            self.0.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.0.insert(start, end);
    }

    /// The parts of the range that are not in the set.
    pub(super) fn missing_of(&self, range: &Range<PartPosition>) -> impl Iterator<Item = Range<PartPosition>> {
        let Range { start, end } = *range;
        let starts = std::iter::once(start).chain(self.0.values().copied());
        let ends = self.0.keys().copied().chain(std::iter::once(end));
        starts.zip(ends).map(move |(from, until)| from.max(start)..until.min(end)).filter(|hole| !hole.is_empty())
    }

    /// From the first position to the one after the last; `None` if the set is empty.
    pub(super) fn bounds(&self) -> Option<Range<PartPosition>> {
        Some(*self.0.first_key_value()?.0..*self.0.last_key_value()?.1)
    }
}

/// A packet payload holds fewer than 65,536 parts.
const PART_BITS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_merge_and_holes_remain() {
        let mut coverage = Coverage::default();
        assert!(coverage.covers(&(5..5)) && !coverage.covers(&(5..6)) && coverage.bounds().is_none());
        for range in [10..20, 30..40, 20..25, 38..50, 0..1] {
            coverage.add(&range);
        }
        let missing = |range| coverage.missing_of(&range).collect::<Vec<_>>();
        assert_eq!(missing(0..50), [1..10, 25..30]);
        assert_eq!(missing(0..60), [1..10, 25..30, 50..60]);
        assert_eq!(missing(5..28), [5..10, 25..28]);
        assert_eq!((missing(10..25), missing(7..7)), (vec![], vec![]));
        assert_eq!(Coverage::default().missing_of(&(3..5)).next(), Some(3..5));
        assert!(coverage.covers(&(12..25)) && !coverage.covers(&(12..26)) && coverage.overlaps(&(24..30)));
        assert!(!coverage.overlaps(&(25..30)) && !coverage.overlaps(&(50..60)));
        coverage.add(&(0..60));
        assert_eq!((coverage.missing_of(&(0..60)).count(), coverage.bounds()), (0, Some(0..60)));
    }

    #[test]
    fn coverage_matches_a_bit_set_model() {
        let mut coverage = Coverage::default();
        let mut model = [false; 64];
        let mut state = 7_u64;
        for _ in 0..2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = state >> 58;
            let range = start..(start + (state >> 33) % 5).min(64);
            let inside = |at: u64| model[usize::try_from(at).unwrap()];
            assert_eq!(coverage.covers(&range), range.clone().all(inside), "{range:?} {coverage:?}");
            assert_eq!(coverage.overlaps(&range), range.clone().any(inside), "{range:?} {coverage:?}");
            if state & 1 << 20 == 0 {
                coverage.add(&range);
                range.for_each(|at| model[usize::try_from(at).unwrap()] = true);
            }
            if model.iter().all(|covered| *covered) {
                (coverage, model) = (Coverage::default(), [false; 64]);
            }
        }
    }
}
