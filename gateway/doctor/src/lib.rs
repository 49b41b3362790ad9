//! Examines a host: cores, memory, network cards, clock, disks and the services beside a gateway.
//!
//! [`examine`] is a function of three inputs: files below a root folder (`/proc`, `/sys`), the answers to system calls and
//! connections ([`Facts`]), and what a configuration needs ([`Needs`]). Nothing here changes the host, and nothing needs a
//! privilege: what cannot be read is [`Status::Unknown`], with the reason.

#![forbid(unsafe_code)]

mod buffer_limit;
mod clock;
mod core_set;
mod cores;
mod facts;
mod files;
mod memory;
mod needs;
mod network;
mod report;
mod service_unit;
mod services;
#[cfg(test)]
mod tests;
mod text;
mod time_daemon;

use std::path::Path;

use self::files::Files;
pub use self::{
    buffer_limit::{BufferLimit, OwnRights},
    core_set::CoreSet,
    facts::{CheckResult, Disk, Endpoint, Facts, InterfaceFacts, NicFacts, NoAnswer, Role},
    needs::{Directory, FeedLine, Needs, PinnedThreads},
    report::{Counts, Group, Item, Report, Status},
    time_daemon::DaemonReport,
};

/// Whether `net.core.rmem_max` limits the receive buffers of the gateway with that configuration. `root` is `/` but in tests.
#[must_use]
pub fn buffer_limit(root: &Path, config: &str, own: OwnRights) -> BufferLimit {
    BufferLimit::find(&Files::new(root), Some(config), own)
}

/// All items, in the order of their groups. `root` is `/` but in tests; without `needs`, what depends on a configuration is unknown.
#[must_use]
pub fn examine(root: &Path, facts: &Facts, needs: Option<&Needs>) -> Report {
    let files = Files::new(root);
    let mut items = cores::items(&files, needs);
    items.extend(memory::items(&files, needs));
    items.extend(network::items(&files, facts, needs));
    items.extend(clock::items(&files, facts));
    items.extend(services::items(facts, needs));
    Report::new(items)
}
