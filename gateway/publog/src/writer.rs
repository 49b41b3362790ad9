//! The one writer of a log.

use std::{
    collections::VecDeque,
    fs::{self, File},
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    Checksum, Entry, LogError, Position, SessionBytes,
    directory::{lock_path, remove_unfinished, segment_numbers, segment_path},
    retention::{Retention, SegmentMaintenance, Shared},
    segment::{
        EntryHeader, EntryState, IndexSlot, Layout, ReadSegment, SegmentHeader, WriteSegment, seal_after_crash,
        try_lock,
    },
};

/// How a log is set up.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Where its segments lie; made if it doesn't exist. One log per directory.
    pub directory: PathBuf,
    /// Stands in each segment, so that logs cannot be mixed up.
    pub channel: u16,
    /// Size of each segment file. Large enough that the keeper (a page takes about a microsecond) makes one while
    /// the worst burst fills another.
    pub segment_bytes: usize,
    /// Greatest payload of an entry.
    pub payload_bytes_max: usize,
    /// Whether entries carry one.
    pub checksum: Checksum,
    /// When old segments go.
    pub retention: Retention,
    /// Segments made ahead, 1 to 8.
    pub ready_segments: usize,
    /// Size of each of the two areas of private memory that take over while no segment is ready.
    pub private_bytes: usize,
    /// What is checked when a log is opened again.
    pub verify: Verify,
}

impl LogOptions {
    /// In that directory, all else as it comes: 64 MiB segments, 512 MiB in all, payloads of one Ethernet frame.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, channel: u16) -> Self {
        Self {
            directory: directory.into(),
            channel,
            segment_bytes: 64 << 20,
            payload_bytes_max: 1_408,
            checksum: Checksum::default(),
            retention: Retention::default(),
            ready_segments: 1,
            private_bytes: 1 << 20,
            verify: Verify::default(),
        }
    }
}

/// What is checked when a log is opened again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Segments that no writer has sealed: enough after a crash of the process.
    #[default]
    Unsealed,
    /// All segments: after a crash of the machine, for a log on a disk.
    All,
}

/// A log opened for writing.
#[derive(Debug)]
pub struct OpenedLog {
    /// For the thread that produces.
    pub writer: Writer,
    /// For a cold thread.
    pub maintenance: SegmentMaintenance,
    /// What was there already.
    pub recovered: Recovered,
}

/// What an earlier writer had left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments kept.
    pub segments: usize,
    /// Segments that ended in something other than a whole entry; they were cut there.
    pub damaged_segments: usize,
    /// Files that were no segments of this log; they were removed.
    pub removed_files: usize,
    /// The last whole entry: its session and `next`.
    pub last: Option<(SessionBytes, u64)>,
    /// The writer's own flags of that entry.
    pub last_flags: u16,
    /// Number of the next entry.
    pub next_number: u64,
}

