//! From the append of a log entry until its record can be read at a client's socket, beside the same bytes written to a socket directly.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use mdgw_sys::clock::mono_now;
use serde_json::{Map, json};

use super::{
    LiveOptions, PartResult,
    client::{Client, SILENCE_MAX, Wanted},
    log::FilledLog,
    program::LiveServer,
    ratios,
    record_counter::{METADATA_BYTES, records},
    text,
};
use crate::report::Spread;

pub(super) fn run(options: &LiveOptions, program: &Path, log: &mut FilledLog) -> Result<PartResult> {
    let server = LiveServer::start(program, &log.directory())?;
    let (mut live, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let mut client = Client::connect(server.address)?;
        client.subscribe(Wanted::All)?;
        live.push(measure(options, client.start()?, METADATA_BYTES, |record| {
            log.append(record);
            Ok(())
        })?);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let (mut sender, _) = listener.accept()?;
        sender.set_nodelay(true)?;
        // The reader waits for the first byte of a session.
        sender.write_all(&[0; METADATA_BYTES])?;
        bare.push(measure(options, stream, METADATA_BYTES, |record| Ok(sender.write_all(record)?))?);
    }
    server.program.stop()?;
    Ok(report(&live, &bare))
}

fn report(live: &[Histogram<u64>], bare: &[Histogram<u64>]) -> PartResult {
    let (mut parts, mut value) = (Vec::new(), Map::new());
    for (name, percentile) in [("p50", 50.0), ("p99", 99.0)] {
        let us = |times: &[Histogram<u64>]| -> Vec<f64> {
            times.iter().map(|times| times.value_at_percentile(percentile) as f64 / 1e3).collect()
        };
        let (live, bare) = (us(live), us(bare));
        let ratio = ratios(&live, &bare);
        let (live, bare) = (Spread::of(live), Spread::of(bare));
        parts.push(format!("{name} {} us, bare write {} us", text(live, 0), text(bare, 0)));
        value.insert(
            name.to_owned(),
            json!({ "live_us": live.to_json(), "bare_us": bare.to_json(), "ratio": ratio.to_json() }),
        );
    }
    PartResult { text: format!("log to socket: {}\n", parts.join("; ")), json: value.into() }
}

/// Sends stamped records by `send`, at intervals, and receives them from the stream.
fn measure(
    options: &LiveOptions,
    stream: TcpStream,
    skipped_bytes: usize,
    mut send: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Histogram<u64>> {
    let has_begun = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(stream, skipped_bytes, options.entries, &has_begun));
        while !has_begun.load(Ordering::Acquire) && !receiver.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut pauses = Pauses { mean_ns: options.interval_us * 1_000, state: 1 };
        let mut due = Instant::now();
        for _ in 0..options.entries {
            due += pauses.next();
            thread::sleep(due.saturating_duration_since(Instant::now()));
            send(&stamped_record(mono_now().0))?;
        }
        receiver.join().map_err(|_| anyhow!("the receiver panicked"))?
    })
}

fn receive(
    mut stream: TcpStream,
    skipped_bytes: usize,
    entries: u64,
    has_begun: &AtomicBool,
) -> Result<Histogram<u64>> {
    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let (mut bytes, mut buffer, mut at) = (Vec::new(), vec![0; 64 << 10], skipped_bytes);
    while times.len() < entries {
        let received = stream.read(&mut buffer).context("read a session's records")?;
        let now = mono_now().0;
        ensure!(received > 0, "the session ended");
        has_begun.store(true, Ordering::Release);
        bytes.extend_from_slice(&buffer[..received]);
        let mut end = at;
        for (begin, record) in records(&bytes, at) {
            if let Some(stamp) = stamp_of(record) {
                times.saturating_record(now.saturating_sub(stamp));
            }
            end = begin + record.len();
        }
        at = end;
        if at <= bytes.len() {
            bytes.drain(..at);
            at = 0;
        }
    }
    Ok(times)
}

/// Pauses of half to one and a half of the mean, so that they keep no step with a poll of the log.
struct Pauses {
    mean_ns: u64,
    state: u64,
}

impl Pauses {
    fn next(&mut self) -> Duration {
        // Constants of Knuth's MMIX.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_nanos(self.mean_ns / 2 + (self.state >> 33) % self.mean_ns.max(1))
    }
}

/// A trade, which changes no book, with the stamp as the order's id.
fn stamped_record(stamp: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    (record[0], record[1], record[2], record[4]) = (14, MBO, 2, 1);
    record[16..24].copy_from_slice(&stamp.to_le_bytes());
    record[SIZE_AT..SIZE_AT + 4].copy_from_slice(&MARK);
    // LAST, a trade, of a bid.
    (record[36], record[38], record[39]) = (1 << 7, b'T', b'B');
    record
}

fn stamp_of(record: &[u8]) -> Option<u64> {
    let is_stamped = record.len() == RECORD_BYTES && record[1] == MBO && record[SIZE_AT..SIZE_AT + 4] == MARK;
    is_stamped.then(|| record[16..24].try_into().ok().map(u64::from_le_bytes)).flatten()
}

const RECORD_BYTES: usize = 56;
const MBO: u8 = 0xa0;
const SIZE_AT: usize = 32;
/// A size that the day has in no order.
const MARK: [u8; 4] = *b"mark";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_wherever_the_stream_is_cut_and_other_records_have_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut sender, _) = listener.accept().unwrap();
        let mut bytes = vec![0; METADATA_BYTES];
        let mut heartbeat = [0; 320];
        (heartbeat[0], heartbeat[1]) = (80, 0x17);
        bytes.extend(heartbeat);
        bytes.extend(stamped_record(mono_now().0));
        bytes.extend(stamped_record(mono_now().0));
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(stream, METADATA_BYTES, 2, &has_begun).unwrap());
            for piece in bytes.chunks(100) {
                sender.write_all(piece).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(receiver.join().unwrap().len(), 2);
        });
        assert_eq!(stamp_of(&heartbeat[..56]), None);
        assert_eq!(stamp_of(&stamped_record(77)), Some(77));
    }

    #[test]
    fn pauses_differ_and_have_the_mean() {
        let mut pauses = Pauses { mean_ns: 1_000, state: 1 };
        let all: Vec<u128> = (0..10_000).map(|_| pauses.next().as_nanos()).collect();
        assert!(all.iter().all(|pause| (500..1_500).contains(pause)));
        let mean = all.iter().sum::<u128>() / 10_000;
        assert!((980..1_020).contains(&mean), "{mean}");
    }
}
