//! `mdgw demo --pair`: a pair whose leader in turn hands over, is stopped, and is killed and restarted.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, stderr},
    sync::atomic::AtomicBool,
    time::Duration,
};

use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};

use super::Args;
use crate::{
    cli::{Outcome, print, warn},
    demo::pair::{self, Fault, Leader, PairChange, PairEvent, PairOptions, PairReport},
};

pub(super) fn run(args: &Args, rate: f64, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    let tenure = Duration::try_from_secs_f64(args.tenure_s)?;
    let profiles = ["default", "fast", "calm"];
    ensure!(profiles.contains(&args.profile.as_str()), "--profile {}: {}", args.profile, profiles.join(", "));
    let options = PairOptions {
        messages: args.messages,
        date: args.date,
        seed: args.seed,
        rate,
        loss: args.loss,
        tenure,
        profile: args.profile.clone(),
        directory: args.directory.clone(),
    };
    let bar = if stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} messages {per_sec}  {msg}")?);
    let report = pair::run(&options, stop, &mut |event| match event {
        PairEvent::Progress { received, expected, leader } => {
            bar.set_length(expected);
            bar.set_position(received);
            bar.set_message(leader.map_or_else(|| "no leader".to_owned(), name));
        }
        PairEvent::FaultInjected { leader, fault, after } => {
            bar.suspend(|| warn(&format!("{:.1} s: {} {}", after.as_secs_f64(), verb(fault), name(leader))));
        }
        PairEvent::TookOver { leader, blackout } => {
            bar.suspend(|| warn(&format!("       {} leads, blackout {} ms", name(leader), Milliseconds(blackout))));
        }
        PairEvent::EligibleAgain { node, after } => {
            bar.suspend(|| warn(&format!("       gw{node} eligible again after {:.1} s", after.as_secs_f64())));
        }
    })?;
    bar.finish_and_clear();
    print(&if args.json { json(&report) } else { table(&report)? })?;
    Ok(if report.is_correct() { Outcome::Done } else { Outcome::No })
}

fn verb(fault: Fault) -> &'static str {
    match fault {
        Fault::HandedOver => "handed over",
        Fault::Stopped => "stopped",
        Fault::Killed => "killed",
    }
}

fn name(leader: Leader) -> String {
    format!("gw{} (epoch {})", leader.node, leader.epoch)
}

fn table(report: &PairReport) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut row = |name: &str, value: String| writeln!(text, "{name:<36} {value}");
    let (packets, messages) = report.played;
    row("sent", format!("{packets} packets, {messages} messages, in {:.1} s", report.elapsed.as_secs_f64()))?;
    for epoch in &report.verdict.epochs {
        let led = Duration::from_nanos(epoch.last_ns - epoch.first_ns);
        let mut line = format!("gw{}, {} packets in {:.3} s", epoch.node, epoch.packets, led.as_secs_f64());
        if let Some(change) = report.changes.iter().find(|change| change.leader.epoch == epoch.count) {
            let PairChange { fault, blackout, eligible_after, .. } = change;
            write!(line, ", blackout {} ms; fault: leader {}", Milliseconds(*blackout), verb(*fault))?;
            match fault {
                Fault::HandedOver => line.push_str(", by request"),
                _ => write!(line, ", eligible again after {:.1} s", eligible_after.as_secs_f64())?,
            }
        }
        row(&format!("epoch {}", epoch.count), line)?;
    }
    for fault in [Fault::HandedOver, Fault::Stopped, Fault::Killed] {
        let count = report.changes.iter().filter(|change| change.fault == fault).count();
        if let Some([median, worst]) = blackout(report, |change| change == fault) {
            let text = format!("{count}: median {} ms  worst {} ms", Milliseconds(median), Milliseconds(worst));
            row(&format!("blackout, {}", verb(fault)), text)?;
        }
    }
    row("republished", format!("{} of {} frames", report.verdict.republished, report.verdict.names))?;
    row("received", format!("{} records of {} messages", report.received.records, report.received.messages))?;
    row("expected", format!("{} records of {} messages", report.expected.records, report.expected.messages))?;
    row("lost between gateway and subscriber", report.lost_messages.to_string())?;
    row("gaps declared", format!("{} messages", report.gap_messages))?;
    for finding in &report.verdict.findings {
        row(finding.check.name(), format!("BROKEN: {}", finding.text))?;
    }
    row("result", result(report).to_owned())?;
    row("published", format!("{} (check it with mdgw ha verify)", report.capture.display()))?;
    Ok(text)
}

