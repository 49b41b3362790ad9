//! The elections of a gateway: one for each of its groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
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
    place::PlaceError,
    session_latch::{SessionLatch, SessionLatchConfig},
    zookeeper,
};
use mdgw_election::{
    access::ZooKeeperMode,
    auth::{Nonce, SharedKey},
    core::{CloseReason, Notice},
    driver::{Election, ElectionOptions, Surroundings, inbox, measure},
    emergent::{
        Emergent, EmergentConfig,
        datagrams::{Datagrams, Memberships},
        timing::EmergentTiming,
    },
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    latch::LeaderLatch,
    lease::{Lease, LeaseConfig},
    moves::MovesConfig,
    peer::PeerMessage,
    place::RecordPlace,
    quorum::{
        backend::QuorumBackends,
        candidate::{Candidate, CandidateConfig, vote_ns_max},
        link::VoteLink,
        vote_file::VoteFile,
    },
    register::{Register, RegisterSender},
};
use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_pair::pair_link::PairDesk;
use mdgw_sys::{clock::mono_now, kernel_fence::KernelFenceSlot, progress::ThreadWord, scheduler::spawn_prompt};

use super::{
    GatewayError, GroupDesk,
    condition::{PeerFitness, lock},
    kernel_guard::KernelGuard,
    takeovers::AllOmens,
    vigil::HeldPage,
};
use crate::{
    audit::{AuditListener, AuditNotes, entry::Change},
    config::{
        Resolved,
        resolved::{Backend, ElectionConfig, MembershipConfig, QuorumConfig},
    },
    state_file::Start,
};

/// Starts the election of each group. `this_start` is the gateway's.
///
/// # Errors
/// When a store can't be opened or a thread can't be had. What was started is closed then.
pub(super) fn start(
    config: &Resolved,
    election: &ElectionConfig,
    this_start: Start,
    desks: &BTreeMap<GroupId, GroupDesk>,
    around: &Around<'_>,
) -> Result<BTreeMap<GroupId, Election>, GatewayError> {
    let mut elections: BTreeMap<GroupId, Election> = BTreeMap::new();
    let between = match &election.backend {
        Backend::Quorum(quorum) => Between::Voters(Arc::new(open_voting(config, quorum)?)),
        Backend::Emergent(membership) => Between::Members(Arc::new(open_membership(membership)?)),
        _ => Between::Store,
    };
    for (index, (group, desk)) in desks.iter().enumerate() {
        let surroundings = Desk {
            group: *group,
            node: NodeId(config.gateway.node),
            desk: desk.clone(),
            peer_way: Arc::clone(around.peer_way),
            omens: Arc::clone(around.omens),
            notes: around.audit.cloned(),
            kernel: around.kernel.and_then(|kernel| kernel.slot(*group)),
            word: around.page.and_then(|page| page.election_word(index)),
        };
        let started = start_one(config, election, &between, this_start, surroundings, around.audit);
        match started {
            Ok(started) => {
                elections.insert(*group, started);
            }
            Err(error) => {
                elections.values().for_each(LeaderLatch::close);
                return Err(error);
            }
        }
    }
    if let (Some(group), Between::Store) = (desks.keys().next(), &between) {
        measure_store(election, *group);
    }
    Ok(elections)
}

