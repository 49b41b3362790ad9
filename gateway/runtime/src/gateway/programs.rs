//! The admin listeners of the programs beside the gateway: `mdgw live`, `mdgw journal`, `mdgw nats`, `mdgw mirror`. Each has metrics,
//! `/live` and `/ready`, and no page.

use std::{
    io, iter,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mdgw_admin::{Health, Probe, Sources, metric::Metric};
use mdgw_feeds::{drop_reason::DropCounts, identity::GroupId, published::receiver::ReceiverStatistics};
use mdgw_sys::{clock::unix_now, listener_counters::ListenerCounters};
use mdgw_telemetry::counter_block;

use super::{
    health::lock,
    listeners::{self, Listeners},
    log_maintenance::LogCounters,
    metrics::{block, build_labels, of_alarms, of_listeners, of_mirror_drops, of_program},
    mirrored_log::MirroredLog,
};
use crate::{admin_listener::AdminListener, config::resolved::AdminListen};

counter_block! {
    /// What `mdgw live` exports.
    pub struct LiveMetrics, key LiveMetric {
        connections: Counter, None, "connections that were accepted";
        sessions: Counter, None, "sessions that were authenticated";
        refused_rate: Counter, None, "connections closed since there were too many at once or in a second";
        refused_address: Counter, None, "connections closed since their address failed too often";
        failed_handshakes: Counter, None, "handshakes that failed: wrong keys, wrong requests, time-outs";
        too_slow: Counter, None, "sessions ended since the client was too slow";
        skips: Counter, None, "times that records were skipped for a slow client";
        sent_bytes: Counter, Bytes, "bytes that the sockets of all sessions took";
        accepting: Gauge, None, "1: clients can connect; 0: the port is closed, since no gateway writes the logs or the port cannot be opened";
        sessions_open: Gauge, None, "sessions that are open";
        sessions_replaying: Gauge, None, "open sessions that replay the log";
        behind_max_bytes: Gauge, Bytes, "how far the open session is behind that is farthest behind; at queue_bytes_max it ends or skips";
        behind_limit_bytes: Gauge, Bytes, "queue_bytes_max: how far a session may be behind";
        keys_reloaded: Counter, None, "times that the key file was read again";
        keys_refused: Counter, None, "times that the key file could not be used when it was read again";
    }
}

counter_block! {
    /// What `mdgw journal` exports.
    pub struct JournalMetrics, key JournalMetric {
        entries: Counter, None, "entries of the publication logs that were read";
        behind_ns: Gauge, Nanoseconds, "time since all logs were last read to their ends; grows while the journal cannot write or keep up";
        writing: Gauge, None, "1: the journals are written; 0: no log is there yet, or the journal has stopped since it cannot write";
        stops: Counter, None, "times that the journals could not be written and writing stopped";
        files_closed: Counter, None, "journals that were closed, one for each dataset and day";
        closed_records: Counter, Records, "records of the closed journals";
        closed_bytes: Counter, Bytes, "bytes of the closed journals, before compression";
        closed_holes: Counter, None, "ranges of messages in the closed journals that the publication log no longer had";
    }
}

counter_block! {
    /// What `mdgw nats` exports.
    pub struct NatsMetrics, key NatsMetric {
        messages: Counter, None, "messages that the server acknowledged";
        records: Counter, Records, "records in the acknowledged messages";
        duplicates: Counter, None, "acknowledged messages that the server had already";
        gaps: Counter, None, "messages that say that the gateway declared a gap";
        holes: Counter, None, "messages that say that the publication log lacked messages";
        fenced: Counter, None, "times that another gateway's sink came first";
        failures: Counter, None, "times that a server could not be used";
        disconnects: Counter, None, "times that the connection to the servers was lost";
        failing: Gauge, None, "streams that cannot be written at the moment; 1 while there is no connection yet";
        channels: Gauge, None, "channels that this sink follows";
        channels_writing: Gauge, None, "channels that this sink appends to their streams; of a pair, one sink appends a channel";
    }
}

counter_block! {
    /// What `mdgw mirror` exports of a channel.
    pub struct MirrorChannelMetrics, key MirrorChannelMetric {
        messages: Counter, Messages, "messages that were received";
        gap_messages: Counter, Messages, "messages in gaps that the gateway declared";
        lost_messages: Counter, Messages, "messages that neither the lines nor a retransmission service delivered: holes in the log";
        broken_messages: Counter, Messages, "messages that were too large, or with inconsistent parts; they count as lost too";
        late_fills: Counter, Messages, "messages that the gateway published after it had declared them as a gap; the log has the gap";
        starts_unanswered: Counter, None, "starts at which no retransmission service answered: earlier messages of the session may be missing";
        sessions_incomplete: Counter, None, "sessions that were left although no service knew where they end: messages at the end may be missing";
        entries: Counter, Entries, "entries of the log that were written";
        entries_unwritten: Counter, Entries, "of them, entries that readers miss, since there was no space for a segment";
        next_sequence: Gauge, Sequence, "the sequence behind the last one in the log; 0 while the log is empty";
    }
}

counter_block! {
    /// What `mdgw mirror` exports of a group.
    pub struct MirrorGroupMetrics, key MirrorGroupMetric {
        packets: Counter, Packets, "packets of the lines and of the retransmission services; those of unexpected senders are not in it";
        refused: Counter, Packets, "packets that were refused, as the mirror logs them; the reasons that are normal are not in it";
        silence_ns: Gauge, Nanoseconds, "time since the last packet or heartbeat that was used; before the first one, since the start";
        requests: Counter, None, "requests to the retransmission services";
        requests_failed: Counter, None, "requests that could not be sent, or that the host of the service refused; they are repeated";
        receive_buffer_bytes: Gauge, Bytes, "the smallest receive buffer of the group's sockets";
    }
}

/// Prefixes of the metrics of the programs.
pub(super) const LIVE: &str = "mdgw_live_";
pub(super) const JOURNAL: &str = "mdgw_journal_";
pub(super) const NATS: &str = "mdgw_nats_";
pub(super) const MIRROR_CHANNEL: &str = "mdgw_mirror_channel_";
pub(super) const MIRROR_GROUP: &str = "mdgw_mirror_group_";

/// What a program exports beside what identifies it, its alarms and its listener.
pub trait ProgramMetrics: Clone + Default + Send + 'static {
    /// Appends the metrics.
    fn add_to(&self, all: &mut Vec<Metric>);
}

