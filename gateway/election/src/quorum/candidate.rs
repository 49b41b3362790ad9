//! The candidate: a gateway's part. It is elected, leads and hands over; and it votes, through its own [`Voter`].

mod auto_move;
mod hand_over;
mod phase;
mod raise;
mod voting;

use std::collections::{BTreeMap, VecDeque};

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};

use self::{
    auto_move::{AutoMovePolicy, Tenure},
    phase::{LeaderState, PendingTakeover, Phase, PollRound, PromiseTransfer, VoteRound},
    voting::STOPPED_LEADING,
};
use super::{
    message::{Body, Message, Operation, Refusal, Reply, Request, Verdict, VoteRequestId, VoterSession},
    voter::{DurableVote, QuorumSafeguards, VoteWriteId, Voter, VoterInput, VoterOutput},
};
use crate::{
    core::{
        CloseReason, ConnectionState, Core, GroupPlacement, Input, Notice, Obstacle, Output, Pin, Progress, Role, View,
        VoterView,
    },
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, NodeName, next_epoch},
    outstanding_sends::OutstandingSends,
    peer::{PeerMessage, PeerState},
    record::{CONFIG_MISMATCH_WAIT_LEASES, ConfigVersion},
    timing::LeaseTiming,
};

/// Configuration of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CandidateConfig {
    /// Number of the group.
    pub group: GroupId,
    /// Node number, name and start of this gateway.
    pub member: Member,
    /// The voters: an odd number, this gateway among them.
    pub voters: BTreeMap<NodeId, NodeName>,
    /// The candidates: the voters that are gateways.
    pub candidates: BTreeMap<NodeId, NodeName>,
    /// Lease L, renewal period R and margin M.
    pub timing: LeaseTiming,
    /// The output that this gateway is configured to publish.
    pub configuration: ConfigVersion,
    /// How long a vote may take before the candidate abandons it, ns. A voter's disk may be slower than the lease.
    pub vote_ns_max: u64,
    /// Random number of this start, for this gateway's requests and its voter.
    pub nonce: u64,
}

/// How long a vote may take, ns: two leases, and a tenth of a second for a voter's disk.
#[must_use]
pub fn vote_ns_max(timing: &LeaseTiming) -> u64 {
    (2 * timing.lease_ns).saturating_add(100_000_000)
}

/// Events from voters, and from this gateway's own disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuorumEvent {
    /// Authenticated, and addressed to this gateway.
    Received(Message),
    /// That write of the vote is on disk.
    Stored(VoteWriteId),
    /// That write failed.
    NotStored(VoteWriteId),
}

/// Requests to the backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuorumRequest {
    /// Send the message; it may be lost.
    Send(Message),
    /// Write this to disk, synced, and report the result.
    Store {
        /// Identifies the write.
        write_id: VoteWriteId,
        /// The vote to write.
        durable: DurableVote,
    },
}

type Outputs = Vec<Output<QuorumRequest>>;

/// One gateway of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    config: CandidateConfig,
    safeguards: QuorumSafeguards,
    voter: Voter,
    phase: Phase,
    outstanding_sends: OutstandingSends,
    /// A takeover that a leader offered. Independent of the phase, since the voters' answers may never come.
    takeover: Option<PendingTakeover>,
    /// The epoch to which voters moved their promise when this gateway handed over; `None` once its owner was seen to lead.
    handed_over_to: Option<Epoch>,
    /// Requests to this gateway's own voter, not processed yet.
    own_voter_queue: VecDeque<Request>,
    /// Requests whose answer may still count, by number.
    pending: BTreeMap<u64, PendingRequest>,
    number: u64,
    voter_sessions: BTreeMap<NodeId, VoterSession>,
    /// When each voter last answered.
    answered_at: BTreeMap<NodeId, MonoNs>,
    /// The highest epoch known from voters, the wire and own use. The next epoch is above it.
    highest_known: Epoch,
    /// The highest epoch observed on the wire: receivers drop what is below it.
    observed_epoch: Epoch,
    /// Before this time the candidate does not poll. A voter's promise may forbid it for longer.
    retry_at: MonoNs,
    /// Next time at which voters are polled only to check that they answer.
    probe_at: MonoNs,
    connection: ConnectionState,
    fitness: Fitness,
    eligibility: Eligibility,
    progress: Progress,
    clock_rate: ClockRate,
    pin: Pin,
    placement: GroupPlacement,
    /// The two gateways produced different records for one message.
    has_output_mismatch: bool,
    /// The other gateways' configurations, and when each was last reported.
    configurations: BTreeMap<NodeId, (ConfigVersion, MonoNs)>,
    /// How much longer this gateway waits than the preferred successor, ns.
    yield_ns: u64,
    /// `None`: a leader does not move automatically.
    auto_move: Option<AutoMovePolicy>,
    reported_obstacle: Option<Obstacle>,
}

