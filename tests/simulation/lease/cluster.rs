//! Simulates gateways with their clocks and hot threads, the store, and the network between them, on one thread. The seed
//! determines the run.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use mdgw_captures::random::Random;
use mdgw_election::{
    auto_move::AutoMoveConfig,
    core::{Core as _, Input, Notice, Output},
    fitness::Eligibility,
    identity::{Incarnation, Member, NodeId, NodeName},
    lease::{Lease, LeaseConfig, LeaseSafeguards, OnSuspended},
    peer::PeerMessage,
    record::ConfigVersion,
    register::{RegisterEvent, RegisterRequest, StoreLink},
    timing::LeaseTiming,
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};
use mdgw_pair::{
    pair_link::{LinkedGroup, ReportedEpochs},
    standby::KnownEpochs,
};
use mdgw_sys::{clock_rate::ClockRate, fence::Fence};

use super::{faults::FaultConfig, receiver::EpochReceiver, store::SimulatedStore};
use crate::{forger::JUMP_MAX, hand_overs::RequestedHandOvers};

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseSetup {
    pub(crate) gateways: u8,
    pub(crate) timing: LeaseTiming,
    pub(crate) faults: FaultConfig,
    pub(crate) safeguards: LeaseSafeguards,
    /// The store compares the version that a swap expects.
    pub(crate) version_check: bool,
    /// Gateways observe the published epochs.
    pub(crate) observes_epochs: bool,
    /// An opening reaches every gateway: those that are cut off too, and those that are down in the log that they copy.
    /// Otherwise it reaches those that run and receive from the leader at that moment.
    pub(crate) openings_reach_all: bool,
    /// Epochs may go back: state files are lost, and a restored store shows an epoch below those that gateways opened which the
    /// next leader received nothing of.
    pub(crate) epochs_may_regress: bool,
    /// Gateways report over their pair links the highest epoch that each knows.
    pub(crate) linked: bool,
    /// A leader counts a higher epoch that a peer keeps reporting as observed.
    pub(crate) counts_reported_epochs: bool,
    /// By how many counts each start raises the epoch of the gateway's state file.
    pub(crate) counts_per_start: u64,
    /// Messages between gateways prove their sender. Otherwise a promise of one gateway counts for every other one as well.
    pub(crate) senders_proved: bool,
    /// Packets carry their epoch, so that receivers can drop packets of old epochs.
    pub(crate) receivers_check_epochs: bool,
    /// Largest error of a clock's rate while it is not slewed, parts per million.
    pub(crate) clock_error_ppm_max: u32,
    /// Gateways read the slew of their clocks.
    pub(crate) clock_rates_read: bool,
    /// A started gateway is joining until [`LeaseCluster::set_eligible`].
    pub(crate) joins: bool,
}

/// An event of one gateway, for a simulation that contains this one.
#[derive(Clone, Debug)]
pub(crate) enum GatewayEvent {
    Started,
    Killed,
    Stopped,
    Resumed,
    /// The gateway may send until that moment, in true time.
    Open {
        epoch: Epoch,
        until_ns: u64,
    },
    Closed,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A gateway may send while a send of another may not have returned.
    TwoLeaders { at_ns: u64, gateways: [usize; 2] },
    /// A fence opened under an epoch that is not above all earlier epochs.
    EpochRegressed { at_ns: u64, epoch: Epoch, before: Epoch },
    /// A receiver delivered a record of an old epoch after one of a newer epoch.
    StaleRecordAccepted { at_ns: u64, epoch: Epoch, after: Epoch },
}

pub(crate) struct LeaseCluster {
    pub(super) setup: LeaseSetup,
    pub(super) random: Random,
    pub(super) now_ns: u64,
    events: BinaryHeap<ScheduledEvent>,
    scheduled: u64,
    pub(super) gateways: Vec<SimulatedGateway>,
    pub(super) store: SimulatedStore,
    /// Number of faults that partition each direction: (from, to). The store is the last index.
    pub(super) partitions: BTreeMap<(usize, usize), u32>,
    pub(super) faults_stopped: bool,
    epoch_receiver: EpochReceiver,
    pub(super) hand_overs: RequestedHandOvers<usize>,
    /// How often a leader noticed that a higher epoch than its own was observed.
    pub(crate) outranked: u64,
    /// All openings, in order.
    pub(crate) opened: Vec<Opening>,
    /// The last swap of each gateway.
    swaps: Vec<SwapTimes>,
    /// When each gateway was last notified of a change of the record.
    record_learned_ns: Vec<u64>,
    pub(crate) violation: Option<Violation>,
    /// Events that the surrounding simulation has not taken yet, in order, by gateway.
    pub(crate) gateway_events: VecDeque<(usize, GatewayEvent)>,
}

