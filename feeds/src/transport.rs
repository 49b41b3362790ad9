//! How venues pack messages into datagrams and files: one module each, both ends of each.

pub mod binaryfile;
pub mod iextp;
pub mod moldudp64;
