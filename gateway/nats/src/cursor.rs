//! The messages of one channel, made of its publication log, from any place on.
//!
//! Symbols are learnt from the beginning of the session, so a cursor begins at the oldest entry of the log and makes no messages of what
//! the stream already has.

use std::collections::{BTreeMap, VecDeque};

use mdgw_feeds::channel::SchemaSet;
use mdgw_publog::{LogError, Reader};
use mdgw_wire::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameHeader, FrameKind, GapBody},
    identity::{ChannelId, Feed, InstrumentId, Session},
    published::packet::{Frames, PacketFlags},
};
use zerocopy::FromBytes as _;

use crate::{
    SinkChannel,
    message::SinkMessage,
    name::{ChannelEnd, Content, Name, Place},
    subject,
};

/// Reads a log as messages.
#[derive(Debug)]
pub(crate) struct Cursor {
    channel: SinkChannel,
    reader: Reader,
    maker: MessageMaker,
    /// Number of the next entry.
    expected_entry: Option<u64>,
    /// Whether entries of the session before the next entry are missing.
    has_lost_entries: bool,
    /// Where the channel goes on behind the last message that [`Self::pop`] returned, or behind the stream's end.
    begin: Option<ChannelEnd>,
}

/// Makes messages of frames.
#[derive(Debug)]
struct MessageMaker {
    id: ChannelId,
    feed: Feed,
    schemas: SchemaSet,
    prefix: String,
    edge: ConsumerEdge,
    /// Tokens of the instruments' symbols.
    symbols: BTreeMap<InstrumentId, String>,
    session: Option<Session>,
    /// What follows was not made into messages yet; `None` in front of the log's first entry.
    at: Option<ChannelEnd>,
    made: VecDeque<SinkMessage>,
    unknown_symbols: u64,
}

impl Cursor {
    /// Opens the log and begins behind `begin`; without it, at the log's oldest entry.
    pub(crate) fn open(channel: SinkChannel, begin: Option<ChannelEnd>) -> Result<Self, LogError> {
        let reader = Reader::open(&channel.log_directory, channel.id.0)?;
        let maker = MessageMaker {
            id: channel.id,
            feed: channel.feed,
            schemas: channel.schemas,
            prefix: channel.subject_prefix.clone(),
            edge: ConsumerEdge::behind(TsRecvMode::Capture, begin.map_or(0, |end| end.ts_recv)),
            symbols: BTreeMap::new(),
            session: None,
            at: begin,
            made: VecDeque::new(),
            unknown_symbols: 0,
        };
        // The oldest entry may be of a later session than the one to go on in.
        let has_lost_entries = begin.is_some();
        Ok(Self { channel, reader, maker, expected_entry: None, has_lost_entries, begin })
    }

    /// Goes on behind `end`: forward in place, backward by opening the log again.
    pub(crate) fn move_to(&mut self, end: Option<ChannelEnd>) -> Result<(), LogError> {
        if end.map(order) == self.begin.map(order) && end.is_some() {
            return Ok(());
        }
        let (Some(end), Some(begin)) = (end, self.begin) else {
            *self = Self::open(self.channel.clone(), end)?;
            return Ok(());
        };
        if order(end) < order(begin) {
            *self = Self::open(self.channel.clone(), Some(end))?;
            return Ok(());
        }
        let maker = &mut self.maker;
        while let Some(front) = maker.made.front_mut() {
            if order(front.end) <= order(end) {
                maker.made.pop_front();
                continue;
            }
            match front.name.content {
                _ if front.name.first >= end.place => {}
                Content::Gap { .. } | Content::Hole { .. } => front.rename(end.place),
                // The stream has only some of these records: another configuration made its messages.
                Content::Records { .. } | Content::End => {
                    *self = Self::open(self.channel.clone(), Some(end))?;
                    return Ok(());
                }
            }
            break;
        }
        if maker.made.is_empty() && maker.at.is_none_or(|at| order(at) < order(end)) {
            maker.at = Some(end);
        }
        maker.edge = ConsumerEdge::behind(TsRecvMode::Capture, maker.edge.ts_recv_last().max(end.ts_recv));
        self.begin = Some(end);
        Ok(())
    }

    /// The next message, if the log has one. Reads at most a number of entries, so that a caller can do other things meanwhile.
    pub(crate) fn peek(&mut self) -> Option<&SinkMessage> {
        for _ in 0..ENTRIES_MAX {
            if !self.maker.made.is_empty() || !self.read() {
                break;
            }
        }
        self.maker.made.front()
    }

    /// Takes the message that [`Self::peek`] returned.
    pub(crate) fn pop(&mut self) -> Option<SinkMessage> {
        let message = self.maker.made.pop_front()?;
        self.begin = Some(message.end);
        Some(message)
    }

