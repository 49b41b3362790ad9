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
    failover::Timing,
    stores::Store,
    world::{
        World,
        cases::{CASES, Case, named},
        plan::{Backend, Plan},
        stall::StallWatch,
        trials::{TABLE_HEAD, Trials},
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
    print(&CASES.map(|case| format!("{:<18} {}\n", case.name, case.about)).concat())?;
    Ok(true)
}

fn print(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| format!("print: {error}"))
}

struct Options {
    /// `None`: all of them.
    case: Option<Case>,
    backend: Option<Backend>,
    timing: Timing,
    has_sentinel: bool,
    has_kernel_fence: bool,
    trials: u64,
    trials_a_day: u64,
    rate: u64,
    lasts_s: u64,
    priority: u8,
    busy: u64,
    fast: PathBuf,
}

/// What is done over and over: a case, and in which world.
#[derive(Clone, Copy)]
struct Kind {
    case: Case,
    backend: Backend,
    timing: Timing,
    has_sentinel: bool,
}

impl Options {
    /// `None`: only the names of the cases are wanted.
    fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        let is_given = |name: &str| args.iter().any(|arg| arg == name);
        let number = |name: &str, default: u64| match value(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} {text}: a number")),
            None => Ok(default),
        };
        let case = match value("--case").map(String::as_str) {
            Some("list") => return Ok(None),
            Some(name) => {
                Some(named(name).ok_or_else(|| format!("--case {name}: none of that name, see --case list"))?)
            }
            None if is_given("--all") => None,
            None => return Err("--all, --case NAME, or --case list".to_owned()),
        };
        let backend =
            |name: &String| Backend::named(name).ok_or_else(|| format!("--backend {name}: none of that name"));
        let timing = value("--timing").map_or("100/20/20", String::as_str);
        Ok(Some(Self {
            case,
            backend: value("--backend").map(backend).transpose()?,
            timing: Timing::parse(timing).ok_or("--timing LEASE/RENEWAL/MARGIN in ms, such as 20/4/4")?,
            has_sentinel: !is_given("--no-sentinel"),
            has_kernel_fence: is_given("--kernel-fence"),
            trials: number("--trials", 50)?,
            trials_a_day: number("--trials-a-day", 5)?.max(1),
            rate: number("--rate", 50_000)?.max(1),
            lasts_s: number("--lasts", 3)?,
            priority: u8::try_from(number("--priority", 0)?).map_err(|_| "--priority 0 to 99")?,
            busy: number("--busy", 0)?,
            fast: value("--fast").map_or_else(env::temp_dir, PathBuf::from),
        }))
    }

    fn run(&self) -> Result<bool, String> {
        let stalls = StallWatch::start();
        for _ in 0..self.busy {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        let Some(case) = self.case else { return self.run_all(&stalls) };
        let kind = Kind {
            case,
            backend: self.backend.unwrap_or(case.backend),
            timing: self.timing,
            has_sentinel: self.has_sentinel,
        };
        let Some(trials) = self.run_kind(kind, &stalls) else { return Err("skipped".to_owned()) };
        print(&trials.told(case.name))?;
        Ok(trials.is_right())
    }

    fn run_all(&self, stalls: &StallWatch) -> Result<bool, String> {
        print(TABLE_HEAD)?;
        let mut is_right = true;
        for kind in kinds(self.timing) {
            let Some(trials) = self.run_kind(kind, stalls) else { continue };
            print(&trials.table_row(&kind.title()))?;
            if !trials.is_right() {
                is_right = false;
                let _nobody_reads = std::io::stderr().write_all(trials.told(&kind.title()).as_bytes());
            }
        }
        Ok(is_right)
    }

    /// `None`: this machine can't do it.
    fn run_kind(&self, kind: Kind, stalls: &StallWatch) -> Option<Trials> {
        let mut trials = Trials::default();
        let mut done = 0;
        while done < self.trials {
            let count = self.trials_a_day.min(self.trials - done);
            let mut blows = Vec::new();
            // A day that breaks off says so, and the next one is played all the same.
            let played = panic::catch_unwind(AssertUnwindSafe(|| {
                let mut world = World::start(&kind.title(), self.plan(kind, count))?;
                world.wait_until_expected();
                world.open_venue();
                world.wait_for_more(1_000);
                for trial in done..done + count {
                    blows.push((kind.case.strike)(&mut world, trial));
                    let _nobody_reads =
                        writeln!(std::io::stderr(), "{}: {} of {}", kind.title(), trial + 1, self.trials);
                }
                Some(world.finish())
            }));
            match played {
                Ok(judged) => trials.take(&kind.case, &blows, &judged?, stalls),
                Err(why) => {
                    let text = why.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                    trials.broke_off(blows.len(), text.unwrap_or_default());
                }
            }
            done += count;
            let _nobody_reads = writeln!(std::io::stderr(), "{}: {}", kind.title(), trials.so_far());
        }
        Some(trials)
    }

    fn plan(&self, kind: Kind, trials: u64) -> Plan {
        // More than the trials take; the venue is stopped after the last.
        let trial_s = 10 + 2 * self.lasts_s.saturating_sub(3);
        let messages = self.rate * (trial_s * trials + 20);
        let mut plan = Plan {
            timing: kind.timing,
            has_sentinel: kind.has_sentinel,
            has_kernel_fence: self.has_kernel_fence,
            messages,
            messages_per_second: self.rate as f64,
            priority: self.priority,
            calm: Duration::from_secs(self.lasts_s),
            // All of it: a gateway that comes back gets it from the other one.
            history_bytes: (messages * MESSAGE_BYTES_MAX).max(32 << 20),
            fast: self.fast.clone(),
            ..Plan::calm(kind.backend)
        };
        (kind.case.prepare)(&mut plan);
        plan
    }
}

