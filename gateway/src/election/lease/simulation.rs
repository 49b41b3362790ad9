//! Several gateways, their store and what connects them, on one thread, from one seed. `SEED=n` repeats one seed, `SEEDS=n`
//! says how many.
//!
//! Simulated: clocks of different rates; requests and answers that are late, lost, or overtake each other; a store that is
//! down, or restored from a backup; gateways that are killed, with a notice of death or without, paused, and cut off one
//! way or both; hand-overs in the midst of it. Judged: no two fences open at one time, the longest send included; each
//! opening under a higher epoch than any before; receivers take nothing old; and when the storm is over, one leads.

mod world;

use std::env;

use self::world::{Setup, World};
use super::Safeguard;

#[test]
fn storms_never_open_two_fences_and_end_with_a_leader() {
    for_seeds(300, |seed| World::new(seed, Setup::STORM).run());
}

#[test]
fn storms_among_three_with_restored_stores_never_open_two_fences() {
    for_seeds(300, |seed| World::new(seed, Setup { gateways: 3, restores: true, ..Setup::STORM }).run());
}

#[test]
fn nobody_failing_nobody_else_leads() {
    for_seeds(20, |seed| {
        let mut world = World::new(seed, Setup::CALM);
        world.run()?;
        match world.openings() {
            1 => Ok(()),
            openings => Err(format!("{openings} openings")),
        }
    });
}

#[test]
#[ignore = "not yet seen to find all of them: it has not run to its end"]
fn each_safeguard_switched_off_is_found_out() {
    let restores = Setup { restores: true, ..Setup::STORM };
    let without = |safeguard| Setup { without: Some(safeguard), ..Setup::STORM };
    let controls = [
        ("the margin", Setup { margin: false, ..Setup::STORM }),
        ("the check of the version", Setup { version_check: false, ..Setup::STORM }),
        ("what an epoch must be above", Setup { epochs_heard: false, ..restores }),
        ("the receivers' epoch rule", Setup { receivers_fence: false, ..Setup::STORM }),
        ("sitting out", without(Safeguard::SittingOut)),
        ("a candidate asked", Setup { gateways: 3, ..without(Safeguard::EachCandidateAsked) }),
        ("the nonce of prepare", without(Safeguard::PrepareNonce)),
        ("unknown outcomes move nothing", without(Safeguard::UnknownMovesNothing)),
    ];
    let missed: Vec<_> = controls
        .into_iter()
        .filter(|(_, setup)| (0..CONTROL_SEEDS).all(|seed| World::new(seed, *setup).run().is_ok()))
        .map(|(what, _)| what)
        .collect();
    assert_eq!(missed, Vec::<&str>::new(), "switched off, and nothing was found in {CONTROL_SEEDS} seeds");
}

/// Runs many seeds, or the one that `SEED` names; tells the seed that fails.
fn for_seeds(count: u64, check: impl Fn(u64) -> Result<(), String>) {
    let named = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match named("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..named("SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        if let Err(what) = check(seed) {
            panic!("SEED={seed}: {what}");
        }
    }
}

const CONTROL_SEEDS: u64 = 4_000;
