//! A TCP relay that stalls in the middle of what one end sends.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::process::wait_until;

/// Relays TCP connections. It forwards only a limited number of bytes of the answer, until it has stalled once. It keeps the
/// stalled connection open until the server closes it. Its threads end with the test process.
#[derive(Debug)]
pub struct StallingRelay {
    /// Where clients connect instead of the server.
    pub address: SocketAddrV4,
    is_stalled: Arc<AtomicBool>,
}

impl StallingRelay {
    /// Starts a relay between connecting clients and `to`.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn start(to: SocketAddrV4, bytes_max: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has an address left");
        let Ok(SocketAddr::V4(address)) = listener.local_addr() else { panic!("not an IPv4 socket") };
        let is_stalled = Arc::new(AtomicBool::new(false));
        let thread_copy = Arc::clone(&is_stalled);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // If the server refuses, the client's connection is closed.
                let Ok(server) = TcpStream::connect(to) else { continue };
                let is_stalled = Arc::clone(&thread_copy);
                let (Ok(client_reader), Ok(server_writer)) = (client.try_clone(), server.try_clone()) else { continue };
                std::thread::spawn(move || forward(client_reader, server_writer, usize::MAX, &AtomicBool::new(false)));
                let bytes_max = if is_stalled.load(Ordering::Acquire) { usize::MAX } else { bytes_max };
                std::thread::spawn(move || forward(server, client, bytes_max, &is_stalled));
            }
        });
        Self { address, is_stalled }
    }

    /// Waits until a connection has stalled.
    pub fn wait_until_stalled(&self) {
        wait_until("a connection has stalled", || self.is_stalled.load(Ordering::Acquire));
    }
}

/// Forwards until one end closes, then closes both.
fn forward(mut from: TcpStream, mut to: TcpStream, bytes_max: usize, is_stalled: &AtomicBool) {
    let (mut bytes, mut left) = ([0; 1_024], bytes_max);
    let mut forward_some = || -> io::Result<usize> {
        let count = from.read(&mut bytes)?;
        let forwarded = count.min(left);
        left -= forwarded;
        if forwarded < count {
            is_stalled.store(true, Ordering::Release);
        }
        to.write_all(bytes.get(..forwarded).unwrap_or_default())?;
        Ok(count)
    };
    while forward_some().is_ok_and(|count| count > 0) {}
    // A shutdown fails if its end is closed already.
    let _shut_down = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
