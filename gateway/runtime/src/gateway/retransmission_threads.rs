//! The threads of the retransmission service: one answers requests, and one takes the snapshots that it serves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_feeds::identity::ChannelId;
use mdgw_sys::{clock::mono_now, listener_counters::ListenerCounters, task_queue::TaskQueue};
use mdgw_telemetry::counters::Registry;

use super::{GatewayError, listeners::RETRANSMISSION};
use crate::{
    config::resolved::{RetransmissionConfig, RetransmissionLimits},
    retransmit::{
        RetransmissionCounts, RetransmissionService, ServedChannel, ServiceError,
        snapshots::{self, SnapshotTaker},
    },
};

/// The threads of a gateway that answers requests.
#[derive(Debug)]
pub(super) struct Retransmission {
    thread: JoinHandle<()>,
    listener_counters: Arc<ListenerCounters>,
    tasks: TaskQueue<RetransmissionService>,
    snapshots: Option<SnapshotThread>,
}

/// The thread that takes snapshots for the retransmission service.
#[derive(Debug)]
struct SnapshotThread {
    thread: JoinHandle<()>,
    tasks: TaskQueue<SnapshotTaker>,
}

impl SnapshotThread {
    fn start(mut taker: SnapshotTaker, stop: &Arc<AtomicBool>) -> Result<Self, GatewayError> {
        let tasks = TaskQueue::default();
        let (thread_tasks, stop) = (tasks.clone(), Arc::clone(stop));
        let thread = std::thread::Builder::new()
            .name("mdgw-snapshot".to_owned())
            .spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    thread_tasks.run_pending(&mut taker);
                    if !taker.turn(mono_now()) {
                        std::thread::sleep(snapshots::TURN_INTERVAL);
                    }
                }
            })
            .map_err(GatewayError::io("start the snapshot thread"))?;
        Ok(Self { thread, tasks })
    }
}

impl Retransmission {
    /// Opens the service's socket and starts the threads. They end with `stop`.
    ///
    /// # Errors
    /// When a log cannot be read, the socket cannot be opened, or no thread is left.
    pub(super) fn start(
        config: &RetransmissionConfig,
        served: Vec<ServedChannel>,
        registry: &Arc<Registry>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, GatewayError> {
        let taker = if config.snapshots {
            Some(SnapshotTaker::new(&served, registry).map_err(ServiceError::Log)?)
        } else {
            None
        };
        let mut service = RetransmissionService::new(config, served, registry)?;
        let snapshots = match taker {
            Some(taker) => {
                service.serve_snapshots(Arc::clone(taker.store()));
                Some(SnapshotThread::start(taker, stop)?)
            }
            None => None,
        };
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
        Ok(Self { thread, listener_counters, tasks, snapshots })
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
        if let Some(snapshots) = &self.snapshots {
            let of_snapshots = served.clone();
            match snapshots.tasks.run(|| {}, move |taker| taker.add(&of_snapshots)) {
                Some(added) => added.map_err(|error| error.to_string())?,
                None => return Err("the snapshot thread does not answer".to_owned()),
            }
        }
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
        if let Some(snapshots) = &self.snapshots
            && !snapshots.tasks.run_even_late(|| {}, move |taker| taker.remove(channel))
        {
            tracing::error!(channel_id, "the snapshot thread does not answer, and keeps the channel until it does");
        }
    }

    /// Waits for the threads, which were asked to stop.
    pub(super) fn join(self) {
        // An error of its socket was logged when it occurred.
        let _ = self.thread.join();
        if let Some(snapshots) = self.snapshots {
            // It only reads: whatever ended it costs nothing but snapshots.
            let _ = snapshots.thread.join();
        }
    }
}

/// Pause after a socket error, since the socket may fail again immediately.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);
