//! The interface of every election core: a pure state machine. The election thread, the simulation and the model drive
//! it.

use std::{collections::BTreeMap, convert::Infallible, fmt};

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, NodeName},
    peer::{PeerMessage, PeerState},
    record::ConfigVersion,
};
use crate::identity::DeathNotice;

/// One gateway's part in the election of one group. No I/O, no clock, no thread, no random number.
pub trait Core {
    /// Events from the backend: answers of a store, datagrams of voters.
    type Event;
    /// Requests to the backend.
    type Request;

    /// What a [`ConnectionState`] is about, for the log.
    const CONNECTION: &'static str = "connection to the election store";

    /// Processes one input at `now` and returns the actions to take, in order. `now` never runs backwards. The core
    /// advances its time to `now` before it processes the input.
    fn step(&mut self, now: MonoNs, input: Input<Self::Event>) -> Vec<Output<Self::Request>>;

    /// When the core needs [`Input::Time`] next. `None`: not before another input.
    fn next_deadline(&self) -> Option<MonoNs>;

    /// The present state, as known to this gateway.
    fn view(&self) -> View;

    /// This gateway's state at `now`, for the other gateways, over the pair link.
    fn peer_state(&self, now: MonoNs) -> PeerState;
}

/// Inputs of a core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<E> {
    /// Time has passed.
    Time,
    /// From the backend.
    Backend(E),
    /// From another gateway, over the pair link.
    Peer {
        /// Node that sent the message; the link has authenticated it.
        from: NodeId,
        /// The message that the peer sent.
        message: PeerMessage,
    },
    /// That process has ended. The notice is authenticated.
    Died(DeathNotice),
    /// How fit this gateway is.
    Fitness(Fitness),
    /// Another gateway has received output of this gateway's present leadership.
    OutputReceived,
    /// Whether this gateway is eligible.
    Eligibility(Eligibility),
    /// The error of this gateway's clock rate.
    ClockRate(ClockRate),
    /// Whether the hot threads make progress. A leader whose hot threads are stuck stops renewing.
    Progress(Progress),
    /// The highest credible epoch observed on the wire.
    ObservedEpoch(Epoch),
    /// Hand over to that gateway. `None`: to the fittest.
    HandOver(Option<NodeId>),
    /// The fence is closed and no send is outstanding: the answer to [`Output::Drain`].
    Drained,
    /// Forbids automatic moves, or allows them again.
    Pin(Pin),
    /// An operator admits that gateway as a candidate.
    Admit(NodeId, NodeName),
    /// Where leadership belongs, computed over all groups. Cores that do not hand over automatically ignore it.
    Placement(GroupPlacement),
    /// The configuration of this gateway's output from now on. Only what this gateway reports and how it compares itself
    /// with others follows from it, as after a restart with that configuration.
    Configuration(ConfigVersion),
    /// Whether the two gateways have lately produced different records for one message. If so, leadership does not move
    /// automatically.
    OutputMismatch(bool),
    /// Release leadership and end the candidacy.
    Close,
}

impl Input<Infallible> {
    /// Converts the input for a core with any backend event.
    #[must_use]
    pub(crate) fn widen<E>(self) -> Input<E> {
        match self {
            Self::Time => Input::Time,
            Self::Backend(never) => match never {},
            Self::Peer { from, message } => Input::Peer { from, message },
            Self::Died(notice) => Input::Died(notice),
            Self::Fitness(fitness) => Input::Fitness(fitness),
            Self::OutputReceived => Input::OutputReceived,
            Self::Eligibility(eligibility) => Input::Eligibility(eligibility),
            Self::ClockRate(rate) => Input::ClockRate(rate),
            Self::Progress(progress) => Input::Progress(progress),
            Self::ObservedEpoch(epoch) => Input::ObservedEpoch(epoch),
            Self::HandOver(target) => Input::HandOver(target),
            Self::Drained => Input::Drained,
            Self::Pin(pin) => Input::Pin(pin),
            Self::Admit(node, name) => Input::Admit(node, name),
            Self::Placement(place) => Input::Placement(place),
            Self::Configuration(configuration) => Input::Configuration(configuration),
            Self::OutputMismatch(has_output_mismatch) => Input::OutputMismatch(has_output_mismatch),
            Self::Close => Input::Close,
        }
    }
}

