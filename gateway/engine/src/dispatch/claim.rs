//! The claim: one thread at a time processes a channel, no thread waits for it, and no event is lost.
//!
//! A thread that has events for a channel (lines that are ready, a deadline that passed) sets their bits and then adds
//! one to a post count. The thread that finds the count at zero holds the channel; the others continue. The holder
//! reads the count, takes the events, processes them, and subtracts the count it read. If the result is not zero,
//! another thread has posted events meanwhile, and the holder starts again.
//!
//! ```text
//!   post:    events |= e;  post_count += 1       was 0: hold        else: the holder will see e
//!   hold:    seen = post_count;  e = take events;   process e
//!   release: post_count -= seen                  was seen: free     else: hold on
//! ```
//! An event is set before its count is added, and the count is read before the events are taken. So the holder has
//! processed the events of every post that it subtracts. A holder can defer a claim with work left over
//! ([`HeldClaim::defer`]) and another thread can resume it; in between no thread can take the claim.
//!
//! A claim can be without a value: its count then stays above zero, so no post finds it free. A cold thread fills it and
//! leaves the first turn to the thread that resumes it; a holder vacates it, and a cold thread takes the value out.
//!
//! ```text
//!   VACANT --fill (cold)--> OCCUPIED --vacate (holder)--> RETIRED --take_retired (cold)--> VACANT
//! ```

#![allow(unsafe_code, reason = "the cell that a claim guards")]

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use mdgw_sys::handle::LineSet;

use super::sync::{AtomicU32, AtomicU64, UnsafeCell};

/// A value that one thread at a time may touch, and the events that are pending for it.
#[derive(Debug)]
pub(super) struct Claim<T> {
    post_count: AtomicU64,
    events: AtomicU32,
    /// [`VACANT`], [`OCCUPIED`], [`RETIRED`], or [`CHANGING`].
    occupancy: AtomicU32,
    /// `Some` while a `HeldClaim` or a `DeferredClaim` can exist: see `occupancy`.
    value: UnsafeCell<Option<T>>,
}

/// No value; the count is above zero.
const VACANT: u32 = 0;
/// A value that the holder of the claim may touch.
const OCCUPIED: u32 = 1;
/// A value that the last holder has given up; the count stays above zero.
const RETIRED: u32 = 2;
/// A cold thread puts a value in or takes it out.
const CHANGING: u32 = 3;

// SAFETY: the value is reached through `HeldClaim`, and by the one thread that has changed `occupancy` to CHANGING. A
// `HeldClaim` exists for the thread that raised `post_count` from zero, or that resumed a deferred claim, until
// `post_count` is back at zero: never two at a time. CHANGING follows VACANT or RETIRED, in which `post_count` is above
// zero, the only `HeldClaim` was consumed and no deferred claim exists. The value moves between threads that way, hence
// `T: Send`; it is never shared, so it need not be `Sync`.
unsafe impl<T: Send> Sync for Claim<T> {}

impl<T> Claim<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            post_count: AtomicU64::new(0),
            events: AtomicU32::new(0),
            occupancy: AtomicU32::new(OCCUPIED),
            value: UnsafeCell::new(Some(value)),
        }
    }

    /// A claim without a value. Posts to it find it held.
    pub(super) fn vacant() -> Self {
        Self {
            post_count: AtomicU64::new(1),
            events: AtomicU32::new(0),
            occupancy: AtomicU32::new(VACANT),
            value: UnsafeCell::new(None),
        }
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.occupancy.load(Acquire) == VACANT
    }

    /// Puts a value into a vacant claim. Its first turn is that of the thread that resumes the returned claim. Returns the
    /// value if the claim is not vacant. For cold threads.
    pub(super) fn fill(&self, value: T) -> Result<DeferredClaim, T> {
        // Acquire pairs with the Release of the last `take_retired`.
        if self.occupancy.compare_exchange(VACANT, CHANGING, Acquire, Relaxed).is_err() {
            return Err(value);
        }
        // What was posted so far was meant for an earlier value.
        self.events.store(0, Relaxed);
        self.value.with_mut(|place| {
            // SAFETY: this thread has changed the occupancy to CHANGING (see `Sync` above), so no other reference exists.
            unsafe { *place = Some(value) };
        });
        // The thread that resumes the claim sees the value by the queue that hands over the deferred claim.
        self.occupancy.store(OCCUPIED, Release);
        Ok(DeferredClaim { claim: std::ptr::from_ref(self).addr() })
    }

    /// Takes out the value that a holder has [vacated](HeldClaim::vacate); `None` if no holder has yet. For cold threads.
    pub(super) fn take_retired(&self) -> Option<T> {
        // Acquire pairs with the Release in `vacate`: we see the value as its last holder left it.
        self.occupancy.compare_exchange(RETIRED, CHANGING, Acquire, Relaxed).ok()?;
        let value = self.value.with_mut(|place| {
            // SAFETY: as in `fill`.
            unsafe { (*place).take() }
        });
        self.occupancy.store(VACANT, Release);
        value
    }

    /// Posts events. Returns the claim if no thread holds it; otherwise its holder sees the events before it releases.
    pub(super) fn post(&self, events: PendingEvents) -> Option<HeldClaim<'_, T>> {
        // Ordered before the count by the Release in it.
        self.events.fetch_or(events.0, Relaxed);
        // Acquire pairs with the Release of the last `release`: we see the value as its last holder left it.
        let before = self.post_count.fetch_add(1, AcqRel);
        (before == 0).then_some(HeldClaim { claim: self, observed_count: 0 })
    }

    /// Resumes a deferred claim.
    pub(super) fn resume(&self, deferred: DeferredClaim) -> HeldClaim<'_, T> {
        assert_eq!(
            deferred.claim,
            std::ptr::from_ref(self).addr(),
            "a deferred claim is resumed by the claim that issued it"
        );
        HeldClaim { claim: self, observed_count: 0 }
    }

    /// The value, if there is one, after all threads have ended.
    pub(super) fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}

