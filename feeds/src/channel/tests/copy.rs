//! A restored channel continues as if it had processed the input from the beginning.

use proptest::{prelude::*, sample::Index};

use super::{
    input::*,
    properties::{SCHEMAS, any_day, cut_of},
    recorded_output::Frame,
    *,
};
use crate::{channel::copy::SLICE_BYTES_MAX, formats::check};
use mdgw_wire::{
    frame::FrameSink as _,
    identity::{InstrumentId, Sequence},
};

/// Changes to a day before it is split into packets, so that books contradict it.
#[derive(Clone, Debug)]
enum InputFault {
    /// The message is missing, and its sequence too.
    Dropped(Index),
    /// It names another instrument.
    OtherInstrument(Index),
    /// The message is cut at this length and cannot be decoded.
    Truncated(Index),
}

fn input_fault() -> impl Strategy<Value = InputFault> {
    let at = any::<Index>;
    prop_oneof![
        3 => at().prop_map(InputFault::Dropped),
        2 => at().prop_map(InputFault::OtherInstrument),
        1 => at().prop_map(InputFault::Truncated),
    ]
}

fn apply_input_faults(messages: &mut Vec<Vec<u8>>, input_faults: &[InputFault]) {
    for input_fault in input_faults {
        if messages.len() < 2 {
            return;
        }
        match input_fault {
            InputFault::Dropped(at) => drop(messages.remove(at.index(messages.len()))),
            InputFault::OtherInstrument(at) => {
                let at = at.index(messages.len());
                if let Some(low) = messages[at].get_mut(2) {
                    *low = low.wrapping_add(1) % 4;
                }
            }
            InputFault::Truncated(at) => {
                let at = at.index(messages.len());
                messages[at].truncate(12);
            }
        }
    }
}

/// Interleaving of packets with the slices of a copy: slices before the first packet, and between two packets.
#[derive(Clone, Copy, Debug)]
struct Interleaving {
    first: usize,
    every: usize,
}

fn interleaving() -> impl Strategy<Value = Interleaving> {
    // This many small slices cover all books of a feed by order; the orders follow.
    (prop::sample::select(&[0, 8_190][..]), 1_usize..12).prop_map(|(first, every)| Interleaving { first, every })
}

fn config(feed: Feed, store: OrderStoreKind) -> ChannelConfig {
    let config = ChannelHarness::config(feed, SCHEMAS);
    // Small enough that orders move out of the window.
    let books = BookLimits { orders_max: if store == OrderStoreKind::Window { 32 } else { 2_000 }, ..config.books };
    ChannelConfig { order_store: store, books, ..config }
}

/// A day's packets, and the number of packets until the next gap is declared. Meanwhile later packets are held.
#[derive(Clone, Copy)]
struct Input<'a> {
    packets: &'a [Vec<u8>],
    packets_per_timeout: usize,
}

impl Input<'_> {
    fn deliver_one(self, harness: &mut ChannelHarness, number: usize) {
        harness.datagram(Line::A, &self.packets[number]);
        if (number + 1).is_multiple_of(self.packets_per_timeout) || number + 1 == self.packets.len() {
            harness.wait();
        }
    }

    fn deliver_range(self, harness: &mut ChannelHarness, numbers: std::ops::Range<usize>) {
        numbers.for_each(|number| self.deliver_one(harness, number));
    }

    fn deliver_all(self, harness: &mut ChannelHarness) {
        self.deliver_range(harness, 0..self.packets.len());
    }
}

