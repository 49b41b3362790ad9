//! One channel: from the entries of its log to records, derived schemas included.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use dbn::{BidAskPair, FlagSet, Mbp1Msg, RecordHeader, SType, TradeMsg, enums::rtype};
use mdgw_feeds::{book::BookLimits, channel::SchemaSet};
use mdgw_log_books::{
    books::{Books, Mbo},
    record::c_char_of,
};
use mdgw_publog::{LogError, Reader, SessionBytes};
use mdgw_wire::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind},
    identity::{ChannelId, Feed},
    published::packet::{Frames, PacketFlags},
};

use super::{
    chunk::Chunk,
    derived::{self, Output},
    intervals::Intervals,
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
}

/// The next records of a channel.
#[derive(Debug)]
pub(crate) struct ChannelStream {
    reader: Reader,
    edge: ConsumerEdge,
    native: Schemas,
    derivation: Derivation,
    intervals: Intervals,
    /// The mbo records of the message in progress.
    message: Vec<Mbo>,
    session: Option<SessionBytes>,
    /// Whether the books may lack orders: the log begins after its session did, or has a hole.
    is_incomplete: bool,
    /// Whether the oldest entry of the log was not the beginning of its session.
    began_incomplete: bool,
    /// Whether messages of the session are missing between those that were read: books that a client keeps of the mbo records are wrong.
    has_hole: bool,
    has_ended: bool,
    /// Number of the entry behind the last one read.
    next_entry: u64,
    /// First sequence of the session that no entry has covered so far.
    next_sequence: u64,
    ts_event: u64,
    publisher_id: u16,
    /// Instruments that were named in the session.
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
    /// Begins at the oldest entry of the log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(crate) fn open(source: &ChannelSource) -> Result<Self, LogError> {
        Ok(Self {
            reader: Reader::open(&source.log_directory, source.id.0)?,
            edge: ConsumerEdge::new(TsRecvMode::Capture),
            native: source.native(),
            derivation: match source.basis() {
                Basis::Orders => Derivation::Orders(Box::new(Books::new(source.books))),
                Basis::Quotes => Derivation::Quotes,
                Basis::Levels => Derivation::Levels(BTreeMap::new()),
                Basis::Trades => Derivation::Trades,
                Basis::Nothing => Derivation::Nothing,
            },
            intervals: Intervals::default(),
            message: Vec::new(),
            session: None,
            is_incomplete: false,
            began_incomplete: false,
            has_hole: false,
            has_ended: false,
            next_entry: 0,
            next_sequence: FIRST_SEQUENCE,
            ts_event: 0,
            publisher_id: 0,
            instruments: BTreeSet::new(),
        })
    }

    /// Number of the entry behind the last one read.
    pub(crate) fn next_entry(&self) -> u64 {
        self.next_entry
    }

    /// Number and commit time of the next entry, if there is one.
    pub(crate) fn peek(&mut self) -> Option<(u64, u64)> {
        self.reader.peek().map(|entry| (entry.number, entry.ts_commit))
    }

    /// Whether the venue has ended the session of the last entry.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the log lacks messages of the session so far.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Whether the oldest entry of the log was not the beginning of its session.
    pub(crate) fn began_incomplete(&self) -> bool {
        self.began_incomplete
    }

    /// Latest event time of the records read, ns since 1970 UTC.
    pub(crate) fn ts_event(&self) -> u64 {
        self.ts_event
    }

    /// Other channels have intervals too: their ends are announced for all channels together.
    pub(crate) fn share_intervals(&mut self) {
        self.intervals = Intervals::of_several();
    }

    /// Bars and samples.
    pub(crate) fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    /// The same, to take the ends that were reached.
    pub(crate) fn intervals_mut(&mut self) -> &mut Intervals {
        &mut self.intervals
    }

    /// Whether the venue has named the instrument on this channel in the present session.
    pub(crate) fn has_instrument(&self, id: u32) -> bool {
        self.instruments.contains(&id)
    }

    /// The books by order, with the publisher of their records.
    pub(crate) fn books(&self) -> Option<(&Books, u16)> {
        match &self.derivation {
            Derivation::Orders(books) => Some((books, self.publisher_id)),
            _ => None,
        }
    }

    /// Reads one entry and appends its wanted records. Returns whether there was one.
    pub(crate) fn read(&mut self, wanted: Schemas, chunk: &mut Chunk) -> bool {
        let Some(entry) = self.reader.next() else { return false };
        // Entries that the log no longer has, or messages that it never had: a gateway that restarts in mid-session goes on behind
        // the messages of its absence, with the next number.
        let has_hole = self.next_entry != 0 && entry.number > self.next_entry || entry.first > self.next_sequence;
        self.next_entry = entry.number + 1;
        let derived = wanted.without(self.native);
        if self.session != Some(entry.session) {
            self.began_incomplete |= self.session.is_none() && entry.first > FIRST_SEQUENCE;
            // The venue's restart on the same day cuts no bar.
            if self.session.is_some_and(|session| trading_day(&session) == trading_day(&entry.session)) {
                self.intervals.forget_books();
            } else {
                self.intervals.finish(wanted, chunk);
            }
            self.session = Some(entry.session);
            self.has_hole = false;
            self.instruments.clear();
            match &mut self.derivation {
                Derivation::Orders(books) => books.clear(),
                Derivation::Levels(tops) => tops.clear(),
                Derivation::Quotes | Derivation::Trades | Derivation::Nothing => {}
            }
            self.message.clear();
            (self.has_ended, self.is_incomplete) = (false, entry.first > FIRST_SEQUENCE);
            self.next_sequence = entry.next;
        } else if has_hole {
            // The rest of a message in progress is part of the hole.
            self.message.clear();
            (self.is_incomplete, self.has_hole) = (true, true);
        }
        self.next_sequence = self.next_sequence.max(entry.next);
        let extra_flags = if self.is_incomplete { dbn::flags::MAYBE_BAD_BOOK } else { 0 };
        for (header, body) in Frames::of_body(entry.payload) {
            let flags = FrameFlags(header.flags);
            if header.kind != FrameKind::Message as u8 || flags.contains(FrameFlags::LATE_FILL) {
                continue;
            }
            let Self { edge, derivation, intervals, message, ts_event, publisher_id, has_hole, instruments, .. } = self;
            edge.deliver(header, body, |output| match output {
                EdgeOutput::Mapping { id, symbol } => {
                    if let Ok(symbol) = std::str::from_utf8(symbol) {
                        instruments.insert(id.0);
                        let mapping = control::mapping(*ts_event, id.0, (SType::RawSymbol, symbol), symbol);
                        chunk.push(mapping.as_ref(), Schemas::default());
                    }
                }
                EdgeOutput::OtherLength { .. } => {}
                EdgeOutput::Record { rtype: kind, bytes } => {
                    *ts_event = control::ts_event(bytes).max(*ts_event);
                    *publisher_id = bytes.get(2..4).and_then(|id| id.try_into().ok()).map_or(0, u16::from_le_bytes);
                    intervals.advance(*ts_event, wanted, chunk);
                    let trade = (kind != rtype::MBO).then(|| read_trade(kind, bytes)).flatten();
                    let schemas = Schemas::of_record(kind, trade.as_ref().is_some_and(|trade| trade.action == b'T'));
                    if !wanted.and(schemas).is_empty() {
                        match marked(bytes).filter(|_| *has_hole && kind == rtype::MBO) {
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
            });
            if let Derivation::Orders(books) = derivation
                && flags.contains(FrameFlags::LAST_PART)
            {
                let mut output = Output { chunk, wanted: derived, intervals, extra_flags };
                derived::derive(books, message, &mut output);
                message.clear();
            }
        }
        if entry.flags & u16::from(PacketFlags::END_OF_SESSION.0) != 0 {
            self.has_ended = true;
            self.intervals.finish(wanted, chunk);
        }
        true
    }
}

/// Sequence of a session's first message.
const FIRST_SEQUENCE: u64 = 1;

/// Feed and date of a session: two sessions of one day differ in their restart counts.
fn trading_day(session: &SessionBytes) -> Option<&[u8]> {
    session.get(..8)
}

/// An mbo record with the flag that says that its reader's book may be wrong.
fn marked(record: &[u8]) -> Option<[u8; size_of::<dbn::MboMsg>()]> {
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
            let log_directory = directory.path().to_owned();
            let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(&log_directory, 1) };
            let source = ChannelSource {
                id: ChannelId(1),
                feed: Feed::NasdaqItch,
                schemas: SchemaSet::MBO,
                log_directory,
                books: BookLimits::default(),
            };
            Self { source, writer: open(options, 0).unwrap().writer }
        }

        /// An entry with one message of one record.
        fn add(&mut self, session: SessionBytes, sequence: u64, record: &[u8]) {
            let mut meta = FrameMeta::message(Sequence(sequence), UnixNs(sequence), 0);
            meta.flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
            self.writer.begin(session, sequence);
            assert!(self.writer.append(meta.header(1, record).as_bytes()));
            assert!(self.writer.append(record));
            let _ = self.writer.commit(sequence + 1, 1, 0, sequence).unwrap();
        }

        /// An entry with one message, which adds an order.
        pub(crate) fn add_order(&mut self, sequence: u64) {
            let order = MboMsg {
                hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 5, sequence),
                order_id: sequence,
                price: 1_000_000_000,
                size: 1,
                flags: FlagSet::new(dbn::flags::LAST),
                action: c_char_of(b'A'),
                side: c_char_of(b'B'),
                ..MboMsg::default()
            };
            self.add(SESSION, sequence, order.as_ref());
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

    fn read_all(log: &TestLog, wanted: Schemas) -> Chunk {
        let mut stream = ChannelStream::open(&log.source).unwrap();
        let mut chunk = Chunk::default();
        while stream.read(wanted, &mut chunk) {}
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
        let mut stream = ChannelStream::open(&log.source).unwrap();
        let mut chunk = Chunk::default();
        while stream.read(Schemas::MBP_1, &mut chunk) {}
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
        let mut stream = ChannelStream::open(&log.source).unwrap();
        let mut chunk = Chunk::default();
        while stream.read(Schemas::MBO, &mut chunk) {}
        let at = core::mem::offset_of!(MboMsg, flags);
        let marked: Vec<_> = chunk.records().map(|record| record.bytes[at] & dbn::flags::MAYBE_BAD_BOOK != 0).collect();
        assert_eq!(marked, [false, false, true, true], "a log that begins late has no hole");
    }
}
