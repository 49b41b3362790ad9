//! Model of the latch over a queue of places: two or three gateways with the product's own state machines, and a store
//! with sessions. A search begins either when node 1 leads and has renewed, or before any gateway has a session.
//!
//! Events, in any order: time advances to the next moment at which anything changes. A timer that is due fires, or
//! stays late (a pause). A request, an answer, a watch notification or a death notice arrives, late or never. A request
//! or its answer is lost (so one-way partitions are included); its outcome is then reported as unknown, also after a
//! broken connection, and the request may still take effect. The store ends a session without contact; the gateway is
//! notified at any time afterwards, or never. A process restarts in a new session, and its death is announced twice, once
//! or not at all. A gateway hands over, closes, or its threads get stuck. A packet that passed the fence check arrives
//! late. A queued gateway becomes silent until it receives an event; otherwise it sends session pings when they are due,
//! and the store answers them at once. Clocks run at different rates.
//!
//! Violations: one gateway may send while a send of another gateway may be outstanding; an epoch is not above all earlier
//! epochs; a receiver accepts content of an old epoch after a newer one; a session has two places; a leader closes
//! because it lost its place although it still has that place.
//!
//! The store node that ends sessions is informed of contacts with other nodes half a tick later, at most
//! SESSION_TIMEOUT/4. So a session may end after nearly SESSION_TIMEOUT without contact although an epoch was just claimed
//! in it: no forwarded request extends a session at once.
//!
//! Time, the number of faults and the number of states bound the space. The search must find a violation with each
//! safeguard switched off, except for three: the store's checks of the place and of the epoch's version when an epoch is
//! claimed, and the notification of a session's end. In the searched space, timely session contact replaces these three.
//! All switches are in the store, its client or the gateway around the core: the core itself is the product's.

mod client;
mod network;
mod store;
mod tests;

use mdgw_election::{
    core::{CloseReason, Core as _, Input, Output, Progress},
    identity::DeathNotice,
    lease::OnSuspended,
    record::ConfigVersion,
    session_latch::{SessionEvent, SessionLatch, SessionLatchConfig, SessionRequest},
    timing::LeaseTiming,
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};
use stateright::{Model, Property};

use self::{
    network::fingerprint,
    store::{LatchStore, Removal, SESSION_TIMEOUT, Session, SessionId, member},
};
use super::search::{self, SafetyModel};

/// Parameters of a search.
#[derive(Clone, Debug)]
struct LatchModel {
    gateways: usize,
    timing: LeaseTiming,
    on_suspended: OnSuspended,
    /// Session timeout in the gateways' configuration; the store uses [`SESSION_TIMEOUT`].
    session_timeout_ns: u64,
    /// The store lets only a session with a place claim an epoch.
    checks_place: bool,
    /// The store replaces only the expected version of the epoch.
    checks_version: bool,
    /// The store executes the requests of a session in order.
    requests_in_order: bool,
    /// Longest delay until the store node that ends sessions is informed of a contact.
    session_end_delay: u64,
    /// A client whose session has ended opens a new session with a new place, without notifying the gateway.
    rejoins_silently: bool,
    /// The fence's deadline counts from the time at which the renewal was sent, not from its answer.
    deadline_from_send: bool,
    /// A gateway that hands over or closes waits for its outstanding sends.
    drains_sends: bool,
    receivers_check_epochs: bool,
    observes_epochs: bool,
    /// Rate of each gateway's clock, in hundredths of true time.
    rates: [u64; 3],
    budget: FaultBudget,
    start: Start,
    /// End of the search, in true time.
    horizon: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// No gateway has a session.
    Cold,
    /// Node 1 leads; the other nodes are about to join.
    Warm,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct FaultBudget {
    /// Messages that may still be in flight when time advances. All other messages arrive before, or never.
    late: u8,
    /// Broken connections.
    connection_breaks: u8,
    /// Ended sessions.
    ends: u8,
    /// Queued gateways that become silent.
    silences: u8,
    restarts: u8,
    hand_overs: u8,
    closes: u8,
    stuck: u8,
    packets: u8,
}

/// Times without a unit. Two thirds of a session are 100. In that time, clocks of rate 99 and 101 drift apart by 2. A send
/// takes up to 4.
const ALL_SAFEGUARDS: LatchModel = LatchModel {
    gateways: 2,
    timing: LeaseTiming { lease_ns: 100, renew_ns: 30, margin_ns: 8, send_ns_max: 4, rate_error_ppm: 10_000 },
    on_suspended: OnSuspended::Hold,
    session_timeout_ns: SESSION_TIMEOUT,
    checks_place: true,
    checks_version: true,
    requests_in_order: true,
    session_end_delay: SESSION_TIMEOUT / 4,
    rejoins_silently: false,
    deadline_from_send: true,
    drains_sends: true,
    receivers_check_epochs: true,
    observes_epochs: false,
    rates: [99, 101, 101],
    budget: FaultBudget {
        late: 0,
        connection_breaks: 0,
        ends: 0,
        silences: 0,
        restarts: 0,
        hand_overs: 0,
        closes: 0,
        stuck: 0,
        packets: 0,
    },
    start: Start::Warm,
    horizon: WARM_UP_END + 2 * SESSION_TIMEOUT,
};

/// End of the warm-up: node 1 leads.
const WARM_UP_END: u64 = 95;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: Vec<Node>,
    store: LatchStore,
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
    DuplicatePlace,
    LostOwnPlace,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    core: SessionLatch,
    incarnation: u64,
    /// Number of the present session among all sessions of this gateway.
    session: u32,
    /// The place of that session, as far as the client knows.
    place: Option<u32>,
    fence: Option<(Epoch, MonoNs)>,
    /// Latest end of sends of the last leadership.
    sends_end: MonoNs,
    is_draining: bool,
    /// Its last leadership ended because its place in the queue was gone.
    has_lost_place: bool,
    is_silent: bool,
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
    /// A request from a session.
    Request {
        from: SessionId,
        placed: PlacedRequest,
        is_awaited: bool,
    },
    /// An event to a session.
    Event {
        to: SessionId,
        event: SessionEvent,
    },
    Died {
        to: usize,
        notice: DeathNotice,
    },
}

