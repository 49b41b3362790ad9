//! The channels of one dataset as one stream: each channel in its order, channels by commit time.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use mdgw_publog::LogError;

use super::{
    channel::{ChannelSource, ChannelStream, Passed},
    chunk::Chunk,
    intervals::push_end,
    place::LogPlace,
};
use crate::schema::Schemas;

/// Reads the logs of a dataset.
#[derive(Debug)]
pub(crate) struct DatasetReader {
    channels: Vec<ChannelStream>,
    /// Ends of intervals that a channel has come to and another one has not: end in ns since 1970 UTC, index of the length, schema.
    open_ends: BTreeSet<(u64, usize, u16)>,
}

impl DatasetReader {
    /// Begins at the oldest entry of each log. Once `stop` is set, the reader may end early.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub(crate) fn open(sources: &[ChannelSource], stop: &Arc<AtomicBool>) -> Result<Self, LogError> {
        let channels = sources.iter().map(|source| ChannelStream::open(source, stop));
        let mut channels = channels.collect::<Result<Vec<_>, _>>()?;
        if channels.len() > 1 {
            channels.iter_mut().for_each(ChannelStream::share_intervals);
        }
        Ok(Self { channels, open_ends: BTreeSet::new() })
    }

    /// From now on no channel opens a journal again that ends in front of the log.
    pub(crate) fn skip_journal_retries(&mut self) {
        self.channels.iter_mut().for_each(ChannelStream::skip_journal_retries);
    }

    /// From now on only published schemas are wanted: books are not kept.
    pub(crate) fn keep_no_books(&mut self) {
        self.channels.iter_mut().for_each(ChannelStream::keep_no_books);
    }

    /// Another reader of the same logs has come to this place with that, for each channel.
    pub(crate) fn inherit(&mut self, from: &[Passed]) {
        self.channels.iter_mut().zip(from).for_each(|(channel, from)| channel.inherit(from));
    }

    /// Whether a journal has gone before it was read, since the last call.
    pub(crate) fn take_lost_journal(&mut self) -> bool {
        self.channels.iter_mut().fold(false, |has_lost, channel| channel.take_lost_journal() | has_lost)
    }

    /// Reads entries until the chunk is full, `until` is reached in each channel, a day ends, or nothing further is committed.
    /// Returns the number of entries and of ends.
    pub(crate) fn read(&mut self, wanted: Schemas, until: Option<&[LogPlace]>, chunk: &mut Chunk) -> usize {
        chunk.first_places = self.next_places();
        let mut entries = 0;
        while !chunk.is_full() && entries < ENTRIES_MAX {
            let next =
                self.channels.iter_mut().enumerate().filter_map(|(index, channel)| {
                    Some((channel.peek(until.and_then(|until| until.get(index)))?, index))
                });
            let Some((_, index)) = next.min() else { break };
            if self.channels[index].begins_next_day() {
                self.channels.iter_mut().for_each(|channel| channel.end_session(Duration::ZERO, wanted, chunk));
                entries += 1;
                chunk.is_end_of_session = self.has_ended();
                if chunk.is_end_of_session {
                    break;
                }
            }
            if !self.channels[index].read(wanted, chunk) {
                break;
            }
            self.announce_ends(index, chunk);
            entries += 1;
        }
        entries
    }

    /// Ends sessions whose end was announced that long ago: the venue has begun no other one on the same day since.
    pub(crate) fn end_sessions(&mut self, wait: Duration, wanted: Schemas, chunk: &mut Chunk) {
        let had_ended = self.has_ended();
        self.channels.iter_mut().for_each(|channel| channel.end_session(wait, wanted, chunk));
        chunk.is_end_of_session |= !had_ended && self.has_ended();
    }

    /// Announces the ends of intervals that all channels have come to since that channel moved. A channel that is silent for long is
    /// not waited for, so few ends are open at a time.
    fn announce_ends(&mut self, moved: usize, chunk: &mut Chunk) {
        let Self { channels, open_ends } = self;
        let Some(channel) = channels.get_mut(moved) else { return };
        let closed = channel.intervals_mut().take_closed();
        open_ends.extend(closed.into_iter().map(|(index, end_ns, schema)| (end_ns, index, schema.0)));
        open_ends.retain(|(end_ns, index, schema)| {
            let is_late =
                |channel: &ChannelStream| channel.intervals().is_beyond(*index, end_ns.saturating_add(END_WAIT_NS));
            let is_over = channels.iter().any(is_late)
                || channels.iter().all(|channel| channel.intervals().has_passed(*index, *end_ns));
            if is_over {
                push_end(*end_ns, Schemas(*schema), chunk);
            }
            !is_over
        });
    }

    /// Whether another log has taken the place of one that was read to its end. Makes system calls.
    pub(crate) fn is_replaced(&self) -> bool {
        self.channels.iter().any(ChannelStream::is_replaced)
    }

    /// For each channel, the place behind all that was read.
    pub(crate) fn next_places(&self) -> Vec<LogPlace> {
        self.channels.iter().map(ChannelStream::log_place).collect()
    }

    /// The streams of the channels, in the order of their sources.
    pub(crate) fn channels(&self) -> &[ChannelStream] {
        &self.channels
    }

    fn has_ended(&self) -> bool {
        self.channels.iter().all(ChannelStream::has_ended)
    }
}

