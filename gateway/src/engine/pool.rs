//! Leader/Followers: T threads, one handle set, one token.
//!
//! With T = 1 it is a reactor: the one thread leads for ever, nothing is promoted, and the handle set may lend datagrams
//! ([`Event::Lent`](crate::net::handle_set::Event::Lent)).

use std::{
    any::Any,
    io,
    os::fd::BorrowedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, atomic, mpsc},
    thread,
};

use crossbeam_queue::ArrayQueue;

use super::{
    alarm::{Alarm, Deadline},
    claim::{Claim, Marks, Ticket},
    dispatch::{
        ChannelHandler, Dispatch, DispatchConfig, FailReason, PromotionPolicy, StartError, ThreadConfig, WaitPolicy,
    },
    roles::{Gauges, Role, ThreadGauges},
    token::Token,
    turn::Worker,
};
use crate::{
    net::handle_set::{ChannelIndex, Handle, HandleSet},
    sys::{affinity, scheduler},
};

/// A running pool. Dropping it shuts it down.
pub struct Pool<S: HandleSet + 'static, H: ChannelHandler> {
    shared: Arc<Shared<S, H>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<S: HandleSet + 'static, H: ChannelHandler> Dispatch<S, H> for Pool<S, H> {
    fn start(
        config: &DispatchConfig,
        set: Arc<S>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let settings = Settings::check(config, set.lends())?;
        let shared = Arc::new(Shared::new(config, settings, set, channels));
        shared.arm_first_deadlines();
        let local = Arc::new(local);
        let (report, reports) = mpsc::channel();
        let mut pool = Self { shared, threads: Vec::new() };
        // A thread begins only when all of them could be set up: a pool that can't start has touched nothing. Declared
        // after the pool, the gates are closed before it joins its threads.
        let mut gates = Vec::new();
        for (index, thread) in config.threads.iter().copied().enumerate() {
            let (gate, opened) = mpsc::channel();
            gates.push(gate);
            let (shared, local, report) = (pool.shared.clone(), local.clone(), report.clone());
            let body = move || run(&shared, index, thread, &*local, &report, &opened);
            let spawned = thread::Builder::new().name(format!("{}-{index}", config.name)).spawn(body);
            let joined = spawned.map_err(|source| StartError::Thread { thread: index, act: "be started", source })?;
            pool.threads.push(joined);
        }
        // Each thread reports once, and this end keeps a sender too: the receiver can't run dry.
        for report in reports.iter().take(config.threads.len()) {
            report?;
        }
        for gate in gates {
            // A thread that is gone already has stopped the pool and says why in its fault.
            let _gone = gate.send(());
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

    fn tell(&self, channel: ChannelIndex, message: H::Message) -> Result<(), H::Message> {
        let Some(slot) = self.shared.slot(channel) else { return Err(message) };
        if slot.failed.get().is_some() {
            return Err(message);
        }
        slot.inbox.push(message)?;
        // The leader looks into all inboxes when it is woken.
        self.shared.set.wake();
        Ok(())
    }

    fn failed(&self, channel: ChannelIndex) -> Option<FailReason> {
        self.shared.slot(channel)?.failed.get().cloned()
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
        slots.into_iter().map(|slot| slot.claim.into_inner()).collect()
    }
}

impl<S: HandleSet + 'static, H: ChannelHandler> Pool<S, H> {
    /// What each thread has done, in the order of their numbers.
    #[cfg(test)]
    pub(super) fn thread_counts(&self) -> Vec<super::roles::Counts> {
        self.shared.gauges.iter().map(ThreadGauges::counts).collect()
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

/// What the threads of a pool share.
pub(super) struct Shared<S, H: ChannelHandler> {
    pub(super) token: Token,
    pub(super) alarm: Alarm,
    pub(super) slots: Box<[Slot<H>]>,
    /// Claims laid by: their channels have work left for which no event will come. Room for every channel.
    pub(super) run_queue: ArrayQueue<LaidBy>,
    pub(super) set: Arc<S>,
    pub(super) gauges: Box<[ThreadGauges]>,
    pub(super) settings: Settings,
    /// When the lead was given up with no follower there, in ns; 0 while it is not so. Written by who leads.
    pub(super) saturated_since: atomic::AtomicU64,
    fault: OnceLock<String>,
}

impl<S: HandleSet, H: ChannelHandler> Shared<S, H> {
    fn new(config: &DispatchConfig, settings: Settings, set: Arc<S>, channels: Vec<H>) -> Self {
        let slot = |handler| Slot {
            claim: Claim::new(handler),
            deadline: Deadline::new(),
            failed: OnceLock::new(),
            is_silenced: atomic::AtomicBool::new(false),
            inbox: ArrayQueue::new(config.inbox_messages_max),
        };
        Self {
            token: Token::new(),
            alarm: Alarm::new(),
            run_queue: ArrayQueue::new(channels.len().max(1)),
            slots: channels.into_iter().map(slot).collect(),
            set,
            gauges: config.threads.iter().map(|thread| ThreadGauges::new(thread.word)).collect(),
            settings,
            saturated_since: atomic::AtomicU64::new(0),
            fault: OnceLock::new(),
        }
    }

    /// A channel may have a deadline before anything came: its lines may be silent from the start.
    fn arm_first_deadlines(&self) {
        for slot in &self.slots {
            // The claim is free, nobody knows the slot yet.
            let Some(mut held) = slot.claim.bring(Marks::NONE) else { continue };
            let deadline = held.with(|handler| handler.next_deadline());
            self.alarm.publish(&slot.deadline, deadline, |at| self.set.set_timer(Some(at)));
            held.take_marks();
            let _free = held.release();
        }
    }

    pub(super) fn slot(&self, channel: ChannelIndex) -> Option<&Slot<H>> {
        self.slots.get(usize::try_from(channel.0).ok()?)
    }

    /// Stops the pool because it cannot go on.
    pub(super) fn stop_with(&self, fault: String) {
        // The first fault is the cause, later ones may be its consequence.
        let _later = self.fault.set(fault);
        self.stop();
    }

    fn stop(&self) {
        self.token.stop();
        self.set.wake();
    }
}

/// One channel in its pool. On cache lines of its own.
#[repr(align(128))]
pub(super) struct Slot<H: ChannelHandler> {
    pub(super) claim: Claim<H>,
    pub(super) deadline: Deadline,
    pub(super) failed: OnceLock<FailReason>,
    /// It panicked once more while it was told that it had failed. Written and read by the holder of the claim.
    pub(super) is_silenced: atomic::AtomicBool,
    pub(super) inbox: ArrayQueue<H::Message>,
}

/// A channel in the run queue.
pub(super) struct LaidBy {
    pub(super) index: usize,
    pub(super) ticket: Ticket,
}

/// A checked configuration, as the turn needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) wait: WaitPolicy,
    pub(super) promotion: PromotionPolicy,
    pub(super) several_threads: bool,
    pub(super) lends: bool,
    pub(super) follower_may_spin: bool,
    pub(super) batch_events_max: usize,
    pub(super) quota_packets: usize,
    pub(super) spin_ns: u64,
    pub(super) stall_ns_max: u64,
}

impl Settings {
    fn check(config: &DispatchConfig, lends: bool) -> Result<Self, StartError> {
        let threads = &config.threads;
        if threads.is_empty() {
            return Err(StartError::Setting("a pool needs at least one thread"));
        }
        if !(1..=BATCH_EVENTS_MAX).contains(&config.batch_events_max) {
            return Err(StartError::Setting("batch_events_max must be in 1..=1024"));
        }
        if config.quota_packets == 0 || config.inbox_messages_max == 0 {
            return Err(StartError::Setting("quota_packets and inbox_messages_max must be at least 1"));
        }
        if lends && threads.len() > 1 {
            return Err(StartError::Setting("a handle set that lends datagrams serves a pool of one thread"));
        }
        let mut cores: Vec<usize> = threads.iter().filter_map(|thread| thread.core).collect();
        cores.sort_unstable();
        if let Some(pair) = cores.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StartError::SharedCore(pair[0]));
        }
        let floats_with_priority = |thread: &ThreadConfig| thread.core.is_none() && thread.fifo_priority.is_some();
        if config.wait != WaitPolicy::Park && threads.iter().any(floats_with_priority) {
            return Err(StartError::Setting("a real-time thread that spins needs a core of its own"));
        }
        // Leader and follower spin at the same time, so they need a core each.
        let core_count = if cores.len() == threads.len() { cores.len() } else { affinity::usable_cores().len() };
        Ok(Self {
            wait: config.wait,
            promotion: config.promotion.unwrap_or_else(|| PromotionPolicy::default_for(config.wait)),
            several_threads: threads.len() > 1,
            lends,
            follower_may_spin: config.wait != WaitPolicy::Park && core_count >= 2,
            batch_events_max: config.batch_events_max,
            quota_packets: config.quota_packets,
            spin_ns: config.spin_ns,
            stall_ns_max: config.stall_ns_max,
        })
    }
}

