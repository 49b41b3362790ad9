//! The pair on a real network: whatever happens, every receiver is told everything once and in order. The short form of
//! `--bin takeovers`, which does all cases, and often.

use mdgw_tests::{
    captures::say,
    stores::Store,
    world::{
        World,
        cases::{Wanted, named},
        judge::Judged,
        plan::{Backend, Plan},
        stall::StallWatch,
    },
};

/// Blows of those names, one after the other in one world: each comes to what it has to, and nothing is lost, doubled, out of
/// order, or published by two at a time. `None`: skipped.
fn strike(test: &str, names: &[&str], backend: Backend) -> Option<Judged> {
    let cases: Vec<_> = names.iter().map(|name| named(name).expect("a case of that name")).collect();
    let mut plan = Plan::calm(backend);
    cases.iter().for_each(|case| (case.prepare)(&mut plan));
    let stalls = StallWatch::start();
    let mut world = World::start(test, plan)?;
    world.open_venue();
    world.wait_for_more(500);
    let blows: Vec<_> = (0..).zip(&cases).map(|(trial, case)| (case.strike)(&mut world, trial)).collect();
    let judged = world.finish();
    judged.assert_right();
    for (case, blow) in cases.iter().zip(&blows) {
        let stall_ns = blow.calm_until_ns.map_or(0, |until_ns| stalls.worst_ns(blow.struck_ns, until_ns));
        if case.wanted == Wanted::NothingMoves && stall_ns > STALL_NS_MAX {
            // Leadership that such a machine moves says nothing of the blow.
            say(&format!("{test}: {}: the machine stalled for {} ms", case.name, stall_ns / 1_000_000));
        } else {
            assert!(judged.is_as_wanted(case.wanted, blow), "{}: {blow:?}\n{}", case.name, judged.verdict());
        }
    }
    Some(judged)
}

/// A tenth of what the lease allows for.
const STALL_NS_MAX: u64 = 50_000_000;

#[test]
fn a_killed_leader_is_followed() {
    let _judged = strike("a_killed_leader_is_followed", &["kill"], Backend::File);
}

#[test]
fn a_stopped_leader_says_nothing_when_it_goes_on() {
    let _judged = strike("a_stopped_leader_says_nothing_when_it_goes_on", &["stop"], Backend::Quorum);
}

#[test]
fn leadership_is_handed_over_and_nothing_is_said_again() {
    let test = "leadership_is_handed_over_and_nothing_is_said_again";
    let Some(judged) = strike(test, &["hand-over"], Backend::Quorum) else { return };
    // Nothing else has moved leadership, as a crowded machine may.
    if judged.changes.iter().all(|changes| changes.len() == 1) {
        assert_eq!(judged.said_again(), 0, "{}", judged.verdict());
    }
}

#[test]
fn one_way_cuts_move_leadership_only_where_they_must() {
    let test = "one_way_cuts_move_leadership_only_where_they_must";
    let cuts = ["cut-to-standby", "cut-to-leader", "cut-to-witness", "cut-from-witness", "leader-deaf", "leader-mute"];
    let _judged = strike(test, &cuts, Backend::Quorum);
}

#[test]
fn messages_in_parts_and_forged_epochs_lose_nothing() {
    let test = "messages_in_parts_and_forged_epochs_lose_nothing";
    let _judged = strike(test, &["parts-kill", "forged-credible"], Backend::File);
}

#[test]
fn books_survive_lost_lines_and_the_next_session() {
    let test = "books_survive_lost_lines_and_the_next_session";
    let _judged = strike(test, &["standby-loss-kill", "roll-kill"], Backend::File);
}

#[test]
fn of_three_gateways_two_leaders_die_one_after_the_other() {
    let _judged = strike("of_three_gateways_two_leaders_die_one_after_the_other", &["three-kills"; 2], Backend::File);
}

#[test]
fn leaders_that_abort_or_get_no_memory_are_followed() {
    let _judged =
        strike("leaders_that_abort_or_get_no_memory_are_followed", &["abort", "out-of-memory"], Backend::File);
}

#[test]
fn both_gateways_come_back_with_right_books() {
    let _judged = strike("both_gateways_come_back_with_right_books", &["both-restarted"], Backend::File);
}

#[test]
fn a_leader_without_its_store_goes_on() {
    let test = "a_leader_without_its_store_goes_on";
    if cfg!(feature = "stores") {
        let _judged =
            strike(test, &["cut-from-store", "standby-deaf-store", "store-down"], Backend::Store(Store::Etcd));
    } else {
        say(&format!("SKIPPED: {test}: built without stores"));
    }
}
