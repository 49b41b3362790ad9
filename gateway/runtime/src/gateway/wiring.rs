//! Builds the parts of a gateway from its configuration: creates what each channel needs and passes it to the channel's
//! pool.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use crossbeam_queue::ArrayQueue;
use mdgw_election::auth::Nonce;
use mdgw_engine::{
    channel_pool::{self, ChannelPool},
    dispatch::{DispatchConfig, WaitPolicy},
    handle_set::backend_choice::{self, Backend, LeaderWait},
    pipeline::{
        ChannelPipeline, LineSocket, PeerGapRequests, PipelineCounter, PipelineLocal, PipelineParts, RecoverySocket,
    },
    publish::{LogSink, Publisher, PublisherConfig, TakeoverShared},
};
use mdgw_feeds::{
    arbiter::{REQUESTS_IN_FLIGHT_MAX, RecoveryConfig},
    channel::{Channel, ChannelConfig, ChannelState, KnownSession, LateStart},
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    published::{
        packet::{PACKET_BYTES_MAX, PACKET_HEADER_BYTES, PacketFlags},
        position::StreamPosition,
        tag::{TAG_BYTES, TagPolicy},
    },
};
use mdgw_pair::{
    pair_link::message::LinkIdentity,
    standby::{
        ChannelGauges, InputHistory, KnownEpochs, MonitoredChannel, MonitoredInput, MonitoredOutput, Standby,
        StandbyConfig,
    },
};
use mdgw_publog::{LogOptions, LogRecovery, Retention};
use mdgw_status::disclosure::Disclosure;
use mdgw_sys::{
    affinity::TemporaryAffinity,
    batch::{OutputIndex, Outputs, ReceiveBatch, SendBuffers},
    clock::unix_now,
    drops::SocketDrops,
    fence::Fence,
    handle::{ChannelIndex, Handle},
    hardware_stamps,
    progress::ProgressCounter,
    sockets::{
        Egress, Interface, InterfaceDependents, OutputOptions, ReceiveOptions, SourceFilter, Stamps, open_output,
        open_receive,
    },
};
use mdgw_telemetry::{channel_metrics::channel_recorder_pair, counters::Registry, stages::stage_recorder_pair};
use socket2::Socket;

use super::{
    GatewayError, Leadership, Overrides, PoolChannels, StartMode,
    cold::{ColdParts, ColdThreads},
    log_maintenance::MaintainedLog,
    state_copy::Donors,
    venue_replay::VenueReplay,
};
use crate::{
    config::{
        Resolved,
        resolved::{ChannelSetup, OutputConfig, PoolConfig, Threads},
        tag_keys::tag_policies,
    },
    latency_thread::{ChannelMetricsCollector, LatencyThread, ThreadStageCollector},
    retransmit::ServedChannel,
    state_file::{ShutdownPosition, Start, StartEpoch, StateFile},
};

/// Creates the parts and collects what the cold threads will need of them.
#[derive(Debug)]
pub(super) struct Wiring<'c> {
    config: &'c Resolved,
    overrides: Overrides,
    registry: &'c Registry,
    state: StateFile,
    start: Start,
    groups: BTreeMap<GroupId, GroupParts>,
    peer_gap_requests: Arc<PeerGapRequests>,
    history: Arc<InputHistory>,
    monitored: Vec<MonitoredChannel>,
    takeover_shared: BTreeMap<ChannelId, Arc<TakeoverShared>>,
    outputs: Arc<Outputs>,
    sessions: Arc<ArrayQueue<(ChannelId, KnownSession)>>,
    donors: Donors,
    logs: Vec<MaintainedLog>,
    watched: InterfaceDependents,
    drops: SocketDrops,
    stages: Vec<ThreadStageCollector>,
    metrics: Vec<ChannelMetricsCollector>,
    served: Vec<ServedChannel>,
    tags: BTreeMap<GroupId, TagPolicy>,
}

/// The fence of a group's output, and the group's known epochs.
#[derive(Clone, Debug)]
pub(super) struct GroupParts {
    pub(super) fence: Arc<Fence>,
    pub(super) epochs: Arc<KnownEpochs>,
    /// Of a standalone gateway: the epoch of this start. Of an elected one: the highest epoch of the group that its earlier
    /// starts knew.
    pub(super) start_epoch: Epoch,
}