fn result(report: &PairReport) -> &'static str {
    match (report.is_correct(), report.was_interrupted) {
        (true, _) => "passed: no loss, no duplicates, one publisher at a time",
        (false, true) => "interrupted before all records were received",
        (false, false) if report.is_too_short() => {
            "inconclusive: the session ended before the first fault (raise --messages, or lower --rate or --tenure-s)"
        }
        (false, false) => "FAILED: see the findings above",
    }
}

fn json(report: &PairReport) -> String {
    let ms = |time: &Duration| time.as_secs_f64() * 1e3;
    let [median, worst] = blackout(report, |_| true).map_or([None; 2], |both| both.map(|time| Some(ms(&time))));
    let value = serde_json::json!({
        "ok": report.is_correct(),
        "interrupted": report.was_interrupted,
        "ended_before_first_fault": report.is_too_short(),
        "packets": report.played.0,
        "messages": report.played.1,
        "elapsed_s": report.elapsed.as_secs_f64(),
        "faults": report.changes.iter().map(|change| serde_json::json!({
            "old_leader": verb(change.fault),
            "leader": change.leader.node,
            "epoch": change.leader.epoch,
            "blackout_ms": ms(&change.blackout),
            "eligible_again_after_s": change.eligible_after.as_secs_f64(),
        })).collect::<Vec<_>>(),
        "blackout_median_ms": median,
        "blackout_worst_ms": worst,
        "records_received": report.received.records,
        "records_expected": report.expected.records,
        "lost_messages": report.lost_messages,
        "gap_messages": report.gap_messages,
        "verdict": report.verdict.to_json(&[report.capture.display().to_string()]),
    });
    format!("{value}\n")
}

/// Median and maximum blackout of the selected changes; `None` if there are none.
fn blackout(report: &PairReport, is_meant: impl Fn(Fault) -> bool) -> Option<[Duration; 2]> {
    let changes = report.changes.iter().filter(|change| is_meant(change.fault));
    let mut sorted: Vec<Duration> = changes.map(|change| change.blackout).collect();
    sorted.sort_unstable();
    Some([*sorted.get(sorted.len() / 2)?, *sorted.last()?])
}

/// Prints milliseconds with three decimals.
struct Milliseconds(Duration);

impl std::fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}", self.0.as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use mdgw_simulator::reference::StreamDigest;
    use mdgw_tools::verify::Verdict;

    use super::*;

    #[test]
    fn a_demo_that_ends_before_any_fault_is_reported_as_too_short() {
        let mut report = PairReport {
            played: (10, 100),
            changes: Vec::new(),
            expected: StreamDigest::default(),
            received: StreamDigest::default(),
            gap_messages: 0,
            lost_messages: 0,
            verdict: Verdict::default(),
            capture: "published.pcap".into(),
            elapsed: Duration::from_millis(80),
            was_interrupted: false,
        };
        let outcome = |report: &PairReport| {
            let json: serde_json::Value = serde_json::from_str(&json(report)).unwrap();
            (result(report), json["ok"] == true, json["ended_before_first_fault"] == true)
        };
        let (text, is_ok, is_too_short) = outcome(&report);
        assert!(text.contains("the session ended before the first fault"), "{text}");
        assert_eq!((is_ok, is_too_short), (false, true));
        report.lost_messages = 1;
        assert_eq!(outcome(&report), ("FAILED: see the findings above", false, false));
        let leader = Leader { node: 2, epoch: 3 };
        let blackout = Duration::from_millis(3);
        report.changes.push(PairChange { fault: Fault::HandedOver, leader, blackout, eligible_after: Duration::ZERO });
        assert_eq!(outcome(&report), ("FAILED: see the findings above", false, false));
        report.lost_messages = 0;
        assert_eq!(outcome(&report), ("passed: no loss, no duplicates, one publisher at a time", true, false));
    }
}
