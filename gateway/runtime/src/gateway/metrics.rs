//! What the admin listener shows: every counter under the name, unit and help of its declaration, latencies, and health.
//!
//! All of it is read from what other threads leave behind: counter blocks, gauges of pools, the intervals that the latency
//! thread collected. Nothing here asks a hot thread for anything.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mdgw_admin::{
    Health, Probe,
    metric::{Metric, MetricKind, Sample, Value},
};
use mdgw_election::{driver::Election, latch::LeaderLatch as _};
use mdgw_engine::dispatch::roles::Counts;
use mdgw_feeds::{
    channel::ChannelState,
    drop_reason::DropCounts,
    identity::{ChannelId, GroupId},
    time::MonoNs,
};
use mdgw_status::recent::{BUCKET_BOUNDS_NS, BucketTotals};
use mdgw_sys::clock::mono_now;
use mdgw_telemetry::{
    channel_metrics::LineCounts,
    counters::{CounterBlock, Descriptor, Kind, Unit},
};

use super::{
    log_maintenance::LogCounters,
    takeovers::TakeoverCounters,
    watch::{Watch, channel_state, state_name},
};

/// Sources of metrics and health.
#[derive(Debug)]
pub(super) struct AdminSource {
    pub(super) watch: Watch,
    /// Empty for a gateway that always publishes.
    pub(super) elections: BTreeMap<GroupId, Election>,
    /// Ids and names of all channels.
    pub(super) channels: Vec<(ChannelId, String)>,
    pub(super) node: u8,
    pub(super) epoch_count: u64,
    /// When the main thread last evaluated the gateway's health.
    pub(super) main_turned_at: Arc<AtomicU64>,
}

/// A main thread that has not turned for this long is stuck, ns. It turns twenty times a second.
const MAIN_TURN_NS_MAX: u64 = 10_000_000_000;

impl AdminSource {
    pub(super) fn health(&self, probe: Probe) -> Health {
        match probe {
            Probe::Live => self.live(mono_now()),
            Probe::Ready => self.ready(),
            Probe::Leader(group) => self.leader(group),
        }
    }

    fn live(&self, now: MonoNs) -> Health {
        if let Some(fault) = self.watch.pools.iter().find_map(|pool| pool.pool.fault()) {
            return failing(format!("a pool stopped: {fault}"));
        }
        let idle_ns = now.since(MonoNs(self.main_turned_at.load(Ordering::Relaxed)));
        if idle_ns > MAIN_TURN_NS_MAX {
            return failing(format!("the main thread is stuck for {} s", idle_ns / 1_000_000_000));
        }
        healthy("running")
    }

    fn ready(&self) -> Health {
        let counters = self.watch.channel_counters();
        let states = self
            .channels
            .iter()
            .map(|(_, name)| (name, counters.get(name).map_or_else(ChannelState::default, channel_state)));
        let others = states.filter(|(_, state)| {
            !matches!(state, ChannelState::Live | ChannelState::Gap | ChannelState::Recovering | ChannelState::Ended)
        });
        let others: Vec<_> = others.map(|(name, state)| format!("{name} is {}", state_name(state))).collect();
        if others.is_empty() {
            healthy(format!("{} channels", self.channels.len()))
        } else {
            failing(others.join(", "))
        }
    }

    fn leader(&self, group: Option<u16>) -> Health {
        if self.elections.is_empty() {
            return healthy("standalone: always publishes");
        }
        let wanted = |id: &GroupId| group.is_none_or(|group| group == id.0);
        let (leads, others): (Vec<_>, Vec<_>) =
            self.elections.iter().filter(|(id, _)| wanted(id)).partition(|(_, election)| election.has_leadership());
        let list = |groups: &[(&GroupId, &Election)]| {
            let numbers: Vec<_> = groups.iter().map(|(id, _)| id.0.to_string()).collect();
            numbers.join(", ")
        };
        if leads.is_empty() && others.is_empty() {
            return failing("no such group");
        }
        if others.is_empty() {
            healthy(format!("leads group {}", list(&leads)))
        } else {
            failing(format!("does not lead group {}", list(&others)))
        }
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut all = Vec::new();
        self.gateway(&mut all);
        self.groups(&mut all);
        self.channels(&mut all);
        self.latencies(&mut all);
        self.pools(&mut all);
        self.listeners(&mut all);
        all
    }

    fn gateway(&self, all: &mut Vec<Metric>) {
        let labels = vec![("node", self.node.to_string()), ("version", env!("CARGO_PKG_VERSION").to_owned())];
        all.push(metric(
            "mdgw_gateway",
            "this gateway; the value is the epoch count of its start",
            MetricKind::Gauge,
            vec![Sample { labels, value: Value::Count(self.epoch_count) }],
        ));
        let one = |value| vec![Sample { labels: Vec::new(), value: Value::Count(value) }];
        let drops = &self.watch.kernel_drops;
        let help = "datagrams that the kernel dropped because a receive buffer was full";
        all.push(metric("mdgw_kernel_drops", help, MetricKind::Counter, one(drops.total())));
        let highest = drops.highest_use();
        let help = "most bytes that a receive buffer held";
        all.push(metric("mdgw_receive_buffer_used_bytes", help, MetricKind::Gauge, one(highest.used_bytes.into())));
        let help = "limit of the receive buffer that held most";
        all.push(metric("mdgw_receive_buffer_limit_bytes", help, MetricKind::Gauge, one(highest.limit_bytes.into())));
    }

