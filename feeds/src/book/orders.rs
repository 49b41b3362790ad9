//! Books of a feed that sends every order.

use super::{
    BookFault, BookFaultCounts, BookLimits, BookMarks, BookView, Change, InstrumentIndex, LevelChange, OrderView,
    ReplaceChange, Side,
    ladder::{Ladders, LevelUpdate},
    store::{HashStore, Order, OrderSlot, OrderStore},
};

/// All books of a channel by order. `S` holds the orders.
///
/// Every call takes the instrument of the message, so that a fault marks the right book even if the order is unknown.
/// After `Err` nothing was applied; after a [`Change`] with a fault something was. Both are counted, and the book is
/// suspect from then on.
#[derive(Debug)]
pub struct OrderBooks<S: OrderStore = HashStore> {
    store: S,
    ladders: Ladders,
    faults: BookFaultCounts,
    priority_next: u64,
}

impl<S: OrderStore> OrderBooks<S> {
    /// Allocates all memory, and prefaults it unless [`BookLimits::prefault`] is off.
    #[must_use]
    pub fn new(limits: BookLimits) -> Self {
        Self {
            store: S::new(&limits),
            ladders: Ladders::new(&limits),
            faults: BookFaultCounts::default(),
            priority_next: 0,
        }
    }

    /// Removes all orders, levels and marks, for a new session. Fault counts stay.
    pub fn clear(&mut self) {
        self.store.clear();
        self.ladders.clear();
        self.priority_next = 0;
    }

    /// Adds an order, behind all others at its price.
    ///
    /// # Errors
    /// `InstrumentUnknown`, `ZeroSize`, `DuplicateOrder`, `OrdersFull`, `OrderProbesExceeded`, `LevelsFull`,
    /// `LevelOverflow`, `PriceOutOfRange`: the order is ignored.
    #[inline(always)]
    pub fn add(
        &mut self,
        instrument: InstrumentIndex,
        order_id: u64,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Change, BookFault> {
        if size == 0 {
            return Err(self.fault(instrument, BookFault::ZeroSize));
        }
        if !self.ladders.contains(instrument) {
            return Err(self.fault(instrument, BookFault::InstrumentUnknown));
        }
        let order = Order::new(order_id, instrument, side, price_e9, size, self.priority_next);
        if let Err(fault) = self.store.insert(order) {
            return Err(self.fault(instrument, fault));
        }
        let changed = match self.ladders.add(instrument, side, price_e9, size) {
            Ok(changed) => changed,
            Err(fault) => {
                if let Some(slot) = self.store.find(order_id) {
                    self.store.remove(slot);
                }
                return Err(self.fault(instrument, fault));
            }
        };
        self.priority_next += 1;
        let mut change = change_of(&order, size, size, changed);
        if self.ladders.has_crossed_prices(instrument) {
            change.fault = self.check_new_best(instrument, changed);
        }
        Ok(change)
    }

    /// Executes part or all of an order. If the size exceeds the order's: [`BookFault::OverExecution`] in the change,
    /// and the order is removed.
    ///
    /// # Errors
    /// `ZeroSize`, `UnknownOrder`, `InstrumentMismatch`: nothing is applied.
    #[inline(always)]
    pub fn execute(&mut self, instrument: InstrumentIndex, order_id: u64, size: u32) -> Result<Change, BookFault> {
        self.reduce_by(instrument, order_id, size, BookFault::OverExecution)
    }

    /// Cancels part or all of an order. If the size exceeds the order's: [`BookFault::OverCancel`] in the change, and
    /// the order is removed.
    ///
    /// # Errors
    /// `ZeroSize`, `UnknownOrder`, `InstrumentMismatch`: nothing is applied.
    #[inline(always)]
    pub fn reduce(&mut self, instrument: InstrumentIndex, order_id: u64, size: u32) -> Result<Change, BookFault> {
        self.reduce_by(instrument, order_id, size, BookFault::OverCancel)
    }

    /// Removes an order.
    ///
    /// # Errors
    /// `UnknownOrder`, `InstrumentMismatch`: nothing is applied.
    #[inline(always)]
    pub fn delete(&mut self, instrument: InstrumentIndex, order_id: u64) -> Result<Change, BookFault> {
        let (slot, order) = self.resting(instrument, order_id)?;
        Ok(self.remove(slot, &order))
    }

    /// Replaces an order by another one of the same side, with a new id, price, size and priority. The old order is
    /// removed, whether or not the new one can be added.
    ///
    /// # Errors
    /// `UnknownOrder`, `InstrumentMismatch`: nothing is applied.
    #[inline(always)]
    pub fn replace(
        &mut self,
        instrument: InstrumentIndex,
        old_id: u64,
        new_id: u64,
        price_e9: i64,
        size: u32,
    ) -> Result<ReplaceChange, BookFault> {
        let (slot, order) = self.resting(instrument, old_id)?;
        let removed = self.remove(slot, &order);
        let added = self.add(instrument, new_id, order.side(), price_e9, size);
        Ok(ReplaceChange { removed, added })
    }

    /// The resting order with that id.
    #[must_use]
    pub(crate) fn order(&self, order_id: u64) -> Option<OrderView> {
        self.store.find(order_id).and_then(|slot| self.store.get(slot)).map(Order::view)
    }

    /// All orders of an instrument: bids then asks, best price first, by priority within a price. Walks the whole
    /// store: not for the hot path.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn orders_of(&self, instrument: InstrumentIndex) -> Vec<OrderView> {
        self.orders_where(|index| index == instrument)
    }

