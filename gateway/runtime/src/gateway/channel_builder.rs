//! Builds one channel: its books, log, sockets and publisher, and what the cold threads need of it.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;
use mdgw_engine::{
    pipeline::{ChannelPipeline, LineSocket, PeerGapRequests, PipelineCounter, PipelineParts, RecoverySocket},
    publish::{Publisher, PublisherConfig, TakeoverShared},
};
use mdgw_feeds::{
    arbiter::RecoveryConfig,
    channel::{Channel, ChannelConfig, ChannelState, KnownSession, LateStart},
    identity::{ChannelId, Epoch, GroupId, Line, Sequence},
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
    GatewayError, Leadership, Overrides, StartMode,
    channel_log::{ChannelLog, log_error, remove_log, unpublished},
    log_maintenance::MaintainedLog,
    output_slots::OutputSlots,
    state_copy::Donors,
    venue_replay::VenueReplay,
};
use crate::{
    config::{Resolved, resolved::ChannelSetup},
    latency_thread::ChannelMetricsCollector,
    published_positions::PublishedPositions,
    retransmit::ServedChannel,
    state_file::{ResumePosition, Start, StoredChannel},
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
        mut stored: StoredChannel,
    ) -> Result<BuiltChannel, GatewayError> {
        let overrides = self.context.overrides;
        let output = self.config.outputs.iter().find(|output| output.groups.contains(&setup.group));
        let mut config = setup.channel_config();
        config.resume = stored.session;
        config.date = overrides.date.or(config.date);
        config.ts_recv = overrides.ts_recv;
        if overrides.leadership == Leadership::Elected {
            let without_server = RecoveryConfig { attempts_max: 0, ..RecoveryConfig::default() };
            let recovery = config.arbiter.recovery.get_or_insert(without_server);
            recovery.peer_attempts_max = PEER_ATTEMPTS_MAX;
        }
        // The seed is random, so that no outside party can choose order ids that collide.
        config.books.order_hash_seed = RandomState::new().hash_one(setup.id.0);
        let joining = joining(config.clone());
        let mut replay = VenueReplay::new(setup, self.session_to_replay(stored));
        let mut replays_whole_session = overrides.beginning == StartMode::WholeSession;
        let can_replay_input = &mut || replays_whole_session || replay.is_available();
        let (mut copied, donor) = self.donors.channel(self.config, setup, &joining, can_replay_input).unzip();
        // Without a reachable peer the session cannot be replayed: the peer may have died during the copy.
        replays_whole_session &= !self.donors.are_all_unreachable();
        if overrides.leadership == Leadership::Elected && replays_whole_session {
            config = joining;
        }
        if replays_whole_session && copied.is_none() {
            remove_log(self.config, setup)?;
        }
        // With a copied state the log stays, whatever was asked for.
        let positions = self.context.published.as_ref().filter(|_| copied.is_some() || !replays_whole_session);
        let mut log = ChannelLog::open(self.config, setup, output)?;
        let published = positions.and_then(|positions| positions.get(setup.id, log.end.map(|end| end.session)));
        log.end_with(published);
        let begin = log.first_unpublished(published).map_err(|source| log_error(setup, source))?;
        let mut resumed = None;
        let mut hole = None;
        if let Some((state, donor)) = copied.as_ref().and_then(copied_position).zip(donor) {
            if let Some(positions) = positions {
                let begun = ResumePosition { next: Sequence(1), ..state };
                positions.begin(setup.id, ResumePosition { has_ended: false, ..log.end.unwrap_or(begun) });
            }
            let outcome = log.copy_from_peer(self.donors, donor, setup, state, self.copied_messages_max());
            hole = outcome.hole.and_then(|hole| unpublished(hole, published));
            resumed = Some(log.position_with_copy(state));
            // A donor that runs publishes what the hole has, or has published it. A dead one never will.
            if outcome.is_peer_lost
                && hole.is_some()
                && !state.has_ended
                && let Some(instead) = self.replay_instead(setup, stored, copied.as_ref(), &log, published)
            {
                tracing::warn!(peer = %donor, channel = setup.name, "the copy of the peer's state is not used: the peer died before it had sent its log, and the venue can replay the session");
                copied = None;
                replays_whole_session = false;
                hole = outcome.hole_before_end.and_then(|hole| unpublished(hole, published));
                (stored, replay, resumed) = (instead.stored, instead.replay, Some(instead.position));
                config.resume = stored.session;
            }
        } else if !replays_whole_session {
            resumed = log.own_position(stored, published);
        }
        if let Some(position) = resumed {
            log.resume(position);
        }

        let takeover_shared = Arc::new(TakeoverShared::default());
        let counters = self.context.registry.register(&setup.name);
        let gauges = ChannelGauges {
            state: counters.reader(PipelineCounter::state),
            output_overruns: counters.reader(PipelineCounter::output_overruns),
            log_entries_missing: counters.reader(PipelineCounter::log_entries_missing),
            output_refused_ns: counters.reader(PipelineCounter::output_refused_ns),
        };
        let start_position = copied.as_ref().and_then(copied_position);
        let initial = copied
            .as_ref()
            .filter(|_| self.config.takes_snapshots_of(setup.group))
            .and_then(initial_state)
            .map(Arc::new);
        let logged_through = start_position.or(log.end).map(|end| StreamPosition::at(end.session, end.next));
        let ChannelLog { sink, maintenance, directory: log_directory, frame_bytes_max, .. } = log;
        config.log_position = resumed.map(|shutdown| (shutdown.session, shutdown.next));
        if let Some(hole) = hole {
            takeover_shared.log_hole.get_or_init(|| hole);
        }
        let has_messages = stored.session.is_some_and(|known| known.has_messages);
        let is_mid_session =
            resumed.is_some_and(|shutdown| !shutdown.has_ended && (shutdown.next > Sequence(1) || has_messages));
        if copied.is_none() && !replays_whole_session && is_mid_session && replay.is_available() {
            tracing::info!(channel = setup.name, "replaying the session from the venue's server to rebuild the books");
            config = replay_config(config);
        } else if copied.is_none() && !replays_whole_session && is_mid_session {
            tracing::warn!(channel = setup.name, "starting in mid-session from the local log only: books are suspect");
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
        let publisher = Publisher::new(publisher, &sink, Arc::clone(&takeover_shared)).beginning_at(begin);
        let lines: Vec<Line> = setup.lines.iter().map(|line| line.line).collect();
        let (metrics, collector) = channel_recorder_pair(&lines);
        let lines = open_lines(setup)?;
        let memberships = lines.iter().filter_map(|line| line.socket.membership()).collect();
        let pipeline = ChannelPipeline::new(PipelineParts {
            index: ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX)),
            channel: copied.unwrap_or_else(|| Channel::new(config)),
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

    /// How many messages are copied at most into the log of a channel.
    fn copied_messages_max(&self) -> u64 {
        (COPIED_MESSAGES_MAX / self.config.channels.len().max(1) as u64).max(COPIED_MESSAGES_MIN)
    }

    /// What the channel begins with instead of the copy of a state, behind which its log stays; `None` if the venue cannot replay the session
    /// of that state.
    fn replay_instead<'c>(
        &self,
        setup: &'c ChannelSetup,
        stored: StoredChannel,
        copied: Option<&Channel>,
        log: &ChannelLog,
        published: Option<ResumePosition>,
    ) -> Option<ReplayInstead<'c>> {
        // This gateway may never have followed that session.
        let session = copied?.known_session()?;
        let shutdown_position = stored.shutdown_position.filter(|position| position.session == session.session);
        let stored = StoredChannel { session: Some(session), shutdown_position };
        let begun = ResumePosition { session: session.session, next: Sequence(1), has_ended: false };
        let position = log.own_position(stored, Some(published.unwrap_or(begun)))?;
        let mut replay = VenueReplay::new(setup, self.session_to_replay(stored));
        replay.is_available().then_some(ReplayInstead { stored, position, replay })
    }

    /// Fence and epochs of the channel's group.
    fn group_of(&self, setup: &ChannelSetup) -> GroupParts {
        self.context.groups.get(&setup.group).cloned().expect("every channel's group was made at the start")
    }

    /// The session whose replay can rebuild the channel's books if no peer supplies them; `None` if no replay is
    /// wanted.
    fn session_to_replay(&self, stored: StoredChannel) -> Option<KnownSession> {
        let Overrides { leadership, copy_peer_state, .. } = self.context.overrides;
        let is_wanted = leadership == Leadership::Elected && copy_peer_state;
        stored.session.filter(|known| is_wanted && known.has_messages)
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
fn copied_position(channel: &Channel) -> Option<ResumePosition> {
    let (session, next) = channel.position()?;
    Some(ResumePosition { session, next, has_ended: channel.state() == ChannelState::Ended })
}

/// How a channel begins whose copied state is not used.
struct ReplayInstead<'c> {
    /// With the session of that state.
    stored: StoredChannel,
    /// Where the channel continues.
    position: ResumePosition,
    replay: VenueReplay<'c>,
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
/// Requests to the peer for the same gap: the second covers the loss of the first.
const PEER_ATTEMPTS_MAX: u16 = 2;
/// Requests to the peer by a joining gateway: three seconds of attempts, in which the link can come up. After the peer
/// has reported the end of its input, the gateway does not wait for it.
const JOIN_PEER_ATTEMPTS_MAX: u16 = 300;
/// How many of the last messages before a copied state are copied into the log, for all channels together: some 150 MB. Where the own log
/// lacks more, they stay missing.
const COPIED_MESSAGES_MAX: u64 = 1 << 20;
/// The same for each of many channels.
const COPIED_MESSAGES_MIN: u64 = 1 << 14;
/// Least rate of a takeover's catch-up for all channels of a group together: see the publisher.
const CATCH_UP_PACKETS_PER_S: u64 = 20_000;
/// Longest send of a standalone gateway, ns: half of the default margin.
const SEND_NS_MAX: u64 = 10_000_000;
