//! What the log of a channel no longer has, out of the journals on the same host.
//!
//! Records are found by their names, so a run of journals ends exactly where the log goes on: with the session, sequence and part of the
//! log's next record. A journal that is damaged, or that lacks messages, is a hole, and the records behind it are marked as behind a hole
//! of the log.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::RangeInclusive,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use dbn::UNDEF_TIMESTAMP;
use mdgw_feeds::channel::SchemaSet;
use mdgw_journal::{
    JournalId, JournalPlace, JournalRecords, JournalStep, NamedRecord, RecordsError, list_journals,
    names::{Missing, Run},
};
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
    /// Messages are missing.
    Hole {
        /// Everything in front of this name was read.
        whole_through: Option<PartName>,
        /// Messages are missing in front of this one.
        behind: PartName,
    },
    /// The venue has ended the session.
    End(Session),
}

/// How far a reader has come in the journals of one channel. It reads no file twice: a run goes on where the one before ended.
#[derive(Debug)]
pub(crate) struct JournalReader {
    source: JournalSource,
    channel: ChannelId,
    feed: Feed,
    schemas: SchemaSet,
    /// Set when the reader's owner ends.
    stop: Arc<AtomicBool>,
    /// The journal that is being read.
    open: Option<(JournalId, JournalRecords)>,
    /// What was read of the open journal and lies behind the end of the last run.
    pending: Option<NamedRecord>,
    /// A journal that was being written when it was read, and where to go on in it.
    resume: Option<(JournalId, JournalPlace)>,
    /// The last journal of which nothing further is read.
    done: Option<JournalId>,
    symbols: BTreeMap<u32, Vec<u8>>,
    /// Up to where nothing is missing that was not reported as a hole.
    covered: Option<PartName>,
    /// Receive time behind which later ones are not.
    ts_recv_last: u64,
    /// Items and passed runs of the files so far.
    step_count: u64,
    /// Journals that were opened at their beginning.
    begun_count: u64,
}

/// The journals of one channel between two names.
#[derive(Debug)]
pub(crate) struct JournalRun {
    reader: Box<JournalReader>,
    from: Option<PartName>,
    to: PartName,
    dates: RangeInclusive<TradingDate>,
    /// Journals that there were when the run began, and that are not opened yet.
    expected: VecDeque<JournalId>,
    /// The last journal that was opened in this run.
    visited: Option<JournalId>,
    next: Option<Journaled>,
    /// The record behind a hole that was reported.
    after_hole: Option<Journaled>,
    /// Records were lost that were not reported as a hole. Everything in front of the name was read.
    loss: Option<Option<PartName>>,
    time: u64,
    has_lost_journal: bool,
    has_ended: bool,
}

