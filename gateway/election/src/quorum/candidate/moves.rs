//! A leader that moves on by itself, to who is fitter or where the group belongs; and who tries first when it is gone.

use super::*;
use crate::{core::PeerView, moves::MovesConfig};

/// What decides about moves; without it a leader stays until somebody asks it to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mobility {
    pub(super) config: MovesConfig,
    pub(super) preferred: Option<NodeId>,
}

/// How long a leader leads, and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tenure {
    pub(super) since: MonoNs,
    /// Moves by themselves that brought the lead here.
    pub(super) moves: u32,
    /// Since when it should move.
    pub(super) worse_from: Option<MonoNs>,
}

impl Candidate {
    /// Lets a leader move on by itself: to a fitter gateway, to where the group belongs, or to the preferred one.
    #[must_use]
    pub fn moving_by(self, config: MovesConfig, preferred: Option<NodeId>) -> Self {
        Self { mobility: Some(Mobility { config, preferred }), ..self }
    }

    pub(super) fn moves_turn(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let Some(Mobility { config, .. }) = self.mobility else { return };
        let (target, class) = (self.better_peer(now), self.fitness.class());
        let Phase::Leading(Lead { tenure: Some(tenure), preparing, .. }) = &mut self.phase else { return };
        if target.is_none() {
            tenure.worse_from = None;
            return;
        }
        let worse_from = *tenure.worse_from.get_or_insert(now);
        if preparing.is_none() && now >= config.move_at(tenure.since, worse_from, tenure.moves, class) {
            // If nothing comes of it, there is time before the next.
            tenure.worse_from = Some(now);
            let moves = self.moves_made(now).saturating_add(1);
            self.begin_hand_over(now, target, moves, outputs);
        }
    }

    /// When [`Self::moves_turn`] is due.
    pub(super) fn moves_turn_at(&self, lead: &Lead) -> Option<MonoNs> {
        let (mobility, tenure) = (self.mobility?, lead.tenure?);
        let worse_from = tenure.worse_from.filter(|_| lead.preparing.is_none())?;
        Some(mobility.config.move_at(tenure.since, worse_from, tenure.moves, self.fitness.class()))
    }

    /// How many moves there were not long ago.
    pub(super) fn moves_made(&self, now: MonoNs) -> u32 {
        let (Some(Mobility { config, .. }), Phase::Leading(Lead { tenure: Some(tenure), .. })) =
            (self.mobility, &self.phase)
        else {
            return 0;
        };
        if config.is_settled(tenure.since, now) { 0 } else { tenure.moves }
    }

    /// Who should lead instead: a class fitter, or as fit and at home.
    fn better_peer(&self, now: MonoNs) -> Option<NodeId> {
        let is_sure = matches!(self.connection, ConnectionState::Connected | ConnectionState::Reconnected);
        if self.pin == Pin::Pinned || self.differs || !is_sure {
            return None;
        }
        let home = self.home();
        let class = |node: NodeId, fitness: Fitness| (fitness.class(), home == Some(node), std::cmp::Reverse(node));
        let standing = self.standing_peers(now);
        let (best, fitness) = standing.max_by_key(|(node, fitness)| class(*node, *fitness))?;
        let is_home = home == Some(best) && !fitness.is_worse_than(&self.fitness);
        (self.fitness.is_worse_than(&fitness) || is_home).then_some(best)
    }

    /// Who is to lead, of those as fit.
    fn home(&self) -> Option<NodeId> {
        self.place.home.or_else(|| self.mobility?.preferred)
    }

    fn standing_peers(&self, now: MonoNs) -> impl Iterator<Item = (NodeId, Fitness)> {
        let others = self.voter.standing(now, self.node(), self.fresh_ns());
        others.filter(|(node, _)| self.config.candidates.contains_key(node) && self.may_be_followed_by(*node))
    }

    /// Whoever was heard within this time is there.
    pub(super) fn fresh_ns(&self) -> u64 {
        2 * self.config.timing.lease_ns
    }

    /// How much longer this gateway waits than the one that is meant to follow, while that one stands and is as fit. It
    /// decides who tries first, never who may.
    pub(super) fn deference_ns_at(&self, now: MonoNs) -> u64 {
        let successor = self.place.successor.filter(|node| *node != self.node());
        let Some(successor) = successor else { return 0 };
        let stands = |(node, fitness): (NodeId, Fitness)| node == successor && !fitness.is_worse_than(&self.fitness);
        if self.standing_peers(now).any(stands) { self.config.timing.renew_ns / 2 } else { 0 }
    }

    /// What the others have said of themselves.
    pub(super) fn peer_views(&self) -> BTreeMap<NodeId, PeerView> {
        let others =
            self.voter.heard().filter(|(node, _)| *node != self.node() && self.config.candidates.contains_key(node));
        others.collect()
    }
}
