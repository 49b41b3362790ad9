//! Which numbering a packet belongs to.
//!
//! Venues name their sessions in their own ways (MoldUDP64: ten characters; IEX: a number that stays the same when the
//! numbering restarts). Here each becomes a [`Session`]: feed, trading date, restart count.

use super::copy::{CopyFault, Fields};
use crate::{
    identity::{Feed, Sequence, Session},
    time::{TradingDate, UnixNs},
    transport::{Packet, PacketKind, VenueSession},
};

/// Follows the sessions of one channel.
#[derive(Clone, Debug)]
pub struct SessionTracker {
    feed: Feed,
    date: Option<TradingDate>,
    current: Option<Numbering>,
    /// Sessions that ended a short while ago: a slow line may still bring their packets.
    ended: [Option<VenueSession>; 4],
    ended_next: usize,
    /// The newest sending time of the packets that stand at the very start of the current numbering.
    marker_latest: UnixNs,
    /// Packets in a row that continue each other far behind what is expected, though sent long after it.
    behind: Option<(Sequence, u8)>,
    /// A session that nobody announced.
    stranger: Option<Stranger>,
    /// When the current numbering was heard last.
    heard: UnixNs,
    /// The venue has said that the current session ends, and sent nothing of it since.
    has_ended: bool,
}

/// A session that is not believed yet.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    session: VenueSession,
    /// Packets of it, and how many it takes.
    seen: u8,
    needed: u8,
    /// When the first one came.
    since: UnixNs,
    /// The venue's sending time of it.
    started: UnixNs,
}

/// How many packets in a row make a session credible that doesn't begin at its beginning: a single forged or damaged
/// packet must not end the one that runs.
const STRANGER_CONFIRMATIONS: u8 = 3;
/// The same for one that begins at its beginning while another one runs, within [`SILENT_NS_MIN`]: two lines bring it at once.
/// Not in a row: the slower line may still bring the old one's.
const BEGINNER_CONFIRMATIONS: u8 = 2;
/// A session of which nothing was heard for so long, ns, runs no longer: venues send heartbeats every second.
const SILENT_NS_MIN: u64 = 1_000_000_000;
/// How much later than everything before a packet with old numbers was sent, ns, to be of a numbering whose start was
/// missed: more than any line's delay.
const BEGUN_AGAIN_NS_MIN: u64 = 1_000_000_000;
/// How much newer than the start of a numbering the start of the next one is at the least, ns: more than lies between
/// the sending times of two lines' copies of one packet.
const RESTART_NS_MIN: u64 = 1_000_000;

/// One numbering and how its packets are known. Kept in the gateway's state file, so that a restarted gateway goes on
/// with the same restart count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// Its name in our output.
    pub session: Session,
    /// Its name at the venue.
    pub venue: VenueSession,
    /// The venue's sending time of its first packet, where packets tell it. Older packets belong to the numbering before.
    pub started: UnixNs,
    /// The newest sending time seen.
    pub latest: UnixNs,
    /// Whether a message of it has come. A venue that stands at the beginning of a numbering without messages can't begin
    /// it again.
    pub has_messages: bool,
}

/// What a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// The current numbering.
    Current,
    /// A new one, which is current from here on.
    New(Session),
    /// One that has ended.
    Ended,
    /// One that only further packets would make credible.
    Unconfirmed,
}

impl Stranger {
    fn is_beginner(&self) -> bool {
        self.needed == BEGINNER_CONFIRMATIONS
    }

    /// A beginner's second packet comes soon.
    fn is_old(&self, now: UnixNs) -> bool {
        self.is_beginner() && now.0 >= self.since.0.saturating_add(SILENT_NS_MIN)
    }
}

