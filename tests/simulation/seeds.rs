//! Runs many seeds, and reports the failed ones.

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use mdgw_tests::captures::print_to_stderr;

/// Runs `count` seeds on all cores, or as many as `SEEDS` says, or the one that `SEED` names, and returns the results in order.
///
/// # Panics
/// Where a seed fails: with the lowest one found, which `SEED` repeats.
pub(crate) fn for_seeds<T: Send>(what: &str, count: u64, check: impl Fn(u64) -> Result<T, String> + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    run(what, count, cores, check)
}

/// As [`for_seeds`], on one core: for simulations that map files. Threads of one process wait for each other's mappings: two of them
/// take longer than one, and twice the work of the cores.
///
/// # Panics
/// As [`for_seeds`].
pub(crate) fn for_seeds_on_one_core<T: Send>(
    what: &str,
    count: u64,
    check: impl Fn(u64) -> Result<T, String> + Sync,
) -> Vec<T> {
    run(what, count, 1, check)
}

fn run<T: Send>(what: &str, count: u64, threads: usize, check: impl Fn(u64) -> Result<T, String> + Sync) -> Vec<T> {
    let env_number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (first, end) = match env_number("SEED") {
        Some(seed) => (seed, seed + 1),
        None => (0, env_number("SEEDS").unwrap_or(count)),
    };
    let started = Instant::now();
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !failed.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end {
                        break;
                    }
                    let result = panic::catch_unwind(AssertUnwindSafe(|| check(seed)))
                        .unwrap_or_else(|_| Err("a panic, printed above".to_owned()));
                    failed.fetch_or(result.is_err(), Relaxed);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((seed, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(seed, _)| *seed);
    print_to_stderr(&format!(
        "{what}: {} seeds on {threads} cores in {:.1} s",
        results.len(),
        started.elapsed().as_secs_f64()
    ));
    let outcomes = results.into_iter().map(|(seed, result)| result.map_err(|what| format!("SEED={seed}: {what}")));
    outcomes.collect::<Result<_, _>>().unwrap_or_else(|what| panic!("{what}"))
}
