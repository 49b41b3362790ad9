//! Charts of a page.

use hdrhistogram::Histogram;
use mdgw_feeds::{
    identity::ChannelId,
    time::{TradingDate, UnixNs},
};
use mdgw_status::quantity::Count;
use mdgw_telemetry::stages::Stage;

use super::{latency, stage_title};
use crate::report::{
    ChannelReport, LineReport, LoadBucket, RateUnit, Report, TimelinePoint,
    chart::{Axis, Band, BandKind, Chart, Series, Size},
    quantity::TimeOfDay,
    statistics::LatencyStatistics,
    takeovers::Takeover,
    timeline::NS_PER_DAY,
};

/// Percentile curves: each step to the right means ten times fewer values.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a drawing"
)]
pub(super) fn percentiles(label: &str, lines: &[(String, usize, &Histogram<u64>)]) -> Chart {
    let count_max = lines.iter().map(|(_, _, histogram)| histogram.len()).max().unwrap_or(1);
    let nines_max = (count_max as f64).log10().clamp(1.0, 6.0);
    let tick = |(position, text): (f64, &str)| (position, text.to_owned());
    let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
    let ticks = (0..).zip(names).map(|(nines, name)| tick((f64::from(nines), name)));
    let series: Vec<Series> = lines
        .iter()
        .map(|(name, style, histogram)| {
            let end = (histogram.len().max(1) as f64).log10().min(nines_max);
            let steps = (end / NINES_STEP).ceil() as usize;
            let point = |nines: f64| (nines, position(histogram.value_at_quantile(1.0 - 10_f64.powf(-nines))));
            let mut points: Vec<(f64, f64)> = (0..steps).map(|step| point(step as f64 * NINES_STEP)).collect();
            points.push((end, position(histogram.max())));
            Series { name: name.clone(), style: *style, points, notes: Vec::new(), join_distance_max: f64::INFINITY }
        })
        .collect();
    let (min, max) = lines.iter().fold((u64::MAX, 0), |(min, max), (_, _, histogram)| {
        (min.min(histogram.value_at_quantile(0.0)), max.max(histogram.max()))
    });
    Chart {
        label: format!("{label}: latency by percentile"),
        x: Axis { min: 0.0, max: nines_max, ticks: ticks.filter(|(position, _)| *position <= nines_max).collect() },
        y: Axis::latency(min.min(max), max, latency_tick),
        series,
        bands: Vec::new(),
        size: Size::Full,
    }
}

/// Time range of a chart, and its marked intervals.
#[derive(Debug)]
pub(super) struct TimeSpan {
    pub(super) begin: UnixNs,
    pub(super) length_ns: u64,
    pub(super) bands: Vec<Band>,
}

impl TimeSpan {
    /// Time range of one stage's timeline, with the pauses, bursts, gaps and takeovers of its channel.
    #[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
    pub(super) fn of(report: &Report, points: &[TimelinePoint], channel: &ChannelReport) -> Self {
        let begin = report.begin;
        let length_ns = points.last().map_or(1, |last| last.end.0.saturating_sub(begin.0)).max(1);
        let at = |time: UnixNs| time.0.saturating_sub(begin.0) as f64;
        let unit = channel.rate_unit.name();
        let pauses = channel.pauses.iter().map(|(from, until)| Band {
            kind: BandKind::Pause,
            from: at(*from),
            until: at(*until),
            note: format!("no data from {} to {}", TimeOfDay(*from), TimeOfDay(*until)),
        });
        let bursts = points.iter().filter(|point| point.is_burst).map(|point| Band {
            kind: BandKind::Burst,
            from: at(point.start),
            until: at(point.end),
            note: format!("{} burst: {} {unit} a second", TimeOfDay(point.start), per_s(point.per_s_max)),
        });
        let gaps = channel.gaps.seen.iter().map(|gap| Band {
            kind: BandKind::Gap,
            from: at(gap.start),
            until: at(gap.start),
            note: format!(
                "{} gaps declared: {}, {} messages",
                TimeOfDay(gap.start),
                gap.counts.gaps,
                Count(gap.counts.messages)
            ),
        });
        let takeovers = report.takeovers.iter().filter(|takeover| takeover.concerns(channel.id)).map(|takeover| Band {
            kind: BandKind::Takeover,
            from: at(takeover.time),
            until: at(takeover.time),
            note: takeover_text(takeover, channel.id),
        });
        Self { begin, length_ns, bands: pauses.chain(bursts).chain(gaps).chain(takeovers).collect() }
    }

