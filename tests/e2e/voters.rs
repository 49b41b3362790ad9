//! A voter of a quorum that stops answering shows at both gateways before its vote is needed.

use mdgw_tests::{
    gateway_fixture::text,
    process::wait_until,
    testbed::{
        Testbed,
        plan::{ElectionBackend, Plan},
    },
};

/// Status and text of each voter's item.
fn examined(testbed: &Testbed, node: u8) -> Vec<(String, String)> {
    let report = testbed.run_on(node, &["doctor", text(&testbed.config_path(node)), "--json"]).json();
    let items = report["items"].as_array().expect("a list").iter().filter(|item| item["name"] == "voter");
    let field = |item: &serde_json::Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    items.map(|item| (field(item, "status"), field(item, "read"))).collect()
}

#[test]
fn a_witness_that_does_not_answer_raises_the_alarm_at_both_gateways() {
    let test = "a_witness_that_does_not_answer_raises_the_alarm_at_both_gateways";
    let Some(mut testbed) = Testbed::start(test, Plan::relaxed(ElectionBackend::Quorum)) else { return };
    testbed.wait_until_expectation_ready();
    let status = |testbed: &Testbed, node| {
        testbed.run_on(node, &["ha", "status", "--socket", text(&testbed.control_socket(node))]).expect_code(0).stdout
    };
    for node in testbed.nodes() {
        let voters = examined(&testbed, node);
        assert!(voters.len() == 2 && voters.iter().all(|(status, _)| status == "ok"), "{voters:?}");
    }
    testbed.nodes().for_each(|node| assert!(!status(&testbed, node).contains("voter"), "{}", status(&testbed, node)));
    testbed.kill_witnesses();
    for node in testbed.nodes() {
        wait_until("the alarm is raised", || testbed.stderr_of(node).contains("alarm=\"voter-silent\""));
        let shown = status(&testbed, node);
        assert!(shown.contains("voter witness") && shown.contains("last answered"), "{shown}");
        let voters = examined(&testbed, node);
        let silent: Vec<_> = voters.iter().filter(|(status, _)| status == "warn").collect();
        assert!(silent.len() == 1 && silent[0].1.contains("last answered the gateway that runs here"), "{voters:?}");
    }
    testbed.restart_witnesses();
    for node in testbed.nodes() {
        wait_until("the alarm ends", || testbed.stderr_of(node).contains("voter answers again"));
        wait_until("the status has no silent voter", || !status(&testbed, node).contains("voter"));
    }
    // Without a gateway the voters themselves are asked. A killed process takes a moment to end.
    let _killed_at = testbed.kill(2);
    wait_until("both voters answer the doctor", || {
        let voters = examined(&testbed, 2);
        voters.len() == 2 && voters.iter().all(|(status, read)| status == "ok" && read.contains("shared key"))
    });
}

#[test]
fn restarts_of_the_standby_outrank_no_leader() {
    let test = "restarts_of_the_standby_outrank_no_leader";
    let Some(mut testbed) = Testbed::start(test, Plan::relaxed(ElectionBackend::Quorum)) else { return };
    testbed.wait_until_expectation_ready();
    // A higher node number makes the higher one of two epochs with the same count.
    if testbed.leader() == 2 {
        let _ = testbed.hand_over(2);
        wait_until("gateway 1 leads", || testbed.role(1) == "leader");
    }
    testbed.start_session();
    testbed.wait_for_more_deliveries(500);
    for is_killed in [true, false] {
        let _at = if is_killed { testbed.kill(2) } else { testbed.end(2) };
        testbed.start_gateway(2);
        testbed.wait_until_eligible(2);
        // About a second: more than the leader waits before it counts a reported epoch.
        testbed.wait_for_more_deliveries(1_500);
    }
    let log = testbed.stderr_of(1);
    assert!(!log.contains("outranked"), "{log}");
    let _result = testbed.finish();
}
