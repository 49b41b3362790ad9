use dbn::{FlagSet, MboMsg, Mbp1Msg, RecordHeader};
use mdgw_feeds::book::{InstrumentIndex, Side};
use mdgw_publog::{LogOptions, Writer, open};
use mdgw_wire::{
    frame::{FrameMeta, GapBody},
    identity::Sequence,
    time::UnixNs,
};
use tempfile::TempDir;
use zerocopy::{
    IntoBytes as _,
    little_endian::{U16, U64},
};

use super::*;
use crate::record::c_char_of;

const SESSION: SessionBytes = [7; 16];
const WHOLE: FrameFlags = FrameFlags(3);

/// Writes the log of one channel as a gateway does.
struct TestLog {
    directory: TempDir,
    writer: Writer,
}

impl TestLog {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(directory.path(), 1) };
        let writer = open(options, 0).unwrap().writer;
        Self { directory, writer }
    }

    fn entry(&mut self, session: SessionBytes, (first, next): (u64, u64), frames: &[u8]) {
        self.writer.begin(session, first);
        assert!(self.writer.append(frames));
        let _ = self.writer.commit(next, 1, 0, first).unwrap();
    }

    /// One message in an entry of its own.
    fn message(&mut self, sequence: u64, flags: FrameFlags, records: &[&[u8]]) {
        self.entry(SESSION, (sequence, sequence + 1), &frame(sequence, flags, 0, records));
    }

    fn gap(&mut self, first: u64, next: u64) {
        let meta = FrameMeta::control(FrameKind::Gap, Sequence(first), Sequence(next));
        let body = GapBody { first: U64::new(first), next: U64::new(next) };
        self.entry(SESSION, (first, next), &[meta.header(0, body.as_bytes()).as_bytes(), body.as_bytes()].concat());
    }

    fn state(&self) -> ChannelState {
        let limits = BookLimits { orders_max: 100, levels_max: 100, instruments_max: 100, ..BookLimits::default() };
        ChannelState::open(self.directory.path(), ChannelId(1), limits).unwrap()
    }

    fn snapshot(&self) -> StateSnapshot {
        let mut state = self.state();
        while state.follow(1) {}
        state.snapshot()
    }
}

fn frame(sequence: u64, flags: FrameFlags, part: u16, records: &[&[u8]]) -> Vec<u8> {
    let body = records.concat();
    let mut meta = FrameMeta::message(Sequence(sequence), UnixNs(100 + sequence), 0);
    meta.flags = flags;
    let header = FrameHeader { part: U16::new(part), ..meta.header(u16::try_from(records.len()).unwrap(), &body) };
    [header.as_bytes(), &body].concat()
}

fn mbo(action: u8, instrument: u32, order_id: u64, price: i64, size: u32, is_last: bool) -> MboMsg {
    MboMsg {
        hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, instrument, 5),
        order_id,
        price,
        size,
        flags: FlagSet::new(if is_last { dbn::flags::LAST } else { 0 }),
        action: c_char_of(action),
        side: c_char_of(b'B'),
        ..MboMsg::default()
    }
}

fn mbp_1(action: u8, instrument: u32, bid: i64) -> Mbp1Msg {
    let mut record = Mbp1Msg {
        hd: RecordHeader::new::<Mbp1Msg>(rtype::MBP_1, 2, instrument, 5),
        action: c_char_of(action),
        ..Mbp1Msg::default()
    };
    record.levels[0].bid_px = bid;
    record
}

/// Each record in a few words; `!` marks a book that may be bad.
fn texts(snapshot: &StateSnapshot) -> Vec<String> {
    let mut rest = snapshot.records.as_slice();
    let mut texts = Vec::new();
    while let Some((record, others)) = split_record(rest) {
        rest = others;
        let (text, flags) = if let Some(mbo) = Mbo::read(record) {
            let text =
                format!("{}{} {}@{} #{}", char::from(mbo.action), mbo.instrument_id, mbo.size, mbo.price, mbo.order_id);
            (if mbo.action == b'R' { format!("R{}", mbo.instrument_id) } else { text }, mbo.flags)
        } else {
            let flags = flags_offset(record[1]).map_or(0, |offset| record[offset]);
            let bid = record::u64_at(record, offset_of!(Mbp1Msg, levels));
            (format!("{:#x} {} {bid}", record[1], record::instrument_id(record)), flags)
        };
        assert_eq!(flags & dbn::flags::SNAPSHOT, dbn::flags::SNAPSHOT, "{text}");
        texts.push(format!("{text}{}", if flags & dbn::flags::MAYBE_BAD_BOOK == 0 { "" } else { "!" }));
    }
    texts
}

