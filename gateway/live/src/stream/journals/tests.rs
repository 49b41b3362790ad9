use std::{fs, path::Path, time::Duration};

use dbn::enums::rtype;
use mdgw_journal::{
    Compression, JournalChannel,
    journal::{Journal, JournalConfig, Step},
};
use tempfile::TempDir;

use super::*;
use crate::{
    schema::Schemas,
    stream::{
        channel::{ChannelSource, tests::TestLog},
        chunk::Chunk,
        place::LogPlace,
        reader::DatasetReader,
    },
};

/// The journal of one channel, and a log that begins later.
struct Host {
    _directory: TempDir,
    source: ChannelSource,
    log: TestLog,
    journal: PathBuf,
}

impl Host {
    /// A journal of these sequences.
    fn new(journaled: std::ops::Range<u64>) -> Self {
        Self::of(|log| journaled.clone().for_each(|sequence| log.add_order_of(session().to_bytes(), sequence)))
    }

    /// The same, and the next date has begun in a journal of its own: that of the sequences is closed.
    fn with_closed(journaled: std::ops::Range<u64>) -> Self {
        Self::of(|log| {
            journaled.clone().for_each(|sequence| log.add_order_of(session().to_bytes(), sequence));
            (1..3).for_each(|sequence| log.add_order_of(next_day().to_bytes(), sequence));
        })
    }

    /// A journal of what is added to a log.
    fn of(add: impl Fn(&mut TestLog)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut log = new_log(directory.path(), "former");
        add(&mut log);
        let journal = directory.path().join("journal");
        write_journal(&log.source, &journal);
        let log = new_log(directory.path(), "log");
        let journals = Some(JournalSource { directory: journal.clone(), days_max: 1 });
        let source = ChannelSource { journals, ..log.source.clone() };
        Self { _directory: directory, source, log, journal }
    }

    fn add_orders(&mut self, sequences: std::ops::Range<u64>) {
        sequences.for_each(|sequence| self.log.add_order_of(session().to_bytes(), sequence));
    }

    /// Compresses the closed journal, as the thread of `mdgw journal` does.
    fn compress(&self) {
        let plain = self.journal.join("XNAS.ITCH/2026-11-27.mbo.dbn");
        let compressed = zstd::encode_all(fs::File::open(&plain).unwrap(), 1).unwrap();
        fs::write(plain.with_extension("dbn.zst"), compressed).unwrap();
        fs::remove_file(plain).unwrap();
    }

    /// Removes the journal of a date, as its retention does.
    fn remove(&self, date: &str) {
        for entry in fs::read_dir(self.journal.join("XNAS.ITCH")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with(date) {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// The files of the journal that end like that.
    fn damage(&self, end: &str, damage: impl Fn(&mut Vec<u8>)) {
        for entry in fs::read_dir(self.journal.join("XNAS.ITCH")).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().ends_with(end) {
                let mut bytes = fs::read(&path).unwrap();
                damage(&mut bytes);
                fs::write(&path, bytes).unwrap();
            }
        }
    }
}

fn session() -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_261_127).unwrap(), restart: 0 }
}

fn new_log(directory: &Path, name: &str) -> TestLog {
    let path = directory.join(name);
    fs::create_dir(&path).unwrap();
    TestLog::at(&path)
}

fn write_journal(source: &ChannelSource, directory: &Path) {
    let channel = JournalChannel {
        id: source.id,
        feed: source.feed,
        schemas: source.schemas,
        log_directory: source.log_directory.clone(),
        instruments_max: 10,
        symbols: None,
    };
    let config = JournalConfig {
        directory: directory.to_owned(),
        channels: vec![channel],
        compression: Compression::None,
        flush_interval: Duration::ZERO,
        retention_days: 0,
        retention_bytes: 0,
        free_bytes_min: 0,
    };
    let mut journal = Journal::start(config).unwrap();
    while journal.step() == Step::Read {}
    journal.finish().unwrap();
}

