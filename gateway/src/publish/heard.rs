//! What a standby has heard of the leader's output, for when it leads itself.
//!
//! A cold thread hears, the holder of the channel's claim looks when the fence opens: they share [`HeardWords`], and
//! neither ever waits for the other.

#[cfg(all(test, feature = "loom"))]
use loom::sync::atomic::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(all(test, feature = "loom")))]
use std::sync::atomic::{AtomicU64, fence};

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition};

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
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use loom::{sync::Arc, thread};

    use super::*;

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
