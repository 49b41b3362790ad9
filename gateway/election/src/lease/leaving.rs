//! A leader that leaves: hand-over, release, and leading again under a higher epoch.
//!
//! ```text
//!   leader ── prepare(nonce) ──► target          fence still open
//!          ◄── prepared(nonce, stamp) ──
//!          ── renewal: the target is the successor ──► store
//!   fence closes; no send outstanding
//!          ── ended(epoch) ──► target opens as the successor
//! ```
//! The store does all its work before the fence closes, so the output is not interrupted for the length of a swap.
//! After the end message, the leader repeats it until the record shows the successor, and later releases the record
//! too. It leads again only by a swap, when the successor's time has passed.

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{Lease, Phase};
use crate::{
    core::{CloseReason, Notice, Output},
    identity::{Member, NodeId, next_epoch},
    peer::{LeaderRequest, PeerMessage},
    record::{PeerTimestamp, Record, Successor},
    timing::LeaseTiming,
};

/// The fence is closed, and the record is to be released or acquired again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leaving {
    /// Epoch of the leadership that ended here.
    pub(super) epoch: Epoch,
    /// Before this time, no gateway that waits for the lease can have taken over.
    pub(super) deadline: MonoNs,
    pub(super) mode: LeaveMode,
    /// No send is outstanding any more.
    pub(super) is_drained: bool,
}

/// The intended next state of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeaveMode {
    /// The successor is to open. The leader notifies it at `notify_at` and repeatedly; from `release_at` on it also
    /// releases the record.
    HandOver { target: NodeId, request: LeaderRequest, cause: OfferCause, notify_at: MonoNs, release_at: MonoNs },
    /// The record is to have no holder.
    Release { cause: OfferCause },
    /// The holder stays, under a new epoch.
    Reopen,
}

/// A hand-over while the fence is open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Offer {
    pub(super) target: Member,
    pub(super) request: LeaderRequest,
    pub(super) sent: MonoNs,
    pub(super) cause: OfferCause,
    /// The target accepted and is to become the successor; its stamp is the time of its answer, on its own clock.
    pub(super) accepted: Option<PeerTimestamp>,
}

/// A hand-over that begins when a raise of the epoch has ended: an offer names the leader's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeferredHandOver {
    pub(super) target: NodeId,
    pub(super) cause: OfferCause,
    /// It begins no sooner: the target refuses until it has read the raised epoch.
    pub(super) not_before: MonoNs,
    /// If the raise has not ended by then, the hand-over has failed.
    pub(super) until: MonoNs,
}

/// A hand-over for which the fence was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClosedFor {
    pub(super) target: NodeId,
    /// The epoch of the leadership that was handed over.
    pub(super) epoch: Epoch,
    /// Epoch and renewal of a later record of another gateway.
    pub(super) later: Option<(Epoch, u64)>,
}

/// Cause of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OfferCause {
    /// Requested by an operator or another gateway.
    Planned,
    /// Fitness or preference.
    Automatic {
        /// The move lengthens the next minimum tenure.
        is_counted: bool,
    },
}

impl OfferCause {
    /// Whether the record counts the move.
    pub(super) fn is_counted(self) -> bool {
        self == Self::Automatic { is_counted: true }
    }
}

impl Leaving {
    /// Whether another gateway is to continue from the record as it is now.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self.mode, LeaveMode::HandOver { .. })
    }

    /// When the successor is to be notified next.
    pub(super) fn notify_due_at(&self) -> Option<MonoNs> {
        let LeaveMode::HandOver { notify_at, .. } = &self.mode else { return None };
        self.is_drained.then_some(*notify_at)
    }
}

impl Lease {
    pub(super) fn on_hand_over(&mut self, now: MonoNs, target: Option<NodeId>) {
        let Phase::Leading(_) = &self.phase else {
            return self.hand_over_failed(target, "this gateway is not the leader");
        };
        self.offer(now, target.or_else(|| self.fittest_peer(now)), OfferCause::Planned);
    }

