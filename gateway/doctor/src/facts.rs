//! What only system calls and connections show.

use std::{collections::BTreeMap, io};

use mdgw_sys::{
    clock_rate::{Synchronisation, synchronisation},
    disk_space::free_bytes,
    ethtool::{self, Coalescing, ReceiveRing, StampSupport},
};

use crate::{
    buffer_limit::OwnRights,
    needs::{Directory, Needs},
    time_daemon::DaemonReport,
};

/// Answers of this host and of others. Each error is a text for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Interfaces of this process's network namespace, by name.
    pub interfaces: Result<BTreeMap<String, InterfaceFacts>, String>,
    /// By interface.
    pub nics: BTreeMap<String, NicFacts>,
    /// Of the wall clock.
    pub clock: Result<Synchronisation, String>,
    /// What the daemon says that keeps the clock; `None` if none runs that can be asked.
    pub time_daemon: Option<Result<DaemonReport, String>>,
    /// Space of the folders that the gateway writes to.
    pub disks: Vec<Disk>,
    /// Rights of this process.
    pub own_rights: OwnRights,
    /// Store nodes, peers and voters.
    pub endpoints: Vec<Endpoint>,
    /// What `mdgw check` finds, if there is a configuration.
    pub check: Option<CheckResult>,
}

/// An interface as the kernel reports it to this process, whatever `/sys` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Its number in this network namespace.
    pub index: u32,
    /// Whether it is up and has a link.
    pub is_running: bool,
}

/// Settings of a network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicFacts {
    /// Receive ring.
    pub ring: Result<ReceiveRing, String>,
    /// Interrupt coalescing.
    pub coalescing: Result<Coalescing, String>,
    /// Generic receive offload.
    pub gro: Result<bool, String>,
    /// Large receive offload.
    pub lro: Result<bool, String>,
    /// Timestamps.
    pub stamps: Result<StampSupport, String>,
}

/// A folder and the space of its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The folder, as needed.
    pub directory: Directory,
    /// Bytes that are free for this user.
    pub free_bytes: Result<u64, String>,
}

/// What an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A node of the election's store.
    Store,
    /// The gateway that runs here, for its view of the store.
    StoreUser,
    /// Another gateway of the pair.
    Peer,
    /// Another voter of the quorum: a gateway or a witness.
    Voter,
}

/// An address that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// What is expected there.
    pub role: Role,
    /// As configured.
    pub address: String,
    /// The answer, or why there is none.
    pub answer: Result<String, NoAnswer>,
}

/// Why an address did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// This host could not ask: its key cannot be read, or the address to ask from is in use.
    NotAsked(String),
    /// No connection, or a wrong answer.
    Failed(String),
    /// A connection, and no answer or a wrong one.
    Wrong {
        /// What was read.
        read: String,
        /// Shows the operator more.
        command: String,
    },
}

/// Findings of `mdgw check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckResult {
    /// Why the gateway would not start.
    pub faults: Vec<String>,
    /// Why it would run worse than it could.
    pub warnings: Vec<String>,
    /// What the user who asks lacks the rights for. The gateway's user may have them.
    pub not_permitted: Vec<String>,
}

impl Facts {
    /// Reads this host. Connections are the caller's: it adds `endpoints` and `check`.
    #[must_use]
    pub fn read(needs: Option<&Needs>) -> Self {
        let interfaces = needs.map(Needs::feed_interfaces).unwrap_or_default();
        let directories = needs.map(|needs| needs.directories.as_slice()).unwrap_or_default();
        Self {
            interfaces: read_interfaces(),
            nics: interfaces.into_iter().map(|name| (name.to_owned(), NicFacts::read(name))).collect(),
            clock: synchronisation().map_err(text),
            time_daemon: DaemonReport::read(),
            disks: directories.iter().map(Disk::read).collect(),
            own_rights: OwnRights::read(),
            endpoints: Vec::new(),
            check: None,
        }
    }
}

fn read_interfaces() -> Result<BTreeMap<String, InterfaceFacts>, String> {
    let found = mdgw_sys::interfaces::interfaces().map_err(text)?.into_iter();
    let facts = found.map(|of| (of.name, InterfaceFacts { index: of.index, is_running: of.running }));
    // Labels of addresses (`eth0:1`) are no interfaces of their own, and do no harm here.
    Ok(facts.collect())
}

impl NicFacts {
    fn read(interface: &str) -> Self {
        Self {
            ring: ethtool::receive_ring(interface).map_err(text),
            coalescing: ethtool::coalescing(interface).map_err(text),
            gro: ethtool::generic_receive_offload(interface).map_err(text),
            lro: ethtool::large_receive_offload(interface).map_err(text),
            stamps: ethtool::stamp_support(interface).map_err(text),
        }
    }
}

impl Disk {
    /// The space where the folder is, or will be.
    fn read(directory: &Directory) -> Self {
        Self { directory: directory.clone(), free_bytes: free_bytes(&directory.path).map_err(text) }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: io::Error) -> String {
    crate::files::cause(&error)
}
