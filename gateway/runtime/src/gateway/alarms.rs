//! Alarms that depend on counters: a cold thread compares the counters once a second and logs the changes.

use std::collections::{BTreeMap, BTreeSet};

use mdgw_engine::pipeline::PipelineCounters;
use mdgw_feeds::identity::Line;
use mdgw_sys::alarm::Alarm;
use mdgw_telemetry::counters::Registry;

use super::log_maintenance::LogCounters;

/// Counters and failed channels at the last check.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    channels: BTreeMap<String, PipelineCounters>,
    logs: BTreeMap<String, LogCounters>,
    failed: Vec<String>,
    /// Channels of which an output line could not be sent.
    outputs_failing: BTreeSet<String>,
}

impl Alarms {
    /// A channel was removed. One of that name that is added later counts from 0.
    pub(super) fn forget(&mut self, channel: &str) {
        self.channels.remove(channel);
        self.logs.remove(channel);
        self.outputs_failing.remove(channel);
        self.failed.retain(|failed| failed != channel);
    }

    /// Compares with the last check and logs the differences. `failed`: names of failed channels, with the reason.
    pub(super) fn check(&mut self, registry: &Registry, failed: &[(String, String)]) {
        for (channel, now) in registry.values::<PipelineCounters>() {
            let last = self.channels.get(&channel).copied().unwrap_or_default();
            log_channel_changes(&channel, &last, &now);
            self.check_output(&channel, &last, &now);
            self.channels.insert(channel, now);
        }
        for (channel, now) in registry.values::<LogCounters>() {
            let last = self.logs.get(&channel).copied().unwrap_or_default();
            log_log_changes(&channel, &last, &now);
            self.logs.insert(channel, now);
        }
        for (channel, reason) in failed {
            if !self.failed.contains(channel) {
                tracing::error!(alarm = Alarm::ChannelFailed.name(), channel, reason, "channel out of service");
                self.failed.push(channel.clone());
            }
        }
    }

    /// Logs whether sends of the channel fail, or the kernel has had no room for an output line for a while.
    fn check_output(&mut self, channel: &str, last: &PipelineCounters, now: &PipelineCounters) {
        let failed = growth(last.sends_failed, now.sends_failed);
        if failed.is_some() || now.output_blocked_ns >= OUTPUT_BLOCKED_NS {
            let (alarm, more) = (Alarm::OutputFailing.name(), failed.unwrap_or_default());
            let (lines, blocked_ms) = (output_lines(now.blocked_output_lines_mask), now.output_blocked_ns / 1_000_000);
            tracing::error!(
                alarm,
                channel,
                more,
                lines,
                blocked_ms,
                "the kernel sends packets of an output line no more; retrying"
            );
            self.outputs_failing.insert(channel.to_owned());
        } else if self.outputs_failing.remove(channel) {
            tracing::info!(ends = Alarm::OutputFailing.name(), channel, "no output line refuses packets any more");
        }
    }
}

/// A line whose packets the kernel has refused for this time is failing, ns: a queue that is full for a moment drains in a few ms.
const OUTPUT_BLOCKED_NS: u64 = 300_000_000;

/// Numbers of the output lines, from 1 on: `1, 2`. The order is that of the configuration.
fn output_lines(mask: u64) -> String {
    let lines = (0..u64::BITS).filter(|line| mask >> line & 1 == 1).map(|line| (line + 1).to_string());
    lines.collect::<Vec<_>>().join(", ")
}

