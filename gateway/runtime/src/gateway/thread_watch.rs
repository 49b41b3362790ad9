//! Watches whether the hot threads make progress, for health, election, and the watchdog of a service manager.
//!
//! Each hot thread has a progress counter, which it writes with plain stores. A thread that waits for work is idle, however
//! long it waits. A thread that works and whose count stays the same over several checks has stalled.
//!
//! A pool is never idle for long: each channel with an output has a timer for its heartbeats, be it the leader or not. If no thread of a
//! pool moves for four heartbeats and five checks, something stops the one that waits for packets and timers, and all of the pool's
//! threads count as stalled.

use std::{collections::BTreeSet, fmt, ops::Range, time::Duration};

use mdgw_election::{
    core::Progress,
    sentinel::hang::{CHECKS_UNTIL_HANG, FenceState, HangDetector},
};
use mdgw_feeds::{identity::GroupId, time::MonoNs};
use mdgw_sys::{alarm::Alarm, progress::ProgressCounter};

use super::sentinel_handle::HeldSharedPage;
use crate::config::{Resolved, resolved::ChannelSetup};

/// A hot thread, by its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HotThread {
    /// The election thread of a group.
    Election(GroupId),
    /// A thread of a pool, by its name.
    Pool(String),
}

impl HotThread {
    fn pool_thread(&self) -> Option<&str> {
        match self {
            Self::Election(_) => None,
            Self::Pool(name) => Some(name),
        }
    }

    /// The elections' input while these threads stall. A pool that has stopped or stalled comes first, since it publishes nothing.
    pub(super) fn progress(stalled: &[Self], has_pool_stopped: bool) -> Progress {
        if has_pool_stopped || stalled.iter().any(|thread| thread.pool_thread().is_some()) {
            Progress::PoolStuck
        } else if stalled.is_empty() {
            Progress::Running
        } else {
            Progress::ElectionStuck
        }
    }

    /// The names of those that are threads of pools.
    pub(super) fn pool_threads(threads: &[Self]) -> Vec<String> {
        threads.iter().filter_map(Self::pool_thread).map(str::to_owned).collect()
    }
}

impl fmt::Display for HotThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Election(group) => write!(f, "election of group {}", group.0),
            Self::Pool(name) => write!(f, "pool thread {name}"),
        }
    }
}

/// All hot threads of the configured gateway: the election threads first, then the threads of the pools.
pub(super) fn hot_threads(config: &Resolved) -> Vec<HotThread> {
    let groups: BTreeSet<GroupId> = config.channels.iter().map(|channel| channel.group).collect();
    let groups = groups.into_iter().filter(|_| config.election.is_some()).map(HotThread::Election);
    let of_pools = config
        .pools
        .iter()
        .flat_map(|pool| (0..pool.threads.count()).map(|thread| HotThread::Pool(pool.thread_name(thread))));
    groups.chain(of_pools).collect()
}

/// The progress counters of all hot threads, in the order of [`hot_threads`].
#[derive(Debug)]
pub(super) struct ProgressCounters {
    counters: Vec<ProgressCounter>,
    election_count: usize,
}

impl ProgressCounters {
    /// Counters in the page that the sentinel watches; without one, counters of this process.
    pub(super) fn new(config: &Resolved, shared_page: Option<&HeldSharedPage>) -> Self {
        let threads = hot_threads(config);
        let mut counters = shared_page.map(HeldSharedPage::progress_counters).unwrap_or_default();
        if counters.is_empty() {
            counters = threads.iter().map(|_| ProgressCounter::private()).collect();
        }
        let is_election = |thread: &&HotThread| matches!(thread, HotThread::Election(_));
        Self { counters, election_count: threads.iter().filter(is_election).count() }
    }

    /// Counter of the election thread of the group with that index.
    pub(super) fn of_election(&self, index: usize) -> Option<ProgressCounter> {
        self.counters.get(index).copied().filter(|_| index < self.election_count)
    }

    /// Counters of the threads of the pool with that number.
    pub(super) fn of_pool(&self, config: &Resolved, number: usize) -> &[ProgressCounter] {
        let counts = || config.pools.iter().map(|pool| pool.threads.count());
        let first = self.election_count + counts().take(number).sum::<usize>();
        let count = counts().nth(number).unwrap_or(0);
        self.counters.get(first..first + count).unwrap_or_default()
    }
}

/// Checks the progress of all hot threads at regular intervals.
#[derive(Debug)]
pub(super) struct ThreadWatch {
    threads: Vec<WatchedThread>,
    pools: Vec<WatchedPool>,
    interval_ns: u64,
    next_at: MonoNs,
}

