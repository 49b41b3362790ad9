//! Configuration as written: every key of the file with its position. Nothing is checked and no default is filled in.
//!
//! Numbers are read as signed 64-bit integers, so that the message about an invalid one can name the range.

use serde::Deserialize;
use toml::Spanned;

/// A value with its position in the file.
pub(crate) type FileValue<T> = Option<Spanned<T>>;

/// The configuration file as written: a field per table of the top level, nothing checked and no default filled in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// `[gateway]`
    pub gateway: Spanned<Gateway>,
    /// `[[pool]]`
    #[serde(default)]
    pub pool: Vec<Spanned<Pool>>,
    /// `[[channel]]`
    #[serde(default)]
    pub channel: Vec<Spanned<Channel>>,
    /// `[[output]]`
    #[serde(default)]
    pub output: Vec<Spanned<Output>>,
    /// `[retransmission]`
    pub retransmission: Option<Spanned<Retransmission>>,
    /// `[live]`
    pub live: Option<Spanned<Live>>,
    /// `[journal]`
    pub journal: Option<Spanned<Journal>>,
    /// `[nats]`
    pub nats: Option<Spanned<Nats>>,
    /// `[mirror]`
    pub mirror: Option<Spanned<Mirror>>,
    /// `[admin]`
    pub admin: Option<Spanned<Admin>>,
    /// `[election]`
    pub election: Option<Spanned<Election>>,
    /// `[latency]`
    pub latency: Option<Latency>,
    /// `[log]`
    pub log: Option<Log>,
}

/// `[gateway]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gateway {
    /// Number of this gateway, part of every epoch.
    pub node: FileValue<i64>,
    /// File of epochs and restart counts; must survive a reboot.
    pub state_file: FileValue<String>,
    /// Directory of the publication logs.
    pub log_dir: FileValue<String>,
    /// Group whose members may read the publication logs.
    pub log_group: FileValue<String>,
    /// Audit file: changes of leadership.
    pub audit_file: FileValue<String>,
    /// Control socket, for `mdgw ha` and `mdgw top`.
    pub control_socket: FileValue<String>,
    /// Size of one segment.
    pub segment_bytes: FileValue<i64>,
    /// Space of one channel's log.
    pub retention_bytes: FileValue<i64>,
    /// Greatest age of an entry, 0 for no limit.
    pub retention_seconds: FileValue<i64>,
    /// Whether memory is locked where the host allows it.
    pub lock_memory: FileValue<bool>,
}

/// `[[pool]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pool {
    /// Name for `channel.pool`.
    pub name: FileValue<String>,
    /// Cores, one pinned thread for each.
    pub cores: Option<Spanned<Vec<Spanned<i64>>>>,
    /// Number of unpinned threads instead.
    pub threads: FileValue<i64>,
    /// `leader-followers`, `half-sync` or `reactor`.
    pub dispatch: FileValue<String>,
    /// `auto`, `io_uring` or `epoll`.
    pub io: FileValue<String>,
    /// `spin`, `park` or `spin-then-park`.
    pub wait: FileValue<String>,
    /// `strict` or `lazy`.
    pub promotion: FileValue<String>,
    /// How long `spin-then-park` spins.
    pub spin_us: FileValue<i64>,
    /// Packets per claim.
    pub quota: FileValue<i64>,
    /// Events per turn.
    pub batch: FileValue<i64>,
    /// SCHED_FIFO priority, 0 for none.
    pub priority: FileValue<i64>,
    /// Vacant slots for channels that a reload adds.
    pub spare_channels: FileValue<i64>,
}

