//! Which gateway should publish which group, where several gateways share several groups.
//!
//! A pure function of data that every gateway has: the groups with their loads and present holders, and the fit
//! gateways. All gateways compute the same result, in whatever order they learned the data. The result is a preference:
//! a group moves only by hand-over, from a leading holder to an eligible gateway.
//!
//! **Spread.** A gateway's fair share is its part of the load by capacity. A gateway that has its share takes no
//! further group. So no gateway exceeds its share by a whole group.
//!
//! **As few moves as possible.** A group stays with its holder while the holder is fit and within its share. A group
//! that must move goes to the gateway with room that its name prefers (rendezvous hashing). So a returning gateway gets
//! much the same groups, and no other gateway's groups move.
//!
//! **Unfit gateways.** A gateway does not get groups for which it is not fit, and keeps its other groups. A pinned
//! group stays with its holder.

use std::collections::BTreeMap;

use mdgw_wire::identity::GroupId;

use super::identity::NodeId;

/// A group to be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupLoad {
    /// Number of the group to assign.
    pub group: GroupId,
    /// Cost of the group, in any unit that all groups share, for example channels. 0 counts as 1.
    pub load: u32,
    /// The gateway that publishes the group now.
    pub holder: Option<NodeId>,
    /// The group does not move automatically.
    pub pinned: bool,
}

/// A gateway that may publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The gateway's node number.
    pub node: NodeId,
    /// Capacity, relative to the other gateways. 0 counts as 1.
    pub capacity: u32,
}

/// Assigns each group. `is_eligible`: whether that gateway could publish that group. A group without any eligible
/// gateway stays unassigned.
#[must_use]
pub(crate) fn place(
    groups: &[GroupLoad],
    hosts: &[Host],
    is_eligible: impl Fn(GroupId, NodeId) -> bool,
) -> BTreeMap<GroupId, NodeId> {
    let mut shares = HostShares::new(groups, hosts);
    let mut places = BTreeMap::new();
    let mut unassigned = Vec::new();
    let (pinned, free): (Vec<GroupLoad>, Vec<GroupLoad>) =
        groups.iter().partition(|group| group.pinned && group.holder.is_some_and(|holder| shares.has(holder)));
    for group in &pinned {
        places.extend(group.holder.map(|holder| (group.group, holder)));
        group.holder.into_iter().for_each(|holder| shares.add(holder, group.load));
    }
    for group in in_order(&free, |group| group.holder) {
        match group.holder {
            Some(holder) if is_eligible(group.group, holder) && shares.try_assign(holder, group.load) => {
                places.insert(group.group, holder);
            }
            _ => unassigned.push(*group),
        }
    }
    // Heavy groups first: light ones fill the remaining room.
    for group in in_order(&unassigned, |_| None).into_iter().rev() {
        let mut preferences: Vec<NodeId> = shares.nodes().filter(|node| is_eligible(group.group, *node)).collect();
        preferences.sort_by_key(|node| std::cmp::Reverse((affinity(group.group, *node), *node)));
        let with_room = preferences.iter().copied().find(|node| shares.try_assign(*node, group.load));
        // No eligible gateway has room: the group goes to the one with the smallest assigned load.
        let node = with_room.or_else(|| {
            let node = preferences.into_iter().min_by_key(|node| shares.assigned(*node))?;
            shares.add(node, group.load);
            Some(node)
        });
        places.extend(node.map(|node| (group.group, node)));
    }
    places
}

/// An order that does not depend on how the groups were listed. Light groups come first, so that the same groups fit
/// into a host's share again. Among equally light groups, those that prefer the host come first.
fn in_order(groups: &[GroupLoad], holder: impl Fn(&GroupLoad) -> Option<NodeId>) -> Vec<&GroupLoad> {
    let mut ordered: Vec<&GroupLoad> = groups.iter().collect();
    ordered.sort_by_key(|group| {
        let affinity = holder(group).map(|node| affinity(group.group, node));
        (group.load.max(1), std::cmp::Reverse(affinity), group.group)
    });
    ordered
}

/// The remaining share of each host.
struct HostShares(BTreeMap<NodeId, HostShare>);

struct HostShare {
    assigned: u64,
    share: u64,
}

impl HostShares {
    fn new(groups: &[GroupLoad], hosts: &[Host]) -> Self {
        let load: u64 = groups.iter().map(|group| u64::from(group.load.max(1))).sum();
        let capacity: u64 = hosts.iter().map(|host| u64::from(host.capacity.max(1))).sum();
        let share = |host: &Host| (load * u64::from(host.capacity.max(1))).div_ceil(capacity);
        Self(hosts.iter().map(|host| (host.node, HostShare { assigned: 0, share: share(host) })).collect())
    }