    #[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
    fn axis(&self) -> Axis {
        Axis { min: 0.0, max: self.length_ns as f64, ticks: time_ticks(self.begin, self.length_ns) }
    }

    #[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
    fn at(&self, point: &TimelinePoint) -> f64 {
        point.start.0.saturating_sub(self.begin.0) as f64
    }
}

/// A takeover of a channel in words.
fn takeover_text(takeover: &Takeover, channel: ChannelId) -> String {
    let blackout = takeover.blackout_ns(Some(channel)).map(|ns| format!(", blackout {}", latency(ns)));
    let (time, node, cause) = (TimeOfDay(takeover.time), takeover.node, &takeover.cause);
    format!("{time} node {node} took over ({cause}){}", blackout.unwrap_or_default())
}

/// Longest distance between joined points. Over a longer distance, nothing was recorded for some slices.
#[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
fn join_distance_max(points: &[TimelinePoint]) -> f64 {
    let width_ns = points.first().map_or(0, |point| point.end.0 - point.start.0);
    POINTS_JOINED_MAX.saturating_mul(width_ns) as f64
}

/// Median, tail and maximum over time.
pub(super) fn timeline(stage: Stage, points: &[TimelinePoint], span: &TimeSpan) -> Chart {
    let series = |name: &str, style: usize, pick: fn(&TimelinePoint) -> u64| Series {
        name: name.to_owned(),
        style,
        points: points.iter().map(|point| (span.at(point), position(pick(point)))).collect(),
        notes: points
            .iter()
            .map(|point| {
                let (time, value) = (TimeOfDay(point.start), latency(pick(point)));
                format!("{time} {name} {value}, {} packets", Count(point.count))
            })
            .collect(),
        join_distance_max: join_distance_max(points),
    };
    let low = points.iter().map(|point| point.p50_ns).min().unwrap_or(1);
    let high = points.iter().map(|point| point.max_ns).max().unwrap_or(1);
    Chart {
        label: format!("{}: median, 99th percentile and maximum over time", stage_title(stage)),
        x: span.axis(),
        y: Axis::latency(low, high, latency_tick),
        series: vec![
            series("max", 3, |point| point.max_ns),
            series("p99", 1, |point| point.p99_ns),
            series("p50", 5, |point| point.p50_ns),
        ],
        bands: span.bands.clone(),
        size: Size::Full,
    }
}

/// Rate over time.
pub(super) fn rates(unit: RateUnit, points: &[TimelinePoint], span: &TimeSpan) -> Chart {
    let unit = unit.name();
    let max = points.iter().map(|point| point.per_s_max).fold(0.0, f64::max);
    let note = |point: &TimelinePoint| format!("{} {} {unit} a second", TimeOfDay(point.start), per_s(point.per_s_max));
    Chart {
        label: "Rate over time".to_owned(),
        x: span.axis(),
        y: Axis::from_zero(max, short_count),
        series: vec![Series {
            name: format!("{unit} a second, in the busiest interval"),
            style: 0,
            points: points.iter().map(|point| (span.at(point), point.per_s_max)).collect(),
            notes: points.iter().map(note).collect(),
            join_distance_max: join_distance_max(points),
        }],
        bands: span.bands.clone(),
        size: Size::Half,
    }
}

/// One series of [`overlay`]: name, style, begin of its time axis, and points.
pub(super) type OverlayLine<'a> = (&'a str, usize, UnixNs, &'a [TimelinePoint]);

