//! Streams: what a receiver gets, datagram by datagram, and what it makes of it. Gateways and services are the product's own.

mod rebuilds;
mod scenario;
mod snapshot_group;
mod snapshots;

use mdgw_feeds::{
    channel::ChannelState,
    frame::FrameFlags,
    identity::Epoch,
    published::{
        packet::PacketFlags,
        probe,
        tag::{TagKey, TagUse},
    },
};

pub(crate) use self::scenario::{MS, Scenario, US};
use super::{
    data_files::{assert_current, assert_same_text, read},
    replay::replay,
    virtual_gateway::{DEFINITION, MBO, NEXT_DAY, VirtualGateway, tagged},
};

/// The file of streams.
pub(crate) const FILE: &str = "streams.txt";
/// The file of streams with a snapshot group.
pub(crate) const GROUP_FILE: &str = "snapshot_group.txt";

#[test]
fn streams_are_current() {
    let streams: Vec<String> = all().into_iter().map(Scenario::run).collect();
    assert_current(FILE, (HEADING.to_owned() + &streams.join("\n")).as_bytes());
}

#[test]
fn the_rust_receiver_delivers_what_the_streams_say() {
    let file = read(FILE);
    assert!(file.matches("\nstream ").count() >= 20);
    assert_same_text("streams.txt", &replay(&file), &file);
}

/// Streams with a snapshot group, in a file of their own, for receivers that use the group.
#[test]
fn streams_of_the_snapshot_group_are_current() {
    let streams: Vec<String> = snapshot_group::all().into_iter().map(Scenario::run).collect();
    assert_current(GROUP_FILE, (HEADING.to_owned() + &streams.join("\n")).as_bytes());
}

#[test]
fn the_rust_receiver_delivers_what_the_streams_of_the_snapshot_group_say() {
    let file = read(GROUP_FILE);
    assert!(file.matches("\nstream ").count() >= 7);
    assert_same_text(GROUP_FILE, &replay(&file), &file);
    let changed = file.replacen("> snapshot channel=2 ", "> snapshot channel=3 ", 1);
    assert!(changed != file && replay(&changed) != changed);
}

/// A text that differs anywhere is noticed.
#[test]
fn a_changed_stream_is_noticed() {
    let file = read(FILE);
    let changes = [
        ("> lost channel=2 first=", "> lost channel=2 first=1"),
        ("> end channel=2\n", ""),
        ("> books channel=2 state=right", "> books channel=2 state=suspect"),
        ("> repeated channel=2", "> message channel=2"),
    ];
    for (from, to) in changes {
        let changed = file.replacen(from, to, 1);
        assert!(changed != file && replay(&changed) != changed, "{from}");
    }
}

const HEADING: &str = "# Streams for receivers: see README.md. Made by the tests: do not edit.\n\n";

/// Epochs: of the first leader, of its successor, of a gateway that leads no more, and of a forger.
const FIRST: Epoch = Epoch(7 << 8 | 1);
const SECOND: Epoch = Epoch(8 << 8 | 2);
const FORGED_EPOCH: Epoch = Epoch(900_000_000 << 8 | 9);

const NONE: PacketFlags = PacketFlags(0);
const PLAIN: FrameFlags = FrameFlags(0);
const ONE_RECORD: (u16, usize, u8) = (1, 56, MBO);
/// More than fits a packet of [`BODY`] bytes.
const LARGE: (u16, usize, u8) = (14, 56, MBO);
const BODY: usize = 400;
const SMALL_DEFINITION: (u16, usize, u8) = (1, 32, DEFINITION);

/// A gateway that has published messages `1..next` of session 0, two in each packet.
fn simple_gateway(next: u64) -> VirtualGateway {
    let mut gateway = VirtualGateway::new(BODY);
    gateway.begin_session(0);
    add_messages(&mut gateway, 1..next);
    gateway
}

