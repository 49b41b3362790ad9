//! Compares two sequences of named items.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::ControlFlow,
};

use super::{DiffError, DiffReport, FoundDifference};

/// Name of an item. Order is compared within a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ItemName {
    /// A channel's session, an instrument, or a feed's session.
    pub(super) stream: (u64, u128),
    pub(super) sequence: u64,
    pub(super) index: u64,
}

/// The smallest unit that is compared.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: ItemName,
    /// Content that is compared.
    pub(super) content: Vec<u8>,
    /// Data local to the recording, such as receive times.
    pub(super) local: u64,
    /// Position in the recording: a frame, a byte.
    pub(super) place: u64,
}

/// An item that waits for its counterpart on the other side, and the number of items of its side before it.
#[derive(Debug)]
struct UnmatchedItem {
    item: Item,
    ordinal: u64,
}

/// One recording.
pub(super) trait Side {
    /// Returns the next item; `None` at the end, or where damage ends the recording.
    fn next(&mut self) -> Result<Option<Item>, DiffError>;
    fn name(&self, name: &ItemName) -> String;
    fn stream(&self, name: &ItemName) -> String;
    fn place(&self, place: u64) -> String;
    /// Whether the recording may contain the same item more than once.
    fn may_repeat(&self) -> bool;
    /// Describes the difference between two contents.
    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String>;
    fn damages(&self) -> Vec<String>;
    fn file_bytes_read(&self) -> u64;
}

/// State of a comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Items that one side has delivered and the other has not yet.
    unmatched: [HashMap<ItemName, UnmatchedItem>; 2],
    recent_names: [RecentNames; 2],
    /// For each stream, the order of its items on both sides.
    stream_orders: HashMap<(u64, u128), StreamOrder>,
    /// The first differences, sorted by the number of items before them on their side, then in the order of detection.
    listed: BTreeMap<(u64, u64), FoundDifference>,
    listed_count: u64,
    listed_max: usize,
    names_max: usize,
    report: DiffReport,
}

/// The latest names of one side, to detect duplicates.
#[derive(Debug, Default)]
struct RecentNames {
    names: HashSet<ItemName>,
    order: VecDeque<ItemName>,
}

/// Running hash of a stream's item names in order, for each side, and whether the stream has other differences.
#[derive(Debug)]
struct StreamOrder {
    hashes: [u64; 2],
    name: ItemName,
    differs: bool,
}

impl Comparison {
    pub(super) fn new(listed_max: usize, names_max: usize) -> Self {
        Self {
            unmatched: [HashMap::new(), HashMap::new()],
            recent_names: [RecentNames::default(), RecentNames::default()],
            stream_orders: HashMap::new(),
            listed: BTreeMap::new(),
            listed_count: 0,
            listed_max,
            names_max,
            report: DiffReport::default(),
        }
    }

    /// Reads both sides to their ends, in turn.
    pub(super) fn run(
        &mut self,
        sides: &mut [Box<dyn Side>; 2],
        on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), DiffError> {
        let mut has_ended = [false, false];
        let mut steps = 0_u64;
        while has_ended != [true, true] {
            // The side that is behind is read next, so that few items wait.
            let [waits_a, waits_b] = self.unmatched.each_ref().map(HashMap::len);
            let side_index = match has_ended {
                [true, _] => 1,
                [_, true] => 0,
                _ => usize::from(waits_a > waits_b || (waits_a == waits_b && steps % 2 == 1)),
            };
            steps += 1;
            let Some(side) = sides.get_mut(side_index) else { break };
            match side.next()? {
                Some(item) => self.accept(side_index, item, has_ended[1 - side_index], sides),
                None => has_ended[side_index] = true,
            }
            if self.unmatched.iter().any(|unmatched| unmatched.len() > self.names_max) {
                return Err(DiffError::TooFarApart { names_max: self.names_max });
            }
            if steps.is_multiple_of(STEPS_PER_CHECK)
                && on_progress(sides.iter().map(|side| side.file_bytes_read()).sum()).is_break()
            {
                return Err(DiffError::Interrupted);
            }
        }
        Ok(())
    }

