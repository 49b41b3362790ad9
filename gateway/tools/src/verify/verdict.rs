//! The verdict of a verification: as a table, or as one line of JSON.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use mdgw_feeds::identity::{ChannelId, GroupId};
use mdgw_status::quantity::Count;
use serde_json::{Value, json};

use super::{
    VerifyCounts,
    content::Contents,
    coverage::sequence,
    epochs::Intervals,
    finding::{Finding, Findings, Location, OutputCheck},
    receiver::ReceiverView,
};
use crate::summary_table::SummaryTable;

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Counts of the packets.
    pub counts: VerifyCounts,
    /// Rows of receivers' outputs.
    pub rows: u64,
    /// Distinct items.
    pub names: u64,
    /// Items republished with the same content.
    pub republished: u64,
    /// Times that an item was published with other content, of suspect books on one side at least. That violates no check.
    pub suspect_differences: u64,
    /// Items whose content was evicted before the end.
    pub evicted: u64,
    /// Epochs with their publish intervals.
    pub epochs: Vec<EpochVerdict>,
    /// Channels as seen by each receiver.
    pub channels: Vec<ChannelVerdict>,
    /// Records that receivers' outputs lack at either end, and other outputs contain.
    pub shortfalls: Vec<Shortfall>,
    /// The first violations, in the order of detection.
    pub findings: Vec<Finding>,
    /// Number of violations of each check, in the order of [`OutputCheck::ALL`].
    pub broken: [u64; OutputCheck::ALL.len()],
}

/// Publish interval of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochVerdict {
    /// Number of the group.
    pub group: u16,
    /// Count of the epoch: number of the leadership term.
    pub count: u64,
    /// Node that led in the epoch.
    pub node: u8,
    /// First packet, ns since 1970 UTC.
    pub first_ns: u64,
    /// Last packet, ns since 1970 UTC.
    pub last_ns: u64,
    /// Packets published under the epoch.
    pub packets: u64,
}

/// One channel at one receiver.
#[derive(Clone, Debug)]
pub struct ChannelVerdict {
    /// Index of the file, from 0.
    pub file: usize,
    /// Number of the group.
    pub group: u16,
    /// Channel number.
    pub channel: u16,
    /// Sessions with their first and last sequence.
    pub sessions: Vec<(String, u64, u64)>,
    /// Gaps declared.
    pub gaps: u64,
    /// Leadership changes.
    pub leadership_changes: u64,
    /// From the last packet of an epoch to the first new content of the next.
    pub blackout: DurationSummary,
    /// From the last content of an epoch to the first new content of the next.
    pub content_blackout: DurationSummary,
}

/// Records that a receiver's output lacks and another receiver delivered, at the beginning or end. Not a violation:
/// receivers are started and stopped at different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Index of the file, from 0.
    pub file: usize,
    /// Channel number in the rows.
    pub channel: u64,
    /// Which records are missing: the first, the last or all.
    pub kind: ShortfallKind,
    /// Number of records.
    pub records: u64,
}

/// Which records a receiver's output lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortfallKind {
    /// Records before its own first one.
    First,
    /// Records after its own last one.
    Last,
    /// All records of the channel.
    All,
}

/// Distribution of durations, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationSummary {
    /// Number of values.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Buckets from the shortest to the longest value.
    pub buckets: Vec<Bucket>,
}

/// Number of durations in `[from_ms, below_ms)`; the bounds are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Lower bound, ms, included.
    pub from_ms: u64,
    /// Upper bound, ms, excluded.
    pub below_ms: u64,
    /// Number of durations.
    pub count: u64,
}

impl Verdict {
    pub(super) fn of_captures(
        counts: VerifyCounts,
        contents: &BTreeMap<(GroupId, ChannelId), Contents>,
        intervals: &Intervals,
        receivers: &BTreeMap<usize, ReceiverView>,
        findings: Findings,
    ) -> Self {
        let sum = |of: fn(&Contents) -> u64| contents.values().map(of).sum();
        let epochs = intervals.0.iter().flat_map(|((_, group), epochs)| {
            epochs.iter().map(|(epoch, interval)| EpochVerdict {
                group: group.0,
                count: epoch.count(),
                node: epoch.node(),
                first_ns: interval.first_ns,
                last_ns: interval.last_ns,
                packets: interval.packets,
            })
        });
        let channels = receivers.iter().flat_map(|(file, receiver)| {
            receiver.channels.iter().map(|((group, channel), view)| ChannelVerdict {
                file: *file,
                group: group.0,
                channel: channel.0,
                sessions: view
                    .sessions
                    .iter()
                    .filter_map(|(session, view)| {
                        let bounds = view.covered.bounds()?;
                        Some((session.to_string(), sequence(bounds.start), sequence(bounds.end - 1)))
                    })
                    .collect(),
                gaps: view.sessions.values().map(|session| session.gap_count).sum(),
                leadership_changes: view.leadership_changes,
                blackout: DurationSummary::of(&view.blackout_ns),
                content_blackout: DurationSummary::of(&view.content_blackout_ns),
            })
        });
        Self {
            counts,
            names: sum(|contents| contents.names),
            republished: sum(|contents| contents.republished),
            suspect_differences: sum(|contents| contents.suspect_differences),
            evicted: sum(|contents| contents.evicted),
            epochs: epochs.collect(),
            channels: channels.collect(),
            findings: findings.listed,
            broken: findings.counts,
            ..Self::default()
        }
    }

