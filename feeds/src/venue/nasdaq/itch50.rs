//! Nasdaq TotalView-ITCH 5.0, used by Nasdaq, BX and PSX. Big-endian.
//!
//! A message has exactly the length of its type. Times are nanoseconds since midnight in New York. Prices are
//! unsigned numbers of 1e-4 dollars (`_e4`; in the decline levels 1e-8, `_e8`). Text is ASCII, padded with spaces.
//!
//! Two titles are shortened: "Market-Wide Circuit Breaker" to `Mwcb`, "Add Order with MPID Attribution" to
//! `AddOrderMpid`.

use zerocopy::{
    FromBytes, Immutable, KnownLayout, Unaligned,
    big_endian::{U16, U32, U64},
};

use crate::venue::wire::{u48_be, wire_messages, wire_struct};

wire_messages! {
    /// One message of Nasdaq TotalView-ITCH 5.0.
    pub enum Message, exact {
        /// System Event Message.
        b'S' => SystemEvent(SystemEvent),
        /// Stock Directory.
        b'R' => StockDirectory(StockDirectory),
        /// Stock Trading Action.
        b'H' => StockTradingAction(StockTradingAction),
        /// Reg SHO Short Sale Price Test Restricted Indicator.
        b'Y' => RegShoRestriction(RegShoRestriction),
        /// Market Participant Position.
        b'L' => MarketParticipantPosition(MarketParticipantPosition),
        /// MWCB Decline Level Message.
        b'V' => MwcbDeclineLevel(MwcbDeclineLevel),
        /// MWCB Status Message.
        b'W' => MwcbStatus(MwcbStatus),
        /// Quoting Period Update.
        b'K' => IpoQuotingPeriodUpdate(IpoQuotingPeriodUpdate),
        /// Limit Up - Limit Down (LULD) Auction Collar.
        b'J' => LuldAuctionCollar(LuldAuctionCollar),
        /// Operational Halt.
        b'h' => OperationalHalt(OperationalHalt),
        /// Add Order, No MPID Attribution.
        b'A' => AddOrder(AddOrder) if AddOrder::has_side,
        /// Add Order with MPID Attribution.
        b'F' => AddOrderMpid(AddOrderMpid) if AddOrderMpid::has_side,
        /// Order Executed Message.
        b'E' => OrderExecuted(OrderExecuted),
        /// Order Executed With Price Message.
        b'C' => OrderExecutedWithPrice(OrderExecutedWithPrice) if OrderExecutedWithPrice::has_printable,
        /// Order Cancel Message.
        b'X' => OrderCancel(OrderCancel),
        /// Order Delete Message.
        b'D' => OrderDelete(OrderDelete),
        /// Order Replace Message.
        b'U' => OrderReplace(OrderReplace),
        /// Trade Message (Non-Cross).
        b'P' => NonCrossTrade(NonCrossTrade),
        /// Cross Trade Message.
        b'Q' => CrossTrade(CrossTrade),
        /// Broken Trade / Order Execution Message.
        b'B' => BrokenTrade(BrokenTrade),
        /// Net Order Imbalance Indicator (NOII) Message.
        b'I' => NetOrderImbalanceIndicator(NetOrderImbalanceIndicator),
        /// Retail Price Improvement Indicator (RPII).
        b'N' => RetailPriceImprovementIndicator(RetailPriceImprovementIndicator),
        /// Direct Listing with Capital Raise Price Discovery Message.
        b'O' => DirectListingWithCapitalRaise(DirectListingWithCapitalRaise),
    }
}

impl Message<'_> {
    /// The common first fields of all messages.
    #[inline]
    #[must_use]
    pub fn prefix(&self) -> &Prefix {
        // Every struct is longer (asserted below), so there always is a prefix.
        self.prefix_as().unwrap_or(&Prefix::NONE)
    }

    /// Time of the event, ns since midnight, New York.
    #[inline]
    #[must_use]
    pub fn timestamp_ns(&self) -> u64 {
        u48_be(self.prefix().timestamp_ns)
    }

    /// Stock locate: number of the stock for the day; 0 in messages about the whole market.
    #[inline]
    #[must_use]
    pub fn stock_locate(&self) -> u16 {
        self.prefix().stock_locate.get()
    }
}