/// `[[channel]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Channel {
    /// Number.
    pub id: FileValue<i64>,
    /// Name.
    pub name: FileValue<String>,
    /// Name of the feed.
    pub feed: FileValue<String>,
    /// Number of the group.
    pub group: FileValue<i64>,
    /// Name of the pool.
    pub pool: FileValue<String>,
    /// Names of the schemas.
    pub schemas: Option<Spanned<Vec<Spanned<String>>>>,
    /// Trading date, `YYYY-MM-DD`, in quotes.
    pub date: FileValue<String>,
    /// Reorder window.
    pub window_packets: FileValue<i64>,
    /// Gap timer.
    pub gap_timeout_us: FileValue<i64>,
    /// Silence alarm.
    pub line_silence_ms: FileValue<i64>,
    /// Live orders.
    pub orders_max: FileValue<i64>,
    /// Price levels.
    pub levels_max: FileValue<i64>,
    /// Instruments.
    pub instruments_max: FileValue<i64>,
    /// `hash` or `window`.
    pub order_store: FileValue<String>,
    /// `[[channel.line]]`
    #[serde(default)]
    pub line: Vec<Spanned<Line>>,
    /// `[channel.recovery]`
    pub recovery: Option<Spanned<Recovery>>,
}

/// `[[channel.line]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    /// A letter from `A`.
    pub name: FileValue<String>,
    /// Group and port.
    pub group: FileValue<String>,
    /// Name or address of the interface.
    pub interface: FileValue<String>,
    /// Addresses of the senders.
    pub source: Option<Spanned<Vec<Spanned<String>>>>,
    /// Socket buffer.
    pub receive_buffer_bytes: FileValue<i64>,
    /// Source of the receive timestamps.
    pub stamps: FileValue<String>,
    /// Busy polling, 0 for none.
    pub busy_poll_us: FileValue<i64>,
}

/// `[channel.recovery]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recovery {
    /// Address and port.
    pub server: FileValue<String>,
    /// How long an answer may take.
    pub timeout_ms: FileValue<i64>,
    /// How often one range is requested.
    pub attempts_max: FileValue<i64>,
    /// Messages per request.
    pub messages_per_request_max: FileValue<i64>,
    /// Requests that may be in flight at a time.
    #[serde(alias = "requests_under_way_max")]
    pub requests_in_flight_max: FileValue<i64>,
}

/// `[[output]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Output {
    /// Numbers of the groups.
    pub groups: Option<Spanned<Vec<Spanned<i64>>>>,
    /// Largest UDP payload.
    pub payload_bytes_max: FileValue<i64>,
    /// Heartbeat of idle channels.
    pub heartbeat_ms: FileValue<i64>,
    /// Key files of the packets' tags.
    pub tag_key_files: Option<Spanned<Vec<Spanned<String>>>>,
    /// Whether packets without a tag are accepted all the same.
    pub accept_untagged: FileValue<bool>,
    /// `[[output.line]]`
    #[serde(default)]
    pub line: Vec<Spanned<OutputLine>>,
    /// `[output.snapshots]`
    pub snapshots: Option<Spanned<OutputSnapshots>>,
}

/// `[[output.line]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputLine {
    /// Address and port.
    pub address: FileValue<String>,
    /// Name or address of the interface.
    pub interface: FileValue<String>,
    /// Hops.
    pub ttl: FileValue<i64>,
    /// Whether receivers on this host get the packets (IP_MULTICAST_LOOP).
    pub loopback: FileValue<bool>,
    /// Addresses of the gateways.
    pub source: Option<Spanned<Vec<Spanned<String>>>>,
}

/// `[output.snapshots]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputSnapshots {
    /// Address and port.
    pub address: FileValue<String>,
    /// Name or address of the interface.
    pub interface: FileValue<String>,
    /// Hops.
    pub ttl: FileValue<i64>,
    /// Whether receivers on this host get the packets (IP_MULTICAST_LOOP).
    pub loopback: FileValue<bool>,
    /// Addresses of the gateways.
    pub source: Option<Spanned<Vec<Spanned<String>>>>,
    /// Time from one round of all channels to the next.
    pub interval_ms: FileValue<i64>,
    /// Bytes of chunks per second.
    pub bytes_per_second: FileValue<i64>,
    /// How often each image is sent.
    pub passes: FileValue<i64>,
}

