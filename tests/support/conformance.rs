//! Packets against their expected decodes, value by value.
//!
//! Expected decodes come from a dissector, whose names of fields are its own; so values are compared by their position
//! in header and message, and only where both have the same number of them. Known differences between the dissector
//! and the specifications, each looked at on its own:
//! - `NAME_bits` repeats the bit field `NAME` bit by bit. It is put together again and must give `NAME`.
//! - IEX Auction Information, extension number: a number of one byte by the specification, which the dissector reads
//!   as a character. The number is compared with the character's code; 0 and a space look alike there.

use std::{collections::BTreeMap, fmt, net::SocketAddr, ops::AddAssign, path::Path};

use mdgw::capture_file::{CaptureFile, CapturedDatagram, OpenOptions, VlanTags};
use mdgw_feeds::{
    drop_reason::DropReason,
    transport::{Packet, Transport, binaryfile, iextp, moldudp64},
    venue::{
        iex::{deep, tops},
        nasdaq::itch50,
        wire::{FieldValue, Fields, trimmed},
    },
};
use zerocopy::FromBytes;

use crate::{
    captures::{self, Pair},
    json::Json,
};

/// A feed under test: its framing and its messages.
pub trait Protocol {
    /// How its packets are framed.
    type Transport: Transport;
    /// The transport's header.
    type Header: Fields + FromBytes;

    /// One message: its fields, or why it was refused.
    ///
    /// # Errors
    /// What the feed's own parser says.
    fn message(bytes: &[u8], visit: Visit<'_>) -> Result<(), DropReason>;
}

/// Takes fields.
pub type Visit<'a> = &'a mut dyn FnMut(&'static str, FieldValue<'_>);

/// ITCH 5.0 over MoldUDP64.
#[derive(Debug)]
pub struct Itch50;
/// TOPS over IEX-TP.
#[derive(Debug)]
pub struct Tops;
/// DEEP over IEX-TP.
#[derive(Debug)]
pub struct Deep;

impl Protocol for Itch50 {
    type Transport = moldudp64::MoldUdp64;
    type Header = moldudp64::Header;

    fn message(bytes: &[u8], visit: Visit<'_>) -> Result<(), DropReason> {
        itch50::Message::parse(bytes).map(|message| message.fields(visit))
    }
}

impl Protocol for Tops {
    type Transport = iextp::Tops;
    type Header = iextp::Header;

    fn message(bytes: &[u8], visit: Visit<'_>) -> Result<(), DropReason> {
        tops::Message::parse(bytes).map(|message| message.fields(visit))
    }
}

impl Protocol for Deep {
    type Transport = iextp::Deep;
    type Header = iextp::Header;

    fn message(bytes: &[u8], visit: Visit<'_>) -> Result<(), DropReason> {
        deep::Message::parse(bytes).map(|message| message.fields(visit))
    }
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Packets.
    pub packets: u64,
    /// Messages.
    pub messages: u64,
    /// Values in transport headers and messages: fields, and type, offset and length of each message.
    pub fields: u64,
    /// Values around the payload: frame number, time, lengths, VLAN tags, addresses, ports.
    pub frame_values: u64,
}

impl AddAssign for Compared {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.messages += other.messages;
        self.fields += other.fields;
        self.frame_values += other.frame_values;
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} packets, {} messages, {} fields, {} values around them",
            self.packets, self.messages, self.fields, self.frame_values
        )
    }
}

/// Compares, counts, and keeps what didn't agree.
#[derive(Debug, Default)]
pub struct Checker {
    /// What was compared so far.
    pub compared: Compared,
    /// Messages by their type.
    pub types: BTreeMap<char, u64>,
    mismatches: Vec<String>,
    mismatch_count: u64,
}

/// Mismatches that are kept word for word; more are counted.
const MISMATCHES_KEPT: usize = 20;

impl Checker {
    /// How many things didn't agree.
    #[must_use]
    pub fn mismatch_count(&self) -> u64 {
        self.mismatch_count
    }

    /// The first of them.
    #[must_use]
    pub fn mismatches(&self) -> &[String] {
        &self.mismatches
    }

