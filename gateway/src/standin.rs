//! Venues that we play ourselves: for the demonstration, for rehearsals, for tests and benches.

pub mod damage;
pub mod exchange;
mod history;
pub mod itch_generator;
pub mod random;
pub mod reference;
mod request_server;
mod source;
