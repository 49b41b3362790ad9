//! The log against a `Vec`: committed entries are read in order, each once, whatever happens to the writer.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use proptest::prelude::*;
use tempfile::TempDir;

use crate::{
    Checksum, Entry, EntryCopy, LogError, LogOptions, OpenedLog, Position, Reader, ReaderGroup, Retention, SeekResult,
    SessionBytes, SessionRange, create_log_root,
    directory::{segment_numbers, segment_path},
    open,
};

pub(crate) const CHANNEL: u16 = 7;
pub(crate) const NOW_NS: u64 = 1_700_000_000_000_000_000;
const PAYLOAD_BYTES_MAX: usize = 256;

/// An entry that a test writes and must read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenEntry {
    session: SessionBytes,
    pub(crate) first: u64,
    next: u64,
    flags: u16,
    payload: Vec<u8>,
}

impl WrittenEntry {
    pub(crate) fn from_entry(entry: &Entry<'_>) -> Self {
        let Entry { session, first, next, flags, payload, .. } = *entry;
        Self { session, first, next, flags, payload: payload.to_vec() }
    }

    pub(crate) fn with_sequence(sequence: u64) -> Self {
        let payload = sequence.to_le_bytes().repeat(1 + usize::try_from(sequence % 20).unwrap());
        Self { session: [1; 16], first: sequence, next: sequence + 1, flags: 0, payload }
    }

    pub(crate) fn write(&self, log: &mut OpenedLog) -> Position {
        let (left, right) = self.payload.split_at(self.payload.len() / 2);
        log.writer.begin(self.session, self.first);
        assert!(log.writer.append(left) && log.writer.append(right));
        log.writer.commit(self.next, 1, self.flags, NOW_NS).unwrap()
    }
}

pub(crate) fn options(directory: &Path) -> LogOptions {
    let retention = Retention { bytes_max: 1 << 30, age_ns_max: None, protected_bytes_max: 1 << 30 };
    LogOptions {
        segment_bytes: 12 << 10,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        retention,
        private_bytes: 12 << 10,
        ..LogOptions::new(directory, CHANNEL)
    }
}

pub(crate) fn read_all(reader: &mut Reader) -> Vec<WrittenEntry> {
    std::iter::from_fn(|| reader.next().map(|entry| WrittenEntry::from_entry(&entry))).collect()
}