impl ProgramMetrics for LiveMetrics {
    fn add_to(&self, all: &mut Vec<Metric>) {
        block(all, LIVE, iter::once((Vec::new(), *self)));
    }
}

impl ProgramMetrics for JournalMetrics {
    fn add_to(&self, all: &mut Vec<Metric>) {
        block(all, JOURNAL, iter::once((Vec::new(), *self)));
    }
}

impl ProgramMetrics for NatsMetrics {
    fn add_to(&self, all: &mut Vec<Metric>) {
        block(all, NATS, iter::once((Vec::new(), *self)));
    }
}

/// What `mdgw mirror` exports: a row for each group.
#[derive(Clone, Debug, Default)]
pub struct MirrorMetrics(pub Vec<MirroredGroupRow>);

/// The metrics of a mirrored group and of its channels.
#[derive(Clone, Debug)]
pub struct MirroredGroupRow {
    group: GroupId,
    counts: MirrorGroupMetrics,
    drops: DropCounts,
    channels: Vec<MirroredChannelRow>,
}

/// The metrics of a mirrored channel.
#[derive(Clone, Debug)]
pub struct MirroredChannelRow {
    name: String,
    counts: MirrorChannelMetrics,
    log: LogCounters,
}

impl MirroredGroupRow {
    /// The row of a group. `drops` has the packets that were not used, by reason.
    #[must_use]
    pub fn new(
        group: GroupId,
        counts: MirrorGroupMetrics,
        drops: DropCounts,
        channels: Vec<MirroredChannelRow>,
    ) -> Self {
        Self { group, counts, drops, channels }
    }

    /// What the group as a whole counts.
    #[must_use]
    pub fn counts(&self) -> &MirrorGroupMetrics {
        &self.counts
    }
}

impl MirroredChannelRow {
    /// The row of a channel with that name. What is about the log is taken from it.
    #[must_use]
    pub fn new(name: &str, statistics: &ReceiverStatistics, log: &MirroredLog) -> Self {
        let (entries, entries_unwritten) = log.entries();
        let counts = MirrorChannelMetrics {
            messages: statistics.messages,
            gap_messages: statistics.gap_messages,
            lost_messages: statistics.lost_messages,
            broken_messages: statistics.broken_messages,
            late_fills: statistics.late_fills,
            starts_unanswered: statistics.starts_unanswered,
            sessions_incomplete: statistics.sessions_incomplete,
            entries,
            entries_unwritten,
            next_sequence: log.position().map_or(0, |position| position.sequence.0),
        };
        Self { name: name.to_owned(), counts, log: log.maintenance_counters() }
    }
}