/// The 99th percentile of several groups over the same time of day, or from their begins.
#[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
pub(super) fn overlay(label: &str, lines: &[OverlayLine<'_>]) -> Chart {
    let since = |origin: &UnixNs, point: &TimelinePoint| point.start.0.saturating_sub(origin.0);
    let all = || lines.iter().flat_map(|(_, _, origin, points)| points.iter().map(move |point| (origin, point)));
    let begin = all().map(|(origin, point)| since(origin, point)).min().unwrap_or(0);
    let end = all().map(|(origin, point)| point.end.0.saturating_sub(origin.0)).max().unwrap_or(1);
    let low = all().map(|(_, point)| point.p99_ns).min().unwrap_or(1);
    let high = all().map(|(_, point)| point.p99_ns).max().unwrap_or(1);
    let series = lines.iter().map(|(name, style, origin, points)| Series {
        name: (*name).to_owned(),
        style: *style,
        points: points
            .iter()
            .map(|point| ((since(origin, point).saturating_sub(begin)) as f64, position(point.p99_ns)))
            .collect(),
        notes: points
            .iter()
            .map(|point| format!("{name}: {} p99 {}", TimeOfDay(UnixNs(since(origin, point))), latency(point.p99_ns)))
            .collect(),
        join_distance_max: join_distance_max(points),
    });
    let length_ns = end.saturating_sub(begin).max(1);
    Chart {
        label: format!("{label}: 99th percentile over time"),
        x: Axis { min: 0.0, max: length_ns as f64, ticks: time_ticks(UnixNs(begin), length_ns) },
        y: Axis::latency(low, high, latency_tick),
        series: series.collect(),
        bands: Vec::new(),
        size: Size::Full,
    }
}

/// One series of [`load`]: one statistic of each bucket of a stage.
pub(super) struct LoadLine<'a> {
    pub(super) name: String,
    pub(super) style: usize,
    pub(super) buckets: &'a [LoadBucket],
    pub(super) pick: fn(&LatencyStatistics) -> u64,
}

