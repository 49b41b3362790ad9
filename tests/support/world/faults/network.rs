//! Cables that are cut, lossy or slow, and strangers on the output group.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, InjectedFault, calm, now_ns, wait_for_failover};
use crate::{
    namespaces::Host,
    process::Signal,
    world::{LINES, Testbed},
};

/// Which way is cut, as seen from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// What it sends.
    From,
    /// What it is sent.
    To,
    /// Both.
    Both,
}

pub(super) fn drop_on_line_a(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = world.leader();
    calm(world, PARTITION_TIME, |world, is_begin| {
        if is_begin {
            world.switch.lose(*LINES[0].ip(), world.host(leader), 30);
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

/// Who succeeds the leader is short of packets that only the leader had.
pub(super) fn drop_standby_input_and_pause(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let standby = 3 - world.leader();
    drop_lines(world, standby, 30);
    let (leader, before) = (world.leader(), world.epoch());
    let injected_ns = world.signal(leader, Signal::Stop);
    wait_for_failover(world, before);
    world.switch.heal();
    world.signal(leader, Signal::Continue);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

fn drop_lines(world: &Testbed, lossy: u8, percent: u32) {
    for line in LINES {
        world.switch.lose(*line.ip(), world.host(lossy), percent);
    }
    world.wait_for_more_deliveries(1_000);
}

/// Still lossy while somebody else takes over.
fn kill_during_loss(world: &mut Testbed) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    let injected_ns = world.kill(leader);
    wait_for_failover(world, before);
    world.switch.heal();
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn drop_leader_output(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    let injected_ns = now_ns();
    world.switch.drop_to_address(world.host(leader), *OUTPUT.ip());
    wait_for_failover(world, before);
    world.switch.heal();
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn isolate_leader(world: &mut Testbed, way: Direction) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    let injected_ns = now_ns();
    let mut others = world.grantors();
    others.push(world.host(3 - leader).clone());
    cut(world, leader, &others, way);
    wait_for_failover(world, before);
    world.switch.heal();
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn partition_from_standby(world: &mut Testbed, way: Direction) -> InjectedFault {
    let leader = world.leader();
    let standby = [world.host(3 - leader).clone()];
    partition_and_heal(world, leader, &standby, way)
}

pub(super) fn partition_from_authority(world: &mut Testbed, way: Direction) -> InjectedFault {
    let (leader, grantors) = (world.leader(), world.grantors());
    partition_and_heal(world, leader, &grantors, way)
}

pub(super) fn partition_standby_from_authority(world: &mut Testbed, way: Direction) -> InjectedFault {
    let (standby, grantors) = (3 - world.leader(), world.grantors());
    partition_and_heal(world, standby, &grantors, way)
}

fn partition_and_heal(world: &mut Testbed, gateway: u8, others: &[Host], way: Direction) -> InjectedFault {
    let blow = calm(world, PARTITION_TIME, |world, is_begin| {
        if is_begin {
            cut(world, gateway, others, way);
        } else {
            world.switch.heal();
        }
    });
    world.wait_until_eligible(3 - world.leader());
    blow
}

fn cut(world: &Testbed, gateway: u8, others: &[Host], way: Direction) {
    let gateway = world.host(gateway);
    for other in others {
        if way != Direction::To {
            world.switch.cut(gateway, other);
        }
        if way != Direction::From {
            world.switch.cut(other, gateway);
        }
    }
}

/// The leader's renewals wait behind what it publishes, so its lease ends while the kernel holds packets of its epoch.
pub(super) fn queue_sends_past_lease(world: &mut Testbed) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    let injected_ns = now_ns();
    world.host(leader).limit_rate(SLOW_KBIT_PER_S);
    wait_for_failover(world, before);
    // What waited comes out while somebody else publishes: the length of the trial.
    std::thread::sleep(PARTITION_TIME);
    world.host(leader).remove_rate_limit();
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn forge_implausible_epoch(world: &mut Testbed) -> InjectedFault {
    calm(world, Duration::from_millis(500), |world, is_begin| {
        if is_begin {
            let epoch = world.epoch();
            world.publish_forged_heartbeat(Epoch::new(epoch.count() + 5_000, UNKNOWN_NODE));
        }
    })
}

/// Two, of which the second is credible to whoever has believed the first.
pub(super) fn forge_plausible_epochs(world: &mut Testbed, with_leader_id: bool) -> InjectedFault {
    let before = world.epoch();
    let node = if with_leader_id { world.leader() } else { UNKNOWN_NODE };
    let injected_ns = now_ns();
    let [_, forged] = [1_000, 1_900].map(|above| {
        let forged = Epoch::new(before.count() + above, node);
        world.publish_forged_heartbeat(forged);
        forged
    });
    wait_for_failover(world, forged);
    world.wait_until_eligible(3 - world.leader());
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

/// How long a cut lasts that must change nothing: many leases.
const PARTITION_TIME: Duration = Duration::from_secs(2);
/// A tenth of what is published, and less.
const SLOW_KBIT_PER_S: u32 = 200;
/// No gateway has that number.
const UNKNOWN_NODE: u8 = 77;
