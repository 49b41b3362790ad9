//! The official Python client gets the records of `replay --offline` from the live gateway, derived schemas included.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::Duration,
};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal},
    python::python,
    trading_day::{DATE, TradingDay},
};
use socket2::{Domain, Socket, Type};

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

#[test]
fn a_replay_continues_with_live_records_without_a_seam_until_the_session_ends() {
    let Some(python) = python("a_replay_continues_with_live_records_without_a_seam_until_the_session_ends") else {
        return;
    };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live(&fixture);
    day.play_first_half(&fixture);
    let expected = fixture.path("expected.dbn");
    let mut running = Vec::new();
    for compression in ["none", "zstd"] {
        let arguments = ["XNAS.ITCH", "mbo", text(&expected), compression, "until-close"];
        running.push(process::spawn(client(&python, address, &arguments)));
    }
    for client in &running {
        client.wait_for_stderr("replay finished");
    }
    day.play_second_half(&fixture);
    for client in running {
        let _ = client.end().expect_code(0);
    }
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_snapshot_has_the_orders_that_the_session_left() {
    let Some(python) = python("a_snapshot_has_the_orders_that_the_session_left") else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live(&fixture);
    day.play_first_half(&fixture);
    let mut command = Command::new(&python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/live_snapshot.py"));
    command.args([&address.port().to_string(), "XNAS.ITCH"]);
    let _ = process::spawn(command).end().expect_code(0);
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_client_goes_on_at_the_other_gateway_of_a_pair_after_its_own_was_killed() {
    let Some(python) = python("a_client_goes_on_at_the_other_gateway_of_a_pair_after_its_own_was_killed") else {
        return;
    };
    let pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let [first_fixture, second_fixture] = [1, 2].map(|node| pair.gateways.fixture(node));
    let day = TradingDay::of(first_fixture, 20_000);
    let start = |fixture: &GatewayFixture| {
        let path = fixture.path("gateway.toml");
        fs::write(&path, pair.config_text(fixture.node)).unwrap();
        process::start(["run", text(&path), "--date", DATE, "--ts-recv", "none"])
    };
    let first = start(first_fixture);
    first.wait_for_stderr("INFO leads ");
    let second = start(second_fixture);
    second.wait_for_stderr("gateway running");
    let (first_live, first_address) = start_live(first_fixture);
    let (second_live, second_address) = start_live(second_fixture);
    let mut command = Command::new(&python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/live_failover.py"));
    command.args([first_address.port(), second_address.port()].map(|port| port.to_string()));
    command.args(["XNAS.ITCH", text(&first_fixture.path("expected.dbn"))]);
    let client = process::spawn(command);
    day.play_first_half(first_fixture);
    client.wait_for_stderr("a third received");
    // The host dies: the gateway and what serves its clients.
    let _ = first.stop_with(Signal::Kill);
    let _ = first_live.stop_with(Signal::Kill);
    second.wait_for_stderr("INFO leads ");
    day.play_second_half(first_fixture);
    let _ = client.end().expect_code(0);
    let _ = second_live.stop_with(Signal::Terminate).expect_code(0);
    let _ = second.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_wrong_key_and_garbage_are_refused_and_others_are_served() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live(&fixture);
    let answer_to = |sent: &[u8]| answer_from([127, 0, 0, 1], address, sent);
    let wrong = answer_to(WRONG_KEY);
    assert!(wrong.starts_with("lsg_version="), "{wrong}");
    assert!(wrong.ends_with("success=0|error=Authentication failed\n"), "{wrong}");
    for garbage in [&b"GET / HTTP/1.1\n"[..], b"\xff\xfe\x00\n", &[b'x'; 200_000]] {
        let answer = answer_to(garbage);
        assert!(!answer.contains("success=1"), "{answer}");
    }
    let live = live.stop_with(Signal::Terminate).expect_code(0);
    assert!(live.stdout.contains("failed handshakes 4"), "{}", live.stdout);
    assert!(!live.stderr.contains(KEY) && live.stderr.contains("peer=127.0.0.1"), "{}", live.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Connects from that address of the loopback.
fn connect_from(source: [u8; 4], address: SocketAddrV4) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&SocketAddr::V4(address).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Sends that and returns the answer up to the end of the connection; nothing, if the server closes it at once.
fn answer_from(source: [u8; 4], address: SocketAddrV4, sent: &[u8]) -> String {
    let mut stream = connect_from(source, address);
    // The server may have closed the connection already. It does not read what follows a refused line, so a reset may come after
    // the answer.
    let _ = stream.write_all(sent);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

const WRONG_KEY: &[u8] = b"auth=00-defgh|dataset=XNAS.ITCH|encoding=dbn|ts_out=0|compression=none\n";

/// Neither an address that opens connections and says nothing nor one that is blocked for wrong keys keeps others out, whatever the
/// limits for all addresses are.
#[test]
fn connections_of_one_address_keep_no_other_out() {
    let (silent, wrong, other) = ([127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4]);
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let limits =
        "failures_per_minute = 2\nhandshakes_per_second = 50\nhandshakes_max = 4\nhandshake_timeout_ms = 60000\n";
    let (live, address) = start_live_with(&fixture, limits);
    // Refused for their address alone, 200 connections must not use up the 50 of a second.
    let assert_refused_alone = |source| {
        for _ in 0..200 {
            assert_eq!(answer_from(source, address, WRONG_KEY), "");
        }
    };
    // Half of the handshakes are an address's most.
    let open: Vec<_> = (0..2).map(|_| connect_from(silent, address)).collect();
    for mut stream in &open {
        let mut greeting = [0; 12];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"lsg_version=");
    }
    assert_refused_alone(silent);
    // The server counts a failure before it closes the connection.
    for _ in 0..2 {
        assert!(answer_from(wrong, address, WRONG_KEY).contains("Authentication failed"));
    }
    assert_refused_alone(wrong);
    assert!(answer_from(other, address, WRONG_KEY).contains("Authentication failed"));
    drop(open);
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Starts `mdgw live` beside the fixture's gateway.
fn start_live(fixture: &GatewayFixture) -> (MdgwProcess, SocketAddrV4) {
    start_live_with(fixture, "")
}

/// The same, with further keys of `[live]`.
fn start_live_with(fixture: &GatewayFixture, keys_of_live: &str) -> (MdgwProcess, SocketAddrV4) {
    let keys = fixture.path("client_keys");
    fs::write(&keys, format!("test {KEY} * 10\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let config = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
    let path = fixture.path("live.toml");
    let table = format!("[live]\nlisten = \"{address}\"\nkey_file = \"{}\"\n{keys_of_live}", text(&keys));
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
