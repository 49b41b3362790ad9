use proptest::prelude::*;

use super::*;
use crate::{
    identity::{ChannelId, Epoch, Feed, GroupId, Session},
    published::packet::{PacketMeta, parse_packet, write_packet},
    time::TradingDate,
};

const RECORD_BYTES: usize = 56;
const NEXT: Sequence = Sequence(77);

/// The datagrams of an image with that many records in each chunk. Each record differs.
fn image(image: u32, record_counts: &[u16]) -> (SnapshotImage, Vec<Vec<u8>>, Vec<u8>) {
    let mut all = Vec::new();
    let mut chunks = Vec::new();
    for (chunk, count) in record_counts.iter().enumerate() {
        let begin = all.len();
        for index in 0..*count {
            let mut record = [0; RECORD_BYTES];
            record[0] = 14;
            record[16..24]
                .copy_from_slice(&(u64::from(image) << 32 | (chunk as u64) << 16 | u64::from(index)).to_le_bytes());
            all.extend_from_slice(&record);
        }
        chunks.push((*count, begin..all.len()));
    }
    let image = SnapshotImage {
        image,
        next: NEXT,
        chunk_count: u32::try_from(chunks.len()).unwrap(),
        checksum: checksum(&all),
        record_count: record_counts.iter().copied().map(u64::from).sum(),
        record_bytes: all.len() as u64,
        order_count: 0,
        instrument_count: 1,
        is_suspect: false,
    };
    let datagrams = (0..)
        .zip(&chunks)
        .map(|(chunk, (count, range))| datagram(chunk, &chunk_frames(&image, chunk, 5, *count, &all[range.clone()])));
    (image, datagrams.collect(), all)
}

fn datagram(chunk: u32, frames: &[u8]) -> Vec<u8> {
    let date = TradingDate::from_yyyymmdd(20_240_102).unwrap();
    let meta = PacketMeta {
        flags: PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT),
        group: GroupId(1),
        channel: ChannelId(2),
        epoch: Epoch(3),
        session: Session { feed: Feed::NasdaqItch, date, restart: 0 },
        first: Sequence(chunk.into()),
        next: Sequence(u64::from(chunk) + 1),
        send_time_ns: 0,
    };
    let mut datagram = vec![0; 9_000];
    let length = write_packet(&meta, frames, &mut datagram).unwrap();
    datagram.truncate(length);
    datagram
}

fn add(assembly: &mut SnapshotAssembly, datagram: &[u8]) -> Result<ChunkOutcome, DropReason> {
    assembly.add(&SnapshotChunk::from_packet(&parse_packet(datagram)?)?)
}

fn records_of(assembly: &SnapshotAssembly) -> Vec<u8> {
    assembly.frames().flat_map(|(_, records)| records.to_vec()).collect()
}

#[test]
fn a_snapshot_is_delivered_in_order_with_its_ends_marked() {
    let (expected, datagrams, records) = image(9, &[2, 3, 1]);
    let mut assembly = SnapshotAssembly::new(1 << 20);
    assert_eq!(assembly.missing(2), (ChunkName { image: 0, chunk: 0 }, ChunkName { image: 0, chunk: 2 }));
    assert_eq!(add(&mut assembly, &datagrams[2]), Ok(ChunkOutcome::Added));
    assert_eq!(assembly.image(), Some(&expected));
    assert_eq!(assembly.missing(8), (ChunkName { image: 9, chunk: 0 }, ChunkName { image: 9, chunk: 2 }));
    assert_eq!(add(&mut assembly, &datagrams[0]), Ok(ChunkOutcome::Added));
    assert_eq!(add(&mut assembly, &datagrams[0]), Err(DropReason::Duplicate));
    assert_eq!(assembly.missing(8), (ChunkName { image: 9, chunk: 1 }, ChunkName { image: 9, chunk: 2 }));
    assert_eq!(add(&mut assembly, &datagrams[1]), Ok(ChunkOutcome::Complete));
    assert_eq!(records_of(&assembly), records);
    let (first, last) = (FrameFlags::FIRST_PART.0, FrameFlags::LAST_PART.0);
    let flags: Vec<_> = assembly.frames().map(|(header, _)| (header.sequence.get(), header.flags)).collect();
    assert_eq!(flags, [(77, first), (77, 0), (77, last)]);
}

