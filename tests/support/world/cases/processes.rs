//! Gateways that die, stop, hand over, come and go.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, Blow, calm, follow, leader_at_rest, now_ns};
use crate::{
    pair::wait_until,
    process::Signal,
    world::{LINES, World},
};

pub(super) fn kill(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = leader_at_rest(world, trial);
    let struck_ns = world.kill(leader);
    come_back(world, leader, before, struck_ns)
}

pub(super) fn abort(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = leader_at_rest(world, trial);
    let struck_ns = world.abort(leader);
    come_back(world, leader, before, struck_ns)
}

pub(super) fn starve(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = leader_at_rest(world, trial);
    let struck_ns = world.starve(leader);
    come_back(world, leader, before, struck_ns)
}

fn come_back(world: &mut World, leader: u8, before: Epoch, struck_ns: u64) -> Blow {
    follow(world, before);
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

/// One trial kills the leader of three, the next one that which follows it, and lets both come back.
pub(super) fn kill_one_after_the_other(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = leader_at_rest(world, trial);
    let dead: Vec<u8> = world.nodes().filter(|node| !world.running().contains(node)).collect();
    let struck_ns = world.kill(leader);
    follow(world, before);
    if let [first] = dead[..] {
        for node in [first, leader] {
            world.start_gateway(node);
            world.wait_until_stands(node);
        }
    }
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn stop(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = leader_at_rest(world, trial);
    let struck_ns = world.signal(leader, Signal::Stop);
    let pause = Duration::from_millis(200 + trial * 700 % 2_800);
    // The pause is the blow; what is waited for comes below.
    std::thread::sleep(pause);
    follow(world, before);
    world.signal(leader, Signal::Continue);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn hand_over(world: &mut World, trial: u64) -> Blow {
    let mut done = None;
    // A crowded machine may be too slow for it; then it is asked again, whoever leads by now.
    wait_until("leadership is handed over", || {
        let (leader, before) = leader_at_rest(world, trial);
        done = world.hand_over(leader).map(|struck_ns| (leader, before, struck_ns));
        done.is_some()
    });
    let (leader, before, struck_ns) = done.expect("just waited for");
    follow(world, before);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn restart_both(world: &mut World, _trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    // The standby first: it must not take over in between.
    world.kill(3 - leader);
    let struck_ns = world.kill(leader);
    world.start_gateway(1);
    world.start_gateway(2);
    follow(world, before);
    world.wait_until_stands(3 - world.leader());
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn join_alone(world: &mut World) -> Blow {
    let other = 3 - world.leader();
    calm(world, Duration::from_secs(1), |world, is_begin| {
        if is_begin {
            world.start_gateway(other);
            world.wait_until_stands(other);
        } else {
            world.end(other);
        }
    })
}

pub(super) fn roll_configuration(world: &mut World, _trial: u64) -> Blow {
    let leader = world.leader();
    let standby = 3 - leader;
    world.end(standby);
    world.roll(standby);
    world.start_gateway(standby);
    world.wait_until_stands(standby);
    let before = world.epoch();
    let struck_ns = world.end(leader);
    follow(world, before);
    world.roll(leader);
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn kill_inside_a_message(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    // Between two packets, or between two copies of one, so that not all hosts have heard the same.
    world.switch.cut_to_address_after(world.host(leader), *OUTPUT.ip(), 100 + trial * 7);
    wait_until("the output is cut", || world.switch.has_cut());
    let struck_ns = now_ns();
    world.kill(leader);
    follow(world, before);
    world.switch.heal();
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn kill_while_sessions_change(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = match trial % 3 {
        // Before the old session's end is told,
        0 => {
            let struck_ns = world.kill(leader);
            world.close_venue();
            world.open_venue();
            struck_ns
        }
        // between the two,
        1 => {
            world.close_venue();
            let struck_ns = world.kill(leader);
            world.open_venue();
            struck_ns
        }
        // or when the new one has just begun.
        _ => {
            world.close_venue();
            world.open_venue();
            world.wait_for_more(1);
            world.kill(leader)
        }
    };
    follow(world, before);
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn gap_then_kill(world: &mut World, trial: u64) -> Blow {
    let leader = world.leader();
    for line in LINES {
        world.switch.cut_off(*line.ip(), world.host(leader));
    }
    // The gap's length; nobody says when it is long enough.
    std::thread::sleep(Duration::from_millis(50 + trial * 30 % 100));
    world.switch.heal();
    // At once: it may be filling the gap.
    let before = world.epoch();
    let struck_ns = world.kill(leader);
    come_back(world, leader, before, struck_ns)
}
