//! When a gateway that joins may stand for election: no worse than its peer, and alike, for a while; alone at once.

use std::collections::BTreeSet;

use mdgw_election::fitness::{Fitness, Standing};
use mdgw_feeds::{published::position::StreamPosition, time::MonoNs};

/// What is known at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinLook {
    /// Another candidate answers. Without one there is nobody to wait for.
    pub has_peer: bool,
    /// How far both are, for each channel of the group: this gateway, its peer.
    pub channels: Vec<(Option<StreamPosition>, Option<StreamPosition>)>,
    /// How fit this gateway is, and its peer.
    pub fitness: (Fitness, Fitness),
    /// Windows of messages so far, for each channel of the group.
    pub windows: Vec<Windows>,
}

/// Counts of one channel's windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// The peer has told, and this gateway should have.
    pub told: u64,
    /// Both have alike.
    pub equal: u64,
    /// Both have, and not alike.
    pub different: u64,
}

/// How far joining has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinProgress {
    /// Whether it stands.
    pub standing: Standing,
    /// Messages that the channel which lacks most is behind its peer, where both are in one numbering.
    pub behind_messages: u64,
    /// Channels that have not begun, or are in an older numbering than the peer's.
    pub channels_missing: usize,
    /// Since when it has been level, ns.
    pub level_ns: u64,
    /// For how long it has not had the peer's messages although it was level, ns; 0: it has them, or that isn't known yet.
    pub unlike_ns: u64,
}

/// Looks again and again. Once it stands it stands: what is worse later is for fitness to say.
#[derive(Debug)]
pub struct JoinWatch {
    standing: Standing,
    /// Since when, and the windows then.
    level: Option<(MonoNs, Vec<Windows>)>,
    /// Channels whose messages were not the peer's when they were compared last.
    unlike: BTreeSet<usize>,
    /// Since when there are any.
    unlike_since: Option<MonoNs>,
    /// Less fit than the peer since then.
    worse: Option<MonoNs>,
    progress: JoinProgress,
}

impl JoinWatch {
    /// Of a gateway that has just started.
    #[must_use]
    pub fn new() -> Self {
        let standing = Standing::Joins;
        let progress = JoinProgress { standing, behind_messages: 0, channels_missing: 0, level_ns: 0, unlike_ns: 0 };
        Self { standing, level: None, unlike: BTreeSet::new(), unlike_since: None, worse: None, progress }
    }

    /// What had come of it at the last look.
    #[must_use]
    pub fn progress(&self) -> JoinProgress {
        self.progress
    }

    /// What has come of it by now.
    pub fn look(&mut self, look: &JoinLook, now: MonoNs) -> JoinProgress {
        let (mut behind_messages, mut channels_missing) = (0, 0);
        for (ours, theirs) in &look.channels {
            match (ours, theirs) {
                (_, None) => {}
                (Some(ours), Some(theirs)) if ours.session >= theirs.session => {
                    let behind = theirs.sequence.0.saturating_sub(ours.sequence.0);
                    behind_messages = behind_messages.max(if ours.session == theirs.session { behind } else { 0 });
                }
                _ => channels_missing += 1,
            }
        }
        let (own, peer) = &look.fitness;
        self.worse = own.is_worse_than(peer).then(|| self.worse.unwrap_or(now));
        let is_worse = self.worse.is_some_and(|since| now.since(since) >= WORSE_NS);
        let is_level = channels_missing == 0 && behind_messages <= LEVEL_MESSAGES && !is_worse;
        if is_level {
            self.compare(&look.windows, now);
        } else {
            self.level = None;
        }
        if !look.has_peer {
            self.standing = Standing::Stands;
        }
        let level_ns = self.level.as_ref().map_or(0, |(since, _)| now.since(*since));
        // Whoever stands and differs later is told of by the difference itself.
        let unlike_since = self.unlike_since.filter(|_| self.standing == Standing::Joins);
        let unlike_ns = unlike_since.map_or(0, |since| now.since(since));
        self.progress =
            JoinProgress { standing: self.standing, behind_messages, channels_missing, level_ns, unlike_ns };
        self.progress
    }

