//! One channel: from the entries of its log to records, derived schemas included.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use dbn::{BidAskPair, FlagSet, Mbp1Msg, RecordHeader, SType, TradeMsg, enums::rtype};
use mdgw_feeds::{book::BookLimits, channel::SchemaSet};
use mdgw_log_books::{
    books::{Books, Mbo},
    record::c_char_of,
};
use mdgw_publog::{Entry, LogError, Reader, SessionBytes};
use mdgw_wire::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind},
    identity::{ChannelId, Feed, Session},
    published::packet::{Frames, PacketFlags},
};

use super::{
    chunk::Chunk,
    derived::{self, Output},
    intervals::Intervals,
    journals::{self, JournalReader, JournalRun, JournalSource, Journaled},
    place::{LogPlace, PartName},
};
use crate::{control, schema::Schemas};

/// A channel of a dataset.
#[derive(Clone, Debug)]
pub struct ChannelSource {
    /// Number of the channel.
    pub id: ChannelId,
    /// The feed whose records its log holds.
    pub feed: Feed,
    /// The schemas that it publishes.
    pub schemas: SchemaSet,
    /// Directory of its log's segments.
    pub log_directory: PathBuf,
    /// Limits of its books.
    pub books: BookLimits,
    /// Journals that hold what the log no longer has, if there are any on this host.
    pub journals: Option<JournalSource>,
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
    has_ended: bool,
    /// Number of the entry behind the last one read.
    next_entry: u64,
    /// First sequence of the session that no entry has covered so far.
    next_sequence: u64,
    id: ChannelId,
    /// Set when the reader's owner ends.
    stop: Arc<AtomicBool>,
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

/// What the records of a session leave behind, wherever they came from.
#[derive(Debug)]
struct ChannelState {
    derivation: Derivation,
    intervals: Intervals,
    /// The mbo records of the message in progress.
    message: Vec<Mbo>,
    /// Whether nothing of that message follows.
    is_message_whole: bool,
    /// Sequence of that message.
    sequence: u64,
    /// Whether the books may lack orders: the records begin after their session did, or have a hole.
    is_incomplete: bool,
    /// Whether messages of the session are missing between those that were read: books that a client keeps of the mbo records are wrong.
    has_hole: bool,
    ts_event: u64,
    publisher_id: u16,
    /// Instruments that were named on the day of the session.
    instruments: BTreeSet<u32>,
}

/// What the schemas that the channel does not publish are derived from.
#[derive(Debug)]
enum Derivation {
    /// Books by order, from mbo.
    Orders(Box<Books>),
    /// mbp-1 as published.
    Quotes,
    /// mbp-10 as published, with the latest best level of each instrument.
    Levels(BTreeMap<u32, BidAskPair>),
    /// Trades as published.
    Trades,
    /// Nothing: no bars either.
    Nothing,
}

impl ChannelSource {
    /// The schemas that the channel publishes.
    pub(crate) fn native(&self) -> Schemas {
        let names = SchemaSet::NAMES.into_iter().filter(|(schema, _)| self.schemas.contains(*schema));
        names.filter_map(|(_, name)| Schemas::from_name(name)).fold(Schemas::default(), Schemas::with)
    }

    /// The schemas that clients can have: those that are published, and those that follow from them.
    #[must_use]
    pub fn available(&self) -> Schemas {
        let native = self.native();
        let derived = match self.basis() {
            Basis::Orders => {
                let depth = Schemas::MBP_1.with(Schemas::MBP_10).with(Schemas::TBBO).with(Schemas::TRADES);
                depth.with(Schemas::BBO).with(Schemas::OHLCV)
            }
            Basis::Quotes | Basis::Levels => {
                Schemas::MBP_1.with(Schemas::TBBO).with(Schemas::TRADES).with(Schemas::BBO).with(Schemas::OHLCV)
            }
            Basis::Trades => Schemas::OHLCV,
            Basis::Nothing => Schemas::default(),
        };
        native.with(derived)
    }

