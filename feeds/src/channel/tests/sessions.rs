//! Sessions, gaps, states: what a channel says besides its messages.

use expect_test::expect;
use zerocopy::IntoBytes as _;

use super::{input::*, *};
use crate::venue::iex::admin::SystemEvent;

const MBO: SchemaSet = SchemaSet::MBO;

fn order(id: u64) -> Vec<u8> {
    add(7, id, BUY, 100, 100_000)
}

fn itch() -> (World, Stream) {
    (World::new(World::config(Feed::NasdaqItch, MBO)), Stream::new(Feed::NasdaqItch))
}

#[test]
fn a_gap_is_declared_with_its_bounds_and_every_book_is_suspect() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    drop(stream.packet(&[order(2), order(3)]));
    world.datagram(Line::A, &stream.packet(&[order(4)])).shows(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    world.wait().shows(&expect![[r#"
        gap [2, 4)
        4 delta 7000 suspect
          mbo A B 10 x100 #4 L
    "#]]);
    let late = Stream { first: 2, ..Stream::new(Feed::NasdaqItch) }.packet(&[order(2), order(3)]);
    world.datagram(Line::B, &late).shows(&expect![[r#""#]]);
    assert_eq!(world.channel.arbiter_drops().get(DropReason::LateAfterGap), 2);
    assert_eq!((world.channel.counters().gaps, world.channel.counters().gap_messages), (1, 2));
    assert_eq!(world.seen.settled, Some(Sequence(5)));
}

#[test]
fn a_gap_that_the_other_line_fills_leaves_no_trace() {
    let (mut world, mut stream) = itch();
    let packets = stream.packets(&[order(1), order(2), order(3)], 1);
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]).datagram(Line::B, &packets[1]);
    world.wait().shows(&expect![[r#"
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
fn a_heartbeat_that_is_ahead_shows_a_gap() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.heartbeat());
    drop(stream.packet(&[order(1)]));
    world.datagram(Line::A, &stream.heartbeat()).wait().shows(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        state Live
        gap [1, 2)
    "#]]);
    assert_eq!(world.channel.counters().heartbeats, 2);
}

#[test]
fn a_late_start_begins_where_it_is_and_every_book_is_suspect() {
    let (mut world, mut stream) = itch();
    stream.first = 500;
    world.datagram(Line::A, &stream.packet(&[order(1)])).shows(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 500
        500 delta 7000 suspect
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    assert_eq!(world.channel.counters().late_starts, 1);
    // TOPS: what was never quoted here is in doubt too, until it is.
    let mut tops = World::new(World::config(Feed::IexTops, SchemaSet::MBP_1));
    let mut stream = Stream { first: 500, ..Stream::new(Feed::IexTops) };
    tops.datagram(
        Line::A,
        &stream.packet(&[trade("ZIEXT", 1, 1), quote("ZIEXT", (1, 1), (1, 2)), trade("ZIEXT", 1, 1)]),
    );
    let suspects: Vec<bool> = tops.seen.messages().iter().map(|frame| frame.is_suspect).collect();
    assert_eq!(suspects, [true, false, false]);
}

#[test]
fn a_gap_that_the_other_gateway_published_counts_in_its_session_whenever_it_is_told() {
    let (mut before, mut stream) = itch();
    let first = stream.packet(&[order(1)]);
    before.datagram(Line::A, &first);
    let (session, _) = before.seen.sessions[0];
    for (told, is_suspect) in [(session, true), (Session { restart: session.restart + 1, ..session }, false)] {
        let (mut world, _) = itch();
        world.channel.peer_declared_gap(told);
        world.datagram(Line::A, &first);
        assert_eq!(world.seen.messages()[0].is_suspect, is_suspect, "{told}, before {session} began here");
    }
}

#[test]
fn a_session_ends_once_all_of_it_has_come() {
    let (mut world, mut stream) = itch();
    let packets = stream.packets(&[order(1), order(2)], 1);
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &stream.end_of_session()).shows(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
    "#]]);
    world.datagram(Line::B, &packets[1]).shows(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
        state Ended
        end of session
    "#]]);
    world.datagram(Line::B, &stream.end_of_session()).shows(&expect![[""]]);
    assert_eq!(world.channel.state(), ChannelState::Ended);
}

#[test]
fn an_end_before_what_was_delivered_is_refused() {
    let (mut world, mut stream) = itch();
    let early = stream.end_of_session();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    world.seen.take_text();
    world.datagram(Line::A, &early).shows(&expect![[""]]);
    assert_eq!(world.channel.drops().get(DropReason::SequenceInvalid), 1);
    assert_eq!(world.channel.state(), ChannelState::Live);
}

#[test]
fn an_end_that_the_venue_goes_beyond_was_none() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)])).datagram(Line::A, &stream.end_of_session());
    assert_eq!(world.channel.state(), ChannelState::Ended);
    world.seen.take_text();
    world.datagram(Line::A, &stream.packet(&[order(2)])).shows(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
        state Live
    "#]]);
}

#[test]
fn iex_ends_its_session_in_the_messages() {
    let mut end = <SystemEvent as zerocopy::FromZeros>::new_zeroed();
    (end.message_type, end.system_event) = (b'S', b'C');
    let end = end.as_bytes().to_vec();
    for feed in [Feed::IexTops, Feed::IexDeep] {
        let mut world = World::new(World::config(feed, SchemaSet::TRADES));
        let mut stream = Stream::new(feed);
        world.datagram(Line::A, &stream.packet(&[trade("ZIEXT", 1, 10_000)]));
        world.seen.take_text();
        world.datagram(Line::A, &stream.packet(std::slice::from_ref(&end))).shows(&expect![[r#"
            state Ended
            end of session
        "#]]);
    }
}

#[test]
fn a_new_session_begins_with_empty_books_and_names_everything_again() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    let held = Stream { first: 3, ..Stream::new(Feed::NasdaqItch) }.packet(&[order(3)]);
    world.datagram(Line::A, &held);
    world.seen.take_text();
    let mut second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    // Line A begins the new session while the old one still misses a message.
    world.datagram(Line::A, &second.packet(&[order(1), execute(7, 1, 100)])).shows(&expect![""]);
    assert_eq!(world.channel.drops().get(DropReason::SessionUnconfirmed), 1, "one packet may be a forgery");
    world.datagram(Line::A, &second.packet(&[order(2)])).shows(&expect![""]);
    assert_eq!(world.channel.book_faults().total(), 0, "order 1 is not of the old session");
    // The slower line brings it: all of the old session comes out first, under its own name.
    world.datagram(Line::B, &stream.packet(&[order(2)])).shows(&expect![[r#"
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
    world.datagram(Line::B, &stream.packet(&[order(3)])).shows(&expect![[""]]);
    assert_eq!(world.channel.drops().get(DropReason::SessionStale), 1);
}

#[test]
fn a_single_packet_that_begins_another_session_costs_nothing() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    world.seen.take_text();
    let forged = Stream { name: b'9', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(1)]);
    world.datagram(Line::A, &forged).datagram(Line::A, &stream.packet(&[order(2)])).shows(&expect![[r#"
        2 delta 7000
          mbo A B 10 x100 #2 L
    "#]]);
    assert_eq!(world.channel.drops().get(DropReason::SessionUnconfirmed), 1);
    // The true next one begins with its first message, though the first packet of it is not believed alone.
    let mut second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    world.datagram(Line::A, &second.packet(&[order(1)])).shows(&expect![[""]]);
    world.datagram(Line::A, &second.packet(&[order(2)])).shows(&expect![[r#"
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
    assert_eq!(world.channel.drops().get(DropReason::SessionUnconfirmed), 1, "the forged one");
    assert_eq!((world.channel.counters().sessions, world.channel.counters().gaps), (2, 0));
}

#[test]
fn another_iex_session_begins_with_its_first_message_though_its_first_packet_is_not_believed_alone() {
    let mut world = World::new(World::config(Feed::IexDeep, SchemaSet::MBP_1));
    let first = Stream::new(Feed::IexDeep).packet(&[level(b'8', "ZIEXT", 100, 990_500, 1)]);
    world.datagram(Line::A, &first);
    world.seen.take_text();
    let mut second = Stream { name: b'2', sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    world.datagram(Line::A, &second.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)])).shows(&expect![[""]]);
    second.sent_ns += 1_000;
    world.datagram(Line::A, &second.packet(&[level(b'8', "ZIEXT", 80, 990_500, 1)])).shows(&expect![[r#"
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
fn the_last_packet_of_a_capture_is_believed_to_begin_a_session() {
    for is_last in [true, false] {
        let (mut world, mut stream) = itch();
        world.datagram(Line::A, &stream.packet(&[order(1)]));
        let mut second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
        world.datagram(Line::A, &second.packet(&[order(1)]));
        if !is_last {
            world.datagram(Line::A, &stream.packet(&[order(2)]));
        }
        world.channel.finish(&mut world.seen);
        assert_eq!(world.channel.counters().sessions, 1 + u64::from(is_last));
        assert_eq!(world.channel.drops().get(DropReason::SessionUnconfirmed), u64::from(!is_last));
    }
}

#[test]
fn a_session_joined_in_its_middle_begins_with_a_gap_where_we_listened_before() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    world.seen.take_text();
    let mut second = Stream { name: b'2', first: 40, ..Stream::new(Feed::NasdaqItch) };
    let packets = second.packets(&[order(1), order(2), order(3), order(4)], 1);
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[1]).shows(&expect![[""]]);
    assert_eq!(world.channel.drops().get(DropReason::SessionUnconfirmed), 2);
    world.datagram(Line::A, &packets[2]).datagram(Line::A, &packets[3]).wait().shows(&expect![[r#"
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
    let mut world = World::new(World::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    let first = stream.packet(&[level(b'8', "ZIEXT", 100, 990_500, 1), level(b'8', "ZIEXT", 90, 990_500, 1)]);
    world.datagram(Line::A, &first).datagram(Line::B, &first);
    world.seen.take_text();
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    world.datagram(Line::A, &again.heartbeat()).shows(&expect![[r#"
        state Ended
        end of session
        session iex-deep-1.0 2019-01-30 #1 from 1
        state Live
    "#]]);
    world.datagram(Line::A, &again.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)])).shows(&expect![[r#"
        1 delta -2147483648
          mapping 1190146663 ZIEXT
          mbp1 A B 99.05 x70 LM d0 [99.05x70(0) | -]
    "#]]);
    // The other line's copy of the old numbering.
    world.datagram(Line::B, &first).shows(&expect![[""]]);
    assert_eq!(world.channel.drops().get(DropReason::SessionStale), 1);
    assert_eq!(world.channel.counters().sessions, 2);
}

#[test]
fn what_the_slower_line_still_has_comes_before_the_next_numbering() {
    let mut world = World::new(World::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    let packets = [100, 200, 300].map(|size| stream.packet(&[level(b'8', "ZIEXT", size, 990_500, 1)]));
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]);
    world.seen.take_text();
    // Line A has lost the second packet and begins anew; line B is a moment behind.
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    world.datagram(Line::A, &again.heartbeat()).shows(&expect![[""]]);
    world.datagram(Line::A, &again.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)])).shows(&expect![[""]]);
    world.datagram(Line::B, &packets[1]).shows(&expect![[r#"
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
    assert_eq!(world.channel.counters().gaps, 0);
    assert_eq!(world.channel.counters().sessions, 2);
}

#[test]
fn the_next_numbering_waits_no_longer_than_the_gap_timer() {
    let mut world = World::new(World::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    let packets = [100, 200, 300].map(|size| stream.packet(&[level(b'8', "ZIEXT", size, 990_500, 1)]));
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]);
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    world.datagram(Line::A, &again.packet(&[level(b'8', "ZIEXT", 70, 990_500, 1)]));
    assert_eq!((world.channel.counters().gaps, world.channel.counters().sessions), (0, 1));
    let deadline = world.channel.next_deadline().expect("the gap's");
    world.channel.on_deadline(deadline, &mut world.seen);
    assert_eq!((world.channel.counters().gaps, world.channel.counters().sessions), (1, 2));
    assert_eq!(world.channel.position().map(|(_, expected)| expected.0), Some(2));
}

#[test]
fn a_numbering_that_outgrows_its_waiting_room_declares_the_gap_and_loses_none_of_its_own() {
    let config = World::config(Feed::IexDeep, SchemaSet::MBP_1);
    let room = config.arbiter.window_packets as u64;
    let mut world = World::new(config);
    let mut stream = Stream::new(Feed::IexDeep);
    let packets = [100, 200, 300].map(|size| stream.packet(&[level(b'8', "ZIEXT", size, 990_500, 1)]));
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &packets[2]);
    let mut again = Stream { sent_ns: 60_000_000_000, ..Stream::new(Feed::IexDeep) };
    let mut next_size = 0;
    let mut packet = || {
        next_size += 1;
        again.packet(&[level(b'8', "ZIEXT", next_size, 990_500, 1)])
    };
    for _ in 0..room {
        world.datagram(Line::A, &packet());
    }
    assert_eq!((world.channel.counters().gaps, world.channel.counters().sessions), (0, 1));
    world.datagram(Line::A, &packet());
    assert_eq!((world.channel.counters().gaps, world.channel.counters().gap_messages), (1, 1));
    assert_eq!(world.channel.counters().sessions, 2);
    assert_eq!(world.channel.position().map(|(_, expected)| expected.0), Some(room + 2));
}

#[test]
fn a_gateway_that_comes_back_declares_what_it_missed_since_its_log_ended() {
    let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
    let session = Session { feed: Feed::NasdaqItch, date, restart: 0 };
    let logged = Some((session, Sequence(490)));
    let mut world = World::new(ChannelConfig { logged, ..World::config(Feed::NasdaqItch, MBO) });
    let mut stream = Stream { first: 500, ..Stream::new(Feed::NasdaqItch) };
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    assert_eq!(world.channel.position().map(|(_, expected)| expected), Some(Sequence(490)));
    let deadline = world.channel.next_deadline().expect("the gap's");
    world.channel.on_deadline(deadline, &mut world.seen);
    let counters = world.channel.counters();
    assert_eq!((counters.gaps, counters.gap_messages, counters.messages), (1, 10, 1));
    // The log of another session says nothing about this one.
    let logged = Some((Session { restart: 1, ..session }, Sequence(490)));
    let mut world = World::new(ChannelConfig { logged, ..World::config(Feed::NasdaqItch, MBO) });
    let mut stream = Stream { first: 500, ..Stream::new(Feed::NasdaqItch) };
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    assert_eq!(world.channel.position().map(|(_, expected)| expected), Some(Sequence(501)));
}

#[test]
fn a_far_packet_is_believed_at_the_end_unless_something_spoke_against_it() {
    let (mut world, mut stream) = itch();
    let first = stream.packet(&[order(1)]);
    let mut far = Stream { first: 5_000_000, ..Stream::new(Feed::NasdaqItch) };
    let far = far.packet(&[order(9)]);
    world.datagram(Line::A, &first).datagram(Line::A, &far);
    assert_eq!(world.channel.counters().messages, 1);
    world.channel.finish(&mut world.seen);
    let counters = world.channel.counters();
    assert_eq!((counters.messages, counters.gaps, counters.gap_messages), (2, 1, 4_999_998));
    assert_eq!(world.channel.arbiter_drops().get(DropReason::SequenceJump), 0, "it was not dropped");

    let (mut world, mut stream) = itch();
    let packets = [1, 2].map(|id| stream.packet(&[order(id)]));
    world.datagram(Line::A, &packets[0]).datagram(Line::A, &far).datagram(Line::A, &packets[1]);
    world.channel.finish(&mut world.seen);
    let counters = world.channel.counters();
    assert_eq!((counters.messages, counters.gaps), (2, 0));
    assert_eq!(world.channel.arbiter_drops().get(DropReason::SequenceJump), 1);
}

#[test]
fn packets_that_made_a_jump_credible_are_delivered_with_the_one_that_confirms_it() {
    for (lines, with_heartbeats) in [(1, false), (2, false), (1, true)] {
        let (mut world, mut stream) = itch();
        world.datagram(Line::A, &stream.packet(&[order(1)]));
        let mut far = Stream { first: 5_000_000, ..Stream::new(Feed::NasdaqItch) };
        let packets = [2, 3, 4].map(|id| far.packet(&[order(id)]));
        if with_heartbeats {
            let at = Stream { first: 5_000_001, ..Stream::new(Feed::NasdaqItch) };
            let heartbeat = at.heartbeat();
            world.datagrams([&packets[0], &heartbeat, &heartbeat, &packets[1], &packets[2]]);
        } else {
            for packet in &packets {
                (0..lines).for_each(|line| _ = world.datagram(Line(line), packet));
            }
        }
        world.wait();
        let counters = world.channel.counters();
        assert_eq!((counters.messages, counters.gaps, counters.gap_messages), (4, 1, 4_999_998), "{lines} lines");
        let drops = world.channel.arbiter_drops();
        assert_eq!(drops.get(DropReason::SequenceJump), u64::from(with_heartbeats), "the heartbeat that was in doubt");
        assert_eq!(drops.get(DropReason::Duplicate), if lines == 2 { 3 } else { 0 });
    }
}

#[test]
fn what_came_last_is_believed_after_a_silence_as_at_the_end_of_the_input() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    let far = Stream { first: 5_000_000, ..Stream::new(Feed::NasdaqItch) }.packet(&[order(9)]);
    world.datagram(Line::A, &far);
    let since = world.now;
    assert_eq!(world.channel.next_deadline(), Some(since.plus(DOUBT_NS)));
    while let Some(deadline) = world.channel.next_deadline() {
        world.channel.on_deadline(deadline, &mut world.seen);
        assert_ne!(world.channel.next_deadline(), Some(deadline));
    }
    let mut offline = itch().0;
    offline.datagram(Line::A, &Stream::new(Feed::NasdaqItch).packet(&[order(1)])).datagram(Line::A, &far);
    offline.channel.finish(&mut offline.seen);
    assert_eq!(world.seen.take_text(), offline.seen.take_text());
    assert_eq!((world.channel.counters().messages, world.channel.counters().gaps), (2, 1));

    // A session whose first packet was the last of all.
    let (mut world, mut stream) = itch();
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    let second = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(1)]);
    world.datagram(Line::A, &second);
    assert_eq!(world.channel.counters().sessions, 1);
    let deadline = world.channel.next_deadline().expect("the doubt's");
    world.channel.on_deadline(deadline, &mut world.seen);
    assert_eq!((world.channel.counters().sessions, world.channel.next_deadline()), (2, None));
}

#[test]
fn answers_of_the_retransmission_server_begin_no_session() {
    let (mut world, mut stream) = itch();
    world.datagram(Line::RECOVERY, &stream.packet(&[order(1)])).shows(&expect![[""]]);
    let mut stream = Stream::new(Feed::NasdaqItch);
    world.datagram(Line::A, &stream.packet(&[order(1)]));
    world.seen.take_text();
    let other = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(1)]);
    world.datagram(Line::RECOVERY, &other).shows(&expect![[""]]);
    assert_eq!(world.channel.drops().get(DropReason::SessionStale), 2);
}

#[test]
fn unsequenced_packets_are_taken_in_the_order_they_come_where_that_is_allowed() {
    let unnumbered = |id| {
        let mut packet = Stream { name: b' ', ..Stream::new(Feed::NasdaqItch) }.packet(&[order(id)]);
        packet[10..18].fill(0);
        packet
    };
    let (mut refusing, _) = itch();
    refusing.datagram(Line::A, &unnumbered(1)).shows(&expect![[""]]);
    assert_eq!(refusing.channel.drops().get(DropReason::SequenceInvalid), 1);
    let config = World::config(Feed::NasdaqItch, MBO);
    let mut world = World::new(ChannelConfig { accept_unsequenced: true, ..config });
    world.datagram(Line::A, &unnumbered(1)).datagram(Line::A, &unnumbered(2)).shows(&expect![[r#"
        session nasdaq-itch-5.0 2019-01-30 #0 from 1
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        state Live
        2 delta 7000
          mbo A B 10 x100 #2 L
    "#]]);
    assert_eq!(world.channel.counters().unsequenced, 2);
}

#[test]
fn silence_on_every_line_is_told_as_a_state() {
    let mut config = World::config(Feed::NasdaqItch, MBO);
    config.arbiter.line_silence_ns = Some(5_000_000);
    let mut world = World::new(config);
    let stream = Stream::new(Feed::NasdaqItch);
    world.datagram(Line::A, &stream.heartbeat());
    world.seen.take_text();
    world.wait().shows(&expect![[r#"
        state Stale
    "#]]);
    world.datagram(Line::B, &stream.heartbeat()).shows(&expect![[r#"
        state Live
    "#]]);
}

#[test]
fn a_venue_that_has_ended_its_session_may_be_silent() {
    let mut config = World::config(Feed::NasdaqItch, MBO);
    config.arbiter.line_silence_ns = Some(5_000_000);
    let mut world = World::new(config);
    let mut stream = Stream::new(Feed::NasdaqItch);
    world.datagram(Line::A, &stream.packet(&[order(1)])).datagram(Line::B, &stream.heartbeat());
    world.datagram(Line::A, &stream.end_of_session()).datagram(Line::B, &stream.end_of_session());
    assert_eq!(world.channel.next_deadline(), None, "nothing is waited for");
    world.wait();
    let silent = |world: &World| [Line::A, Line::B].map(|line| world.channel.line_statistics(line).silences);
    assert_eq!((silent(&world), world.channel.state()), ([0, 0], ChannelState::Ended));
    // The next morning both have their time again.
    world.now = world.now.plus(50_000_000_000_000);
    let mut next = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    world.datagram(Line::A, &next.packet(&[order(1)])).datagram(Line::A, &next.packet(&[order(2)]));
    assert_eq!(silent(&world), [0, 0]);
    assert_eq!(world.channel.next_deadline(), Some(world.now.plus(5_000_000)));
    world.wait();
    assert_eq!(silent(&world), [1, 1]);
}

#[test]
fn times_are_told_from_the_venues_sending_clamped() {
    let mut world = World::new(World::config(Feed::IexTops, SchemaSet::TRADES));
    for (sent_ns, delta) in [(0, "7000"), (7_001, "-1"), (10_000_000_000, "-2147483648")] {
        let mut stream = Stream { sent_ns, first: world.seen.frames.len() as u64 + 1, ..Stream::new(Feed::IexTops) };
        let packet = stream.packet(&[trade("ZIEXT", 1, 1)]);
        world.datagram(Line::A, &packet);
        let text = world.seen.take_text();
        assert!(text.contains(&format!(" delta {delta}\n")), "{text}");
        // The state's frame makes the first sequence one too many.
        world.seen.frames.retain(|frame| frame.kind == FrameKind::Message);
    }
}

#[test]
fn refused_datagrams_are_counted_and_kept() {
    let (mut world, mut stream) = itch();
    let mut cut = stream.packet(&[order(1)]);
    cut.pop();
    world.datagram(Line::A, &cut).datagram(Line::A, &[]).shows(&expect![[""]]);
    assert_eq!(world.channel.drops().get(DropReason::MessageTruncated), 1);
    assert_eq!(world.channel.drops().get(DropReason::HeaderTruncated), 1);
    let kept: Vec<_> = world.channel.evidence().map(|kept| kept.bytes().to_vec()).collect();
    assert_eq!(kept, [cut, vec![]]);
}

#[test]
fn one_kind_of_trouble_leaves_room_for_others() {
    let (mut world, mut stream) = itch();
    for _ in 0..50 {
        world.datagram(Line::A, &stream.packet(&[b"?".to_vec()]));
    }
    world.datagram(Line::A, &stream.packet(&[delete(7, 1)]));
    assert_eq!(world.channel.evidence().count(), 5);
    assert_eq!(world.channel.drops().get(DropReason::MessageTypeUnknown), 50);
}
