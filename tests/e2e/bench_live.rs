//! `mdgw-bench live` runs each part with few messages and sessions, and loses nothing. Figures are not judged here.

use std::process::{Command, Stdio};

use mdgw_tests::process;
use serde_json::Value;

fn live(words: &str) -> Value {
    let program = format!("--program={}", process::program().display());
    let fixed =
        "--json --rounds 1 --messages 30000 --live-orders 2000 --sessions 1,3 --idle-sessions 2,12 --entries 50";
    let words: Vec<_> = fixed.split_whitespace().chain(words.split_whitespace()).collect();
    let done = Command::new(super::bench()).arg("live").arg(program).args(&words).stderr(Stdio::inherit()).output();
    let done = done.expect("the bench runs");
    assert!(done.status.success(), "{}", words.join(" "));
    serde_json::from_slice(&done.stdout).expect("one line of JSON")
}

fn median(value: &Value) -> f64 {
    value["median"].as_f64().unwrap_or_else(|| panic!("a spread: {value}"))
}

#[test]
fn sessions_replay_the_log_hold_memory_and_get_what_is_appended() {
    let result = live("--parts throughput,memory,latency");
    let rows = result["throughput"]["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["sessions"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)], "{result}");
    for row in rows {
        for name in ["live_million_records_per_s", "bare_million_records_per_s", "ratio"] {
            assert!(median(&row[name]) > 0.0, "{row}");
        }
    }
    assert!(result["throughput"]["bytes_per_session"].as_u64() > Some(30_000 * 40), "{result}");
    assert!(median(&result["memory"]["resident_kib_per_session"]).is_finite(), "{result}");
    for percentile in ["p50", "p99"] {
        assert!(median(&result["latency"][percentile]["live_us"]) > 0.0, "{result}");
        assert!(median(&result["latency"][percentile]["bare_us"]) > 0.0, "{result}");
    }
    assert_eq!(result["publish"], Value::Null, "it was not asked for");
}

#[test]
fn the_gateway_is_measured_without_and_beside_sessions() {
    let result = live("--parts publish --beside 0,4 --rate 500 --seconds 1");
    let rows = result["publish"]["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["row"].as_str()).collect();
    let beside = ["without mdgw live", "without mdgw live, beside a bare loop"].map(Some);
    let live = ["beside 0 sessions, 0 of which never read", "beside 4 sessions, 2 of which never read"].map(Some);
    assert_eq!(names, [beside, live].concat(), "{result}");
    for row in rows {
        for stage in ["publish", "wire_to_wire"] {
            assert!(median(&row[stage]["p99_us"]) > 0.0 && median(&row[stage]["ratio"]) > 0.0, "{row}");
        }
    }
    let received: Vec<_> = rows.iter().map(|row| median(&row["million_records_per_s"])).collect();
    assert!(received[..3] == [0.0; 3] && received[3] > 0.0, "only sessions that read receive: {result}");
}
