//! A host without keys floods every listener of a pair with junk: nothing moves, nothing is lost, nothing grows, and what is
//! refused is counted by its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use mdgw_status::snapshot::ListenerSnapshot;
use mdgw_sys::clock::unix_now;
use mdgw_tests::{
    captures::print_to_stderr,
    process::wait_until,
    testbed::{
        LINES, LINK_PORT, OUTPUT, RETRANSMISSION_PORT, Testbed, VOTE_PORT,
        checker::RunResult,
        faults::{ExpectedOutcome, InjectedFault},
        flood::{Flood, FloodOptions, FloodTarget, SentByTarget, SentJunk},
        plan::{ElectionBackend, Plan},
        stall::StallMonitor,
        usage::{ResourceUse, socket_drops},
    },
};

/// With tags, since junk with believable headers is a packet of the leader otherwise.
fn tagged_plan() -> Plan {
    Plan { has_packet_tags: true, ..Plan::relaxed(ElectionBackend::Quorum) }
}

const FLOOD: FloodOptions =
    FloodOptions { datagrams_per_second: 2_000, connections_per_second: 300, forges_addresses: true };
/// How long a flood lasts at least, and before it a quiet time of the same length.
const FLOOD_TIME: Duration = Duration::from_secs(5);

#[test]
fn a_flooded_pair_keeps_its_leader_loses_nothing_and_counts_what_it_refuses() {
    let test = "a_flooded_pair_keeps_its_leader_loses_nothing_and_counts_what_it_refuses";
    let stall_monitor = StallMonitor::start();
    let Some(mut testbed) = Testbed::start(test, tagged_plan()) else { return };
    testbed.wait_until_expectation_ready();
    testbed.start_session();
    testbed.wait_for_more_deliveries(500);
    let start = Usage::of(&testbed);
    std::thread::sleep(FLOOD_TIME);
    let quiet = Usage::of(&testbed);
    let (counted_before, lines_before) = (Counted::of(&testbed), testbed.log_lines());
    let (epoch_before, injected_ns) = (testbed.epoch(), unix_now().0);
    let flood = Flood::start(&testbed, &FloodTarget::ALL, &FLOOD);
    let mut during = quiet.clone();
    std::thread::sleep(FLOOD_TIME);
    wait_until("a gateway that kept what it refuses would have exceeded its bounds", || {
        during.raise_to(&Usage::of(&testbed));
        exceeds_bounds(&flood.sent())
    });
    let sent = flood.finish();
    let stable_until_ns = Some(unix_now().0);
    testbed.wait_for_more_deliveries(500);

    let counted = Counted::once_complete(&testbed, &counted_before, &sent);
    counted.assert_counts(&sent);
    during.assert_bounded(&start, &quiet);
    for (node, lines) in testbed.log_lines() {
        let written = lines - lines_before[&node];
        assert!(written <= LOG_LINES_MAX, "node {node} wrote {written} lines");
    }
    counted.assert_witness_counts(&mut testbed, &sent);

    let fault = InjectedFault { epoch_before, injected_ns, stable_until_ns };
    assert_undisturbed(test, testbed, &fault, &stall_monitor);
}

/// Every packet of an output without tags from a sender that is no gateway, with any epoch, is believed: that is the part of
/// the junk that [`FloodTarget::OutputGroups`] leaves out here. The rest changes nothing.
#[test]
fn junk_on_the_output_group_changes_nothing_without_tags() {
    let test = "junk_on_the_output_group_changes_nothing_without_tags";
    let stall_monitor = StallMonitor::start();
    let Some(mut testbed) = Testbed::start(test, Plan::relaxed(ElectionBackend::File)) else { return };
    testbed.start_session();
    testbed.wait_for_more_deliveries(500);
    let (epoch_before, injected_ns) = (testbed.epoch(), unix_now().0);
    let flood = Flood::start(&testbed, &[FloodTarget::OutputGroups], &FLOOD);
    std::thread::sleep(FLOOD_TIME / 2);
    let sent = flood.finish();
    testbed.wait_for_more_deliveries(500);
    assert!(sent.values().all(|junk| !junk.reasons.contains("tag_missing")), "{sent:?}");
    let fault = InjectedFault { epoch_before, injected_ns, stable_until_ns: Some(unix_now().0) };
    assert_undisturbed(test, testbed, &fault, &stall_monitor);
}

