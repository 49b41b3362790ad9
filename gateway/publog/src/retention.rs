//! Segment maintenance on the cold thread: makes segments ahead, unlinks old ones.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crossbeam_queue::ArrayQueue;

use crate::{
    LogError, Position,
    directory::{segment_numbers, segment_path, unfinished_path},
    segment::{SegmentHeader, WriteSegment},
};

/// Limits for old segments. The current segment and those made ahead stay whatever the limits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum size of all segments, including those made ahead, bytes.
    pub bytes_max: u64,
    /// Maximum age of a segment, ns, since the writer left it. Segments of an earlier run count from the start.
    pub age_ns_max: Option<u64>,
    /// Maximum size up to which [protected](RetentionHold) segments stay, bytes.
    pub protected_bytes_max: u64,
}

impl Default for Retention {
    /// 512 MiB, twice that for protected segments, no age limit.
    fn default() -> Self {
        Self { bytes_max: 512 << 20, age_ns_max: None, protected_bytes_max: 1 << 30 }
    }
}

/// Shared by writer and maintenance. Every field is lock-free: neither waits for the other.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Maintenance to writer: segments made ahead, lowest number first.
    pub(crate) ready: ArrayQueue<WriteSegment>,
    /// Writer to maintenance: segments that the writer no longer needs, to be unmapped.
    pub(crate) retired: ArrayQueue<WriteSegment>,
    /// Number of the segment being written. Written by the writer; relaxed ordering suffices.
    pub(crate) current: AtomicU64,
    /// First protected segment. Written by the owner of [`RetentionHold`]; relaxed ordering suffices.
    retention_hold: AtomicU64,
}

impl Shared {
    pub(crate) fn new(ready_segments: usize, current: u64) -> Self {
        Self {
            ready: ArrayQueue::new(ready_segments),
            retired: ArrayQueue::new(RETIRED_MAX),
            current: AtomicU64::new(current),
            retention_hold: AtomicU64::new(u64::MAX),
        }
    }
}

/// Protects part of a log: entries that the peer was not observed to publish.
#[derive(Clone, Debug)]
pub struct RetentionHold(Arc<Shared>);

impl RetentionHold {
    /// Protects the segment of `position` and all later ones; `None` protects nothing.
    pub fn set(&self, position: Option<Position>) {
        self.0.retention_hold.store(position.map_or(u64::MAX, |position| position.segment), Relaxed);
    }
}

/// Makes and unlinks segments. A cold thread calls [`Self::run_once`] every few milliseconds.
#[derive(Debug)]
pub struct SegmentMaintenance {
    directory: PathBuf,
    header: SegmentHeader,
    retention: Retention,
    next_segment: u64,
    /// Segments with a file name, oldest first.
    segments: VecDeque<RetainedSegment>,
    shared: Arc<Shared>,
    counts: MaintenanceCounts,
}

/// Counters of a [`SegmentMaintenance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceCounts {
    /// Segments made.
    pub made: u64,
    /// Segments unlinked.
    pub unlinked: u64,
    /// Protected segments unlinked: the gateway cannot take over from its peer's last observed position.
    pub protected_unlinked: u64,
    /// Calls that found neither space for a segment nor an old segment to unlink.
    pub no_space: u64,
    /// Other errors of the operating system.
    pub failures: u64,
}

#[derive(Clone, Copy, Debug)]
struct RetainedSegment {
    number: u64,
    sealed_ns: Option<u64>,
}

impl SegmentMaintenance {
    pub(crate) fn new(
        directory: PathBuf,
        header: SegmentHeader,
        retention: Retention,
        next_segment: u64,
        shared: Arc<Shared>,
    ) -> Self {
        let segments = VecDeque::new();
        Self { directory, header, retention, next_segment, segments, shared, counts: MaintenanceCounts::default() }
    }

    /// Takes over the segments of earlier runs, and makes the writer's first segment.
    pub(crate) fn make_first(&mut self, now_ns: u64) -> Result<WriteSegment, LogError> {
        for number in segment_numbers(&self.directory)? {
            self.segments.push_back(RetainedSegment { number, sealed_ns: Some(now_ns) });
        }
        self.shared.current.store(self.next_segment, Relaxed);
        self.make(now_ns)
    }

