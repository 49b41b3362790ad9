//! Readers and writers of packet and record files: captures (pcap, pcapng), day files, DBN. Also the parts of a replay:
//! a pacer, impaired lines and seeded random numbers.

#![forbid(unsafe_code)]

pub mod capture_file;
pub mod dbn_file;
pub mod dbn_input;
pub mod impairment;
pub mod output_file;
pub mod pacer;
pub mod random;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
