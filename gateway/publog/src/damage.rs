//! What a damaged log gives to its readers: never anything but entries that were committed, each with its bytes.
//!
//! SIGKILL loses nothing of a mapped file, so a power loss is imitated: each page of the files is that of some earlier
//! moment, or zero, since the kernel writes pages in any order. A disk that loses pages that it had reported as written, or
//! writes them elsewhere, is not imitated.

use std::{env, fs, os::unix::fs::FileExt as _, path::Path};

use crate::{
    Checksum, LogError, LogOptions, Reader,
    directory::{segment_numbers, segment_path},
    model::{CHANNEL, NOW_NS, WrittenEntry, directory, options, read_all, read_all_copied},
    open,
};

const PAGE_BYTES: usize = 4_096;
const ENTRIES: u64 = 70;

/// The files of a log, by segment number, after some entry.
type Images = Vec<(u64, Vec<u8>)>;

/// Writes [`ENTRIES`] entries, and returns the files after each of them.
fn write_log(options: &LogOptions) -> Vec<Images> {
    let mut log = open(options.clone(), NOW_NS).unwrap();
    let mut moments = vec![images(&options.directory)];
    for sequence in 1..=ENTRIES {
        log.maintenance.run_once(NOW_NS);
        WrittenEntry::with_sequence(sequence).write(&mut log);
        moments.push(images(&options.directory));
    }
    assert_eq!(log.writer.counts().segments, 1, "one sealed segment, and the current one");
    moments
}

fn images(directory: &Path) -> Images {
    let numbers = segment_numbers(directory).unwrap();
    numbers.into_iter().map(|number| (number, fs::read(segment_path(directory, number)).unwrap())).collect()
}

fn restore(directory: &Path, images: &Images) {
    for (number, image) in images {
        fs::write(segment_path(directory, *number), image).unwrap();
    }
}

