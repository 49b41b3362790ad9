//! A small world: a venue, two gateways or more, three receivers, and whoever grants leadership, each on a host of its own; real
//! processes on a real network. It remembers all that was published and delivered, and judges it in the end.

pub mod checker;
mod config;
pub mod faults;
pub mod plan;
pub mod receiver;
pub mod slowness;
pub mod stall;
pub mod trials;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use mdgw_feeds::{
    identity::{Epoch, Sequence},
    published::packet::{PacketFlags, PacketMeta, write_packet},
};
use mdgw_status::control::{Request, send_request};
use mdgw_sys::clock::unix_now;
use serde_json::Value;
use tempfile::TempDir;

use self::{
    checker::{Expected, RunLogs, RunResult, VenueInput},
    plan::{ElectionBackend, Plan},
    receiver::{Receiver, ReceiverLog},
};
use crate::{
    captures::say,
    memory_cgroup::MemoryCgroup,
    namespaces::{Host, INTERFACE, Switch},
    pair::{CHANNEL, GROUP, wait_until},
    process::{self, MdgwProcess, Signal},
    site::{text, write_key},
    stores::{Ensemble, Store},
    tmpfs::TmpfsMount,
    trading_day::DATE,
};

/// All hosts and what runs on them. Everything ends with it.
#[derive(Debug)]
pub struct Testbed {
    plan: Plan,
    /// The switch: it loses what it is told to lose.
    pub switch: Switch,
    venue: Host,
    gateways: Vec<Host>,
    witnesses: Vec<(Host, Option<MdgwProcess>)>,
    store: Option<(Vec<Host>, Ensemble)>,
    running: Vec<Option<MdgwProcess>>,
    /// Those that were killed: their sentinels may have something to say yet.
    killed: Vec<MdgwProcess>,
    /// What processes that have ended said.
    said: Vec<String>,
    /// Of each gateway's configuration.
    revisions: Vec<u64>,
    disks: Vec<TmpfsMount>,
    /// What each gateway's memory is counted in, where it is.
    memories: Vec<MemoryCgroup>,
    sim: Option<MdgwProcess>,
    /// Packets of each session that has ended.
    packets_played: Vec<u64>,
    receivers: Vec<Receiver>,
    expected: Option<JoinHandle<Expected>>,
    folder: TempDir,
    fast: Arc<TempDir>,
}

impl Testbed {
    /// Everything runs when this returns but the venue; somebody leads and the other one stands. `None`, with a word on
    /// standard error, where this process may not make one: `test` is then skipped.
    #[must_use]
    pub fn start(test: &str, plan: Plan) -> Option<Self> {
        let switch = Switch::new(test)?;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let fast = tempfile::tempdir_in(&plan.fast).expect("a temporary directory in memory");
        let key = folder.path().join("key");
        write_key(&key);
        let nodes = 1..=plan.gateways;
        let gateways: Vec<Host> =
            nodes.clone().map(|node| switch.host(&format!("gateway{node}"), address(node))).collect();
        let venue = switch.host("venue", address(VENUE));
        let mut receivers = Vec::new();
        for number in 0..RECEIVERS {
            let host = switch.host(&format!("receiver{number}"), address(RECEIVER_ADDRESS_MIN + number));
            // Not all of them ask the same gateway first.
            let rotated = (0..plan.gateways).map(|index| 1 + (index + number) % plan.gateways);
            let services: Vec<_> = rotated.map(|node| SocketAddrV4::new(address(node), RETRANSMISSION_PORT)).collect();
            let capture = fast.path().join(format!("receiver{number}.pcap"));
            let publishers = nodes.clone().map(address).collect();
            receivers.push(Receiver::start(&host, OUTPUT, publishers, &services, &capture));
        }
        let mut disks = Vec::new();
        for node in nodes.clone().filter(|_| plan.has_small_disks) {
            disks.push(TmpfsMount::new(test, folder.path().join(format!("disk{node}")), "256k")?);
        }
        let mut memories = Vec::new();
        for node in nodes.clone().filter(|_| plan.has_memory_limit) {
            memories.push(MemoryCgroup::new(test, &format!("gateway{node}"))?);
        }
        let mut world = Self {
            plan,
            switch,
            venue,
            gateways,
            witnesses: Vec::new(),
            store: None,
            running: nodes.clone().map(|_| None).collect(),
            killed: Vec::new(),
            said: Vec::new(),
            revisions: nodes.clone().map(|_| 1).collect(),
            disks,
            memories,
            sim: None,
            packets_played: Vec::new(),
            receivers,
            expected: None,
            folder,
            fast: Arc::new(fast),
        };
        match world.plan.backend {
            ElectionBackend::File | ElectionBackend::Emergent => {}
            ElectionBackend::Quorum => world.start_witnesses(),
            ElectionBackend::Store(store) => world.start_store(store, test)?,
        }
        let day = world.day();
        world.expected = Some(std::thread::spawn(move || day.expected()));
        world.start_gateway(1);
        if !world.plan.starts_with_one_gateway {
            nodes.skip(1).for_each(|node| world.start_gateway(node));
            let leader = world.leader();
            world.nodes().filter(|node| *node != leader).for_each(|node| world.wait_until_eligible(node));
        }
        Some(world)
    }

