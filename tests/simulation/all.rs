//! Elections under a simulated network, clock and store, from seeds.

mod lease;
mod quorum;
