//! The latest input datagrams, as the venue sent them: each gateway can fill the gaps of its peer from them.
//!
//! A cold thread receives them from separate sockets, so that the data path does no work for it.
//!
//! Anybody on the network can send to a line's group. So the history believes what the data path believes: another session,
//! or a sequence far ahead, counts only once further packets confirm it. Otherwise one datagram with another session would
//! delete the whole history.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use mdgw_feeds::{
    channel::{SessionMatch, SessionTracker},
    transport::{Packet, PacketKind, Transport as _, VenueSession, iextp, moldudp64},
};
use mdgw_sys::alarm::Alarm;
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{ChannelId, Feed, Sequence},
    time::UnixNs,
};

/// Input datagrams of all channels, up to a limit for each.
#[derive(Debug)]
pub struct InputHistory {
    channels: Mutex<BTreeMap<ChannelId, ChannelHistory>>,
    bytes_max: usize,
}

/// Which part of a channel's present session is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryExtent {
    /// First stored sequence.
    pub from: Sequence,
    /// First sequence that is missing after `from`.
    pub until: Sequence,
    /// First sequence after all stored ones.
    pub next: Sequence,
    /// Memory of the stored datagrams in bytes, with the overhead of storing them.
    pub bytes: usize,
    /// Whether older datagrams were deleted for lack of room: a peer that rejoins has to copy the state then.
    pub is_truncated: bool,
}

/// The history of one channel, of its latest session.
#[derive(Debug)]
struct ChannelHistory {
    feed: Feed,
    /// Decides to which session a datagram belongs, as the data path does.
    sessions: SessionTracker,
    /// The latest datagrams of sessions that are not confirmed.
    held: VecDeque<(VenueSession, Box<[u8]>)>,
    /// Runs of datagrams far ahead of the others, the one that grew last at the end. Several, since two lines deliver
    /// the same run interleaved, and junk may lie between.
    jumps: VecDeque<JumpRun>,
    /// The stored datagrams by their first sequence, each with the first sequence after it.
    packets: BTreeMap<u64, (u64, Box<[u8]>)>,
    /// The stored sequences as ranges without holes: first sequence of each, and the first one after it. So no datagram,
    /// wherever it lies, costs a scan of the stored ones.
    ranges: BTreeMap<u64, u64>,
    /// The last announcement of the session's end, and the first sequence that does not exist by it.
    end: Option<(u64, Box<[u8]>)>,
    bytes: usize,
    /// Whether datagrams of the session were deleted for lack of room.
    is_truncated: bool,
}

/// Datagrams that continue each other.
#[derive(Debug)]
struct JumpRun {
    first: u64,
    next: u64,
    datagrams: Vec<Box<[u8]>>,
}

impl InputHistory {
    /// Stores up to `bytes_max` bytes for each channel.
    #[must_use]
    pub fn new(channels: impl IntoIterator<Item = (ChannelId, Feed)>, bytes_max: usize) -> Self {
        let stored = |(channel, feed)| (channel, ChannelHistory::new(feed));
        Self { channels: Mutex::new(channels.into_iter().map(stored).collect()), bytes_max }
    }

    /// Stores the datagrams of one more channel.
    pub fn add(&self, channel: ChannelId, feed: Feed) {
        self.lock().insert(channel, ChannelHistory::new(feed));
    }

    /// Deletes what is stored of a channel, and stores nothing more of it.
    pub fn remove(&self, channel: ChannelId) {
        self.lock().remove(&channel);
    }

