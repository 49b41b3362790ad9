//! Every invalid field is rejected with its reason.

use proptest::prelude::*;
use zerocopy::little_endian::I32;

use super::*;
use crate::{formats::check, identity::Feed, time::TradingDate};

fn meta(first: u64, next: u64) -> PacketMeta {
    PacketMeta {
        flags: PacketFlags::default(),
        group: GroupId(1),
        channel: ChannelId(2),
        epoch: Epoch::new(3, 4),
        session: Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_240_102).unwrap(), restart: 5 },
        first: Sequence(first),
        next: Sequence(next),
        send_time_ns: 6,
    }
}

/// A frame whose body is one record of `record_bytes`.
fn frame(sequence: u64, kind: FrameKind, part: u16, flags: u8, body: &[u8]) -> Vec<u8> {
    let is_records = matches!(kind, FrameKind::Message | FrameKind::Snapshot);
    let header = FrameHeader {
        sequence: U64::new(sequence),
        ts_recv: U64::ZERO,
        ts_in_delta_ns: I32::ZERO,
        body_bytes: U16::new(u16::try_from(body.len()).unwrap()),
        record_count: U16::new(u16::from(is_records)),
        kind: kind as u8,
        flags,
        part: U16::new(part),
        reserved: U32::ZERO,
    };
    [header.as_bytes(), body].concat()
}

fn record() -> [u8; 24] {
    let mut record = [0; 24];
    record[0] = 6;
    record
}

fn message(sequence: u64) -> Vec<u8> {
    frame(sequence, FrameKind::Message, 0, 3, &record())
}

