//! Messages from and to a stream of bytes. No sockets.

use mdgw_election::auth::{AuthError, AuthenticatedSession, Nonce, Purpose, SharedKey, TAG_BYTES, Tag};

use super::message::{BODY_BYTES_MAX, HELLO_BYTES, Hello, LinkMessage, Malformed};

/// One end of a connection: hello first, then authenticated messages. After a protocol violation the stream reads no
/// more.
#[derive(Debug)]
pub struct LinkStream {
    key: SharedKey,
    ours: Hello,
    /// Received bytes that are not parsed yet.
    bytes: Vec<u8>,
    peer: Option<Peer>,
    is_authenticated: bool,
}

#[derive(Debug)]
struct Peer {
    node: u8,
    stream: AuthenticatedSession,
    /// Authenticates datagrams. They are numbered apart from the stream, since they may be lost or reordered.
    datagrams: AuthenticatedSession,
}

/// Why a connection is closed, or a datagram dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    /// The bytes are not a message.
    #[error("malformed message: {0}")]
    Malformed(#[from] Malformed),
    /// The peer did not authenticate the bytes.
    #[error("message rejected: {0}")]
    AuthError(#[from] AuthError),
    /// The other end has our node number or our nonce: it is this gateway itself, or configured with the same number.
    #[error("the other end uses this gateway's node number (or this is a connection to itself)")]
    OwnNode,
}

impl LinkStream {
    /// One end of a new connection. `node`: this gateway's node number.
    #[must_use]
    pub fn new(key: SharedKey, node: u8, nonce: Nonce) -> Self {
        Self { key, ours: Hello { node, nonce }, bytes: Vec::new(), peer: None, is_authenticated: false }
    }

    /// This end's hello, to be sent first.
    #[must_use]
    pub fn hello(&self) -> [u8; HELLO_BYTES] {
        self.ours.to_bytes()
    }

    /// Takes received bytes of the connection.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// The connection has to be closed.
    pub fn next_message(&mut self) -> Result<Option<LinkMessage>, LinkFault> {
        if self.peer.is_none() {
            let Some(hello) = self.bytes.first_chunk::<HELLO_BYTES>() else { return Ok(None) };
            let theirs = Hello::parse(hello)?;
            self.accept_hello(theirs)?;
            self.bytes.drain(..HELLO_BYTES);
        }
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        // Check the length before waiting for the body: a forged length must not make us buffer without end.
        if length > SEAL_BYTES + BODY_BYTES_MAX {
            return Err(Malformed::TooLong.into());
        }
        if length <= SEAL_BYTES {
            return Err(Malformed::Truncated.into());
        }
        let Some(sealed) = rest.get(..length) else { return Ok(None) };
        let Some(peer) = self.peer.as_mut() else { return Ok(None) };
        let message = open(&mut peer.stream, CARRIER_STREAM, sealed)?;
        self.is_authenticated = true;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }

    /// Opens a datagram that came from the peer's address.
    ///
    /// # Errors
    /// The datagram does not belong to this connection, or was received before: two of its three copies are.
    pub(crate) fn open_datagram(&mut self, datagram: &[u8]) -> Result<LinkMessage, LinkFault> {
        let Some(peer) = self.peer.as_mut().filter(|_| self.is_authenticated) else {
            return Err(AuthError::Forged.into());
        };
        open(&mut peer.datagrams, CARRIER_DATAGRAM, datagram)
    }

    /// Seals a message for the stream. `None` before the other end's hello.
    pub fn seal(&mut self, message: &LinkMessage) -> Option<Vec<u8>> {
        let sealed = seal(&mut self.peer.as_mut()?.stream, CARRIER_STREAM, message);
        let length = u32::try_from(sealed.len()).ok()?;
        Some([&length.to_le_bytes()[..], &sealed].concat())
    }

    /// Seals a message as a datagram. `None` before the other end's hello.
    pub(crate) fn seal_datagram(&mut self, message: &LinkMessage) -> Option<Vec<u8>> {
        Some(seal(&mut self.peer.as_mut()?.datagrams, CARRIER_DATAGRAM, message))
    }

    /// Whether the other end's hello has arrived: messages can be authenticated from then on.
    #[must_use]
    pub(crate) fn has_peer_hello(&self) -> bool {
        self.peer.is_some()
    }

    /// The other end's node number, once it has proved the key.
    #[must_use]
    pub(crate) fn peer_node(&self) -> Option<u8> {
        self.peer.as_ref().filter(|_| self.is_authenticated).map(|peer| peer.node)
    }

    fn accept_hello(&mut self, theirs: Hello) -> Result<(), LinkFault> {
        if theirs.node == self.ours.node {
            return Err(LinkFault::OwnNode);
        }
        let conversation =
            || AuthenticatedSession::new(self.key.clone(), Purpose::PairLink, self.ours.nonce, theirs.nonce);
        let (Some(stream), Some(datagrams)) = (conversation(), conversation()) else { return Err(LinkFault::OwnNode) };
        self.peer = Some(Peer { node: theirs.node, stream, datagrams });
        Ok(())
    }
}

/// Length of a message's number and tag, bytes.
const SEAL_BYTES: usize = 8 + TAG_BYTES;
/// Covered by the tag, so that a message of the stream is not valid as a datagram.
const CARRIER_STREAM: u8 = 0;
const CARRIER_DATAGRAM: u8 = 1;

fn seal(conversation: &mut AuthenticatedSession, carrier: u8, message: &LinkMessage) -> Vec<u8> {
    let body = message.to_bytes();
    let (number, tag) = conversation.seal(&[&[carrier], &body[..]].concat());
    [&number.to_le_bytes()[..], &tag, &body].concat()
}

fn open(conversation: &mut AuthenticatedSession, carrier: u8, sealed: &[u8]) -> Result<LinkMessage, LinkFault> {
    let (number, rest) = sealed.split_first_chunk::<8>().ok_or(Malformed::Truncated)?;
    let (tag, body) = rest.split_first_chunk::<TAG_BYTES>().ok_or(Malformed::Truncated)?;
    let tag: &Tag = tag;
    conversation.open(u64::from_le_bytes(*number), &[&[carrier], body].concat(), tag)?;
    Ok(LinkMessage::parse(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::check;

    fn ends() -> [LinkStream; 2] {
        let key = SharedKey::new(&[1; 32]);
        let mut ends = [1, 2].map(|node| LinkStream::new(key.clone(), node, Nonce([node; 16])));
        let hellos = [0, 1].map(|end: usize| ends[end].hello());
        ends[0].push(&hellos[1]);
        ends[1].push(&hellos[0]);
        for end in &mut ends {
            assert_eq!(end.next_message(), Ok(None));
        }
        ends
    }

    fn message(number: u8) -> LinkMessage {
        LinkMessage::Election { serial: number.into(), bytes: vec![number; 100] }
    }

    #[test]
    fn messages_are_reassembled_however_the_stream_is_split() {
        let [mut a, mut b] = ends();
        let bytes: Vec<u8> = (0..4).flat_map(|number| a.seal(&message(number)).unwrap()).collect();
        for piece in [1, 3, 50, 1_000] {
            let [mut a, mut b] = ends();
            let bytes: Vec<u8> = (0..4).flat_map(|number| a.seal(&message(number)).unwrap()).collect();
            let mut received = Vec::new();
            for piece in bytes.chunks(piece) {
                b.push(piece);
                while let Some(message) = b.next_message().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, [0, 1, 2, 3].map(message));
            assert_eq!(b.peer_node(), Some(1));
        }
        b.push(&bytes);
        assert_eq!(b.next_message(), Ok(Some(message(0))));
    }

    #[test]
    fn a_peer_without_the_key_is_rejected_at_its_first_message() {
        let [mut honest, _] = ends();
        let mut forger = LinkStream::new(SharedKey::new(&[9; 32]), 2, Nonce([2; 16]));
        forger.push(&LinkStream::new(SharedKey::new(&[1; 32]), 1, Nonce([1; 16])).hello());
        assert_eq!(forger.next_message(), Ok(None));
        honest.push(&forger.seal(&message(1)).unwrap());
        assert_eq!(honest.next_message(), Err(LinkFault::AuthError(AuthError::Forged)));
        assert_eq!(honest.peer_node(), None);
        let datagram = forger.seal_datagram(&message(1)).unwrap();
        assert_eq!(honest.open_datagram(&datagram), Err(LinkFault::AuthError(AuthError::Forged)));
    }

    #[test]
    fn a_stream_message_is_no_valid_datagram_and_replayed_copies_are_rejected() {
        let [mut a, mut b] = ends();
        let sealed = a.seal(&message(1)).unwrap();
        b.push(&sealed);
        assert!(b.next_message().unwrap().is_some());
        assert_eq!(b.open_datagram(&sealed[4..]), Err(LinkFault::AuthError(AuthError::Forged)));
        let datagram = a.seal_datagram(&message(2)).unwrap();
        assert_eq!(b.open_datagram(&datagram), Ok(message(2)));
        assert_eq!(b.open_datagram(&datagram), Err(LinkFault::AuthError(AuthError::Replayed)));
        for length in 0..datagram.len() {
            assert!(b.open_datagram(&datagram[..length]).is_err());
        }
        b.push(&sealed);
        assert_eq!(b.next_message(), Err(LinkFault::AuthError(AuthError::Replayed)));
    }

    #[test]
    fn invalid_lengths_end_the_connection_at_once() {
        for length in [0_u32, 40, u32::MAX, 70_000] {
            let [_, mut b] = ends();
            b.push(&length.to_le_bytes());
            assert!(b.next_message().is_err(), "{length}");
        }
    }

    #[test]
    fn a_gateway_rejects_a_connection_to_itself() {
        let key = SharedKey::new(&[1; 32]);
        let mut end = LinkStream::new(key.clone(), 1, Nonce([1; 16]));
        end.push(&LinkStream::new(key.clone(), 1, Nonce([2; 16])).hello());
        assert_eq!(end.next_message(), Err(LinkFault::OwnNode));
        let mut end = LinkStream::new(key.clone(), 1, Nonce([1; 16]));
        end.push(&LinkStream::new(key, 2, Nonce([1; 16])).hello());
        assert_eq!(end.next_message(), Err(LinkFault::OwnNode));
    }

    /// A message, authenticated for the stream or as a datagram.
    #[derive(Debug, PartialEq)]
    enum Sealed {
        Stream(LinkMessage),
        Datagram(LinkMessage),
    }

    #[test]
    fn messages_sealed_by_0_1_0_are_opened() {
        let message = || LinkMessage::LeadRequest { group: mdgw_feeds::identity::GroupId(259) };
        check(
            include_str!("../../../../tests/data/formats/pair_link_sealed.hex"),
            &[Sealed::Stream(message()), Sealed::Datagram(message())],
            |bytes| {
                let [mut ours, mut theirs] = ends();
                // Datagrams are accepted once the other end has proved the key.
                theirs.push(&ours.seal(&message()).unwrap());
                theirs.next_message().unwrap();
                if let Ok(message) = theirs.open_datagram(bytes) {
                    return Sealed::Datagram(message);
                }
                let [_, mut theirs] = ends();
                theirs.push(bytes);
                Sealed::Stream(theirs.next_message().unwrap().unwrap())
            },
            |sealed| {
                let [mut ours, _] = ends();
                match sealed {
                    Sealed::Stream(message) => ours.seal(message).unwrap(),
                    Sealed::Datagram(message) => ours.seal_datagram(message).unwrap(),
                }
            },
        );
    }
}
