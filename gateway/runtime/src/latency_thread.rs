//! The cold thread that collects the histograms of all hot threads once an interval and writes them to the latency
//! log.
//!
//! A log that cannot be written ends with its last complete interval. The thread then tries to begin a new one at each interval.
//! So it does when somebody has moved or removed the file. Histograms are collected in memory meanwhile.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use hdrhistogram::Histogram;
use mdgw_feeds::{
    identity::{ChannelId, Line},
    time::{TradingDate, UnixNs},
};
use mdgw_status::{
    disclosure::Disclosure,
    interval_log::{CountsTag, IntervalLogFile, IntervalLogWriter, IntervalTag, LeadTag},
    recent::RecentIntervals,
};
use mdgw_sys::{
    alarm::Alarm,
    clock::{ClockPair, mono_now, unix_now},
    disk_space::is_disk_unwritable,
    task_queue::TaskQueue,
};
use mdgw_telemetry::{
    channel_metrics::{ChannelCollector, ChannelCounts, ChannelMetrics, LineCounts},
    counters::CounterBlock,
    stages::{Stage, StageCollector, StageHistograms, VALUE_NS_MAX, VALUE_NS_MIN},
};

use crate::config::resolved::LatencyConfig;

/// One hot thread's collector, with the names for its indices.
#[derive(Debug)]
pub(crate) struct ThreadStageCollector {
    /// Name of the thread's pool.
    pool: String,
    /// Name of the thread, without spaces, commas or semicolons: `main-0`.
    thread: String,
    /// Id of the last channel in each slot of the pool. What a thread has recorded before a removed channel's slot is used
    /// again is still that channel's.
    channels: BTreeMap<usize, ChannelId>,
    /// Cold end of the double buffer through which the thread hands over its histograms.
    collector: StageCollector,
}

impl ThreadStageCollector {
    /// Of a thread of that pool, whose slots from 0 on have these channels.
    pub(crate) fn new(pool: String, thread: String, channels: &[ChannelId], collector: StageCollector) -> Self {
        Self { pool, thread, channels: channels.iter().copied().enumerate().collect(), collector }
    }
}

/// One channel's collector.
#[derive(Debug)]
pub(crate) struct ChannelMetricsCollector {
    /// Id of the channel.
    pub channel: ChannelId,
    /// Cold end of the double buffer through which the channel hands over its metrics.
    pub collector: ChannelCollector,
}

/// Everything recorded so far, over all threads.
#[derive(Debug, Default)]
pub struct LatencyTotals {
    /// By channel and stage.
    pub cells: BTreeMap<(ChannelId, Stage), StageTotal>,
}

/// All values of one channel and stage.
#[derive(Clone, Debug)]
pub struct StageTotal {
    /// Nanoseconds.
    pub histogram: Histogram<u64>,
    /// Number of negative values.
    pub negative_count: u64,
}

/// A running collector. Stop it after the hot threads have dropped their recorders, else their last values are lost.
#[derive(Debug)]
pub(crate) struct LatencyThread {
    shared: Arc<ThreadControl>,
    recent: Arc<RecentIntervals>,
    thread: Option<JoinHandle<io::Result<LatencyResult>>>,
}

/// The results of the collector.
#[derive(Debug)]
pub struct LatencyResult {
    /// All values.
    pub totals: LatencyTotals,
    /// The logs that were written, in order.
    pub logs: Vec<PathBuf>,
}

