//! Elections searched state by state.

mod latch;
mod lease;
mod quorum;
mod search;
