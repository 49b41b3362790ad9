//! The whole gateway: from a configuration to running pools with their cold threads, and back.
//!
//! Start: state file and epoch → logs → sockets → pools → sockets into the handle sets. Stop: in the reverse order, so
//! that no part uses another that has already stopped.

mod alarms;
mod beginning;
mod channel_builder;
mod channel_log;
mod cold;
#[cfg(test)]
mod counters_reference;
mod election;
mod group;
mod health;
mod kernel_guard;
mod listeners;
mod load;
mod log_copy;
mod log_maintenance;
mod main_thread;
mod metrics;
mod mirrored_log;
mod output_slots;
mod page_status;
mod placement;
mod pool_channels;
mod programs;
mod readiness;
mod reload;
mod report;
mod retransmission_threads;
mod sentinel_handle;
mod state_copy;
mod takeovers;
mod thread_watch;
mod venue_replay;
mod watch;
mod wiring;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use mdgw_admin::{PageSources, Sources};
use mdgw_election::{
    auth::SharedKey,
    driver::Election,
    fitness::Eligibility,
    identity::{Member, NodeId},
    latch::LeaderLatch,
    record_location::RecordLocationError,
};
use mdgw_engine::{
    channel_pool::PoolError,
    dispatch::{FailReason, roles::Gauges},
    handle_set::backend_choice::MissingIoUring,
    pipeline::{ChannelMessage, ChannelPipeline, PipelineCounters},
};
use mdgw_feeds::{
    consumer_edge::TsRecvMode,
    identity::{Epoch, GroupId, Session},
    time::TradingDate,
};
use mdgw_pair::{
    pair_link::{
        ChannelLogs, ChannelSender, LinkHandle, LinkedGroup, PairEndpoints, PairLink, PairLinkConfig, PairLinkError,
        PairParts, message::LinkIdentity,
    },
    standby::{Standby, StandbyError, StatusTable},
};
use mdgw_status::control::{ControlServer, ReloadRequester};
use mdgw_sys::{
    affinity::{confine_to, usable_cores},
    alarm::Alarm,
    clock::mono_now,
    kernel_fence::KernelFenceError,
    listener_counters::ListenerCounters,
    sockets::SocketError,
};
use mdgw_telemetry::counters::Registry;
use serde_json::json;
use thiserror::Error;

pub use self::group::GroupHandle;
pub use self::health::beginning;
pub use self::metrics::sample_names;
pub use self::mirrored_log::MirroredLog;
pub use self::programs::{
    JournalMetrics, LiveMetrics, MirrorGroupMetrics, MirrorMetrics, MirroredChannelRow, MirroredGroupRow, NatsMetrics,
    ProgramAdmin, ProgramMetrics,
};
pub use self::readiness::Readiness;
pub use self::reload::ReloadTick;
pub use self::report::{ChannelReport, GatewayReport, LineReport, LoadReport, PoolLoad};
use self::{
    alarms::Alarms,
    channel_builder::{ChannelContext, GroupParts},
    cold::ColdThreads,
    election::{DeathRecorder, ElectionContext, LinkSlot, PeerForwarder},
    health::{GroupHealth, HealthMonitor, OwnMember, PeerFitness, lock},
    kernel_guard::KernelGuard,
    listeners::{Listeners, RefusalLog},
    load::{LoadSample, LoadWatch},
    main_thread::MainThread,
    metrics::AdminSource,
    output_slots::OutputSlots,
    page_status::{GatewayIdentity, PageSource},
    placement::{PlacementInputs, PlacementThread},
    pool_channels::PoolChannels,
    readiness::ChannelReadiness,
    sentinel_handle::{HeldSharedPage, SentinelFaults, SentinelHandle},
    takeovers::TakeoverWatch,
    thread_watch::{HotThread, ProgressCounters, ThreadWatch},
    watch::{Watch, WatchedPool},
    wiring::Wiring,
};
use crate::{
    admin_listener::AdminListener,
    audit::{
        Audit, AuditSender,
        entry::{AuditEvent, AuditPosition},
        file::AuditError,
    },
    commit::commit,
    config::{
        LogGroupError, Resolved, TagKeyError,
        host::NO_COLD_CORE,
        resolved::{Backend, LinkConfig, LogFormat},
    },
    control::{Admit, GroupControl, PairControl, RequestLeadership},
    latency_thread::LatencyThread,
    published_positions::PositionThread,
    retransmit::ServiceError,
    state_file::{ResumePosition, Start, StateError},
};

