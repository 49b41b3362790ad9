//! The packets that broke something: kept so that a person can look at them.

use super::feed_core::Fault;
use crate::{drop_reason::DropReason, identity::Sequence, time::UnixNs};

/// The first packets of a channel that contradicted a book or could not be understood. Bounded, allocated once; what
/// comes after it is full is only counted, since what broke first explains the rest.
#[derive(Debug)]
pub(super) struct RejectedPackets {
    kept: Vec<RejectedPacket>,
    used: usize,
}

/// One packet that broke something.
#[derive(Clone, Debug)]
pub struct RejectedPacket {
    /// What went wrong, and where.
    pub broken: Rejection,
    bytes: Vec<u8>,
}

/// What went wrong, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub why: Why,
    /// The message; 0 where the whole datagram was refused.
    pub sequence: Sequence,
    /// When the packet was received.
    pub ts_recv: UnixNs,
}

/// Why a packet was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It could not be understood.
    Refused(DropReason),
    /// It contradicted a book.
    Contradicted(Fault),
}

impl Why {
    fn is_same_kind(self, other: Self) -> bool {
        match (self, other) {
            (Self::Refused(reason), Self::Refused(other)) => reason == other,
            (Self::Contradicted(fault), Self::Contradicted(other)) => fault.kind == other.kind,
            _ => false,
        }
    }
}

impl RejectedPacket {
    /// The packet: the whole datagram where it was refused as one, else its messages with their lengths.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl RejectedPackets {
    /// Packets kept.
    const PACKETS_MAX: usize = 16;
    /// Of these, packets that broke in one and the same way: a message type that the venue added must not take the room
    /// of what contradicts a book.
    const PACKETS_PER_KIND_MAX: usize = 4;
    /// Bytes kept of each: a whole Ethernet payload.
    const PACKET_BYTES_MAX: usize = 2048;

    pub(super) fn new() -> Self {
        let empty = RejectedPacket {
            broken: Rejection {
                why: Why::Refused(DropReason::FieldInvalid),
                sequence: Sequence(0),
                ts_recv: UnixNs(0),
            },
            bytes: Vec::new(),
        };
        let mut kept = vec![empty; Self::PACKETS_MAX];
        for evidence in &mut kept {
            evidence.bytes.reserve_exact(Self::PACKET_BYTES_MAX);
        }
        Self { kept, used: 0 }
    }

    pub(super) fn keep(&mut self, why: Why, sequence: Sequence, ts_recv: UnixNs, packet: &[u8]) {
        if self.iter().filter(|evidence| evidence.broken.why.is_same_kind(why)).count() >= Self::PACKETS_PER_KIND_MAX {
            return;
        }
        let Some(evidence) = self.kept.get_mut(self.used) else { return };
        self.used += 1;
        evidence.broken = Rejection { why, sequence, ts_recv };
        evidence.bytes.extend_from_slice(packet.get(..Self::PACKET_BYTES_MAX).unwrap_or(packet));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RejectedPacket> {
        self.kept.iter().take(self.used)
    }
}
