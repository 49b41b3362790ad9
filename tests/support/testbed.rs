//! A testbed in network namespaces: a venue, two to four gateways, three receivers and the lease authority (witnesses or a
//! store), each on its own host. Processes and network are real. At the end it checks everything that was published and
//! delivered.

pub mod checker;
mod config;
pub mod faults;
pub mod flood;
pub mod plan;
pub mod receiver;
pub mod results;
pub mod slowness;
pub mod soak;
pub mod stall;
pub mod stream_summary;
pub mod trials;
pub mod usage;

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread::JoinHandle,
};

use mdgw_feeds::{
    identity::{Epoch, Sequence},
    published::packet::{PacketFlags, PacketMeta, write_packet},
};
use mdgw_status::{
    control::{Request, send_request},
    snapshot::Snapshot,
};
use mdgw_subscriber::{TagPolicy, load_tag_key};
use mdgw_sys::clock::unix_now;
use serde_json::Value;
use tempfile::TempDir;

use self::{
    checker::{ExpectedStream, RunLogs, RunResult, VenueInput},
    plan::{ElectionBackend, Plan, VenueBursts},
    receiver::{ReceivedSummary, Receiver, Recording},
    stream_summary::BlockHashes,
};
use crate::{
    captures::print_to_stderr,
    gateway_fixture::{text, write_key, write_key_of},
    memory_cgroup::MemoryCgroup,
    namespaces::{Host, INTERFACE, Switch},
    pair::{CHANNEL, GROUP},
    process::{self, ExitedProcess, MdgwProcess, Signal, wait_until},
    stores::{Ensemble, Store},
    tmpfs::TmpfsMount,
    trading_day::DATE,
};

/// All hosts and their processes. Dropping it ends everything.
#[derive(Debug)]
pub struct Testbed {
    plan: Plan,
    /// The switch between the hosts, which can drop traffic.
    pub switch: Switch,
    venue: Host,
    gateways: Vec<Host>,
    witnesses: Vec<(Host, Option<MdgwProcess>)>,
    store: Option<(Vec<Host>, Ensemble)>,
    /// The `mdgw` of each gateway, from its next start on.
    programs: Vec<PathBuf>,
    running: Vec<Option<MdgwProcess>>,
    /// Killed gateways. Their standard error is read later, since their sentinels may still write to it.
    killed: Vec<MdgwProcess>,
    /// Standard error of processes that have ended.
    outputs: Vec<String>,
    /// Revision of each gateway's configuration.
    revisions: Vec<u64>,
    disks: Vec<TmpfsMount>,
    /// Memory cgroup of each gateway; empty without [`Plan::has_memory_limit`].
    memory_cgroups: Vec<MemoryCgroup>,
    simulator: Option<MdgwProcess>,
    /// Packets of each session that has ended.
    packets_played: Vec<u64>,
    receivers: Vec<Receiver>,
    /// Host of receivers that come late and leave, see [`Self::start_visitor`].
    visitor_host: Host,
    /// Host of junk, see [`Flood`](flood::Flood). It is there only once it is used.
    flooder: OnceLock<Host>,
    expected: Option<JoinHandle<Arc<ExpectedStream>>>,
    folder: TempDir,
    fast_dir: Arc<TempDir>,
}

