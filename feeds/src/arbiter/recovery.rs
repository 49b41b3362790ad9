//! Asking for what no line has brought, first the other gateway of the pair, then the venue's retransmission server: whom to ask
//! for what, when to ask again, when to give up. No sockets.
//!
//! ```text
//! hole ──its time is up──▶ peer asked ──timeout, or it has no more──▶ server asked ──timeout, attempts left──▶ asked again
//!   │                        │ ├──answer brought some──▶ asked for the rest, attempts anew                        │
//!   └────────filled──────────┘                           given up: the arbiter declares it ◀──────────────────────┘
//! ```
//! Where there is no peer or no server, the other one is asked alone.
//!
//! Holes are asked for in their order, each when its own time is up, several at a time: what one answer takes, or its loss, holds
//! up nothing but its own hole. A large hole is asked for in pieces.

use crate::{
    arbiter::{Gap, Holes},
    identity::Sequence,
    time::MonoNs,
};

/// Limits of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// How long an answer of the server may take, ns.
    pub request_timeout_ns: u64,
    /// How often the server is asked for the same position before it is given up; 0: there is no server.
    pub attempts_max: u16,
    /// How long an answer of the peer may take, ns.
    pub peer_timeout_ns: u64,
    /// How often the peer is asked for the same position before the server is; 0: there is no peer.
    pub peer_attempts_max: u16,
    /// Most messages in one request. Together the requests under way to the peer have no more either, since it answers with
    /// all of them at once.
    pub messages_per_request_max: u64,
    /// Most requests under way at a time, 1 to [`REQUESTS_IN_FLIGHT_MAX`]; 1 where the end of an answer is
    /// [announced](AnswerEnd::Announced), which doesn't say whose.
    pub requests_under_way_max: u16,
    /// A larger gap is declared without asking: catching up with it would take longer than it is worth.
    pub gap_messages_max: u64,
    /// Most messages asked for in one session, repeats included, so that no fault turns into a flood.
    pub session_messages_max: u64,
    /// How the end of an answer is recognised.
    pub answer_end: AnswerEnd,
}

impl Default for RecoveryConfig {
    /// For a MoldUDP64 request server in the same building.
    fn default() -> Self {
        Self {
            request_timeout_ns: 20_000_000,
            attempts_max: 5,
            // A round trip on the link between the gateways, and a turn of a thread at each end.
            peer_timeout_ns: 10_000_000,
            peer_attempts_max: 0,
            messages_per_request_max: 1_000,
            // Each is one small packet and its answer another one.
            requests_under_way_max: 16,
            gap_messages_max: 1_000_000,
            session_messages_max: 100_000_000,
            answer_end: AnswerEnd::EachPacket,
        }
    }
}

/// The most that [`RecoveryConfig::requests_under_way_max`] can be.
pub const REQUESTS_IN_FLIGHT_MAX: u16 = 64;

/// How the end of an answer is recognised, so that the rest can be asked for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// Every packet on the recovery line is an answer in itself (MoldUDP64).
    EachPacket,
    /// An announcement on the recovery line ends the answer (our own service).
    Announced,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// The other gateway of the pair.
    Peer,
    /// The venue's retransmission server.
    Server,
}

/// Ask for `[first, next)`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whom.
    pub of: RequestTarget,
    /// First sequence wanted.
    pub first: Sequence,
    /// First sequence not wanted any more.
    pub next: Sequence,
}

/// Figures of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatistics {
    /// Requests made, repeats included.
    pub requests: u64,
    /// Requests that were repeats.
    pub retries: u64,
    /// Requests of the peer among them.
    pub peer_requests: u64,
    /// Requests given up after the last attempt.
    pub given_up: u64,
    /// Holes, or the rest of them, not asked for because of their size or the session's limit.
    pub over_limit: u64,
    /// Most requests under way at a time.
    pub in_flight_max: usize,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Recovery {
    config: RecoveryConfig,
    /// What is under way, ascending and disjoint; allocated once.
    asked: Vec<Ask>,
    /// What is missing before this is under way, or has been given up.
    requested_through: Sequence,
    /// The hole that was begun with last, of which further pieces may have to be asked for; its time was up at `current_gap_due`.
    current_gap_first: Sequence,
    current_gap_next: Sequence,
    current_gap_due: MonoNs,
    /// When something was given up last.
    given_up_at: MonoNs,
    session_messages: u64,
    statistics: RecoveryStatistics,
}

