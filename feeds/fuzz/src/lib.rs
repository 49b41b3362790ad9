//! Assertions of each fuzz target. Nothing may panic. Every input that a parser accepts is written again as the same
//! bytes by our own writer. The output of arbiter, channel and receiver strictly ascends.
//!
//! The functions are the bodies of the targets. The project's tests run them too, over mutations of the seeds and
//! without libFuzzer (`tests/fuzz`).

pub mod seeds;

use mdgw_feeds::{
    arbiter::{Arbiter, ArbiterConfig, Arrival, Delivery},
    book::BookLimits,
    channel::{Channel, ChannelConfig, Datagram, SchemaSet},
    drop_reason::DropReason,
    frame::{FrameFlags, FrameKind, FrameMeta, FrameSink},
    identity::{ChannelId, Feed, GroupId, Line, Sequence, Session},
    published::{
        packet::{Frames, PACKET_HEADER_BYTES, PacketFlags, parse_packet, write_packet},
        receiver::{Item, Output, PublishedDatagram, Receiver, ReceiverConfig, ServiceConfig, StartFrom},
        request::ServiceRequest,
        snapshot::{ChunkOutcome, SnapshotAssembly, SnapshotChunk, checksum},
        tag::{TAG_BYTES, TagKey, TagPolicy, TagUse},
    },
    time::{MonoNs, TradingDate, UnixNs},
    transport::{Packet, PacketKind, Transport, binaryfile, iextp, moldudp64},
    venue::{
        iex,
        nasdaq::itch50,
        wire::{FieldList, FieldValue},
    },
};
use zerocopy::{FromBytes, IntoBytes};

/// Checks one input.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 12] = [
    ("moldudp64", moldudp64),
    ("iextp", iextp),
    ("binaryfile", binaryfile),
    ("itch50", itch50),
    ("tops", tops),
    ("deep", deep),
    ("packet", packet),
    ("request", request),
    ("arbiter", arbiter),
    ("channel", channel),
    ("receiver", receiver),
    ("snapshot", snapshot),
];

/// Size of the length prefix of each piece, for an input that represents several datagrams.
const LENGTH_BYTES: usize = 2;

/// MoldUDP64: read, then written again.
pub fn moldudp64(input: &[u8]) {
    let Ok(packet) = moldudp64::MoldUdp64::parse(input) else {
        return;
    };
    let messages = messages_of::<moldudp64::MoldUdp64>(&packet);
    let session = moldudp64::session_name(packet.session);
    let mut again = Vec::new();
    match packet.kind {
        PacketKind::Heartbeat => moldudp64::write_heartbeat(&mut again, session, packet.first),
        PacketKind::EndOfSession => moldudp64::write_end_of_session(&mut again, session, packet.first),
        PacketKind::Messages => {
            let mut writer = moldudp64::PacketWriter::begin(&mut again, session, packet.first, usize::MAX);
            assert!(messages.iter().all(|message| writer.push(message)));
            writer.finish();
        }
    }
    assert_eq!(again, input);
}

/// IEX-TP of both message protocols: read, then written again.
pub fn iextp(input: &[u8]) {
    let parsed = iextp::Tops::parse(input).or_else(|_| iextp::Deep::parse(input));
    let Ok(packet) = parsed else { return };
    let messages = messages_of::<iextp::Tops>(&packet);
    let (header, _) = iextp::Header::ref_from_prefix(input).expect("a parsed segment has a header");
    let stream = iextp::StreamIdentity {
        message_protocol_id: header.message_protocol_id.get(),
        channel_id: header.channel_id.get(),
        session_id: header.session_id.get(),
    };
    let position = iextp::SegmentPosition {
        first: packet.first,
        stream_offset: header.stream_offset.get().cast_unsigned(),
        send_time: packet.send_time.expect("IEX packets have a send time"),
    };
    let mut again = Vec::new();
    let mut writer = iextp::PacketWriter::begin(&mut again, stream, position, usize::MAX);
    assert!(messages.iter().all(|message| writer.push(message)));
    writer.finish();
    // The reserved byte may have any value.
    again[1] = input[1];
    assert_eq!(again, input);
}

fn messages_of<'a, T: Transport>(packet: &Packet<'a>) -> Vec<&'a [u8]> {
    let mut block = packet.messages;
    let messages: Vec<_> = std::iter::from_fn(|| T::next_message(&mut block)).collect();
    assert_eq!((messages.len(), block.len()), (packet.count as usize, 0), "framing was checked");
    messages
}

