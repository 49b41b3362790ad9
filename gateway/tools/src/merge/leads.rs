//! Leads between lines, message by message.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use mdgw_feeds::{
    identity::{Line, Sequence},
    time::UnixNs,
};

/// Compares the timestamps of each message on each pair of lines.
#[derive(Debug, Default)]
pub(super) struct Leads {
    recent: Vec<RecentPackets>,
    /// Keyed by the lower and the higher line.
    pairs: BTreeMap<(u8, u8), Differences>,
}

/// The latest packets of one line, in a ring.
#[derive(Debug)]
struct RecentPackets {
    file: usize,
    ring: Box<[PacketArrival]>,
    count: u64,
    /// For each other line, the position where its latest packet was found. Copies arrive in order too, so the next
    /// search begins there.
    cursors: Vec<u64>,
}

/// Messages `[first, next)` arrived at `ts_recv`.
#[derive(Clone, Copy, Debug, Default)]
struct PacketArrival {
    first: Sequence,
    next: Sequence,
    ts_recv: UnixNs,
}

/// Delay of each message on the second line of a pair after the first, ns.
#[derive(Debug)]
pub(super) struct Differences {
    /// Zero point of the histograms; `None` until enough samples exist.
    base_ns: Option<i64>,
    first_samples: Vec<(i64, u64)>,
    last_samples: Vec<i64>,
    last_index: usize,
    /// Distances from the base in both directions.
    above: Histogram<u64>,
    below: Histogram<u64>,
    span_ns: Option<(u64, u64)>,
}

impl Leads {
    /// Records a packet that its line delivered for the first time.
    #[inline]
    pub(super) fn record(&mut self, line: Line, file: usize, first: Sequence, next: Sequence, ts_recv: UnixNs) {
        let index = usize::from(line.0);
        while self.recent.len() <= index {
            self.recent.push(RecentPackets::new(file));
        }
        let arrival = PacketArrival { first, next, ts_recv };
        let Self { recent, pairs } = self;
        for (other, copies) in recent.iter_mut().enumerate().filter(|(other, _)| *other != index) {
            let other_number = u8::try_from(other).unwrap_or(u8::MAX);
            let is_same_clock = copies.file == file;
            copies.overlapping(index, &arrival, |count, other_ts| {
                // The difference is the higher line's timestamp minus the lower line's.
                let (pair, later, earlier) = if other < index {
                    ((other_number, line.0), ts_recv, other_ts)
                } else {
                    ((line.0, other_number), other_ts, ts_recv)
                };
                let differences = pairs.entry(pair).or_insert_with(|| Differences::new(is_same_clock));
                differences.record(signed_difference(later.0, earlier.0), count, ts_recv.0);
            });
        }
        if let Some(own) = self.recent.get_mut(index) {
            own.file = file;
            own.push(arrival);
        }
    }

    /// Starts a session: earlier packets can't match its packets.
    pub(super) fn begin_session(&mut self) {
        for recent in &mut self.recent {
            recent.count = 0;
            recent.cursors.fill(0);
        }
    }

    /// Measured differences, by the lower and the higher line.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Line, Line, &Differences)> {
        self.pairs.iter().map(|((first, second), differences)| (Line(*first), Line(*second), differences))
    }
}

impl RecentPackets {
    fn new(file: usize) -> Self {
        Self {
            file,
            ring: vec![PacketArrival::default(); RECENT_PACKETS].into_boxed_slice(),
            count: 0,
            cursors: Vec::new(),
        }
    }

    fn push(&mut self, arrival: PacketArrival) {
        let index = index(self.count);
        if let Some(slot) = self.ring.get_mut(index) {
            *slot = arrival;
        }
        self.count += 1;
    }

    fn get(&self, position: u64) -> PacketArrival {
        self.ring.get(index(position)).copied().unwrap_or_default()
    }

