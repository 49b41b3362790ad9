//! When a joining gateway becomes eligible: as soon as it has caught up with its peer and has equal content for a
//! while; at once if it is alone.

use std::collections::BTreeSet;

use mdgw_election::fitness::{Eligibility, Fitness};
use mdgw_wire::{published::position::StreamPosition, time::MonoNs};

/// The inputs at one sampling time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinSample {
    /// Another candidate answers. Without one there is no peer to wait for.
    pub has_peer: bool,
    /// The positions of both gateways for each channel of the group: this gateway, its peer.
    pub channels: Vec<(Option<StreamPosition>, Option<StreamPosition>)>,
    /// The fitness of this gateway and of its peer.
    pub fitness: (Fitness, Fitness),
    /// Compared windows of messages so far, for each channel of the group.
    pub windows: Vec<WindowCounts>,
    /// The gateway began with a copy of its peer's state, and has not received the output up to there on every channel. It has no
    /// records to publish from before the copy.
    pub is_ahead_of_output: bool,
}

/// Counts of one channel's windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// Windows that the peer has reported and that this gateway should have.
    pub reported: u64,
    /// Windows with equal content.
    pub equal: u64,
    /// Windows with different content.
    pub different: u64,
}

/// How far joining has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinProgress {
    /// Whether the gateway is eligible.
    pub eligibility: Eligibility,
    /// How many messages the most delayed channel is behind the peer, among channels where both are in the same
    /// session.
    pub behind_messages: u64,
    /// Channels that have not begun, or that are in an older session than the peer's.
    pub channels_missing: usize,
    /// For how long this gateway has been caught up, ns.
    pub caught_up_ns: u64,
    /// For how long its messages have differed from the peer's although it was caught up, ns. 0: they are equal, or
    /// that is not known yet.
    pub mismatched_ns: u64,
    /// The gateway is caught up, and holds its candidacy until it has received the output up to its state copy: the peer is to lead
    /// first. See [`JoinSample::is_ahead_of_output`].
    pub awaits_output: bool,
}

/// Decides about eligibility from samples in the order of time. Eligibility is final: what gets worse later lowers the
/// fitness instead.
#[derive(Debug)]
pub struct JoinWatch {
    eligibility: Eligibility,
    /// Since when the gateway has been caught up, and the window counts then.
    caught_up: Option<(MonoNs, Vec<WindowCounts>)>,
    /// Channels whose messages differed from the peer's in the last comparison.
    mismatched: BTreeSet<usize>,
    /// Since when there is any such channel.
    mismatched_since: Option<MonoNs>,
    /// Since when this gateway has been less fit than the peer.
    less_fit_since: Option<MonoNs>,
    progress: JoinProgress,
}

impl JoinWatch {
    /// The state of a gateway that has just started.
    #[must_use]
    pub(crate) fn new() -> Self {
        let eligibility = Eligibility::Joining;
        let progress = JoinProgress {
            eligibility,
            behind_messages: 0,
            channels_missing: 0,
            caught_up_ns: 0,
            mismatched_ns: 0,
            awaits_output: false,
        };
        Self {
            eligibility,
            caught_up: None,
            mismatched: BTreeSet::new(),
            mismatched_since: None,
            less_fit_since: None,
            progress,
        }
    }

    /// The progress as of the last sample.
    #[must_use]
    pub fn progress(&self) -> JoinProgress {
        self.progress
    }

