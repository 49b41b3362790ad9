//! Maintenance of one channel's log, with its counters.

use mdgw_feeds::identity::ChannelId;
use mdgw_publog::{LogError, MaintenanceCounts, SegmentMaintenance};
use mdgw_telemetry::{counter_block, counters::CounterWriter};

/// A log's maintenance and its counters. Owned by the maintenance thread.
#[derive(Debug)]
pub(super) struct MaintainedLog {
    pub(super) channel: ChannelId,
    maintenance: SegmentMaintenance,
    counters: CounterWriter<LogCounters>,
    /// The failure that was logged last: the alarm has the count alone, and a failure that lasts is logged once.
    logged_failure: Option<String>,
}

counter_block! {
    /// Counters of one channel's publication log. Written by the maintenance thread.
    pub(super) struct LogCounters, key LogCounter {
        log_no_space_turns: Counter, None, "maintenance turns without space for a segment";
        log_segments_deleted_early: Counter, Segments, "deleted segments that retention would have kept: there was no space for a new one";
        log_failures: Counter, None, "segments that could not be created or deleted";
        log_segments_reused: Counter, Segments, "segments made from deleted ones, without new memory";
        log_protected_segments_deleted: Counter, Segments, "deleted segments that the peer may not have published yet";
    }
}

impl From<&MaintenanceCounts> for LogCounters {
    fn from(counts: &MaintenanceCounts) -> Self {
        let MaintenanceCounts { removed_for_space, no_space, failures, reused, protected_removed, .. } = *counts;
        Self {
            log_no_space_turns: no_space,
            log_segments_deleted_early: removed_for_space,
            log_failures: failures,
            log_segments_reused: reused,
            log_protected_segments_deleted: protected_removed,
        }
    }
}

impl MaintainedLog {
    pub(super) fn new(
        channel: ChannelId,
        maintenance: SegmentMaintenance,
        counters: CounterWriter<LogCounters>,
    ) -> Self {
        Self { channel, maintenance, counters, logged_failure: None }
    }

    /// Creates and deletes segments as needed, and publishes the counters. `now_ns`: ns since 1970 UTC.
    pub(super) fn turn(&mut self, now_ns: u64) {
        let failures_before = self.maintenance.counts().failures;
        self.maintenance.run_once(now_ns);
        let counts = self.maintenance.counts();
        self.counters.publish(&LogCounters::from(counts));
        if counts.failures > failures_before {
            self.log_failure();
        }
    }

    fn log_failure(&mut self) {
        let Some(error) = self.maintenance.last_failure() else { return };
        // Without the segment's number, with which each attempt differs.
        let cause = match error {
            LogError::Io { action, source, .. } => format!("cannot {action} a segment: {source}"),
            other => other.to_string(),
        };
        if self.logged_failure.as_ref() != Some(&cause) {
            tracing::warn!(channel_id = self.channel.0, %error, "maintenance of the publication log");
            self.logged_failure = Some(cause);
        }
    }
}
