//! Inputs of tests: synthetic days and captures, complete or as two damaged lines.

use std::{
    fs::File,
    io::BufWriter,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    sync::Arc,
};

use mdgw_captures::{
    capture_file::{CaptureFile, OpenOptions, PcapWriter},
    impairment::{ImpairedLines, LineImpairment, LossPolicy},
};
use mdgw_feeds::{
    identity::Sequence,
    time::UnixNs,
    transport::iextp::{self, PacketWriter, SegmentPosition, StreamIdentity},
};
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, ItchPackets};

/// One packet and the moment at which it was sent.
pub type Packet = (u64, Arc<[u8]>);

/// The session of synthetic days, as the exchange simulator names it.
pub const SESSION: [u8; 10] = *b"MDGWSIM001";

/// Destination addresses in captures: line A and line B.
pub const DESTINATIONS: [&str; 2] = ["233.54.12.111:26477", "233.49.196.111:26477"];

/// A synthetic Nasdaq day, the same as `mdgw sim --messages N --stocks 200 --seed SEED` plays.
#[must_use]
pub fn itch_day(messages: u64, seed: u64) -> ItchDay {
    ItchDay { seed, message_count: messages, stock_count: STOCKS, ..ItchDay::default() }
}

/// Number of instruments of [`itch_day`].
pub const STOCKS: u16 = 200;

/// The packets of a synthetic day up to and including the end of its session.
#[must_use]
pub fn itch_packets(day: ItchDay, session: [u8; 10], midnight_ns: u64) -> Vec<Packet> {
    let mut source = ItchPackets::new(ItchGenerator::new(day), session);
    let mut packets = Vec::new();
    let mut bytes = Vec::new();
    let mut last_ns = midnight_ns;
    while let Some(info) = source.next_packet(&mut bytes) {
        last_ns = midnight_ns + info.time_ns;
        packets.push((last_ns, bytes.as_slice().into()));
    }
    source.write_end_of_session(&mut bytes);
    packets.push((last_ns + 1_000, bytes.as_slice().into()));
    packets
}

/// 2019-01-30, the date of days that carry none.
pub const MIDNIGHT_NS: u64 = 1_548_824_400_000_000_000;

/// The packets of a capture, up to its end or its truncation.
///
/// # Panics
/// When it can't be opened.
#[must_use]
pub fn capture_packets(path: &Path) -> Vec<Packet> {
    let mut file = CaptureFile::open(path, &OpenOptions::default()).expect("the capture opens");
    let mut packets = Vec::new();
    while let Ok(Some(datagram)) = file.next_datagram() {
        packets.push((datagram.time_ns, datagram.payload.into()));
    }
    packets
}

/// The same packets, that many nanoseconds apart: in a capture's own time minutes may pass without a packet.
#[must_use]
pub fn evenly_spaced(packets: &[Packet], gap_ns: u64) -> Vec<Packet> {
    let start_ns = packets.first().map_or(0, |(time_ns, _)| *time_ns);
    (0..).zip(packets).map(|(number, (_, bytes))| (start_ns + number * gap_ns, Arc::clone(bytes))).collect()
}

/// Writes packets as a capture of one line.
///
/// # Panics
/// When the file can't be written.
pub fn write_capture(path: &Path, destination: &str, packets: &[Packet]) {
    let [source, destination] = ["10.0.0.1:40000", destination].map(|text| text.parse::<SocketAddrV4>());
    let (source, destination) = (source.expect("an address"), destination.expect("an address"));
    let file = BufWriter::new(File::create(path).expect("a capture can be created"));
    let mut writer = PcapWriter::new(file).expect("a capture can be begun");
    for (time_ns, bytes) in packets {
        writer.datagram(*time_ns, source, destination, bytes).expect("a capture can be written");
    }
    writer.finish().expect("a capture can be ended");
}

/// Two damaged copies of the packets. Each packet is still on at least one of them.
#[must_use]
pub fn damaged(packets: &[Packet], damage: [LineImpairment; 2], seed: u64) -> [Vec<Packet>; 2] {
    let mut lines = [Vec::new(), Vec::new()];
    let mut damaged_lines = ImpairedLines::new(&damage, LossPolicy::NeverOnAllLines, seed);
    let mut now_ns = 0;
    for (time_ns, bytes) in packets {
        now_ns = *time_ns;
        damaged_lines.transmit(bytes, |line, skew_ns, bytes| lines[line].push((now_ns + skew_ns, Arc::clone(bytes))));
    }
    damaged_lines.finish(|line, skew_ns, bytes| lines[line].push((now_ns + skew_ns, Arc::clone(bytes))));
    lines
}

/// Writes two damaged copies as captures `a.pcap` and `b.pcap` in the directory. Returns their paths.
///
/// # Panics
/// When they can't be written.
#[must_use]
pub fn write_damaged_captures(
    folder: &Path,
    packets: &[Packet],
    damage: [LineImpairment; 2],
    seed: u64,
) -> [PathBuf; 2] {
    let lines = damaged(packets, damage, seed);
    let paths = ["a.pcap", "b.pcap"].map(|name| folder.join(name));
    for ((path, packets), destination) in paths.iter().zip(&lines).zip(DESTINATIONS) {
        write_capture(path, destination, packets);
    }
    paths
}

/// The damage in tests: all kinds at once, with line B some microseconds later.
pub const DAMAGE: [LineImpairment; 2] = [
    LineImpairment { loss: 0.05, duplicate: 0.02, reorder: 0.02, skew_ns: 0 },
    LineImpairment { loss: 0.10, duplicate: 0.02, reorder: 0.02, skew_ns: 3_000 },
];

/// Packets of an IEX stream with these messages, one in each, a microsecond apart.
///
/// # Panics
/// When a message is too long for a packet.
#[must_use]
pub fn iex_packets<'m>(
    message_protocol_id: u16,
    session_id: u32,
    start_ns: u64,
    messages: impl IntoIterator<Item = &'m [u8]>,
) -> Vec<Packet> {
    let stream = StreamIdentity { message_protocol_id, channel_id: 1, session_id };
    let mut position = SegmentPosition { first: Sequence(1), stream_offset: 0, send_time: UnixNs(start_ns) };
    let mut packets = Vec::new();
    let mut bytes = Vec::new();
    for message in messages {
        let mut writer = PacketWriter::begin(&mut bytes, stream, position, 1_400);
        let fits = writer.push(message);
        assert!(fits && writer.finish() == 1, "a packet has room for one message");
        packets.push((position.send_time.0, Arc::from(bytes.as_slice())));
        position.first = position.first.plus(1);
        position.stream_offset += (bytes.len() - iextp::HEADER_BYTES) as u64;
        position.send_time.0 += 1_000;
    }
    packets
}
