//! Sends that passed the fence before it closed and have not returned. While there may be any, a gateway does not report
//! that its leadership has ended: the gateway that receives the report opens at once, and both would send.

use mdgw_wire::time::MonoNs;

/// Whether sends of an ended leadership may be outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct OutstandingSends {
    /// Set while there may be any: when the lease of that leadership ends for the others, on this gateway's clock.
    lease_ends_at: Option<MonoNs>,
}

impl OutstandingSends {
    /// The fence has closed. The driver is asked to [drain](crate::core::Output::Drain).
    pub(crate) fn begin(&mut self, lease_ends_at: MonoNs) {
        self.lease_ends_at = Some(lease_ends_at);
    }

    /// The driver has [drained](crate::core::Input::Drained): every send has returned.
    pub(crate) fn end(&mut self) {
        self.lease_ends_at = None;
    }

    /// Whether sends may be outstanding.
    pub(crate) fn may_exist(self) -> bool {
        self.lease_ends_at.is_some()
    }

    /// When the lease ends, while sends may be outstanding.
    pub(crate) fn lease_ends_at(self) -> Option<MonoNs> {
        self.lease_ends_at
    }

    /// Whether the lease has ended before the sends. There is nothing left to report to the others then.
    pub(crate) fn outlast_lease(self, now: MonoNs) -> bool {
        self.lease_ends_at.is_some_and(|at| now >= at)
    }
}
