//! How soon the other gateway leads: elections by votes between real processes on this host, over loopback, each with its
//! own vote file. The leader is killed (kill -9) or stopped and continued, and the time to the other's opening is told.
//!
//! `cargo run --release -p mdgw-tests --bin failover -- --trials 50 [--timing 20/4/4] [--votes DIRECTORY]`
//!
//! Without `--timing`: 20/4, 40/8 and 100/20 ms. Time is that of `CLOCK_BOOTTIME`, which all processes of a host share:
//! from just before the signal to when the other's fence opened. Votes are on the disk of `--votes`.

use std::{
    env,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use mdgw_tests::failover::{self, ClusterProcess, LeaseTimingMs, VoteCluster};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if let Some(role) = ClusterProcess::parse(&args) {
        return role.run();
    }
    match measure(&args) {
        Ok(text) => {
            let written = std::io::stdout().write_all(text.as_bytes());
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) }
        }
        Err(error) => {
            let _nobody_left = writeln!(std::io::stderr(), "failover: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure(args: &[String]) -> Result<String, String> {
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let trials = value("--trials").map_or(Ok(20), |text| text.parse()).map_err(|_| "--trials N".to_owned())?;
    let timings = match value("--timing") {
        Some(text) => vec![LeaseTimingMs::parse(text).ok_or("--timing LEASE/RENEWAL/MARGIN in ms, such as 20/4/4")?],
        None => vec![LeaseTimingMs(20, 4, 4), LeaseTimingMs(40, 8, 8), LeaseTimingMs(100, 20, 20)],
    };
    let votes = value("--votes").map_or_else(env::temp_dir, PathBuf::from);
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut text = String::from("lease/renewal/margin ms   trials   detected ms: median   worst   elections besides\n");
    for timing in timings {
        text.push_str(&row(&program, &votes, timing, trials)?);
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
    Ok(format!("{:>23}   {trials:>6}   {:>19}   {:>5}   {unprovoked:>17}\n", timing.to_string(), ms(median), ms(worst)))
}
