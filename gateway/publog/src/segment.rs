//! One segment: its layout in mapped memory. Only this module accesses that memory.
//!
//! ```text
//!  header words (8 bytes each)                    written by
//!    0  magic, 8 version|channel|checksum,        maintenance, before the rename
//!   16  number, 24 segment_bytes,
//!   32  slot_count_max|payload_bytes_max,
//!   40  created_ns, 48 CRC-32C of the above
//!  128  slot_count                                writer (release)
//!  256  sealed_at                                 writer, once
//! ```
//! An index slot: session (2 words), first, offset. Slots are only appended.

#![allow(unsafe_code, reason = "memory that other processes map")]

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    Checksum, Entry, LogError, Position, SessionBytes,
    commit::{self, CommitState, CommitWord},
};

/// Bytes of an entry before its payload.
pub(crate) const ENTRY_HEADER_BYTES: usize = 64;
/// Maximum number of repeated entries in a segment: one for each session that ended while the log had no file.
pub(crate) const REPEATED_MAX: usize = 8;

/// Sizes of a segment, derived from two parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: usize,
    pub(crate) payload_bytes_max: usize,
    pub(crate) slot_count_max: usize,
    pub(crate) entries_offset: usize,
}

impl Layout {
    pub(crate) fn new(segment_bytes: usize, payload_bytes_max: usize) -> Result<Self, LogError> {
        let slot_count_max = segment_bytes / INDEX_INTERVAL_BYTES + SESSION_SLOTS;
        let entries_offset = HEADER_BYTES + slot_count_max * SLOT_BYTES;
        let layout = Self { segment_bytes, payload_bytes_max, slot_count_max, entries_offset };
        let bytes_min = entries_offset + REPEATED_MAX * ENTRY_HEADER_BYTES + 4 * layout.entry_bytes_max() + WORD_BYTES;
        let is_valid = segment_bytes.is_multiple_of(PAGE_BYTES)
            && u32::try_from(segment_bytes).is_ok()
            && u32::try_from(payload_bytes_max).is_ok()
            && bytes_min <= segment_bytes;
        if is_valid { Ok(layout) } else { Err(LogError::Sizes { segment_bytes, payload_bytes_max }) }
    }

    fn entry_bytes_max(&self) -> usize {
        (ENTRY_HEADER_BYTES + self.payload_bytes_max).next_multiple_of(WORD_BYTES)
    }
}

/// The part of a segment's header that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) channel: u16,
    pub(crate) checksum: Checksum,
    pub(crate) number: u64,
    pub(crate) created_ns: u64,
    pub(crate) layout: Layout,
}

/// Content at a position where an entry could begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryState<'a> {
    /// Not committed yet.
    Uncommitted,
    /// A committed entry.
    Entry(Entry<'a>),
    /// Sealed: the log continues in the next segment.
    Sealed,
    /// Invalid lengths, or a wrong checksum.
    Damaged,
}

/// A segment mapped by a reader. Committed bytes do not change while the shared lock is held, so slices of them are sound
/// for as long as the mapping lives, even after the file is unlinked.
#[derive(Debug)]
pub(crate) struct ReadSegment {
    map: MmapRaw,
    header: SegmentHeader,
    /// Holds the shared lock: dropped after the mapping.
    _locked: File,
}

impl ReadSegment {
    /// Maps an existing segment for reading.
    pub(crate) fn open(path: &Path, channel: u16) -> Result<Self, LogError> {
        let file = open_shared(path)?;
        let map = map_existing(&file, path, channel, |options, file| options.map_raw_read_only(file))?;
        let header = read_header(&map).map_err(|fault| fault.into_error(path, channel))?;
        if header.channel != channel {
            return Err(HeaderFault::Foreign("it belongs to another channel").into_error(path, channel));
        }
        Ok(Self { map, header, _locked: file })
    }

    /// The channel in the segment's header.
    pub(crate) fn channel_of(path: &Path) -> Result<u16, LogError> {
        let file = open_shared(path)?;
        let map = map_existing(&file, path, 0, |options, file| options.map_raw_read_only(file))?;
        let header = read_header(&map).map_err(|fault| fault.into_error(path, 0))?;
        Ok(header.channel)
    }

