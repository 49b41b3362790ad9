//! Exchange feeds without I/O: datagrams and times in, DBN records out.
//!
//! Guarantees:
//! - **Deterministic.** The output is a function of the input. The crate reads no clock, draws no random number and
//!   iterates over no randomly ordered map.
//! - **Bounded.** Every window, table and queue has a maximum that is allocated at the start.
//! - **No panic on any input.** Every rejection is a counted [`DropReason`](drop_reason::DropReason).
//!
//! Out of scope: sockets, files, threads, clocks.
//!
//! Read [`channel`] first: one channel from datagram to records. A datagram passes
//! [`transport`] → [`arbiter`] → [`venue`] → [`book`] → [`normalise`] → [`frame`].
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic))]

pub mod book;
pub mod channel;
pub(crate) mod normalise;
pub mod transport;
pub mod venue;

pub use mdgw_wire::{arbiter, consumer_edge, drop_reason, frame, identity, published, time};

#[cfg(test)]
#[path = "../../tests/data/formats/check.rs"]
mod formats;