/// A request, and the place of its session at that time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PlacedRequest {
    place: Option<u32>,
    request: SessionRequest,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Advance(Option<usize>),
    Time(usize),
    Arrive(usize),
    Break(usize),
    End(usize),
    Silence(usize),
    Restart(usize),
    HandOver(usize),
    Close(usize),
    Stuck(usize),
    Drained(usize),
    Send(usize),
    Receive(usize),
}

impl LatchModel {
    fn clock(&self, node: usize, now: u64) -> MonoNs {
        // Each clock has its own offset.
        MonoNs(1_000 * (node as u64 + 1) + now * self.rates[node] / 100)
    }

    fn true_time(&self, node: usize, at: MonoNs) -> u64 {
        (at.0.saturating_sub(1_000 * (node as u64 + 1)) * 100).div_ceil(self.rates[node])
    }

    fn latch(&self, node: usize, incarnation: u64, own_epoch: Epoch) -> SessionLatch {
        SessionLatch::new(SessionLatchConfig {
            member: member(node, incarnation),
            timing: self.timing,
            configuration: ConfigVersion::default(),
            on_suspended: self.on_suspended,
            own_epoch,
        })
    }

    fn step(&self, state: &mut State, node: usize, input: Input<SessionEvent>) {
        let at = self.clock(node, state.now);
        state.nodes[node].is_silent = false;
        for output in state.nodes[node].core.step(at, input) {
            self.apply_output(state, node, output);
        }
        self.check(state);
    }

    fn apply_output(&self, state: &mut State, node: usize, output: Output<SessionRequest>) {
        let at = self.clock(node, state.now);
        match output {
            Output::Open { epoch, deadline } => {
                if epoch <= state.highest_opened {
                    state.violation.get_or_insert(Violation::EpochRegressed);
                }
                state.highest_opened = state.highest_opened.max(epoch);
                state.nodes[node].fence = Some((epoch, deadline));
                for other in (0..self.gateways).filter(|other| self.observes_epochs && *other != node) {
                    self.step(state, other, Input::ObservedEpoch(epoch));
                }
            }
            Output::Renew { deadline } => {
                let from_answer = at.plus(self.timing.session_usable_ns(self.session_timeout_ns));
                if let Some(fence) = &mut state.nodes[node].fence {
                    fence.1 = if self.deadline_from_send { deadline } else { from_answer };
                }
            }
            Output::Close { reason, .. } => {
                let closed = &mut state.nodes[node];
                closed.has_lost_place = reason == CloseReason::Lost;
                if let Some((_, deadline)) = closed.fence.take() {
                    closed.sends_end = deadline.min(at).plus(self.timing.send_ns_max);
                }
                let has_place = state.store.place_of((node, closed.session)).is_some();
                if reason == CloseReason::Lost && has_place && self.requests_in_order {
                    state.violation.get_or_insert(Violation::LostOwnPlace);
                }
            }
            // Its place is gone, so there is nothing to give up and the moment changes nothing.
            Output::Drain if state.nodes[node].has_lost_place => {
                self.step(state, node, Input::Drained);
            }
            Output::Drain => state.nodes[node].is_draining = true,
            Output::Request(request) => self.send_request(state, node, request),
            Output::Peer { .. } | Output::Connection(_) | Output::Notice(_) | Output::PeerOutputEnded(_) => {}
        }
    }

