//! Candidates as processes, over real stores of three nodes. Whoever leads is killed, stopped, or loses the store's
//! nodes: somebody leads again, and never two at a time.

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
    captures::say,
    process::PATIENCE,
    stores::{Ensemble, Store},
};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn one_leads_over_etcd_whoever_is_killed_or_stopped() {
    one_leads_whoever_is_killed_or_stopped(Store::Etcd, "etcd");
}

#[test]
fn one_leads_over_zookeeper_whoever_is_killed_or_stopped() {
    one_leads_whoever_is_killed_or_stopped(Store::ZooKeeper, "zookeeper");
}

#[test]
fn one_leads_in_a_line_of_zookeeper_whoever_is_killed_or_stopped() {
    one_leads_whoever_is_killed_or_stopped(Store::ZooKeeper, "zookeeper-latch");
}

#[test]
fn one_leads_at_most_while_etcd_loses_nodes() {
    one_leads_at_most_while_the_store_loses_nodes(Store::Etcd, "etcd");
}

#[test]
fn one_leads_at_most_while_zookeeper_loses_nodes() {
    one_leads_at_most_while_the_store_loses_nodes(Store::ZooKeeper, "zookeeper");
}

#[test]
fn one_leads_in_a_line_at_most_while_zookeeper_loses_nodes() {
    one_leads_at_most_while_the_store_loses_nodes(Store::ZooKeeper, "zookeeper-latch");
}

#[test]
fn two_leaders_would_be_found() {
    let send = |epoch, at_ns| Send { epoch, at_ns };
    let fine = [send(1, 10), send(1, 20), send(2, 21), send(2, 30)];
    assert_eq!(overlaps(&fine), "");
    assert_ne!(overlaps(&[send(1, 10), send(2, 15), send(1, 16)]), "", "the old leader sent after the new one");
    assert_ne!(overlaps(&[send(2, 10), send(1, 15)]), "", "an epoch went back");
}

fn one_leads_whoever_is_killed_or_stopped(store: Store, name: &str) {
    if !store.is_installed("one_leads_whoever_is_killed_or_stopped") {
        return;
    }
    let ensemble = Ensemble::start(store, 3);
    let sends = Arc::new(Sends::default());
    let mut candidates = [1, 2].map(|node| Candidate::start(name, node, 1, &ensemble, &sends));
    let mut epoch = sends.await_above(0).epoch;
    let mut takeovers_ms = Vec::new();
    for round in 0..ROUNDS {
        let leader = usize::from(node_of(epoch)) - 1;
        let since_ns = mono_now().0;
        if round % 2 == 0 {
            candidates[leader].kill();
        } else {
            candidates[leader].signal(Signal::STOP);
        }
        let next = sends.await_above(epoch);
        // A crowded machine may have moved leadership just before.
        takeovers_ms.extend(next.at_ns.checked_sub(since_ns).map(|taken_ns| taken_ns / 1_000_000));
        if round % 2 == 0 {
            let (node, incarnation) = (candidates[leader].node, candidates[leader].incarnation + 1);
            candidates[leader] = Candidate::start(name, node, incarnation, &ensemble, &sends);
        } else {
            // It goes on where it was stopped; its fence must have closed meanwhile.
            candidates[leader].signal(Signal::CONT);
        }
        // Time for two to stand again, and for one that goes on wrongly to be seen.
        epoch = sends.await_more(next.epoch, SENDS_BETWEEN);
    }
    drop(candidates);
    let all = sends.all();
    assert_eq!(overlaps(&all), "");
    takeovers_ms.sort_unstable();
    say(&format!("{name}: {} sends; killed and stopped leaders were replaced within {takeovers_ms:?} ms", all.len()));
}

