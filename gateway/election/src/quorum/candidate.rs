//! A gateway's part: it stands, leads, hands over; and votes, by the [`Voter`] that it has in itself.

mod hand_over;
mod moves;
mod phase;
mod standing;

use std::collections::{BTreeMap, VecDeque};

use mdgw_feeds::{
    identity::{Epoch, GroupId},
    published::position::StreamPosition,
    time::MonoNs,
};

use self::{
    moves::{Mobility, Tenure},
    phase::{Bid, Lead, Move, Phase, Poll, Taking},
};
use super::{
    message::{Body, Demand, Message, Refusal, Reply, Request, Ticket, Verdict, VoterSession},
    voter::{Kept, Safeguards, StoreTicket, Voter, VoterInput, VoterOutput},
};
use crate::{
    core::{CloseReason, ConnectionState, Core, Input, Notice, Obstacle, Output, Pin, Place, Progress, Role, View},
    fitness::{Fitness, Standing},
    identity::{Member, NodeId, NodeName, next_epoch},
    peer::{PeerMessage, PeerState},
    record::{ConfigurationMark, DIFFERENCE_PATIENCE_LEASES, PeerStamp},
    timing::LeaseTiming,
};

/// What a candidate is told once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CandidateConfig {
    /// The group.
    pub group: GroupId,
    /// This gateway.
    pub member: Member,
    /// Who votes: an odd number, this gateway among them.
    pub voters: BTreeMap<NodeId, NodeName>,
    /// Who may stand: those of the voters that are gateways.
    pub candidates: BTreeMap<NodeId, NodeName>,
    /// Lease, renewal, margin.
    pub timing: LeaseTiming,
    /// What this gateway is configured to publish.
    pub configuration: ConfigurationMark,
    /// How long a vote may take before the candidate gives it up: a voter's disk may be slower than the lease. ns.
    pub vote_ns_max: u64,
    /// Drawn at this start: of this gateway's requests, and of its voter.
    pub nonce: u64,
}

/// How long a vote may take: two leases, and a tenth of a second for a voter's disk.
#[must_use]
pub fn vote_ns_max(timing: &LeaseTiming) -> u64 {
    (2 * timing.lease_ns).saturating_add(100_000_000)
}

/// What comes from voters, and from this gateway's own disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuorumEvent {
    /// Authenticated, and for this gateway.
    Received(Message),
    /// That store of the vote is on disk.
    Stored(StoreTicket),
    /// That store failed.
    NotStored(StoreTicket),
}

/// What is asked of the backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuorumRequest {
    /// Send it; it may be lost.
    Send(Message),
    /// Put this on disk, synced, and say so.
    Store {
        /// Names it.
        ticket: StoreTicket,
        /// What to keep.
        kept: Kept,
    },
}

type Outputs = Vec<Output<QuorumRequest>>;

/// One gateway of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    config: CandidateConfig,
    safeguards: Safeguards,
    voter: Voter,
    phase: Phase,
    /// Being asked to take over: independent of the phase, since the answers may never come.
    taking: Option<Taking>,
    /// Requests to this gateway's own voter, not yet handed in.
    to_own_voter: VecDeque<Request>,
    /// Requests whose answer may still count, by number.
    sent: BTreeMap<u64, Sent>,
    number: u64,
    sessions: BTreeMap<NodeId, VoterSession>,
    /// When each voter last answered.
    answered: BTreeMap<NodeId, MonoNs>,
    /// The highest epoch known, by voters, by the wire, by own use: the next one is above it.
    known: Epoch,
    /// Not before it does a candidate poll; voters' promises apart.
    retry_at: MonoNs,
    /// When voters are asked next only to see that they are there.
    idle_at: MonoNs,
    connection: ConnectionState,
    fitness: Fitness,
    standing: Standing,
    progress: Progress,
    clock_error_ppm: u32,
    pin: Pin,
    place: Place,
    /// The two gateways make different records.
    differs: bool,
    /// What the others publish, and when they last said so.
    configurations: BTreeMap<NodeId, (ConfigurationMark, MonoNs)>,
    /// How much longer it waits than another that is meant to follow, ns.
    deference_ns: u64,
    /// `None`: a leader stays.
    mobility: Option<Mobility>,
    told_obstacle: Option<Obstacle>,
}

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    /// `None`: whichever voter grants it.
    to: Option<NodeId>,
    at: MonoNs,
    what: Asked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Poll,
    Vote(Epoch),
    Renew(Epoch),
    Prepare(Epoch),
    HandOver(Epoch),
    /// Not asked by this gateway: the leader asks voters in its name.
    Taking(Epoch),
}

