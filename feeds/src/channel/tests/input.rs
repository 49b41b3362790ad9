//! Messages and packets in the form in which venues send them.

use zerocopy::{FromZeros as _, IntoBytes};

use super::*;
use crate::{
    transport::{iextp, moldudp64},
    venue::{iex::admin::TradeReport, iex::deep::PriceLevelUpdate, iex::tops::QuoteUpdate, nasdaq::itch50::*, wire},
};

/// Nanoseconds from midnight in New York to [`OPEN`].
const OPEN_NS: u64 = 34_200_000_000_000;
/// Send time of an IEX packet, ns after [`OPEN`].
const SENT_NS: u64 = 2_000;

/// One session of one venue, from its first message on.
pub(super) struct Stream {
    pub(super) feed: Feed,
    /// Letter that fills the MoldUDP64 session name; for IEX, the session id.
    pub(super) name: u8,
    /// Sequence of the next message.
    pub(super) first: u64,
    /// IEX-TP stream offset of the next packet: payload bytes sent so far.
    pub(super) offset: u64,
    /// Send time of the next IEX packet, ns after [`OPEN`].
    pub(super) sent_ns: u64,
}

impl Stream {
    pub(super) fn new(feed: Feed) -> Self {
        Self { feed, name: b'1', first: 1, offset: 0, sent_ns: SENT_NS }
    }

    /// The messages in packets of at most `count`.
    pub(super) fn packets(&mut self, messages: &[Vec<u8>], count: usize) -> Vec<Vec<u8>> {
        messages.chunks(count.min(10_000)).map(|messages| self.packet(messages)).collect()
    }

    pub(super) fn packet(&mut self, messages: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        if self.feed.is_by_order() {
            let mut writer =
                moldudp64::PacketWriter::begin(&mut out, [self.name; 10], Sequence(self.first), usize::MAX);
            assert!(messages.iter().all(|message| writer.push(message)));
            writer.finish();
        } else {
            let mut writer = iextp::PacketWriter::begin(&mut out, self.stream(), self.position(), usize::MAX);
            assert!(messages.iter().all(|message| writer.push(message)));
            writer.finish();
            self.offset += (out.len() - iextp::HEADER_BYTES) as u64;
        }
        self.first += messages.len() as u64;
        out
    }

    pub(super) fn heartbeat(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.feed.is_by_order() {
            moldudp64::write_heartbeat(&mut out, [self.name; 10], Sequence(self.first));
        } else {
            iextp::write_heartbeat(&mut out, self.stream(), self.position());
        }
        out
    }

    pub(super) fn end_of_session(&self) -> Vec<u8> {
        let mut out = Vec::new();
        moldudp64::write_end_of_session(&mut out, [self.name; 10], Sequence(self.first));
        out
    }

    fn stream(&self) -> iextp::StreamIdentity {
        let message_protocol_id =
            if self.feed == Feed::IexTops { iextp::PROTOCOL_TOPS_1_6 } else { iextp::PROTOCOL_DEEP_1_0 };
        iextp::StreamIdentity { message_protocol_id, channel_id: 1, session_id: u32::from(self.name) }
    }

    fn position(&self) -> iextp::SegmentPosition {
        iextp::SegmentPosition {
            first: Sequence(self.first),
            // A stream that begins in the middle has had messages before, though empty ones.
            stream_offset: self.offset.max(2 * (self.first - 1)),
            send_time: UnixNs(OPEN.0 + self.sent_ns),
        }
    }
}

/// The bytes of an ITCH message with its head filled in.
macro_rules! itch {
    ($code:literal, $locate:expr, $name:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut message = <$name as zerocopy::FromZeros>::new_zeroed();
        message.message_type = $code;
        message.stock_locate = u16::into($locate);
        message.timestamp_ns = $crate::channel::tests::input::itch_time();
        $( message.$field = $value.into(); )*
        zerocopy::IntoBytes::as_bytes(&message).to_vec()
    }};
}

/// The bytes of an IEX message with its head filled in.
macro_rules! iex {
    ($code:literal, $symbol:expr, $name:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut message = <$name as zerocopy::FromZeros>::new_zeroed();
        message.message_type = $code;
        message.timestamp_ns = $crate::channel::tests::OPEN.0.cast_signed().into();
        message.symbol = $crate::channel::tests::input::symbol($symbol);
        $( message.$field = $value.into(); )*
        zerocopy::IntoBytes::as_bytes(&message).to_vec()
    }};
}
pub(super) use {iex, itch};

