//! Bars and samples: what each second, minute, hour and day of event time brought.
//!
//! An interval ends when the channel's event time reaches its end, or at the end of the session. So the records are a function
//! of the stream, and a replay gives the same ones. An instrument has a record of an interval only if something happened to
//! the instrument: a trade for a bar, a trade or a new best level for a sample.

use std::collections::BTreeMap;

use dbn::{BboMsg, BidAskPair, FlagSet, OhlcvMsg, RecordHeader, UNDEF_ORDER_SIZE, UNDEF_PRICE, enums::rtype};

use mdgw_log_books::{books::Mbo, record::c_char_of};

use super::chunk::Chunk;
use crate::{control, schema::Schemas};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// Lengths of intervals, ns: those of bars; the first two are those of samples too.
const LENGTHS_NS: [u64; 4] = [NS_PER_SECOND, 60 * NS_PER_SECOND, 3_600 * NS_PER_SECOND, 86_400 * NS_PER_SECOND];
const BAR_SCHEMAS: [Schemas; 4] = [Schemas::OHLCV_1S, Schemas::OHLCV_1M, Schemas::OHLCV_1H, Schemas::OHLCV_1D];
const BAR_TYPES: [u8; 4] = [rtype::OHLCV_1S, rtype::OHLCV_1M, rtype::OHLCV_1H, rtype::OHLCV_1D];
const SAMPLE_SCHEMAS: [Schemas; 2] = [Schemas::BBO_1S, Schemas::BBO_1M];
const SAMPLE_TYPES: [u8; 2] = [rtype::BBO_1S, rtype::BBO_1M];

/// Open intervals of one channel.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    instruments: BTreeMap<u32, Instrument>,
    /// End of each open interval, ns since 1970 UTC; 0 before the first event.
    ends_ns: [u64; 4],
    /// Instruments with a bar in the open interval.
    with_bar: [Vec<u32>; 4],
    /// Instruments with a sample in the open interval.
    with_sample: [Vec<u32>; 2],
    /// Whether other channels have intervals of their own: then their end is announced for all channels together.
    is_one_of_several: bool,
    /// Ends to be announced when all channels have come to them, with the index of the interval's length.
    closed: Vec<(usize, u64, Schemas)>,
    /// How often the venue has begun again on the day.
    restarts: u32,
}

#[derive(Debug, Default)]
struct Instrument {
    publisher_id: u16,
    /// Price, size and side of the last trade of the session.
    last_trade: Option<(i64, u32, u8)>,
    /// After the last event, which came after that many restarts of the venue.
    top: BidAskPair,
    restarts: u32,
    ts_event: u64,
    sequence: u32,
    flags: u8,
    bars: [Option<Bar>; 4],
    is_sampled: [bool; 2],
}

#[derive(Clone, Copy, Debug)]
struct Bar {
    open: i64,
    high: i64,
    low: i64,
    close: i64,
    volume: u64,
}

impl Intervals {
    /// Intervals of one of several channels: the reader of all channels announces their ends.
    pub(crate) fn of_several() -> Self {
        Self { is_one_of_several: true, ..Self::default() }
    }

    /// Takes the ends that came since the last call: index of the length, end in ns since 1970 UTC, schema.
    pub(crate) fn take_closed(&mut self) -> Vec<(usize, u64, Schemas)> {
        std::mem::take(&mut self.closed)
    }

    /// Whether no record of an interval with that end can follow. A channel without an open interval waits for nothing.
    pub(crate) fn has_passed(&self, index: usize, end_ns: u64) -> bool {
        self.ends_ns.get(index).is_none_or(|open| *open == 0 || *open > end_ns)
    }

    /// Whether event time has reached that time, by the open interval of that length.
    pub(crate) fn is_beyond(&self, index: usize, time_ns: u64) -> bool {
        self.ends_ns.get(index).is_some_and(|open| *open > time_ns)
    }

    /// Event time has reached `ts_event`: appends the records of the intervals that ended.
    pub(crate) fn advance(&mut self, ts_event: u64, wanted: Schemas, chunk: &mut Chunk) {
        if ts_event < self.ends_ns[0] {
            return;
        }
        for (index, length) in LENGTHS_NS.into_iter().enumerate() {
            if ts_event >= self.ends_ns[index] {
                if self.ends_ns[index] != 0 {
                    self.close(index, wanted, chunk);
                }
                self.ends_ns[index] = (ts_event / length).saturating_add(1).saturating_mul(length);
            }
        }
    }

    /// The session ended: appends the records of all open intervals and forgets the instruments.
    pub(crate) fn finish(&mut self, wanted: Schemas, chunk: &mut Chunk) {
        for index in 0..LENGTHS_NS.len() {
            if self.ends_ns[index] != 0 {
                self.close(index, wanted, chunk);
            }
        }
        let closed = self.take_closed();
        *self = Self { is_one_of_several: self.is_one_of_several, closed, ..Self::default() };
    }

    /// The venue has begun again on the same day: its books are empty from an instrument's next event on, and the bars go on.
    pub(crate) fn forget_books(&mut self) {
        self.restarts += 1;
    }