    fn groups(&self, all: &mut Vec<Metric>) {
        let blocks = self.watch.registry.values::<TakeoverCounters>().into_iter();
        block(all, "mdgw_group_", blocks.map(|(scope, block)| (vec![("group", scope.replace("group ", ""))], block)));
        let per_group = |value: &dyn Fn(&Election) -> u64| {
            let samples = self.elections.iter().map(|(group, election)| Sample {
                labels: vec![("group", group.0.to_string())],
                value: Value::Count(value(election)),
            });
            samples.collect::<Vec<_>>()
        };
        let leads = per_group(&|election| u64::from(election.has_leadership()));
        all.push(metric("mdgw_group_leader", "1: this gateway leads the group", MetricKind::Gauge, leads));
        let epochs = per_group(&|election| election.view().epoch.count());
        all.push(metric("mdgw_group_epoch", "count of the highest observed epoch", MetricKind::Gauge, epochs));
    }

    fn channels(&self, all: &mut Vec<Metric>) {
        let registry = &self.watch.registry;
        let labelled = |name: &str| vec![("channel", name.to_owned())];
        let blocks = self.watch.channel_counters().into_iter();
        block(all, "mdgw_channel_", blocks.map(|(name, block)| (labelled(&name), block)));
        let logs = registry.values::<LogCounters>().into_iter().map(|(name, block)| (labelled(&name), block));
        block(all, "mdgw_channel_", logs);
        let dropped = registry.values::<DropCounts>().into_iter().flat_map(|(name, counts)| {
            let reasons = DropCounts::DESCRIPTORS.iter().zip(counts.values().collect::<Vec<_>>());
            let samples = reasons.map(move |(reason, count)| Sample {
                labels: vec![("channel", name.clone()), ("reason", reason.name.to_owned())],
                value: Value::Count(count),
            });
            samples.collect::<Vec<_>>()
        });
        let help = "packets and messages that were not used, by reason, expected ones such as duplicates included";
        all.push(metric("mdgw_channel_dropped", help, MetricKind::Counter, dropped.collect()));
        let of_lines = self.channels.iter().flat_map(|(id, name)| {
            let lines = self.watch.recent.line_counts(*id).into_iter();
            lines.map(move |(line, counts)| (vec![("channel", name.clone()), ("line", line.to_string())], counts))
        });
        block::<LineCounts>(all, "mdgw_line_", of_lines);
    }

    fn latencies(&self, all: &mut Vec<Metric>) {
        let mut samples = Vec::new();
        for (id, name) in &self.channels {
            for (stage, totals) in self.watch.recent.totals(*id) {
                let labels = vec![("channel", name.clone()), ("stage", stage.name().to_owned())];
                samples.push(Sample { labels, value: histogram(&totals) });
            }
        }
        let help =
            "latency by stage, as collected at the end of each latency interval; a value is in its bucket within 1 %";
        let latency = metric("mdgw_channel_latency", help, MetricKind::Histogram, samples);
        all.push(Metric { is_seconds: true, ..latency });
    }

    fn pools(&self, all: &mut Vec<Metric>) {
        let gauges: Vec<_> = self.watch.pools.iter().map(|pool| (pool.name.clone(), pool.pool.gauges())).collect();
        let pools =
            gauges.iter().map(|(name, gauges)| (vec![("pool", name.clone())], gauges.counts.values().collect()));
        declared(all, "mdgw_pool_", Counts::DESCRIPTORS, pools.collect());
        let threads = gauges.iter().flat_map(|(name, gauges)| {
            gauges.threads.iter().enumerate().map(move |(number, thread)| Sample {
                labels: vec![("pool", name.clone()), ("thread", format!("{name}-{number}"))],
                value: Value::Real(seconds(thread.handler_ns_sum)),
            })
        });
        let busy = metric(
            "mdgw_thread_busy",
            "time that a pool's thread spent in processing",
            MetricKind::Counter,
            threads.collect(),
        );
        all.push(Metric { is_seconds: true, ..busy });
    }

    fn listeners(&self, all: &mut Vec<Metric>) {
        let snapshots = self.watch.listeners.snapshots();
        let received = snapshots.iter().map(|listener| Sample {
            labels: vec![("listener", listener.name.clone())],
            value: Value::Count(listener.received),
        });
        let help = "datagrams and connections that arrived at a listener beside the data path";
        all.push(metric("mdgw_listener_received", help, MetricKind::Counter, received.collect()));
        let refused = snapshots.iter().flat_map(|listener| {
            listener.refused.iter().map(|(reason, count)| Sample {
                labels: vec![("listener", listener.name.clone()), ("reason", reason.clone())],
                value: Value::Count(*count),
            })
        });
        let help = "datagrams and connections that a listener refused, by reason";
        all.push(metric("mdgw_listener_refused", help, MetricKind::Counter, refused.collect()));
    }
}

