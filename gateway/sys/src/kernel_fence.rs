//! The fence in the kernel: a small BPF program at the egress of the gateway's cgroup. It lets published packets out
//! only before an absolute deadline of the boot clock, and only under the present epoch.
//!
//! The process's own fence is checked before a send; between check and send the process may be stopped for any time.
//! The program runs when the packet passes the kernel's output, in the sender's context, so only the network stack
//! comes after it. A refused packet returns `EPERM` to the sender.
//!
//! - Only UDP over IPv4 to the configured destinations is checked. Of that traffic the program refuses every packet
//!   that is no published packet of a known group, except [probes](mdgw_wire::published::probe) that stay on the host (TTL 0), since a standby sends them too. All other
//!   traffic passes.
//! - Deadlines and epochs are in memory that the election thread and the kernel share, so a renewal is one store.
//! - The fence fails closed: memory starts as 0, which is closed.
//! - The sentinel shuts the fence for good: nothing that the dying gateway stores opens it again.
//! - Descriptors own the program and the map: the kernel removes both when the last process that holds the descriptors
//!   has ended. A sentinel with copies keeps the fence in force, and can close it, until it has announced the gateway's
//!   death.

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

use mdgw_wire::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};

use self::{bpf::Map, program::Destinations};
pub use super::cgroup::FenceCgroup;

/// A fence in force. Dropping it lets all packets out again, unless another process holds its descriptors.
#[derive(Debug)]
pub struct KernelFence {
    closer: FenceCloser,
    group_count: usize,
}

impl KernelFence {
    /// Attaches a closed fence to a cgroup: to what its processes send to `destinations` for `groups`.
    ///
    /// # Errors
    /// If BPF programs are not permitted, or the kernel does not support this attachment; says which.
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
        let map = Map::create(atomics(groups.len())).map_err(during("create a BPF map"))?;
        let program = program::fence(&map, groups, &Destinations::new(destinations));
        let program = bpf::load(&program).map_err(during("load a BPF program"))?;
        let directory = File::open(cgroup).map_err(during("open the cgroup"))?;
        let link = bpf::link_to_egress(&program, &directory).map_err(during("attach a BPF program to the cgroup"))?;
        Ok(Self {
            closer: FenceCloser { atomics: map.atomics(), map: map.into_descriptor(), link },
            group_count: groups.len(),
        })
    }

    /// Whether this process may attach a fence, as far as can be checked without attaching one.
    ///
    /// # Errors
    /// Names the missing feature.
    pub fn probe() -> Result<(), KernelFenceError> {
        let during = |action: &'static str| move |source| KernelFenceError { action, source };
        super::cgroup::check_available().map_err(during("find the cgroup of this process"))?;
        let map = Map::create(atomics(1)).map_err(during("create a BPF map"))?;
        let no_destinations = Destinations::new(&[SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0)]);
        bpf::load(&program::fence(&map, &[GroupId(0)], &no_destinations))
            .map(drop)
            .map_err(during("load a BPF program"))
    }

    /// The fence of the group with that index in `groups`.
    ///
    /// # Panics
    /// If there is no such group.
    #[must_use]
    pub fn group(&self, index: usize) -> KernelFenceSlot {
        assert!(index < self.group_count, "group {index} of {}", self.group_count);
        let (deadline, epoch) =
            (&self.closer.atomics[index * SLOT_ATOMICS], &self.closer.atomics[index * SLOT_ATOMICS + 1]);
        KernelFenceSlot { deadline, epoch }
    }

    /// Descriptors of map and link, for the sentinel.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.closer.map.as_fd(), self.closer.link.as_fd()]
    }
}

/// The sentinel's copy of a fence: keeps it in force, and closes it.
#[derive(Debug)]
pub struct FenceCloser {
    atomics: &'static [AtomicU64],
    map: OwnedFd,
    link: OwnedFd,
}

impl FenceCloser {
    /// Opens the [descriptors](KernelFence::descriptors) of a fence of `group_count` groups.
    ///
    /// # Errors
    /// If the descriptors do not belong to such a fence.
    pub fn open([map, link]: [OwnedFd; 2], group_count: usize) -> io::Result<Self> {
        let map = Map::open(map, atomics(group_count.clamp(1, GROUPS_MAX)))?;
        Ok(Self { atomics: map.atomics(), map: map.into_descriptor(), link })
    }

    /// Closes the fence for all groups and for good: threads of a dying gateway may still store deadlines afterwards, which open
    /// nothing.
    pub fn shut(&self) {
        let (slots, is_shut) = self.atomics.split_at(self.atomics.len() - 1);
        is_shut[0].store(1, Release);
        // The fence of an earlier version has no such atomic.
        for slot in slots.chunks_exact(SLOT_ATOMICS) {
            slot[0].store(0, Release);
        }
    }
}

/// Deadline and epoch of one group, as the kernel reads them. Only the thread that writes the gateway's own fence
/// writes them.
#[derive(Clone, Copy, Debug)]
pub struct KernelFenceSlot {
    deadline: &'static AtomicU64,
    epoch: &'static AtomicU64,
}

impl KernelFenceSlot {
    /// Opens a closed fence under a new epoch. Called before the gateway's own fence opens.
    pub fn open(&self, epoch: Epoch, deadline: MonoNs) {
        // The program reads the deadline first. Both stores are Release, so the program sees them in this order.
        self.epoch.store(epoch.0, Release);
        self.deadline.store(deadline.0, Release);
    }

    /// Closes the fence.
    pub fn close(&self) {
        self.deadline.store(0, Release);
    }
}

/// Why there is no fence in the kernel.
#[derive(Debug, thiserror::Error)]
#[error("kernel_fence: cannot {action}: {source}{}", hint(source))]
pub struct KernelFenceError {
    action: &'static str,
    source: io::Error,
}

impl KernelFenceError {
    /// Whether privileges or a kernel feature are missing, so that a test may be skipped.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn is_not_permitted(&self) -> bool {
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

/// Maximum number of groups of one fence.
pub(crate) const GROUPS_MAX: usize = 64;
/// Maximum number of destinations; each is a comparison in the program.
pub(crate) const DESTINATIONS_MAX: usize = 128;
/// Atomics per group: deadline, epoch.
const SLOT_ATOMICS: usize = 2;

/// Atomics of a fence: a slot for each group, then whether the sentinel has shut the fence. A map has at least a page, so a sentinel
/// of another version, which knows the slots alone or expects the last one too, opens the same map.
const fn atomics(group_count: usize) -> usize {
    group_count * SLOT_ATOMICS + 1
}
