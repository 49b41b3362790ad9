//! Where followers sleep: a counting semaphore. A permit granted before a follower sleeps is not lost.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::sync::Futex;

/// Permits to stop sleeping. Granted by the thread that promotes or shuts down; each sleeper takes one.
#[derive(Debug)]
pub(super) struct Permits {
    available: Futex,
}

impl Permits {
    pub(super) fn new() -> Self {
        Self { available: Futex::new(0) }
    }

    /// Sleeps until there is a permit, and takes it. `on_sleep` is called before each sleep.
    pub(super) fn take(&self, on_sleep: impl Fn()) {
        let mut available = self.available.load(Relaxed);
        loop {
            if available == 0 {
                on_sleep();
                self.available.wait(0);
                available = self.available.load(Relaxed);
                continue;
            }
            // Acquire pairs with the Release in `grant`.
            match self.available.word().compare_exchange(available, available - 1, Acquire, Relaxed) {
                Ok(_) => return,
                Err(now) => available = now,
            }
        }
    }

    /// Lets `count` threads stop sleeping: present sleepers or the next ones.
    pub(super) fn grant(&self, count: u32) {
        self.available.word().fetch_add(count, Release);
        self.available.wake(count);
    }
}
