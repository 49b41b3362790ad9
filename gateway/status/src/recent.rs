//! The last interval's metrics, for readers while the gateway runs. The collecting thread writes them, threads that
//! answer requests read them. Both are cold, so a lock is fine.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use hdrhistogram::{Counter, Histogram};
use mdgw_telemetry::stages::{Stage, VALUE_NS_MAX, VALUE_NS_MIN};
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
}

/// Sum of a stage over all threads.
#[derive(Debug)]
struct MergedStage {
    /// Number of the interval in which the values were collected.
    number: u64,
    /// When the first thread began to record, and when the last one returned its set.
    span: (MonoNs, MonoNs),
    histogram: Histogram<u64>,
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
            });
            if merged.number != number {
                merged.histogram.reset();
                (merged.number, merged.span) = (number, span);
            }
            merged.span = (merged.span.0.min(span.0), merged.span.1.max(span.1));
            for value in histogram.iter_recorded() {
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

    /// Stages of a channel, in the order of the data path.
    #[must_use]
    pub fn stages(&self, channel: ChannelId) -> Vec<StageSnapshot> {
        self.with(|intervals| {
            let of_channel = intervals.stages.iter().filter(|((id, _), _)| *id == channel);
            of_channel
                .map(|((_, stage), MergedStage { span: (begin, end), histogram, .. })| StageSnapshot {
                    stage: stage.name().to_owned(),
                    begin_ns: begin.0,
                    end_ns: end.0,
                    count: histogram.len(),
                    p50_ns: histogram.value_at_quantile(0.5),
                    p99_ns: histogram.value_at_quantile(0.99),
                    p999_ns: histogram.value_at_quantile(0.999),
                    max_ns: histogram.max(),
                })
                .collect()
        })
    }

    /// Lines of a channel.
    #[must_use]
    pub fn lines(&self, channel: ChannelId) -> Vec<LineSnapshot> {
        self.with(|intervals| {
            let of_channel = intervals.lines.iter().filter(|((id, _), _)| *id == channel);
            of_channel.map(|(_, (_, line))| line.clone()).collect()
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Intervals) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
        recent.begin();
        assert_eq!(shown(), [(3, 10, 70)], "until there is something newer");
        recent.add_stage(CHANNEL, Stage::Publish, (MonoNs(70), MonoNs(80)), &values(&[5]));
        assert_eq!(shown(), [(1, 70, 80)]);
        assert!(recent.stages(ChannelId(8)).is_empty());
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
