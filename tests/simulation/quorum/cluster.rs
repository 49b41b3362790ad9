//! Simulates gateways and witnesses with their network, clocks and disks on one thread. The seed determines the run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use mdgw_captures::random::Random;
use mdgw_election::{
    auto_move::AutoMoveConfig,
    core::{CloseReason, Core as _, Input, Notice, Output, Role},
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    quorum::{
        candidate::{Candidate, CandidateConfig, QuorumEvent, QuorumRequest, vote_ns_max},
        message::{Body, Message, Operation, Request, VoterSession},
        voter::{DurableVote, QuorumSafeguards, VoteWriteId, Voter, VoterInput, VoterOutput},
    },
    record::ConfigVersion,
    timing::LeaseTiming,
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};

use crate::hand_overs::RequestedHandOvers;

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuorumSetup {
    pub(crate) gateways: u8,
    pub(crate) witnesses: u8,
    pub(crate) timing: LeaseTiming,
    pub(crate) safeguards: QuorumSafeguards,
    /// Whether a vote is still on disk after a restart.
    pub(crate) votes_survive_restart: bool,
    /// Whether receivers drop packets of old epochs.
    pub(crate) receivers_check_epochs: bool,
    /// Automatic hand-overs; `None`: off.
    pub(crate) moves: Option<AutoMoveConfig>,
    pub(crate) faults: Faults,
}

/// Rates of faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Shares of datagrams that are lost or duplicated.
    pub(crate) loss_share: f64,
    pub(crate) duplicate_share: f64,
    /// Mean delay of a datagram, and the longer mean delay of one datagram in a hundred, ns.
    pub(crate) delay_ns: u64,
    pub(crate) long_delay_ns: u64,
    /// Mean duration of a disk write, and the longer mean duration of one write in fifty, ns.
    pub(crate) store_ns: u64,
    pub(crate) long_store_ns: u64,
    /// Share of disk writes that fail because the disk is full.
    pub(crate) full_disk: f64,
    /// Mean time between two kills, partitions, pauses, hand-overs, ns; 0: none.
    pub(crate) kill_every_ns: u64,
    pub(crate) partition_every_ns: u64,
    pub(crate) pause_every_ns: u64,
    pub(crate) hand_over_every_ns: u64,
    /// Mean time between two stops of a random gateway, which closes and ends, ns; 0: none.
    pub(crate) stop_every_ns: u64,
    /// Share of closings at which a send is outstanding until its longest possible end.
    pub(crate) stalled_send_share: f64,
    /// Mean time between two forged packets, each with an epoch slightly above the highest accepted one, ns; 0: none.
    pub(crate) forge_every_ns: u64,
    /// Mean time between two changes of a random gateway's fitness, ns; 0: none.
    pub(crate) fitness_every_ns: u64,
    /// Highest rate error of a clock, parts per million.
    pub(crate) rate_ppm: u64,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        loss_share: 0.0,
        duplicate_share: 0.0,
        delay_ns: 50_000,
        long_delay_ns: 200_000,
        store_ns: 300_000,
        long_store_ns: 2_000_000,
        full_disk: 0.0,
        kill_every_ns: 0,
        partition_every_ns: 0,
        pause_every_ns: 0,
        hand_over_every_ns: 0,
        stop_every_ns: 0,
        stalled_send_share: 0.0,
        forge_every_ns: 0,
        fitness_every_ns: 0,
        rate_ppm: 200,
    };
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The sends of two gateways may overlap.
    TwoLeaders { at_ns: u64, nodes: [NodeId; 2] },
    /// A fence opened under an epoch that is not above all earlier epochs.
    EpochRegressed { at_ns: u64, epoch: Epoch, before: Epoch },
    /// A receiver accepted a packet of an old epoch after one of a newer epoch.
    StalePacketAccepted { at_ns: u64, epoch: Epoch, after: Epoch },
}

#[derive(Debug)]
enum Process {
    Gateway(Box<Candidate>),
    Witness(Box<Voter>),
    Down,
}