/// An outstanding request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingRequest {
    /// The voter that was asked; `None`: any voter that grants the request may answer.
    to: Option<NodeId>,
    at: MonoNs,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RequestKind {
    Poll,
    Vote(Epoch),
    Renew(Epoch),
    Prepare(Epoch),
    HandOver(Epoch),
    /// A promise that voters move to this gateway. The former leader sends these requests on its behalf.
    Taking(Epoch),
}

impl Candidate {
    /// A candidate that starts at `now`. `durable`: its voter's state on disk. `highest_known`: the highest
    /// epoch that earlier starts knew. The vote may name its node.
    #[must_use]
    pub fn new(now: MonoNs, config: CandidateConfig, durable: DurableVote, highest_known: Epoch) -> Self {
        assert!(config.voters.contains_key(&config.member.node), "each gateway is a voter");
        let voter = Voter::new(now, durable, VoterSession(config.nonce), config.timing.rate_error_ppm);
        Self {
            safeguards: QuorumSafeguards::ALL,
            voter,
            phase: Phase::Waiting,
            outstanding_sends: OutstandingSends::default(),
            takeover: None,
            handed_over_to: None,
            own_voter_queue: VecDeque::new(),
            pending: BTreeMap::new(),
            number: 0,
            voter_sessions: BTreeMap::new(),
            answered_at: BTreeMap::new(),
            highest_known: highest_known.max(durable.epoch),
            observed_epoch: Epoch::default(),
            retry_at: now,
            probe_at: now,
            connection: ConnectionState::Starting,
            fitness: Fitness::default(),
            eligibility: Eligibility::default(),
            progress: Progress::default(),
            clock_rate: ClockRate::Within(0),
            pin: Pin::default(),
            placement: GroupPlacement::default(),
            has_output_mismatch: false,
            configurations: BTreeMap::new(),
            yield_ns: 0,
            auto_move: None,
            reported_obstacle: None,
            config,
        }
    }

    /// For checks that show the effect of each safeguard.
    #[must_use]
    pub fn with_safeguards(self, safeguards: QuorumSafeguards) -> Self {
        Self { voter: self.voter.with_safeguards(safeguards), safeguards, ..self }
    }

    /// This gateway's voter.
    #[must_use]
    pub fn voter(&self) -> &Voter {
        &self.voter
    }