    /// Notes something that didn't agree.
    pub fn mismatch(&mut self, what: String) {
        self.mismatch_count += 1;
        if self.mismatches.len() < MISMATCHES_KEPT {
            self.mismatches.push(what);
        }
    }

    /// One packet of a capture.
    pub fn packet<P: Protocol>(&mut self, expected: &Json, captured: &CapturedDatagram<'_>) {
        self.compared.packets += 1;
        let place = format!("frame {}", captured.frame);
        self.frame(&place, expected, captured);
        match P::Transport::parse(captured.payload) {
            Ok(packet) => {
                self.header::<P>(&place, expected, captured.payload, &packet);
                self.messages::<P>(&place, expected, captured.payload, &packet);
            }
            Err(reason) => self.mismatch(format!("{place}: refused, {}", reason.name())),
        }
    }

    /// One message of a day file.
    pub fn file_message<P: Protocol>(&mut self, expected: &Json, message: &binaryfile::FileMessage<'_>) {
        let place = format!("offset {}", message.offset);
        self.message::<P>(&place, expected, i128::from(message.offset), message.bytes);
    }

    fn frame(&mut self, place: &str, expected: &Json, captured: &CapturedDatagram<'_>) {
        let number = |value: u64| Json::Number(i128::from(value));
        let vlan = captured.vlan.ids().iter().map(|id| number(u64::from(*id))).collect::<Vec<_>>();
        let values = [
            ("frame", number(captured.frame)),
            ("time_ns", number(captured.time_ns)),
            ("frame_len", number(u64::from(captured.frame_len))),
            ("captured_len", number(u64::from(captured.captured_len))),
            ("vlan", Json::List(vlan)),
            ("src", Json::Text(captured.src.ip().to_string())),
            ("dst", Json::Text(captured.dst.ip().to_string())),
            ("src_port", number(u64::from(captured.src.port()))),
            ("dst_port", number(u64::from(captured.dst.port()))),
            ("payload_len", number(captured.payload.len() as u64)),
        ];
        for (name, value) in values {
            let wanted = match (name, expected.get(name)) {
                (_, Some(wanted)) => wanted.clone(),
                // Only told where they say something.
                ("captured_len", None) => expected.get("frame_len").cloned().unwrap_or(Json::Null),
                ("vlan", None) => Json::List(Vec::new()),
                (_, None) => Json::Null,
            };
            self.compared.frame_values += 1;
            if wanted != value {
                self.mismatch(format!("{place}: {name} is {value:?}, expected {wanted:?}"));
            }
        }
        if let Some(undecoded) = expected.get("undecoded_bytes") {
            self.mismatch(format!("{place}: the expected decode leaves {undecoded:?} bytes out"));
        }
    }

    fn header<P: Protocol>(&mut self, place: &str, expected: &Json, payload: &[u8], packet: &Packet<'_>) {
        let wanted = expected.get("header").unwrap_or(&Json::Null);
        match P::Header::read_from_prefix(payload) {
            Ok((header, _)) => self.fields(place, wanted, |visit| header.fields(visit)),
            Err(_) => self.mismatch(format!("{place}: no header")),
        }
        // What the packet is taken for has to agree with the header's own words.
        for (value, names) in [
            (i128::from(packet.first.0), ["sequence_number", "first_message_sequence_number"]),
            (i128::from(packet.count), ["message_count", "message_count"]),
        ] {
            let wanted = names.iter().find_map(|name| wanted.get(name)).and_then(Json::number);
            if wanted != Some(value) {
                self.mismatch(format!("{place}: {} taken for {value}, expected {wanted:?}", names[0]));
            }
        }
    }

    fn messages<P: Protocol>(&mut self, place: &str, expected: &Json, payload: &[u8], packet: &Packet<'_>) {
        let wanted = expected.get("messages").map_or(&[][..], Json::list);
        let mut block = packet.messages;
        let mut count = 0;
        loop {
            let offset = payload.len() - block.len();
            let Some(message) = P::Transport::next_message(&mut block) else { break };
            let place = format!("{place}, message {count}");
            match wanted.get(count) {
                Some(wanted) => self.message::<P>(&place, wanted, offset as i128, message),
                None => self.mismatch(format!("{place}: not expected")),
            }
            count += 1;
        }
        if count != wanted.len() {
            self.mismatch(format!("{place}: {count} messages, expected {}", wanted.len()));
        }
    }

