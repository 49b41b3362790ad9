//! A leader: renews, admits candidates, and moves on by itself where another is fitter.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use super::{
    Lease, Phase,
    heir::CameFrom,
    leaving::{Leaving, Offer, OfferCause, Way},
    promises::OpenQuestion,
};
use crate::{
    core::{CloseReason, Notice, Output, Pin},
    fitness::Standing,
    identity::{Member, NodeId, NodeName},
    record::{ConfigurationMark, Record},
};

/// An open fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leadership {
    pub(super) epoch: Epoch,
    /// The margin is already taken off.
    pub(super) deadline: MonoNs,
    pub(super) since: MonoNs,
    /// When the next renewal is to be sent.
    pub(super) renew_at: MonoNs,
    /// The candidates of the record in force.
    pub(super) named: BTreeMap<NodeId, NodeName>,
    /// To the candidates, while the store is lost; the newest last.
    pub(super) questions: Vec<OpenQuestion>,
    pub(super) ask_at: MonoNs,
    pub(super) is_on_promises: bool,
    /// A hand-over that is being prepared.
    pub(super) offer: Option<Offer>,
    /// What it came from, while the record does not show it.
    pub(super) came_from: Option<CameFrom>,
    /// Since when it should move.
    pub(super) worse_from: Option<MonoNs>,
}

impl Leadership {
    pub(super) fn new(now: MonoNs, epoch: Epoch, deadline: MonoNs, named: BTreeMap<NodeId, NodeName>) -> Self {
        Self {
            epoch,
            deadline,
            since: now,
            // At once: what it opened with may have been sent a while ago.
            renew_at: now,
            named,
            questions: Vec::new(),
            ask_at: now,
            is_on_promises: false,
            offer: None,
            came_from: None,
            worse_from: None,
        }
    }

    /// The store has confirmed a renewal. Whether it had been lost before.
    pub(super) fn renewed(&mut self, deadline: MonoNs, named: &BTreeMap<NodeId, NodeName>) -> bool {
        self.deadline = self.deadline.max(deadline);
        self.named.clone_from(named);
        self.came_from = None;
        self.questions.clear();
        std::mem::take(&mut self.is_on_promises)
    }
}

impl Lease {
    /// What a leader decides by itself.
    pub(super) fn leading_turn(&mut self, now: MonoNs) {
        let Phase::Leading(leadership) = &self.phase else { return };
        if self.heard > leadership.epoch && self.heard > self.opened {
            let (heard, deadline) = (self.heard, leadership.deadline);
            self.say(Output::Notice(Notice::HigherEpochHeard(heard)));
            self.leave(now, CloseReason::Outranked, Way::Reopen, deadline);
            return;
        }
        let obstacle = self.own_obstacle();
        self.set_obstacle(obstacle);
        self.offer_turn(now);
        self.moves_turn(now);
    }

    /// When [`Self::leading_turn`] or the end of the lease is due.
    pub(super) fn leading_turn_at(&self, leadership: &Leadership) -> MonoNs {
        let ask = self.doubtful_from.filter(|_| leadership.came_from.is_none()).map(|_| leadership.ask_at);
        let offer = leadership.offer.as_ref().map(|offer| {
            // What is so until the next renewal is so now.
            if self.is_ready(offer, leadership.renew_at) { MonoNs(0) } else { self.offer_ends(offer) }
        });
        let moves =
            leadership.worse_from.filter(|_| leadership.offer.is_none()).map(|from| self.move_at(leadership, from));
        [ask, offer, moves].into_iter().flatten().fold(leadership.deadline, MonoNs::min)
    }

    /// When the next renewal is to be sent; `None`: something keeps it from renewing.
    pub(super) fn renew_at(&self, leadership: &Leadership) -> Option<MonoNs> {
        self.own_obstacle().is_none().then_some(leadership.renew_at)
    }

    pub(super) fn record_to_renew(&mut self, now: MonoNs) -> Option<Record> {
        let Phase::Leading(leadership) = &self.phase else { return None };
        if self.renew_at(leadership).is_none_or(|at| now < at) {
            return None;
        }
        let is_settled = self.config.moves.is_settled(leadership.since, now);
        let epoch = leadership.epoch;
        // Others must be able to read it before anything else: until then it is tried again at once.
        let came_from = leadership.came_from;
        self.choose_heir(now);
        let mut record = self.record_of_own(now, epoch);
        record.moves += u32::from(came_from.is_some_and(|before| before.is_automatic));
        record.pinned = self.pin.map_or(record.pinned, |pin| pin == Pin::Pinned);
        if is_settled {
            record.moves = 0;
        }
        let renew_ns = self.config.timing.renew_ns;
        if let Phase::Leading(leadership) = &mut self.phase {
            leadership.renew_at = if came_from.is_some() { now } else { now.plus(renew_ns) };
        }
        Some(record)
    }

