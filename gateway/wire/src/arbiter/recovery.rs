//! Requests messages that no line has delivered, first from the other gateway of the pair, then from the venue's
//! retransmission server. Decides the target, the range, the repeats and when to give up. No sockets.
//!
//! ```text
//! gap ──wait over──▶ peer asked ──timeout, or no more data──▶ server asked ──timeout, attempts left──▶ asked again
//!   │                  │ ├──answer filled a part──▶ rest requested, attempts reset                         │
//!   └─────filled───────┘                            given up: the arbiter declares the gap ◀───────────────┘
//! ```
//! Without a peer or without a server, only the other one is asked.
//!
//! Gaps are requested in order, each when its own wait has ended, several at the same time. A slow or lost answer
//! therefore delays only its own gap. A large gap is requested in pieces.

use crate::{
    arbiter::{Gap, PendingGaps},
    identity::Sequence,
    time::MonoNs,
};

/// Limits of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Timeout for an answer of the server, ns.
    pub request_timeout_ns: u64,
    /// Requests to the server for the same position before giving up; 0: there is no server.
    pub attempts_max: u16,
    /// Timeout for an answer of the peer, ns.
    pub peer_timeout_ns: u64,
    /// Requests to the peer for the same position before the server is asked; 0: there is no peer.
    pub peer_attempts_max: u16,
    /// Most messages in one request. The limit also holds for all requests in flight to the peer together, since the
    /// peer sends all answers at once.
    pub messages_per_request_max: u64,
    /// Most requests in flight, 1 to [`REQUESTS_IN_FLIGHT_MAX`]. Must be 1 where the end of an answer is
    /// [announced](AnswerEnd::Announced), since an announcement does not identify its request.
    pub requests_in_flight_max: u16,
    /// Most messages in a gap that is requested. A larger gap is declared at once, since filling it would take too
    /// long.
    pub gap_messages_max: u64,
    /// Most messages requested in one session, repeats included, so that no fault causes a flood.
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
            // Each request is one small packet, and so is its answer.
            requests_in_flight_max: 16,
            gap_messages_max: 1_000_000,
            session_messages_max: 100_000_000,
            answer_end: AnswerEnd::EachPacket,
        }
    }
}

/// Upper limit of [`RecoveryConfig::requests_in_flight_max`].
pub const REQUESTS_IN_FLIGHT_MAX: u16 = 64;

/// How the end of an answer is recognised. The rest is then requested at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// Every packet on the recovery line is a complete answer (MoldUDP64).
    EachPacket,
    /// An announcement on the recovery line ends the answer (our retransmission service).
    Announced,
}

/// Target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// The other gateway of the pair.
    Peer,
    /// The venue's retransmission server.
    Server,
}

/// A request for `[first, next)`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where the request is to be sent.
    pub target: RequestTarget,
    /// First missing sequence.
    pub first: Sequence,
    /// First sequence after the missing range.
    pub next: Sequence,
}

/// Statistics of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatistics {
    /// Requests sent, repeats included.
    pub requests: u64,
    /// Requests given up after the last attempt.
    pub given_up: u64,
    /// Gaps, or their remainders, not requested because of their size or the session's limit.
    pub over_limit: u64,
    /// Most requests in flight at the same time.
    pub in_flight_max: usize,
}

/// The request state machine.
#[derive(Debug)]
pub(super) struct Recovery {
    config: RecoveryConfig,
    /// Requests in flight, ascending and disjoint; allocated once.
    in_flight: Vec<PendingRequest>,
    /// Every missing message before this sequence has been requested or given up.
    requested_through: Sequence,
    /// The gap of the latest request, if more pieces of it remain. Its wait ended at `current_gap_due`.
    current_gap_first: Sequence,
    current_gap_next: Sequence,
    current_gap_due: MonoNs,
    /// When a request was last given up.
    given_up_at: MonoNs,
    session_messages: u64,
    statistics: RecoveryStatistics,
}

/// One request in flight. Part of its range may have arrived.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    request: Request,
    attempt: u16,
    deadline: MonoNs,
    /// Not sent yet.
    is_unsent: bool,
}

/// The next request to make.
#[derive(Clone, Copy, Debug)]
struct PlannedRequest {
    gap: Gap,
    piece: Gap,
    due: MonoNs,
    /// An earlier piece of the same gap is in flight.
    is_continuation: bool,
}

