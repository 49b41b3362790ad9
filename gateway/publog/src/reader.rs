//! Reads a log, from any process.

use std::path::{Path, PathBuf};

use crate::{
    Entry, LogError, Position, SessionBytes,
    directory::{segment_numbers, segment_path},
    segment::{CopyState, EntryState, IndexSlot, ReadSegment},
};

pub use crate::segment::EntryCopy;

/// Reads a log's entries in order. Within a segment, [`next`](Self::next) makes no system call. Segments stay
/// readable for as long as they are mapped here, even after they were removed.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    channel: u16,
    segment: Option<ReadSegment>,
    offset: usize,
    /// Offset of an entry in the segment whose checksum was found right; 0 if there is none. A look ahead and the read behind it
    /// compute it once.
    intact_offset: usize,
    /// Number of the next entry, while entries are read consecutively.
    expected_number: Option<u64>,
    lost_entries: u64,
    /// What [`Self::session_range`] found last.
    oldest_of_session: Option<OldestOfSession>,
}

/// Where a session begins in a log. Holds as long as no segment is removed, since removal begins with the lowest one.
#[derive(Clone, Copy, Debug)]
struct OldestOfSession {
    session: SessionBytes,
    lowest_segment: u64,
    /// First sequence of the oldest entry.
    first: u64,
}

/// Result of [`Reader::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekResult {
    /// The next entry is the first that covers the sequence or a later one.
    Found,
    /// The sequence is gone, or never existed. The next entry is the oldest one of that session if any exists, else
    /// the oldest of the log.
    OldestAvailable,
    /// The sequence is not written yet. The next entry is the one after the session's last entry.
    NotYetWritten,
}

/// A log's extent in one session: `[first, next)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRange {
    /// First sequence of the oldest entry.
    pub first: u64,
    /// First sequence behind the last entry.
    pub next: u64,
    /// The writer's own flags of the last entry.
    pub last_flags: u16,
}

impl Reader {
    /// Opens the log in `directory` at its oldest entry. The log may still be empty.
    ///
    /// # Errors
    /// If the directory cannot be listed or a file in it is not a segment of that channel.
    pub fn open(directory: impl Into<PathBuf>, channel: u16) -> Result<Self, LogError> {
        let mut reader = Self {
            directory: directory.into(),
            channel,
            segment: None,
            offset: 0,
            intact_offset: 0,
            expected_number: None,
            lost_entries: 0,
            oldest_of_session: None,
        };
        reader.seek_oldest()?;
        Ok(reader)
    }

    /// The channel of the log in `directory`; `None` if there is no segment.
    ///
    /// # Errors
    /// If the directory cannot be listed or its first segment is invalid.
    pub fn channel_of(directory: &Path) -> Result<Option<u16>, LogError> {
        let Some(number) = segment_numbers(directory)?.into_iter().next() else { return Ok(None) };
        ReadSegment::channel_of(&segment_path(directory, number)).map(Some)
    }

