//! What the venue has sent lately, as it came: so that what one gateway lost on all lines the other can give it.
//!
//! Kept by a cold thread from sockets of its own, so the straight line does nothing for it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
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

/// How much of a channel's present numbering is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryExtent {
    /// First sequence.
    pub from: Sequence,
    /// From there, the first sequence that is missing.
    pub until: Sequence,
    /// First sequence behind all that is kept.
    pub next: Sequence,
    /// Bytes of it, with what keeping them takes.
    pub bytes: usize,
    /// Some of it had to go for want of room: a gateway that comes back has to copy the state.
    pub is_cut: bool,
}

/// One channel's, of the numbering that came last.
#[derive(Debug)]
struct Kept {
    feed: Feed,
    session: VenueSession,
    /// By first sequence: the first sequence behind, and the datagram.
    packets: BTreeMap<u64, (u64, Box<[u8]>)>,
    bytes: usize,
    /// From the first that is kept up to there is no hole.
    until: u64,
    /// Some of the numbering had to go for want of room.
    is_cut: bool,
    /// The venue began again under one and the same name: whose a packet is can't be told any more.
    is_ambiguous: bool,
}

impl InputHistory {
    /// Keeps so many bytes of each channel.
    #[must_use]
    pub fn new(channels: impl IntoIterator<Item = (ChannelId, Feed)>, bytes_max: usize) -> Self {
        let kept = |(channel, feed)| (channel, Kept::new(feed, VenueSession::default()));
        Self { channels: Mutex::new(channels.into_iter().map(kept).collect()), bytes_max }
    }

    /// A datagram came on one of the channel's lines.
    ///
    /// # Errors
    /// When it is none of the channel's protocol.
    pub fn keep(&self, channel: ChannelId, datagram: &[u8]) -> Result<(), DropReason> {
        let mut channels = self.lock();
        let kept = channels.get_mut(&channel).ok_or(DropReason::ChannelUnknown)?;
        let packet = parse(kept.feed, datagram)?;
        if packet.kind != PacketKind::Messages || packet.unsequenced {
            return Ok(());
        }
        if packet.session != kept.session {
            *kept = Kept::new(kept.feed, packet.session);
        }
        // A copy of the beginning that comes late is none.
        let is_copy = kept.packets.get(&packet.first.0).is_some_and(|(_, known)| **known == *datagram);
        kept.is_ambiguous |= packet.restart_marker && !kept.packets.is_empty() && !is_copy;
        let was_cut = kept.is_cut;
        kept.put(&packet, datagram, self.bytes_max);
        if kept.is_cut && !was_cut {
            tracing::warn!(
                alarm = "history-full",
                channel = channel.0,
                history_bytes = self.bytes_max,
                "a gateway that comes back has to copy this one's state: the whole session isn't kept any more"
            );
        }
        Ok(())
    }

    /// What the other gateway has sent of the numbering that is kept: lines that this one heard too late did not bring it.
    ///
    /// # Errors
    /// When it is none of the channel's protocol, or of another numbering.
    pub fn complete(&self, channel: ChannelId, datagram: &[u8]) -> Result<(), DropReason> {
        let mut channels = self.lock();
        let kept = channels.get_mut(&channel).ok_or(DropReason::ChannelUnknown)?;
        let packet = parse(kept.feed, datagram)?;
        if packet.session != kept.session || packet.kind != PacketKind::Messages || packet.unsequenced {
            return Err(DropReason::SessionStale);
        }
        kept.put(&packet, datagram, self.bytes_max);
        Ok(())
    }

