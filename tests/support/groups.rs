//! Several gateways that share several groups, as processes of their own; one feed for all groups, a consumer for each,
//! and a capture of everything that is published.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mdgw_feeds::identity::{ChannelId, GroupId, Session};
use mdgw_publog::Reader;
use mdgw_subscriber::{LineAddress, Subscriber, SubscriberConfig};

use crate::{
    captures::print_to_stderr,
    failover::LeaseTimingMs,
    gateway_fixture::{GatewayFixture, text, wait_until_joined, write_key},
    gateways::GatewayProcesses,
    pair::{Delivery, LogEntry, check_deliveries, messages_of, read_entries},
    process::{self, ExitedProcess, MdgwProcess, TEST_TIMEOUT, wait_until},
    tap::Tap,
};

/// Number of groups. Each has one channel, with the same id.
pub const GROUPS: u16 = 6;
/// Number of gateways, which have the node ids 1 to this number.
pub const GATEWAYS: u8 = 3;

/// Leader of each group, and the count of its epoch.
pub type Leaders = BTreeMap<u16, (u8, u64)>;

/// Gateways that share all groups. Dropping the cluster kills all of them.
#[derive(Debug)]
pub struct GroupCluster {
    /// The gateways: nodes 1 to [`GATEWAYS`].
    pub gateways: GatewayProcesses,
    /// The lines of three fixtures: one line for each channel.
    lines: Vec<SocketAddrV4>,
    _line_fixtures: Vec<GatewayFixture>,
    /// Configuration text of the backend: `backend = …`, and the table of its store.
    backend: [String; 2],
    timing: LeaseTimingMs,
}

/// Timing for a busy machine, whose stalls must not end a lease. A death is noticed without waiting for the lease.
pub const RELAXED_TIMING: LeaseTimingMs = LeaseTimingMs(8_000, 500, 2_000);

impl GroupCluster {
    /// The cluster, without processes yet. `store`: the lines of `[election.etcd]`; `None`: records in files.
    ///
    /// # Panics
    /// When the key can't be written.
    #[must_use]
    pub fn new(store: Option<String>, timing: LeaseTimingMs) -> Self {
        let first = GatewayFixture::with_node(1);
        let others = (2..=GATEWAYS).map(|node| first.peer(node)).collect::<Vec<_>>();
        let backend = match store {
            Some(store) => ["etcd".to_owned(), format!("[election.etcd]\n{store}")],
            None => {
                let records = first.path("records");
                ["file".to_owned(), format!("[election.file]\ndirectory = \"{}\"", text(&records))]
            }
        };
        let key = first.path("key");
        write_key(&key);
        let line_fixtures: Vec<_> = (0..GROUPS.div_ceil(2)).map(|_| GatewayFixture::new()).collect();
        Self {
            gateways: GatewayProcesses::new([first].into_iter().chain(others).collect()),
            lines: line_fixtures.iter().flat_map(|fixture| fixture.lines).collect(),
            _line_fixtures: line_fixtures,
            backend,
            timing,
        }
    }

    /// Multicast group of the output.
    #[must_use]
    pub fn output(&self) -> SocketAddrV4 {
        self.gateways.fixture(1).output
    }

