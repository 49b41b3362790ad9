//! Messages from and to a stream of bytes. No sockets.

use mdgw_election::{
    auth::{AuthError, AuthenticatedSession, Nonce, Purpose, SharedKey, TAG_BYTES, Tag},
    identity::Incarnation,
};
use mdgw_sys::listener_counters::Refusal;

use super::message::{BODY_BYTES_MAX, HELLO_BYTES, HELLO_VERSION_BYTES, Hello, LinkIdentity, LinkMessage, Malformed};

/// One end of a connection: hello first, then authenticated messages. After a protocol violation the stream reads no
/// more.
#[derive(Debug)]
pub struct LinkStream {
    key: SharedKey,
    ours: Hello,
    /// Received bytes that are not parsed yet.
    bytes: Vec<u8>,
    peer: Option<Peer>,
    /// The other end has proved the key and its hello, and that it received ours.
    is_authenticated: bool,
    /// For the test that shows what binding the identities prevents.
    #[cfg(test)]
    binds_identities: bool,
}

#[derive(Debug)]
struct Peer {
    identity: LinkIdentity,
    stream: AuthenticatedSession,
    /// Authenticates datagrams. They are numbered apart from the stream, since they may be lost or reordered.
    datagrams: AuthenticatedSession,
}

/// The incarnation in the hello of a query for positions. Those of running gateways begin at 1.
pub(super) const QUERY_INCARNATION: Incarnation = Incarnation(0);

/// Why a connection is closed, or a datagram dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    /// The bytes are not a message.
    #[error("malformed message: {0}")]
    Malformed(#[from] Malformed),
    /// The peer did not authenticate the bytes.
    #[error("message rejected: {0}")]
    AuthError(#[from] AuthError),
    /// The first message does not prove what the other end's hello says.
    #[error(
        "the first message does not prove the shared key for node {node}: the keys differ, or something between the gateways \
         changed a node number, an incarnation or a nonce"
    )]
    Unproven {
        /// Node number of the other end's hello, as it arrived.
        node: u8,
    },
    /// The other end has our node number or our nonce: it is this gateway itself, or configured with the same number.
    #[error("the other end uses this gateway's node number (or this is a connection to itself)")]
    OwnNode,
}

impl LinkFault {
    /// The counter of the fault.
    pub(super) fn refusal(self) -> Refusal {
        match self {
            Self::Malformed(Malformed::Version { .. }) => Refusal::Version,
            Self::Malformed(_) => Refusal::Malformed,
            Self::AuthError(AuthError::Forged) | Self::Unproven { .. } => Refusal::Forged,
            Self::AuthError(AuthError::Replayed) => Refusal::Replayed,
            Self::OwnNode => Refusal::OwnNode,
        }
    }
}