impl Testbed {
    /// Starts everything but the venue, and returns when one gateway leads and the others are eligible. `None`, with a
    /// message on standard error, without the permissions for it: `test` is then skipped.
    #[must_use]
    pub fn start(test: &str, plan: Plan) -> Option<Self> {
        let switch = Switch::new(test)?;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let fast_dir = tempfile::tempdir_in(&plan.fast_dir).expect("a temporary directory in memory");
        write_key(&folder.path().join("key"));
        write_key_of(&folder.path().join(OUTPUT_KEY), 0x66);
        let tags = packet_tags(&plan, folder.path());
        let nodes = 1..=plan.gateways;
        let gateways: Vec<Host> =
            nodes.clone().map(|node| switch.host(&format!("gateway{node}"), address(node))).collect();
        let venue = switch.host("venue", address(VENUE));
        let mut receivers = Vec::new();
        for number in 0..RECEIVERS {
            let host = switch.host(&format!("receiver{number}"), address(RECEIVER_ADDRESS_MIN + number));
            let capture = fast_dir.path().join(capture_name(number));
            let recording = match plan.keeps_summaries {
                true => Recording::Summary { is_permanent: true },
                false => Recording::Everything(&capture),
            };
            let publishers = nodes.clone().map(address).collect();
            // The others have nobody to ask.
            let services =
                if number < plan.requesting_receivers { services(plan.gateways, number) } else { Vec::new() };
            receivers.push(Receiver::start(&host, OUTPUT, publishers, &services, tags.clone(), recording));
        }
        let visitor_host = switch.host("visitor", address(RECEIVER_ADDRESS_MIN + RECEIVERS));
        let mut disks = Vec::new();
        for node in nodes.clone().filter(|_| plan.has_small_disks) {
            disks.push(TmpfsMount::new(test, folder.path().join(format!("disk{node}")), "256k")?);
        }
        let mut memory_cgroups = Vec::new();
        for node in nodes.clone().filter(|_| plan.has_memory_limit) {
            memory_cgroups.push(MemoryCgroup::new(test, &format!("gateway{node}"))?);
        }
        let first_program = plan.previous_program.as_deref().unwrap_or_else(|| process::program());
        let mut testbed = Self {
            programs: nodes.clone().map(|_| first_program.to_owned()).collect(),
            plan,
            switch,
            venue,
            gateways,
            witnesses: Vec::new(),
            store: None,
            running: nodes.clone().map(|_| None).collect(),
            killed: Vec::new(),
            outputs: Vec::new(),
            revisions: nodes.clone().map(|_| 1).collect(),
            disks,
            memory_cgroups,
            simulator: None,
            packets_played: Vec::new(),
            receivers,
            visitor_host,
            flooder: OnceLock::new(),
            expected: None,
            folder,
            fast_dir: Arc::new(fast_dir),
        };
        match testbed.plan.backend {
            ElectionBackend::File | ElectionBackend::Emergent => {}
            ElectionBackend::Quorum => testbed.start_witnesses(),
            ElectionBackend::Store(store) => testbed.start_store(store, test)?,
        }
        if !testbed.plan.keeps_summaries {
            let day = testbed.venue_input();
            testbed.expected = Some(std::thread::spawn(move || day.expected()));
        }
        testbed.start_gateway(1);
        if !testbed.plan.starts_with_one_gateway {
            nodes.skip(1).for_each(|node| testbed.start_gateway(node));
            let leader = testbed.leader();
            testbed.nodes().filter(|node| *node != leader).for_each(|node| testbed.wait_until_eligible(node));
        }
        Some(testbed)
    }

    /// Waits until the expected stream is computed, which keeps one core busy.
    pub fn wait_until_expectation_ready(&self) {
        wait_until("the expected stream is known", || self.expected.as_ref().is_none_or(JoinHandle::is_finished));
    }

    /// Starts the next session of the venue.
    pub fn start_session(&mut self) {
        let [a, b] = LINES.map(|line| line.to_string());
        let Plan { messages, messages_per_second, .. } = self.plan;
        let (messages, rate) = (messages.to_string(), (messages_per_second / MESSAGES_PER_PACKET).to_string());
        let requests = SocketAddrV4::new(self.venue.address, REQUEST_PORT).to_string();
        let (stocks, seed) = (checker::STOCKS.to_string(), checker::SEED.to_string());
        let session = self.venue_session();
        let arguments =
            ["sim", "--line", &a, "--line", &b, "--interface", INTERFACE, "--messages", &messages, "--rate", &rate];
        let more = ["--stocks", &stocks, "--seed", &seed, "--request-server", &requests, "--linger-s", "600", "--json"];
        let named = ["--session", &session];
        let bursts = self.plan.bursts.map(|VenueBursts { messages_per_second, burst_ms, every_ms }| {
            let rate = (messages_per_second / MESSAGES_PER_PACKET).to_string();
            [rate, burst_ms.to_string(), every_ms.to_string()]
        });
        let bursts = bursts.iter().flat_map(|[rate, burst_ms, every_ms]| {
            ["--burst-rate", rate, "--burst-ms", burst_ms, "--burst-every-ms", every_ms]
        });
        let arguments = arguments.into_iter().chain(more).chain(named).chain(bursts);
        self.simulator = Some(self.venue.namespace.run(|| process::start(arguments)));
    }

