//! Readers of the gateway's publication logs, in this process: consumers over shared memory.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, anyhow};
use mdgw_publog::Reader;

/// Threads that read logs from their ends on, each one log.
#[derive(Default)]
pub(super) struct LogReaders {
    stop: Arc<AtomicBool>,
    entries: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl LogReaders {
    /// Starts that many readers; reader `n` reads log `n % logs.len()`. `logs` has each log's directory and channel id.
    pub(super) fn start(count: usize, logs: &[(PathBuf, u16)]) -> Result<Self> {
        let mut readers = Self::default();
        for (directory, channel) in logs.iter().cycle().take(if logs.is_empty() { 0 } else { count }) {
            let mut log = Reader::open(directory, *channel)?;
            log.seek_end()?;
            let (stop, entries) = (Arc::clone(&readers.stop), Arc::clone(&readers.entries));
            readers.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    while let Some(entry) = log.next() {
                        std::hint::black_box(&entry);
                        entries.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
            }));
        }
        Ok(readers)
    }

    /// Stops the readers. Returns how many entries they read.
    pub(super) fn stop(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a log reader panicked"))?;
        }
        Ok(self.entries.load(Ordering::Relaxed))
    }
}

impl Drop for LogReaders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Readers without a core of their own sleep between two polls of the log.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
