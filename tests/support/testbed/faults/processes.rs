//! Faults and orderly changes of gateway processes: kill, abort, pause, hand-over, restart, upgrade.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, InjectedFault, hold_fault, now_ns, quiescent_leader, wait_for_failover};
use crate::{
    gateway_fixture::text,
    process::{ExitedProcess, Signal, wait_until},
    testbed::{LINES, Testbed, plan::ElectionBackend},
};

pub(super) fn kill(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(testbed, trial);
    let injected_ns = testbed.kill(leader);
    restart_and_rejoin(testbed, leader, epoch_before, injected_ns)
}

pub(super) fn abort(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(testbed, trial);
    let injected_ns = testbed.abort(leader);
    restart_and_rejoin(testbed, leader, epoch_before, injected_ns)
}

pub(super) fn exhaust_memory(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(testbed, trial);
    let injected_ns = testbed.exhaust_memory(leader);
    restart_and_rejoin(testbed, leader, epoch_before, injected_ns)
}

fn restart_and_rejoin(testbed: &mut Testbed, leader: u8, epoch_before: Epoch, injected_ns: u64) -> InjectedFault {
    wait_for_failover(testbed, epoch_before);
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// The first trial of two kills the leader of three gateways; the second kills its successor and restarts both.
pub(super) fn kill_two_in_sequence(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(testbed, trial);
    let dead: Vec<u8> = testbed.nodes().filter(|node| !testbed.running().contains(node)).collect();
    let injected_ns = testbed.kill(leader);
    wait_for_failover(testbed, epoch_before);
    if let [first] = dead[..] {
        for node in [first, leader] {
            testbed.start_gateway(node);
            testbed.wait_until_eligible(node);
        }
    }
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn pause(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = quiescent_leader(testbed, trial);
    let injected_ns = testbed.signal(leader, Signal::Stop);
    let pause_time = Duration::from_millis(200 + trial * 700 % 2_800);
    // This sleep is the length of the pause, the fault itself.
    std::thread::sleep(pause_time);
    wait_for_failover(testbed, epoch_before);
    testbed.signal(leader, Signal::Continue);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// Longer than a leader waits for an acknowledgement, shorter than the pair link takes to be lost.
pub(super) fn pause_standby(testbed: &mut Testbed) -> InjectedFault {
    let standby = 3 - testbed.leader();
    let mut fault = hold_fault(testbed, Duration::from_millis(800), |testbed, is_begin| {
        testbed.signal(standby, if is_begin { Signal::Stop } else { Signal::Continue });
    });
    // A hand-over to it would come when it goes on.
    std::thread::sleep(Duration::from_millis(500));
    fault.stable_until_ns = Some(now_ns());
    testbed.wait_until_eligible(standby);
    fault
}

pub(super) fn hand_over(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let mut done = None;
    // A crowded machine may be too slow for a hand-over; then the current leader is asked again.
    wait_until("leadership is handed over", || {
        let (leader, epoch_before) = quiescent_leader(testbed, trial);
        done = testbed.hand_over(leader).map(|injected_ns| (leader, epoch_before, injected_ns));
        done.is_some()
    });
    let (leader, epoch_before, injected_ns) = done.expect("just waited for");
    wait_for_failover(testbed, epoch_before);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn restart_both(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    // The standby first: it must not take over in between.
    testbed.kill(3 - leader);
    let injected_ns = testbed.kill(leader);
    testbed.start_gateway(1);
    testbed.start_gateway(2);
    wait_for_failover(testbed, epoch_before);
    testbed.wait_until_eligible(3 - testbed.leader());
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn join_single_gateway(testbed: &mut Testbed) -> InjectedFault {
    let other = 3 - testbed.leader();
    hold_fault(testbed, Duration::from_secs(1), |testbed, is_begin| {
        if is_begin {
            testbed.start_gateway(other);
            testbed.wait_until_eligible(other);
        } else {
            testbed.end(other);
        }
    })
}

pub(super) fn upgrade_configuration(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = testbed.leader();
    let standby = 3 - leader;
    testbed.end(standby);
    testbed.bump_revision(standby);
    testbed.start_gateway(standby);
    testbed.wait_until_eligible(standby);
    let epoch_before = testbed.epoch();
    let injected_ns = testbed.end(leader);
    wait_for_failover(testbed, epoch_before);
    testbed.bump_revision(leader);
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// The steps of `ops/guide/upgrade.md`, with its commands. Where the two versions do not speak the same pair link or votes,
/// the way that the guide names for that.
pub(super) fn upgrade_by_the_guide(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = testbed.leader();
    let standby = 3 - leader;
    testbed.end(standby);
    upgrade_and_start(testbed, standby);
    let epoch_before = testbed.epoch();
    let injected_ns = move_leadership(testbed, leader, standby, epoch_before);
    upgrade_and_start(testbed, leader);
    if testbed.plan.backend == ElectionBackend::Quorum {
        testbed.upgrade_witnesses();
    }
    wait_until("both gateways know one leader of one epoch", || {
        let [first, second] = [1, 2].map(|node| testbed.status(node).unwrap_or_default());
        let mut roles = [&first, &second].map(|status| status["role"].as_str().unwrap_or_default());
        roles.sort_unstable();
        roles == ["candidate", "leader"] && first["epoch"] == second["epoch"]
    });
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// Step 3 of the guide: the upgraded standby leads, and the former leader has ended. Returns when that began, ns since 1970
/// UTC.
fn move_leadership(testbed: &mut Testbed, leader: u8, standby: u8, epoch_before: Epoch) -> u64 {
    if testbed.stderr_of(standby).contains(VOTES_DIFFER) {
        let injected_ns = now_ns();
        testbed.upgrade_witnesses();
        wait_for_failover(testbed, epoch_before);
        testbed.end(leader);
        return injected_ns;
    }
    let mut injected_ns = 0;
    let mut has_handed_over = false;
    // The leader refuses until it knows that the other one is eligible, which takes longer on a crowded machine.
    wait_until("the leader hands over, or there is no link between the versions", || {
        injected_ns = now_ns();
        has_handed_over = ha(testbed, leader, &["hand-over"]).code == Some(0);
        has_handed_over || testbed.stderr_of(standby).contains(LINKS_DIFFER)
    });
    if !has_handed_over {
        injected_ns = testbed.end(leader);
    }
    wait_for_failover(testbed, epoch_before);
    if has_handed_over {
        testbed.end(leader);
    }
    injected_ns
}

/// Step 1 of the guide on a gateway that has been stopped, and step 2.
fn upgrade_and_start(testbed: &mut Testbed, node: u8) {
    testbed.upgrade_gateway(node);
    let config = testbed.config_path(node);
    let _warnings = testbed.run_on(node, &["check", text(&config)]).expect_code(0);
    testbed.start_gateway(node);
    wait_until("the gateway is shown as a candidate and eligible", || {
        let status = ha(testbed, node, &["status"]).stdout;
        // A gateway whose peer stalled may lead already.
        (status.contains(" candidate ") || status.contains(" leader ")) && !status.contains("not eligible")
    });
    if testbed.stderr_of(node).contains(LINKS_DIFFER) {
        // No leader names a successor that it has no link to.
        testbed.wait_until_caught_up(node);
    } else {
        testbed.wait_until_eligible(node);
    }
}

/// `mdgw ha` with these arguments, at that gateway's control socket.
fn ha(testbed: &Testbed, node: u8, arguments: &[&str]) -> ExitedProcess {
    let socket = testbed.control_socket(node);
    let arguments: Vec<_> = ["ha"].iter().chain(arguments).copied().chain(["--socket", text(&socket)]).collect();
    testbed.run_on(node, &arguments)
}

/// Logged where votes of another version arrive, and where the pair link of the peer has another version.
const VOTES_DIFFER: &str = "a message of a different protocol version";
const LINKS_DIFFER: &str = "of the pair link, and this gateway speaks version";

pub(super) fn kill_inside_a_message(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    // The output is cut between two packets, or between two copies of one packet. So the hosts may have received
    // different numbers of packets.
    testbed.switch.drop_to_address_after(testbed.host(leader), *OUTPUT.ip(), 100 + trial * 7);
    wait_until("the output is cut", || testbed.switch.has_dropped());
    let injected_ns = now_ns();
    testbed.kill(leader);
    wait_for_failover(testbed, epoch_before);
    testbed.switch.heal();
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn kill_while_sessions_change(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = match trial % 3 {
        // Killed before the end of the old session is published.
        0 => {
            let injected_ns = testbed.kill(leader);
            testbed.end_session();
            testbed.start_session();
            injected_ns
        }
        // Killed between the end of the old session and the start of the new one.
        1 => {
            testbed.end_session();
            let injected_ns = testbed.kill(leader);
            testbed.start_session();
            injected_ns
        }
        // Killed when the new session has just begun.
        _ => {
            testbed.end_session();
            testbed.start_session();
            testbed.wait_for_more_deliveries(1);
            testbed.kill(leader)
        }
    };
    wait_for_failover(testbed, epoch_before);
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn gap_then_kill(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let leader = testbed.leader();
    for line in LINES {
        testbed.switch.drop_to_host(*line.ip(), testbed.host(leader));
    }
    // The length of the gap; no event marks when it is long enough.
    std::thread::sleep(Duration::from_millis(50 + trial * 30 % 100));
    testbed.switch.heal();
    // Killed immediately, while the leader may still be filling the gap.
    let epoch_before = testbed.epoch();
    let injected_ns = testbed.kill(leader);
    restart_and_rejoin(testbed, leader, epoch_before, injected_ns)
}
