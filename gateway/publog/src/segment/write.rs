//! The writer's side of a segment.

#![allow(unsafe_code, reason = "memory that other processes map")]

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::Path,
    sync::atomic::Ordering::Relaxed,
};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{
    ENTRY_HEADER_BYTES, EntryState, INDEX_INTERVAL_BYTES, IndexSlot, MAGIC, PAGE_BYTES, SEALED_AT, SLOT_COUNT,
    SegmentHeader, VERSION, WORD_BYTES, committed_crc, entry_at, header_crc, lock_range, map_existing, slot_words,
    slots, word,
};
use crate::{
    Checksum, LogError, SessionBytes,
    access::{ReaderGroup, create_file},
    commit::{self, CommitWord},
};

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
    pub(crate) fn create(path: &Path, header: SegmentHeader, group: Option<ReaderGroup>) -> Result<Self, LogError> {
        let file = create_file(path, group)?;
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

fn session_words(session: SessionBytes) -> [u64; 2] {
    zerocopy::transmute!(session)
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
