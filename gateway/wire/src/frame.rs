//! Frame: all output of one input message, identified by that message's sequence.
//!
//! ```text
//!  0        8         16             20        22        24    25     26    28        32
//!  | sequence | ts_recv | ts_in_delta_ns | body_bytes | record_count | kind | flags | part | reserved | body … |
//! ```
//! Little-endian, 32 bytes, then `body_bytes` of body, a multiple of 8. For a message, the body is its DBN records
//! back to back. Inside them `ts_recv` is undefined and `ts_in_delta` 0: they are local to the gateway, so they are
//! in this header.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{I32, U16, U32, U64},
};

use crate::{channel_state::ChannelState, identity::Sequence, time::UnixNs};

/// Header of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    /// Input sequence of the message; for a gap, its first missing sequence; for a snapshot, the sequence it is valid
    /// for.
    pub sequence: U64,
    /// Receive time of the message's datagram, ns since 1970 UTC; local to the gateway.
    pub ts_recv: U64,
    /// `ts_recv` minus the venue's send time, ns, clamped; local to the gateway.
    pub ts_in_delta_ns: I32,
    /// Bytes of the body.
    pub body_bytes: U16,
    /// Records in the body.
    pub record_count: U16,
    /// A [`FrameKind`].
    pub kind: u8,
    /// [`FrameFlags`].
    pub flags: u8,
    /// Index of this part, from 0, of a split message.
    pub part: U16,
    /// Reserved; always zero.
    pub reserved: U32,
}

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = size_of::<FrameHeader>();
const _: () = assert!(FRAME_HEADER_BYTES == 32);

/// Kind of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Records of one input message; a function of the channel's input. Empty with [`FrameFlags::SUSPECT`] for a
    /// message that could not be decoded or that a book could not apply.
    Message = 0,
    /// [`GapBody`]: input sequences that were declared missing, identified by their range.
    Gap = 1,
    /// Records that rebuild a book, identified by the sequence they are valid for.
    Snapshot = 2,
    /// [`StateBody`]: the channel changed its state.
    State = 3,
    /// [`SnapshotChunkBody`](crate::published::snapshot::SnapshotChunkBody): which chunk of which snapshot the packet holds. Only in
    /// answers to a request for a snapshot.
    SnapshotChunk = 4,
}

impl FrameKind {
    /// Decodes the number on the wire.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let kinds = [Self::Message, Self::Gap, Self::Snapshot, Self::State, Self::SnapshotChunk];
        kinds.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Flags of a frame, a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrameFlags(pub u8);

impl FrameFlags {
    /// First part of its message (a message that is not split has both this and [`Self::LAST_PART`]).
    pub const FIRST_PART: Self = Self(1);
    /// Last part of its message.
    pub const LAST_PART: Self = Self(1 << 1);
    /// The book behind these records is suspect: a gap or a fault has not been repaired. Or the records map an
    /// instrument after a gap that may have contained its mapping.
    pub const SUSPECT: Self = Self(1 << 2);
    /// Content of a declared gap; in-order receivers discard it.
    pub const LATE_FILL: Self = Self(1 << 3);

    /// Both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Body of a [`FrameKind::Gap`]: `[first, next)` will not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GapBody {
    /// First missing sequence.
    pub first: U64,
    /// First sequence after the gap.
    pub next: U64,
}

/// Body of a [`FrameKind::State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StateBody {
    /// A [`ChannelState`].
    pub state: u8,
    /// Reserved; always zero.
    pub reserved: [u8; 7],
}

/// Properties of a frame, given before its body; the sink turns them into a [`FrameHeader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// See [`FrameHeader::sequence`].
    pub sequence: Sequence,
    /// First input sequence after the covered range. Equal to `sequence` for frames that cover nothing.
    pub next: Sequence,
    /// Kind of the body.
    pub kind: FrameKind,
    /// `SUSPECT` and `LATE_FILL` as they apply; the sink sets the part flags.
    pub flags: FrameFlags,
    /// Receive time of the message's datagram, ns since 1970 UTC.
    pub ts_recv: u64,
    /// `ts_recv` minus the venue's send time, ns, clamped.
    pub ts_in_delta_ns: i32,
}

impl FrameMeta {
    /// For the frame of one message, without flags.
    #[must_use]
    #[inline]
    pub fn message(sequence: Sequence, ts_recv: UnixNs, ts_in_delta_ns: i32) -> Self {
        let (kind, flags) = (FrameKind::Message, FrameFlags::default());
        Self { sequence, next: sequence.plus(1), kind, flags, ts_recv: ts_recv.0, ts_in_delta_ns }
    }

    /// For a frame that is not a function of the input.
    #[must_use]
    pub fn control(kind: FrameKind, sequence: Sequence, next: Sequence) -> Self {
        Self { sequence, next, kind, flags: FrameFlags::default(), ts_recv: 0, ts_in_delta_ns: 0 }
    }

    /// The header of a frame in one part.
    #[must_use]
    pub fn header(&self, record_count: u16, body: &[u8]) -> FrameHeader {
        FrameHeader {
            sequence: self.sequence.0.into(),
            ts_recv: self.ts_recv.into(),
            ts_in_delta_ns: self.ts_in_delta_ns.into(),
            body_bytes: u16::try_from(body.len()).unwrap_or(u16::MAX).into(),
            record_count: record_count.into(),
            kind: self.kind as u8,
            flags: self.flags.0,
            part: 0.into(),
            reserved: 0.into(),
        }
    }

    /// For a [`FrameKind::State`]; `next` is the first sequence not covered.
    #[must_use]
    pub fn state(next: Sequence) -> Self {
        Self::control(FrameKind::State, next, next)
    }
}

impl StateBody {
    /// The body with that state.
    #[must_use]
    pub fn of(state: ChannelState) -> Self {
        Self { state: state as u8, reserved: [0; 7] }
    }
}

/// Receives a channel's output: the publication log in the gateway, a file in offline replay, memory in tests. Calls
/// arrive in stream order.
pub trait FrameSink {
    /// One frame. `body` matches `meta.kind`; for records, `record_count` whole DBN records of 8-byte multiples.
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]);

    /// Input messages before `next` were processed. Messages without a frame had no output.
    fn covered_through(&mut self, next: Sequence);

    /// A session begins: later calls belong to `session`, starting at `next`. The previous session's output was
    /// passed before.
    fn session(&mut self, session: crate::identity::Session, next: Sequence);

    /// The venue ended the current session.
    fn end_of_session(&mut self);

    /// Arbitration of a datagram is complete and its messages follow. A place to take a timestamp; most sinks do
    /// nothing.
    fn arbitrated(&mut self) {}
}
