//! The thread that listens.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use mdgw_engine::publish::{Heard, TakeoverWords};
use mdgw_feeds::{
    channel::ChannelState,
    drop_reason::{DropCounts, DropReason},
    frame::{FrameKind, GapBody},
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    published::{
        packet::{PACKET_BYTES_MAX, Packet, parse_packet},
        position::StreamPosition,
    },
    time::MonoNs,
};
use mdgw_publog::{KeepFrom, LogError};
use mdgw_sys::{
    clock::mono_now,
    fence::Fence,
    poll,
    sockets::{Interface, Membership, ReceiveOptions, ReceiveSocket, SocketError, SourceFilter, open_receive},
};
use mdgw_telemetry::counters::CounterReader;
use zerocopy::FromBytes as _;

use super::{
    epochs::KnownEpochs,
    follower::LogFollower,
    history::InputHistory,
    probe::{self, Hearing, ProbeTimes, Prober},
    tracker::HeardTracker,
};
use crate::standby::windows::WindowHash;

/// What is listened to.
#[derive(Debug)]
pub struct StandbyConfig {
    /// This gateway's number: its own packets may come back to it.
    pub node: u8,
    /// The lines that carry the groups.
    pub outputs: Vec<ListenedOutput>,
    /// The channels.
    pub channels: Vec<ListenedChannel>,
    /// The venue's lines, to keep what comes on them for the peer.
    pub inputs: Vec<ListenedInput>,
    /// Where it is kept.
    pub history: Arc<InputHistory>,
    /// How long a packet that was lost on the way to here holds a channel's position: what receivers need to ask for it
    /// themselves.
    pub hole_ns_max: u64,
}

/// One output line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenedOutput {
    /// Its place among the lines of its output.
    pub line: Line,
    /// Group and port.
    pub address: SocketAddrV4,
    /// The interface on which the group is joined.
    pub interface: Interface,
}

/// One line of the venue's.
#[derive(Clone, Debug)]
pub struct ListenedInput {
    /// The channel.
    pub channel: ChannelId,
    /// Group and port.
    pub address: SocketAddrV4,
    /// The interface on which the group is joined.
    pub interface: Interface,
    /// Who is believed.
    pub sources: Vec<Ipv4Addr>,
}

/// One channel of it.
#[derive(Debug)]
pub struct ListenedChannel {
    /// The group that it belongs to.
    pub group: GroupId,
    /// The channel.
    pub channel: ChannelId,
    /// Where its own log's segments lie.
    pub log_directory: PathBuf,
    /// How far the log had come when it was opened.
    pub logged: Option<StreamPosition>,
    /// Protects the log's segments.
    pub keep_from: KeepFrom,
    /// Epochs of its group.
    pub epochs: Arc<KnownEpochs>,
    /// Of its group.
    pub fence: Arc<Fence>,
    /// Where the publisher finds what was heard, and tells what it has sent.
    pub words: Arc<TakeoverWords>,
    /// What its pipeline counts.
    pub gauges: ChannelGauges,
}

/// What a channel's pipeline tells of itself.
#[derive(Clone, Debug)]
pub struct ChannelGauges {
    /// Number of its [`ChannelState`].
    pub state: CounterReader,
    /// Entries of the log that outputs have missed.
    pub log_entries_lost: CounterReader,
    /// Entries that readers of the log have missed.
    pub log_entries_private: CounterReader,
}

/// What cold threads know of the channels, for each other.
#[derive(Debug)]
pub struct Board {
    channels: Mutex<BTreeMap<ChannelId, ChannelBoard>>,
    /// Windows of the own log that are complete.
    windows: ArrayQueue<WindowHash>,
    probes: Mutex<ProbeTimes>,
    /// Channels in which the other gateway has declared a gap, with the newest such numbering, until they are told.
    gaps: Mutex<BTreeMap<ChannelId, Session>>,
}

