//! Order store for any 64-bit id: open addressing with linear probing. Each slot counts the orders that had to pass
//! it.
//!
//! Entries are 32 bytes, two per cache line, and at most two thirds of the slots are used: 48 bytes per order. An
//! order beyond that is rejected ([`BookFault::OrdersFull`]), and its book is suspect from then on.
//!
//! **Home slots.** 32 neighbouring ids share a region of 128 slots (4 KB) and are spread evenly over it. The region,
//! and the slot in it, are the upper parts of products with two odd numbers. The latest orders therefore rest on a
//! few pages, which are still in the TLB, and fill no region by more than a quarter at once. Other ids spread as if
//! at random.
//!
//! **Counts.** An order whose home slot is occupied goes to the next vacant slot and increments the count of each
//! slot it passes; its removal decrements them. A search therefore ends at a slot that no order passed. A removal
//! moves nothing and touches only the order's own path.
//!
//! **Bounds.** An attacker who knows the multipliers can choose ids that collide. A search therefore visits
//! [`PROBES_MAX`] slots at most, and an order that would rest further away is rejected
//! ([`BookFault::OrderProbesExceeded`]). A secret [`BookLimits::order_hash_seed`] selects other multipliers: the
//! first ones derived from it that spread ascending ids over distant slots. One odd number in two hundred is so near
//! a simple fraction of 2^64 that a venue's ids would crowd in a few slots until the table rejects them. About as few
//! are far enough from all such fractions to be accepted.

use super::{
    super::{BookFault, BookLimits, memory, prefetch},
    OVERFLOW_BITS, Order, OrderSlot, OrderStore,
};

/// Longest search. 512 slots are 16 KB: a few microseconds at worst.
pub(crate) const PROBES_MAX: usize = 512;

/// The base store, for any ids.
#[derive(Debug)]
pub struct HashStore {
    /// Never empty.
    slots: Vec<Order>,
    len: usize,
    len_max: usize,
    /// The last id inserted.
    id_last: u64,
    /// For regions, and for slots within one. They differ, since otherwise all ids of a region would share the same
    /// slots.
    multipliers: [u64; 2],
    /// Whole regions in the table.
    regions: usize,
    /// log2 of the slots in a region.
    region_bits: u32,
}

/// With ascending ids, memory is prefetched this many additions ahead.
const PREFETCH_AHEAD: u64 = 8;

const SLOTS_PER_CACHE_LINE: usize = 64 / size_of::<Order>();

/// log2 of the slots in a region. In tables of a few regions, a region is one slot.
const REGION_BITS: u32 = 7;
const REGIONS_MIN: usize = 64;

/// log2 of the part of a region used by one group of ids.
const PART_BITS: u32 = 2;

/// Where the search for multipliers begins: odd numbers near 2^64 times an irrational number.
const MULTIPLIERS: [u64; 2] = [0xd1b5_4a32_d192_ed03, 0x9e37_79b9_7f4a_7c15];

/// Bound on partial quotients; it keeps a multiplier away from simple fractions: see [`has_small_quotients`].
const QUOTIENT_MAX: u64 = 8;
/// The same bound for ids that ascend in steps. It is looser: each id is nearly a group of its own, so fewer orders
/// share a slot.
const STRIDE_QUOTIENT_MAX: u64 = 256;
/// Upper bound of the groups of ids in a day.
const GROUPS_MAX: u64 = 1 << 30;

impl HashStore {
    #[inline(always)]
    fn home(&self, order_id: u64) -> usize {
        let [for_region, for_slot] = self.multipliers;
        let group = order_id >> self.region_bits.saturating_sub(PART_BITS);
        let region = scale(group.wrapping_mul(for_region), self.regions);
        let slot = order_id.wrapping_mul(for_slot) >> 1 >> (63 - self.region_bits);
        (region << self.region_bits) + slot as usize
    }

