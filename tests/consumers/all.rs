//! The output protocol as consumers implement it: test vectors in `tests/data/output`, made here and read by the receivers in Rust,
//! Python and C and by the Wireshark dissector; and all three receivers through a failover.
#![allow(clippy::unwrap_used, reason = "tests")]

mod c;
mod data_files;
mod failover;
mod log;
mod packets;
mod python;
mod random_streams;
mod rebuild;
mod records;
mod replay;
mod sample;
mod snapshot_group;
mod streams;
mod text;
mod virtual_gateway;
mod wireshark;
