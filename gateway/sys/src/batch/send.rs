//! Packets to be sent: a copied header, a borrowed body, a copied trailer, an output.

#![allow(unsafe_code, reason = "headers that the kernel writes through")]

use std::{
    fmt,
    marker::PhantomData,
    net::SocketAddrV4,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, AtomicU32, Ordering::Relaxed},
    },
};

use super::{pinned_array::PinnedArray, receive::NAME_BYTES};

/// Bytes of a published packet's header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a published packet's trailer, if the packet has one.
pub const TRAILER_BYTES: usize = 16;
/// Packets of one [`SendBatch`].
pub const PACKETS_MAX: usize = 64;

/// Index of an output in [`Outputs`]: its slot, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputIndex(pub u16);

/// Destination of packets: a socket, and the address unless the socket is connected.
#[derive(Debug)]
pub struct Output {
    /// The socket, with its options (egress interface, TTL, loopback) set.
    pub socket: Arc<OwnedFd>,
    /// Destination; `None` for a connected socket. Packets of outputs with one socket and several destinations are sent
    /// by one system call.
    pub destination: Option<SocketAddrV4>,
}

/// All outputs of a gateway, shared by the threads that send. The number of slots is fixed; a slot may be vacant.
///
/// A sending thread learns that a slot is filled from the thread that filled it: by a message, or since it starts later.
pub struct Outputs {
    slots: Box<[OutputSlot]>,
    /// Destinations of the sockets that are not connected, slot by slot.
    names: PinnedArray<libc::sockaddr_in>,
    /// Keeps the sockets open.
    sockets: Mutex<Box<[Option<Arc<OwnedFd>>]>>,
}

/// What a sending thread reads of an output.
#[derive(Debug)]
struct OutputSlot {
    /// -1 if the slot is vacant: the kernel refuses a packet.
    socket: AtomicI32,
    /// Size of the destination's name; 0 for a connected socket.
    name_bytes: AtomicU32,
}

// SAFETY: the names are the only part that is not `Sync` by itself. One is written by `set`, under the lock of `sockets`
// and while its slot is vacant, and Rust code reads none. The kernel reads the name of a slot while it sends to that
// slot, which no thread does before it learned that the slot is filled, nor after `remove`.
unsafe impl Sync for Outputs {}
// SAFETY: the names are owned by this value.
unsafe impl Send for Outputs {}

impl Outputs {
    /// Registers the outputs. The position of an output is its [`OutputIndex`].
    #[must_use]
    pub fn new(outputs: Vec<Output>) -> Arc<Self> {
        Self::with_vacant(outputs.into_iter().map(Some).collect())
    }

    /// Registers the outputs; `None` is a vacant slot.
    #[must_use]
    pub fn with_vacant(outputs: Vec<Option<Output>>) -> Arc<Self> {
        let vacant = |_: &Option<Output>| OutputSlot { socket: AtomicI32::new(-1), name_bytes: AtomicU32::new(0) };
        let registered = Self {
            slots: outputs.iter().map(vacant).collect(),
            names: PinnedArray::new(outputs.len(), |_| name(None)),
            sockets: Mutex::new(outputs.iter().map(|_| None).collect()),
        };
        let mut sockets = registered.lock();
        for (index, output) in outputs.into_iter().enumerate() {
            if let Some(output) = output {
                registered.set(&mut sockets, index, output);
            }
        }
        drop(sockets);
        Arc::new(registered)
    }

    /// Fills a vacant slot.
    ///
    /// # Errors
    /// Returns the output if there is no such slot or it is not vacant.
    pub fn insert(&self, index: OutputIndex, output: Output) -> Result<(), Output> {
        let (index, mut sockets) = (usize::from(index.0), self.lock());
        if sockets.get(index).is_none_or(Option::is_some) {
            return Err(output);
        }
        self.set(&mut sockets, index, output);
        Ok(())
    }

    /// Vacates a slot. The caller has made sure that no thread sends to it any more. Returns its socket, if it had one.
    pub fn remove(&self, index: OutputIndex) -> Option<Arc<OwnedFd>> {
        let index = usize::from(index.0);
        let socket = self.lock().get_mut(index)?.take()?;
        self.slots[index].socket.store(-1, Relaxed);
        Some(socket)
    }

    fn set(&self, sockets: &mut [Option<Arc<OwnedFd>>], index: usize, Output { socket, destination }: Output) {
        // SAFETY: the slot is vacant and `sockets` is locked: see `Sync` above.
        unsafe { self.names.at(index).write(name(destination)) };
        let name_bytes = if destination.is_some() { NAME_BYTES } else { 0 };
        self.slots[index].name_bytes.store(name_bytes, Relaxed);
        // Relaxed: a sending thread uses the slot only after a message, or after its start, which orders these stores before.
        self.slots[index].socket.store(socket.as_raw_fd(), Relaxed);
        sockets[index] = Some(socket);
    }

