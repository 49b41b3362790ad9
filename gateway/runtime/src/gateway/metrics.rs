//! What the admin listener shows: every counter under the name, unit and help of its declaration, latencies, and health.
//!
//! All of it is read from what other threads leave behind: counter blocks, gauges of pools, the intervals that the latency
//! thread collected. Nothing here asks a hot thread for anything.

mod declared;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, atomic::Ordering},
};

use mdgw_admin::{
    Health, Probe,
    metric::{Metric, MetricKind, MetricUnit, Sample, Value},
};
use mdgw_election::{
    core::{ConnectionState, Role, View},
    driver::Election,
    fitness::FitnessClass,
    latch::LeaderLatch as _,
};
use mdgw_engine::{
    dispatch::roles::{Counts, Gauges},
    pipeline::PipelineCounters,
};
use mdgw_feeds::{
    book::BookFaultCounts, channel::ChannelState, drop_reason::DropCounts, identity::GroupId, time::MonoNs,
};
use mdgw_pair::{
    pair_link::{LinkHandle, PairCounts},
    standby::ReceiveCounts,
};
use mdgw_status::recent::{BUCKET_BOUNDS_NS, BucketTotals};
use mdgw_sys::{alarm::Alarm, clock::mono_now, log_counts::LOG_COUNTS};
use mdgw_telemetry::{
    channel_metrics::LineCounts,
    counters::{CounterBlock, Descriptor, Kind, Registry, Unit},
};

use self::declared::Declared;
use super::{
    health::{GroupHealthMap, lock},
    listeners::Listeners,
    log_maintenance::LogCounters,
    main_thread::MainThread,
    programs::{
        JOURNAL, JournalMetrics, LIVE, LiveMetrics, MIRROR_CHANNEL, MIRROR_GROUP, MirrorChannelMetrics,
        MirrorGroupMetrics, NATS, NatsMetrics,
    },
    readiness::is_received,
    sentinel_handle::SentinelFaults,
    takeovers::TakeoverCounters,
    thread_watch::HotThread,
    watch::{Watch, channel_state, state_name},
};
use crate::{
    audit::{AuditCounts, AuditSender},
    commit::commit,
    retransmit::{
        RetransmissionCounts,
        snapshot_group::SnapshotsSent,
        snapshots::{SnapshotAnswers, SnapshotsTaken},
    },
};

