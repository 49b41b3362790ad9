//! Two gateways that share a stream: who leads, who goes on, and who comes back.

mod configuration_conflicts;
mod election;
mod rejoin;
mod takeover;
