//! How much memory a configuration takes, computed before any of it is allocated.

use mdgw_feeds::book::BookLimits;
use mdgw_telemetry::{channel_metrics::ChannelCollector, stages::StageCollector};

use super::resolved::{ChannelSetup, OrderStoreKind, Resolved};

/// Bytes by use. Books, windows and histograms are allocated at the start and never grow; logs grow to their limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Books of all channels. An estimate, within a quarter.
    pub books_bytes: usize,
    /// Books of all channels with snapshots once more, and the largest snapshots themselves. Taken as orders come: an upper bound.
    pub snapshots_bytes: u64,
    /// Reorder windows of all channels. An estimate, within a quarter.
    pub windows_bytes: usize,
    /// Publication logs of all channels, in `log_dir` (by default in memory).
    pub logs_bytes: u64,
    /// Latency histograms of all threads, and those of the lines' leads.
    pub histograms_bytes: usize,
    /// Receive buffers requested from the kernel.
    pub sockets_bytes: usize,
    /// Input histories of all channels for the peer of a pair; grow to their limit.
    pub history_bytes: u64,
}

impl Memory {
    #[must_use]
    pub(crate) fn total_bytes(self) -> u64 {
        let own = self.books_bytes + self.windows_bytes + self.histograms_bytes + self.sockets_bytes;
        self.logs_bytes + self.history_bytes + self.snapshots_bytes + own as u64
    }
}

impl Resolved {
    /// The memory that a gateway with this configuration takes.
    #[must_use]
    pub(crate) fn memory(&self) -> Memory {
        let pools = self.pools.iter().enumerate().map(|(index, pool)| {
            let channel_count = self.channels.iter().filter(|channel| channel.pool == index).count();
            // A pool without channels does not run.
            let slot_count = if channel_count > 0 { channel_count + pool.spare_channels } else { 0 };
            pool.threads.count() * StageCollector::memory_bytes(slot_count, self.latency.significant_digits)
        });
        let leads = self.channels.iter().map(|channel| ChannelCollector::memory_bytes(channel.lines.len()));
        Memory {
            books_bytes: self.channels.iter().map(books_bytes).sum(),
            snapshots_bytes: self
                .channels
                .iter()
                .filter(|channel| self.takes_snapshots_of(channel.group))
                .map(|channel| snapshots_bytes(channel, self.snapshot_images(channel)))
                .sum(),
            windows_bytes: self
                .channels
                .iter()
                .map(|channel| channel.window_packets * (WINDOW_PACKET_BYTES + NEXT_SESSION_PACKET_BYTES))
                .sum(),
            logs_bytes: self.channels.len() as u64 * self.gateway.retention_bytes,
            histograms_bytes: pools.sum::<usize>() + leads.sum::<usize>(),
            sockets_bytes: self
                .channels
                .iter()
                .flat_map(|channel| &channel.lines)
                .map(|line| line.receive_buffer_bytes)
                .sum(),
            history_bytes: self
                .election
                .as_ref()
                .and_then(|election| election.link.as_ref())
                .map_or(0, |link| self.channels.len() as u64 * link.history_bytes as u64),
        }
    }

    /// Images of a channel at a time: one that is being made, two that the service keeps, one that is sent to the snapshot group.
    fn snapshot_images(&self, channel: &ChannelSetup) -> u64 {
        let mut outputs = self.outputs.iter().filter(|output| output.groups.contains(&channel.group));
        let is_served = self.retransmission.as_ref().is_some_and(|service| service.snapshots);
        1 + 2 * u64::from(is_served) + u64::from(outputs.any(|output| output.snapshots.is_some()))
    }
}

fn books_bytes(channel: &ChannelSetup) -> usize {
    let BookLimits { orders_max, levels_max, instruments_max, .. } = channel.book;
    let orders = match (channel.feed.is_by_order(), channel.order_store) {
        (false, _) => 0,
        (true, OrderStoreKind::Hash) => orders_max as usize * HASH_ORDER_BYTES,
        (true, OrderStoreKind::Window) => {
            let places = 1_usize << orders_max.max(1).ilog2();
            orders_max as usize * HASH_ORDER_BYTES + places * WINDOW_ORDER_BYTES
        }
    };
    orders + levels_bytes(instruments_max as usize, levels_max as usize)
}

