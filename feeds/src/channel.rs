//! One channel from datagram to records: what the gateway, the offline replay and the bench drive.

mod config;
pub mod copy;
mod data_path;
mod deep;
mod feed_core;
mod held_datagrams;
mod iex;
mod itch;
mod message_processor;
mod rejected_packets;
mod schema_set;
mod session;
mod tops;
mod unconfirmed_jumps;

pub use self::{
    config::{ChannelConfig, LateStart, OrderStoreKind},
    copy::{CopyBuffer, CopyFault, CopyRestorer, CopyStep},
    feed_core::Fault,
    held_datagrams::HeldDatagrams,
    rejected_packets::{RejectedPacket, Rejection, Why},
    schema_set::SchemaSet,
    session::{Numbering, SessionMatch, SessionTracker},
    unconfirmed_jumps::{CONFIRMATION_SILENCE_NS, UnconfirmedJumps},
};
use self::{data_path::DataPath, deep::DeepCore, feed_core::FeedCore as _, itch::ItchCore, tops::TopsCore};
pub use crate::channel_state::ChannelState;
use crate::{
    arbiter::LineStatistics,
    book::{
        BookFaultCounts, BookSnapshot, OrderView,
        store::{HashStore, WindowStore},
    },
    drop_reason::DropCounts,
    frame::FrameSink,
    identity::{Feed, InstrumentId, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};

/// One datagram as the socket or the file gave it.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The line it came on.
    pub line: Line,
    /// UDP payload.
    pub bytes: &'a [u8],
    /// When it was received: NIC or kernel stamp, else the clock on return from the wait; in replay the capture's.
    pub ts_recv: UnixNs,
}

/// One channel. Drive it with datagrams and deadlines; it writes frames.
#[derive(Debug)]
pub struct Channel(Kind);

/// The feed is chosen once for each channel, so no message pays for it.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a handful of channels, made once and never moved on the hot path")]
enum Kind {
    Itch(DataPath<ItchCore<HashStore>>),
    ItchWindow(DataPath<ItchCore<WindowStore>>),
    Tops(DataPath<TopsCore>),
    Deep(DataPath<DeepCore>),
}

/// Calls the same thing on whichever kind of channel it is.
macro_rules! each_kind {
    ($channel:expr, $line:ident => $call:expr) => {
        match $channel {
            Kind::Itch($line) => $call,
            Kind::ItchWindow($line) => $call,
            Kind::Tops($line) => $call,
            Kind::Deep($line) => $call,
        }
    };
}

impl Channel {
    /// With all its memory allocated.
    #[must_use]
    pub fn new(config: ChannelConfig) -> Self {
        Self(match (config.feed, config.order_store) {
            (Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch, OrderStoreKind::Hash) => {
                Kind::Itch(DataPath::new(ItchCore::new(&config), config))
            }
            (Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch, OrderStoreKind::Window) => {
                Kind::ItchWindow(DataPath::new(ItchCore::new(&config), config))
            }
            (Feed::IexTops, _) => Kind::Tops(DataPath::new(TopsCore::new(&config), config)),
            (Feed::IexDeep, _) => Kind::Deep(DataPath::new(DeepCore::new(&config), config)),
        })
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &ChannelConfig {
        each_kind!(&self.0, line => &line.config)
    }

    /// Its lines are listened to from `now` on: one that never brings anything is silent from here. Where nobody says so,
    /// the first datagram does.
    pub fn watch(&mut self, now: MonoNs) {
        each_kind!(&mut self.0, line => line.arbiter.watch(now));
    }

    /// A datagram came.
    pub fn accept<S: FrameSink>(&mut self, datagram: Datagram<'_>, now: MonoNs, sink: &mut S) {
        each_kind!(&mut self.0, line => line.accept(datagram, now, sink));
    }

    /// When [`Self::on_deadline`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        each_kind!(&self.0, line => line.next_deadline())
    }

