//! Writes datagrams as a capture: nanosecond pcap, Ethernet, IPv4, UDP.

use std::{
    io::{self, Write},
    net::SocketAddrV4,
};

/// Writes a capture that this module, and everybody's tools, read.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    file: W,
    frame: Vec<u8>,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a capture: writes the file header.
    ///
    /// # Errors
    /// The writer's.
    pub fn new(mut file: W) -> io::Result<Self> {
        let words = [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, SNAP_LEN, LINK_ETHERNET];
        for word in words {
            file.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { file, frame: Vec::new() })
    }

    /// Appends one datagram that was captured at `time_ns` (since 1970 UTC, before the year 2106).
    ///
    /// # Errors
    /// The writer's; a payload that no UDP datagram can have, or a time that the format cannot hold.
    pub fn datagram(&mut self, time_ns: u64, src: SocketAddrV4, dst: SocketAddrV4, payload: &[u8]) -> io::Result<()> {
        let impossible = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let udp_bytes = u16::try_from(payload.len() + UDP_HEADER_BYTES).map_err(impossible)?;
        let ip_bytes = u16::try_from(payload.len() + UDP_HEADER_BYTES + IP_HEADER_BYTES).map_err(impossible)?;
        let seconds = u32::try_from(time_ns / 1_000_000_000).map_err(impossible)?;
        let nanoseconds = u32::try_from(time_ns % 1_000_000_000).map_err(impossible)?;
        let frame_bytes = u32::from(ip_bytes) + ETHERNET_HEADER_BYTES;

        self.frame.clear();
        for word in [seconds, nanoseconds, frame_bytes, frame_bytes] {
            self.frame.extend_from_slice(&word.to_le_bytes());
        }
        self.frame.extend_from_slice(&ethernet_destination(dst));
        self.frame.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x00]);
        let ip_at = self.frame.len();
        self.frame.extend_from_slice(&[0x45, 0]);
        self.frame.extend_from_slice(&ip_bytes.to_be_bytes());
        // Don't fragment, time to live 16, UDP, checksum to come.
        self.frame.extend_from_slice(&[0, 0, 0x40, 0, 16, 17, 0, 0]);
        self.frame.extend_from_slice(&src.ip().octets());
        self.frame.extend_from_slice(&dst.ip().octets());
        let checksum = ip_checksum(self.frame.get(ip_at..).unwrap_or_default());
        if let Some(slot) = self.frame.get_mut(ip_at + 10..ip_at + 12) {
            slot.copy_from_slice(&checksum.to_be_bytes());
        }
        for field in [src.port(), dst.port(), udp_bytes, 0] {
            self.frame.extend_from_slice(&field.to_be_bytes());
        }
        self.frame.extend_from_slice(payload);
        self.file.write_all(&self.frame)
    }

    /// The writer, flushed.
    ///
    /// # Errors
    /// The writer's.
    pub fn finish(mut self) -> io::Result<W> {
        self.file.flush()?;
        Ok(self.file)
    }
}

/// RFC 1112 for groups; any locally administered address else.
fn ethernet_destination(dst: SocketAddrV4) -> [u8; 6] {
    let [_, b, c, d] = dst.ip().octets();
    if dst.ip().is_multicast() { [0x01, 0x00, 0x5e, b & 0x7f, c, d] } else { [2, 0, 0, b, c, d] }
}

/// RFC 1071 over a header whose checksum field is 0.
fn ip_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header
        .chunks_exact(2)
        .map(|pair| pair.first_chunk().map_or(0, |bytes| u32::from(u16::from_be_bytes(*bytes))))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)
}

const LINK_ETHERNET: u32 = 1;
const SNAP_LEN: u32 = 262_144;
const ETHERNET_HEADER_BYTES: u32 = 14;
const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
