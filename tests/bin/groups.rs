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
    failover::LeaseTimingMs,
    groups::{GATEWAYS, GROUPS, GroupCluster, GroupConsumers, RELAXED_TIMING, moved_groups},
    process::{ExitedProcess, Signal},
    stores::{Ensemble, Store},
    world::stall::StallMonitor,
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let (text, code) = match GroupsOptions::of(&args).map(|wanted| wanted.run()) {
        Ok((text, true)) => (text, ExitCode::SUCCESS),
        Ok((text, false)) => (text, ExitCode::FAILURE),
        Err(error) => (format!("groups: {error}\n"), ExitCode::from(2)),
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { ExitCode::from(2) }
}

struct GroupsOptions {
    store: Option<Ensemble>,
    trials: usize,
    timing: LeaseTimingMs,
    rate: String,
}

/// One kill.
struct Trial {
    node: u8,
    moved_groups: BTreeSet<u16>,
    /// Longest silence of the groups that moved, of the others then, and of the others for as long before.
    blackout: Duration,
    others_blackout: Duration,
    others_blackout_before: Duration,
    stall_ns: u64,
    /// Only the dead one's groups moved, to those that live, and came back alone.
    only_expected_groups_moved: bool,
}

impl GroupsOptions {
    fn of(args: &[String]) -> Result<Self, String> {
        let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        let trials = value("--trials").map_or(Ok(4), |text| text.parse()).map_err(|_| "--trials N")?;
        let timing = value("--timing").map_or(Some(RELAXED_TIMING), |text| LeaseTimingMs::parse(text));
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
        let stall_monitor = StallMonitor::start();
        let (mut trials, mut verdicts, mut all_promises_kept) = (Vec::new(), String::new(), true);
        while trials.len() < self.trials {
            let count = (self.trials - trials.len()).min(TRIALS_PER_CLUSTER);
            let (new, faults, verdict) = self.run_cluster(count, &stall_monitor);
            all_promises_kept &= faults.is_empty() && verdict.code == Some(0);
            verdicts.extend(faults.into_iter().map(|fault| format!("wrong: {fault}\n")));
            verdicts.push_str(&verdict.stdout);
            trials.extend(new);
            let _nobody_reads = writeln!(std::io::stderr(), "groups: {} of {}", trials.len(), self.trials);
        }
        all_promises_kept &= trials.iter().all(|trial| trial.only_expected_groups_moved);
        let verdict =
            if all_promises_kept { "all streams whole and once; no group moved that had not to" } else { "NOT kept" };
        (format!("{}\n{verdicts}{verdict}\n", table(&trials)), all_promises_kept)
    }

    /// Some kills of gateways that began together: a group that has moved stays longer each time.
    fn run_cluster(&self, count: usize, stall_monitor: &StallMonitor) -> (Vec<Trial>, Vec<String>, ExitedProcess) {
        let store = self.store.as_ref().map(|ensemble| {
            let endpoints: Vec<String> = ensemble.addresses().iter().map(|address| format!("\"{address}\"")).collect();
            format!("endpoints = [{}]\nprefix = \"/mdgw-{}/\"", endpoints.join(", "), unix_now().0)
        });
        let mut cluster = GroupCluster::new(store, self.timing);
        (1..=GATEWAYS).for_each(|node| cluster.start(node));
        let _spread = cluster.wait_until_balanced(&[1, 2, 3]);
        let consumers = GroupConsumers::start(&cluster, GATEWAYS.into());
        let feed = cluster.feed(&self.rate);
        consumers.wait_for_more_deliveries(100);
        // The first one is a witness: its logs say what had to come.
        let nodes = (2..=GATEWAYS).cycle().take(count);
        let trials = nodes.map(|node| kill(&mut cluster, &consumers, node, stall_monitor)).collect();
        consumers.wait_for_more_deliveries(100);
        let _ended = feed.stop_with(Signal::Kill);
        let (faults, verified) = consumers.verify_streams(&cluster, 1);
        (trials, faults, verified)
    }
}

fn kill(cluster: &mut GroupCluster, consumers: &GroupConsumers, node: u8, stall_monitor: &StallMonitor) -> Trial {
    let leaders = cluster.wait_until_balanced(&[1, 2, 3]);
    let observation_start = Instant::now();
    std::thread::sleep(PERIOD);
    let (killed, killed_ns) = (Instant::now(), unix_now().0);
    cluster.gateways.kill(node);
    let survivors: Vec<u8> = (1..=GATEWAYS).filter(|other| *other != node).collect();
    let without = cluster.wait_until_balanced(&survivors);
    // What follows is as long as what was before.
    std::thread::sleep(PERIOD.saturating_sub(killed.elapsed()));
    let (end, over_ns) = (Instant::now(), unix_now().0);
    let moved = moved_groups(&leaders, &without);
    let rest: BTreeSet<u16> = (1..=GROUPS).filter(|group| !moved.contains(group)).collect();
    let longest = |groups: &BTreeSet<u16>, from, until| {
        groups.iter().map(|group| consumers.longest_blackout(*group, from, until)).max().unwrap_or_default()
    };
    let mut trial = Trial {
        node,
        blackout: longest(&moved, killed, end),
        others_blackout: longest(&rest, killed, end),
        others_blackout_before: longest(&rest, observation_start, killed),
        stall_ns: stall_monitor.worst_ns(killed_ns, over_ns),
        only_expected_groups_moved: rest.iter().all(|group| without[group] == leaders[group])
            && leaders.iter().all(|(group, (leader, _))| moved.contains(group) == (*leader == node)),
        moved_groups: moved,
    };
    cluster.start(node);
    let again = cluster.wait_until_balanced(&[1, 2, 3]);
    let returned = moved_groups(&without, &again);
    trial.only_expected_groups_moved &= returned.iter().all(|group| again[group].0 == node);
    trial.only_expected_groups_moved &=
        without.iter().all(|(group, led)| returned.contains(group) || again[group] == *led);
    trial
}

fn table(trials: &[Trial]) -> String {
    let mut rows = vec!["killed  its groups  silent, ms  the others  before it  stall  right\n".to_owned()];
    for trial in trials {
        let groups: Vec<String> = trial.moved_groups.iter().map(ToString::to_string).collect();
        rows.push(format!(
            "gw{:<5} {:<11} {:>10} {:>11} {:>10} {:>6} {:>6}\n",
            trial.node,
            groups.join(" "),
            ms(trial.blackout),
            ms(trial.others_blackout),
            ms(trial.others_blackout_before),
            ms(Duration::from_nanos(trial.stall_ns)),
            if trial.only_expected_groups_moved { "yes" } else { "NO" }
        ));
    }
    type Column = (&'static str, fn(&Trial) -> Duration);
    let columns: [Column; 3] = [
        ("silence of the dead one's groups", |trial| trial.blackout),
        ("of the others", |trial| trial.others_blackout),
        ("of the others before the kill", |trial| trial.others_blackout_before),
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
const TRIALS_PER_CLUSTER: usize = 4;
