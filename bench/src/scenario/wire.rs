//! What does the gateway cost from wire to wire, seen from outside, over a bare loop that receives and sends again?
//!
//! The gateway runs as users run it: the program and a configuration. A pinned thread sends input packets at intended
//! times; published packets are received with the kernel's stamps, and matched to input packets by their sequences. In
//! the same round, `bench/peers/resend.c` passes the same packets on: epoll, `recvmmsg`, one `send` each, nothing else.
//! The bare loop runs twice in each round, so that bare over bare shows the noise.
//!
//! Beside it a client may ask the gateway's admin listener (`admin_client`).
//!
//! - `case`: what one run is; `input`, `schedule`: its packets and their times
//! - `network`, `cores`, `subject`: where the programs run, and with which configuration
//! - `drive`: one run; `sender`, `receiver`, `matching`, `log_readers`, `thread_use`, `own_latency`: its parts
//! - `outcome`, `statistics`, `table`, `page`: its results; `search`: the highest rate without loss

mod admin_client;
mod case;
mod cores;
mod drive;
pub(super) mod input;
mod log_readers;
mod matching;
mod network;
mod outcome;
pub(super) mod own_latency;
mod page;
mod receiver;
mod schedule;
mod search;
mod sender;
mod statistics;
mod subject;
mod table;
mod thread_use;

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use self::{
    case::{AdminUse, Case, Election, LatencyLog},
    drive::Rig,
    input::{Input, InputShape},
    network::{Link, Network},
    sender::LateSender,
    statistics::CaseRounds,
    subject::{Settings, Subject, SubjectKind, compile_bare},
};

/// What the scenario takes. Options with lists are combined: each value with each value of the others.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WireOptions {
    /// The gateway, as PATH or NAME=PATH; by default `mdgw` beside this program. Several are compared in the same rounds.
    #[arg(long = "program", value_name = "[NAME=]PATH")]
    programs: Vec<String>,
    /// Input packets per second on each line, over all channels.
    #[arg(long, value_delimiter = ',', default_value = "10000,50000,100000")]
    rates: Vec<u64>,
    /// Packets that are due at the same moment.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    bursts: Vec<u64>,
    /// Messages of an input packet; fewer where they would not fit.
    #[arg(long, value_delimiter = ',', default_value = "3")]
    messages: Vec<usize>,
    /// Lines, 1 or 2. The bare loop discards the second one.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    lines: Vec<usize>,
    /// How much later the second line is.
    #[arg(long, default_value_t = 5)]
    skew_us: u64,
    /// Threads of the pool, and of the bare loop.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Channels, 1 to 128, each with its own groups and books. Packets go to them in turn.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    channels: Vec<usize>,
    /// Readers of the publication log, threads of this program.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    log_readers: Vec<usize>,
    /// What keeps the fence open.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none")]
    election: Vec<Election>,
    /// Whether the gateway writes latency logs.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "off")]
    latency_log: Vec<LatencyLog>,
    /// What asks the gateway's admin listener, once a second. Each is a row of its own in the same rounds, and compared with `none`.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none")]
    admin: Vec<AdminUse>,
    /// What carries the packets. `veth` takes root.
    #[arg(long, value_enum, default_value = "loopback")]
    link: Link,
    /// Search for the highest rate without loss instead, from the lowest of the rates on.
    #[arg(long)]
    search: bool,
    /// Measured time of one run, seconds; with `--search` 10 unless given.
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds; each has every program once, and the bare loop twice.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Live orders in the books of all channels together.
    #[arg(long, default_value_t = 50_000)]
    live_orders: u32,
    /// Messages that fill the books of all channels before a run.
    #[arg(long, default_value_t = 200_000)]
    warm_up_messages: u64,
    /// Seed of the sessions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cores of the pool and of the bare loop; by default the last ones.
    #[arg(long, value_delimiter = ',')]
    pool_cores: Vec<usize>,
    /// Core of the sender; by default the first one outside the pool.
    #[arg(long)]
    sender_core: Option<usize>,
    /// Core of the receiver; by default the next one, or the sender's if there is no other.
    #[arg(long)]
    receiver_core: Option<usize>,
    /// What the sender does with packets that became due while it did not run.
    #[arg(long, value_enum, default_value = "catches-up")]
    late_sender: LateSender,
    /// Wait strategy of the pool.
    #[arg(long, default_value = "spin")]
    wait: String,
    /// A line for the gateway's table [[pool]], such as 'io = "epoll"'; may be repeated.
    #[arg(long, value_name = "LINE")]
    pool_setting: Vec<String>,
    /// A line for each table [[channel]]; may be repeated.
    #[arg(long, value_name = "LINE")]
    channel_setting: Vec<String>,
    /// A line for the table [[output]]; may be repeated.
    #[arg(long, value_name = "LINE")]
    output_setting: Vec<String>,
    /// Write the report page that compares all cases.
    #[arg(long, value_name = "FILE", conflicts_with = "search")]
    page: Option<PathBuf>,
    /// Keep the interval logs behind the page in this directory.
    #[arg(long, value_name = "DIRECTORY", requires = "page")]
    logs: Option<PathBuf>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &WireOptions) -> Result<()> {
    let cases = options.cases()?;
    let directory = tempfile::tempdir()?;
    let subjects = subjects(options, directory.path())?;
    let rig = Rig {
        network: Network::open(options.link)?,
        settings: Settings {
            pool: options.pool_setting.clone(),
            channel: options.channel_setting.clone(),
            output: options.output_setting.clone(),
            wait: options.wait.clone(),
        },
        pool_cores: options.pool_cores.clone(),
        sender_core: options.sender_core,
        receiver_core: options.receiver_core,
        late: options.late_sender,
    };
    if options.search {
        search::run(options, &rig, &subjects, &cases)
    } else {
        compare(options, &rig, &subjects, &cases, directory.path())
    }
}

