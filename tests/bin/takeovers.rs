//! Takeovers between real gateways on hosts of their own (network namespaces), under load, again and again; what every
//! receiver was told is judged, and for how long it was told nothing.
//!
//! `cargo run --release -p mdgw-tests --features stores --bin takeovers -- --case kill --trials 50`
//!
//! | option | |
//! | --- | --- |
//! | `--case NAME` | what is done to the leader; `--case list` names all |
//! | `--trials N` | how often |
//! | `--backend file|quorum|etcd|zookeeper` | who grants leadership |
//! | `--timing 100/20/20` | lease, renewal, margin in ms |
//! | `--no-sentinel` | nobody tells of a death |
//! | `--rate N` | messages of the venue in a second |
//! | `--trials-a-day N` | trials before everything is started anew |
//! | `--fast DIRECTORY` | memory for logs and captures |
//! | `--priority N` | SCHED_FIFO priority of the election threads |
//!
//! Silence is from the last record of the old epoch to the first new content of the new one, by the kernel's stamps at each
//! receiver. Trials during which a core could not run a thread for more than 2 ms are told apart.

use std::{env, io::Write as _, path::PathBuf, process::ExitCode};

use mdgw_tests::{
    failover::{Timing, ms},
    world::{
        Backend, Plan, World,
        cases::{Blow, CASES, Case, named},
        judge::{Change, Faults, Judged, longest_silence_ns},
        stall::StallWatch,
    },
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let (text, code) = match Options::parse(&args).map(|options| options.map_or_else(list, |options| options.run())) {
        Ok((text, is_right)) => (text, if is_right { ExitCode::SUCCESS } else { ExitCode::from(1) }),
        Err(error) => (format!("takeovers: {error}\n"), ExitCode::from(2)),
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { ExitCode::from(2) }
}

fn list() -> (String, bool) {
    (CASES.map(|case| format!("{:<12} {}\n", case.name, case.about)).concat(), true)
}

struct Options {
    case: Case,
    trials: u64,
    trials_a_day: u64,
    plan: Plan,
}

impl Options {
    /// `None`: only the names of the cases are wanted.
    fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        let number = |name: &str, default: u64| match value(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} {text}: a number")),
            None => Ok(default),
        };
        let name = value("--case").ok_or("--case NAME, or --case list")?;
        if name == "list" {
            return Ok(None);
        }
        let case = named(name).ok_or_else(|| format!("--case {name}: none of that name, see --case list"))?;
        let backend = value("--backend").map_or("file", String::as_str);
        let backend = Backend::named(backend).ok_or_else(|| format!("--backend {backend}: none of that name"))?;
        let timing = value("--timing").map_or("100/20/20", String::as_str);
        let timing = Timing::parse(timing).ok_or("--timing LEASE/RENEWAL/MARGIN in ms, such as 20/4/4")?;
        let trials_a_day = number("--trials-a-day", 10)?.max(1);
        let rate = number("--rate", 50_000)?.max(1);
        let plan = Plan {
            timing,
            has_sentinel: !args.iter().any(|arg| arg == "--no-sentinel"),
            // More than the trials take; the venue is stopped after the last.
            messages: rate * (10 * trials_a_day + 20),
            messages_per_second: rate as f64,
            priority: u8::try_from(number("--priority", 0)?).map_err(|_| "--priority 0 to 99")?,
            fast: value("--fast").map_or_else(env::temp_dir, PathBuf::from),
            ..Plan::calm(backend)
        };
        Ok(Some(Self { case, trials: number("--trials", 50)?, trials_a_day, plan }))
    }

    fn run(self) -> (String, bool) {
        let stalls = StallWatch::start();
        let mut trials = Trials::default();
        let mut done = 0;
        while done < self.trials {
            let Some(mut world) = World::start("takeovers", self.plan.clone()) else {
                return ("takeovers: skipped\n".to_owned(), false);
            };
            world.open_venue();
            world.wait_for_more(1_000);
            let mut blows = Vec::new();
            for _ in 0..self.trials_a_day.min(self.trials - done) {
                blows.push((self.case.strike)(&mut world, done));
                done += 1;
                let _nobody_reads = writeln!(std::io::stderr(), "{}: {done} of {}", self.case.name, self.trials);
            }
            trials.take(&blows, &world.finish(), &stalls);
        }
        (trials.told(self.case.name), trials.is_right())
    }
}

/// One blow at one receiver, ns.
#[derive(Clone, Copy)]
struct Trial {
    silence_ns: u64,
    /// From the blow until the next leader knew that it leads.
    gained_ns: Option<u64>,
    /// From there to its first packet.
    packet_ns: Option<u64>,
    /// From there to the first new content.
    content_ns: u64,
    is_stalled: bool,
}

