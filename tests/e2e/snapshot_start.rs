//! A subscriber that starts at mid-day with a snapshot has the same books at the end of the day as one that received all of it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::HashSet,
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use mdgw_captures::impairment::LineImpairment;
use mdgw_feeds::{transport::iextp::PROTOCOL_DEEP_1_0, venue::iex::deep::PriceLevelUpdate};
use mdgw_status::control::{Request, send_request};
use mdgw_tests::{
    captures::print_to_stderr,
    elected_pair::ElectedPair,
    feeds::{self, Packet},
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    order_books::{ConsumerBooks, FileContent},
    process::{self, MdgwProcess, Signal},
    relay::LossyRelay,
    trading_day::{DATE, TradingDay, play},
};
use zerocopy::{FromZeros as _, IntoBytes as _};

const FROM_SNAPSHOT: &str = "--from-snapshot";

/// A gateway that serves snapshots.
fn options() -> GatewayOptions {
    let itch = GatewayOptions::itch();
    GatewayOptions { retransmission: format!("{}snapshots = true\n", itch.retransmission), ..itch }
}

#[test]
fn a_late_starter_has_the_books_of_the_whole_day_order_by_order() {
    let content = start_at_midday(40_000, &options());
    assert_eq!(content.suspect_records, 0, "{content:?}");
}

/// Starts a receiver and waits for its snapshot. It waits half a second for a service, and then takes the log. On a crowded machine the
/// service may have no core for so long: then the receiver is started again.
fn start_with_snapshot<T>(start: impl Fn() -> (MdgwProcess, T)) -> (MdgwProcess, T) {
    for _ in 0..5 {
        let (tail, rest) = start();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if tail.stderr_so_far().contains("snapshot of the state before message") {
                return (tail, rest);
            }
            sleep(Duration::from_millis(10));
        }
        print_to_stderr(&format!("no snapshot; starting the receiver again: {}", tail.stderr_so_far()));
    }
    panic!("no service had a snapshot");
}

/// Starts a subscriber at mid-day, and compares its books at the end of the day.
fn start_at_midday(messages: u64, wanted: &GatewayOptions) -> FileContent {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, messages);
    let gateway = day.gateway(&fixture, wanted);
    day.play_first_half(&fixture);
    let (tail, out) = day.tail(&fixture, "late.dbn", &[FROM_SNAPSHOT]);
    // The afternoon is published while the snapshot is taken.
    tail.wait_for_stderr(": session ");
    day.play_second_half(&fixture);
    let content = check_books(&day, tail, &out);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    content
}

#[test]
fn a_late_starter_on_a_line_with_losses_has_the_same_books() {
    for seed in 1..=2 {
        let fixture = GatewayFixture::new();
        let lossy_fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, 20_000);
        let gateway = day.gateway(&fixture, &options());
        day.play_first_half(&fixture);
        let damage = LineImpairment { loss: 0.1, duplicate: 0.05, reorder: 0.05, skew_ns: 0 };
        let _relay = LossyRelay::start(fixture.output, lossy_fixture.output, damage, seed);
        let out = fixture.path("relayed.dbn");
        let fixed = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out), FROM_SNAPSHOT];
        let tail = fixture.start_tail(lossy_fixture.output, &fixed);
        wait_until_joined(lossy_fixture.output, 1);
        tail.wait_for_stderr(": session ");
        day.play_second_half(&fixture);
        let content = check_books(&day, tail, &out);
        assert_eq!(content.suspect_records, 0, "seed {seed}: {content:?}");
        let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    }
}

/// The log no longer has the morning; the gateway's cold reader has followed it all the time.
#[test]
fn a_snapshot_does_not_need_the_log_of_the_morning() {
    let wanted = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 4 << 20, ..options() };
    let content = start_at_midday(60_000, &wanted);
    assert_eq!(content.suspect_records, 0, "{content:?}");
}

