//! Order id → resting order.

use super::{BookFault, BookLimits, InstrumentIndex, OrderView, Side, prefetch};

/// A table of resting orders, of bounded size.
pub trait OrderStore {
    /// With all its memory allocated and touched.
    fn new(limits: &BookLimits) -> Self;

    /// Forgets all orders.
    fn clear(&mut self);

    /// Where the order is, until the next insertion or removal.
    fn find(&self, order_id: u64) -> Option<Slot>;

    /// The order in that slot.
    fn get(&self, slot: Slot) -> Option<&Order>;

    /// The order in that slot. Its id must not be changed, its size not be set to 0.
    fn get_mut(&mut self, slot: Slot) -> Option<&mut Order>;

    /// A new order, of a size that isn't 0.
    ///
    /// # Errors
    /// `DuplicateOrder`, `OrdersFull` or `OrderProbesExceeded`; nothing is inserted then.
    fn insert(&mut self, order: Order) -> Result<(), BookFault>;

    /// Takes the order out.
    fn remove(&mut self, slot: Slot);

    /// Asks for the memory where that order is or would be.
    fn prefetch(&self, order_id: u64);

    /// Live orders.
    fn len(&self) -> usize;

    /// Whether there is no live order.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was allocated.
    fn memory_bytes(&self) -> usize;

    /// All live orders, in no order that means anything; walks the whole table.
    fn iter(&self) -> impl Iterator<Item = &Order>;
}

/// Place of an order in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(super) usize);

/// One entry: a resting order, or, with size 0, a vacant place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Order {
    pub(super) id: u64,
    pub(super) price_e9: i64,
    pub(super) size: u32,
    instrument_side: u32,
    pub(super) priority: u64,
}

impl Order {
    pub(super) fn new(
        id: u64,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
        priority: u64,
    ) -> Self {
        Self { id, price_e9, size, instrument_side: instrument.0 << 1 | side as u32, priority }
    }

    pub(super) fn instrument(&self) -> InstrumentIndex {
        InstrumentIndex(self.instrument_side >> 1)
    }

    pub(super) fn side(&self) -> Side {
        if self.instrument_side & 1 == 0 { Side::Bid } else { Side::Ask }
    }

    /// As callers see it.
    #[must_use]
    pub fn view(&self) -> OrderView {
        OrderView {
            order_id: self.id,
            instrument: self.instrument(),
            side: self.side(),
            price_e9: self.price_e9,
            size: self.size,
            priority: self.priority,
        }
    }
}

const _: () = assert!(size_of::<Order>() == 32);

/// Any 64-bit id, by open addressing.
#[derive(Debug)]
pub struct HashStore {
    entries: Vec<Order>,
    len: usize,
    len_max: usize,
    seed: u64,
}

impl HashStore {
    fn home(&self, order_id: u64) -> usize {
        let mixed = (order_id ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (((mixed ^ mixed >> 32) as u128 * self.entries.len() as u128) >> 64) as usize
    }

    fn following(&self, index: usize) -> usize {
        if index + 1 == self.entries.len() { 0 } else { index + 1 }
    }
}

impl OrderStore for HashStore {
    fn new(limits: &BookLimits) -> Self {
        let len_max = limits.orders_max as usize;
        Self {
            entries: vec![Order::default(); len_max + len_max / 2 + 1],
            len: 0,
            len_max,
            seed: limits.order_hash_seed,
        }
    }

    fn clear(&mut self) {
        self.entries.fill(Order::default());
        self.len = 0;
    }

    fn find(&self, order_id: u64) -> Option<Slot> {
        let mut index = self.home(order_id);
        loop {
            let entry = self.entries.get(index)?;
            if entry.size == 0 {
                return None;
            }
            if entry.id == order_id {
                return Some(Slot(index));
            }
            index = self.following(index);
        }
    }

    fn get(&self, slot: Slot) -> Option<&Order> {
        self.entries.get(slot.0)
    }

    fn get_mut(&mut self, slot: Slot) -> Option<&mut Order> {
        self.entries.get_mut(slot.0)
    }

    fn insert(&mut self, order: Order) -> Result<(), BookFault> {
        let mut index = self.home(order.id);
        loop {
            let Some(entry) = self.entries.get_mut(index) else { return Err(BookFault::OrdersFull) };
            if entry.size == 0 {
                if self.len == self.len_max {
                    return Err(BookFault::OrdersFull);
                }
                *entry = order;
                self.len += 1;
                return Ok(());
            }
            if entry.id == order.id {
                return Err(BookFault::DuplicateOrder);
            }
            index = self.following(index);
        }
    }

    fn remove(&mut self, slot: Slot) {
        let mut hole = slot.0;
        let mut index = hole;
        self.len -= 1;
        loop {
            index = self.following(index);
            let Some(entry) = self.entries.get(index).copied() else { return };
            if entry.size == 0 {
                break;
            }
            let home = self.home(entry.id);
            let stays = if hole <= index { hole < home && home <= index } else { hole < home || home <= index };
            if !stays {
                if let Some(vacant) = self.entries.get_mut(hole) {
                    *vacant = entry;
                }
                hole = index;
            }
        }
        if let Some(vacant) = self.entries.get_mut(hole) {
            *vacant = Order::default();
        }
    }

    fn prefetch(&self, order_id: u64) {
        prefetch::element(&self.entries, self.home(order_id));
    }

    fn len(&self) -> usize {
        self.len
    }

    fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Order>()
    }

    fn iter(&self) -> impl Iterator<Item = &Order> {
        self.entries.iter().filter(|entry| entry.size != 0)
    }
}
