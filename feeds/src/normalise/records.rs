//! Records of one message, and how each is made.

use core::ffi::c_char;

use dbn::{
    BidAskPair, FlagSet, HasRType, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, RecordHeader, SType,
    StatMsg, StatType, StatUpdateAction, StatusMsg, SymbolMappingMsg, TradeMsg, UNDEF_PRICE, UNDEF_TIMESTAMP,
    enums::rtype,
};

use crate::{
    book::{BookView, Side},
    identity::InstrumentId,
};

/// The records that one input message produced, back to back. Its memory is allocated once.
#[derive(Debug)]
pub struct Records {
    bytes: Vec<u8>,
    count: u16,
}

impl Records {
    /// Room for all that one message can produce with every schema on: about 1.3 KB, rounded up.
    const BYTES_MAX: usize = 4096;

    /// Empty, with all its memory.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: Vec::with_capacity(Self::BYTES_MAX), count: 0 }
    }

    /// Forgets the previous message's records.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// Appends one record.
    pub fn push(&mut self, record: &impl AsRef<[u8]>) {
        let bytes = record.as_ref();
        debug_assert!(bytes.len().is_multiple_of(8), "records are multiples of 8 bytes");
        debug_assert!(self.bytes.len() + bytes.len() <= Self::BYTES_MAX, "one message's records fit");
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Whether the message names its instrument: a name comes before all else.
    #[must_use]
    pub fn begin_with_mapping(&self) -> bool {
        self.bytes.get(1) == Some(&rtype::SYMBOL_MAPPING)
    }

    /// The body of a frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}

/// What all records of one message share.
#[derive(Clone, Copy, Debug)]
pub struct RecordContext {
    /// Number of the publisher.
    pub publisher_id: u16,
    /// The instrument.
    pub instrument_id: InstrumentId,
    /// The venue's matching time, ns since 1970 UTC.
    pub ts_event: u64,
    /// Input sequence, low 32 bits.
    pub sequence: u32,
}

/// What a market-by-order, market-by-price or trade record says happened.
#[derive(Clone, Copy, Debug)]
pub struct RecordEvent {
    /// What happened.
    pub action: Action,
    /// To which side: of the resting order, or of the aggressor of a trade; `None` if unknown.
    pub side: Option<Side>,
    /// Price in 1e-9.
    pub price_e9: i64,
    /// Shares.
    pub size: u32,
    /// The order; 0 where there is none.
    pub order_id: u64,
    /// Level that was touched, from 0 at the best.
    pub depth: u32,
    /// DBN flags other than those the edge adds.
    pub flags: u8,
}

/// DBN's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// A new order or level.
    Add = b'A',
    /// An order or level with a new size.
    Modify = b'M',
    /// All or part of an order, or a whole level, went away.
    Cancel = b'C',
    /// The book is empty again.
    Clear = b'R',
    /// An aggressor traded; no effect on the book.
    Trade = b'T',
    /// A resting order was filled; no effect on the book.
    Fill = b'F',
}

/// How many levels a market-by-price record shows.
pub const MBP_LEVELS: usize = 10;

/// The shown levels of a book, best first, in the form of the records.
#[derive(Clone, Debug, Default)]
pub struct MbpLevels(pub [BidAskPair; MBP_LEVELS]);

impl MbpLevels {
    /// The best levels of a book.
    #[must_use]
    pub fn of(view: &BookView<'_>) -> Self {
        let mut shown = Self::default();
        for (pair, level) in shown.0.iter_mut().zip(view.levels(Side::Bid)) {
            (pair.bid_px, pair.bid_sz, pair.bid_ct) = (level.price_e9, level.size, level.order_count);
        }
        for (pair, level) in shown.0.iter_mut().zip(view.levels(Side::Ask)) {
            (pair.ask_px, pair.ask_sz, pair.ask_ct) = (level.price_e9, level.size, level.order_count);
        }
        shown
    }

