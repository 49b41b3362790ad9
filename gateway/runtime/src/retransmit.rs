//! Retransmission: requests of subscribers, answered out of the publication logs by a cold thread.
//!
//! The protocol is in [`mdgw_feeds::published::request`]. Responder are log entries as they were published, flagged as
//! retransmission and under the highest epoch that this gateway knows. They go to the asker alone and are not fenced:
//! a standby answers too.
//!
//! What is gone from the log is answered with the oldest there is: the first packet begins later than was asked, and
//! the answer's end says from where to where the log has the session. Every answer has that end, also one that a limit
//! has cut short; the asker goes on from what it got.
//!
//! No amplifier for others: only configured networks are answered, and each source address only so many requests and
//! bytes per second. A request that is not answered is counted, nothing else.

mod definitions;
mod requesters;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IoSlice},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use definitions::Definitions;
use mdgw_engine::publish::{is_covered_by, packet_header};
use mdgw_feeds::{
    drop_reason::DropCounts,
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::{
        packet::{PACKET_HEADER_BYTES, PacketFlags, count_frames},
        position::StreamPosition,
        request::{REQUEST_PACKET_BYTES, RequestKind, ServiceRequest},
    },
    time::MonoNs,
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_publog::{Entry, LogError, Position, Reader, SessionBytes};
use mdgw_sys::{
    batch::HEADER_BYTES,
    clock::{mono_now, unix_now},
    fence::Fence,
    poll,
};
use requesters::{Refusal, Requesters};
use socket2::{SockAddr, SockRef};

use crate::config::resolved::{RetransmissionConfig, RetransmissionLimits};

/// A channel whose log is served.
#[derive(Clone, Debug)]
pub struct ServedChannel {
    /// The group that it belongs to.
    pub group: GroupId,
    /// The channel.
    pub channel: ChannelId,
    /// Where its log's segments lie.
    pub log_directory: PathBuf,
    /// Greatest payload of a packet, less its header.
    pub payload_bytes_max: usize,
    /// Of its group: knows the epoch of the last opening.
    pub fence: Arc<Fence>,
    /// Of its group: knows the epochs of others.
    pub epochs: Arc<KnownEpochs>,
}

/// Responder requests. Owned by one cold thread.
#[derive(Debug)]
pub struct RetransmissionService {
    socket: UdpSocket,
    responder: Responder,
}

/// Takes header and body of one packet away, and says how many bytes went.
pub type SendPacket<'a> = dyn FnMut(&[u8; HEADER_BYTES], &[u8]) -> io::Result<usize> + 'a;

/// What answers requests, whatever brings them and takes the answers away.
#[derive(Debug)]
pub struct Responder {
    channels: Vec<Channel>,
    requesters: Requesters,
    counts: RetransmissionCounts,
}

/// What the service counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetransmissionCounts {
    /// Datagrams that came.
    pub requests: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Packets of answers, ends included.
    pub packets: u64,
    /// Bytes of answers, headers included.
    pub bytes: u64,
    /// Responder that a limit cut short.
    pub truncated: u64,
    /// Requests for what is gone.
    pub expired: u64,
    /// Datagrams that are no requests, and why.
    pub malformed: DropCounts,
    /// From no network that is answered.
    pub network_refused: u64,
    /// Beyond a requester's rate.
    pub rate_refused: u64,
    /// From more requesters than are remembered.
    pub requesters_refused: u64,
    /// For a channel, or a session of it, that nothing is known of.
    pub unknown: u64,
    /// Packets that the kernel refused.
    pub send_failures: u64,
    /// Trouble with reading a log.
    pub log_failures: u64,
    /// Definition frames for which there was no room.
    pub definitions_dropped: u64,
}

#[derive(Debug)]
struct Channel {
    served: ServedChannel,
    reader: Reader,
    definitions: Definitions,
}

