//! A connection of its own, on which a starting gateway requests something of a peer. Blocks.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

use mdgw_election::auth::{Nonce, SharedKey};

use super::{
    CopyError,
    framing::LinkStream,
    message::{LinkIdentity, LinkMessage},
};

/// The requester's end.
#[derive(Debug)]
pub(super) struct Requester {
    socket: TcpStream,
    stream: LinkStream,
    /// Sent when the peer's hello has arrived: only then it can be authenticated.
    request: Option<LinkMessage>,
    bytes: Vec<u8>,
    /// Positions arrive without end, so the time limit counts from the last progress of the answer.
    progressed: Instant,
    timeout: Duration,
}

impl Requester {
    /// Connects to the gateway at that address. Each step, and the time until the answer goes on, take `timeout` at most.
    ///
    /// # Errors
    /// [`CopyError::Unreachable`].
    pub(super) fn connect(
        peer: SocketAddrV4,
        identity: LinkIdentity,
        key: SharedKey,
        request: LinkMessage,
        timeout: Duration,
    ) -> Result<Self, CopyError> {
        let mut socket = TcpStream::connect_timeout(&peer.into(), timeout).map_err(CopyError::Unreachable)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        let stream = LinkStream::new(key, identity, Nonce::random()?);
        socket.write_all(&stream.hello()).map_err(CopyError::Unreachable)?;
        let bytes = vec![0; READ_BYTES_MAX];
        Ok(Self { socket, stream, request: Some(request), bytes, progressed: Instant::now(), timeout })
    }

    /// The peer's next message, whatever it is about.
    ///
    /// # Errors
    /// [`CopyError`]; the connection is of no more use then.
    pub(super) fn next_message(&mut self) -> Result<LinkMessage, CopyError> {
        loop {
            let message = self.stream.next_message()?;
            if let Some(request) = self.request.take_if(|_| self.stream.has_peer_hello())
                && let Some(sealed) = self.stream.seal(&request)
            {
                self.socket.write_all(&sealed)?;
            }
            if self.progressed.elapsed() >= self.timeout {
                return Err(self.silent(ErrorKind::TimedOut.into()));
            }
            if let Some(message) = message {
                return Ok(message);
            }
            let count = match self.socket.read(&mut self.bytes) {
                Ok(0) => return Err(self.silent(ErrorKind::UnexpectedEof.into())),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) => return Err(self.silent(error)),
            };
            self.stream.push(self.bytes.get(..count).unwrap_or_default());
        }
    }

    /// A part of the answer has arrived.
    pub(super) fn note_progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// The kernel accepts connections even for a stopped process. So a peer that never answered counts as unreachable and
    /// is not asked again.
    fn silent(&self, error: io::Error) -> CopyError {
        if self.request.is_none() { CopyError::Io(error) } else { CopyError::Unreachable(error) }
    }
}

const READ_BYTES_MAX: usize = 64 << 10;