fn compare(options: &WireOptions, rig: &Rig, subjects: &[Subject], cases: &[Case], directory: &Path) -> Result<()> {
    let seconds = options.seconds.unwrap_or(SECONDS);
    let names: Vec<String> = subjects.iter().map(|subject| subject.name.clone()).collect();
    let mut inputs = Inputs::new(options);
    let mut results = Vec::new();
    if !options.json {
        println!("{}", heading(options, rig, cases, seconds)?);
    }
    for case in cases {
        let mut rounds = CaseRounds::new(*case, subjects.len());
        for _ in 0..options.rounds {
            for (subject, outcomes) in subjects.iter().zip(&mut rounds.outcomes) {
                let run = rig.run(subject, case, inputs.of(case), seconds);
                outcomes.push(run.with_context(|| format!("{} at {case}", subject.name))?);
            }
        }
        if !options.json {
            let mut text = String::new();
            table::write_case(&rounds, &names, &mut text)?;
            print!("{text}");
        }
        results.push(rounds);
    }
    if options.json {
        let cases: Vec<Value> = results.iter().map(|rounds| rounds.to_json(&names)).collect();
        let machine = heading(options, rig, &[], seconds)?;
        println!("{}", json!({ "scenario": "wire", "setup": machine, "rounds": options.rounds, "cases": cases }));
    }
    if let Some(page) = &options.page {
        let logs = options.logs.clone().unwrap_or_else(|| directory.join("logs"));
        let reporter = &subjects.last().context("a gateway")?.program;
        page::write(reporter, &results, &names, seconds, &logs, page)?;
    }
    Ok(())
}

/// Setup and machine, which every result needs beside it.
fn heading(options: &WireOptions, rig: &Rig, cases: &[Case], seconds: f64) -> Result<String> {
    let threads: std::collections::BTreeSet<usize> = options.threads.iter().copied().collect();
    let mut cores = Vec::new();
    for threads in threads {
        let case = Case { threads, ..Case::EXAMPLE };
        cores.push(rig.cores(&case)?.description());
    }
    let build = if cfg!(debug_assertions) { "; WARNING: a debug build" } else { "" };
    let late = if rig.late == LateSender::Shifts { "; a late sender shifts all later packets" } else { "" };
    let count = match cases.len() {
        0 => String::new(),
        1 => "1 case, ".to_owned(),
        count => format!("{count} cases, "),
    };
    Ok(format!(
        "wire: {}; {count}{seconds} s a run, {} rounds; {}{late}; kernel {}{build}",
        rig.network.description(),
        options.rounds,
        cores.join("; "),
        rustix::system::uname().release().to_string_lossy(),
    ))
}

