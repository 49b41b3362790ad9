//! IEX Transport Protocol (IEX-TP) 1.0, specification 1.25. Little-endian.
//!
//! ```text
//!  0         1          2                     4            8            12               14
//!  | version | reserved | message_protocol_id | channel_id | session_id | payload_length | message_count |
//!  16              24                              32          40
//!  | stream_offset | first_message_sequence_number | send_time | message_length (2) message … |
//! ```
//! A segment without messages is a heartbeat and carries the next sequence and the next offset. The transport has no
//! end of session; a message marks it. The two lines may split the same messages into different segments.

use core::marker::PhantomData;

use zerocopy::{
    FromBytes, IntoBytes,
    little_endian::{I64, U16, U32, U64},
};

use super::{Packet, PacketKind, Transport, VenueSession, push_message, slice_messages};
use crate::venue::wire::wire_struct;
use mdgw_wire::{drop_reason::DropReason, identity::Sequence, time::UnixNs};

/// Reader of IEX-TP for the message protocols of `P`.
#[derive(Clone, Copy, Debug)]
pub struct IexTp<P>(PhantomData<P>);

/// IEX-TP that carries TOPS.
pub type Tops = IexTp<TopsProtocol>;
/// IEX-TP that carries DEEP.
pub type Deep = IexTp<DeepProtocol>;

/// The message protocol ids that a feed's segment headers may contain.
pub trait MessageProtocol {
    /// Message protocol ids of the packets that carry this protocol.
    const IDS: &'static [u16];
}

/// TOPS 1.5 and 1.6.
#[derive(Clone, Copy, Debug)]
pub struct TopsProtocol;

impl MessageProtocol for TopsProtocol {
    const IDS: &'static [u16] = &[PROTOCOL_TOPS_1_6, PROTOCOL_TOPS_1_5];
}

/// DEEP 1.0.
#[derive(Clone, Copy, Debug)]
pub struct DeepProtocol;

impl MessageProtocol for DeepProtocol {
    const IDS: &'static [u16] = &[PROTOCOL_DEEP_1_0];
}

/// Message protocol of TOPS 1.5; its messages are a subset of those of 1.6.
pub(crate) const PROTOCOL_TOPS_1_5: u16 = 0x8002;
/// Message protocol of TOPS 1.6.
pub const PROTOCOL_TOPS_1_6: u16 = 0x8003;
/// Message protocol of DEEP 1.0.
pub const PROTOCOL_DEEP_1_0: u16 = 0x8004;

wire_struct! {
    /// Outbound Segment header. IEX-TP 1.25. 40 bytes, little-endian.
    pub struct Header: 40 bytes {
        /// Version of the transport: [`VERSION`].
        version: u8 as number,
        /// Reserved; may have any value.
        reserved: u8 as opaque,
        /// Which messages the segment carries.
        message_protocol_id: U16 as number,
        /// Stream within the message protocol.
        channel_id: U32 as number,
        /// Session id; a new one each day.
        session_id: U32 as number,
        /// Bytes after the header.
        payload_length: U16 as number,
        /// Messages in the payload.
        message_count: U16 as number,
        /// Payload bytes of the stream before this segment.
        stream_offset: I64 as number,
        /// Sequence of the segment's first message; without messages, the next sequence.
        first_message_sequence_number: U64 as number,
        /// When the segment was sent, ns since 1970 UTC.
        send_time: U64 as unix_ns,
    }
}

/// Bytes of a segment's header.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// The only version of the transport.
pub(crate) const VERSION: u8 = 1;

impl<P: MessageProtocol> Transport for IexTp<P> {
    #[inline]
    fn parse(datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
        let packet = Self::parse_header(datagram)?;
        check_messages(packet.messages, packet.count)?;
        Ok(packet)
    }

