//! The standby's thread: receives the peers' output, the own probes and the venue's lines, and follows the local logs.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::{AsFd, RawFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use mdgw_engine::publish::{ReceiveWatermark, TakeoverShared};
use mdgw_publog::{LogError, RetentionHold};
use mdgw_sys::{
    alarm::Alarm,
    clock::{mono_now, unix_now},
    fence::Fence,
    poll,
    sockets::{Interface, Membership, ReceiveOptions, ReceiveSocket, SocketError, SourceFilter, open_receive},
    task_queue::TaskQueue,
};
use mdgw_telemetry::counters::CounterReader;
use mdgw_wire::{
    channel_state::ChannelState,
    drop_reason::{DropCounts, DropReason},
    frame::{FrameKind, GapBody},
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    published::{
        packet::{PACKET_BYTES_MAX, Packet, parse_packet},
        position::StreamPosition,
        probe,
        tag::{TagPolicy, TagUse},
    },
    time::MonoNs,
};
use zerocopy::FromBytes as _;

use super::{
    epochs::{HeldEpoch, KnownEpochs},
    history::InputHistory,
    log_follower::LogFollower,
    probe::{ProbeTimes, Prober, ReceivePath},
    tracker::{ReceiveCounts, ReceiveTracker},
};
use crate::standby::windows::WindowHash;

/// What the listener receives and follows.
#[derive(Debug)]
pub struct StandbyConfig {
    /// This gateway's node number: the network may return its own packets.
    pub node: u8,
    /// The output lines that carry the groups.
    pub outputs: Vec<MonitoredOutput>,
    /// Channels of those groups.
    pub channels: Vec<MonitoredChannel>,
    /// The venue's lines. Their datagrams are stored for the peer.
    pub inputs: Vec<MonitoredInput>,
    /// Where those datagrams are stored.
    pub history: Arc<InputHistory>,
    /// How long a packet that did not arrive here holds a channel's position. Receivers need that time to request it
    /// themselves.
    pub hole_ns_max: u64,
}

/// An output line to listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredOutput {
    /// Its index among the lines of its output.
    pub line: Line,
    /// Multicast group and port.
    pub address: SocketAddrV4,
    /// The interface on which the group is joined.
    pub interface: Interface,
    /// The gateways' addresses; empty: any sender.
    pub sources: Vec<Ipv4Addr>,
}

/// A line of a venue to listen to.
#[derive(Clone, Debug)]
pub struct MonitoredInput {
    /// Channel that the line belongs to.
    pub channel: ChannelId,
    /// Multicast group and port.
    pub address: SocketAddrV4,
    /// The interface on which the group is joined.
    pub interface: Interface,
    /// The accepted senders; empty: any sender.
    pub sources: Vec<Ipv4Addr>,
}

/// A channel whose output is received.
#[derive(Debug)]
pub struct MonitoredChannel {
    /// Group of the channel.
    pub group: GroupId,
    /// Id of the channel.
    pub channel: ChannelId,
    /// Directory of the local log's segments.
    pub log_directory: PathBuf,
    /// How far the log had come when it was opened.
    pub logged_through: Option<StreamPosition>,
    /// Protects the log's segments from deletion.
    pub retention_hold: RetentionHold,
    /// Epochs of the channel's group.
    pub epochs: Arc<KnownEpochs>,
    /// Fence of the channel's group.
    pub fence: Arc<Fence>,
    /// Shared with the publisher: the receive watermark, and what the publisher has sent.
    pub takeover: Arc<TakeoverShared>,
    /// Gauges of the channel's pipeline.
    pub gauges: ChannelGauges,
    /// Which tags the channel's packets must have.
    pub tags: TagPolicy,
}

/// Gauges that a channel's pipeline writes.
#[derive(Clone, Debug)]
pub struct ChannelGauges {
    /// Number of the channel's [`ChannelState`].
    pub state: CounterReader,
    /// Times an output line fell behind the log and skipped entries.
    pub output_overruns: CounterReader,
    /// Entries published but not written to the log.
    pub log_entries_missing: CounterReader,
    /// For how long every output line has been refused, ns.
    pub output_refused_ns: CounterReader,
}

/// The state of all channels, shared by the cold threads.
#[derive(Debug)]
pub struct StatusTable {
    channels: Mutex<BTreeMap<ChannelId, ChannelStatus>>,
    /// Complete windows of the local logs.
    windows: ArrayQueue<WindowHash>,
    probes: Mutex<ProbeTimes>,
    /// Channels in which another gateway has declared a gap, with the newest session of such a gap, until the channels
    /// are notified.
    gaps: Mutex<BTreeMap<ChannelId, Session>>,
    /// Datagrams received on the output groups so far, and those that were not used.
    counts: Mutex<ListenerCounts>,
}

