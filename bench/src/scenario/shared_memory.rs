//! How long does an entry of the publication log take to a reader in another process, and what do readers cost the publisher?
//!
//! *Hop*: from before the append to the delivery of the message in the reader's process, which spins. Entries go at intervals, so that each
//! is delivered before the next one. *Bare hop*: one word in memory, from the writer's core to the reader's, in the same round: what the two
//! cores can do, which on a virtual machine changes with the host's placement of them. *Publish*: append, commit and send of a packet, without readers and beside many of them, some of
//! which are stopped; the same writer, in alternating turns of one run.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Barrier,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use mdgw_feeds::{
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameMeta},
    identity::{ChannelId, Feed, Sequence, Session},
    published::packet::PACKET_HEADER_BYTES,
    time::{TradingDate, UnixNs},
};
use mdgw_log_reader::{Item, LogChannel, LogReader, LogReaderConfig, LogStart, WaitStrategy};
use mdgw_publog::{LogOptions, OpenedLog, Retention, SegmentMaintenance, Writer};
use mdgw_sys::{
    affinity::{pin_to, pinnable_cores},
    clock::mono_now,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use zerocopy::IntoBytes as _;

use crate::report::Spread;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SharedMemoryOptions {
    /// Entries in each turn.
    #[arg(long, default_value_t = 200_000)]
    entries: u64,
    /// Time between two entries, us.
    #[arg(long, default_value_t = 10)]
    interval_us: u64,
    /// Readers beside which packets are published.
    #[arg(long, default_value_t = 100)]
    readers: usize,
    /// How many of them are stopped.
    #[arg(long, default_value_t = 50)]
    stopped: usize,
    /// Pause of the readers that run, us.
    #[arg(long, default_value_t = 10_000)]
    pause_us: u64,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records in an entry.
    #[arg(long, default_value_t = 1)]
    records: usize,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of a reader's process.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReaderArgs {
    log_dir: PathBuf,
    /// Pause between two looks, us; 0: spins and measures.
    pause_us: u64,
    core: usize,
}

pub(crate) fn run(options: &SharedMemoryOptions) -> Result<()> {
    let cores = pinnable_cores();
    let (reader_core, writer_core) = (cores[0], *cores.last().context("a core")?);
    ensure!(reader_core != writer_core, "the writer and the reader need a core each");
    pin_to(writer_core)?;
    let (mut bare, mut hops) = (Vec::new(), Vec::new());
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        bare.push(bare_hop(options, reader_core)?);
        hops.push(hop(options, reader_core)?);
        let mut log = TestLog::new(options.records, 4 << 20)?;
        alone.push(log.publish(options)?);
        let readers = start_readers(options, log.directory.path(), reader_core)?;
        beside.push(log.publish(options)?);
        drop(readers);
    }
    let spread = |values: &dyn Fn(usize) -> f64| Spread::of((0..options.rounds).map(values).collect());
    let at = |percentile: f64| move |histogram: &Histogram<u64>| histogram.value_at_percentile(percentile) as f64;
    let mut report = serde_json::Map::new();
    for (name, percentile) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
        let at = at(percentile);
        let hop = spread(&|round| hops[round].percentile(name));
        let bare_hop = spread(&|round| at(&bare[round]));
        let (none, many) = (spread(&|round| at(&alone[round])), spread(&|round| at(&beside[round])));
        let ratio = spread(&|round| at(&beside[round]) / at(&alone[round]));
        if !options.json {
            println!(
                "{name:<6} bare hop {} ns, hop {} ns; publish without readers {} ns, beside {} readers ({} stopped) {} ns, ratio {:.3} ({:.3} to {:.3})",
                text(bare_hop),
                text(hop),
                text(none),
                options.readers,
                options.stopped,
                text(many),
                ratio.median,
                ratio.min,
                ratio.max
            );
        }
        let value = json!({ "bare_hop_ns": bare_hop.to_json(), "hop_ns": hop.to_json(), "publish_ns": none.to_json(), "beside_ns": many.to_json(), "ratio": ratio.to_json() });
        report.insert(name.to_owned(), value);
    }
    if options.json {
        let (readers, stopped, entries) = (options.readers, options.stopped, options.entries);
        report.insert("scenario".to_owned(), json!("shared-memory"));
        println!("{}", json!({ "readers": readers, "stopped": stopped, "entries": entries, "result": report }));
    }
    Ok(())
}

fn text(spread: Spread) -> String {
    format!("{:.0} ({:.0} to {:.0})", spread.median, spread.min, spread.max)
}

/// What one reader measured.
struct Hop(Value);

impl Hop {
    fn percentile(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(f64::NAN)
    }
}

