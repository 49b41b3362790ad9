//! Single datagrams, and what they mean or why they are refused.

use mdgw_feeds::{
    channel::ChannelState,
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, GapBody, StateBody},
    identity::{Epoch, Sequence},
    published::{
        packet::{PACKET_HEADER_BYTES, PacketFlags, PacketMeta, write_packet},
        request::{RequestKind, ServiceRequest},
        tag::{TagKey, TagPolicy, TagUse},
    },
};
use zerocopy::{
    IntoBytes as _,
    little_endian::{I32, U16, U32, U64},
};

use super::{
    data_files::{assert_current, assert_same_text, read},
    text::{self, hex},
    virtual_gateway::{CHANNEL, DEFINITION, GROUP, MBO, START, record, session, tagged},
};

/// The file of single datagrams.
pub(crate) const FILE: &str = "packets.txt";

#[test]
fn packets_are_current() {
    let vectors: Vec<String> = all().iter().map(Vector::text).collect();
    assert_current(FILE, (HEADING.to_owned() + &vectors.join("\n")).as_bytes());
}

#[test]
fn the_rust_parser_reads_the_packets_as_the_file_says() {
    let file = read(FILE);
    assert!(file.matches("> refused ").count() >= 30 && file.matches("> packet ").count() >= 20);
    assert_same_text("packets.txt", &parse_file(&file), &file);
}

/// The datagrams of the file that tools must be able to show: all of them.
pub(crate) fn datagrams() -> Vec<(String, Vec<u8>)> {
    all().into_iter().map(|vector| (vector.name.to_owned(), vector.bytes)).collect()
}

/// What the datagrams of a file mean.
fn parse_file(file: &str) -> String {
    let mut out = String::new();
    let mut vector = (Vec::new(), Vec::new(), None);
    let mut has_output = true;
    for line in file.lines().filter(|line| !line.starts_with("> ")).chain([""]) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "vector" => (vector, has_output) = (Default::default(), false),
            "bytes" => vector.0 = text::from_hex(rest),
            "keys" => vector.1 = rest.split(',').map(|key| key_of(&text::from_hex(key))).collect(),
            "nonce" => vector.2 = Some(rest.parse().unwrap()),
            "" if !has_output => {
                has_output = true;
                let (bytes, keys, nonce) = &vector;
                outcome(bytes, keys, *nonce).iter().for_each(|line| out += &format!("{line}\n"));
            }
            _ => {}
        }
        out += &format!("{line}\n");
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn outcome(bytes: &[u8], keys: &[TagKey], nonce: Option<u64>) -> Vec<String> {
    let described = text::datagram(bytes);
    let tag_use = nonce.map_or(TagUse::Published, |nonce| TagUse::Answer { nonce });
    let policy = TagPolicy { keys: keys.to_vec(), accepts_untagged: false };
    let is_refused = described[0].starts_with("> refused");
    match policy.check(tag_use, bytes) {
        Err(reason) if !is_refused => vec![format!("> refused {}", reason.name())],
        _ => described,
    }
}

fn key_of(bytes: &[u8]) -> TagKey {
    TagKey::new(&bytes.try_into().unwrap())
}

const HEADING: &str = "# Datagrams and their meaning: see README.md. Made by the tests: do not edit.\n\n";
const KEY: [u8; 32] = *b"an example key, never to be used";

struct Vector {
    name: &'static str,
    about: &'static str,
    bytes: Vec<u8>,
    /// Keys of the receiver.
    keys: Vec<[u8; 32]>,
    /// Nonce of the request that the datagram answers.
    nonce: Option<u64>,
}

impl Vector {
    fn new(name: &'static str, about: &'static str, bytes: Vec<u8>) -> Self {
        Self { name, about, bytes, keys: Vec::new(), nonce: None }
    }

    fn text(&self) -> String {
        let Self { name, about, bytes, keys, nonce } = self;
        let mut lines = vec![format!("vector {name}"), format!("about {about}")];
        if !keys.is_empty() {
            let keys: Vec<String> = keys.iter().map(|key| hex(key)).collect();
            lines.push(format!("keys {}", keys.join(",")));
        }
        lines.extend(nonce.map(|nonce| format!("nonce {nonce}")));
        lines.push(format!("bytes {}", hex(bytes)));
        let keys: Vec<TagKey> = keys.iter().map(TagKey::new).collect();
        lines.extend(outcome(bytes, &keys, *nonce));
        lines.iter().fold(String::new(), |text, line| text + line + "\n")
    }
}

const WHOLE: u8 = 3;

