//! Simulates gateways, subscribers and the network between them on one virtual clock.

use std::{collections::BTreeMap, fs::File, hash::Hasher as _, os::fd::OwnedFd, path::Path, rc::Rc, sync::Arc};

use mdgw_captures::random::Random;
use mdgw_engine::publish::PublishCounts;
use mdgw_feeds::{
    identity::{Epoch, Line},
    published::{position::StreamPosition, request::ServiceRequest},
    time::MonoNs,
};
use mdgw_publog::WriterCounts;
use tempfile::TempDir;

use super::{
    MS, NetworkConditions, StreamSetup, Violation,
    election::SimulatedElection,
    gateway::{self, Gateway, RunningGateway},
    is_loss,
    standby::StandbySafeguards,
    subscriber::{self, Subscriber},
    venue_script::VenueScript,
};

pub(super) struct StreamSimulation {
    pub(super) setup: StreamSetup,
    pub(super) random: Random,
    pub(super) now_ns: u64,
    /// By time, then by the order in which the events were scheduled.
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    day: Rc<VenueScript>,
    pub(super) slots: Vec<GatewaySlot>,
    pub(super) subscribers: Vec<Subscriber>,
    /// The simulated election. `None`: `faults.rs` chooses one leader at a time.
    pub(super) election: Option<SimulatedElection>,
    pub(super) leader: Option<usize>,
    /// Counts the periods without a leader.
    pub(super) vacancies: u64,
    pub(super) epoch: Epoch,
    /// The highest epoch under which a packet was sent.
    pub(super) epoch_sent: Epoch,
    /// Everything before this position was put on the network.
    pub(super) published: Option<StreamPosition>,
    pub(super) faults_stopped: bool,
    /// The output cable of this leader is dead.
    pub(super) output_cut: Option<OutputCut>,
    /// The last cut, also one that is over.
    pub(super) last_cut: Option<OutputCut>,
    /// The only gateway whose log maintenance may be suspended, so that its log runs out of segments.
    pub(super) starved_gateway: usize,
    ticks: usize,
    pub(super) counts: Counts,
    _directory: TempDir,
}

/// One gateway, with the state that outlives its process.
pub(super) struct GatewaySlot {
    pub(super) gateway: Gateway,
    /// Counts the starts of the process.
    pub(super) incarnation: u32,
    /// The process is paused.
    pub(super) is_stopped: bool,
    /// Packets that arrived while the process was paused.
    pub(super) unread: Vec<Rc<[u8]>>,
    /// The gateway may be elected.
    pub(super) is_eligible: bool,
    /// Log maintenance prepares no segment before this time.
    pub(super) no_segments_until_ns: u64,
    /// End of the lease: the gateway may send before this time.
    pub(super) may_send_until_ns: u64,
}

/// A leader's output cable is dead: the kernel accepts its packets, and nobody receives them.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputCut {
    pub(super) gateway: usize,
    pub(super) epoch: Epoch,
}

pub(super) enum Event {
    /// The gateway reads what the venue has sent.
    Input {
        gateway: usize,
        incarnation: u32,
    },
    /// The timers of all threads.
    Tick,
    PacketArrives {
        to: Destination,
        line: Line,
        /// The retransmission service that sent the packet; 0 for a published packet.
        service: u8,
        bytes: Rc<[u8]>,
    },
    /// The leader's report of its published position arrives at a gateway.
    PositionReported {
        gateway: usize,
        position: StreamPosition,
    },
    /// A subscriber's request arrives at a retransmission service.
    RetransmissionRequested {
        gateway: usize,
        subscriber: usize,
        request: ServiceRequest,
    },
    /// The hand-over message of the previous leader arrives, after its last report.
    HandedOver {
        to: usize,
        epoch: Epoch,
    },
    Elect {
        vacancy: u64,
    },
    /// A lease may have expired.
    LeaseDeadline {
        gateway: usize,
    },
    Fault,
    /// Leadership of a gateway with a dead output cable ends.
    CutLeadershipEnds,
    Continue {
        gateway: usize,
        incarnation: u32,
    },
    Start {
        gateway: usize,
    },
}

#[derive(Clone, Copy)]
pub(super) enum Destination {
    Gateway(usize),
    Subscriber(usize),
}

