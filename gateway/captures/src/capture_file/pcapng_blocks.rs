//! Writes the blocks of a pcapng file: little-endian, one section, times in nanoseconds.
//!
//! ```text
//!  section header ─ interface 0 ─ interface 1 ─ … ─ packet ─ packet ─ … ─ statistics of interface 0 ─ …
//! ```
//! Each function appends one whole block, so a file truncated between two calls still opens. Format: "PCAP Next
//! Generation (pcapng) Capture File Format", draft-ietf-opsawg-pcapng.

/// Length of the whole blocks at the front of these bytes.
#[must_use]
pub fn whole_blocks_bytes(blocks: &[u8]) -> usize {
    const BLOCK_BYTES_MIN: usize = 12;
    let mut whole = 0;
    // Each block begins with its type and its length.
    while let Some([_, _, _, _, length @ ..]) = blocks.get(whole..).and_then(<[u8]>::first_chunk::<8>) {
        let length = u32::from_le_bytes(*length) as usize;
        if length < BLOCK_BYTES_MIN || length > blocks.len() - whole {
            break;
        }
        whole += length;
    }
    whole
}

/// Section header: the program that captured.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Program and version.
    pub application: &'a str,
    /// Comment on the whole file; may be empty.
    pub comment: &'a str,
}

/// Interface description: a line. Its number is its position among the interfaces of the section.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceBlock<'a> {
    /// Name of the line.
    pub name: &'a str,
    /// Description of the line.
    pub description: &'a str,
    /// Capture method.
    pub comment: &'a str,
}

/// A packet. Its bytes are given in pieces, each of which may be empty.
#[derive(Clone, Copy, Debug)]
pub struct PacketBlock<'a> {
    /// Number of its interface.
    pub interface: u32,
    /// Receive time, ns since 1970 UTC.
    pub time_ns: u64,
    /// Length on the wire, bytes; the pieces may hold only the beginning.
    pub wire_bytes: u32,
    /// The frame's bytes, in up to three consecutive pieces.
    pub pieces: [&'a [u8]; 3],
    /// Comment on this packet; may be empty.
    pub comment: &'a str,
}

/// Statistics of an interface since the capture began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatisticsBlock<'a> {
    /// Number of the interface.
    pub interface: u32,
    /// Time of the statistics, ns since 1970 UTC.
    pub time_ns: u64,
    /// Begin of the capture, ns since 1970 UTC.
    pub start_ns: u64,
    /// Packets written.
    pub delivered: u64,
    /// Packets dropped by the kernel.
    pub dropped: u64,
    /// Source of the drop count, and other comments.
    pub comment: &'a str,
}

impl Section<'_> {
    /// Appends the block.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        block(out, 0x0a0d_0d0a, |out| {
            out.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
            out.extend_from_slice(&1_u16.to_le_bytes());
            out.extend_from_slice(&0_u16.to_le_bytes());
            // Length of the section: not known.
            out.extend_from_slice(&u64::MAX.to_le_bytes());
            text(out, COMMENT, self.comment);
            text(out, 3, std::env::consts::OS);
            text(out, 4, self.application);
            end_of_options(out);
        });
    }
}

impl InterfaceBlock<'_> {
    /// Appends the block.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        block(out, 1, |out| {
            out.extend_from_slice(&LINK_ETHERNET.to_le_bytes());
            out.extend_from_slice(&0_u16.to_le_bytes());
            out.extend_from_slice(&SNAP_LEN.to_le_bytes());
            text(out, COMMENT, self.comment);
            text(out, 2, self.name);
            text(out, 3, self.description);
            // Resolution of its times: ten to the minus nine.
            option(out, 9, &[9]);
            end_of_options(out);
        });
    }
}

impl PacketBlock<'_> {
    /// Length of the block in bytes.
    pub fn block_bytes(&self) -> usize {
        let padded = |bytes: usize| bytes.next_multiple_of(4);
        let captured_bytes = self.pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let options =
            if self.comment.is_empty() { 0 } else { 4 + padded(self.comment.len().min(OPTION_BYTES_MAX)) + 4 };
        // Type, length, interface, time, both lengths of the packet; the packet, its comment, the length again.
        28 + padded(captured_bytes) + options + 4
    }

    /// Appends the block.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let captured_bytes = self.pieces.iter().map(|piece| piece.len()).sum::<usize>();
        debug_assert!(captured_bytes <= SNAP_LEN as usize, "{captured_bytes} bytes exceed the limit of pcapng readers");
        block(out, 6, |out| {
            let [time_high, time_low] = halves(self.time_ns);
            for word in [self.interface, time_high, time_low, length(captured_bytes), self.wire_bytes] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            for piece in self.pieces {
                out.extend_from_slice(piece);
            }
            pad(out, captured_bytes);
            if !self.comment.is_empty() {
                text(out, COMMENT, self.comment);
                end_of_options(out);
            }
        });
    }
}

