//! Third-party HdrHistogram tools read the latency logs, with the same percentiles as `mdgw report`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, Signal},
    python::python,
};

#[test]
fn the_hdrhistogram_reader_finds_the_same_percentiles() {
    let Some(python) = python("latency logs read by a third-party reader") else { return };
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let _ = fixture.sim(&["--messages", "20000", "--rate", "5000"]).end().expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let logs: Vec<PathBuf> =
        fs::read_dir(fixture.path("latency")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!logs.is_empty());

    let ours =
        process::run(["report", "--json"].into_iter().chain(logs.iter().map(|log| text(log)))).expect_code(0).json();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/hdr_percentiles.py");
    let theirs = Command::new(python).arg(script).args(&logs).output().unwrap();
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    let theirs: serde_json::Value = serde_json::from_slice(&theirs.stdout).unwrap();

    let mut compared = 0;
    for channel in ours["channels"].as_array().unwrap() {
        for stage in channel["stages"].as_array().unwrap() {
            let name = format!("{} {}", channel["id"], stage["stage"].as_str().unwrap());
            assert!(stage["count"].as_u64().unwrap() > 0, "{name}");
            for (key, value) in theirs[&name].as_object().unwrap() {
                assert_eq!(stage[key], *value, "{name} {key}");
                compared += 1;
            }
        }
        for line in channel["lines"].as_array().unwrap().iter().filter(|line| line["lead"]["count"] != 0) {
            let name = format!("{} lead {}", channel["id"], line["line"].as_str().unwrap());
            for (key, value) in theirs[&name].as_object().unwrap() {
                assert_eq!(line["lead"][key], *value, "{name} {key}");
                compared += 1;
            }
        }
    }
    println!("{compared} percentiles of {} logs compared", logs.len());
    // Six stages, and the lead of at least one line.
    assert!(compared >= 7 * 7, "{compared}");
}
