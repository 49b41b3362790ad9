//! What a standby has heard of the leader's output, for when it leads itself.
//!
//! A cold thread hears, the holder of the channel's claim looks when the fence opens: they share [`HeardWords`], and
//! neither ever waits for the other.

#[cfg(all(test, feature = "loom"))]
use loom::sync::atomic::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(all(test, feature = "loom")))]
use std::sync::atomic::{AtomicU64, fence};

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition, time::MonoNs};
use mdgw_publog::Position;

/// How far another gateway has published a channel. Each position says that everything before it has been published:
/// one too low repeats what receivers drop, one too high loses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Without a hole, from the output itself. Anybody may write to a multicast group, so what goes beyond the
    /// gateway's own input isn't believed.
    pub on_wire: Option<StreamPosition>,
    /// Under which epoch that was said last.
    pub epoch: Epoch,
    /// As the peer itself has told, authenticated.
    pub confirmed: Option<StreamPosition>,
}

impl Heard {
    /// What a gateway believes whose own log has come to `ready`.
    #[must_use]
    pub fn credible(&self, ready: Option<StreamPosition>) -> Option<StreamPosition> {
        let on_wire = self.on_wire.zip(ready).map(|(on_wire, ready)| on_wire.min(ready));
        on_wire.max(self.confirmed)
    }

    fn to_words(self) -> [u64; WORDS] {
        let [a, b, c] = self.on_wire.map_or([0; 3], StreamPosition::to_words);
        let [d, e, f] = self.confirmed.map_or([0; 3], StreamPosition::to_words);
        [a, b, c, d, e, f, self.epoch.0]
    }

    fn from_words([a, b, c, d, e, f, epoch]: [u64; WORDS]) -> Self {
        // No session is all zero.
        let [on_wire, confirmed] = [[a, b, c], [d, e, f]].map(StreamPosition::from_words);
        Self { on_wire, epoch: Epoch(epoch), confirmed }
    }
}

/// What the publisher of one channel and the cold threads beside it share.
#[derive(Debug, Default)]
pub struct TakeoverWords {
    /// What was heard: in.
    pub heard: HeardWords,
    /// Where the output of the gateway before ended: in.
    pub ended: EndedWords,
    /// What was sent: out.
    pub sent: SentWord,
    /// Where the output stood when the channel looked at the fence last: out.
    pub looks: LookWords,
    /// What the last opening of the fence came to: out.
    pub opening: OpeningWords,
}

/// What the last opening of the fence has come to. Written by the holder of the channel's claim when the fence opens, when
/// the first content is out and when the tail is through; read by any.
#[derive(Debug)]
#[repr(align(128))]
pub struct OpeningWords(Slots<9>);

/// An opening of the fence, as one channel sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Its epoch; 0 before the first.
    pub epoch: Epoch,
    /// Up to where the gateway before was heard to publish; `None`: this one led before, or nobody was heard.
    pub heard: Option<StreamPosition>,
    /// How far the own log had come.
    pub ready: Option<StreamPosition>,
    /// When the first content was handed to the kernel; `None` until then.
    pub first_content: Option<MonoNs>,
    /// Packets that were sent as a tail, each counted once for each line.
    pub tail_packets: u64,
}

impl OpeningWords {
    pub(super) fn set(&self, opening: Opening) {
        let Opening { epoch, heard, ready, first_content, tail_packets } = opening;
        let [a, b, c] = heard.map_or([0; 3], StreamPosition::to_words);
        let [d, e, f] = ready.map_or([0; 3], StreamPosition::to_words);
        self.0.set([epoch.0, a, b, c, d, e, f, first_content.map_or(0, |at| at.0), tail_packets]);
    }

    /// The last one.
    #[must_use]
    pub fn get(&self) -> Opening {
        let [epoch, a, b, c, d, e, f, first_content, tail_packets] = self.0.get().unwrap_or_default();
        let [heard, ready] = [[a, b, c], [d, e, f]].map(StreamPosition::from_words);
        let first_content = (first_content > 0).then_some(MonoNs(first_content));
        Opening { epoch: Epoch(epoch), heard, ready, first_content, tail_packets }
    }
}

