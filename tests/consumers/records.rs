//! Records with the gateway's times filled in.

use mdgw_feeds::{
    consumer_edge::{EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameHeader},
    identity::Sequence,
};
use mdgw_subscriber::{ConsumerEdges, Item, Output};
use zerocopy::little_endian::{I32, U16, U32, U64};

use super::{
    data_files::{assert_current, assert_same_text, read},
    text::{self, hex},
    virtual_gateway::{CHANNEL, record, session},
};

/// The file of records.
pub(crate) const FILE: &str = "records.txt";

#[test]
fn records_are_current() {
    assert_current(FILE, fill(&inputs()).as_bytes());
}

#[test]
fn the_consumer_edge_fills_records_as_the_file_says() {
    let file = read(FILE);
    assert_same_text(FILE, &fill(&file), &file);
}

const HEADING: &str =
    "# Records as published, and as a consumer gets them: see README.md. Made by the tests: do not edit.\n";

/// Record types and sizes of DBN version 3.
const TYPES: [(&str, u8, usize); 8] = [
    ("mbo", dbn::enums::rtype::MBO, size_of::<dbn::MboMsg>()),
    ("trades", dbn::enums::rtype::MBP_0, size_of::<dbn::TradeMsg>()),
    ("mbp-1", dbn::enums::rtype::MBP_1, size_of::<dbn::Mbp1Msg>()),
    ("mbp-10", dbn::enums::rtype::MBP_10, size_of::<dbn::Mbp10Msg>()),
    ("status", dbn::enums::rtype::STATUS, size_of::<dbn::StatusMsg>()),
    ("definition", dbn::enums::rtype::INSTRUMENT_DEF, size_of::<dbn::InstrumentDefMsg>()),
    ("imbalance", dbn::enums::rtype::IMBALANCE, size_of::<dbn::ImbalanceMsg>()),
    ("statistics", dbn::enums::rtype::STATISTICS, size_of::<dbn::StatMsg>()),
];

fn inputs() -> String {
    let mut text = HEADING.to_owned();
    let (suspect, undefined) = (u64::from(FrameFlags::SUSPECT.0 | 3), u64::MAX);
    for (name, rtype, bytes) in TYPES {
        let body = hex(&record(1, 0, bytes, rtype));
        text += &format!("\nrecords {name}\nitem flags=3 ts_recv=1704205800000000123 ts_in_delta=-77 body={body}\n");
    }
    let [mbo, trade] = [0, 1].map(|index| hex(&record(1, 0, TYPES[index].2, TYPES[index].1)));
    text += "\nrecords flags\n";
    text += "about Times never decrease within a channel: a lower one is raised and flagged. Suspect records are flagged.\n";
    text += &format!("item flags=3 ts_recv=2000 ts_in_delta=1 body={mbo}\n");
    text += &format!("item flags=3 ts_recv=1000 ts_in_delta=2147483647 body={mbo}{trade}\n");
    text += &format!("item flags={suspect} ts_recv=2001 ts_in_delta=-2147483648 body={trade}\n");
    text += "\nrecords lengths\n";
    text += "about A known type with another length, and an unknown type: no local value is filled in. The records behind have theirs.\n";
    for (rtype, bytes) in [(TYPES[0].1, 16), (TYPES[0].1, 48), (TYPES[0].1, 64), (TYPES[5].1, 16), (0xee, 1_016)] {
        let other = hex(&record(1, 0, bytes.max(24), rtype)[..bytes.min(24)]) + &"00".repeat(bytes.saturating_sub(24));
        let other = format!("{:02x}{}", bytes / 4, &other[2..]);
        text += &format!("item flags={suspect} ts_recv=3000 ts_in_delta=1 body={other}{mbo}\n");
    }
    text += "\nrecords repeated\n";
    text += "about Of a repeated message only records that change a book or the trading status are delivered, flagged as of a snapshot.\n";
    text += &format!("item flags=3 ts_recv=2000 ts_in_delta=1 body={mbo}\n");
    let whole = |index: usize| record(1, 0, TYPES[index].2, TYPES[index].1);
    let with_action = |index: usize, action: u8| {
        let mut record = whole(index);
        record[if index == 0 { 38 } else { 28 }] = action;
        record
    };
    let cancel_beside_fill = [with_action(0, b'F'), with_action(0, b'C')].concat();
    let all: Vec<u8> = (0..TYPES.len()).flat_map(whole).collect();
    let traded = [0, 2, 3].map(|index| with_action(index, b'T')).concat();
    let mut short = whole(0);
    short.truncate(48);
    short[0] = 12;
    let other_length = [short, with_action(0, b'A')].concat();
    for (flags, ts_recv, body) in [
        (3, 1_000, cancel_beside_fill),
        (suspect, 3_000, all),
        (3, 4_000, traded),
        (3, 5_000, other_length),
        (3, 6_000, record(1, 0, 24, 0xee)),
    ] {
        text += &format!("item repeated=1 flags={flags} ts_recv={ts_recv} ts_in_delta=7 body={}\n", hex(&body));
    }
    text += "\nrecords undefined\nabout A gateway that runs without receive times leaves them undefined.\n";
    text + &format!("item flags=3 ts_recv={undefined} ts_in_delta=0 body={mbo}\n")
}

fn fill(file: &str) -> String {
    let mut edges = ConsumerEdges::new(TsRecvMode::Capture);
    let mut out = String::new();
    for line in file.lines().filter(|line| !line.starts_with("> ")) {
        out += &format!("{line}\n");
        if line.starts_with("records ") {
            edges = ConsumerEdges::new(TsRecvMode::Capture);
        }
        if !line.starts_with("item ") {
            continue;
        }
        let body = text::from_hex(text::setting(line, "body").unwrap());
        let header = FrameHeader {
            sequence: U64::new(1),
            ts_recv: U64::new(text::number(line, "ts_recv").unwrap()),
            ts_in_delta_ns: I32::new(text::setting(line, "ts_in_delta").unwrap().parse().unwrap()),
            body_bytes: U16::new(u16::try_from(body.len()).unwrap()),
            record_count: U16::new(1),
            kind: 0,
            flags: u8::try_from(text::number(line, "flags").unwrap()).unwrap(),
            part: U16::ZERO,
            reserved: U32::ZERO,
        };
        let mut filled = Vec::new();
        let item = match text::number(line, "repeated") {
            Some(1) => Item::Repeated { header: &header, body: &body },
            _ => Item::Message { header: &header, body: &body },
        };
        let output = Output { channel: CHANNEL, session: session(0), reported_through: Sequence(0), item };
        let left_over = edges.deliver(&output, |output| match output {
            EdgeOutput::Record { bytes, .. } | EdgeOutput::OtherLength { bytes } => filled.extend_from_slice(bytes),
            EdgeOutput::Mapping { .. } => panic!("no mapping is among the vectors"),
        });
        assert_eq!(left_over, 0);
        out += &format!("> {}\n", hex(&filled));
    }
    out
}