    /// Whether there are orders that a snapshot could have.
    pub(crate) fn has_orders(&self) -> bool {
        self.basis() == Basis::Orders
    }

    fn basis(&self) -> Basis {
        let native = self.native();
        if self.feed.is_by_order() && native.contains(Schemas::MBO) {
            Basis::Orders
        } else if native.contains(Schemas::MBP_1) {
            Basis::Quotes
        } else if native.contains(Schemas::MBP_10) {
            Basis::Levels
        } else if native.contains(Schemas::TRADES) {
            Basis::Trades
        } else {
            Basis::Nothing
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Basis {
    Orders,
    Quotes,
    Levels,
    Trades,
    Nothing,
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
            state: ChannelState {
                derivation: match source.basis() {
                    Basis::Orders => Derivation::Orders(Box::new(Books::new(source.books))),
                    Basis::Quotes => Derivation::Quotes,
                    Basis::Levels => Derivation::Levels(BTreeMap::new()),
                    Basis::Trades => Derivation::Trades,
                    Basis::Nothing => Derivation::Nothing,
                },
                intervals: Intervals::default(),
                message: Vec::new(),
                is_message_whole: false,
                sequence: 0,
                is_incomplete: false,
                has_hole: false,
                ts_event: 0,
                publisher_id: 0,
                instruments: BTreeSet::new(),
            },
            session: None,
            began_incomplete: false,
            has_ended: false,
            next_entry: 0,
            next_sequence: FIRST_SEQUENCE,
            id: source.id,
            stop: Arc::clone(stop),
            place: None,
            journals,
            run: None,
            has_lost_journal: false,
            has_begun: false,
            short_runs: 0,
            is_behind_hole: false,
        })
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

    /// Whether the venue has ended the session of the last entry.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the log lacks messages of the session so far.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.state.is_incomplete
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
        // Entries that the log no longer has, or messages that it never had: a gateway that restarts in mid-session goes on behind
        // the messages of its absence, with the next number.
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
            if is_behind_hole && self.session.is_some() && entry.first > FIRST_SEQUENCE {
                self.state.note_hole(&mut output);
            }
            self.session = Some(entry.session);
            self.has_ended = false;
            self.next_sequence = entry.next;
        } else if has_hole {
            self.state.note_hole(&mut output);
        }
        self.next_sequence = self.next_sequence.max(entry.next);
        let session = Session::from_bytes(entry.session);
        for (header, body) in Frames::of_body(entry.payload) {
            let flags = FrameFlags(header.flags);
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
            let (sequence, part) =
                if is_last { (sequence.saturating_add(1), 0) } else { (sequence, part.saturating_add(1)) };
            self.place = session.map(|session| PartName { session, sequence, part });
        }
        let behind = session.map(|session| PartName { session, sequence: entry.next, part: 0 });
        self.place = self.place.filter(|place| Some(place.session) == session).max(behind);
        if entry.flags & u16::from(PacketFlags::END_OF_SESSION.0) != 0 {
            self.has_ended = true;
            self.state.intervals.finish(output.wanted, output.chunk);
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
            (self.session, self.has_ended) = (Some(session), false);
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
                self.has_ended = true;
                self.state.intervals.finish(output.wanted, output.chunk);
                self.place = Some(name);
            }
        }
        true
    }
}

/// Where records go, and which are wanted.
struct StreamOutput<'a> {
    wanted: Schemas,
    /// Those of them that are not published.
    derived: Schemas,
    chunk: &'a mut Chunk,
}

impl ChannelState {
    /// A session begins at that sequence, after another one or none.
    fn begin(
        &mut self,
        before: Option<SessionBytes>,
        session: SessionBytes,
        first: u64,
        output: &mut StreamOutput<'_>,
    ) {
        // The venue's restart on the same day cuts no bar.
        if before.is_some_and(|before| trading_day(&before) == trading_day(&session)) {
            self.intervals.forget_books();
        } else {
            self.intervals.finish(output.wanted, output.chunk);
            self.instruments.clear();
        }
        match &mut self.derivation {
            Derivation::Orders(books) => books.clear(),
            Derivation::Levels(tops) => tops.clear(),
            Derivation::Quotes | Derivation::Trades | Derivation::Nothing => {}
        }
        self.message.clear();
        (self.is_incomplete, self.has_hole) = (first > FIRST_SEQUENCE, false);
    }

