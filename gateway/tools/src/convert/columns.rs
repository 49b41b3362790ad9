//! Columns of each record type: names and order are the official client's (`DBNStore.to_df()`), offsets are those of
//! the record's struct.

use std::{ffi::c_char, mem::offset_of};

use dbn::{BidAskPair, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, RType, StatMsg, StatusMsg, TradeMsg};

/// One field of a record as a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Offset in the record, bytes.
    pub(super) offset: usize,
}

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    /// Fixed-point number, 1e-9; the largest value means none.
    Price,
    /// Nanoseconds since 1970 UTC; the largest value means none.
    Time,
    /// Text that ends at the first zero byte, or at this length.
    Text(usize),
}

/// Columns of records of that type; `None` for types without a supported schema.
pub(super) fn columns_of(rtype: RType) -> Option<Vec<Column>> {
    Some(match rtype {
        RType::Mbo => mbo(),
        RType::Mbp0 => trades(),
        RType::Mbp1 => mbp(offset_of!(Mbp1Msg, levels), 1),
        RType::Mbp10 => mbp(offset_of!(Mbp10Msg, levels), 10),
        RType::Status => status(),
        RType::InstrumentDef => definition(),
        RType::Imbalance => imbalance(),
        RType::Statistics => statistics(),
        _ => return None,
    })
}

/// Builds columns from fields: the column has the field's name, unless another one is given.
macro_rules! columns {
    ($record:ident { $( $($field:ident).+ : $kind:expr, )* }) => {
        vec![ $( Column {
            name: own_name(stringify!($($field).+)).to_owned(),
            kind: $kind,
            offset: offset_of!($record, $($field).+),
        } ),* ]
    };
}

/// Strips the enclosing struct's name.
fn own_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path).trim()
}

/// Length of a text field in bytes.
const fn text<T, const N: usize>(_field: fn(&T) -> &[c_char; N]) -> Kind {
    Kind::Text(N)
}

fn mbo() -> Vec<Column> {
    columns!(MboMsg {
        ts_recv: Kind::Time,
        hd.ts_event: Kind::Time,
        hd.rtype: Kind::U8,
        hd.publisher_id: Kind::U16,
        hd.instrument_id: Kind::U32,
        action: Kind::Text(1),
        side: Kind::Text(1),
        price: Kind::Price,
        size: Kind::U32,
        channel_id: Kind::U8,
        order_id: Kind::U64,
        flags: Kind::U8,
        ts_in_delta: Kind::I32,
        sequence: Kind::U32,
    })
}

fn trades() -> Vec<Column> {
    columns!(TradeMsg {
        ts_recv: Kind::Time,
        hd.ts_event: Kind::Time,
        hd.rtype: Kind::U8,
        hd.publisher_id: Kind::U16,
        hd.instrument_id: Kind::U32,
        action: Kind::Text(1),
        side: Kind::Text(1),
        depth: Kind::U8,
        price: Kind::Price,
        size: Kind::U32,
        flags: Kind::U8,
        ts_in_delta: Kind::I32,
        sequence: Kind::U32,
    })
}

fn status() -> Vec<Column> {
    columns!(StatusMsg {
        ts_recv: Kind::Time,
        hd.ts_event: Kind::Time,
        hd.rtype: Kind::U8,
        hd.publisher_id: Kind::U16,
        hd.instrument_id: Kind::U32,
        action: Kind::U16,
        reason: Kind::U16,
        trading_event: Kind::U16,
        is_trading: Kind::Text(1),
        is_quoting: Kind::Text(1),
        is_short_sell_restricted: Kind::Text(1),
    })
}

fn imbalance() -> Vec<Column> {
    columns!(ImbalanceMsg {
        ts_recv: Kind::Time,
        hd.ts_event: Kind::Time,
        hd.rtype: Kind::U8,
        hd.publisher_id: Kind::U16,
        hd.instrument_id: Kind::U32,
        ref_price: Kind::Price,
        auction_time: Kind::Time,
        cont_book_clr_price: Kind::Price,
        auct_interest_clr_price: Kind::Price,
        ssr_filling_price: Kind::Price,
        ind_match_price: Kind::Price,
        upper_collar: Kind::Price,
        lower_collar: Kind::Price,
        paired_qty: Kind::U32,
        total_imbalance_qty: Kind::U32,
        market_imbalance_qty: Kind::U32,
        unpaired_qty: Kind::U32,
        auction_type: Kind::Text(1),
        side: Kind::Text(1),
        auction_status: Kind::U8,
        freeze_status: Kind::U8,
        num_extensions: Kind::U8,
        unpaired_side: Kind::Text(1),
        significant_imbalance: Kind::Text(1),
    })
}

fn statistics() -> Vec<Column> {
    columns!(StatMsg {
        ts_recv: Kind::Time,
        hd.ts_event: Kind::Time,
        hd.rtype: Kind::U8,
        hd.publisher_id: Kind::U16,
        hd.instrument_id: Kind::U32,
        ts_ref: Kind::Time,
        price: Kind::Price,
        quantity: Kind::I64,
        sequence: Kind::U32,
        ts_in_delta: Kind::I32,
        stat_type: Kind::U16,
        channel_id: Kind::U16,
        update_action: Kind::U8,
        stat_flags: Kind::U8,
    })
}