/// One request under way. What it asked for may have come in part.
#[derive(Clone, Copy, Debug)]
struct Ask {
    request: Request,
    attempt: u16,
    deadline: MonoNs,
    /// It is still to be sent.
    is_unsent: bool,
}

/// What is asked for next.
#[derive(Clone, Copy, Debug)]
struct PlannedRequest {
    hole: Gap,
    piece: Gap,
    due: MonoNs,
    /// Another piece of its hole has been asked for.
    is_continuation: bool,
}

impl Recovery {
    /// Idle.
    #[must_use]
    pub(super) fn new(config: RecoveryConfig) -> Self {
        let requests_max = match config.answer_end {
            AnswerEnd::EachPacket => config.requests_under_way_max.clamp(1, REQUESTS_IN_FLIGHT_MAX),
            AnswerEnd::Announced => 1,
        };
        Self {
            config: RecoveryConfig { requests_under_way_max: requests_max, ..config },
            asked: Vec::with_capacity(usize::from(requests_max)),
            requested_through: Sequence(0),
            current_gap_first: Sequence(0),
            current_gap_next: Sequence(0),
            current_gap_due: MonoNs(0),
            given_up_at: MonoNs(0),
            session_messages: 0,
            statistics: RecoveryStatistics::default(),
        }
    }

    /// The same machine under other limits; what of the session's limit was used up is forgotten.
    #[must_use]
    pub(crate) fn with_limits(self, limits: RecoveryConfig) -> Self {
        // As many may be under way as there is room for.
        let requests_under_way_max = self.config.requests_under_way_max.min(limits.requests_under_way_max);
        Self { config: RecoveryConfig { requests_under_way_max, ..limits }, session_messages: 0, ..self }
    }

    /// Forgets what it was about; the session's limit begins anew.
    pub(super) fn begin_session(&mut self) {
        self.asked.clear();
        (self.requested_through, self.current_gap_first, self.current_gap_next) =
            (Sequence(0), Sequence(0), Sequence(0));
        self.session_messages = 0;
    }

    /// Whether anything is being asked for.
    #[must_use]
    pub(super) fn is_active(&self) -> bool {
        !self.asked.is_empty()
    }

    /// When [`Self::on_deadline`] wants to be called.
    pub(crate) fn next_deadline(&self, holes: &Holes<'_>) -> Option<MonoNs> {
        let asked = self.asked.iter().map(|ask| ask.deadline).min();
        let next = self.next_planned(holes).map(|piece| piece.due);
        asked.into_iter().chain(next).min()
    }

    /// `[first, next)` came, as an `answer` to a request or on another line.
    #[inline]
    pub(crate) fn arrived(&mut self, first: Sequence, next: Sequence, answer: bool, holes: &Holes<'_>, now: MonoNs) {
        // As nearly always: nothing is asked for, and no piece of a hole is left.
        if self.asked.is_empty() && self.requested_through >= self.current_gap_next {
            return;
        }
        self.requested_through = holes.first_missing_from(self.requested_through);
        let mut index = 0;
        while let Some(ask) = self.asked.get(index) {
            let Request { of, first: asked_first, next: asked_next } = ask.request;
            let is_touched = first < asked_next && asked_first < next;
            let is_end = answer && of == RequestTarget::Server && self.config.answer_end == AnswerEnd::EachPacket;
            let is_still_pending = !is_touched || self.continue_request(index, is_end, holes, now);
            index += usize::from(is_still_pending);
        }
        self.request_continuations(holes, now);
    }

    /// The end of a server's answer was announced. If it brought anything, the rest is asked for at once; if not, the
    /// deadline decides.
    pub(crate) fn answered(&mut self, holes: &Holes<'_>, now: MonoNs) {
        if self.config.answer_end == AnswerEnd::Announced
            && self.asked.first().is_some_and(|ask| ask.request.of == RequestTarget::Server)
        {
            self.continue_request(0, true, holes, now);
        }
        self.request_continuations(holes, now);
    }

