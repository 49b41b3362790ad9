//! Library for consumers on the gateway's host: reads its publication logs in shared memory, without a network.
//!
//! ```no_run
//! use mdgw_log_reader::{Item, LogChannel, LogReader, LogReaderConfig};
//! # fn main() -> Result<(), mdgw_log_reader::LogReaderError> {
//! let channel = LogChannel::new("/dev/shm/mdgw", mdgw_log_reader::wire::identity::ChannelId(1));
//! let mut reader = LogReader::open(LogReaderConfig::new(vec![channel]))?;
//! loop {
//!     reader.poll(std::time::Duration::from_secs(1), &mut |output| match output.item {
//!         Item::Message { header, body } => { /* DBN records in `body` */ }
//!         Item::Lost(gap) => eprintln!("{} messages lost", gap.count()),
//!         _ => {}
//!     })?;
//! }
//! # }
//! ```
//! The items are those of the multicast subscriber (`mdgw-subscriber`), under the same names: session and sequence. For records with
//! `ts_recv` filled in, pass the output to [`ConsumerEdges`]. `ops/guide/shared-memory.md` says how to set up the gateway.
//!
//! - **Wait-free.** A reader takes no lock, registers nowhere and makes no system call for an entry. It maps files read-only: it cannot
//!   change the log, and a slow or stopped reader delays neither the gateway nor another reader. Once for each segment (64 MiB by
//!   default) it opens and maps the next file. [`WaitStrategy`] decides what [`LogReader::poll`] does while there is nothing to read.
//! - **Overrun.** A reader that falls behind the log's retention misses entries. What it missed is delivered as [`Item::Lost`] with its
//!   bounds, and counted ([`Polled::overruns`], [`LogReader::last_overrun`]).
//! - **Resume by name.** Keep the name of the next message ([`LogReader::position`], or session and sequence + 1 of the last one), and
//!   start with [`LogChannel::resume`]: nothing is delivered twice, and nothing is missed that the log still has.
//! - **Untrusted files.** Every length is checked before it is used, and every entry is copied and its copy's checksum compared. A file of
//!   another channel, version or kind is an error. A file that its owner or root truncates while it is mapped ends the reader with SIGBUS,
//!   as any mapped file does; no gateway truncates a segment.
//!
//! A log has what its gateway processed, whether or not that gateway leads: it has no epochs. A gateway that restarts continues its log, and
//! readers go on.
//!
//! Memory is allocated when the reader is opened, and for each segment (its path). No thread is started. `examples/follow_log.rs` is a
//! short program.

#![forbid(unsafe_code)]

mod channel;
#[cfg(test)]
mod tests;

pub use mdgw_publog::LogError;
/// The published format: identities, times, frames, reasons of refusal.
pub use mdgw_wire as wire;
pub use mdgw_wire::{
    consumer_edge::{EdgeOutput, TsRecvMode},
    published::{
        position::StreamPosition,
        receiver::{Item, Output, ReceiverStatistics},
        records::ConsumerEdges,
    },
};

use std::{
    error::Error,
    fmt, hint,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use mdgw_wire::{drop_reason::DropCounts, identity::ChannelId};

use self::channel::ChannelReader;

/// Which logs are read, from where on, and how a reader waits.
#[derive(Clone, Debug)]
pub struct LogReaderConfig {
    /// The channels. They take turns; each is in its own order.
    pub channels: Vec<LogChannel>,
    /// Where channels start that do not [resume](LogChannel::resume).
    pub start: LogStart,
    /// What [`LogReader::poll`] does while there is nothing to read.
    pub wait: WaitStrategy,
    /// Maximum bytes of one message's records.
    pub message_bytes_max: usize,
}

impl LogReaderConfig {
    /// Defaults for everything except the channels: from the beginning of the session, looking each 100 µs.
    #[must_use]
    pub fn new(channels: Vec<LogChannel>) -> Self {
        Self { channels, start: LogStart::default(), wait: WaitStrategy::default(), message_bytes_max: 1 << 16 }
    }
}

/// A channel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChannel {
    /// Number of the channel in the gateway's configuration.
    pub id: ChannelId,
    /// Directory of the log's segments.
    pub directory: PathBuf,
    /// The name of the first message that is wanted: everything before it is not delivered.
    pub resume: Option<StreamPosition>,
}

impl LogChannel {
    /// The log of a channel of the gateway that is configured with that `log_dir`.
    #[must_use]
    pub fn new(log_dir: impl Into<PathBuf>, id: ChannelId) -> Self {
        Self { id, directory: log_dir.into().join(id.0.to_string()), resume: None }
    }
}

/// Where a reader starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogStart {
    /// At the oldest message of the latest session.
    #[default]
    Session,
    /// At the oldest message of the latest trading date.
    Day,
    /// At the oldest message of the log.
    Oldest,
    /// Behind the last message. Symbol mappings and definitions that came earlier are not delivered.
    Live,
}

