//! Combines several logs, by channel and stage.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use hdrhistogram::{Histogram, serialization::Deserializer};
use mdgw_feeds::{identity::ChannelId, time::UnixNs};
use mdgw_telemetry::{channel_metrics::ChannelCount, stages::Stage};

use super::{
    difference::BATCH_COUNT,
    gaps::{AttributedGaps, LeaderSources, attribute, total},
    leadership::Leadership,
    lines::{ChannelCounts, ChannelInputs, Hosts, LineReport},
    load::{ByLoad, LoadBucket, Rates},
    log::{Interval, Log, LogDamage},
    statistics::{LatencyStatistics, add, empty_histogram},
    takeovers::Takeover,
    timeline::{NS_PER_DAY, Timeline, TimelinePoint},
};

/// A whole report.
#[derive(Debug)]
pub struct Report {
    /// Paths of the latency logs from which the report was made.
    pub logs: Vec<PathBuf>,
    /// Disclosures of the writers; equal ones are combined.
    pub disclosures: Vec<LogDisclosure>,
    /// Begin of the first interval.
    pub begin: UnixNs,
    /// End of the last one.
    pub end: UnixNs,
    /// Channels by number.
    pub channels: Vec<ChannelReport>,
    /// Takeovers within the time of the report, in time order: see [`Report::mark_takeovers`].
    pub takeovers: Vec<Takeover>,
    /// Unreadable lines.
    pub damage: Vec<LogDamage>,
}

/// A disclosure and the logs that contain it.
#[derive(Debug)]
pub struct LogDisclosure {
    /// Paths of the interval logs that were read.
    pub logs: Vec<PathBuf>,
    /// Keys and values in the writer's order.
    pub entries: Vec<(String, String)>,
}

/// Names of a channel number in the logs of gateways that are no pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("channel {} is {} in {} and {} in {}: gateways that are no pair, so report their logs apart", channel.0, logs[0].0, logs[0].1.display(), logs[1].0, logs[1].1.display())]
pub struct ForeignChannel {
    /// Number that both gateways use.
    pub channel: ChannelId,
    /// The two names, each with a log that has it.
    pub logs: [(String, PathBuf); 2],
}

/// One channel.
#[derive(Debug, Default)]
pub struct ChannelReport {
    /// Id of the channel, from the logs' tags.
    pub id: ChannelId,
    /// Its name, if the disclosure contains it.
    pub name: Option<String>,
    /// Its stages in the order of the data path.
    pub stages: Vec<StageReport>,
    /// Unit of its rates.
    pub rate_unit: RateUnit,
    /// Counts over the whole report.
    pub counted: ChannelCounts,
    /// The counts of each host by its name, where several hosts wrote the logs.
    pub counted_by_host: BTreeMap<String, ChannelCounts>,
    /// Declared gaps, by whether consumers saw them.
    pub gaps: AttributedGaps,
    /// One report per line of the channel.
    pub lines: Vec<LineReport>,
    /// Intervals without data that are long: from, until.
    pub pauses: Vec<(UnixNs, UnixNs)>,
}

impl ChannelReport {
    /// Number and name.
    #[must_use]
    pub(crate) fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("channel {} {name}", self.id.0),
            None => format!("channel {}", self.id.0),
        }
    }

    /// The stage, if it was measured.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> Option<&StageReport> {
        self.stages.iter().find(|report| report.stage == stage)
    }
}

/// Unit of rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateUnit {
    /// Messages, each once.
    Messages,
    /// Packets of all lines, if the log has no message counts.
    #[default]
    Packets,
}

impl RateUnit {
    /// Unit as a word.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Packets => "packets",
        }
    }
}

