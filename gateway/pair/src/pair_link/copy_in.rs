//! A channel's state from another gateway, before this one begins.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

use mdgw_election::auth::{Nonce, SharedKey};
use mdgw_feeds::channel::{Channel, ChannelConfig, CopyFault, CopyTaker};

use super::{
    framing::{LinkFault, LinkStream},
    message::{CopyEnd, LinkMessage},
};

/// Why no copy has come.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Nobody is there, or nobody who says a word.
    #[error("{0}")]
    Absent(io::Error),
    /// Who was there says nothing more.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came can't be read.
    #[error("{0}")]
    Link(#[from] LinkFault),
    /// The other gateway has none to give, or what it gave is refused.
    #[error("{0}")]
    Fault(#[from] CopyFault),
    /// Slices are missing or changed.
    #[error("slices are missing, or changed on the way")]
    Damaged,
}

impl CopyError {
    /// Whether another attempt may end otherwise.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::Io(_) => true,
            Self::Fault(fault) => fault.passes(),
            Self::Absent(_) | Self::Link(_) | Self::Damaged => false,
        }
    }
}

/// The channel, in the state in which the gateway that listens there has it.
///
/// # Errors
/// [`CopyError`]; nothing of it is used then.
pub fn take_copy(
    peer: SocketAddrV4,
    node: u8,
    key: SharedKey,
    config: ChannelConfig,
    patience: Duration,
) -> Result<Channel, CopyError> {
    let channel = config.id;
    let mut taker = CopyTaker::new(config);
    let mut socket = TcpStream::connect_timeout(&peer.into(), patience).map_err(CopyError::Absent)?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    let mut stream = LinkStream::new(key, node, Nonce::random()?);
    socket.write_all(&stream.hello()).map_err(CopyError::Absent)?;
    let (mut has_asked, mut slices, mut checksum) = (false, 0, 0);
    let mut bytes = vec![0; 64 << 10];
    let (begun, mut told) = (Instant::now(), Instant::now());
    // Positions may come for ever; what counts is that the copy goes on.
    let mut moved = Instant::now();
    loop {
        let message = stream.next_message()?;
        if !has_asked && let Some(ask) = stream.seal(&LinkMessage::CopyAsk { channel }) {
            socket.write_all(&ask)?;
            has_asked = true;
        }
        match message {
            None => {
                let count = match socket.read(&mut bytes) {
                    Ok(0) => return Err(silent(ErrorKind::UnexpectedEof.into(), has_asked)),
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                    Err(error) => return Err(silent(error, has_asked)),
                };
                stream.push(bytes.get(..count).unwrap_or_default());
            }
            Some(LinkMessage::CopySlice { channel: of, number, bytes }) if of == channel => {
                if number != slices {
                    return Err(CopyError::Damaged);
                }
                slices += 1;
                checksum = crc32c::crc32c_append(checksum, &bytes);
                let _is_last = taker.take(&bytes)?;
                moved = Instant::now();
                if told.elapsed() >= TELL {
                    told = Instant::now();
                    let so_far = begun.elapsed().as_millis();
                    tracing::info!(channel = channel.0, items = taker.items(), ms = so_far, "copying the peer's state");
                }
            }
            Some(LinkMessage::CopyEnd(CopyEnd { channel: of, fault: Some(fault), .. })) if of == channel => {
                return Err(fault.into());
            }
            Some(LinkMessage::CopyEnd(end)) if end.channel == channel => {
                if (end.slices, end.checksum) != (slices, checksum) {
                    return Err(CopyError::Damaged);
                }
                return Ok(taker.into_channel()?);
            }
            Some(_) => {}
        }
        if moved.elapsed() >= patience {
            return Err(silent(ErrorKind::TimedOut.into(), has_asked));
        }
    }
}

/// A host takes connections for a program that is stopped: who never answered isn't asked again.
fn silent(error: io::Error, has_asked: bool) -> CopyError {
    if has_asked { CopyError::Io(error) } else { CopyError::Absent(error) }
}

/// Between two lines of the log.
const TELL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
