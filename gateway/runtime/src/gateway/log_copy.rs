//! A gateway that starts with a copy of its peer's state also copies what its own log lacks before that state: the gateway may have to
//! publish it, if no gateway has.

use std::{net::SocketAddrV4, time::Duration};

use mdgw_engine::publish::{LogSink, PeerEntry, PeerEntryFault};
use mdgw_feeds::{
    identity::{Sequence, Session},
    published::position::StreamPosition,
};
use mdgw_pair::pair_link::{
    CopyError,
    message::{LogRequest, LoggedEntry},
};
use mdgw_publog::SegmentMaintenance;
use mdgw_sys::clock::unix_now;

use super::{group::LogHole, state_copy::Donors};
use crate::config::resolved::ChannelSetup;

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
    sink: &'log mut LogSink,
    maintenance: &'log mut SegmentMaintenance,
    /// Position of the copied state.
    until: StreamPosition,
    /// From the first message that stays missing to the one behind the last.
    hole: Option<LogHole>,
    entries: u64,
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
        Self { sink, maintenance, until, hole: None, entries: 0, fault: None, segments: 0 }
    }

    /// Fills the log from the log of the peer that the state was copied from.
    pub(super) fn fill(
        mut self,
        donors: &mut Donors,
        peer: SocketAddrV4,
        setup: &ChannelSetup,
        messages_max: u64,
    ) -> LogCopyOutcome {
        let channel = setup.id;
        let mut is_peer_lost = false;
        for attempt in 1..=ATTEMPTS_MAX {
            let request = LogRequest { channel, from: self.sink.committed_through(), messages_max };
            match donors.fetch_log(peer, request, &mut |session, entry| self.accept(session, entry)) {
                Ok(()) => {
                    tracing::info!(%peer, channel = setup.name, entries = self.entries, "copied entries of the peer's log");
                    break;
                }
                Err(error) if is_retried(&error) && attempt < ATTEMPTS_MAX && !donors.is_given_up(peer) => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    tracing::warn!(%peer, channel = setup.name, entries = self.entries, %error, "could not copy the peer's log");
                    // The last attempt counts: the connection of a peer that has died ends like that of one that refuses the request.
                    is_peer_lost = matches!(error, CopyError::Unreachable(_)) || donors.is_given_up(peer);
                    break;
                }
            }
        }
        if let Some(fault) = self.fault {
            tracing::warn!(%peer, channel = setup.name, %fault, "the copy of the peer's log ends early");
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
        let (end, committed) = (self.end(), self.sink.committed_through());
        let entry =
            PeerEntry { session, first: *first, next: *next, flags: *flags, frame_count: *frame_count, payload };
        if self.fault.is_some() {
            return;
        }
        self.sink.begin(unix_now());
        match self.sink.append_peer_entry(&entry, self.until) {
            Ok(()) if self.sink.committed_through() == committed => {}
            Ok(()) => {
                self.entries += 1;
                if session == self.until.session {
                    self.extend_hole(end, *first);
                }
            }
            Err(fault) => self.fault = Some(fault),
        }
        let segments = self.sink.writer().counts().segments;
        if segments != self.segments {
            self.segments = segments;
            self.maintenance.run_once(unix_now().0);
        }
    }

    /// End of the log in the session of the state.
    fn end(&self) -> Sequence {
        let committed = self.sink.committed_through();
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
mod tests {
    use mdgw_feeds::{
        channel::ChannelState,
        frame::{FrameHeader, FrameKind, FrameMeta, StateBody},
    };
    use mdgw_publog::{LogOptions, OpenedLog, Reader};
    use zerocopy::IntoBytes as _;

    use super::*;
    use crate::state_file::tests::known;

    /// An entry with the frame of a state at its beginning.
    fn entry(first: u64, next: u64) -> LoggedEntry {
        let body = StateBody::of(ChannelState::Live);
        let meta = FrameMeta::state(Sequence(first));
        let header = FrameHeader {
            sequence: first.into(),
            ts_recv: meta.ts_recv.into(),
            ts_in_delta_ns: meta.ts_in_delta_ns.into(),
            body_bytes: u16::try_from(size_of::<StateBody>()).unwrap().into(),
            record_count: 0.into(),
            kind: FrameKind::State as u8,
            flags: 0,
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
        let long = LoggedEntry { payload: entry(70, 80).payload.repeat(60), frame_count: 60, ..entry(70, 80) };
        assert_eq!(copied(Some(50), &[(1, long)]), (vec![], Some((50, 100))), "it would be too long");
    }
}
