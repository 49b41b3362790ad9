//! The price levels of all instruments of a channel.
//!
//! Each side of a book is a *hot array* of its best levels, sorted with the best last and searched from there. Behind
//! it, only if there are more levels, is a tree of [deeper](super::level_tree) ones. An instrument has all of this
//! except the tree in one piece of memory: a cache line with both best levels and the counts, then the hot arrays. A
//! message therefore touches one page, and the first line alone holds the top of book. Only the lengths of the hot
//! arrays are in a separate array, small enough to stay in the cache, so that a prefetch of a book's best levels does
//! not wait for its first line.
//!
//! A price is stored as a *key*: the price itself for bids, its bitwise complement for asks. The better price is the
//! larger key on both sides, so search and comparison do not depend on the side.
//!
//! **Few unpredictable branches.** The position of a price is random, so the search compares eight levels at once and
//! counts. An insertion or removal moves eight slots, whether or not all are in use. Below the worst level are eight
//! slots worse than any price, so that eight always exist.

use core::{hint::select_unpredictable, iter::Rev};

use super::{
    BookFault, BookLimits, BookMarks, DEPTH_BEYOND, DEPTH_EXACT, InstrumentIndex, Level, LevelChange, PRICE_E9_MAX,
    Side,
    level_tree::{self, LevelTrees, Root},
    memory, prefetch,
};

/// Levels in a chunk of the deep tree.
const CHUNK: usize = 64;

/// Levels compared, and slots moved, at once.
const LANES: usize = EMPTY_LEN as usize;

/// Slots in use of a hot array without levels.
const EMPTY_LEN: u16 = 8;

/// Slots of a hot array. The first [`LANES`] never hold a level.
const HOT_SLOTS: usize = 68;

/// Deep levels move up when the hot array has fewer levels than this, so that a change's depth is exact below it.
const HOT_MIN: usize = 16;

const _: () = assert!(HOT_MIN >= DEPTH_EXACT as usize && HOT_MIN + CHUNK / 2 <= HOT_SLOTS - LANES);

/// The price levels of all instruments, both sides.
#[derive(Debug)]
pub(super) struct Ladders {
    books: Vec<Book>,
    /// Per hot array: slots in use, including the first [`LANES`].
    lens: Vec<PerSide<u16>>,
    trees: LevelTrees<CHUNK>,
    level_count: u32,
    levels_max: u32,
}

/// One instrument. An odd number of cache lines, so that the first lines of all instruments spread over the whole
/// cache.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Book {
    /// The best levels, or [`NO_LEVEL`].
    tops: PerSide<Level>,
    /// Number of levels, the deep ones included.
    level_counts: PerSide<u32>,
    deep_nodes: PerSide<u32>,
    deep_heights: PerSide<u16>,
    is_suspect: bool,
    is_crossed: bool,
    cross_check_off: bool,
    hot: PerSide<HotLevels>,
}

/// Best levels of a side, the best one last, with keys for prices.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct HotLevels([Level; HOT_SLOTS]);

/// One per side.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PerSide<T>([T; 2]);

/// Effect on one level, whose price the caller knows. It fits two registers. In memory it would be written in parts
/// and read as a whole, which stalls store forwarding.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelUpdate {
    pub(super) depth: u32,
    pub(super) change: LevelChange,
    size: u32,
    order_count: u32,
}

const _: () = assert!(size_of::<Result<LevelUpdate, BookFault>>() <= 16);

/// Worse than any level: a real level has a size.
const NO_LEVEL: Level = Level { price_e9: -KEY_LIMIT, size: 0, order_count: 0 };

/// Keys are within this range, so that the difference of two fits 64 bits.
const KEY_LIMIT: i64 = 1 << 62;

const _: () = assert!(PRICE_E9_MAX < KEY_LIMIT - 1, "a key may be a price's complement");

const _: () = assert!(core::mem::offset_of!(Book, hot) == 64 && size_of::<Book>() / 64 % 2 == 1);

impl LevelUpdate {
    /// Result for a level that should exist but does not. Debug builds fail an assertion before they return it.
    pub(super) const MISSING: Self =
        Self { depth: DEPTH_BEYOND, change: LevelChange::Removed, size: 0, order_count: 0 };

    #[inline(always)]
    fn new(depth: u32, change: LevelChange, level: Level) -> Self {
        Self { depth, change, size: level.size, order_count: level.order_count }
    }