/// The common first fields of all messages. 11 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Prefix {
    /// Message type.
    pub message_type: u8,
    /// Stock locate: number of the stock for the day; 0 in messages about the whole market.
    pub stock_locate: U16,
    /// Tracking number for Nasdaq's internal use.
    pub tracking_number: U16,
    /// Time of the event, ns since midnight, New York.
    pub timestamp_ns: [u8; 6],
}
const _: () = assert!(size_of::<Prefix>() == 11);

impl Prefix {
    const NONE: Self =
        Self { message_type: 0, stock_locate: U16::ZERO, tracking_number: U16::ZERO, timestamp_ns: [0; 6] };
}

/// The book and the order that a message will touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageTarget {
    /// Stock locate of the message, which selects the book.
    pub stock_locate: u16,
    /// Id of the order that the message adds, executes, cancels, deletes or replaces.
    pub order_reference_number: Option<u64>,
}

/// Reads the book and order that a message will touch without a full parse, for the prefetch pass over a packet.
/// `None` if the bytes are too short for any message.
#[inline]
#[must_use]
pub fn target_of(message: &[u8]) -> Option<MessageTarget> {
    let (prefix, rest) = Prefix::ref_from_prefix(message).ok()?;
    let order_reference_number = match prefix.message_type {
        b'A' | b'F' | b'E' | b'C' | b'X' | b'D' | b'U' => rest.first_chunk().copied().map(u64::from_be_bytes),
        _ => None,
    };
    Some(MessageTarget { stock_locate: prefix.stock_locate.get(), order_reference_number })
}

/// Id of the new order of a replacement; `None` for any other message.
#[must_use]
pub(crate) fn replacement_order_id(message: &[u8]) -> Option<u64> {
    let (prefix, rest) = Prefix::ref_from_prefix(message).ok()?;
    let new_id = rest.get(size_of::<u64>()..)?.first_chunk().copied().map(u64::from_be_bytes);
    new_id.filter(|_| prefix.message_type == b'U')
}

/// Whether the bytes have a type of this protocol and its length.
#[must_use]
pub fn has_known_length(message: &[u8]) -> bool {
    Message::TYPES
        .iter()
        .any(|(message_type, _, bytes)| message.first() == Some(message_type) && message.len() == *bytes)
}

/// Whether a character is a valid side.
#[inline]
fn is_side(code: u8) -> bool {
    matches!(code, b'B' | b'S')
}

/// A message: [`wire_struct!`] with the fields of [`Prefix`] in front.
macro_rules! itch_message {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident: $bytes:literal bytes { $($fields:tt)* }
    ) => {
        wire_struct! {
            $(#[$attribute])*
            pub struct $name: $bytes bytes {
                /// Message type: the character in the struct's title.
                message_type: u8 as message_type,
                /// Stock locate: number of the stock for the day; 0 in messages about the whole market.
                stock_locate: U16 as number,
                /// Tracking number for Nasdaq's internal use.
                tracking_number: U16 as number,
                /// Time of the event, ns since midnight, New York.
                timestamp_ns: [u8; 6] as midnight_ns,
                $($fields)*
            }
        }
        const _: () = assert!(core::mem::offset_of!($name, timestamp_ns) == 5);
    };
}

itch_message! {
    /// System Event Message (`S`). 12 bytes.
    pub struct SystemEvent: 12 bytes {
        /// `O` start of messages, `S` start of system hours, `Q` start of market hours, `M` end of market hours, `E`
        /// end of system hours, `C` end of messages.
        event_code: u8 as code,
    }
}

