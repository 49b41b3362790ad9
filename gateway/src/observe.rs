//! What the gateway shows of itself: counters, and latency by stage. Cold threads read; the hot path only adds to
//! memory that it alone writes.

pub mod channels;
pub mod counters;
pub mod disclosure;
pub mod exchange;
pub mod interval_log;
pub mod latency_thread;
pub mod recent;
pub mod snapshot;
pub mod stages;