/// What the service has done for a late starter is counted.
#[test]
fn snapshots_that_were_taken_and_served_are_counted() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 4_000);
    let wanted = GatewayOptions { has_recovery: false, ..options() };
    let (gateway, socket) = fixture.controlled_gateway(&wanted, &["--date", DATE, "--ts-recv", "none"]);
    day.play_first_half(&fixture);
    let (tail, out) = start_with_snapshot(|| day.tail(&fixture, "late.dbn", &[FROM_SNAPSHOT]));
    day.play_second_half(&fixture);
    let content = check_books(&day, tail, &out);
    let status = send_request(&socket, &Request::Snapshot {}).unwrap();
    let counts = &status["channels"][0]["book_snapshots"];
    let count = |name: &str| counts[name].as_u64().unwrap();
    assert!(count("taken") >= 1 && count("served") >= 1 && count("suspect") == 0, "{counts}");
    assert!(count("duration_last_ns") > 0, "{counts}");
    assert!(count("bytes") > (content.snapshot_records * size_of::<dbn::MboMsg>()) as u64, "{counts}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The subscriber sleeps while more is published than its socket and the log hold.
#[test]
fn books_that_lost_messages_for_good_are_right_again_from_a_snapshot() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 240_000);
    let wanted = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..options() };
    let gateway = day.gateway(&fixture, &wanted);
    let (tail, out) = day.tail(&fixture, "losing.dbn", &["--rebuild"]);
    tail.signal(Signal::Stop);
    day.play_first_half(&fixture);
    tail.signal(Signal::Continue);
    tail.wait_for_stderr("lost [");
    tail.wait_for_stderr("books are suspect");
    day.play_second_half(&fixture);
    let tail = tail.end();
    assert!(tail.stderr.contains("books are right again"), "{}", tail.stderr);
    let tail = tail.expect_code(1);
    let (expected, whole) = ConsumerBooks::of_file(&day.expected);
    let (found, content) = ConsumerBooks::of_file(&fs::read(out).unwrap());
    assert!(content.snapshot_records > 0 && content.suspect_records == 0, "{content:?}");
    assert!(content.live_records < whole.live_records, "nothing was lost: {}", tail.stderr);
    assert!(found.orders == expected.orders, "the books differ: {content:?}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// As with an older gateway, which does not know the request.
#[test]
fn without_a_service_that_has_snapshots_the_session_comes_from_the_log() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 10_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_first_half(&fixture);
    let (tail, out) = day.tail(&fixture, "late.dbn", &[FROM_SNAPSHOT]);
    tail.wait_for_stderr(": session ");
    day.play_second_half(&fixture);
    let _ = tail.end().expect_code(0);
    assert!(fs::read(out).unwrap() == day.expected, "not the whole day");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A gateway that started in mid-session has books without the orders of the morning, and says so.
#[test]
fn a_snapshot_of_incomplete_books_is_marked() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 10_000);
    let gateway = day.gateway(&fixture, &options());
    let [_, afternoon] = day.captures();
    play(afternoon, &fixture);
    let out = fixture.path("late.dbn");
    let fixed = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out), FROM_SNAPSHOT];
    let (tail, ()) = start_with_snapshot(|| (fixture.tail(&fixed), ()));
    let _ = tail.end();
    let (_, content) = ConsumerBooks::of_file(&fs::read(out).unwrap());
    assert!(content.snapshot_records > 0 && content.suspect_records == content.snapshot_records, "{content:?}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_late_starter_has_the_levels_of_the_whole_day() {
    let fixture = GatewayFixture::new();
    let packets = deep_day(6_000);
    let (morning, afternoon) = packets.split_at(packets.len() / 2);
    let captures = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
    for (path, packets) in captures.iter().zip([morning, afternoon]) {
        feeds::write_capture(path, feeds::DESTINATIONS[0], packets);
    }
    let expected = fixture.path("expected.dbn");
    let offline = |files: &[&str], out: &str| {
        let fixed = ["--feed", "iex-deep-1.0", "--schema", "mbp-10", "--ts-recv", "none", "--json", "-o", out];
        let ended = process::run([["replay", "--offline"].as_slice(), files, &fixed].concat()).expect_code(0);
        ended.json()["output"]["records"].as_u64().unwrap()
    };
    let [first, second] = captures.each_ref().map(|path| text(path));
    let morning_records = offline(&[first], text(&fixture.path("morning.dbn")));
    let all_records = offline(&[first, second], text(&expected));
    let (books, _) = ConsumerBooks::of_file(&fs::read(&expected).unwrap());

    let wanted = GatewayOptions { retransmission: options().retransmission, ..GatewayOptions::iex("iex-deep-1.0") };
    let gateway = fixture.gateway(&wanted, &["--ts-recv", "none"]);
    play(&captures[0], &fixture);
    let count = (all_records - morning_records + SYMBOLS.len() as u64).to_string();
    let out = fixture.path("late.dbn");
    let fixed = ["--schema", "mbp-10", "--ts-recv", "none", "--count", &count, "-o", text(&out), FROM_SNAPSHOT];
    let tail = fixture.tail(&fixed);
    // The count of records is right for an image of the morning alone.
    tail.wait_for_stderr(": snapshot of the state");
    play(&captures[1], &fixture);
    let _ = tail.end().expect_code(0);
    let (found, content) = ConsumerBooks::of_file(&fs::read(out).unwrap());
    assert_eq!((content.snapshot_records, content.suspect_records), (SYMBOLS.len(), 0));
    assert!(found.levels == books.levels, "the levels differ");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Gateway 1 restarts without its log: its books of the morning are a copy of its peer's. Then it leads alone.
#[test]
fn snapshots_are_right_after_a_failover_to_a_gateway_with_its_peers_state() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..options() });
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    pair.wait_until_eligible(2);
    let [first, second] = [1, 2].map(|node| pair.gateways.fixture(node));
    let (day, output, other_service) = (TradingDay::of(first, 20_000), first.output, second.retransmission.to_string());
    let tail = |pair: &ElectedPair, name: &str, more: &[&str]| {
        let fixture = pair.gateways.fixture(1);
        let out = fixture.path(name);
        let fixed = ["--retransmission", &other_service, "--schema", "mbo", "--ts-recv", "none", "--until-ended"];
        (fixture.start_tail(output, &[fixed.as_slice(), &["-o", text(&out)], more].concat()), out)
    };
    day.play_first_half(first);
    pair.gateways.kill(1);
    fs::remove_dir_all(pair.gateways.fixture(1).path("log")).unwrap();
    pair.wait_until_leads(2);
    pair.start(1);
    let _copied = pair.gateways.running(1).unwrap().wait_for_stderr("starting with a copy of the peer's state");
    pair.wait_until_eligible(1);
    let of_the_old_leader = start_with_snapshot(|| tail(&pair, "old.dbn", &[FROM_SNAPSHOT]));
    pair.gateways.kill(2);
    pair.wait_until_leads(1);
    let of_the_new_leader = start_with_snapshot(|| tail(&pair, "new.dbn", &[FROM_SNAPSHOT]));
    let without_state = tail(&pair, "live.dbn", &["--from-now", "--rebuild"]);
    without_state.0.wait_for_stderr("books are suspect");
    without_state.0.wait_for_stderr("books are right again");
    day.play_second_half(pair.gateways.fixture(1));
    for (tail, out) in [of_the_old_leader, of_the_new_leader, without_state] {
        let content = check_books(&day, tail, &out);
        assert_eq!(content.suspect_records, 0, "{}: {content:?}", out.display());
    }
    let _stopped = pair.gateways.stop(1);
}

