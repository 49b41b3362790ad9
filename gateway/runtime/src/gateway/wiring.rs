//! Builds the parts of a gateway from its configuration: creates what each channel needs and passes it to the channel's
//! pool.

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
};

use crossbeam_queue::ArrayQueue;
use mdgw_election::auth::Nonce;
use mdgw_engine::{
    channel_pool::{self, ChannelPool},
    dispatch::{DispatchConfig, WaitPolicy},
    handle_set::backend_choice::{self, Backend, LeaderWait},
    pipeline::{PeerGapRequests, PipelineLocal},
    publish::TakeoverShared,
};
use mdgw_feeds::{
    arbiter::REQUESTS_IN_FLIGHT_MAX,
    identity::{ChannelId, GroupId, Line},
};
use mdgw_pair::standby::{InputHistory, KnownEpochs, MonitoredChannel, MonitoredOutput, Standby, StandbyConfig};
use mdgw_status::disclosure::Disclosure;
use mdgw_sys::{
    affinity::TemporaryAffinity,
    batch::{Output, Outputs, ReceiveBatch, SendBuffers},
    clock::unix_now,
    drops::SocketDrops,
    fence::Fence,
    handle::{ChannelIndex, Handle},
    progress::ProgressCounter,
    sockets::{Egress, InterfaceDependents, OutputOptions, SocketError, Stamps, open_output},
};
use mdgw_telemetry::{counters::Registry, stages::stage_recorder_pair};
use socket2::Socket;

use super::{
    GatewayError, Leadership, Overrides,
    channel_builder::{BuiltChannel, ChannelBuilder, ChannelContext, GroupParts, donors, monitored_inputs},
    cold::{ColdParts, ColdThreads},
    log_maintenance::MaintainedLog,
    output_slots::OutputSlots,
    pool_channels::{PoolChannelList, PoolChannels},
    state_copy::Donors,
};
use crate::{
    config::{
        Resolved,
        resolved::{OutputLine, PoolConfig, Threads},
        tag_keys::tag_policies,
    },
    latency_thread::{ChannelMetricsCollector, LatencyThread, ThreadStageCollector},
    published_positions::PublishedPositions,
    retransmit::{ServedChannel, snapshot_group::SnapshotGroup},
    state_file::{StartEpoch, StateFile},
};

/// Creates the parts and collects what the cold threads will need of them.
#[derive(Debug)]
pub(super) struct Wiring<'c> {
    config: &'c Resolved,
    context: ChannelContext,
    output_slots: OutputSlots,
    state: StateFile,
    donors: Donors,
    monitored: Vec<MonitoredChannel>,
    takeover_shared: BTreeMap<ChannelId, Arc<TakeoverShared>>,
    logs: Vec<MaintainedLog>,
    watched: InterfaceDependents,
    drops: SocketDrops,
    stages: Vec<ThreadStageCollector>,
    metrics: Vec<ChannelMetricsCollector>,
    served: Vec<ServedChannel>,
    snapshot_groups: Vec<SnapshotGroup>,
}

