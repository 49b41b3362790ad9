//! The searches of the latch model, and what each must find.

use mdgw_election::lease::OnSuspended;

use super::{
    ALL_SAFEGUARDS, FaultBudget, LEADER_AFTER_DEATH_NOTICE, LEADER_AFTER_HAND_OVER, LEADER_AFTER_SESSION_END,
    LatchModel, SOMEBODY_LEADS, Start, Violation, assert_safe, assert_violates, store::SESSION_TIMEOUT,
};

#[test]
fn at_most_one_leader_from_a_cold_start() {
    assert_safe(
        "beginning",
        LatchModel { start: Start::Cold, budget: FaultBudget { late: 1, ends: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS },
        &[SOMEBODY_LEADS],
    );
}

#[test]
fn at_most_one_leader_with_late_messages() {
    assert_safe(
        "late messages",
        LatchModel { budget: FaultBudget { late: 2, ends: 2, silences: 1, ..NO_FAULTS }, ..ALL_SAFEGUARDS },
        &[LEADER_AFTER_SESSION_END],
    );
}

#[test]
fn at_most_one_leader_over_broken_connections() {
    let budget = FaultBudget { connection_breaks: 2, ends: 1, ..NO_FAULTS };
    assert_safe("broken connections", LatchModel { budget, ..ALL_SAFEGUARDS }, &[LEADER_AFTER_SESSION_END]);
    assert_safe(
        "broken connections, stops then",
        LatchModel { budget, on_suspended: OnSuspended::Stop, ..ALL_SAFEGUARDS },
        &[LEADER_AFTER_SESSION_END],
    );
}

#[test]
fn at_most_one_leader_over_restarts() {
    let budget = FaultBudget { restarts: 2, ends: 1, ..NO_FAULTS };
    assert_safe(
        "restarts",
        LatchModel { budget, ..ALL_SAFEGUARDS },
        &[LEADER_AFTER_SESSION_END, LEADER_AFTER_DEATH_NOTICE],
    );
    assert_safe(
        "restarts, observed epochs",
        LatchModel { budget, observes_epochs: true, ..ALL_SAFEGUARDS },
        &[LEADER_AFTER_SESSION_END, LEADER_AFTER_DEATH_NOTICE],
    );
}

#[test]
fn at_most_one_leader_over_hand_overs_and_closes() {
    let budget = FaultBudget { hand_overs: 1, closes: 1, late: 1, ..NO_FAULTS };
    assert_safe("hand-over, closing", LatchModel { budget, ..ALL_SAFEGUARDS }, &[LEADER_AFTER_HAND_OVER]);
}

#[test]
fn at_most_one_leader_with_stuck_threads() {
    let budget = FaultBudget { stuck: 1, hand_overs: 1, ends: 1, ..NO_FAULTS };
    assert_safe("stuck threads", LatchModel { budget, ..ALL_SAFEGUARDS }, &[LEADER_AFTER_HAND_OVER]);
}

#[test]
fn at_most_one_of_three_gateways_leads() {
    let budget = FaultBudget { restarts: 1, ends: 1, ..NO_FAULTS };
    assert_safe("three gateways", LatchModel { gateways: 3, budget, ..ALL_SAFEGUARDS }, &[LEADER_AFTER_DEATH_NOTICE]);
}

/// Stricter than necessary: ZooKeeper keeps the order within a session.
#[test]
fn at_most_one_leader_with_reordered_requests() {
    let budget = FaultBudget { late: 2, connection_breaks: 1, ends: 1, ..NO_FAULTS };
    assert_safe(
        "requests out of order",
        LatchModel { requests_in_order: false, budget, ..ALL_SAFEGUARDS },
        &[LEADER_AFTER_SESSION_END],
    );
}

#[test]
fn a_deadline_at_session_end_is_detected() {
    assert_violates(
        "margin",
        LatchModel {
            session_timeout_ns: session_timeout_for(SESSION_TIMEOUT),
            budget: ONE_SESSION_END,
            ..ALL_SAFEGUARDS
        },
        &[Violation::TwoLeaders],
    );
}

#[test]
fn a_deadline_beyond_the_session_end_delay_is_detected() {
    let model = LatchModel {
        session_timeout_ns: session_timeout_for(SESSION_TIMEOUT - SESSION_TIMEOUT / 5),
        budget: ONE_SESSION_END,
        ..ALL_SAFEGUARDS
    };
    assert_violates("margin for contact of the session", model, TWO_LEADERS);
}

/// The store's checks are a second safeguard. Timely contact already ensures that the session still exists.
#[test]
fn at_most_one_leader_without_store_checks() {
    let budget = FaultBudget { late: 1, silences: 1, ..ONE_SESSION_END };
    let model = LatchModel { checks_place: false, checks_version: false, budget, ..ALL_SAFEGUARDS };
    assert_safe("no checks by the store", model, &[LEADER_AFTER_SESSION_END]);
    let model = LatchModel { rejoins_silently: true, budget, ..ALL_SAFEGUARDS };
    assert_safe("new sessions without notification", model, &[LEADER_AFTER_SESSION_END]);
}

#[test]
fn deadlines_from_renewal_answers_are_detected() {
    let budget = FaultBudget { late: 2, ..ONE_SESSION_END };
    let model = LatchModel {
        deadline_from_send: false,
        horizon: ALL_SAFEGUARDS.horizon - SESSION_TIMEOUT / 2,
        budget,
        ..ALL_SAFEGUARDS
    };
    assert_violates("deadlines from the send time", model, &[Violation::TwoLeaders]);
}

#[test]
fn a_hand_over_without_draining_sends_is_detected() {
    let budget = FaultBudget { hand_overs: 1, ..NO_FAULTS };
    assert_violates(
        "waiting for sends",
        LatchModel { drains_sends: false, budget, ..ALL_SAFEGUARDS },
        &[Violation::TwoLeaders],
    );
}

/// After nearly SESSION_TIMEOUT without contact, a gateway claims an epoch and leads. Then its session ends, because the
/// node that ends sessions was informed of the contact too late.
#[test]
fn a_longer_session_end_delay_is_detected() {
    assert_violates(
        "timely contact of a session",
        LatchModel { session_end_delay: SESSION_TIMEOUT / 3, budget: ONE_SESSION_END, ..ALL_SAFEGUARDS },
        TWO_LEADERS,
    );
}

#[test]
fn receivers_without_epoch_check_are_detected() {
    let budget = FaultBudget { packets: 2, ..ONE_SESSION_END };
    assert_violates(
        "receivers' epoch rule",
        LatchModel { receivers_check_epochs: false, budget, ..ALL_SAFEGUARDS },
        &[Violation::StalePacketAccepted],
    );
}

/// The SESSION_TIMEOUT to configure in a gateway for deadlines of that length.
const fn session_timeout_for(span_ns: u64) -> u64 {
    (span_ns + ALL_SAFEGUARDS.timing.margin_ns) / 2 * 3
}

/// The epoch may also regress: the second gateway to open may have the lower epoch, since its answer arrived later.
const TWO_LEADERS: &[Violation] = &[Violation::TwoLeaders, Violation::EpochRegressed];
const NO_FAULTS: FaultBudget = ALL_SAFEGUARDS.budget;
const ONE_SESSION_END: FaultBudget = FaultBudget { ends: 1, ..NO_FAULTS };
