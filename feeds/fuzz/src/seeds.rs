//! Seeds: a few messages of each kind, written by our own writers.

use mdgw_feeds::{
    frame::{FrameFlags, FrameHeader, FrameKind, StateBody},
    identity::{ChannelId, Epoch, Feed, GroupId, Line, Sequence, Session},
    published::{
        packet::{PACKET_BYTES_MAX, PacketFlags, PacketMeta, write_packet},
        request::{RequestKind, ServiceRequest},
        snapshot::{SnapshotImage, checksum, chunk_frames},
        tag::TAG_BYTES,
    },
    time::{TradingDate, UnixNs},
    transport::{binaryfile, iextp, moldudp64},
    venue::{iex, nasdaq::itch50},
};
use zerocopy::IntoBytes;

use super::push_datagram;

/// The seeds of each target, by its name.
#[must_use]
pub fn all() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let itch = messages(itch50::Message::TYPES);
    let tops = messages(&[iex::tops::Message::TYPES, iex::admin::Admin::TYPES].concat());
    let deep = messages(&[iex::deep::Message::TYPES, iex::admin::Admin::TYPES].concat());
    let mut day = Vec::new();
    assert!(itch.iter().all(|message| binaryfile::write_message(&mut day, message)));
    let unfinished = day.clone();
    binaryfile::write_end_mark(&mut day);
    let moldudp64 = vec![mold(1, &itch), mold(1, &[]), mold_end(24), mold(24, &itch[..2])];
    let iextp = vec![
        segment(iextp::PROTOCOL_TOPS_1_6, 1, &tops),
        segment(iextp::PROTOCOL_DEEP_1_0, 1, &deep),
        segment(iextp::PROTOCOL_DEEP_1_0, 9, &[]),
    ];
    let published: Vec<_> =
        [(1, 5, PacketFlags::default()), (5, 5, PacketFlags::HEARTBEAT), (5, 9, PacketFlags::END_OF_SESSION)]
            .map(|(first, next, flags)| published(first, next, flags))
            .into();
    let mut tagged = [&published[0][..], &[0; TAG_BYTES]].concat();
    // The flags are the sixth byte.
    tagged[5] |= PacketFlags::TAGGED.0;
    let channels = [(0, &moldudp64), (1, &iextp), (2, &iextp)].map(|(feed, packets)| {
        let mut input = vec![feed];
        for packet in packets {
            push_datagram(&mut input, Line::A, packet);
            push_datagram(&mut input, Line::B, packet);
        }
        input
    });
    let mut receiver_input = Vec::new();
    published.iter().for_each(|packet| push_datagram(&mut receiver_input, Line::A, packet));
    vec![
        ("moldudp64", moldudp64),
        ("iextp", iextp),
        ("binaryfile", vec![day, unfinished]),
        ("itch50", itch),
        ("tops", tops),
        ("deep", deep),
        ("packet", [published, vec![tagged]].concat()),
        ("request", requests()),
        ("arbiter", vec![vec![0, 0, 1, 2, 0, 1, 5, 2, 5, 0, 9, 0, 7, 0, 0, 0, 0, 1, 3, 9]]),
        ("channel", channels.into()),
        ("receiver", vec![receiver_input]),
        ("snapshot", vec![snapshot(&[0, 1, 2]), snapshot(&[2, 0, 0, 1])]),
    ]
}

/// Chunks of an image of three, in that order, each with its length before it.
fn snapshot(order: &[u32]) -> Vec<u8> {
    let record = |number: u8| [&[14, 0xa0][..], &[number; 54]].concat();
    let chunks = [1, 2, 3].map(|number| [record(number), record(number)].concat());
    let records = chunks.concat();
    let image = SnapshotImage {
        image: 7,
        next: Sequence(9),
        chunk_count: 3,
        checksum: checksum(&records),
        record_count: 6,
        record_bytes: records.len() as u64,
        order_count: 5,
        instrument_count: 1,
        is_suspect: false,
    };
    let mut input = Vec::new();
    for chunk in order {
        let meta = PacketMeta {
            flags: PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT),
            group: GroupId(1),
            channel: ChannelId(1),
            epoch: Epoch(1),
            session: session(),
            first: Sequence((*chunk).into()),
            next: Sequence(u64::from(*chunk) + 1),
            send_time_ns: 1,
        };
        let body = chunk_frames(&image, *chunk, 5, 2, &chunks[*chunk as usize]);
        let mut datagram = [0; PACKET_BYTES_MAX];
        let length = write_packet(&meta, &body, &mut datagram).expect("a chunk fits");
        input.extend_from_slice(&u16::try_from(length).expect("datagrams are shorter").to_le_bytes());
        input.extend_from_slice(&datagram[..length]);
    }
    input
}

