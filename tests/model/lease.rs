//! The lease over a register searched state by state: two or three gateways, the product's own state machines, and a store,
//! from a moment at which node 1 leads and has renewed.
//!
//! What may happen in any order: time goes on to the next moment at which anything changes, a timer that is due goes off
//! or stays late (a pause), a request, an answer, the watch's word or a message between gateways arrives, late or never
//! (so the fate of a swap is unknown, and it may take effect after it was given up), a gateway is told that the fate is
//! unknown, a process restarts, its death told or not, the store is down for a while, comes back from a backup, a gateway
//! hands over or closes, a packet that passed the fence arrives late. Clocks run at different rates. Several requests are
//! in flight at once. What may not happen: one may send while a send of another may be under way, an epoch goes back, a receiver
//! takes content of an old epoch after a new one.
//!
//! The space is bounded by time, by the number of faults and by that of states. Each safeguard switched off must be found,
//! but for the one that a candidate promises only with no swap of its own outstanding: without it nothing was found in
//! 1,500,000 states each over an outage with a swap of unknown fate, over restarts with an heir of two and of three, over
//! a hand-over, and over a restored store, each with one late message.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use mdgw_election::{
    core::{Core as _, Input, Output},
    fitness::Standing,
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    lease::{Lease, LeaseConfig, OnSuspended, Safeguards},
    moves::MovesConfig,
    peer::PeerMessage,
    record::ConfigurationMark,
    register::{Link, Outcome, RegisterEvent, RegisterRequest, Version, Versioned},
    timing::LeaseTiming,
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};
use stateright::{Model, Property};

use super::search::{self, Searched};

/// What is searched.
#[derive(Clone, Debug)]
struct Search {
    gateways: usize,
    timing: LeaseTiming,
    safeguards: Safeguards,
    version_check: bool,
    receivers_fence: bool,
    epochs_heard: bool,
    /// Per gateway: how fast its clock runs, in a hundredth of true time.
    rates: [u64; 3],
    budget: Budget,
    /// Who may restart.
    restartable: &'static [usize],
    /// Until then, in true time, the store answers nobody.
    outage_until: u64,
    /// What a backup of the store holds.
    backup: Backup,
    /// Node 1 sent a *prepare* that has not arrived, and gave it up; the next was answered, and its fence is closed.
    stray_prepare: bool,
    /// Whom node 1 has named as its heir in its last renewal.
    heir: Option<usize>,
    /// Of whom it has heard since.
    heard_since: Option<usize>,
    /// Nothing happens after it, in true time.
    horizon: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backup {
    Nothing,
    /// What the store held when the search began.
    Last,
}

/// How often each may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Budget {
    /// Messages that lie about while time goes on; the others arrive before it does, or never.
    late: u8,
    unknown: u8,
    restarts: u8,
    restores: u8,
    hand_overs: u8,
    closes: u8,
    packets: u8,
    /// Words of the others to node 1 how they are.
    states: u8,
}

const L: u64 = 100;

/// Unit-free: a lease of 100, of which clocks of rate 99 and 101 take 2, a send 4.
const FULL: Search = Search {
    gateways: 2,
    timing: LeaseTiming { lease_ns: L, renew_ns: 30, margin_ns: 8, send_ns_max: 4, rate_error_ppm: 10_000 },
    safeguards: Safeguards::ALL,
    version_check: true,
    receivers_fence: true,
    epochs_heard: true,
    rates: [99, 101, 101],
    budget: Budget { late: 0, unknown: 0, restarts: 0, restores: 0, hand_overs: 0, closes: 0, packets: 0, states: 0 },
    restartable: &[0, 1, 2],
    outage_until: 0,
    backup: Backup::Last,
    stray_prepare: false,
    heir: None,
    heard_since: None,
    horizon: WARM + 2 * L,
};

