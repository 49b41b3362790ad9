//! What does the data path cost end to end in replay, relative to a plain book alone?
//!
//! A capture of both lines, in the page cache → containers → arbitration → decode → books → records → publication log,
//! on one core. Each variant omits the last stage of the next one, so the differences are the costs of the stages.

use std::{
    fs::File,
    io::BufWriter,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mdgw_captures::capture_file::{CaptureFile, CapturedDatagram, OpenOptions, PcapWriter};
use mdgw_engine::publish::LogSink;
use mdgw_feeds::{
    arbiter::{Arbiter, ArbiterConfig, Arrival, Delivery},
    channel::{Channel, ChannelConfig, Datagram, SchemaSet},
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
    transport::{
        Transport,
        moldudp64::{MoldUdp64, PacketWriter},
    },
};
use mdgw_publog::LogOptions;
use mdgw_sys::clock::unix_now;
use serde_json::json;

use super::book::run_reference;
use crate::{Options, input::SyntheticDay, reference::ReferenceBooks, report::Rounds};

const REFERENCE: &str = "reference";
const READ: &str = "read";
const ARBITRATE: &str = "+ arbitrate";
const BOOK: &str = "+ decode and book";
const NORMALISE: &str = "+ normalise";
const WHOLE_PIPELINE: &str = "+ log: end to end";
const NAMES: [&str; 6] = [REFERENCE, READ, ARBITRATE, BOOK, NORMALISE, WHOLE_PIPELINE];
const TARGETS: [(&str, f64); 1] = [(WHOLE_PIPELINE, 1.0)];

pub(crate) fn run(options: &Options) -> Result<()> {
    let day = SyntheticDay::load(options)?;
    with_capture(&day, |directory, capture| compare(&day, directory, capture, options))
}

fn compare(day: &SyntheticDay, directory: &Path, capture: &Path, options: &Options) -> Result<()> {
    let mut rounds = Rounds::new(&NAMES, day.message_count);
    let mut channel = Channel::new(channel_config(SchemaSet::default(), day));
    let mut records = 0;
    for _ in 0..options.rounds {
        let mut reference = ReferenceBooks::new();
        rounds.time(REFERENCE, || run_reference(&mut reference, day));
        ensure!(reference.faults == 0, "the reference found faults in a valid day");
        drop(reference);
        let datagrams = rounds.time(READ, || for_each_datagram(capture, |_, _| {}))?;
        ensure!(datagrams == 2 * day.packet_ends.len() as u64, "each packet comes on two lines");
        let messages = rounds.time(ARBITRATE, || arbitrate(capture))?;
        ensure!(messages == day.message_count, "arbitration lets each message through once");
        for (name, schemas) in [(BOOK, SchemaSet(0)), (NORMALISE, SchemaSet::default_for(Feed::NasdaqItch))] {
            // Memory is touched before the session, as the gateway does it.
            channel = Channel::new(channel_config(schemas, day));
            rounds.time(name, || run_pipeline(capture, &mut channel, &mut Discard))?;
            check(name, &channel, day)?;
        }
        let (written, log) = with_log(directory, |sink| {
            channel = Channel::new(channel_config(SchemaSet::default_for(Feed::NasdaqItch), day));
            rounds.time(WHOLE_PIPELINE, || run_pipeline(capture, &mut channel, sink))
        })?;
        written?;
        check(WHOLE_PIPELINE, &channel, day)?;
        ensure!(log == channel.counters().records, "{log} records logged of {}", channel.counters().records);
        records = log;
    }
    if options.json {
        let result = json!({
            "scenario": "end-to-end",
            "messages": day.message_count,
            "packets_per_line": day.packet_ends.len(),
            "records": records,
            "variants": rounds.to_json(),
        });
        println!("{result}");
        return Ok(());
    }
    println!(
        "line: {} messages in {} packets on each of two lines, {records} records, {} rounds",
        day.message_count,
        day.packet_ends.len(),
        options.rounds
    );
    rounds.print(&TARGETS);
    let whole = rounds.ns(WHOLE_PIPELINE).median;
    let mut before = 0.0;
    for name in &NAMES[1..] {
        let until = rounds.ns(name).median;
        println!("share {name:<24} {:>5.1} %", 100.0 * (until - before) / whole);
        before = until;
    }
    Ok(())
}

/// Arbitrates both lines once. Returns the number of messages delivered.
pub(crate) fn arbitrate_day(day: &SyntheticDay) -> Result<u64> {
    with_capture(day, |_, capture| arbitrate(capture))
}

/// Runs the data path once, into a publication log. Returns the number of records that it wrote.
pub(crate) fn run_day(day: &SyntheticDay) -> Result<u64> {
    with_capture(day, |directory, capture| {
        let mut channel = Channel::new(channel_config(SchemaSet::default_for(Feed::NasdaqItch), day));
        let (outcome, records) = with_log(directory, |sink| run_pipeline(capture, &mut channel, sink))?;
        outcome?;
        check(WHOLE_PIPELINE, &channel, day)?;
        Ok(records)
    })
}

/// Writes a capture of both lines to memory, and runs `run` with its directory and path.
fn with_capture<T>(day: &SyntheticDay, run: impl FnOnce(&Path, &Path) -> Result<T>) -> Result<T> {
    let directory = tempfile::Builder::new().prefix("mdgw-bench-line").tempdir_in("/dev/shm")?;
    let capture = directory.path().join("both-lines.pcap");
    write_capture(day, &capture).with_context(|| format!("write {}", capture.display()))?;
    run(directory.path(), &capture)
}

pub(crate) fn channel_config(schemas: SchemaSet, day: &SyntheticDay) -> ChannelConfig {
    let mut config = ChannelConfig::new(ChannelId(1), Feed::NasdaqItch);
    config.schemas = schemas;
    config.books = day.limits;
    config.date = TradingDate::from_yyyymmdd(20_190_130);
    config
}

/// Writes both lines to one capture: each packet on line A, then [`LINE_B_DELAY_NS`] later on line B.
fn write_capture(day: &SyntheticDay, path: &Path) -> Result<()> {
    let mut writer = PcapWriter::new(BufWriter::with_capacity(1 << 20, File::create(path)?))?;
    for_each_packet(day, |time_ns, payload| {
        writer.datagram(time_ns, SOURCE, LINES[0], payload)?;
        writer.datagram(time_ns + LINE_B_DELAY_NS, SOURCE, LINES[1], payload)
    })?;
    writer.finish()?;
    Ok(())
}

/// Calls `send` for each packet of the day, with its sending time, ns since 1970 UTC, and its payload.
pub(crate) fn for_each_packet(
    day: &SyntheticDay,
    mut send: impl FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> Result<()> {
    let (mut payload, mut next) = (Vec::new(), Sequence(1));
    for (number, mut block) in day.packets().enumerate() {
        payload.clear();
        let mut packet = PacketWriter::begin(&mut payload, *b"MDGWBENCH1", next, PAYLOAD_BYTES_MAX);
        while let Some(message) = MoldUdp64::next_message(&mut block) {
            ensure!(packet.push(message), "a packet of the day doesn't fit");
        }
        next = next.plus(u64::from(packet.finish()));
        send(START_NS + number as u64 * 10_000, &payload)?;
    }
    Ok(())
}

pub(crate) const SOURCE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 30_000);
pub(crate) const LINES: [SocketAddrV4; 2] =
    [SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, 1), 26_477), SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, 2), 26_477)];
