//! Moves metrics from a hot thread to a cold one: two sets are exchanged, no thread waits, nothing is allocated.
//!
//! Once an interval the cold end offers an empty set. At its next batch boundary the hot end takes it and returns a
//! full one. Two sets exist, so there is always room: the flag is raised only after the offer is complete, and an offer
//! is made only after the last full set was taken out.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crossbeam_queue::ArrayQueue;

#[derive(Debug)]
struct DoubleBuffer<S> {
    /// An empty set is ready. Written by both ends, read by the hot end at each batch boundary.
    is_offered: AtomicBool,
    /// Empty set, from the cold end to the hot end.
    empty: ArrayQueue<Box<S>>,
    /// Full set, from the hot end to the cold end.
    full: ArrayQueue<Box<S>>,
    /// Last set, from the hot end to the cold end; pushed once, when the hot end has ended.
    last: ArrayQueue<Box<S>>,
}

/// The end of the hot thread: gives away its full set in exchange for an empty one, without waiting.
#[derive(Debug)]
pub(super) struct BufferProducer<S>(Arc<DoubleBuffer<S>>);

/// The end of the cold thread: offers an empty set, takes the full one, and clears it for the next exchange.
#[derive(Debug)]
pub struct BufferCollector<S> {
    double_buffer: Arc<DoubleBuffer<S>>,
    spare: Option<Box<S>>,
    clear: fn(&mut S),
}

/// Creates both ends. `spare` is the set that the cold end offers first; the hot end has its own set. `clear` empties a
/// collected set.
pub(super) fn double_buffer<S>(spare: Box<S>, clear: fn(&mut S)) -> (BufferProducer<S>, BufferCollector<S>) {
    let double_buffer = Arc::new(DoubleBuffer {
        is_offered: AtomicBool::new(false),
        empty: ArrayQueue::new(1),
        full: ArrayQueue::new(1),
        last: ArrayQueue::new(1),
    });
    (BufferProducer(Arc::clone(&double_buffer)), BufferCollector { double_buffer, spare: Some(spare), clear })
}

impl<S> BufferProducer<S> {
    /// Whether the cold end requests a full set.
    #[inline]
    #[must_use]
    pub(super) fn is_requested(&self) -> bool {
        // Acquire pairs with the Release in `collect`: the push of the empty set is complete, and so is the pop of the
        // last full one. So no queue operation of this end overlaps one of the other end.
        self.0.is_offered.load(Ordering::Acquire)
    }

    /// Takes the empty set, if a full one [is requested](Self::is_requested). The hot end must then return a full set.
    pub(super) fn take_empty(&self) -> Option<Box<S>> {
        let empty = self.0.empty.pop()?;
        // Only this end lowers the flag. Only the other end raises it, after it has seen the full set.
        self.0.is_offered.store(false, Ordering::Relaxed);
        Some(empty)
    }

    /// Returns a full set for the empty one.
    pub(super) fn hand_back(&self, full: Box<S>) {
        let pushed = self.0.full.push(full);
        debug_assert!(pushed.is_ok(), "two sets exist, and the other end holds none");
    }

    /// Returns the remaining set of the hot end, which has ended.
    pub(super) fn hand_back_last(&self, set: Box<S>) {
        let handed_over = self.0.last.push(set);
        debug_assert!(handed_over.is_ok(), "a hot end ends once");
    }
}

impl<S> BufferCollector<S> {
    /// Passes the set returned since the last call, if any, to `visit`, and offers an empty one. A hot end without a
    /// batch boundary in the meantime keeps its metrics: its interval is longer, nothing is lost.
    pub fn collect(&mut self, mut visit: impl FnMut(&S)) {
        if let Some(mut full) = self.double_buffer.full.pop() {
            visit(&full);
            (self.clear)(&mut full);
            self.spare = Some(full);
        }
        if let Some(empty) = self.spare.take() {
            let pushed = self.double_buffer.empty.push(empty);
            debug_assert!(pushed.is_ok(), "two sets exist, and the other end has one");
            // Release pairs with the Acquire in `is_requested`.
            self.double_buffer.is_offered.store(true, Ordering::Release);
        }
    }

    /// After the hot end has ended: passes the remaining sets to `visit`, the older first.
    pub fn finish(self, mut visit: impl FnMut(&S)) {
        for queue in [&self.double_buffer.full, &self.double_buffer.last] {
            if let Some(set) = queue.pop() {
                visit(&set);
            }
        }
    }
}
