//! The pair on a real network: whatever happens to the leader, every receiver is told everything once and in order.

use mdgw_tests::world::{Backend, Plan, World, cases::named, judge::Judged};

/// One blow of that name in a world of its own: somebody else leads afterwards, and nothing is lost, doubled or out of order.
fn strike(test: &str, case: &str, backend: Backend) -> Option<Judged> {
    let mut world = World::start(test, Plan::calm(backend))?;
    world.open_venue();
    world.wait_for_more(500);
    let case = named(case).expect("a case of that name");
    let blow = (case.strike)(&mut world, 0);
    let after = world.epoch();
    let judged = world.finish();
    judged.assert_right();
    if blow.calm_until_ns.is_some() {
        assert_eq!(after, blow.before, "{}", judged.verdict);
    } else {
        assert!(after > blow.before, "{}", judged.verdict);
    }
    Some(judged)
}

#[test]
fn a_killed_leader_is_followed() {
    let _judged = strike("a_killed_leader_is_followed", "kill", Backend::File);
}

#[test]
fn a_stopped_leader_says_nothing_when_it_goes_on() {
    let _judged = strike("a_stopped_leader_says_nothing_when_it_goes_on", "stop", Backend::Quorum);
}

#[test]
fn leadership_is_handed_over_and_nothing_is_said_again() {
    let test = "leadership_is_handed_over_and_nothing_is_said_again";
    let Some(judged) = strike(test, "hand-over", Backend::Quorum) else { return };
    // Nothing else has moved leadership, as a crowded machine may.
    if judged.changes.iter().all(|changes| changes.len() == 1) {
        assert_eq!(judged.said_again, 0, "{}", judged.verdict);
    }
}
