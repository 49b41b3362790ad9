//! What is done to a pair, by name. Each function strikes once and returns when both gateways are in order again.

mod grantors;
mod network;
mod processes;

use std::time::Duration;

use mdgw_feeds::identity::Epoch;

use super::{
    World,
    plan::{Backend, Plan},
};
use crate::{failover::Timing, stores::Store};

/// One kind of blow.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// What is done.
    pub about: &'static str,
    /// What has to come of it.
    pub wanted: Wanted,
    /// Who grants leadership where nobody asks for somebody else.
    pub backend: Backend,
    /// What the world has to be like.
    pub prepare: fn(&mut Plan),
    /// Does it; the number of the trial varies what can vary.
    pub strike: fn(&mut World, u64) -> Blow,
}

/// What has to come of a blow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The other gateway leads.
    OtherLeads,
    /// One of them leads, under a new epoch.
    SomebodyLeads,
    /// Who leads goes on, under the same epoch.
    NothingMoves,
}

/// A blow that was struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blow {
    /// Under which epoch everything had come before.
    pub before: Epoch,
    /// When it was struck, ns since 1970 UTC.
    pub struck_ns: u64,
    /// Nobody else may lead because of it: until when it lasted, ns since 1970 UTC. As long before it nothing was done.
    pub calm_until_ns: Option<u64>,
}

impl Case {
    /// Of a pair over records in memory, in an ordinary world.
    const fn new(name: &'static str, about: &'static str, wanted: Wanted, strike: fn(&mut World, u64) -> Blow) -> Self {
        Self { name, about, wanted, backend: Backend::File, prepare: |_| {}, strike }
    }

