//! Nasdaq, BX and PSX TotalView-ITCH 5.0: every message of the real captures, field by field.

use mdgw_feeds::{
    identity::Sequence,
    transport::{DetectedProtocol, moldudp64},
    venue::{nasdaq::itch50, wire::u48_be_bytes},
};
use mdgw_tests::{
    captures,
    conformance::{Checker, check_captures, synthetic_datagram},
    json::Json,
};
use zerocopy::IntoBytes;

#[test]
fn every_itch_message_decodes_to_its_expected_fields() {
    let Some(root) = captures::root("ITCH 5.0 conformance") else { return };
    check_captures(DetectedProtocol::Itch50, &root, is_itch50);
}

/// Directories are `nasdaq…/itch-5.0…`; other protocols of the same venues are not supported.
fn is_itch50(directory: &str) -> bool {
    let is_ours = directory.starts_with("nasdaq") && directory.contains("/itch-5.0");
    if directory.starts_with("nasdaq") && !is_ours {
        captures::print_to_stderr(&format!("SKIPPED: {directory}: not ITCH 5.0"));
    }
    is_ours
}

#[test]
fn a_correct_packet_passes() {
    let (bytes, expected) = synthetic_packet();
    let mut checker = Checker::default();
    checker.packet(DetectedProtocol::Itch50, &expected, &synthetic_datagram(&bytes));
    assert_eq!(checker.mismatches(), [""; 0]);
    assert_eq!((checker.compared.messages, checker.compared.fields), (1, 3 + 3 + 2 + 8));
}

#[test]
fn any_flipped_bit_is_detected() {
    let (bytes, expected) = synthetic_packet();
    for position in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        let mut checker = Checker::default();
        checker.packet(DetectedProtocol::Itch50, &expected, &synthetic_datagram(&damaged));
        assert_ne!(checker.mismatch_count(), 0, "byte {position} was not compared");
    }
}

#[test]
fn an_extra_or_missing_field_is_detected() {
    let (bytes, expected) = synthetic_packet();
    for change in [FieldChange::DropLastField, FieldChange::AddField] {
        let mut checker = Checker::default();
        checker.packet(DetectedProtocol::Itch50, &with_field_change(&expected, change), &synthetic_datagram(&bytes));
        assert_eq!(checker.mismatch_count(), 1, "{:?}", checker.mismatches());
    }
}

/// A synthetic Add Order, and its expected decode.
fn synthetic_packet() -> (Vec<u8>, Json) {
    let mut bytes = Vec::new();
    let mut packet = moldudp64::PacketWriter::begin(&mut bytes, *b"OWNSESSION", Sequence(7), 1472);
    let order = itch50::AddOrder {
        message_type: b'A',
        stock_locate: 13.into(),
        tracking_number: 2.into(),
        timestamp_ns: u48_be_bytes(34_200_000_000_001),
        order_reference_number: 99.into(),
        buy_sell_indicator: b'B',
        shares: 300.into(),
        stock: *b"OWN     ",
        price_e4: 1_234_500.into(),
    };
    assert!(packet.push(order.as_bytes()));
    assert_eq!(packet.finish(), 1);
    let expected = Json::parse(
        br#"{"frame":1,"time_ns":5,"frame_len":100,"src":"10.0.0.1","dst":"239.0.0.1","src_port":1,"dst_port":2,
        "payload_len":58,"header":{"session":"OWNSESSION","sequence_number":7,"message_count":1},"messages":[
        {"type":"Add Order","offset":20,"length":38,"header":{"message_length":36,"message_type":"A"},"fields":{
        "stock_locate":13,"tracking_number":2,"timestamp":34200000000001,"order_reference_number":99,
        "buy_sell_indicator":"B","shares":300,"stock":"OWN","price":1234500}}]}"#,
    );
    (bytes, expected.unwrap())
}

#[derive(Clone, Copy)]
enum FieldChange {
    DropLastField,
    AddField,
}

/// The same expectation with a field less or more in each message.
fn with_field_change(expected: &Json, change: FieldChange) -> Json {
    match expected {
        Json::Object(members) => {
            let mut members = members.clone();
            for (name, value) in &mut members {
                *value = with_field_change(value, change);
                if let (true, Json::Object(fields)) = (name == "fields", value) {
                    match change {
                        FieldChange::DropLastField => drop(fields.pop()),
                        FieldChange::AddField => fields.push(("more".to_owned(), Json::Number(0))),
                    }
                }
            }
            Json::Object(members)
        }
        Json::List(list) => Json::List(list.iter().map(|value| with_field_change(value, change)).collect()),
        other => other.clone(),
    }
}
