//! ITCH 5.0, row by row: orders and trades.

use expect_test::expect;

use super::{input::*, *};
use crate::book::BookFault;
use crate::channel::rejected_packets::RejectionKind;

const MBO: SchemaSet = SchemaSet::MBO;
const ALL: SchemaSet = SchemaSet(0xff);

fn by_price() -> SchemaSet {
    SchemaSet::MBP_1.with(SchemaSet::MBP_10).with(SchemaSet::TRADES)
}

fn rows(schemas: SchemaSet, messages: &[Vec<u8>], expected: &Expect) -> ChannelHarness {
    check(Feed::NasdaqItch, schemas, messages, expected)
}

#[test]
fn adds_publish_symbol_mapping_and_clear_once_without_attribution() {
    rows(
        MBO,
        &[add(7, 1, BUY, 100, 100_000), add_mpid(7, 2, SELL, 50, 101_234)],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000
          mbo A A 10.1234 x50 #2 L
    "#]],
    );
}

#[test]
fn an_execution_is_trade_fill_and_cancel_under_one_sequence() {
    rows(
        MBO,
        &[add(7, 1, BUY, 100, 100_000), execute(7, 1, 40), execute(7, 1, 60)],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000
          mbo T A 10 x40 #0
          mbo F B 10 x40 #1
          mbo C B 10 x40 #1 L
        3 delta 7000
          mbo T A 10 x60 #0
          mbo F B 10 x60 #1
          mbo C B 10 x60 #1 L
    "#]],
    );
}

#[test]
fn an_execution_at_another_price_cancels_at_the_order_price() {
    let messages =
        [add(7, 1, SELL, 100, 100_000), execute_at(7, 1, 30, b'Y', 99_000), execute_at(7, 1, 30, b'N', 99_000)];
    rows(
        MBO,
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A A 10 x100 #1 L
        2 delta 7000
          mbo T B 9.9 x30 #0
          mbo F A 9.9 x30 #1
          mbo C A 10 x30 #1 L
        3 delta 7000
          mbo F A 9.9 x30 #1
          mbo C A 10 x30 #1 L
    "#]],
    );
    rows(
        by_price(),
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbp1 A A 10 x100 L d0 [- | 10x100(1)]
          mbp10 A A 10 x100 L d0 [- | 10x100(1)]
        2 delta 7000
          trade T B 9.9 x30 L
          mbp1 T B 9.9 x30 d0 [- | 10x100(1)]
          mbp10 T B 9.9 x30 d0 [- | 10x100(1)]
          mbp1 C A 10 x30 L d0 [- | 10x70(1)]
          mbp10 C A 10 x30 L d0 [- | 10x70(1)]
        3 delta 7000
          mbp1 C A 10 x30 L d0 [- | 10x40(1)]
          mbp10 C A 10 x30 L d0 [- | 10x40(1)]
    "#]],
    );
}

#[test]
fn cancels_carry_the_cancelled_size_and_deletes_the_remaining_size() {
    rows(
        MBO,
        &[add(7, 1, BUY, 100, 100_000), cancel(7, 1, 30), delete(7, 1)],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000
          mbo C B 10 x30 #1 L
        3 delta 7000
          mbo C B 10 x70 #1 L
    "#]],
    );
}

#[test]
fn a_replacement_is_cancel_and_add() {
    rows(
        MBO,
        &[add(7, 1, SELL, 100, 100_000), replace(7, 1, 2, 80, 99_000)],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A A 10 x100 #1 L
        2 delta 7000
          mbo C A 10 x100 #1
          mbo A A 9.9 x80 #2 L
    "#]],
    );
}

