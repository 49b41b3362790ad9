//! Configuration in force: checked, with defaults filled in and units in the types or names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
};

use mdgw_election::{
    access::{EtcdConfig, ZooKeeperConfig, ZooKeeperMode},
    emergent::BootstrapMode,
    identity::{NodeId, NodeName},
    lease::OnSuspended,
    timing::LeaseTiming,
};
use mdgw_engine::{
    dispatch::{DispatchConfig, DispatchModel, PromotionPolicy, ThreadConfig, WaitPolicy},
    handle_set::backend_choice::IoChoice,
};
use mdgw_feeds::{
    arbiter,
    book::BookLimits,
    channel::{self, ChannelConfig, SchemaSet},
    identity::{ChannelId, Feed, GroupId, Line},
    published::{packet::PACKET_HEADER_BYTES, tag::TAG_BYTES},
    time::TradingDate,
};
use mdgw_keys::{KeyError, SECRET_BYTES_MAX, SecretFile, read_owner_only};
use mdgw_pair::pair_link::PeerEndpoint;
use mdgw_sys::sockets::Stamps;

use super::limits;

pub(crate) use mdgw_sys::sockets::Interface;

/// A configuration that was checked, with defaults filled in: what a gateway is built from.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The file it came from.
    pub path: PathBuf,
    /// Settings of the whole gateway.
    pub gateway: GatewayConfig,
    /// Thread pools, at least one.
    pub pools: Vec<PoolConfig>,
    /// Channels, at least one, in the file's order.
    pub channels: Vec<ChannelSetup>,
    /// The outputs; each group is in at most one of them.
    pub outputs: Vec<OutputConfig>,
    /// The retransmission service, if configured.
    pub retransmission: Option<RetransmissionConfig>,
    /// The live gateway, if configured; a process of its own runs it.
    pub live: Option<LiveSettings>,
    /// The journals, if configured; a process of its own writes them.
    pub journal: Option<JournalSettings>,
    /// The sink to NATS, if configured; a process of its own writes to it.
    pub nats: Option<NatsSettings>,
    /// Where the admin listener of `mdgw mirror` is, if there is one; a process on a host without a gateway.
    pub mirror_admin: Option<AdminListen>,
    /// Where metrics and health are served, if configured.
    pub admin: Option<AdminListen>,
    /// The election; `None`: this gateway is standalone.
    pub election: Option<ElectionConfig>,
    /// Latency logs.
    pub latency: LatencyConfig,
    /// Log messages.
    pub log: LogConfig,
    /// Valid settings that deserve a warning.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// The admin listeners of the gateway and of the programs beside it, by their keys.
    pub(crate) fn admin_listeners(&self) -> Vec<(&'static str, &AdminListen)> {
        let listeners = [
            ("admin.listen", self.admin.as_ref()),
            ("live.admin_listen", self.live.as_ref().and_then(|live| live.admin_listen.as_ref())),
            ("journal.admin_listen", self.journal.as_ref().and_then(|journal| journal.admin_listen.as_ref())),
            ("nats.admin_listen", self.nats.as_ref().and_then(|nats| nats.admin_listen.as_ref())),
            ("mirror.admin_listen", self.mirror_admin.as_ref()),
        ];
        listeners.into_iter().filter_map(|(key, listen)| Some((key, listen?))).collect()
    }

    /// Cores for cold threads: the `usable` ones less those of the pools. Empty if the pools have all of them. An
    /// election's thread may have a configured core instead.
    #[must_use]
    pub fn cold_cores(&self, usable: &[usize]) -> Vec<usize> {
        let is_pinned = |core: &usize| {
            self.pools.iter().any(|pool| matches!(&pool.threads, Threads::Pinned(cores) if cores.contains(core)))
        };
        usable.iter().copied().filter(|core| !is_pinned(core)).collect()
    }

    /// Whether snapshots of the group's channels are taken: for the retransmission service, or for a snapshot group.
    #[must_use]
    pub fn takes_snapshots_of(&self, group: GroupId) -> bool {
        let has_group = |output: &OutputConfig| output.snapshots.is_some() && output.groups.contains(&group);
        self.retransmission.as_ref().is_some_and(|service| service.snapshots) || self.outputs.iter().any(has_group)
    }

    /// Whether a gateway with this configuration reads a key, a password or a private key.
    #[must_use]
    pub fn reads_secrets(&self) -> bool {
        let has_tag_key = self.outputs.iter().any(|output| !output.tag_key_files.is_empty());
        has_tag_key || self.election.as_ref().is_some_and(ElectionConfig::reads_secrets)
    }
}