/// The right to process. A `HeldClaim` that is dropped keeps the claim for ever.
#[derive(Debug)]
#[must_use = "a claim that is neither released nor deferred is never free again"]
pub(super) struct HeldClaim<'a, T> {
    claim: &'a Claim<T>,
    /// The count when the events were last taken.
    observed_count: u64,
}

impl<'a, T> HeldClaim<'a, T> {
    /// Takes the pending events. The count is read first, so the events of every counted post are among them.
    pub(super) fn take_events(&mut self) -> PendingEvents {
        // Acquire pairs with the Release of each `post` and of `defer`.
        self.observed_count = self.claim.post_count.load(Acquire);
        PendingEvents(self.claim.events.swap(0, AcqRel))
    }

    /// Gives `f` access to the value.
    pub(super) fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        self.claim.value.with_mut(|value| {
            // SAFETY: `self` is the only `HeldClaim` of this claim (see `Sync` above) and is borrowed for the call, so
            // no other reference to the value exists while `f` runs.
            let value = unsafe { &mut *value };
            // SAFETY: there is a value. A vacant claim has a count above zero and no deferred claim, so neither `post` nor
            // `resume` returned `self` from it, and `vacate` consumes the `HeldClaim` that it ends.
            f(unsafe { value.as_mut().unwrap_unchecked() })
        })
    }

    /// Releases the claim, unless another thread has posted events since [`Self::take_events`]: then the claim is
    /// returned.
    pub(super) fn release(self) -> Result<(), Self> {
        // Release publishes the value to the next holder; Acquire, when the claim comes back, the events posted
        // meanwhile.
        let before = self.claim.post_count.fetch_sub(self.observed_count, AcqRel);
        if before == self.observed_count { Ok(()) } else { Err(Self { claim: self.claim, observed_count: 0 }) }
    }

    /// Gives the value up: a cold thread may [take it out](Claim::take_retired). The claim is not free afterwards.
    pub(super) fn vacate(self) {
        // Release publishes the value to the thread that takes it out.
        self.claim.occupancy.store(RETIRED, Release);
    }

    /// Leaves the remaining work to the thread that resumes the claim. The claim stays taken meanwhile.
    pub(super) fn defer(self, remaining: PendingEvents) -> DeferredClaim {
        self.claim.events.fetch_or(remaining.0, Relaxed);
        // Release publishes the value and the rest to the thread that resumes the claim and reads the count. The count
        // was above zero and stays there.
        self.claim.post_count.fetch_add(1, Release);
        DeferredClaim { claim: std::ptr::from_ref(self.claim).addr() }
    }
}

/// A deferred claim. Only the owner of this value may resume it.
#[derive(Debug)]
#[must_use = "a claim that is deferred and not resumed is never free again"]
pub(super) struct DeferredClaim {
    claim: usize,
}

/// Pending events of a channel: lines that are ready, lines with provided datagrams, a deadline, messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingEvents(u32);

impl PendingEvents {
    pub(super) const NONE: Self = Self(0);
    pub(super) const DEADLINE: Self = Self(1 << 8);
    pub(super) const MESSAGE: Self = Self(1 << 9);
    /// The channel is to be given up. It includes [`Self::MESSAGE`], so that only a channel with messages is checked for
    /// it.
    pub(super) const RETIRE: Self = Self(1 << 10 | Self::MESSAGE.0);

    pub(super) fn ready(lines: LineSet) -> Self {
        Self(u32::from(lines.0))
    }

