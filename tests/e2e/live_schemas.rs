//! Each schema of the live gateway, received with the official Python client, against an offline replay of the same input: a synthetic day
//! of ITCH, and captures of IEX.

use std::{path::Path, process::Command, sync::Arc};

use mdgw_feeds::{
    identity::Sequence,
    transport::moldudp64::{PacketWriter, write_end_of_session},
};
use mdgw_simulator::itch_generator::ItchGenerator;
use mdgw_tests::{
    captures,
    feeds::{self, DESTINATIONS, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, Signal},
    python::python,
    skip::skip_without_captures,
    trading_day::{self, DATE},
};

use super::start_live;

/// Those that follow from others on every feed.
const DERIVED: [&str; 7] = ["tbbo", "bbo-1s", "bbo-1m", "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "ohlcv-1d"];

#[test]
fn every_schema_of_itch_is_that_of_an_offline_replay() {
    let Some(python) = python("every_schema_of_itch_is_that_of_an_offline_replay") else { return };
    let fixture = GatewayFixture::new();
    let capture = fixture.path("day.pcap");
    feeds::write_capture(&capture, DESTINATIONS[0], &day_with_collars());
    let made = ["mbo", "mbp-1", "mbp-10", "trades", "definition", "statistics", "status", "imbalance"];
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let schemas = [&made[..], &DERIVED].concat();
    let input = Input { capture: &capture, made: &made, published: &made, options: &["ended"] };
    compare(&python, &fixture, &options, &input, &schemas);
}

#[test]
fn every_schema_of_iex_tops_is_that_of_an_offline_replay() {
    const TEST: &str = "every_schema_of_iex_tops_is_that_of_an_offline_replay";
    let Some(python) = python(TEST) else { return };
    let published = ["mbp-1", "trades", "status", "definition", "imbalance", "statistics"];
    // The capture has no definitions, and no statistics.
    let compared = ["mbp-1", "trades", "status", "imbalance"];
    iex(TEST, &python, "iex-tops-1.6", &published, &compared, &["ended"]);
}

#[test]
fn every_schema_of_iex_deep_is_that_of_an_offline_replay() {
    const TEST: &str = "every_schema_of_iex_deep_is_that_of_an_offline_replay";
    let Some(python) = python(TEST) else { return };
    let published = ["mbp-10", "mbp-1", "trades", "status"];
    iex(TEST, &python, "iex-deep-1.0", &published, &published, &[]);
}

/// As the feed is published by default: what mbp-1 has of an event is in its last mbp-10 record.
#[test]
fn the_best_level_of_iex_deep_follows_from_its_ten_levels() {
    const TEST: &str = "the_best_level_of_iex_deep_follows_from_its_ten_levels";
    let Some(python) = python(TEST) else { return };
    let published = ["mbp-10", "trades", "status"];
    let compared = ["mbp-10", "mbp-1"];
    iex(TEST, &python, "iex-deep-1.0", &published, &compared, &["levels"]);
}

/// Compares these schemas of a capture, and those that are derived on every feed.
fn iex(test: &str, python: &Path, feed: &'static str, published: &[&str], compared: &[&str], flags: &[&str]) {
    let name = match feed {
        "iex-tops-1.6" => "tops-1.6-20170710/TOPS16.pcap.gz",
        _ => "deep-1.0-20170425/DEEP10.pcap.gz",
    };
    let Some(root) = captures::root(test) else { return };
    let original = root.join("iex").join(name);
    if !original.is_file() {
        return skip_without_captures(test, &format!("no {}", original.display()));
    }
    let fixture = GatewayFixture::new();
    // Without the damaged end of the original, and without its pauses. A client reads the day once for each schema.
    let capture = fixture.path("day.pcap");
    let mut packets = feeds::evenly_spaced(&feeds::capture_packets(&original), 10_000);
    if !flags.contains(&"ended") {
        packets.truncate(PACKETS_MAX);
    }
    feeds::write_capture(&capture, DESTINATIONS[0], &packets);
    let mut options = GatewayOptions::iex(feed);
    let names: Vec<_> = published.iter().map(|name| format!("\"{name}\"")).collect();
    options.channel += &format!("schemas = [{}]\n", names.join(", "));
    let schemas = [compared, &DERIVED].concat();
    let made: Vec<_> = compared.iter().copied().filter(|schema| published.contains(schema)).collect();
    let input = Input { capture: &capture, made: &made, published, options: flags };
    compare(python, &fixture, &options, &input, &schemas);
}

/// Packets of a capture that does not have to end.
const PACKETS_MAX: usize = 12_000;

/// What a gateway receives.
struct Input<'a> {
    capture: &'a Path,
    /// Schemas that an offline replay makes.
    made: &'a [&'a str],
    /// Schemas by whose records intervals go: those that the gateway publishes, and mbp-1 where it follows from the orders.
    published: &'a [&'a str],
    /// Options of the client.
    options: &'a [&'a str],
}