impl<'c> Wiring<'c> {
    pub(super) fn new(
        config: &'c Resolved,
        overrides: Overrides,
        registry: &'c Registry,
    ) -> Result<Self, GatewayError> {
        let tags = tag_policies(config)?;
        let mut state = StateFile::open(&config.gateway.state_file)?;
        let random_number = Nonce::random().map_err(GatewayError::io("get a random number"))?.number();
        let start_epoch = match overrides.leadership {
            Leadership::Standalone => StartEpoch::Next,
            Leadership::Elected => StartEpoch::Stored,
        };
        let start = state.begin(config.gateway.node, start_epoch, unix_now(), random_number)?;
        let outputs = config
            .outputs
            .iter()
            .flat_map(|output| &output.lines)
            .map(|line| OutputOptions {
                ttl: u8::try_from(line.ttl).unwrap_or(u8::MAX),
                loopback: line.loopback,
                ..OutputOptions::new(line.address, Some(line.interface.clone()))
            })
            .map(|options| open_output(&options).map(|output| (Egress::of(&options, &output), output)))
            .collect::<Result<Vec<_>, _>>()?;
        let (egresses, outputs): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        let group = |group: GroupId| {
            let (fence, start_epoch) = match overrides.leadership {
                Leadership::Standalone => (Fence::standalone(start.epoch), start.epoch),
                Leadership::Elected => (Fence::closed(), state.group_epoch(group, config.gateway.node)),
            };
            // This gateway reports it to its peers. Under this gateway's number a restarted gateway would outrank a leader with this count.
            let known = Epoch::new(start_epoch.count(), 0);
            let epochs = Arc::new(KnownEpochs::new(known, EPOCH_JUMP_MAX));
            (group, GroupParts { fence: Arc::new(fence), epochs, start_epoch })
        };
        let groups = config.channels.iter().map(|channel| channel.group).map(group).collect();
        let link = config.election.as_ref().and_then(|election| election.link.as_ref());
        Ok(Self {
            config,
            overrides,
            registry,
            state,
            start,
            groups,
            peer_gap_requests: Arc::new(PeerGapRequests::new(
                usize::from(REQUESTS_IN_FLIGHT_MAX) * config.channels.len().max(1),
            )),
            history: Arc::new(InputHistory::new(
                config.channels.iter().map(|setup| (setup.id, setup.feed)),
                link.map_or(HISTORY_BYTES, |link| link.history_bytes),
            )),
            monitored: Vec::new(),
            takeover_shared: BTreeMap::new(),
            outputs: Outputs::new(outputs),
            // Four entries per channel are enough: a channel seldom begins a session, and the maintenance thread reads
            // the queue every few milliseconds.
            sessions: Arc::new(ArrayQueue::new(4 * config.channels.len().max(1))),
            donors: Donors::of(
                config,
                LinkIdentity { node: config.gateway.node, incarnation: start.incarnation },
                overrides.copy_peer_state,
            ),
            logs: Vec::new(),
            watched: InterfaceDependents {
                memberships: Vec::new(),
                egresses: egresses.into_iter().flatten().collect(),
            },
            drops: SocketDrops::default(),
            stages: Vec::new(),
            metrics: Vec::new(),
            served: Vec::new(),
            tags,
        })
    }

    pub(super) fn this_start(&self) -> Start {
        self.start
    }

    pub(super) fn groups(&self) -> &BTreeMap<GroupId, GroupParts> {
        &self.groups
    }

    pub(super) fn peer_gap_requests(&self) -> &Arc<PeerGapRequests> {
        &self.peer_gap_requests
    }

    pub(super) fn history(&self) -> &Arc<InputHistory> {
        &self.history
    }

    pub(super) fn takeover_shared(&self) -> &BTreeMap<ChannelId, Arc<TakeoverShared>> {
        &self.takeover_shared
    }

