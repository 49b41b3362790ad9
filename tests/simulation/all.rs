//! Elections and publication under a simulated network, clock and disk, from seeds.

mod emergent;
mod forger;
mod lease;
mod quorum;
mod seeds;
mod stream;
