//! The channels of one dataset as one stream: each channel in its order, channels by commit time.

use mdgw_publog::LogError;

use super::{
    channel::{ChannelSource, ChannelStream},
    chunk::Chunk,
};
use crate::schema::Schemas;

/// Reads the logs of a dataset.
#[derive(Debug)]
pub(crate) struct DatasetReader {
    channels: Vec<ChannelStream>,
}

impl DatasetReader {
    /// Begins at the oldest entry of each log.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub(crate) fn open(sources: &[ChannelSource]) -> Result<Self, LogError> {
        Ok(Self { channels: sources.iter().map(ChannelStream::open).collect::<Result<_, _>>()? })
    }

    /// Reads entries until the chunk is full, `until` is reached in each channel, or nothing further is committed.
    /// Returns the number of entries.
    pub(crate) fn read(&mut self, wanted: Schemas, until: Option<&[u64]>, chunk: &mut Chunk) -> usize {
        chunk.first_entries = self.next_entries();
        let had_ended = self.has_ended();
        let mut entries = 0;
        while !chunk.is_full() && entries < ENTRIES_MAX {
            let next = self.channels.iter_mut().enumerate().filter_map(|(index, channel)| {
                let (number, ts_commit) = channel.peek()?;
                let is_before = until.is_none_or(|until| until.get(index).is_some_and(|until| number < *until));
                is_before.then_some((ts_commit, index))
            });
            let Some((_, index)) = next.min() else { break };
            if !self.channels[index].read(wanted, chunk) {
                break;
            }
            entries += 1;
        }
        chunk.is_end_of_session = !had_ended && self.has_ended();
        entries
    }

    /// For each channel, the entry number behind the last entry read.
    pub(crate) fn next_entries(&self) -> Vec<u64> {
        self.channels.iter().map(ChannelStream::next_entry).collect()
    }

    /// The streams of the channels, in the order of their sources.
    pub(crate) fn channels(&self) -> &[ChannelStream] {
        &self.channels
    }

    fn has_ended(&self) -> bool {
        self.channels.iter().all(ChannelStream::has_ended)
    }
}

/// Entries per chunk, so that a run of entries without records does not keep the reader from other work.
pub(crate) const ENTRIES_MAX: usize = 4_096;
