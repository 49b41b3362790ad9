//! Statistics of a file: message mix, rates, bursts, sessions and gaps, for each line.
//!
//! A line is an address (for IEX also the channel number at this address). Sessions are determined by the channel's own
//! [`SessionTracker`]; gaps are those of one line, before arbitration.

mod burst;
mod table;

use std::{collections::BTreeMap, net::SocketAddr};

use mdgw_captures::capture_file::{CaptureCounts, CapturedDatagram};
use mdgw_feeds::{
    channel::{SessionMatch, SessionTracker},
    drop_reason::DropReason,
    identity::{Feed, Sequence, Session},
    time::UnixNs,
    transport::{DetectedProtocol, Packet, PacketKind, Transport, iextp, moldudp64::MoldUdp64},
    venue::{
        iex::{admin, deep, tops},
        nasdaq::itch50,
    },
};
use serde::{Serialize, Serializer};

pub(crate) use self::burst::Burst;
use self::burst::BurstMeter;
use super::dissect::{Framing, PacketView};

/// Counts the datagrams of one file.
#[derive(Debug)]
pub struct Statistics {
    feed: Option<Feed>,
    lines: Vec<LineStatistics>,
    line_last: usize,
    /// Datagrams of unknown feeds.
    unrecognised: u64,
    /// Datagrams of the gateway's own output protocol, which `mdgw ha verify` judges.
    published: u64,
    /// Packets of lines beyond [`LINES_MAX`].
    over_limit: u64,
}

/// Counts the packets of one line.
#[derive(Debug)]
struct LineStatistics {
    protocol: DetectedProtocol,
    dst: SocketAddr,
    /// Number of the stream, if several share an address (IEX-TP).
    channel: Option<u32>,
    packets: u64,
    heartbeats: u64,
    payload_bytes: u64,
    messages: u64,
    types: Box<[u64; 256]>,
    malformed_messages: BTreeMap<&'static str, u64>,
    malformed_packets: BTreeMap<&'static str, u64>,
    span_ns: (u64, u64),
    bursts: BurstMeter,
    tracker: SessionTracker,
    expected: Option<Sequence>,
    sessions: Vec<SessionStatistics>,
    session_count: u64,
    gaps: Vec<GapStatistics>,
    gap_count: u64,
    missing_messages: u64,
    duplicates: u64,
    stale_packets: u64,
}

/// One session of a line.
#[derive(Clone, Debug, Serialize)]
struct SessionStatistics {
    #[serde(serialize_with = "as_text")]
    session: Session,
    /// Sequence of the first message.
    first: u64,
    /// Sequence after the last message.
    next: u64,
    gaps: u64,
    missing_messages: u64,
    time_ns: u64,
}

/// Sequences that the line skipped: `[first, next)`.
#[derive(Clone, Debug, Serialize)]
struct GapStatistics {
    #[serde(serialize_with = "as_text")]
    session: Session,
    first: u64,
    next: u64,
    /// Capture time of the packet after the gap.
    time_ns: u64,
}

impl Statistics {
    /// `feed` names the sessions if the packets leave several feeds possible.
    #[must_use]
    pub fn new(feed: Option<Feed>) -> Self {
        Self { feed, lines: Vec::new(), line_last: 0, unrecognised: 0, published: 0, over_limit: 0 }
    }

    /// Counts a datagram with all its messages.
    #[inline]
    pub fn datagram(&mut self, datagram: &CapturedDatagram<'_>, framing: Framing<'_>) {
        let Some((line, packet)) = self.transport(datagram, framing) else { return };
        match line.protocol {
            DetectedProtocol::Itch50 => {
                line.count_messages::<MoldUdp64>(packet.messages, |message| itch50::Message::parse(message).err())
            }
            DetectedProtocol::IexTops => {
                line.count_messages::<iextp::Tops>(packet.messages, |message| tops::Message::parse(message).err())
            }
            DetectedProtocol::IexDeep => {
                line.count_messages::<iextp::Deep>(packet.messages, |message| deep::Message::parse(message).err())
            }
        }
        line.count(datagram.time_ns, u64::from(packet.count));
    }

