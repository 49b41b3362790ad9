//! One channel from datagram to records: what the gateway, the offline replay and the bench drive.

use std::{cmp::Ordering, fmt};

use dbn::enums::rtype;
use zerocopy::IntoBytes;

use crate::{
    arbiter::{Arbiter, ArbiterConfig, Arrival, Delivery, LineStatistics},
    book::{
        BookFaultCounts, BookLimits,
        store::{HashStore, WindowStore},
    },
    drop_reason::{DropCounts, DropReason},
    edge::TsRecv,
    frame::{FrameFlags, FrameKind, FrameMeta, FrameSink, GapBody, StateBody},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
    transport::{Packet, PacketKind, Transport},
};

mod ahead;
mod core;
mod deep;
mod evidence;
mod iex;
mod itch;
mod session;
mod tops;

use self::{
    ahead::Ahead,
    core::{Core, Notice},
    deep::DeepCore,
    evidence::EvidenceRing,
    itch::ItchCore,
    session::{Belongs, SessionTracker},
    tops::TopsCore,
};
pub use self::{
    core::Fault,
    evidence::{Broken, Evidence, Why},
    session::Numbering,
};
pub use crate::channel_state::ChannelState;

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

/// What a channel can publish, a bit set of DBN schemas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaSet(pub u16);

impl SchemaSet {
    /// Market by order.
    pub const MBO: Self = Self(1);
    /// Best level after each change of it, and trades.
    pub const MBP_1: Self = Self(1 << 1);
    /// Ten levels after each change of them, and trades.
    pub const MBP_10: Self = Self(1 << 2);
    /// Trades alone.
    pub const TRADES: Self = Self(1 << 3);
    /// Trading status.
    pub const STATUS: Self = Self(1 << 4);
    /// Instrument definitions.
    pub const DEFINITION: Self = Self(1 << 5);
    /// Auction imbalance.
    pub const IMBALANCE: Self = Self(1 << 6);
    /// Statistics.
    pub const STATISTICS: Self = Self(1 << 7);

    /// All schemas with the names that configuration and command line use.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::MBO, "mbo"),
        (Self::MBP_1, "mbp-1"),
        (Self::MBP_10, "mbp-10"),
        (Self::TRADES, "trades"),
        (Self::STATUS, "status"),
        (Self::DEFINITION, "definition"),
        (Self::IMBALANCE, "imbalance"),
        (Self::STATISTICS, "statistics"),
    ];

    /// What a channel of that feed publishes unless it is configured.
    #[must_use]
    pub fn default_for(feed: Feed) -> Self {
        match feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => {
                Self::MBO.with(Self::STATUS).with(Self::DEFINITION).with(Self::IMBALANCE).with(Self::STATISTICS)
            }
            Feed::IexDeep => Self::MBP_10.with(Self::TRADES).with(Self::STATUS),
            Feed::IexTops => Self::MBP_1.with(Self::TRADES).with(Self::STATUS),
        }
    }

    /// What a channel of that feed can publish: whatever its messages tell enough for.
    #[must_use]
    pub fn of_feed(feed: Feed) -> Self {
        let all = Self::NAMES.into_iter().fold(Self::default(), |all, (schema, _)| all.with(schema));
        match feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => all,
            // No single orders.
            Feed::IexDeep => all.without(Self::MBO),
            // The best level alone; as mbo, it is a pair of records that are marked as top of book.
            Feed::IexTops => all.without(Self::MBP_10),
        }
    }

    /// The schema of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| *known == name).map(|(schema, _)| schema)
    }

    /// The schema whose records have that type number.
    #[must_use]
    pub fn of_rtype(number: u8) -> Option<Self> {
        match number {
            rtype::MBO => Some(Self::MBO),
            rtype::MBP_0 => Some(Self::TRADES),
            rtype::MBP_1 => Some(Self::MBP_1),
            rtype::MBP_10 => Some(Self::MBP_10),
            rtype::STATUS => Some(Self::STATUS),
            rtype::INSTRUMENT_DEF => Some(Self::DEFINITION),
            rtype::IMBALANCE => Some(Self::IMBALANCE),
            rtype::STATISTICS => Some(Self::STATISTICS),
            _ => None,
        }
    }

    /// Both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in here and not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Names, separated by commas.
