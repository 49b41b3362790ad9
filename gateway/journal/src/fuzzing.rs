//! Entry point of a fuzz target in `gateway/fuzz`. Compiled only with `--cfg fuzzing`, and for tests.

use std::{fs, path::Path};

use mdgw_wire::{identity::Feed, time::TradingDate};

use crate::{
    journal_file::{Cut, JournalFile, Reopened},
    names::ENTRY_BYTES,
    paths::{JournalName, JournalPaths},
    records::JournalRecords,
};

/// Opens a journal with four records whose names file is `input`. The first byte of `input` says whether checksums are made valid
/// before, so that the code behind them is reached. `folder` is for the files, and is emptied. Returns whether the journal was opened and
/// closed.
///
/// # Panics
/// When what was opened and cut is cut again the next time.
pub fn journal_names(input: &[u8], folder: &Path) -> bool {
    let Some((mode, names)) = input.split_first() else { return false };
    let mut is_closed = false;
    let mut names = names.to_vec();
    let records: Vec<u8> = (0..4).flat_map(record).collect();
    if mode % 2 == 0 {
        seal(&mut names, &records);
    }
    let paths = paths(folder);
    let metadata_bytes = 120_u32;
    let data = [&b"DBN\x03"[..], &metadata_bytes.to_le_bytes(), &[0; 120], &records].concat();
    write(&paths, &names, &data);
    if let Ok(Reopened::Open(file, _)) = JournalFile::reopen(paths.clone()) {
        let positions = file.positions().clone();
        drop(file);
        match JournalFile::reopen(paths.clone()) {
            Ok(Reopened::Open(file, cut)) => {
                assert!(cut == Cut::default() && *file.positions() == positions, "the second cut finds nothing");
                if let Ok(closed) = file.close() {
                    is_closed = true;
                    read(&closed.path);
                }
            }
            // Nothing is left of a journal whose only batch was cut.
            Ok(Reopened::Empty) => assert!(positions.is_empty()),
            other => panic!("{other:?}"),
        }
    } else {
        read(&paths.open_data());
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    is_closed
}

/// A names file as the input of [`journal_names`], with valid checksums or without.
pub fn seed() -> Vec<u8> {
    use crate::names::{Checkpoint, Content, NameEntry, Run};
    use mdgw_feeds::channel::SchemaSet;
    use mdgw_wire::identity::{ChannelId, Session};

    let Some(date) = TradingDate::from_yyyymmdd(20_190_130) else { return Vec::new() };
    let session = Session { feed: Feed::NasdaqItch, date, restart: 0 };
    let mut bytes = vec![0];
    bytes.extend(Content { feed: Feed::NasdaqItch, schemas: SchemaSet::MBO, date }.header());
    for (batch, number) in (0_u64..2).zip([0, 2]) {
        let run = Run {
            channel: ChannelId(1),
            session,
            first: 1 + 2 * batch,
            part: 0,
            frame_count: 2,
            records_per_frame: 1,
            offset: batch * 112,
            bytes: 112,
        };
        let checkpoint = Checkpoint { data_bytes: (batch + 1) * 112, record_count: 2, ..Checkpoint::default() };
        bytes.extend(NameEntry::Run(run).to_bytes(number));
        bytes.extend(NameEntry::Checkpoint(checkpoint).to_bytes(number + 1));
    }
    bytes
}

/// Makes the checksums of header and entries valid, and those of the records that checkpoints declare.
fn seal(names: &mut [u8], records: &[u8]) {
    let mut batch_begin = 0;
    for (place, bytes) in names.chunks_exact_mut(ENTRY_BYTES).enumerate() {
        if let (CHECKPOINT, Some(number)) = (bytes[0], place.checked_sub(1)) {
            let end = bytes[40..48].first_chunk().map_or(0, |end| u64::from_le_bytes(*end));
            let end = usize::try_from(end).unwrap_or(usize::MAX);
            if let Some(batch) = records.get(batch_begin..end).filter(|_| number > 0) {
                bytes[56..60].copy_from_slice(&crc32c::crc32c(batch).to_le_bytes());
                batch_begin = end;
            }
        }
        let crc = crc32c::crc32c(&bytes[..60]);
        let crc = place.checked_sub(1).map_or(crc, |number| crc32c::crc32c_append(crc, &(number as u64).to_le_bytes()));
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn read(path: &Path) {
    let Ok(mut records) = JournalRecords::open(path) else { return };
    while let Ok(Some(_)) = records.next() {}
}

fn write(paths: &JournalPaths, names: &[u8], data: &[u8]) {
    fs::write(paths.open_names(), names).expect("the folder can be written to");
    fs::write(paths.open_data(), data).expect("the folder can be written to");
}

fn paths(folder: &Path) -> JournalPaths {
    let date = TradingDate::from_yyyymmdd(20_190_130).expect("a date");
    JournalName { date, schemas: "mbo".to_owned(), number: 1 }.paths(folder)
}

fn record(order_id: u64) -> Vec<u8> {
    dbn::MboMsg { order_id, ..dbn::MboMsg::default() }.as_ref().to_vec()
}

/// Kind of a checkpoint, in the first byte of an entry.
const CHECKPOINT: u8 = 6;

#[cfg(test)]
mod tests {
    use mdgw_captures::random::Random;

    use super::*;

    #[test]
    fn no_names_file_causes_a_panic() {
        // In memory: each round syncs its files.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let seed = seed();
        assert!(journal_names(&seed, folder.path()), "a negative control: what is valid is opened");
        let mut random = Random::new(1);
        let mut below = |limit: usize| usize::try_from(random.below(limit as u64)).unwrap();
        for _ in 0..4_000 {
            let mut input = seed.clone();
            for _ in 0..=below(4) {
                let at = below(input.len());
                match below(4) {
                    0 => input[at] ^= 1 << below(8),
                    1 => input[at] = [0, 1, 6, 0x7f, 0xff][below(5)],
                    2 => input.truncate(at.max(1)),
                    _ => {
                        let end = (at + 8).min(input.len());
                        input[at..end].fill([0, 0xff][below(2)]);
                    }
                }
            }
            journal_names(&input, folder.path());
        }
    }
}