    /// Starts one pool with its channels; `None` if it has no channels. `progress_counters`: where its threads show
    /// their progress.
    pub(super) fn start_pool(
        &mut self,
        number: usize,
        pool: &PoolConfig,
        progress: &[ProgressCounter],
    ) -> Result<Option<PoolChannels>, GatewayError> {
        let setups: Vec<_> = self.config.channels.iter().filter(|channel| channel.pool == number).collect();
        if setups.is_empty() {
            return Ok(None);
        }
        // The first touch of books, windows and log segments decides on their memory node, so it has to be on a core of the
        // pool. No thread starts here, and none of this pool runs yet. A core that is not there is reported by its thread.
        let on_pool_cores = match &pool.threads {
            Threads::Pinned(cores) => TemporaryAffinity::to(cores).ok(),
            Threads::Unpinned(_) => None,
        };
        let mut pipelines = Vec::with_capacity(setups.len());
        for (index, setup) in setups.iter().enumerate() {
            let index = ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX));
            pipelines.push(self.pipeline(index, setup)?);
        }
        drop(on_pool_cores);
        let waiting = if pool.wait == WaitPolicy::Spin { LeaderWait::Spinning } else { LeaderWait::Blocking };
        let waiting_threads = pool.dispatch.waiting_threads(pool.threads.count());
        let backend = backend_choice::choose_backend(pool.io.into(), waiting_threads, waiting)?;
        let running = self.start_on(backend, pool, pipelines, progress)?;
        let channels = setups.iter().map(|setup| (setup.id, setup.name.clone())).collect();
        Ok(Some(PoolChannels { name: pool.name.clone(), pool: running, channels }))
    }

    /// Fence and epochs of the channel's group.
    fn group_of(&self, setup: &ChannelSetup) -> GroupParts {
        self.groups.get(&setup.group).cloned().expect("every channel's group was made at the start")
    }

    /// Which tags packets of the channel's group must have. The gateway tags its own with the first key.
    fn tags_of(&self, setup: &ChannelSetup) -> TagPolicy {
        self.tags.get(&setup.group).cloned().unwrap_or_default()
    }

    fn start_on(
        &mut self,
        backend: Backend,
        pool: &PoolConfig,
        pipelines: Vec<ChannelPipeline>,
        progress: &[ProgressCounter],
    ) -> Result<Arc<dyn ChannelPool>, GatewayError> {
        let digits = self.config.latency.significant_digits;
        let channels: Vec<_> = pipelines.iter().map(|pipeline| pipeline.channel().config().id).collect();
        let mut recorders = Vec::new();
        for thread in 0..pool.threads.count() {
            let (recorder, collector) = stage_recorder_pair(channels.len(), digits);
            let thread = pool.thread_name(thread);
            self.stages.push(ThreadStageCollector { thread, channels: channels.clone(), collector });
            recorders.push(Some(recorder));
        }
        let sockets: Vec<(Handle, Arc<Socket>)> = pipelines
            .iter()
            .enumerate()
            .flat_map(|(index, pipeline)| {
                let channel = ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX));
                pipeline.sockets().map(move |(line, socket)| (Handle { channel, line }, Arc::clone(socket.socket())))
            })
            .collect();

        let outputs = Arc::clone(&self.outputs);
        let quota_packets = pool.quota_packets;
        let recorders = Mutex::new(recorders);
        let local = move |thread: usize| {
            let recorder = recorders
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_mut(thread)
                .and_then(Option::take)
                .expect("each thread of a pool asks once for its own recorder");
            let batch = ReceiveBatch::new(quota_packets, DATAGRAM_BYTES_MAX);
            PipelineLocal::new(batch, SendBuffers::new(Arc::clone(&outputs)), recorder)
        };
        let mut dispatch = DispatchConfig { datagram_bytes_max: DATAGRAM_BYTES_MAX, ..pool.dispatch_config() };
        for (thread, counter) in dispatch.threads.iter_mut().zip(progress) {
            thread.progress = Some(*counter);
        }
        let running = channel_pool::start(pool.dispatch, backend, &dispatch, pipelines, Box::new(local))
            .map_err(|source| GatewayError::Pool { pool: pool.name.clone(), source })?;
        for (handle, socket) in sockets {
            running.add(socket.as_fd(), handle).map_err(GatewayError::io("register a line's socket"))?;
            self.drops.add(handle, socket);
        }
        Ok(running)
    }

    fn pipeline(&mut self, index: ChannelIndex, setup: &ChannelSetup) -> Result<ChannelPipeline, GatewayError> {
        let output = self.config.outputs.iter().find(|output| output.groups.contains(&setup.group));
        let mut config = setup.channel_config();
        config.resume = self.state.session(setup.id);
        config.date = self.overrides.date.or(config.date);
        config.ts_recv = self.overrides.ts_recv;
        if self.overrides.leadership == Leadership::Elected {
            let without_server = RecoveryConfig { attempts_max: 0, ..RecoveryConfig::default() };
            let recovery = config.arbiter.recovery.get_or_insert(without_server);
            recovery.peer_attempts_max = PEER_ATTEMPTS_MAX;
        }
        // The seed is random, so that no outside party can choose order ids that collide.
        config.books.order_hash_seed = RandomState::new().hash_one(setup.id.0);
        let joining = joining(config.clone());
        let mut replay = VenueReplay::new(setup, self.session_to_replay(setup.id));
        let mut replays_whole_session = self.overrides.beginning == StartMode::WholeSession;
        let can_replay_input = &mut || replays_whole_session || replay.is_available();
        let copied = self.donors.channel(self.config, setup, &joining, can_replay_input);
        // Without a reachable peer the session cannot be replayed: the peer may have died during the copy.
        replays_whole_session &= !self.donors.are_all_unreachable();
        if self.overrides.leadership == Leadership::Elected && replays_whole_session {
            config = joining;
        }

        let takeover_shared = Arc::new(TakeoverShared::default());
        self.takeover_shared.insert(setup.id, Arc::clone(&takeover_shared));
        let counters = self.registry.register(&setup.name);
        let gauges = ChannelGauges {
            state: counters.reader(PipelineCounter::state),
            output_overruns: counters.reader(PipelineCounter::output_overruns),
            log_entries_missing: counters.reader(PipelineCounter::log_entries_missing),
        };
        let start_position = copied.as_ref().and_then(copied_position);
        let OpenedLog { sink, directory: log_directory, resumed } =
            self.open_log(setup, output, &takeover_shared, gauges, start_position, replays_whole_session)?;
        config.log_position = resumed.map(|shutdown| (shutdown.session, shutdown.next));
        let is_mid_session = resumed.is_some_and(|shutdown| !shutdown.has_ended && shutdown.next > Sequence(1));
        if copied.is_none() && !replays_whole_session && is_mid_session && replay.is_available() {
            tracing::info!(channel = setup.name, "replaying the session from the venue's server to rebuild the books");
            config = replay_config(config);
        } else if copied.is_none() && !replays_whole_session && is_mid_session {
            tracing::warn!(channel = setup.name, "starting in mid-session from the local log only: books are suspect");
        }
        let of_group = self.config.channels.iter().filter(|other| other.group == setup.group).count() as u64;
        let publisher = PublisherConfig {
            group: setup.group,
            channel: setup.id,
            outputs: self.output_indices(output),
            heartbeat_ns: output.map_or(HEARTBEAT_NS, |output| output.heartbeat_ns),
            catch_up_packets_per_s: (CATCH_UP_PACKETS_PER_S / of_group.max(1)).max(1),
            send_ns_max: self.config.election.as_ref().map_or(SEND_NS_MAX, |election| election.timing.send_ns_max),
            log_directory,
            tag_key: self.tags_of(setup).keys.into_iter().next(),
        };
        let publisher = Publisher::new(publisher, &sink, takeover_shared);
        let lines: Vec<Line> = setup.lines.iter().map(|line| line.line).collect();
        let (metrics, collector) = channel_recorder_pair(&lines);
        self.metrics.push(ChannelMetricsCollector { channel: setup.id, collector });
        Ok(ChannelPipeline::new(PipelineParts {
            index,
            channel: copied.unwrap_or_else(|| Channel::new(config)),
            lines: self.open_lines(setup)?,
            recovery: self.open_recovery(setup)?,
            sink,
            publisher,
            fence: self.group_of(setup).fence,
            peer_gap_requests: Arc::clone(&self.peer_gap_requests),
            counters,
            drop_counters: self.registry.register(&setup.name),
            sessions: Arc::clone(&self.sessions),
            metrics,
        }))
    }

    fn open_log(
        &mut self,
        setup: &ChannelSetup,
        output: Option<&OutputConfig>,
        takeover_shared: &Arc<TakeoverShared>,
        gauges: ChannelGauges,
        start_position: Option<ShutdownPosition>,
        replays_whole_session: bool,
    ) -> Result<OpenedLog, GatewayError> {
        let gateway = &self.config.gateway;
        let directory = log_directory(self.config, setup.id);
        if replays_whole_session && start_position.is_none() && directory.exists() {
            let act = format!("remove the log of channel {} before a full replay", setup.name);
            std::fs::remove_dir_all(&directory).map_err(GatewayError::io(act))?;
        }
        let mut options = LogOptions::new(&directory, setup.id.0);
        options.segment_bytes = usize::try_from(gateway.segment_bytes).unwrap_or(usize::MAX);
        let frame_bytes_max =
            output.map_or(PACKET_BYTES_MAX - PACKET_HEADER_BYTES - TAG_BYTES, OutputConfig::frame_bytes_max);
        options.payload_bytes_max = frame_bytes_max;
        options.retention = Retention {
            bytes_max: gateway.retention_bytes,
            age_ns_max: gateway.retention_ns,
            protected_bytes_max: 2 * gateway.retention_bytes,
        };
        let opened = mdgw_publog::open(options, unix_now().0)
            .map_err(|source| GatewayError::Log { channel: setup.name.clone(), source })?;
        tracing::info!(channel = setup.name, recovered = ?opened.recovered, "publication log");
        let GroupParts { fence, epochs, .. } = self.group_of(setup);
        let LogRecovery { last, last_flags, damaged_segments, removed_files, .. } = opened.recovered;
        if damaged_segments + removed_files > 0 {
            tracing::warn!(
                channel = setup.name,
                damaged_segments,
                removed_files,
                "the publication log was damaged, as after a power loss: each damaged segment ends before its first damaged entry, \
                 and files without a whole header were removed. Receivers cannot request what is missing from this gateway"
            );
        }
        let logged = last.and_then(|(session, next)| Some((Session::from_bytes(session)?, Sequence(next))));
        self.monitored.push(MonitoredChannel {
            group: setup.group,
            channel: setup.id,
            log_directory: directory.clone(),
            logged_through: start_position
                .map(|start_position| (start_position.session, start_position.next))
                .or(logged)
                .map(|(session, next)| StreamPosition::at(session, next)),
            retention_hold: opened.maintenance.retention_hold(),
            epochs: Arc::clone(&epochs),
            fence: Arc::clone(&fence),
            takeover: Arc::clone(takeover_shared),
            gauges,
            tags: self.tags_of(setup),
        });
        self.logs.push(MaintainedLog::new(opened.maintenance, self.registry.register(&setup.name)));
        self.served.push(ServedChannel {
            group: setup.group,
            channel: setup.id,
            log_directory: directory.clone(),
            frame_bytes_max,
            tag_key: self.tags_of(setup).keys.into_iter().next(),
            fence,
            epochs,
        });
        let [flags, _] = last_flags.to_le_bytes();
        let has_ended = PacketFlags(flags).contains(PacketFlags::END_OF_SESSION);
        let from_log = logged.map(|(session, next)| ShutdownPosition { session, next, has_ended });
        // The end of the log and the stored position are both used if they belong to the present session. The log may
        // be behind: it may have been deleted, or lack entries that were kept in private memory.
        let from_log = from_log.filter(|shutdown| self.is_current(setup.id, shutdown.session));
        let shutdown_position = self.state.shutdown_position(setup.id).filter(|_| !replays_whole_session);
        let resumed = from_log.into_iter().chain(shutdown_position).max_by_key(|shutdown| shutdown.next);
        let resumed = start_position.or(resumed);
        let mut sink = LogSink::new(opened.writer);
        if let Some(ShutdownPosition { session, next, has_ended }) = resumed {
            sink.resume(session, next, has_ended);
        }
        Ok(OpenedLog { sink, directory, resumed })
    }

    /// Whether the session in which the log ends is still the newest that the state file knows.
    fn is_current(&self, channel: ChannelId, session: Session) -> bool {
        self.state.session(channel).is_none_or(|known| known.session == session)
    }

    /// The session whose replay can rebuild the channel's books if no peer supplies them; `None` if no replay is
    /// wanted.
    fn session_to_replay(&self, channel: ChannelId) -> Option<KnownSession> {
        let Overrides { leadership, copy_peer_state, .. } = self.overrides;
        let is_wanted = leadership == Leadership::Elected && copy_peer_state;
        self.state.session(channel).filter(|known| is_wanted && known.has_messages)
    }

    /// Indices of the output's sockets, which are numbered in the order of the configuration.
    fn output_indices(&self, output: Option<&OutputConfig>) -> Vec<OutputIndex> {
        let Some(output) = output else { return Vec::new() };
        let before: usize = self
            .config
            .outputs
            .iter()
            .take_while(|candidate| !std::ptr::eq(*candidate, output))
            .map(|output| output.lines.len())
            .sum();
        (before..before + output.lines.len()).filter_map(|index| u16::try_from(index).ok()).map(OutputIndex).collect()
    }

    fn open_lines(&mut self, setup: &ChannelSetup) -> Result<Vec<LineSocket>, GatewayError> {
        let mut lines = Vec::with_capacity(setup.lines.len());
        for line in &setup.lines {
            let mut options = ReceiveOptions::new(line.group, Some(line.interface.clone()));
            options.sources.clone_from(&line.sources);
            options.receive_buffer_bytes = line.receive_buffer_bytes;
            options.busy_poll_us = line.busy_poll_us;
            options.stamps = line.stamps;
            if line.stamps == Stamps::Hardware {
                enable_hardware_stamps(&line.interface);
            }
            let socket = open_receive(&options)?;
            self.watched.memberships.extend(socket.membership());
            lines.push(LineSocket { line: line.line, socket, filter: SourceFilter::new(&line.sources) });
        }
        Ok(lines)
    }

    fn open_recovery(&mut self, setup: &ChannelSetup) -> Result<Option<RecoverySocket>, GatewayError> {
        let Some(recovery) = &setup.recovery else { return Ok(None) };
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let socket = open_receive(&ReceiveOptions::new(any, None))?;
        Ok(Some(RecoverySocket { socket, server: recovery.server }))
    }

    /// Starts the standby, which receives the output of the peers; `None` for a standalone gateway.
    pub(super) fn start_standby(&mut self) -> Result<Option<Standby>, GatewayError> {
        let channels = std::mem::take(&mut self.monitored);
        if self.overrides.leadership == Leadership::Standalone {
            return Ok(None);
        }
        let lines = self.config.outputs.iter().flat_map(|output| (0..).map(Line).zip(&output.lines));
        let outputs = lines
            .map(|(line, output)| MonitoredOutput {
                line,
                address: output.address,
                interface: output.interface.clone(),
                sources: output.sources.clone(),
            })
            .collect();
        let node = self.config.gateway.node;
        let inputs = self.config.channels.iter().flat_map(|setup| {
            setup.lines.iter().map(|line| MonitoredInput {
                channel: setup.id,
                address: line.group,
                interface: line.interface.clone(),
                sources: line.sources.clone(),
            })
        });
        let standby = Standby::start(StandbyConfig {
            node,
            outputs,
            channels,
            inputs: inputs.collect(),
            history: Arc::clone(&self.history),
            hole_ns_max: HOLE_NS_MAX,
        })?;
        self.watched.memberships.extend_from_slice(standby.memberships());
        Ok(Some(standby))
    }

    /// Starts the cold threads beside the pools.
    pub(super) fn start_cold_threads(self) -> Result<(LatencyThread, ColdThreads), GatewayError> {
        let mut lines = self.config.channels.iter().flat_map(|channel| &channel.lines);
        let stamps = if lines.any(|line| line.stamps == Stamps::Hardware) {
            "NIC where available, else kernel software"
        } else {
            "kernel software"
        };
        let disclosure = Disclosure::of_this_host(stamps).with_settings(self.config.settings());
        let latency = LatencyThread::start(&self.config.latency, self.stages, self.metrics, disclosure)
            .map_err(GatewayError::io("write latency logs"))?;
        let cold = ColdThreads::start(ColdParts {
            config: self.config,
            state: self.state,
            sessions: self.sessions,
            logs: self.logs,
            watched: self.watched,
            drops: self.drops,
            served: self.served,
            epochs: self.groups.iter().map(|(group, parts)| (*group, Arc::clone(&parts.epochs))).collect(),
        })?;
        Ok((latency, cold))
    }
}

