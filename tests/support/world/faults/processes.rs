//! Gateways that die, stop, hand over, come and go.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, InjectedFault, calm, now_ns, quiescent_leader, wait_for_failover};
use crate::{
    pair::wait_until,
    process::Signal,
    world::{LINES, Testbed},
};

pub(super) fn kill(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = quiescent_leader(world, trial);
    let injected_ns = world.kill(leader);
    restart_and_rejoin(world, leader, before, injected_ns)
}

pub(super) fn abort(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = quiescent_leader(world, trial);
    let injected_ns = world.abort(leader);
    restart_and_rejoin(world, leader, before, injected_ns)
}

pub(super) fn starve(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = quiescent_leader(world, trial);
    let injected_ns = world.starve(leader);
    restart_and_rejoin(world, leader, before, injected_ns)
}

fn restart_and_rejoin(world: &mut Testbed, leader: u8, before: Epoch, injected_ns: u64) -> InjectedFault {
    wait_for_failover(world, before);
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

/// One trial kills the leader of three, the next one that which follows it, and lets both come back.
pub(super) fn kill_two_in_sequence(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = quiescent_leader(world, trial);
    let dead: Vec<u8> = world.nodes().filter(|node| !world.running().contains(node)).collect();
    let injected_ns = world.kill(leader);
    wait_for_failover(world, before);
    if let [first] = dead[..] {
        for node in [first, leader] {
            world.start_gateway(node);
            world.wait_until_eligible(node);
        }
    }
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn stop(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = quiescent_leader(world, trial);
    let injected_ns = world.signal(leader, Signal::Stop);
    let pause = Duration::from_millis(200 + trial * 700 % 2_800);
    // The pause is the blow; what is waited for comes below.
    std::thread::sleep(pause);
    wait_for_failover(world, before);
    world.signal(leader, Signal::Continue);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn hand_over(world: &mut Testbed, trial: u64) -> InjectedFault {
    let mut done = None;
    // A crowded machine may be too slow for it; then it is asked again, whoever leads by now.
    wait_until("leadership is handed over", || {
        let (leader, before) = quiescent_leader(world, trial);
        done = world.hand_over(leader).map(|injected_ns| (leader, before, injected_ns));
        done.is_some()
    });
    let (leader, before, injected_ns) = done.expect("just waited for");
    wait_for_failover(world, before);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn restart_both(world: &mut Testbed, _trial: u64) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    // The standby first: it must not take over in between.
    world.kill(3 - leader);
    let injected_ns = world.kill(leader);
    world.start_gateway(1);
    world.start_gateway(2);
    wait_for_failover(world, before);
    world.wait_until_eligible(3 - world.leader());
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn join_single_gateway(world: &mut Testbed) -> InjectedFault {
    let other = 3 - world.leader();
    calm(world, Duration::from_secs(1), |world, is_begin| {
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
    let before = world.epoch();
    let injected_ns = world.end(leader);
    wait_for_failover(world, before);
    world.bump_revision(leader);
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn kill_inside_a_message(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    // Between two packets, or between two copies of one, so that not all hosts have heard the same.
    world.switch.drop_to_address_after(world.host(leader), *OUTPUT.ip(), 100 + trial * 7);
    wait_until("the output is cut", || world.switch.has_dropped());
    let injected_ns = now_ns();
    world.kill(leader);
    wait_for_failover(world, before);
    world.switch.heal();
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn kill_while_sessions_change(world: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, before) = (world.leader(), world.epoch());
    let injected_ns = match trial % 3 {
        // Before the old session's end is told,
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
    wait_for_failover(world, before);
    world.start_gateway(leader);
    world.wait_until_eligible(leader);
    InjectedFault { before, injected_ns, stable_until_ns: None }
}

pub(super) fn gap_then_kill(world: &mut Testbed, trial: u64) -> InjectedFault {
    let leader = world.leader();
    for line in LINES {
        world.switch.drop_to_host(*line.ip(), world.host(leader));
    }
    // The gap's length; nobody says when it is long enough.
    std::thread::sleep(Duration::from_millis(50 + trial * 30 % 100));
    world.switch.heal();
    // At once: it may be filling the gap.
    let before = world.epoch();
    let injected_ns = world.kill(leader);
    restart_and_rejoin(world, leader, before, injected_ns)
}