    /// Messages are missing between those that were read. The rest of a message in progress is part of the hole, unless the message is
    /// whole.
    fn note_hole(&mut self, output: &mut StreamOutput<'_>) {
        if std::mem::take(&mut self.is_message_whole) {
            self.flush(output);
        }
        self.message.clear();
        (self.is_incomplete, self.has_hole) = (true, true);
    }

    /// A message begins or goes on: what a former one brought is complete.
    fn begin_message(&mut self, sequence: u64, output: &mut StreamOutput<'_>) {
        if self.sequence != sequence {
            self.flush(output);
            self.sequence = sequence;
        }
        self.is_message_whole = false;
    }

    /// The records of the message are complete: derives what follows from them.
    fn flush(&mut self, output: &mut StreamOutput<'_>) {
        let extra_flags = self.extra_flags();
        let Self { derivation, intervals, message, .. } = self;
        if let Derivation::Orders(books) = derivation
            && !message.is_empty()
        {
            let mut output = Output { chunk: output.chunk, wanted: output.derived, intervals, extra_flags };
            derived::derive(books, message, &mut output);
            message.clear();
        }
    }

    fn extra_flags(&self) -> u8 {
        if self.is_incomplete { dbn::flags::MAYBE_BAD_BOOK } else { 0 }
    }

    fn mapping(&mut self, id: u32, symbol: &str, output: &mut StreamOutput<'_>) {
        self.instruments.insert(id);
        let mapping = control::mapping(self.ts_event, id, (SType::RawSymbol, symbol), symbol);
        output.chunk.push(mapping.as_ref(), Schemas::default());
    }

