//! The link's thread: connections to all peers, datagrams, a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket},
    os::{fd::AsFd as _, unix::net::UnixDatagram},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_election::{
    announcement::Announcement,
    auth::{Nonce, SharedKey},
};
use mdgw_engine::pipeline::{ChannelMessage, PeerGapRequest, PeerGapRequests};
use mdgw_feeds::channel::PeerPosition;
use mdgw_sys::{alarm::Alarm, clock::mono_now, listener_counters::Refusal, poll, scheduler::spawn_short_slice};
use mdgw_wire::{
    channel_state::ChannelState,
    identity::{ChannelId, GroupId},
    published::position::StreamPosition,
    time::MonoNs,
};

use super::{
    connection::{CloseCause, Connection, READS_PER_TURN, connect},
    copy_out::CopySender,
    framing::LinkFault,
    handle::{LinkHandle, Outgoing, add},
    log_out::LogAnswer,
    message::{AvailableInput, ChannelPositions, InputRange, LinkIdentity, LinkMessage, LogRequest, Malformed},
    mismatch::{ChannelLogs, Comparison, MismatchWatch},
    pending::PendingConnections,
    reported_epochs::{LinkedGroup, ReportedEpochs},
};
use crate::standby::{ChannelStatus, InputHistory, ReceivePath, StatusTable};

/// The addresses of a gateway's links.
#[derive(Clone, Debug)]
pub struct PairEndpoints {
    /// Where this gateway listens, for TCP and UDP.
    pub listen: SocketAddrV4,
    /// Gateways to link to, each with its addresses.
    pub peers: Vec<PeerEndpoint>,
    /// The key that all gateways share.
    pub key: SharedKey,
    /// How often positions are reported, ns.
    pub period_ns: u64,
}

/// Address and node number of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// Node number of the peer; `None` with a single peer: any gateway with the key.
    pub node: Option<u8>,
    /// Where the peer listens, for TCP and UDP.
    pub address: SocketAddrV4,
}

/// Configuration of the link.
#[derive(Clone, Debug)]
pub struct PairLinkConfig {
    /// This gateway, and this start of it.
    pub identity: LinkIdentity,
    /// The addresses of this gateway and its peers, and the shared key.
    pub endpoints: PairEndpoints,
}

/// The parts of the gateway that the link reads and notifies.
#[derive(Debug)]
pub struct PairParts {
    /// Positions and windows of the local channels.
    pub status_table: Arc<StatusTable>,
    /// Epochs and fence of each group.
    pub groups: BTreeMap<GroupId, LinkedGroup>,
    /// Directory of each local channel's publication log.
    pub logs: ChannelLogs,
    /// Gaps of the local channels, to be requested from a peer.
    pub peer_gap_requests: Arc<PeerGapRequests>,
    /// Input datagrams, from which the link answers peers' requests.
    pub history: Arc<InputHistory>,
    /// Passes messages to the local channels.
    pub channels: ChannelSender,
}

/// Passes messages to the local channels.
pub struct ChannelSender(Box<dyn FnMut(ChannelId, ChannelMessage) -> bool + Send>);

impl ChannelSender {
    /// `send` must not block. It returns whether the channel had room for the message.
    #[must_use]
    pub fn new(send: impl FnMut(ChannelId, ChannelMessage) -> bool + Send + 'static) -> Self {
        Self(Box::new(send))
    }
}

impl std::fmt::Debug for ChannelSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channels")
    }
}

