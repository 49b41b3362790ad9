//! The gateway's own packets: what it publishes, requests to its retransmission service, and answers.

use dbn::{
    InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, RecordRef, SymbolMappingMsg, TradeMsg,
    decode::{DecodeRecordRef as _, dbn::RecordDecoder},
};
use mdgw_captures::dbn_file::schema_name;
use mdgw_feeds::{
    consumer_edge::first_record_of_any_length,
    drop_reason::DropReason,
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, GapBody, StateBody},
    identity::{Sequence, Session},
    published::{
        packet::{PACKET_HEADER_BYTES, Packet, PacketHeader, parse_packet},
        request::{REQUEST_PACKET_BYTES, RequestPacket, ServiceRequest},
        snapshot::SnapshotChunkBody,
    },
    venue::wire::{FieldList, FieldValue, TimeScale},
};
use zerocopy::FromBytes as _;

/// A sound datagram of the output protocol.
#[derive(Clone, Copy, Debug)]
pub enum PublishedDatagram<'a> {
    /// A packet: published, or of an answer.
    Packet(Packet<'a>),
    /// A request to a retransmission service.
    Request(ServiceRequest),
}

/// One record of a frame, or a frame without records.
#[derive(Clone, Copy, Debug)]
pub struct PublishedItem<'a> {
    header: &'a FrameHeader,
    body: &'a [u8],
    /// Whether `body` is one record of the frame.
    is_record: bool,
}

/// Whether a datagram claims to belong to the output protocol. Its version distinguishes it from MoldUDP64, whose packets begin with ten
/// letters that the venue chooses.
#[inline]
pub(super) fn is_published(datagram: &[u8]) -> bool {
    matches!(datagram, [b'M', b'D', b'G', b'W' | b'R', version, ..] if *version < b' ')
}

/// Checks a datagram as receivers and services do; tags are not checked.
pub(super) fn parse(datagram: &[u8]) -> Result<PublishedDatagram<'_>, DropReason> {
    if datagram.starts_with(b"MDGR") {
        return ServiceRequest::parse(datagram).map(PublishedDatagram::Request);
    }
    parse_packet(datagram).map(PublishedDatagram::Packet)
}

/// Passes the fields of the datagram's header. Returns their length in bytes, 0 if the datagram is too short.
pub(super) fn header(datagram: &[u8], visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) -> usize {
    let number = |number: u64| FieldValue::Number(number.into());
    if datagram.starts_with(b"MDGR") {
        let Ok((request, _)) = RequestPacket::ref_from_prefix(datagram) else { return 0 };
        visit("version", number(request.version.into()));
        visit("request", number(request.kind.into()));
        visit("group", number(request.group.get().into()));
        visit("channel", number(request.channel.get().into()));
        visit_session(request.session, visit);
        visit("first", number(request.first.get()));
        visit("next", number(request.next.get()));
        visit("nonce", number(request.nonce.get()));
        return REQUEST_PACKET_BYTES;
    }
    let Ok((packet, _)) = PacketHeader::ref_from_prefix(datagram) else { return 0 };
    visit("version", number(packet.version.into()));
    visit("flags", FieldValue::Bits(packet.flags));
    visit("group", number(packet.group.get().into()));
    visit("channel", number(packet.channel.get().into()));
    visit("frame_count", number(packet.frame_count.get().into()));
    visit("payload_bytes", number(packet.payload_bytes.get().into()));
    visit("epoch", number(packet.epoch.get()));
    visit_session(packet.session, visit);
    visit("first", number(packet.first.get()));
    visit("next", number(packet.next.get()));
    visit("send_time_ns", FieldValue::Time { raw: packet.send_time_ns.get().into(), scale: TimeScale::UnixNs });
    PACKET_HEADER_BYTES
}

fn visit_session(bytes: [u8; Session::BYTES], visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
    match Session::from_bytes(bytes) {
        Some(session) => visit("session", FieldValue::Text(session.to_string().as_bytes())),
        None => visit("session", FieldValue::Opaque(&bytes)),
    }
}

