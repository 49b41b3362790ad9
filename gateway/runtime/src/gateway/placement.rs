//! Balances the groups over the gateways: a cold thread computes the placement some times a second and passes it to
//! each election. The leaders' elections then hand over.

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
    core::GroupPlacement,
    driver::Election,
    identity::NodeId,
    latch::LeaderLatch as _,
    placement::{GroupObservation, group_placements},
};
use mdgw_feeds::identity::GroupId;
use mdgw_sys::clock::mono_now;

/// The running thread. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct PlacementThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Inputs of the placement.
#[derive(Debug)]
pub(super) struct PlacementInputs {
    /// Node number of this gateway.
    pub(super) node: NodeId,
    /// How long a gateway counts as present after its last message, ns.
    pub(super) lease_ns: u64,
    /// Each group with its load: the number of its channels.
    pub(super) elections: BTreeMap<GroupId, (Election, u32)>,
}

impl PlacementThread {
    pub(super) fn start(inputs: PlacementInputs) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("mdgw-placement".to_owned()).spawn(move || {
            let mut published = BTreeMap::new();
            // Relaxed: the flag orders nothing.
            while !stopped.load(Relaxed) {
                inputs.publish_changes(&mut published);
                std::thread::park_timeout(POLL_INTERVAL);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for PlacementThread {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread returns nothing; after a panic no group is moved.
            let _ended = thread.join();
        }
    }
}

impl PlacementInputs {
    /// Computes the placement and passes each changed group placement to the group's election.
    fn publish_changes(&self, published: &mut BTreeMap<GroupId, GroupPlacement>) {
        let observation = |(election, load): &(Election, u32)| GroupObservation { load: *load, view: election.view() };
        let groups = self.elections.iter().map(|(group, inputs)| (*group, observation(inputs))).collect();
        for (group, place) in group_placements(&groups, self.node, mono_now(), self.lease_ns) {
            if published.insert(group, place) != Some(place)
                && let Some((election, _)) = self.elections.get(&group)
            {
                election.set_placement(place);
            }
        }
    }
}

/// Interval of the placement: shorter than a lease, so that a leader's successor is known when the leader dies.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
