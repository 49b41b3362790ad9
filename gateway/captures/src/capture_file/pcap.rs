//! Classic pcap: microseconds or nanoseconds, either byte order, and the variant with longer packet headers.

use pcap_parser::pcap::{LegacyPcapBlock, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified};

use super::{CaptureFault, FRAME_BYTES_MAX, Frame, byte_source::ByteSource, link::LinkLayer};

#[derive(Debug)]
pub(super) struct Pcap {
    link: LinkLayer,
    layout: Layout,
    /// Nanoseconds per unit of the packet header's sub-second field.
    fraction_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    Little,
    Big,
    /// Little-endian with 8 more bytes in each packet header.
    Modified,
}

/// Whether a file that begins with these bytes is pcap.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    matches!(u32::from_le_bytes(bytes), 0xa1b2_c3d4 | 0xa1b2_3c4d | 0xd4c3_b2a1 | 0x4d3c_b2a1 | 0xa1b2_cd34)
}

impl Pcap {
    pub(super) fn open(source: &mut ByteSource) -> Result<Self, CaptureFault> {
        source.require(FILE_HEADER_BYTES, "the file header")?;
        let (_, header) =
            pcap_parser::pcap::parse_pcap_header(source.available()).map_err(|_| CaptureFault::NotACapture)?;
        let link = LinkLayer::from_number(header.network.0)?;
        let layout = match (header.is_modified_format(), header.is_bigendian()) {
            (true, _) => Layout::Modified,
            (false, true) => Layout::Big,
            (false, false) => Layout::Little,
        };
        let fraction_ns = if header.is_nanosecond_precision() { 1 } else { 1_000 };
        source.consume(FILE_HEADER_BYTES);
        Ok(Self { link, layout, fraction_ns })
    }

    /// Returns the next frame, complete in `source`; `None` at the end of the file.
    #[inline]
    pub(super) fn next(&mut self, source: &mut ByteSource) -> Result<Option<Frame>, CaptureFault> {
        let header_bytes = match self.layout {
            Layout::Little | Layout::Big => 16,
            Layout::Modified => 24,
        };
        if source.fill(header_bytes)? == 0 {
            return source.take_failure().map_or(Ok(None), Err);
        }
        source.require(header_bytes, "a packet header")?;
        let length = source.available().get(8..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
        let captured_len = match self.layout {
            Layout::Little | Layout::Modified => u32::from_le_bytes(length),
            Layout::Big => u32::from_be_bytes(length),
        } as usize;
        if captured_len > FRAME_BYTES_MAX {
            return Err(CaptureFault::LengthImpossible { what: "a packet", claimed: captured_len as u64 });
        }
        source.require(header_bytes + captured_len, "a packet")?;
        let parsed = match self.layout {
            Layout::Little => parse_pcap_frame(source.available()),
            Layout::Big => parse_pcap_frame_be(source.available()),
            Layout::Modified => parse_pcap_frame_modified(source.available()),
        };
        let (_, LegacyPcapBlock { ts_sec, ts_usec, origlen, .. }) = parsed.map_err(|_| CaptureFault::BlockMalformed)?;
        let unconsumed_bytes = header_bytes + captured_len;
        Ok(Some(Frame {
            time_ns: u64::from(ts_sec) * 1_000_000_000 + u64::from(ts_usec) * self.fraction_ns,
            is_untimed: false,
            frame_len: origlen,
            link: self.link,
            data: header_bytes..unconsumed_bytes,
            unconsumed_bytes,
        }))
    }
}

const FILE_HEADER_BYTES: usize = 24;
