//! Published packet: fixed header, then frames back to back.
//!
//! ```text
//!  0      4        5      6      8        10           12             14        16     24       40     48    56            64
//!  | MDGW | version | flags | group | channel | frame_count | payload_bytes | reserved | epoch | session | first | next | send_time_ns | frames
//! ```
//! Little-endian. `[first, next)` are the input sequences that the packet settles. A message larger than a packet is
//! cut into parts at record borders, each alone in its packet: those before the last settle nothing (`next` is the
//! message's own sequence), the last settles the message.
//!
//! A live heartbeat's range reaches from the end of the last log entry to the present: messages that produced
//! nothing. It says the same again until an entry covers it, so that no lost heartbeat leaves a gap which no log
//! entry could fill.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    drop_reason::DropReason,
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, GapBody, StateBody},
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
};

/// Header of a published packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PacketHeader {
    /// [`PACKET_MAGIC`].
    pub magic: U32,
    /// [`PACKET_VERSION`].
    pub version: u8,
    /// [`PacketFlags`].
    pub flags: u8,
    /// Group: the unit of leadership.
    pub group: U16,
    /// Channel within the group.
    pub channel: U16,
    /// Frames that follow.
    pub frame_count: U16,
    /// Bytes of the frames that follow.
    pub payload_bytes: U16,
    /// Zero.
    pub reserved: U16,
    /// [`Epoch`] of the gateway that leads the group.
    pub epoch: U64,
    /// [`Session`].
    pub session: [u8; Session::BYTES],
    /// First input sequence settled.
    pub first: U64,
    /// First input sequence not settled yet.
    pub next: U64,
    /// When it was handed to the kernel, ns since 1970 UTC.
    pub send_time_ns: U64,
}

/// Bytes of a packet's header.
pub const PACKET_HEADER_BYTES: usize = size_of::<PacketHeader>();
const _: () = assert!(PACKET_HEADER_BYTES == 64);

/// `MDGW` on the wire.
pub const PACKET_MAGIC: u32 = u32::from_le_bytes(*b"MDGW");

/// Version of the format.
pub const PACKET_VERSION: u8 = 1;

/// Longest packet unless configured otherwise: what Ethernet carries without fragments (1,500 less IPv4 and UDP).
pub const PACKET_BYTES_MAX: usize = 1_472;

/// Flags of a packet, a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PacketFlags(pub u8);

impl PacketFlags {
    /// No frames: tells where the channel stands. In an answer, its end.
    pub const HEARTBEAT: Self = Self(1);
    /// Said again: an answer to a request, sent to its asker alone; or, on the published lines, what a gateway that has
    /// just taken over says because the one before it may not have.
    pub const RETRANSMISSION: Self = Self(1 << 1);
    /// Frames out of sequence that tell a state; in an answer, definitions.
    pub const SNAPSHOT: Self = Self(1 << 2);
    /// Nothing follows in this session: `next` is final.
    pub const END_OF_SESSION: Self = Self(1 << 3);