    fn message<P: Protocol>(&mut self, place: &str, expected: &Json, offset: i128, message: &[u8]) {
        /// Bytes of a message's length, in all these protocols.
        const PREFIX_BYTES: usize = 2;
        self.compared.messages += 1;
        let code = char::from(message.first().copied().unwrap_or_default());
        *self.types.entry(code).or_default() += 1;
        let header = expected.get("header").unwrap_or(&Json::Null);
        for (name, wanted, value) in [
            ("offset", expected.get("offset"), Json::Number(offset)),
            ("length", expected.get("length"), Json::Number((message.len() + PREFIX_BYTES) as i128)),
            ("message_length", header.get("message_length"), Json::Number(message.len() as i128)),
            ("message_type", header.get("message_type"), Json::Text(code.to_string())),
        ] {
            self.compared.fields += 1;
            if wanted != Some(&value) {
                self.mismatch(format!("{place}: {name} is {value:?}, expected {wanted:?}"));
            }
        }
        let mut refused = None;
        let wanted = expected.get("fields").unwrap_or(&Json::Null);
        self.fields(place, wanted, |visit| refused = P::message(message, visit).err());
        if let Some(reason) = refused {
            self.mismatch(format!("{place}: refused, {}", reason.name()));
        }
    }

    /// Values by position, `NAME_bits` folded into their `NAME`.
    fn fields(&mut self, place: &str, expected: &Json, walk: impl FnOnce(Visit<'_>)) {
        let members = expected.members();
        let mut wanted = members.iter().filter(|(name, _)| bits_of(members, name).is_none());
        let mut missing = Vec::new();
        walk(&mut |name, value| {
            let Some((wanted_name, wanted)) = wanted.next() else {
                missing.push(format!("{place}: {name} is {value}, nothing expected"));
                return;
            };
            self.compared.fields += 1;
            if !agrees(name, value, wanted) {
                self.mismatch(format!("{place}: {name} is {value}, expected {wanted_name} {wanted:?}"));
            }
        });
        for (name, value) in wanted {
            missing.push(format!("{place}: expected {name} {value:?}, no such field"));
        }
        for (name, bits) in members {
            if let Some(whole) = bits_of(members, name)
                && put_together(bits) != whole.number()
            {
                missing.push(format!("{place}: {name} {bits:?} is not {whole:?}"));
            }
        }
        missing.into_iter().for_each(|what| self.mismatch(what));
    }
}

/// The bit field that the member of that name repeats bit by bit.
fn bits_of<'a>(members: &'a [(String, Json)], name: &str) -> Option<&'a Json> {
    let whole = name.strip_suffix("_bits")?;
    members.iter().find(|(member, _)| member == whole).map(|(_, value)| value)
}

/// A bit field out of its parts, the lowest first; `unused_N` is N bits wide, the others one.
fn put_together(parts: &Json) -> Option<i128> {
    let mut shift = 0_u32;
    let mut whole = 0_i128;
    for (name, value) in parts.members() {
        whole |= value.number()? << shift;
        shift += name.strip_prefix("unused_").and_then(|bits| bits.parse().ok()).unwrap_or(1);
    }
    Some(whole)
}

/// Whether a field holds the expected value.
fn agrees(name: &str, value: FieldValue<'_>, wanted: &Json) -> bool {
    match (value, wanted) {
        (FieldValue::Number(value), Json::Number(wanted)) => value == *wanted,
        (FieldValue::Number(value), Json::Text(wanted)) if name == "extension_number" => {
            u8::try_from(value).is_ok_and(|code| text_agrees(trimmed(&[code]), wanted))
        }
        (FieldValue::Code(value) | FieldValue::Bits(value), Json::Number(wanted)) => i128::from(value) == *wanted,
        (FieldValue::Code(value), Json::Text(wanted)) => text_agrees(trimmed(&[value]), wanted),
        (FieldValue::Text(value), Json::Text(wanted)) => text_agrees(value, wanted),
        (FieldValue::Opaque(value), Json::Text(wanted)) => {
            value.iter().map(|byte| format!("{byte:02x}")).collect::<String>() == *wanted
        }
        _ => false,
    }
}

