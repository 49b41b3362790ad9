//! Publication log: the memory-mapped, append-only record of what one channel produced. One writer, any number of
//! readers in any process.
//!
//! A log is a directory with segment files of one fixed size, numbered upwards:
//!
//! ```text
//!  segment file                                   entry (8-byte aligned)
//!  0         4096            entries_offset       0        8         16        32      40     48          56        64
//!  | header | index slots … | entry | entry | …   | commit | number | session | first | next | ts_commit | sizes | payload …
//! ```
//! - An entry is whole once its commit word is stored (release, by the writer); readers load it (acquire). It holds
//!   the entry's length and CRC-32C and is never 0. 0 means "not yet", all ones "this segment is over".
//! - Before an entry is committed, the word behind it is 0. So memory need not be clean, and whatever an unfinished
//!   entry left behind is never taken for one.
//! - An index slot leads from session and sequence to an entry: one each 16 KiB, one at each change of session.
//! - Segments are unlinked, never truncated and never written again, so what a reader has mapped stays valid.
//! - A log that is opened again keeps what was committed and goes on in a new segment.
//! - The writer makes no system call, allocates nothing and waits for nobody. A cold thread ([`SegmentMaintenance`]) makes
//!   segments ahead and unlinks old ones. When none is ready (the keeper starved, or there is no space left), the
//!   writer goes on in private memory: [what is published](Writer::pending) goes out as before, and readers find that
//!   many entry numbers missing once the next segment is there ([`Reader::lost`]).
//!
//! What it deliberately does not know: what a session, a sequence or a payload means, clocks, threads.

mod commit;
mod directory;
mod error;
mod reader;
mod retention;
mod segment;
mod writer;

#[cfg(test)]
mod model;

pub use error::LogError;
pub use reader::{Reader, SeekResult};
pub use retention::{MaintenanceCounts, Retention, RetentionHold, SegmentMaintenance};
pub use writer::{LogOptions, OpenedLog, Pending, Recovered, Verify, Writer, WriterCounts, open};

/// Name of a numbering, as its bytes stand on the wire. Compared for equality alone.
pub type SessionBytes = [u8; 16];

/// A place in a log: where an entry begins, or will. Places of one log are ordered, over restarts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the segment.
    pub segment: u64,
    /// Bytes from its beginning. Beyond the segment's size: in the writer's private memory.
    pub offset: u64,
}

/// One committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it begins.
    pub position: Position,
    /// Where the next one begins, if it is in the same segment.
    pub end: Position,
    /// Counts entries from the beginning of the log, over restarts too.
    pub number: u64,
    /// The numbering that `first` and `next` belong to.
    pub session: SessionBytes,
    /// First input sequence it settles.
    pub first: u64,
    /// First input sequence after that; `first` for an entry that settles nothing.
    pub next: u64,
    /// When it was committed, ns since 1970 UTC, by the writer's clock.
    pub ts_commit: u64,
    /// Frames in the payload.
    pub frame_count: u16,
    /// The writer's own.
    pub flags: u16,
    /// What the writer appended.
    pub payload: &'a [u8],
}

/// Whether entries carry a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C over header and payload: after a crash of the machine it tells whole entries from torn ones.
    #[default]
    Crc32c,
    /// None: enough where the log lies in memory and dies with the machine.
    Off,
}