/// One stage of one channel, all threads together.
#[derive(Debug)]
pub struct StageReport {
    /// Stage of the data path that was measured.
    pub stage: Stage,
    /// All values, nanoseconds.
    pub histogram: Histogram<u64>,
    /// Negative values; they are in no histogram.
    pub negative_count: u64,
    /// Threads that recorded values.
    pub threads: BTreeSet<String>,
    /// Latencies and rates over the whole time of the report.
    pub timeline: Vec<TimelinePoint>,
    /// Timeline of each day (UTC), with its begin, if the report has several days; times count from midnight.
    pub days: Vec<(UnixNs, Vec<TimelinePoint>)>,
    /// Timeline of all days together, by time since midnight (UTC).
    pub time_of_day: Vec<TimelinePoint>,
    /// Latency by load, from idle to busy.
    pub load: Vec<LoadBucket>,
    /// Each run (log), in the order of their begins.
    pub runs: Vec<LatencyStatistics>,
    /// Batches of equally many intervals, in time order.
    pub batches: Vec<LatencyStatistics>,
}

impl Report {
    /// Whether the report spans more than a day, so that times of day repeat.
    #[must_use]
    pub(crate) fn has_days(&self) -> bool {
        self.end.0.saturating_sub(self.begin.0) > NS_PER_DAY
    }

    /// From the content of logs; `only` selects one channel. Only the logs say which gateway led.
    #[must_use]
    pub fn of(files: &[(PathBuf, Vec<u8>)], only: Option<ChannelId>) -> Self {
        Self::with_leadership(files, only, &Leadership::default())
    }

    /// As [`Self::of`], with what audit files say of leadership.
    #[must_use]
    pub fn with_leadership(files: &[(PathBuf, Vec<u8>)], only: Option<ChannelId>, leadership: &Leadership) -> Self {
        let wanted = |channel: ChannelId| only.is_none_or(|only| only == channel);
        let mut report = Self {
            logs: files.iter().map(|(path, _)| path.clone()).collect(),
            disclosures: Vec::new(),
            begin: UnixNs(u64::MAX),
            end: UnixNs(0),
            channels: Vec::new(),
            takeovers: Vec::new(),
            damage: Vec::new(),
        };
        let mut hosts = Hosts::default();
        let mut cells: BTreeMap<(ChannelId, Stage), StageInputs<'_>> = BTreeMap::new();
        let mut channels: BTreeMap<ChannelId, ChannelInputs<'_>> = BTreeMap::new();
        for (path, bytes) in files {
            let mut log = Log::read(path, bytes);
            hosts.add(path, host_of(&log.disclosure), node_of(&log.disclosure));
            report.disclose(path, std::mem::take(&mut log.disclosure));
            report.damage.append(&mut log.damage);
            for interval in log.intervals.into_iter().filter(|interval| wanted(interval.tag.channel)) {
                report.begin = report.begin.min(interval.start);
                report.end = report.end.max(UnixNs(interval.start.0.saturating_add(interval.length_ns)));
                let key = (interval.tag.channel, interval.tag.stage);
                cells.entry(key).or_default().intervals.push((path, interval));
            }
            for counts in log.counts.into_iter().filter(|counts| wanted(counts.tag.channel)) {
                report.begin = report.begin.min(counts.start);
                report.end = report.end.max(UnixNs(counts.start.0.saturating_add(counts.length_ns)));
                channels.entry(counts.tag.channel).or_default().counts.push((path, counts));
            }
            for lead in log.leads.into_iter().filter(|lead| wanted(lead.tag.channel)) {
                channels.entry(lead.tag.channel).or_default().leads.push((path, lead));
            }
            for (tag, count) in log.negatives.into_iter().filter(|(tag, _)| wanted(tag.channel)) {
                let cell = cells.entry((tag.channel, tag.stage)).or_default();
                cell.negative_count = cell.negative_count.saturating_add(count);
            }
        }
        hosts.tell_gateways_apart();
        report.begin = report.begin.min(report.end);
        for (id, channel) in &mut channels {
            let sent = [Stage::Publish, Stage::WireToWire].iter().filter_map(|stage| cells.get(&(*id, *stage)));
            let sent = sent.flat_map(|cell| &cell.intervals).map(|(path, interval)| {
                let start = interval.start.0;
                (hosts.of(path), (start, start.saturating_add(interval.length_ns)))
            });
            let group = report.disclosures.iter().find_map(|disclosed| channel_group(&disclosed.entries, *id));
            let sources = LeaderSources { leadership, group, sent: sent.collect() };
            report.describe(*id, channel, &hosts, &sources);
        }
        // One cell after the other, so that only its own histograms are in memory.
        let mut channel_rates: Option<(ChannelId, Rates)> = None;
        for ((id, stage), cell) in cells {
            let rates = match channel_rates.take().filter(|(known, _)| *known == id) {
                Some((_, rates)) => rates,
                None => report.begin_channel(id, &cell, channels.get(&id), &hosts),
            };
            let stage = report.merge(stage, cell, &rates);
            report.channel(id).stages.push(stage);
            channel_rates = Some((id, rates));
        }
        report.channels.sort_by_key(|channel| channel.id);
        report.damage.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
        report
    }