/// Settings of the whole gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Number of this gateway in every epoch that it creates.
    pub node: u8,
    /// Epochs and restart counts, synced to disk.
    pub state_file: PathBuf,
    /// Directory of the publication logs, with one directory per channel.
    pub log_dir: PathBuf,
    /// Group whose members may read the publication logs; `None`: the umask decides who may.
    pub log_group: Option<String>,
    /// Changes of leadership, synced to disk; `None`: not recorded.
    pub audit_file: Option<PathBuf>,
    /// Control socket for `mdgw ha` and `mdgw top`; `None`: no socket.
    pub control_socket: Option<PathBuf>,
    /// Size of one segment file of a publication log.
    pub segment_bytes: u64,
    /// Space of one channel's log before the oldest segment is recycled; a multiple of `segment_bytes`.
    pub retention_bytes: u64,
    /// Greatest age of an entry; `None`: as long as there is space.
    pub retention_ns: Option<u64>,
    /// Whether the gateway's memory is locked, where the host allows it.
    pub lock_memory: bool,
}

impl GatewayConfig {
    /// Directory of a channel's publication log.
    #[must_use]
    pub fn log_directory(&self, channel: ChannelId) -> PathBuf {
        self.log_dir.join(channel.0.to_string())
    }
}

/// One pool of threads over one handle set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name, which channels refer to.
    pub name: String,
    /// Its threads and their cores.
    pub threads: Threads,
    /// Which thread processes which channel.
    pub dispatch: DispatchModel,
    /// The backend of its handle sets.
    pub io: IoBackend,
    /// How its threads wait.
    pub wait: WaitPolicy,
    /// When a follower is promoted.
    pub promotion: PromotionPolicy,
    /// How long the leader of [`WaitPolicy::SpinThenPark`] polls before it blocks.
    pub spin_ns: u64,
    /// Packets one claim may process before the rest goes to the run queue.
    pub quota_packets: usize,
    /// Events claimed in one turn.
    pub batch_events: usize,
    /// SCHED_FIFO priority, if configured.
    pub priority: Option<u8>,
    /// Vacant slots for channels that a reload adds.
    pub spare_channels: usize,
}

impl PoolConfig {
    /// Configuration of the pool's dispatch. Settings that are not configurable keep their defaults.
    #[must_use]
    pub(crate) fn dispatch_config(&self) -> DispatchConfig {
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
            spare_channels: self.spare_channels,
            ..DispatchConfig::default()
        }
    }

    /// Name of the thread with that number, from 0, in latency logs.
    #[must_use]
    pub(crate) fn thread_name(&self, thread: usize) -> String {
        format!("{}-{thread}", self.name)
    }
}

/// Threads of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread for each of these cores, pinned to it. A refused pin is an error.
    Pinned(Vec<usize>),
    /// This many threads on any core.
    Unpinned(usize),
}