#[test]
fn hidden_executions_carry_the_aggressor_side_only_if_the_venue_gives_it() {
    rows(
        MBO,
        &[hidden(7, BUY, 10, 100_000), hidden(7, SELL, 10, 100_000), hidden(7, BUY, 0, 100_000)],
        &expect![[r#"
            1 delta 7000
              mapping 7 S7
              mbo R N - x0 #0
              mbo T N 10 x10 #0 L
            2 delta 7000
              mbo T B 10 x10 #0 L
        "#]],
    );
}

#[test]
fn crosses_are_trades_without_side_plus_a_statistic() {
    let messages = [
        cross(7, 5_000, 100_000, b'O'),
        cross(7, 0, 0, b'H'),
        cross(7, 5_000_000_000, 100_000, b'C'),
        cross(7, 1, 100_000, b'H'),
    ];
    rows(
        MBO.with(SchemaSet::STATISTICS).with(SchemaSet::TRADES),
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo T N 10 x5000 #0 L
          trade T N 10 x5000 L
          statistic 1 10 x5000
        3 delta 7000
          mbo T N 10 x4294967294 #0 L
          trade T N 10 x4294967294 L
          statistic 11 10 x5000000000
        4 delta 7000
          mbo T N 10 x1 #0 L
          trade T N 10 x1 L
          statistic 16 10 x1
    "#]],
    );
}

#[test]
fn trade_records_carry_the_book_before_and_change_records_the_book_after() {
    let messages = [
        add(7, 1, BUY, 100, 100_000),
        add(7, 2, SELL, 50, 101_000),
        add(7, 3, BUY, 10, 99_000),
        execute(7, 1, 40),
        // Not the best level: no mbp-1.
        cancel(7, 3, 4),
        delete(7, 1),
        hidden(7, BUY, 5, 100_500),
    ];
    rows(
        by_price(),
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbp1 A B 10 x100 L d0 [10x100(1) | -]
          mbp10 A B 10 x100 L d0 [10x100(1) | -]
        2 delta 7000
          mbp1 A A 10.1 x50 L d0 [10x100(1) | 10.1x50(1)]
          mbp10 A A 10.1 x50 L d0 [10x100(1) | 10.1x50(1)]
        3 delta 7000
          mbp10 A B 9.9 x10 L d1 [10x100(1) | 10.1x50(1), 9.9x10(1) | -]
        4 delta 7000
          trade T A 10 x40 L
          mbp1 T A 10 x40 d0 [10x100(1) | 10.1x50(1)]
          mbp10 T A 10 x40 d0 [10x100(1) | 10.1x50(1), 9.9x10(1) | -]
          mbp1 C B 10 x40 L d0 [10x60(1) | 10.1x50(1)]
          mbp10 C B 10 x40 L d0 [10x60(1) | 10.1x50(1), 9.9x10(1) | -]
        5 delta 7000
          mbp10 C B 9.9 x4 L d1 [10x60(1) | 10.1x50(1), 9.9x6(1) | -]
        6 delta 7000
          mbp1 C B 10 x60 L d0 [9.9x6(1) | 10.1x50(1)]
          mbp10 C B 10 x60 L d0 [9.9x6(1) | 10.1x50(1)]
        7 delta 7000
          trade T N 10.05 x5 L
          mbp1 T N 10.05 x5 L d0 [9.9x6(1) | 10.1x50(1)]
          mbp10 T N 10.05 x5 L d0 [9.9x6(1) | 10.1x50(1)]
    "#]],
    );
}

#[test]
fn a_replacement_is_one_market_by_price_record() {
    let messages = [
        add(7, 1, BUY, 100, 100_000),
        add(7, 2, BUY, 10, 99_000),
        // Below the top: published by the half that touched the published levels.
        replace(7, 1, 3, 100, 98_000),
        // Below the top in both halves.
        replace(7, 3, 4, 100, 97_000),
    ];
    rows(
        by_price(),
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbp1 A B 10 x100 L d0 [10x100(1) | -]
          mbp10 A B 10 x100 L d0 [10x100(1) | -]
        2 delta 7000
          mbp10 A B 9.9 x10 L d1 [10x100(1) | -, 9.9x10(1) | -]
        3 delta 7000
          mbp1 C B 10 x100 L d0 [9.9x10(1) | -]
          mbp10 A B 9.8 x100 L d1 [9.9x10(1) | -, 9.8x100(1) | -]
        4 delta 7000
          mbp10 A B 9.7 x100 L d1 [9.9x10(1) | -, 9.7x100(1) | -]
    "#]],
    );
}

#[test]
fn changes_beyond_ten_levels_give_no_mbp_record() {
    let mut messages: Vec<_> = (0..11).map(|level| add(7, level + 1, BUY, 10, 100_000 - level as u32 * 100)).collect();
    messages.extend([cancel(7, 11, 5), delete(7, 2)]);
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::NasdaqItch, SchemaSet::MBP_10));
    harness.datagrams(&Stream::new(Feed::NasdaqItch).packets(&messages, usize::MAX));
    let frames: Vec<u64> = harness.output.messages().iter().map(|frame| frame.sequence.0).collect();
    // Neither the eleventh level nor its change is published; it moves up when a better level is removed.
    assert_eq!(frames, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13]);
    let last = harness.output.messages().pop().unwrap();
    assert_eq!(recorded_output::pairs(last.records()[0], 10)[9].bid_sz, 5);
}

