//! Clock offset between two captures.
//!
//! Method: the median of the timestamp differences of the same message in both captures. If both captured the same line
//! (the same address), only that line is used. The difference then contains the clock offset, and the delay between the
//! line's last common point and each capturing machine. If they captured different lines, the delay between the lines
//! is included too. Packets travel one way only, so a clock that is ahead looks exactly like a longer path: the path
//! difference can't be separated.

use std::collections::BTreeMap;

use super::{leads::Differences, sources::Sources, summary::ClockSummary};
use crate::replay::routes::LineSource;

/// Timestamp differences of two files, each with a sign. The sign is 1 if the difference is the file given later minus
/// the file given earlier, else -1.
#[derive(Default)]
struct ClockSamples<'a> {
    same_line: Vec<(&'a Differences, i64)>,
    other_lines: Vec<(&'a Differences, i64)>,
}

/// One estimate for each pair of files with common messages. `pairs`: the sources of two lines, and their differences.
pub(super) fn estimates<'a>(
    sources: &Sources,
    pairs: impl Iterator<Item = (&'a LineSource, &'a LineSource, &'a Differences)>,
) -> Vec<ClockSummary> {
    let mut samples: BTreeMap<(usize, usize), ClockSamples<'a>> = BTreeMap::new();
    for (first, second, differences) in pairs.filter(|(first, second, _)| first.file != second.file) {
        // Lines are numbered in the order found, so the file of the lower line may be the later one.
        let sign = if first.file < second.file { 1 } else { -1 };
        let files = (first.file.min(second.file), first.file.max(second.file));
        let ClockSamples { same_line, other_lines } = samples.entry(files).or_default();
        let list = if first.dst == second.dst { same_line } else { other_lines };
        list.push((differences, sign));
    }
    let path =
        |file: usize| sources.files().nth(file).map(|file| file.path().display().to_string()).unwrap_or_default();
    samples.iter().map(|((reference, file), samples)| samples.estimate(path(*file), path(*reference))).collect()
}

impl ClockSamples<'_> {
    fn estimate(&self, file: String, reference: String) -> ClockSummary {
        let is_same_line = !self.same_line.is_empty();
        let taken = if is_same_line { &self.same_line } else { &self.other_lines };
        let signed = |(differences, sign): &(&Differences, i64)| {
            let sign = *sign;
            differences.distribution().into_iter().map(move |(value_ns, count)| (value_ns.saturating_mul(sign), count))
        };
        let mut all: Vec<(i64, u64)> = taken.iter().flat_map(signed).collect();
        all.sort_unstable();
        let drift_ppm = taken.first().and_then(|(differences, sign)| {
            let (begin_ns, end_ns, span_ns) = differences.drift();
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let ppm = |change_ns: i64| change_ns as f64 * 1e6 / span_ns as f64;
            (span_ns >= DRIFT_SPAN_NS_MIN).then(|| ppm(end_ns.saturating_sub(begin_ns).saturating_mul(*sign)))
        });
        ClockSummary {
            file,
            reference,
            basis: if is_same_line { SAME_LINE } else { "different lines" },
            messages: all.iter().map(|(_, count)| count).sum(),
            offset_ns: quantile(&all, 0.5),
            p01_ns: quantile(&all, 0.01),
            p99_ns: quantile(&all, 0.99),
            drift_ppm,
        }
    }
}

/// The weighted quantile at this share; 0 without values.
pub(super) fn quantile(ascending: &[(i64, u64)], part: f64) -> i64 {
    let total: u64 = ascending.iter().map(|(_, count)| count).sum();
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    let rank = ((total as f64 * part).ceil() as u64).max(1);
    let mut seen = 0;
    for (value, count) in ascending {
        seen += count;
        if seen >= rank {
            return *value;
        }
    }
    ascending.last().map_or(0, |(value, _)| *value)
}

/// Basis of the better estimate.
pub(super) const SAME_LINE: &str = "same line";
/// Shortest time span for a drift estimate, ns.
const DRIFT_SPAN_NS_MIN: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_weight_values_by_their_counts() {
        let all = [(-5, 1), (0, 8), (9, 1)];
        assert_eq!([0.0, 0.1, 0.11, 0.5, 0.9, 0.91, 1.0].map(|part| quantile(&all, part)), [-5, -5, 0, 0, 0, 9, 9]);
        assert_eq!(quantile(&[], 0.5), 0);
    }
}