/// The orders that a reader brings, and those of them that are marked as behind a hole.
fn orders(reader: &mut DatasetReader, until: Option<&[LogPlace]>) -> (Vec<u64>, Vec<u64>) {
    let mut chunk = Chunk::default();
    while reader.read(Schemas::MBO, until, &mut chunk) > 0 {}
    let at = core::mem::offset_of!(dbn::MboMsg, flags);
    let orders: Vec<_> = chunk.records().filter(|record| record.bytes[1] == rtype::MBO).collect();
    let id = |record: &[u8]| control::u64_at(record, core::mem::offset_of!(dbn::MboMsg, order_id));
    let marked = orders.iter().filter(|order| order.bytes[at] & dbn::flags::MAYBE_BAD_BOOK != 0);
    (orders.iter().map(|order| id(order.bytes)).collect(), marked.map(|order| id(order.bytes)).collect())
}

fn open(host: &Host) -> DatasetReader {
    DatasetReader::open(std::slice::from_ref(&host.source), &Arc::default()).unwrap()
}

/// Sequences whose changes of the best level reach a client.
fn quotes(host: &Host) -> Vec<u64> {
    let (mut reader, mut chunk) = (open(host), Chunk::default());
    while reader.read(Schemas::MBP_1, None, &mut chunk) > 0 {}
    let quotes = chunk.records().filter(|record| record.bytes[1] == rtype::MBP_1);
    quotes.map(|quote| control::ts_event(quote.bytes)).collect()
}

/// The sequences of a run's records; of a hole, the sequence behind it as a negative number.
fn run(run: &mut JournalRun) -> Vec<i64> {
    let mut items = Vec::new();
    while let Some(item) = run.take() {
        match item {
            Journaled::Record(name, _) => items.push(name.sequence.cast_signed()),
            Journaled::Hole { behind, .. } => items.push(-behind.sequence.cast_signed()),
            Journaled::End(_) => {}
        }
    }
    items
}

fn journals(host: &Host, days_max: usize) -> Box<JournalReader> {
    let source = JournalSource { directory: host.journal.clone(), days_max };
    let channel = (host.source.id, host.source.feed, host.source.schemas);
    Box::new(JournalReader::new(source, channel, Arc::default()))
}

fn name(session: Session, sequence: u64) -> PartName {
    PartName { session, sequence, part: 0 }
}

fn next_day() -> Session {
    Session { date: TradingDate::from_yyyymmdd(20_261_128).unwrap(), ..session() }
}

fn read(host: &Host) -> (Vec<u64>, Vec<u64>) {
    orders(&mut open(host), None)
}

#[test]
fn what_the_log_has_lost_comes_from_the_journal_once_and_in_order() {
    // The journal ends in front of the log's beginning, or goes on in the log.
    for journaled in [1..5, 1..8] {
        let mut host = Host::new(journaled);
        host.add_orders(5..8);
        let mut reader = open(&host);
        assert_eq!(orders(&mut reader, None), ((1..8).collect(), vec![]));
        assert!(!reader.channels()[0].began_incomplete());
    }
}

/// A replay ends where its session goes on, also if the log has lost that place meanwhile.
#[test]
fn a_replay_ends_at_its_place_although_the_log_has_lost_it() {
    let mut host = Host::new(1..9);
    host.add_orders(7..9);
    let place = |sequence| LogPlace { entry: 6, part: Some(PartName { session: session(), sequence, part: 0 }) };
    let mut reader = open(&host);
    assert_eq!(orders(&mut reader, Some(&[place(4)])), (vec![1, 2, 3], vec![]));
    assert_eq!(reader.next_places()[0].entry, 6);
}

#[test]
fn records_that_neither_has_are_a_hole() {
    let mut host = Host::new(1..4);
    host.add_orders(6..8);
    assert_eq!(read(&host), (vec![1, 2, 3, 6, 7], vec![6, 7]));
}

#[test]
fn a_damaged_journal_is_read_up_to_the_damage_and_then_a_hole() {
    let mut host = Host::new(1..5);
    host.add_orders(5..7);
    host.damage(".names.part", |names| names[64 + 20] ^= 1);
    assert_eq!(read(&host), (vec![5, 6], vec![]), "as without a journal: nobody has got anything before");
    let mut host = Host::new(1..5);
    host.add_orders(5..7);
    host.damage(".dbn.part", |records| records.truncate(records.len() - 60));
    assert_eq!(read(&host), (vec![1, 2, 5, 6], vec![5, 6]));
}

