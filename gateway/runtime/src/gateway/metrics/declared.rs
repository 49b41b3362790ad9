//! Metrics that are no counter of a block: name, meaning, kind and unit, each declared once.

use mdgw_admin::metric::{Metric, MetricKind, MetricUnit, Sample};

/// A metric without its samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    /// Name without unit and without `_total`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricKind,
    pub(super) unit: Option<MetricUnit>,
}

impl Declared {
    const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Counter, unit: None }
    }

    const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Gauge, unit: None }
    }

    const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Histogram, unit: None }
    }

    const fn in_seconds(self) -> Self {
        Self { unit: Some(MetricUnit::Seconds), ..self }
    }

    const fn in_bytes(self) -> Self {
        Self { unit: Some(MetricUnit::Bytes), ..self }
    }

    pub(super) fn with(self, samples: impl IntoIterator<Item = Sample>) -> Metric {
        Metric {
            name: self.name.to_owned(),
            help: self.help.to_owned(),
            kind: self.kind,
            unit: self.unit,
            samples: samples.into_iter().collect(),
        }
    }
}

macro_rules! metrics {
    ($($constant:ident = $declared:expr;)*) => {
        $(pub(super) const $constant: Declared = $declared;)*

        /// All of them.
        pub(super) const ALL: &[Declared] = &[$($constant),*];
    };
}

metrics! {
    GATEWAY = Declared::gauge("mdgw_gateway", "this gateway; the value is the epoch count of its start");
    PROGRAM = Declared::gauge("mdgw_program", "this program beside a gateway; the value is 1");
    START_TIME = Declared::gauge("mdgw_start_time", "when this process started, since 1970 UTC").in_seconds();
    KERNEL_DROPS = Declared::counter("mdgw_kernel_drops", "datagrams that the kernel dropped because a receive buffer was full");
    RECEIVE_BUFFER_USED = Declared::gauge("mdgw_receive_buffer_used", "most bytes that a receive buffer held").in_bytes();
    RECEIVE_BUFFER_LIMIT = Declared::gauge("mdgw_receive_buffer_limit", "limit of the receive buffer that held most").in_bytes();
    ALARMS = Declared::counter("mdgw_alarms", "times that an alarm was raised; its runbook has its name");
    ALARM_LAST = Declared::gauge("mdgw_alarm_last_timestamp", "when the alarm was raised last, since 1970 UTC; absent if never").in_seconds();
    LOG_WAITING = Declared::gauge("mdgw_log_events_waiting", "events of this process's log that wait to be written; at 4,096 further ones are lost");
    LOG_LOST = Declared::counter("mdgw_log_events_lost", "events that are not in this process's log: too many waited to be written");
    PAIR_LINK_UP = Declared::gauge("mdgw_pair_link_up", "1: the pair link to that gateway is up");
    STALLED_POOL_THREADS = Declared::gauge("mdgw_stalled_pool_threads", "threads of pools that make no progress; states and counts of their channels are old");
    MAIN_THREAD_STALLED = Declared::gauge("mdgw_main_thread_stalled", "1: the main thread, which watches all others, makes no progress");
    SENTINEL_LOST = Declared::gauge("mdgw_sentinel_lost", "1: the sentinel has died, and this gateway starts no other one");
    SENTINEL_KILL_REFUSED = Declared::gauge("mdgw_sentinel_kill_refused", "1: the kernel refused to let the sentinel kill this gateway, of which a thread had ended or hung");
    AUDIT_FAILURES = Declared::counter("mdgw_audit_failures", "attempts to write the audit file that failed; two a second while it cannot be written");
    AUDIT_WRITTEN = Declared::counter("mdgw_audit_written", "lines written to the audit file since the start");
    AUDIT_LOST = Declared::counter("mdgw_audit_lost", "lines that are not in the audit file: too many waited for a disk that did not accept them");
    GROUP_LEADER = Declared::gauge("mdgw_group_leader", "1: this gateway leads the group");
    GROUP_EPOCH = Declared::gauge("mdgw_group_epoch", "count of the highest observed epoch");
    GROUP_ELIGIBLE = Declared::gauge("mdgw_group_eligible", "1: this gateway leads the group or would take over");
    GROUP_ELECTION_STALLED = Declared::gauge("mdgw_group_election_stalled", "1: the election thread of the group makes no progress");
    GROUP_OBSTACLE = Declared::gauge("mdgw_group_obstacle", "1: this gateway is not eligible, for a reason that does not end by itself");
    GROUP_CONNECTED = Declared::gauge("mdgw_group_connected", "1: the connection to the election's backend is up");
    GROUP_VOTER_UP = Declared::gauge("mdgw_group_voter_up", "1: that other voter of the quorum has lately answered this gateway");
    GROUP_FITNESS_REDUCED = Declared::gauge("mdgw_group_fitness_reduced", "1: for that reason, the worst one, the other gateway is preferred as leader of the group");
    CHANNEL_DROPPED = Declared::counter("mdgw_channel_dropped", "packets and messages that were not used, by reason, expected ones such as duplicates included");
    MIRROR_DROPPED = Declared::counter("mdgw_mirror_group_dropped", "packets that the mirror did not use, by reason, normal ones such as answers that are no longer wanted included");
    CHANNEL_BOOK_FAULTS = Declared::counter("mdgw_channel_book_faults_by_reason", "messages that contradict a book, by reason");
    CHANNEL_LATENCY = Declared::histogram("mdgw_channel_latency", "latency by stage, as collected at the end of each latency interval; a value is in its bucket within 1 %").in_seconds();
    POOL_BATCH_EVENTS = Declared::histogram("mdgw_pool_batch_events", "events that a wait returned, of waits that returned at least one");
    POOL_PROCESSING = Declared::histogram("mdgw_pool_processing", "time that the processing of one turn took").in_seconds();
    THREAD_BUSY = Declared::counter("mdgw_thread_busy", "time that a pool's thread spent in processing").in_seconds();
    LISTENER_RECEIVED = Declared::counter("mdgw_listener_received", "datagrams and connections that arrived at a listener beside the data path");
    LISTENER_REFUSED = Declared::counter("mdgw_listener_refused", "datagrams and connections that a listener refused, by reason");
}
