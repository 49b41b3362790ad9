//! Reading a log, from any process.

use std::path::{Path, PathBuf};

use crate::{
    Entry, LogError, Position, SessionBytes,
    directory::{segment_numbers, segment_path},
    segment::{ReadSegment, Seen, Slot},
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
    lost: u64,
}

/// What [`Reader::seek`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// The next entry is the first that settles the sequence or something after it.
    Found,
    /// It is gone, or never was: the next entry is the oldest there is, of that session if any is there.
    Oldest,
    /// It has not been written yet: the next entry is the one behind the last of that session.
    Ahead,
}

impl Reader {
    /// Opens the log in `directory` at the oldest entry there is. The log need not have been begun.
    ///
    /// # Errors
    /// When the directory can't be listed or a file in it is no segment of that channel.
    pub fn open(directory: impl Into<PathBuf>, channel: u16) -> Result<Self, LogError> {
        let mut reader =
            Self { directory: directory.into(), channel, segment: None, offset: 0, expected_number: None, lost: 0 };
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
        self.go_to_entry();
        let Seen::Entry(entry) = self.segment.as_ref()?.see(self.offset) else { return None };
        self.offset = offset_of(entry.end);
        self.lost += self.expected_number.map_or(0, |expected| entry.number.saturating_sub(expected));
        self.expected_number = Some(entry.number.saturating_add(1));
        Some(entry)
    }

    /// The next entry without going on to the one behind it.
    #[inline]
    pub fn peek(&mut self) -> Option<Entry<'_>> {
        self.go_to_entry();
        match self.segment.as_ref()?.see(self.offset) {
            Seen::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// The entries ahead in the segment that [`Self::peek`] has gone to, without going on: [`Self::skip_to`] does.
    #[inline]
    pub fn ahead(&self) -> impl Iterator<Item = Entry<'_>> {
        let segment = self.segment.as_ref();
        let mut offset = self.offset;
        std::iter::from_fn(move || match segment?.see(offset) {
            Seen::Entry(entry) => {
                offset = offset_of(entry.end);
                Some(entry)
            }
            _ => None,
        })
    }

    /// Goes to the end of an entry that [`Self::ahead`] gave. Other places are not gone to.
    pub fn skip_to(&mut self, end: Position) {
        while end.segment == self.position().segment && offset_of(end) > self.offset && self.next().is_some() {}
    }

    /// Where it stands.
    #[must_use]
    pub fn position(&self) -> Position {
        self.segment.as_ref().map_or_else(Position::default, |segment| Position {
            segment: segment.head().number,
            offset: self.offset as u64,
        })
    }

