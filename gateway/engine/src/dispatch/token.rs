//! The leader token: only the thread that holds it waits for events.
//!
//! One atomic on its own cache line says whether the token is held, whether a follower spins for it, how many followers
//! sleep, and whether the pool stops. Every change is one atomic step, so no promotion is lost: a thread goes to sleep
//! in the same step that finds the token held, and a releasing thread takes a sleeper off the count in the same step
//! that frees the token.
//!
//! ```text
//!              try_take                    release: a follower spins   -> free, the spinner sees it
//!    free  ----------------->  held  ----  release: a follower sleeps  -> free, one sleeper less, one permit
//!          <-----------------              release: no follower        -> free until a thread comes back
//! ```
//! The token is not handed over directly. A thread that comes back from processing may take the token before the
//! promoted follower is awake, which saves the wait for that follower. The follower then finds the token held and
//! sleeps again (counted as a spurious wake).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{park::Permits, roles::Role, sync::AtomicU32};

/// The token of one pool.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Token {
    state: AtomicU32,
    sleep: Sleepers,
}

/// On its own cache line: sleepers and their wakers must not disturb the atomic that a spinner reads.
#[derive(Debug)]
#[repr(align(128))]
struct Sleepers {
    permits: Permits,
}

/// Result of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeOutcome {
    /// The token was free, and the calling thread leads now.
    Acquired,
    /// Another thread leads.
    AlreadyHeld,
    /// The pool stops: no thread may lead any more.
    Stopping,
}

/// Which follower a release promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promoted {
    /// The follower that spins.
    Spinner,
    /// A follower that slept.
    Sleeper,
    /// There was no follower: the next thread that comes back will lead.
    NoFollower,
}

/// Options of a follower's wait.
pub(super) struct FollowOptions<F> {
    /// Whether the thread may spin, if no other follower does.
    pub(super) may_spin: bool,
    /// Called while the thread spins; `false` sends it to sleep.
    pub(super) keep_spinning: F,
}

impl Token {
    pub(super) fn new() -> Self {
        Self { state: AtomicU32::new(0), sleep: Sleepers { permits: Permits::new() } }
    }

    /// Takes the token if no thread holds it.
    pub(super) fn try_take(&self) -> TakeOutcome {
        let mut state = self.state.load(Relaxed);
        loop {
            if state & STOPPING != 0 {
                return TakeOutcome::Stopping;
            }
            if state & HELD != 0 {
                return TakeOutcome::AlreadyHeld;
            }
            match self.exchange(state, state | HELD) {
                Ok(()) => return TakeOutcome::Acquired,
                Err(now) => state = now,
            }
        }
    }

    /// Gives up the lead and promotes exactly one follower, if there is one.
    pub(super) fn release(&self) -> Promoted {
        let mut state = self.state.load(Relaxed);
        loop {
            debug_assert!(state & HELD != 0, "only the leader releases");
            let (next, promoted) = if state & SPINNING != 0 {
                (state & !HELD, Promoted::Spinner)
            } else if state >= SLEEPER {
                ((state & !HELD) - SLEEPER, Promoted::Sleeper)
            } else {
                (state & !HELD, Promoted::NoFollower)
            };
            match self.exchange(state, next) {
                Ok(()) => {
                    if promoted == Promoted::Sleeper {
                        self.sleep.permits.grant(1);
                    }
                    return promoted;
                }
                Err(now) => state = now,
            }
        }
    }

    /// Waits as a follower until the caller leads or the pool stops. Calls `on_role` at each change of role, and
    /// `on_spurious_wake` for each promotion that another thread was quicker to take.
    pub(super) fn follow<F: FnMut() -> bool>(
        &self,
        mut options: FollowOptions<F>,
        on_role: impl Fn(Role),
        on_spurious_wake: impl Fn(),
    ) -> TakeOutcome {
        loop {
            match self.become_follower(options.may_spin) {
                FollowerEntry::Decided(outcome) => return outcome,
                FollowerEntry::Spinning => {
                    on_role(Role::Spinning);
                    if let Some(outcome) = self.spin(&mut options.keep_spinning) {
                        return outcome;
                    }
                    // One spell of spinning per wait: after a spurious wake the follower sleeps at once.
                    options.may_spin = false;
                }
                FollowerEntry::Sleeping => {}
            }
            self.sleep.permits.take(|| on_role(Role::Parked));
            match self.try_take() {
                TakeOutcome::AlreadyHeld => on_spurious_wake(),
                done => return done,
            }
        }
    }

