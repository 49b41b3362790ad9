//! Joins the parts of a message, in memory of a fixed size.

use zerocopy::little_endian::U16;

use crate::{
    frame::{FrameFlags, FrameHeader},
    identity::Sequence,
};

/// The message being joined. The arbiter delivers parts in order.
#[derive(Debug)]
pub(super) struct Assembly {
    header: Option<FrameHeader>,
    next_part: u16,
    bytes: Vec<u8>,
    is_broken: bool,
}

/// Result of adding a part.
#[derive(Debug)]
pub(super) enum JoinOutcome<'a> {
    /// More parts follow.
    Incomplete,
    /// That was the last part: the message's header, and its records from all parts.
    Whole(FrameHeader, &'a [u8]),
    /// The last part of a message that cannot be delivered: too large, or its beginning is missing.
    Broken,
}

impl Assembly {
    pub(super) fn new(message_bytes_max: usize) -> Self {
        Self { header: None, next_part: 0, bytes: Vec::with_capacity(message_bytes_max), is_broken: false }
    }

    /// Discards the parts so far.
    pub(super) fn clear(&mut self) {
        self.header = None;
    }

    /// The message of which some parts, but not the last, were added.
    pub(super) fn incomplete_message(&self) -> Option<Sequence> {
        self.header.map(|header| Sequence(header.sequence.get()))
    }

    pub(super) fn add_part(&mut self, header: &FrameHeader, body: &[u8]) -> JoinOutcome<'_> {
        let part = header.part.get();
        if part == 0 {
            self.header = Some(*header);
            self.next_part = 0;
            self.bytes.clear();
            self.is_broken = false;
        }
        let flags = FrameFlags(header.flags);
        let is_last = flags.contains(FrameFlags::LAST_PART);
        let continues = self.header.is_some_and(|first| first.sequence == header.sequence) && part == self.next_part;
        match &mut self.header {
            Some(whole) if continues => {
                self.next_part = self.next_part.saturating_add(1);
                if self.bytes.len() + body.len() > self.bytes.capacity() {
                    self.is_broken = true;
                } else {
                    self.bytes.extend_from_slice(body);
                }
                if part > 0 {
                    whole.record_count = U16::new(whole.record_count.get().saturating_add(header.record_count.get()));
                    whole.flags |= header.flags;
                }
            }
            _ => self.is_broken = true,
        }
        if !is_last {
            return JoinOutcome::Incomplete;
        }
        match self.header.take() {
            Some(mut whole) if !self.is_broken => {
                whole.flags |= FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0;
                whole.body_bytes = U16::new(u16::try_from(self.bytes.len()).unwrap_or(u16::MAX));
                JoinOutcome::Whole(whole, &self.bytes)
            }
            _ => JoinOutcome::Broken,
        }
    }
}
