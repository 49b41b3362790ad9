//! The link's thread: connections to all peers, datagrams, a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket},
    os::{fd::AsFd as _, unix::net::UnixDatagram},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_election::{
    announcement::Announcement,
    auth::{Nonce, SharedKey, Unauthentic},
};
use mdgw_engine::pipeline::{ChannelMessage, PeerGap, PeerGaps};
use mdgw_feeds::{
    identity::{ChannelId, GroupId},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_sys::{clock::mono_now, poll, scheduler::spawn_prompt};

use super::{
    connection::{Connection, Over, READS_PER_TURN, connect},
    copy_out::CopyOut,
    desk::{Outgoing, PairDesk, add},
    framing::LinkFault,
    message::{ChannelPositions, InputRange, KeptInput, LinkMessage},
    mismatch::{Compared, MismatchWatch},
};
use crate::standby::{Board, Hearing, InputHistory, KnownEpochs};

/// The ends of a gateway's links, as it sees them.
#[derive(Clone, Debug)]
pub struct PairEnds {
    /// Where this one listens, for TCP and UDP.
    pub listen: SocketAddrV4,
    /// The others.
    pub peers: Vec<PeerEnd>,
    /// What all share.
    pub key: SharedKey,
    /// Positions are told so often, ns.
    pub period_ns: u64,
}

/// Another gateway's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// Its number; `None` where there is no other: whoever has the key.
    pub node: Option<u8>,
    /// Where it listens.
    pub address: SocketAddrV4,
}

/// How gateways are linked.
#[derive(Clone, Debug)]
pub struct PairLinkConfig {
    /// This gateway's number.
    pub node: u8,
    /// Addresses and key.
    pub ends: PairEnds,
}

/// What the link tells and is told of.
#[derive(Debug)]
pub struct PairParts {
    /// Positions and windows of the own channels.
    pub board: Arc<Board>,
    /// Epochs of each group, for which the peers vouch too.
    pub epochs: BTreeMap<GroupId, Arc<KnownEpochs>>,
    /// The channels' logs.
    pub logs: BTreeMap<ChannelId, PathBuf>,
    /// What the own channels lack.
    pub peer_gaps: Arc<PeerGaps>,
    /// What the peers may lack.
    pub history: Arc<InputHistory>,
    /// The own channels.
    pub channels: Channels,
}

/// How the own channels are told something.
pub struct Channels(Box<dyn FnMut(ChannelId, ChannelMessage) -> bool + Send>);

impl Channels {
    /// By that function, which must not wait. It says whether the channel had room for the message.
    #[must_use]
    pub fn new(tell: impl FnMut(ChannelId, ChannelMessage) -> bool + Send + 'static) -> Self {
        Self(Box::new(tell))
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channels")
    }
}

