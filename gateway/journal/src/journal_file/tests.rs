use std::num::NonZeroU64;

use mdgw_captures::dbn_input::DbnInput;
use mdgw_wire::{identity::Feed, time::TradingDate};
use tempfile::TempDir;

use super::*;
use crate::{
    paths::{JournalId, JournalName},
    records::{JournalPlace, JournalRecords, JournalStep, NamedRecord},
};

const CHANNEL: ChannelId = ChannelId(3);

fn date() -> TradingDate {
    TradingDate::from_yyyymmdd(20_190_130).unwrap()
}

fn session() -> Session {
    Session { feed: Feed::NasdaqItch, date: date(), restart: 0 }
}

/// For tests that write thousands of files: a disk would write each of them out.
fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn journal_name() -> JournalName {
    JournalName { date: date(), schemas: "mbo".to_owned(), number: 1 }
}

fn paths(directory: &TempDir) -> JournalPaths {
    journal_name().paths(directory.path())
}

fn create(directory: &TempDir, instruments_max: u64) -> JournalFile {
    let content = Content { feed: Feed::NasdaqItch, schemas: SchemaSet::MBO, date: date() };
    JournalFile::create(paths(directory), content, instruments_max).unwrap()
}

/// Appends one message with that many records.
fn append(file: &mut JournalFile, sequence: u64, record_count: u16) {
    for index in 0..record_count {
        let order_id = sequence * 10 + u64::from(index);
        let hd = dbn::RecordHeader::new::<dbn::MboMsg>(dbn::enums::rtype::MBO, 2, 5, sequence);
        let record = dbn::MboMsg { hd, order_id, ts_recv: sequence, ..dbn::MboMsg::default() };
        file.record(record.as_ref());
    }
    let name = FrameName { channel: CHANNEL, session: session(), sequence, part: 0 };
    file.frame(name, record_count, usize::from(record_count) * size_of::<dbn::MboMsg>());
    let next = sequence + 1;
    let at = ChannelPosition { session: session(), next, next_part: 0, ts_recv_last: sequence, has_ended: false };
    file.set_position(CHANNEL, at);
}

/// Two batches of three messages; then nothing of a third one is written.
fn fill(directory: &TempDir) -> JournalFile {
    let mut file = create(directory, 10);
    file.symbol(session(), InstrumentId(7), b"AAPL");
    for sequence in 1..7 {
        append(&mut file, sequence, if sequence == 2 { 2 } else { 1 });
        if sequence % 3 == 0 {
            file.write(Durability::Synced).unwrap();
        }
    }
    append(&mut file, 7, 1);
    file
}

/// Names of the records in a journal: sequence and index.
fn names(path: &Path) -> Vec<(u64, u16, u64)> {
    let mut records = JournalRecords::open(path).unwrap();
    let mut names = Vec::new();
    while let Some(item) = records.next().unwrap() {
        if let NamedRecord::Record { sequence, index, bytes, .. } = item {
            let order_id = bytes[16..24].first_chunk().map(|id| u64::from_le_bytes(*id)).unwrap();
            names.push((sequence, index, order_id));
        }
    }
    names
}

fn reopened(paths: JournalPaths) -> JournalFile {
    match JournalFile::reopen(paths).unwrap() {
        Reopened::Open(file, _) => *file,
        other => panic!("{other:?}"),
    }
}

const FIRST_BATCH: [(u64, u16, u64); 4] = [(1, 0, 10), (2, 0, 20), (2, 1, 21), (3, 0, 30)];
const SECOND_BATCH: [(u64, u16, u64); 3] = [(4, 0, 40), (5, 0, 50), (6, 0, 60)];

#[test]
fn an_open_journal_is_a_valid_file_and_a_closed_one_has_its_symbols() {
    let directory = tempfile::tempdir().unwrap();
    let file = fill(&directory);
    let open = file.path();
    assert_eq!(names(&open), [FIRST_BATCH.as_slice(), &SECOND_BATCH].concat());
    assert_eq!(DbnInput::open(&open).unwrap().metadata().symbols, Vec::<String>::new());
    let closed = file.close().unwrap();
    assert_eq!((closed.record_count, closed.hole_count), (8, 0));
    assert_eq!(names(&closed.path).last(), Some(&(7, 0, 70)));
    let input = DbnInput::open(&closed.path).unwrap();
    assert_eq!(input.metadata().symbols, ["AAPL"]);
    assert_eq!((input.metadata().start, input.metadata().end.map(NonZeroU64::get)), (1, Some(8)));
    assert!(!open.exists());
}

