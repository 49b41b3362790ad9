//! The own publication log, followed: how far this gateway is.

use std::{collections::VecDeque, path::Path, sync::Arc};

use mdgw_engine::publish::TakeoverWords;
use mdgw_feeds::{
    identity::{ChannelId, Sequence, Session},
    published::{packet::Frames, position::StreamPosition},
};
use mdgw_publog::{KeepFrom, LogError, Position, Reader};

use super::windows::{Passed, WindowHasher};
use crate::standby::windows::WindowHash;

/// Follows one channel's log from its end on.
#[derive(Debug)]
pub(super) struct LogFollower {
    reader: Reader,
    /// Where the first entry begins that was read.
    from: Option<StreamPosition>,
    ready: Option<StreamPosition>,
    keep_from: KeepFrom,
    /// Where segments begin that were come to, oldest first.
    segments: VecDeque<(StreamPosition, Position)>,
    words: Arc<TakeoverWords>,
    published: Option<StreamPosition>,
    /// Where entries end that have not been sent yet, in the log and in the stream, while this gateway leads.
    unsent: VecDeque<(Position, StreamPosition)>,
    hasher: WindowHasher,
}

impl LogFollower {
    /// `ready`: how far the log had come when it was opened.
    pub(super) fn new(
        directory: &Path,
        channel: ChannelId,
        ready: Option<StreamPosition>,
        keep_from: KeepFrom,
        words: Arc<TakeoverWords>,
    ) -> Result<Self, LogError> {
        let mut reader = Reader::open(directory, channel.0)?;
        reader.seek_end()?;
        let (segments, unsent) = (VecDeque::new(), VecDeque::new());
        let hasher = WindowHasher::new(channel);
        Ok(Self { reader, from: None, ready, keep_from, segments, words, published: None, unsent, hasher })
    }

    /// Reads on, some entries at most. Whether there may be more. Windows that are complete go to `done`.
    pub(super) fn follow(&mut self, is_leading: bool, done: &mut impl FnMut(WindowHash)) -> bool {
        let more = self.read_on(is_leading, done);
        if is_leading {
            let sent = self.words.sent.get();
            let is_sent = |(end, _): &(Position, StreamPosition)| sent.is_some_and(|sent| *end <= sent);
            let count = self.unsent.iter().take_while(|entry| is_sent(entry)).count();
            self.published = self.unsent.drain(..count).next_back().map(|(_, until)| until).or(self.published);
        } else {
            self.unsent.clear();
            self.published = None;
        }
        more
    }

    /// How far this gateway has published, while it leads and the tail is through.
    pub(super) fn published(&self) -> Option<StreamPosition> {
        self.published
    }

    fn read_on(&mut self, is_leading: bool, done: &mut impl FnMut(WindowHash)) -> bool {
        for _ in 0..ENTRIES_PER_TURN {
            let Some(entry) = self.reader.next() else { return false };
            let Some(session) = Session::from_bytes(entry.session) else { continue };
            let range = (Sequence(entry.first), Sequence(entry.next));
            let (from, until) = StreamPosition::span_of_body(session, range, entry.payload);
            self.from.get_or_insert(from);
            self.ready = self.ready.max(Some(until));
            if is_leading && self.unsent.len() < UNSENT_MAX {
                self.unsent.push_back((entry.end, until));
            }
            for (header, body) in Frames::of_body(entry.payload) {
                self.hasher.pass(session, Passed::Frame(header, body), done);
            }
            self.hasher.pass(session, Passed::Settled(range.1), done);
            if self.segments.back().is_none_or(|(_, begin)| begin.segment < entry.position.segment) {
                self.segments.push_back((from, entry.position));
            }
        }
        true
    }

    /// Where it began to follow; `None`: nothing has come yet.
    pub(super) fn from(&self) -> Option<StreamPosition> {
        self.from
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
/// Longer than the longest tail; beyond it the position is told late.
const UNSENT_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use mdgw_engine::publish::LogSink;
    use mdgw_feeds::{
        frame::{FrameFlags, FrameKind, FrameMeta, FrameSink},
        identity::Feed,
        time::{TradingDate, UnixNs},
    };
    use mdgw_publog::{LogOptions, Opened, Retention};

    use super::*;

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
        let mut follower =
            LogFollower::new(directory.path(), ChannelId(3), None, keeper.keep_from(), Arc::default()).unwrap();
        let mut windows = Vec::new();
        assert!(!follower.follow(false, &mut |window| windows.push(window.first.0)) && follower.ready().is_none());
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
        follower.follow(false, &mut |window| windows.push(window.first.0));
        follower.keep_from(heard(5));
        for first in (10..3_000).step_by(100) {
            write(&mut keeper, first..first + 100);
            follower.follow(false, &mut |window| windows.push(window.first.0));
            follower.keep_from(heard(5));
        }
        assert_eq!(follower.ready(), heard(3_010));
        assert_eq!(oldest(), 1, "nobody was heard to publish 5");
        follower.keep_from(heard(2_900));
        write(&mut keeper, 3_010..3_200);
        assert!(oldest() > 5 && oldest() <= 2_900, "{}", oldest());
        follower.keep_from(None);
        assert_eq!(follower.segments.len(), 1);
        assert_eq!(windows, [1_024], "the first window's beginning counts as not seen");
    }
}
