//! Membership without a store: the oldest live member leads while there are enough members. The core of the backend
//! `emergent`; pure: see [`Core`].
//!
//! ```text
//!               accepted, or bootstraps         excluded, yields, handed over
//!   Joining ───────────────────────► Member ───────────────────────────────────► Joining
//!                                       oldest live member: coordinator
//!                                       coordinator with enough heartbeats: leader
//! ```
//! This backend prefers availability. While the network is split, each side that has the minimum size has a leader, and
//! receivers choose one by its epoch. Hence the configuration must say `allow_split`, and the log at start and the
//! status repeat it.
//!
//! - Only a node configured to do so bootstraps a membership, after its attempts to join have failed; its age is 1.
//!   Every other node gets the youngest member's age plus one from the coordinator. The coordinator answers when all
//!   live members have the new list, or after a limit.
//! - The list has a version, which heartbeats carry. The coordinator sends the list to a member that missed a version.
//! - Only the coordinator marks members failed. When all older members are silent, the next in age claims. Another
//!   member follows a claim only when the older members are silent to it too. A leader follows no claim while its fence
//!   is open. So a member that was cut off alone, and is received again, displaces no leader.
//! - Each heartbeat echoes the coordinator's last one. The echo is a promise to follow no other coordinator for one
//!   failure time-out. A leader's deadline is the time at which it sent the heartbeats that the minimum size of members
//!   echo, plus the failure time-out, less the margin M. The leader counts itself; an echo counts only from a member
//!   that has the leader's list. A member that has just started echoes nothing for one failure time-out, since an
//!   earlier start of it may have promised.
//! - So with a minimum size of more than half of all nodes, two never lead at once, whatever the network does. With a
//!   smaller minimum size, two sides of a split can.
//! - Coordinators probe failed members. Of two sides that meet again, the smaller one stops and rejoins as youngest.
//!
//! Section 11 of `gateway/election/SAFETY.md` gives the argument.
//!
//! Modules: [`member_list`], [`message`], [`timing`], `joining` (of a joining gateway), `membership` (heartbeats,
//! silence, claims), `coordinator` (joins, failures, probes), `split_merge` (a split that heals), `leading` (epoch and
//! fence), [`datagrams`] (UDP).
//!
//! Not done: leaving because of fitness, or choosing the target of a hand-over; the target is always the next in age.

mod coordinator;
pub mod datagrams;
mod joining;
mod leading;
pub mod member_list;
mod membership;
pub mod message;
#[cfg(test)]
mod model;
mod split_merge;
#[cfg(test)]
mod test_cluster;
#[cfg(test)]
mod tests;
pub mod timing;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
};

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use self::{
    joining::Joining,
    leading::{Leadership, OutrankedTurns},
    member_list::{ListVersion, MemberList},
    membership::MemberLiveness,
    message::{Envelope, Message},
    split_merge::Yielding,
    timing::EmergentTiming,
};
use super::{
    core::{CloseReason, ConnectionState, Core, Input, Notice, Obstacle, Output, Pin, Progress, Role, View},
    fitness::{Eligibility, Fitness},
    identity::{Incarnation, Member, NodeId},
    peer::PeerState,
    record::ConfigVersion,
};
use crate::{identity::DeathNotice, outstanding_sends::OutstandingSends};

/// Configuration of a gateway for the membership of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EmergentConfig {
    /// This start of this gateway.
    pub member: Member,
    /// The address under which others reach this gateway.
    pub address: SocketAddr,
    /// Addresses to ask for admission; the own address is ignored.
    pub seeds: Vec<SocketAddr>,
    /// What this gateway does when no member answers.
    pub bootstrap: BootstrapMode,
    /// Attempts to join, with a pause that doubles each time, before the gateway bootstraps or reports that no member
    /// answers.
    pub join_attempts: u32,
    /// Members, this gateway included, below which no member leads.
    pub minimum_size: usize,
    /// Must have passed [`EmergentTiming::check`].
    pub timing: EmergentTiming,
    /// The highest epoch in this gateway's own log.
    pub own_epoch: Epoch,
    /// The output that this gateway is configured to publish.
    pub configuration: ConfigVersion,
    /// `allow_split`: the operator accepts that two leaders can exist across a split for a while.
    pub allow_split: bool,
}