/// Sources of metrics and health.
#[derive(Debug)]
pub(super) struct AdminSource {
    pub(super) watch: Watch,
    /// All groups. A reload adds none.
    pub(super) groups: BTreeSet<GroupId>,
    /// Empty for a gateway that always publishes.
    pub(super) elections: BTreeMap<GroupId, Election>,
    pub(super) node: u8,
    pub(super) epoch_count: u64,
    /// When the gateway started, ns since 1970 UTC.
    pub(super) started_ns: u64,
    /// The link to the gateways with these node numbers, if there is one.
    pub(super) link: Option<(Arc<LinkHandle>, Vec<u8>)>,
    pub(super) sentinel_faults: Arc<SentinelFaults>,
    /// The newest health of each group.
    pub(super) health: GroupHealthMap,
    /// A voter that has not answered for this time counts as silent, ns.
    pub(super) voter_silence_ns: u64,
    /// Counts failed writes; `None` without an audit file.
    pub(super) audit: Option<AuditSender>,
    pub(super) main_thread: MainThread,
    /// The hot threads that make no progress.
    pub(super) stalled_threads: Arc<Mutex<Vec<HotThread>>>,
}

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
        if let Some(stuck_ns) = self.main_thread.stuck_ns(now) {
            return failing(format!("the main thread is stuck for {} s", stuck_ns / 1_000_000_000));
        }
        self.stalled().map_or_else(|| healthy("running"), failing)
    }

    /// Names the hot threads that make no progress, if there are any.
    fn stalled(&self) -> Option<String> {
        let stalled = lock(&self.stalled_threads);
        let names: Vec<String> = stalled.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| format!("no progress: {}", names.join(", ")))
    }

    fn ready(&self) -> Health {
        let counters = self.watch.channel_counters();
        let channels = self.watch.channels();
        let states = channels
            .iter()
            .map(|(_, name)| (name, counters.get(name).map_or_else(ChannelState::default, channel_state)));
        let others = states.filter(|(_, state)| !is_received(*state));
        let others = others.map(|(name, state)| format!("{name} is {}", state_name(state)));
        // The thread of a channel writes its state, so the state of a stalled thread's channel is old.
        let others: Vec<_> = self.stalled().into_iter().chain(others).collect();
        if others.is_empty() { healthy(format!("{} channels", channels.len())) } else { failing(others.join(", ")) }
    }

    fn leader(&self, group: Option<u16>) -> Health {
        if group.is_some_and(|group| !self.groups.contains(&GroupId(group))) {
            return failing("no such group");
        }
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
        of_listeners(&mut all, &self.watch.listeners);
        all
    }

    fn gateway(&self, all: &mut Vec<Metric>) {
        let mut labels = vec![("node", self.node.to_string())];
        labels.extend(build_labels());
        all.push(declared::GATEWAY.with([sample(labels, Value::Count(self.epoch_count))]));
        all.push(declared::START_TIME.with([sample(Vec::new(), Value::Real(seconds(self.started_ns)))]));
        let one = |value| [sample(Vec::new(), Value::Count(value))];
        let drops = &self.watch.kernel_drops;
        all.push(declared::KERNEL_DROPS.with(one(drops.total())));
        let highest = drops.highest_use();
        all.push(declared::RECEIVE_BUFFER_USED.with(one(highest.used_bytes.into())));
        all.push(declared::RECEIVE_BUFFER_LIMIT.with(one(highest.limit_bytes.into())));
        // Before the alarms: this look may raise one.
        let is_main_stalled = self.main_thread.stuck_ns(mono_now()).is_some();
        all.push(declared::MAIN_THREAD_STALLED.with(one(is_main_stalled.into())));
        let stalled = self.watch.stalled_pool_threads().len();
        all.push(declared::STALLED_POOL_THREADS.with(one(u64::try_from(stalled).unwrap_or(u64::MAX))));
        of_alarms(all);
        let SentinelFaults { is_lost, is_kill_refused } = &*self.sentinel_faults;
        all.push(declared::SENTINEL_LOST.with(one(is_lost.load(Ordering::Relaxed).into())));
        all.push(declared::SENTINEL_KILL_REFUSED.with(one(is_kill_refused.load(Ordering::Relaxed).into())));
        if let Some(AuditCounts { written, failures, lost }) = self.audit.as_ref().map(AuditSender::counts) {
            all.push(declared::AUDIT_WRITTEN.with(one(written)));
            all.push(declared::AUDIT_FAILURES.with(one(failures)));
            all.push(declared::AUDIT_LOST.with(one(lost)));
        }
        let retransmission = self.watch.registry.values::<RetransmissionCounts>().into_iter();
        block(all, RETRANSMISSION, retransmission.map(|(_, block)| (Vec::new(), block)));
        if let Some((link, nodes)) = &self.link {
            block(all, PAIR_LINK, [(Vec::new(), link.counts())].into_iter());
            let links = nodes
                .iter()
                .map(|node| sample(vec![("node", node.to_string())], Value::Count(link.is_linked_to(*node).into())));
            all.push(declared::PAIR_LINK_UP.with(links));
        }
    }

    fn groups(&self, all: &mut Vec<Metric>) {
        let blocks = self.watch.registry.values::<TakeoverCounters>().into_iter();
        block(all, GROUP, blocks.map(|(scope, block)| (vec![("group", scope.replace("group ", ""))], block)));
        let views: Vec<_> = self.elections.iter().map(|(group, election)| (group, election, election.view())).collect();
        let per_group = |declared: Declared, value: &dyn Fn(&Election, &View) -> u64| {
            let samples = views.iter().map(|(group, election, view)| {
                sample(vec![("group", group.0.to_string())], Value::Count(value(election, view)))
            });
            declared.with(samples)
        };
        all.push(per_group(declared::GROUP_LEADER, &|election, _| election.has_leadership().into()));
        all.push(per_group(declared::GROUP_EPOCH, &|_, view| view.epoch.count()));
        let is_connected =
            |view: &View| matches!(view.connection, ConnectionState::Connected | ConnectionState::Reconnected);
        // The view of a stuck election thread is old, and the thread takes no answers. Only the fence ends by the clock.
        let stalled = lock(&self.stalled_threads).clone();
        let is_stalled = |group: GroupId| stalled.contains(&HotThread::Election(group));
        let eligible = views.iter().map(|(group, election, view)| {
            let would_lead = view.role != Role::Ineligible && is_connected(view) && !is_stalled(**group);
            per_group_sample(**group, election.has_leadership() || would_lead)
        });
        all.push(declared::GROUP_ELIGIBLE.with(eligible));
        let stuck = views.iter().map(|(group, ..)| per_group_sample(**group, is_stalled(**group)));
        all.push(declared::GROUP_ELECTION_STALLED.with(stuck));
        all.push(per_group(declared::GROUP_OBSTACLE, &|_, view| {
            view.obstacle.as_ref().is_some_and(|obstacle| !obstacle.is_temporary()).into()
        }));
        all.push(per_group(declared::GROUP_CONNECTED, &|_, view| is_connected(view).into()));
        let now = mono_now();
        let judged = views.iter().filter(|(group, ..)| !is_stalled(**group));
        let voters = judged.flat_map(|(group, _, view)| {
            let others = view.voters.iter().filter(|(node, _)| node.0 != self.node);
            others.map(move |(node, voter)| {
                let labels = vec![
                    ("group", group.0.to_string()),
                    ("node", node.0.to_string()),
                    ("name", voter.name.to_string()),
                ];
                sample(labels, Value::Count(voter.answers(self.voter_silence_ns, now).into()))
            })
        });
        all.push(declared::GROUP_VOTER_UP.with(voters));
        let health = lock(&self.health);
        let reduced = health.iter().flat_map(|(group, health)| {
            let class = health.fitness.class();
            let classes = FitnessClass::ALL.iter().filter(|class| **class != FitnessClass::Fit);
            classes.map(move |reason| {
                let labels = vec![("group", group.0.to_string()), ("reason", reason.name().to_owned())];
                sample(labels, Value::Count((class == *reason).into()))
            })
        });
        all.push(declared::GROUP_FITNESS_REDUCED.with(reduced));
    }

    fn channels(&self, all: &mut Vec<Metric>) {
        let registry = &self.watch.registry;
        let labelled = |name: &str| vec![("channel", name.to_owned())];
        let blocks = self.watch.channel_counters().into_iter();
        block(all, CHANNEL, blocks.map(|(name, block)| (labelled(&name), block)));
        let logs = registry.values::<LogCounters>().into_iter().map(|(name, block)| (labelled(&name), block));
        block(all, CHANNEL, logs);
        let taken = registry.values::<SnapshotsTaken>().into_iter().map(|(name, block)| (labelled(&name), block));
        block(all, CHANNEL, taken);
        let answers = registry.values::<SnapshotAnswers>().into_iter().map(|(name, block)| (labelled(&name), block));
        block(all, CHANNEL, answers);
        let sent = registry.values::<SnapshotsSent>().into_iter().map(|(name, block)| (labelled(&name), block));
        block(all, CHANNEL, sent);
        all.push(declared::CHANNEL_DROPPED.with(by_channel_and_reason::<DropCounts>(registry)));
        all.push(declared::CHANNEL_BOOK_FAULTS.with(by_channel_and_reason::<BookFaultCounts>(registry)));
        let channels = self.watch.channels();
        let of_lines = channels.iter().flat_map(|(id, name)| {
            let lines = self.watch.recent.line_counts(*id).into_iter();
            lines.map(move |(line, counts)| (vec![("channel", name.clone()), ("line", line.to_string())], counts))
        });
        block::<LineCounts>(all, LINE, of_lines);
        let received = self.watch.listeners.received();
        let received = received.iter().flat_map(|of_channels| {
            let of_channels = channels.iter().filter_map(|(id, name)| Some((labelled(name), *of_channels.get(id)?)));
            of_channels.collect::<Vec<_>>()
        });
        block::<ReceiveCounts>(all, STANDBY, received);
    }

    fn latencies(&self, all: &mut Vec<Metric>) {
        let channels = self.watch.channels();
        let samples = channels.iter().flat_map(|(id, name)| {
            self.watch.recent.totals(*id).into_iter().map(move |(stage, totals)| {
                let labels = vec![("channel", name.clone()), ("stage", stage.name().to_owned())];
                sample(labels, latency_histogram(&totals))
            })
        });
        all.push(declared::CHANNEL_LATENCY.with(samples));
    }

    fn pools(&self, all: &mut Vec<Metric>) {
        let gauges: Vec<_> = self.watch.pools.iter().map(|pool| (pool.name.clone(), pool.pool.gauges())).collect();
        let labels = |name: &str| vec![("pool", name.to_owned())];
        let pools = gauges.iter().map(|(name, gauges)| (labels(name), gauges.counts.values().collect()));
        declared_counters(all, POOL, Counts::DESCRIPTORS, pools.collect());
        let batches = gauges.iter().map(|(name, Gauges { counts, .. })| {
            sample(labels(name), powers_of_two(&counts.batch_events, counts.events, |events| events))
        });
        all.push(declared::POOL_BATCH_EVENTS.with(batches));
        let processing = gauges.iter().map(|(name, Gauges { counts, .. })| {
            sample(labels(name), powers_of_two(&counts.handler_ns, counts.handler_ns_sum, |ns| ns / 1e9))
        });
        all.push(declared::POOL_PROCESSING.with(processing));
        let threads = gauges.iter().flat_map(|(name, gauges)| {
            gauges.threads.iter().enumerate().map(move |(number, thread)| {
                let labels = vec![("pool", name.clone()), ("thread", format!("{name}-{number}"))];
                sample(labels, Value::Real(seconds(thread.handler_ns_sum)))
            })
        });
        all.push(declared::THREAD_BUSY.with(threads));
    }
}