/// The running link. Ends when it is dropped.
#[derive(Debug)]
pub struct PairLink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    handle: Arc<LinkHandle>,
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum PairLinkError {
    /// The listening address cannot be used.
    #[error("pair link cannot listen on {address}: {source}")]
    Listen {
        /// The listening address, as configured.
        address: SocketAddrV4,
        /// The kernel's error.
        source: io::Error,
    },
    /// A peer is configured with this gateway's address.
    #[error("pair link: listen and peer have the same address {0}")]
    SameAddress(SocketAddrV4),
    /// The link's thread cannot be started.
    #[error("cannot start the pair link's thread: {0}")]
    Thread(#[source] io::Error),
}

impl PairLink {
    /// Listens, and dials the peers that this gateway has to dial.
    ///
    /// # Errors
    /// When the address cannot be used, or the thread cannot be started. An absent peer is no error.
    pub fn start(config: PairLinkConfig, parts: PairParts) -> Result<Self, PairLinkError> {
        let address = config.endpoints.listen;
        if config.endpoints.peers.iter().any(|peer| peer.address == address) {
            return Err(PairLinkError::SameAddress(address));
        }
        let listen = |source| PairLinkError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let datagrams = UdpSocket::bind(address).map_err(listen)?;
        datagrams.set_nonblocking(true).map_err(listen)?;
        let serial = Nonce::random().map_err(listen)?.number();
        let (wake_sender, wake_receiver) = UnixDatagram::pair().map_err(PairLinkError::Thread)?;
        for end in [&wake_sender, &wake_receiver] {
            end.set_nonblocking(true).map_err(PairLinkError::Thread)?;
        }
        let handle = Arc::new(LinkHandle::new(serial, wake_sender));
        let PairParts { status_table, groups, logs, peer_gap_requests, history, channels } = parts;
        let begun = mono_now();
        let stop = Arc::new(AtomicBool::new(false));
        let peer = |end: &PeerEndpoint| Peer {
            end: *end,
            current: None,
            dial_at: MonoNs(0),
            never_connected_since: Some(begun),
            mismatches: MismatchWatch::new(logs.clone()),
            overflowed: BTreeSet::new(),
        };
        let link = Link {
            peers: config.endpoints.peers.iter().map(peer).collect(),
            pending: PendingConnections::new(config.endpoints.peers.iter().map(|peer| (*peer.address.ip()).into())),
            config,
            listener,
            datagrams,
            wake_receiver,
            accept_at: MonoNs(0),
            report_at: MonoNs(0),
            gap_requests: 0,
            unknown_nodes: BTreeSet::new(),
            duplicate_nodes: BTreeSet::new(),
            refused: BTreeSet::new(),
            status_table,
            groups: groups.into_iter().map(|(group, linked)| (group, ReportedEpochs::new(linked))).collect(),
            peer_gap_requests,
            history,
            channels,
            progress: BTreeMap::new(),
            logs,
            copies: Vec::new(),
            log_answers: Vec::new(),
            handle: Arc::clone(&handle),
            stop: Arc::clone(&stop),
        };
        let thread = spawn_short_slice("mdgw-pair", move || link.run()).map_err(PairLinkError::Thread)?;
        Ok(Self { stop, thread: Some(thread), handle })
    }

    /// The other threads' access to the link.
    #[must_use]
    pub fn handle(&self) -> &Arc<LinkHandle> {
        &self.handle
    }
}

impl Drop for PairLink {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic was logged when it occurred; the gateway continues without a link.
            let _panic = thread.join();
        }
    }
}

/// A configured peer, and the connection to it.
#[derive(Debug)]
struct Peer {
    end: PeerEndpoint,
    /// The connection in use: the last one that proved the key.
    current: Option<Connection>,
    dial_at: MonoNs,
    /// Start of the wait for the first connection; `None`: there was a connection, or its absence was logged.
    never_connected_since: Option<MonoNs>,
    mismatches: MismatchWatch,
    /// Channels that had no room for all of the answer that is arriving.
    overflowed: BTreeSet<ChannelId>,
}

#[derive(Debug)]
struct Link {
    config: PairLinkConfig,
    listener: TcpListener,
    datagrams: UdpSocket,
    /// The socket that wakes this thread.
    wake_receiver: UnixDatagram,
    peers: Vec<Peer>,
    pending: PendingConnections,
    /// No connection is accepted before: the last attempt failed.
    accept_at: MonoNs,
    report_at: MonoNs,
    gap_requests: usize,
    /// Node numbers that are not configured, or that came from a wrong address: each is logged once.
    unknown_nodes: BTreeSet<u8>,
    /// Node numbers that two gateways use: each is logged once.
    duplicate_nodes: BTreeSet<u8>,
    /// Addresses of refused connections, and why: each is logged once.
    refused: BTreeSet<(IpAddr, LoggedFault)>,
    status_table: Arc<StatusTable>,
    groups: BTreeMap<GroupId, ReportedEpochs>,
    peer_gap_requests: Arc<PeerGapRequests>,
    history: Arc<InputHistory>,
    channels: ChannelSender,
    /// How far each local channel was at a peer's last report, and since when.
    progress: BTreeMap<ChannelId, (Option<StreamPosition>, MonoNs)>,
    /// State copies that are being sent to peers.
    copies: Vec<CopySender>,
    logs: ChannelLogs,
    /// Threads that send entries of logs to peers.
    log_answers: Vec<JoinHandle<()>>,
    handle: Arc<LinkHandle>,
    stop: Arc<AtomicBool>,
}

