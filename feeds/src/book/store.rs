//! Order id → resting order.

pub mod hash;
pub mod window;

pub use hash::HashStore;
pub use window::WindowStore;

use super::{BookFault, BookLimits, InstrumentIndex, OrderView, Side};

/// A table of resting orders, of bounded size.
pub trait OrderStore {
    /// With all its memory allocated and touched.
    fn new(limits: &BookLimits) -> Self;

    /// Forgets all orders.
    fn clear(&mut self);

    /// Where the order is, until the next insertion or removal.
    fn find(&self, order_id: u64) -> Option<OrderSlot>;

    /// The order in that slot.
    fn get(&self, slot: OrderSlot) -> Option<&Order>;

    /// The order in that slot. Its id must not be changed, its size not be set to 0.
    fn get_mut(&mut self, slot: OrderSlot) -> Option<&mut Order>;

    /// A new order, of a size that isn't 0.
    ///
    /// # Errors
    /// `DuplicateOrder`, `OrdersFull` or `OrderProbesExceeded`; nothing is inserted then.
    fn insert(&mut self, order: Order) -> Result<(), BookFault>;

    /// Takes the order out.
    fn remove(&mut self, slot: OrderSlot);

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

    /// Places for orders. An order that is neither inserted nor removed meanwhile is met by a walk over all of them, whatever
    /// becomes of the others: it may move to a place further on, never back.
    fn places(&self) -> usize;

    /// The order in the place of that number, if there is one.
    fn at(&self, place: usize) -> Option<&Order>;
}

/// Place of an order in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderSlot(pub(super) usize);

/// One entry: a resting order, or, with size 0, a vacant place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Order {
    pub(super) id: u64,
    pub(super) price_e9: i64,
    pub(super) size: u32,
    instrument_side: u32,
    /// Priority in the upper 48 bits. Below, of a place in a [`HashStore`] and not of the order in it: how many orders
    /// rest further off because this place was taken.
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

    /// The same as it was shown; `None` where its priority or its instrument's number can't be.
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

    /// As callers see it.
    #[must_use]
    pub fn view(&self) -> OrderView {
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
