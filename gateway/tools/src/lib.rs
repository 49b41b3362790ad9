//! Implementations of the commands, one module each. The binary only parses arguments and prints.

#![forbid(unsafe_code)]

pub mod book_view;
pub mod capture;
pub mod convert;
pub mod diff;
pub mod inspect;
pub mod merge;
pub mod replay;
pub mod report;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
mod summary_table;
pub mod verify;
