//! Faults of the network: partitions, packet loss, a slow link, and forged packets on the output group.

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{super::OUTPUT, InjectedFault, hold_fault, hold_fault_as_planned, now_ns, wait_for_failover};
use crate::{
    namespaces::Host,
    process::Signal,
    testbed::{
        LINES, Testbed,
        flood::{Flood, FloodOptions, FloodTarget},
    },
};

/// The direction in which traffic is dropped, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Packets that the host sends.
    Outbound,
    /// Packets that are sent to the host.
    Inbound,
    /// Both directions.
    Both,
}

pub(super) fn drop_on_line_a(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = testbed.leader();
    hold_fault(testbed, PARTITION_TIME, |testbed, is_begin| {
        if is_begin {
            testbed.switch.drop_randomly(*LINES[0].ip(), testbed.host(leader), 30);
        } else {
            testbed.switch.heal();
        }
    })
}

pub(super) fn drop_leader_input_and_kill(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let leader = testbed.leader();
    drop_lines(testbed, leader, 10);
    kill_during_loss(testbed)
}

pub(super) fn drop_standby_input_and_kill(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let standby = 3 - testbed.leader();
    drop_lines(testbed, standby, 10);
    kill_during_loss(testbed)
}

/// The successor lacks packets that only the leader received.
pub(super) fn drop_standby_input_and_pause(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let standby = 3 - testbed.leader();
    drop_lines(testbed, standby, 30);
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = testbed.signal(leader, Signal::Stop);
    wait_for_failover(testbed, epoch_before);
    testbed.switch.heal();
    testbed.signal(leader, Signal::Continue);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

fn drop_lines(testbed: &Testbed, lossy: u8, percent: u32) {
    for line in LINES {
        testbed.switch.drop_randomly(*line.ip(), testbed.host(lossy), percent);
    }
    testbed.wait_for_more_deliveries(1_000);
}

/// Kills the leader; the loss continues during the takeover.
fn kill_during_loss(testbed: &mut Testbed) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = testbed.kill(leader);
    wait_for_failover(testbed, epoch_before);
    testbed.switch.heal();
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn drop_leader_output(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    // The pair learns meanwhile that the present leader is received.
    std::thread::sleep(Duration::from_secs(1));
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = now_ns();
    testbed.switch.drop_to_address(testbed.host(leader), *OUTPUT.ip());
    wait_for_failover(testbed, epoch_before);
    testbed.switch.heal();
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// The leader's kernel refuses what it publishes, and not its renewals.
pub(super) fn refuse_leader_output(testbed: &mut Testbed, _trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = now_ns();
    testbed.host(leader).refuse_sends_to(*OUTPUT.ip());
    wait_for_failover(testbed, epoch_before);
    testbed.host(leader).allow_sends();
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// The leader dies while its kernel accepts packets that nobody receives, before the pair can have noticed that.
pub(super) fn drop_leader_output_and_kill(testbed: &mut Testbed, trial: u64) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = now_ns();
    testbed.switch.drop_to_address(testbed.host(leader), *OUTPUT.ip());
    std::thread::sleep(Duration::from_millis(50 + trial % 4 * 50));
    testbed.kill(leader);
    wait_for_failover(testbed, epoch_before);
    testbed.switch.heal();
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn isolate_leader(testbed: &mut Testbed, direction: Direction) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = now_ns();
    let mut others = testbed.lease_authority_hosts();
    others.push(testbed.host(3 - leader).clone());
    partition(testbed, leader, &others, direction);
    wait_for_failover(testbed, epoch_before);
    testbed.switch.heal();
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

pub(super) fn partition_from_standby(testbed: &mut Testbed, direction: Direction) -> InjectedFault {
    let leader = testbed.leader();
    let standby = [testbed.host(3 - leader).clone()];
    partition_and_heal(testbed, leader, &standby, direction)
}

pub(super) fn partition_from_authority(testbed: &mut Testbed, direction: Direction) -> InjectedFault {
    let (leader, authority) = (testbed.leader(), testbed.lease_authority_hosts());
    partition_and_heal(testbed, leader, &authority, direction)
}

pub(super) fn partition_standby_from_authority(testbed: &mut Testbed, direction: Direction) -> InjectedFault {
    let (standby, authority) = (3 - testbed.leader(), testbed.lease_authority_hosts());
    partition_and_heal(testbed, standby, &authority, direction)
}

pub(super) fn cut_pair_link(testbed: &mut Testbed) -> InjectedFault {
    let leader = testbed.leader();
    let fault = hold_fault(testbed, PARTITION_TIME, |testbed, is_begin| {
        let (leader, standby) = (testbed.host(leader), testbed.host(3 - leader));
        if is_begin {
            // Votes are datagrams.
            testbed.switch.drop_tcp(leader, standby);
            testbed.switch.drop_tcp(standby, leader);
        } else {
            testbed.switch.heal();
        }
    });
    testbed.wait_until_eligible(3 - testbed.leader());
    fault
}

fn partition_and_heal(testbed: &mut Testbed, gateway: u8, others: &[Host], direction: Direction) -> InjectedFault {
    let fault = hold_fault(testbed, PARTITION_TIME, |testbed, is_begin| {
        if is_begin {
            partition(testbed, gateway, others, direction);
        } else {
            testbed.switch.heal();
        }
    });
    testbed.wait_until_eligible(3 - testbed.leader());
    fault
}

fn partition(testbed: &Testbed, gateway: u8, others: &[Host], direction: Direction) {
    let gateway = testbed.host(gateway);
    for other in others {
        if direction != Direction::Inbound {
            testbed.switch.drop_traffic(gateway, other);
        }
        if direction != Direction::Outbound {
            testbed.switch.drop_traffic(other, gateway);
        }
    }
}

/// The leader's renewals wait behind its published packets, so its lease ends while the kernel still queues packets of its
/// epoch.
pub(super) fn queue_sends_past_lease(testbed: &mut Testbed) -> InjectedFault {
    let (leader, epoch_before) = (testbed.leader(), testbed.epoch());
    let injected_ns = now_ns();
    testbed.host(leader).limit_rate(SLOW_KBIT_PER_S);
    wait_for_failover(testbed, epoch_before);
    // The queued packets leave while the successor publishes: the length of the trial.
    std::thread::sleep(PARTITION_TIME);
    testbed.host(leader).remove_rate_limit();
    testbed.wait_until_eligible(leader);
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// Floods that target for the duration of the plan.
pub(super) fn flood(testbed: &mut Testbed, target: FloodTarget) -> InjectedFault {
    let mut flood = None;
    let fault = hold_fault_as_planned(testbed, |testbed, is_begin| {
        if is_begin {
            flood = Some(Flood::start(testbed, &[target], &FLOOD));
        } else if let Some(flood) = flood.take() {
            let sent = flood.finish();
            assert!(!sent.is_empty(), "nothing was sent to the {}", target.name());
        }
    });
    testbed.wait_until_eligible(3 - testbed.leader());
    fault
}

pub(super) fn forge_implausible_epoch(testbed: &mut Testbed) -> InjectedFault {
    hold_fault(testbed, Duration::from_millis(500), |testbed, is_begin| {
        if is_begin {
            let epoch = testbed.epoch();
            testbed.publish_forged_heartbeat(Epoch::new(epoch.count() + 5_000, UNKNOWN_NODE));
        }
    })
}

/// Forges two epochs; the second is plausible only to a receiver that accepted the first.
pub(super) fn forge_plausible_epochs(testbed: &mut Testbed, with_leader_id: bool) -> InjectedFault {
    let epoch_before = testbed.epoch();
    let node = if with_leader_id { testbed.leader() } else { UNKNOWN_NODE };
    let injected_ns = now_ns();
    let [_, forged] = [1_000, 1_900].map(|above| {
        let forged = Epoch::new(epoch_before.count() + above, node);
        testbed.publish_forged_heartbeat(forged);
        forged
    });
    wait_for_failover(testbed, forged);
    testbed.wait_until_eligible(3 - testbed.leader());
    InjectedFault { epoch_before, injected_ns, stable_until_ns: None }
}

/// Duration of a partition that must change nothing: many leases.
const PARTITION_TIME: Duration = Duration::from_secs(2);
/// As much junk as leaves the machine of a test room for the pair.
const FLOOD: FloodOptions =
    FloodOptions { datagrams_per_second: 5_000, connections_per_second: 200, forges_addresses: true };
/// Rate of the slow link: less than a tenth of the published rate.
const SLOW_KBIT_PER_S: u32 = 200;
/// A node id that no gateway has.
const UNKNOWN_NODE: u8 = 77;
