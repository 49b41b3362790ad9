//! Library for consumers of the published multicast. [`Subscriber::events`] is an iterator that waits; [`Subscriber::poll`] calls back,
//! and lends what it delivers:
//!
//! ```no_run
//! use mdgw_subscriber::{Item, LineAddress, Subscriber, SubscriberConfig};
//! # fn main() -> Result<(), mdgw_subscriber::SubscriberError> {
//! let line = LineAddress::new("239.10.0.1:31001".parse().unwrap(), [10, 0, 0, 5].into());
//! let mut config = SubscriberConfig::new(vec![line]);
//! config.receiver.group = mdgw_subscriber::wire::identity::GroupId(1); // others are refused and counted
//! let mut subscriber = Subscriber::open(config)?;
//! loop {
//!     subscriber.poll(std::time::Duration::from_secs(1), &mut |output| match output.item {
//!         Item::Message { header, body } => { /* DBN records in `body` */ }
//!         Item::Lost(gap) => eprintln!("{} messages lost", gap.count()),
//!         _ => {}
//!     })?;
//! }
//! # }
//! ```
//! The logic (epoch filter, arbitration of two output lines, gaps, retransmission, late start) is in
//! [`mdgw_wire::published`], which has no sockets. `ops/guide/output-protocol.md` specifies it. This crate adds only the sockets
//! and the clock. For records with `ts_recv` filled in, pass the output to [`ConsumerEdges`]; any DBN library reads them.
//! With [`StartFrom::Snapshot`] a subscriber that joins late gets the channel's books instead of the day's messages. With
//! [`ReceiverConfig::rebuilds_books`] a subscriber that runs gets them again after a loss. The books come from a service, or from the
//! gateways' snapshot group ([`SubscriberConfig::snapshot_group`]), which needs no request.
//! Two short programs are in `examples/`: `print_trades` and `top_of_book`.
//!
//! Memory is allocated when the subscriber is opened and when a channel is first observed. With a service, packets are
//! held in memory until the service has named the epoch: up to [`ReceiverConfig::start_bytes_max`], at the start only. No
//! thread is started.

#![forbid(unsafe_code)]

mod events;
mod services;
mod sockets;
#[cfg(test)]
mod tests;

/// The published format: identities, times, frames, reasons of refusal.
pub use mdgw_wire as wire;
pub use mdgw_wire::consumer_edge::{EdgeOutput, TsRecvMode};
pub use mdgw_wire::published::receiver::{
    BookState, ChannelView, Item, Output, PublishedDatagram, Receiver, ReceiverConfig, ReceiverStatistics, RivalEpochs,
    SERVICES_MAX, ServiceConfig, SnapshotGroupConfig, StartFrom,
};

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mdgw_keys::KeyBytes;
use mdgw_wire::{
    identity::{Epoch, Line},
    published::tag::TAG_BYTES,
    time::{MonoNs, UnixNs},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    time::{ClockId, clock_gettime},
};
use zerocopy::IntoBytes;

pub use self::{
    events::{Event, EventKind, Events},
    services::ServiceSelector,
};
pub use mdgw_keys::{KeyError, SecretFile};
pub use mdgw_wire::published::{
    records::ConsumerEdges,
    tag::{TagKey, TagPolicy},
};

/// Configuration of a subscription to one group.
#[derive(Clone, Debug)]
pub struct SubscriberConfig {
    /// The output lines, 1 to 7.
    pub lines: Vec<LineAddress>,
    /// The gateways' retransmission services, up to [`SERVICES_MAX`]. If one does not answer, or lacks the missing
    /// range, the next one is asked.
    pub services: Vec<SocketAddrV4>,
    /// The snapshot group, if the gateways have one: a start with [`StartFrom::Snapshot`] without a service uses it, and so do rebuilt
    /// books. It is joined only while a snapshot is needed.
    pub snapshot_group: Option<LineAddress>,
    /// The gateways' addresses. The groups are joined for these senders only (IGMPv3), and other packets are refused;
    /// empty: any sender. Addresses can be forged.
    pub sources: Vec<Ipv4Addr>,
    /// Receive buffer requested from the kernel per line, bytes.
    pub receive_buffer_bytes: usize,
    /// All other settings, among them the keys of packet tags ([`load_tag_key`]). `lines`, the number of services and whether there is a
    /// snapshot group are set from the fields above, and the nonces at random. The rest of `service` and `snapshot_group` only applies
    /// if there are services or a group.
    pub receiver: ReceiverConfig,
}