impl Candidate {
    /// Starts at `now` with what its voter had on disk, and an epoch that the gateway's own log is sure of.
    #[must_use]
    pub fn new(now: MonoNs, config: CandidateConfig, kept: Kept, known: Epoch) -> Self {
        assert!(config.voters.contains_key(&config.member.node), "each gateway is a voter");
        let voter = Voter::new(now, kept, VoterSession(config.nonce), config.timing.rate_error_ppm);
        Self {
            safeguards: Safeguards::ALL,
            voter,
            phase: Phase::Waiting,
            taking: None,
            to_own_voter: VecDeque::new(),
            sent: BTreeMap::new(),
            number: 0,
            sessions: BTreeMap::new(),
            answered: BTreeMap::new(),
            known: known.max(kept.epoch),
            retry_at: now,
            idle_at: now,
            connection: ConnectionState::Starting,
            fitness: Fitness::default(),
            standing: Standing::default(),
            progress: Progress::default(),
            clock_error_ppm: 0,
            pin: Pin::default(),
            place: Place::default(),
            differs: false,
            configurations: BTreeMap::new(),
            deference_ns: 0,
            mobility: None,
            told_obstacle: None,
            config,
        }
    }

    /// For checks that want to see what each safeguard is good for.
    #[must_use]
    pub fn with_safeguards(self, safeguards: Safeguards) -> Self {
        Self { voter: self.voter.with_safeguards(safeguards), safeguards, ..self }
    }

    /// This gateway's voter.
    #[must_use]
    pub fn voter(&self) -> &Voter {
        &self.voter
    }

    fn on_input(&mut self, now: MonoNs, input: Input<QuorumEvent>, outputs: &mut Outputs) {
        match input {
            // Membership is the configuration's here, and promises of peers are those of voters.
            Input::Time | Input::Admit(..) => {}
            Input::Backend(QuorumEvent::Received(message)) => self.on_message(now, message, outputs),
            Input::Backend(QuorumEvent::Stored(ticket)) => self.voter_step(now, VoterInput::Stored(ticket), outputs),
            Input::Backend(QuorumEvent::NotStored(ticket)) => {
                self.voter_step(now, VoterInput::NotStored(ticket), outputs);
            }
            Input::Peer { from, message } => {
                if let PeerMessage::State(state) = message
                    && state.member.node == from
                {
                    self.configurations.insert(from, (state.configuration, now));
                    self.voter.hear(now, from, state.fitness, state.standing);
                }
            }
            Input::Died(notice) => {
                // Told on: the sentinel's own message to a voter may have been lost.
                for voter in self.others() {
                    self.send(now, voter, Demand::Died(notice), None, outputs);
                }
                let request = self.request(Demand::Died(notice), self.voter.session());
                self.to_own_voter.push_back(request);
                self.retry_at = now;
            }
            Input::Fitness(fitness) => {
                self.fitness = fitness;
                self.voter.hear(now, self.node(), self.fitness, self.standing);
            }
            Input::Standing(standing) => {
                self.standing = standing;
                self.voter.hear(now, self.node(), self.fitness, self.standing);
            }
            Input::ClockRate { error_ppm } => {
                self.clock_error_ppm = error_ppm;
                self.voter_step(now, VoterInput::ClockRate(error_ppm), outputs);
            }
            Input::Progress(progress) => self.progress = progress,
            Input::Heard(epoch) => self.on_heard(now, epoch, outputs),
            Input::HandOver(target) => self.begin_hand_over(now, target, self.moves_made(now), outputs),
            Input::Drained { positions } => self.on_drained(now, positions, outputs),
            Input::Pin(pin) => self.pin = pin,
            Input::Placed(place) => self.place = place,
            Input::Differs(differs) => self.differs = differs,
            Input::Close => self.on_close(now, outputs),
        }
    }

