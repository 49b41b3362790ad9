//! The definitions of the session so far, which a late joiner needs first.

use mdgw_feeds::{
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameKind},
    published::packet::Frames,
};
use mdgw_publog::{Reader, SessionBytes};
use zerocopy::IntoBytes;

/// Follows a channel's log and stores the frames that define or name instruments: definition and symbol mapping
/// records. They remain here after their segments are deleted from the log.
#[derive(Debug)]
pub(super) struct Definitions {
    reader: Reader,
    session: Option<SessionBytes>,
    /// Complete frames back to back, and the end of each.
    bytes: Vec<u8>,
    frame_ends: Vec<usize>,
    bytes_max: usize,
    /// Frames of this session for which there was no room.
    dropped: u64,
    /// Position of the log in `session`.
    next: u64,
}

impl Definitions {
    /// Starts at the oldest entry of the log.
    pub(super) fn new(reader: Reader, bytes_max: usize) -> Self {
        Self { reader, session: None, bytes: Vec::new(), frame_ends: Vec::new(), bytes_max, dropped: 0, next: 0 }
    }

    /// Reads at most that many entries. Returns whether there may be more.
    pub(super) fn follow(&mut self, entries_max: usize) -> bool {
        for _ in 0..entries_max {
            let Some(entry) = self.reader.next() else { return false };
            if self.session != Some(entry.session) {
                self.session = Some(entry.session);
                (self.dropped, self.next) = (0, 0);
                self.bytes.clear();
                self.frame_ends.clear();
            }
            self.next = entry.next;
            for (header, body) in Frames::of_body(entry.payload) {
                let flags = FrameFlags(header.flags);
                let is_whole = flags.contains(FrameFlags::FIRST_PART) && flags.contains(FrameFlags::LAST_PART);
                if header.kind != FrameKind::Message as u8 || !is_whole || !defines(body) {
                    continue;
                }
                if self.bytes.len() + FRAME_HEADER_BYTES + body.len() > self.bytes_max {
                    self.dropped += 1;
                    continue;
                }
                self.bytes.extend_from_slice(header.as_bytes());
                self.bytes.extend_from_slice(body);
                self.frame_ends.push(self.bytes.len());
            }
        }
        true
    }

    /// The session of the log's latest entry, if there is one.
    pub(super) fn session(&self) -> Option<SessionBytes> {
        self.session
    }

    /// Number of stored frames; their numbers begin at 0.
    pub(super) fn count(&self) -> u64 {
        self.frame_ends.len() as u64
    }

    /// Frames for which there was no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Position of the log in the session.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// As many frames from number `first` on as fit into `bytes_max`: their bytes, and the number after the last.
    pub(super) fn packet_from(&self, first: u64, bytes_max: usize) -> Option<(&[u8], u64)> {
        let first = usize::try_from(first).ok()?;
        let begin = if first == 0 { 0 } else { *self.frame_ends.get(first - 1)? };
        let fitting = self.frame_ends.get(first..)?.iter().take_while(|end| **end - begin <= bytes_max).count();
        let end = *self.frame_ends.get(first..first + fitting)?.last()?;
        Some((self.bytes.get(begin..end)?, (first + fitting) as u64))
    }
}

/// Whether any record of a frame's body defines or names an instrument. A record's first byte is its length in units
/// of four bytes, its second byte its type.
fn defines(body: &[u8]) -> bool {
    let mut rest = body;
    while let [length, record_type, ..] = *rest {
        if record_type == INSTRUMENT_DEFINITION || record_type == SYMBOL_MAPPING {
            return true;
        }
        match rest.get(4 * usize::from(length)..) {
            Some(rest_after) if length > 0 => rest = rest_after,
            _ => return false,
        }
    }
    false
}

const INSTRUMENT_DEFINITION: u8 = dbn::enums::rtype::INSTRUMENT_DEF;
const SYMBOL_MAPPING: u8 = dbn::enums::rtype::SYMBOL_MAPPING;