    fn disclose(&mut self, path: &Path, entries: Vec<(String, String)>) {
        match self.disclosures.iter_mut().find(|known| known.entries == entries) {
            Some(known) => known.logs.push(path.to_owned()),
            None => self.disclosures.push(LogDisclosure { logs: vec![path.to_owned()], entries }),
        }
    }

    /// A channel number that two gateways never gave to the same name: they are no pair, and their values must not be added. `None` if
    /// there is none.
    #[must_use]
    pub fn foreign_channel(&self) -> Option<ForeignChannel> {
        self.channels.iter().find_map(|channel| {
            // A channel may have been renamed while the logs were written.
            let mut gateways: BTreeMap<(&str, &str), BTreeMap<String, PathBuf>> = BTreeMap::new();
            for LogDisclosure { logs, entries } in &self.disclosures {
                let (Some(name), Some(log)) = (channel_name(entries, channel.id), logs.first()) else { continue };
                let names = gateways.entry((host_of(entries), node_of(entries))).or_default();
                names.entry(name).or_insert_with(|| log.clone());
            }
            let mut gateways = gateways.into_values();
            let first = gateways.next()?;
            let other = gateways.find(|names| names.keys().all(|name| !first.contains_key(name)))?;
            let logs = [first.into_iter().next()?, other.into_iter().next()?];
            Some(ForeignChannel { channel: channel.id, logs })
        })
    }

    /// Marks the takeovers that lie within the time of the report.
    pub fn mark_takeovers(&mut self, takeovers: &[Takeover]) {
        let within = |takeover: &&Takeover| (self.begin..=self.end).contains(&takeover.time);
        self.takeovers = takeovers.iter().filter(within).cloned().collect();
        self.takeovers.sort_by_key(|takeover| takeover.time);
    }

    /// Adds counts and leads of a channel.
    fn describe(
        &mut self,
        id: ChannelId,
        cell: &mut ChannelInputs<'_>,
        hosts: &Hosts<'_>,
        sources: &LeaderSources<'_>,
    ) {
        let by_host = cell.counts_by_host(hosts);
        let gaps = attribute(cell, hosts, sources);
        let seen = total(&gaps.seen);
        if by_host.len() > 1 {
            cell.keep_one_host_at_a_time(hosts, &by_host);
        }
        let mut damage = Vec::new();
        let lines = cell.lines(self.begin, self.end, &mut damage);
        self.damage.append(&mut damage);
        let of_all = |value: fn(&ChannelCounts) -> u64| by_host.values().map(value).fold(0, u64::saturating_add);
        let one_at_a_time = cell.counts_by_host(hosts);
        let of_one = |value: fn(&ChannelCounts) -> u64| one_at_a_time.values().map(value).fold(0, u64::saturating_add);
        let channel = self.channel(id);
        channel.counted = ChannelCounts {
            datagrams: of_one(|counts| counts.datagrams),
            messages: of_one(|counts| counts.messages),
            gaps: seen.gaps,
            gap_messages: seen.messages,
            drops: of_all(|counts| counts.drops),
        };
        (channel.gaps, channel.lines) = (gaps, lines);
        if by_host.len() > 1 {
            channel.counted_by_host = by_host;
        }
        if cell.intervals().any(|(_, counts)| counts.length_ns > 0) {
            channel.rate_unit = RateUnit::Messages;
        }
    }

