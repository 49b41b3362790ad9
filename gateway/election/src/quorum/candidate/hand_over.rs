//! Hand-over, on the former leader's and on the target's side.
//!
//! The leader asks the target (*prepare*). The target answers with a stamp of its own clock and a request id of its own.
//! The leader closes its fence, waits until its last send has ended, and asks each voter to move its promise to the
//! target under the next generation. Voters answer both. The target opens when a majority has moved, and counts its
//! lease from its stamp, which is earlier than any of these promises.

use super::{
    phase::{Preparing, promised_until},
    *,
};
use crate::{quorum::message::HandOver, record::PeerTimestamp};

impl Candidate {
    /// Begins a hand-over to `target`, or to the fittest gateway. `moves`: recent automatic moves, this one included.
    pub(super) fn begin_hand_over(&mut self, now: MonoNs, target: Option<NodeId>, moves: u32, outputs: &mut Outputs) {
        let is_other = |node: &NodeId| *node != self.node() && self.config.candidates.contains_key(node);
        let chosen = target.or_else(|| self.voter.fittest(now, self.node(), self.peer_timeout_ns())).filter(is_other);
        let failed = |target, why| Output::Notice(Notice::HandOverFailed { target, why });
        let Some(chosen) = chosen else {
            return outputs.push(failed(target, "no other eligible gateway is known"));
        };
        if !self.may_hand_over_to(chosen) {
            return outputs.push(failed(Some(chosen), "it has a different configuration"));
        }
        let Some(to) = next_epoch(chosen, [self.highest_known]) else {
            return outputs.push(failed(Some(chosen), "epoch numbers exhausted"));
        };
        let Phase::Leading(lead) = &mut self.phase else {
            return outputs.push(failed(Some(chosen), "this gateway is not the leader"));
        };
        if lead.preparing.is_some() || lead.hand_over_next.is_some() {
            return outputs.push(failed(Some(chosen), "another hand-over is in progress"));
        }
        if lead.raise.is_some() {
            // Voters may have moved their promise to the higher epoch, so nothing can be handed over under this one.
            lead.hand_over_next = Some((target, moves));
            return;
        }
        let from = lead.epoch;
        lead.preparing = Some(Preparing { target: chosen, to, moves, until: now.plus(self.config.timing.lease_ns) });
        // This gateway never uses that epoch for itself, whatever the result.
        self.highest_known = to;
        self.send(now, chosen, Operation::Prepare { from, to, moves }, Some(RequestKind::Prepare(to)), outputs);
    }

    /// A hand-over that is prepared, or waits for a raise, has failed.
    pub(super) fn fail_hand_over(&mut self, why: &'static str, outputs: &mut Outputs) {
        let Phase::Leading(lead) = &mut self.phase else { return };
        let prepared = lead.preparing.take().map(|preparing| Some(preparing.target));
        let waiting = lead.hand_over_next.take().map(|(target, _)| target);
        if let Some(target) = prepared.or(waiting)
            && self.safeguards.reports_ended_hand_overs
        {
            outputs.push(Output::Notice(Notice::HandOverFailed { target, why }));
        }
    }

    /// A leader asks this gateway to take over.
    pub(super) fn on_prepare(
        &mut self,
        now: MonoNs,
        from: NodeId,
        request: &Request,
        (former_epoch, to, moves): (Epoch, Epoch, u32),
        outputs: &mut Outputs,
    ) {
        let is_new = to.count() > former_epoch.count() && to.count() > self.highest_known.count();
        let is_fit = self.obstacle_at(now).is_none() && matches!(self.phase, Phase::Waiting | Phase::Polling(_));
        let is_ours = NodeId::of(former_epoch) == from && NodeId::of(to) == self.node();
        let verdict = if is_new && is_fit && is_ours {
            let request_id = self.next_request_id();
            self.pending.insert(request_id.number, PendingRequest { to: None, at: now, kind: RequestKind::Taking(to) });
            // This gateway never uses that epoch for its own candidacy.
            self.highest_known = to;
            self.takeover = Some(PendingTakeover { to, stamp: now, granted_by: [].into(), moves, ended: None });
            // This gateway's own candidacy would interfere with the takeover.
            self.phase = Phase::Waiting;
            self.retry_at = self.retry_at.max(now.plus(self.config.timing.renew_ns));
            Verdict::Prepared {
                incarnation: self.config.member.incarnation,
                request_id,
                stamp: PeerTimestamp(now.0),
                lease_ns: self.config.timing.lease_ns,
            }
        } else {
            Verdict::Refused(Refusal::NotEligible)
        };
        let reply = Reply {
            request_id: request.request_id,
            session: self.voter.session(),
            highest_epoch: self.highest_known.max(self.voter.highest_epoch()),
            promise: self.voter.active_promise(now),
            verdict,
        };
        self.send_message(from, Body::Reply(reply), outputs);
    }

    /// The target's answer.
    pub(super) fn on_prepared(&mut self, now: MonoNs, to: Epoch, verdict: Verdict, outputs: &mut Outputs) {
        let lease_ns = self.config.timing.lease_ns;
        let Phase::Leading(lead) = &mut self.phase else { return };
        let Some(preparing) = lead.preparing.take_if(|preparing| preparing.to == to) else { return };
        let Verdict::Prepared { incarnation, request_id, stamp, lease_ns: target_lease_ns } = verdict else {
            if self.highest_known.count() > to.count() {
                // The target knew of generations that were spent without this gateway, which now knows them too.
                return self.begin_hand_over(now, Some(preparing.target), preparing.moves, outputs);
            }
            let why = "it refused to take over";
            return outputs.push(Output::Notice(Notice::HandOverFailed { target: Some(preparing.target), why }));
        };
        let from = lead.epoch;
        // The pin was set for this leadership and holds for no later one.
        self.pin = Pin::Free;
        self.close_fence(CloseReason::HandedOver, outputs);
        self.phase = Phase::Transferring(PromiseTransfer {
            from,
            to,
            incarnation,
            lease_ns: target_lease_ns,
            request_id,
            stamp,
            is_drained: false,
            transferred: [].into(),
            refused: [].into(),
            resend_at: now,
            until: now.plus(lease_ns),
        });
    }

