//! Capture: lines to pcapng files, with the stamps of the kernel or the NIC.
//!
//! ```text
//!  sockets or packet rings ── by time ── recorder ──── chunks ────▶ spool: disk, zstd     (a thread of its own)
//!      one for each line                   │  ▲
//!                                  watch ──┘  └── memory: the last seconds, until a gap or a fault is seen
//! ```
//! The thread that receives never waits for the disk, unless all chunks are on their way to it: then the kernel's buffers
//! take what comes and count what they drop.
//!
//! **What a crash leaves.** Chunks hold whole blocks and are handed over when they are full or [`FLUSH_NS`] old, and
//! written at once. So a file that its writer was killed over opens, and lacks what came in the last tenth of a second
//! before. Files are not synced: they survive a crash of the program, not of the machine.

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

pub use self::{
    files::{InvalidOutput, OutputFiles},
    recorder::FLUSH_NS,
    spool::SpoolError,
    summary::{CaptureSummary, LineSummary},
    watch::{Triggers, WatchedChannel},
};
use self::{
    frame::LineReader,
    lines::{FRAMES_PER_ROUND, Lines},
    raw::RawReader,
    recorder::{Recorder, TriggerState},
    sockets::SocketReader,
    watch::{TriggerEvent, TriggerWatch},
};

/// What is captured, how, and where to.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The lines.
    pub lines: Vec<CaptureLine>,
    /// From where they are taken.
    pub tap: Tap,
    /// The files.
    pub files: OutputFiles,
    /// Only what stands around a gap or a fault.
    pub trigger: Option<TriggerOptions>,
    /// End after so many packets.
    pub packets_max: Option<u64>,
    /// End after so long, ns.
    pub duration_ns_max: Option<u64>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureLine {
    /// Its name in the file; unique.
    pub name: String,
    /// Group (or address of this host) and port.
    pub address: SocketAddrV4,
    /// Where it is received; `None` leaves the choice to the routing table.
    pub interface: Option<Interface>,
    /// Joins for this source alone.
    pub source: Option<Ipv4Addr>,
    /// Room in the kernel: of the socket, or of the packet ring.
    pub buffer_bytes: usize,
    /// Whose stamps are asked for.
    pub stamps: Stamps,
}

/// From where frames are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// Sockets, as the gateway has them: payloads, behind headers that are made up.
    Sockets,
    /// `AF_PACKET`: whole frames as they came. Takes CAP_NET_RAW.
    Raw,
}

/// Only what stands around a gap or a fault is written.
#[derive(Clone, Debug)]
pub struct TriggerOptions {
    /// What sets it off.
    pub triggers: Triggers,
    /// Channels that the lines carry.
    pub channels: Vec<WatchedChannel>,
    /// For how long before packets are kept in memory, ns.
    pub before_ns: u64,
    /// For how long after packets are written, ns.
    pub after_ns: u64,
    /// Memory for what is kept; when it is full the oldest go, however young.
    pub memory_bytes: usize,
}

/// How it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureProgress {
    /// Packets so far.
    pub packets: u64,
    /// Dropped by the kernel so far.
    pub dropped: u64,
    /// Files begun.
    pub files: u64,
}

