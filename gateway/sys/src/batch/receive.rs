//! Received datagrams of one channel.

#![allow(unsafe_code, reason = "headers that the kernel writes through")]

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::RawFd,
    sync::Arc,
};

use mdgw_wire::{identity::Line, time::UnixNs};

use super::{
    control::{self, CONTROL_BYTES, Control},
    pinned_array::PinnedArray,
    provided::{ProvidedBuffers, ProvidedDatagram},
};

/// Source of a receive timestamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StampKind {
    /// The NIC's clock, at the arrival from the wire.
    Hardware,
    /// The kernel's clock, when the driver handed the datagram over.
    Kernel,
    /// No timestamp: the caller uses the clock on return from the wait.
    #[default]
    None,
}

/// One datagram of a [`ReceiveBatch`].
#[derive(Clone, Copy, Debug)]
pub struct ReceivedDatagram<'a> {
    /// The line on whose socket it arrived.
    pub line: Line,
    /// UDP payload, truncated at the batch's limit if `truncated`.
    pub bytes: &'a [u8],
    /// Timestamp of the NIC or of the kernel.
    pub ts_recv: Option<UnixNs>,
    /// Source of `ts_recv`.
    pub stamp: StampKind,
    /// Address of the sender.
    pub source: SocketAddrV4,
    /// The datagram was larger than the buffer.
    pub truncated: bool,
}

/// Room for a fixed number of datagrams of a fixed size, with the headers that the kernel needs.
///
/// ```text
///   headers[i] ─┬─ iovecs[i] ── bytes[i * datagram_bytes_max ..]
///               ├─ names[i]       address of the sender
///               └─ controls[i]    timestamps
/// ```
/// `free[rows_used..]` are the numbers of free rows. After a submission in which some requests received nothing, the
/// rows in use are not in the order of arrival.
pub struct ReceiveBatch {
    rows: Rows,
    /// A permutation of the row numbers: first those in use, then the free ones.
    free: Box<[u16]>,
    /// Whether `free` still ascends, so that free rows are adjacent.
    is_free_sorted: bool,
    entries: Vec<DatagramEntry>,
    /// Number of `entries` that lie in rows; the others lie in buffers of `provider`.
    rows_used: usize,
    /// Datagrams accepted until the next clear, at most the number of rows.
    packets_limit: usize,
    provider: Option<Arc<ProvidedBuffers>>,
}

impl ReceiveBatch {
    /// Packets of a default batch, also the default quota of one claim.
    pub const PACKETS_MAX: usize = 64;
    /// Largest batch: the limit of one system call (`UIO_MAXIOV`).
    pub const ROWS_MAX: usize = 1_024;
    /// Bytes per datagram: enough for any datagram in a 1,500-byte Ethernet frame.
    pub const DATAGRAM_BYTES_MAX: usize = 2_048;

    /// Allocates and touches all memory of the batch.
    ///
    /// # Panics
    /// If `packets_max` is 0 or above [`Self::ROWS_MAX`].
    #[must_use]
    pub fn new(packets_max: usize, datagram_bytes_max: usize) -> Self {
        assert!((1..=Self::ROWS_MAX).contains(&packets_max), "packets_max {packets_max}: 1 to {}", Self::ROWS_MAX);
        let rows = Rows::new(packets_max, datagram_bytes_max);
        let free = (0..=u16::MAX).take(packets_max).collect();
        Self {
            rows,
            free,
            is_free_sorted: true,
            entries: Vec::with_capacity(packets_max),
            rows_used: 0,
            packets_limit: packets_max,
            provider: None,
        }
    }

    /// Removes all datagrams. Provided buffers are returned to their ring.
    pub fn clear(&mut self) {
        for entry in &self.entries {
            if let (BufferLocation::Provided { id, .. }, Some(provider)) = (entry.location, &self.provider) {
                provider.return_buffer(id);
            }
        }
        self.entries.clear();
        self.rows_used = 0;
        self.packets_limit = self.free.len();
        if !self.is_free_sorted {
            self.free.sort_unstable();
            self.is_free_sorted = true;
        }
    }

    /// Clears the batch. It then accepts at most `packets_max` datagrams until it is cleared again.
    pub fn clear_with_limit(&mut self, packets_max: usize) {
        self.clear();
        self.packets_limit = self.packets_limit.min(packets_max);
    }

