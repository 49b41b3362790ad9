//! The audit: every change of leadership and its cost, in an append-only file of JSON lines. Each line is on disk
//! before the next is written.
//!
//! A separate thread writes. Other threads put entries into a bounded queue and never block. If the disk is full or
//! fails, entries stay in memory up to a limit; the failures are counted and logged.
//!
//! [`entry`] defines the lines; [`file`](mod@file) describes how the file survives crashes.

pub mod entry;
pub mod file;

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{JoinHandle, Thread},
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use mdgw_election::{
    core::{CloseReason, ConnectionState},
    identity::NodeId,
    latch::Listener,
};
use mdgw_feeds::identity::{Epoch, GroupId};
use mdgw_sys::{alarm::Alarm, clock::unix_now};

use self::{
    entry::{AuditEvent, PendingEntry},
    file::{AuditError, AuditFile},
};

/// The running audit. When it is dropped, all queued entries are written, as far as the disk accepts them.
#[derive(Debug)]
pub(crate) struct Audit {
    sender: AuditSender,
    thread: Option<JoinHandle<()>>,
}

/// Adds entries to the audit. Any thread that may allocate can use it.
#[derive(Clone, Debug)]
pub(crate) struct AuditSender {
    shared: Arc<AuditQueue>,
    thread: Thread,
}

/// Counts of the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditCounts {
    /// Entries on disk.
    pub written: u64,
    /// Write attempts that failed; each is repeated.
    pub failures: u64,
    /// Entries dropped because the memory limit was reached while the disk failed.
    pub lost: u64,
}

/// Entries on their way to the file, and what became of them: written by all threads that report, read by the thread that writes.
#[derive(Debug)]
struct AuditQueue {
    queue: ArrayQueue<PendingEntry>,
    stop: AtomicBool,
    written: AtomicU64,
    failures: AtomicU64,
    lost: AtomicU64,
}

impl Audit {
    /// Opens the file and starts the thread that writes it.
    ///
    /// # Errors
    /// When the file cannot be opened, or another process writes it.
    pub(crate) fn start(path: impl Into<PathBuf>) -> Result<Self, AuditError> {
        let (file, recovered) = AuditFile::open(path)?;
        if recovered.torn_bytes > 0 || recovered.damaged_lines > 0 {
            tracing::warn!(?recovered, path = %file.path().display(), "the audit file was not closed cleanly");
        }
        Self::with_file(file)
    }

    fn with_file(file: AuditFile) -> Result<Self, AuditError> {
        let shared = Arc::new(AuditQueue {
            queue: ArrayQueue::new(QUEUE_LENGTH),
            stop: AtomicBool::new(false),
            written: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let path = file.path().to_owned();
        let thread_stop = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mdgw-audit".to_owned())
            .spawn(move || {
                Writer { file, backlog: VecDeque::new(), is_failing: false, is_moved: false }.run(&thread_stop)
            })
            .map_err(|source| AuditError::Io { act: "start the writer thread of", path, source })?;
        let sender = AuditSender { shared, thread: thread.thread().clone() };
        Ok(Self { sender, thread: Some(thread) })
    }

    /// Returns the handle that adds entries.
    #[must_use]
    pub(crate) fn sender(&self) -> &AuditSender {
        &self.sender
    }

    /// Writes all queued entries and stops.
    #[must_use]
    pub(crate) fn stop(mut self) -> AuditCounts {
        self.end();
        self.sender.counts()
    }

    fn end(&mut self) {
        self.sender.shared.stop.store(true, Ordering::Release);
        self.sender.thread.unpark();
        if let Some(thread) = self.thread.take() {
            // The panic hook has logged the thread's panic; there is nothing left to write.
            let _ = thread.join();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.end();
    }
}

impl AuditSender {
    /// Adds an entry with the present time. Never blocks.
    pub(crate) fn record(&self, group: GroupId, node: NodeId, epoch: Epoch, change: AuditEvent) {
        let draft = PendingEntry { time: unix_now(), group, node, epoch, change };
        if self.shared.queue.push(draft).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.thread.unpark();
    }

    /// Counts of the entries so far.
    #[must_use]
    pub(crate) fn counts(&self) -> AuditCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let AuditQueue { written, failures, lost, .. } = &*self.shared;
        AuditCounts { written: get(written), failures: get(failures), lost: get(lost) }
    }
}

/// Records the notifications of an election.
#[derive(Clone, Debug)]
pub(crate) struct AuditListener {
    /// Where the entries of the election are added.
    pub sender: AuditSender,
    /// Group of the election, as entries name it.
    pub group: GroupId,
    /// Node number of this gateway, as entries name it.
    pub node: NodeId,
}

impl Listener for AuditListener {
    fn gained(&self, epoch: Epoch) {
        self.sender.record(self.group, self.node, epoch, AuditEvent::Gained);
    }

    /// The election sums up its raises for the audit.
    fn raised(&self, _: Epoch) {}

    fn lost(&self, epoch: Epoch, reason: CloseReason) {
        self.sender.record(
            self.group,
            self.node,
            epoch,
            AuditEvent::Lost { reason: entry::reason_name(reason).into() },
        );
    }

    fn connection(&self, epoch: Epoch, state: ConnectionState) {
        self.sender.record(
            self.group,
            self.node,
            epoch,
            AuditEvent::Connection { state: entry::state_name(state).into() },
        );
    }
}

/// State of the writer thread.
#[derive(Debug)]
struct Writer {
    file: AuditFile,
    /// Entries that the disk has not accepted yet, oldest first.
    backlog: VecDeque<PendingEntry>,
    is_failing: bool,
    /// The file is not at its path, and no other could be opened there.
    is_moved: bool,
}

impl Writer {
    fn run(mut self, shared: &AuditQueue) {
        loop {
            // Read before the queue is emptied, so that entries added before the stop are written.
            let is_last = shared.stop.load(Ordering::Acquire);
            while let Some(draft) = shared.queue.pop() {
                if self.backlog.len() == BACKLOG_LENGTH {
                    self.backlog.pop_front();
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                }
                self.backlog.push_back(draft);
            }
            self.begin_again_if_moved();
            self.write(shared);
            if is_last {
                shared.lost.fetch_add(self.backlog.len() as u64, Ordering::Relaxed);
                return;
            }
            std::thread::park_timeout(if self.backlog.is_empty() { CHECK_INTERVAL } else { RETRY_INTERVAL });
        }
    }

    /// Begins a new file if somebody has moved or removed the present one, which has what was written until then.
    fn begin_again_if_moved(&mut self) {
        let mut is_moved = !self.file.is_in_place();
        if is_moved {
            let path = self.file.path().to_owned();
            match self.file.begin_again() {
                Ok(()) => {
                    is_moved = false;
                    tracing::warn!(path = %path.display(), "the audit file was moved or removed; a new one begins");
                }
                // At each check, so that the alarm lasts as long as the condition.
                Err(error) => {
                    tracing::error!(alarm = Alarm::AuditFailing.name(), %error, "the audit file was moved or removed, and no new one can be made: entries go to the one that is gone");
                }
            }
        }
        if std::mem::replace(&mut self.is_moved, is_moved) && !is_moved {
            tracing::info!(ends = Alarm::AuditFailing.name(), "the audit file is at its path again");
        }
    }

    fn write(&mut self, shared: &AuditQueue) {
        while let Some(draft) = self.backlog.front() {
            match self.file.append(draft) {
                Ok(()) => {
                    self.backlog.pop_front();
                    shared.written.fetch_add(1, Ordering::Relaxed);
                    if std::mem::take(&mut self.is_failing) {
                        let (ends, path) = (Alarm::AuditFailing.name(), self.file.path().display());
                        tracing::info!(ends, %path, "the audit file is writable again");
                    }
                }
                Err(error) => {
                    shared.failures.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::error!(alarm = Alarm::AuditFailing.name(), %error, "cannot write the audit file; entries are kept in memory and retried");
                    }
                    return;
                }
            }
        }
    }
}

/// Entries that may wait for the writer thread: a hand-over adds a handful, and leadership changes far less than a
/// hundred times a second.
const QUEUE_LENGTH: usize = 256;
/// Entries kept in memory while the disk fails: a day of changes, some megabytes at most.
const BACKLOG_LENGTH: usize = 4_096;
/// Pause between two write attempts while the disk fails.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the thread examines whether the file is still at its path.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::audit::file::AuditHistory;