    // ---- checked properties ----

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

    /// The next time at which anything but a session ping happens.
    fn next_moment(&self, state: &State) -> Option<u64> {
        let of_nodes = state.nodes.iter().enumerate().flat_map(|(index, node)| {
            let fence = node.fence.map(|(_, deadline)| deadline);
            let deadline = node.core.next_deadline().filter(|_| self.next_ping(state, index).is_none());
            let times = [deadline, fence, Some(self.sends_end(node))];
            times.into_iter().flatten().map(move |at| self.true_time(index, at))
        });
        let sessions = state.store.sessions.iter().filter(|_| state.left.ends > 0);
        let ends = sessions.map(|session| session.may_end(state.now, self.session_end_delay));
        of_nodes.chain(ends).filter(|at| *at > state.now && *at <= self.horizon).min()
    }

    fn is_due(&self, state: &State, node: usize) -> bool {
        state.nodes[node].core.next_deadline().is_some_and(|at| at <= self.clock(node, state.now))
    }

    /// The time of the node's next timer, if that only sends a session ping.
    fn next_ping(&self, state: &State, node: usize) -> Option<u64> {
        let core = &state.nodes[node].core;
        let is_ping = |output: &Output<SessionRequest>| matches!(output, Output::Request(SessionRequest::KeepAlive(_)));
        let at = core.next_deadline().filter(|_| state.nodes[node].fence.is_none())?;
        let outputs = core.clone().step(at, Input::Time);
        (!outputs.is_empty() && outputs.iter().all(is_ping)).then(|| self.true_time(node, at))
    }

    /// Advances time to `moment`. Gateways that are not silent ping their sessions until then.
    fn advance_to(&self, state: &mut State, moment: u64) {
        let next = |state: &State| {
            let not_silent = (0..self.gateways).filter(|node| !state.nodes[*node].is_silent);
            not_silent.filter_map(|node| Some((self.next_ping(state, node)?, node))).min()
        };
        while let Some((at, node)) = next(state).filter(|(at, _)| *at <= moment) {
            state.now = at.max(state.now);
            self.step(state, node, Input::Time);
        }
        state.now = moment;
    }

    fn initial_state(&self) -> State {
        let node = |node: usize| Node {
            core: self.latch(node, 1, Epoch::default()),
            incarnation: 1,
            session: 0,
            place: None,
            fence: None,
            sends_end: MonoNs(0),
            is_draining: false,
            has_lost_place: false,
            is_silent: false,
        };
        let mut state = State {
            now: 0,
            nodes: (0..self.gateways).map(node).collect(),
            store: LatchStore::default(),
            network: Vec::new(),
            left: self.budget,
            packets: Vec::new(),
            highest_received: Epoch::default(),
            highest_opened: Epoch::default(),
            violation: None,
        };
        match self.start {
            Start::Cold => (0..self.gateways).for_each(|node| self.begin(&mut state, node)),
            Start::Warm => self.warm_up(&mut state),
        }
        state
    }

    /// Runs without faults until node 1 leads and has renewed: messages arrive at once, timers fire in time.
    fn warm_up(&self, state: &mut State) {
        self.begin(state, 0);
        for now in 0..=WARM_UP_END {
            state.now = now;
            if now == WARM_UP_END {
                (1..self.gateways).for_each(|node| self.begin(state, node));
            }
            for node in (0..self.gateways).filter(|node| self.is_due(state, *node)).collect::<Vec<_>>() {
                self.step(state, node, Input::Time);
            }
            while !state.network.is_empty() {
                let message = state.network.remove(0);
                self.arrive(state, message.content);
            }
        }
        assert!(self.may_send(state, 0).is_some(), "node 1 leads by now");
    }

    /// No send of the node is outstanding any more, and the election thread is notified.
    fn drained(&self, state: &mut State, node: usize) {
        state.nodes[node].is_draining = false;
        if self.drains_sends {
            state.nodes[node].sends_end = MonoNs(0);
        }
        self.step(state, node, Input::Drained);
    }
}