    /// The peer has sent all that it has of what it was asked for from `asked` on, or can't be asked. If it brought
    /// anything, it is asked for the rest; if not, the server is next.
    ///
    /// The answer to an earlier question, late or given a second time, says nothing of what is asked now.
    pub(crate) fn peer_answer_ended(&mut self, asked: Sequence, holes: &Holes<'_>, now: MonoNs) {
        let is_issued = |ask: &Ask| ask.request.of == RequestTarget::Peer && ask.request.first == asked;
        let Some(index) = self.asked.iter().position(is_issued) else { return };
        if self.continue_request(index, true, holes, now)
            && let Some(ask) = self.asked.get_mut(index).filter(|ask| ask.request.first == asked)
        {
            (ask.attempt, ask.deadline) = (self.config.peer_attempts_max, now);
        }
        self.request_continuations(holes, now);
    }

    /// Time has passed.
    pub(crate) fn on_deadline(&mut self, holes: &Holes<'_>, now: MonoNs) {
        let mut index = 0;
        while let Some(ask) = self.asked.get(index).copied() {
            let is_still_pending = ask.deadline > now || self.retry(index, &ask, holes, now);
            index += usize::from(is_still_pending);
        }
        while let Some(piece) = self.next_planned(holes).filter(|piece| piece.due <= now) {
            self.begin(&piece, now);
        }
    }

    /// Everything before `expected` has been delivered or declared.
    pub(crate) fn forget_before(&mut self, expected: Sequence) {
        self.asked.retain(|ask| ask.request.next > expected);
        self.requested_through = self.requested_through.max(expected);
    }

    /// What of the first gap nobody is left to be asked for. Nothing, while it is being asked for or its time is not up.
    pub(crate) fn given_up(&self, gap: Gap) -> Option<Gap> {
        if gap.first() >= self.requested_through {
            return None;
        }
        match self.asked.iter().find(|ask| ask.request.next > gap.first()) {
            Some(ask) if ask.request.first <= gap.first() => None,
            Some(ask) => Some(gap.before(ask.request.first)),
            None => Some(gap),
        }
    }

    /// When something was given up last.
    pub(crate) fn given_up_at(&self) -> MonoNs {
        self.given_up_at
    }

    /// A request that is to be sent now.
    pub(super) fn poll_request(&mut self) -> Option<Request> {
        let ask = self.asked.iter_mut().find(|ask| ask.is_unsent)?;
        ask.is_unsent = false;
        Some(ask.request)
    }

    /// Figures so far.
    #[must_use]
    pub(super) fn statistics(&self) -> &RecoveryStatistics {
        &self.statistics
    }

    /// Part of what was asked for may have come, and `is_end` of the answer with it. False when nothing of it is asked for any
    /// more.
    fn continue_request(&mut self, index: usize, is_end: bool, holes: &Holes<'_>, now: MonoNs) -> bool {
        let Some(Ask { request, .. }) = self.asked.get(index).copied() else { return false };
        let is_still_pending = match holes.first_gap_in(request.first, request.next) {
            None => false,
            Some(rest) if is_end && rest.first() > request.first => {
                return self.reissue_or_give_up(index, Request { first: rest.first(), ..request }, 1, now);
            }
            Some(_) => true,
        };
        if !is_still_pending {
            self.asked.remove(index);
        }
        is_still_pending
    }

    /// The time for an answer is up. False when nothing of it is asked for any more.
    fn retry(&mut self, index: usize, ask: &Ask, holes: &Holes<'_>, now: MonoNs) -> bool {
        let Some(rest) = holes.first_gap_in(ask.request.first, ask.request.next) else {
            self.asked.remove(index);
            return false;
        };
        if !holes.has_space() && !holes.is_first(rest.first()) {
            // An answer would be refused, or may have been.
            return self.defer_until_room(index, now);
        }
        // Part of it came: a new position, a new count of attempts.
        let attempt = if rest.first() > ask.request.first { 1 } else { ask.attempt.saturating_add(1) };
        if attempt > self.attempts_max() {
            self.statistics.given_up += 1;
            self.given_up_at = now;
            if let Some(behind) = holes.first_gap_in(rest.next(), ask.request.next) {
                // Something behind it has come, so somebody answers: what else is missing there has its own attempts.
                return self.reissue_or_give_up(index, Request { first: behind.first(), ..ask.request }, 1, now);
            }
            self.asked.remove(index);
            // Who doesn't answer won't for the other pieces of a large hole either.
            if ask.request.first >= self.current_gap_first && rest.next() >= ask.request.next {
                self.requested_through = self.requested_through.max(self.current_gap_next);
            }
            return false;
        }
        let is_issued = self.reissue_or_give_up(index, Request { first: rest.first(), ..ask.request }, attempt, now);
        self.statistics.retries += u64::from(is_issued);
        is_issued
    }

