//! A channel's state, rebuilt from the records in its publication log.
//!
//! ```text
//!  log ─► entries ─► whole messages ─┬─► mbo: books, order by order
//!                                    └─► mbp-10, mbp-1, status: the latest record of each instrument
//! ```
//! The data path keeps books of its own, and nobody else may touch them. A cold reader that needs books builds them again: the
//! records of a channel that publishes mbo contain every change of every order, and a record of mbp-10 or mbp-1 contains all of
//! its levels. So a snapshot costs the data path nothing.
//!
//! - [`record`]: fields of DBN records at their offsets.
//! - [`books`]: books by order from mbo records.
//! - [`state`]: all of a channel's state, with the position that it is valid for.

pub mod books;
pub mod record;
pub mod state;
