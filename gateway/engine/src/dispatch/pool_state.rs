//! State that the threads of a pool share: the token, the channels' claims, the run queue, and the settings.

use std::{
    any::Any,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic},
};

use crossbeam_queue::ArrayQueue;
use mdgw_sys::{affinity, batch::ReceiveBatch, handle::ChannelIndex};

use super::{
    claim::{Claim, DeferredClaim, HeldClaim, PendingEvents},
    deadline_timer::{Deadline, DeadlineTimer},
    roles::ThreadGauges,
    token::Token,
};
use crate::{
    dispatch::{ChannelHandler, DispatchConfig, FailReason, PromotionPolicy, StartError, ThreadConfig, WaitPolicy},
    handle_set::{EVENTS_MAX, HandleSet},
};

/// State that the threads of a pool share.
pub(super) struct PoolState<S, H: ChannelHandler> {
    pub(super) token: Token,
    pub(super) deadline_timer: DeadlineTimer,
    pub(super) slots: Box<[ChannelSlot<H>]>,
    /// Deferred claims: their channels have work left for which no event will come. Room for every slot.
    pub(super) run_queue: ArrayQueue<RunQueueEntry>,
    pub(super) set: Arc<S>,
    pub(super) gauges: Box<[ThreadGauges]>,
    pub(super) settings: Settings,
    /// Time at which the lead was given up without a follower, ns; 0 otherwise. Written by the leader.
    pub(super) saturated_since: atomic::AtomicU64,
    pub(super) fault: OnceLock<String>,
}

impl<S: HandleSet, H: ChannelHandler> PoolState<S, H> {
    pub(super) fn new(config: &DispatchConfig, settings: Settings, set: Arc<S>, channels: Vec<H>) -> Self {
        let slot = |claim| ChannelSlot {
            claim,
            deadline: Deadline::new(),
            failure: FailState::default(),
            is_muted: atomic::AtomicBool::new(false),
            inbox: ArrayQueue::new(config.inbox_messages_max),
        };
        let slot_count = channels.len() + config.spare_channels;
        let spare = std::iter::repeat_with(Claim::vacant).take(config.spare_channels);
        Self {
            token: Token::new(),
            deadline_timer: DeadlineTimer::new(),
            run_queue: ArrayQueue::new(slot_count.max(1)),
            slots: channels.into_iter().map(Claim::new).chain(spare).map(slot).collect(),
            set,
            gauges: config.threads.iter().map(|thread| ThreadGauges::new(thread.progress)).collect(),
            settings,
            saturated_since: atomic::AtomicU64::new(0),
            fault: OnceLock::new(),
        }
    }

    /// Sets the timer for the channels' first deadlines. A channel may have one before its first packet, since its
    /// lines may be silent from the start.
    pub(super) fn arm_first_deadlines(&self) {
        for slot in &self.slots {
            // The claim is free, since no thread knows the slot yet; that of a spare slot is not.
            let Some(mut held) = slot.claim.post(PendingEvents::NONE) else { continue };
            let deadline = held.with(|handler| handler.next_deadline());
            self.deadline_timer.publish(&slot.deadline, deadline, |at| self.set.set_timer(Some(at)));
            held.take_events();
            let _free = held.release();
        }
    }

    pub(super) fn slot(&self, channel: ChannelIndex) -> Option<&ChannelSlot<H>> {
        self.slots.get(usize::try_from(channel.0).ok()?)
    }

    /// Gives up a channel for good. From now on no thread touches its handler, until a cold thread takes it out.
    #[cold]
    pub(super) fn retire(&self, slot: &ChannelSlot<H>, held: HeldClaim<'_, H>) {
        // A deadline that has just expired finds the claim held for ever.
        self.deadline_timer.publish(&slot.deadline, None, |at| self.set.set_timer(Some(at)));
        held.vacate();
    }

    /// Stops the pool because it cannot go on.
    pub(super) fn stop_with(&self, fault: String) {
        // The first fault is the cause, later ones may be its consequence.
        let _later = self.fault.set(fault);
        self.stop();
    }

    pub(super) fn stop(&self) {
        self.token.stop();
        self.set.wake();
    }
}

/// One channel in its pool. On cache lines of its own.
#[repr(align(128))]
pub(super) struct ChannelSlot<H: ChannelHandler> {
    pub(super) claim: Claim<H>,
    pub(super) deadline: Deadline,
    pub(super) failure: FailState,
    /// Set when the handler panicked once more in `on_failed` or `on_failed_deadline`: it is not called any more.
    /// Written and read by the holder of the claim.
    pub(super) is_muted: atomic::AtomicBool,
    pub(super) inbox: ArrayQueue<H::Message>,
}