#[derive(Debug)]
struct Node {
    process: Process,
    incarnation: u64,
    disk: DurableVote,
    /// The highest epoch in its log.
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

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Deliver {
        to: NodeId,
        incarnation: u64,
        message: Box<QueuedMessage>,
    },
    Timer {
        node: NodeId,
        timer: u64,
    },
    /// A disk write of a vote ends.
    Store {
        node: NodeId,
        incarnation: u64,
        write_id: u64,
        durable: [u64; 3],
        fails: bool,
    },
    Drained {
        node: NodeId,
        incarnation: u64,
        drain: u64,
    },
    /// A packet that passed the fence arrives at the receiver.
    Packet {
        epoch: u64,
    },
    /// A gateway has observed an epoch on the wire.
    Observe {
        node: NodeId,
        epoch: u64,
    },
    /// Every gateway with an open fence sends a packet.
    Probe,
    Kill,
    Stop,
    /// A closed gateway ends, and starts again.
    End {
        node: NodeId,
    },
    /// An unknown sender's packet with an epoch slightly above the highest accepted one.
    Forge,
    Start {
        node: NodeId,
    },
    Partition,
    Heal {
        from: NodeId,
        to: NodeId,
    },
    Pause,
    HandOver,
    Fitness,
}

/// A message in the event queue, which orders events by time and number alone.
#[derive(Debug)]
struct QueuedMessage(Message);

impl PartialEq for QueuedMessage {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for QueuedMessage {}
impl PartialOrd for QueuedMessage {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedMessage {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

#[derive(Debug)]
pub(crate) struct QuorumCluster {
    setup: QuorumSetup,
    random: Random,
    now_ns: u64,
    nodes: BTreeMap<NodeId, Node>,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    queued: u64,
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// The highest epoch that the receiver has accepted.
    accepted_epoch: Epoch,
    pub(crate) opened: Vec<(u64, NodeId, Epoch)>,
    pub(crate) closed: Vec<(u64, NodeId, CloseReason)>,
    pub(crate) violation: Option<Violation>,
    /// Requests for votes are lost, and only they.
    pub(crate) loses_votes: bool,
    /// Hand-overs that were reported as failed: by which gateway, to which one, and why.
    pub(crate) failed_hand_overs: Vec<(NodeId, Option<NodeId>, &'static str)>,
    hand_overs: RequestedHandOvers<NodeId>,
    /// No more random faults are injected.
    faults_stopped: bool,
}

impl QuorumCluster {
    pub(crate) fn new(seed: u64, setup: QuorumSetup) -> Self {
        let mut random = Random::new(seed);
        let ids = (1..=setup.gateways + setup.witnesses).map(NodeId);
        let nodes = ids
            .map(|id| {
                let rate_ppm = i64::try_from(random.below(2 * setup.faults.rate_ppm + 1)).unwrap();
                let node = Node {
                    process: Process::Down,
                    incarnation: 0,
                    disk: DurableVote::default(),
                    own_epoch: Epoch::default(),
                    offset_ns: random.below(1 << 40),
                    rate_ppm: rate_ppm - i64::try_from(setup.faults.rate_ppm).unwrap(),
                    paused_until_ns: 0,
                    fence: None,
                    sends_end_at: MonoNs(0),
                    drains: 0,
                    timer: 0,
                };
                (id, node)
            })
            .collect();
        let mut cluster = Self {
            setup,
            random,
            now_ns: 0,
            nodes,
            queue: BinaryHeap::new(),
            queued: 0,
            cuts: BTreeSet::new(),
            accepted_epoch: Epoch::default(),
            opened: Vec::new(),
            closed: Vec::new(),
            violation: None,
            loses_votes: false,
            failed_hand_overs: Vec::new(),
            hand_overs: RequestedHandOvers::new(),
            faults_stopped: false,
        };
        for id in cluster.ids() {
            cluster.start(id);
        }
        cluster.after(100_000, Event::Probe);
        cluster.schedule_random(setup.faults.kill_every_ns, Event::Kill);
        cluster.schedule_random(setup.faults.partition_every_ns, Event::Partition);
        cluster.schedule_random(setup.faults.pause_every_ns, Event::Pause);
        cluster.schedule_random(setup.faults.hand_over_every_ns, Event::HandOver);
        cluster.schedule_random(setup.faults.fitness_every_ns, Event::Fitness);
        cluster.schedule_random(setup.faults.stop_every_ns, Event::Stop);
        cluster.schedule_random(setup.faults.forge_every_ns, Event::Forge);
        cluster
    }

