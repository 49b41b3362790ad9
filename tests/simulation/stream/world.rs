//! Gateways, subscribers and the network between them, on one virtual clock.

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
    MS, NetworkConditions, Setup, Violation,
    day::VenueScript,
    elected::SimulatedElection,
    gateway::{self, Gateway, RunningGateway},
    subscriber::{self, Subscriber},
};

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) now_ns: u64,
    /// By time, then by the order in which they were planned.
    events: BTreeMap<(u64, u64), Event>,
    planned: u64,
    day: Rc<VenueScript>,
    pub(super) seats: Vec<GatewaySlot>,
    pub(super) subscribers: Vec<Subscriber>,
    /// The election; `None`: one gateway leads at a time, and `faults.rs` chooses it.
    pub(super) election: Option<SimulatedElection>,
    pub(super) leader: Option<usize>,
    /// Counts the periods without a leader.
    pub(super) vacancies: u64,
    pub(super) epoch: Epoch,
    /// The highest of which a packet was sent.
    pub(super) epoch_sent: Epoch,
    /// Everything before it was put on the network.
    pub(super) published: Option<StreamPosition>,
    pub(super) faults_stopped: bool,
    /// The one gateway whose log maintenance may starve.
    pub(super) starved_gateway: usize,
    turns: usize,
    pub(super) counts: Counts,
    _directory: TempDir,
}

/// A gateway's place in the world.
pub(super) struct GatewaySlot {
    pub(super) gateway: Gateway,
    /// Counts its processes.
    pub(super) incarnation: u32,
    /// Its process is stopped.
    pub(super) is_stopped: bool,
    /// What came meanwhile.
    pub(super) unread: Vec<Rc<[u8]>>,
    /// It may stand for election.
    pub(super) is_eligible: bool,
    /// No segment is made ahead until then.
    pub(super) no_segments_until_ns: u64,
    /// By its lease it may send until then.
    pub(super) may_send_until_ns: u64,
}

pub(super) enum Event {
    /// The venue has sent something, or the gateway has more of it to read.
    Input {
        gateway: usize,
        incarnation: u32,
    },
    /// Threads that look at the time.
    Turn,
    /// A packet.
    Arrives {
        at: Destination,
        line: Line,
        /// Which service sent it, where it came from one.
        service: u8,
        bytes: Rc<[u8]>,
    },
    /// The leader reports to a gateway how far it has published.
    Confirmed {
        gateway: usize,
        position: StreamPosition,
    },
    /// A question to a retransmission service.
    Asked {
        gateway: usize,
        subscriber: usize,
        request: ServiceRequest,
    },
    /// A gateway that has led hands over.
    Ended {
        to: usize,
        epoch: Epoch,
        position: Option<StreamPosition>,
    },
    Elect {
        vacancy: u64,
    },
    /// A lease may have run out.
    Deadline {
        gateway: usize,
    },
    Fault,
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

/// What there was to see.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) openings: u64,
    pub(super) catch_up_packets: u64,
    pub(super) passed_over: u64,
    pub(super) refused: u64,
    pub(super) private: u64,
    pub(super) stale: u64,
    pub(super) answers: u64,
    pub(super) lost: u64,
    pub(super) told: u64,
}

/// How a run ended.
pub(super) struct RunOutcome {
    pub(super) violation: Option<Violation>,
    pub(super) counts: Counts,
    /// Digest of all deliveries and their times.
    pub(super) digest: u64,
}

