//! The voted lease searched state by state: two gateways and a witness, the product's own state machines, from a moment
//! at which node 1 leads and has renewed.
//!
//! What may happen in any order: time goes on to the next moment at which anything changes, a timer that is due goes off
//! or stays late (a pause), a message arrives, late or never (loss, reordering, cuts in one direction), a process
//! restarts with what is on its disk, a gateway hands over, a packet that passed the fence arrives late. Clocks run at
//! different rates. Several requests are in flight at once, and an answer of long ago may come once more. What may not happen: two may send at one moment, an epoch
//! goes back, a receiver takes content of an old epoch after a new one.
//!
//! The space is bounded by time, by the number of faults and by that of states. Each safeguard switched off must be found,
//! but for polls, which keep nobody safe: `tests/simulation/quorum.rs` counts what they save.

use std::collections::BTreeMap;

use mdgw_election::{
    core::{Core as _, Input, Output},
    fitness::Standing,
    identity::{Incarnation, Member, NodeId, NodeName},
    quorum::{
        candidate::{Candidate, CandidateConfig, QuorumEvent, QuorumRequest},
        message::{Body, Demand, Message, VoterSession},
        voter::{Kept, Safeguards, Voter, VoterInput, VoterOutput},
    },
    record::ConfigurationMark,
    timing::LeaseTiming,
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};
use stateright::{Model, Property};

use super::search::{self, Searched, fails};

/// What is searched.
#[derive(Clone, Debug)]
struct Search {
    timing: LeaseTiming,
    safeguards: Safeguards,
    keeps_votes: bool,
    receivers_fence: bool,
    /// Per node: how fast its clock runs, in a hundredth of true time.
    rates: [u64; 3],
    restarts: u8,
    /// Who may restart.
    restartable: &'static [usize],
    /// From when on node 2 heard nothing of node 1 before the search.
    deaf_from: u64,
    hand_overs: u8,
    packets: u8,
    /// The witness's answers to node 1 from then on until the search begins may come a second time, at any moment.
    repeated_from: u64,
    /// How many messages may lie about while time goes on; the others arrive before it does, or never.
    late: u8,
    /// Nothing happens after it, in true time.
    horizon: u64,
}

const L: u64 = 100;

/// Unit-free: a lease of 100, of which clocks of rate 99 and 101 take 2, a send 4.
const FULL: Search = Search {
    timing: LeaseTiming { lease_ns: L, renew_ns: 30, margin_ns: 8, send_ns_max: 4, rate_error_ppm: 10_000 },
    safeguards: Safeguards::ALL,
    keeps_votes: true,
    receivers_fence: true,
    rates: [99, 101, 101],
    restarts: 0,
    restartable: &[0, 1, 2],
    deaf_from: WARM,
    hand_overs: 0,
    packets: 0,
    repeated_from: WARM + 1,
    late: 0,
    horizon: WARM + 2 * L,
};

/// By then node 1 leads.
const WARM: u64 = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: [Node; 3],
    network: Vec<Message>,
    /// Copies of what has arrived already.
    repeated: Vec<Message>,
    restarts: u8,
    hand_overs: u8,
    /// Epochs of packets that have passed a fence and are under way.
    packets: Vec<Epoch>,
    sent: u8,
    late: u8,
    received: Epoch,
    opened: Epoch,
    wrong: Option<Wrong>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    TwoLead,
    EpochWentBack,
    OldPacketTaken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    process: Process,
    incarnation: u64,
    disk: Kept,
    fence: Option<(Epoch, MonoNs)>,
    drains: bool,
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

impl Search {
    fn clock(&self, node: usize, now: u64) -> MonoNs {
        // Nobody's clock agrees with another's.
        MonoNs(1_000 * (node as u64 + 1) + now * self.rates[node] / 100)
    }

