//! What a standby knows about the leader's output, for its own takeover.
//!
//! A cold thread receives the leader's output; the holder of the channel's claim reads the watermark when the fence
//! opens. They share [`ReceiveWatermarkShared`], and neither waits for the other.

#[cfg(all(test, feature = "loom"))]
use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(all(test, feature = "loom")))]
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{
    OnceLock,
    atomic::Ordering::{Acquire, Relaxed, Release},
};

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition, time::MonoNs};
use mdgw_publog::Position;

/// How far this gateway has received the output of another gateway, without a hole. A position that is too low repeats
/// messages, which receivers drop; one that is too high loses messages. So what another gateway reports, or hands over, does
/// not count: its kernel has accepted those packets, and nobody may have received them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveWatermark {
    /// Every message before it was received, from the output itself.
    pub received_through: Option<StreamPosition>,
    /// Epoch of the last packet received.
    pub epoch: Epoch,
}

impl ReceiveWatermark {
    fn to_u64s(self) -> [u64; WATERMARK_WORDS] {
        let [a, b, c] = self.received_through.map_or([0; 3], StreamPosition::to_u64s);
        [a, b, c, self.epoch.0]
    }

    fn from_u64s([a, b, c, epoch]: [u64; WATERMARK_WORDS]) -> Self {
        // No session is all zero.
        Self { received_through: StreamPosition::from_u64s([a, b, c]), epoch: Epoch(epoch) }
    }
}

/// State shared by the publisher of one channel and cold threads.
#[derive(Debug, Default)]
pub struct TakeoverShared {
    /// Input, before the start: the messages that this gateway's log lacks since the gateway began with a copy of its peer's state,
    /// from the first one to the one behind the last.
    pub log_hole: OnceLock<(StreamPosition, StreamPosition)>,
    /// Input: receive watermark of another gateway's output.
    pub received_through: ReceiveWatermarkShared,
    /// Output: how far this gateway's log has been sent.
    pub sent: SentPositionShared,
    /// Output: position at the last drain acknowledgement.
    pub drain_ack: DrainAckShared,
    /// Output: results of the last opening of the fence.
    pub opening: FenceOpeningShared,
}

/// Results of the last opening of the fence. Written by the holder of the channel's claim when the fence opens, when
/// the first content is sent, and when the catch-up is complete. Any thread may read it.
#[derive(Debug)]
#[repr(align(128))]
pub struct FenceOpeningShared(Seqlock<9>);

/// An opening of the fence, as one channel sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceOpening {
    /// Epoch of the opening; 0 before the first.
    pub epoch: Epoch,
    /// Watermark of the previous leader's output; `None` if this gateway led before, or no output was received.
    pub received_through: Option<StreamPosition>,
    /// End of this gateway's own log at the opening.
    pub committed_through: Option<StreamPosition>,
    /// Time at which the first content was handed to the kernel; `None` until then.
    pub first_content: Option<MonoNs>,
    /// Packets of the catch-up; a packet on two lines counts twice.
    pub catch_up_packets: u64,
}

impl FenceOpeningShared {
    pub(super) fn set(&self, opening: FenceOpening) {
        let FenceOpening { epoch, received_through, committed_through, first_content, catch_up_packets } = opening;
        let [a, b, c] = received_through.map_or([0; 3], StreamPosition::to_u64s);
        let [d, e, f] = committed_through.map_or([0; 3], StreamPosition::to_u64s);
        self.0.set([epoch.0, a, b, c, d, e, f, first_content.map_or(0, |at| at.0), catch_up_packets]);
    }

    /// Results of the last opening.
    #[must_use]
    pub fn get(&self) -> FenceOpening {
        let [epoch, a, b, c, d, e, f, first_content, catch_up_packets] = self.0.get().unwrap_or_default();
        let [received_through, committed_through] = [[a, b, c], [d, e, f]].map(StreamPosition::from_u64s);
        let first_content = (first_content > 0).then_some(MonoNs(first_content));
        FenceOpening { epoch: Epoch(epoch), received_through, committed_through, first_content, catch_up_packets }
    }
}

impl Default for FenceOpeningShared {
    fn default() -> Self {
        Self(Seqlock::new())
    }
}

/// The last drain acknowledgement of the channel, and the position of its output at that time. Written by the holder of
/// the channel's claim, read by any thread.
///
/// A channel sends only under its claim, and sends nothing while it acknowledges. So an acknowledgement of a request
/// made after the fence had closed means: no send of the channel is in progress, and none will follow.
#[derive(Debug)]
#[repr(align(128))]
pub struct DrainAckShared(Seqlock<4>);