pub(crate) const LINE_B_DELAY_NS: u64 = 1_000;
const PAYLOAD_BYTES_MAX: usize = 1_472;
/// Sending time of the first packet: 2019-01-30 14:30 UTC.
const START_NS: u64 = 1_548_858_600_000_000_000;

/// Calls `on_datagram` for every datagram of the capture, with its line. Returns the number of datagrams.
#[inline(never)]
pub(crate) fn for_each_datagram(
    capture: &Path,
    mut on_datagram: impl FnMut(Line, &CapturedDatagram<'_>),
) -> Result<u64> {
    let mut file = CaptureFile::open(capture, &OpenOptions::default())?;
    let mut count = 0;
    while let Some(datagram) = file.next_datagram()? {
        let is_a = matches!(datagram.dst.ip(), std::net::IpAddr::V4(group) if group.octets()[3] == 1);
        on_datagram(if is_a { Line::A } else { Line::B }, &datagram);
        count += 1;
    }
    Ok(count)
}

#[inline(never)]
pub(crate) fn arbitrate(capture: &Path) -> Result<u64> {
    let mut arbiter = Arbiter::new(ArbiterConfig::default());
    let mut messages = 0;
    for_each_datagram(capture, |line, datagram| {
        let Ok(packet) = MoldUdp64::parse(datagram.payload) else { return };
        let arrival = Arrival {
            line,
            first: packet.first,
            next: packet.next(),
            block: packet.messages,
            ts_recv: UnixNs(datagram.time_ns),
            send_time: None,
            now: MonoNs(datagram.time_ns),
        };
        let _counted = arbiter.accept(arrival, &mut |delivery| {
            if let Delivery::Packet { from, until, .. } = delivery {
                messages += until.0 - from.0;
            }
        });
    })?;
    Ok(messages)
}

#[inline(never)]
pub(crate) fn run_pipeline(capture: &Path, channel: &mut Channel, sink: &mut impl Sink) -> Result<u64> {
    for_each_datagram(capture, |line, datagram| {
        sink.begin(datagram.time_ns);
        let ts_recv = UnixNs(datagram.time_ns);
        channel.accept(Datagram { line, bytes: datagram.payload, ts_recv }, MonoNs(datagram.time_ns), sink);
        sink.flush();
    })
}

fn check(name: &str, channel: &Channel, day: &SyntheticDay) -> Result<()> {
    let counters = channel.counters();
    ensure!(counters.messages == day.message_count, "{name}: {} messages", counters.messages);
    ensure!(counters.gaps == 0 && counters.messages_refused == 0, "{name}: gaps or refusals in a whole day");
    ensure!(channel.book_faults().total() == 0, "{name}: book faults in a valid day");
    Ok(())
}

/// A frame sink that is notified when the processing of a datagram begins and ends.
pub(crate) trait Sink: FrameSink {
    fn begin(&mut self, _time_ns: u64) {}
    fn flush(&mut self) {}
}

/// Takes frames and does nothing with them.
pub(crate) struct Discard;

impl Sink for Discard {}

impl FrameSink for Discard {
    fn frame(&mut self, meta: &FrameMeta, _record_count: u16, body: &[u8]) {
        std::hint::black_box((meta, body));
    }

    fn covered_through(&mut self, _next: Sequence) {}
    fn session(&mut self, _session: Session, _next: Sequence) {}
    fn end_of_session(&mut self) {}
}

impl Sink for LogSink {
    fn begin(&mut self, time_ns: u64) {
        Self::begin(self, UnixNs(time_ns));
    }

    fn flush(&mut self) {
        Self::flush(self);
    }
}

/// Runs `run` with a publication log in memory, which a cold thread maintains as in the gateway. Also returns the
/// number of records that the log took.
pub(crate) fn with_log<T>(directory: &Path, run: impl FnOnce(&mut LogSink) -> T) -> Result<(T, u64)> {
    let directory: PathBuf = directory.join("log");
    let mut opened = mdgw_publog::open(LogOptions::new(&directory, 1), unix_now().0)?;
    let stop = Arc::new(AtomicBool::new(false));
    let of_thread = Arc::clone(&stop);
    let maintenance = std::thread::spawn(move || {
        while !of_thread.load(Ordering::Acquire) {
            opened.maintenance.run_once(unix_now().0);
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    let mut sink = LogSink::new(opened.writer);
    let result = run(&mut sink);
    stop.store(true, Ordering::Release);
    let _joined = maintenance.join();
    let records = sink.counts().records;
    drop(sink);
    std::fs::remove_dir_all(&directory)?;
    Ok((result, records))
}