    /// The level after the change.
    #[inline(always)]
    pub(super) fn level(self, price_e9: i64) -> Level {
        Level { price_e9, size: self.size, order_count: self.order_count }
    }
}

impl<T> PerSide<T> {
    #[inline(always)]
    fn of(&self, side: Side) -> &T {
        let [bid, ask] = &self.0;
        if side == Side::Bid { bid } else { ask }
    }

    #[inline(always)]
    fn of_mut(&mut self, side: Side) -> &mut T {
        let [bid, ask] = &mut self.0;
        if side == Side::Bid { bid } else { ask }
    }
}

impl Book {
    const EMPTY: Self = Self {
        tops: PerSide([NO_LEVEL; 2]),
        level_counts: PerSide([0; 2]),
        deep_nodes: PerSide([Root::EMPTY.node; 2]),
        deep_heights: PerSide([Root::EMPTY.height; 2]),
        is_suspect: false,
        is_crossed: false,
        cross_check_off: false,
        hot: PerSide([HotLevels([NO_LEVEL; HOT_SLOTS]); 2]),
    };

    #[inline(always)]
    fn has_crossed_prices(&self) -> bool {
        self.tops.of(Side::Bid).price_e9 > !self.tops.of(Side::Ask).price_e9
    }

    #[inline]
    fn deep(&self, side: Side) -> Root {
        Root { node: *self.deep_nodes.of(side), height: *self.deep_heights.of(side) }
    }

    fn set_deep(&mut self, side: Side, root: Root) {
        *self.deep_nodes.of_mut(side) = root.node;
        *self.deep_heights.of_mut(side) = root.height;
    }

    /// The levels of a hot array of that length, worst first.
    #[inline]
    fn levels(&self, side: Side, len: u16) -> &[Level] {
        self.hot.of(side).0.get(LANES..usize::from(len)).unwrap_or(&[])
    }

    /// The hot array is full: moves its worse half into the tree. Returns `false`, and changes nothing, if the pool
    /// is used up.
    #[cold]
    fn spill(&mut self, trees: &mut LevelTrees<CHUNK>, side: Side, len: &mut u16) -> bool {
        let mut root = self.deep(side);
        let hot = &mut self.hot.of_mut(side).0;
        let Some(worse) = hot.get(LANES..LANES + SPILL_LEVELS) else { return false };
        if !trees.append_best(&mut root, worse) {
            return false;
        }
        hot.copy_within(LANES + SPILL_LEVELS.., LANES);
        *len -= SPILL_LEVELS_U16;
        self.set_deep(side, root);
        true
    }

    /// The hot array is short: moves the best levels of the tree up.
    #[cold]
    fn refill(&mut self, trees: &mut LevelTrees<CHUNK>, side: Side, hot_len: &mut u16) {
        let mut root = self.deep(side);
        let mut len = usize::from(*hot_len);
        while len < LANES + HOT_MIN && !root.is_empty() {
            let mut better = [Level::default(); CHUNK / 2];
            let taken = trees.take_best(&mut root, &mut better);
            let hot = &mut self.hot.of_mut(side).0;
            if taken == 0 || len + taken > hot.len() {
                break;
            }
            hot.copy_within(LANES..len, LANES + taken);
            if let (Some(to), Some(from)) = (hot.get_mut(LANES..LANES + taken), better.get(..taken)) {
                to.copy_from_slice(from);
            }
            len += taken;
        }
        self.set_deep(side, root);
        *hot_len = u16::try_from(len).unwrap_or(EMPTY_LEN);
    }
}

/// Levels that leave a full hot array at once.
const SPILL_LEVELS: usize = SPILL_LEVELS_U16 as usize;
const SPILL_LEVELS_U16: u16 = 32;
const _: () = assert!(SPILL_LEVELS <= CHUNK / 2);

impl HotLevels {
    /// Index of the best level that is no better than `key`: the level with that key, if it exists. Less than
    /// [`LANES`] if all levels are better.
    #[inline(always)]
    fn search(&self, len: usize, key: i64) -> usize {
        let mut end = len;
        while let Some(lanes) = end.checked_sub(LANES).and_then(|first| self.0.get(first..)?.first_chunk::<LANES>()) {
            let better: usize = lanes.iter().map(|level| is_less(key, level.price_e9)).sum();
            if better < LANES {
                return end - 1 - better;
            }
            end -= LANES;
        }
        0
    }