/// Counts that show which cases a run has covered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) openings: u64,
    pub(super) catch_up_packets: u64,
    pub(super) skipped_entries: u64,
    /// Packets that a full socket refused.
    pub(super) refused: u64,
    /// Entries that were kept in private memory because the log had no segment.
    pub(super) private_entries: u64,
    /// Packets of an old epoch that arrived at a subscriber.
    pub(super) stale_packets: u64,
    /// Answers of retransmission services.
    pub(super) answers: u64,
    /// Packets that the network dropped.
    pub(super) lost: u64,
    /// Packets that the kernel accepted and a dead output cable lost.
    pub(super) cut_packets: u64,
    /// Items that subscribers had to receive.
    pub(super) expected_items: u64,
    /// Runs with a loss after a kill within the time in which an epoch is not stored yet.
    pub(super) exempt_losses: u64,
}

/// The result of one run.
pub(super) struct RunOutcome {
    pub(super) violation: Option<Violation>,
    pub(super) counts: Counts,
    /// Digest of all deliveries and their times.
    pub(super) digest: u64,
}

impl StreamSimulation {
    pub(super) fn new(seed: u64, setup: StreamSetup) -> Self {
        let mut random = Random::new(seed);
        let day = Rc::new(VenueScript::new(&mut random, setup.session_break_ns));
        let directory = memory_temp_dir();
        let lines = 1 + random.below(2);
        let sockets: Vec<_> = (0..lines).map(|_| Arc::new(null_socket())).collect();
        let segment_bytes = [16 << 10, 64 << 10][usize::from(random.chance(0.5))];
        let full_share = if random.chance(0.5) { 0.3 * random.unit() } else { 0.0 };
        let slots = (0..setup.gateways).map(|number| {
            let node = node_of(number);
            let gateway_setup = gateway::GatewaySetup {
                node,
                sockets: sockets.clone(),
                segment_bytes,
                full_share,
                // Half of the runs.
                held_delay_ns_max: if seed % 4 < 2 { 0 } else { HELD_DELAY_NS_MAX },
                safeguards: StandbySafeguards {
                    rejects_beyond_input: setup.rejects_beyond_input,
                    counts_received_only: setup.counts_received_only,
                },
                restart: setup.restart,
            };
            let random = Random::new(random.next_u64());
            let gateway = Gateway::new(gateway_setup, directory.path().join(number.to_string()), &day, random);
            let (is_stopped, unread) = (false, Vec::new());
            GatewaySlot {
                gateway,
                incarnation: 0,
                is_stopped,
                unread,
                is_eligible: true,
                no_segments_until_ns: 0,
                may_send_until_ns: 0,
            }
        });
        let slots: Vec<_> = slots.collect();
        let services = (setup.network == NetworkConditions::Lossy).then_some(setup.gateways);
        let subscriber_setup = subscriber::SubscriberSetup {
            lines: u8::try_from(lines).expect("few lines"),
            services,
            checks_epochs: setup.checks_epochs,
            asks_all_services: setup.asks_all_services,
            waits_for_end: setup.waits_for_end,
        };
        let starved_gateway = usize::try_from(random.below(setup.gateways as u64)).expect("few gateways");
        let random_seed = random.next_u64();
        let mut simulation = Self {
            setup,
            random,
            now_ns: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            subscribers: (0..SUBSCRIBERS).map(|_| Subscriber::new(&day, subscriber_setup)).collect(),
            day,
            slots,
            election: setup.uses_election.then(|| SimulatedElection::new(random_seed, setup.gateways)),
            leader: None,
            vacancies: 0,
            epoch: Epoch::default(),
            epoch_sent: Epoch::default(),
            published: None,
            faults_stopped: false,
            output_cut: None,
            last_cut: None,
            starved_gateway,
            ticks: 0,
            counts: Counts::default(),
            _directory: directory,
        };
        if simulation.election.is_none() {
            for gateway in 0..setup.gateways {
                simulation.start(gateway);
            }
            simulation.open(0);
        }
        simulation.after(0, Event::Tick);
        simulation.after(30 * MS, Event::Fault);
        simulation
    }