    /// The last send has ended.
    pub(super) fn on_drained(&mut self, now: MonoNs, outputs: &mut Outputs) {
        self.outstanding_sends.end();
        match &mut self.phase {
            Phase::Transferring(transfer) => {
                transfer.is_drained = true;
                transfer.resend_at = now;
                self.step_transfer(now, outputs);
            }
            Phase::Releasing { epoch, raised } => {
                let (epoch, raised) = (*epoch, *raised);
                self.phase = Phase::Closed;
                for epoch in [Some(epoch), raised].into_iter().flatten() {
                    self.release(now, epoch, outputs);
                }
            }
            // The gateway may poll again.
            _ => {}
        }
    }

    pub(super) fn step_transfer(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let half_ns = self.config.timing.renew_ns / 2;
        let Phase::Transferring(transfer) = &mut self.phase else { return };
        if now >= transfer.until {
            return self.abort_transfer(now, "voters did not answer in time", outputs);
        }
        if !transfer.is_drained || now < transfer.resend_at {
            return;
        }
        transfer.resend_at = now.plus(half_ns);
        let PromiseTransfer { from, to, incarnation, lease_ns, request_id, stamp, .. } = *transfer;
        let hand_over = HandOver { from, to, incarnation, lease_ns, request_id, stamp };
        let done: Vec<NodeId> = transfer.transferred.union(&transfer.refused).copied().collect();
        for voter in self.voters().into_iter().filter(|voter| !done.contains(voter)) {
            self.send(now, voter, Operation::HandOver(hand_over), Some(RequestKind::HandOver(to)), outputs);
        }
    }

    /// A voter's answer to the former leader.
    pub(super) fn on_transfer_reply(
        &mut self,
        now: MonoNs,
        from: NodeId,
        to: Epoch,
        verdict: Verdict,
        outputs: &mut Outputs,
    ) {
        let (majority, voter_count) = (self.majority(), self.config.voters.len());
        let Phase::Transferring(transfer) = &mut self.phase else { return };
        if transfer.to != to {
            return;
        }
        if verdict == Verdict::Granted {
            transfer.transferred.insert(from);
        } else {
            transfer.refused.insert(from);
        }
        if transfer.transferred.len() >= majority {
            // The same voters have notified the target.
            self.handed_over_to = Some(to);
            self.phase = Phase::Waiting;
            self.retry_at = now.plus(self.config.timing.renew_ns);
        } else if transfer.refused.len() > voter_count - majority {
            self.abort_transfer(now, "voters refused", outputs);
        }
    }

    fn abort_transfer(&mut self, now: MonoNs, why: &'static str, outputs: &mut Outputs) {
        let Phase::Transferring(transfer) = &self.phase else { return };
        outputs.push(Output::Notice(Notice::HandOverFailed { target: Some(NodeId::of(transfer.to)), why }));
        self.phase = Phase::Waiting;
        self.retry_at = now;
    }

    /// The owner of that epoch leads: it renews, or its packets are received. An epoch of another node may be forged.
    pub(super) fn note_leadership(&mut self, epoch: Epoch) {
        self.handed_over_to.take_if(|to| NodeId::of(epoch) == NodeId::of(*to) && epoch >= *to);
    }

    /// This gateway opens again, and nobody has seen the target lead in between: it missed the voters' answers, or its time was over
    /// before this gateway's last send.
    pub(super) fn fail_unused_hand_over(&mut self, outputs: &mut Outputs) {
        if let Some(to) = self.handed_over_to.take()
            && self.safeguards.reports_ended_hand_overs
        {
            let why = "it was not seen to lead, and this gateway leads again";
            outputs.push(Output::Notice(Notice::HandOverFailed { target: Some(NodeId::of(to)), why }));
        }
    }

    /// The former leader's output has ended.
    pub(super) fn note_handed_over(&mut self, hand_over: &HandOver) {
        if let Some(takeover) = self.takeover.as_mut().filter(|takeover| takeover.to == hand_over.to) {
            takeover.ended = Some(hand_over.from);
        }
    }

    /// A voter has moved its promise to this gateway.
    pub(super) fn on_promise_transferred(
        &mut self,
        now: MonoNs,
        from: NodeId,
        to: Epoch,
        verdict: Verdict,
        outputs: &mut Outputs,
    ) {
        let (timing, majority) = (self.config.timing, self.majority());
        let is_free = matches!(self.phase, Phase::Waiting | Phase::Polling(_))
            && self.obstacle_at(now).is_none()
            && to > self.observed_epoch;
        let Some(takeover) = self.takeover.as_mut().filter(|takeover| takeover.to == to && verdict == Verdict::Granted)
        else {
            return;
        };
        takeover.granted_by.insert(from);
        let promises: BTreeMap<NodeId, MonoNs> =
            takeover.granted_by.iter().map(|node| (*node, takeover.stamp)).collect();
        let deadline = promised_until(&promises, &timing, majority).filter(|deadline| now < *deadline);
        if let Some(deadline) = deadline.filter(|_| is_free) {
            let ended = takeover.ended.take();
            self.open(now, (to, deadline), promises, ended, outputs);
        }
    }
}