    /// Records of instruments whose symbols the log does not have.
    pub(crate) fn unknown_symbols(&self) -> u64 {
        self.maker.unknown_symbols
    }

    /// Opens the log again if it holds entries that this reader does not come to: somebody removed the log while the gateway was down,
    /// and its numbers began again. To be called now and then, when there is no next message.
    pub(crate) fn reopen_if_replaced(&mut self) -> Result<(), LogError> {
        let last = Reader::open(&self.channel.log_directory, self.channel.id.0)?.last_entry()?;
        let Some((session, next)) = last.and_then(|(session, next)| Some((Session::from_bytes(session)?, next))) else {
            return Ok(());
        };
        let is_ahead = self.maker.at.is_none_or(|at| Place::message(session, next) > at.place);
        // An entry that was committed meanwhile is found here.
        if is_ahead && self.reader.peek().is_none() {
            tracing::warn!(channel_id = self.channel.id.0, "nats: the publication log was replaced, opening it again");
            *self = Self::open(self.channel.clone(), self.begin)?;
        }
        Ok(())
    }

    /// Reads one entry. Returns whether there was one.
    fn read(&mut self) -> bool {
        let Self { channel, reader, maker, expected_entry, has_lost_entries, .. } = self;
        let Some(entry) = reader.next() else { return false };
        *has_lost_entries |= expected_entry.is_some_and(|expected| entry.number != expected);
        *expected_entry = Some(entry.number + 1);
        let Some(session) = Session::from_bytes(entry.session) else {
            tracing::warn!(
                channel_id = channel.id.0,
                entry = entry.number,
                "nats: an entry of an unknown session is left out"
            );
            return true;
        };
        if maker.session != Some(session) {
            maker.session = Some(session);
            maker.symbols.clear();
        }
        match maker.at {
            // The stream has all of that session. Its symbols are those of another day.
            Some(at) if at.place.session > session => return true,
            Some(at) if at.place.session == session => {}
            before => {
                if let Some(at) = before.filter(|at| !at.has_ended && *has_lost_entries) {
                    maker.missing(at.place, Content::Hole { next: u64::MAX });
                }
                let (place, ts_recv) = (Place::beginning(session), maker.edge.ts_recv_last());
                maker.at = Some(ChannelEnd { place, has_ended: false, ts_recv });
            }
        }
        *has_lost_entries = false;
        maker.entry(session, entry.first, entry.next, entry.payload);
        if entry.flags & u16::from(PacketFlags::END_OF_SESSION.0) != 0 {
            maker.end_of_session(session, entry.next);
        }
        true
    }
}

impl MessageMaker {
    fn entry(&mut self, session: Session, first: u64, next: u64, payload: &[u8]) {
        let Some(at) = self.at else { return };
        if first > at.place.sequence {
            self.missing(at.place, Content::Hole { next: first });
        }
        for (header, body) in Frames::of_body(payload) {
            match FrameKind::from_number(header.kind) {
                Some(FrameKind::Message) => self.frame(session, header, body),
                Some(FrameKind::Gap) => {
                    let Ok((gap, _)) = GapBody::read_from_prefix(body) else { continue };
                    let Some(at) = self.at else { continue };
                    let from = Place::message(session, gap.first.get()).max(at.place);
                    if gap.next.get() > from.sequence {
                        self.missing(from, Content::Gap { next: gap.next.get() });
                    }
                }
                // They are no function of the input: two gateways have different ones.
                Some(FrameKind::Snapshot | FrameKind::SnapshotChunk | FrameKind::State) | None => {}
            }
        }
        self.advance(Place::message(session, next));
    }

    /// One frame of a message: all of its records, or those of one part.
    fn frame(&mut self, session: Session, header: &FrameHeader, body: &[u8]) {
        let flags = FrameFlags(header.flags);
        let Some(at) = self.at else { return };
        let place = Place { session, sequence: header.sequence.get(), part: header.part.get(), index: 0 };
        let Place { sequence, part, .. } = place;
        if flags.contains(FrameFlags::LATE_FILL) {
            return;
        }
        let is_behind = (sequence, part) >= (at.place.sequence, at.place.part);
        if is_behind {
            if at.place.part > 0 && sequence > at.place.sequence {
                // The other parts of the message before.
                let next = at.place.sequence.saturating_add(1);
                self.missing(at.place, Content::Hole { next });
            }
            let expected_part = if sequence == at.place.sequence { at.place.part } else { 0 };
            if part > expected_part {
                let from = Place::message(session, sequence).max(at.place);
                self.missing(from, Content::Hole { next: sequence.saturating_add(1) });
                return;
            }
        }
        self.records(place, header, body, is_behind.then_some(at.place));
        let behind = if flags.contains(FrameFlags::LAST_PART) {
            Place::message(session, sequence.saturating_add(1))
        } else {
            Place { part: part.saturating_add(1), ..place }
        };
        self.advance(behind);
    }