impl ProgramMetrics for MirrorMetrics {
    fn add_to(&self, all: &mut Vec<Metric>) {
        let of_group = |row: &MirroredGroupRow| vec![("group", row.group.0.to_string())];
        block(all, MIRROR_GROUP, self.0.iter().map(|row| (of_group(row), row.counts)));
        of_mirror_drops(all, self.0.iter().map(|row| (of_group(row), &row.drops)));
        let of_channel = |row: &MirroredChannelRow| vec![("channel", row.name.clone())];
        let channels = || self.0.iter().flat_map(|row| &row.channels);
        block(all, MIRROR_CHANNEL, channels().map(|row| (of_channel(row), row.counts)));
        block(all, MIRROR_CHANNEL, channels().map(|row| (of_channel(row), row.log)));
    }
}

/// A program beside the gateway that can be scraped. Dropping it closes its listener.
#[derive(Debug)]
pub struct ProgramAdmin<B> {
    state: Arc<Mutex<State<B>>>,
    updated_at: Option<Instant>,
    listener: Option<AdminListener>,
}

/// What the main thread of the program reports.
#[derive(Debug)]
struct State<B> {
    metrics: B,
    turned_at: Instant,
    /// Why the program is not ready.
    obstacle: Option<&'static str>,
}

impl ProgramAdmin<MirrorMetrics> {
    /// The listener of `mdgw mirror`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn mirror(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, "mirror", node)
    }
}

impl ProgramAdmin<LiveMetrics> {
    /// The listener of `mdgw live`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn live(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, "live", node)
    }
}

impl ProgramAdmin<JournalMetrics> {
    /// The listener of `mdgw journal`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn journal(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, "journal", node)
    }
}

impl ProgramAdmin<NatsMetrics> {
    /// The listener of `mdgw nats`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn nats(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, "nats", node)
    }
}

impl<B: ProgramMetrics> ProgramAdmin<B> {
    fn open(listen: Option<&AdminListen>, program: &'static str, node: u8) -> io::Result<Self> {
        let state = State { metrics: B::default(), turned_at: Instant::now(), obstacle: Some("starting") };
        let state = Arc::new(Mutex::new(state));
        let counters = Arc::<ListenerCounters>::default();
        let mut counted = Listeners::new(None);
        counted.add(listeners::ADMIN, &counters);
        let (of_metrics, of_health) = (Arc::clone(&state), Arc::clone(&state));
        let started_ns = unix_now().0;
        let metrics = move || {
            let mut all = Vec::new();
            let mut labels = vec![("node", node.to_string()), ("program", program.to_owned())];
            labels.extend(build_labels());
            of_program(&mut all, labels, started_ns);
            of_alarms(&mut all);
            let metrics = lock(&of_metrics).metrics.clone();
            metrics.add_to(&mut all);
            of_listeners(&mut all, &counted);
            all
        };
        let sources = || Sources {
            metrics: Box::new(metrics) as Box<dyn Fn() -> Vec<Metric> + Send + Sync>,
            health: Box::new(move |probe| lock(&of_health).health(probe)),
            page: None,
            count: Box::new(move |observed| listeners::count_observed(&counters, observed)),
        };
        let listener = listen.map(|listen| AdminListener::open(listen, sources())).transpose()?;
        Ok(Self { state, updated_at: None, listener })
    }

    /// To be called at each turn of the program's main thread. `obstacle` says why the program is not ready. `metrics` is called
    /// some times a second, and not at all without a listener.
    pub fn turned(&mut self, obstacle: Option<&'static str>, metrics: impl FnOnce() -> B) {
        if self.listener.is_none() || self.updated_at.is_some_and(|at| at.elapsed() < UPDATE_INTERVAL) {
            return;
        }
        let now = Instant::now();
        self.updated_at = Some(now);
        let metrics = metrics();
        *lock(&self.state) = State { metrics, turned_at: now, obstacle };
    }
}

