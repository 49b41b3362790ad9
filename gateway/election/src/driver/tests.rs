//! Elections over a directory, with real threads and the real clock. They wait for states, never for times.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mdgw_wire::time::MonoNs;

use super::*;
use crate::{
    auto_move::AutoMoveConfig,
    core::ConnectionState,
    file::FileRegister,
    identity::Incarnation,
    latch::{LeaderLatch, Listener},
    lease::{Lease, LeaseConfig, OnSuspended},
    record::{ConfigVersion, tests::member},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const TIMING: LeaseTiming = LeaseTiming::CALM;

/// What the elections of a pair share.
#[derive(Clone, Default)]
struct PeerNetwork {
    /// Messages are delivered to the other one.
    elections: Arc<Mutex<BTreeMap<NodeId, Election>>>,
    /// The highest epoch that another gateway reported: no packet brought it.
    observed: Arc<Mutex<Epoch>>,
    /// Raises of both.
    raises: Arc<Mutex<Vec<(Epoch, u64)>>>,
    /// Notices to the operator.
    notices: Arc<Mutex<Vec<Notice>>>,
}

struct TestHooks {
    node: NodeId,
    network: PeerNetwork,
    /// Extra delay of each iteration of the election thread.
    iteration_delay: Duration,
    /// The highest epoch that the election has reported.
    known: Epoch,
}

impl ElectionHooks for TestHooks {
    fn on_iteration(&mut self) {
        std::thread::sleep(self.iteration_delay);
    }

    fn on_epoch(&mut self, epoch: Epoch) {
        self.known = self.known.max(epoch);
    }

    fn update_second_fence(&mut self, epoch: Epoch, deadline: Option<MonoNs>) {
        // The fence is about to open: its first packet may be answered by one with an epoch just believable from there.
        assert!(deadline.is_none() || epoch <= self.known, "an epoch is passed on before the fence opens under it");
    }

    fn observed_epoch(&mut self) -> Option<(Epoch, Option<SocketAddrV4>)> {
        Some((*self.network.observed.lock().unwrap(), None))
    }

    fn on_raised(&mut self, epoch: Epoch, count: u64) {
        self.network.raises.lock().unwrap().push((epoch, count));
    }

    fn on_notice(&mut self, notice: &Notice, from: Option<SocketAddrV4>) {
        assert_eq!(from, None);
        self.network.notices.lock().unwrap().push(notice.clone());
    }

    fn to_peer(&mut self, to: NodeId, message: PeerMessage) {
        if let Some(peer) = self.network.elections.lock().unwrap().get(&to) {
            assert!(peer.receive_from_peer(self.node, message));
        }
    }
}

fn election(node: u8, incarnation: u64, directory: &Path, network: &PeerNetwork) -> (Election, Arc<Fence>) {
    // Far less than the lease: the election thread waits this long for listeners before it opens the fence.
    election_with_delays(node, incarnation, directory, network, Duration::ZERO, TIMING.lease_ns / 20)
}

fn election_with_delays(
    node: u8,
    incarnation: u64,
    directory: &Path,
    network: &PeerNetwork,
    iteration_delay: Duration,
    listeners_ns_max: u64,
) -> (Election, Arc<Fence>) {
    let names = [1, 2].map(|node| (NodeId(node), member(node, 0).name));
    let core = Lease::new(LeaseConfig {
        member: Member { incarnation: Incarnation(incarnation), ..member(node, 0) },
        timing: TIMING,
        candidates: names.into(),
        configuration: ConfigVersion::default(),
        on_suspended: OnSuspended::Hold,
        preferred: None,
        own_epoch: Epoch::default(),
        moves: AutoMoveConfig::default(),
    });
    let (inbox, waiting) = inbox();
    let register: Box<dyn Register> = Box::new(FileRegister::open(directory, inbox.register_sender()).unwrap());
    let fence = Arc::new(Fence::closed());
    let hooks =
        Box::new(TestHooks { node: NodeId(node), network: network.clone(), iteration_delay, known: Epoch::default() });
    let options = ElectionOptions {
        group: node.into(),
        timing: TIMING,
        core: None,
        fifo_priority: None,
        listeners_ns_max,
        peers: vec![NodeId(3 - node)],
    };
    let election = Election::new(core, register, Arc::clone(&fence), waiting, &inbox, hooks, options);
    election.set_eligibility(Eligibility::Eligible);
    network.elections.lock().unwrap().insert(NodeId(node), election.clone());
    (election, fence)
}

#[test]
fn after_close_the_other_gateway_leads_at_once_with_a_higher_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let network = PeerNetwork::default();
    let (first, fence) = election(1, 1, directory.path(), &network);
    assert!(!first.has_leadership());
    first.start().unwrap();
    let epoch = first.await_leadership().unwrap();
    assert!(first.has_leadership());

    let (second, _) = election(2, 1, directory.path(), &network);
    second.start().unwrap();
    assert_eq!(second.await_leadership_for(Duration::from_millis(1)), Ok(None));
    first.close();
    assert_eq!(fence.epoch_if_open(MonoNs(0)), None);
    assert_eq!(first.await_leadership(), Err(Closed));
    assert_eq!(first.start(), Err(Closed));
    assert!(second.await_leadership().unwrap() > epoch);
    assert_eq!(second.view().leader.unwrap().node, NodeId(2));
    second.close();
}

