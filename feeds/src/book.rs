//! Order books of one channel: by order and by price level, one view over both.
//!
//! [`orders::OrderBooks`] stores every resting order of a by-order feed and the price levels they add up to.
//! [`levels::LevelBooks`] stores the price levels of a feed that sends levels directly. Both show an instrument as a
//! [`BookView`]. All memory is allocated by `new` and bounded by [`BookLimits`]. A change that does not fit is a
//! counted [`BookFault`], and the instrument's book becomes suspect.
//!
//! Out of scope: trading dates, packets, records. A caller can keep the rejected packet when a call returns `Err` or
//! a [`Change`] with a fault.
//!
//! **Locked and crossed.** A book is crossed when its best bid is *above* its best ask. Equal prices are a locked
//! book and no fault: venues show it for a moment, and before the opening cross Nasdaq's book holds orders that lock
//! and cross. The check can therefore be switched off while an instrument is not in continuous trading
//! (`set_cross_check`); it is on by default.

pub(crate) mod fault;
mod ladder;
mod level_tree;
pub mod levels;
mod memory;
#[cfg(test)]
mod model;
pub mod orders;
pub(crate) mod prefetch;
pub mod store;

pub use fault::{BookFault, BookFaultCounts};
pub use ladder::{BookView, Levels};
use zerocopy::FromZeros;

/// Dense index of an instrument within a channel: the stock locate of ITCH, the index in the symbol table of IEX.
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

    #[must_use]
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Bid => Self::Ask,
            Self::Ask => Self::Bid,
        }
    }

    /// Whether `price` is better than `other` on this side.
    #[must_use]
    pub fn is_better(self, price_e9: i64, other_e9: i64) -> bool {
        match self {
            Self::Bid => price_e9 > other_e9,
            Self::Ask => price_e9 < other_e9,
        }
    }
}

/// The orders at one price on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
pub struct Level {
    /// Price in 1e-9.
    pub price_e9: i64,
    /// Shares or contracts; never 0 in a book.
    pub size: u32,
    /// Orders that add up to `size`; 0 where the feed has no single orders.
    pub order_count: u32,
}

/// Capacity of one channel's books. All of it is allocated by `new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookLimits {
    /// Instrument indices are below this. ITCH locates run from 1 to a little over the number of listed stocks.
    pub instruments_max: u32,
    /// Resting orders; unused by [`levels::LevelBooks`].
    pub orders_max: u32,
    /// Price levels of all instruments and both sides.
    pub levels_max: u32,
    /// Mixed into the hash of order ids. A secret seed prevents a hostile venue from choosing ids that collide. The
    /// content of the books does not depend on it.
    pub order_hash_seed: u64,
    /// Whether `new` makes all pages present, so that no message takes a page fault. Without it, most of the memory is
    /// touched only as it is used, and a start is quick.
    pub prefault: bool,
}

impl Default for BookLimits {
    fn default() -> Self {
        Self {
            instruments_max: 16_384,
            orders_max: 4_000_000,
            levels_max: 1_000_000,
            order_hash_seed: 0,
            prefault: true,
        }
    }
}

/// Effect on the touched level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelChange {
    /// The level was added.
    Added,
    /// The level existed and still exists.
    Changed,
    /// The level was removed.
    Removed,
}

/// The effect of one call on one book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The instrument of the book.
    pub instrument: InstrumentIndex,
    /// Id of the touched order; 0 in a book by level.
    pub order_id: u64,
    /// Side of the order or level.
    pub side: Side,
    /// Price of the order or level, in 1e-9.
    pub price_e9: i64,
    /// Size added to or removed from the order; in a book by level, the level's new size.
    pub size: u32,
    /// Remaining size of the order; in a book by level, of the level.
    pub remaining: u32,
    /// Index of the touched level from the best, 0 being the top: a removed level's former index, an added level's
    /// new one. Exact below [`DEPTH_EXACT`], otherwise [`DEPTH_BEYOND`].
    pub depth: u32,
    /// Effect on the level.
    pub level_change: LevelChange,
    /// The level after the change; sizes are 0 if it was removed.
    pub level: Level,
    /// A fault despite which the change was applied. It was counted, and the book is suspect.
    pub fault: Option<BookFault>,
}

/// The effect of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceChange {
    /// The removal of the old order.
    pub removed: Change,
    /// The addition of the new order, or why it failed.
    pub added: Result<Change, BookFault>,
}

/// A copy of a book.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookSnapshot {
    /// Bid levels, best first.
    pub bids: Vec<Level>,
    /// Ask levels, best first.
    pub asks: Vec<Level>,
    /// Whether the book may differ from the venue's.
    pub is_suspect: bool,
}

impl BookSnapshot {
    /// Copies up to `depth` levels of each side.
    #[must_use]
    pub(crate) fn of(view: &BookView<'_>, depth: usize) -> Self {
        let levels = |side| view.levels(side).take(depth).collect();
        Self { bids: levels(Side::Bid), asks: levels(Side::Ask), is_suspect: view.is_suspect() }
    }
}

/// Marks of a book besides its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BookMarks {
    /// The book may differ from the venue's.
    pub is_suspect: bool,
    /// The book is crossed, and that was reported.
    pub is_crossed: bool,
    /// The check for a crossed book is switched off.
    pub cross_check_off: bool,
}

impl BookMarks {
    /// One bit per mark.
    #[must_use]
    pub(crate) fn to_bits(self) -> u8 {
        u8::from(self.is_suspect) | u8::from(self.is_crossed) << 1 | u8::from(self.cross_check_off) << 2
    }

    /// From the lower three bits.
    #[must_use]
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self { is_suspect: bits & 1 != 0, is_crossed: bits & 2 != 0, cross_check_off: bits & 4 != 0 }
    }
}

/// A resting order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderView {
    /// Id of the order at the venue.
    pub order_id: u64,
    /// Instrument of the book.
    pub instrument: InstrumentIndex,
    /// Side of the book on which the order rests.
    pub side: Side,
    /// Price in 1e-9.
    pub price_e9: i64,
    /// Remaining size, shares or contracts.
    pub size: u32,
    /// Orders of one level rest in ascending priority.
    pub priority: u64,
}

/// Prices beyond this, on either side of 0, are rejected ([`BookFault::PriceOutOfRange`]): 4.6 thousand million, more
/// than any instrument costs.
pub(crate) const PRICE_E9_MAX: i64 = (1 << 62) - 2;

/// [`Change::depth`] is exact below this.
pub(crate) const DEPTH_EXACT: u32 = 16;

/// [`Change::depth`] of a level beyond the exact range.
pub(crate) const DEPTH_BEYOND: u32 = u32::MAX;

const _: () = assert!(size_of::<Level>() == 16);
