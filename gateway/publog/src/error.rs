//! What can go wrong away from the hot path.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why a log could not be opened, read or kept. The writer's own path has no errors.
#[derive(Debug, Error)]
pub enum LogError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another process, or this one, writes the log already.
    #[error("{} has a writer already", path.display())]
    Busy {
        /// The log's directory.
        path: PathBuf,
    },
    /// A file that is no segment of this log.
    #[error("{} is no segment of channel {channel}: {reason}", path.display())]
    NotASegment {
        /// The file.
        path: PathBuf,
        /// The log's channel.
        channel: u16,
        /// What does not fit.
        reason: &'static str,
    },
    /// Sizes that do not fit each other.
    #[error(
        "segment_bytes = {segment_bytes} is not possible: it must be a multiple of 4096, at most 4 GiB, and hold at least four entries of {payload_bytes_max} bytes"
    )]
    Sizes {
        /// As configured.
        segment_bytes: usize,
        /// As configured.
        payload_bytes_max: usize,
    },
}

impl LogError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }

    /// Whether it was for want of space.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory))
    }
}