impl World {
    pub(super) fn new(seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed);
        let day = Rc::new(VenueScript::new(&mut random));
        let directory = memory_temp_dir();
        let lines = 1 + random.below(2);
        let sockets: Vec<_> = (0..lines).map(|_| Arc::new(null_socket())).collect();
        let segment_bytes = [16 << 10, 64 << 10][usize::from(random.chance(0.5))];
        let full = if random.chance(0.5) { 0.3 * random.unit() } else { 0.0 };
        let seats = (0..setup.gateways).map(|number| {
            let node = node_of(number);
            let of_gateway =
                gateway::GatewaySetup { node, sockets: sockets.clone(), segment_bytes, full, doubts: setup.doubts };
            let random = Random::new(random.next_u64());
            let gateway = Gateway::new(of_gateway, directory.path().join(number.to_string()), &day, random);
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
        let seats: Vec<_> = seats.collect();
        let services = (setup.network == NetworkConditions::Lossy).then_some(setup.gateways);
        let of_subscriber = subscriber::SubscriberSetup {
            lines: u8::try_from(lines).expect("few lines"),
            services,
            checks_epochs: setup.checks_epochs,
            asks_all_services: setup.asks_all_services,
        };
        let starved_gateway = usize::try_from(random.below(setup.gateways as u64)).expect("few gateways");
        let random_seed = random.next_u64();
        let mut world = Self {
            setup,
            random,
            now_ns: 0,
            events: BTreeMap::new(),
            planned: 0,
            subscribers: (0..SUBSCRIBERS).map(|_| Subscriber::new(&day, of_subscriber)).collect(),
            day,
            seats,
            election: setup.uses_election.then(|| SimulatedElection::new(random_seed, setup.gateways)),
            leader: None,
            vacancies: 0,
            epoch: Epoch::default(),
            epoch_sent: Epoch::default(),
            published: None,
            faults_stopped: false,
            starved_gateway,
            turns: 0,
            counts: Counts::default(),
            _directory: directory,
        };
        if world.election.is_none() {
            for gateway in 0..setup.gateways {
                world.start(gateway);
            }
            world.open(0);
        }
        world.after(0, Event::Turn);
        world.after(30 * MS, Event::Fault);
        world
    }

    /// Runs the whole day, until all subscribers got all of it.
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
        let log_violation = self.seats.iter().find_map(|slot| slot.gateway.check_log());
        for slot in &self.seats {
            if let Some(counts) = slot.gateway.run.as_ref().map(RunningGateway::counts) {
                self.counts.add(counts);
            }
        }
        self.counts.stale = self.subscribers.iter().map(|subscriber| subscriber.stale).sum();
        self.counts.told = (self.subscribers.len() * self.day.told().len()) as u64;
        let digests = self.subscribers.iter().map(|subscriber| subscriber.digest().finish());
        let digest = digests.fold(self.now_ns, |all, digest| all.rotate_left(7) ^ digest);
        RunOutcome { violation: violation.or(missing).or(log_violation), counts: self.counts, digest }
    }