/// The running link. Ends when it is dropped.
#[derive(Debug)]
pub struct PairLink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    desk: Arc<PairDesk>,
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum PairLinkError {
    /// The own address can't be used.
    #[error("pair link cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: SocketAddrV4,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another gateway is configured with this one's address.
    #[error("pair link: listen and peer are both {0}")]
    OneAddress(SocketAddrV4),
    /// The thread.
    #[error("cannot start the pair link's thread: {0}")]
    Thread(#[source] io::Error),
}

impl PairLink {
    /// Listens, and dials where it is this gateway's part.
    ///
    /// # Errors
    /// When the address can't be used, or a thread can't be had. A peer that isn't there is no error.
    pub fn start(config: PairLinkConfig, parts: PairParts) -> Result<Self, PairLinkError> {
        let address = config.ends.listen;
        if config.ends.peers.iter().any(|peer| peer.address == address) {
            return Err(PairLinkError::OneAddress(address));
        }
        let listen = |source| PairLinkError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let datagrams = UdpSocket::bind(address).map_err(listen)?;
        datagrams.set_nonblocking(true).map_err(listen)?;
        let serial = Nonce::random().map_err(listen)?.number();
        let (bell, rung) = UnixDatagram::pair().map_err(PairLinkError::Thread)?;
        for end in [&bell, &rung] {
            end.set_nonblocking(true).map_err(PairLinkError::Thread)?;
        }
        let desk = Arc::new(PairDesk::new(serial, bell));
        let PairParts { board, epochs, logs, peer_gaps, history, channels } = parts;
        let begun = mono_now();
        let peer = |end: &PeerEnd| Peer {
            end: *end,
            current: None,
            dial_at: MonoNs(0),
            absent_from: Some(begun),
            watch: MismatchWatch::new(logs.clone()),
            spilled: BTreeSet::new(),
        };
        let link = Link {
            peers: config.ends.peers.iter().map(peer).collect(),
            config,
            listener,
            datagrams,
            rung,
            pending: Vec::new(),
            tell_at: MonoNs(0),
            gaps_asked: 0,
            strangers: BTreeSet::new(),
            twins: BTreeSet::new(),
            refused: BTreeSet::new(),
            board,
            epochs,
            peer_gaps,
            history,
            channels,
            copies: Vec::new(),
            desk: Arc::clone(&desk),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&stop);
        let thread = spawn_prompt("mdgw-pair", move || link.run(&of_thread)).map_err(PairLinkError::Thread)?;
        Ok(Self { stop, thread: Some(thread), desk })
    }

    /// Where messages are left and found.
    #[must_use]
    pub fn desk(&self) -> &Arc<PairDesk> {
        &self.desk
    }
}

impl Drop for PairLink {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been told when it came; the gateway goes on without a link.
            let _panic = thread.join();
        }
    }
}

/// Another gateway.
#[derive(Debug)]
struct Peer {
    end: PeerEnd,
    /// The connection that has proved the key last.
    current: Option<Connection>,
    dial_at: MonoNs,
    /// Since the link's start there has been no connection; `None`: there has been, or that was told.
    absent_from: Option<MonoNs>,
    watch: MismatchWatch,
    /// Channels that had no room for all of the answer which is coming in.
    spilled: BTreeSet<ChannelId>,
}

#[derive(Debug)]
struct Link {
    config: PairLinkConfig,
    listener: TcpListener,
    datagrams: UdpSocket,
    /// The desk's bell.
    rung: UnixDatagram,
    peers: Vec<Peer>,
    /// Connections that have not proved the key yet.
    pending: Vec<Connection>,
    tell_at: MonoNs,
    gaps_asked: usize,
    /// Numbers that aren't configured, or not there: each is told once.
    strangers: BTreeSet<u8>,
    /// Numbers that two gateways have: each is told once.
    twins: BTreeSet<u8>,
    /// Addresses whose connections were refused, and whether for this gateway's own number: each is told once.
    refused: BTreeSet<(IpAddr, bool)>,
    board: Arc<Board>,
    epochs: BTreeMap<GroupId, Arc<KnownEpochs>>,
    peer_gaps: Arc<PeerGaps>,
    history: Arc<InputHistory>,
    channels: Channels,
    /// What others are given of our channels.
    copies: Vec<CopyOut>,
    desk: Arc<PairDesk>,
}

impl Link {
    fn run(mut self, stop: &AtomicBool) {
        // Relaxed: the flag orders nothing, and a look a millisecond later is as good.
        while !stop.load(Relaxed) {
            self.turn(mono_now());
            let current = self.peers.iter().filter_map(|peer| peer.current.as_ref());
            let connections = current.chain(&self.pending).map(|connection| connection.socket.as_fd());
            let own = [self.listener.as_fd(), self.datagrams.as_fd(), self.rung.as_fd()];
            let sockets = own.into_iter().chain(connections);
            if let Err(error) = poll::readable(sockets, TURN) {
                tracing::error!(%error, "pair link");
                std::thread::sleep(TURN);
            }
        }
    }

