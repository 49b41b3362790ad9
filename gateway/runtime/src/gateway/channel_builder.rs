//! Builds one channel: its books, log, sockets and publisher, and what the cold threads need of it.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;
use mdgw_engine::{
    pipeline::{ChannelPipeline, LineSocket, PeerGapRequests, PipelineCounter, PipelineParts, RecoverySocket},
    publish::{Publisher, PublisherConfig, TakeoverShared},
};
use mdgw_feeds::{
    channel::{Channel, KnownSession},
    identity::{ChannelId, Epoch, GroupId, Line},
    published::{position::StreamPosition, tag::TagPolicy},
};
use mdgw_log_books::state::InitialState;
use mdgw_pair::{
    pair_link::message::LinkIdentity,
    standby::{ChannelGauges, InputHistory, KnownEpochs, MonitoredChannel, MonitoredInput},
};
use mdgw_sys::{
    batch::Outputs,
    fence::Fence,
    handle::{ChannelIndex, Handle},
    hardware_stamps,
    sockets::{Interface, Membership, ReceiveOptions, SourceFilter, Stamps, open_receive},
};
use mdgw_telemetry::{channel_metrics::channel_recorder_pair, counters::Registry};
use socket2::Socket;

use super::{
    GatewayError, Overrides,
    beginning::{Beginning, ChannelStart},
    channel_log::ChannelLog,
    log_maintenance::MaintainedLog,
    output_slots::OutputSlots,
    state_copy::Donors,
};
use crate::{
    config::{Resolved, resolved::ChannelSetup},
    latency_thread::ChannelMetricsCollector,
    published_positions::PublishedPositions,
    retransmit::ServedChannel,
    state_file::{Start, StoredChannel},
};

/// What the construction of every channel needs, at the start and in a reload.
#[derive(Clone, Debug)]
pub(super) struct ChannelContext {
    pub(super) overrides: Overrides,
    pub(super) start: Start,
    pub(super) registry: Arc<Registry>,
    pub(super) groups: BTreeMap<GroupId, GroupParts>,
    /// Which tags packets of each published group must have.
    pub(super) tags: BTreeMap<GroupId, TagPolicy>,
    pub(super) outputs: Arc<Outputs>,
    pub(super) sessions: Arc<ArrayQueue<(ChannelId, KnownSession)>>,
    pub(super) peer_gap_requests: Arc<PeerGapRequests>,
    pub(super) history: Arc<InputHistory>,
    /// How far each channel was published at least, as stored before. Not of a standalone gateway, nor for a channel that a reload adds.
    pub(super) published: Option<PublishedPositions>,
}

/// A channel that was built, and what other threads need of it.
#[derive(Debug)]
pub(super) struct BuiltChannel {
    pub(super) pipeline: ChannelPipeline,
    pub(super) memberships: Vec<Membership>,
    pub(super) monitored: MonitoredChannel,
    pub(super) takeover_shared: Arc<TakeoverShared>,
    pub(super) log: MaintainedLog,
    pub(super) metrics: ChannelMetricsCollector,
    pub(super) served: ServedChannel,
}

impl BuiltChannel {
    /// The sockets that its pool watches.
    pub(super) fn sockets(&self) -> Vec<(Handle, Arc<Socket>)> {
        let channel = self.pipeline.index();
        let sockets = self.pipeline.sockets();
        sockets.map(|(line, socket)| (Handle { channel, line }, Arc::clone(socket.socket()))).collect()
    }
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

/// Builds channels, one after the other.
#[derive(Debug)]
pub(super) struct ChannelBuilder<'b> {
    pub(super) config: &'b Resolved,
    pub(super) context: &'b ChannelContext,
    pub(super) output_slots: &'b OutputSlots,
    pub(super) donors: &'b mut Donors,
}

