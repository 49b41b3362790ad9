//! How much memory a configuration takes, computed before any of it is allocated, and whether the host has it.

use mdgw_feeds::book::BookLimits;
use mdgw_sys::{
    disk_space::{is_in_memory, used_bytes},
    host_memory::HostMemory,
};
use mdgw_telemetry::{channel_metrics::ChannelCollector, stages::StageCollector};

use super::{
    quantity::Bytes,
    reload::Refused,
    resolved::{ChannelSetup, OrderStoreKind, Resolved},
};

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
        let own = self.start_bytes() + self.sockets_bytes as u64;
        self.logs_bytes + self.history_bytes + self.snapshots_bytes + own
    }

    /// What the gateway touches at its start. The rest grows to its limit.
    fn start_bytes(self) -> u64 {
        (self.books_bytes + self.windows_bytes + self.histograms_bytes) as u64
    }

    fn and(self, other: Self) -> Self {
        Self {
            books_bytes: self.books_bytes + other.books_bytes,
            snapshots_bytes: self.snapshots_bytes + other.snapshots_bytes,
            windows_bytes: self.windows_bytes + other.windows_bytes,
            logs_bytes: self.logs_bytes + other.logs_bytes,
            histograms_bytes: self.histograms_bytes + other.histograms_bytes,
            sockets_bytes: self.sockets_bytes + other.sockets_bytes,
            history_bytes: self.history_bytes + other.history_bytes,
        }
    }

    /// Why no gateway with this configuration can start on this host, or what it may lack later: a fault, else a warning.
    pub(super) fn compare(self, host: &HostMemory) -> Option<Result<String, String>> {
        let (start, total) = (self.start_bytes(), self.total_bytes());
        let has = format!("{} has {}", owner(host), Bytes(host.total_bytes));
        let lower = "lower orders_max, levels_max or instruments_max of its channels";
        if start > host.total_bytes {
            let takes = Bytes(start);
            Some(Err(format!(
                "memory: books, reorder windows and histograms take {takes} at the start, and {has}: {lower}"
            )))
        } else if total > host.total_bytes {
            let takes = Bytes(total);
            Some(Ok(format!("memory: the gateway takes up to {takes}, and {has}: {lower}, or gateway.retention_bytes")))
        } else {
            None
        }
    }
}