/// `[retransmission]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retransmission {
    /// Address and port.
    pub listen: FileValue<String>,
    /// Networks that are answered.
    pub allowed: Option<Spanned<Vec<Spanned<String>>>>,
    /// Requests per requester and second.
    pub requests_per_second: FileValue<i64>,
    /// Bytes per requester and second.
    pub bytes_per_second: FileValue<i64>,
    /// Whether snapshots are served.
    pub snapshots: FileValue<bool>,
    /// Bytes of snapshots per requester and second.
    pub snapshot_bytes_per_second: FileValue<i64>,
    /// Packets per answer.
    pub packets_per_request_max: FileValue<i64>,
    /// Requesters remembered.
    pub requesters_max: FileValue<i64>,
}

/// `[live]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Live {
    /// Address and port.
    pub listen: FileValue<String>,
    /// File of the clients' keys.
    pub key_file: FileValue<String>,
    /// Unix socket for `mdgw top` and `mdgw ha status`.
    pub control_socket: FileValue<String>,
    /// Address and port of the admin listener, or the path of a socket.
    pub admin_listen: FileValue<String>,
    /// Sessions at a time.
    pub sessions_max: FileValue<i64>,
    /// Connections that are not authenticated yet.
    pub handshakes_max: FileValue<i64>,
    /// Connections accepted per second.
    pub handshakes_per_second: FileValue<i64>,
    /// How long an authentication may take.
    pub handshake_timeout_ms: FileValue<i64>,
    /// Failed authentications per minute and address.
    pub failures_per_minute: FileValue<i64>,
    /// Bytes of a line.
    pub line_bytes_max: FileValue<i64>,
    /// Symbols of a session.
    pub symbols_max: FileValue<i64>,
    /// Bytes that a session may be behind.
    pub queue_bytes_max: FileValue<i64>,
    /// Trading dates of journals that are read.
    pub journal_days_max: FileValue<i64>,
    /// Replays of a dataset at a time.
    pub replays_max: FileValue<i64>,
    /// How long a client may take nothing.
    pub stall_seconds: FileValue<i64>,
    /// Threads.
    pub threads: FileValue<i64>,
}

/// `[journal]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Journal {
    /// Folder of the journals.
    pub directory: FileValue<String>,
    /// Address and port of the admin listener, or the path of a socket.
    pub admin_listen: FileValue<String>,
    /// Compression of closed journals.
    pub compression: Option<Spanned<String>>,
    /// Longest time until a record is on the disk.
    pub flush_ms: FileValue<i64>,
    /// Days for which closed journals are kept.
    pub retention_days: FileValue<i64>,
    /// Bytes of all journals.
    pub retention_bytes: FileValue<i64>,
    /// Bytes left free on the disk.
    pub free_bytes_min: FileValue<i64>,
}

/// `[nats]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nats {
    /// Addresses of the servers.
    pub servers: Option<Spanned<Vec<Spanned<String>>>>,
    /// Address and port of the admin listener, or the path of a socket.
    pub admin_listen: FileValue<String>,
    /// File of credentials.
    pub credentials_file: FileValue<String>,
    /// File of a token.
    pub token_file: FileValue<String>,
    /// User.
    pub user: FileValue<String>,
    /// File of the user's password.
    pub password_file: FileValue<String>,
    /// Whether the connection must be encrypted.
    pub tls: FileValue<bool>,
    /// Authority of the servers' certificates.
    pub ca_file: FileValue<String>,
    /// Our certificate.
    pub certificate_file: FileValue<String>,
    /// Private key of that certificate.
    pub key_file: FileValue<String>,
    /// First part of the streams' names.
    pub stream: FileValue<String>,
    /// First tokens of subjects.
    pub subject_prefix: FileValue<String>,
    /// Names of the channels.
    pub channels: Option<Spanned<Vec<Spanned<String>>>>,
    /// Names of the schemas.
    pub schemas: Option<Spanned<Vec<Spanned<String>>>>,
    /// Whether streams are made that do not exist.
    pub create_stream: FileValue<bool>,
    /// `file` or `memory`.
    pub storage: Option<Spanned<String>>,
    /// Servers that have a stream.
    pub replicas: FileValue<i64>,
    /// Bytes of a stream.
    pub bytes_max: FileValue<i64>,
    /// Age of messages.
    pub age_max_seconds: FileValue<i64>,
    /// How long the server knows message ids.
    pub duplicate_window_seconds: FileValue<i64>,
    /// Silence after which another sink's stream is taken over.
    pub takeover_ms: FileValue<i64>,
    /// How long an acknowledgement may take.
    pub ack_timeout_ms: FileValue<i64>,
    /// Messages without an acknowledgement.
    pub in_flight_max: FileValue<i64>,
}