impl Recovery {
    /// Idle state with all memory allocated.
    #[must_use]
    pub(super) fn new(config: RecoveryConfig) -> Self {
        let requests_max = match config.answer_end {
            AnswerEnd::EachPacket => config.requests_in_flight_max.clamp(1, REQUESTS_IN_FLIGHT_MAX),
            AnswerEnd::Announced => 1,
        };
        Self {
            config: RecoveryConfig { requests_in_flight_max: requests_max, ..config },
            in_flight: Vec::with_capacity(usize::from(requests_max)),
            requested_through: Sequence(0),
            current_gap_first: Sequence(0),
            current_gap_next: Sequence(0),
            current_gap_due: MonoNs(0),
            given_up_at: MonoNs(0),
            session_messages: 0,
            statistics: RecoveryStatistics::default(),
        }
    }

    /// The same state with other limits. The session's message count starts again at 0.
    #[must_use]
    pub(crate) fn with_limits(self, limits: RecoveryConfig) -> Self {
        // The new limit must not exceed the allocated room.
        let requests_in_flight_max = self.config.requests_in_flight_max.min(limits.requests_in_flight_max);
        Self { config: RecoveryConfig { requests_in_flight_max, ..limits }, session_messages: 0, ..self }
    }

    /// Clears all requests; the session's message count starts again at 0.
    pub(super) fn begin_session(&mut self) {
        self.clear_requests();
        self.session_messages = 0;
    }

    /// Clears all requests. What they asked for counts as never requested.
    pub(super) fn clear_requests(&mut self) {
        self.in_flight.clear();
        (self.requested_through, self.current_gap_first, self.current_gap_next) =
            (Sequence(0), Sequence(0), Sequence(0));
    }

    /// Whether anything was requested since the requests were cleared.
    pub(super) fn has_requested(&self) -> bool {
        self.is_active() || self.requested_through > Sequence(0)
    }