fn start_one(
    config: &Resolved,
    election: &ElectionConfig,
    between: &Between,
    Start { epoch, incarnation }: Start,
    desk: Desk,
    audit: Option<&AuditNotes>,
) -> Result<Election, GatewayError> {
    let group = desk.group;
    let node = NodeId(config.gateway.node);
    let member = Member { node, name: election.name.clone(), incarnation };
    let fence = Arc::clone(desk.desk.fence());
    let surroundings = Box::new(desk);
    let options = ElectionOptions {
        name: group.0.to_string(),
        timing: election.timing,
        core: election.core,
        fifo_priority: election.priority,
        listeners_ns_max: election.listeners_ns_max,
        peers: election.peers.iter().map(|peer| peer.node).collect(),
    };
    let latch = match (&election.backend, between) {
        #[cfg(feature = "zookeeper")]
        (Backend::ZooKeeper(zookeeper @ ZooKeeperConfig { mode: ZooKeeperMode::Latch { session }, .. }), _) => {
            let (inbox, waiting) = inbox();
            let line = zookeeper::session::open(zookeeper, group, *session, &member, inbox.clone())
                .map_err(PlaceError::from)?;
            let core = SessionLatch::new(SessionLatchConfig {
                member,
                timing: election.timing,
                configuration: config.output_mark(),
                on_suspended: election.on_suspended,
                own_epoch: epoch,
            });
            Election::new(core, line, fence, waiting, &inbox, surroundings, options)
        }
        (Backend::Emergent(membership), Between::Members(members)) => {
            let core = Emergent::new(emergent_config(config, election, membership, member, epoch))
                .map_err(|error| membership_failed(error.to_string()))?;
            let (inbox, waiting) = inbox();
            let backend = members.backend(group, &inbox);
            Election::new(core, backend, fence, waiting, &inbox, surroundings, options)
        }
        (Backend::Quorum(quorum), Between::Voters(voting)) => {
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
                configuration: config.output_mark(),
                vote_ns_max: vote_ns_max(&election.timing),
                nonce: nonce.number(),
            };
            let moves = MovesConfig::with_tenure(election.tenure_ns);
            let core = Candidate::new(mono_now(), candidate, file.kept(), epoch).moving_by(moves, election.preferred);
            let backend = voting.backend(group, file, &inbox).map_err(GatewayError::io("start the thread of votes"))?;
            Election::new(core, backend, fence, waiting, &inbox, surroundings, options)
        }
        _ => {
            let own = (node, election.name.clone());
            let core = Lease::new(LeaseConfig {
                member,
                timing: election.timing,
                candidates: election.peers.iter().map(|peer| (peer.node, peer.name.clone())).chain([own]).collect(),
                configuration: config.output_mark(),
                on_suspended: election.on_suspended,
                preferred: election.preferred,
                own_epoch: epoch,
                moves: MovesConfig::with_tenure(election.tenure_ns),
            });
            let (inbox, waiting) = inbox();
            let register = open_register(election, group, inbox.of_register())?;
            Election::new(core, register, fence, waiting, &inbox, surroundings, options)
        }
    };
    if let Some(notes) = audit {
        latch.listen(Arc::new(AuditListener { notes: notes.clone(), group, node }));
    }
    latch.start().map_err(|closed| GatewayError::Io {
        act: format!("start the election of group {}", group.0),
        source: io::Error::other(closed),
    })?;
    Ok(latch)
}

/// What the elections of all groups share.
enum Between {
    /// Nothing: each has a connection of its own.
    Store,
    Voters(Arc<QuorumBackends>),
    Members(Arc<Memberships>),
}

fn open_membership(membership: &MembershipConfig) -> Result<Memberships, GatewayError> {
    let key = SharedKey::load(&membership.key_file).map_err(|error| membership_failed(error.to_string()))?;
    let act = format!("listen on {} for other members", membership.listen);
    let datagrams = Datagrams::open(membership.listen.into(), key).map_err(GatewayError::io(act))?;
    Memberships::start(datagrams).map_err(GatewayError::io("start the thread that hears other members"))
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
        founding: membership.founding,
        join_attempts: membership.join_attempts,
        minimum_size: membership.minimum_size,
        timing: EmergentTiming::of_lease(&election.timing),
        // Below what this start has for itself: that is nobody's yet, and members tell each other what they know. One that
        // comes back would outrank whoever leads.
        own_epoch: Epoch::new(epoch.count().saturating_sub(1), 0),
        configuration: config.output_mark(),
        // Without it the configuration was refused.
        allow_split: true,
    }
}

fn membership_failed(why: String) -> GatewayError {
    GatewayError::Io { act: "become a member".to_owned(), source: io::Error::other(why) }
}

fn open_voting(config: &Resolved, quorum: &QuorumConfig) -> Result<QuorumBackends, GatewayError> {
    let key = SharedKey::load(&quorum.key_file).map_err(|error| voting_failed(error.to_string()))?;
    let act = format!("listen on {} for votes", quorum.listen);
    let link = VoteLink::open(quorum.listen, NodeId(config.gateway.node), key, quorum.voters.clone())
        .map_err(GatewayError::io(act))?;
    QuorumBackends::start(link).map_err(GatewayError::io("start the thread that receives votes"))
}

fn voting_failed(why: String) -> GatewayError {
    GatewayError::Io { act: "vote".to_owned(), source: io::Error::other(why) }
}