/// The ruleset of the guide, on the hosts of gateways and witness: under a flood the leader is killed, and the pair does
/// everything that it has to do through the filter.
#[test]
fn the_guides_packet_filter_drops_a_flood_and_lets_a_takeover_pass() {
    let test = "the_guides_packet_filter_drops_a_flood_and_lets_a_takeover_pass";
    let Some(mut testbed) = Testbed::start(test, tagged_plan()) else { return };
    let nodes: Vec<u8> = testbed.process_ids().into_keys().collect();
    nodes.iter().for_each(|node| apply_packet_filter(&testbed, *node));
    testbed.start_session();
    testbed.wait_for_more_deliveries(500);
    let counted_before = Counted::of(&testbed);
    // What an address filter can tell apart. Connections would wait for answers that no filtered host sends.
    let flooded = FloodTarget::ALL;
    let options = FloodOptions { forges_addresses: false, connections_per_second: 0, ..FLOOD };
    let flood = Flood::start(&testbed, &flooded, &options);
    testbed.wait_for_more_deliveries(2_000);
    let counted = Counted::of(&testbed).since(&counted_before);
    assert!(counted.refused.values().all(BTreeMap::is_empty), "{counted:?}");

    let (killed, epoch) = (testbed.leader(), testbed.epoch());
    let _at = testbed.kill(killed);
    let _next = testbed.wait_for_content_after(epoch);
    testbed.start_gateway(killed);
    testbed.wait_until_eligible(killed);
    testbed.wait_for_more_deliveries(500);
    let sent = flood.finish();
    for node in nodes {
        let dropped = dropped_by_filter(&testbed, node);
        // Junk on a group reaches the witness's host too, and its filter drops it there.
        assert!(dropped > 0, "the filter of node {node} dropped nothing");
    }
    assert!(sent.values().map(|junk| junk.refusable).sum::<u64>() > 1_000, "{sent:?}");
    let survivor = 3 - killed;
    let listeners = testbed.snapshot(survivor).listeners;
    let refused =
        |listener: &&ListenerSnapshot| listener.refused.keys().any(|reason| JUNK_REASONS.contains(&&**reason));
    assert_eq!(listeners.iter().filter(refused).count(), 0, "{listeners:?}");
    testbed.finish().assert_no_errors();
}

/// Reasons that only junk has, and no takeover.
const JUNK_REASONS: [&str; 4] = ["malformed", "forged", "too_long", "unknown_source"];

/// Nothing was lost, duplicated or published by two, and leadership stayed where it was.
fn assert_undisturbed(test: &str, testbed: Testbed, fault: &InjectedFault, stall_monitor: &StallMonitor) {
    let result: RunResult = testbed.finish();
    result.assert_no_errors();
    let stall_ns = stall_monitor.worst_ns(fault.injected_ns, fault.stable_until_ns.unwrap_or(u64::MAX));
    if stall_ns > STALL_NS_MAX {
        // The stall may have moved leadership instead of the flood.
        print_to_stderr(&format!("{test}: the machine stalled for {} ms", stall_ns / 1_000_000));
    } else {
        assert!(result.has_expected_outcome(ExpectedOutcome::NoChange, fault), "{}", result.verdict());
    }
}

/// A stall longer than this may move leadership by itself, ns: a tenth of what the lease tolerates.
const STALL_NS_MAX: u64 = 50_000_000;
/// Most lines that a process may log in the whole flood: each listener at once and then once a minute, the channel once a
/// second, and each kind of refused connection once.
const LOG_LINES_MAX: usize = 150;