/// Actions that a core requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<R> {
    /// Notify listeners, then open the fence.
    Open {
        /// Epoch of the new leadership. No opening had this epoch before.
        epoch: Epoch,
        /// The fence refuses sends from this time on. The margin M is already subtracted.
        deadline: MonoNs,
    },
    /// Move the fence's deadline.
    Renew {
        /// The fence refuses sends from this time on. The margin M is already subtracted.
        deadline: MonoNs,
    },
    /// Close the fence, then notify listeners.
    Close {
        /// Epoch of the leadership that ends.
        epoch: Epoch,
        /// Why the leadership ends.
        reason: CloseReason,
    },
    /// The fence has been closed. Answer with [`Input::Drained`] once no send is outstanding, however long that takes. One
    /// answer, after the last request, serves all requests before it: a fence may have opened in between.
    Drain,
    /// The former leader has handed over to this gateway: its leadership under that epoch has ended.
    PeerOutputEnded(Epoch),
    /// Send a request to the backend.
    Request(R),
    /// Send over the pair link.
    Peer {
        /// Node to which the driver sends the message.
        to: NodeId,
        /// The message to send.
        message: PeerMessage,
    },
    /// Notify listeners of the connection's state.
    Connection(ConnectionState),
    /// Notify the operator.
    Notice(Notice),
}

/// Whether hot threads make progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Progress {
    /// The hot threads make progress, or have nothing to do.
    #[default]
    Running,
    /// A thread of a pool has work and does none, or a pool has stopped.
    PoolStuck,
    /// The election thread of a group of this gateway has work and does none. It need not be this group's; if it is, the thread
    /// takes this input when it goes on.
    ElectionStuck,
}

impl Progress {
    pub(crate) fn obstacle(self) -> Option<Obstacle> {
        match self {
            Self::Running => None,
            Self::PoolStuck => Some(Obstacle::PoolStuck),
            Self::ElectionStuck => Some(Obstacle::ElectionStuck),
        }
    }
}

/// Whether leadership may move automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pin {
    /// Leadership may move automatically, to a fitter or preferred gateway.
    #[default]
    Free,
    /// Leadership does not move automatically. A leader still ends its own lease where it must.
    Pinned,
}

/// Where the leadership of a group belongs, where several gateways share several groups. A preference: it decides which
/// gateway is offered leadership and which tries first, never which one may lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupPlacement {
    /// The node that should lead. The present leader hands over to it after the minimum tenure.
    pub preferred_leader: Option<NodeId>,
    /// The node that should take over when the present leader ends.
    pub preferred_successor: Option<NodeId>,
}

/// Why a leadership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The leader could not renew in time.
    Expired,
    /// The connection is in doubt, and the configuration demands to stop in this case.
    Suspended,
    /// Another gateway holds the record, or the record is gone.
    Lost,
    /// The leader handed over to another gateway.
    HandedOver,
    /// This gateway closed its latch.
    Released,
    /// A credible higher epoch was observed. This gateway opens again above that one, mostly in the same step.
    Outranked,
}

/// State of the connection to the backend, as listeners are notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// Not connected yet.
    #[default]
    Starting,
    /// Connected for the first time.
    Connected,
    /// In doubt. By configuration, the fence's deadline still applies or leadership has ended.
    Suspended,
    /// The connection is gone, and leadership with it.
    Lost,
    /// Connected again: a new candidacy after `Lost`.
    Reconnected,
}

/// A gateway's role in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// It is not eligible: see [`View::obstacle`].
    #[default]
    Ineligible,
    /// Eligible, and waits to take over.
    Candidate,
    /// Its fence is open: this gateway publishes.
    Leader,
    /// It has given up leadership and its candidacy.
    Closed,
}

