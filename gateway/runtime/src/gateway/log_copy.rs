//! A gateway that starts with a copy of its peer's state also copies what its own log lacks before that state: the gateway may have to
//! publish it, if no gateway has.

use std::{net::SocketAddrV4, time::Duration};

use mdgw_engine::publish::{LogSink, PeerEntries, PeerEntry, PeerEntryFault};
use mdgw_feeds::{
    identity::{ChannelId, Sequence, Session},
    published::position::StreamPosition,
};
use mdgw_pair::pair_link::{
    CopyError,
    message::{LogRequest, LoggedEntry},
};
use mdgw_publog::SegmentMaintenance;
use mdgw_sys::clock::unix_now;

use super::{group::LogHole, state_copy::Donors};

/// What a copy of a peer's log has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogCopyOutcome {
    /// What the log lacks of the state's session before the state.
    pub(super) hole: Option<LogHole>,
    /// The part of the hole that later entries of the log follow: no channel can fill it.
    pub(super) hole_before_end: Option<LogHole>,
    /// The peer stopped answering: it has died, hangs, or cannot be reached. A peer that refuses the request, or whose log lacks the
    /// entries, still runs.
    pub(super) is_peer_lost: bool,
}

/// The log of a channel before it begins, and how far it is to be filled.
#[derive(Debug)]
pub(super) struct LogCopy<'log> {
    entries: PeerEntries<'log>,
    maintenance: &'log mut SegmentMaintenance,
    /// Position of the copied state.
    until: StreamPosition,
    /// From the first message that stays missing to the one behind the last.
    hole: Option<LogHole>,
    count: u64,
    fault: Option<PeerEntryFault>,
    /// Segments begun when maintenance ran last.
    segments: u64,
}

impl<'log> LogCopy<'log> {
    pub(super) fn new(
        sink: &'log mut LogSink,
        maintenance: &'log mut SegmentMaintenance,
        until: StreamPosition,
    ) -> Self {
        let entries = PeerEntries::new(sink, until);
        Self { entries, maintenance, until, hole: None, count: 0, fault: None, segments: 0 }
    }

    /// Fills the log from the log of the peer that the state was copied from.
    pub(super) fn fill(
        mut self,
        donors: &mut Donors,
        peer: SocketAddrV4,
        (channel, name): (ChannelId, &str),
        messages_max: u64,
    ) -> LogCopyOutcome {
        let mut is_peer_lost = false;
        for attempt in 1..=ATTEMPTS_MAX {
            let request = LogRequest { channel, from: self.entries.sink().committed_through(), messages_max };
            match donors.fetch_log(peer, request, &mut |session, entry| self.accept(session, entry)) {
                Ok(()) => {
                    tracing::info!(%peer, channel = name, entries = self.count, "copied entries of the peer's log");
                    break;
                }
                Err(error) if is_retried(&error) && attempt < ATTEMPTS_MAX && !donors.is_given_up(peer) => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    tracing::warn!(%peer, channel = name, entries = self.count, %error, "could not copy the peer's log");
                    // The last attempt counts: the connection of a peer that has died ends like that of one that refuses the request.
                    is_peer_lost = matches!(error, CopyError::Unreachable(_)) || donors.is_given_up(peer);
                    break;
                }
            }
        }
        if let Some(fault) = self.fault {
            tracing::warn!(%peer, channel = name, %fault, "the copy of the peer's log ends early");
        }
        if is_peer_lost {
            donors.forget(peer);
        }
        self.outcome(is_peer_lost)
    }

    fn outcome(mut self, is_peer_lost: bool) -> LogCopyOutcome {
        let hole_before_end = self.hole;
        let end = self.end();
        self.extend_hole(end, self.until.sequence);
        LogCopyOutcome { hole: self.hole, hole_before_end, is_peer_lost }
    }

    fn accept(&mut self, session: Session, entry: &LoggedEntry) {
        let LoggedEntry { first, next, flags, frame_count, payload } = entry;
        let (end, committed) = (self.end(), self.entries.sink().committed_through());
        let entry =
            PeerEntry { session, first: *first, next: *next, flags: *flags, frame_count: *frame_count, payload };
        if self.fault.is_some() {
            return;
        }
        self.entries.begin(unix_now());
        self.fault = self.entries.append(&entry).err();
        if self.entries.sink().committed_through() != committed {
            self.count += 1;
            if session == self.until.session {
                self.extend_hole(end, *first);
            }
        }
        let segments = self.entries.sink().writer().counts().segments;
        if segments != self.segments {
            self.segments = segments;
            self.maintenance.run_once(unix_now().0);
        }
    }

    /// End of the log in the session of the state.
    fn end(&self) -> Sequence {
        let committed = self.entries.sink().committed_through();
        committed.filter(|end| end.session == self.until.session).map_or(Sequence(1), |end| end.sequence)
    }

    /// Messages that stay missing begin at `first`; the log goes on at `next`.
    fn extend_hole(&mut self, first: Sequence, next: Sequence) {
        if first < next {
            let session = self.until.session;
            let begin = self.hole.map_or_else(|| StreamPosition::at(session, first), |(begin, _)| begin);
            self.hole = Some((begin, StreamPosition::at(session, next)));
        }
    }
}

