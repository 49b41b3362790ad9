//! What candidates and voters say to each other.

use std::collections::BTreeMap;

use mdgw_feeds::{
    identity::{Epoch, GroupId},
    published::position::StreamPosition,
};

use crate::{
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, NodeId},
    record::PeerTimestamp,
};

/// One datagram: authenticated, from one node to another, about one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// The group it is about.
    pub group: GroupId,
    /// Who sent it.
    pub from: NodeId,
    /// To whom.
    pub to: NodeId,
    /// What it says.
    pub body: Body,
}

/// What a message says.
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
    /// Who asks, and which request this is: the answer repeats it.
    pub ticket: VoteRequestId,
    /// The asker's start.
    pub incarnation: Incarnation,
    /// The voter's start, as far as the asker knows it: what was recorded before it is worth nothing after it.
    pub session: VoterSession,
    /// L of the asker, ns.
    pub lease_ns: u64,
    /// How fit the asker is.
    pub fitness: Fitness,
    /// Whether it stands.
    pub eligibility: Eligibility,
    /// What it wants.
    pub operation: Operation,
}

/// Names a request for good: no start of a gateway draws the nonce of another, and none gives a number twice. Numbers
/// grow, so a voter drops what comes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoteRequestId {
    /// Drawn at the asker's start.
    pub nonce: u64,
    /// Of the request within the start.
    pub number: u64,
}

/// Drawn at a voter's start; 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VoterSession(pub u64);

/// What a request wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Would you vote for me? Changes nothing.
    Poll,
    /// Vote for me under this epoch, and promise L to me.
    Vote(Epoch),
    /// I lead under this epoch: promise L to me anew.
    Renew(Epoch),
    /// My leadership or candidacy under this epoch is over for good.
    Release(Epoch),
    /// You are to take over from my epoch, under the other one. From your answer on your lease counts.
    Prepare {
        /// Of the leader that asks.
        from: Epoch,
        /// Of the leadership that is to come.
        to: Epoch,
        /// How many moves leaders have made by themselves, this one included: the more, the longer the next one stays.
        moves: u32,
    },
    /// Move the promise that you gave me to the target.
    HandOver(HandOver),
    /// That process has ended. Not of the asker alone: whoever knows may tell.
    Died(DeathNotice),
}

/// A promise that is to move to another gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HandOver {
    /// Epoch of who gives it; over for good.
    pub from: Epoch,
    /// Epoch of who gets it.
    pub to: Epoch,
    /// Start of who gets it.
    pub incarnation: Incarnation,
    /// L of who gets it, ns.
    pub lease_ns: u64,
    /// What the target drew for this: voters answer the target with it, as if it had asked.
    pub ticket: VoteRequestId,
    /// When the target prepared, on its own clock: its lease counts from there.
    pub stamp: PeerTimestamp,
    /// Where the giver's output ended, per channel. Only for the target's own voter; the others are told none.
    pub positions: BTreeMap<u16, StreamPosition>,
}

/// From a voter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Of the request.
    pub ticket: VoteRequestId,
    /// The voter's start.
    pub session: VoterSession,
    /// The highest epoch that the voter knows, by vote or promise.
    pub highest_epoch: Epoch,
    /// To whom it is bound, if to anybody.
    pub promise: Option<Bound>,
    /// Its answer.
    pub verdict: Verdict,
}

/// Whom a voter gave its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// Under which epoch.
    pub epoch: Epoch,
    /// Which start of that epoch's node.
    pub incarnation: Incarnation,
    /// For how much longer on the voter's clock, ns: a duration, so clocks need not agree.
    pub remaining_ns: u64,
}

/// A voter's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Done; to a poll: I would.
    Granted,
    /// The target's answer to [`Operation::Prepare`].
    Prepared {
        /// Its start.
        incarnation: Incarnation,
        /// What voters are to answer it with.
        ticket: VoteRequestId,
        /// When, on its own clock.
        stamp: PeerTimestamp,
        /// L of it, ns.
        lease_ns: u64,
    },
    /// Not done.
    Refused(Refusal),
}

/// Why a voter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The request was not made for this start of the voter: ask again with the session of this reply.
    Session,
    /// It is bound to another: see [`Reply::promise`].
    Bound,
    /// It has voted in that generation or a higher one: see [`Reply::highest_epoch`].
    OldGeneration,
    /// It sits out the time after its start.
    StartupWait,
    /// That leadership or candidacy is over, or that process has ended.
    Ended,
    /// A fitter gateway stands.
    FitterCandidate,
    /// A later start of the same gateway has spoken.
    OldIncarnation,
    /// A gateway that does not stand, or whose clock is off, takes over from nobody.
    NotEligible,
}

impl Operation {
    /// The epoch that is asked for, where one is.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::Vote(epoch) | Self::Renew(epoch) | Self::Release(epoch) => Some(*epoch),
            Self::Prepare { to, .. } => Some(*to),
            Self::HandOver(hand_over) => Some(hand_over.to),
            Self::Poll | Self::Died(_) => None,
        }
    }
}