    pub(super) fn provided(lines: LineSet) -> Self {
        Self(u32::from(lines.0) << PROVIDED_SHIFT)
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn ready_lines(self) -> LineSet {
        let [ready, ..] = self.0.to_le_bytes();
        LineSet(ready)
    }

    pub(super) fn provided_lines(self) -> LineSet {
        let [_, _, provided, _] = self.0.to_le_bytes();
        LineSet(provided)
    }
}

const PROVIDED_SHIFT: u32 = 16;

#[cfg(all(test, feature = "loom"))]
mod models {
    use std::sync::Arc;

    use loom::{sync::Mutex, thread};
    use mdgw_feeds::identity::Line;

    use super::*;
    use crate::dispatch::models::explore;

    /// A channel with two sockets; its value is the number of packets processed and of deadlines acted on.
    struct Harness {
        steps: Steps,
        claim: Claim<Processed>,
        sockets: [AtomicU32; 2],
        run_queue: Mutex<Option<DeferredClaim>>,
    }

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Processed {
        packets: u32,
        deadlines: u32,
    }

    /// The holder's two steps: the real ones, or broken ones that the checker must detect.
    #[derive(Clone, Copy)]
    struct Steps {
        take_events: fn(&mut HeldClaim<'_, Processed>) -> PendingEvents,
        release: for<'a> fn(HeldClaim<'a, Processed>) -> Result<(), HeldClaim<'a, Processed>>,
    }

    const REAL: Steps = Steps { take_events: |held| held.take_events(), release: |held| held.release() };

    impl Harness {
        fn new(steps: Steps) -> Arc<Self> {
            Arc::new(Self {
                steps,
                claim: Claim::new(Processed::default()),
                sockets: [AtomicU32::new(0), AtomicU32::new(0)],
                run_queue: Mutex::new(None),
            })
        }

        /// A packet arrives and its edge reaches a thread, which posts it and, as holder, processes.
        fn packet(&self, line: u8) {
            self.sockets[usize::from(line)].fetch_add(1, Relaxed);
            self.edge(line);
        }

        fn edge(&self, line: u8) {
            if let Some(held) = self.claim.post(PendingEvents::ready(LineSet::default().with(Line(line)))) {
                self.process(held);
            }
        }

        fn process(&self, mut held: HeldClaim<'_, Processed>) {
            loop {
                let events = (self.steps.take_events)(&mut held);
                self.drain(&mut held, events);
                match (self.steps.release)(held) {
                    Ok(()) => return,
                    Err(reclaimed) => held = reclaimed,
                }
            }
        }

        fn drain(&self, held: &mut HeldClaim<'_, Processed>, events: PendingEvents) {
            for (line, socket) in (0..).map(Line).zip(&self.sockets) {
                if events.ready_lines().contains(line) || events.contains(PendingEvents::DEADLINE) {
                    let packets = socket.swap(0, Relaxed);
                    held.with(|processed| processed.packets += packets);
                }
            }
            if events.contains(PendingEvents::DEADLINE) {
                held.with(|processed| processed.deadlines += 1);
            }
        }

        /// Resumes the deferred claim, as a thread does that returns to the pool.
        fn run_deferred(&self) {
            let deferred = self.run_queue.lock().unwrap().take();
            if let Some(deferred) = deferred {
                self.process(self.claim.resume(deferred));
            }
        }

        fn into_processed(self: Arc<Self>) -> Processed {
            let harness = Arc::into_inner(self).expect("all threads are joined");
            for socket in harness.sockets {
                assert_eq!(socket.load(Relaxed), 0, "a packet was left unread");
            }
            harness.claim.into_inner().expect("no model vacates this claim")
        }
    }

    fn no_packet_is_lost(steps: Steps) {
        let harness = Harness::new(steps);
        let threads = [0, 1].map(|line| {
            let harness = harness.clone();
            thread::spawn(move || harness.packet(line))
        });
        harness.packet(0);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(harness.into_processed(), Processed { packets: 3, deadlines: 0 });
    }

    #[test]
    fn claims_are_exclusive_and_lose_no_edge() {
        explore(3, || no_packet_is_lost(REAL));
    }

    #[test]
    #[should_panic(expected = "left unread")]
    fn a_release_that_ignores_new_posts_loses_an_edge() {
        explore(3, || {
            let release = |held: HeldClaim<'_, Processed>| {
                held.claim.post_count.store(0, Release);
                Ok(())
            };
            no_packet_is_lost(Steps { release, ..REAL });
        });
    }

