//! Follows the local publication log: how far this gateway is.

use std::{collections::VecDeque, path::Path, sync::Arc};

use mdgw_engine::publish::TakeoverShared;
use mdgw_publog::{LogError, Position, Reader, RetentionHold};
use mdgw_wire::{
    identity::{ChannelId, Sequence, Session},
    published::{packet::Frames, position::StreamPosition},
    time::MonoNs,
};

use super::windows::{WindowHasher, WindowInput};
use crate::standby::windows::WindowHash;

/// Follows one channel's log, starting at its end.
#[derive(Debug)]
pub(super) struct LogFollower {
    reader: Reader,
    /// Start of the first entry that was read.
    from: Option<StreamPosition>,
    logged_through: Option<StreamPosition>,
    retention_hold: RetentionHold,
    /// Starts of the segments that the follower has reached, oldest first.
    segments: VecDeque<(StreamPosition, Position)>,
    takeover: Arc<TakeoverShared>,
    published: Option<StreamPosition>,
    published_as_of: MonoNs,
    /// While this gateway leads: the ends of entries that are not sent yet, each in the log and in the stream.
    unsent: VecDeque<(Position, StreamPosition)>,
    hasher: WindowHasher,
}

impl LogFollower {
    /// `logged_through`: how far the log had come when it was opened.
    pub(super) fn new(
        directory: &Path,
        channel: ChannelId,
        logged_through: Option<StreamPosition>,
        retention_hold: RetentionHold,
        takeover: Arc<TakeoverShared>,
    ) -> Result<Self, LogError> {
        let mut reader = Reader::open(directory, channel.0)?;
        reader.seek_end()?;
        let (segments, unsent) = (VecDeque::new(), VecDeque::new());
        let hasher = WindowHasher::new(channel);
        Ok(Self {
            reader,
            from: None,
            logged_through,
            retention_hold,
            segments,
            takeover,
            published: None,
            published_as_of: MonoNs(0),
            unsent,
            hasher,
        })
    }

    /// Reads a limited number of entries. Returns whether there may be more. Calls `done` for each complete window.
    pub(super) fn follow(&mut self, is_leading: bool, now: MonoNs, done: &mut impl FnMut(WindowHash)) -> bool {
        let more = self.read_entries(is_leading, done);
        if !more && self.unsent.len() < UNSENT_MAX {
            self.published_as_of = now;
        }
        if is_leading {
            let sent = self.takeover.sent.get();
            let is_sent = |(end, _): &(Position, StreamPosition)| sent.is_some_and(|sent| *end <= sent);
            let count = self.unsent.iter().take_while(|entry| is_sent(entry)).count();
            self.published = self.unsent.drain(..count).next_back().map(|(_, until)| until).or(self.published);
        } else {
            self.unsent.clear();
            self.published = None;
        }
        more
    }

    /// How far this gateway has published, while it leads and its catch-up is complete.
    pub(super) fn published(&self) -> Option<StreamPosition> {
        self.published
    }

    /// What this gateway had sent at that time is part of [`published`](Self::published).
    pub(super) fn published_as_of(&self) -> MonoNs {
        self.published_as_of
    }

    fn read_entries(&mut self, is_leading: bool, done: &mut impl FnMut(WindowHash)) -> bool {
        for _ in 0..ENTRIES_PER_TURN {
            let Some(entry) = self.reader.next() else { return false };
            let Some(session) = Session::from_bytes(entry.session) else { continue };
            let range = (Sequence(entry.first), Sequence(entry.next));
            let (from, until) = StreamPosition::range_of_body(session, range, entry.payload);
            self.from.get_or_insert(from);
            self.logged_through = self.logged_through.max(Some(until));
            if is_leading && self.unsent.len() < UNSENT_MAX {
                self.unsent.push_back((entry.end, until));
            }
            for (header, body) in Frames::of_body(entry.payload) {
                self.hasher.push(session, WindowInput::Frame(header, body), done);
            }
            self.hasher.push(session, WindowInput::CoveredThrough(range.1), done);
            if self.segments.back().is_none_or(|(_, begin)| begin.segment < entry.position.segment) {
                self.segments.push_back((from, entry.position));
            }
        }
        true
    }

