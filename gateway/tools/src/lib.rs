//! What the commands do, one module each; the binary only parses and prints.

pub mod book_view;
pub mod capture;
pub mod convert;
pub mod diff;
pub mod inspect;
pub mod merge;
pub mod replay;
pub mod report;
pub mod verify;