#[test]
fn only_the_latest_dates_are_read() {
    let mut host = Host::new(1..5);
    let next_day = next_day();
    let mut former = new_log(host._directory.path(), "next");
    (1..3).for_each(|sequence| former.add_order_of(next_day.to_bytes(), sequence));
    write_journal(&former.source, &host.journal);
    (3..5).for_each(|sequence| host.log.add_order_of(next_day.to_bytes(), sequence));
    assert_eq!(read(&host), (vec![1, 2, 3, 4], vec![]));
    if let Some(journals) = &mut host.source.journals {
        journals.days_max = 2;
    }
    assert_eq!(read(&host), (vec![1, 2, 3, 4, 1, 2, 3, 4], vec![]));
}

/// The log has lost more than the journal has so far, so the reader waits for the journal.
#[test]
fn a_reader_that_waits_for_a_journal_reads_the_rest_of_it_alone() {
    const ORDERS: u64 = 1_000;
    for kind in ["open", "closed", "compressed"] {
        let journaled = 1..ORDERS + 1;
        let mut host = if kind == "open" { Host::new(journaled) } else { Host::with_closed(journaled) };
        if kind == "compressed" {
            host.compress();
        }
        host.add_orders(ORDERS + 5..ORDERS + 7);
        let mut reader = open(&host);
        let (received, marked) = orders(&mut reader, None);
        assert_eq!((received.len() as u64, marked.len()), (ORDERS + 2, 2), "{kind}");
        let (steps, begun) = reader.channels()[0].journal_counts();
        assert_eq!(begun, 1, "{kind}: from its beginning");
        assert!((ORDERS..ORDERS * 2).contains(&steps), "{kind}: {steps} items were read for {ORDERS} orders");
    }
}

/// The log's retention overtakes a reader: what it has read of the journals is not read again, and neither are the records in front of
/// its place.
#[test]
fn a_later_run_goes_on_where_the_former_one_ended() {
    for is_compressed in [false, true] {
        let host = Host::with_closed(1..1_001);
        if is_compressed {
            host.compress();
        }
        let mut first = journals(&host, 1).begin(None, name(session(), 501)).unwrap();
        assert_eq!(run(&mut first), (1..501).collect::<Vec<_>>());
        assert!(first.is_complete());
        let reader = first.into_reader();
        let steps = reader.step_count();
        let mut second = reader.begin(Some(name(session(), 701)), name(session(), 901)).unwrap();
        assert_eq!(run(&mut second), (701..901).collect::<Vec<_>>());
        assert!(second.is_complete());
        let reader = second.into_reader();
        let steps = reader.step_count() - steps;
        assert_eq!(reader.begun_count(), 1);
        assert!(steps <= 450, "{steps} items");
    }
    // What a crash of the journal cuts off is written again, so an open one is read from its last checkpoint on.
    let host = Host::new(1..101);
    let mut first = journals(&host, 1).begin(None, name(session(), 51)).unwrap();
    assert_eq!(run(&mut first), (1..51).collect::<Vec<_>>());
    let mut second = first.into_reader().begin(Some(name(session(), 51)), name(session(), 91)).unwrap();
    assert_eq!(run(&mut second), (51..91).collect::<Vec<_>>());
}

#[test]
fn an_open_journal_that_grows_is_read_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = new_log(directory.path(), "log");
    let journal = directory.path().join("journal");
    let source = JournalSource { directory: journal.clone(), days_max: 1 };
    let channel = (log.source.id, log.source.feed, log.source.schemas);
    let mut reader = Box::new(JournalReader::new(source, channel, Arc::default()));
    let mut next = 1;
    for _ in 0..3 {
        (next..next + 100).for_each(|sequence| log.add_order_of(session().to_bytes(), sequence));
        write_journal(&log.source, &journal);
        let from = (next > 1).then(|| name(session(), next));
        let mut items = reader.begin(from, name(session(), 1_000)).unwrap();
        assert_eq!(run(&mut items), (next..next + 100).map(u64::cast_signed).collect::<Vec<_>>());
        assert!(!items.is_complete());
        reader = items.into_reader();
        next += 100;
    }
    assert_eq!(reader.begun_count(), 1);
    assert!(reader.step_count() < 400, "{} items", reader.step_count());
}

