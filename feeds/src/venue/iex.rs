//! IEX. Little-endian; prices are signed numbers of 1e-4 dollars, times nanoseconds since 1970 UTC.
//!
//! TOPS and DEEP have most messages in common: those stand in [`admin`]. By both specifications the venue may add
//! message types and make messages longer without notice. So a message may be longer than its struct, what follows is
//! not looked at; and an unknown type is refused by name, for its caller to count and to pass over.

pub mod admin;
pub mod deep;
pub mod tops;

#[cfg(test)]
mod tests;
