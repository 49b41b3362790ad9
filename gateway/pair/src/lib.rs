//! The other gateway of a pair: what is received of its output ([`standby`]), the link to it ([`pair_link`]), copies of its state.

pub mod pair_link;
pub mod standby;

#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod formats;