    /// Runs for `ns`, or until a violation.
    pub(crate) fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        let is_due = |cluster: &Self| cluster.queue.peek().is_some_and(|Reverse((at_ns, _, _))| *at_ns <= until_ns);
        if self.run_until(|cluster| !is_due(cluster)) {
            self.now_ns = until_ns;
        }
    }

    /// Runs until `done` or a violation. Returns whether there was no violation.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        while self.violation.is_none() && !done(self) {
            let Reverse((at_ns, _, event)) = self.queue.pop().expect("the probe never ends");
            self.now_ns = at_ns;
            self.handle_event(event);
        }
        self.violation.is_none()
    }

    /// Ends all faults and repairs everything.
    pub(crate) fn stop_faults(&mut self) {
        self.faults_stopped = true;
        self.cuts.clear();
        let faults = &mut self.setup.faults;
        *faults = Faults { rate_ppm: faults.rate_ppm, ..Faults::NONE };
        for id in self.ids() {
            if matches!(self.nodes[&id].process, Process::Down) {
                self.start(id);
            }
        }
    }

    /// Whether receivers accept the packets of the gateway that may send.
    pub(crate) fn leader_is_received(&self) -> bool {
        let sends = |node: &&Node| self.may_send(node);
        self.nodes.values().filter(sends).filter_map(|node| node.fence).any(|(epoch, _)| epoch >= self.accepted_epoch)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The epoch under which a gateway may send now.
    pub(crate) fn leading_epoch(&self) -> Option<Epoch> {
        self.nodes.values().find(|node| self.may_send(node)).and_then(|node| Some(node.fence?.0))
    }

    /// The gateway that may send now.
    pub(crate) fn leading(&self) -> Option<NodeId> {
        self.nodes.iter().find(|(_, node)| self.may_send(node)).map(|(id, _)| *id)
    }

    /// Kills the process. Returns the death notice, with the epoch if the process led.
    pub(crate) fn kill(&mut self, id: NodeId) -> DeathNotice {
        let node = self.nodes.get_mut(&id).expect("a configured node");
        let epoch = node.fence.take().map_or_else(Epoch::default, |(epoch, _)| epoch);
        node.sends_end_at = MonoNs(0);
        node.process = Process::Down;
        self.hand_overs.end_process(id);
        let node = &self.nodes[&id];
        DeathNotice { holder: id, incarnation: Incarnation(node.incarnation), epoch }
    }

    /// Sends a death notice to every running gateway.
    pub(crate) fn announce(&mut self, notice: DeathNotice) {
        for id in self.ids() {
            if self.is_gateway(id) {
                self.step(id, Input::Died(notice));
            }
        }
    }

    pub(crate) fn hand_over(&mut self, target: Option<NodeId>) {
        if let Some(leader) = self.leading() {
            self.step(leader, Input::HandOver(target));
        }
    }

    /// A gateway of which a hand-over was requested that neither ended with another leader nor was reported as failed.
    pub(crate) fn unreported_hand_over(&self) -> Option<NodeId> {
        self.hand_overs.unreported()
    }

    pub(crate) fn close(&mut self, id: NodeId) {
        self.step(id, Input::Close);
    }

    /// Drops everything that `from` sends to `to`.
    pub(crate) fn cut(&mut self, from: NodeId, to: NodeId) {
        self.cuts.insert((from, to));
    }

    /// Receivers accept an unknown sender's packet.
    pub(crate) fn receive_forged(&mut self, epoch: Epoch) {
        self.receive(epoch);
    }

    pub(crate) fn input(&mut self, id: NodeId, input: Input<QuorumEvent>) {
        self.step(id, input);
    }

    fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    fn is_gateway(&self, id: NodeId) -> bool {
        matches!(self.nodes[&id].process, Process::Gateway(_))
    }

    pub(crate) fn start(&mut self, id: NodeId) {
        let QuorumSetup { gateways, witnesses, timing, safeguards, votes_survive_restart, moves, .. } = self.setup;
        let now = self.clock(id);
        let nonce = self.random.next_u64();
        let node = self.nodes.get_mut(&id).expect("a configured node");
        node.incarnation += 1;
        node.fence = None;
        if !votes_survive_restart {
            node.disk = DurableVote::default();
        }
        let name = |id: NodeId| NodeName::new(&format!("n{id}")).expect("a plain name");
        let all = |count: u8| (1..=count).map(NodeId).map(|id| (id, name(id))).collect::<BTreeMap<_, _>>();
        if id.0 <= gateways {
            let config = CandidateConfig {
                group: GroupId(1),
                member: Member { node: id, name: name(id), incarnation: Incarnation(node.incarnation) },
                voters: all(gateways + witnesses),
                candidates: all(gateways),
                timing,
                configuration: ConfigVersion::default(),
                vote_ns_max: vote_ns_max(&timing),
                nonce,
            };
            // The state file has counts alone.
            let known = Epoch::new(node.own_epoch.count(), 0);
            let mut candidate = Candidate::new(now, config, node.disk, known).with_safeguards(safeguards);
            if let Some(moves) = moves {
                candidate = candidate.with_auto_moves(moves, None);
            }
            node.process = Process::Gateway(Box::new(candidate));
            self.step(id, Input::Eligibility(Eligibility::Eligible));
        } else {
            let voter = Voter::new(now, node.disk, VoterSession(nonce), timing.rate_error_ppm);
            node.process = Process::Witness(Box::new(voter.with_safeguards(safeguards)));
        }
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((self.now_ns + ns.max(1), self.queued, event)));
    }

