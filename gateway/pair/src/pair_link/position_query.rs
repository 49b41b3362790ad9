//! The query of a starting gateway to its peer: how far the peer is, and how much of the session it stores.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

use mdgw_election::auth::{Nonce, SharedKey};

use super::{
    framing::{LinkStream, QUERY_INCARNATION},
    message::{ChannelPositions, LinkIdentity, LinkMessage},
};

/// Asks the gateway at that address for the positions of its channels. The query does not prove the key, so that
/// gateway keeps its present connection to the peer, and counts nothing as refused. The answer is authenticated.
///
/// # Errors
/// When no answer arrives in that time, or a different message does.
pub fn query_positions(
    peer: SocketAddrV4,
    node: u8,
    key: SharedKey,
    timeout: Duration,
) -> io::Result<Vec<ChannelPositions>> {
    let until = Instant::now() + timeout;
    let mut socket = TcpStream::connect_timeout(&peer.into(), timeout)?;
    // The start is recorded later, and this end proves nothing.
    let identity = LinkIdentity { node, incarnation: QUERY_INCARNATION };
    let mut stream = LinkStream::new(key, identity, Nonce::random()?);
    socket.write_all(&stream.hello())?;
    let mut bytes = [0; 16 << 10];
    loop {
        let remaining = until.checked_duration_since(Instant::now()).filter(|remaining| !remaining.is_zero());
        socket.set_read_timeout(Some(remaining.ok_or(io::ErrorKind::TimedOut)?))?;
        let count = socket.read(&mut bytes)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        stream.push(bytes.get(..count).unwrap_or_default());
        match stream.next_message().map_err(io::Error::other)? {
            Some(LinkMessage::Positions(positions)) => return Ok(positions),
            Some(_) => return Err(io::Error::other("unexpected message")),
            None => {}
        }
    }
}
