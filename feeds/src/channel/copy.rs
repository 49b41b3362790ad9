//! A channel's state at one position of its input, as bytes: what another gateway needs to go on from there.
//!
//! ```text
//!  slice   | item | item | …                                      whole items, no more than fit the buffer
//!  head    | 0 | MDGWCOPY | version u16 | feed u16 | schemas u16 |              once, first
//!  order   | 1 | id u64 | instrument and side u32 | price i64 | size u32 | priority u64 |
//!  gone    | 2 | id u64 |                                         an order told before doesn't rest any more
//!  book    | 3 | instrument u32 | length u16 | what the feed keeps of it |
//!  end     | 4 | position, session and counts |                   once, last
//! ```
//! Little-endian. What is told last of an order or a book holds.
//!
//! **One cut, without a pause.** The channel goes on while it is copied. Under the claim, between packets, it writes a slice at a
//! time of all orders and books, some thousand places of memory each, and notes meanwhile what each delivered message touches.
//! When it has been everywhere it writes what was touched since, as that is now, again and again, until so little is left that
//! it fits a slice; with that slice comes the end. So all of it together is the state behind the last message delivered before.
//! The straight line pays one comparison for each packet, and nothing for a message. What touches every book (a gap, a message
//! that can't be understood, another session) spoils the copy: whoever asked for it begins again.
//!
//! Levels of a feed by order are not told: they are what the orders add up to. Nor is what a gateway counts, holds back or
//! suspects of packets that are still to come: that is its own.

mod restore;
mod writer;

pub use self::{
    restore::CopyRestorer,
    writer::{CopyBuffer, CopyStep},
};
pub(super) use self::{
    restore::{FieldReader, Taken},
    writer::{CopyWriter, TouchedEntry},
};

/// Why there is no copy, or none of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The channel has no position yet, or is out of service.
    NoState,
    /// Something touched every book while they were copied. Ask again.
    Invalidated,
    /// More was touched while copying than there is room to note.
    TooBusy,
    /// A book has more levels than one item holds.
    BookTooDeep,
    /// Bytes that are no copy: an unknown kind, a length or a value that can't be.
    Malformed,
    /// Of another version, feed, day or set of schemas.
    Another,
    /// More orders, levels or instruments than this gateway is configured for.
    NoRoom,
    /// The counts at its end are not those of what came.
    Incomplete,
}

impl CopyFault {
    /// All of them, in the order of their numbers on the wire, from 0.
    pub const ALL: [Self; 8] = [
        Self::NoState,
        Self::Invalidated,
        Self::TooBusy,
        Self::BookTooDeep,
        Self::Malformed,
        Self::Another,
        Self::NoRoom,
        Self::Incomplete,
    ];

    /// Whether another attempt may end otherwise.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::NoState | Self::Invalidated | Self::TooBusy)
    }

    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoState => "the channel has no state to give",
            Self::Invalidated => "a gap or a new session came while copying",
            Self::TooBusy => "too much changed while copying",
            Self::BookTooDeep => "a book has too many levels for a copy",
            Self::Malformed => "malformed",
            Self::Another => "of another version, feed, day or set of schemas",
            Self::NoRoom => "more than this gateway has room for",
            Self::Incomplete => "the counts at its end are others",
        }
    }
}

impl core::fmt::Display for CopyFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::error::Error for CopyFault {}

/// Bytes of a slice at the most.
pub const SLICE_BYTES_MAX: usize = 48 << 10;

/// Levels that one item holds: IEX's books have some dozens.
pub(super) const BOOK_LEVELS_MAX: usize = 1_024;
/// Bytes of the longest item: a DEEP book of [`BOOK_LEVELS_MAX`] levels in the midst of an event.
const ITEM_BYTES_MAX: usize = 13 << 10;
const _: () = assert!(ITEM_BYTES_MAX < SLICE_BYTES_MAX && ITEM_BYTES_MAX < u16::MAX as usize);

/// What is noted between the beginning of a walk and its end: some seconds of a busy feed.
const TOUCHED_MAX: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"MDGWCOPY";
const VERSION: u16 = 1;

const HEAD: u8 = 0;
const ORDER: u8 = 1;
const ORDER_REMOVED: u8 = 2;
const BOOK: u8 = 3;
const END: u8 = 4;

/// What a feed's books and names amount to: told at the end, compared when all is restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CoreCounts {
    /// Resting orders.
    pub(super) orders: u64,
    /// Price levels of all books.
    pub(super) levels: u64,
    /// Instruments that were named; 0 where the venue numbers them.
    pub(super) instruments: u32,
    /// Of the next order.
    pub(super) priority_next: u64,
    /// An instrument that is named from now on begins with a book in doubt.
    pub(super) is_new_book_suspect: bool,
}

/// Over how much a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyExtent {
    /// Books, from 0.
    pub(super) books: usize,
    /// Places of orders, vacant ones among them.
    pub(super) orders: usize,
}