impl Link {
    fn run(mut self) {
        // Relaxed: the flag orders nothing, and the thread may read it a millisecond later.
        while !self.stop.load(Relaxed) {
            let now = mono_now();
            self.turn(now);
            let current = self.peers.iter().filter_map(|peer| peer.current.as_ref());
            let connections = current.chain(self.pending.iter()).map(|connection| connection.socket.as_fd());
            // A listener that cannot accept stays readable.
            let listener = (now >= self.accept_at).then(|| self.listener.as_fd());
            let own = [self.datagrams.as_fd(), self.wake_receiver.as_fd()];
            let sockets = own.into_iter().chain(listener).chain(connections);
            if let Err(error) = poll::readable(sockets, POLL_INTERVAL) {
                tracing::error!(%error, "pair link");
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        for answer in self.log_answers {
            // A panic was logged when it occurred.
            let _panic = answer.join();
        }
    }

    fn turn(&mut self, now: MonoNs) {
        // Clear the wake-up before reading the queues: a later wake-up then is not lost.
        while self.wake_receiver.recv(&mut [0]).is_ok() {}
        self.accept(now);
        self.dial(now);
        self.receive_pending(now);
        for index in 0..self.peers.len() {
            self.with(index, |link, connection| link.receive(index, connection, now));
        }
        self.report_never_connected(now);
        self.send_all(now);
        for index in 0..self.peers.len() {
            self.with(index, |_, connection| connection.flush());
        }
        self.receive_datagrams(now);
        self.advance_copies(now);
        let channels = &mut self.channels.0;
        self.status_table
            .forward_declared_gaps(|channel, session| channels(channel, ChannelMessage::PeerDeclaredGap(session)));
    }

    /// Calls a function with the connection to a peer, if there is one; an error closes the connection.
    fn with(&mut self, index: usize, act: impl FnOnce(&mut Self, &mut Connection) -> Result<(), CloseCause>) {
        let Some(mut connection) = self.peers[index].current.take() else { return };
        match act(self, &mut connection) {
            Ok(()) => self.peers[index].current = Some(connection),
            Err(cause) => self.end(index, &connection, cause),
        }
    }

    /// A peer that was never connected is reported like one that has disconnected.
    fn report_never_connected(&mut self, now: MonoNs) {
        for peer in &mut self.peers {
            if peer.never_connected_since.take_if(|since| now.since(*since) >= NEVER_CONNECTED_NS).is_some() {
                tracing::warn!(alarm = Alarm::PairLinkDown.name(), peer = %peer.end.address, "pair link has not been up since the start");
            }
        }
    }

    /// Accepts a limited number of connections: a host that connects without pause must not keep the link from its other work.
    fn accept(&mut self, now: MonoNs) {
        if now < self.accept_at {
            return;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let (socket, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    tracing::error!(%error, "pair link: cannot accept a connection");
                    self.accept_at = now.plus(ACCEPT_PAUSE_NS);
                    return;
                }
            };
            self.handle.listener_counters.count_received();
            let Ok(connection) = Connection::new(socket, from.ip(), None, &self.config, now) else { continue };
            if self.pending.admit(connection).is_some() {
                self.count_refused(Refusal::Displaced);
            }
        }
    }

    fn count_refused(&self, refusal: Refusal) {
        self.handle.listener_counters.count(refusal);
    }

    fn dial(&mut self, now: MonoNs) {
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let is_ours = self.config.endpoints.listen < peer.end.address;
            if !is_ours || peer.current.is_some() || self.pending.is_dialling(index) || now < peer.dial_at {
                continue;
            }
            peer.dial_at = now.plus(DIAL_INTERVAL_NS);
            let (address, config) = (peer.end.address, &self.config);
            let dialled = connect(address)
                .and_then(|socket| Connection::new(socket, (*address.ip()).into(), Some(index), config, now));
            if let Ok(connection) = dialled {
                let _has_place = self.pending.admit(connection);
            }
        }
    }

