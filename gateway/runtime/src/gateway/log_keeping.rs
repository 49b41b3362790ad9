//! One channel's log, kept: its keeper's turns, and what they come to as counters.

use mdgw_publog::{Keeper, KeeperCounts};
use mdgw_telemetry::counters::CounterWriter;

/// A log's keeper and its counters. Owned by the keeper's thread.
#[derive(Debug)]
pub(super) struct KeptLog {
    keeper: Keeper,
    counters: CounterWriter,
}

/// Counters of a log's keeper, in the order in which they are registered.
pub(super) const LOG_COUNTERS: [&str; 3] = ["log_no_space", "log_failures", "log_protected_unlinked"];

impl KeptLog {
    /// `counters` are named [`LOG_COUNTERS`].
    pub(super) fn new(keeper: Keeper, counters: CounterWriter) -> Self {
        Self { keeper, counters }
    }

    /// Makes and unlinks segments. `now_ns`: ns since 1970 UTC.
    pub(super) fn turn(&mut self, now_ns: u64) {
        self.keeper.turn(now_ns);
        let KeeperCounts { no_space, failures, protected_unlinked, .. } = *self.keeper.counts();
        for (place, value) in [no_space, failures, protected_unlinked].into_iter().enumerate() {
            self.counters.set(place, value);
        }
    }
}
