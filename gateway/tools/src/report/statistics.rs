//! Summary statistics of a distribution.

use hdrhistogram::Histogram;
use mdgw_telemetry::stages::{VALUE_NS_MAX, VALUE_NS_MIN};

use super::quantity::QUANTILES;

/// Percentiles, maximum and count of a set of values, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyStatistics {
    /// Number of values.
    pub count: u64,
    /// The percentiles that every report shows, in their order.
    pub percentiles_ns: [u64; QUANTILES.len()],
    /// Largest value, ns.
    pub max_ns: u64,
}

impl LatencyStatistics {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            percentiles_ns: QUANTILES.map(|(quantile, _)| histogram.value_at_quantile(quantile)),
            max_ns: histogram.max(),
        }
    }

    /// Names and values: the percentiles, then the maximum.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        QUANTILES.iter().map(|(_, name)| *name).zip(self.percentiles_ns).chain([("max", self.max_ns)])
    }
}

pub(super) fn empty_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(VALUE_NS_MIN, VALUE_NS_MAX, 3).expect("bounds are constants");
    // A log of another program may have a larger range.
    histogram.auto(true);
    histogram
}

pub(super) fn add(total: &mut Histogram<u64>, more: &Histogram<u64>) {
    // Sized to the log: its own histograms may have a smaller range than another's.
    total.auto(true);
    // Resizing is enabled, so only values beyond 2^63 are rejected; they count as the largest value.
    for value in more.iter_recorded() {
        let ns = value.value_iterated_to().min(u64::MAX >> 2);
        total.saturating_record_n(ns, value.count_at_value());
    }
}