    /// No thread leads from now on. Wakes all sleepers. A spinner sees the flag; a thread that leads or processes sees
    /// it at its next check.
    pub(super) fn stop(&self) {
        let mut state = self.state.load(Relaxed);
        loop {
            match self.exchange(state, (state % SLEEPER) | STOPPING) {
                Ok(()) => break,
                Err(now) => state = now,
            }
        }
        let sleeping = state / SLEEPER;
        if sleeping > 0 {
            self.sleep.permits.grant(sleeping);
        }
    }

    /// Whether the pool stops.
    pub(super) fn is_stopping(&self) -> bool {
        self.state.load(Relaxed) & STOPPING != 0
    }

    /// Whether a follower spins, ready to lead at once.
    pub(super) fn has_spinner(&self) -> bool {
        self.state.load(Relaxed) & SPINNING != 0
    }

    /// Whether any follower could be promoted.
    pub(super) fn has_follower(&self) -> bool {
        self.state.load(Relaxed) & !(HELD | STOPPING) != 0
    }

    /// Becomes a follower, unless the token is free at that moment.
    fn become_follower(&self, may_spin: bool) -> FollowerEntry {
        let mut state = self.state.load(Relaxed);
        loop {
            if state & STOPPING != 0 {
                return FollowerEntry::Decided(TakeOutcome::Stopping);
            }
            let (next, entered) = if state & HELD == 0 {
                (state | HELD, FollowerEntry::Decided(TakeOutcome::Acquired))
            } else if may_spin && state & SPINNING == 0 {
                (state | SPINNING, FollowerEntry::Spinning)
            } else {
                (state + SLEEPER, FollowerEntry::Sleeping)
            };
            match self.exchange(state, next) {
                Ok(()) => return entered,
                Err(now) => state = now,
            }
        }
    }

    /// Spins; returns `None` if the thread goes to sleep instead and is counted as a sleeper.
    fn spin(&self, keep_spinning: &mut impl FnMut() -> bool) -> Option<TakeOutcome> {
        loop {
            let state = self.state.load(Relaxed);
            if state & STOPPING != 0 {
                return Some(TakeOutcome::Stopping);
            }
            if state & HELD == 0 {
                if self.exchange(state, state & !SPINNING | HELD).is_ok() {
                    return Some(TakeOutcome::Acquired);
                }
            } else if !keep_spinning() && self.exchange(state, (state & !SPINNING) + SLEEPER).is_ok() {
                return None;
            }
            spin_hint();
        }
    }

    /// Acquire and Release pair with each other from holder to holder: the next leader sees all writes of the last.
    fn exchange(&self, state: u32, next: u32) -> Result<(), u32> {
        self.state.compare_exchange(state, next, AcqRel, Acquire).map(drop)
    }
}

enum FollowerEntry {
    Decided(TakeOutcome),
    Spinning,
    Sleeping,
}

const HELD: u32 = 1;
const SPINNING: u32 = 1 << 1;
const STOPPING: u32 = 1 << 2;
/// One sleeper; the number of sleepers is stored above the flags.
const SLEEPER: u32 = 1 << 3;

fn spin_hint() {
    #[cfg(not(all(test, feature = "loom")))]
    std::hint::spin_loop();
    #[cfg(all(test, feature = "loom"))]
    loom::thread::yield_now();
}

#[cfg(all(test, feature = "loom"))]
mod models {
    use std::sync::Arc;

    use loom::{cell::Cell, thread};

    use super::*;
    use crate::dispatch::models::explore;

    /// State that only the leader touches: the checker reports two threads that do so at once.
    struct Pool {
        token: Token,
        lead_count: Cell<u32>,
    }

