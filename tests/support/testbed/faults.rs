//! Fault cases by name. Each function injects its fault once and returns when both gateways are healthy again.

mod lease_authority;
mod network;
mod processes;

use std::{path::PathBuf, time::Duration};

use mdgw_feeds::identity::Epoch;

use super::{
    RECEIVERS, Testbed,
    flood::FloodTarget,
    plan::{ElectionBackend, Plan, VenueBursts},
};
use crate::{failover::LeaseTimingMs, process::wait_until, stores::Store};

/// One kind of fault.
#[derive(Clone, Copy, Debug)]
pub struct FaultCase {
    /// Name, as `--case` takes it.
    pub name: &'static str,
    /// Description, as `--case list` prints it.
    pub description: &'static str,
    /// The outcome that it must have.
    pub expected: ExpectedOutcome,
    /// The default election backend.
    pub backend: ElectionBackend,
    /// Adjusts the plan of the testbed.
    pub prepare: fn(&mut Plan),
    /// Injects it; the trial number varies phase, length and node.
    pub inject: fn(&mut Testbed, u64) -> InjectedFault,
}

/// The outcome that a fault must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// The other gateway leads.
    PeerLeads,
    /// Any gateway leads, under a new epoch.
    NewEpoch,
    /// The leader continues, under the same epoch.
    NoChange,
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    /// The epoch of the content before the fault.
    pub epoch_before: Epoch,
    /// When it was injected, ns since 1970 UTC.
    pub injected_ns: u64,
    /// For a fault that must not move leadership: when it ended, ns since 1970 UTC. It was preceded by an equal time
    /// without any fault.
    pub stable_until_ns: Option<u64>,
}

impl FaultCase {
    /// A case for a pair over record files in memory, in a testbed with the default plan.
    const fn new(
        name: &'static str,
        description: &'static str,
        expected: ExpectedOutcome,
        inject: fn(&mut Testbed, u64) -> InjectedFault,
    ) -> Self {
        Self { name, description, expected, backend: ElectionBackend::File, prepare: |_| {}, inject }
    }

    const fn with_backend(self, backend: ElectionBackend) -> Self {
        Self { backend, ..self }
    }

    const fn with_plan(self, prepare: fn(&mut Plan)) -> Self {
        Self { prepare, ..self }
    }
}

const ETCD: ElectionBackend = ElectionBackend::Store(Store::Etcd);

