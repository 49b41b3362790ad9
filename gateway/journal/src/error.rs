//! Errors of journals.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::names::HeaderFault;

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused an action on a file.
    #[error("{act} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        act: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The disk has less space than the journal must leave.
    #[error("{}: {free_bytes} bytes are free, at least {free_bytes_min} are needed (journal.free_bytes_min)", path.display())]
    LittleSpace {
        /// Folder of the journals.
        path: PathBuf,
        /// Bytes that are free for this process.
        free_bytes: u64,
        /// `journal.free_bytes_min`, and what a compression takes.
        free_bytes_min: u64,
    },
    /// The names file cannot be used.
    #[error("read {}: {fault}", path.display())]
    Header {
        /// Path of the names file.
        path: PathBuf,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// The file has no place in this journal.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// Path of that file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process writes these journals.
    #[error("{} is in use: another mdgw journal writes these files", path.display())]
    InUse {
        /// The file that the other process holds locked.
        path: PathBuf,
    },
    /// The publication log cannot be read.
    #[error(transparent)]
    Log(#[from] mdgw_publog::LogError),
}

impl JournalError {
    pub(crate) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }

    pub(crate) fn unusable(path: &Path, reason: impl Into<String>) -> Self {
        Self::Unusable { path: path.to_owned(), reason: reason.into() }
    }
}