/// The items of a packet, each with its offset in the datagram: one for each record, and one for each frame without records.
pub(super) fn items<'a>(packet: &Packet<'a>) -> Vec<(usize, PublishedItem<'a>)> {
    let mut items = Vec::new();
    let mut offset = PACKET_HEADER_BYTES;
    for (header, body) in packet.frames() {
        let has_records = matches!(FrameKind::from_number(header.kind), Some(FrameKind::Message | FrameKind::Snapshot));
        let mut rest = body;
        while let Some(record) = first_record_of_any_length(rest).filter(|_| has_records) {
            let at = offset + FRAME_HEADER_BYTES + body.len() - rest.len();
            items.push((at, PublishedItem { header, body: record, is_record: true }));
            rest = rest.get(record.len()..).unwrap_or_default();
        }
        if !has_records || body.is_empty() {
            items.push((offset, PublishedItem { header, body, is_record: false }));
        }
        offset += FRAME_HEADER_BYTES + body.len();
    }
    items
}

impl<'a> PublishedItem<'a> {
    /// Its bytes: a record, or the body of a frame.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.body
    }

    /// Sequence of its frame.
    pub(super) fn sequence(&self) -> Sequence {
        Sequence(self.header.sequence.get())
    }

    /// A letter for the kind of its frame.
    pub(super) fn code(&self) -> char {
        match FrameKind::from_number(self.header.kind) {
            Some(FrameKind::Message) => 'm',
            Some(FrameKind::Gap) => 'g',
            Some(FrameKind::Snapshot) => 'n',
            Some(FrameKind::State) => 's',
            Some(FrameKind::SnapshotChunk) => 'c',
            None => '?',
        }
    }

    /// Schema of the record, or kind of the frame.
    pub(super) fn name(&self) -> &'static str {
        if self.is_record {
            let rtype = self.body.get(1).copied().unwrap_or_default();
            return dbn::RType::try_from(rtype).map_or("record", schema_name);
        }
        match FrameKind::from_number(self.header.kind) {
            Some(FrameKind::Message) => "message",
            Some(FrameKind::Gap) => "gap",
            Some(FrameKind::Snapshot) => "snapshot",
            Some(FrameKind::State) => "state",
            Some(FrameKind::SnapshotChunk) => "snapshot-chunk",
            None => "frame",
        }
    }

    /// The instrument of a record.
    pub(super) fn instrument(&self) -> Option<u32> {
        self.with_record(|record| record.header().instrument_id)
    }

    /// The symbol that the record gives to its instrument.
    pub(super) fn symbol(&self) -> Option<Vec<u8>> {
        self.with_record(|record| {
            let mapping = record.get::<SymbolMappingMsg>().and_then(|mapping| mapping.stype_out_symbol().ok());
            let definition = record.get::<InstrumentDefMsg>().and_then(|definition| definition.raw_symbol().ok());
            mapping.or(definition).map(|symbol| symbol.as_bytes().to_vec())
        })
        .flatten()
    }

    /// Fields of the frame's header.
    pub(super) fn frame_fields(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
        let FrameHeader { sequence, ts_recv, ts_in_delta_ns, record_count, kind, flags, part, .. } = self.header;
        visit("kind", FieldValue::Number((*kind).into()));
        visit("sequence", FieldValue::Number(sequence.get().into()));
        visit("part", FieldValue::Number(part.get().into()));
        visit("flags", FieldValue::Bits(*flags));
        visit("ts_recv", FieldValue::Time { raw: ts_recv.get().into(), scale: TimeScale::UnixNs });
        visit("ts_in_delta_ns", FieldValue::Number(ts_in_delta_ns.get().into()));
        visit("record_count", FieldValue::Number(record_count.get().into()));
    }

    fn with_record<R>(&self, read: impl FnOnce(RecordRef<'_>) -> R) -> Option<R> {
        if !self.is_record {
            return None;
        }
        let mut decoder = RecordDecoder::new(self.body);
        decoder.decode_record_ref().ok().flatten().map(read)
    }
}

impl FieldList for PublishedItem<'_> {
    fn fields(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
        let number = |number: u64| FieldValue::Number(number.into());
        match FrameKind::from_number(self.header.kind) {
            Some(FrameKind::Gap) => {
                if let Ok(gap) = GapBody::ref_from_bytes(self.body) {
                    visit("first", number(gap.first.get()));
                    visit("next", number(gap.next.get()));
                }
            }
            Some(FrameKind::State) => {
                if let Ok(state) = StateBody::ref_from_bytes(self.body) {
                    visit("state", number(state.state.into()));
                }
            }
            Some(FrameKind::SnapshotChunk) => {
                if let Ok(chunk) = SnapshotChunkBody::ref_from_bytes(self.body) {
                    visit("image", number(chunk.image.get().into()));
                    visit("chunk", number(chunk.chunk.get().into()));
                    visit("chunk_count", number(chunk.chunk_count.get().into()));
                    visit("checksum", number(chunk.checksum.get().into()));
                    visit("record_count", number(chunk.record_count.get()));
                    visit("record_bytes", number(chunk.record_bytes.get()));
                    visit("order_count", number(chunk.order_count.get()));
                    visit("instrument_count", number(chunk.instrument_count.get().into()));
                }
            }
            _ => _ = self.with_record(|record| record_fields(record, visit)),
        }
        if self.header.part.get() > 0 {
            visit("part", number(self.header.part.get().into()));
        }
        if self.header.flags & !WHOLE != 0 {
            visit("frame_flags", FieldValue::Bits(self.header.flags));
        }
    }
}