impl fmt::Display for SchemaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.into_iter().filter(|(schema, _)| self.contains(*schema)).map(|(_, name)| name);
        for (index, name) in names.enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// How a channel is set up.
#[derive(Clone, Debug)]
pub struct ChannelConfig {
    /// Number in published packets.
    pub id: ChannelId,
    /// What it decodes.
    pub feed: Feed,
    /// What it publishes.
    pub schemas: SchemaSet,
    /// Trading date, where it is not to be taken from the input.
    pub date: Option<TradingDate>,
    /// Lines, window, gap timer, recovery.
    pub arbiter: ArbiterConfig,
    /// How much the books may hold.
    pub books: BookLimits,
    /// How orders are found by their id.
    pub order_store: OrderStoreKind,
    /// Numbers of instruments whose symbols collide (symbol, number); for venues that give none.
    pub instrument_numbers: Vec<(String, u32)>,
    /// Take packets that nobody numbered in the order in which they come. For files of messages that were wrapped into
    /// packets without a session; on a wire such packets are refused.
    pub accept_unsequenced: bool,
    /// Whether frames carry their receive times.
    pub ts_recv: TsRecv,
    /// The numbering that was current when the gateway last ran.
    pub resume: Option<Numbering>,
    /// How far the publication log had got when the gateway last ran: a session and the next sequence.
    pub logged: Option<(Session, Sequence)>,
}

/// How orders are found by their id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderStoreKind {
    /// Any 64-bit id: open addressing.
    #[default]
    Hash,
    /// An array for the young orders before the hash: for venues that number their orders densely.
    Window,
}

impl ChannelConfig {
    /// With the defaults of its feed.
    #[must_use]
    pub fn new(id: ChannelId, feed: Feed) -> Self {
        Self {
            id,
            feed,
            schemas: SchemaSet::default_for(feed),
            date: None,
            arbiter: ArbiterConfig::default(),
            books: BookLimits::default(),
            order_store: OrderStoreKind::default(),
            instrument_numbers: Vec::new(),
            accept_unsequenced: false,
            ts_recv: TsRecv::default(),
            resume: None,
            logged: None,
        }
    }
}

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

/// One channel. Drive it with datagrams and deadlines; it writes frames.
#[derive(Debug)]
pub struct Channel(Kind);

/// The feed is chosen once for each channel, so no message pays for it.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a handful of channels, made once and never moved on the hot path")]
enum Kind {
    Itch(StraightLine<ItchCore<HashStore>>),
    ItchWindow(StraightLine<ItchCore<WindowStore>>),
    Tops(StraightLine<TopsCore>),
    Deep(StraightLine<DeepCore>),
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
                Kind::Itch(StraightLine::new(ItchCore::new(&config), config))
            }
            (Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch, OrderStoreKind::Window) => {
                Kind::ItchWindow(StraightLine::new(ItchCore::new(&config), config))
            }
            (Feed::IexTops, _) => Kind::Tops(StraightLine::new(TopsCore::new(&config), config)),
            (Feed::IexDeep, _) => Kind::Deep(StraightLine::new(DeepCore::new(&config), config)),
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
        each_kind!(&self.0, line => line.arbiter.next_deadline())
    }

    /// Time has passed: a gap may have to be asked for or declared, a line may have gone silent.
    pub fn on_deadline<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        each_kind!(&mut self.0, line => line.on_deadline(now, sink));
    }

    /// The input has ended: what is held is delivered, what is missing declared.
    pub fn finish<S: FrameSink>(&mut self, sink: &mut S) {
        each_kind!(&mut self.0, line => line.finish(sink));
    }

    /// A request to the retransmission server that is due, written into `request`; its length.
    pub fn poll_request(&mut self, request: &mut [u8; REQUEST_BYTES_MAX]) -> Option<usize> {
        each_kind!(&mut self.0, line => line.poll_request(request))
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
        each_kind!(&self.0, straight => straight.arbiter.line_statistics(line))
    }

    /// Faults of the books, by reason.
    #[must_use]
    pub fn book_faults(&self) -> &BookFaultCounts {
        each_kind!(&self.0, line => line.core.faults())
    }

    /// The first packets that contradicted a book or could not be understood.
    pub fn evidence(&self) -> impl Iterator<Item = &Evidence> {
        each_kind!(&self.0, line => line.evidence.iter())
    }

    /// Bytes held by window, books and tables.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        each_kind!(&self.0, line => line.core.memory_bytes() + line.arbiter.memory_bytes() + line.ahead.bytes())
    }

    /// Out of service: its handler failed.
    pub fn fail(&mut self) {
        each_kind!(&mut self.0, line => line.has_failed = true);
    }
}

