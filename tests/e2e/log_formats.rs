//! The log as JSON, line by line.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, os::unix::fs::PermissionsExt as _};

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
    let second = process::run(["run", text(&path)]).expect_code(1);
    let events: Vec<Value> = second.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = events.last().unwrap();
    assert!(last["level"] == "error" && last["message"].as_str().unwrap().starts_with("start "), "{last}");
}

/// The sentinel that a gateway starts writes to the gateway's standard error.
#[test]
fn a_spawned_sentinel_logs_json_as_its_gateway() {
    let fixture = GatewayFixture::with_node(1);
    let [path, key, records] = ["gateway.toml", "key", "records"].map(|name| fixture.path(name));
    fs::write(&key, "07".repeat(32)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let port = fixture.output.port();
    let election = format!(
        "format = \"json\"\n\n[election]\nbackend = \"file\"\nname = \"gw1\"\n\n[election.file]\ndirectory = \"{}\"\n\n\
         [election.link]\nlisten = \"127.0.0.21:{port}\"\npeer = \"127.0.0.22:{port}\"\nkey_file = \"{}\"\n\n\
         [[election.peer]]\nnode = 2\nname = \"gw2\"\n",
        text(&records),
        text(&key)
    );
    fs::write(&path, config(&fixture, &election)).unwrap();
    let gateway = process::start(["run", text(&path)]);
    gateway.wait_for_stderr("sentinel: watching gateway");
    let stopped = gateway.stop_with(Signal::Terminate).expect_code(0);
    let events: Vec<Value> = stopped.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of_sentinel = |event: &&Value| event["message"].as_str().is_some_and(|text| text.starts_with("sentinel: "));
    assert!(events.iter().any(|event| of_sentinel(&event) && event["gateway"].is_string()), "{}", stopped.stderr);
}
