//! Roles and counters of a pool's threads. Each thread writes its own counters with plain stores, 128 bytes apart from
//! the others'. A reader adds them up.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use mdgw_sys::progress::ProgressCounter;
use mdgw_telemetry::counters::{Descriptor, Kind, Unit};

/// Current activity of a pool thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// The thread has not begun, or has ended.
    Absent = 0,
    /// The thread waits for events and claims them, or (lazy) processes without having promoted. In Leader/Followers it
    /// holds the token; in `half-sync` it is the receiving thread; in `reactor` every thread leads.
    Leader = 1,
    /// Follower or worker, spinning.
    Spinning = 2,
    /// Follower or worker, asleep.
    Parked = 3,
    /// The thread processes channels.
    Processing = 4,
}

/// State of a pool: sums over its threads, read without stopping them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Threads that lead: one, or for a moment none; with a reactor per thread all of them.
    pub leading: usize,
    /// Followers or workers that spin; of followers one at most.
    pub spinning: usize,
    /// Followers or workers that sleep.
    pub parked: usize,
    /// Threads that process.
    pub processing: usize,
    /// Sums of all threads' counters.
    pub counts: Counts,
    /// Thread by thread, in the order of their numbers.
    pub threads: Vec<ThreadActivity>,
}

/// State of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadActivity {
    /// Current activity of the thread.
    pub role: Role,
    /// Time spent in processing, ns, since the pool began.
    pub handler_ns_sum: u64,
}

/// Number of buckets of a distribution; the last bucket holds all larger values.
pub(crate) const BUCKET_COUNT: usize = 24;

macro_rules! pool_counters {
    ($($name:ident: $kind:ident, $unit:ident, $help:literal;)*) => {
        /// Counters of a pool since it began. They only grow.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $(#[doc = $help] pub $name: u64,)*
            /// Turns by the number of events claimed: bucket `n` holds those of `2^(n-1)+1..=2^n` events.
            pub batch_events: [u64; BUCKET_COUNT],
            /// Turns by the time their processing took: bucket `n` holds those of `2^(n-1)+1..=2^n` ns.
            pub handler_ns: [u64; BUCKET_COUNT],
        }

        impl Counts {
            /// Declarations of the counters, distributions apart.
            pub const DESCRIPTORS: &'static [Descriptor] = &[$(Descriptor {
                name: stringify!($name), kind: Kind::$kind, unit: Unit::$unit, help: $help,
            }),*];

            fn add(&mut self, other: &Self) {
                let handler_ns_max = self.handler_ns_max.max(other.handler_ns_max);
                $(self.$name += other.$name;)*
                self.handler_ns_max = handler_ns_max;
                for (sums, others) in
                    [(&mut self.batch_events, &other.batch_events), (&mut self.handler_ns, &other.handler_ns)]
                {
                    sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
                }
            }

            /// The values, in the order of their declarations.
            pub fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),*].into_iter()
            }
        }

        /// The counters of one thread. Written by that thread alone, read by all.
        #[derive(Debug)]
        #[repr(align(128))]
        pub(super) struct ThreadGauges {
            role: AtomicU8,
            progress: Option<ProgressCounter>,
            $(pub(super) $name: Counter,)*
            pub(super) batch_events: Distribution,
            pub(super) handler_ns: Distribution,
        }

        impl ThreadGauges {
            pub(super) fn new(progress: Option<ProgressCounter>) -> Self {
                Self {
                    role: AtomicU8::new(Role::Absent as u8),
                    progress,
                    $($name: Counter::default(),)*
                    batch_events: Distribution::default(),
                    handler_ns: Distribution::default(),
                }
            }

            fn add_to(&self, counts: &mut Counts) {
                $(counts.$name += self.$name.get();)*
                self.batch_events.add_to(&mut counts.batch_events);
                self.handler_ns.add_to(&mut counts.handler_ns);
            }
        }
    };
}

pool_counters! {
    turns: Counter, None, "waits that returned at least one event";
    events: Counter, None, "events that the waits returned";
    claims: Counter, None, "claims that were processed, those resumed from the run queue included";
    packets: Counter, Packets, "packets that the handlers took";
    busy_channel_posts: Counter, None, "events posted to a channel that another thread held";
    quota_hits: Counter, None, "claims that were deferred to the run queue because their quota was used up";
    promotions: Counter, None, "promotions before processing";
    promotions_without_follower: Counter, None, "promotions that found no follower";
    leads_retained: Counter, None, "turns whose work was processed without giving up the lead (`lazy`)";
    late_promotions: Counter, None, "leads given up during processing, because it took longer than expected (`lazy`)";
    saturation_ns: Counter, Nanoseconds, "time without a leader after a promotion that found no follower";
    empty_waits: Counter, None, "blocking waits that returned no event";
    queue_full: Counter, None, "times the receiving thread found a worker's queue full and left the datagrams in the socket (`half-sync`)";
    sleeps: Counter, None, "times a follower, or a worker of `half-sync`, went to sleep";
    spurious_wakes: Counter, None, "followers that were woken and found another thread leading";
    timer_expiries: Counter, None, "timer expiries";
    wakes: Counter, None, "times another thread woke the leader";
    deadlines: Counter, None, "deadlines that were handled";
    orphan_events: Counter, None, "events of channels that are out of service, or do not exist";
    failures: Counter, None, "channels taken out of service";
    handler_ns_max: Gauge, Nanoseconds, "longest processing of one turn";
    handler_ns_sum: Counter, Nanoseconds, "time spent in processing";
}

