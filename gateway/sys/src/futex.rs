//! Sleeps on a 32-bit atomic: like std's thread parking, without its allocation per thread.

#![allow(unsafe_code, reason = "system calls")]

use std::{ptr, sync::atomic::AtomicU32};

/// Sleeps until woken, if the value still is `expected`. May return without a reason.
pub fn wait(word: &AtomicU32, expected: u32) {
    let no_limit: *const libc::timespec = ptr::null();
    // SAFETY: futex(2) with FUTEX_WAIT reads one aligned 32-bit value at the address, which the borrow keeps alive for
    // the call, and no timeout, since that pointer is null. Every result (woken, value changed, interrupted) is
    // allowed.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, no_limit)
    };
}

/// Wakes at most `count` threads that sleep on the value.
pub fn wake(word: &AtomicU32, count: u32) {
    // SAFETY: futex(2) with FUTEX_WAKE uses the address as a key and touches no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
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
