//! The synthetic day that all scenarios use.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use mdgw_feeds::{
    book::BookLimits,
    transport::{
        Transport,
        moldudp64::{HEADER_BYTES, MoldUdp64},
    },
    venue::nasdaq::itch50::Message,
};
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, OrderIds, PACKET_BYTES_MAX, write_day_file};

use crate::Options;

/// A day in memory: each message follows its length, as in the day file and in packets.
pub(crate) struct SyntheticDay {
    pub(crate) bytes: Vec<u8>,
    pub(crate) message_count: u64,
    /// Offset in `bytes` of the end of each packet. A packet holds the messages that a venue would send together.
    pub(crate) packet_ends: Vec<usize>,
    /// Limits of books that hold the whole day.
    pub(crate) limits: BookLimits,
}

impl SyntheticDay {
    /// Reads the day file. Generates the file first if it does not exist.
    pub(crate) fn load(options: &Options) -> Result<Self> {
        let day = ItchDay {
            seed: options.seed,
            message_count: options.messages,
            live_orders: options.live_orders,
            order_ids: if options.scattered_ids { OrderIds::Scattered } else { OrderIds::Dense },
            ..ItchDay::default()
        };
        let path = options.input.clone().unwrap_or_else(|| default_path(&day));
        if !path.exists() {
            make(&path, day).with_context(|| format!("cannot make the day file {}", path.display()))?;
        }
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read the day file {}", path.display()))?;
        Ok(Self::new(bytes))
    }

    fn new(bytes: Vec<u8>) -> Self {
        let mut block = bytes.as_slice();
        let (mut message_count, mut packet_ends) = (0, Vec::new());
        let (mut packet_start, mut end, mut last_ns) = (0, 0, 0);
        while let Some(message) = MoldUdp64::next_message(&mut block) {
            let time_ns = Message::parse(message).map_or(last_ns, |message| message.timestamp_ns());
            let message_end = bytes.len() - block.len();
            let is_full = HEADER_BYTES + message_end - packet_start > PACKET_BYTES_MAX;
            if message_count > 0 && (is_full || time_ns - last_ns > PACKET_GAP_NS_MAX) {
                packet_ends.push(end);
                packet_start = end;
            }
            (end, last_ns) = (message_end, time_ns);
            message_count += 1;
        }
        packet_ends.push(end);
        let limits = book_limits(&bytes);
        Self { bytes, message_count, packet_ends, limits }
    }

    /// The messages of each packet.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.packet_ends.iter().map(move |end| {
            let packet = &self.bytes[start..*end];
            start = *end;
            packet
        })
    }
}

/// Smallest limits. The memory sizes that the documents report are for these limits; a larger day gets larger limits.
const LIMITS_MIN: BookLimits = BookLimits {
    instruments_max: 8_001,
    orders_max: 1_000_000,
    levels_max: 1_000_000,
    order_hash_seed: 0,
    prefault: true,
};

/// Limits for the orders, levels and instruments of the day. Live orders are counted as orders added minus orders
/// deleted. That is an upper bound, since a fully executed order has no delete message. Each order may have its own
/// level.
fn book_limits(mut block: &[u8]) -> BookLimits {
    let (mut limits, mut orders) = (LIMITS_MIN, 0_u32);
    while let Some(message) = MoldUdp64::next_message(&mut block) {
        let Ok(message) = Message::parse(message) else { continue };
        limits.instruments_max = limits.instruments_max.max(u32::from(message.stock_locate()) + 1);
        match message {
            Message::AddOrder(_) | Message::AddOrderMpid(_) => orders += 1,
            Message::OrderDelete(_) => orders = orders.saturating_sub(1),
            _ => {}
        }
        limits.orders_max = limits.orders_max.max(orders);
    }
    limits.levels_max = limits.levels_max.max(limits.orders_max);
    limits
}

/// Longest pause inside a packet, ns, as in the exchange simulator.
const PACKET_GAP_NS_MAX: u64 = 4_000;

fn default_path(day: &ItchDay) -> PathBuf {
    let ids = if day.order_ids == OrderIds::Dense { "dense" } else { "scattered" };
    let name = format!("mdgw-bench-{}-{}-{}-{ids}.itch", day.seed, day.message_count, day.live_orders);
    std::env::temp_dir().join(name)
}

fn make(path: &Path, day: ItchDay) -> Result<()> {
    eprintln!("making {} ...", path.display());
    let unfinished = path.with_extension("unfinished");
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(&unfinished)?);
    write_day_file(&mut ItchGenerator::new(day), &mut writer)?;
    writer.flush()?;
    std::fs::rename(unfinished, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::book::{orders::OrderBooks, store::HashStore};

    use super::*;
    use crate::scenario::book::{run_plain, run_reference};

    #[test]
    fn limits_hold_a_day_with_more_instruments_than_usual() {
        let generated = ItchDay { message_count: 60_000, stock_count: 12_000, ..ItchDay::default() };
        let mut bytes = Vec::new();
        write_day_file(&mut ItchGenerator::new(generated), &mut bytes).unwrap();
        let day = SyntheticDay::new(bytes);
        assert!(day.limits.instruments_max > LIMITS_MIN.instruments_max, "{:?}", day.limits);
        let mut books = OrderBooks::<HashStore>::new(day.limits);
        let mut reference = crate::reference::ReferenceBooks::new();
        assert_eq!(run_plain(&mut books, &day), run_reference(&mut reference, &day));
        assert_eq!(books.faults().total(), 0);
        let mut too_small = OrderBooks::<HashStore>::new(LIMITS_MIN);
        run_plain(&mut too_small, &day);
        assert!(too_small.faults().total() > 0, "the day would fit the usual limits");
    }
}
