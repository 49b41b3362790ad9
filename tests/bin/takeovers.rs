//! Injects faults into real gateways on hosts of their own (network namespaces), under load, and checks what every receiver
//! received, and for how long it received nothing new.
//!
//! `cargo run --release -p mdgw-tests --features stores --bin takeovers -- --all --trials 50`
//!
//! `--help` lists the options, `--case list` the cases. With `--results FILE` each played day is kept in that file. The same
//! command, given again after an interruption, plays only what is missing.
//!
//! The silence runs from the last record of the old epoch to the first new content of the new one, by kernel timestamps at
//! each receiver. For a fault that must not move leadership it is the longest time without new content. Its parts are the
//! times until the fault, until the sentinel *noticed* the death, until the next leader was *notified*, until it was
//! *elected* (without a sentinel: from the fault, the rest of the lease included), until its first *packet* was received, and
//! until its first new *content*.
//!
//! Before a fault all gateways have caught up, and the harness sends no requests for two renewals. Trials during which a core
//! could not run a thread for more than 2 ms are reported separately; none is left out. Exit code 1: a message was lost,
//! duplicated or out of order, two gateways published at a time, or an outcome was not the expected one.

use std::{
    collections::BTreeMap,
    env,
    io::Write as _,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{ArgGroup, Parser};
use mdgw_tests::{
    failover::LeaseTimingMs,
    process::program,
    stores::Store,
    testbed::{
        Testbed,
        faults::{CASES, FaultCase, case_named},
        plan::{ElectionBackend, Plan},
        results::{Results, RunIdentity},
        stall::StallMonitor,
        trials::{FaultTrials, TABLE_HEAD},
    },
};

/// Injects faults into gateways under load, and checks what every receiver got.
#[derive(Debug, Parser)]
#[command(name = "takeovers", group = ArgGroup::new("cases").required(true).args(["all", "case"]))]
struct TakeoverArgs {
    /// Every case over its own backend, and the benchmark's cases over all backends; prints a table.
    #[arg(long)]
    all: bool,
    /// One case; `list` prints all names.
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Number of faults of each case.
    #[arg(long, value_name = "N", default_value_t = 50)]
    trials: u64,
    /// The lease authority: file, quorum, emergent, etcd or zookeeper [default: as the case says].
    #[arg(long, value_name = "NAME", value_parser = parse_backend)]
    backend: Option<ElectionBackend>,
    /// Lease, renewal and margin in ms.
    #[arg(long, value_name = "LEASE/RENEWAL/MARGIN", default_value_t = LeaseTimingMs(100, 20, 20))]
    timing: LeaseTimingMs,
    /// Without a sentinel: deaths are not announced.
    #[arg(long)]
    no_sentinel: bool,
    /// The kernel drops what a gateway sends past its lease deadline.
    #[arg(long)]
    kernel_fence: bool,
    /// Messages of the venue per second.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Duration of a fault that must change nothing, seconds.
    #[arg(long, value_name = "N", default_value_t = 3)]
    fault_seconds: u64,
    /// Trials before everything is restarted.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    trials_per_day: u64,
    /// Directory in memory for logs and captures [default: the temporary directory].
    #[arg(long, value_name = "DIRECTORY")]
    fast_dir: Option<PathBuf>,
    /// SCHED_FIFO priority of the election threads, 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=99))]
    priority: u8,
    /// Threads that only take processor time.
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy_threads: u64,
    /// Keeps each played day in this file; a run with the same program and options continues there.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Begins anew: an existing results file is renamed to FILE.before.
    #[arg(long, requires = "results")]
    anew: bool,
}

impl TakeoverArgs {
    /// Everything that changes what is run or measured, by name, for the results file.
    fn values(&self) -> BTreeMap<String, String> {
        let Self {
            all,
            case,
            trials,
            backend,
            timing,
            no_sentinel,
            kernel_fence,
            rate,
            fault_seconds,
            trials_per_day,
            fast_dir,
            priority,
            busy_threads,
            results: _,
            anew: _,
        } = self;
        [
            ("all", all.to_string()),
            ("case", case.clone().unwrap_or_default()),
            ("trials", trials.to_string()),
            ("backend", backend.map(ElectionBackend::name).unwrap_or_default().to_owned()),
            ("timing", timing.to_string()),
            ("no-sentinel", no_sentinel.to_string()),
            ("kernel-fence", kernel_fence.to_string()),
            ("rate", rate.to_string()),
            ("fault-seconds", fault_seconds.to_string()),
            ("trials-per-day", trials_per_day.to_string()),
            ("fast-dir", fast_dir.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
            ("priority", priority.to_string()),
            ("busy-threads", busy_threads.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

fn parse_backend(name: &str) -> Result<ElectionBackend, String> {
    ElectionBackend::from_name(name).ok_or_else(|| "must be file, quorum, emergent, etcd or zookeeper".to_owned())
}

fn main() -> ExitCode {
    match Options::new(TakeoverArgs::parse()).and_then(|options| options.map_or_else(list, |options| options.run())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _ignored = writeln!(std::io::stderr(), "takeovers: {error}");
            ExitCode::from(2)
        }
    }
}

fn list() -> Result<bool, String> {
    print(&CASES.map(|case| format!("{:<29} {}\n", case.name, case.description)).concat())?;
    Ok(true)
}

fn print(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| format!("print: {error}"))
}

struct Options {
    /// The case to run; `None`: all cases.
    case: Option<FaultCase>,
    args: TakeoverArgs,
}

/// One kind of trial: a case, its backend and timing.
#[derive(Clone, Copy)]
struct TrialKind {
    case: FaultCase,
    backend: ElectionBackend,
    timing: LeaseTimingMs,
    has_sentinel: bool,
}

impl Options {
    /// Checks the arguments. `Ok(None)`: only the names of the cases were requested.
    fn new(args: TakeoverArgs) -> Result<Option<Self>, String> {
        let case = match args.case.as_deref() {
            Some("list") => return Ok(None),
            Some(name) => Some(case_named(name).ok_or_else(|| format!("--case {name}: unknown, see --case list"))?),
            None => None,
        };
        Ok(Some(Self { case, args }))
    }

    fn run(&self) -> Result<bool, String> {
        let mut results = self.open_results()?;
        let stall_monitor = StallMonitor::start();
        for _ in 0..self.args.busy_threads {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        let Some(case) = self.case else { return self.run_all(&mut results, &stall_monitor) };
        let kind = TrialKind {
            case,
            backend: self.args.backend.unwrap_or(case.backend),
            timing: self.args.timing,
            has_sentinel: !self.args.no_sentinel,
        };
        let Some(trials) = self.run_kind(kind, &mut results, &stall_monitor)? else { return Err("skipped".to_owned()) };
        print(&trials.report(case.name))?;
        Ok(trials.all_as_expected())
    }

    fn run_all(&self, results: &mut Results, stall_monitor: &StallMonitor) -> Result<bool, String> {
        print(TABLE_HEAD)?;
        let mut is_right = true;
        for kind in trial_kinds(self.args.timing) {
            let Some(trials) = self.run_kind(kind, results, stall_monitor)? else { continue };
            print(&trials.table_row(&kind.title()))?;
            if !trials.all_as_expected() {
                is_right = false;
                let _ignored = std::io::stderr().write_all(trials.report(&kind.title()).as_bytes());
            }
        }
        Ok(is_right)
    }

    /// The results of this run so far: from its file, or none.
    fn open_results(&self) -> Result<Results, String> {
        let Some(path) = &self.args.results else { return Ok(Results::default()) };
        if self.args.anew
            && let Some(kept) = Results::set_aside(path).map_err(|error| error.to_string())?
        {
            let _ignored = writeln!(std::io::stderr(), "{} is kept as {}", path.display(), kept.display());
        }
        let own = env::current_exe().map_err(|error| format!("find the own program: {error}"))?;
        let run = RunIdentity::new(&[&own, program()], self.args.values())
            .map_err(|error| format!("read the programs: {error}"))?;
        Results::open(path, &run).map_err(|error| error.to_string())
    }

    /// Runs those trials of one kind that have no results yet, and returns all results; `None`: skipped, since this machine
    /// cannot run them.
    fn run_kind(
        &self,
        kind: TrialKind,
        results: &mut Results,
        stall_monitor: &StallMonitor,
    ) -> Result<Option<FaultTrials>, String> {
        let play = |first, count| self.play_day(kind, first, count, stall_monitor);
        let played = results.play_missing_days(&kind.title(), self.args.trials, self.args.trials_per_day, play);
        played.map_err(|error| error.to_string())
    }

    /// Plays one day with the trials from `first` on; `None`: this machine cannot.
    fn play_day(&self, kind: TrialKind, first: u64, count: u64, stall_monitor: &StallMonitor) -> Option<FaultTrials> {
        let mut injected_faults = Vec::new();
        let (begun, mut first_fault, mut last_fault) = (Instant::now(), None, None);
        // A panic ends one day only: it is recorded, and the next day is played.
        let played = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut testbed = Testbed::start(&kind.title(), self.plan(kind, count))?;
            testbed.wait_until_expectation_ready();
            testbed.start_session();
            testbed.wait_for_more_deliveries(1_000);
            first_fault = Some(begun.elapsed());
            for trial in first..first + count {
                injected_faults.push((kind.case.inject)(&mut testbed, trial));
                let _ignored = writeln!(std::io::stderr(), "{}: {} of {}", kind.title(), trial + 1, self.args.trials);
            }
            last_fault = Some(begun.elapsed());
            Some(testbed.finish())
        }));
        let mut trials = FaultTrials::default();
        match played {
            Ok(result) => trials.record_day(&kind.case, &injected_faults, &result?, stall_monitor),
            Err(why) => {
                let text = why.downcast_ref::<String>().cloned();
                let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                trials.record_aborted_day(injected_faults.len(), text.unwrap_or_default());
            }
        }
        // An aborted day has no times.
        let times = first_fault.zip(last_fault).map(|(first, last)| [first, last - first, begun.elapsed() - last]);
        let times = times.map(|times| times.map(|time| format!("{:.1} s", time.as_secs_f64())));
        let times = times
            .map(|[start, faults, end]| format!("; {start} to the first fault, {faults} of faults, {end} to check"));
        let _ignored = writeln!(
            std::io::stderr(),
            "{}, this day: {}{}",
            kind.title(),
            trials.progress_line(),
            times.unwrap_or_default()
        );
        Some(trials)
    }

    fn plan(&self, kind: TrialKind, trials: u64) -> Plan {
        // The day has more messages than the trials need; the venue is stopped after the last trial.
        let trial_s = 10 + 2 * self.args.fault_seconds.saturating_sub(3);
        let messages = self.args.rate * (trial_s * trials + 20);
        let mut plan = Plan {
            timing: kind.timing,
            has_sentinel: kind.has_sentinel,
            has_kernel_fence: self.args.kernel_fence,
            messages,
            messages_per_second: self.args.rate as f64,
            priority: self.args.priority,
            stable_for: Duration::from_secs(self.args.fault_seconds),
            // The input history holds the whole day, since a restarted gateway may replay it from its peer.
            history_bytes: (messages * MESSAGE_BYTES_MAX).max(32 << 20),
            fast_dir: self.args.fast_dir.clone().unwrap_or_else(env::temp_dir),
            ..Plan::relaxed(kind.backend)
        };
        (kind.case.prepare)(&mut plan);
        plan
    }
}

impl TrialKind {
    fn title(&self) -> String {
        let sentinel = if self.has_sentinel { "" } else { ", no sentinel" };
        format!("{}, {} {}{sentinel}", self.case.name, self.backend.name(), self.timing)
    }
}

/// The kinds of the benchmark table, then every case over its own backend.
fn trial_kinds(timing: LeaseTimingMs) -> Vec<TrialKind> {
    const QUORUM: ElectionBackend = ElectionBackend::Quorum;
    const ETCD: ElectionBackend = ElectionBackend::Store(Store::Etcd);
    const ZOOKEEPER: ElectionBackend = ElectionBackend::Store(Store::ZooKeeper);
    let default = LeaseTimingMs(100, 20, 20);
    let benchmark_kinds = [
        ("kill", ElectionBackend::File, default, true),
        ("kill", QUORUM, default, true),
        ("kill", ETCD, default, true),
        ("kill", ZOOKEEPER, default, true),
        ("kill", ElectionBackend::Emergent, default, true),
        ("kill", QUORUM, LeaseTimingMs(20, 4, 4), false),
        ("kill", QUORUM, LeaseTimingMs(40, 8, 8), false),
        ("kill", ETCD, default, false),
        ("kill", ZOOKEEPER, default, false),
        ("pause", ETCD, default, false),
        ("pause", ZOOKEEPER, default, false),
        ("pause", QUORUM, default, true),
        ("hand-over", ElectionBackend::File, default, true),
        ("hand-over", QUORUM, default, true),
        ("hand-over", ETCD, default, true),
        ("hand-over", ZOOKEEPER, default, true),
    ];
    let benchmark_kinds = benchmark_kinds.into_iter().filter_map(|(name, backend, timing, has_sentinel)| {
        Some(TrialKind { case: case_named(name)?, backend, timing, has_sentinel })
    });
    let benchmark_cases = ["kill", "hand-over"];
    let cases = CASES.into_iter().filter(|case| !benchmark_cases.contains(&case.name));
    let cases = cases.map(|case| TrialKind { case, backend: case.backend, timing, has_sentinel: true });
    benchmark_kinds.chain(cases).collect()
}

/// Upper bound of a message with its metadata in the history, bytes.
const MESSAGE_BYTES_MAX: u64 = 64;