    fn on_message(&mut self, now: MonoNs, message: Message, outputs: &mut Outputs) {
        let Message { group, from, to, body } = message;
        if group != self.config.group || to != self.node() || from == to {
            return;
        }
        match body {
            Body::Reply(reply) => self.on_reply(now, from, reply, outputs),
            Body::Request(request) => {
                if !self.config.candidates.contains_key(&from) && !matches!(request.demand, Demand::Died(_)) {
                    return;
                }
                match &request.demand {
                    Demand::Prepare { from: giver, to, moves } => {
                        self.on_prepare(now, from, &request, (*giver, *to, *moves), outputs);
                    }
                    Demand::HandOver(hand_over) => {
                        self.learn_positions(hand_over);
                        self.voter_step(now, VoterInput::Request { from, request }, outputs);
                    }
                    _ => self.voter_step(now, VoterInput::Request { from, request }, outputs),
                }
            }
        }
    }

    /// What came of one request.
    fn on_reply(&mut self, now: MonoNs, from: NodeId, reply: Reply, outputs: &mut Outputs) {
        let Some(sent) = self.answered_request(from, reply.ticket) else { return };
        if !self.config.voters.contains_key(&from) {
            return;
        }
        let session = self.sessions.insert(from, reply.session);
        self.answered.insert(from, now);
        self.known = self.known.max(reply.highest);
        if reply.verdict == Verdict::Refused(Refusal::Session) {
            // What was asked before it was known goes again; once, since now it is known.
            if session != Some(reply.session) {
                self.ask_again(now, from, sent.what, outputs);
            }
            return;
        }
        match sent.what {
            Asked::Poll => self.on_polled(now, from, &reply, outputs),
            Asked::Vote(epoch) | Asked::Renew(epoch) => {
                self.on_promise(now, from, (epoch, sent.at), reply.verdict, outputs);
            }
            Asked::Prepare(epoch) => self.on_prepared(now, epoch, reply.verdict, outputs),
            Asked::HandOver(epoch) => self.on_moved(now, from, epoch, reply.verdict, outputs),
            Asked::Taking(epoch) => self.on_given(now, from, epoch, reply.verdict, outputs),
        }
    }

    /// The request that this answers. An answer to another one, of an earlier start or long ago, is worth nothing.
    fn answered_request(&mut self, from: NodeId, ticket: Ticket) -> Option<Sent> {
        if !self.safeguards.checks_tickets {
            let to_it = |sent: &&Sent| sent.to == Some(from);
            return self.sent.values().rev().find(to_it).cloned();
        }
        if ticket.nonce != self.config.nonce {
            return None;
        }
        let sent = self.sent.get(&ticket.number)?.clone();
        match sent.to {
            Some(to) if to != from => return None,
            // Several voters answer one number.
            None => {}
            Some(_) => drop(self.sent.remove(&ticket.number)),
        }
        Some(sent)
    }

    fn ask_again(&mut self, now: MonoNs, voter: NodeId, what: Asked, outputs: &mut Outputs) {
        let demand = match what {
            Asked::Poll => Demand::Poll,
            Asked::Vote(epoch) => Demand::Vote(epoch),
            Asked::Renew(epoch) => Demand::Renew(epoch),
            // Repeated on their own.
            Asked::HandOver(_) | Asked::Prepare(_) | Asked::Taking(_) => return,
        };
        self.send(now, voter, demand, Some(what), outputs);
    }

    fn voter_step(&mut self, now: MonoNs, input: VoterInput, outputs: &mut Outputs) {
        for output in self.voter.step(now, input) {
            match output {
                VoterOutput::Store { ticket, kept } => {
                    outputs.push(Output::Request(QuorumRequest::Store { ticket, kept }));
                }
                VoterOutput::Reply { to, reply } if to == self.node() => self.on_reply(now, to, reply, outputs),
                VoterOutput::Reply { to, reply } => self.post(to, Body::Reply(reply), outputs),
            }
        }
    }

    fn ask_own_voter(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let from = self.node();
        while let Some(request) = self.to_own_voter.pop_front() {
            self.voter_step(now, VoterInput::Request { from, request }, outputs);
        }
    }

