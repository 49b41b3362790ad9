//! What is done to a pair, by name. Each function strikes once and returns when both gateways are in order again.

mod grantors;
mod network;
mod processes;

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{
    Testbed,
    plan::{ElectionBackend, Plan},
};
use crate::{failover::LeaseTimingMs, stores::Store};

/// One kind of blow.
#[derive(Clone, Copy, Debug)]
pub struct FaultCase {
    /// What it is called.
    pub name: &'static str,
    /// What is done.
    pub description: &'static str,
    /// What has to come of it.
    pub wanted: ExpectedOutcome,
    /// Who grants leadership where nobody asks for somebody else.
    pub backend: ElectionBackend,
    /// What the world has to be like.
    pub prepare: fn(&mut Plan),
    /// Does it; the number of the trial varies what can vary.
    pub strike: fn(&mut Testbed, u64) -> InjectedFault,
}

/// What has to come of a blow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// The other gateway leads.
    PeerLeads,
    /// One of them leads, under a new epoch.
    NewEpoch,
    /// Who leads goes on, under the same epoch.
    NoChange,
}

/// A blow that was struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    /// Under which epoch everything had come before.
    pub before: Epoch,
    /// When it was struck, ns since 1970 UTC.
    pub injected_ns: u64,
    /// Nobody else may lead because of it: until when it lasted, ns since 1970 UTC. As long before it nothing was done.
    pub stable_until_ns: Option<u64>,
}

impl FaultCase {
    /// Of a pair over records in memory, in an ordinary world.
    const fn new(
        name: &'static str,
        description: &'static str,
        wanted: ExpectedOutcome,
        strike: fn(&mut Testbed, u64) -> InjectedFault,
    ) -> Self {
        Self { name, description, wanted, backend: ElectionBackend::File, prepare: |_| {}, strike }
    }

    const fn over(self, backend: ElectionBackend) -> Self {
        Self { backend, ..self }
    }

    const fn with(self, prepare: fn(&mut Plan)) -> Self {
        Self { prepare, ..self }
    }
}

const ETCD: ElectionBackend = ElectionBackend::Store(Store::Etcd);

