//! What to sink, where to, and how much was sunk.

use std::{path::PathBuf, time::Duration};

use mdgw_feeds::channel::SchemaSet;
use mdgw_wire::identity::{ChannelId, Feed};

use crate::writer::WriterConfig;

/// What to sink, and where to.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    /// How the servers are reached.
    pub server: ServerConfig,
    /// How streams are made.
    pub stream: StreamConfig,
    /// The channels, each with a stream of its own.
    pub channels: Vec<SinkChannel>,
    /// Limits and times of the writers.
    pub writer: WriterConfig,
}

/// Counts of a running sink, over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Messages that the server acknowledged.
    pub messages: u64,
    /// Records in them.
    pub records: u64,
    /// Of the messages, those that the server had already.
    pub duplicates: u64,
    /// Messages that say that the gateway declared a gap.
    pub gaps: u64,
    /// Messages that say that the log lacked messages.
    pub holes: u64,
    /// How often another gateway's sink came first.
    pub fenced: u64,
    /// How often a server could not be used.
    pub failures: u64,
    /// How often the connection to the servers was lost.
    pub disconnects: u64,
    /// Channels that this sink appends at the moment.
    pub writing: usize,
    /// Streams that cannot be written at the moment; 1 while there is no connection yet.
    pub failing: usize,
}

/// A channel whose log is sunk into a stream of its own.
#[derive(Clone, Debug)]
pub struct SinkChannel {
    /// Number of the channel.
    pub id: ChannelId,
    /// The feed whose records its log holds.
    pub feed: Feed,
    /// The schemas to sink.
    pub schemas: SchemaSet,
    /// Directory of its log's segments.
    pub log_directory: PathBuf,
    /// Name of its stream.
    pub stream: String,
    /// First tokens of its subjects.
    pub subject_prefix: String,
}

/// Where the servers are, and how to log in.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses, such as `nats://10.0.0.1:4222`.
    pub servers: Vec<String>,
    /// How to log in.
    pub login: Login,
    /// TLS, if the connection must be encrypted.
    pub tls: Option<TlsFiles>,
    /// How long a request may take.
    pub request_timeout: Duration,
}

/// How to log in.
#[derive(Clone, Debug, Default)]
pub enum Login {
    /// Not at all.
    #[default]
    None,
    /// By a token in a file.
    Token(PathBuf),
    /// By name and a password in a file.
    User(String, PathBuf),
    /// By a file of credentials (JWT and seed).
    Credentials(PathBuf),
}

/// Files for TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Authority of the servers' certificates; without it, those of the host.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How a stream is made that does not exist.
#[derive(Clone, Copy, Debug)]
pub struct StreamConfig {
    /// Whether to make it.
    pub create: bool,
    /// Whether it is in memory rather than in files.
    pub in_memory: bool,
    /// Servers that have it.
    pub replicas: u8,
    /// Bytes above which the oldest messages are removed; 0: none.
    pub bytes_max: u64,
    /// Age above which messages are removed; zero: none.
    pub age_max: Duration,
    /// For how long the server knows message ids.
    pub duplicate_window: Duration,
}