/// An opening of a fence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) at_ns: u64,
    pub(crate) gateway: usize,
    pub(crate) epoch: Epoch,
    /// The last swap of the gateway before.
    pub(crate) swap: SwapTimes,
}

/// When a gateway requested a swap, and when it had last been notified of a change of the record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SwapTimes {
    pub(crate) record_learned_ns: u64,
    pub(crate) sent_ns: u64,
}

pub(super) struct SimulatedGateway {
    pub(super) core: Option<Box<Lease>>,
    pub(super) incarnation: u64,
    /// Rate error of the uncorrected clock.
    rate_ppm: i64,
    /// Present slew of the clock.
    slew_ppm: i64,
    /// The gateway has read that its clock is slewed.
    slew_reported: bool,
    offset_ns: u64,
    pub(super) paused: bool,
    /// The gateway is closing, and restarts afterwards.
    pub(super) is_closing: bool,
    /// Inputs that arrived during a pause.
    queued_inputs: VecDeque<Input<RegisterEvent>>,
    pub(super) connection: u64,
    /// Restore count of the store when the present connection was made.
    pub(super) store_restore_count: u64,
    pub(super) last_watch_ns: u64,
    /// The highest epoch in the gateway's state file.
    pub(super) own_epoch: Epoch,
    /// The product's own memory of epochs, and what it makes of the peers' reports.
    epochs: Arc<KnownEpochs>,
    reported_epochs: ReportedEpochs,
    /// The highest epoch that a peer's report has raised the observed one to.
    observed_by_report: Epoch,
    /// The product's own fence, the only thing that the hot thread checks.
    pub(super) fence: Arc<Fence>,
    pub(super) leading_epoch: Option<Epoch>,
    deadline: MonoNs,
    /// Latest end of sends of the last leadership, in true time.
    pub(super) sends_end_ns: u64,
    /// Requests to drain. Only the last one is answered, when all sends have ended.
    drains: u64,
    /// Epoch of a packet that had passed the fence check and was not sent when the process was paused.
    pub(super) unsent_packet: Option<Epoch>,
    /// Number of the current timer; earlier timers are void.
    timer: u64,
}

/// A scheduled event.
pub(super) enum Event {
    Timer {
        gateway: usize,
        timer: u64,
    },
    ToGateway {
        to: usize,
        incarnation: u64,
        connection: Option<u64>,
        input: Box<Input<RegisterEvent>>,
    },
    AtStore {
        from: usize,
        incarnation: u64,
        connection: u64,
        restore_count: u64,
        request: Box<RegisterRequest>,
    },
    /// A packet arrives at the receiver.
    Packet(Epoch),
    HotThread(usize),
    Drained {
        gateway: usize,
        incarnation: u64,
        drain: u64,
    },
    /// A gateway reports its state to its peers.
    PeerState(usize),
    /// A peer's report of the highest epoch that it knows arrives.
    EpochReported {
        to: usize,
        incarnation: u64,
        epoch: Epoch,
    },
    Fault,
    Heal(usize, usize),
    StoreUp,
    Resume {
        gateway: usize,
        incarnation: u64,
    },
    Restart(usize),
    SlewEnds(usize),
}

struct ScheduledEvent {
    at_ns: u64,
    number: u64,
    event: Event,
}

pub(crate) const MS: u64 = 1_000_000;
/// Latest wake-up of a thread after its deadline, ns.
pub(crate) const WAKE_NS_MAX: u64 = 50_000;

