//! The socket of a gateway or a witness: authenticated datagrams in and out, for all of its groups.
//!
//! A datagram that is not authentic, not for this node, or from an unknown node is counted by its reason and never answered.
//! So an outsider learns nothing from this port and cannot make it send. Answers go to the configured address, wherever the
//! request came from.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddrV4, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mdgw_sys::listener_counters::{ListenerCounters, Refusal};
use socket2::SockRef;

use super::{
    message::Message,
    wire::{self, DATAGRAM_BYTES_MAX, DatagramBuffer, DecodeError},
};
use crate::{announcement::Announcement, auth::SharedKey, identity::NodeId};

/// A process's socket for votes.
#[derive(Debug)]
pub struct VoteLink {
    socket: UdpSocket,
    key: SharedKey,
    node: NodeId,
    peers: BTreeMap<NodeId, SocketAddrV4>,
    counters: Arc<ListenerCounters>,
    /// Messages that could not be sent: the operating system refused, or the recipient is not configured.
    unsent: AtomicU64,
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
        Ok(Self { socket, key, node, peers, counters: Arc::default(), unsent: AtomicU64::new(0) })
    }

    /// What the socket has received and refused.
    #[must_use]
    pub fn counters(&self) -> &Arc<ListenerCounters> {
        &self.counters
    }

    /// Where the socket listens; the kernel has chosen the port if none was configured.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddrV4 {
        match self.socket.local_addr() {
            Ok(std::net::SocketAddr::V4(address)) => address,
            other => panic!("{other:?}"),
        }
    }

    /// Sends the message to the node that it names. Never waits: a refused send is counted, and the request is repeated
    /// in time.
    pub(crate) fn send(&self, message: &Message) {
        let Some(address) = self.peers.get(&message.to) else {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let datagram = wire::encode(message, &self.key);
        let sent = SockRef::from(&self.socket).send_to_with_flags(&datagram, &(*address).into(), libc::MSG_DONTWAIT);
        if sent.is_err() {
            self.unsent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the next datagram, at most for a tenth of a second. `None`: none came, or it was refused.
    ///
    /// # Errors
    /// When the socket fails.
    pub(crate) fn receive(&self, buffer: &mut DatagramBuffer) -> io::Result<Option<Received>> {
        let length = match self.socket.recv(buffer) {
            Ok(length) => length,
            // Network errors about earlier sends arrive here too.
            Err(error) if is_transient(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.counters.count_received();
        match self.read(&buffer[..length]) {
            Ok(received) => Ok(Some(received)),
            Err((refusal, what)) => {
                self.counters.count(refusal);
                let count = self.counters.refused(refusal);
                if count.is_power_of_two() {
                    tracing::warn!(node = self.node.0, count, "votes: dropped {what}");
                }
                Ok(None)
            }
        }
    }

    /// The content of a datagram, or why it is refused and what it is instead. Cheap checks come first: a flood of junk costs
    /// no authentication.
    fn read(&self, datagram: &[u8]) -> Result<Received, (Refusal, &'static str)> {
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err((Refusal::TooLong, "a datagram that is longer than any message"));
        }
        if Announcement::has_magic(datagram) {
            let announcement = Announcement::open(datagram, &self.key);
            return announcement
                .map(Received::Death)
                .ok_or((Refusal::Forged, "a death notice that failed authentication"));
        }
        match wire::decode(datagram, &self.key) {
            Ok(message) if message.to == self.node && self.peers.contains_key(&message.from) => {
                Ok(Received::Message(message))
            }
            Ok(_) => Err((Refusal::UnknownNode, "an authentic message from a node that is not in this configuration")),
            Err(DecodeError::Forged) => Err((Refusal::Forged, "a message that failed authentication")),
            Err(DecodeError::Malformed) => Err((Refusal::Malformed, "a malformed datagram")),
            Err(DecodeError::Version) => Err((Refusal::Version, "a message of a different protocol version")),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted | ConnectionRefused)
}

/// Longest wait for a datagram. After it, the receiving thread checks whether it is to end.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use mdgw_wire::identity::{Epoch, GroupId};

    use super::*;
    use crate::{
        fitness::{Eligibility, Fitness},
        identity::{DeathNotice, Incarnation},
        quorum::message::{Body, Operation, Request, VoteRequestId, VoterSession},
    };

    fn key(byte: u8) -> SharedKey {
        SharedKey::new(&[byte; 32])
    }

    fn poll(from: u8, to: u8) -> Message {
        let request = Request {
            request_id: VoteRequestId { nonce: 1, number: 2 },
            incarnation: Incarnation(3),
            session: VoterSession(4),
            lease_ns: 5,
            fitness: Fitness::default(),
            eligibility: Eligibility::Eligible,
            operation: Operation::Poll,
        };
        Message { group: GroupId(1), from: NodeId(from), to: NodeId(to), body: Body::Request(request) }
    }

    #[test]
    fn each_refused_datagram_is_counted_by_its_reason() {
        let peers = [(NodeId(1), SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9))].into();
        let link = VoteLink::open(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), NodeId(3), key(1), peers).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let notice = DeathNotice { holder: NodeId(1), incarnation: Incarnation(2), epoch: Epoch::new(1, 1) };
        let mut foreign_notice = Announcement { group: GroupId(1), notice }.to_datagram(&key(2)).to_vec();
        let mut long_with_magic = wire::encode(&poll(1, 3), &key(1));
        long_with_magic.resize(40_000, 0);
        let mut long_notice = foreign_notice.clone();
        long_notice.resize(DATAGRAM_BYTES_MAX + 1, 0);
        foreign_notice.push(0);
        for (datagram, expected) in [
            (Vec::new(), Refusal::Malformed),
            (vec![0x55; 200], Refusal::Malformed),
            (wire::encode(&poll(1, 3), &key(2)), Refusal::Forged),
            (foreign_notice, Refusal::Forged),
            (wire::encode(&poll(9, 3), &key(1)), Refusal::UnknownNode),
            (wire::encode(&poll(1, 4), &key(1)), Refusal::UnknownNode),
            (long_with_magic, Refusal::TooLong),
            (long_notice, Refusal::TooLong),
        ] {
            let before = (link.counters.refused(expected), link.counters.refused_total());
            sender.send_to(&datagram, link.address()).unwrap();
            while link.counters.refused_total() == before.1 {
                assert_eq!(link.receive(&mut [0; DATAGRAM_BYTES_MAX + 1]).unwrap(), None, "{expected:?}");
            }
            assert_eq!(link.counters.refused(expected), before.0 + 1, "{expected:?}");
        }
        let accepted = poll(1, 3);
        sender.send_to(&wire::encode(&accepted, &key(1)), link.address()).unwrap();
        let mut received = None;
        while received.is_none() {
            received = link.receive(&mut [0; DATAGRAM_BYTES_MAX + 1]).unwrap();
        }
        assert_eq!(received, Some(Received::Message(accepted)));
        assert_eq!((link.counters.received(), link.counters.refused_total()), (9, 8));
    }
}