    const fn over(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    const fn with(self, prepare: fn(&mut Plan)) -> Self {
        Self { prepare, ..self }
    }
}

const ETCD: Backend = Backend::Store(Store::Etcd);

/// All of them.
pub const CASES: [Case; 43] = {
    use Backend::Quorum;
    use Wanted::{NothingMoves, OtherLeads, SomebodyLeads};
    [
        Case::new("kill", "the leader is killed (SIGKILL) and started again", OtherLeads, processes::kill),
        Case::new("abort", "the leader aborts (SIGABRT) and is started again", OtherLeads, processes::abort),
        Case::new(
            "out-of-memory",
            "the leader gets no more memory, is killed by the kernel, and started again",
            OtherLeads,
            processes::starve,
        )
        .with(|plan| plan.counts_memory = true),
        Case::new(
            "three-kills",
            "of three gateways the leader is killed, then the one that follows it; both are started again",
            OtherLeads,
            processes::kill_one_after_the_other,
        )
        .with(|plan| plan.gateways = 3),
        Case::new("stop", "the leader is stopped (SIGSTOP) for 0.2 to 3 s and goes on", OtherLeads, processes::stop),
        Case::new("hand-over", "the leader is asked to hand over", OtherLeads, processes::hand_over),
        Case::new(
            "both-restarted",
            "both gateways are killed in one moment, and started again: the venue has to play the session once more",
            SomebodyLeads,
            processes::restart_both,
        ),
        Case::new("alone", "the other gateway comes to one that was started alone, and goes", NothingMoves, |world, _| {
            processes::join_alone(world)
        })
        .over(Quorum)
        .with(|plan| plan.begins_alone = true),
        Case::new(
            "rolled",
            "first the standby, then the leader is started again with the next revision of the configuration",
            OtherLeads,
            processes::roll_configuration,
        ),
        Case::new(
            "parts-kill",
            "packets are so small that messages are cut into parts; the leader's output is cut, wherever it is, and it is killed",
            OtherLeads,
            processes::kill_inside_a_message,
        )
        .with(cut_messages),
        Case::new(
            "roll-kill",
            "the session ends and the next one begins, while the leader is killed (the venue itself is silent for a second)",
            OtherLeads,
            processes::kill_while_sessions_change,
        ),
        Case::new(
            "gap-kill",
            "the leader alone misses both lines for a moment and is killed; books are told with each change",
            OtherLeads,
            processes::gap_then_kill,
        )
        .with(tell_books),
        Case::new("nothing", "nobody fails, for a while", NothingMoves, |world, _| calm_a_while(world, |_, _| {})),
        Case::new("line-loss", "the leader misses 30 % of line A", NothingMoves, network::lose_a_line),
        Case::new(
            "lines-loss-kill",
            "the leader misses 10 % of both lines, and is killed",
            OtherLeads,
            network::lose_lines_of_leader,
        )
        .with(tell_books),
        Case::new(
            "standby-loss-kill",
            "the standby misses 10 % of both lines, and the leader is killed",
            OtherLeads,
            network::lose_lines_of_standby,
        )
        .with(tell_books),
        Case::new(
            "standby-loss-stop",
            "the standby misses 30 % of both lines, and the leader is stopped (SIGSTOP) until it takes over",
            OtherLeads,
            network::lose_lines_of_standby_and_stop,
        ),
        Case::new(
            "output-cut",
            "nothing that the leader publishes leaves its host; its renewals do",
            OtherLeads,
            network::cut_output,
        ),
        Case::new(
            "leader-cut",
            "the leader is cut off from the other gateway and from whoever grants leadership, not from receivers",
            OtherLeads,
            |world, _| network::cut_leader(world, network::Way::Both),
        )
        .over(Quorum),
        Case::new("leader-mute", "the same, and the leader still hears them", OtherLeads, |world, _| {
            network::cut_leader(world, network::Way::From)
        })
        .over(Quorum),
        Case::new("leader-deaf", "the same, and they still hear the leader", OtherLeads, |world, _| {
            network::cut_leader(world, network::Way::To)
        })
        .over(Quorum),
        Case::new("cut-standby", "leader and standby are cut off from each other, for 2 s", NothingMoves, |world, _| {
            network::cut_from_standby(world, network::Way::Both)
        })
        .over(Quorum),
        Case::new("cut-to-standby", "the standby does not hear the leader, for 2 s", NothingMoves, |world, _| {
            network::cut_from_standby(world, network::Way::From)
        })
        .over(Quorum),
        Case::new("cut-to-leader", "the leader does not hear the standby, for 2 s", NothingMoves, |world, _| {
            network::cut_from_standby(world, network::Way::To)
        })
        .over(Quorum),
        Case::new("cut-witness", "the leader is cut off from the witness, for 2 s", NothingMoves, |world, _| {
            network::cut_from_grantors(world, network::Way::Both)
        })
        .over(Quorum),
        Case::new("cut-to-witness", "the witness does not hear the leader, for 2 s", NothingMoves, |world, _| {
            network::cut_from_grantors(world, network::Way::From)
        })
        .over(Quorum),
        Case::new("cut-from-witness", "the leader does not hear the witness, for 2 s", NothingMoves, |world, _| {
            network::cut_from_grantors(world, network::Way::To)
        })
        .over(Quorum),
        Case::new("standby-cut-witness", "the standby is cut off from the witness, for 2 s", NothingMoves, |world, _| {
            network::cut_standby_from_grantors(world, network::Way::Both)
        })
        .over(Quorum),
        Case::new("standby-cut-store", "the standby is cut off from the store, for 2 s", NothingMoves, |world, _| {
            network::cut_standby_from_grantors(world, network::Way::Both)
        })
        .over(ETCD),
        Case::new(
            "standby-deaf-store",
            "the standby does not hear the store, for 2 s",
            NothingMoves,
            |world, _| network::cut_standby_from_grantors(world, network::Way::To),
        )
        .over(ETCD),
        Case::new("cut-store", "the leader is cut off from the store, for 2 s", NothingMoves, |world, _| {
            network::cut_from_grantors(world, network::Way::Both)
        })
        .over(ETCD),
        Case::new("cut-to-store", "the store does not hear the leader, for 2 s", NothingMoves, |world, _| {
            network::cut_from_grantors(world, network::Way::From)
        })
        .over(ETCD),
        Case::new(
            "cut-from-store",
            "the leader does not hear the store: its swaps are done, their answers lost; for 2 s",
            NothingMoves,
            |world, _| network::cut_from_grantors(world, network::Way::To),
        )
        .over(ETCD),
        Case::new("parked", "the leader's cable is too slow: packets wait in full sockets while its lease ends", OtherLeads, |world, _| {
            network::park_sends(world)
        })
        .over(Quorum),
        Case::new("forged", "a stranger publishes under an epoch too far above to be believed", NothingMoves, |world, _| {
            network::forge_an_incredible_epoch(world)
        }),
        Case::new("forged-credible", "a stranger publishes under epochs that everybody believes, each other time under the leader's own number", SomebodyLeads, |world, trial| {
            network::forge_credible_epochs(world, trial % 2 == 1)
        }),
        Case::new("store-down", "all nodes of the store are killed, for a while, and started again", NothingMoves, |world, _| {
            grantors::kill_store(world, grantors::Nodes::All)
        })
        .over(ETCD),
        Case::new("store-no-quorum", "all nodes of the store but one are killed, for a while", NothingMoves, |world, _| {
            grantors::kill_store(world, grantors::Nodes::AllButOne)
        })
        .over(ETCD),
        Case::new("store-node-down", "one node of the store after the other is killed and started again", NothingMoves, |world, trial| {
            grantors::kill_store(world, grantors::Nodes::One(trial))
        })
        .over(ETCD),
        Case::new("store-hangs", "all nodes of the store are stopped (SIGSTOP), for a while, and go on", NothingMoves, |world, _| {
            grantors::stop_store(world)
        })
        .over(ETCD),
        Case::new("witness-down", "the witness is killed, for a while, and started again", NothingMoves, |world, _| {
            grantors::kill_witness(world)
        })
        .over(Quorum),
        Case::new("disk-full", "no room for votes and audits of both gateways, for a while", NothingMoves, |world, _| {
            grantors::fill_disks(world)
        })
        .over(Quorum)
        .with(|plan| plan.has_small_disks = true),
        Case::new(
            "disk-full-kill",
            "no room for votes and audits of both gateways, and the leader is killed",
            OtherLeads,
            |world, _| grantors::kill_with_full_disks(world),
        )
        .over(Quorum)
        .with(|plan| plan.has_small_disks = true),
    ]
};

/// The case of that name.
#[must_use]
pub fn named(name: &str) -> Option<Case> {
    CASES.into_iter().find(|case| case.name == name)
}

/// Each change of the best ten levels is told with them: what receivers get says what is in every book.
fn tell_books(plan: &mut Plan) {
    plan.channel += "schemas = [\"mbo\", \"mbp-10\"]\n";
}

/// Most messages come to more than the smallest packet holds.
fn cut_messages(plan: &mut Plan) {
    plan.channel += "schemas = [\"mbo\", \"mbp-1\", \"mbp-10\", \"trades\"]\n";
    plan.output += "payload_bytes_max = 576\n";
}

/// Something that must change nothing: done, and undone after so long.
fn calm(world: &mut World, length: Duration, mut act: impl FnMut(&mut World, bool)) -> Blow {
    // As long without it before, to compare with, and as long with it: lengths of the trial.
    std::thread::sleep(length);
    let before = world.epoch();
    let struck_ns = now_ns();
    act(world, true);
    std::thread::sleep(length);
    let calm_until_ns = Some(now_ns());
    act(world, false);
    world.wait_for_more(MORE);
    Blow { before, struck_ns, calm_until_ns }
}

/// The same, for as long as the plan says.
fn calm_a_while(world: &mut World, act: impl FnMut(&mut World, bool)) -> Blow {
    let length = world.plan.calm;
    calm(world, length, act)
}

/// Who leads, and under which epoch, when all is at rest: nobody is busy with what is asked for the blow's sake, and it can
/// come at any moment between two renewals.
fn leader_at_rest(world: &World, trial: u64) -> (u8, Epoch) {
    let Timing(_, renewal_ms, _) = world.plan.timing;
    let phase_us = trial * PHASE_STEP_US % (1_000 * renewal_ms);
    loop {
        let found = (world.leader(), world.epoch());
        std::thread::sleep(Duration::from_millis(2 * renewal_ms) + Duration::from_micros(phase_us));
        if world.epoch() == found.1 {
            return found;
        }
    }
}

/// Something under which nobody publishes for a moment: until content of another epoch comes, and goes on.
fn follow(world: &World, before: Epoch) {
    let _next = world.wait_for_content_after(before);
    world.wait_for_more(MORE);
}

fn now_ns() -> u64 {
    mdgw_sys::clock::unix_now().0
}

/// A prime, so that trials are spread over a renewal's time.
const PHASE_STEP_US: u64 = 7_919;
/// Things that have to be delivered before a stream goes on.
const MORE: usize = 200;
