//! Exchange feeds without I/O: datagrams and times in, DBN records out.
//!
//! What this crate promises:
//! - **Deterministic.** What comes out is a function of what went in. No clock is read, no random number drawn, no
//!   randomly ordered map walked.
//! - **Bounded.** Every window, table and queue has a maximum that is allocated up front.
//! - **No panic on any input.** What does not fit is a counted [`DropReason`](drop_reason::DropReason).
//!
//! What it deliberately does not know: sockets, files, threads, clocks.
//!
//! Read [`channel`] first: one channel from datagram to records. The way of a datagram is
//! [`transport`] → [`arbiter`] → [`venue`] → [`book`] → [`normalise`] → [`frame`].
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic))]

pub mod arbiter;
pub mod book;
pub mod channel;
mod channel_state;
pub mod consumer_edge;
pub mod drop_reason;
pub mod frame;
pub mod identity;
pub mod normalise;
pub mod published;
pub mod time;
pub mod transport;
pub mod venue;

#[cfg(test)]
#[path = "../../tests/data/formats/check.rs"]
mod formats;
