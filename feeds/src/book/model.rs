//! Reference model of the books in the simplest form: sorted maps, every value recomputed. The fast books are tested
//! against it.

use std::collections::BTreeMap;

use super::{
    BookFault, BookFaultCounts, BookLimits, BookView, Change, DEPTH_BEYOND, DEPTH_EXACT, InstrumentIndex, Level,
    LevelChange, OrderView, PRICE_E9_MAX, ReplaceChange, Side,
};

/// Books by order or by level.
pub(super) struct Model {
    limits: BookLimits,
    orders: BTreeMap<u64, OrderView>,
    levels: BTreeMap<(InstrumentIndex, Side, i64), Level>,
    suspect: BTreeMap<InstrumentIndex, bool>,
    crossed: BTreeMap<InstrumentIndex, bool>,
    cross_check: BTreeMap<InstrumentIndex, bool>,
    faults: BookFaultCounts,
    priority_next: u64,
}

impl Model {
    pub(super) fn new(limits: BookLimits) -> Self {
        Self {
            limits,
            orders: BTreeMap::new(),
            levels: BTreeMap::new(),
            suspect: BTreeMap::new(),
            crossed: BTreeMap::new(),
            cross_check: BTreeMap::new(),
            faults: BookFaultCounts::default(),
            priority_next: 0,
        }
    }

    pub(super) fn add(
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
        if instrument.0 >= self.limits.instruments_max {
            return Err(self.fault(instrument, BookFault::InstrumentUnknown));
        }
        if self.orders.contains_key(&order_id) {
            return Err(self.fault(instrument, BookFault::DuplicateOrder));
        }
        if self.orders.len() == self.limits.orders_max as usize {
            return Err(self.fault(instrument, BookFault::OrdersFull));
        }
        if price_e9.unsigned_abs() > PRICE_E9_MAX.unsigned_abs() {
            return Err(self.fault(instrument, BookFault::PriceOutOfRange));
        }
        let key = (instrument, side, price_e9);
        let old = self.levels.get(&key).copied();
        let new = match old {
            None if self.levels.len() == self.limits.levels_max as usize => {
                return Err(self.fault(instrument, BookFault::LevelsFull));
            }
            None => Level { price_e9, size, order_count: 1 },
            Some(level) => match level.size.checked_add(size) {
                None => return Err(self.fault(instrument, BookFault::LevelOverflow)),
                Some(size) => Level { size, order_count: level.order_count + 1, ..level },
            },
        };
        self.levels.insert(key, new);
        let order = OrderView { order_id, instrument, side, price_e9, size, priority: self.priority_next };
        self.priority_next += 1;
        self.orders.insert(order_id, order);
        let level_change = if old.is_none() { LevelChange::Added } else { LevelChange::Changed };
        let depth = self.depth(instrument, side, price_e9);
        let mut change = change_of(&order, size, size, depth, level_change, new);
        if level_change == LevelChange::Added && depth == 0 {
            change.fault = self.check_crossed(instrument);
        }
        Ok(change)
    }

    pub(super) fn reduce_by(
        &mut self,
        instrument: InstrumentIndex,
        order_id: u64,
        size: u32,
        excess: BookFault,
    ) -> Result<Change, BookFault> {
        if size == 0 {
            return Err(self.fault(instrument, BookFault::ZeroSize));
        }
        let order = self.resting(instrument, order_id)?;
        let mut change = self.reduce_order(&order, size.min(order.size));
        if size > order.size {
            change.fault = Some(self.fault(instrument, excess));
        }
        Ok(change)
    }

    pub(super) fn delete(&mut self, instrument: InstrumentIndex, order_id: u64) -> Result<Change, BookFault> {
        let order = self.resting(instrument, order_id)?;
        Ok(self.reduce_order(&order, order.size))
    }

    pub(super) fn replace(
        &mut self,
        instrument: InstrumentIndex,
        old_id: u64,
        new_id: u64,
        price_e9: i64,
        size: u32,
    ) -> Result<ReplaceChange, BookFault> {
        let order = self.resting(instrument, old_id)?;
        let removed = self.reduce_order(&order, order.size);
        Ok(ReplaceChange { removed, added: self.add(instrument, new_id, order.side, price_e9, size) })
    }

