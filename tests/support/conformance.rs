//! Packets against their expected decodes, value by value, through the code of `mdgw inspect --json`.
//!
//! Expected decodes come from a dissector with its own field names. So values are compared by their position in header and
//! message, and only where both have the same number of values. Known differences between the dissector and the
//! specifications, each handled separately:
//! - `NAME_bits` repeats the bit field `NAME` bit by bit. The bits are combined again and must equal `NAME`.
//! - IEX Auction Information, extension number: by the specification a number of one byte, which the dissector reads as a
//!   character. The number is compared with the character's code; 0 and a space cannot be distinguished there.

use std::{collections::BTreeMap, fmt, net::SocketAddr, ops::AddAssign, path::Path};

use mdgw_captures::capture_file::{CaptureFile, CaptureKind, CapturedDatagram, OpenOptions, VlanTags};
use mdgw_feeds::{time::TradingDate, transport::DetectedProtocol, venue::wire::trimmed};
use mdgw_tools::inspect::dissect::{Dissector, Framing, PacketView};

use crate::{
    captures::{self, CaptureWithDecode},
    json::Json,
};

/// Numbers of compared values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparisonCounts {
    /// Packets.
    pub packets: u64,
    /// Messages.
    pub messages: u64,
    /// Values in transport headers and messages: fields, and type, offset and length of each message.
    pub fields: u64,
    /// Values around the payload: frame number, time, lengths, VLAN tags, addresses, ports.
    pub frame_values: u64,
}

impl AddAssign for ComparisonCounts {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.messages += other.messages;
        self.fields += other.fields;
        self.frame_values += other.frame_values;
    }
}

impl fmt::Display for ComparisonCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} packets, {} messages, {} fields, {} values around them",
            self.packets, self.messages, self.fields, self.frame_values
        )
    }
}

/// Compares, counts, and collects mismatches.
#[derive(Debug, Default)]
pub struct Checker {
    /// Values compared so far.
    pub compared: ComparisonCounts,
    /// Messages by their type.
    pub types: BTreeMap<char, u64>,
    mismatches: Vec<String>,
    mismatch_count: u64,
}

/// Number of mismatches that are kept as text; further ones are only counted.
const MISMATCHES_MAX: usize = 20;

impl Checker {
    /// Number of mismatches.
    #[must_use]
    pub fn mismatch_count(&self) -> u64 {
        self.mismatch_count
    }

    /// The first mismatches, as text.
    #[must_use]
    pub fn mismatches(&self) -> &[String] {
        &self.mismatches
    }

    /// Records a mismatch.
    pub fn mismatch(&mut self, what: String) {
        self.mismatch_count += 1;
        if self.mismatches.len() < MISMATCHES_MAX {
            self.mismatches.push(what);
        }
    }

    /// Checks one packet of a capture. It is decoded as `protocol` unless it identifies its own.
    pub fn packet(&mut self, protocol: DetectedProtocol, expected: &Json, captured: &CapturedDatagram<'_>) {
        let view = Dissector::new(CaptureKind::Packets, Some(protocol)).packet(*captured);
        self.view(expected, &view);
    }

    /// Checks one decoded packet.
    fn view(&mut self, expected: &Json, view: &PacketView<'_>) {
        self.compared.packets += 1;
        let location = format!("frame {}", view.datagram.frame);
        let shown = shown(view);
        self.frame(&location, expected, &shown);
        self.header(&location, expected, &shown, view);
        self.messages(&location, expected.get("messages"), shown.get("messages"));
    }

    /// Checks the messages of a packet made from a day file, whose expected decode has no packets.
    fn file_messages(&mut self, expected: &mut impl Iterator<Item = Json>, view: &PacketView<'_>) {
        let shown = shown(view);
        for message in shown.get("messages").map_or(&[][..], Json::list) {
            let location = format!("offset {:?}", message.get("offset"));
            match expected.next() {
                Some(expected) => self.message(&location, &expected, message),
                None => self.mismatch(format!("{location}: not expected")),
            }
        }
    }

    /// Checks the values around the payload. A value that only one of the two decodes has is a mismatch.
    fn frame(&mut self, location: &str, expected: &Json, shown: &Json) {
        for name in [
            "frame",
            "time_ns",
            "frame_len",
            "captured_len",
            "vlan",
            "src",
            "dst",
            "src_port",
            "dst_port",
            "payload_len",
            "undecoded_bytes",
            "refused",
        ] {
            self.compared.frame_values += 1;
            let (wanted, value) = (expected.get(name), shown.get(name));
            if wanted != value {
                self.mismatch(format!("{location}: {name} is {value:?}, expected {wanted:?}"));
            }
        }
    }

