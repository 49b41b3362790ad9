//! A closing gateway: it drains, then releases the record.

use super::*;

#[test]
fn close_drains_then_releases_and_ends_the_candidacy() {
    let mut harness = Harness::leading(1);
    harness.step(Input::Close);
    assert!(matches!(harness.outputs[..], [Output::Close { reason: CloseReason::Released, .. }, Output::Drain]));
    harness.run(10 * MS);
    assert!(harness.stored.as_ref().unwrap().record.holder.is_some(), "a send may be outstanding");
    harness.step(Input::Drained);
    harness.run(MS);
    assert_eq!(harness.stored.as_ref().unwrap().record.holder, None);
    assert_eq!(harness.core.view().role, Role::Closed);
    harness.run(10 * WAIT_NS);
    assert_eq!(harness.opened(), None);
}

#[test]
fn an_expired_leader_that_closes_releases_the_record_after_its_last_send() {
    let mut harness = Harness::leading(1);
    let deadline = harness.deadline();
    // Stopped for so long that its deadline has passed; a packet that passed the fence before is sent afterwards.
    harness.now = deadline;
    harness.step(Input::Close);
    assert_eq!(harness.closed(), Some(CloseReason::Expired));
    harness.step(Input::Time);
    harness.answer();
    let is_released = |harness: &Harness| harness.stored.as_ref().is_some_and(|stored| stored.record.holder.is_none());
    harness.run(LeaseTiming::DEFAULT.send_ns_max);
    assert!(!is_released(&harness), "a reader of a released record begins at once");
    harness.step(Input::Drained);
    harness.run(MS);
    assert!(is_released(&harness));
    assert_eq!(harness.core.view().role, Role::Closed);
}

#[test]
fn a_send_that_never_returns_leaves_the_record_to_its_lease() {
    let mut harness = Harness::leading(1);
    let lease_ends_at = harness.deadline().plus(LeaseTiming::DEFAULT.margin_ns);
    harness.step(Input::Close);
    harness.run(lease_ends_at.since(harness.now) - 1);
    assert_ne!(harness.core.view().role, Role::Closed);
    harness.run(1);
    assert_eq!(harness.core.view().role, Role::Closed);
    assert!(harness.stored.as_ref().unwrap().record.holder.is_some());
    harness.step(Input::Drained);
    harness.run(MS);
    assert!(harness.stored.as_ref().unwrap().record.holder.is_some(), "its process has ended by then");
}

#[test]
fn a_close_after_a_raise_drains_before_releasing_the_record() {
    let mut harness = Harness::leading(1);
    harness.step(Input::ObservedEpoch(Epoch::new(9, 2)));
    harness.run(MS);
    assert_eq!((harness.closed(), harness.opened()), (Some(CloseReason::Outranked), Some(Epoch::new(10, 1))));
    harness.outputs.clear();
    harness.step(Input::Close);
    harness.run(MS);
    assert!(harness.stored.as_ref().unwrap().record.holder.is_some());
    harness.step(Input::Drained);
    harness.run(30 * MS);
    assert!(harness.stored.as_ref().unwrap().record.holder.is_none());
}