impl Default for OpeningWords {
    fn default() -> Self {
        Self(Slots::new())
    }
}

/// The last look at the fence that the channel was asked for, and where its output stood then. Written by the holder of
/// the channel's claim, read by any.
///
/// A channel sends nothing while it answers, and under its claim alone. So once it has answered a question that was asked
/// after the fence had closed, no send of it is outstanding, and none will come.
#[derive(Debug)]
#[repr(align(128))]
pub struct LookWords(Slots<4>);

/// An answer: see [`LookWords`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Number of the question; 0 before the first.
    pub number: u64,
    /// Everything before it was sent by this gateway, or by those that led before it.
    pub position: Option<StreamPosition>,
}

impl LookWords {
    pub(super) fn set(&self, look: Look) {
        let [a, b, c] = look.position.map_or([0; 3], StreamPosition::to_words);
        self.0.set([look.number, a, b, c]);
    }

    /// The last answer.
    #[must_use]
    pub fn get(&self) -> Look {
        let [number, a, b, c] = self.0.get().unwrap_or_default();
        Look { number, position: StreamPosition::from_words([a, b, c]) }
    }
}

impl Default for LookWords {
    fn default() -> Self {
        Self(Slots::new())
    }
}

/// Where a gateway that has given up its leadership has said that its output ended; authenticated. Written by the election
/// thread, read by the holder of the channel's claim.
#[derive(Debug)]
#[repr(align(128))]
pub struct EndedWords(Slots<4>);

impl EndedWords {
    /// Everything before it was sent under that epoch, or earlier ones. What is older changes nothing. By the election thread alone.
    pub fn advance(&self, epoch: Epoch, position: StreamPosition) {
        if self.get().is_none_or(|(before, _)| before < epoch) {
            let [a, b, c] = position.to_words();
            self.0.set([a, b, c, epoch.0]);
        }
    }

    fn get(&self) -> Option<(Epoch, StreamPosition)> {
        let [a, b, c, epoch] = self.0.get()?;
        Some((Epoch(epoch), StreamPosition::from_words([a, b, c])?))
    }

    /// Where it ended under an epoch after that one.
    pub(super) fn after(&self, epoch: Epoch) -> Option<StreamPosition> {
        self.get().filter(|(ended, _)| *ended > epoch).map(|(_, position)| position)
    }
}

impl Default for EndedWords {
    fn default() -> Self {
        Self(Slots::new())
    }
}

/// How far in its log a gateway that leads has sent on every line, and handed over to the kernel. Written by the holder of
/// the channel's claim, read by any.
#[derive(Debug)]
#[repr(align(128))]
pub struct SentWord(AtomicU64);

impl SentWord {
    /// Everything before that place is sent.
    #[inline]
    pub(super) fn set(&self, place: Position) {
        // Relaxed: the word says all there is to say.
        self.0.store(place.segment << OFFSET_BITS | place.offset.min((1 << OFFSET_BITS) - 1), Relaxed);
    }

    /// Everything before it is sent; `None` before the first opening of the fence.
    #[must_use]
    pub fn get(&self) -> Option<Position> {
        let word = self.0.load(Relaxed);
        let place = Position { segment: word >> OFFSET_BITS, offset: word & ((1 << OFFSET_BITS) - 1) };
        (word != 0).then_some(place)
    }
}

impl Default for SentWord {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// A segment has at most 2^34 bytes, and private memory goes on counting behind it.
const OFFSET_BITS: u32 = 40;

/// One channel's [`Heard`] in shared memory: written by one thread, the one that listens; read by any. Two slots take
/// turns, so a reader starts anew only if the writer has come round meanwhile.
#[derive(Debug)]
#[repr(align(128))]
pub struct HeardWords(Slots<WORDS>);

impl HeardWords {
    /// Nothing heard yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Slots::new())
    }