    /// Rates over time and intervals without data: from the channel's own counts, else from the first of its stages.
    fn begin_channel(
        &mut self,
        id: ChannelId,
        first: &StageInputs<'_>,
        cell: Option<&ChannelInputs<'_>>,
        hosts: &Hosts<'_>,
    ) -> Rates {
        let mut rates = Rates::default();
        for (path, counts) in cell.into_iter().flat_map(ChannelInputs::intervals) {
            rates.add(
                (hosts.of(path), &path.display().to_string()),
                counts.start,
                counts.length_ns,
                counts.value(ChannelCount::messages),
            );
        }
        if rates.is_empty() {
            rates = first.rates(hosts);
        }
        rates.sort();
        self.channel(id).pauses = first.pauses();
        rates
    }

    fn channel(&mut self, id: ChannelId) -> &mut ChannelReport {
        let known = self.channels.iter().position(|channel| channel.id == id);
        let index = known.unwrap_or_else(|| {
            let name = self.disclosures.iter().find_map(|disclosed| channel_name(&disclosed.entries, id));
            self.channels.push(ChannelReport { id, name, ..ChannelReport::default() });
            self.channels.len() - 1
        });
        &mut self.channels[index]
    }

    fn merge(&mut self, stage: Stage, mut cell: StageInputs<'_>, rates: &Rates) -> StageReport {
        cell.sort();
        let (days, time_of_day) =
            if self.has_days() { (cell.days(rates), cell.time_of_day(rates)) } else { (Vec::new(), Vec::new()) };
        let mut timeline = Timeline::new(self.begin, self.end.0 - self.begin.0, cell.interval_ns_max(), rates.median());
        let mut by_load = ByLoad::default();
        let mut runs: Vec<(&Path, Histogram<u64>)> = Vec::new();
        let mut batches: Vec<(usize, Histogram<u64>)> = Vec::new();
        let mut threads = BTreeSet::new();
        let mut deserializer = Deserializer::new();
        let interval_count = cell.intervals.len();
        for (index, (path, interval)) in cell.intervals.into_iter().enumerate() {
            let histogram = match interval.histogram(&mut deserializer) {
                Ok(histogram) => histogram,
                Err(reason) => {
                    self.damage.push(LogDamage::at(path, interval.place, reason));
                    continue;
                }
            };
            let per_s = rates.rate_at(interval.start, interval.length_ns);
            timeline.add(interval.start, per_s, &histogram);
            by_load.add(per_s, &histogram);
            let batch = index * BATCH_COUNT / interval_count;
            match batches.last_mut().filter(|(last, _)| *last == batch) {
                Some((_, merged)) => add(merged, &histogram),
                None => batches.push((batch, histogram.clone())),
            }
            match runs.iter_mut().find(|(run, _)| *run == path) {
                Some((_, run)) => add(run, &histogram),
                None => runs.push((path, histogram)),
            }
            threads.insert(interval.tag.thread);
        }
        let mut total = empty_histogram();
        runs.iter().for_each(|(_, run)| add(&mut total, run));
        StageReport {
            stage,
            histogram: total,
            negative_count: cell.negative_count,
            threads,
            timeline: timeline.into_points(),
            days,
            time_of_day,
            load: by_load.buckets(),
            runs: runs.iter().map(|(_, run)| LatencyStatistics::of(run)).collect(),
            batches: batches.iter().map(|(_, batch)| LatencyStatistics::of(batch)).collect(),
        }
    }
}

#[derive(Default)]
struct StageInputs<'a> {
    intervals: Vec<(&'a Path, Interval<'a>)>,
    negative_count: u64,
}

