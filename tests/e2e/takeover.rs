//! A successor continues where the leader stopped: every message once, in order, at any stopping point.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    io::{BufRead, BufReader, Write as _},
    net::Ipv4Addr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use mdgw_feeds::{
    drop_reason::DropReason,
    frame::FrameKind,
    identity::{Epoch, Feed, Sequence, Session},
    published::{
        packet::{Frames, PacketFlags},
        position::StreamPosition,
        tag::{TagKey, TagPolicy},
    },
    time::MonoNs,
};
use mdgw_runtime::gateway::StartMode;
use mdgw_tests::{
    captures::print_to_stderr,
    feeds::{self, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text, write_key},
    pair::{
        CHANNEL, Delivery, GROUP, InProcessGateway, LogEntry, RecordingConsumer, ScriptedLeader, VenueSender,
        check_deliveries, link, log_entries, messages_of, start_gateway,
    },
    process::wait_until,
};

/// Epochs of the leader that stops, and of its successor.
const OLD_EPOCH: Epoch = Epoch(3 << 8 | 9);
const NEW_EPOCH: Epoch = Epoch(4 << 8 | 2);

fn session(restart: u32) -> Session {
    Session { feed: Feed::NasdaqItch, date: "2019-01-30".parse().unwrap(), restart }
}

/// Small packets, so that the first message of a stock (mapping and definition) is split into parts.
fn wanted() -> GatewayOptions {
    GatewayOptions { output: "payload_bytes_max = 640\n".to_owned(), has_recovery: false, ..GatewayOptions::itch() }
}

fn day(messages: u64, seed: u64, name: [u8; 10]) -> Vec<Packet> {
    feeds::itch_packets(feeds::itch_day(messages, seed), name, MIDNIGHT_NS)
}

/// A standby with the whole day in its log, a scripted leader, and a consumer of both.
struct TakeoverScenario {
    standby: InProcessGateway,
    leader: ScriptedLeader,
    consumer: RecordingConsumer,
}

impl TakeoverScenario {
    fn new(days: &[Vec<Packet>]) -> Self {
        let standby = InProcessGateway::start(GatewayFixture::with_node(2), &wanted());
        let consumer = RecordingConsumer::open(&standby.fixture, 2);
        let venue = VenueSender::default();
        for day in days {
            venue.send(standby.fixture.lines[0], day);
        }
        let last = session(u32::try_from(days.len() - 1).unwrap());
        wait_until("the log has the last session's end", || {
            standby.log().last().is_some_and(|entry| entry.session == last && entry.flags.0 & 8 != 0)
        });
        Self { leader: ScriptedLeader::new(standby.fixture.output, OLD_EPOCH), standby, consumer }
    }

    /// The leader publishes `count` entries and stops. Then the standby takes over.
    fn assert_takeover_after(mut self, count: usize) {
        let log = self.standby.log();
        self.leader.publish(&log[..count]);
        if let Some(last) = log[..count].last() {
            self.standby.wait_until_received(last.until());
        }
        self.standby.open_fence(NEW_EPOCH);
        self.consumer.receive_to_session_end(log.last().unwrap().session);
        assert_eq!(
            self.consumer.check_deliveries(&messages_of(&log)),
            Ok(()),
            "after {count} of {} packets",
            log.len()
        );
        assert_eq!(self.consumer.epoch(), Some(NEW_EPOCH));
        let report = self.standby.stop();
        let published = report.channels[0].published;
        // An entry that covers no message (a state, the session's end) is republished if it is at the received position.
        let received = log[..count].last().map(LogEntry::until);
        let is_new =
            |entry: &&LogEntry| received.is_none_or(|received| entry.until() > received || entry.from() == received);
        assert_eq!(
            published.catch_up_packets,
            log.iter().filter(is_new).count() as u64,
            "only the entries that receivers may lack"
        );
        assert_eq!(report.listener_counts.unwrap().holes_abandoned, 0);
    }
}

#[test]
fn takeover_after_a_kill_inside_a_split_message() {
    let day = day(600, 1, SESSION);
    let log = TakeoverScenario::new(std::slice::from_ref(&day)).standby.log();
    let first_part = log.iter().position(|entry| entry.until().part == 1).expect("a message is split into parts");
    let parts = log[first_part..].iter().take_while(|entry| entry.until().part > 0).count() + 1;
    assert!(parts >= 2, "{parts} parts");
    // Stop before the first part, after each part, and after the next message.
    for count in first_part..=first_part + parts + 1 {
        TakeoverScenario::new(std::slice::from_ref(&day)).assert_takeover_after(count);
    }
}