    /// Counts a datagram of which `packet.messages` passed a filter. If `is_wanted` is false, the packet itself did not
    /// pass, and its messages are not counted.
    pub fn count_filtered(&mut self, packet: &PacketView<'_>, is_wanted: bool) {
        let Some((line, _)) = self.transport(&packet.datagram, packet.framing) else { return };
        if !is_wanted {
            return;
        }
        for message in &packet.messages {
            line.message(message.bytes, message.message.err());
        }
        line.count(packet.datagram.time_ns, packet.messages.len() as u64);
    }

    /// Counts the packet itself; returns its line, if it has one.
    #[inline]
    fn transport<'a>(
        &mut self,
        datagram: &CapturedDatagram<'_>,
        framing: Framing<'a>,
    ) -> Option<(&mut LineStatistics, Packet<'a>)> {
        let (protocol, packet) = match framing {
            Framing::Packet(protocol, packet) => (protocol, Ok(packet)),
            Framing::Broken(protocol, reason) => (protocol, Err(reason)),
            Framing::Published(_) | Framing::BrokenPublished(_) => {
                self.published += 1;
                return None;
            }
            Framing::UnidentifiedMold(_) | Framing::Unrecognised => {
                self.unrecognised += 1;
                return None;
            }
        };
        let channel = packet.ok().and_then(|packet| channel_of(protocol, &packet));
        let line = self.line(protocol, datagram, channel)?;
        line.packets += 1;
        line.payload_bytes += datagram.payload.len() as u64;
        line.span_ns.0 = line.span_ns.0.min(datagram.time_ns);
        line.span_ns.1 = line.span_ns.1.max(datagram.time_ns);
        match packet {
            Ok(packet) => {
                line.track_sequence(&packet, datagram.time_ns);
                Some((line, packet))
            }
            Err(reason) => {
                *line.malformed_packets.entry(reason.name()).or_default() += 1;
                None
            }
        }
    }

    #[inline]
    fn line(
        &mut self,
        protocol: DetectedProtocol,
        datagram: &CapturedDatagram<'_>,
        channel: Option<u32>,
    ) -> Option<&mut LineStatistics> {
        let dst = datagram.dst;
        // A packet with malformed framing has no usable channel number.
        let takes = |line: &LineStatistics| {
            line.dst == dst && line.protocol == protocol && (channel.is_none() || line.channel == channel)
        };
        if !self.lines.get(self.line_last).is_some_and(takes) {
            self.line_last = match self.lines.iter().position(takes) {
                Some(index) => index,
                None if self.lines.len() < LINES_MAX => {
                    let named = self.feed.filter(|feed| protocol.feeds().contains(feed));
                    let feed = named.or_else(|| protocol.feeds().first().copied())?;
                    self.lines.push(LineStatistics::new(protocol, dst, channel, feed, datagram.time_ns));
                    self.lines.len() - 1
                }
                None => {
                    self.over_limit += 1;
                    return None;
                }
            };
        }
        self.lines.get_mut(self.line_last)
    }

    /// Returns the counts, together with those of the file.
    #[must_use]
    pub fn summary(&self, path: &str, counts: CaptureCounts) -> FileStatistics {
        FileStatistics {
            path: path.to_owned(),
            frames: counts.frames,
            datagrams: counts.datagrams,
            not_udp: counts.not_udp,
            fragments: counts.fragments,
            malformed: counts.malformed,
            truncated: counts.truncated,
            frames_without_timestamp: counts.untimed,
            unrecognised: self.unrecognised,
            published: self.published,
            lines_over_limit: self.over_limit,
            lines: self.lines.iter().map(LineStatistics::summary).collect(),
        }
    }
}

