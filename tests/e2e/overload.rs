//! More packets than a gateway takes: the kernel drops some, each is counted, what can be recovered is, and books are marked until
//! they are rebuilt.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, net::SocketAddrV4, path::Path};

use mdgw_feeds::transport::{Transport, moldudp64::MoldUdp64};
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal, wait_until},
};

const DATE: &str = "2019-01-30";

#[test]
fn messages_lost_by_an_overrun_gateway_are_recovered_from_the_venue() {
    let fixture = GatewayFixture::new();
    let gateway = start(&fixture, &GatewayOptions::itch());
    let tail = fixture.tail(&["--until-ended", "-o", text(&fixture.path("out.dbn"))]);
    let requests = fixture.requests.to_string();
    let feed = ["--messages", "60000", "--rate", "4000", "--request-server", &requests];
    let sim = fixture.sim(&feed);
    tail.wait_for_stderr(": session ");
    // The gateway takes nothing until both lines have lost hundreds of packets.
    gateway.signal(Signal::Stop);
    for line in fixture.lines {
        wait_until("the kernel drops packets", || kernel_drops(line) >= 300);
    }
    gateway.signal(Signal::Continue);
    let _ = sim.end().expect_code(0);
    let tail = tail.end().expect_code(0);
    let gateway = gateway.stop_with(Signal::Terminate).expect_code(0);

    assert!(!tail.stderr.contains("gap ["), "{}", tail.stderr);
    let row: Vec<_> =
        gateway.stdout.lines().find(|line| line.starts_with("one ")).unwrap().split_whitespace().collect();
    let [_, state, _, messages, _, gaps, lost, ..] = row[..] else { panic!("{}", gateway.stdout) };
    assert_eq!((state, messages, gaps, lost), ("ended", "60000", "0", "0"), "{}", gateway.stdout);
    assert!(summary_of_drops(&gateway.stdout) >= 600, "{}", gateway.stdout);
    assert!(gateway.stderr.contains("kernel-drops"), "{}", gateway.stderr);
}

#[test]
fn messages_lost_for_good_by_an_overrun_gateway_are_a_gap_that_marks_books_until_the_next_session() {
    let fixture = GatewayFixture::new();
    let packets = feeds::itch_packets(feeds::itch_day(20_000, 5), SESSION, MIDNIGHT_NS);
    let [before, during, after] = [&packets[..500], &packets[500..1_500], &packets[1_500..]];
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = start(&fixture, &options);
    let subscription = ["--schema", "mbo", "--ts-recv", "none", "--until-ended"];
    let [first, second] = ["first.dbn", "second.dbn"].map(|name| fixture.path(name));
    let tail = fixture.tail(&[subscription.as_slice(), &["-o", text(&first)]].concat());
    play(&fixture, before);
    gateway.signal(Signal::Stop);
    play(&fixture, during);
    gateway.signal(Signal::Continue);
    play(&fixture, after);
    let tail = tail.end().expect_code(1);

    // The receivers know the exact range of each packet that the kernel dropped.
    let gaps: Vec<(u64, u64)> = tail.stderr.lines().filter_map(gap_of).collect();
    let is_dropped = |(_, bytes): &&Packet| {
        let packet = MoldUdp64::parse(bytes).unwrap();
        let (first, next) = (packet.first.0, packet.next().0);
        first < next && gaps.iter().any(|gap| gap.0 <= first && next <= gap.1)
    };
    let dropped = packets.iter().filter(is_dropped).count();
    assert!(dropped > during.len() / 2, "{dropped} of {}: {gaps:?}", during.len());
    let received: Vec<_> = packets.iter().filter(|packet| !is_dropped(packet)).cloned().collect();
    let suspect = offline(&fixture, &received, &first);
    assert!(suspect > 0, "the books are marked");

    // The next session has no gap, so its books are right.
    let packets = feeds::itch_packets(feeds::itch_day(5_000, 6), *b"MDGWSIM002", MIDNIGHT_NS);
    let tail = fixture.tail(&[subscription.as_slice(), &["--from-now", "-o", text(&second)]].concat());
    play(&fixture, &packets);
    let _ = tail.end().expect_code(0);
    assert_eq!(offline(&fixture, &packets, &second), 0, "the books are rebuilt");

    let gateway = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert_eq!(summary_of_drops(&gateway.stdout), dropped as u64, "{}", gateway.stdout);
    assert!(gateway.stdout.contains("to drop nothing: "), "{}", gateway.stdout);
}

/// A gateway whose receive buffers hold about a hundred packets.
fn start(fixture: &GatewayFixture, options: &GatewayOptions) -> MdgwProcess {
    let config =
        fixture.config_text(options).replace("receive_buffer_bytes = 4194304", "receive_buffer_bytes = 131072");
    let path = fixture.path("overrun.toml");
    fs::write(&path, config).unwrap();
    let gateway = process::start(["run", text(&path), "--date", DATE, "--ts-recv", "none"]);
    gateway.wait_for_stderr("gateway running");
    gateway
}

/// Sends the packets on line A.
fn play(fixture: &GatewayFixture, packets: &[Packet]) {
    let (capture, line) = (fixture.path("played.pcap"), fixture.lines[0].to_string());
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], packets);
    let replay = ["replay", text(&capture), "--to", &line, "--rate", "1000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).expect_code(0);
}

/// Asserts that the gateway published what an offline replay of these packets yields. Returns how many of its records are suspect.
fn offline(fixture: &GatewayFixture, packets: &[Packet], published: &Path) -> u64 {
    let (capture, out) = (fixture.path("received.pcap"), fixture.path("offline.dbn"));
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], packets);
    let arguments = ["replay", "--offline", text(&capture), "--schema", "mbo", "--ts-recv", "none", "--date", DATE];
    let more = ["--feed", "nasdaq-itch-5.0", "--json", "-o", text(&out)];
    let summary = process::run(arguments.into_iter().chain(more)).expect_code(0).json();
    assert!(fs::read(out).unwrap() == fs::read(published).unwrap(), "offline and published differ");
    summary["total"]["suspect_records"].as_u64().unwrap()
}

/// The range of a gap that `mdgw tail` reports.
fn gap_of(line: &str) -> Option<(u64, u64)> {
    let (first, next) = line.split_once("gap [")?.1.split_once(')')?.0.split_once(", ")?;
    Some((first.parse().ok()?, next.parse().ok()?))
}

/// The kernel's drops in the summary of a gateway.
fn summary_of_drops(summary: &str) -> u64 {
    let line = summary.lines().find_map(|line| line.strip_prefix("dropped by the kernel (socket buffers full): "));
    line.unwrap_or_else(|| panic!("{summary}")).parse().unwrap()
}

/// Datagrams that the kernel dropped for the sockets of that port: last column of `/proc/net/udp`.
fn kernel_drops(line: SocketAddrV4) -> u64 {
    let port = format!(":{:04X}", line.port());
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[1].ends_with(&port)).map(|row| row[row.len() - 1].parse::<u64>().unwrap()).sum()
}
