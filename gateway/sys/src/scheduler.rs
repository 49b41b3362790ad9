//! Scheduling class of a thread, and its context switches.

#![allow(unsafe_code, reason = "system calls that rustix lacks")]

use std::{io, thread::JoinHandle};

use rustix::thread::gettid;

/// Puts the calling thread into the real-time class `SCHED_FIFO`.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or a sufficient `RLIMIT_RTPRIO`; `EINVAL` for a priority outside 1..=99.
pub fn set_fifo(priority: u8) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: sched_setscheduler(2) reads one sched_param through the pointer, which is to a live local; thread id 0 is
    // the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Requests that the calling thread, and the threads it starts, run soon after a wake-up on a busy core: sets the
/// shortest slice of the kernel's fair scheduler. Their share of the core stays the same, and a thread that has
/// exceeded its share waits like any other. Linux before 6.12 ignores the request. A thread of another class, or
/// without permission, is not changed.
pub fn request_short_slice() {
    let Ok(mut attributes) = attributes() else { return };
    if i32::try_from(attributes.sched_policy) == Ok(libc::SCHED_OTHER) {
        attributes.sched_runtime = SLICE_NS_MIN;
        // SAFETY: sched_setattr(2) reads `size` bytes of one sched_attr through the pointer, which is to a live local
        // whose size sched_getattr has filled in; thread id 0 is the calling thread. A refusal changes nothing.
        let _may_be_refused = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Starts a thread with that name and [the shortest slice](request_short_slice).
///
/// # Errors
/// If the system allows no more threads.
pub fn spawn_short_slice(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(|| {
        request_short_slice();
        body();
    })
}

fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: sched_getattr(2) writes at most `size` bytes through the pointer, which is to a live local of that size;
    // thread id 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// Shortest slice that the kernel accepts, ns.
const SLICE_NS_MIN: u64 = 100_000;

/// Thread id of the calling thread, as in `/proc/self/task`.
#[must_use]
pub fn thread_id() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Context switches of one thread of this process since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// Switches because the thread waited for something.
    pub voluntary: u64,
    /// Switches because the scheduler gave the core to another thread.
    pub involuntary: u64,
}

impl SwitchCounts {
    /// Switches of the thread with that [id](thread_id).
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn of(thread_id: i32) -> io::Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/status"))?;
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).and_then(|rest| rest.trim().parse().ok())
        };
        Ok(Self {
            voluntary: field("voluntary_ctxt_switches:").unwrap_or(0),
            involuntary: field("nonvoluntary_ctxt_switches:").unwrap_or(0),
        })
    }

    /// Switches since `earlier`.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_counts_as_a_voluntary_context_switch() {
        let (to_thread, from_test) = std::sync::mpsc::channel();
        let (to_test, from_thread) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            to_test.send(thread_id()).unwrap();
            while from_test.recv().is_ok() {
                to_test.send(0).unwrap();
            }
        });
        let id = from_thread.recv().unwrap();
        let before = SwitchCounts::of(id).unwrap();
        // The thread waits for each message before it gets the next; sooner or later it sleeps.
        while SwitchCounts::of(id).unwrap().since(before).voluntary < 10 {
            to_thread.send(()).unwrap();
            from_thread.recv().unwrap();
        }
        drop(to_thread);
        thread.join().unwrap();
        // The kernel removes the thread's folder some time after a join returns.
        while SwitchCounts::of(id).is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn requesting_a_short_slice_keeps_class_and_niceness() {
        let of_thread = std::thread::spawn(|| {
            // `None` is the calling thread, which may always raise its nice value.
            rustix::process::setpriority_process(None, 3).unwrap();
            let before = attributes().unwrap();
            request_short_slice();
            (before, attributes().unwrap())
        });
        let (before, after) = of_thread.join().unwrap();
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, 3));
        // A kernel that ignores the request reports no slice either.
        let expected = if before.sched_runtime == 0 { 0 } else { SLICE_NS_MIN };
        assert_eq!(after.sched_runtime, expected, "before: {}", before.sched_runtime);
    }

    #[test]
    fn a_priority_outside_the_range_is_refused() {
        assert!(set_fifo(0).is_err());
        assert!(set_fifo(100).is_err());
    }
}