    fn has(&self, node: NodeId) -> bool {
        self.0.contains_key(&node)
    }

    fn assigned(&self, node: NodeId) -> u64 {
        self.0.get(&node).map_or(0, |host_share| host_share.assigned)
    }

    /// Adds the load even if it exceeds the share.
    fn add(&mut self, node: NodeId, load: u32) {
        if let Some(host_share) = self.0.get_mut(&node) {
            host_share.assigned += u64::from(load.max(1));
        }
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.0.keys().copied()
    }

    /// False: the host is absent, or has its share.
    fn try_assign(&mut self, node: NodeId, load: u32) -> bool {
        let Some(host_share) = self.0.get_mut(&node).filter(|host_share| host_share.assigned < host_share.share) else {
            return false;
        };
        host_share.assigned += u64::from(load.max(1));
        true
    }
}

/// How much a group prefers a gateway: the same number on every machine. The finaliser of SplitMix64 makes each pair's
/// number independent of all others.
fn affinity(group: GroupId, node: NodeId) -> u64 {
    let mut mixed = (u64::from(group.0) << 8 | u64::from(node.0)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn groups(count: u16) -> Vec<GroupLoad> {
        (1..=count).map(|group| GroupLoad { group: GroupId(group), load: 1, holder: None, pinned: false }).collect()
    }

    fn anywhere(_: GroupId, _: NodeId) -> bool {
        true
    }

    fn hosts(nodes: &[u8]) -> Vec<Host> {
        nodes.iter().map(|node| Host { node: NodeId(*node), capacity: 1 }).collect()
    }

    /// The same groups, each held by the gateway in `places`.
    fn held(groups: &[GroupLoad], places: &BTreeMap<GroupId, NodeId>) -> Vec<GroupLoad> {
        groups.iter().map(|group| GroupLoad { holder: places.get(&group.group).copied(), ..*group }).collect()
    }

    fn moved(before: &BTreeMap<GroupId, NodeId>, after: &BTreeMap<GroupId, NodeId>) -> Vec<GroupId> {
        before.iter().filter(|(group, node)| after.get(group) != Some(*node)).map(|(group, _)| *group).collect()
    }

    fn counts(places: &BTreeMap<GroupId, NodeId>) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        for node in places.values() {
            *counts.entry(*node).or_default() += 1;
        }
        counts
    }

    #[test]
    fn groups_spread_evenly_and_only_a_dead_gateways_groups_move() {
        let groups = groups(6);
        let first = place(&groups, &hosts(&[1, 2, 3]), anywhere);
        assert!(counts(&first).values().all(|count| *count == 2), "{first:?}");
        let second = place(&held(&groups, &first), &hosts(&[1, 3]), anywhere);
        assert!(counts(&second).values().all(|count| *count == 3), "{second:?}");
        assert!(moved(&first, &second).iter().all(|group| first.get(group) == Some(&NodeId(2))));
        let third = place(&held(&groups, &second), &hosts(&[1, 2, 3]), anywhere);
        assert_eq!(moved(&second, &third).len(), 2, "what the third one's share needs");
        assert!(counts(&third).values().all(|count| *count == 2), "{third:?}");
    }

    #[test]
    fn a_gateway_unfit_for_one_group_loses_only_that_group() {
        let groups = groups(6);
        let first = place(&groups, &hosts(&[1, 2, 3]), anywhere);
        let (bad, node) = first.iter().map(|(group, node)| (*group, *node)).next().unwrap();
        let second = place(&held(&groups, &first), &hosts(&[1, 2, 3]), |group, at| (group, at) != (bad, node));
        assert_eq!(moved(&first, &second), [bad]);
        let nobody = place(&held(&groups, &first), &hosts(&[1, 2, 3]), |group, _| group != bad);
        assert_eq!(nobody.get(&bad), None);
        assert_eq!(nobody.len(), 5);
    }

    #[test]
    fn a_pinned_group_stays_and_counts_towards_its_hosts_share() {
        let mut all = groups(6);
        let holders = all.iter().map(|group| (group.group, NodeId(1))).collect();
        all = held(&all, &holders);
        all.iter_mut().take(4).for_each(|group| group.pinned = true);
        let places = place(&all, &hosts(&[1, 2, 3]), anywhere);
        assert_eq!(moved(&holders, &places), [GroupId(5), GroupId(6)]);
        assert_eq!(counts(&places)[&NodeId(1)], 4);
    }

    #[test]
    fn without_a_fit_gateway_no_group_is_assigned() {
        assert!(place(&groups(3), &[], anywhere).is_empty());
    }

    /// Moves one of the groups `to_move`, chosen by `order`. Returns whether there was one.
    fn move_one(
        groups: &mut [GroupLoad],
        wanted: &BTreeMap<GroupId, NodeId>,
        to_move: impl Fn(&GroupLoad) -> bool,
        order: &mut u64,
    ) -> bool {
        let mut movable: Vec<&mut GroupLoad> = groups.iter_mut().filter(|group| to_move(group)).collect();
        if movable.is_empty() {
            return false;
        }
        *order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let next = usize::try_from(*order >> 33).unwrap() % movable.len();
        movable[next].holder = wanted.get(&movable[next].group).copied();
        true
    }

    proptest! {
        #[test]
        fn each_group_has_a_fit_host_within_its_share_and_stays_there(
            loads in prop::collection::vec((0_u32..9, prop::option::of(0_u8..6)), 1..40),
            capacities in prop::collection::btree_map(0_u8..6, 0_u32..5, 1..6),
        ) {
            let groups: Vec<GroupLoad> = loads
                .iter()
                .zip(1_u16..)
                .map(|((load, holder), group)| {
                    let group = GroupId(group);
                    GroupLoad { group, load: *load, holder: holder.map(NodeId), pinned: false }
                })
                .collect();
            let hosts: Vec<Host> =
                capacities.iter().map(|(node, capacity)| Host { node: NodeId(*node), capacity: *capacity }).collect();
            let places = place(&groups, &hosts, anywhere);
            prop_assert_eq!(places.len(), groups.len());
            let total: u64 = groups.iter().map(|group| u64::from(group.load.max(1))).sum();
            let capacity: u64 = hosts.iter().map(|host| u64::from(host.capacity.max(1))).sum();
            for host in &hosts {
                let mine = groups.iter().filter(|group| places.get(&group.group) == Some(&host.node));
                let loads: Vec<u64> = mine.map(|group| u64::from(group.load.max(1))).collect();
                let share = (total * u64::from(host.capacity.max(1))).div_ceil(capacity);
                let (sum, largest) = (loads.iter().sum::<u64>(), loads.iter().max().copied().unwrap_or(0));
                prop_assert!(sum < share + largest.max(1), "{host:?}: {sum} of {share}");
            }
            // A second run moves nothing, whichever gateway computes it and in whatever order the groups are listed.
            let mut again = held(&groups, &places);
            again.reverse();
            prop_assert_eq!(place(&again, &hosts, anywhere), places);
        }

        #[test]
        fn moves_made_one_by_one_reach_the_first_computed_assignment(
            loads in prop::collection::vec((0_u32..20, 0_u8..6), 1..20),
            capacities in prop::collection::btree_map(0_u8..6, 0_u32..4, 1..6),
            order in any::<u64>(),
        ) {
            let mut groups: Vec<GroupLoad> = groups(20).into_iter().zip(&loads).map(|(group, (load, holder))| {
                GroupLoad { load: *load, holder: Some(NodeId(*holder)), ..group }
            }).collect();
            let hosts: Vec<Host> =
                capacities.iter().map(|(node, capacity)| Host { node: NodeId(*node), capacity: *capacity }).collect();
            let intended = place(&groups, &hosts, anywhere);
            let mut order = order;
            loop {
                let wanted = place(&groups, &hosts, anywhere);
                prop_assert_eq!(&wanted, &intended);
                let to_move = |group: &GroupLoad| group.holder != wanted.get(&group.group).copied();
                if !move_one(&mut groups, &wanted, to_move, &mut order) {
                    break;
                }
            }
        }

        #[test]
        fn moves_terminate_when_gateways_are_unfit_for_some_groups(
            loads in prop::collection::vec((0_u32..20, 0_u8..6, any::<u8>()), 1..20),
            nodes in prop::collection::btree_set(0_u8..6, 1..6),
            order in any::<u64>(),
        ) {
            let mut groups: Vec<GroupLoad> = groups(20).into_iter().zip(&loads).map(|(group, (load, holder, _))| {
                GroupLoad { load: *load, holder: Some(NodeId(*holder)), ..group }
            }).collect();
            let is_eligible = |group: GroupId, node: NodeId| loads[usize::from(group.0) - 1].2 >> node.0 & 1 == 1;
            let hosts = hosts(&nodes.into_iter().collect::<Vec<_>>());
            let mut order = order;
            for moves in 0.. {
                prop_assert!(moves <= 2 * groups.len(), "groups move to and fro");
                let wanted = place(&groups, &hosts, is_eligible);
                let to_move = |group: &GroupLoad| wanted.get(&group.group).is_some_and(|node| group.holder != Some(*node));
                if !move_one(&mut groups, &wanted, to_move, &mut order) {
                    break;
                }
            }
        }
    }
}
