//! The pair on a real network: whatever happens, every receiver is told everything once and in order. The short form of
//! `--bin takeovers`, which does all cases, and often.

use mdgw_tests::{
    captures::say,
    stores::Store,
    world::{
        Testbed,
        checker::RunResult,
        faults::{ExpectedOutcome, named},
        plan::{ElectionBackend, Plan},
        stall::StallMonitor,
    },
};

/// Blows of those names, one after the other in one world: each comes to what it has to, and nothing is lost, doubled, out of
/// order, or published by two at a time. `None`: skipped.
fn strike(test: &str, names: &[&str], backend: ElectionBackend) -> Option<RunResult> {
    let cases: Vec<_> = names.iter().map(|name| named(name).expect("a case of that name")).collect();
    let mut plan = Plan::calm(backend);
    cases.iter().for_each(|case| (case.prepare)(&mut plan));
    let stall_monitor = StallMonitor::start();
    let mut world = Testbed::start(test, plan)?;
    world.start_session();
    world.wait_for_more_deliveries(500);
    let blows: Vec<_> = (0..).zip(&cases).map(|(trial, case)| (case.strike)(&mut world, trial)).collect();
    let judged = world.finish();
    judged.assert_no_errors();
    for (case, blow) in cases.iter().zip(&blows) {
        let stall_ns = blow.stable_until_ns.map_or(0, |until_ns| stall_monitor.worst_ns(blow.injected_ns, until_ns));
        if case.wanted == ExpectedOutcome::NoChange && stall_ns > STALL_NS_MAX {
            // Leadership that such a machine moves says nothing of the blow.
            say(&format!("{test}: {}: the machine stalled for {} ms", case.name, stall_ns / 1_000_000));
        } else {
            assert!(judged.has_expected_outcome(case.wanted, blow), "{}: {blow:?}\n{}", case.name, judged.verdict());
        }
    }
    Some(judged)
}

/// A tenth of what the lease allows for.
const STALL_NS_MAX: u64 = 50_000_000;

#[test]
fn a_killed_leader_is_replaced() {
    let _judged = strike("a_killed_leader_is_followed", &["kill"], ElectionBackend::File);
}

#[test]
fn a_resumed_leader_publishes_nothing_stale() {
    let _judged = strike("a_stopped_leader_says_nothing_when_it_goes_on", &["stop"], ElectionBackend::Quorum);
}

#[test]
fn a_hand_over_republishes_nothing() {
    let test = "leadership_is_handed_over_and_nothing_is_said_again";
    let Some(judged) = strike(test, &["hand-over"], ElectionBackend::Quorum) else { return };
    // Nothing else has moved leadership, as a crowded machine may.
    if judged.changes.iter().all(|changes| changes.len() == 1) {
        assert_eq!(judged.republished(), 0, "{}", judged.verdict());
    }
}

#[test]
fn one_way_partitions_move_leadership_only_when_needed() {
    let test = "one_way_cuts_move_leadership_only_where_they_must";
    let partitions =
        ["cut-to-standby", "cut-to-leader", "cut-to-witness", "cut-from-witness", "leader-deaf", "leader-mute"];
    let _judged = strike(test, &partitions, ElectionBackend::Quorum);
}

#[test]
fn split_messages_and_forged_epochs_lose_nothing() {
    let test = "messages_in_parts_and_forged_epochs_lose_nothing";
    let _judged = strike(test, &["parts-kill", "forged-credible"], ElectionBackend::File);
}

#[test]
fn books_stay_correct_over_line_loss_and_session_change() {
    let test = "books_survive_lost_lines_and_the_next_session";
    let _judged = strike(test, &["standby-loss-kill", "roll-kill"], ElectionBackend::File);
}

#[test]
fn three_gateways_survive_two_leader_kills() {
    let _judged =
        strike("of_three_gateways_two_leaders_die_one_after_the_other", &["three-kills"; 2], ElectionBackend::File);
}

#[test]
fn aborted_and_oom_killed_leaders_are_replaced() {
    let _judged =
        strike("leaders_that_abort_or_get_no_memory_are_followed", &["abort", "out-of-memory"], ElectionBackend::File);
}

#[test]
fn both_gateways_restart_with_correct_books() {
    let _judged = strike("both_gateways_come_back_with_right_books", &["both-restarted"], ElectionBackend::File);
}

#[test]
fn a_leader_continues_without_its_store() {
    let test = "a_leader_without_its_store_goes_on";
    if cfg!(feature = "stores") {
        let _judged =
            strike(test, &["cut-from-store", "standby-deaf-store", "store-down"], ElectionBackend::Store(Store::Etcd));
    } else {
        say(&format!("SKIPPED: {test}: built without stores"));
    }
}
