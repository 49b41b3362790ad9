//! Faults of the lease authority: the store or the witness fails, or its disk is full.

use super::{InjectedFault, hold_fault_as_planned, wait_for_failover};
use crate::testbed::Testbed;

/// The nodes of the store that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nodes {
    All,
    AllButOne,
    /// One node: this number modulo their count.
    One(u64),
}

pub(super) fn kill_store(testbed: &mut Testbed, nodes: Nodes) -> InjectedFault {
    let count = testbed.store().count();
    let killed = match nodes {
        Nodes::All => 0..count,
        Nodes::AllButOne => 1..count,
        Nodes::One(number) => {
            let node = usize::try_from(number).unwrap_or_default() % count;
            node..node + 1
        }
    };
    hold_fault_as_planned(testbed, |testbed, is_begin| {
        if is_begin {
            killed.clone().for_each(|node| testbed.store().kill(node));
        } else {
            killed.clone().for_each(|node| testbed.store().restart(node));
            testbed.store().await_serving();
        }
    })
}

pub(super) fn pause_store(testbed: &mut Testbed) -> InjectedFault {
    hold_fault_as_planned(testbed, |testbed, is_begin| {
        let nodes = 0..testbed.store().count();
        if is_begin {
            nodes.for_each(|node| testbed.store().pause(node));
        } else {
            nodes.for_each(|node| testbed.store().resume(node));
            testbed.store().await_serving();
        }
    })
}

pub(super) fn kill_witness(testbed: &mut Testbed) -> InjectedFault {
    hold_fault_as_planned(testbed, |testbed, is_begin| {
        if is_begin {
            testbed.kill_witnesses();
        } else {
            testbed.restart_witnesses();
        }
    })
}

pub(super) fn fill_disks(testbed: &mut Testbed) -> InjectedFault {
    hold_fault_as_planned(testbed, |testbed, is_begin| {
        [1, 2].into_iter().for_each(|node| testbed.set_disk_full(node, is_begin))
    })
}

/// Kills the leader while the disks are full. Leadership must still move: vote files are allocated at the start, and
/// audit lines wait in memory.
pub(super) fn kill_with_full_disks(testbed: &mut Testbed) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    [1, 2].into_iter().for_each(|node| testbed.set_disk_full(node, true));
    let injected_ns = testbed.kill(leader);
    wait_for_failover(testbed, epoch_before);
    [1, 2].into_iter().for_each(|node| testbed.set_disk_full(node, false));
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}
