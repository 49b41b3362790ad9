//! What every election core is: a pure state machine. The election thread, the simulation and the model drive it.

use std::{collections::BTreeMap, convert::Infallible, fmt};

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition, time::MonoNs};

use super::{
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, NodeName},
    peer::{PeerMessage, PeerState},
};
use crate::identity::DeathNotice;

/// One gateway's part in the election of one group. No I/O, no clock, no thread, no random number.
pub trait Core {
    /// What its backend brings: answers of a store, datagrams of voters.
    type Event;
    /// What it asks of its backend.
    type Request;

    /// Takes one input at `now` and says what is to be done, in that order. `now` never runs backwards; an input that
    /// comes with it is handled as if the time had been told first.
    fn step(&mut self, now: MonoNs, input: Input<Self::Event>) -> Vec<Output<Self::Request>>;

    /// When [`Input::Time`] wants to be told next. `None`: not before something else comes.
    fn next_deadline(&self) -> Option<MonoNs>;

    /// What is known now.
    fn view(&self) -> View;

    /// What is to be said of this gateway to the others at `now`, over the pair link.
    fn peer_state(&self, now: MonoNs) -> PeerState;
}

/// What can come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<E> {
    /// Time has passed.
    Time,
    /// From the backend.
    Backend(E),
    /// From another gateway, over the pair link.
    Peer {
        /// Who sent it: authenticated.
        from: NodeId,
        /// What it says.
        message: PeerMessage,
    },
    /// That process has ended: authenticated knowledge.
    Died(DeathNotice),
    /// How fit this gateway is.
    Fitness(Fitness),
    /// Whether this gateway stands.
    Eligibility(Eligibility),
    /// The rate of this gateway's clock is off by so much, parts per million: what the time daemon makes it.
    ClockRate {
        /// Its absolute value.
        error_ppm: u32,
    },
    /// Whether the hot threads get on with their work. A leader whose threads don't renews no more.
    Progress(Progress),
    /// The highest epoch credibly heard on the wire.
    ObservedEpoch(Epoch),
    /// Lead on by somebody else: `None` chooses the fittest.
    HandOver(Option<NodeId>),
    /// The fence is closed and no send is outstanding any more: the answer to [`Output::Drain`].
    Drained {
        /// Where this gateway's output ended, per channel.
        positions: BTreeMap<u16, StreamPosition>,
    },
    /// No automatic moves from now on, or again.
    Pin(Pin),
    /// Admit that gateway as a candidate, by hand.
    Admit(NodeId, NodeName),
    /// Where leadership belongs, seen over all groups. Cores that don't hand over by themselves leave it aside.
    Placement(GroupPlacement),
    /// Whether the two gateways have lately made different records of one message: then leadership doesn't move by itself.
    OutputMismatch(bool),
    /// Release what is held and stand no more.
    Close,
}