fn meta(flags: PacketFlags, first: u64, next: u64) -> PacketMeta {
    PacketMeta {
        flags,
        group: GROUP,
        channel: CHANNEL,
        epoch: Epoch::new(7, 1),
        session: session(0),
        first: Sequence(first),
        next: Sequence(next),
        send_time_ns: START.0 + 250,
    }
}

fn packet(meta: &PacketMeta, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut datagram = vec![0; 2_000];
    let length = write_packet(meta, &frames.concat(), &mut datagram).unwrap();
    datagram.truncate(length);
    datagram
}

fn frame(kind: FrameKind, sequence: u64, flags: u8, part: u16, body: &[u8]) -> Vec<u8> {
    let is_local = matches!(kind, FrameKind::Message | FrameKind::Snapshot);
    let mut records = 0;
    let mut rest = body;
    while is_local && !rest.is_empty() {
        rest = &rest[4 * usize::from(rest[0])..];
        records += 1;
    }
    let header = FrameHeader {
        sequence: U64::new(sequence),
        ts_recv: U64::new(if is_local { START.0 } else { 0 }),
        ts_in_delta_ns: I32::new(if is_local { -1_200 } else { 0 }),
        body_bytes: U16::new(u16::try_from(body.len()).unwrap()),
        record_count: U16::new(records),
        kind: kind as u8,
        flags,
        part: U16::new(part),
        reserved: U32::ZERO,
    };
    [header.as_bytes(), body].concat()
}

fn message(sequence: u64) -> Vec<u8> {
    frame(FrameKind::Message, sequence, WHOLE, 0, &record(sequence, 0, 56, MBO))
}

fn gap(first: u64, next: u64) -> Vec<u8> {
    frame(FrameKind::Gap, first, WHOLE, 0, GapBody { first: first.into(), next: next.into() }.as_bytes())
}

fn state(sequence: u64, state: ChannelState) -> Vec<u8> {
    frame(FrameKind::State, sequence, WHOLE, 0, StateBody::of(state).as_bytes())
}

fn all() -> Vec<Vector> {
    [packets(), answers(), tags(), requests(), malformed_packets(), malformed_frames(), malformed_requests()]
        .into_iter()
        .flatten()
        .collect()
}

fn packets() -> Vec<Vector> {
    let (none, late) = (PacketFlags::default(), WHOLE | FrameFlags::LATE_FILL.0);
    let (first, last) = (FrameFlags::FIRST_PART.0, FrameFlags::LAST_PART.0);
    let records: Vec<u8> = (0..2).flat_map(|index| record(5, index, 56, MBO)).collect();
    let part = |number, flags| frame(FrameKind::Message, 5, flags, number, &records);
    let suspect = frame(FrameKind::Message, 5, WHOLE | FrameFlags::SUSPECT.0, 0, &[]);
    let late_fill = frame(FrameKind::Message, 3, late, 0, &record(3, 0, 56, MBO));
    let snapshot = frame(FrameKind::Snapshot, 9, WHOLE, 0, &record(9, 0, 56, MBO));
    let heartbeat = PacketFlags::HEARTBEAT;
    let end = heartbeat.with(PacketFlags::END_OF_SESSION);
    let mut highest = meta(none, (1 << 47) - 2, (1 << 47) - 1);
    (highest.epoch, highest.send_time_ns) = (Epoch(u64::MAX), u64::MAX);
    highest.session.restart = u32::MAX;
    vec![
        Vector::new("message", "One message with one record.", packet(&meta(none, 5, 6), &[message(5)])),
        Vector::new(
            "messages",
            "Messages 5 and 7 with two records and one; message 6 produced nothing, and neither did 8 and 9.",
            packet(&meta(none, 5, 10), &[frame(FrameKind::Message, 5, WHOLE, 0, &records), message(7)]),
        ),
        Vector::new("empty_range", "Messages 5 to 8 produced nothing.", packet(&meta(none, 5, 9), &[])),
        Vector::new("suspect", "A message that the gateway could not use.", packet(&meta(none, 5, 6), &[suspect])),
        Vector::new("gap", "Messages 3 to 6 were declared missing.", packet(&meta(none, 3, 7), &[gap(3, 7)])),
        Vector::new("state", "The channel recovers.", packet(&meta(none, 7, 7), &[state(7, ChannelState::Recovering)])),
        Vector::new(
            "late_fill",
            "The content of a declared gap, before the packet's own range.",
            packet(&meta(none, 7, 8), &[late_fill, message(7)]),
        ),
        Vector::new(
            "first_part",
            "The first of three parts of message 5; the packet also covers message 4.",
            packet(&meta(none, 4, 5), &[part(0, first)]),
        ),
        Vector::new("middle_part", "Covers nothing.", packet(&meta(none, 5, 5), &[part(1, 0)])),
        Vector::new("last_part", "Covers message 5.", packet(&meta(none, 5, 6), &[part(2, last)])),
        Vector::new(
            "snapshot",
            "Records that rebuild a book.",
            packet(&meta(PacketFlags::SNAPSHOT, 9, 9), &[snapshot]),
        ),
        Vector::new("heartbeat", "The position of an idle channel.", packet(&meta(heartbeat, 9, 9), &[])),
        Vector::new(
            "heartbeat_with_range",
            "The same, after messages 5 to 8 that produced nothing.",
            packet(&meta(heartbeat, 5, 9), &[]),
        ),
        Vector::new("end_of_session", "Message 8 was the last.", packet(&meta(end, 9, 9), &[])),
        Vector::new(
            "failed",
            "What a channel out of service sends instead of heartbeats.",
            packet(&meta(PacketFlags::SNAPSHOT, 9, 9), &[state(9, ChannelState::Failed)]),
        ),
        Vector::new(
            "republished",
            "A new leader repeats what the previous one may not have sent.",
            packet(&meta(PacketFlags::RETRANSMISSION, 5, 6), &[message(5)]),
        ),
        Vector::new(
            "highest_values",
            "The highest epoch, restart count and sequence.",
            packet(&highest, &[frame(FrameKind::Message, (1 << 47) - 2, WHOLE, 0, &record(5, 0, 56, MBO))]),
        ),
        Vector::new(
            "unknown_frame_flags",
            "Flags that a later version defines are ignored.",
            packet(&meta(none, 5, 6), &[frame(FrameKind::Message, 5, WHOLE | 0x50, 0, &record(5, 0, 56, MBO))]),
        ),
        Vector::new(
            "unknown_state",
            "A state that a later version defines.",
            packet(&meta(none, 5, 5), &[patched(state(5, ChannelState::Live), FRAME_HEADER_BYTES, 200)]),
        ),
    ]
}