/// Day files: the messages read and the rest make up the input.
pub fn binaryfile(input: &[u8]) {
    let mut messages = binaryfile::Messages::new(input);
    let mut again = Vec::new();
    let mut damage = None;
    for message in messages.by_ref() {
        match message {
            Ok(message) => {
                assert_eq!(message.offset, again.len() as u64);
                assert!(binaryfile::write_message(&mut again, message.bytes));
            }
            Err(found) => damage = Some(found),
        }
    }
    if messages.has_end_mark() || again.len() < input.len() - messages.rest().len() {
        binaryfile::write_end_mark(&mut again);
    }
    assert_eq!(again, input[..input.len() - messages.rest().len()]);
    assert_eq!(damage.is_none(), messages.rest().is_empty());
}

/// ITCH 5.0: the view is the input, and the prefetch target matches the message.
pub fn itch50(input: &[u8]) {
    let Ok(message) = itch50::Message::parse(input) else {
        return;
    };
    assert_eq!(message.as_bytes(), input);
    assert!(itch50::has_known_length(input));
    let target = itch50::target_of(input).expect("every message begins like all");
    assert_eq!(target.stock_locate, message.stock_locate());
    let mut references = Vec::new();
    message.fields(&mut |name, value| {
        if let FieldValue::Number(reference) = value
            && name.ends_with("order_reference_number")
        {
            references.push(reference);
        }
    });
    if let Some(reference) = target.order_reference_number {
        assert_eq!(references.first(), Some(&i128::from(reference)));
    }
}

/// TOPS: bytes appended by a later version change nothing.
pub fn tops(input: &[u8]) {
    if let Ok(message) = iex::tops::Message::parse(input) {
        assert!(input.starts_with(message.as_bytes()));
        let grown = [input, b"more"].concat();
        let grown = iex::tops::Message::parse(&grown).expect("messages may grow");
        assert_eq!(text_of(&message), text_of(&grown));
    }
}

/// DEEP: bytes appended by a later version change nothing.
pub fn deep(input: &[u8]) {
    if let Ok(message) = iex::deep::Message::parse(input) {
        assert!(input.starts_with(message.as_bytes()));
        let grown = [input, b"more"].concat();
        let grown = iex::deep::Message::parse(&grown).expect("messages may grow");
        assert_eq!(text_of(&message), text_of(&grown));
    }
}

fn text_of(message: &impl FieldList) -> String {
    let mut text = String::new();
    message.fields(&mut |name, value| text += &format!("{name} {value}\n"));
    text
}

/// Our own packets: read, then written again without a tag; frames fill the body. No input has a valid tag by chance.
pub fn packet(input: &[u8]) {
    let tags = TagPolicy { keys: vec![TagKey::new(&[7; 32])], accepts_untagged: true };
    let checked = tags.check(TagUse::Published, input);
    let Ok(packet) = parse_packet(input) else {
        return;
    };
    assert_eq!(checked, if packet.is_tagged { Err(DropReason::TagInvalid) } else { Ok(()) });
    let mut input = input.to_vec();
    if packet.is_tagged {
        input.truncate(input.len() - TAG_BYTES);
        input[5] &= !PacketFlags::TAGGED.0;
    }
    let mut again = vec![0; input.len()];
    assert_eq!(write_packet(&packet.meta, packet.body, &mut again), Some(input.len()));
    assert_eq!(again, input);
    assert_eq!(Frames::of_body(packet.body).count(), usize::from(packet.frame_count));
    let frames: usize = packet.frames().map(|(_, body)| mdgw_feeds::frame::FRAME_HEADER_BYTES + body.len()).sum();
    assert_eq!(PACKET_HEADER_BYTES + frames, input.len());
}

/// Requests to our own service: read, then written again.
pub fn request(input: &[u8]) {
    if let Ok(request) = ServiceRequest::parse(input) {
        assert_eq!(request.to_packet().as_bytes(), input);
    }
}