    /// Runs the whole day, until each subscriber has received everything.
    pub(super) fn run(mut self) -> RunOutcome {
        let end_ns = self.day.end_ns();
        let mut violation = None;
        while let Some(((at_ns, _), event)) = self.events.pop_first() {
            self.elect_until(at_ns);
            self.now_ns = at_ns;
            if at_ns > end_ns && !self.faults_stopped {
                self.stop_faults();
            }
            violation = self.subscribers.iter().find_map(Subscriber::violation).cloned();
            violation = violation.or_else(|| self.election.as_ref().and_then(SimulatedElection::violation));
            let all_complete = self.faults_stopped && self.subscribers.iter().all(Subscriber::is_complete);
            if violation.is_some() || all_complete || at_ns > end_ns + RECOVERY_NS {
                break;
            }
            self.handle_event(event);
        }
        let missing = self.subscribers.iter().find_map(Subscriber::missing);
        let log_violation = self.slots.iter().find_map(|slot| slot.gateway.check_log());
        for slot in &self.slots {
            if let Some(counts) = slot.gateway.run.as_ref().map(RunningGateway::counts) {
                self.counts.add(counts);
            }
        }
        self.counts.stale_packets = self.subscribers.iter().map(|subscriber| subscriber.stale_packets).sum();
        self.counts.expected_items = (self.subscribers.len() * self.day.expected_items().len()) as u64;
        let digests = self.subscribers.iter().map(|subscriber| subscriber.digest().finish());
        let digest = digests.fold(self.now_ns, |all, digest| all.rotate_left(7) ^ digest);
        let mut violation = violation.or(missing).or(log_violation);
        let is_exempt = self.slots.iter().any(|slot| slot.gateway.has_forgotten_held);
        self.counts.exempt_losses = u64::from(violation.take_if(|violation| is_exempt && is_loss(violation)).is_some());
        RunOutcome { violation, counts: self.counts, digest }
    }

    pub(super) fn after(&mut self, delay_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now_ns + delay_ns, self.scheduled), event);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Input { gateway, incarnation } => self.input(gateway, incarnation),
            Event::Tick => self.tick(),
            Event::PacketArrives { to: Destination::Subscriber(number), line, service, bytes } => {
                self.subscribers[number].receive(line, service, &bytes, self.now_ns);
            }
            Event::PacketArrives { to: Destination::Gateway(number), bytes, .. } => {
                self.receive_at_gateway(number, bytes)
            }
            Event::PositionReported { gateway, position } => {
                let now = MonoNs(self.now_ns);
                if let Some(run) = self.running_gateway(gateway) {
                    run.standby.set_reported_position(position, now);
                    run.standby.publish_watermark(now);
                }
            }
            Event::RetransmissionRequested { gateway, subscriber, request } => {
                self.answer(gateway, subscriber, &request)
            }
            Event::HandedOver { to, epoch } => self.take_over(to, epoch),
            Event::Elect { vacancy } => self.elect(vacancy),
            Event::LeaseDeadline { gateway } => self.expire_fence(gateway),
            Event::Fault => self.fault(),
            Event::CutLeadershipEnds => self.end_cut_leadership(),
            Event::Continue { gateway, incarnation } => self.resume(gateway, incarnation),
            Event::Start { gateway } => self.start(gateway),
        }
    }

    /// The process of a gateway, unless it is down or paused.
    pub(super) fn running_gateway(&mut self, gateway: usize) -> Option<&mut RunningGateway> {
        let GatewaySlot { gateway, is_stopped, .. } = &mut self.slots[gateway];
        gateway.run.as_mut().filter(|_| !*is_stopped)
    }

    // ---- gateways ----

    fn input(&mut self, gateway: usize, incarnation: u32) {
        let again = Event::Input { gateway, incarnation };
        let now_ns = self.now_ns;
        let slot = &mut self.slots[gateway];
        if slot.incarnation != incarnation {
            return;
        }
        if slot.is_stopped {
            return self.after(MS, again);
        }
        let (is_starving, steps_max) = (now_ns < slot.no_segments_until_ns, if slot.is_eligible { 6 } else { 12 });
        let steps = 1 + self.random.below(steps_max);
        let Some(run) = self.running_gateway(gateway) else { return };
        if !is_starving {
            run.run_maintenance(now_ns);
        }
        run.process_input(now_ns, steps);
        let (is_caught_up, next_ns) = (run.is_caught_up(now_ns), run.next_input_ns());
        self.forward_sent(gateway);
        let Some(next_ns) = next_ns else { return };
        let is_lagging = !self.faults_stopped && self.random.chance(0.02);
        let lag_ns = self.random.below(if is_lagging { 8 * MS } else { 80_000 });
        self.after(if is_caught_up { next_ns - now_ns + lag_ns } else { 20_000 + lag_ns / 2 }, again);
    }

    fn tick(&mut self) {
        let now_ns = self.now_ns;
        self.ticks += 1;
        for gateway in 0..self.slots.len() {
            let is_starving = now_ns < self.slots[gateway].no_segments_until_ns;
            let is_heartbeat_due = self.ticks % HEARTBEAT_TICKS == gateway;
            let Some(run) = self.running_gateway(gateway) else { continue };
            if !is_starving {
                run.run_maintenance(now_ns);
            }
            run.standby.follow(MonoNs(now_ns));
            run.note_published(MonoNs(now_ns));
            run.standby.publish_watermark(MonoNs(now_ns));
            run.on_deadline(is_heartbeat_due);
            // A restarted gateway becomes eligible when it has caught up, and, if so set up, has received the present leader.
            let (is_caught_up, received) = (run.is_caught_up(now_ns), run.standby.received_epoch());
            let may_lead = !self.setup.waits_for_leader() || received == self.epoch;
            self.slots[gateway].is_eligible |= is_caught_up && may_lead;
            self.slots[gateway].gateway.store_held(now_ns);
            if self.ticks.is_multiple_of(STORE_TICKS) && !self.is_blind(gateway) {
                self.slots[gateway].gateway.store(MonoNs(now_ns));
            }
            self.forward_sent(gateway);
        }
        if self.ticks.is_multiple_of(HEARTBEAT_TICKS) {
            self.report_published();
        }
        for subscriber in 0..self.subscribers.len() {
            for (gateway, request) in self.subscribers[subscriber].poll_requests(now_ns) {
                let delay_ns = self.delay_ns();
                if !self.is_lost() {
                    self.after(delay_ns, Event::RetransmissionRequested { gateway, subscriber, request });
                }
            }
        }
        self.after(TICK_NS, Event::Tick);
    }

    /// The leader sends its published position to the other gateways.
    fn report_published(&mut self) {
        let Some(leader) = self.leader else { return };
        let Some(position) = self.running_gateway(leader).and_then(RunningGateway::sent_position) else { return };
        for gateway in (0..self.slots.len()).filter(|other| *other != leader) {
            let delay_ns = self.delay_ns();
            if !self.is_lost() {
                self.after(delay_ns, Event::PositionReported { gateway, position });
            }
        }
    }

    pub(super) fn receive_at_gateway(&mut self, gateway: usize, bytes: Rc<[u8]>) {
        let now = MonoNs(self.now_ns);
        let slot = &mut self.slots[gateway];
        if slot.is_stopped {
            slot.unread.push(bytes);
        } else if let Some(run) = &mut slot.gateway.run {
            run.standby.follow(now);
            run.standby.observe(&bytes, run.fence.epoch(), now);
            run.standby.publish_watermark(now);
        }
    }
}