impl Threads {
    /// Number of threads.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Pinned(cores) => cores.len(),
            Self::Unpinned(count) => *count,
        }
    }

    /// Core of the thread with that number, from 0.
    #[must_use]
    pub(crate) fn core(&self, thread: usize) -> Option<usize> {
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
    /// Only io_uring.
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
    /// The feed that it decodes.
    pub feed: Feed,
    /// The group that it belongs to.
    pub group: GroupId,
    /// Index of its pool in [`Resolved::pools`].
    pub pool: usize,
    /// The schemas that it publishes.
    pub schemas: SchemaSet,
    /// Trading date, unless the input supplies it.
    pub date: Option<TradingDate>,
    /// Packets that may wait for a missing one.
    pub window_packets: usize,
    /// How long other lines have to fill a gap before it is requested, or declared.
    pub gap_timeout_ns: u64,
    /// A line without packet or heartbeat for this long raises an alarm.
    pub line_silence_ns: u64,
    /// Limits of the books. The hash seed is not configured: the code that creates the books draws it.
    pub book: BookLimits,
    /// How an order is found by its number.
    pub order_store: OrderStoreKind,
    /// Its lines, by number from [`Line::A`], at least one.
    pub lines: Vec<LineConfig>,
    /// The venue's retransmission server.
    pub recovery: Option<RecoveryConfig>,
}

impl ChannelSetup {
    /// Configuration of the channel itself, without its sockets and outputs.
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
            requests_in_flight_max: recovery.requests_in_flight_max,
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
    /// An array for recent orders before the hash: for venues that number their orders densely.
    Window,
}

/// One line of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineConfig {
    /// Index of the line in the channel: 0 is line A.
    pub line: Line,
    /// Group and port. A unicast address is bound without a join.
    pub group: SocketAddrV4,
    /// The interface on which the group is joined.
    pub interface: Interface,
    /// Accepted senders; empty: any. Joined source by source.
    pub sources: Vec<Ipv4Addr>,
    /// Requested `SO_RCVBUF`, in bytes.
    pub receive_buffer_bytes: usize,
    /// Requested source of receive timestamps.
    pub stamps: Stamps,
    /// `SO_BUSY_POLL`, if configured.
    pub busy_poll_us: Option<u32>,
}

/// The venue's retransmission server of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Address of the venue's retransmission server.
    pub server: SocketAddrV4,
    /// How long an answer may take.
    pub timeout_ns: u64,
    /// How often one range is requested.
    pub attempts_max: u32,
    /// Messages per request.
    pub messages_per_request_max: u16,
    /// Requests in flight at a time.
    pub requests_in_flight_max: u16,
}

/// An output: where the packets of some groups go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputConfig {
    /// Groups whose channels are published here.
    pub groups: Vec<GroupId>,
    /// One or two lines that carry the same packets.
    pub lines: Vec<OutputLine>,
    /// Largest UDP payload.
    pub payload_bytes_max: usize,
    /// Heartbeat interval of idle channels.
    pub heartbeat_ns: u64,
    /// Key files of packet tags: the first tags our packets, and tags under any of them are accepted. Empty: no tags.
    pub tag_key_files: Vec<PathBuf>,
    /// Whether packets without a tag are accepted although there are keys.
    pub accept_untagged: bool,
    /// The snapshot group, if configured.
    pub snapshots: Option<OutputSnapshots>,
}

impl OutputConfig {
    /// Most bytes of frames in a packet: what header and tag leave. The tag has its room without a key too: messages are then
    /// split at the same records whether or not there are tags, and gateways may change to tags one after the other.
    #[must_use]
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.payload_bytes_max - PACKET_HEADER_BYTES - TAG_BYTES
    }

    /// Where packets are sent: the lines, and the snapshot group.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = &OutputLine> {
        self.lines.iter().chain(self.snapshots.iter().map(|snapshots| &snapshots.line))
    }
}

/// The group to which the leader sends snapshots of an output's channels unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSnapshots {
    /// Where the chunks are sent, as on an output line.
    pub line: OutputLine,
    /// From the beginning of one round of all channels to the beginning of the next, ns. A round that takes longer is followed by the
    /// next one at once.
    pub interval_ns: u64,
    /// Most bytes of packets per second.
    pub bytes_per_second: u64,
    /// How often each image is sent, at least once.
    pub passes: u32,
}