    pub(crate) fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The content at `offset`, lengths checked, for an offset that [`Self::entry_at`] has found intact.
    #[inline]
    pub(crate) fn intact_entry_at(&self, offset: usize) -> EntryState<'_> {
        entry_at(&self.map, self.header.number, 0, offset)
    }

    /// The content at `offset`, lengths and checksum checked. A disk, or a machine that failed before it wrote all pages of
    /// a file, can damage any segment, so every entry is checked before it is used.
    #[inline]
    pub(crate) fn entry_at(&self, offset: usize) -> EntryState<'_> {
        match self.intact_entry_at(offset) {
            EntryState::Entry(entry) if self.header.checksum == Checksum::Crc32c => {
                let crc = committed_crc(&self.map, offset, entry.payload.len());
                let is_intact = matches!(commit::observe(word(&self.map, offset)), CommitState::Committed { crc: stored, .. } if stored == crc);
                if is_intact { EntryState::Entry(entry) } else { EntryState::Damaged }
            }
            other => other,
        }
    }

    /// Offset at which the segment is sealed, or was truncated later.
    fn sealed_at(&self) -> Option<usize> {
        let at = usize::try_from(word(&self.map, SEALED_AT).load(Relaxed)).unwrap_or(0);
        (at >= self.header.layout.entries_offset && matches!(self.entry_at(at), EntryState::Sealed)).then_some(at)
    }

    /// Whether the segment has an end before `offset`. After a machine failure, the disk may hold entries and slots
    /// beyond the point of truncation. They are ignored.
    pub(crate) fn ends_before(&self, offset: usize) -> bool {
        self.sealed_at().is_some_and(|end| end < offset)
    }

    /// Index slots, oldest first. After a crash they may refer to lost entries, so [`Self::is_valid_slot`] must check
    /// each one.
    pub(crate) fn slots(&self) -> impl DoubleEndedIterator<Item = IndexSlot> + '_ {
        slots(&self.map, &self.header)
    }

    /// Whether the slot points to the entry that it describes.
    pub(crate) fn is_valid_slot(&self, slot: &IndexSlot) -> bool {
        !self.ends_before(slot.offset)
            && matches!(self.entry_at(slot.offset), EntryState::Entry(entry) if entry.session == slot.session && entry.first == slot.first)
    }
}

/// One index slot: maps a sequence to an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexSlot {
    pub(crate) session: SessionBytes,
    pub(crate) first: u64,
    pub(crate) offset: usize,
}

/// A segment mapped by its only writer.
#[derive(Debug)]
pub(crate) struct WriteSegment {
    map: MmapRaw,
    header: SegmentHeader,
    /// Inode of the file; 0 for private memory.
    inode: u64,
    /// Where the next entry begins. Nothing at or beyond it is committed.
    end: usize,
    slot_count: usize,
    next_slot_offset: usize,
    slot_session: SessionBytes,
}

/// Fields of an entry's header, without its lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryHeader {
    pub(crate) number: u64,
    pub(crate) session: SessionBytes,
    pub(crate) first: u64,
    pub(crate) next: u64,
    pub(crate) ts_commit: u64,
    pub(crate) frame_count: u16,
    pub(crate) flags: u16,
}

impl WriteSegment {
    /// Creates the file at `path`, which must not exist, with reserved space and all pages present.
    pub(crate) fn create(path: &Path, header: SegmentHeader) -> Result<Self, LogError> {
        let file =
            File::options().read(true).write(true).create_new(true).open(path).map_err(LogError::io("create", path))?;
        reserve(&file, header.layout.segment_bytes).map_err(LogError::io("reserve space for", path))?;
        let map =
            MmapOptions::new().len(header.layout.segment_bytes).map_raw(&file).map_err(LogError::io("map", path))?;
        let inode = file.metadata().map_err(LogError::io("stat", path))?.ino();
        Ok(Self { inode, ..Self::new(map, header) })
    }

    /// Private memory in the layout of a segment, all pages present.
    pub(crate) fn private(header: SegmentHeader) -> io::Result<Self> {
        let map = MmapOptions::new().len(header.layout.segment_bytes).map_anon()?;
        Ok(Self::new(map.into(), header))
    }

