//! What the log of a channel no longer has, out of the journals on the same host.
//!
//! Records are found by their names, so a run of journals ends exactly where the log goes on: with the session, sequence and part of the
//! log's next record. A journal that is damaged, or that lacks messages, is a hole, and the records behind it are marked as behind a hole
//! of the log.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
};

use dbn::UNDEF_TIMESTAMP;
use mdgw_feeds::channel::SchemaSet;
use mdgw_journal::{JournalRecords, NamedRecord, RecordsError, find_journals, names::Missing};
use mdgw_wire::{
    identity::{ChannelId, Feed, Session},
    time::TradingDate,
};

use super::place::PartName;
use crate::control;

/// Where journals are, and how many of them are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSource {
    /// Directory of the journals of all datasets.
    pub directory: PathBuf,
    /// Trading dates that are read at most, the newest ones.
    pub days_max: usize,
}

/// What the journals have next.
#[derive(Debug)]
pub(crate) enum Journaled {
    /// A record as the consumer's edge delivers it from the log.
    Record(PartName, Vec<u8>),
    /// Messages are missing in front of this one.
    Hole(PartName),
    /// The venue has ended the session.
    End(Session),
}

/// The journals of one channel between two names.
#[derive(Debug)]
pub(crate) struct JournalRun {
    channel: ChannelId,
    from: Option<PartName>,
    to: PartName,
    files: VecDeque<PathBuf>,
    records: Option<JournalRecords>,
    symbols: BTreeMap<u32, Vec<u8>>,
    next: Option<Journaled>,
    /// Up to where nothing is missing that was not reported as a hole.
    covered: Option<PartName>,
    /// Receive time behind which later ones are not.
    ts_recv_last: u64,
    time: u64,
    is_damaged: bool,
    has_ended: bool,
}

impl JournalRun {
    /// The records of a channel from `from` on, or from the oldest date that is read, up to `to`. `None` without a journal of these dates.
    pub(crate) fn open(
        source: &JournalSource,
        (channel, feed, schemas): (ChannelId, Feed, SchemaSet),
        from: Option<PartName>,
        to: PartName,
    ) -> Option<Self> {
        let found = find_journals(&source.directory, feed, schemas);
        let found = found.inspect_err(|error| tracing::warn!(%error, "live: cannot list the journals")).ok()?;
        let dates: BTreeSet<TradingDate> = found.iter().map(|(date, _)| *date).collect();
        let oldest = dates.iter().rev().nth(source.days_max.saturating_sub(1)).or_else(|| dates.first())?;
        let first = from.map_or(*oldest, |from| from.session.date);
        let is_wanted = |date: &TradingDate| (first..=to.session.date).contains(date) && source.days_max > 0;
        let files: VecDeque<_> = found.into_iter().filter(|(date, _)| is_wanted(date)).map(|(_, path)| path).collect();
        (!files.is_empty()).then_some(Self {
            channel,
            from,
            to,
            files,
            records: None,
            symbols: BTreeMap::new(),
            next: None,
            covered: from,
            ts_recv_last: 0,
            time: 0,
            is_damaged: false,
            has_ended: false,
        })
    }

    /// Time of what comes next, ns since 1970 UTC: where the gateway took none, that of the event. `None` at the end.
    pub(crate) fn peek(&mut self) -> Option<u64> {
        if self.next.is_none() {
            self.next = self.read();
        }
        match &self.next {
            Some(Journaled::Record(_, bytes)) => self.time = time_of(bytes).max(self.time),
            Some(Journaled::Hole(_) | Journaled::End(_)) => {}
            None => return None,
        }
        Some(self.time)
    }

    /// What comes next.
    pub(crate) fn take(&mut self) -> Option<Journaled> {
        self.peek()?;
        self.next.take()
    }

    /// At the end: whether all records up to the end of the run were read, or reported as a hole.
    pub(crate) fn is_complete(&self) -> bool {
        let is_at_beginning = (self.to.sequence, self.to.part) == (FIRST_SEQUENCE, 0);
        !self.is_damaged && (is_at_beginning || self.covered.is_some_and(|covered| covered >= self.to))
    }

    /// Where the run ends.
    pub(crate) fn to(&self) -> PartName {
        self.to
    }

    /// Whether a file could not be read to its end.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Symbol of an instrument, as of the records read so far.
    pub(crate) fn symbol_of(&self, instrument_id: u32) -> Option<&str> {
        self.symbols.get(&instrument_id).and_then(|symbol| std::str::from_utf8(symbol).ok())
    }

    /// Receive time of the last record.
    pub(crate) fn ts_recv_last(&self) -> u64 {
        self.ts_recv_last
    }