/// What identifies the build of this program. An empty label is none.
pub(super) fn build_labels() -> [(&'static str, String); 2] {
    [("version", env!("CARGO_PKG_VERSION").to_owned()), ("commit", commit().to_owned())]
}

fn per_group_sample(group: GroupId, is_so: bool) -> Sample {
    sample(vec![("group", group.0.to_string())], Value::Count(is_so.into()))
}

/// What identifies a program beside a gateway, and when it started, ns since 1970 UTC.
pub(super) fn of_program(all: &mut Vec<Metric>, labels: Labels, started_ns: u64) {
    all.push(declared::PROGRAM.with([sample(labels, Value::Count(1))]));
    all.push(declared::START_TIME.with([sample(Vec::new(), Value::Real(seconds(started_ns)))]));
}

/// The alarms of this process, and its log, which may be too late with them.
pub(super) fn of_alarms(all: &mut Vec<Metric>) {
    all.push(declared::LOG_WAITING.with([sample(Vec::new(), Value::Count(LOG_COUNTS.waiting()))]));
    all.push(declared::LOG_LOST.with([sample(Vec::new(), Value::Count(LOG_COUNTS.lost()))]));
    let alarms: Vec<_> =
        Alarm::ALL.iter().map(|alarm| (vec![("alarm", alarm.name().to_owned())], alarm.raised())).collect();
    let raised = alarms.iter().filter(|(_, raised)| raised.count > 0);
    let raised = raised.map(|(labels, raised)| sample(labels.clone(), Value::Real(seconds(raised.last.0))));
    all.push(declared::ALARM_LAST.with(raised));
    let counts = alarms.iter().map(|(labels, raised)| sample(labels.clone(), Value::Count(raised.count)));
    all.push(declared::ALARMS.with(counts));
}

/// Packets that mirrored groups did not use, by reason.
pub(super) fn of_mirror_drops<'a>(all: &mut Vec<Metric>, groups: impl Iterator<Item = (Labels, &'a DropCounts)>) {
    all.push(declared::MIRROR_DROPPED.with(groups.flat_map(|(labels, drops)| by_reason(&labels, drops))));
}

