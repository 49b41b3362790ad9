//! Records of one message, and their construction.

use core::ffi::c_char;

use dbn::{
    BidAskPair, FlagSet, HasRType, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, RecordHeader, SType,
    StatMsg, StatType, StatUpdateAction, StatusMsg, SymbolMappingMsg, TradeMsg, UNDEF_PRICE, UNDEF_TIMESTAMP,
    enums::rtype,
};

use crate::book::{BookView, Side};
use mdgw_wire::identity::InstrumentId;

/// The records that one input message produced, back to back. Its memory is allocated once.
#[derive(Debug)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    count: u16,
}

impl Records {
    /// Room for all records of one message with every schema enabled: about 1.3 KB, rounded up.
    const BYTES_MAX: usize = 4096;

    /// Empty, with all its memory.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::with_capacity(Self::BYTES_MAX), count: 0 }
    }

    /// Removes the previous message's records.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// Appends one record.
    pub(crate) fn push(&mut self, record: &impl AsRef<[u8]>) {
        let bytes = record.as_ref();
        debug_assert!(bytes.len().is_multiple_of(8), "records are multiples of 8 bytes");
        debug_assert!(self.bytes.len() + bytes.len() <= Self::BYTES_MAX, "one message's records fit");
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }

    /// Number of records.
    #[must_use]
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Whether the message maps its instrument: a mapping precedes all other records.
    #[must_use]
    pub(crate) fn begin_with_mapping(&self) -> bool {
        self.bytes.get(1) == Some(&rtype::SYMBOL_MAPPING)
    }

    /// The body of a frame.
    #[must_use]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}

/// Fields common to all records of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordContext {
    /// DBN publisher id of the feed.
    pub publisher_id: u16,
    /// Id of the instrument in records.
    pub instrument_id: InstrumentId,
    /// The venue's event time, ns since 1970 UTC.
    pub ts_event: u64,
    /// Input sequence, low 32 bits.
    pub sequence: u32,
}

/// The event of a market-by-order, market-by-price or trade record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordEvent {
    /// The DBN action.
    pub action: Action,
    /// Side of the resting order, or of the aggressor of a trade; `None` if unknown.
    pub side: Option<Side>,
    /// Price in 1e-9.
    pub price_e9: i64,
    /// Shares of the order, of the level, or of the trade.
    pub size: u32,
    /// Order id; 0 if there is none.
    pub order_id: u64,
    /// Index of the touched level, 0 for the best.
    pub depth: u32,
    /// DBN flags, except those that the edge adds.
    pub flags: u8,
}

/// DBN's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Action {
    /// A new order or level.
    Add = b'A',
    /// An order or level with a new size.
    Modify = b'M',
    /// All or part of an order, or a whole level, was removed.
    Cancel = b'C',
    /// The book is cleared.
    Clear = b'R',
    /// An aggressor traded; no effect on the book.
    Trade = b'T',
    /// A resting order was filled; no effect on the book.
    Fill = b'F',
}

/// Number of levels in a market-by-price record.
pub(crate) const MBP_LEVELS: usize = 10;

/// The published levels of a book, best first, in record form.
#[derive(Clone, Debug, Default)]
pub(crate) struct MbpLevels(pub [BidAskPair; MBP_LEVELS]);

impl MbpLevels {
    /// The best levels of a book.
    #[must_use]
    pub(crate) fn of(view: &BookView<'_>) -> Self {
        let mut mbp_levels = Self::default();
        for (pair, level) in mbp_levels.0.iter_mut().zip(view.levels(Side::Bid)) {
            (pair.bid_px, pair.bid_sz, pair.bid_ct) = (level.price_e9, level.size, level.order_count);
        }
        for (pair, level) in mbp_levels.0.iter_mut().zip(view.levels(Side::Ask)) {
            (pair.ask_px, pair.ask_sz, pair.ask_ct) = (level.price_e9, level.size, level.order_count);
        }
        mbp_levels
    }

    /// The best level only.
    #[must_use]
    pub(crate) fn top_of(view: &BookView<'_>) -> BidAskPair {
        let mut pair = BidAskPair::default();
        if let Some(level) = view.top(Side::Bid) {
            (pair.bid_px, pair.bid_sz, pair.bid_ct) = (level.price_e9, level.size, level.order_count);
        }
        if let Some(level) = view.top(Side::Ask) {
            (pair.ask_px, pair.ask_sz, pair.ask_ct) = (level.price_e9, level.size, level.order_count);
        }
        pair
    }

    /// The best of these levels.
    #[must_use]
    pub(crate) fn top(&self) -> BidAskPair {
        self.0.first().cloned().unwrap_or_default()
    }
}

/// A record of an event at a price: the common fields of trades and market by price.
macro_rules! price_record {
    ($context:expr, $event:expr, $record:ident: $rtype:expr, $($field:ident: $value:expr),+) => {
        $record {
            hd: $context.header::<$record>($rtype),
            price: $event.price_e9,
            size: $event.size,
            action: $event.action as c_char,
            side: side_char($event.side),
            flags: FlagSet::new($event.flags),
            ts_recv: UNDEF_TIMESTAMP,
            ts_in_delta: 0,
            sequence: $context.sequence,
            $($field: $value),+
        }
    };
}