/// `[mirror]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mirror {
    /// Address and port of the admin listener, or the path of a socket.
    pub admin_listen: FileValue<String>,
}

/// `[admin]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Admin {
    /// Address and port, or the path of a socket.
    pub listen: FileValue<String>,
}

/// `[election]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Election {
    /// The backend that grants leadership.
    pub backend: FileValue<String>,
    /// Name of this gateway.
    pub name: FileValue<String>,
    /// `default`, `fast` or `calm`.
    pub profile: FileValue<String>,
    /// Length L of a lease, instead of the profile's.
    pub lease_ms: FileValue<i64>,
    /// Renewal interval R, instead of the profile's.
    pub renew_ms: FileValue<i64>,
    /// Margin M, instead of the profile's.
    pub margin_ms: FileValue<i64>,
    /// Longest send S; half of the margin unless given.
    pub send_us_max: FileValue<i64>,
    /// Bound on the error of any clock's rate.
    pub rate_error_ppm: FileValue<i64>,
    /// `hold` or `stop`.
    pub on_suspended: FileValue<String>,
    /// Revision of this configuration.
    pub revision: FileValue<i64>,
    /// Number of the preferred leader.
    #[serde(alias = "preferred")]
    pub preferred_leader: FileValue<i64>,
    /// Whether groups are balanced over the gateways.
    pub spread: FileValue<bool>,
    /// Least tenure before a leader hands over by itself.
    #[serde(alias = "tenure_ms")]
    pub tenure_ms_min: FileValue<i64>,
    /// Core of the election threads.
    pub core: FileValue<i64>,
    /// SCHED_FIFO priority, 0 for none; also of a sentinel that the gateway starts.
    pub priority: FileValue<i64>,
    /// How long a fence's opening waits for listeners.
    #[serde(alias = "listeners_ms_max")]
    pub listener_timeout_ms: FileValue<i64>,
    /// Whether the kernel drops packets sent past the deadline.
    pub kernel_fence: FileValue<bool>,
    /// `[election.file]`
    pub file: Option<Spanned<FileStore>>,
    /// `[election.etcd]`
    pub etcd: Option<Spanned<Etcd>>,
    /// `[election.zookeeper]`
    pub zookeeper: Option<Spanned<ZooKeeper>>,
    /// `[election.quorum]`
    pub quorum: Option<Spanned<Quorum>>,
    /// `[election.emergent]`
    pub emergent: Option<Spanned<Emergent>>,
    /// `[election.link]`
    pub link: Option<Spanned<Link>>,
    /// `[[election.peer]]`
    #[serde(default)]
    pub peer: Vec<Spanned<Peer>>,
}

/// `[election.file]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileStore {
    /// Directory of the records.
    pub directory: FileValue<String>,
}