/// One line of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Multicast group (or a single receiver) and port.
    pub address: SocketAddrV4,
    /// Interface from which the packets leave.
    pub interface: Interface,
    /// Hops.
    pub ttl: u32,
    /// Whether receivers on this host get the packets too (IP_MULTICAST_LOOP).
    pub loopback: bool,
    /// Addresses of the gateways, for the standby and for subscribers; empty: any sender.
    pub sources: Vec<Ipv4Addr>,
}

/// The retransmission service for our own subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetransmissionConfig {
    /// Address on which retransmission requests are received.
    pub listen: SocketAddrV4,
    /// Whether snapshots of the channels' state are served. A thread of its own then keeps all books once more.
    pub snapshots: bool,
    /// Limits per requester and over all requesters.
    pub limits: RetransmissionLimits,
}

/// The live gateway for official DBN clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    /// Address on which clients connect.
    pub listen: SocketAddrV4,
    /// File of the clients' keys.
    pub key_file: PathBuf,
    /// Unix socket for `mdgw top` and `mdgw ha status`, if there is one.
    pub control_socket: Option<PathBuf>,
    /// Where the admin listener of the program is, if there is one.
    pub admin_listen: Option<AdminListen>,
    /// Sessions at a time.
    pub sessions_max: usize,
    /// Connections that are not authenticated yet, at a time.
    pub handshakes_max: usize,
    /// Connections accepted per second.
    pub handshakes_per_second: u32,
    /// How long an authentication may take.
    pub handshake_timeout_ns: u64,
    /// Failed authentications per minute and address.
    pub failures_per_minute: u32,
    /// Bytes of a line.
    pub line_bytes_max: usize,
    /// Symbols of a session.
    pub symbols_max: usize,
    /// Bytes that a session may be behind.
    pub queue_bytes_max: u64,
    /// Trading dates whose journals are read for what the log no longer has; 0: none.
    pub journal_days_max: usize,
    /// Replays of a dataset at a time.
    pub replays_max: usize,
    /// How long a client may take nothing at all.
    pub stall_ns: u64,
    /// Threads that write to clients.
    pub threads: usize,
}

/// Journals on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// Folder of the journals.
    pub directory: PathBuf,
    /// Where the admin listener of the program is, if there is one.
    pub admin_listen: Option<AdminListen>,
    /// Compression of closed journals.
    pub compression: JournalCompression,
    /// Longest time until a record is on the disk.
    pub flush_ns: u64,
    /// Days for which closed journals are kept; 0: without a limit.
    pub retention_days: u32,
    /// Bytes of all journals; 0: without a limit.
    pub retention_bytes: u64,
    /// Bytes left free on the disk.
    pub free_bytes_min: u64,
}

/// The sink to NATS JetStream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsSettings {
    /// Addresses of the servers.
    pub servers: Vec<String>,
    /// Where the admin listener of the program is, if there is one.
    pub admin_listen: Option<AdminListen>,
    /// How to log in.
    pub login: NatsLogin,
    /// TLS, if the connection must be encrypted.
    pub tls: Option<NatsTls>,
    /// First part of the streams' names; the dataset follows.
    pub stream: String,
    /// First tokens of subjects.
    pub subject_prefix: String,
    /// Channels, as indices into [`Resolved::channels`].
    pub channels: Vec<usize>,
    /// Schemas; `None`: all that a channel publishes.
    pub schemas: Option<SchemaSet>,
    /// Whether streams are made that do not exist.
    pub create_stream: bool,
    /// Where the server keeps a new stream.
    pub storage: NatsStorage,
    /// Servers that have a new stream.
    pub replicas: u8,
    /// Bytes of a new stream; 0: without a limit.
    pub bytes_max: u64,
    /// Age of a new stream's messages; 0: without a limit.
    pub age_max_ns: u64,
    /// How long the server knows message ids of a new stream.
    pub duplicate_window_ns: u64,
    /// Silence after which another sink's stream is taken over.
    pub takeover_ns: u64,
    /// How long an acknowledgement may take.
    pub ack_timeout_ns: u64,
    /// Messages without an acknowledgement, for each stream.
    pub in_flight_max: usize,
}