/// State of a channel in the [`StatusTable`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStatus {
    /// Group of the channel.
    pub group: GroupId,
    /// State of this gateway's channel.
    pub state: ChannelState,
    /// Entries of the local log so far that outputs or readers have missed.
    pub log_entries_lost: u64,
    /// End of the local log.
    pub logged_through: Option<StreamPosition>,
    /// How far this gateway has published, while it leads and its catch-up is complete.
    pub published: Option<StreamPosition>,
    /// What this gateway had sent at that time is part of `published`. Older where the listener reads the log late.
    pub published_as_of: MonoNs,
    /// For how long this gateway's kernel has refused all packets of every output line, ns; 0: a line sends. Counts only while this
    /// gateway leads: afterwards it is the last value until the channel's next turn.
    pub output_refused_ns: u64,
    /// The receive watermark of the other gateway's output.
    pub received: ReceiveWatermark,
    /// How far a leader has reported, authenticated, to have published: what its kernel has accepted. It confirms received
    /// packets that are ahead of the local input, and lifts nothing.
    pub reported_through: Option<StreamPosition>,
    /// End of the furthest packet of the present leader's output that the local input or the leader's report confirms, whatever
    /// is missing before it. It shows that this gateway receives the output at all.
    pub last_received: Option<StreamPosition>,
    /// Packets of the other gateway's output, on all lines.
    pub packets: u64,
    /// This gateway's own packets that the network returned, on all lines.
    pub own_packets: u64,
    /// What was received of the other gateways' output since the start.
    pub counts: ReceiveCounts,
    /// When the last packet of an accepted epoch arrived.
    pub received_at: MonoNs,
    /// Where the follower began to read the local log.
    pub followed_from: Option<StreamPosition>,
}

impl ChannelStatus {
    /// Whether this gateway should have the window that a peer has reported: it has read its log since before the
    /// window.
    #[must_use]
    pub(crate) fn covers_window(&self, window: &WindowHash) -> bool {
        self.followed_from.is_some_and(|from| StreamPosition::at(window.session, window.first) > from)
    }
}

impl StatusTable {
    /// The status of a channel.
    #[must_use]
    pub fn get(&self, channel: ChannelId) -> Option<ChannelStatus> {
        self.lock().get(&channel).copied()
    }

    /// The status of all channels.
    #[must_use]
    pub fn all(&self) -> BTreeMap<ChannelId, ChannelStatus> {
        self.lock().clone()
    }

    /// The peer has reported, authenticated, that it published everything before `position`.
    pub(crate) fn confirm(&self, channel: ChannelId, position: StreamPosition) {
        if let Some(status) = self.lock().get_mut(&channel) {
            status.reported_through = status.reported_through.max(Some(position));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ChannelId, ChannelStatus>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leader has declared a gap in that session of a channel.
    pub(crate) fn record_declared_gap(&self, channel: ChannelId, session: Session) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.entry(channel).and_modify(|known| *known = (*known).max(session)).or_insert(session);
    }

    /// Notifies channels of gaps that the leader has declared. If `forward` has no room, the notification is repeated
    /// later: a book must not pass for sound because an inbox was full.
    pub fn forward_declared_gaps(&self, mut forward: impl FnMut(ChannelId, Session) -> bool) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.retain(|channel, session| !forward(*channel, *session));
    }

    /// What was received on the output groups so far.
    #[must_use]
    pub fn listener_counts(&self) -> ListenerCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this gateway receives what is sent to its groups.
    #[must_use]
    pub fn receive_path(&self, now: MonoNs) -> ReceivePath {
        self.probe_times().receive_path(now)
    }

    fn probe_times(&self) -> std::sync::MutexGuard<'_, ProbeTimes> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest window that the link thread has not taken yet.
    #[must_use]
    pub(crate) fn take_window(&self) -> Option<WindowHash> {
        self.windows.pop()
    }
}

impl Default for StatusTable {
    fn default() -> Self {
        let windows = ArrayQueue::new(WINDOWS_MAX);
        Self {
            channels: Mutex::default(),
            windows,
            probes: Mutex::default(),
            gaps: Mutex::default(),
            counts: Mutex::default(),
        }
    }
}