/// As [`read_all`], through copies; `Err` where the log ends with damage.
pub(crate) fn read_all_copied(reader: &mut Reader) -> (Vec<WrittenEntry>, Option<LogError>) {
    let (mut copy, mut entries) = (EntryCopy::default(), Vec::new());
    loop {
        match reader.next_copied(&mut copy) {
            Ok(Some(entry)) => entries.push(WrittenEntry::from_entry(&entry)),
            Ok(None) => return (entries, None),
            Err(error) => return (entries, Some(error)),
        }
    }
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A directory on the disk of temporary files, and one in memory, where segments are reused.
fn directories() -> [TempDir; 2] {
    [directory(), tempfile::tempdir_in("/dev/shm").unwrap()]
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<u8>, u64),
    Abandon(Vec<u8>),
    NewSession,
    Maintain,
    Read,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let payload = || prop::collection::vec(any::<u8>(), 0..=PAYLOAD_BYTES_MAX);
    prop_oneof![
        20 => (payload(), 0_u64..4).prop_map(|(payload, covered)| Step::Write(payload, covered)),
        2 => payload().prop_map(Step::Abandon),
        1 => Just(Step::NewSession),
        4 => Just(Step::Maintain),
        4 => Just(Step::Read),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #[test]
    fn readers_see_exactly_the_committed_entries(
        steps in prop::collection::vec(step(), 0..200),
        checksum in prop_oneof![Just(Checksum::Crc32c), Just(Checksum::Off)],
    ) {
        let directory = directory();
        let options = LogOptions { checksum, ..options(directory.path()) };
        let mut model: Vec<WrittenEntry> = Vec::new();
        let mut log = open(options.clone(), NOW_NS).unwrap();
        let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
        let mut copying = Reader::open(directory.path(), CHANNEL).unwrap();
        let mut cursor = log.writer.end();
        let (mut read, mut published) = (0, 0);
        let (mut session, mut next) = (1_u8, 1);
        for step in steps {
            match step {
                Step::Write(payload, covered) => {
                    // Maintenance runs between any two entries, so no entry goes to private memory.
                    log.maintenance.run_once(NOW_NS);
                    let written = WrittenEntry { session: [session; 16], first: next, next: next + covered, flags: 3, payload };
                    next += covered;
                    written.write(&mut log);
                    model.push(written);
                }
                Step::Abandon(payload) => {
                    log.maintenance.run_once(NOW_NS);
                    log.writer.begin([9; 16], 0);
                    prop_assert!(log.writer.append(&payload));
                    log.writer.abandon();
                }
                Step::NewSession => (session, next) = (session.wrapping_add(1), 1),
                Step::Maintain => drop(log.maintenance.run_once(NOW_NS)),
                Step::Read => {
                    let read_entries = read_all(&mut reader);
                    prop_assert_eq!(&read_entries, &model[read..]);
                    let (copied, error) = read_all_copied(&mut copying);
                    prop_assert!(error.is_none());
                    prop_assert_eq!(copied, read_entries);
                    read = model.len();
                    let mut pending = log.writer.pending(cursor).unwrap();
                    let sent: Vec<_> = pending.by_ref().map(|entry| WrittenEntry::from_entry(&entry)).collect();
                    prop_assert_eq!(&sent, &model[published..]);
                    cursor = pending.position();
                    published = model.len();
                    log.writer.release_before(cursor);
                }
                Step::Reopen => {
                    drop(log);
                    log = open(options.clone(), NOW_NS).unwrap();
                    let last = model.last().map(|written| (written.session, written.next));
                    prop_assert_eq!(log.recovered.last, last);
                    prop_assert_eq!(log.recovered.last_flags, model.last().map_or(0, |written| written.flags));
                    prop_assert_eq!(log.recovered.next_number, model.len() as u64);
                    prop_assert_eq!((log.recovered.damaged_segments, log.recovered.removed_files), (0, 0));
                    (cursor, published) = (log.writer.end(), model.len());
                }
            }
        }
        prop_assert_eq!(read_all(&mut Reader::open(directory.path(), CHANNEL).unwrap()), model);
        prop_assert_eq!((reader.lost_entries(), copying.lost_entries()), (0, 0));
        prop_assert_eq!(log.writer.counts().segments_not_ready, 0);
    }

    #[test]
    fn seeking_finds_the_same_entry_as_a_linear_scan(
        runs in prop::collection::vec((0_u64..120, 0_u64..3), 1..4),
        part_every in 1_u64..8,
        target_run in 0_usize..5,
        target in 0_u64..300,
        dropped_segments in 0_usize..4,
    ) {
        let directory = directory();
        let mut log = open(options(directory.path()), NOW_NS).unwrap();
        for (run, (count, step)) in runs.iter().enumerate() {
            let mut first = 1;
            for index in 0..*count {
                log.maintenance.run_once(NOW_NS);
                let covered = if index % part_every == 0 { 0 } else { *step };
                let session = [u8::try_from(run).unwrap(); 16];
                let payload = vec![0; usize::try_from(index % 256).unwrap()];
                WrittenEntry { session, first, next: first + covered, flags: 0, payload }.write(&mut log);
                first += covered;
            }
        }
        let session = [u8::try_from(target_run).unwrap(); 16];
        let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
        // What the reader remembers of the session does not outlive the removal of a segment.
        prop_assert!(reader.session_range(session).is_ok());
        let numbers = segment_numbers(directory.path()).unwrap();
        for number in numbers.iter().take(dropped_segments.min(numbers.len() - 2)) {
            fs::remove_file(segment_path(directory.path(), *number)).unwrap();
        }
        let available = read_all(&mut Reader::open(directory.path(), CHANNEL).unwrap());
        let of_session: Vec<_> = available.iter().filter(|entry| entry.session == session).collect();
        let range = of_session.first().map(|oldest| {
            let last = of_session[of_session.len() - 1];
            SessionRange { first: oldest.first, next: last.next, last_flags: last.flags }
        });
        prop_assert_eq!(reader.session_range(session).unwrap(), range);
        prop_assert_eq!(reader.session_range(session).unwrap(), range);
        let covers = |entry: &WrittenEntry| entry.session == session && (entry.next > target || entry.first >= target);
        let first_of_session = available.iter().position(|entry| entry.session == session);
        let (expected, index) = match (available.iter().position(covers), first_of_session) {
            (_, None) => (SeekResult::OldestAvailable, 0),
            (Some(index), Some(first)) if index == first && available[index].first > target => (SeekResult::OldestAvailable, index),
            (Some(index), _) => (SeekResult::Found, index),
            (None, _) => (SeekResult::NotYetWritten, 1 + available.iter().rposition(|entry| entry.session == session).unwrap()),
        };
        prop_assert_eq!(reader.seek(session, target).unwrap(), expected);
        prop_assert_eq!(read_all(&mut reader), &available[index..]);
    }
}

/// Writes a log of three entries in one segment. Returns the entries, the start of each, and the end of the last.
fn three_entries(directory: &Path) -> (Vec<WrittenEntry>, [usize; 4]) {
    let mut log = open(options(directory), NOW_NS).unwrap();
    let entries: Vec<_> = (1..=3).map(WrittenEntry::with_sequence).collect();
    let begins: Vec<_> = entries.iter().map(|entry| entry.write(&mut log).offset).collect();
    let end = log.writer.end().offset;
    let at = |offset: u64| usize::try_from(offset).unwrap();
    (entries, [at(begins[0]), at(begins[1]), at(begins[2]), at(end)])
}

#[test]
fn a_log_truncated_at_any_byte_opens_up_to_its_last_whole_entry_and_continues() {
    let source = directory();
    let (entries, [_, _, last, end]) = three_entries(source.path());
    let image = fs::read(segment_path(source.path(), 1)).unwrap();
    for cut in last..=end + 8 {
        let target = directory();
        fs::write(segment_path(target.path(), 1), &image[..cut]).unwrap();
        let whole = if cut < end { 2 } else { 3 };
        let mut log = open(options(target.path()), NOW_NS).unwrap();
        assert_eq!(log.recovered.last, Some(([1; 16], whole as u64 + 1)), "cut at {cut}");
        let after = WrittenEntry::with_sequence(100);
        after.write(&mut log);
        let mut expected = entries[..whole].to_vec();
        expected.push(after);
        assert_eq!(read_all(&mut Reader::open(target.path(), CHANNEL).unwrap()), expected, "cut at {cut}");
    }
}

#[test]
fn a_file_truncated_inside_its_header_or_index_is_removed() {
    let source = directory();
    let (_, [first, ..]) = three_entries(source.path());
    let image = fs::read(segment_path(source.path(), 1)).unwrap();
    for cut in [0, 1, 7, 8, 48, 56, 4095, 4096, 4100, first - 1] {
        let target = directory();
        fs::write(segment_path(target.path(), 1), &image[..cut]).unwrap();
        let mut log = open(options(target.path()), NOW_NS).unwrap();
        assert_eq!((log.recovered.removed_files, log.recovered.last), (1, None), "cut at {cut}");
        WrittenEntry::with_sequence(1).write(&mut log);
        assert_eq!(read_all(&mut Reader::open(target.path(), CHANNEL).unwrap()), [WrittenEntry::with_sequence(1)]);
    }
}

#[test]
fn a_writer_killed_at_any_byte_of_an_entry_leaves_the_entries_before_it() {
    let source = directory();
    let (entries, [_, _, last, end]) = three_entries(source.path());
    let image = fs::read(segment_path(source.path(), 1)).unwrap();
    // The commit word is stored last: until then it is 0, and any part of the rest may have been written.
    for written in last + 8..=end {
        let target = directory();
        let mut killed = image.clone();
        killed[last..last + 8].fill(0);
        killed[written..].fill(0);
        fs::write(segment_path(target.path(), 1), &killed).unwrap();
        let log = open(options(target.path()), NOW_NS).unwrap();
        assert_eq!((log.recovered.damaged_segments, log.recovered.next_number), (0, 2));
        assert_eq!(read_all(&mut Reader::open(target.path(), CHANNEL).unwrap()), &entries[..2]);
    }
}

#[test]
fn after_a_machine_crash_the_checksum_detects_any_torn_entry() {
    let source = directory();
    let (entries, [_, second, last, end]) = three_entries(source.path());
    let image = fs::read(segment_path(source.path(), 1)).unwrap();
    let mut found = 0;
    for position in second..end {
        let target = directory();
        let mut torn = image.clone();
        torn[position] ^= 0x10;
        fs::write(segment_path(target.path(), 1), &torn).unwrap();
        let log = open(options(target.path()), NOW_NS).unwrap();
        let whole = if position < last { 1 } else { 2 };
        let read_entries = read_all(&mut Reader::open(target.path(), CHANNEL).unwrap());
        if log.recovered.damaged_segments == 1 {
            found += 1;
            assert_eq!(read_entries, &entries[..whole], "byte {position}");
        } else {
            // Only padding is not covered.
            assert_eq!(read_entries, entries, "byte {position}");
        }
    }
    assert!(found > (end - second) * 9 / 10);
}

#[test]
fn entries_left_after_the_truncation_point_are_not_found() {
    let target = directory();
    let mut log = open(options(target.path()), NOW_NS).unwrap();
    let [_, second] = [1, 2].map(|sequence| WrittenEntry::with_sequence(sequence).write(&mut log));
    // A session's first entry gets an index slot.
    let next_session = WrittenEntry { session: [2; 16], ..WrittenEntry::with_sequence(1) };
    let stale_position = next_session.write(&mut log);
    drop(log);
    let path = segment_path(target.path(), stale_position.segment);
    let mut image = fs::read(&path).unwrap();
    // The commit word of the previous entry did not reach the disk.
    let cut = usize::try_from(second.offset).unwrap();
    image[cut..cut + 8].fill(0);
    fs::write(&path, &image).unwrap();
    let mut log = open(options(target.path()), NOW_NS).unwrap();
    assert_eq!(log.recovered.last, Some(([1; 16], 2)));
    next_session.write(&mut log);
    let behind = WrittenEntry { session: [2; 16], ..WrittenEntry::with_sequence(2) };
    behind.write(&mut log);
    let mut reader = Reader::open(target.path(), CHANNEL).unwrap();
    let range = SessionRange { first: 1, next: 3, last_flags: 0 };
    assert_eq!(reader.session_range([2; 16]).unwrap(), Some(range));
    assert_eq!(reader.seek([2; 16], 0).unwrap(), SeekResult::OldestAvailable);
    assert_eq!(read_all(&mut reader), [next_session, behind]);
    assert!(!reader.seek_position(stale_position).unwrap(), "its place is gone");
}

#[test]
fn without_checksum_a_torn_payload_is_not_detected() {
    let target = directory();
    let options = LogOptions { checksum: Checksum::Off, ..options(target.path()) };
    let mut log = open(options.clone(), NOW_NS).unwrap();
    let position = WrittenEntry::with_sequence(1).write(&mut log);
    drop(log);
    let path = segment_path(target.path(), 1);
    let mut torn = fs::read(&path).unwrap();
    torn[usize::try_from(position.offset).unwrap() + 64] ^= 1;
    fs::write(&path, &torn).unwrap();
    let log = open(options, NOW_NS).unwrap();
    assert_eq!((log.recovered.damaged_segments, log.recovered.next_number), (0, 1));
}

#[test]
fn seek_end_is_after_the_last_entry() {
    let directory = directory();
    let mut log = open(options(directory.path()), NOW_NS).unwrap();
    for sequence in 1..=200 {
        let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
        reader.seek_end().unwrap();
        assert_eq!(reader.next(), None, "before {sequence}");
        log.maintenance.run_once(NOW_NS);
        WrittenEntry::with_sequence(sequence).write(&mut log);
        assert_eq!(read_all(&mut reader), [WrittenEntry::with_sequence(sequence)]);
    }
    assert!(log.writer.counts().segments > 2);
}

#[test]
fn a_log_has_one_writer_at_a_time() {
    let directory = directory();
    let log = open(options(directory.path()), NOW_NS).unwrap();
    let refused = open(options(directory.path()), NOW_NS).unwrap_err();
    assert!(matches!(refused, LogError::Busy { .. }), "{refused}");
    drop(log);
    open(options(directory.path()), NOW_NS).unwrap();
}

#[test]
fn a_reader_of_another_channel_is_refused() {
    let directory = directory();
    let _log = open(options(directory.path()), NOW_NS).unwrap();
    let refused = Reader::open(directory.path(), CHANNEL + 1).unwrap_err();
    assert!(matches!(refused, LogError::ForeignSegment { .. }), "{refused}");
}

#[test]
fn inconsistent_sizes_are_refused() {
    let directory = directory();
    for (segment_bytes, payload_bytes_max) in [(12_289, 256), (4_096, 256), (12_288, 8_000), (8 << 30, 256)] {
        let options = LogOptions { segment_bytes, payload_bytes_max, ..options(directory.path()) };
        assert!(matches!(open(options, NOW_NS).unwrap_err(), LogError::Sizes { .. }));
    }
}

/// Maintenance never runs, as if starved: two segments, then private memory.
#[test]
fn without_a_ready_segment_publishing_continues_and_readers_count_lost_entries() {
    let directory = directory();
    let mut log = open(options(directory.path()), NOW_NS).unwrap();
    let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
    let mut cursor = log.writer.end();
    let mut published = 0;
    for sequence in 1..=2_000 {
        WrittenEntry::with_sequence(sequence).write(&mut log);
        let mut pending = log.writer.pending(cursor).unwrap();
        for entry in pending.by_ref() {
            published += 1;
            assert_eq!(WrittenEntry::from_entry(&entry), WrittenEntry::with_sequence(published));
        }
        cursor = pending.position();
        log.writer.release_before(cursor);
    }
    assert_eq!(published, 2_000);
    let writer_counts = *log.writer.counts();
    assert!(writer_counts.segments_not_ready > 2 && writer_counts.entries_private > 1_000, "{writer_counts:?}");
    assert_eq!(writer_counts.areas_evicted, 0, "the publisher kept up");
    let before = read_all(&mut reader).len() as u64;
    assert_eq!(before + writer_counts.entries_private, 2_000);
    assert_eq!(reader.lost_entries(), 0, "nothing came after it yet");

    log.maintenance.run_once(NOW_NS);
    let after = WrittenEntry::with_sequence(2_001);
    after.write(&mut log);
    assert_eq!(read_all(&mut reader), [after]);
    assert_eq!(reader.lost_entries(), writer_counts.entries_private);
}

/// While the log has no file, three sessions end. Each end is in the next file, once; the publisher sends it once.
#[test]
fn a_lasting_entry_in_private_memory_is_repeated_in_the_next_file_and_not_published_again() {
    let directory = directory();
    let mut log = open(options(directory.path()), NOW_NS).unwrap();
    let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
    let mut cursor = log.writer.end();
    let mut written = Vec::new();
    let mut sequence = 0;
    while log.writer.counts().entries_private == 0 {
        sequence += 1;
        written.push(WrittenEntry::with_sequence(sequence));
        written.last().unwrap().write(&mut log);
    }
    let end_of =
        |session: u8, next| WrittenEntry { session: [session; 16], first: next, next, flags: 7, payload: vec![] };
    let ends = [end_of(1, sequence + 1), end_of(2, 1), end_of(3, 1)];
    for end in &ends {
        log.writer.begin(end.session, end.first);
        log.writer.commit_lasting(end.next, end.flags, NOW_NS).unwrap();
        written.push(end.clone());
    }
    let filed = read_all(&mut reader);
    assert_eq!(filed, written[..filed.len()], "no end is in a file yet");
    log.maintenance.run_once(NOW_NS);
    let after = WrittenEntry { session: [4; 16], ..WrittenEntry::with_sequence(1) };
    after.write(&mut log);
    log.writer.begin([4; 16], 2);
    log.writer.commit_lasting(2, 7, NOW_NS).unwrap();
    let in_file = end_of(4, 2);
    written.extend([after.clone(), in_file.clone()]);
    assert_eq!(read_all(&mut reader), [&ends[..], &[after, in_file]].concat());
    let mut pending = log.writer.pending(cursor).unwrap();
    let published: Vec<_> = pending.by_ref().map(|entry| WrittenEntry::from_entry(&entry)).collect();
    assert_eq!(published, written);
    cursor = pending.position();
    assert_eq!(cursor, log.writer.end());
    let range = SessionRange { first: 1, next: sequence + 1, last_flags: 7 };
    assert_eq!(reader.session_range([1; 16]).unwrap(), Some(range));
    let at = log.writer.pending_before([3; 16], 2).expect("private memory has it");
    assert_eq!(log.writer.pending(at).unwrap().next().map(|entry| entry.session), Some([3; 16]));
}

#[test]
fn a_slow_publisher_loses_the_oldest_entries_and_is_counted() {
    let directory = directory();
    let mut log = open(options(directory.path()), NOW_NS).unwrap();
    let start = log.writer.end();
    for sequence in 1..=2_000 {
        WrittenEntry::with_sequence(sequence).write(&mut log);
    }
    assert!(log.writer.counts().areas_evicted > 0);
    assert!(log.writer.pending(start).is_none());
    let rest: Vec<_> = log.writer.pending(log.writer.oldest_pending()).unwrap().collect();
    assert!(rest.len() > 10);
    let first = rest[0].first;
    assert!(rest.iter().zip(first..).all(|(entry, sequence)| entry.first == sequence));
    assert_eq!(rest[rest.len() - 1].first, 2_000);
}

#[test]
fn retention_by_size_removes_the_oldest_and_mapped_segments_stay_readable() {
    for directory in directories() {
        let bytes_max = 4 * (12 << 10);
        let retention = Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max };
        let mut log = open(LogOptions { retention, ..options(directory.path()) }, NOW_NS).unwrap();
        let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
        let mut written = 0;
        while log.maintenance.counts().removed < 3 {
            written += 1;
            log.maintenance.run_once(NOW_NS);
            assert!(log.maintenance.bytes() <= bytes_max);
            WrittenEntry::with_sequence(written).write(&mut log);
        }
        let read_entries = read_all(&mut reader);
        // The whole first segment, although it was removed; then the remaining entries.
        let first_gap = read_entries.windows(2).position(|pair| pair[1].first != pair[0].first + 1).unwrap();
        assert!(first_gap > 10);
        let missing = read_entries[first_gap + 1].first - read_entries[first_gap].first - 1;
        assert_eq!(reader.lost_entries(), missing);
        assert_eq!(read_entries.last().unwrap().first, written);
        assert_eq!(reader.seek([1; 16], 1).unwrap(), SeekResult::OldestAvailable);
        assert_eq!(reader.next().unwrap().first, read_entries[first_gap + 1].first);
    }
}

