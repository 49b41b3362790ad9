//! Errors outside the hot path.

use std::{error::Error, fmt, io, path::PathBuf};

/// Why a log could not be opened, read or maintained. The writer's own path has no errors.
#[derive(Debug)]
pub enum LogError {
    /// An error of the operating system.
    Io {
        /// What the program tried to do, for the error text.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// This or another process already writes the log.
    Busy {
        /// Directory of the log.
        path: PathBuf,
    },
    /// The group of readers could not be given access.
    Group {
        /// Path of the file or directory.
        path: PathBuf,
        /// Number of the group.
        group: u32,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file that is not a segment of this log.
    NotASegment {
        /// Path of the file.
        path: PathBuf,
        /// Channel of the log.
        channel: u16,
        /// What does not match, for the error text.
        reason: &'static str,
    },
    /// A whole segment that another log or another version of this program wrote. Nothing was changed.
    ForeignSegment {
        /// Path of the file.
        path: PathBuf,
        /// Channel of the log.
        channel: u16,
        /// What does not match, for the error text.
        reason: &'static str,
    },
    /// An entry with impossible lengths or a wrong checksum, or a file that ends early, and no later segment.
    DamagedEntry {
        /// Path of the file.
        path: PathBuf,
        /// Where the entry begins, bytes from the file's start.
        offset: u64,
    },
    /// Sizes that do not fit together.
    Sizes {
        /// The configured segment size.
        segment_bytes: usize,
        /// The configured maximum payload.
        payload_bytes_max: usize,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, path, source } => write!(f, "cannot {action} {}: {source}", path.display()),
            Self::Busy { path } => write!(f, "{} already has a writer: a gateway, or `mdgw mirror`", path.display()),
            Self::Group { path, group, source } => write!(
                f,
                "cannot let group {group} read {}: {source}. The user of the gateway must own the path and be a member of the group",
                path.display()
            ),
            Self::NotASegment { path, channel, reason } => {
                write!(f, "{} is not a segment of channel {channel}: {reason}", path.display())
            }
            Self::ForeignSegment { path, channel, reason } => write!(
                f,
                "{} was not written by the log of channel {channel}: {reason}. Configure another directory, or move the file away",
                path.display()
            ),
            Self::DamagedEntry { path, offset } => {
                write!(f, "{} is damaged or truncated at offset {offset}, and no later segment exists", path.display())
            }
            Self::Sizes { segment_bytes, payload_bytes_max } => write!(
                f,
                "segment_bytes = {segment_bytes}: must be a multiple of 4096, at most 4 GiB, with room for at least four entries of {payload_bytes_max} bytes"
            ),
        }
    }
}

impl Error for LogError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Group { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl LogError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }

    /// Whether the file or directory does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the cause was lack of space.
    #[cfg(feature = "writer")]
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory))
    }
}
