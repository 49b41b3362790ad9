//! Tests over loopback sockets: a line that loses packets, and a service that stores them.

use std::net::UdpSocket;

use mdgw_wire::{
    frame::{FrameFlags, FrameHeader, FrameKind},
    identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
    published::{
        packet::{PacketFlags, PacketMeta, write_packet},
        request::{RequestKind, ServiceRequest},
    },
    time::TradingDate,
};
use zerocopy::little_endian::{I32, U16, U32, U64};

use super::*;

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn session() -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_240_102).unwrap(), restart: 0 }
}

fn packet(flags: PacketFlags, (first, next): (u64, u64), body: &[u8]) -> Vec<u8> {
    let (group, channel, epoch) = (GroupId(0), ChannelId(1), Epoch::new(1, 1));
    let (first, next) = (Sequence(first), Sequence(next));
    let meta = PacketMeta { flags, group, channel, epoch, session: session(), first, next, send_time_ns: 0 };
    let mut bytes = vec![0; 1_472];
    let length = write_packet(&meta, body, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// A packet with one message of one record.
fn message(flags: PacketFlags, sequence: u64) -> Vec<u8> {
    let mut record = [0_u8; 56];
    // An mbo record: 14 words.
    (record[0], record[1]) = (14, 0xa0);
    let header = FrameHeader {
        sequence: U64::new(sequence),
        ts_recv: U64::new(1_000 + sequence),
        ts_in_delta_ns: I32::new(0),
        body_bytes: U16::new(56),
        record_count: U16::new(1),
        kind: FrameKind::Message as u8,
        flags: FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0,
        part: U16::new(0),
        reserved: U32::ZERO,
    };
    packet(flags, (sequence, sequence + 1), &[header.as_bytes(), &record].concat())
}

/// Polls until `is_done`, with a bound that only a hang can reach.
fn poll_until(subscriber: &mut Subscriber, items: &mut Vec<String>, is_done: impl Fn(&[String]) -> bool) {
    let until = mono_now().plus(60_000_000_000);
    while !is_done(items) {
        assert!(mono_now() < until, "nothing more came: {items:?}");
        subscriber
            .poll(Duration::from_millis(100), &mut |output| {
                items.push(match output.item {
                    Item::Session => "session".to_owned(),
                    Item::Message { header, .. } => header.sequence.get().to_string(),
                    Item::Lost(gap) => format!("lost {}..{}", gap.first().0, gap.next().0),
                    item => format!("{item:?}"),
                });
            })
            .unwrap();
    }
}

#[test]
fn lost_messages_are_recovered_from_a_responding_service() {
    // The first service never answers; the second one does.
    let silent_service = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    let SocketAddr::V4(dead_address) = silent_service.local_addr().unwrap() else { panic!("asked for IPv4") };
    let service = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    let SocketAddr::V4(service_address) = service.local_addr().unwrap() else { panic!("asked for IPv4") };
    let line = LineAddress::new(SocketAddrV4::new(LOOPBACK, 0), LOOPBACK);
    let config =
        SubscriberConfig { services: vec![dead_address, service_address], ..SubscriberConfig::new(vec![line]) };
    let mut subscriber = Subscriber::open(config).unwrap();
    let line_address = subscriber.line_addresses().unwrap()[0];

    let gateway = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    let mut items = Vec::new();
    for sequence in [1, 2, 5] {
        gateway.send_to(&message(PacketFlags::default(), sequence), line_address).unwrap();
    }
    let service_thread = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        loop {
            let (length, requester) = service.recv_from(&mut buffer).unwrap();
            let request = ServiceRequest::parse(&buffer[..length]).unwrap();
            if request.kind == RequestKind::Epoch {
                let range = (request.first.0, request.next.0);
                service.send_to(&packet(PacketFlags::EPOCH_ANSWER, range, &[]), requester).unwrap();
                continue;
            }
            for sequence in request.first.0..request.next.0 {
                service.send_to(&message(PacketFlags::RETRANSMISSION, sequence), requester).unwrap();
            }
            let end = packet(PacketFlags::RETRANSMISSION.with(PacketFlags::HEARTBEAT), (1, 6), &[]);
            service.send_to(&end, requester).unwrap();
            break (request.first.0, request.next.0, request.session);
        }
    });
    poll_until(&mut subscriber, &mut items, |items| items.len() >= 6);
    assert_eq!(items, ["session", "1", "2", "3", "4", "5"]);
    assert_eq!(service_thread.join().unwrap(), (3, 5, Some(session())));
    assert!(subscriber.statistics().requests >= 2, "the first one was asked first");
    assert!(silent_service.recv(&mut [0; 100]).is_ok());
}