    /// What is known now. By the one writer alone.
    pub fn set(&self, heard: Heard) {
        self.0.set(heard.to_words());
    }

    /// What was known last. Nothing, if the writer was too quick for too long: then more is said again.
    #[must_use]
    pub fn get(&self) -> Heard {
        self.0.get().map(Heard::from_words).unwrap_or_default()
    }
}

impl Default for HeardWords {
    fn default() -> Self {
        Self::new()
    }
}

const WORDS: usize = 7;
/// So many changes of what was heard cannot come while one is being read.
const TRIES: usize = 16;

#[derive(Debug)]
struct Slots<const N: usize> {
    /// Counts what was set; its lowest bit says where that is.
    version: AtomicU64,
    slots: [[AtomicU64; N]; 2],
}

impl<const N: usize> Slots<N> {
    fn new() -> Self {
        let slot = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { version: AtomicU64::new(0), slots: [slot(), slot()] }
    }

    fn set(&self, words: [u64; N]) {
        let version = self.version.load(Relaxed).wrapping_add(1);
        // With the fence in `get`: who reads a word of this version will find the one before it to be over.
        fence(Release);
        for (place, word) in self.slot(version).iter().zip(words) {
            place.store(word, Relaxed);
        }
        // Release pairs with the Acquire in `get`: who sees this version sees its words, or later ones.
        self.version.store(version, Release);
    }

    fn get(&self) -> Option<[u64; N]> {
        (0..TRIES).find_map(|_| {
            let version = self.version.load(Acquire);
            let words = std::array::from_fn(|index| self.slot(version)[index].load(Relaxed));
            fence(Acquire);
            (self.version.load(Relaxed) == version).then_some(words)
        })
    }

