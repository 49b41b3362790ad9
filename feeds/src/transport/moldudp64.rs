//! MoldUDP64 1.00 (Nasdaq). Big-endian.
//!
//! ```text
//!  0         10                18              20
//!  | session | sequence_number | message_count | message_length (2) message … |
//! ```
//! Message count 0 is a heartbeat, 0xFFFF the end of the session; both carry the next expected sequence. A request to
//! a retransmission server is a header alone; the answer is an ordinary packet.

use zerocopy::{
    FromBytes, IntoBytes,
    big_endian::{U16, U64},
};

use super::{Packet, PacketKind, Transport, VenueSession, push_message, slice_messages};
use crate::venue::wire::wire_struct;
use mdgw_wire::{drop_reason::DropReason, identity::Sequence};

/// Reader of MoldUDP64.
#[derive(Clone, Copy, Debug)]
pub struct MoldUdp64;

wire_struct! {
    /// Downstream Packet header, and Request Packet (there `sequence_number` is the first requested message and
    /// `message_count` their number). MoldUDP64 1.00. 20 bytes, big-endian.
    pub struct Header: 20 bytes {
        /// Name of the session, ASCII.
        session: MoldSession as text,
        /// Sequence of the packet's first message; in heartbeats and at the end of the session, the next sequence.
        sequence_number: U64 as number,
        /// Messages in the packet.
        message_count: U16 as number,
    }
}

/// Bytes of a packet's header, and of a whole request.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Message count of a heartbeat.
pub(crate) const COUNT_HEARTBEAT: u16 = 0;
/// Message count of an end-of-session packet.
pub(crate) const COUNT_END_OF_SESSION: u16 = 0xffff;
/// Most messages a packet can announce.
pub(crate) const COUNT_MAX: u16 = COUNT_END_OF_SESSION - 1;

/// A session's name as in the header.
pub type MoldSession = [u8; 10];

impl Transport for MoldUdp64 {
    #[inline]
    fn parse(datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
        let packet = Self::parse_header(datagram)?;
        let rest = skip_messages(packet.messages, packet.count)?;
        if rest.is_empty() { Ok(packet) } else { Err(DropReason::TrailingBytes) }
    }

    #[inline]
    fn parse_header(datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
        let (header, messages) = Header::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
        let first = header.sequence_number.get();
        let (kind, count) = match header.message_count.get() {
            COUNT_HEARTBEAT => (PacketKind::Heartbeat, 0),
            COUNT_END_OF_SESSION => (PacketKind::EndOfSession, 0),
            count => (PacketKind::Messages, count),
        };
        let unsequenced = first == 0 && kind == PacketKind::Messages && is_blank(&header.session);
        if (first == 0 && !unsequenced) || first.checked_add(u64::from(count)).is_none() {
            return Err(DropReason::SequenceInvalid);
        }
        Ok(Packet {
            kind,
            session: venue_session(header.session),
            first: Sequence(first),
            count: u32::from(count),
            send_time: None,
            restart_marker: false,
            unsequenced,
            messages,
        })
    }

    #[inline]
    fn next_message<'a>(block: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, rest) = block.split_first_chunk::<2>()?;
        let (message, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        *block = rest;
        Some(message)
    }
}

/// The opaque form of a session's name.
#[inline]
#[must_use]
pub fn venue_session(session: MoldSession) -> VenueSession {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(session) {
        *to = from;
    }
    VenueSession(bytes)
}

/// The session's name from its opaque form, for a request to a retransmission server.
#[must_use]
pub fn session_name(session: VenueSession) -> MoldSession {
    let mut name = MoldSession::default();
    for (to, from) in name.iter_mut().zip(session.0) {
        *to = from;
    }
    name
}

/// A request to a retransmission server: the messages `[first, first + count)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the session.
    pub session: MoldSession,
    /// Sequence of the first requested message.
    pub first: Sequence,
    /// Number of messages, 1 to [`COUNT_MAX`]. The server may answer with fewer, as many as fit a packet.
    pub count: u16,
}

impl Request {
    /// Encodes the request.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(Header {
            session: self.session,
            sequence_number: U64::new(self.first.0),
            message_count: U16::new(self.count),
        })
    }

    /// Decodes a request: the server's side.
    ///
    /// # Errors
    /// Not exactly one header, a count without messages, or a range that begins at 0 or wraps.
    pub fn parse(datagram: &[u8]) -> Result<Self, DropReason> {
        let (header, rest) = Header::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
        if !rest.is_empty() {
            return Err(DropReason::TrailingBytes);
        }
        let (first, count) = (header.sequence_number.get(), header.message_count.get());
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(DropReason::CountMismatch);
        }
        if first == 0 || first.checked_add(u64::from(count)).is_none() {
            return Err(DropReason::SequenceInvalid);
        }
        Ok(Self { session: header.session, first: Sequence(first), count })
    }
}

