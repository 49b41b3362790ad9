//! Lines of a channel: which is faster, by how much and at which time of day. Also gaps and total counts.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use hdrhistogram::{Histogram, serialization::Deserializer};
use mdgw_feeds::{identity::Line, time::UnixNs};
use mdgw_status::interval_log::LeadTag;
use mdgw_telemetry::channel_metrics::{ChannelCount, LineCount};

use super::{
    log::{Counts, Interval, LogDamage},
    statistics::{LatencyStatistics, add, empty_histogram},
    timeline::NS_PER_DAY,
};

/// One line of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineReport {
    /// Which line of the channel.
    pub line: Line,
    /// Packets with messages.
    pub packets: u64,
    /// Messages that it delivered first.
    pub won_messages: u64,
    /// Messages that another line had delivered before.
    pub duplicate_messages: u64,
    /// Messages that arrived after their gap had been declared.
    pub late_messages: u64,
    /// Lead, ns, over messages delivered first by this line and later by another.
    pub lead: LatencyStatistics,
    /// The same by time of day, several days combined; all lines of a channel have the same slices.
    pub slices: Vec<LeadSlice>,
}

/// Leads of one line in a slice of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadSlice {
    /// Begin of the slice; with several days combined, time since midnight.
    pub start: UnixNs,
    /// End of the slice, on the same scale.
    pub end: UnixNs,
    /// Leads in the slice.
    pub lead: LatencyStatistics,
}

/// Counts of a channel over the whole report; all 0 if the log has no counts. Gateways of a pair receive the same messages:
/// where several hosts have counted at a time, datagrams and messages are those of one of them. Gaps are those that consumers
/// saw. Drops are those of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Datagrams of all lines.
    pub datagrams: u64,
    /// Messages, each once.
    pub messages: u64,
    /// Gaps declared.
    pub gaps: u64,
    /// Messages in them.
    pub gap_messages: u64,
    /// Rejected packets and messages, without expected ones such as duplicates.
    pub drops: u64,
}

/// Counts and leads of one channel in the logs, besides its stages.
#[derive(Debug, Default)]
pub(super) struct ChannelInputs<'a> {
    pub(super) counts: Vec<(&'a Path, Counts<'a>)>,
    pub(super) leads: Vec<(&'a Path, Interval<'a, LeadTag>)>,
}

/// Name of the host that wrote each log, and the node number of the gateway there.
#[derive(Debug, Default)]
pub(super) struct Hosts<'a>(BTreeMap<&'a Path, (String, String)>);

impl<'a> Hosts<'a> {
    pub(super) fn add(&mut self, log: &'a Path, host: &str, node: &str) {
        self.0.insert(log, (host.to_owned(), node.to_owned()));
    }

    /// Where both gateways of a pair run on one host, as in trials, each counts as a host of its own.
    pub(super) fn tell_gateways_apart(&mut self) {
        let mut nodes = BTreeMap::<String, BTreeSet<String>>::new();
        for (host, node) in self.0.values().cloned() {
            nodes.entry(host).or_default().insert(node);
        }
        for (host, node) in self.0.values_mut().filter(|(host, _)| nodes[host].len() > 1) {
            *host = format!("{host} (node {node})");
        }
    }

    /// Number of hosts.
    pub(super) fn count(&self) -> usize {
        self.0.values().map(|(host, _)| host).collect::<BTreeSet<_>>().len()
    }

    /// Node number of the gateway that wrote that log, if the log has it.
    pub(super) fn node_of(&self, log: &Path) -> Option<u8> {
        self.0.get(log)?.1.parse().ok()
    }

    /// The host of that log; empty where the log does not name it.
    pub(super) fn of(&self, log: &Path) -> &str {
        self.0.get(log).map(|(host, _)| host.as_str()).unwrap_or_default()
    }
}