    fn turn(&mut self, now: MonoNs) {
        // Before what it was rung for is looked at.
        while self.rung.recv(&mut [0]).is_ok() {}
        self.accept(now);
        self.dial(now);
        self.hear_pending(now);
        for index in 0..self.peers.len() {
            self.with(index, |link, connection| link.hear(index, connection, now));
        }
        self.tell_absent(now);
        self.tell_all(now);
        for index in 0..self.peers.len() {
            self.with(index, |_, connection| connection.flush());
        }
        self.hear_datagrams(now);
        self.go_on_copying(now);
        let channels = &mut self.channels.0;
        self.board.tell_gaps(|channel, session| channels(channel, ChannelMessage::PeerDeclaredGap(session)));
    }

    /// Does something with the connection to a peer, if there is one; what fails ends it.
    fn with(&mut self, index: usize, act: impl FnOnce(&mut Self, &mut Connection) -> Result<(), Over>) {
        let Some(mut connection) = self.peers[index].current.take() else { return };
        match act(self, &mut connection) {
            Ok(()) => self.peers[index].current = Some(connection),
            Err(over) => self.end(index, &connection, over),
        }
    }

    /// Whoever never was there is told of like one that has gone.
    fn tell_absent(&mut self, now: MonoNs) {
        for peer in &mut self.peers {
            if peer.absent_from.take_if(|since| now.since(*since) >= ABSENT_NS).is_some() {
                tracing::warn!(alarm = "pair-link-down", peer = %peer.end.address, "pair link has not come up since the start");
            }
        }
    }

    fn accept(&mut self, now: MonoNs) {
        while let Ok((socket, _)) = self.listener.accept() {
            // Whoever can't prove the key soon makes room for the next.
            if self.pending.len() == PENDING_MAX {
                self.pending.remove(0);
                add(&self.desk.counters.refused);
            }
            self.pending.extend(Connection::new(socket, None, &self.config, now).ok());
        }
    }