    /// Stores a datagram that arrived on one of the channel's lines at `ts_recv`.
    ///
    /// # Errors
    /// When it does not follow the channel's protocol, is of a session that has ended, or is not confirmed yet.
    pub(crate) fn store(&self, channel: ChannelId, datagram: &[u8], ts_recv: UnixNs) -> Result<(), DropReason> {
        let mut channels = self.lock();
        let stored = channels.get_mut(&channel).ok_or(DropReason::ChannelUnknown)?;
        let packet = parse(stored.feed, datagram)?;
        stored.assign(&packet, datagram, ts_recv, self.bytes_max)?;
        stored.note_end(&packet, datagram);
        if packet.kind != PacketKind::Messages || packet.unsequenced {
            return Ok(());
        }
        stored.confirm_position(&packet, datagram, self.bytes_max)?;
        let was_cut = stored.is_truncated;
        stored.put(&packet, datagram, self.bytes_max);
        if stored.is_truncated && !was_cut {
            tracing::warn!(
                alarm = Alarm::InputHistoryTruncated.name(),
                channel_id = channel.0,
                history_bytes = self.bytes_max,
                "the input history no longer covers the whole session: a peer that rejoins must copy the state"
            );
        }
        Ok(())
    }

    /// Stores a datagram that the peer sent, if it is of the stored session: this gateway's lines did not deliver it.
    ///
    /// # Errors
    /// When it does not follow the channel's protocol, or is of another session.
    pub(crate) fn fill(&self, channel: ChannelId, datagram: &[u8]) -> Result<(), DropReason> {
        let mut channels = self.lock();
        let stored = channels.get_mut(&channel).ok_or(DropReason::ChannelUnknown)?;
        let packet = parse(stored.feed, datagram)?;
        let session = stored.sessions.current().map(|current| current.venue);
        if session != Some(packet.session) || packet.unsequenced {
            return Err(DropReason::SessionStale);
        }
        stored.note_end(&packet, datagram);
        if packet.kind != PacketKind::Messages {
            return Ok(());
        }
        stored.put(&packet, datagram, self.bytes_max);
        Ok(())
    }