/// Room for any request to a retransmission server.
pub const REQUEST_BYTES_MAX: usize = 64;

/// The straight line of one feed: session → arbiter → decoder, book, normaliser → sink.
#[derive(Debug)]
struct StraightLine<C> {
    config: ChannelConfig,
    sessions: SessionTracker,
    arbiter: Arbiter,
    core: C,
    counters: ChannelCounters,
    drops: DropCounts,
    evidence: EvidenceRing,
    /// The next numbering, while this one waits for its last messages.
    ahead: Ahead,
    /// The last packet, where it lay so far ahead that only further ones would make it credible.
    doubtful: Ahead,
    /// Where the venue said that the session ends.
    ends_at: Option<Sequence>,
    has_ended: bool,
    has_failed: bool,
    told: ChannelState,
}

impl<C: Core> StraightLine<C> {
    fn new(core: C, config: ChannelConfig) -> Self {
        Self {
            sessions: SessionTracker::new(config.feed, config.date, config.resume),
            arbiter: Arbiter::new(config.arbiter.clone()),
            core,
            counters: ChannelCounters::default(),
            drops: DropCounts::default(),
            evidence: EvidenceRing::new(),
            ahead: Ahead::with_room(config.arbiter.window_packets),
            doubtful: Ahead::with_room(1),
            ends_at: None,
            has_ended: false,
            has_failed: false,
            told: ChannelState::Waiting,
            config,
        }
    }

    fn accept<S: FrameSink>(&mut self, datagram: Datagram<'_>, now: MonoNs, sink: &mut S) {
        self.counters.datagrams += 1;
        self.arbiter.watch(now);
        self.accept_one(datagram, now, sink);
        self.go_ahead(now, sink);
        self.tell_state(sink);
    }

    fn accept_one<S: FrameSink>(&mut self, datagram: Datagram<'_>, now: MonoNs, sink: &mut S) {
        if let Err(reason) = self.try_accept(datagram, now, sink) {
            self.drops.count(reason);
            if !reason.is_expected() && reason != DropReason::SessionStale {
                self.evidence.keep(Why::Refused(reason), Sequence(0), datagram.ts_recv, datagram.bytes);
            }
        }
    }