impl Model for LatchModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial_state()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        let left = &state.left;
        let nodes = || 0..self.gateways;
        let in_flight = || state.network.iter().enumerate();
        let next = in_flight().filter(|(_, message)| !self.requests_in_order || state.is_next_in_session(message));
        actions.extend(next.map(|(index, _)| Action::Arrive(index)));
        actions.extend(nodes().filter(|node| self.is_due(state, *node)).map(Action::Time));
        actions.extend(nodes().filter(|node| state.nodes[*node].is_draining).map(Action::Drained));
        actions.extend((0..state.packets.len()).map(Action::Receive));
        if left.ends > 0 {
            let may_end = |session: &Session| {
                session.may_end(state.now, self.session_end_delay) <= state.now
                    && state.store.place_of(session.id).is_some()
            };
            let sessions = state.store.sessions.iter().enumerate();
            actions.extend(sessions.filter(|(_, session)| may_end(session)).map(|(index, _)| Action::End(index)));
        }
        if left.connection_breaks > 0 {
            actions.extend(nodes().map(Action::Break));
        }
        if left.silences > 0 {
            let is_queued_and_not_silent =
                |node: &usize| state.nodes[*node].fence.is_none() && !state.nodes[*node].is_silent;
            actions.extend(nodes().filter(is_queued_and_not_silent).map(Action::Silence));
        }
        if left.restarts > 0 {
            actions.extend(nodes().map(Action::Restart));
        }
        let leaders = || nodes().filter(|node| self.may_send(state, *node).is_some());
        if left.packets > 0 {
            actions.extend(leaders().map(Action::Send));
        }
        if left.hand_overs > 0 {
            actions.extend(leaders().map(Action::HandOver));
        }
        if left.stuck > 0 {
            actions.extend(leaders().map(Action::Stuck));
        }
        if left.closes > 0 {
            actions.push(Action::Close(0));
        }
        if self.next_moment(state).is_some() {
            actions.push(Action::Advance(None));
            if left.late > 0 {
                let in_time = in_flight().filter(|(_, message)| !message.is_late && !message.content.is_reliable());
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
                let stays = |message: &InFlight| message.is_late || message.content.is_reliable();
                let lost = state.network.iter().filter(|message| !stays(message));
                let lost = lost.filter_map(|message| message.content.awaited_request()).collect();
                state.network.retain(stays);
                self.advance_to(&mut state, self.next_moment(last)?);
                self.check(&mut state);
                self.time_out_requests(&mut state, lost);
            }
            Action::Silence(node) => {
                state.left.silences -= 1;
                state.nodes[node].is_silent = true;
            }
            Action::Time(node) => self.step(&mut state, node, Input::Time),
            Action::Arrive(index) => {
                let message = state.network.remove(index);
                self.arrive(&mut state, message.content);
            }
            Action::Break(node) => {
                state.left.connection_breaks -= 1;
                self.break_connection(&mut state, node);
            }
            Action::End(index) => {
                state.left.ends -= 1;
                self.end_session(&mut state, index);
            }
            Action::Restart(node) => {
                state.left.restarts -= 1;
                self.restart(&mut state, node);
            }
            Action::HandOver(node) => {
                state.left.hand_overs -= 1;
                self.step(&mut state, node, Input::HandOver(None));
            }
            Action::Close(node) => {
                state.left.closes -= 1;
                self.step(&mut state, node, Input::Close);
            }
            Action::Stuck(node) => {
                state.left.stuck -= 1;
                self.step(&mut state, node, Input::Progress(Progress::PoolStuck));
            }
            Action::Drained(node) => self.drained(&mut state, node),
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
        // The order of in-flight messages has no meaning, since requests have ids.
        state.network.sort_by_cached_key(fingerprint);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, state: &State| state.violation.is_none()),
            Property::sometimes(SOMEBODY_LEADS, |_, state: &State| state.nodes.iter().any(|node| node.fence.is_some())),
            Property::sometimes(LEADER_AFTER_SESSION_END, |_, state: &State| state.moved_after(Removal::Ended)),
            Property::sometimes(LEADER_AFTER_DEATH_NOTICE, |_, state: &State| state.moved_after(Removal::Removed)),
            Property::sometimes(LEADER_AFTER_HAND_OVER, |_, state: &State| state.moved_after(Removal::Left)),
        ]
    }
}

const SOMEBODY_LEADS: &str = "a gateway leads";
const LEADER_AFTER_SESSION_END: &str = "another gateway leads after the end of a session";
const LEADER_AFTER_DEATH_NOTICE: &str = "another gateway leads after a death notice";
const LEADER_AFTER_HAND_OVER: &str = "another gateway leads after a hand-over";

impl SafetyModel for LatchModel {
    type Violation = Violation;

    fn violation(state: &State) -> Option<Violation> {
        state.violation
    }
}

#[track_caller]
fn assert_safe(what: &str, model: LatchModel, reached: &[&str]) {
    search::assert_safe(what, model, STATES, reached);
}

#[track_caller]
fn assert_violates(what: &str, model: LatchModel, expected: &[Violation]) {
    search::assert_violates(what, model, STATES, expected);
}

/// Number of generated states of a search: one that must find no violation, or at most those until a violation is found.
const STATES: usize = 600_000;
