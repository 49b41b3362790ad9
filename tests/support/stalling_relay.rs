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

/// Relays TCP connections. It forwards only a limited number of bytes of an answer, until it has stalled once. It keeps the
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
        Self::of(to, bytes_max, |_| true)
    }

    /// Starts a relay to a gateway's link that stalls only in answers to requests for the publication log.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn of_logs(to: SocketAddrV4, bytes_max: usize) -> Self {
        Self::of(to, bytes_max, |request| request.get(REQUEST_KIND_AT) == Some(&LOG_REQUEST_KIND))
    }

    /// `stalls`: whether the answer to a client that has sent these bytes is limited.
    fn of(to: SocketAddrV4, bytes_max: usize, stalls: fn(&[u8]) -> bool) -> Self {
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
                let bytes_max = if is_stalled.load(Ordering::Acquire) { usize::MAX } else { bytes_max };
                let is_limited = Arc::new(AtomicBool::new(stalls(&[])));
                let limits = Arc::clone(&is_limited);
                std::thread::spawn(move || {
                    let mut sent = Vec::new();
                    // Before the request is forwarded: the answer begins later.
                    forward(client_reader, server_writer, |bytes| {
                        if sent.len() <= REQUEST_KIND_AT {
                            sent.extend_from_slice(bytes);
                            limits.fetch_or(stalls(&sent), Ordering::AcqRel);
                        }
                        bytes.len()
                    });
                });
                std::thread::spawn(move || {
                    let mut left = bytes_max;
                    forward(server, client, |bytes| {
                        if !is_limited.load(Ordering::Acquire) {
                            return bytes.len();
                        }
                        let forwarded = bytes.len().min(left);
                        left -= forwarded;
                        if forwarded < bytes.len() {
                            is_stalled.store(true, Ordering::Release);
                        }
                        forwarded
                    });
                });
            }
        });
        Self { address, is_stalled }
    }

    /// Waits until a connection has stalled.
    pub fn wait_until_stalled(&self) {
        wait_until("a connection has stalled", || self.is_stalled.load(Ordering::Acquire));
    }
}

/// Forwards until one end closes, then closes both. `limit`: how many of the bytes that were read are forwarded.
fn forward(mut from: TcpStream, mut to: TcpStream, mut limit: impl FnMut(&[u8]) -> usize) {
    let mut bytes = [0; 1_024];
    let mut forward_some = || -> io::Result<usize> {
        let count = from.read(&mut bytes)?;
        let read = bytes.get(..count).unwrap_or_default();
        to.write_all(read.get(..limit(read)).unwrap_or_default())?;
        Ok(count)
    };
    while forward_some().is_ok_and(|count| count > 0) {}
    // A shutdown fails if its end is closed already.
    let _shut_down = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Where a client's first message has its kind: behind the hello, and the length, number and tag of the message.
const REQUEST_KIND_AT: usize = 36 + 4 + 8 + 32;
/// Kind of a request for the entries of a log.
const LOG_REQUEST_KIND: u8 = 13;
