//! Numbers formatted for people.

use std::fmt;

use mdgw_feeds::time::{TradingDate, UnixNs};

/// Percentiles that every report shows, as quantiles with their names.
pub(super) const QUANTILES: [(f64, &str); 5] =
    [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (0.9999, "p99.99")];

/// A latency with three significant digits and its unit.
#[derive(Clone, Copy)]
pub struct Latency(pub u64);

impl fmt::Display for Latency {
    #[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The unit changes where rounding to three digits reaches the next one.
        let (size, unit) = match self.0 {
            0..1_000 => return f.pad(&format!("{} ns", self.0)),
            1_000..999_500 => (1e3, "us"),
            999_500..999_500_000 => (1e6, "ms"),
            _ => (1e9, "s"),
        };
        let value = self.0 as f64 / size;
        let decimals = match value {
            _ if value < 9.995 => 2,
            _ if value < 99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{value:.decimals$} {unit}"))
    }
}

/// A relative change with its sign: 0.1 is `+10.0 %`.
#[derive(Clone, Copy)]
pub(super) struct Share(pub(super) f64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        let decimals = if percent.abs() < 99.95 { 1 } else { 0 };
        // No minus before a zero.
        let percent = if percent.abs() < 0.05 { 0.0 } else { percent };
        f.pad(&format!("{percent:+.decimals$} %"))
    }
}

/// A range of latencies.
#[derive(Clone, Copy)]
pub(super) struct Span(pub(super) (u64, u64));

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.0;
        f.pad(&format!("{} - {}", Latency(low), Latency(high)))
    }
}

/// Date and time of day, UTC.
#[derive(Clone, Copy)]
pub struct Timestamp(pub UnixNs);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", TradingDate::in_utc(self.0), TimeOfDay(self.0))
    }
}

/// Time of day, UTC.
#[derive(Clone, Copy)]
pub(super) struct TimeOfDay(pub(super) UnixNs);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.0.0 / 1_000_000_000 % 86_400;
        write!(f, "{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_three_digits_and_the_unit_that_fits() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_996, "10.0 us"),
            (99_960, "100 us"),
            (999_499, "999 us"),
            (999_501, "1.00 ms"),
            (12_345_678, "12.3 ms"),
            (60_000_000_000, "60.0 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(Latency(ns).to_string(), text);
        }
        assert_eq!(format!("{:>9}", Latency(5)), "     5 ns");
    }

    #[test]
    fn changes_show_a_sign_and_spans_show_both_ends() {
        for (share, text) in [(0.1, "+10.0 %"), (-0.25, "-25.0 %"), (-0.0004, "+0.0 %"), (12.0, "+1200 %")] {
            assert_eq!(Share(share).to_string(), text);
        }
        assert_eq!(Span((900, 1_200)).to_string(), "900 ns - 1.20 us");
    }

    #[test]
    fn timestamps_are_shown_in_utc() {
        assert_eq!(Timestamp(UnixNs(1_548_858_600_999_999_999)).to_string(), "2019-01-30 14:30:00");
    }
}