    #[inline]
    fn parse_header(datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
        let (header, payload) = Header::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
        if header.version != VERSION || !P::IDS.contains(&header.message_protocol_id.get()) {
            return Err(DropReason::ProtocolMismatch);
        }
        let payload_bytes = usize::from(header.payload_length.get());
        if payload.len() < payload_bytes {
            return Err(DropReason::LengthMismatch);
        }
        if payload.len() > payload_bytes {
            return Err(DropReason::TrailingBytes);
        }
        let first = header.first_message_sequence_number.get();
        let count = header.message_count.get();
        if first == 0 || first.checked_add(u64::from(count)).is_none() {
            return Err(DropReason::SequenceInvalid);
        }
        let offset = header.stream_offset.get();
        if !is_valid_offset(offset, first) {
            return Err(DropReason::StreamOffsetInvalid);
        }
        Ok(Packet {
            kind: if count == 0 { PacketKind::Heartbeat } else { PacketKind::Messages },
            session: venue_session(header.session_id.get(), header.channel_id.get()),
            first: Sequence(first),
            count: u32::from(count),
            send_time: Some(UnixNs(header.send_time.get())),
            restart_marker: first == 1,
            unsequenced: false,
            messages: payload,
        })
    }

    #[inline]
    fn next_message<'a>(block: &mut &'a [u8]) -> Option<&'a [u8]> {
        next_message(block)
    }
}

/// The opaque form of a session's name.
#[inline]
#[must_use]
pub(crate) fn venue_session(session_id: u32, channel_id: u32) -> VenueSession {
    VenueSession((u128::from(session_id) | u128::from(channel_id) << 32).to_le_bytes())
}

/// The stream's channel id from the opaque form of a session's name.
#[inline]
#[must_use]
pub fn channel_id(session: VenueSession) -> u32 {
    let [_, _, _, _, a, b, c, d, ..] = session.0;
    u32::from_le_bytes([a, b, c, d])
}

/// The constant header fields of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamIdentity {
    /// Which messages it carries.
    pub message_protocol_id: u16,
    /// Stream within the message protocol.
    pub channel_id: u32,
    /// Session id; the venue assigns a new one each day.
    pub session_id: u32,
}

/// Position of a segment in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPosition {
    /// Sequence of its first message.
    pub first: Sequence,
    /// Payload bytes before it. The header holds 63 bits; larger numbers are clamped.
    pub stream_offset: u64,
    /// When the venue sent the packet.
    pub send_time: UnixNs,
}

/// Writer of one segment, message by message, into memory that the caller reuses.
#[derive(Debug)]
pub struct PacketWriter<'a> {
    out: &'a mut Vec<u8>,
    payload_bytes_max: usize,
    count: u16,
}

impl<'a> PacketWriter<'a> {
    /// Begins a segment in `out`, replacing its content. It will not exceed `payload_bytes_max`, header included (but
    /// the header is always written).
    pub fn begin(
        out: &'a mut Vec<u8>,
        stream: StreamIdentity,
        position: SegmentPosition,
        payload_bytes_max: usize,
    ) -> Self {
        write_heartbeat(out, stream, position);
        // The payload length must also fit its field.
        Self { out, payload_bytes_max: payload_bytes_max.min(HEADER_BYTES + usize::from(u16::MAX)), count: 0 }
    }

    /// Adds a message. Returns `false`, and adds nothing, if it does not fit this segment.
    pub fn push(&mut self, message: &[u8]) -> bool {
        let was_added =
            self.count < u16::MAX && push_message(self.out, self.payload_bytes_max, u16::to_le_bytes, message);
        self.count += u16::from(was_added);
        was_added
    }

    /// Ends the segment; returns its number of messages. A segment without messages is a heartbeat.
    pub fn finish(self) -> u16 {
        let payload_length = u16::try_from(self.out.len().saturating_sub(HEADER_BYTES)).unwrap_or(u16::MAX);
        if let Some((head, _)) = self.out.split_at_mut_checked(HEADER_BYTES)
            && let Ok(header) = Header::mut_from_bytes(head)
        {
            header.payload_length.set(payload_length);
            header.message_count.set(self.count);
        }
        self.count
    }
}

/// Writes a heartbeat into `out`, replacing its content; `position` is that of the next message.
pub fn write_heartbeat(out: &mut Vec<u8>, stream: StreamIdentity, position: SegmentPosition) {
    out.clear();
    let header = Header {
        version: VERSION,
        reserved: 0,
        message_protocol_id: U16::new(stream.message_protocol_id),
        channel_id: U32::new(stream.channel_id),
        session_id: U32::new(stream.session_id),
        payload_length: U16::ZERO,
        message_count: U16::ZERO,
        stream_offset: I64::new(i64::try_from(position.stream_offset).unwrap_or(i64::MAX)),
        first_message_sequence_number: U64::new(position.first.0),
        send_time: U64::new(position.send_time.0),
    };
    out.extend_from_slice(header.as_bytes());
}