fn is_retried(error: &CopyError) -> bool {
    matches!(error, CopyError::Io(_) | CopyError::Unreachable(_))
}

const ATTEMPTS_MAX: u32 = 3;
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
pub(super) mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    };

    use mdgw_election::{
        auth::{Nonce, SharedKey},
        identity::Incarnation,
    };
    use mdgw_feeds::{
        channel::ChannelState,
        frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, FrameMeta, StateBody},
    };
    use mdgw_pair::pair_link::{
        SilenceLimit,
        framing::LinkStream,
        message::{LinkIdentity, LinkMessage},
    };
    use mdgw_publog::{LogOptions, OpenedLog, Reader};
    use zerocopy::{FromBytes as _, IntoBytes as _};

    use super::*;
    use crate::state_file::tests::known;

    /// An entry with the frame of a state at its beginning.
    pub(in crate::gateway) fn entry(first: u64, next: u64) -> LoggedEntry {
        let body = StateBody::of(ChannelState::Live);
        let meta = FrameMeta::state(Sequence(first));
        let header = FrameHeader {
            sequence: first.into(),
            ts_recv: meta.ts_recv.into(),
            ts_in_delta_ns: meta.ts_in_delta_ns.into(),
            body_bytes: u16::try_from(size_of::<StateBody>()).unwrap().into(),
            record_count: 0.into(),
            kind: FrameKind::State as u8,
            flags: FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0,
            part: 0.into(),
            reserved: 0.into(),
        };
        let payload = [header.as_bytes(), body.as_bytes()].concat();
        LoggedEntry { first: Sequence(first), next: Sequence(next), flags: 0, frame_count: 1, payload }
    }

    /// Session and range of an entry.
    type Logged = (u32, u64, u64);

    /// What is in the log, and the hole, after these entries of the peer, with a state copied at 100.
    fn copied(own_end: Option<u64>, entries: &[(u32, LoggedEntry)]) -> (Vec<Logged>, Option<(u64, u64)>) {
        let (logged, [hole, _]) = copied_with_holes(own_end, entries);
        (logged, hole)
    }

    /// The same, and the part of the hole before the end of the log.
    fn copied_with_holes(
        own_end: Option<u64>,
        entries: &[(u32, LoggedEntry)],
    ) -> (Vec<Logged>, [Option<(u64, u64)>; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(directory.path(), 1) };
        let OpenedLog { writer, mut maintenance, .. } = mdgw_publog::open(options, 1).unwrap();
        let mut sink = LogSink::new(writer);
        if let Some(end) = own_end {
            sink.resume(known(1).session, Sequence(end), false);
        }
        let until = StreamPosition::at(known(1).session, Sequence(100));
        let mut copy = LogCopy::new(&mut sink, &mut maintenance, until);
        entries.iter().for_each(|(restart, entry)| copy.accept(known(*restart).session, entry));
        let LogCopyOutcome { hole, hole_before_end, .. } = copy.outcome(false);
        let mut reader = Reader::open(directory.path(), 1).unwrap();
        let mut logged = Vec::new();
        while let Some(entry) = reader.next() {
            logged.push((Session::from_bytes(entry.session).unwrap().restart, entry.first, entry.next));
        }
        let sequences = |hole: Option<LogHole>| hole.map(|(first, next)| (first.sequence.0, next.sequence.0));
        (logged, [hole, hole_before_end].map(sequences))
    }

    #[test]
    fn what_neither_log_has_is_the_hole() {
        let at = |restart, first, next| (restart, entry(first, next));
        let whole = [at(1, 1, 40), at(1, 40, 90), at(1, 90, 120)];
        assert_eq!(copied(None, &whole), (vec![(1, 1, 40), (1, 40, 90), (1, 90, 100)], None));
        assert_eq!(copied(Some(90), &whole), (vec![(1, 90, 100)], None));
        assert_eq!(copied(None, &[]), (vec![], Some((1, 100))));
        assert_eq!(copied(Some(30), &[]), (vec![], Some((30, 100))));
        // The peer's log begins late, lacks entries, and ends early.
        let holes = [at(1, 20, 40), at(1, 50, 90)];
        assert_eq!(copied(Some(10), &holes), (vec![(1, 20, 40), (1, 50, 90)], Some((10, 100))));
        assert_eq!(copied(None, &[at(1, 1, 40), at(1, 50, 100)]).1, Some((40, 50)));
        // Sessions before that of the state do not count, later ones are not copied.
        assert_eq!(copied(None, &[at(0, 7, 9), at(1, 1, 100)]), (vec![(0, 7, 9), (1, 1, 100)], None));
        assert_eq!(copied(None, &[at(1, 1, 100), at(2, 1, 5)]), (vec![(1, 1, 100)], None));
    }

    pub(in crate::gateway) fn key() -> SharedKey {
        SharedKey::new(&[7; 32])
    }

    /// The address of a peer that does that with the request of each connection.
    pub(in crate::gateway) fn peer(act: impl Fn(&mut TcpStream, &mut LinkStream) + Send + 'static) -> SocketAddrV4 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!("bound to one") };
        std::thread::spawn(move || {
            for mut socket in listener.incoming().map_while(Result::ok) {
                let identity = LinkIdentity { node: 2, incarnation: Incarnation(2) };
                let mut stream = LinkStream::new(key(), identity, Nonce::random().unwrap());
                socket.write_all(&stream.hello()).unwrap();
                let mut bytes = [0; 1_024];
                while !matches!(stream.next_message(), Ok(Some(LinkMessage::LogRequest(_)))) {
                    let count = socket.read(&mut bytes).unwrap();
                    stream.push(&bytes[..count]);
                }
                act(&mut socket, &mut stream);
            }
        });
        address
    }

    #[test]
    fn a_peer_is_lost_that_does_not_answer_and_not_one_that_refuses() {
        let bound = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address_of = |listener: &TcpListener| match listener.local_addr().unwrap() {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => unreachable!("bound to one"),
        };
        let dead = address_of(&bound());
        // The kernel accepts connections even for a stopped process.
        let stopped = bound();
        let hanging = peer(|socket, _| while socket.read(&mut [0; 64]).is_ok_and(|count| count > 0) {});
        // As a program that knows no such request.
        let refusing = peer(|_, _| {});
        let without_entries = peer(|socket, stream| {
            let end = stream.seal(&LinkMessage::LogEnd { channel: ChannelId(1) }).unwrap();
            socket.write_all(&end).unwrap();
        });
        for (what, address, is_lost) in [
            ("dead", dead, true),
            ("stopped", address_of(&stopped), true),
            ("hanging", hanging, true),
            ("refusing", refusing, false),
            ("without entries", without_entries, false),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let OpenedLog { writer, mut maintenance, .. } =
                mdgw_publog::open(LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(directory.path(), 1) }, 1)
                    .unwrap();
            let mut sink = LogSink::new(writer);
            let until = StreamPosition::at(known(1).session, Sequence(100));
            let silence_limit = SilenceLimit::new(Duration::from_millis(200), Duration::from_millis(300));
            let mut donors = Donors::at(address, key(), silence_limit);
            let copy = LogCopy::new(&mut sink, &mut maintenance, until);
            let outcome = copy.fill(&mut donors, address, (ChannelId(1), "one"), 1_000);
            assert_eq!(outcome.is_peer_lost, is_lost, "{what}");
            assert_eq!(donors.are_all_unreachable(), is_lost, "{what}: it is asked for no other channel");
            assert_eq!(outcome.hole.map(|(first, next)| (first.sequence.0, next.sequence.0)), Some((1, 100)));
        }
    }

    #[test]
    fn the_part_of_a_hole_that_later_entries_follow_is_told_apart() {
        let at = |first, next| (1, entry(first, next));
        for (own_end, entries, expected) in [
            (Some(30), vec![], [Some((30, 100)), None]),
            (Some(30), vec![at(30, 60)], [Some((60, 100)), None]),
            (Some(30), vec![at(40, 60)], [Some((30, 100)), Some((30, 40))]),
            (Some(30), vec![at(40, 100)], [Some((30, 40)), Some((30, 40))]),
            (None, vec![at(1, 100)], [None, None]),
        ] {
            assert_eq!(copied_with_holes(own_end, &entries).1, expected, "{own_end:?} {entries:?}");
        }
    }

    #[test]
    fn nothing_behind_a_damaged_entry_is_used() {
        let damaged = LoggedEntry { frame_count: 7, ..entry(40, 60) };
        let entries = [(1, entry(1, 40)), (1, damaged), (1, entry(60, 100))];
        assert_eq!(copied(None, &entries), (vec![(1, 1, 40)], Some((40, 100))));
        let frame = entry(70, 80).payload;
        let mut header = FrameHeader::read_from_bytes(&frame[..FRAME_HEADER_BYTES]).unwrap();
        header.body_bytes = 2_000.into();
        let long = LoggedEntry { payload: [header.as_bytes(), &[0; 2_000]].concat(), ..entry(70, 80) };
        assert_eq!(copied(Some(50), &[(1, long)]), (vec![], Some((50, 100))), "no packet holds it");
    }

    #[test]
    fn an_entry_longer_than_a_packet_becomes_several() {
        let long = LoggedEntry { payload: entry(70, 80).payload.repeat(60), frame_count: 60, ..entry(70, 80) };
        let entries = [(1, entry(1, 70)), (1, long), (1, entry(80, 100))];
        let logged = vec![(1, 1, 70), (1, 70, 70), (1, 70, 80), (1, 80, 100)];
        assert_eq!(copied(None, &entries), (logged, None));
    }
}
