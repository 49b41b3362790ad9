//! A channel's state at one position of its input, as bytes. Another gateway (the joiner) continues from there.
//!
//! ```text
//!  slice   | item | item | …                                      whole items, no more than fit the buffer
//!  head    | 0 | MDGWCOPY | version u16 | feed u16 | schemas u16 |              once, first
//!  order   | 1 | id u64 | instrument and side u32 | price i64 | size u32 | priority u64 |
//!  gone    | 2 | id u64 |                                         an order written before no longer rests
//!  book    | 3 | instrument u32 | length u16 | feed-specific state |
//!  end     | 4 | position, session and counts |                   once, last
//! ```
//! Little-endian. For an order or a book written twice, the last item counts.
//!
//! **Consistent without a pause.** The channel keeps processing while it is copied. Under the claim, between packets,
//! it writes one slice at a time of all orders and books, some thousand slots each. Meanwhile it records which
//! entries each delivered message touches. After the first pass it rewrites the touched entries, repeatedly, until
//! the remaining ones fit one slice. The end item follows in that slice. The whole copy is therefore the state after
//! the last message delivered before it.
//! The data path pays one comparison per packet and nothing per message. An input that touches every book (a gap, a
//! message that cannot be decoded, a new session) invalidates the copy, and the requester starts again.
//!
//! The levels of an order-by-order feed are not copied, since the orders determine them. Counters, held packets and
//! unconfirmed packets are not copied either: each gateway has its own.

mod restore;
mod writer;

pub use self::restore::CopyRestorer;
pub use self::writer::{CopyBuffer, CopyStep};
pub(super) use self::{
    restore::{FieldReader, ReceivedCopy},
    writer::{CopyWriter, TouchedEntry},
};

/// Why no copy was made or a copy was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The channel has no position yet, or is out of service.
    NoState,
    /// An input touched every book during the copy. Request it again.
    Invalidated,
    /// More entries were touched during the copy than can be recorded.
    TooBusy,
    /// A book has more levels than one item holds.
    BookTooDeep,
    /// The bytes are not a copy: unknown kind, or invalid length or value.
    Malformed,
    /// A copy of another version, feed, date or schema set.
    Mismatch,
    /// More orders, levels or instruments than this gateway is configured for.
    NoRoom,
    /// The counts in the end item do not match the items received.
    Incomplete,
}

impl CopyFault {
    /// All faults, in the order of their numbers on the wire, from 0.
    pub const ALL: [Self; 8] = [
        Self::NoState,
        Self::Invalidated,
        Self::TooBusy,
        Self::BookTooDeep,
        Self::Malformed,
        Self::Mismatch,
        Self::NoRoom,
        Self::Incomplete,
    ];

    /// Whether another attempt may succeed.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::NoState | Self::Invalidated | Self::TooBusy)
    }

    /// Message for logs and errors.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoState => "the channel has no state to copy",
            Self::Invalidated => "a gap or a new session occurred during the copy",
            Self::TooBusy => "the state changed too much during the copy",
            Self::BookTooDeep => "a book has too many levels for a copy",
            Self::Malformed => "malformed",
            Self::Mismatch => "different version, feed, date or schemas",
            Self::NoRoom => "exceeds the limits of this gateway (orders_max, levels_max)",
            Self::Incomplete => "record counts do not match",
        }
    }
}

impl core::fmt::Display for CopyFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::error::Error for CopyFault {}

/// Maximum size of a slice, bytes.
pub const SLICE_BYTES_MAX: usize = 48 << 10;

/// Most levels in one item: IEX's books have some dozens.
pub(super) const BOOK_LEVELS_MAX: usize = 1_024;
/// Maximum size of an item, bytes: a DEEP book of [`BOOK_LEVELS_MAX`] levels in the middle of an event.
const ITEM_BYTES_MAX: usize = 13 << 10;
const _: () = assert!(ITEM_BYTES_MAX < SLICE_BYTES_MAX && ITEM_BYTES_MAX < u16::MAX as usize);

/// Most touched entries recorded during one copy: some seconds of a busy feed.
const TOUCHED_MAX: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"MDGWCOPY";
const VERSION: u16 = 1;

const HEAD: u8 = 0;
const ORDER: u8 = 1;
const ORDER_REMOVED: u8 = 2;
const BOOK: u8 = 3;
const END: u8 = 4;

/// Totals of a feed's books and symbol mappings. The donor writes them in the end item, and the joiner compares them
/// after the restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CoreCounts {
    /// Resting orders.
    pub(super) orders: u64,
    /// Price levels of all books.
    pub(super) levels: u64,
    /// Instruments mapped to a symbol; 0 where the venue numbers its instruments.
    pub(super) instruments: u32,
    /// Priority of the next order.
    pub(super) priority_next: u64,
    /// Whether an instrument mapped from now on begins with a suspect book.
    pub(super) is_new_book_suspect: bool,
}

/// Number of slots that a copy visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyExtent {
    /// Books, from index 0.
    pub(super) books: usize,
    /// Order slots, vacant ones included.
    pub(super) orders: usize,
}
