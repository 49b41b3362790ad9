//! Sink from the publication logs to NATS JetStream.
//!
//! ```text
//!  log of a channel ─► cursor: messages from a place on ─► writer: may I append, behind what? ─► stream of the channel
//!                          ▲ begins behind the stream's last message ◄───────────────────────────────┘
//! ```
//! A process of its own reads the logs ([`sink::Sink`]). Each channel has a stream of its own, and the stream itself says where the sink
//! goes on: there is no other state.
//!
//! Rules, with their reasons in [`writer`]:
//! - Each record of the chosen schemas is in the stream once and in order, or a message in the gap subject says that it is missing.
//! - Each append names the message that it follows, by sequence and id. So any number of sinks may run: at most one of them is stored at
//!   each place, and one that wakes after a takeover stores nothing that another one has stored.
//! - The sink of the other gateway goes on when the stream is silent for a time although the log has more.
//! - Neither a slow nor a lost server reaches the gateway: what the log has lost meanwhile is a hole, with an alarm.
//! - The de-duplication window of the server is a second net: no rule depends on it.
//!
//! The client of NATS is linked with the feature `client` only. Without it [`sink::Sink::start`] says so.
//!
//! No input makes this code panic.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod channel_sink;
pub mod config;
#[cfg(feature = "client")]
mod connection;
#[cfg(any(feature = "client", test))]
mod cursor;
mod error;
pub mod message;
pub mod name;
#[cfg(feature = "client")]
mod progress;
#[cfg_attr(not(feature = "client"), path = "sink_not_built.rs")]
pub mod sink;
pub mod subject;
pub mod writer;

pub use config::SinkChannel;
pub use error::SinkError;
