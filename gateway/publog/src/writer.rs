//! The only writer of a log.

use std::{
    collections::VecDeque,
    fs::{self, File},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    Checksum, Entry, LogError, Position, ReaderGroup, SessionBytes,
    access::{create_log_directory, grant_existing},
    directory::{lock_path, remove_unfinished, segment_numbers, segment_path},
    retention::{Retention, SegmentExchange, SegmentMaintenance},
    segment::{
        EntryHeader, EntryState, IndexSlot, Layout, REPEATED_MAX, ReadSegment, SegmentHeader, WriteSegment,
        seal_after_crash, try_lock,
    },
};

/// Configuration of a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Directory of its segments; created if it does not exist. One log per directory.
    pub directory: PathBuf,
    /// Id of the channel. It is written into each segment, so that logs cannot be mixed up.
    pub channel: u16,
    /// Size of each segment file. Large enough that maintenance (about a microsecond per page) makes one while the
    /// worst burst fills another.
    pub segment_bytes: usize,
    /// Maximum payload of an entry, bytes.
    pub payload_bytes_max: usize,
    /// Whether entries carry a checksum.
    pub checksum: Checksum,
    /// Limits for old segments.
    pub retention: Retention,
    /// Number of segments made ahead, 1 to 8.
    pub ready_segments: usize,
    /// Group whose members may read the log. `None`: files are made as the umask says.
    pub reader_group: Option<ReaderGroup>,
    /// Size, bytes, of each of the two private memory areas that are used while no segment is ready.
    pub private_bytes: usize,
}

impl LogOptions {
    /// Defaults for that directory: 64 MiB segments, 512 MiB in all, payloads of one Ethernet frame.
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
            reader_group: None,
            private_bytes: 1 << 20,
        }
    }
}

/// A log opened for writing.
#[derive(Debug)]
pub struct OpenedLog {
    /// Writes the log, for the producing thread.
    pub writer: Writer,
    /// Makes and unlinks segments, for a cold thread.
    pub maintenance: SegmentMaintenance,
    /// What was found on opening.
    pub recovered: LogRecovery,
}

/// What an earlier writer left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRecovery {
    /// Segments kept.
    pub segments: usize,
    /// Segments with an entry that is damaged or not whole; they were truncated there.
    pub damaged_segments: usize,
    /// Files with a damaged header; they were removed.
    pub removed_files: usize,
    /// The last whole entry: its session and `next`.
    pub last: Option<(SessionBytes, u64)>,
    /// The writer's own flags of that entry.
    pub last_flags: u16,
    /// Number of the next entry.
    pub next_number: u64,
}

/// Opens the log for writing and keeps its entries. `now_ns`: ns since 1970 UTC.
///
/// # Errors
/// If sizes do not fit together, another writer has the log, the directory has a segment of another channel or version, or
/// the operating system returns an error.
pub fn open(options: LogOptions, now_ns: u64) -> Result<OpenedLog, LogError> {
    let layout = Layout::new(options.segment_bytes, options.payload_bytes_max)?;
    let private_layout = Layout::new(options.private_bytes, options.payload_bytes_max)?;
    create_log_directory(&options.directory, options.reader_group)?;
    let path = lock_path(&options.directory);
    // For its owner alone: whoever may read a file may lock it with flock(2), and keep the writer out.
    let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = lock.map_err(LogError::io("open", &path))?;
    if !try_lock(&lock).map_err(LogError::io("lock", &path))? {
        return Err(LogError::Busy { path: options.directory });
    }
    check_ownership(&options)?;
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
    let shared = Arc::new(SegmentExchange::new(options.ready_segments.clamp(1, 8), next_segment));
    if let Some(group) = options.reader_group {
        for number in segment_numbers(&options.directory)? {
            grant_existing(&segment_path(&options.directory, number), group)?;
        }
    }
    let mut maintenance = SegmentMaintenance::new(&options, header, next_segment, Arc::clone(&shared));
    let current = maintenance.make_first(now_ns)?;
    maintenance.run_once(now_ns);
    let writer = Writer {
        payload_bytes_max: layout.payload_bytes_max,
        older_areas: VecDeque::with_capacity(OLDER_AREAS_MAX + 1),
        current: LogArea::file(current),
        spare,
        entry: None,
        repeated: Vec::with_capacity(REPEATED_MAX),
        next_number: recovered.next_number,
        counts: WriterCounts::default(),
        shared,
        _lock: lock,
    };
    Ok(OpenedLog { writer, maintenance, recovered })
}