/// A running gateway. Dropping it without [`Self::stop`] leaves its threads running.
#[derive(Debug)]
pub struct Gateway {
    this_start: Start,
    node: u8,
    groups: BTreeMap<GroupId, GroupHandle>,
    logs: ChannelLogs,
    elections: BTreeMap<GroupId, Election>,
    pools: Vec<PoolChannels>,
    /// What the construction of every channel needs.
    context: ChannelContext,
    output_slots: OutputSlots,
    /// A reload of output lines could not be undone: a stalled channel may still send on the lines that it opened.
    has_stray_lines: bool,
    standby: Option<Standby>,
    position_thread: Option<PositionThread>,
    link: Option<PairLink>,
    link_slot: LinkSlot,
    peer_forwarder: Option<PeerForwarder>,
    placement: Option<PlacementThread>,
    peer_fitness: PeerFitness,
    health: HealthMonitor,
    takeovers: TakeoverWatch,
    heartbeat_ns: u64,
    /// A voter that has not answered for this time counts as silent, ns.
    voter_silence_ns: u64,
    own_member: OwnMember,
    /// The page for the sentinel; `None` once the sentinel handle holds it.
    shared_page: Option<HeldSharedPage>,
    sentinel: Option<SentinelHandle>,
    kernel: Option<KernelGuard>,
    registry: Arc<Registry>,
    latency: LatencyThread,
    cold: ColdThreads,
    alarms: Alarms,
    listeners: Listeners,
    /// Of the admin listener.
    admin_counters: Arc<ListenerCounters>,
    refusal_log: RefusalLog,
    load: LoadWatch,
    thread_watch: ThreadWatch,
    /// The hot threads that make no progress, for the admin listener.
    stalled_threads: Arc<Mutex<Vec<HotThread>>>,
    audit: Option<Audit>,
    control: Option<ControlServer>,
    admin: Option<AdminListener>,
    /// Turns with each [`Self::update_health`].
    main_thread: MainThread,
    sentinel_faults: Arc<SentinelFaults>,
}

/// Overrides of the configuration by the command line, for rehearsals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Trading date of all channels.
    pub date: Option<TradingDate>,
    /// Whether frames carry their receive times.
    pub ts_recv: TsRecvMode,
    /// Whether the gateway always publishes, or only while its fences are open.
    pub leadership: Leadership,
    /// What a gateway begins with when it starts in mid-session.
    pub beginning: StartMode,
    /// Whether the gateway first tries to copy the state: from the configured peers, and failing that by a replay of
    /// the session in which the local log ends, from the venue's server.
    pub copy_peer_state: bool,
    /// How long a hot thread may work without progress until [`Gateway::check_threads`] reports it; `None`: [`STALL_LIMIT`].
    pub stall_limit: Option<Duration>,
}

/// What a gateway that starts in mid-session begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartMode {
    /// The local log and the input from now on. The books lack earlier messages and are marked suspect.
    #[default]
    OwnLog,
    /// The whole session, requested from the peer and the venue's server. The local log is deleted, since the replay
    /// would publish its messages twice. For a gateway that joins a peer which has the whole session.
    WholeSession,
}

/// When a gateway publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leadership {
    /// Always: there is no other gateway.
    #[default]
    Standalone,
    /// While the fences of its groups are open. Until then it receives the leader's output and keeps up.
    Elected,
}

