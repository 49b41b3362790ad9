//! Faults and orderly changes of gateway processes: kill, abort, pause, hand-over, restart, upgrade.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, InjectedFault, hold_fault, now_ns, quiescent_leader, wait_for_failover};
use crate::{
    pair::wait_until,
    process::Signal,
    world::{LINES, Testbed},
};

pub(super) fn kill(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(world, trial);
    let injected_ns = world.kill(leader);
    restart_and_rejoin(world, leader, epoch_before, injected_ns)
}

pub(super) fn abort(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(world, trial);
    let injected_ns = world.abort(leader);
    restart_and_rejoin(world, leader, epoch_before, injected_ns)
}

pub(super) fn exhaust_memory(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(world, trial);
    let injected_ns = world.exhaust_memory(leader);
    restart_and_rejoin(world, leader, epoch_before, injected_ns)
}

fn restart_and_rejoin(world: &mut Testbed, leader: u8, epoch_before: Epoch, injected_ns: u64) -> InjectedFault {
    wait_for_failover(world, epoch_before);
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// The first trial of two kills the leader of three gateways; the second kills its successor and restarts both.
pub(super) fn kill_two_in_sequence(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(world, trial);
    let dead: Vec<u8> = world.nodes().filter(|node| !world.running().contains(node)).collect();
    let injected_ns = world.kill(leader);
    wait_for_failover(world, epoch_before);
    if let [first] = dead[..] {
        for node in [first, leader] {
            world.start_gateway(node);
            world.wait_until_eligible(node);
        }
    }
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn pause(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(world, trial);
    let injected_ns = world.signal(leader, Signal::Stop);
    let pause_time = Duration::from_millis(200 + trial * 700 % 2_800);
    // The pause itself is the fault.
    std::thread::sleep(pause_time);
    wait_for_failover(world, epoch_before);
    world.signal(leader, Signal::Continue);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn hand_over(world: &mut Testbed, trial: u64) -> InjectedFault {
    let mut done = None;
    // A crowded machine may be too slow for a hand-over; then the current leader is asked again.
    wait_until("leadership is handed over", || {
        let (leader, epoch_before) = quiescent_leader(world, trial);
        done = world.hand_over(leader).map(|injected_ns| (leader, epoch_before, injected_ns));
        done.is_some()
    });
    let (leader, epoch_before, injected_ns) = done.expect("just waited for");
    wait_for_failover(world, epoch_before);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn restart_both(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    // The standby first: it must not take over in between.
    world.kill(3 - leader);
    let injected_ns = world.kill(leader);
    world.start_gateway(1);
    world.start_gateway(2);
    wait_for_failover(world, epoch_before);
    world.wait_until_eligible(3 - world.leader());
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn join_single_gateway(world: &mut Testbed) -> InjectedFault {
    let other = 3 - world.leader();
    hold_fault(world, Duration::from_secs(1), |world, is_begin| {
        if is_begin {
            world.start_gateway(other);
            world.wait_until_eligible(other);
        } else {
            world.end(other);
        }
    })
}

pub(super) fn upgrade_configuration(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = world.leader();
    let standby = 3 - leader;
    world.end(standby);
    world.bump_revision(standby);
    world.start_gateway(standby);
    world.wait_until_eligible(standby);
    let epoch_before = world.epoch();
    let injected_ns = world.end(leader);
    wait_for_failover(world, epoch_before);
    world.bump_revision(leader);
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn kill_inside_a_message(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    // Between two packets, or between two copies of one, so that hosts have received different amounts.
    world.switch.drop_to_address_after(world.host(leader), *OUTPUT.ip(), 100 + trial * 7);
    wait_until("the output is cut", || world.switch.has_dropped());
    let injected_ns = now_ns();
    world.kill(leader);
    wait_for_failover(world, epoch_before);
    world.switch.heal();
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn kill_while_sessions_change(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (world.leader(), world.epoch());
    let injected_ns = match trial % 3 {
        // Before the old session's end is published,
        0 => {
            let injected_ns = world.kill(leader);
            world.end_session();
            world.start_session();
            injected_ns
        }
        // between the two,
        1 => {
            world.end_session();
            let injected_ns = world.kill(leader);
            world.start_session();
            injected_ns
        }
        // or when the new one has just begun.
        _ => {
            world.end_session();
            world.start_session();
            world.wait_for_more_deliveries(1);
            world.kill(leader)
        }
    };
    wait_for_failover(world, epoch_before);
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn gap_then_kill(world: &mut Testbed, trial: u64) -> InjectedFault {
    let leader = world.leader();
    for line in LINES {
        world.switch.drop_to_host(*line.ip(), world.host(leader));
    }
    // The length of the gap; no event marks when it is long enough.
    std::thread::sleep(Duration::from_millis(50 + trial * 30 % 100));
    world.switch.heal();
    // At once: the leader may still be filling the gap.
    let epoch_before = world.epoch();
    let injected_ns = world.kill(leader);
    restart_and_rejoin(world, leader, epoch_before, injected_ns)
}
