//! Times in which the machine was slow although no wake-up was late: the steal time of each core, and the duration of a
//! small, constant piece of work (a probe).
//!
//! On a virtual machine a thread can get its core in time and still take ten to fifty times as long as usual, for example
//! while the hypervisor maps its memory anew. Wake-up times do not show that.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_sys::{
    clock::{mono_now, unix_now},
    scheduler::set_fifo,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Slowness of the machine in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slowness {
    /// Steal time of the core that lost most, ns. The kernel counts it in hundredths of a second.
    pub steal_ns: u64,
    /// How many probes ran, on all cores.
    pub probes: usize,
    /// How many of them took more than ten times the median of the whole run.
    pub slow_probes: usize,
    /// The longest probe, ns.
    pub worst_ns: u64,
}

/// Threads that measure slowness.
#[derive(Debug)]
pub struct SlownessMonitor {
    samples: Arc<SlownessSamples>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SlownessSamples {
    stolen: Mutex<Vec<StealSample>>,
    /// Start of each probe, ns since 1970 UTC, and its duration, ns.
    probes: Mutex<Vec<(u64, u32)>>,
}

#[derive(Clone, Copy, Debug)]
struct StealSample {
    core: usize,
    sampled_ns: u64,
    steal_ns: u64,
}

impl SlownessMonitor {
    /// Starts one probe thread for each core, under SCHED_FIFO where that is permitted, and one thread that reads steal time.
    #[must_use]
    pub fn start(cores: usize) -> Self {
        let (samples, stop) = (Arc::new(SlownessSamples::default()), Arc::new(AtomicBool::new(false)));
        let of_core = |core| {
            let (samples, stop) = (Arc::clone(&samples), Arc::clone(&stop));
            std::thread::spawn(move || probe(core, &samples, &stop))
        };
        let mut threads: Vec<_> = (0..cores).map(of_core).collect();
        threads.push({
            let (samples, stop) = (Arc::clone(&samples), Arc::clone(&stop));
            std::thread::spawn(move || sample_steal(&samples, &stop))
        });
        Self { samples, stop, threads }
    }

    /// Slowness in the interval `[from_ns, until_ns)`, ns since 1970 UTC.
    #[must_use]
    pub fn during(&self, from_ns: u64, until_ns: u64) -> Slowness {
        let time = from_ns..until_ns;
        let mut of_core = BTreeMap::new();
        for stolen in lock(&self.samples.stolen).iter().filter(|stolen| time.contains(&stolen.sampled_ns)) {
            *of_core.entry(stolen.core).or_insert(0) += stolen.steal_ns;
        }
        let probes = lock(&self.samples.probes);
        let mut all: Vec<u32> = probes.iter().map(|(_, took_ns)| *took_ns).collect();
        let median_index = all.len() / 2;
        let median_ns = if all.is_empty() { 0 } else { *all.select_nth_unstable(median_index).1 };
        let during = probes.iter().filter(|(started_ns, _)| time.contains(started_ns)).map(|(_, took_ns)| *took_ns);
        Slowness {
            steal_ns: of_core.into_values().max().unwrap_or(0),
            probes: during.clone().count(),
            slow_probes: during.clone().filter(|took_ns| *took_ns > median_ns.saturating_mul(10)).count(),
            worst_ns: during.max().unwrap_or(0).into(),
        }
    }
}

impl Drop for SlownessMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread does not panic.
            let _ended = thread.join();
        }
    }
}

/// Runs the probe periodically: writes to each of [`PAGES`] pages, and one byte through a pipe.
fn probe(core: usize, samples: &SlownessSamples, stop: &AtomicBool) {
    let mut cpu_set = CpuSet::new();
    cpu_set.set(core);
    // Without these permissions a probe also waits for other threads, and its duration is less meaningful.
    let _pinned = sched_setaffinity(None, &cpu_set);
    let _realtime = set_fifo(1);
    let mut pages = vec![0_u8; PAGES * PAGE_BYTES];
    let Ok((mut from, mut to)) = std::io::pipe() else { return };
    let mut byte = [0];
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PROBE_PERIOD);
        let (started_ns, begun) = (unix_now().0, mono_now());
        pages.iter_mut().step_by(PAGE_BYTES).for_each(|first| *first = first.wrapping_add(1));
        let pipe_result = to.write_all(&byte).and_then(|()| from.read_exact(&mut byte));
        std::hint::black_box(&pages);
        if pipe_result.is_err() {
            return;
        }
        let took_ns = u32::try_from(mono_now().since(begun)).unwrap_or(u32::MAX);
        lock(&samples.probes).push((started_ns, took_ns));
    }
}

fn sample_steal(samples: &SlownessSamples, stop: &AtomicBool) {
    let mut before = stolen_ticks();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(STEAL_PERIOD);
        let (now, sampled_ns) = (stolen_ticks(), unix_now().0);
        let increases = now.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before)).enumerate();
        let increases = increases.filter(|(_, ticks)| *ticks > 0);
        let increases = increases.map(|(core, ticks)| StealSample { core, sampled_ns, steal_ns: ticks * TICK_NS });
        lock(&samples.stolen).extend(increases);
        before = now;
    }
}

/// Steal time of each core since boot, in ticks: `steal` of `/proc/stat`, proc_stat(5).
fn stolen_ticks() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cores = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    cores.map(|line| line.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)).collect()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One tick of `/proc/stat`, ns: `USER_HZ` is 100 on every platform that this runs on.
const TICK_NS: u64 = 10_000_000;
const STEAL_PERIOD: Duration = Duration::from_millis(5);
const PROBE_PERIOD: Duration = Duration::from_millis(2);
const PAGES: usize = 64;
const PAGE_BYTES: usize = 4_096;