impl NatsSettings {
    /// Why a file with a secret of the login or of TLS cannot be used; the first of them.
    #[must_use]
    pub fn secret_error(&self) -> Option<KeyError> {
        let login = match &self.login {
            NatsLogin::None => None,
            NatsLogin::Credentials(path) | NatsLogin::Token(path) | NatsLogin::User(_, path) => {
                Some((SecretFile::Password, path))
            }
        };
        let identity = self.tls.as_ref().and_then(|tls| tls.identity.as_ref());
        let key = identity.map(|(_, key)| (SecretFile::PrivateKey, key));
        login.into_iter().chain(key).find_map(|(kind, path)| read_owner_only(kind, path, SECRET_BYTES_MAX).err())
    }
}

/// How to log in at the NATS servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatsLogin {
    /// Not at all.
    None,
    /// By a file of credentials.
    Credentials(PathBuf),
    /// By a file of a token.
    Token(PathBuf),
    /// By a user and a file of the password.
    User(String, PathBuf),
}

/// TLS to the NATS servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsTls {
    /// Authority of the servers' certificates; `None`: those of the host.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where the server keeps a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatsStorage {
    /// In files.
    #[default]
    File,
    /// In memory.
    Memory,
}

/// Compression of closed journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalCompression {
    /// None.
    #[default]
    None,
    /// Zstandard.
    Zstd,
}

impl JournalCompression {
    /// All values with their names in the configuration.
    pub(crate) const NAMES: &[(Self, &'static str)] = &[(Self::None, "none"), (Self::Zstd, "zstd")];

    /// The value's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
        }
    }
}

