//! Reference output of a feed: the same packets through the same channel, unimpaired, on one line, without a gateway.

use std::hash::{DefaultHasher, Hasher as _};

use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram},
    transport::detect_protocol,
};
use mdgw_wire::{
    consumer_edge::first_record,
    frame::{FrameKind, FrameMeta, FrameSink},
    identity::{Feed, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};

use super::source::{Source, SourceError};
use crate::source::FeedSource;

/// Digest of a stream: two streams with the same digest published the same content in the same order.
#[derive(Clone, Debug, Default)]
pub struct StreamDigest {
    hasher: DefaultHasher,
    /// Sessions begun.
    pub sessions: u64,
    /// Messages that produced records.
    pub messages: u64,
    /// Records of these messages.
    pub records: u64,
}

impl StreamDigest {
    /// Adds the beginning of a session.
    pub fn session(&mut self, session: Session) {
        self.sessions += 1;
        self.hasher.write(&session.to_bytes());
    }

    /// Adds the records of one message as published, without receive times.
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

/// Recognises the feed by its packets; any ITCH counts as Nasdaq.
///
/// # Errors
/// The feed can't be read.
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

/// Computes the expected digest, and the number of packets and messages of the source. A source that fails early is
/// digested up to the failure.
///
/// # Errors
/// The source can't be opened.
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

/// Heartbeats do not identify a feed; a message within this many packets does.
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
