//! The coordinator, which is the oldest live member: admits nodes, marks members failed, probes failed members.

use std::{collections::BTreeSet, net::SocketAddr};

use mdgw_wire::time::MonoNs;

use super::{
    Emergent, Safeguard,
    member_list::ListVersion,
    membership::MemberLiveness,
    message::{Message, PartitionSide},
};
use crate::identity::{Member, NodeId};

/// A node that is on the list and whose join is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingJoin {
    pub(super) member: Member,
    pub(super) address: SocketAddr,
    pub(super) nonce: u64,
    /// The join is answered when all other live members have this version of the list, or a newer one.
    pub(super) version: ListVersion,
    pub(super) since: MonoNs,
}

impl Emergent {
    /// The coordinator's periodic work.
    pub(super) fn coordinate(&mut self, now: MonoNs) {
        if self.is_coordinator() {
            self.mark_silent_failed(now);
            self.answer_joins(now);
            self.probe(now);
        }
    }

    pub(super) fn on_join(&mut self, now: MonoNs, from: Member, address: SocketAddr, nonce: u64) {
        let ours = self.config.member.node;
        let is_coordinator = self.is_coordinator();
        let Some(membership) = self.membership_mut() else { return };
        if !is_coordinator {
            if let Some(coordinator) = membership.list.coordinator().map(|listed| listed.address) {
                self.send(address, Some(from.incarnation), Message::Redirect { nonce, coordinator });
            }
            return;
        }
        if membership.yielding.is_some() || membership.is_leaving {
            return;
        }
        let known = membership.list.members.iter().find(|listed| listed.member.node == from.node);
        // Another node with the same number, by a configuration error, or a message from before a restart.
        if known.is_some_and(|known| known.member.name != from.name || known.member.incarnation > from.incarnation) {
            return;
        }
        if membership.pending.iter().any(|join| join.member == from && join.nonce == nonce) {
            return;
        }
        if membership.answered_joins.get(&from.node) == Some(&nonce) && membership.list.find_live(&from).is_some() {
            return self.accept_join(address, &from, nonce);
        }
        membership.pending.retain(|join| join.member.node != from.node);
        membership.list.admit(ours, from.clone(), address);
        let version = membership.list.version;
        membership.liveness.insert(from.node, MemberLiveness::not_yet_received(from.node, version, now));
        membership.live_count_max = membership.live_count_max.max(membership.list.live_count());
        membership.acknowledged.remove(&from.node);
        membership.pending.push(PendingJoin { member: from, address, nonce, version, since: now });
        self.publish_list(now);
    }

    pub(super) fn on_acknowledge(&mut self, from: &Member, version: ListVersion) {
        if let Some(membership) = self.membership_mut()
            && membership.list.find_live(from).is_some()
        {
            membership.acknowledged.insert(from.node, version);
        }
    }

    pub(super) fn on_leave(&mut self, now: MonoNs, from: &Member) {
        let is_member = self.membership().is_some_and(|membership| membership.list.find_live(from).is_some());
        if is_member && self.is_coordinator() {
            let ours = self.config.member.node;
            if let Some(membership) = self.membership_mut() {
                membership.list.remove(ours, from.node);
                membership.forget_unlisted(now, ours);
            }
            self.publish_list(now);
        }
    }

    pub(super) fn is_pending(&self, member: &Member) -> bool {
        self.membership().is_some_and(|membership| membership.pending.iter().any(|join| join.member == *member))
    }

    /// This side of a split, as the coordinator reports it to the other side.
    pub(super) fn own_side(&self) -> Option<PartitionSide> {
        let list = &self.membership()?.list;
        let coordinator = list.coordinator()?;
        Some(PartitionSide {
            coordinator: coordinator.member.clone(),
            address: coordinator.address,
            age: coordinator.age,
            live_count: list.live_count(),
            epoch: self.known_epoch,
        })
    }

    fn mark_silent_failed(&mut self, now: MonoNs) {
        let silence_ns = self.silence_ns();
        let Some(membership) = self.membership() else { return };
        let silent: Vec<NodeId> = membership
            .list
            .live()
            .filter(|listed| listed.member != self.config.member && !self.is_pending(&listed.member))
            .filter(|listed| self.is_silent(membership, listed, now, silence_ns))
            .map(|listed| listed.member.node)
            .collect();
        if !silent.is_empty() {
            self.mark_members_failed(now, &silent);
        }
    }

    /// Answers the joins that all other live members have acknowledged, or that have waited for their limit.
    fn answer_joins(&mut self, now: MonoNs) {
        let bound_ns = self.config.timing.join_ns_max;
        let ours = self.config.member.clone();
        let Some(membership) = self.membership_mut() else { return };
        let is_due = |join: &PendingJoin| {
            let mut others =
                membership.list.live().filter(|listed| listed.member != ours && listed.member != join.member);
            let has_it = |node: &NodeId| membership.acknowledged.get(node).is_some_and(|has| *has >= join.version);
            let is_pending = |member: &Member| membership.pending.iter().any(|other| other.member == *member);
            now >= join.since.plus(bound_ns)
                || others.all(|listed| has_it(&listed.member.node) || is_pending(&listed.member))
        };
        let due: Vec<_> = membership.pending.iter().filter(|join| is_due(join)).cloned().collect();
        for join in &due {
            membership.pending.retain(|other| other.member != join.member);
            membership.answered_joins.insert(join.member.node, join.nonce);
            let version = membership.list.version;
            membership
                .liveness
                .insert(join.member.node, MemberLiveness::not_yet_received(join.member.node, version, now));
        }
        for PendingJoin { member, address, nonce, .. } in due {
            self.accept_join(address, &member, nonce);
        }
    }

    fn accept_join(&mut self, address: SocketAddr, member: &Member, nonce: u64) {
        let Some(membership) = self.membership() else { return };
        let list = membership.list.clone();
        let epoch = self.known_epoch;
        self.send(address, Some(member.incarnation), Message::JoinAccepted { nonce, list, epoch });
    }

    /// Probes failed members: they may have come back, or live on the other side of a cut. Probes absent seeds too: a
    /// node that left the list and bootstrapped or inherited a list alone is on nobody's list as failed.
    fn probe(&mut self, now: MonoNs) {
        let probe_ns = self.config.timing.probe_ns;
        let Some(side) = self.own_side() else { return };
        let Some(membership) = self.membership_mut() else { return };
        if now < membership.probe_at || membership.yielding.is_some() {
            return;
        }
        membership.probe_at = now.plus(probe_ns);
        let live: Vec<_> = membership.list.live().map(|listed| listed.address).collect();
        let mut absent: BTreeSet<_> = membership.list.failed().map(|listed| listed.address).collect();
        if !self.is_disabled(Safeguard::ProbeSeeds) {
            absent.extend(self.config.seeds.iter().filter(|seed| !live.contains(seed)));
        }
        absent.remove(&self.config.address);
        for address in absent {
            self.send(address, None, Message::Probe(side.clone()));
        }
    }
}
