//! The socket of a gateway or a witness: authenticated datagrams in and out, for all of its groups.
//!
//! A datagram that is not authentic, not for this node, or from an unknown node is counted and never answered. So an
//! outsider learns nothing from this port and cannot make it send. Answers go to the configured address, wherever the
//! request came from.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddrV4, UdpSocket},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use socket2::SockRef;

use super::{
    message::Message,
    wire::{self, DATAGRAM_BYTES_MAX, DecodeError},
};
use crate::{announcement::Announcement, auth::SharedKey, identity::NodeId};

/// A process's socket for votes.
#[derive(Debug)]
pub struct VoteLink {
    socket: UdpSocket,
    key: SharedKey,
    node: NodeId,
    peers: BTreeMap<NodeId, SocketAddrV4>,
    counters: LinkCounters,
}

/// Counts of dropped and unsent messages. Each only grows.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    /// Not a message of this protocol, or of another version of it.
    pub malformed: AtomicU64,
    /// Signed with another key, or changed in transit.
    pub forged: AtomicU64,
    /// Authentic, but from a node that is not configured, or to another node.
    pub unknown_nodes: AtomicU64,
    /// The operating system refused the send.
    pub unsent: AtomicU64,
}

/// A received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// An authenticated message from a configured peer.
    Message(Message),
    /// An authenticated death notice from a sentinel.
    Death(Announcement),
}

impl VoteLink {
    /// Opens the socket of `node`; `peers` are the other voters and candidates.
    ///
    /// # Errors
    /// When the address is not available.
    pub fn open(
        listen: SocketAddrV4,
        node: NodeId,
        key: SharedKey,
        peers: BTreeMap<NodeId, SocketAddrV4>,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(listen)?;
        socket.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
        Ok(Self { socket, key, node, peers, counters: LinkCounters::default() })
    }

    /// Sends the message to the node that it names. Never waits: a refused send is counted, and the request is repeated
    /// in time.
    pub(crate) fn send(&self, message: &Message) {
        let Some(address) = self.peers.get(&message.to) else {
            self.counters.unknown_nodes.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let datagram = wire::encode(message, &self.key);
        let sent = SockRef::from(&self.socket).send_to_with_flags(&datagram, &(*address).into(), libc::MSG_DONTWAIT);
        if sent.is_err() {
            self.counters.unsent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the next authentic datagram, at most for a tenth of a second. `buffer` has room for any datagram.
    ///
    /// # Errors
    /// When the socket fails.
    pub(crate) fn receive(&self, buffer: &mut [u8; DATAGRAM_BYTES_MAX]) -> io::Result<Option<Received>> {
        let length = match self.socket.recv(buffer) {
            Ok(length) => length,
            // Network errors about earlier sends arrive here too.
            Err(error) if is_transient(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let datagram = &buffer[..length];
        let (drop, what) = if Announcement::has_magic(datagram) {
            match Announcement::open(datagram, &self.key) {
                Some(announcement) => return Ok(Some(Received::Death(announcement))),
                None => (&self.counters.forged, "a death notice that failed authentication"),
            }
        } else {
            match wire::decode(datagram, &self.key) {
                Ok(message) if message.to == self.node && self.peers.contains_key(&message.from) => {
                    return Ok(Some(Received::Message(message)));
                }
                Ok(_) => {
                    (&self.counters.unknown_nodes, "an authentic message from a node that is not in this configuration")
                }
                Err(DecodeError::Forged) => (&self.counters.forged, "a message that failed authentication"),
                Err(DecodeError::Malformed) => (&self.counters.malformed, "a malformed datagram"),
                Err(DecodeError::Version) => (&self.counters.malformed, "a message of a different protocol version"),
            }
        };
        let count = 1 + drop.fetch_add(1, Ordering::Relaxed);
        if count.is_power_of_two() {
            tracing::warn!(node = self.node.0, count, "votes: dropped {what}");
        }
        Ok(None)
    }
}

fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted | ConnectionRefused)
}

/// Longest wait for a datagram. After it, the receiving thread checks whether it is to end.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);