impl LeaseCluster {
    pub(crate) fn new(seed: u64, setup: LeaseSetup) -> Self {
        let mut random = Random::new(seed);
        let (rate_max, span_ns) = (u64::from(setup.clock_error_ppm_max), 1_000 * MS);
        let gateways = (0..setup.gateways)
            .map(|_| {
                let fence = Arc::new(Fence::closed());
                let (epochs, reported_epochs) = epochs_of(Epoch::default(), &fence);
                (fence, epochs, reported_epochs)
            })
            .map(|(fence, epochs, reported_epochs)| SimulatedGateway {
                core: None,
                incarnation: 0,
                rate_ppm: signed(random.below(2 * rate_max + 1)) - signed(rate_max),
                slew_ppm: 0,
                slew_reported: false,
                offset_ns: span_ns + random.below(span_ns),
                paused: false,
                is_closing: false,
                queued_inputs: VecDeque::new(),
                connection: 0,
                store_restore_count: 0,
                last_watch_ns: 0,
                own_epoch: Epoch::default(),
                epochs,
                reported_epochs,
                observed_by_report: Epoch::default(),
                fence,
                leading_epoch: None,
                deadline: MonoNs(0),
                sends_end_ns: 0,
                drains: 0,
                unsent_packet: None,
                timer: 0,
            })
            .collect();
        let mut cluster = Self {
            setup,
            random,
            now_ns: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            gateways,
            store: SimulatedStore::default(),
            partitions: BTreeMap::new(),
            faults_stopped: false,
            epoch_receiver: EpochReceiver::new(setup.receivers_check_epochs),
            hand_overs: RequestedHandOvers::new(),
            outranked: 0,
            opened: Vec::new(),
            swaps: vec![SwapTimes::default(); usize::from(setup.gateways)],
            record_learned_ns: vec![0; usize::from(setup.gateways)],
            violation: None,
            gateway_events: VecDeque::new(),
        };
        for gateway in 0..cluster.gateways.len() {
            let delay_ns = cluster.random.below(setup.timing.lease_ns);
            cluster.after(delay_ns, Event::Restart(gateway));
            cluster.after(delay_ns, Event::HotThread(gateway));
            cluster.after(delay_ns, Event::PeerState(gateway));
        }
        if setup.faults.fault_interval_ns > 0 {
            cluster.after(2 * setup.timing.lease_ns, Event::Fault);
        }
        cluster
    }

    pub(crate) fn run_for(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        self.run_until(end_ns, |_| false);
        self.now_ns = end_ns;
    }

    /// Runs until the condition is true, a violation is found, or `end_ns`. Returns whether the condition was reached without
    /// a violation.
    pub(crate) fn run_until(&mut self, end_ns: u64, condition: impl Fn(&Self) -> bool) -> bool {
        while self.violation.is_none() && !condition(self) {
            if !self.step_until(end_ns) {
                return false;
            }
        }
        self.violation.is_none()
    }

    /// Handles the next event if it is due by `end_ns`; otherwise sets the time to `end_ns`. Returns whether there was one.
    pub(crate) fn step_until(&mut self, end_ns: u64) -> bool {
        if self.events.peek().is_none_or(|next| next.at_ns > end_ns) {
            self.now_ns = end_ns;
            return false;
        }
        let Some(ScheduledEvent { at_ns, event, .. }) = self.events.pop() else { return false };
        self.now_ns = at_ns;
        self.handle_event(event);
        true
    }

    /// Begins to inject faults.
    pub(crate) fn start_faults(&mut self, fault_interval_ns: u64) {
        self.setup.faults.fault_interval_ns = fault_interval_ns;
        self.after(fault_interval_ns, Event::Fault);
    }

    /// Marks a joining gateway as eligible.
    pub(crate) fn set_eligible(&mut self, gateway: usize) {
        self.send(gateway, Input::Eligibility(Eligibility::Eligible), 0);
    }

    /// The gateway has received a packet of that epoch.
    pub(crate) fn observe_epoch(&mut self, gateway: usize, epoch: Epoch) {
        self.learn_epoch(gateway, epoch);
        self.send(gateway, Input::ObservedEpoch(epoch), 0);
    }

    /// Epochs that a gateway knows survive its process.
    fn learn_epoch(&mut self, gateway: usize, epoch: Epoch) {
        let SimulatedGateway { own_epoch, epochs, .. } = &mut self.gateways[gateway];
        *own_epoch = epoch.max(*own_epoch);
        epochs.record_authenticated(epoch);
    }

    /// Whether receivers drop the packets of the gateway that may send now, although a running gateway knows the epoch that
    /// they hold.
    pub(crate) fn is_unreceived(&self) -> bool {
        let received = self.epoch_receiver.highest_epoch();
        let is_known =
            self.gateways.iter().any(|gateway| gateway.core.is_some() && gateway.epochs.highest() >= received);
        is_known && self.leading_epoch().is_some_and(|epoch| epoch < received)
    }

