//! What several logs say together, by channel and stage.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use hdrhistogram::{Histogram, serialization::Deserializer};
use mdgw_feeds::{identity::ChannelId, time::UnixNs};

use super::log::{Damage, Interval, Log, Place};
use crate::observe::stages::{Stage, VALUE_NS_MAX, VALUE_NS_MIN};

/// A whole report.
#[derive(Debug)]
pub struct Report {
    /// The logs that it was made of.
    pub logs: Vec<PathBuf>,
    /// What their writers said of themselves; those that said the same stand together.
    pub disclosures: Vec<Disclosed>,
    /// Begin of the first interval.
    pub begin: UnixNs,
    /// End of the last one.
    pub end: UnixNs,
    /// Channels by number.
    pub channels: Vec<ChannelReport>,
    /// What could not be read.
    pub damage: Vec<Damage>,
}

/// A disclosure and the logs that carry it.
#[derive(Debug)]
pub struct Disclosed {
    /// The logs.
    pub logs: Vec<PathBuf>,
    /// Keys and values in the writer's order.
    pub entries: Vec<(String, String)>,
}

/// One channel.
#[derive(Debug)]
pub struct ChannelReport {
    /// Its number.
    pub id: ChannelId,
    /// Its name, where the disclosure tells it.
    pub name: Option<String>,
    /// Its stages in the order of the straight line.
    pub stages: Vec<StageReport>,
}

impl ChannelReport {
    /// Number and name.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("channel {} {name}", self.id.0),
            None => format!("channel {}", self.id.0),
        }
    }

    /// That stage, if it was measured.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> Option<&StageReport> {
        self.stages.iter().find(|report| report.stage == stage)
    }
}

/// One stage of one channel, all threads together.
#[derive(Debug)]
pub struct StageReport {
    /// The stage.
    pub stage: Stage,
    /// All values, nanoseconds.
    pub histogram: Histogram<u64>,
    /// Values that came out negative and are in no histogram.
    pub negative_count: u64,
    /// Threads that recorded.
    pub threads: BTreeSet<String>,
    /// How it went over time.
    pub timeline: Vec<Moment>,
}

/// What one stretch of time saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Begin of the stretch.
    pub start: UnixNs,
    /// Values in it.
    pub count: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Maximum, ns.
    pub max_ns: u64,
}

impl Report {
    /// From the content of logs; `only` picks one channel.
    #[must_use]
    pub fn of(files: &[(PathBuf, Vec<u8>)], only: Option<ChannelId>) -> Self {
        let wanted = |channel: ChannelId| only.is_none_or(|only| only == channel);
        let mut report = Self {
            logs: files.iter().map(|(path, _)| path.clone()).collect(),
            disclosures: Vec::new(),
            begin: UnixNs(u64::MAX),
            end: UnixNs(0),
            channels: Vec::new(),
            damage: Vec::new(),
        };
        let mut cells: BTreeMap<(ChannelId, Stage), Cell<'_>> = BTreeMap::new();
        for (path, bytes) in files {
            let mut log = Log::read(path, bytes);
            report.disclose(path, std::mem::take(&mut log.disclosure));
            report.damage.append(&mut log.damage);
            for interval in log.intervals.into_iter().filter(|interval| wanted(interval.tag.channel)) {
                report.begin = report.begin.min(interval.start);
                report.end = report.end.max(UnixNs(interval.start.0.saturating_add(interval.length_ns)));
                let key = (interval.tag.channel, interval.tag.stage);
                cells.entry(key).or_default().intervals.push((path, interval));
            }
            for (tag, count) in log.negatives.into_iter().filter(|(tag, _)| wanted(tag.channel)) {
                cells.entry((tag.channel, tag.stage)).or_default().negative_count += count;
            }
        }
        report.begin = report.begin.min(report.end);
        // One cell after the other, so that only its own histograms are in memory.
        for ((channel, stage), cell) in cells {
            let stage = report.merge(stage, cell);
            report.channel(channel).stages.push(stage);
        }
        report.damage.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
        report
    }

    fn disclose(&mut self, path: &Path, entries: Vec<(String, String)>) {
        match self.disclosures.iter_mut().find(|known| known.entries == entries) {
            Some(known) => known.logs.push(path.to_owned()),
            None => self.disclosures.push(Disclosed { logs: vec![path.to_owned()], entries }),
        }
    }

    fn channel(&mut self, id: ChannelId) -> &mut ChannelReport {
        if self.channels.last().is_none_or(|last| last.id != id) {
            let name = self.disclosures.iter().find_map(|disclosed| channel_name(&disclosed.entries, id));
            self.channels.push(ChannelReport { id, name, stages: Vec::new() });
        }
        let last = self.channels.len() - 1;
        &mut self.channels[last]
    }

    fn merge(&mut self, stage: Stage, mut cell: Cell<'_>) -> StageReport {
        cell.intervals.sort_by_key(|(_, interval)| interval.start);
        let span_ns = self.end.0 - self.begin.0;
        let longest_ns = cell.intervals.iter().map(|(_, interval)| interval.length_ns).max().unwrap_or(0);
        let width_ns = (span_ns / MOMENTS_MAX + 1).max(longest_ns).max(1);
        let mut timeline = Timeline { begin: self.begin, width_ns, current: None, moments: Vec::new() };
        let mut total = empty_histogram();
        let mut threads = BTreeSet::new();
        let mut deserializer = Deserializer::new();
        for (path, interval) in cell.intervals {
            match interval.histogram(&mut deserializer) {
                Ok(histogram) => {
                    add(&mut total, &histogram);
                    timeline.add(&interval, &histogram);
                    threads.insert(interval.tag.thread);
                }
                Err(reason) => {
                    let Place { line, offset_bytes } = interval.place;
                    self.damage.push(Damage { path: path.to_owned(), line, offset_bytes, reason });
                }
            }
        }
        timeline.close();
        StageReport {
            stage,
            histogram: total,
            negative_count: cell.negative_count,
            threads,
            timeline: timeline.moments,
        }
    }
}

