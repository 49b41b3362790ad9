//! A subscriber without a path for requests starts in mid-session from the snapshot group, and has the books of the whole day at its end.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::{Path, PathBuf},
};

use mdgw_captures::impairment::LineImpairment;
use mdgw_feeds::published::{packet::parse_packet, snapshot::SnapshotChunk};
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined, write_key},
    order_books::{ConsumerBooks, FileContent, symbols_of_file},
    process::{self, MdgwProcess, Signal, wait_until},
    relay::LossyRelay,
    trading_day::TradingDay,
};
use socket2::{Domain, Protocol, Socket, Type};

const SNAPSHOT: &str = "snapshot of the state before message";

/// A gateway that sends snapshots to its group, and serves none.
fn options(keys: &'static str) -> GatewayOptions {
    GatewayOptions { snapshot_group: Some(keys), has_recovery: false, ..GatewayOptions::itch() }
}

/// Starts a subscriber that knows no service, and waits until it has joined the group.
fn start_tail(fixture: &GatewayFixture, group: SocketAddrV4, more: &[&str]) -> (MdgwProcess, PathBuf) {
    let (out, line, group_text) = (fixture.path("late.dbn"), fixture.output.to_string(), group.to_string());
    let fixed = ["tail", "--line", &line, "--interface", "127.0.0.1", "--snapshot-group", &group_text];
    let rest = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)];
    let tail = process::start([fixed.as_slice(), &rest, more].concat());
    wait_until_joined(group, 1);
    (tail, out)
}

/// Waits for the end of the day, and compares the books.
fn check_books(day: &TradingDay, tail: MdgwProcess, out: &Path) -> FileContent {
    let tail = tail.end();
    // A chunk of the dead leader may wait in the group's socket when the first packet of the new one comes on a line.
    let refused: Vec<&str> = tail.stderr.lines().filter(|line| line.contains("refused")).collect();
    assert!(refused.iter().all(|line| line.contains("packets: epoch_stale")), "{}", tail.stderr);
    let code = i32::from(!refused.is_empty());
    let tail = tail.expect_code(code);
    assert!(!tail.stderr.contains("lost [") && !tail.stderr.contains("gap ["), "{}", tail.stderr);
    let (expected, whole) = ConsumerBooks::of_file(&day.expected);
    let recorded = fs::read(out).unwrap();
    let (found, content) = ConsumerBooks::of_file(&recorded);
    let symbols = symbols_of_file(&day.expected);
    assert_eq!(symbols_of_file(&recorded), symbols);
    assert!(!symbols.is_empty());
    assert!(!expected.orders.is_empty() && content.snapshot_records > 0, "{content:?}");
    assert!(content.live_records < whole.live_records, "{content:?} of {whole:?}");
    assert_eq!(content.suspect_records, 0, "{content:?}");
    assert!(found.orders == expected.orders, "the books differ: {content:?}");
    content
}

/// The afternoon is published while the image is sent, so the subscriber keeps it.
#[test]
fn a_late_starter_without_a_service_has_the_books_of_the_whole_day() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 40_000);
    let gateway = day.gateway(&fixture, &options("interval_ms = 50\nbytes_per_second = 400000\npasses = 1"));
    day.play_first_half(&fixture);
    let (tail, out) = start_tail(&fixture, fixture.snapshot_group(), &["--from-snapshot"]);
    tail.wait_for_stderr(": session ");
    day.play_second_half(&fixture);
    let _ = check_books(&day, tail, &out);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Chunks are lost, repeated and reordered. They come again with the next pass.
#[test]
fn a_group_with_losses_gives_the_same_books() {
    for seed in 1..=2 {
        let (fixture, relayed) = (GatewayFixture::new(), GatewayFixture::new());
        let day = TradingDay::of(&fixture, 10_000);
        let gateway = day.gateway(&fixture, &options("interval_ms = 10\nbytes_per_second = 2000000\npasses = 8"));
        day.play_first_half(&fixture);
        let damage = LineImpairment { loss: 0.1, duplicate: 0.05, reorder: 0.05, skew_ns: 0 };
        let _relay = LossyRelay::start(fixture.snapshot_group(), relayed.snapshot_group(), damage, seed);
        let (tail, out) = start_tail(&fixture, relayed.snapshot_group(), &["--from-snapshot"]);
        tail.wait_for_stderr(": session ");
        tail.wait_for_stderr(SNAPSHOT);
        day.play_second_half(&fixture);
        let _ = check_books(&day, tail, &out);
        let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    }
}