    fn on_input(&mut self, now: MonoNs, input: Input<QuorumEvent>, outputs: &mut Outputs) {
        match input {
            // Membership comes from the configuration, and peers promise through their voters.
            Input::Time | Input::Admit(..) => {}
            Input::Backend(QuorumEvent::Received(message)) => self.on_message(now, message, outputs),
            Input::Backend(QuorumEvent::Stored(write_id)) => {
                self.voter_step(now, VoterInput::Stored(write_id), outputs)
            }
            Input::Backend(QuorumEvent::NotStored(write_id)) => {
                self.voter_step(now, VoterInput::NotStored(write_id), outputs);
            }
            Input::Peer { from, message } => {
                if let PeerMessage::State(state) = message
                    && state.member.node == from
                {
                    self.configurations.insert(from, (state.configuration, now));
                    self.voter.set_candidate_state(now, from, state.fitness, state.eligibility);
                }
            }
            Input::Died(notice) => {
                // The notice is forwarded, since the sentinel's own message to a voter may have been lost.
                for voter in self.others() {
                    self.send(now, voter, Operation::Died(notice), None, outputs);
                }
                let request = self.request(Operation::Died(notice), self.voter.session());
                self.own_voter_queue.push_back(request);
                self.retry_at = now;
            }
            Input::Fitness(fitness) => {
                self.fitness = fitness;
                self.state_to_own_voter(now);
            }
            Input::OutputReceived => {
                if let Phase::Leading(LeaderState { tenure: Some(tenure), .. }) = &mut self.phase {
                    tenure.so_far.move_helped = true;
                }
            }
            Input::Eligibility(eligibility) => {
                self.eligibility = eligibility;
                self.state_to_own_voter(now);
            }
            Input::ClockRate(rate) => {
                self.clock_rate = rate;
                self.voter_step(now, VoterInput::ClockRate(rate), outputs);
            }
            Input::Progress(progress) => self.progress = progress,
            Input::ObservedEpoch(epoch) => self.on_observed_epoch(now, epoch, outputs),
            Input::HandOver(target) => self.begin_hand_over(now, target, self.recent_moves(now), outputs),
            Input::Drained => self.on_drained(now, outputs),
            Input::Pin(pin) => self.pin = pin,
            Input::Placement(placement) => self.placement = placement,
            Input::Configuration(configuration) => self.config.configuration = configuration,
            Input::OutputMismatch(has_output_mismatch) => self.has_output_mismatch = has_output_mismatch,
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
                if !self.config.candidates.contains_key(&from) && !matches!(request.operation, Operation::Died(_)) {
                    return;
                }
                match &request.operation {
                    Operation::Prepare { from: former_epoch, to, moves } => {
                        self.on_prepare(now, from, &request, (*former_epoch, *to, *moves), outputs);
                    }
                    Operation::HandOver(hand_over) => {
                        self.note_handed_over(hand_over);
                        self.voter_step(now, VoterInput::Request { from, request }, outputs);
                    }
                    Operation::Renew(epoch) => {
                        self.note_leadership(*epoch);
                        self.voter_step(now, VoterInput::Request { from, request }, outputs);
                    }
                    _ => self.voter_step(now, VoterInput::Request { from, request }, outputs),
                }
            }
        }
    }

    /// Processes the answer to one request.
    fn on_reply(&mut self, now: MonoNs, from: NodeId, reply: Reply, outputs: &mut Outputs) {
        let Some(sent) = self.answered_request(from, reply.request_id) else { return };
        if !self.config.voters.contains_key(&from) {
            return;
        }
        let session = self.voter_sessions.insert(from, reply.session);
        self.answered_at.insert(from, now);
        self.highest_known = self.highest_known.max(reply.highest_epoch);
        if reply.verdict == Verdict::Refused(Refusal::Session) {
            // Requests that were sent before the session was known are sent again, once, since now it is known.
            if session != Some(reply.session) {
                self.ask_again(now, from, sent.kind, outputs);
            }
            return;
        }
        match sent.kind {
            RequestKind::Poll => self.on_polled(now, from, &reply, outputs),
            RequestKind::Vote(epoch) | RequestKind::Renew(epoch) => {
                self.on_promise(now, from, (epoch, sent.at), reply.verdict, outputs);
            }
            RequestKind::Prepare(epoch) => self.on_prepared(now, epoch, reply.verdict, outputs),
            RequestKind::HandOver(epoch) => self.on_transfer_reply(now, from, epoch, reply.verdict, outputs),
            RequestKind::Taking(epoch) => self.on_promise_transferred(now, from, epoch, reply.verdict, outputs),
        }
    }

    /// The request that this reply answers. A reply to a request of an earlier start, or to an old one, is ignored.
    fn answered_request(&mut self, from: NodeId, request_id: VoteRequestId) -> Option<PendingRequest> {
        if !self.safeguards.checks_tickets {
            let to_it = |sent: &&PendingRequest| sent.to == Some(from);
            return self.pending.values().rev().find(to_it).cloned();
        }
        if request_id.nonce != self.config.nonce {
            return None;
        }
        let sent = self.pending.get(&request_id.number)?.clone();
        match sent.to {
            Some(to) if to != from => return None,
            // Several voters answer this number, so the request stays.
            None => {}
            Some(_) => drop(self.pending.remove(&request_id.number)),
        }
        Some(sent)
    }

    fn ask_again(&mut self, now: MonoNs, voter: NodeId, kind: RequestKind, outputs: &mut Outputs) {
        let operation = match kind {
            RequestKind::Poll => Operation::Poll,
            RequestKind::Vote(epoch) => Operation::Vote(epoch),
            RequestKind::Renew(epoch) => Operation::Renew(epoch),
            // The code that sent these requests repeats them.
            RequestKind::HandOver(_) | RequestKind::Prepare(_) | RequestKind::Taking(_) => return,
        };
        self.send(now, voter, operation, Some(kind), outputs);
    }

    fn voter_step(&mut self, now: MonoNs, input: VoterInput, outputs: &mut Outputs) {
        for output in self.voter.step(now, input) {
            match output {
                VoterOutput::Store { write_id, durable } => {
                    outputs.push(Output::Request(QuorumRequest::Store { write_id, durable }));
                }
                VoterOutput::Reply { to, reply } if to == self.node() => self.on_reply(now, to, reply, outputs),
                VoterOutput::Reply { to, reply } => self.send_message(to, Body::Reply(reply), outputs),
            }
        }
    }

    fn ask_own_voter(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let from = self.node();
        while let Some(request) = self.own_voter_queue.pop_front() {
            self.voter_step(now, VoterInput::Request { from, request }, outputs);
        }
    }

    /// Sends a request to one voter; `kind`: how its answer counts.
    fn send(
        &mut self,
        now: MonoNs,
        to: NodeId,
        operation: Operation,
        kind: Option<RequestKind>,
        outputs: &mut Outputs,
    ) {
        let is_own = to == self.node();
        let session =
            if is_own { self.voter.session() } else { self.voter_sessions.get(&to).copied().unwrap_or_default() };
        let request = self.request(operation, session);
        if let Some(kind) = kind {
            self.pending.insert(request.request_id.number, PendingRequest { to: Some(to), at: now, kind });
        }
        if is_own {
            self.own_voter_queue.push_back(request);
        } else {
            self.send_message(to, Body::Request(request), outputs);
        }
    }

    fn request(&mut self, operation: Operation, session: VoterSession) -> Request {
        Request {
            request_id: self.next_request_id(),
            incarnation: self.config.member.incarnation,
            session,
            lease_ns: self.config.timing.lease_ns,
            fitness: self.fitness,
            eligibility: self.stated_eligibility(),
            operation,
        }
    }

    /// This gateway's voter knows its candidate as the other voters do: otherwise it alone would hold back another candidate.
    fn state_to_own_voter(&mut self, now: MonoNs) {
        self.voter.set_candidate_state(now, self.node(), self.fitness, self.stated_eligibility());
    }

    /// The eligibility in messages to voters and peers. A voter refuses less fit gateways while a fitter one asks, so a
    /// gateway that no majority answers, and that cannot win, must not ask as an eligible one.
    fn stated_eligibility(&self) -> Eligibility {
        let is_unanswered = matches!(self.connection, ConnectionState::Suspended | ConnectionState::Lost);
        if self.is_closing() || (is_unanswered && self.safeguards.yields_if_unanswered) {
            Eligibility::Joining
        } else {
            self.eligibility
        }
    }

    fn next_request_id(&mut self) -> VoteRequestId {
        self.number += 1;
        VoteRequestId { nonce: self.config.nonce, number: self.number }
    }

    fn send_message(&self, to: NodeId, body: Body, outputs: &mut Outputs) {
        let message = Message { group: self.config.group, from: self.node(), to, body };
        outputs.push(Output::Request(QuorumRequest::Send(message)));
    }

    fn node(&self) -> NodeId {
        self.config.member.node
    }

    fn voter_views(&self) -> BTreeMap<NodeId, VoterView> {
        let view = |(node, name): (&NodeId, &NodeName)| {
            (*node, VoterView { name: name.clone(), answered_at: self.answered_at.get(node).copied() })
        };
        self.config.voters.iter().map(view).collect()
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

    /// Drops requests whose answers can no longer change anything, and reports too old to matter.
    fn forget(&mut self, now: MonoNs) {
        let keep_ns = self.config.timing.lease_ns;
        self.pending.retain(|_, sent| now.since(sent.at) < keep_ns);
        let retained_ns = self.config.timing.wait_ns().saturating_mul(CONFIG_MISMATCH_WAIT_LEASES);
        self.configurations.retain(|_, (_, received_at)| now.since(*received_at) < retained_ns);
    }
}