/// All cases.
pub const CASES: [FaultCase; 55] = {
    use ElectionBackend::Quorum;
    use ExpectedOutcome::{NewEpoch, NoChange, PeerLeads};
    [
        FaultCase::new("kill", "the leader is killed (SIGKILL) and started again", PeerLeads, processes::kill),
        FaultCase::new("abort", "the leader aborts (SIGABRT) and is started again", PeerLeads, processes::abort),
        FaultCase::new(
            "out-of-memory",
            "the leader gets no more memory, is killed by the kernel, and started again",
            PeerLeads,
            processes::exhaust_memory,
        )
        .with_plan(|plan| plan.has_memory_limit = true),
        FaultCase::new(
            "kill-two-of-three",
            "of three gateways the leader is killed, then its successor; both are started again",
            PeerLeads,
            processes::kill_two_in_sequence,
        )
        .with_plan(|plan| plan.gateways = 3),
        FaultCase::new("pause", "the leader is stopped (SIGSTOP) for 0.2 to 3 s and continued", PeerLeads, processes::pause),
        FaultCase::new("standby-pause", "the standby is stopped (SIGSTOP) for 0.8 s and continued", NoChange, |testbed, _| {
            processes::pause_standby(testbed)
        }),
        FaultCase::new("hand-over", "the leader is asked to hand over", PeerLeads, processes::hand_over),
        FaultCase::new(
            "restart-both",
            "both gateways are killed at the same moment and started again: the venue has to retransmit the session",
            NewEpoch,
            processes::restart_both,
        ),
        FaultCase::new("join-single", "a second gateway joins one that was started alone, and leaves again", NoChange, |testbed, _| {
            processes::join_single_gateway(testbed)
        })
        .with_backend(Quorum)
        .with_plan(|plan| plan.starts_with_one_gateway = true),
        FaultCase::new(
            "rolling-upgrade",
            "first the standby, then the leader is restarted with the next revision of the configuration",
            PeerLeads,
            processes::upgrade_configuration,
        ),
        FaultCase::new(
            "upgrade",
            "both gateways and the witness are upgraded by the steps of ops/guide/upgrade.md (to the same program, unless tests/mixed_versions names another one to begin with)",
            PeerLeads,
            processes::upgrade_by_the_guide,
        )
        .with_backend(Quorum)
        .with_plan(|plan| plan.previous_program = std::env::var_os(PREVIOUS_PROGRAM).map(PathBuf::from)),
        FaultCase::new(
            "kill-in-split-message",
            "packets are so small that messages are split into parts; the leader's output is dropped from some packet on, and the leader is killed",
            PeerLeads,
            processes::kill_inside_a_message,
        )
        .with_plan(split_messages),
        FaultCase::new(
            "kill-at-session-change",
            "the session ends and the next one begins, while the leader is killed (the venue itself sends nothing for a second)",
            PeerLeads,
            processes::kill_while_sessions_change,
        ),
        FaultCase::new(
            "kill-after-gap",
            "the leader alone misses both lines for a moment and is killed; each change of the books is published",
            PeerLeads,
            processes::gap_then_kill,
        )
        .with_plan(publish_books),
        FaultCase::new("no-fault", "no fault, for a while", NoChange, |testbed, _| hold_fault_as_planned(testbed, |_, _| {})),
        FaultCase::new(
            "overload",
            "for a tenth of the time the venue sends 40 times as much, and receive buffers have room for a few packets",
            NoChange,
            |testbed, _| overload(testbed),
        )
        .with_plan(overrun_receive_buffers),
        FaultCase::new("leader-line-a-loss", "the leader misses 30 % of line A", NoChange, network::drop_on_line_a),
        FaultCase::new(
            "leader-loss-kill",
            "the leader misses 10 % of both lines, and is killed",
            PeerLeads,
            network::drop_leader_input_and_kill,
        )
        .with_plan(publish_books),
        FaultCase::new(
            "standby-loss-kill",
            "the standby misses 10 % of both lines, and the leader is killed",
            PeerLeads,
            network::drop_standby_input_and_kill,
        )
        .with_plan(publish_books),
        FaultCase::new(
            "standby-loss-pause",
            "the standby misses 30 % of both lines, and the leader is stopped (SIGSTOP) until it takes over",
            PeerLeads,
            network::drop_standby_input_and_pause,
        ),
        FaultCase::new(
            "leader-output-loss",
            "what the leader publishes does not leave its host, its renewals do; one receiver cannot request messages",
            PeerLeads,
            network::drop_leader_output,
        )
        .with_plan(|plan| plan.requesting_receivers = RECEIVERS - 1),
        FaultCase::new(
            "leader-output-refused",
            "the leader's kernel refuses what the leader publishes, as with an interface that is down; no receiver can request messages",
            PeerLeads,
            network::refuse_leader_output,
        )
        .with_plan(|plan| plan.requesting_receivers = 0),
        FaultCase::new(
            "output-loss-unrequested",
            "the same, and no receiver can request messages",
            PeerLeads,
            network::drop_leader_output,
        )
        .with_plan(|plan| plan.requesting_receivers = 0),
        FaultCase::new(
            "output-loss-kill",
            "the same, and the leader is killed in the midst of it",
            PeerLeads,
            network::drop_leader_output_and_kill,
        )
        .with_plan(|plan| plan.requesting_receivers = 0),
        FaultCase::new(
            "leader-isolated",
            "the leader is partitioned from the other gateway and from the lease authority, not from receivers",
            PeerLeads,
            |testbed, _| network::isolate_leader(testbed, network::Direction::Both),
        )
        .with_backend(Quorum),
        FaultCase::new("leader-outbound-loss", "the same, but only what the leader sends is dropped", PeerLeads, |testbed, _| {
            network::isolate_leader(testbed, network::Direction::Outbound)
        })
        .with_backend(Quorum),
        FaultCase::new("leader-inbound-loss", "the same, but only what is sent to the leader is dropped", PeerLeads, |testbed, _| {
            network::isolate_leader(testbed, network::Direction::Inbound)
        })
        .with_backend(Quorum),
        FaultCase::new("partition-standby", "leader and standby are partitioned from each other, for 2 s", NoChange, |testbed, _| {
            network::partition_from_standby(testbed, network::Direction::Both)
        })
        .with_backend(Quorum),
        FaultCase::new("partition-to-standby", "the standby receives nothing from the leader, for 2 s", NoChange, |testbed, _| {
            network::partition_from_standby(testbed, network::Direction::Outbound)
        })
        .with_backend(Quorum),
        FaultCase::new("partition-to-leader", "the leader receives nothing from the standby, for 2 s", NoChange, |testbed, _| {
            network::partition_from_standby(testbed, network::Direction::Inbound)
        })
        .with_backend(Quorum),
        FaultCase::new(
            "pair-link-cut",
            "the pair link alone delivers nothing for 2 s: the standby receives feed, output and votes",
            NoChange,
            |testbed, _| network::cut_pair_link(testbed),
        )
        .with_backend(Quorum),
        FaultCase::new("partition-witness", "the leader is partitioned from the witness, for 2 s", NoChange, |testbed, _| {
            network::partition_from_authority(testbed, network::Direction::Both)
        })
        .with_backend(Quorum),
        FaultCase::new("partition-to-witness", "the witness receives nothing from the leader, for 2 s", NoChange, |testbed, _| {
            network::partition_from_authority(testbed, network::Direction::Outbound)
        })
        .with_backend(Quorum),
        FaultCase::new("partition-from-witness", "the leader receives nothing from the witness, for 2 s", NoChange, |testbed, _| {
            network::partition_from_authority(testbed, network::Direction::Inbound)
        })
        .with_backend(Quorum),
        FaultCase::new("standby-partition-witness", "the standby is partitioned from the witness, for 2 s", NoChange, |testbed, _| {
            network::partition_standby_from_authority(testbed, network::Direction::Both)
        })
        .with_backend(Quorum),
        FaultCase::new("standby-partition-store", "the standby is partitioned from the store, for 2 s", NoChange, |testbed, _| {
            network::partition_standby_from_authority(testbed, network::Direction::Both)
        })
        .with_backend(ETCD),
        FaultCase::new(
            "standby-partition-from-store",
            "the standby receives nothing from the store, for 2 s",
            NoChange,
            |testbed, _| network::partition_standby_from_authority(testbed, network::Direction::Inbound),
        )
        .with_backend(ETCD),
        FaultCase::new("partition-store", "the leader is partitioned from the store, for 2 s", NoChange, |testbed, _| {
            network::partition_from_authority(testbed, network::Direction::Both)
        })
        .with_backend(ETCD),
        FaultCase::new("partition-to-store", "the store receives nothing from the leader, for 2 s", NoChange, |testbed, _| {
            network::partition_from_authority(testbed, network::Direction::Outbound)
        })
        .with_backend(ETCD),
        FaultCase::new(
            "partition-from-store",
            "the leader receives nothing from the store: its swaps take effect, their answers are lost; for 2 s",
            NoChange,
            |testbed, _| network::partition_from_authority(testbed, network::Direction::Inbound),
        )
        .with_backend(ETCD),
        FaultCase::new("queued-sends", "the leader's link is too slow: packets wait in full sockets while its lease ends", PeerLeads, |testbed, _| {
            network::queue_sends_past_lease(testbed)
        })
        .with_backend(Quorum),
        FaultCase::new("forged-implausible", "an unknown sender publishes under an epoch too high to be plausible", NoChange, |testbed, _| {
            network::forge_implausible_epoch(testbed)
        }),
        FaultCase::new("forged-plausible", "an unknown sender publishes under plausible epochs, in every other trial with the leader's node id", NewEpoch, |testbed, trial| {
            network::forge_plausible_epochs(testbed, trial % 2 == 1)
        }),
        FaultCase::new("store-down", "all nodes of the store are killed, for a while, and started again", NoChange, |testbed, _| {
            lease_authority::kill_store(testbed, lease_authority::Nodes::All)
        })
        .with_backend(ETCD),
        FaultCase::new("store-no-quorum", "all nodes of the store but one are killed, for a while", NoChange, |testbed, _| {
            lease_authority::kill_store(testbed, lease_authority::Nodes::AllButOne)
        })
        .with_backend(ETCD),
        FaultCase::new("store-node-down", "one node of the store after the other is killed and started again", NoChange, |testbed, trial| {
            lease_authority::kill_store(testbed, lease_authority::Nodes::One(trial))
        })
        .with_backend(ETCD),
        FaultCase::new("store-paused", "all nodes of the store are stopped (SIGSTOP), for a while, and continued", NoChange, |testbed, _| {
            lease_authority::pause_store(testbed)
        })
        .with_backend(ETCD),
        FaultCase::new("witness-down", "the witness is killed, for a while, and started again", NoChange, |testbed, _| {
            lease_authority::kill_witness(testbed)
        })
        .with_backend(Quorum),
        FaultCase::new("disk-full", "the disk of votes and audits is full on both gateways, for a while", NoChange, |testbed, _| {
            lease_authority::fill_disks(testbed)
        })
        .with_backend(Quorum)
        .with_plan(|plan| plan.has_small_disks = true),
        FaultCase::new(
            "disk-full-kill",
            "the disk of votes and audits is full on both gateways, and the leader is killed",
            PeerLeads,
            |testbed, _| lease_authority::kill_with_full_disks(testbed),
        )
        .with_backend(Quorum)
        .with_plan(|plan| plan.has_small_disks = true),
        FaultCase::new("junk-feed", "a host without keys floods the venue's groups with junk", NoChange, |testbed, _| {
            network::flood(testbed, FloodTarget::FeedGroups)
        })
        .with_backend(Quorum),
        FaultCase::new(
            "junk-output",
            "the same, the output group; packets have tags, and a part of the junk has believable headers",
            NoChange,
            |testbed, _| network::flood(testbed, FloodTarget::OutputGroups),
        )
        .with_backend(Quorum)
        .with_plan(|plan| plan.has_packet_tags = true),
        FaultCase::new(
            "junk-retransmission",
            "the same, the retransmission services; requests for everything and under other hosts' addresses among them",
            NoChange,
            |testbed, _| network::flood(testbed, FloodTarget::Retransmission),
        )
        .with_backend(Quorum),
        FaultCase::new(
            "junk-pair-link",
            "the same, the pair links: connections and datagrams, also under the peer's address",
            NoChange,
            |testbed, _| network::flood(testbed, FloodTarget::PairLink),
        )
        .with_backend(Quorum),
        FaultCase::new(
            "junk-votes",
            "the same, the sockets for votes of gateways and witness, also under a peer's address",
            NoChange,
            |testbed, _| network::flood(testbed, FloodTarget::Votes),
        )
        .with_backend(Quorum),
    ]
};