#[test]
fn one_frame_carries_all_schemas_each_with_its_last_flag() {
    rows(
        ALL,
        &[add(7, 1, BUY, 100, 100_000), execute(7, 1, 40)],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
          mbp1 A B 10 x100 L d0 [10x100(1) | -]
          mbp10 A B 10 x100 L d0 [10x100(1) | -]
        2 delta 7000
          mbo T A 10 x40 #0
          mbo F B 10 x40 #1
          mbo C B 10 x40 #1 L
          trade T A 10 x40 L
          mbp1 T A 10 x40 d0 [10x100(1) | -]
          mbp10 T A 10 x40 d0 [10x100(1) | -]
          mbp1 C B 10 x40 L d0 [10x60(1) | -]
          mbp10 C B 10 x40 L d0 [10x60(1) | -]
    "#]],
    );
}

/// A message that the book rejects has no record, is counted, marks the book, and its packet is kept.
#[test]
fn contradicting_messages_mark_the_book_suspect_and_are_sampled() {
    for (message, fault) in [
        (execute(7, 9, 1), BookFault::UnknownOrder),
        (cancel(7, 9, 1), BookFault::UnknownOrder),
        (delete(7, 9), BookFault::UnknownOrder),
        (replace(7, 9, 10, 1, 100_000), BookFault::UnknownOrder),
        (add(7, 1, BUY, 1, 100_000), BookFault::DuplicateOrder),
        (delete(8, 1), BookFault::InstrumentMismatch),
        (add(7, 2, BUY, 0, 100_000), BookFault::ZeroSize),
    ] {
        let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::NasdaqItch, MBO));
        let mut stream = Stream::new(Feed::NasdaqItch);
        harness.datagram(Line::A, &stream.packet(&[add(7, 1, BUY, 100, 100_000)]));
        assert!(harness.output.messages().iter().all(|frame| !frame.is_suspect), "negative control");
        let broken = stream.packet(&[message]);
        harness.datagram(Line::A, &broken);
        let last = harness.output.messages().last().map(|frame| (frame.sequence.0, frame.body.len(), frame.is_suspect));
        assert_eq!(last, Some((2, 0, true)), "{fault:?} has no record, but a frame");
        assert_eq!(harness.channel.book_faults().iter().collect::<Vec<_>>(), [(fault, 1)]);
        let rejected: Vec<_> = harness.channel.rejected_packets().collect();
        let [rejected] = rejected[..] else { panic!("{} kept", rejected.len()) };
        assert!(matches!(rejected.rejection.kind, RejectionKind::Contradicted(found) if found.kind == fault));
        assert_eq!((rejected.rejection.sequence, rejected.bytes()), (Sequence(2), &broken[20..]));
        harness.datagram(Line::A, &stream.packet(&[cancel(7, 1, 1), add(9, 3, BUY, 1, 100_000)]));
        let suspects: Vec<bool> = harness.output.messages()[2..].iter().map(|frame| frame.is_suspect).collect();
        assert_eq!(suspects, [true, false], "{fault:?} is the instrument's alone");
    }
}