    /// The records of a frame from `from` on; without it, only the symbols.
    fn records(&mut self, place: Place, header: &FrameHeader, body: &[u8], from: Option<Place>) {
        let Self { id, feed, schemas, prefix, edge, symbols, made, unknown_symbols, .. } = self;
        let ts_recv_is_known = header.ts_recv.get() != UNDEFINED_TIME;
        let ts_recv = ts_recv_is_known.then(|| header.ts_recv.get().max(edge.ts_recv_last()));
        let end_ts_recv = ts_recv.unwrap_or_else(|| edge.ts_recv_last());
        let (mut index, mut other_length) = (0_u16, 0_u32);
        let mut run: Option<(SchemaSet, InstrumentId, SinkMessage)> = None;
        edge.deliver(header, body, |output| match output {
            EdgeOutput::Mapping { id, symbol } => {
                symbols.insert(id, subject::escape(symbol));
            }
            EdgeOutput::OtherLength { .. } => {
                other_length += 1;
                index = index.saturating_add(1);
            }
            EdgeOutput::Record { rtype, bytes } => {
                let first = Place { index, ..place };
                index = index.saturating_add(1);
                let schema = SchemaSet::of_rtype(rtype).filter(|schema| schemas.contains(*schema));
                let Some(schema) = schema.filter(|_| from.is_some_and(|from| first >= from)) else { return };
                let instrument = instrument_of(bytes);
                if let Some((_, _, message)) = run
                    .as_mut()
                    .filter(|(of, whose, message)| (*of, *whose) == (schema, instrument) && message.end.place == first)
                {
                    message.append(bytes);
                    return;
                }
                made.extend(run.take().map(|(_, _, message)| message));
                let token = symbols.get(&instrument).cloned().unwrap_or_else(|| {
                    *unknown_symbols += 1;
                    subject::token_of_number(instrument)
                });
                let subject = subject::records_subject(prefix, *feed, schema_name(schema), &token);
                let name = Name { feed: *feed, channel: *id, first, content: Content::Records { count: 0 } };
                let mut message = SinkMessage::new(name, subject, ts_recv, end_ts_recv);
                message.append(bytes);
                run = Some((schema, instrument, message));
            }
        });
        made.extend(run.map(|(_, _, mut message)| {
            if FrameFlags(header.flags).contains(FrameFlags::LAST_PART) {
                message.complete();
            }
            message
        }));
        if other_length > 0 {
            let (channel_id, sequence) = (id.0, place.sequence);
            tracing::warn!(channel_id, sequence, other_length, "nats: records of another version are left out");
        }
    }

    /// Messages that are missing.
    fn missing(&mut self, first: Place, content: Content) {
        let name = Name { feed: self.feed, channel: self.id, first, content };
        self.push(name, subject::gap_subject(&self.prefix, self.feed), false);
        self.advance(name.next());
    }

    fn end_of_session(&mut self, session: Session, next: u64) {
        let Some(at) = self.at.filter(|at| at.place.session == session && !at.has_ended) else { return };
        let first = Place::message(session, next).max(at.place);
        let name = Name { feed: self.feed, channel: self.id, first, content: Content::End };
        self.push(name, subject::end_subject(&self.prefix, self.feed), true);
        self.at = Some(ChannelEnd { place: first, has_ended: true, ..at });
    }

    fn push(&mut self, name: Name, subject: String, has_ended: bool) {
        let mut message = SinkMessage::new(name, subject, None, self.edge.ts_recv_last());
        message.end.has_ended = has_ended;
        self.made.push_back(message);
    }

    fn advance(&mut self, to: Place) {
        if let Some(at) = &mut self.at {
            at.place = at.place.max(to);
            at.ts_recv = self.edge.ts_recv_last();
        }
    }
}

/// Order of ends: an end of session follows the messages that it is behind.
fn order(end: ChannelEnd) -> (Place, bool) {
    (end.place, end.has_ended)
}

fn instrument_of(record: &[u8]) -> InstrumentId {
    let bytes = record.get(4..8).and_then(|bytes| bytes.try_into().ok());
    InstrumentId(bytes.map_or(0, u32::from_le_bytes))
}

fn schema_name(schema: SchemaSet) -> &'static str {
    SchemaSet::NAMES.into_iter().find(|(known, _)| *known == schema).map_or("other", |(_, name)| name)
}

/// `ts_recv` of a frame without a receive time.
const UNDEFINED_TIME: u64 = u64::MAX;
/// Entries between two returns to the caller.
const ENTRIES_MAX: usize = 1_024;

#[cfg(test)]
mod tests;
