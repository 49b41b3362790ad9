//! Reading a log, from any process.

use std::path::{Path, PathBuf};

use crate::{
    Entry, LogError, Position, SessionBytes,
    directory::{segment_numbers, segment_path},
    segment::{EntryState, IndexSlot, ReadSegment},
};

/// Follows a log. Within a segment, [`next`](Self::next) makes no system call; segments stay readable for as long as
/// they are mapped here, even when they have been unlinked.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    channel: u16,
    segment: Option<ReadSegment>,
    offset: usize,
    /// Number of the next entry, while entries are read one after the other.
    expected_number: Option<u64>,
    lost_entries: u64,
}

/// What [`Reader::seek`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekResult {
    /// The next entry is the first that settles the sequence or something after it.
    Found,
    /// It is gone, or never was: the next entry is the oldest there is, of that session if any is there.
    OldestAvailable,
    /// It has not been written yet: the next entry is the one behind the last of that session.
    NotYetWritten,
}

impl Reader {
    /// Opens the log in `directory` at the oldest entry there is. The log need not have been begun.
    ///
    /// # Errors
    /// When the directory can't be listed or a file in it is no segment of that channel.
    pub fn open(directory: impl Into<PathBuf>, channel: u16) -> Result<Self, LogError> {
        let mut reader = Self {
            directory: directory.into(),
            channel,
            segment: None,
            offset: 0,
            expected_number: None,
            lost_entries: 0,
        };
        reader.seek_oldest()?;
        Ok(reader)
    }

    /// The channel whose log lies in `directory`; `None` where there is no segment.
    ///
    /// # Errors
    /// When the directory can't be listed or its first segment is none.
    pub fn channel_of(directory: &Path) -> Result<Option<u16>, LogError> {
        let Some(number) = segment_numbers(directory)?.into_iter().next() else { return Ok(None) };
        ReadSegment::channel_of(&segment_path(directory, number)).map(Some)
    }

    /// The next entry, or `None` while there is none.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an entry borrows from its reader")]
    pub fn next(&mut self) -> Option<Entry<'_>> {
        self.advance_to_entry();
        let EntryState::Entry(entry) = self.segment.as_ref()?.entry_at(self.offset) else { return None };
        self.offset = offset_of(entry.end);
        self.lost_entries += self.expected_number.map_or(0, |expected| entry.number.saturating_sub(expected));
        self.expected_number = Some(entry.number.saturating_add(1));
        Some(entry)
    }

    /// The next entry without going on to the one behind it.
    #[inline]
    pub fn peek(&mut self) -> Option<Entry<'_>> {
        self.advance_to_entry();
        match self.segment.as_ref()?.entry_at(self.offset) {
            EntryState::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// The entries ahead in the segment that [`Self::peek`] has gone to, without going on: [`Self::skip_to`] does.
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

    /// Goes to the end of an entry that [`Self::entries_ahead`] gave. Other places are not gone to.
    pub fn skip_to(&mut self, end: Position) {
        while end.segment == self.position().segment && offset_of(end) > self.offset && self.next().is_some() {}
    }

    /// Where it stands.
    #[must_use]
    pub fn position(&self) -> Position {
        self.segment.as_ref().map_or_else(Position::default, |segment| Position {
            segment: segment.header().number,
            offset: self.offset as u64,
        })
    }

    /// Entries that were missing between two that were read one after the other: their segment was unlinked before
    /// this reader came to it, or they went to the writer's private memory.
    #[must_use]
    pub fn lost_entries(&self) -> u64 {
        self.lost_entries
    }

    /// Goes to the oldest entry there is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_oldest(&mut self) -> Result<(), LogError> {
        self.segment = None;
        self.expected_number = None;
        self.open_segment_from(0)
    }

    /// Goes behind the last entry there is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_end(&mut self) -> Result<(), LogError> {
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map_segment(number)? else { continue };
            let begin = segment.header().layout.entries_offset;
            if matches!(segment.entry_at(begin), EntryState::Uncommitted) {
                // Made ahead: unless the one before it is sealed, the log has not come here.
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

    /// Session and `next` of the last entry there is. Leaves the reader behind it.
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
            // One that was made ahead has nothing yet.
            if last_entry.is_some() {
                return Ok(last_entry);
            }
        }
        Ok(None)
    }

    /// Goes to the first entry of `session` that settles `sequence` or something after it, all parts of a message
    /// that was cut included.
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
            // The session's first entry there is. It may begin at the very sequence.
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

    /// What the log holds of a session: `[first, next)`, `None` if nothing. Leaves the reader behind the session's last
    /// entry.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn session_range(&mut self, session: SessionBytes) -> Result<Option<(u64, u64)>, LogError> {
        self.seek(session, 0)?;
        let Some(first) = self.peek().filter(|entry| entry.session == session).map(|entry| entry.first) else {
            return Ok(None);
        };
        let mut range = (first, first);
        let Some((segment, offset, _)) = self.find_slot(session, u64::MAX)? else { return Ok(None) };
        self.move_to(segment, offset);
        while let Some(entry) = self.peek().filter(|entry| entry.session == session) {
            range.1 = entry.next;
            self.next();
        }
        Ok(Some(range))
    }

    /// The oldest session of those that are wanted.
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

    /// Goes to a place that a [`Reader`], or the log's writer, has named. `false` when it is gone or in the writer's
    /// private memory; the reader is then where it was.
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

    /// The last index slot of the session before `sequence` and `true`, else the first of the session and `false`.
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
        self.segment = Some(segment);
        self.offset = offset;
        self.expected_number = None;
    }

    /// Goes on over the borders of segments, if it stands at one.
    #[inline]
    fn advance_to_entry(&mut self) {
        let next_segment = match self.segment.as_ref().map(|segment| segment.entry_at(self.offset)) {
            Some(EntryState::Uncommitted | EntryState::Entry(_)) => return,
            // What is cut or damaged goes no further; what comes behind it shows in `lost_entries`.
            Some(EntryState::Sealed | EntryState::Damaged) => self.position().segment.saturating_add(1),
            None => 0,
        };
        self.cross_segment(next_segment);
    }

    #[cold]
    fn cross_segment(&mut self, next_segment: u64) {
        let mut next_segment = next_segment;
        // A segment can be sealed without an entry; more than a few of them in a row there are not.
        for _ in 0..EMPTY_SEGMENTS_MAX {
            let before = self.position();
            // Trouble with the directory is as good as nothing new: the next call tries again.
            if self.open_segment_from(next_segment).is_err() || self.position() == before {
                return;
            }
            match self.segment.as_ref().map(|segment| segment.entry_at(self.offset)) {
                Some(EntryState::Sealed | EntryState::Damaged) => {
                    next_segment = self.position().segment.saturating_add(1)
                }
                _ => return,
            }
        }
    }

    /// Goes to the beginning of the lowest segment from `number` on, if there is one.
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
            self.offset = segment.header().layout.entries_offset;
            self.segment = Some(segment);
        }
        Ok(())
    }

    /// `None` when it isn't there, or was unlinked since the directory was listed.
    fn map_segment(&self, number: u64) -> Result<Option<ReadSegment>, LogError> {
        match ReadSegment::open(&segment_path(&self.directory, number), self.channel) {
            Ok(segment) => Ok(Some(segment)),
            Err(LogError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn offset_of(position: Position) -> usize {
    usize::try_from(position.offset).unwrap_or(usize::MAX)
}

const EMPTY_SEGMENTS_MAX: usize = 16;