    /// Inserts a level at `index`, which is at most `len`.
    #[inline(always)]
    fn insert_at(&mut self, len: usize, index: usize, level: Level) {
        match self.0.get_mut(index..).and_then(<[Level]>::first_chunk_mut::<{ LANES + 1 }>) {
            Some(levels) if len - index <= LANES => {
                levels.copy_within(..LANES, 1);
                let [inserted, ..] = levels;
                *inserted = level;
            }
            _ => level_tree::insert_at(&mut self.0, len, index, level),
        }
    }

    /// Removes the level at `index`.
    #[inline(always)]
    fn remove_at(&mut self, len: usize, index: usize) {
        match self.0.get_mut(index..).and_then(<[Level]>::first_chunk_mut::<{ LANES + 1 }>) {
            Some(levels) if len - index <= LANES + 1 => levels.copy_within(1.., 0),
            _ => {
                level_tree::remove_at(&mut self.0, len, index);
            }
        }
    }

    /// The best level, or [`NO_LEVEL`].
    #[inline(always)]
    fn top(&self, len: usize) -> Level {
        self.0.get(len.wrapping_sub(1)).copied().unwrap_or(NO_LEVEL)
    }
}

/// 1 or 0, from the sign of the difference. Every x86-64 does this for two levels at once, unlike a 64-bit
/// comparison. Measured: a tenth less time per message, see `feeds/DECISIONS.md`.
#[inline(always)]
fn is_less(key: i64, other: i64) -> usize {
    (key.wrapping_sub(other).cast_unsigned() >> 63) as usize
}

/// Without a branch, since it would be unpredictable, and without reading back recent partial writes.
#[inline(always)]
fn replace_if(top: &mut Level, condition: bool, level: Level) {
    *top = Level {
        price_e9: select_unpredictable(condition, level.price_e9, top.price_e9),
        size: select_unpredictable(condition, level.size, top.size),
        order_count: select_unpredictable(condition, level.order_count, top.order_count),
    };
}

/// Converts a price of that side to its key, and back.
#[inline(always)]
fn key_of(side: Side, price_e9: i64) -> i64 {
    price_e9 ^ -i64::from(side as u8)
}

impl Ladders {
    pub(super) fn new(limits: &BookLimits) -> Self {
        let sides = 2 * limits.instruments_max as usize;
        let levels_max = limits.levels_max as usize;
        Self {
            books: memory::prefaulted(Book::EMPTY, limits.instruments_max as usize),
            lens: memory::prefaulted(PerSide([EMPTY_LEN; 2]), limits.instruments_max as usize),
            trees: LevelTrees::new(sides.min(levels_max / HOT_MIN), levels_max, limits.prefault),
            level_count: 0,
            levels_max: limits.levels_max,
        }
    }

    pub(super) fn clear(&mut self) {
        self.books.fill(Book::EMPTY);
        self.lens.fill(PerSide([EMPTY_LEN; 2]));
        self.trees.clear();
        self.level_count = 0;
    }

    #[inline]
    pub(super) fn contains(&self, instrument: InstrumentIndex) -> bool {
        (instrument.0 as usize) < self.books.len()
    }