/// A turn that claims more than this has stopped sharing its work with the other threads.
const BATCH_EVENTS_MAX: usize = 1_024;

/// The life of one thread.
fn run<S: HandleSet, H: ChannelHandler>(
    shared: &Shared<S, H>,
    index: usize,
    config: ThreadConfig,
    local: &impl Fn(usize) -> H::Local,
    report: &mpsc::Sender<Result<(), StartError>>,
    opened: &mpsc::Receiver<()>,
) {
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut worker = match set_up(shared, index, config, local) {
            Ok(worker) => worker,
            Err(error) => return drop(report.send(Err(error))),
        };
        // Whoever started us waits for all reports or is gone; a closed gate says which.
        let _gone = report.send(Ok(()));
        if opened.recv().is_ok() {
            worker.run();
        }
    }));
    shared.gauges[index].set_role(Role::Absent);
    shared.gauges[index].rests();
    if let Err(panic) = lived {
        shared.stop_with(format!("thread {index} of the pool panicked: {}", panic_text(&*panic)));
        let failed = io::Error::other("it panicked");
        let _gone = report.send(Err(StartError::Thread { thread: index, act: "be set up", source: failed }));
    }
}

fn set_up<'p, S: HandleSet, H: ChannelHandler>(
    shared: &'p Shared<S, H>,
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
    let io =
        shared.set.thread_io().map_err(|source| StartError::Thread { thread: index, act: "set up its I/O", source })?;
    Ok(Worker::new(shared, index, io, local(index)))
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".to_owned())
}
