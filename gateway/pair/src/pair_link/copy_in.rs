//! Copies a channel's state from a peer, before this gateway starts.

use std::{
    io,
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use mdgw_election::auth::SharedKey;
use mdgw_feeds::channel::{Channel, ChannelConfig, CopyFault, CopyRestorer};

use super::{
    framing::LinkFault,
    message::{CopyEnd, LinkIdentity, LinkMessage},
    requester::{Requester, SilenceLimit},
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
    silence_limit: &mut SilenceLimit,
) -> Result<Channel, CopyError> {
    silence_limit.spend(|silence_limit| fetch(peer, identity, key, config, silence_limit))
}

fn fetch(
    peer: SocketAddrV4,
    identity: LinkIdentity,
    key: SharedKey,
    config: ChannelConfig,
    silence_limit: &mut SilenceLimit,
) -> Result<Channel, CopyError> {
    let channel = config.id;
    let mut receiver = CopyRestorer::new(config);
    let mut requester = Requester::connect(peer, identity, key, LinkMessage::CopyRequest { channel }, silence_limit)?;
    let (mut slices, mut checksum) = (0, 0);
    let (begun, mut logged_at) = (Instant::now(), Instant::now());
    loop {
        match requester.next_message()? {
            LinkMessage::CopySlice { channel: of, number, bytes } if of == channel => {
                if number != slices {
                    return Err(CopyError::Damaged);
                }
                slices += 1;
                checksum = crc32c::crc32c_append(checksum, &bytes);
                let _is_last = receiver.push_slice(&bytes)?;
                requester.note_progress();
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
            LinkMessage::CopyEnd(CopyEnd { channel: of, fault: Some(fault), .. }) if of == channel => {
                return Err(fault.into());
            }
            LinkMessage::CopyEnd(end) if end.channel == channel => {
                if (end.slices, end.checksum) != (slices, checksum) {
                    return Err(CopyError::Damaged);
                }
                return Ok(receiver.into_channel()?);
            }
            _ => {}
        }
    }
}

/// Least time between two progress messages in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
