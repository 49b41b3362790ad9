//! Latency by stage: one histogram per thread, channel and stage, recorded without locks.
//!
//! ```text
//!  wire ──────────► user ─────► claimed ─────► in order ─────► records ─────► handed to the kernel
//!    wire_to_user     claim_wait    arbitrate     decode_and_book    publish
//!    └──────────────────────────── wire_to_wire ────────────────────────────────────────────────┘
//! ```
//!
//! Every stage after the claim is measured for each received packet, also where several of them share a published
//! packet:
//!
//! | stage | one value per | from | to |
//! | --- | --- | --- | --- |
//! | `wire_to_user` | packet | its receive timestamp | it is in the gateway's memory, received with its batch |
//! | `claim_wait` | receive call of a claim | the beginning of the turn: the return of the wait, or the end of the time in the run queue | the holder begins to receive |
//! | `arbitrate` | packet | the start of its processing | its first message is in sequence, or the packet held no new message |
//! | `decode_and_book` | packet with new messages | end of `arbitrate` | its last record is written |
//! | `publish` | packet whose records were published | end of `decode_and_book` | the send call of its last record returned |
//! | `wire_to_wire` | packet whose records were published | its receive timestamp | the send call of its last record returned |
//!
//! **Hand-over.** A thread records into its own [`StageHistograms`]. At a batch boundary it exchanges them for empty
//! ones if a cold thread requests it ([`double_buffer`](super::double_buffer)).
//!
//! A negative duration (two clock domains, a step of the clock) is counted, not recorded.

use hdrhistogram::Histogram;
use mdgw_sys::handle::ChannelIndex;
use mdgw_wire::time::{MonoNs, UnixNs};

use super::double_buffer::{BufferCollector, BufferProducer, double_buffer};

/// A section of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Receive timestamp to the gateway's memory.
    WireToUser = 0,
    /// Return of the wait to the begin of processing.
    ClaimWait = 1,
    /// Arbitration of the lines.
    Arbitrate = 2,
    /// Decode, book, normalise, publication log.
    DecodeAndBook = 3,
    /// From the log through the fence to the kernel.
    Publish = 4,
    /// The whole data path.
    WireToWire = 5,
}

impl Stage {
    /// In the order of the data path; the whole comes last.
    pub const ALL: [Self; 6] =
        [Self::WireToUser, Self::ClaimWait, Self::Arbitrate, Self::DecodeAndBook, Self::Publish, Self::WireToWire];

    /// Name in logs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WireToUser => "wire_to_user",
            Self::ClaimWait => "claim_wait",
            Self::Arbitrate => "arbitrate",
            Self::DecodeAndBook => "decode_and_book",
            Self::Publish => "publish",
            Self::WireToWire => "wire_to_wire",
        }
    }

    /// The stage of that [name](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// Smallest value distinguished from 0, ns.
pub const VALUE_NS_MIN: u64 = 1;
/// Largest value, ns; longer ones are recorded as this one.
pub const VALUE_NS_MAX: u64 = 60_000_000_000;

/// The histograms of one thread over one interval. Written by that thread alone.
#[derive(Debug)]
pub struct StageHistograms {
    /// By channel, then stage. Counts are 32 bits wide and stop at their maximum: 4 billion packets of one channel
    /// within one interval.
    cells: Box<[Cell]>,
    /// When the thread began to record into this set; `None` before its first batch boundary.
    since: Option<MonoNs>,
    /// When the thread returned the set.
    until: Option<MonoNs>,
}

#[derive(Debug)]
struct Cell {
    histogram: Histogram<u32>,
    negative_count: u64,
}

/// Values of one thread, channel and stage over one interval.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Index of the channel in its pool.
    pub channel: ChannelIndex,
    /// Stage of the data path that was timed.
    pub stage: Stage,
    /// Values in nanoseconds.
    pub histogram: &'a Histogram<u32>,
    /// Number of negative values, which are not in the histogram.
    pub negative_count: u64,
}

impl StageHistograms {
    /// Histograms for `channel_count` channels. All memory is allocated and touched here.
    ///
    /// # Panics
    /// If `significant_digits` is not in 1..=5.
    #[must_use]
    pub fn new(channel_count: usize, significant_digits: u8) -> Self {
        let cell = || {
            let mut histogram = Histogram::new_with_bounds(VALUE_NS_MIN, VALUE_NS_MAX, significant_digits)
                .expect("bounds are constants, digits are checked by the configuration");
            histogram.reset();
            Cell { histogram, negative_count: 0 }
        };
        Self { cells: (0..channel_count * Stage::ALL.len()).map(|_| cell()).collect(), since: None, until: None }
    }

    /// Records one value. A channel beyond the set's channels is ignored.
    #[inline]
    pub fn record(&mut self, channel: ChannelIndex, stage: Stage, value_ns: u64) {
        self.record_n(channel, stage, value_ns, 1);
    }