    /// A published record.
    fn record(&mut self, kind: u8, bytes: &[u8], output: &mut StreamOutput<'_>) {
        let extra_flags = self.extra_flags();
        let Self { derivation, intervals, message, .. } = self;
        let StreamOutput { wanted, derived, chunk } = output;
        let (wanted, derived) = (*wanted, *derived);
        self.ts_event = control::ts_event(bytes).max(self.ts_event);
        self.publisher_id = bytes.get(2..4).and_then(|id| id.try_into().ok()).map_or(0, u16::from_le_bytes);
        intervals.advance(self.ts_event, wanted, chunk);
        let trade = (kind != rtype::MBO).then(|| read_trade(kind, bytes)).flatten();
        let schemas = Schemas::of_record(kind, trade.as_ref().is_some_and(|trade| trade.action == b'T'));
        if !wanted.and(schemas).is_empty() {
            match marked(bytes).filter(|_| self.has_hole && kind == rtype::MBO) {
                Some(order) => chunk.push(&order, schemas),
                None => chunk.push(bytes, schemas),
            }
        }
        match derivation {
            Derivation::Orders(_) if kind == rtype::MBO => message.extend(Mbo::read(bytes)),
            Derivation::Quotes if kind == rtype::MBP_1 => {
                if let Some(event) = &trade {
                    derive_trade(event, derived, chunk);
                    observe(event, &first_level(bytes), extra_flags, intervals);
                }
            }
            Derivation::Levels(tops) if kind == rtype::MBP_10 => {
                if let Some(event) = &trade {
                    derive_trade(event, derived, chunk);
                    derive_from_levels(
                        event,
                        bytes,
                        tops,
                        &mut Output { chunk, wanted: derived, intervals, extra_flags },
                    );
                }
            }
            Derivation::Trades if kind == rtype::MBP_0 => {
                if let Some(event) = &trade {
                    intervals.trade(event, extra_flags);
                }
            }
            _ => {}
        }
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

/// Feed and date of a session: two sessions of one day differ in their restart counts.
fn trading_day(session: &SessionBytes) -> Option<&[u8]> {
    session.get(..8)
}

/// An mbo record with the flag that says that its reader's book may be wrong.
pub(crate) fn marked(record: &[u8]) -> Option<[u8; size_of::<dbn::MboMsg>()]> {
    let mut record: [u8; size_of::<dbn::MboMsg>()] = record.try_into().ok()?;
    record[core::mem::offset_of!(dbn::MboMsg, flags)] |= dbn::flags::MAYBE_BAD_BOOK;
    Some(record)
}

/// The trade of a market-by-price record, if it is one.
fn derive_trade(event: &Mbo, derived: Schemas, chunk: &mut Chunk) {
    if event.action != b'T' || !derived.contains(Schemas::TRADES) {
        return;
    }
    let trade = TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(rtype::MBP_0, event.publisher_id, event.instrument_id, event.ts_event),
        price: event.price,
        size: event.size,
        action: c_char_of(event.action),
        side: c_char_of(event.side),
        flags: FlagSet::new(event.flags | dbn::flags::LAST),
        depth: 0,
        ts_recv: event.ts_recv,
        ts_in_delta: event.ts_in_delta,
        sequence: event.sequence,
    };
    chunk.push(trade.as_ref(), Schemas::TRADES);
}

/// The common fields of trades and market by price.
fn read_trade(kind: u8, record: &[u8]) -> Option<Mbo> {
    use core::mem::offset_of;
    if !matches!(kind, rtype::MBP_0 | rtype::MBP_1 | rtype::MBP_10) {
        return None;
    }
    Some(Mbo {
        publisher_id: record.get(2..4)?.try_into().ok().map(u16::from_le_bytes)?,
        instrument_id: control::instrument_id(record),
        ts_event: control::ts_event(record),
        order_id: 0,
        price: control::u64_at(record, offset_of!(TradeMsg, price)).cast_signed(),
        size: control::u32_at(record, offset_of!(TradeMsg, size)),
        flags: *record.get(offset_of!(TradeMsg, flags))?,
        action: *record.get(offset_of!(TradeMsg, action))?,
        side: *record.get(offset_of!(TradeMsg, side))?,
        ts_recv: control::u64_at(record, offset_of!(TradeMsg, ts_recv)),
        ts_in_delta: control::u32_at(record, offset_of!(TradeMsg, ts_in_delta)).cast_signed(),
        sequence: control::u32_at(record, offset_of!(TradeMsg, sequence)),
    })
}

/// The first level of a market-by-price record.
fn first_level(record: &[u8]) -> BidAskPair {
    let at = core::mem::offset_of!(Mbp1Msg, levels);
    BidAskPair {
        bid_px: control::u64_at(record, at).cast_signed(),
        ask_px: control::u64_at(record, at + 8).cast_signed(),
        bid_sz: control::u32_at(record, at + 16),
        ask_sz: control::u32_at(record, at + 20),
        bid_ct: control::u32_at(record, at + 24),
        ask_ct: control::u32_at(record, at + 28),
    }
}

fn observe(event: &Mbo, top: &BidAskPair, extra_flags: u8, intervals: &mut Intervals) {
    match event.action {
        b'T' => intervals.trade(event, extra_flags),
        _ => intervals.quote(event, top, extra_flags),
    }
}

/// mbp-1 from mbp-10: each trade, and each record that touched or changed the best level.
fn derive_from_levels(event: &Mbo, record: &[u8], tops: &mut BTreeMap<u32, BidAskPair>, out: &mut Output<'_>) {
    let top = first_level(record);
    let depth = record.get(core::mem::offset_of!(TradeMsg, depth)).copied().unwrap_or(u8::MAX);
    let is_trade = event.action == b'T';
    let has_changed = tops.insert(event.instrument_id, top.clone()).is_none_or(|before| before != top);
    if !is_trade && depth != 0 && !has_changed {
        return;
    }
    observe(event, &top, out.extra_flags, out.intervals);
    let schemas = Schemas::of_record(rtype::MBP_1, is_trade);
    if out.wanted.and(schemas).is_empty() {
        return;
    }
    let mbp_1 = Mbp1Msg {
        hd: RecordHeader::new::<Mbp1Msg>(rtype::MBP_1, event.publisher_id, event.instrument_id, event.ts_event),
        price: event.price,
        size: event.size,
        action: c_char_of(event.action),
        side: c_char_of(event.side),
        flags: FlagSet::new(event.flags),
        depth,
        ts_recv: event.ts_recv,
        ts_in_delta: event.ts_in_delta,
        sequence: event.sequence,
        levels: [top],
    };
    out.chunk.push(mbp_1.as_ref(), schemas);
}

#[cfg(test)]
pub(crate) mod tests {
    use dbn::{MboMsg, Mbp1Msg};
    use mdgw_publog::{LogOptions, Writer, open};
    use mdgw_wire::{frame::FrameMeta, identity::Sequence, time::UnixNs};
    use tempfile::TempDir;
    use zerocopy::IntoBytes as _;