    /// Path of that file in the first gateway's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.gateways.fixture(1).path(name)
    }

    /// Starts a gateway and waits until it runs.
    pub fn start(&mut self, node: u8) {
        self.gateways.start(node, &self.config_text(node));
    }

    /// Leader of each group, by the status of that leader; `None` unless each group has exactly one leader among the
    /// running gateways.
    #[must_use]
    pub fn leaders(&self) -> Option<Leaders> {
        let mut leaders = Leaders::new();
        for node in (1..=GATEWAYS).filter(|node| self.gateways.running(*node).is_some()) {
            for group in self.gateways.status(node)?.as_array()? {
                if group["has_leadership"] == true {
                    let number = u16::try_from(group["group"].as_u64()?).ok()?;
                    leaders.insert(number, (node, group["epoch"]["count"].as_u64()?));
                }
            }
        }
        (leaders.len() == usize::from(GROUPS)).then_some(leaders)
    }

    /// How often the running gateways have warned that they are less fit to lead.
    #[must_use]
    pub fn fitness_warnings(&self, nodes: &[u8]) -> usize {
        let running = nodes.iter().filter_map(|node| self.gateways.running(*node));
        running.map(|gateway| gateway.stderr_so_far().matches("fitness reduced").count()).sum()
    }

    /// Waits until all of `nodes` lead equally many groups and no other gateway leads; returns the leaders.
    #[must_use]
    pub fn wait_until_balanced(&self, nodes: &[u8]) -> Leaders {
        let share = usize::from(GROUPS) / nodes.len();
        let mut spread = Leaders::new();
        wait_until("the groups are balanced", || {
            let Some(leaders) = self.leaders() else { return false };
            spread = leaders;
            nodes.iter().all(|node| spread.values().filter(|(leader, _)| leader == node).count() == share)
        });
        spread
    }

    /// Starts the feed: the same messages for each channel, without an end.
    #[must_use]
    pub fn feed(&self, rate: &str) -> MdgwProcess {
        let lines: Vec<String> = self.lines.iter().map(ToString::to_string).collect();
        let lines = lines.iter().flat_map(|line| ["--line", line]);
        let fixed = ["sim", "--interface", "127.0.0.1", "--messages", "10000000", "--stocks", "50", "--rate", rate];
        process::start(fixed.into_iter().chain(lines))
    }

    /// The messages that a consumer of the group must get, from the log of a gateway that ran all the time.
    #[must_use]
    pub fn messages(&self, node: u8, group: u16) -> BTreeMap<(Session, u64), Vec<u8>> {
        messages_of(&self.log(node, group))
    }

    fn log(&self, node: u8, group: u16) -> Vec<LogEntry> {
        Reader::open(self.gateways.fixture(node).path("log").join(group.to_string()), group)
            .map(read_entries)
            .unwrap_or_default()
    }

    fn config_text(&self, node: u8) -> String {
        let fixture = self.gateways.fixture(node);
        let (log, state, socket, audit) =
            (fixture.path("log"), fixture.path("state"), fixture.path("control"), fixture.path("audit"));
        let mut config = format!(
            "[gateway]\nnode = {node}\nstate_file = \"{}\"\nlog_dir = \"{}\"\nsegment_bytes = 4194304\n\
             retention_bytes = 67108864\ncontrol_socket = \"{}\"\naudit_file = \"{}\"\n\n\
             [[pool]]\nname = \"main\"\nthreads = 2\nwait = \"park\"\n\n",
            text(&state),
            text(&log),
            text(&socket),
            text(&audit)
        );
        // Writing to a string cannot fail.
        for (group, line) in (1..=GROUPS).zip(&self.lines) {
            let _ = writeln!(
                config,
                "[[channel]]\nid = {group}\ngroup = {group}\nname = \"channel-{group}\"\nfeed = \"nasdaq-itch-5.0\"\n\
                 orders_max = 65536\nlevels_max = 65536\n\
                 [[channel.line]]\nname = \"A\"\ngroup = \"{line}\"\ninterface = \"127.0.0.1\"\n\
                 receive_buffer_bytes = 4194304\n"
            );
        }
        let groups: Vec<String> = (1..=GROUPS).map(|group| group.to_string()).collect();
        let [backend, store] = &self.backend;
        let LeaseTimingMs(lease_ms, renew_ms, margin_ms) = self.timing;
        let _ = write!(
            config,
            "[[output]]\ngroups = [{}]\nheartbeat_ms = 200\n\
             [[output.line]]\naddress = \"{}\"\ninterface = \"127.0.0.1\"\nloopback = true\n\n\
             [retransmission]\nlisten = \"{}\"\nallowed = [\"127.0.0.0/8\"]\nrequests_per_second = 10000\n\
             bytes_per_second = 100000000\n\n\
             [election]\nbackend = \"{backend}\"\nname = \"gw{node}\"\nlease_ms = {lease_ms}\n\
             renew_ms = {renew_ms}\nmargin_ms = {margin_ms}\ntenure_ms_min = 1000\n\n{store}\n\n\
             [election.link]\nlisten = \"{}\"\nkey_file = \"{}\"\n",
            groups.join(", "),
            self.output(),
            fixture.retransmission,
            fixture.requests,
            text(&self.path("key")),
        );
        for peer in (1..=GATEWAYS).filter(|peer| *peer != node) {
            let link = self.gateways.fixture(peer).requests;
            let _ = write!(config, "\n[[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\nlink = \"{link}\"\n");
        }
        config
    }
}

impl Drop for GroupCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for gateway in (1..=GATEWAYS).filter_map(|node| self.gateways.running(node)) {
                print_to_stderr(&gateway.stderr_so_far());
            }
        }
    }
}

/// A consumer of each group, and a capture of all.
#[derive(Debug)]
pub struct GroupConsumers {
    consumers: BTreeMap<u16, GroupConsumer>,
    tap: Tap,
    /// Path of the capture.
    pub capture: PathBuf,
}