impl StageInputs<'_> {
    fn sort(&mut self) {
        self.intervals.sort_by_key(|(_, interval)| interval.start);
    }

    fn interval_ns_max(&self) -> u64 {
        self.intervals.iter().map(|(_, interval)| interval.length_ns).max().unwrap_or(0)
    }

    /// Rate of values per second, thread by thread of each log.
    fn rates(&self, hosts: &Hosts<'_>) -> Rates {
        let mut rates = Rates::default();
        let mut deserializer = Deserializer::new();
        for (path, interval) in &self.intervals {
            // Damage is reported when the histogram's values are read.
            if let Ok(histogram) = interval.histogram(&mut deserializer) {
                let track = format!("{} {}", path.display(), interval.tag.thread);
                rates.add((hosts.of(path), &track), interval.start, interval.length_ns, histogram.len());
            }
        }
        rates
    }

    /// Timeline of each day, with its begin.
    fn days(&self, rates: &Rates) -> Vec<(UnixNs, Vec<TimelinePoint>)> {
        let day = |interval: &Interval<'_>| interval.start.0 / NS_PER_DAY;
        let days = self.intervals.chunk_by(|(_, one), (_, next)| day(one) == day(next));
        let of_day = |intervals: &[(&Path, Interval<'_>)]| {
            let begin = intervals.first().map_or(0, |(_, interval)| day(interval) * NS_PER_DAY);
            (UnixNs(begin), self.since_midnight(intervals.iter(), rates))
        };
        days.map(of_day).collect()
    }

    /// Timeline of all days together, by time since midnight.
    fn time_of_day(&self, rates: &Rates) -> Vec<TimelinePoint> {
        let mut intervals: Vec<_> = self.intervals.iter().collect();
        intervals.sort_by_key(|(_, interval)| interval.start.0 % NS_PER_DAY);
        self.since_midnight(intervals.into_iter(), rates)
    }

    fn since_midnight<'i, 'l: 'i>(
        &self,
        intervals: impl Iterator<Item = &'i (&'l Path, Interval<'l>)>,
        rates: &Rates,
    ) -> Vec<TimelinePoint> {
        let mut timeline = Timeline::of_day(self.interval_ns_max(), rates.median());
        let mut deserializer = Deserializer::new();
        for (_, interval) in intervals {
            // Damage is reported where all intervals are combined.
            if let Ok(histogram) = interval.histogram(&mut deserializer) {
                let since = UnixNs(interval.start.0 % NS_PER_DAY);
                timeline.add(since, rates.rate_at(interval.start, interval.length_ns), &histogram);
            }
        }
        timeline.into_points()
    }

    /// Times when no thread recorded for longer than [`PAUSE_INTERVALS`] of the usual intervals.
    fn pauses(&self) -> Vec<(UnixNs, UnixNs)> {
        let mut lengths: Vec<u64> = self.intervals.iter().map(|(_, interval)| interval.length_ns).collect();
        lengths.sort_unstable();
        let usual_ns = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
        let mut spans: Vec<(UnixNs, UnixNs)> = self
            .intervals
            .iter()
            .map(|(_, interval)| (interval.start, UnixNs(interval.start.0.saturating_add(interval.length_ns))))
            .collect();
        spans.sort_unstable();
        let mut pauses = Vec::new();
        let mut covered = spans.first().map_or(UnixNs(0), |(start, _)| *start);
        for (start, end) in spans {
            if start.0.saturating_sub(covered.0) > usual_ns.max(1).saturating_mul(PAUSE_INTERVALS) {
                pauses.push((covered, start));
            }
            covered = covered.max(end);
        }
        pauses
    }
}

/// Number of usual intervals without a value that make an idle period. During a shorter time a channel may just be
/// quiet.
const PAUSE_INTERVALS: u64 = 3;

/// Name of the host that wrote a log; empty where the log does not say it.
pub(super) fn host_of(disclosure: &[(String, String)]) -> &str {
    disclosure.iter().find(|(key, _)| key == "host").map_or("", |(_, host)| host)
}

/// Node number of the gateway that wrote a log; empty where the log does not say it.
fn node_of(disclosure: &[(String, String)]) -> &str {
    disclosure.iter().find(|(key, _)| key == "config.gateway.node").map_or("", |(_, node)| node)
}

/// Name of a channel, from the disclosure's last entry `config.channel.NAME.id = ID`: a channel that a reload adds has its entry
/// behind the others.
fn channel_name(disclosure: &[(String, String)], id: ChannelId) -> Option<String> {
    disclosure.iter().rev().filter(|(_, value)| *value == id.0.to_string()).find_map(|(key, _)| {
        let name = key.strip_prefix("config.channel.")?.strip_suffix(".id")?;
        Some(name.to_owned())
    })
}