/// Configuration of a channel that gets the earlier messages of the session from the peer.
fn joining(config: ChannelConfig) -> ChannelConfig {
    let mut config = replay_config(config);
    if let Some(catch_up) = &mut config.arbiter.catch_up {
        // More attempts than for a gap, since the link to the peer has to come up first.
        catch_up.peer_attempts_max = JOIN_PEER_ATTEMPTS_MAX;
    }
    config
}

/// Configuration of a channel for which the venue replays the session from its first message.
fn replay_config(mut config: ChannelConfig) -> ChannelConfig {
    // The limits for gaps do not apply, since a whole day is missing.
    let (gap_messages_max, session_messages_max) = (u64::MAX, u64::MAX);
    config.arbiter.catch_up =
        config.arbiter.recovery.map(|recovery| RecoveryConfig { gap_messages_max, session_messages_max, ..recovery });
    config.late_start = LateStart::WholeSession;
    config
}

/// Position at which a channel continues that was copied from a peer.
fn copied_position(channel: &Channel) -> Option<ShutdownPosition> {
    let (session, next) = channel.position()?;
    Some(ShutdownPosition { session, next, has_ended: channel.state() == ChannelState::Ended })
}

/// Directory of a channel's publication log.
pub(super) fn log_directory(config: &Resolved, channel: ChannelId) -> PathBuf {
    config.gateway.log_directory(channel)
}

