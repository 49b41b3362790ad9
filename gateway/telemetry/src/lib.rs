//! Metrics that hot threads write for others to read: counters, stage histograms, channel and line metrics. Hot threads
//! write only to memory of their own. Cold threads collect and show it.

#![forbid(unsafe_code)]

pub mod channel_metrics;
pub mod counters;
pub mod double_buffer;
pub mod reason_counts;
pub mod stages;