    pub(super) fn after(&mut self, delay_ns: u64, event: Event) {
        self.planned += 1;
        self.events.insert((self.now_ns + delay_ns, self.planned), event);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Input { gateway, incarnation } => self.input(gateway, incarnation),
            Event::Turn => self.turn(),
            Event::Arrives { at: Destination::Subscriber(number), line, service, bytes } => {
                self.subscribers[number].hear(line, service, &bytes, self.now_ns);
            }
            Event::Arrives { at: Destination::Gateway(number), bytes, .. } => self.hear(number, bytes),
            Event::Confirmed { gateway, position } => {
                if let Some(run) = self.running_gateway(gateway) {
                    run.standby.set_confirmed(position);
                }
            }
            Event::Asked { gateway, subscriber, request } => self.answer(gateway, subscriber, &request),
            Event::Ended { to, epoch, position } => self.take_over(to, epoch, position),
            Event::Elect { vacancy } => self.elect(vacancy),
            Event::Deadline { gateway } => self.expire_fence(gateway),
            Event::Fault => self.fault(),
            Event::Continue { gateway, incarnation } => self.resume(gateway, incarnation),
            Event::Start { gateway } => self.start(gateway),
        }
    }

    /// A gateway's process, unless it is stopped.
    pub(super) fn running_gateway(&mut self, gateway: usize) -> Option<&mut RunningGateway> {
        let GatewaySlot { gateway, is_stopped, .. } = &mut self.seats[gateway];
        gateway.run.as_mut().filter(|_| !*is_stopped)
    }

    // ---- gateways ----

    fn input(&mut self, gateway: usize, incarnation: u32) {
        let again = Event::Input { gateway, incarnation };
        let now_ns = self.now_ns;
        let slot = &mut self.seats[gateway];
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

    fn turn(&mut self) {
        let now_ns = self.now_ns;
        self.turns += 1;
        for gateway in 0..self.seats.len() {
            let is_starving = now_ns < self.seats[gateway].no_segments_until_ns;
            let is_heartbeat_due = self.turns % HEARTBEAT_TURNS == gateway;
            let Some(run) = self.running_gateway(gateway) else { continue };
            if !is_starving {
                run.run_maintenance(now_ns);
            }
            run.standby.follow(MonoNs(now_ns));
            run.standby.publish_watermark(MonoNs(now_ns));
            run.on_deadline(is_heartbeat_due);
            let (is_caught_up, heard) = (run.is_caught_up(now_ns), run.standby.heard());
            // Who comes back stands when it is level. If nobody has led since, it takes what its last process has logged for
            // sent, so without services it must have heard who does.
            let may_ask = self.setup.network == NetworkConditions::Lossy;
            self.seats[gateway].is_eligible |= is_caught_up && (may_ask || heard == Some(self.epoch));
            self.forward_sent(gateway);
        }
        if self.turns.is_multiple_of(HEARTBEAT_TURNS) {
            self.report_published();
        }
        for subscriber in 0..self.subscribers.len() {
            for (gateway, request) in self.subscribers[subscriber].look(now_ns) {
                let delay_ns = self.delay_ns();
                if !self.is_lost() {
                    self.after(delay_ns, Event::Asked { gateway, subscriber, request });
                }
            }
        }
        self.after(TURN_NS, Event::Turn);
    }

    /// The leader reports to the others how far it has published.
    fn report_published(&mut self) {
        let Some(leader) = self.leader else { return };
        let Some(position) = self.running_gateway(leader).and_then(RunningGateway::sent_position) else { return };
        for gateway in (0..self.seats.len()).filter(|other| *other != leader) {
            let delay_ns = self.delay_ns();
            if !self.is_lost() {
                self.after(delay_ns, Event::Confirmed { gateway, position });
            }
        }
    }

    pub(super) fn hear(&mut self, gateway: usize, bytes: Rc<[u8]>) {
        let now = MonoNs(self.now_ns);
        let slot = &mut self.seats[gateway];
        if slot.is_stopped {
            slot.unread.push(bytes);
        } else if let Some(run) = &mut slot.gateway.run {
            run.standby.follow(now);
            run.standby.observe(&bytes, now);
            run.standby.publish_watermark(now);
        }
    }
}

impl Counts {
    pub(super) fn add(&mut self, (publisher, writer): (PublishCounts, WriterCounts)) {
        self.openings += publisher.openings;
        self.catch_up_packets += publisher.catch_up_packets;
        self.passed_over += publisher.skipped_entries;
        self.refused += publisher.refused;
        self.private += writer.entries_private;
    }

    pub(super) fn sum(self, other: Self) -> Self {
        Self {
            openings: self.openings + other.openings,
            catch_up_packets: self.catch_up_packets + other.catch_up_packets,
            passed_over: self.passed_over + other.passed_over,
            refused: self.refused + other.refused,
            private: self.private + other.private,
            stale: self.stale + other.stale,
            answers: self.answers + other.answers,
            lost: self.lost + other.lost,
            told: self.told + other.told,
        }
    }
}

pub(super) fn node_of(gateway: usize) -> u8 {
    u8::try_from(gateway + 1).expect("few gateways")
}

/// Where nothing waits for a disk, if there is such a place.
fn memory_temp_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}

/// Stands for a socket.
fn null_socket() -> OwnedFd {
    File::open("/dev/null").expect("nothing").into()
}

const SUBSCRIBERS: usize = 2;
const TURN_NS: u64 = MS / 2;
const HEARTBEAT_TURNS: usize = 8;
/// This long after the last step, all subscribers have all of it, ns.
const RECOVERY_NS: u64 = 400 * MS;
