//! The price levels of all instruments of a channel.
//!
//! Each side of a book is a *hot array* of its best levels, sorted with the best last and searched from there, and
//! behind it, only if there are more, a tree of [deeper](super::deep) ones. Nearly every message touches a level
//! near the top: one cache line of the instrument's record, one or two of the hot array.
//!
//! Inside, a price is kept as a *key*: the price itself for bids, its bitwise complement for asks. The better price is
//! the larger key on both sides, so that neither search nor comparison asks for the side.

use core::iter::Rev;

use super::{
    BookFault, BookLimits, DEPTH_BEYOND, DEPTH_EXACT, InstrumentIndex, Level, LevelChange, Side,
    deep::{self, Chunks, NONE, Root},
    prefetch,
};

/// Levels in a hot array and in a chunk of the deep tree.
const CHUNK: usize = 64;

/// Deep levels move up when the hot array has fewer than this, so that the depth of a change is exact below it.
const HOT_MIN: u16 = 16;

const _: () = assert!(HOT_MIN as u32 >= DEPTH_EXACT && (HOT_MIN as usize) <= CHUNK / 2);

/// The price levels of all instruments, both sides.
#[derive(Debug)]
pub(super) struct Ladders {
    books: Vec<Book>,
    chunks: Chunks<CHUNK>,
    level_count: u32,
    levels_max: u32,
}

/// One instrument: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Book {
    heads: [Head; 2],
    is_suspect: bool,
    is_crossed: bool,
    cross_check_off: bool,
}

/// One side.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Head {
    /// Key of the best level; [`i64::MIN`] without one, which is worse than anything it is compared with.
    best_key: i64,
    /// Chunk of the hot array, once there has been a level.
    hot: u32,
    /// All levels, the deep ones too.
    level_count: u32,
    deep_node: u32,
    deep_height: u16,
    hot_len: u16,
}

/// What became of one level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub(super) depth: u32,
    pub(super) change: LevelChange,
    pub(super) level: Level,
}

const _: () = assert!(size_of::<Book>() == 64);

impl Touched {
    /// What stands for a level that should be there and isn't; debug builds assert before.
    pub(super) const NOTHING: Self = Self {
        depth: DEPTH_BEYOND,
        change: LevelChange::Removed,
        level: Level { price_e9: 0, size: 0, order_count: 0 },
    };
}

impl Book {
    const EMPTY: Self = Self { heads: [Head::EMPTY; 2], is_suspect: false, is_crossed: false, cross_check_off: false };

    #[inline]
    fn head(&self, side: Side) -> &Head {
        let [bid, ask] = &self.heads;
        if side == Side::Bid { bid } else { ask }
    }

    #[inline]
    fn head_mut(&mut self, side: Side) -> &mut Head {
        let [bid, ask] = &mut self.heads;
        if side == Side::Bid { bid } else { ask }
    }

    #[inline]
    fn is_out_of_order(&self) -> bool {
        self.head(Side::Bid).best_key > !self.head(Side::Ask).best_key
    }
}

impl Head {
    const EMPTY: Self =
        Self { best_key: i64::MIN, hot: NONE, level_count: 0, deep_node: NONE, deep_height: 0, hot_len: 0 };

    #[inline]
    fn deep(&self) -> Root {
        Root { node: self.deep_node, height: self.deep_height }
    }

    fn set_deep(&mut self, root: Root) {
        self.deep_node = root.node;
        self.deep_height = root.height;
    }

    #[inline]
    fn hot_len(&self) -> usize {
        usize::from(self.hot_len)
    }
}

/// Turns a price of that side into its key, and back.
#[inline]
fn key_of(side: Side, price_e9: i64) -> i64 {
    match side {
        Side::Bid => price_e9,
        Side::Ask => !price_e9,
    }
}

/// Where a key is or would be.
enum Place {
    Hot(usize),
    /// Would stand before that one of the hot array.
    Between(usize),
    /// Behind the hot array, where there is a tree.
    Deep,
}

impl Ladders {
    pub(super) fn new(limits: &BookLimits) -> Self {
        let sides = 2 * limits.instruments_max as usize;
        let levels_max = limits.levels_max as usize;
        Self {
            books: vec![Book::EMPTY; limits.instruments_max as usize],
            chunks: Chunks::new(sides, sides.min(levels_max / usize::from(HOT_MIN)), levels_max),
            level_count: 0,
            levels_max: limits.levels_max,
        }
    }

    pub(super) fn clear(&mut self) {
        self.books.fill(Book::EMPTY);
        self.chunks.clear();
        self.level_count = 0;
    }