/// One message of each type, of its own length, with printable content.
fn messages<A>(types: &[(u8, A, usize)]) -> Vec<Vec<u8>> {
    let message = |(code, _, length): &(u8, A, usize)| {
        let mut message = vec![b'B'; *length];
        message[0] = *code;
        // Nasdaq's times of day begin with small bytes, IEX's times since 1970 end with small ones.
        if *length > 10 {
            message[1..11].fill(0);
        }
        message
    };
    types.iter().map(message).collect()
}

fn mold(first: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = moldudp64::PacketWriter::begin(&mut out, *b"MDGWFUZZ01", Sequence(first), usize::MAX);
    messages.iter().for_each(|message| assert!(writer.push(message)));
    writer.finish();
    out
}

fn mold_end(next: u64) -> Vec<u8> {
    let mut out = Vec::new();
    moldudp64::write_end_of_session(&mut out, *b"MDGWFUZZ01", Sequence(next));
    out
}

fn segment(message_protocol_id: u16, first: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let stream = iextp::StreamIdentity { message_protocol_id, channel_id: 1, session_id: 7 };
    let position = iextp::SegmentPosition {
        first: Sequence(first),
        stream_offset: 40 * (first - 1),
        send_time: UnixNs(1_548_858_600_000_000_000),
    };
    let mut out = Vec::new();
    let mut writer = iextp::PacketWriter::begin(&mut out, stream, position, usize::MAX);
    messages.iter().for_each(|message| assert!(writer.push(message)));
    writer.finish();
    out
}

fn session() -> Session {
    let date = TradingDate::from_yyyymmdd(20_190_130).expect("a day that was");
    Session { feed: Feed::NasdaqItch, date, restart: 0 }
}

fn published(first: u64, next: u64, flags: PacketFlags) -> Vec<u8> {
    let meta = PacketMeta {
        flags,
        group: GroupId(1),
        channel: ChannelId(1),
        epoch: Epoch(1),
        session: session(),
        first: Sequence(first),
        next: Sequence(next),
        send_time_ns: 1,
    };
    let mut body = Vec::new();
    if !flags.contains(PacketFlags::HEARTBEAT) {
        let whole = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0;
        for sequence in first..next {
            let header = FrameHeader {
                sequence: sequence.into(),
                ts_recv: 0.into(),
                ts_in_delta_ns: 0.into(),
                body_bytes: 80.into(),
                record_count: 1.into(),
                kind: FrameKind::Message as u8,
                flags: whole,
                part: 0.into(),
                reserved: 0.into(),
            };
            body.extend_from_slice(header.as_bytes());
            let mut record = [0; 80];
            record[0] = 20;
            body.extend_from_slice(&record);
        }
        let state = StateBody::of(mdgw_feeds::channel::ChannelState::Live);
        let header = FrameHeader {
            sequence: next.into(),
            ts_recv: 0.into(),
            ts_in_delta_ns: 0.into(),
            body_bytes: 8.into(),
            record_count: 0.into(),
            kind: FrameKind::State as u8,
            flags: whole,
            part: 0.into(),
            reserved: 0.into(),
        };
        body.extend_from_slice(header.as_bytes());
        body.extend_from_slice(state.as_bytes());
    }
    let mut datagram = vec![0; PACKET_BYTES_MAX];
    let length = write_packet(&meta, &body, &mut datagram).expect("a few frames fit");
    datagram.truncate(length);
    datagram
}

fn requests() -> Vec<Vec<u8>> {
    [(RequestKind::Range, Some(session())), (RequestKind::Definitions, None), (RequestKind::Sessions, Some(session()))]
        .map(|(kind, session)| {
            let (group, channel) = (GroupId(1), ChannelId(1));
            let request =
                ServiceRequest { kind, group, channel, session, first: Sequence(1), next: Sequence(9), nonce: 7 };
            request.to_packet().as_bytes().to_vec()
        })
        .into()
}