/// What gateways have counted as refused, and what the kernel has dropped before they could: by target and node.
#[derive(Clone, Debug, Default)]
struct Counted {
    refused: BTreeMap<(FloodTarget, u8), BTreeMap<String, u64>>,
    kernel_drops: BTreeMap<(FloodTarget, u8), u64>,
}

impl Counted {
    fn of(testbed: &Testbed) -> Self {
        let mut counted = Self::default();
        for node in testbed.running() {
            let snapshot = testbed.snapshot(node);
            let mut refused_by = |target, reasons: &BTreeMap<String, u64>| {
                let unexpected = reasons.iter().filter(|(reason, _)| *reason != "replayed" && *reason != "epoch_stale");
                counted
                    .refused
                    .insert((target, node), unexpected.map(|(reason, count)| (reason.clone(), *count)).collect());
            };
            refused_by(FloodTarget::FeedGroups, &snapshot.channels[0].drop_reasons);
            for (target, name, _) in LISTENERS {
                let listener = snapshot.listeners.iter().find(|listener| listener.name == name);
                refused_by(target, &listener.expect("each listener is in the snapshot").refused);
            }
            counted.kernel_drops.insert((FloodTarget::FeedGroups, node), snapshot.kernel_drops);
            for (target, _, port) in LISTENERS {
                let drops = testbed.host_of(node).namespace.run(|| socket_drops(port));
                counted.kernel_drops.insert((target, node), drops);
            }
        }
        counted
    }

    fn since(mut self, before: &Self) -> Self {
        for (key, reasons) in &mut self.refused {
            let known = &before.refused[key];
            reasons.retain(|reason, count| {
                *count -= known.get(reason).copied().unwrap_or_default();
                *count > 0
            });
        }
        for (key, drops) in &mut self.kernel_drops {
            *drops -= before.kernel_drops[key];
        }
        self
    }

    /// The counts since `before`, once the gateways have read what was sent.
    fn once_complete(testbed: &Testbed, before: &Self, sent: &SentByTarget) -> Self {
        let mut counted = Self::default();
        wait_until("the gateways have counted what was sent", || {
            counted = Self::of(testbed).since(before);
            counted.refused.keys().all(|(target, node)| {
                let expected = sent_to(sent, *target, *node).expect("each target was flooded").refusable;
                let kernel_drops = counted.kernel_drops[&(*target, *node)];
                counted.total(*target, *node) + kernel_drops >= expected * COUNTED_PERCENT_MIN / 100
            })
        });
        counted
    }

    fn total(&self, target: FloodTarget, node: u8) -> u64 {
        self.refused[&(target, node)].values().sum()
    }

    /// Every refused item is counted once, with a reason that it has.
    fn assert_counts(&self, sent: &SentByTarget) {
        for ((target, node), reasons) in &self.refused {
            let sent = sent_to(sent, *target, *node).expect("each target was flooded");
            let (name, total) = (target.name(), self.total(*target, *node));
            assert!(total <= sent.refusable, "{name}, node {node}: {total} refused of {}", sent.refusable);
            let counted: BTreeSet<&str> = reasons.keys().map(String::as_str).collect();
            let unknown: Vec<_> = counted.difference(&sent.reasons).collect();
            assert!(unknown.is_empty(), "{name}, node {node}: {unknown:?} of {reasons:?}");
            let certain = CERTAIN_REASONS.iter().filter(|reason| sent.reasons.contains(*reason));
            for reason in certain {
                assert!(counted.contains(reason), "{name}, node {node}: no {reason} in {reasons:?}");
            }
        }
    }