impl<'c> Wiring<'c> {
    pub(super) fn new(
        config: &'c Resolved,
        overrides: Overrides,
        registry: &Arc<Registry>,
    ) -> Result<Self, GatewayError> {
        let tags = tag_policies(config)?;
        let mut state = StateFile::open(&config.gateway.state_file)?;
        let random_number = Nonce::random().map_err(GatewayError::io("get a random number"))?.number();
        let start_epoch = match overrides.leadership {
            Leadership::Standalone => StartEpoch::Next,
            Leadership::Elected => StartEpoch::Stored,
        };
        // Before the start is recorded: it tells a new state file.
        let published = (overrides.leadership == Leadership::Elected)
            .then(|| PublishedPositions::open(&config.gateway.state_file, &state));
        let start = state.begin(config.gateway.node, start_epoch, unix_now(), random_number)?;
        let output_slots = OutputSlots::of(config);
        let mut egresses = Vec::new();
        let mut outputs: Vec<Option<Output>> = (0..output_slots.slot_count()).map(|_| None).collect();
        for (index, line) in output_slots.lines() {
            let (egress, output) = open_output_line(line)?;
            egresses.extend(egress);
            outputs[usize::from(index.0)] = Some(output);
        }
        let mut snapshot_groups = Vec::new();
        for output in &config.outputs {
            let Some(snapshots) = &output.snapshots else { continue };
            let (egress, socket) = open_output_line(&snapshots.line)?;
            egresses.extend(egress);
            snapshot_groups.push(SnapshotGroup::new(snapshots, output.groups.clone(), socket));
        }
        let group = |group: GroupId| {
            let (fence, start_epoch) = match overrides.leadership {
                Leadership::Standalone => (Fence::standalone(start.epoch), start.epoch),
                Leadership::Elected => (Fence::closed(), state.group_epoch(group)),
            };
            let epochs = Arc::new(KnownEpochs::new(start_epoch, EPOCH_JUMP_MAX));
            if let Some(published) = &published {
                epochs.record_held(published.held_epoch(group));
            }
            (group, GroupParts { fence: Arc::new(fence), epochs, start_epoch })
        };
        let groups = config.channels.iter().map(|channel| channel.group).map(group).collect();
        let link = config.election.as_ref().and_then(|election| election.link.as_ref());
        let channels_max = config.channels.len() + config.pools.iter().map(|pool| pool.spare_channels).sum::<usize>();
        let context = ChannelContext {
            overrides,
            start,
            registry: Arc::clone(registry),
            groups,
            tags,
            outputs: Outputs::with_vacant(outputs),
            // Four entries per channel are enough: a channel seldom begins a session, and the maintenance thread reads
            // the queue every few milliseconds.
            sessions: Arc::new(ArrayQueue::new(4 * channels_max.max(1))),
            peer_gap_requests: Arc::new(PeerGapRequests::new(
                usize::from(REQUESTS_IN_FLIGHT_MAX) * channels_max.max(1),
            )),
            published,
            history: Arc::new(InputHistory::new(
                config.channels.iter().map(|setup| (setup.id, setup.feed)),
                link.map_or(HISTORY_BYTES, |link| link.history_bytes),
            )),
        };
        Ok(Self {
            config,
            output_slots,
            state,
            donors: donors(config, &context, true),
            context,
            monitored: Vec::new(),
            takeover_shared: BTreeMap::new(),
            logs: Vec::new(),
            watched: InterfaceDependents { memberships: Vec::new(), egresses },
            drops: SocketDrops::default(),
            stages: Vec::new(),
            metrics: Vec::new(),
            served: Vec::new(),
            snapshot_groups,
        })
    }

    pub(super) fn context(&self) -> &ChannelContext {
        &self.context
    }

    pub(super) fn output_slots(&self) -> &OutputSlots {
        &self.output_slots
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
        let mut built = Vec::with_capacity(setups.len());
        for (index, setup) in setups.iter().enumerate() {
            let stored = self.state.stored(setup.id);
            let mut builder = ChannelBuilder {
                config: self.config,
                context: &self.context,
                output_slots: &self.output_slots,
                donors: &mut self.donors,
            };
            built.push(builder.build(index, setup, stored)?);
        }
        drop(on_pool_cores);
        let waiting = if pool.wait == WaitPolicy::Spin { LeaderWait::Spinning } else { LeaderWait::Blocking };
        let waiting_threads = pool.dispatch.waiting_threads(pool.threads.count());
        let backend = backend_choice::choose_backend(pool.io.into(), waiting_threads, waiting)?;
        let sockets: Vec<_> = setups.iter().zip(&built).map(|(setup, built)| (setup.id, built.sockets())).collect();
        let running = self.start_on(backend, pool, built, progress)?;
        for (id, sockets) in &sockets {
            for (handle, socket) in sockets {
                running.add(socket.as_fd(), *handle).map_err(GatewayError::io("register a line's socket"))?;
                self.drops.add(named_handle(*id, handle.line), Arc::clone(socket));
            }
        }
        let channels = setups.iter().map(|setup| (setup.id, setup.name.clone()));
        let spare = (setups.len()..setups.len() + pool.spare_channels).collect();
        Ok(Some(PoolChannels {
            name: pool.name.clone(),
            pool: running,
            channels: PoolChannelList::of(channels),
            sockets: sockets.into_iter().map(|(id, sockets)| (id, without_handles(sockets))).collect(),
            vacant: spare,
            leaving: Vec::new(),
        }))
    }