/// What these listeners have received, and refused by every reason: a rate does not see the first refusal of a new series.
pub(super) fn of_listeners(all: &mut Vec<Metric>, listeners: &Listeners) {
    let snapshots = listeners.snapshots();
    let received = snapshots
        .iter()
        .map(|listener| sample(vec![("listener", listener.name.clone())], Value::Count(listener.received)));
    all.push(declared::LISTENER_RECEIVED.with(received));
    let refused = listeners.refusals().map(|(listener, reason, count)| {
        sample(vec![("listener", listener.to_owned()), ("reason", reason.to_owned())], Value::Count(count))
    });
    all.push(declared::LISTENER_REFUSED.with(refused));
}

/// Prefixes of the blocks of counters.
const GROUP: &str = "mdgw_group_";
const CHANNEL: &str = "mdgw_channel_";
const LINE: &str = "mdgw_line_";
const POOL: &str = "mdgw_pool_";
const RETRANSMISSION: &str = "mdgw_retransmission_";
const PAIR_LINK: &str = "mdgw_pair_link_";
const STANDBY: &str = "mdgw_standby_";

/// The blocks of counters: prefix and declarations.
const BLOCKS: [(&str, &[Descriptor]); 17] = [
    (GROUP, TakeoverCounters::DESCRIPTORS),
    (CHANNEL, PipelineCounters::DESCRIPTORS),
    (CHANNEL, LogCounters::DESCRIPTORS),
    (CHANNEL, SnapshotsTaken::DESCRIPTORS),
    (CHANNEL, SnapshotAnswers::DESCRIPTORS),
    (CHANNEL, SnapshotsSent::DESCRIPTORS),
    (LINE, LineCounts::DESCRIPTORS),
    (POOL, Counts::DESCRIPTORS),
    (RETRANSMISSION, RetransmissionCounts::DESCRIPTORS),
    (PAIR_LINK, PairCounts::DESCRIPTORS),
    (STANDBY, ReceiveCounts::DESCRIPTORS),
    (LIVE, LiveMetrics::DESCRIPTORS),
    (JOURNAL, JournalMetrics::DESCRIPTORS),
    (NATS, NatsMetrics::DESCRIPTORS),
    (MIRROR_GROUP, MirrorGroupMetrics::DESCRIPTORS),
    (MIRROR_CHANNEL, MirrorChannelMetrics::DESCRIPTORS),
    (MIRROR_CHANNEL, LogCounters::DESCRIPTORS),
];

