//! What a feed must come out as: the same packets through the same channel, undamaged, on one line, without a gateway.

use std::hash::{DefaultHasher, Hasher as _};

use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram},
    consumer_edge::first_record,
    frame::{FrameKind, FrameMeta, FrameSink},
    identity::{Feed, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
    transport::detect_protocol,
};

use super::source::{Source, SourceError};
use crate::source::FeedSource;

/// Content of a stream, in little: two streams with the same digest said the same in the same order.
#[derive(Clone, Debug, Default)]
pub struct StreamDigest {
    hasher: DefaultHasher,
    /// Sessions.
    pub sessions: u64,
    /// Messages that produced something.
    pub messages: u64,
    /// Records.
    pub records: u64,
}

impl StreamDigest {
    /// A session begins.
    pub fn session(&mut self, session: Session) {
        self.sessions += 1;
        self.hasher.write(&session.to_bytes());
    }

    /// One message's records, as they are published: without receive times.
    pub fn message(&mut self, sequence: Sequence, body: &[u8]) {
        self.messages += 1;
        self.hasher.write_u64(sequence.0);
        self.hasher.write(body);
        let mut rest = body;
        while let Some(record) = first_record(rest) {
            self.records += 1;
            rest = &rest[record.len()..];
        }
    }
}

impl PartialEq for StreamDigest {
    fn eq(&self, other: &Self) -> bool {
        self.hasher.finish() == other.hasher.finish() && self.messages == other.messages
    }
}

/// What the feed is, as far as its packets tell: Nasdaq for any ITCH.
///
/// # Errors
/// When it can't be read.
pub fn recognise_feed(feed_source: &FeedSource) -> Result<Option<Feed>, SourceError> {
    let mut source = Source::open(feed_source)?;
    for _ in 0..PACKETS_EXAMINED_MAX {
        let Some(packet) = source.next_packet()? else { break };
        if let Some(recognised) = detect_protocol(&packet.bytes) {
            return Ok(recognised.feeds().first().copied());
        }
    }
    Ok(None)
}

/// What must come out, and how many packets and messages go in. A source that breaks off is digested up to there.
///
/// # Errors
/// When it can't be opened.
pub fn digest(feed_source: &FeedSource, config: ChannelConfig) -> Result<(StreamDigest, u64, u64), SourceError> {
    let mut source = Source::open(feed_source)?;
    let mut channel = Channel::new(config);
    let mut sink = DigestSink(StreamDigest::default());
    let (mut packets, mut messages) = (0, 0);
    while let Ok(Some(packet)) = source.next_packet() {
        packets += 1;
        messages += packet.message_count;
        let datagram = Datagram { line: Line::A, bytes: &packet.bytes, ts_recv: UnixNs(packet.time_ns) };
        channel.accept(datagram, MonoNs(packet.time_ns), &mut sink);
    }
    channel.finish(&mut sink);
    Ok((sink.0, packets, messages))
}

/// A heartbeat here and there doesn't tell; a message within so many packets does.
const PACKETS_EXAMINED_MAX: usize = 10_000;

struct DigestSink(StreamDigest);

impl FrameSink for DigestSink {
    fn frame(&mut self, meta: &FrameMeta, _record_count: u16, body: &[u8]) {
        if meta.kind == FrameKind::Message {
            self.0.message(meta.sequence, body);
        }
    }

    fn covered_through(&mut self, _next: Sequence) {}

    fn session(&mut self, session: Session, _next: Sequence) {
        self.0.session(session);
    }

    fn end_of_session(&mut self) {}
}