/// Counts of the listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// Datagrams received.
    pub datagrams: u64,
    /// Datagrams that were not used, by reason.
    pub drops: DropCounts,
    /// Holes that no packet filled in time.
    pub holes_abandoned: u64,
}

/// The running listener. Stops when it is dropped.
#[derive(Debug)]
pub struct Standby {
    stop: Arc<AtomicBool>,
    tasks: TaskQueue<Listener>,
    thread: Option<JoinHandle<ListenerCounts>>,
    status_table: Arc<StatusTable>,
    memberships: Vec<Membership>,
}

impl Standby {
    /// Opens the sockets and the logs, and starts the thread.
    ///
    /// # Errors
    /// When a group cannot be joined, a log cannot be read, or the thread cannot be started.
    pub fn start(config: StandbyConfig) -> Result<Self, StandbyError> {
        let mut sockets = Vec::with_capacity(config.outputs.len());
        for output in &config.outputs {
            sockets.push(OutputSocket::open(output)?);
        }
        let lines = config.outputs.iter().map(|output| (output.address, &output.interface));
        let prober = Prober::open(config.node, lines)?;
        let inputs = open_inputs(config.inputs)?;
        let joined = sockets.iter().map(|socket| &socket.joined_socket);
        let joined = joined.chain(inputs.iter().map(|input| &input.joined_socket));
        let memberships = joined.filter_map(JoinedSocket::membership).collect();
        let channels = config.channels.into_iter().map(|monitored| Channel::open(monitored, config.hole_ns_max));
        let channels = channels.collect::<Result<_, _>>()?;
        let status_table = Arc::new(StatusTable::default());
        let listener = Listener {
            node: config.node,
            prober,
            sockets,
            inputs,
            history: config.history,
            channels,
            hole_ns_max: config.hole_ns_max,
            status_table: Arc::clone(&status_table),
            counts: ListenerCounts::default(),
        };
        listener.publish_initial_status();
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = TaskQueue::default();
        let (thread_stop, thread_tasks) = (Arc::clone(&stop), tasks.clone());
        let thread = std::thread::Builder::new()
            .name("mdgw-standby".to_owned())
            .spawn(move || listener.run(&thread_stop, &thread_tasks))
            .map_err(StandbyError::Thread)?;
        Ok(Self { stop, tasks, thread: Some(thread), status_table, memberships })
    }

    /// Receives the output of one more channel, and what arrives on its lines. Returns the joined groups.
    ///
    /// # Errors
    /// When a group cannot be joined or the log cannot be read, or when the thread does not answer.
    pub fn add(&self, channel: MonitoredChannel, inputs: Vec<MonitoredInput>) -> Result<Vec<Membership>, StandbyError> {
        self.run(move |listener| {
            let inputs = open_inputs(inputs)?;
            let channel = Channel::open(channel, listener.hole_ns_max)?;
            let memberships = inputs.iter().filter_map(|input| input.joined_socket.membership()).collect();
            listener.status_table.lock().insert(channel.id, channel.status_table);
            listener.inputs.extend(inputs);
            listener.channels.push(channel);
            Ok(memberships)
        })
    }

    /// Forgets a channel and closes its lines' sockets. Returns their descriptors: nothing else may use them any more.
    ///
    /// # Errors
    /// When the thread does not answer.
    pub fn remove(&self, channel: ChannelId) -> Result<ClosedSockets, StandbyError> {
        self.run(move |listener| {
            listener.channels.retain(|other| other.id != channel);
            let closed = listener.inputs.extract_if(.., |input| input.channel == channel);
            let closed = closed.map(|input| input.joined_socket).collect();
            listener.status_table.lock().remove(&channel);
            listener.status_table.gaps.lock().unwrap_or_else(PoisonError::into_inner).remove(&channel);
            Ok(ClosedSockets(closed))
        })
    }

    /// Listens to one more output line. Returns the joined group, if the line is one.
    ///
    /// # Errors
    /// When the group cannot be joined, or the thread does not answer.
    pub fn add_output(&self, output: MonitoredOutput) -> Result<Option<Membership>, StandbyError> {
        self.run(move |listener| {
            let socket = OutputSocket::open(&output)?;
            listener.prober.add(output.address, &output.interface)?;
            let membership = socket.joined_socket.membership();
            listener.sockets.push(socket);
            Ok(membership)
        })
    }

    /// Listens to an output line no longer.
    ///
    /// # Errors
    /// When the thread does not answer.
    pub fn remove_output(&self, address: SocketAddrV4, interface: Interface) -> Result<ClosedSockets, StandbyError> {
        self.run(move |listener| {
            listener.prober.remove(address, &interface);
            let is_it = |socket: &mut OutputSocket| (socket.address, &socket.interface) == (address, &interface);
            let closed = listener.sockets.extract_if(.., is_it).map(|socket| socket.joined_socket);
            Ok(ClosedSockets(closed.collect()))
        })
    }

