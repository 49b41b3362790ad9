//! One channel: from the entries of its log to records, derived schemas included.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use mdgw_journal::SymbolsService;
use mdgw_log_books::books::Books;
use mdgw_publog::{Entry, LogError, Reader, SessionBytes};
use mdgw_wire::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind},
    identity::{ChannelId, Session},
    published::packet::{Frames, PacketFlags},
};

use self::state::{ChannelState, Derivation, StreamOutput, trading_day};
use super::{
    chunk::Chunk,
    intervals::Intervals,
    journals::{self, JournalReader, JournalRun, Journaled},
    place::{LogPlace, PartName},
};
use crate::{control, schema::Schemas};

mod source;
mod state;

pub use source::ChannelSource;
pub(crate) use state::marked;

/// How far the end of a channel's session is.
#[derive(Debug)]
enum SessionEnd {
    /// The session goes on.
    None,
    /// The log said at that time that the session ended. The venue may begin another one on the same day, which goes on with its bars.
    Announced(Instant),
    /// Its bars are closed.
    Over,
}

/// What a stream has met on its way to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Messages of the session were missing.
    has_hole: bool,
    /// The session was over.
    has_ended: bool,
    /// The oldest entry of the log was not the beginning of its session.
    pub(crate) began_incomplete: bool,
}

/// The next records of a channel.
#[derive(Debug)]
pub(crate) struct ChannelStream {
    reader: Reader,
    edge: ConsumerEdge,
    native: Schemas,
    state: ChannelState,
    session: Option<SessionBytes>,
    /// Whether the oldest record was not of the beginning of its session.
    began_incomplete: bool,
    end: SessionEnd,
    /// Number of the entry behind the last one read.
    next_entry: u64,
    /// First sequence of the session that no entry has covered so far.
    next_sequence: u64,
    id: ChannelId,
    /// Set when the reader's owner ends.
    stop: Arc<AtomicBool>,
    symbols: Option<Arc<SymbolsService>>,
    /// Name of the part that is read next: behind all that was read.
    place: Option<PartName>,
    /// How far the journals were read, while nothing is read out of them.
    journals: Option<Box<JournalReader>>,
    /// What the log no longer has, while it is read out of the journals.
    run: Option<JournalRun>,
    /// Whether a journal has gone before it was read.
    has_lost_journal: bool,
    /// Whether the log's beginning, or what the journals have in front of it, was reached.
    has_begun: bool,
    /// Runs that ended too early in a row: the journal may be behind the log for a moment.
    short_runs: u32,
    /// Whether the next entry of the log follows records that neither the log nor a journal has.
    is_behind_hole: bool,
}

