//! Configuration in force: checked, with defaults filled in and units in the types or names.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
};

use mdgw_election::{
    access::{EtcdConfig, ZooKeeperConfig, ZooKeeperMode},
    emergent::BootstrapMode,
    identity::{NodeId, NodeName},
    lease::OnSuspended,
    timing::LeaseTiming,
};
use mdgw_engine::{
    dispatch::{DispatchConfig, PromotionPolicy, ThreadConfig, WaitPolicy},
    handle_set::backend_choice::IoChoice,
};
use mdgw_feeds::{
    arbiter,
    book::BookLimits,
    channel::{self, ChannelConfig, SchemaSet},
    identity::{ChannelId, Feed, GroupId, Line},
    time::TradingDate,
};
use mdgw_pair::pair_link::PeerEndpoint;
use mdgw_sys::sockets::Stamps;

pub use mdgw_sys::sockets::Interface;

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The file it came from.
    pub path: PathBuf,
    /// What concerns the whole gateway.
    pub gateway: GatewayConfig,
    /// Thread pools, at least one.
    pub pools: Vec<PoolConfig>,
    /// Channels, at least one, in the file's order.
    pub channels: Vec<ChannelSetup>,
    /// Where the streams go; each group in at most one of them.
    pub outputs: Vec<OutputConfig>,
    /// The retransmission service, if there is to be one.
    pub retransmission: Option<RetransmissionConfig>,
    /// Who publishes, where there are several gateways; `None`: this one alone.
    pub election: Option<ElectionConfig>,
    /// Latency logs.
    pub latency: LatencyConfig,
    /// Log messages.
    pub log: LogConfig,
    /// What is allowed but worth a look.
    pub warnings: Vec<String>,
}

/// What concerns the whole gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Number of this gateway in every epoch it makes.
    pub node: u8,
    /// Epochs and restart counts, synced to disk.
    pub state_file: PathBuf,
    /// Directory of the publication logs, one directory in it per channel.
    pub log_dir: PathBuf,
    /// Changes of leadership, synced to disk; `None`: not kept.
    pub audit_file: Option<PathBuf>,
    /// Where `mdgw ha` asks; `None`: nowhere.
    pub control_socket: Option<PathBuf>,
    /// Size of one segment file of a publication log.
    pub segment_bytes: u64,
    /// What one channel's log may take before the oldest segment is recycled; a multiple of `segment_bytes`.
    pub retention_bytes: u64,
    /// How old an entry may become; `None`: as long as there is room.
    pub retention_ns: Option<u64>,
    /// Whether the gateway's memory is locked, where the host allows it.
    pub lock_memory: bool,
}

/// One pool of threads over one handle set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name, by which channels choose it.
    pub name: String,
    /// Its threads and where they run.
    pub threads: Threads,
    /// The backend of its handle set.
    pub io: IoBackend,
    /// How its threads wait.
    pub wait: WaitPolicy,
    /// When a follower is promoted.
    pub promotion: PromotionPolicy,
    /// How long the leader of [`WaitPolicy::SpinThenPark`] looks before it blocks.
    pub spin_ns: u64,
    /// Packets one claim may process before the rest goes to the run queue.
    pub quota_packets: usize,
    /// Events claimed in one turn.
    pub batch_events: usize,
    /// SCHED_FIFO priority, if the threads are to have one.
    pub priority: Option<u8>,
}

impl PoolConfig {
    /// The part that a dispatch model wants to know. What isn't configured is left as it is by default there.
    #[must_use]
    pub fn dispatch_config(&self) -> DispatchConfig {
        let thread =
            |number| ThreadConfig { core: self.threads.core(number), fifo_priority: self.priority, progress: None };
        DispatchConfig {
            name: self.name.clone(),
            threads: (0..self.threads.count()).map(thread).collect(),
            wait: self.wait,
            promotion: Some(self.promotion),
            batch_events_max: self.batch_events,
            quota_packets: self.quota_packets,
            spin_ns: self.spin_ns,
            ..DispatchConfig::default()
        }
    }

    /// Name of the thread with that number, from 0, in latency logs.
    #[must_use]
    pub fn thread_name(&self, thread: usize) -> String {
        format!("{}-{thread}", self.name)
    }
}

/// Threads of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread for each of these cores, pinned to it. A refused pin is an error.
    Pinned(Vec<usize>),
    /// So many threads, wherever the scheduler puts them.
    Unpinned(usize),
}

impl Threads {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Pinned(cores) => cores.len(),
            Self::Unpinned(count) => *count,
        }
    }

    /// Core of the thread with that number, from 0.
    #[must_use]
    pub fn core(&self, thread: usize) -> Option<usize> {
        match self {
            Self::Pinned(cores) => cores.get(thread).copied(),
            Self::Unpinned(_) => None,
        }
    }
}

