//! Three gateways, six groups, one feed: kills one gateway after another while they publish, and tells what receivers saw.
//!
//!     cargo run --release -p mdgw-tests --features stores --bin groups -- --trials 12 --timing 100/20/20
//!
//! | option | |
//! | --- | --- |
//! | `--trials N` | how many kills (4) |
//! | `--backend file|etcd` | who grants leadership |
//! | `--timing 8000/500/2000` | lease, renewal, margin in ms |
//! | `--rate N` | packets a second on each of the six channels (100) |
//!
//! Silence of a group is the longest time between two messages of it at its receiver. `stall`: the longest time for which a
//! core of this machine could not run a thread. Exit code 1: a stream was not whole, a promise was broken, or a group moved
//! that had not to.

use std::{
    collections::BTreeSet,
    env,
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use mdgw_sys::clock::unix_now;
use mdgw_tests::{
    failover::Timing,
    groups::{Audience, Cluster, GATEWAYS, GROUPS, PATIENT, moved},
    process::{Ended, Signal},
    stores::{Ensemble, Store},
    world::stall::StallWatch,
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let (text, code) = match Wanted::of(&args).map(|wanted| wanted.run()) {
        Ok((text, true)) => (text, ExitCode::SUCCESS),
        Ok((text, false)) => (text, ExitCode::FAILURE),
        Err(error) => (format!("groups: {error}\n"), ExitCode::from(2)),
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { ExitCode::from(2) }
}

struct Wanted {
    store: Option<Ensemble>,
    trials: usize,
    timing: Timing,
    rate: String,
}

/// One kill.
struct Trial {
    node: u8,
    moved: BTreeSet<u16>,
    /// Longest silence of the groups that moved, of the others then, and of the others for as long before.
    silence: Duration,
    others: Duration,
    others_before: Duration,
    stall_ns: u64,
    /// Only the dead one's groups moved, to those that live, and came back alone.
    is_right: bool,
}

impl Wanted {
    fn of(args: &[String]) -> Result<Self, String> {
        let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        let trials = value("--trials").map_or(Ok(4), |text| text.parse()).map_err(|_| "--trials N")?;
        let timing = value("--timing").map_or(Some(PATIENT), |text| Timing::parse(text));
        let timing = timing.ok_or("--timing LEASE/RENEWAL/MARGIN in ms, such as 100/20/20")?;
        let rate = value("--rate").cloned().unwrap_or_else(|| "100".to_owned());
        let store = match value("--backend").map_or("file", String::as_str) {
            "file" => None,
            "etcd" if !cfg!(feature = "stores") => {
                return Err("etcd is not built in: cargo run -p mdgw-tests --features stores --bin groups".to_owned());
            }
            "etcd" if Store::Etcd.is_installed("groups") => Some(Ensemble::start(Store::Etcd, 3)),
            "etcd" => return Err("etcd is not installed".to_owned()),
            other => return Err(format!("--backend {other}: must be file or etcd")),
        };
        Ok(Self { store, trials, timing, rate })
    }

    /// What came of it, and whether all was kept.
    fn run(&self) -> (String, bool) {
        let stalls = StallWatch::start();
        let (mut trials, mut verdicts, mut is_kept) = (Vec::new(), String::new(), true);
        while trials.len() < self.trials {
            let count = (self.trials - trials.len()).min(TRIALS_OF_A_CLUSTER);
            let (new, faults, verdict) = self.run_cluster(count, &stalls);
            is_kept &= faults.is_empty() && verdict.code == Some(0);
            verdicts.extend(faults.into_iter().map(|fault| format!("wrong: {fault}\n")));
            verdicts.push_str(&verdict.stdout);
            trials.extend(new);
            let _nobody_reads = writeln!(std::io::stderr(), "groups: {} of {}", trials.len(), self.trials);
        }
        is_kept &= trials.iter().all(|trial| trial.is_right);
        let verdict = if is_kept { "all streams whole and once; no group moved that had not to" } else { "NOT kept" };
        (format!("{}\n{verdicts}{verdict}\n", table(&trials)), is_kept)
    }

    /// Some kills of gateways that began together: a group that has moved stays longer each time.
    fn run_cluster(&self, count: usize, stalls: &StallWatch) -> (Vec<Trial>, Vec<String>, Ended) {
        let store = self.store.as_ref().map(|ensemble| {
            let endpoints: Vec<String> = ensemble.addresses().iter().map(|address| format!("\"{address}\"")).collect();
            format!("endpoints = [{}]\nprefix = \"/mdgw-{}/\"", endpoints.join(", "), unix_now().0)
        });
        let mut cluster = Cluster::new(store, self.timing);
        (1..=GATEWAYS).for_each(|node| cluster.start(node));
        let _spread = cluster.wait_until_spread(&[1, 2, 3]);
        let audience = Audience::start(&cluster, GATEWAYS.into());
        let feed = cluster.feed(&self.rate);
        audience.wait_for_more(100);
        // The first one is a witness: its logs say what had to come.
        let nodes = (2..=GATEWAYS).cycle().take(count);
        let trials = nodes.map(|node| kill(&mut cluster, &audience, node, stalls)).collect();
        audience.wait_for_more(100);
        let _ended = feed.end_by(Signal::Kill);
        let (faults, verified) = audience.judge(&cluster, 1);
        (trials, faults, verified)
    }
}

fn kill(cluster: &mut Cluster, audience: &Audience, node: u8, stalls: &StallWatch) -> Trial {
    let leaders = cluster.wait_until_spread(&[1, 2, 3]);
    let begun = Instant::now();
    std::thread::sleep(PERIOD);
    let (killed, killed_ns) = (Instant::now(), unix_now().0);
    cluster.gateways.kill(node);
    let others: Vec<u8> = (1..=GATEWAYS).filter(|other| *other != node).collect();
    let without = cluster.wait_until_spread(&others);
    // What follows is as long as what was before.
    std::thread::sleep(PERIOD.saturating_sub(killed.elapsed()));
    let (over, over_ns) = (Instant::now(), unix_now().0);
    let gone = moved(&leaders, &without);
    let rest: BTreeSet<u16> = (1..=GROUPS).filter(|group| !gone.contains(group)).collect();
    let longest = |groups: &BTreeSet<u16>, from, until| {
        groups.iter().map(|group| audience.longest_silence(*group, from, until)).max().unwrap_or_default()
    };
    let mut trial = Trial {
        node,
        silence: longest(&gone, killed, over),
        others: longest(&rest, killed, over),
        others_before: longest(&rest, begun, killed),
        stall_ns: stalls.worst_ns(killed_ns, over_ns),
        is_right: rest.iter().all(|group| without[group] == leaders[group])
            && leaders.iter().all(|(group, (leader, _))| gone.contains(group) == (*leader == node)),
        moved: gone,
    };
    cluster.start(node);
    let again = cluster.wait_until_spread(&[1, 2, 3]);
    let back = moved(&without, &again);
    trial.is_right &= back.iter().all(|group| again[group].0 == node);
    trial.is_right &= without.iter().all(|(group, led)| back.contains(group) || again[group] == *led);
    trial
}

fn table(trials: &[Trial]) -> String {
    let mut rows = vec!["killed  its groups  silent, ms  the others  before it  stall  right\n".to_owned()];
    for trial in trials {
        let groups: Vec<String> = trial.moved.iter().map(ToString::to_string).collect();
        rows.push(format!(
            "gw{:<5} {:<11} {:>10} {:>11} {:>10} {:>6} {:>6}\n",
            trial.node,
            groups.join(" "),
            ms(trial.silence),
            ms(trial.others),
            ms(trial.others_before),
            ms(Duration::from_nanos(trial.stall_ns)),
            if trial.is_right { "yes" } else { "NO" }
        ));
    }
    type Column = (&'static str, fn(&Trial) -> Duration);
    let columns: [Column; 3] = [
        ("silence of the dead one's groups", |trial| trial.silence),
        ("of the others", |trial| trial.others),
        ("of the others before the kill", |trial| trial.others_before),
    ];
    for (name, of) in columns {
        let mut values: Vec<Duration> = trials.iter().map(of).collect();
        values.sort_unstable();
        if let (Some(median), Some(worst)) = (values.get(values.len() / 2), values.last()) {
            rows.push(format!("{name}: median {} ms, worst {} ms\n", ms(*median), ms(*worst)));
        }
    }
    rows.concat()
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

/// How long is looked before a kill, and at least after it.
const PERIOD: Duration = Duration::from_secs(3);
/// Then everything begins anew.
const TRIALS_OF_A_CLUSTER: usize = 4;