    /// Name of the venue's session, the present one or else the next.
    #[must_use]
    pub fn venue_session(&self) -> String {
        format!("MDGWSIM{:03}", self.packets_played.len() + 1)
    }

    /// Ends the venue's session at its current position.
    ///
    /// # Panics
    /// When none is open.
    pub fn end_session(&mut self) {
        let simulator =
            self.simulator.take().expect("the venue has opened").stop_with(Signal::Terminate).expect_code(0);
        self.packets_played.push(simulator.json()["packets"].as_u64().unwrap_or_default());
    }

    /// Starts or restarts that gateway.
    ///
    /// # Panics
    /// When it doesn't start.
    pub fn start_gateway(&mut self, node: u8) {
        // A killed gateway may still hold its files, so wait for its end.
        self.outputs.extend(self.killed.drain(..).map(|gateway| gateway.end().stderr));
        let path = self.config_path(node);
        fs::write(&path, self.config_text(node)).expect("the configuration can be written");
        let ts_recv: &[_] = if self.plan.keeps_summaries { &[] } else { &["--ts-recv", "none"] };
        let arguments = [["run", text(&path), "--date", DATE].as_slice(), ts_recv].concat();
        let program = &self.programs[index(node)];
        let cgroup = self.memory_cgroups.get(index(node)).map(MemoryCgroup::procs_file);
        let start = || process::start_version(program, cgroup.as_deref(), &arguments);
        let gateway = self.host(node).namespace.run(start);
        // Another version may word it differently.
        if program == process::program() {
            gateway.wait_for_stderr("gateway running");
        }
        self.running[index(node)] = Some(gateway);
        wait_until("the control socket answers", || self.status(node).is_some());
    }

    /// Makes that gateway the program under test from its next start on, as the installation of a new version does.
    pub fn upgrade_gateway(&mut self, node: u8) {
        process::program().clone_into(&mut self.programs[index(node)]);
    }

    /// Runs the program under test on that gateway's host, with these arguments.
    #[must_use]
    pub fn run_on(&self, node: u8, arguments: &[&str]) -> ExitedProcess {
        self.host(node).namespace.run(|| process::run(arguments))
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

    /// Starts or restarts all witnesses.
    pub fn restart_witnesses(&mut self) {
        let paths: Vec<_> = self.witness_nodes().map(|node| self.path(&format!("witness{node}.toml"))).collect();
        let first_program = self.plan.previous_program.as_deref().unwrap_or_else(|| process::program());
        for ((host, witness), path) in self.witnesses.iter_mut().zip(paths) {
            let start = || process::start_version(first_program, None, ["witness", text(&path)]);
            *witness = Some(host.namespace.run(start));
        }
    }

    /// Ends all witnesses in order, and starts the program under test in their place.
    ///
    /// # Panics
    /// When one fails.
    pub fn upgrade_witnesses(&mut self) {
        let outputs = self.end_witnesses();
        self.outputs.extend(outputs);
        // From now on every start is one of the program under test.
        self.plan.previous_program = None;
        self.restart_witnesses();
    }

    /// Kills all witnesses as a crash does.
    pub fn kill_witnesses(&mut self) {
        self.witnesses.iter_mut().for_each(|(_, witness)| drop(witness.take()));
    }

    /// Ends the witnesses in order, and returns what each wrote to its standard error.
    ///
    /// # Panics
    /// When one fails.
    pub fn end_witnesses(&mut self) -> Vec<String> {
        let running: Vec<_> = self.witnesses.iter_mut().filter_map(|(_, witness)| witness.take()).collect();
        running.into_iter().map(|witness| witness.stop_with(Signal::Terminate).expect_code(0).stderr).collect()
    }

    /// Node ids of the witnesses. There is one witness fewer than gateways, so that the witnesses and one gateway are a
    /// majority of the voters.
    #[must_use]
    pub fn witness_nodes(&self) -> RangeInclusive<u8> {
        WITNESS_NODE_MIN..=WITNESS_NODE_MIN + self.plan.gateways - 2
    }

    /// Node ids of all gateways.
    pub fn nodes(&self) -> RangeInclusive<u8> {
        1..=self.plan.gateways
    }

    /// Node ids of the running gateways.
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

    /// Signals that gateway. Returns the time, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn signal(&self, node: u8, signal: Signal) -> u64 {
        let gateway = self.running[index(node)].as_ref().expect("the signalled gateway runs");
        let now = unix_now();
        gateway.signal(signal);
        now.0
    }

