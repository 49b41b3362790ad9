//! What does decoding cost, beyond loading the fields?

use anyhow::{Result, ensure};
use mdgw_feeds::{
    transport::{Transport, moldudp64::MoldUdp64},
    venue::nasdaq::itch50::{AddOrder, Message},
};
use serde_json::json;

use crate::{Options, decode_baseline, input::SyntheticDay, report::Rounds};

pub(crate) fn run(options: &Options) -> Result<()> {
    let day = SyntheticDay::load(options)?;
    let mut rounds = Rounds::new(&["hop", "decode"], day.message_count);
    for _ in 0..options.rounds {
        let expected = rounds.time("hop", || decode_baseline::sum_fields(&day.bytes));
        let sum = rounds.time("decode", || sum_fields(&day.bytes));
        ensure!(sum == expected, "decoding found other fields than the hop loop: {sum} and not {expected}");
    }
    if options.json {
        println!("{}", json!({ "scenario": "decode", "messages": day.message_count, "variants": rounds.to_json() }));
    } else {
        println!("decode: {} messages, {} rounds", day.message_count, options.rounds);
        rounds.print(&[("decode", 1.2)]);
    }
    Ok(())
}

/// Decodes every message with all its checks, and sums the fields that the baseline sums.
#[inline(never)]
pub(crate) fn sum_fields(mut block: &[u8]) -> u64 {
    let mut sum = 0_u64;
    while let Some(message) = MoldUdp64::next_message(&mut block) {
        let Ok(message) = Message::parse(message) else { continue };
        sum = sum.wrapping_add(sum_message(&message));
    }
    sum
}

#[inline]
fn sum_message(message: &Message<'_>) -> u64 {
    let prefix = message.prefix();
    let start = u64::from(prefix.message_type)
        + u64::from(prefix.stock_locate.get())
        + u64::from(prefix.tracking_number.get())
        + message.timestamp_ns();
    let rest = match message {
        Message::AddOrder(m) => add(m),
        Message::AddOrderMpid(m) => add(&m.order) + u64::from(u32::from_be_bytes(m.attribution)),
        Message::OrderExecuted(m) => {
            part(m.order_reference_number.get()) + u64::from(m.executed_shares.get()) + part(m.match_number.get())
        }
        Message::OrderExecutedWithPrice(m) => {
            part(m.order_reference_number.get())
                + u64::from(m.executed_shares.get())
                + part(m.match_number.get())
                + u64::from(m.printable)
                + u64::from(m.execution_price_e4.get())
        }
        Message::OrderCancel(m) => part(m.order_reference_number.get()) + u64::from(m.cancelled_shares.get()),
        Message::OrderDelete(m) => part(m.order_reference_number.get()),
        Message::OrderReplace(m) => {
            part(m.original_order_reference_number.get())
                + part(m.new_order_reference_number.get())
                + u64::from(m.shares.get())
                + u64::from(m.price_e4.get())
        }
        Message::NonCrossTrade(m) => {
            part(m.order_reference_number.get())
                + u64::from(m.buy_sell_indicator)
                + u64::from(m.shares.get())
                + part(u64::from_be_bytes(m.stock))
                + u64::from(m.price_e4.get())
                + part(m.match_number.get())
        }
        _ => 0,
    };
    start + rest
}

#[inline]
fn add(message: &AddOrder) -> u64 {
    part(message.order_reference_number.get())
        + u64::from(message.buy_sell_indicator)
        + u64::from(message.shares.get())
        + part(u64::from_be_bytes(message.stock))
        + u64::from(message.price_e4.get())
}

/// A 64-bit field without its lowest four bits, as the baseline sums it.
#[inline]
fn part(number: u64) -> u64 {
    number >> 4
}