impl Input<Infallible> {
    /// The same for any backend.
    #[must_use]
    pub fn widen<E>(self) -> Input<E> {
        match self {
            Self::Time => Input::Time,
            Self::Backend(never) => match never {},
            Self::Peer { from, message } => Input::Peer { from, message },
            Self::Died(notice) => Input::Died(notice),
            Self::Fitness(fitness) => Input::Fitness(fitness),
            Self::Eligibility(eligibility) => Input::Eligibility(eligibility),
            Self::ClockRate { error_ppm } => Input::ClockRate { error_ppm },
            Self::Progress(progress) => Input::Progress(progress),
            Self::ObservedEpoch(epoch) => Input::ObservedEpoch(epoch),
            Self::HandOver(target) => Input::HandOver(target),
            Self::Drained { positions } => Input::Drained { positions },
            Self::Pin(pin) => Input::Pin(pin),
            Self::Admit(node, name) => Input::Admit(node, name),
            Self::Placement(place) => Input::Placement(place),
            Self::OutputMismatch(has_output_mismatch) => Input::OutputMismatch(has_output_mismatch),
            Self::Close => Input::Close,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<R> {
    /// Tell listeners, then open the fence.
    Open {
        /// A new one.
        epoch: Epoch,
        /// Until when, the margin already taken off.
        deadline: MonoNs,
    },
    /// Move the fence's deadline.
    Renew {
        /// Until when, the margin already taken off.
        deadline: MonoNs,
    },
    /// Close the fence, then tell listeners.
    Close {
        /// Of the leadership that ends.
        epoch: Epoch,
        /// Why.
        reason: CloseReason,
    },
    /// The fence has been closed for a hand-over: wait, with a limit, until no send is outstanding, and answer with
    /// [`Input::Drained`].
    Drain,
    /// A gateway that led has said where its output ended.
    PeerOutputEnded {
        /// Under that epoch.
        epoch: Epoch,
        /// There, per channel.
        positions: BTreeMap<u16, StreamPosition>,
    },
    /// Ask the backend.
    Request(R),
    /// Send over the pair link.
    Peer {
        /// To whom.
        to: NodeId,
        /// What.
        message: PeerMessage,
    },
    /// Tell listeners how the connection is.
    Connection(ConnectionState),
    /// Tell a person.
    Notice(Notice),
}

/// Whether hot threads get on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Progress {
    /// They do, or have nothing to do.
    #[default]
    Running,
    /// Work is pending and none is done.
    Stuck,
}

/// Whether leadership moves by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pin {
    /// It may: to a fitter or preferred gateway.
    #[default]
    Free,
    /// It doesn't. A leader still ends its own lease where it must.
    Pinned,
}

/// Where the leadership of a group belongs, where several gateways share several groups. A wish: it decides who is
/// handed the lead and who tries first, never who may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupPlacement {
    /// Who should lead; its leader hands over to it, after the least tenure.
    pub preferred_leader: Option<NodeId>,
    /// Who should follow when the present leader is gone.
    pub preferred_successor: Option<NodeId>,
}

/// Why a leadership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// It could not be renewed in time.
    Expired,
    /// The connection is in doubt, and the configuration says to stop then.
    Suspended,
    /// Somebody else holds the record, or it is gone.
    Lost,
    /// Handed over.
    HandedOver,
    /// Closed by its owner.
    Released,
    /// A higher epoch was credibly heard: leads again above it, if it is elected.
    Outranked,
}

/// How the connection to whoever grants leadership is: what listeners are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// Not yet.
    #[default]
    Starting,
    /// For the first time.
    Connected,
    /// In doubt. The fence's deadline still rules, or leadership has ended: by configuration.
    Suspended,
    /// Gone; leadership with it.
    Lost,
    /// There again: a new candidacy after `Lost`.
    Reconnected,
}

/// What a gateway is in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// It does not stand: see [`View::obstacle`].
    #[default]
    Ineligible,
    /// It waits for its turn.
    Candidate,
    /// It publishes.
    Leader,
    /// It has given up leadership and will not stand again.
    Closed,
}

/// What is known of the election. For status, `participants` and `leader`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// What this gateway is.
    pub role: Role,
    /// Epoch of the present leadership as far as it is known, whoever leads.
    pub epoch: Epoch,
    /// Who leads, as far as it is known.
    pub leader: Option<Member>,
    /// Who goes on at once when the leader has ended, as far as it is known.
    pub successor: Option<NodeId>,
    /// Who may stand.
    pub participants: BTreeMap<NodeId, NodeName>,
    /// How the connection is.
    pub connection: ConnectionState,
    /// Whether leadership moves by itself.
    pub pin: Pin,
    /// Why this gateway doesn't stand, or doesn't renew.
    pub obstacle: Option<Obstacle>,
    /// How fit this gateway is.
    pub fitness: Fitness,
    /// Whether it could lead, were it handed the lead; like `peers`, of cores that move leadership by themselves.
    pub can_lead: bool,
    /// What the others have said of themselves.
    pub peers: BTreeMap<NodeId, PeerView>,
}

/// What another gateway last said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerView {
    /// When.
    pub received_at: MonoNs,
    /// How fit it is.
    pub fitness: Fitness,
    /// Whether it stands, is admitted, and publishes the same.
    pub can_lead: bool,
}

