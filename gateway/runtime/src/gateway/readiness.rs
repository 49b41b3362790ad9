//! Whether the gateway's start is complete, as its service manager sees it, and one line of words about its state.
//!
//! The start is complete when each channel is received, is out of service, or has a venue that sends nothing. The last case
//! is a gateway that starts at night: its sockets have joined their groups, and it can do no more before the venue's first
//! packet. So the start ends whatever the venue does, and the service manager has no reason to kill the gateway.

use mdgw_election::{driver::Election, latch::LeaderLatch as _};
use mdgw_engine::pipeline::PipelineCounters;
use mdgw_feeds::{channel::ChannelState, identity::GroupId};

use super::watch::{channel_state, state_name};

/// What a service manager is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The start is complete.
    pub is_ready: bool,
    /// Role of each group, and how many channels are received: one line.
    pub status: String,
}

/// Whether a channel in that state is received: what `/ready` of the admin listener demands.
pub(super) fn is_received(state: ChannelState) -> bool {
    matches!(state, ChannelState::Live | ChannelState::Gap | ChannelState::Recovering | ChannelState::Ended)
}

/// One channel, as far as readiness depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelReadiness<'a> {
    name: &'a str,
    state: ChannelState,
    /// No packet and no heartbeat arrives on any line.
    is_silent: bool,
}

impl<'a> ChannelReadiness<'a> {
    /// Of a channel with that many lines.
    pub(super) fn new(name: &'a str, line_count: usize, counters: &PipelineCounters) -> Self {
        let silent_count = usize::try_from(counters.silent_lines_mask.count_ones()).unwrap_or(0);
        Self { name, state: channel_state(counters), is_silent: silent_count >= line_count }
    }

    /// Whether the start waits for this channel.
    fn is_awaited(&self) -> bool {
        !is_received(self.state) && self.state != ChannelState::Failed && !self.is_silent
    }
}

/// Judges the channels, and describes them and the groups.
pub(super) fn readiness<'e>(
    channels: &[ChannelReadiness<'_>],
    elections: impl Iterator<Item = (&'e GroupId, &'e Election)>,
) -> Readiness {
    let all_failed = channels.iter().all(|channel| channel.state == ChannelState::Failed);
    let is_ready = !all_failed && !channels.iter().any(ChannelReadiness::is_awaited);
    let roles = elections.map(|(group, election)| (group.0, election.has_leadership()));
    Readiness { is_ready, status: format!("{}; {}", role_text(roles), channel_text(channels)) }
}

fn role_text(roles: impl Iterator<Item = (u16, bool)>) -> String {
    let (leads, follows): (Vec<_>, Vec<_>) = roles.partition(|(_, leads)| *leads);
    let list = |groups: &[(u16, bool)]| {
        let numbers: Vec<_> = groups.iter().map(|(group, _)| group.to_string()).collect();
        let noun = if groups.len() == 1 { "group" } else { "groups" };
        format!("{noun} {}", numbers.join(", "))
    };
    match (leads.as_slice(), follows.as_slice()) {
        ([], []) => "standalone".to_owned(),
        (leads, []) => format!("leads {}", list(leads)),
        ([], follows) => format!("standby of {}", list(follows)),
        (leads, follows) => format!("leads {}, standby of {}", list(leads), list(follows)),
    }
}

fn channel_text(channels: &[ChannelReadiness<'_>]) -> String {
    let others: Vec<_> = channels.iter().filter(|channel| !is_received(channel.state)).collect();
    let mut text = format!("{} of {} channels live", channels.len() - others.len(), channels.len());
    for channel in others.iter().take(NAMES_MAX) {
        text.push_str(&format!(", {} is {}", channel.name, state_name(channel.state)));
        if channel.is_silent && channel.state == ChannelState::Waiting {
            text.push_str(" (the venue sends nothing)");
        }
    }
    if others.len() > NAMES_MAX {
        text.push_str(&format!(" and {} more", others.len() - NAMES_MAX));
    }
    text
}

/// Channels that the line names.
const NAMES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(state: ChannelState, silent_lines_mask: u64) -> ChannelReadiness<'static> {
        let counters = PipelineCounters { state: state as u64, silent_lines_mask, ..PipelineCounters::default() };
        ChannelReadiness::new("one", 2, &counters)
    }

    #[test]
    fn a_start_is_complete_when_no_channel_is_awaited_any_longer() {
        use ChannelState::{Ended, Failed, Gap, Live, Recovering, Stale, Waiting};
        let live = channel(Live, 0);
        for (state, silent_lines_mask, is_ready) in [
            (Live, 0, true),
            (Gap, 0, true),
            (Recovering, 0, true),
            (Ended, 0b11, true),
            (Stale, 0b11, true),
            (Failed, 0, true),
            (Waiting, 0, false),
            (Waiting, 0b10, false),
            (Waiting, 0b11, true),
        ] {
            let found = readiness(&[live, channel(state, silent_lines_mask)], std::iter::empty());
            assert_eq!(found.is_ready, is_ready, "{state:?}, {silent_lines_mask:b}: {}", found.status);
        }
        assert!(!readiness(&[channel(Failed, 0)], std::iter::empty()).is_ready, "no channel works");
    }

    #[test]
    fn the_line_names_roles_and_the_first_channels_that_are_not_live() {
        let roles = |roles: &[(u16, bool)]| role_text(roles.iter().copied());
        assert_eq!(roles(&[]), "standalone");
        assert_eq!(roles(&[(1, true)]), "leads group 1");
        assert_eq!(roles(&[(1, false), (2, false)]), "standby of groups 1, 2");
        assert_eq!(roles(&[(1, false), (2, true)]), "leads group 2, standby of group 1");

        let waiting = channel(ChannelState::Waiting, 0b11);
        let all = [channel(ChannelState::Live, 0), channel(ChannelState::Failed, 0), waiting, waiting, waiting];
        assert_eq!(channel_text(&all[..1]), "1 of 1 channels live");
        assert_eq!(
            channel_text(&all),
            "1 of 5 channels live, one is failed, one is waiting (the venue sends nothing), \
             one is waiting (the venue sends nothing) and 1 more"
        );
    }
}
