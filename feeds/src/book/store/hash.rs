//! Any 64-bit id, by open addressing: linear probing, and removal that shifts back what follows.
//!
//! Entries are 32 bytes, two to a cache line, and at most two thirds of the places are used: 48 bytes per order. An
//! order beyond that is refused ([`BookFault::OrdersFull`]) and its book is suspect from then on.
//!
//! **Homes.** Four neighbouring ids share a block of four places, and the block's home is the upper part of its
//! product with an odd number, scaled to the table. So orders that come one after the other in a feed with dense ids
//! come into memory together, while blocks spread evenly; other ids spread as by chance.
//!
//! **Bounds.** Whoever knows the multiplier can choose ids that collide; so a search goes
//! [`PROBES_MAX`] places at most, what would rest further off is refused ([`BookFault::OrderProbesExceeded`]), and a
//! removal that would have to shift back over more than that leaves a marked grave instead, which later insertions use.
//! At two thirds, the longest search among a million ids by chance is some 200 places. A secret
//! [`BookLimits::order_hash_seed`] makes another multiplier.

use super::{
    super::{BookFault, BookLimits, prefetch},
    Order, OrderStore, Slot,
};

/// Longest search. 512 places are 16 KB in a row: a few microseconds at worst.
pub const PROBES_MAX: usize = 512;

/// The base store: any ids at all.
#[derive(Debug)]
pub struct HashStore {
    /// Never empty.
    places: Vec<Order>,
    len: usize,
    len_max: usize,
    multiplier: u64,
    /// Whole blocks in the table.
    blocks: usize,
}

/// Neighbouring ids that rest beside each other: two cache lines, which processors fetch in pairs.
const BLOCK: usize = 4;

const PLACES_PER_LINE: usize = 64 / size_of::<Order>();

/// What a vacant place has for a priority where a search must go on.
const GRAVE: Order = Order { id: 0, price_e9: 0, size: 0, instrument_side: 0, priority: 1 };

/// 2^64 divided by the golden ratio: dense ids get homes as far apart as can be.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl HashStore {
    pub(super) fn with_len_max(len_max: usize, seed: u64) -> Self {
        let blocks = (len_max + len_max / 2) / BLOCK + 1;
        Self {
            places: vec![Order::VACANT; blocks * BLOCK],
            blocks,
            len: 0,
            len_max,
            multiplier: GOLDEN.wrapping_add(seed.wrapping_mul(GOLDEN) << 1),
        }
    }

    #[inline]
    fn home(&self, order_id: u64) -> usize {
        let block = scale((order_id / BLOCK as u64).wrapping_mul(self.multiplier), self.blocks);
        block * BLOCK + place_in_block(order_id)
    }

    /// Places in the order of a search: from `first` to the end, then from the start.
    #[inline]
    fn following(&self, index: usize) -> usize {
        if index + 1 == self.places.len() { 0 } else { index + 1 }
    }

    fn preceding(&self, index: usize) -> usize {
        if index == 0 { self.places.len() - 1 } else { index - 1 }
    }

    /// How far `index` is behind `home`.
    #[inline]
    fn distance(&self, home: usize, index: usize) -> usize {
        if index >= home { index - home } else { index + self.places.len() - home }
    }

    #[inline]
    fn put(&mut self, index: usize, order: Order) {
        if let Some(place) = self.places.get_mut(index) {
            *place = order;
        }
    }

    /// A place has become vacant, so graves right before it need no marks any more.
    #[cold]
    fn level_graves_before(&mut self, vacant: usize) {
        let mut index = self.preceding(vacant);
        for _ in 0..PROBES_MAX {
            if self.places.get(index).is_none_or(|place| !place.is_grave()) {
                return;
            }
            self.put(index, Order::VACANT);
            index = self.preceding(index);
        }
    }
}

impl OrderStore for HashStore {
    fn new(limits: &BookLimits) -> Self {
        Self::with_len_max(limits.orders_max as usize, limits.order_hash_seed)
    }

    fn clear(&mut self) {
        self.places.fill(Order::VACANT);
        self.len = 0;
    }