#[test]
fn protected_segments_are_retained_up_to_a_limit() {
    for directory in directories() {
        let segment = 12 << 10;
        let retention = Retention { bytes_max: 4 * segment, age_ns_max: None, protected_bytes_max: 8 * segment };
        let mut log = open(LogOptions { retention, ..options(directory.path()) }, NOW_NS).unwrap();
        log.maintenance.retention_hold().set(Some(log.writer.end()));
        let mut sequence = 0;
        while log.maintenance.bytes() < 8 * segment {
            sequence += 1;
            log.maintenance.run_once(NOW_NS);
            WrittenEntry::with_sequence(sequence).write(&mut log);
            assert_eq!(log.maintenance.counts().removed, 0);
        }
        while log.maintenance.counts().removed == 0 {
            sequence += 1;
            log.maintenance.run_once(NOW_NS);
            WrittenEntry::with_sequence(sequence).write(&mut log);
        }
        assert_eq!(log.maintenance.counts().protected_removed, 1);
        log.maintenance.retention_hold().set(None);
        log.maintenance.run_once(NOW_NS);
        assert_eq!(log.maintenance.bytes(), 4 * segment);
        assert_eq!(log.maintenance.counts().protected_removed, 1);
    }
}

#[test]
fn retention_by_age_unlinks_old_segments() {
    for directory in directories() {
        let retention = Retention { age_ns_max: Some(1_000), ..options(directory.path()).retention };
        let mut log = open(LogOptions { retention, ..options(directory.path()) }, NOW_NS).unwrap();
        let mut sequence = 0;
        while log.writer.counts().segments < 3 {
            sequence += 1;
            log.maintenance.run_once(NOW_NS);
            WrittenEntry::with_sequence(sequence).write(&mut log);
        }
        log.maintenance.run_once(NOW_NS);
        log.maintenance.run_once(NOW_NS + 1_000);
        assert_eq!(log.maintenance.counts().removed, 0);
        log.maintenance.run_once(NOW_NS + 1_001);
        let left = segment_numbers(directory.path()).unwrap();
        assert_eq!(left.len(), 2, "the current one and the next: {left:?}");
    }
}

