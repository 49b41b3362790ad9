//! Measures failover: elections by votes between real processes on this host, over loopback, each with its own vote file.
//! Each trial kills the leader (SIGKILL) and reports the time until the peer's fence opens.
//!
//! `cargo run --release -p mdgw-tests --bin failover -- --trials 50 [--timing 20/4/4] [--votes DIRECTORY]`
//!
//! Without `--timing`: 20/4/4, 40/8/8 and 100/20/20 ms. The clock is `CLOCK_BOOTTIME`, which all processes of a host share.
//! A time runs from just before the signal until the peer's fence opened. Vote files are written to the disk of `--votes`.

use std::{
    env,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use mdgw_tests::failover::{self, ClusterProcess, LeaseTimingMs, VoteCluster};

/// Measures the time from the kill of a leader until its peer leads, over votes.
#[derive(Debug, Parser)]
#[command(name = "failover")]
struct FailoverArgs {
    /// Kills for each timing.
    #[arg(long, value_name = "N", default_value_t = 20)]
    trials: usize,
    /// Lease, renewal and margin in ms [default: 20/4/4, 40/8/8 and 100/20/20].
    #[arg(long, value_name = "LEASE/RENEWAL/MARGIN")]
    timing: Option<LeaseTimingMs>,
    /// Directory of the vote files [default: the temporary directory].
    #[arg(long, value_name = "DIRECTORY")]
    votes: Option<PathBuf>,
}

fn main() -> ExitCode {
    // Each process of the cluster runs this program too, with other arguments.
    let args: Vec<String> = env::args().skip(1).collect();
    if let Some(role) = ClusterProcess::parse(&args) {
        return role.run();
    }
    match measure(&FailoverArgs::parse()) {
        Ok(text) => {
            let written = std::io::stdout().write_all(text.as_bytes());
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) }
        }
        Err(error) => {
            let _ignored = writeln!(std::io::stderr(), "failover: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure(args: &FailoverArgs) -> Result<String, String> {
    let defaults = || vec![LeaseTimingMs(20, 4, 4), LeaseTimingMs(40, 8, 8), LeaseTimingMs(100, 20, 20)];
    let timings = args.timing.map_or_else(defaults, |timing| vec![timing]);
    let votes = args.votes.clone().unwrap_or_else(env::temp_dir);
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut text =
        String::from("lease/renewal/margin ms   trials   detected ms: median   worst   unprovoked elections\n");
    for timing in timings {
        text.push_str(&row(&program, &votes, timing, args.trials)?);
    }
    Ok(text)
}

fn row(program: &Path, votes: &Path, timing: LeaseTimingMs, trials: usize) -> Result<String, String> {
    let mut cluster = VoteCluster::start(program, votes, timing).map_err(|error| error.to_string())?;
    let mut failover_ns = Vec::new();
    let mut unprovoked = 0;
    for _ in 0..trials {
        let failover = cluster.kill_leader_and_wait()?;
        failover_ns.push(failover.failover_ns);
        unprovoked += failover.unprovoked_elections;
    }
    failover_ns.sort_unstable();
    let ms = failover::ms;
    let (median, worst) = (failover_ns[failover_ns.len() / 2], failover_ns[failover_ns.len() - 1]);
    Ok(format!("{:>23}   {trials:>6}   {:>19}   {:>5}   {unprovoked:>20}\n", timing.to_string(), ms(median), ms(worst)))
}