    pub(super) fn of_rows(
        rows: &BTreeMap<usize, u64>,
        (names, suspect_differences): (u64, u64),
        shortfalls: Vec<Shortfall>,
        findings: Findings,
    ) -> Self {
        let rows = rows.values().sum();
        let republished = u64::saturating_sub(rows, names);
        let (findings, broken) = (findings.listed, findings.counts);
        Self { rows, names, republished, suspect_differences, shortfalls, findings, broken, ..Self::default() }
    }

    /// Combines the results of captures and of receivers' outputs.
    #[must_use]
    pub fn with(mut self, mut other: Self) -> Self {
        self.rows += other.rows;
        self.names += other.names;
        self.republished += other.republished;
        self.suspect_differences += other.suspect_differences;
        self.shortfalls.append(&mut other.shortfalls);
        self.findings.append(&mut other.findings);
        for (mine, others) in self.broken.iter_mut().zip(other.broken) {
            *mine += others;
        }
        self
    }

    /// Number of violations of a check; `None` if the input can't show them.
    #[must_use]
    pub(crate) fn times_broken(&self, check: OutputCheck) -> Option<u64> {
        let is_judged = self.counts.packets > 0 || (self.rows > 0 && check.is_visible_in_rows());
        is_judged.then(|| self.broken[check as usize])
    }

    /// Whether the output violates no check.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.broken.iter().all(|count| *count == 0)
    }

    /// Whether there was anything to verify.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.packets == 0 && self.rows == 0
    }

    /// One line of JSON. `files` are the file names by index.
    #[must_use]
    pub fn to_json(&self, files: &[String]) -> Value {
        let VerifyCounts {
            packets,
            unicast_replies,
            duplicate_captures,
            stale_epoch_packets,
            epoch_jumps,
            tags_refused,
            other_groups,
            unrecognised,
            damaged,
        } = &self.counts;
        let violations: BTreeMap<&str, Option<u64>> =
            OutputCheck::ALL.into_iter().map(|check| (check.name(), self.times_broken(check))).collect();
        json!({
            "passed": self.is_kept(),
            "files": files,
            "packets": packets,
            "unicast_replies": unicast_replies,
            "duplicate_captures": duplicate_captures,
            "stale_epoch_packets": stale_epoch_packets,
            "epoch_jumps": epoch_jumps,
            "tags_refused": tags_refused,
            "other_groups": other_groups,
            "unrecognised": unrecognised,
            "damaged": damaged,
            "rows": self.rows,
            "unique_items": self.names,
            "republished": self.republished,
            "suspect_differences": self.suspect_differences,
            "evicted": self.evicted,
            "violations": violations,
            "epochs": self.epochs.iter().map(|epoch| json!({
                "group": epoch.group, "count": epoch.count, "node": epoch.node,
                "first_ns": epoch.first_ns, "last_ns": epoch.last_ns, "packets": epoch.packets,
            })).collect::<Vec<_>>(),
            "channels": self.channels.iter().map(|channel| json!({
                "file": files.get(channel.file), "group": channel.group, "channel": channel.channel,
                "sessions": channel.sessions.iter().map(|(session, first, last)| json!({
                    "session": session, "first": first, "last": last,
                })).collect::<Vec<_>>(),
                "gaps": channel.gaps, "leadership_changes": channel.leadership_changes,
                "blackout": channel.blackout.to_json(), "silence": channel.content_blackout.to_json(),
            })).collect::<Vec<_>>(),
            "missing_at_ends": self.shortfalls.iter().map(|shortfall| json!({
                "file": files.get(shortfall.file), "channel": shortfall.channel,
                "kind": shortfall.kind.name(), "records": shortfall.records,
            })).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(|finding| json!({
                "check": finding.check.name(), "file": files.get(finding.location.file),
                "number": finding.location.number, "text": finding.text,
            })).collect::<Vec<_>>(),
        })
    }

    /// Table for the terminal.
    #[must_use]
    pub fn to_table(&self, files: &[String]) -> String {
        let mut table = SummaryTable::default();
        let counts = &self.counts;
        if counts.packets > 0 {
            let unicast_replies = Count(counts.unicast_replies);
            table.row("published packets", format!("{} ({unicast_replies} retransmitted)", Count(counts.packets)));
        }
        table.rows_above_zero([
            ("receivers' rows", self.rows),
            ("captured more than once", counts.duplicate_captures),
            ("stale epochs (fenced)", counts.stale_epoch_packets),
            ("epoch jumps (dropped)", counts.epoch_jumps),
            ("tags refused (dropped)", counts.tags_refused),
            ("of other groups", counts.other_groups),
            ("other datagrams", counts.unrecognised),
            ("suspect items that differ", self.suspect_differences),
            ("items no longer remembered", self.evicted),
        ]);
        for (reason, count) in &counts.damaged {
            table.row(&format!("damaged: {reason}"), Count(*count));
        }
        table.row("items", format!("{} unique, {} republished", Count(self.names), Count(self.republished)));
        for epoch in &self.epochs {
            let length_s = Seconds(epoch.last_ns - epoch.first_ns);
            let value = format!(
                "node {}, {} packets in {} s from {}",
                epoch.node,
                Count(epoch.packets),
                length_s,
                epoch.first_ns
            );
            table.row(&format!("group {} epoch {}", epoch.group, epoch.count), value);
        }
        for channel in &self.channels {
            let file = files.get(channel.file).map_or("", String::as_str);
            table.row(&format!("channel {}", channel.channel), format!("group {}, {file}", channel.group));
            for (session, first, last) in &channel.sessions {
                table.row("  session", format!("{session}, {} to {}", Count(*first), Count(*last)));
            }
            table.row("  gaps declared", Count(channel.gaps));
            table.row("  changes of leadership", Count(channel.leadership_changes));
            for (name, times) in [("  blackout", &channel.blackout), ("  silence", &channel.content_blackout)] {
                if times.count > 0 {
                    let [p50, p99, max] = [times.p50_ns, times.p99_ns, times.max_ns].map(Milliseconds);
                    table.row(name, format!("p50 {p50} ms  p99 {p99} ms  max {max} ms  of {}", times.count));
                }
                for Bucket { from_ms, below_ms, count } in &times.buckets {
                    let name = format!("    {} to {} ms", Count(*from_ms), Count(*below_ms));
                    table.row(&name, format!("{:<7} {}", Count(*count), bar(*count, times.count)));
                }
            }
        }
        for Shortfall { file, channel, kind, records } in &self.shortfalls {
            let (file, records) = (files.get(*file).map_or("", String::as_str), Count(*records));
            let value = match kind {
                ShortfallKind::First => format!("{file} starts {records} records after the other receivers"),
                ShortfallKind::Last => format!("{file} ends {records} records before the other receivers"),
                ShortfallKind::All => format!("{file} has no records, the other receivers have {records}"),
            };
            table.row(&format!("channel {channel}"), value);
        }
        table.row("", "");
        for check in OutputCheck::ALL {
            let value = match self.times_broken(check) {
                None if self.rows > 0 => "not checked: needs captures".to_owned(),
                None => "not checked".to_owned(),
                Some(0) => "passed".to_owned(),
                Some(count) => format!("FAILED, {} times", Count(count)),
            };
            table.row(check.name(), value);
        }
        for finding in &self.findings {
            table.row("", format!("{}: {}", location(finding.location, files), finding.text));
        }
        table.text
    }
}

