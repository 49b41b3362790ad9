//! How a stage went over time: at most so many stretches of one width, with what stood out in them.

use hdrhistogram::Histogram;
use mdgw_feeds::time::UnixNs;

use super::statistics::{add, empty_histogram};

/// What one stretch of time saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelinePoint {
    /// Begin of the stretch.
    pub start: UnixNs,
    /// End of it.
    pub end: UnixNs,
    /// Values in it.
    pub count: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Maximum, ns.
    pub max_ns: u64,
    /// How many came a second in its busiest interval.
    pub per_s_max: f64,
    /// Whether that is [`BURST_FACTOR`] times what is usual, or more.
    pub is_burst: bool,
}

/// How many times the median rate of all intervals makes a burst.
pub const BURST_FACTOR: f64 = 4.0;

/// Points of a timeline: more are not to be told apart in a picture.
const POINTS_MAX: u64 = 240;
/// Stretches of a day, 5 minutes: a trading day has some tens of them.
const DAY_POINT_NS: u64 = 300_000_000_000;
pub(super) const NS_PER_DAY: u64 = 86_400_000_000_000;

/// Puts intervals of all threads into stretches of one width, in the order of time.
#[derive(Debug)]
pub(super) struct Timeline {
    begin: UnixNs,
    width_ns: u64,
    per_s_median: f64,
    current: Option<OpenPoint>,
    points: Vec<TimelinePoint>,
}

#[derive(Debug)]
struct OpenPoint {
    index: u64,
    merged: Histogram<u64>,
    per_s_max: f64,
}

impl Timeline {
    /// Over a span that begins at `begin`, of intervals that are no longer than `interval_ns_max`. `per_s_median`: the
    /// rate that bursts are measured by.
    pub(super) fn new(begin: UnixNs, span_ns: u64, interval_ns_max: u64, per_s_median: f64) -> Self {
        let width_ns = (span_ns / POINTS_MAX + 1).max(interval_ns_max).max(1);
        Self { begin, width_ns, per_s_median, current: None, points: Vec::new() }
    }

    /// Over the time since midnight (UTC), whatever the day.
    pub(super) fn of_day(interval_ns_max: u64, per_s_median: f64) -> Self {
        let width_ns = DAY_POINT_NS.max(interval_ns_max);
        Self { begin: UnixNs(0), width_ns, per_s_median, current: None, points: Vec::new() }
    }

    /// Intervals come sorted by their start.
    pub(super) fn add(&mut self, start: UnixNs, per_s: f64, histogram: &Histogram<u64>) {
        let index = start.0.saturating_sub(self.begin.0) / self.width_ns;
        if self.current.as_ref().is_none_or(|current| current.index != index) {
            self.close();
            self.current = Some(OpenPoint { index, merged: empty_histogram(), per_s_max: 0.0 });
        }
        if let Some(current) = &mut self.current {
            add(&mut current.merged, histogram);
            current.per_s_max = current.per_s_max.max(per_s);
        }
    }

    pub(super) fn into_points(mut self) -> Vec<TimelinePoint> {
        self.close();
        self.points
    }

    fn close(&mut self) {
        let Some(OpenPoint { index, merged, per_s_max }) = self.current.take() else { return };
        if !merged.is_empty() {
            let start = UnixNs(self.begin.0.saturating_add(index * self.width_ns));
            self.points.push(TimelinePoint {
                start,
                end: UnixNs(start.0.saturating_add(self.width_ns)),
                count: merged.len(),
                p50_ns: merged.value_at_quantile(0.5),
                p99_ns: merged.value_at_quantile(0.99),
                max_ns: merged.max(),
                per_s_max,
                is_burst: self.per_s_median > 0.0 && per_s_max >= BURST_FACTOR * self.per_s_median,
            });
        }
    }
}
