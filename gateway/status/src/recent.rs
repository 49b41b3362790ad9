//! The last interval's metrics, for readers while the gateway runs. The collecting thread writes them, threads that
//! answer requests read them. Both are cold, so a lock is fine.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
};

use hdrhistogram::{Counter, Histogram};
use mdgw_telemetry::{
    channel_metrics::LineCounts,
    counters::CounterBlock as _,
    stages::{Stage, VALUE_NS_MAX, VALUE_NS_MIN},
};
use mdgw_wire::{
    identity::{ChannelId, Line},
    time::MonoNs,
};

use super::snapshot::{LineSnapshot, StageSnapshot};

/// The last metrics of each channel.
#[derive(Debug, Default)]
pub struct RecentIntervals(Mutex<Intervals>);

#[derive(Debug, Default)]
struct Intervals {
    /// Number of the interval that is being collected.
    number: u64,
    stages: BTreeMap<(ChannelId, Stage), MergedStage>,
    lines: BTreeMap<(ChannelId, Line), (u64, LineSnapshot)>,
    /// Since the start.
    totals: BTreeMap<(ChannelId, Stage), BucketTotals>,
    /// Highest values since the start.
    line_counts: BTreeMap<(ChannelId, Line), LineCounts>,
}

/// Upper bounds of the buckets of [`BucketTotals`], ns. The last bucket has no bound.
pub const BUCKET_BOUNDS_NS: [u64; 16] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
];

/// All values of a stage since the start, by few buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketTotals {
    /// Number of values in each bucket alone.
    pub counts: [u64; BUCKET_BOUNDS_NS.len() + 1],
    /// Sum of the values, ns, within the histograms' precision.
    pub sum_ns: u64,
}

impl BucketTotals {
    fn add(&mut self, value_ns: u64, count: u64) {
        let bucket = BUCKET_BOUNDS_NS.partition_point(|bound| *bound < value_ns);
        if let Some(total) = self.counts.get_mut(bucket) {
            *total += count;
        }
        self.sum_ns = self.sum_ns.saturating_add(value_ns.saturating_mul(count));
    }
}

/// Sum of a stage over all threads.
#[derive(Debug)]
struct MergedStage {
    /// Number of the interval in which the values were collected.
    number: u64,
    /// When the first thread began to record, and when the last one returned its set.
    span: (MonoNs, MonoNs),
    histogram: Histogram<u64>,
    /// Computed once for all readers: a percentile takes a pass over the histogram.
    summary: Option<StageSnapshot>,
}

impl MergedStage {
    fn summary(&mut self, stage: Stage) -> StageSnapshot {
        let Self { span: (begin, end), histogram, summary, .. } = self;
        let of = |histogram: &Histogram<u64>| StageSnapshot {
            stage: stage.name().to_owned(),
            begin_ns: begin.0,
            end_ns: end.0,
            count: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        };
        summary.get_or_insert_with(|| of(histogram)).clone()
    }
}

/// Metrics without an update for this many intervals are removed. A thread without a batch returns its set an interval
/// later.
const INTERVALS_AGE_MAX: u64 = 2;

impl RecentIntervals {
    /// Begins a new interval and removes old metrics.
    pub fn begin(&self) {
        self.with(|intervals| {
            intervals.number += 1;
            let oldest = intervals.number.saturating_sub(INTERVALS_AGE_MAX);
            intervals.stages.retain(|_, merged| merged.number >= oldest);
            intervals.lines.retain(|_, (number, _)| *number >= oldest);
        });
    }

