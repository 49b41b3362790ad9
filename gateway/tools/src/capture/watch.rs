//! What sets a trigger off: gaps that no line filled, and packets that the feed's own code refuses.
//!
//! Packets go through the channels that the gateway runs, with their framing, sessions and arbitration. Nobody is asked
//! for what is missing, so a gap is declared when its lines have had the channel's gap timeout to fill it. What books
//! contradict is no fault here: a capture begins in the middle of a day and knows nothing of the orders before.

use std::path::Path;

use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram},
    drop_reason::DropReason,
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
    transport::recognise,
};

use super::frame::Frame;
use crate::replay::feed_guess;

/// What sets a trigger off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// Messages that no line brought.
    pub gap: bool,
    /// Packets and messages that can't be understood, and packets that the kernel dropped.
    pub fault: bool,
}

/// A channel whose lines are captured.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Its name.
    pub name: String,
    /// As configured; `None`: as its feed has it by default.
    pub config: Option<ChannelConfig>,
    /// Its feed, where it isn't configured; `None`: told by its packets.
    pub feed: Option<Feed>,
    /// Its lines, A first, by their positions among those that are captured.
    pub lines: Vec<usize>,
}

/// Something that set the trigger off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// What it was.
    pub(super) what: String,
    /// When.
    pub(super) time_ns: u64,
}

/// The channels, driven on the clock of the stamps.
#[derive(Debug)]
pub(super) struct Watch {
    triggers: Triggers,
    channels: Vec<State>,
    /// Channel and line of each captured line.
    routes: Vec<Option<(usize, Line)>>,
    now: MonoNs,
}

#[derive(Debug)]
struct State {
    watched: Watched,
    /// `None` until its feed is known.
    channel: Option<Channel>,
    gap_messages: u64,
    faults: u64,
}

impl Watch {
    pub(super) fn new(triggers: Triggers, channels: &[Watched]) -> Self {
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
        let channels = channels.iter().map(|watched| State::new(watched.clone())).collect();
        Self { triggers, channels, routes, now: MonoNs(0) }
    }

    pub(super) fn triggers(&self) -> Triggers {
        self.triggers
    }

    /// A frame came; what it set off.
    pub(super) fn accept(&mut self, line: usize, frame: &Frame<'_>) -> Option<Seen> {
        let &(channel, line) = self.routes.get(line)?.as_ref()?;
        let (_, bytes) = frame.datagram()?;
        // What was due before this frame was stamped comes first, as in a live channel.
        let overdue = self.pass_time(frame.time_ns.saturating_sub(1));
        let state = self.channels.get_mut(channel)?;
        let channel = state.channel_for(bytes)?;
        channel.accept(Datagram { line, bytes, ts_recv: UnixNs(frame.time_ns) }, self.now, &mut Nowhere);
        // Asked in any case: what is news now is none later.
        let news = state.news(self.triggers, frame.time_ns);
        overdue.or(news)
    }

    /// It is that late: gaps that had their time are declared.
    pub(super) fn pass_time(&mut self, now_ns: u64) -> Option<Seen> {
        self.now = self.now.max(MonoNs(now_ns));
        let mut seen = None;
        for state in &mut self.channels {
            let Some(channel) = &mut state.channel else { continue };
            if channel.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                channel.on_deadline(self.now, &mut Nowhere);
                let news = state.news(self.triggers, self.now.0);
                seen = seen.or(news);
            }
        }
        seen
    }
}

impl State {
    fn new(watched: Watched) -> Self {
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
        // Books are not asked; they need not hold a day.
        config.books.orders_max = config.books.orders_max.min(BOOKS_MAX);
        config.books.levels_max = config.books.levels_max.min(BOOKS_MAX);
        self.channel = Some(Channel::new(config));
    }

    /// The channel, begun as soon as a packet tells its feed.
    fn channel_for(&mut self, bytes: &[u8]) -> Option<&mut Channel> {
        if self.channel.is_none() {
            let feed = feed_guess::guess(recognise(bytes)?, Path::new(&self.watched.name)).feed;
            self.begin(ChannelConfig::new(ChannelId(0), feed));
        }
        self.channel.as_mut()
    }

