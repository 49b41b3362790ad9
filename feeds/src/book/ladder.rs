//! The price levels of all instruments of a channel.

use super::{BookFault, BookLimits, DEPTH_BEYOND, DEPTH_EXACT, InstrumentIndex, Level, LevelChange, Side, prefetch};

/// The price levels of all instruments, both sides.
#[derive(Debug)]
pub(super) struct Ladders {
    books: Vec<Book>,
    level_count: u32,
    levels_max: u32,
}

#[derive(Clone, Debug, Default)]
struct Book {
    /// Best last.
    sides: [Vec<Level>; 2],
    is_suspect: bool,
    is_crossed: bool,
    cross_check_off: bool,
}

/// What became of one level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub(super) depth: u32,
    pub(super) change: LevelChange,
    pub(super) level: Level,
}

impl Touched {
    /// What stands for a level that should be there and isn't; debug builds assert before.
    pub(super) const NOTHING: Self = Self {
        depth: DEPTH_BEYOND,
        change: LevelChange::Removed,
        level: Level { price_e9: 0, size: 0, order_count: 0 },
    };
}

impl Ladders {
    pub(super) fn new(limits: &BookLimits) -> Self {
        Self {
            books: vec![Book::default(); limits.instruments_max as usize],
            level_count: 0,
            levels_max: limits.levels_max,
        }
    }

    pub(super) fn clear(&mut self) {
        self.books.fill(Book::default());
        self.level_count = 0;
    }

    pub(super) fn contains(&self, instrument: InstrumentIndex) -> bool {
        (instrument.0 as usize) < self.books.len()
    }

    /// Adds one order's size to its level.
    pub(super) fn add(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Touched, BookFault> {
        let book = self.books.get_mut(instrument.0 as usize).ok_or(BookFault::InstrumentUnknown)?;
        let [bids, asks] = &mut book.sides;
        let levels = if side == Side::Bid { bids } else { asks };
        match position(levels, side, price_e9) {
            Ok(index) => {
                let depth = depth_of(levels, index);
                let level = levels.get_mut(index).ok_or(BookFault::LevelsFull)?;
                level.size = level.size.checked_add(size).ok_or(BookFault::LevelOverflow)?;
                level.order_count += 1;
                Ok(Touched { depth, change: LevelChange::Changed, level: *level })
            }
            Err(index) => {
                if self.level_count == self.levels_max {
                    return Err(BookFault::LevelsFull);
                }
                self.level_count += 1;
                let level = Level { price_e9, size, order_count: 1 };
                levels.insert(index, level);
                Ok(Touched { depth: depth_of(levels, index), change: LevelChange::Added, level })
            }
        }
    }

    /// Takes size, and with `orders_gone` a whole order, from a level.
    pub(super) fn take(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
        orders_gone: u32,
    ) -> Option<Touched> {
        let book = self.books.get_mut(instrument.0 as usize)?;
        let [bids, asks] = &mut book.sides;
        let levels = if side == Side::Bid { bids } else { asks };
        let index = position(levels, side, price_e9).ok()?;
        let depth = depth_of(levels, index);
        let level = levels.get_mut(index)?;
        level.size = level.size.saturating_sub(size);
        level.order_count = level.order_count.saturating_sub(orders_gone);
        let level = *level;
        if level.size == 0 {
            levels.remove(index);
            self.level_count -= 1;
            return Some(Touched { depth, change: LevelChange::Removed, level });
        }
        Some(Touched { depth, change: LevelChange::Changed, level })
    }

    /// Sets a level to a size that isn't 0.
    pub(super) fn set(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Touched, BookFault> {
        let book = self.books.get_mut(instrument.0 as usize).ok_or(BookFault::InstrumentUnknown)?;
        let [bids, asks] = &mut book.sides;
        let levels = if side == Side::Bid { bids } else { asks };
        let level = Level { price_e9, size, order_count: 0 };
        match position(levels, side, price_e9) {
            Ok(index) => {
                let depth = depth_of(levels, index);
                if let Some(place) = levels.get_mut(index) {
                    *place = level;
                }
                Ok(Touched { depth, change: LevelChange::Changed, level })
            }
            Err(index) => {
                if self.level_count == self.levels_max {
                    return Err(BookFault::LevelsFull);
                }
                self.level_count += 1;
                levels.insert(index, level);
                Ok(Touched { depth: depth_of(levels, index), change: LevelChange::Added, level })
            }
        }
    }

    /// Removes a level.
    pub(super) fn remove(&mut self, instrument: InstrumentIndex, side: Side, price_e9: i64) -> Option<Touched> {
        self.take(instrument, side, price_e9, u32::MAX, u32::MAX)
    }

    /// Looks at the tops. True when the book has become crossed since it was last in order.
    pub(super) fn check_crossed(&mut self, instrument: InstrumentIndex) -> bool {
        let Some(book) = self.books.get_mut(instrument.0 as usize) else { return false };
        let [bids, asks] = &book.sides;
        let crossed = !book.cross_check_off
            && matches!((bids.last(), asks.last()), (Some(bid), Some(ask)) if bid.price_e9 > ask.price_e9);
        let newly = crossed && !book.is_crossed;
        book.is_crossed = crossed;
        if newly {
            book.is_suspect = true;
        }
        newly
    }

    pub(super) fn set_cross_check(&mut self, instrument: InstrumentIndex, on: bool) {
        if let Some(book) = self.books.get_mut(instrument.0 as usize) {
            book.cross_check_off = !on;
        }
    }

    pub(super) fn set_suspect(&mut self, instrument: InstrumentIndex, suspect: bool) {
        if let Some(book) = self.books.get_mut(instrument.0 as usize) {
            book.is_suspect = suspect;
        }
    }

    pub(super) fn set_all_suspect(&mut self, suspect: bool) {
        self.books.iter_mut().for_each(|book| book.is_suspect = suspect);
    }

    pub(super) fn view(&self, instrument: InstrumentIndex) -> BookView<'_> {
        BookView { ladders: self, instrument }
    }

    pub(super) fn prefetch(&self, instrument: InstrumentIndex) {
        prefetch::element(&self.books, instrument.0 as usize);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.books.capacity() * size_of::<Book>() + self.levels_max as usize * size_of::<Level>()
    }

    fn levels(&self, instrument: InstrumentIndex, side: Side) -> &[Level] {
        self.books.get(instrument.0 as usize).and_then(|book| book.sides.get(side as usize)).map_or(&[], Vec::as_slice)
    }
}

/// One instrument's book, best levels first. An instrument beyond the limits shows an empty one.
#[derive(Clone, Copy, Debug)]
pub struct BookView<'a> {
    ladders: &'a Ladders,
    instrument: InstrumentIndex,
}

