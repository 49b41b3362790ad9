//! Leader/Followers: T threads, one handle set, one token.
//!
//! With T = 1 the pool is a reactor: its one thread always leads, promotes no other, and the handle set may deliver
//! datagrams instead of readiness ([`Event::Provided`](crate::handle_set::Event::Provided)).

use std::{io, os::fd::BorrowedFd, sync::Arc};

use mdgw_sys::handle::{ChannelIndex, Handle};

use super::{
    claim::PendingEvents,
    pool_state::{PoolState, RunQueueEntry, Settings},
    roles::Gauges,
    threads::{StartSignal, ThreadTeam, run_thread},
    turn::Worker,
};
use crate::{
    dispatch::{ChannelHandler, Dispatch, DispatchConfig, FailReason, StartError},
    handle_set::HandleSet,
};

/// A running pool. Dropping it shuts it down.
pub struct Pool<S: HandleSet + 'static, H: ChannelHandler> {
    shared: Arc<PoolState<S, H>>,
    threads: ThreadTeam,
}

impl<S: HandleSet + 'static, H: ChannelHandler> Dispatch<S, H> for Pool<S, H> {
    fn start(
        config: &DispatchConfig,
        sets: Vec<Arc<S>>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let set = sets.into_iter().next().ok_or(StartError::InvalidSetting("a pool needs a handle set"))?;
        let mut pool = Self::set_up(config, 0, set, channels, move |shared, index, signal| {
            let mut worker = worker(shared, index, signal.number(), &local)?;
            if signal.is_opened() {
                worker.run();
            }
            Ok(())
        })?;
        pool.begin();
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

    fn shutdown(self) -> Vec<H> {
        let shared = self.shared.clone();
        drop(self); // joins the threads
        // The threads have ended, so this is the last reference.
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

    /// Spawns the threads and waits until all of them are set up; [`Self::begin`] lets them run. `main` is the function of
    /// the thread with that index in the pool. The first thread has the number `first_number`.
    pub(super) fn set_up(
        config: &DispatchConfig,
        first_number: usize,
        set: Arc<S>,
        channels: Vec<H>,
        main: impl Fn(&PoolState<S, H>, usize, &StartSignal) -> Result<(), StartError> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let settings = Settings::check(config, set.delivers_data())?;
        let shared = Arc::new(PoolState::new(config, settings, set, channels));
        shared.arm_first_deadlines();
        let (body_shared, main) = (Arc::clone(&shared), Arc::new(main));
        let threads = ThreadTeam::set_up(config, first_number, move |index, signal| {
            run_thread(&body_shared, index, signal, || main(&body_shared, index, signal));
        })?;
        Ok(Self { shared, threads })
    }

    pub(super) fn begin(&mut self) {
        self.threads.begin();
    }

    /// Asks the threads to end.
    pub(super) fn stop(&self) {
        self.shared.stop();
    }
}

impl<S: HandleSet + 'static, H: ChannelHandler> Drop for Pool<S, H> {
    fn drop(&mut self) {
        self.stop();
        self.threads.join();
    }
}

/// Makes one thread's part of the pool, on that thread.
pub(super) fn worker<'p, S: HandleSet, H: ChannelHandler>(
    shared: &'p PoolState<S, H>,
    index: usize,
    number: usize,
    local: &impl Fn(usize) -> H::Local,
) -> Result<Worker<'p, S, H>, StartError> {
    let io = shared.set.thread_io().map_err(|source| StartError::Thread {
        thread: number,
        action: "set up its I/O",
        source,
    })?;
    Ok(Worker::new(shared, index, number, io, local(number)))
}