    fn reissue_or_give_up(&mut self, index: usize, request: Request, attempt: u16, now: MonoNs) -> bool {
        let is_issued = self.ask(index, request, attempt, now);
        if !is_issued {
            self.statistics.over_limit += 1;
            self.given_up_at = now;
            self.asked.remove(index);
        }
        is_issued
    }

    fn defer_until_room(&mut self, index: usize, now: MonoNs) -> bool {
        if let Some(ask) = self.asked.get_mut(index) {
            ask.deadline = now.plus(self.config.request_timeout_ns.max(1));
        }
        true
    }

    /// What is to be asked for next, and when. Nothing where everything is, or there is no room.
    fn next_planned(&self, holes: &Holes<'_>) -> Option<PlannedRequest> {
        let is_full = self.asked.len() >= usize::from(self.config.requests_under_way_max);
        if is_full || !self.asked.is_empty() && !holes.has_space() {
            return None;
        }
        let hole = holes.from(self.requested_through)?;
        let (first, is_continuation) = (hole.gap.first(), hole.gap.first() < self.current_gap_next);
        let bound = if is_continuation { hole.gap.next().min(self.current_gap_next) } else { hole.gap.next() };
        let piece = Gap::new(first, first.plus(self.config.messages_per_request_max.max(1)).min(bound))?;
        let peer_requests_in_flight = self.asked.iter().filter(|ask| ask.request.of == RequestTarget::Peer);
        let under_way: u64 = peer_requests_in_flight.map(|ask| ask.request.next.0 - ask.request.first.0).sum();
        let messages_max = self.config.messages_per_request_max;
        let exceeds_peer_limit = self.config.peer_attempts_max > 0
            && under_way > 0
            && under_way.saturating_add(piece.count()) > messages_max;
        let due = if is_continuation { self.current_gap_due } else { hole.due };
        (!exceeds_peer_limit).then_some(PlannedRequest { hole: hole.gap, piece, due, is_continuation })
    }

    /// Another piece of a hole that is being asked for doesn't wait for the deadline.
    fn request_continuations(&mut self, holes: &Holes<'_>, now: MonoNs) {
        while let Some(piece) = self.next_planned(holes).filter(|piece| piece.is_continuation) {
            self.begin(&piece, now);
        }
    }

    /// Asks for a piece, or gives up the hole that it is of.
    fn begin(&mut self, next: &PlannedRequest, now: MonoNs) {
        if !next.is_continuation {
            (self.current_gap_first, self.current_gap_next, self.current_gap_due) =
                (next.hole.first(), next.hole.next(), now);
        }
        let request = Request { of: RequestTarget::Server, first: next.piece.first(), next: next.piece.next() };
        let is_small = next.is_continuation || next.hole.count() <= self.config.gap_messages_max;
        if is_small && self.ask(self.asked.len(), request, 1, now) {
            self.requested_through = next.piece.next();
        } else {
            self.statistics.over_limit += 1;
            self.given_up_at = now;
            self.requested_through = next.hole.next();
        }
    }

    fn attempts_max(&self) -> u16 {
        self.config.peer_attempts_max.saturating_add(self.config.attempts_max).max(1)
    }

    /// Asks whose turn it is, in that place. False when the session's limit is used up.
    fn ask(&mut self, index: usize, request: Request, attempt: u16, now: MonoNs) -> bool {
        let session_messages = self.session_messages.saturating_add(request.next.0 - request.first.0);
        if session_messages > self.config.session_messages_max {
            return false;
        }
        self.session_messages = session_messages;
        let of = if attempt <= self.config.peer_attempts_max { RequestTarget::Peer } else { RequestTarget::Server };
        let timeout_ns = match of {
            RequestTarget::Peer => self.config.peer_timeout_ns,
            RequestTarget::Server => self.config.request_timeout_ns,
        };
        let ask = Ask { request: Request { of, ..request }, attempt, deadline: now.plus(timeout_ns), is_unsent: true };
        match self.asked.get_mut(index) {
            Some(known) => *known = ask,
            // Within the capacity that `new` took: `next_planned` has looked.
            None => self.asked.push(ask),
        }
        self.statistics.requests += 1;
        self.statistics.peer_requests += u64::from(of == RequestTarget::Peer);
        self.statistics.in_flight_max = self.statistics.in_flight_max.max(self.asked.len());
        true
    }
}