impl LatencyThread {
    /// Opens the log and starts to collect. On a disk that is full or failing the log begins later, as at run time: a gateway that is
    /// restarted then publishes all the same.
    ///
    /// # Errors
    /// When the log cannot be created for another reason, or the thread cannot.
    pub(crate) fn start(
        config: &LatencyConfig,
        threads: Vec<ThreadStageCollector>,
        channels: Vec<ChannelMetricsCollector>,
        disclosure: Disclosure,
    ) -> io::Result<Self> {
        let recent = Arc::new(RecentIntervals::default());
        let mut writer = Writer {
            recent: Arc::clone(&recent),
            directory: config.directory.clone(),
            digits: config.significant_digits,
            disclosure,
            threads,
            channels: channels
                .into_iter()
                .map(|entry| CollectedChannel { entry, previous: PreviousCounts::default() })
                .collect(),
            log: None,
            logs: Vec::new(),
            day: TradingDate::default(),
            is_failing: false,
            totals: LatencyTotals::default(),
        };
        if let Err(error) = writer.open_log(unix_now()) {
            if !is_disk_unwritable(&error) {
                return Err(error);
            }
            writer.report(Err(error));
        }
        let shared = Arc::new(ThreadControl {
            control: Mutex::new(ControlState { interval_ns: config.interval_ns, has_tasks: false, stop: false }),
            changed: Condvar::new(),
            tasks: TaskQueue::default(),
        });
        let thread_shared = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("mdgw-latency".to_owned()).spawn(move || writer.run(&thread_shared))?;
        Ok(Self { shared, recent, thread: Some(thread) })
    }

    /// The statistics of the last interval.
    #[must_use]
    pub(crate) fn recent(&self) -> &Arc<RecentIntervals> {
        &self.recent
    }

    /// Changes the length of the intervals, from the next one on.
    pub(crate) fn set_interval_ns(&self, interval_ns: u64) {
        self.shared.lock().interval_ns = interval_ns;
    }

    /// Collects the metrics of one more channel of that name, which is in that slot of that pool from now on.
    pub(crate) fn add(&self, name: &str, pool: String, index: usize, channel: ChannelMetricsCollector) {
        let key = format!("config.channel.{name}.id");
        self.run(move |writer| {
            writer.disclose(&key, &channel.channel.0.to_string());
            // Counts since the start are those of this channel, if one with its id was removed.
            writer.recent.forget(channel.channel);
            for thread in writer.threads.iter_mut().filter(|thread| thread.pool == pool) {
                thread.channels.insert(index, channel.channel);
            }
            writer.channels.push(CollectedChannel { entry: channel, previous: PreviousCounts::default() });
        });
    }

    /// Collects the last metrics of a channel whose pipeline has been dropped, and forgets it.
    pub(crate) fn remove(&self, channel: ChannelId) {
        self.run(move |writer| {
            let clock = ClockPair::read();
            let is_of = |collected: &mut CollectedChannel| collected.entry.channel == channel;
            for CollectedChannel { entry, mut previous } in writer.channels.extract_if(.., is_of) {
                let log = &mut writer.log;
                let mut outcome = Ok(());
                entry.collector.finish(|set| {
                    let log = log.as_mut().map(IntervalLogFile::writer);
                    let written = write_channel(set, channel, &mut previous, clock, log);
                    outcome = std::mem::replace(&mut outcome, Ok(())).and(written);
                });
                if let Err(error) = outcome {
                    tracing::error!(channel_id = channel.0, %error, "cannot write the last counts of a channel to the latency log");
                }
            }
            writer.recent.forget(channel);
        });
    }

    fn run(&self, task: impl FnOnce(&mut Writer) + Send + 'static) {
        let wake = || {
            self.shared.lock().has_tasks = true;
            self.shared.changed.notify_all();
        };
        if !self.shared.tasks.run_even_late(wake, task) {
            tracing::error!("the latency thread does not answer: a change of channels waits for it");
        }
    }

    /// Collects the remaining values and closes the log.
    ///
    /// # Errors
    /// When the log lacks the last values.
    pub(crate) fn stop(mut self) -> io::Result<LatencyResult> {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.take().map(JoinHandle::join);
        thread
            .unwrap_or_else(|| Ok(Err(io::Error::other("latency thread stopped twice"))))
            .unwrap_or_else(|_| Err(io::Error::other("latency thread panicked")))
    }
}