    /// Kills it with SIGKILL. Returns the time, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn kill(&mut self, node: u8) -> u64 {
        let at = self.signal(node, Signal::Kill);
        self.killed.extend(self.running[index(node)].take());
        at
    }

    /// Kills it with SIGABRT, as a failed assertion would. Returns the time, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn abort(&mut self, node: u8) -> u64 {
        let at = self.signal(node, Signal::Abort);
        self.killed.extend(self.running[index(node)].take());
        at
    }

    /// Limits it to the memory that it uses now, until the kernel kills it. Returns the start time, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run, or has no memory cgroup, see [`Plan::has_memory_limit`].
    pub fn exhaust_memory(&mut self, node: u8) -> u64 {
        let memory = self.memory_cgroups.get(index(node)).expect("a memory cgroup of the gateway");
        let gateway = self.running[index(node)].as_mut().expect("the starved gateway runs");
        let now = unix_now();
        wait_until("the cgroup is out of memory", || {
            memory.limit_to_current_usage();
            memory.has_oom_killed()
        });
        wait_until("the kernel has killed it", || gateway.has_ended());
        memory.lift_limit();
        self.killed.extend(self.running[index(node)].take());
        now.0
    }

    /// Ends it in order (SIGTERM). Returns the time, ns since 1970 UTC.
    ///
    /// # Panics
    /// When it doesn't run, or fails.
    pub fn end(&mut self, node: u8) -> u64 {
        let now = unix_now();
        let gateway = self.running[index(node)].take().expect("the stopped gateway runs");
        let _exited = gateway.stop_with(Signal::Terminate).expect_code(0);
        now.0
    }

    /// Raises the revision of that gateway's configuration, from its next start on. Output keys change with the revision.
    pub fn bump_revision(&mut self, node: u8) {
        self.revisions[index(node)] += 1;
    }

    /// Asks that gateway to hand over. Returns the time, ns since 1970 UTC; `None` if it refused or no longer leads.
    #[must_use]
    pub fn hand_over(&self, node: u8) -> Option<u64> {
        let now = unix_now();
        let asked = send_request(&self.control_socket(node), &Request::HandOver { group: None, target: None });
        asked.is_ok().then_some(now.0)
    }

    /// Publishes a heartbeat under that epoch from the venue's host. Captures leave it out, since they hold only what the
    /// gateways publish.
    ///
    /// # Panics
    /// When nothing has been published yet.
    pub fn publish_forged_heartbeat(&self, epoch: Epoch) {
        let (session, sequence) = self.receivers[0].last_message_id().expect("something has been delivered");
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
        assert_eq!(sent.expect("the forged packet is sent"), length);
    }

    /// The ensemble that keeps the election record.
    ///
    /// # Panics
    /// When there is none.
    pub fn store(&mut self) -> &mut Ensemble {
        &mut self.store.as_mut().expect("the backend is a store").1
    }

    /// Standard error of that gateway so far; empty if it doesn't run.
    #[must_use]
    pub fn stderr_of(&self, node: u8) -> String {
        self.running[index(node)].as_ref().map(MdgwProcess::stderr_so_far).unwrap_or_default()
    }

    /// That gateway's status of its group; `None` if it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        send_request(&self.control_socket(node), &Request::Status {}).ok().map(|status| status["groups"][0].clone())
    }

    /// The running gateways and witnesses, by node id.
    fn processes(&self) -> impl Iterator<Item = (u8, &MdgwProcess)> {
        let gateways = self.nodes().zip(self.running.iter().map(Option::as_ref));
        let witnesses = self.witness_nodes().zip(self.witnesses.iter().map(|(_, witness)| witness.as_ref()));
        gateways.chain(witnesses).filter_map(|(node, process)| Some((node, process?)))
    }

    /// Process ids of the running gateways and witnesses, by node id.
    #[must_use]
    pub fn process_ids(&self) -> BTreeMap<u8, u32> {
        self.processes().map(|(node, process)| (node, process.id())).collect()
    }

    /// Number of lines that each running gateway and witness has logged, by node id.
    #[must_use]
    pub fn log_lines(&self) -> BTreeMap<u8, usize> {
        self.processes().map(|(node, process)| (node, process.stderr_so_far().lines().count())).collect()
    }

    /// That gateway's counters and gauges.
    ///
    /// # Panics
    /// When it doesn't answer.
    #[must_use]
    pub fn snapshot(&self, node: u8) -> Snapshot {
        let snapshot = send_request(&self.control_socket(node), &Request::Snapshot {}).expect("the gateway answers");
        serde_json::from_value(snapshot).expect("a snapshot")
    }

    /// The host that floods come from.
    #[must_use]
    pub fn flooder(&self) -> &Host {
        self.flooder.get_or_init(|| self.switch.host("flooder", address(FLOODER)))
    }

    /// The host of that gateway or witness.
    ///
    /// # Panics
    /// When there is none with that node id.
    #[must_use]
    pub fn host_of(&self, node: u8) -> &Host {
        if self.nodes().contains(&node) {
            self.host(node)
        } else {
            &self.witnesses[usize::from(node - WITNESS_NODE_MIN)].0
        }
    }

    /// Datagrams that the kernel has dropped since that gateway's start, because a receive buffer was full.
    #[must_use]
    pub fn kernel_drops(&self, node: u8) -> u64 {
        let snapshot = send_request(&self.control_socket(node), &Request::Snapshot {});
        snapshot.ok().and_then(|snapshot| snapshot["kernel_drops"].as_u64()).unwrap_or_default()
    }

    /// Its role in the election, such as `leader` or `candidate`; empty if it doesn't answer.
    #[must_use]
    pub fn role(&self, node: u8) -> String {
        self.status(node).map(|status| status["role"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    }

    /// Waits until a running gateway leads, and returns its node id.
    #[must_use]
    pub fn leader(&self) -> u8 {
        let mut leader = None;
        wait_until("a gateway leads", || {
            leader = self.running().into_iter().find(|node| self.role(*node) == "leader");
            leader.is_some()
        });
        leader.unwrap_or_default()
    }

    /// Waits until that gateway is eligible and has everything that the leader has now. A gateway that was only stopped is
    /// eligible at once but may be behind. On a crowded machine it may lead already, since the others stalled. Over a register
    /// the leader has then also named a successor.
    pub fn wait_until_eligible(&self, node: u8) {
        self.wait_until_caught_up(node);
        if matches!(self.plan.backend, ElectionBackend::File | ElectionBackend::Store(_)) {
            wait_until("the leader has named a successor", || {
                self.status(self.leader()).is_some_and(|status| status["successor"].is_number())
            });
        }
    }

    /// Waits until that gateway is a candidate, or leads already, and has everything that the leader has now.
    pub fn wait_until_caught_up(&self, node: u8) {
        wait_until("the gateway is eligible", || matches!(self.role(node).as_str(), "candidate" | "leader"));
        let reached = self.log_end(self.leader());
        wait_until("the gateway has caught up", || self.log_end(node) >= reached);
    }

    /// The end of the gateway's log: session and sequence. Sessions can be compared as text, since they differ only in
    /// the restart count, which has one digit.
    fn log_end(&self, node: u8) -> Option<(String, u64)> {
        let end = &self.status(node)?["details"]["channels"][0]["logged_through"];
        Some((end["session"].as_str()?.to_owned(), end["sequence"].as_u64()?))
    }

    /// The highest epoch that every receiver has accepted.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.receivers.iter().map(|receiver| receiver.progress().1).min().unwrap_or_default()
    }

    /// Waits until every receiver got content of a later epoch, and returns that epoch.
    #[must_use]
    pub fn wait_for_content_after(&self, before: Epoch) -> Epoch {
        wait_until("every receiver gets content of another leader", || self.epoch() > before);
        self.epoch()
    }

    /// Waits until every receiver got that many more deliveries.
    pub fn wait_for_more_deliveries(&self, count: usize) {
        let delivered_before: Vec<_> = self.receivers.iter().map(|receiver| receiver.progress().0).collect();
        let all = || {
            self.receivers
                .iter()
                .zip(&delivered_before)
                .all(|(receiver, before)| receiver.progress().0 >= before + count)
        };
        wait_until("the stream continues", all);
    }

    /// Ends the session if it is open, waits until receivers got the rest, ends everything, and checks the result.
    ///
    /// # Panics
    /// When a part fails.
    #[must_use]
    pub fn finish(mut self) -> RunResult {
        if self.simulator.is_some() {
            self.end_session();
        }
        let full_stream = self
            .expected
            .take()
            .map(JoinHandle::join)
            .expect("finish is called once")
            .expect("the expected stream is computed");
        let expected = ExpectedStream::for_sessions(&full_stream, &self.packets_played);
        wait_until("receivers get the end of the session", || self.receivers.iter().all(Receiver::has_ended));
        for gateway in self.running.iter_mut().filter_map(Option::take) {
            self.outputs.push(gateway.stop_with(Signal::Terminate).stderr);
        }
        self.outputs.extend(self.killed.drain(..).map(|gateway| gateway.end().stderr));
        let audits: Vec<_> =
            self.nodes().map(|node| fs::read_to_string(self.audit_file(node)).unwrap_or_default()).collect();
        let captures = (0..RECEIVERS).map(|number| self.fast_dir.path().join(capture_name(number)));
        let received = captures.zip(self.receivers.drain(..).map(Receiver::finish)).collect();
        let log = |node| self.fast_dir.path().join(format!("log{node}")).join(CHANNEL.0.to_string());
        let logs: Vec<_> = self.nodes().map(log).collect();
        let records = RunLogs { logs: &logs, audits: &audits, outputs: &self.outputs };
        RunResult::of(&expected, received, &records, Arc::clone(&self.fast_dir))
    }

    /// Like [`Self::finish`], for receivers that keep summaries. `visitors`: what receivers got that came and left.
    ///
    /// # Panics
    /// When a part fails.
    #[must_use]
    pub fn finish_summaries(mut self, visitors: Vec<ReceivedSummary>) -> SummaryResult {
        self.end_session_everywhere();
        for gateway in self.running.iter_mut().filter_map(Option::take) {
            self.outputs.push(gateway.stop_with(Signal::Terminate).stderr);
        }
        let receivers = self.receivers.drain(..).map(Receiver::finish_summary).collect();
        let expected = self.venue_input().expected_blocks(&self.packets_played);
        SummaryResult { expected, receivers, visitors }
    }

    /// Ends the venue's session and waits until every receiver has got its end.
    pub fn end_session_everywhere(&mut self) {
        self.end_session();
        wait_until("receivers get the end of the session", || self.receivers.iter().all(Receiver::has_ended));
    }

    /// Starts a receiver that comes while the session is open. It keeps a summary.
    #[must_use]
    pub fn start_visitor(&self) -> Receiver {
        let publishers = self.nodes().map(address).collect();
        let recording = Recording::Summary { is_permanent: false };
        let services = services(self.plan.gateways, 0);
        let tags = packet_tags(&self.plan, self.folder.path());
        Receiver::start(&self.visitor_host, OUTPUT, publishers, &services, tags, recording)
    }

    /// Paths of the gateways' configuration files, node 1 first.
    #[must_use]
    pub fn config_paths(&self) -> Vec<PathBuf> {
        self.nodes().map(|node| self.config_path(node)).collect()
    }

    /// Path of that gateway's configuration file.
    #[must_use]
    pub fn config_path(&self, node: u8) -> PathBuf {
        self.path(&format!("gateway{node}.toml"))
    }

    /// Path of that file in the testbed's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// That gateway's host.
    #[must_use]
    pub fn host(&self, node: u8) -> &Host {
        &self.gateways[index(node)]
    }

    /// The hosts of the lease authority: witnesses, or nodes of the store.
    #[must_use]
    pub fn lease_authority_hosts(&self) -> Vec<Host> {
        let witnesses = self.witnesses.iter().map(|(host, _)| host);
        witnesses.chain(self.store.iter().flat_map(|(hosts, _)| hosts)).cloned().collect()
    }

    /// Fills the disk of that gateway's votes and audit, or frees it again.
    ///
    /// # Panics
    /// When it has no disk of its own, see [`Plan::has_small_disks`].
    pub fn set_disk_full(&self, node: u8, is_full: bool) {
        let disk = &self.disks[index(node)];
        if is_full { disk.fill() } else { disk.remove_filler() }
    }

    fn venue_input(&self) -> VenueInput {
        VenueInput { messages: self.plan.messages, channel: self.plan.channel.clone(), config: self.config_text(1) }
    }

    /// Path of that gateway's control socket.
    #[must_use]
    pub fn control_socket(&self, node: u8) -> PathBuf {
        self.path(&format!("control{node}"))
    }

    fn audit_file(&self, node: u8) -> PathBuf {
        self.vote_and_audit_dir(node).join(format!("audit{node}.jsonl"))
    }

    /// Directory of that gateway's votes and audit.
    fn vote_and_audit_dir(&self, node: u8) -> &Path {
        self.disks.get(index(node)).map_or_else(|| self.folder.path(), TmpfsMount::path)
    }
}

