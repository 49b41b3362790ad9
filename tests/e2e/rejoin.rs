//! A gateway that rejoins can take over again, but only after it has everything that its peer has.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    slice,
};

use mdgw_election::{
    auth::{Nonce, SharedKey},
    identity::Incarnation,
};
use mdgw_feeds::identity::Session;
use mdgw_pair::pair_link::{
    framing::LinkStream,
    message::{LinkIdentity, LinkMessage},
};
use mdgw_runtime::gateway::StartMode;
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text},
    pair::{CHANNEL, Delivery, InProcessGateway, LogEntry, RecordingConsumer, has_gap, log_entries, messages_of},
    process::{self, MdgwProcess, Signal, TEST_TIMEOUT, wait_until},
    stalling_relay::StallingRelay,
    trading_day::TradingDay,
};

const MESSAGES: &str = "60000";

/// A pair, a damaged feed and a consumer. The reference gateway receives the same feed and never publishes; its log holds the
/// expected messages.
pub(crate) struct RejoinScenario {
    pub(crate) pair: ElectedPair,
    reference: InProcessGateway,
    consumer: RecordingConsumer,
    feed: MdgwProcess,
}

impl RejoinScenario {
    /// Starts the gateways in `started`, the reference and the feed.
    fn new(started: &[u8], rate: &str) -> Self {
        let consumer = |pair: &ElectedPair, joined| RecordingConsumer::open(pair.gateways.fixture(1), joined);
        Self::with_pair(ElectedPair::new(GatewayOptions::itch()), started, rate, consumer)
    }

    /// Like [`Self::new`], with a given pair whose gateways are not started yet, and a consumer that is opened when that many
    /// receivers have joined.
    pub(crate) fn with_pair(
        mut pair: ElectedPair,
        started: &[u8],
        rate: &str,
        consumer: impl FnOnce(&ElectedPair, u32) -> RecordingConsumer,
    ) -> Self {
        for node in started {
            pair.start(*node);
        }
        let first = pair.gateways.fixture(1);
        let mut reference_fixture = GatewayFixture::with_node(3);
        (reference_fixture.lines, reference_fixture.requests) = (first.lines, first.requests);
        let reference = InProcessGateway::start_with(reference_fixture, &GatewayOptions::itch(), StartMode::OwnLog);
        let _leader = pair.leader();
        let joined = u32::try_from(started.len()).unwrap() + 1;
        let consumer = consumer(&pair, joined);
        let requests = first.requests.to_string();
        let feed = ["--messages", MESSAGES, "--rate", rate, "--request-server", &requests, "--linger-s", "120"];
        // No message is lost on both lines: on a crowded machine the server's answers could come too late.
        let damage = ["--loss", "0.02", "--duplicate", "0.02", "--reorder", "0.02", "--never-on-all"];
        let feed = first.sim(&[feed.as_slice(), &damage].concat());
        Self { pair, reference, consumer, feed }
    }

    /// Waits until the consumer has received that many items.
    pub(crate) fn receive(&mut self, count: usize) {
        self.consumer.receive_until("the stream continues", |deliveries| deliveries.len() >= count);
    }

    /// Kills the first gateway in the middle of the day. Returns when the second one leads and has published as many messages.
    fn after_first_killed() -> Self {
        let mut scenario = Self::new(&[1, 2], "500");
        scenario.pair.wait_until_eligible(2);
        scenario.receive(3_000);
        scenario.pair.gateways.kill(1);
        scenario.pair.wait_until_leads(2);
        let delivered = scenario.delivered_count();
        scenario.receive(delivered + 3_000);
        scenario
    }

    /// Waits until that gateway has that role, and receives meanwhile: a consumer that requests nothing must not overflow its socket.
    fn receive_until_role(&mut self, node: u8, role: &str) {
        let Self { pair, consumer, .. } = self;
        consumer.receive_until(role, |_| pair.role(node) == role);
    }

    /// How many items the consumer has received.
    pub(crate) fn delivered_count(&self) -> usize {
        self.consumer.deliveries.len()
    }