    fn schedule_random(&mut self, mean_ns: u64, event: Event) {
        if mean_ns > 0 {
            let ns = self.random.exponential(mean_ns);
            self.after(ns, event);
        }
    }

    fn clock(&self, id: NodeId) -> MonoNs {
        self.clock_of(&self.nodes[&id])
    }

    fn clock_of(&self, node: &Node) -> MonoNs {
        MonoNs(node.offset_ns + scaled(self.now_ns, node.rate_ppm))
    }

    fn may_send(&self, node: &Node) -> bool {
        node.fence.is_some_and(|(_, deadline)| self.clock_of(node) < deadline)
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Kill
            | Event::Stop
            | Event::Forge
            | Event::Partition
            | Event::Pause
            | Event::HandOver
            | Event::Fitness
                if self.faults_stopped => {}
            Event::Deliver { to, incarnation, message } => {
                if let Some(remaining_ns) = self.remaining_pause_ns(to) {
                    return self.after(remaining_ns, Event::Deliver { to, incarnation, message });
                }
                // A message to an earlier incarnation is lost with its socket.
                if self.nodes[&to].incarnation == incarnation {
                    self.deliver(to, message.0);
                }
            }
            Event::Timer { node, timer } => {
                if let Some(remaining_ns) = self.remaining_pause_ns(node) {
                    return self.after(remaining_ns, Event::Timer { node, timer });
                }
                if self.nodes[&node].timer == timer {
                    self.step(node, Input::Time);
                }
            }
            Event::Store { node, incarnation, write_id, durable, fails } => {
                let state = self.nodes.get_mut(&node).expect("a configured node");
                if state.incarnation != incarnation || matches!(state.process, Process::Down) {
                    return;
                }
                let [epoch, start, lease_ns_max] = durable;
                if !fails {
                    state.disk = DurableVote { epoch: Epoch(epoch), incarnation: Incarnation(start), lease_ns_max };
                }
                self.stored(node, VoteWriteId(write_id), fails);
            }
            Event::Drained { node, incarnation, drain } => {
                let Node { incarnation: running, drains, .. } = self.nodes[&node];
                if (running, drains) == (incarnation, drain) && self.is_gateway(node) {
                    self.step(node, Input::Drained);
                }
            }
            Event::Packet { epoch } => self.receive(Epoch(epoch)),
            Event::Stop => {
                let id = self.random_node();
                if self.is_gateway(id) {
                    self.close(id);
                    let down_ns = self.random.exponential(self.setup.timing.lease_ns);
                    self.after(down_ns, Event::End { node: id });
                }
                self.schedule_random(self.setup.faults.stop_every_ns, Event::Stop);
            }
            // The process ends when its election has, and is started again.
            Event::End { node } => {
                let Process::Gateway(candidate) = &self.nodes[&node].process else { return };
                if candidate.view().role == Role::Closed && self.nodes[&node].sends_end_at <= self.clock(node) {
                    self.kill(node);
                    self.start(node);
                } else {
                    self.after(self.setup.timing.renew_ns, Event::End { node });
                }
            }
            Event::Forge => {
                let count = self.accepted_epoch.count() + self.random.below(2);
                let node = u8::try_from(self.random.below(256)).expect("below 256");
                self.receive(Epoch::new(count, node));
                self.schedule_random(self.setup.faults.forge_every_ns, Event::Forge);
            }
            Event::Observe { node, epoch } => {
                if let Some(remaining_ns) = self.remaining_pause_ns(node) {
                    return self.after(remaining_ns, Event::Observe { node, epoch });
                }
                self.step(node, Input::ObservedEpoch(Epoch(epoch)));
            }
            Event::Probe => self.probe(),
            Event::Start { node } => {
                if matches!(self.nodes[&node].process, Process::Down) {
                    self.start(node);
                }
            }
            Event::Heal { from, to } => drop(self.cuts.remove(&(from, to))),
            Event::Kill => {
                let id = self.random_node();
                self.kill(id);
                let down_ns = self.random.exponential(self.setup.timing.lease_ns);
                self.after(down_ns, Event::Start { node: id });
                self.schedule_random(self.setup.faults.kill_every_ns, Event::Kill);
            }
            Event::Partition => {
                let (from, to) = (self.random_node(), self.random_node());
                self.cuts.insert((from, to));
                let cut_ns = self.random.exponential(3 * self.setup.timing.lease_ns);
                self.after(cut_ns, Event::Heal { from, to });
                self.schedule_random(self.setup.faults.partition_every_ns, Event::Partition);
            }
            Event::Pause => {
                let id = self.random_node();
                let pause_ns = self.random.exponential(self.setup.timing.lease_ns);
                self.nodes.get_mut(&id).expect("a configured node").paused_until_ns = self.now_ns + pause_ns;
                self.schedule_random(self.setup.faults.pause_every_ns, Event::Pause);
            }
            Event::HandOver => {
                self.hand_over(None);
                self.schedule_random(self.setup.faults.hand_over_every_ns, Event::HandOver);
            }
            Event::Fitness => {
                let (id, stalled) = (self.random_node(), self.random.chance(0.5));
                self.step(id, Input::Fitness(Fitness { stalled, ..Fitness::default() }));
                self.schedule_random(self.setup.faults.fitness_every_ns, Event::Fitness);
            }
        }
    }

