//! Candidates as processes, over real stores of three nodes. The leader is killed, stopped, or loses the store's nodes:
//! a candidate leads again, and two never lead at a time.

#[path = "secrets.rs"]
mod secrets;

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Instant,
};

use mdgw_sys::clock::mono_now;
use mdgw_tests::{
    captures::print_to_stderr,
    process::TEST_TIMEOUT,
    stores::{Ensemble, Store},
};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn etcd_election_has_one_leader_over_kills_and_stops() {
    has_one_leader_over_kills_and_stops(Store::Etcd, "etcd");
}

#[test]
fn zookeeper_election_has_one_leader_over_kills_and_stops() {
    has_one_leader_over_kills_and_stops(Store::ZooKeeper, "zookeeper");
}

#[test]
fn zookeeper_latch_has_one_leader_over_kills_and_stops() {
    has_one_leader_over_kills_and_stops(Store::ZooKeeper, "zookeeper-latch");
}

#[test]
fn etcd_election_has_at_most_one_leader_over_node_loss() {
    has_at_most_one_leader_over_store_node_loss(Store::Etcd, "etcd");
}

#[test]
fn zookeeper_election_has_at_most_one_leader_over_node_loss() {
    has_at_most_one_leader_over_store_node_loss(Store::ZooKeeper, "zookeeper");
}

#[test]
fn zookeeper_latch_has_at_most_one_leader_over_node_loss() {
    has_at_most_one_leader_over_store_node_loss(Store::ZooKeeper, "zookeeper-latch");
}

#[test]
fn two_leaders_are_detected() {
    let send = |epoch, at_ns| SendEvent { epoch, at_ns };
    let disjoint = [send(1, 10), send(1, 20), send(2, 21), send(2, 30)];
    assert_eq!(overlaps(&disjoint), "");
    assert_ne!(overlaps(&[send(1, 10), send(2, 15), send(1, 16)]), "", "the old leader sent after the new one");
    assert_ne!(overlaps(&[send(2, 10), send(1, 15)]), "", "an epoch regressed");
}

fn has_one_leader_over_kills_and_stops(store: Store, name: &str) {
    if !store.is_installed("has_one_leader_over_kills_and_stops") {
        return;
    }
    let ensemble = Ensemble::start(store, 3);
    let sends = Arc::new(SendLog::default());
    let mut candidates = [1, 2].map(|node| CandidateProcess::start(name, node, 1, &ensemble, &sends));
    let mut epoch = sends.wait_for_epoch_above(0).epoch;
    let mut takeovers_ms = Vec::new();
    for round in 0..ROUNDS {
        let leader = usize::from(node_of(epoch)) - 1;
        let since_ns = mono_now().0;
        if round % 2 == 0 {
            candidates[leader].kill();
        } else {
            candidates[leader].signal(Signal::STOP);
        }
        let next = sends.wait_for_epoch_above(epoch);
        // A scheduling stall may have moved leadership just before.
        takeovers_ms.extend(next.at_ns.checked_sub(since_ns).map(|taken_ns| taken_ns / 1_000_000));
        if round % 2 == 0 {
            let (node, incarnation) = (candidates[leader].node, candidates[leader].incarnation + 1);
            candidates[leader] = CandidateProcess::start(name, node, incarnation, &ensemble, &sends);
        } else {
            // The stopped process continues; its fence must have closed before.
            candidates[leader].signal(Signal::CONT);
        }
        // Time for both candidates to be eligible again, and for a wrong send of the continued one to be detected.
        epoch = sends.wait_for_sends_in_epoch(next.epoch, SENDS_BETWEEN);
    }
    drop(candidates);
    let all = sends.all();
    assert_eq!(overlaps(&all), "");
    takeovers_ms.sort_unstable();
    print_to_stderr(&format!(
        "{name}: {} sends; killed and stopped leaders were replaced within {takeovers_ms:?} ms",
        all.len()
    ));
}

fn has_at_most_one_leader_over_store_node_loss(store: Store, name: &str) {
    if !store.is_installed("has_at_most_one_leader_over_store_node_loss") {
        return;
    }
    let mut ensemble = Ensemble::start(store, 3);
    let sends = Arc::new(SendLog::default());
    let candidates = [1, 2].map(|node| CandidateProcess::start(name, node, 1, &ensemble, &sends));
    sends.wait_for_epoch_above(0);
    for node in 0..ensemble.count() {
        ensemble.kill(node);
        sends.wait_for_new_sends(SENDS_BETWEEN);
        ensemble.restart(node);
        ensemble.await_serving();
        ensemble.pause(node);
        sends.wait_for_new_sends(SENDS_BETWEEN);
        ensemble.resume(node);
        ensemble.await_serving();
    }
    // Without a majority of the store the deadline passes and no candidate sends; there is no pair link here for a promise.
    ensemble.kill(0);
    ensemble.kill(1);
    sends.wait_for_no_sends();
    ensemble.restart(0);
    ensemble.restart(1);
    sends.wait_for_new_sends(SENDS_BETWEEN);
    drop(candidates);
    assert_eq!(overlaps(&sends.all()), "");
}