/// One channel on the [`Board`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelBoard {
    /// Its group.
    pub group: GroupId,
    /// Where the channel stands.
    pub state: ChannelState,
    /// Entries of the own log that outputs or readers have missed so far.
    pub log_entries_lost: u64,
    /// How far the own log has come.
    pub ready: Option<StreamPosition>,
    /// How far this gateway has published, while it leads and has worked off the tail.
    pub published: Option<StreamPosition>,
    /// What was heard of the other gateway's output.
    pub heard: Heard,
    /// Where the last packet of the other gateway's output ended, whether or not the own input has come there: that it is
    /// heard at all.
    pub echo: Option<StreamPosition>,
    /// Packets of the other gateway's output, on all lines.
    pub packets: u64,
    /// Own packets that came back, on all lines.
    pub own_packets: u64,
    /// When the last packet of a believed epoch came.
    pub heard_at: MonoNs,
    /// Where the own log was first read on.
    pub followed_from: Option<StreamPosition>,
}

impl ChannelBoard {
    /// Whether this gateway should have that window of a peer's: it has seen its log from before the window on.
    #[must_use]
    pub fn has_seen(&self, window: &WindowHash) -> bool {
        self.followed_from.is_some_and(|from| StreamPosition::at(window.session, window.first) > from)
    }
}

impl Board {
    /// What is known of a channel.
    #[must_use]
    pub fn get(&self, channel: ChannelId) -> Option<ChannelBoard> {
        self.lock().get(&channel).copied()
    }

    /// What is known of all.
    #[must_use]
    pub fn all(&self) -> BTreeMap<ChannelId, ChannelBoard> {
        self.lock().clone()
    }

    /// The peer has told, authenticated, that everything before that place was published.
    pub fn confirm(&self, channel: ChannelId, position: StreamPosition) {
        if let Some(board) = self.lock().get_mut(&channel) {
            board.heard.confirmed = board.heard.confirmed.max(Some(position));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ChannelId, ChannelBoard>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gateway that leads has declared a gap in that numbering of a channel.
    pub fn put_gap(&self, channel: ChannelId, session: Session) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.entry(channel).and_modify(|known| *known = (*known).max(session)).or_insert(session);
    }

    /// Tells channels of gaps that the gateway that leads has declared. What `tell` could not say comes again: a book must
    /// not pass for sound because an inbox was full.
    pub fn tell_gaps(&self, mut tell: impl FnMut(ChannelId, Session) -> bool) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.retain(|channel, session| !tell(*channel, *session));
    }

    /// Whether this gateway hears what is sent on its groups.
    #[must_use]
    pub fn hearing(&self, now: MonoNs) -> Hearing {
        self.probe_times().hearing(now)
    }

    fn probe_times(&self) -> std::sync::MutexGuard<'_, ProbeTimes> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest window that nobody has taken yet.
    #[must_use]
    pub fn take_window(&self) -> Option<WindowHash> {
        self.windows.pop()
    }
}

impl Default for Board {
    fn default() -> Self {
        let windows = ArrayQueue::new(WINDOWS_MAX);
        Self { channels: Mutex::default(), windows, probes: Mutex::default(), gaps: Mutex::default() }
    }
}

/// What the listener counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// Datagrams that came.
    pub datagrams: u64,
    /// What was not used, by reason.
    pub drops: DropCounts,
    /// Holes that nothing filled in time.
    pub holes_given_up: u64,
}

/// The running listener. Stops when it is dropped.
#[derive(Debug)]
pub struct Standby {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<ListenerCounts>>,
    board: Arc<Board>,
    memberships: Vec<Membership>,
}