    fn random_node(&mut self) -> NodeId {
        let count = u64::from(self.setup.gateways + self.setup.witnesses);
        NodeId(u8::try_from(1 + self.random.below(count)).expect("few nodes"))
    }

    fn remaining_pause_ns(&self, id: NodeId) -> Option<u64> {
        self.nodes[&id].paused_until_ns.checked_sub(self.now_ns).filter(|remaining_ns| *remaining_ns > 0)
    }

    /// Every gateway with an open fence sends a packet. Some packets are delayed for long below the socket.
    fn probe(&mut self) {
        let epochs: Vec<Epoch> =
            self.nodes.values().filter(|node| self.may_send(node)).filter_map(|node| Some(node.fence?.0)).collect();
        for epoch in epochs {
            let is_late = self.random.chance(0.02);
            let delay_ns = self.random.exponential(if is_late { 2 * self.setup.timing.lease_ns } else { 20_000 });
            self.after(delay_ns, Event::Packet { epoch: epoch.0 });
        }
        let next_ns = self.setup.timing.renew_ns / 4;
        self.after(next_ns, Event::Probe);
    }

    fn receive(&mut self, epoch: Epoch) {
        if epoch < self.accepted_epoch {
            if !self.setup.receivers_check_epochs {
                self.record_violation(Violation::StalePacketAccepted {
                    at_ns: self.now_ns,
                    epoch,
                    after: self.accepted_epoch,
                });
            }
            return;
        }
        if epoch > self.accepted_epoch {
            self.accepted_epoch = epoch;
            // Gateways receive the group too, each a moment later. One that is down finds the epoch in the log that it
            // copies before it is eligible again.
            self.nodes.values_mut().for_each(|node| node.own_epoch = node.own_epoch.max(epoch));
            let gateways: Vec<NodeId> = self.ids().into_iter().filter(|id| self.is_gateway(*id)).collect();
            for id in gateways {
                let delay_ns = self.random.exponential(50_000);
                self.after(delay_ns, Event::Observe { node: id, epoch: epoch.0 });
            }
        }
    }

