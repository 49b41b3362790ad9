//! What is done to a pair, by name. Each function strikes once and returns when both gateways are in order again.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{OUTPUT, World};
use crate::{pair::wait_until, process::Signal};

/// One kind of blow.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// What is done.
    pub about: &'static str,
    /// Does it; the number of the trial varies what can vary.
    pub strike: fn(&mut World, u64) -> Blow,
}

/// A blow that was struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blow {
    /// Under which epoch everything had come before.
    pub before: Epoch,
    /// When it was struck, ns since 1970 UTC.
    pub struck_ns: u64,
    /// Nobody else may lead because of it: until when it lasted, ns since 1970 UTC. As long before it nothing was done.
    pub calm_until_ns: Option<u64>,
}

/// All of them.
pub const CASES: [Case; 9] = [
    Case { name: "kill", about: "the leader is killed (SIGKILL) and started again", strike: kill },
    Case { name: "stop", about: "the leader is stopped (SIGSTOP) for 0.2 to 3 s and goes on", strike: stop },
    Case { name: "hand-over", about: "the leader is asked to hand over", strike: hand_over },
    Case {
        name: "output-cut",
        about: "nothing that the leader publishes leaves its host; its renewals do",
        strike: cut_output,
    },
    Case {
        name: "leader-cut",
        about: "the leader is cut off from the other gateway and the witness",
        strike: cut_leader,
    },
    Case {
        name: "gap-kill",
        about: "the leader alone misses both lines for a moment and is killed",
        strike: gap_then_kill,
    },
    Case {
        name: "store-down",
        about: "all nodes of the store are killed, for 3 s, and started again",
        strike: store_down,
    },
    Case {
        name: "store-hangs",
        about: "all nodes of the store are stopped (SIGSTOP), for 3 s, and go on",
        strike: store_hangs,
    },
    Case { name: "forged", about: "a stranger publishes under an epoch too far above to be believed", strike: forged },
];

/// The case of that name.
#[must_use]
pub fn named(name: &str) -> Option<Case> {
    CASES.into_iter().find(|case| case.name == name)
}

fn kill(world: &mut World, _trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = world.kill(leader);
    follow(world, leader, before);
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

fn stop(world: &mut World, trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = world.signal(leader, Signal::Stop);
    let pause = Duration::from_millis(200 + trial * 700 % 2_800);
    // The pause is the blow; what is waited for comes below.
    std::thread::sleep(pause);
    follow(world, leader, before);
    world.signal(leader, Signal::Continue);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

fn hand_over(world: &mut World, _trial: u64) -> Blow {
    let mut done = None;
    // A crowded machine may be too slow for it; then it is asked again, whoever leads by now.
    wait_until("leadership is handed over", || {
        let (leader, before) = (world.leader(), world.epoch());
        done = world.hand_over(leader).map(|struck_ns| (leader, before, struck_ns));
        done.is_some()
    });
    let (leader, before, struck_ns) = done.expect("just waited for");
    follow(world, leader, before);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

fn cut_output(world: &mut World, _trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = now_ns();
    world.switch.cut_to_address(world.host(leader), *OUTPUT.ip());
    follow(world, leader, before);
    world.switch.heal();
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

fn cut_leader(world: &mut World, _trial: u64) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    let struck_ns = now_ns();
    for other in [world.host(3 - leader), world.witness()] {
        world.switch.cut(world.host(leader), other);
        world.switch.cut(other, world.host(leader));
    }
    follow(world, leader, before);
    world.switch.heal();
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}

fn gap_then_kill(world: &mut World, trial: u64) -> Blow {
    let leader = world.leader();
    for line in super::LINES {
        world.switch.cut_off(*line.ip(), world.host(leader));
    }
    // The gap's length; nobody says when it is long enough.
    std::thread::sleep(Duration::from_millis(50 + trial * 30 % 100));
    world.switch.heal();
    kill(world, trial)
}

fn store_down(world: &mut World, _trial: u64) -> Blow {
    calm(world, Duration::from_secs(3), |world, is_begin| {
        let nodes = 0..world.store().count();
        if is_begin {
            nodes.for_each(|node| world.store().kill(node));
        } else {
            nodes.for_each(|node| world.store().restart(node));
            world.store().await_serving();
        }
    })
}

fn store_hangs(world: &mut World, _trial: u64) -> Blow {
    calm(world, Duration::from_secs(3), |world, is_begin| {
        let nodes = 0..world.store().count();
        if is_begin {
            nodes.for_each(|node| world.store().pause(node));
        } else {
            nodes.for_each(|node| world.store().resume(node));
            world.store().await_serving();
        }
    })
}

fn forged(world: &mut World, _trial: u64) -> Blow {
    calm(world, Duration::from_millis(500), |world, is_begin| {
        if is_begin {
            let epoch = world.epoch();
            world.forge(Epoch::new(epoch.count() + 5_000, 77));
        }
    })
}

/// Something that must change nothing: done, and undone after so long.
fn calm(world: &mut World, length: Duration, mut act: impl FnMut(&mut World, bool)) -> Blow {
    // As long without it before, to compare with, and as long with it: lengths of the trial.
    std::thread::sleep(length);
    let before = world.epoch();
    let struck_ns = now_ns();
    act(world, true);
    std::thread::sleep(length);
    let calm_until_ns = Some(now_ns());
    act(world, false);
    world.wait_for_more(200);
    Blow { before, struck_ns, calm_until_ns }
}

fn follow(world: &World, leader: u8, before: Epoch) {
    let next = world.wait_for_content_after(before);
    assert_ne!(next.node(), leader, "the other gateway leads");
    world.wait_for_more(200);
}

fn now_ns() -> u64 {
    mdgw::sys::clock::unix_now().0
}