#[test]
fn maintenance_that_cannot_create_segments_counts_failures_and_retries() {
    let directory = directory();
    let mut log = open(options(directory.path()), NOW_NS).unwrap();
    let hidden = directory.path().with_extension("hidden");
    fs::rename(directory.path(), &hidden).unwrap();
    for sequence in 1..=500 {
        log.maintenance.run_once(NOW_NS);
        WrittenEntry::with_sequence(sequence).write(&mut log);
    }
    assert!(log.maintenance.counts().failures > 0 && log.writer.counts().entries_private > 0);
    fs::rename(&hidden, directory.path()).unwrap();
    log.maintenance.run_once(NOW_NS);
    let after = WrittenEntry::with_sequence(501);
    after.write(&mut log);
    let read_entries = read_all(&mut Reader::open(directory.path(), CHANNEL).unwrap());
    assert_eq!(read_entries.last(), Some(&after));
}

#[test]
fn readers_in_other_threads_see_every_entry_while_segments_are_created_and_removed() {
    const ENTRIES: u64 = 20_000;
    for directory in directories() {
        let retention = Retention { bytes_max: 4 * (12 << 10), age_ns_max: None, protected_bytes_max: 0 };
        let mut log = open(LogOptions { retention, ..options(directory.path()) }, NOW_NS).unwrap();
        std::thread::scope(|scope| {
            let readers = [0, 1].map(|_| {
                scope.spawn(|| {
                    let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
                    let (mut read, mut last, mut begun_at) = (0, 0, None);
                    while last < ENTRIES {
                        let Some(entry) = reader.next() else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert!(entry.first > last);
                        assert_eq!(WrittenEntry::from_entry(&entry), WrittenEntry::with_sequence(entry.first));
                        (read, last) = (read + 1, entry.first);
                        begun_at.get_or_insert(entry.first);
                    }
                    // Every entry that the reader did not read since its start is counted as lost.
                    assert_eq!(read + reader.lost_entries(), ENTRIES + 1 - begun_at.unwrap());
                })
            });
            for sequence in 1..=ENTRIES {
                log.maintenance.run_once(NOW_NS);
                WrittenEntry::with_sequence(sequence).write(&mut log);
            }
            for reader in readers {
                reader.join().unwrap();
            }
        });
        assert!(log.maintenance.counts().removed > 50);
        assert!(log.maintenance.counts().reused > 0 || directory.path().starts_with(std::env::temp_dir()));
    }
}

