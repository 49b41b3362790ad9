//! Takeovers between real gateways on hosts of their own (network namespaces), under load, again and again; what every
//! receiver was told is judged, and for how long it was told nothing.
//!
//! `cargo run --release -p mdgw-tests --features stores --bin takeovers -- --all --trials 50`
//!
//! | option | |
//! | --- | --- |
//! | `--all` | every case over its own backend, the figures' cases over all of them; prints a table |
//! | `--case NAME` | one case; `--case list` names all |
//! | `--trials N` | how often (50) |
//! | `--backend file|quorum|emergent|etcd|zookeeper` | who grants leadership, if not as the case says |
//! | `--timing 100/20/20` | lease, renewal, margin in ms |
//! | `--no-sentinel` | nobody tells of a death |
//! | `--kernel-fence` | the kernel refuses what a gateway sends past its deadline (`kernel_fence`) |
//! | `--rate N` | messages of the venue in a second (50,000) |
//! | `--lasts N` | for how many seconds what must change nothing lasts (3) |
//! | `--trials-a-day N` | trials before everything is started anew (5) |
//! | `--fast DIRECTORY` | memory for logs and captures |
//! | `--priority N` | SCHED_FIFO priority of the election threads |
//! | `--busy N` | threads that do nothing but take the processor's time |
//!
//! Silence is from the last record of the old epoch to the first new content of the new one, by the kernel's stamps at each
//! receiver; where nothing may move, it is the longest time without anything new. Its split: until the blow, until the
//! sentinel *noticed* the death, the next leader was *told*, was *elected* (without a sentinel: from the blow, the lease's
//! end included), its first *packet* was heard, and its first new *content*. Before a blow all gateways are level again and
//! the harness asks for nothing during two renewals. Trials during which a core could not run a thread for more than 2 ms
//! are told apart, and none is left out. Exits with 1 when anything was lost, doubled, out of order, published by two at a
//! time, or otherwise not as it has to be.

use std::{
    env,
    io::Write as _,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use mdgw_tests::{
    failover::LeaseTimingMs,
    stores::Store,
    world::{
        Testbed,
        faults::{CASES, FaultCase, case_named},
        plan::{ElectionBackend, Plan},
        stall::StallMonitor,
        trials::{FaultTrials, TABLE_HEAD},
    },
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match Options::parse(&args).and_then(|options| options.map_or_else(list, |options| options.run())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "takeovers: {error}");
            ExitCode::from(2)
        }
    }
}

fn list() -> Result<bool, String> {
    print(&CASES.map(|case| format!("{:<18} {}\n", case.name, case.description)).concat())?;
    Ok(true)
}

fn print(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| format!("print: {error}"))
}

struct Options {
    /// `None`: all of them.
    case: Option<FaultCase>,
    backend: Option<ElectionBackend>,
    timing: LeaseTimingMs,
    has_sentinel: bool,
    has_kernel_fence: bool,
    trials: u64,
    trials_per_day: u64,
    rate: u64,
    fault_s: u64,
    priority: u8,
    busy_threads: u64,
    fast_dir: PathBuf,
}

/// What is done over and over: a case, and in which world.
#[derive(Clone, Copy)]
struct TrialKind {
    case: FaultCase,
    backend: ElectionBackend,
    timing: LeaseTimingMs,
    has_sentinel: bool,
}

