//! Two links over loopback.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

use mdgw_election::{
    identity::{DeathNotice, Incarnation, NodeId},
    peer::{LeaderRequest, PeerMessage},
};
use mdgw_sys::fence::Fence;
use mdgw_wire::identity::{Epoch, Feed, Sequence, Session};
use socket2::{Domain, Socket, Type};

use super::*;
use crate::{
    pair_link::{framing::LinkStream, message::HELLO_BYTES, query_positions},
    standby::KnownEpochs,
};

fn free_address() -> SocketAddrV4 {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    match socket.local_addr().unwrap() {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => unreachable!(),
    }
}

fn start(node: u8, listen: SocketAddrV4, peer: SocketAddrV4, key: u8) -> (PairLink, Arc<KnownEpochs>) {
    let epochs = Arc::new(KnownEpochs::new(Epoch::new(node.into(), node), 1));
    let endpoints =
        PairEndpoints { listen, peers: vec![end(peer)], key: SharedKey::new(&[key; 32]), period_ns: 5_000_000 };
    let group = LinkedGroup { epochs: Arc::clone(&epochs), fence: Arc::new(Fence::closed()) };
    let parts = PairParts { groups: [(GroupId(1), group)].into(), ..parts() };
    (PairLink::start(PairLinkConfig { identity: identity(node), endpoints }, parts).unwrap(), epochs)
}

fn identity(node: u8) -> LinkIdentity {
    LinkIdentity { node, incarnation: Incarnation(node.into()) }
}

fn end(address: SocketAddrV4) -> PeerEndpoint {
    PeerEndpoint { node: None, address }
}

fn has_met(link: &PairLink, node: u8) -> bool {
    link.handle().is_linked_to(node)
}

/// The parts of a gateway without channels.
fn parts() -> PairParts {
    PairParts {
        status_table: Arc::default(),
        groups: BTreeMap::new(),
        logs: ChannelLogs::default(),
        peer_gap_requests: Arc::new(PeerGapRequests::new(1)),
        history: Arc::new(InputHistory::new([], 0)),
        channels: ChannelSender::new(|_, _| true),
    }
}

fn wait_until(what: &str, mut is_there: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_there() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn notice(incarnation: u64) -> DeathNotice {
    DeathNotice { holder: NodeId(2), incarnation: Incarnation(incarnation), epoch: Epoch::new(5, 2) }
}

#[test]
fn messages_sent_over_tcp_and_udp_arrive_once_and_the_link_reconnects() {
    let (a, b) = (free_address(), free_address());
    let (first, _) = start(1, a, b, 7);
    let (second, _) = start(2, b, a, 7);
    wait_until("the link is established", || has_met(&first, 2) && has_met(&second, 1));
    let request = LeaderRequest {
        requester: NodeId(1),
        incarnation: Incarnation(1),
        epoch: Epoch::new(5, 1),
        nonce: 9,
        lease_ns: 1,
    };
    for nonce in 0..50 {
        let message = PeerMessage::PromiseRequest(LeaderRequest { nonce, ..request });
        assert!(first.handle().send_election(2, GroupId(3), &message));
    }
    assert!(first.handle().send_death(&notice(1)));
    for nonce in 0..50 {
        let mut received = None;
        wait_until("it comes", || {
            received = second.handle().take_election();
            received.is_some()
        });
        // A datagram may overtake the connection, so the order of the messages is not certain.
        assert!(matches!(received, Some((1, GroupId(3), PeerMessage::PromiseRequest(_)))), "{nonce}");
    }
    let mut death = None;
    wait_until("the death notice arrives", || {
        death = second.handle().take_death();
        death.is_some()
    });
    assert_eq!(death, Some((None, notice(1))));
    assert_eq!((second.handle().take_election(), second.handle().take_death()), (None, None));
    assert!(second.handle().counts().datagrams > 0, "{:?}", second.handle().counts());
    drop(second);
    wait_until("the link is closed", || first.handle().peer_nodes().is_empty());
    let (second, _) = start(2, b, a, 7);
    wait_until("the links are established again", || has_met(&first, 2) && has_met(&second, 1));
    assert!(second.handle().send_death(&notice(2)));
    wait_until("the death notice arrives", || first.handle().take_death() == Some((None, notice(2))));
}

#[test]
fn a_peer_without_the_key_neither_joins_nor_breaks_the_link() {
    let (a, b) = (free_address(), free_address());
    let (first, _) = start(1, a, b, 7);
    let (second, _) = start(2, b, a, 7);
    wait_until("the link is established", || has_met(&first, 2) && has_met(&second, 1));
    let connections = first.handle().counts().connections;
    // A gateway with another key, a connection with random bytes, a connection that sends nothing.
    let (_wrong_key, _) = start(3, free_address(), a, 8);
    let mut noise = TcpStream::connect(a).unwrap();
    noise.write_all(&[0x55; 4_096]).unwrap();
    let _silent = TcpStream::connect(a).unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[1; 100], a).unwrap();
    wait_until("both are refused", || first.handle().counts().refused >= 2);
    assert!(first.handle().send_death(&notice(3)));
    wait_until("the link still works", || second.handle().take_death() == Some((None, notice(3))));
    assert_eq!(first.handle().counts().connections, connections);
}