/// Sequences and order ids of the wanted records behind a place, and the place behind them.
fn wanted(records: &mut JournalRecords, is_wanted: impl Fn(&Run) -> bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    loop {
        match records.step(&is_wanted).unwrap() {
            JournalStep::Item(NamedRecord::Record { sequence, bytes, .. }) => {
                found.push((sequence, bytes[16..24].first_chunk().map(|id| u64::from_le_bytes(*id)).unwrap()));
            }
            JournalStep::Item(_) | JournalStep::Skipped => {}
            JournalStep::End => return found,
        }
    }
}

/// In a plain file and in a compressed one.
#[test]
fn a_reader_passes_over_runs_and_goes_on_at_a_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = fill(&directory);
    let id = JournalId::of(journal_name(), directory.path());
    let second_batch = [(4, 40), (5, 50), (6, 60)];
    let check = |last: &[(u64, u64)]| {
        let mut records = id.open(JournalPlace::default()).unwrap().unwrap();
        let all = wanted(&mut records, |run| run.first != 2);
        assert_eq!(all, [[(1, 10), (3, 30)].as_slice(), &second_batch, last].concat());
        assert_eq!(wanted(&mut id.open(records.place()).unwrap().unwrap(), |_| true), [], "nothing follows");
        let mut records = id.open(JournalPlace::default()).unwrap().unwrap();
        while records.place() == JournalPlace::default() {
            let _ = records.step(|_| false).unwrap();
        }
        let mut behind = id.open(records.place()).unwrap().unwrap();
        assert_eq!(wanted(&mut behind, |_| true), [second_batch.as_slice(), last].concat());
    };
    check(&[]);
    let closed = file.close().unwrap().path;
    check(&[(7, 70)]);
    let compressed = zstd::encode_all(File::open(&closed).unwrap(), 1).unwrap();
    fs::write(closed.with_extension("dbn.zst"), compressed).unwrap();
    fs::remove_file(&closed).unwrap();
    check(&[(7, 70)]);
    fs::remove_file(closed.with_extension("dbn.zst")).unwrap();
    assert!(id.open(JournalPlace::default()).unwrap().is_none(), "it has gone");
}

#[test]
fn more_symbols_than_reserved_move_the_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = create(&directory, 1);
    for number in 0..500 {
        file.symbol(session(), InstrumentId(number), format!("SYMBOL{number}").as_bytes());
    }
    append(&mut file, 1, 1);
    let closed = file.close().unwrap();
    assert_eq!(names(&closed.path), [(1, 0, 10)]);
    assert_eq!(DbnInput::open(&closed.path).unwrap().metadata().symbols.len(), 500);
}

#[test]
fn a_journal_goes_on_behind_its_last_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    drop(fill(&directory));
    let mut file = reopened(paths(&directory));
    assert_eq!(file.positions()[&CHANNEL].next, 7);
    append(&mut file, 7, 1);
    let closed = file.close().unwrap();
    assert_eq!(names(&closed.path), [FIRST_BATCH.as_slice(), &SECOND_BATCH, &[(7, 0, 70)]].concat());
    let input = DbnInput::open(&closed.path).unwrap();
    assert_eq!((input.metadata().symbols.len(), input.metadata().start), (1, 1));
}