    /// Adds one order's size to its level.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<LevelUpdate, BookFault> {
        self.upsert(instrument, side, price_e9, Level { price_e9, size, order_count: 1 }, |level| {
            level.size = level.size.checked_add(size).ok_or(BookFault::LevelOverflow)?;
            level.order_count += 1;
            Ok(())
        })
    }

    /// Sets a level to a non-zero size.
    #[inline]
    pub(super) fn set(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<LevelUpdate, BookFault> {
        self.upsert(instrument, side, price_e9, Level { price_e9, size, order_count: 0 }, |level| {
            level.size = size;
            Ok(())
        })
    }

    /// Removes size, and `orders_removed` orders, from a level that has as much. A level without size is removed.
    #[inline(always)]
    pub(super) fn reduce(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
        orders_removed: u32,
    ) -> Option<LevelUpdate> {
        let index = instrument.0 as usize;
        let (book, lens) = (self.books.get_mut(index)?, self.lens.get_mut(index)?);
        let key = key_of(side, price_e9);
        let hot_len = lens.of_mut(side);
        let len = usize::from(*hot_len);
        let hot = book.hot.of_mut(side);
        let index = hot.search(len, key);
        let level = match hot.0.get_mut(index) {
            Some(level) if level.price_e9 == key && index >= LANES => level,
            _ => return self.reduce_deep(instrument, side, key, size, orders_removed),
        };
        let rest = Level {
            size: level.size.saturating_sub(size),
            order_count: level.order_count.saturating_sub(orders_removed),
            ..*level
        };
        let depth = depth_of(len, index);
        let is_top = index + 1 == len;
        if rest.size > 0 {
            debug_assert!(orders_removed == 0 || rest.order_count > 0, "a level with size has orders");
            *level = rest;
            replace_if(book.tops.of_mut(side), is_top, rest);
            return Some(LevelUpdate::new(depth, LevelChange::Changed, rest));
        }
        let next = hot.top(len - 1);
        hot.remove_at(len, index);
        replace_if(book.tops.of_mut(side), is_top, next);
        *hot_len -= 1;
        *book.level_counts.of_mut(side) -= 1;
        self.level_count -= 1;
        if len <= LANES + HOT_MIN && !book.deep(side).is_empty() {
            book.refill(&mut self.trees, side, hot_len);
        }
        if book.is_crossed {
            book.is_crossed = book.has_crossed_prices();
        }
        Some(LevelUpdate::new(depth, LevelChange::Removed, rest))
    }

    /// Removes a level.
    #[inline]
    pub(super) fn remove(&mut self, instrument: InstrumentIndex, side: Side, price_e9: i64) -> Option<LevelUpdate> {
        self.reduce(instrument, side, price_e9, u32::MAX, u32::MAX)
    }

    /// Whether the best bid is above the best ask.
    #[inline(always)]
    pub(super) fn has_crossed_prices(&self, instrument: InstrumentIndex) -> bool {
        self.books.get(instrument.0 as usize).is_some_and(Book::has_crossed_prices)
    }

    /// Compares the tops. Returns `true` if the book has become crossed since it was last uncrossed.
    #[inline]
    pub(super) fn check_crossed(&mut self, instrument: InstrumentIndex) -> bool {
        let Some(book) = self.books.get_mut(instrument.0 as usize) else { return false };
        let is_crossed = book.has_crossed_prices() && !book.cross_check_off;
        let was_crossed = core::mem::replace(&mut book.is_crossed, is_crossed);
        is_crossed && !was_crossed
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

    pub(super) fn level_count(&self) -> u32 {
        self.level_count
    }

    pub(super) fn marks(&self, instrument: InstrumentIndex) -> BookMarks {
        self.books.get(instrument.0 as usize).map_or_else(BookMarks::default, |book| BookMarks {
            is_suspect: book.is_suspect,
            is_crossed: book.is_crossed,
            cross_check_off: book.cross_check_off,
        })
    }

    pub(super) fn set_marks(&mut self, instrument: InstrumentIndex, marks: BookMarks) {
        if let Some(book) = self.books.get_mut(instrument.0 as usize) {
            (book.is_suspect, book.is_crossed, book.cross_check_off) =
                (marks.is_suspect, marks.is_crossed, marks.cross_check_off);
        }
    }

    pub(super) fn set_all_suspect(&mut self, suspect: bool) {
        self.books.iter_mut().for_each(|book| book.is_suspect = suspect);
    }

    #[inline]
    pub(super) fn view(&self, instrument: InstrumentIndex) -> BookView<'_> {
        let index = instrument.0 as usize;
        BookView { trees: &self.trees, book: self.books.get(index).zip(self.lens.get(index)) }
    }

    /// Prefetches the first line and the part that a search from the best levels reads first, on both sides.
    #[inline(always)]
    pub(super) fn prefetch(&self, instrument: InstrumentIndex) {
        let index = instrument.0 as usize;
        let (Some(book), Some(lens)) = (self.books.get(index), self.lens.get(index)) else { return };
        prefetch::element(&self.books, index);
        for side in Side::BOTH {
            let len = usize::from(*lens.of(side));
            let hot = &book.hot.of(side).0;
            prefetch::element(hot, len.wrapping_sub(LANES));
            prefetch::element(hot, len.wrapping_sub(LANES - LEVELS_PER_LINE));
            prefetch::element(hot, len);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.books.capacity() * size_of::<Book>()
            + self.lens.capacity() * size_of::<PerSide<u16>>()
            + self.trees.memory_bytes()
    }

    #[inline(always)]
    fn upsert(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        new: Level,
        update: impl FnOnce(&mut Level) -> Result<(), BookFault>,
    ) -> Result<LevelUpdate, BookFault> {
        let index = instrument.0 as usize;
        let (Some(book), Some(lens)) = (self.books.get_mut(index), self.lens.get_mut(index)) else {
            return Err(BookFault::InstrumentUnknown);
        };
        if !(-PRICE_E9_MAX..=PRICE_E9_MAX).contains(&price_e9) {
            return Err(BookFault::PriceOutOfRange);
        }
        let key = key_of(side, price_e9);
        let keyed = Level { price_e9: key, ..new };
        let hot_len = lens.of_mut(side);
        let len = usize::from(*hot_len);
        let hot = book.hot.of_mut(side);
        let index = hot.search(len, key);
        if let Some(level) = hot.0.get_mut(index)
            && level.price_e9 == key
            && index >= LANES
        {
            let mut updated = *level;
            update(&mut updated)?;
            *level = updated;
            replace_if(book.tops.of_mut(side), index + 1 == len, updated);
            return Ok(LevelUpdate::new(depth_of(len, index), LevelChange::Changed, updated));
        }
        if len == HOT_SLOTS || index < LANES && !book.deep(side).is_empty() {
            return self.upsert_slow(instrument, side, keyed, update);
        }
        if self.level_count >= self.levels_max {
            return Err(BookFault::LevelsFull);
        }
        // After the next worse level, or at the front.
        let index = index.max(LANES - 1) + 1;
        let hot = book.hot.of_mut(side);
        hot.insert_at(len, index, keyed);
        replace_if(book.tops.of_mut(side), index == len, keyed);
        *hot_len += 1;
        *book.level_counts.of_mut(side) += 1;
        self.level_count += 1;
        Ok(LevelUpdate::new(depth_of(len + 1, index), LevelChange::Added, keyed))
    }

    /// A level outside the hot array, where that is full or a tree exists.
    #[cold]
    fn upsert_slow(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        keyed: Level,
        update: impl FnOnce(&mut Level) -> Result<(), BookFault>,
    ) -> Result<LevelUpdate, BookFault> {
        let index = instrument.0 as usize;
        let (Some(book), Some(lens)) = (self.books.get_mut(index), self.lens.get_mut(index)) else {
            return Err(BookFault::InstrumentUnknown);
        };
        let hot_len = lens.of_mut(side);
        let key = keyed.price_e9;
        let is_deep = book.levels(side, *hot_len).first().is_some_and(|worst| key < worst.price_e9);
        let mut root = book.deep(side);
        if is_deep && let Some(level) = self.trees.find_mut(root, key) {
            update(level)?;
            return Ok(LevelUpdate::new(DEPTH_BEYOND, LevelChange::Changed, *level));
        }
        if self.level_count >= self.levels_max {
            return Err(BookFault::LevelsFull);
        }
        let mut depth = DEPTH_BEYOND;
        let is_deep = is_deep && !root.is_empty();
        if !is_deep && usize::from(*hot_len) == HOT_SLOTS {
            if !book.spill(&mut self.trees, side, hot_len) {
                return Err(BookFault::LevelsFull);
            }
            root = book.deep(side);
        }
        let len = usize::from(*hot_len);
        let hot = book.hot.of_mut(side);
        let index = hot.search(len, key);
        if is_deep || index < LANES {
            let inserted = self.trees.insert(&mut root, keyed);
            book.set_deep(side, root);
            if !inserted {
                return Err(BookFault::LevelsFull);
            }
        } else {
            hot.insert_at(len, index + 1, keyed);
            depth = depth_of(len + 1, index + 1);
            *book.tops.of_mut(side) = hot.top(len + 1);
            *hot_len += 1;
        }
        *book.level_counts.of_mut(side) += 1;
        self.level_count += 1;
        Ok(LevelUpdate::new(depth, LevelChange::Added, keyed))
    }

    #[cold]
    fn reduce_deep(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        key: i64,
        size: u32,
        orders_removed: u32,
    ) -> Option<LevelUpdate> {
        let book = self.books.get_mut(instrument.0 as usize)?;
        let mut root = book.deep(side);
        let level = self.trees.find_mut(root, key)?;
        level.size = level.size.saturating_sub(size);
        level.order_count = level.order_count.saturating_sub(orders_removed);
        let level = *level;
        let mut change = LevelChange::Changed;
        if level.size == 0 {
            self.trees.remove(&mut root, key);
            book.set_deep(side, root);
            *book.level_counts.of_mut(side) -= 1;
            self.level_count -= 1;
            change = LevelChange::Removed;
        }
        Some(LevelUpdate::new(DEPTH_BEYOND, change, level))
    }
}

const LEVELS_PER_LINE: usize = 64 / size_of::<Level>();

#[inline(always)]
fn depth_of(len: usize, index: usize) -> u32 {
    match u32::try_from(len - 1 - index) {
        Ok(depth) if depth < DEPTH_EXACT => depth,
        _ => DEPTH_BEYOND,
    }
}

/// One instrument's book, best levels first. An index beyond the limits shows an empty book.
#[derive(Clone, Copy, Debug)]
pub struct BookView<'a> {
    trees: &'a LevelTrees<CHUNK>,
    book: Option<(&'a Book, &'a PerSide<u16>)>,
}