impl JournalReader {
    /// In front of the oldest journal that is read.
    pub(crate) fn new(
        source: JournalSource,
        (channel, feed, schemas): (ChannelId, Feed, SchemaSet),
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            source,
            channel,
            feed,
            schemas,
            stop,
            open: None,
            pending: None,
            resume: None,
            done: None,
            symbols: BTreeMap::new(),
            covered: None,
            ts_recv_last: 0,
            step_count: 0,
            begun_count: 0,
        }
    }

    /// The records of the channel from `from` on, or from the oldest date that is read, up to `to`. Returns the reader without a journal
    /// of these dates.
    pub(crate) fn begin(mut self: Box<Self>, from: Option<PartName>, to: PartName) -> Result<JournalRun, Box<Self>> {
        let found = self.list();
        let found_dates = found.iter().map(JournalId::date).filter(|date| *date <= to.session.date);
        // The log goes on with this date, whether it has a journal or not.
        let dates: BTreeSet<TradingDate> = found_dates.chain([to.session.date]).collect();
        let oldest =
            self.source.days_max.checked_sub(1).and_then(|days| dates.iter().rev().nth(days).or_else(|| dates.first()));
        let Some(oldest) = oldest else { return Err(self) };
        let dates = from.map_or(*oldest, |from| from.session.date)..=to.session.date;
        self.pass_dates_before(*dates.start());
        let has_any = found.iter().any(|id| dates.contains(&id.date())) || self.open.is_some() || self.resume.is_some();
        if !has_any {
            return Err(self);
        }
        let visited = self.open.as_ref().map(|(id, _)| id.clone());
        let last = visited.as_ref().max(self.done.as_ref());
        let expected = found.iter().filter(|id| Some(*id) > last && dates.contains(&id.date())).cloned().collect();
        self.covered = self.covered.max(from);
        Ok(JournalRun {
            reader: self,
            from,
            to,
            dates,
            expected,
            visited,
            next: None,
            after_hole: None,
            loss: None,
            time: 0,
            has_lost_journal: false,
            has_ended: false,
        })
    }

    /// Items of files so far: how much was read.
    #[cfg(test)]
    pub(crate) fn step_count(&self) -> u64 {
        self.step_count
    }

    /// How often a journal was opened at its beginning.
    #[cfg(test)]
    pub(crate) fn begun_count(&self) -> u64 {
        self.begun_count
    }

    fn list(&self) -> Vec<JournalId> {
        let found = list_journals(&self.source.directory, self.feed, self.schemas);
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, "live: cannot list the journals");
            Vec::new()
        })
    }

    /// Journals of earlier dates have nothing that is still wanted.
    fn pass_dates_before(&mut self, first: TradingDate) {
        if let Some((id, _)) = self.open.take_if(|(id, _)| id.date() < first) {
            self.pending = None;
            self.done = self.done.take().max(Some(id));
        }
        if let Some((id, _)) = self.resume.take_if(|(id, _)| id.date() < first) {
            self.done = self.done.take().max(Some(id));
        }
    }
}

impl JournalRun {
    /// Ends the run: the next one goes on behind it.
    pub(crate) fn into_reader(self) -> Box<JournalReader> {
        let mut reader = self.reader;
        // What a crash cuts off is written again, at other places.
        if let Some((id, records)) = reader.open.take_if(|(_, records)| records.is_open()) {
            reader.pending = None;
            reader.resume = Some((id, records.place()));
        }
        reader
    }

    /// Time of what comes next, ns since 1970 UTC: where the gateway took none, that of the event. `None` at the end.
    pub(crate) fn peek(&mut self) -> Option<u64> {
        if self.next.is_none() {
            self.next = self.read();
        }
        match &self.next {
            Some(Journaled::Record(_, bytes)) => self.time = time_of(bytes).max(self.time),
            Some(Journaled::Hole { .. } | Journaled::End(_)) => {}
            None => return None,
        }
        Some(self.time)
    }

    /// What comes next.
    pub(crate) fn take(&mut self) -> Option<Journaled> {
        self.peek()?;
        self.next.take()
    }

    /// Whether the reader's owner ends: nothing further is read.
    pub(crate) fn is_stopped(&self) -> bool {
        self.reader.stop.load(Relaxed)
    }

    /// At the end: whether all records up to the end of the run were read, or reported as a hole.
    pub(crate) fn is_complete(&self) -> bool {
        let is_at_beginning = (self.to.sequence, self.to.part) == (FIRST_SEQUENCE, 0);
        self.loss.is_none() && (is_at_beginning || self.reader.covered.is_some_and(|covered| covered >= self.to))
    }

    /// Whether everything in front of that name was read, as far as the run came.
    pub(crate) fn is_whole_through(&self, name: PartName) -> bool {
        self.loss.unwrap_or(self.reader.covered) >= Some(name)
    }

    /// Where the run ends.
    pub(crate) fn to(&self) -> PartName {
        self.to
    }

    /// Whether records were lost with a journal and not reported as a hole.
    pub(crate) fn is_damaged(&self) -> bool {
        self.loss.is_some()
    }

