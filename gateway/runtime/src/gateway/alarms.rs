//! What a person should hear of while the gateway runs: compared once a second by a cold thread, logged when it changes.

use std::collections::BTreeMap;

use mdgw_feeds::identity::Line;
use mdgw_sys::alarm::Alarm;
use mdgw_telemetry::counters::Reading;

/// What was known at the last look.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    last: BTreeMap<(String, &'static str), u64>,
    failed: Vec<String>,
}

impl Alarms {
    /// Compares with the last look and logs the differences.
    pub(super) fn check(&mut self, readings: &[Reading], failed: &[(String, String)]) {
        for Reading { scope, name, value } in readings {
            let last = self.last.insert((scope.clone(), name), *value).unwrap_or(0);
            if last != *value {
                log_change(scope, name, last, *value);
            }
        }
        for (channel, reason) in failed {
            if !self.failed.contains(channel) {
                tracing::error!(alarm = Alarm::ChannelFailed.name(), channel, reason, "out of service");
                self.failed.push(channel.clone());
            }
        }
    }
}

/// Counters that only grow tell by how much; silent lines are named.
fn log_change(channel: &str, name: &str, last: u64, now: u64) {
    let more = now.saturating_sub(last);
    match name {
        "gaps" => tracing::warn!(alarm = Alarm::GapDeclared.name(), channel, more, "no line and no server had it"),
        "lines_silent" => {
            for line in (0..8).map(Line).filter(|line| (last ^ now) >> line.0 & 1 == 1) {
                if now >> line.0 & 1 == 1 {
                    tracing::warn!(alarm = Alarm::LineSilent.name(), channel, %line, "neither packet nor heartbeat");
                } else {
                    tracing::info!(channel, %line, "the line is heard again");
                }
            }
        }
        "log_entries_lost" => {
            tracing::warn!(alarm = Alarm::LogBehind.name(), channel, more, "an output lost its place in the log")
        }
        "log_entries_private" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "published, but missing for readers of the log"
            )
        }
        "log_no_space" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "no space for a segment of the log, nor one that could go"
            )
        }
        "log_failures" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "a segment of the log can't be made or unlinked"
            )
        }
        "log_protected_unlinked" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "segments went that the peer may not have published yet"
            )
        }
        "frames_refused" => {
            tracing::warn!(
                alarm = Alarm::GapDeclared.name(),
                channel,
                more,
                "messages that fit no packet; told as gaps"
            )
        }
        "sends_refused" => tracing::warn!(channel, more, "sends that the kernel refused; tried again"),
        "sends_slow" => {
            tracing::warn!(channel, more, "sends that took longer than the fence's margin allows for")
        }
        "book_faults" => tracing::warn!(channel, more, "messages that contradict a book"),
        "drops" => tracing::warn!(channel, more, "packets or messages dropped; the summary says why"),
        _ => {}
    }
}
