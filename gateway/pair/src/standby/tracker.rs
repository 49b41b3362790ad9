//! The receive watermark of the leader's output on one channel. The caller passes the time; nothing blocks.
//!
//! ```text
//!   published and received ──────┤ hole ├── received beyond ──┤      ├── not confirmed yet ──
//!                                ▲                                  ▲
//!                             position                       `confirmed_through`: local input, or reported
//! ```

use std::collections::VecDeque;

use mdgw_telemetry::counter_block;
use mdgw_wire::{
    identity::{Epoch, Sequence},
    published::position::StreamPosition,
    time::MonoNs,
};

/// Tracks what was received of another gateway's output on one channel.
///
/// A hole is a packet that this gateway did not receive. It holds the position for a while, so that a successor
/// republishes messages that possibly no receiver got. After that time receivers have requested them themselves.
#[derive(Debug)]
pub struct ReceiveTracker {
    position: Option<StreamPosition>,
    epoch: Epoch,
    /// End of the furthest confirmed packet under `epoch`.
    furthest: Option<StreamPosition>,
    /// Ranges received behind a hole: disjoint, ascending, not adjacent to the position.
    ahead: Vec<Span>,
    hole_since: MonoNs,
    hole_ns_max: u64,
    /// How far the local input has come, or the leader has reported, authenticated, to have published. Any host may write to
    /// a multicast group, so packets beyond it do not count.
    confirmed_through: Option<StreamPosition>,
    /// Packets beyond it, oldest first.
    unconfirmed: VecDeque<(Span, Epoch)>,
    counts: ReceiveCounts,
}

/// The range that a packet or a heartbeat covers.
type Span = (StreamPosition, StreamPosition);

counter_block! {
    /// What a gateway received of the output of the others, for one channel.
    pub struct ReceiveCounts, key ReceiveCount {
        packets: Counter, Packets, "packets of the other gateways' output, on all lines";
        holes: Counter, None, "holes found in it, after both lines";
        holes_abandoned: Counter, None, "holes that no packet filled in time";
        discarded: Counter, Packets, "packets discarded because too many waited for their confirmation";
    }
}

impl ReceiveTracker {
    /// A tracker that has received nothing. `hole_ns_max`: how long a hole holds the position.
    #[must_use]
    pub fn new(hole_ns_max: u64) -> Self {
        Self {
            position: None,
            epoch: Epoch::default(),
            furthest: None,
            ahead: Vec::with_capacity(SPANS_MAX),
            hole_since: MonoNs(0),
            hole_ns_max,
            confirmed_through: None,
            unconfirmed: VecDeque::with_capacity(UNCONFIRMED_MAX),
            counts: ReceiveCounts::default(),
        }
    }

    /// Accepts a packet of an accepted epoch that covers `[from, until)`.
    pub fn accept(&mut self, span: Span, epoch: Epoch, now: MonoNs) {
        self.counts.packets += 1;
        if self.confirmed_through.is_some_and(|confirmed_through| span.1 <= confirmed_through) {
            self.advance(span, epoch, now);
            return;
        }
        if self.unconfirmed.len() == UNCONFIRMED_MAX {
            self.counts.discarded += 1;
            self.unconfirmed.pop_front();
        }
        self.unconfirmed.push_back((span, epoch));
    }

    /// The local log has come to that position, or the leader has reported it. Packets received up to there are now
    /// confirmed. What was not received stays so: a leader reports what its kernel has accepted.
    pub fn confirm_through(&mut self, confirmed_through: StreamPosition, now: MonoNs) {
        if self.confirmed_through.is_some_and(|known| confirmed_through <= known) {
            return;
        }
        self.confirmed_through = Some(confirmed_through);
        for _ in 0..self.unconfirmed.len() {
            let Some((span, epoch)) = self.unconfirmed.pop_front() else { break };
            if span.1 <= confirmed_through {
                self.advance(span, epoch, now);
            } else {
                self.unconfirmed.push_back((span, epoch));
            }
        }
    }

    /// This gateway leads under `epoch` and has published everything before that position. The next leader's first packet
    /// tells how much of it was received; without this call, all of it would be a hole before that packet.
    pub fn set_published(&mut self, published: StreamPosition, epoch: Epoch, now: MonoNs) {
        if epoch > self.epoch && self.position.is_none_or(|position| position < published) {
            self.position = Some(published);
            self.merge_reached(now);
        }
    }