    /// Level, it stands when it has been so for a while and no channel is unlike. A channel of which the peer tells windows and
    /// none is alike has better books there: silence afterwards is no sign that they are better here.
    fn compare(&mut self, windows: &[Windows], now: MonoNs) {
        let (since, before) = self.level.get_or_insert_with(|| (now, windows.to_vec()));
        let (since, is_over) = (*since, now.since(*since) >= LEVEL_NS);
        for (channel, (before, windows)) in before.iter().zip(windows).enumerate() {
            let is_alike = windows.equal > before.equal;
            if windows.different != before.different || is_over && !is_alike && windows.told > before.told {
                self.unlike.insert(channel);
            } else if is_over && is_alike {
                self.unlike.remove(&channel);
            }
        }
        let is_different = before.iter().zip(windows).any(|(before, windows)| before.different != windows.different);
        if self.unlike.is_empty() {
            self.unlike_since = None;
        } else {
            self.unlike_since.get_or_insert(since);
        }
        if is_over && self.unlike.is_empty() {
            self.standing = Standing::Stands;
        } else if is_over || is_different {
            // From this very look on: what comes of a window that was told is known a moment later.
            self.level = Some((now, windows.to_vec()));
        }
    }
}

impl Default for JoinWatch {
    fn default() -> Self {
        Self::new()
    }
}

