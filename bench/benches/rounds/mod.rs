//! Short measurements that are repeated in many rounds.

use std::{hint::black_box, time::Instant};

/// Mean time of one call of `work`, ns, over `count` calls.
pub(crate) fn ns_each(count: u32, work: impl Fn() -> u64) -> f64 {
    let started = Instant::now();
    for _ in 0..count {
        black_box(work());
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

/// Median, first and third quartile of the rounds, with that many decimals.
pub(crate) fn spread(rounds: &mut [f64], decimals: usize) -> String {
    rounds.sort_by(f64::total_cmp);
    let at = |quarter: usize| rounds[(rounds.len() - 1) * quarter / 4];
    format!("{:.decimals$} ({:.decimals$}, {:.decimals$})", at(2), at(1), at(3))
}