/// All of them.
pub const CASES: [FaultCase; 43] = {
    use ElectionBackend::Quorum;
    use ExpectedOutcome::{NewEpoch, NoChange, PeerLeads};
    [
        FaultCase::new("kill", "the leader is killed (SIGKILL) and started again", PeerLeads, processes::kill),
        FaultCase::new("abort", "the leader aborts (SIGABRT) and is started again", PeerLeads, processes::abort),
        FaultCase::new(
            "out-of-memory",
            "the leader gets no more memory, is killed by the kernel, and started again",
            PeerLeads,
            processes::starve,
        )
        .with(|plan| plan.has_memory_limit = true),
        FaultCase::new(
            "three-kills",
            "of three gateways the leader is killed, then the one that follows it; both are started again",
            PeerLeads,
            processes::kill_two_in_sequence,
        )
        .with(|plan| plan.gateways = 3),
        FaultCase::new("stop", "the leader is stopped (SIGSTOP) for 0.2 to 3 s and goes on", PeerLeads, processes::stop),
        FaultCase::new("hand-over", "the leader is asked to hand over", PeerLeads, processes::hand_over),
        FaultCase::new(
            "both-restarted",
            "both gateways are killed in one moment, and started again: the venue has to play the session once more",
            NewEpoch,
            processes::restart_both,
        ),
        FaultCase::new("alone", "the other gateway comes to one that was started alone, and goes", NoChange, |world, _| {
            processes::join_single_gateway(world)
        })
        .over(Quorum)
        .with(|plan| plan.starts_with_one_gateway = true),
        FaultCase::new(
            "rolled",
            "first the standby, then the leader is started again with the next revision of the configuration",
            PeerLeads,
            processes::upgrade_configuration,
        ),
        FaultCase::new(
            "parts-kill",
            "packets are so small that messages are cut into parts; the leader's output is cut, wherever it is, and it is killed",
            PeerLeads,
            processes::kill_inside_a_message,
        )
        .with(split_messages),
        FaultCase::new(
            "roll-kill",
            "the session ends and the next one begins, while the leader is killed (the venue itself is silent for a second)",
            PeerLeads,
            processes::kill_while_sessions_change,
        ),
        FaultCase::new(
            "gap-kill",
            "the leader alone misses both lines for a moment and is killed; books are told with each change",
            PeerLeads,
            processes::gap_then_kill,
        )
        .with(publish_books),
        FaultCase::new("nothing", "nobody fails, for a while", NoChange, |world, _| hold_fault_as_planned(world, |_, _| {})),
        FaultCase::new("line-loss", "the leader misses 30 % of line A", NoChange, network::drop_on_line_a),
        FaultCase::new(
            "lines-loss-kill",
            "the leader misses 10 % of both lines, and is killed",
            PeerLeads,
            network::drop_leader_input_and_kill,
        )
        .with(publish_books),
        FaultCase::new(
            "standby-loss-kill",
            "the standby misses 10 % of both lines, and the leader is killed",
            PeerLeads,
            network::drop_standby_input_and_kill,
        )
        .with(publish_books),
        FaultCase::new(
            "standby-loss-stop",
            "the standby misses 30 % of both lines, and the leader is stopped (SIGSTOP) until it takes over",
            PeerLeads,
            network::drop_standby_input_and_pause,
        ),
        FaultCase::new(
            "output-cut",
            "nothing that the leader publishes leaves its host; its renewals do",
            PeerLeads,
            network::drop_leader_output,
        ),
        FaultCase::new(
            "leader-cut",
            "the leader is cut off from the other gateway and from whoever grants leadership, not from receivers",
            PeerLeads,
            |world, _| network::isolate_leader(world, network::Direction::Both),
        )
        .over(Quorum),
        FaultCase::new("leader-mute", "the same, and the leader still hears them", PeerLeads, |world, _| {
            network::isolate_leader(world, network::Direction::From)
        })
        .over(Quorum),
        FaultCase::new("leader-deaf", "the same, and they still hear the leader", PeerLeads, |world, _| {
            network::isolate_leader(world, network::Direction::To)
        })
        .over(Quorum),
        FaultCase::new("cut-standby", "leader and standby are cut off from each other, for 2 s", NoChange, |world, _| {
            network::partition_from_standby(world, network::Direction::Both)
        })
        .over(Quorum),
        FaultCase::new("cut-to-standby", "the standby does not hear the leader, for 2 s", NoChange, |world, _| {
            network::partition_from_standby(world, network::Direction::From)
        })
        .over(Quorum),
        FaultCase::new("cut-to-leader", "the leader does not hear the standby, for 2 s", NoChange, |world, _| {
            network::partition_from_standby(world, network::Direction::To)
        })
        .over(Quorum),
        FaultCase::new("cut-witness", "the leader is cut off from the witness, for 2 s", NoChange, |world, _| {
            network::partition_from_authority(world, network::Direction::Both)
        })
        .over(Quorum),
        FaultCase::new("cut-to-witness", "the witness does not hear the leader, for 2 s", NoChange, |world, _| {
            network::partition_from_authority(world, network::Direction::From)
        })
        .over(Quorum),
        FaultCase::new("cut-from-witness", "the leader does not hear the witness, for 2 s", NoChange, |world, _| {
            network::partition_from_authority(world, network::Direction::To)
        })
        .over(Quorum),
        FaultCase::new("standby-cut-witness", "the standby is cut off from the witness, for 2 s", NoChange, |world, _| {
            network::partition_standby_from_authority(world, network::Direction::Both)
        })
        .over(Quorum),
        FaultCase::new("standby-cut-store", "the standby is cut off from the store, for 2 s", NoChange, |world, _| {
            network::partition_standby_from_authority(world, network::Direction::Both)
        })
        .over(ETCD),
        FaultCase::new(
            "standby-deaf-store",
            "the standby does not hear the store, for 2 s",
            NoChange,
            |world, _| network::partition_standby_from_authority(world, network::Direction::To),
        )
        .over(ETCD),
        FaultCase::new("cut-store", "the leader is cut off from the store, for 2 s", NoChange, |world, _| {
            network::partition_from_authority(world, network::Direction::Both)
        })
        .over(ETCD),
        FaultCase::new("cut-to-store", "the store does not hear the leader, for 2 s", NoChange, |world, _| {
            network::partition_from_authority(world, network::Direction::From)
        })
        .over(ETCD),
        FaultCase::new(
            "cut-from-store",
            "the leader does not hear the store: its swaps are done, their answers lost; for 2 s",
            NoChange,
            |world, _| network::partition_from_authority(world, network::Direction::To),
        )
        .over(ETCD),
        FaultCase::new("parked", "the leader's cable is too slow: packets wait in full sockets while its lease ends", PeerLeads, |world, _| {
            network::queue_sends_past_lease(world)
        })
        .over(Quorum),
        FaultCase::new("forged", "a stranger publishes under an epoch too far above to be believed", NoChange, |world, _| {
            network::forge_implausible_epoch(world)
        }),
        FaultCase::new("forged-credible", "a stranger publishes under epochs that everybody believes, each other time under the leader's own number", NewEpoch, |world, trial| {
            network::forge_plausible_epochs(world, trial % 2 == 1)
        }),
        FaultCase::new("store-down", "all nodes of the store are killed, for a while, and started again", NoChange, |world, _| {
            grantors::kill_store(world, grantors::Nodes::All)
        })
        .over(ETCD),
        FaultCase::new("store-no-quorum", "all nodes of the store but one are killed, for a while", NoChange, |world, _| {
            grantors::kill_store(world, grantors::Nodes::AllButOne)
        })
        .over(ETCD),
        FaultCase::new("store-node-down", "one node of the store after the other is killed and started again", NoChange, |world, trial| {
            grantors::kill_store(world, grantors::Nodes::One(trial))
        })
        .over(ETCD),
        FaultCase::new("store-hangs", "all nodes of the store are stopped (SIGSTOP), for a while, and go on", NoChange, |world, _| {
            grantors::pause_store(world)
        })
        .over(ETCD),
        FaultCase::new("witness-down", "the witness is killed, for a while, and started again", NoChange, |world, _| {
            grantors::kill_witness(world)
        })
        .over(Quorum),
        FaultCase::new("disk-full", "no room for votes and audits of both gateways, for a while", NoChange, |world, _| {
            grantors::fill_disks(world)
        })
        .over(Quorum)
        .with(|plan| plan.has_small_disks = true),
        FaultCase::new(
            "disk-full-kill",
            "no room for votes and audits of both gateways, and the leader is killed",
            PeerLeads,
            |world, _| grantors::kill_with_full_disks(world),
        )
        .over(Quorum)
        .with(|plan| plan.has_small_disks = true),
    ]
};

