//! What a receiver keeps of a stream of any length: hashes of blocks of messages, counts, silences, latencies. Two streams
//! with the same block hashes hold the same messages, each once and in order.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use mdgw_feeds::identity::Session;

use super::receiver::{Delivered, DeliveredItem};

/// Block of a session: its messages have sequences from `number * BLOCK_MESSAGES` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId {
    /// Session of the venue.
    pub session: Session,
    /// Number of the block, from 0.
    pub number: u64,
}

/// Hashes of the blocks that were received from their beginning to their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockHashes {
    complete: BTreeMap<BlockId, u64>,
    open: Option<OpenBlock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenBlock {
    id: BlockId,
    hash: u64,
    /// The stream was received before the block began.
    has_begin: bool,
}

impl BlockHashes {
    /// Adds the next message. `has_begin`: if it is the first of all, no message of its session came before it.
    pub fn add(&mut self, session: Session, sequence: u64, content_hash: u64, has_begin: bool) {
        let id = BlockId { session, number: sequence / BLOCK_MESSAGES };
        if self.open.is_none_or(|open| open.id != id) {
            let has_begin = self.open.map_or(has_begin, |open| open.id.session == session || has_begin);
            self.close();
            self.open = Some(OpenBlock { id, hash: 0, has_begin });
        }
        if let Some(open) = &mut self.open {
            open.hash = mix(mix(open.hash, sequence), content_hash);
        }
    }

    /// Ends the open block: the session has ended, or the next block begins.
    pub fn close(&mut self) {
        if let Some(open) = self.open.take()
            && open.has_begin
        {
            self.complete.insert(open.id, open.hash);
        }
    }

    /// The blocks with the hash of each.
    #[must_use]
    pub fn complete(&self) -> &BTreeMap<BlockId, u64> {
        &self.complete
    }

    /// Expected blocks, from the first to the last complete one, that are missing or differ, and blocks that were not expected.
    /// A permanent receiver must have all of the expected blocks.
    #[must_use]
    pub fn differences(&self, expected: &Self, is_permanent: bool) -> Vec<BlockId> {
        let (Some((first, _)), Some((last, _))) = (self.complete.first_key_value(), self.complete.last_key_value())
        else {
            return if is_permanent { expected.complete.keys().copied().collect() } else { Vec::new() };
        };
        let must_have = |id: &BlockId| is_permanent || (first..=last).contains(&id);
        let missing_or_different =
            expected.complete.iter().filter(|(id, hash)| must_have(id) && self.complete.get(id) != Some(hash));
        let unexpected = self.complete.keys().filter(|id| !expected.complete.contains_key(id));
        missing_or_different.map(|(id, _)| id).chain(unexpected).copied().collect()
    }
}

/// One step of a 64-bit hash that depends on the order of its inputs.
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Time without a new message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Last message before it, ns since 1970 UTC.
    pub from_ns: u64,
    /// Its length, ns.
    pub length_ns: u64,
}

/// The summary of one receiver's stream.
#[derive(Clone, Debug)]
pub struct StreamSummary {
    /// Hashes of its blocks.
    pub blocks: BlockHashes,
    /// Messages delivered.
    pub messages: u64,
    /// Messages delivered after a later one of the same session, or twice.
    pub out_of_order: u64,
    /// Messages in gaps that a gateway declared.
    pub declared_gaps: u64,
    /// Messages that the receiver gave up.
    pub receiver_gaps: u64,
    /// Messages with a suspect book.
    pub suspect: u64,
    /// Silences of at least [`SILENCE_NS_MIN`], but not those between sessions.
    pub silences: Vec<Silence>,
    /// From the gateway's receive time of the input to the receiver's kernel, ns, by minute since 1970 UTC.
    pub latency_by_minute: BTreeMap<u64, Histogram<u64>>,
    /// The receiver was there before the venue.
    is_permanent: bool,
    last_message: Option<(Session, u64, u64)>,
}

impl StreamSummary {
    /// An empty summary. `is_permanent`: the receiver starts before the venue.
    #[must_use]
    pub fn new(is_permanent: bool) -> Self {
        Self {
            blocks: BlockHashes::default(),
            messages: 0,
            out_of_order: 0,
            declared_gaps: 0,
            receiver_gaps: 0,
            suspect: 0,
            silences: Vec::new(),
            latency_by_minute: BTreeMap::new(),
            is_permanent,
            last_message: None,
        }
    }

    /// Adds the next delivery. `ts_recv_ns`: when the gateway received a message's input, ns since 1970 UTC; 0 if unknown.
    pub fn add(&mut self, delivered: &Delivered, ts_recv_ns: u64) {
        match delivered.item {
            DeliveredItem::Gap(count) => self.declared_gaps += count,
            DeliveredItem::Lost(count) => self.receiver_gaps += count,
            DeliveredItem::End => {
                self.blocks.close();
                self.last_message = None;
            }
            DeliveredItem::Message { id: (session, sequence), content_hash, is_suspect } => {
                self.messages += 1;
                self.suspect += u64::from(is_suspect);
                if let Some((last_session, last_sequence, last_ns)) = self.last_message {
                    self.out_of_order += u64::from((session, sequence) <= (last_session, last_sequence));
                    let length_ns = delivered.time_ns.saturating_sub(last_ns);
                    if length_ns >= SILENCE_NS_MIN && session == last_session {
                        self.silences.push(Silence { from_ns: last_ns, length_ns });
                    }
                }
                self.last_message = Some((session, sequence, delivered.time_ns));
                self.blocks.add(session, sequence, content_hash, self.is_permanent || self.messages > 1);
                if ts_recv_ns > 0 {
                    let histogram = self.latency_by_minute.entry(delivered.time_ns / MINUTE_NS).or_insert_with(|| {
                        Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("three digits of a minute can be recorded")
                    });
                    histogram.saturating_record(delivered.time_ns.saturating_sub(ts_recv_ns));
                }
            }
        }
    }