    fn header(&mut self, location: &str, expected: &Json, shown: &Json, view: &PacketView<'_>) {
        let wanted = expected.get("header").unwrap_or(&Json::Null);
        self.fields(location, wanted, shown.get("header").unwrap_or(&Json::Null));
        // The recognised protocol must agree with the packet's own header.
        let (Framing::Packet(_, packet) | Framing::UnidentifiedMold(packet)) = view.framing else { return };
        for (value, names) in [
            (i128::from(packet.first.0), ["sequence_number", "first_message_sequence_number"]),
            (i128::from(packet.count), ["message_count", "message_count"]),
        ] {
            let wanted = names.iter().find_map(|name| wanted.get(name)).and_then(Json::number);
            if wanted != Some(value) {
                self.mismatch(format!("{location}: {} recognised as {value}, expected {wanted:?}", names[0]));
            }
        }
    }

    fn messages(&mut self, location: &str, expected: Option<&Json>, shown: Option<&Json>) {
        let (expected, shown) = (expected.map_or(&[][..], Json::list), shown.map_or(&[][..], Json::list));
        for (count, (expected, shown)) in expected.iter().zip(shown).enumerate() {
            self.message(&format!("{location}, message {count}"), expected, shown);
        }
        if shown.len() != expected.len() {
            self.mismatch(format!("{location}: {} messages, expected {}", shown.len(), expected.len()));
        }
    }

    fn message(&mut self, location: &str, expected: &Json, shown: &Json) {
        self.compared.messages += 1;
        let code = shown.get("header").and_then(|header| header.get("message_type")).and_then(Json::text);
        *self.types.entry(code.and_then(|code| code.chars().next()).unwrap_or('?')).or_default() += 1;
        // The name of a message is not compared. That it has one shows that the message was decoded.
        if shown.get("type").and_then(Json::text).is_none() {
            self.mismatch(format!("{location}: refused, {:?}", shown.get("refused")));
        }
        for name in ["offset", "length", "undecoded_bytes"] {
            self.compared.fields += 1;
            let (wanted, value) = (expected.get(name), shown.get(name));
            if wanted != value {
                self.mismatch(format!("{location}: {name} is {value:?}, expected {wanted:?}"));
            }
        }
        for part in ["header", "fields"] {
            self.fields(location, expected.get(part).unwrap_or(&Json::Null), shown.get(part).unwrap_or(&Json::Null));
        }
    }

    /// Compares values by position, with `NAME_bits` combined into `NAME`.
    fn fields(&mut self, location: &str, expected: &Json, shown: &Json) {
        let members = expected.members();
        let wanted: Vec<_> = members.iter().filter(|(name, _)| bits_of(members, name).is_none()).collect();
        let shown = shown.members();
        for ((wanted_name, wanted), (name, value)) in wanted.iter().zip(shown) {
            self.compared.fields += 1;
            if !values_match(name, value, wanted) {
                self.mismatch(format!("{location}: {name} is {value:?}, expected {wanted_name} {wanted:?}"));
            }
        }
        for (name, value) in shown.iter().skip(wanted.len()) {
            self.mismatch(format!("{location}: {name} is {value:?}, nothing expected"));
        }
        for (name, value) in wanted.iter().skip(shown.len()) {
            self.mismatch(format!("{location}: expected {name} {value:?}, no such field"));
        }
        for (name, bits) in members {
            if let Some(whole) = bits_of(members, name)
                && combine_bits(bits) != whole.number()
            {
                self.mismatch(format!("{location}: {name} {bits:?} is not {whole:?}"));
            }
        }
    }
}

/// A packet as `mdgw inspect --json` prints it, parsed again.
fn shown(view: &PacketView<'_>) -> Json {
    let text = serde_json::to_vec(view).expect("a packet is JSON");
    Json::parse(&text).expect("what was written as JSON is JSON")
}

/// Value of the bit field `NAME` that the member `NAME_bits` repeats bit by bit; `None` for any other member.
fn bits_of<'a>(members: &'a [(String, Json)], name: &str) -> Option<&'a Json> {
    let whole = name.strip_suffix("_bits")?;
    members.iter().find(|(member, _)| member == whole).map(|(_, value)| value)
}

/// Combines the parts of a bit field, the lowest first. `unused_N` is N bits wide, every other part one bit.
fn combine_bits(parts: &Json) -> Option<i128> {
    let mut shift = 0_u32;
    let mut whole = 0_i128;
    for (name, value) in parts.members() {
        whole |= value.number()? << shift;
        shift += name.strip_prefix("unused_").and_then(|bits| bits.parse().ok()).unwrap_or(1);
    }
    Some(whole)
}