    /// Asks one voter; `what`: how its answer counts.
    fn send(&mut self, now: MonoNs, to: NodeId, demand: Demand, what: Option<Asked>, outputs: &mut Outputs) {
        let is_own = to == self.node();
        let session = if is_own { self.voter.session() } else { self.sessions.get(&to).copied().unwrap_or_default() };
        let request = self.request(demand, session);
        if let Some(what) = what {
            self.sent.insert(request.ticket.number, Sent { to: Some(to), at: now, what });
        }
        if is_own {
            self.to_own_voter.push_back(request);
        } else {
            self.post(to, Body::Request(request), outputs);
        }
    }

    fn request(&mut self, demand: Demand, session: VoterSession) -> Request {
        Request {
            ticket: self.next_ticket(),
            incarnation: self.config.member.incarnation,
            session,
            lease_ns: self.config.timing.lease_ns,
            fitness: self.fitness,
            standing: if matches!(self.phase, Phase::Closed) { Standing::Joins } else { self.standing },
            demand,
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.number += 1;
        Ticket { nonce: self.config.nonce, number: self.number }
    }

    fn post(&self, to: NodeId, body: Body, outputs: &mut Outputs) {
        let message = Message { group: self.config.group, from: self.node(), to, body };
        outputs.push(Output::Request(QuorumRequest::Send(message)));
    }

    fn node(&self) -> NodeId {
        self.config.member.node
    }

    fn voters(&self) -> Vec<NodeId> {
        self.config.voters.keys().copied().collect()
    }

    fn others(&self) -> Vec<NodeId> {
        self.config.voters.keys().copied().filter(|node| *node != self.node()).collect()
    }

    fn majority(&self) -> usize {
        self.config.voters.len() / 2 + 1
    }

    /// Drops what no answer can change any more, and what was said so long ago that it stands in nobody's way.
    fn forget(&mut self, now: MonoNs) {
        let keep_ns = self.config.timing.lease_ns;
        self.sent.retain(|_, sent| now.since(sent.at) < keep_ns);
        let patience_ns = self.config.timing.wait_ns().saturating_mul(DIFFERENCE_PATIENCE_LEASES);
        self.configurations.retain(|_, (_, said)| now.since(*said) < patience_ns);
    }
}

impl Core for Candidate {
    type Event = QuorumEvent;
    type Request = QuorumRequest;

    fn step(&mut self, now: MonoNs, input: Input<QuorumEvent>) -> Vec<Output<QuorumRequest>> {
        let mut outputs = Vec::new();
        self.forget(now);
        self.deference_ns = self.deference_ns_at(now);
        self.on_time(now, &mut outputs);
        self.ask_own_voter(now, &mut outputs);
        self.on_input(now, input, &mut outputs);
        self.ask_own_voter(now, &mut outputs);
        // What the input made possible is done now and not at the next one.
        self.on_time(now, &mut outputs);
        self.ask_own_voter(now, &mut outputs);
        self.tell_connection(now, &mut outputs);
        self.tell_obstacle(now, &mut outputs);
        outputs
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        let timing = &self.config.timing;
        match &self.phase {
            Phase::Closed => None,
            Phase::Waiting => {
                let polls_at = self.polls_at();
                Some(if self.obstacle_now().is_none() { polls_at.min(self.idle_at) } else { self.idle_at })
            }
            Phase::Polling(poll) => Some(poll.again_at),
            Phase::Voting(bid) => Some(bid.again_at.min(bid.until)),
            Phase::Leading(lead) => {
                let moving = lead.preparing.as_ref().map(|preparing| preparing.until);
                let renew_at = self.may_renew().then_some(lead.renew_at);
                let deadline = Some(lead.deadline(timing, self.majority()));
                [deadline, renew_at, moving, self.moves_turn_at(lead)].into_iter().flatten().min()
            }
            Phase::Moving(moving) => {
                Some(if moving.positions.is_some() { moving.again_at.min(moving.until) } else { moving.until })
            }
        }
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState {
            member: self.config.member.clone(),
            standing: self.standing,
            fitness: self.fitness,
            configuration: self.config.configuration,
            stamp: PeerStamp(now.0),
        }
    }