/// Text on the wire is compared as Latin-1: each byte is the character of that number.
fn text_agrees(value: &[u8], wanted: &str) -> bool {
    value.iter().map(|byte| char::from(*byte)).eq(wanted.chars())
}

/// Every capture of one protocol against its expected decode; a report per file and in total.
///
/// # Panics
/// When anything doesn't agree, when a file can't be read, or when there is no capture of that protocol at all.
pub fn check_captures<P: Protocol>(protocol: &str, root: &Path, wanted: impl Fn(&str) -> bool) {
    let pairs = captures::pairs(root, wanted).expect("captures can be listed");
    assert!(!pairs.is_empty(), "{protocol}: no capture below {}", root.display());
    let mut total = Compared::default();
    let mut types = BTreeMap::<char, u64>::new();
    let mut failed = Vec::new();
    for pair in &pairs {
        let name = pair.capture.strip_prefix(root).unwrap_or(&pair.capture).display().to_string();
        let mut checker = Checker::default();
        check_pair::<P>(&mut checker, pair);
        captures::say(&format!("{protocol}: {name}: {}, {} mismatches", checker.compared, checker.mismatch_count));
        if checker.mismatch_count > 0 {
            failed.push(format!(
                "{name}: {} mismatches\n  {}",
                checker.mismatch_count,
                checker.mismatches.join("\n  ")
            ));
        }
        total += checker.compared;
        for (code, count) in checker.types {
            *types.entry(code).or_default() += count;
        }
    }
    captures::say(&format!("{protocol}: total of {} files: {total}; messages by type: {types:?}", pairs.len()));
    assert!(failed.is_empty(), "{protocol}:\n{}", failed.join("\n"));
    assert!(total.fields > 0, "{protocol}: nothing was compared");
}

/// One capture against its expected decode.
fn check_pair<P: Protocol>(checker: &mut Checker, pair: &Pair) {
    let expected = captures::read(&pair.expected).expect("the expected decode can be read");
    // One element of the array stands on each line.
    let mut expected = expected.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.trim_ascii();
        let line = line.strip_suffix(b",").unwrap_or(line);
        (!matches!(line, b"" | b"[" | b"]")).then(|| Json::parse(line).expect("one JSON object a line"))
    });
    if pair.capture.to_string_lossy().contains(".itch") {
        let file = captures::read(&pair.capture).expect("the capture can be read");
        for message in binaryfile::Messages::new(&file) {
            match (message, expected.next()) {
                (Ok(message), Some(expected)) => checker.file_message::<P>(&expected, &message),
                (Ok(message), None) => checker.mismatch(format!("offset {}: not expected", message.offset)),
                (Err(damage), None) => {
                    captures::say(&format!("  damaged at {}: {}", damage.offset, damage.reason.name()))
                }
                (Err(damage), Some(_)) => {
                    checker.mismatch(format!("offset {}: {}", damage.offset, damage.reason.name()));
                }
            }
        }
    } else {
        let mut file = CaptureFile::open(&pair.capture, &OpenOptions::default()).expect("the capture can be opened");
        loop {
            match file.next_datagram() {
                Ok(Some(captured)) => match expected.next() {
                    Some(expected) => checker.packet::<P>(&expected, &captured),
                    None => checker.mismatch(format!("frame {}: not expected", captured.frame)),
                },
                Ok(None) => break,
                // A capture may be cut in its last packet; then everything before it was expected, and nothing after.
                Err(error) => {
                    captures::say(&format!("  {error}"));
                    break;
                }
            }
        }
    }
    let left = expected.count();
    if left > 0 {
        checker.mismatch(format!("{left} expected but not in the capture"));
    }
}

/// A datagram that was never captured, for checks of the checker.
#[must_use]
pub fn own_datagram(payload: &[u8]) -> CapturedDatagram<'_> {
    CapturedDatagram {
        frame: 1,
        time_ns: 5,
        frame_len: 100,
        captured_len: 100,
        vlan: VlanTags::default(),
        src: SocketAddr::from(([10, 0, 0, 1], 1)),
        dst: SocketAddr::from(([239, 0, 0, 1], 2)),
        payload,
    }
}