/// What a reader does while there is nothing to read. The gateway wakes nobody: that would cost it a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStrategy {
    /// Looks again at once. For a thread with a core of its own.
    Spin,
    /// Sleeps for that long between two looks.
    Sleep(Duration),
}

impl Default for WaitStrategy {
    fn default() -> Self {
        Self::Sleep(Duration::from_micros(100))
    }
}

/// What one call of [`LogReader::poll`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Entries read. An entry has the messages of one published packet.
    pub entries: usize,
    /// How often entries were missing before one of them.
    pub overruns: usize,
}

/// Entries that a reader missed: the log no longer had them, or had no file for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// How many entries. 0: not known, since the log was removed and made anew, or a resumption named a message that is gone.
    pub entries: u64,
    /// The next message when the entries went missing; `None` before the first message. Within one session, [`Item::Lost`] has reported
    /// the messages from here to `until`. Where the session changed meanwhile, it has reported those of the new session, and nobody knows
    /// how many the old one had.
    pub from: Option<StreamPosition>,
    /// Where the log goes on.
    pub until: StreamPosition,
}

/// Errors that end reading, or have to be repaired before it goes on. [`LogReader::poll`] may be called again: it tries again.
#[derive(Debug)]
pub struct LogReaderError {
    /// The log's channel.
    pub channel: ChannelId,
    /// What is wrong with the log.
    pub source: LogError,
}

impl fmt::Display for LogReaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the log of channel {}: {}", self.channel.0, self.source)
    }
}

impl Error for LogReaderError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Reads the logs of some channels. For use by one thread at a time; any number of readers may read a log.
#[derive(Debug)]
pub struct LogReader {
    channels: Vec<ChannelReader>,
    wait: WaitStrategy,
}

impl LogReader {
    /// Opens the logs, each at its start.
    ///
    /// # Errors
    /// If a log's directory does not exist or cannot be read, or has a file that is not a segment of the channel.
    pub fn open(config: LogReaderConfig) -> Result<Self, LogReaderError> {
        let LogReaderConfig { channels, start, wait, message_bytes_max } = config;
        let open = |channel: &LogChannel| {
            ChannelReader::open(channel, start, message_bytes_max)
                .map_err(|source| LogReaderError { channel: channel.id, source })
        };
        Ok(Self { channels: channels.iter().map(open).collect::<Result<_, _>>()?, wait })
    }

    /// Delivers what is there. If there is nothing, waits at most `timeout` for it.
    ///
    /// # Errors
    /// If the next segment cannot be opened: it is another's, access to it was withdrawn, or the process has too many files open. Or if the
    /// log ends with a damaged entry. Messages before it were delivered.
    pub fn poll(&mut self, timeout: Duration, deliver: &mut impl FnMut(Output<'_>)) -> Result<Polled, LogReaderError> {
        let polled = self.read(deliver)?;
        if polled.entries > 0 || timeout.is_zero() {
            return Ok(polled);
        }
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            let looks = match self.wait {
                WaitStrategy::Spin => LOOKS_PER_CLOCK_READ,
                WaitStrategy::Sleep(pause) => {
                    thread::sleep(pause.min(left));
                    1
                }
            };
            for _ in 0..looks {
                let polled = self.read(deliver)?;
                if polled.entries > 0 {
                    return Ok(polled);
                }
                hint::spin_loop();
            }
        }
        for channel in &mut self.channels {
            channel.reopen_if_replaced()?;
        }
        Ok(Polled::default())
    }

    /// The name of the channel's next message, for [`LogChannel::resume`]; `None` before the first message.
    #[must_use]
    pub fn position(&self, channel: ChannelId) -> Option<StreamPosition> {
        self.channel(channel)?.position()
    }

    /// The latest overrun of the channel.
    #[must_use]
    pub fn last_overrun(&self, channel: ChannelId) -> Option<&Overrun> {
        self.channel(channel)?.last_overrun()
    }

    /// Statistics of what was delivered of the channel.
    #[must_use]
    pub fn statistics(&self, channel: ChannelId) -> Option<&ReceiverStatistics> {
        Some(self.channel(channel)?.receiver().statistics())
    }

    /// Entries of which nothing was used, by reason. Duplicates follow a resumption or a log that was made anew; others are invalid.
    #[must_use]
    pub fn drops(&self, channel: ChannelId) -> Option<&DropCounts> {
        Some(self.channel(channel)?.receiver().drops())
    }

    fn channel(&self, id: ChannelId) -> Option<&ChannelReader> {
        self.channels.iter().find(|channel| channel.id() == id)
    }

    #[inline]
    fn read(&mut self, deliver: &mut impl FnMut(Output<'_>)) -> Result<Polled, LogReaderError> {
        let mut polled = Polled::default();
        for channel in &mut self.channels {
            channel.read(&mut polled, deliver)?;
        }
        Ok(polled)
    }
}

/// Looks at all logs between two reads of the clock.
const LOOKS_PER_CLOCK_READ: usize = 256;
