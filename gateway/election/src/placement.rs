//! Each gateway's preferences for its groups, from the state of its elections: where each group belongs, and which
//! gateway should succeed its leader.
//!
//! There is no central scheduler. Every gateway computes the same from the same records and the same reported states,
//! and hands over only groups that it leads. Where the gateways differ for a moment, the lease core's minimum tenure
//! and wait keep groups from moving back and forth. A joining gateway gets its share when it has joined in all groups.

use std::collections::{BTreeMap, BTreeSet};

use mdgw_wire::{identity::GroupId, time::MonoNs};

use super::{
    assignment::{GroupLoad, Host, place},
    core::{GroupPlacement, Pin, View},
    fitness::FitnessClass,
    identity::NodeId,
};

/// A group, as its election on this gateway sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupObservation {
    /// Cost of the group: see [`GroupLoad::load`].
    pub load: u32,
    /// The state of the group's election, as known to this gateway.
    pub view: View,
}

/// Where each group belongs. `own`: this gateway. A gateway whose last report is older than `lease_ns` counts as
/// absent.
#[must_use]
pub fn group_placements(
    groups: &BTreeMap<GroupId, GroupObservation>,
    own: NodeId,
    now: MonoNs,
    lease_ns: u64,
) -> BTreeMap<GroupId, GroupPlacement> {
    let classes: BTreeMap<GroupId, BTreeMap<NodeId, FitnessClass>> = groups
        .iter()
        .map(|(group, observation)| (*group, eligible_classes(&observation.view, own, now, lease_ns)))
        .collect();
    // A gateway is fit for a group if no other gateway is fitter there.
    let is_eligible = |group: GroupId, node: NodeId| {
        let classes = classes.get(&group);
        classes.is_some_and(|classes| classes.get(&node).is_some_and(|class| Some(class) == classes.values().max()))
    };
    // A joining gateway is caught up in one group sooner than in another. If it counted too early, groups would move in
    // vain.
    let leads = |node: NodeId| {
        groups.values().any(|observation| observation.view.leader.as_ref().is_some_and(|leader| leader.node == node))
    };
    let is_able_everywhere = |node: NodeId| classes.values().all(|classes| classes.contains_key(&node));
    let nodes: BTreeSet<NodeId> = classes
        .values()
        .flat_map(|classes| classes.keys().copied())
        .filter(|node| leads(*node) || is_able_everywhere(*node))
        .collect();
    let hosts: Vec<Host> = nodes.iter().map(|node| Host { node: *node, capacity: 1 }).collect();
    let held: Vec<GroupLoad> = groups
        .iter()
        .map(|(group, GroupObservation { load, view })| {
            let holder = view.leader.as_ref().map(|leader| leader.node);
            GroupLoad { group: *group, load: *load, holder, pinned: view.pin == Pin::Pinned }
        })
        .collect();
    let preferred_leaders = place(&held, &hosts, is_eligible);
    let leaders: BTreeSet<NodeId> = groups.values().filter_map(|observation| last_leader(&observation.view)).collect();
    let assigned_without: BTreeMap<NodeId, BTreeMap<GroupId, NodeId>> = leaders
        .into_iter()
        .map(|gone| {
            let rest: Vec<Host> = hosts.iter().copied().filter(|host| host.node != gone).collect();
            (gone, place(&held, &rest, is_eligible))
        })
        .collect();
    let preferred_successor = |group: &GroupId, view: &View| match last_leader(view) {
        Some(leader) => assigned_without.get(&leader)?.get(group),
        None => preferred_leaders.get(group),
    };
    let of = |(group, observation): (&GroupId, &GroupObservation)| {
        (
            *group,
            GroupPlacement {
                preferred_leader: preferred_leaders.get(group).copied(),
                preferred_successor: preferred_successor(group, &observation.view).copied(),
            },
        )
    };
    groups.iter().map(of).collect()
}

/// The gateways that could lead a group, and the fitness class of each.
fn eligible_classes(view: &View, own: NodeId, now: MonoNs, lease_ns: u64) -> BTreeMap<NodeId, FitnessClass> {
    let is_there = |received_at: MonoNs| now.since(received_at) <= lease_ns;
    let others = view.peers.iter().filter(|(_, peer)| peer.can_lead && is_there(peer.received_at));
    let own = view.can_lead.then(|| (own, view.fitness.class()));
    others.map(|(node, peer)| (*node, peer.fitness.class())).chain(own).collect()
}

/// The present or last leader. A released record names no holder, but its epoch carries the last holder's number.
fn last_leader(view: &View) -> Option<NodeId> {
    let made_by = || (view.epoch.count() > 0).then(|| NodeId::of(view.epoch));
    view.leader.as_ref().map(|leader| leader.node).or_else(made_by)
}

#[cfg(test)]
mod tests {
    use mdgw_wire::identity::Epoch;

    use super::*;
    use crate::{
        core::PeerView,
        fitness::Fitness,
        identity::{Incarnation, Member, NodeName},
    };

    const NOW: MonoNs = MonoNs(10_000);
    const LEASE_NS: u64 = 100;

    fn member(node: u8) -> Member {
        Member { node: NodeId(node), name: NodeName::new(&format!("gw{node}")).unwrap(), incarnation: Incarnation(1) }
    }

