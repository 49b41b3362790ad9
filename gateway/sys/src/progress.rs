//! Progress of a hot thread, as a cold thread or another process on the host sees it.

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

    /// A counter that only this process sees. Its memory is never freed, since its thread may outlive all other users.
    #[must_use]
    pub fn private() -> Self {
        Self(&Box::leak(Box::new(OwnCacheLines(AtomicU64::new(0)))).0)
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

/// Two cache lines, since neighbouring lines are fetched in pairs.
#[repr(align(128))]
struct OwnCacheLines(AtomicU64);

impl PartialEq for ProgressCounter {
    /// Whether both are the same atomic in memory.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for ProgressCounter {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_counters_are_apart_from_each_other() {
        let [first, second] = [(); 2].map(|()| ProgressCounter::private());
        first.mark_busy();
        first.mark_busy();
        second.mark_idle();
        assert_eq!((first.count(), second.count()), (3, 0));
        first.mark_idle();
        assert_eq!(first.count(), 4);
        assert_ne!(first, second);
    }
}