#[test]
fn in_memory_the_removed_segment_becomes_the_next_one() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let bytes_max = 6 * (12 << 10);
    let retention = Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max };
    let mut log = open(LogOptions { retention, ..options(directory.path()) }, NOW_NS).unwrap();
    let inodes = || -> BTreeSet<u64> {
        let files = fs::read_dir(directory.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().ino()).collect()
    };
    let mut seen = BTreeSet::new();
    let mut written = 0;
    while log.maintenance.counts().removed < 50 {
        written += 1;
        log.maintenance.run_once(NOW_NS);
        assert!(log.maintenance.bytes() <= bytes_max);
        WrittenEntry::with_sequence(written).write(&mut log);
        log.writer.release_before(log.writer.end());
        seen.extend(inodes());
    }
    // All but the first lap, in which the writer still keeps old segments, and the lock file.
    let counts = *log.maintenance.counts();
    assert_eq!((counts.failures, counts.no_space), (0, 0));
    assert!(counts.reused > 40 && seen.len() < 15, "{counts:?}, {} files", seen.len());
    let read_entries = read_all(&mut Reader::open(directory.path(), CHANNEL).unwrap());
    assert!(read_entries.windows(2).all(|pair| pair[1].first == pair[0].first + 1));
    assert_eq!(read_entries.last().unwrap().first, written);
    drop(log);
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().ends_with("unfinished")), "{left:?}");
    // What earlier segments left in reused files is not found.
    let log = open(options(directory.path()), NOW_NS).unwrap();
    assert_eq!((log.recovered.damaged_segments, log.recovered.last), (0, Some(([1; 16], written + 1))));
    assert_eq!(read_all(&mut Reader::open(directory.path(), CHANNEL).unwrap()), read_entries);
}