    /// A connection whose first message is authentic replaces the present connection to that gateway.
    fn receive_pending(&mut self, now: MonoNs) {
        for mut connection in self.pending.take() {
            // A peer of another version closes right after its hello: the hello tells why.
            let is_readable = connection.read_once();
            let first_message = match connection.stream.next_message() {
                Ok(None) => is_readable.map(|()| None),
                other => other.map_err(CloseCause::Refused),
            };
            match first_message.and_then(|message| self.send_first_message(&mut connection).map(|()| message)) {
                Ok(Some(message)) => self.establish(connection, message, now),
                Ok(None) if now.since(connection.received_at) < SILENCE_NS_MAX => self.pending.keep(connection),
                Err(CloseCause::Refused(fault)) => {
                    // A peer of another version reads from our hello which version we speak.
                    let _may_fail = connection.flush();
                    self.refuse(&connection, fault);
                }
                // The dialled peer does not run: no refusal.
                Ok(None) | Err(CloseCause::Closed) if connection.dialled.is_some() => {}
                Err(CloseCause::Closed) if connection.stream.is_unused() => {
                    add(&self.handle.counters.connections_unused);
                    tracing::debug!(from = %connection.from, "pair link: connection closed without a message");
                }
                Ok(None) => self.count_refused(Refusal::Silent),
                Err(_) => self.count_refused(Refusal::Disconnected),
            }
        }
    }

    fn establish(&mut self, mut connection: Connection, message: LinkMessage, now: MonoNs) {
        let Some(LinkIdentity { node, incarnation }) = connection.stream.peer_identity() else { return };
        let is_of = |peer: &Peer| peer.end.node.is_none_or(|of| of == node);
        let is_dialled = |index: &usize| connection.dialled.is_none_or(|dialled| dialled == *index);
        let Some(index) = self.peers.iter().position(is_of).filter(is_dialled) else {
            self.count_refused(Refusal::UnknownNode);
            if self.unknown_nodes.insert(node) {
                let dialled = connection.dialled.map(|index| tracing::field::display(self.peers[index].end.address));
                tracing::warn!(
                    node,
                    dialled,
                    "pair link: connection from a node number that is not configured, or from the wrong address"
                );
            }
            return;
        };
        if let LinkMessage::CopyRequest { channel } = message {
            self.begin_copy(connection, channel, now);
            return;
        }
        if let LinkMessage::LogRequest(request) = message {
            self.answer_log_request(connection, request);
            return;
        }
        let is_alive = |before: &Connection| now.since(before.received_at) < ALIVE_NS && before.from != connection.from;
        if self.peers[index].end.node.is_some() && self.peers[index].current.as_ref().is_some_and(is_alive) {
            self.count_refused(Refusal::DuplicateNode);
            if self.duplicate_nodes.insert(node) {
                let first = self.peers[index].current.as_ref().map(|current| current.from);
                let second = connection.from;
                tracing::error!(
                    alarm = Alarm::DuplicateGatewayId.name(),
                    node,
                    first = first.map(tracing::field::display),
                    %second,
                    "pair link: two gateways use the same node number; the second is refused while the first is connected"
                );
            }
            return;
        }
        // If only the key identifies the peer, its node number may differ from the one before.
        if let Some(before) = self.peers[index].current.take().and_then(|before| before.stream.peer_node()) {
            self.handle.set_linked(before, false);
        }
        connection.received_at = now;
        add(&self.handle.counters.connections);
        self.handle.set_linked(node, true);
        self.peer_gap_requests.set_linked(true);
        let ends = Alarm::PairLinkDown.name();
        tracing::info!(ends, peer = %self.peers[index].end.address, node, %incarnation, "pair link is up");
        self.peers[index].overflowed.clear();
        self.peers[index].never_connected_since = None;
        self.peers[index].current = Some(connection);
        self.with(index, |link, connection| {
            link.take(message, index, connection, now);
            Ok(())
        });
    }

    /// Counts a connection whose other end has not proved the key. Each address is logged once for each kind of fault, up to a
    /// number of them; the counters have the rest.
    fn refuse(&mut self, connection: &Connection, fault: LinkFault) {
        self.count_refused(fault.refusal());
        let (peer, logged) = (connection.from, LoggedFault::of(fault));
        if self.refused.len() < REFUSED_LOGGED_MAX && self.refused.insert((peer, logged)) {
            let is_own_node = logged == LoggedFault::OwnNode;
            let alarm = if is_own_node { Alarm::DuplicateGatewayId } else { Alarm::PairLinkRefused };
            tracing::error!(alarm = alarm.name(), %peer, %fault, "pair link");
        }
    }

    /// Begins a copy for a joining gateway, which has requested a channel's state.
    fn begin_copy(&mut self, connection: Connection, channel: ChannelId, now: MonoNs) {
        let node = connection.stream.peer_node();
        // One copy of each channel at a time. The limit keeps frequent requests from filling the memory.
        let is_accepted = self.copies.len() < COPIES_MAX && self.copies.iter().all(|copy| copy.channel() != channel);
        tracing::info!(node, channel_id = channel.0, is_accepted, "a peer copies the channel's state");
        self.copies.push(CopySender::new(connection, channel, is_accepted, now));
        if self.copies.len() > 2 * COPIES_MAX {
            self.copies.pop();
            self.count_refused(Refusal::QueueFull);
        }
    }

