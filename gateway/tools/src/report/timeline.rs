//! Timeline of a stage: a bounded number of slices of one width, with bursts marked.

use hdrhistogram::Histogram;
use mdgw_feeds::time::UnixNs;

use super::statistics::{add, empty_histogram};

/// One slice of a timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelinePoint {
    /// Begin of the slice.
    pub start: UnixNs,
    /// End of the slice.
    pub end: UnixNs,
    /// Number of values.
    pub count: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Maximum, ns.
    pub max_ns: u64,
    /// Rate per second in its busiest interval.
    pub per_s_max: f64,
    /// Whether that rate is at least [`BURST_FACTOR`] times the usual one.
    pub is_burst: bool,
}

/// Factor above the median rate of all intervals that makes a burst.
pub(crate) const BURST_FACTOR: f64 = 4.0;

/// Slices of a timeline: more can't be distinguished in a chart.
const POINTS_MAX: u64 = 240;
/// Slice of a day overlay, 5 minutes: a trading day has some tens of them.
const DAY_POINT_NS: u64 = 300_000_000_000;
pub(super) const NS_PER_DAY: u64 = 86_400_000_000_000;

/// Collects intervals of all threads into slices of one width, in time order.
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
    /// For a span that begins at `begin`, with intervals no longer than `interval_ns_max`. `per_s_median` is the usual
    /// rate, against which bursts are measured.
    pub(super) fn new(begin: UnixNs, span_ns: u64, interval_ns_max: u64, per_s_median: f64) -> Self {
        let width_ns = (span_ns / POINTS_MAX + 1).max(interval_ns_max).max(1);
        Self { begin, width_ns, per_s_median, current: None, points: Vec::new() }
    }

    /// For the time since midnight (UTC) of any day.
    pub(super) fn of_day(interval_ns_max: u64, per_s_median: f64) -> Self {
        let width_ns = DAY_POINT_NS.max(interval_ns_max);
        Self { begin: UnixNs(0), width_ns, per_s_median, current: None, points: Vec::new() }
    }

    /// Intervals arrive sorted by their start.
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
