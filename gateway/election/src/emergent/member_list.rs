//! The list of members: their ages, and which are marked failed. Only coordinators make lists.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::identity::{Member, NodeId};

/// All members of one side, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberList {
    /// Newer lists have greater versions.
    pub version: ListVersion,
    /// Age of the next member to join: one more than any age given.
    pub next_age: u64,
    /// Live and failed members; failed ones are probed.
    pub members: Vec<ListedMember>,
}

/// Version of a list. Two sides of a split may reach the same count, so the maker's number breaks the tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListVersion {
    /// Number of lists that were made before this one.
    pub count: u64,
    /// The node that made the list.
    pub by: NodeId,
}

/// A member, as the list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedMember {
    /// Node number, name and start of the member.
    pub member: Member,
    /// Address to which the member's messages are sent.
    pub address: SocketAddr,
    /// Order of joining: the lower, the older.
    pub age: u64,
    /// Whether the coordinator counts the member as live or failed.
    pub state: MemberState,
}

/// Whether the coordinator counts a member as live or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// The member sends heartbeats.
    Live,
    /// It was silent for too long.
    Failed,
}

impl MemberList {
    /// The list of a node that bootstraps.
    #[must_use]
    pub(crate) fn bootstrapped(member: Member, address: SocketAddr) -> Self {
        let version = ListVersion { count: 1, by: member.node };
        Self { version, next_age: 2, members: vec![ListedMember { member, address, age: 1, state: MemberState::Live }] }
    }

    /// Whether a coordinator could have made the list: bounded, ordered by age, no node twice, at least one live
    /// member.
    #[must_use]
    pub(crate) fn is_consistent(&self) -> bool {
        let mut nodes: Vec<_> = self.members.iter().map(|listed| listed.member.node).collect();
        nodes.sort_unstable();
        self.members.len() <= MEMBERS_MAX
            && self.members.is_sorted_by(|a, b| a.age < b.age)
            && nodes.is_sorted_by(|a, b| a < b)
            && self.members.last().is_none_or(|youngest| youngest.age < self.next_age)
            && self.coordinator().is_some()
    }

    /// Live members, the oldest first.
    pub(crate) fn live(&self) -> impl Iterator<Item = &ListedMember> {
        self.members.iter().filter(|listed| listed.state == MemberState::Live)
    }

    /// Failed members.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &ListedMember> {
        self.members.iter().filter(|listed| listed.state == MemberState::Failed)
    }

    /// Number of live members.
    #[must_use]
    pub(crate) fn live_count(&self) -> usize {
        self.live().count()
    }

    /// The oldest live member.
    #[must_use]
    pub(crate) fn coordinator(&self) -> Option<&ListedMember> {
        self.live().next()
    }

    /// That incarnation, if it is listed as live.
    #[must_use]
    pub(crate) fn find_live(&self, member: &Member) -> Option<&ListedMember> {
        self.live().find(|listed| listed.member == *member)
    }

    /// Adds a node as the youngest, and removes any earlier start of it.
    pub(crate) fn admit(&mut self, by: NodeId, member: Member, address: SocketAddr) {
        self.members.retain(|listed| listed.member.node != member.node);
        self.members.push(ListedMember { member, address, age: self.next_age, state: MemberState::Live });
        self.next_age += 1;
        self.set_version(by);
    }

    /// Marks those nodes as failed.
    pub(crate) fn mark_failed(&mut self, by: NodeId, nodes: &[NodeId]) {
        for listed in self.members.iter_mut().filter(|listed| nodes.contains(&listed.member.node)) {
            listed.state = MemberState::Failed;
        }
        self.set_version(by);
    }

    /// Removes a node from the list.
    pub(crate) fn remove(&mut self, by: NodeId, node: NodeId) {
        self.members.retain(|listed| listed.member.node != node);
        self.set_version(by);
    }

    fn set_version(&mut self, by: NodeId) {
        self.version = ListVersion { count: self.version.count + 1, by };
    }
}

/// Node numbers have 8 bits.
pub(crate) const MEMBERS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::member;

    fn address(node: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, node], 7_000))
    }

    fn list_of_three() -> MemberList {
        let mut list = MemberList::bootstrapped(member(1, 1), address(1));
        list.admit(NodeId(1), member(2, 1), address(2));
        list.admit(NodeId(1), member(3, 1), address(3));
        list
    }

    #[test]
    fn a_rejoining_node_is_the_youngest_and_live() {
        let mut list = list_of_three();
        list.mark_failed(NodeId(1), &[NodeId(2)]);
        assert_eq!(list.live_count(), 2);
        list.admit(NodeId(1), member(2, 2), address(2));
        let ages: Vec<_> = list.live().map(|listed| (listed.member.node.0, listed.age)).collect();
        assert_eq!(ages, [(1, 1), (3, 3), (2, 4)]);
        assert_eq!(list.failed().count(), 0);
        assert!(list.find_live(&member(2, 1)).is_none());
        assert_eq!(list.version, ListVersion { count: 5, by: NodeId(1) });
        assert!(list.is_consistent());
    }

    #[test]
    fn the_next_oldest_coordinates_when_the_oldest_has_failed() {
        let mut list = list_of_three();
        list.mark_failed(NodeId(2), &[NodeId(1)]);
        assert_eq!(list.coordinator().unwrap().member, member(2, 1));
        list.remove(NodeId(2), NodeId(2));
        assert_eq!(list.coordinator().unwrap().member, member(3, 1));
    }

    #[test]
    fn inconsistent_lists_are_refused() {
        let good = list_of_three();
        assert!(good.is_consistent());
        let spoilt = |spoil: fn(&mut MemberList)| {
            let mut list = good.clone();
            spoil(&mut list);
            !list.is_consistent()
        };
        assert!(spoilt(|list| list.members.swap(0, 1)));
        assert!(spoilt(|list| list.members[1].member.node = NodeId(1)));
        assert!(spoilt(|list| list.members.clear()));
        assert!(spoilt(|list| list.next_age = 3));
        assert!(spoilt(|list| list.mark_failed(NodeId(1), &[NodeId(1), NodeId(2), NodeId(3)])));
    }
}
