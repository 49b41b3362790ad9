//! A captured frame, and the trait of its readers.

use std::{io, net::SocketAddr, os::fd::BorrowedFd};

use mdgw_captures::capture_file::{FRAME_HEADER_BYTES, udp_payload};
use mdgw_sys::batch::StampKind;

/// One frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    /// Timestamp, ns since 1970 UTC; without one, the time of reading.
    pub(super) time_ns: u64,
    pub(super) stamp: StampKind,
    pub(super) content: Content<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// A datagram from a socket, with synthetic headers.
    Datagram { header: [u8; FRAME_HEADER_BYTES], payload: &'a [u8], src: SocketAddr, is_truncated: bool },
    /// A frame as received, and the VLAN tag that the kernel removed.
    RawFrame { bytes: &'a [u8], vlan: Option<[u8; 4]>, wire_bytes: u32 },
}

impl Frame<'_> {
    /// Sender and payload, if the frame is a complete datagram.
    pub(super) fn datagram(&self) -> Option<(SocketAddr, &[u8])> {
        match &self.content {
            Content::Datagram { is_truncated: true, .. } => None,
            Content::Datagram { payload, src, .. } => Some((*src, payload)),
            Content::RawFrame { bytes, .. } => udp_payload(bytes),
        }
    }

    /// Length on the wire, bytes. Of a truncated datagram only a lower bound is known.
    pub(super) fn wire_bytes(&self) -> u32 {
        match self.content {
            Content::Datagram { header, payload, is_truncated, .. } => {
                u32::try_from(header.len() + payload.len()).unwrap_or(u32::MAX).saturating_add(is_truncated.into())
            }
            Content::RawFrame { wire_bytes, vlan, .. } => wire_bytes.saturating_add(if vlan.is_some() { 4 } else { 0 }),
        }
    }

    /// Whether bytes are missing at its end.
    pub(super) fn is_truncated(&self) -> bool {
        match self.content {
            Content::Datagram { is_truncated, .. } => is_truncated,
            Content::RawFrame { bytes, wire_bytes, .. } => (bytes.len() as u64) < u64::from(wire_bytes),
        }
    }
}

/// Reader of one line's frames: a socket or a packet ring.
pub(super) trait LineReader {
    /// Reads further frames after all earlier ones were consumed. False: none are waiting now.
    ///
    /// # Errors
    /// Error of the kernel.
    fn refill(&mut self, now_ns: u64) -> io::Result<bool>;

    /// Timestamp of the next frame.
    fn head_ns(&self) -> Option<u64>;

    /// The frame that [`Self::pop`] would consume; `None` if none is waiting.
    fn head(&self) -> Option<Frame<'_>>;

    /// Consumes the next frame.
    fn pop(&mut self);

    /// Packets of this line that the kernel dropped since it was opened.
    ///
    /// # Errors
    /// Error of the kernel.
    fn dropped(&mut self) -> io::Result<u64>;

    /// Descriptor that becomes readable when a frame arrives.
    fn descriptor(&self) -> BorrowedFd<'_>;
}