/// With a key, each chunk has a tag. The subscriber reads group, tags and lines from the gateway's configuration.
#[test]
fn a_subscriber_with_the_gateways_configuration_uses_its_group() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 4_000);
    let key = fixture.path("output.key");
    write_key(&key);
    let output = format!("tag_key_files = [\"{}\"]\n", text(&key));
    let wanted = GatewayOptions { output, ..options("interval_ms = 50") };
    let gateway = day.gateway(&fixture, &wanted);
    day.play_first_half(&fixture);
    // Without the service, which would be asked first.
    let config = fixture.config_text(&GatewayOptions { has_recovery: false, ..wanted });
    let (before, after) = config.split_once("[retransmission]").unwrap();
    let path = fixture.path("subscriber.toml");
    fs::write(&path, [before, &after[after.find("[latency]").unwrap()..]].concat()).unwrap();
    let out = fixture.path("late.dbn");
    let fixed = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out), "--from-snapshot"];
    let tail = process::start([["tail", text(&path)].as_slice(), &fixed].concat());
    tail.wait_for_stderr(SNAPSHOT);
    day.play_second_half(&fixture);
    let _ = check_books(&day, tail, &out);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The subscriber sleeps while more is published than its socket holds: what it lost is lost for good.
#[test]
fn books_that_lost_messages_are_right_again_from_the_group() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 240_000);
    let gateway = day.gateway(&fixture, &options("interval_ms = 50\npasses = 1"));
    let (out, line, group) = (fixture.path("late.dbn"), fixture.output.to_string(), fixture.snapshot_group());
    let fixed = ["tail", "--line", &line, "--interface", "127.0.0.1", "--snapshot-group", &group.to_string()];
    let rest = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "--rebuild", "-o", text(&out)];
    let tail = process::start([fixed.as_slice(), &rest].concat());
    wait_until_joined(fixture.output, 1);
    tail.signal(Signal::Stop);
    day.play_first_half(&fixture);
    tail.signal(Signal::Continue);
    tail.wait_for_stderr("books are suspect");
    day.play_second_half(&fixture);
    let tail = tail.end();
    assert!(tail.stderr.contains("books are right again"), "{}", tail.stderr);
    let _ = tail.expect_code(1);
    let (expected, _) = ConsumerBooks::of_file(&day.expected);
    let (found, content) = ConsumerBooks::of_file(&fs::read(out).unwrap());
    assert!(content.snapshot_records > 0 && content.suspect_records == 0, "{content:?}");
    assert!(found.orders == expected.orders, "the books differ: {content:?}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The leader dies in the middle of its image. The subscriber discards the chunks that it has, and takes the image of the new leader.
#[test]
fn an_image_that_its_dead_leader_left_incomplete_is_replaced_by_the_new_leaders() {
    // A pass takes seconds.
    let mut pair = ElectedPair::new(options("interval_ms = 50\nbytes_per_second = 60000\npasses = 1"));
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    pair.wait_until_eligible(2);
    let [of_one, of_two] = [1, 2].map(|node| pair.gateways.fixture(node).snapshot_group());
    assert_eq!(of_one, of_two, "a pair has one group");
    let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
    day.play_first_half(pair.gateways.fixture(1));
    let observer = observe(of_one);
    let (tail, out, (old_image, .., old_epoch)) = (0..5)
        .find_map(|_| {
            let (tail, out) = start_tail(pair.gateways.fixture(1), of_one, &["--from-snapshot"]);
            tail.wait_for_stderr(": session ");
            // The image that is on its way was taken before the subscriber came, and may be of no use to it. The next one is.
            let (image_before, ..) = newest_chunk(&observer);
            let mut seen = (image_before, 0, 0, 0);
            wait_until("the next image is on its way", || {
                seen = newest_chunk(&observer);
                let (image, chunk, count, _) = seen;
                image != image_before && chunk >= 10 && chunk < count / 2
            });
            // The image before was of use if it had only just begun: another subscriber is to find the middle of one.
            (!tail.stderr_so_far().contains(SNAPSHOT)).then_some((tail, out, seen))
        })
        .expect("a subscriber without an image");
    pair.gateways.kill(1);
    let before = tail.stderr_so_far();
    assert!(!before.contains(SNAPSHOT), "an image was whole before the leader died: {before}");
    let mut seen = (old_image, 0, 0, old_epoch);
    wait_until("the new leader sends an image", || {
        seen = newest_chunk(&observer);
        seen.3 > old_epoch
    });
    assert!(seen.0 != old_image, "{seen:?}");
    tail.wait_for_stderr(SNAPSHOT);
    day.play_second_half(pair.gateways.fixture(1));
    let _ = check_books(&day, tail, &out);
    let _stopped = pair.gateways.stop(2);
}

/// A socket that receives the group too.
fn observe(group: SocketAddrV4) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_read_timeout(Some(process::TEST_TIMEOUT)).unwrap();
    socket.bind(&group.into()).unwrap();
    socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST).unwrap();
    socket.into()
}

/// Number of the image, number of the chunk, chunks of the image, and epoch of the newest packet.
fn newest_chunk(observer: &UdpSocket) -> (u32, u32, u32, u64) {
    let mut datagram = [0; 2_048];
    let mut length = observer.recv(&mut datagram).unwrap();
    observer.set_nonblocking(true).unwrap();
    while let Ok(later) = observer.recv(&mut datagram) {
        length = later;
    }
    observer.set_nonblocking(false).unwrap();
    let packet = parse_packet(&datagram[..length]).unwrap();
    let chunk = SnapshotChunk::from_packet(&packet).unwrap();
    (chunk.image.image, chunk.chunk, chunk.image.chunk_count, packet.meta.epoch.0)
}
