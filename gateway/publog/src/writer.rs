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
    retention::{Keeper, Retention, Shared},
    segment::{EntryHead, Layout, ReadSegment, Seen, SegmentHead, Slot, WriteSegment, seal_abandoned, try_lock},
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
pub struct Opened {
    /// For the thread that produces.
    pub writer: Writer,
    /// For a cold thread.
    pub keeper: Keeper,
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
pub fn open(options: LogOptions, now_ns: u64) -> Result<Opened, LogError> {
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
    let head =
        SegmentHead { channel: options.channel, checksum: options.checksum, number: 0, created_ns: now_ns, layout };
    let private_head = SegmentHead { layout: private_layout, ..head };
    let private = [(); 2].map(|()| WriteSegment::private(private_head));
    let mut spare = Vec::with_capacity(2);
    for area in private {
        spare.push(area.map_err(LogError::io("map private memory for", &options.directory))?);
    }
    let shared = Arc::new(Shared::new(options.ready_segments.clamp(1, 8), next_segment));
    let mut keeper = Keeper::new(options.directory.clone(), head, options.retention, next_segment, Arc::clone(&shared));
    let current = keeper.make_first(now_ns)?;
    keeper.turn(now_ns);
    let writer = Writer {
        payload_bytes_max: layout.payload_bytes_max,
        older: VecDeque::with_capacity(OLDER_MAX + 1),
        current: Area { number: current.number(), base: 0, kind: AreaKind::File, segment: current },
        spare,
        entry: None,
        next_number: recovered.next_number,
        counts: WriterCounts::default(),
        shared,
        _lock: lock,
    };
    Ok(Opened { writer, keeper, recovered })
}

/// Appends entries. Makes no system call, allocates nothing, never waits; owned by one thread at a time.
///
/// `begin`, any number of `append`, then `commit` or `abandon`.
#[derive(Debug)]
pub struct Writer {
    current: Area,
    /// What the publisher may still have to send, oldest first; at most [`OLDER_MAX`].
    older: VecDeque<Area>,
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
    pub segments_missed: u64,
    /// Entries that went to private memory: published, but not there for readers.
    pub entries_private: u64,
    /// Areas given up although the publisher was not through with them.
    pub areas_overrun: u64,
}

#[derive(Debug)]
struct OpenEntry {
    session: SessionBytes,
    first: u64,
    payload_bytes: usize,
}

/// A stretch of the log in this process' memory.
#[derive(Debug)]
struct Area {
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

impl Area {
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
            self.turn_over();
        }
        self.entry = Some(OpenEntry { session, first, payload_bytes: 0 });
    }

    /// Whether an entry has been begun and neither committed nor abandoned.
    #[must_use]
    pub fn is_begun(&self) -> bool {
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
        let head = EntryHead { number, session, first, next, ts_commit, frame_count, flags };
        self.current.segment.commit(&head, payload_bytes);
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
        let area_index = (0..=self.older.len()).rev().find(|index| {
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
        (0..=self.older.len()).rev().find_map(|index| {
            let area = self.area(index);
            let is_before = |slot: &Slot| slot.session == session && slot.first < sequence;
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
        while self.older.front().is_some_and(|area| area.end() < position) {
            self.give_up_oldest();
        }
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> &WriterCounts {
        &self.counts
    }

    fn area(&self, index: usize) -> &Area {
        self.older.get(index).unwrap_or(&self.current)
    }

    /// Goes on in the next segment, or in private memory while there is none.
    #[cold]
    fn turn_over(&mut self) {
        if let Some(segment) = self.shared.ready.pop() {
            self.counts.segments += 1;
            self.shared.current.store(segment.number(), Relaxed);
            let number = segment.number();
            self.replace_current(Area { number, base: 0, kind: AreaKind::File, segment });
            return;
        }
        if self.current.segment.has_room() {
            return;
        }
        self.counts.segments_missed += 1;
        if self.spare.is_empty() {
            let oldest_private = self.older.iter().position(|area| area.kind == AreaKind::Private);
            // Both private areas are in use and one is current, so the other is here.
            while oldest_private.is_some() && self.spare.is_empty() {
                self.counts.areas_overrun += 1;
                self.give_up_oldest();
            }
        }
        let Some(mut segment) = self.spare.pop() else { return };
        segment.reset();
        let base = self.current.base + self.current.segment.segment_bytes() as u64;
        let number = self.current.number;
        self.replace_current(Area { number, base, kind: AreaKind::Private, segment });
    }

    fn replace_current(&mut self, area: Area) {
        let mut old = std::mem::replace(&mut self.current, area);
        if old.kind == AreaKind::File {
            old.segment.seal();
        }
        self.older.push_back(old);
        if self.older.len() > OLDER_MAX {
            self.counts.areas_overrun += 1;
            self.give_up_oldest();
        }
    }

    fn give_up_oldest(&mut self) {
        let Some(area) = self.older.pop_front() else { return };
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
                let Seen::Entry(entry) = area.segment.see(area.number, area.base, offset) else { return None };
                self.at = entry.end;
                return Some(entry);
            }
            if self.area_index == self.writer.older.len() {
                return None;
            }
            self.area_index += 1;
            self.at = self.writer.area(self.area_index).begin();
        }
    }
}

/// Segments behind the current one that stay mapped for the publisher.
const OLDER_MAX: usize = 3;

/// Seals what a former writer left open; the number for the next segment.
fn recover(options: &LogOptions) -> Result<(Recovered, u64), LogError> {
    let mut recovered = Recovered::default();
    let mut next_segment = 1;
    for number in segment_numbers(&options.directory)? {
        next_segment = number + 1;
        let path = segment_path(&options.directory, number);
        let segment = match ReadSegment::open(&path, options.channel) {
            Ok(segment) if segment.head().number == number => segment,
            Ok(_) | Err(LogError::NotASegment { .. }) => {
                fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
                recovered.removed_files += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let verified = options.verify == Verify::All || !segment.is_sealed();
        let mut offset = segment.head().layout.entries_offset;
        let mut empty = true;
        let whole = loop {
            match if verified { segment.see_verified(offset) } else { segment.see(offset) } {
                Seen::Entry(entry) => {
                    empty = false;
                    recovered.last = Some((entry.session, entry.next));
                    recovered.last_flags = entry.flags;
                    recovered.next_number = entry.number + 1;
                    offset = usize::try_from(entry.end.offset).unwrap_or(usize::MAX);
                }
                Seen::Open | Seen::Sealed => break true,
                Seen::Damaged => break false,
            }
        };
        drop(segment);
        // Also before it is removed: a reader that stands there goes on.
        seal_abandoned(&path, options.channel, offset)?;
        if empty {
            // Made ahead and never begun, or cut before its first entry.
            fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
            recovered.removed_files += usize::from(!whole);
            continue;
        }
        recovered.segments += 1;
        recovered.damaged_segments += usize::from(!whole);
    }
    Ok((recovered, next_segment))
}
