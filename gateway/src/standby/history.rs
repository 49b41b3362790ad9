//! What the venue has sent lately, as it came: so that what one gateway lost on all lines the other can give it.
//!
//! Kept by a cold thread from sockets of its own, so the straight line does nothing for it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use mdgw_feeds::{
    drop_reason::DropReason,
    identity::{ChannelId, Feed, Sequence},
    transport::{Packet, PacketKind, Transport as _, VenueSession, iextp, moldudp64},
};

/// Datagrams of all channels, some of each.
#[derive(Debug)]
pub struct InputHistory {
    channels: Mutex<BTreeMap<ChannelId, Kept>>,
    bytes_max: usize,
}

/// One channel's, of the numbering that came last.
#[derive(Debug)]
struct Kept {
    feed: Feed,
    session: VenueSession,
    /// By first sequence: the first sequence behind, and the datagram.
    packets: BTreeMap<u64, (u64, Box<[u8]>)>,
    bytes: usize,
    /// The venue began again under one and the same name: whose a packet is can't be told any more.
    is_ambiguous: bool,
}

impl InputHistory {
    /// Keeps so many bytes of each channel.
    #[must_use]
    pub fn new(channels: impl IntoIterator<Item = (ChannelId, Feed)>, bytes_max: usize) -> Self {
        let kept = |(channel, feed)| {
            let session = VenueSession::default();
            (channel, Kept { feed, session, packets: BTreeMap::new(), bytes: 0, is_ambiguous: false })
        };
        Self { channels: Mutex::new(channels.into_iter().map(kept).collect()), bytes_max }
    }

    /// A datagram came on one of the channel's lines.
    ///
    /// # Errors
    /// When it is none of the channel's protocol.
    pub fn keep(&self, channel: ChannelId, datagram: &[u8]) -> Result<(), DropReason> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = channels.get_mut(&channel).ok_or(DropReason::ChannelUnknown)?;
        let packet = parse(kept.feed, datagram)?;
        if packet.kind != PacketKind::Messages || packet.unsequenced {
            return Ok(());
        }
        if packet.session != kept.session {
            *kept = Kept { session: packet.session, packets: BTreeMap::new(), bytes: 0, is_ambiguous: false, ..*kept };
        }
        let (first, next) = (packet.first.0, packet.next().0);
        // A copy of the beginning that comes late is none.
        let is_copy = kept.packets.get(&first).is_some_and(|(_, known)| **known == *datagram);
        kept.is_ambiguous |= packet.restart_marker && !kept.packets.is_empty() && !is_copy;
        if kept.packets.get(&first).is_some_and(|(known, _)| *known >= next) {
            return Ok(());
        }
        kept.bytes += datagram.len();
        if let Some((_, old)) = kept.packets.insert(first, (next, datagram.into())) {
            kept.bytes -= old.len();
        }
        while kept.bytes > self.bytes_max
            && let Some((_, (_, oldest))) = kept.packets.pop_first()
        {
            kept.bytes -= oldest.len();
        }
        Ok(())
    }

    /// Datagrams that hold some of `[first, next)`, oldest first, no more than `packets_max`.
    #[must_use]
    pub fn range(&self, channel: ChannelId, first: Sequence, next: Sequence, packets_max: usize) -> Vec<Box<[u8]>> {
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = channels.get(&channel).filter(|kept| !kept.is_ambiguous && first < next) else {
            return Vec::new();
        };
        // The packet before may reach into the range.
        let before = kept.packets.range(..=first.0).next_back().map_or(first.0, |(begin, _)| *begin);
        let packets = kept.packets.range(before..next.0).filter(|(_, (behind, _))| *behind > first.0);
        packets.take(packets_max).map(|(_, (_, datagram))| datagram.clone()).collect()
    }
}

fn parse(feed: Feed, datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    match feed {
        Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => moldudp64::MoldUdp64::parse(datagram),
        Feed::IexTops => iextp::Tops::parse(datagram),
        Feed::IexDeep => iextp::Deep::parse(datagram),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use mdgw_feeds::{
        time::UnixNs,
        transport::iextp::{PacketWriter, Position, Stream},
    };

    use super::*;

    const CHANNEL: ChannelId = ChannelId(3);

    /// Messages of 40 bytes, each behind its length.
    fn packet(session: u32, first: u64, count: u64) -> Vec<u8> {
        let stream_offset = (first - 1) * 42;
        let stream = Stream { message_protocol_id: iextp::PROTOCOL_DEEP_1_0, channel_id: 1, session_id: session };
        let position = Position { first: Sequence(first), stream_offset, send_time: UnixNs(5) };
        let mut bytes = Vec::new();
        let mut writer = PacketWriter::begin(&mut bytes, stream, position, 1_400);
        for _ in 0..count {
            assert!(writer.push(&[7; 40]));
        }
        let _ = writer.finish();
        bytes
    }

    fn history(bytes_max: usize) -> InputHistory {
        InputHistory::new([(CHANNEL, Feed::IexDeep)], bytes_max)
    }

    fn firsts(history: &InputHistory, first: u64, next: u64) -> Vec<u64> {
        let packets = history.range(CHANNEL, Sequence(first), Sequence(next), 3);
        packets.iter().map(|bytes| iextp::Deep::parse(bytes).unwrap().first.0).collect()
    }

    #[test]
    fn what_was_kept_is_found_by_any_part_of_it() {
        let history = history(1 << 20);
        for first in (1..100).step_by(3) {
            for _copy in 0..2 {
                history.keep(CHANNEL, &packet(9, first, 3)).unwrap();
            }
        }
        assert_eq!(firsts(&history, 5, 6), [4]);
        assert_eq!(firsts(&history, 6, 8), [4, 7]);
        assert_eq!(firsts(&history, 7, 8), [7]);
        assert_eq!(firsts(&history, 10, 90), [10, 13, 16], "no more than asked for");
        assert_eq!(firsts(&history, 100, 105), [0; 0]);
        assert_eq!(firsts(&history, 8, 8), [0; 0]);
        assert!(history.range(ChannelId(99), Sequence(1), Sequence(2), 3).is_empty());
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room_and_so_does_an_old_numbering() {
        let bytes = packet(9, 1, 3).len();
        let history = history(5 * bytes);
        for first in (1..100).step_by(3) {
            history.keep(CHANNEL, &packet(9, first, 3)).unwrap();
        }
        assert_eq!(firsts(&history, 1, 80), [0; 0]);
        assert_eq!(firsts(&history, 90, 100), [88, 91, 94]);
        history.keep(CHANNEL, &packet(10, 1, 3)).unwrap();
        assert_eq!(firsts(&history, 90, 100), [0; 0]);
        assert_eq!(firsts(&history, 1, 100), [1]);
    }

    #[test]
    fn a_numbering_begun_again_under_its_name_is_not_answered_for() {
        let history = history(1 << 20);
        for first in [1, 4, 7] {
            history.keep(CHANNEL, &packet(9, first, 3)).unwrap();
        }
        assert_eq!(firsts(&history, 4, 7), [4]);
        history.keep(CHANNEL, &packet(9, 1, 2)).unwrap();
        assert_eq!(firsts(&history, 4, 7), [0; 0]);
        assert_eq!(history.keep(CHANNEL, b"noise"), Err(DropReason::HeaderTruncated));
    }
}