#[test]
fn a_state_without_records_is_one_empty_chunk() {
    let (_, datagrams, _) = image(1, &[0]);
    let mut assembly = SnapshotAssembly::new(0);
    assert_eq!(add(&mut assembly, &datagrams[0]), Ok(ChunkOutcome::Complete));
    assert_eq!(records_of(&assembly), [0; 0]);
}

#[test]
fn an_image_beyond_the_limit_is_refused_before_memory_is_taken() {
    let (_, datagrams, records) = image(1, &[2, 2]);
    let mut assembly = SnapshotAssembly::new(records.len() as u64 - 1);
    assert_eq!(add(&mut assembly, &datagrams[0]), Err(DropReason::WindowFull));
    assert!(assembly.image().is_none());
    // The totals bound each other: a chunk has a record, and a record 16 bytes.
    let (sound, _, _) = image(1, &[2, 2]);
    for lie in [
        SnapshotImage { chunk_count: u32::MAX, ..sound },
        SnapshotImage { chunk_count: 1, ..sound },
        SnapshotImage { record_count: 1 << 40, ..sound },
        SnapshotImage { record_bytes: 3, ..sound },
        SnapshotImage { order_count: 5, ..sound },
        SnapshotImage { image: 0, ..sound },
    ] {
        let frames = chunk_frames(&lie, 1, 5, 0, &[]);
        assert_eq!(add(&mut assembly, &datagram(1, &frames)), Err(DropReason::FieldInvalid), "{lie:?}");
    }
}

#[test]
fn chunks_of_different_images_are_not_mixed() {
    let (_, old, _) = image(4, &[1, 1]);
    let (_, new, records) = image(5, &[1, 1]);
    let mut assembly = SnapshotAssembly::new(1 << 20);
    assert_eq!(add(&mut assembly, &new[0]), Ok(ChunkOutcome::Added));
    assert_eq!(add(&mut assembly, &old[1]), Err(DropReason::AnswerUnrequested));
    assert_eq!(add(&mut assembly, &new[1]), Ok(ChunkOutcome::Complete));
    assert_eq!(records_of(&assembly), records);
}

/// A host that forges the service's address can make a snapshot fail, and cannot make one wrong.
#[test]
fn a_forged_chunk_spoils_the_image_and_nothing_of_it_is_delivered() {
    let (totals, datagrams, _) = image(4, &[1, 1]);
    let mut record = [0; RECORD_BYTES];
    record[0] = 14;
    let forged = datagram(1, &chunk_frames(&totals, 1, 5, 1, &record));
    let mut assembly = SnapshotAssembly::new(1 << 20);
    assert_eq!(add(&mut assembly, &forged), Ok(ChunkOutcome::Added));
    assert_eq!(add(&mut assembly, &datagrams[0]), Ok(ChunkOutcome::Damaged));
    assert!(assembly.image().is_none());
    assert_eq!(records_of(&assembly), [0; 0]);
}

proptest! {
    /// Lost, repeated, reordered and damaged chunks: the records of the image, or nothing.
    #[test]
    fn a_snapshot_is_complete_or_nothing(
        counts in prop::collection::vec(1_u16..5, 1..12),
        arrivals in prop::collection::vec((any::<prop::sample::Index>(), prop::option::weighted(0.1, (any::<prop::sample::Index>(), any::<u8>()))), 0..60),
    ) {
        let (_, datagrams, records) = image(3, &counts);
        let mut assembly = SnapshotAssembly::new(1 << 20);
        let mut complete = false;
        for (index, damage) in arrivals {
            let mut datagram = index.get(&datagrams).clone();
            if let Some((at, value)) = damage {
                let at = at.index(datagram.len());
                datagram[at] = value;
            }
            if complete {
                break;
            }
            complete |= matches!(add(&mut assembly, &datagram), Ok(ChunkOutcome::Complete));
            if let Some(SnapshotImage { chunk_count, .. }) = assembly.image().copied().filter(|_| !complete) {
                let (first, next) = assembly.missing(4);
                prop_assert!(first.chunk < next.chunk && next.chunk <= chunk_count);
            }
        }
        if complete && assembly.image().is_some_and(|image| image.checksum == checksum(&records)) {
            prop_assert_eq!(records_of(&assembly), records);
        }
    }
}