impl Core for Candidate {
    type Event = QuorumEvent;
    type Request = QuorumRequest;

    const CONNECTION: &'static str = "connection to a majority of the voters";

    fn step(&mut self, now: MonoNs, input: Input<QuorumEvent>) -> Vec<Output<QuorumRequest>> {
        let mut outputs = Vec::new();
        self.forget(now);
        self.yield_ns = self.yield_ns_at(now);
        self.on_time(now, &mut outputs);
        self.ask_own_voter(now, &mut outputs);
        self.on_input(now, input, &mut outputs);
        self.ask_own_voter(now, &mut outputs);
        // Act on what the input made possible now, not at the next input.
        self.on_time(now, &mut outputs);
        self.ask_own_voter(now, &mut outputs);
        self.report_connection(now, &mut outputs);
        self.report_obstacle(now, &mut outputs);
        outputs
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        let timing = &self.config.timing;
        match &self.phase {
            Phase::Closed => None,
            Phase::Releasing { .. } => self.outstanding_sends.lease_ends_at(),
            Phase::Waiting => {
                let polls_at = self.polls_at();
                Some(if self.lasting_obstacle().is_none() { polls_at.min(self.probe_at) } else { self.probe_at })
            }
            Phase::Polling(poll) => Some(poll.resend_at),
            Phase::Voting(vote_round) => Some(vote_round.resend_at.min(vote_round.until)),
            Phase::Leading(lead) => {
                let transfer = lead.preparing.as_ref().map(|preparing| preparing.until);
                let renew_at = self.may_renew().then_some(lead.renew_at);
                let deadline = Some(lead.deadline(timing, self.majority()));
                [deadline, renew_at, transfer, self.auto_move_due_at(lead), self.raise_due_at(lead)]
                    .into_iter()
                    .flatten()
                    .min()
            }
            Phase::Transferring(transfer) => {
                Some(if transfer.is_drained { transfer.resend_at.min(transfer.until) } else { transfer.until })
            }
        }
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState::at(now, &self.config.member, self.config.configuration, self.stated_eligibility(), self.fitness)
    }