    /// A trade becomes part of the open bars and samples.
    pub(crate) fn trade(&mut self, trade: &Mbo, extra_flags: u8) {
        let instrument = self.touch(trade, extra_flags);
        instrument.last_trade = Some((trade.price, trade.size, trade.side));
        if trade.price == UNDEF_PRICE {
            return;
        }
        let mut is_new = [false; 4];
        for (bar, is_new) in instrument.bars.iter_mut().zip(&mut is_new) {
            *is_new = bar.is_none();
            let Bar { high, low, close, volume, .. } =
                bar.get_or_insert(Bar { open: trade.price, high: i64::MIN, low: i64::MAX, close: 0, volume: 0 });
            *high = (*high).max(trade.price);
            *low = (*low).min(trade.price);
            *close = trade.price;
            *volume = volume.saturating_add(u64::from(trade.size));
        }
        for (list, is_new) in self.with_bar.iter_mut().zip(is_new) {
            if is_new {
                list.push(trade.instrument_id);
            }
        }
    }

    /// A new best level becomes part of the open samples.
    pub(crate) fn quote(&mut self, event: &Mbo, top: &BidAskPair, extra_flags: u8) {
        self.touch(event, extra_flags).top = top.clone();
    }

    fn touch(&mut self, event: &Mbo, extra_flags: u8) -> &mut Instrument {
        let instrument = self.instruments.entry(event.instrument_id).or_default();
        if std::mem::replace(&mut instrument.restarts, self.restarts) != self.restarts {
            instrument.top = BidAskPair::default();
        }
        instrument.publisher_id = event.publisher_id;
        instrument.ts_event = event.ts_event;
        instrument.sequence = event.sequence;
        instrument.flags = event.flags & dbn::flags::MAYBE_BAD_BOOK | extra_flags;
        for (list, is_sampled) in self.with_sample.iter_mut().zip(&mut instrument.is_sampled) {
            if !std::mem::replace(is_sampled, true) {
                list.push(event.instrument_id);
            }
        }
        instrument
    }

    fn close(&mut self, index: usize, wanted: Schemas, chunk: &mut Chunk) {
        let end_ns = self.ends_ns[index];
        let start_ns = end_ns.saturating_sub(LENGTHS_NS[index]);
        if let Some(list) = self.with_sample.get_mut(index) {
            let schema = SAMPLE_SCHEMAS[index];
            let mut ids = std::mem::take(list);
            ids.sort_unstable();
            for id in &ids {
                let Some(instrument) = self.instruments.get_mut(id) else { continue };
                instrument.is_sampled[index] = false;
                if wanted.contains(schema) {
                    chunk.push(instrument.sample(*id, SAMPLE_TYPES[index], end_ns).as_ref(), schema);
                }
            }
            self.announce(index, &ids, schema, wanted, chunk);
        }
        let schema = BAR_SCHEMAS[index];
        let mut ids = std::mem::take(&mut self.with_bar[index]);
        ids.sort_unstable();
        for id in &ids {
            let Some(instrument) = self.instruments.get_mut(id) else { continue };
            let Some(Bar { open, high, low, close, volume }) = instrument.bars[index].take() else { continue };
            if wanted.contains(schema) {
                let hd = RecordHeader::new::<OhlcvMsg>(BAR_TYPES[index], instrument.publisher_id, *id, start_ns);
                chunk.push(OhlcvMsg { hd, open, high, low, close, volume }.as_ref(), schema);
            }
        }
        self.announce(index, &ids, schema, wanted, chunk);
    }

    /// Announces that all records of an interval are out, if there are any.
    fn announce(&mut self, index: usize, ids: &[u32], schema: Schemas, wanted: Schemas, chunk: &mut Chunk) {
        if ids.is_empty() || !wanted.contains(schema) {
            return;
        }
        let end_ns = self.ends_ns[index];
        if self.is_one_of_several {
            self.closed.push((index, end_ns, schema));
        } else {
            push_end(end_ns, schema, chunk);
        }
    }
}

/// Appends the announcement that an interval's records are out. Its time is the interval's end until a session sends it.
pub(crate) fn push_end(end_ns: u64, schema: Schemas, chunk: &mut Chunk) {
    chunk.push(control::end_of_interval(end_ns, &schema.to_string()).as_ref(), schema);
}

impl Instrument {
    fn sample(&self, id: u32, kind: u8, end_ns: u64) -> BboMsg {
        let (price, size, side) = self.last_trade.unwrap_or((UNDEF_PRICE, UNDEF_ORDER_SIZE, b'N'));
        BboMsg {
            hd: RecordHeader::new::<BboMsg>(kind, self.publisher_id, id, self.ts_event),
            price,
            size,
            side: c_char_of(side),
            flags: FlagSet::new(dbn::flags::LAST | self.flags),
            ts_recv: end_ns,
            sequence: self.sequence,
            levels: [self.top.clone()],
            ..BboMsg::default_for_schema(if kind == rtype::BBO_1S { dbn::Schema::Bbo1S } else { dbn::Schema::Bbo1M })
        }
    }
}