#[derive(Debug)]
struct WatchedThread {
    thread: HotThread,
    counter: ProgressCounter,
    detector: HangDetector,
    has_stalled: bool,
}

/// The threads of a pool together.
#[derive(Debug)]
struct WatchedPool {
    name: String,
    threads: Range<usize>,
    /// Checks without any progress after which the pool has stalled; `None`: no channel has a timer.
    unchanged_max: Option<u32>,
    progress: u64,
    unchanged: u32,
}

impl ThreadWatch {
    /// Watches all threads that have a counter. A thread has stalled when it works without progress for `limit`.
    pub(super) fn new(config: &Resolved, progress: &ProgressCounters, limit: Duration) -> Self {
        let threads = hot_threads(config).into_iter().zip(progress.counters.iter().copied());
        let mut watch = Self::of(threads.collect(), limit);
        let mut next = progress.election_count;
        for pool in &config.pools {
            let threads = next..next + pool.threads.count();
            next = threads.end;
            let name = pool.name.clone();
            watch.pools.push(WatchedPool { name, threads, unchanged_max: None, progress: 0, unchanged: 0 });
        }
        watch.set_heartbeats(config);
        watch
    }

    /// Takes the channels of the pools, and the heartbeats of their outputs, from this configuration.
    pub(super) fn set_heartbeats(&mut self, config: &Resolved) {
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let of_pool = config.channels.iter().filter(|channel| channel.pool == index);
            let output =
                |channel: &ChannelSetup| config.outputs.iter().find(|output| output.groups.contains(&channel.group));
            let heartbeat_ns = of_pool.filter_map(output).map(|output| output.heartbeat_ns).max();
            pool.unchanged_max = heartbeat_ns.map(|heartbeat_ns| {
                let checks = heartbeat_ns.saturating_mul(HEARTBEATS_MISSED_MAX).div_ceil(self.interval_ns.max(1));
                u32::try_from(checks).unwrap_or(u32::MAX).max(CHECKS_UNTIL_HANG)
            });
        }
    }

    fn of(threads: Vec<(HotThread, ProgressCounter)>, limit: Duration) -> Self {
        let watched = threads.into_iter().map(|(thread, counter)| WatchedThread {
            thread,
            counter,
            detector: HangDetector::default(),
            has_stalled: false,
        });
        let interval_ns = u64::try_from(HangDetector::interval(limit).as_nanos()).unwrap_or(u64::MAX);
        Self { threads: watched.collect(), pools: Vec::new(), interval_ns, next_at: MonoNs(0) }
    }

    /// Checks the threads if a check is due, and logs which of them stall or work again. Returns those that neither make
    /// progress nor wait for work. A pool of which all channels have failed, as `has_failed` says by its name, may have no timer.
    pub(super) fn check(&mut self, has_failed: impl Fn(&str) -> bool, now: MonoNs) -> Vec<HotThread> {
        if now >= self.next_at {
            self.next_at = now.plus(self.interval_ns);
            let mut has_stopped = vec![false; self.threads.len()];
            for pool in &mut self.pools {
                let threads = self.threads.get(pool.threads.clone()).unwrap_or_default();
                let progress = threads.iter().map(|watched| watched.counter.count()).fold(0, u64::wrapping_add);
                if pool.has_stopped(progress) && !has_failed(&pool.name) {
                    has_stopped.get_mut(pool.threads.clone()).unwrap_or_default().fill(true);
                }
            }
            let threads = self.threads.iter_mut().zip(has_stopped);
            let changed: Vec<bool> = threads.map(|(watched, has_stopped)| watched.check(has_stopped)).collect();
            self.changes(&changed).iter().for_each(Change::log);
        }
        self.threads.iter().filter(|watched| watched.has_stalled).map(|watched| watched.thread.clone()).collect()
    }

    /// What to log of the threads that have changed. Those of a pool are one entry, since a pool stops as a whole.
    fn changes(&self, changed: &[bool]) -> Vec<Change> {
        let of = |threads: Range<usize>| {
            let of_range = self.threads.iter().zip(changed).take(threads.end).skip(threads.start);
            of_range.map(|(watched, is_changed)| (watched, *is_changed))
        };
        let elections = of(0..self.threads.len()).filter(|(_, is_changed)| *is_changed);
        let mut changes: Vec<_> = elections
            .filter_map(|(watched, _)| match watched.thread {
                HotThread::Election(group) => Some(Change::Election { group, has_stalled: watched.has_stalled }),
                HotThread::Pool(_) => None,
            })
            .collect();
        for pool in &self.pools {
            let threads = || of(pool.threads.clone());
            let names = |has_stalled| {
                let names = threads().filter(|(watched, is_changed)| *is_changed && watched.has_stalled == has_stalled);
                names.filter_map(|(watched, _)| watched.thread.pool_thread()).collect::<Vec<_>>().join(", ")
            };
            // While another thread of the pool is stalled, the alarm goes on.
            let is_over = threads().all(|(watched, _)| !watched.has_stalled);
            for has_stalled in [true, false].into_iter().filter(|has_stalled| *has_stalled || is_over) {
                let threads = names(has_stalled);
                if !threads.is_empty() {
                    changes.push(Change::Pool { pool: pool.name.clone(), threads, has_stalled });
                }
            }
        }
        changes
    }
}

