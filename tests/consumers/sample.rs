//! The sample capture: a synthetic session through the product's channel, log, packets and retransmission service. Two output lines,
//! a takeover, and a receiver that asks for the definitions, the extent and messages of the session.

use std::net::SocketAddrV4;

use mdgw_captures::capture_file::{CaptureFile, OpenOptions, PcapWriter};
use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram},
    identity::{Epoch, Feed, Line, Sequence},
    published::{
        packet::{PacketFlags, parse_packet},
        request::{RequestKind, ServiceRequest},
    },
    time::{MonoNs, UnixNs},
};
use mdgw_subscriber::{Item, PublishedDatagram, Receiver, ReceiverConfig};
use mdgw_tests::{feeds, pair::LogEntry};
use zerocopy::IntoBytes as _;

use super::{
    data_files::{assert_current, path},
    virtual_gateway::{CHANNEL, GROUP, VirtualGateway, session},
};

/// Name of the sample capture, which a simulated gateway makes.
pub(crate) const FILE: &str = "sample.pcap";

const MESSAGES: u64 = 300;
const GATEWAYS: [&str; 2] = ["10.20.0.5:40000", "10.20.0.6:40000"];
const SERVICE: &str = "10.20.0.6:31100";
const RECEIVER: &str = "10.20.0.77:50000";
const LINES: [&str; 2] = ["239.66.1.1:31000", "239.66.1.2:31000"];
const MIDNIGHT_NS: u64 = 1_704_171_600_000_000_000;

#[test]
fn the_sample_is_current() {
    assert_current(FILE, &capture());
}

/// Number of datagrams in the file.
pub(crate) fn packet_count() -> usize {
    datagrams().len()
}

#[test]
fn a_receiver_gets_the_whole_session_from_the_sample() {
    let mut receiver = Receiver::new(ReceiverConfig { group: GROUP, lines: 2, ..ReceiverConfig::default() });
    let mut sequences = Vec::new();
    let mut records = 0;
    let mut has_ended = false;
    let mut deliver = |output: mdgw_subscriber::Output<'_>| match output.item {
        Item::Message { header, .. } => {
            sequences.push(header.sequence.get());
            records += u64::from(header.record_count.get());
        }
        Item::EndOfSession => has_ended = true,
        Item::Gap(_) | Item::Lost(_) => panic!("{output:?}"),
        _ => {}
    };
    for (time_ns, destination, bytes) in datagrams() {
        let Some(line) = LINES.iter().position(|line| *line == destination.to_string()) else { continue };
        let line = Line(u8::try_from(line).unwrap());
        let datagram = PublishedDatagram { line, service: 0, bytes: &bytes, ts_recv: UnixNs(time_ns) };
        let _duplicates = receiver.accept(datagram, MonoNs(time_ns), &mut deliver);
    }
    assert!(has_ended && records > MESSAGES / 2, "{records}");
    assert!(sequences.is_sorted() && sequences.len() > usize::try_from(MESSAGES / 2).unwrap());
    assert_eq!(receiver.epoch(), Some(Epoch::new(4, 2)));
}

/// Time, destination and payload of each datagram in the file.
fn datagrams() -> Vec<(u64, std::net::SocketAddr, Vec<u8>)> {
    let mut file = CaptureFile::open(&path(FILE), &OpenOptions::default()).unwrap();
    let mut datagrams = Vec::new();
    while let Some(datagram) = file.next_datagram().unwrap() {
        datagrams.push((datagram.time_ns, datagram.dst, datagram.payload.to_vec()));
    }
    datagrams
}

struct Capture {
    writer: PcapWriter<Vec<u8>>,
    now: UnixNs,
}

impl Capture {
    fn send(&mut self, from: &str, to: &str, datagram: &[u8]) {
        let [from, to]: [SocketAddrV4; 2] = [from, to].map(|address| address.parse().unwrap());
        self.now.0 += 2_000;
        self.writer.datagram(self.now.0, from, to, datagram).unwrap();
    }

