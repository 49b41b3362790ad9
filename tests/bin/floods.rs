//! Floods the listeners of a pair with junk, one kind of listener after the other, and measures what that costs.
//!
//! `cargo run --release -p mdgw-tests --bin floods -- --rounds 10`
//!
//! Real gateways and a witness on hosts of their own (network namespaces, root), under load. Quiet and flooded intervals take
//! turns within a run, so that both meet the same machine. Reported for each target:
//! - processor time of the pool's threads for each packet that the gateway wants (packets of the venue, both lines' copies),
//!   quiet and flooded, and the ratio of each flooded interval to the quiet one beside it;
//! - the share of a core that each other thread takes, quiet and flooded.
//!
//! Each value is a median, with the least and the greatest. Times are the scheduler's (`schedstat`). Junk on the feed's groups
//! goes to the pool itself, so its ratio has no goal. Exit code 1: a median ratio above the goal where the junk goes elsewhere,
//! or a receiver that did not get everything once and in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt,
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use mdgw_tests::{
    failover::LeaseTimingMs,
    testbed::{
        MESSAGES_PER_PACKET, Testbed,
        flood::{Flood, FloodOptions, FloodTarget},
        plan::{ElectionBackend, Plan},
        usage::thread_times_ns,
    },
};

/// Measures what floods of junk cost the threads of a pair.
#[derive(Debug, Parser)]
#[command(name = "floods")]
struct FloodsArgs {
    /// Only this target: feed, output, retransmission, pair-link or votes [default: all, one after the other].
    #[arg(long, value_name = "NAME", value_parser = parse_target)]
    target: Option<FloodTarget>,
    /// Pairs of a quiet and a flooded interval for each target.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of an interval.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Messages of the venue per second.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Datagrams of junk per second to each target.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    datagrams: u64,
    /// Connections per second to each pair link.
    #[arg(long, value_name = "N", default_value_t = 500)]
    connections: u64,
    /// Lease, renewal and margin in ms.
    #[arg(long, value_name = "LEASE/RENEWAL/MARGIN", default_value_t = LeaseTimingMs(600, 120, 120))]
    timing: LeaseTimingMs,
    /// Greatest median ratio where the junk goes elsewhere.
    #[arg(long, value_name = "RATIO", default_value_t = 1.1)]
    goal: f64,
    /// Directory in memory for logs [default: the temporary directory].
    #[arg(long, value_name = "DIRECTORY")]
    fast_dir: Option<PathBuf>,
}

const TARGET_NAMES: [(&str, FloodTarget); 5] = [
    ("feed", FloodTarget::FeedGroups),
    ("output", FloodTarget::OutputGroups),
    ("retransmission", FloodTarget::Retransmission),
    ("pair-link", FloodTarget::PairLink),
    ("votes", FloodTarget::Votes),
];

fn parse_target(name: &str) -> Result<FloodTarget, String> {
    let found = TARGET_NAMES.iter().find(|(known, _)| *known == name).map(|(_, target)| *target);
    found.ok_or_else(|| "must be feed, output, retransmission, pair-link or votes".to_owned())
}

