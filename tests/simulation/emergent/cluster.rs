//! Simulates members of one group with their network, clocks and sends on one thread. The seed determines the run.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use mdgw_captures::random::Random;
use mdgw_election::{
    core::{Core as _, Input, Output, Role, View},
    emergent::{
        BootstrapMode, Emergent, EmergentConfig, OutgoingMessage, Safeguard, message::Envelope, timing::EmergentTiming,
    },
    fitness::Eligibility,
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    record::ConfigVersion,
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmergentSetup {
    pub(crate) members: u8,
    pub(crate) minimum_size: usize,
    pub(crate) timing: EmergentTiming,
    /// The rule that is switched off.
    pub(crate) without: Option<Safeguard>,
    /// Longest time from the fence's check to the return of the send, ns. The product's timing allows for
    /// `timing.send_ns_max`.
    pub(crate) send_ns_max: u64,
    pub(crate) faults: Faults,
}

/// Rates of faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Shares of datagrams that are lost or duplicated.
    pub(crate) loss_share: f64,
    pub(crate) duplicate_share: f64,
    /// Mean delay of a datagram, and the longer mean delay of one datagram in fifty, ns.
    pub(crate) delay_ns: u64,
    pub(crate) long_delay_ns: u64,
    /// Mean time between two kills, cuts, pauses, hand-overs and stops, ns; 0: none.
    pub(crate) kill_every_ns: u64,
    pub(crate) cut_every_ns: u64,
    pub(crate) pause_every_ns: u64,
    pub(crate) hand_over_every_ns: u64,
    pub(crate) stop_every_ns: u64,
    /// Mean length of a cut, ns.
    pub(crate) cut_ns: u64,
    /// Share of closings at which a send is outstanding until its longest possible end.
    pub(crate) stalled_send_share: f64,
    /// Mean time between two forged packets, each with an epoch slightly above the highest accepted one, ns; 0: none.
    pub(crate) forge_every_ns: u64,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        loss_share: 0.0,
        duplicate_share: 0.0,
        delay_ns: 100_000,
        long_delay_ns: 200_000,
        kill_every_ns: 0,
        cut_every_ns: 0,
        pause_every_ns: 0,
        hand_over_every_ns: 0,
        stop_every_ns: 0,
        cut_ns: 0,
        stalled_send_share: 0.0,
        forge_every_ns: 0,
    };
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The sends of two members may overlap.
    TwoLeaders { at_ns: u64, nodes: [u8; 2] },
    /// An epoch was opened twice.
    EpochReused { at_ns: u64, epoch: Epoch },
}

#[derive(Debug)]
struct Node {
    core: Option<Box<Emergent>>,
    incarnation: u64,
    /// The highest epoch in its log and state file.
    own_epoch: Epoch,
    /// Clock: `offset + t (1 + ppm / 10^6)`.
    offset_ns: u64,
    rate_ppm: i64,
    paused_until_ns: u64,
    /// Epoch of the open fence, and its deadline on the node's clock.
    fence: Option<(Epoch, MonoNs)>,
    /// Until when a send that passed the fence before it closed is outstanding, on the node's clock.
    sends_end_at: MonoNs,
    /// Requests to drain. Only the last one is answered, when all sends have ended.
    drains: u64,
    /// Number of the current timer; earlier timers are void.
    timer: u64,
}

#[derive(Debug)]
enum Event {
    Deliver {
        to: usize,
        incarnation: u64,
        envelope: Box<Envelope>,
    },
    Timer {
        node: usize,
        timer: u64,
    },
    Drained {
        node: usize,
        incarnation: u64,
        drain: u64,
    },
    /// A packet that passed the fence arrives at the receiver.
    Packet(Epoch),
    /// A member has observed an epoch on the wire.
    Observe {
        node: usize,
        epoch: Epoch,
    },
    /// Every member with an open fence sends a packet.
    Probe,
    Died {
        to: usize,
        notice: DeathNotice,
    },
    Start(usize),
    /// A closed member ends, and starts again.
    End(usize),
    Heal(usize, usize),
    Fault(Fault),
}

/// A fault at a random time.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Cut,
    Pause,
    HandOver,
    Stop,
    /// A forged packet with an epoch slightly above the highest accepted one.
    Forge,
}