/// Arrivals on three lines, with sequences of one byte. Delivered ranges and declared gaps follow each other without an
/// omission.
pub fn arbiter(input: &[u8]) {
    let config = ArbiterConfig { lines: 3, sequence_jump_max: 200, gap_timeout_ns: 1_000, ..ArbiterConfig::default() };
    let mut arbiter = Arbiter::new(config);
    let mut next = None;
    let mut deliver = |delivery: Delivery<'_>| {
        let (from, until) = match delivery {
            Delivery::Packet { first, next, from, until, .. } => {
                assert!(first <= from && until <= next);
                (from, until)
            }
            Delivery::Gap(gap) => (gap.first(), gap.next()),
        };
        assert!(from < until && next.is_none_or(|next| next == from), "{from:?} after {next:?}");
        next = Some(until);
    };
    let mut now = MonoNs(1);
    for step in input.chunks_exact(4) {
        let [what, line, first, count] = [step[0] % 8, step[1] % 4, step[2], step[3] % 32];
        let (line, first) = (Line(line), Sequence(u64::from(first)));
        now = now.plus(u64::from(step[0]));
        let refused = match what {
            0..5 => arbiter.accept(
                Arrival {
                    line,
                    first,
                    next: first.plus(u64::from(count)),
                    block: step,
                    ts_recv: UnixNs(now.0),
                    send_time: None,
                    now,
                },
                &mut deliver,
            ),
            5 => arbiter.announce(line, first, now),
            6 => {
                arbiter.on_deadline(now, &mut deliver);
                Ok(())
            }
            _ => {
                now = now.plus(2_000);
                arbiter.on_deadline(now, &mut deliver);
                assert!(arbiter.expected() == arbiter.frontier(), "every gap has timed out");
                Ok(())
            }
        };
        // The arbiter counts rejections.
        let _counted = refused;
    }
    arbiter.finish(&mut deliver);
    assert_eq!(arbiter.expected(), arbiter.frontier());
}

/// Datagrams on two lines of one channel, the feed chosen by the first byte: output ascends within each session.
pub fn channel(input: &[u8]) {
    let Some((feed, mut rest)) = input.split_first() else {
        return;
    };
    let feed = [Feed::NasdaqItch, Feed::IexTops, Feed::IexDeep][usize::from(feed % 3)];
    let mut config = ChannelConfig::new(ChannelId(1), feed);
    config.schemas = SchemaSet(0xff);
    config.date = TradingDate::from_yyyymmdd(20_190_130);
    config.books = BookLimits { instruments_max: 64, orders_max: 256, levels_max: 256, ..BookLimits::default() };
    config.arbiter.window_packets = 64;
    let mut channel = Channel::new(config);
    let mut sink = OrderCheckingSink::default();
    let mut now = MonoNs(1);
    while let Some(datagram) = next_datagram(&mut rest) {
        let line = Line(datagram.first().map_or(0, |byte| byte % 2));
        now = now.plus(1_000_000);
        if channel.next_deadline().is_some_and(|deadline| deadline <= now) {
            channel.on_deadline(now, &mut sink);
        }
        let bytes = datagram.get(1..).unwrap_or_default();
        channel.accept(Datagram { line, bytes, ts_recv: UnixNs(1_548_858_600_000_000_000 + now.0) }, now, &mut sink);
    }
    channel.finish(&mut sink);
}

/// Published datagrams and answers of two services to a receiver of one group. Messages, gaps and losses ascend within
/// each session.
pub fn receiver(input: &[u8]) {
    let service =
        ServiceConfig { service_count: 2, request_timeout_ns: 3_000_000, attempts_max: 5, ..ServiceConfig::default() };
    let config = ReceiverConfig {
        group: GroupId(1),
        channels: vec![ChannelId(1)],
        lines: 2,
        window_packets: 64,
        // Inputs of odd length configure services, so that the receiver sends requests.
        service: (input.len() % 2 == 1).then_some(service),
        // Some start with a snapshot, and some take one when their books are suspect.
        start: if input.len() % 4 == 3 { StartFrom::Snapshot } else { StartFrom::default() },
        rebuilds_books: input.len() % 8 > 3,
        snapshot_bytes_max: 1 << 16,
        ..ReceiverConfig::default()
    };
    let mut receiver = Receiver::new(config);
    let mut delivered_through: Option<(Session, Sequence)> = None;
    let mut deliver = |output: Output<'_>| {
        let (first, next) = match output.item {
            Item::Message { header, .. } => {
                let first = Sequence(header.sequence.get());
                (first, first.plus(1))
            }
            Item::Gap(gap) | Item::Lost(gap) => (gap.first(), gap.next()),
            _ => return,
        };
        let is_after = delivered_through.is_none_or(|(session, delivered_through)| {
            session < output.session || (session == output.session && delivered_through <= first)
        });
        assert!(is_after, "{first:?} of {} after {delivered_through:?}", output.session);
        delivered_through = Some((output.session, next));
    };
    let mut rest = input;
    let mut now = MonoNs(1);
    while let Some(datagram) = next_datagram(&mut rest) {
        let (line, service) = match datagram.first().copied().unwrap_or(0) {
            byte @ 254.. => (Line::RECOVERY, byte - 254),
            byte => (Line(byte % 2), 0),
        };
        now = now.plus(1_000_000);
        receiver.on_deadline(now, &mut deliver);
        let bytes = datagram.get(1..).unwrap_or_default();
        let datagram = PublishedDatagram { line, service, bytes, ts_recv: UnixNs(now.0) };
        let _counted = receiver.accept(datagram, now, &mut deliver);
        while receiver.poll_request().is_some() {}
    }
    receiver.finish(&mut deliver);
}

