//! Lookup of resting orders by order id.

pub(crate) mod hash;
pub(crate) mod window;

pub use hash::HashStore;
pub use window::WindowStore;

use zerocopy::FromZeros;

use super::{BookFault, BookLimits, InstrumentIndex, OrderView, Side};

/// A table of resting orders, of bounded size.
pub trait OrderStore {
    /// Allocates all memory, and prefaults it unless [`BookLimits::prefault`] is off.
    fn new(limits: &BookLimits) -> Self;

    /// Removes all orders.
    fn clear(&mut self);

    /// Slot of the order, valid until the next insertion or removal.
    fn find(&self, order_id: u64) -> Option<OrderSlot>;

    /// The order in that slot.
    fn get(&self, slot: OrderSlot) -> Option<&Order>;

    /// The order in that slot. The caller must not change its id or set its size to 0.
    fn get_mut(&mut self, slot: OrderSlot) -> Option<&mut Order>;

    /// Inserts a new order of non-zero size.
    ///
    /// # Errors
    /// `DuplicateOrder`, `OrdersFull` or `OrderProbesExceeded`; nothing is inserted then.
    fn insert(&mut self, order: Order) -> Result<(), BookFault>;

    /// Removes the order.
    fn remove(&mut self, slot: OrderSlot);

    /// Prefetches the memory of that order's slot.
    fn prefetch(&self, order_id: u64);

    /// Number of resting orders.
    fn len(&self) -> usize;

    /// Whether there is no resting order.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory allocated, bytes.
    fn memory_bytes(&self) -> usize;

    /// All resting orders, in no particular order; walks the whole table.
    fn iter(&self) -> impl Iterator<Item = &Order>;

    /// Number of slots. A walk over all slots meets every order that is neither inserted nor removed meanwhile, even
    /// if other orders change: an order may move to a later slot, never to an earlier one.
    fn slot_count(&self) -> usize;

    /// The order in that slot, if any.
    fn order_in_slot(&self, slot: usize) -> Option<&Order>;
}

/// Slot of an order in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderSlot(pub(super) usize);

/// One entry: a resting order, or a vacant slot (size 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C, align(32))]
pub struct Order {
    pub(super) id: u64,
    pub(super) price_e9: i64,
    pub(super) size: u32,
    instrument_side: u32,
    /// Priority in the upper 48 bits. Below, a property of the slot in a [`HashStore`] and not of its order: how many
    /// orders passed this slot because it was occupied.
    priority_overflow: u64,
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
        Self {
            id,
            price_e9,
            size,
            instrument_side: instrument.0 << 1 | side as u32,
            priority_overflow: priority << OVERFLOW_BITS,
        }
    }

    /// From a copied order; `None` if its priority or instrument index is invalid.
    pub(super) fn of_view(order: &OrderView) -> Option<Self> {
        let OrderView { order_id, instrument, side, price_e9, size, priority } = *order;
        let is_representable = instrument.0 >> 31 == 0 && priority >> (u64::BITS - OVERFLOW_BITS) == 0;
        is_representable.then(|| Self::new(order_id, instrument, side, price_e9, size, priority))
    }

    pub(super) fn instrument(&self) -> InstrumentIndex {
        InstrumentIndex(self.instrument_side >> 1)
    }

    pub(super) fn side(&self) -> Side {
        if self.instrument_side & 1 == 0 { Side::Bid } else { Side::Ask }
    }

    /// The order in the form for callers.
    #[must_use]
    pub(crate) fn view(&self) -> OrderView {
        OrderView {
            order_id: self.id,
            instrument: self.instrument(),
            side: self.side(),
            price_e9: self.price_e9,
            size: self.size,
            priority: self.priority_overflow >> OVERFLOW_BITS,
        }
    }
}

const OVERFLOW_BITS: u32 = 16;

const _: () = assert!(size_of::<Order>() == 32);