/// Backend of a handle set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBackend {
    /// Probe the kernel, fall back with a logged reason.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// epoll.
    Epoll,
}

impl From<IoBackend> for IoChoice {
    fn from(backend: IoBackend) -> Self {
        match backend {
            IoBackend::Auto => Self::Auto,
            IoBackend::IoUring => Self::IoUring,
            IoBackend::Epoll => Self::Epoll,
        }
    }
}

/// A channel, its lines and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelSetup {
    /// Number in published packets; unique.
    pub id: ChannelId,
    /// Name in reports; unique.
    pub name: String,
    /// What it decodes.
    pub feed: Feed,
    /// The group that it belongs to.
    pub group: GroupId,
    /// Index of its pool in [`Resolved::pools`].
    pub pool: usize,
    /// What it publishes.
    pub schemas: SchemaSet,
    /// Trading date, where it is not to be taken from the input.
    pub date: Option<TradingDate>,
    /// Packets that may wait for a missing one.
    pub window_packets: usize,
    /// How long other lines have to fill a gap before it is asked for, or declared.
    pub gap_timeout_ns: u64,
    /// A line without packet or heartbeat for so long is an alarm.
    pub line_silence_ns: u64,
    /// Limits of the books. The seed of the hash is not configured: whoever makes the books draws it.
    pub book: BookLimits,
    /// How an order is found by its number.
    pub order_store: OrderStoreKind,
    /// Its lines, by number from [`Line::A`], at least one.
    pub lines: Vec<LineConfig>,
    /// The venue's retransmission server.
    pub recovery: Option<RecoveryConfig>,
}

impl ChannelSetup {
    /// The part that the sans-I/O channel wants to know.
    #[must_use]
    pub fn channel_config(&self) -> ChannelConfig {
        let mut config = ChannelConfig::new(self.id, self.feed);
        config.schemas = self.schemas;
        config.date = self.date;
        config.books = self.book;
        config.order_store = match self.order_store {
            OrderStoreKind::Hash => channel::OrderStoreKind::Hash,
            OrderStoreKind::Window => channel::OrderStoreKind::Window,
        };
        config.arbiter.lines = u8::try_from(self.lines.len()).unwrap_or(u8::MAX);
        config.arbiter.window_packets = self.window_packets;
        config.arbiter.gap_timeout_ns = self.gap_timeout_ns;
        config.arbiter.line_silence_ns = Some(self.line_silence_ns);
        config.arbiter.recovery = self.recovery.as_ref().map(|recovery| arbiter::RecoveryConfig {
            request_timeout_ns: recovery.timeout_ns,
            attempts_max: u16::try_from(recovery.attempts_max).unwrap_or(u16::MAX),
            messages_per_request_max: u64::from(recovery.messages_per_request_max),
            requests_under_way_max: recovery.requests_in_flight_max,
            ..arbiter::RecoveryConfig::default()
        });
        config
    }
}

/// How an order is found by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderStoreKind {
    /// Open-addressing hash: any number, bounded memory.
    #[default]
    Hash,
    /// Array for the young ones before the hash: for venues that number their orders densely.
    Window,
}

/// One line of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineConfig {
    /// Its number.
    pub line: Line,
    /// Group and port. A unicast address is bound without a join.
    pub group: SocketAddrV4,
    /// The interface on which the group is joined.
    pub interface: Interface,
    /// Senders that are believed; empty: any. Joined source by source.
    pub sources: Vec<Ipv4Addr>,
    /// `SO_RCVBUF` to ask for.
    pub receive_buffer_bytes: usize,
    /// Whose receive stamps are asked for.
    pub stamps: Stamps,
    /// `SO_BUSY_POLL`, if it is to be set.
    pub busy_poll_us: Option<u32>,
}

/// The venue's retransmission server of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Where it listens.
    pub server: SocketAddrV4,
    /// How long an answer may take.
    pub timeout_ns: u64,
    /// How often one range is asked for.
    pub attempts_max: u32,
    /// Messages asked for in one request.
    pub messages_per_request_max: u16,
    /// Requests under way at a time.
    pub requests_in_flight_max: u16,
}

/// Where the packets of some groups go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputConfig {
    /// The groups.
    pub groups: Vec<GroupId>,
    /// One or two lines that carry the same packets.
    pub lines: Vec<OutputLine>,
    /// Largest UDP payload.
    pub payload_bytes_max: usize,
    /// Idle channels send a heartbeat so often.
    pub heartbeat_ns: u64,
}

/// One line of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Multicast group (or a single receiver) and port.
    pub address: SocketAddrV4,
    /// The interface that it leaves by.
    pub interface: Interface,
    /// Hops.
    pub ttl: u32,
    /// Whether receivers on this host get it too.
    pub loopback: bool,
}