impl ChannelInputs<'_> {
    /// Sums of the channel's own counts, host by host.
    pub(super) fn counts_by_host(&self, hosts: &Hosts<'_>) -> BTreeMap<String, ChannelCounts> {
        let mut by_host: BTreeMap<String, ChannelCounts> = BTreeMap::new();
        for (path, counts) in self.intervals() {
            let host = by_host.entry(hosts.of(path).to_owned()).or_default();
            for (sum, key) in [
                (&mut host.datagrams, ChannelCount::datagrams),
                (&mut host.messages, ChannelCount::messages),
                (&mut host.gaps, ChannelCount::gaps),
                (&mut host.gap_messages, ChannelCount::gap_messages),
                (&mut host.drops, ChannelCount::drops),
            ] {
                *sum = sum.saturating_add(counts.value(key));
            }
        }
        by_host
    }

    /// Leaves the counts of one host at a time: those of the host with most messages, and those of the others from when that
    /// one has none.
    pub(super) fn keep_one_host_at_a_time(&mut self, hosts: &Hosts<'_>, by_host: &BTreeMap<String, ChannelCounts>) {
        let mut ranked: Vec<(&str, u64)> =
            by_host.iter().map(|(host, counts)| (host.as_str(), counts.messages)).collect();
        ranked.sort_by_key(|(host, messages)| (Reverse(*messages), *host));
        let mut covered: Vec<(u64, u64)> = Vec::new();
        let mut kept: Vec<bool> = vec![false; self.counts.len()];
        for (host, _) in ranked {
            let mut of_host = Vec::new();
            for ((path, counts), is_kept) in self.counts.iter().zip(&mut kept) {
                if hosts.of(path) == host {
                    let (start, middle) = (counts.start.0, counts.start.0.saturating_add(counts.length_ns / 2));
                    let before = covered.partition_point(|(from, _)| *from <= middle);
                    *is_kept = before.checked_sub(1).is_none_or(|last| covered[last].1 <= middle);
                    of_host.push((start, start.saturating_add(counts.length_ns)));
                }
            }
            covered = union(covered, of_host);
        }
        let mut kept = kept.into_iter();
        self.counts.retain(|_| kept.next().unwrap_or(true));
    }

    /// Intervals of the channel's own counts, with the path of their log.
    pub(super) fn intervals(&self) -> impl Iterator<Item = (&Path, &Counts<'_>)> {
        self.counts.iter().filter(|(_, counts)| counts.tag.line.is_none()).map(|(path, counts)| (*path, counts))
    }

    /// Summarises each line. `begin` and `end` are those of the whole report.
    pub(super) fn lines(&self, begin: UnixNs, end: UnixNs, damage: &mut Vec<LogDamage>) -> Vec<LineReport> {
        let span_ns = end.0.saturating_sub(begin.0);
        // Several days are overlaid: a line that is slower at the open is slower there every day.
        let folds = span_ns > NS_PER_DAY;
        let middle = |interval: &Interval<'_, LeadTag>| {
            let middle_ns = interval.start.0.saturating_add(interval.length_ns / 2);
            if folds { middle_ns % NS_PER_DAY } else { middle_ns }
        };
        let span_ns = if folds {
            let times = || self.leads.iter().map(|(_, interval)| middle(interval));
            times().max().unwrap_or(0) - times().min().unwrap_or(0)
        } else {
            span_ns
        };
        let slice_ns = slice_ns(span_ns);
        let mut lines: BTreeMap<Line, LineReport> = BTreeMap::new();
        for (_, counts) in &self.counts {
            let Some(line) = counts.tag.line else { continue };
            let report = lines.entry(line).or_insert_with(|| LineReport::new(line));
            for (sum, key) in [
                (&mut report.packets, LineCount::packets),
                (&mut report.won_messages, LineCount::won_messages),
                (&mut report.duplicate_messages, LineCount::duplicate_messages),
                (&mut report.late_messages, LineCount::late_messages),
            ] {
                *sum = sum.saturating_add(counts.value(key));
            }
        }
        let mut slices: BTreeMap<(Line, u64), Histogram<u64>> = BTreeMap::new();
        let mut deserializer = Deserializer::new();
        for (path, interval) in &self.leads {
            match interval.histogram(&mut deserializer) {
                Ok(histogram) => {
                    // Slices begin at round times of day.
                    let index = middle(interval) / slice_ns;
                    let slice = slices.entry((interval.tag.line, index)).or_insert_with(empty_histogram);
                    add(slice, &histogram);
                }
                Err(reason) => {
                    damage.push(LogDamage::at(path, interval.place, reason));
                }
            }
        }
        let mut totals: BTreeMap<Line, Histogram<u64>> = BTreeMap::new();
        for ((line, index), slice) in &slices {
            add(totals.entry(*line).or_insert_with(empty_histogram), slice);
            let report = lines.entry(*line).or_insert_with(|| LineReport::new(*line));
            let start = UnixNs(index.saturating_mul(slice_ns));
            let end = UnixNs(start.0.saturating_add(slice_ns));
            report.slices.push(LeadSlice { start, end, lead: LatencyStatistics::of(slice) });
        }
        for (line, total) in &totals {
            if let Some(report) = lines.get_mut(line) {
                report.lead = LatencyStatistics::of(total);
            }
        }
        lines.into_values().collect()
    }
}

