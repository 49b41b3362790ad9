//! Order books of one channel: by order and by price level, one view over both.
//!
//! [`orders::OrderBooks`] keeps every resting order of a by-order feed and the price levels they add up to;
//! [`levels::LevelBooks`] keeps the price levels that a feed tells outright. Both show an instrument as a
//! [`BookView`]. All memory is allocated by `new` and bounded by [`BookLimits`]; what does not fit is a counted
//! [`BookFault`] that marks the instrument's book suspect.
//!
//! What the books do not know: trading dates, packets, records. A caller that wants to keep the packet that broke a
//! book does so when a call returns `Err` or a [`Change`] with a fault.
//!
//! **Locked and crossed.** A book is crossed when its best bid is *above* its best ask. Equal prices are a locked
//! book and no fault: venues show it for a moment, and before the opening cross Nasdaq keeps orders that lock and
//! cross. So the check can be switched off while an instrument is not in continuous trading
//! (`set_cross_check`); it is on by default.

pub mod fault;
mod ladder;
mod level_tree;
pub mod levels;
mod memory;
#[cfg(test)]
mod model;
pub mod orders;
pub mod prefetch;
pub mod store;

pub use fault::{BookFault, BookFaultCounts};
pub use ladder::{BookView, Levels};

/// Dense number of an instrument within a channel: the stock locate of ITCH, the index in the symbol table of IEX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstrumentIndex(pub u32);

/// Side of a resting order or of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// Buys.
    Bid = 0,
    /// Sells.
    Ask = 1,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Bid, Self::Ask];

    /// The other side.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Bid => Self::Ask,
            Self::Ask => Self::Bid,
        }
    }

    /// Whether `price` is nearer to the market than `other` on this side.
    #[must_use]
    pub fn is_better(self, price_e9: i64, other_e9: i64) -> bool {
        match self {
            Self::Bid => price_e9 > other_e9,
            Self::Ask => price_e9 < other_e9,
        }
    }
}

/// All that rests at one price on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Price in 1e-9.
    pub price_e9: i64,
    /// Shares or contracts; never 0 in a book.
    pub size: u32,
    /// Orders that add up to `size`; 0 where the feed tells no orders.
    pub order_count: u32,
}

/// How much the books of one channel may hold. All of it is allocated and touched by `new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookLimits {
    /// Instruments have indices below this. ITCH locates run from 1 to a little over the number of listed stocks.
    pub instruments_max: u32,
    /// Live orders; unused by [`levels::LevelBooks`].
    pub orders_max: u32,
    /// Price levels over all instruments and both sides.
    pub levels_max: u32,
    /// Mixed into the hash of order ids. A secret one keeps a hostile venue from choosing ids that collide; the books'
    /// content doesn't depend on it.
    pub order_hash_seed: u64,
}

impl Default for BookLimits {
    fn default() -> Self {
        Self { instruments_max: 16_384, orders_max: 4_000_000, levels_max: 1_000_000, order_hash_seed: 0 }
    }
}

/// What happened to the level that was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelChange {
    /// It is new.
    Added,
    /// It was there and still is.
    Changed,
    /// It is gone.
    Removed,
}

/// What one call did to one book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose book.
    pub instrument: InstrumentIndex,
    /// The order that was touched; 0 in a book by level.
    pub order_id: u64,
    /// Side of the order or level.
    pub side: Side,
    /// Price of the order or level, in 1e-9.
    pub price_e9: i64,
    /// What was added to the order or taken from it; in a book by level, the level's new size.
    pub size: u32,
    /// What is left of the order; in a book by level, of the level.
    pub remaining: u32,
    /// Index of the touched level from the best: where a removed level was, where an added one is now. 0 is the top.
    /// Exact below [`DEPTH_EXACT`]; anything further off the top is [`DEPTH_BEYOND`].
    pub depth: u32,
    /// What became of the level.
    pub level_change: LevelChange,
    /// The level after the change; sizes are 0 if it was removed.
    pub level: Level,
    /// A fault that did not keep the change from being applied; it was counted and the book marked.
    pub fault: Option<BookFault>,
}

impl Change {
    /// Whether the best level of the side is another now, or has another size or count.
    #[must_use]
    pub fn touches_top(&self) -> bool {
        self.depth == 0
    }
}

/// What a replacement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceChange {
    /// The old order is gone.
    pub removed: Change,
    /// The new order, or why it could not be added.
    pub added: Result<Change, BookFault>,
}

/// A book as it stands, copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookSnapshot {
    /// Levels to buy, best first.
    pub bids: Vec<Level>,
    /// Levels to sell, best first.
    pub asks: Vec<Level>,
    /// Whether it may differ from the venue's.
    pub is_suspect: bool,
}

impl BookSnapshot {
    /// Up to `depth` levels of each side.
    #[must_use]
    pub fn of(view: &BookView<'_>, depth: usize) -> Self {
        let levels = |side| view.levels(side).take(depth).collect();
        Self { bids: levels(Side::Bid), asks: levels(Side::Ask), is_suspect: view.is_suspect() }
    }
}

/// What is known of a book besides its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookMarks {
    /// It may differ from the venue's.
    pub is_suspect: bool,
    /// It is crossed, and that has been told.
    pub is_crossed: bool,
    /// It isn't looked at for being crossed.
    pub cross_check_off: bool,
}

impl BookMarks {
    /// A bit for each.
    #[must_use]
    pub fn to_bits(self) -> u8 {
        u8::from(self.is_suspect) | u8::from(self.is_crossed) << 1 | u8::from(self.cross_check_off) << 2
    }

    /// Of the lower three bits.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Self { is_suspect: bits & 1 != 0, is_crossed: bits & 2 != 0, cross_check_off: bits & 4 != 0 }
    }
}

/// A resting order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderView {
    /// The venue's id.
    pub order_id: u64,
    /// Whose book.
    pub instrument: InstrumentIndex,
    /// Side.
    pub side: Side,
    /// Price in 1e-9.
    pub price_e9: i64,
    /// What is left of it.
    pub size: u32,
    /// Orders of one level rest in ascending priority.
    pub priority: u64,
}

/// Prices beyond this, on either side of 0, are refused ([`BookFault::PriceOutOfRange`]): 4.6 thousand millions, more than any
/// instrument costs.
pub const PRICE_E9_MAX: i64 = (1 << 62) - 2;

/// [`Change::depth`] is exact below this.
pub const DEPTH_EXACT: u32 = 16;

/// [`Change::depth`] of a level too far off the top to be counted.
pub const DEPTH_BEYOND: u32 = u32::MAX;

const _: () = assert!(size_of::<Level>() == 16);
