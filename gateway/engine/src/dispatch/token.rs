//! The leader token: who holds it, and nobody else, waits for events.
//!
//! One word on its own cache line says whether the token is held, whether a follower spins for it, how many sleep, and
//! whether the pool stops. Every change is one atomic step on that word, so that no promotion is lost: a thread goes to
//! sleep in the same step that finds the token held, and who releases takes a sleeper off the count in the same step
//! that frees it.
//!
//! ```text
//!              try_take                    release: somebody spins     -> free, the spinner sees it
//!    free  ----------------->  held  ----  release: somebody sleeps    -> free, one fewer sleeps, one permit
//!          <-----------------              release: nobody             -> free until a thread comes back
//! ```
//! The token is not handed over: a thread that comes back from processing may take it before the promoted follower is
//! awake, which saves the wait for it; the follower then finds it held and goes back (counted as woken in vain).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{park::Permits, roles::Role, sync::AtomicU32};

/// The token of one pool.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Token {
    state: AtomicU32,
    sleep: Sleepers,
}

/// On a line of its own: sleepers and their wakers must not disturb the word that a spinner reads.
#[derive(Debug)]
#[repr(align(128))]
struct Sleepers {
    permits: Permits,
}

/// What came of trying to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeOutcome {
    /// The caller leads.
    Acquired,
    /// Another thread does.
    AlreadyHeld,
    /// NoFollower shall any more.
    Stopping,
}

/// Whom a release promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promoted {
    /// The follower that spins.
    Spinner,
    /// One that slept.
    Sleeper,
    /// There was no follower: the next thread that comes back will lead.
    NoFollower,
}

/// How a follower waits.
pub(super) struct FollowOptions<F> {
    /// Whether it may spin, if no other does.
    pub(super) may_spin: bool,
    /// Asked while it spins; false sends it to sleep.
    pub(super) keep_spinning: F,
}

impl Token {
    pub(super) fn new() -> Self {
        Self { state: AtomicU32::new(0), sleep: Sleepers { permits: Permits::new() } }
    }

    /// Acquired if nobody does.
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

    /// Gives up the lead and promotes exactly one follower, if there is any.
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

    /// Waits as a follower until the caller leads or the pool stops. `on_role` hears what it does meanwhile, `on_spurious_wake`
    /// of each promotion that another thread was quicker to take.
    pub(super) fn follow<F: FnMut() -> bool>(
        &self,
        mut options: FollowOptions<F>,
        on_role: impl Fn(Role),
        on_spurious_wake: impl Fn(),
    ) -> TakeOutcome {
        loop {
            match self.become_follower(options.may_spin) {
                FollowerEntry::Decided(take) => return take,
                FollowerEntry::Spinning => {
                    on_role(Role::Spinning);
                    if let Some(take) = self.spin(&mut options.keep_spinning) {
                        return take;
                    }
                    // One spell of spinning per wait: who was woken in vain after it sleeps again at once.
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

    /// NoFollower leads from now on. Wakes all who sleep; who spins sees it; who leads or processes sees it when it next
    /// asks.
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

    /// Whether a follower spins, ready to lead in no time.
    pub(super) fn has_spinner(&self) -> bool {
        self.state.load(Relaxed) & SPINNING != 0
    }

    /// Whether any follower is there to be promoted.
    pub(super) fn has_follower(&self) -> bool {
        self.state.load(Relaxed) & !(HELD | STOPPING) != 0
    }

    /// Becomes a follower, unless the token is free at that very moment.
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

    /// Spinning; `None` when it went to sleep instead, and is counted as a sleeper.
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

    /// Acquire and Release pair with each other from holder to holder: what the last leader did, the next one sees.
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
/// One sleeper; their number stands above the flags.
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

    /// What only the leader touches: the checker reports two threads that do so at once.
    struct Pool {
        token: Token,
        lead_count: Cell<u32>,
    }

    impl Pool {
        #[expect(clippy::arc_with_non_send_sync, reason = "the checker watches over the cell, and asks for neither")]
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
            assert_eq!(pool.token.state.load(Relaxed), 0, "nobody is counted who is gone");
        }
    }

    /// One look, then to sleep.
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
            // Whenever the two arrive, one of them leads and the other sleeps or stops.
            pool.token.release();
            pool.token.stop();
            let takes = followers.map(|follower| follower.join().unwrap());
            assert!(takes.iter().filter(|take| **take == TakeOutcome::Acquired).count() <= 1, "{takes:?}");
        });
    }

    /// Stopping while somebody leads, against followers on their way to sleep or spinning.
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
