//! Datagrams that the kernel dropped before they could be received, and how full the receive buffers were; read by a cold thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use socket2::Socket;

use crate::{
    handle::Handle,
    socket_options::{self, ReceiveMemory},
};

/// Drop counters of a pool's sockets. One cold thread calls [`Self::read`]; any thread may read the sums.
///
/// For each socket the kernel counts datagrams that did not fit the buffer and datagrams with a wrong checksum, in 32
/// bits that wrap. The sums here are 64 bits wide.
#[derive(Debug, Default)]
pub struct SocketDrops {
    sockets: Vec<WatchedSocket>,
    highest_use: ReceiveBufferUse,
}

/// Use of one socket's receive buffer, in bytes of kernel memory: a datagram counts with the memory that it occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveBufferUse {
    /// Bytes in use. The last datagram accepted may exceed the limit.
    pub used_bytes: u32,
    /// Size of the buffer, bytes.
    pub limit_bytes: u32,
}

impl ReceiveBufferUse {
    /// Whether a larger share of this buffer than of `other` is in use.
    #[must_use]
    fn is_above(self, other: Self) -> bool {
        u64::from(self.used_bytes) * u64::from(other.limit_bytes.max(1))
            > u64::from(other.used_bytes) * u64::from(self.limit_bytes.max(1))
    }
}

#[derive(Debug)]
struct WatchedSocket {
    handle: Handle,
    socket: Arc<Socket>,
    last: u32,
    total: Arc<AtomicU64>,
}

impl SocketDrops {
    /// Adds a socket. Its counter starts with the drops since the socket was opened.
    pub fn add(&mut self, handle: Handle, socket: Arc<Socket>) -> Arc<AtomicU64> {
        let total = Arc::new(AtomicU64::new(0));
        self.sockets.push(WatchedSocket { handle, socket, last: 0, total: Arc::clone(&total) });
        total
    }

    /// Removes a socket, so that it can close. Its drops since the last reading are not counted.
    pub fn remove(&mut self, socket: &Arc<Socket>) {
        self.sockets.retain(|watched| !Arc::ptr_eq(&watched.socket, socket));
    }

    /// Reads all sockets. Calls `on_drop` for each socket with new drops, with their number.
    ///
    /// # Errors
    /// The first error, after all sockets were tried.
    pub fn read(&mut self, mut on_drop: impl FnMut(Handle, u32)) -> io::Result<()> {
        let mut fault = None;
        for watched in &mut self.sockets {
            match socket_options::receive_memory(&*watched.socket) {
                Ok(ReceiveMemory { used_bytes, limit_bytes, dropped: count }) => {
                    let buffer_use = ReceiveBufferUse { used_bytes, limit_bytes };
                    if buffer_use.is_above(self.highest_use) {
                        self.highest_use = buffer_use;
                    }
                    let new = count.wrapping_sub(watched.last);
                    watched.last = count;
                    watched.total.fetch_add(new.into(), Ordering::Relaxed);
                    if new > 0 {
                        on_drop(watched.handle, new);
                    }
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// The fullest receive buffer of all readings so far, by the share in use.
    #[must_use]
    pub fn highest_use(&self) -> ReceiveBufferUse {
        self.highest_use
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

    use mdgw_wire::identity::Line;

    use super::*;
    use crate::{
        handle::ChannelIndex,
        sockets::{ReceiveOptions, open_receive},
    };

    #[test]
    fn kernel_drops_are_counted_once() {
        let mut options = ReceiveOptions::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None);
        options.receive_buffer_bytes = 4_096;
        let receiver = open_receive(&options).unwrap();
        let handle = Handle { channel: ChannelIndex(3), line: Line::B };
        let mut drops = SocketDrops::default();
        let total = drops.add(handle, Arc::clone(receiver.socket()));
        drops.read(|_, _| panic!("nothing was dropped yet")).unwrap();

        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sent = 200;
        for _ in 0..sent {
            sender.send_to(&[0; 1_000], receiver.local_address().unwrap()).unwrap();
        }
        let mut seen = Vec::new();
        drops.read(|handle, count| seen.push((handle, count))).unwrap();
        let full = drops.highest_use();
        assert!(full.used_bytes > full.limit_bytes / 2 && full.limit_bytes >= 4_096, "{full:?}");
        let mut received = 0;
        while receiver.socket().recv(&mut [std::mem::MaybeUninit::uninit(); 1_000]).is_ok() {
            received += 1;
        }
        assert_eq!(seen, [(handle, sent - received)]);
        assert_eq!(total.load(Ordering::Relaxed), u64::from(sent - received));
        drops.read(|_, _| panic!("nothing new was dropped")).unwrap();
        assert_eq!(drops.highest_use(), full, "the buffer is empty now");
        drops.remove(receiver.socket());
        assert_eq!(Arc::strong_count(receiver.socket()), 1, "the socket closes with its owner");
    }
}