    /// Number of datagrams in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of datagrams that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.packets_limit - self.entries.len()
    }

    /// The datagram at `index`, in the order of reading.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<ReceivedDatagram<'_>> {
        self.entries.get(index).map(|entry| self.view(entry))
    }

    /// All datagrams, in the order of reading.
    pub fn iter(&self) -> impl Iterator<Item = ReceivedDatagram<'_>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    /// Copies a datagram into the batch, for sources other than sockets. `false` if the batch is full.
    #[cfg(test)]
    pub(crate) fn push_copy(&mut self, datagram: &ReceivedDatagram<'_>) -> bool {
        let Some(row) = self.first_free_row() else { return false };
        let length = datagram.bytes.len().min(self.rows.datagram_bytes_max);
        let target = self.rows.bytes_of(row);
        // SAFETY: the row has `datagram_bytes_max` bytes at `target`, no more than that are written, and no reference
        // into a free row exists; `datagram.bytes` cannot lie in it, since it would borrow `self`.
        unsafe { target.copy_from_nonoverlapping(datagram.bytes.as_ptr(), length) };
        self.rows_used += 1;
        self.entries.push(DatagramEntry {
            location: BufferLocation::Row(row),
            length,
            line: datagram.line,
            ts_recv: datagram.ts_recv,
            stamp: datagram.stamp,
            source: datagram.source,
            truncated: datagram.truncated || length < datagram.bytes.len(),
        });
        true
    }

    /// Reads a socket without blocking until a read is short, `packets_max` datagrams have been read or the batch is
    /// full. `true`: the socket may hold more.
    ///
    /// # Errors
    /// As `recvmmsg`, other than "would block".
    pub(crate) fn receive_many(&mut self, line: Line, socket: RawFd, packets_max: usize) -> io::Result<bool> {
        let Some(row) = self.first_free_row() else { return Ok(true) };
        let requested = self.contiguous_free_rows().min(u16::try_from(packets_max).unwrap_or(u16::MAX));
        let headers = self.rows.headers.at(usize::from(row));
        // SAFETY: recvmmsg(2) reads and writes `requested` headers from `headers` on and, through them, the memory that
        // `Rows` linked to them. They are rows `row..row + requested`, all of them free, so no reference into them
        // exists. `MSG_DONTWAIT`: the kernel keeps none of the pointers after the call.
        let received =
            unsafe { libc::recvmmsg(socket, headers, u32::from(requested), libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        let Ok(received) = u16::try_from(received) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) };
        };
        for row in row..row + received {
            self.record_row(row, line, None);
        }
        Ok(received == requested)
    }

    /// Header of the `offset`th free row, for a request that fills it; `None` if there is no such row. The kernel may
    /// write to the row until [`Self::accept_completions`].
    pub fn free_header(&mut self, offset: usize) -> Option<*mut libc::msghdr> {
        if offset >= self.room() {
            return None;
        }
        let &row = self.free.get(self.rows_used + offset)?;
        let header = self.rows.headers.at(usize::from(row));
        // SAFETY: `header` is a value of `headers`; only the address of its first field is taken.
        Some(unsafe { &raw mut (*header).msg_hdr })
    }

    /// Adds the free rows that requests filled. `requests` has, in the order of [`Self::free_header`], each row's line
    /// and the bytes received, `None` if nothing was received.
    ///
    /// # Safety
    /// Every request has completed, and wrote that many bytes to its row.
    pub unsafe fn accept_completions(&mut self, requests: impl Iterator<Item = (Line, Option<usize>)>) {
        let first = self.rows_used;
        for (offset, (line, received)) in requests.enumerate() {
            let Some(length) = received else { continue };
            let (next, at) = (self.rows_used, first + offset);
            if next != at {
                self.free.swap(next, at);
                self.is_free_sorted = false;
            }
            self.record_row(self.free[next], line, Some(length));
        }
    }

    fn view(&self, entry: &DatagramEntry) -> ReceivedDatagram<'_> {
        // SAFETY: a row has been in use since its `length` bytes were written (`record_row` and `push_copy` limit it to
        // the row's size). A provided buffer is ours since `record_provided`, and `length` bytes of it were written. No
        // code writes to either before `clear`, which needs `&mut self`.
        let bytes = unsafe { std::slice::from_raw_parts(self.address(entry.location), entry.length) };
        ReceivedDatagram {
            line: entry.line,
            bytes,
            ts_recv: entry.ts_recv,
            stamp: entry.stamp,
            source: entry.source,
            truncated: entry.truncated,
        }
    }

    fn address(&self, location: BufferLocation) -> *const u8 {
        match (location, &self.provider) {
            (BufferLocation::Row(row), _) => self.rows.bytes_of(row),
            (BufferLocation::Provided { id, offset }, Some(provider)) => provider.at(id).wrapping_add(offset),
            (BufferLocation::Provided { .. }, None) => unreachable!("`record_provided` comes after `set_provider`"),
        }
    }

    /// Sets the provider of the buffers that the batch may hold.
    pub(super) fn set_provider(&mut self, buffers: &Arc<ProvidedBuffers>) -> io::Result<()> {
        if self.provider.as_ref().is_some_and(|provider| Arc::ptr_eq(provider, buffers)) {
            return Ok(());
        }
        if self.entries.len() > self.rows_used {
            return Err(io::Error::other("the batch still holds buffers of another ring"));
        }
        self.provider = Some(Arc::clone(buffers));
        Ok(())
    }

    /// Records a datagram in a buffer that the batch owns from now on.
    pub(super) fn record_provided(&mut self, id: u16, datagram: &ProvidedDatagram, line: Line) {
        self.entries.push(DatagramEntry {
            location: BufferLocation::Provided { id, offset: datagram.offset },
            length: datagram.length,
            line,
            ts_recv: datagram.ts_recv,
            stamp: datagram.stamp,
            source: datagram.source,
            truncated: datagram.truncated,
        });
    }

    fn first_free_row(&self) -> Option<u16> {
        if self.room() == 0 { None } else { self.free.get(self.rows_used).copied() }
    }

    /// Number of adjacent free rows from the first free one on.
    fn contiguous_free_rows(&self) -> u16 {
        let free = self.free.get(self.rows_used..).unwrap_or(&[]);
        let count = if self.is_free_sorted {
            free.len()
        } else {
            1 + free.windows(2).take_while(|pair| matches!(pair, [a, b] if a + 1 == *b)).count()
        };
        u16::try_from(count.min(self.room())).unwrap_or(u16::MAX)
    }

    /// Records a datagram that the kernel wrote into the first free row, and resets its header. `length` is given if
    /// the header does not contain it (a single `recvmsg`).
    fn record_row(&mut self, row: u16, line: Line, length: Option<usize>) {
        let header = self.rows.headers.at(usize::from(row));
        // SAFETY: the kernel is done with the row, and `&mut self` is the only access to it.
        let header = unsafe { &mut *header };
        let length = length.unwrap_or(header.msg_len as usize).min(self.rows.datagram_bytes_max);
        // SAFETY: `names` has a value at every row, linked by `Rows`, with no other access to it.
        let name = unsafe { *self.rows.names.at(usize::from(row)) };
        // SAFETY: as above, for `controls`.
        let control = unsafe { &*self.rows.controls.at(usize::from(row)) };
        let control_bytes = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
        let (ts_recv, stamp) = control::stamp(control.0.get(..control_bytes).unwrap_or(&[]));
        self.rows_used += 1;
        self.entries.push(DatagramEntry {
            location: BufferLocation::Row(row),
            length,
            line,
            ts_recv,
            stamp,
            source: source(&name),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        });
        header.msg_hdr.msg_namelen = NAME_BYTES;
        header.msg_hdr.msg_controllen = CONTROL_BYTES;
        header.msg_hdr.msg_flags = 0;
    }
}

