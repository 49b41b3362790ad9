//! The feed-specific part of a channel: framing, and the effect of each message.

use crate::{
    book::{BookFault, BookFaultCounts, BookSnapshot, InstrumentIndex, OrderView},
    normalise::records::Records,
    transport::{Transport, VenueSession},
};
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{InstrumentId, Sequence, Session},
};

use super::{
    REQUEST_BYTES_MAX,
    copy::{CopyExtent, CopyFault, CoreCounts, ReceivedCopy, TouchedEntry},
};

/// One feed's decoder, books and normaliser behind the arbiter.
pub(super) trait FeedCore {
    /// Framing of its datagrams.
    type Transport: Transport;

    /// A new session: all books are empty, no instrument is mapped.
    fn begin_session(&mut self, session: Session);

    /// First pass over a packet: prefetches the memory that the message will touch. Changes nothing.
    fn prefetch(&self, message: &[u8]);

    /// Second pass: applies one message and leaves its records in [`Self::records`].
    ///
    /// # Errors
    /// Why the message could not be decoded. Nothing was applied and there are no records.
    fn apply(&mut self, message: &[u8], sequence: Sequence) -> Result<ApplyOutcome, DropReason>;

    /// Records of the last message applied.
    fn records(&self) -> &Records;

    /// Messages are missing: all books become suspect.
    fn on_gap(&mut self);

    /// Writes a request for `[first, first + count)` of the venue's session to its retransmission server. Returns its
    /// length, or `None` where the venue has no such server.
    fn write_request(
        &self,
        venue: VenueSession,
        first: Sequence,
        count: u64,
        request: &mut [u8; REQUEST_BYTES_MAX],
    ) -> Option<usize>;

    /// Up to `depth` levels of an instrument's book. Copies them: not for the hot path.
    fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot;

    /// The resting orders of the wanted instruments, as in
    /// [`OrderBooks::orders_where`](crate::book::orders::OrderBooks); `None` where the feed has no single orders.
    fn orders(&self, _is_wanted: &dyn Fn(InstrumentId) -> bool) -> Option<Vec<OrderView>> {
        None
    }

    /// Faults of the books, by reason.
    fn faults(&self) -> &BookFaultCounts;

    /// Memory held by books and tables, bytes.
    fn memory_bytes(&self) -> usize;

    /// Number of slots that a copy visits.
    fn copy_extent(&self) -> CopyExtent;

    /// The order in that slot; `None` where the slot is vacant or the feed has no single orders.
    fn order_in_slot(&self, _place: usize) -> Option<OrderView> {
        None
    }

    /// The resting order with that id.
    fn order(&self, _order_id: u64) -> Option<OrderView> {
        None
    }

    /// Writes an instrument's state except its orders, including the levels of a feed by price level. Writes nothing
    /// if there is no such state. The buffer must have room.
    ///
    /// # Errors
    /// `BookTooDeep`.
    fn write_book(&self, index: InstrumentIndex, out: &mut Vec<u8>) -> Result<(), CopyFault>;

    /// Passes every entry that an applied message may have changed to the visitor.
    fn visit_touched(&self, message: &[u8], visit: &mut dyn FnMut(TouchedEntry));

    /// Totals of books and symbol mappings.
    fn counts(&self) -> CoreCounts;

    /// Restores a copied state in that session. `self` must be new.
    ///
    /// # Errors
    /// [`CopyFault`] if the state is invalid or does not fit. `self` is unusable then.
    fn restore(&mut self, session: Session, received: &ReceivedCopy) -> Result<(), CopyFault>;
}

/// Result of one message besides its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ApplyOutcome {
    /// The venue's time of the message, ns since 1970 UTC.
    pub ts_event: u64,
    /// The book behind the records is suspect.
    pub suspect: bool,
    /// The message contradicted the book.
    pub fault: Option<InstrumentFault>,
    /// Content of the message that has no record.
    pub notice: Option<MessageNotice>,
}

/// Content of a message that no record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageNotice {
    /// A published trade was cancelled.
    TradeBroken,
    /// The message is the last of the session.
    EndOfMessages,
}

/// A message that contradicted a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstrumentFault {
    /// The kind of contradiction.
    pub kind: BookFault,
    /// The instrument of the book.
    pub instrument: InstrumentIndex,
}