/// Ranges of time, sorted and without overlaps.
fn union(some: Vec<(u64, u64)>, more: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut all = [some, more].concat();
    all.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(all.len());
    for (from, until) in all {
        match merged.last_mut().filter(|last| from <= last.1) {
            Some(last) => last.1 = last.1.max(until),
            None => merged.push((from, until)),
        }
    }
    merged
}

impl LineReport {
    fn new(line: Line) -> Self {
        Self {
            line,
            packets: 0,
            won_messages: 0,
            duplicate_messages: 0,
            late_messages: 0,
            lead: LatencyStatistics::default(),
            slices: Vec::new(),
        }
    }

    /// Messages that it delivered, first or not.
    #[must_use]
    pub(crate) fn messages(&self) -> u64 {
        self.won_messages.saturating_add(self.duplicate_messages)
    }

    /// Its leads in the slice that begins at `start`.
    #[must_use]
    pub(crate) fn lead_at(&self, start: UnixNs) -> LatencyStatistics {
        self.slices
            .iter()
            .find(|slice| slice.start == start)
            .map_or_else(LatencyStatistics::default, |slice| slice.lead)
    }
}

/// Leads of all lines combined.
pub(super) fn lead_count(leads: impl Iterator<Item = LatencyStatistics>) -> u64 {
    leads.map(|lead| lead.count).fold(0, u64::saturating_add)
}