    /// How much is kept of a channel's present numbering; nothing where that can't be told.
    #[must_use]
    pub fn extent(&self, channel: ChannelId) -> Option<HistoryExtent> {
        let channels = self.lock();
        let kept = channels.get(&channel).filter(|kept| !kept.is_ambiguous)?;
        let ((from, _), (_, (next, _))) = (kept.packets.first_key_value()?, kept.packets.last_key_value()?);
        Some(HistoryExtent {
            from: Sequence(*from),
            until: Sequence(kept.until),
            next: Sequence(*next),
            bytes: kept.bytes,
            is_cut: kept.is_cut,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ChannelId, Kept>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Datagrams that hold some of `[first, next)`, oldest first, no more than `packets_max`.
    #[must_use]
    pub fn range(&self, channel: ChannelId, first: Sequence, next: Sequence, packets_max: usize) -> Vec<Box<[u8]>> {
        let channels = self.lock();
        let Some(kept) = channels.get(&channel).filter(|kept| !kept.is_ambiguous && first < next) else {
            return Vec::new();
        };
        // The packet before may reach into the range.
        let before = kept.packets.range(..=first.0).next_back().map_or(first.0, |(begin, _)| *begin);
        let packets = kept.packets.range(before..next.0).filter(|(_, (behind, _))| *behind > first.0);
        packets.take(packets_max).map(|(_, (_, datagram))| datagram.clone()).collect()
    }
}

impl Kept {
    fn new(feed: Feed, session: VenueSession) -> Self {
        let packets = BTreeMap::new();
        Self { feed, session, packets, bytes: 0, until: 0, is_cut: false, is_ambiguous: false }
    }

    fn put(&mut self, packet: &Packet<'_>, datagram: &[u8], bytes_max: usize) {
        let (first, next) = (packet.first.0, packet.next().0);
        if self.packets.get(&first).is_some_and(|(known, _)| *known >= next) {
            return;
        }
        self.bytes += datagram.len() + PACKET_BYTES;
        if let Some((_, old)) = self.packets.insert(first, (next, datagram.into())) {
            self.bytes -= old.len() + PACKET_BYTES;
        }
        let is_lowest = self.packets.first_key_value().is_some_and(|(lowest, _)| *lowest == first);
        if is_lowest {
            self.go_on(first, first);
        } else if first <= self.until && next > self.until {
            self.go_on(self.until, next);
        }
        while self.bytes > bytes_max
            && let Some((_, (_, oldest))) = self.packets.pop_first()
        {
            self.bytes -= oldest.len() + PACKET_BYTES;
            self.is_cut = true;
            let lowest = self.packets.first_key_value().map_or(0, |(lowest, _)| *lowest);
            if lowest == 0 || lowest > self.until {
                self.go_on(lowest, lowest);
            }
        }
    }

    /// There is no hole up to `until`, nor in what joins it of the packets from `from` on.
    fn go_on(&mut self, from: u64, mut until: u64) {
        for (first, (next, _)) in self.packets.range(from..) {
            if *first > until {
                break;
            }
            until = until.max(*next);
        }
        self.until = until;
    }
}

/// What a datagram takes besides its bytes: its place in the map, and the allocator's part. About.
const PACKET_BYTES: usize = 64;

fn parse(feed: Feed, datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    match feed {
        Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => moldudp64::MoldUdp64::parse(datagram),
        Feed::IexTops => iextp::Tops::parse(datagram),
        Feed::IexDeep => iextp::Deep::parse(datagram),
    }
}

#[cfg(test)]
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
        let bytes = packet(9, 1, 3).len() + PACKET_BYTES;
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

    fn extent(history: &InputHistory) -> (u64, u64, u64, bool) {
        let extent = history.extent(CHANNEL).unwrap();
        (extent.from.0, extent.until.0, extent.next.0, extent.is_cut)
    }

    #[test]
    fn it_tells_how_much_of_the_session_it_has() {
        let history = history(1 << 20);
        assert_eq!(history.extent(CHANNEL), None);
        for (first, expected) in [
            (8, (8, 11, 11, false)),
            (14, (8, 11, 17, false)),
            (11, (8, 17, 17, false)),
            (2, (2, 5, 17, false)),
            (23, (2, 5, 26, false)),
            (5, (2, 17, 26, false)),
            (17, (2, 20, 26, false)),
            (20, (2, 26, 26, false)),
        ] {
            history.keep(CHANNEL, &packet(9, first, 3)).unwrap();
            assert_eq!(extent(&history), expected, "with {first}");
        }
        // Cut otherwise by the other line.
        history.keep(CHANNEL, &packet(9, 24, 5)).unwrap();
        assert_eq!(extent(&history), (2, 29, 29, false));
        history.keep(CHANNEL, &packet(9, 31, 5)).unwrap();
        history.keep(CHANNEL, &packet(9, 28, 5)).unwrap();
        assert_eq!(extent(&history), (2, 36, 36, false));
        history.keep(CHANNEL, &packet(10, 5, 1)).unwrap();
        assert_eq!(extent(&history), (5, 6, 6, false), "the next numbering");
    }

    #[test]
    fn what_no_longer_fits_goes_and_is_told() {
        let datagram_bytes = packet(9, 1, 3).len() + PACKET_BYTES;
        let history = history(4 * datagram_bytes);
        for first in [1, 4, 10, 13] {
            history.keep(CHANNEL, &packet(9, first, 3)).unwrap();
        }
        assert_eq!(extent(&history), (1, 7, 16, false));
        history.keep(CHANNEL, &packet(9, 16, 3)).unwrap();
        assert_eq!(extent(&history), (4, 7, 19, true));
        history.keep(CHANNEL, &packet(9, 19, 3)).unwrap();
        assert_eq!(extent(&history), (10, 22, 22, true));
    }

    #[test]
    fn what_the_other_gateway_gave_is_kept_too_but_begins_no_numbering() {
        let history = history(1 << 20);
        assert_eq!(history.complete(CHANNEL, &packet(9, 1, 3)), Err(DropReason::SessionStale));
        history.keep(CHANNEL, &packet(9, 4, 3)).unwrap();
        history.complete(CHANNEL, &packet(9, 1, 3)).unwrap();
        assert_eq!(history.complete(CHANNEL, &packet(8, 7, 3)), Err(DropReason::SessionStale));
        assert_eq!(extent(&history), (1, 7, 7, false));
        assert_eq!(firsts(&history, 2, 5), [1, 4]);
    }
}