    /// Sends entries of a log to a joining gateway. A refused request ends with its connection.
    fn answer_log_request(&mut self, connection: Connection, request: LogRequest) {
        self.log_answers.retain(|answer| !answer.is_finished());
        let Some(directory) = self.logs.get(request.channel) else {
            return self.count_refused(Refusal::Unexpected);
        };
        if self.log_answers.len() >= COPIES_MAX {
            return self.count_refused(Refusal::QueueFull);
        }
        let stop = Arc::clone(&self.stop);
        match (LogAnswer { connection, request, directory, stop }).spawn() {
            Ok(answer) => self.log_answers.push(answer),
            Err(error) => tracing::warn!(%error, "pair link: cannot start a thread that sends the log"),
        }
    }

    fn advance_copies(&mut self, now: MonoNs) {
        let mut copies = std::mem::take(&mut self.copies);
        let send = &mut self.channels.0;
        copies.retain_mut(|copy| copy.turn(&mut |channel, turn| send(channel, ChannelMessage::CopySlice(turn)), now));
        self.copies = copies;
    }

    /// Sends the first message once the other end's hello has arrived. It proves the key to the other end.
    fn send_first_message(&self, connection: &mut Connection) -> Result<(), CloseCause> {
        if !connection.sent_first_message && connection.stream.has_peer_hello() {
            connection.sent_first_message = true;
            let positions = self.positions();
            connection.send(&positions)?;
        }
        connection.flush()
    }

    fn receive(&mut self, index: usize, connection: &mut Connection, now: MonoNs) -> Result<(), CloseCause> {
        connection.read_available()?;
        while let Some(message) = connection.stream.next_message().map_err(CloseCause::Refused)? {
            connection.received_at = now;
            self.take(message, index, connection, now);
        }
        if now.since(connection.received_at) >= SILENCE_NS_MAX { Err(CloseCause::TimedOut) } else { Ok(()) }
    }

    /// Sends what is queued. Without any connection the messages wait.
    fn send_all(&mut self, now: MonoNs) {
        if self.peers.iter().all(|peer| peer.current.is_none()) {
            return;
        }
        while let Some(Outgoing { to, message, datagram_copies }) = self.handle.out.pop() {
            for index in 0..self.peers.len() {
                self.with(index, |link, connection| {
                    let is_recipient = to.is_none() || to == connection.stream.peer_node();
                    if is_recipient { link.send_to_peer(&message, datagram_copies, index, connection) } else { Ok(()) }
                });
            }
        }
        while let Some(gap) = self.peer_gap_requests.take() {
            let PeerGapRequest { channel, session, first, next } = gap;
            // If no answer comes, the channel requests the range again.
            if let Some(index) = self.choose_gap_peer(&gap) {
                let request = LinkMessage::GapRequest(InputRange { channel, session, first, next });
                self.with(index, |_, connection| connection.send(&request));
            }
        }
        while let Some(window) = self.status_table.take_window() {
            for index in 0..self.peers.len() {
                self.with(index, |link, connection| {
                    connection.send(&LinkMessage::WindowHash(window))?;
                    let compared = link.peers[index].mismatches.accept_ours(window);
                    link.follow_up(window.channel, compared, connection);
                    Ok(())
                });
            }
        }
        if now >= self.report_at {
            self.report_at = now.plus(self.config.endpoints.period_ns);
            let positions = self.positions();
            for index in 0..self.peers.len() {
                self.with(index, |_, connection| connection.send(&positions));
            }
        }
    }

    fn choose_gap_peer(&mut self, gap: &PeerGapRequest) -> Option<usize> {
        let until = StreamPosition::at(gap.session, gap.next);
        let of_peer = |peer: &Peer| {
            let node = peer.current.as_ref()?.stream.peer_node()?;
            let report = self.handle.report_of(node, gap.channel);
            let has_reached =
                report.and_then(|report| report.logged_through).is_some_and(|logged_through| logged_through >= until);
            let available_input = report.and_then(|report| report.available_input);
            let has_range = has_reached
                && available_input
                    .is_some_and(|available_input| (available_input.from..available_input.until).contains(&gap.first));
            Some(GapCandidate { has_range, has_reached, has_history: available_input.is_some() })
        };
        let peers: Vec<_> = self.peers.iter().map(of_peer).collect();
        self.gap_requests = self.gap_requests.wrapping_add(1);
        choose_candidate(&peers, self.gap_requests)
    }