    /// Called as time passes: a hole may have been open for long enough.
    pub fn on_timer(&mut self, now: MonoNs) {
        if !self.ahead.is_empty() && now.since(self.hole_since) >= self.hole_ns_max {
            self.abandon_hole(now);
        }
    }

    /// Everything before this position was received, or its hole was given up.
    #[must_use]
    pub fn position(&self) -> Option<StreamPosition> {
        self.position
    }

    /// End of the furthest confirmed packet of the highest epoch, whatever is missing before it: the acknowledgement of the
    /// leader's output. A forged position beyond the local input and the leader's reports acknowledges nothing, and one before
    /// takes nothing back.
    #[must_use]
    pub fn furthest(&self) -> Option<StreamPosition> {
        self.furthest
    }

    /// The highest epoch of the confirmed packets.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Counts since the start.
    #[must_use]
    pub(crate) fn counts(&self) -> &ReceiveCounts {
        &self.counts
    }

    fn advance(&mut self, (from, until): Span, epoch: Epoch, now: MonoNs) {
        if epoch < self.epoch {
            return;
        }
        let is_new_leader = epoch > self.epoch;
        self.epoch = epoch;
        // Another leader has published nothing yet of what the former one did.
        self.furthest = if is_new_leader { Some(until) } else { self.furthest.max(Some(until)) };
        let Some(position) = self.position else {
            self.position = Some(until);
            return;
        };
        if is_new_leader {
            // A new leader knows best where it begins. Receivers may have dropped what the old leader still published
            // in the meantime.
            self.ahead.clear();
            if from < position {
                self.position = Some(until);
                return;
            }
        }
        if until.session < position.session {
            return;
        }
        if from.session > position.session {
            // A new session starts at its beginning. The end of the old session is below the position in any case.
            self.ahead.clear();
            self.position = Some(StreamPosition::at(from.session, Sequence(1)).min(from));
        }
        self.insert((from, until), now);
    }

    fn insert(&mut self, (from, until): Span, now: MonoNs) {
        let Some(position) = self.position else { return };
        if from <= position {
            if until > position {
                self.position = Some(until);
                self.merge_reached(now);
            }
            return;
        }
        if self.ahead.is_empty() {
            self.counts.holes += 1;
            self.hole_since = now;
        }
        // All spans that touch it become one span.
        let first = self.ahead.partition_point(|span| span.1 < from);
        let behind = self.ahead.partition_point(|span| span.0 <= until);
        let merged = self.ahead[first..behind]
            .iter()
            .fold((from, until), |(from, until), span| (from.min(span.0), until.max(span.1)));
        self.ahead.splice(first..behind, [merged]);
        if self.ahead.len() == SPANS_MAX {
            self.abandon_hole(now);
        }
    }

    /// The position has moved: it absorbs the spans that it has reached.
    fn merge_reached(&mut self, now: MonoNs) {
        let Some(mut position) = self.position else { return };
        let reached = self.ahead.iter().take_while(|span| {
            let is_reached = span.0 <= position;
            if is_reached {
                position = position.max(span.1);
            }
            is_reached
        });
        let reached = reached.count();
        self.ahead.drain(..reached);
        self.position = Some(position);
        if reached > 0 {
            self.hole_since = now;
        }
    }

    fn abandon_hole(&mut self, now: MonoNs) {
        if let Some((from, _)) = self.ahead.first() {
            self.counts.holes_abandoned += 1;
            self.position = Some(*from);
            self.merge_reached(now);
        }
    }
}

