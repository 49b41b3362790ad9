//! Watches for trigger events: gaps that no line filled, and packets that the channel rejects as faulty.
//!
//! Packets go through the channels that the gateway runs, with framing, sessions and arbitration. No retransmission is
//! requested, so a gap is declared after the channel's gap timeout. Inconsistencies of books are not faults here: a
//! capture may begin in the middle of a day and lacks the orders before.

use std::path::Path;

use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram},
    drop_reason::DropReason,
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
    transport::detect_protocol,
};

use super::frame::Frame;
use crate::replay::feed_guess;

/// Events that fire the trigger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// Messages missing on all lines.
    pub gap: bool,
    /// Malformed packets and messages, and packets that the kernel dropped.
    pub fault: bool,
}

/// A channel on the captured lines.
#[derive(Clone, Debug)]
pub struct WatchedChannel {
    /// Name of the line.
    pub name: String,
    /// Its configuration; `None`: the default of its feed.
    pub config: Option<ChannelConfig>,
    /// Its feed, if it is not configured; `None`: determined from its packets.
    pub feed: Option<Feed>,
    /// Its lines, A first, as indexes of the captured lines.
    pub lines: Vec<usize>,
}

/// An event that fires the trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TriggerEvent {
    /// Description of the event.
    pub(super) reason: String,
    /// Time of the event, ns since 1970 UTC.
    pub(super) time_ns: u64,
}

/// The channels, driven on the clock of the timestamps.
#[derive(Debug)]
pub(super) struct TriggerWatch {
    triggers: Triggers,
    channels: Vec<WatchedChannelState>,
    /// Channel and line of each captured line.
    routes: Vec<Option<(usize, Line)>>,
    now: MonoNs,
}

#[derive(Debug)]
struct WatchedChannelState {
    watched: WatchedChannel,
    /// `None` until the feed is known.
    channel: Option<Channel>,
    gap_messages: u64,
    faults: u64,
}

impl TriggerWatch {
    pub(super) fn new(triggers: Triggers, channels: &[WatchedChannel]) -> Self {
        let mut routes = Vec::new();
        for (index, channel) in channels.iter().enumerate() {
            for (number, line) in channel.lines.iter().enumerate() {
                routes.resize(routes.len().max(line + 1), None);
                let route = routes.get_mut(*line).zip(u8::try_from(number).ok());
                if let Some((route, number)) = route {
                    *route = Some((index, Line(number)));
                }
            }
        }
        let channels = channels.iter().map(|watched| WatchedChannelState::new(watched.clone())).collect();
        Self { triggers, channels, routes, now: MonoNs(0) }
    }

    pub(super) fn triggers(&self) -> Triggers {
        self.triggers
    }

    /// Processes a frame; returns the event that it caused.
    pub(super) fn accept(&mut self, line: usize, frame: &Frame<'_>) -> Option<TriggerEvent> {
        let &(channel, line) = self.routes.get(line)?.as_ref()?;
        let (_, bytes) = frame.datagram()?;
        // Deadlines before this frame's timestamp fire first, as in a live channel.
        let overdue = self.advance_time(frame.time_ns.saturating_sub(1));
        let state = self.channels.get_mut(channel)?;
        let channel = state.channel_for(bytes)?;
        channel.accept(Datagram { line, bytes, ts_recv: UnixNs(frame.time_ns) }, self.now, &mut DiscardSink);
        // Called in any case: the counts that it compares with are updated by the call.
        let new_event = state.new_event(self.triggers, frame.time_ns);
        overdue.or(new_event)
    }

    /// Advances the time: gaps past their deadline are declared.
    pub(super) fn advance_time(&mut self, now_ns: u64) -> Option<TriggerEvent> {
        self.now = self.now.max(MonoNs(now_ns));
        let mut seen = None;
        for state in &mut self.channels {
            let Some(channel) = &mut state.channel else { continue };
            if channel.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                channel.on_deadline(self.now, &mut DiscardSink);
                let new_event = state.new_event(self.triggers, self.now.0);
                seen = seen.or(new_event);
            }
        }
        seen
    }
}

impl WatchedChannelState {
    fn new(watched: WatchedChannel) -> Self {
        let feed = watched.feed;
        let config = watched.config.clone().or_else(|| feed.map(|feed| ChannelConfig::new(ChannelId(0), feed)));
        let mut state = Self { watched, channel: None, gap_messages: 0, faults: 0 };
        if let Some(config) = config {
            state.begin(config);
        }
        state
    }

    fn begin(&mut self, mut config: ChannelConfig) {
        config.arbiter.lines = u8::try_from(self.watched.lines.len().max(1)).unwrap_or(u8::MAX).min(Line::RECOVERY.0);
        config.arbiter.recovery = None;
        // The books are not used, so they need not hold a day.
        config.books.orders_max = config.books.orders_max.min(BOOK_ENTRIES_MAX);
        config.books.levels_max = config.books.levels_max.min(BOOK_ENTRIES_MAX);
        self.channel = Some(Channel::new(config));
    }

    /// The channel; created as soon as a packet identifies its feed.
    fn channel_for(&mut self, bytes: &[u8]) -> Option<&mut Channel> {
        if self.channel.is_none() {
            let feed = feed_guess::guess(detect_protocol(bytes)?, Path::new(&self.watched.name)).feed;
            self.begin(ChannelConfig::new(ChannelId(0), feed));
        }
        self.channel.as_mut()
    }

