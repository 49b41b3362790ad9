//! Assigns packets to sessions. A session is one numbering of the venue, which begins at sequence 1.
//!
//! Venues name their sessions in different ways (MoldUDP64: ten characters; IEX: a number that stays the same when
//! the venue restarts at 1). Here each becomes a [`Session`]: feed, trading date, restart count.

use super::copy::{CopyFault, FieldReader};
use crate::transport::{Packet, PacketKind, VenueSession};
use mdgw_wire::{
    identity::{Feed, Sequence, Session},
    time::{TradingDate, UnixNs},
};

/// Tracks the sessions of one channel.
#[derive(Clone, Debug)]
pub struct SessionTracker {
    feed: Feed,
    date: Option<TradingDate>,
    current: Option<KnownSession>,
    /// Sessions that ended recently: a slow line may still deliver their packets.
    recently_ended: [Option<VenueSession>; 4],
    recently_ended_next: usize,
    /// Newest send time of the packets at the very start of the current session.
    restart_marker_latest: UnixNs,
    /// Run of consecutive packets far behind the expected sequence although sent long after it: next sequence and
    /// packet count. They suggest a restart whose first packets were lost.
    restart_candidate: Option<(Sequence, u8)>,
    /// A session whose start is not confirmed yet.
    unconfirmed: Option<UnconfirmedSession>,
    /// Receive time of the latest packet of the current session.
    last_received: UnixNs,
    /// The venue has announced the end of the current session and sent no messages of it since.
    has_ended: bool,
}

/// A session that is not confirmed yet.
#[derive(Clone, Copy, Debug)]
struct UnconfirmedSession {
    session: VenueSession,
    /// Packets received of it, and packets needed to confirm it.
    packets_received: u8,
    packets_needed: u8,
    /// Receive time of its first packet.
    since: UnixNs,
    /// Send time of its first packet.
    started: UnixNs,
}

/// Consecutive packets that confirm a session joined in the middle. A single forged or damaged packet must not end
/// the running session.
const MID_SESSION_CONFIRMATIONS: u8 = 3;
/// Packets within [`SESSION_SILENCE_NS_MIN`] that confirm a session received from its start while another one runs:
/// two lines deliver two at once. They need not be consecutive, since the slower line may still deliver the old
/// session.
const SESSION_START_CONFIRMATIONS: u8 = 2;
/// Silence after which a session counts as over, ns: venues send heartbeats every second.
const SESSION_SILENCE_NS_MIN: u64 = 1_000_000_000;
/// Minimum delay, ns, between the newest send time and a packet with old sequences that marks a missed restart. It
/// exceeds any line's delay.
const MISSED_RESTART_NS_MIN: u64 = 1_000_000_000;
/// Minimum difference, ns, between the start times of two consecutive sessions. It exceeds the send time difference
/// of two lines' copies of one packet.
const RESTART_NS_MIN: u64 = 1_000_000;

/// A session that the gateway knows, and what identifies its packets. The state file keeps it, so that a restarted
/// gateway continues with the same restart count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSession {
    /// The session's name in our output.
    pub session: Session,
    /// The session's name at the venue.
    pub venue: VenueSession,
    /// Send time of its first packet, where the transport has send times. Older packets belong to the previous
    /// session.
    pub started: UnixNs,
    /// Newest send time received.
    pub latest: UnixNs,
    /// Whether a message of it was received. A venue at the beginning of a session without messages cannot restart
    /// it.
    pub has_messages: bool,
}

/// Which session a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionMatch {
    /// The packet names the session that the channel is in.
    Current,
    /// A new session, which is current from here on.
    New(Session),
    /// A session that has ended.
    Ended,
    /// A session that only further packets confirm.
    Unconfirmed,
}

impl UnconfirmedSession {
    fn is_session_start(&self) -> bool {
        self.packets_needed == SESSION_START_CONFIRMATIONS
    }

