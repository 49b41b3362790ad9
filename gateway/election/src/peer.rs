//! Messages between the gateways of a group, beside the store. The pair link carries them, authenticated and without
//! replay. It may lose, delay and reorder them, so each answer repeats the request's nonce and incarnation.

use mdgw_wire::{identity::Epoch, time::MonoNs};
use serde::{Deserialize, Serialize};

use super::{
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, Member, NodeId, epoch_number},
    record::{ConfigVersion, PeerTimestamp},
};

/// One message from one gateway to another of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerMessage {
    /// The leader lost its store and asks the candidate not to take over for one lease from the answer.
    #[serde(rename = "promise_ask")]
    PromiseRequest(LeaderRequest),
    /// The candidate promises it: it does not take over for one lease from this answer.
    Promise(LeaderRequest),
    /// The candidate refuses: its own swap is outstanding, or it has not waited one lease since its start.
    PromiseRefused(LeaderRequest),
    /// The leader prepares a hand-over to the recipient.
    Prepare(LeaderRequest),
    /// The recipient is ready for the hand-over.
    Prepared {
        /// The request that this message answers.
        #[serde(rename = "question")]
        request: LeaderRequest,
        /// When it became ready, on the answering gateway's clock.
        stamp: PeerTimestamp,
    },
    /// The recipient refuses the hand-over: not fit, still joining, or closed.
    PrepareRefused(LeaderRequest),
    /// The sender's leadership is over and no send under its epoch is outstanding: the successor may open.
    #[serde(rename = "ended")]
    LeadershipEnded {
        /// Identifies the leadership.
        #[serde(rename = "question")]
        request: LeaderRequest,
        /// The move was automatic, so the minimum tenure of the next leader grows.
        is_automatic: bool,
    },
    /// The record does not name the sender, which asks to be admitted.
    #[serde(rename = "admit_ask")]
    AdmitRequest {
        /// Node number, name and start of the sender.
        member: Member,
        /// The output that the sender is configured to publish.
        configuration: ConfigVersion,
    },
    /// The sender's state, sent twice per renewal period.
    State(PeerState),
}

/// A request about one leadership, unique by requester, incarnation and nonce. An answer repeats it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaderRequest {
    /// The leader that asks.
    #[serde(rename = "asker")]
    pub requester: NodeId,
    /// The requester's start.
    pub incarnation: Incarnation,
    /// The requester's epoch.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
    /// Never used twice by that incarnation.
    pub nonce: u64,
    /// L of the requester, ns.
    pub lease_ns: u64,
}

impl LeaderRequest {
    /// Whether the notice says that the requester's process has ended in this leadership.
    #[must_use]
    pub(crate) fn concerns(&self, notice: &DeathNotice) -> bool {
        self.leadership_id() == *notice
    }

    /// The leadership that the request is about, in the form of its death notice.
    #[must_use]
    pub(crate) fn leadership_id(&self) -> DeathNotice {
        DeathNotice { holder: self.requester, incarnation: self.incarnation, epoch: self.epoch }
    }
}

/// The reported state of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerState {
    /// Node number, name and start of the gateway.
    pub member: Member,
    /// Whether the gateway is eligible to lead.
    #[serde(rename = "standing")]
    pub eligibility: Eligibility,
    /// How fit the gateway is.
    pub fitness: Fitness,
    /// The output that the gateway is configured to publish.
    pub configuration: ConfigVersion,
    /// When the state was taken, on the gateway's own clock.
    pub stamp: PeerTimestamp,
}

impl PeerState {
    /// This gateway's state at `now`.
    pub(crate) fn at(
        now: MonoNs,
        member: &Member,
        configuration: ConfigVersion,
        eligibility: Eligibility,
        fitness: Fitness,
    ) -> Self {
        Self { member: member.clone(), eligibility, fitness, configuration, stamp: PeerTimestamp(now.0) }
    }
}

#[cfg(test)]
mod tests {
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
    fn messages_that_pair_links_of_version_6_carry_are_read() {
        let request = LeaderRequest {
            requester: NodeId(1),
            incarnation: Incarnation(2),
            epoch: Epoch::new(3, 1),
            nonce: 4,
            lease_ns: 100_000_000,
        };
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
            PeerMessage::LeadershipEnded { request, is_automatic: true },
            PeerMessage::LeadershipEnded { request, is_automatic: false },
            PeerMessage::AdmitRequest { member: member.clone(), configuration },
            state(Eligibility::Eligible),
            state(Eligibility::Joining),
        ];
        check(
            include_str!("../../../tests/data/formats/peer_messages_6.jsonl"),
            &messages,
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |message| serde_json::to_vec(message).unwrap(),
        );
        // Earlier versions reported the end of a leadership with positions. Their links are refused.
        let before = include_str!("../../../tests/data/formats/peer_messages.jsonl");
        for (line, message) in before.lines().zip(messages) {
            let is_end = matches!(message, PeerMessage::LeadershipEnded { .. });
            assert_eq!(serde_json::from_str::<PeerMessage>(line).ok(), (!is_end).then_some(message), "{line}");
        }
    }
}
