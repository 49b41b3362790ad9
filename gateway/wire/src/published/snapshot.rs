//! Snapshot of a channel: its state at one position of the session, cut into numbered chunks.
//!
//! ```text
//!  chunk 0      | packet header | chunk frame: image 7, chunk 0 of 3, totals | snapshot frame: records |
//!  chunk 1      | packet header | chunk frame: image 7, chunk 1 of 3, totals | snapshot frame: records |
//!  chunk 2      | packet header | chunk frame: image 7, chunk 2 of 3, totals | snapshot frame: records |
//! ```
//! A service keeps the chunks of a snapshot unchanged as long as the snapshot is used: its **image**. A receiver requests the
//! chunks in ranges, and those that were lost again, by their numbers.
//!
//! Each chunk repeats the image's number, position, totals and checksum. So no packet is special: any chunk says what a whole
//! snapshot needs, and the loss of any chunk costs one more request for that chunk alone. A separate begin and end would be two
//! packets without which all others are useless.
//!
//! [`SnapshotAssembly`] collects chunks: complete or nothing.

use std::collections::BTreeMap;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{
    crc32::Crc32,
    packet::{Packet, PacketFlags},
};
use crate::{
    drop_reason::DropReason,
    frame::{FrameFlags, FrameHeader, FrameKind},
    identity::Sequence,
};

/// Body of a [`FrameKind::SnapshotChunk`], the first frame of a chunk's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SnapshotChunkBody {
    /// Number of the image, from 1; unique among the images that the service has.
    pub image: U32,
    /// Number of this chunk, from 0.
    pub chunk: U32,
    /// Chunks of the image, at least 1.
    pub chunk_count: U32,
    /// CRC-32 of the image's records: the bodies of all chunks' snapshot frames, back to back.
    pub checksum: U32,
    /// Records of the image.
    pub record_count: U64,
    /// Bytes of these records.
    pub record_bytes: U64,
    /// How many of the records are resting orders.
    pub order_count: U64,
    /// Instruments of which the image has a record.
    pub instrument_count: U32,
    /// Reserved; zero from the gateways, ignored by receivers.
    pub reserved: U32,
}

/// Bytes of a chunk frame's body.
pub const SNAPSHOT_CHUNK_BODY_BYTES: usize = size_of::<SnapshotChunkBody>();
const _: () = assert!(SNAPSHOT_CHUNK_BODY_BYTES == 48);

/// Least bytes of a record.
const RECORD_BYTES_MIN: u64 = 16;

/// Which chunk a request means: an image in the upper half, a chunk in the lower one. Image 0 is whichever the service offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkName {
    /// Number of the image; 0: the service chooses.
    pub image: u32,
    /// Number of the chunk.
    pub chunk: u32,
}

impl ChunkName {
    /// As `first` or `next` of a request.
    #[must_use]
    pub fn to_sequence(self) -> Sequence {
        Sequence(u64::from(self.image) << 32 | u64::from(self.chunk))
    }

    /// From `first` or `next` of a request.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
    pub fn from_sequence(sequence: Sequence) -> Self {
        Self { image: (sequence.0 >> 32) as u32, chunk: sequence.0 as u32 }
    }
}

/// What all chunks of an image have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotImage {
    /// Number of the image at its service.
    pub image: u32,
    /// The state after all messages before this one: where the stream continues.
    pub next: Sequence,
    /// Chunks that the image has.
    pub chunk_count: u32,
    /// CRC-32 of all records.
    pub checksum: u32,
    /// Records in all chunks.
    pub record_count: u64,
    /// Bytes of the records.
    pub record_bytes: u64,
    /// How many of the records are resting orders.
    pub order_count: u64,
    /// Instruments of which the image has a record.
    pub instrument_count: u32,
    /// Whether any of the books is suspect.
    pub is_suspect: bool,
}

/// One chunk of an image, checked.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotChunk<'a> {
    /// What the chunk says about the image.
    pub image: SnapshotImage,
    /// Position of the chunk in the image, from 0.
    pub chunk: u32,
    /// Header of the snapshot frame.
    pub header: &'a FrameHeader,
    /// DBN records of the chunk, back to back.
    pub records: &'a [u8],
}

impl SnapshotImage {
    /// The body of the chunk frame with that number.
    #[must_use]
    pub fn chunk_body(&self, chunk: u32) -> SnapshotChunkBody {
        SnapshotChunkBody {
            image: self.image.into(),
            chunk: chunk.into(),
            chunk_count: self.chunk_count.into(),
            checksum: self.checksum.into(),
            record_count: self.record_count.into(),
            record_bytes: self.record_bytes.into(),
            order_count: self.order_count.into(),
            instrument_count: self.instrument_count.into(),
            reserved: U32::ZERO,
        }
    }

    /// Whether the totals can be true. A snapshot without records has one empty chunk.
    fn is_sound(&self) -> bool {
        let has_record_per_chunk = self.record_count >= u64::from(self.chunk_count);
        let is_empty = self.record_count == 0 && self.record_bytes == 0 && self.chunk_count == 1;
        self.image != 0
            && self.chunk_count > 0
            && (has_record_per_chunk || is_empty)
            && self.record_bytes / RECORD_BYTES_MIN >= self.record_count
            && self.order_count <= self.record_count
            && self.next.0 > 0
    }
}

