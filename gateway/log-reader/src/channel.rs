//! One channel's log.

use mdgw_publog::{EntryCopy, LogError, Reader, SeekResult};
use mdgw_wire::{
    identity::{ChannelId, Sequence, Session},
    published::{
        position::StreamPosition,
        receiver::{EntryReceiver, LogEntry, Output},
    },
};

use super::{LogChannel, LogReaderError, LogStart, Overrun, Polled};

#[derive(Debug)]
pub(crate) struct ChannelReader {
    reader: Reader,
    copy: EntryCopy,
    receiver: EntryReceiver,
    /// Of the reader's count of lost entries, those that were reported.
    lost_entries: u64,
    /// Entries are missing since the last one that was used.
    is_after_loss: bool,
    last_overrun: Option<Overrun>,
}

impl ChannelReader {
    pub(crate) fn open(channel: &LogChannel, start: LogStart, message_bytes_max: usize) -> Result<Self, LogError> {
        let mut reader = Reader::open(&channel.directory, channel.id.0)?;
        let mut receiver = EntryReceiver::new(channel.id, message_bytes_max);
        let mut is_after_loss = false;
        match (channel.resume, start) {
            (Some(position), _) => {
                let found = reader.seek(position.session.to_bytes(), position.sequence.0)?;
                receiver.resume(position);
                is_after_loss = found == SeekResult::OldestAvailable;
            }
            (None, LogStart::Oldest) => reader.seek_oldest()?,
            (None, LogStart::Live) => reader.seek_end()?,
            (None, LogStart::Session | LogStart::Day) => {
                let latest = reader.last_entry()?.map(|(session, _)| session);
                let day = |bytes| Session::from_bytes(bytes).map(|session| (session.feed, session.date));
                let first = match latest {
                    Some(latest) if start == LogStart::Day => {
                        reader.oldest_session(|session| day(session) == day(latest))?.or(Some(latest))
                    }
                    latest => latest,
                };
                match first {
                    Some(session) => _ = reader.seek(session, 0)?,
                    None => reader.seek_oldest()?,
                }
            }
        }
        let copy = EntryCopy::with_payload_bytes(PAYLOAD_BYTES);
        Ok(Self { reader, copy, receiver, lost_entries: 0, is_after_loss, last_overrun: None })
    }

    /// Delivers what is there, up to the channel's share of a turn.
    #[inline]
    pub(crate) fn read(
        &mut self,
        polled: &mut Polled,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), LogReaderError> {
        let Self { reader, copy, receiver, lost_entries, is_after_loss, last_overrun } = self;
        let channel = receiver.channel();
        for _ in 0..ENTRIES_PER_TURN_MAX {
            let entry = reader.next_copied(copy).map_err(|source| LogReaderError { channel, source })?;
            let Some(entry) = entry else { break };
            polled.entries += 1;
            let lost = reader.lost_entries() - *lost_entries;
            *lost_entries += lost;
            *is_after_loss |= lost > 0;
            if *is_after_loss && let Some(session) = Session::from_bytes(entry.session) {
                let until = StreamPosition::at(session, Sequence(entry.first));
                polled.overruns += 1;
                *last_overrun = Some(Overrun { entries: lost, from: receiver.position(), until });
            }
            let entry = LogEntry {
                session: entry.session,
                first: entry.first,
                next: entry.next,
                frame_count: entry.frame_count,
                flags: entry.flags,
                payload: entry.payload,
                is_after_loss: *is_after_loss,
            };
            // The receiver counts rejections; what an invalid entry held is reported as lost with the next one.
            let _counted = receiver.accept(&entry, deliver);
            *is_after_loss = false;
        }
        Ok(())
    }

    /// Somebody removed the log, and the gateway made it anew: reads it from its beginning. What was delivered is not delivered again.
    #[cold]
    pub(crate) fn reopen_if_replaced(&mut self) -> Result<(), LogReaderError> {
        let channel = self.id();
        let error = |source| LogReaderError { channel, source };
        if self.reader.is_replaced().map_err(error)? {
            self.is_after_loss = true;
            self.reader.seek_oldest().map_err(error)?;
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> ChannelId {
        self.receiver.channel()
    }

    pub(crate) fn position(&self) -> Option<StreamPosition> {
        self.receiver.position()
    }

    pub(crate) fn last_overrun(&self) -> Option<&Overrun> {
        self.last_overrun.as_ref()
    }

    pub(crate) fn receiver(&self) -> &EntryReceiver {
        &self.receiver
    }
}

/// Entries of one channel before the others have their turn.
const ENTRIES_PER_TURN_MAX: usize = 64;
/// A log's usual payload, bytes; the copy grows for longer ones.
const PAYLOAD_BYTES: usize = 1_472;