/// Packets with chunks of a snapshot. What is complete has the records, the totals and the checksum that every chunk says; what is
/// requested is missing.
pub fn snapshot(input: &[u8]) {
    const BYTES_MAX: u64 = 1 << 14;
    const REQUESTED_MAX: u32 = 8;
    let mut assembly = SnapshotAssembly::new(BYTES_MAX);
    let mut rest = input;
    while let Some(datagram) = next_datagram(&mut rest) {
        let Ok(packet) = parse_packet(datagram) else { continue };
        let Ok(chunk) = SnapshotChunk::from_packet(&packet) else { continue };
        let outcome = assembly.add(&chunk);
        if let Some(image) = assembly.image() {
            assert!(image.record_bytes <= BYTES_MAX && image.chunk_count > 0, "{image:?}");
        }
        match outcome {
            Ok(ChunkOutcome::Complete) => {
                let image = *assembly.image().expect("complete");
                let frames: Vec<_> = assembly.frames().collect();
                let records = frames.iter().flat_map(|(_, records)| records.iter().copied()).collect::<Vec<u8>>();
                assert_eq!((frames.len() as u64, checksum(&records)), (image.chunk_count.into(), image.checksum));
                assert_eq!(records.len() as u64, image.record_bytes);
                let is_end =
                    |flag: FrameFlags| frames.iter().map(move |(header, _)| FrameFlags(header.flags).contains(flag));
                assert_eq!(is_end(FrameFlags::FIRST_PART).position(|is_first| is_first), Some(0));
                assert_eq!(is_end(FrameFlags::LAST_PART).position(|is_last| is_last), Some(frames.len() - 1));
                assembly.clear();
            }
            Ok(ChunkOutcome::Damaged) => assert!(assembly.image().is_none()),
            Ok(ChunkOutcome::Added) => {
                let (first, next) = assembly.missing(REQUESTED_MAX);
                assert!(first.image == chunk.image.image && first.chunk < next.chunk, "{first:?} {next:?}");
                assert!(next.chunk <= chunk.image.chunk_count && next.chunk - first.chunk <= REQUESTED_MAX);
            }
            Err(_) => {}
        }
    }
}

/// A sink that asserts the order of its calls.
#[derive(Default)]
struct OrderCheckingSink {
    covered_through: Sequence,
    has_session: bool,
    has_ended: bool,
}

impl FrameSink for OrderCheckingSink {
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        assert!(self.has_session && meta.sequence >= self.covered_through && meta.next >= meta.sequence);
        match meta.kind {
            FrameKind::Message => {
                let is_suspect = meta.flags.contains(FrameFlags::SUSPECT);
                assert!((record_count > 0 || is_suspect && body.is_empty()) && body.len().is_multiple_of(8));
                assert!(!self.has_ended || meta.sequence >= self.covered_through);
                self.covered_through = meta.next;
            }
            FrameKind::Gap => self.covered_through = meta.next,
            FrameKind::State | FrameKind::Snapshot | FrameKind::SnapshotChunk => assert_eq!(meta.sequence, meta.next),
        }
    }

    fn covered_through(&mut self, next: Sequence) {
        assert!(self.has_session && next >= self.covered_through);
        self.covered_through = next;
    }

    fn session(&mut self, _session: Session, next: Sequence) {
        *self = Self { covered_through: next, has_session: true, has_ended: false };
    }

    fn end_of_session(&mut self) {
        assert!(self.has_session && !self.has_ended);
        self.has_ended = true;
    }
}

/// Appends a datagram to an input of [`channel`] or [`receiver`]: its length, its line, its bytes.
pub fn push_datagram(input: &mut Vec<u8>, line: Line, datagram: &[u8]) {
    let length = u16::try_from(1 + datagram.len()).expect("datagrams are shorter");
    input.extend_from_slice(&length.to_le_bytes());
    input.push(line.0);
    input.extend_from_slice(datagram);
}

fn next_datagram<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
    let (piece, behind) = behind.split_at(length);
    *rest = behind;
    Some(piece)
}
