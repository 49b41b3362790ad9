//! Elections and publication under a simulated network, clock and disk, from seeds.

mod lease;
mod quorum;
mod seeds;
mod stream;
