//! Counts of the log of this process, for its admin listener: a log that is stuck cannot report itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Those of this process.
pub static LOG_COUNTS: LogCounts = LogCounts::new();

/// What waits for the log's thread, and what the log has lost.
#[derive(Debug)]
pub struct LogCounts {
    waiting: AtomicU64,
    lost: AtomicU64,
}

impl LogCounts {
    /// Of a log without events.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiting: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// An event is put into the queue. To be called before, so that the count never falls below zero.
    pub fn begin_wait(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    /// The log's thread has written an event, or holds it back as a repeated alarm.
    pub fn end_wait(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// The queue is full: an event that was to wait is lost.
    pub fn lose(&self) {
        self.end_wait();
        self.lost.fetch_add(1, Relaxed);
    }

    /// Events that wait to be written, with the one that is being written.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// Events that were lost since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

impl Default for LogCounts {
    fn default() -> Self {
        Self::new()
    }
}