/// The case of that name.
#[must_use]
pub fn case_named(name: &str) -> Option<FaultCase> {
    CASES.into_iter().find(|case| case.name == name)
}

/// Environment variable: a built `mdgw` of another version.
pub const PREVIOUS_PROGRAM: &str = "MDGW_PREVIOUS_PROGRAM";

/// Publishes each change of the best ten levels, so that the output shows the content of every book.
fn publish_books(plan: &mut Plan) {
    plan.channel += "schemas = [\"mbo\", \"mbp-10\"]\n";
}

/// Makes the records of most messages larger than a packet.
fn split_messages(plan: &mut Plan) {
    plan.channel += "schemas = [\"mbo\", \"mbp-1\", \"mbp-10\", \"trades\"]\n";
    plan.output += "payload_bytes_max = 640\n";
}

/// Bursts for a tenth of the time of a fault that must change nothing, into small receive buffers.
fn overrun_receive_buffers(plan: &mut Plan) {
    let every_ms = u64::try_from(plan.stable_for.as_millis()).expect("a fault is shorter than an age");
    let messages_per_second = OVERLOAD_FACTOR * plan.messages_per_second;
    plan.bursts = Some(VenueBursts { messages_per_second, burst_ms: every_ms / 10, every_ms });
    plan.receive_buffer_bytes = Some(OVERLOAD_BUFFER_BYTES);
    // The day lasts as long as without bursts.
    plan.messages *= 5;
}