impl EmergentConfig {
    /// Checks that the configuration can work, and that the operator has accepted splits.
    ///
    /// # Errors
    /// Says what is missing.
    pub(crate) fn check(&self) -> Result<(), EmergentConfigError> {
        if !self.allow_split {
            return Err(EmergentConfigError::SplitNotAllowed);
        }
        if !(1..=member_list::MEMBERS_MAX).contains(&self.minimum_size) {
            return Err(EmergentConfigError::MinimumSize { minimum_size: self.minimum_size });
        }
        let asks = self.seeds.iter().any(|seed| *seed != self.address);
        if !asks && self.bootstrap == BootstrapMode::JoinOnly {
            return Err(EmergentConfigError::NoSeed);
        }
        Ok(self.timing.check()?)
    }
}

/// A configuration that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmergentConfigError {
    /// Splits are not accepted.
    #[error(
        "the backend `emergent` prefers availability: during a network partition two gateways can lead, and receivers \
         accept the higher epoch. If that is acceptable set `allow_split = true`; otherwise use another backend"
    )]
    SplitNotAllowed,
    /// 0, or more than the largest membership.
    #[error("minimum size {minimum_size} must be 1 to {}", member_list::MEMBERS_MAX)]
    MinimumSize {
        /// The configured minimum size.
        minimum_size: usize,
    },
    /// Without a seed the node could never join.
    #[error("a node with `bootstrap = false` needs a seed other than itself")]
    NoSeed,
    /// Times that do not fit together.
    #[error(transparent)]
    Timing(#[from] timing::EmergentTimingError),
}

/// What a node does when no member answers its joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BootstrapMode {
    /// It bootstraps a membership. Exactly one node of a group is configured so.
    Bootstrap,
    /// It keeps asking, at the longest pause.
    #[default]
    JoinOnly,
}

/// A message to be sent as a datagram, which may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutgoingMessage {
    /// Address of the recipient.
    pub to: SocketAddr,
    /// The message, with its sender and its number.
    pub envelope: Box<Envelope>,
}

/// One gateway's part in the membership of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Emergent {
    config: EmergentConfig,
    phase: Phase,
    leadership: Option<Leadership>,
    outstanding_sends: OutstandingSends,
    /// The owner closes the latch; the others are notified when no send is outstanding.
    is_closing: bool,
    outranked: OutrankedTurns,
    eligibility: Eligibility,
    fitness: Fitness,
    progress: Progress,
    clock_rate: ClockRate,
    pin: Pin,
    connection: ConnectionState,
    obstacle: Option<Obstacle>,
    /// The highest epoch known: own, from messages, and observed on the wire.
    known_epoch: Epoch,
    /// Messages sent; the count numbers each message.
    sent_count: u64,
    /// Time of the first input. The wait after a start counts from here.
    started_at: Option<MonoNs>,
    /// The last message accepted from each node. No message is accepted twice.
    last_received: BTreeMap<NodeId, (Incarnation, u64)>,
    /// Processes known to have ended.
    dead_members: BTreeSet<(NodeId, Incarnation)>,
    outputs: Vec<Output<OutgoingMessage>>,
    disabled: Option<Safeguard>,
}

/// What a gateway is doing. State that belongs to a phase ends with the phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The gateway asks for admission.
    Joining(Joining),
    /// The gateway is on the list.
    Member(Box<Membership>),
    /// The owner has closed the latch.
    Closed,
}

/// A member's view of its membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Membership {
    list: MemberList,
    /// The largest size that any list of this membership had.
    live_count_max: usize,
    liveness: BTreeMap<NodeId, MemberLiveness>,
    /// As coordinator: counts of our last heartbeats, and when each was sent.
    sent_heartbeats: VecDeque<(u64, MonoNs)>,
    heartbeat_at: MonoNs,
    probe_at: MonoNs,
    /// Members that asked for a heartbeat before it is due.
    reply_requested_by: BTreeSet<NodeId>,
    acknowledged: BTreeMap<NodeId, ListVersion>,
    pending: Vec<coordinator::PendingJoin>,
    /// Joins that were answered, by their nonce, since the answer may be lost.
    answered_joins: BTreeMap<NodeId, u64>,
    yielding: Option<Yielding>,
    /// This gateway hands over and waits until no send is outstanding.
    is_leaving: bool,
}