impl LineStatistics {
    fn new(protocol: DetectedProtocol, dst: SocketAddr, channel: Option<u32>, feed: Feed, time_ns: u64) -> Self {
        Self {
            protocol,
            dst,
            channel,
            packets: 0,
            heartbeats: 0,
            payload_bytes: 0,
            messages: 0,
            types: Box::new([0; 256]),
            malformed_messages: BTreeMap::new(),
            malformed_packets: BTreeMap::new(),
            span_ns: (time_ns, time_ns),
            bursts: BurstMeter::new(),
            tracker: SessionTracker::new(feed, None, None),
            expected: None,
            sessions: Vec::new(),
            session_count: 0,
            gaps: Vec::new(),
            gap_count: 0,
            missing_messages: 0,
            duplicates: 0,
            stale_packets: 0,
        }
    }

    #[inline]
    fn count_messages<T: Transport>(&mut self, mut block: &[u8], refusal: impl Fn(&[u8]) -> Option<DropReason>) {
        while let Some(message) = T::next_message(&mut block) {
            self.message(message, refusal(message));
        }
    }

    #[inline]
    fn message(&mut self, message: &[u8], refusal: Option<DropReason>) {
        if let Some(reason) = refusal {
            *self.malformed_messages.entry(reason.name()).or_default() += 1;
        }
        let code = message.first().copied().unwrap_or_default();
        if let Some(count) = self.types.get_mut(usize::from(code)) {
            *count += 1;
        }
    }

    #[inline]
    fn count(&mut self, time_ns: u64, messages: u64) {
        if messages > 0 {
            self.messages += messages;
            self.bursts.add(time_ns, messages);
        }
    }

    /// Tracks the sequences of one line.
    #[inline]
    fn track_sequence(&mut self, packet: &Packet<'_>, time_ns: u64) {
        self.heartbeats += u64::from(packet.kind == PacketKind::Heartbeat);
        if packet.unsequenced {
            return;
        }
        match self.tracker.classify(packet, UnixNs(time_ns), self.expected) {
            SessionMatch::Current => {}
            SessionMatch::New(session) => self.begin_session(session, packet, time_ns),
            SessionMatch::Ended | SessionMatch::Unconfirmed => {
                self.stale_packets += 1;
                return;
            }
        }
        let (first, next) = (packet.first.0, packet.next().0);
        let expected = self.expected.map_or(first, |expected| expected.0);
        if first > expected {
            self.record_gap(expected, first, time_ns);
        }
        self.duplicates += next.min(expected).saturating_sub(first);
        if next > expected {
            self.expected = Some(Sequence(next));
            if let Some(session) = self.sessions.last_mut() {
                session.next = next;
            }
        }
    }

    #[cold]
    fn begin_session(&mut self, session: Session, packet: &Packet<'_>, time_ns: u64) {
        let first = packet.first.0;
        self.session_count += 1;
        self.expected = Some(packet.first);
        if self.sessions.len() == LISTED_MAX {
            self.sessions.remove(0);
        }
        self.sessions.push(SessionStatistics { session, first, next: first, gaps: 0, missing_messages: 0, time_ns });
    }

    #[cold]
    fn record_gap(&mut self, first: u64, next: u64, time_ns: u64) {
        self.gap_count += 1;
        self.missing_messages += next - first;
        let Some(session) = self.sessions.last_mut() else { return };
        session.gaps += 1;
        session.missing_messages += next - first;
        if self.gaps.len() < LISTED_MAX {
            self.gaps.push(GapStatistics { session: session.session, first, next, time_ns });
        }
    }