    /// A gateway of which a hand-over was requested that neither ended with another leader nor was reported as failed.
    pub(crate) fn unreported_hand_over(&self) -> Option<usize> {
        self.hand_overs.unreported()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Number of packets of an old epoch that arrived at the receiver.
    pub(crate) fn stale_packets(&self) -> u64 {
        self.epoch_receiver.stale()
    }

    /// The epoch under which a gateway may send now.
    pub(crate) fn leading_epoch(&self) -> Option<Epoch> {
        let leading = self.leading()?;
        self.gateways[leading].fence.epoch_if_open(self.local_time(leading))
    }

    /// The gateway that may send now.
    pub(crate) fn leading(&self) -> Option<usize> {
        (0..self.gateways.len()).find(|gateway| {
            let SimulatedGateway { fence, paused, .. } = &self.gateways[*gateway];
            !paused && fence.is_open_at(self.local_time(*gateway))
        })
    }

    pub(super) fn after(&mut self, delay_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(ScheduledEvent { at_ns: self.now_ns + delay_ns, number: self.scheduled, event });
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Timer { gateway, timer } => {
                if self.gateways[gateway].timer == timer {
                    self.deliver_input(gateway, None);
                }
            }
            Event::ToGateway { to, incarnation, connection, input } => {
                let gateway = &self.gateways[to];
                let is_for_it = gateway.incarnation == incarnation
                    && connection.is_none_or(|connection| connection == gateway.connection);
                if is_for_it {
                    self.deliver_input(to, Some(*input));
                }
            }
            Event::AtStore { from, incarnation, connection, restore_count, request } => {
                self.handle_at_store(from, incarnation, connection, restore_count, &request);
            }
            Event::Packet(epoch) => self.receive(epoch),
            Event::HotThread(gateway) => self.hot_thread(gateway),
            // The election thread asks whether sends are outstanding; a paused one asks later.
            Event::Drained { gateway, .. } if self.gateways[gateway].paused => self.after(DRAIN_POLL_NS, event),
            Event::Drained { gateway, incarnation, drain } => {
                let SimulatedGateway { incarnation: running, drains, .. } = self.gateways[gateway];
                if (running, drains) == (incarnation, drain) {
                    self.deliver_input(gateway, Some(Input::Drained));
                }
            }
            Event::PeerState(gateway) => self.report_peer_state(gateway),
            Event::EpochReported { to, incarnation, epoch } => self.receive_reported_epoch(to, incarnation, epoch),
            Event::Fault => self.random_fault(),
            Event::Heal(from, to) => self.heal(from, to),
            Event::StoreUp => self.store_up(),
            Event::Resume { gateway, incarnation } => {
                if self.gateways[gateway].incarnation == incarnation {
                    self.resume(gateway);
                }
            }
            Event::Restart(gateway) => self.restart(gateway),
            // A process cannot notice a slew that begins and ends while it is paused; the margin covers that. Here the slew lasts
            // until the pause is over.
            Event::SlewEnds(gateway) if self.gateways[gateway].paused => self.after(MS, Event::SlewEnds(gateway)),
            Event::SlewEnds(gateway) => self.slew(gateway, 0),
        }
    }

    // ---- clocks ----

    pub(super) fn local_time(&self, gateway: usize) -> MonoNs {
        let SimulatedGateway { rate_ppm, slew_ppm, offset_ns, .. } = self.gateways[gateway];
        let drift_ns = i128::from(self.now_ns) * i128::from(rate_ppm + slew_ppm) / 1_000_000;
        let local_time = i128::from(offset_ns) + i128::from(self.now_ns) + drift_ns;
        MonoNs(u64::try_from(local_time).expect("time fits"))
    }

    /// True time until a gateway's clock shows `local_time`, ns.
    fn true_ns_until(&self, gateway: usize, local_time: MonoNs) -> u64 {
        let left = i128::from(local_time.since(self.local_time(gateway)));
        let SimulatedGateway { rate_ppm, slew_ppm, .. } = self.gateways[gateway];
        match left * 1_000_000 / i128::from(1_000_000 + rate_ppm + slew_ppm).max(1) {
            true_ns if rate_ppm + slew_ppm > STOPPED_PPM => {
                u64::try_from(true_ns).expect("time fits") + u64::from(left > 0)
            }
            _ => FROZEN_NS,
        }
    }

