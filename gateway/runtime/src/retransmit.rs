//! Retransmission: a cold thread answers requests of subscribers from the publication logs.
//!
//! The protocol is in [`mdgw_feeds::published::request`]. An answer has log entries as they were published, flagged as
//! retransmission, under the highest epoch that this gateway knows. Answers go to the requester only and are not
//! fenced: a standby answers too.
//!
//! If the start of a range is gone from the log, the answer begins with the oldest entry there is. The end of the
//! answer states the range of the session that the log holds. Every answer has that end, also if a limit cut it short;
//! the requester continues after what it received.
//!
//! The service must not be usable as an amplifier. It answers only configured networks, and limits the requests and
//! bytes per second of each source address. An unanswered request is counted and otherwise ignored.

mod definitions;
mod requesters;
pub(crate) mod snapshot_group;
pub mod snapshots;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IoSlice},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    ops::Range,
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use definitions::Definitions;
use mdgw_engine::publish::{FINAL_POSITION, is_covered_by, packet_header};
use mdgw_feeds::{
    book::BookLimits,
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::{
        packet::{PACKET_HEADER_BYTES, PacketFlags, count_frames},
        position::StreamPosition,
        request::{REQUEST_PACKET_BYTES, RequestKind, ServiceRequest},
        snapshot::ChunkName,
        tag::{TAG_BYTES, TagKey, TagUse},
    },
    time::MonoNs,
};
use mdgw_log_books::state::InitialState;
use mdgw_pair::standby::KnownEpochs;
use mdgw_publog::{Entry, LogError, Position, Reader, SessionBytes, SessionRange};
use mdgw_sys::{
    clock::unix_now,
    fence::Fence,
    listener_counters::{ListenerCounters, Refusal},
    poll,
};
use mdgw_telemetry::{
    counter_block,
    counters::{CounterWriter, Registry},
};
use requesters::Requesters;
use snapshots::{Offer, SnapshotAnswers, SnapshotStore};
use socket2::{SockAddr, SockRef};

use crate::config::resolved::{RetransmissionConfig, RetransmissionLimits};

/// A channel whose log is served.
#[derive(Clone, Debug)]
pub struct ServedChannel {
    /// The group that it belongs to.
    pub group: GroupId,
    /// Id of the channel.
    pub channel: ChannelId,
    /// Name of the channel, for its counters.
    pub name: String,
    /// Directory of its log's segments.
    pub log_directory: PathBuf,
    /// Most bytes of frames in a packet.
    pub frame_bytes_max: usize,
    /// Key of the answers' tags; without a key they have none.
    pub tag_key: Option<TagKey>,
    /// Fence of the channel's group: knows the epoch of the last opening.
    pub fence: Arc<Fence>,
    /// Known epochs of the channel's group, also of other gateways.
    pub epochs: Arc<KnownEpochs>,
    /// Limits of the channel's books, for snapshots.
    pub books: BookLimits,
    /// The books with which the gateway began, if its log lacks what was published before.
    pub initial: Option<Arc<InitialState>>,
}

impl ServedChannel {
    /// The highest epoch under which packets of the group may have been published, as far as this gateway knows.
    fn known_epoch(&self) -> Epoch {
        self.fence.epoch().max(self.epochs.held())
    }

    /// Bytes of a packet with that many bytes of frames.
    fn packet_bytes(&self, frame_bytes: usize) -> u64 {
        let tag_bytes = if self.tag_key.is_some() { TAG_BYTES } else { 0 };
        (PACKET_HEADER_BYTES + frame_bytes + tag_bytes) as u64
    }
}

/// The service with its socket. Owned by one cold thread.
#[derive(Debug)]
pub(crate) struct RetransmissionService {
    socket: UdpSocket,
    responder: Responder,
}

/// Sends header, frames and tag of one packet, and returns the bytes sent. The tag is empty if there is no key.
pub(crate) type SendPacket<'a> = dyn FnMut([&[u8]; 3]) -> io::Result<usize> + 'a;

/// Answers requests, independent of the transport.
#[derive(Debug)]
pub struct Responder {
    channels: Vec<Channel>,
    /// Images of the channels' state, if snapshots are served.
    snapshots: Option<Arc<SnapshotStore>>,
    requesters: Requesters,
    /// For the counters of channels.
    registry: Arc<Registry>,
    counts: RetransmissionCounts,
    listener_counters: Arc<ListenerCounters>,
}

