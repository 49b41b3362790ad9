//! Stalls of the machine itself: a thread on each core that wants to wake up twice in a millisecond, and writes down when it
//! could not; and what a hypervisor kept of the cores, which can make everything slow without anything being late.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw::sys::clock::{mono_now, unix_now};
use rustix::thread::{CpuSet, sched_setaffinity};

/// A wake-up that came late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// When it came at last, ns since 1970 UTC.
    pub until_ns: u64,
    /// How late, ns.
    pub late_ns: u64,
}

/// Time that a hypervisor did not let a core run, as the kernel counts it: in hundredths of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stolen {
    core: usize,
    /// When it was seen, ns since 1970 UTC.
    seen_ns: u64,
    stolen_ns: u64,
}

/// Threads that watch the cores.
#[derive(Debug)]
pub struct StallWatch {
    stalls: Arc<Mutex<Vec<Stall>>>,
    stolen: Arc<Mutex<Vec<Stolen>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl StallWatch {
    /// One thread for each core, in the ordinary class, as the gateways' pools are.
    ///
    /// # Panics
    /// When the machine does not tell its cores.
    #[must_use]
    pub fn start() -> Self {
        let cores = std::thread::available_parallelism().expect("a machine has cores").get();
        let (stalls, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let stolen = Arc::new(Mutex::new(Vec::new()));
        let watch = |core: usize| {
            let (stalls, stop) = (Arc::clone(&stalls), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(core);
                // Not allowed to choose: then it watches wherever it runs.
                let _pinned = sched_setaffinity(None, &only);
                while !stop.load(Ordering::Relaxed) {
                    let before = mono_now();
                    std::thread::sleep(PERIOD);
                    let late_ns = mono_now().since(before).saturating_sub(PERIOD_NS);
                    if late_ns > LATE_NS_MIN {
                        let stall = Stall { until_ns: unix_now().0, late_ns };
                        stalls.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
                    }
                }
            })
        };
        let threads = (0..cores).map(watch).chain([watch_theft(Arc::clone(&stolen), Arc::clone(&stop))]).collect();
        Self { stalls, stolen, stop, threads }
    }

    /// The longest stall that touches `[from_ns, until_ns)`, ns since 1970 UTC; 0: none.
    #[must_use]
    pub fn worst_ns(&self, from_ns: u64, until_ns: u64) -> u64 {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let touching = |stall: &&Stall| stall.until_ns > from_ns && stall.until_ns - stall.late_ns < until_ns;
        stalls.iter().filter(touching).map(|stall| stall.late_ns).max().unwrap_or(0)
    }
}

impl StallWatch {
    /// What a hypervisor kept of the core that lost most, seen in `[from_ns, until_ns)`, ns since 1970 UTC; 0 where
    /// there is none.
    #[must_use]
    pub fn stolen_ns(&self, from_ns: u64, until_ns: u64) -> u64 {
        let stolen = self.stolen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_core = BTreeMap::new();
        for seen in stolen.iter().filter(|seen| (from_ns..until_ns).contains(&seen.seen_ns)) {
            *of_core.entry(seen.core).or_insert(0) += seen.stolen_ns;
        }
        of_core.into_values().max().unwrap_or(0)
    }
}

/// Reads what the kernel counts.
fn watch_theft(stolen: Arc<Mutex<Vec<Stolen>>>, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut before = stolen_ticks();
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(THEFT_PERIOD);
            let (now, seen_ns) = (stolen_ticks(), unix_now().0);
            let pairs = now.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before));
            let more = pairs.enumerate().filter(|(_, ticks)| *ticks > 0);
            let more = more.map(|(core, ticks)| Stolen { core, seen_ns, stolen_ns: ticks * TICK_NS });
            stolen.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
            before = now;
        }
    })
}

/// Of each core, since the machine began: `steal` of `/proc/stat`, proc_stat(5).
fn stolen_ticks() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cores = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    cores.map(|line| line.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)).collect()
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing to panic about.
            let _ended = thread.join();
        }
    }
}

/// Linux counts in hundredths on every platform that this runs on (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;
const THEFT_PERIOD: Duration = Duration::from_millis(5);
const PERIOD: Duration = Duration::from_nanos(PERIOD_NS);
const PERIOD_NS: u64 = 500_000;
/// What comes later is a stall.
const LATE_NS_MIN: u64 = 1_000_000;
