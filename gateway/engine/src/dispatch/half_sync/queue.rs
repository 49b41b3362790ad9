//! The queue of one worker.

use std::{
    hint, io,
    sync::atomic::{AtomicBool, Ordering::Acquire},
};

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::time::MonoNs;
use mdgw_sys::{batch::ReceiveBatch, clock::mono_now, handle::ChannelIndex};

use super::sleeper::{Sleeper, WakeRequest};
use crate::dispatch::{
    WaitPolicy,
    pool_state::Settings,
    roles::{Role, ThreadGauges},
};

/// Work that the receiving thread hands over.
pub(super) struct WorkItem {
    pub(super) channel: ChannelIndex,
    /// When the wait returned in which the work was found.
    pub(super) found_at: MonoNs,
    pub(super) work: Work,
}

pub(super) enum Work {
    Datagrams(Box<ReceiveBatch>),
    /// A socket of the channel cannot be read.
    ReceiveFailed(io::Error),
    /// The channel's deadline has passed, and what was received before is in the queue before this.
    Deadline,
    /// The channel's inbox is not empty.
    Messages,
}

/// The queue from the receiving thread to one worker, and the batches that circulate between the two.
pub(super) struct WorkQueue {
    items: ArrayQueue<WorkItem>,
    /// Batches without datagrams.
    free: ArrayQueue<Box<ReceiveBatch>>,
    sleeper: Sleeper,
    room: WakeRequest,
    /// The receiving thread and all workers spin at the same time, so each needs its own core.
    may_spin: bool,
}

impl WorkQueue {
    /// Allocates and touches all memory.
    pub(super) fn new(rows: usize, datagram_bytes_max: usize, may_spin: bool) -> Self {
        let free = ArrayQueue::new(BATCHES);
        for _ in 0..BATCHES {
            // There is room: see `new`.
            let _refused = free.push(Box::new(ReceiveBatch::new(rows, datagram_bytes_max)));
        }
        Self { items: ArrayQueue::new(ITEMS_MAX), free, sleeper: Sleeper::new(), room: WakeRequest::new(), may_spin }
    }

    /// A batch to receive into, if there is one and room to hand it over. Called by the receiving thread.
    pub(super) fn take_free(&self) -> Option<Box<ReceiveBatch>> {
        if self.has_room() { self.free.pop() } else { None }
    }

    /// Takes back a batch, whatever it holds.
    pub(super) fn give_back(&self, mut batch: Box<ReceiveBatch>) {
        batch.clear();
        let refused = self.free.push(batch);
        debug_assert!(refused.is_ok(), "there is room for all batches");
    }

    /// Whether another item fits. It stays true until the receiving thread, which asks, pushes one.
    pub(super) fn has_room(&self) -> bool {
        !self.items.is_full()
    }

    /// Hands over work. Called by the receiving thread, after [`Self::has_room`].
    pub(super) fn push(&self, item: WorkItem) {
        let pushed = self.items.push(item);
        debug_assert!(pushed.is_ok(), "only this thread pushes, and there was room");
        self.sleeper.wake();
    }

    /// Asks the worker to wake the receiving thread once there is room. `false`: there is room by now.
    pub(super) fn request_wake(&self) -> bool {
        self.room.make();
        self.is_more_than_half_full()
    }

    /// Whether the receiving thread waits for the room that there is now. Called by the worker after each item.
    pub(super) fn must_wake_receiver(&self) -> bool {
        !self.is_more_than_half_full() && self.room.take()
    }

    pub(super) fn wake_worker(&self) {
        self.sleeper.wake();
    }

    /// The next item; waits for it. `None`: all items are processed, and no more will come.
    pub(super) fn next(
        &self,
        is_input_over: &AtomicBool,
        settings: &Settings,
        gauges: &ThreadGauges,
    ) -> Option<WorkItem> {
        if let Some(item) = self.items.pop() {
            return Some(item);
        }
        gauges.mark_idle();
        let is_ended = || is_input_over.load(Acquire);
        if self.may_spin {
            gauges.set_role(Role::Spinning);
            let spin_since = mono_now();
            let mut poll_count = 0_u32;
            loop {
                if let Some(item) = self.items.pop() {
                    return Some(item);
                }
                if is_ended() {
                    break;
                }
                poll_count = poll_count.wrapping_add(1);
                if settings.wait != WaitPolicy::Spin
                    && poll_count.is_multiple_of(POLLS_PER_CLOCK_READ)
                    && mono_now().since(spin_since) >= settings.spin_ns
                {
                    break;
                }
                hint::spin_loop();
            }
        }
        loop {
            // Read before the last look: what was handed over before the end is found there.
            let is_over = is_ended();
            if let Some(item) = self.items.pop() {
                return Some(item);
            }
            if is_over {
                return None;
            }
            gauges.set_role(Role::Parked);
            gauges.sleeps.add(1);
            self.sleeper.sleep_unless(|| !self.items.is_empty() || is_ended());
        }
    }

    fn is_more_than_half_full(&self) -> bool {
        self.items.len() > ITEMS_MAX / 2 || self.free.len() < BATCHES / 2
    }
}

/// Batches of one worker. With 64 datagrams of 2 KiB each they take 8 MiB.
pub(super) const BATCHES: usize = 64;
/// Items in the queue: all batches, and as many deadlines and messages.
pub(super) const ITEMS_MAX: usize = 2 * BATCHES;
/// Checks of the queue by a spinning worker for each read of the clock.
const POLLS_PER_CLOCK_READ: u32 = 64;
