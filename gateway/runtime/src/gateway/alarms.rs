//! What a person should hear of while the gateway runs: compared once a second by a cold thread, logged when it changes.

use std::collections::BTreeMap;

use mdgw_engine::pipeline::ChannelCounters;
use mdgw_feeds::identity::Line;
use mdgw_telemetry::counters::Registry;

use super::log_maintenance::LogCounters;

/// Counters and failed channels at the last check.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    channels: BTreeMap<String, ChannelCounters>,
    logs: BTreeMap<String, LogCounters>,
    failed: Vec<String>,
}

impl Alarms {
    /// Compares with the last check and logs the differences. `failed`: names of failed channels, with the reason.
    pub(super) fn check(&mut self, registry: &Registry, failed: &[(String, String)]) {
        for (channel, now) in registry.values::<ChannelCounters>() {
            let last = self.channels.get(&channel).copied().unwrap_or_default();
            log_channel_changes(&channel, &last, &now);
            self.channels.insert(channel, now);
        }
        for (channel, now) in registry.values::<LogCounters>() {
            let last = self.logs.get(&channel).copied().unwrap_or_default();
            log_log_changes(&channel, &last, &now);
            self.logs.insert(channel, now);
        }
        for (channel, reason) in failed {
            if !self.failed.contains(channel) {
                tracing::error!(alarm = "channel-failed", channel, reason, "out of service");
                self.failed.push(channel.clone());
            }
        }
    }
}

/// Logs by how much a channel's counters have grown, and which lines became silent.
fn log_channel_changes(channel: &str, last: &ChannelCounters, now: &ChannelCounters) {
    if let Some(more) = growth(last.gaps, now.gaps) {
        tracing::warn!(alarm = "gap-declared", channel, more, "no line and no server had it");
    }
    let changed = last.silent_lines_mask ^ now.silent_lines_mask;
    for line in (0..8).map(Line).filter(|line| changed >> line.0 & 1 == 1) {
        if now.silent_lines_mask >> line.0 & 1 == 1 {
            tracing::warn!(alarm = "line-silent", channel, %line, "neither packet nor heartbeat");
        } else {
            tracing::info!(channel, %line, "the line is heard again");
        }
    }
    if let Some(more) = growth(last.output_overruns, now.output_overruns) {
        tracing::warn!(alarm = "log-behind", channel, more, "an output lost its place in the log");
    }
    if let Some(more) = growth(last.log_entries_missing, now.log_entries_missing) {
        tracing::warn!(alarm = "log-behind", channel, more, "published, but missing for readers of the log");
    }
    if let Some(more) = growth(last.frames_refused, now.frames_refused) {
        tracing::warn!(alarm = "gap-declared", channel, more, "messages that fit no packet; told as gaps");
    }
    if let Some(more) = growth(last.sends_refused, now.sends_refused) {
        tracing::warn!(channel, more, "sends that the kernel refused; tried again");
    }
    if let Some(more) = growth(last.sends_slow, now.sends_slow) {
        tracing::warn!(channel, more, "sends that took longer than the fence's margin allows for");
    }
    if let Some(more) = growth(last.book_faults, now.book_faults) {
        tracing::warn!(channel, more, "messages that contradict a book");
    }
    if let Some(more) = growth(last.drops, now.drops) {
        tracing::warn!(channel, more, "packets or messages dropped; the summary says why");
    }
}

/// Logs by how much the counters of a channel's log have grown.
fn log_log_changes(channel: &str, last: &LogCounters, now: &LogCounters) {
    if let Some(more) = growth(last.log_no_space_turns, now.log_no_space_turns) {
        tracing::warn!(alarm = "log-behind", channel, more, "no space for a segment of the log, nor one that could go");
    }
    if let Some(more) = growth(last.log_failures, now.log_failures) {
        tracing::warn!(alarm = "log-behind", channel, more, "a segment of the log can't be made or unlinked");
    }
    if let Some(more) = growth(last.log_protected_segments_deleted, now.log_protected_segments_deleted) {
        tracing::warn!(alarm = "log-behind", channel, more, "segments went that the peer may not have published yet");
    }
}

/// By how much a counter has grown; `None` if it is unchanged. Blocks begin at 0, so the first check reports all.
fn growth(last: u64, now: u64) -> Option<u64> {
    (now != last).then(|| now.saturating_sub(last))
}
