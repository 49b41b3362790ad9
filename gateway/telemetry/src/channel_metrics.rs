//! Metrics of a channel and its lines over an interval: counts, and the lead of one line over the other.
//!
//! The holder of a channel's claim records the metrics. Once an interval a cold thread offers a set of empty
//! histograms. After the next batch or deadline the holder exchanges these histograms for the recorded ones, writes the
//! counts beside them and returns the set ([`double_buffer`](super::double_buffer)).

use hdrhistogram::Histogram;
use mdgw_feeds::channel::Channel;
use mdgw_wire::{arbiter::lead_histogram, drop_reason::DropReason, identity::Line, time::MonoNs};

use super::{
    counter_block,
    double_buffer::{BufferCollector, BufferProducer, double_buffer},
};

counter_block! {
    /// Counts of a channel since its gateway started. Latency logs write them under these names, so the names are part
    /// of a file format.
    pub struct ChannelCounts, key ChannelCount {
        datagrams: Counter, Packets, "datagrams received on all lines";
        messages: Counter, Messages, "messages in sequence, each once";
        duplicates: Counter, Messages, "messages that another line had delivered before";
        gaps: Counter, None, "gaps declared";
        gap_messages: Counter, Messages, "messages in declared gaps";
        drops: Counter, None, "packets and messages dropped unexpectedly, by channel and arbiter";
    }
}

counter_block! {
    /// Counts of a line since its gateway started, named as in latency logs. They may decrease a little: a line first
    /// counted as the winner loses a message when the other line's copy turns out to be earlier.
    pub struct LineCounts, key LineCount {
        packets: Counter, Packets, "packets with messages";
        won_messages: Counter, Messages, "messages that arrived on this line first";
        duplicate_messages: Counter, Messages, "messages that another line had delivered before";
        late_messages: Counter, Messages, "messages that arrived after their gap had been declared";
    }
}

/// Metrics of a channel over one interval.
#[derive(Debug)]
pub struct ChannelMetrics {
    since: Option<MonoNs>,
    until: Option<MonoNs>,
    counts: ChannelCounts,
    lines: Box<[LineMetrics]>,
}

/// Metrics of a line over one interval.
#[derive(Debug)]
pub struct LineMetrics {
    /// Id of the line.
    pub line: Line,
    /// Counts at the end of the interval.
    pub counts: LineCounts,
    /// For each message of the interval that arrived on this line before another: how much earlier, ns.
    pub lead_ns: Histogram<u64>,
}

impl ChannelMetrics {
    fn new(lines: &[Line]) -> Self {
        let line_metrics =
            |line: &Line| LineMetrics { line: *line, counts: LineCounts::default(), lead_ns: lead_histogram() };
        Self {
            since: None,
            until: None,
            counts: ChannelCounts::default(),
            lines: lines.iter().map(line_metrics).collect(),
        }
    }

    /// Begin and end of the interval; `None` for a channel that has just begun.
    #[must_use]
    pub fn interval(&self) -> Option<(MonoNs, MonoNs)> {
        self.since.zip(self.until)
    }

    /// Counts at the end of the interval.
    #[must_use]
    pub fn counts(&self) -> &ChannelCounts {
        &self.counts
    }

    /// The channel's lines.
    #[must_use]
    pub fn lines(&self) -> &[LineMetrics] {
        &self.lines
    }

    /// Exchanges histograms with the channel and copies its counts.
    fn fill(&mut self, channel: &mut Channel, socket_drops: u64, since: Option<MonoNs>, now: MonoNs) {
        (self.since, self.until) = (since, Some(now));
        let (counters, arbiter_drops) = (channel.counters(), channel.arbiter_drops());
        self.counts = ChannelCounts {
            datagrams: counters.datagrams,
            messages: counters.messages,
            duplicates: arbiter_drops.get(DropReason::Duplicate),
            gaps: counters.gaps,
            gap_messages: counters.gap_messages,
            drops: socket_drops + channel.drops().unexpected() + arbiter_drops.unexpected(),
        };
        for LineMetrics { line, counts, lead_ns } in &mut self.lines {
            let statistics = channel.line_statistics(*line);
            *counts = LineCounts {
                packets: statistics.packets,
                won_messages: statistics.won_messages,
                duplicate_messages: statistics.duplicate_messages,
                late_messages: statistics.late_messages,
            };
            channel.exchange_lead(*line, lead_ns);
        }
    }

    fn clear(&mut self) {
        for line in self.lines.iter_mut().filter(|line| !line.lead_ns.is_empty()) {
            line.lead_ns.reset();
        }
    }
}

/// Recorder and collector of one channel with these `lines`.
#[must_use]
pub fn channel_recorder_pair(lines: &[Line]) -> (ChannelRecorder, ChannelCollector) {
    let set = || Box::new(ChannelMetrics::new(lines));
    let (producer, collector) = double_buffer(set(), ChannelMetrics::clear);
    (ChannelRecorder { since: None, last: Some(set()), producer }, collector)
}

/// The hot end, owned with the channel by the holder of its claim.
#[derive(Debug)]
pub struct ChannelRecorder {
    since: Option<MonoNs>,
    /// The set that [`Self::finish`] hands over.
    last: Option<Box<ChannelMetrics>>,
    producer: BufferProducer<ChannelMetrics>,
}

