//! Starts and stops a gateway: configuration, wiring, and the cold threads beside the data path.

#![forbid(unsafe_code)]

pub mod admin_listener;
pub mod audit;
mod commit;
pub mod config;
pub(crate) mod control;
pub mod gateway;
pub mod latency_thread;
mod published_positions;
pub mod retransmit;
pub mod state_file;

pub use self::commit::set_commit;