    /// Waits until it is known what every receiver has to be told: finding it out takes a core.
    pub fn wait_until_expectation_ready(&self) {
        wait_until("what is to come is known", || self.expected.as_ref().is_none_or(JoinHandle::is_finished));
    }

    /// The venue begins a session.
    pub fn start_session(&mut self) {
        let [a, b] = LINES.map(|line| line.to_string());
        let Plan { messages, messages_per_second, .. } = self.plan;
        let (messages, rate) = (messages.to_string(), (messages_per_second / MESSAGES_PER_PACKET).to_string());
        let requests = SocketAddrV4::new(self.venue.address, REQUEST_PORT).to_string();
        let (stocks, seed) = (checker::STOCKS.to_string(), checker::SEED.to_string());
        let session = format!("MDGWSIM{:03}", self.packets_played.len() + 1);
        let arguments =
            ["sim", "--line", &a, "--line", &b, "--interface", INTERFACE, "--messages", &messages, "--rate", &rate];
        let more = ["--stocks", &stocks, "--seed", &seed, "--request-server", &requests, "--linger-s", "600", "--json"];
        let named = ["--session", &session];
        let arguments = arguments.iter().chain(&more).chain(&named);
        self.sim = Some(self.venue.namespace.run(|| process::start(arguments)));
    }

    /// The venue ends its session where it is.
    ///
    /// # Panics
    /// When none is open.
    pub fn end_session(&mut self) {
        let sim = self.sim.take().expect("the venue has opened").stop_with(Signal::Terminate).expect_code(0);
        self.packets_played.push(sim.json()["packets"].as_u64().unwrap_or_default());
    }

    /// Starts that gateway, again.
    ///
    /// # Panics
    /// When it doesn't start.
    pub fn start_gateway(&mut self, node: u8) {
        // Whoever was killed may still hold its files.
        self.said.extend(self.killed.drain(..).map(|gateway| gateway.end().stderr));
        let path = self.path(&format!("gateway{node}.toml"));
        fs::write(&path, self.config_text(node)).expect("the configuration can be written");
        let arguments = ["run", text(&path), "--date", DATE, "--ts-recv", "none"];
        let start = || match self.memories.get(index(node)) {
            Some(memory) => process::start_in_cgroup(&memory.enter(), arguments),
            None => process::start(arguments),
        };
        let gateway = self.host(node).namespace.run(start);
        gateway.says("gateway running");
        self.running[index(node)] = Some(gateway);
        wait_until("its control socket is there", || self.status(node).is_some());
    }

    fn start_witnesses(&mut self) {
        for node in self.witness_nodes() {
            let host = self.switch.host(&format!("witness{node}"), address(node));
            fs::write(self.path(&format!("witness{node}.toml")), self.witness_config_text(node))
                .expect("the configuration can be written");
            self.witnesses.push((host, None));
        }
        self.restart_witnesses();
    }