    /// Inserts without prefetching.
    #[inline(always)]
    pub(super) fn insert_unprefetched(&mut self, order: Order) -> Result<(), BookFault> {
        let home = self.home(order.id);
        let mut vacant = None;
        let mut index = home;
        for _ in 0..PROBES_MAX {
            let Some(slot) = self.slots.get(index) else { break };
            if slot.size == 0 {
                vacant.get_or_insert(index);
            } else if slot.id == order.id {
                return Err(BookFault::DuplicateOrder);
            }
            if vacant.is_some() && slot.overflow_count() == 0 {
                break;
            }
            index = self.next_index(index);
        }
        if self.len >= self.len_max {
            return Err(BookFault::OrdersFull);
        }
        let index = vacant.ok_or(BookFault::OrderProbesExceeded)?;
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Order { priority_overflow: order.priority_overflow | slot.overflow_count(), ..order };
        }
        if index != home {
            self.change_overflow(home, index, |count| count + 1);
        }
        self.len += 1;
        Ok(())
    }

    /// Slots in the order of a search: from `first` to the end, then from the start.
    #[inline(always)]
    fn next_index(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }

    /// Adjusts the counts of the slots from `home` up to `end`.
    #[inline(never)]
    fn change_overflow(&mut self, home: usize, end: usize, change: impl Fn(u64) -> u64) {
        let mut index = home;
        while index != end {
            if let Some(slot) = self.slots.get_mut(index) {
                slot.priority_overflow = change(slot.priority_overflow);
            }
            index = self.next_index(index);
        }
    }
}

impl OrderStore for HashStore {
    fn new(limits: &BookLimits) -> Self {
        let len_max = limits.orders_max as usize;
        let slots = len_max + len_max / 2;
        let region_bits = if slots >> REGION_BITS < REGIONS_MIN { 0 } else { REGION_BITS };
        let regions = (slots >> region_bits) + 1;
        Self {
            slots: memory::zeroed(regions << region_bits, limits.prefault),
            regions,
            region_bits,
            len: 0,
            len_max,
            id_last: 0,
            multipliers: MULTIPLIERS.map(|odd| multiplier(odd, limits.order_hash_seed)),
        }
    }

    fn clear(&mut self) {
        // Without a resting order all slots are vacant and all counts 0: a removal undoes what the insertion did.
        if self.len > 0 {
            self.slots.fill(Order::VACANT);
            self.len = 0;
        }
    }

    #[inline(always)]
    fn find(&self, order_id: u64) -> Option<OrderSlot> {
        let mut index = self.home(order_id);
        for _ in 0..PROBES_MAX {
            let slot = self.slots.get(index)?;
            if slot.id == order_id && slot.size != 0 {
                return Some(OrderSlot(index));
            }
            if slot.overflow_count() == 0 {
                return None;
            }
            index = self.next_index(index);
        }
        None
    }

    #[inline(always)]
    fn get(&self, slot: OrderSlot) -> Option<&Order> {
        self.slots.get(slot.0)
    }

    #[inline(always)]
    fn get_mut(&mut self, slot: OrderSlot) -> Option<&mut Order> {
        self.slots.get_mut(slot.0)
    }

    #[inline(always)]
    fn insert(&mut self, order: Order) -> Result<(), BookFault> {
        if order.id.wrapping_sub(self.id_last) <= PREFETCH_AHEAD {
            self.prefetch(order.id.wrapping_add(PREFETCH_AHEAD));
        }
        self.id_last = order.id;
        self.insert_unprefetched(order)
    }

    #[inline(always)]
    fn remove(&mut self, slot: OrderSlot) {
        let Some(order) = self.slots.get_mut(slot.0) else { return };
        let id = order.id;
        order.size = 0;
        self.len -= 1;
        let home = self.home(id);
        if home != slot.0 {
            self.change_overflow(home, slot.0, |count| count - 1);
        }
    }

    /// Prefetches two cache lines: one order in five rests beyond the line of its home slot, one in 25 beyond the next.
    #[inline(always)]
    fn prefetch(&self, order_id: u64) {
        let home = self.home(order_id);
        prefetch::element(&self.slots, home);
        prefetch::element(&self.slots, home + SLOTS_PER_CACHE_LINE);
    }

    fn len(&self) -> usize {
        self.len
    }

    fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Order>()
    }

    fn iter(&self) -> impl Iterator<Item = &Order> {
        self.slots.iter().filter(|slot| slot.size != 0)
    }

    /// Orders never move in this store.
    fn slot_count(&self) -> usize {
        self.slots.len()
    }

    fn order_in_slot(&self, slot: usize) -> Option<&Order> {
        self.slots.get(slot).filter(|slot| slot.size != 0)
    }
}

