//! How fit this gateway is to lead, computed from counters. No clock, no sockets.

use std::collections::BTreeMap;

use mdgw_election::fitness::Fitness;
use mdgw_wire::{channel_state::ChannelState, identity::ChannelId, published::position::StreamPosition, time::MonoNs};

/// The inputs at one sampling time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitnessSample {
    /// Samples of all channels of the group.
    pub channels: Vec<ChannelSample>,
    /// Entries of all logs so far that went to private memory or that readers missed.
    pub log_entries_lost: u64,
    /// Stalls of this gateway's threads so far that were longer than allowed.
    pub stalls: u64,
    /// The peer receives its own probes on the group. So if the peer does not receive our output, our output is at
    /// fault.
    pub peer_receives_probe: bool,
    /// A gateway that leads sends a packet on each channel at least so often, ns.
    pub heartbeat_ns: u64,
    /// This gateway does not receive its own probes, and does not lead. It could neither report what was published nor
    /// whether its output is received.
    pub receive_path_failed: bool,
}

/// One channel at one sampling time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSample {
    /// Id of the channel.
    pub channel: ChannelId,
    /// State of this gateway's channel.
    pub state: ChannelState,
    /// The state of the peer's channel; `None` while the peer has reported nothing.
    pub peer_state: Option<ChannelState>,
    /// How far this gateway has published; `None` while it does not lead.
    pub published: Option<StreamPosition>,
    /// What this gateway had sent at that time is part of `published`.
    pub published_as_of: MonoNs,
    /// How far the peer has reported to have received.
    pub peer_received: Option<StreamPosition>,
    /// When the peer's last report of the channel arrived; `None`: none has.
    pub reported_at: Option<MonoNs>,
    /// For how long the kernel has refused all packets of every output line of this gateway, ns, while it leads.
    pub output_refused_ns: u64,
}

/// Evaluates samples in the order of time.
#[derive(Debug, Default)]
pub struct FitnessWatch {
    /// For each channel that this gateway publishes, what the peer has acknowledged.
    acknowledgements: BTreeMap<ChannelId, Acknowledgement>,
    /// When the peer's channel was last seen in another state than without gaps. The peer starts without gaps.
    peer_gap_at: BTreeMap<ChannelId, MonoNs>,
    log_entries_lost: RecentGrowth,
    stalls: RecentGrowth,
}

/// What the peer has acknowledged of a channel's output, in the present leadership.
#[derive(Clone, Copy, Debug)]
struct Acknowledgement {
    /// The position that it has yet to acknowledge.
    unconfirmed: StreamPosition,
    /// When this gateway began to wait for it.
    begun: MonoNs,
    /// Whether a packet has gone out since then, which the peer should have received, and a time before that packet.
    is_sent: bool,
    since: MonoNs,
    /// The peer has reported that it has received nothing at all.
    has_received_nothing: bool,
    /// When the last report arrived that counts, and how many have counted since the packet.
    reported_at: MonoNs,
    reports: u8,
    /// When a report arrived that does not count yet, since it is newer than this gateway's notice of its own output.
    waiting_report_at: Option<MonoNs>,
    /// The peer has acknowledged a position before.
    was_received: bool,
    /// A report of the peer that was beyond what this gateway had published: a packet of another sender, or this gateway has not noticed yet
    /// how far its own output is. It stays until this gateway has noticed, and counts then: on a busy channel, whose output this gateway
    /// notices later than the peer, each newer report is beyond too.
    beyond: Option<StreamPosition>,
}

/// A counter that has grown recently.
#[derive(Clone, Copy, Debug, Default)]
struct RecentGrowth {
    count: u64,
    last_growth_at: Option<MonoNs>,
}

impl RecentGrowth {
    fn update(&mut self, count: u64, now: MonoNs) -> bool {
        if count > self.count {
            (self.count, self.last_growth_at) = (count, Some(now));
        }
        self.last_growth_at.is_some_and(|at| now.since(at) < RECENT_FAILURE_NS)
    }
}

