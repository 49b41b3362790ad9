//! Properties that hold for every input.

use std::collections::BTreeMap;

use dbn::enums::rtype;
use proptest::{prelude::*, sample::Index};

use super::{
    input::*,
    recorded_output::{Frame, pairs, u32_at, u64_at},
    *,
};
use crate::venue::iex::admin::TradingStatus;

/// Loss, duplication and delay of the copies of one packet.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// The line that loses its copy, if any; never both lines.
    lost: Option<Line>,
    is_doubled: bool,
    /// By how many positions each copy is delayed.
    delay: [u8; 2],
}

fn fate() -> impl Strategy<Value = Fate> {
    let lost = prop_oneof![3 => Just(None), 2 => Just(Some(Line::A)), 2 => Just(Some(Line::B))];
    (lost, prop::bool::weighted(0.2), [0_u8..6, 0_u8..6]).prop_map(|(lost, is_doubled, delay)| Fate {
        lost,
        is_doubled,
        delay,
    })
}

/// One message of a generated day. [`day`] turns it into a valid message.
#[derive(Clone, Debug)]
enum Step {
    Add { locate: u16, is_bid: bool, price: u32, shares: u32 },
    Execute { which: Index, shares: u32, is_printable: Option<bool> },
    Cancel { which: Index, shares: u32 },
    Delete { which: Index },
    Replace { which: Index, price: u32, shares: u32 },
    Hidden { locate: u16, price: u32 },
    Halt { locate: u16 },
    Unknown,
}

fn step() -> impl Strategy<Value = Step> {
    let locate = || 1_u16..4;
    let which = any::<Index>;
    prop_oneof![
        8 => (locate(), any::<bool>(), 0_u32..14, 1_u32..200)
            .prop_map(|(locate, is_bid, price, shares)| Step::Add { locate, is_bid, price, shares }),
        3 => (which(), 1_u32..150, any::<Option<bool>>())
            .prop_map(|(which, shares, is_printable)| Step::Execute { which, shares, is_printable }),
        2 => (which(), 1_u32..150).prop_map(|(which, shares)| Step::Cancel { which, shares }),
        3 => which().prop_map(|which| Step::Delete { which }),
        2 => (which(), 0_u32..14, 1_u32..200).prop_map(|(which, price, shares)| Step::Replace { which, price, shares }),
        1 => (locate(), 0_u32..14).prop_map(|(locate, price)| Step::Hidden { locate, price }),
        1 => locate().prop_map(|locate| Step::Halt { locate }),
        1 => Just(Step::Unknown),
    ]
}

/// The messages of a venue that keeps its own rules: no order is over-executed, no book crossed.
fn day(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut live: Vec<(u16, u64, bool, u32)> = Vec::new();
    let price_e4 = |is_bid: bool, away: u32| if is_bid { 100_000 - away * 100 } else { 100_100 + away * 100 };
    let mut next_id = 1;
    let mut messages = Vec::new();
    for step in steps {
        let used_up = |live: &mut Vec<(u16, u64, bool, u32)>, at: usize, shares: u32| {
            let taken = shares.min(live[at].3);
            live[at].3 -= taken;
            if live[at].3 == 0 {
                live.swap_remove(at);
            }
            taken
        };
        let message = match *step {
            Step::Add { locate, is_bid, price, shares } => {
                live.push((locate, next_id, is_bid, shares));
                next_id += 1;
                let side = if is_bid { BUY } else { SELL };
                add(locate, next_id - 1, side, shares, price_e4(is_bid, price))
            }
            Step::Hidden { locate, price } => hidden(locate, BUY, 5, price_e4(true, price)),
            Step::Halt { locate } => halt(locate, b'T', *b"    "),
            Step::Unknown => b"?".to_vec(),
            _ if live.is_empty() => continue,
            Step::Execute { which, shares, is_printable } => {
                let at = which.index(live.len());
                let (locate, id, ..) = live[at];
                let taken = used_up(&mut live, at, shares);
                match is_printable {
                    None => execute(locate, id, taken),
                    Some(is_printable) => execute_at(locate, id, taken, if is_printable { b'Y' } else { b'N' }, 99_950),
                }
            }
            Step::Cancel { which, shares } => {
                let at = which.index(live.len());
                let (locate, id, ..) = live[at];
                cancel(locate, id, used_up(&mut live, at, shares))
            }
            Step::Delete { which } => {
                let (locate, id, ..) = live.swap_remove(which.index(live.len()));
                delete(locate, id)
            }
            Step::Replace { which, price, shares } => {
                let (locate, id, is_bid, _) = live.swap_remove(which.index(live.len()));
                live.push((locate, next_id, is_bid, shares));
                next_id += 1;
                replace(locate, id, next_id - 1, shares, price_e4(is_bid, price))
            }
        };
        messages.push(message);
    }
    messages
}

