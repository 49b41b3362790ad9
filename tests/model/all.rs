//! Model checking of the elections, state by state.

mod latch;
mod lease;
mod quorum;
mod search;
