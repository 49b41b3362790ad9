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

pub use self::config::{ChannelConfig, LateStart, OrderStoreKind};
pub use self::copy::{CopyBuffer, CopyFault, CopyRestorer, CopyStep};
pub use self::held_datagrams::HeldDatagrams;
#[cfg(test)]
pub(crate) use self::rejected_packets::RejectedPacket;
pub use self::schema_set::SchemaSet;
pub use self::session::{KnownSession, SessionMatch, SessionTracker};
pub(crate) use self::unconfirmed_jumps::CONFIRMATION_SILENCE_NS;
pub use self::unconfirmed_jumps::UnconfirmedJumps;
use self::{data_path::DataPath, deep::DeepCore, feed_core::FeedCore as _, itch::ItchCore, tops::TopsCore};
use crate::book::{
    BookFaultCounts, BookSnapshot, OrderView,
    store::{HashStore, WindowStore},
};
pub use mdgw_wire::channel_state::ChannelState;
use mdgw_wire::{
    arbiter::LineStatistics,
    drop_reason::DropCounts,
    frame::FrameSink,
    identity::{Feed, InstrumentId, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};

/// One datagram as read from a socket or a file.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The line on which it was received.
    pub line: Line,
    /// UDP payload.
    pub bytes: &'a [u8],
    /// Receive time: NIC or kernel timestamp, else the clock on return from the wait. In replay, the capture's
    /// timestamp.
    pub ts_recv: UnixNs,
}

/// One channel. The caller passes datagrams and deadlines in; frames are written to the caller's sink.
#[derive(Debug)]
pub struct Channel(Kind);

/// Data path per feed, so that the feed is matched once per call and not once per message.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a handful of channels, made once and never moved on the hot path")]
enum Kind {
    Itch(DataPath<ItchCore<HashStore>>),
    ItchWindow(DataPath<ItchCore<WindowStore>>),
    Tops(DataPath<TopsCore>),
    Deep(DataPath<DeepCore>),
}

