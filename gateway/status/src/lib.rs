//! Status of a running gateway for cold threads and tools: snapshots, interval logs, disclosure of the host, and the
//! control protocol with its client and server.

#![forbid(unsafe_code)]

pub mod control;
pub mod disclosure;
pub mod interval_log;
pub mod quantity;
pub mod recent;
pub mod snapshot;

#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod formats;