/// Something to log.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Election {
        group: GroupId,
        has_stalled: bool,
    },
    Pool {
        pool: String,
        /// Names of the threads that have changed.
        threads: String,
        /// If not, no thread of the pool is stalled any more.
        has_stalled: bool,
    },
}

impl Change {
    fn log(&self) {
        match self {
            Self::Election { group, has_stalled: true } => tracing::error!(
                alarm = Alarm::ElectionThreadStall.name(),
                group = group.0,
                "the election thread makes no progress: this gateway does not lead, and feeds no watchdog"
            ),
            Self::Election { group, has_stalled: false } => tracing::info!(
                ends = Alarm::ElectionThreadStall.name(),
                group = group.0,
                "the election thread makes progress again"
            ),
            Self::Pool { pool, threads, has_stalled: true } => tracing::error!(
                alarm = Alarm::PoolThreadStall.name(),
                pool,
                thread = threads,
                "a thread of a pool makes no progress: this gateway gives up leadership, and feeds no watchdog"
            ),
            Self::Pool { pool, threads, has_stalled: false } => tracing::info!(
                ends = Alarm::PoolThreadStall.name(),
                pool,
                thread = threads,
                "a thread of a pool makes progress again"
            ),
        }
    }
}

impl WatchedPool {
    /// Takes the sum of the threads' counts. Returns whether it has stayed the same for too long.
    fn has_stopped(&mut self, progress: u64) -> bool {
        self.unchanged = if progress == self.progress { self.unchanged.saturating_add(1) } else { 0 };
        self.progress = progress;
        self.unchanged_max.is_some_and(|max| self.unchanged >= max)
    }
}

impl WatchedThread {
    /// Returns whether the thread has stalled now, or works again.
    fn check(&mut self, has_pool_stopped: bool) -> bool {
        // As if the fence were open: a standby with a stalled thread could not take over.
        let has_stalled = self.detector.check(FenceState::Open, [self.counter.count()]).is_some() || has_pool_stopped;
        std::mem::replace(&mut self.has_stalled, has_stalled) != has_stalled
    }
}