impl SubscriberConfig {
    /// Defaults for everything except the lines.
    #[must_use]
    pub fn new(lines: Vec<LineAddress>) -> Self {
        Self {
            lines,
            services: Vec::new(),
            snapshot_group: None,
            sources: Vec::new(),
            receive_buffer_bytes: 8 << 20,
            receiver: ReceiverConfig::default(),
        }
    }
}

/// Address of one output line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAddress {
    /// Multicast group and port; a local address if the line is sent by unicast.
    pub address: SocketAddrV4,
    /// Address of the interface to join on; `0.0.0.0` lets the kernel choose.
    pub interface: Ipv4Addr,
}

impl LineAddress {
    /// A line that is joined on that interface.
    #[must_use]
    pub fn new(address: SocketAddrV4, interface: Ipv4Addr) -> Self {
        Self { address, interface }
    }
}

/// Errors that end a subscription. Invalid input on a socket is not an error.
#[derive(Debug)]
pub enum SubscriberError {
    /// A line or the snapshot group could not be opened or joined.
    Line {
        /// The line's address.
        address: SocketAddrV4,
        /// Address of the interface on which the group could not be joined.
        interface: Ipv4Addr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The socket for requests could not be opened.
    Service {
        /// The service's address.
        address: SocketAddrV4,
        /// The kernel's error.
        source: io::Error,
    },
    /// The configuration has no line, or more than seven.
    LineCount(usize),
    /// The configuration has too many services.
    ServiceCount(usize),
    /// No random number was available.
    Random(io::Error),
    /// Packets under epochs that exclude each other were received at the start. Some are forged, and nothing tells which.
    RivalEpochs(RivalEpochs),
    /// Polling or reading a socket failed.
    Receive(io::Error),
}

impl fmt::Display for SubscriberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { address, interface, source } => {
                write!(f, "cannot receive {address} on interface {interface}: {source}")
            }
            Self::Service { address, source } => {
                write!(f, "cannot open a socket to the retransmission service {address}: {source}")
            }
            Self::LineCount(count) => write!(f, "{count} lines configured; must be 1 to 7"),
            Self::ServiceCount(count) => {
                write!(f, "{count} retransmission services configured; at most {SERVICES_MAX} are supported")
            }
            Self::Random(source) => write!(f, "cannot read /dev/urandom: {source}"),
            Self::RivalEpochs(rivals) => f.write_str(&rival_text(rivals)),
            Self::Receive(source) => write!(f, "cannot receive: {source}"),
        }
    }
}

impl Error for SubscriberError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Line { source, .. } | Self::Service { source, .. } | Self::Random(source) | Self::Receive(source) => {
                Some(source)
            }
            Self::LineCount(_) | Self::ServiceCount(_) | Self::RivalEpochs(_) => None,
        }
    }
}

fn rival_text(rivals: &RivalEpochs) -> String {
    let epoch = |epoch: Epoch| format!("{} of node {}", epoch.count(), epoch.node());
    let (lowest, highest) = (epoch(rivals.lowest), epoch(rivals.highest));
    if rivals.is_contradicted {
        return format!(
            "the retransmission service contradicts the epoch that was accepted at the start: {lowest} and {highest}; \
             one of them is forged, or belongs to another pair of gateways"
        );
    }
    format!(
        "rival epochs at the start: {lowest} and {highest}; one of them is forged, or belongs to another pair of \
         gateways on the same group, and no retransmission service named which"
    )
}

/// Statistics of the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriberStatistics {
    /// Datagrams read.
    pub datagrams: u64,
    /// Requests sent to a service.
    pub requests: u64,
    /// Requests that could not be sent, or that the service's host refused; they are repeated.
    pub requests_failed: u64,
    /// Packets on the lines from other senders than [`SubscriberConfig::sources`].
    pub sources_refused: u64,
    /// Times that the snapshot group could not be joined or read while the lines went on; tried again a second later.
    pub snapshot_group_failures: u64,
    /// The smallest receive buffer granted by the kernel, bytes, as the kernel counts it.
    pub receive_buffer_bytes: usize,
}