    /// Starts all witnesses, again.
    pub fn restart_witnesses(&mut self) {
        let paths: Vec<_> = self.witness_nodes().map(|node| self.path(&format!("witness{node}.toml"))).collect();
        for ((host, witness), path) in self.witnesses.iter_mut().zip(paths) {
            *witness = Some(host.namespace.run(|| process::start(["witness", text(&path)])));
        }
    }

    /// Kills all witnesses as a crash does.
    pub fn kill_witnesses(&mut self) {
        self.witnesses.iter_mut().for_each(|(_, witness)| drop(witness.take()));
    }

    /// So many that one gateway and they are most of all voters.
    fn witness_nodes(&self) -> RangeInclusive<u8> {
        WITNESS_NODE_MIN..=WITNESS_NODE_MIN + self.plan.gateways - 2
    }

    /// The gateways' numbers.
    pub fn nodes(&self) -> RangeInclusive<u8> {
        1..=self.plan.gateways
    }

    /// Those that run.
    #[must_use]
    pub fn running(&self) -> Vec<u8> {
        self.nodes().filter(|node| self.running[index(*node)].is_some()).collect()
    }

    fn start_store(&mut self, store: Store, test: &str) -> Option<()> {
        if !store.is_installed(test) {
            return None;
        }
        let host = |number: u8| self.switch.host(&format!("store{number}"), address(STORE_ADDRESS_MIN + number));
        let hosts: Vec<Host> = (0..STORE_NODES).map(host).collect();
        let ensemble = Ensemble::start_on(store, &hosts);
        self.store = Some((hosts, ensemble));
        Some(())
    }

