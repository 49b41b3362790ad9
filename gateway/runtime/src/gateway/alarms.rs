//! Alarms that depend on counters: a cold thread compares the counters once a second and logs the changes.

use std::collections::BTreeMap;

use mdgw_feeds::identity::Line;
use mdgw_sys::alarm::Alarm;
use mdgw_telemetry::counters::Reading;

/// The counters at the last call.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    last: BTreeMap<(String, &'static str), u64>,
    failed: Vec<String>,
}

impl Alarms {
    /// Compares with the last call and logs the differences.
    pub(super) fn check(&mut self, readings: &[Reading], failed: &[(String, String)]) {
        for Reading { scope, name, value } in readings {
            let last = self.last.insert((scope.clone(), name), *value).unwrap_or(0);
            if last != *value {
                log_change(scope, name, last, *value);
            }
        }
        for (channel, reason) in failed {
            if !self.failed.contains(channel) {
                tracing::error!(alarm = Alarm::ChannelFailed.name(), channel, reason, "channel out of service");
                self.failed.push(channel.clone());
            }
        }
    }
}

/// Logs the increase of a counter, and the number of each line that became silent or receives packets again.
fn log_change(channel: &str, name: &str, last: u64, now: u64) {
    let more = now.saturating_sub(last);
    match name {
        "gaps" => tracing::warn!(
            alarm = Alarm::GapDeclared.name(),
            channel,
            more,
            "gaps declared: no line and no server delivered the messages"
        ),
        "lines_silent" => {
            for line in (0..8).map(Line).filter(|line| (last ^ now) >> line.0 & 1 == 1) {
                if now >> line.0 & 1 == 1 {
                    tracing::warn!(alarm = Alarm::LineSilent.name(), channel, %line, "no packet and no heartbeat within line_silence_ms");
                } else {
                    tracing::info!(channel, %line, "line receives packets again");
                }
            }
        }
        "log_entries_lost" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "an output line fell behind the log and skipped entries"
            )
        }
        "log_entries_private" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "entries published but not written to the publication log"
            )
        }
        "log_no_space" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "no space for a new log segment, and no segment can be deleted"
            )
        }
        "log_failures" => {
            tracing::warn!(alarm = Alarm::LogBehind.name(), channel, more, "cannot create or delete a log segment")
        }
        "log_protected_unlinked" => {
            tracing::warn!(
                alarm = Alarm::LogBehind.name(),
                channel,
                more,
                "deleted segments that the peer may not have published yet"
            )
        }
        "frames_refused" => {
            tracing::warn!(
                alarm = Alarm::GapDeclared.name(),
                channel,
                more,
                "messages too large for a packet; published as gaps"
            )
        }
        "sends_refused" => tracing::warn!(channel, more, "sends refused by the kernel; retrying"),
        "sends_slow" => {
            tracing::warn!(channel, more, "sends slower than the margin allows (send_us_max)")
        }
        "book_faults" => tracing::warn!(channel, more, "messages inconsistent with the book"),
        "drops" => tracing::warn!(channel, more, "packets or messages dropped; see the reasons in the summary at exit"),
        _ => {}
    }
}