impl SessionTracker {
    /// `date` overrides what the input tells; `resume` is the numbering that was current when the gateway last ran.
    #[must_use]
    pub fn new(feed: Feed, date: Option<TradingDate>, resume: Option<Numbering>) -> Self {
        Self {
            feed,
            date,
            current: resume,
            ended: [None; 4],
            ended_next: 0,
            // Copies of the packet that was the newest differ a little in their sending times.
            marker_latest: resume.map_or(UnixNs(0), |resumed| resumed.latest),
            behind: None,
            stranger: None,
            heard: UnixNs(0),
            has_ended: false,
        }
    }

    /// Writes what is known of numberings, for a copy; false where there is none.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> bool {
        let Some(Numbering { session, venue, started, latest, has_messages }) = self.current else { return false };
        out.extend(session.to_bytes());
        out.extend(venue.0);
        out.extend(started.0.to_le_bytes());
        out.extend(latest.0.to_le_bytes());
        out.push(has_messages.into());
        for ended in self.ended {
            out.push(ended.is_some().into());
            out.extend(ended.unwrap_or_default().0);
        }
        out.extend(u8::try_from(self.ended_next).unwrap_or(0).to_le_bytes());
        out.extend(self.marker_latest.0.to_le_bytes());
        out.extend(self.heard.0.to_le_bytes());
        out.push(self.has_ended.into());
        true
    }

    /// Knows what another one has written; packets that are still in doubt there count for nothing here.
    ///
    /// # Errors
    /// Where that can't be, or is of another feed or day.
    pub(super) fn restore(&mut self, rest: &mut Fields<'_>) -> Result<Session, CopyFault> {
        let session = rest.session()?;
        if session.feed != self.feed || self.date.is_some_and(|date| date != session.date) {
            return Err(CopyFault::Another);
        }
        let (venue, started, latest) = (rest.venue_session()?, rest.unix_ns()?, rest.unix_ns()?);
        self.current = Some(Numbering { session, venue, started, latest, has_messages: rest.flag()? });
        for ended in &mut self.ended {
            let (is_some, venue) = (rest.flag()?, rest.venue_session()?);
            *ended = is_some.then_some(venue);
        }
        self.ended_next = usize::from(rest.u8()?);
        if self.ended_next >= self.ended.len() {
            return Err(CopyFault::Malformed);
        }
        (self.marker_latest, self.heard) = (rest.unix_ns()?, rest.unix_ns()?);
        self.has_ended = rest.flag()?;
        Ok(session)
    }

    /// The current numbering.
    #[must_use]
    pub fn current(&self) -> Option<&Numbering> {
        self.current.as_ref()
    }

    /// The venue has said that the current session is over.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether `packet` would begin a new numbering while another one runs. Changes nothing.
    #[must_use]
    pub fn would_begin(&self, packet: &Packet<'_>, ts_recv: UnixNs, expected: Option<Sequence>) -> bool {
        let mut trial = self.clone();
        let running = self.current.map(|current| current.session);
        matches!(trial.classify(packet, ts_recv, expected), Belongs::New(session) if Some(session) != running)
    }

    /// Says what `packet` belongs to. `expected` is the next sequence of the current numbering, once one of its
    /// packets has come in this run.
    pub fn classify(&mut self, packet: &Packet<'_>, ts_recv: UnixNs, expected: Option<Sequence>) -> Belongs {
        let sent = packet.send_time.unwrap_or_default();
        let Some(current) = &mut self.current else { return self.begin(packet, ts_recv, sent, 0) };
        if current.venue != packet.session {
            if self.ended.contains(&Some(packet.session)) {
                return Belongs::Ended;
            }
            let is_over = self.has_ended || ts_recv.0 >= self.heard.0.saturating_add(SILENT_NS_MIN);
            let is_believed = expected.is_none() || packet.first <= Sequence(1) && is_over;
            if !is_believed && !self.confirm_stranger(packet, ts_recv) {
                return Belongs::Unconfirmed;
            }
            return self.end_and_begin(packet, ts_recv, sent);
        }
        self.stranger = self.stranger.filter(|stranger| stranger.is_beginner() && !stranger.is_old(ts_recv));
        self.heard = self.heard.max(ts_recv);
        let is_beyond = expected.is_some_and(|expected| packet.next() > expected);
        match packet.kind {
            PacketKind::EndOfSession => self.has_ended = true,
            PacketKind::Messages if is_beyond => self.has_ended = false,
            PacketKind::Messages | PacketKind::Heartbeat => {}
        }
        // IEX keeps its session id and starts again at sequence 1, stream offset 0, with a newer sending time. A resumed
        // numbering has no expected sequence yet, but it is known whether it had got beyond 1.
        current.has_messages |= expected.is_some_and(|expected| expected > Sequence(1));
        let is_newer = sent > current.latest && sent.0 > self.marker_latest.0.saturating_add(RESTART_NS_MIN);
        if packet.restart_marker && current.has_messages && is_newer {
            return self.end_and_begin(packet, ts_recv, sent);
        }
        if sent < current.started {
            return Belongs::Ended;
        }
        // A copy is sent when its original is. Who sends old numbers much later has begun again, and we missed the start.
        let is_behind = packet.send_time.is_some() && expected.is_some_and(|expected| packet.next() < expected);
        if is_behind && sent.0 > current.latest.0.saturating_add(BEGUN_AGAIN_NS_MIN) {
            let seen = match self.behind {
                Some((next, seen)) if next == packet.first => seen + 1,
                _ => 1,
            };
            self.behind = Some((packet.next(), seen));
            if seen >= STRANGER_CONFIRMATIONS {
                return self.end_and_begin(packet, ts_recv, sent);
            }
            return Belongs::Unconfirmed;
        }
        self.behind = None;
        if packet.restart_marker {
            self.marker_latest = self.marker_latest.max(sent);
        }
        // A packet behind what is expected may be the second one of a new numbering that overtook the first.
        if expected.is_none_or(|expected| packet.next() >= expected) {
            current.latest = current.latest.max(sent);
        }
        if expected.is_none() {
            // The first packet of this run goes on with the numbering of the run before.
            return Belongs::New(current.session);
        }
        Belongs::Current
    }

    fn confirm_stranger(&mut self, packet: &Packet<'_>, ts_recv: UnixNs) -> bool {
        let known = self.stranger.filter(|known| known.session == packet.session && !known.is_old(ts_recv));
        let needed = if packet.first <= Sequence(1) { BEGINNER_CONFIRMATIONS } else { STRANGER_CONFIRMATIONS };
        let started = packet.send_time.unwrap_or_default();
        let begun = Stranger { session: packet.session, seen: 0, needed, since: ts_recv, started };
        let stranger = known.unwrap_or(begun);
        let stranger = Stranger { seen: stranger.seen + 1, needed: stranger.needed.min(needed), ..stranger };
        self.stranger = Some(stranger);
        stranger.seen >= stranger.needed
    }

    fn end_and_begin(&mut self, packet: &Packet<'_>, ts_recv: UnixNs, sent: UnixNs) -> Belongs {
        let Some(ending) = self.current else { return self.begin(packet, ts_recv, sent, 0) };
        if ending.venue != packet.session {
            if let Some(slot) = self.ended.get_mut(self.ended_next) {
                *slot = Some(ending.venue);
            }
            self.ended_next = (self.ended_next + 1) % self.ended.len();
        }
        self.begin(packet, ts_recv, sent, ending.session.restart.saturating_add(1))
    }

    /// Makes the packet's numbering the current one. `restart` counts if the trading date is still the same.
    fn begin(&mut self, packet: &Packet<'_>, ts_recv: UnixNs, sent: UnixNs, restart: u32) -> Belongs {
        let told = packet.send_time.unwrap_or(ts_recv);
        let date = self.date.unwrap_or_else(|| TradingDate::in_new_york(told));
        let session = match self.current {
            // Sessions only go forward: a day before the current one can only be a clock that is wrong.
            Some(ended) if date <= ended.session.date => Session { feed: self.feed, date: ended.session.date, restart },
            _ => Session { feed: self.feed, date, restart: 0 },
        };
        self.marker_latest = if packet.restart_marker { sent } else { UnixNs(0) };
        // What was seen of it before it was believed is of it too.
        let seen = self.stranger.take().filter(|stranger| stranger.session == packet.session);
        let started = seen.map_or(sent, |stranger| stranger.started.min(sent));
        self.behind = None;
        self.heard = ts_recv;
        self.has_ended = packet.kind == PacketKind::EndOfSession;
        self.current = Some(Numbering { session, venue: packet.session, started, latest: sent, has_messages: false });
        Belongs::New(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const DAY_NS: u64 = 86_400_000_000_000;
    /// 2017-04-25 15:00 UTC.
    const NOON: u64 = 1_493_132_400_000_000_000;

    fn packet(venue: u8, first: u64, sent: Option<u64>) -> Packet<'static> {
        Packet {
            kind: PacketKind::Heartbeat,
            session: VenueSession([venue; 16]),
            first: Sequence(first),
            count: 0,
            send_time: sent.map(|after_s| UnixNs(NOON + after_s * SECOND_NS)),
            restart_marker: sent.is_some() && first == 1,
            unsequenced: false,
            messages: &[],
        }
    }

    fn restart_of(belongs: Belongs) -> u32 {
        match belongs {
            Belongs::New(session) => session.restart,
            other => panic!("{other:?} is no new session"),
        }
    }

    #[test]
    fn iex_restarts_are_sessions_of_their_own() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut see = |first, sent, expected: Option<u64>| {
            tracker.classify(&packet(9, first, Some(sent)), UnixNs(NOON), expected.map(Sequence))
        };
        assert_eq!(restart_of(see(1, 10, None)), 0);
        // Heartbeats before the first message, on both lines.
        assert_eq!(see(1, 20, Some(1)), Belongs::Current);
        assert_eq!(see(1, 20, Some(1)), Belongs::Current);
        assert_eq!(see(1, 30, Some(1)), Belongs::Current);
        // The slower line's first packet is no restart: its sending time is not newer.
        assert_eq!(see(1, 30, Some(50)), Belongs::Current);
        assert_eq!(see(50, 40, Some(50)), Belongs::Current);
        assert_eq!(restart_of(see(1, 50, Some(60))), 1);
        // What the slower line still brings of the old numbering.
        assert_eq!(see(60, 45, Some(1)), Belongs::Ended);
        assert_eq!(restart_of(see(1, 60, Some(2))), 2);
    }

    #[test]
    fn a_restart_whose_first_packets_were_lost_is_seen_by_the_third_that_follows() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut see = |first, sent, expected: u64| {
            tracker.classify(&packet(9, first, Some(sent)), UnixNs(NOON), (expected > 0).then_some(Sequence(expected)))
        };
        assert_eq!(restart_of(see(1, 10, 0)), 0);
        assert_eq!(see(50, 20, 50), Belongs::Current);
        // The slower line's copies are as old as their originals.
        assert_eq!(see(30, 20, 50), Belongs::Current);
        assert_eq!(see(3, 60, 50), Belongs::Unconfirmed);
        assert_eq!(see(3, 61, 50), Belongs::Unconfirmed);
        assert_eq!(restart_of(see(3, 62, 50)), 1);
    }

    #[test]
    fn moldudp64_sessions_are_known_by_name() {
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        let mut see = |venue, first, day: u64, expected: Option<u64>| {
            tracker.classify(&packet(venue, first, None), UnixNs(NOON + day * DAY_NS), expected.map(Sequence))
        };
        assert_eq!(restart_of(see(1, 5, 0, None)), 0);
        assert_eq!(see(1, 6, 0, Some(6)), Belongs::Current);
        assert_eq!(see(2, 1, 0, Some(6)), Belongs::Unconfirmed);
        assert_eq!(restart_of(see(2, 1, 0, Some(6))), 1);
        assert_eq!(see(1, 6, 0, Some(1)), Belongs::Ended);
        assert_eq!(restart_of(see(3, 1, 1, Some(6))), 0);
    }

    #[test]
    fn a_stray_packet_ends_no_session() {
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        let mut see = |venue, first| tracker.classify(&packet(venue, first, None), UnixNs(NOON), Some(Sequence(6)));
        assert_eq!(restart_of(see(1, 5)), 0);
        for _ in 0..5 {
            assert_eq!(see(2, 70), Belongs::Unconfirmed);
            assert_eq!(see(2, 71), Belongs::Unconfirmed);
            assert_eq!(see(1, 6), Belongs::Current);
        }
        assert_eq!(see(2, 72), Belongs::Unconfirmed);
        assert_eq!(see(3, 72), Belongs::Unconfirmed);
        // Negative control: what keeps coming is believed.
        assert_eq!([see(2, 73), see(2, 74)], [Belongs::Unconfirmed; 2]);
        assert_eq!(restart_of(see(2, 75)), 1);
    }

    #[test]
    fn a_single_packet_that_begins_another_session_ends_none_that_runs() {
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        let mut see = |venue, first, after_ms: u64, kind| {
            let packet = Packet { kind, ..packet(venue, first, None) };
            tracker.classify(&packet, UnixNs(NOON + after_ms * 1_000_000), Some(Sequence(6)))
        };
        let (heartbeat, messages) = (PacketKind::Heartbeat, PacketKind::Messages);
        assert_eq!(restart_of(see(1, 5, 0, messages)), 0);
        assert_eq!(see(2, 1, 10, messages), Belongs::Unconfirmed);
        assert_eq!(see(1, 6, 500, messages), Belongs::Current);
        assert_eq!(see(1, 6, 1_400, messages), Belongs::Current);
        assert_eq!(see(2, 1, 1_400, messages), Belongs::Unconfirmed, "the one before came too long ago");
        assert_eq!(see(1, 6, 1_500, messages), Belongs::Current);
        assert_eq!(see(3, 1, 1_600, messages), Belongs::Unconfirmed);
        assert_eq!(see(2, 1, 1_600, messages), Belongs::Unconfirmed);
        assert_eq!(see(1, 6, 1_700, messages), Belongs::Current);
        // The other line's copy, or the next packet.
        assert_eq!(restart_of(see(2, 2, 1_800, messages)), 1);
        // Whoever is silent for a second has ended, and who says so.
        assert_eq!(restart_of(see(4, 1, 2_800, messages)), 2);
        assert_eq!(see(4, 9, 2_801, PacketKind::EndOfSession), Belongs::Current);
        assert_eq!(see(4, 9, 2_802, heartbeat), Belongs::Current);
        assert_eq!(restart_of(see(5, 1, 2_803, messages)), 3);
    }

    #[test]
    fn copies_of_a_numberings_start_with_stamps_of_their_own_are_no_restart() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut see = |first, sent_ns: u64, expected: u64| {
            let packet = Packet { send_time: Some(UnixNs(NOON + sent_ns)), ..packet(9, first, Some(0)) };
            tracker.classify(&packet, UnixNs(NOON), (sent_ns > 0).then_some(Sequence(expected)))
        };
        assert_eq!(restart_of(see(1, 0, 1)), 0);
        assert_eq!(see(1, 50 * SECOND_NS, 1), Belongs::Current);
        // The other line's copy, stamped later, when the first copy has been delivered.
        assert_eq!(see(1, 50 * SECOND_NS + 3_000, 20), Belongs::Current);
        assert_eq!(see(1, 50 * SECOND_NS + RESTART_NS_MIN, 20), Belongs::Current);
        assert_eq!(restart_of(see(1, 50 * SECOND_NS + 2 * RESTART_NS_MIN + 1, 20)), 1);
    }

    #[test]
    fn a_restart_is_seen_though_a_later_packet_overtook_it() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut see = |first, sent, expected: Option<u64>| {
            tracker.classify(&packet(9, first, Some(sent)), UnixNs(NOON), expected.map(Sequence))
        };
        assert_eq!(restart_of(see(1, 10, None)), 0);
        assert_eq!(see(500, 20, Some(500)), Belongs::Current);
        assert_eq!(see(4, 31, Some(500)), Belongs::Unconfirmed);
        assert_eq!(restart_of(see(1, 30, Some(500))), 1);
        assert_eq!(see(4, 31, Some(4)), Belongs::Current);
    }

    #[test]
    fn a_date_that_is_configured_wins_and_days_never_run_backwards() {
        let date = TradingDate::from_yyyymmdd(20_190_130);
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, date, None);
        let Belongs::New(first) = tracker.classify(&packet(1, 1, None), UnixNs(NOON), None) else { panic!() };
        assert_eq!(Some(first.date), date);

        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        tracker.classify(&packet(1, 1, None), UnixNs(NOON), None);
        let Belongs::New(second) = tracker.classify(&packet(2, 1, None), UnixNs(NOON - 3 * DAY_NS), None) else {
            panic!()
        };
        assert_eq!((second.date.yyyymmdd(), second.restart), (20_170_425, 1));
    }

    #[test]
    fn a_restarted_gateway_keeps_the_restart_count() {
        let mut tracker = SessionTracker::new(Feed::IexTops, None, None);
        tracker.classify(&packet(9, 1, Some(10)), UnixNs(NOON), None);
        tracker.classify(&packet(9, 1, Some(50)), UnixNs(NOON), Some(Sequence(7)));
        tracker.classify(&packet(9, 30, Some(60)), UnixNs(NOON), Some(Sequence(30)));
        let kept = tracker.current().copied();

        let mut same = SessionTracker::new(Feed::IexTops, None, kept);
        assert_eq!(restart_of(same.classify(&packet(9, 40, Some(70)), UnixNs(NOON), None)), 1);
        let mut restarted = SessionTracker::new(Feed::IexTops, None, kept);
        assert_eq!(restart_of(restarted.classify(&packet(9, 1, Some(70)), UnixNs(NOON), None)), 2);
    }

    #[test]
    fn a_gateway_that_restarts_while_the_venue_idles_counts_what_its_peer_counts() {
        let mut peer = SessionTracker::new(Feed::IexDeep, None, None);
        let mut idle =
            |sent| peer.classify(&packet(9, 1, Some(sent)), UnixNs(NOON), (sent > 10).then_some(Sequence(1)));
        assert_eq!(restart_of(idle(10)), 0);
        assert_eq!(idle(20), Belongs::Current);
        let kept = peer.current().copied();

        let mut restarted = SessionTracker::new(Feed::IexDeep, None, kept);
        assert_eq!(restart_of(restarted.classify(&packet(9, 1, Some(70)), UnixNs(NOON), None)), 0);
        assert_eq!(peer.classify(&packet(9, 1, Some(70)), UnixNs(NOON), Some(Sequence(1))), Belongs::Current);
        // Both then count the venue's own restart.
        for tracker in [&mut peer, &mut restarted] {
            assert_eq!(tracker.classify(&packet(9, 6, Some(80)), UnixNs(NOON), Some(Sequence(6))), Belongs::Current);
            assert_eq!(restart_of(tracker.classify(&packet(9, 1, Some(90)), UnixNs(NOON), Some(Sequence(6)))), 1);
        }
    }

    #[test]
    fn the_slower_lines_copy_of_the_newest_packet_is_no_restart_after_ours() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let started = packet(9, 1, Some(10));
        tracker.classify(&started, UnixNs(NOON), None);
        let kept = tracker.current().map(|kept| Numbering { has_messages: true, ..*kept });
        let copy = Packet { send_time: started.send_time.map(|sent| UnixNs(sent.0 + 3_000)), ..started };
        let mut restarted = SessionTracker::new(Feed::IexDeep, None, kept);
        assert_eq!(restart_of(restarted.classify(&copy, UnixNs(NOON), None)), 0);
    }
}
