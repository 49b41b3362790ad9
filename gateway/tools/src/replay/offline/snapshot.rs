//! Status snapshot of a running replay, as shown by [`top`](mdgw::top).

use mdgw_feeds::{channel::Channel, identity::Line};
use mdgw_status::snapshot::{ChannelSnapshot, LineSnapshot, Snapshot};

use super::{ReplayDriver, ReplayedChannel};

impl ReplayDriver {
    /// State of the channels at this time, by the capture's clock. `progress`: bytes read, and bytes in total.
    #[must_use]
    pub fn snapshot(&self, progress: (u64, u64)) -> Snapshot {
        Snapshot {
            source: "replay".to_owned(),
            time_ns: self.now().0,
            clock_ns: self.now().0,
            progress: Some(progress),
            channels: self.channels().map(channel_snapshot).collect(),
            ..Snapshot::default()
        }
    }
}

fn channel_snapshot(replayed: ReplayedChannel<'_>) -> ChannelSnapshot {
    let channel = replayed.channel();
    let (counters, config) = (channel.counters(), channel.config());
    let mut lines: Vec<Line> = replayed.lines().iter().map(|(line, _)| *line).collect();
    lines.dedup();
    ChannelSnapshot {
        id: config.id.0,
        // Several channels may have the same feed.
        name: format!("{} {}", config.id.0, config.feed),
        state: format!("{:?}", channel.state()).to_lowercase(),
        datagrams: counters.datagrams,
        messages: counters.messages,
        next_sequence: channel.position().map_or(0, |(_, expected)| expected.0),
        records: counters.records,
        gaps: counters.gaps,
        gap_messages: counters.gap_messages,
        drops: channel.drops().unexpected() + channel.arbiter_drops().unexpected(),
        book_faults: channel.book_faults().total(),
        late_starts: counters.late_starts,
        input_incomplete: channel.has_missed_input(),
        lines: lines.into_iter().map(|line| line_snapshot(channel, line)).collect(),
        ..ChannelSnapshot::default()
    }
}

fn line_snapshot(channel: &Channel, line: Line) -> LineSnapshot {
    LineSnapshot::of(line, &channel.line_statistics(line).lead_ns)
}