    /// Whether a journal has gone before it was opened, since the last call.
    pub(crate) fn take_lost_journal(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_journal)
    }

    /// Symbol of an instrument, as of the records read so far.
    pub(crate) fn symbol_of(&self, instrument_id: u32) -> Option<&str> {
        self.reader.symbols.get(&instrument_id).and_then(|symbol| std::str::from_utf8(symbol).ok())
    }

    /// Receive time of the last record.
    pub(crate) fn ts_recv_last(&self) -> u64 {
        self.reader.ts_recv_last
    }

    fn read(&mut self) -> Option<Journaled> {
        if let Some(record) = self.after_hole.take() {
            return Some(record);
        }
        while !self.has_ended && !self.is_stopped() {
            if let Some(item) = self.reader.pending.take() {
                if let Some(item) = self.accept(item) {
                    return Some(item);
                }
                continue;
            }
            let Some((_, records)) = &mut self.reader.open else {
                if !self.open_next() {
                    return None;
                }
                continue;
            };
            let (channel, from, is_behind_loss) = (self.reader.channel, self.from, Cell::new(false));
            let step = records.step(|run| {
                let is_before = Some(last_name(run)) < from;
                is_behind_loss.set(is_behind_loss.get() || run.channel == channel && is_before);
                run.channel == channel && !is_before
            });
            self.reader.step_count += 1;
            if is_behind_loss.get() {
                // What was lost lies in front of the run.
                self.loss = None;
            }
            match step {
                Ok(JournalStep::Item(item)) => {
                    if let Some(item) = self.accept(item) {
                        return Some(item);
                    }
                }
                Ok(JournalStep::Skipped) => {}
                Ok(JournalStep::End) => self.leave(),
                Err(error) => self.damage(&error),
            }
        }
        None
    }

    /// Opens the next journal. Returns whether there was one. The files are looked for when they are needed: a journal is closed,
    /// compressed or removed meanwhile, and another one begins.
    fn open_next(&mut self) -> bool {
        let last = self.visited.as_ref().max(self.reader.done.as_ref());
        let found = self.reader.list();
        let is_next = |id: &&JournalId| Some(*id) > last && self.dates.contains(&id.date());
        let resume = self.reader.resume.as_ref().map(|(id, _)| id);
        // A folder that changes while it is listed may hide a journal.
        let candidates = found.iter().chain(&self.expected).chain(resume);
        let Some(id) = candidates.filter(is_next).min().cloned() else { return false };
        let number = last.filter(|last| last.date() == id.date()).map_or(1, |last| last.number().saturating_add(1));
        self.expected.retain(|expected| *expected > id);
        self.visited = Some(id.clone());
        let resume = self.reader.resume.take_if(|(resume, _)| *resume <= id).filter(|(resume, _)| *resume == id);
        if id.number() > number && resume.is_none() {
            tracing::warn!(channel_id = self.reader.channel.0, journal = %id, "live: an earlier journal of the date is missing");
            self.loss.get_or_insert(self.reader.covered);
        }
        let place = resume.map_or_else(JournalPlace::default, |(_, place)| place);
        self.reader.begun_count += u64::from(place == JournalPlace::default());
        match id.open(place) {
            Ok(Some(records)) => self.reader.open = Some((id, records)),
            Ok(None) => {
                tracing::warn!(channel_id = self.reader.channel.0, journal = %id, "live: a journal was removed before it was read");
                self.loss.get_or_insert(self.reader.covered);
                self.has_lost_journal = true;
                self.reader.done = Some(id);
            }
            Err(error) => {
                self.reader.done = Some(id);
                self.damage(&error);
            }
        }
        true
    }

    /// The open journal has no more.
    fn leave(&mut self) {
        if let Some((id, records)) = self.reader.open.take() {
            if records.is_open() && !records.is_closed() {
                self.reader.resume = Some((id, records.place()));
            } else {
                self.reader.done = Some(id);
            }
        }
    }

    /// What an item of the file means for the channel; nothing, if it is of another channel or outside of the run.
    fn accept(&mut self, item: NamedRecord) -> Option<Journaled> {
        let covered = self.reader.covered;
        match item {
            NamedRecord::Record { channel, session, sequence, part, .. } if channel == self.reader.channel => {
                let name = PartName { session, sequence, part };
                if name >= self.to {
                    self.reader.pending = Some(item);
                    self.cover(self.to);
                    self.has_ended = true;
                    return None;
                }
                self.cover(PartName { part: part.saturating_add(1), ..name });
                if Some(name) < self.from {
                    self.loss = None;
                    return None;
                }
                let NamedRecord::Record { bytes, .. } = item else { return None };
                let record = Journaled::Record(name, bytes);
                match self.loss.take().filter(|_| Some(name) > covered) {
                    Some(whole_through) => {
                        self.after_hole = Some(record);
                        Some(Journaled::Hole { whole_through, behind: name })
                    }
                    None => Some(record),
                }
            }
            NamedRecord::Hole(missing) if missing.channel == self.reader.channel => {
                let Missing { session, first, count, .. } = missing;
                let first = PartName { session, sequence: first, part: 0 };
                let sequence = if count == 0 { u64::MAX } else { first.sequence.saturating_add(count) };
                let behind = PartName { sequence, ..first };
                if behind > self.to {
                    // A later run may come to the rest.
                    self.reader.pending = Some(item);
                    self.has_ended = true;
                }
                let whole_through = self.loss.unwrap_or_else(|| covered.max(Some(first)));
                self.cover(behind.min(self.to));
                let is_wanted = Some(behind) > self.from && first < self.to;
                is_wanted.then(|| {
                    self.loss = None;
                    Journaled::Hole { whole_through, behind: behind.min(self.to) }
                })
            }
            NamedRecord::Gap(missing) if missing.channel == self.reader.channel => {
                let sequence = missing.first.saturating_add(missing.count);
                self.cover(PartName { session: missing.session, sequence, part: 0 });
                None
            }
            NamedRecord::Position(channel, at) if channel == self.reader.channel => {
                self.reader.ts_recv_last = at.ts_recv_last;
                let name = PartName { session: at.session, sequence: at.next, part: at.next_part };
                self.cover(name);
                if Some(name) <= self.from {
                    self.loss = None;
                }
                let is_end = at.has_ended && at.session < self.to.session && Some(name) >= self.from;
                is_end.then_some(Journaled::End(at.session))
            }
            NamedRecord::Symbol(instrument, symbol) => {
                let symbols = &mut self.reader.symbols;
                let has_room = symbols.len() < SYMBOLS_MAX || symbols.contains_key(&instrument.0);
                if has_room && symbol.len() < dbn::SYMBOL_CSTR_LEN {
                    symbols.insert(instrument.0, symbol);
                }
                None
            }
            _ => None,
        }
    }

    fn cover(&mut self, name: PartName) {
        self.reader.covered = self.reader.covered.max(Some(name));
    }

    /// The open journal cannot be read further.
    fn damage(&mut self, error: &RecordsError) {
        let channel = self.reader.channel;
        tracing::warn!(channel_id = channel.0, %error, "live: a journal cannot be read to its end");
        let mut whole_through = self.reader.covered;
        if let Some((id, records)) = self.reader.open.take() {
            // What lies in front of the first record of a message was read.
            if let Some((of, session, sequence, 0, 0)) = records.next_name()
                && of == channel
            {
                whole_through = whole_through.max(Some(PartName { session, sequence, part: 0 }));
            }
            self.reader.done = Some(id);
        }
        self.loss.get_or_insert(whole_through);
    }
}

/// Waits, unless `stop` is set or becomes set.
pub(crate) fn wait(stop: &AtomicBool, duration: Duration) {
    let end = Instant::now() + duration;
    while !stop.load(Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(STOP_INTERVAL));
    }
}

/// Name of the last part of a run.
fn last_name(run: &Run) -> PartName {
    let sequence = run.first.saturating_add(run.frame_count.saturating_sub(1));
    PartName { session: run.session, sequence, part: run.part }
}

/// Time between two looks at the stop flag of a reader that waits.
const STOP_INTERVAL: Duration = Duration::from_millis(10);
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
            for path in
                fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).filter(|path| is_of_next_day(path))
            {
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
}
