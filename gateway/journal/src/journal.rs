//! The journals of a gateway: follows all logs, and stops writing when it fails until it works again.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mdgw_sys::alarm::Alarm;
use rustix::fs::{FlockOperation, flock};

use crate::{
    JournalError,
    channel::JournalChannel,
    group::{Cuts, Group, log_closed, log_reopened},
    housekeeping::{Compression, Housekeeper, HousekeepingTasks},
    journal_file::Durability,
    paths::free_bytes,
    retention::RetentionLimits,
};

/// What to journal, and where.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Folder of the journals; made if it does not exist.
    pub directory: PathBuf,
    /// Channels to journal.
    pub channels: Vec<JournalChannel>,
    /// Compression of closed journals.
    pub compression: Compression,
    /// Longest time that a record waits until it is on the disk.
    pub flush_interval: Duration,
    /// Days for which closed journals are kept; 0: without a limit.
    pub retention_days: u32,
    /// Bytes of all journals, above which the oldest closed ones are removed; 0: without a limit.
    pub retention_bytes: u64,
    /// Bytes that the journals leave free on their disk.
    pub free_bytes_min: u64,
}

/// Follows the logs of all channels into their journals. One at a time for a folder.
#[derive(Debug)]
pub struct Journal {
    config: JournalConfig,
    state: State,
    written_at: Instant,
    housekeeper: Housekeeper,
    counts: JournalCounts,
    /// It has stopped, has opened its files again, and has not written yet.
    is_resuming: bool,
    /// What was cut of the journals that go on, until that is logged.
    cuts: Cuts,
    /// Held for as long as the journals are written.
    _lock: File,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCounts {
    /// Entries of the publication logs that were read.
    pub entries: u64,
    /// Journals that were closed.
    pub closed: u64,
    /// Records in them.
    pub closed_records: u64,
    /// Bytes of them before compression.
    pub closed_bytes: u64,
    /// Ranges of messages in them that the publication log no longer had.
    pub closed_holes: u64,
    /// How often the journals could not be written and writing stopped.
    pub stops: u64,
}

#[derive(Debug)]
enum State {
    Writing(Vec<Group>),
    /// The logs of the gateway could not be opened.
    Waiting {
        retry_at: Instant,
    },
    Stopped {
        retry_at: Instant,
    },
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It read entries: more may be waiting.
    Read,
    /// All that is in the logs was read.
    Current,
    /// Nothing can be written, or no log exists yet.
    Paused,
}

impl Journal {
    /// Opens the folder and continues what is open in it.
    ///
    /// # Errors
    /// The folder cannot be used, or holds what this program cannot continue. A log that does not exist yet is no error.
    pub fn start(config: JournalConfig) -> Result<Self, JournalError> {
        fs::create_dir_all(&config.directory).map_err(JournalError::io("create", &config.directory))?;
        let lock = lock(&config.directory)?;
        let housekeeper = Housekeeper::start(HousekeepingTasks {
            directory: config.directory.clone(),
            compression: config.compression,
            limits: RetentionLimits { days: config.retention_days, bytes: config.retention_bytes },
            free_bytes_min: config.free_bytes_min,
        })
        .map_err(JournalError::io("start a thread for", &config.directory))?;
        let now = Instant::now();
        let mut journal = Self {
            config,
            state: State::Waiting { retry_at: now + OPEN_INTERVAL },
            written_at: now,
            housekeeper,
            counts: JournalCounts::default(),
            is_resuming: false,
            cuts: Cuts::new(),
            _lock: lock,
        };
        match journal.open() {
            Ok(groups) => {
                log_reopened(&mut journal.cuts);
                journal.state = State::Writing(groups);
            }
            Err(JournalError::Log(error)) => {
                tracing::warn!(%error, "journal: cannot read the publication log yet, trying again");
            }
            Err(error) if is_lack_of_space(&error) => journal.stop(&error),
            Err(error) => return Err(error),
        }
        Ok(journal)
    }