/// The second books, and the images.
fn snapshots_bytes(channel: &ChannelSetup, images: u64) -> u64 {
    let BookLimits { orders_max, instruments_max, .. } = channel.book;
    let orders = if channel.feed.is_by_order() { u64::from(orders_max) * size_of::<dbn::MboMsg>() as u64 } else { 0 };
    let names = u64::from(instruments_max) * NAMES_BYTES;
    let latest = u64::from(instruments_max) * LATEST_RECORDS_BYTES;
    books_bytes(channel) as u64 + names + images * (orders + latest + names)
}

/// The latest records of one instrument: mbp-10, mbp-1 and status.
const LATEST_RECORDS_BYTES: u64 = 368 + 80 + 40;
/// The symbol mapping and the definition of one instrument.
const NAMES_BYTES: u64 = (size_of::<dbn::SymbolMappingMsg>() + size_of::<dbn::InstrumentDefMsg>()) as u64;

/// Bytes of the price levels. Each side of an instrument has a chunk of hot levels. The other levels are in trees of
/// chunks, which are half full in the worst case.
fn levels_bytes(instruments_max: usize, levels_max: usize) -> usize {
    let sides = 2 * instruments_max;
    let trees = sides.min(levels_max / LEVELS_BEFORE_TREE);
    let leaves = 2 * levels_max / CHUNK_LEVELS + trees;
    let inners = 2 * leaves / CHUNK_LEVELS + trees.min(levels_max / CHUNK_LEVELS);
    instruments_max * INSTRUMENT_BYTES + (sides + leaves) * CHUNK_BYTES + inners * INNER_BYTES
}

/// Slot for a packet of the next session, which waits there for the end of the present session.
const NEXT_SESSION_PACKET_BYTES: usize = 1_524;
/// Bytes per order in the hash store, at the load factor that it is sized for.
const HASH_ORDER_BYTES: usize = 48;
/// Bytes per slot of the order window, which is searched before the hash store.
const WINDOW_ORDER_BYTES: usize = 32;
/// Levels per chunk of a price tree. `CHUNK_BYTES` includes the metadata of a chunk.
const CHUNK_LEVELS: usize = 64;
const CHUNK_BYTES: usize = CHUNK_LEVELS * 16 + 6;
/// Bytes of an inner node of a price tree.
const INNER_BYTES: usize = 832;
/// A side with fewer levels has no tree.
const LEVELS_BEFORE_TREE: usize = 16;
/// Overhead of an instrument besides its levels.
const INSTRUMENT_BYTES: usize = 64;
/// A slot of the reorder window with its datagram.
const WINDOW_PACKET_BYTES: usize = 2_048 + 64;

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        arbiter::{Arbiter, ArbiterConfig},
        book::{levels::LevelBooks, orders::OrderBooks, store},
    };

    use super::*;

    fn assert_close(estimate: usize, actual: usize) {
        let ratio = estimate as f64 / actual as f64;
        assert!((0.75..=1.33).contains(&ratio), "estimated {estimate}, taken {actual}");
    }

    fn channel(feed: &str, store: &str) -> ChannelSetup {
        let limits = if feed.contains("itch") {
            format!("orders_max = 100000\norder_store = \"{store}\"\n")
        } else {
            String::new()
        };
        let text = format!(
            "[gateway]\nstate_file = \"s\"\n[[pool]]\nname = \"p\"\nthreads = 1\n[[channel]]\nid = 1\nname = \"c\"\n\
             feed = \"{feed}\"\n{limits}levels_max = 200000\ninstruments_max = 8000\n[[channel.line]]\n\
             group = \"239.1.1.1:1\"\ninterface = \"lo\"\n"
        );
        let resolved = Resolved::from_text(std::path::Path::new("x"), &text).unwrap_or_else(|error| panic!("{error}"));
        resolved.channels[0].clone()
    }

    #[test]
    fn memory_estimates_are_close_to_actual_use() {
        let hash = channel("nasdaq-itch-5.0", "hash");
        assert_close(books_bytes(&hash), OrderBooks::<store::HashStore>::new(hash.book).memory_bytes());
        let window = channel("nasdaq-itch-5.0", "window");
        assert_close(books_bytes(&window), OrderBooks::<store::WindowStore>::new(window.book).memory_bytes());
        let levels = channel("iex-deep-1.0", "");
        assert_close(books_bytes(&levels), LevelBooks::new(levels.book).memory_bytes());
        let arbiter = Arbiter::new(ArbiterConfig { window_packets: 4_096, ..ArbiterConfig::default() });
        assert_close(4_096 * WINDOW_PACKET_BYTES, arbiter.memory_bytes());
    }
}