    fn read(&mut self) -> Option<Journaled> {
        while !self.has_ended {
            let Some(records) = &mut self.records else {
                let path = self.files.pop_front()?;
                match JournalRecords::open(&path) {
                    Ok(records) => self.records = Some(records),
                    Err(error) => self.damage(&error),
                }
                continue;
            };
            match records.next() {
                Ok(Some(item)) => {
                    if let Some(item) = self.accept(item) {
                        return Some(item);
                    }
                }
                Ok(None) => self.records = None,
                Err(error) => {
                    self.records = None;
                    self.damage(&error);
                }
            }
        }
        None
    }

    /// What an item of the file means for the channel; nothing, if it is of another channel or outside of the run.
    fn accept(&mut self, item: NamedRecord) -> Option<Journaled> {
        match item {
            NamedRecord::Record { channel, session, sequence, part, bytes, .. } if channel == self.channel => {
                let name = PartName { session, sequence, part };
                if name >= self.to {
                    return self.end();
                }
                self.cover(PartName { part: part.saturating_add(1), ..name });
                (Some(name) >= self.from).then_some(Journaled::Record(name, bytes))
            }
            NamedRecord::Hole(missing) if missing.channel == self.channel => {
                let Missing { session, first, count, .. } = missing;
                let sequence = if count == 0 { u64::MAX } else { first.saturating_add(count) };
                let behind = PartName { session, sequence, part: 0 };
                self.cover(behind.min(self.to));
                (Some(behind) > self.from).then_some(Journaled::Hole(behind))
            }
            NamedRecord::Gap(missing) if missing.channel == self.channel => {
                let sequence = missing.first.saturating_add(missing.count);
                self.cover(PartName { session: missing.session, sequence, part: 0 });
                None
            }
            NamedRecord::Position(channel, at) if channel == self.channel => {
                self.ts_recv_last = at.ts_recv_last;
                let name = PartName { session: at.session, sequence: at.next, part: at.next_part };
                self.cover(name);
                let is_end = at.has_ended && at.session < self.to.session && Some(name) >= self.from;
                is_end.then_some(Journaled::End(at.session))
            }
            NamedRecord::Symbol(instrument, symbol) => {
                if self.symbols.len() < SYMBOLS_MAX && symbol.len() < dbn::SYMBOL_CSTR_LEN {
                    self.symbols.insert(instrument.0, symbol);
                }
                None
            }
            _ => None,
        }
    }

    fn cover(&mut self, name: PartName) {
        self.covered = self.covered.max(Some(name));
    }

    /// The run's end was reached: what the journals have behind it is in the log.
    fn end(&mut self) -> Option<Journaled> {
        self.cover(self.to);
        self.has_ended = true;
        None
    }

    fn damage(&mut self, error: &RecordsError) {
        tracing::warn!(channel_id = self.channel.0, %error, "live: a journal cannot be read to its end");
        self.is_damaged = true;
    }
}

/// Receive time of a record, or its event time.
fn time_of(bytes: &[u8]) -> u64 {
    let received = match bytes.get(1) {
        Some(&dbn::enums::rtype::MBO) => control::u64_at(bytes, core::mem::offset_of!(dbn::MboMsg, ts_recv)),
        Some(&(dbn::enums::rtype::MBP_0 | dbn::enums::rtype::MBP_1 | dbn::enums::rtype::MBP_10)) => {
            control::u64_at(bytes, core::mem::offset_of!(dbn::TradeMsg, ts_recv))
        }
        _ => UNDEF_TIMESTAMP,
    };
    if received == UNDEF_TIMESTAMP { control::ts_event(bytes) } else { received }
}

/// Sequence of a session's first message.
const FIRST_SEQUENCE: u64 = 1;
/// Symbols of one channel that are remembered: more than any venue lists.
const SYMBOLS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
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
            let directory = tempfile::tempdir().unwrap();
            let mut log = new_log(directory.path(), "former");
            journaled.for_each(|sequence| log.add_order_of(session().to_bytes(), sequence));
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

    fn read(host: &Host) -> (Vec<u64>, Vec<u64>) {
        orders(&mut DatasetReader::open(std::slice::from_ref(&host.source)).unwrap(), None)
    }

    #[test]
    fn what_the_log_has_lost_comes_from_the_journal_once_and_in_order() {
        // The journal ends in front of the log's beginning, or goes on in the log.
        for journaled in [1..5, 1..8] {
            let mut host = Host::new(journaled);
            host.add_orders(5..8);
            let mut reader = DatasetReader::open(std::slice::from_ref(&host.source)).unwrap();
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
        let mut reader = DatasetReader::open(std::slice::from_ref(&host.source)).unwrap();
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
        let next_day = Session { date: TradingDate::from_yyyymmdd(20_261_128).unwrap(), ..session() };
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
}
