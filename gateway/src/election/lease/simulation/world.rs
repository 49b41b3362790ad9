//! The simulated world.

use std::collections::{BTreeMap, VecDeque};

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use crate::{
    election::{
        core::{Core, Input, Output},
        fitness::Standing,
        identity::NodeId,
        lease::{Lease, LeaseConfig, MovesConfig, OnSuspended, Safeguard},
        peer::{DeathNotice, PeerMessage},
        record::{ConfigurationMark, tests::member},
        register::{Link, Outcome, RegisterEvent, RegisterRequest, Version, Versioned},
        timing::LeaseTiming,
    },
    standin::random::Random,
};

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) gateways: u8,
    /// Faults happen, on average so often.
    pub(super) fault_every_ns: Option<u64>,
    /// The store is also restored from backups.
    pub(super) restores: bool,
    pub(super) margin: bool,
    pub(super) version_check: bool,
    pub(super) epochs_heard: bool,
    pub(super) receivers_fence: bool,
    pub(super) without: Option<Safeguard>,
}

impl Setup {
    pub(super) const CALM: Self = Self {
        gateways: 2,
        fault_every_ns: None,
        restores: false,
        margin: true,
        version_check: true,
        epochs_heard: true,
        receivers_fence: true,
        without: None,
    };
    pub(super) const STORM: Self = Self { fault_every_ns: Some(12 * MS), ..Self::CALM };

    fn timing(&self) -> LeaseTiming {
        let timing = LeaseTiming::from_ms(20, 4, 4);
        if self.margin { timing } else { LeaseTiming { margin_ns: 0, ..timing } }
    }
}

/// All of it.
pub(super) struct World {
    setup: Setup,
    random: Random,
    now_ns: u64,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    gateways: Vec<Gateway>,
    store: Store,
    /// From gateway to gateway; the store is the last index.
    cuts: BTreeMap<(usize, usize), u64>,
    opened: Epoch,
    openings: usize,
    violation: Option<String>,
}

struct Gateway {
    core: Option<Lease>,
    incarnation: u64,
    rate_ppm: i64,
    offset_ns: u64,
    paused: bool,
    /// What came while it was paused.
    unread: VecDeque<Input<RegisterEvent>>,
    connection: u64,
    /// Which life of the store its connection leads to.
    store_life: u64,
    watch_at_ns: u64,
    own_epoch: Epoch,
    fence: Option<OpenFence>,
    /// Until when sends of its last opening could return, in true time.
    sends_until_ns: u64,
    /// A packet that was checked and not sent when it was paused.
    parked: Option<Epoch>,
}

struct OpenFence {
    epoch: Epoch,
    deadline: MonoNs,
}

#[derive(Default)]
struct Store {
    stored: Option<Versioned>,
    is_down: bool,
    life: u64,
    backup: Option<Versioned>,
}

enum Event {
    Wake(usize),
    ToGateway { to: usize, incarnation: u64, connection: Option<u64>, input: Input<RegisterEvent> },
    AtStore { from: usize, incarnation: u64, connection: u64, life: u64, request: RegisterRequest },
    Fault,
    Heal(usize, usize),
    StoreUp,
    Resume(usize),
    Restart(usize),
}

const MS: u64 = 1_000_000;
const STORM_NS: u64 = 1_000 * MS;
const CALM_NS: u64 = 400 * MS;

