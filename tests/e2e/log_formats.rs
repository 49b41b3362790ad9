//! The log as JSON, line by line.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, Signal},
};
use serde_json::Value;

fn config(fixture: &GatewayFixture, log: &str) -> String {
    let itch = GatewayOptions::itch();
    let channel = format!("{}line_silence_ms = 200\n", itch.channel);
    fixture.config_text(&GatewayOptions { channel, ..itch }) + log
}

#[test]
fn each_line_of_a_log_in_json_is_one_object() {
    let fixture = GatewayFixture::new();
    let path = fixture.path("gateway.toml");
    fs::write(&path, config(&fixture, "format = \"json\"\n")).unwrap();
    let gateway = process::start(["run", text(&path)]);
    gateway.wait_for_stderr("\"alarm\":\"line-silent\"");
    fs::write(&path, config(&fixture, "format = \"text\"\n")).unwrap();
    gateway.signal(Signal::HangUp);
    gateway.wait_for_stderr("log.format");
    let stopped = gateway.stop_with(Signal::Terminate).expect_code(0);

    let events: Vec<Value> = stopped.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for event in &events {
        for key in ["time", "level", "target", "message"] {
            assert!(event[key].is_string(), "{key}: {event}");
        }
    }
    let with = |key: &str, value: &str| events.iter().filter(|event| event[key] == value).collect::<Vec<_>>();
    let [running] = with("message", "gateway running")[..] else { panic!("{events:?}") };
    assert_eq!((&running["level"], &running["channels"]), (&"info".into(), &1.into()), "{running}");
    let [first, second] = with("alarm", "line-silent")[..] else { panic!("{events:?}") };
    assert_eq!((&first["channel"], &first["line"], &second["line"]), (&"one".into(), &"A".into(), &"B".into()));
    assert_eq!(first["level"], "warn");
    // What the command itself reports has the same form.
    let refused = events.iter().find(|event| event["message"].as_str().unwrap().contains("nothing changed")).unwrap();
    assert!(refused["level"] == "error" && refused["target"] == "mdgw", "{refused}");
}

#[test]
fn an_error_at_the_start_is_an_object_too() {
    let fixture = GatewayFixture::new();
    let path = fixture.path("gateway.toml");
    fs::write(&path, config(&fixture, "format = \"json\"\n")).unwrap();
    let gateway = process::start(["run", text(&path)]);
    gateway.wait_for_stderr("gateway running");
    // The first gateway holds the lock of the state file.
    let second = process::run(["run", text(&path)]).expect_code(2);
    let events: Vec<Value> = second.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = events.last().unwrap();
    assert!(last["level"] == "error" && last["message"].as_str().unwrap().starts_with("start "), "{last}");
}