    fn new(map: MmapRaw, header: SegmentHeader) -> Self {
        if map.advise(Advice::PopulateWrite).is_err() {
            // Kernels before 5.14: one store per page has the same effect.
            for offset in (0..map.len()).step_by(PAGE_BYTES) {
                word(&map, offset).store(0, Relaxed);
            }
        }
        let end = header.layout.entries_offset;
        let segment = Self { map, header, inode: 0, end, slot_count: 0, next_slot_offset: 0, slot_session: [0; 16] };
        segment.store_header();
        segment
    }

    fn store_header(&self) {
        for (index, value) in header_words(&self.header).into_iter().enumerate() {
            word(&self.map, index * WORD_BYTES).store(value, Relaxed);
        }
    }

    /// Whether `file` is the file of this segment.
    pub(crate) fn is_file(&self, file: &File) -> bool {
        self.inode != 0 && file.metadata().is_ok_and(|metadata| metadata.ino() == self.inode)
    }

    /// Makes this segment, which no reader maps, an empty one with another header of the same layout. Its pages stay
    /// present. Its bytes stay as remains of earlier use, as [`commit::commit`] permits.
    pub(crate) fn reuse(mut self, header: SegmentHeader) -> Self {
        debug_assert_eq!(self.header.layout, header.layout);
        self.header = header;
        self.reset();
        word(&self.map, SEALED_AT).store(0, Relaxed);
        self.store_header();
        self
    }

    pub(crate) fn number(&self) -> u64 {
        self.header.number
    }

    /// Where the next entry begins.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    pub(crate) fn segment_bytes(&self) -> usize {
        self.header.layout.segment_bytes
    }

    /// Whether there is room for an entry of the maximum size and the word after it.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.end + self.header.layout.entry_bytes_max() + WORD_BYTES <= self.map.len()
    }

    /// Memory for the payload of the next entry. Its content is undefined remains of earlier use.
    #[inline]
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        assert!(self.has_room());
        let begin = self.map.as_mut_ptr().wrapping_add(self.end + ENTRY_HEADER_BYTES);
        // SAFETY: from_raw_parts_mut demands valid memory that no other code accesses while the slice lives. By
        // `has_room` the range lies inside the mapping, which `self` owns. The range lies beyond `end`: readers, in
        // this or other processes, read no byte beyond the commit word at `end` until that word is stored. Storing it
        // takes `&mut self` and so ends this borrow. No second writer exists: the directory is locked.
        unsafe { std::slice::from_raw_parts_mut(begin, self.header.layout.payload_bytes_max) }
    }

    /// Commits the entry whose payload is the first `payload_bytes` of [`Self::payload`].
    #[inline]
    pub(crate) fn commit(&mut self, entry: &EntryHeader, payload_bytes: usize) {
        assert!(self.has_room() && payload_bytes <= self.header.layout.payload_bytes_max);
        let begin = self.end;
        let [session_low, session_high] = session_words(entry.session);
        let sizes = payload_bytes as u64 | u64::from(entry.frame_count) << 32 | u64::from(entry.flags) << 48;
        let words = [entry.number, session_low, session_high, entry.first, entry.next, entry.ts_commit, sizes];
        for (index, value) in words.into_iter().enumerate() {
            word(&self.map, begin + (index + 1) * WORD_BYTES).store(value, Relaxed);
        }
        let crc = match self.header.checksum {
            Checksum::Crc32c => committed_crc(&self.map, begin, payload_bytes),
            Checksum::Off => 0,
        };
        let length_bytes = (ENTRY_HEADER_BYTES + payload_bytes).next_multiple_of(WORD_BYTES);
        let length = u32::try_from(length_bytes).unwrap_or_else(|_| unreachable!("a segment is smaller than 4 GiB"));
        self.end = begin + length_bytes;
        commit::commit(word(&self.map, begin), word(&self.map, self.end), length, crc);
        if begin >= self.next_slot_offset || entry.session != self.slot_session {
            self.push_slot(entry, begin);
        }
    }

    /// Seals the segment at its current end.
    pub(crate) fn seal(&mut self) {
        word(&self.map, SEALED_AT).store(self.end as u64, Relaxed);
        commit::seal(word(&self.map, self.end));
    }

    /// Removes every entry. Only for memory that no reader maps.
    pub(crate) fn reset(&mut self) {
        self.end = self.header.layout.entries_offset;
        self.slot_count = 0;
        self.next_slot_offset = 0;
        self.slot_session = [0; 16];
        word(&self.map, SLOT_COUNT).store_release(0);
        word(&self.map, self.end).store_release(0);
    }

    /// The content at `offset`; `base` is added to positions.
    #[inline]
    pub(crate) fn entry_at(&self, number: u64, base: u64, offset: usize) -> EntryState<'_> {
        entry_at(&self.map, number, base, offset)
    }

    /// Index slots, oldest first.
    pub(crate) fn slots(&self) -> impl DoubleEndedIterator<Item = IndexSlot> + '_ {
        slots(&self.map, &self.header)
    }

    /// Adds an index slot for the entry at `offset`. The index is sparse, so a full table is no error: the scan from
    /// the last slot only gets longer.
    fn push_slot(&mut self, entry: &EntryHeader, offset: usize) {
        if self.slot_count >= self.header.layout.slot_count_max {
            return;
        }
        let [session_low, session_high] = session_words(entry.session);
        let values = [session_low, session_high, entry.first, offset as u64];
        for (word, value) in slot_words(&self.map, self.slot_count).into_iter().zip(values) {
            word.store(value, Relaxed);
        }
        self.slot_count += 1;
        self.next_slot_offset = offset + INDEX_INTERVAL_BYTES;
        self.slot_session = entry.session;
        word(&self.map, SLOT_COUNT).store_release(self.slot_count as u64);
    }
}