    /// Waits until the session ends. Returns the pair, the consumer, and the expected messages.
    pub(crate) fn finish(mut self) -> (ElectedPair, RecordingConsumer, BTreeMap<(Session, u64), Vec<u8>>) {
        self.consumer
            .receive_until("the session ends", |deliveries| matches!(deliveries.last(), Some(Delivery::End(_))));
        let _ended = self.feed.stop_with(Signal::Terminate);
        let expected = messages_of(&log_entries(&self.reference.fixture));
        assert!(expected.len() > 50_000, "{} messages", expected.len());
        let _reference = self.reference.stop();
        (self.pair, self.consumer, expected)
    }
}

/// A consumer that requests nothing: no gateway serves its address.
fn consumer_of_multicast(pair: &ElectedPair, joined: u32) -> RecordingConsumer {
    RecordingConsumer::open(&pair.gateways.fixture(1).peer_on_same_lines(3), joined)
}

/// Before that, in the first second of a session, a gateway knows no position.
fn wait_until_positions_are_stored(pair: &ElectedPair) {
    for node in [1, 2] {
        let stored = pair.gateways.fixture(node).path("state.json.positions");
        wait_until("the position is stored", || stored.exists());
    }
}

/// Requests a state copy from a gateway, and disconnects after the first slice.
fn abort_copy_midway(from: SocketAddrV4) {
    let mut socket = TcpStream::connect(from).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let identity = LinkIdentity { node: 1, incarnation: Incarnation(0) };
    let mut stream = LinkStream::new(SharedKey::new(&[0x5a; 32]), identity, Nonce([7; 16]));
    socket.write_all(&stream.hello()).unwrap();
    let (mut has_requested, mut bytes) = (false, [0; 4_096]);
    loop {
        let message = stream.next_message().unwrap();
        if !has_requested && let Some(request) = stream.seal(&LinkMessage::CopyRequest { channel: CHANNEL }) {
            socket.write_all(&request).unwrap();
            has_requested = true;
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

/// The joining gateway copies the books of its peer, although another joiner disconnected in the middle of a copy.
#[test]
fn a_restarted_gateway_catches_up_before_it_takes_over() {
    let mut scenario = RejoinScenario::after_first_killed();
    abort_copy_midway(scenario.pair.link_address(2));

    scenario.pair.start(1);
    let log_before = messages_of(&log_entries(scenario.pair.gateways.fixture(1)));
    let copy_line =
        scenario.pair.gateways.running(1).unwrap().wait_for_stderr("starting with a copy of the peer's state");
    assert!(copy_line.contains("next="), "{copy_line}");
    let status = scenario.pair.status(1).unwrap();
    assert_eq!(
        (&status["role"], &status["details"]["joining"]["eligibility"]),
        (&"ineligible".into(), &"joining".into())
    );
    scenario.pair.wait_until_eligible(1);
    let status = scenario.pair.status(1).unwrap();
    let joining = &status["details"]["joining"];
    assert_eq!((&joining["eligibility"], &joining["channels_missing"]), (&"eligible".into(), &0.into()));
    assert_eq!(status["details"]["fitness"], "fit");

    scenario.pair.gateways.kill(2);
    scenario.pair.wait_until_leads(1);
    let (pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    // Its own log keeps its old entries. What it lacked before the copied state comes from the peer's log.
    assert!(log_before.len() > 1_000, "{} messages before the restart", log_before.len());
    assert!(messages_of(&log_entries(pair.gateways.fixture(1))) == expected, "its log is not whole");
}

/// Starts the first gateway, whose output goes to a port at which nobody listens.
fn start_leader_that_nobody_receives(pair: &mut ElectedPair) {
    let output = format!(":{}", pair.gateways.fixture(1).output.port());
    let elsewhere = format!(":{}", free_address().port());
    let config = pair.config_text(1).replace(&output, &elsewhere);
    pair.gateways.start(1, &config);
    pair.wait_until_leads(1);
}

fn start_second_with_copy_of_log(pair: &mut ElectedPair) {
    pair.spawn(2);
    let _copied = pair.gateways.running(2).unwrap().wait_for_stderr("copied entries of the peer's log");
}

fn logged_messages(pair: &ElectedPair, node: u8) -> BTreeMap<(Session, u64), Vec<u8>> {
    messages_of(&log_entries(pair.gateways.fixture(node)))
}

/// The first gateway has sent its state to the second one, and dies while it sends its log.
fn kill_donor_in_the_middle_of_its_log(pair: &mut ElectedPair) {
    let relay = StallingRelay::of_logs(pair.link_address(1), LOG_BYTES_MAX);
    pair.route_link_through(1, relay.address);
    pair.spawn(2);
    relay.wait_until_stalled();
    pair.gateways.kill(1);
}

/// Bytes of a log until the relay stalls: some messages of the link, and a part of the log.
const LOG_BYTES_MAX: usize = 128 << 10;

/// The leader's output reaches nobody, and it dies while it sends its log. The gateway that has copied its state has the venue replay what
/// nobody has published.
#[test]
fn messages_of_a_donor_that_dies_while_it_sends_its_log_come_from_the_venue() {
    let mut pair = ElectedPair::new(GatewayOptions::itch());
    start_leader_that_nobody_receives(&mut pair);
    let consumer = |pair: &ElectedPair, _| consumer_of_multicast(pair, 2);
    let mut scenario = RejoinScenario::with_pair(pair, &[], "500", consumer);
    let logged = |scenario: &RejoinScenario, node| logged_messages(&scenario.pair, node).len();
    wait_until("the leader has messages", || logged(&scenario, 1) > 2_000);
    start_second_with_copy_of_log(&mut scenario.pair);
    scenario.pair.gateways.kill(2);
    let before = logged(&scenario, 1);
    wait_until("the leader has more messages than a part of the log", || logged(&scenario, 1) > before + 5_000);
    kill_donor_in_the_middle_of_its_log(&mut scenario.pair);
    let second = scenario.pair.gateways.running(2).unwrap();
    let _copied = second.wait_for_stderr("starting with a copy of the peer's state");
    let lost = second.wait_for_stderr("could not copy the peer's log");
    assert!(!lost.contains("entries=0"), "no part of the log: {lost}");
    let _instead = second.wait_for_stderr("replaying the session from the venue's server");
    scenario.receive_until_role(2, "leader");
    let (mut pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    assert!(logged_messages(&pair, 2) == expected, "its log is not whole");
    let stderr = pair.gateways.stop(2);
    assert!(!stderr.contains("gap-declared"), "{stderr}");
}

fn lost_range(delivery: &Delivery) -> Option<(u64, u64)> {
    match delivery {
        Delivery::Gap(first, next) | Delivery::Lost(first, next) => Some((*first, *next)),
        _ => None,
    }
}

/// The same where the venue cannot replay: the copied state is used, and the hole before it is named.
#[test]
fn without_a_venue_the_hole_of_a_donor_that_dies_while_it_sends_its_log_is_named() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
    start_leader_that_nobody_receives(&mut pair);
    let mut consumer = consumer_of_multicast(&pair, 2);
    day.play_first_half(pair.gateways.fixture(1));
    wait_until("the leader has the first half", || logged_messages(&pair, 1).len() > 9_000);
    let unreceived = logged_messages(&pair, 1);
    kill_donor_in_the_middle_of_its_log(&mut pair);
    pair.wait_until_leads(2);
    // While the consumer asks for them, its window holds what comes behind.
    consumer.receive_until("the messages are given up", |deliveries| {
        deliveries.iter().any(|item| lost_range(item).is_some())
    });
    day.play_second_half(pair.gateways.fixture(2));
    consumer.receive_until("the session ends", |deliveries| matches!(deliveries.last(), Some(Delivery::End(_))));
    let published = logged_messages(&pair, 2);
    let missing: Vec<u64> =
        unreceived.keys().filter(|name| !published.contains_key(name)).map(|(_, sequence)| *sequence).collect();
    let (first, last) = (missing[0], *missing.last().unwrap());
    assert!(first > 100 && last - first > 1_000, "{first} to {last}: no part of the log, or all of it");
    let lost: Vec<_> = consumer.deliveries.iter().filter_map(lost_range).collect();
    assert!(lost.len() == 1 && lost[0].0 <= first && last < lost[0].1, "{lost:?} {first} {last}");
    let line = pair.gateways.running(2).unwrap().wait_for_stderr("messages skipped");
    assert!(line.contains("alarm=\"gap-declared\"") && line.contains(&format!("first={}", lost[0].0)), "{line}");
    assert!(line.contains(&format!("next={}", lost[0].1)), "{line}");
}

/// The leader's output reaches nobody. The gateway that copies the leader's state has to publish all of it when the leader dies.
#[test]
fn messages_that_nobody_received_are_published_by_the_gateway_that_copied_the_leaders_state() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
    start_leader_that_nobody_receives(&mut pair);
    let mut consumer = consumer_of_multicast(&pair, 2);
    day.play_first_half(pair.gateways.fixture(1));
    wait_until("the leader has the first half", || logged_messages(&pair, 1).len() > 9_000);
    let unreceived = logged_messages(&pair, 1);
    start_second_with_copy_of_log(&mut pair);
    // Its next start finds in its log what this one has copied.
    pair.gateways.kill(2);
    start_second_with_copy_of_log(&mut pair);
    pair.gateways.kill(1);
    pair.wait_until_leads(2);
    day.play_second_half(pair.gateways.fixture(2));
    consumer.receive_until("the session ends", |deliveries| matches!(deliveries.last(), Some(Delivery::End(_))));
    let expected = messages_of(&log_entries(pair.gateways.fixture(2)));
    assert!(
        unreceived.iter().all(|(name, records)| expected.get(name) == Some(records)),
        "the second log is not whole"
    );
    assert!(expected.len() > unreceived.len() + 9_000, "{} messages", expected.len());
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
}

/// The donor is killed in the middle of a state copy. The joining gateway uses nothing of that copy.
#[test]
fn a_donor_killed_during_the_copy_is_replaced_with_correct_books() {
    let mut scenario = RejoinScenario::after_first_killed();

    let relay = StallingRelay::start(scenario.pair.link_address(2), COPY_BYTES_MAX);
    scenario.pair.route_link_through(2, relay.address);
    scenario.pair.spawn(1);
    relay.wait_until_stalled();
    scenario.pair.gateways.kill(2);
    scenario.pair.gateways.wait_until_running(1);
    let first = scenario.pair.gateways.running(1).unwrap();
    let _none = first.wait_for_stderr("could not copy the peer's state");
    let _instead = first.wait_for_stderr("replaying the session from the venue's server");
    scenario.pair.wait_until_leads(1);
    assert!(
        !scenario
            .pair
            .gateways
            .running(1)
            .unwrap()
            .stderr_so_far()
            .contains("starting with a copy of the peer's state")
    );
    let delivered = scenario.delivered_count();
    scenario.receive(delivered + 1_000);
    scenario.pair.start(2);
    scenario.pair.wait_until_eligible(2);

    let (pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    assert!(messages_of(&log_entries(pair.gateways.fixture(1))) == expected, "its log is not complete");
}

/// Bytes until the relay stalls: more than are sent before a copy, fewer than a copy has.
const COPY_BYTES_MAX: usize = 16 << 10;

#[test]
fn both_gateways_rebuild_their_books_from_the_venue() {
    let pair = ElectedPair::new(GatewayOptions::itch());
    let mut scenario = RejoinScenario::with_pair(pair, &[1, 2], "500", consumer_of_multicast);
    scenario.pair.wait_until_eligible(2);
    scenario.receive(3_000);
    wait_until_positions_are_stored(&scenario.pair);
    // Until the lease has ended, the second gateway has messages that it does not publish.
    scenario.pair.gateways.running(1).unwrap().signal(Signal::Stop);
    let logged = |pair: &ElectedPair| messages_of(&log_entries(pair.gateways.fixture(2))).len();
    let before = logged(&scenario.pair);
    wait_until("the standby receives on", || logged(&scenario.pair) > before + 100);
    scenario.pair.gateways.kill(2);
    scenario.pair.gateways.kill(1);
    scenario.pair.start(2);
    scenario.receive_until_role(2, "leader");
    scenario.pair.start(1);
    scenario.receive_until_role(1, "candidate");
    let (pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    assert!(
        messages_of(&log_entries(pair.gateways.fixture(2))) == expected,
        "the log of the second gateway is not complete"
    );
    // On a crowded machine it may have declared a gap: from there on its books are suspect, and records may differ.
    let has_no_gap = |entry: &LogEntry| !has_gap(slice::from_ref(entry));
    let second: Vec<_> = log_entries(pair.gateways.fixture(1)).into_iter().take_while(has_no_gap).collect();
    let second = messages_of(&second);
    assert!(!second.is_empty(), "the log of the second gateway has no message before its first gap");
    let differing = second.iter().filter(|(name, records)| expected.get(name) != Some(records));
    let differing: Vec<_> = differing.map(|((_, sequence), records)| (sequence, records.len())).collect();
    assert!(differing.is_empty(), "the second gateway has other records: {differing:?}");
}

/// The stored positions are of the session before.
#[test]
fn a_session_that_begins_while_nobody_leads_is_published_from_its_first_message() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    let mut consumer = consumer_of_multicast(&pair, 3);
    let sim = |pair: &ElectedPair, session: &str| {
        let feed = ["--messages", "2000", "--rate", "2000", "--session", session];
        let _ = pair.gateways.fixture(1).sim(&feed).end().expect_code(0);
    };
    sim(&pair, "MORNING001");
    consumer.receive_until("the session ends", |deliveries| matches!(deliveries.last(), Some(Delivery::End(_))));
    wait_until_positions_are_stored(&pair);
    pair.wait_until_eligible(2);
    pair.gateways.running(1).unwrap().signal(Signal::Stop);
    sim(&pair, "MORNING002");
    let logged = || messages_of(&log_entries(pair.gateways.fixture(2)));
    wait_until("the standby has the second session", || logged().keys().any(|(session, _)| session.restart == 1));
    pair.gateways.kill(2);
    pair.gateways.kill(1);
    pair.start(2);
    pair.wait_until_leads(2);
    consumer.receive_until("both sessions end", |deliveries| {
        deliveries.iter().filter(|delivery| matches!(delivery, Delivery::End(_))).count() == 2
    });
    let expected = messages_of(&log_entries(pair.gateways.fixture(2)));
    assert!(expected.len() > 3_000, "{} messages", expected.len());
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
}

/// Both hosts are rebooted: the logs in memory are gone. What nobody published meanwhile comes from the venue.
#[test]
fn gateways_whose_logs_are_gone_publish_what_nobody_has_published_since() {
    let pair = ElectedPair::new(GatewayOptions::itch());
    let mut scenario = RejoinScenario::with_pair(pair, &[1, 2], "500", consumer_of_multicast);
    scenario.pair.wait_until_eligible(2);
    scenario.receive(3_000);
    wait_until_positions_are_stored(&scenario.pair);
    scenario.receive(6_000);
    scenario.pair.gateways.kill(1);
    scenario.pair.gateways.kill(2);
    for node in [1, 2] {
        std::fs::remove_dir_all(scenario.pair.gateways.fixture(node).path("log")).unwrap();
    }
    let reference = messages_of(&log_entries(&scenario.reference.fixture)).len();
    wait_until("nobody publishes", || messages_of(&log_entries(&scenario.reference.fixture)).len() > reference + 1_000);
    scenario.pair.start(2);
    scenario.receive_until_role(2, "leader");
    scenario.pair.start(1);
    scenario.receive_until_role(1, "candidate");
    let (_pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
}

/// The second gateway copies the first one's state at noon. No packet of the venue reaches it after that: nothing but the peer's position
/// says that the session goes on, and that it ends.
#[test]
fn a_gateway_that_receives_no_packet_after_its_copy_catches_up_with_its_peer() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 8_000);
    pair.start(1);
    pair.wait_until_leads(1);
    day.play_first_half(pair.gateways.fixture(1));
    let mut config = pair.config_text(2);
    for line in pair.gateways.fixture(1).lines {
        let silent = format!("{}:{}", line.ip(), free_address().port());
        config = config.replace(&line.to_string(), &silent);
    }
    pair.gateways.start(2, &config);
    let _copied = pair.gateways.running(2).unwrap().wait_for_stderr("starting with a copy of the peer's state");
    let at_noon = logged_messages(&pair, 2).len();
    day.play_second_half(pair.gateways.fixture(1));
    let channel = |node| pair.status(node).unwrap()["details"]["channels"][0].clone();
    wait_until("the leader has the whole session", || channel(1)["state"] == "ended");
    wait_until("the second gateway has it too", || channel(2)["state"] == "ended");
    let expected = logged_messages(&pair, 1);
    assert!(expected.len() > at_noon + 1_000, "{at_noon} of {} messages at noon", expected.len());
    assert!(logged_messages(&pair, 2) == expected, "its log is not whole");
    pair.wait_until_eligible(2);
    let status = pair.status(2).unwrap();
    assert_eq!(
        (&status["details"]["joining"]["behind_messages"], &status["details"]["fitness"]),
        (&0.into(), &"fit".into())
    );
    let stderr = [pair.gateways.stop(2), pair.gateways.stop(1)];
    assert!(stderr.iter().all(|lines| !lines.contains("gap-declared")), "{stderr:?}");
}

#[test]
fn a_gateway_started_alone_leads() {
    let scenario = RejoinScenario::new(&[1], "5000");
    scenario.pair.wait_until_leads(1);
    let (mut pair, consumer, expected) = scenario.finish();
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    let stderr = pair.gateways.stop(1);
    assert!(stderr.contains("leads"), "{stderr}");
}

/// Neither gateway nor the venue has the session's beginning. The second one requests it from the first one.
#[test]
fn two_gateways_that_begin_late_raise_late_start_and_count_no_gap() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 2_000);
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    pair.wait_until_eligible(2);
    day.play_second_half(pair.gateways.fixture(1));
    for node in [1, 2] {
        let gateway = pair.gateways.running(node).unwrap();
        let _alarm = gateway.wait_for_stderr("alarm=\"late-start\"");
        let socket = pair.gateways.fixture(node).path("control");
        let top = process::run(["top", "--once", "--json", "--interval", "1ms", "--socket", text(&socket)]);
        let top = top.expect_code(0).json();
        let channel = &top["channels"][0];
        assert_eq!((&channel["late_starts"], &channel["gaps"]), (&1.into(), &0.into()), "gateway {node}: {channel}");
    }
    // The standby stops first, so that neither takes over.
    let stderr = [pair.gateways.stop(2), pair.gateways.stop(1)];
    assert!(stderr.iter().all(|lines| !lines.contains("gap-declared")), "{stderr:?}");
    // The second gateway has asked: its log says what its peer does not have.
    let have_gaps = [1, 2].map(|node| has_gap(&log_entries(pair.gateways.fixture(node))));
    assert_eq!(have_gaps, [false, true]);
}

/// After the session only heartbeats go out. The shipped interval is a second, five times as long as an acknowledgement may take.
#[test]
fn a_standby_that_restarts_after_the_session_does_not_blame_the_leaders_output() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 1_000);
    let configs = [1, 2].map(|node| pair.config_text(node).replacen("heartbeat_ms = 100", "heartbeat_ms = 1000", 1));
    pair.gateways.start(1, &configs[0]);
    pair.wait_until_leads(1);
    pair.gateways.start(2, &configs[1]);
    pair.wait_until_eligible(2);
    day.play_first_half(pair.gateways.fixture(1));
    day.play_second_half(pair.gateways.fixture(1));
    let has_received_all = |pair: &ElectedPair| {
        let [leader, standby] = [1, 2].map(|node| pair.status(node).unwrap()["details"]["channels"][0].clone());
        leader["state"] == "ended" && standby["packets_received"].as_u64() > Some(0)
    };
    wait_until("the session has ended", || has_received_all(&pair));
    for _ in 0..3 {
        let _log = pair.gateways.stop(2);
        pair.gateways.start(2, &configs[1]);
        wait_until("a heartbeat has arrived", || has_received_all(&pair));
        pair.wait_until_eligible(2);
    }
    assert_eq!(pair.role(1), "leader");
    let log = pair.gateways.stop(1);
    assert!(!log.contains("output-failing") && !log.contains("fitness reduced"), "{log}");
}