/// The standby joins for the configured gateways and for its own address. Control: joined for any sender, it believes
/// another sender's epoch and receives nothing of the leader any more.
#[test]
fn a_standby_with_sources_receives_the_gateways_only() {
    const FORGED_EPOCH: Epoch = Epoch(500 << 8 | 7);
    let packets = day(400, 1, SESSION);
    for (output_line, is_filtered) in [("source = [\"127.0.0.2\"]\n", true), ("", false)] {
        let options = GatewayOptions { output_line, ..wanted() };
        let standby = InProcessGateway::start(GatewayFixture::with_node(2), &options);
        VenueSender::default().send(standby.fixture.lines[0], &packets);
        wait_until("the log has the session's end", || {
            standby.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0)
        });
        let (log, output) = (standby.log(), standby.fixture.output);
        let forger = ScriptedLeader::at(Ipv4Addr::new(127, 0, 0, 3), output, FORGED_EPOCH);
        let leader = ScriptedLeader::at(Ipv4Addr::new(127, 0, 0, 2), output, OLD_EPOCH);
        let own_address = ScriptedLeader::at(Ipv4Addr::LOCALHOST, output, OLD_EPOCH);
        let (first, second) = log.split_at(log.len() / 2);
        forger.publish(&first[..1]);
        leader.publish(first);
        own_address.publish(second);
        let sent = log.len() as u64;
        if is_filtered {
            // The position alone does not tell: the session's end has a packet of its own, which moves none.
            wait_until("the standby has read all packets", || standby.channel_status().packets == sent);
        } else {
            // All datagrams before it have been read when this one is received.
            forger.publish(&first[1..2]);
            standby.wait_until_received(first[1].until());
        }
        let counts = standby.stop().listener_counts.unwrap();
        let expected = if is_filtered { (sent, 0) } else { (sent + 2, sent) };
        assert_eq!((counts.datagrams, counts.drops.get(DropReason::EpochStale)), expected, "{output_line}");
    }
}