/// Takes a copy and returns its slices and its end position. Packets from `begin` on arrive meanwhile; an invalidated
/// copy is restarted.
fn take_copy(
    harness: &mut ChannelHarness,
    input: Input<'_>,
    begin: usize,
    interleaving: Interleaving,
) -> (Vec<Vec<u8>>, Sequence) {
    let mut numbers = begin..input.packets.len();
    'copies: loop {
        let _earlier = harness.channel.begin_copy(CopyBuffer::in_small_slices());
        let mut slices = Vec::new();
        for count in 0.. {
            let mut slice = Vec::with_capacity(SLICE_BYTES_MAX);
            let step = harness.channel.copy_slice(&mut slice);
            assert!(slice.capacity() == SLICE_BYTES_MAX, "a slice never allocates");
            slices.push(slice);
            match step {
                CopyStep::More => {}
                CopyStep::Done { next } => {
                    assert!(harness.channel.end_copy().is_some() && harness.channel.end_copy().is_none());
                    input.deliver_range(harness, numbers);
                    return (slices, next);
                }
                CopyStep::Failed(fault) => {
                    assert_eq!(fault, CopyFault::Invalidated);
                    continue 'copies;
                }
            }
            if count >= interleaving.first
                && count % interleaving.every == 0
                && let Some(number) = numbers.next()
            {
                input.deliver_one(harness, number);
            }
        }
    }
}

const NO_INPUT: Input<'_> = Input { packets: &[], packets_per_timeout: 1 };

fn restored(config: &ChannelConfig, slices: &[Vec<u8>]) -> Result<ChannelHarness, CopyFault> {
    let mut joiner = CopyRestorer::new(config.clone());
    for (number, slice) in slices.iter().enumerate() {
        assert_eq!(joiner.push_slice(slice)?, number + 1 == slices.len());
    }
    let mut harness = ChannelHarness::new(config.clone());
    harness.channel = joiner.into_channel()?;
    let (session, next) = harness.channel.position().expect("a copy has a position");
    harness.output.session(session, next);
    Ok(harness)
}

fn frames_from(frames: Vec<Frame>, next: Sequence) -> Vec<Frame> {
    frames.into_iter().filter(|frame| frame.sequence >= next).collect()
}

proptest! {
    /// For any earlier input, any start of the copy, and any input during the copy.
    #[test]
    fn a_restored_channel_continues_like_the_copied_one(
        (feed, mut messages) in any_day(),
        input_faults in prop::collection::vec(input_fault(), 0..6),
        lengths in prop::collection::vec(1_usize..8, 1..8),
        missing in prop::option::of(any::<Index>()),
        is_late in prop::bool::weighted(0.2),
        (begin, interleaving, packets_per_timeout) in (any::<Index>(), interleaving(), 1_usize..5),
        store in prop::sample::select(&[OrderStoreKind::Hash, OrderStoreKind::Window][..]),
    ) {
        apply_input_faults(&mut messages, &input_faults);
        prop_assume!(!messages.is_empty());
        let mut packets = cut_of(feed, &messages, &lengths);
        if let Some(missing) = missing.filter(|_| packets.len() > 1) {
            packets.remove(missing.index(packets.len()));
        }
        if is_late && packets.len() > 1 {
            packets.remove(0);
        }
        let config = config(feed, store);
        let mut whole = ChannelHarness::new(config.clone());
        let input = Input { packets: &packets, packets_per_timeout };
        input.deliver_all(&mut whole);

        let begin = begin.index(packets.len()) + 1;
        let mut donor = ChannelHarness::new(config.clone());
        input.deliver_range(&mut donor, 0..begin);
        let (slices, next) = take_copy(&mut donor, input, begin, interleaving);
        prop_assert_eq!(&donor.output.messages(), &whole.output.messages(), "to be copied changes nothing");

        let mut joiner = restored(&config, &slices).unwrap();
        prop_assert_eq!(joiner.channel.position().map(|(_, next)| next), Some(next));
        // The whole input once more: packets before the copy's position are old.
        input.deliver_all(&mut joiner);
        prop_assert_eq!(joiner.output.messages(), frames_from(whole.output.messages(), next), "{:?} from {}", feed, next.0);
        prop_assert_eq!(joiner.channel.position(), whole.channel.position());
        prop_assert_eq!(joiner.channel.has_missed_input(), whole.channel.has_missed_input());
        let by_name = |name: &str| InstrumentId::from_symbol(name.as_bytes());
        for instrument in (0..5).map(InstrumentId).chain(["ZIEXT", "ZEXIT", "ZXIET"].map(by_name)) {
            prop_assert_eq!(joiner.channel.book(instrument, 99), whole.channel.book(instrument, 99));
        }
        prop_assert_eq!(joiner.channel.orders(&|_| true), whole.channel.orders(&|_| true));

        // A copy of the copy is equal.
        let (again, next) = take_copy(&mut joiner, NO_INPUT, 0, interleaving);
        let third = restored(&config, &again).unwrap();
        prop_assert_eq!(third.channel.position().map(|(_, next)| next), Some(next));
        prop_assert_eq!(third.channel.orders(&|_| true), whole.channel.orders(&|_| true));
    }

    /// Bytes changed, removed, duplicated or added anywhere: no panic, and an accepted copy matches its counts.
    #[test]
    fn a_damaged_copy_is_refused_or_complete(
        (feed, messages) in any_day(),
        changes in prop::collection::vec((any::<Index>(), any::<Index>(), any::<u8>()), 0..4),
        (cut, doubled) in (prop::option::of(any::<Index>()), prop::option::of(any::<Index>())),
    ) {
        prop_assume!(!messages.is_empty());
        let config = config(feed, OrderStoreKind::Hash);
        let packets = cut_of(feed, &messages, &[5]);
        let mut donor = ChannelHarness::new(config.clone());
        donor.datagrams(&packets);
        let (mut slices, _) = take_copy(&mut donor, NO_INPUT, 0, Interleaving { first: 0, every: 1 });
        slices.retain(|slice| !slice.is_empty());
        for (slice, at, byte) in changes {
            let slice = slice.index(slices.len());
            let at = at.index(slices[slice].len());
            slices[slice][at] = byte;
        }
        if let Some(doubled) = doubled {
            let doubled = slices[doubled.index(slices.len())].clone();
            slices.push(doubled);
        }
        if let Some(cut) = cut {
            let last = slices.last_mut().unwrap();
            last.truncate(cut.index(last.len()));
        }
        let mut joiner = CopyRestorer::new(config.clone());
        let outcome = slices.iter().try_for_each(|slice| joiner.push_slice(slice).map(drop));
        if let Ok(channel) = outcome.and_then(|()| joiner.into_channel()) {
            let mut harness = ChannelHarness { channel, ..ChannelHarness::new(config) };
            harness.datagrams(&packets).wait();
        }
    }
}