/// On a panic: prints the first and last log lines of each gateway, and the position of each receiver.
impl Drop for Testbed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for gateway in self.running.iter().flatten() {
            let stderr = gateway.stderr_so_far();
            let lines: Vec<&str> = stderr.lines().collect();
            let (first, rest) = lines.split_at(lines.len().min(STDERR_LINES_SHOWN));
            let last = &rest[rest.len().saturating_sub(STDERR_LINES_SHOWN)..];
            print_to_stderr(&format!("{}\n…\n{}\n---", first.join("\n"), last.join("\n")));
        }
        for (number, receiver) in self.receivers.iter().enumerate() {
            let (delivered_count, epoch) = receiver.progress();
            print_to_stderr(&format!(
                "receiver {number}: {delivered_count} deliveries, the last under {epoch:?}: {:?}",
                receiver.last_message_id()
            ));
        }
    }
}

/// The tags that receivers require, by the key in that folder.
fn packet_tags(plan: &Plan, folder: &Path) -> TagPolicy {
    let key = plan.has_packet_tags.then(|| load_tag_key(&folder.join(OUTPUT_KEY)).expect("the key has been written"));
    TagPolicy { keys: key.into_iter().collect(), ..TagPolicy::default() }
}

/// Retransmission services for that receiver: each receiver requests missing messages first from another gateway.
#[must_use]
pub fn services(gateways: u8, receiver: u8) -> Vec<SocketAddrV4> {
    let rotated = (0..gateways).map(|index| 1 + (index + receiver) % gateways);
    rotated.map(|node| SocketAddrV4::new(address(node), RETRANSMISSION_PORT)).collect()
}

