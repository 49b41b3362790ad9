//! Model checking: every interleaving of a few threads within a bound on preemptions, and every value that the memory
//! model lets a load return. Each protocol has its own models beside it; here they run together as a small pool.

use std::{collections::VecDeque, sync::Arc};

use loom::{
    sync::{Condvar, Mutex},
    thread,
};
use mdgw_sys::handle::LineSet;

use super::{
    claim::{Claim, HeldClaim, PendingEvents},
    token::{FollowOptions, TakeOutcome, Token},
};

/// Runs `model` in every way with at most `preemptions` switches away from a thread that could have continued.
pub(super) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Two threads, one channel, and a handle set whose wait can be woken.
struct Harness {
    token: Token,
    claim: Claim<u32>,
    set: Mutex<Set>,
    changed: Condvar,
    processed: Mutex<u32>,
    progress: Condvar,
}

#[derive(Default)]
struct Set {
    events: VecDeque<Event>,
    socket: u32,
    waiting: bool,
}

enum Event {
    Ready,
    Wake,
}

impl Harness {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            token: Token::new(),
            claim: Claim::new(0),
            set: Mutex::new(Set::default()),
            changed: Condvar::new(),
            processed: Mutex::new(0),
            progress: Condvar::new(),
        })
    }

    /// Main function of a thread. It promotes strictly: always before processing.
    fn run(&self) {
        loop {
            let waiting = FollowOptions { may_spin: false, keep_spinning: || false };
            let outcome = match self.token.try_take() {
                TakeOutcome::AlreadyHeld => self.token.follow(waiting, |_| (), || ()),
                outcome => outcome,
            };
            if outcome == TakeOutcome::Stopping || !self.lead() {
                return;
            }
        }
    }

    fn lead(&self) -> bool {
        while !self.token.is_stopping() {
            let Event::Ready = self.wait() else { continue };
            let Some(held) = self.claim.post(PendingEvents::ready(LineSet(1))) else { continue };
            self.token.release();
            self.process(held);
            return true;
        }
        false
    }

    fn wait(&self) -> Event {
        let mut set = self.set.lock().unwrap();
        assert!(!set.waiting, "two threads wait at once");
        loop {
            if let Some(event) = set.events.pop_front() {
                return event;
            }
            set.waiting = true;
            set = self.changed.wait(set).unwrap();
            set.waiting = false;
        }
    }

    fn process(&self, mut held: HeldClaim<'_, u32>) {
        loop {
            if held.take_events() != PendingEvents::NONE {
                let packets = std::mem::take(&mut self.set.lock().unwrap().socket);
                held.with(|count| *count += packets);
                *self.processed.lock().unwrap() += packets;
                self.progress.notify_all();
            }
            match held.release() {
                Ok(()) => return,
                Err(reclaimed) => held = reclaimed,
            }
        }
    }

    fn packet(&self) {
        let mut set = self.set.lock().unwrap();
        set.socket += 1;
        set.events.push_back(Event::Ready);
        self.changed.notify_all();
    }

    fn stop(&self, wakes: bool) {
        self.token.stop();
        if wakes {
            self.set.lock().unwrap().events.push_back(Event::Wake);
            self.changed.notify_all();
        }
    }
}

fn run_and_stop(packets: u32, wakes: bool) {
    let harness = Harness::new();
    let threads = [(); 2].map(|()| {
        let harness = harness.clone();
        thread::spawn(move || harness.run())
    });
    // Packets reach a leader that already waits, or is about to wait.
    (0..packets).for_each(|_| harness.packet());
    let mut processed = harness.processed.lock().unwrap();
    while *processed < packets {
        processed = harness.progress.wait(processed).unwrap();
    }
    drop(processed);
    harness.stop(wakes);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn packets_are_processed_while_leadership_rotates_and_the_pool_stops() {
    explore(2, || run_and_stop(2, true));
}

#[test]
fn a_pool_stops_while_its_threads_are_still_starting() {
    explore(3, || run_and_stop(0, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_shutdown_that_does_not_wake_the_leader_is_caught() {
    explore(2, || run_and_stop(0, false));
}