/// A subscription to one group. For use by one thread at a time.
#[derive(Debug)]
pub struct Subscriber {
    receiver: Receiver,
    /// A socket for each line, then one for each service: line, index of the service, socket. The line of a service is
    /// [`Line::RECOVERY`], the index of a line 0.
    sockets: Vec<(Line, u8, UdpSocket)>,
    snapshot_group: Option<SnapshotGroup>,
    selector: ServiceSelector,
    sources: Vec<Ipv4Addr>,
    buffer: Box<[u8]>,
    /// Rounds since every socket was read until it was empty.
    undrained_rounds: u32,
    statistics: SubscriberStatistics,
}

/// The snapshot group, and its socket while the group is joined.
#[derive(Debug)]
struct SnapshotGroup {
    address: LineAddress,
    receive_buffer_bytes: usize,
    socket: Option<UdpSocket>,
    /// After a failure it is joined again from then on.
    retry_at: MonoNs,
}

/// Pause after a failure of the snapshot group's socket, ns.
const GROUP_RETRY_NS: u64 = 1_000_000_000;

/// Most datagrams read from one socket before the other sockets have their turn.
const DATAGRAMS_PER_SOCKET_MAX: usize = 64;

/// Rounds in which a socket was not read until it was empty, after which deadlines wait no longer.
const UNDRAINED_ROUNDS_MAX: u32 = 128;

