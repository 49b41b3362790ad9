//! Builds one channel: its books, log, sockets and publisher, and what the cold threads need of it.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;
use mdgw_engine::{
    pipeline::{ChannelPipeline, LineSocket, PeerGapRequests, PipelineCounter, PipelineParts, RecoverySocket},
    publish::{LogSink, Publisher, PublisherConfig, SessionProgress, TakeoverShared},
};
use mdgw_feeds::{
    arbiter::RecoveryConfig,
    channel::{Channel, ChannelConfig, ChannelState, KnownSession, LateStart},
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    published::{
        packet::{PACKET_BYTES_MAX, PACKET_HEADER_BYTES, PacketFlags},
        position::StreamPosition,
        tag::{TAG_BYTES, TagPolicy},
    },
};
use mdgw_log_books::state::InitialState;
use mdgw_pair::{
    pair_link::message::LinkIdentity,
    standby::{ChannelGauges, InputHistory, KnownEpochs, MonitoredChannel, MonitoredInput},
};
use mdgw_publog::{
    LogError, LogOptions, LogRecovery, Position, Reader, Retention, SegmentMaintenance, create_log_root,
};
use mdgw_sys::{
    batch::Outputs,
    clock::unix_now,
    fence::Fence,
    handle::{ChannelIndex, Handle},
    hardware_stamps,
    sockets::{Interface, Membership, ReceiveOptions, SourceFilter, Stamps, open_receive},
};
use mdgw_telemetry::{channel_metrics::channel_recorder_pair, counters::Registry};
use socket2::Socket;