/// Where the admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// At an address.
    Tcp(SocketAddrV4),
    /// In the file system, for this gateway's user alone.
    Unix(PathBuf),
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Limits of the retransmission service. All of them may change while the gateway runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetransmissionLimits {
    /// Networks that are answered; requests from others are counted and not answered.
    pub allowed: Vec<Network>,
    /// Requests per requester.
    pub requests_per_second: u32,
    /// Bytes of answers per requester.
    pub bytes_per_second: u64,
    /// Bytes of snapshots per requester, beside [`Self::bytes_per_second`].
    pub snapshot_bytes_per_second: u64,
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
    pub(crate) fn new(address: Ipv4Addr, prefix_bits: u8) -> Option<Self> {
        (prefix_bits <= 32 && address.to_bits() & !mask(prefix_bits) == 0).then_some(Self { address, prefix_bits })
    }

    /// Whether the network contains that host.
    #[must_use]
    pub(crate) fn contains(self, host: Ipv4Addr) -> bool {
        host.to_bits() & mask(self.prefix_bits) == self.address.to_bits()
    }

    /// Whether the network contains every host.
    #[must_use]
    pub(crate) fn is_everyone(self) -> bool {
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

/// Text that is not a network in CIDR form, or has host bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a network: expected an address and a prefix length without host bits, such as 10.1.0.0/16")]
pub struct InvalidNetwork;

/// The election. Each group has a separate lease, all with these settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The backend that grants leadership.
    pub backend: Backend,
    /// Name of this gateway.
    pub name: NodeName,
    /// The other gateways that may lead.
    pub peers: Vec<PeerConfig>,
    /// The links to the other gateways; `None`: gateways cannot hand over or give promises.
    pub link: Option<LinkConfig>,
    /// Lease, renewal and margin. The resolver has checked that no two leases can overlap.
    pub timing: LeaseTiming,
    /// What a leader does while its connection is suspended.
    pub on_suspended: OnSuspended,
    /// Raised by the operator who rolls out a configuration that changes the output.
    pub revision: u64,
    /// Node that leads where it can, as the operator configured it; `None`: no node is preferred.
    pub preferred: Option<NodeId>,
    /// Whether groups are balanced over the gateways.
    pub spread: bool,
    /// Least tenure before a leader hands over by itself; doubles with each such move.
    pub tenure_ns: u64,
    /// Core of the election threads; never a core of a pool.
    pub core: Option<usize>,
    /// SCHED_FIFO priority, if configured.
    pub priority: Option<u8>,
    /// How long a fence's opening waits for listeners.
    pub listener_timeout_ns: u64,
    /// Whether the kernel drops packets sent past the deadline.
    pub kernel_fence: bool,
}

impl ElectionConfig {
    /// Key files that the gateways share, each once: the link and the votes may share a file.
    #[must_use]
    pub(crate) fn key_files(&self) -> BTreeSet<&Path> {
        let of_backend = match &self.backend {
            Backend::Quorum(quorum) => Some(&quorum.key_file),
            Backend::Emergent(membership) => Some(&membership.key_file),
            Backend::File(_) | Backend::Etcd(_) | Backend::ZooKeeper(_) => None,
        };
        self.link.iter().map(|link| &link.key_file).chain(of_backend).map(PathBuf::as_path).collect()
    }

    fn reads_secrets(&self) -> bool {
        let of_store = match &self.backend {
            Backend::Etcd(etcd) => {
                etcd.access.login.is_some() || etcd.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
            }
            Backend::ZooKeeper(zookeeper) => zookeeper.access.login.is_some(),
            Backend::File(_) | Backend::Quorum(_) | Backend::Emergent(_) => false,
        };
        of_store || !self.key_files().is_empty()
    }
}

/// Addresses of the links to the other gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// This gateway's address.
    pub listen: SocketAddrV4,
    /// The addresses of the others.
    pub peers: Vec<PeerEndpoint>,
    /// File of the shared key.
    pub key_file: PathBuf,
    /// The sentinel that announces this gateway's death.
    pub sentinel: SentinelChoice,
    /// The sentinel kills a leading gateway that makes no progress for this long, ns; `None`: never.
    pub hang_limit_ns: Option<u64>,
    /// Input history of each channel for the peer: for the peer's gaps, and for the input that arrives while the peer
    /// copies this gateway's state.
    pub history_bytes: usize,
}

/// The process that announces a gateway's death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentinelChoice {
    /// No process: the other gateways wait for the lease to expire.
    None,
    /// A process that the gateway starts.
    Started,
    /// A process that the service manager has started, listening on this socket.
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

/// The voters of a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumConfig {
    /// This gateway's address.
    pub listen: SocketAddrV4,
    /// File of the shared key.
    pub key_file: PathBuf,
    /// Directory of its votes.
    pub vote_directory: PathBuf,
    /// All other voters, gateways among them; with this gateway an odd number.
    pub voters: BTreeMap<NodeId, SocketAddrV4>,
}

/// The backend that grants leadership.
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
    /// Membership without a store: the oldest member leads.
    Emergent(MembershipConfig),
}