/// Packets split at these lengths, repeatedly.
fn cut(messages: &[Vec<u8>], lengths: &[usize]) -> Vec<Vec<u8>> {
    cut_of(Feed::NasdaqItch, messages, lengths)
}

pub(super) fn cut_of(feed: Feed, messages: &[Vec<u8>], lengths: &[usize]) -> Vec<Vec<u8>> {
    let mut stream = Stream::new(feed);
    let mut packets = Vec::new();
    let mut rest = messages;
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at((*length).min(rest.len()));
        packets.push(stream.packet(now));
        rest = later;
    }
    packets
}

pub(super) const SCHEMAS: SchemaSet = SchemaSet(0xff);

/// An IEX message of any kind, for a few symbols.
fn iex_message(feed: Feed) -> impl Strategy<Value = Vec<u8>> {
    let name = || prop::sample::select(&["ZIEXT", "ZEXIT", "ZXIET"][..]);
    let trading = |name: &str| iex!(b'H', name, TradingStatus { trading_status: b'T' });
    let is_tops = feed == Feed::IexTops;
    prop_oneof![
        4 => (name(), any::<bool>(), 0_u32..3, 1_i64..9, 0_u8..2).prop_map(move |(name, is_bid, size, price, flags)| {
            if is_tops {
                quote(name, (size, price), (size + 1, price + 1))
            } else {
                level(if is_bid { b'8' } else { b'5' }, name, size, if is_bid { price } else { 10 + price }, flags)
            }
        }),
        2 => (name(), 1_u32..9, 1_i64..9).prop_map(|(name, size, price)| trade(name, size, price)),
        1 => name().prop_map(trading),
    ]
}

/// A day of any feed.
pub(super) fn any_day() -> impl Strategy<Value = (Feed, Vec<Vec<u8>>)> {
    let itch = prop::collection::vec(step(), 1..120).prop_map(|steps| (Feed::NasdaqItch, day(&steps)));
    let iex = |feed| prop::collection::vec(iex_message(feed), 1..120).prop_map(move |messages| (feed, messages));
    prop_oneof![itch, iex(Feed::IexTops), iex(Feed::IexDeep)]
}

/// Frames without their local times, after the lines delivered everything in order.
fn frames(arrivals: &[(Line, Vec<u8>)]) -> (Vec<Frame>, ChannelHarness) {
    frames_of(Feed::NasdaqItch, arrivals)
}

fn frames_of(feed: Feed, arrivals: &[(Line, Vec<u8>)]) -> (Vec<Frame>, ChannelHarness) {
    let mut harness = ChannelHarness::new(ChannelHarness::config(feed, SCHEMAS));
    for (line, packet) in arrivals {
        harness.datagram(*line, packet);
    }
    harness.channel.finish(&mut harness.output);
    let frames = harness.output.messages();
    (frames, harness)
}