/// A drain acknowledgement: see [`DrainAckShared`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainAck {
    /// Number of the request; 0 before the first.
    pub number: u64,
    /// This gateway, or an earlier leader, has sent every message before it.
    pub position: Option<StreamPosition>,
}

impl DrainAckShared {
    pub(super) fn set(&self, ack: DrainAck) {
        let [a, b, c] = ack.position.map_or([0; 3], StreamPosition::to_u64s);
        self.0.set([ack.number, a, b, c]);
    }

    /// The acknowledgement that the publisher set last; number 0 before the first.
    #[must_use]
    pub fn get(&self) -> DrainAck {
        let [number, a, b, c] = self.0.get().unwrap_or_default();
        DrainAck { number, position: StreamPosition::from_u64s([a, b, c]) }
    }
}

impl Default for DrainAckShared {
    fn default() -> Self {
        Self(Seqlock::new())
    }
}

/// Position in a leader's log before which every entry has been handed to the kernel on every line. Written by the
/// holder of the channel's claim, read by any thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct SentPositionShared(AtomicU64);

impl SentPositionShared {
    /// Sets the position: every entry before `place` is sent.
    #[inline]
    pub(super) fn set(&self, place: Position) {
        // Relaxed: the value depends on no other memory.
        self.0.store(place.segment << OFFSET_BITS | place.offset.min((1 << OFFSET_BITS) - 1), Relaxed);
    }

    /// The position before which every entry is sent; `None` before the first opening of the fence.
    #[must_use]
    pub fn get(&self) -> Option<Position> {
        let word = self.0.load(Relaxed);
        let place = Position { segment: word >> OFFSET_BITS, offset: word & ((1 << OFFSET_BITS) - 1) };
        (word != 0).then_some(place)
    }
}

impl Default for SentPositionShared {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// Bits of the offset in the shared number. A segment has at most 2^34 bytes; offsets in private memory continue behind
/// it.
const OFFSET_BITS: u32 = 40;

/// One channel's [`ReceiveWatermark`] in shared atomics: written by the listener's thread, read by any. Two slots
/// alternate, so a reader retries only if the writer has reused its slot meanwhile.
#[derive(Debug)]
#[repr(align(128))]
pub struct ReceiveWatermarkShared(Seqlock<WATERMARK_WORDS>);

impl ReceiveWatermarkShared {
    /// A watermark of which nothing was received yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(Seqlock::new())
    }

    /// Sets the watermark. Called by the one writer alone.
    pub fn set(&self, watermark: ReceiveWatermark) {
        self.0.set(watermark.to_u64s());
    }

    /// The last watermark. Empty if every attempt to read met a write: the publisher then sends more than needed again.
    #[must_use]
    pub(crate) fn get(&self) -> ReceiveWatermark {
        self.0.get().map(ReceiveWatermark::from_u64s).unwrap_or_default()
    }
}

impl Default for ReceiveWatermarkShared {
    fn default() -> Self {
        Self::new()
    }
}

const WATERMARK_WORDS: usize = 4;
/// Number of attempts to read. That many writes cannot happen during one read.
const READ_ATTEMPTS_MAX: usize = 16;

#[derive(Debug)]
struct Seqlock<const N: usize> {
    /// Number of writes; its lowest bit selects the slot.
    version: AtomicU64,
    slots: [[AtomicU64; N]; 2],
}

impl<const N: usize> Seqlock<N> {
    fn new() -> Self {
        let slot = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { version: AtomicU64::new(0), slots: [slot(), slot()] }
    }

    fn set(&self, values: [u64; N]) {
        let version = self.version.load(Relaxed).wrapping_add(1);
        // With the fence in `get`: a reader of any value of this version will see that the previous version is over.
        fence(Release);
        for (place, value) in self.slot(version).iter().zip(values) {
            place.store(value, Relaxed);
        }
        // Release pairs with the Acquire in `get`: a reader of this version sees its values, or later ones.
        self.version.store(version, Release);
    }

