//! What the records of a session leave behind, and the schemas that are derived from them.

use std::collections::{BTreeMap, BTreeSet};

use dbn::{BidAskPair, FlagSet, Mbp1Msg, RecordHeader, SType, TradeMsg, enums::rtype};
use mdgw_log_books::{
    books::{Books, Mbo},
    record::c_char_of,
};
use mdgw_publog::SessionBytes;

use super::{
    super::{
        chunk::Chunk,
        derived::{self, Output},
        intervals::Intervals,
    },
    FIRST_SEQUENCE,
    source::{Basis, ChannelSource},
};
use crate::{control, schema::Schemas};

/// What the records of a session leave behind, wherever they came from.
#[derive(Debug)]
pub(super) struct ChannelState {
    pub(super) derivation: Derivation,
    /// Whether orders reach the books. Without, nothing that follows from books may be wanted.
    pub(super) keeps_books: bool,
    pub(super) intervals: Intervals,
    /// The mbo records of the message in progress.
    message: Vec<Mbo>,
    /// Whether nothing of that message follows.
    pub(super) is_message_whole: bool,
    /// Sequence of that message.
    pub(super) sequence: u64,
    /// Whether the books may lack orders: the records begin after their session did, or have a hole.
    pub(super) is_incomplete: bool,
    /// Whether messages of the session are missing between those that were read: books that a client keeps of the mbo records are wrong.
    pub(super) has_hole: bool,
    /// Instruments whose latest mbo record says that their book may be wrong.
    pub(super) suspect: BTreeSet<u32>,
    pub(super) ts_event: u64,
    pub(super) publisher_id: u16,
    /// Instruments that were named on the day of the session.
    pub(super) instruments: BTreeSet<u32>,
}

/// What the schemas that the channel does not publish are derived from.
#[derive(Debug)]
pub(super) enum Derivation {
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

/// Where records go, and which are wanted.
pub(super) struct StreamOutput<'a> {
    pub(super) wanted: Schemas,
    /// Those of them that are not published.
    pub(super) derived: Schemas,
    pub(super) chunk: &'a mut Chunk,
}

impl ChannelState {
    /// Before the first record of that channel.
    pub(super) fn new(source: &ChannelSource) -> Self {
        let derivation = match source.basis() {
            Basis::Orders => Derivation::Orders(Box::new(Books::new(source.books))),
            Basis::Quotes => Derivation::Quotes,
            Basis::Levels => Derivation::Levels(BTreeMap::new()),
            Basis::Trades => Derivation::Trades,
            Basis::Nothing => Derivation::Nothing,
        };
        Self {
            derivation,
            keeps_books: true,
            intervals: Intervals::default(),
            message: Vec::new(),
            is_message_whole: false,
            sequence: 0,
            is_incomplete: false,
            has_hole: false,
            suspect: BTreeSet::new(),
            ts_event: 0,
            publisher_id: 0,
            instruments: BTreeSet::new(),
        }
    }

    /// A session begins at that sequence, after another one or none.
    pub(super) fn begin(
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
        self.suspect.clear();
        (self.is_incomplete, self.has_hole) = (first > FIRST_SEQUENCE, false);
    }

    /// Messages are missing between those that were read. The rest of a message in progress is part of the hole, unless the message is
    /// whole.
    pub(super) fn note_hole(&mut self, output: &mut StreamOutput<'_>) {
        if std::mem::take(&mut self.is_message_whole) {
            self.flush(output);
        }
        self.message.clear();
        (self.is_incomplete, self.has_hole) = (true, true);
    }

    /// The gateway declared messages missing. It marks its own records behind them; the books by order that are kept here lack them too.
    pub(super) fn note_gap(&mut self, output: &mut StreamOutput<'_>) {
        if matches!(self.derivation, Derivation::Orders(_)) {
            self.note_hole(output);
        }
    }

    /// A message begins or goes on: what a former one brought is complete.
    pub(super) fn begin_message(&mut self, sequence: u64, output: &mut StreamOutput<'_>) {
        if self.sequence != sequence {
            self.flush(output);
            self.sequence = sequence;
        }
        self.is_message_whole = false;
    }

    /// The records of the message are complete: derives what follows from them.
    pub(super) fn flush(&mut self, output: &mut StreamOutput<'_>) {
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

    pub(super) fn mapping(&mut self, id: u32, symbol: &str, output: &mut StreamOutput<'_>) {
        self.instruments.insert(id);
        let mapping = control::mapping(self.ts_event, id, (SType::RawSymbol, symbol), symbol);
        output.chunk.push(mapping.as_ref(), Schemas::default());
    }

    /// A published record.
    pub(super) fn record(&mut self, kind: u8, bytes: &[u8], output: &mut StreamOutput<'_>) {
        let extra_flags = self.extra_flags();
        let Self { derivation, intervals, message, suspect, .. } = self;
        let StreamOutput { wanted, derived, chunk } = output;
        let (wanted, derived) = (*wanted, *derived);
        self.ts_event = control::ts_event(bytes).max(self.ts_event);
        self.publisher_id = bytes.get(2..4).and_then(|id| id.try_into().ok()).map_or(0, u16::from_le_bytes);
        intervals.advance(self.ts_event, wanted, chunk);
        let trade = (kind != rtype::MBO).then(|| read_trade(kind, bytes)).flatten();
        let schemas = Schemas::of_record(kind, trade.as_ref().is_some_and(|trade| trade.action == b'T'));
        if !wanted.and(schemas).is_empty() {
            let marked = if self.has_hole && kind == rtype::MBO { marked(bytes) } else { None };
            match &marked {
                Some(order) => chunk.push(order, schemas),
                None => chunk.push(bytes, schemas),
            }
        }
        match derivation {
            Derivation::Orders(_) if kind == rtype::MBO => {
                let Some(order) = bytes.first_chunk::<{ size_of::<dbn::MboMsg>() }>() else { return };
                let instrument_id = control::instrument_id(order);
                if order[core::mem::offset_of!(dbn::MboMsg, flags)] & dbn::flags::MAYBE_BAD_BOOK == 0 {
                    suspect.remove(&instrument_id);
                } else {
                    suspect.insert(instrument_id);
                }
                if self.keeps_books {
                    message.extend(Mbo::read(order));
                }
            }
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

/// Feed and date of a session: two sessions of one day differ in their restart counts.
pub(super) fn trading_day(session: &SessionBytes) -> Option<&[u8]> {
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
