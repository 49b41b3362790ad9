//! What venues say: one module per specification, with its wire structs and what each message means.
#![allow(unnameable_types, reason = "zerocopy's derives make such types where a macro of ours makes the struct")]

pub mod iex;
pub mod nasdaq;
pub mod wire;