    fn try_accept<S: FrameSink>(
        &mut self,
        datagram: Datagram<'_>,
        now: MonoNs,
        sink: &mut S,
    ) -> Result<(), DropReason> {
        let Datagram { line, bytes, ts_recv } = datagram;
        let mut packet = C::Transport::parse(bytes)?;
        if packet.unsequenced {
            if !self.config.accept_unsequenced {
                return Err(DropReason::SequenceInvalid);
            }
            packet.first = self.arbiter.expected().unwrap_or(Sequence(1));
            self.counters.unsequenced += u64::from(packet.count);
        }
        // An answer to a request belongs to the session that asked. It begins none.
        if line == Line::RECOVERY && self.sessions.current().is_none_or(|current| current.venue != packet.session) {
            return Err(DropReason::SessionStale);
        }
        if self.is_ahead(&packet, ts_recv) {
            if self.ahead.hold(line, ts_recv, bytes) {
                return Ok(());
            }
            // No room to wait any longer. Taken for the old numbering's, the new one's messages would pass for copies.
            self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.end_if_complete(sink);
            self.go_ahead(now, sink);
        }
        match self.sessions.classify(&packet, ts_recv, self.arbiter.expected()) {
            Belongs::Ended => return Err(DropReason::SessionStale),
            Belongs::Unconfirmed => return Err(DropReason::SessionUnconfirmed),
            Belongs::New(session) => self.begin_session(session, &packet, sink),
            Belongs::Current => {}
        }
        let next = packet.next();
        let is_end = packet.kind == PacketKind::EndOfSession;
        if is_end && self.arbiter.expected().is_some_and(|expected| packet.first < expected) {
            // There are messages beyond this end.
            return Err(DropReason::SequenceInvalid);
        }
        // Refusals are counted by the arbiter itself.
        let mut outcome = Ok(());
        self.arbitrate(sink, |arbiter, mut deliver| match packet.kind {
            PacketKind::Messages => {
                let arrival = Arrival {
                    line,
                    first: packet.first,
                    next,
                    block: packet.messages,
                    ts_recv,
                    send_time: packet.send_time,
                    now,
                };
                outcome = arbiter.accept(arrival, &mut deliver);
            }
            PacketKind::Heartbeat | PacketKind::EndOfSession => {
                outcome = arbiter.announce(line, packet.first, now, &mut deliver);
            }
        });
        self.doubtful.clear();
        if outcome == Err(DropReason::SequenceJump) && packet.kind == PacketKind::Messages {
            self.doubtful.hold(line, ts_recv, bytes);
        }
        self.counters.heartbeats += u64::from(packet.kind == PacketKind::Heartbeat);
        if is_end && outcome.is_ok() {
            self.ends_at = Some(packet.first);
        }
        self.end_if_complete(sink);
        Ok(())
    }

