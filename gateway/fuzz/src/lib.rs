//! Fuzz targets, and the inputs that they begin with.

pub mod seeds;
#[cfg(feature = "targets")]
mod targets;

#[cfg(feature = "targets")]
pub use targets::*;