#[derive(Debug)]
pub(crate) struct EmergentCluster {
    setup: EmergentSetup,
    random: Random,
    now_ns: u64,
    nodes: Vec<Node>,
    /// By time, then by a number that keeps events of one time apart.
    queue: BTreeMap<(u64, u64), Event>,
    queued: u64,
    /// Cut directions: (from, to).
    cuts: BTreeSet<(usize, usize)>,
    /// The highest epoch that the receiver has accepted.
    accepted_epoch: Epoch,
    opened_epochs: BTreeSet<Epoch>,
    pub(crate) openings: u64,
    /// Whether two members with an open fence are a violation: the minimum size is more than half of all members.
    excludes_two_leaders: bool,
    pub(crate) violation: Option<Violation>,
    /// No more random faults are injected.
    faults_stopped: bool,
}

impl EmergentCluster {
    pub(crate) fn new(seed: u64, setup: EmergentSetup) -> Self {
        let mut random = Random::new(seed);
        let rate_max = u64::from(setup.timing.rate_error_ppm);
        let nodes = (0..setup.members)
            .map(|_| Node {
                core: None,
                incarnation: 0,
                own_epoch: Epoch::default(),
                offset_ns: 1_000_000_000 + random.below(1 << 40),
                rate_ppm: signed(random.below(2 * rate_max + 1)) - signed(rate_max),
                paused_until_ns: 0,
                fence: None,
                sends_end_at: MonoNs(0),
                drains: 0,
                timer: 0,
            })
            .collect();
        let mut cluster = Self {
            setup,
            random,
            now_ns: 0,
            nodes,
            queue: BTreeMap::new(),
            queued: 0,
            cuts: BTreeSet::new(),
            accepted_epoch: Epoch::default(),
            opened_epochs: BTreeSet::new(),
            openings: 0,
            excludes_two_leaders: 2 * setup.minimum_size > usize::from(setup.members),
            violation: None,
            faults_stopped: false,
        };
        for node in 0..cluster.nodes.len() {
            let start_ns = cluster.random.below(setup.timing.failure_ns);
            cluster.after(start_ns, Event::Start(node));
        }
        cluster.after(100_000, Event::Probe);
        for fault in [Fault::Kill, Fault::Cut, Fault::Pause, Fault::HandOver, Fault::Stop, Fault::Forge] {
            cluster.schedule(fault);
        }
        cluster
    }

