//! Published packet: fixed header, then frames back to back.
//!
//! ```text
//!  0      4         5       6       8         10            12              14         16
//!  | MDGW | version | flags | group | channel | frame_count | payload_bytes | reserved |
//!  16      24        40      48     56             64
//!  | epoch | session | first | next | send_time_ns | frames … | tag, 16 bytes, if flagged
//! ```
//! Little-endian. The packet covers the input sequences `[first, next)`. A message larger than a packet is split into
//! parts at record borders, each alone in its packet. The parts before the last cover nothing (`next` is the
//! message's own sequence); the last part covers the message.
//!
//! The range of a live heartbeat reaches from the end of the last log entry to the current position: messages without
//! output. Heartbeats repeat the range until a log entry covers it. Otherwise a lost heartbeat would leave a gap that
//! no log entry could fill.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    drop_reason::DropReason,
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, GapBody, StateBody},
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::{snapshot::SnapshotChunkBody, tag::TAG_BYTES},
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
    /// Reserved; always zero.
    pub reserved: U16,
    /// [`Epoch`] of the gateway that leads the group.
    pub epoch: U64,
    /// [`Session`].
    pub session: [u8; Session::BYTES],
    /// First input sequence covered.
    pub first: U64,
    /// First input sequence not covered yet.
    pub next: U64,
    /// When the packet was passed to the kernel, ns since 1970 UTC.
    pub send_time_ns: U64,
}

/// Bytes of a packet's header.
pub const PACKET_HEADER_BYTES: usize = size_of::<PacketHeader>();
const _: () = assert!(PACKET_HEADER_BYTES == 64);

/// `MDGW` on the wire.
pub const PACKET_MAGIC: u32 = u32::from_le_bytes(*b"MDGW");

/// Version of the format.
pub const PACKET_VERSION: u8 = 1;

/// Default maximum packet size, bytes, with the tag: an Ethernet frame without fragmentation (1,500 less IPv4 and UDP
/// headers).
pub const PACKET_BYTES_MAX: usize = 1_472;

/// Flags of a packet, a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PacketFlags(pub u8);

impl PacketFlags {
    /// No frames: announces the channel's position. In an answer: the end of the answer.
    pub const HEARTBEAT: Self = Self(1);
    /// Repeated data: an answer to a request, sent to the requester alone. On the published lines: packets
    /// republished after a takeover, since the previous leader may not have sent them.
    pub const RETRANSMISSION: Self = Self(1 << 1);
    /// Out-of-sequence frames that describe a state; in an answer, definitions.
    pub const SNAPSHOT: Self = Self(1 << 2);
    /// Nothing follows in this session: `next` is final. At the end of an answer: the service knows where the session ended, with
    /// or without the venue's word.
    pub const END_OF_SESSION: Self = Self(1 << 3);
    /// A [`tag`](super::tag) follows the frames. [`parse_packet`] removes the flag and the tag.
    pub const TAGGED: Self = Self(1 << 4);

    /// A retransmission service's answer about the epoch: the only packet with all of these flags.
    pub const EPOCH_ANSWER: Self =
        Self::HEARTBEAT.with(Self::RETRANSMISSION).with(Self::SNAPSHOT).with(Self::END_OF_SESSION);

    /// All defined flags.
    const KNOWN: Self = Self(0b1_1111);

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

/// The header fields that the caller chooses; becomes a [`PacketHeader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// Flags of the packet.
    pub flags: PacketFlags,
    /// Group: the unit of leadership.
    pub group: GroupId,
    /// Channel within the group.
    pub channel: ChannelId,
    /// Epoch of the gateway that leads the group.
    pub epoch: Epoch,
    /// Session that the sequences belong to.
    pub session: Session,
    /// First input sequence covered.
    pub first: Sequence,
    /// First input sequence not covered yet.
    pub next: Sequence,
    /// When the packet is passed to the kernel, ns since 1970 UTC.
    pub send_time_ns: u64,
}

impl PacketHeader {
    /// Builds the header of a packet with these frames.
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

/// A packet whose lengths, counts and ranges have all been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its header in native types.
    pub meta: PacketMeta,
    /// Frames of the packet, back to back.
    pub body: &'a [u8],
    /// The message part in the packet, if any: always alone in its packet.
    pub part: Option<Part>,
    /// Frames in it.
    pub frame_count: u16,
    /// Whether a tag followed the frames. Only [`TagPolicy::check`](super::tag::TagPolicy::check) says whether the tag is valid.
    pub is_tagged: bool,
}

/// One part of a message that had to be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Sequence of the message.
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

