//! Runs a pair of real gateways under load for a long time, with a random fault every few seconds, and checks every message.
//!
//! `cargo run --release -p mdgw-tests --features stores --bin soak -- --backend etcd --minutes 30 --seed 1`
//!
//! Writes `soak-BACKEND-SEED.html`, a page with curves, and `soak-BACKEND-SEED.json`. Exit code 1: a message was lost, repeated,
//! out of order or different, two gateways published at a time, or memory, threads or descriptors grew.

use std::{env, io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use mdgw_tests::{
    failover::LeaseTimingMs,
    testbed::{
        plan::{ElectionBackend, Plan, VenueBursts},
        soak::{self, SoakOptions},
    },
};

/// Runs a pair under load and random faults for a long time.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct SoakArgs {
    /// The lease authority: file, quorum, emergent, etcd or zookeeper.
    #[arg(long, value_name = "NAME", default_value = "etcd", value_parser = parse_backend)]
    backend: ElectionBackend,
    /// Seed of the faults [default: the time of day].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Length of the run.
    #[arg(long, value_name = "MINUTES", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Mean pause between two faults.
    #[arg(long, value_name = "SECONDS", default_value_t = 4)]
    pause_s: u64,
    /// Messages of the venue per second.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Messages of the venue per second during its bursts of 10 ms, one each second; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    burst_rate: u64,
    /// A session of the venue ends after this time.
    #[arg(long, value_name = "MINUTES", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    session_minutes: u64,
    /// Lease, renewal and margin in ms.
    #[arg(long, value_name = "LEASE/RENEWAL/MARGIN", default_value_t = LeaseTimingMs(100, 20, 20))]
    timing: LeaseTimingMs,
    /// Directory of the report.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/soak")]
    out: PathBuf,
    /// Directory in memory for logs [default: the temporary directory].
    #[arg(long, value_name = "DIRECTORY")]
    fast_dir: Option<PathBuf>,
}

fn parse_backend(name: &str) -> Result<ElectionBackend, String> {
    ElectionBackend::from_name(name).ok_or_else(|| "must be file, quorum, emergent, etcd or zookeeper".to_owned())
}

fn main() -> ExitCode {
    let args = SoakArgs::parse();
    let seed = args.seed.unwrap_or_else(|| mdgw_sys::clock::unix_now().0 / 1_000_000_000);
    let options = SoakOptions {
        seed,
        duration: Duration::from_secs(60 * args.minutes),
        mean_pause: Duration::from_secs(args.pause_s),
        session: Duration::from_secs(60 * args.session_minutes),
        sample_every: Duration::from_secs(2),
    };
    // A session lasts until the fault is over in which its time ended, and bursts come on top of the rate.
    let messages = (args.rate + args.burst_rate / 100) * (60 * args.session_minutes + 180);
    let plan = Plan {
        timing: args.timing,
        messages,
        messages_per_second: args.rate as f64,
        bursts: (args.burst_rate > 0).then_some(VenueBursts {
            messages_per_second: args.burst_rate as f64,
            burst_ms: 10,
            every_ms: 1_000,
        }),
        fast_dir: args.fast_dir.clone().unwrap_or_else(env::temp_dir),
        ..Plan::relaxed(args.backend)
    };
    let Some(report) = soak::run("soak", plan, &options) else { return ExitCode::from(2) };
    let _ignored = std::io::stdout().write_all(report.to_text().as_bytes());
    match report.write(&args.out) {
        Ok(page) => drop(writeln!(std::io::stdout(), "{}", page.display())),
        Err(error) => {
            let _ignored = writeln!(std::io::stderr(), "soak: {}: {error}", args.out.display());
            return ExitCode::from(2);
        }
    }
    if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
