//! One channel: from the entries of its log to the journal of its session's date.

use std::{path::PathBuf, sync::Arc};

use mdgw_feeds::channel::SchemaSet;
use mdgw_publog::{LogError, Reader, SeekResult};
use mdgw_sys::alarm::Alarm;
use mdgw_wire::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameHeader, FrameKind, GapBody},
    identity::{ChannelId, Feed, Session},
    published::packet::{Frames, PacketFlags},
};
use zerocopy::FromBytes as _;

use crate::{
    JournalError,
    journal_file::FrameName,
    names::{ChannelPosition, Missing},
    open_files::OpenFiles,
    symbols_service::SymbolsService,
};

/// A channel whose log is to be journaled.
#[derive(Clone, Debug)]
pub struct JournalChannel {
    /// Number of the channel.
    pub id: ChannelId,
    /// The feed whose records its log holds.
    pub feed: Feed,
    /// The schemas that it publishes.
    pub schemas: SchemaSet,
    /// Directory of its log's segments.
    pub log_directory: PathBuf,
    /// Instruments that it may have.
    pub instruments_max: u32,
    /// Where to ask for symbols that the log no longer has; `None` without a retransmission service.
    pub symbols: Option<Arc<SymbolsService>>,
}

/// Follows the log of a channel.
#[derive(Debug)]
pub(crate) struct ChannelTail {
    id: ChannelId,
    schemas: SchemaSet,
    reader: Reader,
    edge: ConsumerEdge,
    /// What the journal has of the channel; `None` before its first session.
    position: Option<ChannelPosition>,
    /// Number of the next entry, if the log has all since the position.
    expected_entry: Option<u64>,
    /// Whether entries between the position and the next one are missing.
    has_lost_entries: bool,
    symbols: Option<Arc<SymbolsService>>,
}

impl ChannelTail {
    /// Begins behind `position`; without one, at the log's oldest entry.
    pub(crate) fn open(channel: &JournalChannel, position: Option<ChannelPosition>) -> Result<Self, LogError> {
        let mut reader = Reader::open(&channel.log_directory, channel.id.0)?;
        let found = position.map(|at| reader.seek(at.session.to_bytes(), at.next)).transpose()?;
        let ts_recv_last = position.map_or(0, |at| at.ts_recv_last);
        Ok(Self {
            id: channel.id,
            schemas: channel.schemas,
            reader,
            edge: ConsumerEdge::behind(TsRecvMode::Capture, ts_recv_last),
            position,
            expected_entry: None,
            has_lost_entries: found == Some(SeekResult::OldestAvailable),
            symbols: channel.symbols.clone(),
        })
    }

    /// Opens the log again if it holds entries that this reader does not come to: somebody removed the log while the gateway was down,
    /// and its numbers began again. To be called now and then, when there is no next entry.
    pub(crate) fn reopen_if_replaced(&mut self, channel: &JournalChannel) -> Result<(), LogError> {
        let last = Reader::open(&channel.log_directory, channel.id.0)?.last_entry()?;
        let Some((session, next)) = last.and_then(|(session, next)| Some((Session::from_bytes(session)?, next))) else {
            return Ok(());
        };
        let is_ahead = self.position.is_none_or(|at| (session, next) > (at.session, at.next));
        // An entry that was committed meanwhile is found here.
        if is_ahead && self.peek().is_none() {
            tracing::warn!(channel_id = self.id.0, "journal: the publication log was replaced, opening it again");
            *self = Self::open(channel, self.position)?;
        }
        Ok(())
    }

    /// Where the journal is in this channel.
    pub(crate) fn position(&self) -> Option<ChannelPosition> {
        self.position
    }

    /// Commit time of the next entry, if there is one.
    pub(crate) fn peek(&mut self) -> Option<u64> {
        self.reader.peek().map(|entry| entry.ts_commit)
    }