itch_message! {
    /// Stock Directory (`R`). 39 bytes.
    pub struct StockDirectory: 39 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Listing market or tier: `Q` `G` `S` (Nasdaq), `N` (NYSE), `A` (NYSE American), `P` (NYSE Arca), `Z` (Cboe
        /// BZX), `V` (IEX), space (not available).
        market_category: u8 as code,
        /// Whether the issuer meets the listing requirements; `N` normal, space not available.
        financial_status_indicator: u8 as code,
        /// Shares of a round lot.
        round_lot_size: U32 as number,
        /// `Y` when only orders of round lots are accepted, `N` when any size is.
        round_lots_only: u8 as code,
        /// Kind of security.
        issue_classification: u8 as code,
        /// Kind of security in detail.
        issue_sub_type: [u8; 2] as text,
        /// `P` live, `T` test.
        authenticity: u8 as code,
        /// `Y` when the stock is on the threshold list of SEC Rule 203(b)(3).
        short_sale_threshold_indicator: u8 as code,
        /// `Y` when the stock is set up for the release of an initial public offering.
        ipo_flag: u8 as code,
        /// Tier under the Limit Up - Limit Down plan.
        luld_reference_price_tier: u8 as code,
        /// `Y` when the stock is an exchange-traded product.
        etp_flag: u8 as code,
        /// Leverage of an exchange-traded product.
        etp_leverage_factor: U32 as number,
        /// `Y` when the product moves against its index.
        inverse_indicator: u8 as code,
    }
}

itch_message! {
    /// Stock Trading Action (`H`). 25 bytes.
    pub struct StockTradingAction: 25 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// `H` halted, `P` paused, `Q` quotation only, `T` trading.
        trading_state: u8 as code,
        /// Reserved.
        reserved: u8 as code,
        /// Code of the reason.
        reason: [u8; 4] as text,
    }
}

itch_message! {
    /// Reg SHO Short Sale Price Test Restricted Indicator (`Y`). 20 bytes.
    pub struct RegShoRestriction: 20 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// `0` no restriction, `1` in effect after an intraday drop, `2` still in effect.
        reg_sho_action: u8 as code,
    }
}

itch_message! {
    /// Market Participant Position (`L`). 26 bytes.
    pub struct MarketParticipantPosition: 26 bytes {
        /// Identifier of the market participant (MPID).
        mpid: [u8; 4] as text,
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// `Y` when the participant is a primary market maker in the stock, else `N`.
        primary_market_maker: u8 as code,
        /// `N` normal, `P` passive, `S` syndicate, `R` pre-syndicate, `L` penalty.
        market_maker_mode: u8 as code,
        /// `A` active, `E` excused, `W` withdrawn, `S` suspended, `D` deleted.
        market_participant_state: u8 as code,
    }
}

itch_message! {
    /// MWCB Decline Level Message (`V`). 35 bytes.
    pub struct MwcbDeclineLevel: 35 bytes {
        /// Index value of a level 1 breach, 1e-8.
        level_1_e8: U64 as e8,
        /// Index value of a level 2 breach, 1e-8.
        level_2_e8: U64 as e8,
        /// Index value of a level 3 breach, 1e-8.
        level_3_e8: U64 as e8,
    }
}

itch_message! {
    /// MWCB Status Message (`W`). 12 bytes.
    pub struct MwcbStatus: 12 bytes {
        /// Level that was breached: `1`, `2` or `3`.
        breached_level: u8 as code,
    }
}

itch_message! {
    /// Quoting Period Update (`K`). 28 bytes.
    pub struct IpoQuotingPeriodUpdate: 28 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// When the quotation period begins, seconds since midnight, New York.
        ipo_quotation_release_time_s: U32 as midnight_s,
        /// `A` anticipated, `C` cancelled or postponed.
        ipo_quotation_release_qualifier: u8 as code,
        /// Price of the offering, 1e-4 dollars.
        ipo_price_e4: U32 as e4,
    }
}

