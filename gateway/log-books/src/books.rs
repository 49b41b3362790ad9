//! The books of a channel by order, rebuilt from its mbo records.

use std::collections::BTreeSet;

use mdgw_feeds::book::{
    BookFault, BookLimits, BookView, Change, InstrumentIndex, OrderView, ReplaceChange, Side, orders::OrderBooks,
};

use dbn::{BidAskPair, UNDEF_PRICE, UNDEF_TIMESTAMP};

use crate::record::{self, c_char_of};

/// The fields of an mbo record, with the values of the consumer's edge.
#[derive(Clone, Copy, Debug)]
pub struct Mbo {
    /// Publisher of the record.
    pub publisher_id: u16,
    /// Instrument.
    pub instrument_id: u32,
    /// Event time, ns since 1970 UTC.
    pub ts_event: u64,
    /// Id of the order at the venue.
    pub order_id: u64,
    /// Price in 1e-9.
    pub price: i64,
    /// Shares or contracts.
    pub size: u32,
    /// DBN flags.
    pub flags: u8,
    /// DBN action.
    pub action: u8,
    /// DBN side.
    pub side: u8,
    /// Receive time, ns since 1970 UTC.
    pub ts_recv: u64,
    /// `ts_recv` less the venue's send time, ns.
    pub ts_in_delta: i32,
    /// Sequence of the message, its lower 32 bits.
    pub sequence: u32,
}

impl Mbo {
    /// From a record of the type's length.
    #[must_use]
    pub fn read(record: &[u8]) -> Option<Self> {
        use core::mem::offset_of;
        if record.len() != size_of::<dbn::MboMsg>() {
            return None;
        }
        Some(Self {
            publisher_id: record.get(2..4)?.try_into().ok().map(u16::from_le_bytes)?,
            instrument_id: record::instrument_id(record),
            ts_event: record::ts_event(record),
            order_id: record::u64_at(record, offset_of!(dbn::MboMsg, order_id)),
            price: record::u64_at(record, offset_of!(dbn::MboMsg, price)).cast_signed(),
            size: record::u32_at(record, offset_of!(dbn::MboMsg, size)),
            flags: *record.get(offset_of!(dbn::MboMsg, flags))?,
            action: *record.get(offset_of!(dbn::MboMsg, action))?,
            side: *record.get(offset_of!(dbn::MboMsg, side))?,
            ts_recv: record::u64_at(record, offset_of!(dbn::MboMsg, ts_recv)),
            ts_in_delta: record::u32_at(record, offset_of!(dbn::MboMsg, ts_in_delta)).cast_signed(),
            sequence: record::u32_at(record, offset_of!(dbn::MboMsg, sequence)),
        })
    }

    /// Whether the record is the last of its event.
    pub fn is_last(&self) -> bool {
        self.flags & dbn::flags::LAST != 0
    }

    /// The instrument as an index into books.
    pub fn instrument(&self) -> InstrumentIndex {
        InstrumentIndex(self.instrument_id)
    }
}

/// Books of one channel. Their depths are those of the gateway's own books, since both are the same code.
#[derive(Debug)]
pub struct Books(OrderBooks);

impl Books {
    /// With the limits of the channel. Memory is used as orders come.
    pub fn new(limits: BookLimits) -> Self {
        Self(OrderBooks::new(BookLimits { prefault: false, ..limits }))
    }

    /// Removes all orders, for a new session.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// An add record.
    pub fn add(&mut self, add: &Mbo) -> Result<Change, BookFault> {
        let side = if add.side == b'B' { Side::Bid } else { Side::Ask };
        self.0.add(add.instrument(), add.order_id, side, add.price, add.size)
    }

    /// A cancel record: of a part, or of all that is left.
    pub fn cancel(&mut self, cancel: &Mbo) -> Result<Change, BookFault> {
        self.0.reduce(cancel.instrument(), cancel.order_id, cancel.size)
    }

    /// A cancel record and the add record of the same message.
    pub fn replace(&mut self, cancel: &Mbo, add: &Mbo) -> Result<ReplaceChange, BookFault> {
        self.0.replace(cancel.instrument(), cancel.order_id, add.order_id, add.price, add.size)
    }

    /// The best level of each side.
    pub fn top(&self, instrument: InstrumentIndex) -> BidAskPair {
        let [top] = self.levels(instrument);
        top
    }

