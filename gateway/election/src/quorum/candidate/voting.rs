//! Polling, voting, renewing and stopping.

use super::{phase::promised_until, *};
use crate::{
    auto_move::TenureSoFar,
    identity::DeathNotice,
    quorum::{message::ActivePromise, voter::EndCause},
};

impl Candidate {
    pub(super) fn on_time(&mut self, now: MonoNs, outputs: &mut Outputs) {
        if self.outstanding_sends.outlast_lease(now) {
            self.outstanding_sends.end();
        }
        match &mut self.phase {
            Phase::Closed => {}
            // The lease has ended first: there is nothing to release any more.
            Phase::Releasing { .. } if !self.outstanding_sends.may_exist() => self.phase = Phase::Closed,
            Phase::Releasing { .. } => {}
            Phase::Waiting => {
                if self.obstacle_at(now).is_none() && now >= self.polls_at() {
                    self.poll(now, outputs);
                } else if now >= self.probe_at {
                    self.probe_voters(now, outputs);
                }
            }
            Phase::Polling(poll) => {
                if now >= poll.resend_at {
                    self.phase = Phase::Waiting;
                    self.retry_at = now;
                }
            }
            Phase::Voting(vote_round) => {
                if now >= vote_round.until {
                    self.abandon_vote(now, outputs);
                } else if now >= vote_round.resend_at {
                    self.ask_for_votes(now, outputs);
                }
            }
            Phase::Leading(_) => self.step_leading(now, outputs),
            Phase::Transferring(_) => self.step_transfer(now, outputs),
        }
    }

    /// When this gateway may poll next. Not while sends are outstanding: an abandoned vote releases the voters.
    pub(super) fn polls_at(&self) -> MonoNs {
        let sends_end_at = self.outstanding_sends.lease_ends_at().unwrap_or_default();
        self.eligible_from().max(self.retry_at).plus(self.yield_ns).max(sends_end_at)
    }

    /// When this gateway may become a candidate: its own voter has waited after its start, and has no running promise
    /// to another gateway.
    pub(super) fn eligible_from(&self) -> MonoNs {
        let startup_wait_until = self.voter.startup_wait_until(self.config.timing.lease_ns);
        let own = (self.node(), self.config.member.incarnation);
        let to_another = self.voter.promised().filter(|(epoch, start)| (NodeId::of(*epoch), *start) != own);
        let promise_until = to_another.and_then(|_| self.voter.promise_until()).unwrap_or_default();
        startup_wait_until.max(promise_until)
    }

    /// The obstacle that keeps this gateway from being eligible now and later; waiting does not remove it.
    pub(super) fn lasting_obstacle(&self) -> Option<Obstacle> {
        let of_clock = Obstacle::of_clock(self.clock_rate, self.config.timing.rate_error_ppm);
        if of_clock.is_some() {
            of_clock
        } else if let Some(stuck) = self.progress.obstacle() {
            Some(stuck)
        } else if self.eligibility == Eligibility::Joining {
            Some(Obstacle::Joining)
        } else if next_epoch(self.node(), [self.highest_known]).is_none() {
            Some(Obstacle::EpochsExhausted)
        } else {
            let ours = self.config.configuration;
            self.leader_config_mismatch().map(|expected| Obstacle::Configuration { expected, ours })
        }
    }

    pub(super) fn obstacle_at(&self, now: MonoNs) -> Option<Obstacle> {
        let is_in_startup_wait = now < self.voter.startup_wait_until(self.config.timing.lease_ns);
        self.lasting_obstacle().or_else(|| is_in_startup_wait.then_some(Obstacle::StartupWait))
    }

    /// Whether a leader may renew: its clock rate is within the limit and its threads make progress.
    pub(super) fn may_renew(&self) -> bool {
        !self.clock_rate.exceeds(self.config.timing.rate_error_ppm) && self.progress == Progress::Running
    }

    fn poll(&mut self, now: MonoNs, outputs: &mut Outputs) {
        if !self.safeguards.polls {
            return self.start_vote(now, outputs);
        }
        let resend_at = now.plus(self.config.timing.renew_ns);
        self.phase = Phase::Polling(PollRound { granted: [].into(), refused: [].into(), resend_at });
        // An answer to an earlier poll describes an old state.
        self.pending.retain(|_, sent| sent.kind != RequestKind::Poll);
        self.probe_voters(now, outputs);
    }

    /// Probes the voters even while there is a leader. So voters know how fit this gateway is, and this gateway knows
    /// which voters answer.
    fn probe_voters(&mut self, now: MonoNs, outputs: &mut Outputs) {
        self.probe_at = now.plus(self.config.timing.lease_ns / 2);
        for voter in self.voters() {
            self.send(now, voter, Operation::Poll, Some(RequestKind::Poll), outputs);
        }
    }

