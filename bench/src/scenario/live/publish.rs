//! What sessions of `mdgw live` cost the gateway: its own p99, measured by its latency log, without `mdgw live` and beside it.
//!
//! The gateway's pool has a core for itself. `mdgw live`, all clients and the sender share the others. Half of the sessions never read.

use std::{
    fmt::{self, Write as _},
    fs,
    net::{Ipv4Addr, TcpStream, UdpSocket},
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use mdgw_sys::{
    affinity::{confine_to, pinnable_cores},
    clock::unix_now,
    sockets::{Interface, OutputOptions, open_output},
};
use mdgw_telemetry::stages::Stage;
use rustix::net::{SendFlags, send};
use serde_json::json;
use tempfile::TempDir;

use super::{
    super::wire::{
        input::{Input, InputShape},
        own_latency,
    },
    LiveOptions, PartResult, bare,
    client::{Client, Wanted},
    program::{Groups, LiveServer, Program, configuration},
    ratios,
    receive::Receiver,
    record_counter::METADATA_BYTES,
    text,
};
use crate::report::Spread;

/// Most of the publish stage's p99 beside sessions, over without.
const P99_RATIO_MAX: f64 = 1.1;

/// One row of the table.
struct Row {
    beside: Beside,
    runs: Vec<Run>,
}

/// What runs on the other cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// The sender of the input alone.
    Nothing,
    /// A bare loop that writes to a socket and reads from it, without pause. Shows what any busy program there costs: cores share caches,
    /// memory and, as hardware threads, their units.
    BareLoop,
    /// `mdgw live` with that many sessions.
    Live(usize),
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "without mdgw live"),
            Self::BareLoop => write!(f, "without mdgw live, beside a bare loop"),
            Self::Live(sessions) => write!(f, "beside {sessions} sessions, {} of which never read", sessions / 2),
        }
    }
}

/// What one row showed in one round.
struct Run {
    publish: Histogram<u64>,
    whole: Histogram<u64>,
    /// Records that the reading sessions received, millions per second.
    received: f64,
}

pub(super) fn run(options: &LiveOptions, program: &Path) -> Result<PartResult> {
    let cores = pinnable_cores();
    let (pool_core, others) = cores.split_last().context("a core")?;
    ensure!(!others.is_empty(), "the gateway's pool and mdgw live need a core each");
    let with_live = options.beside.iter().map(|sessions| Beside::Live(*sessions));
    let row = |beside| Row { beside, runs: Vec::new() };
    let mut rows: Vec<_> = [Beside::Nothing, Beside::BareLoop].into_iter().chain(with_live).map(row).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of packets")]
    let packets = (options.rate as f64 * options.seconds).ceil() as usize;
    let mut input = Input::new(InputShape {
        messages_per_packet: 3,
        channel_count: 1,
        live_orders: 5_000,
        warm_up_messages: 20_000,
        seed: 1,
    });
    input.grow_to(packets * rows.len());
    for _ in 0..options.rounds {
        let gateway = Gateway::start(program, *pool_core, &options.wait)?;
        let beside: Vec<_> = rows.iter().map(|row| row.beside).collect();
        // Threads and programs inherit the cores of their starter: a thread of its own, which ends with the round.
        let measured = thread::scope(|scope| {
            let driver = scope.spawn(|| {
                confine_to(others)?;
                gateway.drive(program, &beside, &input, packets, options.rate)
            });
            driver.join().map_err(|_| anyhow!("the driving thread panicked"))?
        })?;
        // The last intervals are written at the end.
        let latencies = gateway.stop()?;
        for (row, Measured { range_ns, received }) in rows.iter_mut().zip(measured) {
            let of = |stage| own_latency::read(&latencies.path(), stage, range_ns.clone());
            let run = Run { publish: of(Stage::Publish)?, whole: of(Stage::WireToWire)?, received };
            ensure!(!run.publish.is_empty(), "the gateway's latency log has no packet of this row");
            row.runs.push(run);
        }
    }
    Ok(report(&rows, options))
}

