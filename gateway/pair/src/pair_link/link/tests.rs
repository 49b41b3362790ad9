//! Two links over loopback.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

use mdgw_election::{
    identity::{DeathNotice, Incarnation, NodeId},
    peer::{PeerMessage, Question},
};
use mdgw_feeds::identity::Epoch;
use socket2::{Domain, Socket, Type};

use super::*;
use crate::pair_link::framing::LinkStream;

fn free_address() -> SocketAddrV4 {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    match socket.local_addr().unwrap() {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => unreachable!(),
    }
}

fn start(node: u8, listen: SocketAddrV4, peer: SocketAddrV4, key: u8) -> (PairLink, Arc<KnownEpochs>) {
    let epochs = Arc::new(KnownEpochs::new(Epoch::new(node.into(), node), 1));
    let ends = PairEnds { listen, peers: vec![end(peer)], key: SharedKey::new(&[key; 32]), period_ns: 5_000_000 };
    let parts = PairParts { epochs: [(GroupId(1), Arc::clone(&epochs))].into(), ..parts() };
    (PairLink::start(PairLinkConfig { node, ends }, parts).unwrap(), epochs)
}

fn end(address: SocketAddrV4) -> PeerEnd {
    PeerEnd { node: None, address }
}

fn has_met(link: &PairLink, node: u8) -> bool {
    link.desk().is_linked_to(node)
}

/// Of a gateway without channels.
fn parts() -> PairParts {
    PairParts {
        board: Arc::default(),
        epochs: BTreeMap::new(),
        logs: BTreeMap::new(),
        peer_gaps: Arc::new(PeerGaps::new(1)),
        history: Arc::new(InputHistory::new([], 0)),
        channels: Channels::new(|_, _| true),
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
fn messages_come_once_though_they_go_by_several_ways_and_a_link_comes_back() {
    let (a, b) = (free_address(), free_address());
    let (first, _) = start(1, a, b, 7);
    let (second, _) = start(2, b, a, 7);
    wait_until("they meet", || has_met(&first, 2) && has_met(&second, 1));
    let question =
        Question { asker: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1), nonce: 9, lease_ns: 1 };
    for nonce in 0..50 {
        let message = PeerMessage::PromiseAsk(Question { nonce, ..question });
        assert!(first.desk().send_election(2, GroupId(3), &message));
    }
    assert!(first.desk().send_death(&notice(1)));
    for nonce in 0..50 {
        let mut came = None;
        wait_until("it comes", || {
            came = second.desk().take_election();
            came.is_some()
        });
        // A datagram may overtake the connection, so only what came is certain, not the order.
        assert!(matches!(came, Some((1, GroupId(3), PeerMessage::PromiseAsk(_)))), "{nonce}");
    }
    let mut death = None;
    wait_until("the death is told", || {
        death = second.desk().take_death();
        death.is_some()
    });
    assert_eq!(death, Some((None, notice(1))));
    assert_eq!((second.desk().take_election(), second.desk().take_death()), (None, None));
    assert!(second.desk().counts().datagrams > 0, "{:?}", second.desk().counts());
    drop(second);
    wait_until("it is gone", || first.desk().peer_nodes().is_empty());
    let (second, _) = start(2, b, a, 7);
    wait_until("they meet again", || has_met(&first, 2) && has_met(&second, 1));
    assert!(second.desk().send_death(&notice(2)));
    wait_until("it is heard", || first.desk().take_death() == Some((None, notice(2))));
}

#[test]
fn whoever_lacks_the_key_neither_meets_nor_cuts_the_link() {
    let (a, b) = (free_address(), free_address());
    let (first, _) = start(1, a, b, 7);
    let (second, _) = start(2, b, a, 7);
    wait_until("they meet", || has_met(&first, 2) && has_met(&second, 1));
    let connections = first.desk().counts().connections;
    // One with another key, one that says nothing it should, one that says nothing at all.
    let (_stranger, _) = start(3, free_address(), a, 8);
    let mut noise = TcpStream::connect(a).unwrap();
    noise.write_all(&[0x55; 4_096]).unwrap();
    let _silent = TcpStream::connect(a).unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[1; 100], a).unwrap();
    wait_until("they are refused", || first.desk().counts().refused >= 2);
    assert!(first.desk().send_death(&notice(3)));
    wait_until("the link still carries", || second.desk().take_death() == Some((None, notice(3))));
    assert_eq!(first.desk().counts().connections, connections);
}