/// Latency against load.
pub(super) fn load(label: &str, lines: &[LoadLine<'_>]) -> Chart {
    let all = || lines.iter().flat_map(|line| line.buckets.iter().map(|bucket| (bucket, line.pick)));
    let low = all().map(|(bucket, pick)| pick(&bucket.statistics)).min().unwrap_or(1);
    let high = all().map(|(bucket, pick)| pick(&bucket.statistics)).max().unwrap_or(1);
    let slowest = all().map(|(bucket, _)| bucket.from_per_s).min().unwrap_or(1);
    let fastest = all().map(|(bucket, _)| bucket.until_per_s).max().unwrap_or(10);
    let series = lines.iter().map(|LoadLine { name, style, buckets, pick }| Series {
        name: name.clone(),
        style: *style,
        // The middle of the bucket on a logarithmic axis.
        points: buckets
            .iter()
            .map(|bucket| (midpoint(bucket.from_per_s, bucket.until_per_s), position(pick(&bucket.statistics))))
            .collect(),
        notes: buckets
            .iter()
            .map(|bucket| format!("{name}: {} at {}", latency(pick(&bucket.statistics)), bucket_title(bucket)))
            .collect(),
        join_distance_max: f64::INFINITY,
    });
    Chart {
        label: format!("{label}: latency against load"),
        x: Axis::rate(slowest, fastest, short_count),
        y: Axis::latency(low, high, latency_tick),
        series: series.collect(),
        bands: Vec::new(),
        size: Size::Full,
    }
}

/// Median lead of each line per slice, over time.
#[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
pub(super) fn leads(label: &str, lines: &[LineReport]) -> Chart {
    let slices = || lines.iter().flat_map(|line| &line.slices);
    let begin = slices().map(|slice| slice.start).min().unwrap_or(UnixNs(0));
    let end = slices().map(|slice| slice.end).max().unwrap_or(UnixNs(1));
    let low = slices().map(|slice| slice.lead.percentiles_ns[0]).min().unwrap_or(1);
    let high = slices().map(|slice| slice.lead.percentiles_ns[0]).max().unwrap_or(1);
    let series = lines.iter().map(|line| Series {
        name: format!("lead of line {}", line.line),
        style: usize::from(line.line.0),
        points: line
            .slices
            .iter()
            .map(|slice| {
                let middle = u64::midpoint(slice.start.0, slice.end.0) - begin.0;
                (middle as f64, position(slice.lead.percentiles_ns[0]))
            })
            .collect(),
        notes: line
            .slices
            .iter()
            .map(|slice| {
                let ahead = latency(slice.lead.percentiles_ns[0]);
                format!("{} lead of line {} {ahead}", TimeOfDay(slice.start), line.line)
            })
            .collect(),
        // Slices in which the line never led stay empty.
        join_distance_max: line.slices.first().map_or(0.0, |slice| 1.5 * (slice.end.0 - slice.start.0) as f64),
    });
    let length_ns = end.0.saturating_sub(begin.0).max(1);
    Chart {
        label: format!("{label}: lead of each line over time"),
        x: Axis { min: 0.0, max: length_ns as f64, ticks: time_ticks(begin, length_ns) },
        y: Axis::latency(low, high, latency_tick),
        series: series.collect(),
        bands: Vec::new(),
        size: Size::Half,
    }
}

/// Range of rates per second.
pub(super) fn bucket_title(bucket: &LoadBucket) -> String {
    match bucket.from_per_s {
        0 => "less than 1/s".to_owned(),
        from => format!("{} to {}/s", short_count(from), short_count(bucket.until_per_s)),
    }
}

fn midpoint(from: u64, until: u64) -> f64 {
    f64::midpoint(position(from), position(until))
}

/// Round times of day, at most seven.
#[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
fn time_ticks(begin: UnixNs, span_ns: u64) -> Vec<(f64, String)> {
    const STEPS_S: [u64; 15] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400];
    let fits = STEPS_S.into_iter().find(|step| span_ns / (step * NS_PER_SECOND) < 7);
    // Whole days for long ranges.
    let step_ns = fits.map_or((span_ns / NS_PER_DAY / 7 + 1) * NS_PER_DAY, |step| step * NS_PER_SECOND);
    let text = |time| if fits.is_some() { TimeOfDay(time).to_string() } else { TradingDate::in_utc(time).to_string() };
    let first = begin.0.div_ceil(step_ns).saturating_mul(step_ns);
    let times = (0..8).map(|index| first.saturating_add(index * step_ns));
    times
        .take_while(|time| *time <= begin.0.saturating_add(span_ns))
        .map(|time| ((time - begin.0) as f64, text(UnixNs(time))))
        .collect()
}

/// Label of a latency tick, without decimals.
fn latency_tick(ns: u64) -> String {
    match ns {
        ..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a position in a drawing")]
fn position(ns: u64) -> f64 {
    (ns.max(1) as f64).log10()
}

/// Label of a count tick, with its unit prefix.
fn short_count(count: u64) -> String {
    match count {
        ..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}k", count / 1_000),
        1_000_000..1_000_000_000 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown without decimals")]
fn per_s(rate: f64) -> Count {
    Count(rate.round() as u64)
}

/// Distance between two points of a percentile curve, as a part of a decade.
const NINES_STEP: f64 = 0.02;
/// Most slices between two points of a timeline that are joined.
const POINTS_JOINED_MAX: u64 = 4;
const NS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_ticks_are_round_and_few() {
        let begin = UnixNs(1_548_858_603_500_000_000);
        for seconds in [1, 7, 20, 600, 4_000, 86_400, 5_000_000] {
            let ticks = time_ticks(begin, seconds * NS_PER_SECOND);
            assert!(ticks.len() <= 8, "{seconds}: {ticks:?}");
        }
        assert_eq!(time_ticks(begin, 20 * NS_PER_SECOND)[0].1, "14:30:05");
        let days: Vec<String> = time_ticks(begin, 4 * NS_PER_DAY).into_iter().map(|(_, text)| text).collect();
        assert_eq!(days, ["2019-01-31", "2019-02-01", "2019-02-02", "2019-02-03"]);
    }
}