impl Standby {
    /// Opens the sockets and the logs, and starts the thread.
    ///
    /// # Errors
    /// When a group can't be joined, a log can't be read, or a thread can't be had.
    pub fn start(config: StandbyConfig) -> Result<Self, StandbyError> {
        let mut sockets = Vec::with_capacity(config.outputs.len());
        let mut memberships = Vec::new();
        for output in &config.outputs {
            let socket = open_receive(&ReceiveOptions::new(output.address, Some(output.interface.clone())))?;
            memberships.extend(socket.membership());
            sockets.push(Listening::new(socket)?);
        }
        let lines = config.outputs.iter().map(|output| (output.address, &output.interface));
        let prober = Prober::open(config.node, lines)?;
        let mut inputs = Vec::with_capacity(config.inputs.len());
        for ListenedInput { channel, address, interface, sources } in config.inputs {
            // A unicast line has one receiver, and that is the straight line.
            if !address.ip().is_multicast() {
                continue;
            }
            let mut options = ReceiveOptions::new(address, Some(interface));
            options.source = match sources.as_slice() {
                [source] => Some(*source),
                _ => None,
            };
            let socket = open_receive(&options)?;
            memberships.extend(socket.membership());
            inputs.push(Input { channel, filter: SourceFilter::new(&sources), listening: Listening::new(socket)? });
        }
        let mut channels = Vec::with_capacity(config.channels.len());
        for listened in config.channels {
            let ListenedChannel { group, channel, log_directory, logged, keep_from, epochs, fence, words, gauges } =
                listened;
            let follower = LogFollower::new(&log_directory, channel, logged, keep_from, Arc::clone(&words))?;
            let mut tracker = HeardTracker::new(config.hole_ns_max);
            if let Some(logged) = logged {
                tracker.set_ready(logged, mono_now());
            }
            let board = ChannelBoard { group, ready: logged, ..ChannelBoard::default() };
            channels.push(Channel {
                id: channel,
                follower,
                tracker,
                epochs,
                fence,
                words,
                gauges,
                gap_until: None,
                board,
            });
        }
        let board = Arc::new(Board::default());
        let listener = Listener {
            node: config.node,
            prober,
            sockets,
            inputs,
            history: config.history,
            channels,
            board: Arc::clone(&board),
            counts: ListenerCounts::default(),
        };
        listener.tell_board();
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("mdgw-standby".to_owned())
            .spawn(move || listener.run(&of_thread))
            .map_err(StandbyError::Thread)?;
        Ok(Self { stop, thread: Some(thread), board, memberships })
    }

    /// What is known of the channels.
    #[must_use]
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// The groups that were joined, for a [`MembershipWatch`](mdgw_sys::sockets::MembershipWatch).
    #[must_use]
    pub fn memberships(&self) -> &[Membership] {
        &self.memberships
    }

    /// Ends the thread; what it counted.
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
            // Its panic has been told when it came; the pools go on without.
            let _panic = thread.join();
        }
    }
}

