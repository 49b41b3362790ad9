//! A restarted gateway copies its peer's state, channel by channel.

use std::{cmp::Ordering, io::ErrorKind, net::SocketAddrV4, time::Duration};

use mdgw_election::auth::SharedKey;
#[cfg(test)]
use mdgw_election::identity::Incarnation;
use mdgw_feeds::identity::Session;
use mdgw_feeds::{
    channel::{Channel, ChannelConfig},
    published::position::StreamPosition,
};
use mdgw_pair::pair_link::{
    CopyError, SilenceLimit, fetch_copy, fetch_log,
    message::{LinkIdentity, LogRequest, LoggedEntry},
};

use super::health::log_end;
use crate::config::{Resolved, resolved::ChannelSetup};

/// The peers that may supply their state.
#[derive(Debug)]
pub(super) struct Donors {
    /// This start of this gateway.
    identity: LinkIdentity,
    key: Option<SharedKey>,
    /// Without those that did not answer.
    peers: Vec<Peer>,
}

/// A peer, and how long this start still waits for it.
#[derive(Debug)]
struct Peer {
    /// Of its link.
    address: SocketAddrV4,
    silence_limit: SilenceLimit,
}

impl Peer {
    fn at(address: SocketAddrV4) -> Self {
        Self { address, silence_limit: SilenceLimit::new(SILENCE_MAX, SILENCES_MAX) }
    }
}

impl Donors {
    /// The configured peers, if the gateway is to copy.
    pub(super) fn of(config: &Resolved, identity: LinkIdentity, copy_peer_state: bool) -> Self {
        let link = config.election.as_ref().and_then(|election| election.link.as_ref()).filter(|_| copy_peer_state);
        Self {
            identity,
            // A key that cannot be read is reported when the gateway links.
            key: link.and_then(|link| SharedKey::load(&link.key_file).ok()),
            peers: link.into_iter().flat_map(|link| &link.peers).map(|peer| Peer::at(peer.address)).collect(),
        }
    }

    /// One peer.
    #[cfg(test)]
    pub(super) fn at(peer: SocketAddrV4, key: SharedKey, silence_limit: SilenceLimit) -> Self {
        let identity = LinkIdentity { node: 1, incarnation: Incarnation(1) };
        Self { identity, key: Some(key), peers: vec![Peer { address: peer, silence_limit }] }
    }

    /// Whether there were peers to copy from, and none of them answers any more.
    pub(super) fn are_all_unreachable(&self) -> bool {
        self.key.is_some() && self.peers.is_empty()
    }

    /// Fetches entries of the log of the peer at that address: see [`fetch_log`].
    pub(super) fn fetch_log(
        &mut self,
        peer: SocketAddrV4,
        request: LogRequest,
        accept: &mut dyn FnMut(Session, &LoggedEntry),
    ) -> Result<(), CopyError> {
        self.request(peer, |identity, key, silence_limit| {
            fetch_log(peer, identity, key, request, silence_limit, accept)
        })
    }

    /// Whether this start asks the peer at that address for nothing more: it was silent for too long, or was [forgotten](Self::forget).
    pub(super) fn is_given_up(&self, peer: SocketAddrV4) -> bool {
        self.peers.iter().find(|known| known.address == peer).is_none_or(|known| known.silence_limit.is_exhausted())
    }

    /// The peer at that address does not answer any more, and is not asked for other channels.
    pub(super) fn forget(&mut self, peer: SocketAddrV4) {
        self.peers.retain(|other| other.address != peer);
    }

    /// The channel with a peer's state, and the peer's address; `None` if no peer supplies a better state than this gateway has. `joining`:
    /// configuration of the channel. `can_replay_input`: whether the whole session's input is available from another
    /// source.
    pub(super) fn channel(
        &mut self,
        config: &Resolved,
        setup: &ChannelSetup,
        joining: &ChannelConfig,
        can_replay_input: &mut dyn FnMut() -> bool,
    ) -> Option<(Channel, SocketAddrV4)> {
        self.key.as_ref()?;
        let own = log_end(&config.gateway.log_directory(setup.id), setup.id);
        let peers: Vec<_> = self.peers.iter().map(|peer| peer.address).collect();
        for peer in peers {
            match self.copy_with_retries(peer, joining) {
                Ok(channel) => {
                    let (session, next) = channel.position()?;
                    let at = StreamPosition::at(session, next);
                    let has_missed_input = channel.has_missed_input();
                    let Err(why) =
                        is_better_than_own(at, has_missed_input, own, has_missed_input && can_replay_input())
                    else {
                        tracing::info!(%peer, channel = setup.name, %session, next = next.0, "starting with a copy of the peer's state");
                        return Some((channel, peer));
                    };
                    tracing::warn!(%peer, channel = setup.name, %session, next = next.0, why, "the copy of the peer's state is not used");
                }
                Err(error) => {
                    tracing::warn!(%peer, channel = setup.name, %error, "could not copy the peer's state");
                    // A peer that is unreachable, or whose connection broke in every attempt, is not tried for other
                    // channels.
                    if matches!(error, CopyError::Unreachable(_) | CopyError::Io(_)) {
                        self.forget(peer);
                    }
                }
            }
        }
        None
    }

