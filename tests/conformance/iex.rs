//! IEX TOPS and DEEP: every message of the real captures, field by field.

use mdgw_feeds::{
    identity::Sequence,
    time::UnixNs,
    transport::{
        DetectedProtocol,
        iextp::{self, SegmentPosition, StreamIdentity},
    },
    venue::iex::tops,
};
use mdgw_tests::{
    captures,
    conformance::{Checker, check_captures, synthetic_datagram},
    json::Json,
};
use zerocopy::IntoBytes;

#[test]
fn every_tops_message_decodes_to_its_expected_fields() {
    let Some(root) = captures::root("TOPS conformance") else { return };
    check_captures(DetectedProtocol::IexTops, &root, |directory| directory.starts_with("iex/tops"));
}

#[test]
fn every_deep_message_decodes_to_its_expected_fields() {
    let Some(root) = captures::root("DEEP conformance") else { return };
    // DEEP+ (`iex/deepplus…`) is another protocol.
    check_captures(DetectedProtocol::IexDeep, &root, |directory| directory.starts_with("iex/deep-"));
}

#[test]
fn a_correct_packet_passes() {
    let (bytes, expected) = synthetic_packet();
    let mut checker = Checker::default();
    checker.packet(DetectedProtocol::IexTops, &expected, &synthetic_datagram(&bytes));
    assert_eq!(checker.mismatches(), [""; 0]);
    assert_eq!((checker.compared.messages, checker.compared.fields), (1, 10 + 3 + 2 + 7));
}

#[test]
fn any_flipped_bit_is_detected() {
    let (bytes, expected) = synthetic_packet();
    for position in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        let mut checker = Checker::default();
        checker.packet(DetectedProtocol::IexTops, &expected, &synthetic_datagram(&damaged));
        assert_ne!(checker.mismatch_count(), 0, "byte {position} was not compared");
    }
}

/// A synthetic quote, and its expected decode.
fn synthetic_packet() -> (Vec<u8>, Json) {
    let mut bytes = Vec::new();
    let stream = StreamIdentity { message_protocol_id: iextp::PROTOCOL_TOPS_1_6, channel_id: 1, session_id: 77 };
    let position = SegmentPosition { first: Sequence(9), stream_offset: 1_000, send_time: UnixNs(12) };
    let mut packet = iextp::PacketWriter::begin(&mut bytes, stream, position, 1472);
    let quote = tops::QuoteUpdate {
        message_type: b'Q',
        flags: 64,
        timestamp_ns: 11.into(),
        symbol: *b"OWN     ",
        bid_size: 100.into(),
        bid_price_e4: 10_000.into(),
        ask_price_e4: 10_100.into(),
        ask_size: 200.into(),
    };
    assert!(packet.push(quote.as_bytes()));
    assert_eq!(packet.finish(), 1);
    let expected = Json::parse(
        br#"{"frame":1,"time_ns":5,"frame_len":100,"src":"10.0.0.1","dst":"239.0.0.1","src_port":1,"dst_port":2,
        "payload_len":84,"header":{"version":1,"reserved":"00","message_protocol_id":32771,"channel_id":1,
        "session_id":77,"payload_length":44,"message_count":1,"stream_offset":1000,"first_message_sequence_number":9,
        "send_time":12},"messages":[{"type":"Quote","offset":40,"length":44,
        "header":{"message_length":42,"message_type":"Q"},"fields":{"flags":64,
        "flags_bits":{"unused_6":0,"market_session":1,"symbol_availability":0},"timestamp":11,"symbol":"OWN",
        "bid_size":100,"bid_price":10000,"ask_price":10100,"ask_size":200}}]}"#,
    );
    (bytes, expected.unwrap())
}