/// This run does not map the segments of earlier runs, so it cannot reuse them.
#[test]
fn in_memory_the_removed_segments_of_an_earlier_run_are_unlinked() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let bytes_max = 6 * (12 << 10);
    let retention = Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max };
    let options = LogOptions { retention, ..options(directory.path()) };
    let mut sequence = 0;
    for _run in 0..3 {
        let mut log = open(options.clone(), NOW_NS).unwrap();
        while log.maintenance.counts().removed < 12 {
            sequence += 1;
            log.maintenance.run_once(NOW_NS);
            let files = fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
            // One more for a segment that the writer still mapped when it was set aside.
            assert!(files.sum::<u64>() <= bytes_max + (12 << 10), "at {sequence}");
            WrittenEntry::with_sequence(sequence).write(&mut log);
            log.writer.release_before(log.writer.end());
        }
        assert!(log.maintenance.counts().reused >= 4, "{:?}", log.maintenance.counts());
    }
}

#[test]
fn segments_of_the_version_before_are_read_but_their_readers_are_refused() {
    let target = directory();
    let (entries, _) = three_entries(target.path());
    let path = segment_path(target.path(), 1);
    let image = fs::read(&path).unwrap();
    let with_version = |version: u8| {
        let mut image = image.clone();
        image[8] = version;
        let crc = crc32c::crc32c(&image[..48]);
        image[48..56].copy_from_slice(&u64::from(crc).to_le_bytes());
        image
    };
    assert_eq!(image, with_version(2), "readers of version 1 refuse what is written now");
    fs::write(&path, with_version(1)).unwrap();
    let mut log = open(options(target.path()), NOW_NS).unwrap();
    let after = WrittenEntry::with_sequence(4);
    after.write(&mut log);
    drop(log);
    assert_eq!(read_all(&mut Reader::open(target.path(), CHANNEL).unwrap()), [&entries[..], &[after]].concat());
    for version in [0, 3] {
        fs::write(&path, with_version(version)).unwrap();
        let refused = open(options(target.path()), NOW_NS).unwrap_err();
        assert!(matches!(refused, LogError::ForeignSegment { .. }), "{refused}");
    }
}

