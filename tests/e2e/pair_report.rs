//! The logs and audits of both gateways of a pair become one report, of a day and of a week.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::PathBuf, thread, time::Duration};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayOptions, text},
    process::{self, wait_until},
};
use serde_json::Value;

#[test]
fn the_logs_of_both_gateways_are_one_day_and_one_week_with_their_takeovers() {
    let mut pair = ElectedPair::new(GatewayOptions { latency: "interval_ms = 100", ..GatewayOptions::itch() });
    pair.start(1);
    pair.start(2);
    let leader = pair.leader();
    pair.wait_until_eligible(3 - leader);
    let played = pair.gateways.fixture(1).sim(&["--messages", "20000", "--rate", "20000"]).end().expect_code(0);
    wait_until("the leader hands over", || pair.gateways.ha(leader, &["hand-over"]).code == Some(0));
    pair.wait_until_leads(3 - leader);
    let files = [1, 2].map(|node| {
        let fixture = pair.gateways.fixture(node);
        (fixture.path("latency"), fixture.path("audit.jsonl"))
    });
    wait_until("the cost of the hand-over is known", || {
        let audit = fs::read_to_string(&files[usize::from(2 - leader)].1).unwrap_or_default();
        audit.contains("took_over")
    });
    let [(first, first_audit), (second, second_audit)] = &files;
    let counted_alone = |log: &PathBuf| {
        // A log that is being written may end within a line.
        let report = process::run(["report", text(log), "--json"]).stdout;
        let report: Value = serde_json::from_str(&report).unwrap_or_default();
        report["channels"][0]["counted"]["messages"].as_u64().unwrap_or(0)
    };
    // An interval counts as a whole. On a busy host one may last for seconds: where its messages came before the end of the other log and
    // most of its time behind, they would count for both. So each log has them before a gateway stops.
    let mut before = [0; 2];
    wait_until("both logs have all messages", || {
        thread::sleep(Duration::from_millis(500));
        let counted = [first, second].map(counted_alone);
        let is_all = counted.iter().all(|messages| *messages > 19_000) && counted == before;
        before = counted;
        is_all
    });
    let _summaries = [1, 2].map(|node| pair.gateways.stop(node));

    let both = ["report", text(first), text(second), "--audit", text(first_audit), "--audit", text(second_audit)];
    let with = |options: &[&str]| process::run(both.iter().chain(options)).expect_code(0);
    let day = with(&["--json"]).json();
    let [of_first, of_second] = [counted_alone(first), counted_alone(second)];
    // A gateway that waits for a core may have lost messages that the other one has.
    let messages = of_first.max(of_second);
    assert!(messages > 19_000, "{messages} {played:?}");
    assert_eq!(
        day["channels"][0]["counted"]["messages"], messages,
        "each message once: {of_first}, {of_second}, {day}"
    );
    let takeovers = day["takeovers"].as_array().unwrap();
    let nodes: Vec<_> = takeovers.iter().map(|takeover| takeover["node"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [u64::from(leader), u64::from(3 - leader)], "{takeovers:?}");
    let again = with(&["--json", "--audit", text(first_audit)]).json();
    assert_eq!(again["takeovers"], day["takeovers"], "a file that is named twice counts once");
    let page = pair.gateways.fixture(1).path("day.html");
    let _ = with(&["--html", text(&page)]);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("takeover"), "marked on the timeline");

    let week = with(&["--week", "--json"]).json();
    let all = &week["channels"][0]["all"];
    assert_eq!(all["counted"]["messages"], messages, "{week}");
    assert_eq!((&all["takeovers"], week["takeovers"].as_array().unwrap().len()), (&2.into(), 2));
    // What a gateway leaves that is killed, or finds a full disk, before its log has a header.
    let empty = pair.gateways.fixture(1).path("empty.hlog");
    fs::write(&empty, "").unwrap();
    let skipped = process::run(["report", text(first), text(&empty), "--week", "--json"]).expect_code(2);
    let stderr = &skipped.stderr;
    assert!(stderr.contains("empty.hlog: no time in it") && stderr.contains("report: 1 log skipped"), "{stderr}");
    assert_eq!(skipped.json()["channels"][0]["all"]["counted"]["messages"], of_first);
    // A log of a host whose clock was wrong hides no other one.
    let future = pair.gateways.fixture(1).path("future.hlog");
    let newest = fs::read_dir(first).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let log = fs::read_to_string(newest).unwrap();
    let (_, base) = log.split_once("BaseTime: ").unwrap();
    let (seconds, _) = base.split_once('.').unwrap();
    fs::write(&future, log.replacen(&format!("BaseTime: {seconds}."), "BaseTime: 2079388800.", 1)).unwrap();
    let week = |more: &[&str]| {
        process::run([["report", text(first), text(&future), "--week", "--json"].as_slice(), more].concat())
    };
    let skipped = week(&[]).expect_code(2);
    assert!(skipped.stderr.contains("future.hlog: it begins on 2035-11-23, after today"), "{}", skipped.stderr);
    assert_eq!(skipped.json()["channels"][0]["all"]["counted"]["messages"], of_first);
    let later = week(&["--until", "2035-11-24"]).expect_code(0).json();
    assert_eq!(later["channels"][0]["days"].as_array().unwrap().len(), 1, "{later}");
    let table = with(&["--week"]).stdout;
    assert!(table.contains("days in UTC; latencies are wire to wire") && table.contains("  all "), "{table}");
}