impl Kind {
    fn title(&self) -> String {
        let sentinel = if self.has_sentinel { "" } else { ", no sentinel" };
        format!("{}, {} {}{sentinel}", self.case.name, self.backend.name(), self.timing)
    }
}

/// The figures' kinds, then every case over its own backend.
fn kinds(timing: Timing) -> Vec<Kind> {
    const QUORUM: Backend = Backend::Quorum;
    const ETCD: Backend = Backend::Store(Store::Etcd);
    const ZOOKEEPER: Backend = Backend::Store(Store::ZooKeeper);
    let default = Timing(100, 20, 20);
    let figures = [
        ("kill", Backend::File, default, true),
        ("kill", QUORUM, default, true),
        ("kill", ETCD, default, true),
        ("kill", ZOOKEEPER, default, true),
        ("kill", Backend::Emergent, default, true),
        ("kill", QUORUM, Timing(20, 4, 4), false),
        ("kill", QUORUM, Timing(40, 8, 8), false),
        ("kill", ETCD, default, false),
        ("kill", ZOOKEEPER, default, false),
        ("stop", ETCD, default, false),
        ("stop", ZOOKEEPER, default, false),
        ("stop", QUORUM, default, true),
        ("hand-over", Backend::File, default, true),
        ("hand-over", QUORUM, default, true),
        ("hand-over", ETCD, default, true),
        ("hand-over", ZOOKEEPER, default, true),
    ];
    let figures = figures.into_iter().filter_map(|(name, backend, timing, has_sentinel)| {
        Some(Kind { case: named(name)?, backend, timing, has_sentinel })
    });
    let of_figures = ["kill", "hand-over"];
    let cases = CASES.into_iter().filter(|case| !of_figures.contains(&case.name));
    let cases = cases.map(|case| Kind { case, backend: case.backend, timing, has_sentinel: true });
    figures.chain(cases).collect()
}

/// With what is kept beside it.
const MESSAGE_BYTES_MAX: u64 = 64;
