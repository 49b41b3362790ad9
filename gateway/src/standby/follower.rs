//! The own publication log, followed: how far this gateway is.

use std::{collections::VecDeque, path::Path};

use mdgw_feeds::{
    identity::{ChannelId, Sequence, Session},
    published::position::StreamPosition,
};
use mdgw_publog::{KeepFrom, LogError, Position, Reader};

/// Follows one channel's log from its end on.
#[derive(Debug)]
pub(super) struct LogFollower {
    reader: Reader,
    ready: Option<StreamPosition>,
    keep_from: KeepFrom,
    /// Where segments begin that were come to, oldest first.
    segments: VecDeque<(StreamPosition, Position)>,
}

impl LogFollower {
    /// `ready`: how far the log had come when it was opened.
    pub(super) fn new(
        directory: &Path,
        channel: ChannelId,
        ready: Option<StreamPosition>,
        keep_from: KeepFrom,
    ) -> Result<Self, LogError> {
        let mut reader = Reader::open(directory, channel.0)?;
        reader.seek_end()?;
        Ok(Self { reader, ready, keep_from, segments: VecDeque::new() })
    }

    /// Reads on, some entries at most. Whether there may be more.
    pub(super) fn follow(&mut self) -> bool {
        for _ in 0..ENTRIES_PER_TURN {
            let Some(entry) = self.reader.next() else { return false };
            let Some(session) = Session::from_bytes(entry.session) else { continue };
            let range = (Sequence(entry.first), Sequence(entry.next));
            let (from, until) = StreamPosition::span_of_body(session, range, entry.payload);
            self.ready = self.ready.max(Some(until));
            if self.segments.back().is_none_or(|(_, begin)| begin.segment < entry.position.segment) {
                self.segments.push_back((from, entry.position));
            }
        }
        true
    }

    /// How far the log has come.
    pub(super) fn ready(&self) -> Option<StreamPosition> {
        self.ready
    }

    /// Keeps what nobody has been heard to publish; with `None`, nothing in particular.
    pub(super) fn keep_from(&mut self, heard: Option<StreamPosition>) {
        if let Some(heard) = heard {
            while self.segments.get(1).is_some_and(|(from, _)| *from <= heard) {
                self.segments.pop_front();
            }
        } else if let Some(last) = self.segments.pop_back() {
            self.segments.clear();
            self.segments.push_back(last);
        }
        let oldest = self.segments.front().map(|(_, begin)| *begin);
        self.keep_from.set(heard.and(oldest));
    }
}

/// So many, then the sockets have their turn.
const ENTRIES_PER_TURN: usize = 4_096;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use mdgw_feeds::{
        frame::{FrameFlags, FrameKind, FrameMeta, FrameSink},
        identity::Feed,
        time::{TradingDate, UnixNs},
    };
    use mdgw_publog::{LogOptions, Opened, Retention};

    use super::*;
    use crate::publish::LogSink;

    const NOW: UnixNs = UnixNs(1_600_000_000_000_000_000);

    fn session() -> Session {
        Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 0 }
    }

    #[test]
    fn it_follows_to_the_end_and_keeps_what_was_not_heard() {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions {
            segment_bytes: 64 << 10,
            private_bytes: 64 << 10,
            retention: Retention { bytes_max: 192 << 10, age_ns_max: None, protected_bytes_max: 1 << 20 },
            ..LogOptions::new(directory.path(), 3)
        };
        let Opened { writer, mut keeper, .. } = mdgw_publog::open(options, NOW.0).unwrap();
        let mut log = LogSink::new(writer);
        log.begin(NOW);
        log.session(session(), Sequence(1));
        let mut follower = LogFollower::new(directory.path(), ChannelId(3), None, keeper.keep_from()).unwrap();
        assert!(!follower.follow() && follower.ready().is_none());
        let mut write = |keeper: &mut mdgw_publog::Keeper, range: std::ops::Range<u64>| {
            for sequence in range {
                keeper.turn(NOW.0);
                let meta = FrameMeta {
                    sequence: Sequence(sequence),
                    next: Sequence(sequence + 1),
                    kind: FrameKind::Message,
                    flags: FrameFlags::default(),
                    ts_recv: NOW.0,
                    ts_in_delta_ns: 0,
                };
                let mut record = [0; 80];
                record[0] = 20;
                log.frame(&meta, 1, &record);
                log.flush();
            }
        };
        let heard = |sequence| Some(StreamPosition::at(session(), Sequence(sequence)));
        let oldest = || {
            let mut reader = Reader::open(directory.path(), 3).unwrap();
            reader.next().map(|entry| entry.first).unwrap()
        };
        write(&mut keeper, 1..10);
        follower.follow();
        follower.keep_from(heard(5));
        for first in (10..3_000).step_by(100) {
            write(&mut keeper, first..first + 100);
            follower.follow();
            follower.keep_from(heard(5));
        }
        assert_eq!(follower.ready(), heard(3_010));
        assert_eq!(oldest(), 1, "nobody was heard to publish 5");
        follower.keep_from(heard(2_900));
        write(&mut keeper, 3_010..3_200);
        assert!(oldest() > 5 && oldest() <= 2_900, "{}", oldest());
        follower.keep_from(None);
        assert_eq!(follower.segments.len(), 1);
    }
}
