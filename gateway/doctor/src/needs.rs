//! What a configuration needs of its host.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::core_set::CoreSet;

/// Needs of a gateway, without its configuration's types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// File of the configuration, for commands.
    pub config: String,
    /// Pools and the election, as far as their threads have cores or a priority.
    pub threads: Vec<PinnedThreads>,
    /// All lines of all channels.
    pub lines: Vec<FeedLine>,
    /// Names of the interfaces of the outputs.
    pub output_interfaces: Vec<String>,
    /// Whether the gateway listens on an address of the loopback interface, or connects to one.
    pub uses_loopback: bool,
    /// Most memory that the gateway takes, but for what its logs have taken already, bytes.
    pub memory_bytes: u64,
    /// Whether the gateway locks its memory.
    pub lock_memory: bool,
    /// Folders that grow.
    pub directories: Vec<Directory>,
}

/// Threads of a pool or of the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedThreads {
    /// Pool, or `election`.
    pub name: String,
    /// Cores to which they are pinned; empty: any.
    pub cores: CoreSet,
    /// SCHED_FIFO priority.
    pub priority: Option<u8>,
    /// Whether the threads poll without a pause.
    pub spins: bool,
}

/// One line of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedLine {
    /// Name of the interface, or what the configuration says where there is no such interface.
    pub interface: String,
    /// Group that is joined.
    pub group: SocketAddrV4,
    /// Senders of a source-specific join.
    pub sources: Vec<Ipv4Addr>,
    /// Requested receive buffer.
    pub receive_buffer_bytes: u64,
    /// Whether the card's stamps are asked for.
    pub wants_hardware_stamps: bool,
}

/// A folder that the gateway writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Content of the folder.
    pub holds: &'static str,
    /// Path of the folder, which need not exist yet.
    pub path: std::path::PathBuf,
    /// Most bytes that the gateway will write there; 0 if there is no limit.
    pub bytes: u64,
}

impl Needs {
    /// All cores that belong to one thread each.
    pub(crate) fn pins(&self) -> CoreSet {
        self.threads.iter().fold(CoreSet::default(), |all, threads| all.union(&threads.cores))
    }

    /// Interfaces of the lines, each once.
    pub(crate) fn feed_interfaces(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.lines.iter().map(|line| line.interface.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
