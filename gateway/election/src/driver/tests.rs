//! Elections over a directory, with real threads and the real clock. They wait for states, never for times.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mdgw_feeds::time::MonoNs;

use super::*;
use crate::{
    core::ConnectionState,
    file::FileRegister,
    identity::Incarnation,
    latch::{LeaderLatch, Listener},
    lease::{Lease, LeaseConfig, OnSuspended},
    moves::MovesConfig,
    record::{ConfigurationMark, tests::member},
};

const GENEROUS: Duration = Duration::from_secs(60);

/// Hands messages to the other election of a pair.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<BTreeMap<NodeId, Election>>>);

struct Side {
    node: NodeId,
    wires: Wires,
    /// How long each round is held up.
    held_up: Duration,
}

impl Surroundings for Side {
    fn goes_round(&mut self) {
        std::thread::sleep(self.held_up);
    }

    fn to_peer(&mut self, to: NodeId, message: PeerMessage) {
        if let Some(peer) = self.wires.0.lock().unwrap().get(&to) {
            peer.heard_from_peer(self.node, message);
        }
    }
}

fn election(node: u8, incarnation: u64, directory: &Path, wires: &Wires) -> (Election, Arc<Fence>) {
    election_held_up(node, incarnation, directory, wires, Duration::ZERO)
}

fn election_held_up(
    node: u8,
    incarnation: u64,
    directory: &Path,
    wires: &Wires,
    held_up: Duration,
) -> (Election, Arc<Fence>) {
    let names = [1, 2].map(|node| (NodeId(node), member(node, 0).name));
    let timing = LeaseTiming::CALM;
    let core = Lease::new(LeaseConfig {
        member: Member { incarnation: Incarnation(incarnation), ..member(node, 0) },
        timing,
        candidates: names.into(),
        configuration: ConfigurationMark::default(),
        on_suspended: OnSuspended::Hold,
        preferred: None,
        own_epoch: Epoch::default(),
        moves: MovesConfig::default(),
    });
    let (inbox, waiting) = inbox();
    let register: Box<dyn Register> = Box::new(FileRegister::open(directory, inbox.of_register()).unwrap());
    let fence = Arc::new(Fence::closed());
    let surroundings = Box::new(Side { node: NodeId(node), wires: wires.clone(), held_up });
    let options = ElectionOptions {
        name: node.to_string(),
        timing,
        core: None,
        fifo_priority: None,
        // Far less than the lease: the election thread waits so long for listeners before it opens the fence.
        listeners_ns_max: timing.lease_ns / 20,
        peers: vec![NodeId(3 - node)],
    };
    let election = Election::new(core, register, Arc::clone(&fence), waiting, &inbox, surroundings, options);
    election.set_standing(Standing::Stands);
    wires.0.lock().unwrap().insert(NodeId(node), election.clone());
    (election, fence)
}

#[test]
fn closing_lets_the_other_lead_at_once_under_a_higher_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let wires = Wires::default();
    let (first, fence) = election(1, 1, directory.path(), &wires);
    assert!(!first.has_leadership());
    first.start().unwrap();
    let epoch = first.await_leadership().unwrap();
    assert!(first.has_leadership());

    let (second, _) = election(2, 1, directory.path(), &wires);
    second.start().unwrap();
    assert_eq!(second.await_leadership_for(Duration::from_millis(1)), Ok(None));
    first.close();
    assert_eq!(fence.pass(MonoNs(0)), None);
    assert_eq!(first.await_leadership(), Err(Closed));
    assert_eq!(first.start(), Err(Closed));
    assert!(second.await_leadership().unwrap() > epoch);
    assert_eq!(second.view().leader.unwrap().node, NodeId(2));
    second.close();
}