#[test]
fn only_configured_senders_are_received() {
    let [one, two, other] = [1, 2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
    // A group, where the kernel filters, and a unicast line, where the subscriber does.
    for (address, refused) in [(Ipv4Addr::new(239, 255, 71, 60), 0), (LOOPBACK, 1)] {
        let line = LineAddress::new(SocketAddrV4::new(address, 0), LOOPBACK);
        let mut config = SubscriberConfig::new(vec![line]);
        config.sources = vec![one, two];
        let mut subscriber = Subscriber::open(config).unwrap();
        let to = subscriber.line_addresses().unwrap()[0];
        for (source, sequence) in [(other, 9), (one, 1), (two, 2)] {
            let sender = UdpSocket::bind((source, 0)).unwrap();
            socket2::SockRef::from(&sender).set_multicast_if_v4(&LOOPBACK).unwrap();
            sender.send_to(&message(PacketFlags::default(), sequence), to).unwrap();
        }
        let mut items = Vec::new();
        poll_until(&mut subscriber, &mut items, |items| items.iter().any(|item| item == "2"));
        assert_eq!(items, ["session", "1", "2"], "{address}");
        assert_eq!(subscriber.statistics().sources_refused, refused, "{address}");
    }
}

#[test]
fn messages_no_source_has_are_reported_lost() {
    let line = LineAddress::new(SocketAddrV4::new(LOOPBACK, 0), LOOPBACK);
    let mut subscriber = Subscriber::open(SubscriberConfig::new(vec![line, line])).unwrap();
    let addresses = subscriber.line_addresses().unwrap();
    let gateway = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    for (line, sequence) in [(0, 1), (1, 1), (0, 2), (1, 4)] {
        gateway.send_to(&message(PacketFlags::default(), sequence), addresses[line]).unwrap();
    }
    let mut items = Vec::new();
    poll_until(&mut subscriber, &mut items, |items| items.iter().any(|items| items == "4"));
    assert_eq!(items, ["session", "1", "2", "lost 3..4", "4"]);
}

#[test]
fn a_flood_does_not_suspend_the_report_of_a_loss() {
    let line = LineAddress::new(SocketAddrV4::new(LOOPBACK, 0), LOOPBACK);
    let mut subscriber = Subscriber::open(SubscriberConfig::new(vec![line])).unwrap();
    let address = subscriber.line_addresses().unwrap()[0];
    let sender = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    for range in [(1, 2), (5, 5)] {
        sender.send_to(&packet(PacketFlags::HEARTBEAT, range, &[]), address).unwrap();
    }
    let mut lost = Vec::new();
    for _ in 0..1_000 {
        // More than a round reads, so that the socket is never empty.
        for _ in 0..100 {
            sender.send_to(b"junk", address).unwrap();
        }
        let read = subscriber.poll(Duration::ZERO, &mut |output| {
            if let Item::Lost(gap) = output.item {
                lost.push((gap.first().0, gap.next().0));
            }
        });
        assert_eq!(read.unwrap(), DATAGRAMS_PER_SOCKET_MAX, "the socket was empty");
        if !lost.is_empty() {
            break;
        }
    }
    assert_eq!(lost, [(2, 5)]);
}

#[test]
fn records_get_ts_recv_at_the_consumer_edge() {
    let line = LineAddress::new(SocketAddrV4::new(LOOPBACK, 0), LOOPBACK);
    let mut subscriber = Subscriber::open(SubscriberConfig::new(vec![line])).unwrap();
    let gateway = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    gateway.send_to(&message(PacketFlags::default(), 1), subscriber.line_addresses().unwrap()[0]).unwrap();
    let mut edges = ConsumerEdges::new(TsRecvMode::Capture);
    let mut record_count = 0;
    let until = mono_now().plus(60_000_000_000);
    while record_count == 0 && mono_now() < until {
        subscriber
            .poll(Duration::from_millis(100), &mut |output| {
                let rest = edges.deliver(&output, |handed| {
                    record_count += usize::from(matches!(handed, EdgeOutput::Record { .. }));
                });
                assert_eq!(rest, 0);
            })
            .unwrap();
    }
    assert_eq!(record_count, 1);
}

#[test]
fn messages_after_a_requested_definition_keep_their_receive_time() {
    let header = |ts_recv| FrameHeader {
        sequence: U64::new(1),
        ts_recv: U64::new(ts_recv),
        ts_in_delta_ns: I32::new(0),
        body_bytes: U16::new(56),
        record_count: U16::new(1),
        kind: FrameKind::Message as u8,
        flags: FrameFlags::default().0,
        part: U16::new(0),
        reserved: U32::ZERO,
    };
    let (afternoon, morning) = (header(9_000), header(2_000));
    let mut body = [0_u8; 56];
    // An mbo record: 14 words.
    (body[0], body[1]) = (14, 0xa0);
    let mut edges = ConsumerEdges::new(TsRecvMode::Capture);
    let mut delivered = Vec::new();
    for item in [
        Item::Definition { header: &afternoon, body: &body },
        Item::Message { header: &morning, body: &body },
        Item::Message { header: &header(1_000), body: &body },
    ] {
        let output = Output { channel: ChannelId(1), session: session(), reported_through: Sequence(0), item };
        let rest = edges.deliver(&output, |handed| {
            if let EdgeOutput::Record { bytes, .. } = handed {
                // Fields of an mbo record: `ts_recv`, and bit 3 of the flags: `ts_recv` is undefined.
                delivered.push((u64::from_le_bytes(bytes[40..48].try_into().unwrap()), bytes[36] & 1 << 3 != 0));
            }
        });
        assert_eq!(rest, 0);
    }
    // Control: within the stream itself, times never decrease.
    assert_eq!(delivered, [(9_000, false), (2_000, false), (2_000, true)]);
}

#[test]
fn a_line_that_cannot_be_joined_is_named_in_the_error() {
    let line = LineAddress::new("239.1.2.3:0".parse().unwrap(), Ipv4Addr::new(203, 0, 113, 7));
    let error = Subscriber::open(SubscriberConfig::new(vec![line])).unwrap_err();
    assert!(error.to_string().starts_with("cannot receive 239.1.2.3:0 on interface 203.0.113.7: "), "{error}");
    assert!(matches!(Subscriber::open(SubscriberConfig::new(Vec::new())), Err(SubscriberError::LineCount(0))));
}

/// The items of the callback, in its order, with their own bytes.
#[test]
fn the_iterator_yields_records_sessions_and_losses_in_order() {
    let config = SubscriberConfig::new(vec![LineAddress::new(SocketAddrV4::new(LOOPBACK, 0), LOOPBACK)]);
    let subscriber = Subscriber::open(config).unwrap();
    let address = subscriber.line_addresses().unwrap()[0];
    let sender = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    // Sequence 2 is lost, and no service has it.
    for sequence in [1, 3] {
        sender.send_to(&message(PacketFlags::default(), sequence), address).unwrap();
    }
    let events: Vec<_> = subscriber.events(TsRecvMode::Capture).take(4).map(|event| event.unwrap().kind).collect();
    let [EventKind::Session(begun), EventKind::Record(first), EventKind::Lost(lost), EventKind::Record(third)] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*begun, lost.count()), (session(), 1));
    let ts_recv = |record: &[u8]| u64::from_le_bytes(record[40..48].try_into().unwrap());
    assert_eq!((first.len(), ts_recv(first), ts_recv(third)), (56, 1_001, 1_003), "with their local times");
}