/// The entries that readers get; an error unless each is one that was written, in order. `None`: refused.
fn served(directory: &Path, is_truncated: bool) -> Result<Option<Vec<u64>>, String> {
    let mut reader = match Reader::open(directory, CHANNEL) {
        Ok(reader) => reader,
        Err(LogError::NotASegment { .. } | LogError::ForeignSegment { .. }) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut sequences = Vec::new();
    for entry in read_all(&mut reader) {
        if entry != WrittenEntry::with_sequence(entry.first)
            || sequences.last().is_some_and(|last| *last >= entry.first)
        {
            return Err(format!("served after {:?}: {entry:?}", sequences.last()));
        }
        sequences.push(entry.first);
    }
    let mut copying = Reader::open(directory, CHANNEL).map_err(|error| error.to_string())?;
    let (copied, error) = read_all_copied(&mut copying);
    if !copied.iter().map(|entry| entry.first).eq(sequences.iter().copied()) {
        return Err(format!("served {} entries, copied {}: {error:?}", sequences.len(), copied.len()));
    }
    // Every way to an entry keeps the promise, index and end too. Until a writer has truncated the log, the index may lead to
    // intact entries behind a damaged one.
    let is_right = |sequence: u64| sequences.contains(&sequence) || !is_truncated && (1..=ENTRIES).contains(&sequence);
    for sequence in [1, 30, ENTRIES] {
        match reader.seek([1; 16], sequence) {
            // Another segment has a damaged header: refused, until a writer removes it.
            Err(LogError::NotASegment { .. } | LogError::ForeignSegment { .. }) if !is_truncated => continue,
            sought => sought.map_err(|error| error.to_string())?,
        };
        let found = reader.peek().map(|entry| WrittenEntry::from_entry(&entry));
        if found
            .as_ref()
            .is_some_and(|found| *found != WrittenEntry::with_sequence(found.first) || !is_right(found.first))
        {
            return Err(format!("sought {sequence}, served {found:?}"));
        }
    }
    let last = match reader.last_entry() {
        Err(LogError::NotASegment { .. } | LogError::ForeignSegment { .. }) if !is_truncated => None,
        last => last.map_err(|error| error.to_string())?,
    };
    if last.is_some_and(|(_, next)| !is_right(next - 1)) {
        return Err(format!("last entry {last:?}"));
    }
    Ok(Some(sequences))
}

/// Reads a damaged log, opens it for writing and reads it again. Returns what readers get then, and whether the damage was
/// noticed; `None`: opening was refused.
fn reopened(options: &LogOptions) -> Result<Option<(Vec<u64>, bool)>, String> {
    served(&options.directory, false)?;
    let before = images(&options.directory);
    let log = match open(options.clone(), NOW_NS) {
        Ok(log) => log,
        Err(LogError::ForeignSegment { .. }) if images(&options.directory) == before => return Ok(None),
        Err(error) => return Err(format!("refused: {error}")),
    };
    let is_noticed = log.recovered.damaged_segments + log.recovered.removed_files > 0;
    let last = log.recovered.last.map(|(_, next)| next - 1);
    drop(log);
    let sequences = served(&options.directory, true)?.ok_or("an opened log cannot be read")?;
    if sequences.last().copied() != last {
        return Err(format!("opened with {last:?}, served through {:?}", sequences.last()));
    }
    Ok(Some((sequences, is_noticed)))
}

/// Changes one byte after the other in both segments. Returns the first finding.
fn change_each_byte(checksum: Checksum) -> Result<(), String> {
    let source = directory();
    let options = LogOptions { checksum, ..options(source.path()) };
    let moments = write_log(&options);
    let whole = &moments[moments.len() - 1][..2];
    let target = directory();
    let options = LogOptions { directory: target.path().to_owned(), ..options };
    for (index, (number, image)) in whole.iter().enumerate() {
        // Each byte that is not zero, and a share of the zeros: most are padding, or behind the end.
        let end = image.iter().rposition(|byte| *byte != 0).unwrap() + 16;
        let is_chosen =
            |at: &usize| image[*at] != 0 || at.is_multiple_of(if *at > PAGE_BYTES && *at < end { 7 } else { 61 });
        for position in (0..image.len()).filter(is_chosen) {
            restore(target.path(), &whole.to_vec());
            let file = fs::File::options().write(true).open(segment_path(target.path(), *number)).unwrap();
            // One bit, or all of them.
            let mask = if position.is_multiple_of(3) { 0xff } else { 1 << (position % 8) };
            file.write_all_at(&[image[position] ^ mask], position as u64).unwrap();
            let context = |error| format!("segment {number}, byte {position}: {error}");
            served(target.path(), false).map_err(context)?;
            // Opening makes new segments, which takes most of the time.
            if position > 64 && !position.is_multiple_of(5) {
                continue;
            }
            let found = reopened(&options).map_err(context)?;
            if let Some((sequences, is_noticed)) = found {
                let is_all = sequences.len() as u64 == ENTRIES;
                if !is_all && !is_noticed {
                    return Err(format!("segment {number}, byte {position}: lost entries without a word"));
                }
                // Damage in one segment costs nothing of the other.
                let others =
                    if index == 0 { sequences.last() == Some(&ENTRIES) } else { sequences.first() == Some(&1) };
                if !others {
                    return Err(format!("segment {number}, byte {position}: only {sequences:?}"));
                }
            }
            for number in segment_numbers(target.path()).unwrap() {
                fs::remove_file(segment_path(target.path(), number)).unwrap();
            }
        }
    }
    Ok(())
}

#[test]
fn a_log_with_any_byte_changed_serves_only_what_was_committed_or_is_refused() {
    change_each_byte(Checksum::Crc32c).unwrap();
}

#[test]
fn without_checksums_a_changed_byte_is_found_by_this_check() {
    let found = change_each_byte(Checksum::Off).unwrap_err();
    assert!(found.contains("served"), "{found}");
}

/// Loses power at a random moment: each page is as it was at some moment before, or zero; a file may end early. Returns the
/// first finding.
fn lose_power(checksum: Checksum, seeds: u64) -> Result<(), String> {
    let source = directory();
    let source_options = LogOptions { checksum, ..options(source.path()) };
    let moments = write_log(&source_options);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let target = directory();
        let options = LogOptions { directory: target.path().to_owned(), ..source_options.clone() };
        let moment = random.below(moments.len());
        for (number, image) in &moments[moment] {
            let mut mixed = image.clone();
            for (page, bytes) in mixed.chunks_mut(PAGE_BYTES).enumerate() {
                let at = page * PAGE_BYTES;
                let earlier = &moments[moment - random.below(moment.min(40) + 1)];
                let old = earlier.iter().find(|(other, _)| other == number);
                match (random.below(8), old) {
                    // Never written, or written in parts: sectors of 512 bytes.
                    (0, _) => bytes.fill(0),
                    (1, Some((_, old))) => {
                        for (sector, bytes) in bytes.chunks_mut(512).enumerate() {
                            if random.below(2) == 0 {
                                bytes.copy_from_slice(&old[at + 512 * sector..][..512]);
                            }
                        }
                    }
                    (2..=5, Some((_, old))) => bytes.copy_from_slice(&old[at..at + bytes.len()]),
                    _ => {}
                }
            }
            if random.below(10) == 0 {
                mixed.truncate(PAGE_BYTES * random.below(image.len() / PAGE_BYTES + 1));
            }
            fs::write(segment_path(target.path(), *number), mixed).unwrap();
        }
        let found = reopened(&options).map_err(|error| format!("SEED={seed}: {error}"))?;
        if found.is_none() {
            return Err(format!("SEED={seed}: refused"));
        }
    }
    Ok(())
}

