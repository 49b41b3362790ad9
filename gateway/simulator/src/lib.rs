//! Venues that we play ourselves: for the demonstration, for rehearsals, for tests and benches.

pub mod exchange;
mod history;
pub mod itch_generator;
pub mod reference;
mod request_server;
pub mod source;