fn bare_hop(options: &SharedMemoryOptions, reader_core: usize) -> Result<Histogram<u64>> {
    let (word, is_pinned) = (AtomicU64::new(0), Barrier::new(2));
    let mut times: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let pinned = pin_to(reader_core);
            is_pinned.wait();
            let mut last = 0;
            while pinned.is_ok() && last != u64::MAX {
                let sent = word.load(Acquire);
                if sent != last {
                    if sent != u64::MAX {
                        times.saturating_record(mono_now().0.saturating_sub(sent));
                    }
                    last = sent;
                }
            }
        });
        is_pinned.wait();
        for _ in 0..options.entries {
            word.store(mono_now().0, Release);
            let due = mono_now().0 + options.interval_us * 1_000;
            while mono_now().0 < due {}
        }
        word.store(u64::MAX, Release);
    });
    Ok(times)
}

fn hop(options: &SharedMemoryOptions, reader_core: usize) -> Result<Hop> {
    // One segment takes all entries: nobody could make another one on the core of the reader, which spins.
    let mut log = TestLog::new(options.records, 64 << 20)?;
    log.write(1)?;
    let mut reader = ReaderProcess::start(log.directory.path(), 0, reader_core)?;
    let interval_ns = options.interval_us * 1_000;
    let mut due = mono_now().0 + interval_ns;
    for _ in 0..options.entries {
        while mono_now().0 < due {
            std::hint::spin_loop();
        }
        log.append(mono_now().0)?;
        // Late entries do not crowd: each one is to find a reader that has delivered the one before.
        due = mono_now().0 + interval_ns;
    }
    log.end();
    let measured: Value = serde_json::from_str(&reader.line()?)?;
    ensure!(measured["lost"] == 0, "the reader missed entries: {measured}");
    ensure!(measured["messages"].as_u64() >= Some(options.entries), "{measured}");
    Ok(Hop(measured))
}

/// A log as a gateway has it, with small segments, so that many are made and removed in a run.
struct TestLog {
    directory: tempfile::TempDir,
    writer: Writer,
    maintenance: Option<SegmentMaintenance>,
    socket: UdpSocket,
    frame: Vec<u8>,
    session: Session,
    next: u64,
}

impl TestLog {
    fn new(records: usize, segment_bytes: usize) -> Result<Self> {
        let directory = tempfile::tempdir_in("/dev/shm")?;
        let bytes_max = 8 * segment_bytes as u64;
        let options = LogOptions {
            segment_bytes,
            retention: Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max },
            ..LogOptions::new(directory.path().join(CHANNEL.0.to_string()), CHANNEL.0)
        };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, 0)?;
        let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // Nobody reads: what does not fit its buffer is dropped.
        socket.connect(sink.local_addr()?)?;
        let date = TradingDate::from_yyyymmdd(20_260_102).context("a date")?;
        let session = Session { feed: Feed::NasdaqItch, date, restart: 0 };
        let mut record = [0_u8; RECORD_BYTES];
        (record[0], record[1]) = (14, 0xa0);
        let frame = record.repeat(records);
        thread::spawn(move || {
            // Keeps the receiving socket open for as long as the process runs.
            let _open = sink;
            thread::park();
        });
        Ok(Self { directory, writer, maintenance: Some(maintenance), socket, frame, session, next: 1 })
    }

    /// One message in one entry; its first record holds `stamp`.
    fn append(&mut self, stamp: u64) -> Result<()> {
        self.frame[STAMP_AT..STAMP_AT + 8].copy_from_slice(&stamp.to_le_bytes());
        let mut meta = FrameMeta::message(Sequence(self.next), UnixNs(stamp), 0);
        meta.flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
        let header = meta.header(u16::try_from(self.frame.len() / RECORD_BYTES)?, &self.frame);
        self.writer.begin(self.session.to_bytes(), self.next);
        ensure!(self.writer.append(header.as_bytes()) && self.writer.append(&self.frame), "a packet has room");
        let position = self.writer.commit(self.next + 1, 1, 0, stamp).context("an open entry")?;
        self.writer.release_before(position);
        self.next += 1;
        Ok(())
    }

    fn write(&mut self, entries: u64) -> Result<()> {
        (0..entries).try_for_each(|_| self.append(mono_now().0))
    }

    fn end(&mut self) {
        self.writer.begin(self.session.to_bytes(), self.next);
        self.writer.commit_lasting(self.next, 9, 0);
    }

    /// Append, commit and send of each packet, at intervals.
    fn publish(&mut self, options: &SharedMemoryOptions) -> Result<Histogram<u64>> {
        let mut times = Histogram::new(3)?;
        let interval_ns = options.interval_us * 1_000;
        self.with_maintenance(|log| {
            let mut due = mono_now().0 + interval_ns;
            let packet = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES + log.frame.len()];
            for _ in 0..options.entries {
                while mono_now().0 < due {
                    std::hint::spin_loop();
                }
                let begin = mono_now().0;
                log.append(begin)?;
                // The receiving socket's buffer is full after some packets, as of a receiver that is stopped.
                let _dropped = log.socket.send(&packet);
                let end = mono_now().0;
                times.record(end - begin)?;
                due = end + interval_ns;
            }
            Ok(())
        })?;
        Ok(times)
    }

    /// Runs `run` beside a maintenance thread, as the gateway's.
    fn with_maintenance(&mut self, run: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut maintenance = self.maintenance.take().context("maintenance is idle")?;
        let is_ended = AtomicBool::new(false);
        let cores = pinnable_cores();
        // With a real-time priority, a thread that is not on its core yet would wait for this one for ever.
        let is_pinned = Barrier::new(2);
        thread::scope(|scope| {
            let kept = scope.spawn(|| {
                let _shares_a_core = pin_to(cores[0]);
                is_pinned.wait();
                while !is_ended.load(Relaxed) {
                    maintenance.run_once(mono_now().0);
                    thread::sleep(Duration::from_millis(2));
                }
                maintenance
            });
            is_pinned.wait();
            let outcome = run(self);
            is_ended.store(true, Relaxed);
            self.maintenance = kept.join().ok();
            outcome
        })?;
        ensure!(self.writer.counts().segments_not_ready == 0, "maintenance was too slow for this rate");
        Ok(())
    }
}

