//! The elections of a gateway: one for each of its groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{SocketAddr, SocketAddrV4},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

#[cfg(feature = "zookeeper")]
use mdgw_election::{
    access::ZooKeeperConfig,
    record_location::RecordLocationError,
    session_latch::{SessionLatch, SessionLatchConfig},
};
use mdgw_election::{
    access::ZooKeeperMode,
    auth::{Nonce, SharedKey},
    auto_move::AutoMoveConfig,
    core::{CloseReason, Notice},
    driver::{Election, ElectionHooks, ElectionOptions, StoreLatency, inbox, measure},
    emergent::{
        Emergent, EmergentConfig,
        datagrams::{MemberSocket, MembershipTransport},
        timing::EmergentTiming,
    },
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    latch::LeaderLatch,
    lease::{Lease, LeaseConfig},
    peer::PeerMessage,
    quorum::{
        backend::QuorumTransport,
        candidate::{Candidate, CandidateConfig, vote_ns_max},
        link::VoteLink,
        vote_file::VoteFile,
    },
    record_location::RecordLocation,
    register::{Register, RegisterSender},
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};
use mdgw_pair::pair_link::LinkHandle;
use mdgw_sys::{
    alarm::Alarm, clock::mono_now, kernel_fence::KernelFenceSlot, listener_counters::ListenerCounters,
    progress::ProgressCounter, scheduler::spawn_short_slice,
};

use super::{
    GatewayError, GroupHandle,
    health::{PeerFitness, lock},
    kernel_guard::KernelGuard,
    listeners,
    takeovers::GroupTakeoverCauses,
    thread_watch::ProgressCounters,
};
use crate::{
    audit::{AuditListener, AuditSender, entry::AuditEvent},
    config::{
        Resolved,
        resolved::{Backend, ElectionConfig, MembershipConfig, QuorumConfig},
    },
};

