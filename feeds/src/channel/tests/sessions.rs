//! Sessions, gaps, states: a channel's output besides its messages.

use expect_test::expect;
use zerocopy::IntoBytes as _;

use super::{input::*, *};
use crate::venue::iex::admin::SystemEvent;

const MBO: SchemaSet = SchemaSet::MBO;

fn order(id: u64) -> Vec<u8> {
    add(7, id, BUY, 100, 100_000)
}

fn itch() -> (ChannelHarness, Stream) {
    (ChannelHarness::new(ChannelHarness::config(Feed::NasdaqItch, MBO)), Stream::new(Feed::NasdaqItch))
}

#[test]
fn a_gap_is_declared_with_its_bounds_and_every_book_is_suspect() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    drop(stream.packet(&[order(2), order(3)]));
    harness.datagram(Line::A, &stream.packet(&[order(4)])).expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    harness.wait().expect_output(&expect![[r#"
        gap [2, 4)
        4 delta 7000 suspect
          mbo A B 10 x100 #4 L
    "#]]);
    let late = Stream { first: 2, ..Stream::new(Feed::NasdaqItch) }.packet(&[order(2), order(3)]);
    harness.datagram(Line::B, &late).expect_output(&expect![[r#""#]]);
    assert_eq!(harness.channel.arbiter_drops().get(DropReason::LateAfterGap), 2);
    assert_eq!((harness.channel.counters().gaps, harness.channel.counters().gap_messages), (1, 2));
    assert_eq!(harness.output.covered, Some(Sequence(5)));
}

#[test]
fn a_gap_filled_by_the_other_line_changes_no_output() {
    let (mut harness, mut stream) = itch();
    let packets = stream.packets(&[order(1), order(2), order(3)], 1);
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]).datagram(Line::B, &packets[1]);
    harness.wait().expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
        2 delta 7000
          mbo A B 10 x100 #2 L
        3 delta 7000
          mbo A B 10 x100 #3 L
    "#]]);
}

#[test]
fn a_heartbeat_with_a_later_sequence_reveals_a_gap() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.heartbeat());
    drop(stream.packet(&[order(1)]));
    harness.datagram(Line::A, &stream.heartbeat()).wait().expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        state Live
        gap [1, 2)
    "#]]);
    assert_eq!(harness.channel.counters().heartbeats, 2);
}

#[test]
fn a_late_start_begins_at_the_first_received_sequence_with_suspect_books() {
    let (mut harness, mut stream) = itch();
    stream.first = 500;
    harness.datagram(Line::A, &stream.packet(&[order(1)])).expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 500
        500 delta 7000 suspect
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    assert_eq!(harness.channel.counters().late_starts, 1);
    // TOPS: an instrument without a quote so far is suspect too, until its first quote.
    let mut tops = ChannelHarness::new(ChannelHarness::config(Feed::IexTops, SchemaSet::MBP_1));
    let mut stream = Stream { first: 500, ..Stream::new(Feed::IexTops) };
    tops.datagram(
        Line::A,
        &stream.packet(&[trade("ZIEXT", 1, 1), quote("ZIEXT", (1, 1), (1, 2)), trade("ZIEXT", 1, 1)]),
    );
    let suspects: Vec<bool> = tops.output.messages().iter().map(|frame| frame.is_suspect).collect();
    assert_eq!(suspects, [true, false, false]);
}

#[test]
fn a_beginning_that_no_source_has_is_a_late_start_and_no_gap() {
    // A gateway that joins a peer requests the whole session. The peer began late itself.
    let joining = || {
        let mut config = ChannelHarness::config(Feed::NasdaqItch, SchemaSet::MBO);
        config.late_start = LateStart::WholeSession;
        config
    };
    let late = || Stream { first: 500, ..Stream::new(Feed::NasdaqItch) };
    let counted = |harness: &ChannelHarness| {
        let counters = harness.channel.counters();
        (counters.late_starts, counters.gaps, counters.gap_messages)
    };
    let (mut harness, mut stream) = (ChannelHarness::new(joining()), late());
    harness.datagram(Line::A, &stream.packet(&[order(1)])).wait().expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        gap [1, 500)
        500 delta 7000 suspect
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    assert_eq!(counted(&harness), (1, 0, 0));
    assert!(harness.channel.has_missed_input());
    // A later loss is a gap as ever.
    drop(stream.packet(&[order(2)]));
    harness.datagram(Line::A, &stream.packet(&[order(3)])).wait();
    assert_eq!(counted(&harness), (1, 1, 1));

    // The gateway waited for the session: its first messages are lost.
    let (mut harness, mut stream) = (ChannelHarness::new(joining()), Stream::new(Feed::NasdaqItch));
    harness.datagram(Line::A, &stream.heartbeat());
    drop(stream.packet(&[order(1)]));
    harness.datagram(Line::A, &stream.packet(&[order(2)])).wait();
    assert_eq!(counted(&harness), (0, 1, 1));

    // A restarted gateway has published the session up to its log's end. Its books lack the beginning; receivers lack
    // nothing, unless the beginning reaches behind that end.
    let (mut first, stream) = (ChannelHarness::new(joining()), Stream::new(Feed::NasdaqItch));
    first.datagram(Line::A, &stream.heartbeat());
    let (session, _) = first.output.sessions[0];
    for (log_end, expected) in [(500, (1, 0, 0)), (499, (0, 1, 499))] {
        let log_position = Some((session, Sequence(log_end)));
        let mut harness = ChannelHarness::new(ChannelConfig { log_position, ..joining() });
        harness.datagram(Line::A, &late().packet(&[order(1)])).wait();
        assert_eq!(counted(&harness), expected, "log to {log_end}");
    }
}

#[test]
fn a_gap_published_by_the_peer_marks_books_suspect_in_its_session() {
    let (mut before, mut stream) = itch();
    let first = stream.packet(&[order(1)]);
    before.datagram(Line::A, &first);
    let (session, _) = before.output.sessions[0];
    for (reported, is_suspect) in [(session, true), (Session { restart: session.restart + 1, ..session }, false)] {
        let (mut harness, _) = itch();
        harness.channel.peer_declared_gap(reported);
        harness.datagram(Line::A, &first);
        assert_eq!(harness.output.messages()[0].is_suspect, is_suspect, "{reported}, before {session} began here");
    }
}

#[test]
fn a_session_ends_after_its_last_message() {
    let (mut harness, mut stream) = itch();
    let packets = stream.packets(&[order(1), order(2)], 1);
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &stream.end_of_session()).expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    harness.datagram(Line::B, &packets[1]).expect_output(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
        state Ended
        end of session
    "#]]);
    harness.datagram(Line::B, &stream.end_of_session()).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.state(), ChannelState::Ended);
}