    fn publish(&mut self, gateway: usize, packet: &[u8]) {
        LINES.iter().for_each(|line| self.send(GATEWAYS[gateway], line, packet));
    }
}

fn capture() -> Vec<u8> {
    let mut gateway = gateway_after_the_session();
    gateway.set_epoch(Epoch::new(4, 2));
    let entries = gateway.entries();
    let (before, after) = entries.split_at(entries.len() / 2);
    let epochs = [Epoch::new(3, 1), Epoch::new(4, 2)];
    let mut capture = Capture { writer: PcapWriter::new(Vec::new()).unwrap(), now: UnixNs(MIDNIGHT_NS) };
    let none = PacketFlags::default();
    let beat = |entry: &LogEntry| LogEntry {
        first: entry.next,
        flags: PacketFlags(entry.flags.0 | PacketFlags::HEARTBEAT.0),
        payload: Vec::new(),
        ..entry.clone()
    };
    for entry in before {
        capture.publish(0, &gateway.packet(entry, epochs[0], none, capture.now));
    }
    let last = before.last().unwrap();
    capture.now.0 += 100_000_000;
    capture.publish(0, &gateway.packet(&beat(last), epochs[0], none, capture.now));
    // The leader ends. Its successor announces itself, and repeats what it has not received of it.
    capture.now.0 += 40_000_000;
    capture.publish(1, &gateway.packet(&beat(&before[before.len() - 3]), epochs[1], none, capture.now));
    for entry in &before[before.len() - 2..] {
        capture.publish(1, &gateway.packet(entry, epochs[1], PacketFlags::RETRANSMISSION, capture.now));
    }
    for entry in after {
        capture.publish(1, &gateway.packet(entry, epochs[1], none, capture.now));
    }
    capture.publish(1, &gateway.packet(&beat(after.last().unwrap()), epochs[1], none, capture.now));
    let requests = [
        (RequestKind::Epoch, 0x1234_5678_9abc, 0x1234_5678_9abc),
        (RequestKind::Definitions, 0, 0),
        (RequestKind::Range, 0, 0),
        (RequestKind::Range, 30, 60),
        (RequestKind::Sessions, 0, 0),
    ];
    for (kind, first, next) in requests {
        let (first, next) = (Sequence(first), Sequence(next));
        let session = Some(session(0));
        let request =
            ServiceRequest { kind, group: GROUP, channel: CHANNEL, session, first, next, nonce: 0x0102_0304_0506_0708 };
        let request = request.to_packet().as_bytes().to_vec();
        capture.send(RECEIVER, SERVICE, &request);
        for packet in gateway.answer(&request, capture.now, None) {
            assert!(parse_packet(&packet).is_ok());
            capture.send(SERVICE, RECEIVER, &packet);
        }
    }
    capture.writer.finish().unwrap()
}

/// A gateway that has received a synthetic Nasdaq session.
fn gateway_after_the_session() -> VirtualGateway {
    let mut config = ChannelConfig::new(CHANNEL, Feed::NasdaqItch);
    config.date = Some(session(0).date);
    (config.books.orders_max, config.books.levels_max) = (4_096, 4_096);
    let mut channel = Channel::new(config);
    let mut gateway = VirtualGateway::new(1_392);
    let day = mdgw_simulator::itch_generator::ItchDay {
        seed: 1,
        message_count: MESSAGES,
        stock_count: 8,
        live_orders: 60,
        ..Default::default()
    };
    for (time_ns, bytes) in feeds::itch_packets(day, feeds::SESSION, MIDNIGHT_NS) {
        let (ts_recv, now) = (UnixNs(time_ns + 4_000), MonoNs(time_ns));
        gateway.log().begin(ts_recv);
        let datagram = Datagram { line: Line::A, bytes: &bytes, ts_recv };
        channel.accept(datagram, now, gateway.log());
        gateway.flush();
    }
    channel.finish(gateway.log());
    gateway.commit_covered();
    gateway
}