    #[inline]
    pub(super) fn contains(&self, instrument: InstrumentIndex) -> bool {
        (instrument.0 as usize) < self.books.len()
    }

    /// Adds one order's size to its level.
    #[inline]
    pub(super) fn add(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Touched, BookFault> {
        self.upsert(instrument, side, price_e9, Level { price_e9, size, order_count: 1 }, |level| {
            level.size = level.size.checked_add(size).ok_or(BookFault::LevelOverflow)?;
            level.order_count += 1;
            Ok(())
        })
    }

    /// Sets a level to a size that isn't 0.
    #[inline]
    pub(super) fn set(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Touched, BookFault> {
        self.upsert(instrument, side, price_e9, Level { price_e9, size, order_count: 0 }, |level| {
            level.size = size;
            Ok(())
        })
    }

    /// Takes size, and with `orders_gone` a whole order, from a level that has as much. Without size left it goes.
    #[inline]
    pub(super) fn take(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
        orders_gone: u32,
    ) -> Option<Touched> {
        let book = self.books.get_mut(instrument.0 as usize)?;
        let head = book.head_mut(side);
        let key = key_of(side, price_e9);
        let places = self.chunks.places_mut(head.hot);
        let hot = places.get_mut(..head.hot_len())?;
        let index = match place_of(hot, key, head) {
            Place::Hot(index) => index,
            Place::Between(_) => return None,
            Place::Deep => return self.take_deep(instrument, side, key, size, orders_gone),
        };
        let depth = depth_of(hot.len(), index);
        let level = hot.get_mut(index)?;
        level.size = level.size.saturating_sub(size);
        level.order_count = level.order_count.saturating_sub(orders_gone);
        let mut level = *level;
        level.price_e9 = price_e9;
        if level.size > 0 {
            debug_assert!(orders_gone == 0 || level.order_count > 0, "a level with size has orders");
            return Some(Touched { depth, change: LevelChange::Changed, level });
        }
        let len = hot.len();
        deep::close(places, len, index);
        head.hot_len -= 1;
        head.level_count -= 1;
        self.level_count -= 1;
        if head.hot_len < HOT_MIN && !head.deep().is_empty() {
            refill(&mut self.chunks, head);
        }
        if depth == 0 {
            head.best_key = best_key(self.chunks.places(head.hot), head.hot_len());
            if book.is_crossed {
                book.is_crossed = book.is_out_of_order();
            }
        }
        Some(Touched { depth, change: LevelChange::Removed, level })
    }

    /// Removes a level.
    #[inline]
    pub(super) fn remove(&mut self, instrument: InstrumentIndex, side: Side, price_e9: i64) -> Option<Touched> {
        self.take(instrument, side, price_e9, u32::MAX, u32::MAX)
    }

    /// Compares the tops. True when the book has become crossed since it was last in order.
    #[inline]
    pub(super) fn check_crossed(&mut self, instrument: InstrumentIndex) -> bool {
        let Some(book) = self.books.get_mut(instrument.0 as usize) else { return false };
        let is_crossed = book.is_out_of_order() && !book.cross_check_off;
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

    pub(super) fn set_all_suspect(&mut self, suspect: bool) {
        self.books.iter_mut().for_each(|book| book.is_suspect = suspect);
    }

    pub(super) fn view(&self, instrument: InstrumentIndex) -> BookView<'_> {
        BookView { chunks: &self.chunks, book: self.books.get(instrument.0 as usize) }
    }

    #[inline]
    pub(super) fn prefetch(&self, instrument: InstrumentIndex) {
        prefetch::element(&self.books, instrument.0 as usize);
    }

    /// Reads the instrument's record and asks for the best levels of both sides.
    #[inline]
    pub(super) fn prefetch_tops(&self, instrument: InstrumentIndex) {
        let Some(book) = self.books.get(instrument.0 as usize) else { return };
        for head in &book.heads {
            let places = self.chunks.places(head.hot);
            let top = head.hot_len().wrapping_sub(1);
            prefetch::element(places, top);
            prefetch::element(places, top.wrapping_sub(LEVELS_PER_LINE));
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.books.capacity() * size_of::<Book>() + self.chunks.memory_bytes()
    }

    #[inline]
    fn upsert(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        new: Level,
        update: impl FnOnce(&mut Level) -> Result<(), BookFault>,
    ) -> Result<Touched, BookFault> {
        let book = self.books.get_mut(instrument.0 as usize).ok_or(BookFault::InstrumentUnknown)?;
        let head = book.head_mut(side);
        let key = key_of(side, price_e9);
        let hot = self.chunks.places_mut(head.hot).get_mut(..head.hot_len()).unwrap_or(&mut []);
        let (depth, level) = match place_of(hot, key, head) {
            Place::Hot(index) => {
                let depth = depth_of(hot.len(), index);
                let level = hot.get_mut(index).ok_or(BookFault::LevelsFull)?;
                update(level)?;
                (depth, *level)
            }
            Place::Between(index) => {
                return self.insert(instrument, side, price_e9, Some(index), new);
            }
            Place::Deep => match self.chunks.find_mut(head.deep(), key) {
                Some(level) => {
                    update(level)?;
                    (DEPTH_BEYOND, *level)
                }
                None => return self.insert(instrument, side, price_e9, None, new),
            },
        };
        Ok(Touched { depth, change: LevelChange::Changed, level: Level { price_e9, ..level } })
    }

    /// A new level, before that one of the hot array or in the tree.
    #[inline]
    fn insert(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        index: Option<usize>,
        new: Level,
    ) -> Result<Touched, BookFault> {
        if self.level_count >= self.levels_max {
            return Err(BookFault::LevelsFull);
        }
        let book = self.books.get_mut(instrument.0 as usize).ok_or(BookFault::InstrumentUnknown)?;
        let head = book.head_mut(side);
        let key = key_of(side, price_e9);
        let keyed = Level { price_e9: key, ..new };
        let mut index = index;
        if head.hot == NONE {
            head.hot = self.chunks.allocate().ok_or(BookFault::LevelsFull)?;
        }
        if head.hot_len() == CHUNK && index.is_some() {
            spill(&mut self.chunks, head)?;
            index = index.and_then(|index| index.checked_sub(CHUNK / 2)).filter(|index| *index > 0);
        }
        let depth = match index {
            Some(index) => {
                let len = head.hot_len();
                deep::open(self.chunks.places_mut(head.hot), len, index, keyed);
                head.hot_len += 1;
                depth_of(len + 1, index)
            }
            None => {
                let mut root = head.deep();
                let inserted = self.chunks.insert(&mut root, keyed);
                head.set_deep(root);
                if !inserted {
                    return Err(BookFault::LevelsFull);
                }
                DEPTH_BEYOND
            }
        };
        head.level_count += 1;
        self.level_count += 1;
        if depth == 0 {
            head.best_key = key;
        }
        Ok(Touched { depth, change: LevelChange::Added, level: new })
    }

    #[cold]
    fn take_deep(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        key: i64,
        size: u32,
        orders_gone: u32,
    ) -> Option<Touched> {
        let head = self.books.get_mut(instrument.0 as usize)?.head_mut(side);
        let mut root = head.deep();
        let level = self.chunks.find_mut(root, key)?;
        level.size = level.size.saturating_sub(size);
        level.order_count = level.order_count.saturating_sub(orders_gone);
        let level = Level { price_e9: key_of(side, key), ..*level };
        let mut change = LevelChange::Changed;
        if level.size == 0 {
            self.chunks.remove(&mut root, key);
            head.set_deep(root);
            head.level_count -= 1;
            self.level_count -= 1;
            change = LevelChange::Removed;
        }
        Some(Touched { depth: DEPTH_BEYOND, change, level })
    }
}

const LEVELS_PER_LINE: usize = 64 / size_of::<Level>();

/// Looks from the best level on: most messages are about the first few.
#[inline]
fn place_of(hot: &[Level], key: i64, head: &Head) -> Place {
    let mut index = hot.len();
    for level in hot.iter().rev() {
        if level.price_e9 <= key {
            return if level.price_e9 == key { Place::Hot(index - 1) } else { Place::Between(index) };
        }
        index -= 1;
    }
    if head.deep().is_empty() { Place::Between(0) } else { Place::Deep }
}

#[inline]
fn depth_of(len: usize, index: usize) -> u32 {
    match u32::try_from(len - 1 - index) {
        Ok(depth) if depth < DEPTH_EXACT => depth,
        _ => DEPTH_BEYOND,
    }
}

#[inline]
fn best_key(places: &[Level], len: usize) -> i64 {
    len.checked_sub(1).and_then(|top| places.get(top)).map_or(i64::MIN, |level| level.price_e9)
}

/// The hot array is full: its worse half goes into the tree.
#[cold]
fn spill(chunks: &mut Chunks<CHUNK>, head: &mut Head) -> Result<(), BookFault> {
    let mut worse = [Level::default(); CHUNK / 2];
    if let Some(half) = chunks.places(head.hot).get(..CHUNK / 2) {
        worse.copy_from_slice(half);
    }
    let mut root = head.deep();
    if !chunks.append_best(&mut root, &worse) {
        return Err(BookFault::LevelsFull);
    }
    head.set_deep(root);
    chunks.places_mut(head.hot).copy_within(CHUNK / 2.., 0);
    head.hot_len -= HALF_CHUNK;
    Ok(())
}

const HALF_CHUNK: u16 = 32;
const _: () = assert!(HALF_CHUNK as usize * 2 == CHUNK);

/// The hot array is short: the best of the tree come up.
#[cold]
fn refill(chunks: &mut Chunks<CHUNK>, head: &mut Head) {
    while head.hot_len < HOT_MIN && !head.deep().is_empty() {
        let mut better = [Level::default(); CHUNK / 2];
        let mut root = head.deep();
        let taken = chunks.take_best(&mut root, &mut better);
        head.set_deep(root);
        let len = head.hot_len();
        let places = chunks.places_mut(head.hot);
        if taken + len > places.len() {
            return;
        }
        places.copy_within(..len, taken);
        if let (Some(to), Some(from)) = (places.get_mut(..taken), better.get(..taken)) {
            to.copy_from_slice(from);
        }
        head.hot_len = u16::try_from(len + taken).unwrap_or(head.hot_len);
    }
}

/// One instrument's book, best levels first. An instrument beyond the limits shows an empty one.
#[derive(Clone, Copy, Debug)]
pub struct BookView<'a> {
    chunks: &'a Chunks<CHUNK>,
    book: Option<&'a Book>,
}

impl<'a> BookView<'a> {
    /// Levels of a side, best first.
    #[must_use]
    pub fn levels(&self, side: Side) -> Levels<'a> {
        let (hot, root) = match self.book.map(|book| book.head(side)) {
            Some(head) => (self.chunks.places(head.hot).get(..head.hot_len()).unwrap_or(&[]), head.deep()),
            None => (&[][..], Root::EMPTY),
        };
        Levels { hot: hot.iter().rev(), chunks: self.chunks, root, deep: None, side }
    }

    /// The best level of a side.
    #[must_use]
    #[inline]
    pub fn top(&self, side: Side) -> Option<Level> {
        let head = self.book?.head(side);
        let level = self.chunks.places(head.hot).get(head.hot_len().checked_sub(1)?)?;
        Some(Level { price_e9: key_of(side, level.price_e9), ..*level })
    }

    /// How many levels a side has.
    #[must_use]
    #[inline]
    pub fn level_count(&self, side: Side) -> u32 {
        self.book.map_or(0, |book| book.head(side).level_count)
    }

    /// Whether the book may differ from the venue's: after a fault or a gap, until it is rebuilt or cleared.
    #[must_use]
    #[inline]
    pub fn is_suspect(&self) -> bool {
        self.book.is_some_and(|book| book.is_suspect)
    }
}

/// Levels of one side, best first.
#[derive(Clone, Debug)]
pub struct Levels<'a> {
    hot: Rev<core::slice::Iter<'a, Level>>,
    chunks: &'a Chunks<CHUNK>,
    root: Root,
    /// Made when the hot array is through: most readers want ten levels.
    deep: Option<deep::Iter<'a, CHUNK>>,
    side: Side,
}