#[test]
fn books_by_order_follow_every_kind_of_message() {
    let mut log = TestLog::new();
    let (add, cancel) =
        (|id, price, size| mbo(b'A', 5, id, price, size, true), |id, size, last| mbo(b'C', 5, id, 10, size, last));
    log.message(1, WHOLE, &[add(1, 10, 7).as_ref()]);
    log.message(2, WHOLE, &[add(2, 10, 7).as_ref()]);
    log.message(3, WHOLE, &[mbo(b'A', 4, 3, 20, 1, true).as_ref()]);
    // A part of order 1 is cancelled, then a part executed.
    log.message(4, WHOLE, &[cancel(1, 2, true).as_ref()]);
    let (trade, fill) = (mbo(b'T', 5, 0, 10, 1, false), mbo(b'F', 5, 1, 10, 1, false));
    log.message(5, WHOLE, &[trade.as_ref(), fill.as_ref(), cancel(1, 1, true).as_ref()]);
    // Order 2 is replaced by order 4.
    log.message(6, WHOLE, &[cancel(2, 7, false).as_ref(), add(4, 11, 3).as_ref()]);
    let snapshot = log.snapshot();
    assert_eq!(texts(&snapshot), ["R4", "A4 1@20 #3", "R5", "A5 3@11 #4", "A5 4@10 #1"]);
    assert_eq!(
        (snapshot.order_count, snapshot.instrument_count, snapshot.is_suspect, snapshot.ts_recv),
        (3, 2, false, 106)
    );
}

/// A consumer that lost the cancel still holds the order.
#[test]
fn an_instrument_whose_orders_are_gone_has_a_clear_until_the_next_session() {
    let mut log = TestLog::new();
    for (sequence, instrument) in [(1, 3), (2, 5), (3, 9)] {
        log.message(sequence, WHOLE, &[mbo(b'A', instrument, instrument.into(), 10, 7, true).as_ref()]);
    }
    for (sequence, instrument) in [(4, 3), (5, 9)] {
        log.message(sequence, WHOLE, &[mbo(b'C', instrument, instrument.into(), 10, 7, true).as_ref()]);
    }
    let snapshot = log.snapshot();
    assert_eq!(texts(&snapshot), ["R3", "R5", "A5 7@10 #5", "R9"]);
    assert_eq!((snapshot.order_count, snapshot.instrument_count), (1, 3));
    log.entry([8; 16], (1, 2), &frame(1, WHOLE, 0, &[mbo(b'A', 5, 1, 10, 7, true).as_ref()]));
    assert_eq!(texts(&log.snapshot()), ["R5", "A5 7@10 #1"]);
}

#[test]
fn the_latest_levels_of_each_instrument_are_kept_and_trades_are_not() {
    let mut log = TestLog::new();
    log.message(1, WHOLE, &[mbp_1(b'A', 1, 10).as_ref()]);
    log.message(2, WHOLE, &[mbp_1(b'A', 2, 20).as_ref()]);
    log.message(3, WHOLE, &[mbp_1(b'A', 1, 11).as_ref()]);
    log.message(4, WHOLE, &[mbp_1(b'T', 1, 9).as_ref()]);
    assert_eq!(texts(&log.snapshot()), ["0x1 1 11", "0x1 2 20"]);
    assert!(!log.snapshot().is_suspect);
}

/// A message counts when its last part is there; its position does then too.
#[test]
fn a_message_in_parts_is_applied_as_a_whole() {
    let mut log = TestLog::new();
    log.message(1, WHOLE, &[mbo(b'A', 5, 1, 10, 7, true).as_ref()]);
    log.entry(SESSION, (2, 2), &frame(2, FrameFlags::FIRST_PART, 0, &[mbo(b'C', 5, 1, 10, 7, false).as_ref()]));
    let mut state = log.state();
    while state.follow(1) {}
    assert_eq!(state.position(), Some((SESSION, 2)));
    assert_eq!(texts(&state.snapshot()), ["R5", "A5 7@10 #1"]);
    log.entry(SESSION, (2, 3), &frame(2, FrameFlags::LAST_PART, 1, &[mbo(b'A', 5, 2, 12, 3, true).as_ref()]));
    while state.follow(1) {}
    assert_eq!(state.position(), Some((SESSION, 3)));
    assert_eq!(texts(&state.snapshot()), ["R5", "A5 3@12 #2"]);
}

#[test]
fn books_that_may_lack_orders_are_marked_until_the_next_session() {
    let gap = |log: &mut TestLog| log.gap(2, 4);
    let hole = |log: &mut TestLog| log.message(4, WHOLE, &[mbo(b'A', 6, 9, 10, 7, true).as_ref()]);
    let undecoded = |log: &mut TestLog| log.message(2, WHOLE.with(FrameFlags::SUSPECT), &[]);
    let lose: [&dyn Fn(&mut TestLog); 3] = [&gap, &hole, &undecoded];
    for lose in lose {
        let mut log = TestLog::new();
        log.message(
            1,
            WHOLE,
            &[mbo(b'A', 5, 1, 10, 7, true).as_ref(), mbp_1(b'A', 7, 10).as_ref(), mbp_1(b'A', 8, 10).as_ref()],
        );
        lose(&mut log);
        log.message(5, WHOLE, &[mbp_1(b'A', 8, 11).as_ref()]);
        let snapshot = log.snapshot();
        assert!(snapshot.is_suspect);
        let texts_here = texts(&snapshot);
        assert!(texts_here.contains(&"A5 7@10 #1!".to_owned()), "{texts_here:?}");
        // Levels are marked until the instrument's next record, which has all of them.
        assert!(texts_here.ends_with(&["0x1 7 10!".to_owned(), "0x1 8 11".to_owned()]), "{texts_here:?}");
        log.entry([8; 16], (1, 2), &frame(1, WHOLE, 0, &[mbo(b'A', 5, 1, 10, 7, true).as_ref()]));
        assert_eq!(texts(&log.snapshot()), ["R5", "A5 7@10 #1"]);
    }
}

