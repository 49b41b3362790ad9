//! Elections by votes between real processes: a killed or stopped leader is replaced under a higher epoch, and two
//! never lead at once.

use std::path::Path;

use mdgw_tests::failover::{LeaseTimingMs, ProcessEvent, VoteCluster};

const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

fn cluster() -> VoteCluster {
    let program = Path::new(env!("CARGO_BIN_EXE_failover"));
    // A lease long enough for a machine that runs other tests.
    VoteCluster::start(program, &std::env::temp_dir(), LeaseTimingMs(200, 40, 60)).expect("processes start")
}

fn assert_epochs_ascend(cluster: &VoteCluster) {
    let epochs: Vec<_> = cluster.openings.iter().map(|(_, _, epoch)| *epoch).collect();
    assert!(epochs.is_sorted_by(|one, next| one < next), "{:?}", cluster.openings);
}

#[test]
fn repeated_leader_kills_fail_over() {
    let mut cluster = cluster();
    for _ in 0..4 {
        cluster.kill_leader_and_wait().unwrap();
    }
    assert_epochs_ascend(&cluster);
}

#[test]
fn a_resumed_leader_finds_its_fence_closed() {
    let mut cluster = cluster();
    let stopped = cluster.wait_for_leader().unwrap();
    let other = 3 - stopped;
    cluster.signal(stopped, SIGSTOP);
    let (opened_ns, epoch) = loop {
        if let (node, ProcessEvent::Open { at_ns, epoch }) = cluster.next_event().unwrap()
            && node == other
        {
            break (at_ns, epoch);
        }
    };
    cluster.signal(stopped, SIGCONT);
    let closed = loop {
        if let (node, ProcessEvent::Close { epoch, .. }) = cluster.next_event().unwrap()
            && node == stopped
        {
            break epoch;
        }
    };
    assert!(closed < epoch, "{closed:?} {epoch:?} at {opened_ns}");
    // Now the stopped gateway is eligible again.
    cluster.kill(other);
    assert_eq!(cluster.wait_for_leader().unwrap(), stopped);
    assert_epochs_ascend(&cluster);
}

#[test]
fn without_the_witness_two_gateways_lead_and_one_does_not() {
    let mut cluster = cluster();
    let leader = cluster.wait_for_leader().unwrap();
    cluster.kill(3);
    // Two of three voters are a majority.
    let openings_before = cluster.openings.len();
    cluster.kill(3 - leader);
    loop {
        if let (node, ProcessEvent::Close { .. }) = cluster.next_event().unwrap() {
            assert_eq!(node, leader);
            break;
        }
    }
    assert_eq!(cluster.openings.len(), openings_before, "no other gateway led");
    // The restarted voter still has its vote on disk.
    cluster.start_node(3).unwrap();
    assert_eq!(cluster.wait_for_leader().unwrap(), leader);
    assert_epochs_ascend(&cluster);
}