/// Starts the election of each group. `incarnation` is the gateway's start. `hand_out` takes the counters of the listener that
/// the elections share, and its name.
///
/// # Errors
/// When a store cannot be opened or a thread cannot be started. Elections that were already started are closed then.
pub(super) fn start(
    config: &Resolved,
    election: &ElectionConfig,
    incarnation: Incarnation,
    handles: &BTreeMap<GroupId, GroupHandle>,
    context: &ElectionContext<'_>,
    hand_out: &mut dyn FnMut(&'static str, &Arc<ListenerCounters>),
) -> Result<BTreeMap<GroupId, Election>, GatewayError> {
    let mut elections: BTreeMap<GroupId, Election> = BTreeMap::new();
    let transport = match &election.backend {
        Backend::Quorum(quorum) => SharedTransport::Voters(Arc::new(open_voting(config, quorum)?)),
        Backend::Emergent(membership) => SharedTransport::Members(Arc::new(open_membership(membership)?)),
        _ => SharedTransport::Store,
    };
    match &transport {
        SharedTransport::Voters(voting) => hand_out(listeners::VOTES, voting.counters()),
        SharedTransport::Members(members) => hand_out(listeners::MEMBERS, members.counters()),
        SharedTransport::Store => {}
    }
    for (index, (group, handle)) in handles.iter().enumerate() {
        let hooks = GroupElectionHooks {
            group: *group,
            node: NodeId(config.gateway.node),
            handle: handle.clone(),
            link_slot: Arc::clone(context.link_slot),
            causes: Arc::clone(context.causes),
            sender: context.audit.cloned(),
            kernel: context.kernel.and_then(|kernel| kernel.slot(*group)),
            progress_counter: context.progress.of_election(index),
        };
        let started = start_one(config, election, &transport, incarnation, hooks, context.audit);
        match started {
            Ok(started) => {
                let woken = started.clone();
                handle.epochs().wake_with(move || woken.wake());
                elections.insert(*group, started);
            }
            Err(error) => {
                elections.values().for_each(LeaderLatch::close);
                return Err(error);
            }
        }
    }
    if let (Some(group), SharedTransport::Store) = (handles.keys().next(), &transport) {
        measure_store(election, *group);
    }
    Ok(elections)
}

fn start_one(
    config: &Resolved,
    election: &ElectionConfig,
    transport: &SharedTransport,
    incarnation: Incarnation,
    handle: GroupElectionHooks,
    audit: Option<&AuditSender>,
) -> Result<Election, GatewayError> {
    let (group, epoch) = (handle.group, handle.handle.start_epoch());
    let node = NodeId(config.gateway.node);
    let member = Member { node, name: election.name.clone(), incarnation };
    let fence = Arc::clone(handle.handle.fence());
    let hooks = Box::new(handle);
    let options = ElectionOptions {
        group: group.0,
        timing: election.timing,
        core: election.core,
        fifo_priority: election.priority,
        listeners_ns_max: election.listener_timeout_ns,
        peers: election.peers.iter().map(|peer| peer.node).collect(),
    };
    let latch = match (&election.backend, transport) {
        #[cfg(feature = "zookeeper")]
        (Backend::ZooKeeper(zookeeper @ ZooKeeperConfig { mode: ZooKeeperMode::Latch { session }, .. }), _) => {
            let (inbox, waiting) = inbox();
            let line = mdgw_stores::zookeeper::session::open(zookeeper, group, *session, &member, inbox.clone())
                .map_err(RecordLocationError::from)?;
            let core = SessionLatch::new(SessionLatchConfig {
                member,
                timing: election.timing,
                configuration: config.output_fingerprint(),
                on_suspended: election.on_suspended,
                own_epoch: epoch,
            });
            Election::new(core, line, fence, waiting, &inbox, hooks, options)
        }
        (Backend::Emergent(membership), SharedTransport::Members(members)) => {
            let core = Emergent::new(emergent_config(config, election, membership, member, epoch))
                .map_err(|error| membership_failed(error.to_string()))?;
            let (inbox, waiting) = inbox();
            let backend = members.backend(group, &inbox);
            Election::new(core, backend, fence, waiting, &inbox, hooks, options)
        }
        (Backend::Quorum(quorum), SharedTransport::Voters(voting)) => {
            let file =
                VoteFile::open(&quorum.vote_directory, group).map_err(|error| voting_failed(error.to_string()))?;
            let (inbox, waiting) = inbox();
            let own = (node, election.name.clone());
            let candidates: BTreeMap<NodeId, NodeName> =
                election.peers.iter().map(|peer| (peer.node, peer.name.clone())).chain([own.clone()]).collect();
            let name =
                |node: &NodeId| candidates.get(node).cloned().or_else(|| NodeName::new(&format!("witness-{node}")));
            let others = quorum.voters.keys().filter_map(|node| Some((*node, name(node)?)));
            let nonce = Nonce::random().map_err(GatewayError::io("draw a random number"))?;
            let candidate = CandidateConfig {
                group,
                member,
                voters: others.chain([own]).collect(),
                candidates: candidates.clone(),
                timing: election.timing,
                configuration: config.output_fingerprint(),
                vote_ns_max: vote_ns_max(&election.timing),
                nonce: nonce.number(),
            };
            let moves = AutoMoveConfig::with_tenure(election.tenure_ns);
            let core =
                Candidate::new(mono_now(), candidate, file.durable(), epoch).with_auto_moves(moves, election.preferred);
            let backend = voting.backend(group, file, &inbox).map_err(GatewayError::io("start the vote thread"))?;
            Election::new(core, backend, fence, waiting, &inbox, hooks, options)
        }
        _ => {
            let own = (node, election.name.clone());
            let core = Lease::new(LeaseConfig {
                member,
                timing: election.timing,
                candidates: election.peers.iter().map(|peer| (peer.node, peer.name.clone())).chain([own]).collect(),
                configuration: config.output_fingerprint(),
                on_suspended: election.on_suspended,
                preferred: election.preferred,
                own_epoch: epoch,
                moves: AutoMoveConfig::with_tenure(election.tenure_ns),
            });
            let (inbox, waiting) = inbox();
            let register = open_register(election, group, inbox.register_sender())?;
            Election::new(core, register, fence, waiting, &inbox, hooks, options)
        }
    };
    if let Some(sender) = audit {
        latch.listen(Arc::new(AuditListener { sender: sender.clone(), group, node }));
    }
    latch.start().map_err(|closed| GatewayError::Io {
        act: format!("start the election of group {}", group.0),
        source: io::Error::other(closed),
    })?;
    Ok(latch)
}

/// The transport that the elections of all groups share.
enum SharedTransport {
    /// No shared transport: each election has its own connection to the store.
    Store,
    Voters(Arc<QuorumTransport>),
    Members(Arc<MembershipTransport>),
}

fn open_membership(membership: &MembershipConfig) -> Result<MembershipTransport, GatewayError> {
    let key = SharedKey::load(&membership.key_file).map_err(|error| membership_failed(error.to_string()))?;
    let act = format!("listen on {} for other members", membership.listen);
    let datagrams = MemberSocket::open(membership.listen.into(), key).map_err(GatewayError::io(act))?;
    MembershipTransport::start(datagrams).map_err(GatewayError::io("start the member receive thread"))
}

fn emergent_config(
    config: &Resolved,
    election: &ElectionConfig,
    membership: &MembershipConfig,
    member: Member,
    epoch: Epoch,
) -> EmergentConfig {
    EmergentConfig {
        member,
        address: membership.listen.into(),
        seeds: membership.seeds.iter().copied().map(SocketAddr::V4).collect(),
        bootstrap: membership.bootstrap,
        join_attempts: membership.join_attempts,
        minimum_size: membership.minimum_size,
        timing: EmergentTiming::of_lease(&election.timing),
        own_epoch: epoch,
        configuration: config.output_fingerprint(),
        // The resolver refuses a configuration without `allow_split = true`.
        allow_split: true,
    }
}

fn membership_failed(why: String) -> GatewayError {
    GatewayError::Io { act: "become a member".to_owned(), source: io::Error::other(why) }
}

fn open_voting(config: &Resolved, quorum: &QuorumConfig) -> Result<QuorumTransport, GatewayError> {
    let key = SharedKey::load(&quorum.key_file).map_err(|error| voting_failed(error.to_string()))?;
    let act = format!("listen on {} for votes", quorum.listen);
    let link = VoteLink::open(quorum.listen, NodeId(config.gateway.node), key, quorum.voters.clone())
        .map_err(GatewayError::io(act))?;
    QuorumTransport::start(link).map_err(GatewayError::io("start the thread that receives votes"))
}

fn voting_failed(why: String) -> GatewayError {
    GatewayError::Io { act: "vote".to_owned(), source: io::Error::other(why) }
}

/// Where the election's records are stored; `None`: the backend has no records.
pub(super) fn record_place(backend: &Backend) -> Option<RecordLocation> {
    match backend {
        Backend::File(directory) => Some(RecordLocation::File(directory.clone())),
        Backend::Etcd(etcd) => Some(RecordLocation::Etcd(etcd.clone())),
        // A latch uses a queue of nodes instead.
        Backend::ZooKeeper(store) if store.mode != ZooKeeperMode::Lease => None,
        Backend::ZooKeeper(store) => Some(RecordLocation::ZooKeeper(store.clone())),
        Backend::Quorum(_) | Backend::Emergent(_) => None,
    }
}

fn open_register(
    election: &ElectionConfig,
    group: GroupId,
    events: RegisterSender,
) -> Result<Box<dyn Register>, GatewayError> {
    let place = record_place(&election.backend).ok_or_else(|| voting_failed("the backend has no store".to_owned()))?;
    Ok(mdgw_stores::open(&place, group, events)?)
}

/// Measures the store over a separate connection during the start. Slow answers are logged; the start does not wait.
fn measure_store(election: &ElectionConfig, group: GroupId) {
    let election = election.clone();
    let measured = std::thread::Builder::new().name("mdgw-measure".to_owned()).spawn(move || {
        match measure(|events| open_register(&election, group, events), MEASURED_FOR) {
            Ok(measured) => {
                let StoreLatency { answered, failed, p50_ns, p999_ns } = measured;
                tracing::info!(answered, failed, p50_ns, p999_ns, "election store latency");
                if let Some(warning) = measured.warning(&election.timing) {
                    tracing::warn!(alarm = Alarm::StoreSlow.name(), warning, "election store latency");
                }
            }
            Err(error) => tracing::warn!(%error, "could not measure the election store's latency"),
        }
    });
    if let Err(error) = measured {
        tracing::warn!(%error, "could not measure the election store's latency");
    }
}

/// The gateway's side of one group's election.
struct GroupElectionHooks {
    group: GroupId,
    node: NodeId,
    handle: GroupHandle,
    link_slot: LinkSlot,
    causes: GroupTakeoverCauses,
    sender: Option<AuditSender>,
    /// The fence in the kernel, if there is one.
    kernel: Option<KernelFenceSlot>,
    /// The progress counter that the sentinel and the service manager's watchdog depend on.
    progress_counter: Option<ProgressCounter>,
}

/// What the gateway passes to its elections.
pub(super) struct ElectionContext<'a> {
    pub(super) audit: Option<&'a AuditSender>,
    pub(super) link_slot: &'a LinkSlot,
    pub(super) causes: &'a GroupTakeoverCauses,
    pub(super) kernel: Option<&'a KernelGuard>,
    pub(super) progress: &'a ProgressCounters,
}

