//! The highest rate without loss: up in steps until a run loses something, then halving the interval.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{
    Inputs, WireOptions,
    case::{Case, Setting},
    drive::Rig,
    heading,
    outcome::Outcome,
    subject::Subject,
};
use crate::report::Spread;

/// Highest rate of each subject in each round, and its ratio to the bare loop's.
pub(super) fn run(options: &WireOptions, rig: &Rig, subjects: &[Subject], cases: &[Case]) -> Result<()> {
    let seconds = options.seconds.unwrap_or(SEARCH_SECONDS);
    let mut inputs = Inputs::new(options);
    if !options.json {
        println!("highest rate without loss; {}", heading(options, rig, cases, seconds)?);
    }
    let mut results = Vec::new();
    for case in cases {
        let mut rounds: Vec<Vec<Highest>> = vec![Vec::new(); subjects.len()];
        for _ in 0..options.rounds {
            for (subject, highest) in subjects.iter().zip(&mut rounds) {
                highest.push(highest_rate(case.packets_per_s, |packets_per_s| {
                    let case = Case { packets_per_s, ..*case };
                    let outcome = rig.run(subject, &case, inputs.of(&case), seconds);
                    Ok(probe(&outcome.with_context(|| format!("{} at {case}", subject.name))?, packets_per_s))
                })?);
            }
        }
        if !options.json {
            println!("\n{}", Setting(case));
        }
        let mut of_subjects = serde_json::Map::new();
        for (subject, highest) in subjects.iter().zip(&rounds) {
            let rate = Spread::of(highest.iter().map(|highest| highest.packets_per_s as f64).collect());
            let pairs = highest.iter().zip(&rounds[0]);
            let ratio = Spread::of(
                pairs.map(|(highest, bare)| highest.packets_per_s as f64 / bare.packets_per_s as f64).collect(),
            );
            let limited = highest.iter().filter(|highest| highest.is_limited_by_bench).count();
            if !options.json {
                let remark =
                    if limited > 0 { format!("  limited by this bench in {limited} rounds") } else { String::new() };
                println!(
                    "  {:<16}{:>10.0}/s ({:.0} to {:.0})  ratio to bare {:.2} ({:.2} to {:.2}){remark}",
                    subject.name, rate.median, rate.min, rate.max, ratio.median, ratio.min, ratio.max
                );
            }
            let value = json!({
                "packets_per_s": rate.to_json(), "ratio_to_bare": ratio.to_json(), "rounds_limited_by_bench": limited,
            });
            of_subjects.insert(subject.name.clone(), value);
        }
        results.push(json!({ "case": Setting(case).to_string(), "subjects": of_subjects }));
    }
    if options.json {
        let machine = heading(options, rig, &[], seconds)?;
        println!(
            "{}",
            json!({ "scenario": "wire-search", "setup": machine, "rounds": options.rounds, "cases": results })
        );
    }
    Ok(())
}

fn probe(outcome: &Outcome, packets_per_s: u64) -> Probe {
    if outcome.receiver_dropped > 0 {
        Probe::BenchTooSlow
    } else if !outcome.is_complete() {
        Probe::Lost
    } else if outcome.is_rate_reached(packets_per_s) {
        Probe::Sustained
    } else {
        Probe::BenchTooSlow
    }
}

/// What one run at a rate showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Sustained,
    Lost,
    /// The bench did not reach the rate: it sent more slowly, or its receiver dropped packets.
    BenchTooSlow,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Highest {
    /// Highest rate at which nothing was lost; 0 if something was lost at the lowest rate.
    pub(super) packets_per_s: u64,
    /// The search ended because the bench is no faster, so the true rate may be higher.
    pub(super) is_limited_by_bench: bool,
}

/// Searches from `lowest` on, until the interval is at most 5 % wide. `probe` runs at a rate.
pub(super) fn highest_rate(lowest: u64, mut probe: impl FnMut(u64) -> Result<Probe>) -> Result<Highest> {
    let (mut sustained, mut refused) = (0, None);
    let mut is_limited_by_bench = false;
    let mut rate = lowest.max(1);
    loop {
        match probe(rate)? {
            Probe::Sustained => sustained = rate,
            Probe::Lost => {
                refused = Some(rate);
                is_limited_by_bench = false;
            }
            Probe::BenchTooSlow => {
                refused = Some(rate);
                is_limited_by_bench = true;
            }
        }
        rate = match refused {
            None => rate.saturating_mul(STEP_PERCENT) / 100,
            Some(_) if sustained == 0 => break,
            Some(refused) if refused * 100 <= sustained * WIDTH_PERCENT => break,
            Some(refused) => u64::midpoint(sustained, refused),
        };
    }
    Ok(Highest { packets_per_s: sustained, is_limited_by_bench })
}

const SEARCH_SECONDS: f64 = 10.0;
const STEP_PERCENT: u64 = 150;
/// Of the interval's end to its beginning.
const WIDTH_PERCENT: u64 = 105;

#[cfg(test)]
mod tests {
    use super::*;

    fn search(capacity: u64, sender: u64) -> (Highest, Vec<u64>) {
        let mut probes = Vec::new();
        let highest = highest_rate(50_000, |rate| {
            probes.push(rate);
            Ok(if rate > sender {
                Probe::BenchTooSlow
            } else if rate > capacity {
                Probe::Lost
            } else {
                Probe::Sustained
            })
        });
        (highest.unwrap(), probes)
    }

    #[test]
    fn the_highest_rate_is_found_within_five_percent() {
        for capacity in [50_000, 63_211, 100_000, 777_777] {
            let (highest, probes) = search(capacity, u64::MAX);
            let found = highest.packets_per_s;
            assert!(found <= capacity && found * 105 >= capacity * 100, "{found} of {capacity}");
            assert!(!highest.is_limited_by_bench && probes.len() <= 14, "{probes:?}");
        }
    }

    #[test]
    fn a_loss_at_the_lowest_rate_ends_the_search() {
        assert_eq!(search(49_999, u64::MAX), (Highest { packets_per_s: 0, is_limited_by_bench: false }, vec![50_000]));
    }

    #[test]
    fn the_limit_of_the_bench_is_no_loss() {
        let (highest, _) = search(u64::MAX, 120_000);
        assert!(highest.is_limited_by_bench && highest.packets_per_s <= 120_000);
        assert!(!search(100_000, 120_000).0.is_limited_by_bench);
    }
}