impl FitnessWatch {
    /// Evaluates a sample, and returns the fitness from then on.
    pub fn update(&mut self, sample: &FitnessSample, now: MonoNs) -> Fitness {
        let count = |matches: fn(&ChannelSample) -> bool| {
            u16::try_from(sample.channels.iter().filter(|channel| matches(channel)).count()).unwrap_or(u16::MAX)
        };
        let behind = sample.channels.iter().filter(|channel| self.is_behind_peer(channel, now)).count();
        // An interface is down, or a filter forbids the packets. The peer has nothing to acknowledge then.
        let is_refused = |channel: &ChannelSample| channel.output_refused_ns >= CONFIRM_NS_MAX;
        let not_received = sample
            .channels
            .iter()
            .filter(|channel| self.is_unconfirmed(channel, sample.heartbeat_ns, now) || is_refused(channel));
        let not_received = not_received.count();
        Fitness {
            output_not_received: sample.receive_path_failed || not_received > 0 && sample.peer_receives_probe,
            channels_failed: count(|channel| channel.state == ChannelState::Failed),
            channels_behind: u16::try_from(behind).unwrap_or(u16::MAX),
            log_failing: self.log_entries_lost.update(sample.log_entries_lost, now),
            stalled: self.stalls.update(sample.stalls, now),
        }
    }

    /// Whether this gateway's channel lacks messages that the peer has. Where both are overrun, each loses and recovers messages
    /// many times in a second: the peer that is without gaps just now is no better.
    fn is_behind_peer(&mut self, channel: &ChannelSample, now: MonoNs) -> bool {
        let Some(peer_state) = channel.peer_state else { return false };
        if !has_no_gaps(peer_state) {
            self.peer_gap_at.insert(channel.channel, now);
        }
        let peer_had_gap = self.peer_gap_at.get(&channel.channel).is_some_and(|at| now.since(*at) < PEER_INTACT_NS_MIN);
        is_behind(channel.state) && !peer_had_gap
    }

    /// Whether the peer has received output of the present leadership, on every channel that publishes.
    #[must_use]
    pub fn was_received(&self) -> bool {
        !self.acknowledgements.is_empty() && self.acknowledgements.values().all(|channel| channel.was_received)
    }

    /// Whether the peer should have acknowledged by now what this gateway published some time ago, and has not.
    fn is_unconfirmed(&mut self, channel: &ChannelSample, heartbeat_ns: u64, now: MonoNs) -> bool {
        let Some(published) = channel.published else {
            self.acknowledgements.remove(&channel.channel);
            return false;
        };
        let new = Acknowledgement {
            unconfirmed: published,
            begun: now,
            since: now,
            is_sent: false,
            has_received_nothing: channel.peer_received.is_none(),
            reported_at: channel.reported_at.unwrap_or_default(),
            reports: 0,
            waiting_report_at: None,
            was_received: false,
            beyond: None,
        };
        let known = self.acknowledgements.entry(channel.channel).or_insert(new);
        let reported = [known.beyond, channel.peer_received].into_iter().flatten();
        let acknowledged = reported.filter(|position| *position <= published).max();
        let beyond = channel.peer_received.filter(|position| *position > published);
        if acknowledged >= Some(known.unconfirmed) {
            // The peer has acknowledged. It now owes an acknowledgement of what was published since.
            *known = Acknowledgement { was_received: true, beyond, ..new };
            return false;
        }
        // A lower report is of another leadership, or takes the first one back.
        let is_open = |position: &StreamPosition| *position > published && Some(*position) <= channel.peer_received;
        known.beyond = known.beyond.filter(is_open).or(beyond);
        // A peer that has just started has received nothing of a channel that is quiet, or whose session has ended, until the next heartbeat.
        let has_restarted = channel.peer_received.is_none() && !known.has_received_nothing;
        if has_restarted {
            *known = Acknowledgement { was_received: known.was_received, ..new };
        }
        known.is_sent |= published > known.unconfirmed || now.since(known.begun) > heartbeat_ns;
        if !known.is_sent {
            (known.since, known.reports) = (now, 0);
        }
        // A peer, or a link, that stands still says nothing of the output. The first reports after a pause may be older than the
        // packets that wait at the peer. While this gateway notices its own output late, an acknowledgement looks like a forged one.
        for at in [known.waiting_report_at.take(), channel.reported_at].into_iter().flatten() {
            if at > channel.published_as_of {
                known.waiting_report_at.get_or_insert(at);
            } else if at > known.reported_at {
                (known.reported_at, known.reports) = (at, known.reports.saturating_add(1));
            }
        }
        known.reports >= REPORTS_MIN && known.reported_at.since(known.since) >= CONFIRM_NS_MAX
    }
}