    /// How much of a channel's present session is stored; `None` if nothing is.
    #[must_use]
    pub fn extent(&self, channel: ChannelId) -> Option<HistoryExtent> {
        let channels = self.lock();
        let stored = channels.get(&channel)?;
        let ((from, until), next) = (stored.ranges.first_key_value()?, stored.next()?);
        Some(HistoryExtent {
            from: Sequence(*from),
            until: Sequence(*until),
            next,
            bytes: stored.bytes,
            is_truncated: stored.is_truncated,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ChannelId, ChannelHistory>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Datagrams that cover a part of `[first, next)`, oldest first, `packets_max` at most. The announcement of the session's end counts
    /// as the message that would follow the last one.
    #[must_use]
    pub(crate) fn range(
        &self,
        channel: ChannelId,
        first: Sequence,
        next: Sequence,
        packets_max: usize,
    ) -> Vec<Box<[u8]>> {
        let channels = self.lock();
        let Some(stored) = channels.get(&channel).filter(|_| first < next) else {
            return Vec::new();
        };
        // The packet that begins before `first` may reach into the range.
        let before = stored.packets.range(..=first.0).next_back().map_or(first.0, |(begin, _)| *begin);
        let packets = stored.packets.range(before..next.0).filter(|(_, (behind, _))| *behind > first.0);
        let end = stored.end.as_ref().filter(|(end, _)| (first.0..next.0).contains(end));
        // Messages at the announced end or after it show that it was false.
        let end = end.filter(|(end, _)| stored.next().is_none_or(|known| known.0 <= *end));
        let packets = packets.map(|(_, (_, datagram))| datagram).chain(end.map(|(_, datagram)| datagram));
        packets.take(packets_max).cloned().collect()
    }
}

impl ChannelHistory {
    fn new(feed: Feed) -> Self {
        Self {
            feed,
            sessions: SessionTracker::new(feed, None, None),
            held: VecDeque::new(),
            jumps: VecDeque::new(),
            packets: BTreeMap::new(),
            ranges: BTreeMap::new(),
            end: None,
            bytes: 0,
            is_truncated: false,
        }
    }

    fn note_end(&mut self, packet: &Packet<'_>, datagram: &[u8]) {
        if packet.kind == PacketKind::EndOfSession && self.end.as_ref().is_none_or(|(end, _)| *end != packet.first.0) {
            self.end = Some((packet.first.0, datagram.into()));
        }
    }

    /// Assigns a packet to its session. The first packets of a new session are held until another one confirms it.
    fn assign(
        &mut self,
        packet: &Packet<'_>,
        datagram: &[u8],
        ts_recv: UnixNs,
        bytes_max: usize,
    ) -> Result<(), DropReason> {
        match self.sessions.classify(packet, ts_recv, self.next()) {
            SessionMatch::Current => Ok(()),
            SessionMatch::Ended => Err(DropReason::SessionStale),
            SessionMatch::Unconfirmed => {
                if self.held.len() == HELD_DATAGRAMS_MAX {
                    self.held.pop_front();
                }
                self.held.push_back((packet.session, datagram.into()));
                Err(DropReason::SessionUnconfirmed)
            }
            SessionMatch::New(_) => {
                self.begin_session(packet.session, bytes_max);
                Ok(())
            }
        }
    }

    fn begin_session(&mut self, session: VenueSession, bytes_max: usize) {
        let (sessions, held) = (self.sessions.clone(), std::mem::take(&mut self.held));
        *self = Self { sessions, ..Self::new(self.feed) };
        for (_, datagram) in held.iter().filter(|(of, _)| *of == session) {
            self.put_held(datagram, bytes_max);
        }
    }

    /// Whether a packet is near enough to those before it to be stored. Packets that continue each other confirm a jump.
    fn confirm_position(&mut self, packet: &Packet<'_>, datagram: &[u8], bytes_max: usize) -> Result<(), DropReason> {
        let (first, next) = (packet.first.0, packet.next().0);
        if self.next().is_none_or(|known| first.saturating_sub(known.0) <= SEQUENCE_JUMP_MAX) {
            return Ok(());
        }
        let is_copy = |run: &JumpRun| run.first <= first && next <= run.next;
        if self.jumps.iter().any(is_copy) {
            return Err(DropReason::SequenceJump);
        }
        let continued = self.jumps.iter().position(|run| run.next == first);
        let mut run = continued.and_then(|index| self.jumps.remove(index)).unwrap_or_else(|| JumpRun {
            first,
            next,
            datagrams: Vec::new(),
        });
        if run.datagrams.len() + 1 < JUMP_CONFIRMATIONS {
            run.next = next;
            run.datagrams.push(datagram.into());
            if self.jumps.len() == JUMP_RUNS_MAX {
                self.jumps.pop_front();
            }
            self.jumps.push_back(run);
            return Err(DropReason::SequenceJump);
        }
        self.jumps.clear();
        for datagram in run.datagrams {
            self.put_held(&datagram, bytes_max);
        }
        Ok(())
    }

    fn put_held(&mut self, datagram: &[u8], bytes_max: usize) {
        if let Ok(packet) = parse(self.feed, datagram)
            && packet.kind == PacketKind::Messages
            && !packet.unsequenced
        {
            self.put(&packet, datagram, bytes_max);
        }
    }

    /// First sequence after all stored ones; `None` before the first datagram.
    fn next(&self) -> Option<Sequence> {
        self.ranges.last_key_value().map(|(_, next)| Sequence(*next))
    }

    fn put(&mut self, packet: &Packet<'_>, datagram: &[u8], bytes_max: usize) {
        let (first, next) = (packet.first.0, packet.next().0);
        if self.packets.get(&first).is_some_and(|(known, _)| *known >= next) {
            return;
        }
        // Older than the deleted ones: it would be the next to go, and until then hide the extent of the others.
        if self.is_truncated && self.packets.first_key_value().is_some_and(|(lowest, _)| next <= *lowest) {
            return;
        }
        self.bytes += datagram.len() + PACKET_OVERHEAD_BYTES;
        if let Some((_, old)) = self.packets.insert(first, (next, datagram.into())) {
            self.bytes -= old.len() + PACKET_OVERHEAD_BYTES;
        }
        self.add_range(first, next);
        while self.bytes > bytes_max
            && let Some((_, (_, oldest))) = self.packets.pop_first()
        {
            self.bytes -= oldest.len() + PACKET_OVERHEAD_BYTES;
            self.is_truncated = true;
            let lowest = self.packets.first_key_value().map_or(u64::MAX, |(lowest, _)| *lowest);
            self.remove_ranges_before(lowest);
        }
    }

    /// Joins `[first, next)` with the ranges that it touches.
    fn add_range(&mut self, mut first: u64, mut next: u64) {
        if let Some((begin, end)) = self.ranges.range(..first).next_back()
            && *end >= first
        {
            (first, next) = (*begin, next.max(*end));
        }
        while let Some((begin, end)) = self.ranges.range(first..=next).next() {
            let begin = *begin;
            next = next.max(*end);
            self.ranges.remove(&begin);
        }
        self.ranges.insert(first, next);
    }

    fn remove_ranges_before(&mut self, lowest: u64) {
        while let Some(range) = self.ranges.first_entry().filter(|range| *range.key() < lowest) {
            let end = range.remove();
            if end > lowest {
                self.ranges.insert(lowest, end);
            }
        }
    }
}

/// Approximate memory of a stored datagram besides its bytes: for its entry in the map, for the allocator, and for a range
/// of its own, which it has between two holes.
const PACKET_OVERHEAD_BYTES: usize = 96;
/// Maximum number of datagrams of unconfirmed sessions that are held: more than two lines send of a session before it is
/// confirmed.
const HELD_DATAGRAMS_MAX: usize = 16;
/// Largest distance of a packet from those before it without confirmation, in messages; and the number of packets that
/// confirm a jump: as in the arbiter. The arbiter keeps one run per line. Here any line may continue a run.
const SEQUENCE_JUMP_MAX: u64 = 100_000;
const JUMP_CONFIRMATIONS: usize = 3;
/// Runs that wait for confirmation at once: those of two lines, and room for junk between two packets of the venue.
const JUMP_RUNS_MAX: usize = 8;

fn parse(feed: Feed, datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    match feed {
        Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => moldudp64::MoldUdp64::parse(datagram),
        Feed::IexTops => iextp::Tops::parse(datagram),
        Feed::IexDeep => iextp::Deep::parse(datagram),
    }
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::transport::iextp::{PacketWriter, SegmentPosition, StreamIdentity};
    use mdgw_wire::time::UnixNs;

    use super::*;

    const CHANNEL: ChannelId = ChannelId(3);

    /// Messages of 40 bytes, each preceded by its length.
    fn packet(session: u32, first: u64, count: u64) -> Vec<u8> {
        packet_sent(UnixNs(5), session, first, count)
    }

    fn packet_sent(send_time: UnixNs, session: u32, first: u64, count: u64) -> Vec<u8> {
        let stream_offset = (first - 1) * 42;
        let stream =
            StreamIdentity { message_protocol_id: iextp::PROTOCOL_DEEP_1_0, channel_id: 1, session_id: session };
        let position = SegmentPosition { first: Sequence(first), stream_offset, send_time };
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

    const NOON: UnixNs = UnixNs(1_700_000_000_000_000_000);

    fn store(history: &InputHistory, datagram: &[u8]) -> Result<(), DropReason> {
        history.store(CHANNEL, datagram, NOON)
    }

    fn firsts(history: &InputHistory, first: u64, next: u64) -> Vec<u64> {
        let packets = history.range(CHANNEL, Sequence(first), Sequence(next), 3);
        packets.iter().map(|bytes| iextp::Deep::parse(bytes).unwrap().first.0).collect()
    }

    #[test]
    fn a_range_query_returns_every_overlapping_datagram() {
        let history = history(1 << 20);
        for first in (1..100).step_by(3) {
            for _copy in 0..2 {
                store(&history, &packet(9, first, 3)).unwrap();
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
    fn the_oldest_datagrams_and_an_old_session_are_evicted() {
        let bytes = packet(9, 1, 3).len() + PACKET_OVERHEAD_BYTES;
        let history = history(5 * bytes);
        for first in (1..100).step_by(3) {
            store(&history, &packet(9, first, 3)).unwrap();
        }
        assert_eq!(firsts(&history, 1, 80), [0; 0]);
        assert_eq!(firsts(&history, 90, 100), [88, 91, 94]);
        // Each line delivers the first packet.
        assert_eq!(store(&history, &packet(10, 1, 3)), Err(DropReason::SessionUnconfirmed));
        store(&history, &packet(10, 1, 3)).unwrap();
        assert_eq!(firsts(&history, 90, 100), [0; 0]);
        assert_eq!(firsts(&history, 1, 100), [1]);
    }

    #[test]
    fn a_restart_under_the_same_id_replaces_the_session_and_a_copy_of_its_start_does_not() {
        let history = history(1 << 20);
        for first in [1, 4, 7] {
            store(&history, &packet(9, first, 3)).unwrap();
            // The other line's copy has a send time of its own.
            store(&history, &packet_sent(UnixNs(3_005), 9, first, 3)).unwrap();
        }
        assert_eq!(extent(&history), (1, 10, 10, false));
        assert_eq!(firsts(&history, 1, 10), [1, 4, 7]);
        store(&history, &packet_sent(UnixNs(60_000_000_000), 9, 1, 2)).unwrap();
        assert_eq!(extent(&history), (1, 3, 3, false));
        assert_eq!(store(&history, b"noise"), Err(DropReason::HeaderTruncated));
    }

    #[test]
    fn an_old_datagram_neither_hides_nor_displaces_what_a_full_history_stores() {
        let history = history(5 * (packet(9, 1, 3).len() + PACKET_OVERHEAD_BYTES));
        for first in (100..200).step_by(3) {
            store(&history, &packet(9, first, 3)).unwrap();
        }
        // Small ones, one of which touches what is stored.
        for (first, count) in [(50, 1), (183, 1), (186, 1), (50, 1)] {
            store(&history, &packet(9, first, count)).unwrap();
            assert_eq!(extent(&history), (187, 202, 202, true), "with {first}");
        }
        assert_eq!(firsts(&history, 1, 200), [187, 190, 193]);
    }

    #[test]
    fn ranges_are_joined_and_cut_as_the_stored_datagrams_are() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..50 {
            let history = history(3_000);
            for _ in 0..100 {
                // Packets of two messages at odd sequences: none overlaps another one in part.
                store(&history, &packet(9, 2 * random(60) + 1, 2)).unwrap();
                let channels = history.lock();
                let stored = &channels[&CHANNEL];
                let mut expected: Vec<(u64, u64)> = Vec::new();
                for (first, (next, _)) in &stored.packets {
                    match expected.last_mut() {
                        Some((_, end)) if *end == *first => *end = *next,
                        _ => expected.push((*first, *next)),
                    }
                }
                assert_eq!(stored.ranges.clone().into_iter().collect::<Vec<_>>(), expected);
            }
        }
    }

    fn extent(history: &InputHistory) -> (u64, u64, u64, bool) {
        let extent = history.extent(CHANNEL).unwrap();
        (extent.from.0, extent.until.0, extent.next.0, extent.is_truncated)
    }

    #[test]
    fn the_extent_reports_the_contiguous_range_and_the_end() {
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
            store(&history, &packet(9, first, 3)).unwrap();
            assert_eq!(extent(&history), expected, "with {first}");
        }
        // The other line packs the messages into other packets.
        store(&history, &packet(9, 24, 5)).unwrap();
        assert_eq!(extent(&history), (2, 29, 29, false));
        store(&history, &packet(9, 31, 5)).unwrap();
        store(&history, &packet(9, 28, 5)).unwrap();
        assert_eq!(extent(&history), (2, 36, 36, false));
        // The last datagram by its first sequence ends before another one.
        store(&history, &packet(9, 33, 1)).unwrap();
        assert_eq!(extent(&history), (2, 36, 36, false));
        for first in [5, 6, 7] {
            let _unconfirmed = store(&history, &packet(10, first, 1));
        }
        assert_eq!(extent(&history), (5, 8, 8, false), "the next session");
    }

    #[test]
    fn an_eviction_marks_the_extent_as_truncated() {
        let datagram_bytes = packet(9, 1, 3).len() + PACKET_OVERHEAD_BYTES;
        let history = history(4 * datagram_bytes);
        for first in [1, 4, 10, 13] {
            store(&history, &packet(9, first, 3)).unwrap();
        }
        assert_eq!(extent(&history), (1, 7, 16, false));
        store(&history, &packet(9, 16, 3)).unwrap();
        assert_eq!(extent(&history), (4, 7, 19, true));
        store(&history, &packet(9, 19, 3)).unwrap();
        assert_eq!(extent(&history), (10, 22, 22, true));
    }

    #[test]
    fn input_from_the_peer_fills_holes_but_starts_no_session() {
        let history = history(1 << 20);
        assert_eq!(history.fill(CHANNEL, &packet(9, 1, 3)), Err(DropReason::SessionStale));
        store(&history, &packet(9, 4, 3)).unwrap();
        history.fill(CHANNEL, &packet(9, 1, 3)).unwrap();
        assert_eq!(history.fill(CHANNEL, &packet(8, 7, 3)), Err(DropReason::SessionStale));
        assert_eq!(extent(&history), (1, 7, 7, false));
        assert_eq!(firsts(&history, 2, 5), [1, 4]);
    }

    #[test]
    fn the_end_of_the_session_follows_its_last_message() {
        let history = InputHistory::new([(CHANNEL, Feed::NasdaqItch)], 1 << 20);
        let name = *b"SESSION001";
        let messages = |first| {
            let mut bytes = Vec::new();
            let mut writer = moldudp64::PacketWriter::begin(&mut bytes, name, Sequence(first), 1_400);
            assert!((0..3).all(|_| writer.push(b"message")));
            let _count = writer.finish();
            bytes
        };
        let end_at = |next| {
            let mut bytes = Vec::new();
            moldudp64::write_end_of_session(&mut bytes, name, Sequence(next));
            bytes
        };
        let requested = |first, next| history.range(CHANNEL, Sequence(first), Sequence(next), 10);
        store(&history, &messages(1)).unwrap();
        store(&history, &end_at(9)).unwrap();
        store(&history, &end_at(4)).unwrap();
        assert_eq!(requested(1, 4), [messages(1).into()], "a gap before the end");
        assert_eq!(requested(1, 5), [messages(1).into(), end_at(4).into()] as [Box<[u8]>; 2]);
        assert_eq!(requested(4, 5), [end_at(4).into()] as [Box<[u8]>; 1]);
        assert_eq!(history.range(CHANNEL, Sequence(1), Sequence(5), 1), [messages(1).into()]);
        store(&history, &messages(4)).unwrap();
        assert_eq!(requested(4, 9), [messages(4).into()], "a false end");
        history.fill(CHANNEL, &end_at(7)).unwrap();
        assert_eq!(requested(7, 8), [end_at(7).into()] as [Box<[u8]>; 1], "from another peer");
    }

    #[test]
    fn datagrams_of_other_sessions_delete_nothing_until_they_confirm_each_other() {
        let history = history(1 << 20);
        for (first, junk_sessions) in [(1, [101, 201]), (4, [104, 204]), (7, [107, 207])] {
            store(&history, &packet(9, first, 3)).unwrap();
            // Junk with a session and a sequence of its own, twice between two packets of the venue.
            for junk in junk_sessions {
                assert_eq!(store(&history, &packet(junk, 500, 3)), Err(DropReason::SessionUnconfirmed));
            }
        }
        assert_eq!(extent(&history), (1, 10, 10, false));
        assert_eq!(firsts(&history, 1, 10), [1, 4, 7]);
        // The venue's next session begins, and the slower line still delivers the end of the last one.
        assert_eq!(store(&history, &packet(10, 1, 3)), Err(DropReason::SessionUnconfirmed));
        store(&history, &packet(9, 10, 3)).unwrap();
        store(&history, &packet(10, 4, 3)).unwrap();
        assert_eq!(extent(&history), (1, 7, 7, false), "the packet that was not confirmed at first is stored too");
        assert_eq!(store(&history, &packet(9, 13, 3)), Err(DropReason::SessionStale));
    }

    #[test]
    fn sequences_far_ahead_are_stored_only_when_packets_continue_each_other() {
        let history = history(1 << 20);
        store(&history, &packet(9, 1, 3)).unwrap();
        let jump = Err(DropReason::SequenceJump);
        for far in [1_000_000, 900_000, 800_000, 700_000, 999_999_999] {
            assert_eq!(store(&history, &packet(9, far, 3)), jump, "{far}");
        }
        store(&history, &packet(9, 4, 3)).unwrap();
        assert_eq!(extent(&history), (1, 7, 7, false));
        // The venue, on two lines, after a long loss.
        for (first, expected) in
            [(500_000, jump), (500_000, jump), (500_003, jump), (500_003, jump), (500_006, Ok(())), (500_009, Ok(()))]
        {
            assert_eq!(store(&history, &packet(9, first, 3)), expected, "{first}");
        }
        assert_eq!(firsts(&history, 500_000, 600_000), [500_000, 500_003, 500_006]);
    }

    #[test]
    fn interleaved_lines_and_junk_do_not_keep_a_jump_from_its_confirmation() {
        let history = history(1 << 20);
        store(&history, &packet(9, 1, 3)).unwrap();
        let mut junk = (1..).map(|number| number * 7_000_000);
        // Line A is two packets ahead of line B, which packs the messages into other packets.
        for (first, count) in [(500_000, 3), (500_003, 3), (500_000, 2)] {
            assert_eq!(store(&history, &packet(9, first, count)), Err(DropReason::SequenceJump), "{first}");
            let far = junk.next().unwrap();
            assert_eq!(store(&history, &packet(9, far, 3)), Err(DropReason::SequenceJump), "{far}");
        }
        for (first, count) in [(500_006, 3), (500_002, 2), (500_009, 3)] {
            store(&history, &packet(9, first, count)).unwrap();
        }
        assert_eq!(extent(&history), (1, 4, 500_012, false));
        assert_eq!(firsts(&history, 500_004, 500_009), [500_003, 500_006]);
    }

    #[test]
    fn a_flood_of_junk_does_not_exceed_the_limit_of_memory() {
        let history = history(100_000);
        store(&history, &packet(9, 1, 3)).unwrap();
        for number in 0..10_000 {
            let _refused = store(&history, &packet(number % 7 + 20, 1 + u64::from(number), 3));
            let _refused = store(&history, &packet(9, u64::from(number) << 24 | 4, 3));
        }
        let channels = history.lock();
        let stored = &channels[&CHANNEL];
        assert!(stored.bytes <= 100_000 && stored.held.len() <= HELD_DATAGRAMS_MAX);
        assert!(stored.jumps.len() <= JUMP_RUNS_MAX);
        assert!(stored.jumps.iter().all(|run| run.datagrams.len() < JUMP_CONFIRMATIONS));
    }
}