#[test]
fn a_book_that_the_gateway_marks_is_marked_alone() {
    let mut log = TestLog::new();
    log.message(1, WHOLE, &[mbo(b'A', 5, 1, 10, 7, true).as_ref()]);
    log.message(2, WHOLE.with(FrameFlags::SUSPECT), &[mbo(b'A', 6, 2, 10, 7, true).as_ref()]);
    let snapshot = log.snapshot();
    assert_eq!(
        (texts(&snapshot), snapshot.is_suspect),
        (["R5", "A5 7@10 #1", "R6!", "A6 7@10 #2!"].iter().map(ToString::to_string).collect(), true)
    );
}

#[test]
fn a_copy_of_the_peers_books_fills_what_the_log_lacks() {
    let order = |order_id, priority| OrderView {
        order_id,
        instrument: InstrumentIndex(5),
        side: Side::Bid,
        price_e9: 10,
        size: 7,
        priority,
    };
    for (next, is_suspect, expected) in [
        (100, false, vec!["R5", "A5 7@10 #8", "A5 7@10 #7", "A5 1@10 #9"]),
        (100, true, vec!["R5!", "A5 7@10 #8!", "A5 7@10 #7!", "A5 1@10 #9!"]),
        // The log lacks messages behind the copy.
        (99, false, vec!["R5!", "A5 7@10 #8!", "A5 7@10 #7!", "A5 1@10 #9!"]),
    ] {
        let mut log = TestLog::new();
        log.message(100, WHOLE, &[mbo(b'A', 5, 9, 10, 1, true).as_ref()]);
        let mut state = log.state();
        let orders = vec![order(8, 3), order(7, 4)];
        state.begin_with(InitialState { session: SESSION, next, orders, is_suspect });
        while state.follow(1) {}
        assert_eq!(texts(&state.snapshot()), expected, "{next} {is_suspect}");
    }
}

#[test]
fn names_come_first_if_asked_for_and_are_those_of_the_session() {
    let name = |instrument: u32, symbol: u8| {
        let hd = RecordHeader::new::<dbn::SymbolMappingMsg>(rtype::SYMBOL_MAPPING, 2, instrument, 1);
        let mut mapping = dbn::SymbolMappingMsg { hd, ..Default::default() };
        mapping.stype_out_symbol[0] = c_char_of(symbol);
        mapping
    };
    let hd = RecordHeader::new::<dbn::InstrumentDefMsg>(rtype::INSTRUMENT_DEF, 2, 5, 1);
    let definition = dbn::InstrumentDefMsg { hd, ..Default::default() };
    let mut log = TestLog::new();
    log.message(1, WHOLE, &[definition.as_ref(), name(5, b'A').as_ref(), mbo(b'A', 5, 1, 10, 7, true).as_ref()]);
    log.message(2, WHOLE, &[name(4, b'B').as_ref(), mbp_1(b'A', 4, 11).as_ref()]);
    log.message(3, WHOLE, &[name(7, b'C').as_ref()]);
    log.message(4, WHOLE, &[name(5, b'D').as_ref()]);
    let snapshots = |log: &TestLog| {
        let mut state = log.state();
        while state.follow(1) {}
        (state.snapshot(), state.snapshot_with_names())
    };
    let (books, whole) = snapshots(&log);
    let names: Vec<u8> =
        [name(4, b'B').as_ref(), name(5, b'D').as_ref(), definition.as_ref(), name(7, b'C').as_ref()].concat();
    assert_eq!(whole.records, [names, books.records.clone()].concat());
    assert_eq!(texts(&books), ["R5", "A5 7@10 #1", "0x1 4 11"]);
    assert_eq!((books.instrument_count, whole.instrument_count), (2, 3));
    assert_eq!((whole.order_count, whole.is_suspect, whole.ts_recv), (1, false, books.ts_recv));
    // A gap makes books suspect, and no name wrong. The next session has names of its own.
    log.gap(5, 6);
    let (books, whole) = snapshots(&log);
    assert_eq!(whole.records.len() - books.records.len(), 3 * size_of_val(&name(4, 0)) + size_of_val(&definition));
    log.entry([8; 16], (1, 2), &frame(1, WHOLE, 0, &[name(9, b'E').as_ref()]));
    assert_eq!(snapshots(&log).1.records, name(9, b'E').as_ref());
}