/// Logs by how much a channel's counters have grown, and which lines became silent.
fn log_channel_changes(channel: &str, last: &PipelineCounters, now: &PipelineCounters) {
    if let Some(more) = growth(last.gaps, now.gaps) {
        tracing::warn!(
            alarm = Alarm::GapDeclared.name(),
            channel,
            more,
            "gaps declared: no line and no server delivered the messages"
        );
    }
    if growth(last.late_starts, now.late_starts).is_some() {
        tracing::warn!(
            alarm = Alarm::LateStart.name(),
            channel,
            "the channel began in the middle of a session: its books are suspect until the next session"
        );
    }
    let changed = last.silent_lines_mask ^ now.silent_lines_mask;
    for line in (0..8).map(Line).filter(|line| changed >> line.0 & 1 == 1) {
        if now.silent_lines_mask >> line.0 & 1 == 1 {
            tracing::warn!(alarm = Alarm::LineSilent.name(), channel, %line, "no packet and no heartbeat within line_silence_ms");
        } else {
            tracing::info!(ends = Alarm::LineSilent.name(), channel, %line, "line receives packets again");
        }
    }
    if let Some(more) = growth(last.output_overruns, now.output_overruns) {
        tracing::warn!(
            alarm = Alarm::LogBehind.name(),
            channel,
            more,
            "an output line fell behind the log and skipped entries"
        );
    }
    if let Some(more) = growth(last.log_entries_missing, now.log_entries_missing) {
        tracing::warn!(
            alarm = Alarm::LogBehind.name(),
            channel,
            more,
            "entries published but not written to the publication log"
        );
    }
    if let Some(more) = growth(last.frames_refused, now.frames_refused) {
        tracing::warn!(
            alarm = Alarm::GapDeclared.name(),
            channel,
            more,
            "messages too large for a packet; published as gaps"
        );
    }
    if let Some(more) = growth(last.sends_refused, now.sends_refused) {
        tracing::warn!(channel, more, "sends refused by the kernel; retrying");
    }
    if let Some(more) = growth(last.sends_slow, now.sends_slow) {
        tracing::warn!(channel, more, "sends slower than the margin allows (send_us_max)");
    }
    if let Some(more) = growth(last.book_faults, now.book_faults) {
        tracing::warn!(channel, more, "messages inconsistent with the book");
    }
    if let Some(more) = growth(last.drops, now.drops) {
        tracing::warn!(channel, more, "packets or messages dropped; `mdgw top --json` has the reasons");
    }
}

/// Logs by how much the counters of a channel's log have grown.
fn log_log_changes(channel: &str, last: &LogCounters, now: &LogCounters) {
    if let Some(more) = growth(last.log_no_space_turns, now.log_no_space_turns) {
        tracing::warn!(
            alarm = Alarm::LogBehind.name(),
            channel,
            more,
            "no space for a new log segment, and no segment can be deleted"
        );
    }
    if let Some(more) = growth(last.log_segments_deleted_early, now.log_segments_deleted_early) {
        tracing::warn!(
            alarm = Alarm::LogBehind.name(),
            channel,
            more,
            "no space for a new log segment: deleted the oldest, which retention would have kept"
        );
    }
    if let Some(more) = growth(last.log_failures, now.log_failures) {
        tracing::warn!(alarm = Alarm::LogBehind.name(), channel, more, "cannot create or delete a log segment");
    }
    if let Some(more) = growth(last.log_protected_segments_deleted, now.log_protected_segments_deleted) {
        tracing::warn!(
            alarm = Alarm::LogBehind.name(),
            channel,
            more,
            "deleted segments that the peer may not have published yet"
        );
    }
}

/// By how much a counter has grown; `None` if it is unchanged. Counters begin at 0, so the first check reports
/// everything since the start.
fn growth(last: u64, now: u64) -> Option<u64> {
    (now != last).then(|| now.saturating_sub(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_blocked_while_the_other_line_sends_is_an_alarm_until_it_sends_again() {
        let registry = Registry::default();
        let mut writer = registry.register::<PipelineCounters>("one");
        let mut alarms = Alarms::default();
        let mut is_failing = |packets_sent, sends_refused, output_blocked_ns: u64| {
            let blocked_output_lines_mask = u64::from(output_blocked_ns > 0) << 1;
            writer.publish(&PipelineCounters {
                packets_sent,
                sends_refused,
                output_blocked_ns,
                blocked_output_lines_mask,
                ..PipelineCounters::default()
            });
            alarms.check(&registry, &[]);
            alarms.outputs_failing.contains("one")
        };
        assert!(!is_failing(100, 0, 0));
        assert!(!is_failing(200, 5, 20_000_000), "the queue was full for a moment");
        assert!(is_failing(300, 2_000, 400_000_000));
        assert!(is_failing(400, 9_000, 1_400_000_000));
        assert!(!is_failing(600, 9_000, 0));
        assert!(!is_failing(600, 9_001, 0), "a heartbeat without room, and nothing else was sent");
        assert_eq!(
            (output_lines(0), output_lines(0b10), output_lines(0b1001)),
            (String::new(), "2".into(), "1, 4".into())
        );
    }
}