    /// What is new since it was last asked.
    fn news(&mut self, triggers: Triggers, time_ns: u64) -> Option<Seen> {
        let channel = self.channel.as_ref()?;
        let refused = channel.drops().iter().chain(channel.arbiter_drops().iter());
        let refused = refused.filter(|(reason, _)| is_fault(*reason)).map(|(_, count)| count).sum::<u64>();
        let faults = refused + channel.counters().messages_refused;
        let gap_messages = channel.counters().gap_messages;
        let missing = gap_messages - std::mem::replace(&mut self.gap_messages, gap_messages);
        let new_faults = faults - std::mem::replace(&mut self.faults, faults).min(faults);
        let name = &self.watched.name;
        let what = if triggers.gap && missing > 0 {
            let (session, next) = channel.position()?;
            format!("channel {name}: a gap of {missing} messages in session {session}, now at {}", next.0)
        } else if triggers.fault && new_faults > 0 {
            format!("channel {name}: {new_faults} packets or messages that can't be understood")
        } else {
            return None;
        };
        Some(Seen { what, time_ns })
    }
}

/// Refusals that say that the feed is not as it should be. Copies are everyday; late ones and a full window follow from
/// a gap, which is told as one.
fn is_fault(reason: DropReason) -> bool {
    !reason.is_expected() && !matches!(reason, DropReason::LateAfterGap | DropReason::WindowFull)
}

/// Orders and levels of a book that nobody looks at.
const BOOKS_MAX: u32 = 4_096;

/// Takes what channels make.
struct Nowhere;

impl FrameSink for Nowhere {
    fn frame(&mut self, _meta: &FrameMeta, _record_count: u16, _body: &[u8]) {}
    fn settled(&mut self, _next: Sequence) {}
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

    fn watch(triggers: Triggers) -> Watch {
        let both = Watched { name: "nasdaq".to_owned(), config: None, feed: None, lines: vec![0, 1] };
        Watch::new(triggers, &[both])
    }

    fn accept(watch: &mut Watch, line: usize, time_ns: u64, payload: &[u8]) -> Option<Seen> {
        let src = "10.0.0.1:1".parse().unwrap();
        let content = Content::Datagram { header: [0; FRAME_HEADER_BYTES], payload, src, is_cut: false };
        watch.accept(line, &Frame { time_ns, stamp: StampKind::Kernel, content })
    }

    #[test]
    fn a_packet_that_one_line_lost_sets_nothing_off_and_one_that_both_lost_does() {
        let packets = packets();
        let mut watch = watch(Triggers { gap: true, fault: true });
        for (number, packet) in packets[..10].iter().enumerate() {
            let time_ns = (1 + number as u64) * MS;
            if number != 4 {
                assert_eq!(accept(&mut watch, 0, time_ns, packet), None);
            }
            assert_eq!(accept(&mut watch, 1, time_ns + 1_000, packet), None);
        }
        assert_eq!(accept(&mut watch, 0, 12 * MS, &packets[11]), None, "it may still come");
        let seen = watch.pass_time(30 * MS).expect("nobody brought it");
        assert!(seen.what.contains("nasdaq: a gap of"), "{}", seen.what);
        assert_eq!(watch.pass_time(60 * MS), None, "told once");
    }

    #[test]
    fn what_cannot_be_understood_is_a_fault_and_no_gap() {
        let packets = packets();
        let mut faults = watch(Triggers { gap: false, fault: true });
        let mut gaps = watch(Triggers { gap: true, fault: false });
        for watch in [&mut faults, &mut gaps] {
            assert_eq!(accept(watch, 0, MS, &packets[0]), None);
        }
        let cut = &packets[1][..packets[1].len() - 3];
        assert_eq!(accept(&mut gaps, 0, 2 * MS, cut), None);
        let seen = accept(&mut faults, 0, 2 * MS, cut).expect("a packet that is cut");
        assert!(seen.what.contains("can't be understood"), "{}", seen.what);
        assert_eq!(accept(&mut faults, 1, 2 * MS, &packets[1]), None, "the other line had it whole");
    }

    #[test]
    fn packets_of_no_feed_begin_no_channel() {
        let mut watch = watch(Triggers { gap: true, fault: true });
        assert_eq!(accept(&mut watch, 0, MS, b"anything"), None);
        assert!(watch.channels[0].channel.is_none());
    }
}
