//! The sink to NATS JetStream, with a real nats-server: each record of the day is in the stream once and in order, whatever dies, stops
//! or restarts.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    nats::{NatsServer, StoredMessage},
    process::{self, MdgwProcess, Signal, wait_until},
    trading_day::{DATE, TradingDay},
};
use serde_json::json;

#[test]
fn each_record_is_in_the_stream_once_as_offline_replay_makes_it() {
    let Some(server) = NatsServer::started("each_record_is_in_the_stream_once_as_offline_replay_makes_it") else {
        return;
    };
    let host = Host::new(10_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let sink = host.start(&server, "");
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let messages = host.expect_whole_day(&server);
    // Subjects and headers, of each kind of message.
    for message in &messages {
        assert!(message.subject.starts_with("mdgw.XNAS.ITCH."), "{message:?}");
        let sequence = message.header("Mdgw-Sequence").unwrap();
        assert!(message.id().starts_with(&format!("XNAS.ITCH/1/{DATE}.0/{sequence}/")), "{message:?}");
        assert_eq!(message.header("Mdgw-Session"), Some(format!("{DATE}.0").as_str()));
        let is_end = message.subject == END_SUBJECT;
        assert_eq!(message.header("Mdgw-Kind"), is_end.then_some("end"), "{message:?}");
    }
    let schemas: BTreeSet<&str> = messages.iter().filter_map(|message| message.subject.split('.').nth(3)).collect();
    assert!(schemas.is_superset(&BTreeSet::from(["mbo", "status", "definition", "_end"])), "{schemas:?}");
    // A start behind the end of the day writes nothing.
    sink.signal(Signal::HangUp);
    let sink = sink.stop_with(Signal::Terminate).expect_code(0);
    assert!(!sink.stderr.contains("alarm"), "{}", sink.stderr);
    let summary = format!("messages {}, records ", messages.len());
    assert!(sink.stdout.contains(&summary) && sink.stdout.contains("gaps 0, holes 0, fenced 0"), "{}", sink.stdout);
    let sink = host.start(&server, "");
    sink.wait_for_stderr("nats: connected");
    let sink = sink.stop_with(Signal::Terminate).expect_code(0);
    assert!(sink.stdout.contains("messages 0, "), "{}", sink.stdout);
    assert_eq!(server.messages(STREAM).len(), messages.len());
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_sink_that_is_killed_anywhere_goes_on_without_a_hole_or_a_record_twice() {
    let Some(server) = NatsServer::started("a_sink_that_is_killed_anywhere_goes_on_without_a_hole_or_a_record_twice")
    else {
        return;
    };
    let host = Host::new(20_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    thread::scope(|scope| {
        scope.spawn(|| {
            host.day.play_first_half(&host.fixture);
            host.day.play_second_half(&host.fixture);
        });
        for kill in 0..8 {
            let before = server.message_count(STREAM).unwrap_or_default();
            // Few messages in flight, so that the day is longer than the kills.
            let sink = host.start(&server, "in_flight_max = 16");
            wait_until("more is in the stream", || {
                server.ends_with(STREAM, END_SUBJECT) || server.message_count(STREAM).unwrap_or_default() > before
            });
            thread::sleep(Duration::from_millis(7 * kill));
            let _ = sink.stop_with(Signal::Kill);
        }
    });
    let sink = host.start(&server, "");
    let _ = host.expect_whole_day(&server);
    let sink = sink.stop_with(Signal::Terminate).expect_code(0);
    assert!(!sink.stderr.contains("alarm"), "{}", sink.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The server is not there at the start, and is killed in the middle of the day.
#[test]
fn a_sink_waits_for_its_server_and_goes_on_after_each_restart() {
    let test = "a_sink_waits_for_its_server_and_goes_on_after_each_restart";
    let Some(mut server) = NatsServer::new(test, "") else { return };
    let host = Host::new(20_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    // The id of the last message is forgotten over a restart: only sequences are left.
    let sink = host.start(&server, "duplicate_window_seconds = 1\ntakeover_ms = 100\nack_timeout_ms = 500");
    sink.wait_for_stderr("alarm=\"nats-unreachable\"");
    server.start();
    thread::scope(|scope| {
        scope.spawn(|| {
            host.day.play_first_half(&host.fixture);
            host.day.play_second_half(&host.fixture);
        });
        for restart in 0..3 {
            let before = server.message_count(STREAM).unwrap_or_default();
            wait_until("more is in the stream", || {
                server.ends_with(STREAM, END_SUBJECT) || server.message_count(STREAM).unwrap_or_default() > before
            });
            server.kill();
            thread::sleep(Duration::from_millis(if restart == 1 { 1_500 } else { 50 }));
            server.start();
        }
    });
    let _ = host.expect_whole_day(&server);
    let sink = sink.stop_with(Signal::Terminate).expect_code(0);
    assert!(sink.stdout.contains("holes 0"), "{}", sink.stdout);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The leader and its sink are killed in the middle of the day, and the server restarts. The other gateway's sink goes on.
#[test]
fn a_failover_of_the_pair_leaves_each_record_in_the_stream_once() {
    let test = "a_failover_of_the_pair_leaves_each_record_in_the_stream_once";
    let Some(mut server) = NatsServer::started(test) else { return };
    let (mut pair, day) = pair();
    let sinks = [1, 2].map(|node| start(pair.gateways.fixture(node), &server, SHORT));
    let [first, second] = sinks;
    first.wait_for_stderr("nats: connected");
    day.play_first_half(pair.gateways.fixture(1));
    wait_until("the first half is in the stream", || server.message_count(STREAM).unwrap_or_default() > 1_000);
    pair.wait_until_eligible(2);
    let kill_all = |pair: &mut ElectedPair, first: MdgwProcess| {
        pair.gateways.kill(1);
        let _ = first.stop_with(Signal::Kill);
    };
    thread::scope(|scope| {
        let line = pair.gateways.fixture(1).peer_on_same_lines(3);
        let day = &day;
        scope.spawn(move || day.play_second_half(&line));
        thread::sleep(Duration::from_millis(20));
        kill_all(&mut pair, first);
        server.kill();
        server.start();
    });
    pair.wait_until_leads(2);
    check_whole_day(&server, &replay_offline(pair.gateways.fixture(1)));
    let second = second.stop_with(Signal::Terminate).expect_code(0);
    assert!(second.stdout.contains("gaps 0, holes 0"), "{}", second.stdout);
    pair.gateways.stop(2);
}

/// The leader's gateway and sink are stopped (SIGSTOP) with appends on their way, and wake after the takeover.
#[test]
fn a_stopped_leader_that_wakes_changes_nothing_in_the_stream() {
    let test = "a_stopped_leader_that_wakes_changes_nothing_in_the_stream";
    let Some(server) = NatsServer::started(test) else { return };
    let (mut pair, day) = pair();
    let first = start(pair.gateways.fixture(1), &server, SHORT);
    first.wait_for_stderr("nats: connected");
    // The first sink writes before there is another one.
    let line = pair.gateways.fixture(1).peer_on_same_lines(3);
    let second = thread::scope(|scope| {
        scope.spawn(|| day.play_first_half(&line));
        wait_until("the first sink writes", || server.message_count(STREAM).unwrap_or_default() > 200);
        let second = start(pair.gateways.fixture(2), &server, SHORT);
        second.wait_for_stderr("nats: connected");
        first.signal(Signal::Stop);
        second.wait_for_stderr("nats: appends to the stream");
        second
    });
    pair.gateways.running(1).unwrap().signal(Signal::Stop);
    pair.wait_until_leads(2);
    // It wakes with what it had made, while the other sink writes, and is refused.
    thread::scope(|scope| {
        scope.spawn(|| day.play_second_half(&line));
        thread::sleep(Duration::from_millis(30));
        pair.gateways.running(1).unwrap().signal(Signal::Continue);
        first.signal(Signal::Continue);
    });
    check_whole_day(&server, &replay_offline(pair.gateways.fixture(1)));
    let of_node = |messages: &[StoredMessage], node: &str| {
        messages.iter().filter(|message| message.header("Mdgw-Node") == Some(node)).count()
    };
    let messages = server.messages(STREAM);
    assert!(of_node(&messages, "1") > 0 && of_node(&messages, "2") > 0);
    let first = first.stop_with(Signal::Terminate).expect_code(0);
    assert!(first.stderr.contains("alarm=\"nats-fenced\""), "{}", first.stderr);
    let _ = second.stop_with(Signal::Terminate).expect_code(0);
    pair.gateways.stop(1);
    pair.gateways.stop(2);
}

/// The log keeps less than the day: the stream says what it lacks, and nothing else is missing.
#[test]
fn what_the_log_no_longer_has_is_a_hole_in_the_stream() {
    let Some(server) = NatsServer::started("what_the_log_no_longer_has_is_a_hole_in_the_stream") else { return };
    let host = Host::new(60_000);
    let options = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..GatewayOptions::itch() };
    let gateway = host.day.gateway(&host.fixture, &options);
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let sink = host.start(&server, "");
    sink.wait_for_stderr("alarm=\"nats-hole\"");
    wait_until("the end is in the stream", || server.ends_with(STREAM, END_SUBJECT));
    let messages = server.messages(STREAM);
    let hole = &messages[0];
    assert_eq!((hole.subject.as_str(), hole.header("Mdgw-Kind")), ("mdgw.XNAS.ITCH._gap", Some("hole")));
    assert_eq!(hole.header("Mdgw-Next"), messages[1].header("Mdgw-Sequence"));
    let (records, expected) = (records_of(&messages), dbn_records(&replay_offline(&host.fixture)));
    assert!(records.len() > 1_000 && expected.ends_with(&records) && records.len() < expected.len());
    let _ = sink.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// An operator purges the stream, and deletes it, while the sink runs.
#[test]
fn a_purged_stream_goes_on_and_a_deleted_one_is_made_anew() {
    let Some(server) = NatsServer::started("a_purged_stream_goes_on_and_a_deleted_one_is_made_anew") else { return };
    let host = Host::new(5_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let sink = host.start(&server, "");
    host.day.play_first_half(&host.fixture);
    let expected = dbn_records(&replay_offline(&host.fixture));
    let morning = dbn_records(&replay_captures(&host.fixture, &["morning.pcap"]));
    assert!(morning.len() > 1_000 && expected.starts_with(&morning));
    let all_there = || {
        server.message_count(STREAM).is_some_and(|count| count > 0) && records_of(&server.messages(STREAM)) == morning
    };
    wait_until("all of the first half is there", all_there);
    assert!(server.request(&format!("STREAM.PURGE.{STREAM}"), &json!({}))["success"].as_bool().unwrap());
    host.day.play_second_half(&host.fixture);
    wait_until("the end is in the stream", || server.ends_with(STREAM, END_SUBJECT));
    let second_half = records_of(&server.messages(STREAM));
    assert!([morning, second_half].concat() == expected, "each record was in the stream once");
    assert!(server.request(&format!("STREAM.DELETE.{STREAM}"), &json!({}))["success"].as_bool().unwrap());
    // With nothing to append, the sink does not notice before its next start.
    let _ = sink.stop_with(Signal::Terminate).expect_code(0);
    let sink = host.start(&server, "");
    let _ = host.expect_whole_day(&server);
    let _ = sink.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_wrong_login_and_a_wrong_configuration_are_clear_errors() {
    let test = "a_wrong_login_and_a_wrong_configuration_are_clear_errors";
    let login = "authorization { user: mdgw, password: secret }";
    let Some(mut server) = NatsServer::new(test, login) else { return };
    server.start();
    let host = Host::new(1_000);
    let password = host.fixture.path("password");
    fs::write(&password, "wrong\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let keys = format!("user = \"mdgw\"\npassword_file = \"{}\"", text(&password));
    let refused = host.spawn(&server, &keys).end().expect_code(2);
    assert!(
        refused.stderr.contains("log in at nats://") && refused.stderr.contains("authorization violation"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("wrong"), "no secret is shown");
    let refused = host.spawn(&server, "").end().expect_code(2);
    assert!(refused.stderr.contains("authorization violation"), "{}", refused.stderr);
    fs::set_permissions(&password, fs::Permissions::from_mode(0o644)).unwrap();
    let readable = host.spawn(&server, &keys).end().expect_code(2);
    assert!(readable.stderr.contains("password"), "{}", readable.stderr);
    let wrong = host.spawn(&server, "storage = \"tape\"").end().expect_code(2);
    assert!(wrong.stderr.contains("must be one of: file, memory"), "{}", wrong.stderr);
    let missing = process::run(["nats", text(&host.fixture.path("nowhere.toml"))]).expect_code(2);
    assert!(missing.stderr.contains("nowhere.toml"), "{}", missing.stderr);
    // The right password.
    fs::write(&password, "secret\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let sink = host.spawn(&server, &keys);
    sink.wait_for_stderr("nats: connected");
    let _ = sink.stop_with(Signal::Terminate).expect_code(0);
}

/// A stream with other subjects, or another writer, is not touched.
#[test]
fn a_stream_of_somebody_else_is_refused_with_an_alarm() {
    let Some(server) = NatsServer::started("a_stream_of_somebody_else_is_refused_with_an_alarm") else { return };
    let host = Host::new(1_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let other = json!({ "name": STREAM, "subjects": ["other.>"], "storage": "memory" });
    assert!(server.request(&format!("STREAM.CREATE.{STREAM}"), &other)["error"].is_null());
    let sink = host.start(&server, "");
    sink.wait_for_stderr("alarm=\"nats-unreachable\"");
    let stderr = sink.wait_for_stderr("its subjects are");
    assert!(stderr.contains("mdgw.XNAS.ITCH.>"), "{stderr}");
    let _ = sink.stop_with(Signal::Terminate).expect_code(0);
    assert_eq!(server.message_count(STREAM), Some(0));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A gateway's host with a day to play.
struct Host {
    fixture: GatewayFixture,
    day: TradingDay,
}

impl Host {
    fn new(messages: u64) -> Self {
        let fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, messages);
        Self { fixture, day }
    }

    fn start(&self, server: &NatsServer, keys: &str) -> MdgwProcess {
        start(&self.fixture, server, keys)
    }

    fn spawn(&self, server: &NatsServer, keys: &str) -> MdgwProcess {
        if !self.fixture.path("gateway.toml").exists() {
            fs::write(self.fixture.path("gateway.toml"), self.fixture.config_text(&GatewayOptions::itch())).unwrap();
        }
        process::start(["nats", text(&config(&self.fixture, server, keys))])
    }

    /// Waits for the end of the day, and checks the stream. Returns it.
    fn expect_whole_day(&self, server: &NatsServer) -> Vec<StoredMessage> {
        check_whole_day(server, &replay_offline(&self.fixture))
    }
}

/// A pair that runs, the first gateway leading, and a day on its line.
fn pair() -> (ElectedPair, TradingDay) {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    (pair, day)
}

fn check_whole_day(server: &NatsServer, offline: &Path) -> Vec<StoredMessage> {
    wait_until("the end is in the stream", || server.ends_with(STREAM, END_SUBJECT));
    let messages = server.messages(STREAM);
    let ids: BTreeSet<&str> = messages.iter().map(StoredMessage::id).collect();
    assert_eq!(ids.len(), messages.len(), "each message once");
    let lacking: Vec<&str> =
        messages.iter().filter(|message| message.subject.ends_with("._gap")).map(StoredMessage::id).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    assert!(records_of(&messages) == dbn_records(offline), "each record once and in order");
    messages
}

fn start(fixture: &GatewayFixture, server: &NatsServer, keys: &str) -> MdgwProcess {
    let sink = process::start(["nats", text(&config(fixture, server, keys))]);
    sink.wait_for_stderr("nats: ready");
    sink
}

fn config(fixture: &GatewayFixture, server: &NatsServer, keys: &str) -> PathBuf {
    let config = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
    let path = fixture.path("nats.toml");
    fs::write(&path, config + &format!("[nats]\nservers = [\"{}\"]\n{keys}\n", server.url())).unwrap();
    path
}

/// Replays the day offline with the schemas of the gateway, without receive times.
fn replay_offline(fixture: &GatewayFixture) -> PathBuf {
    replay_captures(fixture, &["morning.pcap", "afternoon.pcap"])
}

fn replay_captures(fixture: &GatewayFixture, names: &[&str]) -> PathBuf {
    let path = fixture.path("offline.dbn");
    let captures: Vec<PathBuf> = names.iter().map(|name| fixture.path(name)).collect();
    let files = captures.iter().map(|capture| text(capture));
    let arguments = ["--feed", "nasdaq-itch-5.0", "--ts-recv", "none", "--date", DATE, "-o", text(&path)];
    let _ = process::run(["replay", "--offline"].into_iter().chain(files).chain(arguments)).expect_code(0);
    path
}

/// The records of a stream, without receive times.
fn records_of(messages: &[StoredMessage]) -> Vec<u8> {
    messages.iter().flat_map(|message| message.payload.iter().copied()).collect()
}

/// The records of a DBN file.
fn dbn_records(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let metadata_bytes = bytes.get(4..8).map_or(0, |length| u32::from_le_bytes(length.try_into().unwrap()));
    bytes.drain(..bytes.len().min(8 + usize::try_from(metadata_bytes).unwrap()));
    bytes
}

const STREAM: &str = "mdgw-XNAS-ITCH";
const END_SUBJECT: &str = "mdgw.XNAS.ITCH._end";
/// A takeover within the time of a test.
const SHORT: &str = "takeover_ms = 300\nack_timeout_ms = 1000";