#[derive(Default)]
struct Cell<'a> {
    intervals: Vec<(&'a Path, Interval<'a>)>,
    negative_count: u64,
}

/// Puts intervals of all threads into stretches of one width, in the order of time.
struct Timeline {
    begin: UnixNs,
    width_ns: u64,
    current: Option<(u64, Histogram<u64>)>,
    moments: Vec<Moment>,
}

impl Timeline {
    fn add(&mut self, interval: &Interval<'_>, histogram: &Histogram<u64>) {
        // Ascending, because intervals are sorted by their start.
        let index = (interval.start.0 - self.begin.0) / self.width_ns;
        if self.current.as_ref().is_none_or(|(current, _)| *current != index) {
            self.close();
            self.current = Some((index, empty_histogram()));
        }
        if let Some((_, merged)) = &mut self.current {
            add(merged, histogram);
        }
    }

    fn close(&mut self) {
        let Some((index, histogram)) = self.current.take() else { return };
        if !histogram.is_empty() {
            self.moments.push(Moment {
                start: UnixNs(self.begin.0 + index * self.width_ns),
                count: histogram.len(),
                p50_ns: histogram.value_at_quantile(0.5),
                p99_ns: histogram.value_at_quantile(0.99),
                max_ns: histogram.max(),
            });
        }
    }
}

/// Points of a timeline: more are not to be told apart in a picture.
const MOMENTS_MAX: u64 = 240;

fn empty_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(VALUE_NS_MIN, VALUE_NS_MAX, 3).expect("bounds are constants");
    // A foreign log may reach further.
    histogram.auto(true);
    histogram
}

fn add(total: &mut Histogram<u64>, more: &Histogram<u64>) {
    // Growing is allowed, so that only a value beyond 2^63 is refused; it stands for the largest.
    for value in more.iter_recorded() {
        let ns = value.value_iterated_to().min(u64::MAX >> 2);
        total.saturating_record_n(ns, value.count_at_value());
    }
}

/// From `config.channel.NAME.id = ID`.
fn channel_name(disclosure: &[(String, String)], id: ChannelId) -> Option<String> {
    disclosure.iter().filter(|(_, value)| *value == id.0.to_string()).find_map(|(key, _)| {
        let name = key.strip_prefix("config.channel.")?.strip_suffix(".id")?;
        Some(name.to_owned())
    })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made-up values")]
pub(super) mod tests {
    use super::*;
    use crate::{
        net::handle_set::ChannelIndex,
        observe::{
            disclosure::Disclosure,
            interval_log::{IntervalLogWriter, IntervalTag},
            stages::StageSet,
        },
    };

    /// A log of `seconds` intervals of one thread, with `per_second` values each, from a fixed pattern: most values
    /// near 5 us, a tail, and a slow stretch in the middle.
    pub(in crate::report) fn plausible_log(thread: &str, seconds: u64, per_second: u64) -> Vec<u8> {
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
            let mut set = StageSet::new(2, 2);
            let slow = if (seconds / 2..seconds / 2 + 3).contains(&second) { 4.0 } else { 1.0 };
            for _ in 0..per_second {
                for channel in 0..2 {
                    for (stage, median) in Stage::ALL.into_iter().zip(medians) {
                        // Pareto above the median, a little below it.
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

    pub(in crate::report) fn plausible_report() -> Report {
        let files = ["main-0", "main-1"]
            .map(|thread| (PathBuf::from(format!("{thread}.hlog")), plausible_log(thread, 20, 500)));
        Report::of(&files, None)
    }

    #[test]
    fn threads_and_logs_are_merged_by_channel_and_stage() {
        let report = plausible_report();
        assert_eq!(report.damage, []);
        let titles: Vec<String> = report.channels.iter().map(ChannelReport::title).collect();
        assert_eq!(titles, ["channel 1 nasdaq", "channel 2 iex-deep"]);
        let whole = report.channels[0].stage(Stage::WireToWire).unwrap();
        assert_eq!(whole.histogram.len(), 2 * 20 * 500);
        assert_eq!(whole.threads.iter().map(String::as_str).collect::<Vec<_>>(), ["main-0", "main-1"]);
        assert_eq!(whole.timeline.len(), 20);
        assert!(whole.timeline.iter().all(|moment| moment.count == 1_000));
        assert_eq!(report.channels[0].stage(Stage::WireToUser).unwrap().negative_count, 6);
        assert_eq!(report.end.0 - report.begin.0, 20_000_000_000);
        assert_eq!(report.disclosures.len(), 1, "both logs disclose the same");
    }

    #[test]
    fn one_channel_can_be_picked() {
        let files = [(PathBuf::from("a"), plausible_log("main-0", 2, 10))];
        let report = Report::of(&files, Some(ChannelId(2)));
        assert_eq!(report.channels.iter().map(|channel| channel.id.0).collect::<Vec<_>>(), [2]);
        assert!(Report::of(&files, Some(ChannelId(9))).channels.is_empty());
    }

    #[test]
    fn a_log_cut_at_any_byte_gives_what_was_whole() {
        let bytes = plausible_log("main-0", 2, 10);
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
    fn a_flipped_byte_is_damage_or_harmless_and_never_a_panic() {
        let bytes = plausible_log("main-0", 1, 5);
        for place in (0..bytes.len()).step_by(11) {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x15;
            let _ = Report::of(&[(PathBuf::from("a"), damaged)], None);
        }
    }
}