fn is_behind(state: ChannelState) -> bool {
    matches!(state, ChannelState::Waiting | ChannelState::Gap | ChannelState::Recovering | ChannelState::Stale)
}

/// Whether a channel in this state misses no message.
#[must_use]
pub fn has_no_gaps(state: ChannelState) -> bool {
    matches!(state, ChannelState::Live | ChannelState::Ended)
}

/// How long a peer may take to acknowledge output, and how long the kernel may refuse all of it, ns: ten periods of position reports.
const CONFIRM_NS_MAX: u64 = 200_000_000;
/// The output is not received if so many reports count and none of them acknowledges it.
const REPORTS_MIN: u8 = 4;
/// How long a peer's channel must have been without gaps to count as better than this gateway's, ns.
const PEER_INTACT_NS_MIN: u64 = 1_000_000_000;
/// How long a gateway counts as failing after the last failure of its log or its threads, ns.
const RECENT_FAILURE_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use mdgw_election::fitness::FitnessClass;
    use mdgw_wire::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(sequence: u64) -> Option<StreamPosition> {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        Some(StreamPosition::at(Session { feed: Feed::IexTops, date, restart: 0 }, Sequence(sequence)))
    }

    fn sample(channel: ChannelSample) -> FitnessSample {
        FitnessSample { channels: vec![channel], peer_receives_probe: true, ..FitnessSample::default() }
    }

    /// The same sample, with reports that arrive at that time, when this gateway has noticed all of its output.
    fn reported(mut sample: FitnessSample, ms: u64) -> FitnessSample {
        for channel in &mut sample.channels {
            (channel.reported_at, channel.published_as_of) = (Some(MonoNs(ms * MS)), MonoNs(ms * MS));
        }
        sample
    }

    #[test]
    fn a_gap_lowers_fitness_only_if_the_peer_has_none() {
        for (state, peer_state, class) in [
            (ChannelState::Live, Some(ChannelState::Live), FitnessClass::Fit),
            (ChannelState::Gap, Some(ChannelState::Live), FitnessClass::ChannelsBehind),
            (ChannelState::Stale, Some(ChannelState::Live), FitnessClass::ChannelsBehind),
            (ChannelState::Stale, Some(ChannelState::Stale), FitnessClass::Fit),
            (ChannelState::Waiting, Some(ChannelState::Live), FitnessClass::ChannelsBehind),
            (ChannelState::Recovering, None, FitnessClass::Fit),
            (ChannelState::Failed, None, FitnessClass::ChannelsFailed),
        ] {
            let sample = sample(ChannelSample { state, peer_state, ..ChannelSample::default() });
            let fitness = FitnessWatch::default().update(&sample, MonoNs(0));
            assert_eq!(fitness.class(), class, "{state:?} beside {peer_state:?}");
        }
    }

    #[test]
    fn output_that_every_line_refuses_is_not_received() {
        let not_received = |output_refused_ns, peer_receives_probe| {
            let channel = ChannelSample {
                published: at(10),
                peer_received: at(10),
                output_refused_ns,
                ..ChannelSample::default()
            };
            let sample = FitnessSample { peer_receives_probe, ..sample(channel) };
            FitnessWatch::default().update(&sample, MonoNs(0)).output_not_received
        };
        assert!(!not_received(199 * MS, true));
        assert!(not_received(200 * MS, true));
        assert!(!not_received(200 * MS, false), "no peer could do better");
    }

    #[test]
    fn a_peer_that_had_a_gap_a_moment_ago_is_no_better() {
        let mut watch = FitnessWatch::default();
        let mut is_behind = |state, peer_state, ms| {
            let channel = ChannelSample { state, peer_state: Some(peer_state), ..ChannelSample::default() };
            watch.update(&sample(channel), MonoNs(ms * MS)).channels_behind > 0
        };
        assert!(!is_behind(ChannelState::Gap, ChannelState::Recovering, 0), "both are overrun");
        assert!(!is_behind(ChannelState::Recovering, ChannelState::Live, 50), "the peer is a little quicker");
        assert!(!is_behind(ChannelState::Live, ChannelState::Gap, 100), "then this gateway is");
        assert!(!is_behind(ChannelState::Gap, ChannelState::Live, 1_099));
        assert!(is_behind(ChannelState::Gap, ChannelState::Live, 1_100), "the peer has been intact for a second");
        assert!(is_behind(ChannelState::Gap, ChannelState::Ended, 9_000));
    }

    #[test]
    fn a_leader_whose_output_is_not_received_is_unfit_unless_the_peers_receive_path_failed() {
        let channel = |published, peer_received| ChannelSample { published, peer_received, ..ChannelSample::default() };
        let mut watch = FitnessWatch::default();
        let mut not_received = |sample: &FitnessSample, ms| {
            watch.update(&reported(sample.clone(), ms), MonoNs(ms * MS)).output_not_received
        };
        assert!(!not_received(&sample(channel(at(5), None)), 0));
        assert!(!not_received(&sample(channel(at(9), at(5))), 100), "received a little later");
        for ms in [150, 200, 250, 299] {
            assert!(!not_received(&sample(channel(at(50), at(8))), ms));
        }
        assert!(not_received(&sample(channel(at(60), at(8))), 300));
        let receives_no_probe = FitnessSample { peer_receives_probe: false, ..sample(channel(at(70), at(8))) };
        assert!(!not_received(&receives_no_probe, 400));
        assert!(!not_received(&sample(channel(at(70), at(60))), 500), "received again");
        assert!(
            not_received(&FitnessSample { receive_path_failed: true, ..sample(channel(None, None)) }, 600),
            "a gateway that receives no probes cannot lead either"
        );
        assert!(!not_received(&sample(channel(None, None)), 9_000), "a standby publishes nothing");
        for ms in [9_100, 9_150, 9_200, 9_250] {
            assert!(!not_received(&sample(channel(at(70), None)), ms), "a new leader gets its time");
        }
        assert!(not_received(&sample(channel(at(70), None)), 9_300));
    }

    #[test]
    fn a_pause_of_reports_proves_nothing_and_four_reports_do() {
        let channel = |sequence, reported_ms: u64| ChannelSample {
            published: at(sequence),
            peer_received: at(8),
            reported_at: Some(MonoNs(reported_ms * MS)),
            published_as_of: MonoNs(reported_ms * MS),
            ..ChannelSample::default()
        };
        let mut watch = FitnessWatch::default();
        let mut not_received = |sequence, reported_ms, ms| {
            watch.update(&sample(channel(sequence, reported_ms)), MonoNs(ms * MS)).output_not_received
        };
        assert!(!not_received(9, 0, 0));
        for ms in (50..=900).step_by(50) {
            assert!(!not_received(10 + ms, 0, ms), "{ms} ms without a report");
        }
        assert!(!not_received(1_000, 910, 920), "the first report is older than the packets that wait at the peer");
        assert!(!not_received(1_100, 950, 960) && !not_received(1_100, 990, 1_000));
        assert!(!not_received(1_100, 990, 1_050), "no new report");
        // They come slowly.
        assert!(not_received(1_101, 1_190, 1_200), "reports come, and acknowledge nothing");
        assert!(not_received(1_102, 1_190, 1_900), "until one does");
        let received =
            ChannelSample { peer_received: at(1_101), reported_at: Some(MonoNs(1_950 * MS)), ..channel(1_103, 0) };
        assert!(!watch.update(&sample(received), MonoNs(1_960 * MS)).output_not_received);
    }

    #[test]
    fn output_counts_as_received_when_the_peer_has_acknowledged_this_leadership_on_every_channel() {
        let channel = |id, published, peer_received| ChannelSample {
            channel: ChannelId(id),
            published,
            peer_received,
            ..ChannelSample::default()
        };
        let mut watch = FitnessWatch::default();
        let mut was_received = |channels: [ChannelSample; 2]| {
            let sample = FitnessSample { channels: channels.to_vec(), ..FitnessSample::default() };
            watch.update(&reported(sample, 0), MonoNs(0));
            watch.was_received()
        };
        // The peer has received an earlier leadership up to 4.
        assert!(!was_received([channel(1, None, at(4)), channel(2, None, at(4))]), "a standby");
        assert!(!was_received([channel(1, at(5), at(4)), channel(2, None, at(4))]));
        assert!(was_received([channel(1, at(6), at(5)), channel(2, None, at(4))]), "channel 2 publishes nothing yet");
        assert!(!was_received([channel(1, at(7), at(6)), channel(2, at(5), at(4))]));
        assert!(was_received([channel(1, at(8), at(6)), channel(2, at(6), at(5))]));
        assert!(was_received([channel(1, at(90), at(6)), channel(2, at(90), at(5))]), "it was received before");
        assert!(!was_received([channel(1, None, at(6)), channel(2, None, at(5))]));
        assert!(!was_received([channel(1, at(100), at(6)), channel(2, at(100), at(5))]), "the next leadership");
    }

    #[test]
    fn a_position_that_was_not_published_acknowledges_nothing() {
        let channel = |published, peer_received| ChannelSample { published, peer_received, ..ChannelSample::default() };
        let mut watch = FitnessWatch::default();
        let mut update = |published, received, ms| {
            let sample = reported(sample(channel(at(published), at(received))), ms);
            let fitness = watch.update(&sample, MonoNs(ms * MS));
            (watch.was_received(), fitness.output_not_received)
        };
        assert_eq!(update(5, 1 << 40, 0), (false, false));
        for ms in [50, 100, 150] {
            assert_eq!(update(9, 1 << 40, ms), (false, false));
        }
        assert_eq!(update(20, 1 << 40, 200), (false, true), "the output is dead, and somebody forges packets");
        // A report overtook this gateway's own notice of what it had published.
        assert_eq!(update(30, 31, 300), (false, true));
        assert_eq!(update(40, 31, 400), (true, false));
    }

    /// The session has ended, or the market is quiet, and the peer has just started.
    #[test]
    fn a_peer_that_has_just_started_may_wait_for_the_next_heartbeat() {
        for received_ms in [None, Some(990)] {
            let mut watch = FitnessWatch::default();
            let mut not_received = |published, ms: u64| {
                let channel = ChannelSample {
                    published: at(published),
                    peer_received: received_ms.filter(|at| *at <= ms).and_then(|_| at(5)),
                    ..ChannelSample::default()
                };
                let sample = FitnessSample { heartbeat_ns: 1_000 * MS, ..sample(channel) };
                watch.update(&reported(sample, ms), MonoNs(ms * MS)).output_not_received
            };
            for ms in (0..=1_150).step_by(50) {
                assert!(!not_received(5, ms), "{ms} ms");
            }
            assert_eq!(not_received(5, 1_200), received_ms.is_none(), "the heartbeat should have arrived");
        }
        // A message comes before the heartbeat does.
        let mut watch = FitnessWatch::default();
        let mut not_received = |published, ms: u64| {
            let channel = ChannelSample { published: at(published), ..ChannelSample::default() };
            let sample = FitnessSample { heartbeat_ns: 1_000 * MS, ..sample(channel) };
            watch.update(&reported(sample, ms), MonoNs(ms * MS)).output_not_received
        };
        for ms in (0..450).step_by(50) {
            assert!(!not_received(if ms < 300 { 5 } else { 6 }, ms), "{ms} ms: the message went out after 250 ms");
        }
        assert!(not_received(6, 450));
        // The peer restarts before its silence is noticed.
        let mut watch = FitnessWatch::default();
        let mut not_received = |peer_received, ms: u64| {
            let channel = ChannelSample { published: at(5), peer_received, ..ChannelSample::default() };
            let sample = FitnessSample { heartbeat_ns: 1_000 * MS, ..sample(channel) };
            watch.update(&reported(sample, ms), MonoNs(ms * MS)).output_not_received
        };
        assert!(!not_received(at(5), 0));
        for ms in (900..=2_050).step_by(50) {
            assert!(!not_received(None, ms), "{ms} ms");
        }
        assert!(not_received(None, 2_100));
    }

    /// The channel publishes a message each millisecond, the peer receives it at once, and this gateway reads its own log late.
    #[test]
    fn a_gateway_that_notices_its_own_output_later_than_its_peer_counts_as_received() {
        for late_ms in [0, 30, 60, 120, 150, 400, 900] {
            let mut watch = FitnessWatch::default();
            for ms in (1_000..5_000).step_by(50) {
                let channel = ChannelSample {
                    published: at(ms - late_ms),
                    published_as_of: MonoNs((ms - late_ms) * MS),
                    peer_received: at(ms - 20),
                    reported_at: Some(MonoNs(ms * MS)),
                    ..ChannelSample::default()
                };
                let fitness = watch.update(&sample(channel), MonoNs(ms * MS));
                assert!(!fitness.output_not_received, "{late_ms} ms late, at {ms} ms");
            }
            assert!(watch.was_received(), "{late_ms} ms late");
        }
    }

    /// The peer's input is ahead of the output of a gateway that publishes nothing more, and somebody forges packets up to there.
    #[test]
    fn a_dead_output_is_noticed_as_late_as_this_gateway_notices_its_own_output() {
        let mut watch = FitnessWatch::default();
        let mut not_received = |as_of_ms: u64, ms: u64| {
            let channel = ChannelSample {
                published: at(5),
                published_as_of: MonoNs(as_of_ms * MS),
                peer_received: at(ms),
                reported_at: Some(MonoNs(ms * MS)),
                ..ChannelSample::default()
            };
            watch.update(&sample(channel), MonoNs(ms * MS)).output_not_received
        };
        for ms in (1_000..=2_000).step_by(50) {
            assert!(!not_received(990, ms), "{ms} ms: this gateway has noticed nothing of its output since");
        }
        for ms in [2_050, 2_100, 2_150] {
            assert!(!not_received(ms, ms), "{ms} ms: fewer than four reports that count");
        }
        assert!(not_received(2_200, 2_200));
    }

    #[test]
    fn log_losses_and_stalls_lower_fitness_for_five_seconds() {
        let mut watch = FitnessWatch::default();
        let counted = |log_entries_lost, stalls| FitnessSample { log_entries_lost, stalls, ..FitnessSample::default() };
        assert_eq!(watch.update(&counted(0, 0), MonoNs(0)).class(), FitnessClass::Fit);
        assert_eq!(watch.update(&counted(0, 1), MonoNs(MS)).class(), FitnessClass::Stalled);
        assert_eq!(watch.update(&counted(1, 1), MonoNs(2 * MS)).class(), FitnessClass::LogFailing);
        assert_eq!(watch.update(&counted(1, 1), MonoNs(5_001 * MS)).class(), FitnessClass::LogFailing);
        assert_eq!(watch.update(&counted(1, 1), MonoNs(5_002 * MS)).class(), FitnessClass::Fit);
    }
}
