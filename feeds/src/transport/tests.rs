//! Properties of every transport: reading inverts writing, and no bytes make reading panic.

use proptest::{collection::vec, prelude::*};
use zerocopy::IntoBytes;

use super::{
    iextp::{self, SegmentPosition, StreamIdentity},
    moldudp64::MoldUdp64,
    *,
};

const STREAM: StreamIdentity =
    StreamIdentity { message_protocol_id: iextp::PROTOCOL_DEEP_1_0, channel_id: 1, session_id: 7 };
const SESSION: moldudp64::MoldSession = *b"SESSION 01";

fn position(first: u64) -> SegmentPosition {
    SegmentPosition { first: Sequence(first), stream_offset: (first - 1).saturating_mul(40), send_time: UnixNs(11) }
}

fn mold(first: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = moldudp64::PacketWriter::begin(&mut bytes, SESSION, Sequence(first), usize::MAX);
    assert!(messages.iter().all(|message| writer.push(message)));
    assert_eq!(usize::from(writer.finish()), messages.len());
    bytes
}

fn iex(first: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = iextp::PacketWriter::begin(&mut bytes, STREAM, position(first), usize::MAX);
    assert!(messages.iter().all(|message| writer.push(message)));
    assert_eq!(usize::from(writer.finish()), messages.len());
    bytes
}

fn walk<T: Transport>(packet: &Packet<'_>) -> Vec<Vec<u8>> {
    let mut block = packet.messages;
    let messages = core::iter::from_fn(|| T::next_message(&mut block)).map(<[u8]>::to_vec).collect();
    assert!(block.is_empty(), "a checked block leaves nothing over");
    messages
}

/// The packet read is exactly the packet written.
fn check_round_trip<T: Transport>(bytes: &[u8], first: u64, messages: &[Vec<u8>]) {
    let packet = T::parse(bytes).unwrap();
    assert_eq!(packet.first, Sequence(first));
    assert_eq!(packet.next(), Sequence(first + messages.len() as u64));
    assert_eq!(packet.kind, if messages.is_empty() { PacketKind::Heartbeat } else { PacketKind::Messages });
    assert_eq!(walk::<T>(&packet), messages);
}

/// For any bytes: rejected, or a packet whose messages and lengths make up everything after its header.
fn check_any<T: Transport>(bytes: &[u8], header_bytes: usize) {
    if let Ok(packet) = T::parse(bytes) {
        let messages = walk::<T>(&packet);
        assert_eq!(messages.len(), packet.count as usize);
        assert_eq!(packet.messages, &bytes[header_bytes..]);
        assert_eq!(messages.iter().map(|message| message.len() + 2).sum::<usize>(), packet.messages.len());
        assert!(packet.first.0 > 0 || packet.unsequenced);
        assert!(packet.first.0.checked_add(u64::from(packet.count)).is_some());
    }
    let _ = detect_protocol(bytes);
}

/// Messages of boundary lengths, some of them empty.
fn messages() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 0..60), 0..30)
}