impl<'a> SnapshotChunk<'a> {
    /// The chunk that a packet of an answer holds.
    ///
    /// # Errors
    /// - [`DropReason::ProtocolMismatch`]: no chunk.
    /// - [`DropReason::FieldInvalid`]: its numbers contradict each other.
    pub fn from_packet(packet: &Packet<'a>) -> Result<Self, DropReason> {
        let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT);
        let mut frames = packet.frames();
        let (Some((head, body)), Some((header, records)), None) = (frames.next(), frames.next(), frames.next()) else {
            return Err(DropReason::ProtocolMismatch);
        };
        let kinds = [head.kind, header.kind];
        if packet.meta.flags != flags || kinds != [FrameKind::SnapshotChunk as u8, FrameKind::Snapshot as u8] {
            return Err(DropReason::ProtocolMismatch);
        }
        let body = SnapshotChunkBody::ref_from_bytes(body).map_err(|_| DropReason::ProtocolMismatch)?;
        let image = SnapshotImage {
            image: body.image.get(),
            next: Sequence(head.sequence.get()),
            chunk_count: body.chunk_count.get(),
            checksum: body.checksum.get(),
            record_count: body.record_count.get(),
            record_bytes: body.record_bytes.get(),
            order_count: body.order_count.get(),
            instrument_count: body.instrument_count.get(),
            is_suspect: FrameFlags(head.flags).contains(FrameFlags::SUSPECT),
        };
        let chunk = body.chunk.get();
        let (first, next) = (u64::from(chunk), u64::from(chunk) + 1);
        let agrees = chunk < image.chunk_count
            && header.sequence == head.sequence
            && (packet.meta.first, packet.meta.next) == (Sequence(first), Sequence(next));
        // Chunks without records would cost memory that no limit counts.
        let is_empty = records.is_empty() && image.record_bytes > 0;
        if !agrees || is_empty || !image.is_sound() {
            return Err(DropReason::FieldInvalid);
        }
        Ok(Self { image, chunk, header, records })
    }
}

/// Collects the chunks of one image.
#[derive(Debug)]
pub struct SnapshotAssembly {
    bytes_max: u64,
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    image: SnapshotImage,
    /// For each chunk that has arrived its snapshot frame's header and where its records are in `records`. One packet can claim
    /// millions of chunks, so memory comes with the chunks.
    chunks: BTreeMap<u32, (FrameHeader, usize)>,
    /// Records of the chunks, in the order of arrival.
    records: Vec<u8>,
    record_count: u64,
    /// Chunks before this one have arrived.
    first_missing: u32,
}

/// Result of adding a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// The chunk is new; others are missing.
    Added,
    /// All chunks are there, and they agree with the image's totals and checksum.
    Complete,
    /// All chunks are there, and they contradict the totals or the checksum: all were discarded.
    Damaged,
}

impl SnapshotAssembly {
    /// Takes images of up to `bytes_max` bytes of records.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, parts: None }
    }

    /// Discards everything.
    pub fn clear(&mut self) {
        self.parts = None;
    }

    /// The image of which chunks have arrived.
    #[must_use]
    pub fn image(&self) -> Option<&SnapshotImage> {
        self.parts.as_ref().map(|parts| &parts.image)
    }

    /// Whether the image's records are within `bytes_max`.
    pub(crate) fn can_hold(&self, image: &SnapshotImage) -> bool {
        image.record_bytes <= self.bytes_max
    }

    /// Adds a chunk. The first one decides which image it is.
    ///
    /// # Errors
    /// - [`DropReason::WindowFull`]: the image is larger than `bytes_max`, or the chunk larger than the image.
    /// - [`DropReason::AnswerUnrequested`]: a chunk of another image, or with other totals.
    /// - [`DropReason::Duplicate`]: the chunk is there.
    pub fn add(&mut self, chunk: &SnapshotChunk<'_>) -> Result<ChunkOutcome, DropReason> {
        if self.parts.is_none() && !self.can_hold(&chunk.image) {
            return Err(DropReason::WindowFull);
        }
        let parts = self.parts.get_or_insert_with(|| Parts::new(chunk.image));
        parts.add(chunk)?;
        if parts.chunks.len() as u64 != u64::from(parts.image.chunk_count) {
            return Ok(ChunkOutcome::Added);
        }
        if parts.is_whole() {
            return Ok(ChunkOutcome::Complete);
        }
        self.parts = None;
        Ok(ChunkOutcome::Damaged)
    }

    /// The chunks to request next: from the first missing one on, up to `count_max`. Image 0 before the first chunk.
    pub fn missing(&mut self, count_max: u32) -> (ChunkName, ChunkName) {
        let Some(parts) = &mut self.parts else {
            return (ChunkName { image: 0, chunk: 0 }, ChunkName { image: 0, chunk: count_max });
        };
        while parts.chunks.contains_key(&parts.first_missing) {
            parts.first_missing += 1;
        }
        let first = parts.first_missing;
        // Chunks behind the last one missing in the range have arrived: they are not sent again.
        let mut wanted = first..first.saturating_add(count_max).min(parts.image.chunk_count);
        let next = wanted.rfind(|chunk| !parts.chunks.contains_key(chunk)).map_or(first, |last| last + 1);
        let image = parts.image.image;
        (ChunkName { image, chunk: first }, ChunkName { image, chunk: next })
    }

    /// The chunks in order, once all have arrived. The first one has [`FrameFlags::FIRST_PART`], the last one
    /// [`FrameFlags::LAST_PART`].
    pub fn frames(&self) -> impl Iterator<Item = (FrameHeader, &[u8])> {
        let parts = self.parts.as_ref();
        let last = parts.map_or(0, |parts| parts.chunks.len().saturating_sub(1));
        let chunks = parts.into_iter().flat_map(|parts| parts.in_order());
        chunks.enumerate().map(move |(index, (header, records))| {
            let mut header = *header;
            let flag = |is_set, flag: FrameFlags| if is_set { flag.0 } else { 0 };
            header.flags &= !(FrameFlags::FIRST_PART.0 | FrameFlags::LAST_PART.0);
            header.flags |= flag(index == 0, FrameFlags::FIRST_PART) | flag(index == last, FrameFlags::LAST_PART);
            (header, records)
        })
    }
}