    fn deliver(&mut self, to: NodeId, message: Message) {
        let now = self.clock(to);
        match &mut self.nodes.get_mut(&to).expect("a configured node").process {
            Process::Gateway(_) => self.step(to, Input::Backend(QuorumEvent::Received(message))),
            Process::Witness(voter) => {
                let Body::Request(request) = message.body else { return };
                let outputs = voter.step(now, VoterInput::Request { from: message.from, request });
                self.apply_witness_outputs(to, outputs);
            }
            Process::Down => {}
        }
    }

    fn stored(&mut self, id: NodeId, write_id: VoteWriteId, fails: bool) {
        let now = self.clock(id);
        match &mut self.nodes.get_mut(&id).expect("a configured node").process {
            Process::Gateway(_) => {
                let event = if fails { QuorumEvent::NotStored(write_id) } else { QuorumEvent::Stored(write_id) };
                self.step(id, Input::Backend(event));
            }
            Process::Witness(voter) => {
                let outputs =
                    voter.step(now, if fails { VoterInput::NotStored(write_id) } else { VoterInput::Stored(write_id) });
                self.apply_witness_outputs(id, outputs);
            }
            Process::Down => {}
        }
    }

    fn apply_witness_outputs(&mut self, id: NodeId, outputs: Vec<VoterOutput>) {
        for output in outputs {
            match output {
                VoterOutput::Reply { to, reply } => {
                    self.send(Message { group: GroupId(1), from: id, to, body: Body::Reply(reply) });
                }
                VoterOutput::Store { write_id, durable } => self.store(id, write_id, durable),
            }
        }
    }

    fn step(&mut self, id: NodeId, input: Input<QuorumEvent>) {
        let now = self.clock(id);
        let node = self.nodes.get_mut(&id).expect("a configured node");
        let Process::Gateway(candidate) = &mut node.process else { return };
        if matches!(input, Input::HandOver(_)) {
            self.hand_overs.request(id);
        }
        let outputs = candidate.step(now, input);
        let next = candidate.next_deadline();
        for output in outputs {
            self.apply_output(id, output);
        }
        let node = self.nodes.get_mut(&id).expect("a configured node");
        node.timer += 1;
        let timer = node.timer;
        if let Some(next) = next {
            let (offset_ns, rate_ppm) = (node.offset_ns, node.rate_ppm);
            let at_ns = from_local_clock(next.0.saturating_sub(offset_ns), rate_ppm);
            // Threads wake up late, never early.
            let late_ns = self.random.exponential(20_000);
            self.after(at_ns.saturating_sub(self.now_ns) + late_ns, Event::Timer { node: id, timer });
        }
    }

