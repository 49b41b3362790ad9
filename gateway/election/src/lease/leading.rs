//! The leader: renews, admits candidates, and hands over automatically where another gateway is fitter.

use std::collections::BTreeMap;

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{
    Lease, Phase,
    leaving::{DeferredHandOver, LeaveMode, Leaving, Offer, OfferCause},
    promises::PendingPromises,
    successor::Predecessor,
};
use crate::{
    auto_move::{AutoMoveConfig, TenureSoFar},
    core::{CloseReason, Notice, Output, Pin},
    fitness::Eligibility,
    identity::{Member, NodeId, NodeName},
    record::{ConfigVersion, Record},
};

/// A leadership: it lasts while the fence is open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leadership {
    pub(super) epoch: Epoch,
    /// The fence refuses sends from this time on. The margin M is already subtracted.
    pub(super) deadline: MonoNs,
    pub(super) since: MonoNs,
    /// When the next renewal is due.
    pub(super) renew_at: MonoNs,
    /// The candidates of the record in force.
    pub(super) candidates: BTreeMap<NodeId, NodeName>,
    /// Requests to the candidates while the store is lost; the newest last.
    pub(super) promise_requests: Vec<PendingPromises>,
    pub(super) promise_request_at: MonoNs,
    pub(super) runs_on_promises: bool,
    /// A hand-over that is being prepared.
    pub(super) offer: Option<Offer>,
    /// A hand-over that waits for a raise of the epoch.
    pub(super) deferred: Option<DeferredHandOver>,
    /// The leadership that this one succeeded, while the record does not show this one.
    pub(super) predecessor: Option<Predecessor>,
    /// Since when this gateway should hand over.
    pub(super) worse_since: Option<MonoNs>,
    /// The highest observed epoch above which this leader has begun to renew.
    outranked_by: Epoch,
}

impl Leadership {
    pub(super) fn new(now: MonoNs, epoch: Epoch, deadline: MonoNs, candidates: BTreeMap<NodeId, NodeName>) -> Self {
        Self {
            epoch,
            deadline,
            since: now,
            // At once: the request with which the leadership began may have been sent some time ago.
            renew_at: now,
            candidates,
            promise_requests: Vec::new(),
            promise_request_at: now,
            runs_on_promises: false,
            offer: None,
            deferred: None,
            predecessor: None,
            worse_since: None,
            outranked_by: Epoch::default(),
        }
    }

    pub(super) fn is_handing_over(&self) -> bool {
        self.offer.is_some() || self.deferred.is_some()
    }

    /// Whether receivers drop this leader's packets.
    fn is_outranked_by(&self, observed_epoch: Epoch) -> bool {
        observed_epoch > self.epoch
    }

    /// The store has confirmed a renewal. Returns whether the store had been lost before.
    pub(super) fn renewed(&mut self, deadline: MonoNs, candidates: &BTreeMap<NodeId, NodeName>) -> bool {
        self.deadline = self.deadline.max(deadline);
        self.candidates.clone_from(candidates);
        self.predecessor = None;
        self.promise_requests.clear();
        std::mem::take(&mut self.runs_on_promises)
    }
}

impl Lease {
    /// Takes the leader's own decisions: those that no request of another gateway causes.
    pub(super) fn step_leading(&mut self, now: MonoNs) {
        let Phase::Leading(leadership) = &self.phase else { return };
        let (observed_epoch, deadline) = (self.observed_epoch, leadership.deadline);
        if leadership.is_outranked_by(observed_epoch) {
            if !self.safeguards.raises_in_place {
                self.emit(Output::Notice(Notice::HigherEpochObserved(observed_epoch)));
                self.begin_leaving(CloseReason::Outranked, LeaveMode::Reopen, deadline);
                return;
            }
            self.renew_above(now, observed_epoch);
        }
        let obstacle = self.local_obstacle();
        self.set_obstacle(obstacle);
        self.step_offer(now);
        self.step_auto_move(now);
    }

    /// Receivers drop this leader's packets. While the record names this gateway, nobody else leads; so the epoch that
    /// was observed is forged, or of a leadership that has ended. The next renewal carries an epoch above it, at once.
    /// The fence stays open meanwhile: receivers that did not accept the observed epoch lose nothing.
    fn renew_above(&mut self, now: MonoNs, observed_epoch: Epoch) {
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if std::mem::replace(&mut leadership.outranked_by, observed_epoch) != observed_epoch {
            leadership.renew_at = now;
            let (deadline, candidates) = (leadership.deadline, leadership.candidates.clone());
            self.emit(Output::Notice(Notice::HigherEpochObserved(observed_epoch)));
            if !self.safeguards.raises_once_stored
                && let Some(epoch) = self.next_own_epoch()
            {
                self.raise(now, epoch, deadline, candidates);
            }
        }
    }