    pub(super) fn set_level(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Change, BookFault> {
        if instrument.0 >= self.limits.instruments_max {
            return Err(self.fault(instrument, BookFault::InstrumentUnknown));
        }
        let key = (instrument, side, price_e9);
        let old = self.levels.get(&key).copied();
        let level = Level { price_e9, size, order_count: 0 };
        let order = OrderView { order_id: 0, instrument, side, price_e9, size, priority: 0 };
        if size != 0 && price_e9.unsigned_abs() > PRICE_E9_MAX.unsigned_abs() {
            return Err(self.fault(instrument, BookFault::PriceOutOfRange));
        }
        let (depth, level_change) = match (old, size) {
            (None, 0) => return Err(self.fault(instrument, BookFault::UnknownLevel)),
            (Some(_), 0) => {
                let depth = self.depth(instrument, side, price_e9);
                self.levels.remove(&key);
                self.clear_crossed_if_resolved(instrument);
                (depth, LevelChange::Removed)
            }
            (None, _) if self.levels.len() == self.limits.levels_max as usize => {
                return Err(self.fault(instrument, BookFault::LevelsFull));
            }
            (old, _) => {
                self.levels.insert(key, level);
                let change = if old.is_none() { LevelChange::Added } else { LevelChange::Changed };
                (self.depth(instrument, side, price_e9), change)
            }
        };
        Ok(change_of(&order, size, size, depth, level_change, level))
    }

    pub(super) fn check_crossed(&mut self, instrument: InstrumentIndex) -> Option<BookFault> {
        if instrument.0 >= self.limits.instruments_max {
            return None;
        }
        let is_checked = self.cross_check.get(&instrument).copied().unwrap_or(true);
        let is_crossed = is_checked && self.is_crossed(instrument);
        let was_crossed = self.crossed.insert(instrument, is_crossed).unwrap_or(false);
        (is_crossed && !was_crossed).then(|| self.fault(instrument, BookFault::Crossed))
    }

    pub(super) fn set_cross_check(&mut self, instrument: InstrumentIndex, on: bool) {
        self.cross_check.insert(instrument, on);
    }

    /// Levels, best first.
    pub(super) fn levels(&self, instrument: InstrumentIndex, side: Side) -> Vec<Level> {
        let mut levels: Vec<Level> = self
            .levels
            .iter()
            .filter(|(key, _)| (key.0, key.1) == (instrument, side))
            .map(|(_, level)| *level)
            .collect();
        if side == Side::Bid {
            levels.reverse();
        }
        levels
    }

    pub(super) fn orders_of(&self, instrument: InstrumentIndex) -> Vec<OrderView> {
        let mut found = Vec::new();
        for side in Side::BOTH {
            for level in self.levels(instrument, side) {
                let mut orders: Vec<OrderView> = self
                    .orders
                    .values()
                    .filter(|order| {
                        (order.instrument, order.side, order.price_e9) == (instrument, side, level.price_e9)
                    })
                    .copied()
                    .collect();
                orders.sort_by_key(|order| order.priority);
                assert_eq!(orders.iter().map(|order| u64::from(order.size)).sum::<u64>(), u64::from(level.size));
                assert_eq!(orders.len(), level.order_count as usize);
                found.extend(orders);
            }
        }
        found
    }

    pub(super) fn order_count(&self) -> usize {
        self.orders.len()
    }

    pub(super) fn faults(&self) -> &BookFaultCounts {
        &self.faults
    }

    fn resting(&mut self, instrument: InstrumentIndex, order_id: u64) -> Result<OrderView, BookFault> {
        match self.orders.get(&order_id).copied() {
            None => Err(self.fault(instrument, BookFault::UnknownOrder)),
            Some(order) if order.instrument != instrument => {
                self.suspect.insert(order.instrument, true);
                Err(self.fault(instrument, BookFault::InstrumentMismatch))
            }
            Some(order) => Ok(order),
        }
    }

    fn reduce_order(&mut self, order: &OrderView, size: u32) -> Change {
        let depth = self.depth(order.instrument, order.side, order.price_e9);
        let remaining = order.size - size;
        if remaining == 0 {
            self.orders.remove(&order.order_id);
        } else {
            self.orders.insert(order.order_id, OrderView { size: remaining, ..*order });
        }
        let key = (order.instrument, order.side, order.price_e9);
        let mut level = self.levels[&key];
        level.size -= size;
        level.order_count -= u32::from(remaining == 0);
        let mut level_change = LevelChange::Changed;
        if level.size == 0 {
            self.levels.remove(&key);
            level_change = LevelChange::Removed;
        } else {
            self.levels.insert(key, level);
        }
        self.clear_crossed_if_resolved(order.instrument);
        change_of(order, size, remaining, depth, level_change, level)
    }

    /// A removal can end a crossing, not begin one.
    fn clear_crossed_if_resolved(&mut self, instrument: InstrumentIndex) {
        if !self.is_crossed(instrument) {
            self.crossed.insert(instrument, false);
        }
    }

    fn is_crossed(&self, instrument: InstrumentIndex) -> bool {
        let top = |side| self.levels(instrument, side).first().map(|level| level.price_e9);
        matches!((top(Side::Bid), top(Side::Ask)), (Some(bid), Some(ask)) if bid > ask)
    }

    fn depth(&self, instrument: InstrumentIndex, side: Side, price_e9: i64) -> u32 {
        let better =
            self.levels(instrument, side).iter().filter(|level| side.is_better(level.price_e9, price_e9)).count();
        u32::try_from(better).ok().filter(|depth| *depth < DEPTH_EXACT).unwrap_or(DEPTH_BEYOND)
    }

    fn fault(&mut self, instrument: InstrumentIndex, fault: BookFault) -> BookFault {
        self.faults.count(fault);
        self.suspect.insert(instrument, true);
        fault
    }
}

/// Compares one fast book with the model's.
pub(super) fn assert_same_book(book: &BookView<'_>, model: &Model, instrument: InstrumentIndex) {
    for side in Side::BOTH {
        let expected = model.levels(instrument, side);
        assert_eq!(book.top(side), expected.first().copied());
        assert_eq!(book.level_count(side) as usize, expected.len());
        assert_eq!(book.levels(side).collect::<Vec<_>>(), expected);
    }
    assert_eq!(book.is_suspect(), model.suspect.get(&instrument).copied().unwrap_or(false));
}

fn change_of(
    order: &OrderView,
    size: u32,
    remaining: u32,
    depth: u32,
    level_change: LevelChange,
    level: Level,
) -> Change {
    Change {
        instrument: order.instrument,
        order_id: order.order_id,
        side: order.side,
        price_e9: order.price_e9,
        size,
        remaining,
        depth,
        level_change,
        level,
        fault: None,
    }
}
