//! Tables and JSON.

use serde_json::{Value, json};

use super::{Case, DispatchOptions, Mode, driver::Outcome, peers::Subject};
use crate::report::Spread;

pub(super) fn print_table(options: &DispatchOptions, case: &Case, subjects: &[Subject], rounds: &[Vec<Outcome>]) {
    let Case { mode, load, sockets, threads, work_ns } = case;
    let pace = match mode {
        Mode::Capacity => String::new(),
        Mode::Paced => format!(" at {}/s in bursts of {}", options.rate, options.burst),
    };
    println!(
        "\n{}: {} datagrams{pace}, {sockets} sockets, {} load, {threads} threads, {work_ns} ns of work, {} rounds; medians \
         (least to greatest)",
        format!("{mode:?}").to_lowercase(),
        options.packets,
        format!("{load:?}").to_lowercase(),
        options.rounds
    );
    let ratio_head = match mode {
        Mode::Capacity => "first / this",
        Mode::Paced => "cpu: first / this",
    };
    println!(
        "{:<38} {:>9} {:>22} {:>8} {:>9} {:>9} {:>26} {:>10} {:>6}",
        "", "1000/s", ratio_head, "cpu ns", "vol.", "invol.", "p50, p99, p99.9 us", "no follower", "lost"
    );
    for (subject, outcomes) in subjects.iter().zip(rounds) {
        let of = |value: fn(&Outcome) -> f64| Spread::of(outcomes.iter().map(value).collect()).median;
        let ratio = ratio(*mode, &rounds[0], outcomes);
        let latency = match mode {
            Mode::Capacity => String::new(),
            Mode::Paced => format!(
                "{:.1} {:.1} {:.1}",
                of(|one| one.latency_us[0]),
                of(|one| one.latency_us[1]),
                of(|one| one.latency_us[2])
            ),
        };
        println!(
            "{:<38} {:>9.0} {:>8.2} ({:.2} to {:.2}) {:>8.0} {:>9.4} {:>9.4} {latency:>26} {:>10.4} {:>6}",
            subject.name,
            of(|one| one.packets_per_second) / 1e3,
            ratio.median,
            ratio.min,
            ratio.max,
            of(|one| one.cpu_ns),
            of(|one| one.voluntary),
            of(|one| one.involuntary),
            of(|one| one.without_follower),
            outcomes.iter().map(|one| one.lost).sum::<u64>(),
        );
    }
}

pub(super) fn to_json(case: &Case, subjects: &[Subject], rounds: &[Vec<Outcome>]) -> Value {
    let rows = subjects.iter().zip(rounds).map(|(subject, outcomes)| {
        let of = |value: fn(&Outcome) -> f64| Spread::of(outcomes.iter().map(value).collect()).to_json();
        json!({
            "subject": subject.name,
            "packets_per_second": of(|one| one.packets_per_second),
            "first_over_this": ratio(case.mode, &rounds[0], outcomes).to_json(),
            "cpu_ns_per_packet": of(|one| one.cpu_ns),
            "voluntary_switches_per_packet": of(|one| one.voluntary),
            "involuntary_switches_per_packet": of(|one| one.involuntary),
            "latency_us": { "p50": of(|one| one.latency_us[0]), "p99": of(|one| one.latency_us[1]),
                "p99.9": of(|one| one.latency_us[2]) },
            "promotions_without_follower_per_packet": of(|one| one.without_follower),
            "lost": outcomes.iter().map(|one| one.lost).sum::<u64>(),
        })
    });
    json!({
        "mode": format!("{:?}", case.mode).to_lowercase(),
        "load": format!("{:?}", case.load).to_lowercase(),
        "sockets": case.sockets,
        "threads": case.threads,
        "work_ns": case.work_ns,
        "subjects": rows.collect::<Vec<_>>(),
    })
}

/// The first subject over this one, round by round: packets per second, or processor time where the rate is given.
fn ratio(mode: Mode, first: &[Outcome], outcomes: &[Outcome]) -> Spread {
    let value = |one: &Outcome| match mode {
        Mode::Capacity => one.packets_per_second,
        Mode::Paced => one.cpu_ns,
    };
    Spread::of(first.iter().zip(outcomes).map(|(first, this)| value(first) / value(this)).collect())
}