#[test]
fn a_segment_that_a_reader_maps_is_not_reused() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let bytes_max = 4 * (12 << 10);
    let retention = Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max };
    let mut log = open(LogOptions { retention, ..options(directory.path()) }, NOW_NS).unwrap();
    WrittenEntry::with_sequence(1).write(&mut log);
    let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
    let entry = reader.peek().unwrap();
    for sequence in 2.. {
        log.maintenance.run_once(NOW_NS);
        WrittenEntry::with_sequence(sequence).write(&mut log);
        log.writer.release_before(log.writer.end());
        assert_eq!(WrittenEntry::from_entry(&entry), WrittenEntry::with_sequence(1));
        if log.maintenance.counts().reused > 20 {
            break;
        }
    }
    assert_eq!(reader.next().map(|entry| entry.first), Some(1));
}

/// A umask would give less or more; the modes and the group are those of the option.
#[test]
fn a_log_of_a_reader_group_is_open_to_that_group_alone() {
    for root in directories() {
        let group = fs::metadata(root.path()).unwrap().gid();
        let logs = root.path().join("logs");
        create_log_root(&logs, Some(ReaderGroup(group))).unwrap();
        let with = |reader_group| LogOptions { reader_group, ..options(&logs.join("7")) };
        // An earlier run without a group.
        let mut log = open(with(None), NOW_NS).unwrap();
        WrittenEntry::with_sequence(1).write(&mut log);
        drop(log);
        let mut log = open(with(Some(ReaderGroup(group))), NOW_NS).unwrap();
        for sequence in 2..200 {
            log.maintenance.run_once(NOW_NS);
            WrittenEntry::with_sequence(sequence).write(&mut log);
        }
        let access = |path: &Path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.mode() & 0o7777, metadata.gid())
        };
        for directory in [&logs, &logs.join("7")] {
            assert_eq!(access(directory), (0o750, group));
        }
        assert_eq!(access(&logs.join("7/writer.lock")).0, 0o600, "whoever may read it may lock it");
        let segments = segment_numbers(&logs.join("7")).unwrap();
        assert!(segments.len() > 3);
        for number in segments {
            assert_eq!(access(&segment_path(&logs.join("7"), number)), (0o640, group));
        }
        // A directory that lets the group in already, such as one of the system, is not changed.
        fs::set_permissions(&logs, fs::Permissions::from_mode(0o1777)).unwrap();
        create_log_root(&logs, Some(ReaderGroup(group))).unwrap();
        assert_eq!(access(&logs).0, 0o1777);
    }
}