    /// The epoch that the next renewal carries: higher than the present one if that one is outranked. An offer names
    /// the present epoch, so the epoch stays until the hand-over has ended; the successor opens above the observed one. A
    /// hand-over that is requested while a raise is on its way waits for that raise, and no other raise begins before it.
    fn epoch_to_renew(&self, leadership: &Leadership) -> Epoch {
        let is_outranked = self.safeguards.raises_in_place && leadership.is_outranked_by(self.observed_epoch);
        let raised = if is_outranked && !leadership.is_handing_over() { self.next_own_epoch() } else { None };
        raised.unwrap_or(leadership.epoch)
    }

    /// The store has this gateway's renewal under a higher epoch: an opening like any other, without a wait in between.
    pub(super) fn raise(
        &mut self,
        now: MonoNs,
        epoch: Epoch,
        deadline: MonoNs,
        candidates: BTreeMap<NodeId, NodeName>,
    ) {
        let Phase::Leading(former) = &self.phase else { return };
        let Leadership { since, worse_since, renew_at, runs_on_promises, .. } = *former;
        let (former_epoch, former_deadline, deferred) = (former.epoch, former.deadline, former.deferred);
        self.close_fence(former_epoch, former_deadline, CloseReason::Outranked);
        self.open(now, epoch, deadline.max(former_deadline), candidates);
        if let Phase::Leading(leadership) = &mut self.phase {
            // For tenure and renewals it is the same leadership.
            (leadership.since, leadership.worse_since, leadership.renew_at) = (since, worse_since, renew_at);
            // The target learns of the epoch by its watch, which may lag behind the pair link.
            let not_before = now.plus(self.config.timing.renew_ns);
            leadership.deferred = deferred.map(|deferred| DeferredHandOver { not_before, ..deferred });
        }
        if runs_on_promises {
            self.emit(Output::Notice(Notice::StoreReachable));
        }
    }

    /// When [`Self::step_leading`] or the end of the lease is due.
    pub(super) fn leading_step_at(&self, leadership: &Leadership) -> MonoNs {
        let request_at =
            self.in_doubt_since.filter(|_| leadership.predecessor.is_none()).map(|_| leadership.promise_request_at);
        let offer = leadership.offer.as_ref().map(|offer| {
            // An offer that is still ready at the next renewal is ready now, so a step is due at once.
            if self.is_ready(offer, leadership.renew_at) { MonoNs(0) } else { self.offer_expires_at(offer) }
        });
        let deferred = leadership.deferred.as_ref();
        let deferred = deferred.map(|deferred| if self.is_raising() { deferred.until } else { deferred.not_before });
        let moves =
            leadership.worse_since.filter(|_| !leadership.is_handing_over()).map(|from| self.move_at(leadership, from));
        [request_at, offer, deferred, moves].into_iter().flatten().fold(leadership.deadline, MonoNs::min)
    }

    /// When the next renewal is due; `None`: an obstacle keeps this gateway from renewing.
    pub(super) fn renew_at(&self, leadership: &Leadership) -> Option<MonoNs> {
        self.local_obstacle().is_none().then_some(leadership.renew_at)
    }

    pub(super) fn record_to_renew(&mut self, now: MonoNs) -> Option<Record> {
        let Phase::Leading(leadership) = &self.phase else { return None };
        if self.renew_at(leadership).is_none_or(|at| now < at) {
            return None;
        }
        let resets_moves = self.config.moves.resets_moves(leadership.since, now);
        let epoch = self.epoch_to_renew(leadership);
        // The other gateways must be able to read the new leadership first: until then, the renewal is retried at once.
        let predecessor = leadership.predecessor;
        self.choose_successor(now);
        let mut record = self.own_record(now, epoch);
        record.automatic_moves += u32::from(predecessor.is_some_and(|before| before.is_automatic));
        record.pinned = self.pin.map_or(record.pinned, |pin| pin == Pin::Pinned);
        if resets_moves {
            record.automatic_moves = 0;
        }
        let renew_ns = self.config.timing.renew_ns;
        if let Phase::Leading(leadership) = &mut self.phase {
            leadership.renew_at = if predecessor.is_some() { now } else { now.plus(renew_ns) };
        }
        Some(record)
    }

    /// Ends leadership when there is nothing to release or hand over.
    pub(super) fn end_leadership(&mut self, now: MonoNs, reason: CloseReason) {
        let Phase::Leading(Leadership { epoch, deadline, .. }) = self.phase else { return };
        self.fail_hand_over();
        self.pin = None;
        self.phase = Phase::Candidate;
        // Nothing of the old leadership is revived: the gateway waits for its own record as for any other.
        self.known_record.restart_wait(now);
        self.close_fence(epoch, deadline, reason);
    }

    fn close_fence(&mut self, epoch: Epoch, deadline: MonoNs, reason: CloseReason) {
        if self.safeguards.ends_after_sends {
            self.outstanding_sends.begin(deadline.plus(self.config.timing.margin_ns));
        }
        self.emit(Output::Close { epoch, reason });
        self.emit(Output::Drain);
    }

