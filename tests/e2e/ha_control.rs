//! A running gateway is asked over its socket, and its audit tells of its starts and ends.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use mdgw_tests::{
    process::{self, Signal},
    site::{Site, Wanted, text},
};

#[test]
fn a_gateway_tells_its_history_over_kills_and_starts() {
    let site = Site::new();
    let (audit, socket) = (site.path("audit.jsonl"), site.path("run/control"));
    let keys = format!("[gateway]\naudit_file = \"{}\"\ncontrol_socket = \"{}\"", text(&audit), text(&socket));
    let config = site.config_text(&Wanted::itch()).replacen("[gateway]", &keys, 1);
    let path = site.path("with_control.toml");
    fs::write(&path, config).unwrap();
    let ask = |tool: &[&str]| process::run(["ha"].iter().chain(tool).chain(&["--socket", text(&socket)]));
    let start = || {
        let gateway = process::start(["run", text(&path)]);
        gateway.says("gateway runs");
        // The socket is there once the log says so, or a moment later.
        while !socket.exists() {
            std::thread::yield_now();
        }
        gateway
    };
    let _ = ask(&["status"]).with_code(2);

    let gateway = start();
    assert!(ask(&["status"]).with_code(0).stdout.contains("stands alone"));
    let refused = ask(&["hand-over"]).with_code(1);
    assert!(refused.stderr.contains("no such group"), "{}", refused.stderr);
    let _ = gateway.end_by(Signal::Kill);
    // A line that broke off, as a crash in the middle of a write leaves it.
    let whole = fs::read(&audit).unwrap();
    fs::write(&audit, [&whole[..], b"{\"number\":3,\"time_"].concat()).unwrap();

    fs::remove_file(&socket).unwrap();
    let gateway = start();
    // A thread of its own writes; nobody waits for it.
    let json = loop {
        let json = ask(&["history", "--json"]).with_code(0).json();
        if json["entries"].as_array().unwrap().len() >= 5 {
            break json;
        }
    };
    let events: Vec<_> =
        json["entries"].as_array().unwrap().iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "gained", "torn", "started", "gained"]);
    let epochs: Vec<_> = json["entries"].as_array().unwrap().iter().map(|entry| entry["epoch_count"].clone()).collect();
    assert_eq!(epochs, [1, 1, 0, 2, 2]);
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
    assert!(!socket.exists());
    assert!(fs::read_to_string(&audit).unwrap().trim_end().ends_with("\"event\":\"stopped\"}"));
}