    /// Signals that gateway; when, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn signal(&self, node: u8, signal: Signal) -> u64 {
        let gateway = self.running[index(node)].as_ref().expect("who is signalled runs");
        let now = unix_now();
        gateway.signal(signal);
        now.0
    }

    /// Kills it as a crash does; when, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn kill(&mut self, node: u8) -> u64 {
        let at = self.signal(node, Signal::Kill);
        self.killed.extend(self.running[index(node)].take());
        at
    }

    /// Lets it die as after a failed assertion; when, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn abort(&mut self, node: u8) -> u64 {
        let at = self.signal(node, Signal::Abort);
        self.killed.extend(self.running[index(node)].take());
        at
    }

    /// Leaves it no more memory than it has, until the kernel kills it; when that was begun, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run, or its memory isn't counted, see [`Plan::has_memory_limit`].
    pub fn starve(&mut self, node: u8) -> u64 {
        let memory = self.memories.get(index(node)).expect("its memory is counted");
        let gateway = self.running[index(node)].as_mut().expect("who is starved runs");
        let now = unix_now();
        wait_until("it is out of memory", || {
            memory.limit_to_current_usage();
            memory.has_oom_killed()
        });
        wait_until("it is dead", || gateway.has_ended());
        memory.lift_limit();
        self.killed.extend(self.running[index(node)].take());
        now.0
    }

    /// Ends it in order; when, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run, or fails.
    pub fn end(&mut self, node: u8) -> u64 {
        let now = unix_now();
        let gateway = self.running[index(node)].take().expect("who is ended runs");
        let _exited = gateway.stop_with(Signal::Terminate).expect_code(0);
        now.0
    }

    /// From its next start on that gateway has another configuration: a later revision, with another output.
    pub fn bump_revision(&mut self, node: u8) {
        self.revisions[index(node)] += 1;
    }

    /// Asks that gateway to hand over; when, ns since 1970 UTC. `None`: it could not, or leads no more.
    #[must_use]
    pub fn hand_over(&self, node: u8) -> Option<u64> {
        let now = unix_now();
        let asked = send_request(&self.socket(node), &Request::HandOver { group: None, target: None });
        asked.is_ok().then_some(now.0)
    }

    /// A stranger publishes a heartbeat under that epoch. No capture has it: what is judged is what the gateways publish.
    ///
    /// # Panics
    /// When nothing has been published yet.
    pub fn publish_forged_heartbeat(&self, epoch: Epoch) {
        let (session, sequence) = self.receivers[0].last_message_id().expect("something has been told");
        let next = Sequence(sequence + 1);
        let meta = PacketMeta {
            flags: PacketFlags::HEARTBEAT,
            group: GROUP,
            channel: CHANNEL,
            epoch,
            session,
            first: next,
            next,
            send_time_ns: unix_now().0,
        };
        let mut packet = [0; 256];
        let length = write_packet(&meta, &[], &mut packet).expect("a heartbeat fits");
        let sent = self.venue.namespace.run(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
            socket.set_multicast_if_v4(&self.venue.address)?;
            socket.send_to(&packet[..length], &OUTPUT.into())
        });
        assert_eq!(sent.expect("a stranger may send"), length);
    }

    /// The store.
    ///
    /// # Panics
    /// When there is none.
    pub fn store(&mut self) -> &mut Ensemble {
        &mut self.store.as_mut().expect("the backend is a store").1
    }

    /// What that gateway says of its group; `None` when it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        send_request(&self.socket(node), &Request::Status {}).ok().map(|status| status["groups"][0].clone())
    }

    /// Its place in the election: `leader`, `candidate`, `bystander`; empty when it doesn't answer.
    #[must_use]
    pub fn role(&self, node: u8) -> String {
        self.status(node).map(|status| status["role"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    }

    /// Waits until one of those that run leads; which.
    #[must_use]
    pub fn leader(&self) -> u8 {
        let mut leader = None;
        wait_until("one of them leads", || {
            leader = self.running().into_iter().find(|node| self.role(*node) == "leader");
            leader.is_some()
        });
        leader.unwrap_or_default()
    }

    /// Waits until that gateway stands for election and has all that the leader had when it was asked: one that was only
    /// stopped stands at once, and has nothing to say yet. Over a register the leader has then named who follows it.
    pub fn wait_until_eligible(&self, node: u8) {
        wait_until("it stands", || self.role(node) == "candidate");
        let reached = self.reached(self.leader());
        wait_until("it is level", || self.reached(node) >= reached);
        if matches!(self.plan.backend, ElectionBackend::File | ElectionBackend::Store(_)) {
            wait_until("somebody is to follow", || {
                self.status(self.leader()).is_some_and(|status| status["successor"].is_number())
            });
        }
    }

    /// How far that gateway has come. Sessions differ in their restart alone, which has one digit.
    fn reached(&self, node: u8) -> Option<(String, u64)> {
        let ready = &self.status(node)?["details"]["channels"][0]["logged_through"];
        Some((ready["session"].as_str()?.to_owned(), ready["sequence"].as_u64()?))
    }

    /// The highest epoch that every receiver believes.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.receivers.iter().map(|receiver| receiver.progress().1).min().unwrap_or_default()
    }

    /// Waits until every receiver has been told something new under a later epoch; which.
    #[must_use]
    pub fn wait_for_content_after(&self, before: Epoch) -> Epoch {
        wait_until("every receiver hears another leader", || self.epoch() > before);
        self.epoch()
    }

    /// Waits until every receiver has been told so many things more.
    pub fn wait_for_more_deliveries(&self, count: usize) {
        let told: Vec<_> = self.receivers.iter().map(|receiver| receiver.progress().0).collect();
        let all = || self.receivers.iter().zip(&told).all(|(receiver, before)| receiver.progress().0 >= before + count);
        wait_until("the stream goes on", all);
    }

    /// The venue stops where it is, everybody hears the rest, everything ends; what came of it.
    ///
    /// # Panics
    /// When a part fails.
    #[must_use]
    pub fn finish(mut self) -> RunResult {
        self.end_session();
        let full_stream = self.expected.take().map(JoinHandle::join).expect("asked once").expect("a day has a content");
        let expected = Expected::for_sessions(&full_stream, &self.packets_played);
        wait_until("the day's end is heard", || self.receivers.iter().all(Receiver::has_ended));
        for gateway in self.running.iter_mut().filter_map(Option::take) {
            self.said.push(gateway.stop_with(Signal::Terminate).stderr);
        }
        self.said.extend(self.killed.drain(..).map(|gateway| gateway.end().stderr));
        let audits: Vec<_> =
            self.nodes().map(|node| fs::read_to_string(self.audit(node)).unwrap_or_default()).collect();
        let received: Vec<(PathBuf, ReceiverLog)> = self.receivers.drain(..).map(Receiver::finish).collect();
        let log = |node| self.fast.path().join(format!("log{node}")).join(CHANNEL.0.to_string());
        let logs: Vec<_> = self.nodes().map(log).collect();
        let records = RunLogs { logs: &logs, audits: &audits, said: &self.said };
        RunResult::of(&expected, received, &records, Arc::clone(&self.fast))
    }

    /// A file of this world.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// That gateway's host.
    #[must_use]
    pub fn host(&self, node: u8) -> &Host {
        &self.gateways[index(node)]
    }

    /// The hosts of whoever grants leadership, beside the gateways: witnesses, or the store.
    #[must_use]
    pub fn grantors(&self) -> Vec<Host> {
        let witnesses = self.witnesses.iter().map(|(host, _)| host);
        witnesses.chain(self.store.iter().flat_map(|(hosts, _)| hosts)).cloned().collect()
    }

    /// Leaves no room for votes and audit of that gateway, or makes some again.
    ///
    /// # Panics
    /// When it has no disk of its own, see [`Plan::has_small_disks`].
    pub fn set_disk_full(&self, node: u8, is_full: bool) {
        let disk = &self.disks[index(node)];
        if is_full { disk.fill() } else { disk.free() }
    }

    fn day(&self) -> VenueInput {
        VenueInput { messages: self.plan.messages, config: self.config_text(1) }
    }

    fn socket(&self, node: u8) -> PathBuf {
        self.path(&format!("control{node}"))
    }

    fn audit(&self, node: u8) -> PathBuf {
        self.disk(node).join(format!("audit{node}.jsonl"))
    }

    /// Where that gateway's votes and audit are.
    fn disk(&self, node: u8) -> &Path {
        self.disks.get(index(node)).map_or_else(|| self.folder.path(), TmpfsMount::path)
    }
}