/// Cuts one of the files at each byte. Whole batches stay, and everything else is cut off or set aside; records never lose their names.
#[test]
fn a_file_truncated_at_any_byte_keeps_whole_batches_or_is_set_aside() {
    let directory = in_memory();
    drop(fill(&directory));
    let paths = paths(&directory);
    let whole = [paths.open_data(), paths.open_names()].map(|path| (fs::read(&path).unwrap(), path));
    let mut kept = [0; 3];
    for cut in 0..2 {
        for length in 0..=whole[cut].0.len() {
            for (bytes, path) in &whole {
                fs::write(path, bytes).unwrap();
            }
            fs::write(&whole[cut].1, &whole[cut].0[..length]).unwrap();
            match JournalFile::reopen(paths.clone()).unwrap() {
                Reopened::Open(file, _) => {
                    let found = names(&file.path());
                    let batches = [&[][..], &FIRST_BATCH, &[FIRST_BATCH.as_slice(), &SECOND_BATCH].concat()];
                    let batch = batches.iter().position(|batch| *batch == found).unwrap();
                    let next = file.positions().get(&CHANNEL).map_or(1, |at| at.next);
                    assert_eq!(next, [1, 4, 7][batch], "file {cut} cut at {length}");
                    kept[batch] += 1;
                }
                Reopened::Damaged(state, reason) => {
                    assert!(state.positions.is_empty() && !reason.is_empty(), "file {cut} cut at {length}: {reason}");
                    assert!(length < whole[cut].0.len() && paths.open_data().exists());
                }
                Reopened::Empty => panic!("file {cut} cut at {length}: records were thrown away"),
            }
        }
    }
    assert!(kept.iter().all(|count| *count > 0), "{kept:?}");
}

#[test]
fn a_changed_byte_is_noticed() {
    let directory = in_memory();
    drop(fill(&directory));
    let paths = paths(&directory);
    let whole = [paths.open_data(), paths.open_names()].map(|path| (fs::read(&path).unwrap(), path));
    let header_bytes = whole[0].0.len() - 7 * size_of::<dbn::MboMsg>();
    let restore = || whole.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
    for at in header_bytes..whole[0].0.len() {
        restore();
        let mut bytes = whole[0].0.clone();
        bytes[at] ^= 1;
        fs::write(&whole[0].1, bytes).unwrap();
        match JournalFile::reopen(paths.clone()).unwrap() {
            // Intact records follow.
            Reopened::Damaged(state, reason) => {
                assert!(at < header_bytes + 4 * size_of::<dbn::MboMsg>(), "record byte {at}: {reason}");
                assert!(state.positions.is_empty() && reason.contains("intact ones follow"), "{reason}");
            }
            // The last batch: it looks like one that a crash left. Its records are read from the log again.
            Reopened::Open(file, _) => assert_eq!(file.positions()[&CHANNEL].next, 4, "record byte {at}"),
            Reopened::Empty => panic!("record byte {at}: records were thrown away"),
        }
    }
    for at in 0..whole[1].0.len() {
        restore();
        let mut bytes = whole[1].0.clone();
        bytes[at] ^= 1;
        fs::write(&whole[1].1, bytes).unwrap();
        match JournalFile::reopen(paths.clone()).unwrap() {
            Reopened::Damaged(..) => {}
            // The last entry: it looks like one that was not written completely.
            Reopened::Open(file, _) => {
                assert_eq!((at / ENTRY_BYTES + 1) * ENTRY_BYTES, whole[1].0.len(), "names byte {at}");
                assert_eq!(file.positions()[&CHANNEL].next, 4);
            }
            Reopened::Empty => panic!("names byte {at}: records were thrown away"),
        }
    }
}

#[test]
fn a_later_version_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    drop(fill(&directory));
    let path = paths(&directory).open_names();
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let error = JournalFile::reopen(paths(&directory)).unwrap_err().to_string();
    assert!(error.contains("version 2 of the format; this program knows version 1"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn an_interrupted_close_is_completed() {
    let directory = tempfile::tempdir().unwrap();
    let paths = paths(&directory);
    let closed = fill(&directory).close().unwrap();
    // Before the names were renamed, and before the records were.
    for is_data_renamed in [true, false] {
        fs::rename(paths.names(), paths.open_names()).unwrap();
        if !is_data_renamed {
            fs::rename(paths.data(), paths.open_data()).unwrap();
        }
        let file = reopened(paths.clone());
        assert!(file.is_closing());
        let again = file.close().unwrap();
        assert_eq!(again, closed);
        assert_eq!(names(&again.path).len(), 8);
    }
}

#[test]
fn nothing_is_left_of_a_journal_without_records() {
    let directory = tempfile::tempdir().unwrap();
    drop(create(&directory, 10));
    assert!(matches!(JournalFile::reopen(paths(&directory)).unwrap(), Reopened::Empty));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