    fn send_to_peer(
        &self,
        message: &LinkMessage,
        copies: usize,
        index: usize,
        connection: &mut Connection,
    ) -> Result<(), CloseCause> {
        if copies > 0
            && let Some(datagram) = connection.stream.seal_datagram(message)
            && datagram.len() <= DATAGRAM_BYTES_MAX
        {
            for _ in 0..copies {
                // The message is sent on the connection too.
                let _may_fail = self.datagrams.send_to(&datagram, self.peers[index].end.address);
            }
        }
        connection.send(message)
    }

    fn positions(&self) -> LinkMessage {
        let receives_probe = self.status_table.receive_path(mono_now()) == ReceivePath::Working;
        let positions = self.status_table.all().into_iter().map(|(channel, status)| {
            let group = self.groups.get(&status.group);
            let epoch = group.map_or(status.received.epoch, |epochs| epochs.highest_known());
            ChannelPositions {
                channel,
                logged_through: status.logged_through,
                published: status.published,
                last_received: status.last_received,
                receives_probe,
                epoch,
                state: status.state as u8,
                available_input: self.history.extent(channel).map(AvailableInput::from),
            }
        });
        LinkMessage::Positions(positions.collect())
    }

    fn take(&mut self, message: LinkMessage, index: usize, connection: &mut Connection, now: MonoNs) {
        add(&self.handle.counters.messages);
        let Some(from) = connection.stream.peer_node() else { return };
        match message {
            LinkMessage::Positions(positions) => {
                for report in &positions {
                    let own = self.status_table.get(report.channel);
                    if let Some(epochs) = own.and_then(|own| self.groups.get_mut(&own.group)) {
                        epochs.record(report.epoch, now);
                    }
                    if let Some(own) = own {
                        self.forward_position(&own, report, now);
                    }
                    if let Some(published) = report.published {
                        self.status_table.confirm(report.channel, published);
                    }
                }
                self.handle.record_positions(from, &positions, now);
            }
            LinkMessage::Election { serial, bytes } => self.handle.push_election(from, serial, &bytes),
            LinkMessage::Death { serial, bytes } => self.handle.push_death(serial, &bytes),
            LinkMessage::WindowHash(window) => {
                // The window in which this gateway began to follow its log cannot be equal.
                if self.status_table.get(window.channel).is_some_and(|status| status.covers_window(&window)) {
                    self.handle.count_window(window.channel, |windows| windows.reported += 1);
                }
                let compared = self.peers[index].mismatches.accept_theirs(window);
                self.follow_up(window.channel, compared, connection);
            }
            LinkMessage::WindowContent(content) => match self.peers[index].mismatches.accept_content(&content) {
                Ok(Some(record)) => {
                    // Both gateways log both records: the peer gets ours, and does not answer.
                    let _full = connection.send(&record);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot read the log for a window whose hashes differ"),
            },
            LinkMessage::Record { channel, session, sequence, records } => {
                match self.peers[index].mismatches.accept_record(channel, session, sequence, records) {
                    Ok(Some(mismatch)) => {
                        tracing::error!(
                            alarm = Alarm::GatewaysDiffer.name(),
                            channel_id = channel.0,
                            %session,
                            sequence = sequence.0,
                            ours = %Hex(&mismatch.ours),
                            theirs = %Hex(&mismatch.theirs),
                            "the gateways produced different records for the same message"
                        );
                        self.handle.push_mismatch(mismatch);
                    }
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, "cannot read the log for a message that differs"),
                }
            }
            LinkMessage::LeadRequest { group } => self.handle.push_lead_request(from, group),
            LinkMessage::GapRequest(range) => self.answer_gap(&range, connection),
            LinkMessage::GapPacket { channel, bytes } => {
                // The channel itself refuses and counts datagrams of another session.
                let _refused = self.history.fill(channel, &bytes);
                if !self.channels.0(channel, ChannelMessage::Recovered(bytes.into())) {
                    self.peers[index].overflowed.insert(channel);
                }
            }
            // Copies of states and logs use separate connections.
            LinkMessage::CopyRequest { .. }
            | LinkMessage::CopySlice { .. }
            | LinkMessage::CopyEnd(_)
            | LinkMessage::LogRequest(_)
            | LinkMessage::LogEntries { .. }
            | LinkMessage::LogEnd { .. } => self.count_refused(Refusal::Unexpected),
            LinkMessage::GapEnd(range) => {
                // Part of the answer did not fit, so its end does not prove that the peer lacks the rest. The channel
                // then waits for its time-out and requests again; the same if there is no room for the end.
                if !self.peers[index].overflowed.remove(&range.channel) {
                    let _full = self.channels.0(range.channel, ChannelMessage::PeerAnswerEnded(range.first));
                }
            }
        }
    }