const SYMBOLS: [[u8; 8]; 5] = [*b"AAA     ", *b"BBB     ", *b"CCC     ", *b"DDD     ", *b"EEE     "];

/// Level updates of five instruments, each an event of its own.
fn deep_day(count: u32) -> Vec<Packet> {
    const BEGIN_NS: u64 = 1_493_042_400_000_000_000;
    let mut present = HashSet::new();
    let updates: Vec<_> = (0..count)
        .map(|number| {
            let spread = number.wrapping_mul(2_654_435_761) >> 8;
            let is_buy = spread & 1 == 0;
            let mut update = PriceLevelUpdate::new_zeroed();
            update.message_type = if is_buy { b'8' } else { b'5' };
            update.event_flags = 1;
            update.timestamp_ns.set((BEGIN_NS + u64::from(number) * 1_000).cast_signed());
            update.symbol = SYMBOLS[number as usize % SYMBOLS.len()];
            let step = i64::from(spread >> 4 & 31) * 100;
            let level = (number as usize % SYMBOLS.len(), is_buy, step);
            // Every fourth update removes its level, if there is one.
            if spread >> 1 & 3 == 0 && present.remove(&level) {
                update.size.set(0);
            } else {
                present.insert(level);
                update.size.set(100 + spread % 900);
            }
            update.price_e4.set(if is_buy { 99_0000 - step } else { 101_0000 + step });
            update
        })
        .collect();
    feeds::iex_packets(PROTOCOL_DEEP_1_0, 1, BEGIN_NS, updates.iter().map(PriceLevelUpdate::as_bytes))
}

/// Waits for the end of the day, and compares the books.
fn check_books(day: &TradingDay, tail: MdgwProcess, out: &Path) -> FileContent {
    let tail = tail.end().expect_code(0);
    assert!(!tail.stderr.contains("lost [") && !tail.stderr.contains("gap ["), "{}", tail.stderr);
    let (expected, whole) = ConsumerBooks::of_file(&day.expected);
    let (found, content) = ConsumerBooks::of_file(&fs::read(out).unwrap());
    assert!(!expected.orders.is_empty() && content.snapshot_records > 0, "{content:?}");
    assert!(content.live_records < whole.live_records, "{content:?} of {whole:?}");
    assert!(found.orders == expected.orders, "the books differ: {content:?}");
    content
}