    fn lock(&self) -> MutexGuard<'_, Box<[Option<Arc<OwnedFd>>]>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// A thread's memory for sending; [`Self::begin`] starts a batch in it.
///
/// ```text
///   messages[i] ─┬─ iovecs[3i] ── headers[i]      copied
///                ├─ iovecs[3i+1] ── body          borrowed
///                ├─ iovecs[3i+2] ── trailers[i]   copied, if the packet has one
///                └─ outputs.names[output]         destination
/// ```
pub struct SendBuffers {
    outputs: Arc<Outputs>,
    messages: PinnedArray<libc::mmsghdr>,
    iovecs: PinnedArray<libc::iovec>,
    headers: PinnedArray<[u8; HEADER_BYTES]>,
    trailers: PinnedArray<[u8; TRAILER_BYTES]>,
    sockets: [RawFd; PACKETS_MAX],
}

impl SendBuffers {
    /// Allocates all memory that sending needs.
    #[must_use]
    pub fn new(outputs: Arc<Outputs>) -> Self {
        let headers = PinnedArray::new(PACKETS_MAX, |_| [0; HEADER_BYTES]);
        let trailers = PinnedArray::new(PACKETS_MAX, |_| [0; TRAILER_BYTES]);
        let iovecs = PinnedArray::new(PACKETS_MAX * PARTS, |index| match index % PARTS {
            0 => libc::iovec { iov_base: headers.at(index / PARTS).cast(), iov_len: HEADER_BYTES },
            1 => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            _ => libc::iovec { iov_base: trailers.at(index / PARTS).cast(), iov_len: TRAILER_BYTES },
        });
        let messages = PinnedArray::new(PACKETS_MAX, |index| libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: std::ptr::null_mut(),
                msg_namelen: 0,
                msg_iov: iovecs.at(index * PARTS),
                msg_iovlen: PARTS - 1,
                msg_control: std::ptr::null_mut(),
                msg_controllen: 0,
                msg_flags: 0,
            },
            msg_len: 0,
        });
        Self { outputs, messages, iovecs, headers, trailers, sockets: [-1; PACKETS_MAX] }
    }

    /// An empty batch. Pushed bodies stay borrowed as long as the batch lives.
    pub fn begin(&mut self) -> SendBatch<'_> {
        SendBatch { buffers: self, len: 0, bodies: PhantomData }
    }
}

// SAFETY: the pointers lead to memory that the value owns alone, except for the bodies and the names. A `SendBatch` set
// the bodies, and borrows the value mutably while it lives; no code follows them afterwards. The names belong to
// `outputs`, which lives as long as the value.
unsafe impl Send for SendBuffers {}

impl fmt::Debug for SendBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuffers").field("outputs", &self.outputs).finish_non_exhaustive()
    }
}

/// Up to [`PACKETS_MAX`] packets, sent in their order. One `sendmmsg` sends adjacent packets of one socket, so push all
/// packets of one output before those of the next.
pub struct SendBatch<'a> {
    buffers: &'a mut SendBuffers,
    len: usize,
    bodies: PhantomData<&'a [u8]>,
}

/// The batch is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFull;