/// Where the records are; `None`: the backend has none.
pub(super) fn record_place(backend: &Backend) -> Option<RecordPlace> {
    match backend {
        Backend::File(directory) => Some(RecordPlace::File(directory.clone())),
        Backend::Etcd(etcd) => Some(RecordPlace::Etcd(etcd.clone())),
        // A latch has a line of nodes instead.
        Backend::ZooKeeper(store) if store.mode != ZooKeeperMode::Lease => None,
        Backend::ZooKeeper(store) => Some(RecordPlace::ZooKeeper(store.clone())),
        Backend::Quorum(_) | Backend::Emergent(_) => None,
    }
}

fn open_register(
    election: &ElectionConfig,
    group: GroupId,
    events: RegisterSender,
) -> Result<Box<dyn Register>, GatewayError> {
    let place = record_place(&election.backend).ok_or_else(|| voting_failed("there is no store".to_owned()))?;
    Ok(place.open(group, events)?)
}

/// Over a connection of its own, while the gateway begins: what is slow is said, and nothing waits for it.
fn measure_store(election: &ElectionConfig, group: GroupId) {
    let election = election.clone();
    let measured = std::thread::Builder::new().name("mdgw-measure".to_owned()).spawn(move || {
        match measure(|events| open_register(&election, group, events), MEASURED_FOR) {
            Ok(measured) => {
                tracing::info!(?measured, "the election's store");
                if let Some(warning) = measured.warning(&election.timing) {
                    tracing::warn!(alarm = "store-slow", warning, "the election's store");
                }
            }
            Err(error) => tracing::warn!(%error, "the election's store was not measured"),
        }
    });
    if let Err(error) = measured {
        tracing::warn!(%error, "the election's store was not measured");
    }
}

/// What surrounds the election of a group in this process.
struct Desk {
    group: GroupId,
    node: NodeId,
    desk: GroupDesk,
    peer_way: PeerWay,
    omens: AllOmens,
    notes: Option<AuditNotes>,
    /// The fence in the kernel, where there is one.
    kernel: Option<KernelFenceSlot>,
    /// Where the sentinel sees that the thread gets on.
    word: Option<ThreadWord>,
}

/// What the gateway has for its elections.
pub(super) struct Around<'a> {
    pub(super) audit: Option<&'a AuditNotes>,
    pub(super) peer_way: &'a PeerWay,
    pub(super) omens: &'a AllOmens,
    pub(super) kernel: Option<&'a KernelGuard>,
    pub(super) page: Option<&'a HeldPage>,
}

/// To the other gateways; empty until there is a link.
pub(super) type PeerWay = Arc<OnceLock<Arc<PairDesk>>>;

