//! A pair is upgraded gateway by gateway, so for a time its gateways are of different versions.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{env, io::Read as _, net::TcpStream};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::GatewayOptions,
    pair::{RecordingConsumer, log_entries, messages_of},
    process::{self, TEST_TIMEOUT, wait_until},
    testbed::faults::PREVIOUS_PROGRAM,
};

use crate::rejoin::RejoinScenario;

/// State copies, hand-overs and takeovers after a kill, each from the previous version to this one and back. Every message
/// reaches the consumer once. Versions that speak different versions of the pair link cannot copy or hand over: see
/// [`upgrade_without_link`].
#[test]
#[ignore = "tests/mixed_versions runs it, with a program of another version"]
fn a_pair_is_upgraded_and_downgraded_while_it_publishes() {
    let previous = env::var_os(PREVIOUS_PROGRAM).expect("MDGW_PREVIOUS_PROGRAM: tests/mixed_versions sets it");
    let mut pair = ElectedPair::new(GatewayOptions::itch());
    for node in [1, 2] {
        pair.gateways.set_program(node, previous.as_ref());
    }
    let consumer = |pair: &ElectedPair, joined| {
        RecordingConsumer::open_with_both_services([1, 2].map(|node| pair.gateways.fixture(node)), joined)
    };
    let mut scenario = RejoinScenario::with_pair(pair, &[1, 2], "250", consumer);
    let leader = scenario.pair.leader();
    let other = 3 - leader;
    scenario.pair.wait_until_eligible(other);
    scenario.receive(3_000);

    // The standby is upgraded.
    let link_version_before = link_version(&scenario, other);
    let _stderr = scenario.pair.gateways.stop(other);
    scenario.pair.gateways.set_program(other, process::program());
    scenario.pair.start(other);
    if link_version(&scenario, other) == link_version_before {
        upgrade_with_link(&mut scenario, leader, other);
    } else {
        upgrade_without_link(&mut scenario, leader, other);
    }

    let (pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    for node in [1, 2] {
        let logged = messages_of(&log_entries(pair.gateways.fixture(node)));
        assert!(logged.iter().all(|(name, records)| expected[name] == *records), "node {node} published other records");
    }
}

/// The upgraded standby copies the state of the previous version.
fn upgrade_with_link(scenario: &mut RejoinScenario, leader: u8, other: u8) {
    scenario.pair.wait_until_eligible(other);
    let copied = "starting with a copy of the peer's state";
    let _line = scenario.pair.gateways.running(other).unwrap().wait_for_stderr(copied);
    hand_over(scenario, leader, other);
    hand_over(scenario, other, leader);
    scenario.pair.gateways.kill(leader);
    takes_over(scenario, other);

    // The gateway that was killed stays at the previous version; it copies the state of this one.
    restart_by_copy(scenario, leader);
    scenario.pair.gateways.kill(other);
    takes_over(scenario, leader);
    restart_by_copy(scenario, other);
}

/// The two versions refuse each other's link, and say so. The upgraded standby has the venue replay the session instead of
/// a copy, and no hand-over is possible. It takes over when the leader ends, after a kill and after an orderly stop. With
/// both gateways at one version the link works again.
fn upgrade_without_link(scenario: &mut RejoinScenario, leader: u8, other: u8) {
    let refused = scenario.pair.gateways.running(other).unwrap().wait_for_stderr("pair-link-refused");
    assert!(refused.contains("of the pair link, and this gateway speaks version"), "{refused}");
    wait_until_live(scenario, other);
    let answer = scenario.pair.gateways.ha(leader, &["hand-over"]);
    assert_ne!(answer.code, Some(0), "a leader without a link hands over to nobody");
    scenario.pair.gateways.kill(leader);
    takes_over(scenario, other);

    // The gateway that was killed stays at the previous version, without a link.
    scenario.pair.start(leader);
    wait_until_live(scenario, leader);
    let _stderr = scenario.pair.gateways.stop(other);
    takes_over(scenario, leader);

    // The upgrade is finished: the other gateway was upgraded before, and now this one is.
    scenario.pair.start(other);
    wait_until_live(scenario, other);
    let _stderr = scenario.pair.gateways.stop(leader);
    takes_over(scenario, other);
    scenario.pair.gateways.set_program(leader, process::program());
    restart_by_copy(scenario, leader);
    hand_over(scenario, other, leader);
}

/// Without a link a gateway is eligible before the venue's answers have filled its log: ops/guide/upgrade.md asks for this check.
fn wait_until_live(scenario: &RejoinScenario, node: u8) {
    scenario.pair.wait_until_eligible(node);
    wait_until("the channel is live, or its day has ended", || {
        let groups = scenario.pair.gateways.status(node).unwrap_or_default();
        ["live", "ended"].iter().any(|state| groups[0]["details"]["channels"][0]["state"] == **state)
    });
}

/// Version of the pair link that a running gateway speaks: it follows the magic of the gateway's hello.
fn link_version(scenario: &RejoinScenario, node: u8) -> u16 {
    let mut hello = [0; 10];
    wait_until("the gateway listens for its peer", || {
        let Ok(mut socket) = TcpStream::connect(scenario.pair.link_address(node)) else { return false };
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        socket.read_exact(&mut hello).is_ok()
    });
    u16::from_le_bytes([hello[8], hello[9]])
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
