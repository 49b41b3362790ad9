//! An output line that the kernel refuses to send: an alarm, and the stream goes on where it stopped.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, process::Command};

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions},
    namespaces::Namespace,
    process::Signal,
    skip::skip,
    trading_day::TradingDay,
};

#[test]
fn an_output_that_cannot_be_sent_raises_the_alarm_and_goes_on_where_it_stopped() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return skip("an output that cannot be sent", &format!("no network namespaces here ({error})")),
    };
    namespace.run(|| {
        let fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, 20_000);
        let gateway = day.gateway(&fixture, &GatewayOptions::itch());
        let (tail, out) = day.tail(&fixture, "received.dbn", &[]);
        day.play_first_half(&fixture);
        // A packet that a filter of the host's own output drops is an error of the send.
        let output = fixture.output.ip();
        nft(&format!(
            "add table ip output_down; add chain ip output_down sent {{ type filter hook output priority 0; }}; \
             add rule ip output_down sent ip daddr {output} drop"
        ));
        let line = gateway.wait_for_stderr("alarm=\"output-failing\"");
        assert!(line.contains("channel=\"one\""), "{line}");
        nft("delete table ip output_down");
        let _ = gateway.wait_for_stderr("packets are sent again");
        day.play_second_half(&fixture);
        let tail = tail.end().expect_code(0);
        assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
        assert!(fs::read(out).unwrap() == day.expected, "the subscriber has all of the day");
        let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    });
}

fn nft(rules: &str) {
    let status = Command::new("nft").arg(rules).status().expect("nft runs");
    assert!(status.success(), "nft {rules}");
}