    pub(super) fn offer(&mut self, now: MonoNs, target: Option<NodeId>, cause: OfferCause) {
        let Some(target) = target else { return self.hand_over_failed(None, "no other gateway is eligible") };
        if !self.can_take_over(target, now) {
            return self.hand_over_failed(
                Some(target),
                "it is not eligible, does not answer, or has a different configuration",
            );
        }
        let Some(member) = self.peers.get(&target).map(|peer| peer.state.member.clone()) else { return };
        if self.in_doubt_since.is_some() {
            return self.hand_over_failed(Some(target), "the store does not answer");
        }
        let (nonce, is_raising) = (self.next_number(), self.is_raising());
        let Some(request) = self.request(nonce) else { return };
        let until = now.plus(2 * self.config.timing.renew_ns);
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if leadership.is_handing_over() {
            return self.hand_over_failed(Some(target), "another hand-over is in progress");
        }
        if is_raising {
            leadership.deferred = Some(DeferredHandOver { target, cause, not_before: now, until });
            return;
        }
        leadership.offer = Some(Offer { target: member, request, sent: now, cause, accepted: None });
        self.emit(Output::Peer { to: target, message: PeerMessage::Prepare(request) });
    }

    /// A request in the name of the present leadership.
    pub(super) fn request(&self, nonce: u64) -> Option<LeaderRequest> {
        let (node, incarnation) = (self.node(), self.config.member.incarnation);
        let epoch = self.leading_epoch()?;
        Some(LeaderRequest { requester: node, incarnation, epoch, nonce, lease_ns: self.config.timing.lease_ns })
    }

    pub(super) fn offer_expires_at(&self, offer: &Offer) -> MonoNs {
        let LeaseTiming { renew_ns, .. } = self.config.timing;
        let answered_by = offer.sent.plus(2 * renew_ns);
        match offer.accepted {
            None => answered_by,
            // An earlier successor's time may have to end first, and then the store has to accept the change.
            Some(_) => answered_by.plus(self.config.timing.wait_ns()).plus(2 * renew_ns),
        }
    }

    /// Whether a swap that raises the epoch may still take effect.
    pub(super) fn is_raising(&self) -> bool {
        let Phase::Leading(leadership) = &self.phase else { return false };
        self.pending.attempts.iter().any(|attempt| attempt.record.epoch > leadership.epoch)
    }

    /// Begins the hand-over that waits for a raise.
    fn step_deferred(&mut self, now: MonoNs) {
        let is_raising = self.is_raising();
        let Phase::Leading(leadership) = &mut self.phase else { return };
        let is_due =
            |deferred: &mut DeferredHandOver| now >= if is_raising { deferred.until } else { deferred.not_before };
        let Some(DeferredHandOver { target, cause, .. }) = leadership.deferred.take_if(is_due) else { return };
        if is_raising {
            self.withdraw_offer(now);
            self.hand_over_failed(Some(target), "the store did not answer the raise of the epoch in time");
        } else {
            self.offer(now, Some(target), cause);
        }
    }

    /// The leadership ends otherwise, so its hand-over has failed.
    pub(super) fn fail_hand_over(&mut self) {
        let Phase::Leading(leadership) = &mut self.phase else { return };
        let offered = leadership.offer.take().map(|offer| offer.target.node);
        let deferred = leadership.deferred.take().map(|deferred| deferred.target);
        if let Some(target) = offered.or(deferred)
            && self.safeguards.reports_ended_hand_overs
        {
            self.hand_over_failed(Some(target), "this gateway stopped leading");
        }
    }

    /// The record changed. Another gateway has led since the hand-over if it renewed or released a record of its own: one that was
    /// only written may have been learned too late to open.
    pub(super) fn confirm_hand_over(&mut self) {
        let Some(record) = self.known_record.record() else { return };
        let Some(closed_for) = &mut self.unconfirmed_hand_over else { return };
        if record.is_held_by(&self.config.member) || record.epoch <= closed_for.epoch {
            return;
        }
        match closed_for.later {
            Some((epoch, renewal)) if epoch == record.epoch && renewal < record.renewal => {
                self.unconfirmed_hand_over = None
            }
            _ => closed_for.later = Some((record.epoch, record.renewal)),
        }
    }

