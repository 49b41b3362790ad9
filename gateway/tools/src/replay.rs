//! Replay: captures and day files to the wire with their own timing, or straight into the pipeline on their own clock.
//!
//! Both begin with [`capture_merge`], which reads several files as one stream in the order of their times. [`routes`]
//! maps each datagram to its channel and line. [`wire`] sends datagrams at the targets of the pacer. [`offline`] drives
//! channels with them and writes the records that a consumer of the gateway would have received.

pub mod capture_merge;
pub mod feed_guess;
pub mod offline;
pub mod routes;
pub mod summary;
pub mod until_loss;
pub mod wire;
