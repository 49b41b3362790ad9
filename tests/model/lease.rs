//! Model of the lease over a register: two or three gateways with the product's own state machines, and a store, from a
//! moment at which node 1 leads and has renewed.
//!
//! Events, in any order: time advances to the next moment at which anything changes. A timer that is due fires, or
//! stays late (a pause). A request, an answer, a watch notification or a message between gateways arrives, late or
//! never. So the outcome of a swap may be unknown, and the swap may take effect after the gateway abandoned it. A gateway
//! is notified that an outcome is unknown. A process restarts, its death announced or not. The store is down for a while, or is restored
//! from a backup. A gateway hands over or closes. A packet that passed the fence arrives late. Clocks run at different
//! rates, and several requests are in flight at once.
//!
//! Violations: one gateway may send while a send of another gateway may be outstanding; an epoch regresses; a receiver
//! accepts content of an old epoch after a newer one.
//!
//! Time, the number of faults and the number of states bound the space. With each safeguard switched off, the search must find a
//! violation within the same bounds within which it finds none with that safeguard. One safeguard is covered by another: a
//! candidate promises only while none of its swaps is outstanding. Its searches have the other one switched off.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use mdgw_election::{
    auto_move::AutoMoveConfig,
    core::{Core as _, Input, Output},
    fitness::Eligibility,
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    lease::{Lease, LeaseConfig, LeaseSafeguards, OnSuspended},
    peer::PeerMessage,
    record::ConfigVersion,
    register::{Outcome, RegisterEvent, RegisterRequest, StoreLink, Version, Versioned},
    timing::LeaseTiming,
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};
use stateright::{Model, Property};

use super::search::{self, SafetyModel};

/// Parameters of a search.
#[derive(Clone, Debug)]
struct LeaseModel {
    gateways: usize,
    timing: LeaseTiming,
    safeguards: LeaseSafeguards,
    version_check: bool,
    receivers_check_epochs: bool,
    observes_epochs: bool,
    /// Count of the epoch in each gateway's state file at the begin of the search; each start raises it by one.
    own_epoch_counts: [u64; 3],
    /// Messages between gateways prove their sender. Otherwise a promise of one gateway counts for every other one as well.
    senders_proved: bool,
    /// Rate of each gateway's clock, in hundredths of true time.
    rates: [u64; 3],
    budget: FaultBudget,
    /// Indices of the nodes that may restart.
    may_restart: &'static [usize],
    /// End of a store outage, in true time.
    outage_until: u64,
    /// Content of the store's backup.
    backup: StoreBackup,
    /// Node 1 abandoned a *prepare* that is still in flight. Its next *prepare* was answered, and its fence is closed.
    stray_prepare: bool,
    /// The successor that node 1 named in its last renewal.
    successor: Option<usize>,
    /// A node from which node 1 has received a message since.
    reported_since: Option<usize>,
    /// End of the search, in true time.
    horizon: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreBackup {
    Nothing,
    /// The record at the begin of the search.
    Last,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct FaultBudget {
    /// Messages that may still be in flight when time advances. All other messages arrive before, or never.
    late: u8,
    unknown: u8,
    restarts: u8,
    restores: u8,
    hand_overs: u8,
    closes: u8,
    packets: u8,
    /// State messages from the other nodes to node 1.
    states: u8,
    /// Forged packets with a higher epoch that node 1 receives, and no other node.
    forged: u8,
}

const LEASE: u64 = 100;

/// Times without a unit. The lease is 100. In that time, clocks of rate 99 and 101 drift apart by 2. A send takes up to 4.
const ALL_SAFEGUARDS: LeaseModel = LeaseModel {
    gateways: 2,
    timing: LeaseTiming { lease_ns: LEASE, renew_ns: 30, margin_ns: 8, send_ns_max: 4, rate_error_ppm: 10_000 },
    safeguards: LeaseSafeguards::ALL,
    version_check: true,
    receivers_check_epochs: true,
    observes_epochs: true,
    own_epoch_counts: [0; 3],
    senders_proved: true,
    rates: [99, 101, 101],
    budget: FaultBudget {
        late: 0,
        unknown: 0,
        restarts: 0,
        restores: 0,
        hand_overs: 0,
        closes: 0,
        packets: 0,
        states: 0,
        forged: 0,
    },
    may_restart: &[0, 1, 2],
    outage_until: 0,
    backup: StoreBackup::Last,
    stray_prepare: false,
    successor: None,
    reported_since: None,
    horizon: WARM_UP_END + 2 * LEASE,
};

/// End of the warm-up: node 1 leads.
const WARM_UP_END: u64 = 250;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: Vec<Node>,
    stored: Option<Versioned>,
    backup: Option<Versioned>,
    /// Number of restored backups.
    restore_count: u8,
    network: Vec<InFlight>,
    left: FaultBudget,
    /// Epochs of packets that have passed a fence check and have not arrived.
    packets: Vec<Epoch>,
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
    core: Lease,
    incarnation: u64,
    /// Epoch in the gateway's state file.
    own_epoch: Epoch,
    fence: Option<(Epoch, MonoNs)>,
    /// Latest end of sends of the last leadership.
    sends_end: MonoNs,
    is_draining: bool,
    /// Restore count of the store when the present connection was made.
    restore_count: u8,
}

/// A message in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InFlight {
    content: InFlightMessage,
    /// Time may advance although the message has not arrived.
    is_late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum InFlightMessage {
    ToStore { from: usize, incarnation: u64, restore_count: u8, request: RegisterRequest },
    FromStore { to: usize, incarnation: u64, restore_count: u8, event: RegisterEvent },
    Peer { to: usize, incarnation: u64, input: Input<RegisterEvent> },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Advance(Option<usize>),
    Time(usize),
    Arrive(usize),
    Unknown(usize),
    Restart(usize),
    Restore,
    InDoubt(usize),
    HandOver,
    Forge,
    State(usize),
    Close(usize),
    Drained(usize),
    Send(usize),
    Receive(usize),
}

impl LeaseModel {
    fn clock(&self, node: usize, now: u64) -> MonoNs {
        // Each clock has its own offset.
        MonoNs(1_000 * (node as u64 + 1) + now * self.rates[node] / 100)
    }