#[test]
fn a_log_that_took_the_place_of_a_removed_or_renamed_one_is_read_from_its_beginning() {
    for (root, is_renamed) in directories().into_iter().zip([true, false]) {
        let directory = root.path().join("log");
        let mut log = open(options(&directory), NOW_NS).unwrap();
        WrittenEntry::with_sequence(1).write(&mut log);
        let mut reader = Reader::open(&directory, CHANNEL).unwrap();
        let nothing_follows = |reader: &mut Reader| {
            let (entries, error) = read_all_copied(reader);
            entries.is_empty() && error.is_none()
        };
        assert_eq!(read_all_copied(&mut reader).0.len(), 1);
        assert!(!reader.is_replaced().unwrap());
        drop(log);
        if is_renamed {
            fs::rename(&directory, root.path().join("kept")).unwrap();
        } else {
            fs::remove_dir_all(&directory).unwrap();
        }
        assert!(nothing_follows(&mut reader) && !reader.is_replaced().unwrap(), "there is no other log yet");
        fs::create_dir(&directory).unwrap();
        assert!(nothing_follows(&mut reader) && !reader.is_replaced().unwrap(), "its directory is there first");
        let mut log = open(options(&directory), NOW_NS).unwrap();
        WrittenEntry::with_sequence(9).write(&mut log);
        assert!(nothing_follows(&mut reader) && reader.is_replaced().unwrap());
        reader.seek_oldest().unwrap();
        assert_eq!(read_all_copied(&mut reader).0, [WrittenEntry::with_sequence(9)]);
        assert!(!reader.is_replaced().unwrap());
    }
}