fn itch_day() -> Vec<Vec<u8>> {
    vec![add(1, 1, BUY, 10, 100_000), add(2, 2, SELL, 10, 110_000), add(1, 3, BUY, 7, 99_000), delete(2, 2)]
}

fn slices_of(feed: Feed, messages: &[Vec<u8>]) -> (ChannelConfig, Vec<Vec<u8>>) {
    let config = config(feed, OrderStoreKind::Hash);
    let mut donor = ChannelHarness::new(config.clone());
    donor.datagrams(&cut_of(feed, messages, &[2]));
    let (slices, _) = take_copy(&mut donor, NO_INPUT, 0, Interleaving { first: 0, every: 1 });
    (config, slices.into_iter().filter(|slice| !slice.is_empty()).collect())
}

#[test]
fn a_copy_of_another_version_feed_day_or_set_of_schemas_is_refused() {
    let (config, slices) = slices_of(Feed::NasdaqItch, &itch_day());
    assert!(restored(&config, &slices).is_ok(), "the control");
    let rejection = |config: &ChannelConfig, slices: &[Vec<u8>]| restored(config, slices).err();
    let mut newer = slices.clone();
    newer[0][9] += 1;
    assert_eq!(rejection(&config, &newer), Some(CopyFault::Mismatch));
    for other in [
        ChannelConfig { feed: Feed::BxItch, ..config.clone() },
        ChannelConfig { schemas: SchemaSet::MBO, ..config.clone() },
        ChannelConfig { date: TradingDate::from_yyyymmdd(20_190_131), ..config.clone() },
    ] {
        assert_eq!(rejection(&other, &slices), Some(CopyFault::Mismatch));
    }
}

