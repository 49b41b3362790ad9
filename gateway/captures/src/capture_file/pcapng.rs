//! pcapng: sections in either byte order, several interfaces with clocks of their own.
//!
//! Blocks are framed here (type, length, length again), so that a damaged length is distinguished from a short file,
//! and an unknown block can have any size. The `pcap_parser` crate reads the content of known blocks.

use pcap_parser::{
    OptionCode,
    pcapng::{InterfaceDescriptionBlock, parse_interfacedescriptionblock_be, parse_interfacedescriptionblock_le},
    pcapng::{parse_enhancedpacketblock_be, parse_enhancedpacketblock_le},
};

use super::{CaptureFault, FRAME_BYTES_MAX, Frame, byte_source::ByteSource, link::LinkLayer};

#[derive(Debug, Default)]
pub(super) struct PcapNg {
    order: ByteOrder,
    interfaces: Vec<Interface>,
    /// Time of the last packet that had a timestamp.
    last_time_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ByteOrder {
    #[default]
    Little,
    Big,
}

/// Content of an interface description.
#[derive(Debug)]
struct Interface {
    /// Link layer as in the file. An unsupported one is rejected only when a packet of the interface arrives.
    link_number: i32,
    snap_len: u32,
    resolution: Resolution,
    offset_s: i64,
}

/// Units per second of an interface's timestamps.
#[derive(Clone, Copy, Debug)]
enum Resolution {
    /// 10 to this power units per second.
    Decimal(u8),
    /// 2 to this power units per second.
    Binary(u8),
}

/// Whether a file that begins with these bytes is pcapng.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    bytes == [0x0a, 0x0d, 0x0d, 0x0a]
}

impl PcapNg {
    /// Returns the next frame, complete in `source`; `None` at the end of the file.
    #[inline]
    pub(super) fn next(&mut self, source: &mut ByteSource) -> Result<Option<Frame>, CaptureFault> {
        loop {
            if source.fill(BLOCK_HEADER_BYTES)? == 0 {
                return source.take_failure().map_or(Ok(None), Err);
            }
            source.require(BLOCK_HEADER_BYTES, "a block header")?;
            let kind = word(self.order, source.available(), 0);
            if kind == SECTION_HEADER {
                self.begin_section(source)?;
                continue;
            }
            let block_bytes = word(self.order, source.available(), 4);
            if block_bytes < BLOCK_BYTES_MIN || !block_bytes.is_multiple_of(4) {
                return Err(CaptureFault::LengthImpossible { what: "a block", claimed: block_bytes.into() });
            }
            if !matches!(kind, INTERFACE | ENHANCED_PACKET | SIMPLE_PACKET | OBSOLETE_PACKET) {
                source.skip(block_bytes.into(), "a block")?;
                continue;
            }
            let block_bytes = whole_block(self.order, source, block_bytes)?;
            let block = source.available().get(..block_bytes).unwrap_or_default();
            match kind {
                INTERFACE => {
                    self.interfaces.push(Interface::parse(self.order, block)?);
                    source.consume(block_bytes);
                }
                SIMPLE_PACKET => return self.simple_packet(block).map(Some),
                _ => {
                    let frame = if kind == ENHANCED_PACKET {
                        self.enhanced_packet(block)
                    } else {
                        self.obsolete_packet(block)
                    }?;
                    self.last_time_ns = frame.time_ns;
                    return Ok(Some(frame));
                }
            }
        }
    }

    /// Begins a section: it has its own byte order, and its interfaces are numbered from 0 again.
    fn begin_section(&mut self, source: &mut ByteSource) -> Result<(), CaptureFault> {
        source.require(12, "a section header")?;
        let order = match word(ByteOrder::Little, source.available(), 8) {
            BYTE_ORDER_MAGIC => ByteOrder::Little,
            swapped if swapped == BYTE_ORDER_MAGIC.swap_bytes() => ByteOrder::Big,
            _ => return Err(CaptureFault::BlockMalformed),
        };
        let block_bytes = word(order, source.available(), 4);
        if block_bytes < SECTION_HEADER_BYTES_MIN || !block_bytes.is_multiple_of(4) {
            return Err(CaptureFault::LengthImpossible { what: "a section header", claimed: block_bytes.into() });
        }
        let block_bytes = whole_block(order, source, block_bytes)?;
        self.order = order;
        self.interfaces.clear();
        source.consume(block_bytes);
        Ok(())
    }

    fn enhanced_packet(&self, block: &[u8]) -> Result<Frame, CaptureFault> {
        let parsed = match self.order {
            ByteOrder::Little => parse_enhancedpacketblock_le(block),
            ByteOrder::Big => parse_enhancedpacketblock_be(block),
        };
        let (_, packet) = parsed.map_err(|_| CaptureFault::BlockMalformed)?;
        let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
        self.frame(packet.if_id, ticks, packet.origlen, 28, packet.caplen, block)
    }

    /// A simple packet has no time or interface: it gets interface 0 and the time of the last packet that had one.
    fn simple_packet(&self, block: &[u8]) -> Result<Frame, CaptureFault> {
        let original_len = word(self.order, block, 8);
        let room = u32::try_from(block.len()).unwrap_or(u32::MAX).saturating_sub(16);
        let snap_len = match self.interfaces.first().ok_or(CaptureFault::InterfaceUnknown(0))?.snap_len {
            0 => u32::MAX,
            limit => limit,
        };
        let frame = self.frame(0, 0, original_len, 12, original_len.min(snap_len).min(room), block)?;
        Ok(Frame { time_ns: self.last_time_ns, is_untimed: true, ..frame })
    }