fn single_line(messages: &[Vec<u8>]) -> (Vec<Frame>, ChannelHarness) {
    let packets = Stream::new(Feed::NasdaqItch).packets(messages, 5);
    frames(&packets.into_iter().map(|packet| (Line::A, packet)).collect::<Vec<_>>())
}

/// Both lines of these packets, damaged, except for the beginning: a late joiner begins later.
fn damaged(packets: &[Vec<u8>], fates: &[Fate]) -> Vec<(Line, Vec<u8>)> {
    let mut arrivals = Vec::new();
    for (number, (packet, fate)) in packets.iter().zip(fates.iter().cycle()).enumerate() {
        for line in [Line::A, Line::B] {
            if fate.lost == Some(line) && number > 0 {
                continue;
            }
            let delay = if number == 0 { 0 } else { usize::from(fate.delay[usize::from(line.0)]) };
            for copy in 0..=usize::from(fate.is_doubled) {
                arrivals.push((2 * (number + delay) + copy, line, packet.clone()));
            }
        }
    }
    arrivals.sort_by_key(|(at, ..)| *at);
    arrivals.into_iter().map(|(_, line, packet)| (line, packet)).collect()
}

proptest! {
    #[test]
    fn two_lossy_lines_give_the_frames_of_a_complete_line(
        steps in prop::collection::vec(step(), 1..200),
        lengths in prop::collection::vec(1_usize..8, 1..8),
        fates in prop::collection::vec(fate(), 1..40),
    ) {
        let messages = day(&steps);
        let (whole, _) = single_line(&messages);
        let (mended, harness) = frames(&damaged(&cut(&messages, &lengths), &fates));
        prop_assert_eq!(harness.channel.counters().gaps, 0);
        prop_assert_eq!(harness.channel.book_faults().total(), 0, "a day without faults");
        prop_assert_eq!(&whole, &mended);
    }

    /// Missing input at the beginning or in the middle.
    #[test]
    fn output_that_differs_after_missed_input_is_suspect(
        (feed, messages) in any_day(),
        lengths in prop::collection::vec(1_usize..8, 1..8),
        (from, until) in (any::<Index>(), any::<Index>()),
        is_late in any::<bool>(),
    ) {
        let packets: Vec<_> =
            cut_of(feed, &messages, &lengths).into_iter().map(|packet| (Line::A, packet)).collect();
        let (whole, _) = frames_of(feed, &packets);
        let (one, other) = (from.index(packets.len() + 1), until.index(packets.len() + 1));
        let missed = if is_late { 0..other } else { one.min(other)..one.max(other) };
        let (before, after) = (&packets[..missed.start], &packets[missed.end..]);
        let (partial, _) = frames_of(feed, &[before, after].concat());
        let whole: BTreeMap<_, _> = whole.iter().map(|frame| (frame.sequence, &frame.body)).collect();
        for frame in partial.iter().filter(|frame| !frame.is_suspect) {
            prop_assert_eq!(whole.get(&frame.sequence), Some(&&frame.body), "{} {:?}", frame.sequence.0, feed);
        }
    }

    #[test]
    fn differently_cut_packets_give_the_same_frames(
        steps in prop::collection::vec(step(), 1..150),
        cuts in prop::array::uniform2(prop::collection::vec(1_usize..9, 1..6)),
    ) {
        let messages = day(&steps);
        let (whole, _) = single_line(&messages);
        let [a, b] = cuts.map(|lengths| cut(&messages, &lengths));
        let mut arrivals = Vec::new();
        for at in 0..a.len().max(b.len()) {
            arrivals.extend(a.get(at).map(|packet| (Line::A, packet.clone())));
            arrivals.extend(b.get(at).map(|packet| (Line::B, packet.clone())));
        }
        prop_assert_eq!(whole, frames(&arrivals).0);
    }

    /// A consumer that applies only A, C, M and R has at each event the levels of mbp-10, and the trades show the
    /// levels before the event.
    #[test]
    fn mbo_records_rebuild_the_published_mbp_levels(steps in prop::collection::vec(step(), 1..250)) {
        let (frames, _) = single_line(&day(&steps));
        prop_assert!(Consumer::default().follow(&frames).is_ok());
    }

    #[test]
    fn each_symbol_mapping_is_published_once_before_the_first_record(steps in prop::collection::vec(step(), 1..100)) {
        let (frames, _) = single_line(&day(&steps));
        let mut named = Vec::new();
        for record in frames.iter().flat_map(Frame::records) {
            let instrument = u32_at(record, 4);
            if record[1] == rtype::SYMBOL_MAPPING {
                prop_assert!(!named.contains(&instrument));
                named.push(instrument);
            }
            prop_assert!(named.contains(&instrument));
        }
    }

    /// Any bytes after any header, on any line, at any time: no panic, and message frames strictly ascend.
    #[test]
    fn frames_ascend_for_any_input(
        feed in prop::sample::select(&Feed::ALL[..]),
        datagrams in prop::collection::vec((0_u8..3, hostile(), any::<bool>()), 1..60),
    ) {
        let mut config = ChannelHarness::config(feed, SCHEMAS);
        config.accept_unsequenced = datagrams.len() % 2 == 0;
        let mut harness = ChannelHarness::new(config);
        let mut whole = Stream::new(feed);
        for (line, hostile, is_late) in &datagrams {
            harness.datagram(Line(*line), &hostile.bytes(feed, &mut whole));
            if *is_late {
                harness.wait();
            }
        }
        harness.channel.finish(&mut harness.output);
        let frames = harness.output.messages();
        prop_assert!(frames.is_sorted_by(|one, other| (one.session, one.sequence) < (other.session, other.sequence)));
        let covering = harness.output.frames.iter().filter(|frame| matches!(frame.kind, FrameKind::Message | FrameKind::Gap));
        for (one, other) in covering.clone().zip(covering.skip(1)) {
            prop_assert!(one.session < other.session || one.next <= other.sequence);
        }
    }
}