/// Opens the log for writing, keeping what is there. `now_ns`: ns since 1970 UTC.
///
/// # Errors
/// When sizes do not fit, the log has a writer already, or the operating system refuses.
pub fn open(options: LogOptions, now_ns: u64) -> Result<OpenedLog, LogError> {
    let layout = Layout::new(options.segment_bytes, options.payload_bytes_max)?;
    let private_layout = Layout::new(options.private_bytes, options.payload_bytes_max)?;
    fs::create_dir_all(&options.directory).map_err(LogError::io("make", &options.directory))?;
    let path = lock_path(&options.directory);
    let lock = File::options().write(true).create(true).truncate(false).open(&path);
    let lock = lock.map_err(LogError::io("open", &path))?;
    if !try_lock(&lock).map_err(LogError::io("lock", &path))? {
        return Err(LogError::Busy { path: options.directory });
    }
    remove_unfinished(&options.directory)?;
    let (recovered, next_segment) = recover(&options)?;
    let header =
        SegmentHeader { channel: options.channel, checksum: options.checksum, number: 0, created_ns: now_ns, layout };
    let private_head = SegmentHeader { layout: private_layout, ..header };
    let private_areas = [(); 2].map(|()| WriteSegment::private(private_head));
    let mut spare = Vec::with_capacity(2);
    for area in private_areas {
        spare.push(area.map_err(LogError::io("map private memory for", &options.directory))?);
    }
    let shared = Arc::new(Shared::new(options.ready_segments.clamp(1, 8), next_segment));
    let mut maintenance = SegmentMaintenance::new(
        options.directory.clone(),
        header,
        options.retention,
        next_segment,
        Arc::clone(&shared),
    );
    let current = maintenance.make_first(now_ns)?;
    maintenance.run_once(now_ns);
    let writer = Writer {
        payload_bytes_max: layout.payload_bytes_max,
        older_areas: VecDeque::with_capacity(OLDER_AREAS_MAX + 1),
        current: LogArea { number: current.number(), base: 0, kind: AreaKind::File, segment: current },
        spare,
        entry: None,
        next_number: recovered.next_number,
        counts: WriterCounts::default(),
        shared,
        _lock: lock,
    };
    Ok(OpenedLog { writer, maintenance, recovered })
}

/// Appends entries. Makes no system call, allocates nothing, never waits; owned by one thread at a time.
///
/// `begin`, any number of `append`, then `commit` or `abandon`.
#[derive(Debug)]
pub struct Writer {
    current: LogArea,
    /// What the publisher may still have to send, oldest first; at most [`OLDER_AREAS_MAX`].
    older_areas: VecDeque<LogArea>,
    /// Private areas that are not in use.
    spare: Vec<WriteSegment>,
    entry: Option<OpenEntry>,
    payload_bytes_max: usize,
    next_number: u64,
    counts: WriterCounts,
    shared: Arc<Shared>,
    _lock: File,
}

/// What a [`Writer`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Entries committed.
    pub entries: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Segments begun.
    pub segments: u64,
    /// Times no segment was ready, so that private memory took over.
    pub segments_not_ready: u64,
    /// Entries that went to private memory: published, but not there for readers.
    pub entries_private: u64,
    /// Areas given up although the publisher was not through with them.
    pub areas_evicted: u64,
}

#[derive(Debug)]
struct OpenEntry {
    session: SessionBytes,
    first: u64,
    payload_bytes: usize,
}

/// A stretch of the log in this process' memory.
#[derive(Debug)]
struct LogArea {
    number: u64,
    /// Added to offsets to make positions: 0 for files.
    base: u64,
    kind: AreaKind,
    segment: WriteSegment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AreaKind {
    File,
    Private,
}

impl LogArea {
    fn begin(&self) -> Position {
        Position { segment: self.number, offset: self.base + self.segment.entries_offset() as u64 }
    }

    fn end(&self) -> Position {
        Position { segment: self.number, offset: self.base + self.segment.end() as u64 }
    }
}

impl Writer {
    /// Begins an entry that settles sequences from `first` on. One that was begun and not committed is abandoned.
    #[inline]
    pub fn begin(&mut self, session: SessionBytes, first: u64) {
        if !self.current.segment.has_room() || self.current.kind == AreaKind::Private {
            self.roll_segment();
        }
        self.entry = Some(OpenEntry { session, first, payload_bytes: 0 });
    }

    /// Whether an entry has been begun and neither committed nor abandoned.
    #[must_use]
    pub fn has_open_entry(&self) -> bool {
        self.entry.is_some()
    }

    /// Greatest payload of an entry.
    #[must_use]
    pub fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    /// Bytes that the open entry can still take; 0 without one.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.entry.as_ref().map_or(0, |entry| self.payload_bytes_max - entry.payload_bytes)
    }

