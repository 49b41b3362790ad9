//! `mdgw demo`: exchange simulator, gateway and subscriber on loopback.

mod pair;

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, stderr},
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use mdgw_feeds::{
    identity::{ChannelId, Line},
    time::TradingDate,
};
use mdgw_telemetry::stages::Stage;
use mdgw_tools::report::quantity::Latency;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use super::{Outcome, print};
use crate::demo::{self, DemoOptions, DemoReport};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
An exchange simulator sends a feed on two lines with loss, duplication and reordering. A gateway arbitrates the lines \
and publishes the stream; a subscriber receives it. Every record is compared with the same feed decoded without loss. \
Exit code 0: equal; 1: records were lost or differ.

With --pair, two gateways run as separate processes. In turn, the leader is asked to hand over, is stopped (SIGSTOP) \
until the other gateway has taken over, or is killed and restarted; the next fault waits until the gateway is eligible \
again. The published output is verified as by `mdgw ha verify`. Exit code 1: messages were lost, duplicated or fenced \
wrongly, or the session ended before the first fault.

Examples:
  mdgw demo
  mdgw demo --loss 0.2 --messages 1000000
  mdgw demo --capture DEEP10.pcap.gz --rate 20000
  mdgw demo --pair")]
pub(super) struct Args {
    /// Send this capture instead of a synthetic Nasdaq session.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Trading date of the output (YYYY-MM-DD). Default: the feed's own date, or today.
    #[arg(long, value_name = "DATE")]
    date: Option<TradingDate>,
    /// Messages in the synthetic session.
    #[arg(long, default_value_t = 300_000, value_name = "N")]
    messages: u64,
    /// Seed of the synthetic session and of the injected faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Packets per second. Default: 10,000; with --pair 1,200.
    #[arg(long, value_name = "PPS")]
    rate: Option<f64>,
    /// Probability that a line loses a packet; half of it for duplication and for reordering.
    #[arg(long, default_value_t = 0.02, value_name = "P")]
    loss: f64,
    /// Threads of the gateway's pool.
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// I/O backend: auto, io_uring or epoll.
    #[arg(long, default_value = "auto")]
    io: String,
    /// Directory for the report and the latency log.
    #[arg(long, default_value = "mdgw-demo", value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Run two gateways; in turn the leader hands over, is stopped, and is killed and restarted.
    #[arg(long, conflicts_with_all = ["capture", "threads", "io"])]
    pair: bool,
    /// Seconds that a gateway leads before the next fault.
    #[arg(long, default_value_t = 1.0, value_name = "S", requires = "pair")]
    tenure_s: f64,
    /// Lease profile of the pair: default, fast or calm.
    #[arg(long, default_value = "default", value_name = "NAME", requires = "pair")]
    profile: String,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    ensure!((0.0..1.0).contains(&args.loss), "--loss {}: must be between 0 and 1", args.loss);
    let rate = args.rate.unwrap_or(if args.pair { 1_200.0 } else { 10_000.0 });
    ensure!(rate.is_finite() && rate > 0.0, "--rate {rate}: must be above 0");
    ensure!(["auto", "io_uring", "epoll"].contains(&args.io.as_str()), "--io {}: auto, io_uring or epoll", args.io);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    if args.pair {
        return pair::run(args, rate, &stop);
    }
    let options = DemoOptions {
        capture: args.capture.clone(),
        date: args.date,
        messages: args.messages,
        seed: args.seed,
        rate,
        loss: args.loss,
        threads: args.threads,
        io: args.io.clone(),
        directory: args.directory.clone(),
    };
    let bar = if stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} messages {per_sec}")?);
    let report = demo::run(&options, &stop, &mut |progress| {
        bar.set_length(progress.expected);
        bar.set_position(progress.received);
    })?;
    bar.finish_and_clear();
    print(&if args.json { json(&report) } else { table(&report)? })?;
    Ok(if report.is_correct() { Outcome::Done } else { Outcome::No })
}