#[test]
fn an_end_of_session_before_delivered_messages_is_refused() {
    let (mut harness, mut stream) = itch();
    let early = stream.end_of_session();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    harness.output.take_text();
    harness.datagram(Line::A, &early).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.drops().get(DropReason::SequenceInvalid), 1);
    assert_eq!(harness.channel.state(), ChannelState::Live);
}

#[test]
fn messages_after_an_end_of_session_reopen_the_session() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)])).datagram(Line::A, &stream.end_of_session());
    assert_eq!(harness.channel.state(), ChannelState::Ended);
    harness.output.take_text();
    harness.datagram(Line::A, &stream.packet(&[order(2)])).expect_output(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
        state Live
    "#]]);
}

#[test]
fn an_iex_end_of_messages_event_ends_the_session() {
    let mut end = <SystemEvent as zerocopy::FromZeros>::new_zeroed();
    (end.message_type, end.system_event) = (b'S', b'C');
    let end = end.as_bytes().to_vec();
    for feed in [Feed::IexTops, Feed::IexDeep] {
        let mut harness = ChannelHarness::new(ChannelHarness::config(feed, SchemaSet::TRADES));
        let mut stream = Stream::new(feed);
        harness.datagram(Line::A, &stream.packet(&[trade("ZIEXT", 1, 10_000)]));
        harness.output.take_text();
        harness.datagram(Line::A, &stream.packet(std::slice::from_ref(&end))).expect_output(&expect![[r#"
            state Ended
            end of session
        "#]]);
    }
}

#[test]
fn a_new_session_starts_with_empty_books_and_maps_symbols_again() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    let held = Stream { first: 3, ..Stream::new(Feed::NasdaqItch) }.packet(&[order(3)]);
    harness.datagram(Line::A, &held);
    harness.output.take_text();
    let mut second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    // Line A begins the new session while a message of the old one is still missing.
    harness.datagram(Line::A, &second.packet(&[order(1), execute(7, 1, 100)])).expect_output(&expect![""]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionUnconfirmed), 1, "one packet may be a forgery");
    harness.datagram(Line::A, &second.packet(&[order(2)])).expect_output(&expect![""]);
    assert_eq!(harness.channel.book_faults().total(), 0, "order 1 is not of the old session");
    // The slower line delivers it: the old session is published completely before the new one.
    harness.datagram(Line::B, &stream.packet(&[order(2)])).expect_output(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
        3 delta 7000
          mbo A B 10 x100 #3 L
        state Ended
        end of session
        session nasdaq-itch-5.0 2019-01-30 #1 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000
          mbo T A 10 x100 #0
          mbo F B 10 x100 #1
          mbo C B 10 x100 #1 L
        3 delta 7000
          mbo A B 10 x100 #2 L
        state Live
    "#]]);
    harness.datagram(Line::B, &stream.packet(&[order(3)])).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionStale), 1);
}

