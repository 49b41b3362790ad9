//! The thread of the retransmission service, which answers requests, and the thread that takes snapshots, for that service and for
//! snapshot groups.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_feeds::identity::{ChannelId, GroupId};
use mdgw_sys::{clock::mono_now, listener_counters::ListenerCounters, task_queue::TaskQueue};
use mdgw_telemetry::counters::Registry;

use super::{GatewayError, listeners::RETRANSMISSION};
use crate::{
    config::{
        Resolved,
        resolved::{RetransmissionConfig, RetransmissionLimits},
    },
    retransmit::{
        RetransmissionCounts, RetransmissionService, ServedChannel, ServiceError,
        snapshot_group::SnapshotGroup,
        snapshots::{SnapshotStore, SnapshotTaker},
    },
};

/// The thread of a gateway that answers requests.
#[derive(Debug)]
pub(super) struct Retransmission {
    thread: JoinHandle<()>,
    listener_counters: Arc<ListenerCounters>,
    tasks: TaskQueue<RetransmissionService>,
}

/// The thread that takes snapshots: for the retransmission service, and for snapshot groups.
#[derive(Debug)]
pub(super) struct SnapshotThread {
    thread: JoinHandle<()>,
    tasks: TaskQueue<SnapshotTaker>,
    store: Arc<SnapshotStore>,
    /// Groups of the channels whose snapshots are taken.
    groups: BTreeSet<GroupId>,
}

impl SnapshotThread {
    /// Starts the thread, which ends with `stop`. `None`: nobody wants snapshots.
    ///
    /// # Errors
    /// When a log cannot be read, or no thread is left.
    pub(super) fn start(
        config: &Resolved,
        served: &[ServedChannel],
        snapshot_groups: Vec<SnapshotGroup>,
        registry: &Arc<Registry>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<Self>, GatewayError> {
        let groups = config.channels.iter().map(|channel| channel.group);
        let groups: BTreeSet<GroupId> = groups.filter(|group| config.takes_snapshots_of(*group)).collect();
        if groups.is_empty() {
            return Ok(None);
        }
        let served: Vec<_> = served.iter().filter(|channel| groups.contains(&channel.group)).cloned().collect();
        let mut taker = SnapshotTaker::new(&served, registry).map_err(ServiceError::Log)?;
        snapshot_groups.into_iter().for_each(|group| taker.send_to(group, &served));
        let (store, tasks) = (Arc::clone(taker.store()), TaskQueue::default());
        let (thread_tasks, stop) = (tasks.clone(), Arc::clone(stop));
        let thread = std::thread::Builder::new()
            .name("mdgw-snapshot".to_owned())
            .spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    thread_tasks.run_pending(&mut taker);
                    if !taker.turn(mono_now()) {
                        std::thread::sleep(taker.pause());
                    }
                }
            })
            .map_err(GatewayError::io("start the snapshot thread"))?;
        Ok(Some(Self { thread, tasks, store, groups }))
    }

    /// Takes snapshots of one more channel, if they are wanted.
    ///
    /// # Errors
    /// When the log cannot be read, or the thread does not answer.
    pub(super) fn add(&self, served: &ServedChannel) -> Result<(), String> {
        if !self.groups.contains(&served.group) {
            return Ok(());
        }
        let served = served.clone();
        match self.tasks.run(|| {}, move |taker| taker.add(&served)) {
            Some(added) => added.map_err(|error| error.to_string()),
            None => Err("the snapshot thread does not answer".to_owned()),
        }
    }

    /// Takes no more snapshots of a channel.
    pub(super) fn remove(&self, channel: ChannelId) {
        let channel_id = channel.0;
        if !self.tasks.run_even_late(|| {}, move |taker| taker.remove(channel)) {
            tracing::error!(channel_id, "the snapshot thread does not answer, and keeps the channel until it does");
        }
    }

    /// Waits for the thread, which was asked to stop.
    pub(super) fn join(self) {
        // It only reads: whatever ended it costs nothing but snapshots.
        let _ = self.thread.join();
    }
}

impl Retransmission {
    /// Opens the service's socket and starts the thread, which ends with `stop`.
    ///
    /// # Errors
    /// When a log cannot be read, the socket cannot be opened, or no thread is left.
    pub(super) fn start(
        config: &RetransmissionConfig,
        served: Vec<ServedChannel>,
        snapshots: Option<&SnapshotThread>,
        registry: &Arc<Registry>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, GatewayError> {
        let mut service = RetransmissionService::new(config, served, registry)?;
        if let Some(snapshots) = snapshots.filter(|_| config.snapshots) {
            service.serve_snapshots(Arc::clone(&snapshots.store));
        }
        let listener_counters = Arc::clone(service.listener_counters());
        let tasks = TaskQueue::default();
        let (thread_tasks, stop) = (tasks.clone(), Arc::clone(stop));
        let mut counters = registry.register::<RetransmissionCounts>(RETRANSMISSION);
        let thread = std::thread::Builder::new()
            .name("mdgw-retransmit".to_owned())
            .spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    thread_tasks.run_pending(&mut service);
                    let turned = service.turn(mono_now());
                    counters.publish(service.counts());
                    let outcome = turned.and_then(|more| if more { Ok(()) } else { service.wait() });
                    if let Err(error) = outcome {
                        tracing::error!(%error, "retransmission service failed");
                        std::thread::sleep(PAUSE_AFTER_ERROR);
                    }
                }
            })
            .map_err(GatewayError::io("start the retransmission service's thread"))?;
        Ok(Self { thread, listener_counters, tasks })
    }

    /// What was received and refused.
    pub(super) fn listener_counters(&self) -> &Arc<ListenerCounters> {
        &self.listener_counters
    }

    pub(super) fn set_limits(&self, limits: RetransmissionLimits) {
        if !self.tasks.run_even_late(|| {}, |service| service.set_limits(limits)) {
            tracing::error!("the retransmission service does not answer: its new limits wait for it");
        }
    }

    /// Answers requests for one more channel.
    ///
    /// # Errors
    /// When the log cannot be read, or a thread does not answer.
    pub(super) fn add(&self, served: ServedChannel) -> Result<(), String> {
        match self.tasks.run(|| {}, |service| service.add(served)) {
            Some(added) => added.map_err(|error| error.to_string()),
            None => Err("the retransmission service does not answer".to_owned()),
        }
    }

    /// Answers requests for a channel no longer.
    pub(super) fn remove(&self, channel: ChannelId) {
        let channel_id = channel.0;
        if !self.tasks.run_even_late(|| {}, move |service| service.remove(channel)) {
            tracing::error!(
                channel_id,
                "the retransmission service does not answer, and serves the channel until it does"
            );
        }
    }

    /// Waits for the thread, which was asked to stop.
    pub(super) fn join(self) {
        // An error of its socket was logged when it occurred.
        let _ = self.thread.join();
    }
}

/// Pause after a socket error, since the socket may fail again immediately.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);