/// By then node 1 leads.
const WARM: u64 = 250;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: Vec<Node>,
    stored: Option<Versioned>,
    backup: Option<Versioned>,
    /// One more with each restored backup.
    life: u8,
    network: Vec<Flying>,
    left: Budget,
    /// Epochs of packets that have passed a fence and are under way.
    packets: Vec<Epoch>,
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
    core: Lease,
    incarnation: u64,
    fence: Option<(Epoch, MonoNs)>,
    /// Until when a send of the opening that ended may be under way.
    sends_end: MonoNs,
    drains: bool,
    /// Which life of the store its connection leads to.
    life: u8,
}

/// A message under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flying {
    what: Load,
    /// It lies about, and time goes on.
    is_late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Load {
    ToStore { from: usize, incarnation: u64, life: u8, request: RegisterRequest },
    FromStore { to: usize, incarnation: u64, life: u8, event: RegisterEvent },
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
    Doubtful(usize),
    HandOver,
    State(usize),
    Close(usize),
    Drained(usize),
    Send(usize),
    Receive(usize),
}

impl Search {
    fn clock(&self, node: usize, now: u64) -> MonoNs {
        // Nobody's clock agrees with another's.
        MonoNs(1_000 * (node as u64 + 1) + now * self.rates[node] / 100)
    }

    fn start(&self, node: usize, incarnation: u64, own_epoch: Epoch) -> Lease {
        let name = |node: usize| NodeName::new(&format!("n{}", node + 1)).expect("a plain name");
        let config = LeaseConfig {
            member: Member { node: id_of(node), name: name(node), incarnation: Incarnation(incarnation) },
            timing: self.timing,
            candidates: (0..self.gateways).map(|node| (id_of(node), name(node))).collect(),
            configuration: ConfigurationMark::default(),
            on_suspended: OnSuspended::Hold,
            preferred: None,
            own_epoch,
            moves: MovesConfig::default(),
        };
        Lease::new(config).with_safeguards(self.safeguards)
    }

    fn step(&self, state: &mut State, node: usize, input: Input<RegisterEvent>) {
        let at = self.clock(node, state.now);
        for output in state.nodes[node].core.step(at, input) {
            self.carry_out(state, node, output);
        }
        self.check(state);
    }