    /// Passes a peer's position to a local channel that stands still before it: perhaps no packet comes that would show what is missing.
    /// A channel that moves is not disturbed. If there is no room for the message, the next report follows soon.
    fn forward_position(&mut self, own: &ChannelStatus, report: &ChannelPositions, now: MonoNs) {
        let progress = self.progress.entry(report.channel).or_insert((own.logged_through, now));
        if progress.0 != own.logged_through {
            *progress = (own.logged_through, now);
        }
        let stands_still = now.since(progress.1) >= self.config.endpoints.period_ns;
        if let Some(position) = position_beyond(own, report).filter(|_| stands_still) {
            let _full = self.channels.0(report.channel, ChannelMessage::PeerReported(position));
        }
    }

    /// Answers with datagrams as the venue sent them, as far as they are stored and certainly of that session.
    fn answer_gap(&self, range: &InputRange, connection: &mut Connection) {
        let InputRange { channel, session, first, next } = *range;
        let logged_through = self.status_table.get(channel).and_then(|status| status.logged_through);
        if logged_through.is_some_and(|logged_through| logged_through.session == session) {
            let datagrams = self.history.range(channel, first, next, GAP_PACKETS_MAX);
            let is_to_come = || self.history.extent(channel).is_some_and(|extent| extent.next <= first);
            if datagrams.is_empty() && is_to_come() {
                // The requester is ahead of us, so an empty answer could be wrong. It requests again.
                return;
            }
            for datagram in datagrams {
                let _full = connection.send(&LinkMessage::GapPacket { channel, bytes: datagram.into() });
            }
        }
        let _full = connection.send(&LinkMessage::GapEnd(*range));
    }

    fn follow_up(
        &self,
        channel: ChannelId,
        compared: Result<Comparison, mdgw_publog::LogError>,
        connection: &mut Connection,
    ) {
        match compared {
            Ok(Comparison::Waiting) => {}
            Ok(Comparison::Equal) => self.handle.count_window(channel, |windows| windows.equal += 1),
            Ok(Comparison::Different(content)) => {
                self.handle.count_window(channel, |windows| windows.different += 1);
                let _full = connection.send(&content);
            }
            Err(error) => tracing::warn!(%error, "cannot read the log for a window whose hashes differ"),
        }
    }

    fn receive_datagrams(&mut self, now: MonoNs) {
        let mut datagram = [0; DATAGRAM_BYTES_MAX + 1];
        for _ in 0..READS_PER_TURN {
            let Ok((length, from)) = self.datagrams.recv_from(&mut datagram) else { return };
            self.handle.listener_counters.count_received();
            if let Err(refusal) = self.receive_datagram(&datagram[..length], from, now) {
                self.count_refused(refusal);
            }
        }
    }

    /// Source and length are checked first: junk from anywhere costs no authentication.
    fn receive_datagram(&mut self, datagram: &[u8], from: SocketAddr, now: MonoNs) -> Result<(), Refusal> {
        let SocketAddr::V4(from) = from else { return Err(Refusal::UnknownSource) };
        let is_same_host = |peer: &Peer| peer.end.address.ip() == from.ip();
        let exact = self.peers.iter().position(|peer| peer.end.address == from);
        let index = exact.or_else(|| self.peers.iter().position(is_same_host)).ok_or(Refusal::UnknownSource)?;
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
        // A peer's sentinel has no connection; as a rule the peer's connection has just ended.
        if Announcement::has_magic(datagram) {
            let opened = Announcement::open(datagram, &self.config.endpoints.key).ok_or(Refusal::Forged)?;
            self.handle.push_announcement(opened);
            return Ok(());
        }
        let connection = self.peers[index].current.as_mut().ok_or(Refusal::NoConnection)?;
        let node = connection.stream.peer_node().ok_or(Refusal::NoConnection)?;
        match connection.stream.open_datagram(datagram).map_err(LinkFault::refusal)? {
            LinkMessage::Election { serial, bytes } => self.handle.push_election(node, serial, &bytes),
            LinkMessage::Death { serial, bytes } => self.handle.push_death(serial, &bytes),
            _ => return Err(Refusal::Unexpected),
        }
        connection.received_at = now;
        add(&self.handle.counters.datagrams);
        Ok(())
    }