    fn start_on(
        &mut self,
        backend: Backend,
        pool: &PoolConfig,
        channels: Vec<BuiltChannel>,
        progress: &[ProgressCounter],
    ) -> Result<Arc<dyn ChannelPool>, GatewayError> {
        let digits = self.config.latency.significant_digits;
        let ids: Vec<_> = channels.iter().map(|channel| channel.monitored.channel).collect();
        let mut recorders = Vec::new();
        for thread in 0..pool.threads.count() {
            let (recorder, collector) = stage_recorder_pair(ids.len() + pool.spare_channels, digits);
            let thread = pool.thread_name(thread);
            self.stages.push(ThreadStageCollector::new(pool.name.clone(), thread, &ids, collector));
            recorders.push(Some(recorder));
        }
        let mut pipelines = Vec::with_capacity(channels.len());
        for built in channels {
            let BuiltChannel { pipeline, memberships, monitored, takeover_shared, log, metrics, served } = built;
            self.watched.memberships.extend(memberships);
            self.takeover_shared.insert(monitored.channel, takeover_shared);
            self.monitored.push(monitored);
            self.logs.push(log);
            self.metrics.push(metrics);
            self.served.push(served);
            pipelines.push(pipeline);
        }

        let outputs = Arc::clone(&self.context.outputs);
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
        channel_pool::start(pool.dispatch, backend, &dispatch, pipelines, Box::new(local))
            .map_err(|source| GatewayError::Pool { pool: pool.name.clone(), source })
    }

    /// Starts the standby, which receives the output of the peers; `None` for a standalone gateway.
    pub(super) fn start_standby(&mut self) -> Result<Option<Standby>, GatewayError> {
        let channels = std::mem::take(&mut self.monitored);
        if self.context.overrides.leadership == Leadership::Standalone {
            return Ok(None);
        }
        let lines = self.config.outputs.iter().flat_map(|output| (0..).map(Line).zip(&output.lines));
        let outputs = lines.map(|(line, output)| monitored_output(line, output)).collect();
        let node = self.config.gateway.node;
        let inputs = self.config.channels.iter().flat_map(monitored_inputs);
        let standby = Standby::start(StandbyConfig {
            node,
            outputs,
            channels,
            inputs: inputs.collect(),
            history: Arc::clone(&self.context.history),
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
            sessions: self.context.sessions,
            logs: self.logs,
            watched: self.watched,
            drops: self.drops,
            served: self.served,
            snapshot_groups: self.snapshot_groups,
            epochs: self.context.groups.iter().map(|(group, parts)| (*group, Arc::clone(&parts.epochs))).collect(),
            registry: &self.context.registry,
        })?;
        Ok((latency, cold))
    }
}

/// Opens the socket of an output line or of a snapshot group.
pub(super) fn open_output_line(line: &OutputLine) -> Result<(Option<Egress>, Output), SocketError> {
    let options = OutputOptions {
        ttl: u8::try_from(line.ttl).unwrap_or(u8::MAX),
        loopback: line.loopback,
        ..OutputOptions::new(line.address, Some(line.interface.clone()))
    };
    let output = open_output(&options)?;
    Ok((Egress::of(&options, &output), output))
}

/// An output line as the standby listens to it.
pub(super) fn monitored_output(line: Line, output: &OutputLine) -> MonitoredOutput {
    MonitoredOutput {
        line,
        address: output.address,
        interface: output.interface.clone(),
        sources: output.sources.clone(),
    }
}

/// The handle under which drops of a line's socket are logged: with the channel's number instead of its slot's.
pub(super) fn named_handle(channel: ChannelId, line: Line) -> Handle {
    Handle { channel: ChannelIndex(channel.0.into()), line }
}

/// The same sockets without their handles.
pub(super) fn without_handles(sockets: Vec<(Handle, Arc<Socket>)>) -> Vec<Arc<Socket>> {
    sockets.into_iter().map(|(_, socket)| socket).collect()
}

/// Size of a receive buffer, above the payload of any 1,500-byte Ethernet frame.
const DATAGRAM_BYTES_MAX: usize = 2_048;
/// An epoch that is not authenticated is accepted if its count is at most this far above the authenticated epochs.
const EPOCH_JUMP_MAX: u64 = 1_000;
/// Size of the input history of each channel, bytes, for a gateway without a configured link.
const HISTORY_BYTES: usize = 32 << 20;
/// How long a packet that the standby has missed holds the position of its channel, ns: ten request timeouts of a
/// receiver.
const HOLE_NS_MAX: u64 = 500_000_000;

// The recovery line counts as one of a channel's lines.
const _: () = assert!((Line::RECOVERY.0 as usize) < Line::COUNT_MAX);
