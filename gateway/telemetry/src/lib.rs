//! What hot threads write for others to read: counters, stage histograms, what each channel and its lines brought.
//! Hot threads only add to memory that they alone write; collecting and showing it is for cold threads.

pub mod channel_metrics;
pub mod counters;
pub mod double_buffer;
pub mod stages;
