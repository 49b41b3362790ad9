//! Positions of the arbiter: `sequence << 16 | part`, so that parts of messages are ordered too.

use crate::{identity::Sequence, published::packet::Packet};

/// The first message of every venue.
pub(super) const FIRST_SEQUENCE: Sequence = Sequence(1);

/// Bits of a position that hold the part.
pub(super) const PART_BITS: u32 = 16;

/// Position of a message's first part.
pub(super) fn position_of(sequence: Sequence) -> Sequence {
    // `parse_packet` keeps sequences below 2^47.
    Sequence(sequence.0 << PART_BITS)
}

/// The message that contains a position.
pub(super) fn message_of(position: Sequence) -> Sequence {
    Sequence(position.0 >> PART_BITS)
}

/// The first message that begins at a position or after it.
pub(super) fn message_after(position: Sequence) -> Sequence {
    Sequence(position.0.div_ceil(1 << PART_BITS))
}

pub(super) fn part_number(position: Sequence) -> u64 {
    position.0 & ((1 << PART_BITS) - 1)
}

/// The range that a packet covers, in positions. `None` for a part number above the supported maximum.
pub(super) fn positions_of(packet: &Packet<'_>) -> Option<(Sequence, Sequence)> {
    let (first, next) = (position_of(packet.meta.first), position_of(packet.meta.next));
    let Some(part) = packet.part else { return Some((first, next)) };
    let own = position_of(part.sequence).0 | u64::from(part.part);
    let first = if part.part == 0 { first } else { Sequence(own) };
    if part.is_last {
        return Some((first, next));
    }
    (part.part < u16::MAX).then_some((first, Sequence(own + 1)))
}