    fn view(&self) -> View {
        let role = match &self.phase {
            Phase::Leading(_) => Role::Leader,
            Phase::Closed => Role::Closed,
            _ if self.lasting_obstacle().is_some() => Role::Ineligible,
            _ => Role::Candidate,
        };
        let leader = self.leader();
        View {
            role,
            epoch: match &self.phase {
                Phase::Leading(lead) => lead.epoch,
                _ => leader.as_ref().map_or(self.highest_known, |(epoch, _)| *epoch),
            },
            leader: leader.map(|(_, member)| member),
            leader_until: self.voter.promise_until().filter(|_| role != Role::Leader),
            successor: None,
            participants: self.config.candidates.clone(),
            connection: self.connection,
            pin: self.pin,
            obstacle: self.lasting_obstacle(),
            fitness: self.fitness,
            can_lead: self.lasting_obstacle().is_none() && !self.is_closing(),
            peers: self.peer_views(),
            voters: self.voter_views(),
        }
    }
}

impl Candidate {
    /// The leader as far as this gateway knows: this gateway itself, or the candidate that its voter has promised.
    fn leader(&self) -> Option<(Epoch, Member)> {
        if let Phase::Leading(lead) = &self.phase {
            return Some((lead.epoch, self.config.member.clone()));
        }
        let (epoch, incarnation) = self.voter.promised()?;
        let node = NodeId::of(epoch);
        let name = self.config.candidates.get(&node)?.clone();
        (node != self.node()).then_some((epoch, Member { node, name, incarnation }))
    }

