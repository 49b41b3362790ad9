//! Copies a channel's state from a peer, before this gateway starts.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

use mdgw_election::auth::{Nonce, SharedKey};
use mdgw_feeds::channel::{Channel, ChannelConfig, CopyFault, CopyRestorer};

use super::{
    framing::{LinkFault, LinkStream},
    message::{CopyEnd, LinkIdentity, LinkMessage},
};

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// No peer is connected, or it sends nothing.
    #[error("{0}")]
    Unreachable(io::Error),
    /// The peer stopped sending during the copy.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The received bytes are invalid.
    #[error("{0}")]
    Link(#[from] LinkFault),
    /// The peer has no state to copy, or this gateway refuses it.
    #[error("{0}")]
    Fault(#[from] CopyFault),
    /// Slices are missing or corrupted.
    #[error("slices missing or corrupted (checksum mismatch)")]
    Damaged,
}

impl CopyError {
    /// Whether another attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Io(_) => true,
            Self::Fault(fault) => fault.is_transient(),
            Self::Unreachable(_) | Self::Link(_) | Self::Damaged => false,
        }
    }
}

/// Copies the channel's state from the gateway at that address, and returns a channel with that state.
///
/// # Errors
/// [`CopyError`]; the channel is unusable then and is dropped.
pub fn fetch_copy(
    peer: SocketAddrV4,
    identity: LinkIdentity,
    key: SharedKey,
    config: ChannelConfig,
    timeout: Duration,
) -> Result<Channel, CopyError> {
    let channel = config.id;
    let mut receiver = CopyRestorer::new(config);
    let mut socket = TcpStream::connect_timeout(&peer.into(), timeout).map_err(CopyError::Unreachable)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    let mut stream = LinkStream::new(key, identity, Nonce::random()?);
    socket.write_all(&stream.hello()).map_err(CopyError::Unreachable)?;
    let (mut is_requested, mut slices, mut checksum) = (false, 0, 0);
    let mut bytes = vec![0; 64 << 10];
    let (begun, mut logged_at) = (Instant::now(), Instant::now());
    // Position messages arrive without end, so the time limit counts from the last progress of the copy.
    let mut progressed = Instant::now();
    loop {
        let message = stream.next_message()?;
        if !is_requested && let Some(ask) = stream.seal(&LinkMessage::CopyRequest { channel }) {
            socket.write_all(&ask)?;
            is_requested = true;
        }
        match message {
            None => {
                let count = match socket.read(&mut bytes) {
                    Ok(0) => return Err(silent(ErrorKind::UnexpectedEof.into(), is_requested)),
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                    Err(error) => return Err(silent(error, is_requested)),
                };
                stream.push(bytes.get(..count).unwrap_or_default());
            }
            Some(LinkMessage::CopySlice { channel: of, number, bytes }) if of == channel => {
                if number != slices {
                    return Err(CopyError::Damaged);
                }
                slices += 1;
                checksum = crc32c::crc32c_append(checksum, &bytes);
                let _is_last = receiver.push_slice(&bytes)?;
                progressed = Instant::now();
                if logged_at.elapsed() >= LOG_INTERVAL {
                    logged_at = Instant::now();
                    let so_far = begun.elapsed().as_millis();
                    tracing::info!(
                        channel_id = channel.0,
                        items = receiver.items(),
                        ms = so_far,
                        "copying the peer's state"
                    );
                }
            }
            Some(LinkMessage::CopyEnd(CopyEnd { channel: of, fault: Some(fault), .. })) if of == channel => {
                return Err(fault.into());
            }
            Some(LinkMessage::CopyEnd(end)) if end.channel == channel => {
                if (end.slices, end.checksum) != (slices, checksum) {
                    return Err(CopyError::Damaged);
                }
                return Ok(receiver.into_channel()?);
            }
            Some(_) => {}
        }
        if progressed.elapsed() >= timeout {
            return Err(silent(ErrorKind::TimedOut.into(), is_requested));
        }
    }
}

/// The kernel accepts connections even for a stopped process. So a peer that never answered counts as unreachable and
/// is not asked again.
fn silent(error: io::Error, is_requested: bool) -> CopyError {
    if is_requested { CopyError::Io(error) } else { CopyError::Unreachable(error) }
}

/// Least time between two progress messages in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