    fn on_deadline<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        self.arbitrate(sink, |arbiter, mut deliver| arbiter.on_deadline(now, &mut deliver));
        self.end_if_complete(sink);
        self.go_ahead(now, sink);
        self.tell_state(sink);
    }

    fn finish<S: FrameSink>(&mut self, sink: &mut S) {
        self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
        self.end_if_complete(sink);
        if !self.ahead.is_empty() {
            // No deadline follows, so any time will do.
            self.go_ahead(MonoNs(0), sink);
            self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.end_if_complete(sink);
        }
        self.believe_the_last(sink);
        self.tell_state(sink);
    }

    /// Whether the packet begins a numbering, or belongs to one that has begun to come, while messages of the current
    /// one are missing that another line or the venue's server may still bring.
    fn is_ahead(&self, packet: &Packet<'_>, ts_recv: UnixNs) -> bool {
        let is_waiting = matches!(self.arbiter.state(), ChannelState::Gap | ChannelState::Recovering);
        if !is_waiting || packet.unsequenced {
            return false;
        }
        let expected = self.arbiter.expected();
        if self.sessions.would_begin(packet, ts_recv, expected) {
            return true;
        }
        let begun = self.ahead.get(0).and_then(|(_, _, bytes)| C::Transport::parse(bytes).ok());
        begun.is_some_and(|begun| {
            let is_other = self.sessions.current().is_some_and(|current| current.venue != begun.session);
            begun.session == packet.session && (is_other || packet.send_time >= begun.send_time)
        })
    }

    /// Lets the next numbering begin once nothing of the current one can come any more.
    fn go_ahead<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        if self.ahead.is_empty() || matches!(self.arbiter.state(), ChannelState::Gap | ChannelState::Recovering) {
            return;
        }
        let mut ahead = std::mem::replace(&mut self.ahead, Ahead::with_room(0));
        let mut index = 0;
        while let Some((line, ts_recv, bytes)) = ahead.get(index) {
            self.accept_one(Datagram { line, bytes, ts_recv }, now, sink);
            index += 1;
        }
        ahead.clear();
        self.ahead = ahead;
    }

    /// Nothing came after it that would speak against it: a capture may be a sample of a few packets.
    fn believe_the_last<S: FrameSink>(&mut self, sink: &mut S) {
        let doubtful = std::mem::replace(&mut self.doubtful, Ahead::with_room(0));
        let Some((line, ts_recv, bytes)) = doubtful.get(0) else { return };
        let Ok(packet) = C::Transport::parse(bytes) else { return };
        self.arbiter.take_back_jump(line);
        self.arbitrate(sink, |arbiter, mut deliver| arbiter.give_up_before(packet.first, MonoNs(0), &mut deliver));
        self.accept_one(Datagram { line, bytes, ts_recv }, MonoNs(0), sink);
    }

    fn begin_session<S: FrameSink>(&mut self, session: Session, packet: &Packet<'_>, sink: &mut S) {
        let is_first = self.counters.sessions == 0;
        if !is_first {
            // Whatever the old numbering still has comes out under its own name.
            self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.end(sink);
        }
        self.counters.sessions += 1;
        self.core.begin_session(session);
        self.ends_at = None;
        self.has_ended = false;
        // Who was listening when the numbering began expects its first message. Who comes late begins where it is.
        let joins_late = is_first && packet.first > Sequence(1);
        // What was published before a restart of ours ends there; what was missed since is asked for or declared.
        let logged = self.config.logged.filter(|(logged, next)| *logged == session && *next <= packet.first);
        let expected = match logged {
            Some((_, next)) if joins_late => Some(next),
            _ => (!joins_late).then_some(Sequence(1)),
        };
        self.arbiter.begin_session(expected);
        let next = expected.unwrap_or(packet.first);
        sink.session(session, next);
        if joins_late {
            self.counters.late_starts += 1;
            self.core.on_gap();
        }
    }

    /// Lets the arbiter work and handles what it delivers, in order.
    fn arbitrate<S: FrameSink>(&mut self, sink: &mut S, work: impl FnOnce(&mut Arbiter, &mut dyn FnMut(Delivery<'_>))) {
        let Self { config, arbiter, core, counters, drops, evidence, ends_at, .. } = self;
        let ts_recv_wanted = config.ts_recv;
        work(arbiter, &mut |delivery| match delivery {
            Delivery::Packet { first, from, until, block, ts_recv, send_time, .. } => {
                sink.arbitrated();
                let mut process = Process { core, counters, drops, evidence, ends_at, ts_recv: ts_recv_wanted };
                process.packet(first, from, until, block, ts_recv, send_time, sink);
                sink.settled(until);
            }
            Delivery::Gap(gap) => {
                counters.gaps += 1;
                counters.gap_messages += gap.count();
                core.on_gap();
                let body = GapBody { first: gap.first().0.into(), next: gap.next().0.into() };
                sink.frame(&FrameMeta::own(FrameKind::Gap, gap.first(), gap.next()), 0, body.as_bytes());
                sink.settled(gap.next());
            }
        });
    }

    fn end_if_complete<S: FrameSink>(&mut self, sink: &mut S) {
        let (Some(ends_at), Some(expected)) = (self.ends_at, self.arbiter.expected()) else { return };
        match expected.cmp(&ends_at) {
            Ordering::Less => {}
            Ordering::Equal => self.end(sink),
            // The venue went on after its end, so it was none.
            Ordering::Greater => {
                self.ends_at = None;
                self.has_ended = false;
            }
        }
    }

    /// The state comes first: nothing of the session follows its end.
    fn end<S: FrameSink>(&mut self, sink: &mut S) {
        if !self.has_ended {
            self.has_ended = true;
            self.tell_state(sink);
            sink.end_of_session();
        }
    }

    fn numbering(&self) -> Option<Numbering> {
        let current = *self.sessions.current()?;
        let has_messages =
            current.has_messages || self.arbiter.expected().is_some_and(|expected| expected > Sequence(1));
        Some(Numbering { has_messages, ..current })
    }

    fn poll_request(&mut self, request: &mut [u8; REQUEST_BYTES_MAX]) -> Option<usize> {
        let wanted = self.arbiter.poll_request()?;
        self.core.write_request(
            self.sessions.current()?.venue,
            wanted.first,
            wanted.next.0.saturating_sub(wanted.first.0),
            request,
        )
    }

    fn state(&self) -> ChannelState {
        if self.has_failed {
            return ChannelState::Failed;
        }
        match self.arbiter.state() {
            _ if self.has_ended => ChannelState::Ended,
            ChannelState::Live if self.is_silent() => ChannelState::Stale,
            state => state,
        }
    }

    /// Whether every line's alarm is raised.
    fn is_silent(&self) -> bool {
        let lines = 0..self.config.arbiter.lines;
        lines.into_iter().all(|line| self.arbiter.line_statistics(Line(line)).silent)
    }

    /// Consumers hear of a new state, but not of each short wait for the other line.
    fn tell_state<S: FrameSink>(&mut self, sink: &mut S) {
        let state = self.state();
        if state == self.told || state == ChannelState::Gap {
            return;
        }
        self.told = state;
        if let Some(expected) = self.arbiter.expected() {
            sink.frame(&FrameMeta::state(expected), 0, StateBody::of(state).as_bytes());
        }
    }
}

/// The part of a channel that works on delivered messages.
struct Process<'c, C> {
    core: &'c mut C,
    counters: &'c mut ChannelCounters,
    drops: &'c mut DropCounts,
    evidence: &'c mut EvidenceRing,
    ts_recv: TsRecv,
    ends_at: &'c mut Option<Sequence>,
}