    fn start(&self, node: usize, incarnation: u64, own_epoch: Epoch) -> Lease {
        let name = |node: usize| NodeName::new(&format!("n{}", node + 1)).expect("a plain name");
        let config = LeaseConfig {
            member: Member { node: id_of(node), name: name(node), incarnation: Incarnation(incarnation) },
            timing: self.timing,
            candidates: (0..self.gateways).map(|node| (id_of(node), name(node))).collect(),
            configuration: ConfigVersion::default(),
            on_suspended: OnSuspended::Hold,
            preferred: None,
            own_epoch,
            moves: AutoMoveConfig::default(),
        };
        Lease::new(config).with_safeguards(self.safeguards)
    }

    fn step(&self, state: &mut State, node: usize, input: Input<RegisterEvent>) {
        let at = self.clock(node, state.now);
        for output in state.nodes[node].core.step(at, input) {
            self.apply_output(state, node, output);
        }
        self.check(state);
    }

    fn apply_output(&self, state: &mut State, node: usize, output: Output<RegisterRequest>) {
        let at = self.clock(node, state.now);
        match output {
            Output::Open { epoch, deadline } => {
                if epoch <= state.highest_opened {
                    state.violation.get_or_insert(Violation::EpochRegressed);
                }
                state.highest_opened = state.highest_opened.max(epoch);
                state.nodes[node].own_epoch = state.nodes[node].own_epoch.max(epoch);
                state.nodes[node].fence = Some((epoch, deadline));
                for other in (0..self.gateways).filter(|other| self.observes_epochs && *other != node) {
                    self.step(state, other, Input::ObservedEpoch(epoch));
                }
            }
            Output::Renew { deadline } => {
                if let Some(fence) = &mut state.nodes[node].fence {
                    fence.1 = deadline;
                }
            }
            Output::Close { .. } => {
                if let Some((_, deadline)) = state.nodes[node].fence.take() {
                    state.nodes[node].sends_end = deadline.min(at).plus(self.timing.send_ns_max);
                }
            }
            Output::Drain => state.nodes[node].is_draining = true,
            Output::Request(RegisterRequest::Reconnect) => {
                // Answers over the abandoned connection are lost; requests that reached the store may take effect.
                state
                    .network
                    .retain(|message| !matches!(message.content, InFlightMessage::FromStore { to, .. } if to == node));
                state.nodes[node].restore_count = state.restore_count;
                self.notify_watch(state, node);
            }
            Output::Request(request) => {
                let Node { incarnation, restore_count, .. } = state.nodes[node];
                if !self.is_down(state) {
                    state.enqueue(InFlightMessage::ToStore { from: node, incarnation, restore_count, request });
                }
            }
            Output::Peer { to, message } => {
                let to = usize::from(to.0) - 1;
                let input = Input::Peer { from: id_of(node), message };
                state.enqueue(InFlightMessage::Peer { to, incarnation: state.nodes[to].incarnation, input });
            }
            Output::Connection(_) | Output::Notice(_) | Output::PeerOutputEnded(_) => {}
        }
    }