/// The link to the peers; empty until [`Gateway::link`](super::Gateway::link) has set it.
pub(super) type LinkSlot = Arc<OnceLock<Arc<LinkHandle>>>;

/// Forwards the link's messages to the elections. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct PeerForwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PeerForwarder {
    pub(super) fn start(
        handle: Arc<LinkHandle>,
        elections: BTreeMap<GroupId, Election>,
        fitness: PeerFitness,
        causes: GroupTakeoverCauses,
        deaths: Option<DeathRecorder>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut forwarder = Forwarder { handle, elections, fitness, causes, deaths, ended: BTreeSet::new() };
        let thread = spawn_short_slice("mdgw-peer-fwd", move || {
            forwarder.handle.set_forwarder(std::thread::current());
            while !stopped.load(Relaxed) {
                forwarder.forward();
                std::thread::park_timeout(POLL_INTERVAL);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for PeerForwarder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread returns nothing; a panicked thread has ended too.
            let _ended = thread.join();
        }
    }
}

/// Writes death notices of other gateways to the audit.
#[derive(Debug)]
pub(super) struct DeathRecorder {
    node: NodeId,
    sender: AuditSender,
    /// Deaths that are in the audit already: each notice arrives several times.
    recorded: BTreeSet<(GroupId, NodeId, Incarnation)>,
}

impl DeathRecorder {
    /// Writes to the audit through `sender`, in the name of this gateway's `node`.
    pub(super) fn new(node: NodeId, sender: AuditSender) -> Self {
        Self { node, sender, recorded: BTreeSet::new() }
    }

    fn record(&mut self, group: GroupId, notice: DeathNotice) {
        let DeathNotice { holder, incarnation, epoch } = notice;
        if self.recorded.insert((group, holder, incarnation)) {
            let change = AuditEvent::Died { dead_node: holder.0, incarnation: incarnation.0 };
            self.sender.record(group, self.node, epoch, change);
        }
    }
}

/// Moves messages from the link's queues to the elections.
struct Forwarder {
    handle: Arc<LinkHandle>,
    elections: BTreeMap<GroupId, Election>,
    fitness: PeerFitness,
    causes: GroupTakeoverCauses,
    deaths: Option<DeathRecorder>,
    /// Processes whose death has been logged: the notice arrives for each group, and three times.
    ended: BTreeSet<(NodeId, Incarnation)>,
}

impl Forwarder {
    fn forward(&mut self) {
        while let Some((of, notice)) = self.handle.take_death() {
            for (group, election) in self.elections.iter().filter(|(group, _)| of.is_none_or(|of| of == **group)) {
                // A group that the dead process did not lead is not affected.
                let view = election.view();
                if notice.epoch.count() > 0 && (view.leader.is_none() || notice.epoch >= view.epoch) {
                    lock(&self.causes).entry(*group).or_default().death = Some(mono_now());
                }
                // Recorded before the election acts on the notice, so that the audit has cause and effect in order.
                if let Some(deaths) = &mut self.deaths {
                    deaths.record(*group, notice);
                }
                if !election.died(notice) {
                    self.handle.count_queue_full();
                }
            }
            // Logged after the elections are notified, since logging takes time.
            if self.ended.insert((notice.holder, notice.incarnation)) {
                tracing::warn!(holder = %notice.holder, "another gateway's process died");
            }
        }
        while let Some((from, group, message)) = self.handle.take_election() {
            if let PeerMessage::State(state) = &message {
                lock(&self.fitness).insert((group, NodeId(from)), state.fitness);
            }
            if let Some(election) = self.elections.get(&group)
                && !election.receive_from_peer(NodeId(from), message)
            {
                self.handle.count_queue_full();
            }
        }
        while let Some((from, group)) = self.handle.take_lead_request() {
            if let Some(election) = self.elections.get(&group).filter(|election| election.has_leadership()) {
                tracing::info!(node = from, group = group.0, "another gateway requests leadership");
                election.begin_hand_over(NodeId(from));
            }
        }
    }
}

/// Poll interval of the link's queues, for messages that arrived before the thread was registered for wake-ups.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl ElectionHooks for GroupElectionHooks {
    fn to_peer(&mut self, to: NodeId, message: PeerMessage) {
        if matches!(message, PeerMessage::Prepared { .. }) {
            self.note_hand_over();
        }
        if let Some(handle) = self.link_slot.get()
            && handle.is_linked_to(to.0)
        {
            handle.send_election(to.0, self.group, &message);
        }
    }

    fn on_iteration(&mut self) {
        // Never marked idle: the election thread of a leader has a timer in every renewal interval.
        if let Some(progress_counter) = &self.progress_counter {
            progress_counter.mark_busy();
        }
    }

    fn update_second_fence(&mut self, epoch: Epoch, deadline: Option<MonoNs>) {
        match (&self.kernel, deadline) {
            (Some(slot), Some(deadline)) => slot.open(epoch, deadline),
            (Some(slot), None) => slot.close(),
            (None, _) => {}
        }
    }

    fn on_fence_change(&mut self) {
        self.handle.on_fence_change();
    }

    fn is_drained(&mut self) -> bool {
        self.handle.drained().is_some()
    }

    fn on_peer_output_ended(&mut self, _: Epoch) {
        self.note_hand_over();
    }

    fn on_epoch(&mut self, epoch: Epoch) {
        self.handle.epochs().record_authenticated(epoch);
    }

    fn observed_epoch(&mut self) -> Option<(Epoch, Option<SocketAddrV4>)> {
        self.handle.epochs().take_observed()
    }

    fn on_raised(&mut self, epoch: Epoch, count: u64) {
        if let Some(sender) = &self.sender {
            sender.record(self.group, self.node, epoch, AuditEvent::Raised { count });
        }
    }

    fn on_leadership(&mut self, epoch: Epoch, _lost: Option<CloseReason>) {
        self.handle.epochs().record_authenticated(epoch);
    }

    fn on_notice(&mut self, notice: &Notice, from: Option<SocketAddrV4>) {
        if let Some(sender) = &self.sender {
            let (text, from) = (notice.to_string(), from.map(|from| from.to_string()));
            sender.record(self.group, self.node, self.handle.epochs().highest(), AuditEvent::Notice { text, from });
        }
        if let Notice::RecordRolledBack { highest_seen: seen, now } = notice {
            tracing::error!(
                alarm = Alarm::RecordRolledBack.name(),
                seen = seen.count(),
                now = now.count(),
                "the election record was rolled back (store restored or record recreated)"
            );
        }
    }
}

impl GroupElectionHooks {
    /// Stores a hand-over as the cause of the next takeover.
    fn note_hand_over(&self) {
        lock(&self.causes).entry(self.group).or_default().handed_over = Some(mono_now());
    }
}

/// Duration of the store's measurement: long enough to include a rare pause.
const MEASURED_FOR: Duration = Duration::from_secs(2);
