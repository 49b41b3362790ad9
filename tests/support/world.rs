//! A small world: a venue, two gateways, three receivers, and whoever grants leadership, each on a host of its own; real
//! processes on a real network. It remembers all that was published and delivered, and judges it in the end.

pub mod cases;
pub mod judge;
pub mod receiver;
pub mod stall;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    thread::JoinHandle,
};

use mdgw::{
    control::{Request, ask},
    sys::clock::unix_now,
};
use mdgw_feeds::{
    identity::{Epoch, Sequence},
    published::packet::{PacketFlags, PacketMeta, write_packet},
};
use serde_json::Value;
use tempfile::TempDir;

use self::{
    judge::{Day, Expected, Judged},
    receiver::{Received, Receiver},
};
use crate::{
    day::DATE,
    failover::Timing,
    namespaces::{Host, INTERFACE, Switch},
    pair::{CHANNEL, GROUP, wait_until},
    process::{self, Mdgw, Signal},
    site::text,
    stores::{Ensemble, Store},
};

/// Who grants leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Records in memory of this machine, which all hosts share.
    File,
    /// Votes of the gateways and of a witness.
    Quorum,
    /// Three nodes of a store, each on a host of its own.
    Store(Store),
}

impl Backend {
    /// By the name that a configuration gives it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "file" => Some(Self::File),
            "quorum" => Some(Self::Quorum),
            "etcd" => Some(Self::Store(Store::Etcd)),
            "zookeeper" => Some(Self::Store(Store::ZooKeeper)),
            _ => None,
        }
    }
}

/// What the world is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who grants leadership.
    pub backend: Backend,
    /// Lease, renewal, margin.
    pub timing: Timing,
    /// Whether a sentinel tells of a gateway's death.
    pub has_sentinel: bool,
    /// Messages of the venue's day.
    pub messages: u64,
    /// Messages of the venue in a second.
    pub messages_per_second: f64,
    /// SCHED_FIFO priority of the election threads; 0 for none.
    pub priority: u8,
    /// More lines of `[gateway]` of both.
    pub gateway: String,
    /// Where publication logs and captures go.
    pub fast: PathBuf,
}

impl Plan {
    /// A pair over votes or records with a lease that stands a crowded machine, and a short day.
    #[must_use]
    pub fn calm(backend: Backend) -> Self {
        Self {
            backend,
            timing: Timing(600, 120, 120),
            has_sentinel: true,
            messages: 120_000,
            messages_per_second: 1_500.0,
            priority: 0,
            gateway: String::new(),
            fast: std::env::temp_dir(),
        }
    }
}

/// All hosts and what runs on them. Everything ends with it.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    /// The switch: it loses what it is told to lose.
    pub switch: Switch,
    venue: Host,
    gateways: [Host; 2],
    witness: Option<(Host, Mdgw)>,
    store: Option<(Vec<Host>, Ensemble)>,
    running: [Option<Mdgw>; 2],
    sim: Option<Mdgw>,
    receivers: Vec<Receiver>,
    expected: Option<JoinHandle<Expected>>,
    folder: TempDir,
    fast: TempDir,
}

impl World {
    /// Everything runs when this returns but the venue; somebody leads and the other one stands. `None`, with a word on
    /// standard error, where this process may not make one: `test` is then skipped.
    #[must_use]
    pub fn start(test: &str, plan: Plan) -> Option<Self> {
        let switch = Switch::new(test)?;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let fast = tempfile::tempdir_in(&plan.fast).expect("a temporary directory in memory");
        let key = folder.path().join("key");
        fs::write(&key, "5a".repeat(32)).expect("the key can be written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the key is one's own");
        let gateways = [1, 2].map(|node| switch.host(&format!("gateway{node}"), address(node)));
        let venue = switch.host("venue", address(VENUE));
        let mut receivers = Vec::new();
        for number in 0..RECEIVERS {
            let host = switch.host(&format!("receiver{number}"), address(FIRST_RECEIVER + number));
            // Not all of them ask the same gateway.
            let service = SocketAddrV4::new(address(1 + number % 2), RETRANSMISSION_PORT);
            let capture = fast.path().join(format!("receiver{number}.pcap"));
            receivers.push(Receiver::start(&host, OUTPUT, service, &capture));
        }
        let mut world = Self {
            plan,
            switch,
            venue,
            gateways,
            witness: None,
            store: None,
            running: [None, None],
            sim: None,
            receivers,
            expected: None,
            folder,
            fast,
        };
        match world.plan.backend {
            Backend::File => {}
            Backend::Quorum => world.start_witness(),
            Backend::Store(store) => world.start_store(store, test)?,
        }
        let day = world.day();
        world.expected = Some(std::thread::spawn(move || day.expected()));
        world.start_gateway(1);
        world.start_gateway(2);
        let leader = world.leader();
        world.wait_until_stands(3 - leader);
        Some(world)
    }