    #[test]
    #[should_panic(expected = "left unread")]
    fn events_taken_before_the_count_lose_an_edge() {
        explore(3, || {
            let take_events = |held: &mut HeldClaim<'_, Processed>| {
                let events = PendingEvents(held.claim.events.swap(0, AcqRel));
                held.observed_count = held.claim.post_count.load(Acquire);
                events
            };
            no_packet_is_lost(Steps { take_events, ..REAL });
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_a_claim_two_threads_access_the_channel() {
        explore(3, || {
            let harness = Harness::new(REAL);
            let other = harness.clone();
            let touch = |harness: &Harness| {
                HeldClaim { claim: &harness.claim, observed_count: 0 }.with(|processed| processed.packets += 1);
            };
            let thread = thread::spawn(move || touch(&other));
            touch(&harness);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_concurrent_deadline_and_packet_are_both_processed() {
        explore(3, || {
            let harness = Harness::new(REAL);
            let other = harness.clone();
            let thread = thread::spawn(move || other.packet(1));
            if let Some(held) = harness.claim.post(PendingEvents::DEADLINE) {
                harness.process(held);
            }
            thread.join().unwrap();
            assert_eq!(harness.into_processed(), Processed { packets: 1, deadlines: 1 });
        });
    }

    /// A holder out of quota defers the events it took; packets arrive meanwhile; any thread resumes the claim.
    #[test]
    fn a_deferred_claim_is_resumed_once_with_all_its_events() {
        explore(3, || {
            let harness = Harness::new(REAL);
            let (holder, poster) = (harness.clone(), harness.clone());
            let holder = thread::spawn(move || {
                holder.sockets[0].fetch_add(1, Relaxed);
                let ready = PendingEvents::ready(LineSet(1));
                if let Some(mut held) = holder.claim.post(ready) {
                    let remaining = held.take_events();
                    held.with(|processed| processed.packets += 10);
                    *holder.run_queue.lock().unwrap() = Some(held.defer(remaining));
                    holder.run_deferred();
                } else {
                    // The other thread holds the claim. Ten packets more, so that the sum is the same either way.
                    holder.sockets[1].fetch_add(10, Relaxed);
                    holder.edge(1);
                }
            });
            let poster = thread::spawn(move || {
                poster.packet(1);
                poster.run_deferred();
            });
            holder.join().unwrap();
            poster.join().unwrap();
            harness.run_deferred();
            assert_eq!(harness.into_processed(), Processed { packets: 12, deadlines: 0 });
        });
    }

    /// A cold thread retires the channel while packets arrive: as the holder itself, or through the present holder.
    #[test]
    fn a_retired_channel_is_given_up_exactly_once() {
        explore(3, || {
            let claim = Arc::new(Claim::new(7_u32));
            let holder = claim.clone();
            let holder = thread::spawn(move || {
                let Some(mut held) = holder.post(PendingEvents::ready(LineSet(1))) else { return };
                loop {
                    if held.take_events().contains(PendingEvents::RETIRE) {
                        return held.vacate();
                    }
                    held.with(|value| *value += 1);
                    match held.release() {
                        Ok(()) => return,
                        Err(reclaimed) => held = reclaimed,
                    }
                }
            });
            if let Some(held) = claim.post(PendingEvents::RETIRE) {
                held.vacate();
            }
            holder.join().unwrap();
            let value = claim.take_retired().expect("some holder has seen the request");
            assert!(value == 7 || value == 8, "{value}");
            assert!(claim.is_vacant() && claim.take_retired().is_none());
            assert!(claim.post(PendingEvents::ready(LineSet(1))).is_none(), "a vacant claim is never free");
        });
    }

    /// A cold thread fills a vacant claim while events for its former value still come.
    #[test]
    fn a_filled_claim_is_first_held_by_the_thread_that_resumes_it() {
        explore(3, || {
            let claim = Arc::new(Claim::<u32>::vacant());
            let queue = Arc::new(Mutex::new(None));
            let (poster, resumer) = (claim.clone(), (claim.clone(), queue.clone()));
            let process = |claim: &Claim<u32>, mut held: HeldClaim<'_, u32>| loop {
                held.take_events();
                held.with(|value| *value += 1);
                match held.release() {
                    Ok(()) => return claim.occupancy.load(Acquire),
                    Err(reclaimed) => held = reclaimed,
                }
            };
            let poster = thread::spawn(move || {
                if let Some(held) = poster.post(PendingEvents::ready(LineSet(1))) {
                    process(&poster, held);
                }
            });
            let resumer = thread::spawn(move || {
                let deferred = resumer.1.lock().unwrap().take();
                if let Some(deferred) = deferred {
                    process(&resumer.0, resumer.0.resume(deferred));
                }
            });
            let deferred = claim.fill(10).expect("vacant");
            *queue.lock().unwrap() = Some(deferred);
            poster.join().unwrap();
            resumer.join().unwrap();
            let left = queue.lock().unwrap().take();
            if let Some(deferred) = left {
                process(&claim, claim.resume(deferred));
            }
            assert!(matches!(claim.fill(3), Err(3)), "occupied");
            let claim = Arc::into_inner(claim).expect("all threads are joined");
            assert!(claim.into_inner().expect("filled") > 10);
        });
    }
}