/// Appends entries. Makes no system call, allocates nothing, never waits. Owned by one thread at a time.
///
/// `begin`, any number of `append` and `truncate`, then `commit` or `abandon`.
#[derive(Debug)]
pub struct Writer {
    current: LogArea,
    /// Segments that the publisher may still have to send, oldest first; at most [`OLDER_AREAS_MAX`].
    older_areas: VecDeque<LogArea>,
    /// Private areas that are not in use.
    spare: Vec<WriteSegment>,
    entry: Option<OpenEntry>,
    /// Lasting entries in private memory, which the next file repeats; at most [`REPEATED_MAX`].
    repeated: Vec<EntryHeader>,
    payload_bytes_max: usize,
    next_number: u64,
    counts: WriterCounts,
    shared: Arc<SegmentExchange>,
    _lock: File,
}

/// Counters of a [`Writer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Entries committed.
    pub entries: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Segments begun.
    pub segments: u64,
    /// Times that private memory was used because no segment was ready.
    pub segments_not_ready: u64,
    /// Entries in private memory: published, but missing for readers.
    pub entries_private: u64,
    /// Areas released before the publisher had sent all of their entries.
    pub areas_evicted: u64,
}

#[derive(Debug)]
struct OpenEntry {
    session: SessionBytes,
    first: u64,
    payload_bytes: usize,
}

/// A part of the log that is mapped in this process.
#[derive(Debug)]
struct LogArea {
    number: u64,
    /// Added to offsets to form positions: 0 for files.
    base: u64,
    kind: AreaKind,
    /// Offset of the first entry for the publisher: behind repeated entries, which it has sent already.
    begin_offset: usize,
    segment: WriteSegment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AreaKind {
    File,
    Private,
}

impl LogArea {
    /// An area in a file, which may have repeated entries by now.
    fn file(segment: WriteSegment) -> Self {
        Self { number: segment.number(), base: 0, kind: AreaKind::File, begin_offset: segment.end(), segment }
    }

    fn begin(&self) -> Position {
        Position { segment: self.number, offset: self.base + self.begin_offset as u64 }
    }

    fn end(&self) -> Position {
        Position { segment: self.number, offset: self.base + self.segment.end() as u64 }
    }
}

impl Writer {
    /// Begins an entry that covers sequences from `first` on. An uncommitted entry is abandoned.
    #[inline]
    pub fn begin(&mut self, session: SessionBytes, first: u64) {
        if !self.current.segment.has_room() || self.current.kind == AreaKind::Private {
            self.roll_segment();
        }
        self.entry = Some(OpenEntry { session, first, payload_bytes: 0 });
    }

    /// Whether an entry is open, that is neither committed nor abandoned.
    #[must_use]
    pub fn has_open_entry(&self) -> bool {
        self.entry.is_some()
    }

    /// Maximum payload of an entry, bytes.
    #[must_use]
    pub fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    /// Free bytes in the open entry; 0 without one.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.entry.as_ref().map_or(0, |entry| self.payload_bytes_max - entry.payload_bytes)
    }

