//! What a dispatch model costs: Leader/Followers, half-sync and a reactor per thread beside ACE's `ACE_TP_Reactor`,
//! Boost.Asio and tokio.
//!
//! Each subject is a process of its own with the same sockets on loopback, the same datagrams and the same handler, which
//! reads the clock and then spins for a given time ([`subject`], `bench/peers/dispatch/subject.hpp`).
//!
//! - *Capacity*: the subject is stopped (SIGSTOP), its sockets are filled, it continues, and the time until the last
//!   datagram is handled counts. So all cores are the subject's, and no sender is measured.
//! - *Paced*: datagrams are sent at absolute times, which they carry. Latency counts from the time at which a datagram was
//!   to be sent to the beginning of its handler.
//!
//! All subjects run once in each round, in turn. Ratios are of one round.

mod driver;
mod peers;
mod report;
pub(crate) mod subject;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use self::{driver::Outcome, peers::Subject};

/// What the scenario takes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DispatchOptions {
    /// How datagrams come: all before the start, or at a rate.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "capacity")]
    modes: Vec<Mode>,
    /// Sockets, one channel each.
    #[arg(long, value_delimiter = ',', default_value = "128")]
    sockets: Vec<u32>,
    /// Threads of each subject.
    #[arg(long, value_delimiter = ',', default_value = "2")]
    threads: Vec<usize>,
    /// Time that the handler spends on each datagram.
    #[arg(long, value_delimiter = ',', default_value = "200")]
    work_ns: Vec<u64>,
    /// How datagrams are distributed over the sockets.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "even")]
    loads: Vec<Load>,
    /// Datagrams of one run.
    #[arg(long, default_value_t = 100_000)]
    packets: u64,
    /// Datagrams per second (paced).
    #[arg(long, default_value_t = 50_000)]
    rate: u64,
    /// Datagrams that come at the same time (paced).
    #[arg(long, default_value_t = 4)]
    burst: u64,
    /// Rounds; in each one every subject runs once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only subjects whose name contains one of these; the first one is what the others are compared with.
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// All settings of Leader/Followers, not only the default and the best known one of each kind.
    #[arg(long)]
    all_settings: bool,
    /// Directory that `bench/peers/dispatch/build` has written. Without it the script runs first.
    #[arg(long)]
    peers: Option<std::path::PathBuf>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// How datagrams come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Capacity,
    Paced,
}

/// How datagrams are distributed over the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// One for each socket in turn.
    Even,
    /// Every second one for the first socket, the others for the other sockets in turn.
    Hot,
}

/// One setting under which all subjects run.
#[derive(Clone, Copy, Debug)]
struct Case {
    mode: Mode,
    load: Load,
    sockets: u32,
    threads: usize,
    work_ns: u64,
}

pub(crate) fn run(options: &DispatchOptions) -> Result<()> {
    let directory = peers::directory(options.peers.as_deref())?;
    let mut results = Vec::new();
    for case in cases(options) {
        let all = peers::subjects(&directory, case.threads, options.all_settings);
        let chosen = choose(all, &options.subjects);
        ensure!(!chosen.is_empty(), "no subject's name contains any of {:?}", options.subjects);
        let mut rounds: Vec<Vec<Outcome>> = vec![Vec::new(); chosen.len()];
        for _ in 0..options.rounds {
            for (subject, outcomes) in chosen.iter().zip(&mut rounds) {
                outcomes.push(driver::run(subject, &case, options)?);
            }
        }
        if !options.json {
            report::print_table(options, &case, &chosen, &rounds);
        }
        results.push(report::to_json(&case, &chosen, &rounds));
    }
    if options.json {
        println!("{}", serde_json::json!({ "dispatch": results }));
    }
    Ok(())
}

fn cases(options: &DispatchOptions) -> Vec<Case> {
    let mut cases = Vec::new();
    for &mode in &options.modes {
        for &load in &options.loads {
            for &sockets in &options.sockets {
                for &threads in &options.threads {
                    cases.extend(options.work_ns.iter().map(|&work_ns| Case { mode, load, sockets, threads, work_ns }));
                }
            }
        }
    }
    cases
}

/// The subjects that the user named, in the user's order; all without names.
fn choose(all: Vec<Subject>, names: &[String]) -> Vec<Subject> {
    if names.is_empty() {
        return all;
    }
    let mut chosen: Vec<Subject> = Vec::new();
    for name in names {
        for subject in all.iter().filter(|subject| subject.name.contains(name.as_str())) {
            if chosen.iter().all(|other| other.name != subject.name) {
                chosen.push(subject.clone());
            }
        }
    }
    chosen
}
