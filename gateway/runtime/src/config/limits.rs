//! Bounds and defaults of every number in the configuration, with the reason for the default.

use mdgw_engine::handle_set::EVENTS_MAX;
use mdgw_sys::batch::ReceiveBatch;

/// The allowed values of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Smallest value allowed.
    pub min: i64,
    /// Largest value allowed.
    pub max: i64,
    /// Value where the key is absent.
    pub default: i64,
    /// Unit, for messages.
    pub unit: &'static str,
}

const fn bound(min: i64, max: i64, default: i64, unit: &'static str) -> Bound {
    assert!(min <= default && default <= max, "a default must be allowed");
    Bound { min, max, default, unit }
}

/// Node number: the low 8 bits of every epoch.
pub(crate) const NODE: Bound = bound(0, 255, 0, "node number");
/// Size of a log segment. The default holds seconds of a busy channel, and is small enough to create quickly.
pub(crate) const SEGMENT_BYTES: Bound = bound(1 << 20, 1 << 34, 64 << 20, "bytes");
/// Size of one channel's log. The default is four segments: tens of seconds of a busy channel, for late joiners and
/// retransmission.
pub(crate) const RETENTION_BYTES: Bound = bound(2 << 20, 1 << 40, 256 << 20, "bytes");
/// Input history of each channel for a peer. The default holds a second or more of a busy channel, enough for the
/// peer's gaps. A peer that replays needs the whole session, which only a quiet feed fits into the default.
pub(crate) const HISTORY_BYTES: Bound = bound(1 << 20, 1 << 38, 32 << 20, "bytes");
/// Greatest age of a log entry, an hour by default; 0 keeps entries until their space is needed.
pub(crate) const RETENTION_SECONDS: Bound = bound(0, 30 * 86_400, 3_600, "seconds");
/// Unpinned threads, for experiments.
pub(crate) const THREADS: Bound = bound(1, 64, 1, "threads");
/// Core numbers: those that a kernel core set can hold.
pub(crate) const CORE: Bound = bound(0, 1_023, 0, "core number");
/// Packets that one claim may process before other channels get a turn: keeps one hot channel from holding a thread. The
/// maximum is what one receive batch holds.
pub(crate) const QUOTA: Bound = bound(1, 1_024, 64, "packets");
/// Events claimed in one turn: measured between 8 and 64, where the cost per event is flat. The maximum is that of one
/// wait.
pub(crate) const BATCH: Bound = bound(1, 256, 32, "events");
const _: () = assert!(ReceiveBatch::ROWS_MAX == 1_024 && EVENTS_MAX == 256);
/// How long a leader of `spin-then-park` polls before it blocks: a few times the cost of a wake.
pub(crate) const SPIN_US: Bound = bound(1, 1_000_000, 50, "microseconds");
/// SCHED_FIFO priority; 0 leaves the thread in the ordinary class.
pub(crate) const PRIORITY: Bound = bound(0, 99, 0, "SCHED_FIFO priority");
/// Vacant slots of a pool for channels that a reload adds. Each takes the latency histograms of a channel, 1.3 MiB for each
/// thread of the pool at the default precision, and some atomics that the leader reads at a timer or a message.
pub(crate) const SPARE_CHANNELS: Bound = bound(0, 64, 2, "channels");
/// Number of a channel in published packets.
pub(crate) const CHANNEL_ID: Bound = bound(0, 65_535, 0, "channel number");
/// Number of a group in published packets.
pub(crate) const GROUP_ID: Bound = bound(0, 65_535, 1, "group number");
/// Reorder window. It must hold more packets than one drain of all lines: when one line is drained before the others, a
/// smaller window would declare a false gap.
pub(crate) const WINDOW_PACKETS: Bound = bound(64, 32_768, 1_024, "packets");
/// Gap timeout. The default is longer than the usual skew of two lines within one site. It is shorter than a user
/// would wait for a book.
pub(crate) const GAP_TIMEOUT_US: Bound = bound(1, 60_000_000, 2_000, "microseconds");
/// Silence alarm. Venues send a heartbeat once a second; the default is three missing heartbeats.
pub(crate) const LINE_SILENCE_MS: Bound = bound(10, 3_600_000, 3_000, "milliseconds");
/// Live orders of a whole by-order channel. The busiest days stay below two million.
pub(crate) const ORDERS_MAX: Bound = bound(1_024, 1 << 28, 2 << 20, "orders");
/// Price levels of a whole channel, both sides of all instruments.
pub(crate) const LEVELS_MAX: Bound = bound(1_024, 1 << 28, 1 << 20, "levels");
/// Instruments of a channel. Stock locates are 16 bits wide; about 12,000 are in use.
pub(crate) const INSTRUMENTS_MAX: Bound = bound(1, 65_536, 16_384, "instruments");
/// Receive buffer. The default holds a burst of 10 ms at 10 Gbit/s. If the kernel grants less, a warning reports it.
pub(crate) const RECEIVE_BUFFER_BYTES: Bound = bound(4_096, 1 << 30, 16 << 20, "bytes");
/// `SO_BUSY_POLL`; 0 keeps the system's setting.
pub(crate) const BUSY_POLL_US: Bound = bound(0, 10_000, 0, "microseconds");
/// Timeout of a request to a venue's retransmission server. The server answers within a round trip, which takes a few
/// milliseconds.
pub(crate) const RECOVERY_TIMEOUT_MS: Bound = bound(1, 60_000, 20, "milliseconds");
/// How often one range is requested before it is declared missing.
pub(crate) const ATTEMPTS_MAX: Bound = bound(1, 100, 3, "attempts");
/// Messages in one request. Servers answer with what fits a packet; the rest is requested again.
pub(crate) const MESSAGES_PER_REQUEST_MAX: Bound = bound(1, 65_534, 1_000, "messages");
/// Requests in flight: each gap has its own. Raise it only where a server accepts more.
pub(crate) const REQUESTS_IN_FLIGHT_MAX: Bound = bound(1, 64, 16, "requests");
/// Hops of multicast packets. With the default they stay in the local network.
pub(crate) const TTL: Bound = bound(0, 255, 1, "hops");
/// UDP payload of an unfragmented Ethernet packet. The minimum holds the largest single record, a definition of 520 bytes, with the headers
/// of frame and packet and the tag.
pub(crate) const PAYLOAD_BYTES_MAX: Bound = bound(632, PUBLISHED_BYTES_MAX, 1_472, "bytes");
/// With a snapshot group: a definition in a chunk has the head of the chunk too.
pub(crate) const PAYLOAD_BYTES_WITH_SNAPSHOTS_MIN: usize = 712;
/// The largest packet that a gateway can be configured to publish: the UDP payload of a jumbo frame of 9,000 bytes.
pub const PUBLISHED_BYTES_MAX: i64 = 8_972;
/// Heartbeat interval: the longest time that an idle channel publishes nothing.
pub(crate) const HEARTBEAT_MS: Bound = bound(1, 60_000, 1_000, "milliseconds");
/// Retransmission requests answered, per requester.
pub(crate) const REQUESTS_PER_SECOND: Bound = bound(1, 1_000_000, 1_000, "requests per second");
/// Bytes of answers, per requester: a tenth of a gigabit link.
pub(crate) const BYTES_PER_SECOND: Bound = bound(1_472, 10_000_000_000, 12_500_000, "bytes per second");
/// Bytes of snapshots, per requester: half of a gigabit link. A million orders are 64 MB.
pub(crate) const SNAPSHOT_BYTES_PER_SECOND: Bound = bound(1_472, 10_000_000_000, 62_500_000, "bytes per second");
/// From the beginning of one round of the snapshot group to the beginning of the next: how long a receiver waits at most where books
/// are small.
pub(crate) const SNAPSHOT_INTERVAL_MS: Bound = bound(10, 3_600_000, 5_000, "milliseconds");
/// Bytes per second on the snapshot group: a tenth of a gigabit link, since every receiver of the network may get them. A million
/// orders are 64 MB, so a pass of them takes 5 s.
pub(crate) const SNAPSHOT_GROUP_BYTES_PER_SECOND: Bound = bound(8_972, 10_000_000_000, 12_500_000, "bytes per second");
/// How often each image of the snapshot group is sent. Where one chunk of a thousand is lost, one pass of ten thousand chunks never
/// arrives whole, and two passes mostly do.
pub(crate) const SNAPSHOT_PASSES: Bound = bound(1, 16, 2, "passes");
/// Requesters remembered at a time, for their rate limits.
pub(crate) const REQUESTERS_MAX: Bound = bound(1, 65_536, 256, "requesters");
/// Packets in the answer to one request.
pub(crate) const PACKETS_PER_REQUEST_MAX: Bound = bound(1, 65_536, 256, "packets");
/// Sessions of live clients at a time.
pub(crate) const LIVE_SESSIONS_MAX: Bound = bound(1, 100_000, 1_000, "sessions");
/// Connections of live clients that are not authenticated yet. Each costs a few kilobytes.
pub(crate) const LIVE_HANDSHAKES_MAX: Bound = bound(1, 65_536, 256, "connections");
/// Connections of live clients accepted per second.
pub(crate) const LIVE_HANDSHAKES_PER_SECOND: Bound = bound(1, 100_000, 200, "connections per second");
/// How long an authentication may take: the clients give up after 30 s.
pub(crate) const LIVE_HANDSHAKE_TIMEOUT_MS: Bound = bound(100, 60_000, 10_000, "milliseconds");
/// Failed authentications of one address.
pub(crate) const LIVE_FAILURES_PER_MINUTE: Bound = bound(1, 1_000_000, 30, "failures per minute");
/// A client's line. The longest of the official clients has 500 symbols of up to 70 bytes.
pub(crate) const LIVE_LINE_BYTES_MAX: Bound = bound(65_536, 1 << 20, 131_072, "bytes");
/// Symbols of one live session.
pub(crate) const LIVE_SYMBOLS_MAX: Bound = bound(1, 1_000_000, 20_000, "symbols");
/// Bytes that a live session may be behind. The latest records of a dataset are kept in twice as much memory.
pub(crate) const LIVE_QUEUE_BYTES_MAX: Bound = bound(1 << 20, 16 << 30, 64 << 20, "bytes");
/// How long a live client may take nothing at all. The Python client stops reading while its own queue is full.
pub(crate) const LIVE_STALL_SECONDS: Bound = bound(1, 86_400, 300, "seconds");
/// Replays of live clients at a time, per dataset. Each has books of its own, and a thread: of all
/// five datasets together fewer than the 512 that tokio allows.
pub(crate) const LIVE_REPLAYS_MAX: Bound = bound(1, 100, 8, "replays");
/// Trading dates whose journals live clients' replays may begin in. Each date may be gigabytes for a client that asks for all.
pub(crate) const LIVE_JOURNAL_DAYS_MAX: Bound = bound(0, 36_500, 0, "dates");
/// Threads that write to live clients.
pub(crate) const LIVE_THREADS: Bound = bound(1, 64, 2, "threads");
/// How long a record waits until it is on the journal's disk. The default costs one sync per second and open journal.
pub(crate) const JOURNAL_FLUSH_MS: Bound = bound(10, 60_000, 1_000, "milliseconds");
/// Days for which closed journals are kept. By default an operator removes them.
pub(crate) const JOURNAL_RETENTION_DAYS: Bound = bound(0, 36_500, 0, "days");
/// Bytes of all journals. By default an operator removes them.
pub(crate) const JOURNAL_RETENTION_BYTES: Bound = bound(0, 1 << 50, 0, "bytes");
/// Bytes that the journal leaves free on its disk, for the log of the system and for others.
pub(crate) const JOURNAL_FREE_BYTES_MIN: Bound = bound(0, 1 << 50, 1 << 30, "bytes");
/// NATS servers that the sink may use.
pub(crate) const NATS_SERVERS_MAX: usize = 9;
/// Servers that have a stream: what JetStream allows.
pub(crate) const NATS_REPLICAS: Bound = bound(1, 5, 1, "servers");
/// Bytes of a stream. By default the server's own limits hold.
pub(crate) const NATS_BYTES_MAX: Bound = bound(0, 1 << 50, 0, "bytes");
/// Age of a stream's messages. By default none is removed for its age: a stream without its last message does not say where to go on.
pub(crate) const NATS_AGE_MAX_SECONDS: Bound = bound(0, 315_360_000, 0, "seconds");
/// How long the server knows message ids. The default is JetStream's own: many times a failover, and a day's busiest minutes in its memory.
pub(crate) const NATS_DUPLICATE_WINDOW_SECONDS: Bound = bound(1, 86_400, 120, "seconds");
/// Silence after which another sink's stream is taken over: longer than a restart of the other sink, so that the writer seldom changes.
pub(crate) const NATS_TAKEOVER_MS: Bound = bound(100, 600_000, 2_000, "milliseconds");
/// How long an acknowledgement may take: longer than an election among JetStream's servers.
pub(crate) const NATS_ACK_TIMEOUT_MS: Bound = bound(100, 60_000, 5_000, "milliseconds");
/// Messages without an acknowledgement: what the server stores in some tens of milliseconds.
pub(crate) const NATS_IN_FLIGHT_MAX: Bound = bound(1, 65_536, 4_096, "messages");
/// How long a store may take to answer before the result counts as unknown. Leases do not wait for it: after one renewal
/// period without an answer, the election uses the connection to another node.
pub(crate) const STORE_REQUEST_TIMEOUT_MS: Bound = bound(1, 60_000, 1_000, "milliseconds");
/// Session timeout of a latch over ZooKeeper. The default is the shortest that an ensemble grants by default: two ticks
/// of 2 s.
pub(crate) const STORE_SESSION_MS: Bound = bound(200, 600_000, 4_000, "milliseconds");
/// Lease length L: how long the other gateways wait before one of them leads. The profiles of the election's timing
/// give the reason for the default.
pub(crate) const LEASE_MS: Bound = bound(5, 3_600_000, 100, "milliseconds");
/// Renewal interval R. At least three renewals must fit into the lease less the margin.
pub(crate) const RENEW_MS: Bound = bound(1, 1_200_000, 20, "milliseconds");
/// Margin M: a leader stops this long before another gateway may start.
pub(crate) const MARGIN_MS: Bound = bound(1, 1_200_000, 20, "milliseconds");
/// Longest send S that the margin has to cover.
pub(crate) const SEND_US_MAX: Bound = bound(1, 600_000_000, 10_000, "microseconds");
/// Rate error of a clock: error of the crystal, 100 ppm, and ordinary slewing, up to 500 ppm.
pub(crate) const RATE_ERROR_PPM: Bound = bound(100, 10_000, 600, "parts per million");
/// Least tenure before an automatic hand-over. It should be longer than the fluctuations that cause moves; 0 allows a
/// move at once.
pub(crate) const TENURE_MS_MIN: Bound = bound(0, 3_600_000, 10_000, "milliseconds");
/// Revision of the configuration. The operator raises it with a configuration that changes the output.
pub(crate) const REVISION: Bound = bound(1, i64::MAX, 1, "revision");
/// How long the opening of a fence waits for listeners. A listener that writes a line to a file needs far less. A
/// listener that hangs delays a takeover no longer than this.
pub(crate) const LISTENER_TIMEOUT_MS: Bound = bound(0, 1_000, 5, "milliseconds");
/// Members of an emergent election, this gateway included.
pub(crate) const MINIMUM_SIZE: Bound = bound(1, 256, 1, "members");
/// Attempts to join before a gateway bootstraps. Pauses double from 0.1 s: four attempts take one and a half seconds.
pub(crate) const JOIN_ATTEMPTS: Bound = bound(1, 100, 4, "attempts");
/// Hang limit: the sentinel kills a leader that makes no progress for this long. 0: the sentinel kills no leader, and
/// a hanging leader stops when its lease ends.
pub(crate) const HANG_LIMIT_MS: Bound = bound(0, 60_000, 0, "milliseconds");
/// Least hang limit, ms: the election thread shows progress every 100 ms.
pub(crate) const HANG_LIMIT_MS_MIN: u64 = 200;
/// Most other gateways of an election: there are 256 node numbers.
pub(crate) const PEERS_MAX: usize = 255;
/// Length of a latency interval. The default is short enough to show a bad minute. It is long enough that a day's log
/// stays small: some 60 MB for two channels on two threads.
pub(crate) const LATENCY_INTERVAL_MS: Bound = bound(100, 3_600_000, 10_000, "milliseconds");
/// Significant digits of latency histograms. Two digits keep every percentile within 1 %; three take eight times the
/// memory.
pub(crate) const SIGNIFICANT_DIGITS: Bound = bound(1, 3, 2, "digits");
/// How long an alarm is held back after it was written. The default leaves a person time to read, and shows a change of the
/// condition within seconds. 0: each alarm is written.
pub(crate) const ALARM_INTERVAL_MS: Bound = bound(0, 3_600_000, 10_000, "milliseconds");
/// Lines of one channel; one number is reserved for the retransmission server's answers.
pub(crate) const LINES_MAX: usize = 7;
/// Nodes of a store.
pub(crate) const STORE_NODES_MAX: usize = 9;
/// Lines of one output.
pub(crate) const OUTPUT_LINES_MAX: usize = 2;
/// Keys of one output's tags: a change of keys needs two.
pub(crate) const TAG_KEYS_MAX: usize = 4;
