//! Order store for dense and mostly recent ids: an array for the latest ids in front of the hash store.
//!
//! The slot of an id is the id modulo the window. A new order takes its slot at once, next to the preceding orders,
//! without a search. An older order that still rests there moves to the [`HashStore`]. Most orders live shortly, so
//! few of them move, and a lookup is one array access.
//!
//! Correct for any ids, efficient for dense ones: Nasdaq numbers orders upwards within a day. Bounded like the hash
//! store: a message moves at most one order. Memory is the hash store's 48 bytes per order, and 32 bytes per window
//! slot. The window has as many slots as `orders_max`, rounded down to a power of two.

use super::{
    super::{BookFault, BookLimits, memory, prefetch},
    HashStore, Order, OrderSlot, OrderStore,
};

/// The order store with an array in front.
#[derive(Debug)]
pub struct WindowStore {
    /// The number of slots is a power of two.
    window: Vec<Order>,
    mask: u64,
    window_len: usize,
    displaced: HashStore,
    len_max: usize,
    /// The highest id so far. A higher id cannot be in the hash store, so no lookup there is needed.
    id_max: Option<u64>,
}

/// With dense ids, an order that will be moved is prefetched this many additions ahead.
const DISPLACED_AHEAD: u64 = 8;

/// Slots from here on belong to the hash store.
const DISPLACED_SLOTS: usize = 1 << 32;

impl WindowStore {
    #[expect(clippy::cast_possible_truncation, reason = "masked by a `usize`")]
    #[inline(always)]
    fn window_index(&self, order_id: u64) -> usize {
        (order_id & self.mask) as usize
    }

    /// With dense ids, whether a resting order with that id has been moved to the hash store by now.
    #[inline(always)]
    fn is_displaced(&self, order_id: u64) -> bool {
        self.id_max.is_some_and(|id_max| order_id.saturating_add(self.mask) < id_max)
    }

    /// Prefetches the slots of the next additions and the hash slots of the orders that they will move. With dense ids,
    /// both are known.
    #[inline(always)]
    fn prefetch_displaced(&self, order_id: u64) {
        prefetch::element(&self.window, self.window_index(order_id.wrapping_add(2 * DISPLACED_AHEAD)));
        if let Some(slot) = self.window.get(self.window_index(order_id.wrapping_add(DISPLACED_AHEAD)))
            && slot.size != 0
        {
            self.displaced.prefetch(slot.id);
        }
    }

    #[inline(always)]
    fn find_in_window(&self, order_id: u64) -> Option<OrderSlot> {
        let index = self.window_index(order_id);
        let order = self.window.get(index)?;
        (order.id == order_id && order.size != 0).then_some(OrderSlot(index))
    }

    #[inline(always)]
    fn find_displaced(&self, order_id: u64) -> Option<OrderSlot> {
        self.displaced.find(order_id).map(|slot| OrderSlot(slot.0 + DISPLACED_SLOTS))
    }
}

impl OrderStore for WindowStore {
    fn new(limits: &BookLimits) -> Self {
        let slots = (limits.orders_max as usize + 1).next_power_of_two() / 2;
        let slots = slots.max(1);
        Self {
            window: memory::zeroed(slots, limits.prefault),
            mask: slots as u64 - 1,
            window_len: 0,
            displaced: HashStore::new(limits),
            len_max: limits.orders_max as usize,
            id_max: None,
        }
    }

    fn clear(&mut self) {
        // Without a resting order all slots are vacant.
        if self.window_len > 0 {
            self.window.fill(Order::default());
            self.window_len = 0;
        }
        self.displaced.clear();
        self.id_max = None;
    }

    #[inline(always)]
    fn find(&self, order_id: u64) -> Option<OrderSlot> {
        // Each lookup may wait for memory: the more likely one comes first.
        if self.is_displaced(order_id) {
            self.find_displaced(order_id).or_else(|| self.find_in_window(order_id))
        } else {
            self.find_in_window(order_id).or_else(|| self.find_displaced(order_id))
        }
    }

    #[inline(always)]
    fn get(&self, slot: OrderSlot) -> Option<&Order> {
        match slot.0.checked_sub(DISPLACED_SLOTS) {
            None => self.window.get(slot.0),
            Some(displaced_slot) => self.displaced.get(OrderSlot(displaced_slot)),
        }
    }