/// Otherwise a server that stops, or a client that leaves, waits until the reader has given up.
#[test]
fn a_reader_that_is_stopped_reads_and_waits_no_further() {
    let mut host = Host::new(1..101);
    host.add_orders(110..112);
    let stop = Arc::new(AtomicBool::new(true));
    let mut reader = DatasetReader::open(std::slice::from_ref(&host.source), &stop).unwrap();
    assert_eq!(orders(&mut reader, None), (vec![], vec![]));
    // While it waits for the journal.
    stop.store(false, Relaxed);
    let mut reader = DatasetReader::open(std::slice::from_ref(&host.source), &stop).unwrap();
    let stopper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        stop.store(true, Relaxed);
    });
    let begin = Instant::now();
    let (received, _) = orders(&mut reader, None);
    assert!(received.iter().all(|sequence| *sequence < 110), "a stopped reader is behind no hole: {received:?}");
    assert!(begin.elapsed() < Duration::from_millis(1_500), "{:?}", begin.elapsed());
    stopper.join().unwrap();
}

#[test]
fn journals_are_found_when_they_are_needed() {
    // A journal is compressed, and another one begins.
    let host = Host::with_closed(1..5);
    let begun = host.journal.join("begun");
    fs::create_dir(&begun).unwrap();
    let folder = host.journal.join("XNAS.ITCH");
    let is_of_next_day = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("2026-11-28");
    let move_next_day = |from: &Path, to: &Path| {
        for path in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).filter(|path| is_of_next_day(path)) {
            fs::rename(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    };
    move_next_day(&folder, &begun);
    let mut items = journals(&host, 2).begin(None, name(next_day(), 3)).unwrap();
    host.compress();
    move_next_day(&begun, &folder);
    assert_eq!(run(&mut items), [1, 2, 3, 4, 1, 2]);
    assert!(items.is_complete() && !items.take_lost_journal());
}

/// The reader would go on with the next journal as if nothing had been there.
#[test]
fn a_journal_that_is_removed_before_it_is_read_is_reported() {
    let host = Host::with_closed(1..5);
    let mut items = journals(&host, 2).begin(None, name(next_day(), 3)).unwrap();
    host.remove("2026-11-27");
    assert_eq!(run(&mut items), [-1, 1, 2], "a hole in front of the next day");
    assert!(items.is_complete() && items.take_lost_journal() && !items.take_lost_journal());
    // The last one.
    let mut items = journals(&host, 2).begin(None, name(next_day(), 3)).unwrap();
    host.remove("2026-11-28");
    assert_eq!(run(&mut items), [0; 0]);
    assert!(!items.is_complete() && items.take_lost_journal());
}

/// The first journal of the date is gone, and the second one goes on in the middle of the session.
#[test]
fn a_date_whose_first_journal_is_gone_begins_behind_a_hole() {
    let host = Host::new(1..9);
    let folder = host.journal.join("XNAS.ITCH");
    for end in ["dbn.part", "names.part"] {
        fs::rename(folder.join(format!("2026-11-27.mbo.{end}")), folder.join(format!("2026-11-27.mbo.2.{end}")))
            .unwrap();
    }
    let mut items = journals(&host, 1).begin(None, name(session(), 5)).unwrap();
    assert_eq!(run(&mut items), [-1, 1, 2, 3, 4]);
    // For a reader that is behind it already, it is no loss.
    let mut items = journals(&host, 1).begin(Some(name(session(), 3)), name(session(), 5)).unwrap();
    assert_eq!(run(&mut items), [3, 4]);
}

#[test]
fn a_whole_message_in_front_of_a_hole_is_delivered() {
    let add = |log: &mut TestLog, sequences: std::ops::Range<u64>| {
        sequences.for_each(|sequence| log.add_order_of(session().to_bytes(), sequence));
    };
    // A hole that the journal declares.
    let mut host = Host::of(|log| {
        add(log, 1..4);
        add(log, 6..8);
    });
    host.add_orders(8..9);
    assert_eq!(quotes(&host), [1, 2, 3, 6, 7, 8]);
    // The end of the journal.
    let mut host = Host::new(1..4);
    host.add_orders(6..7);
    assert_eq!(quotes(&host), [1, 2, 3, 6]);
    // A damage.
    let mut host = Host::new(1..5);
    host.add_orders(5..7);
    host.damage(".dbn.part", |records| records.truncate(records.len() - 60));
    assert_eq!(quotes(&host), [1, 2, 5, 6]);
    // Not the first part of a message whose rest is missing.
    let mut host = Host::of(|log| {
        add(log, 1..4);
        log.add_first_part_of(session().to_bytes(), 4);
        add(log, 6..8);
    });
    host.add_orders(8..9);
    assert_eq!(quotes(&host), [1, 2, 3, 6, 7, 8]);
}