    fn handle_at_store(
        &self,
        state: &mut State,
        from: usize,
        incarnation: u64,
        restore_count: u8,
        request: RegisterRequest,
    ) {
        // A restore ends all connections, so a request that was sent before is lost.
        if restore_count != state.restore_count {
            return;
        }
        let (request_id, outcome) = match request {
            RegisterRequest::Read(request_id) => (request_id, Outcome::Read(state.stored.clone())),
            RegisterRequest::CompareAndSwap { request_id, expected, record } => {
                let version = state.stored.as_ref().map_or(Version::NONE, |stored| stored.version);
                if expected == version || !self.version_check {
                    let version = Version(version.0 + 1);
                    state.stored = Some(Versioned { version, record: *record });
                    for other in (0..self.gateways).filter(|other| *other != from) {
                        self.notify_watch(state, other);
                    }
                    (request_id, Outcome::Swapped(version))
                } else {
                    (request_id, Outcome::Refused)
                }
            }
            RegisterRequest::Reconnect => return,
        };
        // A process that has ended receives no answer.
        if state.nodes[from].incarnation == incarnation {
            let event = RegisterEvent::Answer { request_id, outcome };
            state.enqueue(InFlightMessage::FromStore { to: from, incarnation, restore_count, event });
        }
    }

    fn is_down(&self, state: &State) -> bool {
        state.now < self.outage_until
    }

    /// The watch may skip versions: a newer notification replaces pending ones.
    fn notify_watch(&self, state: &mut State, to: usize) {
        let is_older = |message: &InFlight| matches!(&message.content, InFlightMessage::FromStore { to: other, event: RegisterEvent::Changed(_), .. } if *other == to);
        state.network.retain(|message| !is_older(message));
        let Node { incarnation, restore_count, .. } = state.nodes[to];
        if restore_count == state.restore_count && !self.is_down(state) {
            let event = RegisterEvent::Changed(state.stored.clone());
            state.enqueue(InFlightMessage::FromStore { to, incarnation, restore_count, event });
        }
    }

    fn arrive(&self, state: &mut State, load: InFlightMessage) {
        match load {
            InFlightMessage::ToStore { from, incarnation, restore_count, request } => {
                self.handle_at_store(state, from, incarnation, restore_count, request);
            }
            InFlightMessage::FromStore { to, incarnation, restore_count, event } => {
                if state.nodes[to].incarnation == incarnation && state.nodes[to].restore_count == restore_count {
                    self.step(state, to, Input::Backend(event));
                }
            }
            InFlightMessage::Peer { to, incarnation, input } => {
                if state.nodes[to].incarnation != incarnation {
                    return;
                }
                if let (Input::Peer { from, message: message @ PeerMessage::Promise(_) }, false) =
                    (&input, self.senders_proved)
                {
                    for other in (0..self.gateways).map(id_of).filter(|other| other != from && *other != id_of(to)) {
                        self.step(state, to, Input::Peer { from: other, message: message.clone() });
                    }
                }
                self.step(state, to, input);
            }
        }
    }

    fn may_send(&self, state: &State, node: usize) -> Option<Epoch> {
        let (epoch, deadline) = state.nodes[node].fence?;
        (self.clock(node, state.now) < deadline).then_some(epoch)
    }

    /// Latest end of a send that has passed the fence check.
    fn sends_end(&self, node: &Node) -> MonoNs {
        let open = node.fence.map_or(MonoNs(0), |(_, deadline)| deadline.plus(self.timing.send_ns_max));
        open.max(node.sends_end)
    }

    fn check(&self, state: &mut State) {
        let sends = |node: usize| self.clock(node, state.now) < self.sends_end(&state.nodes[node]);
        let leaders = (0..self.gateways).filter(|node| self.may_send(state, *node).is_some());
        let two = leaders.into_iter().any(|leader| (0..self.gateways).any(|other| other != leader && sends(other)));
        if two {
            state.violation.get_or_insert(Violation::TwoLeaders);
        }
    }

    /// The next time at which anything can change.
    fn next_moment(&self, state: &State) -> Option<u64> {
        let moments = state.nodes.iter().enumerate().flat_map(|(index, node)| {
            let fence = node.fence.map(|(_, deadline)| deadline);
            let true_time =
                move |at: MonoNs| (at.0.saturating_sub(1_000 * (index as u64 + 1)) * 100).div_ceil(self.rates[index]);
            let times = [node.core.next_deadline(), fence, Some(self.sends_end(node))];
            times.into_iter().flatten().map(true_time)
        });
        moments.chain([self.outage_until]).filter(|at| *at > state.now && *at <= self.horizon).min()
    }

    fn is_due(&self, state: &State, node: usize) -> bool {
        state.nodes[node].core.next_deadline().is_some_and(|at| at <= self.clock(node, state.now))
    }