    /// Evaluates a sample, and returns the progress from then on.
    pub fn update(&mut self, sample: &JoinSample, now: MonoNs) -> JoinProgress {
        let (mut behind_messages, mut channels_missing) = (0, 0);
        for (ours, theirs) in &sample.channels {
            match (ours, theirs) {
                (_, None) => {}
                (Some(ours), Some(theirs)) if ours.session >= theirs.session => {
                    let behind = theirs.sequence.0.saturating_sub(ours.sequence.0);
                    behind_messages = behind_messages.max(if ours.session == theirs.session { behind } else { 0 });
                }
                _ => channels_missing += 1,
            }
        }
        let (own, peer) = &sample.fitness;
        self.less_fit_since = own.is_worse_than(peer).then(|| self.less_fit_since.unwrap_or(now));
        let is_less_fit = self.less_fit_since.is_some_and(|since| now.since(since) >= LESS_FIT_NS);
        let is_caught_up = channels_missing == 0 && behind_messages <= LAG_MESSAGES_MAX && !is_less_fit;
        if is_caught_up {
            self.compare(&sample.windows, sample.is_ahead_of_output, now);
        } else {
            self.caught_up = None;
        }
        if !sample.has_peer {
            self.eligibility = Eligibility::Eligible;
        }
        let caught_up_ns = self.caught_up.as_ref().map_or(0, |(since, _)| now.since(*since));
        // If an eligible gateway differs later, the mismatch itself is reported.
        let mismatched_since = self.mismatched_since.filter(|_| self.eligibility == Eligibility::Joining);
        let mismatched_ns = mismatched_since.map_or(0, |since| now.since(since));
        self.progress = JoinProgress {
            eligibility: self.eligibility,
            behind_messages,
            channels_missing,
            caught_up_ns,
            mismatched_ns,
            awaits_output: is_caught_up && sample.is_ahead_of_output && self.eligibility == Eligibility::Joining,
        };
        self.progress
    }

    /// A gateway that has caught up is eligible after a while in which no channel differs. If the peer reports windows
    /// of a channel and none of them is equal, the peer's books of that channel are better. A later silence of the
    /// channel does not make this gateway's books better.
    ///
    /// While the gateway is ahead of the output, the peer has messages that this one could not publish: the peer is to lead first. Only
    /// for a while, since the peer's output may be dead.
    fn compare(&mut self, windows: &[WindowCounts], is_ahead_of_output: bool, now: MonoNs) {
        let (since, before) = self.caught_up.get_or_insert_with(|| (now, windows.to_vec()));
        let (since, is_period_over) = (*since, now.since(*since) >= CAUGHT_UP_NS);
        for (channel, (before, windows)) in before.iter().zip(windows).enumerate() {
            let is_matching = windows.equal > before.equal;
            if windows.different != before.different
                || is_period_over && !is_matching && windows.reported > before.reported
            {
                self.mismatched.insert(channel);
            } else if is_period_over && is_matching {
                self.mismatched.remove(&channel);
            }
        }
        let is_different = before.iter().zip(windows).any(|(before, windows)| before.different != windows.different);
        if self.mismatched.is_empty() {
            self.mismatched_since = None;
        } else {
            self.mismatched_since.get_or_insert(since);
        }
        if is_period_over && self.mismatched.is_empty() {
            if !is_ahead_of_output || now.since(since) >= AHEAD_OF_OUTPUT_NS_MAX {
                self.eligibility = Eligibility::Eligible;
            }
        } else if is_period_over || is_different {
            // Count from this sample on: the comparison of a window is known a moment after the peer reported it.
            self.caught_up = Some((now, windows.to_vec()));
        }
    }
}

impl Default for JoinWatch {
    fn default() -> Self {
        Self::new()
    }
}

/// How many messages a gateway that is caught up may be behind. The two positions are taken at two moments, and so
/// differ on a busy channel.
const LAG_MESSAGES_MAX: u64 = 10_000;
const CAUGHT_UP_NS: u64 = 2_000_000_000;
/// How long a gateway that is ahead of the output lets its peer lead first, ns.
const AHEAD_OF_OUTPUT_NS_MAX: u64 = 6_000_000_000;
/// How long a gateway must be less fit than its peer to count as less fit, ns. A short wait for the other line does not
/// count.
const LESS_FIT_NS: u64 = 250_000_000;

#[cfg(test)]
mod tests {
    use mdgw_wire::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    fn at(restart: u32, sequence: u64) -> Option<StreamPosition> {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        Some(StreamPosition::at(Session { feed: Feed::IexTops, date, restart }, Sequence(sequence)))
    }