impl Drop for ReceiveBatch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveBatch").field("len", &self.len()).field("room", &self.room()).finish_non_exhaustive()
    }
}

// SAFETY: the pointers in a batch lead to memory that it owns alone; the owner of the batch has all access to it.
unsafe impl Send for ReceiveBatch {}

/// Metadata of a datagram.
struct DatagramEntry {
    location: BufferLocation,
    length: usize,
    line: Line,
    ts_recv: Option<UnixNs>,
    stamp: StampKind,
    source: SocketAddrV4,
    truncated: bool,
}

/// Where the bytes of a datagram lie: in a row of the batch, or in a provided buffer.
#[derive(Clone, Copy)]
enum BufferLocation {
    Row(u16),
    Provided { id: u16, offset: usize },
}

/// The memory that the kernel fills: headers, addresses, control data and datagrams.
struct Rows {
    headers: PinnedArray<libc::mmsghdr>,
    names: PinnedArray<libc::sockaddr_in>,
    controls: PinnedArray<Control>,
    bytes: PinnedArray<u8>,
    datagram_bytes_max: usize,
    /// Owned here, and used only through the pointers in `headers`.
    _iovecs: PinnedArray<libc::iovec>,
}

impl Rows {
    fn new(count: usize, datagram_bytes_max: usize) -> Self {
        let bytes = PinnedArray::new(count * datagram_bytes_max, |_| 0_u8);
        let names = PinnedArray::new(count, |_| NO_NAME);
        let controls = PinnedArray::new(count, |_| Control([0; CONTROL_BYTES]));
        let iovecs = PinnedArray::new(count, |row| libc::iovec {
            iov_base: bytes.at(row * datagram_bytes_max).cast(),
            iov_len: datagram_bytes_max,
        });
        let headers = PinnedArray::new(count, |row| libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: names.at(row).cast(),
                msg_namelen: NAME_BYTES,
                msg_iov: iovecs.at(row),
                msg_iovlen: 1,
                msg_control: controls.at(row).cast(),
                msg_controllen: CONTROL_BYTES,
                msg_flags: 0,
            },
            msg_len: 0,
        });
        Self { headers, names, controls, bytes, datagram_bytes_max, _iovecs: iovecs }
    }

    fn bytes_of(&self, row: u16) -> *mut u8 {
        self.bytes.at(usize::from(row) * self.datagram_bytes_max)
    }
}

