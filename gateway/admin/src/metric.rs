//! Metrics as plain data, and their text.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

/// Media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A family of samples with one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name without `_total`, and without the unit, if it has one; both are appended.
    pub name: String,
    /// Meaning, one line.
    pub help: String,
    /// How the values change.
    pub kind: MetricKind,
    /// Unit of the values, if it is part of the name.
    pub unit: Option<MetricUnit>,
    /// One for each combination of labels.
    pub samples: Vec<Sample>,
}

/// A unit that is part of a metric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
}

impl MetricUnit {
    /// As appended to the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
        }
    }
}

/// How a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Any value.
    Gauge,
    /// Counts by bucket.
    Histogram,
}

/// One value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// Of the kind of its metric.
    pub value: Value,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Count(u64),
    /// Of a counter or a gauge with a fraction.
    Real(f64),
    /// Of a histogram.
    Buckets {
        /// Sum of all values.
        sum: f64,
        /// Upper bound of each bucket and the number of values in it alone; the last bound is infinite.
        buckets: Vec<(f64, u64)>,
    },
}

/// All metrics as OpenMetrics text.
///
/// # Errors
/// If a value is not of its metric's kind.
pub fn encode(metrics: Vec<Metric>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected(metrics)));
    let mut encoded = String::new();
    text::encode(&mut encoded, &registry)?;
    Ok(encoded)
}

#[derive(Debug)]
struct Collected(Vec<Metric>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in self.0.iter().filter(|metric| !metric.samples.is_empty()) {
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let unit = metric.unit.map(|unit| match unit {
                MetricUnit::Seconds => Unit::Seconds,
                MetricUnit::Bytes => Unit::Bytes,
            });
            let mut encoder = encoder.encode_descriptor(&metric.name, &metric.help, unit.as_ref(), kind)?;
            for sample in &metric.samples {
                let labels = Labels(&sample.labels);
                encode_value(encoder.encode_family(&labels)?, metric.kind, &sample.value)?;
            }
        }
        Ok(())
    }
}

fn encode_value(mut encoder: MetricEncoder<'_>, kind: MetricKind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (MetricKind::Counter, Value::Count(count)) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
        (MetricKind::Counter, Value::Real(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(value, None),
        (MetricKind::Gauge, Value::Count(count)) => encoder.encode_gauge(&i64::try_from(*count).unwrap_or(i64::MAX)),
        (MetricKind::Gauge, Value::Real(value)) => encoder.encode_gauge(value),
        (MetricKind::Histogram, Value::Buckets { sum, buckets }) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
        _ => Err(fmt::Error),
    }
}

struct Labels<'a>(&'a [(&'static str, String)]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(kind: MetricKind, unit: Option<MetricUnit>, value: Value) -> Metric {
        let labels = vec![("channel", "a\"b\\c\nd".to_owned())];
        Metric { name: "x".to_owned(), help: "an x".to_owned(), kind, unit, samples: vec![Sample { labels, value }] }
    }

    #[test]
    fn each_kind_has_its_text() {
        let metrics = vec![
            metric(MetricKind::Counter, None, Value::Count(u64::MAX)),
            Metric { name: "w".to_owned(), ..metric(MetricKind::Gauge, Some(MetricUnit::Bytes), Value::Count(3)) },
            Metric { name: "y".to_owned(), ..metric(MetricKind::Gauge, Some(MetricUnit::Seconds), Value::Real(0.5)) },
            Metric {
                name: "z".to_owned(),
                ..metric(
                    MetricKind::Histogram,
                    Some(MetricUnit::Seconds),
                    Value::Buckets { sum: 2.5, buckets: vec![(1.0, 3), (f64::INFINITY, 1)] },
                )
            },
        ];
        let label = r#"channel="a\"b\\c\nd""#;
        let expected = format!(
            "# HELP x an x\n# TYPE x counter\nx_total{{{label}}} 18446744073709551615\n\
             # HELP w_bytes an x\n# TYPE w_bytes gauge\n# UNIT w_bytes bytes\nw_bytes{{{label}}} 3\n\
             # HELP y_seconds an x\n# TYPE y_seconds gauge\n# UNIT y_seconds seconds\ny_seconds{{{label}}} 0.5\n\
             # HELP z_seconds an x\n# TYPE z_seconds histogram\n# UNIT z_seconds seconds\nz_seconds_sum{{{label}}} 2.5\nz_seconds_count{{{label}}} 4\n\
             z_seconds_bucket{{le=\"1.0\",{label}}} 3\nz_seconds_bucket{{le=\"+Inf\",{label}}} 4\n# EOF\n"
        );
        assert_eq!(encode(metrics).unwrap(), expected);
    }

    #[test]
    fn a_value_of_another_kind_is_an_error_and_a_metric_without_samples_no_text() {
        encode(vec![metric(MetricKind::Histogram, None, Value::Count(1))]).unwrap_err();
        let empty = Metric { samples: Vec::new(), ..metric(MetricKind::Gauge, None, Value::Count(1)) };
        assert_eq!(encode(vec![empty]).unwrap(), "# EOF\n");
    }
}
