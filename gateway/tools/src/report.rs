//! Latency reports: from interval logs to a table, to `.hgrm` files, to JSON, and to one HTML page.
//!
//! Logs may be damaged or truncated. Everything readable is reported; every unreadable line is listed by file and line
//! ([`LogDamage`]).

mod chart;
pub mod csv;
mod difference;
mod gaps;
pub mod grouping;
pub mod hgrm;
pub mod html;
pub mod json;
mod leadership;
mod lines;
mod load;
mod log;
pub mod quantity;
mod statistics;
mod summary;
pub mod table;
pub mod takeovers;
mod timeline;
pub mod week;

pub use chart::escape;
pub use difference::{Change, ChangeVerdict, Comparison, Difference, Group, Samples};
pub use gaps::{AttributedGaps, DeclaredGaps, GapCounts};
pub use leadership::Leadership;
pub use lines::{ChannelCounts, LeadSlice, LineReport};
pub use load::LoadBucket;
pub use log::LogDamage;
pub use statistics::LatencyStatistics;
pub use summary::{ChannelReport, ForeignChannel, LogDisclosure, RateUnit, Report, StageReport};
pub(crate) use timeline::BURST_FACTOR;
pub use timeline::TimelinePoint;