/// Damage to a packet in transit.
#[derive(Clone, Debug)]
enum Damage {
    Cut(usize),
    Flip(usize, u8),
    Grow(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<usize>().prop_map(Damage::Cut),
        (any::<usize>(), 1_u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        vec(any::<u8>(), 1..8).prop_map(Damage::Grow),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: &Damage) -> Vec<u8> {
    match damage {
        Damage::Cut(at) => bytes.truncate(at % bytes.len()),
        // Header and first lengths are hit as often as all the rest.
        Damage::Flip(at, bits) => {
            let within = if at.is_multiple_of(2) { bytes.len().min(48) } else { bytes.len() };
            bytes[at / 2 % within] ^= bits;
        }
        Damage::Grow(more) => bytes.extend_from_slice(more),
    }
    bytes
}

proptest! {
    #[test]
    fn written_packets_are_read_back(first in 1..u64::MAX / 2, messages in messages()) {
        check_round_trip::<MoldUdp64>(&mold(first, &messages), first, &messages);
        check_round_trip::<iextp::Deep>(&iex(first, &messages), first, &messages);
    }

    #[test]
    fn any_datagram_is_read_completely_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        check_any::<MoldUdp64>(&bytes, moldudp64::HEADER_BYTES);
        check_any::<iextp::Deep>(&bytes, iextp::HEADER_BYTES);
        let _ = moldudp64::Request::parse(&bytes);
    }

    #[test]
    fn a_damaged_packet_is_read_completely_or_refused(first in any::<u64>(), messages in messages(), damage in damage()) {
        check_any::<MoldUdp64>(&damaged(mold(first, &messages), &damage), moldudp64::HEADER_BYTES);
        check_any::<iextp::Deep>(&damaged(iex(first, &messages), &damage), iextp::HEADER_BYTES);
    }

    #[test]
    fn a_cut_or_lengthened_packet_is_refused(messages in messages(), cut in 0..2000_usize, more in vec(any::<u8>(), 1..8)) {
        for (bytes, parse) in [
            (mold(1, &messages), <MoldUdp64 as Transport>::parse as fn(&[u8]) -> Result<Packet<'_>, DropReason>),
            (iex(1, &messages), <iextp::Deep as Transport>::parse),
        ] {
            prop_assert!(parse(&bytes[..cut % bytes.len()]).is_err());
            let lengthened = [&bytes[..], &more].concat();
            prop_assert_eq!(parse(&lengthened), Err(DropReason::TrailingBytes));
        }
    }

    #[test]
    fn a_packet_never_grows_beyond_its_limit(messages in messages(), limit in 40..500_usize) {
        let mut bytes = Vec::new();
        let mut writer = moldudp64::PacketWriter::begin(&mut bytes, SESSION, Sequence(1), limit);
        let fitted = messages.iter().take_while(|message| writer.push(message)).count();
        prop_assert_eq!(usize::from(writer.finish()), fitted);
        prop_assert!(bytes.len() <= limit);
        check_round_trip::<MoldUdp64>(&bytes, 1, &messages[..fitted]);
        if let Some(next) = messages.get(fitted) {
            prop_assert!(bytes.len() + 2 + next.len() > limit);
        }

        let mut writer = iextp::PacketWriter::begin(&mut bytes, STREAM, position(1), limit);
        let fitted = messages.iter().take_while(|message| writer.push(message)).count();
        prop_assert_eq!(usize::from(writer.finish()), fitted);
        prop_assert!(bytes.len() <= limit);
        check_round_trip::<iextp::Deep>(&bytes, 1, &messages[..fitted]);
    }
}

#[test]
fn a_feed_is_recognised_from_one_datagram() {
    let order = [b"D".as_slice(), &[0; 18]].concat();
    let event = [b"S".as_slice(), &[0; 9]].concat();
    assert_eq!(detect_protocol(&mold(5, &[order.clone(), order.clone()])), Some(DetectedProtocol::Itch50));
    assert_eq!(detect_protocol(&mold(5, &[order, event.clone()])), None, "a length that ITCH 5.0 does not have");
    assert_eq!(detect_protocol(&mold(5, &[])), None, "a heartbeat does not identify its venue");
    for (message_protocol_id, feed) in [
        (iextp::PROTOCOL_TOPS_1_5, Some(DetectedProtocol::IexTops)),
        (iextp::PROTOCOL_TOPS_1_6, Some(DetectedProtocol::IexTops)),
        (iextp::PROTOCOL_DEEP_1_0, Some(DetectedProtocol::IexDeep)),
        (0x8005, None),
    ] {
        let mut bytes = Vec::new();
        let stream = StreamIdentity { message_protocol_id, ..STREAM };
        iextp::write_heartbeat(&mut bytes, stream, position(1));
        assert_eq!(detect_protocol(&bytes), feed, "heartbeat of {message_protocol_id:#x}");
        let mut writer = iextp::PacketWriter::begin(&mut bytes, stream, position(1), 1472);
        assert!(writer.push(&event));
        writer.finish();
        assert_eq!(detect_protocol(&bytes), feed, "{message_protocol_id:#x}");
    }
    assert_eq!(detect_protocol(&[]), None);
}

#[test]
fn a_message_of_maximum_length_fits() {
    let messages = [vec![1; usize::from(u16::MAX)]];
    let [longest] = &messages;
    check_round_trip::<MoldUdp64>(&mold(1, &messages), 1, &messages);
    let mut bytes = Vec::new();
    let mut writer = moldudp64::PacketWriter::begin(&mut bytes, SESSION, Sequence(1), usize::MAX);
    assert!(!writer.push(&[longest.as_slice(), &[1]].concat()));
    // In a segment the payload length has 16 bits too.
    let mut writer = iextp::PacketWriter::begin(&mut bytes, STREAM, position(1), usize::MAX);
    assert!(!writer.push(longest));
    assert!(writer.push(&longest[2..]));
    assert_eq!(writer.finish(), 1);
    check_round_trip::<iextp::Deep>(&bytes, 1, &[longest[2..].to_vec()]);
}

#[test]
fn venue_sessions_distinguish_sessions() {
    assert_eq!(moldudp64::venue_session(SESSION), VenueSession(*b"SESSION 01\0\0\0\0\0\0"));
    assert_eq!(moldudp64::session_name(moldudp64::venue_session(SESSION)), SESSION);
    let sessions = [(1, 2), (2, 1), (1, 1)].map(|(session, channel)| iextp::venue_session(session, channel));
    assert_eq!(sessions[0].0, [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(sessions[0] != sessions[1] && sessions[1] != sessions[2] && sessions[0] != sessions[2]);
}

#[test]
fn header_layouts_match_the_specifications() {
    let header = moldudp64::Header { session: SESSION, sequence_number: 0x0102.into(), message_count: 3.into() };
    assert_eq!(header.as_bytes(), b"SESSION 01\0\0\0\0\0\0\x01\x02\0\x03");
    let mut bytes = Vec::new();
    let stream = StreamIdentity { message_protocol_id: 0x8004, channel_id: 1, session_id: 0x0203_0405 };
    let position = SegmentPosition { first: Sequence(6), stream_offset: 7, send_time: UnixNs(0x0809) };
    iextp::write_heartbeat(&mut bytes, stream, position);
    let wanted: [&[u8]; 10] = [
        &[1],
        &[0],
        &[0x04, 0x80],
        &[1, 0, 0, 0],
        &[5, 4, 3, 2],
        &[0, 0],
        &[0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[9, 8, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(bytes, wanted.concat());
}