/// Dispatches a call to the channel's concrete data path.
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
    /// Allocates all memory of the channel.
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

    /// Configuration that the channel was built with.
    #[must_use]
    pub fn config(&self) -> &ChannelConfig {
        each_kind!(&self.0, line => &line.config)
    }

    /// Starts the silence timers of the lines at `now`: a line that never sends counts as silent from here. Without
    /// this call, the first datagram starts them.
    pub fn start_silence_timers(&mut self, now: MonoNs) {
        each_kind!(&mut self.0, line => line.arbiter.start_silence_timers(now));
    }

    /// Processes a received datagram.
    pub fn accept<S: FrameSink>(&mut self, datagram: Datagram<'_>, now: MonoNs, sink: &mut S) {
        each_kind!(&mut self.0, line => line.accept(datagram, now, sink));
    }

    /// Whether the datagram's header says that it holds the next expected message. The caller looks ahead with it: the
    /// datagram may still be refused, and another one may deliver that message first.
    #[must_use]
    pub fn holds_expected(&self, datagram: &[u8]) -> bool {
        each_kind!(&self.0, line => line.holds_expected(datagram))
    }

    /// When [`Self::on_deadline`] must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        each_kind!(&self.0, line => line.next_deadline())
    }

    /// Processes expired deadlines: a gap may be requested or declared, a line may be reported silent.
    pub fn on_deadline<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        each_kind!(&mut self.0, line => line.on_deadline(now, sink));
    }

    /// The input has ended: delivers all held messages and declares all missing ones.
    pub fn finish<S: FrameSink>(&mut self, sink: &mut S) {
        each_kind!(&mut self.0, line => line.finish(sink));
    }

    /// Returns the next request for messages that no line has delivered. A request to the venue's server is written
    /// into `request`. Answers are datagrams of [`Line::RECOVERY`].
    pub fn poll_request(&mut self, request: &mut [u8; REQUEST_BYTES_MAX]) -> Option<MissingRequest> {
        each_kind!(&mut self.0, line => line.poll_request(request))
    }

    /// The peer's answer to the request that began at `first` has ended, or the peer cannot be reached.
    pub fn peer_answer_ended(&mut self, first: Sequence, now: MonoNs) {
        each_kind!(&mut self.0, line => line.peer_answer_ended(first, now));
    }

    /// The peer has reported how far its own channel has come. What is missing here is requested if no message arrives for a while.
    /// A report declares nothing.
    pub fn peer_reported(&mut self, report: PeerPosition, now: MonoNs) {
        each_kind!(&mut self.0, line => line.peer_reported(report, now));
    }

    /// How often messages that a peer had reported came from no source.
    #[must_use]
    pub fn reports_given_up(&self) -> u64 {
        each_kind!(&self.0, line => line.arbiter.reports_given_up())
    }

    /// The publishing gateway has declared a gap in that session. Consumers' books are suspect from there on, so this
    /// channel's books become suspect too, even if this gateway received the messages.
    pub fn peer_declared_gap(&mut self, session: Session) {
        each_kind!(&mut self.0, line => line.peer_declared_gap(session));
    }

    /// The channel's state.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        each_kind!(&self.0, line => line.state())
    }

    /// The current session and the next expected sequence; `None` before the first packet.
    #[must_use]
    pub fn position(&self) -> Option<(Session, Sequence)> {
        each_kind!(&self.0, line => Some((line.sessions.current()?.session, line.arbiter.expected()?)))
    }

    /// The current session with its venue name and send times, for the state file.
    #[must_use]
    pub fn known_session(&self) -> Option<KnownSession> {
        each_kind!(&self.0, line => line.known_session())
    }

    /// Counters of input and output.
    #[must_use]
    pub fn counters(&self) -> &ChannelCounters {
        each_kind!(&self.0, line => &line.counters)
    }

    /// Rejections before or after arbitration, by reason. Rejections by the arbiter are in [`Self::arbiter_drops`].
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        each_kind!(&self.0, line => &line.drops)
    }

    /// Rejections by the arbiter, by reason.
    #[must_use]
    pub fn arbiter_drops(&self) -> &DropCounts {
        each_kind!(&self.0, line => line.arbiter.drops())
    }

    /// A line's packets, duplicates, lead and silence.
    #[must_use]
    pub fn line_statistics(&self, line: Line) -> &LineStatistics {
        each_kind!(&self.0, data_path => data_path.arbiter.line_statistics(line))
    }

    /// Up to `depth` levels of an instrument's current book; empty for an unknown instrument. Copies the levels: for
    /// display, not for the hot path.
    #[must_use]
    pub fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot {
        each_kind!(&self.0, line => line.core.book(instrument, depth))
    }

    /// The resting orders of the wanted instruments: per instrument, bids then asks, best price first, by priority
    /// within a price. `None` where the feed has no single orders. Visits all orders of the channel.
    #[must_use]
    pub fn orders(&self, is_wanted: &dyn Fn(InstrumentId) -> bool) -> Option<Vec<OrderView>> {
        each_kind!(&self.0, line => line.core.orders(is_wanted))
    }

    /// Swaps a line's lead histogram with `other`: see
    /// [`Arbiter::exchange_lead`](mdgw_wire::arbiter::Arbiter::exchange_lead).
    pub fn exchange_lead(&mut self, line: Line, other: &mut hdrhistogram::Histogram<u64>) {
        each_kind!(&mut self.0, data_path => data_path.arbiter.exchange_lead(line, other));
    }

    /// Faults of the books, by reason.
    #[must_use]
    pub fn book_faults(&self) -> &BookFaultCounts {
        each_kind!(&self.0, line => line.core.faults())
    }

    /// The first packets that contradicted a book or could not be decoded.
    #[cfg(test)]
    pub(crate) fn rejected_packets(&self) -> impl Iterator<Item = &RejectedPacket> {
        each_kind!(&self.0, line => line.rejected_packets.iter())
    }

    /// Memory held by window, books and tables, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        each_kind!(&self.0, line => line.memory_bytes())
    }

    /// Begins a copy of the channel's state in the given buffer. One copy at a time: a copy in progress ends, and its
    /// buffer is returned.
    pub fn begin_copy(&mut self, buffer: CopyBuffer) -> Option<CopyBuffer> {
        each_kind!(&mut self.0, line => line.begin_copy(buffer.into_writer())).map(CopyBuffer::from_writer)
    }

    /// Writes the next slice of the copy into `out`, which must be empty with room for [`copy::SLICE_BYTES_MAX`]. A
    /// slice is bounded work; other input may be processed between slices.
    pub fn copy_slice(&mut self, out: &mut Vec<u8>) -> CopyStep {
        each_kind!(&mut self.0, line => line.copy_slice(out))
    }

    /// Ends the copy. Returns its buffer, for a cold thread to free.
    pub fn end_copy(&mut self) -> Option<CopyBuffer> {
        each_kind!(&mut self.0, line => line.end_copy()).map(CopyBuffer::from_writer)
    }

    /// Continues at the copied channel's position. `self` must be new.
    fn restore(&mut self, received: &copy::ReceivedCopy, end: &[u8]) -> Result<(), CopyFault> {
        each_kind!(&mut self.0, line => line.restore(received, end))
    }

    /// Whether input of the current session was missed. The books are then suspect, and symbol mappings may be
    /// missing.
    #[must_use]
    pub fn has_missed_input(&self) -> bool {
        each_kind!(&self.0, line => line.has_missed_input())
    }

    /// All resting orders, by ascending priority; none for a feed by price level.
    #[must_use]
    pub fn resting_orders(&self) -> Vec<OrderView> {
        each_kind!(&self.0, line => line.resting_orders())
    }

    /// Takes the channel out of service: its handler failed.
    pub fn fail(&mut self) {
        each_kind!(&mut self.0, line => line.has_failed = true);
    }
}

/// How far the peer's channel has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPosition {
    /// Session of the position.
    pub session: Session,
    /// First sequence that the peer does not have.
    pub next: Sequence,
    /// Whether the session has ended there.
    pub has_ended: bool,
}

/// Where to request messages that no line has delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRequest {
    /// The venue's server. The request has this many bytes.
    Server(usize),
    /// The other gateway of the pair: messages `[first, next)`.
    Peer {
        /// Session of the messages.
        session: Session,
        /// First missing sequence.
        first: Sequence,
        /// First sequence after the missing range.
        next: Sequence,
    },
}

/// Maximum size of a request to a retransmission server, bytes.
pub const REQUEST_BYTES_MAX: usize = 64;

/// Counters of one channel. Written by the thread that drives the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Datagrams received on all lines.
    pub datagrams: u64,
    /// Heartbeats among them.
    pub heartbeats: u64,
    /// Messages delivered in sequence, decoded or not.
    pub messages: u64,
    /// Messages among them that could not be decoded.
    pub messages_refused: u64,
    /// Frames written for messages.
    pub frames: u64,
    /// Records in these frames.
    pub records: u64,
    /// Gaps declared, without the missing beginning of a late start.
    pub gaps: u64,
    /// Messages in these gaps.
    pub gap_messages: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions joined after their first message, whose beginning was not requested, or no source had: books lack it.
    pub late_starts: u64,
    /// Messages accepted without a sequence of their own.
    pub unsequenced: u64,
    /// Trades cancelled by the venue. DBN has no record for them.
    pub trades_broken: u64,
}

#[cfg(test)]
mod tests;