    /// The orders of all wanted instruments, one instrument after the other: bids then asks, best price first, by priority
    /// within a price. Walks the whole store once: not for the hot path.
    #[must_use]
    pub fn orders_where(&self, is_wanted: impl Fn(InstrumentIndex) -> bool) -> Vec<OrderView> {
        let mut orders: Vec<OrderView> =
            self.store.iter().filter(|order| is_wanted(order.instrument())).map(Order::view).collect();
        orders.sort_by_key(|order| {
            let price_rank = if order.side == Side::Bid { !order.price_e9 } else { order.price_e9 };
            (order.instrument, order.side, price_rank, order.priority)
        });
        orders
    }

    /// Number of slots for a walk over all orders: see [`OrderStore::slot_count`].
    #[must_use]
    pub(crate) fn slot_count(&self) -> usize {
        self.store.slot_count()
    }

    /// The order in that slot, if any.
    #[must_use]
    pub(crate) fn order_in_slot(&self, place: usize) -> Option<OrderView> {
        self.store.order_in_slot(place).map(Order::view)
    }

    /// Restores a copied order with its priority. No other effect: no fault is counted or marked.
    ///
    /// # Errors
    /// As [`Self::add`]; the order is ignored.
    pub(crate) fn restore_order(&mut self, order: &OrderView) -> Result<(), BookFault> {
        let entry = Order::of_view(order).filter(|_| order.size != 0).ok_or(BookFault::ZeroSize)?;
        if !self.ladders.contains(order.instrument) {
            return Err(BookFault::InstrumentUnknown);
        }
        self.store.insert(entry)?;
        self.ladders.add(order.instrument, order.side, order.price_e9, order.size).map(|_| ())
    }

    /// Priority of the next order.
    #[must_use]
    pub(crate) fn priority_next(&self) -> u64 {
        self.priority_next
    }

    /// Sets the priority of the next order.
    pub(crate) fn set_priority_next(&mut self, priority: u64) {
        self.priority_next = priority;
    }

    /// Number of price levels of all books.
    #[must_use]
    pub(crate) fn level_count(&self) -> u32 {
        self.ladders.level_count()
    }

    /// Marks of a book besides its levels.
    #[must_use]
    pub(crate) fn marks(&self, instrument: InstrumentIndex) -> BookMarks {
        self.ladders.marks(instrument)
    }

    /// Sets the marks of a restored book.
    pub(crate) fn set_marks(&mut self, instrument: InstrumentIndex, marks: BookMarks) {
        self.ladders.set_marks(instrument, marks);
    }