/// The state of the election as known to this gateway, for status output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// This gateway's role.
    pub role: Role,
    /// Epoch of the present leadership as far as known, of any leader.
    pub epoch: Epoch,
    /// The leader, as far as known.
    pub leader: Option<Member>,
    /// When the lease of another leader ends, as far as this gateway knows. `None`: this gateway leads, or the backend names a
    /// leader only as long as it answers.
    pub leader_until: Option<MonoNs>,
    /// The designated successor, as far as known.
    pub successor: Option<NodeId>,
    /// Gateways that may lead, this one included, with their names.
    pub participants: BTreeMap<NodeId, NodeName>,
    /// State of the connection to the backend.
    pub connection: ConnectionState,
    /// Whether leadership may move automatically.
    pub pin: Pin,
    /// Why this gateway is not eligible, or does not renew.
    pub obstacle: Option<Obstacle>,
    /// How fit this gateway is.
    pub fitness: Fitness,
    /// Whether this gateway could lead if leadership were handed over to it. Set, like `peers`, by cores that move
    /// leadership automatically.
    pub can_lead: bool,
    /// The last reported states of the other gateways.
    pub peers: BTreeMap<NodeId, PeerView>,
    /// The voters of a `quorum`, this gateway among them. Empty with other backends.
    pub voters: BTreeMap<NodeId, VoterView>,
}

/// A voter, as a candidate knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VoterView {
    /// Of a gateway its configured name, of a witness `witness-NODE`.
    pub name: NodeName,
    /// When the voter last answered this gateway; `None`: not yet.
    pub answered_at: Option<MonoNs>,
}

impl VoterView {
    /// Whether the voter has answered within that time, ns.
    #[must_use]
    pub fn answers(&self, within_ns: u64, now: MonoNs) -> bool {
        self.answered_at.is_some_and(|at| now.since(at) < within_ns)
    }
}

/// The last reported state of another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerView {
    /// When this gateway received the report.
    pub received_at: MonoNs,
    /// How fit the peer is.
    pub fitness: Fitness,
    /// Whether the peer is eligible, is admitted, and publishes the same output.
    pub can_lead: bool,
}

/// Why a gateway is not eligible, or does not renew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// The gateway still takes over state from its peer.
    Joining,
    /// The record does not name the gateway, which has asked to be admitted.
    NotAdmitted,
    /// No member answers the gateway's requests to join.
    NoMember,
    /// The gateway would publish different output than the running leader, and its configuration has no higher
    /// revision.
    Configuration {
        /// The record's configuration.
        expected: ConfigVersion,
        /// This gateway's configuration.
        ours: ConfigVersion,
    },
    /// The clock's rate is outside the range that the timing allows.
    ClockRate {
        /// The measured rate error, parts per million.
        error_ppm: u32,
        /// The allowed rate error, parts per million.
        error_ppm_max: u32,
    },
    /// The kernel does not report how it corrects the clock.
    ClockUnreadable,
    /// The store grants sessions too short for three renewals before the deadline.
    SessionTooShort {
        /// The granted session time-out, ns.
        session_ns: u64,
        /// The renewal period, ns.
        renew_ns: u64,
    },
    /// Threads of the gateway's pools make no progress.
    PoolStuck,
    /// An election thread of the gateway makes no progress.
    ElectionStuck,
    /// The gateway waits one lease after its start.
    StartupWait,
    /// The gateway promised not to take over.
    Promised,
    /// The store holds a value that is not a record.
    ForeignRecord(String),
    /// All epochs are used up.
    EpochsExhausted,
}

impl Obstacle {
    /// The obstacle of a clock with that rate, if the timing allows `error_ppm_max`.
    pub(crate) fn of_clock(rate: ClockRate, error_ppm_max: u32) -> Option<Self> {
        rate.exceeds(error_ppm_max).then_some(match rate {
            ClockRate::Within(error_ppm) => Self::ClockRate { error_ppm, error_ppm_max },
            ClockRate::Unreadable => Self::ClockUnreadable,
        })
    }