    fn run<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Listener) -> Result<R, StandbyError> + Send + 'static,
    ) -> Result<R, StandbyError> {
        // The thread looks at the queue every millisecond.
        self.tasks.run(|| {}, task).unwrap_or(Err(StandbyError::NoAnswer))
    }

    /// The status of the channels.
    #[must_use]
    pub fn status_table(&self) -> &Arc<StatusTable> {
        &self.status_table
    }

    /// The joined groups, for a [`MembershipWatch`](mdgw_sys::sockets::MembershipWatch).
    #[must_use]
    pub fn memberships(&self) -> &[Membership] {
        &self.memberships
    }

    /// Stops the thread and returns its counts.
    #[must_use]
    pub fn stop(mut self) -> ListenerCounts {
        self.stop.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic was logged when it occurred; the pools continue without the listener.
            let _panic = thread.join();
        }
    }
}

/// Why a gateway cannot receive its peers' output.
#[derive(Debug, thiserror::Error)]
pub enum StandbyError {
    /// A socket cannot be opened, or its group not joined.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A socket cannot be cloned.
    #[error("cannot receive the output of the peers: {0}")]
    Io(#[from] io::Error),
    /// The thread cannot be started.
    #[error("cannot start the standby listener thread: {0}")]
    Thread(#[source] io::Error),
    /// The thread does not run a task.
    #[error("the standby listener thread does not answer")]
    NoAnswer,
}

/// Sockets that the listener has let go of. They close with this, once nothing else watches them.
#[derive(Debug)]
pub struct ClosedSockets(Vec<JoinedSocket>);

impl ClosedSockets {
    /// Their descriptors, for a [`MembershipWatch`](mdgw_sys::sockets::MembershipWatch) that still holds them.
    #[must_use]
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.0.iter().map(|closed| closed.joined.raw_fd()).collect()
    }
}

/// One socket; the group is left when it is dropped.
#[derive(Debug)]
struct JoinedSocket {
    socket: UdpSocket,
    joined: ReceiveSocket,
}

impl JoinedSocket {
    fn new(joined: ReceiveSocket) -> io::Result<Self> {
        Ok(Self { socket: joined.socket().try_clone()?.into(), joined })
    }

    fn membership(&self) -> Option<Membership> {
        self.joined.membership()
    }
}

/// One output line.
#[derive(Debug)]
struct OutputSocket {
    address: SocketAddrV4,
    interface: Interface,
    joined_socket: JoinedSocket,
}

impl OutputSocket {
    fn open(output: &MonitoredOutput) -> Result<Self, StandbyError> {
        let mut options = ReceiveOptions::new(output.address, Some(output.interface.clone()));
        options.sources.clone_from(&output.sources);
        // The gateway's own probes come from the interface's own address.
        let own = output.interface.lookup().ok().and_then(|interface| interface.address);
        options.sources.extend(own.filter(|own| !output.sources.is_empty() && !output.sources.contains(own)));
        let joined_socket = JoinedSocket::new(open_receive(&options)?)?;
        Ok(Self { address: output.address, interface: output.interface.clone(), joined_socket })
    }
}

fn open_inputs(inputs: Vec<MonitoredInput>) -> Result<Vec<InputSocket>, StandbyError> {
    // A unicast line has one receiver: the data path.
    let inputs = inputs.into_iter().filter(|input| input.address.ip().is_multicast());
    inputs
        .map(|MonitoredInput { channel, address, interface, sources }| {
            let mut options = ReceiveOptions::new(address, Some(interface));
            options.sources.clone_from(&sources);
            let joined_socket = JoinedSocket::new(open_receive(&options)?)?;
            Ok(InputSocket { channel, filter: SourceFilter::new(&sources), joined_socket })
        })
        .collect()
}

/// One line of a venue.
#[derive(Debug)]
struct InputSocket {
    channel: ChannelId,
    filter: SourceFilter,
    joined_socket: JoinedSocket,
}

#[derive(Debug)]
struct Channel {
    id: ChannelId,
    follower: LogFollower,
    tracker: ReceiveTracker,
    epochs: Arc<KnownEpochs>,
    fence: Arc<Fence>,
    takeover: Arc<TakeoverShared>,
    gauges: ChannelGauges,
    /// End of the last gap that the other gateway has declared.
    gap_until: Option<StreamPosition>,
    tags: TagPolicy,
    tag_alarm: RefusalAlarm,
    epoch_alarm: RefusalAlarm,
    outdated_leader: OutdatedLeaderWatch,
    status_table: ChannelStatus,
}

/// Notices a leader whose packets every receiver drops, since an epoch above its own was received before.
#[derive(Debug, Default)]
struct OutdatedLeaderWatch {
    /// Since when only packets of lower epochs have come.
    since: Option<MonoNs>,
    /// Number of these packets.
    packets: u64,
    /// The next alarm is due then.
    alarm_at: MonoNs,
}

impl OutdatedLeaderWatch {
    /// A packet of a lower epoch has come. Returns the number of packets if an alarm is due. Shortly after a takeover some come
    /// of the former leader, and the new leader sends soon.
    fn on_lower(&mut self, now: MonoNs) -> Option<u64> {
        self.packets += 1;
        if self.since.is_none() {
            self.since = Some(now);
            self.alarm_at = now.plus(OUTDATED_NS_MIN);
        }
        if now < self.alarm_at {
            return None;
        }
        self.alarm_at = now.plus(OUTDATED_ALARM_INTERVAL_NS);
        Some(self.packets)
    }