impl Iterator for Levels<'_> {
    type Item = Level;

    #[inline]
    fn next(&mut self) -> Option<Level> {
        let level = match self.hot.next() {
            Some(level) => *level,
            None if self.root.is_empty() => return None,
            None => self.deep.get_or_insert_with(|| self.chunks.iter(self.root)).next()?,
        };
        Some(Level { price_e9: key_of(self.side, level.price_e9), ..level })
    }
}

#[cfg(test)]
impl Ladders {
    /// Checks everything that the module promises of one instrument.
    pub(super) fn check(&self, instrument: InstrumentIndex) {
        let book = &self.books[instrument.0 as usize];
        for side in Side::BOTH {
            let head = book.head(side);
            let hot = &self.chunks.places(head.hot)[..head.hot_len()];
            let deep = self.chunks.check(head.deep());
            assert!(hot.windows(2).all(|pair| pair[0].price_e9 < pair[1].price_e9));
            assert_eq!(head.level_count as usize, hot.len() + deep);
            assert_eq!(head.best_key, hot.last().map_or(i64::MIN, |level| level.price_e9));
            assert!(deep == 0 || head.hot_len >= HOT_MIN);
            let levels: Vec<Level> = self.view(instrument).levels(side).collect();
            assert!(levels.windows(2).all(|pair| side.is_better(pair[0].price_e9, pair[1].price_e9)));
            assert!(levels.iter().all(|level| level.size > 0));
        }
    }
}
