//! A gateway from the operator's view: every message is published, a lost range is declared with its bounds, and signals,
//! restarts and reloads work.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, net::SocketAddrV4};

use mdgw_feeds::transport::{Transport, moldudp64::MoldUdp64};
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    pair::log_entries,
    process::{self, Signal, wait_until},
};

const DATE: &str = "2019-01-30";

#[test]
fn venue_recovery_fills_all_gaps() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", DATE]);
    let tail = fixture.tail(&["--until-ended", "-o", text(&fixture.path("out.dbn"))]);
    let requests = fixture.requests.to_string();
    let damage =
        ["--loss", "0.2", "--duplicate", "0.1", "--reorder", "0.1", "--skew-us", "0,50", "--answer-loss", "0.2"];
    let feed = ["--messages", "30000", "--rate", "4000", "--request-server", &requests];
    let played = fixture.sim(&[feed.as_slice(), &damage].concat()).end().expect_code(0).json();
    let tail = tail.end().expect_code(0);
    let gateway = gateway.stop_with(Signal::Terminate).expect_code(0);

    assert!(played["requests_answered"].as_u64().unwrap() > 0, "both lines lost something: {played}");
    assert!(played["answers_lost"].as_u64().unwrap() > 0, "answers were lost too: {played}");
    assert!(!tail.stderr.contains("gap ["), "{}", tail.stderr);
    let row = SummaryRow::of(&gateway.stdout);
    assert_eq!((row.state, row.gaps, row.lost, row.drops), ("ended", 0, 0, 0), "{}", gateway.stdout);
    assert_eq!(row.messages, 30_000, "{}", gateway.stdout);
    // Each stock has one record that maps its number to its symbol. A DBN file holds that mapping in its metadata.
    let wrote = format!("wrote {} records of 1000 instruments", row.records - 1_000);
    assert!(tail.stderr.contains(&wrote), "{wrote}: {} / {}", tail.stderr, gateway.stdout);
}

