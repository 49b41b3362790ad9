//! How one thread sleeps until another one has work for it, without a system call while it is awake.
//!
//! Both sides change the same atomic by an exchange, so one of them comes second: either the sleeper sees the work that
//! came before, or the other thread sees that there is a sleeper.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::dispatch::sync::{AtomicU32, Futex};

/// Where one thread sleeps.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Sleeper {
    state: Futex,
}

impl Sleeper {
    pub(super) fn new() -> Self {
        Self { state: Futex::new(AWAKE) }
    }

    /// Sleeps until [`Self::wake`], unless `has_work` says that there is work already. May return without work.
    pub(super) fn sleep_unless(&self, has_work: impl Fn() -> bool) {
        // Acquire pairs with the Release of a `wake` that came before: its work is seen below.
        self.state.word().swap(ASLEEP, AcqRel);
        if !has_work() {
            while self.state.load(Relaxed) == ASLEEP {
                self.state.wait(ASLEEP);
            }
        }
        self.state.word().swap(AWAKE, AcqRel);
    }

    /// There is work. Called after it can be seen.
    pub(super) fn wake(&self) {
        if self.state.word().swap(AWAKE, AcqRel) == ASLEEP {
            self.state.wake(1);
        }
    }
}

/// A request of one thread to be woken by another one, by other means than a [`Sleeper`].
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WakeRequest {
    state: AtomicU32,
}

impl WakeRequest {
    pub(super) fn new() -> Self {
        Self { state: AtomicU32::new(AWAKE) }
    }

    /// Requests to be woken. The caller then checks once more whether it has to wait.
    pub(super) fn make(&self) {
        self.state.swap(ASLEEP, AcqRel);
    }

    /// Takes the request, if there is one. Called after the reason to wait has gone.
    pub(super) fn take(&self) -> bool {
        self.state.swap(AWAKE, AcqRel) == ASLEEP
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

#[cfg(all(test, feature = "loom"))]
mod models {
    use std::sync::{
        Arc,
        atomic::Ordering::{Acquire, Release},
    };

    use loom::thread;

    use super::*;
    use crate::dispatch::models::explore;

    /// Two pieces of work are handed to a thread that sleeps between them. A lost wake-up leaves it asleep for ever.
    fn hand_over(wake: fn(&Sleeper)) {
        let shared = Arc::new((Sleeper::new(), AtomicU32::new(0)));
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (sleeper, work) = &*shared;
                while work.load(Relaxed) < 2 {
                    let seen = work.load(Relaxed);
                    sleeper.sleep_unless(|| work.load(Relaxed) != seen || seen == 2);
                }
            }
        });
        let (sleeper, work) = &*shared;
        for done in 1..=2 {
            work.store(done, Relaxed);
            wake(sleeper);
        }
        worker.join().unwrap();
    }

    #[test]
    fn no_wake_up_of_a_worker_is_lost() {
        explore(3, || hand_over(Sleeper::wake));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_wake_up_that_only_reads_the_state_is_lost() {
        explore(3, || {
            hand_over(|sleeper| {
                if sleeper.state.load(Relaxed) == ASLEEP {
                    sleeper.wake();
                }
            });
        });
    }

    /// The receiving thread finds a queue full and wants to be woken once there is room.
    fn wait_for_room(take: fn(&WakeRequest) -> bool) {
        let shared = Arc::new((WakeRequest::new(), AtomicU32::new(1), AtomicU32::new(0), Sleeper::new()));
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (request, queued, woken, set) = &*shared;
                queued.store(0, Relaxed);
                if take(request) {
                    // The kernel orders a wake-up and the wait that it ends.
                    woken.store(1, Release);
                    set.wake();
                }
            }
        });
        let (request, queued, woken, set) = &*shared;
        request.make();
        if queued.load(Relaxed) > 0 {
            while woken.load(Acquire) == 0 {
                set.sleep_unless(|| woken.load(Acquire) > 0);
            }
            assert_eq!(queued.load(Relaxed), 0, "woken without room");
        }
        worker.join().unwrap();
    }

    #[test]
    fn a_receiving_thread_that_finds_a_full_queue_is_woken() {
        explore(3, || wait_for_room(WakeRequest::take));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_request_that_is_only_read_is_missed() {
        explore(3, || wait_for_room(|request| request.state.load(Relaxed) == ASLEEP));
    }
}