    /// Bytes in the open entry; 0 without one.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.entry.as_ref().map_or(0, |entry| entry.payload_bytes)
    }

    /// Whether there is no open entry or nothing in it yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` behind what the open entry holds. `false`, and nothing is copied, when there is no
    /// [room](Self::room).
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(entry) = self.entry.as_mut() else { return false };
        let end = entry.payload_bytes + bytes.len();
        let Some(room) = self.current.segment.payload().get_mut(entry.payload_bytes..end) else { return false };
        room.copy_from_slice(bytes);
        entry.payload_bytes = end;
        true
    }

    /// Makes the open entry visible to every reader. `ts_commit`: ns since 1970 UTC. `None` without an open entry.
    #[inline]
    pub fn commit(&mut self, next: u64, frame_count: u16, flags: u16, ts_commit: u64) -> Option<Position> {
        let OpenEntry { session, first, payload_bytes } = self.entry.take()?;
        let number = self.next_number;
        self.next_number += 1;
        let position = self.current.end();
        let header = EntryHeader { number, session, first, next, ts_commit, frame_count, flags };
        self.current.segment.commit(&header, payload_bytes);
        self.counts.entries += 1;
        self.counts.payload_bytes += payload_bytes as u64;
        self.counts.entries_private += u64::from(self.current.kind == AreaKind::Private);
        Some(position)
    }

    /// Drops the open entry: nobody will have seen it.
    pub fn abandon(&mut self) {
        self.entry = None;
    }

    /// Where the next entry will begin, or would if it fits.
    #[must_use]
    pub fn end(&self) -> Position {
        self.current.end()
    }

    /// Committed entries from `from` on, for the publisher: in this process' own mapping, so without system calls and
    /// page faults. `None` when the place is no longer here: read it with a [`Reader`](crate::Reader), until that
    /// comes to [`Self::end`].
    ///
    /// The iterator goes on over the borders of segments.
    #[inline]
    #[must_use]
    pub fn pending(&self, from: Position) -> Option<Pending<'_>> {
        let area_index = (0..=self.older_areas.len()).rev().find(|index| {
            let area = self.area(*index);
            area.begin() <= from && from <= area.end()
        })?;
        Some(Pending { writer: self, area_index, at: from })
    }

    /// A place that [`Self::pending`] knows, not far before the first entry of `session` that settles `sequence` or
    /// something after it. `None` when memory does not show that none of them is older: ask a
    /// [`Reader`](crate::Reader).
    #[must_use]
    pub fn pending_before(&self, session: SessionBytes, sequence: u64) -> Option<Position> {
        (0..=self.older_areas.len()).rev().find_map(|index| {
            let area = self.area(index);
            let is_before = |slot: &IndexSlot| slot.session == session && slot.first < sequence;
            let slot = area.segment.slots().rev().find(is_before)?;
            Some(Position { segment: area.number, offset: area.base + slot.offset as u64 })
        })
    }

    /// The oldest place that [`Self::pending`] still knows.
    #[must_use]
    pub fn oldest_pending(&self) -> Position {
        self.area(0).begin()
    }

    /// Says that the publisher is through with all before `position` (as [`Pending::position`] gave it), so that the
    /// memory can be given back.
    #[inline]
    pub fn release_before(&mut self, position: Position) {
        while self.older_areas.front().is_some_and(|area| area.end() < position) {
            self.release_oldest();
        }
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> &WriterCounts {
        &self.counts
    }

    fn area(&self, index: usize) -> &LogArea {
        self.older_areas.get(index).unwrap_or(&self.current)
    }

    /// Goes on in the next segment, or in private memory while there is none.
    #[cold]
    fn roll_segment(&mut self) {
        if let Some(segment) = self.shared.ready.pop() {
            self.counts.segments += 1;
            self.shared.current.store(segment.number(), Relaxed);
            let number = segment.number();
            self.replace_current(LogArea { number, base: 0, kind: AreaKind::File, segment });
            return;
        }
        if self.current.segment.has_room() {
            return;
        }
        self.counts.segments_not_ready += 1;
        if self.spare.is_empty() {
            let oldest_private = self.older_areas.iter().position(|area| area.kind == AreaKind::Private);
            // Both private areas are in use and one is current, so the other is here.
            while oldest_private.is_some() && self.spare.is_empty() {
                self.counts.areas_evicted += 1;
                self.release_oldest();
            }
        }
        let Some(mut segment) = self.spare.pop() else { return };
        segment.reset();
        let base = self.current.base + self.current.segment.segment_bytes() as u64;
        let number = self.current.number;
        self.replace_current(LogArea { number, base, kind: AreaKind::Private, segment });
    }

    fn replace_current(&mut self, area: LogArea) {
        let mut old = std::mem::replace(&mut self.current, area);
        if old.kind == AreaKind::File {
            old.segment.seal();
        }
        self.older_areas.push_back(old);
        if self.older_areas.len() > OLDER_AREAS_MAX {
            self.counts.areas_evicted += 1;
            self.release_oldest();
        }
    }

    fn release_oldest(&mut self) {
        let Some(area) = self.older_areas.pop_front() else { return };
        match area.kind {
            AreaKind::Private => self.spare.push(area.segment),
            // Unmapping takes long, so the keeper does it; only if it starved is it done here.
            AreaKind::File => drop(self.shared.retired.push(area.segment)),
        }
    }
}