#[test]
fn after_a_power_loss_a_log_serves_only_what_was_committed() {
    let seeds = env::var("SEEDS").map_or(300, |seeds| seeds.parse().unwrap());
    lose_power(Checksum::Crc32c, seeds).unwrap();
}

#[test]
fn without_checksums_a_power_loss_is_found_by_this_check() {
    let found = lose_power(Checksum::Off, 300).unwrap_err();
    assert!(found.contains("served"), "{found}");
}

#[test]
fn a_segment_of_another_channel_or_version_is_refused_and_nothing_is_changed() {
    let source = directory();
    let moments = write_log(&options(source.path()));
    let refused = |options: LogOptions, expected: &str| {
        let before = images(&options.directory);
        let error = open(options.clone(), NOW_NS).unwrap_err();
        assert!(matches!(error, LogError::ForeignSegment { .. }) && error.to_string().contains(expected), "{error}");
        assert_eq!(images(&options.directory), before);
    };
    refused(LogOptions { channel: CHANNEL + 1, ..options(source.path()) }, "another channel");
    let mut other_version = moments[moments.len() - 1].clone();
    other_version[1].1[8] += 1;
    restore(source.path(), &other_version);
    refused(options(source.path()), "another version");
    restore(source.path(), &moments[moments.len() - 1]);
    let renamed = segment_path(source.path(), 9);
    fs::copy(segment_path(source.path(), 1), &renamed).unwrap();
    refused(options(source.path()), "its number");
    fs::remove_file(renamed).unwrap();
    assert_eq!(open(options(source.path()), NOW_NS).unwrap().recovered.next_number, ENTRIES);
}

/// A checksum is a large part of what reading takes. A seek may come back years later, so it checks again.
#[test]
fn an_entry_that_a_look_ahead_found_intact_is_checked_once() {
    let directory = directory();
    let mut log = open(options(directory.path()), NOW_NS).unwrap();
    log.maintenance.run_once(NOW_NS);
    WrittenEntry::with_sequence(1).write(&mut log);
    let mut reader = Reader::open(directory.path(), CHANNEL).unwrap();
    let begin = reader.position();
    let end = reader.peek().unwrap().end;
    let file = fs::File::options().write(true).open(segment_path(directory.path(), end.segment)).unwrap();
    // `next` and its neighbours follow the commit word; this is the time of the commit.
    file.write_all_at(&[0xff], begin.offset + 6 * 8).unwrap();
    assert_eq!(reader.next().map(|entry| entry.first), Some(1));
    reader.seek_oldest().unwrap();
    assert_eq!(reader.peek(), None);
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % end as u64).unwrap()
    }
}
