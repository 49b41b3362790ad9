//! `mdgw demo` as somebody sees it who has just cloned the project.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    time::{Duration, Instant},
};

use mdgw_tests::process::{Signal, run, start, start_in};

#[test]
fn nothing_is_lost_in_an_empty_directory_and_the_report_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let ended = start_in(folder.path(), ["demo", "--json", "--messages", "30000"]).end().with_code(0);
    let told = ended.json();
    assert_eq!(told["ok"], true, "{told}");
    assert_eq!(told["records_received"], told["records_expected"], "{told}");
    assert!(told["records_received"].as_u64().unwrap() > 30_000, "{told}");
    assert!(told["wire_to_wire_ns"]["p50"].as_u64().unwrap() > 0, "{told}");
    let page = fs::read_to_string(folder.path().join(told["report"].as_str().unwrap())).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "{}", &page[..200.min(page.len())]);
    assert!(!page.contains("src=\"http") && !page.contains("<link"), "the page stands alone");
}

#[test]
fn heavy_loss_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--json", "--messages", "30000", "--loss", "0.1", "--seed", "7", "--rate", "5000"];
    let told = start_in(folder.path(), arguments).end().with_code(0).json();
    assert_eq!(told["ok"], true, "{told}");
    assert!(told["requests_answered"].as_u64().unwrap() > 0, "both lines lost something: {told}");
}

#[test]
fn a_pair_whose_leader_hands_over_is_stopped_and_killed_loses_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--pair", "--json", "--messages", "60000", "--rate", "600", "--tenure-s", "0.5"];
    let arguments = arguments.iter().chain(&["--profile", "calm"]);
    let ended = start_in(folder.path(), arguments).end().with_code(0);
    let told = ended.json();
    let changes = told["changes"].as_array().unwrap();
    let blows: Vec<_> = changes.iter().map(|change| change["old_leader"].as_str().unwrap()).collect();
    assert!(blows.len() >= 3 && blows[..3] == ["handed over", "stopped", "killed"], "{told}");
    assert!(changes.is_sorted_by_key(|change| change["epoch"].as_u64()), "{told}");
    // A machine that stalls may change leaders by itself.
    assert!(told["verdict"]["epochs"].as_array().unwrap().len() > changes.len(), "{told}");
    assert_eq!((&told["lost_messages"], &told["records_received"]), (&0.into(), &told["records_expected"]), "{told}");
    // What was published can be judged again.
    let capture = folder.path().join("mdgw-demo/published.pcap");
    let again = run(["ha", "verify", capture.to_str().unwrap()]).with_code(0);
    assert!(again.stdout.contains("one publisher at a time    kept"), "{}", again.stdout);
}

#[test]
fn the_table_is_for_people_and_says_that_nothing_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let ended = start_in(folder.path(), ["demo", "--messages", "20000"]).end().with_code(0);
    for row in ["nothing lost", "wire to wire", "p99.9", "line A", "line B", "report.html"] {
        assert!(ended.stdout.contains(row), "no {row:?} in\n{}", ended.stdout);
    }
}

#[test]
fn ctrl_c_ends_it_soon_and_leaves_nothing_behind() {
    end_early(Signal::Interrupt);
}

#[test]
fn so_does_a_terminal_that_goes_away() {
    end_early(Signal::HangUp);
}

fn end_early(signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let shared_before = names("/dev/shm");
    let directory = folder.path().join("demo");
    let demo = {
        // Its scratch directory lies where the environment says.
        let arguments = ["demo", "--json", "--messages", "5000000", "--directory", directory.to_str().unwrap()];
        mdgw_tests::process::start_with(folder.path(), &[("TMPDIR", scratch.path())], arguments)
    };
    // Its report directory is made first; its scratch directory has a log once the gateway runs.
    wait_for("the demonstration's log", || {
        fs::read_dir(scratch.path()).unwrap().filter_map(Result::ok).any(|entry| entry.path().join("log/1").is_dir())
    });
    demo.signal(signal);
    let ended = demo.end_within(Duration::from_secs(20)).with_code(1);
    let told = ended.json();
    assert_eq!((&told["interrupted"], &told["ok"]), (&true.into(), &false.into()), "{told}");
    assert_eq!(names(scratch.path()), BTreeSet::new());
    assert_eq!(names("/dev/shm").difference(&shared_before).count(), 0);
}

#[test]
fn a_wrong_argument_is_refused_by_name() {
    for (arguments, name) in [
        (["demo", "--loss", "1.5"], "--loss"),
        (["demo", "--rate", "0"], "--rate"),
        (["demo", "--io", "dpdk"], "--io"),
        (["demo", "--capture", "/nonexistent.pcap"], "/nonexistent.pcap"),
        (["demo", "--messages", "many"], "--messages"),
    ] {
        let ended = start(arguments).end().with_code(2);
        assert!(ended.stderr.contains(name) && ended.stdout.is_empty(), "{arguments:?}: {}", ended.stderr);
    }
}

fn names(directory: impl AsRef<std::path::Path>) -> BTreeSet<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let deadline = Instant::now() + mdgw_tests::process::PATIENCE;
    while !is_there() {
        assert!(Instant::now() < deadline, "{what} doesn't come");
        std::thread::sleep(Duration::from_millis(2));
    }
}
