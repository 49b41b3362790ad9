//! A network between gateway and subscriber that loses, duplicates and reorders packets.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_captures::impairment::{ImpairedLines, LineImpairment, LossPolicy};
use socket2::{Domain, Protocol, Socket, Type};

/// Receives one multicast group on loopback, applies the damage, and forwards the rest to another group.
#[derive(Debug)]
pub struct LossyRelay {
    shared: Arc<RelayCounts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct RelayCounts {
    stop: AtomicBool,
    received: AtomicU64,
    forwarded: AtomicU64,
}

impl LossyRelay {
    /// Starts the relay. With the same seed the same packets are damaged in the same way.
    ///
    /// # Panics
    /// When a socket can't be opened.
    #[must_use]
    pub fn start(from: SocketAddrV4, to: SocketAddrV4, damage: LineImpairment, seed: u64) -> Self {
        let receive = open_receive(from).expect("the relay joins a group");
        let send = open_send().expect("the relay opens a socket");
        let shared = Arc::new(RelayCounts::default());
        let thread_copy = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut lines = ImpairedLines::new(&[damage], LossPolicy::Independent, seed);
            let mut datagram = [0; 2_048];
            while !thread_copy.stop.load(Ordering::Acquire) {
                let Ok(length) = receive.recv(&mut datagram) else { continue };
                thread_copy.received.fetch_add(1, Ordering::Relaxed);
                let packet: Arc<[u8]> = datagram[..length].into();
                lines.transmit(&packet, |_, _, packet| {
                    let sent = send.send_to(packet, to).expect("loopback takes a datagram");
                    assert_eq!(sent, packet.len());
                    thread_copy.forwarded.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Numbers of received and of forwarded datagrams.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.received.load(Ordering::Relaxed), self.shared.forwarded.load(Ordering::Relaxed))
    }
}

impl Drop for LossyRelay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // After a panic of the thread the subscriber loses packets, which the test notices.
            let _ = thread.join();
        }
    }
}

fn open_receive(group: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&group.into())?;
    socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket.into())
}

fn open_send() -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
    socket.set_multicast_loop_v4(true)?;
    Ok(socket.into())
}