/// Both part flags: a message in one frame.
const WHOLE: u8 = 3;

fn record_fields(record: RecordRef<'_>, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
    let header = record.header();
    let price = |raw: i64| match raw {
        dbn::UNDEF_PRICE => FieldValue::Number(raw.into()),
        raw => FieldValue::Price { raw: raw.into(), decimals: PRICE_DECIMALS },
    };
    let number = |number: u32| FieldValue::Number(number.into());
    let code = |code: std::ffi::c_char| FieldValue::Code(code.to_le_bytes()[0]);
    visit("timestamp", FieldValue::Time { raw: header.ts_event.into(), scale: TimeScale::UnixNs });
    visit("instrument_id", number(header.instrument_id));
    if let Some(mbo) = record.get::<MboMsg>() {
        visit("order_id", FieldValue::Number(mbo.order_id.into()));
        visit("action", code(mbo.action));
        visit("side", code(mbo.side));
        visit("price", price(mbo.price));
        visit("size", number(mbo.size));
        visit("flags", FieldValue::Bits(mbo.flags.raw()));
        return;
    }
    let trade =
        |action, side, raw: i64, size, depth: u8, flags: dbn::FlagSet, visit: &mut dyn FnMut(_, FieldValue<'_>)| {
            visit("action", code(action));
            visit("side", code(side));
            visit("price", price(raw));
            visit("size", number(size));
            visit("depth", number(depth.into()));
            visit("flags", FieldValue::Bits(flags.raw()));
        };
    if let Some(message) = record.get::<TradeMsg>() {
        trade(message.action, message.side, message.price, message.size, message.depth, message.flags, visit);
        return;
    }
    let levels = if let Some(message) = record.get::<Mbp1Msg>() {
        trade(message.action, message.side, message.price, message.size, message.depth, message.flags, visit);
        message.levels.as_slice()
    } else if let Some(message) = record.get::<Mbp10Msg>() {
        trade(message.action, message.side, message.price, message.size, message.depth, message.flags, visit);
        message.levels.as_slice()
    } else {
        &[]
    };
    // The best level; `mdgw convert` writes all of them.
    if let Some(best) = levels.first() {
        visit("bid_price", price(best.bid_px));
        visit("bid_size", number(best.bid_sz));
        visit("ask_price", price(best.ask_px));
        visit("ask_size", number(best.ask_sz));
    }
}

/// Prices of DBN are in units of 1e-9.
const PRICE_DECIMALS: u8 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_distinguishes_packets_from_a_session_of_moldudp64() {
        assert!(is_published(b"MDGW\x01") && is_published(b"MDGR\x02"));
        assert!(!is_published(b"MDGWSIM001") && !is_published(b"MDGW") && !is_published(b"MDGX\x01"));
    }

    #[test]
    fn every_vector_is_parsed_as_receivers_parse_it() {
        let file = include_str!("../../../../tests/data/output/packets.txt");
        let mut refused = 0;
        let mut items_found = 0;
        for line in file.lines() {
            let Some(hex) = line.strip_prefix("bytes ").filter(|hex| *hex != "-") else { continue };
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
            header(&bytes, &mut |_, _| {});
            match parse(&bytes) {
                Ok(PublishedDatagram::Packet(packet)) => {
                    for (offset, item) in items(&packet) {
                        item.fields(&mut |_, _| {});
                        assert!(
                            item.bytes().is_empty() || bytes[offset..].starts_with(item.bytes()) || !item.is_record
                        );
                        items_found += 1;
                    }
                }
                Ok(PublishedDatagram::Request(_)) => {}
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 30 && items_found > 20, "{refused} {items_found}");
    }
}