    /// The witness writes its counts to its log when it ends.
    fn assert_witness_counts(&self, testbed: &mut Testbed, sent: &SentByTarget) {
        let node = *testbed.witness_nodes().start();
        let drops = testbed.host_of(node).namespace.run(|| socket_drops(VOTE_PORT));
        let [stderr] = &testbed.end_witnesses()[..] else { panic!("there is one witness") };
        let line = stderr.lines().find(|line| line.contains("witness: votes: ")).expect("the counts are logged");
        let (_, refused) = line.split_once(" received, ").expect("the counts are logged");
        let refused: u64 = refused.split(' ').next().and_then(|count| count.parse().ok()).expect("a number");
        let expected = sent[&(FloodTarget::Votes, node)].refusable;
        let is_complete = refused + drops >= expected * COUNTED_PERCENT_MIN / 100;
        assert!(is_complete && refused <= expected, "{refused} refused and {drops} dropped of {expected}: {line}");
        for reason in ["malformed", "too_long", "forged"] {
            assert!(line.contains(reason), "{line}");
        }
    }
}

/// What was sent to that listener, on groups or to it alone.
fn sent_to(sent: &SentByTarget, target: FloodTarget, node: u8) -> Option<&SentJunk> {
    sent.get(&(target, node)).or_else(|| sent.get(&(target, 0)))
}

/// Listeners beside the data path: their names, and the ports of their datagrams.
const LISTENERS: [(FloodTarget, &str, u16); 4] = [
    (FloodTarget::OutputGroups, "output_groups", OUTPUT.port()),
    (FloodTarget::Retransmission, "retransmission", RETRANSMISSION_PORT),
    (FloodTarget::PairLink, "pair_link", LINK_PORT),
    (FloodTarget::Votes, "votes", VOTE_PORT),
];

/// Reasons that some of the junk has for certain, whatever the timing.
const CERTAIN_REASONS: [&str; 12] = [
    "header_truncated",
    "session_unconfirmed",
    "sequence_jump",
    "protocol_mismatch",
    "channel_unknown",
    "tag_missing",
    "tag_invalid",
    "unknown_channel",
    "malformed",
    "forged",
    "unknown_source",
    "too_long",
];

/// Share of the junk that must be counted, by the gateway or as dropped by its socket, percent. The rest allows for what a
/// machine without time loses between two hosts.
const COUNTED_PERCENT_MIN: u64 = 90;

/// What each process of the pair holds, by node.
#[derive(Clone, Debug)]
struct Usage(BTreeMap<u8, ResourceUse>);

impl Usage {
    fn of(testbed: &Testbed) -> Self {
        let used = testbed.process_ids().into_iter().map(|(node, process_id)| (node, ResourceUse::of(process_id)));
        Self(used.map(|(node, used)| (node, used.expect("the process runs"))).collect())
    }

    fn raise_to(&mut self, other: &Self) {
        for (node, used) in &mut self.0 {
            *used = used.max(other.0[node]);
        }
    }

    /// Compares the most that was held during the flood with the quiet time before it.
    fn assert_bounded(&self, start: &Self, quiet: &Self) {
        for (node, used) in &self.0 {
            let (start, quiet) = (start.0[node], quiet.0[node]);
            let own_growth = quiet.resident_bytes.saturating_sub(start.resident_bytes);
            let growth = used.resident_bytes.saturating_sub(quiet.resident_bytes);
            let allowed = 2 * own_growth + MEMORY_SLACK_BYTES;
            assert!(growth <= allowed, "node {node}: {growth} bytes more, {own_growth} more in the quiet time");
            assert!(used.threads <= quiet.threads + THREADS_SLACK, "node {node}: {used:?}, quiet: {quiet:?}");
            assert!(
                used.descriptors <= quiet.descriptors + DESCRIPTORS_SLACK,
                "node {node}: {used:?}, quiet: {quiet:?}"
            );
        }
    }
}

