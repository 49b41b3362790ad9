//! The link's thread: sockets and a clock around [`LinkStream`].

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_feeds::{
    identity::{ChannelId, GroupId},
    time::MonoNs,
};

use super::{
    desk::{PairDesk, add},
    framing::{LinkFault, LinkStream},
    message::{ChannelPositions, InputRange, KeptInput, LinkMessage},
    mismatch::{Compared, MismatchWatch},
};
use crate::{
    election::auth::{Nonce, SharedKey, Unauthentic},
    pipeline::{ChannelMessage, PeerGap, PeerGaps},
    sentinel::announcement::Announcement,
    standby::{Board, Hearing, InputHistory, KnownEpochs},
    sys::{clock::mono_now, poll},
};

/// The two ends of a link, as one of them sees it.
#[derive(Clone, Debug)]
pub struct PairEnds {
    /// Where this one listens, for TCP and UDP.
    pub listen: SocketAddrV4,
    /// Where the other one does.
    pub peer: SocketAddrV4,
    /// What both share.
    pub key: SharedKey,
    /// Positions are told so often, ns.
    pub period_ns: u64,
}

/// How two gateways are linked.
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
    /// Epochs of each group, for which the peer vouches too.
    pub epochs: BTreeMap<GroupId, Arc<KnownEpochs>>,
    /// The channels' logs.
    pub logs: BTreeMap<ChannelId, PathBuf>,
    /// What the own channels lack.
    pub peer_gaps: Arc<PeerGaps>,
    /// What the peer may lack.
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
    /// Both gateways are configured with one address.
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
        if address == config.ends.peer {
            return Err(PairLinkError::OneAddress(address));
        }
        let listen = |source| PairLinkError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let datagrams = UdpSocket::bind(address).map_err(listen)?;
        datagrams.set_nonblocking(true).map_err(listen)?;
        let serial = Nonce::random().map_err(listen)?.number();
        let desk = Arc::new(PairDesk::new(serial));
        let PairParts { board, epochs, logs, peer_gaps, history, channels } = parts;
        let link = Link {
            config,
            listener,
            datagrams,
            current: None,
            pending: Vec::new(),
            dial_at: MonoNs(0),
            tell_at: MonoNs(0),
            board,
            epochs,
            watch: MismatchWatch::new(logs),
            peer_gaps,
            history,
            channels,
            desk: Arc::clone(&desk),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("mdgw-pair".to_owned())
            .spawn(move || link.run(&of_thread))
            .map_err(PairLinkError::Thread)?;
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

/// One TCP connection.
#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    stream: LinkStream,
    /// What the kernel has not taken yet.
    unsent: Vec<u8>,
    has_greeted: bool,
    /// When something authentic came last, or the connection was made.
    heard_at: MonoNs,
}

impl Connection {
    fn new(socket: TcpStream, config: &PairLinkConfig, now: MonoNs) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let stream = LinkStream::new(config.ends.key.clone(), config.node, Nonce::random()?);
        let unsent = stream.hello().to_vec();
        Ok(Self { socket, stream, unsent, has_greeted: false, heard_at: now })
    }

    fn tell(&mut self, message: &LinkMessage) -> Result<(), Over> {
        if let Some(bytes) = self.stream.seal(message) {
            self.unsent.extend(bytes);
        }
        // A peer that doesn't read is as good as gone.
        if self.unsent.len() > UNSENT_BYTES_MAX { Err(Over::Silent) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Over> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(0) => return Err(Over::Closed),
                Ok(count) => _ = self.unsent.drain(..count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Over::Closed),
            }
        }
        Ok(())
    }

    /// Reads what is there, within a quota.
    fn fill(&mut self) -> Result<(), Over> {
        let mut bytes = [0; 16 << 10];
        for _ in 0..READS_PER_TURN {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(Over::Closed),
                Ok(count) => self.stream.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Over::Closed),
            }
        }
        Ok(())
    }
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Closed,
    Silent,
    Refused(LinkFault),
}

#[derive(Debug)]
struct Link {
    config: PairLinkConfig,
    listener: TcpListener,
    datagrams: UdpSocket,
    /// The one that has proved the key last.
    current: Option<Connection>,
    /// Those that have not yet.
    pending: Vec<Connection>,
    dial_at: MonoNs,
    tell_at: MonoNs,
    board: Arc<Board>,
    epochs: BTreeMap<GroupId, Arc<KnownEpochs>>,
    watch: MismatchWatch,
    peer_gaps: Arc<PeerGaps>,
    history: Arc<InputHistory>,
    channels: Channels,
    desk: Arc<PairDesk>,
}