type StageTimes = fn(&Run) -> &Histogram<u64>;

fn report(rows: &[Row], options: &LiveOptions) -> PartResult {
    let p99_us = |row: &Row, stage: StageTimes| -> Vec<f64> {
        row.runs.iter().map(|run| stage(run).value_at_percentile(99.0) as f64 / 1e3).collect()
    };
    let (mut lines, mut values) = (String::new(), Vec::new());
    for row in rows {
        let mut value = json!({ "row": row.beside.to_string() });
        let _ = write!(lines, "{} packets/s, {}:", options.rate, row.beside);
        let stages: [(&str, StageTimes); 2] = [("publish", |run| &run.publish), ("wire to wire", |run| &run.whole)];
        for (stage, of) in stages {
            let (us, base_us) = (p99_us(row, of), p99_us(&rows[0], of));
            let (p99, ratio) = (Spread::of(us.clone()), ratios(&us, &base_us));
            let _ = write!(lines, " {stage} p99 {} us, ratio {};", text(p99, 1), text(ratio, 2));
            value[stage.replace(' ', "_")] = json!({ "p99_us": p99.to_json(), "ratio": ratio.to_json() });
        }
        let received = Spread::of(row.runs.iter().map(|run| run.received).collect());
        let _ = writeln!(lines, " {} million records/s received", text(received, 2));
        value["million_records_per_s"] = received.to_json();
        values.push(value);
    }
    let _ = writeln!(lines, "publish p99 beside sessions, over without: at most {P99_RATIO_MAX}");
    PartResult { text: lines, json: json!({ "rate": options.rate, "rows": values }) }
}

/// When a row was measured, ns since 1970 UTC, and what its sessions received.
struct Measured {
    range_ns: Range<u64>,
    received: f64,
}

/// The gateway, with one channel.
struct Gateway {
    program: Program,
    directory: TempDir,
    groups: Groups,
}

impl Gateway {
    fn start(program: &Path, pool_core: usize, wait: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("mdgw-live").tempdir_in("/dev/shm")?;
        let (path, groups) = (directory.path(), Groups::new());
        let mut text =
            configuration(path, &path.join("log"), &format!("cores = [{pool_core}]\nwait = \"{wait}\""), groups);
        let _ = write!(
            text,
            "[latency]\ndirectory = \"{}\"\ninterval_ms = {INTERVAL_MS}\nsignificant_digits = 3\n",
            path.join(LATENCY_DIRECTORY).display()
        );
        let config = path.join("gateway.toml");
        fs::write(&config, text)?;
        let arguments = ["run", config.to_str().context("a path in UTF-8")?];
        let program = Program::start(program, arguments, path.join("output"), "gateway running")?;
        Ok(Self { program, directory, groups })
    }

    /// Ends the gateway. Returns the directory of its latency logs, as long as it is kept.
    fn stop(self) -> Result<Latencies> {
        self.program.stop()?;
        Ok(Latencies(self.directory))
    }

    /// Measures the rows one after the other.
    fn drive(
        &self,
        program: &Path,
        rows: &[Beside],
        input: &Input,
        packets: usize,
        rate: u64,
    ) -> Result<Vec<Measured>> {
        // The kernel copies output only for a receiver. What does not fit its buffer is dropped.
        let receiver = UdpSocket::bind(self.groups.output)?;
        receiver.join_multicast_v4(self.groups.output.ip(), &Ipv4Addr::LOCALHOST)?;
        let mut sender = Sender::open(self.groups, input)?;
        sender.send(input.warm_up_packets, rate)?;
        let mut measured = Vec::new();
        for beside in rows {
            let (mut live, mut open, mut busy) = (None, None, None);
            match beside {
                Beside::Nothing => {}
                Beside::BareLoop => busy = Some(BusyLoop::start()),
                Beside::Live(count) => {
                    let server = LiveServer::start(program, &self.directory.path().join("log"))?;
                    open = Some(Sessions::open(&server, *count)?);
                    live = Some(server);
                }
            }
            thread::sleep(SETTLE_TIME);
            let (records_before, begin) = (open.as_ref().map_or(0, Sessions::records), Instant::now());
            let begin_ns = unix_now().0;
            sender.send(packets, rate)?;
            let range_ns = begin_ns..unix_now().0;
            let records = open.as_ref().map_or(0, Sessions::records) - records_before;
            measured.push(Measured { range_ns, received: records as f64 / 1e6 / begin.elapsed().as_secs_f64() });
            drop(busy);
            open.map(Sessions::close).transpose()?;
            live.map(|live| live.program.stop()).transpose()?;
        }
        Ok(measured)
    }
}

