//! IEX.

pub mod deep;
pub mod tops;
