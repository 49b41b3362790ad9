//! What venues say: one module per specification, with its wire structs and what each message means.

pub mod iex;
pub mod nasdaq;