    /// Whether any request is in flight.
    #[must_use]
    pub(super) fn is_active(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// When [`Self::on_deadline`] must be called.
    pub(crate) fn next_deadline(&self, gaps: &PendingGaps<'_>) -> Option<MonoNs> {
        let answers = self.in_flight.iter().map(|pending| pending.deadline).min();
        let next = self.next_planned(gaps).map(|piece| piece.due);
        answers.into_iter().chain(next).min()
    }

    /// `[first, next)` arrived, as an `answer` to a request or on another line.
    #[inline]
    pub(crate) fn on_arrival(
        &mut self,
        first: Sequence,
        next: Sequence,
        is_answer: bool,
        gaps: &PendingGaps<'_>,
        now: MonoNs,
    ) {
        // The usual case: no request is in flight, and no piece of a gap remains.
        if self.in_flight.is_empty() && self.requested_through >= self.current_gap_next {
            return;
        }
        self.requested_through = gaps.first_missing_from(self.requested_through);
        let mut index = 0;
        while let Some(pending) = self.in_flight.get(index) {
            let Request { target, first: pending_first, next: pending_next } = pending.request;
            let is_touched = first < pending_next && pending_first < next;
            let is_end =
                is_answer && target == RequestTarget::Server && self.config.answer_end == AnswerEnd::EachPacket;
            let is_still_pending = !is_touched || self.continue_request(index, is_end, gaps, now);
            index += usize::from(is_still_pending);
        }
        self.request_continuations(gaps, now);
    }

    /// A server announced the end of its answer. If the answer brought any message, the rest is requested at once;
    /// otherwise the deadline decides.
    pub(crate) fn server_answer_ended(&mut self, gaps: &PendingGaps<'_>, now: MonoNs) {
        if self.config.answer_end == AnswerEnd::Announced
            && self.in_flight.first().is_some_and(|pending| pending.request.target == RequestTarget::Server)
        {
            self.continue_request(0, true, gaps, now);
        }
        self.request_continuations(gaps, now);
    }

    /// The peer's answer to the request that began at `first` has ended, or the peer cannot be reached. If it brought
    /// any message, the peer is asked for the rest; otherwise the server is next.
    ///
    /// A late or repeated answer to an earlier request has no effect on the current one.
    pub(crate) fn peer_answer_ended(&mut self, first: Sequence, gaps: &PendingGaps<'_>, now: MonoNs) {
        let is_issued =
            |pending: &PendingRequest| pending.request.target == RequestTarget::Peer && pending.request.first == first;
        let Some(index) = self.in_flight.iter().position(is_issued) else { return };
        if self.continue_request(index, true, gaps, now)
            && let Some(pending) = self.in_flight.get_mut(index).filter(|pending| pending.request.first == first)
        {
            (pending.attempt, pending.deadline) = (self.config.peer_attempts_max, now);
        }
        self.request_continuations(gaps, now);
    }

    /// Processes expired deadlines.
    pub(crate) fn on_deadline(&mut self, gaps: &PendingGaps<'_>, now: MonoNs) {
        let mut index = 0;
        while let Some(pending) = self.in_flight.get(index).copied() {
            let is_still_pending = pending.deadline > now || self.retry(index, &pending, gaps, now);
            index += usize::from(is_still_pending);
        }
        while let Some(piece) = self.next_planned(gaps).filter(|piece| piece.due <= now) {
            self.request_or_give_up(&piece, now);
        }
    }

    /// Drops requests for sequences before `expected`: all were delivered or declared.
    pub(crate) fn forget_before(&mut self, expected: Sequence) {
        self.in_flight.retain(|pending| pending.request.next > expected);
        self.requested_through = self.requested_through.max(expected);
    }

    /// The part of the first gap that no source is left to fill. `None` while it is requested or still waits.
    pub(crate) fn given_up(&self, gap: Gap) -> Option<Gap> {
        if gap.first() >= self.requested_through {
            return None;
        }
        match self.in_flight.iter().find(|pending| pending.request.next > gap.first()) {
            Some(pending) if pending.request.first <= gap.first() => None,
            Some(pending) => Some(gap.clipped_before(pending.request.first)),
            None => Some(gap),
        }
    }

    /// When a request was last given up.
    pub(crate) fn given_up_at(&self) -> MonoNs {
        self.given_up_at
    }

    /// Returns a request that is due to be sent.
    pub(super) fn poll_request(&mut self) -> Option<Request> {
        let pending = self.in_flight.iter_mut().find(|pending| pending.is_unsent)?;
        pending.is_unsent = false;
        Some(pending.request)
    }

    /// Statistics so far.
    #[must_use]
    pub(super) fn statistics(&self) -> &RecoveryStatistics {
        &self.statistics
    }

    /// Continues a request after an arrival; `is_end` says whether the answer ended. Returns `false` if nothing
    /// remains requested.
    fn continue_request(&mut self, index: usize, is_end: bool, gaps: &PendingGaps<'_>, now: MonoNs) -> bool {
        let Some(PendingRequest { request, .. }) = self.in_flight.get(index).copied() else { return false };
        let is_still_pending = match gaps.first_gap_in(request.first, request.next) {
            None => false,
            Some(rest) if is_end && rest.first() > request.first => {
                return self.reissue_or_give_up(index, Request { first: rest.first(), ..request }, 1, now);
            }
            Some(_) => true,
        };
        if !is_still_pending {
            self.in_flight.remove(index);
        }
        is_still_pending
    }

    /// Handles the timeout of a request. Returns `false` if nothing remains requested.
    fn retry(&mut self, index: usize, pending: &PendingRequest, gaps: &PendingGaps<'_>, now: MonoNs) -> bool {
        let Some(rest) = gaps.first_gap_in(pending.request.first, pending.request.next) else {
            self.in_flight.remove(index);
            return false;
        };
        if !gaps.has_space() && !gaps.is_front(rest.first()) {
            // An answer would be rejected, or was rejected.
            return self.defer_until_room(index, now);
        }
        // A part has arrived: a new position with a new count of attempts.
        let attempt = if rest.first() > pending.request.first { 1 } else { pending.attempt.saturating_add(1) };
        if attempt > self.attempts_max() {
            self.statistics.given_up += 1;
            self.given_up_at = now;
            if let Some(behind) = gaps.first_gap_in(rest.next(), pending.request.next) {
                // A later message has arrived, so the source answers. Other missing parts have their own attempts.
                return self.reissue_or_give_up(index, Request { first: behind.first(), ..pending.request }, 1, now);
            }
            self.in_flight.remove(index);
            // A source that does not answer will not answer for the other pieces of a large gap either.
            if pending.request.first >= self.current_gap_first && rest.next() >= pending.request.next {
                self.requested_through = self.requested_through.max(self.current_gap_next);
            }
            return false;
        }
        self.reissue_or_give_up(index, Request { first: rest.first(), ..pending.request }, attempt, now)
    }

    fn reissue_or_give_up(&mut self, index: usize, request: Request, attempt: u16, now: MonoNs) -> bool {
        let is_issued = self.issue(index, request, attempt, now);
        if !is_issued {
            self.statistics.over_limit += 1;
            self.given_up_at = now;
            self.in_flight.remove(index);
        }
        is_issued
    }

    fn defer_until_room(&mut self, index: usize, now: MonoNs) -> bool {
        if let Some(pending) = self.in_flight.get_mut(index) {
            pending.deadline = now.plus(self.config.request_timeout_ns.max(1));
        }
        true
    }

    /// The next request to make, and when. `None` if all gaps are requested or there is no room.
    fn next_planned(&self, gaps: &PendingGaps<'_>) -> Option<PlannedRequest> {
        let is_full = self.in_flight.len() >= usize::from(self.config.requests_in_flight_max);
        if is_full || !self.in_flight.is_empty() && !gaps.has_space() {
            return None;
        }
        let gap = gaps.from(self.requested_through)?;
        let (first, is_continuation) = (gap.gap.first(), gap.gap.first() < self.current_gap_next);
        let bound = if is_continuation { gap.gap.next().min(self.current_gap_next) } else { gap.gap.next() };
        let piece = Gap::new(first, first.plus(self.config.messages_per_request_max.max(1)).min(bound))?;
        let peer_requests_in_flight =
            self.in_flight.iter().filter(|pending| pending.request.target == RequestTarget::Peer);
        let messages_in_flight: u64 =
            peer_requests_in_flight.map(|pending| pending.request.next.0 - pending.request.first.0).sum();
        let messages_max = self.config.messages_per_request_max;
        let exceeds_peer_limit = self.config.peer_attempts_max > 0
            && messages_in_flight > 0
            && messages_in_flight.saturating_add(piece.count()) > messages_max;
        let due = if is_continuation { self.current_gap_due } else { gap.due };
        (!exceeds_peer_limit).then_some(PlannedRequest { gap: gap.gap, piece, due, is_continuation })
    }

    /// Requests further pieces of a gap in flight without waiting for the deadline.
    fn request_continuations(&mut self, gaps: &PendingGaps<'_>, now: MonoNs) {
        while let Some(piece) = self.next_planned(gaps).filter(|piece| piece.is_continuation) {
            self.request_or_give_up(&piece, now);
        }
    }

    /// Requests a piece, or gives up its gap.
    fn request_or_give_up(&mut self, next: &PlannedRequest, now: MonoNs) {
        if !next.is_continuation {
            (self.current_gap_first, self.current_gap_next, self.current_gap_due) =
                (next.gap.first(), next.gap.next(), now);
        }
        let request = Request { target: RequestTarget::Server, first: next.piece.first(), next: next.piece.next() };
        let is_small = next.is_continuation || next.gap.count() <= self.config.gap_messages_max;
        if is_small && self.issue(self.in_flight.len(), request, 1, now) {
            self.requested_through = next.piece.next();
        } else {
            self.statistics.over_limit += 1;
            self.given_up_at = now;
            self.requested_through = next.gap.next();
        }
    }

    fn attempts_max(&self) -> u16 {
        self.config.peer_attempts_max.saturating_add(self.config.attempts_max).max(1)
    }

    /// Creates the request for this attempt, which determines its target, at this index of `in_flight`. Returns `false`
    /// if the session's limit is used up.
    fn issue(&mut self, index: usize, request: Request, attempt: u16, now: MonoNs) -> bool {
        let session_messages = self.session_messages.saturating_add(request.next.0 - request.first.0);
        if session_messages > self.config.session_messages_max {
            return false;
        }
        self.session_messages = session_messages;
        let target = if attempt <= self.config.peer_attempts_max { RequestTarget::Peer } else { RequestTarget::Server };
        let timeout_ns = match target {
            RequestTarget::Peer => self.config.peer_timeout_ns,
            RequestTarget::Server => self.config.request_timeout_ns,
        };
        let pending = PendingRequest {
            request: Request { target, ..request },
            attempt,
            deadline: now.plus(timeout_ns),
            is_unsent: true,
        };
        match self.in_flight.get_mut(index) {
            Some(known) => *known = pending,
            // Within the capacity allocated by `new`: `next_planned` has checked it.
            None => self.in_flight.push(pending),
        }
        self.statistics.requests += 1;
        self.statistics.in_flight_max = self.statistics.in_flight_max.max(self.in_flight.len());
        true
    }
}