impl Drop for LatencyThread {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

/// What the latency thread is to do next, and how it wakes up to see it.
#[derive(Debug)]
struct ThreadControl {
    control: Mutex<ControlState>,
    changed: Condvar,
    tasks: TaskQueue<Writer>,
}

#[derive(Debug)]
struct ControlState {
    interval_ns: u64,
    has_tasks: bool,
    stop: bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Interval,
    Tasks,
    Stop,
}

impl ThreadControl {
    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of the interval that began at `begin`, for tasks or for the stop.
    fn wait(&self, begin: ClockPair) -> WaitEnd {
        let mut control = self.lock();
        loop {
            if std::mem::take(&mut control.has_tasks) {
                return WaitEnd::Tasks;
            }
            let left_ns = begin.mono.plus(interval_left_ns(begin.wall, control.interval_ns)).since(mono_now());
            if control.stop {
                return WaitEnd::Stop;
            }
            if left_ns == 0 {
                return WaitEnd::Interval;
            }
            let waited = self.changed.wait_timeout(control, Duration::from_nanos(left_ns));
            control = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How long an interval lasts that begins at that time, ns. Intervals end at whole multiples of their length in UTC, so those of the
/// gateways of a pair are the same: a report that has both takes each interval from one of them.
fn interval_left_ns(begin: UnixNs, interval_ns: u64) -> u64 {
    let left_ns = interval_ns - begin.0 % interval_ns.max(1);
    // Not an interval of nothing, where the clock is a little behind the end of the one before.
    if left_ns < interval_ns / 4 { left_ns + interval_ns } else { left_ns }
}

struct Writer {
    recent: Arc<RecentIntervals>,
    directory: Option<PathBuf>,
    digits: u8,
    disclosure: Disclosure,
    threads: Vec<ThreadStageCollector>,
    channels: Vec<CollectedChannel>,
    /// None without a directory, or if the last interval could not be written.
    log: Option<IntervalLogFile>,
    logs: Vec<PathBuf>,
    /// The UTC day of the log: each day has its own log.
    day: TradingDate,
    is_failing: bool,
    totals: LatencyTotals,
}

impl Writer {
    fn run(mut self, shared: &ThreadControl) -> io::Result<LatencyResult> {
        let mut begin = ClockPair::read();
        loop {
            match shared.wait(begin) {
                WaitEnd::Stop => break,
                WaitEnd::Tasks => shared.tasks.run_pending(&mut self),
                WaitEnd::Interval => {
                    let written = self.tick();
                    self.report(written);
                    begin = ClockPair::read();
                }
            }
        }
        self.finish()?;
        Ok(LatencyResult { totals: self.totals, logs: self.logs })
    }

    /// Logs whether an interval could be written. If not, its log ends before it.
    fn report(&mut self, written: io::Result<()>) {
        let is_failing = written.is_err();
        if let Err(error) = written {
            let alarm = Alarm::LatencyLogFailing.name();
            tracing::error!(alarm, %error, "cannot write the latency log; histograms are still collected in memory");
            let path = self.log.as_ref().map(|log| log.path().to_owned());
            if let Some(Err(error)) = self.log.take().map(IntervalLogFile::abandon) {
                tracing::warn!(%error, "cannot cut off what was written of the last interval");
            }
            self.logs.retain(|log| path.as_ref() != Some(log) || log.exists());
        }
        if std::mem::replace(&mut self.is_failing, is_failing) && !is_failing {
            tracing::info!(ends = Alarm::LatencyLogFailing.name(), "the latency log is writable again");
        }
    }

    fn tick(&mut self) -> io::Result<()> {
        let clock = ClockPair::read();
        let opened = self.open_log_if_needed(clock.wall);
        let mut outcome = opened;
        self.recent.begin();
        for thread in &mut self.threads {
            let (log, totals, digits) = (&mut self.log, &mut self.totals, self.digits);
            let (name, channels) = (&thread.thread, &thread.channels);
            let recent = &self.recent;
            thread.collector.collect(|set| {
                let span = set.interval().unwrap_or((clock.mono, clock.mono));
                for recorded in set.recorded() {
                    if let Some(channel) = channels.get(&(recorded.channel.0 as usize)) {
                        recent.add_stage(*channel, recorded.stage, span, recorded.histogram);
                    }
                }
                let log = log.as_mut().map(IntervalLogFile::writer);
                let written = write_set(set, name, channels, clock, log, totals, digits);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(written);
            });
        }
        for CollectedChannel { entry, previous } in &mut self.channels {
            let (log, channel, recent) = (&mut self.log, entry.channel, &self.recent);
            entry.collector.collect(|set| {
                for line in set.lines() {
                    recent.set_line(channel, line.line, &line.lead_ns);
                    recent.set_line_counts(channel, line.line, &line.counts);
                }
                let log = log.as_mut().map(IntervalLogFile::writer);
                let written = write_channel(set, channel, previous, clock, log);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(written);
            });
        }
        let completed = self.log.as_mut().map_or(Ok(()), IntervalLogFile::complete);
        outcome.and(completed)
    }

    fn finish(&mut self) -> io::Result<()> {
        let clock = ClockPair::read();
        let mut outcome = self.open_log_if_needed(clock.wall);
        for thread in std::mem::take(&mut self.threads) {
            let (log, totals, digits) = (&mut self.log, &mut self.totals, self.digits);
            thread.collector.finish(|set| {
                let log = log.as_mut().map(IntervalLogFile::writer);
                let written = write_set(set, &thread.thread, &thread.channels, clock, log, totals, digits);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(written);
            });
        }
        for CollectedChannel { entry, mut previous } in std::mem::take(&mut self.channels) {
            let log = &mut self.log;
            entry.collector.finish(|set| {
                let log = log.as_mut().map(IntervalLogFile::writer);
                let written = write_channel(set, entry.channel, &mut previous, clock, log);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(written);
            });
        }
        let completed = self.log.as_mut().map_or(Ok(()), IntervalLogFile::complete);
        outcome.and(completed)
    }

    /// Adds an entry to the log, and to those of later days.
    fn disclose(&mut self, key: &str, value: &str) {
        self.disclosure.set(key, value);
        let written = self.log.as_mut().map_or(Ok(()), |log| log.writer().write_disclosure(key, value));
        if let Err(error) = written {
            tracing::error!(key, %error, "cannot write a channel's name to the latency log");
        }
    }

    /// Opens a log if there is none, at the begin of a UTC day, and when the present one is not at its path any more.
    fn open_log_if_needed(&mut self, current: UnixNs) -> io::Result<()> {
        let Some(log) = &self.log else { return self.open_log(current) };
        if TradingDate::in_utc(current) == self.day {
            if log.is_in_place() {
                return Ok(());
            }
            tracing::warn!(path = %log.path().display(), "the latency log was moved or removed; a new one begins");
        }
        self.open_log(current)
    }

    fn open_log(&mut self, current: UnixNs) -> io::Result<()> {
        self.day = TradingDate::in_utc(current);
        // The one before is complete.
        self.log = None;
        let Some(directory) = &self.directory else { return Ok(()) };
        let log = IntervalLogFile::create(directory, current, &self.disclosure)?;
        self.logs.push(log.path().to_owned());
        self.log = Some(log);
        Ok(())
    }
}

/// A channel's collector, and its counts at the end of the last interval.
struct CollectedChannel {
    entry: ChannelMetricsCollector,
    previous: PreviousCounts,
}

#[derive(Default)]
struct PreviousCounts {
    channel: ChannelCounts,
    lines: BTreeMap<Line, LineCounts>,
}

fn write_set(
    set: &StageHistograms,
    thread: &str,
    channels: &BTreeMap<usize, ChannelId>,
    clock: ClockPair,
    mut log: Option<&mut IntervalLogWriter<BufWriter<File>>>,
    totals: &mut LatencyTotals,
    digits: u8,
) -> io::Result<()> {
    let (since, until) = set.interval().unwrap_or((clock.mono, clock.mono));
    let mut outcome = Ok(());
    for recorded in set.recorded() {
        let Some(&channel) = channels.get(&(recorded.channel.0 as usize)) else { continue };
        totals.add(channel, recorded.stage, recorded.histogram, recorded.negative_count, digits);
        if let Some(log) = log.as_deref_mut()
            && outcome.is_ok()
        {
            let tag = IntervalTag { channel, stage: recorded.stage, thread: thread.to_owned() };
            if !recorded.histogram.is_empty() {
                outcome = log.write(&tag, clock.at(since), until.since(since), recorded.histogram);
            }
            if recorded.negative_count > 0 && outcome.is_ok() {
                outcome = log.write_negative(&tag, recorded.negative_count);
            }
        }
    }
    outcome
}

/// Writes the increase of each count since `previous`, and the lines' leads.
fn write_channel(
    set: &ChannelMetrics,
    channel: ChannelId,
    previous: &mut PreviousCounts,
    clock: ClockPair,
    log: Option<&mut IntervalLogWriter<BufWriter<File>>>,
) -> io::Result<()> {
    let (since, until) = set.interval().unwrap_or((clock.mono, clock.mono));
    let (start, length_ns) = (clock.at(since), until.since(since));
    let (current, before) = (*set.counts(), std::mem::replace(&mut previous.channel, *set.counts()));
    let before_lines: Vec<LineCounts> =
        set.lines().iter().map(|line| previous.lines.insert(line.line, line.counts).unwrap_or_default()).collect();
    let Some(log) = log else { return Ok(()) };
    log.write_counts(&CountsTag { channel, line: None }, start, length_ns, &increases(&current, &before))?;
    for (line, before) in set.lines().iter().zip(before_lines) {
        let counts = increases(&line.counts, &before);
        log.write_counts(&CountsTag { channel, line: Some(line.line) }, start, length_ns, &counts)?;
        if !line.lead_ns.is_empty() {
            log.write(&LeadTag { channel, line: line.line }, start, length_ns, &line.lead_ns)?;
        }
    }
    Ok(())
}

/// By how much each count has grown, with its name.
fn increases<B: CounterBlock>(current: &B, before: &B) -> Vec<(&'static str, u64)> {
    let growth = current.values().zip(before.values()).map(|(current, before)| current.saturating_sub(before));
    B::DESCRIPTORS.iter().map(|descriptor| descriptor.name).zip(growth).collect()
}

impl LatencyTotals {
    fn add(&mut self, channel: ChannelId, stage: Stage, histogram: &Histogram<u32>, negative_count: u64, digits: u8) {
        let total = self.cells.entry((channel, stage)).or_insert_with(|| StageTotal {
            histogram: Histogram::new_with_bounds(VALUE_NS_MIN, VALUE_NS_MAX, digits)
                .expect("bounds are constants, digits are checked by the configuration"),
            negative_count: 0,
        });
        for value in histogram.iter_recorded() {
            total.histogram.saturating_record_n(value.value_iterated_to(), u64::from(value.count_at_value()));
        }
        total.negative_count += negative_count;
    }
}

#[cfg(test)]
mod tests {
    use mdgw_sys::handle::ChannelIndex;
    use mdgw_telemetry::{channel_metrics::channel_recorder_pair, stages::stage_recorder_pair};

    use super::*;

    #[test]
    fn values_of_all_threads_are_in_log_and_totals_once() {
        let directory = tempfile::tempdir().unwrap();
        let config = LatencyConfig {
            directory: Some(directory.path().to_owned()),
            interval_ns: 1_000_000,
            significant_digits: 2,
        };
        let (recorders, collectors): (Vec<_>, Vec<_>) = (0..2).map(|_| stage_recorder_pair(1, 2)).unzip();
        let threads = collectors.into_iter().enumerate().map(|(index, collector)| {
            ThreadStageCollector::new("main".to_owned(), format!("main-{index}"), &[ChannelId(7)], collector)
        });
        let latency = LatencyThread::start(&config, threads.collect(), Vec::new(), Disclosure::default()).unwrap();
        std::thread::scope(|scope| {
            for mut recorder in recorders {
                scope.spawn(move || {
                    for value in 0..50_000 {
                        recorder.at_batch_boundary(mono_now());
                        recorder.histograms().record(ChannelIndex(0), Stage::Publish, value);
                    }
                    recorder.histograms().record_wall(ChannelIndex(0), Stage::Publish, UnixNs(5), UnixNs(4));
                });
            }
        });
        let collected = latency.stop().unwrap();
        let total = &collected.totals.cells[&(ChannelId(7), Stage::Publish)];
        assert_eq!((total.histogram.len(), total.negative_count), (100_000, 2));
        let text = std::fs::read_to_string(&collected.logs[0]).unwrap();
        for thread in ["main-0", "main-1"] {
            let line = format!("Tag=channel=7;stage=publish;thread={thread},");
            assert!(text.lines().any(|found| found.starts_with(&line)), "{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("#[negative ")).count(), 2, "{text}");
    }

    #[test]
    fn a_channel_that_is_added_later_has_its_name_in_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let config = LatencyConfig {
            directory: Some(directory.path().to_owned()),
            interval_ns: 1_000_000,
            significant_digits: 2,
        };
        let latency = LatencyThread::start(&config, Vec::new(), Vec::new(), Disclosure::default()).unwrap();
        let (recorder, collector) = channel_recorder_pair(&[Line::A]);
        let metrics = ChannelMetricsCollector { channel: ChannelId(3), collector };
        latency.add("three", "main".to_owned(), 2, metrics);
        drop(recorder);
        let collected = latency.stop().unwrap();
        let text = std::fs::read_to_string(&collected.logs[0]).unwrap();
        assert!(text.lines().any(|line| line == "#[mdgw config.channel.three.id = 3]"), "{text}");
    }

    #[test]
    fn a_new_log_begins_when_the_present_one_is_gone_and_when_the_directory_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("latency");
        let config =
            LatencyConfig { directory: Some(directory.clone()), interval_ns: 1_000_000, significant_digits: 2 };
        let (mut recorder, collector) = stage_recorder_pair(1, 2);
        let thread = ThreadStageCollector::new("main".to_owned(), "main-0".to_owned(), &[ChannelId(7)], collector);
        let latency = LatencyThread::start(&config, vec![thread], Vec::new(), Disclosure::default()).unwrap();
        let logs = || std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
            let until = std::time::Instant::now() + Duration::from_secs(30);
            while !is_so() {
                assert!(std::time::Instant::now() < until, "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };

        std::fs::remove_file(&logs()[0]).unwrap();
        wait_for("a new log after the first was removed", &|| logs().len() == 1);

        std::fs::remove_dir_all(&directory).unwrap();
        // A new log may have begun between the two calls, so the file takes the directory's place when it can.
        wait_for("a file in place of the directory", &|| {
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::write(&directory, "").is_ok()
        });
        recorder.at_batch_boundary(mono_now());
        recorder.histograms().record(ChannelIndex(0), Stage::Publish, 5);
        std::thread::sleep(Duration::from_millis(20));
        std::fs::remove_file(&directory).unwrap();
        wait_for("a new log after the directory could be made again", &|| directory.is_dir() && logs().len() == 1);
        drop(recorder);
        let collected = latency.stop().expect("the last values are in a log");
        assert_eq!(collected.totals.cells[&(ChannelId(7), Stage::Publish)].histogram.len(), 1);
        assert_eq!(collected.logs.last(), logs().first());
    }

    #[test]
    fn intervals_end_at_whole_multiples_of_their_length() {
        for (begin, expected) in [(7_000, 1_000), (7_300, 700), (7_750, 250), (7_751, 1_249), (7_999, 1_001)] {
            assert_eq!(interval_left_ns(UnixNs(begin), 1_000), expected, "{begin}");
        }
    }

    #[test]
    fn an_uncreatable_log_directory_fails_at_start() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config =
            LatencyConfig { directory: Some(file.path().join("below")), interval_ns: 1_000_000, significant_digits: 2 };
        assert!(LatencyThread::start(&config, Vec::new(), Vec::new(), Disclosure::default()).is_err());
    }
}
