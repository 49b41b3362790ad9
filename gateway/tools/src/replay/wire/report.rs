//! Report of a replay to the network: packets sent, and how well the pace was kept.

use hdrhistogram::Histogram;
use mdgw_captures::capture_file::CaptureError;
use mdgw_status::quantity::Count;
use serde::Serialize;

use super::in_transit::LineSendCounts;
use crate::summary_table::SummaryTable;

/// Collects counts while packets are sent.
#[derive(Debug)]
pub(super) struct Timing {
    /// Packets of the captures, before any impairment.
    offered: u64,
    packets: u64,
    bytes: u64,
    /// Delay of each packet after its intended time, when handed to the kernel, ns; empty without a pace.
    late_ns: Histogram<u64>,
}

/// Packets sent, and how well the pace was kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WireSummary {
    /// Packets sent; with several lines, copies sent.
    pub packets: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Rounds begun.
    pub rounds: u64,
    /// Duration, s.
    pub elapsed_seconds: f64,
    /// Mean packets per second.
    pub packets_per_second: f64,
    /// Delay of packets after their intended time; `None` if packets were sent as fast as possible.
    pub lateness: Option<Lateness>,
    /// Counts of each line, if packets were sent on several lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<LineSendCounts>,
    /// Whether the caller interrupted the replay.
    pub interrupted: bool,
    /// Errors that ended files early.
    pub damages: Vec<String>,
    /// Frames of each round truncated by the capture's snap length, skipped.
    pub truncated: u64,
}

/// Timing error against absolute intended times: a stall shows in every packet that it delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
    /// Maximum, ns.
    pub max_ns: u64,
}

impl Timing {
    pub(super) fn new() -> Self {
        let late_ns = Histogram::new_with_max(LATE_NS_MAX, 3)
            .unwrap_or_else(|error| unreachable!("the bounds are constants that are allowed: {error}"));
        Self { offered: 0, packets: 0, bytes: 0, late_ns }
    }

    pub(super) fn sent(&mut self, payload_bytes: usize, late_ns: Option<u64>) {
        self.packets += 1;
        self.bytes += payload_bytes as u64;
        if let Some(late_ns) = late_ns {
            self.late_ns.saturating_record(late_ns);
        }
    }

    pub(super) fn count_offered(&mut self) {
        self.offered += 1;
    }

    pub(super) fn offered(&self) -> u64 {
        self.offered
    }

    pub(super) fn summary(
        &self,
        rounds: u64,
        elapsed_ns: u64,
        damages: &[CaptureError],
        truncated: u64,
        interrupted: bool,
        lines: &[LineSendCounts],
    ) -> WireSummary {
        let elapsed_seconds = std::time::Duration::from_nanos(elapsed_ns).as_secs_f64();
        WireSummary {
            packets: self.packets,
            bytes: self.bytes,
            rounds,
            elapsed_seconds,
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            packets_per_second: self.packets as f64 / elapsed_seconds.max(1e-9),
            lateness: (!self.late_ns.is_empty()).then(|| Lateness {
                p50_ns: self.late_ns.value_at_quantile(0.5),
                p99_ns: self.late_ns.value_at_quantile(0.99),
                p999_ns: self.late_ns.value_at_quantile(0.999),
                max_ns: self.late_ns.max(),
            }),
            lines: lines.to_vec(),
            interrupted,
            damages: damages.iter().map(|damage| format!("{damage}: {}", damage.fault)).collect(),
            truncated,
        }
    }
}

impl WireSummary {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Table for the terminal.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = SummaryTable::with_name_width(12);
        table.row("packets", format!("{} ({} bytes of payload)", Count(self.packets), Count(self.bytes)));
        if self.rounds > 1 {
            table.row("rounds", Count(self.rounds));
        }
        table.row("sent in", format!("{:.3} s, {:.0} packets/s", self.elapsed_seconds, self.packets_per_second));
        if let Some(Lateness { p50_ns, p99_ns, p999_ns, max_ns }) = self.lateness {
            let [p50, p99, p999, max] = [p50_ns, p99_ns, p999_ns, max_ns].map(microseconds);
            table.row("send delay", format!("p50 {p50}  p99 {p99}  p99.9 {p999}  max {max} us"));
        }
        for LineSendCounts { line, offered, sent } in &self.lines {
            table.row(&format!("line {line}"), format!("{} copies of {} packets", Count(*sent), Count(*offered)));
        }
        if self.truncated > 0 {
            table.row("skipped", format!("{}, truncated by the capture's snap length", Count(self.truncated)));
        }
        if self.interrupted {
            table.row("interrupted", "before the end");
        }
        table.text
    }
}

/// Longest delay that is measured: a day.
const LATE_NS_MAX: u64 = 86_400_000_000_000;

fn microseconds(ns: u64) -> String {
    format!("{}.{:01}", ns / 1_000, ns % 1_000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_reported_only_with_a_pace() {
        let mut timing = Timing::new();
        timing.sent(100, None);
        assert_eq!(timing.summary(1, 1_000_000_000, &[], 0, false, &[]).lateness, None);
        timing.sent(25, Some(1_500));
        timing.sent(25, Some(60_000_000_000));
        let summary = timing.summary(1, 3_000_000_000, &[], 2, false, &[]);
        assert_eq!((summary.packets, summary.bytes, summary.packets_per_second), (3, 150, 1.0));
        let lateness = summary.lateness.unwrap();
        assert!((1_500..1_510).contains(&lateness.p50_ns), "{lateness:?}");
        assert!((60_000_000_000..60_100_000_000).contains(&lateness.max_ns), "a minute is reported as a minute");
        assert!(summary.to_table().contains("p50 1.5"));
        assert!(
            summary.to_table().contains("skipped      2, truncated by the capture's snap length"),
            "{}",
            summary.to_table()
        );
        assert!(!summary.to_json().contains('\n'));
    }
}
