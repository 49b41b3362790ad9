//! Fence in the kernel: a small BPF program at the egress of the gateway's cgroup, which lets published packets out
//! only before an absolute deadline of the boot clock, and only under the present epoch.
//!
//! The fence in the process is asked before a send; between the two the process may be stopped for any time. The
//! program is asked when the packet passes the kernel's output, in the sender's own context, so nothing lies between
//! but what the network stack does by itself. What it doesn't let out is refused to the sender (`EPERM`).
//!
//! - Only UDP over IPv4 to the configured destinations is looked at; of that, whatever is no published packet of a
//!   known group is refused, but for [probes](PROBE_MAGIC) that stay on the host. All else passes.
//! - Deadlines and epochs stand in memory that the election thread and the kernel share, so a renewal is one store.
//! - It fails closed: memory starts as 0, which is closed.
//! - Everything hangs on descriptors: when the last process that has them is gone, the kernel removes program and map.
//!   A sentinel that was handed copies keeps the fence in force, and can shut it, until it has announced the death.

mod bpf;
mod program;

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    net::SocketAddrV4,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Release},
};

use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};

use self::{bpf::Map, program::Destinations};
pub use super::cgroup::FenceCgroup;

/// Begins a datagram by which a gateway finds out whether it hears its own group. With TTL 0 the fence lets it pass: a
/// standby, whose fence is closed, has to know that too.
pub const PROBE_MAGIC: &[u8; 4] = b"MDGP";

/// A fence in force. Dropping it lets everything out again, unless somebody else has its descriptors.
#[derive(Debug)]
pub struct KernelFence {
    closer: FenceCloser,
    group_count: usize,
}

impl KernelFence {
    /// Puts a closed fence around the processes of a cgroup: what they send to `destinations` for `groups`.
    ///
    /// # Errors
    /// Where BPF programs are not permitted, or the kernel has no such place for them; says which.
    pub fn attach(cgroup: &Path, groups: &[GroupId], destinations: &[SocketAddrV4]) -> Result<Self, KernelFenceError> {
        let during = |action: &'static str| move |source| KernelFenceError { action, source };
        if !(1..=GROUPS_MAX).contains(&groups.len()) || !(1..=DESTINATIONS_MAX).contains(&destinations.len()) {
            let source = io::Error::other(format!(
                "too many for the kernel fence: {} groups, {} destinations",
                groups.len(),
                destinations.len()
            ));
            return Err(during("create the fence")(source));
        }
        let map = Map::create(groups.len() * SLOT_ATOMICS).map_err(during("create a BPF map"))?;
        let program = program::fence(&map, groups, &Destinations::new(destinations));
        let program = bpf::load(&program).map_err(during("load a BPF program"))?;
        let directory = File::open(cgroup).map_err(during("open the cgroup"))?;
        let link = bpf::link_to_egress(&program, &directory).map_err(during("attach a BPF program to the cgroup"))?;
        Ok(Self {
            closer: FenceCloser { atomics: map.atomics(), map: map.into_descriptor(), link },
            group_count: groups.len(),
        })
    }

    /// Whether this process may have a fence, as far as can be told without putting one up.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn probe() -> Result<(), KernelFenceError> {
        let during = |action: &'static str| move |source| KernelFenceError { action, source };
        super::cgroup::check_available().map_err(during("find the cgroup of this process"))?;
        let map = Map::create(SLOT_ATOMICS).map_err(during("create a BPF map"))?;
        let no_destinations = Destinations::new(&[SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0)]);
        bpf::load(&program::fence(&map, &[GroupId(0)], &no_destinations))
            .map(drop)
            .map_err(during("load a BPF program"))
    }

    /// The fence of the group that stands at that index of `groups`.
    ///
    /// # Panics
    /// When none does.
    #[must_use]
    pub fn group(&self, index: usize) -> KernelFenceSlot {
        assert!(index < self.group_count, "group {index} of {}", self.group_count);
        let (deadline, epoch) =
            (&self.closer.atomics[index * SLOT_ATOMICS], &self.closer.atomics[index * SLOT_ATOMICS + 1]);
        KernelFenceSlot { deadline, epoch }
    }

    /// Map and link, to hand to the sentinel.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.closer.map.as_fd(), self.closer.link.as_fd()]
    }
}

/// The sentinel's copy of a fence: keeps it in force, and shuts it.
#[derive(Debug)]
pub struct FenceCloser {
    atomics: &'static [AtomicU64],
    map: OwnedFd,
    link: OwnedFd,
}

impl FenceCloser {
    /// From the [descriptors](KernelFence::descriptors) of a fence of so many groups.
    ///
    /// # Errors
    /// When they are no such fence's.
    pub fn open([map, link]: [OwnedFd; 2], group_count: usize) -> io::Result<Self> {
        let map = Map::open(map, group_count.clamp(1, GROUPS_MAX) * SLOT_ATOMICS)?;
        Ok(Self { atomics: map.atomics(), map: map.into_descriptor(), link })
    }

    /// Lets nothing more out, for any group.
    pub fn close_all(&self) {
        for slot in self.atomics.chunks_exact(SLOT_ATOMICS) {
            slot[0].store(0, Release);
        }
    }
}

/// Deadline and epoch of one group, as the kernel reads them. One thread writes them: the one that writes the
/// gateway's own fence.
#[derive(Clone, Copy, Debug)]
pub struct KernelFenceSlot {
    deadline: &'static AtomicU64,
    epoch: &'static AtomicU64,
}

impl KernelFenceSlot {
    /// Opens it, after it was closed, under a new epoch; before the gateway's own fence opens.
    pub fn open(&self, epoch: Epoch, deadline: MonoNs) {
        // The program reads the deadline first. Both stores are Release, so that they reach it in this order.
        self.epoch.store(epoch.0, Release);
        self.deadline.store(deadline.0, Release);
    }

    /// Moves the deadline of the present opening; before that of the gateway's own fence.
    pub fn renew(&self, deadline: MonoNs) {
        self.deadline.store(deadline.0, Release);
    }

    /// Closes it.
    pub fn close(&self) {
        self.deadline.store(0, Release);
    }
}

/// No fence in the kernel.
#[derive(Debug, thiserror::Error)]
#[error("kernel_fence: cannot {action}: {source}{}", hint(source))]
pub struct KernelFenceError {
    action: &'static str,
    source: io::Error,
}

impl KernelFenceError {
    /// Whether privileges or the kernel's build are what is missing, so that a test may be skipped.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied || self.source.raw_os_error() == Some(libc::ENOSYS)
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; needs CAP_BPF, CAP_NET_ADMIN and its own cgroup (Delegate=yes under systemd)"
        }
        Some(libc::ENOSYS | libc::EINVAL) => "; needs Linux 5.8 with CONFIG_CGROUP_BPF",
        _ => "",
    }
}

/// Groups in one fence.
pub const GROUPS_MAX: usize = 64;
/// Destinations in one fence; each is a comparison in the program.
pub const DESTINATIONS_MAX: usize = 128;
/// Deadline, epoch.
const SLOT_ATOMICS: usize = 2;
