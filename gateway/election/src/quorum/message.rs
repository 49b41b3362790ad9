//! Messages between candidates and voters.

use mdgw_wire::identity::{Epoch, GroupId};

use crate::{
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, NodeId},
    record::PeerTimestamp,
};

/// One datagram: authenticated, from one node to another, about one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Number of the group that the message is about.
    pub group: GroupId,
    /// Node number of the sender.
    pub from: NodeId,
    /// Node number of the recipient.
    pub to: NodeId,
    /// Request or reply.
    pub body: Body,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// From a candidate to a voter.
    Request(Request),
    /// From a voter to a candidate, or from a gateway that was asked to take over.
    Reply(Reply),
}

/// From a candidate to a voter, or to the gateway that is to take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Identifies requester and request; the answer repeats it.
    pub request_id: VoteRequestId,
    /// The requester's start.
    pub incarnation: Incarnation,
    /// The voter's start, as far as the requester knows it. A request recorded before that start is void after it.
    pub session: VoterSession,
    /// L of the requester, ns.
    pub lease_ns: u64,
    /// How fit the requester is.
    pub fitness: Fitness,
    /// Whether the requester is eligible.
    pub eligibility: Eligibility,
    /// What the requester wants of the voter.
    pub operation: Operation,
}

/// Identifies a request for good: no start of a gateway draws the nonce of another, and no start uses a number twice.
/// Numbers grow, so a voter drops repeated requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoteRequestId {
    /// Drawn at the requester's start.
    pub nonce: u64,
    /// Number of the request within this start of the requester.
    pub number: u64,
}

/// Drawn at a voter's start; 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VoterSession(pub u64);

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Asks whether the voter would vote for the requester. Changes nothing.
    Poll,
    /// Vote for the requester under this epoch, and promise L.
    Vote(Epoch),
    /// The requester leads under this epoch: promise L anew.
    Renew(Epoch),
    /// The requester's leadership or candidacy under this epoch is over for good.
    Release(Epoch),
    /// The recipient is to take over from the requester's epoch. Its lease counts from its answer.
    Prepare {
        /// Epoch of the leader that asks.
        from: Epoch,
        /// Epoch of the future leadership.
        to: Epoch,
        /// Recent automatic moves, this one included: the more, the longer the next leader stays.
        moves: u32,
    },
    /// Move the promise that the voter gave the requester to the target.
    HandOver(HandOver),
    /// That process has ended. Any node may forward this notice, not only the requester.
    Died(DeathNotice),
}

/// A promise that is to move to another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandOver {
    /// Epoch of the former leader that gave the promise; over for good.
    pub from: Epoch,
    /// Epoch of the target.
    pub to: Epoch,
    /// Start of the target.
    pub incarnation: Incarnation,
    /// L of the target, ns.
    pub lease_ns: u64,
    /// Drawn by the target for this hand-over: voters answer the target with this id, as if the target had asked.
    pub request_id: VoteRequestId,
    /// When the target prepared, on its own clock: its lease counts from there.
    pub stamp: PeerTimestamp,
}

/// The answer of a voter, or of a gateway that was asked to take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Id of the request that this reply answers.
    pub request_id: VoteRequestId,
    /// The voter's start.
    pub session: VoterSession,
    /// The highest epoch that the voter knows, by vote or promise.
    pub highest_epoch: Epoch,
    /// The voter's active promise, if any.
    pub promise: Option<ActivePromise>,
    /// The voter's answer.
    pub verdict: Verdict,
}

/// A voter's promise that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivePromise {
    /// The epoch of the promise.
    pub epoch: Epoch,
    /// The start of that epoch's node.
    pub incarnation: Incarnation,
    /// Remaining time on the voter's clock, ns: a duration, so clocks need not agree.
    pub remaining_ns: u64,
}

/// A voter's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Done. To a poll: the voter would vote for the requester.
    Granted,
    /// The target's answer to [`Operation::Prepare`].
    Prepared {
        /// The target's start.
        incarnation: Incarnation,
        /// The id with which voters are to answer the target.
        request_id: VoteRequestId,
        /// When it prepared, on its own clock.
        stamp: PeerTimestamp,
        /// L of the target, ns.
        lease_ns: u64,
    },
    /// The request was not carried out.
    Refused(Refusal),
}

/// Why a voter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The request was not made for this start of the voter: repeat it with the session of this reply.
    Session,
    /// The voter has promised another candidate: see [`Reply::promise`].
    PromisedToOther,
    /// The voter has voted in that generation or a higher one: see [`Reply::highest_epoch`].
    OldGeneration,
    /// The voter waits after its start.
    StartupWait,
    /// That leadership or candidacy is over, or that process has ended.
    Ended,
    /// A fitter gateway is eligible.
    FitterCandidate,
    /// A later start of the same gateway has sent requests.
    OldIncarnation,
    /// The target of a hand-over is not eligible, or its clock rate is off.
    NotEligible,
}

impl Operation {}