counter_block! {
    /// Counts of the service.
    pub(crate) struct RetransmissionCounts, key RetransmissionCount {
        answered: Counter, None, "requests that were answered";
        packets: Counter, Packets, "packets of answers, ends included";
        bytes: Counter, Bytes, "bytes of answers, headers included";
        truncated: Counter, None, "answers that a limit cut short";
        expired: Counter, None, "requests for entries that are gone from the log";
        send_failures: Counter, Packets, "packets that the kernel refused";
        log_failures: Counter, None, "errors while reading a log";
        definitions_dropped: Gauge, None, "definition frames of the present channels for which there was no room";
    }
}

#[derive(Debug)]
struct Channel {
    served: ServedChannel,
    reader: Reader,
    definitions: Definitions,
    snapshot_answers: SnapshotAnswers,
    snapshot_counters: CounterWriter<SnapshotAnswers>,
}

impl Channel {
    fn open(served: ServedChannel, registry: &Registry) -> Result<Self, LogError> {
        let open = || Reader::open(&served.log_directory, served.channel.0);
        let definitions = Definitions::new(open()?, DEFINITIONS_BYTES_MAX);
        let snapshot_counters = registry.register(&served.name);
        let snapshot_answers = SnapshotAnswers::default();
        Ok(Self { reader: open()?, definitions, snapshot_answers, snapshot_counters, served })
    }
}

impl RetransmissionService {
    /// Binds the socket and opens the logs. With snapshots, counters of the channels are added to the registry.
    ///
    /// # Errors
    /// When the address cannot be bound or a log cannot be read.
    pub(crate) fn new(
        config: &RetransmissionConfig,
        served: Vec<ServedChannel>,
        registry: &Arc<Registry>,
    ) -> Result<Self, ServiceError> {
        let bind = |source| ServiceError::Bind { address: config.listen, source };
        let socket = UdpSocket::bind(config.listen).map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        let registry = if config.snapshots { Arc::clone(registry) } else { Arc::default() };
        Ok(Self { socket, responder: Responder::counting_in(registry, config.limits.clone(), served)? })
    }

    /// Serves snapshots from now on.
    pub(crate) fn serve_snapshots(&mut self, store: Arc<SnapshotStore>) {
        self.responder.serve_snapshots(store);
    }

    /// The address of the socket.
    ///
    /// # Errors
    /// As `getsockname`.
    #[cfg(test)]
    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for a request, for a few milliseconds at most, since the service must also follow the logs.
    ///
    /// # Errors
    /// As poll(2).
    pub(crate) fn wait(&self) -> io::Result<()> {
        poll::readable([self.socket.as_fd()], FOLLOW_INTERVAL).map(|_| ())
    }