    /// This gateway opens again. No record shows that another gateway has led in between: the target missed the end message, or its
    /// time was over before this gateway's last send. A packet shows nothing, since it may be forged.
    pub(super) fn fail_unconfirmed_hand_over(&mut self) {
        if let Some(ClosedFor { target, .. }) = self.unconfirmed_hand_over.take()
            && self.safeguards.reports_ended_hand_overs
        {
            self.hand_over_failed(Some(target), "it was not seen to lead, and this gateway leads again");
        }
    }

    pub(super) fn step_offer(&mut self, now: MonoNs) {
        self.step_deferred(now);
        let Phase::Leading(leadership) = &self.phase else { return };
        let Some(offer) = leadership.offer.clone() else { return };
        let Offer { target, request, cause, .. } = &offer;
        if self.is_ready(&offer, now) {
            let (target, request, cause) = (target.node, *request, *cause);
            let mode = LeaveMode::HandOver { target, request, cause, notify_at: now, release_at: now };
            self.unconfirmed_hand_over = Some(ClosedFor { target, epoch: leadership.epoch, later: None });
            self.begin_leaving(CloseReason::HandedOver, mode, leadership.deadline);
        } else if now >= self.offer_expires_at(&offer) {
            let why =
                if offer.accepted.is_some() { "the store rejected the change" } else { "it did not answer in time" };
            self.withdraw_offer(now);
            self.hand_over_failed(Some(target.node), why);
        }
    }

    /// Whether the record in force names the target as the successor and no attempt of ours can change it any more; and
    /// whether at that time the target can still lead, for long enough.
    pub(super) fn is_ready(&self, offer: &Offer, at: MonoNs) -> bool {
        let Some(accepted) = offer.accepted else { return false };
        let successor = self.known_record.record().and_then(|record| record.successor);
        self.pending.attempts.is_empty()
            && self.pending.awaited.is_none()
            && self.in_doubt_since.is_none()
            && successor.is_some_and(|successor: Successor| {
                successor.is_same_start(&offer.target) && successor.stamp >= accepted
            })
            && self.is_freshly_named(at)
            && self.can_take_over(offer.target.node, at)
    }

    /// Withdraws the offer, and leaves time before the next one.
    fn withdraw_offer(&mut self, now: MonoNs) {
        let Phase::Leading(leadership) = &mut self.phase else { return };
        leadership.offer = None;
        leadership.worse_since = leadership.worse_since.map(|_| now);
    }

    pub(super) fn on_prepare_refused(&mut self, from: NodeId, request: LeaderRequest) {
        let Phase::Leading(leadership) = &self.phase else { return };
        let is_answer =
            leadership.offer.as_ref().is_some_and(|offer| offer.target.node == from && offer.request == request);
        if is_answer {
            self.withdraw_offer(offer_sent_at(leadership));
            self.hand_over_failed(Some(from), "it is not ready");
        }
    }

    pub(super) fn on_prepared(&mut self, now: MonoNs, from: NodeId, request: LeaderRequest, stamp: PeerTimestamp) {
        let Phase::Leading(leadership) = &self.phase else { return };
        let Some(offer) = &leadership.offer else { return };
        if offer.target.node != from || offer.request != request || now >= self.offer_expires_at(offer) {
            return;
        }
        let (target, offered) = (offer.target.node, offer.target.clone());
        if let Some(peer) = self.peers.get_mut(&target)
            && peer.state.member == offered
        {
            peer.state.stamp = peer.state.stamp.max(stamp);
        }
        let Phase::Leading(leadership) = &mut self.phase else { return };
        leadership.renew_at = now;
        if let Some(offer) = &mut leadership.offer {
            offer.accepted = Some(stamp);
        }
    }