    /// Entries that were missing between two that were read one after the other: their segment was unlinked before
    /// this reader came to it, or they went to the writer's private memory.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Goes to the oldest entry there is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_oldest(&mut self) -> Result<(), LogError> {
        self.segment = None;
        self.expected_number = None;
        self.go_to_segment_from(0)
    }

    /// Goes behind the last entry there is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek_end(&mut self) -> Result<(), LogError> {
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map(number)? else { continue };
            let begin = segment.head().layout.entries_offset;
            if matches!(segment.see(begin), Seen::Open) {
                // Made ahead: unless the one before it is sealed, the log has not come here.
                continue;
            }
            let last = segment.slots().rev().find(|slot| segment.is_sound(slot));
            let from = last.map_or(begin, |slot| slot.offset);
            self.stand(segment, from);
            while self.next().is_some() {}
            return Ok(());
        }
        self.seek_oldest()
    }

    /// Session and `next` of the last entry there is. Leaves the reader behind it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn last(&mut self) -> Result<Option<(SessionBytes, u64)>, LogError> {
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map(number)? else { continue };
            let slot = segment.slots().rev().find(|slot| segment.is_sound(slot));
            let begin = segment.head().layout.entries_offset;
            let from = slot.map_or(begin, |slot| slot.offset);
            self.stand(segment, from);
            let mut last = None;
            while let Some(entry) = self.next() {
                last = Some((entry.session, entry.next));
            }
            // One that was made ahead has nothing yet.
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    /// Goes to the first entry of `session` that settles `sequence` or something after it, all parts of a message
    /// that was cut included.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn seek(&mut self, session: SessionBytes, sequence: u64) -> Result<Sought, LogError> {
        let Some((segment, offset, is_before)) = self.find_slot(session, sequence)? else {
            self.seek_oldest()?;
            return Ok(Sought::Oldest);
        };
        self.stand(segment, offset);
        if !is_before {
            // The session's first entry there is. It may begin at the very sequence.
            let found = self.peek().is_some_and(|entry| entry.first <= sequence);
            return Ok(if found { Sought::Found } else { Sought::Oldest });
        }
        loop {
            match self.peek().map(|entry| (entry.session == session, entry.first, entry.next)) {
                Some((true, first, next)) if next > sequence || first >= sequence => return Ok(Sought::Found),
                Some((true, ..)) => _ = self.next(),
                Some((false, ..)) | None => return Ok(Sought::Ahead),
            }
        }
    }

    /// What the log holds of a session: `[first, next)`, `None` if nothing. Leaves the reader behind the session's last
    /// entry.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn range_of(&mut self, session: SessionBytes) -> Result<Option<(u64, u64)>, LogError> {
        self.seek(session, 0)?;
        let Some(first) = self.peek().filter(|entry| entry.session == session).map(|entry| entry.first) else {
            return Ok(None);
        };
        let mut range = (first, first);
        let Some((segment, offset, _)) = self.find_slot(session, u64::MAX)? else { return Ok(None) };
        self.stand(segment, offset);
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
    pub fn first_session(&self, is_wanted: impl Fn(SessionBytes) -> bool) -> Result<Option<SessionBytes>, LogError> {
        for number in segment_numbers(&self.directory)? {
            let Some(segment) = self.map(number)? else { continue };
            let slot = segment.slots().find(|slot| is_wanted(slot.session) && segment.is_sound(slot));
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
        let Some(segment) = self.map(position.segment)? else { return Ok(false) };
        let offset = offset_of(position);
        let is_outside = offset < segment.head().layout.entries_offset || segment.ends_before(offset);
        if is_outside || matches!(segment.see(offset), Seen::Damaged) {
            return Ok(false);
        }
        self.stand(segment, offset);
        Ok(true)
    }

    /// The last index slot of the session before `sequence` and `true`, else the first of the session and `false`.
    fn find_slot(&self, session: SessionBytes, sequence: u64) -> Result<Option<(ReadSegment, usize, bool)>, LogError> {
        let mut oldest = None;
        for number in segment_numbers(&self.directory)?.into_iter().rev() {
            let Some(segment) = self.map(number)? else { continue };
            let is_of_session = |slot: &Slot| slot.session == session && segment.is_sound(slot);
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

    fn stand(&mut self, segment: ReadSegment, offset: usize) {
        self.segment = Some(segment);
        self.offset = offset;
        self.expected_number = None;
    }

    /// Goes on over the borders of segments, if it stands at one.
    #[inline]
    fn go_to_entry(&mut self) {
        let beyond = match self.segment.as_ref().map(|segment| segment.see(self.offset)) {
            Some(Seen::Open | Seen::Entry(_)) => return,
            // What is cut or damaged goes no further; what comes behind it shows in `lost`.
            Some(Seen::Sealed | Seen::Damaged) => self.position().segment.saturating_add(1),
            None => 0,
        };
        self.cross(beyond);
    }

    #[cold]
    fn cross(&mut self, beyond: u64) {
        let mut beyond = beyond;
        // A segment can be sealed without an entry; more than a few of them in a row there are not.
        for _ in 0..EMPTY_SEGMENTS_MAX {
            let before = self.position();
            // Trouble with the directory is as good as nothing new: the next call tries again.
            if self.go_to_segment_from(beyond).is_err() || self.position() == before {
                return;
            }
            match self.segment.as_ref().map(|segment| segment.see(self.offset)) {
                Some(Seen::Sealed | Seen::Damaged) => beyond = self.position().segment.saturating_add(1),
                _ => return,
            }
        }
    }

    /// Goes to the beginning of the lowest segment from `number` on, if there is one.
    fn go_to_segment_from(&mut self, number: u64) -> Result<(), LogError> {
        let mut found = if number > 0 { self.map(number)? } else { None };
        if found.is_none() {
            for number in segment_numbers(&self.directory)?.into_iter().filter(|candidate| *candidate >= number) {
                found = self.map(number)?;
                if found.is_some() {
                    break;
                }
            }
        }
        if let Some(segment) = found {
            self.offset = segment.head().layout.entries_offset;
            self.segment = Some(segment);
        }
        Ok(())
    }

    /// `None` when it isn't there, or was unlinked since the directory was listed.
    fn map(&self, number: u64) -> Result<Option<ReadSegment>, LogError> {
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
