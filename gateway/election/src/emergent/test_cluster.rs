//! Members, their network and their clock on one thread. Every run is reproducible.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{
    BootstrapMode, Emergent, EmergentConfig, OutgoingMessage, Safeguard, message::Envelope, timing::EmergentTiming,
};
use crate::{
    core::{Core as _, Input, Output},
    fitness::Eligibility,
    identity::NodeId,
    record::{ConfigVersion, tests::member},
};

/// Some nodes, numbered from 0. Node 0 bootstraps; nodes 0 and 1 are the seeds of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SimulatedNetwork {
    pub(super) now: MonoNs,
    pub(super) nodes: Vec<Node>,
    /// Messages in flight, by time of arrival, then by a number that keeps them apart.
    pub(super) in_flight: BTreeMap<(MonoNs, u64), OutgoingMessage>,
    /// Cut directions: (from, to).
    pub(super) cuts: BTreeSet<(usize, usize)>,
    /// Each opening: epoch, time, node.
    pub(super) openings: Vec<(Epoch, MonoNs, usize)>,
    /// Maximum number of fences that were open at once.
    pub(super) leaders_max: usize,
    sent: u64,
    /// Each notice of where an output ended: the node that received it, and the epoch of that output.
    pub(super) peer_output_ended: Vec<(usize, Epoch)>,
    /// Sends never return: no request to drain is answered.
    pub(super) has_stalled_sends: bool,
    minimum_size: usize,
    disabled: Option<Safeguard>,
}

/// A node, running or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) core: Option<Emergent>,
    pub(super) fence: MonoNs,
    /// The highest epoch in the node's log: it survives a restart.
    own_epoch: Epoch,
    incarnation: u64,
}

/// One-way network delay.
pub(super) const LATENCY_NS: u64 = 200_000;

impl SimulatedNetwork {
    /// No node runs yet.
    pub(super) fn new(count: usize, minimum_size: usize, disabled: Option<Safeguard>) -> Self {
        let node = Node { core: None, fence: MonoNs(0), own_epoch: Epoch::default(), incarnation: 0 };
        Self {
            now: MonoNs(1_000_000_000),
            nodes: vec![node; count],
            in_flight: BTreeMap::new(),
            cuts: BTreeSet::new(),
            openings: Vec::new(),
            leaders_max: 0,
            sent: 0,
            peer_output_ended: Vec::new(),
            has_stalled_sends: false,
            minimum_size,
            disabled,
        }
    }

    /// All nodes run, and have formed one membership with node 0 as its oldest, the others by number.
    pub(super) fn formed(count: usize, minimum_size: usize, disabled: Option<Safeguard>) -> Self {
        let mut network = Self::new(count, minimum_size, disabled);
        for index in 0..count {
            network.start(index);
            network.run_until(|network| network.live_counts().iter().flatten().count() == index + 1);
        }
        network.run_until(|network| network.live_counts() == vec![Some(count); count] && network.leaders() == [0]);
        network
    }

    pub(super) fn start(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.incarnation += 1;
        let config = EmergentConfig {
            member: member(number(index), node.incarnation),
            address: address(index),
            seeds: vec![address(0), address(1)],
            bootstrap: if index == 0 { BootstrapMode::Bootstrap } else { BootstrapMode::JoinOnly },
            join_attempts: 4,
            minimum_size: self.minimum_size,
            timing: EmergentTiming::DEFAULT,
            own_epoch: node.own_epoch,
            configuration: ConfigVersion::default(),
            allow_split: true,
        };
        let mut core = Emergent::new(config).unwrap();
        if let Some(safeguard) = self.disabled {
            core = core.without(safeguard);
        }
        node.core = Some(core);
        self.step(index, Input::Eligibility(Eligibility::Eligible));
    }

    pub(super) fn kill(&mut self, index: usize) {
        self.nodes[index].core = None;
        self.nodes[index].fence = MonoNs(0);
    }