/// `[election.link]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    /// Address and port of this gateway's link.
    pub listen: FileValue<String>,
    /// Address and port of the peer's link, if there is a single peer.
    pub peer: FileValue<String>,
    /// File of the key that all gateways share.
    pub key_file: FileValue<String>,
    /// The sentinel that announces this gateway's death: `spawn`, `none`, or the socket of a sentinel that the service
    /// manager has started.
    pub sentinel: FileValue<String>,
    /// After how long without progress the sentinel kills the gateway; 0 for never.
    pub hang_limit_ms: FileValue<i64>,
    /// Input history of each channel, in bytes, for the peer.
    pub history_bytes: FileValue<i64>,
}

/// `[election.quorum]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quorum {
    /// Address and port of this gateway's voter.
    pub listen: FileValue<String>,
    /// File of the key that all voters share.
    pub key_file: FileValue<String>,
    /// Directory of the votes; must survive a reboot.
    pub vote_directory: FileValue<String>,
    /// `[[election.quorum.voter]]`
    #[serde(default)]
    pub voter: Vec<Spanned<QuorumVoter>>,
}

/// `[[election.quorum.voter]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuorumVoter {
    /// Number of the other gateway or witness.
    pub node: FileValue<i64>,
    /// Address and port of the server.
    pub address: FileValue<String>,
}

/// `[election.emergent]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Emergent {
    /// Must be `true`.
    pub allow_split: FileValue<bool>,
    /// Address and port of this gateway, as the others reach it.
    pub listen: FileValue<String>,
    /// File of the key that all members share.
    pub key_file: FileValue<String>,
    /// Members that it asks to join.
    pub seeds: Option<Spanned<Vec<Spanned<String>>>>,
    /// Whether it bootstraps if no member answers.
    #[serde(alias = "found")]
    pub bootstrap: FileValue<bool>,
    /// Members without which no gateway leads.
    pub minimum_size: FileValue<i64>,
    /// How often it asks before it bootstraps.
    pub join_attempts: FileValue<i64>,
}

/// `[election.etcd]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Etcd {
    /// Nodes, `host:port`.
    pub endpoints: Option<Spanned<Vec<Spanned<String>>>>,
    /// Prefix of all its keys.
    pub prefix: FileValue<String>,
    /// Time-out of one request.
    pub request_timeout_ms: FileValue<i64>,
    /// Authority of the nodes' certificates.
    pub ca_file: FileValue<String>,
    /// The client's certificate.
    pub certificate_file: FileValue<String>,
    /// The certificate's key.
    pub key_file: FileValue<String>,
    /// User.
    pub user: FileValue<String>,
    /// File that holds the password.
    pub password_file: FileValue<String>,
}

/// `[election.zookeeper]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ZooKeeper {
    /// Nodes, `host:port`.
    pub endpoints: Option<Spanned<Vec<Spanned<String>>>>,
    /// Parent node of all its nodes.
    pub path: FileValue<String>,
    /// `lease` or `latch`.
    pub mode: FileValue<String>,
    /// Session time-out of `latch`.
    pub session_ms: FileValue<i64>,
    /// Time-out of one request.
    pub request_timeout_ms: FileValue<i64>,
    /// User.
    pub user: FileValue<String>,
    /// File that holds the password.
    pub password_file: FileValue<String>,
}

/// `[[election.peer]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peer {
    /// Its `gateway.node`.
    pub node: FileValue<i64>,
    /// Its `election.name`.
    pub name: FileValue<String>,
    /// Address and port of the peer's link.
    pub link: FileValue<String>,
}

/// `[latency]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latency {
    /// Directory of the interval logs.
    pub directory: FileValue<String>,
    /// Length of an interval.
    pub interval_ms: FileValue<i64>,
    /// Precision.
    pub significant_digits: FileValue<i64>,
}

/// `[log]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: FileValue<String>,
    /// `auto`, `text`, `json` or `journald`.
    pub format: FileValue<String>,
    /// Least interval between two lines of one alarm.
    pub alarm_interval_ms: FileValue<i64>,
}
