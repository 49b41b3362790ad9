//! A gateway that comes back takes over again, but not before it has all that its peer has.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
};

use mdgw_election::auth::{Nonce, SharedKey};
use mdgw_feeds::identity::Session;
use mdgw_pair::pair_link::{framing::LinkStream, message::LinkMessage};
use mdgw_runtime::gateway::Beginning;
use mdgw_tests::{
    elected::ElectedPair,
    holding_relay::HoldingRelay,
    pair::{CHANNEL, Consumer, Member, Told, log_entries, messages_of},
    process::{Mdgw, PATIENCE, Signal},
    site::{Site, Wanted},
};

const MESSAGES: &str = "60000";

/// A pair, a feed with damage, a consumer; and beside them a gateway that never publishes: what it has is what is right.
struct World {
    pair: ElectedPair,
    oracle: Member,
    consumer: Consumer,
    feed: Mdgw,
}

impl World {
    /// `started`: the gateways that run from the beginning.
    fn new(started: &[u8], rate: &str) -> Self {
        let mut pair = ElectedPair::new(Wanted::itch());
        for node in started {
            pair.start(*node);
        }
        let first = pair.gateways.site(1);
        let mut apart = Site::numbered(3);
        (apart.lines, apart.requests) = (first.lines, first.requests);
        let oracle = Member::start_with(apart, &Wanted::itch(), Beginning::OwnLog);
        let _leader = pair.leader();
        let joined = u32::try_from(started.len()).unwrap() + 1;
        let consumer = Consumer::open(pair.gateways.site(1), joined);
        let requests = first.requests.to_string();
        let feed = ["--messages", MESSAGES, "--rate", rate, "--request-server", &requests, "--linger-s", "120"];
        // No answer of the server has to come in time on a crowded machine.
        let damage = ["--loss", "0.02", "--duplicate", "0.02", "--reorder", "0.02", "--never-on-all"];
        let feed = first.sim(&[feed.as_slice(), &damage].concat());
        Self { pair, oracle, consumer, feed }
    }

    fn take(&mut self, count: usize) {
        self.consumer.take_until("the stream goes on", |told| told.len() >= count);
    }

    /// The second gateway leads for the first one, which was killed amid the day, and has told as much again.
    fn with_the_first_killed() -> Self {
        let mut world = Self::new(&[1, 2], "500");
        world.pair.wait_until_stands(2);
        world.take(3_000);
        world.pair.gateways.kill(1);
        world.pair.wait_until_leads(2);
        let told = world.told();
        world.take(told + 3_000);
        world
    }

    fn told(&self) -> usize {
        self.consumer.told.len()
    }

    /// The day's end is told: the pair, what was told, and what had to be.
    fn end(mut self) -> (ElectedPair, Consumer, BTreeMap<(Session, u64), Vec<u8>>) {
        self.consumer.take_until("the session ends", |told| matches!(told.last(), Some(Told::End(_))));
        let _ended = self.feed.end_by(Signal::Terminate);
        let expected = messages_of(&log_entries(&self.oracle.site));
        assert!(expected.len() > 50_000, "{} messages", expected.len());
        let _oracle = self.oracle.stop();
        (self.pair, self.consumer, expected)
    }
}

/// Somebody begins to take a copy of the gateway's state and is gone in the midst of it.
fn take_half_a_copy(from: SocketAddrV4) {
    let mut socket = TcpStream::connect(from).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = LinkStream::new(SharedKey::new(&[0x5a; 32]), 1, Nonce([7; 16]));
    socket.write_all(&stream.hello()).unwrap();
    let (mut has_asked, mut bytes) = (false, [0; 4_096]);
    loop {
        let message = stream.next_message().unwrap();
        if !has_asked && let Some(ask) = stream.seal(&LinkMessage::CopyAsk { channel: CHANNEL }) {
            socket.write_all(&ask).unwrap();
            has_asked = true;
        }
        match message {
            Some(LinkMessage::CopySlice { number: 0, .. }) => return,
            Some(LinkMessage::Positions(_)) => {}
            Some(other) => panic!("{other:?}"),
            None => {
                let count = socket.read(&mut bytes).unwrap();
                stream.push(&bytes[..count]);
            }
        }
    }
}

