//! What is searched, and what has to be found.

use mdgw_election::lease::OnSuspended;

use super::{AFTER_END, AFTER_NOTICE, Budget, FIRST, FULL, HAND_OVER, Search, Start, Wrong, fails, holds, store::T};

#[test]
fn one_leads_at_a_time_from_the_beginning() {
    holds("beginning", Search { start: Start::Cold, budget: Budget { late: 1, ends: 1, ..NONE }, ..FULL }, &[FIRST]);
}

#[test]
fn one_leads_at_a_time_whatever_comes_late() {
    holds("late messages", Search { budget: Budget { late: 2, ends: 2, silences: 1, ..NONE }, ..FULL }, &[AFTER_END]);
}

#[test]
fn one_leads_at_a_time_over_broken_connections() {
    let budget = Budget { breaks: 2, ends: 1, ..NONE };
    holds("broken connections", Search { budget, ..FULL }, &[AFTER_END]);
    holds("broken connections, stops then", Search { budget, on_suspended: OnSuspended::Stop, ..FULL }, &[AFTER_END]);
}

#[test]
fn one_leads_at_a_time_over_restarts() {
    let budget = Budget { restarts: 2, ends: 1, ..NONE };
    holds("restarts", Search { budget, ..FULL }, &[AFTER_END, AFTER_NOTICE]);
    holds("restarts, epochs heard", Search { budget, epochs_heard: true, ..FULL }, &[AFTER_END, AFTER_NOTICE]);
}

#[test]
fn one_leads_at_a_time_over_hand_overs_and_closing() {
    let budget = Budget { hand_overs: 1, closes: 1, late: 1, ..NONE };
    holds("hand-over, closing", Search { budget, ..FULL }, &[HAND_OVER]);
}

#[test]
fn one_leads_at_a_time_though_threads_get_stuck() {
    let budget = Budget { stuck: 1, hand_overs: 1, ends: 1, ..NONE };
    holds("stuck threads", Search { budget, ..FULL }, &[HAND_OVER]);
}

#[test]
fn one_of_three_leads_at_a_time() {
    let budget = Budget { restarts: 1, ends: 1, ..NONE };
    holds("three gateways", Search { gateways: 3, budget, ..FULL }, &[AFTER_NOTICE]);
}

/// More than ZooKeeper does to anybody: it keeps the order within a session.
#[test]
fn one_leads_at_a_time_though_requests_overtake_each_other() {
    let budget = Budget { late: 2, breaks: 1, ends: 1, ..NONE };
    holds("requests out of order", Search { in_order: false, budget, ..FULL }, &[AFTER_END]);
}

#[test]
fn a_deadline_at_the_end_of_the_session_is_found() {
    fails("margin", Search { told_ns: told_for(T), budget: ENDS, ..FULL }, &[Wrong::TwoLead]);
}

#[test]
fn a_deadline_after_which_word_comes_too_late_is_found() {
    let model = Search { told_ns: told_for(T - T / 5), budget: ENDS, ..FULL };
    fails("margin for word of the session", model, TWO_LEAD);
}

/// The second line of defence: a session of which word has come in time is there, so what the store checks is so.
#[test]
fn one_leads_at_a_time_though_the_store_checks_nothing() {
    let budget = Budget { late: 1, silences: 1, ..ENDS };
    let model = Search { place_check: false, version_check: false, budget, ..FULL };
    holds("nothing checked by the store", model, &[AFTER_END]);
    let model = Search { remakes: true, budget, ..FULL };
    holds("sessions made anew without a word", model, &[AFTER_END]);
}

#[test]
fn renewals_that_count_from_their_answer_are_found() {
    let budget = Budget { late: 2, ..ENDS };
    let model = Search { counts_from_sending: false, horizon: FULL.horizon - T / 2, budget, ..FULL };
    fails("counting from the sending", model, &[Wrong::TwoLead]);
}

#[test]
fn a_hand_over_that_waits_for_no_send_is_found() {
    let budget = Budget { hand_overs: 1, ..NONE };
    fails("waiting for sends", Search { waits_for_sends: false, budget, ..FULL }, &[Wrong::TwoLead]);
}

/// A gateway that was silent for nearly T takes an epoch and leads; then its session ends, since word of it came too late.
#[test]
fn a_store_that_tells_itself_of_sessions_later_than_assumed_is_found() {
    fails("word of a session in time", Search { word_after: T / 3, budget: ENDS, ..FULL }, TWO_LEAD);
}

#[test]
fn receivers_without_epoch_rule_are_found() {
    let budget = Budget { packets: 2, ..ENDS };
    fails("receivers' epoch rule", Search { receivers_fence: false, budget, ..FULL }, &[Wrong::OldPacketTaken]);
}

/// What a gateway is to be told T is for its deadlines to be so long.
const fn told_for(span_ns: u64) -> u64 {
    (span_ns + FULL.timing.margin_ns) / 2 * 3
}

/// Also that the second one to open has the lower epoch, since its answer came later.
const TWO_LEAD: &[Wrong] = &[Wrong::TwoLead, Wrong::EpochWentBack];
const NONE: Budget = FULL.budget;
const ENDS: Budget = Budget { ends: 1, ..NONE };
