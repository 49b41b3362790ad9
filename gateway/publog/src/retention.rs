//! Segment maintenance on the cold thread: makes segments ahead, and unlinks or reuses old ones.
//!
//! A new page of memory costs more than all that the log does with it. So where files lie in memory, the oldest segment that
//! has to go becomes the next one, with its pages present and mapped:
//!
//! ```text
//!   N.segment ── rename ──► N.unfinished ── no reader maps it: new header ── rename ──► M.segment
//!   no reader finds it       (a spare)   └─ a reader maps it: unlinked, and M is made anew
//! ```
//! Readers hold a shared lock on each file that they map, and check the header's number. So a reader never sees a file that
//! is reused while the reader maps it, and no reader delays maintenance.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io, mem,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crossbeam_queue::ArrayQueue;
use rustix::fs::statfs;

use crate::{
    LogError, LogOptions, Position, ReaderGroup,
    directory::{segment_numbers, segment_path, unfinished_path},
    segment::{SegmentHeader, WriteSegment, try_lock_for_reuse, unlock},
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

/// How writer and maintenance exchange segments. Every field is lock-free: neither waits for the other.
#[derive(Debug)]
pub(crate) struct SegmentExchange {
    /// Maintenance to writer: segments made ahead, lowest number first.
    pub(crate) ready: ArrayQueue<WriteSegment>,
    /// Writer to maintenance: segments that the writer no longer needs, to be unmapped.
    pub(crate) retired: ArrayQueue<WriteSegment>,
    /// Number of the segment being written. Written by the writer; relaxed ordering suffices.
    pub(crate) current: AtomicU64,
    /// First protected segment. Written by the owner of [`RetentionHold`]; relaxed ordering suffices.
    retention_hold: AtomicU64,
}

impl SegmentExchange {
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
pub struct RetentionHold(Arc<SegmentExchange>);

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
    reader_group: Option<ReaderGroup>,
    retention: Retention,
    /// First segment of this run: no earlier one is mapped here, so none can be reused.
    run_begin: u64,
    next_segment: u64,
    /// Segments with a file name, oldest first.
    segments: VecDeque<RetainedSegment>,
    /// Removed segments whose files may be reused, oldest first.
    spares: VecDeque<RetainedSegment>,
    /// Whether the files lie in memory. A file on a disk is not reused: after a power loss old pages, with intact entries of
    /// the earlier segment, could be taken for pages of the new one.
    is_in_memory: bool,
    shared: Arc<SegmentExchange>,
    counts: MaintenanceCounts,
    /// Of [`MaintenanceCounts::failures`], the last one.
    last_failure: Option<LogError>,
}

/// Counters of a [`SegmentMaintenance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceCounts {
    /// Segments made, anew or from old ones.
    pub made: u64,
    /// Of those, segments made from old ones.
    pub reused: u64,
    /// Segments removed: unlinked, or set aside for reuse.
    pub removed: u64,
    /// Protected segments removed: the gateway cannot take over from its peer's last observed position.
    pub protected_removed: u64,
    /// Segments removed although retention would have kept them, since there was no space for a new one.
    pub removed_for_space: u64,
    /// Calls that found neither space for a segment nor an old segment to remove.
    pub no_space: u64,
    /// Other errors of the operating system.
    pub failures: u64,
}

#[derive(Debug)]
struct RetainedSegment {
    number: u64,
    sealed_ns: Option<u64>,
    /// The writer's mapping, once the writer no longer needs it.
    mapping: Option<WriteSegment>,
}

impl SegmentMaintenance {
    pub(crate) fn new(
        options: &LogOptions,
        header: SegmentHeader,
        next_segment: u64,
        shared: Arc<SegmentExchange>,
    ) -> Self {
        let LogOptions { directory, reader_group, retention, .. } = options.clone();
        let (segments, spares) = (VecDeque::new(), VecDeque::new());
        let is_in_memory = statfs(&directory).is_ok_and(|file_system| file_system.f_type == TMPFS_MAGIC);
        let counts = MaintenanceCounts::default();
        let run_begin = next_segment;
        let last_failure = None;
        Self {
            directory,
            header,
            reader_group,
            retention,
            run_begin,
            next_segment,
            segments,
            spares,
            is_in_memory,
            shared,
            counts,
            last_failure,
        }
    }