/// How far another channel's event time may be past the end of an interval while a silent channel is waited for, ns.
const END_WAIT_NS: u64 = 10_000_000_000;
/// Entries per chunk, so that a run of entries without records does not keep the reader from other work.
pub(crate) const ENTRIES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use dbn::enums::rtype;

    use super::*;
    use crate::{
        control,
        stream::channel::tests::{TestLog, restarted},
    };

    /// A client that takes the announcement of the faster channel for the end would miss the bars of the slower one.
    #[test]
    fn the_end_of_an_interval_is_announced_once_all_channels_have_passed_it() {
        const SECOND: u64 = 1_000_000_000;
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut logs = directories.each_ref().map(TestLog::new);
        for (log, sequence, ts_event) in
            [(0, 1, 5), (1, 2, 6), (0, 3, SECOND + 5), (0, 4, 2 * SECOND + 5), (1, 5, SECOND + 6)]
        {
            logs[log].add_trade(sequence, ts_event);
        }
        let mut reader = DatasetReader::open(&logs.each_ref().map(|log| log.source.clone()), &Arc::default()).unwrap();
        let mut chunk = Chunk::default();
        assert_eq!(reader.read(Schemas::OHLCV_1S, None, &mut chunk), 5);
        let records: Vec<_> =
            chunk.records().map(|record| (record.bytes[1], control::ts_event(record.bytes))).collect();
        let bar = |start| (rtype::OHLCV_1S, start);
        assert_eq!(records, [bar(0), bar(SECOND), bar(0), (rtype::SYSTEM, SECOND)]);

        // The second channel is silent from here on.
        for second in 3..100 {
            logs[0].add_trade(3 + second, second * SECOND + 5);
        }
        let mut chunk = Chunk::default();
        reader.read(Schemas::OHLCV_1S, None, &mut chunk);
        let announced = chunk.records().filter(|record| record.bytes[1] == rtype::SYSTEM).count();
        assert!(announced > 80 && reader.open_ends.len() < 20, "{announced} {}", reader.open_ends.len());
    }

    /// The gateway announces the end of a session when the venue begins another one. Sessions of clients that ended with it would not
    /// come back on the same day.
    #[test]
    fn a_restart_of_the_venue_ends_no_day_and_cuts_no_bar() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        let mut reader = DatasetReader::open(std::slice::from_ref(&log.source), &Arc::default()).unwrap();
        let mut read = |wait| {
            let mut chunk = Chunk::default();
            let entries = reader.read(Schemas::OHLCV_1D, None, &mut chunk);
            if entries == 0 {
                reader.end_sessions(wait, Schemas::OHLCV_1D, &mut chunk);
            }
            let bars = chunk.records().filter(|record| record.bytes[1] == rtype::OHLCV_1D);
            let at = core::mem::offset_of!(dbn::OhlcvMsg, volume);
            let volumes: Vec<u64> = bars.map(|bar| control::u64_at(bar.bytes, at)).collect();
            (entries, volumes, chunk.is_end_of_session)
        };
        let long = Duration::from_secs(3_600);
        let mut sequence = 1;
        for restart in 7..9 {
            log.add_trade_of(restarted(restart), 1, sequence);
            log.end_session(restart, 2);
            sequence += 1;
            assert_eq!(read(long), (2, vec![], false));
            assert_eq!(read(long), (0, vec![], false), "the venue may begin again");
        }
        assert_eq!(read(Duration::ZERO), (0, vec![6], true));
        assert_eq!(read(Duration::ZERO), (0, vec![], false), "a day ends once");
        log.end_session(8, 2);
        assert_eq!(read(long), (1, vec![], false));
        assert_eq!(read(Duration::ZERO), (0, vec![], false), "although its end is announced again");

        // It begins again after all, and another day follows at once.
        log.add_trade_of(restarted(9), 1, sequence);
        log.end_session(9, 2);
        let mut next_day = restarted(9);
        next_day[4] = 8;
        log.add_trade_of(next_day, 1, 86_400_000_000_000);
        assert_eq!(read(long), (3, vec![3], true), "the next day is in a chunk of its own");
        assert_eq!(read(long), (1, vec![], false));
    }

    /// A replay goes on with another reader for a session that has had the end of the day.
    #[test]
    fn a_reader_that_takes_over_at_the_end_of_a_day_does_not_end_it_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        log.add_trade_of(restarted(7), 1, 5);
        log.end_session(7, 2);
        let mut next_day = restarted(7);
        next_day[4] = 8;
        log.add_trade_of(next_day, 1, 86_400_000_000_000);
        let open = || DatasetReader::open(std::slice::from_ref(&log.source), &Arc::default()).unwrap();
        let mut former = open();
        let mut chunk = Chunk::default();
        former.read(Schemas::OHLCV_1D, None, &mut chunk);
        assert!(chunk.is_end_of_session && !chunk.bytes().is_empty());
        let (places, mut next) = (former.next_places(), open());
        while next.read(Schemas::default(), Some(&places), &mut Chunk::default()) > 0 {}
        let passed: Vec<_> = former.channels().iter().map(ChannelStream::passed).collect();
        next.inherit(&passed);
        for reader in [&mut former, &mut next] {
            let mut chunk = Chunk::default();
            assert_eq!(reader.read(Schemas::OHLCV_1D, None, &mut chunk), 1);
            assert!(!chunk.is_end_of_session && chunk.bytes().is_empty());
        }
    }
}
