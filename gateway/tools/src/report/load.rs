//! Latency against load: the rate during each measured interval.
//!
//! The load of an interval is the rate of all threads of the channel together at that time. It is a mean over the
//! interval, so shorter bursts don't show. Gateways of a pair receive the same load: of several hosts the one with the highest
//! rate counts.

use std::collections::{BTreeMap, btree_map::Entry};

use hdrhistogram::Histogram;
use mdgw_feeds::time::UnixNs;

use super::statistics::{LatencyStatistics, add};

/// Values measured at loads within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadBucket {
    /// Least rate, per second, included.
    pub from_per_s: u64,
    /// Highest rate, per second, excluded.
    pub until_per_s: u64,
    /// Number of intervals; each thread's intervals are counted separately.
    pub intervals: u64,
    /// Statistics of the samples, ns.
    pub statistics: LatencyStatistics,
}

/// Counts over intervals of time, by host, one track per thread.
#[derive(Debug, Default)]
pub(super) struct Rates {
    hosts: BTreeMap<String, BTreeMap<String, Vec<RateInterval>>>,
}

#[derive(Clone, Copy, Debug)]
struct RateInterval {
    start: UnixNs,
    end: UnixNs,
    per_s: f64,
}

impl Rates {
    /// Adds `count` events over `length_ns` from `start` to this track of a host. Intervals of a track don't overlap.
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn add(&mut self, (host, track): (&str, &str), start: UnixNs, length_ns: u64, count: u64) {
        if length_ns == 0 {
            return;
        }
        let end = UnixNs(start.0.saturating_add(length_ns));
        let interval = RateInterval { start, end, per_s: count as f64 * 1e9 / length_ns as f64 };
        self.hosts.entry(host.to_owned()).or_default().entry(track.to_owned()).or_default().push(interval);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Sorts the intervals. Call it after the last [`Self::add`].
    pub(super) fn sort(&mut self) {
        let tracks = self.hosts.values_mut().flat_map(BTreeMap::values_mut);
        tracks.for_each(|intervals| intervals.sort_by_key(|interval| interval.start));
    }

    /// Rate per second in the middle of that interval, all tracks of a host together; the highest of all hosts.
    pub(super) fn rate_at(&self, start: UnixNs, length_ns: u64) -> f64 {
        let middle = UnixNs(start.0.saturating_add(length_ns / 2));
        let at = |intervals: &Vec<RateInterval>| {
            let after = intervals.partition_point(|interval| interval.start <= middle);
            let interval = intervals.get(after.checked_sub(1)?)?;
            (interval.end > middle).then_some(interval.per_s)
        };
        self.hosts.values().map(|tracks| tracks.values().filter_map(at).sum()).fold(0.0, f64::max)
    }

    /// Median of the rates of all intervals with events; 0 if there are none. Empty intervals are left out: otherwise
    /// every message of a mostly silent channel would count as a burst.
    pub(super) fn median(&self) -> f64 {
        let intervals = self.hosts.values().flat_map(BTreeMap::values).flatten();
        let mut rates: Vec<f64> = intervals
            .map(|interval| self.rate_at(interval.start, interval.end.0 - interval.start.0))
            .filter(|rate| *rate > 0.0)
            .collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Sorts histograms into buckets by their load.
#[derive(Debug, Default)]
pub(super) struct ByLoad(BTreeMap<u64, (u64, u64, Histogram<u64>)>);

impl ByLoad {
    pub(super) fn add(&mut self, per_s: f64, histogram: &Histogram<u64>) {
        let (from, until) = bucket(per_s);
        match self.0.entry(from) {
            Entry::Vacant(entry) => drop(entry.insert((until, 1, histogram.clone()))),
            Entry::Occupied(mut entry) => {
                let (_, intervals, merged) = entry.get_mut();
                *intervals += 1;
                add(merged, histogram);
            }
        }
    }

    pub(super) fn buckets(&self) -> Vec<LoadBucket> {
        let bucket = |(from, (until, intervals, histogram)): (&u64, &(u64, u64, Histogram<u64>))| LoadBucket {
            from_per_s: *from,
            until_per_s: *until,
            intervals: *intervals,
            statistics: LatencyStatistics::of(histogram),
        };
        self.0.iter().map(bucket).collect()
    }
}

/// The step of 1, 2, 5, 10, … that contains a rate: from, until.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the steps' range")]
fn bucket(per_s: f64) -> (u64, u64) {
    let whole = per_s.clamp(0.0, 1e15) as u64;
    if whole == 0 {
        return (0, 1);
    }
    let decade = 10_u64.pow(whole.ilog10());
    match whole / decade {
        1 => (decade, 2 * decade),
        2..=4 => (2 * decade, 5 * decade),
        _ => (5 * decade, 10 * decade),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::statistics::empty_histogram;

    #[test]
    fn load_buckets_enclose_their_rates_and_are_contiguous() {
        for (rate, expected) in [
            (0.0, (0, 1)),
            (0.9, (0, 1)),
            (1.0, (1, 2)),
            (4.99, (2, 5)),
            (5.0, (5, 10)),
            (19_999.9, (10_000, 20_000)),
            (20_000.0, (20_000, 50_000)),
            (f64::MAX, (1_000_000_000_000_000, 2_000_000_000_000_000)),
        ] {
            assert_eq!(bucket(rate), expected, "{rate}");
        }
    }

    #[test]
    fn a_rate_is_the_sum_over_all_threads_at_that_time() {
        let mut rates = Rates::default();
        rates.add(("", "a"), UnixNs(2_000_000_000), 1_000_000_000, 500);
        rates.add(("", "a"), UnixNs(1_000_000_000), 1_000_000_000, 100);
        rates.add(("", "b"), UnixNs(1_500_000_000), 2_000_000_000, 600);
        rates.add(("", "b"), UnixNs(9_000_000_000), 0, 600);
        rates.sort();
        let rate_at =
            |start_ms: u64, length_ms: u64| rates.rate_at(UnixNs(start_ms * 1_000_000), length_ms * 1_000_000);
        assert_eq!(rate_at(1_000, 200), 100.0, "thread b had not begun");
        assert_eq!(rate_at(1_800, 100), 400.0);
        assert_eq!(rate_at(2_000, 1_000), 800.0);
        assert_eq!(rate_at(4_000, 1_000), 0.0, "no data at that time");
        assert_eq!(rates.median(), 800.0);
    }

    #[test]
    fn silent_intervals_do_not_lower_the_burst_baseline() {
        let mut rates = Rates::default();
        for (second, count) in (0..20).zip([30, 100, 110, 120].into_iter().chain(std::iter::repeat(0))) {
            rates.add(("", "a"), UnixNs(second * 1_000_000_000), 1_000_000_000, count);
        }
        rates.sort();
        assert_eq!(rates.median(), 110.0);
        assert_eq!(Rates::default().median(), 0.0);
    }

    #[test]
    fn values_are_counted_in_the_bucket_of_their_load() {
        let mut by_load = ByLoad::default();
        let one = |value: u64| {
            let mut histogram = empty_histogram();
            histogram.saturating_record(value);
            histogram
        };
        by_load.add(15.0, &one(100));
        by_load.add(12.0, &one(300));
        by_load.add(900.0, &one(5_000));
        let buckets = by_load.buckets();
        let seen: Vec<_> =
            buckets.iter().map(|b| (b.from_per_s, b.until_per_s, b.intervals, b.statistics.max_ns)).collect();
        assert_eq!(seen, [(10, 20, 2, 300), (500, 1_000, 1, buckets[1].statistics.max_ns)]);
        assert!(buckets[1].statistics.max_ns >= 5_000);
    }
}