impl ChannelBuilder<'_> {
    /// Builds the channel for the slot `index` of its pool. `stored`: what the state file has of the channel.
    pub(super) fn build(
        &mut self,
        index: usize,
        setup: &ChannelSetup,
        stored: StoredChannel,
    ) -> Result<BuiltChannel, GatewayError> {
        let output = self.config.outputs.iter().find(|output| output.groups.contains(&setup.group));
        let mut start = ChannelStart {
            config: self.config,
            setup,
            output,
            overrides: self.context.overrides,
            published: self.context.published.as_ref(),
            donors: self.donors,
        };
        let Beginning { channel, copied_position, log, unpublished_from, hole } = start.beginning(stored)?;
        let takeover_shared = Arc::new(TakeoverShared::default());
        let counters = self.context.registry.register(&setup.name);
        let gauges = ChannelGauges {
            state: counters.reader(PipelineCounter::state),
            output_overruns: counters.reader(PipelineCounter::output_overruns),
            log_entries_missing: counters.reader(PipelineCounter::log_entries_missing),
            output_refused_ns: counters.reader(PipelineCounter::output_refused_ns),
        };
        let initial = copied_position
            .filter(|_| self.config.takes_snapshots_of(setup.group))
            .and_then(|_| initial_state(&channel))
            .map(Arc::new);
        let logged_through = copied_position.or(log.end).map(|end| StreamPosition::at(end.session, end.next));
        let ChannelLog { sink, maintenance, directory: log_directory, frame_bytes_max, .. } = log;
        if let Some(hole) = hole {
            takeover_shared.log_hole.get_or_init(|| hole);
        }
        let GroupParts { fence, epochs, .. } = self.group_of(setup);
        let tags = self.context.tags.get(&setup.group).cloned().unwrap_or_default();
        // This gateway tags its packets with the first key.
        let tag_key = tags.keys.first().cloned();
        let monitored = MonitoredChannel {
            group: setup.group,
            channel: setup.id,
            log_directory: log_directory.clone(),
            logged_through,
            retention_hold: maintenance.retention_hold(),
            epochs: Arc::clone(&epochs),
            fence: Arc::clone(&fence),
            takeover: Arc::clone(&takeover_shared),
            gauges,
            tags,
        };
        let served = ServedChannel {
            group: setup.group,
            channel: setup.id,
            name: setup.name.clone(),
            log_directory: log_directory.clone(),
            frame_bytes_max,
            tag_key: tag_key.clone(),
            fence: Arc::clone(&fence),
            epochs,
            books: setup.book,
            initial,
        };
        let of_group = self.config.channels.iter().filter(|other| other.group == setup.group).count() as u64;
        let publisher = PublisherConfig {
            group: setup.group,
            channel: setup.id,
            outputs: self.output_slots.indices(setup.group),
            heartbeat_ns: output.map_or(HEARTBEAT_NS, |output| output.heartbeat_ns),
            catch_up_packets_per_s: (CATCH_UP_PACKETS_PER_S / of_group.max(1)).max(1),
            send_ns_max: self.config.election.as_ref().map_or(SEND_NS_MAX, |election| election.timing.send_ns_max),
            log_directory,
            tag_key,
        };
        let publisher = Publisher::new(publisher, &sink, Arc::clone(&takeover_shared)).beginning_at(unpublished_from);
        let lines: Vec<Line> = setup.lines.iter().map(|line| line.line).collect();
        let (metrics, collector) = channel_recorder_pair(&lines);
        let lines = open_lines(setup)?;
        let memberships = lines.iter().filter_map(|line| line.socket.membership()).collect();
        let pipeline = ChannelPipeline::new(PipelineParts {
            index: ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX)),
            channel,
            lines,
            recovery: open_recovery(setup)?,
            sink,
            publisher,
            fence,
            peer_gap_requests: Arc::clone(&self.context.peer_gap_requests),
            counters,
            drop_counters: self.context.registry.register(&setup.name),
            book_fault_counters: self.context.registry.register(&setup.name),
            sessions: Arc::clone(&self.context.sessions),
            metrics,
        });
        Ok(BuiltChannel {
            pipeline,
            memberships,
            monitored,
            takeover_shared,
            log: MaintainedLog::new(setup.id, maintenance, self.context.registry.register(&setup.name)),
            metrics: ChannelMetricsCollector { channel: setup.id, collector },
            served,
        })
    }

    /// Fence and epochs of the channel's group.
    fn group_of(&self, setup: &ChannelSetup) -> GroupParts {
        self.context.groups.get(&setup.group).cloned().expect("every channel's group was made at the start")
    }
}

fn open_lines(setup: &ChannelSetup) -> Result<Vec<LineSocket>, GatewayError> {
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
        lines.push(LineSocket { line: line.line, socket, filter: SourceFilter::new(&line.sources) });
    }
    Ok(lines)
}

fn open_recovery(setup: &ChannelSetup) -> Result<Option<RecoverySocket>, GatewayError> {
    let Some(recovery) = &setup.recovery else { return Ok(None) };
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let socket = open_receive(&ReceiveOptions::new(any, None))?;
    Ok(Some(RecoverySocket { socket, server: recovery.server }))
}

/// The books of a copied channel, for snapshots: the log lacks what was published before.
fn initial_state(copied: &Channel) -> Option<InitialState> {
    let (session, next) = copied.position()?;
    let (orders, is_suspect) = (copied.resting_orders(), copied.has_missed_input());
    Some(InitialState { session: session.to_bytes(), next: next.0, orders, is_suspect })
}

/// The peers that may supply the state of a channel: none unless it `copies`.
pub(super) fn donors(config: &Resolved, context: &ChannelContext, copies: bool) -> Donors {
    let identity = LinkIdentity { node: config.gateway.node, incarnation: context.start.incarnation };
    Donors::of(config, identity, copies && context.overrides.copy_peer_state)
}

/// A channel's lines as the standby listens to them.
pub(super) fn monitored_inputs(setup: &ChannelSetup) -> impl Iterator<Item = MonitoredInput> {
    setup.lines.iter().map(|line| MonitoredInput {
        channel: setup.id,
        address: line.group,
        interface: line.interface.clone(),
        sources: line.sources.clone(),
    })
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

/// Heartbeat interval of a channel without an output, ns. Its heartbeats are not sent anywhere.
const HEARTBEAT_NS: u64 = 1_000_000_000;
/// Least rate of a takeover's catch-up for all channels of a group together: see the publisher.
const CATCH_UP_PACKETS_PER_S: u64 = 20_000;
/// Longest send of a standalone gateway, ns: half of the default margin.
const SEND_NS_MAX: u64 = 10_000_000;