    /// Runs without faults until node 1 leads and has renewed: messages arrive at once, timers fire in time.
    fn warm_up(&self) -> State {
        let own_epoch = |node: usize| Epoch::new(self.own_epoch_counts[node], id_of(node).0);
        let node = |node: usize| Node {
            core: self.start(node, 1, own_epoch(node)),
            incarnation: 1,
            own_epoch: own_epoch(node),
            fence: None,
            sends_end: MonoNs(0),
            is_draining: false,
            restore_count: 0,
        };
        let mut state = State {
            now: 0,
            nodes: (0..self.gateways).map(node).collect(),
            stored: None,
            backup: None,
            restore_count: 0,
            network: Vec::new(),
            left: self.budget,
            packets: Vec::new(),
            highest_received: Epoch::default(),
            highest_opened: Epoch::default(),
            violation: None,
        };
        let undisturbed = Self { outage_until: 0, ..self.clone() };
        let mut stray_messages = Vec::new();
        undisturbed.step(&mut state, 0, Input::Eligibility(Eligibility::Eligible));
        for now in 0..=WARM_UP_END {
            state.now = now;
            if now == WARM_UP_END - 2 * self.timing.renew_ns - 2 && self.stray_prepare {
                undisturbed.hand_over(&mut state);
            }
            if now == WARM_UP_END - self.timing.renew_ns - 1
                && let Some(successor) = self.successor
            {
                undisturbed.report_peer_state(&mut state, successor);
            }
            for node in 0..self.gateways {
                undisturbed.step(&mut state, node, Input::Time);
            }
            while !state.network.is_empty() {
                let message = state.network.remove(0);
                if matches!(message.content, InFlightMessage::Peer { .. }) {
                    stray_messages.push(InFlight { is_late: true, ..message });
                } else {
                    undisturbed.arrive(&mut state, message.content);
                    (0..self.gateways).for_each(|node| undisturbed.step(&mut state, node, Input::Time));
                }
            }
        }
        (1..self.gateways).for_each(|node| self.step(&mut state, node, Input::Eligibility(Eligibility::Eligible)));
        if let Some(node) = self.reported_since {
            self.report_peer_state(&mut state, node);
        }
        assert!(self.may_send(&state, 0).is_some(), "node 1 leads by now");
        if self.stray_prepare {
            self.hand_over(&mut state);
            while !state.nodes[0].is_draining {
                let message = state.network.remove(0);
                self.arrive(&mut state, message.content);
                self.step(&mut state, 0, Input::Time);
            }
            self.drained(&mut state, 0);
        }
        if self.backup == StoreBackup::Last {
            state.backup.clone_from(&state.stored);
        }
        state.network.append(&mut stray_messages);
        state
    }

    /// Node 1 hands over to node 2, whose state it has just received.
    fn hand_over(&self, state: &mut State) {
        self.report_peer_state(state, 1);
        self.step(state, 0, Input::HandOver(Some(id_of(1))));
    }

    /// Node 1 is notified that another gateway is eligible.
    fn report_peer_state(&self, state: &mut State, node: usize) {
        let mut of_peer = state.nodes[node].core.peer_state(self.clock(node, state.now));
        of_peer.eligibility = Eligibility::Eligible;
        self.step(state, 0, Input::Peer { from: id_of(node), message: PeerMessage::State(of_peer) });
    }

    /// No send of the node is outstanding any more, and the election thread is notified.
    fn drained(&self, state: &mut State, node: usize) {
        state.nodes[node].is_draining = false;
        state.nodes[node].sends_end = MonoNs(0);
        self.step(state, node, Input::Drained);
    }

    fn restart(&self, state: &mut State, node: usize) {
        let led = state.nodes[node].fence.map(|(epoch, _)| epoch);
        let incarnation = state.nodes[node].incarnation;
        if let Some(epoch) = led {
            let notice = DeathNotice { holder: id_of(node), incarnation: Incarnation(incarnation), epoch };
            for to in (0..self.gateways).filter(|to| *to != node) {
                let incarnation = state.nodes[to].incarnation;
                state.enqueue(InFlightMessage::Peer { to, incarnation, input: Input::Died(notice) });
            }
        }
        // Answers to the old process are lost; its requests may still take effect.
        state.network.retain(|message| match message.content {
            InFlightMessage::ToStore { .. } => true,
            InFlightMessage::FromStore { to, .. } | InFlightMessage::Peer { to, .. } => to != node,
        });
        let own_epoch = state.nodes[node].own_epoch;
        let own_epoch = if self.observes_epochs {
            state.highest_opened
        } else if self.own_epoch_counts == [0; 3] {
            // The state file is lost.
            Epoch::default()
        } else {
            Epoch::new(own_epoch.count() + 1, id_of(node).0)
        };
        state.nodes[node] = Node {
            core: self.start(node, incarnation + 1, own_epoch),
            incarnation: incarnation + 1,
            own_epoch,
            fence: None,
            sends_end: MonoNs(0),
            is_draining: false,
            restore_count: state.restore_count,
        };
        self.step(state, node, Input::Eligibility(Eligibility::Eligible));
    }
}

impl State {
    fn enqueue(&mut self, content: InFlightMessage) {
        self.network.push(InFlight { content, is_late: false });
    }
}

fn fingerprint(message: &InFlight) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    hasher.finish()
}

