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
mod tests;
