//! Model of the voted lease: two gateways and a witness with the product's own state machines, from a moment at which
//! node 1 leads and has renewed.
//!
//! Events, in any order: time advances to the next moment at which anything changes. A timer that is due fires, or
//! stays late (a pause). A message arrives, late or never (loss, reordering, one-way partitions). A process restarts
//! with what is on its disk. A gateway hands over. A packet that passed the fence arrives late. Clocks run at different
//! rates, several requests are in flight at once, and an old answer may arrive again.
//!
//! Violations: two gateways may send at the same time; an epoch regresses; a receiver accepts content of an old epoch
//! after a newer one.
//!
//! Time, the number of faults and the number of states bound the space. The search must find a violation with each
//! safeguard switched off, except for polls, which are no safeguard: `tests/simulation/quorum.rs` counts what they
//! save.

use std::collections::BTreeMap;

use mdgw_election::{
    core::{CloseReason, Core as _, Input, Output},
    fitness::Eligibility,
    identity::{Incarnation, Member, NodeId, NodeName},
    quorum::{
        candidate::{Candidate, CandidateConfig, QuorumEvent, QuorumRequest},
        message::{Body, Message, Operation, VoterSession},
        voter::{DurableVote, QuorumSafeguards, Voter, VoterInput, VoterOutput},
    },
    record::ConfigVersion,
    timing::LeaseTiming,
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};
use stateright::{Model, Property};

use super::search::{self, SafetyModel, assert_violates};

/// Parameters of a search.
#[derive(Clone, Debug)]
struct QuorumModel {
    timing: LeaseTiming,
    safeguards: QuorumSafeguards,
    votes_survive_restart: bool,
    receivers_check_epochs: bool,
    /// Rate of each node's clock, in hundredths of true time.
    rates: [u64; 3],
    restarts: u8,
    /// Indices of the nodes that may restart.
    may_restart: &'static [usize],
    /// During the warm-up, messages from node 1 to node 2 are lost from this time on.
    node2_isolated_from: u64,
    hand_overs: u8,
    packets: u8,
    /// The witness's answers to node 1 after this time of the warm-up may arrive a second time, at any moment.
    repeats_answers_from: u64,
    /// Messages that may still be in flight when time advances. All other messages arrive before, or never.
    late: u8,
    /// End of the search, in true time.
    horizon: u64,
}

const LEASE: u64 = 100;

/// Times without a unit. The lease is 100. In that time, clocks of rate 99 and 101 drift apart by 2. A send takes up to 4.
const ALL_SAFEGUARDS: QuorumModel = QuorumModel {
    timing: LeaseTiming { lease_ns: LEASE, renew_ns: 30, margin_ns: 8, send_ns_max: 4, rate_error_ppm: 10_000 },
    safeguards: QuorumSafeguards::ALL,
    votes_survive_restart: true,
    receivers_check_epochs: true,
    rates: [99, 101, 101],
    restarts: 0,
    may_restart: &[0, 1, 2],
    node2_isolated_from: WARM_UP_END,
    hand_overs: 0,
    packets: 0,
    repeats_answers_from: WARM_UP_END + 1,
    late: 0,
    horizon: WARM_UP_END + 2 * LEASE,
};