    /// Answers the waiting requests and follows the logs, both within bounds. Returns whether there may be more to do.
    ///
    /// # Errors
    /// When the socket fails.
    pub(crate) fn turn(&mut self, now: MonoNs) -> io::Result<bool> {
        let more = self.responder.follow();
        // One byte more than a request, so that a longer datagram is recognised as such.
        let mut datagram = [0; REQUEST_PACKET_BYTES + 1];
        for _ in 0..REQUESTS_PER_TURN {
            match self.socket.recv_from(&mut datagram) {
                Ok((length, SocketAddr::V4(requester))) => {
                    let (socket, to) = (SockRef::from(&self.socket), SockAddr::from(requester));
                    let mut send = |parts: [&[u8]; 3]| socket.send_to_vectored(&parts.map(IoSlice::new), &to);
                    self.responder.answer(&datagram[..length], *requester.ip(), now, &mut send);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(more),
                // An ICMP error: the requester's port was closed when an earlier answer arrived.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// New limits, from now on; every requester starts with its full allowance.
    pub(crate) fn set_limits(&mut self, limits: RetransmissionLimits) {
        self.responder.requesters.set_limits(limits);
    }

    /// Serves one more channel.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub(crate) fn add(&mut self, served: ServedChannel) -> Result<(), LogError> {
        let channel = Channel::open(served, &self.responder.registry)?;
        self.responder.channels.push(channel);
        Ok(())
    }

    /// Serves a channel no longer: requests for it are refused as for an unknown one.
    pub(crate) fn remove(&mut self, channel: ChannelId) {
        self.responder.channels.retain(|other| other.served.channel != channel);
    }

    /// What the service has received and refused.
    pub(crate) fn listener_counters(&self) -> &Arc<ListenerCounters> {
        &self.responder.listener_counters
    }

    /// Counts so far.
    #[must_use]
    pub(crate) fn counts(&self) -> &RetransmissionCounts {
        &self.responder.counts
    }
}

impl Responder {
    /// Opens the logs.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn new(limits: RetransmissionLimits, served: Vec<ServedChannel>) -> Result<Self, LogError> {
        Self::counting_in(Arc::default(), limits, served)
    }

    fn counting_in(
        registry: Arc<Registry>,
        limits: RetransmissionLimits,
        served: Vec<ServedChannel>,
    ) -> Result<Self, LogError> {
        let open = |channel| Channel::open(channel, &registry);
        let channels = served.into_iter().map(open).collect::<Result<_, LogError>>()?;
        let (requesters, counts) = (Requesters::new(limits), RetransmissionCounts::default());
        Ok(Self { channels, snapshots: None, requesters, registry, counts, listener_counters: Arc::default() })
    }

    /// Serves snapshots from now on.
    pub fn serve_snapshots(&mut self, store: Arc<SnapshotStore>) {
        self.snapshots = Some(store);
    }

    /// Reads a limited number of entries of the logs. Returns whether there may be more.
    pub fn follow(&mut self) -> bool {
        let mut more = false;
        for channel in &mut self.channels {
            more |= channel.definitions.follow(FOLLOW_ENTRIES_MAX);
        }
        self.counts.definitions_dropped = self.channels.iter().map(|channel| channel.definitions.dropped()).sum();
        more
    }

    /// Handles a received datagram; `send` takes its answer.
    pub fn answer(&mut self, datagram: &[u8], requester: Ipv4Addr, now: MonoNs, send: &mut SendPacket<'_>) {
        self.listener_counters.count_received();
        if let Err(refusal) = self.try_answer(datagram, requester, now, send) {
            self.listener_counters.count(refusal);
        }
    }

    fn try_answer(
        &mut self,
        datagram: &[u8],
        requester: Ipv4Addr,
        now: MonoNs,
        send: &mut SendPacket<'_>,
    ) -> Result<(), Refusal> {
        // The allowance first: a flood must not cost more work than this check.
        let allowance = self.requesters.admit(requester, now)?;
        let request = ServiceRequest::parse(datagram).map_err(|_| Refusal::Malformed)?;
        let is_snapshot = request.kind == RequestKind::Snapshot;
        let bytes_max = allowance.bytes_for(is_snapshot)?;
        // The epoch is one of the group.
        let is_requested = |channel: &&mut Channel| {
            channel.served.group == request.group
                && (request.kind == RequestKind::Epoch || channel.served.channel == request.channel)
        };
        let channel = self.channels.iter_mut().find(is_requested).ok_or(Refusal::UnknownChannel)?;
        let requested = request.session.map(|session| session.to_bytes());
        let session = match request.kind {
            RequestKind::Range | RequestKind::Definitions | RequestKind::Epoch | RequestKind::Snapshot => {
                requested.or_else(|| channel.definitions.session())
            }
            RequestKind::Sessions => {
                let is_wanted = |available| {
                    Session::from_bytes(available).is_some_and(|available| Some(available) >= request.session)
                };
                let Ok(available) = channel.reader.oldest_session(is_wanted) else {
                    self.counts.log_failures += 1;
                    return Ok(());
                };
                available.or(requested)
            }
        };
        let session = session.ok_or(Refusal::UnknownChannel)?;
        // A service without snapshots is as one that does not know the request.
        let snapshots = self.snapshots.as_deref().filter(|_| is_snapshot);
        if is_snapshot && snapshots.is_none() {
            return Err(Refusal::Malformed);
        }
        // A gateway that has just started knows nothing about the epoch.
        if request.kind == RequestKind::Epoch && channel.served.known_epoch() == Epoch::default() {
            return Err(Refusal::UnknownChannel);
        }
        let mut answer = Response {
            send,
            served: &channel.served,
            nonce: request.nonce,
            session,
            packets_left: self.requesters.limits().packets_per_request_max,
            bytes_left: bytes_max.saturating_sub(channel.served.packet_bytes(0)),
            counts: &mut self.counts,
            bytes: 0,
        };
        let result = match request.kind {
            RequestKind::Range => {
                answer.range(&mut channel.reader, &channel.definitions, request.first.0, request.next.0)
            }
            RequestKind::Definitions => {
                answer.definitions(&channel.definitions, request.first.0);
                Ok(())
            }
            RequestKind::Sessions => answer.range(&mut channel.reader, &channel.definitions, 0, 0),
            RequestKind::Snapshot => {
                let first = ChunkName::from_sequence(request.first);
                let offer = snapshots
                    .map_or(Offer::Nothing, |store| store.offer(channel.served.channel, session, first.image, now));
                let chunks = answer.snapshot(&offer, first.chunk, ChunkName::from_sequence(request.next).chunk);
                let counts = &mut channel.snapshot_answers;
                match &offer {
                    Offer::Image(image) => {
                        counts.snapshot_requests += 1;
                        counts.snapshot_chunks += u64::from(chunks.end.saturating_sub(chunks.start));
                        counts.snapshots_served += u64::from(!chunks.is_empty() && chunks.end == image.chunk_count());
                    }
                    Offer::Preparing => counts.snapshot_requests_early += 1,
                    Offer::Nothing => counts.snapshot_requests_gone += 1,
                }
                counts.snapshot_bytes += answer.bytes;
                channel.snapshot_counters.publish(counts);
                Ok(())
            }
            RequestKind::Epoch => {
                answer.transmit(&answer.empty(request.first.0, request.next.0), PacketFlags::EPOCH_ANSWER);
                Ok(())
            }
        };
        let bytes = answer.bytes;
        self.requesters.consume(requester, bytes, is_snapshot);
        self.counts.answered += 1;
        self.counts.log_failures += u64::from(result.is_err());
        Ok(())
    }
}

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The socket cannot be bound to the address.
    #[error("retransmission service cannot listen on {address}: {source}")]
    Bind {
        /// Configured listen address.
        address: SocketAddrV4,
        /// The kernel's error.
        source: io::Error,
    },
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// One answer in progress.
struct Response<'a> {
    send: &'a mut SendPacket<'a>,
    served: &'a ServedChannel,
    /// Nonce of the request.
    nonce: u64,
    session: SessionBytes,
    packets_left: u32,
    bytes_left: u64,
    counts: &'a mut RetransmissionCounts,
    bytes: u64,
}

impl Response<'_> {
    fn range(&mut self, reader: &mut Reader, definitions: &Definitions, first: u64, next: u64) -> Result<(), LogError> {
        let available = reader.session_range(self.session)?;
        if let Some(SessionRange { first: oldest, .. }) = available {
            self.counts.expired += u64::from(first < oldest && first < next);
            // The first part of a message may be in an entry that covers only what comes before it.
            reader.seek(self.session, first.saturating_sub(1))?;
            if let Some(session) = Session::from_bytes(self.session) {
                let wanted = StreamPosition::at(session, Sequence(first));
                while reader.peek().is_some_and(|entry| is_covered_by(&entry, wanted)) {
                    reader.next();
                }
            }
            while let Some(entry) = reader.peek() {
                if entry.session != self.session || entry.first >= next {
                    break;
                }
                if !self.send(&entry, PacketFlags::RETRANSMISSION) {
                    break;
                }
                reader.next();
            }
        }
        // No entry of the session is in a file of the log: then only the present position is known.
        let Some(SessionRange { first: oldest, next: newest, last_flags }) = available else {
            let next = if definitions.session() == Some(self.session) { definitions.next() } else { 0 };
            self.end(next, next, PacketFlags::default());
            return Ok(());
        };
        // A log that merely has nothing further does not know where the session ends: this gateway may be behind, may have been
        // down, or may have had no file for the last messages.
        let is_final = last_flags & (FINAL_POSITION | u16::from(PacketFlags::END_OF_SESSION.0)) != 0;
        let flags = if is_final { PacketFlags::END_OF_SESSION } else { PacketFlags::default() };
        self.end(oldest, newest, flags);
        Ok(())
    }

