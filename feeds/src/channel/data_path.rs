//! The data path of one feed: session → arbiter → decoder, book, normaliser → sink.

use std::cmp::Ordering;

use zerocopy::IntoBytes;

use super::{
    CONFIRMATION_SILENCE_NS, ChannelConfig, ChannelCounters, ChannelState, CopyFault, CopyStep, Datagram, KnownSession,
    LateStart, MissingRequest, PeerPosition, REQUEST_BYTES_MAX, UnconfirmedJumps,
    copy::{CopyWriter, FieldReader, ReceivedCopy},
    feed_core::FeedCore,
    held_datagrams::HeldDatagrams,
    message_processor::MessageProcessor,
    rejected_packets::{RejectedPackets, RejectionKind},
    session::{SessionMatch, SessionTracker},
};
use crate::{
    book::OrderView,
    transport::{Packet, PacketKind, Transport, VenueSession},
};
use mdgw_wire::{
    arbiter::{Arbiter, Arrival, Delivery, RequestTarget, SEQUENCE_END},
    drop_reason::{DropCounts, DropReason},
    frame::{FrameKind, FrameMeta, FrameSink, GapBody, StateBody},
    identity::{Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};

/// All parts of one channel; the feed is the type parameter.
#[derive(Debug)]
pub(super) struct DataPath<C> {
    pub(super) config: ChannelConfig,
    pub(super) sessions: SessionTracker,
    pub(super) arbiter: Arbiter,
    pub(super) core: C,
    pub(super) counters: ChannelCounters,
    pub(super) drops: DropCounts,
    pub(super) rejected_packets: RejectedPackets,
    /// Datagrams of the next session, held while the current session waits for its last messages.
    pub(super) next_session_held: HeldDatagrams,
    /// Packets so far ahead of the expected sequence that only further packets of their line confirm them.
    unconfirmed_jumps: UnconfirmedJumps,
    /// First packet of another session whose start is not confirmed yet.
    unconfirmed_first: HeldDatagrams,
    /// When that packet was received. `None` once a packet of the current session has arrived after it.
    unconfirmed_first_since: Option<MonoNs>,
    /// Sequence at which the session ends, as announced by the venue.
    end_sequence: Option<Sequence>,
    has_ended: bool,
    /// Input of this session was missed, so symbol mappings may be missing too.
    has_missed_input: bool,
    /// Of a session that was joined late and is requested from its first message: a gap before any delivery that ends here
    /// or earlier is the beginning that no source has.
    beginning_until: Option<Sequence>,
    /// The newest session in which the other gateway has published a gap.
    peer_gap_session: Option<Session>,
    pub(super) has_failed: bool,
    published_state: ChannelState,
    /// The copy in progress, if any; written slice by slice.
    copying: Option<Box<CopyWriter>>,
}

impl<C: FeedCore> DataPath<C> {
    pub(super) fn new(core: C, config: ChannelConfig) -> Self {
        Self {
            sessions: SessionTracker::new(config.feed, config.date, config.resume),
            arbiter: Arbiter::new(config.arbiter.clone()),
            core,
            counters: ChannelCounters::default(),
            drops: DropCounts::default(),
            rejected_packets: RejectedPackets::new(),
            next_session_held: HeldDatagrams::with_capacity(config.arbiter.window_packets),
            unconfirmed_jumps: UnconfirmedJumps::new(config.arbiter.datagram_bytes_max + HEADER_BYTES_MAX),
            unconfirmed_first: HeldDatagrams::with_capacity(1),
            unconfirmed_first_since: None,
            end_sequence: None,
            has_ended: false,
            has_missed_input: false,
            beginning_until: None,
            peer_gap_session: None,
            has_failed: false,
            published_state: ChannelState::Waiting,
            copying: None,
            config,
        }
    }

    pub(super) fn accept<S: FrameSink>(&mut self, datagram: Datagram<'_>, now: MonoNs, sink: &mut S) {
        self.counters.datagrams += 1;
        self.accept_one(datagram, now, sink);
        self.release_next_session(now, sink);
        if !self.has_ended {
            self.arbiter.start_silence_timers(now);
        }
        self.publish_state(sink);
    }

    pub(super) fn holds_expected(&self, datagram: &[u8]) -> bool {
        let Ok(packet) = C::Transport::parse_header(datagram) else { return false };
        if packet.unsequenced {
            return self.config.accept_unsequenced;
        }
        let is_current = self.sessions.current().is_some_and(|current| current.venue == packet.session);
        let expected = self.arbiter.expected();
        is_current && expected.is_some_and(|expected| packet.first <= expected && expected < packet.next())
    }

    fn accept_one<S: FrameSink>(&mut self, datagram: Datagram<'_>, now: MonoNs, sink: &mut S) {
        if let Err(reason) = self.try_accept(datagram, now, sink) {
            self.drops.count(reason);
            if !reason.is_expected() && reason != DropReason::SessionStale {
                self.rejected_packets.add(
                    RejectionKind::Refused(reason),
                    Sequence(0),
                    datagram.ts_recv,
                    datagram.bytes,
                );
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
        // An answer to a request belongs to the session that sent the request. It cannot begin a session.
        if line == Line::RECOVERY && self.sessions.current().is_none_or(|current| current.venue != packet.session) {
            return Err(DropReason::SessionStale);
        }
        if self.is_of_next_session(&packet, ts_recv) {
            if self.next_session_held.hold(line, ts_recv, bytes) {
                return Ok(());
            }
            // No room to hold more. If the new session's messages were mistaken for the old session's, they would
            // count as duplicates.
            self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.end_if_complete(sink);
            self.release_next_session(now, sink);
        }
        match self.sessions.classify(&packet, ts_recv, self.arbiter.expected()) {
            SessionMatch::Ended => return Err(DropReason::SessionStale),
            SessionMatch::Unconfirmed => {
                if packet.first <= Sequence(1) {
                    self.unconfirmed_first.clear();
                    self.unconfirmed_first_since = self.unconfirmed_first.hold(line, ts_recv, bytes).then_some(now);
                }
                return Err(DropReason::SessionUnconfirmed);
            }
            SessionMatch::New(session) => {
                self.begin_session(session, &packet, sink);
                self.accept_unconfirmed_first(packet.session, now, sink);
            }
            SessionMatch::Current => self.unconfirmed_first_since = None,
        }
        let next = packet.next();
        let is_end = packet.kind == PacketKind::EndOfSession;
        if is_end && self.arbiter.expected().is_some_and(|expected| packet.first < expected) {
            // Messages beyond this end have been delivered, so the announced end is invalid.
            return Err(DropReason::SequenceInvalid);
        }
        if self.unconfirmed_jumps.is_continued(line, packet.first) && self.arbiter.would_accept(line, packet.first) {
            self.deliver_confirmed_jump(line, now, sink);
        }
        // The arbiter counts its own rejections.
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
                outcome = arbiter.announce(line, packet.first, now);
            }
        });
        match outcome {
            Err(DropReason::SequenceJump) if packet.kind == PacketKind::Messages => {
                self.unconfirmed_jumps.hold(line, &packet, ts_recv, bytes, now);
            }
            Err(DropReason::SequenceJump) => {}
            _ if self.unconfirmed_jumps.has_any() => self.unconfirmed_jumps.discard_run(line),
            _ => {}
        }
        self.counters.heartbeats += u64::from(packet.kind == PacketKind::Heartbeat);
        if is_end && outcome.is_ok() {
            self.end_sequence = Some(packet.first);
        }
        self.end_if_complete(sink);
        Ok(())
    }

    pub(super) fn on_deadline<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        self.arbitrate(sink, |arbiter, mut deliver| arbiter.on_deadline(now, &mut deliver));
        self.end_if_complete(sink);
        self.release_next_session(now, sink);
        if self.confirmation_deadline().is_some_and(|deadline| deadline <= now) {
            self.confirm_last_received(now, sink);
        }
        self.publish_state(sink);
    }

    pub(super) fn next_deadline(&self) -> Option<MonoNs> {
        [self.arbiter.next_deadline(), self.confirmation_deadline()].into_iter().flatten().min()
    }

    /// When the silence is long enough to confirm the last unconfirmed packet.
    fn confirmation_deadline(&self) -> Option<MonoNs> {
        let unconfirmed_first = self.unconfirmed_first_since.map(|since| since.plus(CONFIRMATION_SILENCE_NS));
        [unconfirmed_first, self.unconfirmed_jumps.deadline()].into_iter().flatten().min()
    }

    pub(super) fn finish<S: FrameSink>(&mut self, sink: &mut S) {
        self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
        self.end_if_complete(sink);
        if !self.next_session_held.is_empty() {
            // No deadline follows the end of the input, so the time is not used.
            self.release_next_session(MonoNs(0), sink);
            self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.end_if_complete(sink);
        }
        self.confirm_last_received(MonoNs(0), sink);
        self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
        self.end_if_complete(sink);
        self.publish_state(sink);
    }

    /// Whether the packet begins or continues the next session while messages of the current one are missing. Another
    /// line or the venue's server may still deliver those.
    fn is_of_next_session(&self, packet: &Packet<'_>, ts_recv: UnixNs) -> bool {
        let is_waiting = matches!(self.arbiter.state(), ChannelState::Gap | ChannelState::Recovering);
        if !is_waiting || packet.unsequenced {
            return false;
        }
        let expected = self.arbiter.expected();
        if self.sessions.would_begin_session(packet, ts_recv, expected) {
            return true;
        }
        let held_first = self.next_session_held.get(0).and_then(|(_, _, bytes)| C::Transport::parse(bytes).ok());
        held_first.is_some_and(|held_first| {
            let is_other = self.sessions.current().is_some_and(|current| current.venue != held_first.session);
            held_first.session == packet.session && (is_other || packet.send_time >= held_first.send_time)
        })
    }

    /// Begins the next session once no missing message of the current session is pending.
    fn release_next_session<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        if self.next_session_held.is_empty()
            || matches!(self.arbiter.state(), ChannelState::Gap | ChannelState::Recovering)
        {
            return;
        }
        let mut next_session_held = std::mem::replace(&mut self.next_session_held, HeldDatagrams::with_capacity(0));
        let mut index = 0;
        while let Some((line, ts_recv, bytes)) = next_session_held.get(index) {
            self.accept_one(Datagram { line, bytes, ts_recv }, now, sink);
            index += 1;
        }
        next_session_held.clear();
        self.next_session_held = next_session_held;
    }

    /// The session has begun, so its first packet, rejected as unconfirmed until then, was genuine.
    fn accept_unconfirmed_first<S: FrameSink>(&mut self, session: VenueSession, now: MonoNs, sink: &mut S) {
        let mut unconfirmed_first = std::mem::replace(&mut self.unconfirmed_first, HeldDatagrams::with_capacity(0));
        if let Some((line, ts_recv, bytes)) = unconfirmed_first.get(0)
            && C::Transport::parse(bytes).is_ok_and(|packet| packet.session == session)
        {
            self.drops.uncount(DropReason::SessionUnconfirmed);
            self.accept_one(Datagram { line, bytes, ts_recv }, now, sink);
        }
        unconfirmed_first.clear();
        self.unconfirmed_first = unconfirmed_first;
    }

    /// Accepts the last unconfirmed packets: no packet has contradicted them and none will. Called when the input has
    /// ended or was silent for [`CONFIRMATION_SILENCE_NS`].
    fn confirm_last_received<S: FrameSink>(&mut self, now: MonoNs, sink: &mut S) {
        if self.unconfirmed_first_since.take().is_some() {
            let mut unconfirmed_first = std::mem::replace(&mut self.unconfirmed_first, HeldDatagrams::with_capacity(0));
            if let Some((line, ts_recv, bytes)) = unconfirmed_first.get(0) {
                self.drops.uncount(DropReason::SessionUnconfirmed);
                self.accept_one(Datagram { line, bytes, ts_recv }, now, sink);
            }
            unconfirmed_first.clear();
            self.unconfirmed_first = unconfirmed_first;
        }
        if self.unconfirmed_jumps.take_uncontradicted() {
            (0..).map(Line).take(Line::COUNT_MAX).for_each(|line| self.deliver_confirmed_jump(line, now, sink));
        }
    }

    /// Accepts a line's packets that were rejected as a jump and are now confirmed.
    fn deliver_confirmed_jump<S: FrameSink>(&mut self, line: Line, now: MonoNs, sink: &mut S) {
        let Some((first, run)) = self.unconfirmed_jumps.take_run(line) else { return };
        self.arbiter.accept_jump(first, now);
        let mut index = 0;
        while let Some((line, ts_recv, bytes)) = run.get(index) {
            self.arbiter.uncount_jump(line);
            self.accept_one(Datagram { line, bytes, ts_recv }, now, sink);
            index += 1;
        }
        self.unconfirmed_jumps.return_buffer(line, run);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.core.memory_bytes()
            + self.arbiter.memory_bytes()
            + self.next_session_held.bytes()
            + self.unconfirmed_jumps.bytes()
    }

    fn begin_session<S: FrameSink>(&mut self, session: Session, packet: &Packet<'_>, sink: &mut S) {
        let is_first = self.counters.sessions == 0;
        if !is_first {
            // Messages still held of the old session are delivered under that session.
            self.arbitrate(sink, |arbiter, mut deliver| arbiter.finish(&mut deliver));
            self.end(sink);
        }
        self.counters.sessions += 1;
        self.invalidate_copy();
        self.unconfirmed_jumps.clear();
        self.unconfirmed_first_since = None;
        self.core.begin_session(session);
        self.end_sequence = None;
        self.has_ended = false;
        // A gateway that was running when the session began expects its first message. A late joiner begins at the
        // first packet received.
        let joins_late = is_first && packet.first > Sequence(1);
        // Output published before our restart ends at the log position. Messages missed since are requested or
        // declared.
        let log_position = self
            .config
            .log_position
            .filter(|(logged_session, next)| *logged_session == session && *next <= packet.first);
        let is_whole = self.config.late_start == LateStart::WholeSession;
        // Messages behind the log's end are missing for receivers too: a gap.
        let log_end = log_position.map_or(SEQUENCE_END, |(_, next)| next);
        self.beginning_until = (joins_late && is_whole).then_some(log_end);
        let expected = match log_position {
            _ if is_whole => Some(Sequence(1)),
            Some((_, next)) if joins_late => Some(next),
            _ => (!joins_late).then_some(Sequence(1)),
        };
        self.arbiter.begin_session(expected);
        let next = expected.unwrap_or(packet.first);
        sink.session(session, next);
        self.has_missed_input = joins_late && expected != Some(Sequence(1));
        self.counters.late_starts += u64::from(self.has_missed_input);
        if self.has_missed_input || self.peer_gap_session == Some(session) {
            self.core.on_gap();
        }
    }

    /// Runs `work` on the arbiter and processes its deliveries in order.
    fn arbitrate<S: FrameSink>(&mut self, sink: &mut S, work: impl FnOnce(&mut Arbiter, &mut dyn FnMut(Delivery<'_>))) {
        let Self {
            config,
            arbiter,
            core,
            counters,
            drops,
            rejected_packets,
            end_sequence,
            has_missed_input,
            beginning_until,
            copying,
            ..
        } = self;
        work(arbiter, &mut |delivery| match delivery {
            Delivery::Packet { first, from, until, block, ts_recv, send_time, .. } => {
                sink.arbitrated();
                let (ts_recv_wanted, has_missed_input) = (config.ts_recv, *has_missed_input);
                let mut process = MessageProcessor {
                    core,
                    counters,
                    drops,
                    rejected_packets,
                    end_sequence,
                    has_missed_input,
                    ts_recv: ts_recv_wanted,
                };
                let is_all_understood = process.packet(first, from, until, block, ts_recv, send_time, sink);
                if let Some(copying) = copying {
                    if !is_all_understood {
                        copying.invalidate();
                    }
                    copying.record_touched(core, (first, from, until), block);
                }
                sink.covered_through(until);
            }
            Delivery::Gap(gap) => {
                if counters.messages == 0 && beginning_until.is_some_and(|until| gap.next() <= until) {
                    counters.late_starts += u64::from(!*has_missed_input);
                } else {
                    counters.gaps += 1;
                    counters.gap_messages += gap.count();
                }
                core.on_gap();
                *has_missed_input = true;
                if let Some(copying) = copying {
                    copying.invalidate();
                }
                let body = GapBody { first: gap.first().0.into(), next: gap.next().0.into() };
                sink.frame(&FrameMeta::control(FrameKind::Gap, gap.first(), gap.next()), 0, body.as_bytes());
                sink.covered_through(gap.next());
            }
        });
    }

    fn end_if_complete<S: FrameSink>(&mut self, sink: &mut S) {
        let (Some(end_sequence), Some(expected)) = (self.end_sequence, self.arbiter.expected()) else { return };
        match expected.cmp(&end_sequence) {
            Ordering::Less => {}
            Ordering::Equal => self.end(sink),
            // The venue continued after its announced end, so the end was false.
            Ordering::Greater => {
                self.end_sequence = None;
                self.has_ended = false;
            }
        }
    }

    /// Publishes the state before the end of session, since no frame of a session follows its end.
    fn end<S: FrameSink>(&mut self, sink: &mut S) {
        if !self.has_ended {
            self.has_ended = true;
            self.arbiter.forget_reported();
            self.arbiter.stop_silence_timers();
            self.sessions.end();
            self.publish_state(sink);
            sink.end_of_session();
        }
    }

    pub(super) fn known_session(&self) -> Option<KnownSession> {
        let current = *self.sessions.current()?;
        let has_messages =
            current.has_messages || self.arbiter.expected().is_some_and(|expected| expected > Sequence(1));
        Some(KnownSession { has_messages, ..current })
    }

    pub(super) fn poll_request(&mut self, request: &mut [u8; REQUEST_BYTES_MAX]) -> Option<MissingRequest> {
        let missing = self.arbiter.poll_request()?;
        let current = self.sessions.current()?;
        let (first, next) = (missing.first, missing.next);
        match missing.target {
            RequestTarget::Peer => Some(MissingRequest::Peer { session: current.session, first, next }),
            RequestTarget::Server => {
                let count = next.0.saturating_sub(first.0);
                self.core.write_request(current.venue, first, count, request).map(MissingRequest::Server)
            }
        }
    }

    pub(super) fn peer_answer_ended(&mut self, first: Sequence, now: MonoNs) {
        self.arbiter.peer_answer_ended(first, now);
    }

    /// The session's end is requested like a message that follows the last one: the peer answers with the venue's announcement.
    pub(super) fn peer_reported(&mut self, report: PeerPosition, now: MonoNs) {
        let is_current = self.sessions.current().is_some_and(|current| current.session == report.session);
        if is_current && !self.has_ended && !self.has_failed {
            let next = report.next.plus(u64::from(report.has_ended));
            self.arbiter.note_reported(next, now);
        }
    }

    /// The peer may be ahead, in a session that has not begun here yet.
    pub(super) fn peer_declared_gap(&mut self, session: Session) {
        self.peer_gap_session = self.peer_gap_session.max(Some(session));
        if self.sessions.current().is_some_and(|current| current.session == session) {
            self.core.on_gap();
            self.invalidate_copy();
        }
    }

    fn invalidate_copy(&mut self) {
        if let Some(copying) = &mut self.copying {
            copying.invalidate();
        }
    }

    pub(super) fn begin_copy(&mut self, writer: Box<CopyWriter>) -> Option<Box<CopyWriter>> {
        self.copying.replace(writer)
    }

    pub(super) fn resting_orders(&self) -> Vec<OrderView> {
        let slots = 0..self.core.copy_extent().orders;
        let mut orders: Vec<_> = slots.filter_map(|place| self.core.order_in_slot(place)).collect();
        orders.sort_unstable_by_key(|order| order.priority);
        orders
    }

    pub(super) fn end_copy(&mut self) -> Option<Box<CopyWriter>> {
        self.copying.take()
    }

    pub(super) fn copy_slice(&mut self, out: &mut Vec<u8>) -> CopyStep {
        if self.has_failed || self.sessions.current().is_none() || self.arbiter.expected().is_none() {
            return CopyStep::Failed(CopyFault::NoState);
        }
        let Some(mut writer) = self.copying.take() else { return CopyStep::Failed(CopyFault::NoState) };
        let step = writer.slice(&self.core, &self.config, out, |out| self.write_end(out));
        self.copying = Some(writer);
        step
    }

    /// Writes the channel's part of the last slice of a copy: session, positions and flags.
    fn write_end(&self, out: &mut Vec<u8>) -> Option<Sequence> {
        let expected = self.arbiter.expected()?;
        if !self.sessions.write(out) {
            return None;
        }
        out.extend(expected.0.to_le_bytes());
        out.extend([self.has_missed_input, self.has_ended, self.end_sequence.is_some()].map(u8::from));
        out.extend(self.end_sequence.unwrap_or_default().0.to_le_bytes());
        out.push(self.peer_gap_session.is_some().into());
        out.extend(self.peer_gap_session.map_or([0; Session::BYTES], Session::to_bytes));
        Some(expected)
    }

    /// Continues at the copied channel's position. `self` must be new.
    pub(super) fn restore(&mut self, received: &ReceivedCopy, end: &[u8]) -> Result<(), CopyFault> {
        let mut rest = FieldReader(end);
        let session = self.sessions.restore(&mut rest)?;
        let expected = Sequence(rest.u64()?);
        let (has_missed_input, has_ended, is_ending) = (rest.flag()?, rest.flag()?, rest.flag()?);
        let end_sequence = Sequence(rest.u64()?);
        let (is_gap, gap) = (rest.flag()?, rest.array()?);
        rest.end()?;
        if !(Sequence(1)..SEQUENCE_END).contains(&expected) {
            return Err(CopyFault::Malformed);
        }
        let peer_gap_session = is_gap.then(|| Session::from_bytes(gap).ok_or(CopyFault::Malformed)).transpose()?;
        self.core.restore(session, received)?;
        if self.core.counts() != received.counts {
            return Err(CopyFault::Incomplete);
        }
        self.arbiter.begin_session(Some(expected));
        (self.has_missed_input, self.has_ended, self.peer_gap_session) =
            (has_missed_input, has_ended, peer_gap_session);
        self.end_sequence = is_ending.then_some(end_sequence);
        // The copied session counts as begun.
        self.counters.sessions = 1;
        Ok(())
    }

    pub(super) fn has_missed_input(&self) -> bool {
        self.has_missed_input
            || self.peer_gap_session.is_some_and(|gap| self.sessions.current().is_some_and(|now| now.session == gap))
    }

    pub(super) fn state(&self) -> ChannelState {
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

    /// Publishes state changes to consumers, except `Gap`: a short wait for the other line is not reported.
    fn publish_state<S: FrameSink>(&mut self, sink: &mut S) {
        let state = self.state();
        if state == self.published_state || state == ChannelState::Gap {
            return;
        }
        self.published_state = state;
        if let Some(expected) = self.arbiter.expected() {
            sink.frame(&FrameMeta::state(expected), 0, StateBody::of(state).as_bytes());
        }
    }
}

/// Upper bound of any transport's header, bytes.
const HEADER_BYTES_MAX: usize = 64;