    /// Copies the state from one peer. A transient error is followed by another attempt.
    fn copy_with_retries(&mut self, peer: SocketAddrV4, joining: &ChannelConfig) -> Result<Channel, CopyError> {
        let mut attempt = 1;
        loop {
            let outcome = self.request(peer, |identity, key, silence_limit| {
                fetch_copy(peer, identity, key, joining.clone(), silence_limit)
            });
            match outcome {
                Err(error) if error.is_transient() && attempt < ATTEMPTS_MAX && !self.is_given_up(peer) => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                outcome => return outcome,
            }
            attempt += 1;
        }
    }

    fn request<T>(
        &mut self,
        peer: SocketAddrV4,
        request: impl FnOnce(LinkIdentity, SharedKey, &mut SilenceLimit) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        let known = self.peers.iter_mut().find(|known| known.address == peer);
        let (Some(known), Some(key)) = (known, self.key.clone()) else {
            return Err(CopyError::Unreachable(ErrorKind::NotConnected.into()));
        };
        request(self.identity, key, &mut known.silence_limit)
    }
}

/// Whether a copied state is better than what this gateway has.
///
/// The local log stays, and the channel continues at the copy's position. So a copy must not lie before the log's end.
/// Suspect books are worse than a replay of the whole session's input. They are better than empty books, which are
/// suspect too: both gateways then produce the same output for the rest of the session.
fn is_better_than_own(
    copied: StreamPosition,
    has_missed_input: bool,
    own: Option<StreamPosition>,
    can_replay_input: bool,
) -> Result<(), &'static str> {
    let order = own.map_or(Ordering::Greater, |own| copied.session.cmp(&own.session));
    match order {
        Ordering::Less => Err("the local log is in a newer session"),
        Ordering::Equal if own > Some(copied) => Err("the local log is further ahead"),
        _ if has_missed_input && can_replay_input => {
            Err("the peer's books are suspect, and the session can be replayed")
        }
        Ordering::Equal | Ordering::Greater => Ok(()),
    }
}

/// Attempts per peer and channel.
const ATTEMPTS_MAX: u32 = 5;
/// Pause before the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// A copy without progress for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How long a start waits for one peer in all failed copies of all channels: a peer that stops in the middle of a copy is asked once more, since
/// it may have been paused only.
const SILENCES_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    fn at(restart: u32, sequence: u64) -> StreamPosition {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        StreamPosition::at(Session { feed: Feed::IexTops, date, restart }, Sequence(sequence))
    }

    #[test]
    fn a_copied_state_is_used_only_if_it_is_newer_and_no_more_suspect_than_a_replay() {
        for (copied, has_missed_input, own, can_replay_input, is_taken) in [
            (at(1, 500), false, None, false, true),
            (at(1, 500), false, None, true, true),
            (at(1, 500), false, Some(at(1, 500)), false, true),
            (at(1, 500), false, Some(at(1, 40)), true, true),
            (at(1, 500), false, Some(at(1, 501)), false, false),
            (at(1, 500), false, Some(at(2, 1)), false, false),
            (at(1, 500), false, Some(at(0, 900)), false, true),
            (at(1, 500), true, Some(at(1, 40)), false, true),
            (at(1, 500), true, Some(at(1, 40)), true, false),
            (at(1, 500), true, Some(at(1, 501)), false, false),
            (at(1, 500), true, None, false, true),
            (at(1, 500), true, Some(at(0, 40)), false, true),
            (at(1, 500), true, None, true, false),
        ] {
            let outcome = is_better_than_own(copied, has_missed_input, own, can_replay_input);
            assert_eq!(outcome.is_ok(), is_taken, "{copied:?} {has_missed_input} {own:?} {can_replay_input}");
        }
    }
}
