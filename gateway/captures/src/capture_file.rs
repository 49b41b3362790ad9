//! Captures as streams of UDP datagrams: pcap, pcapng and Nasdaq's day files, plain, gzip or zstd.
//!
//! The first bytes of a file decide its format, never its name. Memory is bounded: one buffer per file, whatever its
//! size. A truncated or damaged file yields everything up to the damage, then one [`CaptureError`] that names the file
//! and the offset; nothing after that.
//!
//! Deliberately left out: reassembly of IP fragments (counted and skipped, since market data is never fragmented) and
//! checksums (a capture on the sending host has none yet).

mod byte_source;
mod day_file;
mod error;
mod frame_header;
mod link;
mod pcap;
mod pcapng;
pub mod pcapng_blocks;
mod writer;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use mdgw_wire::time::TradingDate;

pub use self::error::{CaptureError, CaptureFault};
pub use self::frame_header::{FRAME_HEADER_BYTES, frame_header};
pub use self::link::VlanTags;
pub use self::writer::{PcapWriter, truncate_to_whole_packets};
use self::{byte_source::ByteSource, day_file::DayFile, link::LinkLayer, pcap::Pcap, pcapng::PcapNg};

/// An open capture. [`Self::advance`] moves to a datagram, [`Self::current`] returns it.
#[derive(Debug)]
pub struct CaptureFile {
    path: PathBuf,
    source: ByteSource,
    container: Container,
    counts: CaptureCounts,
    head: Option<CurrentDatagram>,
    /// Bytes of the source that the next step must consume first: the current frame.
    unconsumed_bytes: usize,
    ended: bool,
}

/// Information that the file may lack.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Trading date of a day file, whose times count from midnight. `None`: taken from the file's name.
    pub date: Option<TradingDate>,
    /// MoldUDP64 session under which a day file is replayed, padded with spaces. Empty: its date.
    pub session_name: String,
}

/// One UDP datagram of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedDatagram<'a> {
    /// Number of the frame in its file, from 1, frames other than UDP included. In a day file: number of the synthetic
    /// packet.
    pub frame: u64,
    /// Capture time, ns since 1970 UTC.
    pub time_ns: u64,
    /// Length of the frame on the wire, bytes.
    pub frame_len: u32,
    /// Captured bytes of the frame.
    pub captured_len: u32,
    /// VLAN tags, outermost first.
    pub vlan: VlanTags,
    /// Address of the sender.
    pub src: SocketAddr,
    /// Address of the receiver.
    pub dst: SocketAddr,
    /// UDP payload; shorter than on the wire if the frame was truncated.
    pub payload: &'a [u8],
    /// Whether part of the payload was not captured.
    pub is_truncated: bool,
}

/// Counts of the frames read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Frames of any kind.
    pub frames: u64,
    /// UDP datagrams among them.
    pub datagrams: u64,
    /// Frames of other protocols.
    pub not_udp: u64,
    /// Fragments of IP packets, skipped.
    pub fragments: u64,
    /// Frames whose headers contradict their lengths, skipped.
    pub malformed: u64,
    /// Frames truncated by the capture's snap length. Datagrams are returned with a shorter payload; frames without
    /// whole headers are skipped.
    pub truncated: u64,
    /// Frames without a timestamp (simple packets of pcapng); each gets the time of the frame before it.
    pub untimed: u64,
}

/// Origin of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureKind {
    /// Packets as captured.
    Packets,
    /// A Nasdaq day file: it contains messages without packets, and the packets are synthetic.
    DayFile,
}