    /// Whether the obstacle goes away without intervention, in the ordinary course of things.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Joining | Self::StartupWait | Self::Promised)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joining => f.write_str("still joining: copying state from its peer"),
            Self::NotAdmitted => f.write_str(
                "the election record does not list this gateway as a candidate; to admit it, run `mdgw ha admit` on the leader",
            ),
            Self::NoMember => f.write_str("no member of the group answers its requests to join; it keeps asking the seeds"),
            Self::Configuration { expected, ours } => write!(
                f,
                "its configuration (hash {:016x}, revision {}) differs from the leader's (hash {:016x}, revision {})",
                ours.hash, ours.revision, expected.hash, expected.revision
            ),
            Self::ClockRate { error_ppm, error_ppm_max } => {
                write!(f, "its clock rate may be off by {error_ppm} ppm, more than the allowed {error_ppm_max} ppm (rate_error_ppm)")
            }
            Self::ClockUnreadable => f.write_str(
                "the kernel does not report how it corrects the clock: adjtimex is refused (a filter of system calls, ProtectClock=)",
            ),
            Self::SessionTooShort { session_ns, renew_ns } => write!(
                f,
                "the store grants sessions of {} ms, too short for a renewal every {} ms",
                session_ns / NS_PER_MS,
                renew_ns / NS_PER_MS
            ),
            Self::PoolStuck => f.write_str("its pool threads make no progress"),
            Self::ElectionStuck => f.write_str("one of its election threads has made no progress"),
            Self::StartupWait => f.write_str("waiting one lease after its start"),
            Self::Promised => f.write_str("it promised the leader not to take over while the store is unreachable"),
            Self::ForeignRecord(why) => write!(f, "the store contains an invalid election record: {why}"),
            Self::EpochsExhausted => f.write_str("epoch numbers exhausted"),
        }
    }
}

/// What the operator should know. Each is an alarm, an audit line, or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The record was rolled back: the store was restored from a backup, or the record was created anew. The wait
    /// begins again.
    RecordRolledBack {
        /// The highest epoch seen before.
        highest_seen: Epoch,
        /// The record's present epoch.
        now: Epoch,
    },
    /// The store does not answer; the leader continues on the promises of all other candidates.
    RunsOnPromises,
    /// The store answers again.
    StoreReachable,
    /// From now on this gateway is not eligible or does not renew.
    Obstacle(Obstacle),
    /// An epoch observed on the wire is higher than this leadership's.
    HigherEpochObserved(Epoch),
    /// The same of an epoch that no packet brought, but another gateway's message. The driver knows that, not the core.
    HigherEpochReported(Epoch),
    /// A planned hand-over did not take place.
    HandOverFailed {
        /// The intended leader; `None`: no gateway could be chosen.
        target: Option<NodeId>,
        /// Why the hand-over failed, for the log.
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
                    "the election record was rolled back from epoch {} (node {}) to epoch {} (node {})",
                    highest_seen.0, highest_seen.1, now.0, now.1
                )
            }
            Self::RunsOnPromises => {
                f.write_str("the store does not answer; the leader keeps publishing because all other candidates promised not to take over")
            }
            Self::StoreReachable => f.write_str("the store answers again"),
            Self::Obstacle(obstacle) => write!(f, "not eligible: {obstacle}"),
            Self::HigherEpochObserved(epoch) => {
                write!(f, "received output of epoch {} (node {}); raises its own above it", epoch.count(), epoch.node())
            }
            Self::HigherEpochReported(epoch) => write!(
                f,
                "another gateway reports epoch {} (node {}); raises its own above it",
                epoch.count(),
                epoch.node()
            ),
            Self::HandOverFailed { target: Some(node), why } => write!(f, "hand-over to node {} failed: {why}", node.0),
            Self::HandOverFailed { target: None, why } => write!(f, "hand-over failed: {why}"),
        }
    }
}

const NS_PER_MS: u64 = 1_000_000;