    /// Reads one entry into the journal of its date. Returns whether there was one.
    pub(crate) fn read(&mut self, files: &mut OpenFiles) -> Result<bool, JournalError> {
        let Self { id, schemas, reader, edge, position, expected_entry, has_lost_entries, symbols } = self;
        let Some(entry) = reader.next() else { return Ok(false) };
        *has_lost_entries |= expected_entry.is_some_and(|expected| entry.number != expected);
        *expected_entry = Some(entry.number + 1);
        let Some(session) = Session::from_bytes(entry.session) else {
            tracing::warn!(
                channel_id = id.0,
                entry = entry.number,
                "journal: an entry of an unknown session is left out"
            );
            return Ok(true);
        };
        let at = match position {
            // A log that still has an earlier session.
            Some(at) if at.session > session => return Ok(true),
            Some(at) if at.session == session => at,
            before => {
                if let Some(at) = before.filter(|at| !at.has_ended && *has_lost_entries) {
                    declare_hole(files, Missing { channel: *id, session: at.session, first: at.next, count: 0 })?;
                }
                before.insert(ChannelPosition {
                    session,
                    next: FIRST_SEQUENCE,
                    next_part: 0,
                    ts_recv_last: edge.ts_recv_last(),
                    has_ended: false,
                })
            }
        };
        *has_lost_entries = false;
        if entry.first > at.next {
            let count = entry.first - at.next;
            declare_hole(files, Missing { channel: *id, session, first: at.next, count })?;
            (at.next, at.next_part) = (entry.first, 0);
            // Among the missing messages may be those that name the instruments of what follows.
            if let Some(symbols) = symbols {
                let file = files.of(session.date)?;
                for (instrument, symbol) in &*symbols.of_session(entry.session) {
                    file.symbol(session, *instrument, symbol.as_bytes());
                }
            }
        }
        for (header, body) in Frames::of_body(entry.payload) {
            match FrameKind::from_number(header.kind) {
                Some(FrameKind::Message) => message(*id, *schemas, edge, at, header, body, files)?,
                Some(FrameKind::Gap) => gap(*id, at, body, files)?,
                // They are no function of the input: two gateways have different ones.
                Some(FrameKind::Snapshot | FrameKind::SnapshotChunk | FrameKind::State) | None => {}
            }
        }
        if entry.next > at.next {
            (at.next, at.next_part) = (entry.next, 0);
        }
        at.ts_recv_last = edge.ts_recv_last();
        at.has_ended |= entry.flags & u16::from(PacketFlags::END_OF_SESSION.0) != 0;
        if let Some(file) = files.opened(session.date) {
            file.set_position(*id, *at);
        }
        Ok(true)
    }
}

/// One frame of a message: all of its records, or those of one part.
fn message(
    channel: ChannelId,
    schemas: SchemaSet,
    edge: &mut ConsumerEdge,
    at: &mut ChannelPosition,
    header: &FrameHeader,
    body: &[u8],
    files: &mut OpenFiles,
) -> Result<(), JournalError> {
    let (sequence, part) = (header.sequence.get(), header.part.get());
    let flags = FrameFlags(header.flags);
    if flags.contains(FrameFlags::LATE_FILL) || (sequence, part) < (at.next, at.next_part) {
        return Ok(());
    }
    let session = at.session;
    let hole_of = |first| Missing { channel, session, first, count: 1 };
    if at.next_part > 0 && sequence > at.next {
        // The other parts of the message before.
        declare_hole(files, hole_of(at.next))?;
        (at.next, at.next_part) = (at.next + 1, 0);
    }
    if part > if sequence == at.next { at.next_part } else { 0 } {
        declare_hole(files, hole_of(sequence))?;
        (at.next, at.next_part) = (sequence.saturating_add(1), 0);
        return Ok(());
    }
    let file = files.of(session.date)?;
    let (mut record_count, mut bytes_count, mut other_length) = (0, 0, 0_u32);
    edge.deliver(header, body, |output| match output {
        EdgeOutput::Mapping { id, symbol } => file.symbol(session, id, symbol),
        EdgeOutput::OtherLength { .. } => other_length += 1,
        EdgeOutput::Record { rtype, bytes } => {
            if SchemaSet::of_rtype(rtype).is_some_and(|schema| schemas.contains(schema)) {
                file.record(bytes);
                record_count += 1;
                bytes_count += bytes.len();
            }
        }
    });
    if other_length > 0 {
        tracing::warn!(
            channel_id = channel.0,
            sequence,
            other_length,
            "journal: records of another version are left out"
        );
    }
    file.frame(FrameName { channel, session, sequence, part }, record_count, bytes_count);
    (at.next, at.next_part) = if flags.contains(FrameFlags::LAST_PART) {
        (sequence.saturating_add(1), 0)
    } else {
        (sequence, part.saturating_add(1))
    };
    Ok(())
}

/// A gap that the gateway declared.
fn gap(channel: ChannelId, at: &mut ChannelPosition, body: &[u8], files: &mut OpenFiles) -> Result<(), JournalError> {
    let Ok((gap, _)) = GapBody::read_from_prefix(body) else { return Ok(()) };
    let (first, next) = (gap.first.get().max(at.next), gap.next.get());
    if next > first {
        files.of(at.session.date)?.gap(Missing { channel, session: at.session, first, count: next - first });
        (at.next, at.next_part) = (next, 0);
    }
    Ok(())
}

/// Notes messages that the log does not have. They are gone from this journal, not from the published output.
fn declare_hole(files: &mut OpenFiles, missing: Missing) -> Result<(), JournalError> {
    let Missing { channel, session, first, count } = missing;
    tracing::error!(
        alarm = Alarm::JournalHole.name(),
        channel_id = channel.0,
        %session,
        first,
        count,
        "journal: the publication log lacks messages (count 0: to the end of the session)"
    );
    files.of(session.date)?.hole(missing);
    Ok(())
}

/// Sequence of a session's first message.
const FIRST_SEQUENCE: u64 = 1;
