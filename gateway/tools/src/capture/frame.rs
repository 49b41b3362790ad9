//! A frame as a line brings it, and what brings it.

use std::{io, net::SocketAddr, os::fd::BorrowedFd};

use mdgw_captures::capture_file::{FRAME_HEADER_BYTES, udp_payload};
use mdgw_sys::batch::StampKind;

/// One frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    /// Its stamp, ns since 1970 UTC; where nobody stamped it, when it was read.
    pub(super) time_ns: u64,
    pub(super) stamp: StampKind,
    pub(super) content: Content<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// A datagram from a socket, with the headers that are made up for it.
    Datagram { header: [u8; FRAME_HEADER_BYTES], payload: &'a [u8], src: SocketAddr, is_truncated: bool },
    /// A frame as it came; the VLAN tag that the kernel took off.
    RawFrame { bytes: &'a [u8], vlan: Option<[u8; 4]>, wire_bytes: u32 },
}

impl Frame<'_> {
    /// Sender and payload, where it is a datagram that came whole.
    pub(super) fn datagram(&self) -> Option<(SocketAddr, &[u8])> {
        match &self.content {
            Content::Datagram { is_truncated: true, .. } => None,
            Content::Datagram { payload, src, .. } => Some((*src, payload)),
            Content::RawFrame { bytes, .. } => udp_payload(bytes),
        }
    }

    /// Bytes on the wire. Of a datagram that was cut it is only known that there was more.
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

/// What brings the frames of one line: a socket or a ring.
pub(super) trait LineReader {
    /// Takes in further frames, when all those before were taken. False: nothing more waits now.
    ///
    /// # Errors
    /// What the kernel says.
    fn refill(&mut self, now_ns: u64) -> io::Result<bool>;

    /// Stamp of the frame that is next.
    fn head_ns(&self) -> Option<u64>;

    /// The frame that is next.
    fn head(&self) -> Option<Frame<'_>>;

    /// Takes it.
    fn pop(&mut self);

    /// What the kernel has dropped of this line since it was opened.
    ///
    /// # Errors
    /// What the kernel says.
    fn dropped(&mut self) -> io::Result<u64>;

    /// Becomes readable when a frame comes.
    fn descriptor(&self) -> BorrowedFd<'_>;
}
