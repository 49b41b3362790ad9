//! The lease over a register under a simulated network, store and clock: gateways, their hot threads, the product's own
//! fence and a subscriber's own receiver. `SEED=n` repeats one seed, `SEEDS=n` says how many.
//!
//! Simulated: clocks of different rates, and slewed; requests, answers and packets that are late, lost, or overtake each other; a store
//! that is down, or restored from a backup; gateways that are killed, with a notice of death or without, stopped between
//! the fence's check and the send, closed, and cut off one way or both; hand-overs in the midst of it. Judged: no two may
//! send at one time, the longest send included; each opening has a higher epoch than any before; receivers hand on nothing
//! of an old epoch; and, apart from that, one leads when the storm is over.

pub(crate) mod faults;
mod receiver;
mod store;
pub(crate) mod world;

use faults::{Fault, Faults};
use mdgw_captures::random::Random;
use mdgw_election::{
    lease::Safeguards,
    timing::{LeaseTiming, drift_ns},
};
use mdgw_tests::captures::say;
use world::{MS, Opening, Setup, Swap, Violation, WAKE_NS_MAX, World};

use crate::seeds::for_seeds;

/// Two gateways at 20/4 ms.
pub(crate) const PAIR: Setup = Setup {
    gateways: 2,
    timing: LeaseTiming::from_ms(20, 4, 4),
    faults: Faults::NONE,
    safeguards: Safeguards::ALL,
    version_check: true,
    epochs_heard: true,
    receivers_fence: true,
    clock_rates_read: true,
    joins: false,
};
const STORM: Setup = Setup { faults: Faults::STORM, ..PAIR };
const SLEWS: Setup = Setup { faults: Faults::SLEWS, ..PAIR };
const RESTORES: Setup = Setup { faults: Faults::RESTORES, ..PAIR };

/// A storm, then calm. Safety during both; afterwards somebody leads.
fn weather(seed: u64, setup: Setup) -> Result<World, String> {
    let mut world = World::new(seed, setup);
    world.run_for(600 * MS);
    world.calm_down();
    world.run_for(200 * MS);
    match &world.violation {
        Some(violation) => Err(format!("not safe: {violation:?}")),
        None if world.leading().is_none() => Err("not live: nobody leads after 200 ms without faults".to_owned()),
        None => Ok(world),
    }
}

#[test]
fn one_leads_whatever_happens_and_afterwards_one_does() {
    let worlds = for_seeds("storms", 20_000, |seed| {
        let gateways = 2 + u8::try_from(seed % 2).expect("0 or 1");
        let faults = [Faults::STORM, Faults::RESTORES, Faults::HAND_OVERS, Faults::NO_STORE, Faults::SLEWS];
        let faults = faults[usize::try_from(seed / 2 % 5).expect("one of five")];
        let world = weather(seed, Setup { gateways, faults, ..PAIR })?;
        Ok((world.opened.len() as u64, world.stale_packets()))
    });
    let (openings, stale) = worlds.into_iter().fold((0, 0), |sum, world| (sum.0 + world.0, sum.1 + world.1));
    say(&format!("storms: {openings} openings, {stale} packets of an old epoch arrived late, none was taken"));
    assert!(stale > 0, "no packet was late: nothing was shown");
}

#[test]
fn nobody_failing_nobody_else_leads() {
    for_seeds("calm days", 50, |seed| {
        let mut world = World::new(seed, PAIR);
        world.run_for(1_000 * MS);
        if world.opened.len() == 1 { Ok(()) } else { Err(format!("{:?} {:?}", world.opened, world.violation)) }
    });
}

/// SIGSTOP and SIGCONT, with a packet that had passed the fence and was not sent.
#[test]
fn of_a_leader_that_was_stopped_for_long_nothing_is_taken() {
    const STOPS: u64 = 10;
    let stale = for_seeds("stopped leaders", 1_000, |seed| {
        let gateways = 2 + u8::try_from(seed % 2).expect("0 or 1");
        let setup = Setup { gateways, timing: LeaseTiming::DEFAULT, ..PAIR };
        let mut world = World::new(seed, setup);
        let mut random = Random::new(seed);
        world.run_for(500 * MS);
        for _ in 0..STOPS {
            world.run_for(random.below(setup.timing.renew_ns));
            let leader = world.leading().ok_or("nobody leads")?;
            let lasts_ns = 200 * MS + random.below(2_800 * MS);
            world.fault(Fault::Pause, leader, lasts_ns);
            world.run_for(lasts_ns + 300 * MS);
            if let Some(violation) = &world.violation {
                return Err(format!("not safe: {violation:?}"));
            }
            if world.opened.last().is_none_or(|opening| opening.gateway == leader) {
                return Err("nobody else led meanwhile".to_owned());
            }
        }
        Ok(world.stale_packets())
    });
    let (stops, stale) = (STOPS * stale.len() as u64, stale.into_iter().sum::<u64>());
    say(&format!("stopped leaders: {stops} stops of 0.2 to 3 s; {stale} records of the old epoch arrived, 0 accepted"));
    assert!(stale >= stops, "each stop is one in the hole");
}