impl LinkStream {
    /// One end of a new connection of this gateway.
    #[must_use]
    pub fn new(key: SharedKey, identity: LinkIdentity, nonce: Nonce) -> Self {
        Self {
            key,
            ours: Hello { identity, nonce },
            bytes: Vec::new(),
            peer: None,
            is_authenticated: false,
            #[cfg(test)]
            binds_identities: true,
        }
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
            if let Some(begin) = self.bytes.first_chunk::<HELLO_VERSION_BYTES>() {
                Hello::check_version(begin)?;
            }
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
        let message = match open(&mut peer.stream, CARRIER_STREAM, sealed) {
            Err(LinkFault::AuthError(AuthError::Forged)) if !self.is_authenticated => {
                return Err(LinkFault::Unproven { node: peer.identity.node });
            }
            opened => opened?,
        };
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

    /// Whether the other end has sent nothing that a refusal could be about: no byte, or the hello of a
    /// [query](super::query_positions) alone.
    pub(super) fn is_unused(&self) -> bool {
        let is_query = |peer: &Peer| peer.identity.incarnation == QUERY_INCARNATION && !self.is_authenticated;
        self.bytes.is_empty() && self.peer.as_ref().is_none_or(is_query)
    }

    /// The other end, once it has proved the key and its hello.
    #[must_use]
    pub(crate) fn peer_identity(&self) -> Option<LinkIdentity> {
        self.peer.as_ref().filter(|_| self.is_authenticated).map(|peer| peer.identity)
    }

    /// The other end's node number, once it has proved the key and its hello.
    #[must_use]
    pub(crate) fn peer_node(&self) -> Option<u8> {
        self.peer_identity().map(|identity| identity.node)
    }

    fn accept_hello(&mut self, theirs: Hello) -> Result<(), LinkFault> {
        if theirs.identity.node == self.ours.identity.node || theirs.nonce == self.ours.nonce {
            return Err(LinkFault::OwnNode);
        }
        let (ours, theirs_bytes) = (self.bound(self.ours), self.bound(theirs));
        let conversation = || AuthenticatedSession::new(&self.key, Purpose::PairLink, &ours, &theirs_bytes);
        let (Some(stream), Some(datagrams)) = (conversation(), conversation()) else { return Err(LinkFault::OwnNode) };
        self.peer = Some(Peer { identity: theirs.identity, stream, datagrams });
        Ok(())
    }

    /// What of a hello goes into the keys: all of it, its version too.
    fn bound(&self, hello: Hello) -> [u8; HELLO_BYTES] {
        #[cfg(test)]
        if !self.binds_identities {
            return Hello { identity: LinkIdentity { node: 0, incarnation: Incarnation(0) }, ..hello }.to_bytes();
        }
        hello.to_bytes()
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

    fn identity(node: u8) -> LinkIdentity {
        LinkIdentity { node, incarnation: Incarnation(1_000 + u64::from(node)) }
    }

    /// One end of a connection of that gateway. `nonce` tells the connections of a gateway apart.
    fn end(node: u8, nonce: u8) -> LinkStream {
        LinkStream::new(SharedKey::new(&[1; 32]), identity(node), Nonce([nonce; 16]))
    }

    /// Gives `to` the hello of `from`, as something on the path changes it.
    fn greet(from: &LinkStream, to: &mut LinkStream, change: impl Fn(&mut Hello)) -> Result<(), LinkFault> {
        let mut hello = Hello::parse(&from.hello()).unwrap();
        change(&mut hello);
        to.push(&hello.to_bytes());
        to.next_message().map(|message| assert_eq!(message, None))
    }

    fn ends() -> [LinkStream; 2] {
        let [mut first, mut second] = [end(1, 1), end(2, 2)];
        greet(&first, &mut second, |_| {}).unwrap();
        greet(&second, &mut first, |_| {}).unwrap();
        [first, second]
    }

    /// `from` sends its first message, and `to` reads it.
    fn first_message(from: &mut LinkStream, to: &mut LinkStream) -> Result<Option<LinkMessage>, LinkFault> {
        to.push(&from.seal(&message(1)).unwrap());
        to.next_message()
    }

    /// What an attacker on the path makes of a hello.
    type Change = fn(&mut Hello);

    /// Each field of a hello that names the gateway or its start.
    const CHANGES: [(&str, Change); 3] = [
        ("node number", |hello| hello.identity.node = 3),
        ("incarnation", |hello| hello.identity.incarnation.0 += 1),
        ("nonce", |hello| hello.nonce.0[15] ^= 1),
    ];

    #[test]
    fn a_hello_that_was_changed_on_the_way_ends_the_connection_at_the_first_message_in_both_directions() {
        for (what, change) in CHANGES {
            for (of_first, of_second) in [(true, false), (false, true), (true, true)] {
                let [mut first, mut second] = [end(1, 1), end(2, 2)];
                let changed = |is_changed: bool| {
                    move |hello: &mut Hello| {
                        if is_changed {
                            change(hello)
                        }
                    }
                };
                greet(&first, &mut second, changed(of_first)).unwrap();
                greet(&second, &mut first, changed(of_second)).unwrap();
                for (from, to) in [(0, 1), (1, 0)] {
                    let ends = [&mut first, &mut second];
                    let sealed = ends[from].seal(&message(1)).unwrap();
                    let datagram = ends[from].seal_datagram(&message(1)).unwrap();
                    ends[to].push(&sealed);
                    let opened = ends[to].next_message();
                    assert!(matches!(opened, Err(LinkFault::Unproven { .. })), "{what}, {from} to {to}: {opened:?}");
                    let opened = ends[to].open_datagram(&datagram);
                    assert_eq!(opened, Err(LinkFault::AuthError(AuthError::Forged)), "{what}, {from} to {to}");
                    assert_eq!(ends[to].peer_node(), None, "{what}: no message counts for any node");
                }
            }
        }
    }

    /// The control: with keys over the nonces alone, as in version 4, gateway 2 speaks as gateway 3.
    #[test]
    fn keys_without_identities_let_one_gateway_speak_as_another() {
        for (what, change) in CHANGES {
            let [mut first, mut second] = [end(1, 1), end(2, 2)];
            for end in [&mut first, &mut second] {
                end.binds_identities = false;
            }
            greet(&first, &mut second, |_| {}).unwrap();
            greet(&second, &mut first, change).unwrap();
            let opened = first_message(&mut second, &mut first);
            if what == "nonce" {
                assert!(matches!(opened, Err(LinkFault::Unproven { .. })), "{opened:?}");
            } else {
                assert_eq!(opened, Ok(Some(message(1))), "{what}");
                assert_ne!(first.peer_identity(), Some(identity(2)), "{what}");
            }
        }
    }

    #[test]
    fn a_connection_that_was_joined_to_another_gateways_or_to_another_connection_is_refused() {
        // Gateway 1 connects to gateways 2 and 3. The attacker joins each connection to the other gateway, and presents
        // the hello that gateway 1 expects there.
        let (mut to_second, mut second, mut third) = (end(1, 1), end(2, 3), end(3, 4));
        greet(&to_second, &mut third, |_| {}).unwrap();
        greet(&third, &mut to_second, |hello| hello.identity = identity(2)).unwrap();
        assert!(matches!(first_message(&mut third, &mut to_second), Err(LinkFault::Unproven { node: 2 })));
        assert_eq!(to_second.peer_node(), None);
        // The genuine hello of gateway 2 does not help gateway 3.
        let mut to_second = end(1, 5);
        greet(&to_second, &mut second, |_| {}).unwrap();
        greet(&second, &mut to_second, |_| {}).unwrap();
        assert!(matches!(first_message(&mut third, &mut to_second), Err(LinkFault::Unproven { node: 2 })));
        // A connection between the same two gateways, of which the attacker recorded everything.
        let [mut before, mut recorded] = [end(1, 6), end(2, 7)];
        greet(&before, &mut recorded, |_| {}).unwrap();
        greet(&recorded, &mut before, |_| {}).unwrap();
        let sealed = recorded.seal(&message(1)).unwrap();
        let mut later = end(1, 8);
        greet(&recorded, &mut later, |_| {}).unwrap();
        later.push(&sealed);
        assert!(matches!(later.next_message(), Err(LinkFault::Unproven { node: 2 })));
    }

    #[test]
    fn two_connections_of_one_gateway_cannot_be_joined_to_each_other() {
        let [mut one, mut other] = [end(1, 1), end(1, 2)];
        assert_eq!(greet(&one, &mut other, |_| {}), Err(LinkFault::OwnNode));
        let mut other_again = end(1, 2);
        let as_second: Change = |hello| hello.identity = identity(2);
        greet(&one, &mut other_again, as_second).unwrap();
        greet(&other_again, &mut one, as_second).unwrap();
        assert!(matches!(first_message(&mut one, &mut other_again), Err(LinkFault::Unproven { node: 2 })));
        assert!(matches!(first_message(&mut other_again, &mut one), Err(LinkFault::Unproven { node: 2 })));
    }

    #[test]
    fn the_hello_of_another_version_is_refused_before_it_is_complete() {
        let mut stream = end(1, 1);
        stream.push(b"MDGWPAIR\x04");
        assert_eq!(stream.next_message(), Ok(None));
        stream.push(&[0]);
        let refused = stream.next_message().unwrap_err();
        assert_eq!(refused, LinkFault::Malformed(Malformed::Version { theirs: 4 }));
        let text = refused.to_string();
        assert!(text.contains("speaks version 4 of the pair link, and this gateway speaks version 6"), "{text}");
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
        let mut forger = LinkStream::new(SharedKey::new(&[9; 32]), identity(2), Nonce([2; 16]));
        greet(&end(1, 1), &mut forger, |_| {}).unwrap();
        assert_eq!(first_message(&mut forger, &mut honest), Err(LinkFault::Unproven { node: 2 }));
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
        assert_eq!(greet(&end(1, 2), &mut end(1, 1), |_| {}), Err(LinkFault::OwnNode));
        assert_eq!(greet(&end(2, 1), &mut end(1, 1), |_| {}), Err(LinkFault::OwnNode));
    }

    /// A message, authenticated for the stream or as a datagram.
    #[derive(Debug, PartialEq)]
    enum Sealed {
        Stream(LinkMessage),
        Datagram(LinkMessage),
    }

    #[test]
    fn messages_sealed_by_an_older_version_are_refused() {
        for sealed in [
            include_str!("../../../../tests/data/formats/pair_link_sealed.hex"),
            include_str!("../../../../tests/data/formats/pair_link_sealed_5.hex"),
        ] {
            let digits = sealed.lines().nth(1).unwrap();
            let bytes: Vec<u8> =
                (0..digits.len() / 2).map(|index| u8::from_str_radix(&digits[2 * index..][..2], 16).unwrap()).collect();
            let [_, mut theirs] = ends();
            theirs.push(&bytes);
            assert_eq!(theirs.next_message(), Err(LinkFault::Unproven { node: 1 }));
        }
    }

    #[test]
    fn messages_sealed_by_version_6_are_opened() {
        let message = || LinkMessage::LeadRequest { group: mdgw_wire::identity::GroupId(259) };
        check(
            include_str!("../../../../tests/data/formats/pair_link_sealed_6.hex"),
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