/// End of the warm-up: node 1 leads.
const WARM_UP_END: u64 = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: [Node; 3],
    network: Vec<Message>,
    /// Copies of messages that have arrived already.
    repeated: Vec<Message>,
    restarts: u8,
    hand_overs: u8,
    /// Epochs of packets that have passed a fence check and have not arrived.
    packets: Vec<Epoch>,
    packets_sent: u8,
    late: u8,
    highest_received: Epoch,
    highest_opened: Epoch,
    violation: Option<Violation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Violation {
    TwoLeaders,
    EpochRegressed,
    StalePacketAccepted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    process: Process,
    incarnation: u64,
    disk: DurableVote,
    fence: Option<(Epoch, MonoNs)>,
    is_draining: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Process {
    Gateway(Box<Candidate>),
    Witness(Box<Voter>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Advance(Option<usize>),
    Time(usize),
    Arrive(usize),
    ArriveAgain(usize),
    Restart(usize),
    HandOver,
    Drained(usize),
    Send(usize),
    Receive(usize),
}

impl QuorumModel {
    fn clock(&self, node: usize, now: u64) -> MonoNs {
        // Each clock has its own offset.
        MonoNs(1_000 * (node as u64 + 1) + now * self.rates[node] / 100)
    }

    fn start(&self, node: usize, incarnation: u64, disk: DurableVote, now: u64) -> (Process, bool) {
        let at = self.clock(node, now);
        let session = 1_000 * (node as u64 + 1) + incarnation;
        if node == 2 {
            let voter = Voter::new(at, disk, VoterSession(session), self.timing.rate_error_ppm);
            return (Process::Witness(Box::new(voter.with_safeguards(self.safeguards))), false);
        }
        let name = |id: u8| NodeName::new(&format!("n{id}")).expect("a plain name");
        let all = |count: u8| (1..=count).map(|id| (NodeId(id), name(id))).collect::<BTreeMap<_, _>>();
        let config = CandidateConfig {
            group: GroupId(1),
            member: Member { node: id_of(node), name: name(id_of(node).0), incarnation: Incarnation(incarnation) },
            voters: all(3),
            candidates: all(2),
            timing: self.timing,
            configuration: ConfigVersion::default(),
            vote_ns_max: 2 * LEASE,
            nonce: session,
        };
        let candidate = Candidate::new(at, config, disk, Epoch::default()).with_safeguards(self.safeguards);
        (Process::Gateway(Box::new(candidate)), true)
    }

    fn step(&self, state: &mut State, node: usize, input: Input<QuorumEvent>) {
        let at = self.clock(node, state.now);
        let Process::Gateway(candidate) = &mut state.nodes[node].process else { return };
        // While its own voter has promised another node, the candidate only polls. Polls are treated as lost.
        let is_idle = candidate.voter().active_promise(at).is_some_and(|bound| NodeId::of(bound.epoch) != id_of(node));
        let outputs = candidate.step(at, input);
        let mut released = None;
        let mut has_expired = false;
        for output in outputs {
            match output {
                Output::Open { epoch, deadline } => {
                    if epoch <= state.highest_opened {
                        state.violation.get_or_insert(Violation::EpochRegressed);
                    }
                    state.highest_opened = state.highest_opened.max(epoch);
                    state.nodes[node].fence = Some((epoch, deadline));
                }
                Output::Renew { deadline } => {
                    if let Some(fence) = &mut state.nodes[node].fence {
                        fence.1 = deadline;
                    }
                }
                Output::Close { reason, .. } => {
                    state.nodes[node].fence = None;
                    has_expired = reason == CloseReason::Expired;
                }
                // A leader whose lease has expired reports nothing, so the moment changes nothing.
                Output::Drain if has_expired => {
                    self.step(state, node, Input::Drained);
                }
                Output::Drain => state.nodes[node].is_draining = true,
                Output::Request(QuorumRequest::Send(message)) => {
                    let Body::Request(request) = &message.body else {
                        state.network.push(message);
                        continue;
                    };
                    let is_copy = matches!(request.operation, Operation::Release(_)) && released == Some(message.to);
                    if matches!(request.operation, Operation::Release(_)) {
                        released = Some(message.to);
                    }
                    let is_idle_poll = is_idle && request.operation == Operation::Poll;
                    if !is_copy && !is_idle_poll {
                        state.network.push(message);
                    }
                }
                Output::Request(QuorumRequest::Store { write_id: ticket, durable }) => {
                    // Stored at once: a kill before the write ends has the same effect as a lost answer.
                    state.nodes[node].disk = durable;
                    self.step(state, node, Input::Backend(QuorumEvent::Stored(ticket)));
                }
                Output::Peer { .. } | Output::Connection(_) | Output::Notice(_) | Output::PeerOutputEnded(_) => {}
            }
        }
        self.check(state);
    }

    fn witness(&self, state: &mut State, input: VoterInput) {
        let at = self.clock(2, state.now);
        let Process::Witness(voter) = &mut state.nodes[2].process else { return };
        for output in voter.step(at, input) {
            match output {
                VoterOutput::Reply { to, reply } => {
                    state.network.push(Message { group: GroupId(1), from: NodeId(3), to, body: Body::Reply(reply) });
                }
                VoterOutput::Store { write_id: ticket, durable } => {
                    state.nodes[2].disk = durable;
                    self.witness(state, VoterInput::Stored(ticket));
                }
            }
        }
    }

    fn arrive(&self, state: &mut State, message: Message) {
        let node = usize::from(message.to.0) - 1;
        if node < 2 {
            self.step(state, node, Input::Backend(QuorumEvent::Received(message)));
        } else if let Body::Request(request) = message.body {
            self.witness(state, VoterInput::Request { from: message.from, request });
        }
    }

    fn may_send(&self, state: &State, node: usize) -> Option<Epoch> {
        let (epoch, deadline) = state.nodes[node].fence?;
        (self.clock(node, state.now) < deadline).then_some(epoch)
    }

    /// Records a violation if the sends of two gateways may overlap, each with the longest send.
    fn check(&self, state: &mut State) {
        let sends = |node: usize| {
            let until = state.nodes[node].fence.map(|(_, deadline)| deadline.plus(self.timing.send_ns_max));
            until.is_some_and(|until| self.clock(node, state.now) < until)
        };
        if sends(0) && sends(1) {
            state.violation.get_or_insert(Violation::TwoLeaders);
        }
    }

    /// The next time at which anything can change.
    fn next_moment(&self, state: &State) -> Option<u64> {
        let mut moments = Vec::new();
        for (index, node) in state.nodes.iter().enumerate() {
            let deadlines = match &node.process {
                Process::Gateway(candidate) => {
                    // Idle polls change nothing here.
                    let voter = candidate.voter();
                    let is_bound = voter.active_promise(self.clock(index, state.now)).is_some();
                    let timer = candidate.next_deadline().filter(|_| node.fence.is_some() || !is_bound);
                    [
                        timer,
                        voter.promise_until(),
                        node.fence.map(|(_, deadline)| deadline),
                        Some(voter.startup_wait_until(LEASE)),
                    ]
                }
                Process::Witness(voter) => [voter.promise_until(), Some(voter.startup_wait_until(LEASE)), None, None],
            };
            let rate = self.rates[index];
            let true_time = |at: MonoNs| (at.0.saturating_sub(1_000 * (index as u64 + 1)) * 100).div_ceil(rate);
            moments.extend(deadlines.into_iter().flatten().map(true_time));
        }
        moments.into_iter().filter(|at| *at > state.now && *at <= self.horizon).min()
    }

    fn is_due(&self, state: &State, node: usize) -> bool {
        let Process::Gateway(candidate) = &state.nodes[node].process else { return false };
        let now = self.clock(node, state.now);
        let is_bound =
            candidate.voter().active_promise(now).is_some_and(|bound| NodeId::of(bound.epoch) != id_of(node));
        let is_follower = state.nodes[node].fence.is_none() && is_bound;
        !is_follower && candidate.next_deadline().is_some_and(|at| at <= now)
    }

    /// Runs without faults until node 1 leads and has renewed: messages arrive at once, timers fire in time.
    fn warm_up(&self) -> State {
        let nodes = [0, 1, 2].map(|node| {
            let (process, _) = self.start(node, 1, DurableVote::default(), 0);
            Node { process, incarnation: 1, disk: DurableVote::default(), fence: None, is_draining: false }
        });
        let mut state = State {
            now: 0,
            nodes,
            network: Vec::new(),
            repeated: Vec::new(),
            restarts: self.restarts,
            hand_overs: self.hand_overs,
            packets: Vec::new(),
            packets_sent: 0,
            late: self.late,
            highest_received: Epoch::default(),
            highest_opened: Epoch::default(),
            violation: None,
        };
        self.step(&mut state, 0, Input::Eligibility(Eligibility::Eligible));
        for now in 0..=WARM_UP_END {
            state.now = now;
            self.step(&mut state, 0, Input::Time);
            self.step(&mut state, 1, Input::Time);
            while !state.network.is_empty() {
                let message = state.network.remove(0);
                let is_lost = now >= self.node2_isolated_from && (message.from, message.to) == (NodeId(1), NodeId(2));
                if now >= self.repeats_answers_from && (message.from, message.to) == (NodeId(3), NodeId(1)) {
                    state.repeated.push(message.clone());
                }
                if !is_lost {
                    self.arrive(&mut state, message);
                }
            }
            if now == WARM_UP_END - 1 {
                self.step(&mut state, 1, Input::Eligibility(Eligibility::Eligible));
            }
        }
        assert!(self.may_send(&state, 0).is_some(), "node 1 leads by now");
        state
    }
}

fn id_of(node: usize) -> NodeId {
    NodeId(u8::try_from(node + 1).expect("three nodes"))
}

impl Model for QuorumModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.warm_up()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        actions.extend((0..state.network.len()).map(Action::Arrive));
        actions.extend((0..state.repeated.len()).map(Action::ArriveAgain));
        actions.extend((0..2).filter(|node| self.is_due(state, *node)).map(Action::Time));
        actions.extend((0..2).filter(|node| state.nodes[*node].is_draining).map(Action::Drained));
        actions.extend((0..state.packets.len()).map(Action::Receive));
        if state.packets_sent < self.packets {
            actions.extend((0..2).filter(|node| self.may_send(state, *node).is_some()).map(Action::Send));
        }
        if state.restarts > 0 {
            actions.extend(self.may_restart.iter().copied().map(Action::Restart));
        }
        if state.hand_overs > 0 && self.may_send(state, 0).is_some() {
            actions.push(Action::HandOver);
        }
        if self.next_moment(state).is_some() {
            actions.push(Action::Advance(None));
            if state.late > 0 {
                actions.extend((0..state.network.len()).map(|index| Action::Advance(Some(index))));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Advance(durable) => {
                let late = durable.map(|index| state.network.swap_remove(index));
                state.late -= u8::from(late.is_some());
                state.network = late.into_iter().collect();
                state.now = self.next_moment(last)?;
                self.check(&mut state);
            }
            Action::Time(node) => self.step(&mut state, node, Input::Time),
            Action::Arrive(index) => {
                let message = state.network.remove(index);
                self.arrive(&mut state, message);
            }
            Action::ArriveAgain(index) => {
                let message = state.repeated.remove(index);
                self.arrive(&mut state, message);
            }
            Action::Restart(node) => {
                state.restarts -= 1;
                let incarnation = state.nodes[node].incarnation + 1;
                let disk = if self.votes_survive_restart { state.nodes[node].disk } else { DurableVote::default() };
                let (process, is_gateway) = self.start(node, incarnation, disk, state.now);
                state.nodes[node] = Node { process, incarnation, disk, fence: None, is_draining: false };
                if is_gateway {
                    self.step(&mut state, node, Input::Eligibility(Eligibility::Eligible));
                }
            }
            Action::HandOver => {
                state.hand_overs -= 1;
                self.step(&mut state, 0, Input::HandOver(Some(NodeId(2))));
            }
            Action::Drained(node) => {
                state.nodes[node].is_draining = false;
                self.step(&mut state, node, Input::Drained);
            }
            Action::Send(node) => {
                let epoch = self.may_send(&state, node)?;
                state.packets_sent += 1;
                state.packets.push(epoch);
                state.packets.sort_unstable();
            }
            Action::Receive(index) => {
                let epoch = state.packets.remove(index);
                if epoch < state.highest_received {
                    if !self.receivers_check_epochs {
                        state.violation.get_or_insert(Violation::StalePacketAccepted);
                    }
                } else {
                    state.highest_received = epoch;
                }
            }
        }
        // The order of in-flight messages has no meaning.
        state.network.sort_by_cached_key(|message| format!("{message:?}"));
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, state: &State| state.violation.is_none()),
            Property::sometimes("another gateway leads", |_, state: &State| {
                NodeId::of(state.highest_opened) == NodeId(2)
            }),
        ]
    }
}

