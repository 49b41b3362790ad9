//! What does an entry cost, and how much of that is its checksum? Appends whole packets to the publication log with and
//! without the checksum, and copies the same bytes to memory, interleaved. Reports medians of all rounds.
//!
//! `cargo bench -p mdgw-bench --bench publog`
#![allow(clippy::print_stdout, reason = "its output is its purpose")]
#![allow(clippy::cast_precision_loss, reason = "nanoseconds and counts far below 2^53")]

use std::{hint::black_box, time::Instant};

use mdgw_publog::{Checksum, LogOptions, OpenedLog, Reader, Retention, open};

const ROUNDS: usize = 101;
/// Small, so that most rounds end before the scheduler preempts the thread.
const SEGMENT_BYTES: usize = 2 << 20;
/// Frames of one mbo record: header and record.
const FRAME_BYTES: usize = 88;

fn main() {
    println!("ns per entry, median (least, greatest) of {ROUNDS} interleaved rounds");
    for frames in [1, 4, 16] {
        let mut copy_times = Vec::new();
        let mut without = Vec::new();
        let mut with = Vec::new();
        let mut reader_times = Vec::new();
        for _ in 0..ROUNDS {
            copy_times.push(plain_copy(frames));
            without.push(append(Checksum::Off, frames).0);
            let (append_ns, tail_ns) = append(Checksum::Crc32c, frames);
            with.push(append_ns);
            reader_times.push(tail_ns);
        }
        println!(
            "{frames:>2} frames, {:>4} bytes: copy {}, append {}, with checksum {}, read by a tailing reader {}",
            frames * FRAME_BYTES,
            spread(&mut copy_times),
            spread(&mut without),
            spread(&mut with),
            spread(&mut reader_times)
        );
    }
}

/// Fills one segment, then reads it. Returns the ns per entry of the appends and of the reads.
fn append(checksum: Checksum, frames: usize) -> (f64, f64) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = LogOptions {
        checksum,
        segment_bytes: SEGMENT_BYTES,
        retention: Retention { bytes_max: 64 << 20, ..Retention::default() },
        ..LogOptions::new(directory.path(), 1)
    };
    let OpenedLog { mut writer, .. } = open(options, 0).unwrap();
    let mut reader = Reader::open(directory.path(), 1).unwrap();
    let frame = [0x5a_u8; FRAME_BYTES];
    let count = entry_count(frames);
    let started = Instant::now();
    for sequence in 0..count {
        writer.begin([1; 16], sequence);
        for _ in 0..frames {
            // Two appends per frame, as in the sink: header and body.
            writer.append(black_box(&frame[..32]));
            writer.append(black_box(&frame[32..]));
        }
        writer.commit(sequence + 1, 1, 0, sequence);
    }
    let append_ns = started.elapsed().as_nanos() as f64 / count as f64;
    let started = Instant::now();
    let mut read = 0;
    while let Some(entry) = reader.next() {
        black_box(entry.payload);
        read += 1;
    }
    assert_eq!(read, count, "all in one segment");
    (append_ns, started.elapsed().as_nanos() as f64 / count as f64)
}

/// Copies the same bytes to private memory that is already mapped, without header, commit word or index. Returns ns per
/// entry.
fn plain_copy(frames: usize) -> f64 {
    let mut memory = vec![1_u8; SEGMENT_BYTES];
    let frame = [0x5a_u8; FRAME_BYTES];
    let count = entry_count(frames);
    let entry_bytes = 64 + frames * FRAME_BYTES;
    let started = Instant::now();
    for entry in memory.chunks_exact_mut(entry_bytes).take(usize::try_from(count).unwrap()) {
        for target in entry[64..].chunks_exact_mut(FRAME_BYTES) {
            target[..32].copy_from_slice(black_box(&frame[..32]));
            target[32..].copy_from_slice(black_box(&frame[32..]));
        }
    }
    let ns = started.elapsed().as_nanos() as f64 / count as f64;
    black_box(&memory);
    ns
}

/// Entries that fit one segment, less 128 KiB for its header.
fn entry_count(frames: usize) -> u64 {
    ((SEGMENT_BYTES - (128 << 10)) / (64 + frames * FRAME_BYTES)) as u64
}

fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.1} ({:.1}, {:.1})", values[values.len() / 2], values[0], values[values.len() - 1])
}