    /// Changes the rate of a gateway's clock by `slew_ppm`, without a step.
    pub(super) fn slew(&mut self, number: usize, slew_ppm: i64) {
        let shown = self.local_time(number);
        self.gateways[number].slew_ppm = slew_ppm;
        let (ahead, behind) = (self.local_time(number).since(shown), shown.since(self.local_time(number)));
        let gateway = &mut self.gateways[number];
        gateway.offset_ns = gateway.offset_ns + behind - ahead;
        if gateway.core.is_some() && !gateway.paused {
            self.set_timer(number);
        }
    }

    /// Stops a gateway's clock until the gateway resumes.
    pub(super) fn freeze_clock(&mut self, number: usize) {
        self.slew(number, STOPPED_PPM - self.gateways[number].rate_ppm);
    }

    /// The clock rate that the election thread reads before each decision; `None` if it is unchanged.
    fn clock_rate(&mut self, gateway: usize) -> Option<Input<RegisterEvent>> {
        let SimulatedGateway { slew_ppm, slew_reported, .. } = &mut self.gateways[gateway];
        let has_changed = *slew_ppm != 0 || *slew_reported;
        *slew_reported = *slew_ppm != 0;
        let error_ppm = u32::try_from(slew_ppm.unsigned_abs()).expect("slews are small");
        (has_changed && self.setup.clock_rates_read).then_some(Input::ClockRate(ClockRate::Within(error_ppm)))
    }

    // ---- the election thread ----

    fn deliver_input(&mut self, gateway: usize, input: Option<Input<RegisterEvent>>) {
        if self.gateways[gateway].paused {
            self.gateways[gateway].queued_inputs.extend(input);
            return;
        }
        for input in input.into_iter().chain([Input::Time]) {
            self.step(gateway, input);
        }
        self.set_timer(gateway);
    }

    fn step(&mut self, gateway: usize, input: Input<RegisterEvent>) {
        if input == Input::Backend(RegisterEvent::StoreLink(StoreLink::InDoubt)) {
            self.gateways[gateway].store_restore_count = self.store.restore_count;
        }
        if matches!(input, Input::Backend(RegisterEvent::Changed(_))) {
            self.record_learned_ns[gateway] = self.now_ns;
        }
        let now = self.local_time(gateway);
        let Some(core) = &mut self.gateways[gateway].core else { return };
        if matches!(input, Input::HandOver(_)) {
            self.hand_overs.request(gateway);
        }
        let (outputs, known) = (core.step(now, input), core.view().epoch);
        self.gateways[gateway].epochs.record_authenticated(known);
        for output in outputs {
            self.apply_output(gateway, output);
        }
    }

    /// Sets the only timer of a gateway; an earlier timer becomes void.
    fn set_timer(&mut self, gateway: usize) {
        self.gateways[gateway].timer += 1;
        let timer = self.gateways[gateway].timer;
        let next = self.gateways[gateway].core.as_ref().and_then(|core| core.next_deadline());
        if let Some(next) = next {
            let late_ns = WAKE_NS_MAX / 5 + self.random.below(4 * WAKE_NS_MAX / 5);
            let delay_ns = self.true_ns_until(gateway, next) + late_ns;
            self.after(delay_ns, Event::Timer { gateway, timer });
        }
    }

    fn apply_output(&mut self, gateway: usize, output: Output<RegisterRequest>) {
        match output {
            Output::Open { epoch, deadline } => self.open(gateway, epoch, deadline),
            Output::Renew { deadline } => {
                self.gateways[gateway].fence.renew(deadline);
                self.check_overlap(gateway, deadline);
                self.report_open(gateway, deadline);
            }
            Output::Close { .. } => self.close(gateway),
            Output::Drain => {
                // Learned a little later than the last send returns.
                let sends_ns = self.gateways[gateway].sends_end_ns.saturating_sub(self.now_ns);
                let drain_ns = sends_ns + self.random.below(DRAIN_POLL_NS);
                self.gateways[gateway].drains += 1;
                let SimulatedGateway { incarnation, drains: drain, .. } = self.gateways[gateway];
                self.after(drain_ns, Event::Drained { gateway, incarnation, drain });
            }
            Output::Request(request) => {
                if matches!(request, RegisterRequest::CompareAndSwap { .. }) {
                    let (record_learned_ns, sent_ns) = (self.record_learned_ns[gateway], self.now_ns);
                    self.swaps[gateway] = SwapTimes { record_learned_ns, sent_ns };
                }
                self.send_to_store(gateway, request);
            }
            Output::Peer { to, message } => self.send_to_peer(gateway, to, message),
            Output::Notice(Notice::HigherEpochObserved(_)) => self.outranked += 1,
            Output::Notice(Notice::HandOverFailed { .. }) => self.hand_overs.report_failed(gateway),
            Output::Connection(_) | Output::Notice(_) | Output::PeerOutputEnded(_) => {}
        }
    }