/// Seals an existing segment at `offset`, where its last whole entry ends. Its writer must be gone.
pub(crate) fn seal_after_crash(path: &Path, channel: u16, offset: usize) -> Result<(), LogError> {
    let file = File::options().read(true).write(true).open(path).map_err(LogError::io("open", path))?;
    let map = map_existing(&file, path, channel, |options, file| options.map_raw(file))?;
    if offset.checked_add(WORD_BYTES).is_none_or(|end| end > map.len()) {
        // Truncated inside its last entry: there is no word to store, and readers end at the end of the file.
        return Ok(());
    }
    word(&map, SEALED_AT).store(offset as u64, Relaxed);
    commit::seal(word(&map, offset));
    Ok(())
}

/// Opens a file for reading, with the shared lock that keeps the file from being reused. A file that is being reused
/// counts as not found.
fn open_shared(path: &Path) -> Result<File, LogError> {
    let file = File::open(path).map_err(LogError::io("open", path))?;
    if lock_range(&file, libc::F_RDLCK).map_err(LogError::io("lock", path))? {
        return Ok(file);
    }
    Err(LogError::io("open", path)(io::ErrorKind::NotFound.into()))
}

/// Locks a segment file that is open for writing against readers, for as long as it is open; `false` if a reader maps it.
pub(crate) fn try_lock_for_reuse(file: &File) -> io::Result<bool> {
    lock_range(file, libc::F_WRLCK)
}

/// Gives up this open file description's lock.
pub(crate) fn unlock(file: &File) {
    // Cannot fail: there is a lock to give up, and no memory is needed for a whole file.
    let unlocked = lock_range(file, libc::F_UNLCK);
    debug_assert!(unlocked.is_ok());
}

/// Locks the whole file without waiting, for this open file description; `false` if another one holds a conflicting lock.
/// Not flock(2): with read permission alone, anybody could lock readers out.
fn lock_range(file: &File, kind: libc::c_int) -> io::Result<bool> {
    let lock = libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(io::Error::other)?,
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: fcntl(2) reads one flock through the pointer, which is to a live local, and `file` keeps the descriptor open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Locks a file for as long as it is open; `false` if another process has locked it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reserves space in the file, so that a store into its mapping can never meet a full disk.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Not fallocate(2), which rustix has: glibc writes to each block where a file system cannot reserve space.
    // SAFETY: posix_fallocate(3) takes a descriptor, which `file` keeps open over the call, and touches no memory of
    // ours.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn map_existing(
    file: &File,
    path: &Path,
    channel: u16,
    map: impl FnOnce(&MmapOptions, &File) -> io::Result<MmapRaw>,
) -> Result<MmapRaw, LogError> {
    let bytes = file.metadata().map_err(LogError::io("stat", path))?.len();
    // Whole words only, so that no word extends beyond the end of the file.
    let bytes = usize::try_from(bytes).unwrap_or(0) / WORD_BYTES * WORD_BYTES;
    if bytes < HEADER_BYTES {
        return Err(not_a_segment(path, channel, "shorter than a segment header"));
    }
    map(MmapOptions::new().len(bytes), file).map_err(LogError::io("map", path))
}