    /// Runs for `ns`, or until a violation.
    pub(crate) fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while self.violation.is_none() {
            let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= until_ns) else {
                self.now_ns = until_ns;
                return;
            };
            self.now_ns = entry.key().0;
            let event = entry.remove();
            self.handle_event(event);
        }
    }

    /// Ends all faults and repairs everything.
    pub(crate) fn stop_faults(&mut self) {
        self.faults_stopped = true;
        self.cuts.clear();
        self.setup.faults = Faults::NONE;
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until_ns = 0;
            self.start(node);
        }
    }

    /// The only member that may send, if all members are on one list.
    pub(crate) fn sole_leader(&self) -> Option<NodeId> {
        let mut leading = (0..self.nodes.len()).filter(|node| self.may_send(*node));
        let (leader, other) = (leading.next()?, leading.next());
        let all = self.nodes.iter().filter_map(|node| node.core.as_ref());
        let is_one_list = all.map(|core| core.view()).all(|view| {
            view.participants.len() == self.nodes.len()
                && view.leader.map(|member| member.node) == Some(node_of(leader))
        });
        (other.is_none() && is_one_list).then(|| node_of(leader))
    }

    /// Each member's role, leader and list, for messages.
    pub(crate) fn describe(&self) -> String {
        let views = self.nodes.iter().map(|node| node.core.as_ref().map(|core| core.view()));
        let text = |view: Option<View>| match view {
            Some(View { role, leader, participants, .. }) => {
                let participants: Vec<u8> = participants.keys().map(|node| node.0).collect();
                format!("{role:?}, leader {:?}, list {participants:?}", leader.map(|leader| leader.node.0))
            }
            None => "down".to_owned(),
        };
        views.map(text).collect::<Vec<_>>().join("; ")
    }

    /// Whether receivers accept the packets of a member that may send.
    pub(crate) fn leader_is_received(&self) -> bool {
        self.open_epoch() >= Some(self.accepted_epoch)
    }

    /// The highest epoch of an open fence.
    pub(crate) fn open_epoch(&self) -> Option<Epoch> {
        let open = (0..self.nodes.len()).filter(|node| self.may_send(*node));
        open.filter_map(|node| Some(self.nodes[node].fence?.0)).max()
    }

    /// Every running member observes that epoch.
    pub(crate) fn observe(&mut self, epoch: Epoch) {
        for node in 0..self.nodes.len() {
            self.step(node, Input::ObservedEpoch(epoch));
        }
    }

    /// Kills that member for good, without a notice.
    pub(crate) fn kill(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        state.core = None;
        state.fence = None;
        state.sends_end_at = MonoNs(0);
    }

    fn start(&mut self, index: usize) {
        let EmergentSetup { members, minimum_size, timing, without, .. } = self.setup;
        let node = &mut self.nodes[index];
        if node.core.is_some() {
            return;
        }
        node.incarnation += 1;
        let core = Emergent::new(EmergentConfig {
            member: Member {
                node: node_of(index),
                name: NodeName::new(&format!("n{}", index + 1)).expect("a plain name"),
                incarnation: Incarnation(node.incarnation),
            },
            address: address(index),
            seeds: (0..usize::from(members)).map(address).collect(),
            bootstrap: if index == 0 { BootstrapMode::Bootstrap } else { BootstrapMode::JoinOnly },
            join_attempts: 3,
            minimum_size,
            timing,
            own_epoch: node.own_epoch,
            configuration: ConfigVersion::default(),
            allow_split: true,
        })
        .expect("a sound configuration");
        let core = without.into_iter().fold(core, Emergent::without);
        node.core = Some(Box::new(core));
        self.step(index, Input::Eligibility(Eligibility::Eligible));
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.queued += 1;
        self.queue.insert((self.now_ns + ns.max(1), self.queued), event);
    }

    fn schedule(&mut self, fault: Fault) {
        let faults = &self.setup.faults;
        let mean_ns = match fault {
            Fault::Kill => faults.kill_every_ns,
            Fault::Cut => faults.cut_every_ns,
            Fault::Pause => faults.pause_every_ns,
            Fault::HandOver => faults.hand_over_every_ns,
            Fault::Stop => faults.stop_every_ns,
            Fault::Forge => faults.forge_every_ns,
        };
        if mean_ns > 0 {
            let ns = self.random.exponential(mean_ns);
            self.after(ns, Event::Fault(fault));
        }
    }

    fn clock(&self, node: usize) -> MonoNs {
        let Node { offset_ns, rate_ppm, .. } = self.nodes[node];
        MonoNs(offset_ns + scaled(self.now_ns, rate_ppm))
    }

    /// True time until that node's clock shows `at`, ns.
    fn true_ns_until(&self, node: usize, at: MonoNs) -> u64 {
        let left = i128::from(at.since(self.clock(node)));
        let true_ns = left * 1_000_000 / (1_000_000 + i128::from(self.nodes[node].rate_ppm));
        u64::try_from(true_ns).expect("time fits") + u64::from(left > 0)
    }

    fn may_send(&self, node: usize) -> bool {
        self.nodes[node].fence.is_some_and(|(_, deadline)| self.clock(node) < deadline)
    }

    fn handle_event(&mut self, event: Event) {
        let paused_node = match &event {
            Event::Deliver { to: node, .. }
            | Event::Timer { node, .. }
            | Event::Drained { node, .. }
            | Event::Observe { node, .. }
            | Event::Died { to: node, .. } => Some(*node),
            _ => None,
        };
        let remaining_ns = paused_node.map_or(0, |node| self.nodes[node].paused_until_ns.saturating_sub(self.now_ns));
        if remaining_ns > 0 {
            return self.after(remaining_ns, event);
        }
        match event {
            Event::Deliver { to, incarnation, envelope } => {
                if self.nodes[to].incarnation == incarnation {
                    self.step(to, Input::Backend(*envelope));
                }
            }
            Event::Timer { node, timer } => {
                if self.nodes[node].timer == timer {
                    self.step(node, Input::Time);
                }
            }
            Event::Drained { node, incarnation, drain } => {
                if (self.nodes[node].incarnation, self.nodes[node].drains) == (incarnation, drain) {
                    self.step(node, Input::Drained);
                }
            }
            Event::Packet(epoch) => self.receive(epoch),
            Event::Observe { node, epoch } => self.step(node, Input::ObservedEpoch(epoch)),
            Event::Probe => self.probe(),
            Event::Died { to, notice } => self.step(to, Input::Died(notice)),
            Event::Start(node) => self.start(node),
            Event::End(node) => self.end(node),
            Event::Heal(from, to) => drop(self.cuts.remove(&(from, to))),
            Event::Fault(_) if self.faults_stopped => {}
            Event::Fault(fault) => {
                self.inject(fault);
                self.schedule(fault);
            }
        }
    }

    fn inject(&mut self, fault: Fault) {
        let (node, failure_ns) = (self.random_node(), self.setup.timing.failure_ns);
        match fault {
            Fault::Kill => {
                let notice = self.death_notice(node);
                self.kill(node);
                if self.random.chance(0.5) {
                    for to in 0..self.nodes.len() {
                        let delay_ns = self.delay_ns();
                        self.after(delay_ns, Event::Died { to, notice });
                    }
                }
                let down_ns = self.random.exponential(failure_ns);
                self.after(down_ns, Event::Start(node));
            }
            Fault::Cut => {
                // One direction, both, or a member from all others.
                let other = self.random_node();
                let cut_ns = self.random.exponential(self.setup.faults.cut_ns);
                let all: Vec<usize> = (0..self.nodes.len()).collect();
                let directions: Vec<(usize, usize)> = match self.random.below(3) {
                    0 => vec![(node, other)],
                    1 => vec![(node, other), (other, node)],
                    _ => all.into_iter().flat_map(|other| [(node, other), (other, node)]).collect(),
                };
                for (from, to) in directions.into_iter().filter(|(from, to)| from != to) {
                    self.cuts.insert((from, to));
                    self.after(cut_ns, Event::Heal(from, to));
                }
            }
            Fault::Pause => {
                let pause_ns = self.random.exponential(failure_ns);
                self.nodes[node].paused_until_ns = self.now_ns + pause_ns;
            }
            Fault::HandOver => {
                if let Some(leader) = (0..self.nodes.len()).find(|node| self.may_send(*node)) {
                    self.step(leader, Input::HandOver(None));
                }
            }
            Fault::Stop => {
                self.step(node, Input::Close);
                let down_ns = self.random.exponential(failure_ns);
                self.after(down_ns, Event::End(node));
            }
            Fault::Forge => {
                let count = self.accepted_epoch.count() + self.random.below(2);
                let node = u8::try_from(self.random.below(256)).expect("below 256");
                self.receive(Epoch::new(count, node));
            }
        }
    }

    /// The process ends when its election has, and is started again.
    fn end(&mut self, node: usize) {
        let Some(core) = &self.nodes[node].core else { return };
        if core.view().role != Role::Closed || self.nodes[node].sends_end_at > self.clock(node) {
            return self.after(self.setup.timing.heartbeat_ns, Event::End(node));
        }
        self.kill(node);
        self.start(node);
    }

    fn death_notice(&self, node: usize) -> DeathNotice {
        let Node { fence, incarnation, .. } = self.nodes[node];
        let epoch = fence.map_or_else(Epoch::default, |(epoch, _)| epoch);
        DeathNotice { holder: node_of(node), incarnation: Incarnation(incarnation), epoch }
    }

    fn random_node(&mut self) -> usize {
        usize::try_from(self.random.below(self.nodes.len() as u64)).expect("few nodes")
    }

    fn delay_ns(&mut self) -> u64 {
        let Faults { delay_ns, long_delay_ns, .. } = self.setup.faults;
        let mean_ns = if self.random.chance(0.02) { long_delay_ns } else { delay_ns };
        10_000 + self.random.exponential(mean_ns)
    }

    /// Every member with an open fence sends a packet. Some packets are delayed for long below the socket.
    fn probe(&mut self) {
        for node in 0..self.nodes.len() {
            if self.may_send(node)
                && let Some((epoch, _)) = self.nodes[node].fence
            {
                let is_late = !self.faults_stopped && self.random.chance(0.02);
                let mean_ns = if is_late { 2 * self.setup.timing.failure_ns } else { 20_000 };
                let delay_ns = self.random.exponential(mean_ns);
                self.after(delay_ns, Event::Packet(epoch));
            }
        }
        self.after(self.setup.timing.heartbeat_ns / 4, Event::Probe);
    }

    fn receive(&mut self, epoch: Epoch) {
        if epoch <= self.accepted_epoch {
            return;
        }
        self.accepted_epoch = epoch;
        // Members receive the group too, each a moment later. One that is down finds the epoch in the log that it copies
        // before it is eligible again.
        for node in 0..self.nodes.len() {
            self.nodes[node].own_epoch = self.nodes[node].own_epoch.max(epoch);
            let delay_ns = self.random.exponential(50_000);
            self.after(delay_ns, Event::Observe { node, epoch });
        }
    }

    fn step(&mut self, index: usize, input: Input<Envelope>) {
        let now = self.clock(index);
        let Some(core) = &mut self.nodes[index].core else { return };
        let outputs = core.step(now, input);
        let next = core.next_deadline();
        for output in outputs {
            self.apply_output(index, output);
        }
        self.nodes[index].timer += 1;
        let timer = self.nodes[index].timer;
        if let Some(next) = next {
            // Threads wake up late, never early.
            let delay_ns = self.true_ns_until(index, next) + self.random.exponential(20_000);
            self.after(delay_ns, Event::Timer { node: index, timer });
        }
    }

    fn apply_output(&mut self, index: usize, output: Output<OutgoingMessage>) {
        let at_ns = self.now_ns;
        match output {
            Output::Open { epoch, deadline } => {
                self.openings += 1;
                if !self.opened_epochs.insert(epoch) {
                    self.violation.get_or_insert(Violation::EpochReused { at_ns, epoch });
                }
                let node = &mut self.nodes[index];
                node.own_epoch = node.own_epoch.max(epoch);
                node.fence = Some((epoch, deadline));
                self.check_overlap();
            }
            Output::Renew { deadline } => {
                if let Some(fence) = &mut self.nodes[index].fence {
                    fence.1 = deadline;
                }
                self.check_overlap();
            }
            Output::Close { .. } => self.close(index),
            Output::Drain => {
                let sends_ns = self.true_ns_until(index, self.nodes[index].sends_end_at);
                let drain_ns = sends_ns + self.random.exponential(50_000);
                let node = &mut self.nodes[index];
                node.drains += 1;
                let (incarnation, drain) = (node.incarnation, node.drains);
                self.after(drain_ns, Event::Drained { node: index, incarnation, drain });
            }
            Output::Request(outgoing) => self.send(index, &outgoing),
            Output::Peer { .. } | Output::Connection(_) | Output::Notice(_) | Output::PeerOutputEnded(_) => {}
        }
    }

    fn close(&mut self, index: usize) {
        let is_stalled = self.random.chance(self.setup.faults.stalled_send_share);
        let send_ns = self.random.exponential(20_000);
        let now = self.clock(index);
        let send_ns_max = self.setup.send_ns_max;
        let node = &mut self.nodes[index];
        if let Some((_, deadline)) = node.fence.take() {
            let latest = deadline.plus(send_ns_max);
            let until = if is_stalled { latest } else { now.plus(send_ns).min(latest) };
            node.sends_end_at = node.sends_end_at.max(until);
        }
    }

    fn send(&mut self, from: usize, outgoing: &OutgoingMessage) {
        let Faults { loss_share, duplicate_share, .. } = self.setup.faults;
        let to = index_of(outgoing.to);
        for _ in 0..1 + u32::from(self.random.chance(duplicate_share)) {
            if self.random.chance(loss_share) || self.cuts.contains(&(from, to)) {
                continue;
            }
            let (delay_ns, incarnation) = (self.delay_ns(), self.nodes[to].incarnation);
            self.after(delay_ns, Event::Deliver { to, incarnation, envelope: outgoing.envelope.clone() });
        }
    }

    fn check_overlap(&mut self) {
        // A packet that passes the fence check just before the deadline is sent within `send_ns_max`.
        let send_ns_max = self.setup.send_ns_max;
        let sends = |node: &usize| {
            let (now, state) = (self.clock(*node), &self.nodes[*node]);
            now < state.sends_end_at || state.fence.is_some_and(|(_, deadline)| now < deadline.plus(send_ns_max))
        };
        let sending: Vec<usize> = (0..self.nodes.len()).filter(sends).collect();
        if self.excludes_two_leaders
            && let [first, second, ..] = sending[..]
        {
            let nodes = [node_of(first).0, node_of(second).0];
            self.violation.get_or_insert(Violation::TwoLeaders { at_ns: self.now_ns, nodes });
        }
    }
}

fn node_of(index: usize) -> NodeId {
    NodeId(u8::try_from(index + 1).expect("few nodes"))
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, node_of(index).0], 7_000))
}

fn index_of(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { panic!("{address}") };
    usize::from(address.ip().octets()[3]) - 1
}

/// Local time after `ns` of true time, on a clock with that rate error.
fn scaled(ns: u64, rate_ppm: i64) -> u64 {
    let scaled = i128::from(ns) + i128::from(ns) * i128::from(rate_ppm) / 1_000_000;
    u64::try_from(scaled).expect("time fits")
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}
