//! One channel of a group: sessions, the start, and the way from a packet to items.
//!
//! ```text
//!             first packet, sequence 1 (or no service)
//!  idle ──────────────────────────────────────────────────────────────────▶ running
//!    │ first packet, later sequence                                            ▲ │ newer session,
//!    └──▶ definitions ──answered──▶ extent (what the log holds) ──answered──▶──┤ │ the old one not at its end
//!              └─ Start::Now: straight on ─────────────────────────────────▶───┘ ▼
//!                                          the newer session ◀───────────── closing (how far did the old one go?)
//!                                                  ▲ none between              │ ▲ one between: that one first
//!  Start::Day, not the day's first session         │                           ▼ │
//!  idle ───────────────────────────────────────────┴───────────────────── sessions (which does the log hold?)
//! ```
//! Every question is repeated until it is answered or given up; the stream then goes on without.

use zerocopy::FromBytes;

use crate::{
    arbiter::{AnswerEnd, Arbiter, ArbiterConfig, Arrival, Delivery, Gap, RecoveryConfig, WhenFull},
    channel_state::ChannelState,
    drop_reason::DropReason,
    frame::{FrameFlags, FrameHeader, FrameKind, GapBody, StateBody},
    identity::{ChannelId, GroupId, Line, Sequence, Session},
    published::{
        packet::{Frames, Packet, PacketFlags},
        request::{RequestKind, ServiceRequest},
    },
    time::MonoNs,
};

use super::{
    Item, Output, PublishedDatagram, ReceiverConfig, ReceiverStatistics, ServiceConfig, Start,
    ask::Ask,
    assembly::{Assembly, Joined},
};

#[derive(Debug)]
pub(super) struct ReceiverChannel {
    service: Option<ServiceConfig>,
    start: Start,
    phase: Phase,
    /// Over positions: `sequence << 16 | part`.
    arbiter: Arbiter,
    stream: Stream,
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// The log is asked for the oldest session that it holds from `from` on; `newer` is under way.
    Sessions {
        ask: Ask,
        from: Session,
        newer: Session,
    },
    /// Definitions up to `number` have come; they were last asked for from `asked` on.
    Definitions {
        number: Sequence,
        asked: Sequence,
        ask: Ask,
    },
    /// What the log holds is asked for.
    Extent {
        ask: Ask,
    },
    Running,
    /// `newer` has begun; `end`: how far the present session went, once it is known.
    Closing {
        ask: Ask,
        end: Option<Sequence>,
        newer: Session,
    },
}

/// What follows the arbiter: frames to items.
#[derive(Debug)]
struct Stream {
    id: ChannelId,
    session: Option<Session>,
    assembly: Assembly,
    /// First message of which nothing has been told yet, neither records nor loss.
    told: Sequence,
    state: Option<u8>,
    snapshot: Option<(u64, u16)>,
    /// Where the session ends, once the gateway has said so; and whether that has been handed on.
    end: Option<Sequence>,
    is_ended: bool,
    statistics: ReceiverStatistics,
}

impl ReceiverChannel {
    pub(super) fn new(id: ChannelId, config: &ReceiverConfig) -> Self {
        let jump_max = config.sequence_jump_max.clamp(1, 1 << 40) << PART_BITS;
        let arbiter = ArbiterConfig {
            lines: config.lines,
            window_packets: config.window_packets,
            datagram_bytes_max: config.packet_bytes_max,
            // A packet also settles messages that produced nothing, so its size doesn't bound its range.
            messages_per_packet_max: jump_max,
            gap_timeout_ns: config.gap_timeout_ns,
            recovery: config.service.map(|service| RecoveryConfig {
                request_timeout_ns: service.request_timeout_ns,
                attempts_max: service.attempts_max.max(1),
                peer_timeout_ns: 0,
                peer_attempts_max: 0,
                messages_per_request_max: service.messages_per_request_max.clamp(1, 1 << 40) << PART_BITS,
                // The service limits itself; a late starter may want a whole day.
                requests_under_way_max: 1,
                gap_messages_max: u64::MAX,
                session_messages_max: u64::MAX,
                answer_end: AnswerEnd::Announced,
            }),
            // What the window can't hold is in the service's log.
            when_full: if config.service.is_some() { WhenFull::RefusePacket } else { WhenFull::DeclareGap },
            sequence_jump_max: jump_max,
            line_silence_ns: config.line_silence_ns,
        };
        Self {
            service: config.service,
            start: config.start,
            phase: Phase::Idle,
            arbiter: Arbiter::new(arbiter),
            stream: Stream {
                id,
                session: None,
                assembly: Assembly::new(config.message_bytes_max),
                told: Sequence(0),
                state: None,
                snapshot: None,
                end: None,
                is_ended: false,
                statistics: ReceiverStatistics::default(),
            },
        }
    }

