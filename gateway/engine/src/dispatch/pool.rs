//! Leader/Followers: T threads, one handle set, one token.
//!
//! With T = 1 the pool is a reactor: its one thread always leads, promotes no other, and the handle set may deliver
//! datagrams instead of readiness ([`Event::Provided`](crate::handle_set::Event::Provided)).

use std::{
    io,
    os::fd::BorrowedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
};

use mdgw_sys::{
    affinity,
    handle::{ChannelIndex, Handle},
    scheduler,
};

use super::{
    claim::PendingEvents,
    pool_state::{PoolState, RunQueueEntry, Settings, panic_text},
    roles::{Gauges, Role},
    turn::Worker,
};
use crate::{
    dispatch::{ChannelHandler, Dispatch, DispatchConfig, FailReason, StartError, ThreadConfig},
    handle_set::HandleSet,
};

/// A running pool. Dropping it shuts it down.
pub struct Pool<S: HandleSet + 'static, H: ChannelHandler> {
    shared: Arc<PoolState<S, H>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<S: HandleSet + 'static, H: ChannelHandler> Dispatch<S, H> for Pool<S, H> {
    fn start(
        config: &DispatchConfig,
        set: Arc<S>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let settings = Settings::check(config, set.delivers_data())?;
        let shared = Arc::new(PoolState::new(config, settings, set, channels));
        shared.arm_first_deadlines();
        let local = Arc::new(local);
        let (report, reports) = mpsc::channel();
        let mut pool = Self { shared, threads: Vec::new() };
        // The threads begin only after all of them could be set up: a pool that cannot start has touched no channel.
        // `gates` is declared after the pool, so the gates are closed before the pool joins its threads.
        let mut gates = Vec::new();
        for (index, thread) in config.threads.iter().copied().enumerate() {
            let (gate, start_signal) = mpsc::channel();
            gates.push(gate);
            let (shared, local, report) = (pool.shared.clone(), local.clone(), report.clone());
            let body = move || run(&shared, index, thread, &*local, &report, &start_signal);
            let spawned = thread::Builder::new().name(format!("{}-{index}", config.name)).spawn(body);
            let joined =
                spawned.map_err(|source| StartError::Thread { thread: index, action: "be started", source })?;
            pool.threads.push(joined);
        }
        // Each thread reports once, and this end keeps a sender too: the receiver cannot be disconnected.
        for report in reports.iter().take(config.threads.len()) {
            report?;
        }
        for gate in gates {
            // A thread that has ended already has stopped the pool and left the reason as its fault.
            let _disconnected = gate.send(());
        }
        Ok(pool)
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        if self.shared.slot(handle.channel).is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the pool has no such channel"));
        }
        self.shared.set.add(socket, handle)
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.shared.set.remove(socket)
    }

    fn insert(&self, channel: ChannelIndex, handler: H) -> Result<(), H> {
        let Some((index, slot)) = usize::try_from(channel.0).ok().zip(self.shared.slot(channel)) else {
            return Err(handler);
        };
        if !slot.claim.is_vacant() {
            return Err(handler);
        }
        slot.reset();
        let deferred = slot.claim.fill(handler)?;
        let pushed = self.shared.run_queue.push(RunQueueEntry { index, deferred });
        debug_assert!(pushed.is_ok(), "a vacant slot is not in the queue, and there is room for all");
        // The leader reads the queue, and with it the channel's first deadline.
        self.shared.set.wake();
        Ok(())
    }

    fn retire(&self, channel: ChannelIndex) {
        let Some(slot) = self.shared.slot(channel) else { return };
        if let Some(held) = slot.claim.post(PendingEvents::RETIRE) {
            self.shared.retire(slot, held);
        }
    }

    fn take_retired(&self, channel: ChannelIndex) -> Option<H> {
        // Data of a removed socket must not reach the next channel of the slot.
        if self.shared.set.has_unapplied_changes() {
            return None;
        }
        let slot = self.shared.slot(channel)?;
        let handler = slot.claim.take_retired()?;
        slot.reset();
        Some(handler)
    }

    fn send(&self, channel: ChannelIndex, message: H::Message) -> Result<(), H::Message> {
        let Some(slot) = self.shared.slot(channel) else { return Err(message) };
        if slot.failure.is_set() || slot.claim.is_vacant() {
            return Err(message);
        }
        slot.inbox.push(message)?;
        // The leader reads all inboxes when it is woken.
        self.shared.set.wake();
        Ok(())
    }

    fn failed(&self, channel: ChannelIndex) -> Option<FailReason> {
        self.shared.slot(channel)?.failure.reason()
    }

    fn fault(&self) -> Option<String> {
        self.shared.fault.get().cloned()
    }

    fn gauges(&self) -> Gauges {
        Gauges::of(&self.shared.gauges)
    }

    fn shutdown(mut self) -> Vec<H> {
        self.stop_and_join();
        let shared = self.shared.clone();
        drop(self);
        // The threads are joined, so this is the last reference.
        let slots = Arc::into_inner(shared).map(|shared| shared.slots).unwrap_or_default();
        slots.into_iter().filter_map(|slot| slot.claim.into_inner()).collect()
    }
}

impl<S: HandleSet + 'static, H: ChannelHandler> Pool<S, H> {
    /// The counters of each thread, in the order of their numbers.
    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn thread_counts(&self) -> Vec<super::roles::Counts> {
        self.shared.gauges.iter().map(|gauges| gauges.counts()).collect()
    }

    fn stop_and_join(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // Its panic, if any, has become the pool's fault.
            let _panic = thread.join();
        }
    }
}

impl<S: HandleSet + 'static, H: ChannelHandler> Drop for Pool<S, H> {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

/// Main function of one thread.
fn run<S: HandleSet, H: ChannelHandler>(
    shared: &PoolState<S, H>,
    index: usize,
    config: ThreadConfig,
    local: &impl Fn(usize) -> H::Local,
    report: &mpsc::Sender<Result<(), StartError>>,
    start_signal: &mpsc::Receiver<()>,
) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut worker = match set_up(shared, index, config, local) {
            Ok(worker) => worker,
            Err(error) => return drop(report.send(Err(error))),
        };
        // The starting thread waits for all reports, or has given up; a closed gate says which.
        let _disconnected = report.send(Ok(()));
        if start_signal.recv().is_ok() {
            worker.run();
        }
    }));
    shared.gauges[index].set_role(Role::Absent);
    shared.gauges[index].mark_idle();
    if let Err(panic) = outcome {
        shared.stop_with(format!("thread {index} of the pool panicked: {}", panic_text(&*panic)));
        let failed = io::Error::other("it panicked");
        let _disconnected = report.send(Err(StartError::Thread { thread: index, action: "be set up", source: failed }));
    }
}

fn set_up<'p, S: HandleSet, H: ChannelHandler>(
    shared: &'p PoolState<S, H>,
    index: usize,
    config: ThreadConfig,
    local: &impl Fn(usize) -> H::Local,
) -> Result<Worker<'p, S, H>, StartError> {
    if let Some(core) = config.core {
        affinity::pin_to(core).map_err(|source| StartError::Pin { thread: index, source })?;
    }
    if let Some(priority) = config.fifo_priority {
        scheduler::set_fifo(priority).map_err(|source| StartError::Priority { thread: index, priority, source })?;
    }
    let io = shared.set.thread_io().map_err(|source| StartError::Thread {
        thread: index,
        action: "set up its I/O",
        source,
    })?;
    Ok(Worker::new(shared, index, io, local(index)))
}