impl Link {
    fn run(mut self, stop: &AtomicBool) {
        // Relaxed: the flag orders nothing, and a look a millisecond later is as good.
        while !stop.load(Relaxed) {
            self.turn(mono_now());
            let connections = self.current.iter().chain(&self.pending).map(|connection| connection.socket.as_fd());
            let sockets = [self.listener.as_fd(), self.datagrams.as_fd()].into_iter().chain(connections);
            if let Err(error) = poll::readable(sockets, TURN) {
                tracing::error!(%error, "pair link");
                std::thread::sleep(TURN);
            }
        }
    }

    fn turn(&mut self, now: MonoNs) {
        self.accept(now);
        self.dial(now);
        self.hear_pending(now);
        if let Some(mut connection) = self.current.take() {
            match self.converse(&mut connection, now) {
                Ok(()) => self.current = Some(connection),
                Err(over) => self.end(over),
            }
        }
        self.hear_datagrams(now);
        let channels = &mut self.channels.0;
        self.board.tell_gaps(|channel, session| channels(channel, ChannelMessage::PeerDeclaredGap(session)));
    }

    fn accept(&mut self, now: MonoNs) {
        while let Ok((socket, _)) = self.listener.accept() {
            // Whoever can't prove the key soon makes room for the next.
            if self.pending.len() == PENDING_MAX {
                self.pending.remove(0);
                add(&self.desk.counters.refused);
            }
            self.pending.extend(Connection::new(socket, &self.config, now).ok());
        }
    }

    fn dial(&mut self, now: MonoNs) {
        let is_ours = self.config.ends.listen < self.config.ends.peer;
        if !is_ours || self.current.is_some() || !self.pending.is_empty() || now < self.dial_at {
            return;
        }
        self.dial_at = now.plus(DIAL_INTERVAL_NS);
        if let Ok(socket) = TcpStream::connect_timeout(&self.config.ends.peer.into(), DIAL_PATIENCE) {
            self.pending.extend(Connection::new(socket, &self.config, now).ok());
        }
    }