#[test]
fn an_incomplete_or_too_large_copy_is_refused() {
    let (config, slices) = slices_of(Feed::NasdaqItch, &itch_day());
    let all: Vec<u8> = slices.concat();
    let mut joiner = CopyRestorer::new(config.clone());
    assert_eq!(joiner.push_slice(&all), Ok(true));
    // An order is 33 bytes, after the head and two books of 8 bytes.
    let (head, order) = (15 + 2 * 8, 33);
    assert_eq!(all[head], 1, "an order comes next");
    let lacking = [&all[..head], &all[head + order..]].concat();
    let mut joiner = CopyRestorer::new(config.clone());
    assert_eq!(joiner.push_slice(&lacking), Ok(true));
    assert_eq!(joiner.into_channel().err(), Some(CopyFault::Incomplete));
    let mut joiner = CopyRestorer::new(config.clone());
    assert_eq!(joiner.push_slice(&all[..head]), Ok(false));
    assert_eq!(joiner.into_channel().err(), Some(CopyFault::Incomplete));
    assert_eq!(CopyRestorer::new(config.clone()).push_slice(&all[15..]), Err(CopyFault::Malformed), "without its head");
    let small = BookLimits { orders_max: 1, ..config.books };
    assert_eq!(
        restored(&ChannelConfig { books: small, ..config.clone() }, std::slice::from_ref(&all)).err(),
        Some(CopyFault::NoRoom)
    );
    let small = BookLimits { levels_max: 1, ..config.books };
    assert_eq!(restored(&ChannelConfig { books: small, ..config }, &[all]).err(), Some(CopyFault::NoRoom));
}

/// Negative control: the comparison above fails if a change during the copy is not written again.
#[test]
fn a_copy_without_entries_touched_meanwhile_differs() {
    let messages = [add(1, 1, BUY, 10, 100_000), cancel(1, 1, 3)];
    let config = config(Feed::NasdaqItch, OrderStoreKind::Hash);
    let packets = cut_of(Feed::NasdaqItch, &messages, &[1]);
    let mut donor = ChannelHarness::new(config.clone());
    donor.datagrams(&packets[..1]);
    let _earlier = donor.channel.begin_copy(CopyBuffer::in_small_slices());
    let (mut bytes, mut step) = (Vec::new(), CopyStep::More);
    let order = [&[1][..], &1_u64.to_le_bytes()].concat();
    let last_order_item = |bytes: &[u8]| bytes.windows(order.len()).rposition(|window| window == order);
    while step == CopyStep::More {
        let was_written = last_order_item(&bytes).is_some();
        let mut slice = Vec::with_capacity(SLICE_BYTES_MAX);
        step = donor.channel.copy_slice(&mut slice);
        bytes.extend(slice);
        if !was_written && last_order_item(&bytes).is_some() {
            donor.datagrams(&packets[1..]);
        }
    }
    let size = |bytes: &[u8]| restored(&config, &[bytes.to_vec()]).unwrap().channel.orders(&|_| true).unwrap()[0].size;
    assert_eq!(size(&bytes), 7);
    let rewritten = last_order_item(&bytes).unwrap();
    bytes.drain(rewritten..rewritten + 33);
    assert_eq!(size(&bytes), 10);
}

#[test]
fn gaps_and_session_changes_invalidate_a_copy() {
    let config = config(Feed::NasdaqItch, OrderStoreKind::Hash);
    let packets = cut_of(Feed::NasdaqItch, &itch_day(), &[1]);
    let copy_across = |between: &dyn Fn(&mut ChannelHarness)| {
        let mut harness = ChannelHarness::new(config.clone());
        harness.datagrams(&packets[..1]);
        let _earlier = harness.channel.begin_copy(CopyBuffer::in_small_slices());
        let mut slice = Vec::with_capacity(SLICE_BYTES_MAX);
        assert_eq!(harness.channel.copy_slice(&mut slice), CopyStep::More);
        between(&mut harness);
        loop {
            slice.clear();
            match harness.channel.copy_slice(&mut slice) {
                CopyStep::More => {}
                step => return step,
            }
        }
    };
    let spoiled = CopyStep::Failed(CopyFault::Invalidated);
    assert_eq!(copy_across(&|_| {}), CopyStep::Done { next: Sequence(2) });
    assert_eq!(copy_across(&|harness| _ = harness.datagrams(&packets[1..])), CopyStep::Done { next: Sequence(5) });
    assert_eq!(copy_across(&|harness| _ = harness.datagrams(&packets[2..]).wait()), spoiled, "a gap");
    let session =
        ChannelHarness::new(config.clone()).datagrams(&packets[..1]).channel.position().map(|(session, _)| session);
    assert_eq!(copy_across(&|harness| harness.channel.peer_declared_gap(session.unwrap())), spoiled, "the peer's gap");
    let mut begun_again = Stream { name: b'2', ..Stream::new(Feed::NasdaqItch) };
    let begun_again = begun_again.packets(&itch_day(), 1);
    assert_eq!(copy_across(&|harness| _ = harness.datagrams(&begun_again)), spoiled, "another session");
    assert_eq!(copy_across(&|harness| harness.channel.fail()), CopyStep::Failed(CopyFault::NoState));
    let mut idle = ChannelHarness::new(config.clone());
    assert!(idle.channel.begin_copy(CopyBuffer::new()).is_none());
    let step = idle.channel.copy_slice(&mut Vec::with_capacity(SLICE_BYTES_MAX));
    assert_eq!(step, CopyStep::Failed(CopyFault::NoState), "nothing has come yet");
}

