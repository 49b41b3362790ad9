//! The admin listeners of the programs beside the gateway: `mdgw live`, `mdgw journal`, `mdgw nats`. Each has metrics, `/live` and
//! `/ready`, and no page.

use std::{
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mdgw_admin::{Health, Probe, Sources, metric::Metric};
use mdgw_sys::{clock::unix_now, listener_counters::ListenerCounters};
use mdgw_telemetry::{counter_block, counters::CounterBlock};

use super::{
    health::lock,
    listeners::{self, Listeners},
    metrics::{block, of_alarms, of_listeners, of_program},
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

/// Prefixes of the metrics of the programs.
pub(super) const LIVE: &str = "mdgw_live_";
pub(super) const JOURNAL: &str = "mdgw_journal_";
pub(super) const NATS: &str = "mdgw_nats_";

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

impl ProgramAdmin<LiveMetrics> {
    /// The listener of `mdgw live`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn live(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, ("live", LIVE), node)
    }
}

impl ProgramAdmin<JournalMetrics> {
    /// The listener of `mdgw journal`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn journal(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, ("journal", JOURNAL), node)
    }
}

impl ProgramAdmin<NatsMetrics> {
    /// The listener of `mdgw nats`, if it is configured.
    ///
    /// # Errors
    /// See [`AdminListener::open`].
    pub fn nats(listen: Option<&AdminListen>, node: u8) -> io::Result<Self> {
        Self::open(listen, ("nats", NATS), node)
    }
}

impl<B: CounterBlock + Send + 'static> ProgramAdmin<B> {
    fn open(
        listen: Option<&AdminListen>,
        (program, prefix): (&'static str, &'static str),
        node: u8,
    ) -> io::Result<Self> {
        let state = State { metrics: B::from_values(|_| 0), turned_at: Instant::now(), obstacle: Some("starting") };
        let state = Arc::new(Mutex::new(state));
        let counters = Arc::<ListenerCounters>::default();
        let mut counted = Listeners::new(None);
        counted.add(listeners::ADMIN, &counters);
        let (of_metrics, of_health) = (Arc::clone(&state), Arc::clone(&state));
        let started_ns = unix_now().0;
        let metrics = move || {
            let mut all = Vec::new();
            let labels = vec![
                ("node", node.to_string()),
                ("program", program.to_owned()),
                ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ];
            of_program(&mut all, labels, started_ns);
            of_alarms(&mut all);
            let values: Vec<u64> = lock(&of_metrics).metrics.values().collect();
            let metrics = B::from_values(|index| values.get(index).copied().unwrap_or_default());
            block(&mut all, prefix, [(Vec::new(), metrics)].into_iter());
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
        // Within the interval nothing is taken over.
        admin.turned(Some("stopped"), || panic!("too early"));
        assert!(get(address, "/ready").contains("200 OK"));
        drop(admin);
        assert!(TcpStream::connect(address).is_err());
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
