//! Messages between members. The driver signs them. Each message is numbered and, where its sender knows the recipient,
//! addressed to one incarnation. So an old message is accepted neither twice nor by a later start.

use std::net::SocketAddr;

use mdgw_wire::identity::Epoch;
use serde::{Deserialize, Serialize};

use super::member_list::{ListVersion, MemberList};
use crate::identity::{Incarnation, Member, NodeId, epoch_number};

/// The content of one datagram.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Node number, name and start of the sender.
    pub from: Member,
    /// Address at which the sender receives answers.
    pub address: SocketAddr,
    /// The recipient's incarnation; `None`: any.
    pub to: Option<Incarnation>,
    /// Grows with each message of that incarnation.
    pub number: u64,
    /// What the message says.
    pub message: Message,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// The sender asks for admission.
    Join {
        /// Nonce of this request; the answer repeats it.
        nonce: u64,
    },
    /// Ask that coordinator instead.
    Redirect {
        /// Nonce of the request.
        nonce: u64,
        /// The coordinator's address.
        coordinator: SocketAddr,
    },
    /// The recipient is admitted.
    #[serde(rename = "welcome")]
    JoinAccepted {
        /// Nonce of the request.
        nonce: u64,
        /// The list with the recipient on it.
        list: MemberList,
        /// The highest epoch known.
        #[serde(with = "epoch_number")]
        epoch: Epoch,
    },
    /// A heartbeat.
    Heartbeat(Heartbeat),
    /// The new list, from the coordinator that made it.
    List(MemberList),
    /// The sender has the list of that version.
    Acknowledge(ListVersion),
    /// The sender leaves; to the coordinator.
    Leave,
    /// The sender's output has ended; to the next in age, which leads once the sender is off the list.
    Ended {
        /// The epoch of the sender's leadership.
        #[serde(with = "epoch_number")]
        epoch: Epoch,
    },
    /// From a coordinator to members that its list marks as failed.
    Probe(PartitionSide),
    /// The sender's side has met a larger one: rejoin there. From a coordinator to its members.
    Dissolve {
        /// Address of the other side's coordinator.
        winner: SocketAddr,
    },
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// Version of the sender's list.
    pub version: ListVersion,
    /// Coordinator of that list.
    pub coordinator: Member,
    /// The sender's own first; along a ring also the forwarded ones of others.
    pub beats: Vec<BeatInfo>,
    /// Whether the sender wants a heartbeat back at once.
    #[serde(rename = "asks")]
    pub wants_reply: bool,
    /// The highest epoch known.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
}

/// One member's part of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeatInfo {
    /// Node number of the member.
    pub node: NodeId,
    /// Grows with each heartbeat.
    pub count: u64,
    /// Version of the member's list.
    pub version: ListVersion,
    /// Coordinator of that list.
    pub follows: NodeId,
    /// Count of the last heartbeat received from that coordinator. With it goes the promise to follow no other
    /// coordinator for one failure time-out. 0: none received, or no promise.
    pub echo: u64,
}

/// One side of a split, as its coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionSide {
    /// Coordinator of this side of the split.
    pub coordinator: Member,
    /// The coordinator's address.
    pub address: SocketAddr,
    /// Age of the coordinator.
    pub age: u64,
    /// Live members.
    pub live_count: usize,
    /// The highest epoch known.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
}

impl PartitionSide {
    /// Whether this side stays when it meets `other`, which then yields: the larger side, else that of the older
    /// coordinator. Both sides reach the same result.
    #[must_use]
    pub(crate) fn wins_over(&self, other: &Self) -> bool {
        let key = |side: &Self| (std::cmp::Reverse(side.live_count), side.age, side.coordinator.node);
        key(self) < key(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        emergent::member_list::{ListedMember, MemberState},
        formats::check,
        record::tests::member,
    };

    #[test]
    fn messages_of_this_and_earlier_versions_are_read() {
        let address: SocketAddr = "192.0.2.1:7000".parse().unwrap();
        let other: SocketAddr = "[2001:db8::1]:7001".parse().unwrap();
        let (nonce, epoch) = (1, Epoch::new(2, 3));
        let version = ListVersion { count: 4, by: NodeId(5) };
        let listed = |node, state| ListedMember { member: member(node, 6), address: other, age: node.into(), state };
        let members = vec![listed(7, MemberState::Live), listed(8, MemberState::Failed)];
        let list = MemberList { version, next_age: 9, members };
        let beat = BeatInfo { node: NodeId(10), count: 11, version, follows: NodeId(12), echo: 13 };
        let heartbeat = Heartbeat { version, coordinator: member(5, 14), beats: vec![beat], wants_reply: true, epoch };
        let side = PartitionSide { coordinator: member(5, 14), address: other, age: 18, live_count: 19, epoch };
        let messages = [
            Message::Join { nonce },
            Message::Redirect { nonce, coordinator: other },
            Message::JoinAccepted { nonce, list: list.clone(), epoch },
            Message::Heartbeat(heartbeat),
            Message::List(list),
            Message::Acknowledge(version),
            Message::Leave,
            Message::Ended { epoch },
            Message::Probe(side),
            Message::Dissolve { winner: other },
        ];
        let envelope = |(number, message)| {
            // Only a node that asks for admission does not know the recipient.
            let to = (number > 0).then_some(Incarnation(21));
            Envelope { from: member(1, 22), address, to, number, message }
        };
        let envelopes: Vec<Envelope> = (0..).zip(messages).map(envelope).collect();
        check(
            include_str!("../../../../tests/data/formats/emergent_messages_2.jsonl"),
            &envelopes,
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |envelope| serde_json::to_vec(envelope).unwrap(),
        );
    }
}
