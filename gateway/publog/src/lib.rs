//! Publication log: the memory-mapped, append-only log of one channel's output. One writer, any number of readers in
//! any process.
//!
//! A log is a directory of segment files of one fixed size, numbered upwards:
//!
//! ```text
//!  segment file                                   entry (8-byte aligned)
//!  0         4096            entries_offset       0        8         16        32      40     48          56        64
//!  | header | index slots … | entry | entry | …   | commit | number | session | first | next | ts_commit | sizes | payload …
//! ```
//! - An entry is complete once its commit word is stored (release, by the writer); readers load it (acquire). The
//!   word holds the entry's length and CRC-32C and is never 0. 0 means "not committed", all ones "segment sealed".
//! - Before an entry is committed, the word after it is set to 0. So memory need not be zeroed, and the remains of an
//!   unfinished entry are never read as an entry.
//! - An index slot maps session and sequence to an entry: one slot per 16 KiB, and one at each change of session.
//! - Segments are never truncated. The maintenance unlinks old ones or, where they lie in memory, reuses their files for new
//!   ones. A reader holds a shared lock (`F_OFD_SETLK` with `F_RDLCK`, the whole file) on each segment that it maps, taken
//!   before it maps, and checks that the header has the number of the file's name. A file whose exclusive lock is refused is
//!   unlinked instead. So a reader's mapping stays valid, and no reader delays the writer.
//! - A reopened log keeps its committed entries and continues in a new segment. It checks the checksum of each entry, and so
//!   does each reader: a damaged entry ends its segment.
//! - The writer makes no system call, allocates nothing and never waits. A cold thread ([`SegmentMaintenance`]) makes
//!   segments ahead and removes old ones. If no segment is ready (the thread starved, or the disk is full), the writer
//!   continues in private memory. [Publication](Writer::pending) is unaffected. Readers find those entry numbers
//!   missing once the next segment exists ([`Reader::lost_entries`]). An entry that no reader may miss
//!   ([`Writer::commit_lasting`]) is repeated at the beginning of that segment.
//!
//! Files are hostile to a reader of another user: lengths, offsets and checksums are checked before use, and
//! [`Reader::next_copied`] checks a copy. No reader is safe from a file that is truncated while it is mapped: the kernel then ends
//! the reader with SIGBUS. Nobody but the log's owner and root can truncate, and no version of the writer does.
//!
//! Out of scope: the meaning of sessions, sequences and payloads; clocks; threads.

#![cfg_attr(not(feature = "writer"), allow(dead_code, reason = "parts that only the writer uses"))]

#[cfg(feature = "writer")]
mod access;
mod commit;
mod directory;
mod error;
mod presence;
mod reader;
#[cfg(feature = "writer")]
mod retention;
mod segment;
#[cfg(feature = "writer")]
mod writer;

#[cfg(test)]
mod damage;
#[cfg(test)]
mod model;
#[cfg(all(test, feature = "loom"))]
mod reuse_model;

#[cfg(feature = "writer")]
pub use access::{ReaderGroup, create_log_root};
pub use error::LogError;
pub use presence::{LogWriter, find_writer};
pub use reader::{EntryCopy, Reader, SeekResult, SessionRange};
#[cfg(feature = "writer")]
pub use retention::{MaintenanceCounts, Retention, RetentionHold, SegmentMaintenance};
#[cfg(feature = "writer")]
pub use writer::{LogOptions, LogRecovery, OpenedLog, Pending, Writer, WriterCounts, open};

/// Session identifier in its wire form. Only compared for equality.
pub type SessionBytes = [u8; 16];

/// A position in a log: where an entry begins or will begin. Positions of one log are ordered, also across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in bytes from the segment's start. Beyond the segment's size: in the writer's private memory.
    pub offset: u64,
}

/// One committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where the entry begins.
    pub position: Position,
    /// Where the next entry begins, if it is in the same segment.
    pub end: Position,
    /// Entry number, counted from the beginning of the log, also across restarts.
    pub number: u64,
    /// The session of `first` and `next`.
    pub session: SessionBytes,
    /// First input sequence covered.
    pub first: u64,
    /// First input sequence after the covered range; equal to `first` for an entry that covers nothing.
    pub next: u64,
    /// When the entry was committed, ns since 1970 UTC, by the writer's clock.
    pub ts_commit: u64,
    /// Frames in the payload.
    pub frame_count: u16,
    /// Flags for the writer's own use.
    pub flags: u16,
    /// The bytes that were appended to the entry.
    pub payload: &'a [u8],
}

/// Whether entries carry a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C over header and payload. It distinguishes whole entries from torn or damaged ones.
    #[default]
    Crc32c,
    /// None: sufficient for a log in memory that does not survive the machine.
    Off,
}