fn patched(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

fn answers() -> Vec<Vector> {
    let again = PacketFlags::RETRANSMISSION;
    let end = again.with(PacketFlags::HEARTBEAT);
    let definitions = again.with(PacketFlags::SNAPSHOT);
    let definition = frame(FrameKind::Message, 2, WHOLE, 0, &record(2, 0, 520, DEFINITION));
    vec![
        Vector::new("answer", "One packet of an answer.", packet(&meta(again, 5, 6), &[message(5)])),
        Vector::new("answer_end", "The log has [1, 900) of the session.", packet(&meta(end, 1, 900), &[])),
        Vector::new(
            "answer_end_final",
            "The log has [1, 900), and the session ended there.",
            packet(&meta(end.with(PacketFlags::END_OF_SESSION), 1, 900), &[]),
        ),
        Vector::new("answer_end_empty", "The log has nothing of the session.", packet(&meta(end, 0, 0), &[])),
        Vector::new(
            "definitions",
            "The definition with index 0, of message 2.",
            packet(&meta(definitions, 0, 1), &[definition]),
        ),
        Vector::new(
            "definitions_end",
            "The definitions from index 1 on, up to index 40, were not sent.",
            packet(&meta(definitions.with(PacketFlags::HEARTBEAT), 1, 40), &[]),
        ),
        Vector::new(
            "epoch_answer",
            "The highest epoch that the service knows. Both sequences repeat the request's random number.",
            packet(&meta(PacketFlags::EPOCH_ANSWER, 0x2aaa_aaaa_aaaa, 0x2aaa_aaaa_aaaa), &[]),
        ),
    ]
}

fn tags() -> Vec<Vector> {
    let key = TagKey::new(&KEY);
    let none = PacketFlags::default();
    let plain = packet(&meta(none, 5, 6), &[message(5)]);
    let answer = packet(&meta(PacketFlags::RETRANSMISSION, 5, 6), &[message(5)]);
    let nonce = 0x0123_4567_89ab_cdef;
    let published = tagged(&plain, &key, TagUse::Published);
    let answered = tagged(&answer, &key, TagUse::Answer { nonce });
    let with = |name, about, bytes: &[u8]| Vector { keys: vec![KEY], ..Vector::new(name, about, bytes.to_vec()) };
    let flagged = patched(plain.clone(), 5, PacketFlags::TAGGED.0);
    vec![
        with("tagged", "The tag of a published packet.", &published),
        Vector::new("tagged_without_key", "A receiver without a key ignores the tag.", published.clone()),
        with("tagged_heartbeat", "A heartbeat has a tag too.", &{
            tagged(&packet(&meta(PacketFlags::HEARTBEAT, 9, 9), &[]), &key, TagUse::Published)
        }),
        Vector {
            keys: vec![[0; 32], KEY],
            ..Vector::new("tagged_second_key", "One of several keys is right.", published.clone())
        },
        Vector { keys: vec![[1; 32]], ..Vector::new("tagged_wrong_key", "Another key.", published.clone()) },
        with("tagged_changed", "One bit of a record was changed.", &patched(published.clone(), 120, 1)),
        with("tag_missing", "No tag, though the receiver has a key.", &plain),
        with("tagged_answer_as_published", "The tag of an answer is none of a published packet.", &answered),
        Vector {
            keys: vec![KEY],
            nonce: Some(nonce),
            ..Vector::new("tagged_answer", "The tag of an answer covers the request's nonce.", answered.clone())
        },
        Vector {
            keys: vec![KEY],
            nonce: Some(nonce + 1),
            ..Vector::new("tagged_answer_of_another_request", "Another nonce.", answered)
        },
        Vector {
            keys: vec![KEY],
            nonce: Some(nonce),
            ..Vector::new(
                "tagged_published_as_answer",
                "The tag of a published packet is none of an answer.",
                published,
            )
        },
        Vector::new("tag_truncated", "The flag is set, and the tag is not there.", flagged),
    ]
}

fn request(kind: RequestKind, first: u64, next: u64) -> ServiceRequest {
    ServiceRequest {
        kind,
        group: GROUP,
        channel: CHANNEL,
        session: Some(session(0)),
        first: Sequence(first),
        next: Sequence(next),
        nonce: 0x0123_4567_89ab_cdef,
    }
}

fn requests() -> Vec<Vector> {
    let vector =
        |name, about, request: ServiceRequest| Vector::new(name, about, request.to_packet().as_bytes().to_vec());
    let number = 0x2aaa_aaaa_aaaa;
    vec![
        vector("request_range", "Messages 5 to 8.", request(RequestKind::Range, 5, 9)),
        vector("request_extent", "What the log has of the session.", request(RequestKind::Range, 5, 5)),
        vector(
            "request_current_session",
            "Messages 5 to 8 of the session that is open.",
            ServiceRequest { session: None, ..request(RequestKind::Range, 5, 9) },
        ),
        vector("request_definitions", "Definitions from index 16 on.", request(RequestKind::Definitions, 16, 16)),
        vector("request_sessions", "The oldest session from this one on.", request(RequestKind::Sessions, 0, 0)),
        vector(
            "request_epoch",
            "The highest epoch; the sequences are random.",
            request(RequestKind::Epoch, number, number),
        ),
    ]
}

fn malformed_packets() -> Vec<Vector> {
    let none = PacketFlags::default();
    let good = packet(&meta(none, 5, 6), &[message(5)]);
    let with = |name, about, at: usize, value: u8| Vector::new(name, about, patched(good.clone(), at, value));
    let range = |first, next, frames: &[Vec<u8>]| packet(&meta(none, first, next), frames);
    vec![
        Vector::new("empty", "No byte.", Vec::new()),
        Vector::new("header_truncated", "One byte less than a header.", good[..PACKET_HEADER_BYTES - 1].to_vec()),
        with("other_protocol", "Another first byte.", 0, b'X'),
        with("other_version", "Version 2.", 4, 2),
        with("unknown_packet_flag", "A flag that no version defines.", 5, 0x20),
        with("reserved_not_zero", "Reserved bytes of the header.", 14, 1),
        with("feed_unknown", "No feed has this number.", 24, 99),
        with("session_reserved", "Reserved bytes of the session.", 26, 1),
        with("date_invalid", "The 66th of January.", 28, 0x69),
        with("payload_bytes_too_many", "More bytes are announced than there are.", 12, 0xff),
        Vector::new("trailing_byte", "One byte behind the frames.", [good.clone(), vec![0]].concat()),
        with("frames_too_few", "One frame is there, none is announced.", 10, 0),
        with("frames_too_many", "Two frames are announced.", 10, 2),
        Vector::new("range_reversed", "It ends before it begins.", range(6, 5, &[])),
        Vector::new("sequence_too_high", "Sequences end below 2^47.", range(1, 1 << 47, &[])),
        Vector::new("frame_before_range", "Message 4 in [5, 6).", range(5, 6, &[message(4)])),
        Vector::new("frame_after_range", "Message 6 in [5, 6).", range(5, 6, &[message(6)])),
        Vector::new("frames_descend", "Message 6 before message 5.", range(5, 7, &[message(6), message(5)])),
        Vector::new("frame_repeated", "Message 5 twice.", range(5, 7, &[message(5), message(5)])),
        Vector::new("gap_beyond_range", "The gap ends behind the range.", range(3, 5, &[gap(3, 7)])),
        Vector::new(
            "heartbeat_with_frame",
            "A heartbeat has no frame.",
            packet(&meta(PacketFlags::HEARTBEAT, 5, 6), &[message(5)]),
        ),
    ]
}

fn malformed_frames() -> Vec<Vector> {
    let none = PacketFlags::default();
    let good = packet(&meta(none, 5, 6), &[message(5)]);
    let frame_at = PACKET_HEADER_BYTES;
    let with =
        |name, about, at: usize, value: u8| Vector::new(name, about, patched(good.clone(), frame_at + at, value));
    let body = |kind, bytes: &[u8]| packet(&meta(none, 5, 9), &[frame_of_bytes(kind, bytes)]);
    let part = |number, flags| frame(FrameKind::Message, 5, flags, number, &record(5, 0, 56, MBO));
    vec![
        with("kind_unknown", "No frame has this kind.", 24, 9),
        with("body_bytes_too_many", "The frame ends behind the packet.", 20, 64),
        with("record_count", "One record is there, two are announced.", 22, 2),
        with("record_length_zero", "A record without a length.", FRAME_HEADER_BYTES, 0),
        with("record_too_long", "A record that ends behind its frame.", FRAME_HEADER_BYTES, 16),
        with("record_too_short", "Two records of less than a header.", FRAME_HEADER_BYTES, 2),
        Vector::new("body_not_eight", "Bodies are multiples of eight bytes.", body(FrameKind::Message, &[5; 20])),
        Vector::new("gap_too_short", "A gap of eight bytes.", body(FrameKind::Gap, &[0; 8])),
        Vector::new("gap_of_another_sequence", "The body begins elsewhere.", body(FrameKind::Gap, &[1; 16])),
        Vector::new("gap_empty", "[5, 5) is no gap.", packet(&meta(none, 5, 9), &[gap(5, 5)])),
        Vector::new("state_too_long", "A state of sixteen bytes.", body(FrameKind::State, &[0; 16])),
        Vector::new(
            "state_sequence_too_high",
            "Sequences of states end below 2^47 too.",
            packet(&meta(none, 5, 5), &[state((1 << 48) + 5, ChannelState::Live)]),
        ),
        Vector::new(
            "snapshot_sequence_too_high",
            "And so do those of snapshots.",
            packet(
                &meta(PacketFlags::SNAPSHOT, 5, 5),
                &[frame(FrameKind::Snapshot, 1 << 47, WHOLE, 0, &record(5, 0, 56, MBO))],
            ),
        ),
        Vector::new("whole_with_part", "A whole message is no part.", packet(&meta(none, 5, 6), &[part(1, WHOLE)])),
        Vector::new("part_with_others", "A part is alone.", packet(&meta(none, 4, 5), &[message(4), part(0, 1)])),
        Vector::new("part_covers", "Only the last part covers the message.", packet(&meta(none, 5, 6), &[part(1, 0)])),
        Vector::new("part_begins", "Only the first part covers others.", packet(&meta(none, 4, 5), &[part(1, 0)])),
        Vector::new("last_part_covers_more", "Nothing but the message.", packet(&meta(none, 5, 7), &[part(2, 2)])),
    ]
}

/// A frame with one record announced, whatever its body.
fn frame_of_bytes(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut bytes = frame(kind, 5, WHOLE, 0, &[]);
    bytes[20..22].copy_from_slice(&u16::try_from(body.len()).unwrap().to_le_bytes());
    bytes[22] = u8::from(kind == FrameKind::Message);
    [bytes.as_slice(), body].concat()
}

fn malformed_requests() -> Vec<Vector> {
    let good = request(RequestKind::Range, 5, 9).to_packet().as_bytes().to_vec();
    let with = |name, about, at: usize, value: u8| Vector::new(name, about, patched(good.clone(), at, value));
    vec![
        Vector::new("request_truncated", "One byte less.", good[..55].to_vec()),
        Vector::new("request_too_long", "One byte more.", [good.clone(), vec![0]].concat()),
        with("request_other_version", "Version 2.", 4, 2),
        with("request_kind_unknown", "No request has this kind.", 5, 9),
        with("request_reserved", "Reserved bytes.", 10, 1),
        with("request_session_invalid", "No feed has this number.", 16, 99),
        with("request_range_reversed", "It ends before it begins.", 32, 77),
    ]
}