    use super::*;

    const SESSION: SessionBytes = [7; 16];

    /// Writes the log of one channel as a gateway does.
    pub(crate) struct TestLog {
        pub(crate) source: ChannelSource,
        writer: Writer,
    }

    impl TestLog {
        pub(crate) fn new(directory: &TempDir) -> Self {
            Self::at(directory.path())
        }

        pub(crate) fn at(directory: &std::path::Path) -> Self {
            let log_directory = directory.to_owned();
            let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(&log_directory, 1) };
            let source = ChannelSource {
                id: ChannelId(1),
                feed: Feed::NasdaqItch,
                schemas: SchemaSet::MBO,
                log_directory,
                books: BookLimits::default(),
                journals: None,
            };
            Self { source, writer: open(options, 0).unwrap().writer }
        }

        /// An entry with one message of one record.
        fn add(&mut self, session: SessionBytes, sequence: u64, record: &[u8]) {
            self.add_part(session, sequence, FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART), record);
        }

        /// An entry with one part of a message, of one record.
        fn add_part(&mut self, session: SessionBytes, sequence: u64, flags: FrameFlags, record: &[u8]) {
            let mut meta = FrameMeta::message(Sequence(sequence), UnixNs(sequence), 0);
            meta.flags = flags;
            self.writer.begin(session, sequence);
            assert!(self.writer.append(meta.header(1, record).as_bytes()));
            assert!(self.writer.append(record));
            let next = sequence + u64::from(flags.contains(FrameFlags::LAST_PART));
            let _ = self.writer.commit(next, 1, 0, sequence).unwrap();
        }

        /// An entry with one message, which adds an order.
        pub(crate) fn add_order(&mut self, sequence: u64) {
            self.add_order_of(SESSION, sequence);
        }

        /// The same, of that session.
        pub(crate) fn add_order_of(&mut self, session: SessionBytes, sequence: u64) {
            self.add(session, sequence, order(sequence).as_ref());
        }

