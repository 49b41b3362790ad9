//! Capture: lines to pcapng files, with kernel or NIC timestamps.
//!
//! ```text
//!  sockets or packet rings ── by time ── recorder ──── chunks ────▶ spool: disk, zstd     (a thread of its own)
//!      one for each line                   │  ▲
//!                                  watch ──┘  └── memory: the last seconds, until the trigger fires
//! ```
//! The receiving thread does not wait for the disk unless all chunks are in use. In that case packets queue in the
//! kernel's buffers, and the kernel counts its drops.
//!
//! **After a crash.** A chunk holds whole blocks. It is handed over when it is full or [`FLUSH_NS`](recorder::FLUSH_NS) old, and written at
//! once. So if the writer was killed, the file still opens and lacks only the last tenth of a second. Files are not
//! synced: they survive a crash of the program, not of the machine.

mod files;
mod frame;
mod lines;
mod pre_trigger;
mod raw;
mod recorder;
mod sockets;
mod spool;
mod summary;
mod watch;

#[cfg(test)]
mod tests;

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    ops::ControlFlow,
    path::Path,
    time::Duration,
};

use mdgw_feeds::channel::ChannelConfig;
use mdgw_sys::{
    clock::{mono_now, unix_now},
    packet_ring::RETIRE_MS,
    poll,
    sockets::{Interface, SocketError, Stamps},
};

pub use self::files::{InvalidOutput, OutputFiles};
pub use self::spool::SpoolError;
pub use self::summary::{CaptureSummary, LineSummary};
pub use self::watch::{Triggers, WatchedChannel};
use self::{
    frame::LineReader,
    lines::{FRAMES_PER_ROUND, Lines},
    raw::RawReader,
    recorder::{Recorder, TriggerState},
    sockets::SocketReader,
    watch::{TriggerEvent, TriggerWatch},
};

/// Options of a capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Lines to capture.
    pub lines: Vec<CaptureLine>,
    /// How frames are captured.
    pub tap: Tap,
    /// Output files.
    pub files: OutputFiles,
    /// Write only the packets around a gap or fault; `None` writes all packets.
    pub trigger: Option<TriggerOptions>,
    /// Stop after this many packets.
    pub packets_max: Option<u64>,
    /// Stop after this duration, ns.
    pub duration_ns_max: Option<u64>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureLine {
    /// Name of the line in the file; unique.
    pub name: String,
    /// Multicast group (or address of this host) and port.
    pub address: SocketAddrV4,
    /// Receiving interface; `None` leaves the choice to the routing table.
    pub interface: Option<Interface>,
    /// Source-specific multicast: joins for these sources only; empty for any source.
    pub sources: Vec<Ipv4Addr>,
    /// Size of the socket buffer or of the packet ring, bytes.
    pub buffer_bytes: usize,
    /// Requested timestamps.
    pub stamps: Stamps,
}

/// How frames are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// UDP sockets, as in the gateway: real payloads behind synthetic headers.
    Sockets,
    /// `AF_PACKET`: whole frames as received. Needs CAP_NET_RAW.
    Raw,
}

/// Trigger: write only the packets around a gap or fault.
#[derive(Clone, Debug)]
pub struct TriggerOptions {
    /// Events that fire the trigger.
    pub triggers: Triggers,
    /// Channels that the lines carry.
    pub channels: Vec<WatchedChannel>,
    /// Time before the trigger from which packets are kept in memory, ns.
    pub before_ns: u64,
    /// Time after the trigger for which packets are written, ns.
    pub after_ns: u64,
    /// Memory for packets before the trigger, bytes. When it is full, the oldest packets are discarded even if
    /// `before_ns` covers them.
    pub memory_bytes: usize,
}

/// Progress of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureProgress {
    /// Packets so far.
    pub packets: u64,
    /// Packets dropped by the kernel so far.
    pub dropped: u64,
    /// Files begun.
    pub files: u64,
}