itch_message! {
    /// Limit Up - Limit Down (LULD) Auction Collar (`J`). 35 bytes.
    pub struct LuldAuctionCollar: 35 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Reference price that the collars are set from, 1e-4 dollars.
        auction_collar_reference_price_e4: U32 as e4,
        /// Highest price of the auction, 1e-4 dollars.
        upper_auction_collar_price_e4: U32 as e4,
        /// Lowest price of the auction, 1e-4 dollars.
        lower_auction_collar_price_e4: U32 as e4,
        /// How many times the auction was extended.
        auction_collar_extension: U32 as number,
    }
}

itch_message! {
    /// Operational Halt (`h`). 21 bytes.
    pub struct OperationalHalt: 21 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Market that the halt applies to: `Q` Nasdaq, `B` BX, `X` PSX.
        market_code: u8 as code,
        /// `H` halted, `T` lifted.
        operational_halt_action: u8 as code,
    }
}

itch_message! {
    /// Add Order, No MPID Attribution (`A`). 36 bytes.
    pub struct AddOrder: 36 bytes {
        /// Id of the new order, unique within the day.
        order_reference_number: U64 as number,
        /// Side of the order: `B` buy, `S` sell. Parsing rejects any other value.
        buy_sell_indicator: u8 as code,
        /// Shares of the order.
        shares: U32 as number,
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Limit price of the order, 1e-4 dollars.
        price_e4: U32 as e4,
    }
}

impl AddOrder {
    #[inline]
    fn has_side(&self) -> bool {
        is_side(self.buy_sell_indicator)
    }
}

wire_struct! {
    /// Add Order with MPID Attribution (`F`): the same with one more field. 40 bytes.
    pub struct AddOrderMpid: 40 bytes {
        /// The fields of an order without attribution. Their message type is `F` here.
        order: AddOrder as fields,
        /// Market participant (MPID) that entered the order.
        attribution: [u8; 4] as text,
    }
}

impl AddOrderMpid {
    #[inline]
    fn has_side(&self) -> bool {
        self.order.has_side()
    }
}

itch_message! {
    /// Order Executed Message (`E`): at the price of the order. 31 bytes.
    pub struct OrderExecuted: 31 bytes {
        /// Id of the order, unique within the day.
        order_reference_number: U64 as number,
        /// Shares that were executed.
        executed_shares: U32 as number,
        /// Number of the match, unique for the day.
        match_number: U64 as number,
    }
}

itch_message! {
    /// Order Executed With Price Message (`C`): at another price than that of the order. 36 bytes.
    pub struct OrderExecutedWithPrice: 36 bytes {
        /// Id of the order, unique within the day.
        order_reference_number: U64 as number,
        /// Shares that were executed.
        executed_shares: U32 as number,
        /// Number of the match, unique for the day.
        match_number: U64 as number,
        /// `Y` when the execution counts in time and sales and volume, `N` when another message reports it. Parsing
        /// rejects any other value.
        printable: u8 as code,
        /// Price of the execution, 1e-4 dollars.
        execution_price_e4: U32 as e4,
    }
}

impl OrderExecutedWithPrice {
    #[inline]
    fn has_printable(&self) -> bool {
        matches!(self.printable, b'Y' | b'N')
    }
}

itch_message! {
    /// Order Cancel Message (`X`): removes a part of an order. 23 bytes.
    pub struct OrderCancel: 23 bytes {
        /// Id of the order, unique within the day.
        order_reference_number: U64 as number,
        /// Shares removed from the order.
        cancelled_shares: U32 as number,
    }
}

itch_message! {
    /// Order Delete Message (`D`): removes the rest of an order. 19 bytes.
    pub struct OrderDelete: 19 bytes {
        /// Id of the order, unique within the day.
        order_reference_number: U64 as number,
    }
}

itch_message! {
    /// Order Replace Message (`U`): side, symbol and attribution stay. 35 bytes.
    pub struct OrderReplace: 35 bytes {
        /// Id of the order that is removed.
        original_order_reference_number: U64 as number,
        /// Id of the new order.
        new_order_reference_number: U64 as number,
        /// Shares of the new order.
        shares: U32 as number,
        /// Price of the new order, 1e-4 dollars.
        price_e4: U32 as e4,
    }
}

