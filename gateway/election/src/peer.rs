//! What the gateways of a group say to each other beside the store. The pair link carries it, authenticated and
//! without replay; it may lose, delay and reorder, so each answer names the question's nonce and incarnation.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition};
use serde::{Deserialize, Serialize};

use super::{
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, Member, NodeId, epoch_number, written_positions},
    record::{ConfigVersion, PeerTimestamp},
};

/// One message from one gateway to another of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerMessage {
    /// The leader lost its store: do you promise not to take over for one lease from when you answer?
    #[serde(rename = "promise_ask")]
    PromiseRequest(LeaderRequest),
    /// I do.
    Promise(LeaderRequest),
    /// I don't: a swap of mine is under way, or I have not sat out my start.
    PromiseRefused(LeaderRequest),
    /// A hand-over to you is coming.
    Prepare(LeaderRequest),
    /// I am ready, since that moment of my clock.
    Prepared {
        /// What was asked.
        #[serde(rename = "question")]
        request: LeaderRequest,
        /// On the answering gateway's clock.
        stamp: PeerTimestamp,
    },
    /// I am not: not fit, still joining, or closed.
    PrepareRefused(LeaderRequest),
    /// My leadership is over, and nothing that was sent under its epoch is under way any more: my heir may begin.
    Ended {
        /// Which leadership.
        #[serde(rename = "question")]
        request: LeaderRequest,
        /// Where its output ended, per channel.
        #[serde(with = "written_positions")]
        positions: BTreeMap<u16, StreamPosition>,
        /// It moved by itself, and the next one is to hold still for longer.
        is_automatic: bool,
    },
    /// The record does not name me: admit me.
    #[serde(rename = "admit_ask")]
    AdmitRequest {
        /// Who asks.
        member: Member,
        /// What it is configured to publish.
        configuration: ConfigVersion,
    },
    /// How I am; sent twice per renewal period.
    State(PeerState),
}

/// A question about one leadership, unique by asker, incarnation and nonce. An answer repeats it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaderRequest {
    /// Who asks: the leader.
    #[serde(rename = "asker")]
    pub requester: NodeId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Its epoch.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
    /// Never used twice by that incarnation.
    pub nonce: u64,
    /// L of the asker, ns.
    pub lease_ns: u64,
}

impl LeaderRequest {
    /// Whether the asker is who died.
    #[must_use]
    pub fn concerns(&self, notice: &DeathNotice) -> bool {
        self.leadership() == *notice
    }

    /// The leadership that it is about, as its end would be told.
    #[must_use]
    pub fn leadership(&self) -> DeathNotice {
        DeathNotice { holder: self.requester, incarnation: self.incarnation, epoch: self.epoch }
    }
}

/// How a gateway is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerState {
    /// Which gateway.
    pub member: Member,
    /// Whether it stands.
    #[serde(rename = "standing")]
    pub eligibility: Eligibility,
    /// How fit it is.
    pub fitness: Fitness,
    /// What it is configured to publish.
    pub configuration: ConfigVersion,
    /// When it says so, on its own clock.
    pub stamp: PeerTimestamp,
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;
    use crate::formats::check;

    #[test]
    fn peer_messages_round_trip_through_json() {
        let request = LeaderRequest {
            requester: NodeId(1),
            incarnation: Incarnation(2),
            epoch: Epoch::new(3, 1),
            nonce: 4,
            lease_ns: 100_000_000,
        };
        for message in [
            PeerMessage::PromiseRequest(request),
            PeerMessage::Prepared { request, stamp: PeerTimestamp(u64::MAX) },
            PeerMessage::State(PeerState {
                member: crate::record::tests::member(1, 2),
                eligibility: Eligibility::Eligible,
                fitness: Fitness { stalled: true, ..Fitness::default() },
                configuration: ConfigVersion::default(),
                stamp: PeerTimestamp(5),
            }),
        ] {
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<PeerMessage>(&text).unwrap(), message, "{text}");
        }
    }

    #[test]
    fn messages_written_by_0_1_0_are_read() {
        let request = LeaderRequest {
            requester: NodeId(1),
            incarnation: Incarnation(2),
            epoch: Epoch::new(3, 1),
            nonce: 4,
            lease_ns: 100_000_000,
        };
        let date = TradingDate::from_yyyymmdd(20_170_425).unwrap();
        let session = Session { feed: Feed::IexDeep, date, restart: 5 };
        let position = StreamPosition { session, sequence: Sequence(6), part: 7 };
        let member = crate::record::tests::member(1, 2);
        let configuration = ConfigVersion { hash: 8, revision: 9, output_version: 10 };
        let state = |eligibility| {
            PeerMessage::State(PeerState {
                member: member.clone(),
                eligibility,
                fitness: Fitness { channels_failed: 11, channels_behind: 12, log_failing: true, ..Fitness::default() },
                configuration,
                stamp: PeerTimestamp(13),
            })
        };
        let messages = [
            PeerMessage::PromiseRequest(request),
            PeerMessage::Promise(request),
            PeerMessage::PromiseRefused(request),
            PeerMessage::Prepare(request),
            PeerMessage::Prepared { request, stamp: PeerTimestamp(14) },
            PeerMessage::PrepareRefused(request),
            PeerMessage::Ended { request, positions: BTreeMap::from([(15, position)]), is_automatic: true },
            PeerMessage::Ended { request, positions: BTreeMap::new(), is_automatic: false },
            PeerMessage::AdmitRequest { member: member.clone(), configuration },
            state(Eligibility::Eligible),
            state(Eligibility::Joining),
        ];
        check(
            include_str!("../../../tests/data/formats/peer_messages.jsonl"),
            &messages,
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |message| serde_json::to_vec(message).unwrap(),
        );
    }
}
