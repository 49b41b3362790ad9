//! A pair on a real network: under each fault every receiver receives every message once and in order. This is a short
//! version of `--bin takeovers`, which runs all cases many times.

use std::{collections::BTreeMap, fs, process::Command};

use mdgw_tests::{
    captures::print_to_stderr,
    process::{self, Signal, wait_until},
    skip::skip,
    stores::Store,
    testbed::{
        RECEIVERS, Testbed,
        checker::RunResult,
        faults::{ExpectedOutcome, case_named},
        plan::{ElectionBackend, Plan},
        stall::StallMonitor,
    },
};

/// Injects the faults of those names, one after the other, in one testbed. Each must have its expected outcome, and nothing
/// may be lost, duplicated, out of order, or published by two gateways at a time. `None`: skipped.
fn inject_faults(test: &str, names: &[&str], backend: ElectionBackend) -> Option<RunResult> {
    Some(try_faults(test, names, backend)?.unwrap_or_else(|unexpected| panic!("{unexpected}")))
}

/// The same, with the first outcome that was not the expected one as the error. What may never happen panics.
fn try_faults(test: &str, names: &[&str], backend: ElectionBackend) -> Option<Result<RunResult, String>> {
    let cases: Vec<_> = names.iter().map(|name| case_named(name).expect("a case of that name")).collect();
    let mut plan = Plan::relaxed(backend);
    cases.iter().for_each(|case| (case.prepare)(&mut plan));
    let stall_monitor = StallMonitor::start();
    let mut testbed = Testbed::start(test, plan)?;
    testbed.start_session();
    testbed.wait_for_more_deliveries(500);
    let injected_faults: Vec<_> = (0..).zip(&cases).map(|(trial, case)| (case.inject)(&mut testbed, trial)).collect();
    let result = testbed.finish();
    result.assert_no_errors();
    for (case, fault) in cases.iter().zip(&injected_faults) {
        let stall_ns = fault.stable_until_ns.map_or(0, |until_ns| stall_monitor.worst_ns(fault.injected_ns, until_ns));
        if case.expected == ExpectedOutcome::NoChange && stall_ns > STALL_NS_MAX {
            // The stall may have moved leadership instead of the fault.
            print_to_stderr(&format!("{test}: {}: the machine stalled for {} ms", case.name, stall_ns / 1_000_000));
        } else if !result.has_expected_outcome(case.expected, fault) {
            return Some(Err(format!("{}: {fault:?}\n{}", case.name, result.verdict())));
        }
    }
    Some(Ok(result))
}

/// A stall longer than this may move leadership by itself, ns: a tenth of what the lease tolerates.
const STALL_NS_MAX: u64 = 50_000_000;

#[test]
fn a_killed_leader_is_replaced() {
    let _judged = inject_faults("a_killed_leader_is_replaced", &["kill"], ElectionBackend::File);
}

#[test]
fn a_resumed_leader_publishes_nothing_stale() {
    let _judged = inject_faults("a_resumed_leader_publishes_nothing_stale", &["pause"], ElectionBackend::Quorum);
}

#[test]
fn a_hand_over_republishes_only_packets_in_flight() {
    let test = "a_hand_over_republishes_only_packets_in_flight";
    let Some(result) = inject_faults(test, &["hand-over"], ElectionBackend::Quorum) else { return };
    // Checked only if no scheduling stall moved leadership as well.
    if result.changes.iter().all(|changes| changes.len() == 1) {
        let republished = result.republished;
        assert!(republished < IN_FLIGHT_MESSAGES_MAX, "{republished}\n{}", result.verdict());
    }
}

/// What the venue sends in a second: far more than a network has in flight, and far less than a session.
const IN_FLIGHT_MESSAGES_MAX: u64 = 1_500;

#[test]
fn one_way_partitions_move_leadership_only_when_needed() {
    let test = "one_way_partitions_move_leadership_only_when_needed";
    let partitions = [
        "partition-to-standby",
        "partition-to-leader",
        "partition-to-witness",
        "partition-from-witness",
        "leader-inbound-loss",
        "leader-outbound-loss",
    ];
    let _judged = inject_faults(test, &partitions, ElectionBackend::Quorum);
}