    /// One instrument's book.
    #[must_use]
    pub fn view(&self, instrument: InstrumentIndex) -> BookView<'_> {
        self.ladders.view(instrument)
    }

    /// Number of resting orders.
    #[must_use]
    pub fn order_count(&self) -> usize {
        self.store.len()
    }

    /// Prefetches this order.
    #[inline]
    pub fn prefetch_order(&self, order_id: u64) {
        self.store.prefetch(order_id);
    }

    /// Prefetches this instrument's book near its top.
    #[inline]
    pub fn prefetch_instrument(&self, instrument: InstrumentIndex) {
        self.ladders.prefetch(instrument);
    }

    /// Switches the check for a crossed book; on by default.
    pub(crate) fn set_cross_check(&mut self, instrument: InstrumentIndex, on: bool) {
        self.ladders.set_cross_check(instrument, on);
    }

    /// Marks all books as suspect, after a gap.
    pub(crate) fn mark_all_suspect(&mut self) {
        self.ladders.set_all_suspect(true);
    }

    /// Faults found so far.
    #[must_use]
    pub fn faults(&self) -> &BookFaultCounts {
        &self.faults
    }

    /// Memory of the order store, bytes.
    #[must_use]
    pub fn store_bytes(&self) -> usize {
        self.store.memory_bytes()
    }

    /// Memory allocated, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.store.memory_bytes() + self.ladders.memory_bytes()
    }

    #[inline(always)]
    fn reduce_by(
        &mut self,
        instrument: InstrumentIndex,
        order_id: u64,
        size: u32,
        excess: BookFault,
    ) -> Result<Change, BookFault> {
        if size == 0 {
            return Err(self.fault(instrument, BookFault::ZeroSize));
        }
        let (slot, order) = self.resting(instrument, order_id)?;
        if size >= order.size {
            let mut change = self.remove(slot, &order);
            if size > order.size {
                change.fault = Some(self.fault(instrument, excess));
            }
            return Ok(change);
        }
        let remaining = order.size - size;
        if let Some(order) = self.store.get_mut(slot) {
            order.size = remaining;
        }
        let changed = self.ladders.reduce(instrument, order.side(), order.price_e9, size, 0);
        debug_assert!(changed.is_some(), "a resting order has its level");
        Ok(change_of(&order, size, remaining, changed.unwrap_or(LevelUpdate::MISSING)))
    }

    #[inline(always)]
    fn remove(&mut self, slot: OrderSlot, order: &Order) -> Change {
        self.store.remove(slot);
        let changed = self.ladders.reduce(order.instrument(), order.side(), order.price_e9, order.size, 1);
        debug_assert!(changed.is_some(), "a resting order has its level");
        change_of(order, order.size, 0, changed.unwrap_or(LevelUpdate::MISSING))
    }

    #[inline(always)]
    fn resting(&mut self, instrument: InstrumentIndex, order_id: u64) -> Result<(OrderSlot, Order), BookFault> {
        let Some(slot) = self.store.find(order_id) else {
            return Err(self.fault(instrument, BookFault::UnknownOrder));
        };
        let order = self.store.get(slot).copied().unwrap_or_default();
        if order.instrument() != instrument {
            self.ladders.set_suspect(order.instrument(), true);
            return Err(self.fault(instrument, BookFault::InstrumentMismatch));
        }
        Ok((slot, order))
    }

    /// Only a new best price can cross.
    #[cold]
    fn check_new_best(&mut self, instrument: InstrumentIndex, changed: LevelUpdate) -> Option<BookFault> {
        let is_new_best = changed.depth == 0 && changed.change == LevelChange::Added;
        let is_fault = is_new_best && self.ladders.check_crossed(instrument);
        is_fault.then(|| self.fault(instrument, BookFault::Crossed))
    }

    #[cold]
    fn fault(&mut self, instrument: InstrumentIndex, fault: BookFault) -> BookFault {
        self.faults.count(fault);
        self.ladders.set_suspect(instrument, true);
        fault
    }
}

