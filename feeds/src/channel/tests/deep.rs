//! IEX DEEP 1.0, row by row.

use expect_test::expect;

use super::{input::*, *};
use crate::{
    book::BookFault,
    venue::iex::deep::{PriceLevelUpdate, SecurityEvent},
};

const ALL: SchemaSet = SchemaSet(0xff);
const BID: u8 = b'8';
const ASK: u8 = b'5';

fn rows(schemas: SchemaSet, messages: &[Vec<u8>], expected: &Expect) -> ChannelHarness {
    check(Feed::IexDeep, schemas, messages, expected)
}

#[test]
fn a_level_is_added_modified_and_removed() {
    let messages = [
        level(BID, "ZIEXT", 100, 990_500, 1),
        level(ASK, "ZIEXT", 50, 991_000, 1),
        level(BID, "ZIEXT", 70, 990_500, 1),
        level(BID, "ZIEXT", 10, 990_400, 1),
        level(BID, "ZIEXT", 0, 990_500, 1),
    ];
    rows(
        SchemaSet::MBP_1.with(SchemaSet::MBP_10),
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          mbp1 A B 99.05 x100 LM d0 [99.05x100(0) | -]
          mbp10 A B 99.05 x100 LM d0 [99.05x100(0) | -]
        2 delta 5000
          mbp1 A A 99.1 x50 LM d0 [99.05x100(0) | 99.1x50(0)]
          mbp10 A A 99.1 x50 LM d0 [99.05x100(0) | 99.1x50(0)]
        3 delta 5000
          mbp1 M B 99.05 x70 LM d0 [99.05x70(0) | 99.1x50(0)]
          mbp10 M B 99.05 x70 LM d0 [99.05x70(0) | 99.1x50(0)]
        4 delta 5000
          mbp10 A B 99.04 x10 LM d1 [99.05x70(0) | 99.1x50(0), 99.04x10(0) | -]
        5 delta 5000
          mbp1 C B 99.05 x0 LM d0 [99.04x10(0) | 99.1x50(0)]
          mbp10 C B 99.05 x0 LM d0 [99.04x10(0) | 99.1x50(0)]
    "#]],
    );
}

#[test]
fn an_event_is_published_under_its_last_message() {
    let messages = [
        level(BID, "ZIEXT", 100, 990_500, 1),
        level(BID, "ZIEXT", 0, 990_500, 0),
        level(BID, "OTHER", 5, 10_000, 1),
        trade("ZIEXT", 100, 990_500),
        level(BID, "ZIEXT", 30, 990_300, 0),
        level(BID, "ZIEXT", 40, 990_200, 1),
        trade("ZIEXT", 1, 990_300),
    ];
    rows(
        SchemaSet::MBP_1.with(SchemaSet::MBP_10).with(SchemaSet::TRADES),
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          mbp1 A B 99.05 x100 LM d0 [99.05x100(0) | -]
          mbp10 A B 99.05 x100 LM d0 [99.05x100(0) | -]
        3 delta 5000
          mapping 1894199125 OTHER
          mbp1 A B 1 x5 LM d0 [1x5(0) | -]
          mbp10 A B 1 x5 LM d0 [1x5(0) | -]
        4 delta 5000
          trade T N 99.05 x100 L
          mbp1 T N 99.05 x100 L d0 [99.05x100(0) | -]
          mbp10 T N 99.05 x100 L d0 [99.05x100(0) | -]
        6 delta 5000
          mbp1 A B 99.02 x40 LM d1 [99.03x30(0) | -]
          mbp10 A B 99.02 x40 LM d1 [99.03x30(0) | -, 99.02x40(0) | -]
        7 delta 5000
          trade T N 99.03 x1 L
          mbp1 T N 99.03 x1 L d0 [99.03x30(0) | -]
          mbp10 T N 99.03 x1 L d0 [99.03x30(0) | -, 99.02x40(0) | -]
    "#]],
    );
}

#[test]
fn deep_publishes_no_mbo_records() {
    let messages = [level(BID, "ZIEXT", 100, 990_500, 1), trade("ZIEXT", 1, 990_500)];
    rows(
        SchemaSet::MBO,
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
    "#]],
    );
}

