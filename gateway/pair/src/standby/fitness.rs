//! How fit this gateway is, from what is counted. No clock, no sockets.

use std::collections::BTreeMap;

use mdgw_election::fitness::Fitness;
use mdgw_feeds::{channel::ChannelState, identity::ChannelId, published::position::StreamPosition, time::MonoNs};

/// What is known at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitnessLook {
    /// The group's channels.
    pub channels: Vec<ChannelLook>,
    /// Entries of any log that have gone to private memory, or readers have missed, so far.
    pub log_entries_lost: u64,
    /// Stalls of the own threads longer than they may be, so far.
    pub stalls: u64,
    /// The peer hears a probe of its own on the group: what it doesn't hear then, isn't there.
    pub peer_hears_probe: bool,
    /// This gateway doesn't hear its own probes, nor lead: it could neither tell what was published nor whether it is heard.
    pub is_deaf: bool,
}

/// One channel at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelLook {
    /// The channel.
    pub channel: ChannelId,
    /// Where it stands.
    pub state: ChannelState,
    /// Where the peer's stands; `None` while nothing is known of the peer.
    pub peer_state: Option<ChannelState>,
    /// How far this gateway has published, while it leads.
    pub published: Option<StreamPosition>,
    /// How far the peer has told that it heard.
    pub echoed: Option<StreamPosition>,
}

/// Looks again and again.
#[derive(Debug, Default)]
pub struct FitnessWatch {
    /// What the peer owes an echo of, and since when, for each channel.
    owed: BTreeMap<ChannelId, (StreamPosition, MonoNs)>,
    log_entries_lost: Recent,
    stalls: Recent,
}

/// A counter that has grown not long ago.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    count: u64,
    grew_at: Option<MonoNs>,
}

impl Recent {
    fn look(&mut self, count: u64, now: MonoNs) -> bool {
        if count > self.count {
            (self.count, self.grew_at) = (count, Some(now));
        }
        self.grew_at.is_some_and(|at| now.since(at) < RECENT_NS)
    }
}

impl FitnessWatch {
    /// How fit it is by now.
    pub fn look(&mut self, look: &FitnessLook, now: MonoNs) -> Fitness {
        let count = |matches: fn(&ChannelLook) -> bool| {
            u16::try_from(look.channels.iter().filter(|channel| matches(channel)).count()).unwrap_or(u16::MAX)
        };
        let unheard = look.channels.iter().filter(|channel| self.is_unheard(channel, now)).count();
        Fitness {
            output_unheard: look.is_deaf || unheard > 0 && look.peer_hears_probe,
            channels_failed: count(|channel| channel.state == ChannelState::Failed),
            channels_behind: count(|channel| is_behind(channel.state) && channel.peer_state.is_some_and(is_well)),
            log_failing: self.log_entries_lost.look(look.log_entries_lost, now),
            stalled: self.stalls.look(look.stalls, now),
        }
    }

    /// What was published some time ago should have been heard by now.
    fn is_unheard(&mut self, channel: &ChannelLook, now: MonoNs) -> bool {
        let Some(published) = channel.published else {
            self.owed.remove(&channel.channel);
            return false;
        };
        let (owed, since) = *self.owed.entry(channel.channel).or_insert((published, now));
        if channel.echoed >= Some(owed) {
            // Paid; what has been published since is owed from now on.
            self.owed.insert(channel.channel, (published, now));
            return false;
        }
        now.since(since) >= ECHO_NS_MAX
    }
}

fn is_behind(state: ChannelState) -> bool {
    matches!(state, ChannelState::Waiting | ChannelState::Gap | ChannelState::Recovering | ChannelState::Stale)
}

/// Nothing is missing.
#[must_use]
pub fn is_well(state: ChannelState) -> bool {
    matches!(state, ChannelState::Live | ChannelState::Ended)
}

/// Ten periods in which positions are told.
const ECHO_NS_MAX: u64 = 200_000_000;
/// How long a gateway counts as failing after its log or its threads last did.
const RECENT_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use mdgw_election::fitness::FitnessClass;
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(sequence: u64) -> Option<StreamPosition> {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        Some(StreamPosition::at(Session { feed: Feed::IexTops, date, restart: 0 }, Sequence(sequence)))
    }

    fn look(channel: ChannelLook) -> FitnessLook {
        FitnessLook { channels: vec![channel], peer_hears_probe: true, ..FitnessLook::default() }
    }

    #[test]
    fn a_gap_counts_only_where_the_peer_has_none() {
        let mut watch = FitnessWatch::default();
        for (state, peer_state, class) in [
            (ChannelState::Live, Some(ChannelState::Live), FitnessClass::Fit),
            (ChannelState::Gap, Some(ChannelState::Live), FitnessClass::ChannelsBehind),
            (ChannelState::Stale, Some(ChannelState::Live), FitnessClass::ChannelsBehind),
            (ChannelState::Stale, Some(ChannelState::Stale), FitnessClass::Fit),
            (ChannelState::Waiting, Some(ChannelState::Live), FitnessClass::ChannelsBehind),
            (ChannelState::Recovering, None, FitnessClass::Fit),
            (ChannelState::Failed, None, FitnessClass::ChannelsFailed),
        ] {
            let fitness = watch.look(&look(ChannelLook { state, peer_state, ..ChannelLook::default() }), MonoNs(0));
            assert_eq!(fitness.class(), class, "{state:?} beside {peer_state:?}");
        }
    }

    #[test]
    fn a_leader_that_is_not_heard_is_unfit_unless_it_is_the_peer_that_is_deaf() {
        let channel = |published, echoed| ChannelLook { published, echoed, ..ChannelLook::default() };
        let mut watch = FitnessWatch::default();
        let mut unheard = |look: &FitnessLook, ms| watch.look(look, MonoNs(ms * MS)).output_unheard;
        assert!(!unheard(&look(channel(at(5), None)), 0));
        assert!(!unheard(&look(channel(at(9), at(5))), 100), "heard, a little later");
        assert!(!unheard(&look(channel(at(50), at(8))), 299));
        assert!(unheard(&look(channel(at(60), at(8))), 300));
        let deaf = FitnessLook { peer_hears_probe: false, ..look(channel(at(70), at(8))) };
        assert!(!unheard(&deaf, 400));
        assert!(!unheard(&look(channel(at(70), at(60))), 500), "heard again");
        assert!(
            unheard(&FitnessLook { is_deaf: true, ..look(channel(None, None)) }, 600),
            "who is deaf can't lead either"
        );
        assert!(!unheard(&look(channel(None, None)), 9_000), "a standby publishes nothing");
        assert!(!unheard(&look(channel(at(70), None)), 9_100), "a new leader gets its time");
        assert!(unheard(&look(channel(at(70), None)), 9_300));
    }

    #[test]
    fn trouble_of_log_and_threads_is_remembered_for_a_while() {
        let mut watch = FitnessWatch::default();
        let counted = |log_entries_lost, stalls| FitnessLook { log_entries_lost, stalls, ..FitnessLook::default() };
        assert_eq!(watch.look(&counted(0, 0), MonoNs(0)).class(), FitnessClass::Fit);
        assert_eq!(watch.look(&counted(0, 1), MonoNs(MS)).class(), FitnessClass::Stalled);
        assert_eq!(watch.look(&counted(1, 1), MonoNs(2 * MS)).class(), FitnessClass::LogFailing);
        assert_eq!(watch.look(&counted(1, 1), MonoNs(5_001 * MS)).class(), FitnessClass::LogFailing);
        assert_eq!(watch.look(&counted(1, 1), MonoNs(5_002 * MS)).class(), FitnessClass::Fit);
    }
}
