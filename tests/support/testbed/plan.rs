//! Parameters of a testbed: gateways, election backend, timing, load.

use std::{path::PathBuf, time::Duration};

use crate::{failover::LeaseTimingMs, stores::Store};

/// Kind of election, and by that what else the testbed starts: stores, a witness.
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
    /// Its name in a configuration.
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

    /// The backend of that configuration name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
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

/// The parameters of one testbed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Gateways, two to four.
    pub gateways: u8,
    /// Kind of election of all gateways.
    pub backend: ElectionBackend,
    /// Lease, renewal and margin, ms.
    pub timing: LeaseTimingMs,
    /// Whether a sentinel announces a gateway's death.
    pub has_sentinel: bool,
    /// Whether the kernel drops what a gateway sends past its lease deadline.
    pub has_kernel_fence: bool,
    /// Messages of the venue's day.
    pub messages: u64,
    /// Messages of the venue in a second.
    pub messages_per_second: f64,
    /// SCHED_FIFO priority of the election threads; 0 for none.
    pub priority: u8,
    /// Additional lines of `[[channel]]`, for all gateways.
    pub channel: String,
    /// Additional lines of `[[output]]`, for all gateways.
    pub output: String,
    /// Whether each gateway has a second output line, [`SECOND_OUTPUT`](super::SECOND_OUTPUT). The receivers of the testbed join
    /// the first one alone.
    pub has_second_output: bool,
    /// Receive buffer of each gateway's line, bytes. `None`: the default.
    pub receive_buffer_bytes: Option<u32>,
    /// How much of its input each gateway keeps for its peers, bytes.
    pub history_bytes: u64,
    /// Whether votes and audits are on a small disk that can be filled.
    pub has_small_disks: bool,
    /// Whether each gateway runs in a memory cgroup, so that it can be starved.
    pub has_memory_limit: bool,
    /// How long a fault lasts that must change nothing.
    pub stable_for: Duration,
    /// Receivers that can request missing messages, of [`RECEIVERS`](super::RECEIVERS). With none, gateways have no
    /// retransmission service.
    pub requesting_receivers: u8,
    /// Whether published packets have tags, which gateways and receivers require.
    pub has_packet_tags: bool,
    /// Whether only gateway 1 is started.
    pub starts_with_one_gateway: bool,
    /// Directory of publication logs and captures.
    pub fast_dir: PathBuf,
    /// Bursts of the venue. `None`: messages are evenly spaced.
    pub bursts: Option<VenueBursts>,
    /// Whether receivers keep summaries instead of every delivery, so that a run may last for hours. It ends with
    /// [`Testbed::finish_summaries`](super::Testbed::finish_summaries).
    pub keeps_summaries: bool,
    /// The `mdgw` that gateways and witnesses are until they are upgraded, see
    /// [`Testbed::upgrade_gateway`](super::Testbed::upgrade_gateway). `None`: the program under test.
    pub previous_program: Option<PathBuf>,
}

/// Bursts of the venue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VenueBursts {
    /// Messages per second in a burst.
    pub messages_per_second: f64,
    /// Duration of a burst, ms.
    pub burst_ms: u64,
    /// From the beginning of one burst to the next, ms.
    pub every_ms: u64,
}

impl Plan {
    /// A pair with a lease long enough for a crowded machine, and a short day.
    #[must_use]
    pub fn relaxed(backend: ElectionBackend) -> Self {
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
            has_second_output: false,
            receive_buffer_bytes: None,
            history_bytes: 32 << 20,
            has_small_disks: false,
            has_memory_limit: false,
            stable_for: Duration::from_secs(3),
            requesting_receivers: super::RECEIVERS,
            has_packet_tags: false,
            starts_with_one_gateway: false,
            fast_dir: std::env::temp_dir(),
            bursts: None,
            keeps_summaries: false,
            previous_program: None,
        }
    }
}