    pub(super) fn on_polled(&mut self, now: MonoNs, from: NodeId, reply: &Reply, outputs: &mut Outputs) {
        let majority = self.majority();
        let voter_count = self.config.voters.len();
        let renew_ns = self.config.timing.renew_ns;
        let active_promise = reply.promise.filter(|_| reply.verdict == Verdict::Refused(Refusal::PromisedToOther));
        let end_cause = active_promise
            .and_then(|active_promise| self.voter.end_cause(active_promise.epoch, active_promise.incarnation));
        if let (Some(active_promise), Some(EndCause::Died)) = (active_promise, end_cause) {
            // That voter has not received the death notice, so this gateway forwards it.
            let ActivePromise { epoch, incarnation, .. } = active_promise;
            let notice = DeathNotice { holder: NodeId::of(epoch), incarnation, epoch };
            self.send(now, from, Operation::Died(notice), None, outputs);
        }
        let Phase::Polling(poll) = &mut self.phase else { return };
        if reply.verdict == Verdict::Granted {
            poll.granted.insert(from);
        } else {
            poll.refused.insert(from);
            // The other voters may be silent for good. As soon as this voter is free, or may be, all voters are asked
            // again. After any other refusal the pause is longer.
            let remaining_ns = if end_cause.is_some() {
                0
            } else {
                active_promise.map_or(u64::MAX, |active_promise| active_promise.remaining_ns)
            };
            let resend_at = now.plus(remaining_ns.clamp((renew_ns / 8).min(RETRY_NS_MIN), renew_ns));
            poll.resend_at = poll.resend_at.min(resend_at);
        }
        if poll.granted.len() >= majority {
            self.start_vote(now, outputs);
        } else if poll.refused.len() > voter_count - majority {
            self.retry_at = poll.resend_at;
            self.phase = Phase::Waiting;
        }
    }

    fn start_vote(&mut self, now: MonoNs, outputs: &mut Outputs) {
        self.highest_known = self.highest_known.max(self.voter.highest_epoch());
        let Some(epoch) = next_epoch(self.node(), [self.highest_known]) else { return };
        self.highest_known = epoch;
        // A voter that is asked under the new epoch keeps nothing under the old one. If this candidacy is abandoned,
        // the voters' earlier promises are void.
        self.takeover = None;
        let until = now.plus(self.config.vote_ns_max);
        self.phase = Phase::Voting(VoteRound { epoch, promises: [].into(), refused: [].into(), resend_at: now, until });
        self.ask_for_votes(now, outputs);
    }

    fn ask_for_votes(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let resend_at = now.plus(self.config.timing.renew_ns);
        let Phase::Voting(vote_round) = &mut self.phase else { return };
        vote_round.resend_at = resend_at;
        let (epoch, refused) = (vote_round.epoch, vote_round.refused.clone());
        // Voters that have granted are asked again too: when a slow voter grants at last, the others' grants may be
        // old.
        for voter in self.voters().into_iter().filter(|voter| !refused.contains(voter)) {
            self.send(now, voter, Operation::Vote(epoch), Some(RequestKind::Vote(epoch)), outputs);
        }
    }

    /// A voter answered a vote or a renewal under `epoch` that was sent at `sent`.
    pub(super) fn on_promise(
        &mut self,
        now: MonoNs,
        from: NodeId,
        (epoch, sent): (Epoch, MonoNs),
        verdict: Verdict,
        outputs: &mut Outputs,
    ) {
        let (timing, majority) = (self.config.timing, self.majority());
        let voter_count = self.config.voters.len();
        match &mut self.phase {
            Phase::Voting(vote_round) if vote_round.epoch == epoch => {
                if verdict == Verdict::Granted {
                    keep_latest(&mut vote_round.promises, from, sent);
                    self.open_if_promised(now, outputs);
                } else {
                    vote_round.refused.insert(from);
                    // The other voters may be silent for good: poll again soon.
                    vote_round.until = vote_round.until.min(now.plus(timing.renew_ns));
                    if vote_round.refused.len() > voter_count - majority {
                        self.abandon_vote(now, outputs);
                    }
                }
            }
            Phase::Leading(lead) if lead.raise.as_ref().is_some_and(|raise| raise.epoch == epoch) => {
                self.on_raise_reply(now, from, sent, verdict, outputs);
            }
            Phase::Leading(lead) if lead.epoch == epoch && verdict == Verdict::Granted => {
                let before = lead.deadline(&timing, majority);
                // After the deadline nothing revives the leadership.
                if now < before {
                    keep_latest(&mut lead.promises, from, sent);
                    let deadline = lead.deadline(&timing, majority);
                    if deadline > before {
                        outputs.push(Output::Renew { deadline });
                    }
                }
            }
            _ => {}
        }
    }

    fn open_if_promised(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let (timing, majority) = (self.config.timing, self.majority());
        let Phase::Voting(vote_round) = &self.phase else { return };
        let Some(deadline) = promised_until(&vote_round.promises, &timing, majority).filter(|deadline| now < *deadline)
        else {
            return;
        };
        let (epoch, promises) = (vote_round.epoch, vote_round.promises.clone());
        if self.observed_epoch > epoch {
            return self.abandon_vote(now, outputs);
        }
        self.open(now, (epoch, deadline), promises, None, outputs);
    }

