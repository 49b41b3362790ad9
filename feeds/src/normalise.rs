//! Normaliser: turns venue messages and their book changes into DBN records.
//!
//! Output is a function of the channel's input alone: no local clock, no random number, no map order.
//! `ts_recv` stays undefined and `ts_in_delta` 0 in every record; the [edge](mdgw_wire::consumer_edge) fills them in.

pub(crate) mod records;
pub(crate) mod status;
pub(crate) mod symbols;