    /// A session start is confirmed by a second packet soon after the first, or not at all.
    fn is_expired(&self, now: UnixNs) -> bool {
        self.is_session_start() && now.0 >= self.since.0.saturating_add(SESSION_SILENCE_NS_MIN)
    }
}

impl SessionTracker {
    /// `date` overrides the date taken from the input; `resume` is the session that was current when the gateway last
    /// ran.
    #[must_use]
    pub fn new(feed: Feed, date: Option<TradingDate>, resume: Option<KnownSession>) -> Self {
        Self {
            feed,
            date,
            current: resume,
            recently_ended: [None; 4],
            recently_ended_next: 0,
            // Copies of the newest packet differ slightly in their send times.
            restart_marker_latest: resume.map_or(UnixNs(0), |resumed| resumed.latest),
            restart_candidate: None,
            unconfirmed: None,
            last_received: UnixNs(0),
            has_ended: false,
        }
    }

    /// Writes the session state for a copy; `false` where no session has begun.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> bool {
        let Some(KnownSession { session, venue, started, latest, has_messages }) = self.current else {
            return false;
        };
        out.extend(session.to_bytes());
        out.extend(venue.0);
        out.extend(started.0.to_le_bytes());
        out.extend(latest.0.to_le_bytes());
        out.push(has_messages.into());
        for ended in self.recently_ended {
            out.push(ended.is_some().into());
            out.extend(ended.unwrap_or_default().0);
        }
        out.extend(u8::try_from(self.recently_ended_next).unwrap_or(0).to_le_bytes());
        out.extend(self.restart_marker_latest.0.to_le_bytes());
        out.extend(self.last_received.0.to_le_bytes());
        out.push(self.has_ended.into());
        true
    }

    /// Restores what another tracker has written. Packets unconfirmed there do not count here.
    ///
    /// # Errors
    /// [`CopyFault`]: the bytes are invalid, or belong to another feed or date.
    pub(super) fn restore(&mut self, rest: &mut FieldReader<'_>) -> Result<Session, CopyFault> {
        let session = rest.session()?;
        if session.feed != self.feed || self.date.is_some_and(|date| date != session.date) {
            return Err(CopyFault::Mismatch);
        }
        let (venue, started, latest) = (rest.venue_session()?, rest.unix_ns()?, rest.unix_ns()?);
        self.current = Some(KnownSession { session, venue, started, latest, has_messages: rest.flag()? });
        for ended in &mut self.recently_ended {
            let (is_some, venue) = (rest.flag()?, rest.venue_session()?);
            *ended = is_some.then_some(venue);
        }
        self.recently_ended_next = usize::from(rest.u8()?);
        if self.recently_ended_next >= self.recently_ended.len() {
            return Err(CopyFault::Malformed);
        }
        (self.restart_marker_latest, self.last_received) = (rest.unix_ns()?, rest.unix_ns()?);
        self.has_ended = rest.flag()?;
        Ok(session)
    }

    /// The session whose packets are accepted now; `None` until a first one is accepted.
    #[must_use]
    pub fn current(&self) -> Option<&KnownSession> {
        self.current.as_ref()
    }

    /// The venue has announced the end of the current session.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether `packet` would begin a new session while another one runs. Changes nothing.
    #[must_use]
    pub fn would_begin_session(&self, packet: &Packet<'_>, ts_recv: UnixNs, expected: Option<Sequence>) -> bool {
        let mut trial = self.clone();
        let running = self.current.map(|current| current.session);
        matches!(trial.classify(packet, ts_recv, expected), SessionMatch::New(session) if Some(session) != running)
    }

    /// Returns which session `packet` belongs to. `expected` is the next sequence of the current session, once this
    /// run has received one of its packets.
    pub fn classify(&mut self, packet: &Packet<'_>, ts_recv: UnixNs, expected: Option<Sequence>) -> SessionMatch {
        let sent = packet.send_time.unwrap_or_default();
        let Some(current) = &mut self.current else { return self.begin(packet, ts_recv, sent, 0) };
        if current.venue != packet.session {
            if self.recently_ended.contains(&Some(packet.session)) {
                return SessionMatch::Ended;
            }
            let is_over = self.has_ended || ts_recv.0 >= self.last_received.0.saturating_add(SESSION_SILENCE_NS_MIN);
            let is_confirmed = expected.is_none() || packet.first <= Sequence(1) && is_over;
            if !is_confirmed && !self.confirm_session(packet, ts_recv) {
                return SessionMatch::Unconfirmed;
            }
            return self.switch_session(packet, ts_recv, sent);
        }
        self.unconfirmed =
            self.unconfirmed.filter(|unconfirmed| unconfirmed.is_session_start() && !unconfirmed.is_expired(ts_recv));
        self.last_received = self.last_received.max(ts_recv);
        let is_beyond = expected.is_some_and(|expected| packet.next() > expected);
        match packet.kind {
            PacketKind::EndOfSession => self.has_ended = true,
            PacketKind::Messages if is_beyond => self.has_ended = false,
            PacketKind::Messages | PacketKind::Heartbeat => {}
        }
        // IEX keeps its session id and starts again at sequence 1, stream offset 0, with a newer send time. A resumed
        // session has no expected sequence yet, but `has_messages` records whether it was beyond 1.
        current.has_messages |= expected.is_some_and(|expected| expected > Sequence(1));
        let is_newer = sent > current.latest && sent.0 > self.restart_marker_latest.0.saturating_add(RESTART_NS_MIN);
        if packet.restart_marker && current.has_messages && is_newer {
            return self.switch_session(packet, ts_recv, sent);
        }
        if sent < current.started {
            return SessionMatch::Ended;
        }
        // A line sends a copy at about the time of the original. Old sequences with a much newer send time mean a
        // restart whose start was missed.
        let is_behind = packet.send_time.is_some() && expected.is_some_and(|expected| packet.next() < expected);
        if is_behind && sent.0 > current.latest.0.saturating_add(MISSED_RESTART_NS_MIN) {
            let packets_received = match self.restart_candidate {
                Some((next, count)) if next == packet.first => count + 1,
                _ => 1,
            };
            self.restart_candidate = Some((packet.next(), packets_received));
            if packets_received >= MID_SESSION_CONFIRMATIONS {
                return self.switch_session(packet, ts_recv, sent);
            }
            return SessionMatch::Unconfirmed;
        }
        self.restart_candidate = None;
        if packet.restart_marker {
            self.restart_marker_latest = self.restart_marker_latest.max(sent);
        }
        // A packet behind the expected sequence may be the second packet of a new session that overtook the first.
        if expected.is_none_or(|expected| packet.next() >= expected) {
            current.latest = current.latest.max(sent);
        }
        if expected.is_none() {
            // The first packet of this run continues the session of the previous run.
            return SessionMatch::New(current.session);
        }
        SessionMatch::Current
    }

    fn confirm_session(&mut self, packet: &Packet<'_>, ts_recv: UnixNs) -> bool {
        let known = self.unconfirmed.filter(|known| known.session == packet.session && !known.is_expired(ts_recv));
        let packets_needed =
            if packet.first <= Sequence(1) { SESSION_START_CONFIRMATIONS } else { MID_SESSION_CONFIRMATIONS };
        let started = packet.send_time.unwrap_or_default();
        let first_packet = UnconfirmedSession {
            session: packet.session,
            packets_received: 0,
            packets_needed,
            since: ts_recv,
            started,
        };
        let unconfirmed = known.unwrap_or(first_packet);
        let unconfirmed = UnconfirmedSession {
            packets_received: unconfirmed.packets_received + 1,
            packets_needed: unconfirmed.packets_needed.min(packets_needed),
            ..unconfirmed
        };
        self.unconfirmed = Some(unconfirmed);
        unconfirmed.packets_received >= unconfirmed.packets_needed
    }

    fn switch_session(&mut self, packet: &Packet<'_>, ts_recv: UnixNs, sent: UnixNs) -> SessionMatch {
        let Some(ending) = self.current else { return self.begin(packet, ts_recv, sent, 0) };
        if ending.venue != packet.session {
            if let Some(slot) = self.recently_ended.get_mut(self.recently_ended_next) {
                *slot = Some(ending.venue);
            }
            self.recently_ended_next = (self.recently_ended_next + 1) % self.recently_ended.len();
        }
        self.begin(packet, ts_recv, sent, ending.session.restart.saturating_add(1))
    }

    /// Makes the packet's session current. `restart` applies only if the trading date is unchanged.
    fn begin(&mut self, packet: &Packet<'_>, ts_recv: UnixNs, sent: UnixNs, restart: u32) -> SessionMatch {
        let sent_or_received = packet.send_time.unwrap_or(ts_recv);
        let date = self.date.unwrap_or_else(|| TradingDate::in_new_york(sent_or_received));
        let session = match self.current {
            // Dates never decrease from session to session: an earlier date than the current one can only come from a
            // wrong clock.
            Some(ended) if date <= ended.session.date => Session { feed: self.feed, date: ended.session.date, restart },
            _ => Session { feed: self.feed, date, restart: 0 },
        };
        self.restart_marker_latest = if packet.restart_marker { sent } else { UnixNs(0) };
        // Packets received before the session was confirmed count towards it.
        let confirmed = self.unconfirmed.take().filter(|unconfirmed| unconfirmed.session == packet.session);
        let started = confirmed.map_or(sent, |unconfirmed| unconfirmed.started.min(sent));
        self.restart_candidate = None;
        self.last_received = ts_recv;
        self.has_ended = packet.kind == PacketKind::EndOfSession;
        self.current =
            Some(KnownSession { session, venue: packet.session, started, latest: sent, has_messages: false });
        SessionMatch::New(session)
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

    fn restart_of(matched: SessionMatch) -> u32 {
        match matched {
            SessionMatch::New(session) => session.restart,
            other => panic!("{other:?} is no new session"),
        }
    }

    #[test]
    fn iex_restarts_are_sessions_of_their_own() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut classify = |first, sent, expected: Option<u64>| {
            tracker.classify(&packet(9, first, Some(sent)), UnixNs(NOON), expected.map(Sequence))
        };
        assert_eq!(restart_of(classify(1, 10, None)), 0);
        // Heartbeats before the first message, on both lines.
        assert_eq!(classify(1, 20, Some(1)), SessionMatch::Current);
        assert_eq!(classify(1, 20, Some(1)), SessionMatch::Current);
        assert_eq!(classify(1, 30, Some(1)), SessionMatch::Current);
        // The slower line's first packet is no restart: its send time is not newer.
        assert_eq!(classify(1, 30, Some(50)), SessionMatch::Current);
        assert_eq!(classify(50, 40, Some(50)), SessionMatch::Current);
        assert_eq!(restart_of(classify(1, 50, Some(60))), 1);
        // The slower line's late packets of the old session.
        assert_eq!(classify(60, 45, Some(1)), SessionMatch::Ended);
        assert_eq!(restart_of(classify(1, 60, Some(2))), 2);
    }

    #[test]
    fn a_restart_with_lost_first_packets_is_confirmed_by_the_third_packet() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut classify = |first, sent, expected: u64| {
            tracker.classify(&packet(9, first, Some(sent)), UnixNs(NOON), (expected > 0).then_some(Sequence(expected)))
        };
        assert_eq!(restart_of(classify(1, 10, 0)), 0);
        assert_eq!(classify(50, 20, 50), SessionMatch::Current);
        // The slower line's copies are as old as their originals.
        assert_eq!(classify(30, 20, 50), SessionMatch::Current);
        assert_eq!(classify(3, 60, 50), SessionMatch::Unconfirmed);
        assert_eq!(classify(3, 61, 50), SessionMatch::Unconfirmed);
        assert_eq!(restart_of(classify(3, 62, 50)), 1);
    }

    #[test]
    fn moldudp64_sessions_are_identified_by_name() {
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        let mut classify = |venue, first, day: u64, expected: Option<u64>| {
            tracker.classify(&packet(venue, first, None), UnixNs(NOON + day * DAY_NS), expected.map(Sequence))
        };
        assert_eq!(restart_of(classify(1, 5, 0, None)), 0);
        assert_eq!(classify(1, 6, 0, Some(6)), SessionMatch::Current);
        assert_eq!(classify(2, 1, 0, Some(6)), SessionMatch::Unconfirmed);
        assert_eq!(restart_of(classify(2, 1, 0, Some(6))), 1);
        assert_eq!(classify(1, 6, 0, Some(1)), SessionMatch::Ended);
        assert_eq!(restart_of(classify(3, 1, 1, Some(6))), 0);
    }

    #[test]
    fn stray_packets_do_not_end_a_session() {
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        let mut classify =
            |venue, first| tracker.classify(&packet(venue, first, None), UnixNs(NOON), Some(Sequence(6)));
        assert_eq!(restart_of(classify(1, 5)), 0);
        for _ in 0..5 {
            assert_eq!(classify(2, 70), SessionMatch::Unconfirmed);
            assert_eq!(classify(2, 71), SessionMatch::Unconfirmed);
            assert_eq!(classify(1, 6), SessionMatch::Current);
        }
        assert_eq!(classify(2, 72), SessionMatch::Unconfirmed);
        assert_eq!(classify(3, 72), SessionMatch::Unconfirmed);
        // Negative control: a run that continues is confirmed.
        assert_eq!([classify(2, 73), classify(2, 74)], [SessionMatch::Unconfirmed; 2]);
        assert_eq!(restart_of(classify(2, 75)), 1);
    }

    #[test]
    fn a_single_start_packet_does_not_end_the_running_session() {
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        let mut classify = |venue, first, after_ms: u64, kind| {
            let packet = Packet { kind, ..packet(venue, first, None) };
            tracker.classify(&packet, UnixNs(NOON + after_ms * 1_000_000), Some(Sequence(6)))
        };
        let (heartbeat, messages) = (PacketKind::Heartbeat, PacketKind::Messages);
        assert_eq!(restart_of(classify(1, 5, 0, messages)), 0);
        assert_eq!(classify(2, 1, 10, messages), SessionMatch::Unconfirmed);
        assert_eq!(classify(1, 6, 500, messages), SessionMatch::Current);
        assert_eq!(classify(1, 6, 1_400, messages), SessionMatch::Current);
        assert_eq!(classify(2, 1, 1_400, messages), SessionMatch::Unconfirmed, "the one before came too long ago");
        assert_eq!(classify(1, 6, 1_500, messages), SessionMatch::Current);
        assert_eq!(classify(3, 1, 1_600, messages), SessionMatch::Unconfirmed);
        assert_eq!(classify(2, 1, 1_600, messages), SessionMatch::Unconfirmed);
        assert_eq!(classify(1, 6, 1_700, messages), SessionMatch::Current);
        // The other line's copy, or the next packet, confirms the session.
        assert_eq!(restart_of(classify(2, 2, 1_800, messages)), 1);
        // A session has ended after a second of silence, or once the venue announces its end.
        assert_eq!(restart_of(classify(4, 1, 2_800, messages)), 2);
        assert_eq!(classify(4, 9, 2_801, PacketKind::EndOfSession), SessionMatch::Current);
        assert_eq!(classify(4, 9, 2_802, heartbeat), SessionMatch::Current);
        assert_eq!(restart_of(classify(5, 1, 2_803, messages)), 3);
    }

    #[test]
    fn start_packet_copies_with_own_send_times_are_no_restart() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut classify = |first, sent_ns: u64, expected: u64| {
            let packet = Packet { send_time: Some(UnixNs(NOON + sent_ns)), ..packet(9, first, Some(0)) };
            tracker.classify(&packet, UnixNs(NOON), (sent_ns > 0).then_some(Sequence(expected)))
        };
        assert_eq!(restart_of(classify(1, 0, 1)), 0);
        assert_eq!(classify(1, 50 * SECOND_NS, 1), SessionMatch::Current);
        // The other line's copy, with a later send time, after the first copy was delivered.
        assert_eq!(classify(1, 50 * SECOND_NS + 3_000, 20), SessionMatch::Current);
        assert_eq!(classify(1, 50 * SECOND_NS + RESTART_NS_MIN, 20), SessionMatch::Current);
        assert_eq!(restart_of(classify(1, 50 * SECOND_NS + 2 * RESTART_NS_MIN + 1, 20)), 1);
    }

    #[test]
    fn a_restart_is_detected_after_reordering() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let mut classify = |first, sent, expected: Option<u64>| {
            tracker.classify(&packet(9, first, Some(sent)), UnixNs(NOON), expected.map(Sequence))
        };
        assert_eq!(restart_of(classify(1, 10, None)), 0);
        assert_eq!(classify(500, 20, Some(500)), SessionMatch::Current);
        assert_eq!(classify(4, 31, Some(500)), SessionMatch::Unconfirmed);
        assert_eq!(restart_of(classify(1, 30, Some(500))), 1);
        assert_eq!(classify(4, 31, Some(4)), SessionMatch::Current);
    }

    #[test]
    fn a_configured_date_wins_and_dates_never_decrease() {
        let date = TradingDate::from_yyyymmdd(20_190_130);
        let mut tracker = SessionTracker::new(Feed::NasdaqItch, date, None);
        let SessionMatch::New(first) = tracker.classify(&packet(1, 1, None), UnixNs(NOON), None) else { panic!() };
        assert_eq!(Some(first.date), date);

        let mut tracker = SessionTracker::new(Feed::NasdaqItch, None, None);
        tracker.classify(&packet(1, 1, None), UnixNs(NOON), None);
        let SessionMatch::New(second) = tracker.classify(&packet(2, 1, None), UnixNs(NOON - 3 * DAY_NS), None) else {
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
    fn a_gateway_restarted_while_the_venue_is_idle_agrees_with_its_peer_on_the_restart_count() {
        let mut peer = SessionTracker::new(Feed::IexDeep, None, None);
        let mut idle =
            |sent| peer.classify(&packet(9, 1, Some(sent)), UnixNs(NOON), (sent > 10).then_some(Sequence(1)));
        assert_eq!(restart_of(idle(10)), 0);
        assert_eq!(idle(20), SessionMatch::Current);
        let kept = peer.current().copied();

        let mut restarted = SessionTracker::new(Feed::IexDeep, None, kept);
        assert_eq!(restart_of(restarted.classify(&packet(9, 1, Some(70)), UnixNs(NOON), None)), 0);
        assert_eq!(peer.classify(&packet(9, 1, Some(70)), UnixNs(NOON), Some(Sequence(1))), SessionMatch::Current);
        // Both then count the venue's own restart.
        for tracker in [&mut peer, &mut restarted] {
            assert_eq!(
                tracker.classify(&packet(9, 6, Some(80)), UnixNs(NOON), Some(Sequence(6))),
                SessionMatch::Current
            );
            assert_eq!(restart_of(tracker.classify(&packet(9, 1, Some(90)), UnixNs(NOON), Some(Sequence(6)))), 1);
        }
    }

    #[test]
    fn a_late_copy_of_the_newest_packet_is_no_venue_restart_after_a_gateway_restart() {
        let mut tracker = SessionTracker::new(Feed::IexDeep, None, None);
        let started = packet(9, 1, Some(10));
        tracker.classify(&started, UnixNs(NOON), None);
        let kept = tracker.current().map(|kept| KnownSession { has_messages: true, ..*kept });
        let copy = Packet { send_time: started.send_time.map(|sent| UnixNs(sent.0 + 3_000)), ..started };
        let mut restarted = SessionTracker::new(Feed::IexDeep, None, kept);
        assert_eq!(restart_of(restarted.classify(&copy, UnixNs(NOON), None)), 0);
    }
}
