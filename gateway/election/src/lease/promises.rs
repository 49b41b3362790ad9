//! Without the store: the promises of all other candidates extend a leadership, and a candidate keeps its own promise.

use std::collections::BTreeSet;

use mdgw_wire::time::MonoNs;

use super::{Lease, OnSuspended, Phase};
use crate::{
    core::{Notice, Output},
    identity::NodeId,
    peer::{LeaderRequest, PeerMessage},
    timing::{LEASE_NS_MAX, drift_ns},
};

/// A promise of this gateway not to take over for a while.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GivenPromise {
    pub(super) request: LeaderRequest,
    pub(super) until: MonoNs,
}

/// A promise request that some candidates have not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingPromises {
    request: LeaderRequest,
    sent: MonoNs,
    missing: BTreeSet<NodeId>,
}

impl Lease {
    // ---- the leader asks ----

    /// While the store is in doubt, asks all other candidates once per renewal period.
    pub(super) fn step_promises(&mut self, now: MonoNs) {
        let may_ask = self.in_doubt_since.is_some()
            && self.config.on_suspended == OnSuspended::Hold
            && self.local_obstacle().is_none();
        let Phase::Leading(leadership) = &self.phase else { return };
        // The previous leader's last record may name candidates that this gateway does not know yet.
        if !may_ask || leadership.predecessor.is_some() || now < leadership.promise_request_at {
            return;
        }
        let mut others: BTreeSet<NodeId> = leadership.candidates.keys().copied().collect();
        // A candidate that only a swap of unknown outcome names may be eligible as well.
        others.extend(self.pending.possible_candidates.keys());
        others.extend(self.pending.attempts.iter().flat_map(|attempt| attempt.record.candidates.keys()));
        others.remove(&self.node());
        if !self.safeguards.asks_every_candidate {
            others.pop_last();
        }
        let nonce = self.next_number();
        let Some(request) = self.request(nonce) else { return };
        for other in &others {
            self.emit(Output::Peer { to: *other, message: PeerMessage::PromiseRequest(request) });
        }
        let promise_request_at = now.plus(self.config.timing.renew_ns);
        let Phase::Leading(leadership) = &mut self.phase else { return };
        leadership.promise_request_at = promise_request_at;
        if leadership.promise_requests.len() == PROMISE_REQUESTS_MAX {
            leadership.promise_requests.remove(0);
        }
        leadership.promise_requests.push(PendingPromises { request, sent: now, missing: others });
        self.count_promises();
    }

    pub(super) fn on_promise(&mut self, from: NodeId, request: LeaderRequest) {
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if let Some(open) = leadership.promise_requests.iter_mut().find(|open| open.request == request) {
            open.missing.remove(&from);
            self.count_promises();
        }
    }

    /// The newest request that all candidates have answered counts as a renewal sent at the time of the request.
    fn count_promises(&mut self) {
        let timing = self.config.timing;
        let Phase::Leading(leadership) = &mut self.phase else { return };
        let Some(index) = leadership.promise_requests.iter().rposition(|open| open.missing.is_empty()) else { return };
        let deadline = timing.deadline(leadership.promise_requests[index].sent);
        leadership.promise_requests.drain(..=index);
        if deadline <= leadership.deadline {
            return;
        }
        leadership.deadline = deadline;
        let is_news = !std::mem::replace(&mut leadership.runs_on_promises, true);
        self.emit(Output::Renew { deadline });
        if is_news {
            self.emit(Output::Notice(Notice::RunsOnPromises));
        }
    }

    // ---- a candidate answers ----

    pub(super) fn on_promise_request(&mut self, now: MonoNs, from: NodeId, request: LeaderRequest) {
        if from != request.requester {
            return;
        }
        let message = if self.can_promise(now, &request) {
            let wait_ns = self.config.timing.wait_for_ns(request.lease_ns);
            // The longer wait on a clock that runs too fast keeps the promise for its full length.
            let wait_ns = wait_ns.saturating_add(drift_ns(wait_ns, self.clock_rate.error_ppm()));
            let before = self.given_promise.as_ref().map_or(now, |given_promise| given_promise.until);
            self.given_promise = Some(GivenPromise { request, until: now.plus(wait_ns).max(before) });
            PeerMessage::Promise(request)
        } else {
            PeerMessage::PromiseRefused(request)
        };
        self.emit(Output::Peer { to: from, message });
    }

    fn can_promise(&self, now: MonoNs, request: &LeaderRequest) -> bool {
        let is_idle = self.pending.attempts.is_empty() || !self.safeguards.promises_only_without_swap;
        let is_superseded = self.known_record.highest_epoch() > request.epoch;
        let is_over = self.has_announced_end(request.leadership_id());
        let is_dead = is_over || self.deaths.iter().any(|notice| request.concerns(notice));
        let is_given = self
            .given_promise
            .as_ref()
            .is_some_and(|given_promise| now < given_promise.until && given_promise.request.epoch > request.epoch);
        is_idle
            && !is_superseded
            && !is_dead
            && !is_given
            && matches!(self.phase, Phase::Candidate)
            && request.lease_ns <= LEASE_NS_MAX
    }

    /// The leader that holds the promise has released its record: its leadership is over.
    pub(super) fn drop_promise_of_released_record(&mut self) {
        let Some(record) = self.known_record.record() else { return };
        let released = record.holder.is_none().then_some(record.epoch);
        self.given_promise.take_if(|given_promise| Some(given_promise.request.epoch) == released);
    }
}

/// Number of promise requests kept: those of one lease.
const PROMISE_REQUESTS_MAX: usize = 4;
