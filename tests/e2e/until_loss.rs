//! `mdgw replay --until-loss` against a running gateway: the losses and latencies of each rate.
#![allow(clippy::unwrap_used, reason = "tests")]

use mdgw_tests::{
    feeds::{self, DESTINATIONS, MIDNIGHT_NS, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, Signal},
};

#[test]
fn gateway_gaps_end_the_rate_search_and_latency_is_reported() {
    let fixture = GatewayFixture::new();
    let day = fixture.path("day.pcap");
    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let (gateway, socket) = fixture.controlled_gateway(&wanted, &["--date", "2019-01-30"]);
    // Some seconds of packets, then one packet that is missing on both lines.
    let mut packets = feeds::itch_packets(feeds::itch_day(60_000, 4), SESSION, MIDNIGHT_NS);
    let _ = packets.remove(PACKETS_BEFORE_GAP);
    feeds::write_capture(&day, DESTINATIONS[0], &packets);
    let lines = fixture.lines.map(|line| line.to_string()).join(",");
    let search = ["replay", text(&day), "--lines", &lines, "--interface", "lo", "--until-loss", "--json"];
    // One step, longer than the packets take, so that a busy machine does not change the result.
    let pace = ["--rate", "200", "--step", "1m", "--gateway", text(&socket)];
    let found = process::run(search.iter().chain(&pace)).expect_code(1).json();
    assert_eq!(found["stopped_by"], "loss", "{found}");
    assert_eq!(found["highest_rate_without_loss"], serde_json::Value::Null);
    let [step] = found["steps"].as_array().unwrap().as_slice() else { panic!("{found}") };
    let number = |name: &str| step[name].as_u64().unwrap();
    // Each packet is sent on both lines.
    assert!(number("sent") >= 2 * PACKETS_BEFORE_GAP as u64 && number("sent") < 2 * packets.len() as u64, "{step}");
    assert_eq!(number("dropped"), 0, "{step}");
    assert!(number("gap_messages") > 0, "{step}");
    let [p50_ns, p99_ns, max_ns] =
        ["p50_ns", "p99_ns", "max_ns"].map(|name| step["gateway_latency"][name].as_u64().unwrap());
    assert!(0 < p50_ns && p50_ns <= p99_ns && p99_ns <= max_ns, "{step}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Packets before the one that is missing: three seconds.
const PACKETS_BEFORE_GAP: usize = 600;
