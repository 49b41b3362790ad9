//! Faults of the network: partitions, packet loss, a slow link, and forged packets on the output group.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, InjectedFault, hold_fault, now_ns, wait_for_failover};
use crate::{
    namespaces::Host,
    process::Signal,
    world::{LINES, Testbed},
};

/// The direction in which traffic is dropped, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Packets that the host sends.
    Outbound,
    /// Packets that are sent to the host.
    Inbound,
    /// Both directions.
    Both,
}

pub(super) fn drop_on_line_a(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = world.leader();
    hold_fault(world, PARTITION_TIME, |world, is_begin| {
        if is_begin {
            world.switch.drop_randomly(*LINES[0].ip(), world.host(leader), 30);
        } else {
            world.switch.heal();
        }
    })
}

pub(super) fn drop_leader_input_and_kill(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = world.leader();
    drop_lines(world, leader, 10);
    kill_during_loss(world)
}

pub(super) fn drop_standby_input_and_kill(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let standby = 3 - world.leader();
    drop_lines(world, standby, 10);
    kill_during_loss(world)
}

/// The successor lacks packets that only the leader received.
pub(super) fn drop_standby_input_and_pause(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let standby = 3 - world.leader();
    drop_lines(world, standby, 30);
    let (leader, epoch_before) = (world.leader(), world.epoch());
    let injected_ns = world.signal(leader, Signal::Stop);
    wait_for_failover(world, epoch_before);
    world.switch.heal();
    world.signal(leader, Signal::Continue);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

fn drop_lines(world: &Testbed, lossy: u8, percent: u32) {
    for line in LINES {
        world.switch.drop_randomly(*line.ip(), world.host(lossy), percent);
    }
    world.wait_for_more_deliveries(1_000);
}

/// Kills the leader; the loss continues during the takeover.
fn kill_during_loss(world: &mut Testbed) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    let injected_ns = world.kill(leader);
    wait_for_failover(world, epoch_before);
    world.switch.heal();
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn drop_leader_output(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    let injected_ns = now_ns();
    world.switch.drop_to_address(world.host(leader), *OUTPUT.ip());
    wait_for_failover(world, epoch_before);
    world.switch.heal();
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn isolate_leader(world: &mut Testbed, direction: Direction) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    let injected_ns = now_ns();
    let mut others = world.lease_authority_hosts();
    others.push(world.host(3 - leader).clone());
    partition(world, leader, &others, direction);
    wait_for_failover(world, epoch_before);
    world.switch.heal();
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn partition_from_standby(world: &mut Testbed, direction: Direction) -> InjectedFault {
    let leader = world.leader();
    let standby = [world.host(3 - leader).clone()];
    partition_and_heal(world, leader, &standby, direction)
}

pub(super) fn partition_from_authority(world: &mut Testbed, direction: Direction) -> InjectedFault {
    let (leader, authority) = (world.leader(), world.lease_authority_hosts());
    partition_and_heal(world, leader, &authority, direction)
}

pub(super) fn partition_standby_from_authority(world: &mut Testbed, direction: Direction) -> InjectedFault {
    let (standby, authority) = (3 - world.leader(), world.lease_authority_hosts());
    partition_and_heal(world, standby, &authority, direction)
}

fn partition_and_heal(world: &mut Testbed, gateway: u8, others: &[Host], direction: Direction) -> InjectedFault {
    let fault = hold_fault(world, PARTITION_TIME, |world, is_begin| {
        if is_begin {
            partition(world, gateway, others, direction);
        } else {
            world.switch.heal();
        }
    });
    world.wait_until_eligible(3 - world.leader());
    fault
}

fn partition(world: &Testbed, gateway: u8, others: &[Host], direction: Direction) {
    let gateway = world.host(gateway);
    for other in others {
        if direction != Direction::Inbound {
            world.switch.drop_traffic(gateway, other);
        }
        if direction != Direction::Outbound {
            world.switch.drop_traffic(other, gateway);
        }
    }
}

/// The leader's renewals wait behind its published packets, so its lease ends while the kernel still queues packets of its
/// epoch.
pub(super) fn queue_sends_past_lease(world: &mut Testbed) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    let injected_ns = now_ns();
    world.host(leader).limit_rate(SLOW_KBIT_PER_S);
    wait_for_failover(world, epoch_before);
    // The queued packets leave while the successor publishes: the length of the trial.
    std::thread::sleep(PARTITION_TIME);
    world.host(leader).remove_rate_limit();
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn forge_implausible_epoch(world: &mut Testbed) -> InjectedFault {
    hold_fault(world, Duration::from_millis(500), |world, is_begin| {
        if is_begin {
            let epoch = world.epoch();
            world.publish_forged_heartbeat(Epoch::new(epoch.count() + 5_000, UNKNOWN_NODE));
        }
    })
}

/// Forges two epochs; the second is plausible only to a receiver that accepted the first.
pub(super) fn forge_plausible_epochs(world: &mut Testbed, with_leader_id: bool) -> InjectedFault {
    let epoch_before = world.epoch();
    let node = if with_leader_id { world.leader() } else { UNKNOWN_NODE };
    let injected_ns = now_ns();
    let [_, forged] = [1_000, 1_900].map(|above| {
        let forged = Epoch::new(epoch_before.count() + above, node);
        world.publish_forged_heartbeat(forged);
        forged
    });
    wait_for_failover(world, forged);
    world.wait_until_eligible(3 - world.leader());
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// Duration of a partition that must change nothing: many leases.
const PARTITION_TIME: Duration = Duration::from_secs(2);
/// Less than a tenth of the published rate.
const SLOW_KBIT_PER_S: u32 = 200;
/// A node id that no gateway has.
const UNKNOWN_NODE: u8 = 77;