fn not_a_segment(path: &Path, channel: u16, reason: &'static str) -> LogError {
    LogError::NotASegment { path: path.to_owned(), channel, reason }
}

#[inline]
fn entry_at(map: &MmapRaw, number: u64, base: u64, offset: usize) -> EntryState<'_> {
    if !offset.is_multiple_of(WORD_BYTES) || offset.checked_add(WORD_BYTES).is_none_or(|end| end > map.len()) {
        return EntryState::Damaged;
    }
    let length_bytes = match commit::observe(word(map, offset)) {
        CommitState::Uncommitted => return EntryState::Uncommitted,
        CommitState::Sealed => return EntryState::Sealed,
        CommitState::Committed { length_bytes, .. } => length_bytes as usize,
    };
    if length_bytes < ENTRY_HEADER_BYTES || offset.checked_add(length_bytes).is_none_or(|end| end > map.len()) {
        return EntryState::Damaged;
    }
    let at = |index: usize| word(map, offset + index * WORD_BYTES).load(Relaxed);
    let sizes = at(7);
    let payload_bytes = (sizes & 0xffff_ffff) as usize;
    if length_bytes != (ENTRY_HEADER_BYTES + payload_bytes).next_multiple_of(WORD_BYTES) {
        return EntryState::Damaged;
    }
    EntryState::Entry(Entry {
        position: Position { segment: number, offset: base + offset as u64 },
        end: Position { segment: number, offset: base + (offset + length_bytes) as u64 },
        number: at(1),
        session: session_from_words([at(2), at(3)]),
        first: at(4),
        next: at(5),
        ts_commit: at(6),
        frame_count: (sizes >> 32 & 0xffff) as u16,
        flags: (sizes >> 48) as u16,
        payload: bytes(map, offset + ENTRY_HEADER_BYTES, payload_bytes),
    })
}

/// CRC-32C of an entry from after its commit word to the end of its payload. For committed entries, or for the entry
/// that the writer is about to commit.
fn committed_crc(map: &MmapRaw, offset: usize, payload_bytes: usize) -> u32 {
    crc32c::crc32c(bytes(map, offset + WORD_BYTES, ENTRY_HEADER_BYTES - WORD_BYTES + payload_bytes))
}

/// The word at `offset`.
#[inline]
fn word(map: &MmapRaw, offset: usize) -> &AtomicU64 {
    assert!(offset.is_multiple_of(WORD_BYTES) && offset + WORD_BYTES <= map.len());
    let at = map.as_mut_ptr().wrapping_add(offset).cast::<AtomicU64>();
    // SAFETY: a reference demands aligned, live memory. A mapping begins at a page and `offset` is a multiple of 8 and
    // inside it, both asserted; it lives as long as `map` is borrowed. All access to these words is atomic, and a
    // mapping made for reading is only ever loaded from, which atomics of this size may do on read-only memory.
    unsafe { &*at }
}

/// Bytes that are no longer written. Private to this module: callers ensure that the range is committed or, in the
/// writer, owned and not being written.
#[inline]
fn bytes(map: &MmapRaw, offset: usize, length: usize) -> &[u8] {
    assert!(offset.checked_add(length).is_some_and(|end| end <= map.len()));
    let at = map.as_ptr().wrapping_add(offset);
    // SAFETY: from_raw_parts demands initialised memory, inside one mapping (asserted), that is not written while the
    // slice lives. Callers pass ranges behind a commit word they loaded (acquire): the writer, which only moves forward,
    // writes committed bytes never again. Maintenance reuses a file only under the exclusive lock, so not while a reader
    // maps it (`ReadSegment` holds the shared lock), and takes the writer's segment by value, which ends every borrow. The
    // file is never truncated, so no page goes away. Private memory is reset by `&mut` alone, which ends every borrow.
    unsafe { std::slice::from_raw_parts(at, length) }
}

