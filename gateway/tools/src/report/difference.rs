//! Compares groups of logs: runs, hosts or days.
//!
//! **Spread.** Each run (one log) of a group has its own value of a percentile; the group's spread is from the lowest
//! to the highest of these. If a group has only one run, the runs of both groups are split into [`BATCH_COUNT`] batches
//! of equally many intervals, which take the place of runs. Variation between runs can't be seen then.
//!
//! **A change exceeds the spread** if the two spreads don't overlap, that is, if every run of one group was faster than
//! every run of the other. Without a real change, that happens by chance in 2 of `(n + m over n)` cases, with `n` and
//! `m` runs. If this is more than 1 in 20, there are too few runs for a result. The maximum grows with the number of
//! values, so it is shown but not compared. The same applies to percentiles with less than one value above them in some
//! run.

use mdgw_feeds::identity::ChannelId;
use mdgw_telemetry::stages::Stage;

use super::{Report, quantity::QUANTILES, statistics::LatencyStatistics, summary::StageReport};

/// Several groups; the others are compared with the first one.
#[derive(Debug)]
pub struct Comparison {
    /// The groups in the order given.
    pub groups: Vec<Group>,
    /// Differences by channel, stage and group.
    pub differences: Vec<Difference>,
}

/// Logs with a common name.
#[derive(Debug)]
pub struct Group {
    /// Name of the group of logs, as printed.
    pub name: String,
    /// Combined report of its logs.
    pub report: Report,
}

/// One stage of one channel, in a group and in the first group.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Channel number, the same in both groups.
    pub channel: ChannelId,
    /// Its name, if a disclosure contains it.
    pub name: Option<String>,
    /// Stage of the data path that was measured.
    pub stage: Stage,
    /// Index of the group that is compared with the first.
    pub group: usize,
    /// Samples behind the spreads.
    pub samples: Samples,
    /// Percentile by percentile, the maximum last.
    pub changes: Vec<Change>,
}

/// Samples behind a spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Whether the samples are runs; if not, they are batches of intervals.
    pub are_runs: bool,
    /// Number of samples in the first group.
    pub base_count: usize,
    /// Number of samples in the other group.
    pub count: usize,
}

/// One percentile, or the maximum, of both groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Name of the compared value, as printed.
    pub name: &'static str,
    /// Value over all samples of the first group, ns.
    pub base_ns: u64,
    /// Value over all samples of the other group, ns.
    pub value_ns: u64,
    /// Lowest and highest sample of the first group, ns.
    pub base_spread_ns: (u64, u64),
    /// Lowest and highest sample of the other group, ns.
    pub spread_ns: (u64, u64),
    /// Result of the comparison.
    pub verdict: ChangeVerdict,
}

/// Whether a change exceeds the spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeVerdict {
    /// Every sample of one group is below every sample of the other.
    Exceeds,
    /// Some sample of one group is not below, or not above, every sample of the other.
    Within,
    /// The spreads don't overlap, but with so few samples that happens too often by chance.
    FewSamples,
    /// Not compared: the value depends on the number of values.
    Unjudged,
}

impl Comparison {
    /// Compares groups with the first of them. Channels are matched by number.
    #[must_use]
    pub fn of(groups: Vec<Group>) -> Self {
        let mut differences = Vec::new();
        if let Some((base, others)) = groups.split_first() {
            for channel in &base.report.channels {
                for stage in &channel.stages {
                    for (index, group) in (1..).zip(others) {
                        let other = group.report.channels.iter().find(|other| other.id == channel.id);
                        let Some(other) = other.and_then(|other| other.stage(stage.stage)) else { continue };
                        if stage.histogram.is_empty() || other.histogram.is_empty() {
                            continue;
                        }
                        let (samples, changes) = changes(stage, other);
                        differences.push(Difference {
                            channel: channel.id,
                            name: channel.name.clone(),
                            stage: stage.stage,
                            group: index,
                            samples,
                            changes,
                        });
                    }
                }
            }
        }
        Self { groups, differences }
    }
}