fn add_messages(gateway: &mut VirtualGateway, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        gateway.message(sequence, ONE_RECORD, PLAIN);
        if sequence % 2 == 0 {
            gateway.flush();
        }
    }
    gateway.flush();
}

fn end(gateway: &mut VirtualGateway) {
    gateway.end_session();
}

/// Four messages, the third of which has several parts. Its first part also covers the second message, which produced nothing.
fn split_gateway() -> VirtualGateway {
    split_gateway_with(BODY, true)
}

/// The same with packets of that size. If message 1 is not alone, its packet covers message 2 too.
fn split_gateway_with(body: usize, is_first_alone: bool) -> VirtualGateway {
    let mut gateway = VirtualGateway::new(body);
    gateway.begin_session(0);
    gateway.message(1, ONE_RECORD, PLAIN);
    if is_first_alone {
        gateway.flush();
    }
    gateway.cover(3);
    gateway.message(3, LARGE, PLAIN);
    gateway.message(4, ONE_RECORD, PLAIN);
    end(&mut gateway);
    gateway
}

/// Every named stream.
fn all() -> Vec<Scenario> {
    [
        one_line(),
        two_lines(),
        missing_messages(),
        sessions(),
        late_starts(),
        snapshots::all(),
        rebuilds::all(),
        epochs(),
        tags(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn one_line() -> Vec<Scenario> {
    let mut all = Vec::new();

    let mut gateway = VirtualGateway::new(BODY);
    gateway.begin_session(0);
    gateway.message(1, ONE_RECORD, PLAIN);
    gateway.message(2, (2, 56, MBO), PLAIN);
    gateway.flush();
    gateway.cover(4);
    gateway.message(4, ONE_RECORD, PLAIN);
    gateway.flush();
    gateway.cover(9);
    gateway.commit_covered();
    gateway.message(9, (0, 0, 0), FrameFlags::SUSPECT);
    gateway.message(10, ONE_RECORD, FrameFlags::SUSPECT);
    end(&mut gateway);
    let mut stream = Scenario::new(
        "in_order",
        "Messages, messages without output (3, and 5 to 8 in the range of a heartbeat), suspect messages, end of the session.",
        "",
    );
    stream.publish_all(&gateway, FIRST, NONE, &[0]);
    stream.heartbeat(&gateway, FIRST, &[0]);
    all.push(stream);

    let mut gateway = VirtualGateway::new(BODY);
    gateway.begin_session(0);
    add_messages(&mut gateway, 1..3);
    gateway.gap(3, 6);
    gateway.state(6, ChannelState::Gap);
    gateway.message(6, ONE_RECORD, FrameFlags::SUSPECT);
    gateway.flush();
    gateway.message(4, ONE_RECORD, FrameFlags::LATE_FILL);
    gateway.message(7, ONE_RECORD, FrameFlags::SUSPECT);
    gateway.flush();
    gateway.state(8, ChannelState::Gap);
    gateway.state(8, ChannelState::Live);
    gateway.message(8, ONE_RECORD, PLAIN);
    gateway.flush();
    let mut stream = Scenario::new(
        "declared_gap",
        "The gateway declares [3, 6) missing. Its content arrives late and is dropped. A state is delivered when it changes.",
        "",
    );
    stream.publish_all(&gateway, FIRST, NONE, &[0]);
    all.push(stream);

    let mut stream = Scenario::new("parts", "Message 3 has three parts; the first also covers message 2.", "");
    stream.publish_all(&split_gateway(), FIRST, NONE, &[0]);
    all.push(stream);

    let mut stream = Scenario::new(
        "message_too_large",
        "A receiver with room for 500 bytes of one message reports a larger one as lost.",
        "message_bytes_max=500",
    );
    stream.publish_all(&split_gateway(), FIRST, NONE, &[0]);
    all.push(stream);

    let gateway = simple_gateway(5);
    let mut stream = Scenario::new(
        "malformed_repetitions",
        "Malformed packets that cover what was delivered: one byte, and 31 bytes, in place of a frame.",
        "",
    );
    for index in [0, 1] {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    let packet = gateway.packet(&gateway.entries()[0], FIRST, NONE, scenario::START_TIME);
    for frames_bytes in [1, 31] {
        let mut cut = packet[..64 + usize::from(frames_bytes)].to_vec();
        cut[10..14].copy_from_slice(&[1, 0, frames_bytes, 0]);
        stream.send_next(cut);
    }
    all.push(stream);

    let gateway = simple_gateway(3);
    let mut stream =
        Scenario::new("failed_channel", "A channel out of service says so with each heartbeat: once is enough.", "");
    stream.publish_all(&gateway, FIRST, NONE, &[0]);
    stream.failed_heartbeat(&gateway, FIRST, &[0]);
    stream.failed_heartbeat(&gateway, FIRST, &[0]);
    all.push(stream);

    let gateway = simple_gateway(3);
    let mut stream = Scenario::new(
        "probes",
        "On the host of a gateway its probes arrive too, and are ignored. What only looks like one is refused.",
        "",
    );
    stream.send_next(probe::to_bytes(1).into());
    stream.publish_all(&gateway, FIRST, NONE, &[0]);
    stream.send_next(probe::to_bytes(2).into());
    stream.send_next(b"MDGP\x02\0\0\x01".to_vec());
    stream.send_next(b"MDGP\x02\0\0\0\0".to_vec());
    all.push(stream);
    all
}

fn two_lines() -> Vec<Scenario> {
    let mut all = Vec::new();

    let mut gateway = simple_gateway(17);
    end(&mut gateway);
    let mut stream = Scenario::new(
        "lines_fill_each_other",
        "Each line loses other packets and sends one twice; line 1 is 0.3 ms behind. Nothing is missing.",
        "lines=2",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| [3, 4].contains(&index));
    stream.publish_lossy(&gateway, FIRST, 1, 300 * US, &|index| [1, 6].contains(&index));
    stream.repeat_last();
    all.push(stream);

    let mut stream =
        Scenario::new("reordered", "One line brings packets in another order, within the time that a gap waits.", "");
    for (slot, index) in (0..).zip([0, 2, 1, 5, 4, 3, 6, 7]) {
        stream.publish(slot * 100 * US, &gateway, index, FIRST, NONE, &[0]);
    }
    all.push(stream);

    let mut stream = Scenario::new(
        "takeover_in_a_message",
        "The leader ends after the second part of message 3. The next one repeats the message, with other borders before it.",
        "lines=2",
    );
    take_over_in_a_message(&mut stream, &split_gateway(), &split_gateway_with(BODY, false));
    all.push(stream);

    let mut stream = Scenario::new(
        "takeover_with_another_packet_size",
        "The gateways differ in the size of their packets, which they must not: the next one's second part is the last. The message is lost, \
         and the loss is reported.",
        "lines=2",
    );
    take_over_in_a_message(&mut stream, &split_gateway(), &split_gateway_with(520, true));
    all.push(stream);

    let mut stream = Scenario::new(
        "takeover_with_larger_packets",
        "The next one's packets are larger: message 3 is whole in its packet, and message 4 follows. The parts of message 3 stay without \
         an end: its loss is reported before message 4 is delivered.",
        "lines=2",
    );
    take_over_in_a_message(&mut stream, &split_gateway(), &split_gateway_with(1_200, true));
    all.push(stream);

    let mut stream =
        Scenario::new("takeover_with_larger_packets_and_a_gap", "The same, and a gap follows message 3.", "lines=2");
    let mut other = VirtualGateway::new(1_200);
    other.begin_session(0);
    other.message(1, ONE_RECORD, PLAIN);
    other.flush();
    other.cover(3);
    other.message(3, LARGE, PLAIN);
    other.gap(4, 6);
    end(&mut other);
    take_over_in_a_message(&mut stream, &split_gateway(), &other);
    all.push(stream);

    let mut other = VirtualGateway::new(BODY);
    other.begin_session(0);
    for sequence in 1..13 {
        other.message(sequence, ONE_RECORD, PLAIN);
        if sequence % 3 == 0 {
            other.flush();
        }
    }
    end(&mut other);
    let mut stream = Scenario::new(
        "takeover_repeats",
        "The successor's packets have other borders and begin before the end of what was received: nothing is delivered twice. \
         The old leader's last packet is stale.",
        "lines=2",
    );
    let one = simple_gateway(13);
    for index in 0..4 {
        stream.publish_next(&one, index, FIRST, NONE, &[0, 1]);
    }
    for index in 2..other.entries().len() {
        stream.publish_next(&other, index, SECOND, PacketFlags::RETRANSMISSION, &[0, 1]);
    }
    stream.publish_next(&one, 4, FIRST, NONE, &[0]);
    all.push(stream);
    all
}

/// The first gateway publishes message 1 and two parts of message 3. The next one repeats what is not covered.
fn take_over_in_a_message(stream: &mut Scenario, one: &VirtualGateway, other: &VirtualGateway) {
    for index in 0..3 {
        stream.publish_next(one, index, FIRST, NONE, &[0, 1]);
    }
    stream.heartbeat_at(one, 2, SECOND, &[0, 1]);
    for index in 1..other.entries().len() {
        stream.publish_next(other, index, SECOND, PacketFlags::RETRANSMISSION, &[0, 1]);
    }
    stream.publish_next(one, 3, FIRST, NONE, &[0]);
}

fn missing_messages() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut gateway = simple_gateway(17);
    end(&mut gateway);

    let mut stream = Scenario::new(
        "lost_without_service",
        "Packets 2 and 5 are on no line. Without a service they are lost when their gap has waited for 2 ms.",
        "lines=2",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| [2, 5].contains(&index));
    stream.publish_lossy(&gateway, FIRST, 1, 20 * US, &|index| [2, 5].contains(&index));
    all.push(stream);

    let mut stream = Scenario::new("lost_part", "The second part of message 3 is missing: the message is lost.", "");
    stream.publish_lossy(&split_gateway(), FIRST, 0, 0, &|index| index == 2);
    all.push(stream);

    let lossy = |index: usize| [1, 2, 5, 6].contains(&index);
    let mut stream = Scenario::new(
        "requested",
        "Missing messages are requested from the service, in the order of their gaps, one request at a time.",
        "services=1",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &lossy);
    stream.serve(simple_ended(17));
    all.push(stream);

    let mut stream = Scenario::new(
        "requested_from_the_next_service",
        "The first service never answers. After a timeout of 50 ms the same request goes to the other one, which is then kept.",
        "services=2",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &lossy);
    stream.serve(simple_ended(17));
    stream.serve(simple_ended(17));
    stream.silence(0);
    all.push(stream);

    let mut stream = Scenario::new(
        "answer_in_pieces",
        "A service sends four packets for each request. The receiver requests the rest.",
        "services=1",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| (1..7).contains(&index));
    stream.serve(simple_ended(17));
    all.push(stream);

    let mut stream = Scenario::new(
        "requested_part",
        "One part of message 3 is requested. The answer has the packets that cover any of the message.",
        "services=1",
    );
    let mut served = split_gateway();
    served.set_epoch(FIRST);
    stream.publish_lossy(&split_gateway(), FIRST, 0, 0, &|index| index == 2);
    stream.serve(served);
    all.push(stream);

    let mut stream = Scenario::new(
        "no_service_has_it",
        "The service's log has only part of what is missing. The rest is lost after three attempts.",
        "services=1 attempts=3",
    );
    let mut partial = simple_gateway(9);
    partial.set_epoch(FIRST);
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| [3, 5].contains(&index));
    stream.serve(partial);
    all.push(stream);

    let mut stream = Scenario::new(
        "service_has_nothing",
        "The first service's log has an earlier session alone: its answer is [0, 0), which is valid. The second one has what is missing.",
        "services=2",
    );
    let mut later = simple_ended(5);
    later.begin_session(1);
    add_messages(&mut later, 1..9);
    later.set_epoch(FIRST);
    let entries = later.entries();
    let of_later = (0..entries.len()).filter(|index| entries[*index].session.restart == 1);
    for (number, index) in of_later.enumerate() {
        if number != 1 {
            stream.publish_next(&later, index, FIRST, NONE, &[0]);
        }
    }
    stream.serve(simple_ended(5));
    stream.serve(later);
    all.push(stream);

    let mut stream = Scenario::new(
        "announced_by_a_heartbeat",
        "The last packets are lost on the line. A heartbeat announces them, and they are requested.",
        "services=1",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| (6..8).contains(&index));
    stream.serve(simple_ended(17));
    all.push(stream);

    let mut stream = Scenario::new(
        "small_window",
        "More packets wait behind a gap than the window of 64 holds. Those without room are refused and requested.",
        "services=1 window=64",
    );
    let mut long = simple_gateway(161);
    long.set_epoch(FIRST);
    stream.publish_lossy(&simple_gateway(161), FIRST, 0, 0, &|index| index == 4);
    stream.serve(long);
    all.push(stream);

    let mut stream = Scenario::new(
        "small_window_without_service",
        "Without a service a full window declares its first gap lost at once.",
        "window=64",
    );
    stream.interval = US;
    stream.publish_lossy(&simple_gateway(161), FIRST, 0, 0, &|index| [4, 5, 8].contains(&index));
    all.push(stream);

    let mut stream = Scenario::new(
        "unrequested_answer",
        "Ends of answers far ahead from the service's address: the first one while nothing is requested, the other while a request is \
         open. Both are refused.",
        "services=1",
    );
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| index == 4);
    for at in [2_500 * US, 7_200 * US] {
        stream.forged_answer_end(at, &gateway, 1 << 46, FIRST);
    }
    stream.serve(simple_ended(17));
    all.push(stream);

    let mut stream = Scenario::new(
        "sequence_jump",
        "One packet far ahead is refused, since one forged sequence must not make a gap. Three that continue each other are believed.",
        "",
    );
    stream.publish_next(&gateway, 0, FIRST, NONE, &[0]);
    stream.far_heartbeat(&gateway, 100_000_000, FIRST);
    stream.publish_next(&gateway, 1, FIRST, NONE, &[0]);
    for _ in 0..3 {
        stream.far_heartbeat(&gateway, 100_000_000, FIRST);
    }
    all.push(stream);
    all
}

/// A service that knows the end of the session.
fn simple_ended(next: u64) -> VirtualGateway {
    let mut gateway = simple_gateway(next);
    gateway.end_session();
    gateway.set_epoch(FIRST);
    gateway
}

/// A gateway that has followed three sessions: the second one was abandoned by the venue, the third one is open.
fn three_sessions() -> VirtualGateway {
    let mut gateway = simple_gateway(7);
    gateway.end_session();
    gateway.begin_session(1);
    add_messages(&mut gateway, 1..6);
    gateway.begin_session(2);
    add_messages(&mut gateway, 1..8);
    gateway.set_epoch(FIRST);
    gateway
}

fn sessions() -> Vec<Scenario> {
    let mut all = Vec::new();
    let gateway = three_sessions();
    let of_session = |restart: u32| {
        let entries = gateway.entries();
        (0..entries.len()).filter(|index| entries[*index].session.restart == restart).collect::<Vec<_>>()
    };

    let mut stream = Scenario::new(
        "sessions_without_service",
        "The venue begins again at sequence 1 twice. The end of the second session is not received, nor its last packet.",
        "",
    );
    for index in [of_session(0), of_session(1)[..2].to_vec(), of_session(2)].concat() {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    let stale = of_session(1)[2];
    stream.publish_next(&gateway, stale, FIRST, NONE, &[0]);
    all.push(stream);

    let mut stream = Scenario::new(
        "session_closed_from_the_log",
        "The end of the second session is not received. The service knows where it ended.",
        "services=1",
    );
    for index in [of_session(0), of_session(1)[..2].to_vec(), of_session(2)].concat() {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.serve(three_sessions());
    all.push(stream);

    let mut stream = Scenario::new(
        "forged_end_of_session",
        "Packets say that the session has ended where it goes on: one is far ahead, the other before what was received. Both are ignored. \
         The real end is not received, so it is asked for when the next session begins.",
        "services=1",
    );
    let first_session = of_session(0);
    for index in &first_session[..2] {
        stream.publish_next(&gateway, *index, FIRST, NONE, &[0]);
    }
    for next in [100_000_000, 3] {
        stream.end_heartbeat(&gateway, next, FIRST);
    }
    for index in of_session(1) {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.serve(three_sessions());
    all.push(stream);

    let mut stream = Scenario::new(
        "session_nobody_received",
        "Nothing of the second session is received. It is in the service's log, and is delivered before the third.",
        "services=2",
    );
    for index in [of_session(0), of_session(2)].concat() {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.serve(three_sessions());
    stream.serve(three_sessions());
    all.push(stream);

    let mut two_days = simple_gateway(7);
    two_days.end_session();
    two_days.begin_session(NEXT_DAY);
    add_messages(&mut two_days, 1..6);
    two_days.set_epoch(FIRST);
    let mut stream = Scenario::new(
        "next_day",
        "The last packet of a day and its end are not received. The service knows the end, and that no session lies between.",
        "services=1",
    );
    for index in [0, 1, 4, 5] {
        stream.publish_next(&two_days, index, FIRST, NONE, &[0]);
    }
    stream.serve(two_days);
    all.push(stream);

    let mut stream = Scenario::new(
        "session_end_unknown",
        "The service has lost its log and never knows where the first session ended. The receiver goes on after its attempts.",
        "services=1 attempts=2",
    );
    let mut empty = VirtualGateway::new(BODY);
    empty.set_epoch(FIRST);
    for index in [of_session(0)[..2].to_vec(), of_session(2)].concat() {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.serve(empty);
    all.push(stream);
    all
}

/// Messages, the first two of which define instruments.
fn gateway_with_definitions() -> VirtualGateway {
    let mut gateway = VirtualGateway::new(BODY);
    gateway.begin_session(0);
    gateway.message(1, SMALL_DEFINITION, PLAIN);
    gateway.message(2, SMALL_DEFINITION, PLAIN);
    gateway.flush();
    add_messages(&mut gateway, 3..11);
    gateway.set_epoch(FIRST);
    gateway
}

fn late_starts() -> Vec<Scenario> {
    let mut all = Vec::new();
    let gateway = gateway_with_definitions();
    let from_4 = |stream: &mut Scenario| {
        for index in 3..gateway.entries().len() {
            stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
        }
        stream.heartbeat(&gateway, FIRST, &[0]);
    };

    let mut stream = Scenario::new(
        "late_start_without_service",
        "A receiver that comes late and has no service begins with the first whole message that it receives.",
        "",
    );
    from_4(&mut stream);
    all.push(stream);

    let mut stream = Scenario::new(
        "late_start_in_a_message",
        "A receiver that comes in the middle of a message begins with the next one.",
        "",
    );
    stream.publish_lossy(&split_gateway(), FIRST, 0, 0, &|index| index < 2);
    all.push(stream);

    for (name, about, start) in [
        ("late_start_session", "A receiver that comes late asks for definitions and for the whole session.", "session"),
        ("late_start_live", "A receiver that wants only what is published now still gets the definitions.", "live"),
        ("late_start_day", "Ended sessions of the date come first; there is none.", "day"),
    ] {
        let mut stream = Scenario::new(name, about, &format!("services=1 start={start}"));
        from_4(&mut stream);
        stream.serve(gateway_with_definitions());
        all.push(stream);
    }

    let mut stream = Scenario::new(
        "late_start_three_sessions",
        "A receiver comes in the third session of the day and gets all three.",
        "services=1 start=day",
    );
    let sessions = three_sessions();
    let last = sessions.entries().len() - 1;
    stream.publish_next(&sessions, last, FIRST, NONE, &[0]);
    stream.heartbeat(&sessions, FIRST, &[0]);
    stream.serve(three_sessions());
    all.push(stream);

    let mut stream = Scenario::new(
        "late_start_unanswered",
        "No service answers at the start: the receiver begins with what it receives.",
        "services=1 attempts=2",
    );
    stream.interval = 150 * MS;
    from_4(&mut stream);
    stream.serve(gateway_with_definitions());
    stream.silence(0);
    all.push(stream);

    for (name, about, is_silent) in [
        (
            "late_start_definitions_of_two_logs",
            "Each service has a definition that the other lacks, of message 1 and of message 2. Each is asked from its first one on.",
            false,
        ),
        (
            "late_start_definitions_of_one_log",
            "The second service does not answer. After two rounds the receiver goes on without its definitions, and counts that.",
            true,
        ),
    ] {
        let mut stream = Scenario::new(name, about, "services=2");
        from_4(&mut stream);
        for lacking in [2, 1] {
            let mut served = VirtualGateway::new(BODY);
            served.begin_session(0);
            for sequence in (1..3).filter(|sequence| *sequence != lacking) {
                served.cover(sequence);
                served.message(sequence, SMALL_DEFINITION, PLAIN);
            }
            served.cover(3);
            served.flush();
            add_messages(&mut served, 3..11);
            served.set_epoch(FIRST);
            stream.serve(served);
        }
        if is_silent {
            stream.silence(1);
        }
        all.push(stream);
    }

    let mut stream = Scenario::new(
        "late_start_two_logs",
        "One service's log begins later than the other's. The receiver starts at the oldest message of both.",
        "services=2",
    );
    from_4(&mut stream);
    let mut late = VirtualGateway::new(BODY);
    late.begin_session_at(0, 5);
    add_messages(&mut late, 5..11);
    late.set_epoch(FIRST);
    stream.serve(late);
    stream.serve(gateway_with_definitions());
    all.push(stream);
    all
}

fn epochs() -> Vec<Scenario> {
    let mut all = Vec::new();
    let gateway = simple_gateway(17);

    let mut stream = Scenario::new(
        "forged_epoch_while_running",
        "After the start window of 3 s a packet of an impossible epoch is refused, and the stream goes on.",
        "",
    );
    stream.interval = 2_000 * MS;
    for index in 0..3 {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.publish_next(&gateway, 3, FORGED_EPOCH, NONE, &[0]);
    stream.publish_next(&gateway, 3, FIRST, NONE, &[0]);
    all.push(stream);

    let mut stream = Scenario::new(
        "rival_epochs",
        "Within the start window a receiver without a service cannot tell which epoch is forged: it refuses everything and says so.",
        "",
    );
    stream.publish_next(&gateway, 0, FORGED_EPOCH, NONE, &[0]);
    stream.publish_next(&gateway, 0, FIRST, NONE, &[0]);
    stream.publish_next(&gateway, 1, FIRST, NONE, &[0]);
    all.push(stream);

    let mut stream = Scenario::new(
        "rival_epochs_decided_by_a_service",
        "With a service the receiver holds its first packets until the service names the epoch. Forged ones are then refused.",
        "services=1 epoch_nonce=77777777777 request_nonce=55",
    );
    stream.publish_next(&gateway, 0, FORGED_EPOCH, NONE, &[0]);
    for index in 0..4 {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.serve(simple_ended(17));
    all.push(stream);

    let mut stream = Scenario::new(
        "rival_epochs_and_no_answer",
        "No service answers, and there are rivals: the receiver gives up after its attempts.",
        "services=1 attempts=2",
    );
    stream.publish_next(&gateway, 0, FORGED_EPOCH, NONE, &[0]);
    stream.publish_next(&gateway, 0, FIRST, NONE, &[0]);
    stream.serve(simple_ended(17));
    stream.silence(0);
    all.push(stream);

    let mut stream = Scenario::new(
        "epoch_answer_of_another_request",
        "An answer about the epoch with other numbers than the request's is refused, as is any other answer before the start.",
        "services=1 epoch_nonce=77777777777 request_nonce=55",
    );
    stream.publish_next(&gateway, 0, FIRST, NONE, &[0]);
    stream.forged_epoch_answer(100 * US, &gateway, 4_711, FORGED_EPOCH);
    stream.serve(simple_ended(17));
    all.push(stream);

    let mut stream = Scenario::new(
        "service_contradicts_the_start",
        "No service answers in time, so the receiver starts with the epoch that it sees. A late answer names another one.",
        "services=1 attempts=2 epoch_nonce=77777777777",
    );
    stream.publish_next(&gateway, 0, FORGED_EPOCH, NONE, &[0]);
    stream.forged_epoch_answer(400 * MS, &gateway, 77_777_777_777 >> 18, FIRST);
    stream.serve(simple_ended(17));
    stream.silence(0);
    all.push(stream);
    all
}

fn tags() -> Vec<Scenario> {
    let mut all = Vec::new();
    let gateway = simple_gateway(17);
    let [key, other] = [[0x0b; 32], [0x0c; 32]].map(|key| TagKey::new(&key));
    let keys = format!("keys={}", "0b".repeat(32));

    let mut stream = Scenario::new(
        "tags",
        "A receiver with a key takes packets with its tag, and refuses packets without one, with another key's, with a changed byte, \
         and with the tag of an answer.",
        &keys,
    );
    let packet = |index: usize| gateway.packet(&gateway.entries()[index], FIRST, NONE, scenario::START_TIME);
    stream.send_next(tagged(&packet(0), &key, TagUse::Published));
    stream.send_next(packet(1));
    stream.send_next(tagged(&packet(1), &other, TagUse::Published));
    let mut changed = tagged(&packet(1), &key, TagUse::Published);
    changed[100] ^= 1;
    stream.send_next(changed);
    stream.send_next(tagged(&packet(1), &key, TagUse::Answer { nonce: 0 }));
    stream.send_next(tagged(&packet(1), &key, TagUse::Published));
    all.push(stream);

    let mut stream = Scenario::new(
        "two_keys",
        "While keys change, a receiver has both. While a deployment changes to tags, it accepts packets without one.",
        &format!("keys={},{} accepts_untagged=1", "0b".repeat(32), "0c".repeat(32)),
    );
    stream.send_next(tagged(&packet(0), &key, TagUse::Published));
    stream.send_next(tagged(&packet(1), &other, TagUse::Published));
    stream.send_next(packet(2));
    all.push(stream);

    let mut stream =
        Scenario::new("without_a_key", "A receiver without a key reads packets with and without tags.", "");
    stream.send_next(tagged(&packet(0), &key, TagUse::Published));
    stream.send_next(packet(1));
    all.push(stream);

    let mut stream = Scenario::new(
        "tagged_answers",
        "The tag of an answer covers the nonce of its request. The answer to another receiver's request is refused.",
        &format!("services=1 {keys} request_nonce=1234567890123456789 epoch_nonce=9876543210987654321"),
    );
    stream.key = Some(key.clone());
    stream.publish_lossy(&gateway, FIRST, 0, 0, &|index| index == 2);
    let answer = gateway.packet(&gateway.entries()[2], FIRST, PacketFlags::RETRANSMISSION, scenario::START_TIME);
    stream.send_service(3_500 * US, 0, tagged(&answer, &key, TagUse::Answer { nonce: 1 }));
    stream.serve(simple_ended(17));
    all.push(stream);
    all
}