impl Options {
    /// `None`: only the names of the cases are wanted.
    fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        let has_flag = |name: &str| args.iter().any(|arg| arg == name);
        let number = |name: &str, default: u64| match value(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} {text}: a number")),
            None => Ok(default),
        };
        let case = match value("--case").map(String::as_str) {
            Some("list") => return Ok(None),
            Some(name) => {
                Some(case_named(name).ok_or_else(|| format!("--case {name}: none of that name, see --case list"))?)
            }
            None if has_flag("--all") => None,
            None => return Err("--all, --case NAME, or --case list".to_owned()),
        };
        let backend = |name: &String| {
            ElectionBackend::from_name(name).ok_or_else(|| format!("--backend {name}: none of that name"))
        };
        let timing = value("--timing").map_or("100/20/20", String::as_str);
        Ok(Some(Self {
            case,
            backend: value("--backend").map(backend).transpose()?,
            timing: LeaseTimingMs::parse(timing).ok_or("--timing LEASE/RENEWAL/MARGIN in ms, such as 20/4/4")?,
            has_sentinel: !has_flag("--no-sentinel"),
            has_kernel_fence: has_flag("--kernel-fence"),
            trials: number("--trials", 50)?,
            trials_per_day: number("--trials-a-day", 5)?.max(1),
            rate: number("--rate", 50_000)?.max(1),
            fault_s: number("--lasts", 3)?,
            priority: u8::try_from(number("--priority", 0)?).map_err(|_| "--priority 0 to 99")?,
            busy_threads: number("--busy", 0)?,
            fast_dir: value("--fast").map_or_else(env::temp_dir, PathBuf::from),
        }))
    }

    fn run(&self) -> Result<bool, String> {
        let stall_monitor = StallMonitor::start();
        for _ in 0..self.busy_threads {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        let Some(case) = self.case else { return self.run_all(&stall_monitor) };
        let kind = TrialKind {
            case,
            backend: self.backend.unwrap_or(case.backend),
            timing: self.timing,
            has_sentinel: self.has_sentinel,
        };
        let Some(trials) = self.run_kind(kind, &stall_monitor) else { return Err("skipped".to_owned()) };
        print(&trials.report(case.name))?;
        Ok(trials.all_as_expected())
    }

    fn run_all(&self, stall_monitor: &StallMonitor) -> Result<bool, String> {
        print(TABLE_HEAD)?;
        let mut is_right = true;
        for kind in trial_kinds(self.timing) {
            let Some(trials) = self.run_kind(kind, stall_monitor) else { continue };
            print(&trials.table_row(&kind.title()))?;
            if !trials.all_as_expected() {
                is_right = false;
                let _nobody_reads = std::io::stderr().write_all(trials.report(&kind.title()).as_bytes());
            }
        }
        Ok(is_right)
    }

    /// `None`: this machine can't do it.
    fn run_kind(&self, kind: TrialKind, stall_monitor: &StallMonitor) -> Option<FaultTrials> {
        let mut trials = FaultTrials::default();
        let mut done = 0;
        while done < self.trials {
            let count = self.trials_per_day.min(self.trials - done);
            let mut injected_faults = Vec::new();
            // A day that breaks off says so, and the next one is played all the same.
            let played = panic::catch_unwind(AssertUnwindSafe(|| {
                let mut world = Testbed::start(&kind.title(), self.plan(kind, count))?;
                world.wait_until_expectation_ready();
                world.start_session();
                world.wait_for_more_deliveries(1_000);
                for trial in done..done + count {
                    injected_faults.push((kind.case.inject)(&mut world, trial));
                    let _nobody_reads =
                        writeln!(std::io::stderr(), "{}: {} of {}", kind.title(), trial + 1, self.trials);
                }
                Some(world.finish())
            }));
            match played {
                Ok(result) => trials.record_day(&kind.case, &injected_faults, &result?, stall_monitor),
                Err(why) => {
                    let text = why.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                    trials.record_aborted_day(injected_faults.len(), text.unwrap_or_default());
                }
            }
            done += count;
            let _nobody_reads = writeln!(std::io::stderr(), "{}: {}", kind.title(), trials.progress_line());
        }
        Some(trials)
    }

    fn plan(&self, kind: TrialKind, trials: u64) -> Plan {
        // More than the trials take; the venue is stopped after the last.
        let trial_s = 10 + 2 * self.fault_s.saturating_sub(3);
        let messages = self.rate * (trial_s * trials + 20);
        let mut plan = Plan {
            timing: kind.timing,
            has_sentinel: kind.has_sentinel,
            has_kernel_fence: self.has_kernel_fence,
            messages,
            messages_per_second: self.rate as f64,
            priority: self.priority,
            stable_for: Duration::from_secs(self.fault_s),
            // All of it: a gateway that comes back gets it from the other one.
            history_bytes: (messages * MESSAGE_BYTES_MAX).max(32 << 20),
            fast_dir: self.fast_dir.clone(),
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

/// The figures' kinds, then every case over its own backend.
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

/// With what is kept beside it.
const MESSAGE_BYTES_MAX: u64 = 64;