    /// Reports each remembered packet that shares messages with `wanted`, a packet of line `line`.
    fn overlapping(&mut self, line: usize, wanted: &PacketArrival, mut report: impl FnMut(u64, UnixNs)) {
        if self.cursors.len() <= line {
            self.cursors.resize(line + 1, 0);
        }
        let oldest = self.count.saturating_sub(self.ring.len() as u64);
        let mut position = self.cursors.get(line).copied().unwrap_or(0).max(oldest);
        // Packets of a line may be slightly out of order.
        let back = position.saturating_sub(REORDER_PACKETS_MAX).max(oldest);
        while position > back && self.get(position - 1).next > wanted.first {
            position -= 1;
        }
        while position < self.count && self.get(position).next <= wanted.first {
            position += 1;
        }
        if let Some(cursor) = self.cursors.get_mut(line) {
            *cursor = position;
        }
        let mut beyond = 0;
        while position < self.count && beyond < LOOKAHEAD_PACKETS {
            let copy = self.get(position);
            let common = copy.next.min(wanted.next).0.saturating_sub(copy.first.max(wanted.first).0);
            if common > 0 {
                report(common, copy.ts_recv);
            } else if copy.first >= wanted.next {
                beyond += 1;
            }
            position += 1;
        }
    }
}

impl Differences {
    fn new(is_same_clock: bool) -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, DIFFERENCE_NS_MAX, 3).expect("bounds from 1 to 6 hours are legal");
        Self {
            // Timestamps of one clock are compared without correction.
            base_ns: is_same_clock.then_some(0),
            first_samples: Vec::new(),
            last_samples: Vec::new(),
            last_index: 0,
            above: histogram(),
            below: histogram(),
            span_ns: None,
        }
    }

    fn record(&mut self, difference_ns: i64, count: u64, at_ns: u64) {
        if self.first_samples.len() < SAMPLES_MAX {
            self.first_samples.push((difference_ns, count));
        }
        if self.last_samples.len() < SAMPLES_MAX {
            self.last_samples.push(difference_ns);
        } else if let Some(slot) = self.last_samples.get_mut(self.last_index) {
            *slot = difference_ns;
            self.last_index = (self.last_index + 1) % SAMPLES_MAX;
        }
        let (begin_ns, end_ns) = self.span_ns.unwrap_or((at_ns, at_ns));
        self.span_ns = Some((begin_ns.min(at_ns), end_ns.max(at_ns)));
        match self.base_ns {
            Some(base_ns) => self.count(base_ns, difference_ns, count),
            None if self.first_samples.len() == SAMPLES_MAX => self.choose_base(),
            None => {}
        }
    }

    /// Takes the median as base: the differences of clocks that are hours apart still vary little around it.
    fn choose_base(&mut self) {
        let base_ns = median(self.first_samples.iter().map(|(difference_ns, _)| *difference_ns).collect());
        self.base_ns = Some(base_ns);
        for (difference_ns, count) in self.first_samples.clone() {
            self.count(base_ns, difference_ns, count);
        }
    }

    fn count(&mut self, base_ns: i64, difference_ns: i64, count: u64) {
        let side = if difference_ns >= base_ns { &mut self.above } else { &mut self.below };
        side.saturating_record_n(difference_ns.abs_diff(base_ns), count);
    }

    /// Differences with their counts, ascending.
    pub(super) fn distribution(&self) -> Vec<(i64, u64)> {
        let Some(base_ns) = self.base_ns else {
            let mut few = self.first_samples.clone();
            few.sort_unstable();
            return few;
        };
        let signed = |distance: u64| i64::try_from(distance).unwrap_or(i64::MAX);
        // The lowest value of a bucket represents it, accurate to a thousandth.
        let below = self.below.iter_recorded().map(|bucket| {
            let distance = self.below.lowest_equivalent(bucket.value_iterated_to());
            (base_ns.saturating_sub(signed(distance)), bucket.count_at_value())
        });
        let mut all: Vec<(i64, u64)> = below.collect();
        all.reverse();
        all.extend(self.above.iter_recorded().map(|bucket| {
            let distance = self.above.lowest_equivalent(bucket.value_iterated_to());
            (base_ns.saturating_add(signed(distance)), bucket.count_at_value())
        }));
        all
    }

    /// The typical difference at the beginning and at the end, and the time between them, ns.
    pub(super) fn drift(&self) -> (i64, i64, u64) {
        let begin = median(self.first_samples.iter().map(|(difference_ns, _)| *difference_ns).collect());
        let span_ns = self.span_ns.map_or(0, |(begin_ns, end_ns)| end_ns - begin_ns);
        (begin, median(self.last_samples.clone()), span_ns)
    }
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn signed_difference(later_ns: u64, earlier_ns: u64) -> i64 {
    let difference = i128::from(later_ns) - i128::from(earlier_ns);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

fn index(position: u64) -> usize {
    usize::try_from(position % RECENT_PACKETS as u64).unwrap_or(0)
}

/// Packets of a line remembered for comparison. It bounds how far apart the copies of a message may be in files and
/// lines.
const RECENT_PACKETS: usize = 16_384;
/// Packets of a line may be this far out of order and are still compared.
const REORDER_PACKETS_MAX: u64 = 64;
/// Packets of a line examined beyond the wanted ones, to find a late packet among them.
const LOOKAHEAD_PACKETS: u64 = 8;
/// Samples from which the base is chosen.
const SAMPLES_MAX: usize = 101;
/// Largest distance from the base that is distinguished: six hours.
const DIFFERENCE_NS_MAX: u64 = 6 * 3_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(leads: &mut Leads, line: u8, file: usize, first: u64, next: u64, ts: u64) {
        leads.record(Line(line), file, Sequence(first), Sequence(next), UnixNs(ts));
    }

    fn distribution_of_pair(leads: &Leads) -> Vec<(i64, u64)> {
        let all: Vec<_> = leads.pairs().collect();
        assert_eq!(all.len(), 1);
        all[0].2.distribution()
    }

    #[test]
    fn each_common_message_is_compared_once_regardless_of_packet_boundaries() {
        let mut leads = Leads::default();
        arrive(&mut leads, 0, 0, 1, 4, 100);
        arrive(&mut leads, 1, 0, 1, 2, 110);
        arrive(&mut leads, 1, 0, 2, 7, 120);
        arrive(&mut leads, 0, 0, 4, 7, 150);
        assert_eq!(distribution_of_pair(&leads), [(-30, 3), (10, 1), (20, 2)]);
    }

    #[test]
    fn reordered_packets_are_matched_with_their_copies() {
        let mut leads = Leads::default();
        for number in [1, 3, 2, 4, 5] {
            arrive(&mut leads, 0, 0, number, number + 1, 100 * number);
        }
        for number in [2, 1, 3, 5, 4] {
            arrive(&mut leads, 1, 0, number, number + 1, 100 * number + 7);
        }
        assert_eq!(distribution_of_pair(&leads), [(7, 5)]);
    }

    #[test]
    fn clock_offsets_of_hours_are_measured_to_the_nanosecond() {
        let hour_ns = 3_600_000_000_000;
        let mut leads = Leads::default();
        for number in 0..1_000 {
            arrive(&mut leads, 0, 0, number + 1, number + 2, number * 10);
            arrive(&mut leads, 1, 1, number + 1, number + 2, number * 10 + hour_ns + number % 3);
        }
        let hour_ns = i64::try_from(hour_ns).unwrap();
        assert_eq!(distribution_of_pair(&leads), [(hour_ns, 334), (hour_ns + 1, 333), (hour_ns + 2, 333)]);
    }

    #[test]
    fn packets_of_different_sessions_are_not_compared() {
        let mut leads = Leads::default();
        arrive(&mut leads, 0, 0, 1, 4, 100);
        leads.begin_session();
        arrive(&mut leads, 1, 0, 1, 4, 200);
        assert_eq!(leads.pairs().count(), 0);
    }
}