/// Opens connections from that address until `stop`, each beside those before it.
fn flood_with_connections(from: Ipv4Addr, to: SocketAddrV4, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut open = std::collections::VecDeque::new();
        while !stop.load(Relaxed) {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
            if socket.connect(&to.into()).is_ok() {
                open.push_back(socket);
            }
            // Far more than may wait, and fewer than this process may have.
            if open.len() > 100 {
                open.pop_front();
            }
        }
    })
}

#[test]
fn a_peer_connects_while_a_host_without_the_key_connects_again_and_again() {
    // The end with the lower address dials: here the peer at 127.0.0.1.
    let peer = free_address();
    let listen = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), free_address().port());
    let (link, _) = start(1, listen, peer, 7);
    let stop = Arc::new(AtomicBool::new(false));
    let floods = [66, 67].map(|last| flood_with_connections(Ipv4Addr::new(127, 0, 0, last), listen, &stop));
    let displaced = || link.handle().listener_counters().refused(Refusal::Displaced);
    wait_until("all places are taken", || displaced() > 100);
    // A configured peer connects, leaves and connects again, in the midst of it.
    for _ in 0..3 {
        let (second, _) = start(2, peer, listen, 7);
        wait_until("the peer has connected", || has_met(&link, 2) && has_met(&second, 1));
        drop(second);
        wait_until("the peer has left", || !has_met(&link, 2));
    }
    stop.store(true, Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    // The kernel may drop a connection before it is accepted.
    wait_until("each accepted connection is counted once", || {
        let counts = link.handle().counts();
        let accounted = counts.refused + counts.connections + counts.connections_unused;
        counts.connections >= 3 && accounted == link.handle().listener_counters().received()
    });
}

#[test]
fn a_connection_closed_without_a_message_is_not_refused_and_one_closed_within_is() {
    let (a, b) = (free_address(), free_address());
    let (link, _) = start(1, a, b, 7);
    let handle = link.handle();
    // A health check; `mdgw doctor`.
    drop(TcpStream::connect(a).unwrap());
    wait_until("the health check ends", || handle.counts().connections_unused == 1);
    query_positions(a, 2, SharedKey::new(&[7; 32]), Duration::from_secs(10)).unwrap();
    wait_until("the query ends", || handle.counts().connections_unused == 2);
    assert_eq!((handle.counts().refused, handle.listener_counters().received()), (0, 2));

    // Part of a hello, and the hello of a running gateway that leaves without proving the key.
    let hello = LinkStream::new(SharedKey::new(&[7; 32]), identity(2), Nonce::random().unwrap()).hello();
    for (begun, count) in [(&hello[..1], 1), (&hello[..], 2)] {
        TcpStream::connect(a).unwrap().write_all(begun).unwrap();
        wait_until("it is refused", || handle.listener_counters().refused(Refusal::Disconnected) == count);
    }
    assert_eq!((handle.counts().refused, handle.counts().connections_unused), (2, 2));
}