/// Writer of one packet, message by message, into memory that the caller reuses.
#[derive(Debug)]
pub struct PacketWriter<'a> {
    out: &'a mut Vec<u8>,
    payload_bytes_max: usize,
    count: u16,
}

impl<'a> PacketWriter<'a> {
    /// Begins a packet in `out`, replacing its content. It will not exceed `payload_bytes_max` (but the header is
    /// always written).
    pub fn begin(out: &'a mut Vec<u8>, session: MoldSession, first: Sequence, payload_bytes_max: usize) -> Self {
        write_header(out, session, first, COUNT_HEARTBEAT);
        Self { out, payload_bytes_max, count: 0 }
    }

    /// Adds a message. Returns `false`, and adds nothing, if it does not fit this packet.
    pub fn push(&mut self, message: &[u8]) -> bool {
        let was_added =
            self.count < COUNT_MAX && push_message(self.out, self.payload_bytes_max, u16::to_be_bytes, message);
        self.count += u16::from(was_added);
        was_added
    }

    /// Ends the packet; returns its number of messages. A packet without messages is a heartbeat.
    pub fn finish(self) -> u16 {
        if let Some((head, _)) = self.out.split_at_mut_checked(HEADER_BYTES)
            && let Ok(header) = Header::mut_from_bytes(head)
        {
            header.message_count.set(self.count);
        }
        self.count
    }
}

/// Writes a heartbeat into `out`, replacing its content.
pub fn write_heartbeat(out: &mut Vec<u8>, session: MoldSession, next: Sequence) {
    write_header(out, session, next, COUNT_HEARTBEAT);
}

/// Writes an end-of-session packet into `out`, replacing its content.
pub fn write_end_of_session(out: &mut Vec<u8>, session: MoldSession, next: Sequence) {
    write_header(out, session, next, COUNT_END_OF_SESSION);
}

/// Writes the messages `[from, until)` of a packet as a packet of their own into `out`, replacing its content.
///
/// # Errors
/// The error of [`MoldUdp64::parse`]; [`DropReason::CountMismatch`] if the packet does not hold those messages.
pub fn write_part(out: &mut Vec<u8>, datagram: &[u8], from: Sequence, until: Sequence) -> Result<(), DropReason> {
    let packet = MoldUdp64::parse(datagram)?;
    let part = slice_messages::<MoldUdp64>(&packet, from, until)?;
    let message_count = u16::try_from(part.count).map_err(|_| DropReason::CountMismatch)?;
    write_header(out, session_name(packet.session), from, message_count);
    out.extend_from_slice(part.messages);
    Ok(())
}

fn write_header(out: &mut Vec<u8>, session: MoldSession, sequence: Sequence, message_count: u16) {
    out.clear();
    let header = Header { session, sequence_number: U64::new(sequence.0), message_count: U16::new(message_count) };
    out.extend_from_slice(header.as_bytes());
}

/// Whether the session name is blank.
fn is_blank(session: &MoldSession) -> bool {
    session.iter().all(|byte| matches!(byte, b' ' | 0))
}