#[test]
fn a_single_packet_of_another_session_does_not_end_the_current_one() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    harness.output.take_text();
    let forged = Stream { name: b'9', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(1)]);
    harness.datagram(Line::A, &forged).datagram(Line::A, &stream.packet(&[order(2)])).expect_output(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
    "#]]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionUnconfirmed), 1);
    // The genuine next session begins with its first message, though its first packet alone does not confirm it.
    let mut second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    harness.datagram(Line::A, &second.packet(&[order(1)])).expect_output(&expect![[""]]);
    harness.datagram(Line::A, &second.packet(&[order(2)])).expect_output(&expect![[r#"
        state Ended
        end of session
        session nasdaq-itch-5.0 2019-01-30 #1 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000
          mbo A B 10 x100 #2 L
        state Live
    "#]]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionUnconfirmed), 1, "the forged one");
    assert_eq!((harness.channel.counters().sessions, harness.channel.counters().gaps), (2, 0));
}

#[test]
fn an_iex_session_confirmed_by_its_second_packet_starts_with_its_first_message() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
    let first = Stream::new(Feed::IexDeep).packet(&[level(b'8', "ZIEXT", 100, 990_500, 1)]);
    harness.datagram(Line::A, &first);
    harness.output.take_text();
    let mut second = Stream { name: b'2', sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    harness.datagram(Line::A, &second.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)])).expect_output(&expect![[""]]);
    second.sent_ns += 1_000;
    harness.datagram(Line::A, &second.packet(&[level(b'8', "ZIEXT", 80, 990_500, 1)])).expect_output(&expect![[r#"
        state Ended
        end of session
        session iex-deep-1.0 2019-01-30 #1 from 1
        1 delta -2147483648
          mapping 1190146663 ZIEXT
          mbp1 A B 99.05 x70 LM d0 [99.05x70(0) | -]
        2 delta -2147483648
          mbp1 M B 99.05 x80 LM d0 [99.05x80(0) | -]
        state Live
    "#]]);
}

#[test]
fn a_session_start_in_the_last_packet_of_a_capture_is_confirmed() {
    for is_last in [true, false] {
        let (mut harness, mut stream) = itch();
        harness.datagram(Line::A, &stream.packet(&[order(1)]));
        let mut second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
        harness.datagram(Line::A, &second.packet(&[order(1)]));
        if !is_last {
            harness.datagram(Line::A, &stream.packet(&[order(2)]));
        }
        harness.channel.finish(&mut harness.output);
        assert_eq!(harness.channel.counters().sessions, 1 + u64::from(is_last));
        assert_eq!(harness.channel.drops().get(DropReason::SessionUnconfirmed), u64::from(!is_last));
    }
}

#[test]
fn a_session_first_received_in_its_middle_starts_with_a_gap_when_the_channel_was_already_listening() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    harness.output.take_text();
    let mut second = Stream { name: b'2', first: 40, ..Stream::new(Feed::NasdaqItch) };
    let packets = second.packets(&[order(1), order(2), order(3), order(4)], 1);
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[1]).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionUnconfirmed), 2);
    harness.datagram(Line::A, &packets[2]).datagram(Line::A, &packets[3]).wait().expect_output(&expect![[r#"
        state Ended
        end of session
        session nasdaq-itch-5.0 2019-01-30 #1 from 1
        gap [1, 42)
        42 delta 7000 suspect
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #3 L
        43 delta 7000 suspect
          mbo A B 10 x100 #4 L
        state Live
    "#]]);
}

#[test]
fn iex_restarts_within_one_session_id() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    let first = stream.packet(&[level(b'8', "ZIEXT", 100, 990_500, 1), level(b'8', "ZIEXT", 90, 990_500, 1)]);
    harness.datagram(Line::A, &first).datagram(Line::B, &first);
    harness.output.take_text();
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    harness.datagram(Line::A, &again.heartbeat()).expect_output(&expect![[r#"
        state Ended
        end of session
        session iex-deep-1.0 2019-01-30 #1 from 1
        state Live
    "#]]);
    harness.datagram(Line::A, &again.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)])).expect_output(&expect![[r#"
        1 delta -2147483648
          mapping 1190146663 ZIEXT
          mbp1 A B 99.05 x70 LM d0 [99.05x70(0) | -]
    "#]]);
    // The other line's copy of the old session.
    harness.datagram(Line::B, &first).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionStale), 1);
    assert_eq!(harness.channel.counters().sessions, 2);
}

#[test]
fn messages_of_the_slower_line_are_delivered_before_the_next_session() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    let packets = [100, 200, 300].map(|size| stream.packet(&[level(b'8', "ZIEXT", size, 990_500, 1)]));
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]);
    harness.output.take_text();
    // Line A has lost the second packet and restarts; line B is slightly behind.
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    harness.datagram(Line::A, &again.heartbeat()).expect_output(&expect![[""]]);
    harness.datagram(Line::A, &again.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)])).expect_output(&expect![[""]]);
    harness.datagram(Line::B, &packets[1]).expect_output(&expect![[r#"
        2 delta 5000
          mbp1 M B 99.05 x200 LM d0 [99.05x200(0) | -]
        3 delta 5000
          mbp1 M B 99.05 x300 LM d0 [99.05x300(0) | -]
        state Ended
        end of session
        session iex-deep-1.0 2019-01-30 #1 from 1
        1 delta -2147483648
          mapping 1190146663 ZIEXT
          mbp1 A B 99.05 x70 LM d0 [99.05x70(0) | -]
        state Live
    "#]]);
    assert_eq!(harness.channel.counters().gaps, 0);
    assert_eq!(harness.channel.counters().sessions, 2);
}

#[test]
fn the_next_session_waits_at_most_the_gap_timeout() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    let packets = [100, 200, 300].map(|size| stream.packet(&[level(b'8', "ZIEXT", size, 990_500, 1)]));
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]);
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    harness.datagram(Line::A, &again.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)]));
    assert_eq!((harness.channel.counters().gaps, harness.channel.counters().sessions), (0, 1));
    let deadline = harness.channel.next_deadline().expect("the gap's");
    harness.channel.on_deadline(deadline, &mut harness.output);
    assert_eq!((harness.channel.counters().gaps, harness.channel.counters().sessions), (1, 2));
    assert_eq!(harness.channel.position().map(|(_, expected)| expected.0), Some(2));
}

