//! Nasdaq's day files (BinaryFILE 1.00): messages one after another, each behind its length in two bytes, big-endian.
//! A message of length 0 marks the end of the session. There are no packets and no sequence numbers: the n-th message
//! of the file has sequence n.

use crate::drop_reason::DropReason;

/// Walks over the messages of a file, or of the part of it that is in memory.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    offset: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    EndMarked,
    Damaged,
}

/// One message of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMessage<'a> {
    /// Where its length stands, counted from the start of the file.
    pub offset: u64,
    /// The message, without its length.
    pub bytes: &'a [u8],
}

/// A file that ends inside a message, or goes on after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDamage {
    /// Where what doesn't fit begins, counted from the start of the file.
    pub offset: u64,
    /// [`DropReason::MessageTruncated`] or [`DropReason::TrailingBytes`].
    pub reason: DropReason,
}

impl<'a> Messages<'a> {
    /// Over a whole file.
    #[must_use]
    pub fn new(file: &'a [u8]) -> Self {
        Self::resume(file, 0)
    }

    /// Over a part of a file that begins, with the length of a message, at `offset`.
    #[must_use]
    pub fn resume(part: &'a [u8], offset: u64) -> Self {
        Self { rest: part, offset, state: State::Reading }
    }

    /// Offset of what comes next.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What has not been read. After [`DropReason::MessageTruncated`], the message that is not whole: a reader that
    /// has only a part of the file puts the next part behind it and [resumes](Self::resume).
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether the mark for the end of the session was read. A file without one was cut, or is not complete yet.
    #[must_use]
    pub fn has_end_mark(&self) -> bool {
        self.state == State::EndMarked
    }

    fn damage(&mut self, reason: DropReason) -> FileDamage {
        self.state = State::Damaged;
        FileDamage { offset: self.offset, reason }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<FileMessage<'a>, FileDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.state {
            State::Damaged => return None,
            _ if self.rest.is_empty() => return None,
            State::EndMarked => return Some(Err(self.damage(DropReason::TrailingBytes))),
            State::Reading => {}
        }
        let offset = self.offset;
        let Some((length, rest)) = self.rest.split_first_chunk::<2>() else {
            return Some(Err(self.damage(DropReason::MessageTruncated)));
        };
        let length_bytes = u16::from_be_bytes(*length);
        let Some((bytes, rest)) = rest.split_at_checked(usize::from(length_bytes)) else {
            return Some(Err(self.damage(DropReason::MessageTruncated)));
        };
        self.rest = rest;
        self.offset += 2 + u64::from(length_bytes);
        if length_bytes == 0 {
            self.state = State::EndMarked;
            return self.next();
        }
        Some(Ok(FileMessage { offset, bytes }))
    }
}

/// Writing end: appends a message. `false`, and nothing appended, when it is empty (that is the end mark) or longer
/// than its length can say.
pub fn write_message(out: &mut Vec<u8>, message: &[u8]) -> bool {
    match u16::try_from(message.len()) {
        Ok(length) if length > 0 => {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(message);
            true
        }
        _ => false,
    }
}

/// Appends the mark for the end of the session.
pub fn write_end_mark(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}
