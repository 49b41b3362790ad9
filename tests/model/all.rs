//! Elections searched state by state.

mod lease;
mod quorum;
