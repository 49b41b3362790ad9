//! Captures of a feed, message by message, merged as by `mdgw merge`.

use std::{collections::VecDeque, path::Path};

use mdgw_feeds::{
    identity::Feed,
    time::{TradingDate, UnixNs},
    transport::{Transport as _, VenueSession, iextp::Tops, moldudp64::MoldUdp64},
};

use super::{
    DiffError, DiffOptions,
    compare::{Item, ItemName, Side},
};
use crate::{
    inspect::text::ClockNs,
    merge::{Merger, PacketAddresses, PacketSink},
    replay::routes,
};

/// The messages of all channels of a capture, each once and in order.
#[derive(Debug)]
pub(super) struct FeedMessages {
    merger: Merger,
    packets: StepPackets,
    /// Position of each channel.
    positions: Vec<ChannelPosition>,
    queue: VecDeque<Item>,
    has_ended: bool,
}

/// Position of a channel. `restart` counts how often the sequences began again under the same session name.
#[derive(Clone, Copy, Debug, Default)]
struct ChannelPosition {
    session: VenueSession,
    restart: u32,
    next: u64,
}

/// Packets that the merger delivered in one step: times and end offsets, and the payloads back to back.
#[derive(Debug, Default)]
struct StepPackets {
    times_ns: Vec<(u64, usize)>,
    bytes: Vec<u8>,
}

impl PacketSink for StepPackets {
    fn datagram(&mut self, time_ns: u64, _: &PacketAddresses, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.times_ns.push((time_ns, self.bytes.len()));
    }
}

impl FeedMessages {
    pub(super) fn open(path: &Path, options: &DiffOptions) -> Result<Self, DiffError> {
        let merger = Merger::open(&[path.to_owned()], options.feed, options.date, 0)?;
        Ok(Self {
            merger,
            packets: StepPackets::default(),
            positions: Vec::new(),
            queue: VecDeque::new(),
            has_ended: false,
        })
    }

    /// Turns the packets delivered for a channel into items.
    fn enqueue(&mut self, channel_index: usize) {
        let Some(feed) = self.merger.feed(channel_index) else { return };
        if self.positions.len() <= channel_index {
            self.positions.resize(channel_index + 1, ChannelPosition::default());
        }
        let Some(position) = self.positions.get_mut(channel_index) else { return };
        let mut begin = 0;
        for (time_ns, end) in self.packets.times_ns.drain(..) {
            let bytes = self.packets.bytes.get(begin..end).unwrap_or_default();
            begin = end;
            let Ok(packet) = routes::parse(feed, bytes) else { continue };
            // Messages without sequence are numbered in arrival order.
            let first = if packet.unsequenced { position.next } else { packet.first.0 };
            if packet.count == 0 {
                continue;
            }
            if packet.session != position.session {
                *position = ChannelPosition { session: packet.session, restart: 0, next: first };
            } else if first < position.next {
                position.restart += 1;
            }
            let stream =
                (u64::from(feed as u16) | u64::from(position.restart) << 16, u128::from_le_bytes(packet.session.0));
            let mut rest = packet.messages;
            let mut sequence = first;
            while let Some(message) = next_message(feed, &mut rest) {
                let name = ItemName { stream, sequence, index: 0 };
                self.queue.push_back(Item { name, content: message.to_vec(), local: time_ns, place: time_ns });
                sequence += 1;
            }
            position.next = sequence;
        }
        self.packets.bytes.clear();
    }
}

impl Side for FeedMessages {
    fn next(&mut self) -> Result<Option<Item>, DiffError> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Ok(Some(item));
            }
            if self.has_ended {
                return Ok(None);
            }
            if let Some(channel_index) = self.merger.step(&mut self.packets)? {
                self.enqueue(channel_index);
                continue;
            }
            self.has_ended = true;
            for channel_index in 0..self.merger.channel_count() {
                self.merger.finish_channel(channel_index, &mut self.packets);
                self.enqueue(channel_index);
            }
        }
    }

    fn name(&self, name: &ItemName) -> String {
        format!("{}, sequence {}", self.stream(name), name.sequence)
    }

    fn stream(&self, name: &ItemName) -> String {
        let feed = u16::try_from(name.stream.0 & 0xffff).ok().and_then(Feed::from_number);
        let session = name.stream.1.to_le_bytes();
        let session = match feed {
            Some(feed) if feed.is_by_order() => session.escape_ascii().to_string().replace("\\x00", ""),
            _ => format!(
                "session {}",
                u64::from_le_bytes(session.first_chunk().copied().unwrap_or_default()) & 0xffff_ffff
            ),
        };
        let feed = feed.map_or("unknown", Feed::name);
        let restart = name.stream.0 >> 16;
        let restart = if restart > 0 { format!(", restart {}", restart + 1) } else { String::new() };
        format!("{feed} {}{restart}", session.trim_end())
    }

    fn place(&self, place: u64) -> String {
        format!("at {} {}", TradingDate::in_utc(UnixNs(place)), ClockNs(place))
    }

    fn may_repeat(&self) -> bool {
        false
    }

    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
        if a.len() != b.len() {
            return Some(format!("{} bytes in A, {} in B", a.len(), b.len()));
        }
        let at = a.iter().zip(b).position(|(a, b)| a != b)?;
        let hex = |bytes: &[u8]| -> String {
            bytes.get(at..).unwrap_or_default().iter().take(HEX_BYTES).map(|byte| format!("{byte:02x}")).collect()
        };
        Some(format!("differs from byte {at}: {} in A, {} in B", hex(a), hex(b)))
    }

    fn damages(&self) -> Vec<String> {
        self.merger.damages().iter().map(|damage| format!("{damage}: {}", damage.fault)).collect()
    }

    fn file_bytes_read(&self) -> u64 {
        self.merger.file_bytes_read()
    }
}

fn next_message<'a>(feed: Feed, block: &mut &'a [u8]) -> Option<&'a [u8]> {
    if feed.is_by_order() { MoldUdp64::next_message(block) } else { Tops::next_message(block) }
}

/// Bytes of a message shown in a difference.
const HEX_BYTES: usize = 16;