/// What two looks at two moments differ by on a busy channel.
const LEVEL_MESSAGES: u64 = 10_000;
const LEVEL_NS: u64 = 2_000_000_000;
/// A short wait for the other line makes nobody unfit.
const WORSE_NS: u64 = 250_000_000;

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    fn at(restart: u32, sequence: u64) -> Option<StreamPosition> {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        Some(StreamPosition::at(Session { feed: Feed::IexTops, date, restart }, Sequence(sequence)))
    }

    fn look(ours: Option<StreamPosition>, theirs: Option<StreamPosition>, windows: (u64, u64, u64)) -> JoinLook {
        let (told, equal, different) = windows;
        JoinLook {
            has_peer: true,
            channels: vec![(ours, theirs)],
            windows: vec![Windows { told, equal, different }],
            ..JoinLook::default()
        }
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn alone_it_stands_at_once_and_with_a_peer_not() {
        let mut alone = JoinWatch::new();
        assert_eq!(alone.look(&JoinLook::default(), MonoNs(0)).standing, Standing::Stands);
        let mut joining = JoinWatch::new();
        assert_eq!(joining.look(&look(None, at(0, 5), (0, 0, 0)), MonoNs(9 * S)).standing, Standing::Joins);
        let progress = joining.look(&look(at(0, 5), at(0, 90_005), (0, 0, 0)), MonoNs(20 * S));
        assert_eq!((progress.standing, progress.behind_messages, progress.level_ns), (Standing::Joins, 90_000, 0));
        let progress = joining.look(&look(at(0, 5), at(1, 1), (0, 0, 0)), MonoNs(30 * S));
        assert_eq!((progress.standing, progress.channels_missing), (Standing::Joins, 1));
    }

    #[test]
    fn it_stands_when_it_was_level_and_alike_for_two_seconds() {
        let mut watch = JoinWatch::new();
        let level = |windows| look(at(0, 50_000), at(0, 50_001), windows);
        assert_eq!(watch.look(&level((1, 0, 0)), MonoNs(S)).standing, Standing::Joins);
        assert_eq!(watch.look(&level((3, 2, 0)), MonoNs(3 * S - 1)).standing, Standing::Joins);
        assert_eq!(watch.look(&level((3, 2, 0)), MonoNs(3 * S)).standing, Standing::Stands);
        assert_eq!(watch.look(&look(None, at(0, 1), (9, 0, 9)), MonoNs(4 * S)).standing, Standing::Stands);
    }

    #[test]
    fn a_window_that_differs_or_none_that_is_alike_begins_the_wait_anew() {
        let level = |windows| look(at(0, 50_000), at(0, 50_001), windows);
        let mut watch = JoinWatch::new();
        watch.look(&level((1, 1, 0)), MonoNs(S));
        assert_eq!(watch.look(&level((2, 1, 1)), MonoNs(3 * S)).standing, Standing::Joins);
        assert_eq!(watch.look(&level((3, 2, 1)), MonoNs(4 * S)).level_ns, S);
        assert_eq!(watch.look(&level((4, 3, 1)), MonoNs(6 * S)).standing, Standing::Stands);
        let mut doubtful = JoinWatch::new();
        for second in 0..20 {
            // The peer tells windows; ours are left out, since our books are in doubt.
            let progress = doubtful.look(&level((second, 0, 0)), MonoNs(second * S));
            assert_eq!(progress.standing, Standing::Joins);
            assert_eq!(progress.unlike_ns, if second < 2 { 0 } else { second * S }, "after {second} s");
        }
        let behind = doubtful.look(&look(None, at(0, 1), (21, 0, 0)), MonoNs(20 * S));
        assert_eq!((behind.standing, behind.unlike_ns), (Standing::Joins, 20 * S), "behind for a moment");
        for second in 21..40 {
            let quiet = doubtful.look(&level((21, 0, 0)), MonoNs(second * S));
            assert_eq!((quiet.standing, quiet.unlike_ns), (Standing::Joins, second * S), "nothing is told");
        }
        doubtful.look(&level((22, 1, 0)), MonoNs(40 * S));
        let alike = doubtful.look(&level((22, 1, 0)), MonoNs(41 * S));
        assert_eq!((alike.standing, alike.unlike_ns), (Standing::Stands, 0));
    }

    #[test]
    fn what_comes_of_a_window_after_the_period_counts_in_the_next() {
        let level = |windows| look(at(0, 50_000), at(0, 50_001), windows);
        let mut watch = JoinWatch::new();
        watch.look(&level((0, 0, 0)), MonoNs(0));
        assert_eq!(watch.look(&level((1, 0, 0)), MonoNs(2 * S)).standing, Standing::Joins);
        watch.look(&level((1, 1, 0)), MonoNs(2 * S + S / 20));
        assert_eq!(watch.look(&level((1, 1, 0)), MonoNs(4 * S)).standing, Standing::Stands, "though all is quiet");
    }

    #[test]
    fn each_channel_has_to_be_alike() {
        let windows = |told, equal| Windows { told, equal, different: 0 };
        let look = |one, other| JoinLook {
            channels: vec![(at(0, 5), at(0, 5)); 2],
            windows: vec![one, other],
            ..look(None, None, (0, 0, 0))
        };
        let mut watch = JoinWatch::new();
        for second in 0..20 {
            let progress = watch.look(&look(windows(second, second), windows(second, 0)), MonoNs(second * S));
            assert_eq!(progress.standing, Standing::Joins, "after {second} s");
        }
        for second in 20..24 {
            watch.look(&look(windows(19, 19), windows(second, second - 19)), MonoNs(second * S));
        }
        assert_eq!(watch.progress().standing, Standing::Stands, "one is quiet, the other alike");
    }

    #[test]
    fn a_less_fit_one_waits() {
        let mut watch = JoinWatch::new();
        let mut look = look(at(0, 5), at(0, 5), (0, 0, 0));
        look.fitness.0.channels_behind = 1;
        assert_eq!(watch.look(&look, MonoNs(0)).standing, Standing::Joins);
        for second in 1..5 {
            assert_eq!(watch.look(&look, MonoNs(second * S)).standing, Standing::Joins);
        }
    }
}