    fn slot(&self, version: u64) -> &[AtomicU64; N] {
        &self.slots[usize::from(version & 1 == 1)]
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    fn at(restart: u32, sequence: u64) -> Option<StreamPosition> {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        Some(StreamPosition::at(Session { feed: Feed::IexTops, date, restart }, Sequence(sequence)))
    }

    #[test]
    fn what_was_set_last_is_got() {
        let words = HeardWords::new();
        assert_eq!(words.get(), Heard::default());
        for sequence in 1..5 {
            let heard = Heard { on_wire: at(0, sequence), epoch: Epoch(sequence), confirmed: at(1, 9) };
            words.set(heard);
            assert_eq!(words.get(), heard);
        }
        words.set(Heard::default());
        assert_eq!(words.get(), Heard::default());
    }

    #[test]
    fn an_opening_survives_its_words() {
        let words = OpeningWords::default();
        assert_eq!(words.get(), Opening::default());
        let opening = Opening {
            epoch: Epoch(7),
            heard: at(0, 5),
            ready: at(1, 9),
            first_content: Some(MonoNs(3)),
            tail_packets: 11,
        };
        words.set(opening);
        assert_eq!(words.get(), opening);
        words.set(Opening { heard: None, first_content: None, ..opening });
        assert_eq!(words.get(), Opening { heard: None, first_content: None, ..opening });
    }

    #[test]
    fn the_place_that_was_sent_survives_its_word() {
        let sent = SentWord::default();
        assert_eq!(sent.get(), None);
        for place in [Position { segment: 1, offset: 0 }, Position { segment: 9_999_999, offset: (1 << 40) - 1 }] {
            sent.set(place);
            assert_eq!(sent.get(), Some(place));
        }
    }

    #[test]
    fn what_lies_beyond_the_own_input_counts_only_when_the_peer_has_told_it() {
        let heard = |on_wire, confirmed| Heard { on_wire, epoch: Epoch(1), confirmed };
        assert_eq!(heard(at(0, 5), None).credible(at(0, 9)), at(0, 5));
        assert_eq!(heard(at(0, 12), None).credible(at(0, 9)), at(0, 9));
        assert_eq!(heard(at(7, 1), None).credible(at(0, 9)), at(0, 9));
        assert_eq!(heard(at(0, 12), None).credible(None), None);
        assert_eq!(heard(at(0, 5), at(0, 12)).credible(at(0, 9)), at(0, 12));
        assert_eq!(heard(None, at(0, 3)).credible(at(0, 9)), at(0, 3));
        assert_eq!(heard(None, None).credible(at(0, 9)), None);
    }

    #[test]
    fn the_last_word_of_where_another_gateways_output_ended_counts() {
        let words = EndedWords::default();
        assert_eq!(words.after(Epoch(0)), None);
        words.advance(Epoch(5), at(0, 7).unwrap());
        words.advance(Epoch(4), at(0, 3).unwrap());
        assert_eq!(words.after(Epoch(4)), at(0, 7));
        assert_eq!(words.after(Epoch(5)), None, "this gateway has led since");
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use loom::{
        sync::{Arc, Mutex, atomic::AtomicBool},
        thread,
    };

    /// Two words that always agree, set three times while they are read once.
    fn check(set: fn(&Slots<2>, u64)) {
        loom::model(move || {
            let slots = Arc::new(Slots::<2>::new());
            let writer = {
                let slots = Arc::clone(&slots);
                thread::spawn(move || (1..=3).for_each(|value| set(&slots, value)))
            };
            if let Some([a, b]) = slots.get() {
                assert_eq!(a, b, "words of two versions");
            }
            writer.join().unwrap();
            assert_eq!(slots.get(), Some([3, 3]));
        });
    }

    /// What a hand-over is about: the fence, a question in the inbox, the answer; and whether the gateway has said that it
    /// sends no more.
    struct HandOver {
        fence: mdgw_sys::fence::Fence,
        inbox: Mutex<Option<u64>>,
        looks: LookWords,
        is_over: AtomicBool,
    }

    /// A channel that sends once, then finds its inbox; a hand-over that says "over" as soon as `is_drained`.
    fn hand_over(is_drained: fn(&HandOver) -> bool) {
        loom::model(move || {
            let shared = Arc::new(HandOver {
                fence: mdgw_sys::fence::Fence::closed(),
                inbox: Mutex::new(None),
                looks: LookWords::default(),
                is_over: AtomicBool::new(false),
            });
            shared.fence.open(Epoch(1), MonoNs(10));
            let channel = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for _ in 0..2 {
                        if shared.fence.allows(MonoNs(5)) {
                            assert!(!shared.is_over.load(Acquire), "sent after it was said to be over");
                        }
                        let asked = shared.inbox.lock().unwrap().take();
                        if let Some(number) = asked {
                            shared.looks.set(Look { number, position: None });
                        }
                    }
                })
            };
            shared.fence.close();
            *shared.inbox.lock().unwrap() = Some(1);
            if is_drained(&shared) {
                shared.is_over.store(true, Release);
            }
            channel.join().unwrap();
        });
    }

    #[test]
    fn nothing_is_sent_once_the_channel_has_answered() {
        hand_over(|shared| shared.looks.get().number == 1);
    }

    #[test]
    #[should_panic(expected = "sent after it was said to be over")]
    fn a_hand_over_that_waits_for_no_answer_is_found() {
        hand_over(|_| true);
    }

    #[test]
    fn what_is_read_was_set_together() {
        check(|slots, value| slots.set([value; 2]));
    }

    #[test]
    #[should_panic(expected = "words of two versions")]
    fn a_version_that_is_told_before_its_words_is_found() {
        check(|slots, value| {
            slots.version.store(value, Release);
            for place in slots.slot(value) {
                place.store(value, Relaxed);
            }
        });
    }

    #[test]
    #[should_panic(expected = "words of two versions")]
    fn words_that_nothing_orders_behind_the_version_before_are_found() {
        check(|slots, value| {
            for place in slots.slot(value) {
                place.store(value, Relaxed);
            }
            slots.version.store(value, Release);
        });
    }
}