/// Why a gateway does not stand, or does not renew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// It still takes over state from its peer.
    Joining,
    /// The record does not name it; it has asked to be admitted.
    NotAdmitted,
    /// Its configuration differs from the running leader's at the same or a higher revision.
    Configuration {
        /// What the record says.
        theirs: super::record::ConfigVersion,
        /// What this gateway has.
        ours: super::record::ConfigVersion,
    },
    /// The clock's rate is outside what the timing allows for.
    ClockRate {
        /// What it is, parts per million.
        error_ppm: u32,
        /// What is allowed.
        error_ppm_max: u32,
    },
    /// The store grants sessions too short for three renewals before the deadline.
    SessionTooShort {
        /// What it grants, ns.
        session_ns: u64,
        /// How often is renewed, ns.
        renew_ns: u64,
    },
    /// Its hot threads make no progress.
    NoProgress,
    /// It sits out the time after its start.
    StartupWait,
    /// It gave its promise not to take over.
    Promised,
    /// The store holds something that is no record.
    ForeignRecord(String),
    /// All epochs are used up.
    EpochsExhausted,
}

impl Obstacle {
    /// Whether it goes away by itself, in the ordinary course of things.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Joining | Self::StartupWait | Self::Promised)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joining => f.write_str("it takes over state from its peer"),
            Self::NotAdmitted => f.write_str(
                "the record does not name this gateway: `mdgw ha admit` where the leader runs, if it is to lead",
            ),
            Self::Configuration { theirs, ours } => write!(
                f,
                "its configuration (hash {:016x}, revision {}) is not the leader's (hash {:016x}, revision {})",
                ours.hash, ours.revision, theirs.hash, theirs.revision
            ),
            Self::ClockRate { error_ppm, error_ppm_max } => {
                write!(f, "its clock is off by {error_ppm} ppm, more than the {error_ppm_max} ppm of the timing")
            }
            Self::SessionTooShort { session_ns, renew_ns } => write!(
                f,
                "the store grants sessions of {} ms, too short for renewals each {} ms",
                session_ns / NS_PER_MS,
                renew_ns / NS_PER_MS
            ),
            Self::NoProgress => f.write_str("its hot threads make no progress"),
            Self::StartupWait => f.write_str("it sits out the time after its start"),
            Self::Promised => f.write_str("it promised the leader not to take over while the store is lost"),
            Self::ForeignRecord(why) => write!(f, "the store holds something that is no record: {why}"),
            Self::EpochsExhausted => f.write_str("all epochs are used up"),
        }
    }
}

/// What a person should know. Each is an alarm, an audit line, or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The record went back: a store restored from a backup, or a record made anew. The wait begins again.
    RecordRolledBack {
        /// The highest epoch seen before.
        highest_seen: Epoch,
        /// What it says now.
        now: Epoch,
    },
    /// The store doesn't answer; publishing goes on by the promises of all other candidates.
    RunsOnPromises,
    /// The store answers again.
    StoreReachable,
    /// Does not stand or renew, from now on.
    Obstacle(Obstacle),
    /// Was outranked by an epoch heard on the wire.
    HigherEpochObserved(Epoch),
    /// A planned hand-over did not take place.
    HandOverFailed {
        /// To whom; `None`: nobody could be chosen.
        target: Option<NodeId>,
        /// Why.
        why: &'static str,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordRolledBack { highest_seen, now } => {
                let [highest_seen, now] = [highest_seen, now].map(|epoch| (epoch.count(), epoch.node()));
                write!(
                    f,
                    "the record went back from epoch {} by {} to {} by {}",
                    highest_seen.0, highest_seen.1, now.0, now.1
                )
            }
            Self::RunsOnPromises => {
                f.write_str("the store doesn't answer: leads on by the promises of all other candidates")
            }
            Self::StoreReachable => f.write_str("the store answers again"),
            Self::Obstacle(obstacle) => write!(f, "does not stand or renew: {obstacle}"),
            Self::HigherEpochObserved(heard) => {
                write!(f, "outranked by epoch {} by {}, heard on the wire", heard.count(), heard.node())
            }
            Self::HandOverFailed { target: Some(node), why } => write!(f, "no hand-over to node {}: {why}", node.0),
            Self::HandOverFailed { target: None, why } => write!(f, "no hand-over: {why}"),
        }
    }
}

const NS_PER_MS: u64 = 1_000_000;