fn main() -> ExitCode {
    let args = FloodsArgs::parse();
    let mut is_within_goal = true;
    for target in FloodTarget::ALL.into_iter().filter(|target| args.target.is_none_or(|wanted| wanted == *target)) {
        let Some(report) = measure(target, &args) else {
            let _ignored = writeln!(std::io::stderr(), "floods: skipped");
            return ExitCode::from(2);
        };
        if let Err(error) = std::io::stdout().write_all(report.to_string().as_bytes()) {
            let _ignored = writeln!(std::io::stderr(), "floods: print: {error}");
            return ExitCode::from(2);
        }
        is_within_goal &= report.is_within(args.goal);
    }
    if is_within_goal { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// One interval, quiet or flooded.
#[derive(Clone, Debug, Default)]
struct Interval {
    /// Processor time of the pool for each wanted packet, ns, by gateway.
    pool_ns_per_packet: BTreeMap<&'static str, f64>,
    /// Share of a core that each other thread took, percent, by process and thread.
    thread_percent: BTreeMap<(&'static str, String), f64>,
    /// Junk that was sent: datagrams and connections.
    junk: u64,
}

/// All intervals of one target.
struct Report {
    target: FloodTarget,
    seconds: u64,
    quiet: Vec<Interval>,
    flooded: Vec<Interval>,
    /// Messages that receivers lost, or got twice or out of order.
    delivery_errors: u64,
}

fn measure(target: FloodTarget, args: &FloodsArgs) -> Option<Report> {
    let seconds = 2 * args.seconds * args.rounds + 30;
    let messages = args.rate * seconds;
    let plan = Plan {
        messages,
        messages_per_second: args.rate as f64,
        timing: args.timing,
        keeps_summaries: true,
        has_packet_tags: target == FloodTarget::OutputGroups,
        history_bytes: (messages * MESSAGE_BYTES_MAX).max(32 << 20),
        fast_dir: args.fast_dir.clone().unwrap_or_else(env::temp_dir),
        ..Plan::relaxed(ElectionBackend::Quorum)
    };
    let mut testbed = Testbed::start("floods", plan)?;
    testbed.start_session();
    testbed.wait_for_more_deliveries(1_000);
    let options = FloodOptions {
        datagrams_per_second: args.datagrams,
        connections_per_second: args.connections,
        forges_addresses: true,
    };
    let length = Duration::from_secs(args.seconds);
    // One of each first: memory is taken, connections are known.
    let _warm_up = [interval(&testbed, length / 2, None), interval(&testbed, length / 2, Some((target, &options)))];
    let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        // Each of the two comes first in turn, so that a drift of the machine favours neither.
        for is_flooded in [round % 2 == 1, round % 2 == 0] {
            let measured = interval(&testbed, length, is_flooded.then_some((target, &options)));
            if is_flooded { flooded.push(measured) } else { quiet.push(measured) }
        }
        let _ignored = writeln!(std::io::stderr(), "{}: round {} of {}", target.name(), round + 1, args.rounds);
    }
    let result = testbed.finish_summaries(Vec::new());
    let errors = result.receivers.iter().map(|receiver| {
        let stream = &receiver.stream;
        stream.out_of_order + stream.declared_gaps + stream.receiver_gaps
    });
    Some(Report { target, seconds: args.seconds, quiet, flooded, delivery_errors: errors.sum() })
}

/// Measures one interval.
fn interval(testbed: &Testbed, length: Duration, flood: Option<(FloodTarget, &FloodOptions)>) -> Interval {
    let flood = flood.map(|(target, options)| Flood::start(testbed, &[target], options));
    let (before, begun) = (Sample::of(testbed), Instant::now());
    std::thread::sleep(length);
    let (after, elapsed_ns) = (Sample::of(testbed), begun.elapsed().as_nanos() as f64);
    let sent = flood.map(Flood::finish).unwrap_or_default();
    let mut interval =
        Interval { junk: sent.values().map(|junk| junk.refusable + junk.others).sum(), ..Interval::default() };
    for (process, times) in &after.times {
        let mut pool_ns = 0;
        for (thread, ns) in times {
            let spent_ns = ns - before.times.get(process).and_then(|times| times.get(thread)).unwrap_or(&0).min(ns);
            if thread.starts_with(POOL) {
                pool_ns += spent_ns;
            } else {
                interval.thread_percent.insert((*process, thread.clone()), 100.0 * spent_ns as f64 / elapsed_ns);
            }
        }
        if let (Some(messages), Some(messages_before)) = (after.messages.get(process), before.messages.get(process)) {
            let packets = (messages - messages_before) as f64 / MESSAGES_PER_PACKET * LINES;
            interval.pool_ns_per_packet.insert(process, pool_ns as f64 / packets.max(1.0));
        }
    }
    interval
}

/// Processor times and message counts at one moment, by process.
struct Sample {
    times: BTreeMap<&'static str, BTreeMap<String, u64>>,
    messages: BTreeMap<&'static str, u64>,
}

impl Sample {
    fn of(testbed: &Testbed) -> Self {
        let leader = testbed.leader();
        let name = |node: u8| {
            if testbed.witness_nodes().contains(&node) {
                "witness"
            } else if node == leader {
                "leader"
            } else {
                "standby"
            }
        };
        let messages =
            testbed.running().into_iter().map(|node| (name(node), testbed.snapshot(node).channels[0].messages));
        let times = testbed.process_ids().into_iter().map(|(node, id)| (name(node), thread_times_ns(id)));
        Self { messages: messages.collect(), times: times.collect() }
    }
}

impl Report {
    fn is_within(&self, goal: f64) -> bool {
        let is_elsewhere = self.target != FloodTarget::FeedGroups;
        let within = GATEWAYS.iter().all(|gateway| self.ratios(gateway).median <= goal);
        self.delivery_errors == 0 && (within || !is_elsewhere)
    }

    /// Ratios of each flooded interval to the quiet one of its round.
    fn ratios(&self, gateway: &str) -> Spread {
        let of = |interval: &Interval| interval.pool_ns_per_packet.get(gateway).copied().unwrap_or_default();
        Spread::of(self.quiet.iter().zip(&self.flooded).map(|(quiet, flooded)| of(flooded) / of(quiet)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let junk = Spread::of(self.flooded.iter().map(|interval| interval.junk as f64 / self.seconds as f64));
        writeln!(
            f,
            "## {}\njunk per second: {junk:.0}; delivery errors: {}",
            self.target.name(),
            self.delivery_errors
        )?;
        writeln!(f, "\n| pool of the | ns per wanted packet, quiet | flooded | ratio |\n|---|---|---|---|")?;
        for gateway in GATEWAYS {
            let of = |intervals: &[Interval]| {
                Spread::of(intervals.iter().filter_map(|interval| interval.pool_ns_per_packet.get(gateway).copied()))
            };
            writeln!(
                f,
                "| {gateway} | {:.0} | {:.0} | {:.3} |",
                of(&self.quiet),
                of(&self.flooded),
                self.ratios(gateway)
            )?;
        }
        writeln!(f, "\n| process | thread | % of a core, quiet | flooded |\n|---|---|---|---|")?;
        let threads: BTreeSet<_> =
            self.quiet.iter().chain(&self.flooded).flat_map(|interval| interval.thread_percent.keys()).collect();
        for thread in threads {
            let of = |intervals: &[Interval]| {
                Spread::of(intervals.iter().map(|interval| interval.thread_percent.get(thread).copied().unwrap_or(0.0)))
            };
            let (quiet, flooded) = (of(&self.quiet), of(&self.flooded));
            // Threads that do nothing are left out.
            if quiet.greatest.max(flooded.greatest) >= 0.1 {
                writeln!(f, "| {} | {} | {quiet:.1} | {flooded:.1} |", thread.0, thread.1)?;
            }
        }
        writeln!(f)
    }
}

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let (Some(least), Some(greatest)) = (values.first(), values.last()) else { return Self::default() };
        Self { median: values[values.len() / 2], least: *least, greatest: *greatest }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Self { median, least, greatest } = self;
        write!(f, "{median:.digits$} ({least:.digits$} to {greatest:.digits$})")
    }
}

const GATEWAYS: [&str; 2] = ["leader", "standby"];
/// Name of the pool in the testbed: its threads are `main-0`, `main-1` …
const POOL: &str = "main-";
/// Lines of the venue.
const LINES: f64 = 2.0;
/// Upper bound of a message with its metadata in the history, bytes.
const MESSAGE_BYTES_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_between_least_and_greatest() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread, Spread { median: 2.0, least: 1.0, greatest: 3.0 });
        assert_eq!(format!("{spread:.1}"), "2.0 (1.0 to 3.0)");
    }

    #[test]
    fn only_a_flood_beside_the_feed_has_a_goal() {
        let interval = |ns: f64| Interval {
            pool_ns_per_packet: GATEWAYS.map(|gateway| (gateway, ns)).into(),
            ..Interval::default()
        };
        let report = |target, flooded_ns, delivery_errors| Report {
            target,
            seconds: 1,
            quiet: vec![interval(100.0)],
            flooded: vec![interval(flooded_ns)],
            delivery_errors,
        };
        assert!(report(FloodTarget::Votes, 109.0, 0).is_within(1.1));
        assert!(!report(FloodTarget::Votes, 112.0, 0).is_within(1.1));
        assert!(report(FloodTarget::FeedGroups, 300.0, 0).is_within(1.1));
        assert!(!report(FloodTarget::FeedGroups, 100.0, 1).is_within(1.1));
    }
}
