//! No space for the publication log or the latency log: publishing continues, and an alarm is raised.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, ExitedProcess, Signal},
    tmpfs::TmpfsMount,
    trading_day::TradingDay,
};

#[test]
fn publishing_continues_when_the_log_disk_is_full() {
    // Space for the current segment, not for the next one.
    let Some(gateway) = run_with_log_size("1600k") else { return };
    assert!(
        gateway.stderr.contains("alarm=\"log-behind\"") && gateway.stderr.contains("no space"),
        "{}",
        gateway.stderr
    );
    assert!(gateway.stdout.contains("published, but not in the publication log"), "{}", gateway.stdout);
}

/// The log goes on, and reaches back less far than it is configured to.
#[test]
fn a_log_that_loses_its_oldest_segments_for_want_of_space_raises_the_alarm() {
    let Some(gateway) = run_with_log_size("4m") else { return };
    let expected = "no space for a new log segment: deleted the oldest, which retention would have kept";
    assert!(gateway.stderr.contains("alarm=\"log-behind\"") && gateway.stderr.contains(expected), "{}", gateway.stderr);
    assert!(!gateway.stdout.contains("not in the publication log"), "{}", gateway.stdout);
}

#[test]
fn no_log_behind_alarm_while_the_log_has_space() {
    let Some(gateway) = run_with_log_size("64m") else { return };
    assert!(!gateway.stderr.contains("log-behind"), "{}", gateway.stderr);
    assert!(!gateway.stdout.contains("not in the publication log"), "{}", gateway.stdout);
}

#[test]
fn a_full_disk_ends_the_latency_log_and_a_new_one_begins_when_there_is_room() {
    let fixture = GatewayFixture::new();
    let what = "a full file system under the latency log";
    let Some(mounted) = TmpfsMount::new(what, fixture.path("latency"), "256k") else { return };
    let options = GatewayOptions { latency: "interval_ms = 100\n", ..GatewayOptions::itch() };
    let gateway = fixture.gateway(&options, &[]);
    mounted.fill();
    let _ = gateway.wait_for_stderr("alarm=\"latency-log-failing\"");
    mounted.remove_filler();
    let _ = gateway.wait_for_stderr("the latency log is writable again");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let logs = fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().path());
    let logs: Vec<String> = logs.map(|log| fs::read_to_string(log).unwrap()).collect();
    assert!(logs.len() >= 2, "{logs:?}");
    for log in logs {
        assert!(log.starts_with("#[Histogram log format version 1.3]\n") && log.ends_with('\n'), "{log}");
    }

    // A gateway that is started again publishes too. It leaves no empty file that a report would stumble over.
    mounted.fill();
    let before = fs::read_dir(mounted.path()).unwrap().count();
    let config = fixture.config(&options);
    let audit = mounted.path().join("audit.jsonl");
    fs::write(&audit, "").unwrap();
    let audit = format!("[gateway]\naudit_file = \"{}\"\n", text(&audit));
    fs::write(&config, fs::read_to_string(&config).unwrap().replacen("[gateway]\n", &audit, 1)).unwrap();
    let checked = process::run(["check", text(&config)]).expect_code(0);
    for owner in ["latency logs", "audit"] {
        let warning = format!("warning: directory {} of the {owner}: cannot write", mounted.path().display());
        assert!(checked.stdout.contains(&warning), "{warning}: {}", checked.stdout);
    }
    let gateway = process::start(["run", text(&config)]);
    let _ = gateway.wait_for_stderr("alarm=\"latency-log-failing\"");
    let _ = gateway.wait_for_stderr("gateway running");
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), before + 1, "the audit file alone");
    mounted.remove_filler();
    let _ = gateway.wait_for_stderr("the latency log is writable again");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Plays a day through a gateway whose log is on a file system of that size. Asserts that a subscriber receives the whole
/// day. `None`, with a message on standard error, without the permission to mount: the test is then skipped.
fn run_with_log_size(size: &str) -> Option<ExitedProcess> {
    let fixture = GatewayFixture::new();
    let _mounted = TmpfsMount::new("a full file system under the log", fixture.path("log"), size)?;
    let day = TradingDay::of(&fixture, 60_000);
    let wanted = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 16 << 20, ..GatewayOptions::itch() };
    let gateway = day.gateway(&fixture, &wanted);
    let (tail, out) = day.tail(&fixture, "received.dbn", &[]);
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let tail = tail.end().expect_code(0);
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    assert!(fs::read(out).unwrap() == day.expected, "the subscriber has all of the day");
    Some(gateway.stop_with(Signal::Terminate).expect_code(0))
}