fn id_of(node: usize) -> NodeId {
    NodeId(u8::try_from(node + 1).expect("few gateways"))
}

impl Model for LeaseModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.warm_up()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        let left = &state.left;
        let in_flight = || state.network.iter().enumerate();
        actions.extend((0..state.network.len()).map(Action::Arrive));
        actions.extend((0..self.gateways).filter(|node| self.is_due(state, *node)).map(Action::Time));
        actions.extend((0..self.gateways).filter(|node| state.nodes[*node].is_draining).map(Action::Drained));
        actions.extend(
            (0..self.gateways)
                .filter(|node| state.nodes[*node].restore_count < state.restore_count)
                .map(Action::InDoubt),
        );
        actions.extend((0..state.packets.len()).map(Action::Receive));
        if left.unknown > 0 {
            let is_swap = |message: &InFlight| {
                matches!(
                    message.content,
                    InFlightMessage::ToStore { request: RegisterRequest::CompareAndSwap { .. }, .. }
                )
            };
            actions
                .extend(in_flight().filter(|(_, message)| is_swap(message)).map(|(index, _)| Action::Unknown(index)));
        }
        if left.packets > 0 {
            actions.extend((0..self.gateways).filter(|node| self.may_send(state, *node).is_some()).map(Action::Send));
        }
        if left.restarts > 0 {
            actions.extend(self.may_restart.iter().filter(|node| **node < self.gateways).copied().map(Action::Restart));
        }
        if left.restores > 0 {
            actions.push(Action::Restore);
        }
        if left.hand_overs > 0 && self.may_send(state, 0).is_some() {
            actions.push(Action::HandOver);
        }
        if left.forged > 0 && self.may_send(state, 0).is_some() {
            actions.push(Action::Forge);
        }
        if left.states > 0 {
            actions.extend((1..self.gateways).map(Action::State));
        }
        if left.closes > 0 {
            actions.push(Action::Close(0));
        }
        if self.next_moment(state).is_some() {
            actions.push(Action::Advance(None));
            if left.late > 0 {
                let in_time = in_flight().filter(|(_, message)| !message.is_late);
                actions.extend(in_time.map(|(index, _)| Action::Advance(Some(index))));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Advance(kept) => {
                if let Some(index) = kept {
                    state.left.late -= 1;
                    state.network[index].is_late = true;
                }
                state.network.retain(|message| message.is_late);
                state.now = self.next_moment(last)?;
                self.check(&mut state);
            }
            Action::Time(node) => self.step(&mut state, node, Input::Time),
            Action::Arrive(index) => {
                let message = state.network.remove(index);
                self.arrive(&mut state, message.content);
            }
            Action::Unknown(index) => {
                state.left.unknown -= 1;
                let InFlightMessage::ToStore { from, incarnation, request, .. } = &state.network[index].content else {
                    return None;
                };
                let RegisterRequest::CompareAndSwap { request_id, .. } = request else { return None };
                let (from, incarnation, request_id) = (*from, *incarnation, *request_id);
                // The request is still in flight and may take effect.
                state.network[index].is_late = true;
                if state.nodes[from].incarnation == incarnation {
                    let outcome = Outcome::Unknown(String::new());
                    self.step(&mut state, from, Input::Backend(RegisterEvent::Answer { request_id, outcome }));
                }
            }
            Action::Restart(node) => {
                state.left.restarts -= 1;
                self.restart(&mut state, node);
            }
            Action::Restore => {
                state.left.restores -= 1;
                state.restore_count += 1;
                state.stored.clone_from(&state.backup);
            }
            Action::InDoubt(node) => {
                state.nodes[node].restore_count = state.restore_count;
                self.step(&mut state, node, Input::Backend(RegisterEvent::StoreLink(StoreLink::InDoubt)));
                self.notify_watch(&mut state, node);
            }
            Action::HandOver => {
                state.left.hand_overs -= 1;
                self.hand_over(&mut state);
            }
            Action::Forge => {
                state.left.forged -= 1;
                let forged = Epoch::new(state.highest_opened.count() + 2, u8::MAX);
                self.step(&mut state, 0, Input::ObservedEpoch(forged));
                self.step(&mut state, 0, Input::Time);
            }
            Action::State(node) => {
                state.left.states -= 1;
                self.report_peer_state(&mut state, node);
            }
            Action::Close(node) => {
                state.left.closes -= 1;
                self.step(&mut state, node, Input::Close);
            }
            Action::Drained(node) => {
                self.drained(&mut state, node);
            }
            Action::Send(node) => {
                let epoch = self.may_send(&state, node)?;
                state.left.packets -= 1;
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
        state.network.sort_by_cached_key(fingerprint);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, state: &State| state.violation.is_none()),
            Property::sometimes("another gateway leads", |_, state: &State| {
                NodeId::of(state.highest_opened) != NodeId(1)
            }),
        ]
    }
}

