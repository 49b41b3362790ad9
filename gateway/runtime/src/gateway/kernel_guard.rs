//! The gateway's fence in the kernel, if configured: set up before any socket is opened.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, SocketAddrV4},
};

use mdgw_feeds::identity::GroupId;
use mdgw_sys::kernel_fence::{FenceCgroup, KernelFence, KernelFenceSlot};

use super::GatewayError;
use crate::config::Resolved;

/// The kernel fence of this process and its cgroup. Must be dropped after all senders: dropping it lets packets out.
#[derive(Debug)]
pub(super) struct KernelGuard {
    fence: KernelFence,
    groups: Vec<GroupId>,
    /// The process leaves the cgroup when this is dropped.
    _cgroup: FenceCgroup,
}

impl KernelGuard {
    /// Attaches a closed fence for all outputs; `None` if no kernel fence is configured.
    ///
    /// # Errors
    /// When this host or user does not support it; the error names what is missing.
    pub(super) fn start(config: &Resolved) -> Result<Option<Self>, GatewayError> {
        if !config.election.as_ref().is_some_and(|election| election.kernel_fence) {
            return Ok(None);
        }
        let groups: BTreeSet<GroupId> = config.channels.iter().map(|channel| channel.group).collect();
        let groups: Vec<GroupId> = groups.into_iter().collect();
        let lines = config.outputs.iter().flat_map(|output| output.destinations());
        let destinations: BTreeSet<SocketAddrV4> = lines.map(|line| line.address).collect();
        let destinations: Vec<SocketAddrV4> = destinations.into_iter().collect();
        let cgroup = FenceCgroup::enter().map_err(GatewayError::io(NO_CGROUP))?;
        let fence = KernelFence::attach(cgroup.path(), &groups, &destinations)?;
        let fenced: Vec<SocketAddr> = destinations.into_iter().map(SocketAddr::V4).collect();
        tracing::info!(cgroup = %cgroup.path().display(), ?fenced, "kernel_fence: active; the kernel drops packets sent after the deadline");
        Ok(Some(Self { fence, groups, _cgroup: cgroup }))
    }

    /// The fence of that group.
    pub(super) fn slot(&self, group: GroupId) -> Option<KernelFenceSlot> {
        let index = self.groups.iter().position(|other| *other == group)?;
        Some(self.fence.group(index))
    }

    /// The whole fence, whose descriptors the sentinel gets.
    pub(super) fn fence(&self) -> &KernelFence {
        &self.fence
    }
}

const NO_CGROUP: &str =
    "move this process into its own cgroup for kernel_fence (needs cgroup v2 and root, or Delegate=yes under systemd)";
