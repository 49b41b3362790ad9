//! Asking for a gap, first the other gateway of the pair, then the venue's retransmission server: whom to ask for what, when
//! to ask again, when to give up. No sockets.
//!
//! ```text
//! idle ──begin──▶ peer asked ──timeout, or it has no more──▶ server asked ──timeout, attempts left──▶ asked again
//!   ▲               │ ├──answer brought some──▶ asked for the rest, attempts anew                        │
//!   └──gap closed───┘                                         given up: the arbiter declares the gap ◀───┘
//! ```
//! Where there is no peer or no server, the other one is asked alone.

use crate::{arbiter::Gap, identity::Sequence, time::MonoNs};

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
    /// Most messages in one request.
    pub messages_per_request_max: u64,
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
            gap_messages_max: 1_000_000,
            session_messages_max: 100_000_000,
            answer_end: AnswerEnd::EachPacket,
        }
    }
}

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
pub enum Asked {
    /// The other gateway of the pair.
    Peer,
    /// The venue's retransmission server.
    Server,
}

/// Ask for `[first, next)`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whom.
    pub of: Asked,
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
    /// Gaps given up after the last attempt.
    pub given_up: u64,
    /// Gaps not asked for because of their size or the session's limit.
    pub over_limit: u64,
}

/// The machine. One gap at a time: the one that holds up delivery.
#[derive(Debug)]
pub struct Recovery {
    config: RecoveryConfig,
    active: Option<Active>,
    due: Option<Request>,
    session_messages: u64,
    statistics: RecoveryStatistics,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    gap_next: Sequence,
    request: Request,
    attempt: u16,
    deadline: MonoNs,
}

/// What a deadline came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Still waiting for an answer.
    Wait,
    /// Nobody has it: declare the gap.
    GiveUp,
}

impl Recovery {
    /// Idle.
    #[must_use]
    pub fn new(config: RecoveryConfig) -> Self {
        Self { config, active: None, due: None, session_messages: 0, statistics: RecoveryStatistics::default() }
    }

    /// Forgets what it was about; the session's limit begins anew.
    pub fn begin_session(&mut self) {
        self.stop();
        self.session_messages = 0;
    }

    /// Begins with a gap. False when the gap is beyond the limits and not asked for.
    pub fn begin(&mut self, gap: Gap, now: MonoNs) -> bool {
        if gap.count() > self.config.gap_messages_max || !self.ask(gap, 1, now) {
            self.statistics.over_limit += 1;
            return false;
        }
        true
    }

    /// Nothing more to ask for.
    pub fn stop(&mut self) {
        self.active = None;
        self.due = None;
    }