/// Error that prevented or ended a capture. Packets captured before are in the files.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A line's socket failed.
    #[error("capture: cannot open a line's socket")]
    Socket(#[from] SocketError),
    /// A line's packet ring failed.
    #[error("capture line {line}: cannot {act}{}", hint(.source))]
    Ring {
        /// Name of the line.
        line: String,
        /// Operation that failed.
        act: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A line can no longer be read.
    #[error("capture: cannot read line {line}")]
    Read {
        /// Name of the line.
        line: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Writing the files failed.
    #[error("capture: cannot write the files")]
    Spool(#[from] SpoolError),
    /// The writer thread could not be started.
    #[error("capture: cannot start the writer thread")]
    Thread(#[source] io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (--raw needs CAP_NET_RAW; without --raw no privilege is needed)",
        _ => "",
    }
}

/// A capture with open lines. Packets queue in the kernel until [`Self::run`].
#[derive(Debug)]
pub struct Capture {
    taps: Taps,
    recorder: Recorder,
    watch: Option<TriggerWatch>,
    packets_max: u64,
    duration_ns_max: u64,
}

#[derive(Debug)]
enum Taps {
    Sockets(Lines<SocketReader>),
    Raw(Lines<RawReader>),
}

impl Capture {
    /// Opens the lines, then the first file (unless a trigger is configured).
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open(options: &CaptureOptions) -> Result<Self, RecordError> {
        let lines = &options.lines;
        let (taps, interfaces) = match options.tap {
            Tap::Sockets => {
                let readers = lines.iter().map(SocketReader::open).collect::<Result<Vec<_>, _>>()?;
                let interfaces = readers.iter().map(|reader| reader.interface.clone()).collect();
                (Taps::Sockets(Lines::new(readers)), interfaces)
            }
            Tap::Raw => {
                let readers = lines.iter().map(RawReader::open).collect::<Result<Vec<_>, _>>()?;
                let interfaces = readers.iter().map(|reader| reader.interface.clone()).collect();
                (Taps::Raw(Lines::new(readers)), interfaces)
            }
        };
        let keep = options.trigger.as_ref().map(TriggerState::new);
        let mut recorder = Recorder::start(interfaces, &options.files, keep, unix_now().0)?;
        recorder.begin()?;
        Ok(Self {
            taps,
            recorder,
            watch: options.trigger.as_ref().map(|trigger| TriggerWatch::new(trigger.triggers, &trigger.channels)),
            packets_max: options.packets_max.unwrap_or(u64::MAX),
            duration_ns_max: options.duration_ns_max.unwrap_or(u64::MAX),
        })
    }

    /// Receiving addresses of the lines, with the ports that the kernel chose where none was given.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddrV4> {
        self.recorder.interfaces().map(|interface| interface.address)
    }

    /// Lines whose kernel buffer is smaller than requested: name, bytes requested, bytes granted.
    #[must_use]
    pub fn capped_buffers(&self) -> Vec<(String, usize, usize)> {
        self.recorder.interfaces().filter_map(|interface| interface.capped()).collect()
    }

    /// Captures until `on_progress` breaks off or a limit of the options is reached. `on_progress` is called at least
    /// every [`WAIT`].
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn run(self, watch: &mut dyn FnMut(CaptureProgress) -> ControlFlow<()>) -> Result<CaptureSummary, RecordError> {
        let Self { mut taps, recorder, watch: trigger_watch, packets_max, duration_ns_max } = self;
        let buffer_bytes = recorder.interfaces().map(|interface| interface.buffer_bytes.1).min().unwrap_or(0);
        let run = CaptureLoop { recorder, trigger_watch, packets_max, duration_ns_max };
        match &mut taps {
            Taps::Sockets(lines) => run.run(lines, PollPacing::of_sockets(buffer_bytes), watch),
            Taps::Raw(lines) => run.run(lines, PollPacing::RAW, watch),
        }
    }
}

/// Delays of the capture loop, by kind of reader.
#[derive(Clone, Copy, Debug)]
struct PollPacing {
    /// Frames younger than this may still be overtaken by older frames of another line.
    lag_ns: u64,
    /// Sleep after a frame was received, so that one round reads many frames.
    batch_sleep: Duration,
    /// Sleep before frames are examined again that were too young.
    retry_sleep: Duration,
}

impl PollPacing {
    /// A socket delivers a frame as soon as it has its timestamp. Each wake-up costs cache misses and one system call
    /// for each line, so the loop lets as many frames queue as the smallest buffer surely holds. The kernel allocates
    /// twice the requested size; half of that is reserved for frames that arrive before the sleep really ends.
    fn of_sockets(buffer_bytes: usize) -> Self {
        let fill_ns = u64::try_from(buffer_bytes).unwrap_or(u64::MAX).saturating_mul(1_000_000_000) / BURST_BYTES_PER_S;
        let batch_sleep = Duration::from_nanos(fill_ns).clamp(BATCH_SLEEP_MIN, BATCH_SLEEP_MAX);
        Self { lag_ns: 0, batch_sleep, retry_sleep: batch_sleep }
    }

    /// A ring delivers a frame when its block is full or has timed out.
    const RAW: Self = Self {
        lag_ns: (RETIRE_MS as u64 + 4) * 1_000_000,
        batch_sleep: Duration::ZERO,
        retry_sleep: Duration::from_millis(1),
    };
}

/// State of a running capture besides its lines.
struct CaptureLoop {
    recorder: Recorder,
    trigger_watch: Option<TriggerWatch>,
    packets_max: u64,
    duration_ns_max: u64,
}

impl CaptureLoop {
    fn run<R: LineReader>(
        mut self,
        lines: &mut Lines<R>,
        pacing: PollPacing,
        watch: &mut dyn FnMut(CaptureProgress) -> ControlFlow<()>,
    ) -> Result<CaptureSummary, RecordError> {
        let started = mono_now();
        let mut counted = started;
        loop {
            let now_ns = unix_now().0;
            let taken = self.round(lines, now_ns, now_ns.saturating_sub(pacing.lag_ns))?;
            let now = mono_now();
            if now.since(counted) >= DROP_COUNT_INTERVAL_NS {
                counted = now;
                self.count_drops(lines, now_ns)?;
            }
            self.recorder.on_tick(now_ns)?;
            let progress = self.recorder.progress();
            let is_over = progress.packets >= self.packets_max || now.since(started) >= self.duration_ns_max;
            if is_over || watch(progress).is_break() {
                break;
            }
            if taken >= FRAMES_PER_ROUND {
                continue;
            }
            if lines.has_buffered() {
                std::thread::sleep(pacing.retry_sleep);
                continue;
            }
            if taken == 0 {
                // A failed wait shows in the next read.
                let _ = poll::readable(lines.readers().map(LineReader::descriptor), WAIT);
            }
            std::thread::sleep(pacing.batch_sleep);
        }
        // Frames with timestamps up to now are still read; rings deliver them with a delay.
        let end_ns = unix_now().0;
        std::thread::sleep(Duration::from_nanos(pacing.lag_ns));
        while self.round(lines, end_ns, end_ns)? > 0 {}
        self.count_drops(lines, end_ns)?;
        self.recorder.finish(end_ns)
    }

    /// Reads all lines once: frames up to `horizon_ns`, in time order. Returns the number of frames.
    fn round<R: LineReader>(
        &mut self,
        lines: &mut Lines<R>,
        now_ns: u64,
        horizon_ns: u64,
    ) -> Result<usize, RecordError> {
        let Self { recorder, trigger_watch, packets_max, .. } = self;
        let mut lost = Ok(());
        let room = usize::try_from(packets_max.saturating_sub(recorder.progress().packets)).unwrap_or(usize::MAX);
        let taken = lines.round(now_ns, horizon_ns, room, |line, frame| {
            if lost.is_ok() {
                lost = recorder.frame(line, frame);
            }
            if let Some(seen) = trigger_watch.as_mut().and_then(|watch| watch.accept(line, frame)) {
                recorder.trigger(&seen);
            }
        });
        lost?;
        if let Some(seen) = trigger_watch.as_mut().and_then(|watch| watch.advance_time(horizon_ns)) {
            recorder.trigger(&seen);
        }
        taken.map_err(|(line, source)| RecordError::Read { line: recorder.name(line), source })
    }

    fn count_drops<R: LineReader>(&mut self, lines: &mut Lines<R>, now_ns: u64) -> Result<(), RecordError> {
        for (line, reader) in lines.readers_mut().enumerate() {
            let read = reader.dropped().map_err(|source| RecordError::Read { line: self.recorder.name(line), source });
            let new = self.recorder.dropped(line, read?, now_ns)?;
            let faults = self.trigger_watch.as_ref().is_some_and(|watch| watch.triggers().fault);
            if new > 0 && faults {
                let what = format!(
                    "line {}: the kernel dropped {new} packets (receive buffer full)",
                    self.recorder.name(line)
                );
                self.recorder.trigger(&TriggerEvent { reason: what, time_ns: now_ns });
            }
        }
        Ok(())
    }
}

/// Longest wait for packets; bounds the time until a stop is noticed.
pub(crate) const WAIT: Duration = Duration::from_millis(50);
/// Highest assumed load of a kernel buffer: a million packets per second, of which the kernel accounts 2 KiB each.
const BURST_BYTES_PER_S: u64 = 2_000_000_000;
/// Shortest sleep between batches; applies to the smallest buffers.
const BATCH_SLEEP_MIN: Duration = Duration::from_micros(100);
/// Longest sleep between batches. A longer sleep would save hardly any processor time.
const BATCH_SLEEP_MAX: Duration = Duration::from_millis(10);
/// Interval between reads of the kernel's drop counters.
const DROP_COUNT_INTERVAL_NS: u64 = 200_000_000;

/// Description of a line in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LineInterface {
    name: String,
    address: SocketAddrV4,
    description: String,
    /// Capture method and clock of the timestamps.
    comment: String,
    stamps: Stamps,
    /// Kernel buffer in bytes: requested and granted.
    buffer_bytes: (usize, usize),
    /// Where the kernel's drop counter of this line is read; text for the file.
    drop_count_source: &'static str,
}

impl LineInterface {
    fn capped(&self) -> Option<(String, usize, usize)> {
        let (requested, granted) = self.buffer_bytes;
        (granted < requested).then(|| (self.name.clone(), requested, granted))
    }
}

impl CaptureLine {
    fn description_text(&self) -> String {
        match &self.interface {
            Some(interface) => format!("UDP to {} on {interface}", self.address),
            None => format!("UDP to {}", self.address),
        }
    }
}

impl WatchedChannel {
    /// A channel from the configuration; `lines` are positions in the options' lines.
    #[must_use]
    pub fn configured(name: String, config: ChannelConfig, lines: Vec<usize>) -> Self {
        Self { name, config: Some(config), feed: None, lines }
    }
}

/// Whether the path stands for standard output.
#[must_use]
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}