/// Whether a field holds the expected value. The dissector reads some codes of one byte as numbers, and one number of
/// one byte as a character.
fn values_match(name: &str, value: &Json, wanted: &Json) -> bool {
    match (value, wanted) {
        (Json::Number(value), Json::Text(wanted)) if name == "extension_number" => {
            u8::try_from(*value).is_ok_and(|code| text_matches(trimmed(&[code]), wanted))
        }
        (Json::Text(value), Json::Number(wanted)) => {
            let mut letters = value.chars();
            letters.next().map(|letter| i128::from(u32::from(letter))) == Some(*wanted) && letters.next().is_none()
        }
        _ => value == wanted,
    }
}

/// Text in packets is compared as Latin-1: each byte is the character with that number.
fn text_matches(value: &[u8], wanted: &str) -> bool {
    value.iter().map(|byte| char::from(*byte)).eq(wanted.chars())
}

/// Compares every capture of one protocol with its expected decode. Prints a report per file and in total.
///
/// # Panics
/// On a mismatch, when a file can't be read, or when there is no capture of that protocol.
pub fn check_captures(protocol: DetectedProtocol, root: &Path, wanted: impl Fn(&str) -> bool) {
    let pairs = captures::pairs(root, wanted).expect("captures can be listed");
    assert!(!pairs.is_empty(), "{protocol}: no capture below {}", root.display());
    let mut total = ComparisonCounts::default();
    let mut types = BTreeMap::<char, u64>::new();
    let mut failed = Vec::new();
    for pair in &pairs {
        let name = pair.capture.strip_prefix(root).unwrap_or(&pair.capture).display().to_string();
        let mut checker = Checker::default();
        check_pair(&mut checker, protocol, pair);
        captures::print_to_stderr(&format!(
            "{protocol}: {name}: {}, {} mismatches",
            checker.compared, checker.mismatch_count
        ));
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
    captures::print_to_stderr(&format!(
        "{protocol}: total of {} files: {total}; messages by type: {types:?}",
        pairs.len()
    ));
    assert!(failed.is_empty(), "{protocol}:\n{}", failed.join("\n"));
    assert!(total.fields > 0, "{protocol}: nothing was compared");
}

/// Compares one capture with its expected decode.
fn check_pair(checker: &mut Checker, protocol: DetectedProtocol, pair: &CaptureWithDecode) {
    let expected = captures::read(&pair.expected).expect("the expected decode can be read");
    // Each line holds one element of the array.
    let mut expected = expected.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.trim_ascii();
        let line = line.strip_suffix(b",").unwrap_or(line);
        (!matches!(line, b"" | b"[" | b"]")).then(|| Json::parse(line).expect("one JSON object a line"))
    });
    // Packets of a day file need a date. No compared value depends on it, so any date will do.
    let options = OpenOptions { date: TradingDate::from_yyyymmdd(20_190_130), ..OpenOptions::default() };
    let mut file = CaptureFile::open(&pair.capture, &options).expect("the capture can be opened");
    let mut dissector = Dissector::new(file.kind(), Some(protocol));
    loop {
        match file.next_datagram() {
            Ok(Some(captured)) => {
                let view = dissector.packet(captured);
                match view.kind {
                    CaptureKind::DayFile => checker.file_messages(&mut expected, &view),
                    CaptureKind::Packets => match expected.next() {
                        Some(expected) => checker.view(&expected, &view),
                        None => checker.mismatch(format!("frame {}: not expected", captured.frame)),
                    },
                }
            }
            Ok(None) => break,
            // A capture may be truncated in its last packet. Its expected decode ends before that packet too.
            Err(error) => {
                captures::print_to_stderr(&format!("  {error}"));
                break;
            }
        }
    }
    let left = expected.count();
    if left > 0 {
        checker.mismatch(format!("{left} expected but not in the capture"));
    }
}

/// A synthetic datagram, for tests of the checker itself.
#[must_use]
pub fn synthetic_datagram(payload: &[u8]) -> CapturedDatagram<'_> {
    CapturedDatagram {
        frame: 1,
        time_ns: 5,
        frame_len: 100,
        captured_len: 100,
        vlan: VlanTags::default(),
        src: SocketAddr::from(([10, 0, 0, 1], 1)),
        dst: SocketAddr::from(([239, 0, 0, 1], 2)),
        payload,
        is_truncated: false,
    }
}