/// A `sockaddr_in` as a socket address.
pub(super) fn source(name: &libc::sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)), u16::from_be(name.sin_port))
}

#[allow(clippy::cast_possible_truncation, reason = "16 bytes")]
pub(super) const NAME_BYTES: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

const NO_NAME: libc::sockaddr_in =
    libc::sockaddr_in { sin_family: 0, sin_port: 0, sin_addr: libc::in_addr { s_addr: 0 }, sin_zero: [0; 8] };

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, os::fd::AsRawFd};

    use super::*;

    fn pair() -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        (receiver, sender)
    }

    #[test]
    fn one_call_receives_many_datagrams_with_source_and_truncation_flag() {
        let (receiver, sender) = pair();
        let mut batch = ReceiveBatch::new(4, 8);
        for bytes in [&b"one"[..], b"", b"three is too long", b"four", b"five"] {
            sender.send(bytes).unwrap();
        }
        assert!(batch.receive_many(Line::B, receiver.as_raw_fd(), usize::MAX).unwrap(), "full: there may be more");
        let seen: Vec<_> = batch.iter().map(|datagram| (datagram.bytes.to_vec(), datagram.truncated)).collect();
        let expected = [(&b"one"[..], false), (b"", false), (b"three is", true), (b"four", false)];
        assert_eq!(seen, expected.map(|(bytes, cut)| (bytes.to_vec(), cut)));
        assert!(batch.iter().all(|datagram| datagram.line == Line::B));
        assert!(batch.iter().all(|datagram| sender.local_addr().unwrap() == datagram.source.into()));
        assert_eq!((batch.len(), batch.room(), batch.is_empty()), (4, 0, false));
        assert!(batch.receive_many(Line::B, receiver.as_raw_fd(), usize::MAX).unwrap(), "no room: there may be more");

        batch.clear();
        assert!(batch.get(0).is_none());
        assert!(!batch.receive_many(Line::B, receiver.as_raw_fd(), usize::MAX).unwrap(), "short: drained");
        assert_eq!(batch.get(0).unwrap().bytes, b"five");
        assert!(!batch.get(0).unwrap().truncated, "the flag of the last use is cleared");
        assert!(!batch.receive_many(Line::B, receiver.as_raw_fd(), usize::MAX).unwrap(), "an empty socket is no error");
    }

    #[test]
    fn a_limit_bounds_what_a_batch_accepts_until_it_is_cleared() {
        let (receiver, sender) = pair();
        let mut batch = ReceiveBatch::new(4, 8);
        for number in 0..6_u8 {
            sender.send(&[number]).unwrap();
        }
        batch.clear_with_limit(2);
        assert_eq!(batch.room(), 2);
        assert!(batch.receive_many(Line::A, receiver.as_raw_fd(), usize::MAX).unwrap(), "at the limit: may hold more");
        assert_eq!((batch.len(), batch.room()), (2, 0));
        assert!(batch.free_header(0).is_none(), "a request gets no row either");
        batch.clear_with_limit(usize::MAX);
        assert!(batch.receive_many(Line::A, receiver.as_raw_fd(), usize::MAX).unwrap(), "the rows are a limit too");
        assert_eq!((batch.len(), batch.get(0).unwrap().bytes), (4, &[2_u8][..]));
        batch.clear();
        assert_eq!(batch.room(), 4);
    }

    #[test]
    fn copies_are_truncated_at_the_limit_and_refused_when_full() {
        let mut batch = ReceiveBatch::new(1, 4);
        let datagram = ReceivedDatagram {
            line: Line::A,
            bytes: b"12345",
            ts_recv: Some(UnixNs(7)),
            stamp: StampKind::Kernel,
            source: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9),
            truncated: false,
        };
        assert!(batch.push_copy(&datagram));
        assert!(!batch.push_copy(&datagram));
        let copy = batch.get(0).unwrap();
        assert_eq!((copy.bytes, copy.truncated, copy.ts_recv), (&b"1234"[..], true, Some(UnixNs(7))));
    }
}