fn one_leads_at_most_while_the_store_loses_nodes(store: Store, name: &str) {
    if !store.is_installed("one_leads_at_most_while_the_store_loses_nodes") {
        return;
    }
    let mut ensemble = Ensemble::start(store, 3);
    let sends = Arc::new(Sends::default());
    let candidates = [1, 2].map(|node| Candidate::start(name, node, 1, &ensemble, &sends));
    sends.await_above(0);
    for node in 0..ensemble.count() {
        ensemble.kill(node);
        sends.await_later(SENDS_BETWEEN);
        ensemble.restart(node);
        ensemble.await_serving();
        ensemble.pause(node);
        sends.await_later(SENDS_BETWEEN);
        ensemble.resume(node);
        ensemble.await_serving();
    }
    // Without a majority of the store the deadline passes and nobody sends; there is no pair link here to promise.
    ensemble.kill(0);
    ensemble.kill(1);
    sends.await_silence();
    ensemble.restart(0);
    ensemble.restart(1);
    sends.await_later(SENDS_BETWEEN);
    drop(candidates);
    assert_eq!(overlaps(&sends.all()), "");
}

/// One candidate's process. Killed when it is dropped.
#[derive(Debug)]
struct Candidate {
    node: u8,
    incarnation: u64,
    child: Child,
    /// Its end tells the process to close.
    _stdin: ChildStdin,
}

impl Candidate {
    fn start(store: &str, node: u8, incarnation: u64, ensemble: &Ensemble, sends: &Arc<Sends>) -> Self {
        let endpoints: Vec<String> = ensemble.addresses().iter().map(ToString::to_string).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_candidate"));
        command.args([store, &node.to_string(), &incarnation.to_string(), "default", &endpoints.join(",")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a candidate starts");
        let stdin = child.stdin.take().expect("its input is piped");
        let stdout = child.stdout.take().expect("its output is piped");
        let sends = Arc::clone(sends);
        thread::spawn(move || {
            // A line that was cut short by its end is no send.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let numbers = line.split_once(' ').map(|(epoch, at)| (epoch.parse(), at.parse()));
                if let Some((Ok(epoch), Ok(at_ns))) = numbers {
                    sends.add(Send { epoch, at_ns });
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

impl Drop for Candidate {
    fn drop(&mut self) {
        // Gone already, where the test killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Send {
    epoch: u64,
    at_ns: u64,
}

/// What all candidates have sent so far, in the order in which it came here.
#[derive(Debug, Default)]
struct Sends {
    list: Mutex<Vec<Send>>,
    came: Condvar,
}

impl Sends {
    fn add(&self, send: Send) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(send);
        self.came.notify_all();
    }

    fn all(&self) -> Vec<Send> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first send of a higher epoch.
    fn await_above(&self, epoch: u64) -> Send {
        self.wait("a new leader", |list| list.iter().copied().find(|send| send.epoch > epoch))
    }

    /// Until leaders of that epoch and later ones have sent so often; returns the last epoch.
    fn await_more(&self, epoch: u64, count: usize) -> u64 {
        self.wait("sends", |list| {
            let later = list.iter().map(|send| send.epoch).filter(|later| *later >= epoch);
            (later.clone().count() >= count).then(|| later.max().unwrap_or(epoch))
        })
    }

    /// Until so many more were sent than now.
    fn await_later(&self, count: usize) {
        let now_ns = mono_now().0;
        self.wait("sends", |list| {
            (list.iter().rev().take_while(|send| send.at_ns > now_ns).count() >= count).then_some(())
        });
    }

    /// Until nothing has been sent for three leases.
    fn await_silence(&self) {
        let deadline = Instant::now() + PATIENCE;
        let last_ns = || self.all().last().map_or(0, |send| send.at_ns);
        while mono_now().0.saturating_sub(last_ns()) < 300_000_000 {
            assert!(Instant::now() < deadline, "somebody sends on without the store");
            thread::yield_now();
        }
    }

    fn wait<R>(&self, what: &str, mut find: impl FnMut(&[Send]) -> Option<R>) -> R {
        let deadline = Instant::now() + PATIENCE;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find(&list) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {what} after {:?}", list.last());
            list = self.came.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Epochs whose sends did not all come after those of the epoch before; empty: none.
fn overlaps(sends: &[Send]) -> String {
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