    pub(super) fn open(
        &mut self,
        now: MonoNs,
        (epoch, deadline): (Epoch, MonoNs),
        promises: BTreeMap<NodeId, MonoNs>,
        ended: Option<Epoch>,
        outputs: &mut Outputs,
    ) {
        outputs.extend(ended.map(Output::PeerOutputEnded));
        outputs.push(Output::Open { epoch, deadline });
        self.fail_unused_hand_over(outputs);
        let moves = self.takeover.take().filter(|takeover| takeover.to == epoch).map_or(0, |takeover| takeover.moves);
        let so_far = TenureSoFar { since: now, moves, move_helped: false };
        let tenure = self.auto_move.map(|_| Tenure { so_far, worse_since: None });
        self.highest_known = self.highest_known.max(epoch);
        // A voter that has not voted follows the winner's first renewal. It is sent at once, so that all hold the
        // promise.
        self.phase = Phase::Leading(LeaderState {
            epoch,
            promises,
            renew_at: now,
            preparing: None,
            tenure,
            raise: None,
            raise_at: now,
            hand_over_next: None,
        });
    }

    fn step_leading(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let (timing, majority) = (self.config.timing, self.majority());
        let may_renew = self.may_renew();
        let Phase::Leading(lead) = &mut self.phase else { return };
        if now >= lead.deadline(&timing, majority) {
            return self.stop(now, CloseReason::Expired, outputs);
        }
        if let Some(preparing) = lead.preparing.take_if(|preparing| now >= preparing.until) {
            let why = "it did not answer";
            outputs.push(Output::Notice(Notice::HandOverFailed { target: Some(preparing.target), why }));
        }
        self.step_raise(now, outputs);
        let Phase::Leading(lead) = &mut self.phase else { return };
        let epoch = lead.epoch;
        if now < lead.renew_at || !may_renew {
            return self.step_auto_move(now, outputs);
        }
        // Renewals have absolute times: a late renewal does not delay the next one. Missed renewals are not made up
        // for.
        let next = lead.renew_at.plus(timing.renew_ns);
        lead.renew_at = if next > now { next } else { now.plus(timing.renew_ns) };
        for voter in self.voters() {
            self.send(now, voter, Operation::Renew(epoch), Some(RequestKind::Renew(epoch)), outputs);
        }
        self.step_auto_move(now, outputs);
    }

    /// Ends this leadership; a new candidacy begins at once.
    fn stop(&mut self, now: MonoNs, reason: CloseReason, outputs: &mut Outputs) {
        self.fail_hand_over(STOPPED_LEADING, outputs);
        self.close_fence(reason, outputs);
        self.phase = Phase::Waiting;
        self.retry_at = now;
    }

    pub(super) fn on_observed_epoch(&mut self, now: MonoNs, epoch: Epoch, outputs: &mut Outputs) {
        self.highest_known = self.highest_known.max(epoch);
        self.observed_epoch = self.observed_epoch.max(epoch);
        self.note_leadership(epoch);
        if self.is_outranked() && !self.safeguards.raises_in_place {
            outputs.push(Output::Notice(Notice::HigherEpochObserved(epoch)));
            self.stop(now, CloseReason::Outranked, outputs);
        }
    }

    /// The vote is lost or takes too long: releases the voters that voted for this gateway.
    fn abandon_vote(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let Phase::Voting(vote_round) = &self.phase else { return };
        let epoch = vote_round.epoch;
        self.back_off(now);
        self.release(now, epoch, outputs);
    }

    /// Waits before the next attempt. Each node waits a different time, so that two nodes do not collide repeatedly.
    fn back_off(&mut self, now: MonoNs) {
        let rank = self.config.candidates.keys().filter(|node| **node < self.node()).count();
        let half_ns = self.config.timing.renew_ns / 2;
        self.retry_at = now.plus(half_ns.saturating_mul(1 + u64::try_from(rank).unwrap_or(u64::MAX)));
        self.phase = Phase::Waiting;
    }

    /// Releases promises under `epoch`, under which this gateway never sends again.
    pub(super) fn release(&mut self, now: MonoNs, epoch: Epoch, outputs: &mut Outputs) {
        self.pending
            .retain(|_, sent| !matches!(sent.kind, RequestKind::Vote(of) | RequestKind::Renew(of) if of == epoch));
        for _ in 0..RELEASE_COPIES {
            for voter in self.others() {
                self.send(now, voter, Operation::Release(epoch), None, outputs);
            }
        }
        self.send(now, self.node(), Operation::Release(epoch), None, outputs);
    }
}

fn keep_latest(promises: &mut BTreeMap<NodeId, MonoNs>, voter: NodeId, sent: MonoNs) {
    let latest = promises.entry(voter).or_insert(sent);
    *latest = sent.max(*latest);
}

/// Why a hand-over failed whose leader stopped leading meanwhile.
pub(super) const STOPPED_LEADING: &str = "this gateway stopped leading";

/// Minimum pause between two polls, where a voter will soon learn what another one knows.
const RETRY_NS_MIN: u64 = 500_000;

/// A release is not sent again later; a lost one costs the others a lease.
const RELEASE_COPIES: usize = 3;