    /// Cuts both directions between these nodes and all others.
    pub(super) fn isolate(&mut self, side: &[usize]) {
        for a in side {
            for b in (0..self.nodes.len()).filter(|b| !side.contains(b)) {
                self.cuts.extend([(*a, b), (b, *a)]);
            }
        }
    }

    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }

    pub(super) fn step(&mut self, index: usize, input: Input<Envelope>) {
        let now = self.now;
        let Some(core) = &mut self.nodes[index].core else { return };
        let outputs = core.step(now, input);
        assert!(core.next_deadline().is_none_or(|next| next > now), "it would be called for ever: {core:#?}");
        for output in outputs {
            match output {
                Output::Open { epoch, deadline } => {
                    self.nodes[index].fence = deadline;
                    self.nodes[index].own_epoch = epoch;
                    self.openings.push((epoch, now, index));
                }
                Output::Renew { deadline } => {
                    assert_ne!(self.nodes[index].fence, MonoNs(0), "renewed while closed");
                    self.nodes[index].fence = deadline;
                }
                Output::Close { .. } => self.nodes[index].fence = MonoNs(0),
                Output::Drain if self.has_stalled_sends => {}
                Output::Drain => self.step(index, Input::Drained),
                Output::Request(outgoing) => {
                    let to = index_of(outgoing.to);
                    if !self.cuts.contains(&(index, to)) {
                        self.sent += 1;
                        self.in_flight.insert((now.plus(LATENCY_NS), self.sent), outgoing);
                    }
                }
                Output::PeerOutputEnded(epoch) => self.peer_output_ended.push((index, epoch)),
                Output::Peer { .. } | Output::Connection(_) | Output::Notice(_) => {}
            }
        }
        self.leaders_max = self.leaders_max.max(self.leaders().len());
    }

    /// Executes the next event before `limit`.
    pub(super) fn advance(&mut self, limit: MonoNs) {
        let arrival = self.in_flight.first_key_value().map(|(key, _)| key.0);
        let deadlines = self.nodes.iter().filter_map(|node| node.core.as_ref()?.next_deadline());
        let next = arrival.into_iter().chain(deadlines).chain([limit]).min().unwrap_or(limit);
        self.now = next.max(self.now);
        let now = self.now;
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let outgoing = entry.remove();
            self.step(index_of(outgoing.to), Input::Backend(*outgoing.envelope));
        }
        for index in 0..self.nodes.len() {
            let core = self.nodes[index].core.as_ref();
            if core.and_then(super::super::core::Core::next_deadline).is_some_and(|next| next <= now) {
                self.step(index, Input::Time);
            }
        }
    }

    pub(super) fn run_ms(&mut self, ms: u64) {
        let limit = self.now.plus(ms * 1_000_000);
        while self.now < limit {
            self.advance(limit);
        }
    }

    /// Runs until the condition holds.
    #[track_caller]
    pub(super) fn run_until(&mut self, condition: impl Fn(&Self) -> bool) {
        let limit = self.now.plus(60_000_000_000);
        while !condition(self) {
            assert!(self.now < limit, "not within a minute: {:?}, owners {:?}", self.live_counts(), self.leaders());
            self.advance(limit);
        }
    }

    /// Nodes whose fence is open now.
    pub(super) fn leaders(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|index| self.now < self.nodes[*index].fence).collect()
    }

    /// Number of live members on each node's list, if it has one.
    pub(super) fn live_counts(&self) -> Vec<Option<usize>> {
        let of = |node: &Node| Some(node.core.as_ref()?.membership()?.list.live_count());
        self.nodes.iter().map(of).collect()
    }

    /// Nodes on node `index`'s list, the oldest first.
    pub(super) fn ages(&self, index: usize) -> Vec<usize> {
        let membership = self.nodes[index].core.as_ref().and_then(Emergent::membership);
        let live = membership.into_iter().flat_map(|membership| membership.list.live());
        live.map(|listed| index_of_node(listed.member.node)).collect()
    }

    pub(super) fn sent_count(&self) -> u64 {
        self.sent
    }

    /// Whether all nodes are on one list, with one leader.
    pub(super) fn is_reunited(&self) -> bool {
        let count = self.nodes.len();
        let one_list = (1..count).all(|index| self.ages(index) == self.ages(0));
        one_list && self.ages(0).len() == count && self.leaders().len() == 1
    }

    /// Whether no epoch was opened twice.
    pub(super) fn epochs_are_unique(&self) -> bool {
        let epochs: BTreeSet<_> = self.openings.iter().map(|opening| opening.0).collect();
        epochs.len() == self.openings.len()
    }
}

fn number(index: usize) -> u8 {
    u8::try_from(index + 1).unwrap()
}

fn index_of_node(node: NodeId) -> usize {
    usize::from(node.0) - 1
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number(index)], 7_000))
}

fn index_of(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { panic!("{address}") };
    usize::from(address.ip().octets()[3]) - 1
}
