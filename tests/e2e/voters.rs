//! A voter of a quorum that stops answering shows at both gateways before its vote is needed.

use mdgw_tests::{
    gateway_fixture::text,
    process::wait_until,
    testbed::{
        Testbed,
        plan::{ElectionBackend, Plan},
    },
};

#[test]
fn a_witness_that_does_not_answer_raises_the_alarm_at_both_gateways() {
    let test = "a_witness_that_does_not_answer_raises_the_alarm_at_both_gateways";
    let Some(mut testbed) = Testbed::start(test, Plan::relaxed(ElectionBackend::Quorum)) else { return };
    testbed.wait_until_expectation_ready();
    let status = |testbed: &Testbed, node| {
        testbed.run_on(node, &["ha", "status", "--socket", text(&testbed.control_socket(node))]).expect_code(0).stdout
    };
    testbed.nodes().for_each(|node| assert!(!status(&testbed, node).contains("voter"), "{}", status(&testbed, node)));
    testbed.kill_witnesses();
    for node in testbed.nodes() {
        wait_until("the alarm is raised", || testbed.stderr_of(node).contains("alarm=\"voter-silent\""));
        let shown = status(&testbed, node);
        assert!(shown.contains("voter witness") && shown.contains("last answered"), "{shown}");
    }
    testbed.restart_witnesses();
    for node in testbed.nodes() {
        wait_until("the alarm ends", || testbed.stderr_of(node).contains("voter answers again"));
        wait_until("the status has no silent voter", || !status(&testbed, node).contains("voter"));
    }
}