impl<C: Core> Process<'_, C> {
    /// Three passes over the packet: two ask the memory for what the last one will touch, the second of them for what
    /// the first one's answers lead to.
    #[allow(clippy::too_many_arguments, reason = "the fields of one delivery")]
    fn packet<S: FrameSink>(
        &mut self,
        first: Sequence,
        from: Sequence,
        until: Sequence,
        block: &[u8],
        ts_recv: UnixNs,
        send_time: Option<UnixNs>,
        sink: &mut S,
    ) {
        let mut ahead = block;
        while let Some(message) = C::Transport::next_message(&mut ahead) {
            self.core.prefetch(message);
        }
        let mut behind = block;
        while let Some(message) = C::Transport::next_message(&mut behind) {
            self.core.prefetch_behind(message);
        }
        let mut rest = block;
        let mut sequence = first;
        while sequence < until {
            let Some(message) = C::Transport::next_message(&mut rest) else { break };
            if sequence >= from {
                self.message(message, sequence, block, ts_recv, send_time, sink);
            }
            sequence = sequence.plus(1);
        }
    }

    fn message<S: FrameSink>(
        &mut self,
        message: &[u8],
        sequence: Sequence,
        block: &[u8],
        ts_recv: UnixNs,
        send_time: Option<UnixNs>,
        sink: &mut S,
    ) {
        self.counters.messages += 1;
        let applied = match self.core.apply(message, sequence) {
            Ok(applied) => applied,
            Err(reason) => {
                self.counters.messages_refused += 1;
                self.drops.count(reason);
                self.evidence.keep(Why::Refused(reason), sequence, ts_recv, block);
                return;
            }
        };
        if let Some(fault) = applied.fault {
            self.evidence.keep(Why::Contradicted(fault), sequence, ts_recv, block);
        }
        match applied.notice {
            None => {}
            Some(Notice::TradeBroken) => self.counters.trades_broken += 1,
            Some(Notice::EndOfMessages) => *self.ends_at = Some(sequence.plus(1)),
        }
        let records = self.core.records();
        if records.count() == 0 {
            return;
        }
        self.counters.frames += 1;
        self.counters.records += u64::from(records.count());
        let (ts_recv, ts_in_delta_ns) = match self.ts_recv {
            TsRecv::Capture => (ts_recv, delta_ns(ts_recv, send_time.map_or(applied.ts_event, |sent| sent.0))),
            TsRecv::None => (UnixNs::UNDEFINED, 0),
        };
        let meta = FrameMeta {
            sequence,
            next: sequence.plus(1),
            kind: FrameKind::Message,
            flags: if applied.suspect { FrameFlags::SUSPECT } else { FrameFlags::default() },
            ts_recv: ts_recv.0,
            ts_in_delta_ns,
        };
        sink.frame(&meta, records.count(), records.bytes());
    }
}

/// `ts_recv - sent`, clamped to what the record holds.
fn delta_ns(ts_recv: UnixNs, sent: u64) -> i32 {
    let delta = i128::from(ts_recv.0) - i128::from(sent);
    i32::try_from(delta).unwrap_or(if delta < 0 { i32::MIN } else { i32::MAX })
}

#[cfg(test)]
mod tests;
