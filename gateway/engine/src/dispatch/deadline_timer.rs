//! One timer for the deadlines of all channels.
//!
//! Each channel has a deadline, written by the holder of its claim; the timer is set no later than the earliest of
//! them. A deadline that moves later costs no system call: the timer expires at the old time, finds nothing due and is
//! set again. On expiry the leader clears each deadline that has passed. The holder, which writes the next deadline,
//! sees by the cleared value that the timer no longer covers the old one.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use mdgw_feeds::time::MonoNs;

use super::sync::AtomicU64;

/// The deadline of one channel.
#[derive(Debug)]
pub(super) struct Deadline(AtomicU64);

impl Deadline {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

/// What the timer is set to.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct DeadlineTimer {
    armed: AtomicU64,
}

impl DeadlineTimer {
    pub(super) fn new() -> Self {
        Self { armed: AtomicU64::new(NEVER) }
    }

    /// The holder of a channel writes its next deadline. Calls `set_timer` if the timer would expire too late.
    pub(super) fn publish(&self, deadline: &Deadline, at: Option<MonoNs>, set_timer: impl Fn(MonoNs)) {
        let at_ns = at.map_or(NEVER, |at| at.0);
        // Only holders write values other than NEVER, and this thread holds the claim. So an equal value is this
        // channel's own. If it has been cleared since, an event was posted that brings a holder here once more.
        if deadline.0.load(Relaxed) == at_ns {
            return;
        }
        // AcqRel, against the exchange in `expire`: either `expire` sees the new deadline, or this thread sees that the
        // old one is cleared.
        let before_ns = deadline.0.swap(at_ns, AcqRel);
        if at_ns < before_ns {
            self.arm_no_later_than(at_ns, set_timer);
        }
    }

    /// Called by the leader when the timer has expired. Calls `due` for each channel whose deadline has passed, and
    /// sets the timer for the others.
    pub(super) fn expire<'a>(
        &self,
        now: MonoNs,
        deadlines: impl Iterator<Item = (usize, &'a Deadline)>,
        mut due: impl FnMut(usize),
        set_timer: impl Fn(MonoNs),
    ) {
        // From here on a holder that lowers a deadline sets the timer itself. Acquire: deadlines lowered before are
        // seen below.
        self.armed.swap(NEVER, AcqRel);
        let mut earliest_ns = NEVER;
        for (index, deadline) in deadlines {
            let mut at_ns = deadline.0.load(Acquire);
            while at_ns <= now.0 {
                match deadline.0.compare_exchange(at_ns, NEVER, AcqRel, Acquire) {
                    Ok(_) => {
                        due(index);
                        at_ns = NEVER;
                    }
                    Err(written) => at_ns = written,
                }
            }
            earliest_ns = earliest_ns.min(at_ns);
        }
        if earliest_ns != NEVER {
            self.arm_no_later_than(earliest_ns, set_timer);
        }
    }

    /// Sets the timer to `at_ns`, unless it is set to an earlier time. Two threads may set the timer in the wrong
    /// order. So a thread that finds another time in `armed` than the one it has set sets the timer again.
    fn arm_no_later_than(&self, at_ns: u64, set_timer: impl Fn(MonoNs)) {
        if self.armed.fetch_min(at_ns, AcqRel) <= at_ns {
            return;
        }
        let mut requested_ns = at_ns;
        loop {
            set_timer(MonoNs(requested_ns));
            let armed_ns = self.armed.load(Acquire);
            if armed_ns == requested_ns || armed_ns == NEVER {
                return;
            }
            requested_ns = armed_ns;
        }
    }
}

const NEVER: u64 = u64::MAX;

#[cfg(all(test, feature = "loom"))]
mod models {
    use std::sync::Arc;

    use loom::{sync::Mutex, thread};

    use super::*;
    use crate::dispatch::models::explore;

    /// Two channels and the kernel's timer.
    struct Harness {
        deadline_timer: DeadlineTimer,
        deadlines: [Deadline; 2],
        timer_ns: Mutex<u64>,
        due: Mutex<Vec<usize>>,
    }