/// The retransmission service for our own subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetransmissionConfig {
    /// Where it listens.
    pub listen: SocketAddrV4,
    /// Who is answered.
    pub limits: RetransmissionLimits,
}

/// Who is answered, and how much. All of it may change while the gateway runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetransmissionLimits {
    /// Networks that are answered; others are counted and left without answer.
    pub allowed: Vec<Network>,
    /// Requests per requester.
    pub requests_per_second: u32,
    /// Bytes of answers per requester.
    pub bytes_per_second: u64,
    /// Packets in the answer to one request.
    pub packets_per_request_max: u32,
    /// Requesters remembered at a time.
    pub requesters_max: usize,
}

/// An IPv4 network in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: Ipv4Addr,
    prefix_bits: u8,
}

impl Network {
    /// From an address and a prefix length of 0..=32; `None` where bits beyond the prefix are set.
    #[must_use]
    pub fn new(address: Ipv4Addr, prefix_bits: u8) -> Option<Self> {
        (prefix_bits <= 32 && address.to_bits() & !mask(prefix_bits) == 0).then_some(Self { address, prefix_bits })
    }

    /// Whether that host is in it.
    #[must_use]
    pub fn contains(self, host: Ipv4Addr) -> bool {
        host.to_bits() & mask(self.prefix_bits) == self.address.to_bits()
    }

    /// Whether every host is.
    #[must_use]
    pub fn is_everyone(self) -> bool {
        self.prefix_bits == 0
    }
}

impl std::str::FromStr for Network {
    type Err = InvalidNetwork;

    /// `10.1.0.0/16`; an address without prefix is that host.
    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address = address.parse().map_err(|_| InvalidNetwork)?;
        let prefix_bits = prefix.parse().map_err(|_| InvalidNetwork)?;
        Self::new(address, prefix_bits).ok_or(InvalidNetwork)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// Text that is no network in CIDR form, or has host bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a network: expected an address and a prefix length without host bits, such as 10.1.0.0/16")]
pub struct InvalidNetwork;

/// Who publishes. Each group has a lease of its own, all with these settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Who grants leadership.
    pub backend: Backend,
    /// Name of this gateway.
    pub name: NodeName,
    /// The other gateways that may lead.
    pub peers: Vec<PeerConfig>,
    /// The links to the other gateways; without them there is no hand-over and no promise.
    pub link: Option<LinkConfig>,
    /// Checked: no two leases can overlap.
    pub timing: LeaseTiming,
    /// While the connection is in doubt.
    pub on_suspended: OnSuspended,
    /// Raised by whoever rolls out a configuration that changes the output.
    pub revision: u64,
    /// Who is to lead where it can.
    pub preferred: Option<NodeId>,
    /// Whether groups are spread over the gateways.
    pub spread: bool,
    /// A leader doesn't hand over by itself before it has led for so long; doubles with each such move.
    pub tenure_ns: u64,
    /// Core of the election threads; never one of a pool's.
    pub core: Option<usize>,
    /// SCHED_FIFO priority, if the threads are to have one.
    pub priority: Option<u8>,
    /// How long listeners are waited for before a fence opens.
    pub listener_timeout_ns: u64,
    /// Whether the kernel refuses what is sent past the deadline.
    pub kernel_fence: bool,
}

/// Ends of the links to the other gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// This gateway's.
    pub listen: SocketAddrV4,
    /// Those of the others.
    pub peers: Vec<PeerEndpoint>,
    /// File of the shared key.
    pub key_file: PathBuf,
    /// Who tells the other gateways of this one's death.
    pub sentinel: SentinelChoice,
    /// After how long without progress the sentinel kills a gateway that leads.
    pub hang_limit_ns: Option<u64>,
    /// How much of each channel's input is kept for the other gateway: what it lost on all lines, and what comes while it
    /// copies this one's state.
    pub history_bytes: usize,
}

/// Who tells of a gateway's death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentinelChoice {
    /// Nobody: the other gateway waits for the lease.
    None,
    /// A process that the gateway starts.
    Started,
    /// One that the service manager has started; it listens there.
    Service(PathBuf),
}

impl fmt::Display for SentinelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Started => f.write_str("spawn"),
            Self::Service(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Where this gateway votes, and with whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumConfig {
    /// Its own address.
    pub listen: SocketAddrV4,
    /// File of the shared key.
    pub key_file: PathBuf,
    /// Directory of its votes.
    pub vote_directory: PathBuf,
    /// All other voters, gateways among them; with this one an odd number.
    pub voters: BTreeMap<NodeId, SocketAddrV4>,
}

/// Who grants leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Records in a directory of this host, one directory in it per group.
    File(PathBuf),
    /// A record in etcd.
    Etcd(EtcdConfig),
    /// A record in ZooKeeper.
    ZooKeeper(ZooKeeperConfig),
    /// The gateways themselves, and witnesses.
    Quorum(QuorumConfig),
    /// Nobody: the oldest member leads.
    Emergent(MembershipConfig),
}