    /// All that have a meaning.
    const KNOWN: Self = Self(0b1111);

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a packet says about itself before its frames; becomes a [`PacketHeader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// What kind of packet.
    pub flags: PacketFlags,
    /// Group.
    pub group: GroupId,
    /// Channel.
    pub channel: ChannelId,
    /// Epoch.
    pub epoch: Epoch,
    /// Session.
    pub session: Session,
    /// First input sequence settled.
    pub first: Sequence,
    /// First input sequence not settled yet.
    pub next: Sequence,
    /// When it is handed to the kernel, ns since 1970 UTC.
    pub send_time_ns: u64,
}

impl PacketHeader {
    /// The header of a packet with these frames.
    #[must_use]
    pub fn new(meta: &PacketMeta, frame_count: u16, payload_bytes: u16) -> Self {
        Self {
            magic: U32::new(PACKET_MAGIC),
            version: PACKET_VERSION,
            flags: meta.flags.0,
            group: U16::new(meta.group.0),
            channel: U16::new(meta.channel.0),
            frame_count: U16::new(frame_count),
            payload_bytes: U16::new(payload_bytes),
            reserved: U16::ZERO,
            epoch: U64::new(meta.epoch.0),
            session: meta.session.to_bytes(),
            first: U64::new(meta.first.0),
            next: U64::new(meta.next.0),
            send_time_ns: U64::new(meta.send_time_ns),
        }
    }
}

/// A packet whose every length, count and range has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its header, in words.
    pub meta: PacketMeta,
    /// Its frames.
    pub body: &'a [u8],
    /// Which part of a message it is, if it is one: always alone in its packet.
    pub part: Option<Part>,
    /// Frames in it.
    pub frame_count: u16,
}

/// A packet with one part of a message that had to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The message.
    pub sequence: Sequence,
    /// Number of the part, from 0.
    pub part: u16,
    /// Whether it is the last.
    pub is_last: bool,
}

impl<'a> Packet<'a> {
    /// The frames, in order.
    #[must_use]
    pub fn frames(&self) -> Frames<'a> {
        Frames { rest: self.body }
    }
}

/// Checks a datagram.
///
/// # Errors
/// - [`DropReason::HeaderTruncated`]: shorter than a header.
/// - [`DropReason::ProtocolMismatch`]: not ours, or a version, flag or kind of frame that we don't know.
/// - [`DropReason::LengthMismatch`]: `payload_bytes` or `frame_count` disagrees with what is there.
/// - [`DropReason::MessageTruncated`], [`DropReason::MessageLength`]: a frame that ends outside, or whose body
///   doesn't fit its kind.
/// - [`DropReason::SequenceInvalid`]: a range that is reversed or would wrap, or frames that leave it or do not ascend.
/// - [`DropReason::FieldInvalid`]: no session, or parts where none can be.
pub fn parse_packet(datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    let (header, body) = PacketHeader::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
    let flags = PacketFlags(header.flags);
    if header.magic.get() != PACKET_MAGIC
        || header.version != PACKET_VERSION
        || !PacketFlags::KNOWN.contains(flags)
        || header.reserved.get() != 0
    {
        return Err(DropReason::ProtocolMismatch);
    }
    if body.len() != usize::from(header.payload_bytes.get()) {
        return Err(DropReason::LengthMismatch);
    }
    let meta = PacketMeta {
        flags,
        group: GroupId(header.group.get()),
        channel: ChannelId(header.channel.get()),
        epoch: Epoch(header.epoch.get()),
        session: Session::from_bytes(header.session).ok_or(DropReason::FieldInvalid)?,
        first: Sequence(header.first.get()),
        next: Sequence(header.next.get()),
        send_time_ns: header.send_time_ns.get(),
    };
    if meta.first > meta.next || meta.next.0 >= SEQUENCE_END {
        return Err(DropReason::SequenceInvalid);
    }
    let frame_count = header.frame_count.get();
    let part = check_frames(&meta, body, frame_count)?;
    Ok(Packet { meta, body, part, frame_count })
}

/// Sequences of published packets end here: a message and its part then fit one 64-bit position.
pub const SEQUENCE_END: u64 = 1 << 47;

/// Writes a packet into `datagram`; its length, or `None` when there is no room or the body is no row of frames.
pub fn write_packet(meta: &PacketMeta, body: &[u8], datagram: &mut [u8]) -> Option<usize> {
    let header = PacketHeader::new(meta, count_frames(body)?, u16::try_from(body.len()).ok()?);
    let (head, rest) = datagram.split_at_mut_checked(PACKET_HEADER_BYTES)?;
    head.copy_from_slice(header.as_bytes());
    rest.get_mut(..body.len())?.copy_from_slice(body);
    Some(PACKET_HEADER_BYTES + body.len())
}

/// How many frames lie in `body`, back to back; `None` when it doesn't end with a frame.
#[must_use]
pub fn count_frames(body: &[u8]) -> Option<u16> {
    let mut rest = body;
    let mut count = 0_u16;
    while !rest.is_empty() {
        let (_, _, after) = split_frame(rest)?;
        rest = after;
        count = count.checked_add(1)?;
    }
    Some(count)
}

/// Iterator over the frames of a checked body.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Over a body that [`parse_packet`] has checked; of another, up to the first frame that doesn't fit.
    #[must_use]
    pub fn of_body(body: &'a [u8]) -> Self {
        Self { rest: body }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = (&'a FrameHeader, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, body, rest) = split_frame(self.rest)?;
        self.rest = rest;
        Some((header, body))
    }
}

fn split_frame(bytes: &[u8]) -> Option<(&FrameHeader, &[u8], &[u8])> {
    let (header, rest) = FrameHeader::ref_from_prefix(bytes).ok()?;
    let (body, rest) = rest.split_at_checked(usize::from(header.body_bytes.get()))?;
    Some((header, body, rest))
}

/// Every frame: its lengths, its body, its place in the packet's range.
fn check_frames(meta: &PacketMeta, body: &[u8], frame_count: u16) -> Result<Option<Part>, DropReason> {
    if meta.flags.contains(PacketFlags::HEARTBEAT) && frame_count != 0 {
        return Err(DropReason::LengthMismatch);
    }
    let mut rest = body;
    let mut position = meta.first;
    let mut part = None;
    for _ in 0..frame_count {
        if rest.len() < FRAME_HEADER_BYTES {
            return Err(DropReason::LengthMismatch);
        }
        let (header, frame_body, after) = split_frame(rest).ok_or(DropReason::MessageTruncated)?;
        rest = after;
        let kind = FrameKind::from_number(header.kind).ok_or(DropReason::ProtocolMismatch)?;
        let settled = check_body(kind, header, frame_body)?;
        // Snapshots are out of sequence, and a late fill lies before the packet's range by its nature.
        let is_in_sequence = matches!(kind, FrameKind::Message | FrameKind::Gap)
            && !meta.flags.contains(PacketFlags::SNAPSHOT)
            && !FrameFlags(header.flags).contains(FrameFlags::LATE_FILL);
        if !is_in_sequence {
            continue;
        }
        let sequence = Sequence(header.sequence.get());
        if sequence < position {
            return Err(DropReason::SequenceInvalid);
        }
        part = part_from_header(header);
        position = match part {
            None => settled,
            // Alone in its packet, and the packet's range is cut to it.
            Some(_) if frame_count != 1 => return Err(DropReason::FieldInvalid),
            Some(Part { part: number, is_last, .. }) => {
                let next = if is_last { settled } else { sequence };
                if meta.next != next || (number > 0 && meta.first != sequence) {
                    return Err(DropReason::SequenceInvalid);
                }
                next
            }
        };
        if position > meta.next {
            return Err(DropReason::SequenceInvalid);
        }
    }
    if rest.is_empty() { Ok(part) } else { Err(DropReason::LengthMismatch) }
}

/// A body that fits its kind; the first sequence after what the frame settles.
fn check_body(kind: FrameKind, header: &FrameHeader, body: &[u8]) -> Result<Sequence, DropReason> {
    if !body.len().is_multiple_of(8) {
        return Err(DropReason::MessageLength);
    }
    let sequence = Sequence(header.sequence.get());
    match kind {
        FrameKind::Message | FrameKind::Snapshot => {
            let records = count_records(body).ok_or(DropReason::MessageLength)?;
            let agrees = records == usize::from(header.record_count.get());
            agrees.then(|| sequence.plus(1)).ok_or(DropReason::MessageLength)
        }
        FrameKind::Gap => {
            let gap = GapBody::ref_from_bytes(body).map_err(|_| DropReason::MessageLength)?;
            let is_sound = gap.first == header.sequence && gap.first.get() < gap.next.get();
            is_sound.then(|| Sequence(gap.next.get())).ok_or(DropReason::SequenceInvalid)
        }
        FrameKind::State => {
            StateBody::ref_from_bytes(body).map_err(|_| DropReason::MessageLength)?;
            Ok(sequence)
        }
    }
}

/// How many DBN records lie in `body`, back to back: the first byte of each is its length in units of 4 bytes.
fn count_records(body: &[u8]) -> Option<usize> {
    let mut rest = body;
    let mut count = 0;
    while let Some(units) = rest.first() {
        let bytes = usize::from(*units) * 4;
        if bytes < RECORD_HEADER_BYTES || !bytes.is_multiple_of(8) {
            return None;
        }
        rest = rest.get(bytes..)?;
        count += 1;
    }
    Some(count)
}

/// Bytes of a DBN record's header.
const RECORD_HEADER_BYTES: usize = 16;

/// Which part of a message a frame is, if it is one.
pub(super) fn part_from_header(header: &FrameHeader) -> Option<Part> {
    let flags = FrameFlags(header.flags);
    let is_last = flags.contains(FrameFlags::LAST_PART);
    let is_whole = is_last && flags.contains(FrameFlags::FIRST_PART);
    let sequence = Sequence(header.sequence.get());
    (!is_whole && header.kind == FrameKind::Message as u8).then_some(Part {
        sequence,
        part: header.part.get(),
        is_last,
    })
}

#[cfg(test)]
mod tests;
