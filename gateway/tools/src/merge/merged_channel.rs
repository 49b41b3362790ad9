//! One channel: its sessions one after the other, each message once.

use mdgw_feeds::{
    arbiter::{Arbiter, ArbiterConfig, Arrival, Delivery, Gap},
    channel::{ChannelState, HeldDatagrams, SessionMatch, SessionTracker, UnconfirmedJumps},
    drop_reason::{DropCounts, DropReason},
    identity::{Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
    transport::{
        Packet, PacketKind, VenueSession,
        iextp::{self, DeepProtocol, TopsProtocol},
        moldudp64,
    },
};

use super::{
    PacketAddresses, PacketSink,
    leads::Leads,
    losses::LineLosses,
    sources::{NextDatagram, SourceHeads},
};
use crate::replay::routes::{self, LINES_MAX, LineSource};

/// A channel that is being merged.
#[derive(Debug)]
pub(super) struct MergedChannel {
    feed: Feed,
    sessions: SessionTracker,
    arbiter: Arbiter,
    /// Datagrams of the next session, held while the current session waits for its last messages.
    ahead: HeldDatagrams,
    /// Packets so far ahead that only further packets can confirm the jump.
    unconfirmed_jump: UnconfirmedJumps,
    lines: Vec<LineState>,
    /// Datagrams accepted since the channel began to wait for a missing message; 0 while it does not wait.
    waiting: usize,
    /// Venue names of the latest sessions that have started.
    started_sessions: Vec<VenueSession>,
    packet_output: PacketOutput,
    pub(super) leads: Leads,
    pub(super) counts: MergedCounts,
    /// The first gaps that no line could fill.
    pub(super) gaps: Vec<(Session, Gap)>,
    listed_max: usize,
}

/// Counts of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MergedCounts {
    pub(super) sessions: u64,
    pub(super) messages: u64,
    pub(super) packets: u64,
    pub(super) gaps: u64,
    pub(super) gap_messages: u64,
    /// Datagrams without sequence, delivered in arrival order.
    pub(super) unsequenced: u64,
    pub(super) drops: DropCounts,
}

/// What a line has delivered, and what it can't deliver any more.
#[derive(Debug)]
pub(super) struct LineState {
    /// Index of the capture that holds the line.
    file: usize,
    /// Reader of the line in that capture.
    reader: usize,
    /// Furthest sequence of the line after each of its latest packets, in a ring.
    furthest: [Sequence; REORDER_PACKETS_MAX],
    packets: usize,
    pub(super) losses: LineLosses,
}

/// Delivered packets on their way to the sink.
#[derive(Debug)]
struct PacketOutput {
    feed: Feed,
    addresses: Option<PacketAddresses>,
    part: Vec<u8>,
    last_time_ns: u64,
    /// The last packet written was an End of Session.
    has_ended: bool,
}

impl MergedChannel {
    pub(super) fn new(feed: Feed, date: Option<TradingDate>, listed_max: usize) -> Self {
        let config = ArbiterConfig {
            lines: u8::try_from(LINES_MAX).unwrap_or(Line::RECOVERY.0),
            window_packets: WINDOW_PACKETS,
            datagram_bytes_max: DATAGRAM_BYTES_MAX,
            messages_per_packet_max: u64::from(u16::MAX),
            ..ArbiterConfig::default()
        };
        Self {
            feed,
            sessions: SessionTracker::new(feed, date, None),
            arbiter: Arbiter::new(config),
            ahead: HeldDatagrams::with_capacity(WINDOW_PACKETS),
            unconfirmed_jump: UnconfirmedJumps::new(usize::from(u16::MAX)),
            lines: Vec::new(),
            waiting: 0,
            started_sessions: Vec::new(),
            packet_output: PacketOutput { feed, addresses: None, part: Vec::new(), last_time_ns: 0, has_ended: false },
            leads: Leads::default(),
            counts: MergedCounts::default(),
            gaps: Vec::new(),
            listed_max,
        }
    }

    pub(super) fn feed(&self) -> Feed {
        self.feed
    }

    /// The current session, or the last one.
    pub(super) fn session(&self) -> Option<Session> {
        self.sessions.current().map(|current| current.session)
    }

    pub(super) fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    pub(super) fn line(&self, line: Line) -> Option<&LineState> {
        self.lines.get(usize::from(line.0))
    }

    /// Whether a message was received.
    pub(super) fn has_started(&self) -> bool {
        self.arbiter.expected().is_some()
    }

    /// Ranks sessions by their start; a session that has not started ranks after all that have.
    pub(super) fn session_rank(&self, session: VenueSession) -> usize {
        self.started_sessions.iter().rposition(|begun| *begun == session).unwrap_or(usize::MAX)
    }

