//! What does `mdgw live` cost, and how fast is it? Four parts, which can be chosen:
//!
//! - `throughput`: sessions that replay the whole log, beside a bare loop that writes the same bytes to as many sockets
//! - `memory`: what one more idle session takes of the process's memory
//! - `latency`: from the append of a log entry to a client's socket, beside the same bytes written to a socket directly
//! - `publish`: the gateway's own p99 without `mdgw live`, and beside it with more and more sessions, half of which never read
//!
//! `mdgw live` and the gateway run as users run them: the program and a configuration. The clients are a few lines of this
//! bench ([`client`]): an official client would measure itself.
//!
//! - `log`, `program`, `client`, `record_counter`, `receive`: what the parts share
//! - `throughput`, `memory`, `latency`, `publish`: one part each; `bare` is the rival

mod bare;
mod client;
mod latency;
mod log;
mod memory;
mod program;
mod publish;
mod receive;
mod record_counter;
mod throughput;

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, Value, json};

use self::log::FilledLog;
use crate::report::Spread;

/// What the scenario takes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LiveOptions {
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "throughput,memory,latency,publish")]
    parts: Vec<Part>,
    /// The gateway; by default `mdgw` beside this program.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Messages of the synthetic day in the log.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Live orders that the day works up to.
    #[arg(long, default_value_t = 100_000)]
    live_orders: u32,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// throughput: sessions that replay the log at the same time. Each number is a row.
    #[arg(long, value_delimiter = ',', default_value = "1,100")]
    sessions: Vec<usize>,
    /// memory: idle sessions at the two ends of the slope.
    #[arg(long, value_delimiter = ',', default_value = "10,510")]
    idle_sessions: Vec<usize>,
    /// latency: entries of a round.
    #[arg(long, default_value_t = 3_000)]
    entries: u64,
    /// latency: mean time between two entries, us; each pause is half to one and a half of it.
    #[arg(long, default_value_t = 1_000)]
    interval_us: u64,
    /// publish: open sessions. Each number is a row beside the gateway without `mdgw live`.
    #[arg(long, value_delimiter = ',', default_value = "0,10,100,1000")]
    beside: Vec<usize>,
    /// publish: input packets per second, of three messages each.
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// publish: measured time of a row, s.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// publish: wait strategy of the gateway's pool.
    #[arg(long, default_value = "spin")]
    wait: String,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Throughput,
    Memory,
    Latency,
    Publish,
}

/// The result of a part.
struct PartResult {
    text: String,
    json: Value,
}

pub(crate) fn run(options: &LiveOptions) -> Result<()> {
    ensure!(options.rounds > 0, "--rounds: above 0");
    ensure!(options.sessions.iter().all(|count| *count > 0), "--sessions: above 0");
    ensure!(
        matches!(options.idle_sessions[..], [few, many] if few < many),
        "--idle-sessions: two numbers, the smaller one first"
    );
    ensure!(options.rate > 0 && options.seconds > 0.0 && options.entries > 0, "--rate, --seconds, --entries: above 0");
    raise_descriptor_limit()?;
    let program = options.program.clone().map_or_else(|| Ok(env::current_exe()?.with_file_name("mdgw")), anyhow::Ok)?;
    ensure!(program.exists(), "there is no {}: build the whole workspace first", program.display());
    if !options.json {
        println!("{}", heading(options));
    }
    let needs_log = options.parts.iter().any(|part| *part != Part::Publish);
    let mut log = needs_log.then(|| FilledLog::fill(options.messages, options.live_orders)).transpose()?;
    let mut results = Map::new();
    for part in &options.parts {
        let filled = || "the log is filled";
        let result = match part {
            Part::Throughput => throughput::run(options, &program, log.as_ref().with_context(filled)?),
            Part::Memory => memory::run(options, &program, log.as_ref().with_context(filled)?),
            Part::Latency => latency::run(options, &program, log.as_mut().with_context(filled)?),
            Part::Publish => publish::run(options, &program),
        };
        let result = result.with_context(|| format!("{part:?}").to_lowercase())?;
        if !options.json {
            print!("{}", result.text);
        }
        results.insert(format!("{part:?}").to_lowercase(), result.json);
    }
    if options.json {
        results.insert("scenario".to_owned(), json!("live"));
        results.insert("setup".to_owned(), json!(heading(options)));
        println!("{}", Value::Object(results));
    }
    Ok(())
}

/// Setup and machine, which every result needs beside it.
fn heading(options: &LiveOptions) -> String {
    let cores = mdgw_sys::affinity::usable_cores().len();
    let build = if cfg!(debug_assertions) { "; WARNING: a debug build" } else { "" };
    format!(
        "live: {} messages in the log, {} rounds, {cores} cores, kernel {}{build}",
        options.messages,
        options.rounds,
        rustix::system::uname().release().to_string_lossy()
    )
}

/// Every session is a descriptor here and one in `mdgw live`, which inherits the limit.
fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).context("raise the limit of descriptors")
}

/// `median (least to greatest)`.
fn text(spread: Spread, decimals: usize) -> String {
    format!("{:.decimals$} ({:.decimals$} to {:.decimals$})", spread.median, spread.min, spread.max)
}

/// Ratios of pairs of one round.
fn ratios(values: &[f64], bases: &[f64]) -> Spread {
    Spread::of(values.iter().zip(bases).map(|(value, base)| value / base).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_one_round() {
        // The machine is four times slower in the second round.
        let ratio = ratios(&[80.0, 15.0, 90.0], &[100.0, 25.0, 100.0]);
        assert_eq!((ratio.min, ratio.median, ratio.max), (0.6, 0.8, 0.9));
    }
}