/// Brings what comes over the link to the elections. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct PeerNews {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PeerNews {
    pub(super) fn start(
        desk: Arc<PairDesk>,
        elections: BTreeMap<GroupId, Election>,
        fitness: PeerFitness,
        omens: AllOmens,
        deaths: Option<DeathNotes>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut news = News { desk, elections, fitness, omens, deaths, ended: BTreeSet::new() };
        let thread = spawn_prompt("mdgw-peer-news", move || {
            news.desk.wake_on_message(std::thread::current());
            while !stopped.load(Relaxed) {
                news.forward();
                std::thread::park_timeout(LOOK_INTERVAL);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for PeerNews {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has no result; one that panicked has ended all the same.
            let _ended = thread.join();
        }
    }
}

/// Notes the deaths of other gateways.
#[derive(Debug)]
pub(super) struct DeathNotes {
    node: NodeId,
    notes: AuditNotes,
    /// Each is told several times.
    noted: BTreeSet<(GroupId, NodeId, Incarnation)>,
}

impl DeathNotes {
    /// As that gateway, there.
    pub(super) fn new(node: NodeId, notes: AuditNotes) -> Self {
        Self { node, notes, noted: BTreeSet::new() }
    }

    fn note(&mut self, group: GroupId, notice: DeathNotice) {
        let DeathNotice { holder, incarnation, epoch } = notice;
        if self.noted.insert((group, holder, incarnation)) {
            let change = Change::Died { holder: holder.0, incarnation: incarnation.0 };
            self.notes.note(group, self.node, epoch, change);
        }
    }
}

/// From the link's desk to the elections.
struct News {
    desk: Arc<PairDesk>,
    elections: BTreeMap<GroupId, Election>,
    fitness: PeerFitness,
    omens: AllOmens,
    deaths: Option<DeathNotes>,
    /// Processes whose end has been logged: it is told of each group, and three times.
    ended: BTreeSet<(NodeId, Incarnation)>,
}

impl News {
    fn forward(&mut self) {
        while let Some((of, notice)) = self.desk.take_death() {
            for (group, election) in self.elections.iter().filter(|(group, _)| of.is_none_or(|of| of == **group)) {
                // Groups that it never led, or gave away, go on without it.
                let view = election.view();
                if notice.epoch.count() > 0 && (view.leader.is_none() || notice.epoch >= view.epoch) {
                    lock(&self.omens).entry(*group).or_default().death = Some(mono_now());
                }
                // Before what comes of it is noted.
                if let Some(deaths) = &mut self.deaths {
                    deaths.note(*group, notice);
                }
                election.died(notice);
            }
            // When the elections know.
            if self.ended.insert((notice.holder, notice.incarnation)) {
                tracing::warn!(holder = %notice.holder, "another gateway's process has ended");
            }
        }
        while let Some((from, group, message)) = self.desk.take_election() {
            if let PeerMessage::State(state) = &message {
                lock(&self.fitness).insert((group, NodeId(from)), state.fitness);
            }
            if let Some(election) = self.elections.get(&group) {
                election.heard_from_peer(NodeId(from), message);
            }
        }
        while let Some((from, group)) = self.desk.take_lead_ask() {
            if let Some(election) = self.elections.get(&group).filter(|election| election.has_leadership()) {
                tracing::info!(node = from, group = group.0, "another gateway asks to lead");
                election.begin_hand_over(NodeId(from));
            }
        }
    }
}

/// For messages that came before the thread was known.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl Surroundings for Desk {
    fn to_peer(&mut self, to: NodeId, message: PeerMessage) {
        if matches!(message, PeerMessage::Prepared { .. }) {
            self.is_handed_over();
        }
        if let Some(desk) = self.peer_way.get()
            && desk.is_linked_to(to.0)
        {
            desk.send_election(to.0, self.group, &message);
        }
    }

    fn goes_round(&mut self) {
        // It always has something to do: a thread that is at rest for long would be no leader's.
        if let Some(word) = &self.word {
            word.works();
        }
    }

    fn guard(&mut self, epoch: Epoch, deadline: Option<MonoNs>) {
        match (&self.kernel, deadline) {
            (Some(slot), Some(deadline)) => slot.open(epoch, deadline),
            (Some(slot), None) => slot.close(),
            (None, _) => {}
        }
    }

    fn fence_moved(&mut self) {
        self.desk.fence_moved();
    }

    fn drained(&mut self) -> Option<BTreeMap<u16, StreamPosition>> {
        self.desk.drained().map(by_number)
    }

    fn positions(&mut self) -> BTreeMap<u16, StreamPosition> {
        by_number(self.desk.positions())
    }

    fn others_ended(&mut self, epoch: Epoch, positions: &BTreeMap<u16, StreamPosition>) {
        self.is_handed_over();
        self.desk.others_ended(epoch, positions);
    }

    fn known(&mut self, epoch: Epoch) {
        self.desk.epochs().vouch(epoch);
    }

    fn heard(&mut self) -> Option<Epoch> {
        self.desk.epochs().highest_heard()
    }

    fn leadership(&mut self, epoch: Epoch, _lost: Option<CloseReason>) {
        self.desk.epochs().vouch(epoch);
    }

    fn notice(&mut self, notice: &Notice) {
        if let Some(notes) = &self.notes {
            let text = notice.to_string();
            notes.note(self.group, self.node, self.desk.epochs().highest(), Change::Notice { text });
        }
        if let Notice::RecordWentBack { seen, now } = notice {
            tracing::error!(alarm = "record-went-back", ?seen, ?now, "the election's record was restored or made anew");
        }
    }
}

impl Desk {
    /// What follows soon has this reason.
    fn is_handed_over(&self) {
        lock(&self.omens).entry(self.group).or_default().handed_over = Some(mono_now());
    }
}

fn by_number(positions: BTreeMap<ChannelId, StreamPosition>) -> BTreeMap<u16, StreamPosition> {
    positions.into_iter().map(|(channel, position)| (channel.0, position)).collect()
}

/// Longer than a store's rare pauses.
const MEASURED_FOR: Duration = Duration::from_secs(2);
