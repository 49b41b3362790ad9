//! A pair is upgraded gateway by gateway, so for a time its gateways are of different versions.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{env, path::PathBuf};

use mdgw_tests::{
    captures::print_to_stderr,
    elected_pair::ElectedPair,
    gateway_fixture::GatewayOptions,
    pair::{log_entries, messages_of},
    process::{self, wait_until},
};

use crate::rejoin::RejoinScenario;

/// A built `mdgw` of another version: `MDGW_PREVIOUS_PROGRAM`, which tests/mixed_versions sets. If there is none, prints
/// that `test` is skipped.
fn previous_program(test: &str) -> Option<PathBuf> {
    let program = env::var_os("MDGW_PREVIOUS_PROGRAM").map(PathBuf::from);
    if program.is_none() {
        print_to_stderr(&format!("SKIPPED: {test}: run tests/mixed_versions COMMIT"));
    }
    program
}

/// State copies, hand-overs and takeovers after a kill, each from the previous version to this one and back. Every message
/// reaches the consumer once.
#[test]
fn a_pair_is_upgraded_and_downgraded_while_it_publishes() {
    let Some(previous) = previous_program("a_pair_is_upgraded_and_downgraded_while_it_publishes") else { return };
    let mut pair = ElectedPair::new(GatewayOptions::itch());
    for node in [1, 2] {
        pair.gateways.set_program(node, &previous);
    }
    let mut scenario = RejoinScenario::with_pair(pair, &[1, 2], "400");
    let leader = scenario.pair.leader();
    let other = 3 - leader;
    scenario.pair.wait_until_eligible(other);
    scenario.receive(3_000);

    // The standby is upgraded; it copies the state of the previous version.
    let _stderr = scenario.pair.gateways.stop(other);
    scenario.pair.gateways.set_program(other, process::program());
    restart_by_copy(&mut scenario, other);
    let copied = "starting with a copy of the peer's state";
    let _line = scenario.pair.gateways.running(other).unwrap().wait_for_stderr(copied);
    hand_over(&mut scenario, leader, other);
    hand_over(&mut scenario, other, leader);
    scenario.pair.gateways.kill(leader);
    takes_over(&mut scenario, other);

    // The gateway that was killed stays at the previous version; it copies the state of this one.
    restart_by_copy(&mut scenario, leader);
    scenario.pair.gateways.kill(other);
    takes_over(&mut scenario, leader);
    restart_by_copy(&mut scenario, other);

    let (pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    for node in [1, 2] {
        let logged = messages_of(&log_entries(pair.gateways.fixture(node)));
        assert!(logged.iter().all(|(name, records)| expected[name] == *records), "node {node} published other records");
    }
}

/// It is eligible once it has its peer's state.
fn restart_by_copy(scenario: &mut RejoinScenario, node: u8) {
    scenario.pair.start(node);
    scenario.pair.wait_until_eligible(node);
}

fn hand_over(scenario: &mut RejoinScenario, from: u8, to: u8) {
    scenario.pair.wait_until_eligible(to);
    // The leader refuses until it knows that the other one is eligible.
    wait_until("the leader hands over", || scenario.pair.gateways.ha(from, &["hand-over"]).code == Some(0));
    takes_over(scenario, to);
}

/// Waits until that gateway leads and has published for a while.
fn takes_over(scenario: &mut RejoinScenario, node: u8) {
    scenario.pair.wait_until_leads(node);
    let delivered = scenario.delivered_count();
    scenario.receive(delivered + 1_000);
}