    fn open(&mut self, gateway: usize, epoch: Epoch, deadline: MonoNs) {
        let before = self.opened.iter().map(|opening| opening.epoch).max().unwrap_or_default();
        if epoch <= before && !self.setup.epochs_may_regress {
            self.record_violation(Violation::EpochRegressed { at_ns: self.now_ns, epoch, before });
        }
        self.learn_epoch(gateway, epoch);
        self.hand_overs.open(gateway);
        self.opened.push(Opening { at_ns: self.now_ns, gateway, epoch, swap: self.swaps[gateway] });
        self.gateways[gateway].leading_epoch = Some(epoch);
        self.gateways[gateway].fence.open(epoch, deadline);
        self.check_overlap(gateway, deadline);
        self.report_open(gateway, deadline);
        self.publish(gateway);
        if self.setup.observes_epochs {
            for other in 0..self.gateways.len() {
                let receives = self.gateways[other].core.is_some() && !self.is_partitioned(gateway, other);
                if receives || self.setup.openings_reach_all {
                    self.learn_epoch(other, epoch);
                    self.send(other, Input::ObservedEpoch(epoch), 50_000);
                }
            }
        }
    }

    fn report_open(&mut self, gateway: usize, deadline: MonoNs) {
        let until_ns = self.now_ns + self.true_ns_until(gateway, deadline);
        if let Some(epoch) = self.gateways[gateway].leading_epoch {
            self.gateway_events.push_back((gateway, GatewayEvent::Open { epoch, until_ns }));
        }
    }

    /// A fence is open until `deadline`: records a violation if sends of another gateway may overlap.
    fn check_overlap(&mut self, gateway: usize, deadline: MonoNs) {
        self.gateways[gateway].deadline = deadline;
        if self.local_time(gateway) >= deadline {
            return;
        }
        for other in 0..self.gateways.len() {
            if other != gateway && self.sends_end(other) > self.now_ns {
                self.record_violation(Violation::TwoLeaders { at_ns: self.now_ns, gateways: [gateway, other] });
            }
        }
    }

    /// Latest end of a gateway's sends, in true time: a packet that is checked just before the deadline takes one longest
    /// send. A process that is paused in between takes longer; there the receivers must drop its packets.
    fn sends_end(&self, gateway: usize) -> u64 {
        let SimulatedGateway { leading_epoch, deadline, sends_end_ns, .. } = &self.gateways[gateway];
        let send_ns_max = self.setup.timing.send_ns_max;
        let now = self.local_time(gateway);
        match leading_epoch {
            None => *sends_end_ns,
            Some(_) if now < *deadline => self.now_ns + self.true_ns_until(gateway, *deadline) + send_ns_max,
            Some(_) => self.now_ns + send_ns_max.saturating_sub(now.since(*deadline)),
        }
    }

    fn close(&mut self, number: usize) {
        let is_stalled = !self.faults_stopped && self.random.chance(self.setup.faults.stalled_sends);
        let send_ns = self.random.below(self.setup.timing.send_ns_max);
        let latest_ns = self.sends_end(number);
        let until_ns = if is_stalled { latest_ns } else { latest_ns.min(self.now_ns + send_ns) };
        let gateway = &mut self.gateways[number];
        gateway.fence.close();
        gateway.leading_epoch = None;
        gateway.sends_end_ns = gateway.sends_end_ns.max(until_ns);
        self.gateway_events.push_back((number, GatewayEvent::Closed));
    }

    // ---- the hot thread ----

    fn hot_thread(&mut self, gateway: usize) {
        self.publish(gateway);
        self.after(self.setup.timing.renew_ns / 2, Event::HotThread(gateway));
    }

