//! Position of a channel's published stream.

use zerocopy::FromBytes;

use super::packet::{Packet, Part, SEQUENCE_END, part_from_header};
use crate::{
    frame::FrameHeader,
    identity::{Sequence, Session},
};

/// Everything before this position was published: earlier sessions, earlier messages, and the parts before `part` of
/// message `sequence`. A split message is passed only by its last part. Ordered as the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamPosition {
    /// Session that the sequence belongs to.
    pub session: Session,
    /// The first message that was not published completely.
    pub sequence: Sequence,
    /// Number of its parts that were published.
    pub part: u16,
}

impl StreamPosition {
    /// The position before the first part of that message.
    #[must_use]
    pub fn at(session: Session, sequence: Sequence) -> Self {
        Self { session, sequence, part: 0 }
    }

    /// The range that a packet covers: from where to where. Both are equal for a packet that covers nothing.
    #[must_use]
    pub fn range_of_packet(packet: &Packet<'_>) -> (Self, Self) {
        Self::range_of_part(packet.meta.session, (packet.meta.first, packet.meta.next), packet.part)
    }

    /// The range covered by the packet with that body.
    #[must_use]
    pub fn range_of_body(session: Session, range: (Sequence, Sequence), body: &[u8]) -> (Self, Self) {
        let part = FrameHeader::ref_from_prefix(body).ok().and_then(|(header, _)| part_from_header(header));
        Self::range_of_part(session, range, part)
    }

    fn range_of_part(session: Session, (first, next): (Sequence, Sequence), part: Option<Part>) -> (Self, Self) {
        let (first, next) = (Self::at(session, first), Self::at(session, next));
        let Some(part) = part else { return (first, next) };
        // The first part also covers the sequences before its message.
        let first = if part.part == 0 { first } else { Self { part: part.part, ..Self::at(session, part.sequence) } };
        if part.is_last {
            return (first, next);
        }
        (first, Self { part: part.part.saturating_add(1), ..Self::at(session, part.sequence) })
    }

    /// As three 64-bit words, for memory shared between threads.
    #[must_use]
    pub fn to_u64s(self) -> [u64; 3] {
        let bytes = u128::from_le_bytes(self.session.to_bytes());
        // Two halves of 64 bits.
        let [low, high] = [bytes & u128::from(u64::MAX), bytes >> 64].map(|half| u64::try_from(half).unwrap_or(0));
        [low, high, self.sequence.0.min(SEQUENCE_END - 1) << PART_BITS | u64::from(self.part)]
    }

    /// From [three words](Self::to_u64s); `None` for invalid ones.
    #[must_use]
    pub fn from_u64s([low, high, sequence_and_part]: [u64; 3]) -> Option<Self> {
        let session = Session::from_bytes((u128::from(low) | u128::from(high) << 64).to_le_bytes())?;
        let part = u16::try_from(sequence_and_part & ((1 << PART_BITS) - 1)).ok()?;
        let sequence = Sequence(sequence_and_part >> PART_BITS);
        (sequence.0 < SEQUENCE_END).then_some(Self { session, sequence, part })
    }
}

/// Sequences of published packets have 47 bits.
const PART_BITS: u32 = 16;
const _: () = assert!(SEQUENCE_END == 1 << (63 - PART_BITS));

#[cfg(test)]
mod tests {
    use zerocopy::{
        IntoBytes,
        little_endian::{I32, U16, U32, U64},
    };

    use super::*;
    use crate::{
        frame::{FrameFlags, FrameKind},
        identity::Feed,
        time::TradingDate,
    };

    fn session(restart: u32) -> Session {
        Session { feed: Feed::IexDeep, date: TradingDate::from_yyyymmdd(20_240_102).unwrap(), restart }
    }

    fn at(restart: u32, sequence: u64, part: u16) -> StreamPosition {
        StreamPosition { session: session(restart), sequence: Sequence(sequence), part }
    }

    fn frame(kind: FrameKind, sequence: u64, part: u16, flags: FrameFlags) -> Vec<u8> {
        let header = FrameHeader {
            sequence: U64::new(sequence),
            ts_recv: U64::ZERO,
            ts_in_delta_ns: I32::ZERO,
            body_bytes: U16::ZERO,
            record_count: U16::ZERO,
            kind: kind as u8,
            flags: flags.0,
            part: U16::new(part),
            reserved: U32::ZERO,
        };
        header.as_bytes().to_vec()
    }

    #[test]
    fn positions_have_stream_order() {
        let ascending = [at(0, 1, 0), at(0, 1, 1), at(0, 9, 0), at(1, 1, 0), at(2, 0, 5)];
        assert!(ascending.is_sorted());
    }

    #[test]
    fn only_the_last_part_moves_the_position_past_a_message() {
        let span = |first, next, body: &[u8]| {
            let (from, until) = StreamPosition::range_of_body(session(0), (Sequence(first), Sequence(next)), body);
            assert_eq!((from.session, until.session), (session(0), session(0)));
            ((from.sequence.0, from.part), (until.sequence.0, until.part))
        };
        let (first, last, both) = (FrameFlags::FIRST_PART, FrameFlags::LAST_PART, FrameFlags(3));
        let part = |number, flags| frame(FrameKind::Message, 7, number, flags);
        assert_eq!(span(3, 8, &part(0, both)), ((3, 0), (8, 0)));
        assert_eq!(span(3, 7, &part(0, first)), ((3, 0), (7, 1)));
        assert_eq!(span(7, 7, &part(1, FrameFlags::default())), ((7, 1), (7, 2)));
        assert_eq!(span(7, 8, &part(2, last)), ((7, 2), (8, 0)));
        assert_eq!(span(3, 9, &[]), ((3, 0), (9, 0)));
        // A gap frame covers its range, a state frame covers nothing.
        assert_eq!(span(3, 9, &frame(FrameKind::Gap, 3, 0, both)), ((3, 0), (9, 0)));
        assert_eq!(span(3, 3, &frame(FrameKind::State, 3, 0, both)), ((3, 0), (3, 0)));
        assert_eq!(span(3, 4, b"no frame"), ((3, 0), (4, 0)));
    }

    #[test]
    fn positions_round_trip_through_u64s_and_invalid_ones_are_refused() {
        for position in [at(0, 0, 0), at(3, 77, 5), at(u32::MAX, SEQUENCE_END - 1, u16::MAX)] {
            assert_eq!(StreamPosition::from_u64s(position.to_u64s()), Some(position));
        }
        assert_eq!(StreamPosition::from_u64s([0; 3]), None);
        let [low, high, sequence_and_part] = at(3, 77, 5).to_u64s();
        assert_eq!(StreamPosition::from_u64s([low ^ 1 << 20, high, sequence_and_part]), None);
        assert_eq!(StreamPosition::from_u64s([low, high ^ 1 << 40, sequence_and_part]), None);
        assert_eq!(StreamPosition::from_u64s([low, high, SEQUENCE_END << PART_BITS]), None, "no packet gets there");
    }
}