/// Why a gateway can't listen to its peer's output.
#[derive(Debug, thiserror::Error)]
pub enum StandbyError {
    /// A socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A socket can't be shared.
    #[error("cannot listen to the peer's output: {0}")]
    Io(#[from] io::Error),
    /// The thread.
    #[error("cannot start the thread that listens to the peer's output: {0}")]
    Thread(#[source] io::Error),
}

/// One socket; the group is left when it goes.
#[derive(Debug)]
struct Listening {
    socket: UdpSocket,
    _joined: ReceiveSocket,
}

impl Listening {
    fn new(joined: ReceiveSocket) -> io::Result<Self> {
        Ok(Self { socket: joined.socket().try_clone()?.into(), _joined: joined })
    }
}

/// One of the venue's lines.
#[derive(Debug)]
struct Input {
    channel: ChannelId,
    filter: SourceFilter,
    listening: Listening,
}

#[derive(Debug)]
struct Channel {
    id: ChannelId,
    follower: LogFollower,
    tracker: HeardTracker,
    epochs: Arc<KnownEpochs>,
    fence: Arc<Fence>,
    words: Arc<TakeoverWords>,
    gauges: ChannelGauges,
    /// Where the last gap ended that the other gateway has declared.
    gap_until: Option<StreamPosition>,
    board: ChannelBoard,
}

#[derive(Debug)]
struct Listener {
    node: u8,
    prober: Prober,
    sockets: Vec<Listening>,
    inputs: Vec<Input>,
    history: Arc<InputHistory>,
    channels: Vec<Channel>,
    board: Arc<Board>,
    counts: ListenerCounts,
}

impl Listener {
    fn run(mut self, stop: &AtomicBool) -> ListenerCounts {
        // Relaxed: the flag orders nothing, and a look a millisecond later is as good.
        while !stop.load(Relaxed) {
            if !self.turn() {
                let inputs = self.inputs.iter().map(|input| &input.listening);
                let sockets = self.sockets.iter().chain(inputs).map(|listening| listening.socket.as_fd());
                if let Err(error) = poll::readable(sockets, FOLLOW_INTERVAL) {
                    tracing::error!(%error, "listening to the peer's output");
                    std::thread::sleep(FOLLOW_INTERVAL);
                }
            }
        }
        self.counts.holes_given_up = self.channels.iter().map(|channel| channel.tracker.counts().holes_given_up).sum();
        self.counts
    }

    /// Whether there may be more to do.
    fn turn(&mut self) -> bool {
        let now = mono_now();
        let mut more = false;
        if self.prober.turn(now) {
            self.board.probe_times().begun.get_or_insert(now);
        }
        // The own log first: it says what may be believed.
        for channel in &mut self.channels {
            more |= channel.follow(now, &self.board);
        }
        let mut datagram = [0; PACKET_BYTES_MAX_OF_ANY];
        for index in 0..self.sockets.len() {
            for _ in 0..QUOTA {
                match self.sockets[index].socket.recv(&mut datagram) {
                    Ok(length) => self.datagram(&datagram[..length], now),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // A socket that fails once may fail at once again; the next turn tries it anew.
                    Err(_) => break,
                }
                more = true;
            }
        }
        for Input { channel, filter, listening } in &self.inputs {
            for _ in 0..QUOTA {
                let Ok((length, SocketAddr::V4(source))) = listening.socket.recv_from(&mut datagram) else { break };
                more = true;
                if filter.check(source).is_ok() {
                    // What is none of the channel's is counted by the channel.
                    let _refused = self.history.keep(*channel, &datagram[..length]);
                }
            }
        }
        for channel in &mut self.channels {
            channel.settle(now, &self.board);
        }
        more
    }

    fn datagram(&mut self, bytes: &[u8], now: MonoNs) {
        if let Some(node) = probe::node_of(bytes) {
            if node == self.node {
                self.board.probe_times().heard = Some(now);
            }
            return;
        }
        self.counts.datagrams += 1;
        if let Err(reason) = self.hear(bytes, now) {
            if reason == DropReason::EpochJump && self.counts.drops.get(reason) == 0 {
                tracing::warn!(
                    alarm = "epoch-incredible",
                    "a packet of an epoch that nobody vouches for: not believed"
                );
            }
            self.counts.drops.count(reason);
        }
    }

    fn hear(&mut self, bytes: &[u8], now: MonoNs) -> Result<(), DropReason> {
        let packet = parse_packet(bytes)?;
        let meta = packet.meta;
        let is_of = |channel: &&mut Channel| (channel.board.group, channel.id) == (meta.group, meta.channel);
        let channel = self.channels.iter_mut().find(is_of).ok_or(DropReason::ChannelUnknown)?;
        // Above what this gateway has led under, its number is somebody else's: a leader has to go above that, too.
        if node_of(meta.epoch) == self.node && meta.epoch <= channel.fence.epoch() {
            channel.board.own_packets += 1;
            return Ok(());
        }
        channel.epochs.hear(meta.epoch)?;
        channel.board.packets += 1;
        channel.board.heard_at = now;
        let span = StreamPosition::span_of(&packet);
        channel.board.echo = Some(span.1);
        // One that leads declares its own.
        if !channel.fence.allows(now) && channel.hears_gap(&packet) {
            let (id, session) = (channel.id, meta.session);
            tracing::warn!(alarm = "gap-declared", channel = id.0, %session, "the gateway that leads declared it: books are in doubt here too");
            self.board.put_gap(id, session);
        }
        channel.tracker.accept(span, meta.epoch, now);
        Ok(())
    }

    fn tell_board(&self) {
        self.board.lock().extend(self.channels.iter().map(|channel| (channel.id, channel.board)));
    }
}

impl Channel {
    fn follow(&mut self, now: MonoNs, board: &Board) -> bool {
        // One that nobody takes gives way: it is compared or it isn't.
        let more = self.follower.follow(self.fence.allows(now), &mut |window| _ = board.windows.force_push(window));
        if let Some(ready) = self.follower.ready() {
            self.tracker.set_ready(ready, now);
        }
        more
    }

    /// Whether a packet declares a gap beyond those that are known.
    fn hears_gap(&mut self, packet: &Packet<'_>) -> bool {
        let gaps = packet.frames().filter(|(header, _)| header.kind == FrameKind::Gap as u8);
        let ends = gaps.filter_map(|(_, body)| GapBody::ref_from_bytes(body).ok());
        let until = ends.map(|gap| StreamPosition::at(packet.meta.session, Sequence(gap.next.get()))).max();
        let is_new = until > self.gap_until;
        self.gap_until = self.gap_until.max(until);
        is_new
    }

    /// What has changed becomes known.
    fn settle(&mut self, now: MonoNs, board: &Board) {
        self.tracker.on_time(now);
        let ChannelGauges { state, log_entries_lost, log_entries_private } = &self.gauges;
        self.board.state = u8::try_from(state.get()).ok().and_then(ChannelState::from_number).unwrap_or_default();
        self.board.log_entries_lost = log_entries_lost.get() + log_entries_private.get();
        self.board.ready = self.follower.ready();
        self.board.published = self.follower.published();
        self.board.followed_from = self.follower.from();
        let mut all = board.lock();
        let shared = all.entry(self.id).or_insert(self.board);
        let heard = Heard {
            on_wire: self.tracker.position(),
            epoch: self.tracker.epoch(),
            // The pair link's part of it.
            confirmed: shared.heard.confirmed,
        };
        if heard != self.board.heard {
            self.board.heard = heard;
            self.words.heard.set(heard);
        }
        let is_leading = self.fence.allows(now);
        self.follower.keep_from(heard.credible(self.board.ready).filter(|_| !is_leading));
        *shared = self.board;
    }
}

fn node_of(epoch: Epoch) -> u8 {
    epoch.0.to_le_bytes()[0]
}

/// The own logs are followed so often while nothing is heard.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(1);
/// Datagrams of one socket, then the others have their turn.
const QUOTA: usize = 256;
/// Complete windows that wait to be compared.
const WINDOWS_MAX: usize = 1_024;
/// Outputs of any configured size.
const PACKET_BYTES_MAX_OF_ANY: usize = 65_536;
const _: () = assert!(PACKET_BYTES_MAX <= PACKET_BYTES_MAX_OF_ANY);

#[cfg(test)]
mod tests {
    use mdgw_feeds::{identity::Feed, time::TradingDate};

    use super::*;

    #[test]
    fn windows_from_before_the_log_was_followed_are_not_for_comparing() {
        let session = |restart| {
            let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
            Session { feed: Feed::IexDeep, date, restart }
        };
        let has_seen = |followed_from, restart, first| {
            let (session, first) = (session(restart), Sequence(first));
            let window = WindowHash { channel: ChannelId(1), session, first, messages: 1, hash: [0; 16] };
            ChannelBoard { followed_from, ..ChannelBoard::default() }.has_seen(&window)
        };
        assert!(!has_seen(None, 0, 0), "nothing has come");
        let from = Some(StreamPosition::at(session(1), Sequence(1_500)));
        let cases = [(0, 9_216, false), (1, 0, false), (1, 1_024, false), (1, 2_048, true), (2, 0, true)];
        for (restart, first, expected) in cases {
            assert_eq!(has_seen(from, restart, first), expected, "{restart} {first}");
        }
    }

    #[test]
    fn a_declared_gap_is_told_until_the_channel_has_taken_it() {
        let session = |restart| {
            let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
            Session { feed: Feed::IexDeep, date, restart }
        };
        let board = Board::default();
        let told = |is_taken: bool| {
            let mut told = Vec::new();
            board.tell_gaps(|channel, session| {
                told.push((channel.0, session.restart));
                is_taken
            });
            told
        };
        board.put_gap(ChannelId(1), session(1));
        board.put_gap(ChannelId(2), session(0));
        assert_eq!(told(false), [(1, 1), (2, 0)], "their inboxes are full");
        board.put_gap(ChannelId(1), session(0));
        assert_eq!(told(true), [(1, 1), (2, 0)], "the newest numbering of each");
        assert_eq!(told(true), [(0, 0); 0]);
    }
}
