//! Datagrams that the kernel dropped before they could be received, read by a cold thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use socket2::Socket;

use crate::{handle::Handle, socket_options};

/// Drop counters of a pool's sockets. One cold thread calls [`Self::read`]; any thread may read the sums.
///
/// For each socket the kernel counts datagrams that did not fit the buffer and datagrams with a wrong checksum, in 32
/// bits that wrap. The sums here are 64 bits wide.
#[derive(Debug, Default)]
pub struct SocketDrops {
    sockets: Vec<WatchedSocket>,
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

    /// Reads all sockets. Calls `on_drop` for each socket with new drops, with their number.
    ///
    /// # Errors
    /// The first error, after all sockets were tried.
    pub fn read(&mut self, mut on_drop: impl FnMut(Handle, u32)) -> io::Result<()> {
        let mut fault = None;
        for watched in &mut self.sockets {
            match socket_options::drop_count(&*watched.socket) {
                Ok(count) => {
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
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

    use mdgw_feeds::identity::Line;

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
        let mut received = 0;
        while receiver.socket().recv(&mut [std::mem::MaybeUninit::uninit(); 1_000]).is_ok() {
            received += 1;
        }
        let mut seen = Vec::new();
        drops.read(|handle, count| seen.push((handle, count))).unwrap();
        assert_eq!(seen, [(handle, sent - received)]);
        assert_eq!(total.load(Ordering::Relaxed), u64::from(sent - received));
        drops.read(|_, _| panic!("nothing new was dropped")).unwrap();
    }
}