    fn summary(&self) -> LineSummary {
        let (first_ns, last_ns) = self.span_ns;
        let seconds = UnixNs(last_ns).since(UnixNs(first_ns)).map_or(0.0, as_seconds);
        LineSummary {
            protocol: self.protocol.to_string(),
            dst: self.dst.to_string(),
            channel: self.channel,
            first_ns,
            last_ns,
            packets: self.packets,
            heartbeats: self.heartbeats,
            payload_bytes: self.payload_bytes,
            messages: self.messages,
            messages_per_second: per_second(self.messages, seconds),
            packets_per_second: per_second(self.packets, seconds),
            bursts: self.bursts.fullest().to_vec(),
            types: self.type_counts(),
            malformed_messages: self.malformed_messages.clone(),
            malformed_packets: self.malformed_packets.clone(),
            session_count: self.session_count,
            sessions: self.sessions.clone(),
            gap_count: self.gap_count,
            missing_messages: self.missing_messages,
            gaps: self.gaps.clone(),
            duplicates: self.duplicates,
            stale_packets: self.stale_packets,
        }
    }

    /// Messages by type, the most frequent first.
    fn type_counts(&self) -> Vec<TypeCount> {
        let mut type_counts: Vec<TypeCount> = (0_u8..=255)
            .zip(self.types.iter())
            .filter(|(_, count)| **count > 0)
            .map(|(code, messages)| TypeCount {
                code: if code.is_ascii_graphic() { char::from(code).to_string() } else { format!("{code:#04x}") },
                name: type_name(self.protocol, code),
                messages: *messages,
            })
            .collect();
        type_counts.sort_by_key(|entry| std::cmp::Reverse(entry.messages));
        type_counts
    }
}

/// Statistics of one file.
#[derive(Clone, Debug, Serialize)]
pub struct FileStatistics {
    /// Path as given.
    pub path: String,
    frames: u64,
    datagrams: u64,
    not_udp: u64,
    fragments: u64,
    malformed: u64,
    truncated: u64,
    frames_without_timestamp: u64,
    unrecognised: u64,
    published: u64,
    lines_over_limit: u64,
    lines: Vec<LineSummary>,
}

/// Statistics of one line.
#[derive(Clone, Debug, Serialize)]
struct LineSummary {
    protocol: String,
    dst: String,
    channel: Option<u32>,
    first_ns: u64,
    last_ns: u64,
    packets: u64,
    heartbeats: u64,
    payload_bytes: u64,
    messages: u64,
    messages_per_second: f64,
    packets_per_second: f64,
    bursts: Vec<Burst>,
    types: Vec<TypeCount>,
    malformed_messages: BTreeMap<&'static str, u64>,
    malformed_packets: BTreeMap<&'static str, u64>,
    session_count: u64,
    sessions: Vec<SessionStatistics>,
    gap_count: u64,
    missing_messages: u64,
    gaps: Vec<GapStatistics>,
    /// Duplicate messages, and messages that arrived after their gap.
    duplicates: u64,
    /// Packets of ended or unconfirmed sessions.
    stale_packets: u64,
}

/// Count of a message type.
#[derive(Clone, Debug, Serialize)]
struct TypeCount {
    code: String,
    name: Option<&'static str>,
    messages: u64,
}

/// Name of a message type.
fn type_name(protocol: DetectedProtocol, code: u8) -> Option<&'static str> {
    let tables: [&[(u8, &'static str, usize)]; 2] = match protocol {
        DetectedProtocol::Itch50 => [itch50::Message::TYPES, &[]],
        DetectedProtocol::IexTops => [tops::Message::TYPES, admin::Admin::TYPES],
        DetectedProtocol::IexDeep => [deep::Message::TYPES, admin::Admin::TYPES],
    };
    tables.into_iter().flatten().find(|(known, ..)| *known == code).map(|(_, name, _)| *name)
}

/// The stream of a packet, if several share an address.
#[inline]
fn channel_of(protocol: DetectedProtocol, packet: &Packet<'_>) -> Option<u32> {
    (protocol != DetectedProtocol::Itch50).then(|| iextp::channel_id(packet.session))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "a span for people")]
fn as_seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn as_text<S: Serializer>(session: &Session, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(session)
}

/// Lines of a file that are counted separately.
const LINES_MAX: usize = 256;
/// Sessions (the latest) and gaps (the first) of a line that are listed; all are counted.
const LISTED_MAX: usize = 1_000;