    fn get(&self) -> Option<[u64; N]> {
        (0..READ_ATTEMPTS_MAX).find_map(|_| {
            let version = self.version.load(Acquire);
            let values = std::array::from_fn(|index| self.slot(version)[index].load(Relaxed));
            fence(Acquire);
            (self.version.load(Relaxed) == version).then_some(values)
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
    fn the_last_watermark_set_is_read() {
        let shared = ReceiveWatermarkShared::new();
        assert_eq!(shared.get(), ReceiveWatermark::default());
        for sequence in 1..5 {
            let watermark = ReceiveWatermark { received_through: at(0, sequence), epoch: Epoch(sequence) };
            shared.set(watermark);
            assert_eq!(shared.get(), watermark);
        }
        shared.set(ReceiveWatermark::default());
        assert_eq!(shared.get(), ReceiveWatermark::default());
    }

    #[test]
    fn a_fence_opening_round_trips_through_shared_memory() {
        let shared = FenceOpeningShared::default();
        assert_eq!(shared.get(), FenceOpening::default());
        let opening = FenceOpening {
            epoch: Epoch(7),
            received_through: at(0, 5),
            committed_through: at(1, 9),
            first_content: Some(MonoNs(3)),
            catch_up_packets: 11,
        };
        shared.set(opening);
        assert_eq!(shared.get(), opening);
        shared.set(FenceOpening { received_through: None, first_content: None, ..opening });
        assert_eq!(shared.get(), FenceOpening { received_through: None, first_content: None, ..opening });
    }

    #[test]
    fn a_sent_position_round_trips_through_shared_memory() {
        let sent = SentPositionShared::default();
        assert_eq!(sent.get(), None);
        for place in [Position { segment: 1, offset: 0 }, Position { segment: 9_999_999, offset: (1 << 40) - 1 }] {
            sent.set(place);
            assert_eq!(sent.get(), Some(place));
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use loom::{
        sync::{Arc, Mutex, atomic::AtomicBool},
        thread,
    };

    /// Checks that two values that are always set together agree. They are written three times while they are read
    /// once.
    fn check(set: fn(&Seqlock<2>, u64)) {
        loom::model(move || {
            let slots = Arc::new(Seqlock::<2>::new());
            let writer = {
                let slots = Arc::clone(&slots);
                thread::spawn(move || (1..=3).for_each(|value| set(&slots, value)))
            };
            if let Some([a, b]) = slots.get() {
                assert_eq!(a, b, "values of two versions");
            }
            writer.join().unwrap();
            assert_eq!(slots.get(), Some([3, 3]));
        });
    }

    /// State of a hand-over: the fence, a request in the inbox, the acknowledgement, and whether the gateway has
    /// declared that it sends no more.
    struct HandOver {
        fence: mdgw_sys::fence::Fence,
        inbox: Mutex<Option<u64>>,
        drain_ack: DrainAckShared,
        is_over: AtomicBool,
    }

    /// Checks a channel that sends once and then reads its inbox, against a hand-over that declares the end as soon as
    /// `is_drained`.
    fn check_hand_over(is_drained: fn(&HandOver) -> bool) {
        loom::model(move || {
            let shared = Arc::new(HandOver {
                fence: mdgw_sys::fence::Fence::closed(),
                inbox: Mutex::new(None),
                drain_ack: DrainAckShared::default(),
                is_over: AtomicBool::new(false),
            });
            shared.fence.open(Epoch(1), MonoNs(10));
            let channel = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for _ in 0..2 {
                        if shared.fence.is_open_at(MonoNs(5)) {
                            assert!(!shared.is_over.load(Acquire), "sent after the declared end");
                        }
                        let request = shared.inbox.lock().unwrap().take();
                        if let Some(number) = request {
                            shared.drain_ack.set(DrainAck { number, position: None });
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
    fn nothing_is_sent_after_the_drain_acknowledgement() {
        check_hand_over(|shared| shared.drain_ack.get().number == 1);
    }

    #[test]
    #[should_panic(expected = "sent after the declared end")]
    fn a_hand_over_without_drain_acknowledgement_is_caught() {
        check_hand_over(|_| true);
    }

    #[test]
    fn a_read_returns_values_of_one_version() {
        check(|slots, value| slots.set([value; 2]));
    }

    #[test]
    #[should_panic(expected = "values of two versions")]
    fn a_version_published_before_its_values_is_caught() {
        check(|slots, value| {
            slots.version.store(value, Release);
            for place in slots.slot(value) {
                place.store(value, Relaxed);
            }
        });
    }

    #[test]
    #[should_panic(expected = "values of two versions")]
    fn values_not_ordered_after_the_previous_version_are_caught() {
        check(|slots, value| {
            for place in slots.slot(value) {
                place.store(value, Relaxed);
            }
            slots.version.store(value, Release);
        });
    }
}
