//! Elections and publication under a simulated network, clock and disk, from seeds.

mod acknowledgement;
mod emergent;
mod forger;
mod hand_overs;
mod lease;
mod quorum;
mod seeds;
mod stream;