/// Maximum number of holes at a time. With more on one channel within a second, the line is unusable.
const SPANS_MAX: usize = 256;
/// Maximum number of packets ahead of the local input: some 40 ms at 100,000 packets/s.
const UNCONFIRMED_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use mdgw_wire::{
        identity::{Feed, Session},
        time::TradingDate,
    };
    use proptest::prelude::*;

    use super::*;

    fn at(restart: u32, sequence: u64, part: u16) -> StreamPosition {
        let session = Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart };
        StreamPosition { session, sequence: Sequence(sequence), part }
    }

    fn of(first: u64, next: u64) -> Span {
        (at(0, first, 0), at(0, next, 0))
    }

    /// A tracker whose local input is far ahead.
    fn tracker() -> ReceiveTracker {
        let mut tracker = ReceiveTracker::new(1_000);
        tracker.confirm_through(at(9, 0, 0), MonoNs(0));
        tracker
    }

    const E: Epoch = Epoch(7);
    const T: MonoNs = MonoNs(0);

    #[test]
    fn the_position_is_the_contiguous_receive_watermark() {
        let mut tracker = tracker();
        assert_eq!(tracker.position(), None);
        for (span, position) in [
            (of(5, 8), 8),
            (of(8, 9), 9),
            (of(10, 12), 9),
            (of(14, 15), 9),
            (of(12, 14), 9),
            (of(3, 6), 9),
            (of(9, 10), 15),
            // A heartbeat that reveals a loss.
            (of(17, 17), 15),
            (of(15, 17), 17),
        ] {
            tracker.accept(span, E, T);
            assert_eq!(tracker.position(), Some(at(0, position, 0)), "{span:?}");
        }
        assert_eq!((tracker.counts().holes, tracker.counts().holes_abandoned), (2, 0));
    }

    #[test]
    fn message_parts_advance_the_position_one_by_one() {
        let mut tracker = tracker();
        tracker.accept(of(5, 8), E, T);
        tracker.accept((at(0, 8, 0), at(0, 8, 1)), E, T);
        tracker.accept((at(0, 8, 2), at(0, 8, 3)), E, T);
        assert_eq!(tracker.position(), Some(at(0, 8, 1)));
        tracker.accept((at(0, 8, 1), at(0, 8, 2)), E, T);
        assert_eq!(tracker.position(), Some(at(0, 8, 3)));
        tracker.accept((at(0, 8, 3), at(0, 9, 0)), E, T);
        assert_eq!(tracker.position(), Some(at(0, 9, 0)));
    }

    #[test]
    fn a_hole_holds_the_position_until_its_timeout() {
        let mut tracker = tracker();
        tracker.accept(of(1, 5), E, T);
        tracker.accept(of(6, 9), E, MonoNs(100));
        tracker.accept(of(10, 11), E, MonoNs(900));
        tracker.on_timer(MonoNs(1_099));
        assert_eq!(tracker.position(), Some(at(0, 5, 0)));
        tracker.on_timer(MonoNs(1_100));
        assert_eq!(tracker.position(), Some(at(0, 9, 0)), "the next hole has a time of its own");
        tracker.on_timer(MonoNs(2_099));
        assert_eq!(tracker.position(), Some(at(0, 9, 0)));
        tracker.on_timer(MonoNs(2_100));
        assert_eq!(tracker.position(), Some(at(0, 11, 0)));
    }

    #[test]
    fn output_ahead_of_the_own_log_counts_only_after_the_log_reaches_it() {
        let mut tracker = ReceiveTracker::new(1_000);
        tracker.accept(of(1, 3), E, T);
        assert_eq!(tracker.position(), None);
        tracker.confirm_through(at(0, 5, 0), T);
        assert_eq!(tracker.position(), Some(at(0, 3, 0)));
        // A forged sequence, a forged session, then honest packets.
        tracker.accept(of(3, 1 << 40), E, T);
        tracker.accept((at(8, 1, 0), at(8, 2, 0)), E, T);
        for first in 3..20 {
            tracker.accept(of(first, first + 1), E, T);
            tracker.confirm_through(at(0, first + 2, 0), T);
            assert_eq!(tracker.position(), Some(at(0, first + 1, 0)));
        }
        for _ in 0..UNCONFIRMED_MAX {
            tracker.accept(of(20, 1 << 40), E, T);
        }
        assert!(tracker.counts().discarded > 0);
        assert_eq!(tracker.position(), Some(at(0, 20, 0)));
    }

    #[test]
    fn forged_positions_acknowledge_nothing_and_take_no_acknowledgement_back() {
        let mut tracker = ReceiveTracker::new(1_000);
        tracker.confirm_through(at(0, 10, 0), T);
        tracker.accept(of(1, 5), E, T);
        for forged in [of(1, 1), of(1 << 40, 1 << 40), (at(8, 1, 0), at(8, 2, 0))] {
            tracker.accept(forged, E, T);
            assert_eq!(tracker.furthest(), Some(at(0, 5, 0)), "{forged:?}");
        }
        // The leader is ahead of the local input, and a packet is missing.
        tracker.accept(of(12, 14), E, T);
        assert_eq!(tracker.furthest(), Some(at(0, 5, 0)));
        tracker.confirm_through(at(0, 20, 0), T);
        assert_eq!(tracker.furthest(), Some(at(0, 14, 0)));
        // A new leader has to be acknowledged anew.
        tracker.accept(of(8, 9), Epoch(8), T);
        tracker.accept(of(15, 16), E, T);
        assert_eq!(tracker.furthest(), Some(at(0, 9, 0)));
    }

    #[test]
    fn a_reported_position_confirms_received_output_and_never_lifts_the_position() {
        let mut tracker = ReceiveTracker::new(1_000);
        tracker.confirm_through(at(0, 5, 0), T);
        tracker.accept(of(1, 5), E, T);
        // The leader is ahead of the local input. What it reports was accepted by its kernel; [8, 20) reached nobody.
        tracker.accept(of(5, 8), E, T);
        assert_eq!(tracker.position(), Some(at(0, 5, 0)));
        tracker.confirm_through(at(0, 20, 0), T);
        assert_eq!(tracker.position(), Some(at(0, 8, 0)));
        tracker.on_timer(MonoNs(1_000_000));
        assert_eq!(tracker.position(), Some(at(0, 8, 0)), "no packet after it was received: not a hole");
    }

    #[test]
    fn own_output_counts_as_far_as_the_next_leader_received_it() {
        for (start, position) in [(60, 60), (100, 100), (101, 100)] {
            let mut tracker = tracker();
            tracker.accept(of(1, 40), E, T);
            // This gateway leads under epoch 8 and publishes 40 to 99.
            tracker.set_published(at(0, 100, 0), Epoch(8), T);
            tracker.set_published(at(0, 90, 0), Epoch(8), T);
            tracker.accept(of(start, start), Epoch(9), T);
            assert_eq!(tracker.position(), Some(at(0, position, 0)), "the next leader starts at {start}");
            tracker.set_published(at(0, 120, 0), Epoch(8), T);
            assert_eq!(tracker.position(), Some(at(0, position, 0)), "receivers drop the rest of an old epoch");
        }
    }

    #[test]
    fn a_new_leaders_first_packet_sets_the_position() {
        let mut tracker = tracker();
        tracker.accept(of(1, 9), E, T);
        // The new leader received less of the old leader's output than we did. Receivers that learned of the new
        // leader first dropped [6, 9).
        tracker.accept(of(6, 6), Epoch(8), T);
        assert_eq!(tracker.position(), Some(at(0, 6, 0)));
        tracker.accept(of(9, 12), E, T);
        assert_eq!(tracker.position(), Some(at(0, 6, 0)), "the old epoch is not accepted any more");
        tracker.accept(of(6, 7), Epoch(8), T);
        assert_eq!((tracker.position(), tracker.epoch()), (Some(at(0, 7, 0)), Epoch(8)));
        // A leader that received more leaves a hole here.
        tracker.accept(of(9, 9), Epoch(9), T);
        assert_eq!(tracker.position(), Some(at(0, 7, 0)));
    }

    #[test]
    fn a_new_session_is_tracked_from_its_first_message() {
        let mut tracker = tracker();
        tracker.accept(of(1, 9), E, T);
        tracker.accept((at(1, 3, 0), at(1, 4, 0)), E, T);
        assert_eq!(tracker.position(), Some(at(1, 1, 0)));
        tracker.accept(of(9, 12), E, T);
        tracker.accept((at(1, 1, 0), at(1, 3, 0)), E, T);
        assert_eq!(tracker.position(), Some(at(1, 4, 0)));
    }

    proptest! {
        /// Compares with a model: the set of received sequences.
        #[test]
        fn any_packet_order_gives_the_same_position_as_a_set_model(
            spans in prop::collection::vec((1_u64..60, 0_u64..6), 1..80),
        ) {
            let mut tracker = tracker();
            let mut received = std::collections::BTreeSet::new();
            tracker.accept(of(1, 1), E, T);
            for (first, count) in spans {
                tracker.accept(of(first, first + count), E, T);
                received.extend(first..first + count);
                let expected = (1..).find(|sequence| !received.contains(sequence)).unwrap();
                prop_assert_eq!(tracker.position(), Some(at(0, expected, 0)));
                prop_assert!(tracker.ahead.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