impl WireOptions {
    /// Every combination of the options.
    fn cases(&self) -> Result<Vec<Case>> {
        let within = |name: &str, values: &[usize], max: usize| {
            ensure!(values.iter().all(|value| (1..=max).contains(value)), "{name}: 1 to {max}");
            Ok(())
        };
        within("--lines", &self.lines, 2)?;
        within("--channels", &self.channels, 128)?;
        within("--threads", &self.threads, 64)?;
        within("--messages", &self.messages, 65_534)?;
        ensure!(self.bursts.iter().chain(&self.rates).all(|value| *value > 0), "--rates, --bursts: above 0");
        ensure!(self.rounds > 0, "--rounds: above 0");
        ensure!(self.seconds.is_none_or(|seconds| seconds > 0.0), "--seconds: above 0");
        let rates = if self.search { vec![self.rates.iter().copied().min().unwrap_or(1)] } else { self.rates.clone() };
        let mut cases = vec![Case::EXAMPLE];
        combine(&mut cases, &self.election, |case, election| Case { election, ..case });
        combine(&mut cases, &self.latency_log, |case, latency_log| Case { latency_log, ..case });
        combine(&mut cases, &self.log_readers, |case, log_readers| Case { log_readers, ..case });
        combine(&mut cases, &self.channels, |case, channels| Case { channels, ..case });
        combine(&mut cases, &self.threads, |case, threads| Case { threads, ..case });
        combine(&mut cases, &self.lines, |case, lines| Case { lines, skew_us: self.skew_us, ..case });
        combine(&mut cases, &self.messages, |case, messages_per_packet| Case { messages_per_packet, ..case });
        combine(&mut cases, &self.bursts, |case, burst| Case { burst, ..case });
        combine(&mut cases, &rates, |case, packets_per_s| Case { packets_per_s, ..case });
        Ok(cases)
    }
}

/// Replaces each case by one for each value.
fn combine<T: Copy>(cases: &mut Vec<Case>, values: &[T], with: impl Fn(Case, T) -> Case) {
    *cases = cases.iter().flat_map(|case| values.iter().map(|value| with(*case, *value))).collect();
}

/// The bare loop, once more the bare loop, and the gateways.
fn subjects(options: &WireOptions, directory: &Path) -> Result<Vec<Subject>> {
    let program = compile_bare(directory)?;
    let bare = |name: &str| Subject {
        name: name.to_owned(),
        program: program.clone(),
        kind: SubjectKind::Bare,
        admin: AdminUse::None,
    };
    let mut subjects = vec![bare("bare"), bare("bare-again")];
    let default = env::current_exe()?.with_file_name("mdgw");
    let given = if options.programs.is_empty() {
        vec![("gateway".to_owned(), default)]
    } else {
        options.programs.iter().map(|text| named_program(text)).collect()
    };
    for (name, program) in given {
        ensure!(program.exists(), "there is no {}: build the whole workspace first", program.display());
        ensure!(subjects.iter().all(|subject| subject.name != name), "--program: two programs named {name}");
        for admin in &options.admin {
            let (name, program) = (format!("{name}{}", admin.suffix()), program.clone());
            subjects.push(Subject { name, program, kind: SubjectKind::Gateway, admin: *admin });
        }
    }
    Ok(subjects)
}

/// `NAME=PATH`, or `PATH`.
fn named_program(text: &str) -> (String, PathBuf) {
    match text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/')) {
        Some((name, path)) => (name.to_owned(), path.into()),
        None => ("gateway".to_owned(), text.into()),
    }
}

/// The input of the last case; most cases have the same packets as the one before.
struct Inputs {
    options: WireOptions,
    last: Option<Input>,
}

impl Inputs {
    fn new(options: &WireOptions) -> Self {
        Self { options: options.clone(), last: None }
    }

    fn of(&mut self, case: &Case) -> &mut Input {
        let shape = InputShape {
            messages_per_packet: case.messages_per_packet,
            channel_count: case.channels,
            live_orders: self.options.live_orders,
            warm_up_messages: self.options.warm_up_messages,
            seed: self.options.seed,
        };
        if self.last.as_ref().is_some_and(|input| input.shape != shape) {
            self.last = None;
        }
        self.last.get_or_insert_with(|| Input::new(shape))
    }
}

const SECONDS: f64 = 2.0;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        options: WireOptions,
    }

    fn options(words: &str) -> WireOptions {
        Command::parse_from(std::iter::once("wire").chain(words.split_whitespace())).options
    }

    #[test]
    fn lists_are_combined_each_with_each() {
        let cases = options("--rates 1000,2000 --bursts 1,20 --lines 2 --skew-us 7").cases().unwrap();
        let seen: Vec<_> = cases.iter().map(|case| (case.burst, case.packets_per_s, case.skew_us)).collect();
        assert_eq!(seen, [(1, 1_000, 7), (1, 2_000, 7), (20, 1_000, 7), (20, 2_000, 7)]);
        assert_eq!(options("--search --rates 5000,1000 --bursts 1,5").cases().unwrap().len(), 2);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for words in ["--lines 3", "--channels 129", "--bursts 0", "--rates 0", "--rounds 0", "--seconds 0"] {
            assert!(options(words).cases().is_err(), "{words}");
        }
    }

    #[test]
    fn programs_may_have_names() {
        assert_eq!(named_program("new=/a/b"), ("new".to_owned(), "/a/b".into()));
        assert_eq!(named_program("/a=b/mdgw"), ("gateway".to_owned(), "/a=b/mdgw".into()));
    }
}