    fn start(&self, node: usize, incarnation: u64, disk: Kept, now: u64) -> (Process, bool) {
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
            configuration: ConfigurationMark::default(),
            vote_ns_max: 2 * L,
            nonce: session,
        };
        let candidate = Candidate::new(at, config, disk, Epoch::default()).with_safeguards(self.safeguards);
        (Process::Gateway(Box::new(candidate)), true)
    }

    fn step(&self, state: &mut State, node: usize, input: Input<QuorumEvent>) {
        let at = self.clock(node, state.now);
        let Process::Gateway(candidate) = &mut state.nodes[node].process else { return };
        // While it is bound to another it only asks whether voters are there: as if lost.
        let is_idle = candidate.voter().bound(at).is_some_and(|bound| NodeId::of(bound.epoch) != id_of(node));
        let outputs = candidate.step(at, input);
        let mut released = None;
        for output in outputs {
            match output {
                Output::Open { epoch, deadline } => {
                    if epoch <= state.opened {
                        state.wrong.get_or_insert(Wrong::EpochWentBack);
                    }
                    state.opened = state.opened.max(epoch);
                    state.nodes[node].fence = Some((epoch, deadline));
                }
                Output::Renew { deadline } => {
                    if let Some(fence) = &mut state.nodes[node].fence {
                        fence.1 = deadline;
                    }
                }
                Output::Close { .. } => state.nodes[node].fence = None,
                Output::Drain => state.nodes[node].drains = true,
                Output::Request(QuorumRequest::Send(message)) => {
                    let Body::Request(request) = &message.body else {
                        state.network.push(message);
                        continue;
                    };
                    let is_copy = matches!(request.demand, Demand::Release(_)) && released == Some(message.to);
                    if matches!(request.demand, Demand::Release(_)) {
                        released = Some(message.to);
                    }
                    let is_idle_poll = is_idle && request.demand == Demand::Poll;
                    if !is_copy && !is_idle_poll {
                        state.network.push(message);
                    }
                }
                Output::Request(QuorumRequest::Store { ticket, kept }) => {
                    // At once: to be killed before the answer is to lose the answer.
                    state.nodes[node].disk = kept;
                    self.step(state, node, Input::Backend(QuorumEvent::Stored(ticket)));
                }
                Output::Peer { .. } | Output::Connection(_) | Output::Notice(_) | Output::OthersEnded { .. } => {}
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
                VoterOutput::Store { ticket, kept } => {
                    state.nodes[2].disk = kept;
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

    /// Two at one moment, where a send that has passed the fence takes as long as it may.
    fn check(&self, state: &mut State) {
        let sends = |node: usize| {
            let until = state.nodes[node].fence.map(|(_, deadline)| deadline.plus(self.timing.send_ns_max));
            until.is_some_and(|until| self.clock(node, state.now) < until)
        };
        if sends(0) && sends(1) {
            state.wrong.get_or_insert(Wrong::TwoLead);
        }
    }

    /// The next moment at which anything can change.
    fn next_moment(&self, state: &State) -> Option<u64> {
        let mut moments = Vec::new();
        for (index, node) in state.nodes.iter().enumerate() {
            let deadlines = match &node.process {
                Process::Gateway(candidate) => {
                    // Idle polls change nothing here.
                    let voter = candidate.voter();
                    let is_bound = voter.bound(self.clock(index, state.now)).is_some();
                    let timer = candidate.next_deadline().filter(|_| node.fence.is_some() || !is_bound);
                    [
                        timer,
                        voter.bound_until(),
                        node.fence.map(|(_, deadline)| deadline),
                        Some(voter.sits_out_until(L)),
                    ]
                }
                Process::Witness(voter) => [voter.bound_until(), Some(voter.sits_out_until(L)), None, None],
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
        let is_bound = candidate.voter().bound(now).is_some_and(|bound| NodeId::of(bound.epoch) != id_of(node));
        let is_follower = state.nodes[node].fence.is_none() && is_bound;
        !is_follower && candidate.next_deadline().is_some_and(|at| at <= now)
    }

    /// Everything arrives at once and every timer goes off in time, until node 1 leads and has renewed.
    fn warm(&self) -> State {
        let nodes = [0, 1, 2].map(|node| {
            let (process, _) = self.start(node, 1, Kept::default(), 0);
            Node { process, incarnation: 1, disk: Kept::default(), fence: None, drains: false }
        });
        let mut state = State {
            now: 0,
            nodes,
            network: Vec::new(),
            repeated: Vec::new(),
            restarts: self.restarts,
            hand_overs: self.hand_overs,
            packets: Vec::new(),
            sent: 0,
            late: self.late,
            received: Epoch::default(),
            opened: Epoch::default(),
            wrong: None,
        };
        self.step(&mut state, 0, Input::Standing(Standing::Stands));
        for now in 0..=WARM {
            state.now = now;
            self.step(&mut state, 0, Input::Time);
            self.step(&mut state, 1, Input::Time);
            while !state.network.is_empty() {
                let message = state.network.remove(0);
                let is_unheard = now >= self.deaf_from && (message.from, message.to) == (NodeId(1), NodeId(2));
                if now >= self.repeated_from && (message.from, message.to) == (NodeId(3), NodeId(1)) {
                    state.repeated.push(message.clone());
                }
                if !is_unheard {
                    self.arrive(&mut state, message);
                }
            }
            if now == WARM - 1 {
                self.step(&mut state, 1, Input::Standing(Standing::Stands));
            }
        }
        assert!(self.may_send(&state, 0).is_some(), "node 1 leads by now");
        state
    }
}

fn id_of(node: usize) -> NodeId {
    NodeId(u8::try_from(node + 1).expect("three nodes"))
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.warm()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        actions.extend((0..state.network.len()).map(Action::Arrive));
        actions.extend((0..state.repeated.len()).map(Action::ArriveAgain));
        actions.extend((0..2).filter(|node| self.is_due(state, *node)).map(Action::Time));
        actions.extend((0..2).filter(|node| state.nodes[*node].drains).map(Action::Drained));
        actions.extend((0..state.packets.len()).map(Action::Receive));
        if state.sent < self.packets {
            actions.extend((0..2).filter(|node| self.may_send(state, *node).is_some()).map(Action::Send));
        }
        if state.restarts > 0 {
            actions.extend(self.restartable.iter().copied().map(Action::Restart));
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
            Action::Advance(kept) => {
                let late = kept.map(|index| state.network.swap_remove(index));
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
                let disk = if self.keeps_votes { state.nodes[node].disk } else { Kept::default() };
                let (process, stands) = self.start(node, incarnation, disk, state.now);
                state.nodes[node] = Node { process, incarnation, disk, fence: None, drains: false };
                if stands {
                    self.step(&mut state, node, Input::Standing(Standing::Stands));
                }
            }
            Action::HandOver => {
                state.hand_overs -= 1;
                self.step(&mut state, 0, Input::HandOver(Some(NodeId(2))));
            }
            Action::Drained(node) => {
                state.nodes[node].drains = false;
                self.step(&mut state, node, Input::Drained { positions: BTreeMap::new() });
            }
            Action::Send(node) => {
                let epoch = self.may_send(&state, node)?;
                state.sent += 1;
                state.packets.push(epoch);
                state.packets.sort_unstable();
            }
            Action::Receive(index) => {
                let epoch = state.packets.remove(index);
                if epoch < state.received {
                    if !self.receivers_fence {
                        state.wrong.get_or_insert(Wrong::OldPacketTaken);
                    }
                } else {
                    state.received = epoch;
                }
            }
        }
        // Order in the network means nothing.
        state.network.sort_by_cached_key(|message| format!("{message:?}"));
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, state: &State| state.wrong.is_none()),
            Property::sometimes("another leads", |_, state: &State| NodeId::of(state.opened) == NodeId(2)),
        ]
    }
}

impl Searched for Search {
    type Wrong = Wrong;

    fn wrong(state: &State) -> Option<Wrong> {
        state.wrong
    }
}

#[track_caller]
fn holds(what: &str, model: Search, states: usize) {
    search::holds(what, model, states, MOVED);
}

#[track_caller]
fn holds_only_with(safeguard: &str, model: Search, states: usize, switch_off: fn(&mut Search), expected: &[Wrong]) {
    search::holds_only_with(safeguard, model, (states, MOVED), switch_off, expected);
}

/// Without it there were too few states.
const MOVED: &[&str] = &["another leads"];

#[test]
fn one_leads_at_a_time_whatever_comes_late() {
    holds("late messages", Search { late: 2, ..FULL }, STATES);
}

#[test]
fn one_leads_at_a_time_over_restarts() {
    holds("restarts", Search { restarts: 2, ..FULL }, STATES);
    let model = Search { restarts: 1, ..WITNESS_RESTARTS };
    holds_only_with("sitting out", model, STATES, |search| search.safeguards.sits_out = false, &[Wrong::TwoLead]);
    let model = Search { restarts: 2, restartable: &[0, 1, 2], ..WITNESS_RESTARTS };
    let switch_off = |search: &mut Search| {
        search.safeguards.sits_out = false;
        search.keeps_votes = false;
    };
    holds_only_with("sitting out and votes on disk", model, 350_000, switch_off, &[Wrong::EpochWentBack]);
}

#[test]
fn one_leads_at_a_time_over_a_hand_over() {
    holds("hand-over, restart", Search { hand_overs: 1, restarts: 1, ..FULL }, STATES);
    let model = Search { hand_overs: 1, restarts: 1, ..WITNESS_RESTARTS };
    let switch_off = |search: &mut Search| search.safeguards.sits_out = false;
    holds_only_with("sitting out, with a hand-over", model, 200_000, switch_off, &[Wrong::TwoLead]);
}

/// Node 2 has not heard of the last renewals, the witness has.
const WITNESS_RESTARTS: Search = Search { restartable: &[2], deaf_from: WARM - 80, ..FULL };

#[test]
fn one_leads_at_a_time_though_old_answers_come_again() {
    let switch_off = |search: &mut Search| search.safeguards.checks_tickets = false;
    holds_only_with("answers' tickets", REPEATED, STATES, switch_off, &[Wrong::TwoLead]);
    holds_only_with(
        "answers' tickets, with a hand-over",
        Search { hand_overs: 1, ..REPEATED },
        STATES,
        switch_off,
        &[Wrong::TwoLead],
    );
    // To another start of the asker, too.
    holds("old answers, restart", Search { restarts: 1, restartable: &[0], ..REPEATED }, STATES);
}

/// One of the witness's last answers comes again.
const REPEATED: Search = Search { repeated_from: WARM - 30, ..FULL };

#[test]
fn half_of_the_margin_is_found() {
    let timing = LeaseTiming { margin_ns: FULL.timing.margin_ns / 2, ..FULL.timing };
    fails("half of the margin", Search { timing, ..FULL }, STATES, &[Wrong::TwoLead]);
}

#[test]
fn receivers_without_epoch_rule_are_found() {
    let switch_off = |search: &mut Search| search.receivers_fence = false;
    let model = Search { packets: 2, ..FULL };
    holds_only_with("receivers' epoch rule", model, STATES, switch_off, &[Wrong::OldPacketTaken]);
}

/// Of a search, unless it says otherwise.
const STATES: usize = 100_000;
