//! Writes datagrams as a capture: nanosecond pcap, Ethernet, IPv4 or IPv6, UDP.

use std::{
    fs::File,
    io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write},
    net::{SocketAddrV4, SocketAddrV6},
};

use super::frame_header::{frame_header, frame_header_v6};

/// Writes a capture that this module and the usual tools can read.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    file: W,
    frame: Vec<u8>,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    ///
    /// # Errors
    /// Errors of the writer.
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
    /// Errors of the writer; a payload too long for UDP, or a time outside the range of the format.
    pub fn datagram(&mut self, time_ns: u64, src: SocketAddrV4, dst: SocketAddrV4, payload: &[u8]) -> io::Result<()> {
        let header = frame_header(src, dst, payload.len()).ok_or(io::ErrorKind::InvalidInput)?;
        self.frame(time_ns, &header, payload)
    }

    /// Appends a datagram received over IPv6.
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

    /// Flushes and returns the writer.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.file.flush()?;
        Ok(self.file)
    }
}

/// Truncates a file after its last whole packet, when [`PcapWriter`] could not write any further.
///
/// # Errors
/// Errors of the file system.
pub fn truncate_to_whole_packets(file: &File) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(READ_BYTES, file);
    let mut whole = reader.seek(SeekFrom::Start(FILE_HEADER_BYTES))?;
    loop {
        let mut words = [[0; 4]; 4];
        if whole + words.as_flattened().len() as u64 > bytes {
            break;
        }
        reader.read_exact(words.as_flattened_mut())?;
        let [_, _, frame_bytes, _] = words.map(u32::from_le_bytes);
        let end = whole + words.as_flattened().len() as u64 + u64::from(frame_bytes);
        if end > bytes {
            break;
        }
        reader.seek_relative(frame_bytes.into())?;
        whole = end;
    }
    if whole < bytes { file.set_len(whole) } else { Ok(()) }
}

const READ_BYTES: usize = 1 << 20;
const FILE_HEADER_BYTES: u64 = 24;
const LINK_ETHERNET: u32 = 1;
const SNAP_LEN: u32 = 262_144;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn truncation_keeps_every_whole_packet() {
        let addresses = || ("10.0.0.1:1000".parse().unwrap(), "239.1.2.3:2000".parse().unwrap());
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        let mut ends = vec![writer.file.len()];
        for payload in [&b""[..], b"some", b"bytes more"] {
            let (src, dst) = addresses();
            writer.datagram(7, src, dst, payload).unwrap();
            ends.push(writer.file.len());
        }
        let whole = writer.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        for bytes in 0..=whole.len() {
            fs::write(&path, &whole[..bytes]).unwrap();
            truncate_to_whole_packets(&File::options().read(true).write(true).open(&path).unwrap()).unwrap();
            // A file without a whole header stays unchanged.
            let kept = ends.iter().rev().find(|end| **end <= bytes).copied().unwrap_or(bytes);
            assert_eq!(fs::read(&path).unwrap(), whole[..kept], "{bytes} bytes");
        }
    }
}