    /// Whether a gap is being asked for.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// When [`Self::on_deadline`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        self.active.map(|active| active.deadline)
    }

    /// Something arrived; `gap` is now the first gap. Stops when it is no longer the one that was asked for.
    pub fn gap_changed(&mut self, gap: Option<Gap>) {
        let Some(active) = self.active else { return };
        if gap.is_none_or(|gap| gap.first() >= active.gap_next) {
            self.stop();
        }
    }

    /// An answer has come to its end and `gap` is left. If it brought anything, the rest is asked for at once;
    /// if not, the deadline decides.
    pub fn answered(&mut self, gap: Gap, now: MonoNs) {
        let Some(active) = self.active else { return };
        if gap.first() > active.request.first && !self.ask(gap, 1, now) {
            self.expire(now);
        }
    }

    /// The peer has sent all that it has of what it was asked for from `asked` on, or can't be asked; `gap` is left. If it
    /// brought anything, it is asked for the rest; if not, the server is next.
    ///
    /// The answer to an earlier question, late or given a second time, says nothing of what is asked now.
    pub fn peer_answered(&mut self, asked: Sequence, gap: Gap, now: MonoNs) {
        let is_asked = |active: &&mut Active| active.request.of == Asked::Peer && active.request.first == asked;
        let Some(active) = self.active.as_mut().filter(is_asked) else { return };
        if gap.first() > active.request.first {
            if !self.ask(gap, 1, now) {
                self.expire(now);
            }
            return;
        }
        active.attempt = self.config.peer_attempts_max;
        active.deadline = now;
    }

    /// Time has passed. `gap` is what is missing now.
    pub fn on_deadline(&mut self, gap: Gap, now: MonoNs) -> Verdict {
        let Some(active) = self.active.filter(|active| active.deadline <= now) else { return Verdict::Wait };
        // Part of it came: a new position, a new count of attempts.
        let attempt = if gap.first() > active.request.first { 1 } else { active.attempt + 1 };
        if attempt > self.attempts_max() {
            self.statistics.given_up += 1;
            self.stop();
            return Verdict::GiveUp;
        }
        if !self.ask(gap, attempt, now) {
            self.statistics.over_limit += 1;
            self.stop();
            return Verdict::GiveUp;
        }
        self.statistics.retries += 1;
        Verdict::Wait
    }

    /// A request that is to be sent now.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.due.take()
    }

    /// Figures so far.
    #[must_use]
    pub fn statistics(&self) -> &RecoveryStatistics {
        &self.statistics
    }

    /// How the end of an answer is recognised.
    #[must_use]
    pub fn answer_end(&self) -> AnswerEnd {
        match self.active {
            // It says so itself: [`Self::peer_answered`].
            Some(Active { request: Request { of: Asked::Peer, .. }, .. }) => AnswerEnd::Announced,
            _ => self.config.answer_end,
        }
    }

    fn attempts_max(&self) -> u16 {
        self.config.peer_attempts_max.saturating_add(self.config.attempts_max).max(1)
    }

    /// False when the session's limit is used up.
    fn ask(&mut self, gap: Gap, attempt: u16, now: MonoNs) -> bool {
        let next = gap.first().plus(self.config.messages_per_request_max.max(1)).min(gap.next());
        let of = if attempt <= self.config.peer_attempts_max { Asked::Peer } else { Asked::Server };
        let request = Request { of, first: gap.first(), next };
        let session_messages = self.session_messages.saturating_add(next.0 - gap.first().0);
        if session_messages > self.config.session_messages_max {
            return false;
        }
        self.session_messages = session_messages;
        self.statistics.requests += 1;
        self.statistics.peer_requests += u64::from(of == Asked::Peer);
        self.due = Some(request);
        let timeout_ns = match of {
            Asked::Peer => self.config.peer_timeout_ns,
            Asked::Server => self.config.request_timeout_ns,
        };
        let deadline = now.plus(timeout_ns);
        self.active = Some(Active { gap_next: gap.next(), request, attempt, deadline });
        true
    }

    /// Lets the deadline pass now, with no attempt left.
    fn expire(&mut self, now: MonoNs) {
        if let Some(active) = &mut self.active {
            active.deadline = now;
            active.attempt = u16::MAX - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_000;

    fn gap(first: u64, next: u64) -> Gap {
        Gap::new(Sequence(first), Sequence(next)).unwrap()
    }

    fn recovery(peer_attempts_max: u16, attempts_max: u16) -> Recovery {
        Recovery::new(RecoveryConfig {
            request_timeout_ns: 10 * T,
            attempts_max,
            peer_timeout_ns: T,
            peer_attempts_max,
            ..RecoveryConfig::default()
        })
    }

    /// Whom it asks, at which time, until it gives up, when nobody answers.
    fn asked_in_vain(mut recovery: Recovery) -> Vec<(Asked, u64)> {
        let mut asked = Vec::new();
        assert!(recovery.begin(gap(5, 9), MonoNs(0)));
        let mut now = MonoNs(0);
        loop {
            if let Some(request) = recovery.poll_request() {
                assert_eq!((request.first, request.next), (Sequence(5), Sequence(9)));
                asked.push((request.of, now.0 / T));
            }
            let Some(deadline) = recovery.next_deadline() else { return asked };
            now = deadline;
            if recovery.on_deadline(gap(5, 9), now) == Verdict::GiveUp {
                return asked;
            }
        }
    }

    #[test]
    fn the_peer_is_asked_before_the_server_and_each_alone_where_the_other_is_not() {
        use Asked::{Peer, Server};
        assert_eq!(asked_in_vain(recovery(2, 2)), [(Peer, 0), (Peer, 1), (Server, 2), (Server, 12)]);
        assert_eq!(asked_in_vain(recovery(1, 0)), [(Peer, 0)]);
        assert_eq!(asked_in_vain(recovery(0, 2)), [(Server, 0), (Server, 10)]);
    }

    #[test]
    fn a_peer_that_has_none_of_it_is_not_waited_for() {
        let mut recovery = recovery(2, 1);
        recovery.begin(gap(5, 9), MonoNs(0));
        assert_eq!(recovery.poll_request().unwrap().of, Asked::Peer);
        recovery.peer_answered(Sequence(5), gap(5, 9), MonoNs(7));
        assert_eq!(recovery.next_deadline(), Some(MonoNs(7)));
        assert_eq!(recovery.on_deadline(gap(5, 9), MonoNs(7)), Verdict::Wait);
        assert_eq!(recovery.poll_request().unwrap().of, Asked::Server);
        // What it says now is about something else.
        recovery.peer_answered(Sequence(5), gap(5, 9), MonoNs(8));
        assert_eq!(recovery.next_deadline(), Some(MonoNs(7 + 10 * T)));
        assert_eq!(recovery.on_deadline(gap(5, 9), MonoNs(7 + 10 * T)), Verdict::GiveUp);
    }

    #[test]
    fn a_peer_that_has_some_of_it_is_asked_for_the_rest() {
        let mut recovery = recovery(1, 1);
        recovery.begin(gap(5, 9), MonoNs(0));
        assert!(recovery.poll_request().is_some());
        recovery.peer_answered(Sequence(5), gap(7, 9), MonoNs(1));
        let request = recovery.poll_request().unwrap();
        assert_eq!((request.of, request.first), (Asked::Peer, Sequence(7)));
        // The first question's answer once more: it had been asked twice.
        let deadline = recovery.next_deadline();
        recovery.peer_answered(Sequence(5), gap(7, 9), MonoNs(2));
        assert_eq!((recovery.next_deadline(), recovery.poll_request()), (deadline, None));
        recovery.gap_changed(None);
        assert!(!recovery.is_active());
    }
}