impl<H: ChannelHandler> ChannelSlot<H> {
    /// Removes what a channel has left in its slot, which is vacant now.
    pub(super) fn reset(&self) {
        self.failure.clear();
        self.is_muted.store(false, atomic::Ordering::Relaxed);
        while self.inbox.pop().is_some() {}
    }
}

/// Whether a channel is out of service, and why. Asking whether costs a load; only cold threads ask why.
#[derive(Debug, Default)]
pub(super) struct FailState {
    has_failed: atomic::AtomicBool,
    reason: Mutex<Option<FailReason>>,
}

impl FailState {
    pub(super) fn is_set(&self) -> bool {
        self.has_failed.load(atomic::Ordering::Acquire)
    }

    /// Called by the holder of the claim, once: a failing channel may wait for a cold reader.
    #[cold]
    pub(super) fn set(&self, reason: FailReason) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.has_failed.store(true, atomic::Ordering::Release);
    }

    pub(super) fn reason(&self) -> Option<FailReason> {
        if self.is_set() { self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone() } else { None }
    }

    fn clear(&self) {
        self.has_failed.store(false, atomic::Ordering::Release);
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A channel in the run queue.
pub(super) struct RunQueueEntry {
    pub(super) index: usize,
    pub(super) deferred: DeferredClaim,
}

/// A validated configuration, as the turn needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) wait: WaitPolicy,
    pub(super) promotion: PromotionPolicy,
    pub(super) is_multi_threaded: bool,
    pub(super) delivers_data: bool,
    pub(super) follower_may_spin: bool,
    pub(super) batch_events_max: usize,
    pub(super) quota_packets: usize,
    pub(super) spin_ns: u64,
    pub(super) stall_ns_max: u64,
}

impl Settings {
    pub(super) fn check(config: &DispatchConfig, delivers_data: bool) -> Result<Self, StartError> {
        let threads = &config.threads;
        if threads.is_empty() {
            return Err(StartError::InvalidSetting("a pool needs at least one thread"));
        }
        if !(1..=EVENTS_MAX).contains(&config.batch_events_max) {
            return Err(StartError::InvalidSetting("batch_events_max must be in 1..=256"));
        }
        if !(1..=ReceiveBatch::ROWS_MAX).contains(&config.quota_packets) {
            return Err(StartError::InvalidSetting("quota_packets must be in 1..=1024"));
        }
        if config.inbox_messages_max == 0 {
            return Err(StartError::InvalidSetting("inbox_messages_max must be at least 1"));
        }
        if delivers_data && threads.len() > 1 {
            return Err(StartError::InvalidSetting("a handle set that delivers datagrams serves a pool of one thread"));
        }
        check_cores(threads)?;
        let is_unpinned_realtime = |thread: &ThreadConfig| thread.core.is_none() && thread.fifo_priority.is_some();
        if config.wait != WaitPolicy::Park && threads.iter().any(is_unpinned_realtime) {
            return Err(StartError::InvalidSetting("a spinning real-time thread needs its own core"));
        }
        // Leader and follower spin at the same time, so each needs its own core.
        let are_pinned = threads.iter().all(|thread| thread.core.is_some());
        let core_count = if are_pinned { threads.len() } else { affinity::usable_cores().len() };
        Ok(Self {
            wait: config.wait,
            promotion: config.promotion.unwrap_or_else(|| PromotionPolicy::default_for(config.wait)),
            is_multi_threaded: threads.len() > 1,
            delivers_data,
            follower_may_spin: config.wait != WaitPolicy::Park && core_count >= 2,
            batch_events_max: config.batch_events_max,
            quota_packets: config.quota_packets,
            spin_ns: config.spin_ns,
            stall_ns_max: config.stall_ns_max,
        })
    }
}

/// Refuses two threads on one core.
pub(super) fn check_cores(threads: &[ThreadConfig]) -> Result<(), StartError> {
    let mut cores: Vec<usize> = threads.iter().filter_map(|thread| thread.core).collect();
    cores.sort_unstable();
    match cores.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StartError::DuplicateCore(pair[0])),
        None => Ok(()),
    }
}

// The texts of `check` name both limits.
const _: () = assert!(EVENTS_MAX == 256 && ReceiveBatch::ROWS_MAX == 1_024);

/// Text of a panic, for logs.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".to_owned())
}