    /// Where the follower began; `None`: it has read nothing yet.
    pub(super) fn from(&self) -> Option<StreamPosition> {
        self.from
    }

    /// End of the log, as far as it was read.
    pub(super) fn logged_through(&self) -> Option<StreamPosition> {
        self.logged_through
    }

    /// Protects the part of the log that no gateway is known to have published; `None`: protects nothing.
    pub(super) fn hold_retention(&mut self, received_through: Option<StreamPosition>) {
        if let Some(received_through) = received_through {
            while self.segments.get(1).is_some_and(|(from, _)| *from <= received_through) {
                self.segments.pop_front();
            }
        } else if let Some(last) = self.segments.pop_back() {
            self.segments.clear();
            self.segments.push_back(last);
        }
        let oldest = self.segments.front().map(|(_, begin)| *begin);
        self.retention_hold.set(received_through.and(oldest));
    }
}

/// Maximum number of entries in a turn; then the sockets have theirs.
const ENTRIES_PER_TURN: usize = 4_096;
/// Maximum number of entries in `unsent`: more than the longest catch-up. Beyond it, the position is reported late.
const UNSENT_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use mdgw_engine::publish::LogSink;
    use mdgw_publog::{LogOptions, OpenedLog, Retention};
    use mdgw_wire::{
        frame::{FrameMeta, FrameSink},
        identity::Feed,
        time::{TradingDate, UnixNs},
    };

    use super::*;

    const NOW: UnixNs = UnixNs(1_600_000_000_000_000_000);

    fn session() -> Session {
        Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 0 }
    }

    #[test]
    fn segments_are_retained_until_the_leaders_output_covers_them() {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions {
            segment_bytes: 64 << 10,
            private_bytes: 64 << 10,
            retention: Retention { bytes_max: 192 << 10, age_ns_max: None, protected_bytes_max: 1 << 20 },
            ..LogOptions::new(directory.path(), 3)
        };
        let OpenedLog { writer, mut maintenance, .. } = mdgw_publog::open(options, NOW.0).unwrap();
        let mut log = LogSink::new(writer);
        log.begin(NOW);
        log.session(session(), Sequence(1));
        let mut follower =
            LogFollower::new(directory.path(), ChannelId(3), None, maintenance.retention_hold(), Arc::default())
                .unwrap();
        let mut windows = Vec::new();
        assert!(
            !follower.follow(false, MonoNs(1), &mut |window| windows.push(window.first.0))
                && follower.logged_through().is_none()
        );
        let mut write = |maintenance: &mut mdgw_publog::SegmentMaintenance, range: std::ops::Range<u64>| {
            for sequence in range {
                maintenance.run_once(NOW.0);
                let mut record = [0; 80];
                record[0] = 20;
                log.frame(&FrameMeta::message(Sequence(sequence), NOW, 0), 1, &record);
                log.flush();
            }
        };
        let position_at = |sequence| Some(StreamPosition::at(session(), Sequence(sequence)));
        let oldest = || {
            let mut reader = Reader::open(directory.path(), 3).unwrap();
            reader.next().map(|entry| entry.first).unwrap()
        };
        write(&mut maintenance, 1..10);
        follower.follow(false, MonoNs(1), &mut |window| windows.push(window.first.0));
        follower.hold_retention(position_at(5));
        for first in (10..3_000).step_by(100) {
            write(&mut maintenance, first..first + 100);
            follower.follow(false, MonoNs(1), &mut |window| windows.push(window.first.0));
            follower.hold_retention(position_at(5));
        }
        assert_eq!(follower.logged_through(), position_at(3_010));
        assert_eq!(oldest(), 1, "the publication of 5 was not received");
        follower.hold_retention(position_at(2_900));
        write(&mut maintenance, 3_010..3_200);
        assert!(oldest() > 5 && oldest() <= 2_900, "{}", oldest());
        follower.hold_retention(None);
        assert_eq!(follower.segments.len(), 1);
        assert_eq!(windows, [1_024], "the first window's beginning counts as not seen");
    }
}