    /// The venue begins its day.
    pub fn open_venue(&mut self) {
        let [a, b] = LINES.map(|line| line.to_string());
        let Plan { messages, messages_per_second, .. } = self.plan;
        let (messages, rate) = (messages.to_string(), (messages_per_second / MESSAGES_PER_PACKET).to_string());
        let requests = SocketAddrV4::new(self.venue.address, REQUEST_PORT).to_string();
        let (stocks, seed) = (judge::STOCKS.to_string(), judge::SEED.to_string());
        let words =
            ["sim", "--line", &a, "--line", &b, "--interface", INTERFACE, "--messages", &messages, "--rate", &rate];
        let more = ["--stocks", &stocks, "--seed", &seed, "--request-server", &requests, "--linger-s", "600", "--json"];
        self.sim = Some(self.venue.namespace.run(|| process::start(words.iter().chain(&more))));
    }

    /// Starts that gateway, again.
    ///
    /// # Panics
    /// When it doesn't start.
    pub fn start_gateway(&mut self, node: u8) {
        let path = self.path(&format!("gateway{node}.toml"));
        fs::write(&path, self.config_text(node)).expect("the configuration can be written");
        let words = ["run", text(&path), "--date", DATE, "--ts-recv", "none"];
        let gateway = self.host(node).namespace.run(|| process::start(words));
        gateway.says("gateway runs");
        self.running[index(node)] = Some(gateway);
        wait_until("its control socket is there", || self.status(node).is_some());
    }

    fn start_witness(&mut self) {
        let host = self.switch.host("witness", address(WITNESS));
        let path = self.path("witness.toml");
        let peer = |node: u8| format!("[[peer]]\nnode = {node}\naddress = \"{}:{VOTE_PORT}\"\n", address(node));
        let config = format!(
            "node = {WITNESS}\nlisten = \"{}:{VOTE_PORT}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n{}{}",
            host.address,
            text(&self.path("key")),
            text(&self.path("witness-votes")),
            peer(1),
            peer(2),
        );
        fs::write(&path, config).expect("the configuration can be written");
        let witness = host.namespace.run(|| process::start(["witness", text(&path)]));
        self.witness = Some((host, witness));
    }

    fn start_store(&mut self, store: Store, test: &str) -> Option<()> {
        if !store.is_installed(test) {
            return None;
        }
        let host = |number: u8| self.switch.host(&format!("store{number}"), address(FIRST_STORE + number));
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
        drop(self.running[index(node)].take());
        at
    }

    /// Asks that gateway to hand over; when, ns since 1970 UTC. `None`: it could not, or leads no more.
    #[must_use]
    pub fn hand_over(&self, node: u8) -> Option<u64> {
        let now = unix_now();
        let asked = ask(&self.socket(node), &Request::HandOver { group: None, target: None });
        asked.is_ok().then_some(now.0)
    }

