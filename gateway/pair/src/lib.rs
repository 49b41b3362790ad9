//! What connects the gateways of a pair: the reception of the peers' output ([`standby`]), and the authenticated link
//! to the peers with copies of channel states ([`pair_link`]).

#![forbid(unsafe_code)]

#[cfg(fuzzing)]
pub mod fuzzing;
pub mod pair_link;
pub mod standby;

#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod formats;