    /// Notifies the successor until the record shows it. If that takes long, releases the record too.
    pub(super) fn step_leaving(&mut self, now: MonoNs) {
        let notify_again_at = now.plus(self.config.timing.renew_ns / NOTIFICATIONS_PER_RENEWAL);
        let Phase::Leaving(Leaving { is_drained: true, mode, .. }) = &mut self.phase else { return };
        let LeaveMode::HandOver { target, request, cause, notify_at, release_at } = mode else { return };
        if now >= *release_at {
            *mode = LeaveMode::Release { cause: *cause };
        } else if now >= *notify_at {
            *notify_at = notify_again_at;
            let message = PeerMessage::LeadershipEnded { request: *request, is_automatic: cause.is_counted() };
            let to = *target;
            self.emit(Output::Peer { to, message });
        }
    }

    pub(super) fn on_drained(&mut self, now: MonoNs) {
        self.outstanding_sends.end();
        let Phase::Leaving(leaving) = &mut self.phase else { return };
        leaving.is_drained = true;
        if let LeaveMode::HandOver { notify_at, release_at, .. } = &mut leaving.mode {
            (*notify_at, *release_at) = (now, now.plus(self.config.timing.renew_ns));
        }
    }

    pub(super) fn on_close(&mut self, now: MonoNs) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        match &mut self.phase {
            Phase::Leading(leadership) => {
                let deadline = leadership.deadline;
                self.begin_leaving(CloseReason::Released, LeaveMode::Release { cause: OfferCause::Planned }, deadline);
            }
            Phase::Leaving(leaving) if leaving.mode == LeaveMode::Reopen => {
                leaving.mode = LeaveMode::Release { cause: OfferCause::Planned };
                leaving.is_drained = !self.outstanding_sends.may_exist();
            }
            Phase::Leaving(_) | Phase::Candidate => self.known_record.restart_wait(now),
        }
    }

    pub(super) fn record_to_leave(&mut self, now: MonoNs) -> Option<Record> {
        let Phase::Leaving(leaving) = &self.phase else { return None };
        match leaving.mode {
            _ if !leaving.is_drained => None,
            LeaveMode::HandOver { .. } => None,
            LeaveMode::Release { cause } => {
                let released = self.known_record.record()?.released();
                Some(Record { automatic_moves: released.automatic_moves + u32::from(cause.is_counted()), ..released })
            }
            LeaveMode::Reopen if now >= leaving.deadline => {
                self.phase = Phase::Candidate;
                self.known_record.restart_wait(now);
                None
            }
            LeaveMode::Reopen => Some(self.own_record(now, self.next_own_epoch()?)),
        }
    }

    /// The epoch of this gateway's next leadership: above all known epochs.
    pub(super) fn next_own_epoch(&self) -> Option<Epoch> {
        let record = self.known_record.record();
        let of_record = record.map_or_else(Epoch::default, |record| record.epoch);
        // The successor may have opened the next epoch after the record's without any other gateway observing it.
        let of_successor = record.and_then(|record| record.successor).filter(|successor| {
            self.safeguards.counts_successor_epoch && !successor.is_same_start(&self.config.member)
        });
        let of_successor = of_successor.and_then(|successor| next_epoch(successor.node, [of_record]));
        let own = [self.known_record.highest_epoch(), self.config.own_epoch, self.highest_opened, self.observed_epoch];
        let dead = self.deaths.iter().map(|notice| notice.epoch);
        next_epoch(self.node(), own.into_iter().chain([of_record]).chain(of_successor).chain(dead))
    }

    fn hand_over_failed(&mut self, target: Option<NodeId>, why: &'static str) {
        self.emit(Output::Notice(Notice::HandOverFailed { target, why }));
    }
}

/// When the refused offer was made. The pause before the next offer counts from there.
fn offer_sent_at(leadership: &super::Leadership) -> MonoNs {
    leadership.offer.as_ref().map_or(leadership.since, |offer| offer.sent)
}

/// Number of notifications to the successor in one renewal period.
const NOTIFICATIONS_PER_RENEWAL: u64 = 4;