#[test]
fn junk_datagrams_are_counted_by_reason_and_change_nothing() {
    let (a, b) = (free_address(), free_address());
    let (first, _) = start(1, a, b, 7);
    let (second, _) = start(2, b, a, 7);
    wait_until("the link is established", || has_met(&first, 2) && has_met(&second, 1));
    let send = |from: Ipv4Addr, datagram: &[u8]| {
        UdpSocket::bind((from, 0)).unwrap().send_to(datagram, a).unwrap();
    };
    let other_host = Ipv4Addr::new(127, 0, 0, 66);
    let notice = [&b"MDGD\x01\x02\x01\x00"[..], &[7; 48]].concat();
    for (from, datagram, reason) in [
        (other_host, vec![7; 100], Refusal::UnknownSource),
        (other_host, notice.clone(), Refusal::UnknownSource),
        // The peer's host.
        (Ipv4Addr::LOCALHOST, vec![7; 100], Refusal::Forged),
        (Ipv4Addr::LOCALHOST, vec![7; 10], Refusal::Malformed),
        (Ipv4Addr::LOCALHOST, vec![7; DATAGRAM_BYTES_MAX + 1], Refusal::TooLong),
        (Ipv4Addr::LOCALHOST, notice, Refusal::Forged),
    ] {
        let before = first.handle().listener_counters().refused(reason);
        send(from, &datagram);
        wait_until("it is refused", || first.handle().listener_counters().refused(reason) == before + 1);
    }
    assert_eq!(first.handle().counts().refused, 6);
    assert_eq!((first.handle().take_death(), first.handle().counts().connections), (None, 1));
}

/// Joins connections to `listen` to `target`, and passes all bytes on. `change` changes the hello of each direction: 0 from
/// the connecting end, 1 from the target.
fn attack(
    listen: SocketAddrV4,
    target: SocketAddrV4,
    change: impl Fn(usize, &mut [u8; HELLO_BYTES]) + Clone + Send + 'static,
) {
    let listener = TcpListener::bind(listen).unwrap();
    std::thread::spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let Ok(far) = TcpStream::connect(target) else { continue };
            let ends = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (direction, (mut from, mut to)) in ends.into_iter().enumerate() {
                let change = change.clone();
                std::thread::spawn(move || {
                    let mut hello = [0; HELLO_BYTES];
                    if from.read_exact(&mut hello).is_ok() {
                        change(direction, &mut hello);
                        let _ended = to.write_all(&hello).and_then(|()| io::copy(&mut from, &mut to));
                    }
                    let _ended = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
}

/// An attacker on the path, without the key, changes what the gateways say of themselves. No message of such a connection
/// counts for any gateway: the promise of gateway 2 must not count as that of gateway 3 as well.
#[test]
fn an_attacker_on_the_path_cannot_change_which_gateway_speaks() {
    const NODE: usize = 10;
    const INCARNATION: usize = 12;
    // The end with the lower address dials: gateway 1, which knows gateway 2 at the attacker's address.
    let at = |last| SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), free_address().port());
    let (a, path, b) = (at(1), at(2), at(3));
    // Byte of the hello that is changed, and whose hello; `None`: all bytes pass as they are.
    let changed = Arc::new(std::sync::Mutex::new(Some((NODE, 0))));
    let now_changed = Arc::clone(&changed);
    attack(path, b, move |direction, hello| {
        if let Some((byte, of)) = *now_changed.lock().unwrap()
            && (of == direction || of == BOTH)
        {
            hello[byte] ^= 4;
        }
    });
    let (first, _) = start(1, a, path, 7);
    let (second, _) = start(2, b, a, 7);
    for byte in [NODE, INCARNATION] {
        for of in [0, 1, BOTH] {
            *changed.lock().unwrap() = Some((byte, of));
            // A connection that began before the change may still be refused after it.
            let refused = [&first, &second].map(|link| link.handle().counts().refused);
            wait_until("both ends refuse", || {
                let counts = [&first, &second].map(|link| link.handle().counts().refused);
                counts[0] >= refused[0] + 3 && counts[1] >= refused[1] + 3
            });
            for link in [&first, &second] {
                assert_eq!(link.handle().counts().connections, 0, "byte {byte} of {of}");
                assert!(link.handle().peer_nodes().is_empty(), "byte {byte} of {of}");
            }
        }
    }
    *changed.lock().unwrap() = None;
    wait_until("the link is established", || has_met(&first, 2) && has_met(&second, 1));
    let (requester, incarnation, epoch) = (NodeId(1), Incarnation(1), Epoch::new(5, 1));
    let promise = PeerMessage::Promise(LeaderRequest { requester, incarnation, epoch, nonce: 9, lease_ns: 1 });
    assert!(second.handle().send_election(1, GroupId(3), &promise));
    let mut received = None;
    wait_until("the promise arrives", || {
        received = first.handle().take_election();
        received.is_some()
    });
    assert_eq!(received, Some((2, GroupId(3), promise)));
}

const BOTH: usize = 2;

#[test]
fn a_gateway_of_another_version_is_refused_by_its_first_bytes() {
    let (a, b) = (free_address(), free_address());
    let (first, _) = start(1, a, b, 7);
    // As version 4 does: its hello, of 28 bytes, then the end of the connection.
    let mut before = TcpStream::connect(a).unwrap();
    before.write_all(&[&b"MDGWPAIR\x04\0\x02\0"[..], &[9; 16]].concat()).unwrap();
    before.shutdown(std::net::Shutdown::Write).unwrap();
    wait_until("it is refused", || first.handle().counts().refused == 1);
    let mut answer = Vec::new();
    before.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), HELLO_BYTES, "the other version reads from our hello which version we speak");
    assert!(first.handle().peer_nodes().is_empty());
}