impl CaptureFile {
    /// Opens a capture and reads its header.
    ///
    /// # Errors
    /// The file cannot be opened or read, is empty, is not a capture, or is a day file of unknown date.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, CaptureError> {
        Self::open_source(path, options, None)
    }

    /// Opens a capture that still grows. At its end the reader waits for more until `stop` is set. A frame that is
    /// incomplete by then is reported as a truncated file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn follow(path: &Path, options: &OpenOptions, stop: Arc<AtomicBool>) -> Result<Self, CaptureError> {
        Self::open_source(path, options, Some(stop))
    }

    fn open_source(path: &Path, options: &OpenOptions, follow: Option<Arc<AtomicBool>>) -> Result<Self, CaptureError> {
        let fail = |offset, decompressed, fault| CaptureError { path: path.to_owned(), offset, decompressed, fault };
        let mut source = ByteSource::open(path, follow).map_err(|error| fail(0, false, CaptureFault::Open(error)))?;
        let container = match Container::detect_protocol(&mut source, path, options) {
            Ok(container) => container,
            Err(fault) => return Err(fail(source.offset(), source.is_decompressed(), fault)),
        };
        Ok(Self {
            path: path.to_owned(),
            source,
            container,
            counts: CaptureCounts::default(),
            head: None,
            unconsumed_bytes: 0,
            ended: false,
        })
    }

    /// Advances to the next datagram; `false` at the end of the file.
    ///
    /// # Errors
    /// The file is truncated or damaged here. All datagrams before were returned; no more follow.
    #[inline]
    pub fn advance(&mut self) -> Result<bool, CaptureError> {
        self.head = None;
        if self.ended {
            return Ok(false);
        }
        match self.step() {
            Ok(more) => {
                self.ended = !more;
                Ok(more)
            }
            Err(fault) => {
                self.ended = true;
                Err(CaptureError {
                    path: self.path.clone(),
                    offset: self.source.offset(),
                    decompressed: self.source.is_decompressed(),
                    fault,
                })
            }
        }
    }

    /// The datagram that [`Self::advance`] moved to.
    #[inline]
    #[must_use]
    pub fn current(&self) -> Option<CapturedDatagram<'_>> {
        let head = self.head.as_ref()?;
        let bytes = match &self.container {
            Container::Day(day) => day.packet(),
            Container::Pcap(_) | Container::PcapNg(_) => self.source.available(),
        };
        Some(CapturedDatagram {
            frame: head.frame,
            time_ns: head.time_ns,
            frame_len: head.frame_len,
            captured_len: head.captured_len,
            vlan: head.vlan,
            src: head.src,
            dst: head.dst,
            payload: bytes.get(head.payload.clone())?,
            is_truncated: head.is_truncated,
        })
    }

    /// [`Self::advance`] and [`Self::current`] in one; `None` at the end of the file.
    ///
    /// # Errors
    /// As [`Self::advance`].
    #[inline]
    pub fn next_datagram(&mut self) -> Result<Option<CapturedDatagram<'_>>, CaptureError> {
        Ok(if self.advance()? { self.current() } else { None })
    }

    /// Path as given to [`Self::open`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether packets were captured or made from a day file.
    #[must_use]
    pub fn kind(&self) -> CaptureKind {
        match self.container {
            Container::Pcap(_) | Container::PcapNg(_) => CaptureKind::Packets,
            Container::Day(_) => CaptureKind::DayFile,
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> CaptureCounts {
        self.counts
    }

    /// Bytes of the file itself, compressed or not, read so far, for a progress bar.
    #[must_use]
    pub fn file_bytes_read(&self) -> u64 {
        self.source.file_bytes_read()
    }

    /// Trading date of a day file.
    #[must_use]
    pub fn day_file_date(&self) -> Option<TradingDate> {
        match &self.container {
            Container::Day(day) => Some(day.date()),
            Container::Pcap(_) | Container::PcapNg(_) => None,
        }
    }

    fn step(&mut self) -> Result<bool, CaptureFault> {
        loop {
            self.source.consume(std::mem::take(&mut self.unconsumed_bytes));
            let frame = match &mut self.container {
                Container::Pcap(pcap) => pcap.next(&mut self.source)?,
                Container::PcapNg(pcapng) => pcapng.next(&mut self.source)?,
                Container::Day(day) => {
                    let Some((time_ns, packet_bytes)) = day.next(&mut self.source)? else { return Ok(false) };
                    self.counts.frames += 1;
                    self.counts.datagrams += 1;
                    let length = u32::try_from(packet_bytes).unwrap_or(u32::MAX);
                    self.head = Some(CurrentDatagram {
                        frame: self.counts.frames,
                        time_ns,
                        frame_len: length,
                        captured_len: length,
                        vlan: VlanTags::default(),
                        src: day_file::ADDRESS,
                        dst: day_file::ADDRESS,
                        payload: 0..packet_bytes,
                        is_truncated: false,
                    });
                    return Ok(true);
                }
            };
            let Some(frame) = frame else { return Ok(false) };
            self.unconsumed_bytes = frame.unconsumed_bytes;
            self.counts.frames += 1;
            self.counts.untimed += u64::from(frame.is_untimed);
            let Some(bytes) = self.source.available().get(frame.data.clone()) else {
                return Err(CaptureFault::BlockMalformed);
            };
            let captured_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let is_truncated = captured_len < frame.frame_len;
            match link::find_udp(frame.link, bytes) {
                // The frame is complete, but its headers declare a longer datagram.
                Ok(udp) if udp.is_truncated && !is_truncated => self.counts.malformed += 1,
                Ok(udp) => {
                    self.counts.datagrams += 1;
                    self.counts.truncated += u64::from(udp.is_truncated);
                    let start = frame.data.start;
                    self.head = Some(CurrentDatagram {
                        frame: self.counts.frames,
                        time_ns: frame.time_ns,
                        frame_len: frame.frame_len,
                        captured_len,
                        vlan: udp.vlan,
                        src: udp.src,
                        dst: udp.dst,
                        payload: start + udp.payload.start..start + udp.payload.end,
                        is_truncated: udp.is_truncated,
                    });
                    return Ok(true);
                }
                Err(link::Skipped::NotUdp) => self.counts.not_udp += 1,
                Err(link::Skipped::Fragment) => self.counts.fragments += 1,
                Err(link::Skipped::Malformed) if is_truncated => self.counts.truncated += 1,
                Err(link::Skipped::Malformed) => self.counts.malformed += 1,
            }
        }
    }
}

/// Sender and payload of the UDP datagram in an Ethernet frame, if it is complete.
#[must_use]
pub fn udp_payload(frame: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let udp = link::find_udp(LinkLayer::Ethernet, frame).ok()?;
    if udp.is_truncated { None } else { frame.get(udp.payload).map(|payload| (udp.src, payload)) }
}

/// The current datagram. `payload` is a range counted from the first unconsumed byte of the source (or of the day
/// file's packet).
#[derive(Debug)]
struct CurrentDatagram {
    frame: u64,
    time_ns: u64,
    frame_len: u32,
    captured_len: u32,
    vlan: VlanTags,
    src: SocketAddr,
    dst: SocketAddr,
    payload: Range<usize>,
    is_truncated: bool,
}

/// A link-layer frame that is complete in the source, from its first unconsumed byte.
#[derive(Debug)]
struct Frame {
    time_ns: u64,
    /// The frame has no timestamp; this is the time of the frame before.
    is_untimed: bool,
    frame_len: u32,
    link: LinkLayer,
    /// The captured bytes of the frame.
    data: Range<usize>,
    /// Bytes of the frame's record or block, from the first unconsumed byte; the next step consumes them.
    unconsumed_bytes: usize,
}

#[derive(Debug)]
enum Container {
    Pcap(Pcap),
    PcapNg(PcapNg),
    Day(DayFile),
}

impl Container {
    fn detect_protocol(source: &mut ByteSource, path: &Path, options: &OpenOptions) -> Result<Self, CaptureFault> {
        let available = source.fill(4)?;
        if available == 0 {
            return Err(source.take_failure().unwrap_or(CaptureFault::Empty));
        }
        match source.available().first_chunk::<4>() {
            Some(magic) if pcap::is_magic(*magic) => Pcap::open(source).map(Self::Pcap),
            Some(magic) if pcapng::is_magic(*magic) => Ok(Self::PcapNg(PcapNg::default())),
            Some(magic) if day_file::is_start(*magic) => DayFile::open(path, options).map(Self::Day),
            _ => Err(source.take_failure().unwrap_or(CaptureFault::NotACapture)),
        }
    }
}

/// Largest plausible frame, bytes: the largest snap length that libpcap allows.
const FRAME_BYTES_MAX: usize = 262_144;