    /// The obsolete packet block that the enhanced packet replaced: the same with a 16-bit interface and a drop count.
    fn obsolete_packet(&self, block: &[u8]) -> Result<Frame, CaptureFault> {
        if block.len() < 32 {
            return Err(CaptureFault::BlockMalformed);
        }
        let first = word(self.order, block, 8);
        let interface = match self.order {
            ByteOrder::Little => first & 0xffff,
            ByteOrder::Big => first >> 16,
        };
        let ticks = u64::from(word(self.order, block, 12)) << 32 | u64::from(word(self.order, block, 16));
        self.frame(interface, ticks, word(self.order, block, 24), 28, word(self.order, block, 20), block)
    }

    fn frame(
        &self,
        interface: u32,
        ticks: u64,
        frame_len: u32,
        data_at: usize,
        captured_len: u32,
        block: &[u8],
    ) -> Result<Frame, CaptureFault> {
        let unknown = CaptureFault::InterfaceUnknown(interface);
        let interface = self.interfaces.get(interface as usize).ok_or(unknown)?;
        let data = data_at..data_at + captured_len as usize;
        // The length is repeated at the block's end.
        if data.end + 4 > block.len() {
            return Err(CaptureFault::BlockMalformed);
        }
        Ok(Frame {
            time_ns: interface.time_ns(ticks),
            is_untimed: false,
            frame_len,
            link: LinkLayer::from_number(interface.link_number)?,
            data,
            unconsumed_bytes: block.len(),
        })
    }
}

impl Interface {
    fn parse(order: ByteOrder, block: &[u8]) -> Result<Self, CaptureFault> {
        let parsed = match order {
            ByteOrder::Little => parse_interfacedescriptionblock_le(block),
            ByteOrder::Big => parse_interfacedescriptionblock_be(block),
        };
        let (_, description) = parsed.map_err(|_| CaptureFault::BlockMalformed)?;
        let resolution = match description.if_tsresol {
            power if power & 0x80 != 0 => Resolution::Binary(power & 0x7f),
            power => Resolution::Decimal(power),
        };
        Ok(Self {
            link_number: description.linktype.0,
            snap_len: description.snaplen,
            resolution,
            offset_s: offset_s(order, &description),
        })
    }

    /// Converts ticks of this interface's clock to ns since 1970, limited to the range of 64 bits.
    #[inline]
    fn time_ns(&self, ticks: u64) -> u64 {
        let ns = match self.resolution {
            Resolution::Decimal(9) => u128::from(ticks),
            Resolution::Decimal(power @ 0..9) => u128::from(ticks) * 10_u128.pow(9 - u32::from(power)),
            Resolution::Decimal(power @ 10..=28) => u128::from(ticks) / 10_u128.pow(u32::from(power) - 9),
            Resolution::Decimal(_) => 0,
            Resolution::Binary(power) => (u128::from(ticks) * 1_000_000_000) >> power,
        };
        if self.offset_s == 0 {
            return u64::try_from(ns).unwrap_or(u64::MAX);
        }
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(i128::from(self.offset_s) * 1_000_000_000);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// Seconds to add to every time of the interface. The parser crate has a field for the offset, but reads it as
/// little-endian in any section.
fn offset_s(order: ByteOrder, description: &InterfaceDescriptionBlock<'_>) -> i64 {
    let option = description.options.iter().find(|option| option.code == OptionCode::IfTsoffset);
    let bytes = option.and_then(|option| option.value.first_chunk::<8>()).copied().unwrap_or_default();
    match order {
        ByteOrder::Little => i64::from_le_bytes(bytes),
        ByteOrder::Big => i64::from_be_bytes(bytes),
    }
}

/// Reads the whole block into the buffer and checks its length at both ends.
#[inline]
fn whole_block(order: ByteOrder, source: &mut ByteSource, block_bytes: u32) -> Result<usize, CaptureFault> {
    let bytes = block_bytes as usize;
    if bytes > BLOCK_BYTES_MAX {
        return Err(CaptureFault::LengthImpossible { what: "a block", claimed: block_bytes.into() });
    }
    source.require(bytes, "a block")?;
    if word(order, source.available(), bytes - 4) != block_bytes {
        return Err(CaptureFault::BlockMalformed);
    }
    Ok(bytes)
}

/// The word at `at`; 0 past the end, which every caller excludes by the block's length.
#[inline]
fn word(order: ByteOrder, bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    match order {
        ByteOrder::Little => u32::from_le_bytes(bytes),
        ByteOrder::Big => u32::from_be_bytes(bytes),
    }
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const BLOCK_HEADER_BYTES: usize = 8;
const BLOCK_BYTES_MIN: u32 = 12;
const SECTION_HEADER_BYTES_MIN: u32 = 28;
/// Largest plausible block, bytes: a frame with its options, or a section header with its comments.
const BLOCK_BYTES_MAX: usize = FRAME_BYTES_MAX + 65_536;