/// Parses and checks a datagram, except for its tag.
///
/// # Errors
/// - [`DropReason::HeaderTruncated`]: shorter than a header.
/// - [`DropReason::ProtocolMismatch`]: another protocol, or an unknown version, flag or frame kind.
/// - [`DropReason::LengthMismatch`]: `payload_bytes` or `frame_count` disagrees with the content.
/// - [`DropReason::MessageTruncated`], [`DropReason::MessageLength`]: a frame that ends outside, or whose body
///   doesn't fit its kind.
/// - [`DropReason::SequenceInvalid`]: a range that is reversed or would wrap, or frames that leave it or do not ascend.
/// - [`DropReason::FieldInvalid`]: no session, parts where none are allowed, or a part number of a whole message.
pub fn parse_packet(datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    let (header, rest) = PacketHeader::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
    let flags = PacketFlags(header.flags);
    if header.magic.get() != PACKET_MAGIC
        || header.version != PACKET_VERSION
        || !PacketFlags::KNOWN.contains(flags)
        || header.reserved.get() != 0
    {
        return Err(DropReason::ProtocolMismatch);
    }
    let is_tagged = flags.contains(PacketFlags::TAGGED);
    let body = if is_tagged { rest.split_last_chunk::<TAG_BYTES>().map(|(body, _)| body) } else { Some(rest) };
    let body = body.filter(|body| body.len() == usize::from(header.payload_bytes.get()));
    let body = body.ok_or(DropReason::LengthMismatch)?;
    let meta = PacketMeta {
        flags: PacketFlags(flags.0 & !PacketFlags::TAGGED.0),
        group: GroupId(header.group.get()),
        channel: ChannelId(header.channel.get()),
        epoch: Epoch(header.epoch.get()),
        session: Session::from_bytes(header.session).ok_or(DropReason::FieldInvalid)?,
        first: Sequence(header.first.get()),
        next: Sequence(header.next.get()),
        send_time_ns: header.send_time_ns.get(),
    };
    check_packet(meta, body, header.frame_count.get(), is_tagged)
}

/// Checks the range and the frames of a packet, as [`parse_packet`] does.
pub(super) fn check_packet(
    meta: PacketMeta,
    body: &[u8],
    frame_count: u16,
    is_tagged: bool,
) -> Result<Packet<'_>, DropReason> {
    if meta.first > meta.next || meta.next.0 >= SEQUENCE_END {
        return Err(DropReason::SequenceInvalid);
    }
    let part = check_frames(&meta, body, frame_count)?;
    Ok(Packet { meta, body, part, frame_count, is_tagged })
}

/// Sequences of published packets end here, so that a sequence and its part fit one 64-bit position.
pub(crate) const SEQUENCE_END: u64 = 1 << 47;

/// Writes a packet into `datagram`. Returns its length, or `None` if there is no room or the body is not a list of
/// whole frames.
pub fn write_packet(meta: &PacketMeta, body: &[u8], datagram: &mut [u8]) -> Option<usize> {
    let header = PacketHeader::new(meta, count_frames(body)?, u16::try_from(body.len()).ok()?);
    let (head, rest) = datagram.split_at_mut_checked(PACKET_HEADER_BYTES)?;
    head.copy_from_slice(header.as_bytes());
    rest.get_mut(..body.len())?.copy_from_slice(body);
    Some(PACKET_HEADER_BYTES + body.len())
}

/// Number of frames in `body`, back to back; `None` if it does not end with a frame.
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
    /// For a body checked by [`parse_packet`]. In an unchecked body, iteration ends at the first invalid frame.
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

/// Checks every frame: lengths, body, and position within the packet's range.
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
        let next_covered = check_body(kind, header, frame_body)?;
        let sequence = Sequence(header.sequence.get());
        // With its part it must fit a position, whatever the kind.
        if sequence.0 >= SEQUENCE_END {
            return Err(DropReason::SequenceInvalid);
        }
        let frame_part = part_from_header(header);
        if kind == FrameKind::Message && frame_part.is_none() && header.part.get() != 0 {
            return Err(DropReason::FieldInvalid);
        }
        // Snapshots are out of sequence, and a late fill precedes the packet's range by definition.
        let is_in_sequence = matches!(kind, FrameKind::Message | FrameKind::Gap)
            && !meta.flags.contains(PacketFlags::SNAPSHOT)
            && !FrameFlags(header.flags).contains(FrameFlags::LATE_FILL);
        if !is_in_sequence {
            continue;
        }
        if sequence < position {
            return Err(DropReason::SequenceInvalid);
        }
        part = frame_part;
        position = match part {
            None => next_covered,
            // A part is alone in its packet, and the packet's range is limited to it.
            Some(_) if frame_count != 1 => return Err(DropReason::FieldInvalid),
            Some(Part { part: number, is_last, .. }) => {
                let next = if is_last { next_covered } else { sequence };
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

/// Checks a body against its frame kind. Returns the first sequence after the frame's range.
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
        FrameKind::SnapshotChunk => {
            SnapshotChunkBody::ref_from_bytes(body).map_err(|_| DropReason::MessageLength)?;
            Ok(sequence)
        }
    }
}

/// Number of DBN records in `body`, back to back. The first byte of each is its length in units of 4 bytes.
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

/// Which part of a message a frame is, if any.
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