/// Writes the messages `[from, until)` of a segment as a segment of their own into `out`, replacing its content.
/// Stream and send time are those of the original segment.
///
/// # Errors
/// The error of [`IexTp::parse`]; [`DropReason::CountMismatch`] if the segment does not hold those messages.
pub fn write_part<P: MessageProtocol>(
    out: &mut Vec<u8>,
    datagram: &[u8],
    from: Sequence,
    until: Sequence,
) -> Result<(), DropReason> {
    let packet = IexTp::<P>::parse(datagram)?;
    let part = slice_messages::<IexTp<P>>(&packet, from, until)?;
    let (whole, _) = Header::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
    let number = |bytes: usize| u16::try_from(bytes).map_err(|_| DropReason::LengthMismatch);
    let offset = i64::try_from(part.skipped_bytes).map_err(|_| DropReason::LengthMismatch)?;
    let header = Header {
        payload_length: U16::new(number(part.messages.len())?),
        message_count: U16::new(number(part.count)?),
        stream_offset: I64::new(whole.stream_offset.get().saturating_add(offset)),
        first_message_sequence_number: U64::new(from.0),
        ..*whole
    };
    out.clear();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(part.messages);
    Ok(())
}

#[inline]
fn next_message<'a>(block: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = block.split_first_chunk::<2>()?;
    let (message, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *block = rest;
    Some(message)
}

/// Whether a stream can be at that offset before its message `first`: at 0 before the first message, otherwise at
/// least at the length prefixes of the earlier messages. The field holds 63 bits.
#[inline]
fn is_valid_offset(offset: i64, first: u64) -> bool {
    let offset_min = (first - 1).saturating_mul(2).min(i64::MAX as u64);
    u64::try_from(offset).is_ok_and(|offset| offset >= offset_min) && (first > 1 || offset == 0)
}

