//! A leader that is outranked raises its epoch while it leads.
//!
//! ```text
//!   leader, epoch 5 ── observes (7, 255): receivers drop its packets
//!          ── vote, epoch 8 ──► voters       fence still open under epoch 5
//!          ◄── majority granted ──
//!   fence closes, opens under epoch 8        one step: nothing is silent in between
//! ```
//! While a majority keeps its promise, no other gateway leads. So the observed epoch is forged, or of a leadership that
//! has ended, and there is nobody to give way to. Receivers that did not accept that epoch lose nothing meanwhile.

use super::{phase::promised_until, *};

impl Candidate {
    /// Begins, repeats or abandons the vote for a higher epoch.
    pub(super) fn step_raise(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let (observed_epoch, vote_ns_max) = (self.observed_epoch, self.config.vote_ns_max);
        let raises_once_voted = self.safeguards.raises_once_voted;
        let is_outranked = self.is_outranked();
        if !self.safeguards.raises_in_place || !self.may_renew() {
            return;
        }
        let highest_known = self.highest_known.max(self.voter.highest_epoch());
        let next = next_epoch(self.node(), [highest_known]);
        let Phase::Leading(lead) = &mut self.phase else { return };
        match &lead.raise {
            Some(raise) if now >= raise.until => {
                (lead.raise, lead.raise_at) = (None, now);
                // Voters that have voted hand over nothing under the present epoch, so the hand-over is not begun.
                self.fail_hand_over("the voters did not answer the vote for a higher epoch in time", outputs);
            }
            Some(raise) if now >= raise.resend_at => return self.ask_for_raise(now, outputs),
            _ => {}
        }
        let Phase::Leading(lead) = &mut self.phase else { return };
        let is_due = is_outranked && lead.raise.is_none() && now >= lead.raise_at;
        // An epoch that was prepared for a hand-over goes first; its leader opens above the observed one.
        let Some(epoch) = next.filter(|_| is_due && lead.preparing.is_none()) else { return };
        let until = now.plus(vote_ns_max);
        let promises = if raises_once_voted { [].into() } else { lead.promises.clone() };
        lead.raise = Some(VoteRound { epoch, promises, refused: [].into(), resend_at: now, until });
        self.highest_known = epoch;
        outputs.push(Output::Notice(Notice::HigherEpochObserved(observed_epoch)));
        if raises_once_voted {
            self.ask_for_raise(now, outputs);
        } else {
            self.complete_raise(now, outputs);
        }
    }

    fn ask_for_raise(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let resend_at = now.plus(self.config.timing.renew_ns);
        let Phase::Leading(LeaderState { raise: Some(raise), .. }) = &mut self.phase else { return };
        raise.resend_at = resend_at;
        let epoch = raise.epoch;
        for voter in self.voters() {
            self.send(now, voter, Operation::Vote(epoch), Some(RequestKind::Vote(epoch)), outputs);
        }
    }

    /// A voter answered the vote for the higher epoch, which was sent at `sent`.
    pub(super) fn on_raise_reply(
        &mut self,
        now: MonoNs,
        from: NodeId,
        sent: MonoNs,
        verdict: Verdict,
        outputs: &mut Outputs,
    ) {
        let (timing, majority, voter_count) = (self.config.timing, self.majority(), self.config.voters.len());
        let Phase::Leading(lead) = &mut self.phase else { return };
        // After the deadline nothing revives the leadership.
        let deadline_before = lead.deadline(&timing, majority);
        let Some(raise) = lead.raise.as_mut().filter(|_| now < deadline_before) else { return };
        if verdict != Verdict::Granted {
            raise.refused.insert(from);
            if raise.refused.len() > voter_count - majority {
                // Renewals under the present epoch go on, as far as the voters allow.
                (lead.raise, lead.raise_at) = (None, now.plus(timing.renew_ns));
                self.begin_deferred_hand_over(now, outputs);
            }
            return;
        }
        let latest = raise.promises.entry(from).or_insert(sent);
        *latest = sent.max(*latest);
        if promised_until(&raise.promises, &timing, majority).is_some_and(|deadline| now < deadline) {
            self.complete_raise(now, outputs);
        }
    }

    /// A majority has voted. The leader opens even if a still higher epoch was observed meanwhile, and raises again:
    /// those voters no longer renew the former epoch.
    fn complete_raise(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let (timing, majority) = (self.config.timing, self.majority());
        self.close_fence(CloseReason::Outranked, outputs);
        let Phase::Leading(lead) = &mut self.phase else { return };
        let Some(raise) = lead.raise.take() else { return };
        (lead.epoch, lead.promises, lead.renew_at) = (raise.epoch, raise.promises, now);
        outputs.push(Output::Open { epoch: raise.epoch, deadline: lead.deadline(&timing, majority) });
        self.begin_deferred_hand_over(now, outputs);
    }

    fn begin_deferred_hand_over(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let Phase::Leading(lead) = &mut self.phase else { return };
        if let Some((target, moves)) = lead.hand_over_next.take() {
            self.begin_hand_over(now, target, moves, outputs);
        }
    }

    /// Whether receivers, who compare whole epochs, drop this leader's packets: one of the same count from a higher node
    /// silences this gateway too.
    pub(super) fn is_outranked(&self) -> bool {
        let Phase::Leading(lead) = &self.phase else { return false };
        if self.safeguards.compares_whole_epochs {
            self.observed_epoch > lead.epoch
        } else {
            self.observed_epoch.count() > lead.epoch.count()
        }
    }

    /// When [`Self::step_raise`] is due.
    pub(super) fn raise_due_at(&self, lead: &LeaderState) -> Option<MonoNs> {
        if !self.safeguards.raises_in_place || !self.may_renew() {
            return None;
        }
        match &lead.raise {
            Some(raise) => Some(raise.resend_at.min(raise.until)),
            None if self.is_outranked() && lead.preparing.is_none() => {
                next_epoch(self.node(), [self.highest_known]).map(|_| lead.raise_at)
            }
            None => None,
        }
    }
}