/// A directory with latency logs.
struct Latencies(TempDir);

impl Latencies {
    fn path(&self) -> std::path::PathBuf {
        self.0.path().join(LATENCY_DIRECTORY)
    }
}

/// Sends the input. A sender that is late moves all later packets, so that its stalls bring the gateway no bursts.
struct Sender<'a> {
    output: mdgw_sys::batch::Output,
    input: &'a Input,
    next: usize,
}

impl<'a> Sender<'a> {
    fn open(groups: Groups, input: &'a Input) -> Result<Self> {
        let options = OutputOptions::new(groups.input, Some(Interface::LOOPBACK));
        Ok(Self { output: open_output(&options).context("open a socket of the venue")?, input, next: 0 })
    }

    fn send(&mut self, packets: usize, rate: u64) -> Result<()> {
        let interval = Duration::from_nanos(1_000_000_000 / rate);
        for _ in 0..packets {
            let due = Instant::now() + interval;
            send(&self.output.socket, self.input.channels[0].packet(self.next), SendFlags::empty())?;
            self.next += 1;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

/// The bare loop, again and again until this is dropped.
struct BusyLoop {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl BusyLoop {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            // Metadata, then records of 56 bytes.
            let mut bytes = vec![0; METADATA_BYTES];
            bytes.resize(METADATA_BYTES + BUSY_RECORDS * 56, 14);
            while !of_thread.load(Ordering::Relaxed) {
                bare::send_to_all(&bytes, 1)?;
            }
            Ok(())
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _joined = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Of a turn of the bare loop, some milliseconds.
const BUSY_RECORDS: usize = 200_000;

/// Open sessions of all symbols. Every second one is never read.
struct Sessions {
    _never_read: Vec<TcpStream>,
    reader: thread::JoinHandle<Result<()>>,
    shared: Arc<ReaderState>,
}

#[derive(Default)]
struct ReaderState {
    records: AtomicU64,
    stop: AtomicBool,
}

impl Sessions {
    fn open(live: &LiveServer, count: usize) -> Result<Self> {
        let (mut never_read, mut read) = (Vec::new(), Vec::new());
        for number in 0..count {
            let mut client = Client::connect(live.address)?;
            client.subscribe(Wanted::All)?;
            if number % 2 == 0 { &mut read } else { &mut never_read }.push(client.start()?);
        }
        let shared = Arc::new(ReaderState::default());
        let of_reader = Arc::clone(&shared);
        let mut receiver = Receiver::new(read)?;
        let reader = thread::spawn(move || {
            while !of_reader.stop.load(Ordering::Relaxed) {
                receiver.receive_some(None)?;
                of_reader.records.store(receiver.records, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Self { _never_read: never_read, reader, shared })
    }

    /// Records that were received so far.
    fn records(&self) -> u64 {
        self.shared.records.load(Ordering::Relaxed)
    }

    /// An error if a session had ended.
    fn close(self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.reader.join().map_err(|_| anyhow!("the reader of the sessions panicked"))?
    }
}

/// Short, so that few packets of a row lie in an interval that begins before the row or ends after it.
const INTERVAL_MS: u64 = 100;
const LATENCY_DIRECTORY: &str = "latency";
/// Mappings of all instruments are sent to all sessions meanwhile.
const SETTLE_TIME: Duration = Duration::from_secs(1);