impl<'a> BookView<'a> {
    /// Levels of a side, best first.
    #[must_use]
    pub fn levels(&self, side: Side) -> Levels<'a> {
        let (hot, root) = self
            .book
            .map_or((&[][..], Root::EMPTY), |(book, lens)| (book.levels(side, *lens.of(side)), book.deep(side)));
        Levels { hot: hot.iter().rev(), trees: self.trees, root, deep: None, side }
    }

    /// The best level of a side.
    #[must_use]
    #[inline]
    pub fn top(&self, side: Side) -> Option<Level> {
        let level = self.book?.0.tops.of(side);
        (level.size > 0).then(|| Level { price_e9: key_of(side, level.price_e9), ..*level })
    }

    /// Number of levels of a side.
    #[must_use]
    #[inline]
    pub(crate) fn level_count(&self, side: Side) -> u32 {
        self.book.map_or(0, |(book, _)| *book.level_counts.of(side))
    }

    /// Whether the book may differ from the venue's: after a fault or a gap, until it is rebuilt or cleared. Always
    /// true for an index beyond `instruments_max`, which has no book.
    #[must_use]
    #[inline]
    pub(crate) fn is_suspect(&self) -> bool {
        self.book.is_none_or(|(book, _)| book.is_suspect)
    }
}

