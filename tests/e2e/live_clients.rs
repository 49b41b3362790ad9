//! The official clients get the records of `replay --offline` from the live gateway, derived schemas included: here the one for
//! Python, and those without good intentions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod live_cpp_transcript;
mod live_journal;
mod live_mirror;
mod live_rust_client;
mod live_schemas;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal, wait_until},
    python::python,
    skip::skip,
    trading_day::{DATE, TradingDay},
};
use socket2::{Domain, Socket, Type};

const KEY: &str = "db-unitTESTkey0123456789abcdefgh";

#[test]
fn a_python_client_gets_every_schema_as_offline_replay_makes_it() {
    let Some(python) = python("a_python_client_gets_every_schema_as_offline_replay_makes_it") else { return };
    let fixture = GatewayFixture::new();
    let (gateway, live, address) = serve_whole_day(&fixture);

    for schema in ["mbo", "mbp-1", "mbp-10", "trades", "definition", "status"] {
        let expected = replay_offline(&fixture, schema);
        let compression = if schema == "mbo" { "zstd" } else { "none" };
        run_client(&python, address, &["XNAS.ITCH", schema, text(&expected), compression]);
    }
    // A negative control: the comparison sees a schema that differs.
    let wrong = client(&python, address, &["XNAS.ITCH", "mbp-1", text(&fixture.path("mbp-10.dbn"))]).output().unwrap();
    assert!(!wrong.status.success());

    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A gateway that has published a whole day, and its `mdgw live` with the address where it listens.
fn serve_whole_day(fixture: &GatewayFixture) -> (MdgwProcess, MdgwProcess, SocketAddrV4) {
    let day = TradingDay::of(fixture, 20_000);
    let gateway = day.gateway(fixture, &GatewayOptions::itch());
    let (tail, _) = day.tail(fixture, "received.dbn", &[]);
    day.play_first_half(fixture);
    day.play_second_half(fixture);
    let _ = tail.end().expect_code(0);
    let (live, address) = start_live(fixture);
    (gateway, live, address)
}

/// Replays the day offline. Returns the file with its records of that schema.
fn replay_offline(fixture: &GatewayFixture, schema: &str) -> PathBuf {
    let path = fixture.path(&format!("{schema}.dbn"));
    let captures = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
    let files = ["replay", "--offline", text(&captures[0]), text(&captures[1]), "--feed", "nasdaq-itch-5.0"];
    let arguments = ["--schema", schema, "--ts-recv", "none", "--date", DATE, "-o", text(&path)];
    let _ = process::run(files.iter().chain(&arguments)).expect_code(0);
    path
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

/// Starts a Python program beside this file, with the server's port and the dataset.
fn spawn_program(python: &Path, name: &str, address: SocketAddrV4) -> MdgwProcess {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e").join(name));
    command.args([&address.port().to_string(), "XNAS.ITCH"]);
    process::spawn(command)
}

#[test]
fn a_snapshot_has_the_orders_that_the_session_left() {
    let Some(python) = python("a_snapshot_has_the_orders_that_the_session_left") else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live(&fixture);
    day.play_first_half(&fixture);
    let _ = spawn_program(&python, "live_snapshot.py", address).end().expect_code(0);
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_client_goes_on_with_the_log_that_takes_the_place_of_a_removed_one() {
    let Some(python) = python("a_client_goes_on_with_the_log_that_takes_the_place_of_a_removed_one") else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live(&fixture);
    day.play_first_half(&fixture);
    let client = spawn_program(&python, "live_new_log.py", address);
    client.wait_for_stderr("an order received");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    fs::remove_dir_all(fixture.path("log")).unwrap();
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_second_half(&fixture);
    let _ = client.end().expect_code(0);
    let log = live.stop_with(Signal::Terminate).expect_code(0).stderr;
    assert!(log.contains("live: the publication log was replaced, opening it again"), "{log}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The client knows one name, which resolves to both gateways of the pair.
#[test]
fn a_python_client_goes_on_at_the_other_gateway_of_its_host_name_after_its_own_was_killed() {
    const TEST: &str = "a_python_client_goes_on_at_the_other_gateway_of_its_host_name_after_its_own_was_killed";
    python_client_fails_over(TEST, LivePair::kill_first_and_play_second_half);
}

/// What served it still runs, and must accept no connection: clients take the first address that does.
#[test]
fn a_python_client_goes_on_at_the_other_gateway_although_its_own_live_server_still_runs() {
    const TEST: &str = "a_python_client_goes_on_at_the_other_gateway_although_its_own_live_server_still_runs";
    python_client_fails_over(TEST, LivePair::kill_first_gateway_and_play_second_half);
}

/// `kill` kills the gateway whose address comes first.
fn python_client_fails_over(test: &str, kill: impl FnOnce(&mut LivePair)) {
    let Some(python) = python(test) else { return };
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return skip(test, "no right to make a mount namespace, for a host name of the test's own");
    }
    let mut pair = LivePair::start(["127.0.0.2", "127.0.0.3"]);
    let hosts = pair.first_fixture().path("hosts");
    fs::write(&hosts, "127.0.0.2 gateways.test\n127.0.0.3 gateways.test\n").unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(&hosts).arg(&python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/live_failover.py"));
    command.args(["gateways.test", &pair.addresses[0].port().to_string(), "XNAS.ITCH"]);
    command.arg(pair.first_fixture().path("expected.dbn"));
    let client = process::spawn(command);
    pair.play_first_half();
    client.wait_for_stderr("a third received");
    kill(&mut pair);
    let _ = client.end().expect_code(0);
    pair.stop();
}

/// A pair of gateways, each with its `mdgw live`, and a day for both.
struct LivePair {
    pair: ElectedPair,
    day: TradingDay,
    live: [Option<MdgwProcess>; 2],
    addresses: [SocketAddrV4; 2],
}

impl LivePair {
    /// Starts both; the first leads. Their clients connect to these hosts: to one port, if the hosts differ.
    fn start(hosts: [&str; 2]) -> Self {
        let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
        let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
        pair.start(1);
        pair.wait_until_leads(1);
        pair.start(2);
        let address = free_address(hosts[0]);
        let other = if hosts[0] == hosts[1] {
            free_address(hosts[1])
        } else {
            SocketAddrV4::new(hosts[1].parse().unwrap(), address.port())
        };
        let start = |node, address| Some(start_live_at(pair.gateways.fixture(node), address, ""));
        let live = [start(1, address), start(2, other)];
        Self { pair, day, live, addresses: [address, other] }
    }

    fn first_fixture(&self) -> &GatewayFixture {
        self.pair.gateways.fixture(1)
    }

    fn play_first_half(&self) {
        self.day.play_first_half(self.first_fixture());
    }

    /// The host of the leader dies: the gateway, and what serves its clients. The day goes on when the other leads.
    fn kill_first_and_play_second_half(&mut self) {
        let _ = self.live[0].take().unwrap().stop_with(Signal::Kill);
        self.kill_first_gateway_and_play_second_half();
    }

    /// The leader alone dies. The day goes on when the other leads.
    fn kill_first_gateway_and_play_second_half(&mut self) {
        self.pair.gateways.kill(1);
        self.pair.wait_until_leads(2);
        self.day.play_second_half(self.first_fixture());
    }

    /// Stops what still runs.
    fn stop(mut self) {
        for live in self.live.into_iter().flatten() {
            let _ = live.stop_with(Signal::Terminate).expect_code(0);
        }
        for node in [1, 2] {
            if self.pair.gateways.running(node).is_some() {
                self.pair.gateways.stop(node);
            }
        }
    }
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
    let (silent, wrong, other, health) = ([127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4], [127, 0, 0, 5]);
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let limits =
        "failures_per_minute = 2\nhandshakes_per_second = 50\nhandshakes_max = 4\nhandshake_timeout_ms = 60000\n";
    let (live, address) = start_live_with(&fixture, limits);
    // Refused for their address alone, 200 connections must not use up the 50 of a second.
    let assert_refused_alone = |source| {
        let answers: Vec<_> = (0..200).map(|_| answer_from(source, address, WRONG_KEY)).collect();
        let has_reason = |answer: &String| answer.contains("success=0|error=Too many ");
        // A reset may come before the client has read the answer, but not each time.
        assert!(answers.iter().all(|answer| answer.is_empty() || has_reason(answer)), "{answers:?}");
        assert!(answers.iter().any(has_reason), "nobody got the reason");
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
    // A health check that connects and closes is no failure.
    for _ in 0..5 {
        // At most half of the handshakes at a time, and the server has to notice the end of the one before.
        wait_until("the server greets", || {
            let mut greeting = [0; 12];
            connect_from(health, address).read_exact(&mut greeting).is_ok()
        });
    }
    wait_until("the address is not blocked", || {
        answer_from(health, address, WRONG_KEY).contains("Authentication failed")
    });
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
    let address = free_address("127.0.0.1");
    (start_live_at(fixture, address, keys_of_live), address)
}

/// The same, for clients of that address.
fn start_live_at(fixture: &GatewayFixture, address: SocketAddrV4, keys_of_live: &str) -> MdgwProcess {
    let keys = fixture.path("client_keys");
    fs::write(&keys, format!("test {KEY} * 10\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let config = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
    let path = fixture.path("live.toml");
    let table = format!("[live]\nlisten = \"{address}\"\nkey_file = \"{}\"\n{keys_of_live}", text(&keys));
    fs::write(&path, config + &table).unwrap();
    let live = process::start(["live", text(&path)]);
    live.wait_for_stderr("live: ready");
    live
}

fn free_address(host: &str) -> SocketAddrV4 {
    let listener = TcpListener::bind((host, 0)).unwrap();
    listener.local_addr().unwrap().to_string().parse().unwrap()
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
