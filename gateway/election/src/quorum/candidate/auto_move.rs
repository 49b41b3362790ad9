//! Automatic moves of a leader, to a fitter gateway or to the preferred one; and which gateway tries first when the
//! leader is gone.

use super::*;
use crate::{
    auto_move::{AutoMoveConfig, TenureSoFar},
    core::PeerView,
};

/// Policy of automatic moves; without it a leader stays until a hand-over is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AutoMovePolicy {
    pub(super) config: AutoMoveConfig,
    pub(super) preferred: Option<NodeId>,
}

/// State of a leader's tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tenure {
    pub(super) so_far: TenureSoFar,
    /// Since when this gateway should hand over.
    pub(super) worse_since: Option<MonoNs>,
}

impl Candidate {
    /// Enables automatic moves: to a fitter gateway, to the placement's preferred leader, or to the configured one.
    #[must_use]
    pub fn with_auto_moves(self, config: AutoMoveConfig, preferred: Option<NodeId>) -> Self {
        Self { auto_move: Some(AutoMovePolicy { config, preferred }), ..self }
    }

    pub(super) fn step_auto_move(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let Some(AutoMovePolicy { config, .. }) = self.auto_move else { return };
        let (target, class) = (self.better_peer(now), self.fitness.class());
        let Phase::Leading(LeaderState { tenure: Some(tenure), preparing, hand_over_next, .. }) = &mut self.phase
        else {
            return;
        };
        let is_handing_over = preparing.is_some() || hand_over_next.is_some();
        if target.is_none() {
            tenure.worse_since = None;
            return;
        }
        let worse_since = *tenure.worse_since.get_or_insert(now);
        if !is_handing_over && now >= config.move_at(&tenure.so_far, worse_since, class) {
            // If the hand-over fails, the next one waits.
            tenure.worse_since = Some(now);
            let is_counted = AutoMoveConfig::counts_move(&tenure.so_far, class);
            let moves = self.recent_moves(now).saturating_add(u32::from(is_counted));
            self.begin_hand_over(now, target, moves, outputs);
        }
    }

    /// When [`Self::step_auto_move`] is due.
    pub(super) fn auto_move_due_at(&self, lead: &LeaderState) -> Option<MonoNs> {
        let (auto_move, tenure) = (self.auto_move?, lead.tenure?);
        let is_handing_over = lead.preparing.is_some() || lead.hand_over_next.is_some();
        let worse_since = tenure.worse_since.filter(|_| !is_handing_over)?;
        Some(auto_move.config.move_at(&tenure.so_far, worse_since, self.fitness.class()))
    }

    /// Number of recent automatic moves.
    pub(super) fn recent_moves(&self, now: MonoNs) -> u32 {
        let (Some(AutoMovePolicy { config, .. }), Phase::Leading(LeaderState { tenure: Some(tenure), .. })) =
            (self.auto_move, &self.phase)
        else {
            return 0;
        };
        if config.resets_moves(tenure.so_far.since, now) { 0 } else { tenure.so_far.moves }
    }

    /// The gateway that should lead instead: a class fitter, or as fit and preferred.
    fn better_peer(&self, now: MonoNs) -> Option<NodeId> {
        let is_connected = matches!(self.connection, ConnectionState::Connected | ConnectionState::Reconnected);
        if self.pin == Pin::Pinned || self.has_output_mismatch || !is_connected {
            return None;
        }
        let preferred_leader = self.preferred_leader();
        let class =
            |node: NodeId, fitness: Fitness| (fitness.class(), preferred_leader == Some(node), std::cmp::Reverse(node));
        let eligible = self.eligible_peers(now);
        let (best, fitness) = eligible.max_by_key(|(node, fitness)| class(*node, *fitness))?;
        let is_preferred_leader = preferred_leader == Some(best) && !fitness.is_worse_than(&self.fitness);
        (self.fitness.is_worse_than(&fitness) || is_preferred_leader).then_some(best)
    }

    /// The preferred leader among equally fit gateways.
    fn preferred_leader(&self) -> Option<NodeId> {
        self.placement.preferred_leader.or_else(|| self.auto_move?.preferred)
    }

    fn eligible_peers(&self, now: MonoNs) -> impl Iterator<Item = (NodeId, Fitness)> {
        let others = self.voter.eligible_peers(now, self.node(), self.peer_timeout_ns());
        others.filter(|(node, _)| self.config.candidates.contains_key(node) && self.may_hand_over_to(*node))
    }

    /// A gateway counts as present if its last message is at most this old.
    pub(super) fn peer_timeout_ns(&self) -> u64 {
        2 * self.config.timing.lease_ns
    }

    /// How much longer this gateway waits than the preferred successor, while that one is eligible and as fit. The wait
    /// decides which gateway tries first, never which one may lead.
    pub(super) fn yield_ns_at(&self, now: MonoNs) -> u64 {
        let preferred_successor = self.placement.preferred_successor.filter(|node| *node != self.node());
        let Some(preferred_successor) = preferred_successor else { return 0 };
        let is_preferred_and_fit =
            |(node, fitness): (NodeId, Fitness)| node == preferred_successor && !fitness.is_worse_than(&self.fitness);
        if self.eligible_peers(now).any(is_preferred_and_fit) { self.config.timing.renew_ns / 2 } else { 0 }
    }

    /// The last reported states of the other gateways.
    pub(super) fn peer_views(&self) -> BTreeMap<NodeId, PeerView> {
        let others = self
            .voter
            .peer_views()
            .filter(|(node, _)| *node != self.node() && self.config.candidates.contains_key(node));
        others.collect()
    }
}