    fn definitions(&mut self, definitions: &Definitions, first: u64) {
        if definitions.session() != Some(self.session) {
            return self.end(0, 0, PacketFlags::SNAPSHOT);
        }
        let mut first = first.min(definitions.count());
        while let Some((payload, following)) = definitions.packet_from(first, self.served.frame_bytes_max) {
            let entry =
                Entry { frame_count: count_frames(payload).unwrap_or(0), payload, ..self.empty(first, following) };
            if !self.send(&entry, PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT)) {
                break;
            }
            first = following;
        }
        self.end(first, definitions.count(), PacketFlags::SNAPSHOT);
    }

    /// The chunks `[first, next)` of an image. `[0, 1)` as the end of the answer without a chunk: ask again soon. Returns which chunks
    /// were sent.
    fn snapshot(&mut self, offer: &Offer, first: u32, next: u32) -> Range<u32> {
        let image = match offer {
            Offer::Image(image) => image,
            Offer::Preparing => {
                self.end(0, 1, PacketFlags::SNAPSHOT);
                return 0..0;
            }
            Offer::Nothing => {
                self.end(0, 0, PacketFlags::SNAPSHOT);
                return 0..0;
            }
        };
        let begin = first.min(image.chunk_count());
        let mut chunk = begin;
        while let Some(payload) = image.frames(chunk).filter(|_| chunk < next) {
            let (first, next) = (u64::from(chunk), u64::from(chunk) + 1);
            let entry = Entry {
                frame_count: count_frames(&payload).unwrap_or(0),
                payload: &payload,
                ..self.empty(first, next)
            };
            if !self.send(&entry, PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT)) {
                break;
            }
            chunk += 1;
        }
        self.end(chunk.into(), image.chunk_count().into(), PacketFlags::SNAPSHOT);
        begin..chunk
    }

    /// Sends one packet, if the limits allow it.
    fn send(&mut self, entry: &Entry<'_>, flags: PacketFlags) -> bool {
        let bytes = self.served.packet_bytes(entry.payload.len());
        if self.packets_left == 0 || self.bytes_left < bytes {
            self.counts.truncated += 1;
            return false;
        }
        self.packets_left -= 1;
        self.bytes_left -= bytes;
        self.transmit(entry, flags)
    }

    /// Sends the end of an answer. The limits reserve its size.
    fn end(&mut self, first: u64, next: u64, flags: PacketFlags) {
        let flags = flags.with(PacketFlags::RETRANSMISSION).with(PacketFlags::HEARTBEAT);
        self.transmit(&self.empty(first, next), flags);
    }

    fn transmit(&mut self, entry: &Entry<'_>, flags: PacketFlags) -> bool {
        let ServedChannel { group, channel, tag_key, .. } = self.served;
        let flags = if tag_key.is_some() { flags.with(PacketFlags::TAGGED) } else { flags };
        let header = packet_header(*group, *channel, self.served.known_epoch(), unix_now(), entry, flags);
        let tag = tag_key.as_ref().map(|key| key.tag(TagUse::Answer { nonce: self.nonce }, &header, entry.payload));
        match (self.send)([&header, entry.payload, tag.as_ref().map_or(&[], |tag| tag)]) {
            Ok(bytes) => {
                self.bytes += bytes as u64;
                self.counts.bytes += bytes as u64;
                self.counts.packets += 1;
                true
            }
            Err(_) => {
                self.counts.send_failures += 1;
                false
            }
        }
    }

    fn empty<'e>(&self, first: u64, next: u64) -> Entry<'e> {
        Entry {
            position: Position::default(),
            end: Position::default(),
            number: 0,
            session: self.session,
            first,
            next,
            ts_commit: 0,
            frame_count: 0,
            flags: 0,
            payload: &[],
        }
    }
}

/// Interval at which the service follows the logs while no request arrives.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(5);
/// Most entries of a log that one turn reads, so that requests do not wait for long.
const FOLLOW_ENTRIES_MAX: usize = 4_096;
/// Most requests that one turn answers, so that the service does not fall behind the logs.
const REQUESTS_PER_TURN: usize = 64;
/// Memory for definition frames of one channel: some 30,000 definitions, three times what the largest venue lists.
const DEFINITIONS_BYTES_MAX: usize = 16 << 20;
