//! Scheduling stalls of the machine: one thread on each core sleeps for half a millisecond at a time and records each late
//! wake-up.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_sys::clock::{mono_now, unix_now};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::slowness::{Slowness, SlownessMonitor};

/// A wake-up that came late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// When the thread woke up, ns since 1970 UTC.
    pub until_ns: u64,
    /// How much later than due, ns.
    pub late_ns: u64,
}

/// Threads that watch the cores.
#[derive(Debug)]
pub struct StallMonitor {
    stalls: Arc<Mutex<Vec<Stall>>>,
    slow: SlownessMonitor,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl StallMonitor {
    /// Starts one thread for each core, in the ordinary scheduling class like the gateways' pool threads.
    ///
    /// # Panics
    /// When the number of cores is unknown.
    #[must_use]
    pub fn start() -> Self {
        let cores = std::thread::available_parallelism().expect("a machine has cores").get();
        let (stalls, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let watch = |core: usize| {
            let (stalls, stop) = (Arc::clone(&stalls), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut cpu_set = CpuSet::new();
                cpu_set.set(core);
                // Without the permission to pin itself the thread watches whichever core it runs on.
                let _pinned = sched_setaffinity(None, &cpu_set);
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
        Self { threads: (0..cores).map(watch).collect(), slow: SlownessMonitor::start(cores), stalls, stop }
    }

    /// How slow the machine was in `[from_ns, until_ns)`, ns since 1970 UTC, apart from late wake-ups.
    #[must_use]
    pub fn slowness(&self, from_ns: u64, until_ns: u64) -> Slowness {
        self.slow.during(from_ns, until_ns)
    }

    /// The longest stall that touches `[from_ns, until_ns)`, ns since 1970 UTC; 0: none.
    #[must_use]
    pub fn worst_ns(&self, from_ns: u64, until_ns: u64) -> u64 {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let touching = |stall: &&Stall| stall.until_ns > from_ns && stall.until_ns - stall.late_ns < until_ns;
        stalls.iter().filter(touching).map(|stall| stall.late_ns).max().unwrap_or(0)
    }
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread does not panic.
            let _ended = thread.join();
        }
    }
}

const PERIOD: Duration = Duration::from_nanos(PERIOD_NS);
const PERIOD_NS: u64 = 500_000;
/// A wake-up later than this counts as a stall, ns.
const LATE_NS_MIN: u64 = 1_000_000;