    impl Pool {
        #[expect(
            clippy::arc_with_non_send_sync,
            reason = "the model checker's cell is neither Send nor Sync, and needs neither"
        )]
        fn new() -> Arc<Self> {
            Arc::new(Self { token: Token::new(), lead_count: Cell::new(0) })
        }

        fn lead_once(&self, may_spin: bool, release: impl Fn(&Token) -> Promoted) {
            assert_eq!(follow(&self.token, may_spin), TakeOutcome::Acquired);
            self.lead_count.set(self.lead_count.get() + 1);
            release(&self.token);
        }

        /// Three threads lead once each. A lost promotion leaves one asleep for ever, which the checker reports.
        fn all_lead(may_spin: [bool; 3], release: impl Fn(&Token) -> Promoted + Copy + 'static) {
            let pool = Self::new();
            let threads = [may_spin[0], may_spin[1]].map(|may_spin| {
                let pool = pool.clone();
                thread::spawn(move || pool.lead_once(may_spin, release))
            });
            pool.lead_once(may_spin[2], release);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(pool.lead_count.get(), 3);
            assert_eq!(pool.token.state.load(Relaxed), 0, "no thread that has ended is counted");
        }
    }

    /// Checks once, then goes to sleep.
    fn follow(token: &Token, may_spin: bool) -> TakeOutcome {
        let mut polls = 0;
        let keep_spinning = || {
            polls += 1;
            polls < 2
        };
        token.follow(FollowOptions { may_spin, keep_spinning }, |_| (), || ())
    }

    #[test]
    fn each_sleeping_follower_leads_once_and_alone() {
        explore(3, || Pool::all_lead([false; 3], Token::release));
    }

    #[test]
    fn each_spinning_follower_leads_once_and_alone() {
        explore(2, || Pool::all_lead([true, true, false], Token::release));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_release_that_counts_sleepers_beforehand_loses_a_promotion() {
        explore(3, || {
            Pool::all_lead([false; 3], |token| {
                let sleeping = token.state.load(Acquire) / SLEEPER;
                token.state.fetch_and(!HELD, AcqRel);
                if sleeping > 0 {
                    token.state.fetch_sub(SLEEPER, AcqRel);
                    token.sleep.permits.grant(1);
                }
                Promoted::NoFollower
            });
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_token_taken_in_two_steps_has_two_leaders() {
        explore(3, || {
            let pool = Pool::new();
            let take = |pool: &Pool| {
                if pool.token.state.load(Acquire) & HELD == 0 {
                    pool.token.state.store(HELD, std::sync::atomic::Ordering::Release);
                    pool.lead_count.set(pool.lead_count.get() + 1);
                }
            };
            let other = pool.clone();
            let thread = thread::spawn(move || take(&other));
            take(&pool);
            thread.join().unwrap();
        });
    }

    #[test]
    fn one_release_promotes_one_follower() {
        explore(3, || {
            let pool = Pool::new();
            assert_eq!(pool.token.try_take(), TakeOutcome::Acquired);
            let followers = [(); 2].map(|()| {
                let pool = pool.clone();
                thread::spawn(move || follow(&pool.token, false))
            });
            // Whenever the two threads arrive, one of them leads and the other sleeps or stops.
            pool.token.release();
            pool.token.stop();
            let takes = followers.map(|follower| follower.join().unwrap());
            assert!(takes.iter().filter(|take| **take == TakeOutcome::Acquired).count() <= 1, "{takes:?}");
        });
    }

    /// Stopping while another thread leads, against followers that go to sleep or spin.
    fn stops(may_spin: bool, stop: impl Fn(&Token)) {
        let token = Arc::new(Token::new());
        assert_eq!(token.try_take(), TakeOutcome::Acquired);
        let followers = [may_spin, false].map(|may_spin| {
            let token = token.clone();
            thread::spawn(move || follow(&token, may_spin))
        });
        stop(&token);
        for follower in followers {
            assert_eq!(follower.join().unwrap(), TakeOutcome::Stopping);
        }
    }

    #[test]
    fn stopping_ends_all_followers() {
        explore(3, || stops(false, Token::stop));
        explore(2, || stops(true, Token::stop));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_stop_that_wakes_no_follower_is_caught() {
        explore(2, || {
            stops(false, |token| {
                token.state.fetch_or(STOPPING, AcqRel);
            });
        });
    }
}