#[test]
fn a_next_session_that_fills_its_buffer_declares_the_old_gap_and_loses_no_message() {
    let config = ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1);
    let room = config.arbiter.window_packets as u64;
    let mut harness = ChannelHarness::new(config);
    let mut stream = Stream::new(Feed::IexDeep);
    let packets = [100, 200, 300].map(|size| stream.packet(&[level(b'8', "ZIEXT", size, 990_500, 1)]));
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]);
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    let mut next_size = 0;
    let mut packet = || {
        next_size += 1;
        again.packet(&[level(b'8', "ZIEXT", next_size, 990_500, 1)])
    };
    for _ in 0..room {
        harness.datagram(Line::A, &packet());
    }
    assert_eq!((harness.channel.counters().gaps, harness.channel.counters().sessions), (0, 1));
    harness.datagram(Line::A, &packet());
    assert_eq!((harness.channel.counters().gaps, harness.channel.counters().gap_messages), (1, 1));
    assert_eq!(harness.channel.counters().sessions, 2);
    assert_eq!(harness.channel.position().map(|(_, expected)| expected.0), Some(room + 2));
}

#[test]
fn a_restarted_gateway_declares_the_gap_since_its_log_position() {
    let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
    let session = Session { feed: Feed::NasdaqItch, date, restart: 0 };
    let log_position = Some((session, Sequence(490)));
    let mut harness =
        ChannelHarness::new(ChannelConfig { log_position, ..ChannelHarness::config(Feed::NasdaqItch, MBO) });
    let mut stream = Stream { first: 500, ..Stream::new(Feed::NasdaqItch) };
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    assert_eq!(harness.channel.position().map(|(_, expected)| expected), Some(Sequence(490)));
    let deadline = harness.channel.next_deadline().expect("the gap's");
    harness.channel.on_deadline(deadline, &mut harness.output);
    let counters = harness.channel.counters();
    assert_eq!((counters.gaps, counters.gap_messages, counters.messages), (1, 10, 1));
    // The log position of another session is ignored.
    let log_position = Some((Session { restart: 1, ..session }, Sequence(490)));
    let mut harness =
        ChannelHarness::new(ChannelConfig { log_position, ..ChannelHarness::config(Feed::NasdaqItch, MBO) });
    let mut stream = Stream { first: 500, ..Stream::new(Feed::NasdaqItch) };
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    assert_eq!(harness.channel.position().map(|(_, expected)| expected), Some(Sequence(501)));
}

