//! The official Python client gets the records of `replay --offline` from the live gateway, derived schemas included.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::{SocketAddrV4, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal},
    python::python,
    trading_day::{DATE, TradingDay},
};

const KEY: &str = "db-unitTESTkey0123456789abcdefgh";

#[test]
fn a_python_client_gets_every_schema_as_offline_replay_makes_it() {
    let Some(python) = python("a_python_client_gets_every_schema_as_offline_replay_makes_it") else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (tail, _) = day.tail(&fixture, "received.dbn", &[]);
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let _ = tail.end().expect_code(0);
    let (live, address) = start_live(&fixture);

    for schema in ["mbo", "mbp-1", "mbp-10", "trades", "definition", "status"] {
        let expected = fixture.path(&format!("{schema}.dbn"));
        let captures = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
        let files = ["replay", "--offline", text(&captures[0]), text(&captures[1]), "--feed", "nasdaq-itch-5.0"];
        let arguments = ["--schema", schema, "--ts-recv", "none", "--date", DATE, "-o", text(&expected)];
        let _ = process::run(files.iter().chain(&arguments)).expect_code(0);
        let compression = if schema == "mbo" { "zstd" } else { "none" };
        run_client(&python, address, &["XNAS.ITCH", schema, text(&expected), compression]);
    }
    // A negative control: the comparison sees a schema that differs.
    let wrong = client(&python, address, &["XNAS.ITCH", "mbp-1", text(&fixture.path("mbp-10.dbn"))]).output().unwrap();
    assert!(!wrong.status.success());

    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Starts `mdgw live` beside the fixture's gateway.
fn start_live(fixture: &GatewayFixture) -> (MdgwProcess, SocketAddrV4) {
    let keys = fixture.path("client_keys");
    fs::write(&keys, format!("test {KEY} * 10\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let config = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
    let path = fixture.path("live.toml");
    let table = format!("[live]\nlisten = \"{address}\"\nkey_file = \"{}\"\n", text(&keys));
    fs::write(&path, config + &table).unwrap();
    let live = process::start(["live", text(&path)]);
    live.wait_for_stderr("live: ready");
    (live, address)
}

fn client(python: &Path, address: SocketAddrV4, arguments: &[&str]) -> Command {
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/live_client.py")).arg(address.port().to_string());
    command.args(arguments);
    command
}

fn run_client(python: &Path, address: SocketAddrV4, arguments: &[&str]) {
    let output = client(python, address, arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
