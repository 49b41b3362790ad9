//! What a world is made of.

use std::{path::PathBuf, time::Duration};

use crate::{failover::LeaseTimingMs, stores::Store};

/// Who grants leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionBackend {
    /// Records in memory of this machine, which all hosts share.
    File,
    /// Votes of the gateways and of a witness.
    Quorum,
    /// The gateways' own list of members.
    Emergent,
    /// Three nodes of a store, each on a host of its own.
    Store(Store),
}

impl ElectionBackend {
    /// As a configuration calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Quorum => "quorum",
            Self::Emergent => "emergent",
            Self::Store(Store::ZooKeeper) => "zookeeper",
            Self::Store(_) => "etcd",
        }
    }

    /// By the name that a configuration gives it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "file" => Some(Self::File),
            "quorum" => Some(Self::Quorum),
            "emergent" => Some(Self::Emergent),
            "etcd" => Some(Self::Store(Store::Etcd)),
            "zookeeper" => Some(Self::Store(Store::ZooKeeper)),
            _ => None,
        }
    }
}

/// What the world is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Gateways, two to four.
    pub gateways: u8,
    /// Who grants leadership.
    pub backend: ElectionBackend,
    /// Lease, renewal, margin.
    pub timing: LeaseTimingMs,
    /// Whether a sentinel tells of a gateway's death.
    pub has_sentinel: bool,
    /// Whether the kernel refuses what a gateway sends past its deadline.
    pub has_kernel_fence: bool,
    /// Messages of the venue's day.
    pub messages: u64,
    /// Messages of the venue in a second.
    pub messages_per_second: f64,
    /// SCHED_FIFO priority of the election threads; 0 for none.
    pub priority: u8,
    /// More lines of `[[channel]]` of both.
    pub channel: String,
    /// More lines of `[[output]]` of both.
    pub output: String,
    /// How much of its input each keeps for the other one.
    pub history_bytes: u64,
    /// Whether votes and audits have a small disk of their own, which can be filled.
    pub has_small_disks: bool,
    /// Whether each gateway's memory is counted, so that it can be taken away.
    pub has_memory_limit: bool,
    /// How long something lasts that must change nothing.
    pub calm: Duration,
    /// Whether only gateway 1 is started.
    pub starts_with_one_gateway: bool,
    /// Where publication logs and captures go.
    pub fast: PathBuf,
}

impl Plan {
    /// A pair over votes or records with a lease that stands a crowded machine, and a short day.
    #[must_use]
    pub fn calm(backend: ElectionBackend) -> Self {
        Self {
            gateways: 2,
            backend,
            timing: LeaseTimingMs(600, 120, 120),
            has_sentinel: true,
            has_kernel_fence: false,
            messages: 120_000,
            messages_per_second: 1_500.0,
            priority: 0,
            channel: String::new(),
            output: String::new(),
            history_bytes: 32 << 20,
            has_small_disks: false,
            has_memory_limit: false,
            calm: Duration::from_secs(3),
            starts_with_one_gateway: false,
            fast: std::env::temp_dir(),
        }
    }
}