    fn carry_out(&self, state: &mut State, node: usize, output: Output<RegisterRequest>) {
        let at = self.clock(node, state.now);
        match output {
            Output::Open { epoch, deadline } => {
                if epoch <= state.opened {
                    state.wrong.get_or_insert(Wrong::EpochWentBack);
                }
                state.opened = state.opened.max(epoch);
                state.nodes[node].fence = Some((epoch, deadline));
                for other in (0..self.gateways).filter(|other| self.epochs_heard && *other != node) {
                    self.step(state, other, Input::Heard(epoch));
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
            Output::Drain => state.nodes[node].drains = true,
            Output::Request(RegisterRequest::Reconnect) => {
                // What comes over the connection that was given up is heard no more; what went to the store may be done.
                state.network.retain(|flying| !matches!(flying.what, Load::FromStore { to, .. } if to == node));
                state.nodes[node].life = state.life;
                self.watch_tells(state, node);
            }
            Output::Request(request) => {
                let Node { incarnation, life, .. } = state.nodes[node];
                if !self.is_down(state) {
                    state.fly(Load::ToStore { from: node, incarnation, life, request });
                }
            }
            Output::Peer { to, message } => {
                let to = usize::from(to.0) - 1;
                let input = Input::Peer { from: id_of(node), message };
                state.fly(Load::Peer { to, incarnation: state.nodes[to].incarnation, input });
            }
            Output::Connection(_) | Output::Notice(_) | Output::OthersEnded { .. } => {}
        }
    }

    fn at_store(&self, state: &mut State, from: usize, incarnation: u64, life: u8, request: RegisterRequest) {
        // A request to a store that was restored since ends with its connection.
        if life != state.life {
            return;
        }
        let (ticket, outcome) = match request {
            RegisterRequest::Read(ticket) => (ticket, Outcome::Read(state.stored.clone())),
            RegisterRequest::CompareAndSwap { ticket, expected, record } => {
                let version = state.stored.as_ref().map_or(Version::NONE, |stored| stored.version);
                if expected == version || !self.version_check {
                    let version = Version(version.0 + 1);
                    state.stored = Some(Versioned { version, record: *record });
                    for other in (0..self.gateways).filter(|other| *other != from) {
                        self.watch_tells(state, other);
                    }
                    (ticket, Outcome::Swapped(version))
                } else {
                    (ticket, Outcome::Refused)
                }
            }
            RegisterRequest::Reconnect => return,
        };
        // To a process that ended meanwhile nothing is told.
        if state.nodes[from].incarnation == incarnation {
            let event = RegisterEvent::Answer { ticket, outcome };
            state.fly(Load::FromStore { to: from, incarnation, life, event });
        }
    }

    fn is_down(&self, state: &State) -> bool {
        state.now < self.outage_until
    }

    /// The watch may skip versions: what it had not told yet, it tells no more.
    fn watch_tells(&self, state: &mut State, to: usize) {
        let is_older = |flying: &Flying| matches!(&flying.what, Load::FromStore { to: other, event: RegisterEvent::Changed(_), .. } if *other == to);
        state.network.retain(|flying| !is_older(flying));
        let Node { incarnation, life, .. } = state.nodes[to];
        if life == state.life && !self.is_down(state) {
            let event = RegisterEvent::Changed(state.stored.clone());
            state.fly(Load::FromStore { to, incarnation, life, event });
        }
    }

    fn arrive(&self, state: &mut State, load: Load) {
        match load {
            Load::ToStore { from, incarnation, life, request } => {
                self.at_store(state, from, incarnation, life, request);
            }
            Load::FromStore { to, incarnation, life, event } => {
                if state.nodes[to].incarnation == incarnation && state.nodes[to].life == life {
                    self.step(state, to, Input::Backend(event));
                }
            }
            Load::Peer { to, incarnation, input } => {
                if state.nodes[to].incarnation == incarnation {
                    self.step(state, to, input);
                }
            }
        }
    }

    fn may_send(&self, state: &State, node: usize) -> Option<Epoch> {
        let (epoch, deadline) = state.nodes[node].fence?;
        (self.clock(node, state.now) < deadline).then_some(epoch)
    }

    /// Until when a send that has passed the fence may be under way.
    fn sends_end(&self, node: &Node) -> MonoNs {
        let open = node.fence.map_or(MonoNs(0), |(_, deadline)| deadline.plus(self.timing.send_ns_max));
        open.max(node.sends_end)
    }

    fn check(&self, state: &mut State) {
        let sends = |node: usize| self.clock(node, state.now) < self.sends_end(&state.nodes[node]);
        let leaders = (0..self.gateways).filter(|node| self.may_send(state, *node).is_some());
        let two = leaders.into_iter().any(|leader| (0..self.gateways).any(|other| other != leader && sends(other)));
        if two {
            state.wrong.get_or_insert(Wrong::TwoLead);
        }
    }

    /// The next moment at which anything can change.
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

    /// Everything arrives at once and every timer goes off in time, until node 1 leads and has renewed.
    fn warm(&self) -> State {
        let node = |node: usize| Node {
            core: self.start(node, 1, Epoch::default()),
            incarnation: 1,
            fence: None,
            sends_end: MonoNs(0),
            drains: false,
            life: 0,
        };
        let mut state = State {
            now: 0,
            nodes: (0..self.gateways).map(node).collect(),
            stored: None,
            backup: None,
            life: 0,
            network: Vec::new(),
            left: self.budget,
            packets: Vec::new(),
            received: Epoch::default(),
            opened: Epoch::default(),
            wrong: None,
        };
        let calm = Self { outage_until: 0, ..self.clone() };
        let mut stray = Vec::new();
        calm.step(&mut state, 0, Input::Standing(Standing::Stands));
        for now in 0..=WARM {
            state.now = now;
            if now == WARM - 2 * self.timing.renew_ns - 2 && self.stray_prepare {
                calm.hand_over(&mut state);
            }
            if now == WARM - self.timing.renew_ns - 1
                && let Some(heir) = self.heir
            {
                calm.tell_state(&mut state, heir);
            }
            for node in 0..self.gateways {
                calm.step(&mut state, node, Input::Time);
            }
            while !state.network.is_empty() {
                let flying = state.network.remove(0);
                if matches!(flying.what, Load::Peer { .. }) {
                    stray.push(Flying { is_late: true, ..flying });
                } else {
                    calm.arrive(&mut state, flying.what);
                    (0..self.gateways).for_each(|node| calm.step(&mut state, node, Input::Time));
                }
            }
        }
        (1..self.gateways).for_each(|node| self.step(&mut state, node, Input::Standing(Standing::Stands)));
        if let Some(node) = self.heard_since {
            self.tell_state(&mut state, node);
        }
        assert!(self.may_send(&state, 0).is_some(), "node 1 leads by now");
        if self.stray_prepare {
            self.hand_over(&mut state);
            while !state.nodes[0].drains {
                let flying = state.network.remove(0);
                self.arrive(&mut state, flying.what);
                self.step(&mut state, 0, Input::Time);
            }
            self.drained(&mut state, 0);
        }
        if self.backup == Backup::Last {
            state.backup.clone_from(&state.stored);
        }
        state.network.append(&mut stray);
        state
    }

    /// From node 1 to node 2, of which it has just heard.
    fn hand_over(&self, state: &mut State) {
        self.tell_state(state, 1);
        self.step(state, 0, Input::HandOver(Some(id_of(1))));
    }

    /// Node 1 hears that another stands.
    fn tell_state(&self, state: &mut State, node: usize) {
        let mut of_peer = state.nodes[node].core.peer_state(self.clock(node, state.now));
        of_peer.standing = Standing::Stands;
        self.step(state, 0, Input::Peer { from: id_of(node), message: PeerMessage::State(of_peer) });
    }

    /// No send is under way any more, and the election thread knows it.
    fn drained(&self, state: &mut State, node: usize) {
        state.nodes[node].drains = false;
        state.nodes[node].sends_end = MonoNs(0);
        self.step(state, node, Input::Drained { positions: BTreeMap::new() });
    }

    fn restart(&self, state: &mut State, node: usize) {
        let led = state.nodes[node].fence.map(|(epoch, _)| epoch);
        let incarnation = state.nodes[node].incarnation;
        if let Some(epoch) = led {
            let notice = DeathNotice { holder: id_of(node), incarnation: Incarnation(incarnation), epoch };
            for to in (0..self.gateways).filter(|to| *to != node) {
                let incarnation = state.nodes[to].incarnation;
                state.fly(Load::Peer { to, incarnation, input: Input::Died(notice) });
            }
        }
        // What it was to be told is lost; what it asked for may be done.
        state.network.retain(|flying| match flying.what {
            Load::ToStore { .. } => true,
            Load::FromStore { to, .. } | Load::Peer { to, .. } => to != node,
        });
        let own_epoch = if self.epochs_heard { state.opened } else { Epoch::default() };
        state.nodes[node] = Node {
            core: self.start(node, incarnation + 1, own_epoch),
            incarnation: incarnation + 1,
            fence: None,
            sends_end: MonoNs(0),
            drains: false,
            life: state.life,
        };
        self.step(state, node, Input::Standing(Standing::Stands));
    }
}

impl State {
    fn fly(&mut self, what: Load) {
        self.network.push(Flying { what, is_late: false });
    }
}

fn fingerprint(flying: &Flying) -> u64 {
    let mut hasher = DefaultHasher::new();
    flying.hash(&mut hasher);
    hasher.finish()
}

fn id_of(node: usize) -> NodeId {
    NodeId(u8::try_from(node + 1).expect("few gateways"))
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
        let left = &state.left;
        let in_flight = || state.network.iter().enumerate();
        actions.extend((0..state.network.len()).map(Action::Arrive));
        actions.extend((0..self.gateways).filter(|node| self.is_due(state, *node)).map(Action::Time));
        actions.extend((0..self.gateways).filter(|node| state.nodes[*node].drains).map(Action::Drained));
        actions.extend((0..self.gateways).filter(|node| state.nodes[*node].life < state.life).map(Action::Doubtful));
        actions.extend((0..state.packets.len()).map(Action::Receive));
        if left.unknown > 0 {
            let is_swap = |flying: &Flying| {
                matches!(flying.what, Load::ToStore { request: RegisterRequest::CompareAndSwap { .. }, .. })
            };
            actions.extend(in_flight().filter(|(_, flying)| is_swap(flying)).map(|(index, _)| Action::Unknown(index)));
        }
        if left.packets > 0 {
            actions.extend((0..self.gateways).filter(|node| self.may_send(state, *node).is_some()).map(Action::Send));
        }
        if left.restarts > 0 {
            actions.extend(self.restartable.iter().filter(|node| **node < self.gateways).copied().map(Action::Restart));
        }
        if left.restores > 0 {
            actions.push(Action::Restore);
        }
        if left.hand_overs > 0 && self.may_send(state, 0).is_some() {
            actions.push(Action::HandOver);
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
                let in_time = in_flight().filter(|(_, flying)| !flying.is_late);
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
                state.network.retain(|flying| flying.is_late);
                state.now = self.next_moment(last)?;
                self.check(&mut state);
            }
            Action::Time(node) => self.step(&mut state, node, Input::Time),
            Action::Arrive(index) => {
                let flying = state.network.remove(index);
                self.arrive(&mut state, flying.what);
            }
            Action::Unknown(index) => {
                state.left.unknown -= 1;
                let Load::ToStore { from, incarnation, request, .. } = &state.network[index].what else { return None };
                let RegisterRequest::CompareAndSwap { ticket, .. } = request else { return None };
                let (from, incarnation, ticket) = (*from, *incarnation, *ticket);
                // It is still under way, and may take effect.
                state.network[index].is_late = true;
                if state.nodes[from].incarnation == incarnation {
                    let outcome = Outcome::Unknown(String::new());
                    self.step(&mut state, from, Input::Backend(RegisterEvent::Answer { ticket, outcome }));
                }
            }
            Action::Restart(node) => {
                state.left.restarts -= 1;
                self.restart(&mut state, node);
            }
            Action::Restore => {
                state.left.restores -= 1;
                state.life += 1;
                state.stored.clone_from(&state.backup);
            }
            Action::Doubtful(node) => {
                state.nodes[node].life = state.life;
                self.step(&mut state, node, Input::Backend(RegisterEvent::Link(Link::Doubtful)));
                self.watch_tells(&mut state, node);
            }
            Action::HandOver => {
                state.left.hand_overs -= 1;
                self.hand_over(&mut state);
            }
            Action::State(node) => {
                state.left.states -= 1;
                self.tell_state(&mut state, node);
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
        state.network.sort_by_cached_key(fingerprint);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, state: &State| state.wrong.is_none()),
            Property::sometimes("another leads", |_, state: &State| NodeId::of(state.opened) != NodeId(1)),
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
fn holds(what: &str, model: Search) {
    search::holds(what, model, STATES, MOVED);
}

#[track_caller]
fn fails(what: &str, model: Search, expected: &[Wrong]) {
    search::fails(what, model, CONTROL_STATES, expected);
}

#[track_caller]
fn holds_only_with(safeguard: &str, model: Search, states: usize, switch_off: fn(&mut Search), expected: &[Wrong]) {
    search::holds_only_with(safeguard, model, (states, MOVED), switch_off, expected);
}

/// Without it there were too few states.
const MOVED: &[&str] = &["another leads"];

#[test]
fn one_leads_at_a_time_whatever_comes_late() {
    holds("late messages", Search { budget: Budget { late: 2, unknown: 1, ..NONE }, ..FULL });
}

#[test]
fn one_leads_at_a_time_over_restarts() {
    holds("restarts", Search { budget: Budget { restarts: 2, ..NONE }, ..FULL });
    holds("restarts, packets", Search { budget: Budget { restarts: 1, packets: 2, ..NONE }, ..FULL });
}

#[test]
fn one_leads_at_a_time_over_a_restored_store() {
    holds("restored store, late messages", Search { budget: Budget { restores: 1, late: 1, ..NONE }, ..FULL });
    // Time enough for whoever had waited before the break, and counts that.
    let model = Search { budget: Budget { restores: 1, ..NONE }, horizon: WARM + 80, ..FULL };
    let switch_off = |search: &mut Search| search.safeguards.break_forgets = false;
    holds_only_with("forgetting at a break", model, 450_000, switch_off, &[Wrong::TwoLead]);
}

#[test]
fn one_leads_at_a_time_over_a_store_made_anew_and_restarts() {
    let budget = Budget { restores: 1, restarts: 1, ..NONE };
    let model = Search { budget, backup: Backup::Nothing, ..FULL };
    holds("store made anew", model.clone());
    let model = Search { restartable: &[0], ..model };
    holds_only_with("epochs heard", model, 200_000, |search| search.epochs_heard = false, &[Wrong::EpochWentBack]);
}

/// That it is its turn, and the *prepare* that was given up, may reach the heir at any moment, even when the leader before
/// has the record again: its time counts from its stamp.
#[test]
fn an_heir_told_its_turn_late_is_safe_by_its_stamp() {
    let budget = Budget { late: 1, ..NONE };
    let model = Search { budget, stray_prepare: true, horizon: WARM + L + 30, ..FULL };
    let switch_off = |search: &mut Search| search.safeguards.heirs_stamp = false;
    holds_only_with("the heir's stamp", model, 600_000, switch_off, &[Wrong::TwoLead]);
}

/// The record that is given back names the heir, which may have begun.
#[test]
fn one_leads_at_a_time_over_hand_overs_and_closing() {
    let budget = Budget { hand_overs: 1, closes: 1, ..NONE };
    holds("hand-over, closing, late messages", Search { budget: Budget { late: 1, ..budget }, ..FULL });
    let model = Search { budget, horizon: WARM + L / 2, ..FULL };
    let switch_off = |search: &mut Search| search.safeguards.heir_waited_for = false;
    holds_only_with("waiting for the heir", model, 250_000, switch_off, &[Wrong::TwoLead]);
}

/// The leader goes on by promises.
#[test]
fn one_leads_at_a_time_over_an_outage() {
    let restarts = Budget { restarts: 1, ..NONE };
    let outage = Search { outage_until: WARM + 60, ..FULL };
    without_one_promise(outage.clone(), 100_000);
    without_one_promise(Search { budget: restarts, ..outage.clone() }, 100_000);
    without_one_promise(Search { gateways: 3, outage_until: WARM + 150, ..outage.clone() }, 100_000);
    without_one_promise(Search { gateways: 3, budget: restarts, ..outage }, 300_000);
}

#[track_caller]
fn without_one_promise(model: Search, states: usize) {
    let what = format!("each promise of {} in an outage, restarts: {}", model.gateways, model.budget.restarts);
    let switch_off = |search: &mut Search| search.safeguards.each_candidate_asked = false;
    holds_only_with(&what, model, states, switch_off, &[Wrong::TwoLead]);
}

#[test]
fn one_of_three_leads_at_a_time() {
    holds("three gateways", Search { gateways: 3, budget: Budget { late: 1, ..NONE }, ..FULL });
}

#[test]
fn one_leads_at_a_time_when_the_heir_goes_on() {
    let budget = Budget { restarts: 1, late: 1, ..NONE };
    holds("heir of two", Search { budget, heir: Some(1), ..FULL });
    holds("heir of three", HEIR);
}

#[test]
fn no_epoch_goes_back_though_nobody_hears_an_heir() {
    let budget = Budget { restarts: 1, late: 1, ..NONE };
    holds("unheard heir of two", Search { budget, heir: Some(1), epochs_heard: false, ..FULL });
    holds("unheard heir of three", Search { epochs_heard: false, ..HEIR });
}

#[test]
fn half_of_the_margin_is_found() {
    let timing = LeaseTiming { margin_ns: FULL.timing.margin_ns / 2, ..FULL.timing };
    fails("half of the margin", Search { timing, ..FULL }, &[Wrong::TwoLead]);
}

#[test]
fn receivers_without_epoch_rule_are_found() {
    let model = Search { budget: Budget { packets: 2, ..NONE }, ..FULL };
    let switch_off = |search: &mut Search| search.receivers_fence = false;
    holds_only_with("receivers' epoch rule", model, STATES, switch_off, &[Wrong::OldPacketTaken]);
}

#[test]
fn a_store_that_compares_no_versions_is_found() {
    let budget = Budget { late: 1, ..NONE };
    let model = Search { version_check: false, budget, ..FULL };
    fails("version check", model, &[Wrong::TwoLead, Wrong::EpochWentBack]);
}

#[test]
fn an_unknown_outcome_that_counts_is_found() {
    let safeguards = Safeguards { unknown_moves_nothing: false, ..Safeguards::ALL };
    let budget = Budget { unknown: 1, ..NONE };
    let model = Search { safeguards, budget, ..FULL };
    fails("reading after an unknown outcome", model, &[Wrong::TwoLead, Wrong::EpochWentBack]);
}

#[test]
fn one_candidate_not_asked_is_found() {
    let safeguards = Safeguards { each_candidate_asked: false, ..Safeguards::ALL };
    fails("one candidate's promise", Search { safeguards, gateways: 3, ..FULL }, &[Wrong::TwoLead]);
}

#[test]
fn a_start_without_sitting_out_is_found() {
    let safeguards = Safeguards { sits_out: false, ..Safeguards::ALL };
    let budget = Budget { restarts: 1, ..NONE };
    let model = Search { safeguards, budget, restartable: &[1], ..FULL };
    fails("sitting out", model, &[Wrong::TwoLead, Wrong::EpochWentBack]);
}

/// Three gateways, of which the last is the heir and the first may die.
const HEIR: Search =
    Search { gateways: 3, heir: Some(2), budget: Budget { restarts: 1, states: 1, ..NONE }, restartable: &[0], ..FULL };

/// What a nonce of *prepare* is for: whoever is handed the lead counts its lease from the moment that the record names,
/// however many other questions it has answered since. Its record names that moment instead of a nonce.
#[test]
fn an_heirs_lease_that_counts_from_its_opening_is_found() {
    let safeguards = Safeguards { heirs_stamp: false, ..Safeguards::ALL };
    fails("the heir's stamp", Search { safeguards, ..HEIR }, &[Wrong::TwoLead, Wrong::EpochWentBack]);
}

#[test]
fn an_heir_that_nobody_waits_for_is_found() {
    let safeguards = Safeguards { heir_waited_for: false, ..Safeguards::ALL };
    fails("waiting for the heir", Search { safeguards, ..HEIR }, &[Wrong::TwoLead, Wrong::EpochWentBack]);
}

#[test]
fn an_heir_that_is_replaced_at_once_is_found() {
    let safeguards = Safeguards { heir_stays: false, ..Safeguards::ALL };
    let budget = Budget { restarts: 1, ..NONE };
    fails(
        "the heir that stays",
        Search { safeguards, budget, heard_since: Some(1), ..HEIR },
        &[Wrong::TwoLead, Wrong::EpochWentBack],
    );
}

/// Of a search in which nothing may go wrong, unless it says otherwise.
const STATES: usize = 100_000;
/// What is to be found is found earlier, and then the search ends.
const CONTROL_STATES: usize = 1_500_000;
const NONE: Budget = FULL.budget;
