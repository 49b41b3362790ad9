//! Phases of a candidate.

use std::collections::{BTreeMap, BTreeSet};

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::auto_move::Tenure;
use crate::{
    identity::{Incarnation, NodeId},
    quorum::message::VoteRequestId,
    record::PeerTimestamp,
    timing::LeaseTiming,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Waits for a promise to end, for the next attempt, or for an obstacle to go.
    Waiting,
    /// Polls the voters.
    Polling(PollRound),
    /// Asks for votes.
    Voting(VoteRound),
    /// Publishes.
    Leading(LeaderState),
    /// Has closed its fence to hand over, and no longer leads under that epoch, whatever the result.
    Transferring(PromiseTransfer),
    /// Closes: its fence is closed, and the voters are notified when no send under its epoch is outstanding.
    Releasing { epoch: Epoch, raised: Option<Epoch> },
    /// The candidacy has ended.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PollRound {
    pub(super) granted: BTreeSet<NodeId>,
    pub(super) refused: BTreeSet<NodeId>,
    /// When all voters are asked again.
    pub(super) resend_at: MonoNs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VoteRound {
    pub(super) epoch: Epoch,
    /// The voters that promised, and when the request that each answered was sent.
    pub(super) promises: BTreeMap<NodeId, MonoNs>,
    pub(super) refused: BTreeSet<NodeId>,
    /// When voters are asked again.
    pub(super) resend_at: MonoNs,
    pub(super) until: MonoNs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaderState {
    pub(super) epoch: Epoch,
    /// The voters that promised, and when the last request that each granted was sent.
    pub(super) promises: BTreeMap<NodeId, MonoNs>,
    pub(super) renew_at: MonoNs,
    pub(super) preparing: Option<Preparing>,
    /// `None`: leadership does not move automatically.
    pub(super) tenure: Option<Tenure>,
    /// The vote for a higher epoch of this leader, which is outranked.
    pub(super) raise: Option<VoteRound>,
    /// No raise begins before this time.
    pub(super) raise_at: MonoNs,
    /// A hand-over that begins when the raise has ended: its target, and the number of recent automatic moves.
    pub(super) hand_over_next: Option<(Option<NodeId>, u32)>,
}

/// The leader has asked another gateway to take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Preparing {
    pub(super) target: NodeId,
    pub(super) to: Epoch,
    /// Recent automatic moves, as reported to the target.
    pub(super) moves: u32,
    pub(super) until: MonoNs,
}

/// The leader moves its promises.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PromiseTransfer {
    pub(super) from: Epoch,
    pub(super) to: Epoch,
    pub(super) incarnation: Incarnation,
    pub(super) lease_ns: u64,
    pub(super) request_id: VoteRequestId,
    pub(super) stamp: PeerTimestamp,
    /// The last send has ended.
    pub(super) is_drained: bool,
    pub(super) transferred: BTreeSet<NodeId>,
    pub(super) refused: BTreeSet<NodeId>,
    pub(super) resend_at: MonoNs,
    pub(super) until: MonoNs,
}

/// This gateway has answered that it is ready to take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingTakeover {
    pub(super) to: Epoch,
    /// When it answered: its lease counts from there.
    pub(super) stamp: MonoNs,
    pub(super) granted_by: BTreeSet<NodeId>,
    /// Automatic moves that lead to this leadership, this one included.
    pub(super) moves: u32,
    /// The epoch of the former leader, whose output has ended.
    pub(super) ended: Option<Epoch>,
}

impl LeaderState {
    /// Until when this leadership may send.
    pub(super) fn deadline(&self, timing: &LeaseTiming, majority: usize) -> MonoNs {
        promised_until(&self.promises, timing, majority).unwrap_or_default()
    }
}

/// Until when a majority keeps its promise. Each promise counts from the sending of the request that it granted. Of a
/// majority's latest promises, the earliest counts.
pub(super) fn promised_until(
    promises: &BTreeMap<NodeId, MonoNs>,
    timing: &LeaseTiming,
    majority: usize,
) -> Option<MonoNs> {
    let mut sent: Vec<MonoNs> = promises.values().copied().collect();
    sent.sort_unstable();
    let earliest = sent.len().checked_sub(majority)?;
    sent.get(earliest).map(|sent| timing.deadline(*sent))
}