    /// The best levels of each side.
    pub fn levels<const N: usize>(&self, instrument: InstrumentIndex) -> [BidAskPair; N] {
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

    /// Number of resting orders.
    #[must_use]
    pub fn order_count(&self) -> usize {
        self.0.order_count()
    }

    /// Restores an order that a copy of another gateway's books has.
    ///
    /// # Errors
    /// As [`OrderBooks::add`].
    pub fn restore(&mut self, order: &OrderView) -> Result<Change, BookFault> {
        self.0.add(order.instrument, order.order_id, order.side, order.price_e9, order.size)
    }

    /// Appends the snapshot of the wanted instruments as mbo records: for each a clear, then its orders, bids and asks, best
    /// price first, by priority within a price. The last record of an instrument carries LAST.
    pub fn append_snapshot(
        &self,
        instruments: &[u32],
        head: &SnapshotHead,
        is_suspect: impl Fn(u32) -> bool,
        out: &mut Vec<u8>,
    ) {
        let wanted: BTreeSet<u32> = instruments.iter().copied().collect();
        let orders = self.0.orders_where(|index| wanted.contains(&index.0));
        let mut rest = orders.as_slice();
        for instrument in &wanted {
            let (own, others) = rest.split_at(rest.partition_point(|order| order.instrument.0 <= *instrument));
            rest = others;
            append_book(*instrument, own, head, is_suspect(*instrument), out);
        }
    }

    /// Appends the snapshot of these instruments, ascending, and of all others with an order. An instrument without one has a clear
    /// alone: a consumer may hold orders of it.
    pub fn append_all(
        &self,
        instruments: &BTreeSet<u32>,
        head: &SnapshotHead,
        is_suspect: impl Fn(u32) -> bool,
        out: &mut Vec<u8>,
    ) {
        let orders = self.0.orders_where(|_| true);
        let mut without_orders = instruments.iter().copied().peekable();
        for own in orders.chunk_by(|order, next| order.instrument == next.instrument) {
            let Some(instrument) = own.first().map(|order| order.instrument.0) else { continue };
            while let Some(before) = without_orders.next_if(|before| *before < instrument) {
                append_book(before, &[], head, is_suspect(before), out);
            }
            let _has_orders = without_orders.next_if_eq(&instrument);
            append_book(instrument, own, head, is_suspect(instrument), out);
        }
        without_orders.for_each(|instrument| append_book(instrument, &[], head, is_suspect(instrument), out));
    }
}

/// What all records of a snapshot of orders have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Publisher of the records.
    pub publisher_id: u16,
    /// Latest event time of the channel, ns since 1970 UTC.
    pub ts_event: u64,
}

/// A clear, then the orders of one instrument.
fn append_book(instrument: u32, orders: &[OrderView], head: &SnapshotHead, is_suspect: bool, out: &mut Vec<u8>) {
    let suspect = if is_suspect { dbn::flags::MAYBE_BAD_BOOK } else { 0 };
    let base = dbn::flags::SNAPSHOT | dbn::flags::BAD_TS_RECV | suspect;
    let record = |action: u8, order: Option<&OrderView>, is_last: bool| dbn::MboMsg {
        hd: dbn::RecordHeader::new::<dbn::MboMsg>(dbn::enums::rtype::MBO, head.publisher_id, instrument, head.ts_event),
        order_id: order.map_or(0, |order| order.order_id),
        price: order.map_or(UNDEF_PRICE, |order| order.price_e9),
        size: order.map_or(0, |order| order.size),
        flags: dbn::FlagSet::new(if is_last { base | dbn::flags::LAST } else { base }),
        channel_id: 0,
        action: c_char_of(action),
        side: c_char_of(order.map_or(b'N', |order| if order.side == Side::Bid { b'B' } else { b'A' })),
        ts_recv: if head.ts_event == 0 { UNDEF_TIMESTAMP } else { head.ts_event },
        ts_in_delta: 0,
        sequence: 0,
    };
    out.extend_from_slice(record(b'R', None, orders.is_empty()).as_ref());
    for (index, order) in orders.iter().enumerate() {
        out.extend_from_slice(record(b'A', Some(order), index + 1 == orders.len()).as_ref());
    }
}