/// `part` of the whole, in percent; 0 if the whole is 0.
#[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Begins of all slices of all lines.
pub(super) fn slice_starts(lines: &[LineReport]) -> Vec<(UnixNs, UnixNs)> {
    let mut starts: Vec<_> = lines.iter().flat_map(|line| &line.slices).map(|slice| (slice.start, slice.end)).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// A round length that divides the span into at most [`SLICES_MAX`] slices.
fn slice_ns(span_ns: u64) -> u64 {
    const STEPS_S: [u64; 13] = [1, 5, 15, 60, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400];
    let fits = STEPS_S.into_iter().map(|step_s| step_s * NS_PER_SECOND).find(|step| span_ns / step < SLICES_MAX);
    fits.unwrap_or((span_ns / SLICES_MAX / NS_PER_DAY + 1) * NS_PER_DAY)
}

/// Most slices: as many table rows as a reader can still survey.
const SLICES_MAX: u64 = 14;
const NS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use mdgw_feeds::{arbiter::lead_histogram, identity::ChannelId};
    use mdgw_status::{
        disclosure::Disclosure,
        interval_log::{CountsTag, IntervalLogWriter},
    };

    use super::*;
    use crate::report::{AttributedGaps, DeclaredGaps, GapCounts, RateUnit, Report, html, table};

    const BEGIN: UnixNs = UnixNs(1_548_858_600_000_000_000);

    /// Four minutes in which line A leads by 5 us, then a fifth in which line B leads by 50 us and gaps were declared.
    fn log() -> Vec<u8> {
        let channel = ChannelId(1);
        let mut log = IntervalLogWriter::begin(Vec::new(), BEGIN, &Disclosure::default()).unwrap();
        for minute in 0..5 {
            let start = UnixNs(BEGIN.0 + minute * 60 * NS_PER_SECOND);
            let length_ns = 60 * NS_PER_SECOND;
            let mut write = |line: Option<Line>, counts: &[(&str, u64)]| {
                log.write_counts(&CountsTag { channel, line }, start, length_ns, counts).unwrap();
            };
            let gaps = u64::from(minute == 4);
            write(None, &[("datagrams", 200), ("messages", 600), ("gaps", gaps), ("gap_messages", 7 * gaps)]);
            write(Some(Line::A), &[("packets", 100), ("won_messages", 500), ("duplicate_messages", 20)]);
            write(Some(Line::B), &[("packets", 90), ("won_messages", 100), ("duplicate_messages", 400)]);
            let (line, lead_ns) = if minute == 4 { (Line::B, 50_000) } else { (Line::A, 5_000) };
            let mut leads = lead_histogram();
            leads.saturating_record_n(lead_ns, 400);
            log.write(&LeadTag { channel, line }, start, length_ns, &leads).unwrap();
        }
        log.into_inner().unwrap()
    }

    #[test]
    fn lines_are_reported_with_their_leads_by_time_of_day() {
        let report = Report::of(&[(PathBuf::from("a"), log())], None);
        assert_eq!(report.damage, []);
        let channel = &report.channels[0];
        assert_eq!(channel.rate_unit, RateUnit::Messages);
        assert_eq!((channel.counted.messages, channel.counted.gaps, channel.counted.gap_messages), (3_000, 1, 7));
        let [a, b] = channel.lines.as_slice() else { panic!("{:?}", channel.lines) };
        assert_eq!((a.packets, a.won_messages, a.duplicate_messages), (500, 2_500, 100));
        assert_eq!((a.lead.count, b.lead.count), (1_600, 400));
        assert!((5_000..5_100).contains(&a.lead.max_ns) && (50_000..51_000).contains(&b.lead.max_ns));
        let starts: Vec<u64> =
            slice_starts(&channel.lines).iter().map(|(start, _)| (start.0 - BEGIN.0) / NS_PER_SECOND).collect();
        assert_eq!(starts, [0, 60, 120, 180, 240]);
        assert_eq!((a.slices.len(), b.slices.len()), (4, 1));
        let last = UnixNs(BEGIN.0 + 240 * NS_PER_SECOND);
        assert_eq!((a.lead_at(last).count, b.lead_at(last).count), (0, 400));
        let counts = GapCounts { gaps: 1, messages: 7 };
        let gap = DeclaredGaps { start: last, end: UnixNs(last.0 + 60 * NS_PER_SECOND), counts };
        let gaps = AttributedGaps { seen: vec![gap], ..AttributedGaps::default() };
        assert_eq!(channel.gaps, gaps, "nothing says who led, and there is one host");
    }

    #[test]
    fn leads_of_several_days_are_overlaid() {
        let text = String::from_utf8(log()).unwrap();
        let next_day = text.replace(": 1548858600.000 (", ": 1548945000.000 (");
        let files = [(PathBuf::from("a"), text.into_bytes()), (PathBuf::from("b"), next_day.into_bytes())];
        let report = Report::of(&files, None);
        assert_eq!(report.damage, []);
        let [a, b] = report.channels[0].lines.as_slice() else { panic!("two lines") };
        let starts: Vec<u64> = a.slices.iter().map(|slice| slice.start.0 / NS_PER_SECOND).collect();
        let begin = BEGIN.0 / NS_PER_SECOND % 86_400;
        assert_eq!(starts, [0, 60, 120, 180].map(|second| begin + second));
        assert_eq!((a.slices[0].lead.count, b.slices[0].lead.count), (800, 800));
    }

    #[test]
    fn counts_at_the_numeric_limit_do_not_panic() {
        let text = String::from_utf8(log()).unwrap();
        let text = ["=500", "=600", "=400", "=100"]
            .iter()
            .fold(text, |text, count| text.replace(count, "=18446744073709551615"));
        let report = Report::of(&[(PathBuf::from("a"), text.into_bytes())], None);
        let channel = &report.channels[0];
        assert_eq!((channel.counted.messages, channel.lines[0].messages()), (u64::MAX, u64::MAX));
        let (mut page, mut table) = (String::new(), String::new());
        html::write(&report, &mut page).unwrap();
        table::write(&report, &mut table).unwrap();
    }

    #[test]
    fn slices_are_round_and_few() {
        for seconds in [1, 59, 300, 23_400, 86_400, 40 * 86_400] {
            let slice = slice_ns(seconds * NS_PER_SECOND);
            assert!(seconds * NS_PER_SECOND / slice < SLICES_MAX, "{seconds}");
        }
        assert_eq!(slice_ns(23_400 * NS_PER_SECOND), 1_800 * NS_PER_SECOND, "a trading day in half hours");
    }
}