impl StatisticsBlock<'_> {
    /// Appends the block.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        block(out, 5, |out| {
            out.extend_from_slice(&self.interface.to_le_bytes());
            time(out, self.time_ns);
            text(out, COMMENT, self.comment);
            for (code, at_ns) in [(2, self.start_ns), (3, self.time_ns)] {
                out.extend_from_slice(&u16::to_le_bytes(code));
                out.extend_from_slice(&8_u16.to_le_bytes());
                time(out, at_ns);
            }
            // Received, dropped by the interface, dropped by the system, delivered. The kernel's drop count means the
            // third field. Wireshark shows the second, and its own capture stores the kernel's count there.
            let received = self.delivered.saturating_add(self.dropped);
            for (code, count) in [(4, received), (5, self.dropped), (7, self.dropped), (8, self.delivered)] {
                option(out, code, &u64::to_le_bytes(count));
            }
            end_of_options(out);
        });
    }
}

/// Writes type, length, body, and the length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let block_bytes = length(out.len() - start + 4).to_le_bytes();
    out.extend_from_slice(&block_bytes);
    if let Some(slot) = out.get_mut(start + 4..start + 8) {
        slot.copy_from_slice(&block_bytes);
    }
}

fn text(out: &mut Vec<u8>, code: u16, text: &str) {
    if !text.is_empty() {
        option(out, code, text.as_bytes());
    }
}

/// Writes an option; a value too long for an option is truncated.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..OPTION_BYTES_MAX).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// Zeros up to the next 32-bit boundary.
fn pad(out: &mut Vec<u8>, bytes: usize) {
    out.extend_from_slice([0; 3].get(..bytes.next_multiple_of(4) - bytes).unwrap_or_default());
}

fn time(out: &mut Vec<u8>, time_ns: u64) {
    for word in halves(time_ns) {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// High and low word.
#[allow(clippy::cast_possible_truncation, reason = "the halves of a 64-bit number")]
fn halves(number: u64) -> [u32; 2] {
    [(number >> 32) as u32, number as u32]
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

const COMMENT: u16 = 1;
const LINK_ETHERNET: u16 = 1;
/// The limit of libpcap: no frame is longer.
const SNAP_LEN: u32 = 262_144;
/// Leaves room for the padding in the option's 16 bits of length.
const OPTION_BYTES_MAX: usize = 65_532;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::capture_file::{CaptureFile, OpenOptions, frame_header};

    #[test]
    fn whole_blocks_stop_at_a_truncated_block() {
        let mut blocks = Vec::new();
        Section { application: "mdgw", comment: "" }.append_to(&mut blocks);
        let first = blocks.len();
        StatisticsBlock::default().append_to(&mut blocks);
        for (bytes, whole) in
            [(0, 0), (first - 1, 0), (first, first), (blocks.len() - 1, first), (blocks.len(), blocks.len())]
        {
            assert_eq!(whole_blocks_bytes(&blocks[..bytes]), whole);
        }
        assert_eq!(whole_blocks_bytes(&[0; 64]), 0, "no block is that short");
    }

    #[test]
    fn written_packets_are_read_back_to_the_nanosecond() {
        let (src, dst) = ("10.0.0.1:1000".parse().unwrap(), "239.1.2.3:2000".parse().unwrap());
        let mut file = Vec::new();
        Section { application: "mdgw", comment: "a test" }.append_to(&mut file);
        for name in ["A", "B"] {
            InterfaceBlock { name, description: "line", comment: "" }.append_to(&mut file);
        }
        let times = [1_700_000_000_123_456_789, 1_700_000_000_123_456_790, u64::MAX];
        for (number, time_ns) in times.into_iter().enumerate() {
            // Every length of padding.
            let payload = &b"abcdefg"[..number];
            let header = frame_header(src, dst, payload.len()).unwrap();
            let comment = if number == 1 { "no stamp" } else { "" };
            let wire_bytes = u32::try_from(header.len() + payload.len()).unwrap();
            let interface = u32::try_from(number % 2).unwrap();
            let block = PacketBlock { interface, time_ns, wire_bytes, pieces: [&header, payload, &[]], comment };
            let expected = file.len() + block.block_bytes();
            block.append_to(&mut file);
            assert_eq!(file.len(), expected);
            StatisticsBlock { interface, time_ns, dropped: 7, ..StatisticsBlock::default() }.append_to(&mut file);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcapng");
        fs::write(&path, &file).unwrap();
        let mut capture = CaptureFile::open(&path, &OpenOptions::default()).unwrap();
        for (number, time_ns) in times.into_iter().enumerate() {
            let datagram = capture.next_datagram().unwrap().unwrap();
            assert_eq!((datagram.time_ns, datagram.payload), (time_ns, &b"abcdefg"[..number]));
            assert_eq!((datagram.src, datagram.dst), (src.into(), dst.into()));
        }
        assert_eq!(capture.next_datagram().unwrap(), None);
    }

    #[test]
    fn every_block_is_whole_words_with_its_length_at_both_ends() {
        let mut blocks = vec![Vec::new(); 3];
        Section { application: "12345", comment: "1" }.append_to(&mut blocks[0]);
        InterfaceBlock { name: "", description: "12", comment: "123" }.append_to(&mut blocks[1]);
        StatisticsBlock { comment: "1", ..StatisticsBlock::default() }.append_to(&mut blocks[2]);
        for block in blocks {
            let length = u32::try_from(block.len()).unwrap().to_le_bytes();
            assert_eq!(block.len() % 4, 0);
            assert_eq!((&block[4..8], &block[block.len() - 4..]), (&length[..], &length[..]));
        }
    }
}