fn capture_name(receiver: u8) -> String {
    format!("receiver{receiver}.pcap")
}

/// What receivers got that kept summaries.
#[derive(Clone, Debug)]
pub struct SummaryResult {
    /// Block hashes of the venue's sessions, as far as they were played.
    pub expected: BlockHashes,
    /// Receivers that were there all the time.
    pub receivers: Vec<ReceivedSummary>,
    /// Receivers that came and left.
    pub visitors: Vec<ReceivedSummary>,
}

/// File name of the key of packet tags.
const OUTPUT_KEY: &str = "output-key";
const STDERR_LINES_SHOWN: usize = 40;

/// Multicast group of the output.
pub const OUTPUT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 77, 2, 1), 31_000);
/// Multicast group of the second output line, see [`Plan::has_second_output`].
pub const SECOND_OUTPUT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 77, 2, 2), 31_000);
/// Multicast groups of the venue's lines A and B.
pub const LINES: [SocketAddrV4; 2] =
    [SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 1), 26_477), SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 2), 26_477)];
/// Number of receivers.
pub const RECEIVERS: u8 = 3;

/// A host's address by its last byte; for gateways that is the node id.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

fn index(node: u8) -> usize {
    usize::from(node) - 1
}

/// Average of the synthetic day. It converts the rate of the plan to `--rate` of `mdgw sim`, which is in packets.
pub const MESSAGES_PER_PACKET: f64 = 11.08;
const WITNESS_NODE_MIN: u8 = 5;
const VENUE: u8 = 9;
const FLOODER: u8 = 30;
const RECEIVER_ADDRESS_MIN: u8 = 11;
const STORE_ADDRESS_MIN: u8 = 21;
const STORE_NODES: u8 = 3;
/// Client port of a node of the store.
const STORE_PORT: u16 = 12_000;
const REQUEST_PORT: u16 = 18_300;
/// Port of the gateways' retransmission services.
pub const RETRANSMISSION_PORT: u16 = 31_100;
/// Port of the gateways' links.
pub const LINK_PORT: u16 = 31_200;
/// Port of gateways and witnesses for votes.
pub const VOTE_PORT: u16 = 27_500;