pub(super) fn itch_time() -> [u8; 6] {
    wire::u48_be_bytes(OPEN_NS)
}

/// A symbol in eight bytes, padded with spaces.
pub(super) fn symbol(text: &str) -> [u8; 8] {
    let mut padded = [b' '; 8];
    padded[..text.len()].copy_from_slice(text.as_bytes());
    padded
}

/// The symbol that the tests give to a stock locate.
pub(super) fn stock(locate: u16) -> [u8; 8] {
    symbol(&format!("S{locate}"))
}

pub(super) const BUY: u8 = b'B';
pub(super) const SELL: u8 = b'S';

pub(super) fn add(locate: u16, id: u64, side: u8, shares: u32, price_e4: u32) -> Vec<u8> {
    itch!(
        b'A',
        locate,
        AddOrder {
            order_reference_number: id,
            buy_sell_indicator: side,
            shares: shares,
            stock: stock(locate),
            price_e4: price_e4,
        }
    )
}

pub(super) fn add_mpid(locate: u16, id: u64, side: u8, shares: u32, price_e4: u32) -> Vec<u8> {
    let mut message = AddOrderMpid::new_zeroed();
    message.order.as_mut_bytes().copy_from_slice(&add(locate, id, side, shares, price_e4));
    message.order.message_type = b'F';
    message.attribution = *b"MDGW";
    message.as_bytes().to_vec()
}

pub(super) fn execute(locate: u16, id: u64, shares: u32) -> Vec<u8> {
    itch!(b'E', locate, OrderExecuted { order_reference_number: id, executed_shares: shares })
}

pub(super) fn execute_at(locate: u16, id: u64, shares: u32, printable: u8, price_e4: u32) -> Vec<u8> {
    itch!(
        b'C',
        locate,
        OrderExecutedWithPrice {
            order_reference_number: id,
            executed_shares: shares,
            printable: printable,
            execution_price_e4: price_e4,
        }
    )
}

pub(super) fn cancel(locate: u16, id: u64, shares: u32) -> Vec<u8> {
    itch!(b'X', locate, OrderCancel { order_reference_number: id, cancelled_shares: shares })
}

pub(super) fn delete(locate: u16, id: u64) -> Vec<u8> {
    itch!(b'D', locate, OrderDelete { order_reference_number: id })
}

pub(super) fn replace(locate: u16, old: u64, new: u64, shares: u32, price_e4: u32) -> Vec<u8> {
    itch!(
        b'U',
        locate,
        OrderReplace {
            original_order_reference_number: old,
            new_order_reference_number: new,
            shares: shares,
            price_e4: price_e4,
        }
    )
}

pub(super) fn hidden(locate: u16, side: u8, shares: u32, price_e4: u32) -> Vec<u8> {
    itch!(
        b'P',
        locate,
        NonCrossTrade { buy_sell_indicator: side, shares: shares, stock: stock(locate), price_e4: price_e4 }
    )
}

pub(super) fn cross(locate: u16, shares: u64, price_e4: u32, cross_type: u8) -> Vec<u8> {
    itch!(
        b'Q',
        locate,
        CrossTrade { shares: shares, stock: stock(locate), cross_price_e4: price_e4, cross_type: cross_type }
    )
}

pub(super) fn halt(locate: u16, state: u8, reason: [u8; 4]) -> Vec<u8> {
    itch!(b'H', locate, StockTradingAction { stock: stock(locate), trading_state: state, reason: reason })
}

pub(super) fn reg_sho(locate: u16, action: u8) -> Vec<u8> {
    itch!(b'Y', locate, RegShoRestriction { stock: stock(locate), reg_sho_action: action })
}

/// Both sides as (size, price in 1e-4).
pub(super) fn quote(name: &str, bid: (u32, i64), ask: (u32, i64)) -> Vec<u8> {
    iex!(b'Q', name, QuoteUpdate { bid_size: bid.0, bid_price_e4: bid.1, ask_price_e4: ask.1, ask_size: ask.0 })
}

pub(super) fn trade(name: &str, size: u32, price_e4: i64) -> Vec<u8> {
    iex!(b'T', name, TradeReport { size: size, price_e4: price_e4 })
}

/// A level of a DEEP book: `b'8'` buys, `b'5'` sells; `flags` 1 completes the event.
pub(super) fn level(side: u8, name: &str, size: u32, price_e4: i64, flags: u8) -> Vec<u8> {
    let mut message = iex!(b'8', name, PriceLevelUpdate { event_flags: flags, size: size, price_e4: price_e4 });
    message[0] = side;
    message
}