impl Backend {
    /// Whether its leaders hand over by themselves, so that groups can be spread.
    #[must_use]
    pub fn can_move_groups(&self) -> bool {
        match self {
            Self::File(_) | Self::Etcd(_) | Self::Quorum(_) => true,
            Self::ZooKeeper(zookeeper) => zookeeper.mode == ZooKeeperMode::Lease,
            Self::Emergent(_) => false,
        }
    }

    /// Whether there is a record that names the candidates, so that others can be admitted by hand.
    #[must_use]
    pub fn has_record(&self) -> bool {
        match self {
            Self::File(_) | Self::Etcd(_) => true,
            Self::ZooKeeper(zookeeper) => zookeeper.mode == ZooKeeperMode::Lease,
            Self::Quorum(_) | Self::Emergent(_) => false,
        }
    }

    /// Time-out of the session that a latch asks for, ns; `None` where a lease decides.
    #[must_use]
    pub fn session_ns(&self) -> Option<u64> {
        let Self::ZooKeeper(ZooKeeperConfig { mode: ZooKeeperMode::Latch { session }, .. }) = self else { return None };
        Some(u64::try_from(session.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How this gateway becomes a member of each group. That a split can have two leaders has been allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipConfig {
    /// Its own address, as the others reach it.
    pub listen: SocketAddrV4,
    /// File of the shared key.
    pub key_file: PathBuf,
    /// Whom it asks to be let in.
    pub seeds: Vec<SocketAddrV4>,
    /// What it does when nobody lets it in.
    pub bootstrap: BootstrapMode,
    /// Members without which nobody leads.
    pub minimum_size: usize,
    /// How often it asks before it founds.
    pub join_attempts: u32,
}

/// Another gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
}

/// Latency logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyConfig {
    /// Directory of the interval logs; `None`: measured, but not written.
    pub directory: Option<PathBuf>,
    /// Length of an interval.
    pub interval_ns: u64,
    /// Precision of the histograms.
    pub significant_digits: u8,
}

/// Log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The least important that is written.
    pub level: LogLevel,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only what needs somebody.
    Error,
    /// And what may.
    Warn,
    /// And what happened.
    #[default]
    Info,
    /// And why.
    Debug,
    /// And each step of it (cold threads only: the hot path never logs).
    Trace,
}

macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values with the names that the configuration uses.
            pub const NAMES: &'static [(Self, &'static str)] = &[$((Self::$variant, $name)),+];

            /// Name in the configuration.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named!(IoBackend { Auto = "auto", IoUring = "io_uring", Epoll = "epoll" });
named!(OrderStoreKind { Hash = "hash", Window = "window" });
named!(LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" });

/// What a leader does while its connection is in doubt, with the names that the configuration uses.
pub const ON_SUSPENDED: [(OnSuspended, &str); 2] = [(OnSuspended::Hold, "hold"), (OnSuspended::Stop, "stop")];

/// Receive stamps with the names that the configuration uses.
pub const STAMPS: [(Stamps, &str); 2] = [(Stamps::Kernel, "kernel"), (Stamps::Hardware, "hardware")];

/// Wait policies with the names that the configuration uses.
pub const WAIT_POLICIES: [(WaitPolicy, &str); 3] =
    [(WaitPolicy::Spin, "spin"), (WaitPolicy::Park, "park"), (WaitPolicy::SpinThenPark, "spin-then-park")];

/// Promotion policies with the names that the configuration uses.
pub const PROMOTION_POLICIES: [(PromotionPolicy, &str); 2] =
    [(PromotionPolicy::Strict, "strict"), (PromotionPolicy::Lazy, "lazy")];

fn mask(prefix_bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_hosts_and_no_others() {
        let network: Network = "10.1.0.0/16".parse().unwrap();
        assert!(network.contains(Ipv4Addr::new(10, 1, 255, 255)));
        assert!(!network.contains(Ipv4Addr::new(10, 2, 0, 0)));
        assert!("0.0.0.0/0".parse::<Network>().unwrap().contains(Ipv4Addr::BROADCAST));
        let host: Network = "127.0.0.1".parse().unwrap();
        assert!(host.contains(Ipv4Addr::LOCALHOST) && !host.contains(Ipv4Addr::new(127, 0, 0, 2)));
    }

    #[test]
    fn networks_with_host_bits_or_long_prefixes_are_refused() {
        for text in ["10.1.2.0/16", "10.0.0.0/33", "10.0.0/8", "", "::1/128"] {
            assert_eq!(text.parse::<Network>(), Err(InvalidNetwork), "{text}");
        }
    }
}
