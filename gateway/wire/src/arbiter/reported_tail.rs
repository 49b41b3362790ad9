//! Messages that the other gateway of the pair has reported to have, and that no packet has announced here.
//!
//! ```text
//! nothing ──a report beyond the frontier──▶ waiting ──nothing arrived for gap_timeout_ns──▶ requested ──all delivered──▶ nothing
//!    ▲                                        │                                               │
//!    ├────────a message arrived───────────────┘                                               │
//!    └────────paused ◀── no source answers: counted ──────────────────────────────────────────┘
//! ```
//! A later packet shows what is missing. A gateway to which no later packet comes learns it from the peer alone.
//!
//! A report is no proof: the peer may have followed a false sequence. So a report only leads to requests, which the venue or its
//! datagrams at the peer answer. It makes no gap, and changes neither the channel's state nor its frontier.

use crate::{
    arbiter::{Gap, PendingGaps, RecoveryConfig, Request, recovery::Recovery},
    identity::Sequence,
    time::MonoNs,
};

/// The messages between the expected sequence and the reported one, and the requests for them.
#[derive(Debug)]
pub(super) struct ReportedTail {
    /// First sequence after the reported ones; 0: nothing is reported.
    next: Sequence,
    /// Expected sequence at the report. It is still the same at the end of the wait if nothing has arrived.
    expected: Sequence,
    /// When the wait began.
    since: MonoNs,
    /// Requests for this tail alone, apart from those for gaps: what a report claims must not be declared.
    recovery: Recovery,
    pause: Pause,
    given_up: u64,
}

/// No report counts until the pause after a request without any answer is over.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    /// Expected sequence then.
    expected: Sequence,
    length_ns: u64,
    until: MonoNs,
}

impl Pause {
    /// The pause after another failure: twice as long if nothing has arrived since the last one.
    fn after_failure(self, expected: Sequence, now: MonoNs) -> Self {
        let doubled = if self.expected == expected { self.length_ns.saturating_mul(2) } else { 0 };
        let length_ns = doubled.clamp(PAUSE_NS_MIN, PAUSE_NS_MAX);
        Self { expected, length_ns, until: now.plus(length_ns) }
    }
}

impl ReportedTail {
    /// Nothing is reported. `limits`: of the requests. Allocates all memory.
    pub(super) fn new(limits: RecoveryConfig) -> Self {
        Self {
            next: Sequence(0),
            expected: Sequence(0),
            since: MonoNs(0),
            recovery: Recovery::new(limits),
            pause: Pause::default(),
            given_up: 0,
        }
    }

    pub(super) fn begin_session(&mut self) {
        self.next = Sequence(0);
        self.recovery.begin_session();
        self.pause = Pause::default();
    }

    pub(super) fn forget(&mut self) {
        self.next = Sequence(0);
        self.recovery.clear_requests();
    }

    /// The peer has every message before `next`, and this gateway expects `expected`, which is less.
    pub(super) fn report(&mut self, next: Sequence, expected: Sequence, now: MonoNs) {
        if self.is_missing_from(expected) {
            self.next = self.next.max(next);
        } else if now >= self.pause.until {
            self.recovery.clear_requests();
            (self.next, self.expected, self.since) = (next, expected, now);
        }
    }

    /// Whether messages from `expected` on are reported.
    #[inline]
    pub(super) fn is_missing_from(&self, expected: Sequence) -> bool {
        expected < self.next
    }

    /// End of the tail, and since when it is known: see [`PendingGaps::new`].
    pub(super) fn bounds(&self) -> (Sequence, MonoNs) {
        (self.next, self.since)
    }

    pub(super) fn next_deadline(&self, gaps: &PendingGaps<'_>) -> Option<MonoNs> {
        self.recovery.next_deadline(gaps)
    }

    /// A part of an answer of the venue or the peer was delivered.
    pub(super) fn on_answer(&mut self, first: Sequence, next: Sequence, gaps: &PendingGaps<'_>, now: MonoNs) {
        self.recovery.on_arrival(first, next, true, gaps, now);
    }

    pub(super) fn peer_answer_ended(&mut self, first: Sequence, gaps: &PendingGaps<'_>, now: MonoNs) {
        self.recovery.peer_answer_ended(first, gaps, now);
    }

    /// Processes an expired deadline: the wait is over, or an answer is overdue.
    pub(super) fn on_deadline(&mut self, gaps: &PendingGaps<'_>, now: MonoNs) {
        let Some(missing) = gaps.from(Sequence(0)).map(|pending| pending.gap) else { return self.forget() };
        if !self.recovery.has_requested() && missing.first() != self.expected {
            // Packets arrive: a later one shows whether any is missing.
            return self.forget();
        }
        self.recovery.on_deadline(gaps, now);
        if self.recovery.given_up(missing).is_some() {
            self.give_up(missing, now);
        }
    }

    pub(super) fn poll_request(&mut self) -> Option<Request> {
        self.recovery.poll_request()
    }

    /// How often no source had what was reported.
    pub(super) fn given_up_count(&self) -> u64 {
        self.given_up
    }

    fn give_up(&mut self, missing: Gap, now: MonoNs) {
        self.given_up += 1;
        self.pause = self.pause.after_failure(missing.first(), now);
        self.forget();
    }
}

/// Shortest and longest pause after requests without any answer, ns.
const PAUSE_NS_MIN: u64 = 1_000_000_000;
const PAUSE_NS_MAX: u64 = 64_000_000_000;