/// Plays the input to a gateway, and compares what its live clients get.
fn compare(python: &Path, fixture: &GatewayFixture, options: &GatewayOptions, input: &Input<'_>, schemas: &[&str]) {
    let is_itch = options.feed.contains("itch");
    let date: &[&str] = if is_itch { &["--date", DATE] } else { &[] };
    let all = input.published.join(",");
    for (name, schemas) in input.made.iter().map(|schema| (*schema, *schema)).chain([("all", all.as_str())]) {
        let path = fixture.path(&format!("{name}.dbn"));
        let fixed = ["replay", "--offline", text(input.capture), "--feed", options.feed, "--schema", schemas];
        let ends = ["--ts-recv", "none", "-o", text(&path)];
        let _ = process::run(fixed.iter().chain(&ends).chain(date)).expect_code(0);
    }
    let gateway = fixture.gateway(options, &[&["--ts-recv", "none"], date].concat());
    trading_day::play(input.capture, fixture);
    let (live, address) = start_live(fixture);
    let dataset = match options.feed {
        "iex-tops-1.6" => "IEXG.TOPS",
        "iex-deep-1.0" => "IEXG.DEEP",
        _ => "XNAS.ITCH",
    };
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/live_schemas.py"));
    command.arg(address.port().to_string()).arg(dataset).arg(fixture.path(""));
    command.args(input.options).args(schemas);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert_eq!(printed.matches(" records\n").count(), schemas.len(), "{printed}");
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A synthetic day with auction collars, from which statistics follow.
fn day_with_collars() -> Vec<Packet> {
    let mut generator = ItchGenerator::new(feeds::itch_day(20_000, 8));
    let (mut messages, mut message) = (Vec::new(), Vec::new());
    while let Some(time_ns) = generator.next_message(&mut message) {
        messages.push((time_ns, message.clone()));
        if messages.len() > 2_000 && messages.len().is_multiple_of(500) {
            let stock = u16::try_from(messages.len() / 500 % 8 + 1).unwrap();
            messages.push((time_ns, auction_collar(stock, time_ns)));
        }
    }
    let mut packets: Vec<Packet> = Vec::new();
    let mut bytes = Vec::new();
    let mut next = Sequence(1);
    for of_packet in messages.chunks(10) {
        let mut writer = PacketWriter::begin(&mut bytes, SESSION, next, 1_400);
        assert!(of_packet.iter().all(|(_, message)| writer.push(message)));
        next = next.plus(u64::from(writer.finish()));
        packets.push((MIDNIGHT_NS + of_packet[0].0, Arc::from(bytes.as_slice())));
    }
    write_end_of_session(&mut bytes, SESSION, next);
    packets.push((packets.last().unwrap().0 + 1_000, Arc::from(bytes.as_slice())));
    packets
}

/// LULD Auction Collar (`J`). Nasdaq TotalView-ITCH 5.0.
fn auction_collar(stock: u16, time_ns: u64) -> Vec<u8> {
    let mut message = vec![b'J'];
    message.extend_from_slice(&stock.to_be_bytes());
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(&time_ns.to_be_bytes()[2..]);
    message.extend_from_slice(format!("{:<8}", format!("S{stock}")).as_bytes());
    for price_e4 in [100_000_u32, 105_000, 95_000, 0] {
        message.extend_from_slice(&price_e4.to_be_bytes());
    }
    message
}