    /// The leader's configuration, if this gateway would publish different output under the same or an older revision.
    fn leader_config_mismatch(&self) -> Option<ConfigVersion> {
        let (_, leader) = self.leader().filter(|(_, leader)| leader.node != self.node())?;
        let (theirs, _) = self.configurations.get(&leader.node)?;
        (!self.config.configuration.may_succeed(theirs)).then_some(*theirs)
    }

    /// Whether leadership may be handed over to that gateway. A gateway that has not reported its configuration may
    /// take over.
    fn may_hand_over_to(&self, node: NodeId) -> bool {
        self.configurations.get(&node).is_none_or(|(theirs, _)| theirs.may_succeed(&self.config.configuration))
    }

    fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Releasing { .. } | Phase::Closed)
    }

    /// Ends this leadership. The caller sets the next phase.
    fn close_fence(&mut self, reason: CloseReason, outputs: &mut Outputs) {
        let Phase::Leading(lead) = &self.phase else { return };
        let timing = &self.config.timing;
        if self.safeguards.releases_after_sends {
            self.outstanding_sends.begin(lead.deadline(timing, self.majority()).plus(timing.margin_ns));
        }
        outputs.extend([Output::Close { epoch: lead.epoch, reason }, Output::Drain]);
    }

    fn report_connection(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let LeaseTiming { lease_ns, renew_ns, .. } = self.config.timing;
        let is_leading = matches!(self.phase, Phase::Leading(_));
        let (suspended_ns, lost_ns) = if is_leading { (3 * renew_ns, lease_ns) } else { (lease_ns, 2 * lease_ns) };
        let within = |limit_ns: u64| {
            let fresh = self.answered_at.values().filter(|at| now.since(**at) <= limit_ns).count();
            fresh >= self.majority()
        };
        let state = match self.connection {
            ConnectionState::Starting if within(suspended_ns) => ConnectionState::Connected,
            ConnectionState::Starting => ConnectionState::Starting,
            ConnectionState::Lost if within(suspended_ns) => ConnectionState::Reconnected,
            ConnectionState::Suspended if within(suspended_ns) => ConnectionState::Reconnected,
            state if within(suspended_ns) => state,
            ConnectionState::Lost => ConnectionState::Lost,
            _ if within(lost_ns) => ConnectionState::Suspended,
            _ => ConnectionState::Lost,
        };
        if state != self.connection {
            self.connection = state;
            outputs.push(Output::Connection(state));
        }
    }

    fn report_obstacle(&mut self, now: MonoNs, outputs: &mut Outputs) {
        let obstacle = self.obstacle_at(now);
        if obstacle != self.reported_obstacle {
            self.reported_obstacle.clone_from(&obstacle);
            outputs.extend(obstacle.map(|obstacle| Output::Notice(Notice::Obstacle(obstacle))));
        }
    }

    /// The owner closes the latch: releases what this gateway holds, so that others need not wait.
    fn on_close(&mut self, now: MonoNs, outputs: &mut Outputs) {
        self.takeover = None;
        self.fail_hand_over(STOPPED_LEADING, outputs);
        match &self.phase {
            Phase::Leading(LeaderState { epoch, raise, .. }) => {
                let (epoch, raised) = (*epoch, raise.as_ref().map(|raise| raise.epoch));
                self.close_fence(CloseReason::Released, outputs);
                self.phase = Phase::Releasing { epoch, raised };
                if !self.outstanding_sends.may_exist() {
                    self.on_drained(now, outputs);
                }
            }
            Phase::Voting(VoteRound { epoch, .. }) => {
                let epoch = *epoch;
                self.phase = Phase::Closed;
                self.release(now, epoch, outputs);
            }
            Phase::Releasing { .. } => {}
            // After the hand-over the promise belongs to the target.
            Phase::Transferring(_) | Phase::Waiting | Phase::Polling(_) | Phase::Closed => self.phase = Phase::Closed,
        }
        self.voter.set_candidate_state(now, self.node(), self.fitness, Eligibility::Joining);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::member;

    /// Of five voters, two of them gateways.
    fn candidate() -> Candidate {
        candidate_after(DurableVote::default(), Epoch::default())
    }

    /// As [`candidate`], started with that vote on disk and that epoch of its state file.
    fn candidate_after(durable: DurableVote, known: Epoch) -> Candidate {
        let names: BTreeMap<_, _> = (1..=5).map(|node| (NodeId(node), member(node, 1).name)).collect();
        let timing = LeaseTiming::from_ms(20, 4, 4);
        let config = CandidateConfig {
            group: GroupId(1),
            member: member(1, 1),
            candidates: names.clone().into_iter().take(2).collect(),
            voters: names,
            timing,
            configuration: ConfigVersion::default(),
            vote_ns_max: vote_ns_max(&timing),
            nonce: 7,
        };
        Candidate::new(MonoNs(1), config, durable, known)
    }

    #[test]
    fn a_restarted_gateway_knows_the_epoch_that_it_published_by_its_vote_and_claims_no_other() {
        // The state file has the count, the vote also the node.
        for (voted, stored, known) in [
            (Epoch::new(5, 1), Epoch::new(5, 0), Epoch::new(5, 1)),
            (Epoch::new(5, 2), Epoch::new(5, 0), Epoch::new(5, 2)),
            (Epoch::new(4, 1), Epoch::new(5, 0), Epoch::new(5, 0)),
        ] {
            let durable = DurableVote { epoch: voted, ..DurableVote::default() };
            let candidate = candidate_after(durable, stored);
            assert_eq!(candidate.view().epoch, known, "reported to the peers");
            assert_eq!(next_epoch(NodeId(1), [candidate.highest_known]), Some(Epoch::new(6, 1)));
        }
    }

    #[test]
    fn a_view_has_each_voter_and_when_it_last_answered() {
        let mut candidate = candidate();
        candidate.answered_at.insert(NodeId(4), MonoNs(17));
        let answered: Vec<_> =
            candidate.view().voters.iter().map(|(node, voter)| (node.0, voter.answered_at)).collect();
        assert_eq!(answered, [(1, None), (2, None), (3, None), (4, Some(MonoNs(17))), (5, None)]);
    }

    #[test]
    fn a_gateway_that_no_majority_answers_is_not_eligible_for_its_own_voter_either() {
        let mut candidate = candidate();
        for (connection, stated) in
            [(ConnectionState::Connected, Eligibility::Eligible), (ConnectionState::Lost, Eligibility::Joining)]
        {
            candidate.connection = connection;
            for input in [Input::Eligibility(Eligibility::Eligible), Input::Fitness(Fitness::default())] {
                let mut voter = candidate.voter.clone();
                voter.set_candidate_state(MonoNs(2), NodeId(1), Fitness::default(), stated);
                candidate.on_input(MonoNs(2), input, &mut Vec::new());
                assert_eq!(candidate.voter, voter, "{connection:?}");
            }
        }
    }
}