#[test]
fn each_of_three_gateways_receives_its_messages_with_their_sender() {
    // The end with the lower address dials, as 127.0.0.1 does in the other tests.
    let addresses = [1, 2, 3].map(|node| (node, SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), free_address().port())));
    let start_of_three = |node: u8, listen: SocketAddrV4| {
        let others = addresses.iter().filter(|(other, _)| *other != node);
        let peers = others.map(|(other, address)| PeerEndpoint { node: Some(*other), address: *address }).collect();
        let endpoints = PairEndpoints { listen, peers, key: SharedKey::new(&[7; 32]), period_ns: 5_000_000 };
        PairLink::start(PairLinkConfig { identity: identity(node), endpoints }, parts()).unwrap()
    };
    let links = addresses.map(|(node, listen)| start_of_three(node, listen));
    wait_until("all links are established", || links.iter().all(|link| link.handle().peer_nodes().len() == 2));
    let [first, second, third] = &links;
    let request = LeaderRequest {
        requester: NodeId(1),
        incarnation: Incarnation(1),
        epoch: Epoch::new(5, 1),
        nonce: 9,
        lease_ns: 1,
    };
    assert!(first.handle().send_election(3, GroupId(4), &PeerMessage::PromiseRequest(request)));
    assert!(first.handle().send_death(&notice(1)));
    for link in [second, third] {
        wait_until("the death notice reaches every peer", || link.handle().take_death() == Some((None, notice(1))));
    }
    let mut received = None;
    wait_until("the promise request arrives", || {
        received = third.handle().take_election();
        received.is_some()
    });
    assert_eq!(received, Some((1, GroupId(4), PeerMessage::PromiseRequest(request))));
    assert_eq!(second.handle().take_election(), None, "only the addressed peer receives it");

    // A gateway with the right key and an unconfigured node id.
    let refused = first.handle().counts().refused;
    let (unconfigured, _) = start(9, free_address(), addresses[0].1, 7);
    wait_until("the unconfigured gateway is refused", || first.handle().counts().refused > refused);
    assert!(!has_met(first, 9));
    drop(unconfigured);
}

/// Connects to a link as gateway `node`, from the address `from` of this host.
fn connect_as(node: u8, from: Ipv4Addr, to: SocketAddrV4) -> (TcpStream, LinkStream) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut socket = TcpStream::from(socket);
    let mut stream = LinkStream::new(SharedKey::new(&[7; 32]), identity(node), Nonce::random().unwrap());
    socket.write_all(&stream.hello()).unwrap();
    let mut bytes = [0; 4_096];
    while !stream.has_peer_hello() {
        let count = socket.read(&mut bytes).unwrap();
        stream.push(&bytes[..count]);
        // Messages after the hello are discarded.
        let _first = stream.next_message().unwrap();
    }
    send_death_notice(&mut socket, &mut stream);
    (socket, stream)
}

fn send_death_notice(socket: &mut TcpStream, stream: &mut LinkStream) {
    let message = LinkMessage::Death { serial: 1, bytes: Vec::new() };
    socket.write_all(&stream.seal(&message).unwrap()).unwrap();
}

