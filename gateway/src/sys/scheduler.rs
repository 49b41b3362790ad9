//! Scheduling class of a thread, and what the kernel counted of its switches.

use std::io;

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

/// The kernel's number of the calling thread, as in `/proc/self/task`.
#[must_use]
pub fn thread_id() -> i32 {
    // SAFETY: gettid(2) has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Context switches of one thread of this process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// It gave up the core: it blocked.
    pub voluntary: u64,
    /// The core was taken from it.
    pub involuntary: u64,
}

impl SwitchCounts {
    /// Of the thread with that [number](thread_id).
    ///
    /// # Errors
    /// When the thread is gone.
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

    /// What happened since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
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
    fn a_blocking_thread_switches_by_its_own_will() {
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
        // It waits for each message before it gets the next; sooner or later it sleeps.
        while SwitchCounts::of(id).unwrap().since(before).voluntary < 10 {
            to_thread.send(()).unwrap();
            from_thread.recv().unwrap();
        }
        drop(to_thread);
        thread.join().unwrap();
        assert!(SwitchCounts::of(id).is_err(), "the thread is gone");
    }

    #[test]
    fn a_priority_outside_the_range_is_refused() {
        assert!(set_fifo(0).is_err());
        assert!(set_fifo(100).is_err());
    }
}
