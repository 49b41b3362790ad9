//! Errors outside the hot path.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why a log could not be opened, read or maintained. The writer's own path has no errors.
#[derive(Debug, Error)]
pub enum LogError {
    /// An error of the operating system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What the program tried to do, for the error text.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// This or another process already writes the log.
    #[error("{} already has a writer", path.display())]
    Busy {
        /// Directory of the log.
        path: PathBuf,
    },
    /// A file that is not a segment of this log.
    #[error("{} is not a segment of channel {channel}: {reason}", path.display())]
    NotASegment {
        /// Path of the file.
        path: PathBuf,
        /// Channel of the log.
        channel: u16,
        /// What does not match, for the error text.
        reason: &'static str,
    },
    /// A whole segment that another log or another version of this program wrote. Nothing was changed.
    #[error(
        "{} was not written by the log of channel {channel}: {reason}. Configure another directory, or move the file away",
        path.display()
    )]
    ForeignSegment {
        /// Path of the file.
        path: PathBuf,
        /// Channel of the log.
        channel: u16,
        /// What does not match, for the error text.
        reason: &'static str,
    },
    /// Sizes that do not fit together.
    #[error(
        "segment_bytes = {segment_bytes}: must be a multiple of 4096, at most 4 GiB, with room for at least four entries of {payload_bytes_max} bytes"
    )]
    Sizes {
        /// The configured segment size.
        segment_bytes: usize,
        /// The configured maximum payload.
        payload_bytes_max: usize,
    },
}

impl LogError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }

    /// Whether the cause was lack of space.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory))
    }
}
