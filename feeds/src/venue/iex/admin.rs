//! Messages common to IEX TOPS 1.6 (specification 1.66) and DEEP 1.0 (specification 1.08): administrative messages,
//! trade reports and breaks, official prices, auction information.

use zerocopy::little_endian::{I64, U32};

use crate::venue::wire::{wire_messages, wire_struct};

wire_messages! {
    /// One of the common messages. None of them changes quotes or price levels.
    pub enum Admin, growing {
        /// System Event Message.
        b'S' => SystemEvent(SystemEvent),
        /// Security Directory Message.
        b'D' => SecurityDirectory(SecurityDirectory),
        /// Trading Status Message.
        b'H' => TradingStatus(TradingStatus),
        /// Retail Liquidity Indicator Message.
        b'I' => RetailLiquidityIndicator(RetailLiquidityIndicator),
        /// Operational Halt Status Message.
        b'O' => OperationalHaltStatus(OperationalHaltStatus),
        /// Short Sale Price Test Status Message.
        b'P' => ShortSalePriceTestStatus(ShortSalePriceTestStatus),
        /// Official Price Message.
        b'X' => OfficialPrice(OfficialPrice),
        /// Trade Break Message: of the form of a trade report.
        b'B' => TradeBreak(TradeReport),
        /// Auction Information Message.
        b'A' => AuctionInformation(AuctionInformation),
    }
}

wire_struct! {
    /// System Event Message (`S`). 10 bytes.
    pub struct SystemEvent: 10 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `O` start of messages, `S` start of system hours, `R` start of regular market hours, `M` end of regular
        /// market hours, `E` end of system hours, `C` end of messages.
        system_event: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
    }
}

wire_struct! {
    /// Security Directory Message (`D`). 31 bytes.
    pub struct SecurityDirectory: 31 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// Bit 7 test security, 6 when-issued, 5 exchange-traded product.
        flags: u8 as bits,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// Shares of a round lot.
        round_lot_size: U32 as number,
        /// Previous official closing price, adjusted for corporate actions, 1e-4 dollars.
        adjusted_poc_price_e4: I64 as e4,
        /// Tier under the Limit Up - Limit Down plan; 0 not applicable.
        luld_tier: u8 as number,
    }
}

wire_struct! {
    /// Trading Status Message (`H`). 22 bytes.
    pub struct TradingStatus: 22 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `H` halted, `O` order acceptance period, `P` paused with order acceptance, `T` trading.
        trading_status: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// Code of the reason.
        reason: [u8; 4] as text,
    }
}

wire_struct! {
    /// Retail Liquidity Indicator Message (`I`). 18 bytes.
    pub struct RetailLiquidityIndicator: 18 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `A` buy interest, `B` sell interest, `C` both, space none.
        retail_liquidity_indicator: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
    }
}

wire_struct! {
    /// Operational Halt Status Message (`O`). 18 bytes.
    pub struct OperationalHaltStatus: 18 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `O` halted on IEX, `N` not halted.
        operational_halt_status: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
    }
}

wire_struct! {
    /// Short Sale Price Test Status Message (`P`). 19 bytes.
    pub struct ShortSalePriceTestStatus: 19 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// 0 not in effect, 1 in effect.
        short_sale_price_test_status: u8 as number,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// `A` activated, `C` continued, `D` deactivated, space no price test, `N` not available.
        detail: u8 as code,
    }
}

wire_struct! {
    /// Trade Report Message (`T`), and Trade Break Message (`B`), which repeats the cancelled report. 38 bytes.
    pub struct TradeReport: 38 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// Bit 7 intermarket sweep, 6 extended hours, 5 odd lot, 4 trade-through exempt, 3 single-price cross.
        sale_condition_flags: u8 as bits,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// Shares traded.
        size: U32 as number,
        /// Price of the trade, 1e-4 dollars.
        price_e4: I64 as e4,
        /// Id of the trade, unique for the day.
        trade_id: I64 as number,
    }
}

impl TradeReport {
    /// Whether the price fits 1e-9 dollars in 64 bits.
    #[inline]
    pub(super) fn has_price(&self) -> bool {
        is_price(self.price_e4.get())
    }
}

wire_struct! {
    /// Official Price Message (`X`). 26 bytes.
    pub struct OfficialPrice: 26 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `Q` official opening price, `M` official closing price.
        price_type: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// Official price, 1e-4 dollars.
        official_price_e4: I64 as e4,
    }
}

wire_struct! {
    /// Auction Information Message (`A`). 80 bytes.
    pub struct AuctionInformation: 80 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `O` opening, `C` closing, `I` offering, `H` halt, `V` volatility.
        auction_type: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// Shares that would match at the reference price.
        paired_shares: U32 as number,
        /// Price for which the paired and imbalance shares are computed, 1e-4 dollars.
        reference_price_e4: I64 as e4,
        /// Clearing price with the continuous book, 1e-4 dollars.
        indicative_clearing_price_e4: I64 as e4,
        /// Shares that would stay unpaired at the reference price.
        imbalance_shares: U32 as number,
        /// Side of the imbalance: `B` buy, `S` sell, `N` none.
        imbalance_side: u8 as code,
        /// How many times the auction was extended.
        extension_number: u8 as number,
        /// Scheduled time of the match, seconds since 1970 UTC.
        scheduled_auction_time_s: U32 as unix_s,
        /// Clearing price of the auction's orders alone, 1e-4 dollars.
        auction_book_clearing_price_e4: I64 as e4,
        /// Reference price that the collars are set from, 1e-4 dollars.
        collar_reference_price_e4: I64 as e4,
        /// Lowest price of the auction, 1e-4 dollars.
        lower_auction_collar_e4: I64 as e4,
        /// Highest price of the auction, 1e-4 dollars.
        upper_auction_collar_e4: I64 as e4,
    }
}

/// Whether a price is valid in a book: not negative, and in the range of 1e-9 dollars in 64 bits.
#[inline]
pub(super) fn is_price(price_e4: i64) -> bool {
    (0..=i64::MAX / 100_000).contains(&price_e4)
}
