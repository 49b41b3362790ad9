//! A publication log with the synthetic day. This program stays its writer, so `mdgw live` finds a gateway that runs.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, ensure};
use mdgw_engine::publish::LogSink;
use mdgw_feeds::{
    channel::{Channel, Datagram, SchemaSet},
    frame::{FrameMeta, FrameSink as _},
    identity::{Feed, Line, Sequence},
    time::{MonoNs, UnixNs},
};
use mdgw_publog::{LogOptions, Retention};
use mdgw_sys::clock::unix_now;
use tempfile::TempDir;

use super::super::end_to_end::{channel_config, for_each_packet};
use crate::{Options, input::SyntheticDay};

/// The log of one channel, open for more.
pub(super) struct FilledLog {
    directory: TempDir,
    sink: LogSink,
    /// Sequence of the next message.
    next: u64,
    _maintenance: Maintenance,
}

impl FilledLog {
    /// Runs the day through the data path, from packets to log entries, as the gateway does.
    pub(super) fn fill(messages: u64, live_orders: u32) -> Result<Self> {
        let of_day =
            Options { messages, seed: 1, live_orders, scattered_ids: false, input: None, rounds: 1, json: false };
        let day = SyntheticDay::load(&of_day)?;
        // In memory, as the gateway's logs are by default.
        let directory = tempfile::Builder::new().prefix("mdgw-live").tempdir_in("/dev/shm")?;
        let options = LogOptions {
            retention: Retention { bytes_max: BYTES_MAX, age_ns_max: None, protected_bytes_max: BYTES_MAX },
            ready_segments: 2,
            ..LogOptions::new(log_directory(directory.path()).join(CHANNEL.to_string()), CHANNEL)
        };
        let opened = mdgw_publog::open(options, unix_now().0)?;
        let maintenance = Maintenance::start(opened.maintenance);
        let mut channel = Channel::new(channel_config(SchemaSet::default_for(Feed::NasdaqItch), &day));
        let mut sink = LogSink::new(opened.writer);
        for_each_packet(&day, |time_ns, bytes| {
            let ts_recv = UnixNs(time_ns);
            sink.begin(ts_recv);
            channel.accept(Datagram { line: Line::A, bytes, ts_recv }, MonoNs(time_ns), &mut sink);
            sink.flush();
            Ok(())
        })?;
        let missing = sink.writer().counts().entries_private;
        ensure!(missing == 0, "{missing} entries are missing from the log: no segment was ready");
        ensure!(channel.counters().messages == day.message_count, "every message of the day is in the log");
        Ok(Self { directory, sink, next: day.message_count + 1, _maintenance: maintenance })
    }

    /// The directory that has the logs of all channels in it.
    pub(super) fn directory(&self) -> std::path::PathBuf {
        log_directory(self.directory.path())
    }

    /// Appends an entry with one record, as of a message that follows the day.
    pub(super) fn append(&mut self, record: &[u8]) {
        let now = unix_now();
        self.sink.begin(now);
        self.sink.frame(&FrameMeta::message(Sequence(self.next), now, 0), 1, record);
        self.next += 1;
        self.sink.flush();
    }
}

fn log_directory(directory: &Path) -> std::path::PathBuf {
    directory.join("log")
}

/// Makes segments ahead, as the gateway's thread does.
struct Maintenance {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Maintenance {
    fn start(mut maintenance: mdgw_publog::SegmentMaintenance) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !of_thread.load(Ordering::Acquire) {
                maintenance.run_once(unix_now().0);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _joined = self.thread.take().map(JoinHandle::join);
    }
}

/// Id of the channel.
pub(super) const CHANNEL: u16 = 1;
/// More than any day: nothing is removed.
const BYTES_MAX: u64 = 64 << 30;
