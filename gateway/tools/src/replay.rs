//! Replay: captures and day files to the wire with their own timing, or straight into the pipeline on their own clock.
//!
//! Both begin with [`capture_merge`]: several files as one stream, by their times; [`routes`] tells which channel and line a datagram
//! belongs to. [`wire`] sends it at the pace that [`pacer`]
//! sets; [`offline`] drives channels with it and writes what a consumer of the gateway would have got.

pub mod capture_merge;
pub mod feed_guess;
pub mod offline;
pub mod routes;
pub mod summary;
pub mod until_loss;
pub mod wire;