/// Whether the payload is exactly `count` messages.
fn check_messages(mut block: &[u8], count: u32) -> Result<(), DropReason> {
    for _ in 0..count {
        if next_message(&mut block).is_none() {
            return Err(if block.is_empty() { DropReason::CountMismatch } else { DropReason::MessageTruncated });
        }
    }
    if block.is_empty() { Ok(()) } else { Err(DropReason::CountMismatch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header in the layout of the specification, with the fields that the tests change.
    struct Raw {
        version: u8,
        protocol: u16,
        payload_length: u16,
        count: u16,
        offset: i64,
        first: u64,
    }

    const HEARTBEAT: Raw = Raw { version: 1, protocol: 0x8003, payload_length: 0, count: 0, offset: 40, first: 5 };

    fn segment(raw: &Raw, payload: &[u8]) -> Vec<u8> {
        [
            &[raw.version, 0][..],
            &raw.protocol.to_le_bytes(),
            &1_u32.to_le_bytes(),
            &1_150_681_088_u32.to_le_bytes(),
            &raw.payload_length.to_le_bytes(),
            &raw.count.to_le_bytes(),
            &raw.offset.to_le_bytes(),
            &raw.first.to_le_bytes(),
            &1_517_063_400_001_073_818_u64.to_le_bytes(),
            payload,
        ]
        .concat()
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], reason: DropReason) {
        assert_eq!(Tops::parse(bytes), Err(reason));
    }

    #[test]
    fn messages_are_numbered_from_the_headers_sequence() {
        let bytes = segment(&Raw { payload_length: 7, count: 2, ..HEARTBEAT }, b"\x02\0ab\x01\0c");
        let packet = Tops::parse(&bytes).unwrap();
        assert_eq!((packet.kind, packet.first, packet.next()), (PacketKind::Messages, Sequence(5), Sequence(7)));
        assert_eq!(packet.session, venue_session(1_150_681_088, 1));
        assert_eq!(packet.send_time, Some(UnixNs(1_517_063_400_001_073_818)));
        assert!(!packet.restart_marker && !packet.unsequenced);
        let mut block = packet.messages;
        assert_eq!(Tops::next_message(&mut block), Some(&b"ab"[..]));
        assert_eq!(Tops::next_message(&mut block), Some(&b"c"[..]));
        assert_eq!(Tops::next_message(&mut block), None);
    }

    #[test]
    fn only_the_very_start_of_a_stream_is_a_restart_marker() {
        for (first, offset, is_marker) in [(1, 0, true), (2, 2, false), (5, 40, false)] {
            let heartbeat = segment(&Raw { first, offset, ..HEARTBEAT }, b"");
            let packet = Tops::parse(&heartbeat).unwrap();
            assert_eq!((packet.kind, packet.restart_marker), (PacketKind::Heartbeat, is_marker));
            let messages = segment(&Raw { first, offset, payload_length: 2, count: 1, ..HEARTBEAT }, b"\0\0");
            assert_eq!(Tops::parse(&messages).unwrap().restart_marker, is_marker);
        }
    }

    #[test]
    fn an_offset_contradicting_the_sequence_is_stream_offset_invalid() {
        for (first, offset) in [(5, -1), (1, 12), (2, 0), (2, 1), (5, 7), (u64::MAX, 0)] {
            check_refused(&segment(&Raw { first, offset, ..HEARTBEAT }, b""), DropReason::StreamOffsetInvalid);
        }
        // Four messages without content.
        assert!(Tops::parse(&segment(&Raw { first: 5, offset: 8, ..HEARTBEAT }, b"")).is_ok());
    }

    #[test]
    fn a_foreign_protocol_is_refused() {
        check_refused(&segment(&Raw { version: 2, ..HEARTBEAT }, b""), DropReason::ProtocolMismatch);
        check_refused(&segment(&Raw { protocol: 0x8004, ..HEARTBEAT }, b""), DropReason::ProtocolMismatch);
        let deep = segment(&Raw { protocol: 0x8004, ..HEARTBEAT }, b"");
        assert!(Deep::parse(&deep).is_ok());
        assert_eq!(Deep::parse(&segment(&HEARTBEAT, b"")), Err(DropReason::ProtocolMismatch));
    }

    #[test]
    fn broken_framing_is_refused_with_its_reason() {
        let with = |payload_length, count| Raw { payload_length, count, ..HEARTBEAT };
        check_refused(&segment(&HEARTBEAT, b"")[..39], DropReason::HeaderTruncated);
        check_refused(&segment(&with(4, 1), b"\x01\0a"), DropReason::LengthMismatch);
        check_refused(&segment(&with(2, 1), b"\x01\0a"), DropReason::TrailingBytes);
        check_refused(&segment(&with(3, 2), b"\x01\0a"), DropReason::CountMismatch);
        check_refused(&segment(&with(3, 0), b"\x01\0a"), DropReason::CountMismatch);
        check_refused(&segment(&with(6, 1), b"\x01\0a\x01\0b"), DropReason::CountMismatch);
        check_refused(&segment(&with(3, 1), b"\x02\0a"), DropReason::MessageTruncated);
        check_refused(&segment(&with(1, 1), b"\x02"), DropReason::MessageTruncated);
    }

    #[test]
    fn a_slice_of_a_segment_is_a_valid_segment() {
        let raw = |first, offset, payload_length, count| Raw { first, offset, payload_length, count, ..HEARTBEAT };
        let whole = segment(&raw(5, 40, 9, 3), b"\x02\0ab\x01\0c\0\0");
        let mut part = Vec::new();
        let mut cut = |from, until| {
            write_part::<TopsProtocol>(&mut part, &whole, Sequence(from), Sequence(until)).map(|()| part.clone())
        };
        assert_eq!(cut(6, 8), Ok(segment(&raw(6, 44, 5, 2), b"\x01\0c\0\0")));
        assert_eq!(cut(5, 6), Ok(segment(&raw(5, 40, 4, 1), b"\x02\0ab")));
        assert_eq!(cut(5, 8), Ok(whole.clone()));
        for (from, until) in [(4, 6), (5, 9), (6, 6), (7, 6)] {
            assert_eq!(cut(from, until), Err(DropReason::CountMismatch), "{from} to {until}");
        }
    }

    #[test]
    fn sequence_zero_and_wrapping_ranges_are_refused() {
        check_refused(&segment(&Raw { first: 0, ..HEARTBEAT }, b""), DropReason::SequenceInvalid);
        let wrapping = Raw { first: u64::MAX, payload_length: 2, count: 1, ..HEARTBEAT };
        check_refused(&segment(&wrapping, b"\0\0"), DropReason::SequenceInvalid);
    }
}