#[inline(always)]
fn change_of(order: &Order, size: u32, remaining: u32, changed: LevelUpdate) -> Change {
    Change {
        instrument: order.instrument(),
        order_id: order.id,
        side: order.side(),
        price_e9: order.price_e9,
        size,
        remaining,
        depth: changed.depth,
        level_change: changed.change,
        level: changed.level(order.price_e9),
        fault: None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::book::{
        PRICE_E9_MAX,
        model::{Model, assert_same_book},
        store::WindowStore,
    };

    const LIMITS: BookLimits =
        BookLimits { instruments_max: 3, orders_max: 60, levels_max: 40, order_hash_seed: 0, prefault: true };
    const ONE: InstrumentIndex = InstrumentIndex(1);

    #[derive(Clone, Debug)]
    enum Step {
        Add(u32, u64, Side, i64, u32),
        Execute(u32, u64, u32),
        Reduce(u32, u64, u32),
        Delete(u32, u64),
        Replace(u32, u64, u64, i64, u32),
        CrossCheck(u32, bool),
    }

    /// Few ids and instruments, so that duplicates, unknown ids and mismatches are common; one instrument too many.
    fn step(ids: u64, prices: i64) -> impl Strategy<Value = Step> {
        let id = move || 0..ids;
        let instrument = || prop_oneof![20 => Just(1_u32), 2 => Just(0_u32), 1 => Just(3_u32)];
        let side = || prop_oneof![Just(Side::Bid), Just(Side::Ask)];
        let size = || prop_oneof![10 => 1_u32..50, 1 => Just(0_u32), 1 => Just(u32::MAX)];
        const EXTREMES: [i64; 6] =
            [-PRICE_E9_MAX - 1, -PRICE_E9_MAX, PRICE_E9_MAX, PRICE_E9_MAX + 1, i64::MIN + 1, i64::MAX];
        let price = || prop_oneof![60 => 0..prices, 1 => prop::sample::select(&EXTREMES)];
        prop_oneof![
            10 => (instrument(), id(), side(), price(), size())
                .prop_map(move |(instrument, id, side, price, size)| {
                    // Mostly uncrossed, sometimes crossed.
                    let price = if side == Side::Bid { -price } else { price.saturating_sub(2) };
                    Step::Add(instrument, id, side, price, size)
                }),
            3 => (instrument(), id(), size()).prop_map(|(instrument, id, size)| Step::Execute(instrument, id, size)),
            2 => (instrument(), id(), size()).prop_map(|(instrument, id, size)| Step::Reduce(instrument, id, size)),
            4 => (instrument(), id()).prop_map(|(instrument, id)| Step::Delete(instrument, id)),
            2 => (instrument(), id(), id(), price(), size())
                .prop_map(|(instrument, old, new, price, size)| Step::Replace(instrument, old, new, price, size)),
            1 => (instrument(), any::<bool>()).prop_map(|(instrument, on)| Step::CrossCheck(instrument, on)),
        ]
    }

    fn run<S: OrderStore>(limits: BookLimits, steps: Vec<Step>) {
        let mut books = OrderBooks::<S>::new(limits);
        let mut model = Model::new(limits);
        for step in steps {
            match step {
                Step::Add(instrument, id, side, price, size) => {
                    let instrument = InstrumentIndex(instrument);
                    let change = books.add(instrument, id, side, price, size);
                    assert_eq!(change, model.add(instrument, id, side, price, size));
                }
                Step::Execute(instrument, id, size) => {
                    let instrument = InstrumentIndex(instrument);
                    let change = books.execute(instrument, id, size);
                    assert_eq!(change, model.reduce_by(instrument, id, size, BookFault::OverExecution));
                }
                Step::Reduce(instrument, id, size) => {
                    let instrument = InstrumentIndex(instrument);
                    let change = books.reduce(instrument, id, size);
                    assert_eq!(change, model.reduce_by(instrument, id, size, BookFault::OverCancel));
                }
                Step::Delete(instrument, id) => {
                    let instrument = InstrumentIndex(instrument);
                    assert_eq!(books.delete(instrument, id), model.delete(instrument, id));
                }
                Step::Replace(instrument, old, new, price, size) => {
                    let instrument = InstrumentIndex(instrument);
                    let replaced = books.replace(instrument, old, new, price, size);
                    assert_eq!(replaced, model.replace(instrument, old, new, price, size));
                }
                Step::CrossCheck(instrument, on) => {
                    books.set_cross_check(InstrumentIndex(instrument), on);
                    model.set_cross_check(InstrumentIndex(instrument), on);
                }
            }
            assert_eq!(books.order_count(), model.order_count());
        }
        assert_eq!(books.faults(), model.faults());
        for instrument in (0..limits.instruments_max).map(InstrumentIndex) {
            books.ladders.check(instrument);
            assert_same_book(&books.view(instrument), &model, instrument);
            assert_eq!(books.orders_of(instrument), model.orders_of(instrument));
        }
        books.clear();
        for instrument in (0..limits.instruments_max).map(InstrumentIndex) {
            assert_same_book(&books.view(instrument), &Model::new(limits), instrument);
        }
    }

    proptest! {
        #[test]
        fn order_books_match_the_model_including_faults(steps in prop::collection::vec(step(80, 12), 1..300)) {
            run::<HashStore>(LIMITS, steps.clone());
            run::<WindowStore>(LIMITS, steps);
        }

        /// Hundreds of levels: hot arrays overflow into the tree and refill from it.
        #[test]
        fn order_books_with_many_levels_match_the_model(steps in prop::collection::vec(step(600, 400), 600..1_500)) {
            let limits = BookLimits { orders_max: 600, levels_max: 600, ..LIMITS };
            run::<HashStore>(limits, steps);
        }
    }

    #[test]
    fn a_crossed_book_is_counted_once_until_it_uncrosses() {
        let mut books = OrderBooks::<HashStore>::new(LIMITS);
        books.add(ONE, 1, Side::Bid, 100, 1).expect("fits");
        assert_eq!(books.add(ONE, 2, Side::Ask, 100, 1).map(|change| change.fault), Ok(None), "locked is no fault");
        let crossed = books.add(ONE, 3, Side::Ask, 99, 1).map(|change| change.fault);
        assert_eq!(crossed, Ok(Some(BookFault::Crossed)));
        assert!(books.view(ONE).is_suspect());
        assert_eq!(books.add(ONE, 4, Side::Ask, 98, 1).map(|change| change.fault), Ok(None), "still crossed");
        for id in [3, 4] {
            books.delete(ONE, id).expect("rests");
        }
        assert_eq!(books.faults().get(BookFault::Crossed), 1);
        let again = books.add(ONE, 5, Side::Ask, 97, 1).map(|change| change.fault);
        assert_eq!(again, Ok(Some(BookFault::Crossed)));
    }

    #[test]
    fn an_instrument_mismatch_marks_both_books_suspect() {
        let mut books = OrderBooks::<HashStore>::new(LIMITS);
        books.add(ONE, 1, Side::Bid, 100, 5).expect("fits");
        assert_eq!(books.delete(InstrumentIndex(2), 1), Err(BookFault::InstrumentMismatch));
        assert!(books.view(ONE).is_suspect() && books.view(InstrumentIndex(2)).is_suspect());
        assert!(!books.view(InstrumentIndex(0)).is_suspect());
        assert_eq!(books.order(1).map(|order| order.size), Some(5));
    }

    /// The worst case for a sorted array: a million levels, each new one at the far end.
    #[test]
    fn a_million_levels_on_one_side_fit_and_come_out_in_order() {
        let count = 1_000_000_u32;
        let limits =
            BookLimits { instruments_max: 2, orders_max: count, levels_max: count, order_hash_seed: 1, prefault: true };
        let mut books = OrderBooks::<HashStore>::new(limits);
        for number in 1..=count {
            books.add(ONE, u64::from(number), Side::Bid, -i64::from(number), 1).expect("fits");
        }
        assert_eq!(books.view(ONE).level_count(Side::Bid), count);
        books.ladders.check(ONE);
        for number in 1..=count {
            assert_eq!(books.view(ONE).top(Side::Bid).map(|level| level.price_e9), Some(-i64::from(number)));
            books.delete(ONE, u64::from(number)).expect("rests");
        }
        assert_eq!(books.view(ONE).level_count(Side::Bid), 0);
    }
}