    /// Leadership ends without anything to give away.
    pub(super) fn end_leadership(&mut self, now: MonoNs, reason: CloseReason) {
        let Some(epoch) = self.leading_epoch() else { return };
        self.pin = None;
        self.phase = Phase::Candidate;
        self.sends_end = now.plus(self.config.timing.send_ns_max);
        // Nothing of the old leadership is revived: the own record is waited for like any other.
        self.knowledge.wait_again(now);
        self.say(Output::Close { epoch, reason });
    }

    /// Closes the fence and goes on to give the record away, or to take it anew.
    pub(super) fn leave(&mut self, now: MonoNs, reason: CloseReason, way: Way, deadline: MonoNs) {
        let Some(epoch) = self.leading_epoch() else { return };
        self.pin = self.pin.filter(|_| way == Way::Reopen);
        self.sends_end = now.plus(self.config.timing.send_ns_max);
        self.say(Output::Close { epoch, reason });
        let drained = match way {
            Way::Reopen => Some(BTreeMap::new()),
            Way::HandOver { .. } | Way::Release { .. } => {
                self.say(Output::Drain);
                None
            }
        };
        self.phase = Phase::Leaving(Leaving { epoch, deadline, way, drained });
    }

    /// A gateway asks to be named. Who is configured here, with what is published here, is; others only by hand.
    pub(super) fn on_admit_ask(&mut self, from: NodeId, member: Member, configuration: ConfigurationMark) {
        let is_configured = self.config.candidates.get(&from) == Some(&member.name) && member.node == from;
        let ours = self.config.configuration;
        if is_configured && configuration.revision >= ours.revision && self.admitted.len() < ADMITTED_MAX {
            self.admitted.insert(from, member.name);
        }
    }

    // ---- moves by itself ----

    fn moves_turn(&mut self, now: MonoNs) {
        let target = self.better_peer(now);
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if target.is_none() {
            leadership.worse_from = None;
            return;
        }
        let from = *leadership.worse_from.get_or_insert(now);
        let Phase::Leading(leadership) = &self.phase else { return };
        if leadership.offer.is_none() && now >= self.move_at(leadership, from) {
            self.offer(now, target, OfferCause::Automatic);
        }
    }

    fn move_at(&self, leadership: &Leadership, worse_from: MonoNs) -> MonoNs {
        let moves = self.knowledge.record().map_or(0, |record| record.moves);
        self.config.moves.move_at(leadership.since, worse_from, moves, self.fitness.class())
    }

    /// Who should lead instead: a class fitter, or as fit and preferred.
    fn better_peer(&self, now: MonoNs) -> Option<NodeId> {
        let pinned = self.knowledge.record().is_some_and(|record| record.pinned);
        let is_free = self.pin.map_or(!pinned, |pin| pin == Pin::Free);
        if !is_free || self.differs || self.doubtful_from.is_some() || self.closing {
            return None;
        }
        let best = self.fittest_peer(now)?;
        let state = &self.peers.get(&best)?.state;
        let is_home = self.home() == Some(best) && !state.fitness.is_worse_than(&self.fitness);
        (self.fitness.is_worse_than(&state.fitness) || is_home).then_some(best)
    }

    /// Who is to lead, of those as fit.
    fn home(&self) -> Option<NodeId> {
        self.place.home.or(self.config.preferred)
    }

    /// Of those named, standing, heard lately and level in configuration: the fittest, then the one that is to lead.
    pub(super) fn fittest_peer(&self, now: MonoNs) -> Option<NodeId> {
        let can_lead = self.peers.keys().filter(|node| self.can_take_over(**node, now));
        can_lead.copied().max_by_key(|node| {
            let class = self.peers.get(node).map(|peer| peer.state.fitness.class());
            (class, self.home() == Some(*node), std::cmp::Reverse(*node))
        })
    }

    pub(super) fn can_take_over(&self, node: NodeId, now: MonoNs) -> bool {
        let Some(peer) = self.peers.get(&node) else { return false };
        let Phase::Leading(leadership) = &self.phase else { return false };
        self.is_level_with(&peer.state)
            && leadership.named.get(&node) == Some(&peer.state.member.name)
            && peer.state.standing == Standing::Stands
            && now.since(peer.heard_at) <= self.config.timing.lease_ns
    }
}

/// More cannot have a node number.
const ADMITTED_MAX: usize = 256;