    /// Records the same value `count` times.
    #[inline]
    pub fn record_n(&mut self, channel: ChannelIndex, stage: Stage, value_ns: u64, count: u32) {
        if let Some(cell) = self.cell(channel, stage) {
            cell.histogram.saturating_record_n(value_ns, count);
        }
    }

    /// Records the time between two wall times. A negative duration is only counted; an undefined timestamp is ignored.
    #[inline]
    pub fn record_wall(&mut self, channel: ChannelIndex, stage: Stage, from: UnixNs, to: UnixNs) {
        if from == UnixNs::UNDEFINED {
            return;
        }
        if let Some(cell) = self.cell(channel, stage) {
            match to.since(from) {
                Some(value_ns) => cell.histogram.saturating_record(value_ns),
                None => cell.negative_count += 1,
            }
        }
    }

    /// Records the time between two readings of the monotonic clock, which is never negative.
    #[inline]
    pub fn record_mono(&mut self, channel: ChannelIndex, stage: Stage, from: MonoNs, to: MonoNs) {
        self.record(channel, stage, to.since(from));
    }

    /// When recording began and ended; `None` until the set was in use.
    #[must_use]
    pub fn interval(&self) -> Option<(MonoNs, MonoNs)> {
        self.since.zip(self.until)
    }

    /// All histograms with values, in the order of channels and stages.
    pub fn recorded(&self) -> impl Iterator<Item = Recorded<'_>> {
        let keys = (0_u32..).flat_map(|channel| Stage::ALL.map(|stage| (ChannelIndex(channel), stage)));
        keys.zip(&self.cells).filter(|(_, cell)| !cell.is_empty()).map(|((channel, stage), cell)| Recorded {
            channel,
            stage,
            histogram: &cell.histogram,
            negative_count: cell.negative_count,
        })
    }

    /// Memory of its histograms, bytes.
    #[must_use]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.cells.iter().map(|cell| cell.histogram.distinct_values() * size_of::<u32>() + size_of::<Cell>()).sum()
    }

    /// Empties the set. Histograms without values are skipped.
    fn clear(&mut self) {
        for cell in self.cells.iter_mut().filter(|cell| !cell.is_empty()) {
            cell.histogram.reset();
            cell.negative_count = 0;
        }
        self.since = None;
        self.until = None;
    }

    #[inline]
    fn cell(&mut self, channel: ChannelIndex, stage: Stage) -> Option<&mut Cell> {
        self.cells.get_mut(channel.0 as usize * Stage::ALL.len() + stage as usize)
    }
}

impl Cell {
    fn is_empty(&self) -> bool {
        self.histogram.is_empty() && self.negative_count == 0
    }
}

/// Recorder and collector of one thread.
#[must_use]
pub fn stage_recorder_pair(channel_count: usize, significant_digits: u8) -> (StageRecorder, StageCollector) {
    let histograms = || Box::new(StageHistograms::new(channel_count, significant_digits));
    let (producer, collector) = double_buffer(histograms(), StageHistograms::clear);
    (StageRecorder { histograms: histograms(), producer }, collector)
}

/// The hot end: one thread records here. Dropping it hands over its remaining set.
#[derive(Debug)]
pub struct StageRecorder {
    histograms: Box<StageHistograms>,
    producer: BufferProducer<StageHistograms>,
}

impl StageRecorder {
    /// The set to record into until the next batch boundary.
    #[inline]
    pub fn histograms(&mut self) -> &mut StageHistograms {
        &mut self.histograms
    }

    /// Called between two batches: exchanges sets if the cold end requests it. `now` is the batch's own time.
    #[inline]
    pub fn at_batch_boundary(&mut self, now: MonoNs) {
        if self.producer.is_requested() {
            self.hand_over(now);
        } else if self.histograms.since.is_none() {
            self.histograms.since = Some(now);
        }
    }

    #[cold]
    fn hand_over(&mut self, now: MonoNs) {
        let Some(empty) = self.producer.take_empty() else { return };
        let mut full = std::mem::replace(&mut self.histograms, empty);
        self.histograms.since = Some(now);
        full.until = Some(now);
        self.producer.hand_back(full);
    }
}

impl Drop for StageRecorder {
    fn drop(&mut self) {
        let mut histograms = std::mem::replace(&mut self.histograms, Box::new(StageHistograms::new(0, 1)));
        histograms.until = histograms.since.map(|since| mdgw_sys::clock::mono_now().max(since));
        self.producer.hand_back_last(histograms);
    }
}

/// The cold end: collects the sets of one thread, also the last set of a dropped recorder.
pub type StageCollector = BufferCollector<StageHistograms>;