impl RecordContext {
    /// Market by order.
    #[must_use]
    pub(crate) fn mbo(&self, event: &RecordEvent) -> MboMsg {
        MboMsg {
            hd: self.header::<MboMsg>(rtype::MBO),
            order_id: event.order_id,
            price: event.price_e9,
            size: event.size,
            flags: FlagSet::new(event.flags),
            channel_id: 0,
            action: event.action as c_char,
            side: side_char(event.side),
            ts_recv: UNDEF_TIMESTAMP,
            ts_in_delta: 0,
            sequence: self.sequence,
        }
    }

    /// A trade.
    #[must_use]
    pub(crate) fn trade(&self, event: &RecordEvent) -> TradeMsg {
        price_record!(self, event, TradeMsg: rtype::MBP_0, depth: 0)
    }

    /// The best level, with the event.
    #[must_use]
    pub(crate) fn mbp_1(&self, event: &RecordEvent, top: BidAskPair) -> Mbp1Msg {
        price_record!(self, event, Mbp1Msg: rtype::MBP_1, depth: depth_byte(event.depth), levels: [top])
    }

    /// Ten levels, with the event.
    #[must_use]
    pub(crate) fn mbp_10(&self, event: &RecordEvent, mbp_levels: MbpLevels) -> Mbp10Msg {
        price_record!(self, event, Mbp10Msg: rtype::MBP_10, depth: depth_byte(event.depth), levels: mbp_levels.0)
    }

    /// Trading status, with all optional fields undefined.
    #[must_use]
    pub(crate) fn status(&self) -> StatusMsg {
        StatusMsg { hd: self.header::<StatusMsg>(rtype::STATUS), ts_recv: UNDEF_TIMESTAMP, ..StatusMsg::default() }
    }

    /// Auction imbalance, with all optional fields undefined.
    #[must_use]
    pub(crate) fn imbalance(&self) -> ImbalanceMsg {
        ImbalanceMsg { hd: self.header::<ImbalanceMsg>(rtype::IMBALANCE), ..ImbalanceMsg::default() }
    }

    /// A statistic with a price, and with a quantity where the venue sends one.
    #[must_use]
    pub(crate) fn statistic(&self, stat_type: StatType, price_e9: i64, quantity: Option<i64>) -> StatMsg {
        StatMsg {
            hd: self.header::<StatMsg>(rtype::STATISTICS),
            price: price_e9,
            quantity: quantity.unwrap_or(dbn::UNDEF_STAT_QUANTITY),
            sequence: self.sequence,
            stat_type: stat_type as u16,
            channel_id: 0,
            update_action: StatUpdateAction::New as u8,
            ..StatMsg::default()
        }
    }

    /// The definition of a stock, with all fields undefined that no venue sends.
    #[must_use]
    pub(crate) fn definition(&self, symbol: &[u8], exchange: &str) -> InstrumentDefMsg {
        InstrumentDefMsg {
            hd: self.header::<InstrumentDefMsg>(rtype::INSTRUMENT_DEF),
            raw_instrument_id: u64::from(self.instrument_id.0),
            channel_id: 0,
            raw_symbol: c_chars(symbol),
            asset: c_chars(symbol),
            exchange: c_chars(exchange.as_bytes()),
            currency: c_chars(b"USD"),
            instrument_class: c_byte(b'K'),
            ..InstrumentDefMsg::default()
        }
    }

    /// The symbol mapping, published once before the instrument's first record of a session.
    #[must_use]
    pub(crate) fn mapping(&self, symbol: &[u8]) -> SymbolMappingMsg {
        SymbolMappingMsg {
            hd: self.header::<SymbolMappingMsg>(rtype::SYMBOL_MAPPING),
            stype_in: SType::RawSymbol as u8,
            stype_in_symbol: c_chars(symbol),
            stype_out: SType::RawSymbol as u8,
            stype_out_symbol: c_chars(symbol),
            start_ts: UNDEF_TIMESTAMP,
            end_ts: UNDEF_TIMESTAMP,
        }
    }

    fn header<R: HasRType>(&self, rtype: u8) -> RecordHeader {
        RecordHeader::new::<R>(rtype, self.publisher_id, self.instrument_id.0, self.ts_event)
    }
}

/// Text in a field of `N` bytes with at least one NUL at its end; longer text is truncated.
#[must_use]
pub(crate) fn c_chars<const N: usize>(text: &[u8]) -> [c_char; N] {
    let mut field = [0; N];
    for (slot, byte) in field.iter_mut().take(N.saturating_sub(1)).zip(text) {
        *slot = c_byte(*byte);
    }
    field
}

/// A price in 1e-9 from a price in 1e-4; undefined where the venue sends 0 for "none".
#[must_use]
pub(crate) fn price_or_undefined(price_e4: i64) -> i64 {
    if price_e4 == 0 { UNDEF_PRICE } else { e9_from_e4(price_e4) }
}

/// A price in 1e-9 from a price in 1e-4, clamped to the range.
#[must_use]
pub(crate) fn e9_from_e4(price_e4: i64) -> i64 {
    price_e4.saturating_mul(100_000)
}

/// A share count in DBN's 32 bits; a larger count is clamped to the largest defined value.
#[must_use]
pub(crate) fn size_u32(shares: u64) -> u32 {
    u32::try_from(shares).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

fn side_char(side: Option<Side>) -> c_char {
    c_byte(match side {
        Some(Side::Bid) => b'B',
        Some(Side::Ask) => b'A',
        None => b'N',
    })
}

/// C's `char` is signed on some processors and unsigned on others.
fn c_byte(byte: u8) -> c_char {
    c_char::from_ne_bytes([byte])
}

fn depth_byte(depth: u32) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}