/// Percentiles in the result.
const PERCENTILES: [f64; 4] = [50.0, 99.0, 99.9, 100.0];

fn wire_to_wire(report: &DemoReport) -> Option<[u64; 4]> {
    let total = report.gateway.latency.totals.cells.get(&(ChannelId(1), Stage::WireToWire))?;
    (!total.histogram.is_empty()).then(|| PERCENTILES.map(|percentile| total.histogram.value_at_percentile(percentile)))
}

fn table(report: &DemoReport) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut row = |name: &str, value: String| writeln!(text, "{name:<36} {value}");
    let channel = report.gateway.channels.first().context("the gateway has no channel")?;
    let (packets, messages) = report.played;
    row("feed", report.feed.to_string())?;
    row("sent", format!("{packets} packets, {messages} messages in {:.1} s", report.elapsed.as_secs_f64()))?;
    for line in &channel.lines {
        let name = if line.line == Line::RECOVERY { "recovery".to_owned() } else { format!("line {}", line.line) };
        let used = format!("{} packets received, {} messages delivered first", line.packets, line.won_messages);
        row(&name, used)?;
    }
    row("requests", format!("{} sent, {} answered", channel.requests, report.exchange.requests.answered))?;
    row("gaps declared", format!("{} ({} messages)", channel.counters.gaps, channel.counters.gap_messages))?;
    for (reason, count) in channel.drops.iter().filter(|(reason, _)| !reason.is_expected()) {
        row("refused", format!("{count}: {}", reason.name().replace('_', " ")))?;
    }
    if report.gateway.load.kernel_drops > 0 {
        row("dropped by the kernel", format!("{} datagrams (receive buffer full)", report.gateway.load.kernel_drops))?;
    }
    row("published", format!("{} records in {} packets", channel.counters.records, channel.published.packets))?;
    let received = &report.received;
    row("received", format!("{} records of {} messages", received.records, received.messages))?;
    row("expected", format!("{} records of {} messages", report.expected.records, report.expected.messages))?;
    row("lost between gateway and subscriber", report.lost_messages.to_string())?;
    if let Some([p50, p99, p999, max]) = wire_to_wire(report).map(|all| all.map(Latency)) {
        row("wire to wire", format!("p50 {p50}  p99 {p99}  p99.9 {p999}  max {max}"))?;
    }
    let verdict = match (report.is_correct(), report.was_interrupted) {
        (true, _) => "passed: no loss, no duplicates, every record as expected",
        (false, true) => "interrupted before all records were received",
        (false, false) => "FAILED: records are missing, duplicated or different",
    };
    row("result", verdict.to_owned())?;
    row("report", report.report_page.display().to_string())?;
    Ok(text)
}

fn json(report: &DemoReport) -> String {
    let channel = report.gateway.channels.first();
    let percentiles = wire_to_wire(report);
    let value = serde_json::json!({
        "ok": report.is_correct(),
        "interrupted": report.was_interrupted,
        "feed": report.feed.name(),
        "packets": report.played.0,
        "messages": report.played.1,
        "elapsed_s": report.elapsed.as_secs_f64(),
        "copies_sent": report.exchange.copies,
        "requests": channel.map(|channel| channel.requests),
        "requests_answered": report.exchange.requests.answered,
        "gaps": channel.map(|channel| channel.counters.gaps),
        "gap_messages": report.gap_messages,
        "lost_messages": report.lost_messages,
        "records_published": channel.map(|channel| channel.counters.records),
        "records_received": report.received.records,
        "records_expected": report.expected.records,
        "messages_received": report.received.messages,
        "messages_expected": report.expected.messages,
        "wire_to_wire_ns": percentiles.map(|[p50, p99, p999, max]| serde_json::json!({
            "p50": p50, "p99": p99, "p99_9": p999, "max": max,
        })),
        "report": report.report_page,
    });
    format!("{value}\n")
}