/// Whether a gateway that kept each datagram, descriptor or log line of this junk would exceed the bounds of the test.
fn exceeds_bounds(sent: &SentByTarget) -> bool {
    [1, 2].into_iter().all(|node| {
        let to_node = || sent.iter().filter(|((_, to), _)| [0, node].contains(to)).map(|(_, junk)| junk);
        let bytes: u64 = to_node().map(|junk| junk.bytes).sum();
        let items: u64 = to_node().map(|junk| junk.refusable).sum();
        let connections = sent.get(&(FloodTarget::PairLink, node)).map_or(0, |junk| junk.refusable);
        bytes > 3 * MEMORY_SLACK_BYTES / 2
            && items > 20 * LOG_LINES_MAX as u64
            && connections > 4 * DESCRIPTORS_SLACK
            && FloodTarget::ALL
                .iter()
                .all(|target| sent_to(sent, *target, node).is_some_and(|junk| junk.refusable > 500))
    })
}

/// Growth of the resident memory beyond the quiet time's own: buffers of connections and of the allocator.
const MEMORY_SLACK_BYTES: u64 = 32 << 20;
/// Threads that answer the test on the control socket.
const THREADS_SLACK: u64 = 4;
/// Connections that have not proved the key, and those of the test to the control socket.
const DESCRIPTORS_SLACK: u64 = 48;

/// Loads the guide's ruleset on that host, with the addresses of the testbed.
fn apply_packet_filter(testbed: &Testbed, node: u8) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/nftables/mdgw.nft");
    let text = fs::read_to_string(path).expect("the ruleset is there");
    let address = |node: u8| testbed.host_of(node).address.to_string();
    let voters: Vec<String> = testbed.process_ids().into_keys().map(address).collect();
    let gateways: Vec<String> = testbed.nodes().map(address).collect();
    let set = |elements: &[String]| format!("{{ {} }}", elements.join(", "));
    let values = [
        ("VENUE", set(&["10.77.0.9".to_owned()])),
        ("FEED_GROUPS", set(&LINES.map(|line| line.ip().to_string()))),
        ("GATEWAYS", set(&gateways)),
        ("OUTPUT_GROUPS", set(&[OUTPUT.ip().to_string()])),
        ("VOTERS", set(&voters)),
        ("CONSUMERS", set(&["10.77.0.11-10.77.0.14".to_owned()])),
        // No live clients here: a port that nothing uses.
        ("LIVE_CLIENTS", set(&["10.77.0.11".to_owned()])),
        ("LIVE_PORT", "13000".to_owned()),
        ("LINK_PORT", LINK_PORT.to_string()),
        ("VOTE_PORT", VOTE_PORT.to_string()),
        ("RETRANSMISSION_PORT", RETRANSMISSION_PORT.to_string()),
    ];
    let lines = text.lines().map(|line| {
        let name = line.strip_prefix("define ").and_then(|rest| rest.split(' ').next());
        let value = name.map(|name| &values.iter().find(|(of, _)| *of == name).expect("each definition has a value").1);
        value.map_or_else(|| line.to_owned(), |value| format!("define {} = {value}", name.unwrap_or_default()))
    });
    let rules = lines.collect::<Vec<_>>().join("\n");
    let file = testbed.path(&format!("filter{node}.nft"));
    fs::write(&file, &rules).expect("the ruleset can be written");
    let loaded = testbed.host_of(node).namespace.run(|| Command::new("nft").arg("-f").arg(&file).output());
    let loaded = loaded.expect("nft runs");
    assert!(loaded.status.success(), "{}\n{rules}", String::from_utf8_lossy(&loaded.stderr));
}

/// Datagrams that the filter of that host has dropped.
fn dropped_by_filter(testbed: &Testbed, node: u8) -> u64 {
    let list = || Command::new("nft").args(["list", "table", "ip", "mdgw"]).stdin(Stdio::null()).output();
    let listed = testbed.host_of(node).namespace.run(list).expect("nft runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let counts = text.split("counter packets ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    counts.sum()
}