/// Its books are a copy of its peer's, and somebody else had begun to take one and was gone in the midst of it.
#[test]
fn a_killed_gateway_comes_back_is_level_first_and_takes_over_again() {
    let mut world = World::with_the_first_killed();
    take_half_a_copy(world.pair.link_end(2));

    world.pair.start(1);
    let logged = messages_of(&log_entries(world.pair.gateways.site(1)));
    let began_at = world.pair.gateways.running(1).unwrap().says("begins with the peer's state");
    assert!(began_at.contains("next="), "{began_at}");
    let status = world.pair.status(1).unwrap();
    assert_eq!((&status["role"], &status["details"]["joining"]["standing"]), (&"bystander".into(), &"joins".into()));
    world.pair.wait_until_stands(1);
    let status = world.pair.status(1).unwrap();
    let joining = &status["details"]["joining"];
    assert_eq!((&joining["standing"], &joining["channels_missing"]), (&"stands".into(), &0.into()));
    assert_eq!(status["details"]["fitness"], "fit");

    world.pair.gateways.kill(2);
    world.pair.wait_until_leads(1);
    let (pair, consumer, expected) = world.end();
    assert_eq!(consumer.check(&expected), Ok(()));
    // Its own log keeps what it had, and goes on where the copy was made; what lies between the other one has.
    let whole = messages_of(&log_entries(pair.gateways.site(1)));
    assert!(whole.iter().all(|(name, records)| expected[name] == *records), "its books are not the right ones");
    let lacking: Vec<_> = expected.keys().filter(|name| !whole.contains_key(name)).collect();
    let kept = logged.keys().take_while(|name| name < lacking.first().unwrap()).count();
    assert!(kept > 1_000, "{kept} messages of before");
    let hole = expected.range(*lacking[0]..=**lacking.last().unwrap()).count();
    assert_eq!(hole, lacking.len(), "one hole, and nothing is missing behind it");
}

/// The gateway that gives its state is killed when a part of it has come: nothing of that is used.
#[test]
fn a_giver_killed_in_the_midst_of_its_copy_is_followed_by_one_with_right_books() {
    let mut world = World::with_the_first_killed();

    let relay = HoldingRelay::start(world.pair.link_end(2), COPY_BYTES_MAX);
    world.pair.put_between(2, relay.address);
    world.pair.begin(1);
    relay.wait_until_it_holds();
    world.pair.gateways.kill(2);
    world.pair.gateways.wait_until_runs(1);
    let first = world.pair.gateways.running(1).unwrap();
    let _none = first.says("no copy of the peer's state");
    let _instead = first.says("the venue's server plays the session again");
    world.pair.wait_until_leads(1);
    assert!(!world.pair.gateways.running(1).unwrap().said().contains("begins with the peer's state"));
    let told = world.told();
    world.take(told + 1_000);
    world.pair.start(2);
    world.pair.wait_until_stands(2);

    let (pair, consumer, expected) = world.end();
    assert_eq!(consumer.check(&expected), Ok(()));
    assert!(messages_of(&log_entries(pair.gateways.site(1))) == expected, "its log is not whole");
}

/// More than what is told before a copy, less than one.
const COPY_BYTES_MAX: usize = 16 << 10;

#[test]
fn both_killed_and_restarted_they_have_right_books_again_from_the_venue() {
    let mut world = World::new(&[1, 2], "500");
    world.pair.wait_until_stands(2);
    world.take(3_000);
    world.pair.gateways.kill(1);
    world.pair.gateways.kill(2);
    world.pair.start(2);
    world.pair.start(1);
    let leader = world.pair.leader();
    world.pair.wait_until_stands(3 - leader);
    let (pair, consumer, expected) = world.end();
    assert_eq!(consumer.check(&expected), Ok(()));
    assert!(messages_of(&log_entries(pair.gateways.site(2))) == expected, "the log of the first one is not whole");
    let second = messages_of(&log_entries(pair.gateways.site(1)));
    assert!(second.iter().all(|(name, records)| expected[name] == *records), "the second one says something else");
}

#[test]
fn a_gateway_that_starts_alone_leads() {
    let world = World::new(&[1], "5000");
    world.pair.wait_until_leads(1);
    let (mut pair, consumer, expected) = world.end();
    assert_eq!(consumer.check(&expected), Ok(()));
    let said = pair.gateways.end(1);
    assert!(said.contains("leads"), "{said}");
}