/// Why a capture could not begin, or ended early. What was captured before is in the files.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A line's socket.
    #[error("capture")]
    Socket(#[from] SocketError),
    /// A line's packet ring.
    #[error("capture line {line}: {act}{}", hint(.source))]
    Ring {
        /// The line.
        line: String,
        /// What was tried.
        act: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A line could not be read any more.
    #[error("capture: read line {line}")]
    Read {
        /// The line.
        line: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The files.
    #[error("capture")]
    Spool(#[from] SpoolError),
    /// The thread that writes could not be started.
    #[error("capture: start a thread")]
    Thread(#[source] io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (--raw needs CAP_NET_RAW; without --raw no privilege is needed)",
        _ => "",
    }
}

/// A capture whose lines are open. Packets wait in the kernel until [`Self::run`].
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
    /// Opens the lines, then the first file (where nothing has to be waited for).
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

    /// Where its lines are received, with the ports that the kernel chose where none was given.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddrV4> {
        self.recorder.interfaces().map(|interface| interface.address)
    }

    /// Lines whose kernel buffer is smaller than was asked for: name, bytes asked for, bytes got.
    #[must_use]
    pub fn capped_buffers(&self) -> Vec<(String, usize, usize)> {
        self.recorder.interfaces().filter_map(|interface| interface.capped()).collect()
    }

    /// Captures until `watch` breaks off, or as many packets or as long as was asked for. `watch` is asked at least
    /// every [`WAIT`].
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn run(self, watch: &mut dyn FnMut(CaptureProgress) -> ControlFlow<()>) -> Result<CaptureSummary, RecordError> {
        let Self { mut taps, recorder, watch: feeds, packets_max, duration_ns_max } = self;
        let buffer_bytes = recorder.interfaces().map(|interface| interface.buffer_bytes.1).min().unwrap_or(0);
        let run = CaptureLoop { recorder, feeds, packets_max, duration_ns_max };
        match &mut taps {
            Taps::Sockets(lines) => run.run(lines, PollPacing::of_sockets(buffer_bytes), watch),
            Taps::Raw(lines) => run.run(lines, PollPacing::RAW, watch),
        }
    }
}

/// How far reading lags behind receiving.
#[derive(Clone, Copy, Debug)]
struct PollPacing {
    /// Frames this young may still be overtaken by older ones of another line.
    lag_ns: u64,
    /// After something has come, so that one reading brings many.
    batch_sleep: Duration,
    /// Until frames are looked at again that were too young.
    retry_sleep: Duration,
}

impl PollPacing {
    /// A socket has a frame as soon as it is stamped. Each waking costs the caches and a system call for each line, so as
    /// much is left to gather as the smallest of the buffers surely holds: the kernel takes twice the size that it was
    /// asked for, and half of that is kept for the time until the nap really ends.
    fn of_sockets(buffer_bytes: usize) -> Self {
        let nap_ns = u64::try_from(buffer_bytes).unwrap_or(u64::MAX).saturating_mul(1_000_000_000) / BURST_BYTES_PER_S;
        let batch_sleep = Duration::from_nanos(nap_ns).clamp(BATCH_SLEEP_MIN, BATCH_SLEEP_MAX);
        Self { lag_ns: 0, batch_sleep, retry_sleep: batch_sleep }
    }

    /// A ring shows a frame when its block is full or old.
    const RAW: Self = Self {
        lag_ns: (RETIRE_MS as u64 + 4) * 1_000_000,
        batch_sleep: Duration::ZERO,
        retry_sleep: Duration::from_millis(1),
    };
}

/// What a running capture has besides its lines.
struct CaptureLoop {
    recorder: Recorder,
    feeds: Option<TriggerWatch>,
    packets_max: u64,
    duration_ns_max: u64,
}

impl CaptureLoop {
    fn run<R: LineReader>(
        mut self,
        lines: &mut Lines<R>,
        pause: PollPacing,
        watch: &mut dyn FnMut(CaptureProgress) -> ControlFlow<()>,
    ) -> Result<CaptureSummary, RecordError> {
        let started = mono_now();
        let mut counted = started;
        loop {
            let now_ns = unix_now().0;
            let taken = self.round(lines, now_ns, now_ns.saturating_sub(pause.lag_ns))?;
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
                std::thread::sleep(pause.retry_sleep);
                continue;
            }
            if taken == 0 {
                // A failing wait shows in the next reading.
                let _ = poll::readable(lines.readers().map(LineReader::descriptor), WAIT);
            }
            std::thread::sleep(pause.batch_sleep);
        }
        // What was stamped up to now still comes; rings take a moment to show it.
        let end_ns = unix_now().0;
        std::thread::sleep(Duration::from_nanos(pause.lag_ns));
        while self.round(lines, end_ns, end_ns)? > 0 {}
        self.count_drops(lines, end_ns)?;
        self.recorder.finish(end_ns)
    }

    /// One reading of all lines: frames up to `horizon_ns`, in order of time. How many there were.
    fn round<R: LineReader>(
        &mut self,
        lines: &mut Lines<R>,
        now_ns: u64,
        horizon_ns: u64,
    ) -> Result<usize, RecordError> {
        let Self { recorder, feeds, packets_max, .. } = self;
        let mut lost = Ok(());
        let room = usize::try_from(packets_max.saturating_sub(recorder.progress().packets)).unwrap_or(usize::MAX);
        let taken = lines.round(now_ns, horizon_ns, room, |line, frame| {
            if lost.is_ok() {
                lost = recorder.frame(line, frame);
            }
            if let Some(seen) = feeds.as_mut().and_then(|feeds| feeds.accept(line, frame)) {
                recorder.trigger(&seen);
            }
        });
        lost?;
        if let Some(seen) = feeds.as_mut().and_then(|feeds| feeds.advance_time(horizon_ns)) {
            recorder.trigger(&seen);
        }
        taken.map_err(|(line, source)| RecordError::Read { line: recorder.name(line), source })
    }

    fn count_drops<R: LineReader>(&mut self, lines: &mut Lines<R>, now_ns: u64) -> Result<(), RecordError> {
        for (line, reader) in lines.readers_mut().enumerate() {
            let read = reader.dropped().map_err(|source| RecordError::Read { line: self.recorder.name(line), source });
            let new = self.recorder.dropped(line, read?, now_ns)?;
            let faults = self.feeds.as_ref().is_some_and(|feeds| feeds.triggers().fault);
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

/// Longest wait for packets: how soon an end is noticed.
pub const WAIT: Duration = Duration::from_millis(50);
/// A million packets a second, of which the kernel counts each for 2 KiB.
const BURST_BYTES_PER_S: u64 = 2_000_000_000;
/// With the smallest of buffers.
const BATCH_SLEEP_MIN: Duration = Duration::from_micros(100);
/// Beyond it hardly anything is saved.
const BATCH_SLEEP_MAX: Duration = Duration::from_millis(10);
/// How often the kernel's counts of drops are read.
const DROP_COUNT_INTERVAL_NS: u64 = 200_000_000;

/// What the file says of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LineInterface {
    name: String,
    address: SocketAddrV4,
    description: String,
    /// How frames were taken, and by whose clock they are stamped.
    comment: String,
    stamps: Stamps,
    /// Bytes of kernel buffer asked for and got.
    buffer_bytes: (usize, usize),
    /// Where its count of drops comes from.
    drop_count_source: &'static str,
}

impl LineInterface {
    fn capped(&self) -> Option<(String, usize, usize)> {
        let (asked, got) = self.buffer_bytes;
        (got < asked).then(|| (self.name.clone(), asked, got))
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
    /// A channel that the configuration describes, over these lines by their positions.
    #[must_use]
    pub fn configured(name: String, config: ChannelConfig, lines: Vec<usize>) -> Self {
        Self { name, config: Some(config), feed: None, lines }
    }
}

/// Whether that stands for standard output.
#[must_use]
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}