    /// Reads and writes for a while. Never fails: an error in writing stops the journals until it is over.
    pub fn step(&mut self) -> Step {
        let now = Instant::now();
        match &self.state {
            State::Writing(_) => {}
            State::Waiting { retry_at } | State::Stopped { retry_at } if now < *retry_at => return Step::Paused,
            State::Waiting { .. } => match self.open() {
                Ok(groups) => {
                    log_reopened(&mut self.cuts);
                    self.state = State::Writing(groups);
                }
                Err(JournalError::Log(_)) => {
                    self.state = State::Waiting { retry_at: now + OPEN_INTERVAL };
                    return Step::Paused;
                }
                Err(error) => {
                    self.stop(&error);
                    return Step::Paused;
                }
            },
            State::Stopped { .. } => match self.open() {
                Ok(groups) => {
                    self.state = State::Writing(groups);
                    // Until a flush has succeeded: a disk may refuse what its free space promises.
                    (self.is_resuming, self.written_at) = (true, now);
                }
                Err(_) => {
                    self.state = State::Stopped { retry_at: now + RETRY_INTERVAL };
                    return Step::Paused;
                }
            },
        }
        match self.advance(now) {
            Ok(0) => Step::Current,
            Ok(_) => Step::Read,
            Err(error) => {
                self.stop(&error);
                Step::Paused
            }
        }
    }

    /// Whether the journals are written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.state, State::Writing(_)) && !self.is_resuming
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.counts
    }

    /// Writes what was read. What is open stays open: the next start goes on.
    ///
    /// # Errors
    /// It cannot be written. The next start reads it from the log again.
    pub fn finish(mut self) -> Result<(), JournalError> {
        let State::Writing(groups) = &mut self.state else { return Ok(()) };
        groups.iter_mut().try_for_each(|group| group.write(Durability::Synced))
    }

    fn open(&mut self) -> Result<Vec<Group>, JournalError> {
        require_space(&self.config)?;
        Group::open_all(&self.config.directory, &self.config.channels, &mut self.cuts)
    }

    fn advance(&mut self, now: Instant) -> Result<usize, JournalError> {
        let State::Writing(groups) = &mut self.state else { return Ok(0) };
        let mut entries = 0;
        for group in &mut *groups {
            let (count, closed) = group.advance()?;
            entries += count;
            self.counts.entries += count as u64;
            for closed in &closed {
                self.counts.closed += 1;
                self.counts.closed_records += closed.record_count;
                self.counts.closed_bytes += closed.bytes;
                self.counts.closed_holes += closed.hole_count;
                log_closed(closed);
            }
            if group.has_full_batch() {
                require_space(&self.config)?;
                group.write(Durability::Later)?;
            }
            if !closed.is_empty() {
                self.housekeeper.wake();
            }
        }
        if now.duration_since(self.written_at) >= self.config.flush_interval {
            self.written_at = now;
            require_space(&self.config)?;
            groups.iter_mut().try_for_each(|group| group.write(Durability::Synced))?;
            if std::mem::take(&mut self.is_resuming) {
                tracing::info!(ends = Alarm::JournalStopped.name(), "journal: writes again, from where it stopped");
                log_reopened(&mut self.cuts);
            }
        }
        Ok(entries)
    }

    /// Drops what is not written: it is read from the log again.
    fn stop(&mut self, error: &JournalError) {
        if !std::mem::take(&mut self.is_resuming) {
            self.counts.stops += 1;
            tracing::error!(
                alarm = Alarm::JournalStopped.name(),
                %error,
                "journal: cannot write and has stopped; the gateway publishes on, and the journal goes on from the log once it can write"
            );
        }
        self.state = State::Stopped { retry_at: Instant::now() + RETRY_INTERVAL };
    }
}

fn require_space(config: &JournalConfig) -> Result<(), JournalError> {
    let path = &config.directory;
    let free_bytes = free_bytes(path)?;
    let free_bytes_min = config.free_bytes_min;
    if free_bytes < free_bytes_min {
        return Err(JournalError::LittleSpace { path: path.clone(), free_bytes, free_bytes_min });
    }
    Ok(())
}

fn lock(directory: &Path) -> Result<File, JournalError> {
    let path = directory.join("writer.lock");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(JournalError::io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(JournalError::InUse { path }),
        Err(error) => Err(JournalError::io("lock", &path)(error.into())),
    }
}

fn is_lack_of_space(error: &JournalError) -> bool {
    match error {
        JournalError::LittleSpace { .. } => true,
        JournalError::Io { source, .. } => {
            matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        }
        _ => false,
    }
}

/// How long to wait before another attempt to write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait before another attempt to open a log that a gateway has not made yet.
const OPEN_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
