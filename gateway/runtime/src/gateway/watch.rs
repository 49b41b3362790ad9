//! A snapshot of the gateway's gauges for readers: counters, pools and the latencies of the last interval.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use mdgw_engine::{channel_pool::ChannelPool, dispatch::roles::Gauges, pipeline::PipelineCounters};
use mdgw_feeds::{
    channel::ChannelState,
    drop_reason::DropCounts,
    identity::{ChannelId, Line},
};
use mdgw_status::{
    recent::RecentIntervals,
    snapshot::{BookSnapshots, ChannelSnapshot, PoolSnapshot, Snapshot, ThreadSnapshot},
};
use mdgw_sys::clock::{mono_now, unix_now};
use mdgw_telemetry::counters::Registry;

use super::{
    cold::KernelDrops, health::lock, listeners::Listeners, main_thread::MainThread, pool_channels::PoolChannelList,
    thread_watch::HotThread,
};
use crate::retransmit::snapshots::{SnapshotAnswers, SnapshotsTaken};

/// The sources of a snapshot. Cheap to clone; reading it does not block other threads.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) source: String,
    pub(super) pools: Vec<WatchedPool>,
    pub(super) registry: Arc<Registry>,
    pub(super) recent: Arc<RecentIntervals>,
    pub(super) kernel_drops: KernelDrops,
    pub(super) listeners: Listeners,
    /// The hot threads that make no progress.
    pub(super) stalled_threads: Arc<Mutex<Vec<HotThread>>>,
    pub(super) main_thread: MainThread,
}

/// A pool, with the names for its gauges.
#[derive(Clone, Debug)]
pub(super) struct WatchedPool {
    pub(super) name: String,
    pub(super) pool: Arc<dyn ChannelPool>,
    pub(super) channels: PoolChannelList,
}

impl Watch {
    pub(super) fn snapshot(&self) -> Snapshot {
        let counters = self.channel_counters();
        let drop_counts: BTreeMap<String, DropCounts> = self.registry.values().into_iter().collect();
        let book_snapshots = self.book_snapshots();
        let mut channels = Vec::new();
        for pool in &self.pools {
            for (index, id, name) in pool.channels.all() {
                let counters = counters.get(&name).copied().unwrap_or_default();
                let drop_counts = drop_counts.get(&name).copied().unwrap_or_default();
                let channel = self.channel(pool, index, id, &name, &counters, &drop_counts);
                let book_snapshots = book_snapshots.get(&name).cloned().unwrap_or_default();
                channels.push(ChannelSnapshot { book_snapshots, ..channel });
            }
        }
        channels.sort_by_key(|channel| channel.id);
        let stalled = self.stalled_pool_threads();
        let pools = self.pools.iter().map(|pool| pool_snapshot(&pool.name, &pool.pool.gauges(), &stalled));
        Snapshot {
            source: self.source.clone(),
            time_ns: unix_now().0,
            clock_ns: mono_now().0,
            progress: None,
            kernel_drops: self.kernel_drops.total(),
            main_thread_stuck_ms: self.main_thread.stuck_ms(mono_now()),
            pools: pools.collect(),
            channels,
            listeners: self.listeners.snapshots(),
            // `mdgw live`, another process, has them.
            subscribers: Vec::new(),
        }
    }

    /// Names of the pools' threads that make no progress.
    pub(super) fn stalled_pool_threads(&self) -> Vec<String> {
        HotThread::pool_threads(&lock(&self.stalled_threads))
    }

    /// Id and name of each channel, as of now.
    pub(super) fn channels(&self) -> Vec<(ChannelId, String)> {
        let channels = self.pools.iter().flat_map(|pool| pool.channels.all());
        channels.map(|(_, id, name)| (id, name)).collect()
    }