/// The bytes after the next `count` messages.
fn skip_messages(mut block: &[u8], count: u32) -> Result<&[u8], DropReason> {
    for _ in 0..count {
        if MoldUdp64::next_message(&mut block).is_none() {
            return Err(if block.is_empty() { DropReason::CountMismatch } else { DropReason::MessageTruncated });
        }
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: MoldSession = *b"000010059B";

    fn packet(session: MoldSession, sequence: u64, count: u16, block: &[u8]) -> Vec<u8> {
        [&session[..], &sequence.to_be_bytes(), &count.to_be_bytes(), block].concat()
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], reason: DropReason) {
        assert_eq!(MoldUdp64::parse(bytes), Err(reason));
    }

    #[test]
    fn messages_are_numbered_from_the_headers_sequence() {
        let bytes = packet(SESSION, 14, 2, b"\0\x02ab\0\x01c");
        let packet = MoldUdp64::parse(&bytes).unwrap();
        assert_eq!((packet.kind, packet.first, packet.next()), (PacketKind::Messages, Sequence(14), Sequence(16)));
        assert_eq!(packet.session, venue_session(SESSION));
        assert_eq!((packet.send_time, packet.restart_marker, packet.unsequenced), (None, false, false));
        let mut block = packet.messages;
        assert_eq!(MoldUdp64::next_message(&mut block), Some(&b"ab"[..]));
        assert_eq!(MoldUdp64::next_message(&mut block), Some(&b"c"[..]));
        assert_eq!(MoldUdp64::next_message(&mut block), None);
    }

    #[test]
    fn heartbeat_and_end_of_session_carry_the_next_sequence() {
        let mut bytes = Vec::new();
        write_heartbeat(&mut bytes, SESSION, Sequence(9));
        assert_eq!(bytes, packet(SESSION, 9, 0, b""));
        let heartbeat = MoldUdp64::parse(&bytes).unwrap();
        assert_eq!((heartbeat.kind, heartbeat.first, heartbeat.count), (PacketKind::Heartbeat, Sequence(9), 0));
        write_end_of_session(&mut bytes, SESSION, Sequence(9));
        assert_eq!(bytes, packet(SESSION, 9, 0xffff, b""));
        let end = MoldUdp64::parse(&bytes).unwrap();
        assert_eq!((end.kind, end.first, end.count), (PacketKind::EndOfSession, Sequence(9), 0));
    }

    #[test]
    fn broken_framing_is_refused_with_its_reason() {
        check_refused(b"", DropReason::HeaderTruncated);
        check_refused(&packet(SESSION, 1, 0, b"")[..19], DropReason::HeaderTruncated);
        check_refused(&packet(SESSION, 1, 1, b""), DropReason::CountMismatch);
        check_refused(&packet(SESSION, 1, 2, b"\0\x01a"), DropReason::CountMismatch);
        check_refused(&packet(SESSION, 1, 1, b"\0"), DropReason::MessageTruncated);
        check_refused(&packet(SESSION, 1, 1, b"\0\x02a"), DropReason::MessageTruncated);
        check_refused(&packet(SESSION, 1, 1, b"\0\x01ab"), DropReason::TrailingBytes);
        check_refused(&packet(SESSION, 1, 0, b"a"), DropReason::TrailingBytes);
        check_refused(&packet(SESSION, 1, 0xffff, b"a"), DropReason::TrailingBytes);
    }

    #[test]
    fn sequence_zero_and_a_range_that_wraps_are_refused() {
        for count in [0, 0xffff] {
            check_refused(&packet(SESSION, 0, count, b""), DropReason::SequenceInvalid);
            check_refused(&packet([b' '; 10], 0, count, b""), DropReason::SequenceInvalid);
        }
        check_refused(&packet(SESSION, 0, 1, b"\0\0"), DropReason::SequenceInvalid);
        check_refused(&packet(SESSION, u64::MAX, 1, b"\0\0"), DropReason::SequenceInvalid);
        assert!(MoldUdp64::parse(&packet(SESSION, u64::MAX - 1, 1, b"\0\0")).is_ok());
        assert!(MoldUdp64::parse(&packet(SESSION, u64::MAX, 0, b"")).is_ok());
    }

    #[test]
    fn a_blank_session_with_sequence_zero_is_unsequenced() {
        for session in [[b' '; 10], [0; 10]] {
            let bytes = packet(session, 0, 1, b"\0\x01a");
            let unsequenced = MoldUdp64::parse(&bytes).unwrap();
            assert!(unsequenced.unsequenced);
            assert_eq!((unsequenced.first, unsequenced.count), (Sequence(0), 1));
            // A blank session with a sequence is a session like any other.
            assert!(!MoldUdp64::parse(&packet(session, 1, 1, b"\0\x01a")).unwrap().unsequenced);
        }
    }

    #[test]
    fn a_slice_of_a_packet_is_a_valid_packet() {
        let whole = packet(SESSION, 14, 3, b"\0\x02ab\0\x01c\0\0");
        let mut part = Vec::new();
        let mut cut =
            |from, until| write_part(&mut part, &whole, Sequence(from), Sequence(until)).map(|()| part.clone());
        assert_eq!(cut(15, 17), Ok(packet(SESSION, 15, 2, b"\0\x01c\0\0")));
        assert_eq!(cut(14, 15), Ok(packet(SESSION, 14, 1, b"\0\x02ab")));
        assert_eq!(cut(14, 17), Ok(whole.clone()));
        for (from, until) in [(13, 15), (14, 18), (15, 15), (16, 15)] {
            assert_eq!(cut(from, until), Err(DropReason::CountMismatch), "{from} to {until}");
        }
    }

    #[test]
    fn a_request_round_trips() {
        let request = Request { session: SESSION, first: Sequence(14_757_745), count: 3 };
        assert_eq!(request.to_bytes().as_slice(), packet(SESSION, 14_757_745, 3, b""));
        assert_eq!(Request::parse(&request.to_bytes()), Ok(request));
    }

    #[test]
    fn a_request_for_nothing_or_too_much_is_refused() {
        for (bytes, reason) in [
            (packet(SESSION, 1, 0, b""), DropReason::CountMismatch),
            (packet(SESSION, 1, 0xffff, b""), DropReason::CountMismatch),
            (packet(SESSION, 0, 1, b""), DropReason::SequenceInvalid),
            (packet(SESSION, u64::MAX, 1, b""), DropReason::SequenceInvalid),
            (packet(SESSION, 1, 1, b"a"), DropReason::TrailingBytes),
            (packet(SESSION, 1, 1, b"")[..19].to_vec(), DropReason::HeaderTruncated),
        ] {
            assert_eq!(Request::parse(&bytes), Err(reason));
        }
    }
}