#[test]
fn of_three_each_hears_what_is_for_it_and_from_whom() {
    // Who has a lower address dials: so does whoever is at 127.0.0.1.
    let addresses = [1, 2, 3].map(|node| (node, SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), free_address().port())));
    let start_of_three = |node: u8, listen: SocketAddrV4| {
        let others = addresses.iter().filter(|(other, _)| *other != node);
        let peers = others.map(|(other, address)| PeerEnd { node: Some(*other), address: *address }).collect();
        let ends = PairEnds { listen, peers, key: SharedKey::new(&[7; 32]), period_ns: 5_000_000 };
        PairLink::start(PairLinkConfig { node, ends }, parts()).unwrap()
    };
    let links = addresses.map(|(node, listen)| start_of_three(node, listen));
    wait_until("all meet", || links.iter().all(|link| link.desk().peer_nodes().len() == 2));
    let [first, second, third] = &links;
    let question =
        Question { asker: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1), nonce: 9, lease_ns: 1 };
    assert!(first.desk().send_election(3, GroupId(4), &PeerMessage::PromiseAsk(question)));
    assert!(first.desk().send_death(&notice(1)));
    for link in [second, third] {
        wait_until("a death is told to all", || link.desk().take_death() == Some((None, notice(1))));
    }
    let mut came = None;
    wait_until("the question comes", || {
        came = third.desk().take_election();
        came.is_some()
    });
    assert_eq!(came, Some((1, GroupId(4), PeerMessage::PromiseAsk(question))));
    assert_eq!(second.desk().take_election(), None, "it was not for this one");

    // With the key, but of a number that nobody has configured.
    let refused = first.desk().counts().refused;
    let (stranger, _) = start(9, free_address(), addresses[0].1, 7);
    wait_until("the stranger is refused", || first.desk().counts().refused > refused);
    assert!(!has_met(first, 9));
    drop(stranger);
}

/// Speaks as that gateway to a link, from that address of this host.
fn speak_as(node: u8, from: Ipv4Addr, to: SocketAddrV4) -> (TcpStream, LinkStream) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut socket = TcpStream::from(socket);
    let mut stream = LinkStream::new(SharedKey::new(&[7; 32]), node, Nonce::random().unwrap());
    socket.write_all(&stream.hello()).unwrap();
    let mut bytes = [0; 4_096];
    while !stream.has_met() {
        let count = socket.read(&mut bytes).unwrap();
        stream.push(&bytes[..count]);
        // What comes behind the hello is the link's business.
        let _first = stream.next_message().unwrap();
    }
    say_death(&mut socket, &mut stream);
    (socket, stream)
}

fn say_death(socket: &mut TcpStream, stream: &mut LinkStream) {
    let message = LinkMessage::Death { serial: 1, bytes: Vec::new() };
    socket.write_all(&stream.seal(&message).unwrap()).unwrap();
}

#[test]
fn of_two_gateways_with_one_number_the_first_is_heard_while_it_is_there() {
    // Whoever is at 127.0.0.1 dials.
    let peers = vec![PeerEnd { node: Some(2), address: free_address() }];
    let listen = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), free_address().port());
    let ends = PairEnds { listen, peers, key: SharedKey::new(&[7; 32]), period_ns: 5_000_000 };
    let link = PairLink::start(PairLinkConfig { node: 1, ends }, parts()).unwrap();
    let counts = || link.desk().counts();
    let (mut first, mut stream) = speak_as(2, Ipv4Addr::LOCALHOST, listen);
    wait_until("the first is met", || counts().connections == 1);
    let refused = counts().refused;
    let second = speak_as(2, Ipv4Addr::new(127, 0, 0, 5), listen);
    wait_until("the second is refused", || {
        say_death(&mut first, &mut stream);
        counts().refused == refused + 1
    });
    assert_eq!((counts().connections, has_met(&link, 2)), (1, true));
    drop((first, second));
    let _moved = speak_as(2, Ipv4Addr::new(127, 0, 0, 5), listen);
    wait_until("it is met where it has gone", || counts().connections == 2);
}

#[test]
fn a_gap_is_asked_of_who_keeps_it_in_turn_and_of_nobody_while_who_may_keep_it_is_away() {
    let begun = ForGap::default();
    let behind = ForGap { keeps_any: true, ..begun };
    let level = ForGap { has_come: true, ..behind };
    let keeps = ForGap { keeps_it: true, ..level };
    let asked = |peers: &[Option<ForGap>]| [0, 1, 2, 3].map(|turn| choose(peers, turn));
    assert_eq!(asked(&[Some(keeps), Some(level), Some(keeps)]), [0, 2, 0, 2].map(Some));
    assert_eq!(asked(&[None, Some(level), Some(behind)]), [1; 4].map(Some));
    assert_eq!(asked(&[Some(begun), Some(behind)]), [1; 4].map(Some));
    assert_eq!(asked(&[Some(begun), None]), [None; 4]);
    assert_eq!(asked(&[Some(begun), Some(begun)]), [0, 1, 0, 1].map(Some), "they say that they have nothing");
    assert_eq!(asked(&[None, None]), [None; 4]);
}

#[test]
fn one_address_for_both_ends_is_refused() {
    let address = free_address();
    let ends = PairEnds { listen: address, peers: vec![end(address)], key: SharedKey::new(&[7; 32]), period_ns: 1 };
    let refused = PairLink::start(PairLinkConfig { node: 1, ends }, parts()).unwrap_err();
    assert!(matches!(refused, PairLinkError::OneAddress(_)));
}