impl<'a> SendBatch<'a> {
    /// Adds a packet: its header and its trailer, if it has one, are copied, its body is borrowed.
    ///
    /// # Errors
    /// If the batch is full.
    ///
    /// # Panics
    /// If there is no such output.
    #[inline]
    pub fn push(
        &mut self,
        header: &[u8; HEADER_BYTES],
        body: &'a [u8],
        trailer: Option<&[u8; TRAILER_BYTES]>,
        output: OutputIndex,
    ) -> Result<(), BatchFull> {
        let index = self.len;
        let Some(socket) = self.buffers.sockets.get_mut(index) else { return Err(BatchFull) };
        let slot = &self.buffers.outputs.slots[usize::from(output.0)];
        *socket = slot.socket.load(Relaxed);
        // SAFETY: `headers` has PACKETS_MAX values and `&mut self` is the only access to them.
        unsafe { self.buffers.headers.at(index).write(*header) };
        let body = libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() };
        // SAFETY: as above, for the second of the packet's `iovecs`. The kernel only reads what it points to.
        unsafe { self.buffers.iovecs.at(index * PARTS + 1).write(body) };
        if let Some(trailer) = trailer {
            // SAFETY: as above, for `trailers`.
            unsafe { self.buffers.trailers.at(index).write(*trailer) };
        }
        // SAFETY: as above, for `messages`.
        let message = unsafe { &mut *self.buffers.messages.at(index) };
        message.msg_hdr.msg_iovlen = if trailer.is_some() { PARTS } else { PARTS - 1 };
        (message.msg_hdr.msg_name, message.msg_hdr.msg_namelen) = match slot.name_bytes.load(Relaxed) {
            0 => (std::ptr::null_mut(), 0),
            bytes => (self.buffers.outputs.names.at(usize::from(output.0)).cast(), bytes),
        };
        self.len += 1;
        Ok(())
    }

    /// Number of packets in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of packets that still fit.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        PACKETS_MAX - self.len
    }

    /// Sends packets from the front, one `sendmmsg` for each run of one socket. Returns how many were sent.
    ///
    /// # Errors
    /// As `sendmmsg`, if the first packet is refused other than by "would block".
    pub fn send_many(&self) -> std::io::Result<usize> {
        let mut sent = 0;
        while let Some(&socket) = self.sockets().get(sent) {
            let run = self.sockets()[sent..].iter().take_while(|other| **other == socket).count();
            let count = u32::try_from(run).unwrap_or(0);
            // SAFETY: sendmmsg(2) reads `count` headers from `messages[sent]` on, all of them below `len` and so set by
            // `push`, and writes their `msg_len`, which no code reads. The memory they point to is owned by the
            // buffers, which `self` borrows, or borrowed for as long as `self` lives (bodies). MSG_DONTWAIT: the kernel
            // keeps none of the pointers.
            let taken = unsafe { libc::sendmmsg(socket, self.buffers.messages.at(sent), count, libc::MSG_DONTWAIT) };
            let Ok(taken) = usize::try_from(taken) else {
                let error = std::io::Error::last_os_error();
                return if sent > 0 || error.kind() == std::io::ErrorKind::WouldBlock { Ok(sent) } else { Err(error) };
            };
            sent += taken;
            if taken < run {
                return Ok(sent);
            }
        }
        Ok(sent)
    }

    /// Socket and header of each packet, for requests that send them.
    pub fn messages(&self) -> impl Iterator<Item = (RawFd, *const libc::msghdr)> {
        self.sockets().iter().enumerate().map(|(index, socket)| {
            let message = self.buffers.messages.at(index);
            // SAFETY: `message` is a value of `messages`; only the address of its first field is taken.
            (*socket, unsafe { &raw const (*message).msg_hdr })
        })
    }

    /// Socket, header, body and trailer (empty if there is none) of each packet, for transports other than the kernel.
    pub fn packets(&self) -> impl Iterator<Item = (RawFd, [&[u8]; PARTS])> {
        self.sockets().iter().enumerate().map(|(index, socket)| {
            // SAFETY: `push` has set the header, and nothing writes it while `self` is borrowed.
            let header = unsafe { &*self.buffers.headers.at(index) };
            // SAFETY: as above, for the second of the packet's `iovecs`.
            let body = unsafe { self.buffers.iovecs.at(index * PARTS + 1).read() };
            // SAFETY: `push` made it from a slice that is borrowed for as long as `self` lives.
            let body = unsafe { std::slice::from_raw_parts(body.iov_base.cast::<u8>().cast_const(), body.iov_len) };
            // SAFETY: as for the header, for `messages`.
            let part_count = unsafe { (*self.buffers.messages.at(index)).msg_hdr.msg_iovlen };
            // SAFETY: as for the header, for `trailers`.
            let trailer = unsafe { &*self.buffers.trailers.at(index) };
            let parts: [&[u8]; PARTS] = [header, body, if part_count == PARTS { trailer } else { &[] }];
            (*socket, parts)
        })
    }

    fn sockets(&self) -> &[RawFd] {
        &self.buffers.sockets[..self.len]
    }
}

impl fmt::Debug for SendBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Parts of a packet: header, body, trailer.
const PARTS: usize = 3;

