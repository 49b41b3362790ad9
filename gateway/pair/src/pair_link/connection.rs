//! One TCP connection around [`LinkStream`]. No call blocks.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddrV4, TcpStream},
};

use mdgw_election::auth::Nonce;
use mdgw_wire::time::MonoNs;
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    PairLinkConfig,
    framing::{LinkFault, LinkStream},
    message::LinkMessage,
};

/// One TCP connection to another gateway.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    /// Address of the other end's host.
    pub(super) from: IpAddr,
    pub(super) stream: LinkStream,
    /// Bytes that the kernel has not accepted yet.
    unsent: Vec<u8>,
    /// Index of the dialled peer; `None`: an accepted connection.
    pub(super) dialled: Option<usize>,
    pub(super) sent_first_message: bool,
    /// When the last authentic input arrived, or the connection was made.
    pub(super) received_at: MonoNs,
}

impl Connection {
    pub(super) fn new(
        socket: TcpStream,
        from: IpAddr,
        dialled: Option<usize>,
        config: &PairLinkConfig,
        now: MonoNs,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let stream = LinkStream::new(config.endpoints.key.clone(), config.identity, Nonce::random()?);
        let unsent = stream.hello().to_vec();
        Ok(Self { socket, from, stream, unsent, dialled, sent_first_message: false, received_at: now })
    }

    pub(super) fn send(&mut self, message: &LinkMessage) -> Result<(), CloseCause> {
        if let Some(bytes) = self.stream.seal(message) {
            self.unsent.extend(bytes);
        }
        // A peer that does not read is treated as gone.
        if self.unsent.len() > UNSENT_BYTES_MAX { Err(CloseCause::TimedOut) } else { Ok(()) }
    }

    /// Number of bytes that the kernel has not accepted yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.len()
    }

    pub(super) fn flush(&mut self) -> Result<(), CloseCause> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(0) => return Err(CloseCause::Closed),
                Ok(count) => _ = self.unsent.drain(..count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(CloseCause::Closed),
            }
        }
        Ok(())
    }

    /// Reads the available bytes of a connection that has proved the key, at most [`READS_PER_TURN`] times.
    pub(super) fn read_available(&mut self) -> Result<(), CloseCause> {
        self.read(READS_PER_TURN)
    }

    /// Reads once. For a connection that has not proved the key: what it sent is examined before more of it is stored.
    pub(super) fn read_once(&mut self) -> Result<(), CloseCause> {
        self.read(1)
    }

    fn read(&mut self, reads_max: usize) -> Result<(), CloseCause> {
        let mut bytes = [0; READ_BYTES_MAX];
        for _ in 0..reads_max {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(CloseCause::Closed),
                Ok(count) => self.stream.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(CloseCause::Closed),
            }
        }
        Ok(())
    }
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseCause {
    Closed,
    TimedOut,
    Refused(LinkFault),
}

/// Begins to connect, without waiting for the answer.
pub(super) fn connect(address: SocketAddrV4) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => Ok(socket.into()),
    }
}

/// Maximum number of reads from one socket in a turn; then the other sockets have theirs.
pub(super) const READS_PER_TURN: usize = 64;
const READ_BYTES_MAX: usize = 16 << 10;
const UNSENT_BYTES_MAX: usize = 8 << 20;