    /// Makes and unlinks segments as necessary. Returns whether there was work. `now_ns`: ns since 1970 UTC. Errors
    /// are counted in [`Self::counts`] and retried in the next call.
    pub fn run_once(&mut self, now_ns: u64) -> bool {
        let before = self.counts;
        let mut did_work = false;
        while self.shared.retired.pop().is_some() {
            did_work = true;
        }
        while !self.shared.ready.is_full() {
            match self.make(now_ns) {
                // This queue has only one producer, so there is room.
                Ok(segment) => drop(self.shared.ready.push(segment)),
                Err(error) => {
                    if error.is_no_space() {
                        self.counts.no_space += 1;
                    } else {
                        self.counts.failures += 1;
                    }
                    break;
                }
            }
        }
        self.apply_retention(now_ns);
        did_work || self.counts != before
    }

    /// A handle to protect part of the log.
    #[must_use]
    pub fn retention_hold(&self) -> RetentionHold {
        RetentionHold(Arc::clone(&self.shared))
    }

    /// Counters since the log was opened.
    #[must_use]
    pub fn counts(&self) -> &MaintenanceCounts {
        &self.counts
    }

    /// Size of all segments with a file name, bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.len() as u64 * self.header.layout.segment_bytes as u64
    }

    /// Makes one segment. If there is no space, unlinks the oldest ones until there is.
    fn make(&mut self, now_ns: u64) -> Result<WriteSegment, LogError> {
        loop {
            match self.try_make(now_ns) {
                Err(error) if error.is_no_space() && self.unlink_oldest() => {}
                other => return other,
            }
        }
    }

    fn try_make(&mut self, now_ns: u64) -> Result<WriteSegment, LogError> {
        let number = self.next_segment;
        let unfinished = unfinished_path(&self.directory, number);
        let path = segment_path(&self.directory, number);
        let header = SegmentHeader { number, created_ns: now_ns, ..self.header };
        let made = WriteSegment::create(&unfinished, header)
            .and_then(|segment| rename(&unfinished, &path).map(|()| segment))
            .inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
        self.next_segment += 1;
        self.segments.push_back(RetainedSegment { number, sealed_ns: None });
        self.counts.made += 1;
        Ok(made)
    }

    fn apply_retention(&mut self, now_ns: u64) {
        let current = self.shared.current.load(Relaxed);
        for segment in self.segments.iter_mut().filter(|segment| segment.number < current) {
            segment.sealed_ns.get_or_insert(now_ns);
        }
        while let Some(oldest) = self.segments.front() {
            let age_ns = oldest.sealed_ns.map_or(0, |sealed_ns| now_ns.saturating_sub(sealed_ns));
            let bytes_max = if oldest.number >= self.shared.retention_hold.load(Relaxed) {
                self.retention.protected_bytes_max.max(self.retention.bytes_max)
            } else if self.retention.age_ns_max.is_some_and(|age_ns_max| age_ns > age_ns_max) {
                0
            } else {
                self.retention.bytes_max
            };
            if self.bytes() <= bytes_max || !self.unlink_oldest() {
                return;
            }
        }
    }

    /// Unlinks the oldest segment. Returns `false` if there is none before the current one, or if it cannot be
    /// unlinked.
    fn unlink_oldest(&mut self) -> bool {
        let Some(oldest) = self.segments.front().copied() else { return false };
        if oldest.number >= self.shared.current.load(Relaxed) {
            return false;
        }
        let path = segment_path(&self.directory, oldest.number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.counts.failures += 1;
                return false;
            }
            _ => {}
        }
        self.segments.pop_front();
        self.counts.unlinked += 1;
        self.counts.protected_unlinked += u64::from(oldest.number >= self.shared.retention_hold.load(Relaxed));
        true
    }
}

/// Gives a finished segment its file name.
fn rename(from: &Path, to: &Path) -> Result<(), LogError> {
    fs::rename(from, to).map_err(LogError::io("rename to", to))
}

/// Maximum number of segments that wait to be unmapped. The writer leaves at most one per segment that it fills.
const RETIRED_MAX: usize = 8;