    /// Sends a packet if the fence is open.
    pub(super) fn publish(&mut self, gateway: usize) {
        let now = self.local_time(gateway);
        let SimulatedGateway { fence, paused, core, .. } = &self.gateways[gateway];
        if let Some(epoch) = fence.epoch_if_open(now)
            && !paused
            && core.is_some()
        {
            self.send_packet(epoch);
        }
    }

    /// Some packets are delayed for long below the socket.
    pub(super) fn send_packet(&mut self, epoch: Epoch) {
        let is_late = !self.faults_stopped && self.random.chance(self.setup.faults.late);
        let mean_ns = if is_late { 2 * self.setup.timing.lease_ns } else { 20_000 };
        let delay_ns = self.random.exponential(mean_ns);
        self.after(delay_ns, Event::Packet(epoch));
    }

    fn receive(&mut self, epoch: Epoch) {
        if let Some(after) = self.epoch_receiver.receive(self.now_ns, epoch) {
            self.record_violation(Violation::StaleRecordAccepted { at_ns: self.now_ns, epoch, after });
        }
    }

    // ---- between gateways ----

    /// Delivers an input from the gateway's own machine, or over a network without simulated faults.
    pub(super) fn send(&mut self, to: usize, input: Input<RegisterEvent>, delay_ns: u64) {
        let incarnation = self.gateways[to].incarnation;
        self.after(delay_ns, Event::ToGateway { to, incarnation, connection: None, input: Box::new(input) });
    }

    fn send_to_peer(&mut self, from: usize, to: NodeId, message: PeerMessage) {
        let to = usize::from(to.0) - 1;
        if self.is_partitioned(from, to) || !self.faults_stopped && self.random.chance(self.setup.faults.lost) {
            return;
        }
        let delay_ns = self.delay_ns();
        if !self.setup.senders_proved && matches!(message, PeerMessage::Promise(_)) {
            for other in (0..self.gateways.len()).filter(|other| *other != from && *other != to) {
                self.send(to, Input::Peer { from: node_of(other), message: message.clone() }, delay_ns);
            }
        }
        self.send(to, Input::Peer { from: node_of(from), message }, delay_ns);
    }

    /// Sends the gateway's state to its peers, as every election thread does twice per renewal period.
    fn report_peer_state(&mut self, from: usize) {
        if !self.gateways[from].paused
            && let Some(rate) = self.clock_rate(from)
        {
            self.deliver_input(from, Some(rate));
        }
        let now = self.local_time(from);
        let SimulatedGateway { core, paused, .. } = &self.gateways[from];
        let state = core.as_ref().filter(|_| !paused).map(|core| core.peer_state(now));
        for to in (0..self.gateways.len()).filter(|to| *to != from) {
            if let Some(state) = &state {
                self.send_to_peer(from, node_of(to), PeerMessage::State(state.clone()));
                self.report_epoch(from, to);
            }
        }
        self.after(self.setup.timing.renew_ns / 2, Event::PeerState(from));
    }

    fn report_epoch(&mut self, from: usize, to: usize) {
        if self.setup.linked && !self.is_partitioned(from, to) {
            let (incarnation, epoch) =
                (self.gateways[to].incarnation, self.gateways[from].reported_epochs.highest_known());
            self.after(REPORT_DELAY_NS, Event::EpochReported { to, incarnation, epoch });
        }
    }

    fn receive_reported_epoch(&mut self, to: usize, incarnation: u64, epoch: Epoch) {
        let now = self.local_time(to);
        let gateway = &mut self.gateways[to];
        if gateway.incarnation != incarnation || gateway.core.is_none() || gateway.paused {
            return;
        }
        gateway.reported_epochs.record(epoch, now);
        let (observed, _) = gateway.epochs.take_observed().unwrap_or_default();
        let is_new = observed > std::mem::replace(&mut gateway.observed_by_report, observed);
        self.learn_epoch(to, epoch);
        if is_new && self.setup.counts_reported_epochs {
            self.deliver_input(to, Some(Input::ObservedEpoch(observed)));
        }
    }

    /// Delay of one message in one direction, ns: mostly short, sometimes long.
    pub(super) fn delay_ns(&mut self) -> u64 {
        let FaultConfig { late, delay_ns_max, long_delay_ns, .. } = self.setup.faults;
        let delay_ns = 50_000 + self.random.exponential(200_000);
        let is_late = !self.faults_stopped && self.random.chance(late);
        if is_late { delay_ns + self.random.below(long_delay_ns) } else { delay_ns.min(delay_ns_max) }
    }