impl Change {
    /// The change relative to the first group's value: 0.1 is a tenth more. `None` if that value was 0.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
    pub(crate) fn share(&self) -> Option<f64> {
        (self.base_ns > 0).then(|| self.value_ns as f64 / self.base_ns as f64 - 1.0)
    }
}

impl ChangeVerdict {
    /// Result as text.
    #[must_use]
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Exceeds => "outside the spread",
            Self::Within => "within the spread",
            Self::FewSamples => "too few runs",
            Self::Unjudged => "not compared",
        }
    }

    /// Name in CSV and JSON.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exceeds => "outside_spread",
            Self::Within => "within_spread",
            Self::FewSamples => "few_runs",
            Self::Unjudged => "not_compared",
        }
    }
}

impl Samples {
    /// Probability that chance alone separates the two sets of samples.
    #[must_use]
    pub(crate) fn chance(self) -> f64 {
        2.0 / combinations(self.base_count + self.count, self.base_count)
    }
}

/// Note below the tables: how spreads are computed.
pub(super) const SPREAD_NOTE: &str = "Spread: from the lowest to the highest percentile among the runs (logs) of a \
    group; where a group has one run, among \
     5 equal parts of its intervals instead. A change is outside the spread if the two spreads do not overlap \
     and the probability of that by chance is less than 5 %. The maximum, and percentiles with less than one value above \
     them in some run, depend on the number of values and are not compared.";

/// Batches per run, if there is only one run.
pub(crate) const BATCH_COUNT: usize = 5;
/// A higher probability of separation by chance is too high to report a change.
const CHANCE_MAX: f64 = 0.05;

fn changes(base: &StageReport, other: &StageReport) -> (Samples, Vec<Change>) {
    let are_runs = base.runs.len() >= 2 && other.runs.len() >= 2;
    let of = |stage: &StageReport| if are_runs { stage.runs.clone() } else { stage.batches.clone() };
    let (base_samples, other_samples) = (of(base), of(other));
    let samples = Samples { are_runs, base_count: base_samples.len(), count: other_samples.len() };
    let (base_all, other_all) = (LatencyStatistics::of(&base.histogram), LatencyStatistics::of(&other.histogram));
    let values = base_all.named().zip(other_all.named()).enumerate();
    let changes = values.map(|(index, ((name, base_ns), (_, value_ns)))| {
        let (base_spread_ns, spread_ns) = (spread(&base_samples, index), spread(&other_samples, index));
        let is_judged = QUANTILES.get(index).is_some_and(|(quantile, _)| {
            base_samples.iter().chain(&other_samples).all(|sample| has_value_beyond(sample, *quantile))
        });
        let is_disjoint = base_spread_ns.1 < spread_ns.0 || spread_ns.1 < base_spread_ns.0;
        let verdict = match (is_judged, is_disjoint, samples.chance() <= CHANCE_MAX) {
            (false, ..) => ChangeVerdict::Unjudged,
            (_, false, _) => ChangeVerdict::Within,
            (_, true, true) => ChangeVerdict::Exceeds,
            (_, true, false) => ChangeVerdict::FewSamples,
        };
        Change { name, base_ns, value_ns, base_spread_ns, spread_ns, verdict }
    });
    (samples, changes.collect())
}

/// Lowest and highest.
fn spread(samples: &[LatencyStatistics], index: usize) -> (u64, u64) {
    let values = || samples.iter().filter_map(|sample| sample.named().nth(index)).map(|(_, value)| value);
    (values().min().unwrap_or(0), values().max().unwrap_or(0))
}

/// Whether at least one value lies above a percentile.
#[allow(clippy::cast_precision_loss, reason = "a comparison with 1")]
fn has_value_beyond(sample: &LatencyStatistics, quantile: f64) -> bool {
    // A tolerance of a tenth of a value, for the rounding of doubles such as 0.9999.
    sample.count as f64 * (1.0 - quantile) >= 0.9
}