impl StageCollector {
    /// Bytes of both of the thread's sets, for `channel_count` channels.
    #[must_use]
    pub fn memory_bytes(channel_count: usize, significant_digits: u8) -> usize {
        2 * StageHistograms::new(1, significant_digits).memory_bytes() * channel_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: ChannelIndex = ChannelIndex(1);

    fn count(histograms: &StageHistograms) -> u64 {
        histograms.recorded().map(|recorded| recorded.histogram.len()).sum()
    }

    #[test]
    fn stage_names_round_trip() {
        for stage in Stage::ALL {
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
        }
        assert_eq!(Stage::from_name("wire"), None);
    }

    #[test]
    fn values_are_recorded_under_their_channel_and_stage() {
        let mut histograms = StageHistograms::new(2, 2);
        histograms.record(CHANNEL, Stage::Publish, 1_234_567);
        histograms.record_n(ChannelIndex(0), Stage::WireToUser, 40, 3);
        let recorded: Vec<_> =
            histograms.recorded().map(|r| (r.channel.0, r.stage, r.histogram.len(), r.histogram.max())).collect();
        assert_eq!(recorded[0], (0, Stage::WireToUser, 3, 40));
        let (channel, stage, count, max) = recorded[1];
        assert_eq!((channel, stage, count), (1, Stage::Publish, 1));
        assert!(max.abs_diff(1_234_567) <= 1_234_567 / 100);
    }

    #[test]
    fn negative_stages_are_counted_and_not_recorded() {
        let mut histograms = StageHistograms::new(2, 2);
        histograms.record_wall(CHANNEL, Stage::WireToUser, UnixNs(1_000), UnixNs(999));
        histograms.record_wall(CHANNEL, Stage::WireToUser, UnixNs(1_000), UnixNs(1_000));
        histograms.record_wall(CHANNEL, Stage::WireToUser, UnixNs::UNDEFINED, UnixNs(1_000));
        let recorded = histograms.recorded().next().unwrap();
        assert_eq!((recorded.negative_count, recorded.histogram.len()), (1, 1));
    }

    #[test]
    fn out_of_range_values_are_clamped_and_unknown_channels_ignored() {
        let mut histograms = StageHistograms::new(1, 2);
        histograms.record(ChannelIndex(7), Stage::Publish, 5);
        assert_eq!(count(&histograms), 0);
        histograms.record(ChannelIndex(0), Stage::Publish, u64::MAX);
        let max = histograms.recorded().next().unwrap().histogram.max();
        assert!((VALUE_NS_MAX..VALUE_NS_MAX / 100 * 102).contains(&max), "{max}");
    }

    #[test]
    fn buffers_are_swapped_at_the_batch_boundary_after_the_request() {
        let (mut recorder, mut collector) = stage_recorder_pair(2, 2);
        recorder.at_batch_boundary(MonoNs(10));
        recorder.histograms().record(CHANNEL, Stage::Publish, 5);
        recorder.at_batch_boundary(MonoNs(20));
        recorder.histograms().record(CHANNEL, Stage::Publish, 6);
        let mut collected = Vec::new();
        collector.collect(|histograms| collected.push((count(histograms), histograms.interval())));
        assert_eq!(collected, [], "requested only now");
        recorder.at_batch_boundary(MonoNs(30));
        recorder.histograms().record(CHANNEL, Stage::Publish, 7);
        collector.collect(|histograms| collected.push((count(histograms), histograms.interval())));
        assert_eq!(collected, [(2, Some((MonoNs(10), MonoNs(30))))]);
    }

    #[test]
    fn every_value_is_collected_once_whenever_the_thread_ends() {
        for borders_after_offer in 0..3 {
            let (mut recorder, mut collector) = stage_recorder_pair(2, 2);
            let mut collected = 0;
            for round in 0..5 {
                recorder.at_batch_boundary(MonoNs(round));
                recorder.histograms().record(CHANNEL, Stage::Publish, 5);
                collector.collect(|histograms| collected += count(histograms));
            }
            for round in 0..borders_after_offer {
                recorder.at_batch_boundary(MonoNs(5 + round));
                recorder.histograms().record(CHANNEL, Stage::Publish, 5);
            }
            drop(recorder);
            collector.finish(|histograms| collected += count(histograms));
            assert_eq!(collected, 5 + borders_after_offer);
        }
    }

    #[test]
    fn every_value_is_collected_once_across_threads() {
        let (mut recorder, mut collector) = stage_recorder_pair(1, 2);
        let values = 200_000_u64;
        let mut collected = 0;
        std::thread::scope(|scope| {
            let hot = scope.spawn(move || {
                for value in 0..values {
                    recorder.at_batch_boundary(MonoNs(value));
                    recorder.histograms().record(ChannelIndex(0), Stage::Publish, value);
                }
            });
            while !hot.is_finished() {
                collector.collect(|histograms| collected += count(histograms));
            }
        });
        collector.finish(|histograms| collected += count(histograms));
        assert_eq!(collected, values);
    }

    #[test]
    fn the_reported_memory_is_that_of_the_histograms() {
        let histograms = StageHistograms::new(1, 2);
        assert!((80_000..130_000).contains(&histograms.memory_bytes()), "{}", histograms.memory_bytes());
        assert_eq!(StageCollector::memory_bytes(3, 2), 6 * histograms.memory_bytes());
    }
}
