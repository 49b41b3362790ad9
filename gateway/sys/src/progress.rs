//! Progress of a hot thread, as another process on the host sees it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that is odd while its thread works. Only that thread writes it, with plain stores.
#[derive(Clone, Copy, Debug)]
pub struct ProgressCounter(&'static AtomicU64);

impl ProgressCounter {
    /// Uses `counter` in shared memory as a progress counter.
    #[must_use]
    pub fn new(counter: &'static AtomicU64) -> Self {
        Self(counter)
    }

    /// The thread starts work, or has made progress with it.
    #[inline]
    pub fn mark_busy(&self) {
        self.0.store(self.count().wrapping_add(1) | 1, Relaxed);
    }

    /// The thread waits for work. A thread that already waited changes nothing.
    #[inline]
    pub fn mark_idle(&self) {
        let count = self.count();
        if count % 2 == 1 {
            self.0.store(count.wrapping_add(1), Relaxed);
        }
    }

    /// How often the thread has begun, advanced or ended work; odd while it works.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl PartialEq for ProgressCounter {
    /// Whether both are the same atomic in memory.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for ProgressCounter {}