/// Packets without a tag or under another key move no epoch and no position, at the standby or at a consumer. Recorded packets
/// move neither back. Control: without keys they do ([`a_standby_with_sources_receives_the_gateways_only`]).
#[test]
fn with_tags_a_takeover_is_undisturbed_by_forged_packets() {
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("tag_key");
    write_key(&key_file);
    let key = TagKey::new(&[0x5a; 32]);
    let tags = TagPolicy { keys: vec![key.clone()], accepts_untagged: false };
    let mut options = wanted();
    options.output += &format!("tag_key_files = [\"{}\"]\n", key_file.display());
    let standby = InProcessGateway::start(GatewayFixture::with_node(2), &options);
    let mut consumer = RecordingConsumer::open_with_tags(&standby.fixture, 2, tags);
    VenueSender::default().send(standby.fixture.lines[0], &day(400, 1, SESSION));
    wait_until("the log has the session's end", || standby.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    let (log, output) = (standby.log(), standby.fixture.output);
    let most = log.len() / 2;

    let forged_epoch = Epoch(500 << 8 | 7);
    let untagged = ScriptedLeader::new(output, forged_epoch);
    let other_key = ScriptedLeader::new(output, forged_epoch).with_key(&TagKey::new(&[8; 32]));
    let leader = ScriptedLeader::new(output, OLD_EPOCH).with_key(&key);
    let publish_forged = |entries: &[LogEntry]| {
        untagged.publish(entries);
        other_key.publish(entries);
    };
    // Before the leader's first packet, among its packets, and beyond its position.
    publish_forged(&log[..2]);
    leader.publish(&log[..10]);
    publish_forged(&log[most..most + 30]);
    leader.publish(&log[10..most]);
    publish_forged(&log[most - 10..most]);
    standby.wait_until_received(log[most - 1].until());
    // The first packets again, as they were recorded: what the standby acknowledges to the leader does not go back.
    leader.publish(&log[..3]);
    wait_until("the standby has read them", || standby.channel_status().packets == most as u64 + 3);
    assert_eq!(standby.channel_status().last_received, Some(log[most - 1].until()));
    standby.open_fence(NEW_EPOCH);
    consumer.receive_to_session_end(log.last().unwrap().session);
    assert_eq!(consumer.check_deliveries(&messages_of(&log)), Ok(()));
    assert_eq!(consumer.epoch(), Some(NEW_EPOCH));
    // The gateway's own packets come after the forged ones.
    wait_until("the standby has read all packets", || standby.channel_status().own_packets > 0);
    let status = standby.channel_status();
    assert_eq!((status.packets, status.received.epoch), (most as u64 + 3, OLD_EPOCH));
    let counts = standby.stop().listener_counts.unwrap();
    let refused = [DropReason::TagMissing, DropReason::TagInvalid].map(|reason| counts.drops.get(reason));
    assert_eq!(refused, [42, 42]);
}

/// While a pair changes to tags, its gateways accept packets without a tag too.
#[test]
fn a_standby_that_accepts_untagged_packets_follows_a_leader_without_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("tag_key");
    write_key(&key_file);
    let mut options = wanted();
    options.output += &format!("tag_key_files = [\"{}\"]\naccept_untagged = true\n", key_file.display());
    let standby = InProcessGateway::start(GatewayFixture::with_node(2), &options);
    // A consumer without a key reads packets with and without a tag.
    let mut consumer = RecordingConsumer::open(&standby.fixture, 2);
    VenueSender::default().send(standby.fixture.lines[0], &day(400, 1, SESSION));
    wait_until("the log has the session's end", || standby.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    let (log, output) = (standby.log(), standby.fixture.output);
    let most = log.len() / 2;
    let leader = ScriptedLeader::new(output, OLD_EPOCH);
    let other_key = ScriptedLeader::new(output, Epoch(500 << 8 | 7)).with_key(&TagKey::new(&[8; 32]));
    leader.publish(&log[..most]);
    standby.wait_until_received(log[most - 1].until());
    standby.open_fence(NEW_EPOCH);
    consumer.receive_to_session_end(log.last().unwrap().session);
    assert_eq!(consumer.check_deliveries(&messages_of(&log)), Ok(()));
    other_key.publish(&log[..1]);
    // The kernel returns the gateway's own packets. Their tags are valid. Only a later leader's packets are received now.
    ScriptedLeader::new(output, Epoch(5 << 8 | 9)).publish(&log[..1]);
    wait_until("the standby has read the last packet", || {
        standby.channel_status().packets == most as u64 + 1 && standby.channel_status().own_packets > 0
    });
    let counts = standby.stop().listener_counts.unwrap();
    assert_eq!((counts.drops.get(DropReason::TagMissing), counts.drops.get(DropReason::TagInvalid)), (0, 1));
}

/// An old leader, paused at a send, goes on after this gateway has led above it and has restarted. Receivers drop what it sends.
#[test]
fn packets_of_an_old_leader_are_stale_to_a_restarted_gateway_too() {
    let packets = day(600, 1, SESSION);
    let (before, behind) = packets.split_at(packets.len() / 2);
    let gateway = InProcessGateway::start(GatewayFixture::with_node(2), &wanted());
    let mut consumer = RecordingConsumer::open(&gateway.fixture.peer_on_same_lines(3), 2);
    let venue = VenueSender::default();
    venue.send(gateway.fixture.lines[0], before);
    wait_until("the log has the first half", || messages_of(&gateway.log()).len() > 200);
    let old_leader = ScriptedLeader::new(gateway.fixture.output, OLD_EPOCH);
    old_leader.publish(&gateway.log()[..10]);
    gateway.wait_until_received(gateway.log()[9].until());
    gateway.open_fence(NEW_EPOCH);
    consumer.receive_until("the first half", |deliveries| deliveries.len() > 200);
    gateway.handle().fence().close();
    gateway.handle().on_fence_change();
    wait_until("the gateway has stopped to publish", || gateway.handle().drained().is_some());
    let published = gateway.log().len();
    venue.send(gateway.fixture.lines[0], behind);
    wait_until("the log has the session's end", || gateway.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    let log = gateway.log();

    let restarted = gateway.restart(&wanted());
    let middle = usize::midpoint(published, log.len());
    old_leader.publish(&log[published..middle]);
    // Nothing tells that packets were dropped before the gateway stops: the count below fails if they are not read in this time.
    std::thread::sleep(std::time::Duration::from_millis(500));
    restarted.open_fence(Epoch(5 << 8 | 2));
    consumer.receive_to_session_end(session(0));
    assert_eq!(consumer.check_deliveries(&messages_of(&log)), Ok(()));
    let stale = restarted.stop().listener_counts.unwrap().drops.get(DropReason::EpochStale);
    assert_eq!(stale, (middle - published) as u64);
}

/// A forged packet has raised the epoch that this gateway believes, and no pair link tells the leader. What the runbook of the alarm
/// `outranked` says makes the gateway forget that epoch.
#[test]
fn a_higher_epoch_of_an_earlier_run_is_forgotten_with_the_file_of_positions() {
    let TakeoverScenario { standby, leader, .. } = TakeoverScenario::new(&[day(1_000, 1, SESSION)]);
    let log = standby.log();
    leader.publish(&log[..20]);
    standby.wait_until_received(log[19].until());
    let forged = Epoch::new(OLD_EPOCH.count() + 900, 7);
    ScriptedLeader::new(standby.fixture.output, forged).publish(&log[20..21]);
    standby.wait_until_received(log[20].until());

    let restarted = standby.restart(&wanted());
    leader.publish(&log[21..31]);
    // Time for packets that must not count.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(restarted.channel_status().packets, 0, "the leader's packets are stale");
    let positions = |fixture: &GatewayFixture| std::fs::remove_file(fixture.path("state.json.positions")).unwrap();
    let forgetful = restarted.restart_after(&wanted(), positions);
    leader.publish(&log[31..41]);
    wait_until("the leader's packets are received", || forgetful.channel_status().packets == 10);
    let _ = forgetful.stop();
}

#[test]
fn takeover_across_a_session_restart() {
    let days = [day(400, 1, *b"SESSION000"), day(400, 2, *b"SESSION001")];
    let log = TakeoverScenario::new(&days).standby.log();
    let first_of_session = log.iter().position(|entry| entry.session == session(1)).unwrap();
    for count in
        [first_of_session - 30, first_of_session - 1, first_of_session, first_of_session + 1, first_of_session + 30]
    {
        TakeoverScenario::new(&days).assert_takeover_after(count);
    }
}

#[test]
fn takeover_from_an_unreceived_leader_starts_at_the_beginning() {
    TakeoverScenario::new(&[day(400, 1, SESSION)]).assert_takeover_after(0);
}

#[test]
fn a_gap_only_on_the_standby_is_not_published() {
    let packets = day(3_000, 1, SESSION);
    let middle = packets.len() / 2;
    let incomplete = [&packets[..middle], &packets[middle + 4..]].concat();
    let fixture = GatewayFixture::new();
    let (leading, standby) =
        (InProcessGateway::start(fixture.peer(1), &wanted()), InProcessGateway::start(fixture.peer(2), &wanted()));
    let mut consumer = RecordingConsumer::open(&standby.fixture, 3);
    let venue = VenueSender::default();
    venue.send(leading.fixture.lines[0], &packets);
    venue.send(standby.fixture.lines[0], &incomplete);
    for member in [&leading, &standby] {
        wait_until("the log has the session's end", || member.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    }
    let (whole, incomplete_log) = (leading.log(), standby.log());
    assert!(messages_of(&incomplete_log).len() < messages_of(&whole).len());
    let gap = incomplete_log.iter().find(|entry| declares_gap(entry)).expect("the standby declared a gap");
    // The leader has published the messages that the standby lacks, and some later ones.
    let count = whole.iter().position(|entry| entry.first >= gap.next).unwrap() + 10;
    ScriptedLeader::new(standby.fixture.output, OLD_EPOCH).publish(&whole[..count]);
    standby.wait_until_received(whole[count - 1].until());
    standby.open_fence(NEW_EPOCH);
    consumer.receive_to_session_end(session(0));
    // No gap is declared. The successor's books may produce other records for later messages; those are marked suspect.
    let position = (session(0), whole[count - 1].next.0);
    let mut expected = messages_of(&whole[..count]);
    expected.extend(messages_of(&incomplete_log).split_off(&position));
    assert_eq!(consumer.check_deliveries(&expected), Ok(()));
    let complete_books = messages_of(&whole);
    let mut suspects = 0;
    for delivery in &consumer.deliveries {
        let Delivery::Message(session, sequence, records, is_suspect) = delivery else { continue };
        let is_right = complete_books.get(&(*session, *sequence)) == Some(records);
        assert!(is_right || *is_suspect, "{sequence} differs without a suspect mark");
        assert!(
            *sequence >= position.1 || !is_suspect,
            "{sequence} is from the old leader, whose books are not suspect"
        );
        suspects += u32::from(*is_suspect);
    }
    assert!(suspects > 0);
    let _ = (leading.stop(), standby.stop());
}

#[test]
fn a_gap_declared_by_the_old_leader_marks_books_suspect() {
    let packets = day(3_000, 1, SESSION);
    let middle = packets.len() / 2;
    let incomplete = [&packets[..middle], &packets[middle + 4..]].concat();
    let (before, after) = packets.split_at(middle + 40);
    let fixture = GatewayFixture::new();
    let (leading, mut standby) =
        (InProcessGateway::start(fixture.peer(1), &wanted()), InProcessGateway::start(fixture.peer(2), &wanted()));
    let mut consumer = RecordingConsumer::open(&standby.fixture, 3);
    let venue = VenueSender::default();
    venue.send(leading.fixture.lines[0], &incomplete);
    venue.send(standby.fixture.lines[0], before);
    wait_until("the log has the session's end", || leading.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    let incomplete_log = leading.log();
    // The old leader has declared the gap and published everything that the standby has.
    let first: [u8; 8] = after[0].1[10..18].try_into().unwrap();
    let position = StreamPosition::at(session(0), Sequence(u64::from_be_bytes(first)));
    // A heartbeat covers messages that produced no output.
    standby.wait_until_ready(position);
    let count = incomplete_log.iter().take_while(|entry| entry.until() <= position).count();
    assert!(incomplete_log[..count].iter().any(declares_gap));
    ScriptedLeader::new(standby.fixture.output, OLD_EPOCH).publish(&incomplete_log[..count]);
    wait_until("the output of the leader is received", || {
        standby.channel_status().last_received == Some(incomplete_log[count - 1].until())
    });
    standby.update_state();
    standby.open_fence(NEW_EPOCH);
    venue.send(standby.fixture.lines[0], after);
    consumer.receive_to_session_end(session(0));
    let gaps = consumer.deliveries.iter().filter(|delivery| matches!(delivery, Delivery::Gap(..))).count();
    assert_eq!(gaps, 1, "only the old leader declares the gap");
    let complete_books = messages_of(&standby.log());
    let mut suspects = 0;
    for delivery in &consumer.deliveries {
        let Delivery::Message(session, sequence, records, is_suspect) = delivery else { continue };
        let is_right = complete_books.get(&(*session, *sequence)) == Some(records);
        assert!(is_right || *is_suspect, "{sequence} differs without a suspect mark");
        suspects += u32::from(*is_suspect && *sequence >= position.sequence.0);
    }
    assert!(
        suspects > 100,
        "consumers' books are wrong since the gap, and {suspects} of the successor's messages are marked suspect"
    );
    let _ = (leading.stop(), standby.stop());
}

fn declares_gap(entry: &LogEntry) -> bool {
    Frames::of_body(&entry.payload).any(|(header, _)| header.kind == FrameKind::Gap as u8)
}

#[test]
fn packets_lost_by_receiver_and_standby_are_republished() {
    let mut scenario = TakeoverScenario::new(&[day(3_000, 1, SESSION)]);
    let log = scenario.standby.log();
    // The network loses, for all receivers, the tenth packet before the leader's last one.
    let lost = 100;
    scenario.leader.publish(&log[..lost]);
    scenario.standby.wait_until_received(log[lost - 1].until());
    scenario.leader.publish(&log[lost + 1..lost + 10]);
    scenario.standby.open_fence(NEW_EPOCH);
    scenario.consumer.receive_to_session_end(session(0));
    assert_eq!(scenario.consumer.check_deliveries(&messages_of(&log)), Ok(()));
    let _ = scenario.standby.stop();
}

#[test]
fn a_forged_epoch_does_not_stop_the_standby_from_receiving() {
    let mut scenario = TakeoverScenario::new(&[day(1_000, 1, SESSION)]);
    let log = scenario.standby.log();
    scenario.leader.publish(&log[..20]);
    scenario.standby.wait_until_received(log[19].until());
    ScriptedLeader::new(scenario.standby.fixture.output, Epoch(u64::MAX)).publish(&log[200..201]);
    scenario.leader.publish(&log[20..30]);
    scenario.standby.wait_until_received(log[29].until());
    assert_eq!(scenario.standby.handle().epochs().highest_observed(), Some(OLD_EPOCH));
    assert_eq!(scenario.standby.handle().epochs().rejected_jumps(), 1);
    scenario.standby.open_fence(NEW_EPOCH);
    scenario.consumer.receive_to_session_end(session(0));
    assert_eq!(scenario.consumer.check_deliveries(&messages_of(&log)), Ok(()));
    let _ = scenario.standby.stop();
}

#[test]
fn a_leader_learns_of_a_higher_epoch_from_its_peer() {
    let ([first, second], _handles, _consumer) = pair();
    let above = Epoch::new(OLD_EPOCH.count() + 5, 2);
    second.handle().epochs().record_authenticated(above);
    wait_until("the leader has to go above it", || first.handle().epochs().highest_observed() == Some(above));
    assert!(second.handle().epochs().highest_observed() < Some(above), "the standby still accepts the leader");
    let _ = (first.stop(), second.stop());
}

#[test]
fn packets_below_the_own_epoch_are_dropped_as_receivers_drop_them() {
    let scenario = TakeoverScenario::new(&[day(1_000, 1, SESSION)]);
    let log = scenario.standby.log();
    scenario.leader.publish(&log[..20]);
    scenario.standby.wait_until_received(log[19].until());
    // This gateway has led, and its lease is over. Receivers that received it drop a leader that opens below.
    scenario.standby.handle().fence().open(NEW_EPOCH, MonoNs(0));
    let below = Epoch::new(NEW_EPOCH.count(), 1);
    assert!(OLD_EPOCH < below && below < NEW_EPOCH);
    ScriptedLeader::new(scenario.standby.fixture.output, below).publish(&log[20..30]);
    let next = Epoch::new(NEW_EPOCH.count() + 1, 1);
    ScriptedLeader::new(scenario.standby.fixture.output, next).publish(&log[20..21]);
    scenario.standby.wait_until_received(log[20].until());
    let drops = scenario.standby.stop().listener_counts.unwrap().drops;
    assert_eq!(drops.get(DropReason::EpochStale), 10);
}

#[test]
fn sigkill_of_the_leader_loses_and_duplicates_nothing() {
    let first = GatewayFixture::with_node(1);
    let second = first.peer_on_same_lines(2);
    let wanted = GatewayOptions { has_recovery: true, ..wanted() };
    let start = |fixture| GatewayProcess::start(fixture, &wanted, StartMode::OwnLog);
    let [mut leading, mut standby] = [&first, &second].map(start);
    let mut consumer = RecordingConsumer::open(&second, 3);
    let requests = first.requests.to_string();
    let feed = ["--messages", "40000", "--rate", "4000", "--request-server", &requests, "--linger-s", "60"];
    // No message is lost on both lines: on a crowded machine the server's answers may come too late, and the gateway would
    // rightly declare a gap.
    let damage = ["--loss", "0.05", "--duplicate", "0.05", "--reorder", "0.05", "--never-on-all"];
    leading.send_command("open 2561");
    let played = first.sim(&[feed.as_slice(), &damage].concat());
    consumer.receive_until("half of the messages are delivered", |deliveries| deliveries.len() > 20_000);
    leading.kill();
    standby.send_command("open 2818");
    consumer.receive_until("the session ends", |deliveries| matches!(deliveries.last(), Some(Delivery::End(_))));
    let _ = played.stop_with(mdgw_tests::process::Signal::Terminate);
    standby.send_command("stop");
    standby.assert_exit_success();
    let log = log_entries(&second);
    assert_eq!(consumer.check_deliveries(&messages_of(&log)), Ok(()));
    assert_eq!(log.last().map(|entry| entry.next.0), Some(40_001), "the log has the whole day");
    assert_eq!(consumer.epoch(), Some(Epoch(2818)));
}

/// Two linked gateways on the same lines. The first one leads.
fn pair() -> ([InProcessGateway; 2], [std::sync::Arc<mdgw_pair::pair_link::LinkHandle>; 2], RecordingConsumer) {
    let first = GatewayFixture::with_node(1);
    let second = first.peer_on_same_lines(2);
    let mut members = [first, second].map(|fixture| InProcessGateway::start(fixture, &wanted()));
    let consumer = RecordingConsumer::open(&members[1].fixture, 3);
    let [a, b] = &mut members;
    let handles = link([a, b]);
    members[0].open_fence(OLD_EPOCH);
    (members, handles, consumer)
}

#[test]
fn a_planned_hand_over_publishes_no_duplicates() {
    let ([first, second], handles, mut consumer) = pair();
    let packets = day(3_000, 1, SESSION);
    let (before, after) = packets.split_at(packets.len() / 2);
    let venue = VenueSender::default();
    venue.send(first.fixture.lines[0], before);
    let log_end = |first: &InProcessGateway| first.log().last().map(LogEntry::until);
    wait_until("all input is processed", || {
        let position = log_end(&first);
        position.is_some()
            && first.channel_status().published == position
            && second.channel_status().logged_through == position
    });
    wait_until("the peer has received the output", || {
        second.channel_status().received.received_through == log_end(&first)
    });

    first.handle().fence().close();
    first.handle().on_fence_change();
    let mut ended = None;
    wait_until("no send is outstanding", || {
        ended = first.handle().drained();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().get(&CHANNEL).copied(), log_end(&first));
    second.open_fence(NEW_EPOCH);
    venue.send(second.fixture.lines[0], after);
    consumer.receive_to_session_end(session(0));
    let log = second.log();
    assert_eq!(consumer.check_deliveries(&messages_of(&log)), Ok(()));
    assert_eq!(consumer.epoch(), Some(NEW_EPOCH));
    // Each gateway received other batches, so its packets are cut differently.
    let equal = messages_of(&first.log()) == messages_of(&log);
    assert!(equal, "the logs of both gateways hold the same messages, byte for byte");
    wait_until("windows are compared", || handles.iter().all(|handle| handle.counts().windows_equal > 0));
    assert!(handles.iter().all(|handle| handle.counts().windows_different == 0));
    let report = second.stop();
    assert_eq!(report.channels[0].published.catch_up_packets, 0, "nothing is republished");
    let _ = first.stop();
}

#[test]
fn the_leader_learns_whether_its_output_is_received() {
    let packets = day(1_000, 1, SESSION);
    for is_cut in [false, true] {
        let first = GatewayFixture::with_node(1);
        let mut second = first.peer_on_same_lines(2);
        if is_cut {
            // As with an unplugged cable: the leader sends to a group that the standby has not joined.
            second.output = GatewayFixture::new().output;
        }
        let mut members = [first, second].map(|fixture| InProcessGateway::start(fixture, &wanted()));
        let [a, b] = &mut members;
        let [handle, _] = link([a, b]);
        let [first, second] = members;
        first.open_fence(OLD_EPOCH);
        VenueSender::default().send(first.fixture.lines[0], &packets);
        wait_until("everything is published", || {
            let position = first.log().last().map(LogEntry::until);
            position.is_some()
                && first.channel_status().published == position
                && second.channel_status().logged_through == position
        });
        let report = || handle.peer_reports(CHANNEL).first().map(|report| report.positions).unwrap_or_default();
        wait_until("the standby receives its own probes", || report().receives_probe);
        if is_cut {
            assert_eq!(report().last_received, None, "the standby receives its own packets, and none of the leader");
            // Somebody else sends under the leader's epoch, at a position that was never published. After it, a position that
            // was: only a key would tell it from the leader's.
            let first_entry = second.log().remove(0);
            let (at, flags) = (Sequence(1 << 40), PacketFlags::HEARTBEAT);
            let beyond = LogEntry { first: at, next: at, flags, payload: Vec::new(), ..first_entry.clone() };
            let forger = ScriptedLeader::new(second.fixture.output, OLD_EPOCH);
            let packets = second.channel_status().packets;
            forger.publish(std::slice::from_ref(&beyond));
            wait_until("the forged packet has come", || second.channel_status().packets > packets);
            assert_eq!(second.channel_status().last_received, None);
            forger.publish(&[first_entry, beyond]);
            wait_until("the plausible packet is reported", || report().last_received.is_some());
            assert!(report().last_received < first.channel_status().published, "the position beyond is not");
        } else {
            wait_until("the published output is received", || {
                report().last_received == first.channel_status().published
            });
        }
        wait_until("the states of the channels are reported", || report().state == first.channel_status().state as u8);
        let _ = (first.stop(), second.stop());
    }
}

#[test]
fn a_joining_gateway_copies_the_session_from_its_peer() {
    let packets = day(3_000, 1, SESSION);
    let (before, after) = packets.split_at(packets.len() / 2);
    let first = GatewayFixture::with_node(1);
    let second = first.peer_on_same_lines(2);
    let mut members = vec![InProcessGateway::start(first, &wanted())];
    let venue = VenueSender::default();
    venue.send(members[0].fixture.lines[0], before);
    members.push(InProcessGateway::start_with(second, &wanted(), StartMode::WholeSession));
    let [a, b] = members.get_disjoint_mut([0, 1]).unwrap();
    let handles = link([a, b]);
    venue.send(members[0].fixture.lines[0], after);
    for member in &members {
        wait_until("the log has the session's end", || member.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    }
    assert_eq!(messages_of(&members[1].log()), messages_of(&members[0].log()));
    wait_until("windows are compared", || handles[0].counts().windows_equal > 0);
    for member in members {
        assert_eq!(member.stop().channels[0].counters.gaps, 0);
    }
}

/// A gateway requests missing messages from its peer for some tens of milliseconds. On a crowded machine an answer may take
/// longer, and the gateway rightly declares the gap. In that case the test retries.
#[test]
fn a_gap_on_all_lines_is_filled_from_the_peer() {
    let is_filled = (1..=ATTEMPTS).any(|attempt| {
        let gaps = gaps_after_peer_recovery();
        if gaps > 0 {
            print_to_stderr(&format!("attempt {attempt} is inconclusive: no answer came in time"));
        }
        gaps == 0
    });
    assert!(is_filled, "no attempt filled the gap from the peer");
}

fn gaps_after_peer_recovery() -> u64 {
    let packets = day(3_000, 1, SESSION);
    let middle = packets.len() / 2;
    let incomplete = [&packets[..middle], &packets[middle + 40..]].concat();
    let first = GatewayFixture::with_node(1);
    let second = first.peer(2);
    let mut members = [first, second].map(|fixture| InProcessGateway::start(fixture, &wanted()));
    let [a, b] = &mut members;
    let _links = link([a, b]);
    let venue = VenueSender::default();
    venue.send(members[0].fixture.lines[0], &packets);
    venue.send(members[1].fixture.lines[0], &incomplete);
    for member in &members {
        wait_until("the log has the session's end", || member.log().last().is_some_and(|entry| entry.flags.0 & 8 != 0));
    }
    let [whole, filled] = members.each_ref().map(|member| messages_of(&member.log()));
    let gaps = members.map(InProcessGateway::stop).iter().map(|report| report.channels[0].counters.gaps).sum();
    assert!(gaps > 0 || whole == filled, "no gap was declared, and the two logs differ");
    gaps
}

const ATTEMPTS: usize = 5;

#[test]
fn diverging_records_of_two_gateways_are_detected() {
    let packets = day(4_000, 1, SESSION);
    let first = GatewayFixture::with_node(1);
    let second = first.peer(2);
    let mut members = [first, second].map(|fixture| InProcessGateway::start(fixture, &wanted()));
    let [a, b] = &mut members;
    let handles = link([a, b]);
    // Change one bit of a price: one order in the middle of the day is added at another price.
    let changed: Vec<Packet> = {
        let mut packets = packets.clone();
        let added = |bytes: &[u8]| bytes.len() > 22 + 36 && bytes[22] == b'A' && bytes[21] == 36;
        let index = (packets.len() / 2..).find(|index| added(&packets[*index].1)).unwrap();
        let mut bytes = packets[index].1.to_vec();
        bytes[22 + 35] ^= 1;
        packets[index].1 = bytes.into();
        packets
    };
    let venue = VenueSender::default();
    venue.send(members[0].fixture.lines[0], &packets);
    venue.send(members[1].fixture.lines[0], &changed);
    let mut found = None;
    wait_until("the difference is found", || {
        found = handles.iter().find_map(|handle| handle.take_mismatch());
        found.is_some()
    });
    let found = found.unwrap();
    assert_eq!((found.channel, found.session), (CHANNEL, session(0)));
    assert_eq!(found.ours.len(), found.theirs.len());
    let different = found.ours.iter().zip(&found.theirs).filter(|(ours, theirs)| ours != theirs).count();
    assert!((1..=8).contains(&different), "more than a price differs: {different} bytes");
    let _ = members.map(InProcessGateway::stop);
}

#[test]
fn the_checker_detects_loss_duplicates_reordering_and_changes() {
    let message = |sequence: u64, byte| Delivery::Message(session(0), sequence, vec![byte], false);
    let expected = (1..4).map(|sequence| ((session(0), sequence), vec![7])).collect();
    let all = [message(1, 7), message(2, 7), message(3, 7)];
    assert_eq!(check_deliveries(&all, &expected), Ok(()));
    let [one, two, three] = all;
    for corrupted in [
        vec![one.clone(), three.clone()],
        vec![one.clone(), two.clone()],
        vec![one.clone(), two.clone(), two.clone(), three.clone()],
        vec![two.clone(), one.clone(), three.clone()],
        vec![one.clone(), message(2, 8), three.clone()],
        vec![one, two, three, Delivery::Gap(1, 2)],
    ] {
        assert!(check_deliveries(&corrupted, &expected).is_err(), "{corrupted:?}");
    }
}

/// A gateway in a separate process, which can be killed.
struct GatewayProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl GatewayProcess {
    fn start(fixture: &GatewayFixture, wanted: &GatewayOptions, beginning: StartMode) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "takeover::gateway_process_for_kill_test", "--ignored", "--nocapture"]);
        command.env("MDGW_TEST_CONFIG", text(&fixture.config(wanted)));
        if beginning == StartMode::WholeSession {
            command.env("MDGW_TEST_WHOLE_SESSION", "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, input, output };
        process.wait_for_reply("runs");
        process
    }

    fn send_command(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
        self.wait_for_reply(command.split(' ').next().unwrap());
    }

    /// Waits for a line that begins with `word`, among the lines of the test harness. Returns the rest of that line.
    fn wait_for_reply(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the gateway has ended");
            if let Some(rest) = line.strip_prefix("@ ").and_then(|text| text.strip_prefix(word)) {
                return rest.trim().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        let _ = self.child.wait().unwrap();
    }

    fn assert_exit_success(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        // In most tests the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "runs as the gateway process of another test, which kills it"]
fn gateway_process_for_kill_test() {
    let Some(config) = std::env::var_os("MDGW_TEST_CONFIG") else { return };
    let whole = std::env::var_os("MDGW_TEST_WHOLE_SESSION").is_some();
    let beginning = if whole { StartMode::WholeSession } else { StartMode::OwnLog };
    let gateway = start_gateway(config.as_ref(), beginning);
    let handle = gateway.group(GROUP).unwrap();
    let mut output = std::io::stdout();
    writeln!(output, "\n@ runs").unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let answer = match line.split_once(' ') {
            Some(("open", epoch)) => {
                handle.fence().open(Epoch(epoch.parse().unwrap()), MonoNs(u64::MAX));
                handle.on_fence_change();
                String::new()
            }
            _ => {
                let _ = gateway.stop().unwrap();
                writeln!(output, "@ stop").unwrap();
                return;
            }
        };
        writeln!(output, "@ {} {answer}", line.split(' ').next().unwrap()).unwrap();
    }
}