    #[inline(always)]
    fn get_mut(&mut self, slot: OrderSlot) -> Option<&mut Order> {
        match slot.0.checked_sub(DISPLACED_SLOTS) {
            None => self.window.get_mut(slot.0),
            Some(displaced_slot) => self.displaced.get_mut(OrderSlot(displaced_slot)),
        }
    }

    #[inline(always)]
    fn insert(&mut self, order: Order) -> Result<(), BookFault> {
        let index = self.window_index(order.id);
        let Some(slot) = self.window.get_mut(index) else { return Err(BookFault::OrdersFull) };
        if slot.size != 0 && slot.id == order.id {
            return Err(BookFault::DuplicateOrder);
        }
        let is_latest = self.id_max.is_none_or(|id_max| order.id > id_max);
        if !is_latest && self.displaced.find(order.id).is_some() {
            return Err(BookFault::DuplicateOrder);
        }
        if self.window_len + self.displaced.len() >= self.len_max {
            return Err(BookFault::OrdersFull);
        }
        if slot.size == 0 {
            self.window_len += 1;
        } else {
            self.displaced.insert_unprefetched(*slot)?;
        }
        *slot = order;
        if is_latest {
            self.id_max = Some(order.id);
            self.prefetch_displaced(order.id);
        }
        Ok(())
    }

    #[inline(always)]
    fn remove(&mut self, slot: OrderSlot) {
        match slot.0.checked_sub(DISPLACED_SLOTS) {
            None => {
                if let Some(slot) = self.window.get_mut(slot.0) {
                    slot.size = 0;
                    self.window_len -= 1;
                }
            }
            Some(displaced_slot) => self.displaced.remove(OrderSlot(displaced_slot)),
        }
    }

    #[inline(always)]
    fn prefetch(&self, order_id: u64) {
        // With sparse ids, the window holds old orders too.
        prefetch::element(&self.window, self.window_index(order_id));
        if self.is_displaced(order_id) {
            self.displaced.prefetch(order_id);
        }
    }

    fn len(&self) -> usize {
        self.window_len + self.displaced.len()
    }

    fn memory_bytes(&self) -> usize {
        self.window.capacity() * size_of::<Order>() + self.displaced.memory_bytes()
    }

    fn iter(&self) -> impl Iterator<Item = &Order> {
        self.window.iter().filter(|slot| slot.size != 0).chain(self.displaced.iter())
    }

    /// Orders move only from the window to the hash store, whose slots follow. An order moved during the walk over
    /// the hash store was visited in the window.
    fn slot_count(&self) -> usize {
        self.window.len() + self.displaced.slot_count()
    }

    fn order_in_slot(&self, slot: usize) -> Option<&Order> {
        match slot.checked_sub(self.window.len()) {
            None => self.window.get(slot).filter(|slot| slot.size != 0),
            Some(displaced_slot) => self.displaced.order_in_slot(displaced_slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::{InstrumentIndex, Side};

    fn order(id: u64) -> Order {
        Order::new(id, InstrumentIndex(1), Side::Bid, 5, 7, id)
    }

    #[test]
    fn a_displaced_order_is_still_found_and_unique() {
        let mut store = WindowStore::new(&BookLimits { orders_max: 8, ..BookLimits::default() });
        for id in [3, 11, 19] {
            store.insert(order(id)).expect("room");
        }
        assert_eq!((store.window_len, store.displaced.len()), (1, 2));
        for id in [3, 11, 19] {
            assert_eq!(store.insert(order(id)), Err(BookFault::DuplicateOrder));
            assert_eq!(store.find(id).and_then(|slot| store.get(slot)).map(|order| order.id), Some(id));
        }
        let slot = store.find(11).expect("moved");
        store.remove(slot);
        assert_eq!(store.find(11), None);
        assert_eq!(store.iter().count(), 2);
        assert_eq!(store.find(27), None);
    }

    #[test]
    fn an_order_beyond_the_limit_is_refused() {
        let mut store = WindowStore::new(&BookLimits { orders_max: 8, ..BookLimits::default() });
        let inserted = (0..20).filter(|id| store.insert(order(*id)).is_ok()).count();
        assert_eq!((inserted, store.len()), (8, 8));
        assert_eq!(store.insert(order(99)), Err(BookFault::OrdersFull));
    }
}
