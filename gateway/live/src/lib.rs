//! Live gateway: serves publication logs to official DBN live clients over TCP.
//!
//! A process of its own reads the logs of a gateway on its host ([`stream`]), authenticates clients by their keys ([`keys`]),
//! speaks the session protocol ([`protocol`]) and sends each client the records that it subscribed to ([`server`]).
//!
//! Invariants:
//! - A session that does not read holds nothing back: sessions read shared chunks at positions of their own.
//! - Operators see the sessions ([`open_sessions`]) by what the sessions store of themselves; no session answers them.
//! - Everything a client sends is bounded: lines, symbols, requests, handshakes, sessions.
//! - Nothing here runs on the hot path or writes to a log.
#![forbid(unsafe_code)]

mod admissions;
mod connection;
mod control;
pub mod keys;
pub mod open_sessions;
mod outgoing;
pub mod protocol;
pub mod schema;
pub mod server;
mod stream;
mod subscriptions;

pub use stream::{channel::ChannelSource, journals::JournalSource};
