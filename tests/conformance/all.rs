//! Decoded packets of each venue, checked against its specification and its real captures.

mod iex;
mod nasdaq;
mod recognition;
