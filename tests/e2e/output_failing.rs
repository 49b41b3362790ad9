//! An output line that the kernel refuses to send, or for which it has no room: an alarm, and the stream goes on where it stopped.
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
        let _ = gateway.wait_for_stderr("no output line refuses packets any more");
        day.play_second_half(&fixture);
        let tail = tail.end().expect_code(0);
        assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
        assert!(fs::read(out).unwrap() == day.expected, "the subscriber has all of the day");
        let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    });
}

#[test]
fn a_line_whose_queue_stays_full_raises_the_alarm_while_the_other_line_goes_on() {
    let test = "an output line with a full queue";
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return skip(test, &format!("no network namespaces here ({error})")),
    };
    namespace.run(|| {
        if !run("ip", "link add full0 type veth peer name full1") {
            return skip(test, "no veth interfaces here");
        }
        for arguments in ["link set full0 up", "link set full1 up", "addr add 10.77.0.1/24 dev full0"] {
            assert!(run("ip", arguments), "ip {arguments}");
        }
        // After the burst a byte a second leaves: the socket's packets wait in the queue until its send buffer is full.
        if !run("tc", "qdisc add dev full0 root tbf rate 8bit burst 4kb limit 8mb") {
            return skip(test, "no token bucket filter here");
        }
        let fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, 20_000);
        let second_line = "\n[[output.line]]\naddress = \"239.255.99.1:31999\"\ninterface = \"full0\"\n";
        let gateway = day.gateway(&fixture, &GatewayOptions { output_line: second_line, ..GatewayOptions::itch() });
        let (tail, out) = day.tail(&fixture, "received.dbn", &[]);
        day.play_first_half(&fixture);
        let line = gateway.wait_for_stderr("alarm=\"output-failing\"");
        assert!(line.contains("channel=\"one\"") && line.contains("lines=\"2\""), "{line}");
        assert!(run("tc", "qdisc del dev full0 root"));
        let _ = gateway.wait_for_stderr("no output line refuses packets any more");
        day.play_second_half(&fixture);
        let tail = tail.end().expect_code(0);
        assert!(fs::read(out).unwrap() == day.expected, "the other line has all of the day: {}", tail.stderr);
        let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    });
}

fn nft(rules: &str) {
    let status = Command::new("nft").arg(rules).status().expect("nft runs");
    assert!(status.success(), "nft {rules}");
}

fn run(program: &str, arguments: &str) -> bool {
    Command::new(program).args(arguments.split_whitespace()).status().is_ok_and(|status| status.success())
}