    /// Returns the result. Items that still wait are on one side only.
    pub(super) fn finish(mut self, sides: &[Box<dyn Side>; 2]) -> DiffReport {
        let [side_a, _] = sides;
        for side_index in 0..2 {
            let mut left: Vec<UnmatchedItem> = std::mem::take(&mut self.unmatched[side_index]).into_values().collect();
            left.sort_unstable_by_key(|unmatched| unmatched.ordinal);
            left.iter().for_each(|unmatched| self.count_unmatched(side_index, unmatched, sides));
        }
        let mut reordered: Vec<ItemName> = self
            .stream_orders
            .values()
            .filter(|stream_order| !stream_order.differs && stream_order.hashes[0] != stream_order.hashes[1])
            .map(|stream_order| stream_order.name)
            .collect();
        reordered.sort_unstable();
        self.report.order_differs = reordered.len() as u64;
        for name in reordered {
            self.list_difference(u64::MAX, || FoundDifference {
                kind: "order",
                name: side_a.stream(&name),
                at_a: None,
                at_b: None,
                detail: Some("same items, different order".to_owned()),
            });
        }
        let mut report = self.report;
        report.differences = self.listed.into_values().collect();
        report.damages = sides.iter().flat_map(|side| side.damages()).collect();
        report.same = report.content_differs == 0
            && report.only_in == [0, 0]
            && report.order_differs == 0
            && report.damages.is_empty();
        report
    }

    fn accept(&mut self, side_index: usize, item: Item, other_has_ended: bool, sides: &[Box<dyn Side>; 2]) {
        if sides[side_index].may_repeat() && !self.recent_names[side_index].is_new(item.name, self.names_max) {
            self.report.duplicates[side_index] += 1;
            return;
        }
        let ordinal = self.report.items[side_index];
        self.report.items[side_index] += 1;
        let stream_order = self.stream_orders.entry(item.name.stream).or_insert(StreamOrder {
            hashes: [0, 0],
            name: item.name,
            differs: false,
        });
        let mut hasher = DefaultHasher::new();
        (stream_order.hashes[side_index], item.name).hash(&mut hasher);
        stream_order.hashes[side_index] = hasher.finish();
        let other = match self.unmatched[1 - side_index].entry(item.name) {
            Entry::Occupied(other) => other.remove(),
            Entry::Vacant(_) if other_has_ended => {
                return self.count_unmatched(side_index, &UnmatchedItem { item, ordinal }, sides);
            }
            Entry::Vacant(_) => {
                self.unmatched[side_index].insert(item.name, UnmatchedItem { item, ordinal });
                return;
            }
        };
        let ordinal_a = if side_index == 0 { ordinal } else { other.ordinal };
        let other = other.item;
        self.report.common += 1;
        let (a, b) = if side_index == 0 { (&item, &other) } else { (&other, &item) };
        if a.content != b.content {
            self.report.content_differs += 1;
            self.stream_differs(&a.name);
            let [side_a, side_b] = sides;
            self.list_difference(ordinal_a, || FoundDifference {
                kind: "content",
                name: side_a.name(&a.name),
                at_a: Some(side_a.place(a.place)),
                at_b: Some(side_b.place(b.place)),
                detail: side_a.explain(&a.content, &b.content),
            });
        } else if a.local != b.local {
            self.report.receive_times_differ += 1;
        }
    }

    /// Records an item that the other side lacks.
    fn count_unmatched(&mut self, side_index: usize, unmatched: &UnmatchedItem, sides: &[Box<dyn Side>; 2]) {
        let UnmatchedItem { item, ordinal } = unmatched;
        self.report.only_in[side_index] += 1;
        self.stream_differs(&item.name);
        let side = &sides[side_index];
        let (kind, at_a, at_b) = match side_index {
            0 => ("only in A", Some(side.place(item.place)), None),
            _ => ("only in B", None, Some(side.place(item.place))),
        };
        self.list_difference(*ordinal, || FoundDifference {
            kind,
            name: side.name(&item.name),
            at_a,
            at_b,
            detail: None,
        });
    }

    fn stream_differs(&mut self, name: &ItemName) {
        if let Some(stream_order) = self.stream_orders.get_mut(&name.stream) {
            stream_order.differs = true;
        }
    }

    /// Records a difference if it is among the first ones. The text is built only then.
    fn list_difference(&mut self, ordinal: u64, difference: impl FnOnce() -> FoundDifference) {
        let key = (ordinal, self.listed_count);
        self.listed_count += 1;
        let is_full = self.listed.len() >= self.listed_max;
        if is_full && self.listed.last_key_value().is_none_or(|(last, _)| *last < key) {
            return;
        }
        self.listed.insert(key, difference());
        if is_full {
            self.listed.pop_last();
        }
    }
}

impl RecentNames {
    fn is_new(&mut self, name: ItemName, names_max: usize) -> bool {
        if !self.names.insert(name) {
            return false;
        }
        self.order.push_back(name);
        if self.order.len() > names_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
        true
    }
}

