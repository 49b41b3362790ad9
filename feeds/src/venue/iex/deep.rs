//! IEX DEEP 1.0, specification 1.08: price levels and trades.

use zerocopy::little_endian::{I64, U32};

use super::admin::is_price;
pub(crate) use super::admin::{Admin, TradeReport};
use crate::venue::wire::{wire_messages, wire_struct};

wire_messages! {
    /// One message of DEEP.
    pub enum Message, growing, else Admin {
        /// Security Event Message.
        b'E' => SecurityEvent(SecurityEvent),
        /// Price Level Update Message, buy side.
        b'8' => PriceLevelUpdateBuy(PriceLevelUpdate) if PriceLevelUpdate::has_price,
        /// Price Level Update Message, sell side.
        b'5' => PriceLevelUpdateSell(PriceLevelUpdate) if PriceLevelUpdate::has_price,
        /// Trade Report Message.
        b'T' => TradeReport(TradeReport) if TradeReport::has_price,
    }
}

wire_struct! {
    /// Security Event Message (`E`). 18 bytes.
    pub struct SecurityEvent: 18 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// `O` opening process complete, `C` closing process complete.
        security_event: u8 as code,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
    }
}

wire_struct! {
    /// Price Level Update Message (`8` buy side, `5` sell side): the new size of one level. 30 bytes.
    pub struct PriceLevelUpdate: 30 bytes {
        /// Message type: the character in the struct's title.
        message_type: u8 as message_type,
        /// Bit 0: the event is complete; until then the book is in transition and must not be published.
        event_flags: u8 as bits,
        /// Time of the event, ns since 1970 UTC.
        timestamp_ns: I64 as unix_ns,
        /// Symbol of the security, padded with spaces.
        symbol: [u8; 8] as symbol,
        /// New total of shares at the level; 0 removes the level.
        size: U32 as number,
        /// Price of the level, 1e-4 dollars.
        price_e4: I64 as e4,
    }
}

impl PriceLevelUpdate {
    #[inline]
    fn has_price(&self) -> bool {
        is_price(self.price_e4.get())
    }
}