type Labels = Vec<(&'static str, String)>;

/// All counters of blocks of one type.
fn block<B: CounterBlock>(all: &mut Vec<Metric>, prefix: &str, blocks: impl Iterator<Item = (Labels, B)>) {
    declared(all, prefix, B::DESCRIPTORS, blocks.map(|(labels, block)| (labels, block.values().collect())).collect());
}

/// A metric for each declaration, a sample for each owner of such values.
#[allow(clippy::needless_pass_by_value, reason = "collected for this call")]
fn declared(all: &mut Vec<Metric>, prefix: &str, descriptors: &[Descriptor], owners: Vec<(Labels, Vec<u64>)>) {
    for (index, descriptor) in descriptors.iter().enumerate() {
        let is_seconds = descriptor.unit == Unit::Nanoseconds;
        let samples = owners.iter().map(|(labels, values)| {
            let value = values.get(index).copied().unwrap_or_default();
            let value = if is_seconds { Value::Real(seconds(value)) } else { Value::Count(value) };
            Sample { labels: labels.clone(), value }
        });
        let kind = if descriptor.kind == Kind::Counter { MetricKind::Counter } else { MetricKind::Gauge };
        let named = metric(&metric_name(prefix, descriptor), &help(descriptor), kind, samples.collect());
        all.push(Metric { is_seconds, ..named });
    }
}

/// Name of a declared counter: nanoseconds become seconds, so their ending is left out.
fn metric_name(prefix: &str, descriptor: &Descriptor) -> String {
    let name = if descriptor.unit == Unit::Nanoseconds {
        descriptor.name.trim_end_matches("_sum").trim_end_matches("_ns")
    } else {
        descriptor.name
    };
    format!("{prefix}{name}")
}

/// The declared help with the unit, unless the name has it.
fn help(descriptor: &Descriptor) -> String {
    match descriptor.unit {
        Unit::None | Unit::Nanoseconds => descriptor.help.to_owned(),
        unit => format!("{} [{}]", descriptor.help, format!("{unit:?}").to_lowercase()),
    }
}

fn metric(name: &str, help: &str, kind: MetricKind, samples: Vec<Sample>) -> Metric {
    Metric { name: name.to_owned(), help: help.to_owned(), kind, is_seconds: false, samples }
}

fn histogram(totals: &BucketTotals) -> Value {
    let bounds = BUCKET_BOUNDS_NS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
    Value::Buckets { sum: seconds(totals.sum_ns), buckets: bounds.zip(totals.counts).collect() }
}

#[allow(clippy::cast_precision_loss, reason = "a clock is exact to a microsecond for centuries")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn healthy(text: impl Into<String>) -> Health {
    Health { is_ok: true, text: text.into() }
}

fn failing(text: impl Into<String>) -> Health {
    Health { is_ok: false, text: text.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mdgw_engine::pipeline::PipelineCounters;

    use super::*;

    #[test]
    fn every_declared_counter_has_a_name_of_its_own() {
        let mut names = BTreeSet::new();
        let blocks = [
            ("mdgw_group_", TakeoverCounters::DESCRIPTORS),
            ("mdgw_channel_", PipelineCounters::DESCRIPTORS),
            ("mdgw_channel_", LogCounters::DESCRIPTORS),
            ("mdgw_line_", LineCounts::DESCRIPTORS),
            ("mdgw_pool_", Counts::DESCRIPTORS),
        ];
        for (prefix, descriptors) in blocks {
            for descriptor in descriptors {
                let name = metric_name(prefix, descriptor);
                assert!(!name.ends_with("_ns") && !name.ends_with("_total"), "{name}");
                assert!(
                    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
                    "{name}"
                );
                assert!(names.insert(name.clone()), "{name} twice");
            }
        }
        let extra = ["mdgw_channel_dropped", "mdgw_channel_latency", "mdgw_group_leader", "mdgw_group_epoch"];
        assert!(extra.iter().all(|name| !names.contains(*name)));
    }

    #[test]
    fn nanoseconds_become_seconds_and_other_units_are_in_the_help() {
        let mut all = Vec::new();
        let counters =
            TakeoverCounters { takeovers: 3, blackout_last_ns: 1_500_000_000, ..TakeoverCounters::default() };
        block(&mut all, "mdgw_group_", [(vec![("group", "1".to_owned())], counters)].into_iter());
        let text = mdgw_admin::metric::encode(all).unwrap();
        for line in [
            "# TYPE mdgw_group_takeovers counter",
            "mdgw_group_takeovers_total{group=\"1\"} 3",
            "# UNIT mdgw_group_blackout_last_seconds seconds",
            "mdgw_group_blackout_last_seconds{group=\"1\"} 1.5",
            "# HELP mdgw_group_takeover_packets_republished packets republished in takeovers [packets]",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }
}