impl RetransmissionService {
    /// Binds the socket and opens the logs.
    ///
    /// # Errors
    /// When the address can't be bound or a log can't be read.
    pub fn new(config: &RetransmissionConfig, served: Vec<ServedChannel>) -> Result<Self, ServiceError> {
        let bind = |source| ServiceError::Bind { address: config.listen, source };
        let socket = UdpSocket::bind(config.listen).map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        Ok(Self { socket, responder: Responder::new(config.limits.clone(), served)? })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As `getsockname`.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Responder until `stop`, which is looked at every few milliseconds.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        // Relaxed: the flag orders nothing, and a look a few milliseconds later is as good.
        while !stop.load(Relaxed) {
            if !self.turn(mono_now())? {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Waits for a request, a few milliseconds at most: logs are followed too.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&self) -> io::Result<()> {
        poll::readable([self.socket.as_fd()], FOLLOW_INTERVAL).map(|_| ())
    }

    /// Responder the requests that wait and follows the logs, both within bounds. Whether there may be more to do.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn turn(&mut self, now: MonoNs) -> io::Result<bool> {
        let more = self.responder.follow();
        // One byte more than a request, so that a longer datagram is seen to be one.
        let mut datagram = [0; REQUEST_PACKET_BYTES + 1];
        for _ in 0..REQUESTS_PER_TURN {
            match self.socket.recv_from(&mut datagram) {
                Ok((length, SocketAddr::V4(requester))) => {
                    let (socket, to) = (SockRef::from(&self.socket), SockAddr::from(requester));
                    let mut send = |header: &[u8; HEADER_BYTES], body: &[u8]| {
                        socket.send_to_vectored(&[IoSlice::new(header), IoSlice::new(body)], &to)
                    };
                    self.responder.answer(&datagram[..length], *requester.ip(), now, &mut send);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(more),
                // What an earlier answer met at the requester.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// New limits, from now on; every requester begins with its full allowance.
    pub fn set_limits(&mut self, limits: RetransmissionLimits) {
        self.responder.requesters.set_limits(limits);
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> &RetransmissionCounts {
        &self.responder.counts
    }
}

impl Responder {
    /// Opens the logs.
    ///
    /// # Errors
    /// When a log can't be read.
    pub fn new(limits: RetransmissionLimits, served: Vec<ServedChannel>) -> Result<Self, LogError> {
        let open = |served: &ServedChannel| Reader::open(&served.log_directory, served.channel.0);
        let channel = |served: ServedChannel| {
            let definitions = Definitions::new(open(&served)?, DEFINITIONS_BYTES_MAX);
            Ok(Channel { reader: open(&served)?, definitions, served })
        };
        let channels = served.into_iter().map(channel).collect::<Result<_, LogError>>()?;
        Ok(Self { channels, requesters: Requesters::new(limits), counts: RetransmissionCounts::default() })
    }

    /// Follows the logs, some entries at most. Whether there may be more.
    pub fn follow(&mut self) -> bool {
        let mut more = false;
        for channel in &mut self.channels {
            more |= channel.definitions.follow(FOLLOW_ENTRIES_MAX);
        }
        self.counts.definitions_dropped = self.channels.iter().map(|channel| channel.definitions.dropped()).sum();
        more
    }

    /// A datagram came; `send` takes its answer.
    pub fn answer(&mut self, datagram: &[u8], requester: Ipv4Addr, now: MonoNs, send: &mut SendPacket<'_>) {
        self.counts.requests += 1;
        // The allowance first: whoever floods must not make us do more than this.
        let bytes_max = match self.requesters.admit(requester, now) {
            Ok(bytes_max) => bytes_max,
            Err(refusal) => {
                *match refusal {
                    Refusal::Network => &mut self.counts.network_refused,
                    Refusal::Rate => &mut self.counts.rate_refused,
                    Refusal::TooMany => &mut self.counts.requesters_refused,
                } += 1;
                return;
            }
        };
        let request = match ServiceRequest::parse(datagram) {
            Ok(request) => request,
            Err(reason) => return self.counts.malformed.count(reason),
        };
        let is_requested =
            |channel: &&mut Channel| (channel.served.group, channel.served.channel) == (request.group, request.channel);
        let Some(channel) = self.channels.iter_mut().find(is_requested) else {
            self.counts.unknown += 1;
            return;
        };
        let requested = request.session.map(|session| session.to_bytes());
        let session = match request.kind {
            RequestKind::Range | RequestKind::Definitions => requested.or_else(|| channel.definitions.session()),
            RequestKind::Sessions => {
                let is_wanted = |available| {
                    Session::from_bytes(available).is_some_and(|available| Some(available) >= request.session)
                };
                let Ok(available) = channel.reader.oldest_session(is_wanted) else {
                    self.counts.log_failures += 1;
                    return;
                };
                available.or(requested)
            }
        };
        let Some(session) = session else {
            self.counts.unknown += 1;
            return;
        };
        let mut answer = Response {
            send,
            served: &channel.served,
            session,
            packets_left: self.requesters.limits().packets_per_request_max,
            bytes_left: bytes_max.saturating_sub(END_BYTES),
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
        };
        let bytes = answer.bytes;
        self.requesters.consume(requester, bytes);
        self.counts.answered += 1;
        self.counts.log_failures += u64::from(result.is_err());
    }
}

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The address can't be used.
    #[error("retransmission service cannot listen on {address}: {source}")]
    Bind {
        /// As configured.
        address: SocketAddrV4,
        /// What the kernel said.
        source: io::Error,
    },
    /// A log can't be read.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// One answer on its way.
struct Response<'a> {
    send: &'a mut SendPacket<'a>,
    served: &'a ServedChannel,
    session: SessionBytes,
    packets_left: u32,
    bytes_left: u64,
    counts: &'a mut RetransmissionCounts,
    bytes: u64,
}

impl Response<'_> {
    fn range(&mut self, reader: &mut Reader, definitions: &Definitions, first: u64, next: u64) -> Result<(), LogError> {
        let available = reader.session_range(self.session)?;
        if let Some((oldest, _)) = available {
            self.counts.expired += u64::from(first < oldest && first < next);
            // The first part of a message may stand in an entry that settles only what came before it.
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
        // Of a session that has begun and lies in no file, nothing is known but where it has come to.
        let (oldest, newest) = available.unwrap_or_else(|| {
            let next = if definitions.session() == Some(self.session) { definitions.next() } else { 0 };
            (next, next)
        });
        self.end(oldest, newest, PacketFlags::default());
        Ok(())
    }

    fn definitions(&mut self, definitions: &Definitions, first: u64) {
        if definitions.session() != Some(self.session) {
            return self.end(0, 0, PacketFlags::SNAPSHOT);
        }
        let mut first = first.min(definitions.count());
        while let Some((payload, following)) = definitions.packet_from(first, self.served.payload_bytes_max) {
            let entry =
                Entry { frame_count: count_frames(payload).unwrap_or(0), payload, ..self.empty(first, following) };
            if !self.send(&entry, PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT)) {
                break;
            }
            first = following;
        }
        self.end(first, definitions.count(), PacketFlags::SNAPSHOT);
    }

    /// One packet, if the limits let it.
    fn send(&mut self, entry: &Entry<'_>, flags: PacketFlags) -> bool {
        let bytes = (PACKET_HEADER_BYTES + entry.payload.len()) as u64;
        if self.packets_left == 0 || self.bytes_left < bytes {
            self.counts.truncated += 1;
            return false;
        }
        self.packets_left -= 1;
        self.bytes_left -= bytes;
        self.transmit(entry, flags)
    }

    /// Its place is reserved in the limits.
    fn end(&mut self, first: u64, next: u64, flags: PacketFlags) {
        let flags = flags.with(PacketFlags::RETRANSMISSION).with(PacketFlags::HEARTBEAT);
        self.transmit(&self.empty(first, next), flags);
    }

    fn transmit(&mut self, entry: &Entry<'_>, flags: PacketFlags) -> bool {
        let epoch: Epoch = self.served.fence.epoch().max(self.served.epochs.highest_observed().unwrap_or_default());
        let header: [u8; HEADER_BYTES] =
            packet_header(self.served.group, self.served.channel, epoch, unix_now(), entry, flags);
        match (self.send)(&header, entry.payload) {
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

    fn empty(&self, first: u64, next: u64) -> Entry<'static> {
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

const END_BYTES: u64 = PACKET_HEADER_BYTES as u64;
/// How often the logs are followed while nobody asks.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(5);
/// So many entries of a log, then requests have their turn.
const FOLLOW_ENTRIES_MAX: usize = 4_096;
/// So many requests, then the logs have theirs.
const REQUESTS_PER_TURN: usize = 64;
/// Some 30,000 definitions: three times what the largest venue lists.
const DEFINITIONS_BYTES_MAX: usize = 16 << 20;