impl Subscriber {
    /// Opens the sockets and joins the groups.
    ///
    /// # Errors
    /// If a socket cannot be opened, bound or joined.
    pub fn open(mut config: SubscriberConfig) -> Result<Self, SubscriberError> {
        let line_count = config.lines.len();
        if !(1..=usize::from(Line::RECOVERY.0)).contains(&line_count) {
            return Err(SubscriberError::LineCount(line_count));
        }
        let mut statistics = SubscriberStatistics { receive_buffer_bytes: usize::MAX, ..Default::default() };
        let mut sockets = Vec::with_capacity(line_count + 1);
        for (line, address) in (0..).map(Line).zip(&config.lines) {
            let opened = sockets::open_line(address, &config.sources, config.receive_buffer_bytes);
            let (socket, granted) = opened.map_err(|source| SubscriberError::Line {
                address: address.address,
                interface: address.interface,
                source,
            })?;
            statistics.receive_buffer_bytes = statistics.receive_buffer_bytes.min(granted);
            sockets.push((line, 0, socket));
        }
        if config.services.len() > SERVICES_MAX {
            return Err(SubscriberError::ServiceCount(config.services.len()));
        }
        for (service, address) in (0..).zip(config.services.iter().copied()) {
            let socket = sockets::open_service(address, config.receive_buffer_bytes)
                .map_err(|source| SubscriberError::Service { address, source })?;
            sockets.push((Line::RECOVERY, service, socket));
        }
        let service_count = u8::try_from(config.services.len()).unwrap_or(u8::MAX);
        config.receiver.service = (service_count > 0).then(|| {
            let service = config.receiver.service.unwrap_or_default();
            ServiceConfig { service_count, ..service }
        });
        let selector = ServiceSelector::new(config.services.len());
        let mut nonces = [[0; 8]; 2];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(nonces.as_flattened_mut()))
            .map_err(SubscriberError::Random)?;
        let [epoch_nonce, request_nonce] = nonces.map(u64::from_ne_bytes);
        (config.receiver.epoch_nonce, config.receiver.request_nonce) = (epoch_nonce, request_nonce);
        config.receiver.snapshot_group =
            config.snapshot_group.map(|_| config.receiver.snapshot_group.unwrap_or_default());
        let snapshot_group = config.snapshot_group.map(|address| SnapshotGroup {
            address,
            receive_buffer_bytes: config.receive_buffer_bytes,
            socket: None,
            retry_at: MonoNs(0),
        });
        config.receiver.lines = u8::try_from(line_count).unwrap_or(Line::RECOVERY.0);
        // One byte more than the maximum packet size, so that a truncated packet is too long and is rejected.
        let buffer = vec![0; config.receiver.packet_bytes_max + TAG_BYTES + 1].into_boxed_slice();
        let SubscriberConfig { receiver, sources, .. } = config;
        let mut subscriber = Self {
            receiver: Receiver::new(receiver),
            sockets,
            snapshot_group,
            selector,
            sources,
            buffer,
            undrained_rounds: 0,
            statistics,
        };
        subscriber.join_snapshot_group_if_needed()?;
        Ok(subscriber)
    }

    /// Waits at most `timeout` for datagrams or a deadline, processes them, and returns the number of datagrams read:
    /// 0 on timeout.
    ///
    /// # Errors
    /// If polling or reading a socket fails, if the snapshot group cannot be joined, or if rival epochs were received at the start.
    pub fn poll(&mut self, timeout: Duration, deliver: &mut impl FnMut(Output<'_>)) -> Result<usize, SubscriberError> {
        let now = mono_now();
        let until = now.plus(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let wake = self.receiver.next_deadline().map_or(until, |deadline| deadline.min(until));
        self.wait(wake.since(now))?;
        let mut count = 0;
        let mut is_drained = true;
        for index in 0..self.sockets.len() {
            let read = self.drain(index, deliver)?;
            is_drained &= read < DATAGRAMS_PER_SOCKET_MAX;
            count += read;
        }
        // Behind the lines: what a chunk's position needs has then been read. The group's datagrams delay no deadline.
        if is_drained {
            count += self.drain_snapshot_group(deliver);
        }
        // Datagrams still in a socket are not missing: deadlines wait for them, but not for as long as anybody floods a line.
        self.undrained_rounds = if is_drained { 0 } else { self.undrained_rounds.wrapping_add(1) };
        if self.undrained_rounds.is_multiple_of(UNDRAINED_ROUNDS_MAX) {
            self.receiver.on_deadline(mono_now(), deliver);
        }
        self.send_requests();
        // The lines go on without it.
        if self.snapshot_group.as_ref().is_some_and(|group| group.retry_at <= mono_now())
            && self.join_snapshot_group_if_needed().is_err()
        {
            self.snapshot_group_failed();
        }
        match self.receiver.rival_epochs() {
            Some(rivals) => Err(SubscriberError::RivalEpochs(rivals)),
            None => Ok(count),
        }
    }

    /// Ends the input: delivers held messages and reports the missing ones as lost.
    pub fn finish(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        self.receiver.finish(deliver);
    }

    /// The receiver, for its statistics.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Statistics of the sockets.
    #[must_use]
    pub fn statistics(&self) -> &SubscriberStatistics {
        &self.statistics
    }

    /// Local addresses of the lines: port 0 is replaced by the actual port.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn line_addresses(&self) -> Result<Vec<SocketAddr>, SubscriberError> {
        let lines = self.sockets.iter().filter(|(line, ..)| *line != Line::RECOVERY);
        lines.map(|(.., socket)| socket.local_addr().map_err(SubscriberError::Receive)).collect()
    }

    fn wait(&self, timeout_ns: u64) -> Result<(), SubscriberError> {
        let timeout = Timespec::try_from(Duration::from_nanos(timeout_ns)).ok();
        let Some((.., first)) = self.sockets.first() else { return Ok(()) };
        let group = self.snapshot_group.as_ref().and_then(|group| group.socket.as_ref());
        let mut handles: [PollFd<'_>; Line::COUNT_MAX + SERVICES_MAX + 1] = core::array::from_fn(|index| {
            let socket = self.sockets.get(index).map(|(.., socket)| socket);
            PollFd::new(socket.or(group).unwrap_or(first), PollFlags::IN)
        });
        let count = self.sockets.len() + usize::from(group.is_some());
        let handles = handles.get_mut(..count).unwrap_or_default();
        match rustix::event::poll(handles, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(SubscriberError::Receive(error.into())),
        }
    }

    /// Reads one socket until it is empty or its quota is used up. Returns the number of datagrams.
    fn drain(&mut self, index: usize, deliver: &mut impl FnMut(Output<'_>)) -> Result<usize, SubscriberError> {
        let Some((line, service, socket)) = self.sockets.get(index) else { return Ok(0) };
        let mut count = 0;
        while count < DATAGRAMS_PER_SOCKET_MAX {
            let (length, sender) = match socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The service is not running; the request is repeated.
                Err(_) if *line == Line::RECOVERY => {
                    self.statistics.requests_failed += 1;
                    break;
                }
                Err(error) => return Err(SubscriberError::Receive(error)),
            };
            count += 1;
            self.statistics.datagrams += 1;
            // The kernel filters groups itself. A line that is sent by unicast has no group.
            if *line != Line::RECOVERY && !is_accepted_sender(&self.sources, sender) {
                self.statistics.sources_refused += 1;
                continue;
            }
            let bytes = self.buffer.get(..length).unwrap_or_default();
            let datagram = PublishedDatagram { line: *line, service: *service, bytes, ts_recv: unix_now() };
            // The receiver counts rejections.
            let _refused = self.receiver.accept(datagram, mono_now(), deliver);
        }
        Ok(count)
    }

    /// Reads the snapshot group's socket, if it is open, as [`Self::drain`] does.
    fn drain_snapshot_group(&mut self, deliver: &mut impl FnMut(Output<'_>)) -> usize {
        let mut count = 0;
        let Some(socket) = self.snapshot_group.as_ref().and_then(|group| group.socket.as_ref()) else { return count };
        while count < DATAGRAMS_PER_SOCKET_MAX {
            let (length, sender) = match socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.snapshot_group_failed();
                    break;
                }
            };
            count += 1;
            self.statistics.datagrams += 1;
            if !is_accepted_sender(&self.sources, sender) {
                self.statistics.sources_refused += 1;
                continue;
            }
            let bytes = self.buffer.get(..length).unwrap_or_default();
            // The receiver counts rejections.
            let _refused = self.receiver.accept_from_snapshot_group(bytes, mono_now(), deliver);
        }
        count
    }

    /// Leaves the group, to join it again a while later.
    fn snapshot_group_failed(&mut self) {
        self.statistics.snapshot_group_failures += 1;
        if let Some(group) = &mut self.snapshot_group {
            (group.socket, group.retry_at) = (None, mono_now().plus(GROUP_RETRY_NS));
        }
    }

    /// Joins the snapshot group, or leaves it: most of the time nothing of it is needed.
    fn join_snapshot_group_if_needed(&mut self) -> Result<(), SubscriberError> {
        let Some(group) = &mut self.snapshot_group else { return Ok(()) };
        if !self.receiver.needs_snapshot_group() {
            group.socket = None;
        } else if group.socket.is_none() {
            let LineAddress { address, interface } = group.address;
            let (socket, _) = sockets::open_line(&group.address, &self.sources, group.receive_buffer_bytes)
                .map_err(|source| SubscriberError::Line { address, interface, source })?;
            group.socket = Some(socket);
        }
        Ok(())
    }

    fn send_requests(&mut self) {
        while let Some(mut request) = self.receiver.poll_request() {
            let mut services = self.sockets.iter().filter(|(line, ..)| *line == Line::RECOVERY);
            let Some((_, service, socket)) = services.nth(self.selector.select(&request)) else { return };
            request.nonce = self.receiver.request_nonce(*service);
            self.statistics.requests += 1;
            if socket.send(request.to_packet().as_bytes()).is_err() {
                self.statistics.requests_failed += 1;
            }
        }
    }
}

/// Reads a key for [`ReceiverConfig::tags`] from a file of 64 hexadecimal digits that only its owner may read.
///
/// # Errors
/// When the file cannot be read, others could read or change it, or it holds anything else.
pub fn load_tag_key(path: &Path) -> Result<TagKey, KeyError> {
    KeyBytes::load(path).map(|key| TagKey::new(&key.0))
}

fn is_accepted_sender(sources: &[Ipv4Addr], sender: SocketAddr) -> bool {
    sources.is_empty() || matches!(sender, SocketAddr::V4(sender) if sources.contains(sender.ip()))
}

/// The clock of deadlines. It is monotonic, and includes the time that the machine is suspended.
fn mono_now() -> MonoNs {
    let now = clock_gettime(ClockId::Boottime);
    let ns = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0);
    MonoNs(ns)
}

fn unix_now() -> UnixNs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNs(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
