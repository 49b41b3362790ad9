//! The books of a channel by order, rebuilt from its mbo records.

use mdgw_feeds::book::{
    BookFault, BookLimits, BookView, Change, InstrumentIndex, OrderView, ReplaceChange, Side, orders::OrderBooks,
};

use dbn::{BidAskPair, UNDEF_PRICE, UNDEF_TIMESTAMP};

use crate::control;

/// The fields of an mbo record, with the values of the consumer's edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mbo {
    pub(crate) publisher_id: u16,
    pub(crate) instrument_id: u32,
    pub(crate) ts_event: u64,
    pub(crate) order_id: u64,
    pub(crate) price: i64,
    pub(crate) size: u32,
    pub(crate) flags: u8,
    pub(crate) action: u8,
    pub(crate) side: u8,
    pub(crate) ts_recv: u64,
    pub(crate) ts_in_delta: i32,
    pub(crate) sequence: u32,
}

impl Mbo {
    /// From a record of the type's length.
    pub(crate) fn read(record: &[u8]) -> Option<Self> {
        use core::mem::offset_of;
        if record.len() != size_of::<dbn::MboMsg>() {
            return None;
        }
        Some(Self {
            publisher_id: record.get(2..4)?.try_into().ok().map(u16::from_le_bytes)?,
            instrument_id: control::instrument_id(record),
            ts_event: control::ts_event(record),
            order_id: control::u64_at(record, offset_of!(dbn::MboMsg, order_id)),
            price: control::u64_at(record, offset_of!(dbn::MboMsg, price)).cast_signed(),
            size: control::u32_at(record, offset_of!(dbn::MboMsg, size)),
            flags: *record.get(offset_of!(dbn::MboMsg, flags))?,
            action: *record.get(offset_of!(dbn::MboMsg, action))?,
            side: *record.get(offset_of!(dbn::MboMsg, side))?,
            ts_recv: control::u64_at(record, offset_of!(dbn::MboMsg, ts_recv)),
            ts_in_delta: control::u32_at(record, offset_of!(dbn::MboMsg, ts_in_delta)).cast_signed(),
            sequence: control::u32_at(record, offset_of!(dbn::MboMsg, sequence)),
        })
    }

    /// Whether the record is the last of its event.
    pub(crate) fn is_last(&self) -> bool {
        self.flags & dbn::flags::LAST != 0
    }

    /// The instrument as an index into books.
    pub(crate) fn instrument(&self) -> InstrumentIndex {
        InstrumentIndex(self.instrument_id)
    }
}

/// Books of one channel. Their depths are those of the gateway's own books, since both are the same code.
#[derive(Debug)]
pub(crate) struct Books(OrderBooks);

impl Books {
    /// With the limits of the channel. Memory is used as orders come.
    pub(crate) fn new(limits: BookLimits) -> Self {
        Self(OrderBooks::new(BookLimits { prefault: false, ..limits }))
    }

    /// Removes all orders, for a new session.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// An add record.
    pub(crate) fn add(&mut self, add: &Mbo) -> Result<Change, BookFault> {
        let side = if add.side == b'B' { Side::Bid } else { Side::Ask };
        self.0.add(add.instrument(), add.order_id, side, add.price, add.size)
    }

    /// A cancel record: of a part, or of all that is left.
    pub(crate) fn cancel(&mut self, cancel: &Mbo) -> Result<Change, BookFault> {
        self.0.reduce(cancel.instrument(), cancel.order_id, cancel.size)
    }

    /// A cancel record and the add record of the same message.
    pub(crate) fn replace(&mut self, cancel: &Mbo, add: &Mbo) -> Result<ReplaceChange, BookFault> {
        self.0.replace(cancel.instrument(), cancel.order_id, add.order_id, add.price, add.size)
    }

    /// The best level of each side.
    pub(crate) fn top(&self, instrument: InstrumentIndex) -> BidAskPair {
        let [top] = self.levels(instrument);
        top
    }

    /// The best levels of each side.
    pub(crate) fn levels<const N: usize>(&self, instrument: InstrumentIndex) -> [BidAskPair; N] {
        let view: BookView<'_> = self.0.view(instrument);
        let mut levels: [BidAskPair; N] = std::array::from_fn(|_| BidAskPair::default());
        for (pair, level) in levels.iter_mut().zip(view.levels(Side::Bid)) {
            (pair.bid_px, pair.bid_sz, pair.bid_ct) = (level.price_e9, level.size, level.order_count);
        }
        for (pair, level) in levels.iter_mut().zip(view.levels(Side::Ask)) {
            (pair.ask_px, pair.ask_sz, pair.ask_ct) = (level.price_e9, level.size, level.order_count);
        }
        levels
    }

    /// Appends the snapshot of the wanted instruments as mbo records: for each a clear, then its orders, bids and asks, best
    /// price first, by priority within a price. The last record of an instrument carries LAST.
    pub(crate) fn append_snapshot(
        &self,
        instruments: &[u32],
        publisher_id: u16,
        ts_event: u64,
        is_suspect: bool,
        out: &mut Vec<u8>,
    ) {
        let wanted: std::collections::BTreeSet<u32> = instruments.iter().copied().collect();
        let orders = self.0.orders_where(|index| wanted.contains(&index.0));
        let suspect = if is_suspect { dbn::flags::MAYBE_BAD_BOOK } else { 0 };
        let base = dbn::flags::SNAPSHOT | dbn::flags::BAD_TS_RECV | suspect;
        let mut rest = orders.as_slice();
        for instrument in &wanted {
            let (own, others) = rest.split_at(rest.partition_point(|order| order.instrument.0 <= *instrument));
            rest = others;
            let record = |action: u8, order: Option<&OrderView>, is_last: bool| {
                let header =
                    dbn::RecordHeader::new::<dbn::MboMsg>(dbn::enums::rtype::MBO, publisher_id, *instrument, ts_event);
                dbn::MboMsg {
                    hd: header,
                    order_id: order.map_or(0, |order| order.order_id),
                    price: order.map_or(UNDEF_PRICE, |order| order.price_e9),
                    size: order.map_or(0, |order| order.size),
                    flags: dbn::FlagSet::new(if is_last { base | dbn::flags::LAST } else { base }),
                    channel_id: 0,
                    action: c_char(action),
                    side: c_char(order.map_or(b'N', |order| if order.side == Side::Bid { b'B' } else { b'A' })),
                    ts_recv: if ts_event == 0 { UNDEF_TIMESTAMP } else { ts_event },
                    ts_in_delta: 0,
                    sequence: 0,
                }
            };
            out.extend_from_slice(record(b'R', None, own.is_empty()).as_ref());
            for (index, order) in own.iter().enumerate() {
                out.extend_from_slice(record(b'A', Some(order), index + 1 == own.len()).as_ref());
            }
        }
    }
}

/// C's `char` is signed on some processors and unsigned on others.
pub(crate) fn c_char(byte: u8) -> std::ffi::c_char {
    std::ffi::c_char::from_ne_bytes([byte])
}