    fn apply_output(&mut self, id: NodeId, output: Output<QuorumRequest>) {
        let at_ns = self.now_ns;
        match output {
            Output::Open { epoch, deadline } => {
                if let Some((_, _, before)) = self.opened.last().filter(|(_, _, before)| *before >= epoch) {
                    self.record_violation(Violation::EpochRegressed { at_ns, epoch, before: *before });
                }
                self.opened.push((at_ns, id, epoch));
                self.hand_overs.open(id);
                self.nodes.get_mut(&id).expect("a configured node").fence = Some((epoch, deadline));
                self.check_overlap();
            }
            Output::Renew { deadline } => {
                if let Some(fence) = &mut self.nodes.get_mut(&id).expect("a configured node").fence {
                    fence.1 = deadline;
                }
                self.check_overlap();
            }
            Output::Close { reason, .. } => {
                self.closed.push((at_ns, id, reason));
                let is_stalled = self.random.chance(self.setup.faults.stalled_send_share);
                let send_ns = self.random.exponential(20_000).min(self.setup.timing.send_ns_max);
                let now = self.clock(id);
                let node = self.nodes.get_mut(&id).expect("a configured node");
                if let Some((_, deadline)) = node.fence.take() {
                    let latest = deadline.plus(self.setup.timing.send_ns_max);
                    let until = if is_stalled { latest } else { now.plus(send_ns).min(latest) };
                    node.sends_end_at = node.sends_end_at.max(until);
                }
            }
            Output::Drain => {
                let poll_ns = self.random.exponential(50_000);
                let node = self.nodes.get_mut(&id).expect("a configured node");
                node.drains += 1;
                let drain = node.drains;
                let sent_at_ns = from_local_clock(node.sends_end_at.0.saturating_sub(node.offset_ns), node.rate_ppm);
                let incarnation = node.incarnation;
                let drain_ns = sent_at_ns.saturating_sub(at_ns) + poll_ns;
                self.after(drain_ns, Event::Drained { node: id, incarnation, drain });
            }
            Output::Request(QuorumRequest::Send(message)) => self.send(message),
            Output::Request(QuorumRequest::Store { write_id, durable }) => self.store(id, write_id, durable),
            Output::Notice(Notice::HandOverFailed { target, why }) => {
                self.hand_overs.report_failed(id);
                self.failed_hand_overs.push((id, target, why));
            }
            Output::Peer { .. } | Output::Connection(_) | Output::Notice(_) | Output::PeerOutputEnded(_) => {}
        }
    }

    fn send(&mut self, message: Message) {
        let is_vote = matches!(&message.body, Body::Request(Request { operation: Operation::Vote(_), .. }));
        if is_vote && self.loses_votes {
            return;
        }
        let Faults { loss_share, duplicate_share, delay_ns, long_delay_ns, .. } = self.setup.faults;
        let to = message.to;
        let count = 1 + u32::from(self.random.chance(duplicate_share));
        for _ in 0..count {
            if self.random.chance(loss_share) || self.cuts.contains(&(message.from, to)) {
                continue;
            }
            let mean_ns = if self.random.chance(0.01) { long_delay_ns } else { delay_ns };
            let delay_ns = 10_000 + self.random.exponential(mean_ns);
            let incarnation = self.nodes[&to].incarnation;
            self.after(delay_ns, Event::Deliver { to, incarnation, message: Box::new(QueuedMessage(message.clone())) });
        }
    }

    fn store(&mut self, node: NodeId, write_id: VoteWriteId, durable: DurableVote) {
        let Faults { store_ns, long_store_ns, full_disk, .. } = self.setup.faults;
        let mean_ns = if self.random.chance(0.02) { long_store_ns } else { store_ns };
        let (delay_ns, fails) = (self.random.exponential(mean_ns), self.random.chance(full_disk));
        let incarnation = self.nodes[&node].incarnation;
        let durable = [durable.epoch.0, durable.incarnation.0, durable.lease_ns_max];
        self.after(delay_ns, Event::Store { node, incarnation, write_id: write_id.0, durable, fails });
    }

    fn check_overlap(&mut self) {
        // A packet that passes the fence check just before the deadline is sent within `send_ns_max`.
        let sends = |node: &Node| {
            let until = |deadline: MonoNs| deadline.plus(self.setup.timing.send_ns_max);
            let now = self.clock_of(node);
            now < node.sends_end_at || node.fence.is_some_and(|(_, deadline)| now < until(deadline))
        };
        let open: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| sends(node)).map(|(id, _)| *id).collect();
        if let [first, second, ..] = open[..] {
            self.record_violation(Violation::TwoLeaders { at_ns: self.now_ns, nodes: [first, second] });
        }
    }

    fn record_violation(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

/// Local time after `ns` of true time, on a clock with that rate error.
fn scaled(ns: u64, rate_ppm: i64) -> u64 {
    let scaled = i128::from(ns) + i128::from(ns) * i128::from(rate_ppm) / 1_000_000;
    u64::try_from(scaled).expect("time fits")
}

/// The first true time at which a clock with that rate error shows `ns` or more.
fn from_local_clock(ns: u64, rate_ppm: i64) -> u64 {
    let divisor = 1_000_000 + i128::from(rate_ppm);
    let mut at = u64::try_from((i128::from(ns) * 1_000_000) / divisor).expect("time fits");
    while scaled(at, rate_ppm) < ns {
        at += 1;
    }
    at
}