impl<B> State<B> {
    fn health(&self, probe: Probe) -> Health {
        let idle = self.turned_at.elapsed();
        let obstacle = match probe {
            _ if idle > TURN_MAX => Some(format!("the main thread is stuck for {} s", idle.as_secs())),
            Probe::Live | Probe::Leader(_) => None,
            Probe::Ready => self.obstacle.map(str::to_owned),
        };
        Health { is_ok: obstacle.is_none(), text: obstacle.unwrap_or_else(|| "running".to_owned()) }
    }
}

/// How often the metrics are taken over from the main thread.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// A main thread that has not turned for this long is stuck. The journal's waits for its disk.
const TURN_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpListener, TcpStream},
    };

    use mdgw_feeds::drop_reason::DropReason;

    use super::*;

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_program_exports_its_counters_alarms_and_readiness() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let listen = AdminListen::Tcp(format!("127.0.0.1:{port}").parse().unwrap());
        let mut admin = ProgramAdmin::journal(Some(&listen), 3).unwrap();
        assert!(get(address, "/ready").contains("503") && get(address, "/live").contains("200 OK"));
        admin.turned(None, || JournalMetrics {
            closed_bytes: 7,
            behind_ns: 1_500_000_000,
            ..JournalMetrics::default()
        });
        assert!(get(address, "/ready").contains("200 OK") && get(address, "/leader").contains("404"));
        let text = get(address, "/metrics");
        for line in [
            "mdgw_journal_closed_bytes_total 7",
            "mdgw_journal_behind_seconds 1.5",
            "mdgw_alarms_total{alarm=\"journal-stopped\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("mdgw_program{node=\"3\",program=\"journal\",version=\""), "{text}");
        assert!(text.contains("mdgw_listener_received_total{listener=\"admin\"}"), "{text}");
        // Before the first refusal, so that a rate sees it.
        let refused = "mdgw_listener_refused_total{listener=\"admin\",reason=\"malformed\"} 0";
        assert!(text.lines().any(|line| line == refused), "{text}");
        // Within the interval nothing is taken over.
        admin.turned(Some("stopped"), || panic!("too early"));
        assert!(get(address, "/ready").contains("200 OK"));
        drop(admin);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_mirror_exports_its_groups_and_channels_with_labels() {
        let mut drops = DropCounts::default();
        drops.count(DropReason::TagInvalid);
        let channel = MirroredChannelRow {
            name: "one".to_owned(),
            counts: MirrorChannelMetrics { lost_messages: 7, entries_unwritten: 2, ..MirrorChannelMetrics::default() },
            log: LogCounters { log_no_space_turns: 3, ..LogCounters::default() },
        };
        let counts = MirrorGroupMetrics { silence_ns: 1_500_000_000, refused: 1, ..MirrorGroupMetrics::default() };
        let mut all = Vec::new();
        MirrorMetrics(vec![MirroredGroupRow::new(GroupId(4), counts, drops, vec![channel])]).add_to(&mut all);
        let text = mdgw_admin::metric::encode(all).unwrap();
        for line in [
            "mdgw_mirror_group_silence_seconds{group=\"4\"} 1.5",
            "mdgw_mirror_group_refused_total{group=\"4\"} 1",
            "mdgw_mirror_group_dropped_total{group=\"4\",reason=\"tag_invalid\"} 1",
            "mdgw_mirror_group_dropped_total{group=\"4\",reason=\"tag_missing\"} 0",
            "mdgw_mirror_channel_lost_messages_total{channel=\"one\"} 7",
            "mdgw_mirror_channel_entries_unwritten_total{channel=\"one\"} 2",
            "mdgw_mirror_channel_log_no_space_turns_total{channel=\"one\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_program_without_a_listener_collects_nothing() {
        let mut admin = ProgramAdmin::nats(None, 0).unwrap();
        admin.turned(None, || panic!("nobody reads it"));
    }

    #[test]
    fn a_main_thread_that_hangs_is_not_live() {
        let at = Instant::now().checked_sub(TURN_MAX + Duration::from_secs(2)).unwrap();
        let state = State { metrics: LiveMetrics::default(), turned_at: at, obstacle: None };
        for probe in [Probe::Live, Probe::Ready] {
            let health = state.health(probe);
            assert!(!health.is_ok && health.text.contains("stuck for 62 s"), "{health:?}");
        }
    }
}