impl Counts {
    pub(super) fn add(&mut self, (publisher, writer): (PublishCounts, WriterCounts)) {
        self.openings += publisher.openings;
        self.catch_up_packets += publisher.catch_up_packets;
        self.skipped_entries += publisher.skipped_entries;
        self.refused += publisher.refused;
        self.private_entries += writer.entries_private;
    }

    pub(super) fn sum(self, other: Self) -> Self {
        Self {
            openings: self.openings + other.openings,
            catch_up_packets: self.catch_up_packets + other.catch_up_packets,
            skipped_entries: self.skipped_entries + other.skipped_entries,
            refused: self.refused + other.refused,
            private_entries: self.private_entries + other.private_entries,
            stale_packets: self.stale_packets + other.stale_packets,
            answers: self.answers + other.answers,
            lost: self.lost + other.lost,
            cut_packets: self.cut_packets + other.cut_packets,
            expected_items: self.expected_items + other.expected_items,
            exempt_losses: self.exempt_losses + other.exempt_losses,
        }
    }
}

pub(super) fn node_of(gateway: usize) -> u8 {
    u8::try_from(gateway + 1).expect("few gateways")
}

/// A temporary directory in memory where possible, so that no write waits for a disk.
fn memory_temp_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}

/// A file descriptor in place of a socket. Nothing is sent through it.
fn null_socket() -> OwnedFd {
    File::open("/dev/null").expect("nothing").into()
}

const SUBSCRIBERS: usize = 2;
const TICK_NS: u64 = MS / 2;
const HEARTBEAT_TICKS: usize = 8;
const STORE_TICKS: usize = 10;
/// In the product an epoch is on disk within a fraction of the time between two faults: 120 ms and a write.
const HELD_DELAY_NS_MAX: u64 = 2 * MS;
/// Within this time after the last step, each subscriber must have received everything, ns.
const RECOVERY_NS: u64 = 400 * MS;