fn slots<'a>(map: &'a MmapRaw, header: &SegmentHeader) -> impl DoubleEndedIterator<Item = IndexSlot> + use<'a> {
    let count = word(map, SLOT_COUNT).load_acquire();
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(header.layout.slot_count_max);
    (0..count).map(move |index| {
        let [low, high, first, offset] = slot_words(map, index).map(|word| word.load(Relaxed));
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        IndexSlot { session: session_from_words([low, high]), first, offset }
    })
}

fn slot_words(map: &MmapRaw, index: usize) -> [&AtomicU64; 4] {
    let begin = HEADER_BYTES + index * SLOT_BYTES;
    [0, 1, 2, 3].map(|number| word(map, begin + number * WORD_BYTES))
}

fn session_words(session: SessionBytes) -> [u64; 2] {
    zerocopy::transmute!(session)
}

fn session_from_words(words: [u64; 2]) -> SessionBytes {
    zerocopy::transmute!(words)
}

fn header_words(header: &SegmentHeader) -> [u64; 7] {
    let checksum = match header.checksum {
        Checksum::Off => 0,
        Checksum::Crc32c => 1,
    };
    let mut words = [
        MAGIC,
        VERSION | u64::from(header.channel) << 32 | checksum << 48,
        header.number,
        header.layout.segment_bytes as u64,
        header.layout.slot_count_max as u64 | (header.layout.payload_bytes_max as u64) << 32,
        header.created_ns,
        0,
    ];
    words[6] = header_crc(&words);
    words
}

fn header_crc(words: &[u64; 7]) -> u64 {
    words[..6].iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_ne_bytes())).into()
}

fn read_header(map: &MmapRaw) -> Result<SegmentHeader, HeaderFault> {
    use HeaderFault::{Damaged, Foreign};
    let words: [u64; 7] = std::array::from_fn(|index| word(map, index * WORD_BYTES).load(Relaxed));
    if words[0] != MAGIC {
        return Err(Damaged("wrong magic number"));
    }
    if !(VERSION_OLDEST..=VERSION).contains(&(words[1] & 0xffff_ffff)) {
        return Err(Foreign("another version of the format"));
    }
    if words[6] != header_crc(&words) {
        return Err(Damaged("header checksum mismatch"));
    }
    let size = |value: u64| usize::try_from(value).unwrap_or(0);
    let layout = Layout::new(size(words[3]), size(words[4] >> 32))
        .map_err(|_| Damaged("sizes in the header are out of range"))?;
    if layout.slot_count_max as u64 != words[4] & 0xffff_ffff || map.len() < layout.entries_offset {
        return Err(Damaged("truncated inside the index"));
    }
    Ok(SegmentHeader {
        channel: (words[1] >> 32 & 0xffff) as u16,
        checksum: if words[1] >> 48 & 1 == 1 { Checksum::Crc32c } else { Checksum::Off },
        number: words[2],
        created_ns: words[5],
        layout,
    })
}

/// Why a header is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderFault {
    /// No writer left it like this: a crash of the machine, or a failing disk.
    Damaged(&'static str),
    /// It is another writer's.
    Foreign(&'static str),
}

impl HeaderFault {
    fn into_error(self, path: &Path, channel: u16) -> LogError {
        match self {
            Self::Damaged(reason) => not_a_segment(path, channel, reason),
            Self::Foreign(reason) => LogError::ForeignSegment { path: path.to_owned(), channel, reason },
        }
    }
}

/// First word of a segment file: `MDGWPLOG`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"MDGWPLOG");
/// Version of this layout. Version 2 differs from 1 in nothing but this number: it refuses readers that do not lock what
/// they map. No segment of version 1 is reused, since it is of an earlier run.
const VERSION: u64 = 2;
const VERSION_OLDEST: u64 = 1;
const WORD_BYTES: usize = 8;
const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = PAGE_BYTES;
/// Offset of the slot count: 128 bytes from the fixed words, so that readers polling the header share no cache line
/// with the writer's stores.
const SLOT_COUNT: usize = 128;
const SEALED_AT: usize = 256;
const SLOT_BYTES: usize = 32;
/// Distance between two index slots, bytes. A lookup scans at most this many bytes of entries from its slot: some 12
/// full packets.
const INDEX_INTERVAL_BYTES: usize = 16 << 10;
/// Slots reserved for changes of session, in addition to those for entries.
const SESSION_SLOTS: usize = 64;

// Files are little-endian, as is everything published.
const _: () = assert!(cfg!(target_endian = "little"));
