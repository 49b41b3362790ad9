//! A running gateway processes the end of one trading day and the start of the next, without a restart.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use dbn::{
    Mbp10Msg, UNDEF_PRICE,
    decode::{DbnMetadata as _, DecodeRecord as _, dbn::Decoder},
};
use mdgw_feeds::{transport::iextp::PROTOCOL_DEEP_1_0, venue::iex::deep::PriceLevelUpdate};
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS, Packet},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, Signal},
};
use zerocopy::{FromZeros as _, IntoBytes as _};

#[test]
fn a_new_trading_date_starts_with_empty_books_without_restart() {
    let fixture = GatewayFixture::new();
    let capture = fixture.path("days.pcap");
    let monday = iex_day(1, MONDAY_NS, &[(b'8', 10_0000, 100), (b'5', 10_1000, 200)]);
    // Tuesday's first event changes only the sell side.
    let tuesday = iex_day(2, MONDAY_NS + DAY_NS, &[(b'5', 11_0000, 300), (b'8', 10_5000, 400)]);
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], &[monday, tuesday].concat());

    let gateway = fixture.gateway(&GatewayOptions::iex("iex-deep-1.0"), &["--ts-recv", "none"]);
    let out = fixture.path("out.dbn");
    let tail = fixture.tail(&["--schema", "mbp-10", "--ts-recv", "none", "--count", "4", "-o", text(&out)]);
    play(&fixture, &capture);
    let tail = tail.end().expect_code(0);

    let sessions = ["iex-deep-1.0 2017-04-24 #0", "iex-deep-1.0 2017-04-25 #0"];
    let session_lines: Vec<_> = tail.stderr.lines().filter(|line| line.contains(": session ")).collect();
    let session_starts: Vec<_> = session_lines.iter().filter(|line| !line.ends_with("has ended")).collect();
    assert!(session_starts.iter().zip(sessions).all(|(line, session)| line.ends_with(session)), "{session_lines:?}");
    assert_eq!(session_starts.len(), 2, "{session_lines:?}");

    let file = Decoder::from_file(&out).unwrap();
    assert_eq!(file.metadata().symbols, ["ZVZZT"]);
    let records = file.decode_records::<Mbp10Msg>().unwrap();
    let tops: Vec<_> = records.iter().map(|record| (record.levels[0].bid_px, record.levels[0].ask_px)).collect();
    let (no, e9) = (UNDEF_PRICE, 100_000);
    let expected = [(10_0000 * e9, no), (10_0000 * e9, 10_1000 * e9), (no, 11_0000 * e9), (10_5000 * e9, 11_0000 * e9)];
    assert_eq!(tops, expected, "the books of Tuesday start empty");

    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let state = fs::read_to_string(fixture.path("state.json")).unwrap();
    assert!(state.contains("2017-04-25") || state.contains("20170425"), "{state}");
}

#[test]
fn session_numbers_continue_over_a_gateway_restart() {
    let fixture = GatewayFixture::new();
    let capture = fixture.path("session.pcap");
    let arguments = ["--date", "2019-01-30", "--ts-recv", "none"];
    let mut session_starts = Vec::new();
    let mut gateway = fixture.gateway(&GatewayOptions::itch(), &arguments);
    for number in 0..3 {
        let name = format!("SESSION{number:03}");
        let packets =
            feeds::itch_packets(feeds::itch_day(2_000, number), *name.as_bytes().first_chunk().unwrap(), MIDNIGHT_NS);
        feeds::write_capture(&capture, feeds::DESTINATIONS[0], &packets);
        // Before the first record, a heartbeat may have named the session before.
        let tail = fixture.tail(&["--schema", "mbo", "--from-now", "--count", "1"]);
        play(&fixture, &capture);
        let tail = tail.end().expect_code(0);
        session_starts.extend(tail.stderr.lines().rfind(|line| line.contains(" #")).map(str::to_owned));
        if number == 1 {
            let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
            gateway = fixture.gateway(&GatewayOptions::itch(), &arguments);
        }
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let restarts: Vec<_> = session_starts.iter().map(|line| line.split('#').nth(1).unwrap()).collect();
    assert_eq!(restarts, ["0", "1", "2"], "{session_starts:?}");
}

/// Monday, 2017-04-24, 14:00 UTC.
const MONDAY_NS: u64 = 1_493_042_400_000_000_000;
const DAY_NS: u64 = 86_400_000_000_000;

/// A day of DEEP: one packet for each level update (type, price in 1e-4 dollars, shares). Each update ends its event.
fn iex_day(session_id: u32, begin_ns: u64, levels: &[(u8, i64, u32)]) -> Vec<Packet> {
    let updates = levels.iter().map(|(message_type, price_e4, size)| {
        let mut update = PriceLevelUpdate::new_zeroed();
        update.message_type = *message_type;
        update.event_flags = 1;
        update.timestamp_ns.set(begin_ns.cast_signed());
        update.symbol = *b"ZVZZT   ";
        update.size.set(*size);
        update.price_e4.set(*price_e4);
        update
    });
    let updates: Vec<_> = updates.collect();
    feeds::iex_packets(PROTOCOL_DEEP_1_0, session_id, begin_ns, updates.iter().map(PriceLevelUpdate::as_bytes))
}

fn play(fixture: &GatewayFixture, capture: &Path) {
    let line = fixture.lines[0].to_string();
    let replay = ["replay", text(capture), "--to", &line, "--rate", "2000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).expect_code(0);
}