    fn view(&self) -> View {
        let role = match &self.phase {
            Phase::Leading(_) => Role::Leader,
            Phase::Closed => Role::Closed,
            _ if self.obstacle_now().is_some() => Role::Bystander,
            _ => Role::Candidate,
        };
        let leader = self.leader();
        View {
            role,
            epoch: match &self.phase {
                Phase::Leading(lead) => lead.epoch,
                _ => leader.as_ref().map_or(self.known, |(epoch, _)| *epoch),
            },
            leader: leader.map(|(_, member)| member),
            heir: None,
            participants: self.config.candidates.clone(),
            connection: self.connection,
            pin: self.pin,
            obstacle: self.obstacle_now(),
            fitness: self.fitness,
            can_lead: self.obstacle_now().is_none() && !matches!(self.phase, Phase::Closed),
            peers: self.peer_views(),
        }
    }
}

impl Candidate {
    /// Who leads, as far as this gateway knows: itself, or whom its voter promised.
    fn leader(&self) -> Option<(Epoch, Member)> {
        if let Phase::Leading(lead) = &self.phase {
            return Some((lead.epoch, self.config.member.clone()));
        }
        let (epoch, incarnation) = self.voter.promised()?;
        let node = NodeId::of(epoch);
        let name = self.config.candidates.get(&node)?.clone();
        (node != self.node()).then_some((epoch, Member { node, name, incarnation }))
    }

    /// What the leader publishes, if this gateway would publish something else under the same or an older revision.
    fn differs_from_leader(&self) -> Option<ConfigurationMark> {
        let (_, leader) = self.leader().filter(|(_, leader)| leader.node != self.node())?;
        let (theirs, _) = self.configurations.get(&leader.node)?;
        (!self.config.configuration.may_follow(theirs)).then_some(*theirs)
    }

    /// Whether that gateway may be handed the lead; one that has not said what it publishes may.
    fn may_be_followed_by(&self, node: NodeId) -> bool {
        self.configurations.get(&node).is_none_or(|(theirs, _)| theirs.may_follow(&self.config.configuration))
    }

    fn tell_connection(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let LeaseTiming { lease_ns, renew_ns, .. } = self.config.timing;
        let is_leading = matches!(self.phase, Phase::Leading(_));
        let (doubtful_ns, lost_ns) = if is_leading { (3 * renew_ns, lease_ns) } else { (lease_ns, 2 * lease_ns) };
        let within = |limit_ns: u64| {
            let fresh = self.answered.values().filter(|at| now.since(**at) <= limit_ns).count();
            fresh >= self.majority()
        };
        let state = match self.connection {
            ConnectionState::Starting if within(doubtful_ns) => ConnectionState::Connected,
            ConnectionState::Starting => ConnectionState::Starting,
            ConnectionState::Lost if within(doubtful_ns) => ConnectionState::Reconnected,
            ConnectionState::Suspended if within(doubtful_ns) => ConnectionState::Reconnected,
            state if within(doubtful_ns) => state,
            ConnectionState::Lost => ConnectionState::Lost,
            _ if within(lost_ns) => ConnectionState::Suspended,
            _ => ConnectionState::Lost,
        };
        if state != self.connection {
            self.connection = state;
            outputs.push(Output::Connection(state));
        }
    }

    fn tell_obstacle(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let obstacle = self.obstacle_at(now);
        if obstacle != self.told_obstacle {
            self.told_obstacle.clone_from(&obstacle);
            outputs.extend(obstacle.map(|obstacle| Output::Notice(Notice::Obstacle(obstacle))));
        }
    }

    /// Closed by its owner: nobody is to wait for what this gateway held.
    fn on_close(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let held = match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Leading(Lead { epoch, .. }) => {
                outputs.push(Output::Close { epoch, reason: CloseReason::Released });
                Some(epoch)
            }
            Phase::Voting(Bid { epoch, .. }) => Some(epoch),
            // Given away: what becomes of it is the target's.
            Phase::Moving(_) | Phase::Waiting | Phase::Polling(_) | Phase::Closed => None,
        };
        self.taking = None;
        if let Some(epoch) = held {
            self.release(now, epoch, outputs);
        }
        self.voter.hear(now, self.node(), self.fitness, Standing::Joins);
    }
}