#[test]
fn an_unfilled_gap_is_reported_with_exact_bounds() {
    let fixture = GatewayFixture::new();
    let mut packets = feeds::itch_packets(feeds::itch_day(20_000, 5), SESSION, MIDNIGHT_NS);
    let middle = packets.len() / 2;
    let lost: Vec<_> = packets.drain(middle..middle + 3).collect();
    let [first, last] = [&lost[0], &lost[2]].map(|(_, bytes)| MoldUdp64::parse(bytes).unwrap());
    let (first, next) = (first.first.0, last.next().0);
    let capture = fixture.path("lacking.pcap");
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], &packets);

    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = fixture.gateway(&wanted, &["--date", DATE, "--ts-recv", "none"]);
    let out = fixture.path("out.dbn");
    let tail = fixture.tail(&["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)]);
    let line = fixture.lines[0].to_string();
    let replay = ["replay", text(&capture), "--to", &line, "--rate", "4000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).expect_code(0);
    let tail = tail.end().expect_code(1);
    let gateway = gateway.stop_with(Signal::Terminate).expect_code(0);

    let gaps: Vec<_> = tail.stderr.lines().filter(|line| line.contains("gap [")).collect();
    assert_eq!(gaps.len(), 1, "{}", tail.stderr);
    assert!(gaps[0].contains(&format!("gap [{first}, {next})")), "[{first}, {next}) expected, {} found", gaps[0]);
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    let row = SummaryRow::of(&gateway.stdout);
    assert_eq!((row.gaps, row.lost), (1, next - first), "{}", gateway.stdout);

    // An offline replay of the capture gives the same records, including the suspect ones after the gap.
    let offline = fixture.path("offline.dbn");
    let arguments = ["replay", "--offline", text(&capture), "--schema", "mbo", "--ts-recv", "none", "--date", DATE];
    let ended =
        process::run(arguments.into_iter().chain(["--feed", "nasdaq-itch-5.0", "--json", "-o", text(&offline)]));
    let summary = ended.expect_code(0).json();
    assert_eq!(summary["total"]["lost_messages"], next - first, "{summary}");
    assert!(summary["total"]["suspect_records"].as_u64().unwrap() > 0, "{summary}");
    assert!(fs::read(offline).unwrap() == fs::read(out).unwrap(), "offline and published differ");
}

#[test]
fn sigterm_and_sigint_stop_in_order_with_a_summary() {
    for signal in [Signal::Terminate, Signal::Interrupt] {
        let fixture = GatewayFixture::new();
        let ended = fixture.gateway(&GatewayOptions::itch(), &[]).stop_with(signal).expect_code(0);
        assert_eq!(SummaryRow::of(&ended.stdout).state, "waiting", "{}", ended.stdout);
        assert!(ended.stdout.contains("latency log: "), "{}", ended.stdout);
    }
}

#[test]
fn a_reload_applies_reloadable_keys_and_refuses_others_by_name() {
    let fixture = GatewayFixture::new();
    let wanted = GatewayOptions::itch();
    let gateway = fixture.gateway(&wanted, &[]);

    let path = fixture.config(&wanted);
    let allowed = fixture.config_text(&wanted).replace("requests_per_second = 10000", "requests_per_second = 5000");
    fs::write(&path, &allowed).unwrap();
    gateway.signal(Signal::HangUp);
    gateway.wait_for_stderr("configuration reloaded");

    fs::write(&path, allowed.replace("threads = 2", "threads = 3")).unwrap();
    gateway.signal(Signal::HangUp);
    let refused = gateway.wait_for_stderr("nothing changed");
    assert!(refused.contains("threads") && refused.contains("needs a restart"), "{refused}");

    fs::write(&path, allowed.replace("[retransmission]", "[retransmision]")).unwrap();
    gateway.signal(Signal::HangUp);
    let refused = gateway.wait_for_stderr_times("nothing changed", 2);
    assert!(refused.contains("gateway.toml") && refused.contains("retransmision"), "{refused}");

    // The gateway still works.
    fs::write(&path, &allowed).unwrap();
    gateway.signal(Signal::HangUp);
    gateway.wait_for_stderr_times("configuration reloaded", 2);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn every_start_publishes_under_a_higher_epoch() {
    let fixture = GatewayFixture::new();
    let epochs: Vec<u64> = [Signal::Terminate, Signal::Kill, Signal::Interrupt]
        .into_iter()
        .map(|signal| {
            let gateway = fixture.gateway(&GatewayOptions::itch(), &[]);
            let startup_line = gateway.wait_for_stderr("gateway running");
            let _ = gateway.stop_with(signal);
            let digits = startup_line.split("epoch=").nth(1).unwrap().split_whitespace().next().unwrap();
            digits.parse().unwrap()
        })
        .collect();
    assert!(epochs.is_sorted_by(|earlier, later| earlier < later), "{epochs:?}");
}

#[test]
fn a_second_gateway_on_the_same_state_or_the_same_log_is_refused() {
    let fixture = GatewayFixture::new();
    let wanted = GatewayOptions::itch();
    let running = fixture.gateway(&wanted, &[]);

    let elsewhere = GatewayFixture::new();
    let same = |key: &str, name: &str| {
        let [ours, theirs] =
            [&elsewhere, &fixture].map(|fixture| format!("{key} = \"{}\"", fixture.path(name).display()));
        let config = elsewhere.config_text(&wanted).replace(&ours, &theirs);
        assert!(config.contains(&theirs), "{config}");
        let path = elsewhere.path("second.toml");
        fs::write(&path, config).unwrap();
        process::run(["run", text(&path)]).expect_code(1)
    };
    let state = same("state_file", "state.json");
    assert!(state.stderr.contains(text(&fixture.path("state.json"))), "{}", state.stderr);
    let log = same("log_dir", "log");
    assert!(log.stderr.contains("publication log of channel one"), "{}", log.stderr);

    let _ = running.stop_with(Signal::Terminate).expect_code(0);
    // The file lock ends with the process.
    let _ = fixture.gateway(&wanted, &[]).stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_restarted_gateway_continues_its_session_without_loss() {
    let fixture = GatewayFixture::new();
    let packets = feeds::itch_packets(feeds::itch_day(20_000, 6), SESSION, MIDNIGHT_NS);
    let half = packets.len() / 2;
    let [first_half, second_half] = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
    feeds::write_capture(&first_half, feeds::DESTINATIONS[0], &packets[..half]);
    feeds::write_capture(&second_half, feeds::DESTINATIONS[0], &packets[half..]);
    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let arguments = ["--date", DATE, "--ts-recv", "none"];
    let out = fixture.path("out.dbn");

    let killed = fixture.gateway(&wanted, &arguments);
    let tail = fixture.tail(&["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)]);
    play(&first_half, fixture.lines[0]);
    // What waits in the socket of a killed gateway is lost, and nobody has it but the venue.
    let last_packet = MoldUdp64::parse(&packets[half - 1].1).unwrap();
    wait_until("the gateway has logged the last packet", || {
        log_entries(&fixture).last().is_some_and(|entry| entry.next > last_packet.first)
    });
    let _ = killed.stop_with(Signal::Kill);
    let gateway = fixture.gateway(&wanted, &arguments);
    play(&second_half, fixture.lines[0]);
    let tail = tail.end();
    let gateway = gateway.stop_with(Signal::Terminate).expect_code(0);
    let output = format!("{}\n{}", tail.stderr, gateway.stdout);

    assert_eq!(tail.code, Some(0), "{output}");
    assert_eq!(
        tail.stderr.matches(": session nasdaq-itch-5.0 2019-01-30 #0").count(),
        2,
        "the session begins and ends: {output}"
    );
    assert_eq!(SummaryRow::of(&gateway.stdout).state, "ended", "{output}");
}

#[test]
fn messages_missed_while_down_are_reported_as_a_gap() {
    let fixture = GatewayFixture::new();
    let packets = feeds::itch_packets(feeds::itch_day(20_000, 6), SESSION, MIDNIGHT_NS);
    let half = packets.len() / 2;
    let [first_half, second_half] = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
    feeds::write_capture(&first_half, feeds::DESTINATIONS[0], &packets[..half]);
    feeds::write_capture(&second_half, feeds::DESTINATIONS[0], &packets[half + 10..]);
    let [first, last] = [half, half + 9].map(|index| MoldUdp64::parse(&packets[index].1).unwrap());
    let missing = format!("[{}, {})", first.first.0, last.next().0);
    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let arguments = ["--date", DATE, "--ts-recv", "none"];

    let stopped = fixture.gateway(&wanted, &arguments);
    let tail = fixture.tail(&["--schema", "mbo", "--until-ended", "-o", text(&fixture.path("out.dbn"))]);
    play(&first_half, fixture.lines[0]);
    let _ = stopped.stop_with(Signal::Terminate).expect_code(0);
    let gateway = fixture.gateway(&wanted, &arguments);
    play(&second_half, fixture.lines[0]);
    let tail = tail.end();
    let gateway = gateway.stop_with(Signal::Terminate).expect_code(0);
    let output = format!("{}\n{}\n{}", tail.stderr, gateway.stdout, gateway.stderr);
    assert!(tail.stderr.contains(&missing), "{missing} expected: {output}");
    assert_ne!(tail.code, Some(0), "{output}");
}

fn play(capture: &std::path::Path, line: SocketAddrV4) {
    let line = line.to_string();
    let _ = process::run(["replay", text(capture), "--to", &line, "--rate", "4000", "--interface", "127.0.0.1"])
        .expect_code(0);
}

/// The channel's row in the summary of `mdgw run`.
struct SummaryRow<'t> {
    state: &'t str,
    messages: u64,
    records: u64,
    gaps: u64,
    lost: u64,
    drops: u64,
}

impl<'t> SummaryRow<'t> {
    fn of(summary: &'t str) -> Self {
        let row = summary.lines().find(|line| line.starts_with("one ")).unwrap_or_else(|| panic!("{summary}"));
        let columns: Vec<_> = row.split_whitespace().collect();
        let [_, state, _, messages, records, gaps, lost, drops, _] = columns[..] else { panic!("{row}") };
        let [messages, records, gaps, lost, drops] =
            [messages, records, gaps, lost, drops].map(|column| column.parse().unwrap());
        Self { state, messages, records, gaps, lost, drops }
    }
}