/// As trades, with this number of levels.
fn mbp(levels_offset: usize, levels: usize) -> Vec<Column> {
    let mut columns = trades();
    for level in 0..levels {
        let of_level = columns!(BidAskPair {
            bid_px: Kind::Price,
            ask_px: Kind::Price,
            bid_sz: Kind::U32,
            ask_sz: Kind::U32,
            bid_ct: Kind::U32,
            ask_ct: Kind::U32,
        });
        columns.extend(of_level.into_iter().map(|column| Column {
            name: format!("{}_{level:02}", column.name),
            offset: levels_offset + level * size_of::<BidAskPair>() + column.offset,
            ..column
        }));
    }
    columns
}

fn definition() -> Vec<Column> {
    columns!(InstrumentDefMsg {
        ts_recv: Kind::Time,
        hd.ts_event: Kind::Time,
        hd.rtype: Kind::U8,
        hd.publisher_id: Kind::U16,
        hd.instrument_id: Kind::U32,
        raw_symbol: text(|record: &InstrumentDefMsg| &record.raw_symbol),
        security_update_action: Kind::Text(1),
        instrument_class: Kind::Text(1),
        min_price_increment: Kind::Price,
        display_factor: Kind::Price,
        expiration: Kind::Time,
        activation: Kind::Time,
        high_limit_price: Kind::Price,
        low_limit_price: Kind::Price,
        max_price_variation: Kind::Price,
        unit_of_measure_qty: Kind::Price,
        min_price_increment_amount: Kind::Price,
        price_ratio: Kind::Price,
        inst_attrib_value: Kind::I32,
        underlying_id: Kind::U32,
        raw_instrument_id: Kind::U64,
        market_depth_implied: Kind::I32,
        market_depth: Kind::I32,
        market_segment_id: Kind::U32,
        max_trade_vol: Kind::U32,
        min_lot_size: Kind::I32,
        min_lot_size_block: Kind::I32,
        min_lot_size_round_lot: Kind::I32,
        min_trade_vol: Kind::U32,
        contract_multiplier: Kind::I32,
        decay_quantity: Kind::I32,
        original_contract_size: Kind::I32,
        appl_id: Kind::I16,
        maturity_year: Kind::U16,
        decay_start_date: Kind::U16,
        channel_id: Kind::U16,
        currency: text(|record: &InstrumentDefMsg| &record.currency),
        settl_currency: text(|record: &InstrumentDefMsg| &record.settl_currency),
        secsubtype: text(|record: &InstrumentDefMsg| &record.secsubtype),
        group: text(|record: &InstrumentDefMsg| &record.group),
        exchange: text(|record: &InstrumentDefMsg| &record.exchange),
        asset: text(|record: &InstrumentDefMsg| &record.asset),
        cfi: text(|record: &InstrumentDefMsg| &record.cfi),
        security_type: text(|record: &InstrumentDefMsg| &record.security_type),
        unit_of_measure: text(|record: &InstrumentDefMsg| &record.unit_of_measure),
        underlying: text(|record: &InstrumentDefMsg| &record.underlying),
        strike_price_currency: text(|record: &InstrumentDefMsg| &record.strike_price_currency),
        strike_price: Kind::Price,
        match_algorithm: Kind::Text(1),
        main_fraction: Kind::U8,
        price_display_format: Kind::U8,
        sub_fraction: Kind::U8,
        underlying_product: Kind::U8,
        maturity_month: Kind::U8,
        maturity_day: Kind::U8,
        maturity_week: Kind::U8,
        user_defined_instrument: Kind::Text(1),
        contract_multiplier_unit: Kind::I8,
        flow_schedule_type: Kind::I8,
        tick_rule: Kind::U8,
        leg_count: Kind::U16,
        leg_index: Kind::U16,
        leg_instrument_id: Kind::U32,
        leg_raw_symbol: text(|record: &InstrumentDefMsg| &record.leg_raw_symbol),
        leg_instrument_class: Kind::Text(1),
        leg_side: Kind::Text(1),
        leg_price: Kind::Price,
        leg_delta: Kind::Price,
        leg_ratio_price_numerator: Kind::I32,
        leg_ratio_price_denominator: Kind::I32,
        leg_ratio_qty_numerator: Kind::I32,
        leg_ratio_qty_denominator: Kind::I32,
        leg_underlying_id: Kind::U32,
    })
}

// Header and first fields of book records have the same offsets as in trades.
const _: () = assert!(
    offset_of!(Mbp1Msg, sequence) == offset_of!(TradeMsg, sequence)
        && offset_of!(Mbp10Msg, sequence) == offset_of!(TradeMsg, sequence)
        && offset_of!(Mbp1Msg, ts_recv) == offset_of!(TradeMsg, ts_recv)
        && offset_of!(Mbp10Msg, ts_recv) == offset_of!(TradeMsg, ts_recv)
);
