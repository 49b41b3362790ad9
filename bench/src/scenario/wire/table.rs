//! The result as text.

use std::fmt::{self, Write};

use super::{
    case::AdminUse,
    statistics::{CaseRounds, PERCENTILES},
};
use crate::report::Spread;

/// Writes the rows of one case: one for each subject.
pub(super) fn write_case(rounds: &CaseRounds, names: &[String], out: &mut impl Write) -> fmt::Result {
    writeln!(out, "\n{}", rounds.case)?;
    // The highest ones are in the JSON: in a run of seconds they are a few packets.
    let percentiles = &PERCENTILES[..3];
    write!(out, "  {:<16}", "")?;
    for percentile in percentiles {
        write!(out, "{:>7} us {:<20}", percentile.name, "  ratio to bare")?;
    }
    writeln!(out, "{:>10} {:>9} {:>8} {:>8}", "late p99us", "waited ms", "cold ms", "lost")?;
    for (subject, name) in names.iter().enumerate() {
        write!(out, "  {name:<16}")?;
        for percentile in percentiles {
            let latency = rounds.latency_us(subject, *percentile).median;
            let ratio = if subject == 0 { String::new() } else { ratio_text(rounds.ratio(subject, *percentile)) };
            write!(out, "{latency:>10.1} {ratio:<20}")?;
        }
        let late = rounds.spread(subject, |outcome| outcome.lateness.value_at_quantile(0.99) as f64 / 1e3);
        let waited = rounds.spread(subject, |outcome| outcome.threads.pool_wait_ns as f64 / 1e6);
        let cold = rounds.spread(subject, |outcome| outcome.threads.cold_cpu_ns as f64 / 1e6);
        let lost = rounds.lost_messages(subject);
        write!(out, "{:>10.1} {:>9.1} {:>8.1} {lost:>8}", late.median, waited.median, cold.median)?;
        writeln!(out, "{}", remarks(rounds, subject))?;
    }
    for (subject, name) in names.iter().enumerate() {
        let Some(cost) = rounds.admin_cost(subject) else { continue };
        writeln!(
            out,
            "  {name}: an answer of {:.0} kB takes {:.1} ms ({:.1} to {:.1}), {:.2} ms of a core; {:.2} % of a core",
            cost.answer_bytes as f64 / 1e3,
            cost.answer_ms.median,
            cost.answer_ms.min,
            cost.answer_ms.max,
            cost.cpu_ms_per_answer,
            cost.core_percent,
        )?;
        if let Some(base) = AdminUse::unasked(names, subject) {
            write!(out, "  {name} over {}:", names[base])?;
            for percentile in percentiles {
                write!(out, " {} {}", percentile.name, ratio_text(rounds.ratio_to(base, subject, *percentile)))?;
            }
            writeln!(out)?;
            let own = percentiles.iter().filter_map(|percentile| {
                let ratio = rounds.own_ratio_to(base, subject, *percentile)?;
                let us = [base, subject].map(|subject| rounds.own_latency_us(subject, *percentile).median);
                Some(format!(" {} {:.1} to {:.1} us, {}", percentile.name, us[0], us[1], ratio_text(ratio)))
            });
            let own: Vec<_> = own.collect();
            if !own.is_empty() {
                writeln!(out, "  {name} over {}, by the gateway's own log:{}", names[base], own.join(";"))?;
            }
        }
    }
    Ok(())
}

fn ratio_text(ratio: Spread) -> String {
    format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
}

/// What makes a row another measurement than its heading says.
fn remarks(rounds: &CaseRounds, subject: usize) -> String {
    let mut remarks = Vec::new();
    if !rounds.is_sustained(subject) {
        remarks.push("not sustained".to_owned());
    }
    let dropped = rounds.receiver_dropped(subject);
    if dropped > 0 {
        remarks.push(format!("{dropped} packets dropped at this bench's receiver"));
    }
    if !rounds.is_rate_reached(subject) {
        let achieved = rounds.spread(subject, |outcome| outcome.achieved_per_s);
        remarks.push(format!("the sender reached {:.0}/s only", achieved.median));
    }
    let unstamped: u64 = rounds.outcomes[subject].iter().map(|outcome| outcome.received.unstamped).sum();
    if unstamped > 0 {
        remarks.push(format!("{unstamped} packets without stamp"));
    }
    if remarks.is_empty() { String::new() } else { format!("  {}", remarks.join("; ")) }
}