impl SafetyModel for LeaseModel {
    type Violation = Violation;

    fn violation(state: &State) -> Option<Violation> {
        state.violation
    }
}

#[track_caller]
fn assert_safe(what: &str, model: LeaseModel) {
    search::assert_safe(what, model, STATES, LEADERSHIP_MOVED);
}

#[track_caller]
fn assert_safeguard_needed(
    safeguard: &str,
    model: LeaseModel,
    states: usize,
    switch_off: fn(&mut LeaseModel),
    expected: &[Violation],
) {
    search::assert_safeguard_needed(safeguard, model, (states, LEADERSHIP_MOVED), switch_off, expected);
}

/// The search must reach this; otherwise it generated too few states.
const LEADERSHIP_MOVED: &[&str] = &["another gateway leads"];

#[test]
fn at_most_one_leader_with_late_messages() {
    assert_safe(
        "late messages",
        LeaseModel { budget: FaultBudget { late: 2, unknown: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS },
    );
}

#[test]
fn at_most_one_leader_over_restarts() {
    assert_safe("restarts", LeaseModel { budget: FaultBudget { restarts: 2, ..NO_FAULTS }, ..ALL_SAFEGUARDS });
    assert_safe(
        "restarts, packets",
        LeaseModel { budget: FaultBudget { restarts: 1, packets: 2, ..NO_FAULTS }, ..ALL_SAFEGUARDS },
    );
}

#[test]
fn at_most_one_leader_over_a_store_restore() {
    assert_safe(
        "restored store, late messages",
        LeaseModel { budget: FaultBudget { restores: 1, late: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS },
    );
    // Long enough for a gateway that counts its wait from a time before the disconnect.
    let model =
        LeaseModel { budget: FaultBudget { restores: 1, ..NO_FAULTS }, horizon: WARM_UP_END + 80, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.safeguards.forgets_on_disconnect = false;
    assert_safeguard_needed("resetting the state on a disconnect", model, 450_000, switch_off, TWO_LEADERS);
}

#[test]
fn at_most_one_leader_over_an_emptied_store_and_restarts() {
    let budget = FaultBudget { restores: 1, restarts: 1, ..NO_FAULTS };
    let model = LeaseModel { budget, backup: StoreBackup::Nothing, ..ALL_SAFEGUARDS };
    assert_safe("store made anew", model.clone());
    let model = LeaseModel { may_restart: &[0], ..model };
    assert_safeguard_needed(
        "observed epochs",
        model,
        200_000,
        |search| search.observes_epochs = false,
        EPOCH_REGRESSED,
    );
}

/// The hand-over message and the abandoned *prepare* may reach the successor at any moment, even when the previous leader
/// holds the record again. The successor's lease counts from the timestamp of the message.
#[test]
fn a_late_notified_successor_is_safe_by_its_timestamp() {
    let budget = FaultBudget { late: 1, ..NO_FAULTS };
    let model = LeaseModel { budget, stray_prepare: true, horizon: WARM_UP_END + LEASE + 30, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.safeguards.lease_from_successor_stamp = false;
    assert_safeguard_needed("the successor's stamp", model, 600_000, switch_off, TWO_LEADERS);
}

/// A released record names the successor, which may have opened its fence.
#[test]
fn at_most_one_leader_over_hand_overs_and_closes() {
    let budget = FaultBudget { hand_overs: 1, closes: 1, ..NO_FAULTS };
    assert_safe(
        "hand-over, closing, late messages",
        LeaseModel { budget: FaultBudget { late: 1, ..budget }, ..ALL_SAFEGUARDS },
    );
    let model = LeaseModel { budget, horizon: WARM_UP_END + LEASE / 2, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.safeguards.waits_for_successor = false;
    assert_safeguard_needed("waiting for the successor", model, 250_000, switch_off, TWO_LEADERS);
}

/// During the outage the leader extends its lease by promises of the candidates.
#[test]
fn at_most_one_leader_over_a_store_outage() {
    let restarts = FaultBudget { restarts: 1, ..NO_FAULTS };
    let outage = LeaseModel { outage_until: WARM_UP_END + 60, ..ALL_SAFEGUARDS };
    assert_each_promise_needed(outage.clone(), 100_000);
    assert_each_promise_needed(LeaseModel { budget: restarts, ..outage.clone() }, 100_000);
    assert_each_promise_needed(LeaseModel { gateways: 3, outage_until: WARM_UP_END + 150, ..outage.clone() }, 100_000);
    assert_each_promise_needed(LeaseModel { gateways: 3, budget: restarts, ..outage }, 300_000);
}

/// An attacker on the path, without the key, lets the promise of one gateway count for another one too, unless the pair
/// link proves which gateway speaks.
#[test]
fn a_promise_that_counts_for_two_gateways_is_detected() {
    let model = LeaseModel { gateways: 3, outage_until: WARM_UP_END + 150, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.senders_proved = false;
    assert_safeguard_needed("the proof of the sender", model, 150_000, switch_off, TWO_LEADERS);
}

#[track_caller]
fn assert_each_promise_needed(model: LeaseModel, states: usize) {
    let what = format!("each promise of {} in an outage, restarts: {}", model.gateways, model.budget.restarts);
    let switch_off = |search: &mut LeaseModel| search.safeguards.asks_every_candidate = false;
    assert_safeguard_needed(&what, model, states, switch_off, TWO_LEADERS);
}

#[test]
fn at_most_one_of_three_gateways_leads() {
    assert_safe(
        "three gateways",
        LeaseModel { gateways: 3, budget: FaultBudget { late: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS },
    );
}

#[test]
fn at_most_one_leader_when_the_successor_takes_over() {
    let budget = FaultBudget { restarts: 1, late: 1, ..NO_FAULTS };
    assert_safe("successor of two", LeaseModel { budget, successor: Some(1), ..ALL_SAFEGUARDS });
    assert_safe("successor of three", SUCCESSOR_OF_THREE);
}

#[test]
fn epochs_never_regress_with_an_unobserved_successor() {
    let budget = FaultBudget { restarts: 1, late: 1, ..NO_FAULTS };
    assert_safe(
        "successor of two, epochs not observed",
        LeaseModel { budget, successor: Some(1), observes_epochs: false, ..ALL_SAFEGUARDS },
    );
    assert_safe("successor of three, epochs not observed", LeaseModel { observes_epochs: false, ..SUCCESSOR_OF_THREE });
}

/// The successor was restarted several times, so its state file holds an epoch above those of the record. What it opens
/// without a swap, the others must be able to read from the record.
#[test]
fn epochs_never_regress_with_a_successor_whose_own_epoch_is_above_the_record() {
    let model = LeaseModel { observes_epochs: false, own_epoch_counts: [0, 0, 14], ..SUCCESSOR_OF_THREE };
    assert_safeguard_needed(
        "the successor's epoch from the record",
        model,
        SUCCESSOR_STATES,
        |search| search.safeguards.successor_epoch_from_record = false,
        EPOCH_REGRESSED,
    );
}

#[test]
fn a_new_epoch_that_ignores_the_successors_is_detected() {
    let model = LeaseModel { observes_epochs: false, ..SUCCESSOR_OF_THREE };
    assert_safeguard_needed(
        "counting the successor's epoch",
        model,
        SUCCESSOR_STATES,
        |search| search.safeguards.counts_successor_epoch = false,
        EPOCH_REGRESSED,
    );
}

#[test]
fn at_most_one_leader_and_ascending_epochs_over_raises() {
    let budget = FaultBudget { forged: 2, late: 1, unknown: 1, ..NO_FAULTS };
    assert_safe("raised epochs", LeaseModel { budget, ..ALL_SAFEGUARDS });
    let budget = FaultBudget { forged: 1, late: 1, ..NO_FAULTS };
    assert_safe(
        "raised epochs, hand-over",
        LeaseModel { budget: FaultBudget { hand_overs: 1, ..budget }, ..ALL_SAFEGUARDS },
    );
    // The other gateway receives no packet of node 1: it knows the store's epoch only.
    let budget = FaultBudget { forged: 1, ..NO_FAULTS };
    let model = LeaseModel { budget, observes_epochs: false, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.safeguards.raises_once_stored = false;
    assert_safeguard_needed("opening a raised epoch when it is stored", model, STATES, switch_off, EPOCH_REGRESSED);
}

#[test]
fn halving_the_margin_is_detected() {
    assert_safeguard_needed(
        "half of the margin",
        ALL_SAFEGUARDS,
        STATES,
        |search| search.timing.margin_ns /= 2,
        TWO_LEADERS,
    );
}

#[test]
fn receivers_without_epoch_check_are_detected() {
    let model = LeaseModel { budget: FaultBudget { packets: 2, ..NO_FAULTS }, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.receivers_check_epochs = false;
    assert_safeguard_needed("receivers' epoch rule", model, STATES, switch_off, &[Violation::StalePacketAccepted]);
}

#[test]
fn a_store_without_version_check_is_detected() {
    let model = LeaseModel { budget: FaultBudget { late: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.version_check = false;
    assert_safeguard_needed("version check", model, STATES, switch_off, EITHER);
}

#[test]
fn counting_an_unknown_outcome_is_detected() {
    let model = LeaseModel { budget: FaultBudget { unknown: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.safeguards.ignores_unknown_outcome = false;
    assert_safeguard_needed("reading after an unknown outcome", model, STATES, switch_off, EITHER);
}

/// A late message may arrive when the leader's deadline has passed.
const LATE_AFTER_DEADLINE: LeaseModel =
    LeaseModel { budget: FaultBudget { late: 1, ..NO_FAULTS }, horizon: WARM_UP_END + LEASE + 30, ..ALL_SAFEGUARDS };

#[test]
fn a_leadership_that_outlives_its_deadline_is_detected() {
    let switch_off = |search: &mut LeaseModel| search.safeguards.ends_at_deadline = false;
    assert_safeguard_needed("the end at the deadline", LATE_AFTER_DEADLINE, 700_000, switch_off, TWO_LEADERS);
}

/// A promise beside a swap arrives after the leader's deadline. So it is harmless while a leadership ends at its deadline, and
/// without that rule it is what revives a leader first.
#[test]
fn a_promise_beside_a_swap_is_detected_without_the_end_at_the_deadline() {
    let with = |safeguards| LeaseModel { safeguards, ..LATE_AFTER_DEADLINE };
    let without_end = with(LeaseSafeguards { ends_at_deadline: false, ..LeaseSafeguards::ALL });
    let switch_off = |search: &mut LeaseModel| search.safeguards.promises_only_without_swap = false;
    assert_safeguard_needed("promising only without a swap", without_end, STATES, switch_off, TWO_LEADERS);
    let beside = with(LeaseSafeguards { promises_only_without_swap: false, ..LeaseSafeguards::ALL });
    assert_safe("the end at the deadline, promises beside swaps", beside);
}

#[test]
fn a_skipped_candidate_promise_is_detected() {
    assert_each_promise_needed(LeaseModel { gateways: 3, ..ALL_SAFEGUARDS }, STATES);
}

#[test]
fn a_start_without_initial_wait_is_detected() {
    let budget = FaultBudget { restarts: 1, ..NO_FAULTS };
    let model = LeaseModel { budget, may_restart: &[1], ..ALL_SAFEGUARDS };
    let switch_off = |search: &mut LeaseModel| search.safeguards.startup_wait = false;
    assert_safeguard_needed("sitting out", model, STATES, switch_off, EITHER);
}

/// Three gateways. The last is the successor; the first may die.
const SUCCESSOR_OF_THREE: LeaseModel = LeaseModel {
    gateways: 3,
    successor: Some(2),
    budget: FaultBudget { restarts: 1, states: 1, ..NO_FAULTS },
    may_restart: &[0],
    ..ALL_SAFEGUARDS
};

/// The designated successor counts its lease from the timestamp that the record holds for it, however many other requests
/// it has answered since. The timestamp has the role of a *prepare* nonce.
#[test]
fn a_successor_lease_counted_from_opening_is_detected() {
    let switch_off = |search: &mut LeaseModel| search.safeguards.lease_from_successor_stamp = false;
    assert_safeguard_needed("the successor's stamp", SUCCESSOR_OF_THREE, SUCCESSOR_STATES, switch_off, EITHER);
}

#[test]
fn not_waiting_for_the_successor_is_detected() {
    let switch_off = |search: &mut LeaseModel| search.safeguards.waits_for_successor = false;
    assert_safeguard_needed("waiting for the successor", SUCCESSOR_OF_THREE, SUCCESSOR_STATES, switch_off, EITHER);
}

#[test]
fn replacing_the_successor_at_once_is_detected() {
    let budget = FaultBudget { restarts: 1, ..NO_FAULTS };
    let model = LeaseModel { budget, reported_since: Some(1), ..SUCCESSOR_OF_THREE };
    let switch_off = |search: &mut LeaseModel| search.safeguards.keeps_named_successor = false;
    assert_safeguard_needed("keeping the named successor", model, SUCCESSOR_STATES, switch_off, EITHER);
}

const TWO_LEADERS: &[Violation] = &[Violation::TwoLeaders];
const EPOCH_REGRESSED: &[Violation] = &[Violation::EpochRegressed];
const EITHER: &[Violation] = &[Violation::TwoLeaders, Violation::EpochRegressed];
/// Number of generated states of a search with a successor.
const SUCCESSOR_STATES: usize = 300_000;
/// Number of generated states of a search that must find no violation.
const STATES: usize = 100_000;
const NO_FAULTS: FaultBudget = ALL_SAFEGUARDS.budget;