impl Parts {
    fn new(image: SnapshotImage) -> Self {
        Self { image, chunks: BTreeMap::new(), records: Vec::new(), record_count: 0, first_missing: 0 }
    }

    fn add(&mut self, chunk: &SnapshotChunk<'_>) -> Result<(), DropReason> {
        if chunk.image != self.image {
            return Err(DropReason::AnswerUnrequested);
        }
        if self.chunks.contains_key(&chunk.chunk) {
            return Err(DropReason::Duplicate);
        }
        let record_bytes = (self.records.len() + chunk.records.len()) as u64;
        if record_bytes > self.image.record_bytes {
            return Err(DropReason::WindowFull);
        }
        self.chunks.insert(chunk.chunk, (*chunk.header, self.records.len()));
        self.records.extend_from_slice(chunk.records);
        self.record_count += u64::from(chunk.header.record_count.get());
        Ok(())
    }

    fn in_order(&self) -> impl Iterator<Item = (&FrameHeader, &[u8])> {
        self.chunks.values().map(|(header, begin)| {
            let end = begin.saturating_add(usize::from(header.body_bytes.get()));
            (header, self.records.get(*begin..end).unwrap_or_default())
        })
    }

    fn is_whole(&self) -> bool {
        let mut checksum = Crc32::default();
        self.in_order().for_each(|(_, records)| checksum.update(records));
        (self.records.len() as u64, self.record_count, checksum.value())
            == (self.image.record_bytes, self.image.record_count, self.image.checksum)
    }
}

/// CRC-32 of a snapshot's records, as zlib computes it.
#[must_use]
pub fn checksum(records: &[u8]) -> u32 {
    let mut checksum = Crc32::default();
    checksum.update(records);
    checksum.value()
}

/// The frames of one chunk's packet: the chunk frame and the snapshot frame with these records.
#[must_use]
pub fn chunk_frames(image: &SnapshotImage, chunk: u32, ts_recv: u64, record_count: u16, records: &[u8]) -> Vec<u8> {
    let flags = if image.is_suspect { FrameFlags::SUSPECT } else { FrameFlags::default() };
    let header = |kind: FrameKind, ts_recv: u64, flags: FrameFlags, record_count: u16, body_bytes: usize| FrameHeader {
        sequence: U64::new(image.next.0),
        ts_recv: U64::new(ts_recv),
        ts_in_delta_ns: 0.into(),
        body_bytes: u16::try_from(body_bytes).unwrap_or(u16::MAX).into(),
        record_count: record_count.into(),
        kind: kind as u8,
        flags: flags.0,
        part: 0.into(),
        reserved: U32::ZERO,
    };
    let body = image.chunk_body(chunk);
    let mut frames = Vec::with_capacity(2 * size_of::<FrameHeader>() + SNAPSHOT_CHUNK_BODY_BYTES + records.len());
    frames.extend_from_slice(header(FrameKind::SnapshotChunk, 0, flags, 0, SNAPSHOT_CHUNK_BODY_BYTES).as_bytes());
    frames.extend_from_slice(body.as_bytes());
    // Each record says itself whether its book is suspect.
    frames.extend_from_slice(
        header(FrameKind::Snapshot, ts_recv, FrameFlags::default(), record_count, records.len()).as_bytes(),
    );
    frames.extend_from_slice(records);
    frames
}

/// Bytes of a chunk's packet beside the packet's header and the records.
pub const CHUNK_OVERHEAD_BYTES: usize = 2 * size_of::<FrameHeader>() + SNAPSHOT_CHUNK_BODY_BYTES;

#[cfg(test)]
mod tests;
