//! Exchange simulators for the demonstration, rehearsals, tests and benches.

#![forbid(unsafe_code)]

pub mod exchange;
mod history;
pub mod itch_generator;
pub mod reference;
mod request_server;
pub mod source;