/// The bursts come by themselves. Both gateways must have lost packets, and have everything in the end.
fn overload(testbed: &mut Testbed) -> InjectedFault {
    let fault = hold_fault_as_planned(testbed, |_, _| {});
    for node in testbed.running() {
        wait_until("a burst has overrun the gateway", || testbed.kernel_drops(node) > 0);
    }
    fault
}

/// A burst has this many times the rate.
const OVERLOAD_FACTOR: f64 = 40.0;
/// Receive buffer of a line under overload: the kernel doubles it, and counts a packet with 2 KiB or more.
const OVERLOAD_BUFFER_BYTES: u32 = 8_192;

/// Injects a fault that must change nothing, and undoes it after `length`.
fn hold_fault(testbed: &mut Testbed, length: Duration, mut toggle: impl FnMut(&mut Testbed, bool)) -> InjectedFault {
    // An equal time without the fault comes first, for comparison.
    std::thread::sleep(length);
    let epoch_before = testbed.epoch();
    let injected_ns = now_ns();
    toggle(testbed, true);
    std::thread::sleep(length);
    let stable_until_ns = Some(now_ns());
    toggle(testbed, false);
    testbed.wait_for_more_deliveries(DELIVERIES_AFTER_FAULT);
    InjectedFault { epoch_before, injected_ns, stable_until_ns }
}