    /// Takes over the segments of earlier runs, and makes the writer's first segment.
    pub(crate) fn make_first(&mut self, now_ns: u64) -> Result<WriteSegment, LogError> {
        for number in segment_numbers(&self.directory)? {
            self.segments.push_back(RetainedSegment { number, sealed_ns: Some(now_ns), mapping: None });
        }
        self.shared.current.store(self.next_segment, Relaxed);
        self.make(now_ns)
    }

    /// Makes and removes segments as necessary. Returns whether there was work. `now_ns`: ns since 1970 UTC. Errors
    /// are counted in [`Self::counts`] and retried in the next call.
    pub fn run_once(&mut self, now_ns: u64) -> bool {
        let before = self.counts;
        let mut did_work = false;
        while let Some(mapping) = self.shared.retired.pop() {
            self.keep_mapping(mapping);
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
                        self.count_failure(error);
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

    /// The error behind the last of [`MaintenanceCounts::failures`].
    #[must_use]
    pub fn last_failure(&self) -> Option<&LogError> {
        self.last_failure.as_ref()
    }

    fn count_failure(&mut self, error: LogError) {
        self.counts.failures += 1;
        self.last_failure = Some(error);
    }

    /// Size of all segments with a file name, bytes. Without the spares: each waits only for the writer, which maps it until
    /// the publisher has sent it.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.len() as u64 * self.header.layout.segment_bytes as u64
    }

    /// Makes one segment, from an old one if possible. If there is no space, unlinks the oldest ones until there is.
    fn make(&mut self, now_ns: u64) -> Result<WriteSegment, LogError> {
        // The segment that retention removes once there is one more.
        if self.is_in_memory && self.exceeds_retention(self.header.layout.segment_bytes as u64, now_ns) {
            self.set_aside_oldest();
        }
        if let Some(segment) = self.reuse_spare(now_ns) {
            return Ok(segment);
        }
        loop {
            match self.try_make(now_ns) {
                Err(error) if error.is_no_space() && self.unlink_spare() => {}
                Err(error) if error.is_no_space() && self.unlink_oldest() => self.counts.removed_for_space += 1,
                other => return other,
            }
        }
    }

    /// Keeps a mapping for reuse. Where files are not reused, the drop unmaps it.
    fn keep_mapping(&mut self, mapping: WriteSegment) {
        let number = mapping.number();
        let of_number = |segment: &&mut RetainedSegment| self.is_in_memory && segment.number == number;
        if let Some(segment) = self.segments.iter_mut().chain(&mut self.spares).find(of_number) {
            segment.mapping = Some(mapping);
        }
    }

    /// Makes the next segment from the first spare that nobody maps any more.
    fn reuse_spare(&mut self, now_ns: u64) -> Option<WriteSegment> {
        // The writer still has the other spares.
        while let Some(index) = self.spares.iter().position(|spare| spare.mapping.is_some()) {
            let spare = self.spares.remove(index)?;
            let path = unfinished_path(&self.directory, spare.number);
            let reused = spare.mapping.and_then(|mapping| self.try_reuse(mapping, &path, now_ns));
            if reused.is_some() {
                return reused;
            }
            // A reader maps it, and keeps its pages for as long as it does.
            let _may_be_gone = fs::remove_file(&path);
        }
        None
    }

    fn try_reuse(&mut self, mapping: WriteSegment, path: &Path, now_ns: u64) -> Option<WriteSegment> {
        let file = File::options().read(true).write(true).open(path).ok()?;
        // The lock is held until the file has its new name: a reader that opened the old one finds it locked, or another
        // number in the header.
        if !mapping.is_file(&file) || !try_lock_for_reuse(&file).ok()? {
            return None;
        }
        let number = self.next_segment;
        let segment = mapping.reuse(SegmentHeader { number, created_ns: now_ns, ..self.header });
        let renamed = rename(path, &segment_path(&self.directory, number));
        // Not by closing the file alone: a child that was just forked may have its descriptor too.
        unlock(&file);
        renamed.ok()?;
        self.next_segment += 1;
        self.segments.push_back(RetainedSegment { number, sealed_ns: None, mapping: None });
        self.counts.made += 1;
        self.counts.reused += 1;
        Some(segment)
    }

    /// Takes the name from the oldest segment, so that no reader finds it, and keeps the file for reuse if it is of this run. No
    /// effect if there is none before the current one, or if it cannot be renamed: retention tries to unlink it then.
    fn set_aside_oldest(&mut self) {
        let Some(oldest) = self.segments.front().filter(|oldest| oldest.number < self.shared.current.load(Relaxed))
        else {
            return;
        };
        let number = oldest.number;
        if number < self.run_begin {
            self.unlink_oldest();
            return;
        }
        if rename(&segment_path(&self.directory, number), &unfinished_path(&self.directory, number)).is_err() {
            return;
        }
        self.spares.extend(self.segments.pop_front());
        self.count_removed(number);
        if self.spares.len() > SPARES_MAX {
            self.unlink_spare();
        }
    }

    fn unlink_spare(&mut self) -> bool {
        let Some(spare) = self.spares.pop_front() else { return false };
        let _may_be_gone = fs::remove_file(unfinished_path(&self.directory, spare.number));
        true
    }

    fn count_removed(&mut self, number: u64) {
        self.counts.removed += 1;
        self.counts.protected_removed += u64::from(number >= self.shared.retention_hold.load(Relaxed));
    }

    fn try_make(&mut self, now_ns: u64) -> Result<WriteSegment, LogError> {
        let number = self.next_segment;
        let unfinished = unfinished_path(&self.directory, number);
        let path = segment_path(&self.directory, number);
        let header = SegmentHeader { number, created_ns: now_ns, ..self.header };
        let made = WriteSegment::create(&unfinished, header, self.reader_group)
            .and_then(|segment| rename(&unfinished, &path).map(|()| segment))
            .inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
        self.next_segment += 1;
        self.segments.push_back(RetainedSegment { number, sealed_ns: None, mapping: None });
        self.counts.made += 1;
        Ok(made)
    }

    fn apply_retention(&mut self, now_ns: u64) {
        let current = self.shared.current.load(Relaxed);
        for segment in self.segments.iter_mut().filter(|segment| segment.number < current) {
            segment.sealed_ns.get_or_insert(now_ns);
        }
        while self.exceeds_retention(0, now_ns) && self.unlink_oldest() {}
    }

    /// Whether the oldest segment has to go, once there are so many bytes more.
    fn exceeds_retention(&self, more_bytes: u64, now_ns: u64) -> bool {
        let Some(oldest) = self.segments.front() else { return false };
        let age_ns = oldest.sealed_ns.map_or(0, |sealed_ns| now_ns.saturating_sub(sealed_ns));
        let bytes_max = if oldest.number >= self.shared.retention_hold.load(Relaxed) {
            self.retention.protected_bytes_max.max(self.retention.bytes_max)
        } else if self.retention.age_ns_max.is_some_and(|age_ns_max| age_ns > age_ns_max) {
            0
        } else {
            self.retention.bytes_max
        };
        self.bytes() + more_bytes > bytes_max
    }

    /// Unlinks the oldest segment. Returns `false` if there is none before the current one, or if it cannot be
    /// unlinked.
    fn unlink_oldest(&mut self) -> bool {
        let Some(number) = self.segments.front().map(|oldest| oldest.number) else { return false };
        if number >= self.shared.current.load(Relaxed) {
            return false;
        }
        let path = segment_path(&self.directory, number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.count_failure(LogError::io("delete", path)(error));
                return false;
            }
            _ => {}
        }
        self.segments.pop_front();
        self.count_removed(number);
        true
    }
}

/// Gives a finished segment its file name.
fn rename(from: &Path, to: &Path) -> Result<(), LogError> {
    fs::rename(from, to).map_err(LogError::io("rename to", to))
}

impl Drop for SegmentMaintenance {
    /// Spares have no entries for the next start.
    fn drop(&mut self) {
        for spare in mem::take(&mut self.spares) {
            let _may_be_gone = fs::remove_file(unfinished_path(&self.directory, spare.number));
        }
    }
}

/// `f_type` of a file system in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Maximum number of spares: those that the writer still keeps for the publisher, and one more.
const SPARES_MAX: usize = 4;
/// Maximum number of segments that wait to be unmapped. The writer leaves at most one per segment that it fills.
const RETIRED_MAX: usize = 8;