impl SafetyModel for QuorumModel {
    type Violation = Violation;

    fn violation(state: &State) -> Option<Violation> {
        state.violation
    }
}

#[track_caller]
fn assert_safe(what: &str, model: QuorumModel, states: usize) {
    search::assert_safe(what, model, states, LEADERSHIP_MOVED);
}

#[track_caller]
fn assert_safeguard_needed(
    safeguard: &str,
    model: QuorumModel,
    states: usize,
    switch_off: fn(&mut QuorumModel),
    expected: &[Violation],
) {
    search::assert_safeguard_needed(safeguard, model, (states, LEADERSHIP_MOVED), switch_off, expected);
}

/// The search must reach this; otherwise it generated too few states.
const LEADERSHIP_MOVED: &[&str] = &["another gateway leads"];

#[test]
fn at_most_one_leader_with_late_messages() {
    assert_safe("late messages", QuorumModel { late: 2, ..ALL_SAFEGUARDS }, STATES);
}

#[test]
fn at_most_one_leader_over_restarts() {
    assert_safe("restarts", QuorumModel { restarts: 2, ..ALL_SAFEGUARDS }, STATES);
    let model = QuorumModel { restarts: 1, ..WITNESS_RESTARTS };
    assert_safeguard_needed(
        "sitting out",
        model,
        STATES,
        |search| search.safeguards.startup_wait = false,
        &[Violation::TwoLeaders],
    );
    let model = QuorumModel { restarts: 2, may_restart: &[0, 1, 2], ..WITNESS_RESTARTS };
    let switch_off = |search: &mut QuorumModel| {
        search.safeguards.startup_wait = false;
        search.votes_survive_restart = false;
    };
    assert_safeguard_needed(
        "the initial wait and votes on disk",
        model,
        350_000,
        switch_off,
        &[Violation::EpochRegressed],
    );
}