    // ---- starts ----

    fn restart(&mut self, number: usize) {
        let LeaseSetup { gateways, timing, safeguards, joins, counts_per_start, .. } = self.setup;
        if std::mem::take(&mut self.gateways[number].is_closing) {
            self.kill(number, false);
        }
        let gateway = &mut self.gateways[number];
        if gateway.core.is_some() {
            return;
        }
        gateway.incarnation += 1;
        // The state file has counts alone.
        gateway.own_epoch = Epoch::new(gateway.own_epoch.count() + counts_per_start, 0);
        gateway.fence.close();
        (gateway.epochs, gateway.reported_epochs) = epochs_of(gateway.own_epoch, &gateway.fence);
        gateway.observed_by_report = Epoch::default();
        gateway.connection += 1;
        gateway.store_restore_count = self.store.restore_count;
        gateway.last_watch_ns = 0;
        gateway.queued_inputs.clear();
        gateway.paused = false;
        let core = Lease::new(LeaseConfig {
            member: Member {
                node: node_of(number),
                name: name_of(number),
                incarnation: Incarnation(gateway.incarnation),
            },
            timing,
            candidates: (0..usize::from(gateways)).map(|number| (node_of(number), name_of(number))).collect(),
            configuration: ConfigVersion::default(),
            on_suspended: OnSuspended::Hold,
            preferred: None,
            own_epoch: gateway.own_epoch,
            moves: AutoMoveConfig::default(),
        });
        gateway.core = Some(Box::new(core.with_safeguards(safeguards)));
        self.gateway_events.push_back((number, GatewayEvent::Started));
        let eligibility = if joins { Eligibility::Joining } else { Eligibility::Eligible };
        self.deliver_input(number, Some(Input::Eligibility(eligibility)));
    }

    /// Continues a paused process. The hot thread first sends the packet that had passed the fence check, then checks the
    /// fence again. The election thread handles all queued inputs.
    pub(super) fn resume(&mut self, number: usize) {
        if !self.gateways[number].paused {
            return;
        }
        let SimulatedGateway { rate_ppm, slew_ppm, .. } = self.gateways[number];
        if rate_ppm + slew_ppm == STOPPED_PPM {
            self.slew(number, 0);
        }
        self.gateways[number].paused = false;
        self.gateway_events.push_back((number, GatewayEvent::Resumed));
        if let Some(epoch) = self.gateways[number].unsent_packet.take() {
            self.send_packet(epoch);
        }
        self.publish(number);
        while let Some(input) = self.gateways[number].queued_inputs.pop_front() {
            self.step(number, input);
        }
        let rate = self.clock_rate(number);
        self.deliver_input(number, rate);
    }

    /// Ends all faults and repairs everything.
    pub(crate) fn stop_faults(&mut self) {
        self.faults_stopped = true;
        self.partitions.clear();
        self.store_up();
        for gateway in 0..self.gateways.len() {
            self.resume(gateway);
            self.restart(gateway);
        }
    }

    pub(super) fn record_violation(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

/// What a gateway's process knows of epochs at its start.
fn epochs_of(own_epoch: Epoch, fence: &Arc<Fence>) -> (Arc<KnownEpochs>, ReportedEpochs) {
    let epochs = Arc::new(KnownEpochs::new(own_epoch, JUMP_MAX));
    let group = LinkedGroup { epochs: Arc::clone(&epochs), fence: Arc::clone(fence) };
    (epochs, ReportedEpochs::new(group))
}

/// Delay of a report over the pair link, ns.
const REPORT_DELAY_NS: u64 = 100_000;
/// Rate of a clock that stands still.
const STOPPED_PPM: i64 = -1_000_000;
/// Until a stopped clock shows a later time: longer than any pause.
const FROZEN_NS: u64 = 3_600_000 * MS;
/// How often an election thread checks whether sends have returned, ns.
const DRAIN_POLL_NS: u64 = 50_000;

pub(super) fn node_of(gateway: usize) -> NodeId {
    NodeId(u8::try_from(gateway + 1).expect("few gateways"))
}

fn name_of(gateway: usize) -> NodeName {
    NodeName::new(&format!("n{}", gateway + 1)).expect("a plain name")
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}

impl Ord for ScheduledEvent {
    /// Reversed, since a heap returns the greatest element first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for ScheduledEvent {}