    #[inline]
    fn find(&self, order_id: u64) -> Option<Slot> {
        let mut index = self.home(order_id);
        for _ in 0..PROBES_MAX {
            let place = self.places.get(index)?;
            if place.id == order_id && place.size != 0 {
                return Some(Slot(index));
            }
            if place.size == 0 && !place.is_grave() {
                return None;
            }
            index = self.following(index);
        }
        None
    }

    #[inline]
    fn get(&self, slot: Slot) -> Option<&Order> {
        self.places.get(slot.0)
    }

    #[inline]
    fn get_mut(&mut self, slot: Slot) -> Option<&mut Order> {
        self.places.get_mut(slot.0)
    }

    #[inline]
    fn insert(&mut self, order: Order) -> Result<(), BookFault> {
        let mut index = self.home(order.id);
        let mut grave = None;
        for _ in 0..PROBES_MAX {
            let Some(place) = self.places.get(index) else { break };
            if place.size == 0 {
                if !place.is_grave() {
                    grave.get_or_insert(index);
                    break;
                }
                grave.get_or_insert(index);
            } else if place.id == order.id {
                return Err(BookFault::DuplicateOrder);
            }
            index = self.following(index);
        }
        if self.len >= self.len_max {
            return Err(BookFault::OrdersFull);
        }
        let index = grave.ok_or(BookFault::OrderProbesExceeded)?;
        self.put(index, order);
        self.len += 1;
        Ok(())
    }

    #[inline]
    fn remove(&mut self, slot: Slot) {
        let mut hole = slot.0;
        let mut index = hole;
        self.len -= 1;
        for _ in 0..PROBES_MAX {
            index = self.following(index);
            let Some(place) = self.places.get(index).copied() else { return };
            if place.size == 0 {
                if place.is_grave() {
                    continue;
                }
                self.put(hole, Order::VACANT);
                if self.places.get(self.preceding(hole)).is_some_and(Order::is_grave) {
                    self.level_graves_before(hole);
                }
                return;
            }
            // It may fill the hole unless its home lies behind the hole.
            if self.distance(self.home(place.id), index) >= self.distance(hole, index) {
                self.put(hole, place);
                hole = index;
            }
        }
        self.put(hole, GRAVE);
    }

    #[inline]
    fn prefetch(&self, order_id: u64) {
        let home = self.home(order_id);
        prefetch::element(&self.places, home);
        prefetch::element(&self.places, home + PLACES_PER_LINE);
    }

    fn len(&self) -> usize {
        self.len
    }

    fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Order>()
    }

    fn iter(&self) -> impl Iterator<Item = &Order> {
        self.places.iter().filter(|place| place.size != 0)
    }
}

impl Order {
    const VACANT: Self = Self { id: 0, price_e9: 0, size: 0, instrument_side: 0, priority: 0 };

    #[inline]
    fn is_grave(&self) -> bool {
        self.size == 0 && self.priority == GRAVE.priority
    }
}

#[expect(clippy::cast_possible_truncation, reason = "less than the size of a block")]
#[inline]
fn place_in_block(order_id: u64) -> usize {
    (order_id % BLOCK as u64) as usize
}

