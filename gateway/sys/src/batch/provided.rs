//! Buffers that a ring fills and a batch passes on without copying.

#![allow(unsafe_code, reason = "headers that the kernel writes through")]

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddrV4},
};

use crossbeam_queue::ArrayQueue;
use io_uring::types::RecvMsgOut;
use mdgw_wire::{identity::Line, time::UnixNs};

use super::{
    StampKind,
    control::{self, CONTROL_BYTES},
    pinned_array::PinnedArray,
    receive::{NAME_BYTES, ReceiveBatch},
};

/// A fixed number of buffers in one allocation, each with an id. The owner of an id has exclusive access to its buffer.
/// The owner is the kernel (the buffer is in the buffer ring), the ring's thread (it was filled), a batch (it holds a
/// datagram), or none (it was returned and waits for the ring's thread).
///
/// ```text
///   | recvmsg header 16 | source 16 | control data 96 | datagram ... 2,048 |
/// ```
pub struct ProvidedBuffers {
    memory: PinnedArray<u8>,
    returned: ArrayQueue<u16>,
}

/// Bytes of one buffer.
pub const STRIDE: usize = 16 + 16 + CONTROL_BYTES + ReceiveBatch::DATAGRAM_BYTES_MAX;
const _: () = assert!(16 == NAME_BYTES as usize && STRIDE.is_multiple_of(64));

impl ProvidedBuffers {
    /// Allocates `count` buffers. The caller owns all of them at first.
    #[must_use]
    pub fn new(count: u16) -> Self {
        let memory = PinnedArray::new(usize::from(count) * STRIDE, |_| 0);
        Self { memory, returned: ArrayQueue::new(usize::from(count)) }
    }

    /// Address of a buffer.
    ///
    /// # Panics
    /// If there is no buffer with that id.
    #[must_use]
    pub fn at(&self, id: u16) -> *mut u8 {
        self.memory.at(usize::from(id) * STRIDE)
    }

    /// Id of a returned buffer, which the ring's thread owns from now on; `None` if none was returned.
    pub fn take_returned(&self) -> Option<u16> {
        self.returned.pop()
    }

    /// Returns a buffer. The queue has room for all buffers, so this never fails.
    pub(super) fn return_buffer(&self, id: u16) {
        let returned = self.returned.push(id);
        debug_assert!(returned.is_ok());
    }

    /// The datagram that the kernel wrote into a buffer; `None` if it is malformed or not IPv4.
    ///
    /// # Safety
    /// The caller owns the buffer, and the kernel wrote `written` bytes to it.
    pub(super) unsafe fn datagram(&self, id: u16, written: usize) -> Option<ProvidedDatagram> {
        // SAFETY: the buffer is `STRIDE` long, initialised, and the caller owns it.
        let bytes = unsafe { std::slice::from_raw_parts(self.at(id), written.min(STRIDE)) };
        let out = RecvMsgOut::parse(bytes, &message_template()).ok()?;
        let (ts_recv, stamp) = control::stamp(out.control_data());
        let length = out.payload_data().len();
        Some(ProvidedDatagram {
            offset: bytes.len() - length,
            length,
            ts_recv,
            stamp,
            source: source(out.name_data())?,
            truncated: out.is_payload_truncated(),
        })
    }
}

/// The message header that describes to the kernel the layout of a buffer: room for source and control data.
pub fn message_template() -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: NAME_BYTES,
        msg_iov: std::ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: std::ptr::null_mut(),
        msg_controllen: CONTROL_BYTES,
        msg_flags: 0,
    }
}

// SAFETY: only the owner of an id accesses the buffer's memory, and ids change owners through the queue, which
// synchronises.
unsafe impl Send for ProvidedBuffers {}
// SAFETY: as above.
unsafe impl Sync for ProvidedBuffers {}

impl fmt::Debug for ProvidedBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProvidedBuffers").field("count", &self.returned.capacity()).finish_non_exhaustive()
    }
}

/// Offset and length of a datagram in its buffer, with its metadata.
pub(super) struct ProvidedDatagram {
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) ts_recv: Option<UnixNs>,
    pub(super) stamp: StampKind,
    pub(super) source: SocketAddrV4,
    pub(super) truncated: bool,
}

/// A `sockaddr_in` as bytes: family, then port and address in network order.
fn source(name: &[u8]) -> Option<SocketAddrV4> {
    let (_family, rest) = name.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let (ip, _) = rest.split_first_chunk::<4>()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(*ip), u16::from_be_bytes(*port)))
}

impl ReceiveBatch {
    /// Takes a buffer that the kernel filled, without copying, and owns it until [`Self::clear`]. A buffer without a
    /// datagram is returned at once. `false`: the batch is full, and the caller keeps the buffer.
    ///
    /// # Errors
    /// If the batch still holds buffers of another ring.
    ///
    /// # Safety
    /// The caller owns the buffer, and the kernel wrote `written` bytes to it.
    pub unsafe fn push_provided(
        &mut self,
        buffers: &std::sync::Arc<ProvidedBuffers>,
        id: u16,
        written: usize,
        line: Line,
    ) -> io::Result<bool> {
        if self.room() == 0 {
            return Ok(false);
        }
        self.set_provider(buffers)?;
        // SAFETY: the caller guarantees it, see above.
        match unsafe { buffers.datagram(id, written) } {
            Some(datagram) => self.record_provided(id, &datagram, line),
            None => buffers.return_buffer(id),
        }
        Ok(true)
    }
}