    impl Harness {
        /// Before any thread runs: channel 0 has the deadline 5 and the timer is set to it.
        fn new() -> Arc<Self> {
            Arc::new(Self {
                deadline_timer: DeadlineTimer { armed: AtomicU64::new(5) },
                deadlines: [Deadline(AtomicU64::new(5)), Deadline::new()],
                timer_ns: Mutex::new(5),
                due: Mutex::new(Vec::new()),
            })
        }

        fn set_timer(&self, at: MonoNs) {
            *self.timer_ns.lock().unwrap() = at.0;
        }

        fn publish(&self, channel: usize, at_ns: u64) {
            self.deadline_timer.publish(&self.deadlines[channel], Some(MonoNs(at_ns)), |at| self.set_timer(at));
        }

        /// The leader at time 10.
        fn expire(&self) {
            *self.timer_ns.lock().unwrap() = NEVER;
            let due = |index| self.due.lock().unwrap().push(index);
            self.deadline_timer.expire(MonoNs(10), self.deadlines.iter().enumerate(), due, |at| self.set_timer(at));
        }

        fn check(&self, earliest_ns: u64) {
            assert_eq!(*self.timer_ns.lock().unwrap(), earliest_ns, "the timer is late");
        }
    }

    fn run(earliest_ns: u64, threads: impl IntoIterator<Item = fn(&Harness)>, main: fn(&Harness)) {
        let harness = Harness::new();
        let spawn = |body: fn(&Harness)| {
            let harness = harness.clone();
            thread::spawn(move || body(&harness))
        };
        let threads: Vec<_> = threads.into_iter().map(spawn).collect();
        main(&harness);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        harness.check(earliest_ns);
    }

    #[test]
    fn the_timer_is_set_to_the_earliest_deadline_in_any_order() {
        explore(3, || run(20, [(|harness| harness.publish(1, 20)) as fn(&Harness)], Harness::expire));
        explore(3, || run(20, [(|harness| harness.publish(0, 20)) as fn(&Harness)], Harness::expire));
        explore(2, || {
            let holders = [(|harness| harness.publish(0, 20)) as fn(&Harness), |harness| harness.publish(1, 30)];
            run(20, holders, Harness::expire);
        });
    }

    #[test]
    fn a_deadline_that_moves_earlier_while_the_timer_expires_is_kept() {
        explore(3, || {
            let holder = |harness: &Harness| {
                harness.publish(1, 40);
                harness.publish(1, 30);
            };
            run(30, [holder as fn(&Harness)], Harness::expire);
        });
    }

    #[test]
    #[should_panic(expected = "the timer is late")]
    fn setting_the_timer_without_rechecking_is_caught() {
        explore(3, || {
            let arm_no_later_than = |harness: &Harness, at_ns: u64| {
                if harness.deadline_timer.armed.fetch_min(at_ns, AcqRel) > at_ns {
                    harness.set_timer(MonoNs(at_ns));
                }
            };
            let harness = Harness::new();
            harness.deadline_timer.armed.store(NEVER, Relaxed);
            let other = harness.clone();
            let thread = thread::spawn(move || arm_no_later_than(&other, 30));
            arm_no_later_than(&harness, 20);
            thread.join().unwrap();
            harness.check(20);
        });
    }

    #[test]
    #[should_panic(expected = "the timer is late")]
    fn a_deadline_written_without_an_atomic_swap_is_caught() {
        explore(3, || {
            let publish = |harness: &Harness| {
                let before_ns = harness.deadlines[0].0.load(Acquire);
                harness.deadlines[0].0.store(20, std::sync::atomic::Ordering::Release);
                if 20 < before_ns {
                    harness.deadline_timer.arm_no_later_than(20, |at| harness.set_timer(at));
                }
            };
            run(20, [publish as fn(&Harness)], Harness::expire);
        });
    }
}