/// Group of a channel, from the disclosure.
fn channel_group(disclosure: &[(String, String)], id: ChannelId) -> Option<u16> {
    let key = format!("config.channel.{}.group", channel_name(disclosure, id)?);
    disclosure.iter().rev().find(|(known, _)| *known == key)?.1.parse().ok()
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "synthetic values")]
pub(super) mod tests {
    use mdgw_feeds::time::TradingDate;
    use mdgw_status::{
        disclosure::Disclosure,
        interval_log::{IntervalLogWriter, IntervalTag},
    };
    use mdgw_sys::handle::ChannelIndex;
    use mdgw_telemetry::stages::StageHistograms;

    use super::*;

    /// A log of `seconds` intervals of one thread, each with `per_second` values of a fixed pattern: most near 5 us, a
    /// tail, and a slow period in the middle.
    pub(in crate::report) fn sample_log(thread: &str, seconds: u64, per_second: u64) -> Vec<u8> {
        let mut disclosure = Disclosure::of_this_host("kernel software");
        disclosure.push("config.channel.nasdaq.id", "1");
        disclosure.push("config.channel.iex-deep.id", "2");
        disclosure.push("config.note", "<script>alert(1)</script>");
        let base = UnixNs(1_548_858_600_000_000_000);
        let mut log = IntervalLogWriter::begin(Vec::new(), base, &disclosure).unwrap();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut uniform = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) as f64 / (1_u64 << 53) as f64
        };
        let medians = [1_900.0, 90.0, 180.0, 650.0, 1_300.0, 4_600.0];
        for second in 0..seconds {
            let mut set = StageHistograms::new(2, 2);
            let slow = if (seconds / 2..seconds / 2 + 3).contains(&second) { 4.0 } else { 1.0 };
            for _ in 0..per_second {
                for channel in 0..2 {
                    for (stage, median) in Stage::ALL.into_iter().zip(medians) {
                        // Pareto above the median, slightly decreasing below it.
                        let tail = (1.0 - uniform()).powf(-0.28) * (0.8 + 0.2 * uniform());
                        let value = median * tail * slow * (1.0 + 0.3 * f64::from(channel));
                        set.record(ChannelIndex(channel), stage, value as u64);
                    }
                }
            }
            let start = UnixNs(base.0 + second * 1_000_000_000);
            for recorded in set.recorded() {
                let channel = ChannelId(recorded.channel.0 as u16 + 1);
                let tag = IntervalTag { channel, stage: recorded.stage, thread: thread.to_owned() };
                log.write(&tag, start, 1_000_000_000, recorded.histogram).unwrap();
            }
        }
        let tag = IntervalTag { channel: ChannelId(1), stage: Stage::WireToUser, thread: thread.to_owned() };
        log.write_negative(&tag, 3).unwrap();
        log.into_inner().unwrap()
    }

    /// A log of ten intervals of one stage: each has every tenth of `values`.
    pub(in crate::report) fn log_with_values(values: &[u64]) -> Vec<u8> {
        let base = UnixNs(1_548_858_600_000_000_000);
        let mut log = IntervalLogWriter::begin(Vec::new(), base, &Disclosure::default()).unwrap();
        let tag = IntervalTag { channel: ChannelId(1), stage: Stage::WireToWire, thread: "main-0".to_owned() };
        for interval in 0..10 {
            let mut set = StageHistograms::new(1, 3);
            for value in values.iter().skip(interval).step_by(10) {
                set.record(ChannelIndex(0), Stage::WireToWire, *value);
            }
            let start = UnixNs(base.0 + interval as u64 * 1_000_000_000);
            set.recorded().for_each(|recorded| log.write(&tag, start, 1_000_000_000, recorded.histogram).unwrap());
        }
        log.into_inner().unwrap()
    }

    pub(in crate::report) fn sample_report() -> Report {
        let files =
            ["main-0", "main-1"].map(|thread| (PathBuf::from(format!("{thread}.hlog")), sample_log(thread, 20, 500)));
        Report::of(&files, None)
    }

    /// Some minutes of two days, at the same time of day.
    pub(in crate::report) fn two_day_report() -> Report {
        let text = String::from_utf8(sample_log("main-0", 400, 3)).unwrap();
        let next_day = text.replace(": 1548858600.000 (", ": 1548945000.000 (");
        assert_ne!(text, next_day);
        Report::of(&[(PathBuf::from("a"), text.into_bytes()), (PathBuf::from("b"), next_day.into_bytes())], None)
    }

    /// Groups and channels have the same numbers in each pair.
    #[test]
    fn logs_of_gateways_that_are_no_pair_are_named() {
        let log = String::from_utf8(sample_log("main-0", 1, 1)).unwrap();
        let of = |logs: &[String]| {
            let files =
                (0..).zip(logs).map(|(index, log)| (PathBuf::from(format!("{index}.hlog")), log.clone().into()));
            Report::of(&files.collect::<Vec<_>>(), None)
        };
        let host = |name: &str| {
            let (before, after) = log.split_once("#[mdgw host = ").unwrap();
            let (_, after) = after.split_once(']').unwrap();
            format!("{before}#[mdgw host = {name}]{after}")
        };
        let renamed = |log: &str| log.replace("config.channel.nasdaq.id", "config.channel.arca.id");
        assert_eq!(of(&[host("gw1"), host("gw2")]).foreign_channel(), None, "a pair");
        assert_eq!(of(&[host("gw1"), renamed(&host("gw1"))]).foreign_channel(), None, "a channel was replaced");
        let both_renamed = [host("gw1"), renamed(&host("gw1")), renamed(&host("gw2")), host("gw2")];
        assert_eq!(of(&both_renamed).foreign_channel(), None, "on both gateways of a pair");
        let foreign = of(&[host("gw1"), renamed(&host("gw9"))]).foreign_channel().unwrap().to_string();
        assert!(foreign.starts_with("channel 1 is nasdaq in 0.hlog and arca in 1.hlog"), "{foreign}");
    }

    #[test]
    fn threads_and_logs_are_merged_by_channel_and_stage() {
        let report = sample_report();
        assert_eq!(report.damage, []);
        let titles: Vec<String> = report.channels.iter().map(ChannelReport::title).collect();
        assert_eq!(titles, ["channel 1 nasdaq", "channel 2 iex-deep"]);
        let whole = report.channels[0].stage(Stage::WireToWire).unwrap();
        assert_eq!(whole.histogram.len(), 2 * 20 * 500);
        assert_eq!(whole.threads.iter().map(String::as_str).collect::<Vec<_>>(), ["main-0", "main-1"]);
        assert_eq!(whole.timeline.len(), 20);
        assert!(whole.timeline.iter().all(|point| point.count == 1_000));
        assert_eq!(report.channels[0].stage(Stage::WireToUser).unwrap().negative_count, 6);
        assert_eq!(report.end.0 - report.begin.0, 20_000_000_000);
        assert_eq!(report.disclosures.len(), 1, "both logs disclose the same");
    }

    #[test]
    fn bursts_and_pauses_are_marked_and_values_are_grouped_by_load() {
        let tag = IntervalTag { channel: ChannelId(1), stage: Stage::WireToUser, thread: "main-0".to_owned() };
        let base = UnixNs(1_548_858_600_000_000_000);
        let mut log = IntervalLogWriter::begin(Vec::new(), base, &Disclosure::default()).unwrap();
        // An idle period of 10 s in the middle, then a burst of ten times the usual rate.
        for (second, count, latency_ns) in
            (0..5).map(|second| (second, 30, 100)).chain([(15, 300, 9_000), (16, 30, 100)])
        {
            let mut set = StageHistograms::new(1, 2);
            set.record_n(ChannelIndex(0), Stage::WireToUser, latency_ns, count);
            let start = UnixNs(base.0 + second * 1_000_000_000);
            set.recorded().for_each(|recorded| log.write(&tag, start, 1_000_000_000, recorded.histogram).unwrap());
        }
        let report = Report::of(&[(PathBuf::from("a"), log.into_inner().unwrap())], None);
        let channel = &report.channels[0];
        let seconds = |at: UnixNs| (at.0 - base.0) / 1_000_000_000;
        let pauses: Vec<_> = channel.pauses.iter().map(|(from, until)| (seconds(*from), seconds(*until))).collect();
        assert_eq!(pauses, [(5, 15)]);
        let stage = &channel.stages[0];
        let bursts: Vec<u64> =
            stage.timeline.iter().filter(|point| point.is_burst).map(|point| seconds(point.start)).collect();
        assert_eq!(bursts, [15]);
        let load: Vec<_> = stage.load.iter().map(|bucket| (bucket.from_per_s, bucket.intervals)).collect();
        assert_eq!(load, [(20, 6), (200, 1)]);
        assert!(stage.load[0].statistics.max_ns < 200 && stage.load[1].statistics.max_ns >= 9_000);
    }

    #[test]
    fn runs_and_batches_hold_each_value_once() {
        let files = ["a", "b"].map(|name| (PathBuf::from(name), sample_log("main-0", 7, 50)));
        for channel in &Report::of(&files, None).channels {
            for stage in &channel.stages {
                let counts: Vec<u64> = stage.runs.iter().map(|run| run.count).collect();
                assert_eq!(counts, [350, 350]);
                assert_eq!(stage.batches.iter().map(|batch| batch.count).sum::<u64>(), 700);
            }
        }
    }

    #[test]
    fn several_days_are_reported_separately_and_overlaid() {
        let report = two_day_report();
        for stage in report.channels.iter().flat_map(|channel| &channel.stages) {
            let days: Vec<String> = stage.days.iter().map(|(day, _)| TradingDate::in_utc(*day).to_string()).collect();
            assert_eq!(days, ["2019-01-30", "2019-01-31"]);
            let count = |points: &[TimelinePoint]| points.iter().map(|point| point.count).sum::<u64>();
            assert_eq!(stage.days.iter().map(|(_, points)| count(points)).collect::<Vec<_>>(), [1_200, 1_200]);
            assert_eq!(count(&stage.time_of_day), 2_400);
            assert!(stage.time_of_day.iter().all(|point| point.end.0 < NS_PER_DAY));
        }
        let one = Report::of(&[(PathBuf::from("a"), sample_log("main-0", 7, 50))], None);
        assert!(one.channels[0].stages[0].days.is_empty(), "a single day is the timeline itself");
    }

    #[test]
    fn one_channel_can_be_selected() {
        let files = [(PathBuf::from("a"), sample_log("main-0", 2, 10))];
        let report = Report::of(&files, Some(ChannelId(2)));
        assert_eq!(report.channels.iter().map(|channel| channel.id.0).collect::<Vec<_>>(), [2]);
        assert!(Report::of(&files, Some(ChannelId(9))).channels.is_empty());
    }

    #[test]
    fn a_truncated_log_yields_its_whole_lines() {
        let bytes = sample_log("main-0", 2, 10);
        let whole = Report::of(&[(PathBuf::from("a"), bytes.clone())], None);
        let count = |report: &Report| -> u64 {
            report.channels.iter().flat_map(|channel| &channel.stages).map(|stage| stage.histogram.len()).sum()
        };
        assert_eq!(count(&whole), 2 * 2 * 6 * 10);
        for cut in (0..bytes.len()).step_by(7) {
            let report = Report::of(&[(PathBuf::from("a"), bytes[..cut].to_vec())], None);
            let is_line_end = cut > 0 && bytes[cut - 1] == b'\n';
            assert_eq!(report.damage.is_empty(), is_line_end, "cut at {cut}");
            assert!(count(&report) <= count(&whole));
        }
    }

    #[test]
    fn a_flipped_byte_never_causes_a_panic() {
        let bytes = sample_log("main-0", 1, 5);
        for index in (0..bytes.len()).step_by(11) {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x15;
            let _ = Report::of(&[(PathBuf::from("a"), damaged)], None);
        }
    }
}