/// Nothing acknowledges the leader's output meanwhile, and all of it arrives.
#[test]
fn a_standby_or_a_pair_link_that_stands_still_moves_no_leadership() {
    let test = "a_standby_or_a_pair_link_that_stands_still_moves_no_leadership";
    let _judged = inject_faults(test, &["standby-pause", "pair-link-cut"], ElectionBackend::Quorum);
}

/// Both gateways lose packets of each burst; the venue's request server has them. On a crowded machine one gateway alone
/// may be starved and rightly lose its leadership, so the fault is injected again then: a rule that moves a leader whose
/// peer is overrun too moves it each time.
#[test]
fn an_overrun_pair_loses_nothing_and_keeps_its_leader() {
    let test = "an_overrun_pair_loses_nothing_and_keeps_its_leader";
    let mut unexpected = String::new();
    for _ in 0..3 {
        match try_faults(test, &["overload"], ElectionBackend::File) {
            None | Some(Ok(_)) => return,
            Some(Err(outcome)) => {
                print_to_stderr(&format!("{test}: leadership moved; injecting the fault again"));
                unexpected = outcome;
            }
        }
    }
    panic!("leadership moved in each of three runs; the last: {unexpected}");
}

/// What the kernel refuses was never published, so the peer has nothing to acknowledge.
#[test]
fn a_leader_whose_kernel_sends_nothing_hands_over() {
    let test = "a_leader_whose_kernel_sends_nothing_hands_over";
    let Some(result) = inject_faults(test, &["leader-output-refused"], ElectionBackend::Quorum) else { return };
    assert_eq!(result.errors.len(), usize::from(RECEIVERS));
}

/// Nobody can request a message, so whatever the successor skips is lost.
#[test]
fn messages_that_a_dead_output_swallowed_are_published_by_the_successor() {
    let test = "messages_that_a_dead_output_swallowed_are_published_by_the_successor";
    let Some(result) = inject_faults(test, &["output-loss-kill", "output-loss-unrequested"], ElectionBackend::File)
    else {
        return;
    };
    assert_eq!(result.errors.len(), usize::from(RECEIVERS));
}

/// The first move of a leader never waits for its tenure; a later one does not if the move before it has helped.
#[test]
fn repeated_output_faults_do_not_wait_for_the_minimum_tenure() {
    let test = "repeated_output_faults_do_not_wait_for_the_minimum_tenure";
    let Some(result) = inject_faults(test, &["leader-output-loss"; 3], ElectionBackend::File) else { return };
    for changes in &result.changes {
        assert!(changes.len() >= 3, "{changes:?}");
        assert!(changes.iter().all(|change| change.silence_ns() < MINIMUM_TENURE_NS), "{changes:?}");
    }
}

/// The default of the election, ns.
const MINIMUM_TENURE_NS: u64 = 10_000_000_000;

#[test]
fn a_receiver_without_requests_loses_nothing_when_the_leaders_output_dies() {
    let test = "a_receiver_without_requests_loses_nothing_when_the_leaders_output_dies";
    let _judged = inject_faults(test, &["leader-output-loss"], ElectionBackend::Quorum);
}

#[test]
fn split_messages_and_forged_epochs_lose_nothing() {
    let test = "split_messages_and_forged_epochs_lose_nothing";
    let _judged = inject_faults(test, &["kill-in-split-message", "forged-plausible"], ElectionBackend::File);
}

#[test]
fn books_stay_correct_over_line_loss_and_session_change() {
    let test = "books_stay_correct_over_line_loss_and_session_change";
    let _judged = inject_faults(test, &["standby-loss-kill", "kill-at-session-change"], ElectionBackend::File);
}

#[test]
fn three_gateways_survive_two_leader_kills() {
    let _judged =
        inject_faults("three_gateways_survive_two_leader_kills", &["kill-two-of-three"; 2], ElectionBackend::File);
}

#[test]
fn aborted_and_oom_killed_leaders_are_replaced() {
    let _judged = inject_faults(
        "aborted_and_oom_killed_leaders_are_replaced",
        &["abort", "out-of-memory"],
        ElectionBackend::File,
    );
}

