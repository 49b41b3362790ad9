use dbn::{FlagSet, MboMsg, Mbp1Msg, RecordHeader, TradeMsg, enums::rtype};
use mdgw_feeds::{book::BookLimits, channel::SchemaSet};
use mdgw_log_books::record::c_char_of;
use mdgw_publog::{LogOptions, Writer, open};
use mdgw_wire::{
    frame::{FrameMeta, GapBody},
    identity::{Feed, Sequence},
    time::UnixNs,
};
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
            symbols: None,
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
    /// An entry that ends the session of [`SESSION`]'s day with that restart number.
    pub(crate) fn end_session(&mut self, restart: u8, next: u64) {
        self.writer.begin(restarted(restart), next);
        let _ = self.writer.commit(next, 0, u16::from(PacketFlags::END_OF_SESSION.0), next).unwrap();
    }

    /// An entry with a gap.
    fn add_gap(&mut self, first: u64, next: u64) {
        let meta = FrameMeta::control(FrameKind::Gap, Sequence(first), Sequence(next));
        let body = GapBody { first: first.into(), next: next.into() };
        self.writer.begin(SESSION, first);
        assert!(self.writer.append(meta.header(0, body.as_bytes()).as_bytes()));
        assert!(self.writer.append(body.as_bytes()));
        let _ = self.writer.commit(next, 1, 0, first).unwrap();
    }

    /// An entry with one trade at that event time.
    pub(crate) fn add_trade(&mut self, sequence: u64, ts_event: u64) {
        self.add_trade_of(SESSION, sequence, ts_event);
    }

    /// The same, of that session.
    pub(crate) fn add_trade_of(&mut self, session: SessionBytes, sequence: u64, ts_event: u64) {
        let trade = MboMsg {
            hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 5, ts_event),
            price: 1_000_000_000,
            size: 3,
            action: c_char_of(b'T'),
            ..MboMsg::default()
        };
        self.add(session, sequence, trade.as_ref());
    }
}

/// The session that the venue began with that restart on the day of [`SESSION`].
pub(crate) fn restarted(restart: u8) -> SessionBytes {
    let mut session = SESSION;
    session[8] = restart;
    session
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
    assert!(stream.is_suspect(5) && !stream.began_incomplete());
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

/// A snapshot has the marks that the gateway's own records carry.
#[test]
fn books_behind_a_gap_and_books_that_the_gateway_marks_are_suspect() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::new(&directory);
    log.add_order(1);
    let mut stream = ChannelStream::open(&log.source, &Arc::default()).unwrap();
    let mut suspects = |_: &TestLog| {
        while read(&mut stream, Schemas::MBO, &mut Chunk::default()) {}
        [5, 6].map(|instrument| stream.is_suspect(instrument))
    };
    assert_eq!(suspects(&log), [false, false]);
    let suspect = MboMsg { flags: FlagSet::new(dbn::flags::LAST | dbn::flags::MAYBE_BAD_BOOK), ..order(2) };
    log.add(SESSION, 2, suspect.as_ref());
    assert_eq!(suspects(&log), [true, false], "the gateway marks one");
    log.add_order(3);
    assert_eq!(suspects(&log), [false, false]);
    log.add_gap(4, 6);
    assert_eq!(suspects(&log), [true, true]);
    log.add_order(6);
    assert_eq!(suspects(&log), [true, true]);
    log.add_order_of(restarted(8), 1);
    assert_eq!(suspects(&log), [false, false], "the venue has begun again");
}