impl ChannelRecorder {
    /// Called after a batch or a deadline: hands over the metrics if the cold end requests them. `socket_drops`:
    /// datagrams that never reached the channel.
    #[inline]
    pub fn at_batch_boundary(&mut self, now: MonoNs, channel: &mut Channel, socket_drops: u64) {
        if self.producer.is_requested() {
            self.hand_over(now, channel, socket_drops);
        } else if self.since.is_none() {
            self.since = Some(now);
        }
    }

    #[cold]
    fn hand_over(&mut self, now: MonoNs, channel: &mut Channel, socket_drops: u64) {
        let Some(mut set) = self.producer.take_empty() else { return };
        set.fill(channel, socket_drops, self.since.replace(now), now);
        self.producer.hand_back(set);
    }

    /// The channel has ended: hands over its remaining metrics.
    pub fn finish(&mut self, now: MonoNs, channel: &mut Channel, socket_drops: u64) {
        if let Some(mut set) = self.last.take() {
            set.fill(channel, socket_drops, self.since.take(), now);
            self.producer.hand_back_last(set);
        }
    }
}

/// The cold end. A channel without a batch or a deadline since the last interval keeps its metrics.
pub type ChannelCollector = BufferCollector<ChannelMetrics>;

impl ChannelCollector {
    /// Bytes of both sets of a channel with `line_count` lines.
    #[must_use]
    pub fn memory_bytes(line_count: usize) -> usize {
        2 * line_count * (lead_histogram().distinct_values() * size_of::<u64>() + size_of::<LineMetrics>())
    }
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        channel::{ChannelConfig, Datagram},
        transport::moldudp64,
    };
    use mdgw_wire::{
        frame::{FrameMeta, FrameSink},
        identity::{ChannelId, Feed, Sequence, Session},
        time::UnixNs,
    };

    use super::*;

    /// A sink that drops all frames.
    struct DiscardingSink;

    impl FrameSink for DiscardingSink {
        fn frame(&mut self, _: &FrameMeta, _: u16, _: &[u8]) {}
        fn covered_through(&mut self, _: Sequence) {}
        fn session(&mut self, _: Session, _: Sequence) {}
        fn end_of_session(&mut self) {}
    }

    const LINES: [Line; 2] = [Line(0), Line(1)];

    /// Feeds `count` messages on both lines, line A 1,000 ns earlier; `first` is the first sequence.
    fn feed_both_lines(channel: &mut Channel, first: u64, count: u64) {
        for sequence in first..first + count {
            for (line, delay_ns) in [(Line::A, 0), (Line::B, 1_000)] {
                let mut bytes = Vec::new();
                let mut packet = moldudp64::PacketWriter::begin(&mut bytes, *b"0000000001", Sequence(sequence), 1_400);
                assert!(packet.push(&[b'S', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'O']));
                packet.finish();
                let ts_recv = UnixNs(1_548_858_600_000_000_000 + sequence * 1_000_000 + delay_ns);
                channel.accept(Datagram { line, bytes: &bytes, ts_recv }, MonoNs(sequence), &mut DiscardingSink);
            }
        }
    }

    fn channel() -> Channel {
        Channel::new(ChannelConfig::new(ChannelId(1), Feed::NasdaqItch))
    }

    fn summary(set: &ChannelMetrics) -> (Option<(u64, u64)>, u64, u64, u64, u64) {
        let [a, b] = set.lines() else { panic!("two lines") };
        assert_eq!((b.counts.won_messages, b.lead_ns.len()), (0, 0));
        let interval = set.interval().map(|(since, until)| (since.0, until.0));
        (interval, set.counts().messages, a.counts.won_messages, a.lead_ns.len(), b.counts.duplicate_messages)
    }

    #[test]
    fn each_lead_is_collected_once_and_counts_accumulate() {
        let mut channel = channel();
        let (mut recorder, mut collector) = channel_recorder_pair(&LINES);
        let mut summaries = Vec::new();
        recorder.at_batch_boundary(MonoNs(10), &mut channel, 0);
        feed_both_lines(&mut channel, 1, 5);
        collector.collect(|set| summaries.push(summary(set)));
        assert_eq!(summaries, [], "requested only now");
        recorder.at_batch_boundary(MonoNs(20), &mut channel, 0);
        feed_both_lines(&mut channel, 6, 3);
        recorder.at_batch_boundary(MonoNs(30), &mut channel, 0);
        collector.collect(|set| summaries.push(summary(set)));
        recorder.at_batch_boundary(MonoNs(40), &mut channel, 0);
        feed_both_lines(&mut channel, 9, 1);
        recorder.finish(MonoNs(50), &mut channel, 0);
        collector.finish(|set| summaries.push(summary(set)));
        assert_eq!(
            summaries,
            [(Some((10, 20)), 5, 5, 5, 5), (Some((20, 40)), 8, 8, 3, 8), (Some((40, 50)), 9, 9, 1, 9)]
        );
    }

    #[test]
    fn the_reported_memory_is_that_of_the_histograms() {
        let bytes = ChannelCollector::memory_bytes(2);
        assert!((80_000..150_000).contains(&bytes), "{bytes}");
    }
}