/// Heartbeats after which a pool without any progress has stalled.
const HEARTBEATS_MISSED_MAX: u64 = 4;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const INTERVAL_NS: u64 = 1_000_000_000;

    fn watched() -> (ThreadWatch, [ProgressCounter; 2]) {
        let counters = [(); 2].map(|()| ProgressCounter::private());
        let threads = [HotThread::Election(GroupId(1)), HotThread::Pool("main-0".to_owned())];
        (ThreadWatch::of(threads.into_iter().zip(counters).collect(), LIMIT), counters)
    }

    #[test]
    fn a_thread_that_works_without_progress_stalls_and_the_next_progress_ends_the_stall() {
        let (mut watch, [election, pool]) = watched();
        pool.mark_busy();
        // The first check only takes the counts.
        for second in 0..=u64::from(CHECKS_UNTIL_HANG) {
            election.mark_busy();
            let is_stalled = second == u64::from(CHECKS_UNTIL_HANG);
            let expected = if is_stalled { vec![HotThread::Pool("main-0".to_owned())] } else { Vec::new() };
            assert_eq!(watch.check(|_| false, MonoNs(second * INTERVAL_NS)), expected, "{second}");
        }
        election.mark_busy();
        pool.mark_idle();
        assert_eq!(watch.check(|_| false, MonoNs(100 * INTERVAL_NS)), []);
    }

    #[test]
    fn elections_learn_which_threads_are_stuck() {
        let election = HotThread::Election(GroupId(1));
        let pool = HotThread::Pool("main-0".to_owned());
        assert_eq!(HotThread::progress(&[], false), Progress::Running);
        assert_eq!(HotThread::progress(&[], true), Progress::PoolStuck);
        assert_eq!(HotThread::progress(std::slice::from_ref(&election), false), Progress::ElectionStuck);
        assert_eq!(HotThread::progress(&[election, pool], false), Progress::PoolStuck);
    }

    #[test]
    fn threads_that_wait_for_work_never_stall() {
        let (mut watch, [election, pool]) = watched();
        pool.mark_busy();
        pool.mark_idle();
        for second in 0..1_000 {
            election.mark_busy();
            assert_eq!(watch.check(|_| false, MonoNs(second * INTERVAL_NS)), [], "{second}");
        }
    }

    /// A debugger stops a thread while it waits for packets, for instance: the thread counts as idle, and misses the timers.
    #[test]
    fn a_pool_that_misses_the_heartbeats_of_its_channels_stalls() {
        let (mut watch, [_, pool]) = watched();
        let text = include_str!("../../../../ops/config/mdgw.toml");
        let mut config = Resolved::from_text(Path::new("mdgw.toml"), text).unwrap();
        config.channels.truncate(1);
        watch.pools = vec![WatchedPool {
            name: "main".to_owned(),
            threads: 1..2,
            unchanged_max: None,
            progress: 0,
            unchanged: 0,
        }];
        config.channels[0].pool = 0;
        config.outputs[0].heartbeat_ns = 2 * INTERVAL_NS;
        watch.set_heartbeats(&config);
        let mut stalled = |seconds: Range<u64>| {
            seconds.map(|second| watch.check(|_| false, MonoNs(second * INTERVAL_NS)).len()).collect::<Vec<_>>()
        };
        pool.mark_busy();
        pool.mark_idle();
        // The first check takes the count; then four heartbeats of two seconds.
        assert_eq!(stalled(0..10), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        pool.mark_busy();
        pool.mark_idle();
        assert_eq!(stalled(10..12), [0, 0]);
        // All of its channels have failed.
        assert_eq!(
            (12..30).map(|second| watch.check(|pool| pool == "main", MonoNs(second * INTERVAL_NS)).len()).max(),
            Some(0)
        );
        // A reload has removed the last channel.
        config.channels.clear();
        watch.set_heartbeats(&config);
        assert_eq!((30..60).map(|second| watch.check(|_| false, MonoNs(second * INTERVAL_NS)).len()).max(), Some(0));
    }

    #[test]
    fn a_pool_that_stops_and_works_again_is_one_line_each() {
        let counters = [(); 4].map(|()| ProgressCounter::private());
        let pool_thread = |number| HotThread::Pool(format!("main-{number}"));
        let threads = [HotThread::Election(GroupId(1)), pool_thread(0), pool_thread(1), pool_thread(2)];
        let mut watch = ThreadWatch::of(threads.into_iter().zip(counters).collect(), LIMIT);
        let pool =
            WatchedPool { name: "main".to_owned(), threads: 1..4, unchanged_max: None, progress: 0, unchanged: 0 };
        watch.pools = vec![pool];
        let mut check = |stalled: [bool; 4]| {
            let changed: Vec<bool> =
                watch.threads.iter_mut().zip(stalled).map(|(watched, stalled)| watched.check(stalled)).collect();
            watch.changes(&changed)
        };
        let election = |has_stalled| Change::Election { group: GroupId(1), has_stalled };
        let main = |threads: &str, has_stalled| Change::Pool {
            pool: "main".to_owned(),
            threads: threads.to_owned(),
            has_stalled,
        };
        assert_eq!(check([false; 4]), []);
        assert_eq!(check([false, false, true, false]), [main("main-1", true)]);
        assert_eq!(check([true; 4]), [election(true), main("main-0, main-2", true)]);
        assert_eq!(check([true; 4]), []);
        assert_eq!(check([true, true, false, false]), [], "one is stalled");
        assert_eq!(check([true, false, false, false]), [main("main-0", false)]);
    }

    #[test]
    fn a_pause_of_the_whole_process_is_one_check() {
        let (mut watch, [election, pool]) = watched();
        pool.mark_busy();
        election.mark_busy();
        for turn in 0..4 {
            assert_eq!(watch.check(|_| false, MonoNs(turn * 3_600 * INTERVAL_NS)), []);
        }
        // Between two checks nothing is counted.
        for _ in 0..100 {
            assert_eq!(watch.check(|_| false, MonoNs(3 * 3_600 * INTERVAL_NS + 1)), []);
        }
    }
}