/// An unknown instrument has no book to mark: all of its frames are suspect.
#[test]
fn an_instrument_beyond_the_limit_is_published_as_suspect() {
    let harness = rows(
        MBO,
        &[add(63, 1, BUY, 100, 100_000), add(64, 2, BUY, 100, 100_000), delete(64, 2)],
        &expect![[r#"
        1 delta 7000
          mapping 63 S63
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000 suspect
          mapping 64 S64
        3 delta 7000 suspect
    "#]],
    );
    assert_eq!(harness.channel.book_faults().get(BookFault::InstrumentUnknown), 1);
}

#[test]
fn changes_applied_despite_a_fault_are_published() {
    let messages = [add(7, 1, BUY, 100, 100_000), add(7, 2, SELL, 100, 99_000), execute(7, 1, 150), cancel(7, 2, 101)];
    let harness = rows(
        MBO,
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        2 delta 7000 suspect
          mbo A A 9.9 x100 #2 L
        3 delta 7000 suspect
          mbo T A 10 x100 #0
          mbo F B 10 x100 #1
          mbo C B 10 x100 #1 L
        4 delta 7000 suspect
          mbo C A 9.9 x100 #2 L
    "#]],
    );
    let faults: Vec<_> = harness.channel.book_faults().iter().collect();
    assert_eq!(faults, [(BookFault::OverExecution, 1), (BookFault::OverCancel, 1), (BookFault::Crossed, 1)]);
}

#[test]
fn crossed_orders_during_a_halt_are_no_fault() {
    let messages = [halt(7, b'H', *b"T1  "), add(7, 1, BUY, 100, 100_000), add(7, 2, SELL, 100, 99_000)];
    let harness = rows(
        MBO,
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
        2 delta 7000
          mbo R N - x0 #0
          mbo A B 10 x100 #1 L
        3 delta 7000
          mbo A A 9.9 x100 #2 L
    "#]],
    );
    assert_eq!(harness.channel.book_faults().total(), 0);
}

#[test]
fn damaged_messages_are_counted_sampled_and_mark_every_book_suspect() {
    let mut short = delete(7, 1);
    short.pop();
    let mut late = add(7, 4, BUY, 1, 100_000);
    late[5..11].fill(0xff);
    let mut sideless = add(7, 4, BUY, 1, 100_000);
    sideless[19] = b'?';
    for (message, reason, is_suspect) in [
        (short, DropReason::MessageLength, true),
        (vec![], DropReason::MessageLength, true),
        (late, DropReason::FieldInvalid, true),
        (sideless, DropReason::FieldInvalid, true),
        (b"?unknown types may be ignored".to_vec(), DropReason::MessageTypeUnknown, false),
        (halt(7, b'?', *b"    "), DropReason::FieldInvalid, false),
        (reg_sho(7, b'?'), DropReason::FieldInvalid, false),
    ] {
        let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::NasdaqItch, ALL));
        let mut stream = Stream::new(Feed::NasdaqItch);
        let packet = stream.packet(&[add(8, 1, BUY, 100, 100_000), message, cancel(8, 1, 1)]);
        harness.datagram(Line::A, &packet);
        let frames: Vec<_> =
            harness.output.messages().iter().map(|frame| (frame.sequence.0, frame.is_suspect)).collect();
        let refused = (reason != DropReason::MessageTypeUnknown).then_some((2, true));
        let expected: Vec<_> = [Some((1, false)), refused, Some((3, is_suspect))].into_iter().flatten().collect();
        assert_eq!(frames, expected);
        assert_eq!(harness.channel.drops().iter().collect::<Vec<_>>(), [(reason, 1)]);
        assert_eq!(harness.channel.counters().messages_refused, 1);
        let kept: Vec<_> =
            harness.channel.rejected_packets().map(|kept| (kept.rejection.kind, kept.bytes().to_vec())).collect();
        assert_eq!(kept, [(RejectionKind::Refused(reason), packet[20..].to_vec())]);
    }
}

#[test]
fn event_times_use_the_new_york_trading_date() {
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::NasdaqItch, MBO));
    harness.datagram(Line::A, &Stream::new(Feed::NasdaqItch).packet(&[add(7, 1, BUY, 1, 1)]));
    let frame = harness.output.messages().remove(0);
    assert!(frame.records().iter().all(|record| recorded_output::u64_at(record, 8) == OPEN.0));
}
