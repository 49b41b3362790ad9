//! From publication logs to records that sessions share.
//!
//! ```text
//!  logs of a dataset ─► reader ─► channel: edge, derived schemas ─► chunk ─► ring ─► sessions, each at its own position
//! ```
//! One feeder thread per dataset reads the logs and appends [`chunk::Chunk`]s to the [`ring::Ring`]. A session that asks for
//! earlier records has a [`reader::DatasetReader`] of its own, which makes the same chunks from the log's beginning, and
//! joins the ring at a position between two chunks.

pub(crate) mod answer;
pub(crate) mod channel;
pub(crate) mod chunk;
pub(crate) mod dataset;
pub(crate) mod derived;
pub(crate) mod feeder;
pub(crate) mod intervals;
pub(crate) mod journals;
pub(crate) mod place;
pub(crate) mod reader;
pub(crate) mod replay;
mod replay_places;
pub(crate) mod ring;
mod snapshot;
mod writer_watch;