    /// Counters of each channel, by its name.
    pub(super) fn channel_counters(&self) -> BTreeMap<String, PipelineCounters> {
        let mut counters: BTreeMap<String, PipelineCounters> = self.registry.values().into_iter().collect();
        for pool in &self.pools {
            for (index, _, name) in pool.channels.all() {
                // The pool has taken a failed channel out of service, so the channel itself still reports its last state.
                if pool.pool.failed(index).is_some() {
                    counters.entry(name).or_default().state = ChannelState::Failed as u64;
                }
            }
        }
        counters
    }

    fn channel(
        &self,
        pool: &WatchedPool,
        index: usize,
        id: ChannelId,
        name: &str,
        counters: &PipelineCounters,
        drop_counts: &DropCounts,
    ) -> ChannelSnapshot {
        let silent = counters.silent_lines_mask;
        ChannelSnapshot {
            id: id.0,
            name: name.to_owned(),
            pool: pool.name.clone(),
            state: state_name(channel_state(counters)),
            failed: pool.pool.failed(index).map(|reason| reason.to_string()),
            datagrams: counters.datagrams,
            messages: counters.messages,
            next_sequence: counters.expected_sequence,
            records: counters.records,
            packets_sent: counters.packets_sent,
            gaps: counters.gaps,
            gap_messages: counters.gap_messages,
            drops: counters.drops,
            drop_reasons: drop_counts
                .iter()
                .filter(|(reason, _)| !reason.is_expected())
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect(),
            book_faults: counters.book_faults,
            late_starts: counters.late_starts,
            input_incomplete: counters.input_incomplete == 1,
            silent_lines: (0..8).filter(|line| silent >> line & 1 == 1).map(|line| Line(line).to_string()).collect(),
            lines: self.recent.lines(id),
            stages: self.recent.stages(id),
            book_snapshots: BookSnapshots::default(),
        }
    }

    /// Snapshots of the books of each channel, by its name, if the retransmission service has snapshots.
    fn book_snapshots(&self) -> BTreeMap<String, BookSnapshots> {
        let mut taken: BTreeMap<String, SnapshotsTaken> = self.registry.values().into_iter().collect();
        let answers = self.registry.values::<SnapshotAnswers>().into_iter();
        answers
            .map(|(name, answers)| {
                let taken = taken.remove(&name).unwrap_or_default();
                let refused = [("early", answers.snapshot_requests_early), ("gone", answers.snapshot_requests_gone)];
                let snapshots = BookSnapshots {
                    taken: taken.snapshots_taken,
                    suspect: taken.snapshots_suspect,
                    duration_last_ns: taken.snapshot_duration_last_ns,
                    served: answers.snapshots_served,
                    bytes: answers.snapshot_bytes,
                    refused: refused
                        .into_iter()
                        .filter(|(_, count)| *count > 0)
                        .map(|(reason, count)| (reason.to_owned(), count))
                        .collect(),
                };
                (name, snapshots)
            })
            .collect()
    }
}

pub(super) fn channel_state(counters: &PipelineCounters) -> ChannelState {
    u8::try_from(counters.state).ok().and_then(ChannelState::from_number).unwrap_or_default()
}

/// As shown by `mdgw top`.
pub(super) fn state_name(state: ChannelState) -> String {
    format!("{state:?}").to_lowercase()
}

/// A stalled thread has the role that it had before, which nobody should rely on.
fn pool_snapshot(name: &str, gauges: &Gauges, stalled: &[String]) -> PoolSnapshot {
    let threads = gauges.threads.iter().enumerate().map(|(number, thread)| {
        let name = format!("{name}-{number}");
        let role = if stalled.contains(&name) { STALLED } else { thread.role.name() };
        ThreadSnapshot { name, role: role.to_owned(), busy_ns: thread.handler_ns_sum }
    });
    PoolSnapshot {
        name: name.to_owned(),
        threads: threads.collect(),
        turns: gauges.counts.turns,
        busy_channel_posts: gauges.counts.busy_channel_posts,
        saturation_ns: gauges.counts.saturation_ns,
    }
}

/// Role of a thread that makes no progress.
const STALLED: &str = "stalled";