    /// Adds the lines known so far. Messages that one of them has not passed yet may still arrive.
    pub(super) fn add_lines(&mut self, known: &[(Line, LineSource)]) {
        for (line, source) in known.iter().skip(self.lines.len()) {
            debug_assert!(usize::from(line.0) <= self.lines.len(), "lines are numbered in the order found");
            self.lines.push(LineState::new(source.file, self.listed_max));
        }
    }

    /// Accepts the next datagram.
    pub(super) fn accept(&mut self, taken: &NextDatagram<'_>, heads: &SourceHeads<'_>, output: &mut impl PacketSink) {
        let NextDatagram { line, packet, datagram, .. } = taken;
        self.packet_output.addresses.get_or_insert(PacketAddresses { src: datagram.src, dst: datagram.dst });
        self.accept_packet(*line, packet, UnixNs(datagram.time_ns), datagram.payload, output);
        self.declare_gaps_passed_by_all_lines(heads, output);
        self.start_next_session(output);
        self.waiting = if self.arbiter.state() == ChannelState::Gap { self.waiting + 1 } else { 0 };
    }

    /// Lines that lag far behind: the channel has waited for a message for half a window of datagrams, and other lines
    /// of the same reader have passed that message. A line is returned again only after another such wait.
    pub(super) fn lagging(&mut self, reader: usize) -> Vec<Line> {
        if self.waiting < WINDOW_PACKETS / 2 {
            return Vec::new();
        }
        self.waiting = 0;
        let expected = self.arbiter.expected().unwrap_or_default();
        let (behind, ahead): (Vec<_>, Vec<_>) = (0..)
            .map(Line)
            .zip(&self.lines)
            .filter(|(_, line)| line.reader == reader)
            .partition(|(_, line)| line.passed_through() <= expected);
        if ahead.is_empty() { Vec::new() } else { behind.into_iter().map(|(line, _)| line).collect() }
    }

    /// Records that the line has a reader of its own from here on.
    pub(super) fn assign_reader(&mut self, line: Line, reader: usize) {
        if let Some(line) = self.lines.get_mut(usize::from(line.0)) {
            line.reader = reader;
        }
    }