/// The protocol's own part of a failover: killed without notice until the other opens. Delays are bounded here, so the
/// longest can be told beforehand.
#[test]
fn silence_is_no_longer_than_the_arithmetic_says() {
    const DELAY_NS_MAX: u64 = 500_000;
    let profiles = LeaseTiming::PROFILES.into_iter().chain([("20/4", PAIR.timing)]);
    for (name, timing) in profiles {
        let wait_ns = timing.wait_ns();
        // By a clock that is as slow as allowed: W / (1 - rho).
        let drift = drift_ns(wait_ns, timing.rate_error_ppm);
        let expire_ns_max = wait_ns + drift + drift_ns(drift, timing.rate_error_ppm) + WAKE_NS_MAX;
        // The last renewal on its way to the store, and its notice on the way back; the swap and its answer.
        let (detect_ns_max, open_ns_max) = (2 * DELAY_NS_MAX, 2 * DELAY_NS_MAX);
        let faults = Faults { delay_ns_max: DELAY_NS_MAX, ..Faults::NONE };
        let silences = for_seeds(&format!("silence, {name}"), 500, |seed| {
            let mut world = World::new(seed, Setup { timing, faults, ..PAIR });
            let mut random = Random::new(seed);
            world.run_for(4 * timing.lease_ns + random.below(timing.renew_ns));
            let leader = world.leading().ok_or("nobody leads")?;
            let (killed_ns, before) = (world.now_ns(), world.opened.len());
            world.kill(leader, false);
            let is_over = world.run_until(killed_ns + 4 * timing.lease_ns, |world| world.opened.len() > before);
            if !is_over {
                return Err(format!("nobody leads after four leases; {:?}", world.violation));
            }
            let Opening { at_ns: opened_ns, swap: Swap { learned_ns, sent_ns }, .. } = world.opened[before];
            let parts = [
                ("detect", learned_ns.saturating_sub(killed_ns), detect_ns_max),
                ("expire", sent_ns - learned_ns, expire_ns_max),
                ("open", opened_ns - sent_ns, open_ns_max),
            ];
            match parts.iter().find(|(_, took_ns, max_ns)| took_ns > max_ns) {
                Some((part, took_ns, max_ns)) => Err(format!("{part} took {took_ns} ns, at most {max_ns} allowed")),
                None => Ok(opened_ns - killed_ns),
            }
        });
        let worst_ns = silences.into_iter().max().unwrap_or(0);
        let bound_ns = detect_ns_max + expire_ns_max + open_ns_max;
        let ms = |ns: u64| ns as f64 / 1e6;
        say(&format!(
            "silence, {name}: at worst {:.3} ms; bound: detect {:.3} + expire {:.3} + open {:.3} = {:.3} ms",
            ms(worst_ns),
            ms(detect_ns_max),
            ms(expire_ns_max),
            ms(open_ns_max),
            ms(bound_ns)
        ));
        assert!(worst_ns <= bound_ns);
        assert!(worst_ns > timing.lease_ns - timing.renew_ns, "it waited for no lease: {worst_ns} ns");
    }
}

// ---- each safeguard switched off is found ----

#[track_caller]
fn is_found(what: &str, setup: Setup, is_expected: fn(&Violation) -> bool) {
    let found = (0..CONTROL_SEEDS).find_map(|seed| {
        let mut world = World::new(seed, setup);
        world.run_for(600 * MS);
        world.violation.map(|violation| (seed, violation))
    });
    let (seed, violation) = found.unwrap_or_else(|| panic!("nothing found in {CONTROL_SEEDS} seeds"));
    say(&format!("without {what}: {violation:?}, seed {seed}"));
    assert!(is_expected(&violation), "{violation:?}");
    // The same weather does no harm where nothing is switched off.
    let mut world = World::new(seed, Setup { gateways: setup.gateways, faults: setup.faults, ..PAIR });
    world.run_for(600 * MS);
    assert_eq!(world.violation, None, "seed {seed}");
}