/// A test that panics says what its gateways said first and last, and how far its receivers had come.
impl Drop for Testbed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for gateway in self.running.iter().flatten() {
            let said = gateway.said();
            let lines: Vec<&str> = said.lines().collect();
            let (first, rest) = lines.split_at(lines.len().min(STDERR_LINES_SHOWN));
            let last = &rest[rest.len().saturating_sub(STDERR_LINES_SHOWN)..];
            say(&format!("{}\n…\n{}\n---", first.join("\n"), last.join("\n")));
        }
        for (number, receiver) in self.receivers.iter().enumerate() {
            let (told, epoch) = receiver.progress();
            say(&format!(
                "receiver {number}: {told} things, the last under {epoch:?}: {:?}",
                receiver.last_message_id()
            ));
        }
    }
}

const STDERR_LINES_SHOWN: usize = 40;

/// Where both gateways publish.
pub const OUTPUT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 77, 2, 1), 31_000);
/// The venue's lines.
pub const LINES: [SocketAddrV4; 2] =
    [SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 1), 26_477), SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 2), 26_477)];
/// Receivers.
pub const RECEIVERS: u8 = 3;

/// Hosts by the last byte of their addresses; gateways by their node.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

fn index(node: u8) -> usize {
    usize::from(node) - 1
}

/// On average, of a made-up day; `mdgw sim` counts packets.
const MESSAGES_PER_PACKET: f64 = 11.08;
const WITNESS_NODE_MIN: u8 = 5;
const VENUE: u8 = 9;
const RECEIVER_ADDRESS_MIN: u8 = 11;
const STORE_ADDRESS_MIN: u8 = 21;
const STORE_NODES: u8 = 3;
/// Of clients, on a host of its own.
const STORE_PORT: u16 = 12_000;
const REQUEST_PORT: u16 = 18_300;
const RETRANSMISSION_PORT: u16 = 31_100;
const LINK_PORT: u16 = 31_200;
const VOTE_PORT: u16 = 27_500;