#[test]
fn a_gap_discards_incomplete_events() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
    let mut stream = Stream::new(Feed::IexDeep);
    harness.datagram(Line::A, &stream.packet(&[level(BID, "ZIEXT", 100, 990_500, 1)]));
    harness.datagram(Line::A, &stream.packet(&[level(BID, "ZIEXT", 30, 990_500, 0)]));
    drop(stream.packet(&[level(BID, "ZIEXT", 20, 990_500, 1)]));
    harness.output.take_text();
    harness.datagram(Line::A, &stream.packet(&[trade("ZIEXT", 1, 990_500), level(ASK, "ZIEXT", 9, 991_000, 1)]));
    // The trade shows the book as far as it is known, not the one before the truncated event.
    harness.wait().expect_output(&expect![[r#"
        gap [3, 4)
        4 delta 5000 suspect
          mbp1 T N 99.05 x1 L d0 [99.05x30(0) | -]
        5 delta 5000 suspect
          mbp1 A A 99.1 x9 LM d0 [99.05x30(0) | 99.1x9(0)]
    "#]]);
}

#[test]
fn a_damaged_message_marks_every_book_suspect() {
    let early = iex!(b'8', "ZIEXT", PriceLevelUpdate { timestamp_ns: -1_i64, event_flags: 1, size: 1_u32 });
    let negative = level(BID, "ZIEXT", 1, -1, 1);
    let short = level(BID, "ZIEXT", 1, 10_000, 1)[..29].to_vec();
    for (message, reason, is_suspect) in [
        (early, DropReason::FieldInvalid, true),
        (negative, DropReason::FieldInvalid, true),
        (short, DropReason::MessageLength, true),
        (b"?new".to_vec(), DropReason::MessageTypeUnknown, false),
    ] {
        let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
        let messages = [level(BID, "OTHER", 1, 10_000, 1), message, level(BID, "OTHER", 2, 10_000, 1)];
        harness.datagrams(&Stream::new(Feed::IexDeep).packets(&messages, usize::MAX));
        let frames: Vec<_> =
            harness.output.messages().iter().map(|frame| (frame.sequence.0, frame.is_suspect)).collect();
        let refused = (reason != DropReason::MessageTypeUnknown).then_some((2, true));
        let expected: Vec<_> = [Some((1, false)), refused, Some((3, is_suspect))].into_iter().flatten().collect();
        assert_eq!(frames, expected);
        assert_eq!(harness.channel.drops().iter().collect::<Vec<_>>(), [(reason, 1)]);
        assert_eq!(harness.channel.rejected_packets().count(), 1);
    }
}

#[test]
fn removing_an_unknown_level_is_a_fault_without_record() {
    let messages = [level(BID, "ZIEXT", 0, 990_500, 1), level(BID, "ZIEXT", 5, 990_500, 1)];
    let harness = rows(
        SchemaSet::MBP_1,
        &messages,
        &expect![[r#"
        1 delta 5000 suspect
          mapping 1190146663 ZIEXT
        2 delta 5000 suspect
          mbp1 A B 99.05 x5 LM d0 [99.05x5(0) | -]
    "#]],
    );
    assert_eq!(harness.channel.book_faults().iter().collect::<Vec<_>>(), [(BookFault::UnknownLevel, 1)]);
}

#[test]
fn an_event_with_a_refused_last_message_still_publishes_its_changes() {
    let messages = [level(BID, "ZIEXT", 5, 990_500, 0), level(BID, "ZIEXT", 0, 990_400, 1)];
    rows(
        SchemaSet::MBP_1,
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
        2 delta 5000 suspect
          mbp1 M B 99.04 x0 LM d255 [99.05x5(0) | -]
    "#]],
    );
}

#[test]
fn crossing_is_checked_only_at_the_end_of_an_event() {
    let crossed = |last: u32| {
        [level(ASK, "ZIEXT", 5, 991_000, 1), level(BID, "ZIEXT", 5, 991_500, 0), level(ASK, "ZIEXT", last, 991_000, 1)]
    };
    for (last, faults) in [(0, 0), (4, 1)] {
        let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
        harness.datagrams(&Stream::new(Feed::IexDeep).packets(&crossed(last), usize::MAX));
        assert_eq!(harness.channel.book_faults().get(BookFault::Crossed), faults);
        assert_eq!(harness.output.messages().last().map(|frame| frame.is_suspect), Some(faults > 0));
    }
}

#[test]
fn a_crossed_book_is_suspect_while_crossed_and_counted_once() {
    let messages = [
        level(ASK, "ZIEXT", 5, 991_000, 1),
        level(BID, "ZIEXT", 5, 991_500, 1),
        trade("ZIEXT", 1, 991_000),
        level(BID, "ZIEXT", 6, 991_500, 1),
        // Uncrossed again in the middle of an event; a trade does not reflect this yet.
        level(BID, "ZIEXT", 0, 991_500, 0),
        trade("ZIEXT", 1, 991_000),
        level(BID, "ZIEXT", 3, 990_000, 1),
        trade("ZIEXT", 1, 991_000),
        // Crossed in the middle of an event.
        level(BID, "ZIEXT", 4, 992_000, 0),
        trade("ZIEXT", 1, 991_000),
        level(BID, "ZIEXT", 0, 992_000, 1),
    ];
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_10));
    harness.datagrams(&Stream::new(Feed::IexDeep).packets(&messages, usize::MAX));
    let suspects: Vec<u64> =
        harness.output.messages().iter().filter(|frame| frame.is_suspect).map(|frame| frame.sequence.0).collect();
    assert_eq!(suspects, [2, 3, 4, 6]);
    assert_eq!(harness.channel.book_faults().iter().collect::<Vec<_>>(), [(BookFault::Crossed, 1)]);
    assert_eq!(harness.channel.rejected_packets().count(), 1);
}

#[test]
fn a_book_suspect_after_a_gap_stays_suspect_after_uncrossing() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_10));
    let mut stream = Stream { first: 500, ..Stream::new(Feed::IexDeep) };
    let messages =
        [level(ASK, "ZIEXT", 5, 991_000, 1), level(BID, "ZIEXT", 5, 991_500, 1), level(BID, "ZIEXT", 0, 991_500, 1)];
    harness.datagrams(&stream.packets(&messages, 1));
    assert!(harness.output.messages().iter().all(|frame| frame.is_suspect), "joined late: every book is suspect");
}

#[test]
fn events_beyond_the_open_event_limit_are_no_fault() {
    let mut messages: Vec<_> = (0..60).map(|number| level(BID, &format!("A{number}"), 1, 10_000, 0)).collect();
    messages.extend((0..60).map(|number| level(BID, &format!("A{number}"), 2, 10_000, 1)));
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexDeep, SchemaSet::MBP_1));
    harness.datagrams(&Stream::new(Feed::IexDeep).packets(&messages, usize::MAX));
    assert_eq!(harness.channel.book_faults().total(), 0);
    // A symbol mapping for the first message of each instrument, a record for the second.
    assert_eq!(harness.output.messages().len(), 120);
}

#[test]
fn security_events_publish_the_symbol_mapping() {
    rows(
        ALL,
        &[iex!(b'E', "ZIEXT", SecurityEvent { security_event: b'O' })],
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
    "#]],
    );
}