        /// An entry with the first part of a message, which adds an order.
        pub(crate) fn add_first_part_of(&mut self, session: SessionBytes, sequence: u64) {
            self.add_part(session, sequence, FrameFlags::FIRST_PART, order(sequence).as_ref());
        }
    }

    fn order(sequence: u64) -> MboMsg {
        MboMsg {
            hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 5, sequence),
            order_id: sequence,
            price: 1_000_000_000,
            size: 1,
            flags: FlagSet::new(dbn::flags::LAST),
            action: c_char_of(b'A'),
            side: c_char_of(b'B'),
            ..MboMsg::default()
        }
    }

    impl TestLog {
        /// An entry with one trade at that event time.
        pub(crate) fn add_trade(&mut self, sequence: u64, ts_event: u64) {
            let trade = MboMsg {
                hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 5, ts_event),
                price: 1_000_000_000,
                size: 3,
                action: c_char_of(b'T'),
                ..MboMsg::default()
            };
            self.add(SESSION, sequence, trade.as_ref());
        }
    }

    /// As a reader of all channels does.
    fn read(stream: &mut ChannelStream, wanted: Schemas, chunk: &mut Chunk) -> bool {
        stream.peek(None).is_some() && stream.read(wanted, chunk)
    }

    fn read_all(log: &TestLog, wanted: Schemas) -> Chunk {
        let mut stream = ChannelStream::open(&log.source, &Arc::default()).unwrap();
        let mut chunk = Chunk::default();
        while read(&mut stream, wanted, &mut chunk) {}
        chunk
    }

    /// The venue begins again at sequence 1, and the day goes on.
    #[test]
    fn a_restart_of_the_venue_cuts_no_bar_and_the_next_day_does() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        let trade = MboMsg {
            hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 5, 1),
            price: 1_000_000_000,
            size: 3,
            action: c_char_of(b'T'),
            ..MboMsg::default()
        };
        let (mut restarted, mut next_day) = (SESSION, SESSION);
        (restarted[8], next_day[4]) = (8, 8);
        for session in [SESSION, restarted, next_day] {
            log.add(session, 1, trade.as_ref());
        }
        let chunk = read_all(&log, Schemas::OHLCV_1D);
        let bars: Vec<_> = chunk.records().filter(|record| record.bytes[1] == rtype::OHLCV_1D).collect();
        let volume = |record: &[u8]| control::u64_at(record, core::mem::offset_of!(dbn::OhlcvMsg, volume));
        assert_eq!(bars.iter().map(|bar| volume(bar.bytes)).collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn trades_follow_from_the_market_by_price_that_a_channel_publishes() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        log.source.schemas = SchemaSet::MBP_1;
        for (sequence, action) in [(1, b'A'), (2, b'T')] {
            let record = Mbp1Msg {
                hd: RecordHeader::new::<Mbp1Msg>(rtype::MBP_1, 2, 5, sequence),
                price: 7,
                size: 3,
                action: c_char_of(action),
                ..Mbp1Msg::default()
            };
            log.add(SESSION, sequence, record.as_ref());
        }
        assert!(log.source.available().contains(Schemas::TRADES));
        let chunk = read_all(&log, Schemas::TRADES);
        let [trade] = &chunk.records().map(|record| record.bytes.to_vec()).collect::<Vec<_>>()[..] else {
            panic!("one trade")
        };
        assert_eq!((trade.len(), trade[1], control::ts_event(trade)), (size_of::<TradeMsg>(), rtype::MBP_0, 2));
        assert_eq!(control::u64_at(trade, core::mem::offset_of!(TradeMsg, price)), 7);
    }

    /// A gateway that restarts in mid-session goes on behind the messages of its absence. The numbers of its entries go on without
    /// a hole.
    #[test]
    fn derived_records_behind_messages_that_the_log_lacks_are_marked() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        for sequence in [1, 2, 4, 5] {
            log.add_order(sequence);
        }
        let mut stream = ChannelStream::open(&log.source, &Arc::default()).unwrap();
        let mut chunk = Chunk::default();
        while read(&mut stream, Schemas::MBP_1, &mut chunk) {}
        let at = core::mem::offset_of!(Mbp1Msg, flags);
        let marked: Vec<_> = chunk.records().map(|record| record.bytes[at] & dbn::flags::MAYBE_BAD_BOOK != 0).collect();
        assert_eq!(marked, [false, false, true, true]);
        assert!(stream.is_incomplete() && !stream.began_incomplete());
    }

    /// The orders of the missing messages are in no client's book.
    #[test]
    fn mbo_records_behind_messages_that_the_log_lacks_are_marked() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        for sequence in [3, 4, 6, 7] {
            log.add_order(sequence);
        }
        let mut stream = ChannelStream::open(&log.source, &Arc::default()).unwrap();
        let mut chunk = Chunk::default();
        while read(&mut stream, Schemas::MBO, &mut chunk) {}
        let at = core::mem::offset_of!(MboMsg, flags);
        let marked: Vec<_> = chunk.records().map(|record| record.bytes[at] & dbn::flags::MAYBE_BAD_BOOK != 0).collect();
        assert_eq!(marked, [false, false, true, true], "a log that begins late has no hole");
    }
}
