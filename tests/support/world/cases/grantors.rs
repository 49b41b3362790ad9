//! Whoever grants leadership fails, or can't remember what it granted.

use super::{Blow, calm_a_while, follow};
use crate::world::World;

/// Which nodes of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nodes {
    All,
    AllButOne,
    /// One, by a number that goes round.
    One(u64),
}

pub(super) fn kill_store(world: &mut World, nodes: Nodes) -> Blow {
    let count = world.store().count();
    let killed = match nodes {
        Nodes::All => 0..count,
        Nodes::AllButOne => 1..count,
        Nodes::One(number) => {
            let node = usize::try_from(number).unwrap_or_default() % count;
            node..node + 1
        }
    };
    calm_a_while(world, |world, is_begin| {
        if is_begin {
            killed.clone().for_each(|node| world.store().kill(node));
        } else {
            killed.clone().for_each(|node| world.store().restart(node));
            world.store().await_serving();
        }
    })
}

pub(super) fn stop_store(world: &mut World) -> Blow {
    calm_a_while(world, |world, is_begin| {
        let nodes = 0..world.store().count();
        if is_begin {
            nodes.for_each(|node| world.store().pause(node));
        } else {
            nodes.for_each(|node| world.store().resume(node));
            world.store().await_serving();
        }
    })
}

pub(super) fn kill_witness(world: &mut World) -> Blow {
    calm_a_while(world, |world, is_begin| {
        if is_begin {
            world.kill_witnesses();
        } else {
            world.restart_witnesses();
        }
    })
}

pub(super) fn fill_disks(world: &mut World) -> Blow {
    calm_a_while(world, |world, is_begin| [1, 2].into_iter().for_each(|node| world.set_disk(node, is_begin)))
}

/// The room for votes is there from the beginning, and audits wait in memory.
pub(super) fn kill_with_full_disks(world: &mut World) -> Blow {
    let (leader, before) = (world.leader(), world.epoch());
    [1, 2].into_iter().for_each(|node| world.set_disk(node, true));
    let struck_ns = world.kill(leader);
    follow(world, before);
    [1, 2].into_iter().for_each(|node| world.set_disk(node, false));
    world.start_gateway(leader);
    world.wait_until_stands(leader);
    Blow { before, struck_ns, calm_until_ns: None }
}