#[derive(Default)]
struct Trials {
    trials: Vec<Trial>,
    blows: usize,
    /// Blows that some receiver saw no change after.
    unseen: usize,
    faults: Faults,
    /// Worlds in whose captures `mdgw ha verify` found something.
    broken: usize,
    verdicts: String,
    /// Changes that no blow caused.
    besides: usize,
    stalled_blows: usize,
    /// Longest silence during a blow that must change nothing, and as long before it without one, ns.
    calm: Vec<(u64, u64)>,
}

impl Trials {
    fn take(&mut self, blows: &[Blow], judged: &Judged, stalls: &StallWatch) {
        for blow in blows {
            self.blows += 1;
            if let Some(until_ns) = blow.calm_until_ns {
                let length_ns = until_ns - blow.struck_ns;
                for received in &judged.received {
                    let silence = |from_ns| longest_silence_ns(received, from_ns, from_ns + length_ns);
                    self.calm.push((silence(blow.struck_ns), silence(blow.struck_ns - length_ns)));
                }
                self.stalled_blows += usize::from(stalls.worst_ns(blow.struck_ns, until_ns) > STALL_NS);
                continue;
            }
            let changes: Vec<&Change> =
                judged.changes.iter().filter_map(|all| all.iter().find(|change| change.from == blow.before)).collect();
            self.unseen += usize::from(changes.len() < judged.changes.len());
            let until_ns = changes.iter().map(|change| change.first_content_ns).max().unwrap_or(blow.struck_ns);
            let is_stalled = stalls.worst_ns(blow.struck_ns, until_ns) > STALL_NS;
            self.stalled_blows += usize::from(is_stalled);
            for change in changes {
                let gained = judged.gained_ns.get(&change.to);
                self.trials.push(Trial {
                    silence_ns: change.silence_ns(),
                    gained_ns: gained.map(|gained| gained.saturating_sub(blow.struck_ns)),
                    packet_ns: gained.map(|gained| change.first_packet_ns.saturating_sub(*gained)),
                    content_ns: change.first_content_ns.saturating_sub(change.first_packet_ns),
                    is_stalled,
                });
            }
        }
        let most = judged.changes.iter().map(Vec::len).max().unwrap_or(0);
        let wanted = blows.iter().filter(|blow| blow.calm_until_ns.is_none()).count();
        self.besides += most.saturating_sub(wanted);
        for faults in &judged.faults {
            self.faults.add(faults);
        }
        if judged.verified["kept"] != true {
            self.broken += 1;
            self.verdicts += &judged.verdict;
        }
    }

    fn is_right(&self) -> bool {
        self.broken == 0
            && self.faults == Faults::default()
            && self.unseen == 0
            && (self.calm.is_empty() || self.besides == 0)
    }

    fn told(&self, name: &str) -> String {
        let mut text = format!(
            "{name}: {} trials, {} of them while a core stalled for more than 2 ms; {} changes besides\n\
             ms, over all receivers              count   median    worst\n",
            self.blows, self.stalled_blows, self.besides
        );
        let kept = |wanted: &dyn Fn(&Trial) -> Option<u64>, is_stalled: Option<bool>| {
            let trials = self.trials.iter().filter(|trial| is_stalled.is_none_or(|is| trial.is_stalled == is));
            trials.filter_map(wanted).collect::<Vec<u64>>()
        };
        let silence = |trial: &Trial| Some(trial.silence_ns);
        text += &row("longest silence during it", self.calm.iter().map(|(during, _)| *during).collect());
        text += &row("  as long before it", self.calm.iter().map(|(_, before)| *before).collect());
        text += &row("silence", kept(&silence, None));
        text += &row("  without a stall", kept(&silence, Some(false)));
        text += &row("  with one", kept(&silence, Some(true)));
        text += &row("blow to knowing that it leads", kept(&|trial| trial.gained_ns, None));
        text += &row("  to its first packet", kept(&|trial| trial.packet_ns, None));
        text += &row("  to its first new content", kept(&|trial| Some(trial.content_ns), None));
        text += &format!("{:?}\nblows that some receiver saw no change after: {}\n", self.faults, self.unseen);
        text += &format!("days in which `mdgw ha verify` found something: {}\n{}", self.broken, self.verdicts);
        text
    }
}

fn row(name: &str, mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let Some((median, worst)) = times.get(times.len() / 2).zip(times.last()) else {
        return format!("{name:<35} {:>5}\n", 0);
    };
    format!("{name:<35} {:>5} {:>8} {:>8}\n", times.len(), ms(*median), ms(*worst))
}

const STALL_NS: u64 = 2_000_000;
