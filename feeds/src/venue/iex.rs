//! IEX. Little-endian; prices are signed numbers of 1e-4 dollars, times nanoseconds since 1970 UTC.
//!
//! TOPS and DEEP share most messages, see [`admin`]. By both specifications the venue may add message types and
//! extend messages without notice. A message may therefore be longer than its struct; further bytes are ignored. An
//! unknown type is rejected as such, so that the caller can count and skip it.

pub mod admin;
pub mod deep;
pub mod tops;

#[cfg(test)]
mod tests;