/// Names of all samples that a gateway or a program beside it can export, as in its text: a counter with `_total`, a histogram with `_bucket`,
/// `_count` and `_sum`.
#[must_use]
pub fn sample_names() -> BTreeSet<String> {
    let of_blocks = BLOCKS.into_iter().flat_map(|(prefix, descriptors)| {
        descriptors
            .iter()
            .map(move |descriptor| (metric_name(prefix, descriptor), metric_kind(descriptor), metric_unit(descriptor)))
    });
    let further = declared::ALL.iter().map(|declared| (declared.name.to_owned(), declared.kind, declared.unit));
    let samples = of_blocks.chain(further).flat_map(|(name, kind, unit)| {
        let name = unit.map_or_else(|| name.clone(), |unit| format!("{name}_{}", unit.name()));
        let endings: &[&str] = match kind {
            MetricKind::Counter => &["_total"],
            MetricKind::Gauge => &[""],
            MetricKind::Histogram => &["_bucket", "_count", "_sum"],
        };
        endings.iter().map(move |ending| format!("{name}{ending}"))
    });
    samples.collect()
}

pub(super) type Labels = Vec<(&'static str, String)>;

/// All counters of blocks of one type.
pub(super) fn block<B: CounterBlock>(all: &mut Vec<Metric>, prefix: &str, blocks: impl Iterator<Item = (Labels, B)>) {
    declared_counters(
        all,
        prefix,
        B::DESCRIPTORS,
        blocks.map(|(labels, block)| (labels, block.values().collect())).collect(),
    );
}

/// A metric for each declaration, a sample for each owner of such values.
#[allow(clippy::needless_pass_by_value, reason = "collected for this call")]
fn declared_counters(all: &mut Vec<Metric>, prefix: &str, descriptors: &[Descriptor], owners: Vec<(Labels, Vec<u64>)>) {
    for (index, descriptor) in descriptors.iter().enumerate() {
        let is_seconds = descriptor.unit == Unit::Nanoseconds;
        let unit = metric_unit(descriptor);
        let samples = owners.iter().map(|(labels, values)| {
            let value = values.get(index).copied().unwrap_or_default();
            let value = if is_seconds { Value::Real(seconds(value)) } else { Value::Count(value) };
            Sample { labels: labels.clone(), value }
        });
        all.push(Metric {
            name: metric_name(prefix, descriptor),
            help: help(descriptor),
            kind: metric_kind(descriptor),
            unit,
            samples: samples.collect(),
        });
    }
}

fn metric_kind(descriptor: &Descriptor) -> MetricKind {
    if descriptor.kind == Kind::Counter { MetricKind::Counter } else { MetricKind::Gauge }
}

fn metric_unit(descriptor: &Descriptor) -> Option<MetricUnit> {
    match descriptor.unit {
        Unit::Nanoseconds => Some(MetricUnit::Seconds),
        Unit::Bytes => Some(MetricUnit::Bytes),
        _ => None,
    }
}

/// Name of a declared counter, without its unit: nanoseconds become seconds.
fn metric_name(prefix: &str, descriptor: &Descriptor) -> String {
    let name = match descriptor.unit {
        Unit::Nanoseconds => descriptor.name.trim_end_matches("_sum").trim_end_matches("_ns").replace("_ns_", "_"),
        Unit::Bytes => descriptor.name.trim_end_matches("bytes").to_owned(),
        _ => descriptor.name.to_owned(),
    };
    format!("{prefix}{name}").trim_end_matches('_').to_owned()
}

/// A sample for each channel and reason.
fn by_channel_and_reason<B: CounterBlock>(registry: &Registry) -> Vec<Sample> {
    let channels = registry.values::<B>().into_iter();
    channels.flat_map(|(name, counts)| by_reason(&[("channel", name)], &counts)).collect()
}

/// A sample for each reason, with these labels of their owner.
fn by_reason<B: CounterBlock>(owner: &[(&'static str, String)], counts: &B) -> Vec<Sample> {
    let samples = B::DESCRIPTORS.iter().zip(counts.values()).map(|(reason, count)| {
        let mut labels = owner.to_vec();
        labels.push(("reason", reason.name.to_owned()));
        sample(labels, Value::Count(count))
    });
    samples.collect()
}

/// The declared help with the unit, unless the name has it.
fn help(descriptor: &Descriptor) -> String {
    match descriptor.unit {
        Unit::None | Unit::Nanoseconds | Unit::Bytes => descriptor.help.to_owned(),
        unit => format!("{} [{}]", descriptor.help, format!("{unit:?}").to_lowercase()),
    }
}

fn sample(labels: Labels, value: Value) -> Sample {
    Sample { labels, value }
}

fn latency_histogram(totals: &BucketTotals) -> Value {
    let bounds = BUCKET_BOUNDS_NS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
    Value::Buckets { sum: seconds(totals.sum_ns), buckets: bounds.zip(totals.counts).collect() }
}

/// A pool's distribution: bucket `n` holds values up to `2^n`, the last one all larger values.
#[allow(clippy::cast_precision_loss, reason = "bounds are powers of two; a sum is exact below 2^53")]
fn powers_of_two(counts: &[u64], sum: u64, in_unit: impl Fn(f64) -> f64) -> Value {
    let bounds =
        (0..counts.len().saturating_sub(1)).map(|bucket| in_unit((1_u64 << bucket) as f64)).chain([f64::INFINITY]);
    Value::Buckets { sum: in_unit(sum as f64), buckets: bounds.zip(counts.iter().copied()).collect() }
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
    use super::*;

    #[test]
    fn every_declared_counter_has_a_name_of_its_own() {
        let mut names = BTreeSet::new();
        for (prefix, descriptors) in BLOCKS {
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
        assert!(declared::ALL.iter().all(|declared| names.insert(declared.name.to_owned())), "declared twice");
        let samples = sample_names();
        for name in [
            "mdgw_gateway",
            "mdgw_pool_handler_max_seconds",
            "mdgw_group_blackout_last_seconds",
            "mdgw_pool_batch_events_sum",
            "mdgw_retransmission_bytes_total",
            "mdgw_receive_buffer_used_bytes",
            "mdgw_pair_link_windows_different_total",
            "mdgw_standby_holes_total",
            "mdgw_channel_book_faults_by_reason_total",
            "mdgw_audit_lost_total",
            "mdgw_log_events_waiting",
            "mdgw_log_events_lost_total",
            "mdgw_channel_snapshot_bytes_total",
            "mdgw_channel_snapshot_duration_last_seconds",
        ] {
            assert!(samples.contains(name), "no {name} in {samples:?}");
        }
    }

    #[test]
    fn a_pools_distribution_becomes_a_histogram_with_powers_of_two_as_bounds() {
        let Value::Buckets { sum, buckets } = powers_of_two(&[1, 2, 3, 4], 5_000, |ns| ns / 1e9) else {
            panic!("a histogram")
        };
        assert_eq!(buckets, [(1e-9, 1), (2e-9, 2), (4e-9, 3), (f64::INFINITY, 4)]);
        assert!((sum - 5e-6).abs() < 1e-12, "{sum}");
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