/// Starts the readers of a log, each in a process of its own, and stops some.
fn start_readers(options: &SharedMemoryOptions, log_dir: &Path, core: usize) -> Result<Vec<ReaderProcess>> {
    let start = |_| ReaderProcess::start(log_dir, options.pause_us, core);
    let readers = (0..options.readers).map(start).collect::<Result<Vec<_>>>()?;
    for reader in readers.iter().take(options.stopped) {
        kill_process(Pid::from_child(&reader.child), Signal::STOP)?;
    }
    Ok(readers)
}

struct ReaderProcess {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl ReaderProcess {
    /// Starts a reader and waits until it reads.
    fn start(log_dir: &Path, pause_us: u64, core: usize) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg("shared-memory-reader")
            .arg(log_dir)
            .args([pause_us.to_string(), core.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("standard output is piped")?);
        let mut reader = Self { child, output };
        ensure!(reader.line()?.trim() == READING, "a reader ended at its start");
        Ok(reader)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for ReaderProcess {
    fn drop(&mut self) {
        let (_gone, _reaped) = (self.child.kill(), self.child.wait());
    }
}

/// A reader's process: reads until the session ends, and reports.
pub(crate) fn run_reader(args: &ReaderArgs) -> Result<()> {
    pin_to(args.core)?;
    let measures = args.pause_us == 0;
    let wait = if measures { WaitStrategy::Spin } else { WaitStrategy::Sleep(Duration::from_micros(args.pause_us)) };
    let channel = LogChannel::new(&args.log_dir, CHANNEL);
    let config = LogReaderConfig { start: LogStart::Live, wait, ..LogReaderConfig::new(vec![channel]) };
    let mut reader = LogReader::open(config)?;
    println!("{READING}");
    std::io::stdout().flush()?;
    let mut hops: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut has_ended = false;
    while !has_ended {
        reader.poll(Duration::from_secs(1), &mut |output| match output.item {
            Item::Message { body, .. } if measures => {
                let now = mono_now().0;
                let stamp = body.get(STAMP_AT..STAMP_AT + 8).and_then(|bytes| bytes.try_into().ok());
                let sent = stamp.map_or(now, u64::from_le_bytes);
                hops.saturating_record(now.saturating_sub(sent));
            }
            Item::EndOfSession => has_ended = true,
            _ => {}
        })?;
    }
    let statistics = *reader.statistics(CHANNEL).context("the channel")?;
    let at = |percentile: f64| hops.value_at_percentile(percentile);
    let line = json!({
        "messages": statistics.messages, "lost": statistics.lost_messages,
        "p50": at(50.0), "p99": at(99.0), "p99.9": at(99.9), "max": hops.max(),
    });
    println!("{line}");
    Ok(())
}

const CHANNEL: ChannelId = ChannelId(1);
const READING: &str = "reading";
const RECORD_BYTES: usize = 56;
/// Offset in the first record.
const STAMP_AT: usize = 16;
