//! Files of packets and of records, read and written: captures (pcap, pcapng), day files, DBN. And what playing them takes:
//! a pacer, damaged lines, random numbers by seed.

pub mod capture_file;
pub mod dbn_file;
pub mod dbn_input;
pub mod impairment;
pub mod output_file;
pub mod pacer;
pub mod random;