#[test]
fn an_unconfirmed_jump_is_accepted_at_the_end_unless_contradicted() {
    let (mut harness, mut stream) = itch();
    let first = stream.packet(&[order(1)]);
    let mut far = Stream { first: 5_000_000, ..Stream::new(Feed::NasdaqItch) };
    let far = far.packet(&[order(9)]);
    harness.datagram(Line::A, &first).datagram(Line::A, &far);
    assert_eq!(harness.channel.counters().messages, 1);
    harness.channel.finish(&mut harness.output);
    let counters = harness.channel.counters();
    assert_eq!((counters.messages, counters.gaps, counters.gap_messages), (2, 1, 4_999_998));
    assert_eq!(harness.channel.arbiter_drops().get(DropReason::SequenceJump), 0, "it was not dropped");

    let (mut harness, mut stream) = itch();
    let packets = [1, 2].map(|id| stream.packet(&[order(id)]));
    harness.datagram(Line::A, &packets[0]).datagram(Line::A, &far).datagram(Line::A, &packets[1]);
    harness.channel.finish(&mut harness.output);
    let counters = harness.channel.counters();
    assert_eq!((counters.messages, counters.gaps), (2, 0));
    assert_eq!(harness.channel.arbiter_drops().get(DropReason::SequenceJump), 1);
}