    /// The next entry, or `None` if it is not committed yet.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an entry borrows from its reader")]
    pub fn next(&mut self) -> Option<Entry<'_>> {
        if !self.advance_to_entry() {
            return None;
        }
        let EntryState::Entry(entry) = self.segment.as_ref()?.intact_entry_at(self.offset) else { return None };
        self.offset = offset_of(entry.end);
        let missing = self.expected_number.map_or(0, |expected| entry.number.saturating_sub(expected));
        self.lost_entries = self.lost_entries.saturating_add(missing);
        self.expected_number = Some(entry.number.saturating_add(1));
        Some(entry)
    }

    /// Copies the next entry, checks the copy and returns it; `None` if the entry is not committed yet. For a reader that does
    /// not trust whoever can write the files: nothing is read twice, and nothing refers to shared memory. Within a segment there is
    /// no system call. Truncation by others is the one thing that cannot be checked: see the crate's documentation.
    ///
    /// # Errors
    /// If the next segment cannot be opened, or the log ends with a damaged entry. The reader stays where it was.
    #[inline]
    pub fn next_copied<'copy>(&mut self, copy: &'copy mut EntryCopy) -> Result<Option<Entry<'copy>>, LogError> {
        let mut state = self.segment.as_ref().map(|segment| segment.copy_entry_at(self.offset, copy));
        if matches!(state, None | Some(CopyState::Sealed | CopyState::Damaged)) {
            state = self.copy_from_next_segment(copy, state == Some(CopyState::Damaged))?;
        }
        if state != Some(CopyState::Copied) {
            return Ok(None);
        }
        let Some(entry) = copy.entry() else { return Ok(None) };
        self.offset = offset_of(entry.end);
        let missing = self.expected_number.map_or(0, |expected| entry.number.saturating_sub(expected));
        self.lost_entries = self.lost_entries.saturating_add(missing);
        self.expected_number = Some(entry.number.saturating_add(1));
        Ok(Some(entry))
    }

    #[cold]
    fn copy_from_next_segment(
        &mut self,
        copy: &mut EntryCopy,
        is_damaged: bool,
    ) -> Result<Option<CopyState>, LogError> {
        let before = self.position();
        let next_segment = if self.segment.is_some() { before.segment.saturating_add(1) } else { 0 };
        let has_entry = self.cross_segment(next_segment)?;
        if is_damaged && self.position() == before {
            let path = segment_path(&self.directory, before.segment);
            return Err(LogError::DamagedEntry { path, offset: before.offset });
        }
        Ok(self.segment.as_ref().filter(|_| has_entry).map(|segment| segment.copy_entry_at(self.offset, copy)))
    }

    /// Whether another log has taken the place of the one being read: somebody removed the log or renamed its directory, and the
    /// gateway has made a new one, which does not continue the old one. [`Self::seek_oldest`] moves there. `false` while there is a next
    /// entry. Makes system calls.
    ///
    /// # Errors
    /// If the directory exists and cannot be listed.
    pub fn is_replaced(&self) -> Result<bool, LogError> {
        let Some(segment) = &self.segment else { return Ok(false) };
        let path = segment_path(&self.directory, segment.header().number);
        // A sealed segment can be removed from a log that goes on.
        if segment.is_at(&path) || !matches!(segment.entry_at(self.offset), EntryState::Uncommitted) {
            return Ok(false);
        }
        match segment_numbers(&self.directory) {
            // The gateway has not made the new log yet.
            Err(error) if error.is_not_found() => Ok(false),
            numbers => Ok(!numbers?.is_empty()),
        }
    }

    /// The next entry, without advancing.
    #[inline]
    pub fn peek(&mut self) -> Option<Entry<'_>> {
        if !self.advance_to_entry() {
            return None;
        }
        match self.segment.as_ref()?.intact_entry_at(self.offset) {
            EntryState::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// The committed entries ahead in the segment of the last [`Self::peek`], without advancing: [`Self::skip_to`]
    /// advances.
    #[inline]
    pub fn entries_ahead(&self) -> impl Iterator<Item = Entry<'_>> {
        let segment = self.segment.as_ref();
        let mut offset = self.offset;
        std::iter::from_fn(move || match segment?.entry_at(offset) {
            EntryState::Entry(entry) => {
                offset = offset_of(entry.end);
                Some(entry)
            }
            _ => None,
        })
    }

    /// Advances to the end of an entry from [`Self::entries_ahead`]. Other positions are ignored.
    pub fn skip_to(&mut self, end: Position) {
        while end.segment == self.position().segment && offset_of(end) > self.offset && self.next().is_some() {}
    }

    /// Position of the next entry.
    #[must_use]
    pub fn position(&self) -> Position {
        self.segment.as_ref().map_or_else(Position::default, |segment| Position {
            segment: segment.header().number,
            offset: self.offset as u64,
        })
    }

    /// Number of entries missing between two entries read consecutively. Either their segment was unlinked before
    /// this reader reached it, or they are only in the writer's private memory.
    #[must_use]
    pub fn lost_entries(&self) -> u64 {
        self.lost_entries
    }

    /// Moves to the oldest entry.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_oldest(&mut self) -> Result<(), LogError> {
        self.segment = None;
        (self.offset, self.intact_offset) = (0, 0);
        self.expected_number = None;
        self.open_segment_from(0)
    }

    /// Moves behind the last entry.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_end(&mut self) -> Result<(), LogError> {
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map_segment(number)? else { continue };
            let begin = segment.header().layout.entries_offset;
            if matches!(segment.entry_at(begin), EntryState::Uncommitted) {
                // A segment made ahead: unless the previous segment is sealed, the log has not reached this one.
                continue;
            }
            let last_entry = segment.slots().rev().find(|slot| segment.is_valid_slot(slot));
            let from = last_entry.map_or(begin, |slot| slot.offset);
            self.move_to(segment, from);
            while self.next().is_some() {}
            return Ok(());
        }
        self.seek_oldest()
    }

    /// Session and `next` of the last entry. Leaves the reader behind that entry.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn last_entry(&mut self) -> Result<Option<(SessionBytes, u64)>, LogError> {
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map_segment(number)? else { continue };
            let slot = segment.slots().rev().find(|slot| segment.is_valid_slot(slot));
            let begin = segment.header().layout.entries_offset;
            let from = slot.map_or(begin, |slot| slot.offset);
            self.move_to(segment, from);
            let mut last_entry = None;
            while let Some(entry) = self.next() {
                last_entry = Some((entry.session, entry.next));
            }
            // A segment made ahead has no entry yet.
            if last_entry.is_some() {
                return Ok(last_entry);
            }
        }
        Ok(None)
    }

    /// Moves to the first entry of `session` that covers `sequence` or a later one, including all parts of a split
    /// message.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek(&mut self, session: SessionBytes, sequence: u64) -> Result<SeekResult, LogError> {
        let Some((segment, offset, is_before)) = self.find_slot(session, sequence)? else {
            self.seek_oldest()?;
            return Ok(SeekResult::OldestAvailable);
        };
        self.move_to(segment, offset);
        if !is_before {
            // The reader is at the session's oldest entry, which may begin at this very sequence.
            let found = self.peek().is_some_and(|entry| entry.first <= sequence);
            return Ok(if found { SeekResult::Found } else { SeekResult::OldestAvailable });
        }
        loop {
            match self.peek().map(|entry| (entry.session == session, entry.first, entry.next)) {
                Some((true, first, next)) if next > sequence || first >= sequence => return Ok(SeekResult::Found),
                Some((true, ..)) => _ = self.next(),
                Some((false, ..)) | None => return Ok(SeekResult::NotYetWritten),
            }
        }
    }

    /// The log's extent in a session, `None` if empty. Leaves the reader behind the session's last entry. Maps every segment of the
    /// session the first time, and one segment from then on until a segment is removed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn session_range(&mut self, session: SessionBytes) -> Result<Option<SessionRange>, LogError> {
        let Some(first) = self.first_of_session(session)? else { return Ok(None) };
        let mut range = SessionRange { first, next: first, last_flags: 0 };
        let Some((segment, offset, _)) = self.find_slot(session, u64::MAX)? else { return Ok(None) };
        self.move_to(segment, offset);
        while let Some(entry) = self.peek().filter(|entry| entry.session == session) {
            (range.next, range.last_flags) = (entry.next, entry.flags);
            self.next();
        }
        Ok(Some(range))
    }

    fn first_of_session(&mut self, session: SessionBytes) -> Result<Option<u64>, LogError> {
        let Some(lowest_segment) = segment_numbers(&self.directory)?.first().copied() else { return Ok(None) };
        let is_known = |known: &OldestOfSession| (known.session, known.lowest_segment) == (session, lowest_segment);
        if let Some(known) = self.oldest_of_session.filter(is_known) {
            return Ok(Some(known.first));
        }
        self.seek(session, 0)?;
        let first = self.peek().filter(|entry| entry.session == session).map(|entry| entry.first);
        self.oldest_of_session = first.map(|first| OldestOfSession { session, lowest_segment, first });
        Ok(first)
    }

    /// The oldest of the wanted sessions.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn oldest_session(&self, is_wanted: impl Fn(SessionBytes) -> bool) -> Result<Option<SessionBytes>, LogError> {
        for number in segment_numbers(&self.directory)? {
            let Some(segment) = self.map_segment(number)? else { continue };
            let slot = segment.slots().find(|slot| is_wanted(slot.session) && segment.is_valid_slot(slot));
            if let Some(slot) = slot {
                return Ok(Some(slot.session));
            }
        }
        Ok(None)
    }

    /// Moves to a position from a [`Reader`] or from the log's writer. Returns `false` if the position is gone or in
    /// the writer's private memory; the reader then does not move.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_position(&mut self, position: Position) -> Result<bool, LogError> {
        let Some(segment) = self.map_segment(position.segment)? else { return Ok(false) };
        let offset = offset_of(position);
        let is_outside = offset < segment.header().layout.entries_offset || segment.ends_before(offset);
        if is_outside || matches!(segment.entry_at(offset), EntryState::Damaged) {
            return Ok(false);
        }
        self.move_to(segment, offset);
        Ok(true)
    }

    /// The last index slot of the session before `sequence` and `true`, else the session's first slot and `false`.
    fn find_slot(&self, session: SessionBytes, sequence: u64) -> Result<Option<(ReadSegment, usize, bool)>, LogError> {
        let mut oldest = None;
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map_segment(number)? else { continue };
            let is_of_session = |slot: &IndexSlot| slot.session == session && segment.is_valid_slot(slot);
            let before = segment.slots().rev().find(|slot| slot.first < sequence && is_of_session(slot));
            if let Some(slot) = before {
                return Ok(Some((segment, slot.offset, true)));
            }
            let first_here = segment.slots().find(is_of_session).map(|slot| slot.offset);
            match first_here {
                Some(offset) => oldest = Some((segment, offset, false)),
                None if oldest.is_some() => break,
                None => {}
            }
        }
        Ok(oldest)
    }

    fn move_to(&mut self, segment: ReadSegment, offset: usize) {
        self.enter(segment, offset);
        self.expected_number = None;
    }

    fn enter(&mut self, segment: ReadSegment, offset: usize) {
        self.segment = Some(segment);
        (self.offset, self.intact_offset) = (offset, 0);
    }

    /// Advances across segment borders, if the reader is at one. Returns whether an intact entry follows.
    #[inline]
    fn advance_to_entry(&mut self) -> bool {
        // No entry begins at offset 0.
        if self.intact_offset == self.offset && self.offset > 0 {
            return true;
        }
        let next_segment = match self.segment.as_ref().map(|segment| segment.entry_at(self.offset)) {
            Some(EntryState::Uncommitted) => return false,
            Some(EntryState::Entry(_)) => {
                self.intact_offset = self.offset;
                return true;
            }
            // A truncated or damaged segment ends here. The entries behind it count in `lost_entries`.
            Some(EntryState::Sealed | EntryState::Damaged) => self.position().segment.saturating_add(1),
            None => 0,
        };
        // An error counts as no new entry: the next call tries again.
        self.cross_segment(next_segment).unwrap_or(false)
    }

    #[cold]
    fn cross_segment(&mut self, next_segment: u64) -> Result<bool, LogError> {
        let mut next_segment = next_segment;
        // A segment can be sealed without an entry; there are never more than a few of them in a row.
        for _ in 0..EMPTY_SEGMENTS_MAX {
            let before = self.position();
            self.open_segment_from(next_segment)?;
            if self.position() == before {
                return Ok(false);
            }
            match self.segment.as_ref().map(|segment| segment.entry_at(self.offset)) {
                Some(EntryState::Sealed | EntryState::Damaged) => {
                    next_segment = self.position().segment.saturating_add(1)
                }
                Some(EntryState::Entry(_)) => return Ok(true),
                Some(EntryState::Uncommitted) | None => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Moves to the beginning of the lowest segment from `number` on, if any.
    fn open_segment_from(&mut self, number: u64) -> Result<(), LogError> {
        let mut found = if number > 0 { self.map_segment(number)? } else { None };
        if found.is_none() {
            for number in segment_numbers(&self.directory)?.into_iter().filter(|candidate| *candidate >= number) {
                found = self.map_segment(number)?;
                if found.is_some() {
                    break;
                }
            }
        }
        if let Some(segment) = found {
            let offset = segment.header().layout.entries_offset;
            self.enter(segment, offset);
        }
        Ok(())
    }

    /// `None` if it does not exist, or was removed since the directory was listed.
    fn map_segment(&self, number: u64) -> Result<Option<ReadSegment>, LogError> {
        match ReadSegment::open(&segment_path(&self.directory, number), self.channel) {
            // The file was reused for another number after its name was looked up.
            Ok(segment) if segment.header().number != number => Ok(None),
            Ok(segment) => Ok(Some(segment)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn offset_of(position: Position) -> usize {
    usize::try_from(position.offset).unwrap_or(usize::MAX)
}

const EMPTY_SEGMENTS_MAX: usize = 16;
