//! A line read from a socket as in the gateway: batched receives, payloads, kernel or NIC timestamps.

use std::{
    io,
    net::SocketAddrV4,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mdgw_captures::capture_file::{FRAME_HEADER_BYTES, frame_header};
use mdgw_feeds::identity::Line;
use mdgw_sys::{
    batch::{ReceiveBatch, receive_round_robin},
    drops::SocketDrops,
    handle::{ChannelIndex, Handle},
    sockets::{ReceiveOptions, ReceiveSocket, SocketError, Stamps, open_receive},
};

use super::{
    CaptureLine, LineInterface,
    frame::{Content, Frame, LineReader},
};

/// The socket of one line, and the batch read from it.
#[derive(Debug)]
pub(super) struct SocketReader {
    pub(super) interface: LineInterface,
    socket: ReceiveSocket,
    address: SocketAddrV4,
    drops: SocketDrops,
    dropped: Arc<AtomicU64>,
    batch: ReceiveBatch,
    next: usize,
    /// Used for packets without a timestamp.
    read_ns: u64,
}

impl SocketReader {
    pub(super) fn open(line: &CaptureLine) -> Result<Self, SocketError> {
        let mut options = ReceiveOptions::new(line.address, line.interface.clone());
        options.sources.clone_from(&line.sources);
        options.receive_buffer_bytes = line.buffer_bytes;
        options.stamps = line.stamps;
        let socket = open_receive(&options)?;
        let mut drops = SocketDrops::default();
        let dropped = drops.add(HANDLE, Arc::clone(socket.socket()));
        // The port that the kernel chose, if none was given.
        let address = socket.local_address().unwrap_or(line.address);
        let clock = match line.stamps {
            Stamps::Hardware => "NIC clock where available, else kernel clock",
            Stamps::Kernel | Stamps::None => "kernel clock, when the driver delivered the packet",
        };
        let interface = LineInterface {
            name: line.name.clone(),
            address,
            description: CaptureLine { address, ..line.clone() }.description_text(),
            comment: format!(
                "timestamps: {clock}; from a socket: Ethernet, IP and UDP headers are synthesized; addresses, ports \
                 and lengths are real"
            ),
            stamps: line.stamps,
            buffer_bytes: (socket.buffer.requested_bytes, socket.buffer.granted_bytes),
            drop_count_source: "drops: counter of the socket (SO_MEMINFO)",
        };
        let batch = ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, DATAGRAM_BYTES_MAX);
        Ok(Self { interface, socket, address, drops, dropped, batch, next: 0, read_ns: 0 })
    }
}

impl LineReader for SocketReader {
    fn refill(&mut self, now_ns: u64) -> io::Result<bool> {
        self.batch.clear();
        self.next = 0;
        self.read_ns = now_ns;
        let unfinished = receive_round_robin(&[(Line::A, self.socket.raw_fd())], &mut self.batch)?;
        // The kernel starts to take timestamps shortly after the request. Packets without a timestamp are older than
        // packets with one.
        if self.batch.get(0).is_some_and(|first| first.ts_recv.is_none()) {
            let stamps = self.batch.iter().filter_map(|datagram| datagram.ts_recv);
            self.read_ns = stamps.map(|stamp| stamp.0).min().unwrap_or(now_ns).min(now_ns);
        }
        Ok(!unfinished.is_empty())
    }

    fn head_ns(&self) -> Option<u64> {
        let datagram = self.batch.get(self.next)?;
        Some(datagram.ts_recv.map_or(self.read_ns, |stamp| stamp.0))
    }

    fn head(&self) -> Option<Frame<'_>> {
        let datagram = self.batch.get(self.next)?;
        let header = frame_header(datagram.source, self.address, datagram.bytes.len());
        Some(Frame {
            time_ns: datagram.ts_recv.map_or(self.read_ns, |stamp| stamp.0),
            stamp: datagram.stamp,
            content: Content::Datagram {
                header: header.unwrap_or([0; FRAME_HEADER_BYTES]),
                payload: datagram.bytes,
                src: datagram.source.into(),
                is_truncated: datagram.truncated,
            },
        })
    }

    fn pop(&mut self) {
        self.next += 1;
    }

    fn dropped(&mut self) -> io::Result<u64> {
        self.drops.read(|_, _| {})?;
        Ok(self.dropped.load(Ordering::Relaxed))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Longest payload captured whole: any of a jumbo frame. Longer datagrams (IP fragments) are truncated, counted and
/// marked.
const DATAGRAM_BYTES_MAX: usize = 9_216;
/// Handle for the drop counter: each reader has one socket and counts its own drops.
const HANDLE: Handle = Handle { channel: ChannelIndex(0), line: Line::A };