/// A datagram that is partly valid, partly arbitrary.
#[derive(Clone, Debug)]
struct Hostile {
    messages: Vec<Vec<u8>>,
    /// Changed bytes of the datagram, and their new values.
    changes: Vec<(Index, u8)>,
    arbitrary: Option<Vec<u8>>,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let message = prop_oneof![
        2 => step().prop_map(|step| day(&[step]).pop().unwrap_or_default()),
        1 => (0_u8..2, 1_u32..9, 0_i64..9, 0_u8..2)
            .prop_map(|(side, size, price, flags)| level([b'8', b'5'][usize::from(side)], "ZIEXT", size - 1, price, flags)),
        1 => (1_u32..9, 1_i64..9).prop_map(|(size, price)| trade("ZIEXT", size, price)),
        1 => (0_u32..9, 0_i64..9).prop_map(|(size, price)| quote("ZIEXT", (size, price), (size, 5))),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ];
    let changes = prop_oneof![2 => Just(0_usize), 1 => 1_usize..4]
        .prop_flat_map(|count| prop::collection::vec((any::<Index>(), any::<u8>()), count));
    let arbitrary = prop::option::weighted(0.1, prop::collection::vec(any::<u8>(), 0..100));
    (prop::collection::vec(message, 0..4), changes, arbitrary).prop_map(|(messages, changes, arbitrary)| Hostile {
        messages,
        changes,
        arbitrary,
    })
}

impl Hostile {
    fn bytes(&self, feed: Feed, stream: &mut Stream) -> Vec<u8> {
        if let Some(arbitrary) = &self.arbitrary {
            return arbitrary.clone();
        }
        stream.feed = feed;
        stream.sent_ns += 200_000_000;
        let mut bytes = stream.packet(&self.messages);
        for (at, byte) in &self.changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        bytes
    }
}