#[test]
fn a_deep_book_is_copied_during_an_incomplete_event() {
    let messages = [
        level(b'8', "ZIEXT", 5, 3, 1),
        level(b'5', "ZIEXT", 5, 9, 1),
        // The event is open: two messages of three.
        level(b'8', "ZIEXT", 0, 3, 0),
        level(b'8', "ZIEXT", 4, 4, 0),
        trade("ZIEXT", 1, 3),
        level(b'8', "ZIEXT", 6, 5, 1),
    ];
    let config = config(Feed::IexDeep, OrderStoreKind::Hash);
    let packets = cut_of(Feed::IexDeep, &messages, &[1]);
    let mut whole = ChannelHarness::new(config.clone());
    whole.datagrams(&packets);
    let mut donor = ChannelHarness::new(config.clone());
    donor.datagrams(&packets[..4]);
    let (slices, next) = take_copy(&mut donor, NO_INPUT, 0, Interleaving { first: 0, every: 1 });
    let mut joiner = restored(&config, &slices).unwrap();
    joiner.datagrams(&packets[4..]);
    let expected = frames_from(whole.output.messages(), next);
    assert!(next == Sequence(5) && expected.len() == 2);
    assert_eq!(joiner.output.messages(), expected);
}

/// A peer of the version that wrote the fixture copies from this version, and this version from it.
#[test]
fn copies_are_those_of_version_0_1_0() {
    let day = |feed: Feed| match feed {
        Feed::NasdaqItch => itch_day(),
        // The event is open.
        Feed::IexDeep => vec![
            level(b'8', "ZIEXT", 5, 3, 1),
            level(b'5', "ZIEXT", 5, 9, 1),
            level(b'8', "ZIEXT", 0, 3, 0),
            level(b'8', "ZIEXT", 4, 4, 0),
        ],
        _ => vec![
            quote("ZIEXT", (100, 990_000), (200, 1_010_000)),
            quote("ZEXIT", (1, 5), (2, 7)),
            trade("ZIEXT", 100, 990_000),
        ],
    };
    let read = |copy: &[u8]| {
        let feed = Feed::from_number(u16::from_le_bytes([copy[11], copy[12]])).expect("a feed");
        let (config, _) = slices_of(feed, &day(feed));
        let harness = restored(&config, &[copy.to_vec()]).expect("a copy that is accepted");
        let mut donor = ChannelHarness::new(config);
        donor.datagrams(&cut_of(feed, &day(feed), &[2]));
        assert_eq!(harness.channel.orders(&|_| true), donor.channel.orders(&|_| true));
        for instrument in [InstrumentId(1), InstrumentId(2), InstrumentId::from_symbol(b"ZIEXT")] {
            assert_eq!(harness.channel.book(instrument, 99), donor.channel.book(instrument, 99));
        }
        feed
    };
    let write = |feed: &Feed| slices_of(*feed, &day(*feed)).1.concat();
    let fixture = include_str!("../../../../tests/data/formats/state_copy.hex");
    check(fixture, &[Feed::NasdaqItch, Feed::IexDeep, Feed::IexTops], read, write);
}
