//! `mdgw demo`, as a new user runs it after cloning the repository.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, ffi::OsString, fs, time::Duration};

use mdgw_tests::process::{Signal, run, start, start_in, wait_until};

#[test]
fn demo_in_an_empty_directory_loses_nothing_and_writes_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let ended = start_in(folder.path(), ["demo", "--json", "--messages", "30000"]).end().expect_code(0);
    let summary = ended.json();
    assert_eq!(summary["ok"], true, "{summary}");
    assert_eq!(summary["records_received"], summary["records_expected"], "{summary}");
    assert!(summary["records_received"].as_u64().unwrap() > 30_000, "{summary}");
    assert!(summary["wire_to_wire_ns"]["p50"].as_u64().unwrap() > 0, "{summary}");
    let page = fs::read_to_string(folder.path().join(summary["report"].as_str().unwrap())).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "{}", &page[..200.min(page.len())]);
    assert!(!page.contains("src=\"http") && !page.contains("<link"), "the page needs no other files");
}

#[test]
fn heavy_loss_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--json", "--messages", "30000", "--loss", "0.1", "--seed", "7", "--rate", "5000"];
    let summary = start_in(folder.path(), arguments).end().expect_code(0).json();
    assert_eq!(summary["ok"], true, "{summary}");
    assert!(summary["requests_answered"].as_u64().unwrap() > 0, "both lines lost something: {summary}");
}

#[test]
fn demo_pair_survives_hand_over_stop_and_kill_without_loss_or_duplicates() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--pair", "--json", "--messages", "60000", "--rate", "600", "--tenure-s", "0.5"];
    let arguments = arguments.iter().chain(&["--profile", "calm"]);
    let ended = start_in(folder.path(), arguments).end().expect_code(0);
    let summary = ended.json();
    let changes = summary["faults"].as_array().unwrap();
    let old_leader_states: Vec<_> = changes.iter().map(|change| change["old_leader"].as_str().unwrap()).collect();
    assert!(
        old_leader_states.len() >= 3 && old_leader_states[..3] == ["handed over", "stopped", "killed"],
        "{summary}"
    );
    assert!(changes.is_sorted_by_key(|change| change["epoch"].as_u64()), "{summary}");
    // A scheduling stall may cause further changes of leadership.
    assert!(summary["verdict"]["epochs"].as_array().unwrap().len() > changes.len(), "{summary}");
    assert_eq!(
        (&summary["lost_messages"], &summary["records_received"]),
        (&0.into(), &summary["records_expected"]),
        "{summary}"
    );
    // `mdgw ha verify` can check the published output again.
    let capture = folder.path().join("mdgw-demo/published.pcap");
    let again = run(["ha", "verify", capture.to_str().unwrap()]).expect_code(0);
    assert!(again.stdout.contains("single publisher           passed"), "{}", again.stdout);
}

#[test]
fn demo_table_reports_that_nothing_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let ended = start_in(folder.path(), ["demo", "--messages", "20000"]).end().expect_code(0);
    for row in ["passed: no loss", "wire to wire", "p99.9", "line A", "line B", "report.html"] {
        assert!(ended.stdout.contains(row), "no {row:?} in\n{}", ended.stdout);
    }
}

#[test]
fn ctrl_c_stops_the_demo_and_removes_its_files() {
    assert_clean_stop_on(Signal::Interrupt);
}

#[test]
fn a_hang_up_stops_the_demo_and_removes_its_files() {
    assert_clean_stop_on(Signal::HangUp);
}

fn assert_clean_stop_on(signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let shared_before = names("/dev/shm");
    let directory = folder.path().join("demo");
    let demo = {
        // TMPDIR sets the scratch directory of the demo.
        let arguments = ["demo", "--json", "--messages", "5000000", "--directory", directory.to_str().unwrap()];
        mdgw_tests::process::start_with(folder.path(), &[("TMPDIR", scratch.path())], arguments)
    };
    // The demo first creates its report directory. Its scratch directory contains a log once the gateway runs.
    wait_until("the demonstration's log", || {
        fs::read_dir(scratch.path()).unwrap().filter_map(Result::ok).any(|entry| entry.path().join("log/1").is_dir())
    });
    demo.signal(signal);
    let ended = demo.wait_for_exit_within(Duration::from_secs(20)).expect_code(1);
    let summary = ended.json();
    assert_eq!((&summary["interrupted"], &summary["ok"]), (&true.into(), &false.into()), "{summary}");
    assert_eq!(names(scratch.path()), BTreeSet::new());
    // Other tests make and remove directories there meanwhile.
    let appeared: BTreeSet<_> = names("/dev/shm").difference(&shared_before).cloned().collect();
    wait_until("nothing of the demonstration is left in memory", || names("/dev/shm").is_disjoint(&appeared));
}

#[test]
fn invalid_demo_arguments_are_named() {
    for (arguments, name) in [
        (["demo", "--loss", "1.5"], "--loss"),
        (["demo", "--rate", "0"], "--rate"),
        (["demo", "--io", "dpdk"], "--io"),
        (["demo", "--capture", "/nonexistent.pcap"], "/nonexistent.pcap"),
        (["demo", "--messages", "many"], "--messages"),
    ] {
        let ended = start(arguments).end().expect_code(2);
        assert!(ended.stderr.contains(name) && ended.stdout.is_empty(), "{arguments:?}: {}", ended.stderr);
    }
}

fn names(directory: impl AsRef<std::path::Path>) -> BTreeSet<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}
