//! What the gateways of a group say to each other beside the store. The pair link carries it, authenticated and
//! without replay; it may lose, delay and reorder, so each answer names the question's nonce and incarnation.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition};
use serde::{Deserialize, Serialize};

use super::{
    fitness::{Fitness, Standing},
    identity::{DeathNotice, Incarnation, Member, NodeId, epoch_number, written_positions},
    record::{ConfigurationMark, PeerStamp},
};

/// One message from one gateway to another of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerMessage {
    /// The leader lost its store: do you promise not to take over for one lease from when you answer?
    PromiseAsk(Question),
    /// I do.
    Promise(Question),
    /// I don't: a swap of mine is under way, or I have not sat out my start.
    PromiseRefused(Question),
    /// A hand-over to you is coming.
    Prepare(Question),
    /// I am ready, since that moment of my clock.
    Prepared {
        /// What was asked.
        question: Question,
        /// On the answering gateway's clock.
        stamp: PeerStamp,
    },
    /// I am not: not fit, still joining, or closed.
    PrepareRefused(Question),
    /// My leadership is over, and nothing that was sent under its epoch is under way any more: my heir may begin.
    Ended {
        /// Which leadership.
        question: Question,
        /// Where its output ended, per channel.
        #[serde(with = "written_positions")]
        positions: BTreeMap<u16, StreamPosition>,
        /// It moved by itself, and the next one is to hold still for longer.
        is_automatic: bool,
    },
    /// The record does not name me: admit me.
    AdmitAsk {
        /// Who asks.
        member: Member,
        /// What it is configured to publish.
        configuration: ConfigurationMark,
    },
    /// How I am; sent twice per renewal period.
    State(PeerState),
}

/// A question about one leadership, unique by asker, incarnation and nonce. An answer repeats it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Who asks: the leader.
    pub asker: NodeId,
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

impl Question {
    /// Whether the asker is who died.
    #[must_use]
    pub fn is_of(&self, notice: &DeathNotice) -> bool {
        self.leadership() == *notice
    }

    /// The leadership that it is about, as its end would be told.
    #[must_use]
    pub fn leadership(&self) -> DeathNotice {
        DeathNotice { holder: self.asker, incarnation: self.incarnation, epoch: self.epoch }
    }
}

/// How a gateway is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerState {
    /// Which gateway.
    pub member: Member,
    /// Whether it stands.
    pub standing: Standing,
    /// How fit it is.
    pub fitness: Fitness,
    /// What it is configured to publish.
    pub configuration: ConfigurationMark,
    /// When it says so, on its own clock.
    pub stamp: PeerStamp,
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
    fn messages_survive_writing() {
        let question = Question {
            asker: NodeId(1),
            incarnation: Incarnation(2),
            epoch: Epoch::new(3, 1),
            nonce: 4,
            lease_ns: 100_000_000,
        };
        for message in [
            PeerMessage::PromiseAsk(question),
            PeerMessage::Prepared { question, stamp: PeerStamp(u64::MAX) },
            PeerMessage::State(PeerState {
                member: crate::record::tests::member(1, 2),
                standing: Standing::Stands,
                fitness: Fitness { stalled: true, ..Fitness::default() },
                configuration: ConfigurationMark::default(),
                stamp: PeerStamp(5),
            }),
        ] {
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<PeerMessage>(&text).unwrap(), message, "{text}");
        }
    }

    #[test]
    fn messages_written_by_0_1_0_are_read() {
        let question = Question {
            asker: NodeId(1),
            incarnation: Incarnation(2),
            epoch: Epoch::new(3, 1),
            nonce: 4,
            lease_ns: 100_000_000,
        };
        let date = TradingDate::from_yyyymmdd(20_170_425).unwrap();
        let session = Session { feed: Feed::IexDeep, date, restart: 5 };
        let position = StreamPosition { session, sequence: Sequence(6), part: 7 };
        let member = crate::record::tests::member(1, 2);
        let configuration = ConfigurationMark { hash: 8, revision: 9, output_version: 10 };
        let state = |standing| {
            PeerMessage::State(PeerState {
                member: member.clone(),
                standing,
                fitness: Fitness { channels_failed: 11, channels_behind: 12, log_failing: true, ..Fitness::default() },
                configuration,
                stamp: PeerStamp(13),
            })
        };
        let messages = [
            PeerMessage::PromiseAsk(question),
            PeerMessage::Promise(question),
            PeerMessage::PromiseRefused(question),
            PeerMessage::Prepare(question),
            PeerMessage::Prepared { question, stamp: PeerStamp(14) },
            PeerMessage::PrepareRefused(question),
            PeerMessage::Ended { question, positions: BTreeMap::from([(15, position)]), is_automatic: true },
            PeerMessage::Ended { question, positions: BTreeMap::new(), is_automatic: false },
            PeerMessage::AdmitAsk { member: member.clone(), configuration },
            state(Standing::Stands),
            state(Standing::Joins),
        ];
        check(
            include_str!("../../../tests/data/formats/peer_messages.jsonl"),
            &messages,
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |message| serde_json::to_vec(message).unwrap(),
        );
    }
}
