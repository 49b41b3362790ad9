//! What members say to each other. The driver signs it; each letter is numbered and, where its writer knows the reader,
//! addressed to one incarnation, so that an old letter is taken neither twice nor by a later start.

use std::{collections::BTreeMap, net::SocketAddr};

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition};
use serde::{Deserialize, Serialize};

use super::member_list::{ListVersion, MemberList};
use crate::identity::{Incarnation, Member, NodeId, epoch_number, written_positions};

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Who writes.
    pub from: Member,
    /// Where it is reached.
    pub address: SocketAddr,
    /// For which incarnation of the reader; `None`: whoever reads it.
    pub to: Option<Incarnation>,
    /// Grows with each letter of that incarnation.
    pub number: u64,
    /// What it says.
    pub message: Message,
}

/// What a letter says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// Let me in.
    Join {
        /// Of this request; the answer repeats it.
        nonce: u64,
    },
    /// Ask the coordinator.
    Redirect {
        /// Of the request.
        nonce: u64,
        /// Where it is reached.
        coordinator: SocketAddr,
    },
    /// You are in.
    #[serde(rename = "welcome")]
    JoinAccepted {
        /// Of the request.
        nonce: u64,
        /// With you on it.
        list: MemberList,
        /// The highest epoch known.
        #[serde(with = "epoch_number")]
        epoch: Epoch,
    },
    /// I live.
    Heartbeat(Heartbeat),
    /// The list is this now; from the coordinator that made it.
    List(MemberList),
    /// I have the list of that version.
    Acknowledge(ListVersion),
    /// I leave; to the coordinator.
    Leave,
    /// My output has ended; to the next in age, who leads when I am off the list.
    Ended {
        /// Under which epoch.
        #[serde(with = "epoch_number")]
        epoch: Epoch,
        /// There, per channel.
        #[serde(with = "written_positions")]
        positions: BTreeMap<u16, StreamPosition>,
    },
    /// Are you there? From a coordinator to members that its list says have failed.
    Probe(PartitionSide),
    /// Our side has met a larger one: rejoin there. From a coordinator to its members.
    Dissolve {
        /// Where the other side's coordinator is reached.
        winner: SocketAddr,
    },
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// Of the list that the writer has.
    pub version: ListVersion,
    /// Who coordinates it.
    pub coordinator: Member,
    /// The writer's own first; along a ring also those that it knows of others.
    pub beats: Vec<BeatInfo>,
    /// Whether the writer wants one back at once.
    #[serde(rename = "asks")]
    pub wants_reply: bool,
    /// The highest epoch known.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
}

/// What one member says of itself with each heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeatInfo {
    /// Who.
    pub node: NodeId,
    /// Grows with each.
    pub count: u64,
    /// Of the list that it has.
    pub version: ListVersion,
    /// Who coordinates that list.
    pub follows: NodeId,
    /// The count of the last heartbeat that it had of that coordinator. With it goes the promise to follow nobody else for one
    /// failure time-out. 0: it had none, or makes no promise.
    pub echo: u64,
}

/// One side of a split, as its coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionSide {
    /// Its coordinator.
    pub coordinator: Member,
    /// Where that is reached.
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
    /// Whether this side stays when it meets `other`, which then yields: the larger one, else that of the older
    /// coordinator. Both sides come to the same end.
    #[must_use]
    pub fn wins_over(&self, other: &Self) -> bool {
        let key = |side: &Self| (std::cmp::Reverse(side.live_count), side.age, side.coordinator.node);
        key(self) < key(other)
    }
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;
    use crate::{
        emergent::member_list::{ListedMember, MemberState},
        formats::check,
        record::tests::member,
    };

    #[test]
    fn letters_written_by_0_1_0_are_read() {
        let address: SocketAddr = "192.0.2.1:7000".parse().unwrap();
        let other: SocketAddr = "[2001:db8::1]:7001".parse().unwrap();
        let (nonce, epoch) = (1, Epoch::new(2, 3));
        let version = ListVersion { count: 4, by: NodeId(5) };
        let listed = |node, state| ListedMember { member: member(node, 6), address: other, age: node.into(), state };
        let members = vec![listed(7, MemberState::Live), listed(8, MemberState::Failed)];
        let list = MemberList { version, next_age: 9, members };
        let beat = BeatInfo { node: NodeId(10), count: 11, version, follows: NodeId(12), echo: 13 };
        let heartbeat = Heartbeat { version, coordinator: member(5, 14), beats: vec![beat], wants_reply: true, epoch };
        let date = TradingDate::from_yyyymmdd(20_170_425).unwrap();
        let session = Session { feed: Feed::IexTops, date, restart: 15 };
        let position = StreamPosition { session, sequence: Sequence(16), part: 17 };
        let side = PartitionSide { coordinator: member(5, 14), address: other, age: 18, live_count: 19, epoch };
        let messages = [
            Message::Join { nonce },
            Message::Redirect { nonce, coordinator: other },
            Message::JoinAccepted { nonce, list: list.clone(), epoch },
            Message::Heartbeat(heartbeat),
            Message::List(list),
            Message::Acknowledge(version),
            Message::Leave,
            Message::Ended { epoch, positions: BTreeMap::from([(20, position)]) },
            Message::Probe(side),
            Message::Dissolve { winner: other },
        ];
        let letter = |(number, message)| {
            // Only who asks to be let in does not know the reader.
            let to = (number > 0).then_some(Incarnation(21));
            Envelope { from: member(1, 22), address, to, number, message }
        };
        let letters: Vec<Envelope> = (0..).zip(messages).map(letter).collect();
        check(
            include_str!("../../../../tests/data/formats/emergent_letters.jsonl"),
            &letters,
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |letter| serde_json::to_vec(letter).unwrap(),
        );
    }
}