#[test]
fn both_gateways_restart_with_correct_books() {
    let _judged = inject_faults("both_gateways_restart_with_correct_books", &["restart-both"], ElectionBackend::File);
}

#[test]
fn a_pair_is_upgraded_by_the_steps_of_the_guide() {
    let test = "a_pair_is_upgraded_by_the_steps_of_the_guide";
    let _judged = inject_faults(test, &["upgrade"], ElectionBackend::File);
}

#[test]
fn a_pair_with_a_witness_is_upgraded_by_the_steps_of_the_guide() {
    let test = "a_pair_with_a_witness_is_upgraded_by_the_steps_of_the_guide";
    let _judged = inject_faults(test, &["upgrade"], ElectionBackend::Quorum);
}

#[test]
fn a_leader_continues_without_its_store() {
    let test = "a_leader_continues_without_its_store";
    if cfg!(feature = "stores") {
        let _judged = inject_faults(
            test,
            &["partition-from-store", "standby-partition-from-store", "store-down"],
            ElectionBackend::Store(Store::Etcd),
        );
    } else {
        print_to_stderr(&format!("SKIPPED: {test}: built without stores"));
    }
}

/// `takeovers` starts gateways, whose sentinels are processes of their own, and a venue. None outlives it, whatever ends it.
#[test]
fn a_run_of_takeovers_leaves_no_process_behind_whatever_ends_it() {
    if !rustix::process::geteuid().is_root() {
        return skip("a_run_of_takeovers_leaves_no_process_behind_whatever_ends_it", "network namespaces take root");
    }
    for signal in [Signal::Interrupt, Signal::Terminate, Signal::Kill] {
        // A suite that a script starts in the background ignores SIGINT, and its children inherit that.
        let mut takeovers = Command::new("env");
        takeovers.args([
            "--default-signal=INT",
            env!("CARGO_BIN_EXE_takeovers"),
            "--case",
            "no-fault",
            "--trials",
            "1",
            "--rate",
            "1500",
            "--timing",
            "600/120/120",
            "--fault-seconds",
            "80",
        ]);
        takeovers.env("MDGW_PROGRAM", process::program());
        let takeovers = process::spawn(takeovers);
        let mut started = BTreeMap::new();
        wait_until("two gateways, their sentinels and a venue run", || {
            started = descendants(takeovers.id());
            let of_command = |name: &str| started.values().filter(|(_, command)| command == name).count();
            [of_command("run"), of_command("sentinel"), of_command("sim")] == [2, 2, 1]
        });
        assert_eq!(takeovers.stop_with(signal).code, None, "{signal:?} ends it");
        wait_until("everything that it started has ended", || {
            let running = running_processes();
            started.iter().all(|(id, (started_at, _))| running.get(id).is_none_or(|now| now.started_at != *started_at))
        });
    }
}

/// A process, by `/proc/PID/stat`.
struct RunningProcess {
    parent: u32,
    /// Ticks since boot.
    started_at: u64,
}

/// All processes that have not ended. One that has ended and that nobody has waited for does not count.
fn running_processes() -> BTreeMap<u32, RunningProcess> {
    let ids = fs::read_dir("/proc")
        .expect("proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let process = |id: u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name before may contain spaces and parentheses.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let is_running = !["Z", "X"].contains(&fields.next()?);
        let parent = fields.next()?.parse().ok()?;
        let started_at = fields.nth(17)?.parse().ok()?;
        is_running.then_some((id, RunningProcess { parent, started_at }))
    };
    ids.filter_map(process).collect()
}

/// The running processes that descend from that one: when each started, and its `mdgw` command.
fn descendants(of: u32) -> BTreeMap<u32, (u64, String)> {
    let running = running_processes();
    let descends = |id: &u32| {
        let mut ancestors = std::iter::successors(running.get(id), |process| running.get(&process.parent));
        ancestors.any(|process| process.parent == of)
    };
    let command = |id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1).map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default()
    };
    running
        .iter()
        .filter(|(id, _)| descends(id))
        .map(|(id, process)| (*id, (process.started_at, command(id))))
        .collect()
}