impl World {
    pub(super) fn new(seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed);
        let gateways = (0..setup.gateways)
            .map(|_| Gateway {
                core: None,
                incarnation: 0,
                rate_ppm: i64::try_from(random.below(401)).unwrap() - 200,
                offset_ns: 1_000 * MS + random.below(1_000 * MS),
                paused: false,
                unread: VecDeque::new(),
                connection: 0,
                store_life: 0,
                watch_at_ns: 0,
                own_epoch: Epoch::default(),
                fence: None,
                sends_until_ns: 0,
                parked: None,
            })
            .collect();
        let mut world = Self {
            setup,
            random,
            now_ns: 0,
            events: BTreeMap::new(),
            count: 0,
            gateways,
            store: Store::default(),
            cuts: BTreeMap::new(),
            opened: Epoch::default(),
            openings: 0,
            violation: None,
        };
        for gateway in 0..world.gateways.len() {
            let delay_ns = world.random.below(30 * MS);
            world.at(delay_ns, Event::Restart(gateway));
        }
        if setup.fault_every_ns.is_some() {
            world.at(60 * MS, Event::Fault);
        }
        world
    }

    /// The storm, then calm; what was violated.
    pub(super) fn run(&mut self) -> Result<(), String> {
        while let Some(((at_ns, _), event)) = self.events.pop_first() {
            if at_ns > STORM_NS + CALM_NS {
                break;
            }
            self.now_ns = at_ns;
            self.happen(event);
            if let Some(violation) = self.violation.take() {
                return Err(format!("at {:.3} ms: {violation}", self.now_ns as f64 / 1e6));
            }
        }
        let leading = self.gateways.iter().filter(|gateway| gateway.fence.is_some()).count();
        if leading == 1 { Ok(()) } else { Err(format!("{leading} lead when all is calm again")) }
    }

    pub(super) fn openings(&self) -> usize {
        self.openings
    }

    fn at(&mut self, delay_ns: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.now_ns + delay_ns, self.count), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(gateway) => self.tell(gateway, None),
            Event::ToGateway { to, incarnation, connection, input } => {
                let gateway = &self.gateways[to];
                let is_for_it = gateway.incarnation == incarnation
                    && connection.is_none_or(|connection| connection == gateway.connection);
                if is_for_it {
                    self.tell(to, Some(input));
                }
            }
            Event::AtStore { from, incarnation, connection, life, request } => {
                self.at_store(from, incarnation, connection, life, &request);
            }
            Event::Fault => self.fault(),
            Event::Heal(from, to) => self.heal(from, to),
            Event::StoreUp => {
                self.store.is_down = false;
                for gateway in 0..self.gateways.len() {
                    self.watch_tells(gateway);
                }
            }
            Event::Resume(gateway) => self.resume(gateway),
            Event::Restart(gateway) => self.restart(gateway),
        }
    }

    // ---- gateways ----

    fn local(&self, gateway: usize) -> MonoNs {
        let Gateway { rate_ppm, offset_ns, .. } = self.gateways[gateway];
        let now = i128::from(self.now_ns);
        let local = i128::from(offset_ns) + now + now * i128::from(rate_ppm) / 1_000_000;
        MonoNs(u64::try_from(local).unwrap())
    }

    /// How much true time passes until a gateway's clock shows `local`.
    fn until_local(&self, gateway: usize, local: MonoNs) -> u64 {
        let left = i128::from(local.since(self.local(gateway)));
        let true_ns = left * 1_000_000 / (1_000_000 + i128::from(self.gateways[gateway].rate_ppm));
        u64::try_from(true_ns).unwrap() + u64::from(left > 0)
    }

    fn tell(&mut self, gateway: usize, input: Option<Input<RegisterEvent>>) {
        if self.gateways[gateway].paused {
            self.gateways[gateway].unread.extend(input);
            return;
        }
        for input in input.into_iter().chain([Input::Time]) {
            self.step(gateway, input);
        }
        self.wake_later(gateway);
    }

    fn step(&mut self, gateway: usize, input: Input<RegisterEvent>) {
        if input == Input::Backend(RegisterEvent::Link(Link::Doubtful)) {
            self.gateways[gateway].store_life = self.store.life;
        }
        let now = self.local(gateway);
        let Some(core) = &mut self.gateways[gateway].core else { return };
        for output in core.step(now, input) {
            self.carry_out(gateway, output);
        }
    }

    fn wake_later(&mut self, gateway: usize) {
        let next = self.gateways[gateway].core.as_ref().and_then(Lease::next_deadline);
        if let Some(next) = next {
            // No thread wakes at once.
            let delay_ns = self.until_local(gateway, next) + 10_000 + self.random.below(40_000);
            self.at(delay_ns, Event::Wake(gateway));
        }
    }

    fn carry_out(&mut self, gateway: usize, output: Output<RegisterRequest>) {
        match output {
            Output::Open { epoch, deadline } => {
                if epoch <= self.opened {
                    self.violation = Some(format!("gateway {gateway} opens under {epoch:?} after {:?}", self.opened));
                }
                self.opened = self.opened.max(epoch);
                self.openings += 1;
                self.fence(gateway, epoch, deadline);
                for other in 0..self.gateways.len() {
                    if self.setup.epochs_heard {
                        self.gateways[other].own_epoch = self.gateways[other].own_epoch.max(epoch);
                        self.send(other, Input::Heard(epoch), 50_000);
                    }
                }
            }
            Output::Renew { deadline } => {
                let epoch = self.gateways[gateway].fence.as_ref().map_or_else(Epoch::default, |fence| fence.epoch);
                self.fence(gateway, epoch, deadline);
            }
            Output::Close { .. } => self.close(gateway),
            Output::Drain => {
                // What was checked before the closing returns now.
                self.send(gateway, Input::Drained { positions: BTreeMap::new() }, 100_000);
            }
            Output::Request(request) => self.ask_store(gateway, request),
            Output::Peer { to, message } => self.send_to_peer(gateway, to, message),
            Output::Connection(_) | Output::Notice(_) => {}
        }
    }

    /// A fence is open until that moment: is it the only one?
    fn fence(&mut self, gateway: usize, epoch: Epoch, deadline: MonoNs) {
        let until_ns = self.now_ns + self.until_local(gateway, deadline);
        if until_ns <= self.now_ns {
            return;
        }
        for other in 0..self.gateways.len() {
            if other != gateway && self.sends_until(other) > self.now_ns {
                self.violation = Some(format!("gateway {gateway} may send, and {other} still does"));
            }
        }
        self.gateways[gateway].fence = Some(OpenFence { epoch, deadline });
    }

    /// Until when a gateway's sends may return, in true time.
    fn sends_until(&self, gateway: usize) -> u64 {
        let Gateway { fence, sends_until_ns, .. } = &self.gateways[gateway];
        let open_ns = fence.as_ref().map_or(0, |fence| {
            self.now_ns + self.until_local(gateway, fence.deadline) + LeaseTiming::from_ms(20, 4, 4).send_ns_max
        });
        if self.local(gateway) >= fence.as_ref().map_or(MonoNs(u64::MAX), |fence| fence.deadline) {
            // Past its deadline: what was checked just before it may still return.
            let late_ns = self.local(gateway).since(fence.as_ref().map_or(MonoNs(0), |fence| fence.deadline));
            return self.now_ns + LeaseTiming::from_ms(20, 4, 4).send_ns_max.saturating_sub(late_ns);
        }
        open_ns.max(*sends_until_ns)
    }

    fn close(&mut self, gateway: usize) {
        self.gateways[gateway].fence = None;
        self.gateways[gateway].sends_until_ns = self.now_ns;
    }

    /// To a gateway, from within its machine or over a network that is not simulated further.
    fn send(&mut self, to: usize, input: Input<RegisterEvent>, delay_ns: u64) {
        let incarnation = self.gateways[to].incarnation;
        self.at(delay_ns, Event::ToGateway { to, incarnation, connection: None, input });
    }

    fn send_to_peer(&mut self, from: usize, to: NodeId, message: PeerMessage) {
        let to = usize::from(to.0) - 1;
        if self.is_cut(from, to) || self.random.chance(0.02) {
            return;
        }
        let delay_ns = self.delay_ns();
        let input = Input::Peer { from: NodeId(u8::try_from(from).unwrap() + 1), message };
        self.send(to, input, delay_ns);
    }

    fn delay_ns(&mut self) -> u64 {
        let delay_ns = 50_000 + self.random.exponential(200_000);
        let is_late = self.setup.fault_every_ns.is_some() && self.now_ns < STORM_NS && self.random.chance(0.05);
        if is_late { delay_ns + self.random.below(40 * MS) } else { delay_ns.min(2 * MS) }
    }

    fn restart(&mut self, number: usize) {
        let node = u8::try_from(number).unwrap() + 1;
        let gateway = &mut self.gateways[number];
        if gateway.core.is_some() {
            return;
        }
        gateway.incarnation += 1;
        gateway.connection += 1;
        gateway.store_life = self.store.life;
        gateway.unread.clear();
        gateway.paused = false;
        let names = (1..=self.setup.gateways).map(|node| (NodeId(node), member(node, 0).name));
        let mut core = Lease::new(LeaseConfig {
            member: member(node, gateway.incarnation),
            timing: self.setup.timing(),
            candidates: names.collect(),
            configuration: ConfigurationMark::default(),
            on_suspended: OnSuspended::Hold,
            preferred: None,
            own_epoch: gateway.own_epoch,
            moves: MovesConfig::default(),
        });
        core.without = self.setup.without;
        gateway.core = Some(core);
        self.tell(number, Some(Input::Standing(Standing::Stands)));
    }

    fn resume(&mut self, number: usize) {
        let gateway = &mut self.gateways[number];
        if !std::mem::take(&mut gateway.paused) {
            return;
        }
        if let Some(epoch) = gateway.parked.take()
            && epoch < self.opened
            && !self.setup.receivers_fence
        {
            self.violation = Some(format!("receivers take {epoch:?} after {:?}", self.opened));
        }
        // All that has come is known before anything is decided.
        while let Some(input) = self.gateways[number].unread.pop_front() {
            self.step(number, input);
        }
        self.tell(number, None);
    }

    // ---- store ----

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|count| *count > 0)
    }

    fn store_index(&self) -> usize {
        self.gateways.len()
    }

    fn ask_store(&mut self, from: usize, request: RegisterRequest) {
        if request == RegisterRequest::Reconnect {
            let life = self.store.life;
            let gateway = &mut self.gateways[from];
            gateway.connection += 1;
            gateway.store_life = life;
            gateway.watch_at_ns = 0;
            return self.watch_tells(from);
        }
        let Gateway { incarnation, connection, store_life: life, .. } = self.gateways[from];
        if self.is_cut(from, self.store_index()) {
            return;
        }
        let delay_ns = self.delay_ns();
        self.at(delay_ns, Event::AtStore { from, incarnation, connection, life, request });
    }

    fn at_store(&mut self, from: usize, incarnation: u64, connection: u64, life: u64, request: &RegisterRequest) {
        // A request to a store that was restored since ends with its connection.
        if self.store.is_down || life != self.store.life {
            return;
        }
        let (ticket, outcome) = match request {
            RegisterRequest::Read(ticket) => (*ticket, Outcome::Read(self.store.stored.clone())),
            RegisterRequest::CompareAndSwap { ticket, expected, record } => {
                let version = self.store.stored.as_ref().map_or(Version::NONE, |stored| stored.version);
                if *expected == version || !self.setup.version_check {
                    let version = Version(version.0 + 1);
                    self.store.stored = Some(Versioned { version, record: (**record).clone() });
                    for gateway in 0..self.gateways.len() {
                        self.watch_tells(gateway);
                    }
                    (*ticket, Outcome::Swapped(version))
                } else {
                    (*ticket, Outcome::Refused)
                }
            }
            RegisterRequest::Reconnect => return,
        };
        let is_lost = self.now_ns < STORM_NS && self.setup.fault_every_ns.is_some() && self.random.chance(0.03);
        if self.is_cut(self.store_index(), from) {
            return;
        }
        let outcome = if is_lost { Outcome::Unknown("broken off".to_owned()) } else { outcome };
        let input = Input::Backend(RegisterEvent::Answer { ticket, outcome });
        let delay_ns = self.delay_ns();
        self.at(delay_ns, Event::ToGateway { to: from, incarnation, connection: Some(connection), input });
    }

    /// The watch tells in order, and nothing while it is cut.
    fn watch_tells(&mut self, to: usize) {
        if self.store.is_down || self.is_cut(self.store_index(), to) {
            return;
        }
        let at_ns = (self.now_ns + self.delay_ns()).max(self.gateways[to].watch_at_ns + 1);
        self.gateways[to].watch_at_ns = at_ns;
        let Gateway { incarnation, connection, .. } = self.gateways[to];
        let input = Input::Backend(RegisterEvent::Changed(self.store.stored.clone()));
        let delay_ns = at_ns - self.now_ns;
        self.at(delay_ns, Event::ToGateway { to, incarnation, connection: Some(connection), input });
    }

    fn heal(&mut self, from: usize, to: usize) {
        if let Some(count) = self.cuts.get_mut(&(from, to)) {
            *count -= 1;
        }
        if from == self.store_index() {
            self.watch_tells(to);
        }
    }

    // ---- faults ----

    fn fault(&mut self) {
        let Some(every_ns) = self.setup.fault_every_ns else { return };
        if self.now_ns > STORM_NS {
            return;
        }
        let next_ns = self.random.exponential(every_ns);
        self.at(next_ns, Event::Fault);
        let gateway = usize::try_from(self.random.below(u64::from(self.setup.gateways))).unwrap();
        let lasts_ns = MS + self.random.exponential(40 * MS).min(300 * MS);
        match self.random.below(8) {
            0 => self.kill(gateway, lasts_ns),
            1 | 2 => self.pause(gateway, lasts_ns),
            3 => {
                let store = self.store_index();
                self.cut(gateway, store, lasts_ns);
            }
            4 => {
                let store = self.store_index();
                self.cut(store, gateway, lasts_ns);
            }
            5 => {
                let other = (gateway + 1) % self.gateways.len();
                self.cut(gateway, other, lasts_ns);
            }
            6 => self.hand_over(gateway),
            _ => self.store_fault(lasts_ns),
        }
    }

    fn kill(&mut self, number: usize, lasts_ns: u64) {
        let gateway = &mut self.gateways[number];
        if gateway.core.take().is_none() {
            return;
        }
        gateway.paused = false;
        gateway.parked = None;
        let node = NodeId(u8::try_from(number).unwrap() + 1);
        let incarnation = member(0, gateway.incarnation).incarnation;
        let led = gateway.fence.take().map(|fence| fence.epoch);
        gateway.sends_until_ns = self.now_ns;
        if let Some(epoch) = led
            && self.random.chance(0.7)
        {
            for other in 0..self.gateways.len() {
                let delay_ns = self.delay_ns();
                self.send(other, Input::Died(DeathNotice { holder: node, incarnation, epoch }), delay_ns);
            }
        }
        self.at(lasts_ns, Event::Restart(number));
    }

    fn pause(&mut self, number: usize, lasts_ns: u64) {
        let gateway = &mut self.gateways[number];
        if gateway.core.is_none() || gateway.paused {
            return;
        }
        gateway.paused = true;
        gateway.parked = gateway.fence.as_ref().map(|fence| fence.epoch);
        self.at(lasts_ns, Event::Resume(number));
    }

    fn cut(&mut self, from: usize, to: usize, lasts_ns: u64) {
        *self.cuts.entry((from, to)).or_default() += 1;
        self.at(lasts_ns, Event::Heal(from, to));
    }

    fn hand_over(&mut self, gateway: usize) {
        for number in 0..self.gateways.len() {
            let Some(state) = self.gateways[number].core.as_ref().map(Lease::peer_state) else { continue };
            let from = state.member.node;
            for other in 0..self.gateways.len() {
                if other != number {
                    self.send(other, Input::Peer { from, message: PeerMessage::State(state.clone()) }, 10_000);
                }
            }
        }
        self.send(gateway, Input::HandOver(None), 20_000);
    }

    fn store_fault(&mut self, lasts_ns: u64) {
        if self.setup.restores && self.random.chance(0.3) {
            self.store.backup = self.store.stored.clone();
            return;
        }
        self.store.is_down = true;
        if self.setup.restores && self.store.backup.is_some() && self.random.chance(0.5) {
            self.store.stored = self.store.backup.clone();
            self.store.life += 1;
            for gateway in 0..self.gateways.len() {
                // Its connection ends, and it hears of that before anything from the next one.
                self.gateways[gateway].connection += 1;
                self.send(gateway, Input::Backend(RegisterEvent::Link(Link::Doubtful)), 0);
            }
        }
        self.at(lasts_ns, Event::StoreUp);
    }
}