/// [`hold_fault`] for the duration of the plan.
fn hold_fault_as_planned(testbed: &mut Testbed, toggle: impl FnMut(&mut Testbed, bool)) -> InjectedFault {
    let length = testbed.plan.stable_for;
    hold_fault(testbed, length, toggle)
}

/// The leader and its epoch, in a quiet moment: no request of the harness is outstanding. The trial number sets the phase
/// between two renewals at which the fault will come.
fn quiescent_leader(testbed: &Testbed, trial: u64) -> (u8, Epoch) {
    let LeaseTimingMs(_, renewal_ms, _) = testbed.plan.timing;
    let phase_us = trial * PHASE_STEP_US % (1_000 * renewal_ms);
    loop {
        let current = (testbed.leader(), testbed.epoch());
        std::thread::sleep(Duration::from_millis(2 * renewal_ms) + Duration::from_micros(phase_us));
        if testbed.epoch() == current.1 {
            return current;
        }
    }
}

/// Waits until every receiver gets content of a later epoch, and the stream continues.
fn wait_for_failover(testbed: &Testbed, epoch_before: Epoch) {
    let _next = testbed.wait_for_content_after(epoch_before);
    testbed.wait_for_more_deliveries(DELIVERIES_AFTER_FAULT);
}

fn now_ns() -> u64 {
    mdgw_sys::clock::unix_now().0
}

/// Phase between the faults of two trials, us: a prime, so that the trials are spread over a renewal interval.
const PHASE_STEP_US: u64 = 7_919;
/// Deliveries after which the stream counts as continuing.
const DELIVERIES_AFTER_FAULT: usize = 200;