    /// Appends `bytes` to the open entry. Returns `false`, and appends nothing, if there is no [room](Self::room).
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(entry) = self.entry.as_mut() else { return false };
        let end = entry.payload_bytes + bytes.len();
        let Some(room) = self.current.segment.payload().get_mut(entry.payload_bytes..end) else { return false };
        room.copy_from_slice(bytes);
        entry.payload_bytes = end;
        true
    }

    /// Removes what was appended to the open entry beyond its first `payload_bytes`.
    pub fn truncate(&mut self, payload_bytes: usize) {
        if let Some(entry) = self.entry.as_mut() {
            entry.payload_bytes = entry.payload_bytes.min(payload_bytes);
        }
    }

    /// Commits the open entry, and returns its position; `None` without an open entry. `ts_commit`: ns since 1970 UTC.
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

    /// Commits the open entry, which has no content, so that no reader misses it: an entry in private memory is repeated in
    /// the next file, ahead of that file's own entries. [`Self::pending`] does not return the repeated one.
    pub fn commit_lasting(&mut self, next: u64, flags: u16, ts_commit: u64) -> Option<Position> {
        let (number, entry) = (self.next_number, self.entry.as_ref()?);
        debug_assert_eq!(entry.payload_bytes, 0);
        let (session, first) = (entry.session, entry.first);
        let position = self.commit(next, 0, flags, ts_commit)?;
        if self.current.kind == AreaKind::Private {
            if self.repeated.len() == REPEATED_MAX {
                self.repeated.remove(0);
            }
            self.repeated.push(EntryHeader { number, session, first, next, ts_commit, frame_count: 0, flags });
        }
        Some(position)
    }

    /// Abandons the open entry: no reader has seen it.
    pub fn abandon(&mut self) {
        self.entry = None;
    }

    /// Position where the next entry begins, if it fits the segment.
    #[must_use]
    pub fn end(&self) -> Position {
        self.current.end()
    }

    /// Committed entries from `from` on, for the publisher: in this process' own mapping, without system calls and
    /// page faults. `None` if the position is no longer mapped here. Read it with a [`Reader`](crate::Reader) then,
    /// until the reader reaches [`Self::end`].
    ///
    /// The iterator continues across segment borders.
    #[inline]
    #[must_use]
    pub fn pending(&self, from: Position) -> Option<Pending<'_>> {
        let area_index = (0..=self.older_areas.len()).rev().find(|index| {
            let area = self.area(*index);
            area.begin() <= from && from <= area.end()
        })?;
        Some(Pending { writer: self, area_index, at: from })
    }

    /// A position known to [`Self::pending`], not far before the first entry of `session` that covers `sequence` or a
    /// later one. `None` if an older such entry may exist outside this memory: use a [`Reader`](crate::Reader) then.
    #[must_use]
    pub fn pending_before(&self, session: SessionBytes, sequence: u64) -> Option<Position> {
        (0..=self.older_areas.len()).rev().find_map(|index| {
            let area = self.area(index);
            let is_before =
                |slot: &IndexSlot| slot.session == session && slot.first < sequence && slot.offset >= area.begin_offset;
            let slot = area.segment.slots().rev().find(is_before)?;
            Some(Position { segment: area.number, offset: area.base + slot.offset as u64 })
        })
    }

    /// The oldest position known to [`Self::pending`].
    #[must_use]
    pub fn oldest_pending(&self) -> Position {
        self.area(0).begin()
    }

    /// The publisher has sent all entries before `position` (from [`Pending::position`]), so their memory can be
    /// released.
    #[inline]
    pub fn release_before(&mut self, position: Position) {
        while self.older_areas.front().is_some_and(|area| area.end() < position) {
            self.release_oldest();
        }
    }

    /// Counters since the log was opened.
    #[must_use]
    pub fn counts(&self) -> &WriterCounts {
        &self.counts
    }

    fn area(&self, index: usize) -> &LogArea {
        self.older_areas.get(index).unwrap_or(&self.current)
    }

    /// Continues in the next segment, or in private memory if none is ready.
    #[cold]
    fn roll_segment(&mut self) {
        if let Some(mut segment) = self.shared.ready.pop() {
            self.counts.segments += 1;
            self.shared.current.store(segment.number(), Relaxed);
            for header in self.repeated.drain(..) {
                segment.commit(&header, 0);
            }
            self.replace_current(LogArea::file(segment));
            return;
        }
        if self.current.segment.has_room() {
            return;
        }
        self.counts.segments_not_ready += 1;
        if self.spare.is_empty() {
            let oldest_private = self.older_areas.iter().position(|area| area.kind == AreaKind::Private);
            // Both private areas are in use and one is current, so the other is in this list.
            while oldest_private.is_some() && self.spare.is_empty() {
                self.counts.areas_evicted += 1;
                self.release_oldest();
            }
        }
        let Some(mut segment) = self.spare.pop() else { return };
        segment.reset();
        let base = self.current.base + self.current.segment.segment_bytes() as u64;
        let (number, begin_offset) = (self.current.number, segment.end());
        self.replace_current(LogArea { number, base, kind: AreaKind::Private, begin_offset, segment });
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
            // Unmapping is slow, so maintenance does it. The writer does it only if maintenance starved.
            AreaKind::File => drop(self.shared.retired.push(area.segment)),
        }
    }
}