#[test]
fn packets_of_a_jump_are_delivered_once_it_is_confirmed() {
    for (lines, with_heartbeats) in [(1, false), (2, false), (1, true)] {
        let (mut harness, mut stream) = itch();
        harness.datagram(Line::A, &stream.packet(&[order(1)]));
        let mut far = Stream { first: 5_000_000, ..Stream::new(Feed::NasdaqItch) };
        let packets = [2, 3, 4].map(|id| far.packet(&[order(id)]));
        if with_heartbeats {
            let at = Stream { first: 5_000_001, ..Stream::new(Feed::NasdaqItch) };
            let heartbeat = at.heartbeat();
            harness.datagrams([&packets[0], &heartbeat, &heartbeat, &packets[1], &packets[2]]);
        } else {
            for packet in &packets {
                (0..lines).for_each(|line| _ = harness.datagram(Line(line), packet));
            }
        }
        harness.wait();
        let counters = harness.channel.counters();
        assert_eq!((counters.messages, counters.gaps, counters.gap_messages), (4, 1, 4_999_998), "{lines} lines");
        let drops = harness.channel.arbiter_drops();
        assert_eq!(drops.get(DropReason::SequenceJump), u64::from(with_heartbeats), "the heartbeat that was in doubt");
        assert_eq!(drops.get(DropReason::Duplicate), if lines == 2 { 3 } else { 0 });
    }
}

#[test]
fn an_unconfirmed_jump_is_accepted_after_silence() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    let far = Stream { first: 5_000_000, ..Stream::new(Feed::NasdaqItch) }.packet(&[order(9)]);
    harness.datagram(Line::A, &far);
    let since = harness.now;
    assert_eq!(harness.channel.next_deadline(), Some(since.plus(CONFIRMATION_SILENCE_NS)));
    while let Some(deadline) = harness.channel.next_deadline() {
        harness.channel.on_deadline(deadline, &mut harness.output);
        assert_ne!(harness.channel.next_deadline(), Some(deadline));
    }
    let mut offline = itch().0;
    offline.datagram(Line::A, &Stream::new(Feed::NasdaqItch).packet(&[order(1)])).datagram(Line::A, &far);
    offline.channel.finish(&mut offline.output);
    assert_eq!(harness.output.take_text(), offline.output.take_text());
    assert_eq!((harness.channel.counters().messages, harness.channel.counters().gaps), (2, 1));

    // The input ends with the first packet of a session.
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    let second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(1)]);
    harness.datagram(Line::A, &second);
    assert_eq!(harness.channel.counters().sessions, 1);
    let deadline = harness.channel.next_deadline().expect("the deadline of the unconfirmed jump");
    harness.channel.on_deadline(deadline, &mut harness.output);
    assert_eq!((harness.channel.counters().sessions, harness.channel.next_deadline()), (2, None));
}

/// A channel that may ask a peer, once and nobody else, and has one message.
fn itch_with_peer() -> (ChannelHarness, Stream) {
    let mut config = ChannelHarness::config(Feed::NasdaqItch, MBO);
    config.arbiter.recovery =
        Some(RecoveryConfig { peer_attempts_max: 1, attempts_max: 0, ..RecoveryConfig::default() });
    let (mut harness, mut stream) = (ChannelHarness::new(config), Stream::new(Feed::NasdaqItch));
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    (harness, stream)
}

/// The peer's channel, at the stream's end.
fn peer_at(harness: &ChannelHarness, stream: &Stream, has_ended: bool) -> PeerPosition {
    let session = harness.channel.position().unwrap().0;
    PeerPosition { session, next: Sequence(stream.first), has_ended }
}

fn requests(harness: &mut ChannelHarness) -> Vec<(u64, u64)> {
    let requested = std::iter::from_fn(|| harness.channel.poll_request(&mut [0; REQUEST_BYTES_MAX]));
    let ranges = requested.map(|wanted| match wanted {
        MissingRequest::Peer { first, next, .. } => (first.0, next.0),
        MissingRequest::Server(_) => panic!("there is no server"),
    });
    ranges.collect()
}

