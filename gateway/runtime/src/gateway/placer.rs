//! Spreads the groups over the gateways: a cold thread that tells each election, some times a second, where its group
//! belongs. The elections of the leaders then hand over.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_election::{
    core::Place,
    driver::Election,
    identity::NodeId,
    latch::LeaderLatch as _,
    placer::{GroupLook, places},
};
use mdgw_feeds::identity::GroupId;
use mdgw_sys::clock::mono_now;

/// The running thread. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Placer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What is spread.
#[derive(Debug)]
pub(super) struct Spread {
    /// This gateway.
    pub(super) node: NodeId,
    /// How long a gateway counts as there after it was heard, ns.
    pub(super) lease_ns: u64,
    /// Of each group, with its load: how many channels it has.
    pub(super) elections: BTreeMap<GroupId, (Election, u32)>,
}

impl Placer {
    pub(super) fn start(spread: Spread) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("mdgw-placer".to_owned()).spawn(move || {
            let mut told = BTreeMap::new();
            // Relaxed: the flag orders nothing.
            while !stopped.load(Relaxed) {
                spread.look(&mut told);
                std::thread::park_timeout(LOOK_INTERVAL);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has no result; one that panicked moves nothing any more.
            let _ended = thread.join();
        }
    }
}

impl Spread {
    /// Tells what is new.
    fn look(&self, told: &mut BTreeMap<GroupId, Place>) {
        let look = |(election, load): &(Election, u32)| GroupLook { load: *load, view: election.view() };
        let groups = self.elections.iter().map(|(group, spread)| (*group, look(spread))).collect();
        for (group, place) in places(&groups, self.node, mono_now(), self.lease_ns) {
            if told.insert(group, place) != Some(place)
                && let Some((election, _)) = self.elections.get(&group)
            {
                election.set_place(place);
            }
        }
    }
}

/// Shorter than a lease, so that a leader's successor is known when it dies.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
