//! `mdgw-bench wire` runs, publishes everything at a low rate, and reports each row. Latencies are not judged here.

mod bench_live;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use mdgw_tests::process;
use serde_json::Value;

/// The bench beside the program under test. A build of the whole workspace makes both; where it is missing, it is built alone.
fn bench() -> PathBuf {
    let bench = process::program().with_file_name("mdgw-bench");
    if !bench.exists() {
        let profile = bench.parent().expect("a program lies in a directory");
        let target = profile.parent().expect("a profile's directory lies in the target directory");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "mdgw-bench", "--bin", "mdgw-bench", "--target-dir"]).arg(target);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
        assert!(built.success(), "mdgw-bench doesn't build");
    }
    bench
}

fn wire(words: &str) -> Value {
    let program = format!("--program={}", process::program().display());
    // Few messages and parking threads: other tests run beside this one.
    let fixed = "--json --rounds 1 --seconds 1 --wait park --live-orders 500 --warm-up-messages 3000";
    let words = fixed.split_whitespace().chain(words.split_whitespace());
    let done = Command::new(bench()).arg("wire").arg(program).args(words.clone()).stderr(Stdio::inherit()).output();
    let done = done.expect("the bench runs");
    assert!(done.status.success(), "{}", words.collect::<Vec<_>>().join(" "));
    serde_json::from_slice(&done.stdout).expect("one line of JSON")
}

fn check(case: &Value, packets: u64) {
    let subjects = case["subjects"].as_object().expect("subjects by name");
    assert_eq!(subjects.keys().collect::<Vec<_>>(), ["bare", "bare-again", "gateway"], "{case}");
    for (name, subject) in subjects {
        assert_eq!(subject["lost_messages"], 0, "{name}: {case}");
        assert_eq!(subject["sustained"], true, "{name}: {case}");
        let measured = subject["measured_packets"].as_u64().unwrap();
        let silent = subject["silent_packets"].as_u64().unwrap();
        assert_eq!(measured + silent, packets, "{name}: each packet was published or had no output: {case}");
        assert!(measured > packets / 2, "{name}: most packets have output: {case}");
        for percentile in ["p50", "p90", "p99", "p99.9"] {
            assert!(subject["latency"][percentile]["us"]["median"].as_f64().unwrap() > 0.0, "{name}: {case}");
        }
    }
}

#[test]
fn a_second_at_a_low_rate_gives_every_row_and_loses_nothing() {
    let result = wire("--rates 200 --bursts 1,20");
    let cases = result["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2, "{result}");
    for case in cases {
        check(case, 200);
    }
}

#[test]
fn two_lines_several_channels_readers_and_an_election_lose_nothing() {
    let result =
        wire("--rates 200 --lines 2 --skew-us 100 --channels 3 --log-readers 3 --election file --latency-log on");
    let case = &result["cases"][0];
    check(case, 200);
    assert!(case["subjects"]["gateway"]["log_entries_read"].as_u64().unwrap() > 0, "{case}");
    assert_eq!(case["subjects"]["bare"]["log_entries_read"], 0, "{case}");
}

#[test]
fn a_gateway_whose_admin_listener_is_asked_is_a_row_of_its_own() {
    let result = wire("--rates 200 --channels 3 --admin none,scrape,page");
    let subjects = &result["cases"][0]["subjects"];
    for name in ["gateway", "gateway-scrape", "gateway-page"] {
        assert_eq!(subjects[name]["lost_messages"], 0, "{name}: {result}");
    }
    assert_eq!(subjects["gateway"]["admin"], Value::Null, "{result}");
    for name in ["gateway-scrape", "gateway-page"] {
        let admin = &subjects[name]["admin"];
        assert!(admin["answer_bytes"].as_u64() > Some(2_000), "{name}: {result}");
        assert!(admin["cpu_ms_per_answer"].as_f64() > Some(0.0), "{name}: {result}");
        assert!(admin["ratio_to_unasked"]["p99"]["outside"]["median"].as_f64() > Some(0.0), "{name}: {result}");
    }
}