impl<'a> BookView<'a> {
    /// Levels of a side, best first.
    #[must_use]
    pub fn levels(&self, side: Side) -> Levels<'a> {
        Levels { levels: self.ladders.levels(self.instrument, side) }
    }

    /// The best level of a side.
    #[must_use]
    pub fn top(&self, side: Side) -> Option<Level> {
        self.ladders.levels(self.instrument, side).last().copied()
    }

    /// How many levels a side has.
    #[must_use]
    pub fn level_count(&self, side: Side) -> u32 {
        u32::try_from(self.ladders.levels(self.instrument, side).len()).unwrap_or(u32::MAX)
    }

    /// Whether the book may differ from the venue's: after a fault or a gap, until it is rebuilt or cleared.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.ladders.books.get(self.instrument.0 as usize).is_some_and(|book| book.is_suspect)
    }
}

/// Levels of one side, best first.
#[derive(Clone, Debug)]
pub struct Levels<'a> {
    levels: &'a [Level],
}

impl Iterator for Levels<'_> {
    type Item = Level;

    fn next(&mut self) -> Option<Level> {
        let (level, rest) = self.levels.split_last()?;
        self.levels = rest;
        Some(*level)
    }
}

fn position(levels: &[Level], side: Side, price_e9: i64) -> Result<usize, usize> {
    let mut index = levels.len();
    for level in levels.iter().rev() {
        if level.price_e9 == price_e9 {
            return Ok(index - 1);
        }
        if side.is_better(price_e9, level.price_e9) {
            return Err(index);
        }
        index -= 1;
    }
    Err(0)
}

fn depth_of(levels: &[Level], index: usize) -> u32 {
    let depth = u32::try_from(levels.len() - 1 - index).unwrap_or(u32::MAX);
    if depth < DEPTH_EXACT { depth } else { DEPTH_BEYOND }
}