    /// Adds one thread's values of a stage, recorded during `span`.
    pub fn add_stage(&self, channel: ChannelId, stage: Stage, span: (MonoNs, MonoNs), histogram: &Histogram<u32>) {
        self.with(|intervals| {
            let number = intervals.number;
            let merged = intervals.stages.entry((channel, stage)).or_insert_with(|| MergedStage {
                number,
                span,
                histogram: empty(histogram.sigfig()),
                summary: None,
            });
            merged.summary = None;
            if merged.number != number {
                merged.histogram.reset();
                (merged.number, merged.span) = (number, span);
            }
            merged.span = (merged.span.0.min(span.0), merged.span.1.max(span.1));
            let totals = intervals.totals.entry((channel, stage)).or_default();
            for value in histogram.iter_recorded() {
                totals.add(histogram.median_equivalent(value.value_iterated_to()), value.count_at_value().as_u64());
                merged.histogram.saturating_record_n(value.value_iterated_to(), value.count_at_value().as_u64());
            }
        });
    }

    /// Sets a line's lead.
    pub fn set_line(&self, channel: ChannelId, line: Line, lead_ns: &Histogram<u64>) {
        let snapshot = LineSnapshot::of(line, lead_ns);
        self.with(|intervals| {
            let number = intervals.number;
            intervals.lines.insert((channel, line), (number, snapshot));
        });
    }

    /// Sets a line's counts since the start. They may decrease a little; the highest value of each is kept.
    pub fn set_line_counts(&self, channel: ChannelId, line: Line, counts: &LineCounts) {
        let new: Vec<u64> = counts.values().collect();
        self.with(|intervals| {
            let known = intervals.line_counts.entry((channel, line)).or_default();
            let highest: Vec<u64> = known.values().zip(&new).map(|(known, new)| known.max(*new)).collect();
            *known = LineCounts::from_values(|index| highest.get(index).copied().unwrap_or_default());
        });
    }

    /// Removes all metrics of a channel. What is collected of it later counts from 0.
    pub fn forget(&self, channel: ChannelId) {
        self.with(|intervals| {
            intervals.stages.retain(|(of, _), _| *of != channel);
            intervals.totals.retain(|(of, _), _| *of != channel);
            intervals.lines.retain(|(of, _), _| *of != channel);
            intervals.line_counts.retain(|(of, _), _| *of != channel);
        });
    }

    /// Highest counts of a channel's lines since the start.
    #[must_use]
    pub fn line_counts(&self, channel: ChannelId) -> Vec<(Line, LineCounts)> {
        self.with(|intervals| {
            let of_channel = intervals.line_counts.range(lines_of(channel));
            of_channel.map(|((_, line), counts)| (*line, *counts)).collect()
        })
    }

    /// All values of a channel's stages since the start.
    #[must_use]
    pub fn totals(&self, channel: ChannelId) -> Vec<(Stage, BucketTotals)> {
        self.with(|intervals| {
            let of_channel = intervals.totals.range(stages_of(channel));
            of_channel.map(|((_, stage), totals)| (*stage, *totals)).collect()
        })
    }

    /// Stages of a channel, in the order of the data path.
    #[must_use]
    pub fn stages(&self, channel: ChannelId) -> Vec<StageSnapshot> {
        self.with(|intervals| {
            let of_channel = intervals.stages.range_mut(stages_of(channel));
            of_channel.map(|((_, stage), merged)| merged.summary(*stage)).collect()
        })
    }