    /// A packet of the highest epoch has come.
    fn on_highest(&mut self) {
        *self = Self::default();
    }
}

#[derive(Debug)]
struct Listener {
    node: u8,
    prober: Prober,
    sockets: Vec<OutputSocket>,
    inputs: Vec<InputSocket>,
    history: Arc<InputHistory>,
    channels: Vec<Channel>,
    hole_ns_max: u64,
    status_table: Arc<StatusTable>,
    counts: ListenerCounts,
}

impl Listener {
    fn run(mut self, stop: &AtomicBool, tasks: &TaskQueue<Self>) -> ListenerCounts {
        // Relaxed: the flag orders nothing, and the thread may read it a millisecond later.
        while !stop.load(Relaxed) {
            tasks.run_pending(&mut self);
            if !self.turn() {
                let inputs = self.inputs.iter().map(|input| &input.joined_socket);
                let outputs = self.sockets.iter().map(|output| &output.joined_socket);
                let sockets = outputs.chain(inputs).map(|joined_socket| joined_socket.socket.as_fd());
                if let Err(error) = poll::readable(sockets, FOLLOW_INTERVAL) {
                    tracing::error!(%error, "receiving the output of the peers failed");
                    std::thread::sleep(FOLLOW_INTERVAL);
                }
            }
        }
        self.counts.holes_abandoned =
            self.channels.iter().map(|channel| channel.tracker.counts().holes_abandoned).sum();
        self.counts
    }

    /// Receives and follows a limited amount of data. Returns whether there may be more.
    fn turn(&mut self) -> bool {
        let now = mono_now();
        let mut more = false;
        if self.prober.turn(now) {
            self.status_table.probe_times().first_sent_at.get_or_insert(now);
        }
        // The local log is followed first, since it confirms packets.
        for channel in &mut self.channels {
            more |= channel.follow(now, &self.status_table);
        }
        let datagrams_before = self.counts.datagrams;
        let mut datagram = [0; PACKET_BYTES_MAX_OF_ANY];
        for index in 0..self.sockets.len() {
            for _ in 0..DATAGRAMS_PER_SOCKET {
                match self.sockets[index].joined_socket.socket.recv_from(&mut datagram) {
                    Ok((length, from)) => self.datagram(&datagram[..length], ipv4_of(from), now),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // A socket that failed may fail again at once; the next turn retries.
                    Err(_) => break,
                }
                more = true;
            }
        }
        let received_at = unix_now();
        for InputSocket { channel, filter, joined_socket } in &self.inputs {
            for _ in 0..DATAGRAMS_PER_SOCKET {
                let Ok((length, SocketAddr::V4(source))) = joined_socket.socket.recv_from(&mut datagram) else { break };
                more = true;
                if filter.check(source).is_ok() {
                    // The channel itself counts datagrams that do not follow its protocol.
                    let _refused = self.history.store(*channel, &datagram[..length], received_at);
                }
            }
        }
        for channel in &mut self.channels {
            channel.update_status(now, &self.status_table);
        }
        if self.counts.datagrams != datagrams_before {
            self.status_table.counts.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.counts);
        }
        more
    }