    /// Time has passed: a gap may have to be asked for or declared, a line may have gone silent.
    pub fn on_deadline<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        each_kind!(&mut self.0, line => line.on_deadline(now, sink));
    }

    /// The input has ended: what is held is delivered, what is missing declared.
    pub fn finish<S: FrameSink>(&mut self, sink: &mut S) {
        each_kind!(&mut self.0, line => line.finish(sink));
    }

    /// Messages that no line has brought and somebody has to be asked for now. A request to the venue's server is written
    /// into `request`. Answers are datagrams of [`Line::RECOVERY`].
    pub fn poll_request(&mut self, request: &mut [u8; REQUEST_BYTES_MAX]) -> Option<MissingRequest> {
        each_kind!(&mut self.0, line => line.poll_request(request))
    }

    /// The peer has sent all that it has of what it was asked for from `asked` on, or can't be asked.
    pub fn peer_answer_ended(&mut self, asked: Sequence, now: MonoNs) {
        each_kind!(&mut self.0, line => line.peer_answer_ended(asked, now));
    }

    /// The gateway that publishes has declared a gap of that numbering. Consumers' books are wrong since, so these are in
    /// doubt too, whether or not this gateway has the messages.
    pub fn peer_declared_gap(&mut self, session: Session) {
        each_kind!(&mut self.0, line => line.peer_declared_gap(session));
    }

    /// Where the channel stands.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        each_kind!(&self.0, line => line.state())
    }

    /// The current numbering and the next sequence it expects, once a packet has come.
    #[must_use]
    pub fn position(&self) -> Option<(Session, Sequence)> {
        each_kind!(&self.0, line => Some((line.sessions.current()?.session, line.arbiter.expected()?)))
    }

    /// The current numbering, for the state file.
    #[must_use]
    pub fn numbering(&self) -> Option<Numbering> {
        each_kind!(&self.0, line => line.numbering())
    }

    /// What it has seen and made.
    #[must_use]
    pub fn counters(&self) -> &ChannelCounters {
        each_kind!(&self.0, line => &line.counters)
    }

    /// What was refused before or after arbitration, and why; without what the arbiter refused.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        each_kind!(&self.0, line => &line.drops)
    }

    /// What the arbiter refused, and why.
    #[must_use]
    pub fn arbiter_drops(&self) -> &DropCounts {
        each_kind!(&self.0, line => line.arbiter.drops())
    }

    /// A line's packets, duplicates, lead and silence.
    #[must_use]
    pub fn line_statistics(&self, line: Line) -> &LineStatistics {
        each_kind!(&self.0, data_path => data_path.arbiter.line_statistics(line))
    }

    /// Up to `depth` levels of an instrument's book as it stands; empty for one that is not known. Copies them: for
    /// people, not for the hot path.
    #[must_use]
    pub fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot {
        each_kind!(&self.0, line => line.core.book(instrument, depth))
    }

    /// The resting orders of the wanted instruments: instrument by instrument, bids then asks, best price first, by
    /// priority within a price. `None` where the feed tells no orders. Walks over all orders.
    #[must_use]
    pub fn orders(&self, is_wanted: &dyn Fn(InstrumentId) -> bool) -> Option<Vec<OrderView>> {
        each_kind!(&self.0, line => line.core.orders(is_wanted))
    }

    /// Takes a line's leads, and leaves `other` in their place: see
    /// [`Arbiter::exchange_lead`](crate::arbiter::Arbiter::exchange_lead).
    pub fn exchange_lead(&mut self, line: Line, other: &mut hdrhistogram::Histogram<u64>) {
        each_kind!(&mut self.0, data_path => data_path.arbiter.exchange_lead(line, other));
    }

    /// Faults of the books, by reason.
    #[must_use]
    pub fn book_faults(&self) -> &BookFaultCounts {
        each_kind!(&self.0, line => line.core.faults())
    }

    /// The first packets that contradicted a book or could not be understood.
    pub fn evidence(&self) -> impl Iterator<Item = &RejectedPacket> {
        each_kind!(&self.0, line => line.evidence.iter())
    }

    /// Bytes held by window, books and tables.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        each_kind!(&self.0, line => line.memory_bytes())
    }

    /// Somebody wants a copy of its state, and has brought the memory that it takes. One at a time: an earlier one ends here,
    /// and its memory comes back.
    pub fn begin_copy(&mut self, buffer: CopyBuffer) -> Option<CopyBuffer> {
        each_kind!(&mut self.0, line => line.begin_copy(buffer.into_writer())).map(CopyBuffer::from_writer)
    }

    /// The next slice of the copy, into an empty buffer with room for [`copy::SLICE_BYTES_MAX`]. Slices are bounded work; other
    /// input may come between them.
    pub fn copy_slice(&mut self, out: &mut Vec<u8>) -> CopyStep {
        each_kind!(&mut self.0, line => line.copy_slice(out))
    }

    /// No copy any more; its memory, for a cold thread to free.
    pub fn end_copy(&mut self) -> Option<CopyBuffer> {
        each_kind!(&mut self.0, line => line.end_copy()).map(CopyBuffer::from_writer)
    }

    /// Goes on where the copied channel stood. This one is new.
    fn restore(&mut self, taken: &copy::Taken, end: &[u8]) -> Result<(), CopyFault> {
        each_kind!(&mut self.0, line => line.restore(taken, end))
    }

    /// Whether input of the present session was missed: the books are in doubt, and may lack instruments' names.
    #[must_use]
    pub fn has_missed_input(&self) -> bool {
        each_kind!(&self.0, line => line.has_missed_input())
    }

    /// Out of service: its handler failed.
    pub fn fail(&mut self) {
        each_kind!(&mut self.0, line => line.has_failed = true);
    }
}

/// Who is to be asked for what no line has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRequest {
    /// The venue's server: a request of so many bytes.
    Server(usize),
    /// The other gateway of the pair: messages `[first, next)`.
    Peer {
        /// The numbering.
        session: Session,
        /// First sequence.
        first: Sequence,
        /// First sequence not wanted any more.
        next: Sequence,
    },
}

/// Room for any request to a retransmission server.
pub const REQUEST_BYTES_MAX: usize = 64;

/// What a channel has seen and made. Written by whoever drives the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Datagrams of all lines.
    pub datagrams: u64,
    /// Heartbeats among them.
    pub heartbeats: u64,
    /// Messages delivered in sequence, understood or not.
    pub messages: u64,
    /// Of these, messages that could not be understood.
    pub messages_refused: u64,
    /// Frames written for messages.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Gaps declared.
    pub gaps: u64,
    /// Messages in them.
    pub gap_messages: u64,
    /// Numberings begun.
    pub sessions: u64,
    /// Numberings joined after their first message; what came before was never asked for.
    pub late_starts: u64,
    /// Messages taken without a number of their own.
    pub unsequenced: u64,
    /// Trades that the venue took back. DBN has no record for it.
    pub trades_broken: u64,
}

#[cfg(test)]
mod tests;