impl Gauges {
    pub(super) fn of(threads: &[ThreadGauges]) -> Self {
        let mut gauges = Self::default();
        let mut handler_ns_max = 0;
        for thread in threads {
            let role = Role::of(thread.role.load(Relaxed));
            match role {
                Role::Absent => {}
                Role::Leader => gauges.leading += 1,
                Role::Spinning => gauges.spinning += 1,
                Role::Parked => gauges.parked += 1,
                Role::Processing => gauges.processing += 1,
            }
            gauges.threads.push(ThreadActivity { role, handler_ns_sum: thread.handler_ns_sum.get() });
            handler_ns_max = handler_ns_max.max(thread.handler_ns_max.get());
            thread.add_to(&mut gauges.counts);
        }
        gauges.counts.handler_ns_max = handler_ns_max;
        gauges
    }
}

impl Gauges {
    /// Gauges of several pools as of one, whose threads are those of the first pool, then those of the second.
    pub(super) fn sum(pools: impl Iterator<Item = Self>) -> Self {
        let mut sum = Self::default();
        for pool in pools {
            sum.leading += pool.leading;
            sum.spinning += pool.spinning;
            sum.parked += pool.parked;
            sum.processing += pool.processing;
            sum.threads.extend(pool.threads);
            sum.counts.add(&pool.counts);
        }
        sum
    }
}

impl Role {
    /// Name of the role in status output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Leader => "leader",
            Self::Spinning => "spinning",
            Self::Parked => "parked",
            Self::Processing => "processing",
        }
    }

    fn of(number: u8) -> Self {
        let all = [Self::Leader, Self::Spinning, Self::Parked, Self::Processing];
        all.into_iter().find(|role| *role as u8 == number).unwrap_or(Self::Absent)
    }
}

impl ThreadGauges {
    pub(super) fn set_role(&self, role: Role) {
        self.role.store(role as u8, Relaxed);
    }

    /// The thread starts work or has made progress with it: for an observer outside the process.
    pub(super) fn mark_busy(&self) {
        if let Some(progress) = &self.progress {
            progress.mark_busy();
        }
    }

    /// The thread waits for work.
    pub(super) fn mark_idle(&self) {
        if let Some(progress) = &self.progress {
            progress.mark_idle();
        }
    }

    /// A wait returned that many events.
    pub(super) fn record_turn(&self, events: usize) {
        let events = u64::try_from(events).unwrap_or(u64::MAX);
        self.turns.add(1);
        self.events.add(events);
        self.batch_events.record(events);
    }

    /// Counters of this thread alone.
    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.add_to(&mut counts);
        counts
    }

    pub(super) fn record_processing(&self, ns: u64) {
        self.handler_ns.record(ns);
        self.handler_ns_sum.add(ns);
        self.handler_ns_max.record_max(ns);
    }
}

/// A number that one thread writes: no read-modify-write is needed.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    pub(super) fn record_max(&self, value: u64) {
        if value > self.0.load(Relaxed) {
            self.0.store(value, Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts by powers of two.
#[derive(Debug, Default)]
pub(super) struct Distribution([Counter; BUCKET_COUNT]);

impl Distribution {
    pub(super) fn record(&self, value: u64) {
        let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
        let bucket = usize::try_from(bits).unwrap_or(usize::MAX).min(BUCKET_COUNT - 1);
        self.0[bucket].add(1);
    }

    fn add_to(&self, sums: &mut [u64; BUCKET_COUNT]) {
        for (sum, counter) in sums.iter_mut().zip(&self.0) {
            *sum += counter.get();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_puts_powers_of_two_last_in_their_bucket() {
        let distribution = Distribution::default();
        for value in [0, 1, 2, 3, 4, 5, 8, 9, u64::MAX] {
            distribution.record(value);
        }
        let mut sums = [0; BUCKET_COUNT];
        distribution.add_to(&mut sums);
        assert_eq!(sums[..5], [2, 1, 2, 2, 1]);
        assert_eq!(sums[BUCKET_COUNT - 1], 1);
    }

    #[test]
    fn counters_are_summed_over_threads_and_maxima_are_taken() {
        let threads = [ThreadGauges::new(None), ThreadGauges::new(None)];
        threads[0].set_role(Role::Leader);
        threads[1].set_role(Role::Parked);
        threads[0].turns.add(3);
        threads[1].turns.add(4);
        threads[0].record_processing(700);
        threads[1].record_processing(500);
        let gauges = Gauges::of(&threads);
        assert_eq!((gauges.leading, gauges.parked, gauges.processing), (1, 1, 0));
        let threads = gauges.threads.iter().map(|thread| (thread.role.name(), thread.handler_ns_sum));
        assert_eq!(threads.collect::<Vec<_>>(), [("leader", 700), ("parked", 500)]);
        assert_eq!(gauges.counts.turns, 7);
        assert_eq!(gauges.counts.handler_ns_max, 700);
        assert_eq!(gauges.counts.handler_ns_sum, 1_200);
    }
}