    /// Ends the channel: delivers held packets and declares missing messages.
    pub(super) fn finish(&mut self, output: &mut impl PacketSink) {
        loop {
            self.arbitrate(output, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            if self.ahead.is_empty() {
                break;
            }
            self.start_next_session(output);
        }
        // No later packet contradicted the jump: a capture may be a sample of a few packets.
        if self.unconfirmed_jump.take_uncontradicted() {
            (0..).map(Line).take(Line::COUNT_MAX).for_each(|line| self.confirm_jump(line, output));
            self.arbitrate(output, |arbiter, mut deliver| arbiter.finish(&mut deliver));
        }
        let frontier = self.arbiter.expected();
        for line in &mut self.lines {
            line.losses.end_of_input(frontier);
        }
    }

    /// Accepts packets of a line that were rejected because of their unconfirmed jump.
    fn confirm_jump(&mut self, line: Line, output: &mut impl PacketSink) {
        let Some((first, run)) = self.unconfirmed_jump.take_run(line) else { return };
        self.arbiter.accept_jump(first, NOW);
        let mut index = 0;
        while let Some((line, ts_recv, bytes)) = run.get(index) {
            if let Ok(packet) = routes::parse(self.feed, bytes) {
                self.arbiter.uncount_jump(line);
                self.accept_packet(line, &packet, ts_recv, bytes, output);
            }
            index += 1;
        }
        self.unconfirmed_jump.return_buffer(line, run);
    }

    fn accept_packet(
        &mut self,
        line: Line,
        packet: &Packet<'_>,
        ts_recv: UnixNs,
        bytes: &[u8],
        output: &mut impl PacketSink,
    ) {
        if packet.unsequenced {
            self.counts.unsequenced += u64::from(packet.count);
            self.counts.messages += u64::from(packet.count);
            self.counts.packets += 1;
            self.packet_output.write(ts_recv, bytes, output);
            return;
        }
        if self.is_of_next_session(packet, ts_recv) {
            if self.ahead.hold(line, ts_recv, bytes) {
                return;
            }
            // The window is full: no more room for waiting.
            self.arbitrate(output, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.start_next_session(output);
        }
        match self.sessions.classify(packet, ts_recv, self.arbiter.expected()) {
            SessionMatch::Ended => return self.counts.drops.count(DropReason::SessionStale),
            SessionMatch::Unconfirmed => return self.counts.drops.count(DropReason::SessionUnconfirmed),
            SessionMatch::New(_) => self.begin_session(packet, output),
            SessionMatch::Current => {}
        }
        if self.unconfirmed_jump.is_continued(line, packet.first) && self.arbiter.would_accept(line, packet.first) {
            self.confirm_jump(line, output);
        }
        let is_message = packet.kind == PacketKind::Messages;
        let mut outcome = Ok(());
        self.arbitrate(output, |arbiter, mut deliver| {
            outcome = if is_message {
                let arrival = Arrival {
                    line,
                    first: packet.first,
                    next: packet.next(),
                    // The block is the whole datagram, so that it can be sent unchanged.
                    block: bytes,
                    ts_recv,
                    send_time: packet.send_time,
                    now: NOW,
                };
                arbiter.accept(arrival, &mut deliver)
            } else {
                arbiter.announce(line, packet.first, NOW)
            };
        });
        match outcome {
            Err(DropReason::SequenceJump) if is_message => {
                self.unconfirmed_jump.hold(line, packet, ts_recv, bytes, NOW)
            }
            Err(DropReason::SequenceJump) => {}
            _ if self.unconfirmed_jump.has_any() => self.unconfirmed_jump.discard_run(line),
            _ => {}
        }
        if matches!(outcome, Ok(()) | Err(DropReason::Duplicate | DropReason::LateAfterGap)) {
            self.record_arrival(line, packet, ts_recv);
        }
        if !is_message {
            self.packet_output.heartbeat(packet, ts_recv, bytes, self.arbiter.expected(), output);
        }
    }

    /// Records the arrival of a packet on a line: its progress, its losses, its lead over other lines.
    fn record_arrival(&mut self, line: Line, packet: &Packet<'_>, ts_recv: UnixNs) {
        let Some(state) = self.lines.get_mut(usize::from(line.0)) else { return };
        let (first, next) = (packet.first, packet.next());
        state.advance_to(next);
        let is_new = state.losses.record(first, next);
        if is_new && packet.kind == PacketKind::Messages {
            self.leads.record(line, state.file, first, next, ts_recv);
        }
    }

    /// Whether a packet belongs to the next session while the current one still waits for messages.
    fn is_of_next_session(&self, packet: &Packet<'_>, ts_recv: UnixNs) -> bool {
        if self.arbiter.state() != ChannelState::Gap {
            return false;
        }
        if self.sessions.would_begin_session(packet, ts_recv, self.arbiter.expected()) {
            return true;
        }
        let begun = self.ahead.get(0).and_then(|(_, _, bytes)| routes::parse(self.feed, bytes).ok());
        begun.is_some_and(|begun| {
            let is_other = self.sessions.current().is_some_and(|current| current.venue != begun.session);
            begun.session == packet.session && (is_other || packet.send_time >= begun.send_time)
        })
    }

    /// Starts the next session once no message of the current one can arrive any more.
    fn start_next_session(&mut self, output: &mut impl PacketSink) {
        if self.ahead.is_empty() || self.arbiter.state() == ChannelState::Gap {
            return;
        }
        let mut ahead = std::mem::replace(&mut self.ahead, HeldDatagrams::with_capacity(0));
        let mut index = 0;
        while let Some((line, ts_recv, bytes)) = ahead.get(index) {
            if let Ok(packet) = routes::parse(self.feed, bytes) {
                self.accept_packet(line, &packet, ts_recv, bytes, output);
            }
            index += 1;
        }
        ahead.clear();
        self.ahead = ahead;
    }

    fn begin_session(&mut self, packet: &Packet<'_>, output: &mut impl PacketSink) {
        let is_first = self.counts.sessions == 0;
        if !is_first {
            self.arbitrate(output, |arbiter, mut deliver| arbiter.finish(&mut deliver));
        }
        self.unconfirmed_jump.clear();
        let ended = self.arbiter.expected();
        for line in &mut self.lines {
            line.losses.begin_session(ended);
            line.furthest.fill(Sequence(0));
            line.packets = 0;
        }
        self.leads.begin_session();
        self.counts.sessions += 1;
        if self.started_sessions.len() >= SESSIONS_REMEMBERED {
            self.started_sessions.remove(0);
        }
        self.started_sessions.push(packet.session);
        // Captures that begin late have lost nothing. Once running, a session is expected from its first message.
        let joins_late = is_first && packet.first > Sequence(1);
        self.arbiter.begin_session((!joins_late).then_some(Sequence(1)));
    }

    /// Declares gaps that every line has passed, or has ended before.
    fn declare_gaps_passed_by_all_lines(&mut self, heads: &SourceHeads<'_>, output: &mut impl PacketSink) {
        if self.arbiter.state() != ChannelState::Gap {
            return;
        }
        let passed_through =
            self.lines.iter().filter(|line| heads.has_more(line.reader)).map(LineState::passed_through).min();
        if let Some(passed_through) = passed_through
            .filter(|passed_through| self.arbiter.expected().is_some_and(|expected| *passed_through > expected))
        {
            self.arbitrate(output, |arbiter, mut deliver| {
                arbiter.declare_missing_before(passed_through, NOW, &mut deliver)
            });
        }
    }

    /// Calls the arbiter and writes the packets that it delivers.
    fn arbitrate(
        &mut self,
        output: &mut impl PacketSink,
        work: impl FnOnce(&mut Arbiter, &mut dyn FnMut(Delivery<'_>)),
    ) {
        let Self { arbiter, packet_output, counts, gaps, lines, sessions, listed_max, .. } = self;
        let session = sessions.current().map(|current| current.session);
        work(arbiter, &mut |delivery| match delivery {
            Delivery::Packet { first, next, from, until, block, ts_recv, .. } => {
                counts.messages += until.0 - from.0;
                counts.packets += 1;
                if (first, next) == (from, until) {
                    packet_output.write(ts_recv, block, output);
                } else {
                    packet_output.write_part(ts_recv, block, from, until, output);
                }
            }
            Delivery::Gap(gap) => {
                counts.gaps += 1;
                counts.gap_messages += gap.count();
                if let Some(session) = session.filter(|_| gaps.len() < *listed_max) {
                    gaps.push((session, gap));
                }
                lines.iter_mut().for_each(|line| line.losses.lost_by_all(gap));
            }
        });
    }
}

impl LineState {
    fn new(file: usize, listed_max: usize) -> Self {
        Self {
            file,
            reader: file,
            furthest: [Sequence(0); REORDER_PACKETS_MAX],
            packets: 0,
            losses: LineLosses::new(listed_max),
        }
    }

    fn advance_to(&mut self, next: Sequence) {
        let last = self.furthest.get(self.packets.wrapping_sub(1) % REORDER_PACKETS_MAX).copied().unwrap_or_default();
        if let Some(slot) = self.furthest.get_mut(self.packets % REORDER_PACKETS_MAX) {
            *slot = last.max(next);
        }
        self.packets += 1;
    }

    /// The line delivers nothing before this sequence any more: the line had reached it [`REORDER_PACKETS_MAX`] packets
    /// ago.
    fn passed_through(&self) -> Sequence {
        self.furthest.get(self.packets % REORDER_PACKETS_MAX).copied().unwrap_or_default()
    }
}

impl PacketOutput {
    fn write(&mut self, ts_recv: UnixNs, datagram: &[u8], output: &mut impl PacketSink) {
        self.last_time_ns = ts_recv.0;
        self.has_ended = false;
        if let Some(addresses) = &self.addresses {
            output.datagram(ts_recv.0, addresses, datagram);
        }
    }

    fn write_part(
        &mut self,
        ts_recv: UnixNs,
        whole: &[u8],
        from: Sequence,
        until: Sequence,
        output: &mut impl PacketSink,
    ) {
        let mut part = std::mem::take(&mut self.part);
        let cut = match self.feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => moldudp64::write_part(&mut part, whole, from, until),
            Feed::IexTops => iextp::write_part::<TopsProtocol>(&mut part, whole, from, until),
            Feed::IexDeep => iextp::write_part::<DeepProtocol>(&mut part, whole, from, until),
        };
        debug_assert_eq!(cut, Ok(()), "a delivered range lies within its packet");
        if cut.is_ok() {
            self.write(ts_recv, &part, output);
        }
        self.part = part;
    }

    /// Writes a heartbeat or End of Session that continues the output. One line's heartbeats are enough, and only while
    /// no other packet shows that the channel is alive.
    fn heartbeat(
        &mut self,
        packet: &Packet<'_>,
        ts_recv: UnixNs,
        bytes: &[u8],
        expected: Option<Sequence>,
        output: &mut impl PacketSink,
    ) {
        let is_end = packet.kind == PacketKind::EndOfSession;
        let is_idle = ts_recv.0 >= self.last_time_ns.saturating_add(HEARTBEAT_NS);
        if expected == Some(packet.first) && (is_idle || (is_end && !self.has_ended)) {
            self.write(ts_recv, bytes, output);
            self.has_ended = is_end;
        }
    }
}

/// The arbiter's deadlines are not used: gaps are declared by sequence.
const NOW: MonoNs = MonoNs(0);
/// Packets held while an earlier message is missing: more than the allowed distance between files.
pub(super) const WINDOW_PACKETS: usize = 4_096;
/// Longest such packet: any that a jumbo frame carries. With the window's packets and the maximum of channels, a merge
/// reserves less than 3 GB, of which only held packets occupy memory.
const DATAGRAM_BYTES_MAX: usize = 9_216;
/// A line may deliver a packet this many packets late.
const REORDER_PACKETS_MAX: usize = 64;
/// Silence after which a heartbeat is worth writing, ns.
const HEARTBEAT_NS: u64 = 500_000_000;
/// Number of sessions whose order is remembered.
const SESSIONS_REMEMBERED: usize = 64;