impl Order {
    const VACANT: Self = Self { id: 0, price_e9: 0, size: 0, instrument_side: 0, priority_overflow: 0 };

    #[inline(always)]
    fn overflow_count(&self) -> u64 {
        self.priority_overflow & ((1 << OVERFLOW_BITS) - 1)
    }

    /// The entry as inserted.
    #[cfg(test)]
    fn without_overflow(self) -> Self {
        Self { priority_overflow: self.priority_overflow - self.overflow_count(), ..self }
    }
}

/// The first multiplier derived from `odd` and `seed` that spreads ascending ids, in steps of one, of a power of two
/// or of a power of ten.
fn multiplier(odd: u64, seed: u64) -> u64 {
    let spreads = |multiplier: &u64| {
        // In groups of 32, ids in steps of 10^p form progressions whose steps have fewer factors of two.
        let of_ten = (1..=6).map(|power| 10_u64.pow(power)).flat_map(|ten| [ten, ten >> ten.trailing_zeros().min(5)]);
        let mut strides = (1..=20).map(|power| 1 << power).chain(of_ten);
        has_small_quotients(*multiplier, QUOTIENT_MAX)
            && strides.all(|stride| has_small_quotients(multiplier.wrapping_mul(stride), STRIDE_QUOTIENT_MAX))
    };
    let mut candidates = (0..=u64::MAX).map(|step| odd.wrapping_mul(seed.wrapping_add(step) << 1 | 1));
    candidates.find(spreads).unwrap_or(odd)
}

