//! A plain book from the collections of the standard library. It gives the expected result for the fast book, and the
//! baseline of its time.
//!
//! Orders in a `HashMap` with the standard hasher, levels in a `BTreeMap` per side, instruments in a vector by locate.
//! An order is packed into 24 bytes. The reference does what the fast book does: sizes and order counts of levels, and
//! the top of book after each message. It also checks that every order is known, that no order is reduced below zero,
//! and that no bid is above the best ask.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use mdgw_feeds::book::{Level, Side};

/// All books of a channel.
#[derive(Default)]
pub(crate) struct ReferenceBooks {
    orders: HashMap<u64, ReferenceOrder>,
    books: Vec<ReferenceBook>,
    pub(crate) faults: u64,
}

#[derive(Clone, Copy)]
struct ReferenceOrder {
    price_e9: i64,
    size: u32,
    locate: u16,
    side: Side,
}

#[derive(Clone, Default)]
struct ReferenceBook {
    bids: BTreeMap<i64, LevelTotal>,
    asks: BTreeMap<i64, LevelTotal>,
}

#[derive(Clone, Copy, Default)]
struct LevelTotal {
    size: u32,
    order_count: u32,
}

impl ReferenceBooks {
    pub(crate) fn new() -> Self {
        Self { books: vec![ReferenceBook::default(); 1 << 16], ..Self::default() }
    }

    pub(crate) fn add(&mut self, locate: u16, id: u64, side: Side, price_e9: i64, size: u32) {
        let Entry::Vacant(entry) = self.orders.entry(id) else {
            self.faults += 1;
            return;
        };
        entry.insert(ReferenceOrder { price_e9, size, locate, side });
        let book = &mut self.books[usize::from(locate)];
        let total = book.side_mut(side).entry(price_e9).or_default();
        total.size += size;
        total.order_count += 1;
        if let (Some(bid), Some(ask)) = (book.top(Side::Bid), book.top(Side::Ask))
            && bid.price_e9 > ask.price_e9
        {
            self.faults += 1;
        }
    }

    pub(crate) fn take(&mut self, locate: u16, id: u64, size: u32) {
        let Entry::Occupied(mut entry) = self.orders.entry(id) else {
            self.faults += 1;
            return;
        };
        let order = *entry.get();
        if order.locate != locate || size > order.size {
            self.faults += 1;
            return;
        }
        if size == order.size {
            entry.remove();
        } else {
            entry.get_mut().size -= size;
        }
        self.reduce_level(&order, size);
    }

    pub(crate) fn delete(&mut self, locate: u16, id: u64) -> Option<Side> {
        let Some(order) = self.orders.remove(&id).filter(|order| order.locate == locate) else {
            self.faults += 1;
            return None;
        };
        self.reduce_level(&order, order.size);
        Some(order.side)
    }

    pub(crate) fn replace(&mut self, locate: u16, old_id: u64, new_id: u64, price_e9: i64, size: u32) {
        if let Some(side) = self.delete(locate, old_id) {
            self.add(locate, new_id, side, price_e9, size);
        }
    }

    pub(crate) fn top(&self, locate: u16, side: Side) -> Option<Level> {
        self.books[usize::from(locate)].top(side)
    }

    /// Levels of one side, the best price first.
    pub(crate) fn levels(&self, locate: u16, side: Side) -> Vec<Level> {
        let book = &self.books[usize::from(locate)];
        match side {
            Side::Bid => book.bids.iter().rev().map(level).collect(),
            Side::Ask => book.asks.iter().map(level).collect(),
        }
    }

    pub(crate) fn order_count(&self) -> usize {
        self.orders.len()
    }

    fn reduce_level(&mut self, order: &ReferenceOrder, size: u32) {
        let levels = self.books[usize::from(order.locate)].side_mut(order.side);
        let Some(total) = levels.get_mut(&order.price_e9) else { return };
        total.size -= size;
        total.order_count -= u32::from(size == order.size);
        if total.order_count == 0 {
            levels.remove(&order.price_e9);
        }
    }
}

impl ReferenceBook {
    fn side_mut(&mut self, side: Side) -> &mut BTreeMap<i64, LevelTotal> {
        match side {
            Side::Bid => &mut self.bids,
            Side::Ask => &mut self.asks,
        }
    }

    fn top(&self, side: Side) -> Option<Level> {
        match side {
            Side::Bid => self.bids.last_key_value().map(level),
            Side::Ask => self.asks.first_key_value().map(level),
        }
    }
}

fn level((price_e9, total): (&i64, &LevelTotal)) -> Level {
    Level { price_e9: *price_e9, size: total.size, order_count: total.order_count }
}