#[test]
fn of_two_gateways_with_one_node_id_the_first_keeps_the_link() {
    // The end with the lower address dials: here the peer at 127.0.0.1.
    let peers = vec![PeerEndpoint { node: Some(2), address: free_address() }];
    let listen = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), free_address().port());
    let endpoints = PairEndpoints { listen, peers, key: SharedKey::new(&[7; 32]), period_ns: 5_000_000 };
    let link = PairLink::start(PairLinkConfig { identity: identity(1), endpoints }, parts()).unwrap();
    let counts = || link.handle().counts();
    let (mut first, mut stream) = connect_as(2, Ipv4Addr::LOCALHOST, listen);
    wait_until("the first gateway is connected", || counts().connections == 1);
    let refused = counts().refused;
    let second = connect_as(2, Ipv4Addr::new(127, 0, 0, 5), listen);
    wait_until("the second gateway is refused", || {
        send_death_notice(&mut first, &mut stream);
        counts().refused == refused + 1
    });
    assert_eq!((counts().connections, has_met(&link, 2)), (1, true));
    drop((first, second));
    let _moved = connect_as(2, Ipv4Addr::new(127, 0, 0, 5), listen);
    wait_until("the gateway is connected from its new address", || counts().connections == 2);
}

#[test]
fn gap_requests_rotate_among_peers_with_the_range_and_wait_for_absent_peers() {
    let empty = GapCandidate::default();
    let behind = GapCandidate { has_history: true, ..empty };
    let reached = GapCandidate { has_reached: true, ..behind };
    let complete = GapCandidate { has_range: true, ..reached };
    let chosen = |peers: &[Option<GapCandidate>]| [0, 1, 2, 3].map(|turn| choose_candidate(peers, turn));
    assert_eq!(chosen(&[Some(complete), Some(reached), Some(complete)]), [0, 2, 0, 2].map(Some));
    assert_eq!(chosen(&[None, Some(reached), Some(behind)]), [1; 4].map(Some));
    assert_eq!(chosen(&[Some(empty), Some(behind)]), [1; 4].map(Some));
    assert_eq!(chosen(&[Some(empty), None]), [None; 4]);
    assert_eq!(
        chosen(&[Some(empty), Some(empty)]),
        [0, 1, 0, 1].map(Some),
        "both peers reported that they have no history"
    );
    assert_eq!(chosen(&[None, None]), [None; 4]);
}

#[test]
fn a_position_beyond_a_channel_in_the_same_session_is_passed_on() {
    let at = |restart, sequence| {
        let session = Session { feed: Feed::NasdaqItch, date: "2019-01-30".parse().unwrap(), restart };
        Some(StreamPosition::at(session, Sequence(sequence)))
    };
    let (live, stale, ended) = (ChannelState::Live, ChannelState::Stale, ChannelState::Ended);
    for (own, own_state, theirs, their_state, expected) in [
        (at(1, 7), stale, at(1, 9), live, Some((9, false))),
        (at(1, 7), live, at(1, 9), ended, Some((9, true))),
        (at(1, 9), stale, at(1, 9), ended, Some((9, true))),
        (None, live, at(1, 9), live, Some((9, false))),
        (at(1, 9), live, at(1, 9), live, None),
        (at(1, 9), live, at(1, 7), ended, None),
        (at(1, 9), ended, at(1, 9), ended, None),
        (at(1, 9), live, at(2, 11), live, None),
        (at(1, 9), live, None, live, None),
    ] {
        let status = ChannelStatus { state: own_state, logged_through: own, ..ChannelStatus::default() };
        let report =
            ChannelPositions { logged_through: theirs, state: their_state as u8, ..ChannelPositions::default() };
        let passed_on = position_beyond(&status, &report).map(|position| (position.next.0, position.has_ended));
        assert_eq!(passed_on, expected, "{own:?} {own_state:?} {theirs:?} {their_state:?}");
    }
}

#[test]
fn the_same_address_for_both_endpoints_is_refused() {
    let address = free_address();
    let endpoints =
        PairEndpoints { listen: address, peers: vec![end(address)], key: SharedKey::new(&[7; 32]), period_ns: 1 };
    let refused = PairLink::start(PairLinkConfig { identity: identity(1), endpoints }, parts()).unwrap_err();
    assert!(matches!(refused, PairLinkError::SameAddress(_)));
}