/// The case of that name.
#[must_use]
pub fn named(name: &str) -> Option<FaultCase> {
    CASES.into_iter().find(|case| case.name == name)
}

/// Each change of the best ten levels is told with them: what receivers get says what is in every book.
fn publish_books(plan: &mut Plan) {
    plan.channel += "schemas = [\"mbo\", \"mbp-10\"]\n";
}

/// Most messages come to more than the smallest packet holds.
fn split_messages(plan: &mut Plan) {
    plan.channel += "schemas = [\"mbo\", \"mbp-1\", \"mbp-10\", \"trades\"]\n";
    plan.output += "payload_bytes_max = 576\n";
}

/// Something that must change nothing: done, and undone after so long.
fn calm(world: &mut Testbed, length: Duration, mut toggle: impl FnMut(&mut Testbed, bool)) -> InjectedFault {
    // As long without it before, to compare with, and as long with it: lengths of the trial.
    std::thread::sleep(length);
    let before = world.epoch();
    let injected_ns = now_ns();
    toggle(world, true);
    std::thread::sleep(length);
    let stable_until_ns = Some(now_ns());
    toggle(world, false);
    world.wait_for_more_deliveries(DELIVERIES_AFTER_FAULT);
    InjectedFault { before, injected_ns, stable_until_ns }
}

/// The same, for as long as the plan says.
fn hold_fault_as_planned(world: &mut Testbed, toggle: impl FnMut(&mut Testbed, bool)) -> InjectedFault {
    let length = world.plan.calm;
    calm(world, length, toggle)
}

/// Who leads, and under which epoch, when all is at rest: nobody is busy with what is asked for the blow's sake, and it can
/// come at any moment between two renewals.
fn quiescent_leader(world: &Testbed, trial: u64) -> (u8, Epoch) {
    let LeaseTimingMs(_, renewal_ms, _) = world.plan.timing;
    let phase_us = trial * PHASE_STEP_US % (1_000 * renewal_ms);
    loop {
        let current = (world.leader(), world.epoch());
        std::thread::sleep(Duration::from_millis(2 * renewal_ms) + Duration::from_micros(phase_us));
        if world.epoch() == current.1 {
            return current;
        }
    }
}

/// Something under which nobody publishes for a moment: until content of another epoch comes, and goes on.
fn wait_for_failover(world: &Testbed, before: Epoch) {
    let _next = world.wait_for_content_after(before);
    world.wait_for_more_deliveries(DELIVERIES_AFTER_FAULT);
}

fn now_ns() -> u64 {
    mdgw_sys::clock::unix_now().0
}

/// A prime, so that trials are spread over a renewal's time.
const PHASE_STEP_US: u64 = 7_919;
/// Things that have to be delivered before a stream goes on.
const DELIVERIES_AFTER_FAULT: usize = 200;