fn location(location: Location, files: &[String]) -> String {
    let file = files.get(location.file).map_or("", String::as_str);
    if location.number == 0 { file.to_owned() } else { format!("{file}:{}", location.number) }
}

impl DurationSummary {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
            buckets: Bucket::all_of(histogram),
        }
    }

    fn to_json(&self) -> Value {
        let buckets = self.buckets.iter().map(
            |Bucket { from_ms, below_ms, count }| json!({ "from_ms": from_ms, "below_ms": below_ms, "count": count }),
        );
        json!({
            "count": self.count, "p50_ns": self.p50_ns, "p99_ns": self.p99_ns, "max_ns": self.max_ns,
            "buckets": buckets.collect::<Vec<_>>(),
        })
    }
}

impl Bucket {
    fn all_of(histogram: &Histogram<u64>) -> Vec<Self> {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for step in histogram.iter_recorded() {
            // Bucket by the bit length of whole milliseconds: index 0 below 1 ms, 1 below 2 ms, 2 below 4 ms.
            let bits = u64::BITS - (step.value_iterated_to() / 1_000_000).leading_zeros();
            *counts.entry(bits).or_default() += step.count_at_value();
        }
        let (Some((&shortest, _)), Some((&longest, _))) = (counts.first_key_value(), counts.last_key_value()) else {
            return Vec::new();
        };
        let of_bits = |bits: u32| Self {
            from_ms: (1 << bits) / 2,
            below_ms: 1 << bits,
            count: counts.get(&bits).copied().unwrap_or_default(),
        };
        (shortest..=longest).map(of_bits).collect()
    }
}

/// A bar, relative to the total count; every nonempty bucket has at least one character.
fn bar(count: u64, of: u64) -> String {
    let marks = (count * BAR_MARKS).div_ceil(of.max(1));
    "#".repeat(usize::try_from(marks).unwrap_or_default())
}

const BAR_MARKS: u64 = 40;

impl ShortfallKind {
    fn name(self) -> &'static str {
        match self {
            Self::First => "head",
            Self::Last => "tail",
            Self::All => "all",
        }
    }
}

/// Nanoseconds as seconds.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1_000)
    }
}

/// Nanoseconds as milliseconds.
struct Milliseconds(u64);

impl std::fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000_000, self.0 / 1_000 % 1_000)
    }
}