/// Whose memory it is, for a message.
fn owner(host: &HostMemory) -> String {
    host.cgroup.as_ref().map_or_else(|| "this host".to_owned(), |cgroup| format!("cgroup {cgroup} (memory.max)"))
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
        let channels = self.channels.iter().map(|channel| self.channel_memory(channel));
        let histograms_bytes = pools.sum();
        channels.fold(Memory { histograms_bytes, ..Memory::default() }, Memory::and)
    }

    /// The memory of a channel, without the latency histograms of its slot.
    fn channel_memory(&self, channel: &ChannelSetup) -> Memory {
        let link = self.election.as_ref().and_then(|election| election.link.as_ref());
        let takes_snapshots = self.takes_snapshots_of(channel.group);
        Memory {
            books_bytes: books_bytes(channel),
            snapshots_bytes: if takes_snapshots { snapshots_bytes(channel, self.snapshot_images(channel)) } else { 0 },
            windows_bytes: channel.window_packets * (WINDOW_PACKET_BYTES + NEXT_SESSION_PACKET_BYTES),
            logs_bytes: self.gateway.retention_bytes,
            histograms_bytes: ChannelCollector::memory_bytes(channel.lines.len()),
            sockets_bytes: channel.lines.iter().map(|line| line.receive_buffer_bytes).sum(),
            history_bytes: link.map_or(0, |link| link.history_bytes as u64),
        }
    }

    /// The memory that the gateway still has to take: without logs on a disk, and without logs that are there already.
    #[must_use]
    pub(crate) fn memory_needed_bytes(&self) -> u64 {
        let on_disk = !is_in_memory(&self.gateway.log_dir);
        let present = self.channels.iter().map(|channel| self.present_log_bytes(channel, on_disk));
        self.memory().total_bytes().saturating_sub(present.sum())
    }

    /// What the log of a gateway should say about memory before the start.
    ///
    /// # Errors
    /// If the host has less memory than the start takes.
    pub fn compare_memory(&self, host: &HostMemory) -> Result<Option<String>, String> {
        let memory = self.memory();
        let later = memory.compare(host).transpose()?;
        if later.is_some() || memory.start_bytes() <= host.available_bytes {
            return Ok(later);
        }
        Ok(Some(format!(
            "memory: books, reorder windows and histograms take {} at the start, and of the {} of {} {} are available: \
             the kernel may kill this gateway or another process",
            Bytes(memory.start_bytes()),
            Bytes(host.total_bytes),
            owner(host),
            Bytes(host.available_bytes)
        )))
    }

    /// Bytes of a channel's log that take no further memory.
    fn present_log_bytes(&self, channel: &ChannelSetup, on_disk: bool) -> u64 {
        let limit = self.gateway.retention_bytes;
        if on_disk { limit } else { used_bytes(&self.gateway.log_directory(channel.id)).min(limit) }
    }

    /// Refuses channels that a reload would add, if they may take more memory than is available. Their books are touched when they
    /// are built: the gateway, and all else on the host, would run out of memory.
    pub(crate) fn refuse_without_memory(&self, added: &[&ChannelSetup], host: Option<HostMemory>) -> Vec<Refused> {
        let Some(host) = host else { return Vec::new() };
        let on_disk = !is_in_memory(&self.gateway.log_dir);
        let needed = |channel: &ChannelSetup| {
            self.channel_memory(channel).total_bytes().saturating_sub(self.present_log_bytes(channel, on_disk))
        };
        let all: u64 = added.iter().map(|channel| needed(channel)).sum();
        if all <= host.available_bytes {
            return Vec::new();
        }
        let refuse = |channel: &&ChannelSetup| {
            let takes = Bytes(needed(channel));
            let together = if added.len() > 1 { format!(", all added channels {}", Bytes(all)) } else { String::new() };
            let (available, total, owner) = (Bytes(host.available_bytes), Bytes(host.total_bytes), owner(&host));
            let reason = format!(
                "it takes up to {takes} of memory{together}, and of the {total} of {owner} {available} are available: \
                 lower its orders_max, levels_max or instruments_max"
            );
            Refused::table(format!("channel.{}", channel.name), reason)
        };
        added.iter().map(refuse).collect()
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

    const GIB: u64 = 1 << 30;

    fn host(total_bytes: u64, available_bytes: u64) -> HostMemory {
        HostMemory { total_bytes, available_bytes, cgroup: None }
    }

    #[test]
    fn books_beyond_the_hosts_memory_are_a_fault_and_what_grows_beyond_it_a_warning() {
        let memory = Memory { books_bytes: 10 << 30, logs_bytes: 4 * GIB, history_bytes: GIB, ..Memory::default() };
        assert_eq!(memory.compare(&host(15 * GIB, 0)), None);
        let lower = "lower orders_max, levels_max or instruments_max of its channels";
        assert_eq!(
            memory.compare(&host(14 * GIB, 0)),
            Some(Ok(format!(
                "memory: the gateway takes up to 15 GiB, and this host has 14 GiB: {lower}, or gateway.retention_bytes"
            )))
        );
        assert!(matches!(memory.compare(&host(10 * GIB, 0)), Some(Ok(_))));
        let limited = HostMemory { cgroup: Some("/mdgw".to_owned()), ..host(9 * GIB, 0) };
        assert_eq!(
            memory.compare(&limited),
            Some(Err(format!(
                "memory: books, reorder windows and histograms take 10 GiB at the start, \
                 and cgroup /mdgw (memory.max) has 9 GiB: {lower}"
            )))
        );
    }

    #[test]
    fn a_reload_refuses_channels_that_need_more_memory_than_is_available() {
        let mut config = Resolved::shipped();
        config.gateway.log_dir = "/proc".into();
        config.gateway.retention_bytes = GIB;
        let mut huge = config.channels[0].clone();
        (huge.book.orders_max, huge.book.levels_max) = (268_435_456, 268_435_456);
        let other = config.channels[1].clone();
        let refused = |added: &[&ChannelSetup], host| -> Vec<String> {
            config.refuse_without_memory(added, host).iter().map(ToString::to_string).collect()
        };
        let needed = config.channel_memory(&huge).total_bytes() - GIB;
        assert!(needed > 12 * GIB, "{needed}");
        assert_eq!(refused(&[&huge], Some(host(24 * GIB, needed))), [""; 0]);
        assert_eq!(refused(&[&huge], None), [""; 0], "unknown");
        let [only] = &refused(&[&huge], Some(host(24 * GIB, needed - 1)))[..] else { panic!() };
        let beginning = format!(
            "channel.nasdaq: it takes up to {takes} of memory, and of the 24 GiB of this host {takes} are available: lower",
            takes = Bytes(needed)
        );
        assert!(only.starts_with(&beginning), "{only}");
        let both = refused(&[&huge, &other], Some(host(24 * GIB, needed)));
        assert_eq!(both.len(), 2);
        assert!(
            both[1].starts_with("channel.iex-deep: it takes") && both[1].contains("all added channels"),
            "{both:?}"
        );
    }

    #[test]
    fn a_start_is_refused_above_the_hosts_memory_and_warns_above_what_is_available() {
        let config = Resolved::shipped();
        let (start, total) = (config.memory().start_bytes(), config.memory().total_bytes());
        assert_eq!(config.compare_memory(&host(total, start)), Ok(None));
        let warning = config.compare_memory(&host(total, start - 1)).unwrap().unwrap();
        assert!(warning.contains("are available: the kernel may kill this gateway"), "{warning}");
        let warning = config.compare_memory(&host(total - 1, start)).unwrap().unwrap();
        assert!(warning.contains("the gateway takes up to"), "{warning}");
        let fault = config.compare_memory(&host(start - 1, start - 1)).unwrap_err();
        assert!(fault.contains("take 329.1 MiB at the start, and this host has 329.1 MiB"), "{fault}");
    }

    #[test]
    fn logs_count_as_memory_unless_they_are_on_a_disk_or_there_already() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut config = Resolved::shipped();
        let of_logs = config.memory().logs_bytes;
        config.gateway.log_dir = directory.path().to_owned();
        let all = config.memory().total_bytes();
        assert_eq!(config.memory_needed_bytes(), all);
        let log = config.gateway.log_directory(config.channels[0].id);
        std::fs::create_dir_all(&log).unwrap();
        std::fs::write(log.join("segment"), vec![1; 1 << 20]).unwrap();
        assert_eq!(config.memory_needed_bytes(), all - (1 << 20));
        config.gateway.log_dir = "/proc".into();
        assert_eq!(config.memory_needed_bytes(), all - of_logs);
    }
}
