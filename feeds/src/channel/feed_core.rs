//! What differs between feeds: framing, and what a message does.

use crate::{
    book::{BookFault, BookFaultCounts, BookSnapshot, InstrumentIndex, OrderView},
    drop_reason::DropReason,
    identity::{InstrumentId, Sequence, Session},
    normalise::records::Records,
    transport::{Transport, VenueSession},
};

use super::{
    REQUEST_BYTES_MAX,
    copy::{CopyExtent, CopyFault, CoreCounts, Taken, TouchedEntry},
};

/// One feed's decoder, books and normaliser behind the arbiter.
pub(super) trait FeedCore {
    /// How its datagrams are framed.
    type Transport: Transport;

    /// A new numbering: books are empty, instruments unnamed.
    fn begin_session(&mut self, session: Session);

    /// First pass over a packet: asks the memory for what the message will touch. Changes nothing.
    fn prefetch(&self, message: &[u8]);

    /// Second pass: applies one message and leaves its records in [`Self::records`].
    ///
    /// # Errors
    /// Why the message could not be understood. Nothing was applied and there are no records.
    fn apply(&mut self, message: &[u8], sequence: Sequence) -> Result<ApplyOutcome, DropReason>;

    /// Records of the last message applied.
    fn records(&self) -> &Records;

    /// Messages are missing: what the books hold is in doubt.
    fn on_gap(&mut self);

    /// Writes a request for `[first, first + count)` of the venue's session to its retransmission server; its length.
    /// `None` where the venue has no such server.
    fn write_request(
        &self,
        venue: VenueSession,
        first: Sequence,
        count: u64,
        request: &mut [u8; REQUEST_BYTES_MAX],
    ) -> Option<usize>;

    /// Up to `depth` levels of an instrument's book. Copies them: not for the hot path.
    fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot;

    /// The resting orders of the wanted instruments, as in [`OrderBooks::orders_where`](crate::book::orders::OrderBooks);
    /// `None` where the feed tells no orders.
    fn orders(&self, _is_wanted: &dyn Fn(InstrumentId) -> bool) -> Option<Vec<OrderView>> {
        None
    }

    /// Faults of the books, by reason.
    fn faults(&self) -> &BookFaultCounts;

    /// Bytes held by books and tables.
    fn memory_bytes(&self) -> usize;

    /// Over how much a copy walks.
    fn copy_extent(&self) -> CopyExtent;

    /// The order in that place; `None` where there is none, or the feed tells no orders.
    fn order_in_slot(&self, _place: usize) -> Option<OrderView> {
        None
    }

    /// A resting order.
    fn order(&self, _order_id: u64) -> Option<OrderView> {
        None
    }

    /// Writes what is kept of an instrument besides its orders, and of a feed by level its levels; nothing where that is nothing.
    /// The buffer has room.
    ///
    /// # Errors
    /// `BookTooDeep`.
    fn write_book(&self, index: InstrumentIndex, out: &mut Vec<u8>) -> Result<(), CopyFault>;

    /// Names everything that a message which has been applied may have changed.
    fn touched(&self, message: &[u8], note: &mut dyn FnMut(TouchedEntry));

    /// What books and names amount to.
    fn counts(&self) -> CoreCounts;

    /// Takes the state of another one, in that session. This one is new.
    ///
    /// # Errors
    /// When it can't be, or there is no room. This one is worth nothing then.
    fn restore(&mut self, session: Session, taken: &Taken) -> Result<(), CopyFault>;
}

/// What came of a message besides its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ApplyOutcome {
    /// The venue's time of the message, ns since 1970 UTC.
    pub ts_event: u64,
    /// The book behind the records is in doubt.
    pub suspect: bool,
    /// The message contradicted the book.
    pub fault: Option<Fault>,
    /// What else the message told.
    pub notice: Option<MessageNotice>,
}

/// What a message tells that no record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageNotice {
    /// A trade told before didn't happen.
    TradeBroken,
    /// It is the last message of the session.
    EndOfMessages,
}

/// A message that contradicted a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How.
    pub kind: BookFault,
    /// Whose book.
    pub instrument: InstrumentIndex,
}