/// Binomial coefficient: ways to choose `chosen` of `all`.
#[allow(clippy::cast_precision_loss, reason = "few runs")]
fn combinations(all: usize, chosen: usize) -> f64 {
    (0..chosen).map(|step| (all - step) as f64 / (step + 1) as f64).product()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::report::summary::tests::log_with_values;

    fn group(name: &str, logs: &[Vec<u64>]) -> Group {
        let files: Vec<_> = (0..)
            .zip(logs)
            .map(|(run, values)| (PathBuf::from(format!("{name}-{run}")), log_with_values(values)))
            .collect();
        Group { name: name.to_owned(), report: Report::of(&files, None) }
    }

    fn verdicts(base: &[Vec<u64>], other: &[Vec<u64>]) -> (Samples, Vec<(&'static str, ChangeVerdict)>) {
        let comparison = Comparison::of(vec![group("base", base), group("other", other)]);
        let [difference] = comparison.differences.as_slice() else { panic!("{:?}", comparison.differences) };
        (difference.samples, difference.changes.iter().map(|change| (change.name, change.verdict)).collect())
    }

    /// Runs of 1,000 values around `medians`.
    fn runs(medians: &[u64]) -> Vec<Vec<u64>> {
        medians.iter().map(|median| (0..1_000).map(|value| median - 500 + value).collect()).collect()
    }

    #[test]
    fn separated_runs_exceed_the_spread_and_overlapping_runs_do_not() {
        let (samples, apart) = verdicts(&runs(&[5_000, 5_100, 5_200, 5_300]), &runs(&[9_000, 9_100, 9_200, 9_300]));
        assert_eq!(samples, Samples { are_runs: true, base_count: 4, count: 4 });
        assert_eq!(apart[0], ("p50", ChangeVerdict::Exceeds));
        assert_eq!(apart[3], ("p99.9", ChangeVerdict::Exceeds));
        assert_eq!(apart[4], ("p99.99", ChangeVerdict::Unjudged), "only a tenth of a value lies above it");
        assert_eq!(apart[5], ("max", ChangeVerdict::Unjudged));
        let (_, mixed) = verdicts(&runs(&[5_000, 5_100, 9_200, 5_300]), &runs(&[9_000, 9_100, 9_200, 9_300]));
        assert_eq!(mixed[0], ("p50", ChangeVerdict::Within));
    }

    #[test]
    fn few_separated_runs_are_inconclusive() {
        let (samples, verdicts) = verdicts(&runs(&[5_000, 5_100]), &runs(&[9_000, 9_100]));
        assert!((samples.chance() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(verdicts[0], ("p50", ChangeVerdict::FewSamples));
    }

    #[test]
    fn a_single_run_is_split_into_batches() {
        let (samples, same) = verdicts(&runs(&[5_000]), &runs(&[5_000, 5_000]));
        assert_eq!(samples, Samples { are_runs: false, base_count: BATCH_COUNT, count: BATCH_COUNT });
        assert!((samples.chance() - 2.0 / 252.0).abs() < 1e-9);
        assert_eq!(same[0], ("p50", ChangeVerdict::Within));
        let (_, apart) = verdicts(&runs(&[5_000]), &runs(&[9_000]));
        assert_eq!(apart[0], ("p50", ChangeVerdict::Exceeds));
    }

    #[test]
    fn a_change_is_a_share_of_the_first_groups_value() {
        let comparison = Comparison::of(vec![group("a", &runs(&[4_000])), group("b", &runs(&[5_000]))]);
        let share = comparison.differences[0].changes[0].share().unwrap();
        assert!((share - 0.25).abs() < 0.02, "{share}");
    }

    #[test]
    fn a_channel_in_only_one_group_is_no_difference() {
        let empty = Group { name: "empty".to_owned(), report: Report::of(&[], None) };
        assert!(Comparison::of(vec![group("a", &runs(&[4_000])), empty]).differences.is_empty());
        assert!(Comparison::of(Vec::new()).differences.is_empty());
    }
}