fn packet(meta: &PacketMeta, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let length = write_packet(meta, &frames.concat(), &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn reason(bytes: &[u8]) -> DropReason {
    parse_packet(bytes).unwrap_err()
}

#[test]
fn packets_round_trip() {
    let gap = [4_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
    let frames =
        [message(1), message(3), frame(4, FrameKind::Gap, 0, 3, &gap), frame(7, FrameKind::State, 0, 3, &[0; 8])];
    let bytes = packet(&meta(1, 9), &frames);
    let parsed = parse_packet(&bytes).unwrap();
    assert_eq!((parsed.meta, parsed.frame_count, parsed.part), (meta(1, 9), 4, None));
    let sequences: Vec<_> = parsed.frames().map(|(header, _)| header.sequence.get()).collect();
    assert_eq!(sequences, [1, 3, 4, 7]);
    assert_eq!(&bytes[..4], b"MDGW");
}

#[test]
fn packets_written_by_0_1_0_are_read() {
    let header = |sequence, kind, flags, part, body: &[u8]| FrameHeader {
        ts_recv: U64::new(7),
        ts_in_delta_ns: I32::new(-8),
        ..*FrameHeader::ref_from_prefix(&frame(sequence, kind, part, flags, body)).unwrap().0
    };
    let framed = |sequence, kind, flags, part, body: &[u8]| (header(sequence, kind, flags, part, body), body.to_vec());
    let gap = GapBody { first: U64::new(4), next: U64::new(7) };
    let state = StateBody { state: 2, reserved: [0; 7] };
    let suspect_fill = 3 | FrameFlags::SUSPECT.with(FrameFlags::LATE_FILL).0;
    let frames = vec![
        framed(1, FrameKind::Message, 3, 0, &record()),
        framed(4, FrameKind::Gap, 3, 0, gap.as_bytes()),
        framed(7, FrameKind::State, 3, 0, state.as_bytes()),
        framed(2, FrameKind::Message, suspect_fill, 0, &record()),
    ];
    let flagged = |flags, meta| PacketMeta { flags, ..meta };
    let (heartbeat, snapshot) = (PacketFlags::HEARTBEAT, PacketFlags::SNAPSHOT);
    let again = PacketFlags::RETRANSMISSION;
    let packets = [
        (meta(1, 9), frames),
        (flagged(again, meta(9, 9)), vec![framed(9, FrameKind::Message, FrameFlags::FIRST_PART.0, 0, &record())]),
        (flagged(again, meta(9, 10)), vec![framed(9, FrameKind::Message, FrameFlags::LAST_PART.0, 1, &record())]),
        (flagged(snapshot, meta(9, 10)), vec![framed(9, FrameKind::Snapshot, 3, 0, &record())]),
        (flagged(heartbeat.with(PacketFlags::END_OF_SESSION), meta(10, 12)), Vec::new()),
    ];
    check(
        include_str!("../../../../../tests/data/formats/published_packets.hex"),
        &packets,
        |bytes| {
            let packet = parse_packet(bytes).unwrap();
            (packet.meta, packet.frames().map(|(header, body)| (*header, body.to_vec())).collect())
        },
        |(meta, frames)| {
            let frames: Vec<_> = frames.iter().map(|(header, body)| [header.as_bytes(), body].concat()).collect();
            packet(meta, &frames)
        },
    );
}

#[test]
fn every_truncation_is_refused() {
    let bytes = packet(&meta(1, 3), &[message(1), message(2)]);
    for length in 0..bytes.len() {
        assert!(parse_packet(&bytes[..length]).is_err(), "{length} bytes");
    }
    let longer = [bytes, vec![0]].concat();
    assert_eq!(reason(&longer), DropReason::LengthMismatch);
}

#[test]
fn frames_that_leave_the_range_or_do_not_ascend_are_refused() {
    assert_eq!(reason(&packet(&meta(2, 3), &[message(1)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(2, 3), &[message(3)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(1, 3), &[message(2), message(1)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(1, 3), &[message(1), message(1)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(3, 2), &[])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(1, SEQUENCE_END), &[])), DropReason::SequenceInvalid);
    // A late fill precedes the packet's range by definition.
    let late_fill = frame(1, FrameKind::Message, 0, 3 | FrameFlags::LATE_FILL.0, &record());
    assert!(parse_packet(&packet(&meta(9, 10), &[late_fill, message(9)])).is_ok());
}

#[test]
fn a_part_is_alone_in_its_packet_and_only_the_last_covers_the_message() {
    let part = |number, flags| frame(5, FrameKind::Message, number, flags, &record());
    let first = packet(&meta(3, 5), &[part(0, 1)]);
    assert_eq!(parse_packet(&first).unwrap().part, Some(Part { sequence: Sequence(5), part: 0, is_last: false }));
    let last = packet(&meta(5, 6), &[part(2, 2)]);
    assert_eq!(parse_packet(&last).unwrap().part, Some(Part { sequence: Sequence(5), part: 2, is_last: true }));
    assert_eq!(reason(&packet(&meta(5, 6), &[part(1, 0)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(4, 5), &[part(1, 0)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(5, 7), &[part(2, 2)])), DropReason::SequenceInvalid);
    assert_eq!(reason(&packet(&meta(4, 5), &[message(4), part(0, 1)])), DropReason::FieldInvalid);
}

#[test]
fn bodies_not_matching_their_kind_are_refused() {
    let with = |kind, body: &[u8]| reason(&packet(&meta(1, 9), &[frame(1, kind, 0, 3, body)]));
    assert_eq!(with(FrameKind::Message, &[6; 20]), DropReason::MessageLength);
    assert_eq!(with(FrameKind::Message, &[0; 24]), DropReason::MessageLength);
    assert_eq!(with(FrameKind::Message, &[6; 48]), DropReason::MessageLength);
    assert_eq!(with(FrameKind::Gap, &[0; 8]), DropReason::MessageLength);
    assert_eq!(with(FrameKind::Gap, &[1; 16]), DropReason::SequenceInvalid);
    assert_eq!(with(FrameKind::State, &[0; 16]), DropReason::MessageLength);
    let heartbeat = PacketMeta { flags: PacketFlags::HEARTBEAT, ..meta(1, 2) };
    assert_eq!(reason(&packet(&heartbeat, &[message(1)])), DropReason::LengthMismatch);
}

#[test]
fn invalid_header_fields_are_refused() {
    let bytes = packet(&meta(1, 2), &[message(1)]);
    let with = |index: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[index] = value;
        reason(&bytes)
    };
    assert_eq!(with(0, 0), DropReason::ProtocolMismatch);
    assert_eq!(with(4, 2), DropReason::ProtocolMismatch);
    assert_eq!(with(5, 0x80), DropReason::ProtocolMismatch);
    assert_eq!(with(10, 2), DropReason::LengthMismatch);
    assert_eq!(with(10, 0), DropReason::LengthMismatch);
    assert_eq!(with(12, 0), DropReason::LengthMismatch);
    assert_eq!(with(14, 1), DropReason::ProtocolMismatch);
    assert_eq!(with(26, 1), DropReason::FieldInvalid);
    assert_eq!(with(64 + 24, 9), DropReason::ProtocolMismatch);
}

#[test]
fn a_packet_larger_than_the_buffer_is_not_written() {
    let body = message(1);
    let mut datagram = [0; PACKET_HEADER_BYTES + 40];
    assert_eq!(write_packet(&meta(1, 2), &body, &mut datagram), None);
    assert_eq!(write_packet(&meta(1, 2), &body[..50], &mut [0; 500]), None);
    assert_eq!(count_frames(&[message(1), message(2)].concat()), Some(2));
}

proptest! {
    /// Every accepted packet is iterated to its end, frame by frame, with nothing left over.
    #[test]
    fn frames_of_a_checked_packet_fill_its_body(
        damage in prop::collection::vec((0..300_usize, any::<u8>()), 0..6),
        frame_count in 0..5_u64,
    ) {
        let frames: Vec<_> = (1..=frame_count).map(message).collect();
        let mut bytes = packet(&meta(1, 6), &frames);
        for (index, value) in damage {
            let index = index % bytes.len();
            bytes[index] = value;
        }
        if let Ok(parsed) = parse_packet(&bytes) {
            let walked: usize = parsed.frames().map(|(_, body)| FRAME_HEADER_BYTES + body.len()).sum();
            prop_assert_eq!(walked, parsed.body.len());
            prop_assert_eq!(parsed.frames().count(), usize::from(parsed.frame_count));
            prop_assert!(parsed.meta.first <= parsed.meta.next);
        }
    }
}
