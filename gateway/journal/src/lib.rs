//! Journals: what the publication logs hold, as DBN files per dataset, set of schemas and trading date.
//!
//! ```text
//!  logs of a dataset ─► channel: edge, names ─► open journal (by date) ─► closed: DBN metadata, final name ─► compressed
//!                                                    ▲ crash: goes on behind the last checkpoint
//! ```
//! A process of its own reads the logs ([`journal::Journal`]). A names file beside each DBN file says what its records are called
//! ([`names`]). Another thread compresses closed journals and removes old ones.
//!
//! Invariants:
//! - A record is in the journals once, or its absence is declared in a names file and raised as an alarm.
//! - What a crash leaves is continued from its last checkpoint; what follows is read from the log again.
//! - An error in writing stops the journals, not this process and never the gateway. They go on when writing works again.
//! - No input file makes this code panic.
#![forbid(unsafe_code)]

mod channel;
#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod check;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod group;
mod housekeeping;
pub mod journal;
mod journal_file;
pub mod names;
pub mod names_file;
mod open_files;
mod paths;
mod records;
mod retention;
mod symbols_service;
mod trailer;

pub use channel::JournalChannel;
pub use error::JournalError;
pub use housekeeping::Compression;
pub use paths::{JournalId, list_journals};
pub use records::{JournalPlace, JournalRecords, JournalStep, NamedRecord, RecordsError};
pub use symbols_service::{Symbols, SymbolsService};