    /// Lines of a channel.
    #[must_use]
    pub fn lines(&self, channel: ChannelId) -> Vec<LineSnapshot> {
        self.with(|intervals| {
            let of_channel = intervals.lines.range(lines_of(channel));
            of_channel.map(|(_, (_, line))| line.clone()).collect()
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Intervals) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The keys of all stages of a channel.
fn stages_of(channel: ChannelId) -> RangeInclusive<(ChannelId, Stage)> {
    let [first, .., last] = Stage::ALL;
    (channel, first)..=(channel, last)
}

/// The keys of all lines of a channel.
fn lines_of(channel: ChannelId) -> RangeInclusive<(ChannelId, Line)> {
    (channel, Line(u8::MIN))..=(channel, Line(u8::MAX))
}

fn empty(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(VALUE_NS_MIN, VALUE_NS_MAX, digits)
        .expect("bounds are constants, digits a histogram's own")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: ChannelId = ChannelId(7);

    fn values(values: &[u64]) -> Histogram<u32> {
        let mut histogram = Histogram::new_with_bounds(VALUE_NS_MIN, VALUE_NS_MAX, 2).unwrap();
        values.iter().for_each(|value| histogram.saturating_record(*value));
        histogram
    }

    #[test]
    fn totals_grow_over_intervals_and_each_value_counts_in_one_bucket() {
        let recent = RecentIntervals::default();
        for _ in 0..5 {
            recent.begin();
            recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(0), MonoNs(1)), &values(&[900, 1_500, 40_000_000_000]));
        }
        let [(stage, totals)] = recent.totals(CHANNEL)[..] else { panic!("one stage") };
        assert_eq!(stage, Stage::Publish);
        let filled: Vec<_> = totals.counts.iter().enumerate().filter(|(_, count)| **count > 0).collect();
        assert_eq!(filled, [(0, &5), (1, &5), (BUCKET_BOUNDS_NS.len(), &5)]);
        assert!(totals.sum_ns.abs_diff(5 * 40_000_002_400) < 5 * 400_000_000, "{}", totals.sum_ns);
        assert!(BUCKET_BOUNDS_NS.is_sorted() && recent.totals(ChannelId(8)).is_empty());
    }

    #[test]
    fn exported_counts_of_a_line_never_decrease() {
        let recent = RecentIntervals::default();
        let counts = |won_messages, packets| LineCounts { won_messages, packets, ..LineCounts::default() };
        for (won, packets) in [(5, 1), (4, 2), (3, 3)] {
            recent.set_line_counts(CHANNEL, Line::A, &counts(won, packets));
        }
        assert_eq!(recent.line_counts(CHANNEL), [(Line::A, counts(5, 3))]);
        assert!(recent.line_counts(ChannelId(8)).is_empty());
    }

    #[test]
    fn threads_of_one_interval_are_merged_and_the_next_interval_starts_empty() {
        let recent = RecentIntervals::default();
        recent.begin();
        recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(20), MonoNs(70)), &values(&[100, 200]));
        recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(10), MonoNs(60)), &values(&[900]));
        let shown = || {
            let stages = recent.stages(CHANNEL);
            stages.iter().map(|stage| (stage.count, stage.begin_ns, stage.end_ns)).collect::<Vec<_>>()
        };
        assert_eq!(shown(), [(3, 10, 70)]);
        recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(15), MonoNs(71)), &values(&[5]));
        assert_eq!(shown(), [(4, 10, 71)], "what was read before is counted anew");
        recent.begin();
        assert_eq!(shown(), [(4, 10, 71)], "until there is something newer");
        recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(70), MonoNs(80)), &values(&[5]));
        assert_eq!(shown(), [(1, 70, 80)]);
        recent.add_stage(ChannelId(8), Stage::WireToWire, (MonoNs(70), MonoNs(80)), &values(&[5]));
        recent.add_stage(ChannelId(6), Stage::WireToUser, (MonoNs(70), MonoNs(80)), &values(&[5]));
        assert_eq!(shown(), [(1, 70, 80)], "of this channel alone");
        assert!(recent.stages(ChannelId(9)).is_empty());
    }

    #[test]
    fn old_intervals_are_dropped() {
        let recent = RecentIntervals::default();
        recent.begin();
        recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(1), MonoNs(2)), &values(&[100]));
        let mut leads = mdgw_wire::arbiter::lead_histogram();
        leads.saturating_record_n(1_000, 5);
        recent.set_line(CHANNEL, Line::A, &leads);
        assert_eq!(recent.lines(CHANNEL)[0].lead_count, 5);
        for _ in 0..=INTERVALS_AGE_MAX {
            recent.begin();
        }
        assert!(recent.stages(CHANNEL).is_empty() && recent.lines(CHANNEL).is_empty());
    }
}
