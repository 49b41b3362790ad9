//! Asking a retransmission server for a gap: what to ask, when to ask again, when to give up. No sockets.
//!
//! ```text
//! idle ──begin──▶ asked ──timeout, attempts left──▶ asked
//!   ▲               │ ├──answer brought some──▶ asked for the rest, attempts anew
//!   └──gap closed───┘ └──timeout, none left──▶ given up: the arbiter declares the gap
//! ```

use crate::{arbiter::Gap, identity::Sequence, time::MonoNs};

/// Limits of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// How long an answer may take, ns.
    pub request_timeout_ns: u64,
    /// How often the same position is asked for before it is given up; at least 1.
    pub attempts_max: u16,
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

/// Ask for `[first, next)`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
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

    /// Time has passed. `gap` is what is missing now.
    pub fn on_deadline(&mut self, gap: Gap, now: MonoNs) -> Verdict {
        let Some(active) = self.active.filter(|active| active.deadline <= now) else { return Verdict::Wait };
        // Part of it came: a new position, a new count of attempts.
        let attempt = if gap.first() > active.request.first { 1 } else { active.attempt + 1 };
        if attempt > self.config.attempts_max.max(1) {
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
        self.config.answer_end
    }

    /// False when the session's limit is used up.
    fn ask(&mut self, gap: Gap, attempt: u16, now: MonoNs) -> bool {
        let next = gap.first().plus(self.config.messages_per_request_max.max(1)).min(gap.next());
        let request = Request { first: gap.first(), next };
        let session_messages = self.session_messages.saturating_add(next.0 - gap.first().0);
        if session_messages > self.config.session_messages_max {
            return false;
        }
        self.session_messages = session_messages;
        self.statistics.requests += 1;
        self.due = Some(request);
        let deadline = now.plus(self.config.request_timeout_ns);
        self.active = Some(Active { gap_next: gap.next(), request, attempt, deadline });
        true
    }

    /// Lets the deadline pass now, with no attempt left.
    fn expire(&mut self, now: MonoNs) {
        if let Some(active) = &mut self.active {
            active.deadline = now;
            active.attempt = self.config.attempts_max;
        }
    }
}