    /// The best level alone.
    #[must_use]
    pub fn top_of(view: &BookView<'_>) -> BidAskPair {
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
    pub fn top(&self) -> BidAskPair {
        self.0.first().cloned().unwrap_or_default()
    }
}

/// A record of what happened at a price: the fields that trades and market by price share, in one place.
macro_rules! price_record {
    ($context:expr, $what:expr, $record:ident: $rtype:expr, $($field:ident: $value:expr),+) => {
        $record {
            hd: $context.header::<$record>($rtype),
            price: $what.price_e9,
            size: $what.size,
            action: $what.action as c_char,
            side: side_char($what.side),
            flags: FlagSet::new($what.flags),
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
    pub fn mbo(&self, what: &RecordEvent) -> MboMsg {
        MboMsg {
            hd: self.header::<MboMsg>(rtype::MBO),
            order_id: what.order_id,
            price: what.price_e9,
            size: what.size,
            flags: FlagSet::new(what.flags),
            channel_id: 0,
            action: what.action as c_char,
            side: side_char(what.side),
            ts_recv: UNDEF_TIMESTAMP,
            ts_in_delta: 0,
            sequence: self.sequence,
        }
    }

    /// A trade.
    #[must_use]
    pub fn trade(&self, what: &RecordEvent) -> TradeMsg {
        price_record!(self, what, TradeMsg: rtype::MBP_0, depth: 0)
    }

    /// The best level, and what happened to it.
    #[must_use]
    pub fn mbp_1(&self, what: &RecordEvent, top: BidAskPair) -> Mbp1Msg {
        price_record!(self, what, Mbp1Msg: rtype::MBP_1, depth: depth_byte(what.depth), levels: [top])
    }

    /// Ten levels, and what happened to them.
    #[must_use]
    pub fn mbp_10(&self, what: &RecordEvent, shown: MbpLevels) -> Mbp10Msg {
        price_record!(self, what, Mbp10Msg: rtype::MBP_10, depth: depth_byte(what.depth), levels: shown.0)
    }

    /// Trading status, with everything left unsaid.
    #[must_use]
    pub fn status(&self) -> StatusMsg {
        StatusMsg { hd: self.header::<StatusMsg>(rtype::STATUS), ts_recv: UNDEF_TIMESTAMP, ..StatusMsg::default() }
    }

    /// Auction imbalance, with everything left undefined.
    #[must_use]
    pub fn imbalance(&self) -> ImbalanceMsg {
        ImbalanceMsg { hd: self.header::<ImbalanceMsg>(rtype::IMBALANCE), ..ImbalanceMsg::default() }
    }

    /// A statistic that is a price, with a quantity where the venue tells one.
    #[must_use]
    pub fn statistic(&self, stat_type: StatType, price_e9: i64, quantity: Option<i64>) -> StatMsg {
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

    /// The definition of a stock, with everything that no venue tells left undefined.
    #[must_use]
    pub fn definition(&self, symbol: &[u8], exchange: &str) -> InstrumentDefMsg {
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

    /// The instrument's name, told once before its first record of a session.
    #[must_use]
    pub fn mapping(&self, symbol: &[u8]) -> SymbolMappingMsg {
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

/// Text in a field of `N` bytes with at least one NUL at its end; what is longer is cut.
#[must_use]
pub fn c_chars<const N: usize>(text: &[u8]) -> [c_char; N] {
    let mut field = [0; N];
    for (slot, byte) in field.iter_mut().take(N.saturating_sub(1)).zip(text) {
        *slot = c_byte(*byte);
    }
    field
}

/// A price in 1e-9 from one in 1e-4, undefined where the venue says 0 for "none".
#[must_use]
pub fn price_or_undefined(price_e4: i64) -> i64 {
    if price_e4 == 0 { UNDEF_PRICE } else { e9_from_e4(price_e4) }
}

/// A price in 1e-9 from one in 1e-4; held at the ends of the range instead of wrapping.
#[must_use]
pub fn e9_from_e4(price_e4: i64) -> i64 {
    price_e4.saturating_mul(100_000)
}

/// A share count that DBN holds in 32 bits; what is larger is held at the largest that is not "undefined".
#[must_use]
pub fn size_u32(shares: u64) -> u32 {
    u32::try_from(shares).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

fn side_char(side: Option<Side>) -> c_char {
    c_byte(match side {
        Some(Side::Bid) => b'B',
        Some(Side::Ask) => b'A',
        None => b'N',
    })
}

/// C's `char` has a sign on some processors and none on others.
fn c_byte(byte: u8) -> c_char {
    c_char::from_ne_bytes([byte])
}

fn depth_byte(depth: u32) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}