    fn record(audit: &Audit, count: u64) {
        audit.sender().record(GroupId(1), NodeId(3), Epoch::new(count, 3), AuditEvent::Gained);
    }

    #[test]
    fn recorded_events_are_on_disk_in_order_after_stop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::start(&path).unwrap();
        (1..=20).for_each(|count| record(&audit, count));
        assert_eq!(audit.stop(), AuditCounts { written: 20, failures: 0, lost: 0 });
        let history = AuditHistory::read(&path).unwrap();
        assert_eq!(history.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
        assert_eq!(history.entries[4].epoch_count, 5);
    }

    #[test]
    fn entries_after_the_file_was_removed_are_in_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::start(&path).unwrap();
        record(&audit, 1);
        while audit.sender().counts().written == 0 {
            std::thread::yield_now();
        }
        std::fs::remove_file(&path).unwrap();
        record(&audit, 2);
        assert_eq!(audit.stop(), AuditCounts { written: 2, failures: 0, lost: 0 });
        let history = AuditHistory::read(&path).unwrap();
        assert_eq!(history.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_full_disk_is_counted_and_blocks_no_caller() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let audit = Audit::with_file(AuditFile::from_parts(full, "/dev/full".into(), 0, 0)).unwrap();
        record(&audit, 1);
        while audit.sender().counts().failures == 0 {
            std::thread::yield_now();
        }
        (0..2 * BACKLOG_LENGTH as u64).for_each(|count| record(&audit, count));
        let counts = audit.stop();
        assert_eq!(counts.written, 0);
        assert_eq!(counts.lost, 1 + 2 * BACKLOG_LENGTH as u64, "all of it, at the end");
        assert!(counts.failures > 0);
    }

    #[test]
    fn an_election_listeners_events_are_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::start(&path).unwrap();
        let listener = AuditListener { sender: audit.sender().clone(), group: GroupId(1), node: NodeId(3) };
        listener.gained(Epoch::new(7, 3));
        listener.raised(Epoch::new(9, 3));
        listener.connection(Epoch::new(7, 3), ConnectionState::Suspended);
        listener.lost(Epoch::new(7, 3), CloseReason::Expired);
        drop(audit);
        let events: Vec<AuditEvent> =
            AuditHistory::read(&path).unwrap().entries.into_iter().map(|entry| entry.change).collect();
        let expected = [
            AuditEvent::Gained,
            AuditEvent::Connection { state: "suspended".into() },
            AuditEvent::Lost { reason: "expired".into() },
        ];
        assert_eq!(events, expected);
    }
}