fn name(destination: Option<SocketAddrV4>) -> libc::sockaddr_in {
    let (ip, port) = destination.map_or((0, 0), |destination| (u32::from(*destination.ip()), destination.port()));
    libc::sockaddr_in {
        sin_family: u16::try_from(libc::AF_INET).unwrap_or(0),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: ip.to_be() },
        sin_zero: [0; 8],
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;

    fn receiver() -> (UdpSocket, SocketAddrV4) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
        (socket, address)
    }

    fn received(socket: &UdpSocket) -> Vec<u8> {
        let mut bytes = [0; 2_048];
        let length = socket.recv(&mut bytes).unwrap();
        bytes[..length].to_vec()
    }

    #[test]
    fn packets_are_sent_in_order_to_connected_and_unconnected_outputs() {
        let ((first, first_address), (second, second_address)) = (receiver(), receiver());
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect(first_address).unwrap();
        let addressed = UdpSocket::bind("127.0.0.1:0").unwrap();
        let outputs = Outputs::new(vec![
            Output { socket: Arc::new(connected.into()), destination: None },
            Output { socket: Arc::new(addressed.into()), destination: Some(second_address) },
        ]);
        let mut buffers = SendBuffers::new(outputs);
        for round in 0..3_u8 {
            let body = vec![round; 100];
            let mut batch = buffers.begin();
            batch.push(&[1; HEADER_BYTES], &body, None, OutputIndex(0)).unwrap();
            batch.push(&[2; HEADER_BYTES], &body[..1], Some(&[round + 9; TRAILER_BYTES]), OutputIndex(0)).unwrap();
            batch.push(&[3; HEADER_BYTES], &[], None, OutputIndex(1)).unwrap();
            let parts: Vec<_> = batch.packets().map(|(_, parts)| parts.concat()).collect();
            assert_eq!(batch.send_many().unwrap(), 3);
            let packets = [received(&first), received(&first), received(&second)];
            assert_eq!(packets[0], [&[1; HEADER_BYTES][..], &[round; 100]].concat());
            assert_eq!(packets[1], [&[2; HEADER_BYTES][..], &[round], &[round + 9; TRAILER_BYTES]].concat());
            assert_eq!(packets[2], [3; HEADER_BYTES]);
            assert_eq!(parts, packets, "the same for other transports");
        }
    }

    #[test]
    fn a_slot_that_is_filled_vacated_and_filled_again_carries_each_packet_to_its_present_output() {
        let ((first, first_address), (second, second_address)) = (receiver(), receiver());
        let connected = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(first_address).unwrap();
            Output { socket: Arc::new(socket.into()), destination: None }
        };
        let addressed = || Output {
            socket: Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into()),
            destination: Some(second_address),
        };
        let outputs = Outputs::with_vacant(vec![Some(connected()), None]);
        let mut buffers = SendBuffers::new(Arc::clone(&outputs));
        let mut sent = |output: u16, byte: u8| {
            let mut batch = buffers.begin();
            batch.push(&[byte; HEADER_BYTES], &[], None, OutputIndex(output)).unwrap();
            batch.send_many().map_err(|error| error.raw_os_error())
        };
        assert_eq!(sent(1, 0), Err(Some(libc::EBADF)), "vacant");
        outputs.insert(OutputIndex(1), addressed()).unwrap();
        assert_eq!((sent(1, 1), received(&second)), (Ok(1), vec![1; HEADER_BYTES]));
        assert_eq!((sent(0, 2), received(&first)), (Ok(1), vec![2; HEADER_BYTES]));
        assert!(outputs.insert(OutputIndex(1), addressed()).is_err(), "occupied");
        assert!(outputs.insert(OutputIndex(2), addressed()).is_err(), "no such slot");
        let removed = outputs.remove(OutputIndex(1)).unwrap();
        assert_eq!(Arc::strong_count(&removed), 1, "the socket closes with its last user");
        assert!(outputs.remove(OutputIndex(1)).is_none());
        assert_eq!(sent(1, 3), Err(Some(libc::EBADF)));
        outputs.insert(OutputIndex(1), connected()).unwrap();
        assert_eq!((sent(1, 4), received(&first)), (Ok(1), vec![4; HEADER_BYTES]), "connected, so without a name");
    }

    #[test]
    fn a_refused_packet_ends_the_batch() {
        let (first, address) = receiver();
        let socket = Arc::new(OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap()));
        let nowhere = SocketAddrV4::new("255.255.255.255".parse().unwrap(), 9);
        let outputs = Outputs::new(vec![
            Output { socket: Arc::clone(&socket), destination: Some(address) },
            Output { socket, destination: Some(nowhere) }, // broadcast without SO_BROADCAST: EACCES
        ]);
        let mut buffers = SendBuffers::new(outputs);
        let mut batch = buffers.begin();
        for output in [0, 1, 0] {
            batch.push(&[0; HEADER_BYTES], &[], None, OutputIndex(output)).unwrap();
        }
        assert_eq!(batch.send_many().unwrap(), 1);
        assert_eq!(received(&first).len(), HEADER_BYTES);

        let mut batch = buffers.begin();
        batch.push(&[0; HEADER_BYTES], &[], None, OutputIndex(1)).unwrap();
        assert_eq!(batch.send_many().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_full_batch_refuses_packets() {
        let (_, address) = receiver();
        let socket = Arc::new(OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap()));
        let mut buffers = SendBuffers::new(Outputs::new(vec![Output { socket, destination: Some(address) }]));
        let mut batch = buffers.begin();
        for _ in 0..PACKETS_MAX {
            batch.push(&[0; HEADER_BYTES], &[], None, OutputIndex(0)).unwrap();
        }
        assert_eq!(batch.push(&[0; HEADER_BYTES], &[], None, OutputIndex(0)), Err(BatchFull));
        assert_eq!(batch.room(), 0);
    }
}