/// Rules that a check may switch off, to show that the check would notice. All are on in every product. The docs say
/// what happens without the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Safeguard {
    /// A side of any size leads.
    MinimumSize,
    /// A leader's fence stays open, whichever heartbeats it receives.
    HeartbeatDeadline,
    /// No side of a healed split stops.
    SmallerSideYields,
    /// Any claim is followed, whichever members it displaces.
    DisplaceOnlySilent,
    /// A leader counts the heartbeats that it receives, whether its own arrive or not.
    RequireEcho,
    /// A member that has just started promises at once.
    StartupWait,
    /// The others learn of an end while sends may be outstanding.
    EndAfterSends,
    /// A coordinator probes failed members only.
    ProbeSeeds,
    /// A member claims only when all older members are silent, and sends a list that makes a member coordinator once.
    ClaimBesideFollowers,
    /// Each outranking is answered by a wait that doubles, whether another side can exist or not.
    RaiseInPlace,
}

impl Emergent {
    /// A candidacy that begins with the first input.
    ///
    /// # Errors
    /// As [`EmergentConfig::check`].
    pub fn new(config: EmergentConfig) -> Result<Self, EmergentConfigError> {
        config.check()?;
        Ok(Self {
            phase: Phase::Joining(Joining::new()),
            leadership: None,
            outstanding_sends: OutstandingSends::default(),
            is_closing: false,
            outranked: OutrankedTurns::default(),
            eligibility: Eligibility::Joining,
            fitness: Fitness::default(),
            progress: Progress::Running,
            clock_rate: ClockRate::Within(0),
            pin: Pin::Free,
            connection: ConnectionState::Starting,
            obstacle: None,
            known_epoch: config.own_epoch,
            sent_count: 0,
            started_at: None,
            last_received: BTreeMap::new(),
            dead_members: BTreeSet::new(),
            outputs: Vec::new(),
            disabled: None,
            config,
        })
    }

    /// For checks that show the effect of each safeguard.
    #[must_use]
    pub fn without(self, safeguard: Safeguard) -> Self {
        Self { disabled: Some(safeguard), ..self }
    }

    /// Takes the actions that are due at `now`, or that an input has made possible.
    fn on_time(&mut self, now: MonoNs) {
        self.started_at.get_or_insert(now);
        self.close_if_expired(now);
        self.stop_awaiting_sends(now);
        match &self.phase {
            Phase::Joining(_) => self.continue_joining(now),
            Phase::Member(_) => {
                self.claim_if_older_are_silent(now);
                self.coordinate(now);
                self.expire_yielding(now);
                self.update_leadership(now);
                self.send_heartbeats(now);
            }
            Phase::Closed => {}
        }
    }

    fn receive(&mut self, now: MonoNs, envelope: Envelope) {
        let Envelope { from, address, to, number, message } = envelope;
        let ours = &self.config.member;
        let is_for_us = to.is_none_or(|incarnation| incarnation == ours.incarnation);
        let last = self.last_received.get(&from.node);
        let is_new = last.is_none_or(|last| *last < (from.incarnation, number));
        if from.node == ours.node || !is_for_us || !is_new || self.dead_members.contains(&(from.node, from.incarnation))
        {
            return;
        }
        self.last_received.insert(from.node, (from.incarnation, number));
        match message {
            Message::Join { nonce } => self.on_join(now, from, address, nonce),
            Message::Redirect { nonce, coordinator } => self.on_redirect(now, nonce, coordinator),
            Message::JoinAccepted { nonce, list, epoch } => self.on_join_accepted(now, nonce, list, epoch),
            Message::Heartbeat(heartbeat) => self.on_heartbeat(now, &from, address, &heartbeat),
            Message::List(list) => self.on_list(now, &from, address, list),
            Message::Acknowledge(version) => self.on_acknowledge(&from, version),
            Message::Leave => self.on_leave(now, &from),
            Message::Ended { epoch } if self.is_coordinated_by(&from) => {
                self.outputs.push(Output::PeerOutputEnded(epoch));
            }
            Message::Ended { .. } => {}
            Message::Probe(side) => self.on_probe(now, &side),
            Message::Dissolve { winner } => self.on_dissolve(now, &from, winner),
        }
    }

    fn send(&mut self, to: SocketAddr, incarnation: Option<Incarnation>, message: Message) {
        self.sent_count += 1;
        let envelope = Envelope {
            from: self.config.member.clone(),
            address: self.config.address,
            to: incarnation,
            number: self.sent_count,
            message,
        };
        self.outputs.push(Output::Request(OutgoingMessage { to, envelope: Box::new(envelope) }));
    }

    fn membership(&self) -> Option<&Membership> {
        if let Phase::Member(membership) = &self.phase { Some(membership) } else { None }
    }

    fn membership_mut(&mut self) -> Option<&mut Membership> {
        if let Phase::Member(membership) = &mut self.phase { Some(membership) } else { None }
    }