/// A channel's publication log, ready to be written.
struct OpenedLog {
    sink: LogSink,
    directory: PathBuf,
    /// Position of the channel at the end of the gateway's last run.
    resumed: Option<ShutdownPosition>,
}

/// Enables NIC timestamps. A failure is only logged, since the gateway can use kernel timestamps. The summary names the
/// source of the timestamps.
fn enable_hardware_stamps(interface: &Interface) {
    let enabled = match interface.lookup() {
        Ok(now) => hardware_stamps::enable(&now.name).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = enabled {
        tracing::warn!(%interface, error, "NIC timestamps not available");
    }
}

/// Size of a receive buffer, above the payload of any 1,500-byte Ethernet frame.
const DATAGRAM_BYTES_MAX: usize = 2_048;
/// Heartbeat interval of a channel without an output, ns. Its heartbeats are not sent anywhere.
const HEARTBEAT_NS: u64 = 1_000_000_000;
/// An epoch that is not authenticated is accepted if its count is at most this far above the authenticated epochs.
const EPOCH_JUMP_MAX: u64 = 1_000;
/// Size of the input history of each channel, bytes, for a gateway without a configured link.
const HISTORY_BYTES: usize = 32 << 20;
/// Requests to the peer for the same gap: the second covers the loss of the first.
const PEER_ATTEMPTS_MAX: u16 = 2;
/// Requests to the peer by a joining gateway: three seconds of attempts, in which the link can come up. After the peer
/// has reported the end of its input, the gateway does not wait for it.
const JOIN_PEER_ATTEMPTS_MAX: u16 = 300;
/// How long a packet that the standby has missed holds the position of its channel, ns: ten request timeouts of a
/// receiver.
const HOLE_NS_MAX: u64 = 500_000_000;
/// Least rate of a takeover's catch-up for all channels of a group together: see the publisher.
const CATCH_UP_PACKETS_PER_S: u64 = 20_000;
/// Longest send of a standalone gateway, ns: half of the default margin.
const SEND_NS_MAX: u64 = 10_000_000;

// The recovery line counts as one of a channel's lines.
const _: () = assert!((Line::RECOVERY.0 as usize) < Line::COUNT_MAX);