/// A book that a consumer builds from records by order: order id to side, price and size.
#[derive(Default)]
struct Consumer {
    books: BTreeMap<u32, BTreeMap<u64, (u8, i64, u32)>>,
    /// Market-by-price records compared so far.
    compared: usize,
}

impl Consumer {
    /// Applies the frames. Returns the number of records compared, or as error the first sequence at which a
    /// market-by-price record differs from the book.
    fn follow(mut self, frames: &[Frame]) -> Result<usize, u64> {
        for frame in frames {
            let records = frame.records();
            // Trades show the book before the event: compare them first.
            for is_before in [true, false] {
                let shows_before = |record: &&&[u8]| (record[28] == b'T') == is_before;
                let by_price = records.iter().filter(|record| record[1] == rtype::MBP_10);
                for record in by_price.filter(shows_before) {
                    self.compared += 1;
                    if pairs(record, 10) != self.levels(u32_at(record, 4)) {
                        return Err(frame.sequence.0);
                    }
                }
                if is_before {
                    records.iter().filter(|record| record[1] == rtype::MBO).for_each(|mbo| self.apply(mbo));
                }
            }
        }
        Ok(self.compared)
    }

    fn apply(&mut self, mbo: &[u8]) {
        let book = self.books.entry(u32_at(mbo, 4)).or_default();
        let (id, size) = (u64_at(mbo, 16), u32_at(mbo, 32));
        let order = (mbo[39], u64_at(mbo, 24).cast_signed(), size);
        match mbo[38] {
            b'R' => book.clear(),
            b'A' | b'M' => drop(book.insert(id, order)),
            b'C' => {
                let resting = book.get_mut(&id).expect("cancels are of resting orders");
                assert_eq!((resting.0, resting.1), (order.0, order.1), "a cancel has the order's side and price");
                resting.2 -= size;
                if resting.2 == 0 {
                    book.remove(&id);
                }
            }
            _ => {}
        }
    }

    fn levels(&self, instrument: u32) -> Vec<dbn::BidAskPair> {
        let mut levels = vec![dbn::BidAskPair::default(); 10];
        let mut sides = [BTreeMap::<i64, (u32, u32)>::new(), BTreeMap::new()];
        for (side, price, size) in self.books.get(&instrument).into_iter().flat_map(BTreeMap::values) {
            let level = sides[usize::from(*side == b'A')].entry(*price).or_default();
            *level = (level.0 + size, level.1 + 1);
        }
        for (pair, (price, (size, count))) in levels.iter_mut().zip(sides[0].iter().rev()) {
            (pair.bid_px, pair.bid_sz, pair.bid_ct) = (*price, *size, *count);
        }
        for (pair, (price, (size, count))) in levels.iter_mut().zip(&sides[1]) {
            (pair.ask_px, pair.ask_sz, pair.ask_ct) = (*price, *size, *count);
        }
        levels
    }
}

// Negative control: the checks above detect a missing record and a message lost on both lines.
#[test]
fn the_checkers_detect_faults() {
    let messages = [add(1, 1, BUY, 10, 100_000), add(1, 2, BUY, 10, 99_000), delete(1, 1), add(1, 3, SELL, 5, 101_000)];
    let (frames, _) = single_line(&messages);
    assert_eq!(Consumer::default().follow(&frames), Ok(4));
    let without_the_second: Vec<Frame> = frames.iter().filter(|frame| frame.sequence.0 != 2).cloned().collect();
    assert_eq!(Consumer::default().follow(&without_the_second), Err(3));
    // Lost on both lines.
    let packets = Stream::new(Feed::NasdaqItch).packets(&messages, 1);
    let lost: Vec<_> = [0, 2, 3].into_iter().map(|at: usize| (Line::A, packets[at].clone())).collect();
    let (damaged, harness) = self::frames(&lost);
    assert_ne!(frames, damaged);
    assert_eq!(harness.channel.counters().gaps, 1);
}
