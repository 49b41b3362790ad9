//! Maintenance of one channel's log, with its counters.

use mdgw_publog::{MaintenanceCounts, SegmentMaintenance};
use mdgw_telemetry::counters::CounterWriter;

/// A log's maintenance and its counters. Owned by the maintenance thread.
#[derive(Debug)]
pub(super) struct MaintainedLog {
    maintenance: SegmentMaintenance,
    counters: CounterWriter,
}

/// Counters of a log's maintenance, in the order in which they are registered.
pub(super) const LOG_COUNTERS: [&str; 3] = ["log_no_space", "log_failures", "log_protected_unlinked"];

impl MaintainedLog {
    /// `counters` are named [`LOG_COUNTERS`].
    pub(super) fn new(maintenance: SegmentMaintenance, counters: CounterWriter) -> Self {
        Self { maintenance, counters }
    }

    /// Creates and deletes segments. `now_ns`: ns since 1970 UTC.
    pub(super) fn turn(&mut self, now_ns: u64) {
        self.maintenance.run_once(now_ns);
        let MaintenanceCounts { no_space, failures, protected_unlinked, .. } = *self.maintenance.counts();
        for (place, value) in [no_space, failures, protected_unlinked].into_iter().enumerate() {
            self.counters.set(place, value);
        }
    }
}