/// Items between two progress calls.
const STEPS_PER_CHECK: u64 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    struct Row(VecDeque<Item>);

    impl Side for Row {
        fn next(&mut self) -> Result<Option<Item>, DiffError> {
            Ok(self.0.pop_front())
        }

        fn name(&self, name: &ItemName) -> String {
            format!("{}/{}", name.stream.0, name.sequence)
        }

        fn stream(&self, name: &ItemName) -> String {
            name.stream.0.to_string()
        }

        fn place(&self, place: u64) -> String {
            place.to_string()
        }

        fn may_repeat(&self) -> bool {
            true
        }

        fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
            Some(format!("{a:?} {b:?}"))
        }

        fn damages(&self) -> Vec<String> {
            Vec::new()
        }

        fn file_bytes_read(&self) -> u64 {
            0
        }
    }

    /// Items by stream, sequence and content.
    fn row(items: &[(u64, u64, u8)]) -> Box<dyn Side> {
        let item = |(place, (stream, sequence, content)): (u64, &(u64, u64, u8))| Item {
            name: ItemName { stream: (*stream, 0), sequence: *sequence, index: 0 },
            content: vec![*content],
            local: place,
            place,
        };
        Box::new(Row((0..).zip(items).map(item).collect()))
    }

    fn compare(a: &[(u64, u64, u8)], b: &[(u64, u64, u8)]) -> DiffReport {
        let mut sides = [row(a), row(b)];
        let mut comparison = Comparison::new(10, 1_000);
        comparison.run(&mut sides, &mut |_| ControlFlow::Continue(())).unwrap();
        comparison.finish(&sides)
    }

    #[test]
    fn order_matters_within_a_stream_and_not_between_streams() {
        let report = compare(&[(1, 1, 5), (1, 2, 6), (2, 1, 7)], &[(2, 1, 7), (1, 1, 5), (1, 2, 6)]);
        assert!(report.same && report.common == 3 && report.receive_times_differ == 3, "{report:?}");
        let report = compare(&[(1, 1, 5), (1, 2, 6), (2, 1, 7)], &[(2, 1, 7), (1, 2, 6), (1, 1, 5)]);
        assert!(!report.same && report.order_differs == 1 && report.content_differs == 0, "{report:?}");
        assert_eq!(report.differences[0].name, "1");
    }

    #[test]
    fn content_differences_and_missing_items_are_reported_by_name_and_position() {
        let report = compare(&[(1, 1, 5), (1, 2, 6), (1, 3, 7)], &[(1, 1, 5), (1, 3, 8), (1, 4, 9)]);
        assert!(!report.same);
        assert_eq!((report.content_differs, report.only_in, report.common, report.order_differs), (1, [1, 1], 2, 0));
        let listed: Vec<_> =
            report.differences.iter().map(|difference| (difference.kind, difference.name.as_str())).collect();
        // In the order of the recordings.
        assert_eq!(listed, [("only in A", "1/2"), ("content", "1/3"), ("only in B", "1/4")]);
        assert_eq!(report.differences[1].at_b.as_deref(), Some("1"));
    }

    #[test]
    fn the_first_differences_are_listed_and_the_others_counted() {
        let a: Vec<_> = (0..100).map(|sequence| (1, sequence, 5)).collect();
        let b: Vec<_> = a.iter().copied().filter(|(_, sequence, _)| sequence % 3 != 1).collect();
        let report = compare(&a, &b);
        assert_eq!(report.only_in, [33, 0]);
        let listed: Vec<_> = report.differences.iter().map(|difference| difference.name.as_str()).collect();
        assert_eq!(listed, ["1/1", "1/4", "1/7", "1/10", "1/13", "1/16", "1/19", "1/22", "1/25", "1/28"]);
    }

    #[test]
    fn repetitions_count_once() {
        let report = compare(&[(1, 1, 5), (1, 1, 5), (1, 2, 6)], &[(1, 1, 5), (1, 2, 6), (1, 1, 5), (1, 2, 6)]);
        assert!(report.same && report.duplicates == [1, 2], "{report:?}");
    }

    #[test]
    fn sides_too_far_apart_are_an_error() {
        let far: Vec<_> = (0..3_000).map(|sequence| (1, sequence, 0)).collect();
        let other: Vec<_> = (5_000..8_000).map(|sequence| (1, sequence, 0)).collect();
        let mut sides = [row(&far), row(&other)];
        let ended = Comparison::new(10, 1_000).run(&mut sides, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(ended, Err(DiffError::TooFarApart { names_max: 1_000 })));
    }
}