/// `number` as a fraction of 2^64, times `count`.
#[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below `count`")]
#[inline]
fn scale(number: u64, count: usize) -> usize {
    ((u128::from(number) * (count as u128)) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::book::{InstrumentIndex, Side};

    fn order(id: u64) -> Order {
        Order::new(id, InstrumentIndex(1), Side::Bid, 5, 7, id)
    }

    /// Ids whose homes are all at the very start of the table.
    fn colliding(store: &HashStore, count: usize) -> Vec<u64> {
        let mut inverse = 1_u64;
        for _ in 0..6 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(store.multiplier.wrapping_mul(inverse)));
        }
        let blocks = (0_u64..).map(|product| product.wrapping_mul(inverse));
        blocks.filter(|block| *block < 1 << 62).map(|block| block * BLOCK as u64).take(count).collect()
    }

    proptest! {
        /// A small, full table, ids from one home or from anywhere: every search wraps, every removal shifts.
        #[test]
        fn a_store_is_a_map(steps in prop::collection::vec((any::<bool>(), 0_usize..40), 1..400)) {
            let mut store = HashStore::with_len_max(16, 3);
            let mut ids = colliding(&store, 20);
            ids.extend((0..20).map(|id| id * 3));
            let mut model = BTreeMap::new();
            for (insert, index) in steps {
                let id = ids[index];
                if insert {
                    let expected = if model.contains_key(&id) {
                        Err(BookFault::DuplicateOrder)
                    } else if model.len() == 16 {
                        Err(BookFault::OrdersFull)
                    } else {
                        model.insert(id, order(id));
                        Ok(())
                    };
                    prop_assert_eq!(store.insert(order(id)), expected);
                } else {
                    let slot = store.find(id);
                    prop_assert_eq!(slot.is_some(), model.remove(&id).is_some());
                    if let Some(slot) = slot {
                        store.remove(slot);
                    }
                }
                prop_assert_eq!(store.len(), model.len());
                for id in &ids {
                    let found = store.find(*id).and_then(|slot| store.get(slot)).copied();
                    prop_assert_eq!(found, model.get(id).copied());
                }
            }
        }
    }

    /// The configured number of orders, dense or scattered ids, and a day's coming and going: nothing is refused.
    #[test]
    fn a_table_at_its_limit_takes_whatever_ids_come_by_chance() {
        let scatter = |number: u64| (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
        for id_of in [|number| number, |number| number * 64, scatter] {
            let len_max = 100_000;
            let mut store = HashStore::with_len_max(len_max, 0);
            for number in 0..len_max as u64 {
                assert_eq!(store.insert(order(id_of(number))), Ok(()));
            }
            for number in len_max as u64..10 * len_max as u64 {
                // One of ten stays; the others go in their turn.
                let gone = store.find(id_of(number - len_max as u64 + u64::from(number % 10 == 0)));
                let Some(slot) = gone else { continue };
                store.remove(slot);
                assert_eq!(store.insert(order(id_of(number))), Ok(()));
            }
            assert_eq!(store.insert(order(id_of(1 << 40))), Err(BookFault::OrdersFull));
        }
    }

    #[test]
    fn ids_chosen_to_collide_are_refused_at_the_bound_and_cost_no_more() {
        let mut store = HashStore::with_len_max(10_000, 0);
        let ids = colliding(&store, 2 * PROBES_MAX);
        let inserted = ids.iter().filter(|id| store.insert(order(**id)).is_ok()).count();
        assert_eq!(inserted, PROBES_MAX);
        assert_eq!(store.insert(order(ids[PROBES_MAX])), Err(BookFault::OrderProbesExceeded));
        assert_eq!(store.insert(order(ids[3])), Err(BookFault::DuplicateOrder));
        for id in &ids[..PROBES_MAX] {
            let slot = store.find(*id).expect("inserted");
            store.remove(slot);
        }
        assert_eq!(store.len(), 0);
        assert_eq!(store.iter().count(), 0);
    }

    #[test]
    fn a_shift_beyond_the_bound_leaves_a_grave_and_loses_nothing() {
        let mut store = HashStore::with_len_max(4 * PROBES_MAX, 0);
        let graves = |store: &HashStore| store.places.iter().filter(|place| place.is_grave()).count();
        let run = run_of_displaced(&store, 3 * PROBES_MAX);
        for id in &run {
            store.insert(order(*id)).expect("room");
        }
        let first = store.find(run[0]).expect("inserted");
        store.remove(first);
        assert_eq!(graves(&store), 1);
        for (index, id) in run.iter().enumerate().skip(1) {
            assert!(run[index..].iter().all(|id| store.find(*id).is_some()), "after {index}");
            let slot = store.find(*id).expect("still there");
            store.remove(slot);
        }
        assert_eq!((store.len(), store.iter().count()), (0, 0));
    }

    /// Two ids for the first home, then one for each following home: all but the first rest one place further.
    fn run_of_displaced(store: &HashStore, count: usize) -> Vec<u64> {
        let mut by_home: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for id in 0..store.places.len() as u64 * 4 {
            by_home.entry(store.home(id)).or_default().push(id);
        }
        let mut run = vec![by_home[&0][0]];
        run.extend((0..count - 1).map(|home| by_home[&home][usize::from(home == 0)]));
        run
    }
}