#[test]
fn a_slow_iteration_of_the_election_thread_is_recorded_as_a_stall() {
    let directory = tempfile::tempdir().unwrap();
    let half = Duration::from_nanos(LeaseTiming::CALM.margin_ns / 2);
    let iteration_delay = half + Duration::from_millis(20);
    let (slow, _) =
        election_with_delays(1, 1, directory.path(), &PeerNetwork::default(), iteration_delay, TIMING.lease_ns / 20);
    slow.start().unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
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
fn after_a_hand_over_both_gateways_know_the_new_leader() {
    let directory = tempfile::tempdir().unwrap();
    let network = PeerNetwork::default();
    let (first, _) = election(1, 1, directory.path(), &network);
    first.start().unwrap();
    let before = first.await_leadership().unwrap();
    let (second, _) = election(2, 1, directory.path(), &network);
    assert_eq!(second.hand_over(None), Err(HandOverError::NotLeader));
    second.start().unwrap();
    // Refused until the first gateway has received the second one's state.
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

/// Records its events, and the fence's state at each of them.
struct RecordingListener {
    fence: Arc<Fence>,
    events: Mutex<Vec<(&'static str, Epoch, bool)>>,
    blocks: AtomicBool,
}

impl RecordingListener {
    fn note(&self, what: &'static str, epoch: Epoch) {
        self.events.lock().unwrap().push((what, epoch, self.fence.is_open_at(mono_now())));
        while self.blocks.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Listener for RecordingListener {
    fn gained(&self, epoch: Epoch) {
        self.note("gained", epoch);
    }

    fn raised(&self, epoch: Epoch) {
        self.note("raised", epoch);
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
fn listeners_are_notified_before_the_fence_opens_and_after_it_closes() {
    let directory = tempfile::tempdir().unwrap();
    // On a busy machine the listeners' thread may run late.
    let listeners_ns_max = TIMING.lease_ns / 2;
    let (election, fence) =
        election_with_delays(1, 1, directory.path(), &PeerNetwork::default(), Duration::ZERO, listeners_ns_max);
    let listener = Arc::new(RecordingListener { fence, events: Mutex::default(), blocks: AtomicBool::new(false) });
    let id = election.listen(Arc::clone(&listener) as Arc<dyn Listener>);
    election.start().unwrap();
    let epoch = election.await_leadership_for(TEST_TIMEOUT).unwrap().unwrap();
    election.close();
    while listener.events.lock().unwrap().len() < 3 {
        std::thread::yield_now();
    }
    let events = listener.events.lock().unwrap().clone();
    assert_eq!(events, [("connected", Epoch::default(), false), ("gained", epoch, false), ("lost", epoch, false)]);
    election.unlisten(id);
}

#[test]
fn a_blocked_listener_delays_neither_opening_nor_closing() {
    let directory = tempfile::tempdir().unwrap();
    let (election, fence) = election(1, 1, directory.path(), &PeerNetwork::default());
    let listener = Arc::new(RecordingListener {
        fence: Arc::clone(&fence),
        events: Mutex::default(),
        blocks: AtomicBool::new(true),
    });
    election.listen(Arc::clone(&listener) as Arc<dyn Listener>);
    election.start().unwrap();
    election.await_leadership_for(TEST_TIMEOUT).unwrap().unwrap();
    election.close();
    assert_eq!(fence.epoch_if_open(MonoNs(0)), None);
    listener.blocks.store(false, Ordering::Release);
}

#[test]
fn an_election_closed_before_start_never_starts() {
    let directory = tempfile::tempdir().unwrap();
    let (election, fence) = election(1, 1, directory.path(), &PeerNetwork::default());
    election.close();
    assert_eq!(election.start(), Err(Closed));
    assert_eq!(fence.epoch_if_open(MonoNs(0)), None);
}

#[test]
fn an_observed_epoch_outranks_the_leader_which_leads_on_above_it() {
    let directory = tempfile::tempdir().unwrap();
    let network = PeerNetwork::default();
    let (election, fence) = election(1, 1, directory.path(), &network);
    let listener = Arc::new(RecordingListener { fence, events: Mutex::default(), blocks: AtomicBool::new(false) });
    election.listen(Arc::clone(&listener) as Arc<dyn Listener>);
    election.start().unwrap();
    let mut epoch = election.await_leadership().unwrap();
    for _ in 0..20 {
        let above = Epoch::new(epoch.count() + 7, 9);
        *network.observed.lock().unwrap() = above;
        election.wake();
        let opened = election.wait(Some(TEST_TIMEOUT), |state| {
            let is_above = state.view.role == Role::Leader && state.view.epoch > above;
            is_above.then_some(state.view.epoch)
        });
        epoch = opened.unwrap();
        // The view is of the moment before the fence opens.
        let until = Instant::now() + TEST_TIMEOUT;
        while !election.has_leadership() {
            assert!(Instant::now() < until, "the fence stays closed under {epoch:?}");
            std::thread::yield_now();
        }
    }
    election.close();
    let last = |listener: &RecordingListener| listener.events.lock().unwrap().last().map(|(what, ..)| *what);
    while last(&listener) != Some("lost") {
        std::thread::yield_now();
    }
    // Each raise is counted, and none is reported as the end of a leadership. On a crowded machine the lease may run out, and
    // the next opening is above the observed epoch without a raise.
    let events = listener.events.lock().unwrap().clone();
    let count = |what| events.iter().filter(|(event, ..)| *event == what).count();
    assert!(count("gained") == count("lost") && count("raised") > 0, "{events:?}");
    let notices = network.notices.lock().unwrap().clone();
    assert!(notices.iter().any(|notice| matches!(notice, Notice::HigherEpochReported(_))), "{notices:?}");
    assert!(!notices.iter().any(|notice| matches!(notice, Notice::HigherEpochObserved(_))), "no packet: {notices:?}");
    let raises = network.raises.lock().unwrap().clone();
    assert_eq!(raises.iter().map(|(_, count)| *count).sum::<u64>(), count("raised") as u64, "{raises:?}");
    let of_listener = events.iter().filter(|(what, ..)| *what == "raised").map(|(_, epoch, _)| *epoch).max();
    assert_eq!(raises.last().map(|(epoch, _)| *epoch), of_listener);
}