impl Backend {
    /// The value of `election.backend`.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Etcd(_) => "etcd",
            Self::ZooKeeper(_) => "zookeeper",
            Self::Quorum(_) => "quorum",
            Self::Emergent(_) => "emergent",
        }
    }

    /// Whether leaders under this backend hand over automatically, so that groups can be balanced.
    #[must_use]
    pub(crate) fn can_move_groups(&self) -> bool {
        match self {
            Self::File(_) | Self::Etcd(_) | Self::Quorum(_) => true,
            Self::ZooKeeper(zookeeper) => zookeeper.mode == ZooKeeperMode::Lease,
            Self::Emergent(_) => false,
        }
    }

    /// Whether a record lists the candidates, so that an operator can admit others.
    #[must_use]
    pub(crate) fn has_record(&self) -> bool {
        match self {
            Self::File(_) | Self::Etcd(_) => true,
            Self::ZooKeeper(zookeeper) => zookeeper.mode == ZooKeeperMode::Lease,
            Self::Quorum(_) | Self::Emergent(_) => false,
        }
    }

    /// Time-out of the session that a latch requests, ns; `None` where a lease decides.
    #[must_use]
    pub(crate) fn session_ns(&self) -> Option<u64> {
        let Self::ZooKeeper(ZooKeeperConfig { mode: ZooKeeperMode::Latch { session }, .. }) = self else { return None };
        Some(u64::try_from(session.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How this gateway becomes a member of each group. The operator has allowed two leaders during a network partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipConfig {
    /// This gateway's address, as the others reach it.
    pub listen: SocketAddrV4,
    /// File of the shared key.
    pub key_file: PathBuf,
    /// Members that this gateway asks to join.
    pub seeds: Vec<SocketAddrV4>,
    /// What this gateway does if no member answers.
    pub bootstrap: BootstrapMode,
    /// Members without which no gateway leads.
    pub minimum_size: usize,
    /// How often this gateway asks before it bootstraps.
    pub join_attempts: u32,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Gateway id of the peer.
    pub node: NodeId,
    /// Name of the peer, for logs.
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
    /// The least important level that is written.
    pub level: LogLevel,
    /// How events are written.
    pub format: LogFormat,
    /// Least interval between two lines of one alarm about one thing, ms; 0: no limit.
    pub alarm_interval_ms: u64,
}

impl Default for LogConfig {
    /// As without the table `[log]`.
    fn default() -> Self {
        let alarm_interval_ms = u64::try_from(limits::ALARM_INTERVAL_MS.default).unwrap_or(0);
        Self { level: LogLevel::default(), format: LogFormat::default(), alarm_interval_ms }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Entries of the journal if standard error is connected to it, and text otherwise.
    #[default]
    Auto,
    /// Lines of text on standard error.
    Text,
    /// Lines of JSON on standard error.
    Json,
    /// Entries of the journal, with fields.
    Journald,
}

/// Log level; each includes the levels before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Conditions that need an operator.
    Error,
    /// Conditions that may need an operator.
    Warn,
    /// Events.
    #[default]
    Info,
    /// Reasons of events.
    Debug,
    /// Each step (cold threads only: the hot path never logs).
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
named!(NatsStorage { File = "file", Memory = "memory" });
named!(LogFormat { Auto = "auto", Text = "text", Json = "json", Journald = "journald" });
named!(LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" });

/// What a leader does while its connection is suspended, with the names that the configuration uses.
pub(crate) const ON_SUSPENDED: [(OnSuspended, &str); 2] = [(OnSuspended::Hold, "hold"), (OnSuspended::Stop, "stop")];

/// Sources of receive timestamps with the names that the configuration uses.
pub(crate) const STAMPS: [(Stamps, &str); 2] = [(Stamps::Kernel, "kernel"), (Stamps::Hardware, "hardware")];

/// Wait policies with the names that the configuration uses.
pub(crate) const WAIT_POLICIES: [(WaitPolicy, &str); 3] =
    [(WaitPolicy::Spin, "spin"), (WaitPolicy::Park, "park"), (WaitPolicy::SpinThenPark, "spin-then-park")];

/// Dispatch models with the names that the configuration uses.
pub(crate) const DISPATCH_MODELS: [(DispatchModel, &str); 3] = [
    (DispatchModel::LeaderFollowers, "leader-followers"),
    (DispatchModel::HalfSync, "half-sync"),
    (DispatchModel::Reactor, "reactor"),
];

/// Promotion policies with the names that the configuration uses.
pub(crate) const PROMOTION_POLICIES: [(PromotionPolicy, &str); 2] =
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