    /// New gaps and faults since the last call.
    fn new_event(&mut self, triggers: Triggers, time_ns: u64) -> Option<TriggerEvent> {
        let channel = self.channel.as_ref()?;
        let refused = channel.drops().iter().chain(channel.arbiter_drops().iter());
        let refused = refused.filter(|(reason, _)| is_fault(*reason)).map(|(_, count)| count).sum::<u64>();
        let faults = refused + channel.counters().messages_refused;
        let gap_messages = channel.counters().gap_messages;
        let missing = gap_messages - std::mem::replace(&mut self.gap_messages, gap_messages);
        let new_faults = faults - std::mem::replace(&mut self.faults, faults).min(faults);
        let name = &self.watched.name;
        let reason = if triggers.gap && missing > 0 {
            let (session, next) = channel.position()?;
            format!("channel {name}: gap of {missing} messages in session {session}; next sequence {}", next.0)
        } else if triggers.fault && new_faults > 0 {
            format!("channel {name}: {new_faults} packets or messages that cannot be decoded")
        } else {
            return None;
        };
        Some(TriggerEvent { reason, time_ns })
    }
}

/// Whether a rejection indicates a fault of the feed. Duplicates are normal. Late packets and a full window follow from
/// a gap, which is reported itself.
fn is_fault(reason: DropReason) -> bool {
    !reason.is_expected() && !matches!(reason, DropReason::LateAfterGap | DropReason::WindowFull)
}

/// Most orders and levels of the books, which are not used here.
const BOOK_ENTRIES_MAX: u32 = 4_096;

/// Discards the channels' output.
struct DiscardSink;

impl FrameSink for DiscardSink {
    fn frame(&mut self, _meta: &FrameMeta, _record_count: u16, _body: &[u8]) {}
    fn covered_through(&mut self, _next: Sequence) {}
    fn session(&mut self, _session: Session, _next: Sequence) {}
    fn end_of_session(&mut self) {}
}

#[cfg(test)]
mod tests {
    use mdgw_captures::capture_file::FRAME_HEADER_BYTES;
    use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, ItchPackets};
    use mdgw_sys::batch::StampKind;

    use super::*;
    use crate::capture::frame::Content;

    const MS: u64 = 1_000_000;

    fn packets() -> Vec<Vec<u8>> {
        let day = ItchDay { message_count: 400, stock_count: 4, live_orders: 20, ..ItchDay::default() };
        let mut source = ItchPackets::new(ItchGenerator::new(day), *b"TEST000001");
        let mut packet = Vec::new();
        let mut packets = Vec::new();
        while source.next_packet(&mut packet).is_some() {
            packets.push(packet.clone());
        }
        assert!(packets.len() > 20);
        packets
    }

    fn watch(triggers: Triggers) -> TriggerWatch {
        let both = WatchedChannel { name: "nasdaq".to_owned(), config: None, feed: None, lines: vec![0, 1] };
        TriggerWatch::new(triggers, &[both])
    }

    fn accept(watch: &mut TriggerWatch, line: usize, time_ns: u64, payload: &[u8]) -> Option<TriggerEvent> {
        let src = "10.0.0.1:1".parse().unwrap();
        let content = Content::Datagram { header: [0; FRAME_HEADER_BYTES], payload, src, is_truncated: false };
        watch.accept(line, &Frame { time_ns, stamp: StampKind::Kernel, content })
    }

    #[test]
    fn only_a_packet_lost_on_both_lines_triggers() {
        let packets = packets();
        let mut watch = watch(Triggers { gap: true, fault: true });
        for (number, packet) in packets[..10].iter().enumerate() {
            let time_ns = (1 + number as u64) * MS;
            if number != 4 {
                assert_eq!(accept(&mut watch, 0, time_ns, packet), None);
            }
            assert_eq!(accept(&mut watch, 1, time_ns + 1_000, packet), None);
        }
        assert_eq!(accept(&mut watch, 0, 12 * MS, &packets[11]), None, "the message may still arrive");
        let seen = watch.advance_time(30 * MS).expect("nobody brought it");
        assert!(seen.reason.contains("nasdaq: gap of"), "{}", seen.reason);
        assert_eq!(watch.advance_time(60 * MS), None, "reported once");
    }

    #[test]
    fn an_undecodable_packet_is_a_fault_and_no_gap() {
        let packets = packets();
        let mut faults = watch(Triggers { gap: false, fault: true });
        let mut gaps = watch(Triggers { gap: true, fault: false });
        for watch in [&mut faults, &mut gaps] {
            assert_eq!(accept(watch, 0, MS, &packets[0]), None);
        }
        let cut = &packets[1][..packets[1].len() - 3];
        assert_eq!(accept(&mut gaps, 0, 2 * MS, cut), None);
        let seen = accept(&mut faults, 0, 2 * MS, cut).expect("a packet that is cut");
        assert!(seen.reason.contains("cannot be decoded"), "{}", seen.reason);
        assert_eq!(accept(&mut faults, 1, 2 * MS, &packets[1]), None, "the other line delivered the packet intact");
    }

    #[test]
    fn unrecognised_packets_create_no_channel() {
        let mut watch = watch(Triggers { gap: true, fault: true });
        assert_eq!(accept(&mut watch, 0, MS, b"anything"), None);
        assert!(watch.channels[0].channel.is_none());
    }
}