    fn dial(&mut self, now: MonoNs) {
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let is_ours = self.config.ends.listen < peer.end.address;
            let is_under_way = self.pending.iter().any(|connection| connection.dialled == Some(index));
            if !is_ours || peer.current.is_some() || is_under_way || now < peer.dial_at {
                continue;
            }
            peer.dial_at = now.plus(DIAL_INTERVAL_NS);
            if let Ok(socket) = connect(peer.end.address) {
                self.pending.extend(Connection::new(socket, Some(index), &self.config, now).ok());
            }
        }
    }

    /// A connection whose first message is authentic takes the place of the present one to that gateway.
    fn hear_pending(&mut self, now: MonoNs) {
        for mut connection in std::mem::take(&mut self.pending) {
            let heard = connection.fill().and_then(|()| connection.stream.next_message().map_err(Over::Refused));
            match heard.and_then(|message| self.greet(&mut connection).map(|()| message)) {
                Ok(Some(message)) => self.meet(connection, message, now),
                Ok(None) if now.since(connection.heard_at) < SILENCE_NS_MAX => self.pending.push(connection),
                Err(Over::Refused(fault)) => self.refuse(&connection, fault),
                // A peer that isn't there.
                Ok(None) | Err(Over::Closed) if connection.dialled.is_some() => {}
                Ok(None) | Err(_) => add(&self.desk.counters.refused),
            }
        }
    }

    fn meet(&mut self, mut connection: Connection, message: LinkMessage, now: MonoNs) {
        let Some(node) = connection.stream.peer_node() else { return };
        let is_of = |peer: &Peer| peer.end.node.is_none_or(|of| of == node);
        let is_dialled = |index: &usize| connection.dialled.is_none_or(|dialled| dialled == *index);
        let Some(index) = self.peers.iter().position(is_of).filter(is_dialled) else {
            add(&self.desk.counters.refused);
            if self.strangers.insert(node) {
                let dialled = connection.dialled.map(|index| self.peers[index].end);
                tracing::warn!(node, ?dialled, "pair link: a gateway of a number that isn't configured, or not there");
            }
            return;
        };
        if let LinkMessage::CopyAsk { channel } = message {
            self.begin_copy(connection, channel, now);
            return;
        }
        let is_alive = |before: &Connection| now.since(before.heard_at) < ALIVE_NS && before.ip() != connection.ip();
        if self.peers[index].end.node.is_some() && self.peers[index].current.as_ref().is_some_and(is_alive) {
            add(&self.desk.counters.refused);
            if self.twins.insert(node) {
                let (first, second) = (self.peers[index].current.as_ref().and_then(Connection::ip), connection.ip());
                tracing::error!(
                    alarm = "number-twice",
                    node,
                    ?first,
                    ?second,
                    "pair link: two gateways have one number: the second is refused while the first is there"
                );
            }
            return;
        }
        // Where only the key tells who it is, it may be another one than before.
        if let Some(before) = self.peers[index].current.take().and_then(|before| before.stream.peer_node()) {
            self.desk.set_linked(before, false);
        }
        connection.heard_at = now;
        add(&self.desk.counters.connections);
        self.desk.set_linked(node, true);
        self.peer_gaps.set_linked(true);
        tracing::info!(peer = %self.peers[index].end.address, node, "pair link is up");
        self.peers[index].spilled.clear();
        self.peers[index].absent_from = None;
        self.peers[index].current = Some(connection);
        self.with(index, |link, connection| {
            link.take(message, index, connection, now);
            Ok(())
        });
    }

    /// Whoever it is, it has not proved that it has the key. Each address is told of once.
    fn refuse(&mut self, connection: &Connection, fault: LinkFault) {
        add(&self.desk.counters.refused);
        let Some(peer) = connection.ip() else { return };
        let is_namesake = fault == LinkFault::Oneself;
        if self.refused.len() < REFUSED_TOLD_MAX && self.refused.insert((peer, is_namesake)) {
            let alarm = if is_namesake { "number-twice" } else { "pair-link-refused" };
            tracing::error!(alarm, %peer, %fault, "pair link");
        }
    }

    /// A gateway that joins wants a channel's state.
    fn begin_copy(&mut self, connection: Connection, channel: ChannelId, now: MonoNs) {
        let node = connection.stream.peer_node();
        // One at a time of each channel; and whoever comes too often doesn't fill our memory.
        let is_free = self.copies.len() < COPIES_MAX && self.copies.iter().all(|copy| copy.channel() != channel);
        tracing::info!(node, channel = channel.0, is_free, "another gateway takes a copy of the channel's state");
        self.copies.push(CopyOut::new(connection, channel, is_free, now));
        if self.copies.len() > 2 * COPIES_MAX {
            self.copies.pop();
            add(&self.desk.counters.refused);
        }
    }

    fn go_on_copying(&mut self, now: MonoNs) {
        let mut copies = std::mem::take(&mut self.copies);
        let tell = &mut self.channels.0;
        copies.retain_mut(|copy| copy.turn(&mut |channel, turn| tell(channel, ChannelMessage::Copy(turn)), now));
        self.copies = copies;
    }

    /// The first message proves our key to the other end.
    fn greet(&self, connection: &mut Connection) -> Result<(), Over> {
        if !connection.has_greeted && connection.stream.has_met() {
            connection.has_greeted = true;
            let positions = self.positions();
            connection.tell(&positions)?;
        }
        connection.flush()
    }

    fn hear(&mut self, index: usize, connection: &mut Connection, now: MonoNs) -> Result<(), Over> {
        connection.fill()?;
        while let Some(message) = connection.stream.next_message().map_err(Over::Refused)? {
            connection.heard_at = now;
            self.take(message, index, connection, now);
        }
        if now.since(connection.heard_at) >= SILENCE_NS_MAX { Err(Over::Silent) } else { Ok(()) }
    }

    /// What there is to say. Without anybody connected it waits.
    fn tell_all(&mut self, now: MonoNs) {
        if self.peers.iter().all(|peer| peer.current.is_none()) {
            return;
        }
        while let Some(Outgoing { to, message, copies }) = self.desk.out.pop() {
            for index in 0..self.peers.len() {
                self.with(index, |link, connection| {
                    let is_meant = to.is_none() || to == connection.stream.peer_node();
                    if is_meant { link.tell(&message, copies, index, connection) } else { Ok(()) }
                });
            }
        }
        while let Some(gap) = self.peer_gaps.take() {
            let PeerGap { channel, session, first, next } = gap;
            // Without an answer it is asked again.
            if let Some(index) = self.whom_to_ask(&gap) {
                let question = LinkMessage::GapAsk(InputRange { channel, session, first, next });
                self.with(index, |_, connection| connection.tell(&question));
            }
        }
        while let Some(window) = self.board.take_window() {
            for index in 0..self.peers.len() {
                self.with(index, |link, connection| {
                    connection.tell(&LinkMessage::WindowHash(window))?;
                    let compared = link.peers[index].watch.accept_ours(window);
                    link.follow_up(window.channel, compared, connection);
                    Ok(())
                });
            }
        }
        if now >= self.tell_at {
            self.tell_at = now.plus(self.config.ends.period_ns);
            let positions = self.positions();
            for index in 0..self.peers.len() {
                self.with(index, |_, connection| connection.tell(&positions));
            }
        }
    }

    fn whom_to_ask(&mut self, gap: &PeerGap) -> Option<usize> {
        let until = StreamPosition::at(gap.session, gap.next);
        let of_peer = |peer: &Peer| {
            let node = peer.current.as_ref()?.stream.peer_node()?;
            let told = self.desk.told_by(node, gap.channel);
            let has_come = told.and_then(|told| told.ready).is_some_and(|ready| ready >= until);
            let kept = told.and_then(|told| told.kept);
            let keeps_it = has_come && kept.is_some_and(|kept| (kept.from..kept.until).contains(&gap.first));
            Some(ForGap { keeps_it, has_come, keeps_any: kept.is_some() })
        };
        let peers: Vec<_> = self.peers.iter().map(of_peer).collect();
        self.gaps_asked = self.gaps_asked.wrapping_add(1);
        choose(&peers, self.gaps_asked)
    }

    fn tell(
        &self,
        message: &LinkMessage,
        copies: usize,
        index: usize,
        connection: &mut Connection,
    ) -> Result<(), Over> {
        if copies > 0
            && let Some(datagram) = connection.stream.seal_datagram(message)
        {
            for _ in 0..copies {
                // It goes on the connection too.
                let _may_fail = self.datagrams.send_to(&datagram, self.peers[index].end.address);
            }
        }
        connection.tell(message)
    }

    fn positions(&self) -> LinkMessage {
        let hears_probe = self.board.hearing(mono_now()) == Hearing::Hears;
        let positions = self.board.all().into_iter().map(|(channel, board)| {
            let epochs = self.epochs.get(&board.group);
            let epoch = epochs.map_or(board.heard.epoch, |epochs| epochs.highest());
            ChannelPositions {
                channel,
                ready: board.ready,
                published: board.published,
                heard: board.echo,
                hears_probe,
                epoch,
                state: board.state as u8,
                kept: self.history.extent(channel).map(KeptInput::from),
            }
        });
        LinkMessage::Positions(positions.collect())
    }

    fn take(&mut self, message: LinkMessage, index: usize, connection: &mut Connection, now: MonoNs) {
        add(&self.desk.counters.messages);
        let Some(from) = connection.stream.peer_node() else { return };
        match message {
            LinkMessage::Positions(positions) => {
                for told in &positions {
                    let group = self.board.get(told.channel).map(|board| board.group);
                    if let Some(epochs) = group.and_then(|group| self.epochs.get(&group)) {
                        epochs.vouch(told.epoch);
                    }
                    if let Some(published) = told.published {
                        self.board.confirm(told.channel, published);
                    }
                }
                self.desk.put_positions(from, &positions, now);
            }
            LinkMessage::Election { serial, bytes } => self.desk.put_election(from, serial, &bytes),
            LinkMessage::Death { serial, bytes } => self.desk.put_death(serial, &bytes),
            LinkMessage::WindowHash(window) => {
                // The one in which this gateway began to follow it can't have alike.
                if self.board.get(window.channel).is_some_and(|board| board.has_seen(&window)) {
                    self.desk.count_window(window.channel, |windows| windows.told += 1);
                }
                let compared = self.peers[index].watch.accept_theirs(window);
                self.follow_up(window.channel, compared, connection);
            }
            LinkMessage::WindowContent(content) => match self.peers[index].watch.accept_content(&content) {
                Ok(Some(record)) => {
                    // Both show both: the peer gets ours, and asks nothing back.
                    let _full = connection.tell(&record);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "a window that differs can't be read"),
            },
            LinkMessage::Record { channel, session, sequence, records } => {
                match self.peers[index].watch.accept_record(channel, session, sequence, records) {
                    Ok(Some(mismatch)) => {
                        tracing::error!(
                            alarm = "gateways-differ",
                            channel = channel.0,
                            %session,
                            sequence = sequence.0,
                            ours = %Hex(&mismatch.ours),
                            theirs = %Hex(&mismatch.theirs),
                            "the two gateways made different records of one message"
                        );
                        self.desk.put_mismatch(mismatch);
                    }
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, "a message that differs can't be read"),
                }
            }
            LinkMessage::LeadAsk { group } => self.desk.put_lead_ask(from, group),
            LinkMessage::GapAsk(range) => self.answer_gap(&range, connection),
            LinkMessage::GapPacket { channel, bytes } => {
                // What is none of the numbering that is kept is for the channel to refuse and to count.
                let _refused = self.history.complete(channel, &bytes);
                if !self.channels.0(channel, ChannelMessage::Recovered(bytes.into())) {
                    self.peers[index].spilled.insert(channel);
                }
            }
            // They have connections of their own.
            LinkMessage::CopyAsk { .. } | LinkMessage::CopySlice { .. } | LinkMessage::CopyEnd(_) => {
                add(&self.desk.counters.refused);
            }
            LinkMessage::GapEnd(range) => {
                // Part of the answer was spilled: it doesn't show what the peer lacks. Then, as without room for its end,
                // whoever asked waits for its time-out and asks again.
                if !self.peers[index].spilled.remove(&range.channel) {
                    let _full = self.channels.0(range.channel, ChannelMessage::PeerAnswered(range.first));
                }
            }
        }
    }

    /// With datagrams as the venue sent them, as far as they are kept and surely of that numbering.
    fn answer_gap(&self, range: &InputRange, connection: &mut Connection) {
        let InputRange { channel, session, first, next } = *range;
        let ready = self.board.get(channel).and_then(|board| board.ready);
        if ready.is_some_and(|ready| ready.session == session) {
            let datagrams = self.history.range(channel, first, next, GAP_PACKETS_MAX);
            let is_to_come = || self.history.extent(channel).is_some_and(|extent| extent.next <= first);
            if datagrams.is_empty() && is_to_come() {
                // Who asks is ahead of us; to say that there is none would be rash. It asks again.
                return;
            }
            for datagram in datagrams {
                let _full = connection.tell(&LinkMessage::GapPacket { channel, bytes: datagram.into() });
            }
        }
        let _full = connection.tell(&LinkMessage::GapEnd(*range));
    }

    fn follow_up(
        &self,
        channel: ChannelId,
        compared: Result<Compared, mdgw_publog::LogError>,
        connection: &mut Connection,
    ) {
        match compared {
            Ok(Compared::Waiting) => {}
            Ok(Compared::Equal) => self.desk.count_window(channel, |windows| windows.equal += 1),
            Ok(Compared::Different(content)) => {
                self.desk.count_window(channel, |windows| windows.different += 1);
                let _full = connection.tell(&content);
            }
            Err(error) => tracing::warn!(%error, "a window that differs can't be read"),
        }
    }

    fn hear_datagrams(&mut self, now: MonoNs) {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..READS_PER_TURN {
            let Ok((length, from)) = self.datagrams.recv_from(&mut datagram) else { return };
            let SocketAddr::V4(from) = from else { continue };
            let is_near = |peer: &Peer| peer.end.address.ip() == from.ip();
            // From a peer's sentinel, which has no connection; as a rule the peer's has just ended.
            if Announcement::is_one(&datagram[..length]) && self.peers.iter().any(is_near) {
                match Announcement::open(&datagram[..length], &self.config.ends.key) {
                    Some(announcement) => self.desk.put_announcement(announcement),
                    None => add(&self.desk.counters.refused),
                }
                continue;
            }
            let exact = self.peers.iter().position(|peer| peer.end.address == from);
            let Some(index) = exact.or_else(|| self.peers.iter().position(is_near)) else { continue };
            let Some(connection) = self.peers[index].current.as_mut() else { continue };
            let Some(node) = connection.stream.peer_node() else { continue };
            match connection.stream.open_datagram(&datagram[..length]) {
                Ok(LinkMessage::Election { serial, bytes }) => self.desk.put_election(node, serial, &bytes),
                Ok(LinkMessage::Death { serial, bytes }) => self.desk.put_death(serial, &bytes),
                // The second and third copy, and whatever has no place here.
                Ok(_) => continue,
                Err(LinkFault::Unauthentic(Unauthentic::Replayed)) => continue,
                Err(_) => {
                    add(&self.desk.counters.refused);
                    continue;
                }
            }
            connection.heard_at = now;
            add(&self.desk.counters.datagrams);
        }
    }

    fn end(&self, index: usize, connection: &Connection, over: Over) {
        if let Some(node) = connection.stream.peer_node() {
            self.desk.set_linked(node, false);
        }
        self.peer_gaps.set_linked(self.peers.iter().any(|peer| peer.current.is_some()));
        if let Over::Refused(fault) = over {
            add(&self.desk.counters.refused);
            tracing::error!(alarm = "pair-link-refused", %fault, "pair link");
        }
        tracing::warn!(alarm = "pair-link-down", peer = %self.peers[index].end.address, ?over, "pair link is down");
    }
}