    /// Whether nothing was lost, repeated, out of order or suspect, and all blocks are as expected.
    #[must_use]
    pub fn is_as_expected(&self, expected: &BlockHashes) -> bool {
        self.out_of_order + self.declared_gaps + self.receiver_gaps + self.suspect == 0
            && self.blocks.differences(expected, self.is_permanent).is_empty()
    }
}

/// Messages of a block.
pub const BLOCK_MESSAGES: u64 = 1 << 16;
/// Shorter silences are not kept, ns.
pub const SILENCE_NS_MIN: u64 = 50_000_000;
const MINUTE_NS: u64 = 60_000_000_000;
const LATENCY_NS_MAX: u64 = MINUTE_NS;

#[cfg(test)]
mod tests {
    use mdgw_feeds::identity::{Epoch, Feed};

    use super::*;
    use crate::trading_day::DATE;

    fn session(restart: u32) -> Session {
        Session { feed: Feed::NasdaqItch, date: DATE.parse().expect("a date"), restart }
    }

    const MESSAGES: u64 = 3 * BLOCK_MESSAGES + 10;

    fn blocks(sequences: impl IntoIterator<Item = u64>, is_permanent: bool) -> BlockHashes {
        let mut blocks = BlockHashes::default();
        for sequence in sequences {
            blocks.add(session(0), sequence, sequence % 7, is_permanent);
        }
        blocks.close();
        blocks
    }

    #[test]
    fn a_stream_with_each_message_once_and_in_order_is_as_expected() {
        let expected = blocks(1..=MESSAGES, true);
        assert_eq!(expected.complete().len(), 4);
        assert_eq!(blocks(1..=MESSAGES, true).differences(&expected, true), []);
    }

    #[test]
    fn a_lost_a_repeated_and_two_exchanged_messages_are_found() {
        let expected = blocks(1..=MESSAGES, true);
        let id = |number| BlockId { session: session(0), number };
        let lost = (1..=MESSAGES).filter(|sequence| *sequence != BLOCK_MESSAGES + 5);
        assert_eq!(blocks(lost, true).differences(&expected, true), [id(1)]);
        let repeated =
            (1..=MESSAGES).flat_map(|sequence| std::iter::repeat_n(sequence, 1 + usize::from(sequence == 9)));
        assert_eq!(blocks(repeated, true).differences(&expected, true), [id(0)]);
        let exchanged = (1..=MESSAGES).map(|sequence| match sequence {
            9 => 10,
            10 => 9,
            sequence => sequence,
        });
        assert_eq!(blocks(exchanged, true).differences(&expected, true), [id(0)]);
        let whole_block = (1..=MESSAGES).filter(|sequence| sequence / BLOCK_MESSAGES != 2);
        assert_eq!(blocks(whole_block, true).differences(&expected, true), [id(2)]);
        let end = 1..=MESSAGES - 1;
        assert_eq!(blocks(end, true).differences(&expected, true), [id(3)]);
    }

    #[test]
    fn a_receiver_that_comes_late_is_compared_from_its_first_whole_block_on() {
        let expected = blocks(1..=MESSAGES, true);
        let visitor = blocks(100..=MESSAGES, false);
        assert_eq!(visitor.complete().len(), 3);
        assert_eq!(visitor.differences(&expected, false), []);
        let lost = (100..=MESSAGES).filter(|sequence| *sequence != 2 * BLOCK_MESSAGES);
        assert_eq!(blocks(lost, false).differences(&expected, false).len(), 1);
    }

    #[test]
    fn silences_between_sessions_are_no_silences() {
        let mut summary = StreamSummary::new(true);
        let message = |restart, sequence, time_ns| Delivered {
            time_ns,
            epoch: Epoch(1),
            item: DeliveredItem::Message { id: (session(restart), sequence), content_hash: 0, is_suspect: false },
        };
        summary.add(&message(0, 1, 1_000), 900);
        summary.add(&message(0, 2, 1_000 + SILENCE_NS_MIN), 0);
        summary.add(&Delivered { time_ns: 0, epoch: Epoch(1), item: DeliveredItem::End }, 0);
        summary.add(&message(1, 1, 10 * SILENCE_NS_MIN), 0);
        assert_eq!(summary.silences, [Silence { from_ns: 1_000, length_ns: SILENCE_NS_MIN }]);
        assert_eq!(summary.latency_by_minute[&0].len(), 1);
        assert_eq!((summary.messages, summary.out_of_order, summary.blocks.complete().len()), (3, 0, 1));
    }
}