    /// A connection whose first message is authentic takes the place of the present one.
    fn hear_pending(&mut self, now: MonoNs) {
        for mut connection in std::mem::take(&mut self.pending) {
            let heard = connection.fill().and_then(|()| connection.stream.next_message().map_err(Over::Refused));
            match heard.and_then(|message| self.greet(&mut connection).map(|()| message)) {
                Ok(Some(message)) => {
                    connection.heard_at = now;
                    add(&self.desk.counters.connections);
                    self.desk.set_peer_node(connection.stream.peer_node());
                    self.peer_gaps.set_linked(true);
                    tracing::info!(peer = %self.config.ends.peer, node = connection.stream.peer_node(), "pair link is up");
                    self.take(message, &mut connection, now);
                    self.current = Some(connection);
                }
                Ok(None) if now.since(connection.heard_at) < SILENCE_NS_MAX => self.pending.push(connection),
                Ok(None) | Err(_) => add(&self.desk.counters.refused),
            }
        }
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

    /// Everything that goes to and fro.
    fn converse(&mut self, connection: &mut Connection, now: MonoNs) -> Result<(), Over> {
        connection.fill()?;
        while let Some(message) = connection.stream.next_message().map_err(Over::Refused)? {
            connection.heard_at = now;
            self.take(message, connection, now);
        }
        if now.since(connection.heard_at) >= SILENCE_NS_MAX {
            return Err(Over::Silent);
        }
        while let Some(message) = self.desk.out.pop() {
            self.tell(&message, connection)?;
        }
        while let Some(PeerGap { channel, session, first, next }) = self.peer_gaps.take() {
            connection.tell(&LinkMessage::GapAsk(InputRange { channel, session, first, next }))?;
        }
        while let Some(window) = self.board.take_window() {
            connection.tell(&LinkMessage::WindowHash(window))?;
            let compared = self.watch.accept_ours(window);
            self.follow_up(compared, connection);
        }
        if now >= self.tell_at {
            self.tell_at = now.plus(self.config.ends.period_ns);
            let positions = self.positions();
            connection.tell(&positions)?;
        }
        connection.flush()
    }

    fn tell(&self, message: &LinkMessage, connection: &mut Connection) -> Result<(), Over> {
        if message.is_urgent()
            && let Some(datagram) = connection.stream.seal_datagram(message)
        {
            for _ in 0..DATAGRAM_COPIES {
                // It goes on the connection too.
                let _may_fail = self.datagrams.send_to(&datagram, self.config.ends.peer);
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

    fn take(&mut self, message: LinkMessage, connection: &mut Connection, now: MonoNs) {
        add(&self.desk.counters.messages);
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
                self.desk.put_positions(&positions, now);
            }
            LinkMessage::Election { serial, bytes } => self.desk.put_election(serial, &bytes),
            LinkMessage::Death { serial, bytes } => self.desk.put_death(serial, &bytes),
            LinkMessage::WindowHash(window) => {
                add(&self.desk.counters.windows_told);
                let compared = self.watch.accept_theirs(window);
                self.follow_up(compared, connection);
            }
            LinkMessage::WindowContent(content) => match self.watch.accept_content(&content) {
                Ok(Some(record)) => {
                    // Both show both: the peer gets ours, and asks nothing back.
                    let _full = connection.tell(&record);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "a window that differs can't be read"),
            },
            LinkMessage::Record { channel, session, sequence, records } => {
                match self.watch.accept_record(channel, session, sequence, records) {
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
            LinkMessage::GapAsk(range) => self.answer_gap(&range, connection),
            LinkMessage::GapPacket { channel, bytes } => {
                // What is none of the numbering that is kept is for the channel to refuse and to count.
                let _refused = self.history.complete(channel, &bytes);
                // No room: it is asked for again.
                let _full = self.channels.0(channel, ChannelMessage::Recovered(bytes.into()));
            }
            LinkMessage::GapEnd(range) => {
                // No room: whoever asked waits for its time-out.
                let _full = self.channels.0(range.channel, ChannelMessage::PeerAnswered);
            }
        }
    }

    /// With datagrams as the venue sent them, as far as they are kept and surely of that numbering.
    fn answer_gap(&self, range: &InputRange, connection: &mut Connection) {
        let InputRange { channel, session, first, next } = *range;
        let ready = self.board.get(channel).and_then(|board| board.ready);
        if ready.is_some_and(|ready| ready.session == session) {
            for datagram in self.history.range(channel, first, next, GAP_PACKETS_MAX) {
                let _full = connection.tell(&LinkMessage::GapPacket { channel, bytes: datagram.into() });
            }
        }
        let _full = connection.tell(&LinkMessage::GapEnd(*range));
    }

    fn follow_up(&self, compared: Result<Compared, mdgw_publog::LogError>, connection: &mut Connection) {
        match compared {
            Ok(Compared::Waiting) => {}
            Ok(Compared::Equal) => add(&self.desk.counters.windows_equal),
            Ok(Compared::Different(content)) => {
                add(&self.desk.counters.windows_different);
                let _full = connection.tell(&content);
            }
            Err(error) => tracing::warn!(%error, "a window that differs can't be read"),
        }
    }

    fn hear_datagrams(&mut self, now: MonoNs) {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..READS_PER_TURN {
            let Ok((length, from)) = self.datagrams.recv_from(&mut datagram) else { return };
            let is_peer = matches!(from, SocketAddr::V4(from) if from.ip() == self.config.ends.peer.ip());
            // From the peer's sentinel, which has no connection; as a rule the peer's has just ended.
            if is_peer && Announcement::is_one(&datagram[..length]) {
                match Announcement::open(&datagram[..length], &self.config.ends.key) {
                    Some(announcement) => self.desk.put_notice(announcement.notice),
                    None => add(&self.desk.counters.refused),
                }
                continue;
            }
            let Some(connection) = self.current.as_mut().filter(|_| is_peer) else { continue };
            match connection.stream.open_datagram(&datagram[..length]) {
                Ok(LinkMessage::Election { serial, bytes }) => self.desk.put_election(serial, &bytes),
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

    fn end(&self, over: Over) {
        self.desk.set_peer_node(None);
        self.peer_gaps.set_linked(false);
        if let Over::Refused(fault) = over {
            add(&self.desk.counters.refused);
            tracing::error!(alarm = "pair-link-refused", %fault, "pair link");
        }
        tracing::warn!(alarm = "pair-link-down", peer = %self.config.ends.peer, ?over, "pair link is down");
    }
}

/// Bytes as digits.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How long a message left at the desk waits at most for the thread to look.
const TURN: Duration = Duration::from_millis(1);
const DIAL_INTERVAL_NS: u64 = 100_000_000;
const DIAL_PATIENCE: Duration = Duration::from_millis(50);
/// Positions come every few tens of milliseconds; a connection on which nothing does is dead.
const SILENCE_NS_MAX: u64 = 1_000_000_000;
/// Less than the room in a channel's inbox; the rest is asked for at once. A gateway that comes back in the middle of a day waits
/// for so many packets at a time: with 32 it was the waiting that took its time.
const GAP_PACKETS_MAX: usize = 256;
/// Connections that have not proved the key.
const PENDING_MAX: usize = 4;
const READS_PER_TURN: usize = 64;
const UNSENT_BYTES_MAX: usize = 8 << 20;
const DATAGRAM_COPIES: usize = 3;
const DATAGRAM_BYTES_MAX: usize = 65_536;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
