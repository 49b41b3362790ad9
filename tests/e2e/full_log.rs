//! No space for the publication log: publishing goes on, and somebody is told.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use mdgw_tests::{
    day::Day,
    mounted::Mounted,
    process::{Ended, Signal},
    site::{Site, Wanted},
};

#[test]
fn publishing_goes_on_when_the_log_has_no_space() {
    // Room for the segment that is written, not for the next one.
    let Some(gateway) = run_with_log_of("1600k") else { return };
    assert!(
        gateway.stderr.contains("alarm=\"log-behind\"") && gateway.stderr.contains("no space"),
        "{}",
        gateway.stderr
    );
    assert!(gateway.stdout.contains("published, but missing in the log"), "{}", gateway.stdout);
}

#[test]
fn a_log_with_space_raises_no_such_alarm() {
    let Some(gateway) = run_with_log_of("64m") else { return };
    assert!(!gateway.stderr.contains("log-behind"), "{}", gateway.stderr);
    assert!(!gateway.stdout.contains("missing in the log"), "{}", gateway.stdout);
}

/// A day through a gateway whose log lies in a file system of that size, heard whole by a subscriber. `None`, with a word
/// on standard error, where this process may not mount one.
fn run_with_log_of(size: &str) -> Option<Ended> {
    let site = Site::new();
    let _mounted = Mounted::new("a full file system under the log", site.path("log"), size)?;
    let day = Day::of(&site, 60_000);
    let wanted = Wanted { segment_bytes: 1 << 20, retention_bytes: 16 << 20, ..Wanted::itch() };
    let gateway = day.gateway(&site, &wanted);
    let (tail, out) = day.tail(&site, "heard.dbn", &[]);
    day.play_morning(&site);
    day.play_afternoon(&site);
    let tail = tail.end().with_code(0);
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    assert!(fs::read(out).unwrap() == day.expected, "the subscriber has all of the day");
    Some(gateway.end_by(Signal::Terminate).with_code(0))
}
