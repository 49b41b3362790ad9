//! A connection that stops in the midst of what one end has to say.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::pair::wait_until;

/// Passes connections on; of what comes back, only so much, until it has held back something once. It holds that connection
/// open until its far end is gone. Its threads end with the test's process.
#[derive(Debug)]
pub struct StallingRelay {
    /// Where it listens.
    pub address: SocketAddrV4,
    holds: Arc<AtomicBool>,
}

impl StallingRelay {
    /// Between whoever connects and `to`.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn start(to: SocketAddrV4, bytes_max: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has an address left");
        let Ok(SocketAddr::V4(address)) = listener.local_addr() else { panic!("not an IPv4 socket") };
        let holds = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&holds);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Who isn't there refuses: so does this.
                let Ok(far) = TcpStream::connect(to) else { continue };
                let holds = Arc::clone(&of_thread);
                let (Ok(client_reader), Ok(server_writer)) = (client.try_clone(), far.try_clone()) else { continue };
                std::thread::spawn(move || forward(client_reader, server_writer, usize::MAX, &AtomicBool::new(false)));
                let bytes_max = if holds.load(Ordering::Acquire) { usize::MAX } else { bytes_max };
                std::thread::spawn(move || forward(far, client, bytes_max, &holds));
            }
        });
        Self { address, holds }
    }

    /// Waits until it holds back something.
    pub fn wait_until_stalled(&self) {
        wait_until("a connection is held", || self.holds.load(Ordering::Acquire));
    }
}

/// Until one of them is gone; both are, then.
fn forward(mut from: TcpStream, mut to: TcpStream, bytes_max: usize, holds: &AtomicBool) {
    let (mut bytes, mut left) = ([0; 1_024], bytes_max);
    let mut pass_some = || -> io::Result<usize> {
        let count = from.read(&mut bytes)?;
        let passed = count.min(left);
        left -= passed;
        if passed < count {
            holds.store(true, Ordering::Release);
        }
        to.write_all(bytes.get(..passed).unwrap_or_default())?;
        Ok(count)
    };
    while pass_some().is_ok_and(|count| count > 0) {}
    // Gone already, perhaps.
    let _shut_down = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