/// See [`Writer::pending`].
#[derive(Clone, Debug)]
pub struct Pending<'a> {
    writer: &'a Writer,
    area_index: usize,
    at: Position,
}

impl Pending<'_> {
    /// Where the next entry is looked for.
    #[must_use]
    pub fn position(&self) -> Position {
        self.at
    }
}

impl<'a> Iterator for Pending<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let area = self.writer.area(self.area_index);
            let offset = usize::try_from(self.at.offset - area.base).ok()?;
            if self.at < area.end() {
                let EntryState::Entry(entry) = area.segment.entry_at(area.number, area.base, offset) else {
                    return None;
                };
                self.at = entry.end;
                return Some(entry);
            }
            if self.area_index == self.writer.older_areas.len() {
                return None;
            }
            self.area_index += 1;
            self.at = self.writer.area(self.area_index).begin();
        }
    }
}

/// Segments behind the current one that stay mapped for the publisher.
const OLDER_AREAS_MAX: usize = 3;

/// Seals what a former writer left open; the number for the next segment.
fn recover(options: &LogOptions) -> Result<(Recovered, u64), LogError> {
    let mut recovered = Recovered::default();
    let mut next_segment = 1;
    for number in segment_numbers(&options.directory)? {
        next_segment = number + 1;
        let path = segment_path(&options.directory, number);
        let segment = match ReadSegment::open(&path, options.channel) {
            Ok(segment) if segment.header().number == number => segment,
            Ok(_) | Err(LogError::NotASegment { .. }) => {
                fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
                recovered.removed_files += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let is_verified = options.verify == Verify::All || !segment.is_sealed();
        let mut offset = segment.header().layout.entries_offset;
        let mut has_no_entry = true;
        let is_intact = loop {
            match if is_verified { segment.verified_entry_at(offset) } else { segment.entry_at(offset) } {
                EntryState::Entry(entry) => {
                    has_no_entry = false;
                    recovered.last = Some((entry.session, entry.next));
                    recovered.last_flags = entry.flags;
                    recovered.next_number = entry.number + 1;
                    offset = usize::try_from(entry.end.offset).unwrap_or(usize::MAX);
                }
                EntryState::Uncommitted | EntryState::Sealed => break true,
                EntryState::Damaged => break false,
            }
        };
        drop(segment);
        // Also before it is removed: a reader that stands there goes on.
        seal_after_crash(&path, options.channel, offset)?;
        if has_no_entry {
            // Made ahead and never begun, or cut before its first entry.
            fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
            recovered.removed_files += usize::from(!is_intact);
            continue;
        }
        recovered.segments += 1;
        recovered.damaged_segments += usize::from(!is_intact);
    }
    Ok((recovered, next_segment))
}