#[test]
fn the_peers_position_makes_a_silent_channel_request_the_rest_of_the_session_and_its_end() {
    let (mut harness, mut stream) = itch_with_peer();
    let rest = stream.packet(&[order(2), order(3)]);
    harness.output.take_text();
    let earlier = PeerPosition {
        session: Session { restart: 7, ..peer_at(&harness, &stream, true).session },
        ..peer_at(&harness, &stream, true)
    };
    harness.channel.peer_reported(earlier, harness.now);
    harness.wait();
    assert_eq!(requests(&mut harness), [], "another session");
    harness.channel.peer_reported(peer_at(&harness, &stream, false), harness.now);
    harness.wait();
    assert_eq!((requests(&mut harness), harness.channel.state()), (vec![(2, 4)], ChannelState::Live));
    harness.datagram(Line::RECOVERY, &rest).wait();
    harness.channel.peer_reported(peer_at(&harness, &stream, false), harness.now);
    harness.wait();
    assert_eq!((requests(&mut harness), harness.channel.position().unwrap().1), (vec![], Sequence(4)));
    // The session has ended there.
    harness.channel.peer_reported(peer_at(&harness, &stream, true), harness.now);
    harness.wait();
    assert_eq!(requests(&mut harness), [(4, 5)]);
    harness.output.take_text();
    harness.datagram(Line::RECOVERY, &stream.end_of_session()).expect_output(&expect![[r#"
        state Ended
        end of session
    "#]]);
    harness.channel.peer_reported(peer_at(&harness, &stream, true), harness.now);
    assert_eq!(harness.channel.next_deadline(), None);
    assert_eq!((harness.channel.counters().gaps, harness.channel.reports_given_up()), (0, 0));
}

#[test]
fn an_end_that_only_the_peer_reports_ends_nothing() {
    let (mut harness, mut stream) = itch_with_peer();
    harness.channel.peer_reported(peer_at(&harness, &stream, true), harness.now);
    harness.wait();
    assert_eq!(requests(&mut harness), [(2, 3)]);
    harness.channel.peer_answer_ended(Sequence(2), harness.now);
    harness.output.take_text();
    harness.wait().wait().expect_output(&expect![[""]]);
    assert_eq!((harness.channel.state(), harness.channel.reports_given_up()), (ChannelState::Live, 1));
    harness.datagram(Line::A, &stream.packet(&[order(2)]));
    assert_eq!((harness.channel.counters().messages, harness.channel.counters().gaps), (2, 0));
}

#[test]
fn retransmitted_packets_do_not_start_a_session() {
    let (mut harness, mut stream) = itch();
    harness.datagram(Line::RECOVERY, &stream.packet(&[order(1)])).expect_output(&expect![[""]]);
    let mut stream = Stream::new(Feed::NasdaqItch);
    harness.datagram(Line::A, &stream.packet(&[order(1)]));
    harness.output.take_text();
    let other = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(1)]);
    harness.datagram(Line::RECOVERY, &other).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.drops().get(DropReason::SessionStale), 2);
}

#[test]
fn unsequenced_packets_are_accepted_in_arrival_order_if_configured() {
    let unnumbered = |id| {
        let mut packet = Stream { name: b' ', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(id)]);
        packet[10..18].fill(0);
        packet
    };
    let (mut refusing, _) = itch();
    refusing.datagram(Line::A, &unnumbered(1)).expect_output(&expect![[""]]);
    assert_eq!(refusing.channel.drops().get(DropReason::SequenceInvalid), 1);
    let config = ChannelHarness::config(Feed::NasdaqItch, MBO);
    let mut harness = ChannelHarness::new(ChannelConfig { accept_unsequenced: true, ..config });
    harness.datagram(Line::A, &unnumbered(1)).datagram(Line::A, &unnumbered(2)).expect_output(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
        2 delta 7000
          mbo A B 10 x100 #2 L
    "#]]);
    assert_eq!(harness.channel.counters().unsequenced, 2);
}

