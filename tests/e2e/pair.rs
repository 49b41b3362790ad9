//! Two gateways that share a stream: leadership, takeover and rejoin.

mod configuration_conflicts;
mod election;
mod forged_epochs;
mod mixed_versions;
mod monitoring;
mod page;
mod pair_reload;
mod pair_report;
mod rejoin;
mod takeover;
mod voters;
