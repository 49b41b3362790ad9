//! IEX TOPS 1.6, specification 1.66: quotes and trades. TOPS 1.5 is accepted too: its quote updates, trade reports
//! and trade breaks have the same form, and it has no other messages.

use zerocopy::little_endian::{I64, U32};

use super::admin::is_price;
pub(crate) use super::admin::{Admin, TradeReport};
use crate::venue::wire::{wire_messages, wire_struct};

wire_messages! {
    /// One message of TOPS.
    pub enum Message, growing, else Admin {
        /// Quote Update Message.
        b'Q' => QuoteUpdate(QuoteUpdate) if QuoteUpdate::has_prices,
        /// Trade Report Message.
        b'T' => TradeReport(TradeReport) if TradeReport::has_price,
    }
}

wire_struct! {
    /// Quote Update Message (`Q`): the best bid and offer, whole. 42 bytes.
    pub struct QuoteUpdate: 42 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// Bit 7: the symbol is not active on IEX; bit 6: outside of regular market hours.
        flags: u8 as bits,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// Shares at the best bid; 0 when there is none.
        bid_size: U32 as number,
        /// Price of the best bid, 1e-4 dollars; 0 when there is no bid.
        bid_price_e4: I64 as e4,
        /// Price of the best offer, 1e-4 dollars; 0 when there is no offer.
        ask_price_e4: I64 as e4,
        /// Shares at the best offer; 0 when there is none.
        ask_size: U32 as number,
    }
}

impl QuoteUpdate {
    #[inline]
    fn has_prices(&self) -> bool {
        is_price(self.bid_price_e4.get()) && is_price(self.ask_price_e4.get())
    }
}