    fn sample(ours: Option<StreamPosition>, theirs: Option<StreamPosition>, windows: (u64, u64, u64)) -> JoinSample {
        let (reported, equal, different) = windows;
        JoinSample {
            has_peer: true,
            channels: vec![(ours, theirs)],
            windows: vec![WindowCounts { reported, equal, different }],
            ..JoinSample::default()
        }
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn without_a_peer_a_gateway_is_eligible_at_once() {
        let mut alone = JoinWatch::new();
        assert_eq!(alone.update(&JoinSample::default(), MonoNs(0)).eligibility, Eligibility::Eligible);
        let mut joining = JoinWatch::new();
        assert_eq!(joining.update(&sample(None, at(0, 5), (0, 0, 0)), MonoNs(9 * S)).eligibility, Eligibility::Joining);
        let progress = joining.update(&sample(at(0, 5), at(0, 90_005), (0, 0, 0)), MonoNs(20 * S));
        assert_eq!(
            (progress.eligibility, progress.behind_messages, progress.caught_up_ns),
            (Eligibility::Joining, 90_000, 0)
        );
        let progress = joining.update(&sample(at(0, 5), at(1, 1), (0, 0, 0)), MonoNs(30 * S));
        assert_eq!((progress.eligibility, progress.channels_missing), (Eligibility::Joining, 1));
    }

    #[test]
    fn a_gateway_is_eligible_after_two_seconds_caught_up_with_matching_windows() {
        let mut watch = JoinWatch::new();
        let caught_up = |windows| sample(at(0, 50_000), at(0, 50_001), windows);
        assert_eq!(watch.update(&caught_up((1, 0, 0)), MonoNs(S)).eligibility, Eligibility::Joining);
        assert_eq!(watch.update(&caught_up((3, 2, 0)), MonoNs(3 * S - 1)).eligibility, Eligibility::Joining);
        assert_eq!(watch.update(&caught_up((3, 2, 0)), MonoNs(3 * S)).eligibility, Eligibility::Eligible);
        assert_eq!(watch.update(&sample(None, at(0, 1), (9, 0, 9)), MonoNs(4 * S)).eligibility, Eligibility::Eligible);
    }

    #[test]
    fn a_gateway_that_could_not_publish_what_its_copy_contains_waits_for_the_output_but_not_for_long() {
        let mut watch = JoinWatch::new();
        let mut at_second = |second, is_ahead_of_output| {
            let caught_up = sample(at(0, 50_000), at(0, 50_001), (second, second, 0));
            let progress = watch.update(&JoinSample { is_ahead_of_output, ..caught_up }, MonoNs(second * S));
            (progress.eligibility, progress.awaits_output)
        };
        for second in 1..7 {
            assert_eq!(at_second(second, true), (Eligibility::Joining, true), "after {second} s");
        }
        assert_eq!(at_second(7, true), (Eligibility::Eligible, false), "the peer's output may be dead");
        let mut watch = JoinWatch::new();
        let caught_up = |windows| sample(at(0, 50_000), at(0, 50_001), windows);
        let ahead = JoinSample { is_ahead_of_output: true, ..caught_up((1, 0, 0)) };
        assert_eq!(watch.update(&ahead, MonoNs(S)).eligibility, Eligibility::Joining);
        assert_eq!(watch.update(&caught_up((3, 2, 0)), MonoNs(3 * S)).eligibility, Eligibility::Eligible);
        // Nobody else has the messages.
        let mut alone = JoinWatch::new();
        let sample = JoinSample { has_peer: false, is_ahead_of_output: true, ..JoinSample::default() };
        assert_eq!(alone.update(&sample, MonoNs(0)).eligibility, Eligibility::Eligible);
    }

    #[test]
    fn a_differing_window_or_none_that_matches_restarts_the_wait() {
        let caught_up = |windows| sample(at(0, 50_000), at(0, 50_001), windows);
        let mut watch = JoinWatch::new();
        watch.update(&caught_up((1, 1, 0)), MonoNs(S));
        assert_eq!(watch.update(&caught_up((2, 1, 1)), MonoNs(3 * S)).eligibility, Eligibility::Joining);
        assert_eq!(watch.update(&caught_up((3, 2, 1)), MonoNs(4 * S)).caught_up_ns, S);
        assert_eq!(watch.update(&caught_up((4, 3, 1)), MonoNs(6 * S)).eligibility, Eligibility::Eligible);
        let mut unmatched = JoinWatch::new();
        for second in 0..20 {
            // The peer reports windows. Ours are left out, since our books are suspect.
            let progress = unmatched.update(&caught_up((second, 0, 0)), MonoNs(second * S));
            assert_eq!(progress.eligibility, Eligibility::Joining);
            assert_eq!(progress.mismatched_ns, if second < 2 { 0 } else { second * S }, "after {second} s");
        }
        let behind = unmatched.update(&sample(None, at(0, 1), (21, 0, 0)), MonoNs(20 * S));
        assert_eq!((behind.eligibility, behind.mismatched_ns), (Eligibility::Joining, 20 * S), "behind for a moment");
        for second in 21..40 {
            let quiet = unmatched.update(&caught_up((21, 0, 0)), MonoNs(second * S));
            assert_eq!(
                (quiet.eligibility, quiet.mismatched_ns),
                (Eligibility::Joining, second * S),
                "no windows were compared"
            );
        }
        unmatched.update(&caught_up((22, 1, 0)), MonoNs(40 * S));
        let alike = unmatched.update(&caught_up((22, 1, 0)), MonoNs(41 * S));
        assert_eq!((alike.eligibility, alike.mismatched_ns), (Eligibility::Eligible, 0));
    }

    #[test]
    fn a_window_result_after_the_period_counts_in_the_next_period() {
        let caught_up = |windows| sample(at(0, 50_000), at(0, 50_001), windows);
        let mut watch = JoinWatch::new();
        watch.update(&caught_up((0, 0, 0)), MonoNs(0));
        assert_eq!(watch.update(&caught_up((1, 0, 0)), MonoNs(2 * S)).eligibility, Eligibility::Joining);
        watch.update(&caught_up((1, 1, 0)), MonoNs(2 * S + S / 20));
        assert_eq!(
            watch.update(&caught_up((1, 1, 0)), MonoNs(4 * S)).eligibility,
            Eligibility::Eligible,
            "though all is quiet"
        );
    }

    #[test]
    fn every_channel_has_to_match() {
        let windows = |reported, equal| WindowCounts { reported, equal, different: 0 };
        let sample_of = |one, other| JoinSample {
            channels: vec![(at(0, 5), at(0, 5)); 2],
            windows: vec![one, other],
            ..sample(None, None, (0, 0, 0))
        };
        let mut watch = JoinWatch::new();
        for second in 0..20 {
            let progress = watch.update(&sample_of(windows(second, second), windows(second, 0)), MonoNs(second * S));
            assert_eq!(progress.eligibility, Eligibility::Joining, "after {second} s");
        }
        for second in 20..24 {
            watch.update(&sample_of(windows(19, 19), windows(second, second - 19)), MonoNs(second * S));
        }
        assert_eq!(watch.progress().eligibility, Eligibility::Eligible, "one is quiet, the other alike");
    }

    #[test]
    fn a_less_fit_gateway_is_not_eligible() {
        let mut watch = JoinWatch::new();
        let mut sample = sample(at(0, 5), at(0, 5), (0, 0, 0));
        sample.fitness.0.channels_behind = 1;
        assert_eq!(watch.update(&sample, MonoNs(0)).eligibility, Eligibility::Joining);
        for second in 1..5 {
            assert_eq!(watch.update(&sample, MonoNs(second * S)).eligibility, Eligibility::Joining);
        }
    }
}
