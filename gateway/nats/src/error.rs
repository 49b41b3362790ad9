//! Errors of the sink.

use std::{io, path::PathBuf};

/// Why the sink cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The program has no client of NATS.
    #[error("this program was built without NATS: build it with the feature `nats` of mdgw")]
    NotBuilt,
    /// A file of a secret cannot be used.
    #[error(transparent)]
    Secret(#[from] mdgw_keys::KeyError),
    /// The file of credentials holds something else.
    #[error("read {}: not a file of NATS credentials: {source}", path.display())]
    Credentials {
        /// File of the login.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The servers do not let us in.
    #[error("log in at {servers}: {reason}; check the login in [nats] and the server's accounts")]
    LoginRefused {
        /// Addresses of the servers, as configured.
        servers: String,
        /// The client's words.
        reason: String,
    },
    /// The servers cannot be used as configured.
    #[error("connect to {servers}: {reason}")]
    Connect {
        /// Addresses of the servers, as configured.
        servers: String,
        /// The client's words.
        reason: String,
    },
    /// No server answers.
    #[error("connect to {servers}: {reason}")]
    Unreachable {
        /// Addresses of the servers, as configured.
        servers: String,
        /// The client's words.
        reason: String,
    },
    /// A request failed.
    #[error("{0}")]
    Request(String),
    /// The stream was made with properties that the sink cannot do with.
    #[error("stream {stream}: {why}")]
    Unsuitable {
        /// Name of the stream.
        stream: String,
        /// Which property.
        why: String,
    },
    /// Somebody else writes to the stream.
    #[error("stream {stream}: message {sequence} was not written by mdgw nats; the stream must have no other writer")]
    ForeignMessage {
        /// Name of the stream.
        stream: String,
        /// Name of the message.
        sequence: u64,
    },
    /// The publication log cannot be read.
    #[error(transparent)]
    Log(#[from] mdgw_publog::LogError),
    /// A fault stopped the sink.
    #[error("the thread of the sink stopped unexpectedly")]
    Stopped,
    /// A thread cannot be started.
    #[error("start a thread: {0}")]
    Thread(io::Error),
}

impl SinkError {
    /// Whether another attempt may succeed without a change of the configuration.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Request(_) | Self::Log(_))
    }
}