#[test]
fn silence_on_every_line_publishes_the_stale_state() {
    let mut config = ChannelHarness::config(Feed::NasdaqItch, MBO);
    config.arbiter.line_silence_ns = Some(5_000_000);
    let mut harness = ChannelHarness::new(config);
    let stream = Stream::new(Feed::NasdaqItch);
    harness.datagram(Line::A, &stream.heartbeat());
    harness.output.take_text();
    harness.wait().expect_output(&expect![[r#"
        state Stale
    "#]]);
    harness.datagram(Line::B, &stream.heartbeat()).expect_output(&expect![[r#"
        state Live
    "#]]);
}

#[test]
fn silence_after_the_end_of_session_is_not_stale() {
    let mut config = ChannelHarness::config(Feed::NasdaqItch, MBO);
    config.arbiter.line_silence_ns = Some(5_000_000);
    let mut harness = ChannelHarness::new(config);
    let mut stream = Stream::new(Feed::NasdaqItch);
    harness.datagram(Line::A, &stream.packet(&[order(1)])).datagram(Line::B, &stream.heartbeat());
    harness.datagram(Line::A, &stream.end_of_session()).datagram(Line::B, &stream.end_of_session());
    assert_eq!(harness.channel.next_deadline(), None, "nothing is waited for");
    harness.wait();
    let silent =
        |harness: &ChannelHarness| [Line::A, Line::B].map(|line| harness.channel.line_statistics(line).silences);
    assert_eq!((silent(&harness), harness.channel.state()), ([0, 0], ChannelState::Ended));
    // The next morning both silence timers start again.
    harness.now = harness.now.plus(50_000_000_000_000);
    let mut next = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    harness.datagram(Line::A, &next.packet(&[order(1)])).datagram(Line::A, &next.packet(&[order(2)]));
    assert_eq!(silent(&harness), [0, 0]);
    assert_eq!(harness.channel.next_deadline(), Some(harness.now.plus(5_000_000)));
    harness.wait();
    assert_eq!(silent(&harness), [1, 1]);
}

#[test]
fn ts_in_delta_is_clamped_receive_time_minus_send_time() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexTops, SchemaSet::TRADES));
    for (sent_ns, delta) in [(0, "7000"), (7_001, "-1"), (10_000_000_000, "-2147483648")] {
        let mut stream =
            Stream { sent_ns, first: harness.output.frames.len() as u64 + 1, ..Stream::new(Feed::IexTops) };
        let packet = stream.packet(&[trade("ZIEXT", 1, 1)]);
        harness.datagram(Line::A, &packet);
        let text = harness.output.take_text();
        assert!(text.contains(&format!(" delta {delta}\n")), "{text}");
        // The state frame makes the first sequence one too many.
        harness.output.frames.retain(|frame| frame.kind == FrameKind::Message);
    }
}

#[test]
fn refused_datagrams_are_counted_and_sampled() {
    let (mut harness, mut stream) = itch();
    let mut cut = stream.packet(&[order(1)]);
    cut.pop();
    harness.datagram(Line::A, &cut).datagram(Line::A, &[]).expect_output(&expect![[""]]);
    assert_eq!(harness.channel.drops().get(DropReason::MessageTruncated), 1);
    assert_eq!(harness.channel.drops().get(DropReason::HeaderTruncated), 1);
    let kept: Vec<_> = harness.channel.rejected_packets().map(|kept| kept.bytes().to_vec()).collect();
    assert_eq!(kept, [cut, vec![]]);
}

#[test]
fn rejected_packet_samples_are_limited_per_kind() {
    let (mut harness, mut stream) = itch();
    for _ in 0..50 {
        harness.datagram(Line::A, &stream.packet(&[b"?".to_vec()]));
    }
    harness.datagram(Line::A, &stream.packet(&[delete(7, 1)]));
    assert_eq!(harness.channel.rejected_packets().count(), 5);
    assert_eq!(harness.channel.drops().get(DropReason::MessageTypeUnknown), 50);
}