/// One candidate's process. Killed when it is dropped.
#[derive(Debug)]
struct CandidateProcess {
    node: u8,
    incarnation: u64,
    child: Child,
    /// Closing it makes the process close.
    _stdin: ChildStdin,
}

impl CandidateProcess {
    fn start(store: &str, node: u8, incarnation: u64, ensemble: &Ensemble, sends: &Arc<SendLog>) -> Self {
        let endpoints: Vec<String> = ensemble.addresses().iter().map(ToString::to_string).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_candidate"));
        command.args([store, &node.to_string(), &incarnation.to_string(), "default", &endpoints.join(",")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a candidate starts");
        let stdin = child.stdin.take().expect("its input is piped");
        let stdout = child.stdout.take().expect("its output is piped");
        let sends = Arc::clone(sends);
        thread::spawn(move || {
            // An incomplete last line of a killed process is ignored.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let numbers = line.split_once(' ').map(|(epoch, at)| (epoch.parse(), at.parse()));
                if let Some((Ok(epoch), Ok(at_ns))) = numbers {
                    sends.add(SendEvent { epoch, at_ns });
                }
            }
        });
        Self { node, incarnation, child, _stdin: stdin }
    }

    fn kill(&mut self) {
        self.child.kill().expect("the candidate runs");
        self.child.wait().expect("a child can be waited for");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the candidate runs");
    }
}

impl Drop for CandidateProcess {
    fn drop(&mut self) {
        // In some tests the process was killed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SendEvent {
    epoch: u64,
    at_ns: u64,
}

/// The sends of all candidates so far, in the order in which this process received them.
#[derive(Debug, Default)]
struct SendLog {
    list: Mutex<Vec<SendEvent>>,
    send_added: Condvar,
}

impl SendLog {
    fn add(&self, send: SendEvent) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(send);
        self.send_added.notify_all();
    }

    fn all(&self) -> Vec<SendEvent> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the first send of a higher epoch.
    fn wait_for_epoch_above(&self, epoch: u64) -> SendEvent {
        self.wait("a new leader", |list| list.iter().copied().find(|send| send.epoch > epoch))
    }

    /// Waits until leaders of that epoch or later ones have sent `count` times. Returns the last epoch.
    fn wait_for_sends_in_epoch(&self, epoch: u64, count: usize) -> u64 {
        self.wait("sends", |list| {
            let later = list.iter().map(|send| send.epoch).filter(|later| *later >= epoch);
            (later.clone().count() >= count).then(|| later.max().unwrap_or(epoch))
        })
    }

    /// Waits for that many more sends.
    fn wait_for_new_sends(&self, count: usize) {
        let now_ns = mono_now().0;
        self.wait("sends", |list| {
            (list.iter().rev().take_while(|send| send.at_ns > now_ns).count() >= count).then_some(())
        });
    }

    /// Waits until no candidate has sent for three leases.
    fn wait_for_no_sends(&self) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let last_ns = || self.all().last().map_or(0, |send| send.at_ns);
        while mono_now().0.saturating_sub(last_ns()) < 300_000_000 {
            assert!(Instant::now() < deadline, "a candidate still sends without the store");
            thread::yield_now();
        }
    }

    fn wait<R>(&self, what: &str, mut find: impl FnMut(&[SendEvent]) -> Option<R>) -> R {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find(&list) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {what} after {:?}", list.last());
            list = self.send_added.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Describes epochs whose sends overlap with those of the epoch before; empty: none.
fn overlaps(sends: &[SendEvent]) -> String {
    let mut ordered = sends.to_vec();
    ordered.sort_by_key(|send| send.at_ns);
    let mut found = String::new();
    for pair in ordered.windows(2) {
        if pair[0].epoch > pair[1].epoch {
            let _ = writeln!(found, "{:?} before {:?}", pair[0], pair[1]);
        }
    }
    found
}

/// The low 8 bits of an epoch.
fn node_of(epoch: u64) -> u8 {
    epoch.to_le_bytes()[0]
}

const ROUNDS: usize = 12;
/// Some hundred milliseconds of sending.
const SENDS_BETWEEN: usize = 500;
