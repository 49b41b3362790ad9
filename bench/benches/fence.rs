//! What does the fence check add to a send that reads the clock in any case? Times the clock alone, and the clock with
//! the check, alternating in every round; also the check on a given time. Reports medians of all rounds.
//!
//! `cargo bench -p mdgw-bench --bench fence`
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

mod rounds;

use std::hint::black_box;

use mdgw_feeds::{identity::Epoch, time::MonoNs};
use mdgw_sys::{clock::mono_now, fence::Fence};

use self::rounds::{ns_each, spread};

const ROUNDS: usize = 401;
/// Checks per round: few, so that most rounds end before the scheduler preempts the thread.
const CHECKS: u32 = 20_000;

fn main() {
    let fence = Fence::closed();
    fence.open(Epoch::new(1, 1), MonoNs(u64::MAX));
    let fence = black_box(&fence);
    let clock = || ns_each(CHECKS, || mono_now().0);
    let fenced = || ns_each(CHECKS, || fence.epoch_if_open(mono_now()).map_or(0, |epoch| epoch.0));
    let check = || ns_each(CHECKS, || fence.epoch_if_open(black_box(MonoNs(1))).map_or(0, |epoch| epoch.0));
    // Warm-up: code and data are in the caches before the first round.
    let _ = (clock(), fenced(), check());

    let [mut clock_times, mut fenced_times, mut added_times, mut check_times] = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        // The second measurement finds warm caches, so the order alternates.
        let (clock_ns, fenced_ns) = if round % 2 == 0 {
            let clock_ns = clock();
            (clock_ns, fenced())
        } else {
            let fenced_ns = fenced();
            (clock(), fenced_ns)
        };
        clock_times.push(clock_ns);
        fenced_times.push(fenced_ns);
        added_times.push(fenced_ns - clock_ns);
        check_times.push(check());
    }
    println!("ns, median (first quartile, third quartile) of {ROUNDS} interleaved rounds of {CHECKS}");
    println!("clock read             {}", spread(&mut clock_times, 2));
    println!("clock read and fence   {}", spread(&mut fenced_times, 2));
    println!("added by the fence     {}", spread(&mut added_times, 2));
    println!("fence at a given time  {}", spread(&mut check_times, 2));
}
