//! How far a hot thread has got, where a process beside this one looks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count that is odd while its thread has work in hand. Written by that thread alone, with plain stores.
#[derive(Clone, Copy, Debug)]
pub struct ProgressCounter(&'static AtomicU64);

impl ProgressCounter {
    /// In that word of shared memory.
    #[must_use]
    pub fn new(counter: &'static AtomicU64) -> Self {
        Self(counter)
    }

    /// It takes up work, or has got on with it.
    #[inline]
    pub fn mark_busy(&self) {
        self.0.store(self.count().wrapping_add(1) | 1, Relaxed);
    }

    /// It waits for work. Nothing changes where it did before.
    #[inline]
    pub fn mark_idle(&self) {
        let count = self.count();
        if count % 2 == 1 {
            self.0.store(count.wrapping_add(1), Relaxed);
        }
    }

    /// The count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl PartialEq for ProgressCounter {
    /// Whether it is the same word.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for ProgressCounter {}