/// Iterator over committed entries: see [`Writer::pending`].
#[derive(Clone, Debug)]
pub struct Pending<'a> {
    writer: &'a Writer,
    area_index: usize,
    at: Position,
}

impl Pending<'_> {
    /// Position of the next entry.
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

/// Maximum number of segments behind the current one that stay mapped for the publisher.
const OLDER_AREAS_MAX: usize = 3;

/// Refuses a directory with a segment of another channel or version, before anything in it is changed: a wrong path in a
/// configuration must not cost another channel its log.
fn check_ownership(options: &LogOptions) -> Result<(), LogError> {
    for number in segment_numbers(&options.directory)? {
        let path = segment_path(&options.directory, number);
        match ReadSegment::open(&path, options.channel) {
            Ok(segment) if segment.header().number != number => {
                let reason = "its number is not that of its name";
                return Err(LogError::ForeignSegment { path, channel: options.channel, reason });
            }
            // Its header is damaged: `recover` removes it.
            Ok(_) | Err(LogError::NotASegment { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Seals the segments that an earlier writer left open. Returns the number for the next segment.
fn recover(options: &LogOptions) -> Result<(LogRecovery, u64), LogError> {
    let mut recovered = LogRecovery::default();
    let mut next_segment = 1;
    for number in segment_numbers(&options.directory)? {
        next_segment = number + 1;
        let path = segment_path(&options.directory, number);
        let segment = match ReadSegment::open(&path, options.channel) {
            Ok(segment) => segment,
            Err(LogError::NotASegment { .. }) => {
                fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
                recovered.removed_files += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut offset = segment.header().layout.entries_offset;
        let mut has_no_entry = true;
        let is_intact = loop {
            match segment.entry_at(offset) {
                EntryState::Entry(entry) => {
                    has_no_entry = false;
                    recovered.last = Some((entry.session, entry.next));
                    recovered.last_flags = entry.flags;
                    recovered.next_number = entry.number.saturating_add(1);
                    offset = usize::try_from(entry.end.offset).unwrap_or(usize::MAX);
                }
                EntryState::Uncommitted | EntryState::Sealed => break true,
                EntryState::Damaged => break false,
            }
        };
        drop(segment);
        // Sealed even before its removal, so that a reader positioned there advances.
        seal_after_crash(&path, options.channel, offset)?;
        if has_no_entry {
            // The segment was made ahead and never used, or it was truncated before its first entry.
            fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
            recovered.removed_files += usize::from(!is_intact);
            continue;
        }
        recovered.segments += 1;
        recovered.damaged_segments += usize::from(!is_intact);
    }
    Ok((recovered, next_segment))
}
