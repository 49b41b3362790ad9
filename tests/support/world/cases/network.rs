//! Cables that are cut, lossy or slow, and strangers on the output group.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, Blow, calm, follow, now_ns};
use crate::{
    namespaces::Host,
    process::Signal,
    world::{LINES, World},
};

/// Which way is cut, as seen from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// What it sends.
    From,
    /// What it is sent.
    To,
    /// Both.
    Both,
}

pub(super) fn lose_a_line(world: &mut World, _trial: u64) -> Blow {
    let leader = world.leader();
    calm(world, CUT, |world, is_begin| {
        if is_begin {
            world.switch.lose(*LINES[0].ip(), world.host(leader), 30);
        } else {
            world.switch.heal();
        }
    })
}

pub(super) fn lose_lines_of_leader(world: &mut World, _trial: u64) -> Blow {
    let leader = world.leader();
    lose_lines(world, leader, 10);
    kill_while_lossy(world)
}

pub(super) fn lose_lines_of_standby(world: &mut World, _trial: u64) -> Blow {
    let standby = 3 - world.leader();
    lose_lines(world, standby, 10);
    kill_while_lossy(world)
}

/// Who succeeds the leader is short of packets that only the leader had.
pub(super) fn lose_lines_of_standby_and_stop(world: &mut World, _trial: u64) -> Blow {
    let standby = 3 - world.leader();
    lose_lines(world, standby, 30);
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = world.signal(leader, Signal::Stop);
    follow(world, before);
    world.switch.heal();
    world.signal(leader, Signal::Continue);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

fn lose_lines(world: &World, lossy: u8, percent: u32) {
    for line in LINES {
        world.switch.lose(*line.ip(), world.host(lossy), percent);
    }
    world.wait_for_more(1_000);
}

/// Still lossy while somebody else takes over.
fn kill_while_lossy(world: &mut World) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = world.kill(leader);
    follow(world, before);
    world.switch.heal();
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn cut_output(world: &mut World, _trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = now_ns();
    world.switch.cut_to_address(world.host(leader), *OUTPUT.ip());
    follow(world, before);
    world.switch.heal();
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn cut_leader(world: &mut World, way: Way) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = now_ns();
    let mut others = world.grantors();
    others.push(world.host(3 - leader).clone());
    cut(world, leader, &others, way);
    follow(world, before);
    world.switch.heal();
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn cut_from_standby(world: &mut World, way: Way) -> Blow {
    let leader = world.leader();
    let standby = [world.host(3 - leader).clone()];
    cut_in_calm(world, leader, &standby, way)
}

pub(super) fn cut_from_grantors(world: &mut World, way: Way) -> Blow {
    let (leader, grantors) = (world.leader(), world.grantors());
    cut_in_calm(world, leader, &grantors, way)
}

pub(super) fn cut_standby_from_grantors(world: &mut World, way: Way) -> Blow {
    let (standby, grantors) = (3 - world.leader(), world.grantors());
    cut_in_calm(world, standby, &grantors, way)
}

fn cut_in_calm(world: &mut World, gateway: u8, others: &[Host], way: Way) -> Blow {
    let blow = calm(world, CUT, |world, is_begin| {
        if is_begin {
            cut(world, gateway, others, way);
        } else {
            world.switch.heal();
        }
    });
    world.wait_until_stands(3 - world.leader());
    blow
}

fn cut(world: &World, gateway: u8, others: &[Host], way: Way) {
    let gateway = world.host(gateway);
    for other in others {
        if way != Way::To {
            world.switch.cut(gateway, other);
        }
        if way != Way::From {
            world.switch.cut(other, gateway);
        }
    }
}

/// The leader's renewals wait behind what it publishes, so its lease ends while the kernel holds packets of its epoch.
pub(super) fn park_sends(world: &mut World) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = now_ns();
    world.host(leader).slow_down(SLOW_KBIT_PER_S);
    follow(world, before);
    // What waited comes out while somebody else publishes: the length of the trial.
    std::thread::sleep(CUT);
    world.host(leader).speed_up();
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

pub(super) fn forge_an_incredible_epoch(world: &mut World) -> Blow {
    calm(world, Duration::from_millis(500), |world, is_begin| {
        if is_begin {
            let epoch = world.epoch();
            world.forge(Epoch::new(epoch.count() + 5_000, STRANGER));
        }
    })
}

/// Two, of which the second is credible to whoever has believed the first.
pub(super) fn forge_credible_epochs(world: &mut World, by_leaders_number: bool) -> Blow {
    let before = world.epoch();
    let node = if by_leaders_number { world.leader() } else { STRANGER };
    let struck_ns = now_ns();
    let [_, forged] = [1_000, 1_900].map(|beyond| {
        let forged = Epoch::new(before.count() + beyond, node);
        world.forge(forged);
        forged
    });
    follow(world, forged);
    world.wait_until_stands(3 - world.leader());
    Blow { before, struck_ns, calm_until_ns: None }
}

/// How long a cut lasts that must change nothing: many leases.
const CUT: Duration = Duration::from_secs(2);
/// A tenth of what is published, and less.
const SLOW_KBIT_PER_S: u32 = 200;
/// No gateway has that number.
const STRANGER: u8 = 77;