    /// A stranger publishes a heartbeat under that epoch.
    ///
    /// # Panics
    /// When nothing has been published yet.
    pub fn forge(&self, epoch: Epoch) {
        let (session, sequence) = self.receivers[0].last_name().expect("something has been told");
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
        ask(&self.socket(node), &Request::Status {}).ok().map(|status| status["groups"][0].clone())
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
            let running = [1, 2].into_iter().filter(|node| self.running[index(*node)].is_some());
            leader = running.into_iter().find(|node| self.role(*node) == "leader");
            leader.is_some()
        });
        leader.unwrap_or_default()
    }

    /// Waits until that gateway stands for election.
    pub fn wait_until_stands(&self, node: u8) {
        wait_until("it stands", || self.role(node) == "candidate");
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
    pub fn wait_for_more(&self, count: usize) {
        let told: Vec<_> = self.receivers.iter().map(|receiver| receiver.progress().0).collect();
        let all = || self.receivers.iter().zip(&told).all(|(receiver, before)| receiver.progress().0 >= before + count);
        wait_until("the stream goes on", all);
    }

    /// The venue stops where it is, everybody hears the rest, everything ends; what came of it.
    ///
    /// # Panics
    /// When a part fails.
    #[must_use]
    pub fn finish(mut self) -> Judged {
        let sim = self.sim.take().expect("the venue has opened").end_by(Signal::Terminate).with_code(0);
        let played = sim.json()["packets"].as_u64().unwrap_or_default();
        let expected = self.expected.take().map(JoinHandle::join).expect("asked once").expect("a day has a content");
        let expected = expected.up_to(played);
        wait_until("the day's end is heard", || self.receivers.iter().all(Receiver::has_ended));
        for gateway in self.running.iter_mut().filter_map(Option::take) {
            let _said = gateway.end_by(Signal::Terminate);
        }
        let audits = [1, 2].map(|node| fs::read_to_string(self.audit(node)).unwrap_or_default());
        let received: Vec<(PathBuf, Received)> = self.receivers.drain(..).map(Receiver::finish).collect();
        Judged::of(&expected, received, &audits)
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

    /// The witness's host.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn witness(&self) -> &Host {
        &self.witness.as_ref().expect("a quorum has a witness").0
    }

    fn day(&self) -> Day {
        Day { messages: self.plan.messages, config: self.config_text(1) }
    }

    fn socket(&self, node: u8) -> PathBuf {
        self.path(&format!("control{node}"))
    }

    fn audit(&self, node: u8) -> PathBuf {
        self.path(&format!("audit{node}.jsonl"))
    }

    fn config_text(&self, node: u8) -> String {
        let at = |directory: &Path, name: &str| directory.join(format!("{name}{node}")).display().to_string();
        let (state, log) = (at(self.folder.path(), "state"), at(self.fast.path(), "log"));
        let (audit, socket, key) = (self.audit(node), self.socket(node), self.path("key"));
        let (peer, own) = (3 - node, address(node));
        let Plan { timing: Timing(lease, renewal, margin), priority, gateway, .. } = &self.plan;
        let [line_a, line_b] = LINES;
        let sentinel = if self.plan.has_sentinel { "started" } else { "none" };
        let mut config = format!(
            "[gateway]\nnode = {node}\nstate_file = \"{state}\"\nlog_dir = \"{log}\"\naudit_file = \"{}\"\n\
             control_socket = \"{}\"\nsegment_bytes = 16777216\nretention_bytes = 268435456\n{gateway}\n\
             [[pool]]\nname = \"main\"\nthreads = 1\nwait = \"park\"\n\
             [[channel]]\nid = 1\nname = \"one\"\nfeed = \"nasdaq-itch-5.0\"\norders_max = 1048576\nlevels_max = 524288\n\
             window_packets = 16384\ngap_timeout_us = 2000\n\
             [[channel.line]]\nname = \"A\"\ngroup = \"{line_a}\"\ninterface = \"{INTERFACE}\"\n\
             [[channel.line]]\nname = \"B\"\ngroup = \"{line_b}\"\ninterface = \"{INTERFACE}\"\n\
             [channel.recovery]\nserver = \"{}:{REQUEST_PORT}\"\n\
             [[output]]\ngroups = [1]\nheartbeat_ms = 100\n\
             [[output.line]]\naddress = \"{OUTPUT}\"\ninterface = \"{INTERFACE}\"\n\
             [retransmission]\nlisten = \"{own}:{RETRANSMISSION_PORT}\"\nallowed = [\"10.77.0.0/24\"]\n\
             requests_per_second = 10000\nbytes_per_second = 100000000\n\
             [latency]\ndirectory = \"{}\"\n\
             [election]\nname = \"gw{node}\"\nlease_ms = {lease}\nrenew_ms = {renewal}\nmargin_ms = {margin}\n\
             rate_error_ppm = 500\npriority = {priority}\nbackend = ",
            text(&audit),
            text(&socket),
            address(VENUE),
            at(self.fast.path(), "latency"),
        );
        config += &match self.plan.backend {
            Backend::File => {
                format!("\"file\"\n[election.file]\ndirectory = \"{}\"\n", self.fast.path().join("records").display())
            }
            Backend::Quorum => {
                let voter = |node: u8| {
                    format!("[[election.quorum.voter]]\nnode = {node}\naddress = \"{}:{VOTE_PORT}\"\n", address(node))
                };
                format!(
                    "\"quorum\"\n[election.quorum]\nlisten = \"{own}:{VOTE_PORT}\"\nkey_file = \"{}\"\n\
                     vote_directory = \"{}\"\n{}{}",
                    text(&key),
                    at(self.folder.path(), "votes"),
                    voter(peer),
                    voter(WITNESS),
                )
            }
            Backend::Store(store) => {
                let endpoints: Vec<String> = (0..STORE_NODES)
                    .map(|number| format!("\"{}:{STORE_PORT}\"", address(FIRST_STORE + number)))
                    .collect();
                let name = if store == Store::ZooKeeper { "zookeeper" } else { "etcd" };
                format!("\"{name}\"\n[election.{name}]\nendpoints = [{}]\n", endpoints.join(", "))
            }
        };
        config += &format!(
            "[election.link]\nlisten = \"{own}:{LINK_PORT}\"\npeer = \"{}:{LINK_PORT}\"\nkey_file = \"{}\"\n\
             sentinel = \"{sentinel}\"\n[[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n",
            address(peer),
            text(&key),
        );
        config
    }
}

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
const WITNESS: u8 = 3;
const VENUE: u8 = 9;
const FIRST_RECEIVER: u8 = 11;
const FIRST_STORE: u8 = 21;
const STORE_NODES: u8 = 3;
/// Of clients, on a host of its own.
const STORE_PORT: u16 = 12_000;
const REQUEST_PORT: u16 = 18_300;
const RETRANSMISSION_PORT: u16 = 31_100;
const LINK_PORT: u16 = 31_200;
const VOTE_PORT: u16 = 27_500;
