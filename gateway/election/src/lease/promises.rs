//! Without the store: the promises of all other candidates carry a leader on, and a candidate keeps its own.

use std::collections::BTreeSet;

use mdgw_feeds::time::MonoNs;

use super::{Lease, OnSuspended, Phase};
use crate::{
    core::{Notice, Output},
    identity::NodeId,
    peer::{PeerMessage, Question},
    timing::{LEASE_NS_MAX, drift_ns},
};

/// This gateway gave its word not to take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Promised {
    pub(super) question: Question,
    pub(super) until: MonoNs,
}

/// A question that some candidates have not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenQuestion {
    question: Question,
    sent: MonoNs,
    missing: BTreeSet<NodeId>,
}

impl Lease {
    // ---- the leader asks ----

    /// While the store is in doubt, asks all other candidates once per renewal period.
    pub(super) fn promises_turn(&mut self, now: MonoNs) {
        let may_ask = self.doubtful_from.is_some()
            && self.config.on_suspended == OnSuspended::Hold
            && self.own_obstacle().is_none();
        let Phase::Leading(leadership) = &self.phase else { return };
        // The last record of who led before may name candidates that are not known yet.
        if !may_ask || leadership.came_from.is_some() || now < leadership.ask_at {
            return;
        }
        let mut others: BTreeSet<NodeId> = leadership.named.keys().copied().collect();
        // Whoever a swap of unknown fate names may stand as well.
        others.extend(self.asked.maybe_named.keys());
        others.extend(self.asked.attempts.iter().flat_map(|attempt| attempt.record.candidates.keys()));
        others.remove(&self.node());
        if !self.safeguards.each_candidate_asked {
            others.pop_last();
        }
        let nonce = self.next_number();
        let Some(question) = self.question(nonce) else { return };
        for other in &others {
            self.say(Output::Peer { to: *other, message: PeerMessage::PromiseAsk(question) });
        }
        let ask_at = now.plus(self.config.timing.renew_ns);
        let Phase::Leading(leadership) = &mut self.phase else { return };
        leadership.ask_at = ask_at;
        if leadership.questions.len() == QUESTIONS_MAX {
            leadership.questions.remove(0);
        }
        leadership.questions.push(OpenQuestion { question, sent: now, missing: others });
        self.count_promises();
    }

    pub(super) fn on_promise(&mut self, from: NodeId, question: Question) {
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if let Some(open) = leadership.questions.iter_mut().find(|open| open.question == question) {
            open.missing.remove(&from);
            self.count_promises();
        }
    }

    /// The newest question that all have answered is as good as a renewal sent when it was asked.
    fn count_promises(&mut self) {
        let timing = self.config.timing;
        let Phase::Leading(leadership) = &mut self.phase else { return };
        let Some(index) = leadership.questions.iter().rposition(|open| open.missing.is_empty()) else { return };
        let deadline = timing.deadline(leadership.questions[index].sent);
        leadership.questions.drain(..=index);
        if deadline <= leadership.deadline {
            return;
        }
        leadership.deadline = deadline;
        let is_news = !std::mem::replace(&mut leadership.is_on_promises, true);
        self.say(Output::Renew { deadline });
        if is_news {
            self.say(Output::Notice(Notice::OnPromises));
        }
    }

    // ---- a candidate answers ----

    pub(super) fn on_promise_ask(&mut self, now: MonoNs, from: NodeId, question: Question) {
        if from != question.asker {
            return;
        }
        let message = if self.can_promise(now, &question) {
            let wait_ns = self.config.timing.wait_for_ns(question.lease_ns);
            // On a clock that runs too fast, so much longer.
            let wait_ns = wait_ns.saturating_add(drift_ns(wait_ns, self.clock_error_ppm));
            let before = self.promised.as_ref().map_or(now, |promised| promised.until);
            self.promised = Some(Promised { question, until: now.plus(wait_ns).max(before) });
            PeerMessage::Promise(question)
        } else {
            PeerMessage::PromiseRefused(question)
        };
        self.say(Output::Peer { to: from, message });
    }

    fn can_promise(&self, now: MonoNs, question: &Question) -> bool {
        let is_settled = self.asked.attempts.is_empty() || !self.safeguards.no_swap_outstanding;
        let is_superseded = self.knowledge.highest_epoch() > question.epoch;
        let is_over = self.has_said_its_end(question.leadership());
        let is_dead = is_over || self.deaths.iter().any(|notice| question.is_of(notice));
        let is_given = self
            .promised
            .as_ref()
            .is_some_and(|promised| now < promised.until && promised.question.epoch > question.epoch);
        is_settled
            && !is_superseded
            && !is_dead
            && !is_given
            && matches!(self.phase, Phase::Candidate)
            && question.lease_ns <= LEASE_NS_MAX
    }

    /// The leader that was promised to has released its record: it leads no more.
    pub(super) fn promised_leadership_may_be_over(&mut self) {
        let Some(record) = self.knowledge.record() else { return };
        let released = record.holder.is_none().then_some(record.epoch);
        self.promised.take_if(|promised| Some(promised.question.epoch) == released);
    }
}

/// Questions open at a time: those of one lease.
const QUESTIONS_MAX: usize = 4;
