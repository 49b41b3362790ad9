//! Latency reports: from interval logs to a table, to `.hgrm` files, to JSON, and to one HTML page.
//!
//! A log is an input like others: it may be damaged or cut short. Whatever can be read is reported, whatever can't is
//! named by file and line ([`Damage`]).

mod chart;
pub mod csv;
mod difference;
mod figures;
pub mod grouping;
pub mod hgrm;
pub mod html;
pub mod json;
mod lines;
mod load;
mod log;
pub mod quantity;
mod summary;
pub mod table;
mod timeline;

pub use difference::{Change, Comparison, Difference, Group, STRETCH_COUNT, Samples, Verdict};
pub use figures::Figures;
pub use lines::{Counted, GapMark, LeadSlice, LineReport};
pub use load::LoadBucket;
pub use log::Damage;
pub use summary::{ChannelReport, Disclosed, RateUnit, Report, StageReport};
pub use timeline::{BURST_FACTOR, Moment};