itch_message! {
    /// Trade Message, Non-Cross (`P`): against an order that was not displayed. 44 bytes.
    pub struct NonCrossTrade: 44 bytes {
        /// 0 since December 2010.
        order_reference_number: U64 as number,
        /// `B` since July 2014, whatever the side of the order.
        buy_sell_indicator: u8 as code,
        /// Shares traded.
        shares: U32 as number,
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Price of the trade, 1e-4 dollars.
        price_e4: U32 as e4,
        /// Number of the match, unique for the day.
        match_number: U64 as number,
    }
}

itch_message! {
    /// Cross Trade Message (`Q`). 40 bytes.
    pub struct CrossTrade: 40 bytes {
        /// Shares matched; 0 when the cross matched nothing.
        shares: U64 as number,
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Price of the cross, 1e-4 dollars.
        cross_price_e4: U32 as e4,
        /// Number of the match, unique for the day.
        match_number: U64 as number,
        /// `O` opening, `C` closing, `H` for halted or paused stocks and offerings, `I` intraday.
        cross_type: u8 as code,
    }
}

itch_message! {
    /// Broken Trade / Order Execution Message (`B`). 19 bytes.
    pub struct BrokenTrade: 19 bytes {
        /// Number of the match that was broken.
        match_number: U64 as number,
    }
}

itch_message! {
    /// Net Order Imbalance Indicator (NOII) Message (`I`). 50 bytes.
    pub struct NetOrderImbalanceIndicator: 50 bytes {
        /// Shares that would match at the current reference price.
        paired_shares: U64 as number,
        /// Shares that would stay unpaired at the current reference price.
        imbalance_shares: U64 as number,
        /// Side of the imbalance: `B` buy, `S` sell, `N` none, `O` too few orders to calculate, `P` paused.
        imbalance_direction: u8 as code,
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Clearing price of the auction's orders alone, 1e-4 dollars; 0 when there is none.
        far_price_e4: U32 as e4,
        /// Clearing price with the continuous book, 1e-4 dollars; 0 when there is none.
        near_price_e4: U32 as e4,
        /// Price for which the paired and imbalance shares are computed, 1e-4 dollars.
        current_reference_price_e4: U32 as e4,
        /// `O` opening, `C` closing, `H` for halted or paused stocks and offerings, `A` extended trading close.
        cross_type: u8 as code,
        /// How far the near price lies from the reference price: `L` less than 1 %, `1` to `9`, `A` to `C`, space.
        price_variation_indicator: u8 as code,
    }
}

itch_message! {
    /// Retail Price Improvement Indicator (`N`). 20 bytes.
    pub struct RetailPriceImprovementIndicator: 20 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// Side with interest: `B` buy, `S` sell, `A` both, `N` none.
        interest_flag: u8 as code,
    }
}

itch_message! {
    /// Direct Listing with Capital Raise Price Discovery Message (`O`). 48 bytes.
    pub struct DirectListingWithCapitalRaise: 48 bytes {
        /// Symbol of the stock, padded with spaces.
        stock: [u8; 8] as symbol,
        /// `Y` when the security may be released for trading.
        open_eligibility_status: u8 as code,
        /// Lowest price that the registration allows, 1e-4 dollars.
        minimum_allowable_price_e4: U32 as e4,
        /// Highest price that the registration allows, 1e-4 dollars.
        maximum_allowable_price_e4: U32 as e4,
        /// Reference price, 1e-4 dollars.
        near_execution_price_e4: U32 as e4,
        /// When the reference price was set, ns since midnight, New York.
        near_execution_time_ns: U64 as midnight_ns,
        /// Lowest price of the cross, 1e-4 dollars.
        lower_price_range_collar_e4: U32 as e4,
        /// Highest price of the cross, 1e-4 dollars.
        upper_price_range_collar_e4: U32 as e4,
    }
}

#[cfg(test)]
mod tests;