    fn datagram(&mut self, bytes: &[u8], from: Option<SocketAddrV4>, now: MonoNs) {
        if let Some(node) = probe::node_of(bytes) {
            if node == self.node {
                self.status_table.probe_times().last_received_at = Some(now);
            }
            return;
        }
        self.counts.datagrams += 1;
        if let Err(reason) = self.receive(bytes, from, now) {
            self.counts.drops.count(reason);
        }
    }

    fn receive(&mut self, bytes: &[u8], from: Option<SocketAddrV4>, now: MonoNs) -> Result<(), DropReason> {
        let packet = parse_packet(bytes)?;
        let meta = packet.meta;
        let is_of = |channel: &&mut Channel| (channel.status_table.group, channel.id) == (meta.group, meta.channel);
        let channel = self.channels.iter_mut().find(is_of).ok_or(DropReason::ChannelUnknown)?;
        // The tag is checked first: a sender without the key must not pass for this gateway.
        if let Err(reason) = channel.tags.check(TagUse::Published, bytes) {
            if let Some(count) = channel.tag_alarm.on_refused(now) {
                tracing::warn!(
                    alarm = Alarm::TagRefused.name(),
                    channel_id = channel.id.0,
                    reason = reason.name(),
                    from = from.map(tracing::field::display),
                    count,
                    "packet of an output group dropped: its sender does not hold a key of this gateway"
                );
            }
            return Err(reason);
        }
        // An own node number above the epoch under which this gateway has led belongs to another process. A leader has
        // to go above that epoch too.
        if node_of(meta.epoch) == self.node && meta.epoch <= channel.fence.epoch() {
            channel.status_table.own_packets += 1;
            return Ok(());
        }
        if let Err(reason) = channel.observe(meta.epoch, from, now) {
            if reason == DropReason::EpochJump
                && let Some(count) = channel.epoch_alarm.on_refused(now)
            {
                tracing::warn!(
                    alarm = Alarm::EpochJump.name(),
                    group = meta.group.0,
                    channel_id = channel.id.0,
                    epoch = meta.epoch.count(),
                    node = meta.epoch.node(),
                    from = from.map(tracing::field::display),
                    count,
                    "packet dropped: its epoch is too far above every known epoch"
                );
            }
            return Err(reason);
        }
        channel.status_table.packets += 1;
        channel.status_table.received_at = now;
        let span = StreamPosition::range_of_packet(&packet);
        // A leader declares its own gaps.
        if !channel.fence.is_open_at(now) && channel.note_declared_gap(&packet) {
            let (id, session) = (channel.id, meta.session);
            tracing::warn!(alarm = Alarm::GapDeclared.name(), channel_id = id.0, %session, "gap declared by the leader: books of this standby are suspect too");
            self.status_table.record_declared_gap(id, session);
        }
        channel.tracker.accept(span, meta.epoch, now);
        Ok(())
    }

    fn publish_initial_status(&self) {
        self.status_table.lock().extend(self.channels.iter().map(|channel| (channel.id, channel.status_table)));
    }
}

impl Channel {
    fn open(monitored: MonitoredChannel, hole_ns_max: u64) -> Result<Self, StandbyError> {
        let MonitoredChannel { group, channel, log_directory, logged_through, retention_hold, .. } = monitored;
        let MonitoredChannel { epochs, fence, takeover, gauges, tags, .. } = monitored;
        let follower =
            LogFollower::new(&log_directory, channel, logged_through, retention_hold, Arc::clone(&takeover))?;
        let mut tracker = ReceiveTracker::new(hole_ns_max);
        if let Some(logged_through) = logged_through {
            tracker.confirm_through(logged_through, mono_now());
        }
        Ok(Self {
            id: channel,
            follower,
            tracker,
            epochs,
            fence,
            takeover,
            gauges,
            gap_until: None,
            tags,
            tag_alarm: RefusalAlarm::default(),
            epoch_alarm: RefusalAlarm::default(),
            outdated_leader: OutdatedLeaderWatch::default(),
            status_table: ChannelStatus { group, logged_through, ..ChannelStatus::default() },
        })
    }