use super::{
    GatewayError, Leadership, Overrides, StartMode, group::LogHole, log_copy::LogCopy, log_maintenance::MaintainedLog,
    output_slots::OutputSlots, state_copy::Donors, venue_replay::VenueReplay,
};
use crate::{
    config::{
        Resolved,
        resolved::{ChannelSetup, GatewayConfig, OutputConfig},
    },
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
        stored: StoredChannel,
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
        let (copied, donor) = self.donors.channel(self.config, setup, &joining, can_replay_input).unzip();
        // Without a reachable peer the session cannot be replayed: the peer may have died during the copy.
        replays_whole_session &= !self.donors.are_all_unreachable();
        if overrides.leadership == Leadership::Elected && replays_whole_session {
            config = joining;
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
        let OpenedLog { sink, maintenance, directory: log_directory, frame_bytes_max, logged, resumed, begin, hole } =
            self.open_log(setup, output, stored, start_position.zip(donor), replays_whole_session)?;
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
            logged_through: start_position
                .map(|start_position| (start_position.session, start_position.next))
                .or(logged)
                .map(|(session, next)| StreamPosition::at(session, next)),
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

    fn open_log(
        &self,
        setup: &ChannelSetup,
        output: Option<&OutputConfig>,
        stored: StoredChannel,
        copied: Option<(ResumePosition, SocketAddrV4)>,
        replays_whole_session: bool,
    ) -> Result<OpenedLog, GatewayError> {
        let gateway = &self.config.gateway;
        let directory = self.config.gateway.log_directory(setup.id);
        if replays_whole_session && copied.is_none() && directory.exists() {
            let act = format!("remove the log of channel {} before a full replay", setup.name);
            std::fs::remove_dir_all(&directory).map_err(GatewayError::io(act))?;
        }
        let log_error = |source| GatewayError::Log { channel: setup.name.clone(), source };
        let options = log_options(gateway, setup, output)?;
        let frame_bytes_max = options.payload_bytes_max;
        let mdgw_publog::OpenedLog { writer, mut maintenance, recovered } =
            mdgw_publog::open(options, unix_now().0).map_err(log_error)?;
        let LogRecovery { segments, damaged_segments, removed_files, last, last_flags, next_number } = recovered;
        let next = last.map(|(_, next)| next);
        tracing::info!(channel = setup.name, segments, next_entry = next_number, next, "publication log");
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
        let [flags, _] = last_flags.to_le_bytes();
        let has_ended = PacketFlags(flags).contains(PacketFlags::END_OF_SESSION);
        // With a copied state the log stays, whatever was asked for.
        let positions = self.context.published.as_ref().filter(|_| copied.is_some() || !replays_whole_session);
        let published = positions.and_then(|positions| positions.get(setup.id));
        let has_ended = has_ended || is_ended_at(published, logged);
        let from_log = logged.map(|(session, next)| ResumePosition { session, next, has_ended });
        let mut sink = LogSink::new(writer);
        let is_logged = |known: &ResumePosition| Some((known.session, known.next)) < logged;
        let begin = match published.filter(is_logged) {
            Some(published) => place_of(&directory, setup.id, published).map_err(log_error)?,
            None => sink.writer().end(),
        };
        let mut hole = None;
        if let Some((position, donor)) = copied {
            if let Some(end) = from_log {
                sink.resume(end.session, end.next, end.has_ended);
            }
            let until = StreamPosition::at(position.session, position.next);
            if let Some(positions) = positions {
                let (session, next) = logged.unwrap_or((position.session, Sequence(1)));
                positions.begin(setup.id, ResumePosition { session, next, has_ended: false });
            }
            let copy = LogCopy::new(&mut sink, &mut maintenance, until);
            let messages_max =
                (COPIED_MESSAGES_MAX / self.config.channels.len().max(1) as u64).max(COPIED_MESSAGES_MIN);
            hole = copy.fill(self.donors, donor, setup, messages_max).and_then(|hole| unpublished(hole, published));
        }
        // The end of the log and the stored position are both used if they belong to the present session. The log may
        // be behind: it may have been deleted, or lack entries that were kept in private memory.
        let from_log = from_log.filter(|shutdown| stored.session.is_none_or(|known| known.session == shutdown.session));
        let shutdown_position = stored.shutdown_position.filter(|_| !replays_whole_session);
        // Without a log the session continues behind what was published of it.
        let published = published.filter(|_| from_log.is_none()).and_then(|known| resume_behind(known, stored));
        let resumed =
            from_log.into_iter().chain(shutdown_position).chain(published).max_by_key(|position| position.next);
        let copied = copied.map(|(position, _)| {
            // The peer's log may have the session's end already.
            let is_at =
                |progress: &&SessionProgress| progress.session == position.session.to_bytes() && progress.has_ended;
            let has_ended = position.has_ended || sink.session_progress().filter(is_at).is_some();
            ResumePosition { has_ended, ..position }
        });
        let resumed = copied.or(resumed);
        if let Some(ResumePosition { session, next, has_ended }) = resumed {
            sink.resume(session, next, has_ended);
        }
        Ok(OpenedLog { sink, maintenance, directory, frame_bytes_max, logged, resumed, begin, hole })
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

/// What of a hole was not published.
fn unpublished((first, next): LogHole, published: Option<ResumePosition>) -> Option<LogHole> {
    let through = published.map(|published| StreamPosition::at(published.session, published.next));
    let first = through.filter(|through| through.session == next.session).map_or(first, |through| through.max(first));
    (first < next).then_some((first, next))
}

/// Whether a stored position says that the session has ended where the log ends.
fn is_ended_at(published: Option<ResumePosition>, logged: Option<(Session, Sequence)>) -> bool {
    published.is_some_and(|published| published.has_ended && logged == Some((published.session, published.next)))
}

/// Where the present session continues that is in no log. After a position of an earlier session: at its first message.
fn resume_behind(published: ResumePosition, stored: StoredChannel) -> Option<ResumePosition> {
    let session = stored.session?.session;
    if published.session == session {
        return Some(published);
    }
    (published.session < session).then_some(ResumePosition { session, next: Sequence(1), has_ended: false })
}

/// A place in a log not far before the first entry behind that position, or of the oldest entry.
fn place_of(directory: &Path, channel: ChannelId, position: ResumePosition) -> Result<Position, LogError> {
    let mut reader = Reader::open(directory, channel.0)?;
    // The first part of a message may lie in an entry that covers only the messages before it.
    reader.seek(position.session.to_bytes(), position.next.0.saturating_sub(1))?;
    Ok(reader.position())
}

/// Options of a channel's publication log. Makes the directory of the logs.
pub(super) fn log_options(
    gateway: &GatewayConfig,
    setup: &ChannelSetup,
    output: Option<&OutputConfig>,
) -> Result<LogOptions, GatewayError> {
    let mut options = LogOptions::new(gateway.log_directory(setup.id), setup.id.0);
    options.reader_group = gateway.log_reader_group()?;
    create_log_root(&gateway.log_dir, options.reader_group)
        .map_err(|source| GatewayError::Log { channel: setup.name.clone(), source })?;
    options.segment_bytes = usize::try_from(gateway.segment_bytes).unwrap_or(usize::MAX);
    options.payload_bytes_max =
        output.map_or(PACKET_BYTES_MAX - PACKET_HEADER_BYTES - TAG_BYTES, OutputConfig::frame_bytes_max);
    options.retention = Retention {
        bytes_max: gateway.retention_bytes,
        age_ns_max: gateway.retention_ns,
        protected_bytes_max: 2 * gateway.retention_bytes,
    };
    Ok(options)
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

/// A channel's publication log, ready to be written.
struct OpenedLog {
    sink: LogSink,
    maintenance: SegmentMaintenance,
    directory: PathBuf,
    /// Most bytes of frames in an entry.
    frame_bytes_max: usize,
    /// End of the log.
    logged: Option<(Session, Sequence)>,
    /// Position of the channel at the end of the gateway's last run.
    resumed: Option<ResumePosition>,
    /// No gateway is known to have published the entries behind it: those of an earlier run, and of a peer's log.
    begin: Position,
    /// What the log lacks before a copied state.
    hole: Option<LogHole>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_file::tests::known;

    #[test]
    fn the_present_session_continues_behind_its_published_part_or_at_its_first_message() {
        let position =
            |restart, next| ResumePosition { session: known(restart).session, next: Sequence(next), has_ended: false };
        let stored = |session| StoredChannel { session, shutdown_position: None };
        for (published, session, expected) in [
            (position(1, 7), Some(known(1)), Some(position(1, 7))),
            (position(0, 7), Some(known(1)), Some(position(1, 1))),
            (position(2, 7), Some(known(1)), None),
            (position(1, 7), None, None),
        ] {
            assert_eq!(resume_behind(published, stored(session)), expected, "{published:?}");
        }
    }

    #[test]
    fn what_was_published_of_a_hole_is_no_hole() {
        let at = |sequence| StreamPosition::at(known(1).session, Sequence(sequence));
        let published = |restart, next| {
            Some(ResumePosition { session: known(restart).session, next: Sequence(next), has_ended: false })
        };
        for (published, expected) in [
            (None, Some((at(10), at(90)))),
            (published(1, 5), Some((at(10), at(90)))),
            (published(1, 40), Some((at(40), at(90)))),
            (published(1, 90), None),
            (published(0, 70), Some((at(10), at(90)))),
        ] {
            assert_eq!(unpublished((at(10), at(90)), published), expected, "{published:?}");
        }
    }

    #[test]
    fn a_log_has_ended_where_the_published_session_has() {
        let published =
            |next, has_ended| Some(ResumePosition { session: known(1).session, next: Sequence(next), has_ended });
        let logged = Some((known(1).session, Sequence(7)));
        assert!(is_ended_at(published(7, true), logged));
        assert!(!is_ended_at(published(6, true), logged) && !is_ended_at(published(7, false), logged));
        assert!(!is_ended_at(None, logged) && !is_ended_at(published(7, true), None));
    }
}
