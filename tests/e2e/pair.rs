//! Two gateways that share a stream: who leads, who goes on, and who comes back.

mod election;
mod misfits;
mod rejoin;
mod takeover;