    /// As a receiver, which has received this gateway's own output too.
    fn observe(&mut self, epoch: Epoch, from: Option<SocketAddrV4>, now: MonoNs) -> Result<(), DropReason> {
        let own = self.fence.epoch();
        let outcome = if epoch < own { Err(DropReason::EpochStale) } else { self.epochs.observe_from(epoch, from) };
        match outcome {
            // A leader receives nothing of the highest epoch, which is its own.
            Err(DropReason::EpochStale) if !self.fence.is_open_at(now) => {
                if let Some(packets) = self.outdated_leader.on_lower(now) {
                    let HeldEpoch { epoch: highest, from, is_of_earlier_run } = self.epochs.held_above(own);
                    let since = if is_of_earlier_run { "is known from an earlier run" } else { "was received before" };
                    tracing::error!(
                        alarm = Alarm::Outranked.name(),
                        group = self.status_table.group.0,
                        channel_id = self.id.0,
                        epoch = epoch.count(),
                        node = epoch.node(),
                        highest = highest.count(),
                        highest_node = highest.node(),
                        from = from.map(tracing::field::display),
                        packets,
                        "the leader's packets are dropped: a higher epoch {since}, and nothing of that epoch comes"
                    );
                }
            }
            Err(DropReason::EpochStale | DropReason::EpochJump) => {}
            _ => self.outdated_leader.on_highest(),
        }
        outcome
    }

    fn follow(&mut self, now: MonoNs, status_table: &StatusTable) -> bool {
        // A full queue drops its oldest window, which is then not compared.
        let mut done = |window| _ = status_table.windows.force_push(window);
        let more = self.follower.follow(self.fence.is_open_at(now), now, &mut done);
        if let Some(logged_through) = self.follower.logged_through() {
            self.tracker.confirm_through(logged_through, now);
        }
        if let Some(published) = self.follower.published() {
            self.tracker.set_published(published, self.fence.epoch(), now);
        }
        more
    }

    /// Notes the gaps that a packet declares. Returns whether one reaches beyond the known gaps.
    fn note_declared_gap(&mut self, packet: &Packet<'_>) -> bool {
        let gaps = packet.frames().filter(|(header, _)| header.kind == FrameKind::Gap as u8);
        let ends = gaps.filter_map(|(_, body)| GapBody::ref_from_bytes(body).ok());
        let until = ends.map(|gap| StreamPosition::at(packet.meta.session, Sequence(gap.next.get()))).max();
        let is_new = until > self.gap_until;
        self.gap_until = self.gap_until.max(until);
        is_new
    }

    /// Updates the channel's status in the table, and the receive watermark for the publisher.
    fn update_status(&mut self, now: MonoNs, status_table: &StatusTable) {
        self.tracker.on_timer(now);
        let ChannelGauges { state, output_overruns, log_entries_missing, output_refused_ns } = &self.gauges;
        self.status_table.state =
            u8::try_from(state.get()).ok().and_then(ChannelState::from_number).unwrap_or_default();
        self.status_table.log_entries_lost = output_overruns.get() + log_entries_missing.get();
        self.status_table.logged_through = self.follower.logged_through();
        self.status_table.published = self.follower.published();
        self.status_table.published_as_of = self.follower.published_as_of();
        self.status_table.output_refused_ns = output_refused_ns.get();
        self.status_table.followed_from = self.follower.from();
        let mut all = status_table.lock();
        let shared = all.entry(self.id).or_insert(self.status_table);
        self.status_table.reported_through = shared.reported_through;
        if let Some(reported_through) = shared.reported_through {
            self.tracker.confirm_through(reported_through, now);
        }
        self.status_table.counts = *self.tracker.counts();
        self.status_table.last_received = self.tracker.furthest();
        let received = ReceiveWatermark { received_through: self.tracker.position(), epoch: self.tracker.epoch() };
        if received != self.status_table.received {
            self.status_table.received = received;
            self.takeover.received_through.set(received);
        }
        let is_leading = self.fence.is_open_at(now);
        self.follower.hold_retention(received.received_through.filter(|_| !is_leading));
        *shared = self.status_table;
    }
}

/// Limits the reports of packets that were refused for one reason to one in [`REFUSAL_ALARM_INTERVAL_NS`].
#[derive(Debug, Default)]
struct RefusalAlarm {
    /// Packets refused since the start.
    count: u64,
    next_at: MonoNs,
}

impl RefusalAlarm {
    /// A packet was refused. Returns the number of packets refused since the start if a report is due now.
    fn on_refused(&mut self, now: MonoNs) -> Option<u64> {
        self.count += 1;
        if now < self.next_at {
            return None;
        }
        self.next_at = now.plus(REFUSAL_ALARM_INTERVAL_NS);
        Some(self.count)
    }
}

/// Sockets of output groups receive from IPv4 addresses alone.
fn ipv4_of(address: SocketAddr) -> Option<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    }
}

fn node_of(epoch: Epoch) -> u8 {
    epoch.0.to_le_bytes()[0]
}