    /// Closes the fence and continues by releasing the record or by acquiring it again.
    pub(super) fn begin_leaving(&mut self, reason: CloseReason, mode: LeaveMode, deadline: MonoNs) {
        let Some(epoch) = self.leading_epoch() else { return };
        if !matches!(mode, LeaveMode::HandOver { .. }) {
            self.fail_hand_over();
        }
        self.pin = self.pin.filter(|_| mode == LeaveMode::Reopen);
        self.close_fence(epoch, deadline, reason);
        // Opening again needs no drain; another gateway's opening does.
        let needs_drain = mode != LeaveMode::Reopen && self.outstanding_sends.may_exist();
        self.phase = Phase::Leaving(Leaving { epoch, deadline, mode, is_drained: !needs_drain });
    }

    /// A gateway asks for admission. The leader admits it if the gateway is configured here and the revision of its
    /// configuration is not lower than ours. Other gateways are admitted only by an operator.
    pub(super) fn on_admit_request(&mut self, from: NodeId, member: Member, configuration: ConfigVersion) {
        let is_configured = self.config.candidates.get(&from) == Some(&member.name) && member.node == from;
        let ours = self.config.configuration;
        if is_configured && configuration.revision >= ours.revision && self.admitted.len() < ADMITTED_MAX {
            self.admitted.insert(from, member.name);
        }
    }

    // ---- automatic moves ----

    fn step_auto_move(&mut self, now: MonoNs) {
        let target = self.better_peer(now);
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if target.is_none() {
            leadership.worse_since = None;
            return;
        }
        let from = *leadership.worse_since.get_or_insert(now);
        let Phase::Leading(leadership) = &self.phase else { return };
        if !leadership.is_handing_over() && now >= self.move_at(leadership, from) {
            let is_counted = AutoMoveConfig::counts_move(&self.tenure(leadership), self.fitness.class());
            self.offer(now, target, OfferCause::Automatic { is_counted });
        }
    }

    fn move_at(&self, leadership: &Leadership, worse_since: MonoNs) -> MonoNs {
        self.config.moves.move_at(&self.tenure(leadership), worse_since, self.fitness.class())
    }

    fn tenure(&self, leadership: &Leadership) -> TenureSoFar {
        // Until the record shows this leadership, the move that led to it is not counted there.
        let own = u32::from(leadership.predecessor.is_some_and(|before| before.is_automatic));
        let moves = self.known_record.record().map_or(0, |record| record.automatic_moves) + own;
        TenureSoFar { since: leadership.since, moves, move_helped: self.move_helped }
    }

    /// Whether the last move has helped, as far as this gateway knows when it is about to follow the leadership of `record`.
    /// A hand-over is a move, and its result is not known yet. A holder that died or could not renew has not moved: the last
    /// move led to that holder, and helped if this gateway has received its output. A released record does not tell whether
    /// its holder handed over or stopped, so it counts as a hand-over.
    pub(super) fn follows_received_leader(&self, record: &Record) -> bool {
        let is_handed_over = record.leadership_id().is_some_and(|leadership| self.has_announced_end(leadership));
        record.holder.is_some() && !is_handed_over && self.observed_epoch >= record.epoch
    }

    /// The gateway that should lead instead: a class fitter, or as fit and preferred.
    fn better_peer(&self, now: MonoNs) -> Option<NodeId> {
        let pinned = self.known_record.record().is_some_and(|record| record.pinned);
        let is_free = self.pin.map_or(!pinned, |pin| pin == Pin::Free);
        if !is_free || self.has_output_mismatch || self.in_doubt_since.is_some() || self.is_closing {
            return None;
        }
        let best = self.fittest_peer(now)?;
        let state = &self.peers.get(&best)?.state;
        let is_preferred_leader = self.preferred_leader() == Some(best) && !state.fitness.is_worse_than(&self.fitness);
        (self.fitness.is_worse_than(&state.fitness) || is_preferred_leader).then_some(best)
    }

    /// The preferred leader among equally fit gateways.
    fn preferred_leader(&self) -> Option<NodeId> {
        self.placement.preferred_leader.or(self.config.preferred)
    }

    /// Of the named, eligible peers with a recent report and a compatible configuration: the fittest, then the
    /// preferred leader.
    pub(super) fn fittest_peer(&self, now: MonoNs) -> Option<NodeId> {
        let can_lead = self.peers.keys().filter(|node| self.can_take_over(**node, now));
        can_lead.copied().max_by_key(|node| {
            let class = self.peers.get(node).map(|peer| peer.state.fitness.class());
            (class, self.preferred_leader() == Some(*node), std::cmp::Reverse(*node))
        })
    }

    pub(super) fn can_take_over(&self, node: NodeId, now: MonoNs) -> bool {
        let Some(peer) = self.peers.get(&node) else { return false };
        let Phase::Leading(leadership) = &self.phase else { return false };
        self.has_compatible_config(&peer.state)
            && leadership.candidates.get(&node) == Some(&peer.state.member.name)
            && peer.state.eligibility == Eligibility::Eligible
            && now.since(peer.received_at) <= self.config.timing.lease_ns
    }
}

/// Maximum number of admitted gateways: node numbers have 8 bits.
const ADMITTED_MAX: usize = 256;
