//! Our published stream without I/O: what is in a packet, and what a receiver makes of packets.
//!
//! `feeds` writes frames with it, the gateway packets, and consumers read both. It knows no venue and no book, and records are
//! bytes to it: it links no DBN library, so that a consumer is free to use any version of one.
//!
//! Guarantees:
//! - **Deterministic.** The output is a function of the input. The crate reads no clock and draws no random number.
//! - **Bounded.** Every window, table and queue has a maximum that is allocated at the start.
//! - **No panic on any input.** Every rejection is a counted [`DropReason`](drop_reason::DropReason).
//!
//! Read [`published`] first, then `ops/guide/output-protocol.md`, which specifies every byte. The [`arbiter`] puts redundant
//! lines into one sequence: a venue's in the gateway, and ours in a receiver.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic))]

pub mod arbiter;
pub mod channel_state;
pub mod consumer_edge;
pub mod counted_reasons;
mod dbn_layout;
pub mod drop_reason;
pub mod frame;
pub mod identity;
pub mod published;
pub mod time;

#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod formats;