/// Whether no partial quotient of the continued fraction of `multiplier` / 2^64 is above `quotient_max`, up to
/// denominators of [`GROUPS_MAX`].
///
/// The slots of the numbers 0 to N are then at least about 1 / (`quotient_max` N) of the table apart. A large
/// quotient means a fraction p/q very close by: the slots of all numbers then lie in q small clusters.
fn has_small_quotients(multiplier: u64, quotient_max: u64) -> bool {
    // 2^64 does not fit the type, so the division avoids it.
    let first = u64::MAX / multiplier.max(1);
    let (mut divisor, mut remainder) = (multiplier, 0_u64.wrapping_sub(first.wrapping_mul(multiplier)));
    let (mut quotient, mut denominators) = (first, (1, first));
    while quotient <= quotient_max {
        if denominators.1 >= GROUPS_MAX || remainder == 0 {
            return denominators.1 >= GROUPS_MAX;
        }
        quotient = divisor / remainder;
        (divisor, remainder) = (remainder, divisor % remainder);
        denominators = (denominators.1, denominators.1.saturating_mul(quotient).saturating_add(denominators.0));
    }
    false
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

    fn with_len_max(len_max: u32, order_hash_seed: u64) -> HashStore {
        HashStore::new(&BookLimits { orders_max: len_max, order_hash_seed, ..BookLimits::default() })
    }

    fn order(id: u64) -> Order {
        Order::new(id, InstrumentIndex(1), Side::Bid, 5, 7, id)
    }

    /// Ids whose home slots are all at the very start of the table.
    fn colliding(store: &HashStore, count: usize) -> Vec<u64> {
        let mut inverse = 1_u64;
        for _ in 0..6 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(store.multipliers[0].wrapping_mul(inverse)));
        }
        let group_ids = 1 << store.region_bits.saturating_sub(PART_BITS);
        let groups = (0_u64..).map(|product| product.wrapping_mul(inverse)).filter(|group| group.leading_zeros() > 8);
        let ids = groups.flat_map(|group| (0..group_ids).map(move |id| group * group_ids + id));
        ids.filter(|id| store.home(*id) == 0).take(count).collect()
    }

    proptest! {
        /// A small, full table, and ids of one home slot or of any: searches pass many occupied slots, and removals
        /// decrement many counts.
        #[test]
        fn the_hash_store_matches_a_map(steps in prop::collection::vec((any::<bool>(), 0_usize..40), 1..400)) {
            let mut store = with_len_max(16, 3);
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
                    let found = store.find(*id).and_then(|slot| store.get(slot)).map(|order| order.without_overflow());
                    prop_assert_eq!(found, model.get(id).copied());
                }
            }
        }
    }

    /// The configured number of orders, dense or scattered ids, and a day's additions and removals: none is rejected.
    #[test]
    fn a_full_table_accepts_dense_and_random_ids() {
        let scatter = |number: u64| (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
        for id_of in [|number| number, |number| number * 64, scatter] {
            let len_max = 100_000;
            let mut store = with_len_max(len_max, 0);
            for number in 0..len_max as u64 {
                assert_eq!(store.insert(order(id_of(number))), Ok(()));
            }
            for number in len_max as u64..10 * len_max as u64 {
                // One of ten stays; the others are removed in turn.
                let gone = store.find(id_of(number - len_max as u64 + u64::from(number % 10 == 0)));
                let Some(slot) = gone else { continue };
                store.remove(slot);
                assert_eq!(store.insert(order(id_of(number))), Ok(()));
            }
            assert_eq!(store.insert(order(id_of(1 << 40))), Err(BookFault::OrdersFull));
        }
    }

    /// Seeds whose first multiplier is very near a fraction such as 2/5.
    const CLUSTERING_SEEDS: [u64; 5] = [
        0x544f_d007_fdcf_9873,
        0x2626_04da_56b1_7b8e,
        0x1ba9_a989_ab9c_94e7,
        0xc4f9_71b5_9c8d_4915,
        0xe273_48ab_c40c_b35c,
    ];

    #[test]
    fn no_seed_clusters_sequential_ids() {
        let golden = MULTIPLIERS[1];
        assert!(has_small_quotients(golden, 1), "all its quotients are 1");
        let third = u64::MAX / 3;
        assert!(!has_small_quotients(third, STRIDE_QUOTIENT_MAX));
        for (number, is_far) in [(0, false), (1, false), (1 << 63, false), (u64::MAX, false), (golden ^ 1 << 55, true)]
        {
            assert_eq!(has_small_quotients(number, STRIDE_QUOTIENT_MAX), is_far, "{number:#x}");
        }
        for seed in CLUSTERING_SEEDS.into_iter().chain(1..20) {
            for stride in [10, 100, 1_000, 10_000, 100_000] {
                let mut store = with_len_max(20_000, seed);
                let refused = (0..20_000).filter(|number| store.insert(order(number * stride)).is_err()).count();
                assert_eq!(refused, 0, "{seed:#x}, in steps of {stride}");
            }
        }
        for seed in CLUSTERING_SEEDS {
            let plain = MULTIPLIERS[0].wrapping_mul(seed << 1 | 1);
            assert!(!has_small_quotients(plain, STRIDE_QUOTIENT_MAX));
            for stride in [1, 3, 64, 1_000] {
                let mut store = with_len_max(100_000, seed);
                for number in 0..100_000 {
                    assert_eq!(store.insert(order(number * stride)), Ok(()), "{seed:#x}, in steps of {stride}");
                }
            }
            // Negative control: with the seed's first multiplier, many are rejected.
            let mut clustered = with_len_max(100_000, 0);
            clustered.multipliers[0] = plain;
            let taken = (0..100_000).filter(|number| clustered.insert(order(*number)).is_ok()).count();
            assert!(taken < 99_000, "{seed:#x}: {taken}");
        }
    }

    #[test]
    fn colliding_ids_are_refused_at_the_probe_limit() {
        let mut store = with_len_max(10_000, 0);
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
    fn removing_an_order_restores_the_overflow_counts() {
        let mut store = with_len_max(1_000, 0);
        let ids = colliding(&store, 100);
        for id in &ids {
            store.insert(order(*id)).expect("room");
        }
        assert_eq!(store.slots[0].overflow_count(), 99);
        for (index, id) in ids.iter().enumerate() {
            let slot = store.find(*id).expect("still there");
            store.remove(slot);
            assert!(ids[index + 1..].iter().all(|id| store.find(*id).is_some()), "after {index}");
        }
        assert_eq!((store.len(), store.iter().count()), (0, 0));
        assert!(store.slots.iter().all(|slot| slot.overflow_count() == 0));
    }
}
