//! Samples of rejected packets, kept for diagnosis.

use super::feed_core::InstrumentFault;
use mdgw_wire::{drop_reason::DropReason, identity::Sequence, time::UnixNs};

/// The first packets of a channel that contradicted a book or could not be decoded. Bounded and allocated once. When
/// it is full, further packets are only counted, since the first failures explain the rest.
#[derive(Debug)]
pub(super) struct RejectedPackets {
    packets: Vec<RejectedPacket>,
    used: usize,
}

/// A packet that could not be decoded or that contradicted a book.
#[derive(Clone, Debug)]
pub(crate) struct RejectedPacket {
    /// The reason and the message.
    pub rejection: Rejection,
    bytes: Vec<u8>,
}

/// Why a packet was rejected, and which message caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// Why the packet was rejected.
    pub kind: RejectionKind,
    /// Sequence of the message; 0 where the whole datagram was rejected.
    pub sequence: Sequence,
    /// When the packet was received.
    pub ts_recv: UnixNs,
}

/// Reason for a rejection. Of each reason only a few packets are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectionKind {
    /// It could not be decoded.
    Refused(DropReason),
    /// It contradicted a book.
    Contradicted(InstrumentFault),
}

impl RejectionKind {
    fn is_same_kind(self, other: Self) -> bool {
        match (self, other) {
            (Self::Refused(reason), Self::Refused(other)) => reason == other,
            (Self::Contradicted(fault), Self::Contradicted(other)) => fault.kind == other.kind,
            _ => false,
        }
    }
}

impl RejectedPacket {
    /// The bytes: the whole datagram where it was rejected as such, else its message block with length prefixes.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl RejectedPackets {
    /// Most packets kept.
    const PACKETS_MAX: usize = 16;
    /// Most packets kept of one kind. A message type added by the venue must not use up the room for packets that
    /// contradict a book.
    const PACKETS_PER_KIND_MAX: usize = 4;
    /// Bytes kept of each packet: a full Ethernet payload.
    const PACKET_BYTES_MAX: usize = 2048;

    pub(super) fn new() -> Self {
        let empty = RejectedPacket {
            rejection: Rejection {
                kind: RejectionKind::Refused(DropReason::FieldInvalid),
                sequence: Sequence(0),
                ts_recv: UnixNs(0),
            },
            bytes: Vec::new(),
        };
        let mut packets = vec![empty; Self::PACKETS_MAX];
        for packet in &mut packets {
            packet.bytes.reserve_exact(Self::PACKET_BYTES_MAX);
        }
        Self { packets, used: 0 }
    }

    pub(super) fn add(&mut self, kind: RejectionKind, sequence: Sequence, ts_recv: UnixNs, bytes: &[u8]) {
        if self.iter().filter(|packet| packet.rejection.kind.is_same_kind(kind)).count() >= Self::PACKETS_PER_KIND_MAX {
            return;
        }
        let Some(packet) = self.packets.get_mut(self.used) else { return };
        self.used += 1;
        packet.rejection = Rejection { kind, sequence, ts_recv };
        packet.bytes.extend_from_slice(bytes.get(..Self::PACKET_BYTES_MAX).unwrap_or(bytes));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RejectedPacket> {
        self.packets.iter().take(self.used)
    }
}