/// Shortest time between two reports of refused packets of one channel, ns.
const REFUSAL_ALARM_INTERVAL_NS: u64 = 60_000_000_000;
/// How long only packets of lower epochs must have come before the leader counts as outdated, ns: longer than a takeover, and
/// than two default heartbeat intervals of an output.
const OUTDATED_NS_MIN: u64 = 3_000_000_000;
/// Shortest time between two alarms of one channel about an outdated leader, ns.
const OUTDATED_ALARM_INTERVAL_NS: u64 = 10_000_000_000;
/// How often the thread follows the local logs while it receives nothing.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of datagrams from one socket in a turn; then the other sockets have theirs.
const DATAGRAMS_PER_SOCKET: usize = 256;
/// Maximum number of complete windows that wait for comparison.
const WINDOWS_MAX: usize = 1_024;
/// Size of the receive buffer, bytes: it holds output of any configured size.
const PACKET_BYTES_MAX_OF_ANY: usize = 65_536;
const _: () = assert!(PACKET_BYTES_MAX <= PACKET_BYTES_MAX_OF_ANY);

#[cfg(test)]
mod tests {
    use mdgw_wire::{identity::Feed, time::TradingDate};

    use super::*;

    #[test]
    fn a_leader_below_what_was_received_is_reported_while_nothing_of_the_higher_epoch_comes() {
        let second = |tenths: u64| MonoNs(tenths * 100_000_000);
        let mut watch = OutdatedLeaderWatch::default();
        // A former leader's packets after a takeover.
        for at in [0, 1, 10, 29] {
            assert_eq!(watch.on_lower(second(at)), None);
        }
        watch.on_highest();
        let alarms: Vec<_> = (0..400).filter_map(|tenth| Some((tenth, watch.on_lower(second(30 + tenth))?))).collect();
        assert_eq!(alarms, [(30, 31), (130, 131), (230, 231), (330, 331)]);
        watch.on_highest();
        assert_eq!(watch.on_lower(second(900)), None);
    }

    #[test]
    fn refused_packets_are_reported_at_once_and_then_once_a_minute_with_their_number() {
        let second = |second: u64| MonoNs(second * 1_000_000_000);
        let mut alarm = RefusalAlarm::default();
        // A forger sends ten packets a second for two minutes, and one an hour later.
        let flood = (0..1_200).filter_map(|tenth: u64| {
            let at = MonoNs(second(7).0 + tenth * 100_000_000);
            Some((tenth / 10, alarm.on_refused(at)?))
        });
        assert_eq!(flood.collect::<Vec<_>>(), [(0, 1), (60, 601)]);
        assert_eq!(alarm.on_refused(second(3_600)), Some(1_201));
        assert_eq!(alarm.on_refused(second(3_659)), None);
    }

    #[test]
    fn windows_before_following_began_are_not_compared() {
        let session = |restart| {
            let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
            Session { feed: Feed::IexDeep, date, restart }
        };
        let covers_window = |followed_from, restart, first| {
            let (session, first) = (session(restart), Sequence(first));
            let window = WindowHash { channel: ChannelId(1), session, first, messages: 1, hash: [0; 16] };
            ChannelStatus { followed_from, ..ChannelStatus::default() }.covers_window(&window)
        };
        assert!(!covers_window(None, 0, 0), "nothing has come");
        let from = Some(StreamPosition::at(session(1), Sequence(1_500)));
        let cases = [(0, 9_216, false), (1, 0, false), (1, 1_024, false), (1, 2_048, true), (2, 0, true)];
        for (restart, first, expected) in cases {
            assert_eq!(covers_window(from, restart, first), expected, "{restart} {first}");
        }
    }

    #[test]
    fn a_declared_gap_is_forwarded_until_the_channel_accepts_it() {
        let session = |restart| {
            let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
            Session { feed: Feed::IexDeep, date, restart }
        };
        let status_table = StatusTable::default();
        let forwarded = |is_taken: bool| {
            let mut forwarded = Vec::new();
            status_table.forward_declared_gaps(|channel, session| {
                forwarded.push((channel.0, session.restart));
                is_taken
            });
            forwarded
        };
        status_table.record_declared_gap(ChannelId(1), session(1));
        status_table.record_declared_gap(ChannelId(2), session(0));
        assert_eq!(forwarded(false), [(1, 1), (2, 0)], "the inboxes of the channels are full");
        status_table.record_declared_gap(ChannelId(1), session(0));
        assert_eq!(forwarded(true), [(1, 1), (2, 0)], "the newest session of each");
        assert_eq!(forwarded(true), [(0, 0); 0]);
    }
}
