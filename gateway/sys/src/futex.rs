//! Sleeps on a 32-bit atomic: like std's thread parking, without its allocation per thread.

use std::sync::atomic::AtomicU32;

use rustix::thread::futex::{self, Flags};

/// Sleeps until the thread is woken, if the value still is `expected`. May return spuriously.
pub fn wait(word: &AtomicU32, expected: u32) {
    // The result does not matter (woken, value changed, interrupted): the caller checks its condition again.
    let _ = futex::wait(word, Flags::PRIVATE, expected, None);
}

/// Wakes at most `count` threads that sleep on the value.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, Flags::PRIVATE, count);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn wait_returns_on_wake_and_on_a_changed_value() {
        let word = AtomicU32::new(0);
        wait(&word, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(SeqCst) == 0 {
                    wait(&word, 0);
                }
            });
            word.store(1, SeqCst);
            wake(&word, 1);
        });
    }
}