/// Why a gateway did not start.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The state file cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The audit file cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A publication log cannot be opened.
    #[error("cannot open the publication log of channel {channel}: {source}")]
    Log {
        /// Name of the log's channel.
        channel: String,
        /// Error of the publication log.
        source: mdgw_publog::LogError,
    },
    /// The group of `log_group` cannot be used.
    #[error(transparent)]
    LogGroup(#[from] LogGroupError),
    /// A socket cannot be opened or set up.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The configured I/O backend is not available in this kernel.
    #[error(transparent)]
    Backend(#[from] MissingIoUring),
    /// The threads of a pool cannot be started.
    #[error("cannot start pool {pool}: {source}")]
    Pool {
        /// Name of the pool.
        pool: String,
        /// Error of the start.
        source: PoolError,
    },
    /// The keys of packet tags cannot be used.
    #[error(transparent)]
    TagKey(#[from] TagKeyError),
    /// The election's record cannot be opened in its store.
    #[error(transparent)]
    Store(#[from] RecordLocationError),
    /// The retransmission service cannot start.
    #[error(transparent)]
    Retransmission(#[from] ServiceError),
    /// The output of the peers cannot be received.
    #[error(transparent)]
    Standby(#[from] StandbyError),
    /// The fence in the kernel cannot be attached.
    #[error(transparent)]
    KernelFence(#[from] KernelFenceError),
    /// Any other error of the operating system.
    #[error("cannot {act}: {source}")]
    Io {
        /// Operation that failed.
        act: String,
        /// The system's error.
        source: io::Error,
    },
}

impl GatewayError {
    fn io(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |source| Self::Io { act, source }
    }
}

impl Gateway {
    /// Starts everything that the configuration names. The calling thread, and each thread that it starts from now on,
    /// keeps off the cores of the pools.
    ///
    /// # Errors
    /// The first part that cannot be started. No part is left running then.
    pub fn start(config: &Resolved, overrides: Overrides) -> Result<Self, GatewayError> {
        keep_off_pool_cores(config);
        let audit = config.gateway.audit_file.as_ref().map(Audit::start).transpose()?;
        let registry = Arc::new(Registry::default());
        let overrides = match config.election {
            Some(_) => Overrides { leadership: Leadership::Elected, ..overrides },
            None => overrides,
        };
        // Before any socket is opened: a socket belongs to the cgroup in which it was opened.
        let kernel = KernelGuard::start(config)?;
        let shared_page = HeldSharedPage::of(config)?;
        let progress = ProgressCounters::new(config, shared_page.as_ref());
        let thread_watch = ThreadWatch::new(config, &progress, overrides.stall_limit.unwrap_or(STALL_LIMIT));
        let mut wiring = Wiring::new(config, overrides, &registry)?;
        let this_start = wiring.context().start;
        let mut pools = Vec::new();
        for (number, pool) in config.pools.iter().enumerate() {
            let started = wiring.start_pool(number, pool, progress.of_pool(config, number));
            match started {
                Ok(Some(pool)) => pools.push(pool),
                // A pool without channels has nothing to do.
                Ok(None) => {}
                Err(error) => {
                    for PoolChannels { pool, .. } in pools {
                        pool.shutdown();
                    }
                    return Err(error);
                }
            }
        }
        let standby = wiring.start_standby()?;
        let status_table = standby.as_ref().map(Standby::status_table);
        let position_thread = wiring.context().published.clone().zip(status_table.map(Arc::clone));
        let position_thread = position_thread.map(|(positions, table)| {
            let groups = wiring.context().groups.clone();
            let held = |GroupParts { fence, epochs, .. }: &GroupParts| fence.epoch().max(epochs.held());
            let all_held = move || groups.iter().map(|(group, parts)| (*group, held(parts))).collect();
            PositionThread::start(positions, move || table.all(), all_held)
        });
        let position_thread =
            position_thread.transpose().map_err(GatewayError::io("start the thread that stores positions"))?;
        let groups = group::handles(config, &wiring.context().groups, &pools, wiring.takeover_shared(), status_table);
        let (context, output_slots) = (wiring.context().clone(), wiring.output_slots().clone());
        let logs = config.channels.iter().map(|setup| (setup.id, config.gateway.log_directory(setup.id)));
        let logs = ChannelLogs::of(logs);
        let (latency, cold) = wiring.start_cold_threads()?;
        tracing::info!(
            epoch = this_start.epoch.count(),
            channels = config.channels.len(),
            pools = pools.len(),
            "gateway running"
        );
        let sender = audit.as_ref().map(Audit::sender);
        let link_slot = LinkSlot::default();
        let node = NodeId(config.gateway.node);
        let takeovers = TakeoverWatch::new(groups.keys().copied(), node, sender.cloned(), &registry);
        let mut listeners = Listeners::new(standby.as_ref().map(|standby| Arc::clone(standby.status_table())));
        if let Some(counters) = cold.retransmission_counters() {
            listeners.add(listeners::RETRANSMISSION, counters);
        }
        let admin_counters = Arc::default();
        if config.admin.is_some() {
            listeners.add(listeners::ADMIN, &admin_counters);
        }
        let elections = match &config.election {
            Some(election) => {
                let context = ElectionContext {
                    audit: sender,
                    link_slot: &link_slot,
                    causes: takeovers.causes(),
                    kernel: kernel.as_ref(),
                    progress: &progress,
                };
                let mut hand_out = |name, counters: &Arc<_>| listeners.add(name, counters);
                election::start(config, election, this_start.incarnation, &groups, &context, &mut hand_out)
                    .inspect_err(|_| {
                        for PoolChannels { pool, .. } in &pools {
                            pool.shutdown();
                        }
                    })?
            }
            None => BTreeMap::new(),
        };
        let load = LoadWatch::new(
            mono_now(),
            pools.iter().map(|pool| (pool.name.clone(), pool.pool.gauges().threads.len())).collect(),
        );
        let gateway = Self {
            this_start,
            node: config.gateway.node,
            audit,
            control: None,
            admin: None,
            main_thread: MainThread::new(mono_now()),
            sentinel_faults: Arc::default(),
            groups,
            elections,
            logs,
            pools,
            context,
            output_slots,
            has_stray_lines: false,
            standby,
            position_thread,
            link: None,
            link_slot,
            peer_forwarder: None,
            placement: None,
            peer_fitness: PeerFitness::default(),
            health: HealthMonitor::default(),
            takeovers,
            own_member: OwnMember {
                node: NodeId(config.gateway.node),
                incarnation: this_start.incarnation,
                outlives_ns: config
                    .election
                    .as_ref()
                    .map_or(0, |election| election.backend.session_ns().unwrap_or(election.timing.lease_ns)),
            },
            voter_silence_ns: health::voter_silence_ns(
                config.election.as_ref().map_or(0, |election| election.timing.lease_ns),
            ),
            heartbeat_ns: config.outputs.iter().map(|output| output.heartbeat_ns).max().unwrap_or(0),
            shared_page,
            sentinel: None,
            kernel,
            registry,
            latency,
            cold,
            alarms: Alarms::default(),
            listeners,
            admin_counters,
            refusal_log: RefusalLog::default(),
            load,
            thread_watch,
            stalled_threads: Arc::default(),
        };
        gateway.record_all(&AuditEvent::Started);
        if overrides.leadership == Leadership::Standalone {
            gateway.record_all(&AuditEvent::Gained);
        }
        Ok(gateway)
    }

    /// Handle that adds entries to the audit; `None` without an audit file.
    #[must_use]
    pub(crate) fn audit(&self) -> Option<&AuditSender> {
        self.audit.as_ref().map(Audit::sender)
    }

    /// Opens the control socket for `mdgw ha`, `mdgw reload` and `mdgw top`. A standalone gateway has no groups to decide about.
    /// `reload` passes on requested reloads.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub fn serve_control(&mut self, config: &Resolved, reload: ReloadRequester) -> Result<(), GatewayError> {
        let Some(path) = &config.gateway.control_socket else { return Ok(()) };
        let pair = PairControl { reload: Some(reload), ..self.pair_control(config) };
        let served = ControlServer::start(path, move |request| pair.handle(request));
        self.control = Some(served.map_err(GatewayError::io(format!("listen at {}", path.display())))?);
        Ok(())
    }

    /// What answers about the gateway's groups, counters and history.
    fn pair_control(&self, config: &Resolved) -> PairControl {
        let backend = config.election.as_ref().map(|election| &election.backend);
        let groups =
            self.elections.iter().map(|(group, election)| (*group, self.group_control(*group, election, backend)));
        let audit = config.gateway.audit_file.clone();
        let watch = self.watch();
        let snapshot = Arc::new(move || watch.snapshot());
        let listeners = self.listeners.clone();
        let listeners = Arc::new(move || listeners.snapshots());
        let voter_silence_ns = self.voter_silence_ns;
        let main_thread = self.main_thread.clone();
        let main_thread_stuck_ms = Arc::new(move || main_thread.stuck_ms(mono_now()));
        PairControl {
            node: NodeId(self.node),
            groups: groups.collect(),
            audit,
            snapshot,
            listeners,
            voter_silence_ns,
            main_thread_stuck_ms,
            reload: None,
        }
    }

    /// Opens the admin listener for metrics, health and the page, if it is configured. To be called after the links, so that
    /// all listeners are counted.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn serve_admin(&mut self, config: &Resolved) -> Result<(), GatewayError> {
        let Some(listen_at) = &config.admin else { return Ok(()) };
        let election = config.election.as_ref();
        let peers: Option<Vec<_>> = election.map(|election| election.peers.iter().map(|peer| peer.node.0).collect());
        let link = self.link.as_ref().map(|link| Arc::clone(link.handle())).zip(peers);
        // A start is named by its time in microseconds.
        let started_ns = self.this_start.incarnation.0.saturating_mul(1_000);
        let page = Arc::new(PageSource {
            identity: GatewayIdentity {
                node: self.node,
                name: election.map(|election| election.name.clone()),
                version: env!("CARGO_PKG_VERSION"),
                commit: commit(),
                epoch_count: self.epoch().count(),
                started_ns,
                backend: election.map(|election| election.backend.name()),
                lease_ms: election.map_or(0, |election| election.timing.lease_ns / 1_000_000),
            },
            pair: self.pair_control(config),
            link: link.clone(),
            audit: self.audit().cloned(),
            sentinel_faults: Arc::clone(&self.sentinel_faults),
            recent_history: Mutex::default(),
            main_thread: self.main_thread.clone(),
            stalled_threads: Arc::clone(&self.stalled_threads),
        });
        let source = Arc::new(AdminSource {
            watch: self.watch(),
            groups: self.groups.keys().copied().collect(),
            elections: self.elections.clone(),
            node: self.node,
            epoch_count: self.epoch().count(),
            started_ns,
            link,
            sentinel_faults: Arc::clone(&self.sentinel_faults),
            health: Arc::clone(self.health.newest()),
            voter_silence_ns: self.voter_silence_ns,
            audit: self.audit().cloned(),
            main_thread: self.main_thread.clone(),
            stalled_threads: Arc::clone(&self.stalled_threads),
        });
        let (health, history) = (Arc::clone(&source), Arc::clone(&page));
        let counters = Arc::clone(&self.admin_counters);
        let sources = Sources {
            metrics: Box::new(move || source.metrics()),
            health: Box::new(move |probe| health.health(probe)),
            page: Some(PageSources {
                status: Box::new(move || page.status()),
                history: Box::new(move || history.history()),
            }),
            count: Box::new(move |observed| listeners::count_observed(&counters, observed)),
        };
        let opened = AdminListener::open(listen_at, sources);
        self.admin = Some(opened.map_err(GatewayError::io(format!("open the admin listener {listen_at}")))?);
        Ok(())
    }

    fn group_control(&self, group: GroupId, election: &Election, backend: Option<&Backend>) -> GroupControl {
        // Two gateways may lead at the same time while the network between them is partitioned.
        let may_split = matches!(backend, Some(Backend::Emergent(_)));
        let has_record = backend.is_some_and(Backend::has_record);
        let admitting = election.clone();
        let status_table = self.status_table().cloned();
        let handle = self.group(group).cloned();
        let healths = Arc::clone(self.health.newest());
        let costs = self.takeovers.costs(group).cloned();
        let history = self.link.as_ref().map(|_| Arc::clone(&self.context.history));
        let details = move || {
            let health = lock(&healths).get(&group).copied();
            let status_table = status_table.as_ref().map(|status_table| status_table.all()).unwrap_or_default();
            let channels = handle.as_ref().map(GroupHandle::channels).unwrap_or_default();
            let known = channels.iter().filter_map(|channel| Some((channel, status_table.get(channel)?)));
            let channel_status = known.map(|(channel, known)| {
                let logged_through = known.logged_through.map(AuditPosition::from);
                let state = format!("{:?}", known.state).to_lowercase();
                let kept = history.as_ref().and_then(|history| history.extent(*channel)).map(|kept| {
                    let (first, contiguous_next, next) = (kept.from.0, kept.until.0, kept.next.0);
                    json!({
                    "first": first, "contiguous_next": contiguous_next, "next": next, "bytes": kept.bytes,
                    "is_truncated": kept.is_truncated,
                    })
                });
                let packets = known.packets;
                json!({
                "channel": channel.0, "state": state, "logged_through": logged_through, "packets_received": packets,
                "input_history": kept,
                })
            });
            let joining = health.map(|GroupHealth { joining, .. }| {
                json!({
                                    "eligibility": match joining.eligibility {
                Eligibility::Joining => "joining",
                Eligibility::Eligible => "eligible",
                },
                                    "behind_messages": joining.behind_messages,
                                    "channels_missing": joining.channels_missing,
                                    "caught_up_ms": joining.caught_up_ns / 1_000_000,
                                    "content_mismatch_ms": joining.mismatched_ns / 1_000_000,
                                    "awaits_output": joining.awaits_output,
                                })
            });
            let fitness = health.map(|health| health.fitness.class().name());
            let takeovers = costs.as_ref().map(|costs| lock(costs).to_json());
            json!({
                "allows_split_brain": may_split,
                "takeovers": takeovers,
                "fitness": fitness,
                "joining": joining,
                "channels": channel_status.collect::<Vec<_>>(),
            })
        };
        let latch = Arc::new(election.clone());
        let admit = has_record.then(|| Arc::new(move |node, name| admitting.admit(node, name)) as Admit);
        let link_slot = Arc::clone(&self.link_slot);
        let request_leadership: RequestLeadership =
            Arc::new(move |node| link_slot.get().is_some_and(|handle| handle.request_leadership(node.0, group)));
        let stalled_threads = Arc::clone(&self.stalled_threads);
        let is_stalled = Arc::new(move || lock(&stalled_threads).contains(&HotThread::Election(group)));
        GroupControl { latch, admit, request_leadership, is_stalled, details: Arc::new(details) }
    }

    /// Adds the event to the audit once for each group.
    fn record_all(&self, change: &AuditEvent) {
        let Some(sender) = self.audit() else { return };
        for group in self.groups.keys() {
            sender.record(*group, NodeId(self.node), self.epoch(), change.clone());
        }
    }

    /// Handle of the group, for its election; `None` if no channel is in that group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<&GroupHandle> {
        self.groups.get(&group)
    }

    /// Links the gateway to its peers. Returns the handles for messages to and from them.
    ///
    /// # Errors
    /// When it cannot listen. An absent peer is no error.
    ///
    /// # Panics
    /// When the gateway is standalone.
    pub fn link(&mut self, endpoints: PairEndpoints) -> Result<&Arc<LinkHandle>, PairLinkError> {
        let status_table = Arc::clone(self.status_table().expect("a standalone gateway has no peer"));
        let linked = |handle: &GroupHandle| LinkedGroup {
            epochs: Arc::clone(handle.epochs()),
            fence: Arc::clone(handle.fence()),
        };
        let groups = self.groups.iter().map(|(group, handle)| (*group, linked(handle))).collect();
        let handles: Vec<_> = self.groups.values().cloned().collect();
        let channels = ChannelSender::new(move |channel, message| {
            let handle = handles.iter().find(|handle| handle.channels().contains(&channel));
            handle.is_some_and(|handle| handle.send(channel, message).is_ok())
        });
        let peer_gap_requests = Arc::clone(&self.context.peer_gap_requests);
        let history = Arc::clone(&self.context.history);
        let identity = LinkIdentity { node: self.node, incarnation: self.this_start.incarnation };
        let parts = PairParts { status_table, groups, logs: self.logs.clone(), peer_gap_requests, history, channels };
        let link = PairLink::start(PairLinkConfig { identity, endpoints }, parts)?;
        let _first = self.link_slot.set(Arc::clone(link.handle()));
        self.listeners.add(listeners::PAIR_LINK, link.handle().listener_counters());
        let fitness = Arc::clone(&self.peer_fitness);
        let forwarder = PeerForwarder::start(
            Arc::clone(link.handle()),
            self.elections.clone(),
            fitness,
            Arc::clone(self.takeovers.causes()),
            self.audit().map(|sender| DeathRecorder::new(NodeId(self.node), sender.clone())),
        );
        let forwarder = forwarder.map_err(PairLinkError::Thread)?;
        self.peer_forwarder = Some(forwarder);
        Ok(self.link.insert(link).handle())
    }

    /// Links the gateway as the configuration says; does nothing without `[election.link]`.
    ///
    /// # Errors
    /// When the key cannot be read, or the gateway cannot listen.
    pub fn link_as_configured(&mut self, config: &Resolved) -> Result<(), GatewayError> {
        let Some(election) = &config.election else { return Ok(()) };
        let Some(link @ LinkConfig { listen, peers, key_file, .. }) = &election.link else { return Ok(()) };
        let failed = |why: String| GatewayError::Io {
            act: "link to the other gateways".to_owned(),
            source: io::Error::other(why),
        };
        let key = SharedKey::load(key_file).map_err(|error| failed(error.to_string()))?;
        let endpoints = PairEndpoints {
            listen: *listen,
            peers: peers.clone(),
            key,
            period_ns: election.timing.renew_ns.min(REPORT_NS_MAX),
        };
        self.link(endpoints).map_err(|error| failed(error.to_string()))?;
        if election.spread && self.elections.len() > 1 {
            self.placement = Some(self.start_placement(election.timing.lease_ns)?);
        }
        let incarnation = self.this_start.incarnation;
        let member = Member { node: NodeId(self.node), name: election.name.clone(), incarnation };
        if let Some(shared_page) = self.shared_page.take() {
            let kernel = self.kernel.as_ref().map(KernelGuard::fence);
            let logs_json = config.log.format == LogFormat::Json;
            let elections = &self.elections;
            self.sentinel =
                Some(SentinelHandle::start(shared_page, link, member, election, elections, kernel, logs_json)?);
        }
        Ok(())
    }

    fn start_placement(&self, lease_ns: u64) -> Result<PlacementThread, GatewayError> {
        let load =
            |group| self.group(group).map_or(0, |handle| u32::try_from(handle.channels().len()).unwrap_or(u32::MAX));
        let elections = self.elections.iter().map(|(group, election)| (*group, (election.clone(), load(*group))));
        let spread = PlacementInputs { node: NodeId(self.node), lease_ns, elections: elections.collect() };
        PlacementThread::start(spread).map_err(GatewayError::io("start the placement thread"))
    }

    /// Status of the peers' output, if this gateway receives it.
    #[must_use]
    pub fn status_table(&self) -> Option<&Arc<StatusTable>> {
        self.standby.as_ref().map(Standby::status_table)
    }

    /// Epoch of this start. A standalone gateway publishes under it.
    #[must_use]
    pub(crate) fn epoch(&self) -> Epoch {
        self.this_start.epoch
    }

    fn watch(&self) -> Watch {
        let pools = self.pools.iter().map(|PoolChannels { name, pool, channels, .. }| WatchedPool {
            name: name.clone(),
            pool: Arc::clone(pool),
            channels: channels.clone(),
        });
        Watch {
            source: format!("gateway {}, epoch {}", self.node, self.epoch().count()),
            pools: pools.collect(),
            registry: Arc::clone(&self.registry),
            recent: Arc::clone(self.latency.recent()),
            kernel_drops: self.cold.kernel_drops().clone(),
            listeners: self.listeners.clone(),
            stalled_threads: Arc::clone(&self.stalled_threads),
            main_thread: self.main_thread.clone(),
        }
    }

    /// Channels that are out of service, with the reason.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (String, FailReason)> {
        self.pools.iter().flat_map(|pool| {
            let channels = pool.channels.all().into_iter();
            channels.filter_map(|(index, _, name)| Some((name, pool.pool.failed(index)?)))
        })
    }

    /// Why a pool has stopped without a request, if one has.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.pools.iter().find_map(|pool| pool.pool.fault())
    }

    /// Logs the alarms that occurred since the last call, and samples the load. To be called about once a second.
    pub fn log_alarms(&mut self) {
        let gauges: Vec<_> = self.pools.iter().map(|pool| pool.pool.gauges()).collect();
        self.load.sample(load_sample(&gauges, self.cold.kernel_drops().total()));
        let failed: Vec<_> = self.failed().map(|(channel, reason)| (channel, reason.to_string())).collect();
        self.alarms.check(&self.registry, &failed);
        self.refusal_log.check(&self.listeners, mono_now());
        self.sentinel_faults.check(&mut self.sentinel);
    }

    /// Evaluates the health of each group and passes its fitness and eligibility to the group's election. To be called
    /// some times a second; before the first call no group is eligible.
    pub fn update_health(&mut self) {
        self.main_thread.turned(mono_now());
        let stalled = lock(&self.stalled_threads).clone();
        let progress = HotThread::progress(&stalled, self.fault().is_some());
        let Some(status_table) = self.standby.as_ref().map(Standby::status_table) else { return };
        // With a link, the link's thread forwards declared gaps sooner.
        if self.link.is_none() {
            status_table.forward_declared_gaps(|channel, session| {
                let handle = self.groups.values().find(|handle| handle.channels().contains(&channel));
                handle.is_some_and(|handle| handle.send(channel, ChannelMessage::PeerDeclaredGap(session)).is_ok())
            });
        }
        let inputs = health::HealthInputs {
            own: self.own_member,
            status_table,
            pair: self.link.as_ref().map(|link| &**link.handle()),
            peer_fitness: &self.peer_fitness,
            heartbeat_ns: self.heartbeat_ns,
            voter_silence_ns: self.voter_silence_ns,
            stalled: &stalled,
        };
        let now = mono_now();
        for (group, election) in &self.elections {
            if let Some(handle) = self.groups.get(group) {
                self.health.update(*group, (handle, election), &inputs, now);
                self.takeovers.update(*group, (handle, election), status_table, now);
            }
            election.set_progress(progress);
        }
    }

    /// Whether each hot thread makes progress or waits for work; one that does not is an alarm. To be called some times a
    /// second. With a stalled thread the gateway gives up leadership.
    pub fn check_threads(&mut self) -> bool {
        let pools = &self.pools;
        let has_failed = |name: &str| pools.iter().any(|pool| pool.name == name && pool.have_all_failed());
        let stalled = self.thread_watch.check(has_failed, mono_now());
        let is_well = stalled.is_empty();
        *lock(&self.stalled_threads) = stalled;
        is_well
    }

    /// Whether the start is complete, and one line about roles and channels.
    #[must_use]
    pub fn readiness(&self, config: &Resolved) -> Readiness {
        let counters = self.watch().channel_counters();
        let unknown = PipelineCounters::default();
        let channels = config.channels.iter().map(|setup| {
            let counters = counters.get(&setup.name).unwrap_or(&unknown);
            ChannelReadiness::new(&setup.name, setup.lines.len(), counters)
        });
        readiness::readiness(&channels.collect::<Vec<_>>(), self.elections.iter())
    }

    /// Hands over each group that this gateway leads to the fittest other gateway, and waits until that one leads. Without an
    /// eligible gateway the group stays here, and [`Self::stop`] releases it.
    pub fn hand_over(&self) {
        self.main_thread.stops();
        for (group, election) in self.elections.iter().filter(|(_, election)| election.has_leadership()) {
            match election.hand_over(None) {
                Ok(leader) => tracing::info!(group = group.0, %leader, "handed over before the stop"),
                Err(error) => tracing::warn!(group = group.0, %error, "stops as the leader"),
            }
        }
    }

    /// How long [`Self::hand_over`] and [`Self::stop`] may take at most, apart from disks that do not answer.
    #[must_use]
    pub fn stop_limit(config: &Resolved) -> Duration {
        let groups: BTreeSet<GroupId> = config.channels.iter().map(|setup| setup.group).collect();
        let lease_ns = config.election.as_ref().map_or(0, |election| election.timing.lease_ns);
        let per_group = Duration::from_nanos(lease_ns.saturating_mul(LEASES_TO_STOP));
        STOP_TIME.saturating_add(per_group.saturating_mul(u32::try_from(groups.len()).unwrap_or(u32::MAX)))
    }

    /// Stops in order: threads are joined, logs are closed, the state is on disk.
    ///
    /// # Errors
    /// When latency logs or the state could not be written completely; all parts have stopped nevertheless.
    pub fn stop(self) -> Result<GatewayReport, GatewayError> {
        self.record_all(&AuditEvent::Stopped);
        let Self { this_start, elections, pools, standby, position_thread, link, peer_forwarder, placement, .. } = self;
        let Self { sentinel, latency, cold, audit, control, admin, load, listeners, .. } = self;
        drop(placement);
        // First of all, so that a peer leads while this gateway still stops.
        elections.values().for_each(LeaderLatch::close);
        drop(admin);
        drop(control);
        drop(sentinel);
        drop(peer_forwarder);
        drop(link);
        let listener_counts = standby.map(Standby::stop);
        let mut channels = Vec::new();
        let mut gauges = Vec::new();
        let mut positions = Vec::new();
        for PoolChannels { pool, channels: names, .. } in pools {
            gauges.push(pool.gauges());
            let names: BTreeMap<_, _> = names.all().into_iter().map(|(_, id, name)| (id, name)).collect();
            for mut pipeline in pool.shutdown() {
                let id = pipeline.channel().config().id;
                // A channel that is being removed while the gateway stops has no name any more.
                let name = names.get(&id).cloned().unwrap_or_else(|| id.0.to_string());
                pipeline.flush_metrics(mono_now());
                positions.extend(shutdown_position(&pipeline).map(|shutdown_position| (id, shutdown_position)));
                channels.push(ChannelReport::of(&pipeline, id, name));
            }
        }
        drop(position_thread);
        let kernel_drops = cold.kernel_drops().clone();
        let stopped = cold.stop(positions);
        // The maintenance thread has read the counters a last time.
        let load = load.finish(load_sample(&gauges, kernel_drops.total()), kernel_drops.highest_use());
        if let Some(counts) = audit.map(Audit::stop).filter(|counts| counts.lost > 0) {
            tracing::error!(
                alarm = Alarm::AuditFailing.name(),
                counts.lost,
                "audit entries were lost: not written before exit"
            );
        }
        let collected = latency.stop().map_err(GatewayError::io("write the latency log"));
        stopped?;
        let listeners = listeners.snapshots();
        let epoch = this_start.epoch;
        Ok(GatewayReport { epoch, channels, gauges, load, listener_counts, listeners, latency: collected? })
    }
}

/// Confines the calling thread to the cores that no pool has. Threads and processes inherit this: all cold threads, those of
/// libraries, and the sentinel. The pools' threads, and an election's with a configured core, then pin themselves.
fn keep_off_pool_cores(config: &Resolved) {
    let usable = usable_cores();
    let cold = config.cold_cores(&usable);
    if cold.is_empty() {
        tracing::warn!("{NO_COLD_CORE}");
    } else if cold.len() < usable.len() {
        match confine_to(&cold) {
            Ok(()) => tracing::info!(cores = ?cold, "cold threads keep off the pools' cores"),
            Err(error) => tracing::warn!(%error, "cold threads may run on the pools' cores: cannot confine them"),
        }
    }
}

/// Counters of the pools and of the kernel at this moment.
fn load_sample(gauges: &[Gauges], dropped: u64) -> LoadSample {
    LoadSample {
        at: mono_now(),
        packets: gauges.iter().map(|pool| pool.counts.packets).sum(),
        dropped,
        busy_ns: gauges.iter().map(|pool| pool.counts.handler_ns_sum).collect(),
    }
}

/// Position of a channel at the shutdown; `None` if no session has begun.
fn shutdown_position(pipeline: &ChannelPipeline) -> Option<ResumePosition> {
    let progress = pipeline.sink().session_progress()?;
    let session = Session::from_bytes(progress.session)?;
    Some(ResumePosition { session, next: progress.covered_through, has_ended: progress.has_ended })
}

/// A hot thread that works without progress for this time has stalled, unless [`Overrides::stall_limit`] says otherwise.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// Leases that a group's election may take to stop: four for a hand-over that nobody answers, two for the release.
const LEASES_TO_STOP: u64 = 6;
/// Time for all other parts to stop.
const STOP_TIME: Duration = Duration::from_secs(20);

/// Longest interval of position reports, ns, however long the lease is. From these reports a peer judges whether it
/// receives the leader's output.
const REPORT_NS_MAX: u64 = 20_000_000;