/// What a peer that is there has told that matters to a gap; the best is the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct ForGap {
    keeps_it: bool,
    has_come: bool,
    keeps_any: bool,
}

/// Whom to ask: one of the best, each in turn. Nobody, while those that are there keep nothing yet and others aren't there.
fn choose(peers: &[Option<ForGap>], turn: usize) -> Option<usize> {
    let best = peers.iter().flatten().max()?;
    if !best.keeps_any && peers.iter().any(Option::is_none) {
        return None;
    }
    let asked = || peers.iter().enumerate().filter(|(_, peer)| peer.as_ref() == Some(best)).map(|(index, _)| index);
    asked().nth(turn % asked().count().max(1))
}

/// Bytes as digits.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A gateway that runs says something far more often.
const ALIVE_NS: u64 = 500_000_000;
/// Two gateways are hardly ever started in one moment.
const ABSENT_NS: u64 = 10_000_000_000;
const REFUSED_TOLD_MAX: usize = 64;
/// How long a message left at the desk for which the bell isn't rung waits at most for the thread to look.
const TURN: Duration = Duration::from_millis(1);
const DIAL_INTERVAL_NS: u64 = 100_000_000;
/// Positions come every few tens of milliseconds; a connection on which nothing does is dead.
const SILENCE_NS_MAX: u64 = 1_000_000_000;
/// Less than the room in a channel's inbox; the rest is asked for at once. A gateway that comes back in the middle of a day waits
/// for so many packets at a time: with 32 it was the waiting that took its time.
const GAP_PACKETS_MAX: usize = 256;
/// Connections that have not proved the key: room for all peers at once, and for strangers.
const PENDING_MAX: usize = 32;
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Channels that are copied at a time. Another one that wants to is told to ask again.
const COPIES_MAX: usize = 4;

#[cfg(test)]
mod tests;