impl ChannelStream {
    /// Begins at the oldest entry of the log. Once `stop` is set, the stream may end early.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(crate) fn open(source: &ChannelSource, stop: &Arc<AtomicBool>) -> Result<Self, LogError> {
        let channel = (source.id, source.feed, source.schemas);
        let journals = source.journals.clone();
        let journals = journals.map(|journals| Box::new(JournalReader::new(journals, channel, Arc::clone(stop))));
        Ok(Self {
            reader: Reader::open(&source.log_directory, source.id.0)?,
            edge: ConsumerEdge::new(TsRecvMode::Capture),
            native: source.native(),
            state: ChannelState::new(source),
            session: None,
            began_incomplete: false,
            end: SessionEnd::None,
            next_entry: 0,
            next_sequence: FIRST_SEQUENCE,
            id: source.id,
            stop: Arc::clone(stop),
            symbols: source.symbols.clone(),
            place: None,
            journals,
            run: None,
            has_lost_journal: false,
            has_begun: false,
            short_runs: 0,
            is_behind_hole: false,
        })
    }

    /// Whether another log has taken the place of this one, which was read to its end. What cannot be read is looked at again later.
    pub(crate) fn is_replaced(&self) -> bool {
        self.reader.is_replaced().unwrap_or(false)
    }

    /// Where the stream is.
    pub(crate) fn log_place(&self) -> LogPlace {
        LogPlace { entry: self.next_entry, part: self.place }
    }

    /// Time of what comes next, in front of `until` if there is one: the commit time of an entry of the log, the receive time of a
    /// record of a journal. `None` if nothing follows so far.
    pub(crate) fn peek(&mut self, until: Option<&LogPlace>) -> Option<u64> {
        loop {
            if until.is_some_and(|until| self.next_entry >= until.entry) {
                return None;
            }
            if self.run.is_none() {
                self.run = self.find_run(until);
            }
            let Some(run) = &mut self.run else { break };
            let time = run.peek();
            self.has_lost_journal |= run.take_lost_journal();
            if time.is_some() {
                return time;
            }
            if run.is_stopped() {
                return None;
            }
            self.end_run(until);
        }
        let (number, ts_commit) = self.reader.peek().map(|entry| (entry.number, entry.ts_commit))?;
        until.is_none_or(|until| number < until.entry).then_some(ts_commit)
    }

    /// Whether a journal has gone before it was read, since the last call.
    pub(crate) fn take_lost_journal(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_journal)
    }

    /// From now on a journal that ends too early is not waited for.
    pub(crate) fn skip_journal_retries(&mut self) {
        self.short_runs = SHORT_RUNS_MAX;
    }

    /// What the log no longer has in front of its next entry, in the journals.
    fn find_run(&mut self, until: Option<&LogPlace>) -> Option<JournalRun> {
        self.journals.as_ref()?;
        let entry = self.reader.peek()?;
        if self.has_begun && entry.number <= self.next_entry {
            return None;
        }
        let (number, of_entry) = (entry.number, first_part(&entry)?);
        // The session gets what lies behind `until` from the ring.
        let to = until.and_then(|until| until.part).map_or(of_entry, |until| until.min(of_entry));
        match self.journals.take()?.begin(self.place, to) {
            Ok(run) => Some(run),
            Err(journals) => {
                self.journals = Some(journals);
                if self.has_begun {
                    (self.is_behind_hole, self.next_entry) = (true, number);
                }
                self.has_begun = true;
                None
            }
        }
    }

    /// The journals have no more in front of the log: the stream goes on there.
    fn end_run(&mut self, until: Option<&LogPlace>) {
        let Some(run) = self.run.take() else { return };
        let (is_complete, to, ts_recv_last) = (run.is_complete(), run.to(), run.ts_recv_last());
        self.short_runs = if is_complete || run.is_damaged() { 0 } else { self.short_runs + 1 };
        let is_over = !(1..SHORT_RUNS_MAX).contains(&self.short_runs);
        if is_over && !is_complete {
            let message = self.session.and_then(Session::from_bytes);
            let behind =
                message.map(|session| PartName { session, sequence: self.state.sequence.saturating_add(1), part: 0 });
            self.state.is_message_whole = behind.is_some_and(|behind| run.is_whole_through(behind));
        }
        self.journals = Some(run.into_reader());
        if !is_over {
            // The journal writes in batches, and the log may have lost what it is about to write.
            journals::wait(&self.stop, JOURNAL_INTERVAL);
            return;
        }
        (self.short_runs, self.has_begun) = (0, true);
        self.edge = ConsumerEdge::behind(TsRecvMode::Capture, ts_recv_last.max(self.edge.ts_recv_last()));
        let entry = self.reader.peek().map(|entry| (entry.number, first_part(&entry)));
        self.next_entry = match (entry, until) {
            (Some((number, Some(of_entry))), _) if of_entry == to => number,
            (_, Some(until)) => until.entry,
            (entry, None) => entry.map_or(self.next_entry, |(number, _)| number),
        };
        self.is_behind_hole |= !is_complete;
        if is_complete {
            self.place = Some(to);
            if self.session == Some(to.session.to_bytes()) {
                self.next_sequence = self.next_sequence.max(to.sequence);
            }
        } else {
            tracing::warn!(channel_id = self.id.0, "live: neither the log nor the journals have some records: a hole");
        }
    }

    /// Items of journals read so far, and how often a journal was opened at its beginning.
    #[cfg(test)]
    pub(crate) fn journal_counts(&self) -> (u64, u64) {
        self.journals.as_ref().map_or((0, 0), |journals| (journals.step_count(), journals.begun_count()))
    }

    /// Whether the session of the last entry is over.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.end, SessionEnd::Over)
    }

    /// Ends a session whose end was announced that long ago, and appends what ends with it.
    pub(crate) fn end_session(&mut self, wait: Duration, wanted: Schemas, chunk: &mut Chunk) {
        if let SessionEnd::Announced(at) = self.end
            && at.elapsed() >= wait
        {
            self.end = SessionEnd::Over;
            self.state.intervals.finish(wanted, chunk);
        }
    }

    /// A session that is over ends once, however often its end is announced.
    fn announce_end(&mut self) {
        if !self.has_ended() {
            self.end = SessionEnd::Announced(Instant::now());
        }
    }

    /// Whether the next entry begins another day, behind a session that is to be ended before.
    pub(crate) fn begins_next_day(&mut self) -> bool {
        if !matches!(self.end, SessionEnd::Announced(_)) || self.run.is_some() {
            return false;
        }
        let ended = self.session.as_ref().and_then(trading_day);
        self.reader.peek().is_some_and(|entry| trading_day(&entry.session) != ended)
    }

    /// Whether the book by order of that instrument may be wrong: the log lacks messages of the session, or the gateway says so.
    pub(crate) fn is_suspect(&self, instrument: u32) -> bool {
        self.state.is_incomplete || self.state.suspect.contains(&instrument)
    }

    /// From now on orders do not reach the books: nothing that follows from them is wanted, and nobody asks for them.
    pub(crate) fn keep_no_books(&mut self) {
        self.state.keeps_books = false;
    }

    /// What the next stream that comes to this place may not know from the log.
    pub(crate) fn passed(&self) -> Passed {
        Passed { has_hole: self.has_hole(), has_ended: self.has_ended(), began_incomplete: self.began_incomplete }
    }

    /// Another stream of the same channel has come to this place with that, and its client has had what follows from it.
    pub(crate) fn inherit(&mut self, from: &Passed) {
        self.state.has_hole |= from.has_hole;
        if from.has_ended {
            self.end_session(Duration::ZERO, Schemas::default(), &mut Chunk::default());
        }
    }

    /// Whether messages of the session are missing behind its beginning.
    pub(crate) fn has_hole(&self) -> bool {
        self.state.has_hole
    }

    /// Whether the oldest entry of the log was not the beginning of its session.
    pub(crate) fn began_incomplete(&self) -> bool {
        self.began_incomplete
    }

    /// Latest event time of the records read, ns since 1970 UTC.
    pub(crate) fn ts_event(&self) -> u64 {
        self.state.ts_event
    }

    /// Other channels have intervals too: their ends are announced for all channels together.
    pub(crate) fn share_intervals(&mut self) {
        self.state.intervals = Intervals::of_several();
    }

    /// Bars and samples.
    pub(crate) fn intervals(&self) -> &Intervals {
        &self.state.intervals
    }

    /// The same, to take the ends that were reached.
    pub(crate) fn intervals_mut(&mut self) -> &mut Intervals {
        &mut self.state.intervals
    }

    /// Whether the venue has named the instrument on this channel in the present session.
    pub(crate) fn has_instrument(&self, id: u32) -> bool {
        self.state.instruments.contains(&id)
    }

    /// The books by order, with the publisher of their records.
    pub(crate) fn books(&self) -> Option<(&Books, u16)> {
        match &self.state.derivation {
            Derivation::Orders(books) => Some((books, self.state.publisher_id)),
            _ => None,
        }
    }

    /// Reads one entry, or one record of a journal, and appends its wanted records. Returns whether there was one.
    pub(crate) fn read(&mut self, wanted: Schemas, chunk: &mut Chunk) -> bool {
        if self.run.is_some() {
            return self.read_journal(wanted, chunk);
        }
        let Some(entry) = self.reader.next() else { return false };
        // Entries that the log no longer has, or messages that it never had: a gateway that restarts in mid-session may go on
        // behind messages of its absence, with the next number.
        let is_behind_hole = std::mem::take(&mut self.is_behind_hole);
        let has_hole = is_behind_hole
            || self.next_entry != 0 && entry.number > self.next_entry
            || entry.first > self.next_sequence;
        self.next_entry = entry.number + 1;
        let mut output = StreamOutput { wanted, derived: wanted.without(self.native), chunk };
        if self.session != Some(entry.session) {
            self.state.flush(&mut output);
            self.state.begin(self.session, entry.session, entry.first, &mut output);
            self.began_incomplete |= self.session.is_none() && entry.first > FIRST_SEQUENCE;
            if entry.first > FIRST_SEQUENCE
                && let Some(symbols) = &self.symbols
            {
                for (id, symbol) in &*symbols.of_session(entry.session) {
                    self.state.mapping(id.0, symbol, &mut output);
                }
            }
            if is_behind_hole && self.session.is_some() && entry.first > FIRST_SEQUENCE {
                self.state.note_hole(&mut output);
            }
            self.session = Some(entry.session);
            self.end = SessionEnd::None;
            self.next_sequence = entry.next;
        } else if has_hole {
            self.state.note_hole(&mut output);
        }
        self.next_sequence = self.next_sequence.max(entry.next);
        let session = Session::from_bytes(entry.session);
        let mut behind_last = None;
        for (header, body) in Frames::of_body(entry.payload) {
            let flags = FrameFlags(header.flags);
            if header.kind == FrameKind::Gap as u8 {
                self.state.note_gap(&mut output);
            }
            if header.kind != FrameKind::Message as u8 || flags.contains(FrameFlags::LATE_FILL) {
                continue;
            }
            let (sequence, part) = (header.sequence.get(), header.part.get());
            let state = &mut self.state;
            state.begin_message(sequence, &mut output);
            self.edge.deliver(header, body, |item| match item {
                EdgeOutput::Mapping { id, symbol } => {
                    if let Ok(symbol) = std::str::from_utf8(symbol) {
                        state.mapping(id.0, symbol, &mut output);
                    }
                }
                EdgeOutput::OtherLength { .. } => {}
                EdgeOutput::Record { rtype: kind, bytes } => state.record(kind, bytes, &mut output),
            });
            let is_last = flags.contains(FrameFlags::LAST_PART);
            if is_last {
                state.flush(&mut output);
            }
            behind_last =
                Some(if is_last { (sequence.saturating_add(1), 0) } else { (sequence, part.saturating_add(1)) });
        }
        if let Some((sequence, part)) = behind_last {
            self.place = session.map(|session| PartName { session, sequence, part });
        }
        let behind = session.map(|session| PartName { session, sequence: entry.next, part: 0 });
        self.place = self.place.filter(|place| Some(place.session) == session).max(behind);
        if entry.flags & u16::from(PacketFlags::END_OF_SESSION.0) != 0 {
            self.announce_end();
        }
        true
    }

    /// Appends what the next record of the journals brings.
    fn read_journal(&mut self, wanted: Schemas, chunk: &mut Chunk) -> bool {
        let Some(run) = &mut self.run else { return false };
        let Some(item) = run.take() else { return false };
        let mut output = StreamOutput { wanted, derived: wanted.without(self.native), chunk };
        let name = match &item {
            Journaled::Record(name, _) | Journaled::Hole { behind: name, .. } => *name,
            Journaled::End(session) => PartName { session: *session, sequence: u64::MAX, part: 0 },
        };
        let session = name.session.to_bytes();
        if self.session != Some(session) {
            // A journal declares what it lacks of a session's beginning.
            let first = if matches!(item, Journaled::Hole { .. }) { name.sequence } else { FIRST_SEQUENCE };
            self.state.flush(&mut output);
            self.state.begin(self.session, session, first, &mut output);
            self.began_incomplete |= self.session.is_none() && first > FIRST_SEQUENCE;
            (self.session, self.end) = (Some(session), SessionEnd::None);
            self.next_sequence = FIRST_SEQUENCE;
        } else if let Journaled::Hole { whole_through, .. } = item {
            let behind = PartName { sequence: self.state.sequence.saturating_add(1), part: 0, ..name };
            self.state.is_message_whole = whole_through >= Some(behind);
            self.state.note_hole(&mut output);
        }
        match item {
            Journaled::Record(name, bytes) => {
                // The last part of a message is known by the next message.
                self.state.begin_message(name.sequence, &mut output);
                let id = control::instrument_id(&bytes);
                if !self.state.instruments.contains(&id)
                    && let Some(symbol) = run.symbol_of(id)
                {
                    self.state.mapping(id, symbol, &mut output);
                }
                if let Some(kind) = bytes.get(1) {
                    self.state.record(*kind, &bytes, &mut output);
                }
                self.next_sequence = self.next_sequence.max(name.sequence);
                self.place = Some(PartName { part: name.part.saturating_add(1), ..name });
            }
            Journaled::Hole { behind, .. } => {
                self.next_sequence = self.next_sequence.max(behind.sequence);
                self.place = Some(behind);
            }
            Journaled::End(_) => {
                self.state.flush(&mut output);
                self.announce_end();
                self.place = Some(name);
            }
        }
        true
    }
}

/// Name of the first part that an entry has; `None` for sessions of a later version.
fn first_part(entry: &Entry<'_>) -> Option<PartName> {
    let session = Session::from_bytes(entry.session)?;
    let first = Frames::of_body(entry.payload).map(|(header, _)| header).find(|header| {
        header.kind == FrameKind::Message as u8 && !FrameFlags(header.flags).contains(FrameFlags::LATE_FILL)
    });
    let part = first.filter(|header| header.sequence.get() == entry.first).map_or(0, |header| header.part.get());
    Some(PartName { session, sequence: entry.first, part })
}

/// How often a journal that ends in front of the log is opened again, and how long after.
const SHORT_RUNS_MAX: u32 = 10;
const JOURNAL_INTERVAL: Duration = Duration::from_millis(200);
/// Sequence of a session's first message.
const FIRST_SEQUENCE: u64 = 1;

#[cfg(test)]
pub(crate) mod tests;
