//! Datagrams of one channel, as the kernel gave them.

#![allow(unsafe_code, reason = "headers that the kernel writes through")]

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::RawFd,
    sync::Arc,
};

use mdgw_feeds::{identity::Line, time::UnixNs};

use super::{
    control::{self, CONTROL_BYTES, Control},
    pinned_array::PinnedArray,
    provided::{ProvidedBuffers, ProvidedDatagram},
};

/// Where a receive time comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StampKind {
    /// The NIC's clock, when the datagram was on the wire.
    Hardware,
    /// The kernel's clock, when the driver handed the datagram over.
    Kernel,
    /// Neither: the caller takes the clock on return from the wait.
    #[default]
    None,
}

/// One datagram of a [`ReceiveBatch`].
#[derive(Clone, Copy, Debug)]
pub struct ReceivedDatagram<'a> {
    /// The line on whose socket it came.
    pub line: Line,
    /// UDP payload, cut at the batch's limit when `truncated`.
    pub bytes: &'a [u8],
    /// NIC or kernel stamp.
    pub ts_recv: Option<UnixNs>,
    /// Which of them.
    pub stamp: StampKind,
    /// Who sent it.
    pub source: SocketAddrV4,
    /// The datagram was larger than the buffer.
    pub truncated: bool,
}

/// Room for a fixed number of datagrams of a fixed size, with everything the kernel wants to be told about it.
///
/// ```text
///   headers[i] ─┬─ iovecs[i] ── bytes[i * datagram_bytes_max ..]
///               ├─ names[i]       who sent it
///               └─ controls[i]    stamps
/// ```
/// `free[rows_used..]` are the numbers of rows that hold nothing; row order and order of arrival differ where a submission
/// left holes.
pub struct ReceiveBatch {
    rows: Rows,
    /// A permutation of the row numbers: those in front are in use, the others free.
    free: Box<[u16]>,
    /// Whether `free` still counts up, so that free rows lie side by side.
    is_free_sorted: bool,
    entries: Vec<DatagramEntry>,
    /// Rows among `entries`; the others lie in buffers of `provider`.
    rows_used: usize,
    /// Datagrams accepted until the next clear, at most the number of rows.
    packets_limit: usize,
    provider: Option<Arc<ProvidedBuffers>>,
}

impl ReceiveBatch {
    /// Packets of the usual batch, also the quota of one claim.
    pub const PACKETS_MAX: usize = 64;
    /// Bytes that hold any datagram of an Ethernet frame.
    pub const DATAGRAM_BYTES_MAX: usize = 2_048;

    /// Allocates and touches all of its memory.
    ///
    /// # Panics
    /// When there is no room for any packet, or for more than 1,024 (what one system call takes).
    #[must_use]
    pub fn new(packets_max: usize, datagram_bytes_max: usize) -> Self {
        assert!((1..=1_024).contains(&packets_max), "packets_max {packets_max}: 1 to 1,024");
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

    /// Forgets its datagrams. Those that were lent go back to where they came from.
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

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many more it can take.
    #[must_use]
    pub fn room(&self) -> usize {
        self.packets_limit - self.entries.len()
    }

    /// One of its datagrams, in the order in which they were read.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<ReceivedDatagram<'_>> {
        self.entries.get(index).map(|entry| self.view(entry))
    }

    /// Its datagrams, in the order in which they were read.
    pub fn iter(&self) -> impl Iterator<Item = ReceivedDatagram<'_>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    /// Copies a datagram in, for sources that are no socket. False when there is no room.
    pub fn push_copy(&mut self, datagram: &ReceivedDatagram<'_>) -> bool {
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

    /// Reads a socket without blocking until it is short, `packets_max` have come or there is no more room. True: it
    /// may hold more.
    ///
    /// # Errors
    /// As `recvmmsg`, other than "nothing there".
    pub fn receive_many(&mut self, line: Line, socket: RawFd, packets_max: usize) -> io::Result<bool> {
        let Some(row) = self.first_free_row() else { return Ok(true) };
        let requested = self.contiguous_free_rows().min(u16::try_from(packets_max).unwrap_or(u16::MAX));
        let headers = self.rows.headers.at(usize::from(row));
        // SAFETY: recvmmsg(2) reads and writes `requested` headers from `headers` on and, through them, the memory that
        // `Rows` wired to them. They are rows `row..row + requested`, all of them free, so no reference into them exists.
        // `MSG_DONTWAIT`: the kernel keeps none of the pointers after the call.
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

    /// Header of the `offset`th free row, for a request that fills it; `None` when there is no such row. The kernel may
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

    /// Takes over the free rows that requests filled: for each, in the order of [`Self::free_header`], its line and
    /// the bytes received, `None` where nothing was.
    ///
    /// # Safety
    /// Every one of the requests has been completed, and wrote as many bytes to its row as is said here.
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
        // SAFETY: a row has been in use since its `length` bytes were written (`record_row` and `push_copy` cut it at the
        // row's size); a lent buffer is ours since `record_provided`, and `length` bytes of it were written. Nobody writes to
        // either before `clear`, which needs `&mut self`.
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

    /// Makes these buffers the ones that the batch may hold.
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

    /// Notes a datagram in a buffer that is the batch's from now on.
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

    /// How many free rows follow the first free one without a hole.
    fn contiguous_free_rows(&self) -> u16 {
        let free = self.free.get(self.rows_used..).unwrap_or(&[]);
        let count = if self.is_free_sorted {
            free.len()
        } else {
            1 + free.windows(2).take_while(|pair| matches!(pair, [a, b] if a + 1 == *b)).count()
        };
        u16::try_from(count.min(self.room())).unwrap_or(u16::MAX)
    }

    /// Notes what the kernel wrote into the first free row, and makes its header ready for the next time. `length`
    /// where the header doesn't tell it (a single `recvmsg`).
    fn record_row(&mut self, row: u16, line: Line, length: Option<usize>) {
        let header = self.rows.headers.at(usize::from(row));
        // SAFETY: the kernel is done with the row, and `&mut self` is the only access to it.
        let header = unsafe { &mut *header };
        let length = length.unwrap_or(header.msg_len as usize).min(self.rows.datagram_bytes_max);
        // SAFETY: `names` has a value at every row, wired by `Rows`, with no other access to it.
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

// SAFETY: the pointers in a batch lead to memory that it owns alone; whoever owns the batch has all access to it.
unsafe impl Send for ReceiveBatch {}

/// What is known of a datagram.
struct DatagramEntry {
    location: BufferLocation,
    length: usize,
    line: Line,
    ts_recv: Option<UnixNs>,
    stamp: StampKind,
    source: SocketAddrV4,
    truncated: bool,
}

/// Where a datagram's bytes lie.
#[derive(Clone, Copy)]
enum BufferLocation {
    Row(u16),
    Provided { id: u16, offset: usize },
}

/// The memory that the kernel fills.
struct Rows {
    headers: PinnedArray<libc::mmsghdr>,
    names: PinnedArray<libc::sockaddr_in>,
    controls: PinnedArray<Control>,
    bytes: PinnedArray<u8>,
    datagram_bytes_max: usize,
    /// Reached through the headers only.
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
        assert!(!batch.get(0).unwrap().truncated, "the flag of the last use is gone");
        assert!(!batch.receive_many(Line::B, receiver.as_raw_fd(), usize::MAX).unwrap(), "nothing there is no error");
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
        assert!(batch.free_header(0).is_none(), "nor does a request get a row");
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