    fn is_coordinator(&self) -> bool {
        self.is_coordinated_by(&self.config.member)
    }

    fn is_coordinated_by(&self, member: &Member) -> bool {
        let coordinator = self.membership().and_then(|membership| membership.list.coordinator());
        coordinator.is_some_and(|coordinator| coordinator.member == *member)
    }

    fn on_death(&mut self, now: MonoNs, notice: DeathNotice) {
        if notice.holder != self.config.member.node {
            self.dead_members.insert((notice.holder, notice.incarnation));
            self.observe_epoch(notice.epoch);
        }
        self.on_time(now);
    }

    fn observe_epoch(&mut self, epoch: Epoch) {
        if epoch > self.known_epoch {
            self.known_epoch = epoch;
        }
    }

    fn connect(&mut self, state: ConnectionState) {
        if self.connection != state {
            self.connection = state;
            self.outputs.push(Output::Connection(state));
        }
    }

    fn set_obstacle(&mut self, obstacle: Option<Obstacle>) {
        if self.obstacle != obstacle {
            if let Some(obstacle) = &obstacle {
                self.outputs.push(Output::Notice(Notice::Obstacle(obstacle.clone())));
            }
            self.obstacle = obstacle;
        }
    }

    fn close(&mut self, now: MonoNs) {
        self.close_fence(CloseReason::Released);
        self.is_closing = true;
        if !self.outstanding_sends.may_exist() {
            self.leave(now);
            self.phase = Phase::Closed;
        }
    }

    fn is_disabled(&self, safeguard: Safeguard) -> bool {
        self.disabled == Some(safeguard)
    }
}

impl Core for Emergent {
    type Event = Envelope;
    type Request = OutgoingMessage;

    const CONNECTION: &'static str = "connection to the other members";

    fn step(&mut self, now: MonoNs, input: Input<Envelope>) -> Vec<Output<OutgoingMessage>> {
        self.on_time(now);
        match input {
            Input::Backend(envelope) => self.receive(now, envelope),
            Input::Died(notice) => self.on_death(now, notice),
            Input::Eligibility(eligibility) => self.eligibility = eligibility,
            Input::ClockRate(rate) => self.clock_rate = rate,
            Input::Progress(progress) => self.progress = progress,
            Input::ObservedEpoch(epoch) => self.observe_epoch(epoch),
            Input::HandOver(target) => self.hand_over(target),
            Input::Drained => self.drained(now),
            Input::Pin(pin) => self.pin = pin,
            Input::Close => self.close(now),
            Input::Fitness(fitness) => self.fitness = fitness,
            Input::Configuration(configuration) => self.config.configuration = configuration,
            // There is no admission by an operator, and the pair link has no part in this election.
            Input::Time
            | Input::Peer { .. }
            | Input::Admit(..)
            | Input::Placement(_)
            | Input::OutputReceived
            | Input::OutputMismatch(_) => {}
        }
        self.on_time(now);
        std::mem::take(&mut self.outputs)
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        let own = match &self.phase {
            Phase::Joining(joining) => {
                Some(joining.next_at().max(self.outstanding_sends.lease_ends_at().unwrap_or_default()))
            }
            Phase::Member(membership) => Some(self.next_member_deadline(membership)),
            Phase::Closed => None,
        };
        let fence = self.leadership.map(|leadership| leadership.deadline);
        own.into_iter().chain(fence).chain(self.outstanding_sends.lease_ends_at()).min()
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState::at(now, &self.config.member, self.config.configuration, self.eligibility, self.fitness)
    }

    fn view(&self) -> View {
        let list = self.membership().map(|membership| &membership.list);
        let enough = list.is_some_and(|list| list.live_count() >= self.config.minimum_size);
        let obstacle = self.find_obstacle().or_else(|| self.obstacle.clone());
        View {
            role: match &self.phase {
                Phase::Closed => Role::Closed,
                _ if self.leadership.is_some() => Role::Leader,
                Phase::Member(_) if obstacle.is_none() => Role::Candidate,
                _ => Role::Ineligible,
            },
            epoch: self.known_epoch,
            leader: list.filter(|_| enough).and_then(|list| Some(list.coordinator()?.member.clone())),
            successor: None,
            participants: list.map_or_else(BTreeMap::new, |list| {
                list.live().map(|listed| (listed.member.node, listed.member.name.clone())).collect()
            }),
            connection: self.connection,
            pin: self.pin,
            obstacle,
            fitness: self.fitness,
            ..View::default()
        }
    }
}
