//! Nasdaq's day files (BinaryFILE 1.00): messages one after another, each with a two-byte big-endian length prefix. A
//! message of length 0 marks the end of the session. There are no packets and no sequence numbers: the n-th message
//! of the file has sequence n.

use mdgw_wire::drop_reason::DropReason;

/// Iterates over the messages of a file, or of the part of it that is in memory.
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
    /// Offset of its length prefix from the start of the file.
    pub offset: u64,
    /// The message, without its length.
    pub bytes: &'a [u8],
}

/// A file that ends inside a message, or continues after its end mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDamage {
    /// Offset of the first invalid byte from the start of the file.
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

    /// For a part of a file that begins at `offset` with a length prefix.
    #[must_use]
    pub(crate) fn resume(part: &'a [u8], offset: u64) -> Self {
        Self { rest: part, offset, state: State::Reading }
    }

    /// Offset of the next message.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes that were not read. After [`DropReason::MessageTruncated`], the incomplete message: a reader with a
    /// part of the file appends the next part and [resumes](Self::resume).
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether the end mark was read. A file without it was truncated, or is not complete yet.
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

/// Appends a message. Returns `false`, and appends nothing, if the message is empty (that is the end mark) or too
/// long for its length prefix.
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

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn file(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(messages.iter().all(|message| write_message(&mut bytes, message)));
        bytes
    }

    proptest! {
        /// Truncated at any byte, a file yields every whole message, and then the offset of the rest.
        #[test]
        fn a_truncated_file_yields_its_complete_messages(messages in vec(vec(any::<u8>(), 1..40), 0..20), cut in any::<prop::sample::Index>()) {
            let whole = file(&messages);
            let cut = cut.index(whole.len() + 1);
            let mut walk = Messages::new(&whole[..cut]);
            let mut offset = 0;
            for message in &messages {
                let end = offset + 2 + message.len();
                if end > cut {
                    break;
                }
                prop_assert_eq!(walk.next(), Some(Ok(FileMessage { offset: offset as u64, bytes: message })));
                offset = end;
            }
            let damage = FileDamage { offset: offset as u64, reason: DropReason::MessageTruncated };
            prop_assert_eq!(walk.next(), (offset < cut).then_some(Err(damage)));
            prop_assert_eq!(walk.next(), None);
            prop_assert_eq!(walk.rest(), &whole[offset..cut]);

            // With the next part appended, reading continues as if the file had never been truncated.
            let rest = [walk.rest(), &whole[cut..]].concat();
            let resumed = Messages::resume(&rest, walk.offset()).collect::<Result<Vec<_>, _>>().unwrap();
            let uncut = Messages::new(&whole).collect::<Result<Vec<_>, _>>().unwrap();
            prop_assert!(uncut.ends_with(&resumed));
            prop_assert_eq!(resumed.first().map_or(whole.len() as u64, |message| message.offset), offset as u64);
        }

        #[test]
        fn consumed_and_remaining_bytes_add_up(bytes in vec(0_u8..4, 0..200)) {
            let mut walk = Messages::new(&bytes);
            let mut consumed = 0;
            for message in walk.by_ref().filter_map(Result::ok) {
                consumed += 2 + message.bytes.len();
            }
            consumed += if walk.has_end_mark() { 2 } else { 0 };
            prop_assert!(walk.rest().len() + consumed <= bytes.len());
            prop_assert_eq!(walk.offset() + walk.rest().len() as u64, bytes.len() as u64);
        }
    }

    #[test]
    fn the_end_mark_ends_the_file() {
        let mut bytes = file(&[b"abc".to_vec()]);
        assert!(!Messages::new(&bytes).has_end_mark());
        write_end_mark(&mut bytes);
        let mut walk = Messages::new(&bytes);
        assert_eq!(walk.next(), Some(Ok(FileMessage { offset: 0, bytes: b"abc" })));
        assert!(!walk.has_end_mark());
        assert_eq!(walk.next(), None);
        assert!(walk.has_end_mark());

        bytes.extend_from_slice(b"\0\x01a");
        let mut walk = Messages::new(&bytes);
        assert!(walk.next().unwrap().is_ok());
        assert_eq!(walk.next(), Some(Err(FileDamage { offset: 7, reason: DropReason::TrailingBytes })));
        assert_eq!(walk.next(), None);
    }

    #[test]
    fn empty_and_oversized_messages_are_not_written() {
        let mut bytes = Vec::new();
        assert!(!write_message(&mut bytes, b""));
        assert!(!write_message(&mut bytes, &vec![0; 65_536]));
        assert!(bytes.is_empty());
        assert!(write_message(&mut bytes, &vec![0; 65_535]));
    }
}