    pub(super) fn id(&self) -> ChannelId {
        self.stream.id
    }

    pub(super) fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    pub(super) fn statistics(&self) -> &ReceiverStatistics {
        &self.stream.statistics
    }

    pub(super) fn position(&self) -> Option<(Session, Sequence)> {
        self.stream.session.zip(self.arbiter.expected().map(message_of))
    }

    pub(super) fn accept(
        &mut self,
        packet: &Packet<'_>,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        self.arbiter.watch(now);
        let is_answer = datagram.line == Line::RECOVERY;
        let current = self.stream.session;
        if let Phase::Sessions { newer, .. } = &mut self.phase {
            if is_answer {
                self.accept_sessions(packet, now, deliver);
            } else {
                *newer = packet.meta.session.max(*newer);
                self.stream.statistics.packets_before_start += 1;
            }
            return Ok(());
        }
        if current != Some(packet.meta.session) {
            // An answer of another session is none to what we asked.
            if is_answer || current.is_some_and(|current| packet.meta.session < current) {
                return Err(DropReason::SessionStale);
            }
            if current.is_some() && self.must_close(packet.meta.session, now, deliver) {
                self.stream.statistics.packets_before_start += 1;
                return Ok(());
            }
            if self.stream.session != Some(packet.meta.session) {
                let is_uncut = packet.part.is_none_or(|part| part.part == 0);
                self.go_on_to(packet.meta.session, Some(packet.meta.first).filter(|_| is_uncut), now, deliver);
                if self.stream.session != Some(packet.meta.session) {
                    self.stream.statistics.packets_before_start += 1;
                    return Ok(());
                }
            }
        }
        if packet.meta.flags.contains(PacketFlags::END_OF_SESSION) {
            self.stream.end = Some(position_of(packet.meta.next));
        }
        match &self.phase {
            Phase::Definitions { .. } | Phase::Extent { .. } if is_answer => {
                self.accept_start(packet, now, deliver);
                Ok(())
            }
            Phase::Idle | Phase::Sessions { .. } | Phase::Definitions { .. } | Phase::Extent { .. } => {
                self.stream.statistics.packets_before_start += 1;
                Ok(())
            }
            Phase::Running | Phase::Closing { .. } => self.accept_running(packet, datagram, now, deliver),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<MonoNs> {
        let ask = match &self.phase {
            Phase::Sessions { ask, .. }
            | Phase::Definitions { ask, .. }
            | Phase::Extent { ask }
            | Phase::Closing { ask, end: None, .. } => Some(ask.deadline()),
            Phase::Idle | Phase::Running | Phase::Closing { .. } => None,
        };
        match (ask, self.arbiter.next_deadline()) {
            (Some(ask), Some(gap)) => Some(ask.min(gap)),
            (ask, gap) => ask.or(gap),
        }
    }

    pub(super) fn on_deadline(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let Self { arbiter, stream, .. } = self;
        arbiter.on_deadline(now, &mut |delivery| stream.take(delivery, deliver));
        stream.check_end(arbiter.expected(), deliver);
        let is_answered_in_time = match &mut self.phase {
            Phase::Sessions { ask, .. }
            | Phase::Definitions { ask, .. }
            | Phase::Extent { ask }
            | Phase::Closing { ask, end: None, .. } => ask.on_deadline(now),
            Phase::Idle | Phase::Running | Phase::Closing { .. } => true,
        };
        if !is_answered_in_time {
            self.stream.statistics.starts_unanswered += 1;
            match self.phase {
                Phase::Sessions { newer, .. } => self.begin_session(newer, None, now, deliver),
                Phase::Definitions { .. } => self.phase = self.after_definitions(now),
                Phase::Closing { ask, newer, .. } => {
                    self.phase = Phase::Closing { ask, newer, end: self.arbiter.frontier().or(Some(FIRST)) };
                }
                _ => self.phase = Phase::Running,
            }
        }
        self.close_when_complete(now, deliver);
    }

    pub(super) fn poll_request(&mut self) -> Option<ServiceRequest> {
        let session = self.stream.session;
        let request = |kind, first, next| {
            let (group, channel) = (GroupId(0), self.stream.id);
            ServiceRequest { kind, group, channel, session, first, next, nonce: 0 }
        };
        let start = self.arbiter.expected().map_or(Sequence(0), message_of);
        match &mut self.phase {
            Phase::Sessions { ask, from, .. } => {
                if ask.poll() {
                    let request = request(RequestKind::Sessions, Sequence(0), Sequence(0));
                    return Some(ServiceRequest { session: Some(*from), ..request });
                }
            }
            Phase::Definitions { number, asked, ask } => {
                if ask.poll() {
                    *asked = *number;
                    return Some(request(RequestKind::Definitions, *number, *number));
                }
            }
            Phase::Extent { ask } | Phase::Closing { ask, end: None, .. } => {
                if ask.poll() {
                    return Some(request(RequestKind::Range, start, start));
                }
            }
            Phase::Idle | Phase::Running | Phase::Closing { .. } => {}
        }
        let wanted = self.arbiter.poll_request()?;
        Some(request(RequestKind::Range, message_of(wanted.first), message_after(wanted.next)))
    }

    pub(super) fn finish(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        let Self { arbiter, stream, .. } = self;
        arbiter.finish(&mut |delivery| stream.take(delivery, deliver));
        stream.give_up_open_message(deliver);
        stream.check_end(arbiter.expected(), deliver);
    }

    /// A session was heard for the first time, if at a message's beginning then at `first`. Those that the log holds and that
    /// come before it are told before it.
    fn go_on_to(
        &mut self,
        session: Session,
        first: Option<Sequence>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        let from = match self.stream.session {
            Some(current) => current.restart.checked_add(1).map(|restart| Session { restart, ..current }),
            None => Some(Session { restart: 0, ..session }).filter(|_| self.start == Start::Day),
        };
        match (self.service, from.filter(|from| *from < session)) {
            (Some(service), Some(from)) => {
                self.phase = Phase::Sessions { ask: Ask::new(service, now), from, newer: session };
            }
            _ => self.begin_session(session, first, now, deliver),
        }
    }

    /// An answer while sessions are being asked for: one that is over and comes before the one under way is told first.
    fn accept_sessions(&mut self, packet: &Packet<'_>, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let (Phase::Sessions { from, newer, .. }, Some(service)) = (&self.phase, self.service) else { return };
        let (from, newer, meta) = (*from, *newer, &packet.meta);
        let is_end = meta.flags.contains(PacketFlags::HEARTBEAT) && !meta.flags.contains(PacketFlags::SNAPSHOT);
        // Else the answer to an earlier question.
        if !is_end || meta.session < from {
            return;
        }
        if meta.session >= newer || meta.next < FIRST {
            return self.begin_session(newer, None, now, deliver);
        }
        self.finish(deliver);
        self.stream.begin(meta.session, deliver);
        self.begin_at(meta.first);
        let end = position_of(meta.next);
        self.phase = Phase::Closing { ask: Ask::new(service, now), end: Some(end), newer };
        // What it could refuse is counted, and shows as a loss when the session is left.
        let _counted = self.arbiter.announce(Line::RECOVERY, end, now);
        self.close_when_complete(now, deliver);
    }

    /// A session begins, with what was heard if that was its first message, else with what the log holds of it.
    fn begin_session(
        &mut self,
        session: Session,
        first: Option<Sequence>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        let is_first = self.stream.session.is_none();
        self.finish(deliver);
        self.stream.begin(session, deliver);
        self.phase = match self.service {
            _ if first.is_some_and(|first| first <= FIRST) => {
                self.begin_at(FIRST);
                Phase::Running
            }
            None => {
                self.arbiter.begin_session(None);
                Phase::Running
            }
            Some(service) => {
                // What follows a session that we followed is wanted from its beginning.
                if !is_first {
                    self.start = Start::Oldest;
                }
                self.arbiter.begin_session(None);
                Phase::Definitions { number: Sequence(0), asked: Sequence(0), ask: Ask::new(service, now) }
            }
        };
    }

    fn begin_at(&mut self, first: Sequence) {
        self.arbiter.begin_session(Some(position_of(first.max(FIRST))));
        self.stream.told = first.max(FIRST);
    }

    /// Whether the present session still has to be asked for its end before a newer one may begin.
    fn must_close(&mut self, newer: Session, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) -> bool {
        let has_begun = self.arbiter.expected().is_some();
        let Some(service) = self.service.filter(|_| has_begun && !self.stream.is_ended) else { return false };
        match &mut self.phase {
            Phase::Running => {
                self.phase = Phase::Closing { ask: Ask::new(service, now), end: None, newer };
                true
            }
            Phase::Closing { newer: known, .. } => {
                *known = newer.max(*known);
                self.close_when_complete(now, deliver);
                self.stream.session != Some(newer)
            }
            Phase::Idle | Phase::Sessions { .. } | Phase::Definitions { .. } | Phase::Extent { .. } => false,
        }
    }

    /// Goes on to the newer session once everything of the present one has come or been given up.
    fn close_when_complete(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let Phase::Closing { end: Some(end), newer, .. } = self.phase else { return };
        if self.arbiter.expected().is_none_or(|expected| expected >= end) {
            self.go_on_to(newer, None, now, deliver);
        }
    }

    fn after_definitions(&self, now: MonoNs) -> Phase {
        match (self.start, self.service) {
            (Start::Oldest | Start::Day, Some(service)) => Phase::Extent { ask: Ask::new(service, now) },
            _ => Phase::Running,
        }
    }

    /// An answer while the start is being asked for.
    fn accept_start(&mut self, packet: &Packet<'_>, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let is_end = packet.meta.flags.contains(PacketFlags::HEARTBEAT);
        let is_snapshot = packet.meta.flags.contains(PacketFlags::SNAPSHOT);
        let (first, next) = (packet.meta.first, packet.meta.next);
        match &mut self.phase {
            Phase::Definitions { number, asked, ask } if is_snapshot && is_end => {
                if first == next && first <= *number {
                    self.phase = self.after_definitions(now);
                } else if *number > *asked {
                    // A limit cut the answer short, or a part of it was lost: the next piece. Without any progress
                    // the deadline decides.
                    *ask = Ask::new(self.service.unwrap_or_default(), now);
                }
            }
            // Out of order or twice: the number asked for next time settles it.
            Phase::Definitions { number, ask, .. }
                if is_snapshot && first == *number && next.0 - first.0 == u64::from(packet.frame_count) =>
            {
                *number = next;
                ask.progressed(now);
                for (header, body) in packet.frames() {
                    self.stream.statistics.definitions += 1;
                    self.stream.tell(Item::Definition { header, body }, deliver);
                }
            }
            // A log that holds nothing of the session leaves the beginning to what is published next.
            Phase::Extent { .. } if is_end && !is_snapshot && next < FIRST => self.phase = Phase::Running,
            Phase::Extent { .. } if is_end && !is_snapshot => {
                self.phase = Phase::Running;
                self.begin_at(first);
                // Whatever is refused here is counted by the arbiter, and live packets tell the same.
                let _counted = self.arbiter.announce(Line::RECOVERY, position_of(next), now);
            }
            _ => {}
        }
    }

    fn accept_running(
        &mut self,
        packet: &Packet<'_>,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        let Self { arbiter, stream, phase, .. } = self;
        let flags = packet.meta.flags;
        let is_answer = datagram.line == Line::RECOVERY;
        if is_answer && flags.contains(PacketFlags::SNAPSHOT) {
            // Definitions that were asked for twice.
            return Err(DropReason::Duplicate);
        }
        let (first, next) = positions_of(packet).ok_or(DropReason::FieldInvalid)?;
        if flags.contains(PacketFlags::SNAPSHOT) && first != next {
            return Err(DropReason::SequenceInvalid);
        }
        let is_answers_end = is_answer && flags.contains(PacketFlags::HEARTBEAT);
        if is_answers_end {
            // The end of an answer. Nobody has what lies before the log.
            arbiter.give_up_before(first, now, &mut |delivery| stream.take(delivery, deliver));
            if let Phase::Closing { end, .. } = phase {
                *end = Some(next);
            }
        }
        // A late starter can't begin inside of a message.
        if arbiter.expected().is_none() {
            let begin = if part_of(first) == 0 { first } else { position_of(message_of(first).plus(1)) };
            arbiter.begin_session(Some(begin));
            stream.told = message_of(begin);
        }
        // The range of a live heartbeat was silent and is settled; that of an answer's end is the log's extent.
        let outcome = if first < next && !is_answers_end {
            let arrival = Arrival {
                line: datagram.line,
                first,
                next,
                block: packet.body,
                ts_recv: datagram.ts_recv,
                send_time: None,
                now,
            };
            arbiter.accept(arrival, &mut |delivery| stream.take(delivery, deliver))
        } else {
            let outcome = arbiter.announce(datagram.line, next, now);
            if outcome.is_ok() && arbiter.expected().is_some_and(|expected| expected <= next) {
                stream.take_unsettling(packet.body, deliver);
            }
            outcome
        };
        stream.check_end(arbiter.expected(), deliver);
        self.close_when_complete(now, deliver);
        outcome
    }
}

impl Stream {
    fn begin(&mut self, session: Session, deliver: &mut impl FnMut(Output<'_>)) {
        self.session = Some(session);
        self.assembly.clear();
        self.told = Sequence(0);
        self.state = None;
        self.snapshot = None;
        self.end = None;
        self.is_ended = false;
        self.tell(Item::Session, deliver);
    }

    fn tell(&self, item: Item<'_>, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(session) = self.session {
            deliver(Output { channel: self.id, session, item });
        }
    }

    fn take(&mut self, delivery: Delivery<'_>, deliver: &mut impl FnMut(Output<'_>)) {
        match delivery {
            Delivery::Gap(gap) => {
                // Parts of a message at either end of the gap are of no use without the missing ones.
                self.assembly.clear();
                self.lose(message_of(gap.first()), message_after(gap.next()), deliver);
            }
            Delivery::Packet { from, until, block, .. } => {
                for (header, body) in Frames::of_body(block) {
                    self.take_frame(header, body, from, until, deliver);
                }
                // Messages that produced nothing are settled by the range alone.
                if part_of(until) == 0 {
                    self.told = self.told.max(message_of(until));
                }
            }
        }
    }

    /// One frame of a packet of which `[from, until)` is wanted.
    fn take_frame(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        from: Sequence,
        until: Sequence,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        if FrameFlags(header.flags).contains(FrameFlags::LATE_FILL) {
            self.statistics.late_fills += 1;
            return;
        }
        let sequence = Sequence(header.sequence.get());
        let position = Sequence(position_of(sequence).0 | u64::from(header.part.get()));
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::Message) if from <= position && position < until => {
                self.take_message(header, body, deliver);
            }
            Some(FrameKind::Gap) => {
                let Ok(gap) = GapBody::ref_from_bytes(body) else { return };
                let first = Sequence(gap.first.get()).max(message_of(from)).max(self.told);
                let next = Sequence(gap.next.get()).min(message_after(until));
                if let Some(gap) = Gap::new(first, next) {
                    self.assembly.clear();
                    self.statistics.gap_messages += gap.count();
                    self.told = next;
                    self.tell(Item::Gap(gap), deliver);
                }
            }
            Some(FrameKind::State | FrameKind::Snapshot) if from <= position && position <= until => {
                self.take_aside(header, body, deliver);
            }
            _ => {}
        }
    }

    /// Frames of a packet that settles nothing.
    fn take_unsettling(&mut self, body: &[u8], deliver: &mut impl FnMut(Output<'_>)) {
        Frames::of_body(body).for_each(|(header, body)| self.take_aside(header, body, deliver));
    }

    /// Frames that are no function of the input: told when they say something new, whichever gateway says it.
    fn take_aside(&mut self, header: &FrameHeader, body: &[u8], deliver: &mut impl FnMut(Output<'_>)) {
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::State) => {
                let Ok(body) = StateBody::ref_from_bytes(body) else { return };
                if self.state.replace(body.state) != Some(body.state)
                    && let Some(state) = ChannelState::from_number(body.state)
                {
                    self.tell(Item::State(state), deliver);
                }
            }
            Some(FrameKind::Snapshot) => {
                let name = (header.sequence.get(), header.part.get());
                if self.snapshot.is_none_or(|last| last < name) {
                    self.snapshot = Some(name);
                    self.tell(Item::Snapshot { header, body }, deliver);
                }
            }
            _ => {}
        }
    }

    fn take_message(&mut self, header: &FrameHeader, body: &[u8], deliver: &mut impl FnMut(Output<'_>)) {
        let sequence = Sequence(header.sequence.get());
        if sequence < self.told {
            return;
        }
        let Some(session) = self.session else { return };
        let channel = self.id;
        let whole = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
        if FrameFlags(header.flags).contains(whole) {
            deliver(Output { channel, session, item: Item::Message { header, body } });
        } else {
            match self.assembly.join(header, body) {
                Joined::Incomplete => return,
                Joined::Whole(header, body) => {
                    deliver(Output { channel, session, item: Item::Message { header: &header, body } });
                }
                Joined::Broken => {
                    self.statistics.broken_messages += 1;
                    self.lose(sequence, sequence.plus(1), deliver);
                    return;
                }
            }
        }
        self.statistics.messages += 1;
        self.told = sequence.plus(1);
    }

    fn lose(&mut self, first: Sequence, next: Sequence, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(gap) = Gap::new(first.max(self.told), next) {
            self.statistics.lost_messages += gap.count();
            self.told = next;
            self.tell(Item::Lost(gap), deliver);
        }
    }

    /// The stream ends inside of a message.
    fn give_up_open_message(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(sequence) = self.assembly.open() {
            self.assembly.clear();
            self.lose(sequence, sequence.plus(1), deliver);
        }
    }

    fn check_end(&mut self, expected: Option<Sequence>, deliver: &mut impl FnMut(Output<'_>)) {
        if !self.is_ended && self.end.is_some_and(|end| expected.is_some_and(|expected| expected >= end)) {
            self.is_ended = true;
            self.tell(Item::EndOfSession, deliver);
        }
    }
}

/// The first message of every venue.
const FIRST: Sequence = Sequence(1);

/// Bits of a position that number the part.
const PART_BITS: u32 = 16;

/// Position of a message's first part.
fn position_of(sequence: Sequence) -> Sequence {
    // `parse_packet` keeps sequences below 2^47.
    Sequence(sequence.0 << PART_BITS)
}

/// The message that a position lies in.
fn message_of(position: Sequence) -> Sequence {
    Sequence(position.0 >> PART_BITS)
}

/// The first message that begins at a position or after it.
fn message_after(position: Sequence) -> Sequence {
    Sequence(position.0.div_ceil(1 << PART_BITS))
}

fn part_of(position: Sequence) -> u64 {
    position.0 & ((1 << PART_BITS) - 1)
}

/// What a packet settles, in positions. `None` for a part number beyond the last that can be followed.
fn positions_of(packet: &Packet<'_>) -> Option<(Sequence, Sequence)> {
    let (first, next) = (position_of(packet.meta.first), position_of(packet.meta.next));
    let Some(part) = packet.part else { return Some((first, next)) };
    let own = position_of(part.sequence).0 | u64::from(part.part);
    let first = if part.part == 0 { first } else { Sequence(own) };
    if part.is_last {
        return Some((first, next));
    }
    (part.part < u16::MAX).then_some((first, Sequence(own + 1)))
}