#[test]
fn at_most_one_leader_over_a_hand_over() {
    assert_safe("hand-over, restart", QuorumModel { hand_overs: 1, restarts: 1, ..ALL_SAFEGUARDS }, STATES);
    let model = QuorumModel { hand_overs: 1, restarts: 1, ..WITNESS_RESTARTS };
    let switch_off = |search: &mut QuorumModel| search.safeguards.startup_wait = false;
    assert_safeguard_needed("the initial wait, with a hand-over", model, 200_000, switch_off, &[Violation::TwoLeaders]);
}

/// The witness has received the last renewals, node 2 has not.
const WITNESS_RESTARTS: QuorumModel =
    QuorumModel { may_restart: &[2], node2_isolated_from: WARM_UP_END - 80, ..ALL_SAFEGUARDS };

#[test]
fn at_most_one_leader_with_repeated_answers() {
    let switch_off = |search: &mut QuorumModel| search.safeguards.checks_tickets = false;
    assert_safeguard_needed("answers' tickets", REPEATED_ANSWER, STATES, switch_off, &[Violation::TwoLeaders]);
    assert_safeguard_needed(
        "answers' tickets, with a hand-over",
        QuorumModel { hand_overs: 1, ..REPEATED_ANSWER },
        STATES,
        switch_off,
        &[Violation::TwoLeaders],
    );
    // The answer may also reach a later process of the requester.
    assert_safe("old answers, restart", QuorumModel { restarts: 1, may_restart: &[0], ..REPEATED_ANSWER }, STATES);
}

/// One of the witness's last answers arrives a second time.
const REPEATED_ANSWER: QuorumModel = QuorumModel { repeats_answers_from: WARM_UP_END - 30, ..ALL_SAFEGUARDS };

#[test]
fn halving_the_margin_is_detected() {
    let timing = LeaseTiming { margin_ns: ALL_SAFEGUARDS.timing.margin_ns / 2, ..ALL_SAFEGUARDS.timing };
    assert_violates("half of the margin", QuorumModel { timing, ..ALL_SAFEGUARDS }, STATES, &[Violation::TwoLeaders]);
}

#[test]
fn receivers_without_epoch_check_are_detected() {
    let switch_off = |search: &mut QuorumModel| search.receivers_check_epochs = false;
    let model = QuorumModel { packets: 2, ..ALL_SAFEGUARDS };
    assert_safeguard_needed("receivers' epoch rule", model, STATES, switch_off, &[Violation::StalePacketAccepted]);
}

/// Number of generated states of a search.
const STATES: usize = 150_000;
