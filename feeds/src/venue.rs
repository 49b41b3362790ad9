//! Venue message formats: one module per specification, with its wire structs.
#![allow(unnameable_types, reason = "zerocopy's derives make such types where a macro of ours makes the struct")]

pub mod iex;
pub mod nasdaq;
pub mod wire;
