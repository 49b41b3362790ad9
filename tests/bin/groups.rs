//! Three gateways, six groups, one feed: kills one gateway after another while they publish, and reports what receivers received.
//!
//!     cargo run --release -p mdgw-tests --features stores --bin groups -- --trials 12 --timing 100/20/20
//!
//! `--help` lists the options. The silence of a group is the longest time between two of its messages at its receiver.
//! `stall` is the longest time for which a core of this machine could not run a thread. Exit code 1: a stream was not
//! complete, a promise was broken, or a group moved without need.

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use mdgw_sys::clock::unix_now;
use mdgw_tests::{
    failover::LeaseTimingMs,
    groups::{GATEWAYS, GROUPS, GroupCluster, GroupConsumers, RELAXED_TIMING, moved_groups},
    process::{ExitedProcess, Signal},
    stores::{Ensemble, Store},
    testbed::stall::StallMonitor,
};

/// Kills gateways that share six groups, and reports silences and moved groups.
#[derive(Debug, Parser)]
#[command(name = "groups")]
struct GroupsArgs {
    /// Number of kills.
    #[arg(long, value_name = "N", default_value_t = 4)]
    trials: usize,
    /// Where the election records are kept.
    #[arg(long, value_enum, default_value_t = GroupsBackend::File)]
    backend: GroupsBackend,
    /// Lease, renewal and margin in ms.
    #[arg(long, value_name = "LEASE/RENEWAL/MARGIN", default_value_t = RELAXED_TIMING)]
    timing: LeaseTimingMs,
    /// Packets per second on each of the six channels.
    #[arg(long, value_name = "N", default_value = "100")]
    rate: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GroupsBackend {
    /// Record files.
    File,
    /// Three nodes of etcd.
    Etcd,
}

fn main() -> ExitCode {
    let (text, code) = match GroupsRun::new(GroupsArgs::parse()).map(|groups| groups.run()) {
        Ok((text, true)) => (text, ExitCode::SUCCESS),
        Ok((text, false)) => (text, ExitCode::FAILURE),
        Err(error) => (format!("groups: {error}\n"), ExitCode::from(2)),
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { ExitCode::from(2) }
}

struct GroupsRun {
    store: Option<Ensemble>,
    trials: usize,
    timing: LeaseTimingMs,
    rate: String,
}

/// One trial: a gateway is killed and restarted.
struct Trial {
    node: u8,
    moved_groups: BTreeSet<u16>,
    /// Longest silence of the groups that moved. `others_silence`: of the other groups in the same period;
    /// `others_silence_before`: of the other groups in an equal period before the kill.
    silence: Duration,
    others_silence: Duration,
    others_silence_before: Duration,
    stall_ns: u64,
    /// After the kill only groups of the killed gateway moved, and only to surviving gateways. After its restart no
    /// other group moved.
    only_expected_groups_moved: bool,
}

impl GroupsRun {
    fn new(args: GroupsArgs) -> Result<Self, String> {
        let GroupsArgs { trials, backend, timing, rate } = args;
        let store = match backend {
            GroupsBackend::File => None,
            GroupsBackend::Etcd if !cfg!(feature = "stores") => {
                return Err("etcd is not built in: cargo run -p mdgw-tests --features stores --bin groups".to_owned());
            }
            GroupsBackend::Etcd if Store::Etcd.is_installed("groups") => Some(Ensemble::start(Store::Etcd, 3)),
            GroupsBackend::Etcd => return Err("etcd is not installed".to_owned()),
        };
        Ok(Self { store, trials, timing, rate })
    }

    /// Runs all trials. Returns the report, and whether every promise was kept.
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
            let _ignored = writeln!(std::io::stderr(), "groups: {} of {}", trials.len(), self.trials);
        }
        all_promises_kept &= trials.iter().all(|trial| trial.only_expected_groups_moved);
        let verdict = if all_promises_kept {
            "every stream complete and without duplicates; no group moved without need"
        } else {
            "NOT kept"
        };
        (format!("{}\n{verdicts}{verdict}\n", table(&trials)), all_promises_kept)
    }

    /// Runs `count` trials with one cluster. The number is limited, since the minimum tenure of a moved group grows
    /// with each move.
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
        // Gateway 1 is never killed: its logs are the reference.
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
    // Observe for as long as before the kill.
    std::thread::sleep(PERIOD.saturating_sub(killed.elapsed()));
    let (end, over_ns) = (Instant::now(), unix_now().0);
    let moved = moved_groups(&leaders, &without);
    let rest: BTreeSet<u16> = (1..=GROUPS).filter(|group| !moved.contains(group)).collect();
    let longest = |groups: &BTreeSet<u16>, from, until| {
        groups.iter().map(|group| consumers.longest_silence(*group, from, until)).max().unwrap_or_default()
    };
    let mut trial = Trial {
        node,
        silence: longest(&moved, killed, end),
        others_silence: longest(&rest, killed, end),
        others_silence_before: longest(&rest, observation_start, killed),
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
    let mut rows = vec!["killed  its groups  silence, ms  other groups  before  stall  right\n".to_owned()];
    for trial in trials {
        let groups: Vec<String> = trial.moved_groups.iter().map(ToString::to_string).collect();
        rows.push(format!(
            "gw{:<5} {:<11} {:>12} {:>13} {:>7} {:>6} {:>6}\n",
            trial.node,
            groups.join(" "),
            ms(trial.silence),
            ms(trial.others_silence),
            ms(trial.others_silence_before),
            ms(Duration::from_nanos(trial.stall_ns)),
            if trial.only_expected_groups_moved { "yes" } else { "NO" }
        ));
    }
    type Column = (&'static str, fn(&Trial) -> Duration);
    let columns: [Column; 3] = [
        ("silence of the killed gateway's groups", |trial| trial.silence),
        ("of the other groups", |trial| trial.others_silence),
        ("of the other groups before the kill", |trial| trial.others_silence_before),
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

/// Observation time before a kill, and at least as long after it.
const PERIOD: Duration = Duration::from_secs(3);
/// Trials before everything is restarted.
const TRIALS_PER_CLUSTER: usize = 4;