    /// The view of gateway `own`, which has just received states of `others`.
    fn observation(own: u8, others: &[u8], leader: Option<u8>) -> GroupObservation {
        let peer = PeerView { received_at: NOW, fitness: Fitness::default(), can_lead: true };
        let view = View {
            epoch: leader.map_or_else(Epoch::default, |leader| Epoch::new(3, leader)),
            leader: leader.map(member),
            can_lead: true,
            peers: others.iter().filter(|node| **node != own).map(|node| (NodeId(*node), peer)).collect(),
            ..View::default()
        };
        GroupObservation { load: 1, view }
    }

    fn six_groups(own: u8, others: &[u8], leaders: [Option<u8>; 6]) -> BTreeMap<GroupId, GroupObservation> {
        (1..).map(GroupId).zip(leaders.map(|leader| observation(own, others, leader))).collect()
    }

    fn of(own: u8, groups: &BTreeMap<GroupId, GroupObservation>) -> BTreeMap<GroupId, GroupPlacement> {
        group_placements(groups, NodeId(own), NOW, LEASE_NS)
    }

    const SPREAD: [Option<u8>; 6] = [Some(1), Some(1), Some(2), Some(2), Some(3), Some(3)];

    #[test]
    fn all_gateways_compute_the_same_placement() {
        for leaders in [[None; 6], [Some(1); 6], SPREAD] {
            let wanted = of(1, &six_groups(1, &[2, 3], leaders));
            assert_eq!(of(2, &six_groups(2, &[1, 3], leaders)), wanted);
            assert_eq!(of(3, &six_groups(3, &[1, 2], leaders)), wanted);
        }
    }

    #[test]
    fn spread_groups_stay_and_a_dead_gateways_groups_go_one_to_each_survivor() {
        let wanted = of(1, &six_groups(1, &[2, 3], SPREAD));
        let preferred_leaders: Vec<_> =
            wanted.values().map(|place| place.preferred_leader.map(|node| node.0)).collect();
        assert_eq!(preferred_leaders, SPREAD);
        for (pair, leader) in wanted.values().collect::<Vec<_>>().chunks(2).zip(1..) {
            let [one, other] = [pair[0].preferred_successor.unwrap().0, pair[1].preferred_successor.unwrap().0];
            assert!(one != other && one != leader && other != leader, "{leader}: {one} {other}");
        }
    }

    #[test]
    fn a_gateway_that_released_its_groups_is_not_their_successor() {
        let mut groups = six_groups(1, &[2, 3], SPREAD);
        for observation in groups.values_mut().filter(|observation| NodeId::of(observation.view.epoch) == NodeId(2)) {
            observation.view.leader = None;
        }
        let wanted = of(1, &groups);
        let mut followers: Vec<_> =
            [3, 4].iter().map(|group| wanted[&GroupId(*group)].preferred_successor.unwrap().0).collect();
        followers.sort_unstable();
        assert_eq!(followers, [1, 3]);
    }

    #[test]
    fn a_silent_joining_or_less_fit_gateway_is_assigned_nothing() {
        let homes_at_2 = |change: fn(&mut PeerView)| {
            let mut groups = six_groups(1, &[2, 3], [Some(1); 6]);
            for observation in groups.values_mut() {
                change(observation.view.peers.get_mut(&NodeId(2)).unwrap());
            }
            of(1, &groups).values().filter(|place| place.preferred_leader == Some(NodeId(2))).count()
        };
        assert_eq!(homes_at_2(|_| {}), 2);
        assert_eq!(homes_at_2(|peer| peer.received_at = MonoNs(NOW.0 - LEASE_NS - 1)), 0);
        assert_eq!(homes_at_2(|peer| peer.can_lead = false), 0);
        assert_eq!(homes_at_2(|peer| peer.fitness.stalled = true), 0);
    }

    #[test]
    fn a_gateway_that_has_joined_only_some_groups_causes_no_moves() {
        let mut groups = six_groups(1, &[2, 3], [Some(1), Some(1), Some(1), Some(2), Some(2), Some(2)]);
        let joined_in = |groups: &mut BTreeMap<GroupId, GroupObservation>, wanted: fn(u16) -> bool| {
            for (group, observation) in groups {
                observation.view.peers.get_mut(&NodeId(3)).unwrap().can_lead = wanted(group.0);
            }
        };
        let moving = |groups: &BTreeMap<GroupId, GroupObservation>| {
            let stays = |(group, place): (&GroupId, &GroupPlacement)| {
                place.preferred_leader == groups[group].view.leader.as_ref().map(|leader| leader.node)
            };
            of(1, groups).iter().filter(|wanted| !stays(*wanted)).count()
        };
        joined_in(&mut groups, |group| group > 3);
        assert_eq!(moving(&groups), 0);
        joined_in(&mut groups, |_| true);
        assert_eq!(moving(&groups), 2);
    }

    #[test]
    fn a_lone_gateway_leads_all_groups_without_a_successor() {
        let wanted = of(1, &six_groups(1, &[], [None, Some(2), Some(1), None, None, None]));
        assert!(wanted.values().all(|place| place.preferred_leader == Some(NodeId(1))));
        assert_eq!(wanted[&GroupId(3)].preferred_successor, None);
        assert_eq!(wanted[&GroupId(2)].preferred_successor, Some(NodeId(1)));
    }
}