impl GroupConsumers {
    /// Subscribes to the gateways' output, and requests missing messages from the first gateway.
    ///
    /// # Panics
    /// When a socket or the capture can't be opened.
    #[must_use]
    pub fn start(cluster: &GroupCluster, gateways: u32) -> Self {
        let capture = cluster.path("published.pcap");
        let tap = Tap::start(cluster.output(), &capture);
        let service = cluster.gateways.fixture(1).retransmission;
        let consumers: BTreeMap<_, _> =
            (1..=GROUPS).map(|group| (group, GroupConsumer::start(cluster.output(), service, group))).collect();
        wait_until_joined(cluster.output(), gateways + 1 + u32::from(GROUPS));
        Self { consumers, tap, capture }
    }

    /// Message count of the consumer with the fewest messages.
    #[must_use]
    pub fn fewest(&self) -> usize {
        self.consumers.values().map(|consumer| consumer.received().len()).min().unwrap_or(0)
    }

    /// Waits until each consumer got that many more messages.
    pub fn wait_for_more_deliveries(&self, count: usize) {
        let before: BTreeMap<u16, usize> =
            self.consumers.iter().map(|(group, consumer)| (*group, consumer.received().len())).collect();
        wait_until("each stream continues", || {
            self.consumers.iter().all(|(group, consumer)| consumer.received().len() >= before[group] + count)
        });
    }

    /// The longest time between two messages of a group within that period.
    #[must_use]
    pub fn longest_silence(&self, group: u16, from: Instant, until: Instant) -> Duration {
        let received = self.consumers[&group].received();
        let pairs = received.windows(2).map(|two| (two[0].0, two[1].0));
        pairs
            .filter(|(one, next)| *next >= from && *one < until)
            .map(|(one, next)| next - one)
            .max()
            .unwrap_or_default()
    }

    /// Call after the feed has ended. Waits until each consumer has everything in the log of `reference_node`, then checks
    /// each consumer and the capture. Returns the errors, and the result of `mdgw ha verify`.
    #[must_use]
    pub fn verify_streams(self, cluster: &GroupCluster, reference_node: u8) -> (Vec<String>, ExitedProcess) {
        let mut faults = Vec::new();
        for (group, consumer) in &self.consumers {
            let expected = cluster.messages(reference_node, *group);
            let deadline = Instant::now() + TEST_TIMEOUT;
            while consumer.messages() < expected.len() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            let deliveries: Vec<Delivery> = consumer.received().iter().map(|(_, delivery)| delivery.clone()).collect();
            faults
                .extend(check_deliveries(&deliveries, &expected).err().map(|fault| format!("group {group}: {fault}")));
        }
        let _datagrams = self.tap.finish();
        let verified = process::run(["ha", "verify", text(&self.capture)]);
        (faults, verified)
    }
}

/// Deliveries to a consumer, with their times.
type TimedDeliveries = Vec<(Instant, Delivery)>;

#[derive(Debug)]
struct GroupConsumer {
    received: Arc<Mutex<TimedDeliveries>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl GroupConsumer {
    fn start(output: SocketAddrV4, service: SocketAddrV4, group: u16) -> Self {
        let mut config = SubscriberConfig::new(vec![LineAddress::new(output, Ipv4Addr::LOCALHOST)]);
        config.receiver.group = GroupId(group);
        config.services = vec![service];
        let mut subscriber = Subscriber::open(config).expect("the subscriber opens");
        let (received, stop) = (Arc::new(Mutex::new(TimedDeliveries::new())), Arc::new(AtomicBool::new(false)));
        let (thread_received, stopped) = (Arc::clone(&received), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut new_deliveries = TimedDeliveries::new();
                let polled = subscriber.poll(Duration::from_millis(20), &mut |output| {
                    assert_eq!(output.channel, ChannelId(group), "each group has its one channel");
                    new_deliveries.extend(Delivery::of(&output).map(|delivery| (Instant::now(), delivery)));
                });
                let _count = polled.expect("loopback can be read");
                thread_received.lock().unwrap_or_else(PoisonError::into_inner).append(&mut new_deliveries);
            }
        });
        Self { received, stop, thread: Some(thread) }
    }

    fn received(&self) -> std::sync::MutexGuard<'_, TimedDeliveries> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn messages(&self) -> usize {
        self.received().iter().filter(|(_, delivery)| matches!(delivery, Delivery::Message(..))).count()
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened. The check finds missing deliveries.
            let _ended = thread.join();
        }
    }
}

/// Groups whose leader has changed.
#[must_use]
pub fn moved_groups(before: &Leaders, after: &Leaders) -> BTreeSet<u16> {
    before.iter().filter(|(group, (leader, _))| after[group].0 != *leader).map(|(group, _)| *group).collect()
}