    fn end(&self, index: usize, connection: &Connection, cause: CloseCause) {
        if let Some(node) = connection.stream.peer_node() {
            self.handle.set_linked(node, false);
        }
        self.peer_gap_requests.set_linked(self.peers.iter().any(|peer| peer.current.is_some()));
        if let CloseCause::Refused(fault) = cause {
            self.count_refused(fault.refusal());
            tracing::error!(alarm = Alarm::PairLinkRefused.name(), %fault, "pair link");
        }
        tracing::warn!(alarm = Alarm::PairLinkDown.name(), peer = %self.peers[index].end.address, ?cause, "pair link is down");
    }
}

/// A peer's position, if it is beyond a local channel's in the same session: further ahead, or at the same place with the session ended.
fn position_beyond(own: &ChannelStatus, report: &ChannelPositions) -> Option<PeerPosition> {
    let theirs = report.logged_through.filter(|_| own.state != ChannelState::Ended)?;
    let has_ended = ChannelState::from_number(report.state) == Some(ChannelState::Ended);
    let is_beyond = own
        .logged_through
        .is_none_or(|own| own.session == theirs.session && (own < theirs || has_ended && own == theirs));
    is_beyond.then_some(PeerPosition { session: theirs.session, next: theirs.sequence, has_ended })
}

/// Why a connection was refused, as far as the log tells it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LoggedFault {
    OwnNode,
    Version,
    Unproven,
    Other,
}

impl LoggedFault {
    fn of(fault: LinkFault) -> Self {
        match fault {
            LinkFault::OwnNode => Self::OwnNode,
            LinkFault::Malformed(Malformed::Version { .. }) => Self::Version,
            LinkFault::Unproven { .. } => Self::Unproven,
            LinkFault::Malformed(_) | LinkFault::AuthError(_) => Self::Other,
        }
    }
}

/// How good a source a connected peer is for a missing range, by its reports. The greatest value is the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct GapCandidate {
    has_range: bool,
    has_reached: bool,
    has_history: bool,
}

/// Selects the peer to request from: one of the best, in turn. `None` while the connected peers hold nothing yet and
/// some peers are not connected.
fn choose_candidate(peers: &[Option<GapCandidate>], turn: usize) -> Option<usize> {
    let best = peers.iter().flatten().max()?;
    if !best.has_history && peers.iter().any(Option::is_none) {
        return None;
    }
    let asked = || peers.iter().enumerate().filter(|(_, peer)| peer.as_ref() == Some(best)).map(|(index, _)| index);
    asked().nth(turn % asked().count().max(1))
}

/// Shows bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A connection whose last input is younger than this is in use, ns. A running gateway sends far more often.
const ALIVE_NS: u64 = 500_000_000;
/// How long after the start a peer without any connection is reported, ns. Two gateways are rarely started at the same
/// moment.
const NEVER_CONNECTED_NS: u64 = 10_000_000_000;
const REFUSED_LOGGED_MAX: usize = 64;
/// Longest time that a queued message without a wake-up waits.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const DIAL_INTERVAL_NS: u64 = 100_000_000;
/// Time without input after which a connection counts as dead, ns. Positions arrive every few tens of milliseconds.
const SILENCE_NS_MAX: u64 = 1_000_000_000;
/// Maximum number of datagrams in an answer: less than the room in a channel's inbox. The channel requests the rest at
/// once. A gateway that rejoins in mid-session requests in steps of this size. With 32 datagrams, waiting for the
/// answers took most of its time.
const GAP_PACKETS_MAX: usize = 256;
/// Longest datagram that is authenticated: several times the longest urgent message, and one that an attacker can repeat
/// at little cost to this gateway.
const DATAGRAM_BYTES_MAX: usize = 4_096;
/// Maximum number of connections that are accepted in a turn.
const ACCEPTS_PER_TURN: usize = 16;
/// Pause after a failed accept, ns: out of descriptors, some may become free.
const ACCEPT_PAUSE_NS: u64 = 1_000_000_000;
/// Maximum number of state copies at a time. A further requester is asked to retry.
const COPIES_MAX: usize = 4;

#[cfg(test)]
mod tests;