#[test]
fn an_election_thread_that_is_held_up_in_its_work_counts_as_late() {
    let directory = tempfile::tempdir().unwrap();
    let half = Duration::from_nanos(LeaseTiming::CALM.margin_ns / 2);
    let held_up = half + Duration::from_millis(20);
    let (slow, _) = election_held_up(1, 1, directory.path(), &Wires::default(), held_up);
    slow.start().unwrap();
    let deadline = Instant::now() + GENEROUS;
    let (stalls, alarming) = loop {
        match slow.stalls() {
            Some((stalls, alarming)) if alarming > 1 => break (stalls, alarming),
            _ => assert!(Instant::now() < deadline, "it was never seen to be late"),
        }
        std::thread::yield_now();
    };
    let longer = stalls.count_between(u64::try_from(half.as_nanos()).unwrap(), u64::MAX);
    assert!(longer >= alarming, "{longer} of {alarming}");
    slow.close();
}

#[test]
fn handed_over_the_other_leads_and_this_one_knows() {
    let directory = tempfile::tempdir().unwrap();
    let wires = Wires::default();
    let (first, _) = election(1, 1, directory.path(), &wires);
    first.start().unwrap();
    let before = first.await_leadership().unwrap();
    let (second, _) = election(2, 1, directory.path(), &wires);
    assert_eq!(second.hand_over(None), Err(HandOverError::NotLeader));
    second.start().unwrap();
    // Refused until the first has heard of it.
    let leader = loop {
        match first.hand_over(None) {
            Ok(leader) => break leader,
            Err(HandOverError::Failed(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(leader.node, NodeId(2));
    assert!(second.await_leadership().unwrap() > before);
    assert!(!first.has_leadership());
    assert!(second.has_leadership());
    first.close();
    second.close();
}

/// Notes what it was told, and what the fence was like then.
struct Witness {
    fence: Arc<Fence>,
    heard: Mutex<Vec<(&'static str, Epoch, bool)>>,
    blocks: AtomicBool,
}

impl Witness {
    fn note(&self, what: &'static str, epoch: Epoch) {
        self.heard.lock().unwrap().push((what, epoch, self.fence.allows(mono_now())));
        while self.blocks.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Listener for Witness {
    fn gained(&self, epoch: Epoch) {
        self.note("gained", epoch);
    }

    fn lost(&self, epoch: Epoch, _: CloseReason) {
        self.note("lost", epoch);
    }

    fn connection(&self, epoch: Epoch, state: ConnectionState) {
        assert_eq!(state, ConnectionState::Connected);
        self.note("connected", epoch);
    }
}

#[test]
fn listeners_hear_before_the_fence_opens_and_after_it_has_closed() {
    let directory = tempfile::tempdir().unwrap();
    let (election, fence) = election(1, 1, directory.path(), &Wires::default());
    let witness = Arc::new(Witness { fence, heard: Mutex::default(), blocks: AtomicBool::new(false) });
    let id = election.listen(Arc::clone(&witness) as Arc<dyn Listener>);
    election.start().unwrap();
    let epoch = election.await_leadership_for(GENEROUS).unwrap().unwrap();
    election.close();
    while witness.heard.lock().unwrap().len() < 3 {
        std::thread::yield_now();
    }
    let heard = witness.heard.lock().unwrap().clone();
    assert_eq!(heard, [("connected", Epoch::default(), false), ("gained", epoch, false), ("lost", epoch, false)]);
    election.unlisten(id);
}

#[test]
fn a_listener_that_never_returns_keeps_nobody_from_leading_or_stopping() {
    let directory = tempfile::tempdir().unwrap();
    let (election, fence) = election(1, 1, directory.path(), &Wires::default());
    let witness =
        Arc::new(Witness { fence: Arc::clone(&fence), heard: Mutex::default(), blocks: AtomicBool::new(true) });
    election.listen(Arc::clone(&witness) as Arc<dyn Listener>);
    election.start().unwrap();
    election.await_leadership_for(GENEROUS).unwrap().unwrap();
    election.close();
    assert_eq!(fence.pass(MonoNs(0)), None);
    witness.blocks.store(false, Ordering::Release);
}

#[test]
fn closed_before_it_started_it_never_starts() {
    let directory = tempfile::tempdir().unwrap();
    let (election, fence) = election(1, 1, directory.path(), &Wires::default());
    election.close();
    assert_eq!(election.start(), Err(Closed));
    assert_eq!(fence.pass(MonoNs(0)), None);
}
