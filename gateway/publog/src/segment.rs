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

#[cfg(feature = "writer")]
mod write;

use std::{
    fs::{File, Metadata},
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt as _},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use memmap2::{MmapOptions, MmapRaw};
use zerocopy::IntoBytes as _;

use crate::{
    Checksum, Entry, LogError, Position, SessionBytes,
    commit::{self, CommitState, CommitWord},
};

#[cfg(feature = "writer")]
pub(crate) use self::write::{EntryHeader, WriteSegment, seal_after_crash, try_lock, try_lock_for_reuse, unlock};

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
    locked: File,
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
        Ok(Self { map, header, locked: file })
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

    /// Copies the content at `offset` and checks lengths and checksum of the copy. No reference to the mapped bytes is made:
    /// the result is sound whatever another process stores meanwhile, and what was checked is what is returned.
    #[inline]
    pub(crate) fn copy_entry_at(&self, offset: usize, copy: &mut EntryCopy) -> CopyState {
        if !is_word_inside(&self.map, offset) {
            return CopyState::Damaged;
        }
        // Acquire pairs with the Release of `commit::commit`: the entry's other words are loaded as they were before it.
        let (length_bytes, crc) = match commit::observe(word(&self.map, offset)) {
            CommitState::Uncommitted => return CopyState::Uncommitted,
            CommitState::Sealed => return CopyState::Sealed,
            CommitState::Committed { length_bytes, crc } => (length_bytes as usize, crc),
        };
        let length_words = length_bytes / WORD_BYTES;
        let is_inside = offset.checked_add(length_bytes).is_some_and(|end| end <= self.map.len());
        if length_bytes < ENTRY_HEADER_BYTES || !length_bytes.is_multiple_of(WORD_BYTES) || !is_inside {
            return CopyState::Damaged;
        }
        if copy.words.len() < length_words {
            copy.words.resize(length_words, 0);
        }
        for (copied, shared) in copy.words.iter_mut().zip(words(&self.map, offset, length_words)) {
            *copied = shared.load(Relaxed);
        }
        (copy.segment, copy.offset, copy.length_bytes) = (self.header.number, offset, length_bytes);
        let Some(payload_bytes) = copy.payload_bytes() else { return CopyState::Damaged };
        if self.header.checksum == Checksum::Crc32c {
            let checked = copy.words.as_bytes().get(WORD_BYTES..ENTRY_HEADER_BYTES + payload_bytes);
            if checked.map(crc32c::crc32c) != Some(crc) {
                return CopyState::Damaged;
            }
        }
        CopyState::Copied
    }

    /// Whether the file still has that name, as far as this process can see. If not, it was removed or renamed.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        match (path.metadata(), self.locked.metadata()) {
            (Ok(at), Ok(own)) => identity(at) == identity(own),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            (Ok(_), Err(_)) => true,
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

/// An entry, copied out of a segment. The memory of one copy serves for all entries.
#[derive(Clone, Debug, Default)]
pub struct EntryCopy {
    words: Vec<u64>,
    segment: u64,
    offset: usize,
    length_bytes: usize,
}

/// What [`ReadSegment::copy_entry_at`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    Uncommitted,
    /// The copy holds an intact entry.
    Copied,
    Sealed,
    Damaged,
}

impl EntryCopy {
    /// Memory for entries with payloads of up to so many bytes. Longer ones make it grow.
    #[must_use]
    pub fn with_payload_bytes(payload_bytes_max: usize) -> Self {
        Self { words: vec![0; (ENTRY_HEADER_BYTES + payload_bytes_max).div_ceil(WORD_BYTES)], ..Self::default() }
    }

    /// The payload's length, if it agrees with the entry's.
    fn payload_bytes(&self) -> Option<usize> {
        let payload_bytes = (self.words.get(7)? & 0xffff_ffff) as usize;
        let length_bytes = (ENTRY_HEADER_BYTES + payload_bytes).next_multiple_of(WORD_BYTES);
        (length_bytes == self.length_bytes).then_some(payload_bytes)
    }

    /// The entry; `None` before the first one.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        let payload = self.words.as_bytes().get(ENTRY_HEADER_BYTES..ENTRY_HEADER_BYTES + self.payload_bytes()?)?;
        let &[_, number, session_low, session_high, first, next, ts_commit, sizes] = self.words.first_chunk::<8>()?;
        let at = |offset: usize| Position { segment: self.segment, offset: offset as u64 };
        Some(Entry {
            position: at(self.offset),
            end: at(self.offset + self.length_bytes),
            number,
            session: session_from_words([session_low, session_high]),
            first,
            next,
            ts_commit,
            frame_count: (sizes >> 32 & 0xffff) as u16,
            flags: (sizes >> 48) as u16,
            payload,
        })
    }
}

/// One index slot: maps a sequence to an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexSlot {
    pub(crate) session: SessionBytes,
    pub(crate) first: u64,
    pub(crate) offset: usize,
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
    if !is_word_inside(map, offset) {
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

fn is_word_inside(map: &MmapRaw, offset: usize) -> bool {
    offset.is_multiple_of(WORD_BYTES) && offset.checked_add(WORD_BYTES).is_some_and(|end| end <= map.len())
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

/// `count` words from `offset` on.
#[inline]
fn words(map: &MmapRaw, offset: usize, count: usize) -> &[AtomicU64] {
    assert!(offset.is_multiple_of(WORD_BYTES) && offset + count * WORD_BYTES <= map.len());
    let begin = map.as_ptr().wrapping_add(offset).cast::<AtomicU64>();
    // SAFETY: as in `word`, for `count` words: aligned and inside the mapping, both asserted, which lives as long as `map` is
    // borrowed. They are only loaded, and atomically, so no store of another process is a data race on our side.
    unsafe { std::slice::from_raw_parts(begin, count) }
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

fn session_from_words(words: [u64; 2]) -> SessionBytes {
    zerocopy::transmute!(words)
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