const CONTROL_SEEDS: u64 = 3_000;

fn two_lead(violation: &Violation) -> bool {
    matches!(violation, Violation::TwoLead { .. })
}

fn two_lead_or_epoch_back(violation: &Violation) -> bool {
    matches!(violation, Violation::TwoLead { .. } | Violation::EpochWentBack { .. })
}

#[test]
fn without_margin_two_lead() {
    let timing = LeaseTiming { margin_ns: 0, ..PAIR.timing };
    assert!(timing.check().is_err(), "no configuration may say so");
    is_found("margin", Setup { timing, ..STORM }, two_lead);
}

#[test]
fn half_of_the_least_margin_is_too_small() {
    let least = LeaseTiming { margin_ns: 4 * MS + 9_000, send_ns_max: 4 * MS, ..PAIR.timing };
    assert_eq!(least.check(), Ok(()));
    let timing = LeaseTiming { margin_ns: least.margin_ns / 2, ..least };
    assert!(timing.check().is_err());
    is_found("half of the margin", Setup { timing, ..STORM }, two_lead);
}

#[test]
fn a_store_that_compares_no_versions_lets_two_lead() {
    is_found("the check of the version", Setup { version_check: false, ..STORM }, two_lead_or_epoch_back);
}

#[test]
fn epochs_that_nobody_heard_go_back_with_a_restored_store() {
    let is_back = |violation: &Violation| matches!(violation, Violation::EpochWentBack { .. });
    is_found("epochs heard", Setup { epochs_heard: false, ..RESTORES }, is_back);
}

#[test]
fn receivers_that_ignore_epochs_take_old_records() {
    let is_old = |violation: &Violation| matches!(violation, Violation::OldRecordTaken { .. });
    is_found("the receivers' epoch rule", Setup { receivers_fence: false, ..STORM }, is_old);
}

#[test]
fn a_start_without_sitting_out_lets_two_lead() {
    let safeguards = Safeguards { sits_out: false, ..Safeguards::ALL };
    is_found("sitting out", Setup { safeguards, ..STORM }, two_lead_or_epoch_back);
}

#[test]
fn swaps_of_unknown_fate_that_count_let_two_lead() {
    let safeguards = Safeguards { unknown_moves_nothing: false, ..Safeguards::ALL };
    is_found("reading after an unknown outcome", Setup { safeguards, ..STORM }, two_lead_or_epoch_back);
}

#[test]
fn one_candidate_not_asked_takes_over_beside_the_leader() {
    let safeguards = Safeguards { each_candidate_asked: false, ..Safeguards::ALL };
    is_found("one candidate's promise", Setup { safeguards, gateways: 3, ..STORM }, two_lead);
}

#[test]
fn an_heirs_lease_that_counts_from_its_opening_lets_two_lead() {
    let safeguards = Safeguards { heirs_stamp: false, ..Safeguards::ALL };
    is_found("the heir's stamp", Setup { safeguards, gateways: 3, ..STORM }, two_lead_or_epoch_back);
}

#[test]
fn an_heir_that_nobody_waits_for_leads_beside_another() {
    let safeguards = Safeguards { heir_waited_for: false, ..Safeguards::ALL };
    is_found("waiting for the heir", Setup { safeguards, gateways: 3, ..STORM }, two_lead_or_epoch_back);
}

#[test]
fn an_heir_that_is_replaced_at_once_leads_beside_the_next() {
    let safeguards = Safeguards { heir_stays: false, ..Safeguards::ALL };
    is_found("the heir that stays", Setup { safeguards, gateways: 3, ..STORM }, two_lead_or_epoch_back);
}

#[test]
fn slewed_clocks_that_nobody_reads_let_two_lead() {
    is_found("the clock's rate", Setup { clock_rates_read: false, ..SLEWS }, two_lead);
}

#[test]
fn a_store_restored_during_a_break_lets_two_lead_unless_the_break_forgets() {
    let safeguards = Safeguards { break_forgets: false, ..Safeguards::ALL };
    is_found("forgetting at a break", Setup { safeguards, ..RESTORES }, two_lead_or_epoch_back);
}
