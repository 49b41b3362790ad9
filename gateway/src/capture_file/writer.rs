//! Writes datagrams as a capture: nanosecond pcap, Ethernet, IPv4 or IPv6, UDP.

use std::{
    io::{self, Write},
    net::{SocketAddrV4, SocketAddrV6},
};

use super::frame_header::{frame_header, frame_header_v6};

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
        let header = frame_header(src, dst, payload.len()).ok_or(io::ErrorKind::InvalidInput)?;
        self.frame(time_ns, &header, payload)
    }

    /// The same of one that came over IPv6.
    ///
    /// # Errors
    /// As [`Self::datagram`].
    pub fn datagram_v6(
        &mut self,
        time_ns: u64,
        src: SocketAddrV6,
        dst: SocketAddrV6,
        payload: &[u8],
    ) -> io::Result<()> {
        let header = frame_header_v6(src, dst, payload).ok_or(io::ErrorKind::InvalidInput)?;
        self.frame(time_ns, &header, payload)
    }

    fn frame(&mut self, time_ns: u64, header: &[u8], payload: &[u8]) -> io::Result<()> {
        let impossible = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let seconds = u32::try_from(time_ns / 1_000_000_000).map_err(impossible)?;
        let nanoseconds = u32::try_from(time_ns % 1_000_000_000).map_err(impossible)?;
        let frame_bytes = u32::try_from(header.len() + payload.len()).map_err(impossible)?;

        self.frame.clear();
        for word in [seconds, nanoseconds, frame_bytes, frame_bytes] {
            self.frame.extend_from_slice(&word.to_le_bytes());
        }
        self.frame.extend_from_slice(header);
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

const LINK_ETHERNET: u32 = 1;
const SNAP_LEN: u32 = 262_144;