/// Levels of one side, best first.
#[derive(Clone, Debug)]
pub struct Levels<'a> {
    hot: Rev<core::slice::Iter<'a, Level>>,
    trees: &'a LevelTrees<CHUNK>,
    root: Root,
    /// Created at the end of the hot array: most readers need only ten levels.
    deep: Option<level_tree::Iter<'a, CHUNK>>,
    side: Side,
}

impl Iterator for Levels<'_> {
    type Item = Level;

    #[inline]
    fn next(&mut self) -> Option<Level> {
        let level = match self.hot.next() {
            Some(level) => *level,
            None if self.root.is_empty() => return None,
            None => self.deep.get_or_insert_with(|| self.trees.iter(self.root)).next()?,
        };
        Some(Level { price_e9: key_of(self.side, level.price_e9), ..level })
    }
}

#[cfg(test)]
impl Ladders {
    /// Checks all invariants of the module for one instrument.
    pub(super) fn check(&self, instrument: InstrumentIndex) {
        let book = &self.books[instrument.0 as usize];
        for side in Side::BOTH {
            let hot = book.levels(side, *self.lens[instrument.0 as usize].of(side));
            let deep = self.trees.check(book.deep(side));
            assert!(book.hot.of(side).0[..LANES].iter().all(|level| *level == NO_LEVEL));
            assert!(hot.windows(2).all(|pair| pair[0].price_e9 < pair[1].price_e9));
            assert_eq!(*book.level_counts.of(side) as usize, hot.len() + deep);
            assert_eq!(*book.tops.of(side), hot.last().copied().unwrap_or(NO_LEVEL));
            assert!(deep == 0 || hot.len() >= HOT_MIN);
            let levels: Vec<Level> = self.view(instrument).levels(side).collect();
            assert!(levels.windows(2).all(|pair| side.is_better(pair[0].price_e9, pair[1].price_e9)));
            assert!(levels.iter().all(|level| level.size > 0));
        }
    }
}
