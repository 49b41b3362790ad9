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

/// How long a starting gateway waits for a peer that sends nothing: at one time, and in all requests together that the peer leaves
/// unanswered. A request that the peer answers costs nothing of it, however slow the peer is, and even if it refuses the request.
#[derive(Clone, Debug)]
pub struct SilenceLimit {
    silence_max: Duration,
    /// What is left for all requests.
    left: Duration,
    /// Last progress of the present request. Positions arrive without end, so they do not count.
    progressed: Instant,
}

impl SilenceLimit {
    /// `silence_max`: for one silence. `total`: for the silences of all requests that the peer leaves unanswered.
    #[must_use]
    pub fn new(silence_max: Duration, total: Duration) -> Self {
        Self { silence_max, left: total, progressed: Instant::now() }
    }

    /// Whether the peer is to be asked no more.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.left.is_zero()
    }

    /// Longest silence of the present request.
    fn timeout(&self) -> Duration {
        // The system knows no timeout of zero.
        self.silence_max.min(self.left).max(Duration::from_millis(1))
    }

    fn note_progress(&mut self) {
        self.progressed = Instant::now();
    }

    /// Runs a request. If the peer leaves it unanswered, the silence before its end is spent.
    pub(super) fn spend<T>(&mut self, request: impl FnOnce(&mut Self) -> Result<T, CopyError>) -> Result<T, CopyError> {
        self.note_progress();
        let outcome = request(self);
        if matches!(outcome, Err(CopyError::Unreachable(_) | CopyError::Io(_))) {
            self.left = self.left.saturating_sub(self.progressed.elapsed());
        }
        outcome
    }
}

/// The requester's end.
#[derive(Debug)]
pub(super) struct Requester<'p> {
    socket: TcpStream,
    stream: LinkStream,
    /// Sent when the peer's hello has arrived: only then it can be authenticated.
    request: Option<LinkMessage>,
    bytes: Vec<u8>,
    silence_limit: &'p mut SilenceLimit,
}

impl<'p> Requester<'p> {
    /// Connects to the gateway at that address. `silence_limit` bounds each step, and the time until the answer goes on.
    ///
    /// # Errors
    /// [`CopyError::Unreachable`].
    pub(super) fn connect(
        peer: SocketAddrV4,
        identity: LinkIdentity,
        key: SharedKey,
        request: LinkMessage,
        silence_limit: &'p mut SilenceLimit,
    ) -> Result<Self, CopyError> {
        let timeout = silence_limit.timeout();
        let mut socket = TcpStream::connect_timeout(&peer.into(), timeout).map_err(CopyError::Unreachable)?;
        socket.set_write_timeout(Some(timeout))?;
        let stream = LinkStream::new(key, identity, Nonce::random()?);
        socket.write_all(&stream.hello()).map_err(CopyError::Unreachable)?;
        let bytes = vec![0; READ_BYTES_MAX];
        Ok(Self { socket, stream, request: Some(request), bytes, silence_limit })
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
            let silence_left = self.silence_limit.timeout().saturating_sub(self.silence_limit.progressed.elapsed());
            if silence_left.is_zero() {
                return Err(self.silent(ErrorKind::TimedOut.into()));
            }
            if let Some(message) = message {
                return Ok(message);
            }
            self.socket.set_read_timeout(Some(silence_left))?;
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
        self.silence_limit.note_progress();
    }

    /// The kernel accepts connections even for a stopped process. So a peer that never answered counts as unreachable and
    /// is not asked again.
    fn silent(&self, error: io::Error) -> CopyError {
        if self.request.is_none() { CopyError::Io(error) } else { CopyError::Unreachable(error) }
    }
}

const READ_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use mdgw_feeds::channel::CopyFault;

    use super::*;

    /// A peer that has a state of no channel answers each request at once.
    #[test]
    fn an_answer_without_a_state_is_no_silence() {
        let total = Duration::from_secs(3);
        let mut silence_limit = SilenceLimit::new(Duration::from_secs(2), total);
        let mut spend = |error: fn() -> CopyError| {
            let outcome = silence_limit.spend(|_| {
                std::thread::sleep(Duration::from_micros(20));
                Err::<(), _>(error())
            });
            assert!(outcome.is_err());
            silence_limit.left
        };
        for _ in 0..1_000 {
            assert_eq!(spend(|| CopyFault::NoState.into()), total);
        }
        assert_eq!(spend(|| CopyFault::TooBusy.into()), total);
        assert_eq!(spend(|| CopyError::Damaged), total);
        let after_io = spend(|| CopyError::Io(ErrorKind::TimedOut.into()));
        let after_unreachable = spend(|| CopyError::Unreachable(ErrorKind::TimedOut.into()));
        assert!(after_unreachable < after_io && after_io < total, "{after_unreachable:?} {after_io:?}");
    }
}
