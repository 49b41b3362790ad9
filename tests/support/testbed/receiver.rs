//! A receiver on its own host: records every packet with its kernel timestamp, and what the subscriber library delivered.

use std::{
    collections::BTreeMap,
    fs::File,
    hash::{DefaultHasher, Hasher as _},
    io::{self, BufWriter},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use mdgw_captures::capture_file::PcapWriter;
use mdgw_engine::handle_set::{HandleSet as _, ThreadIo as _, Wait, epoll::EpollSet};
use mdgw_feeds::{
    frame::FrameFlags,
    identity::{Epoch, Line, Session},
    published::{packet::parse_packet, position::StreamPosition},
};
use mdgw_subscriber::{
    Item, Output, PublishedDatagram, Receiver as Protocol, ReceiverConfig, ServiceConfig, ServiceSelector, StartFrom,
    TagPolicy,
};
use mdgw_sys::{
    batch::ReceiveBatch,
    clock::{mono_now, unix_now},
    drops::SocketDrops,
    handle::{ChannelIndex, Handle},
    sockets::{ReceiveOptions, ReceiveSocket, open_receive},
};
use mdgw_tools::verify::{CapturedPacket, Location, Verdict, Verifier, VerifyOptions};
use zerocopy::IntoBytes as _;

use super::stream_summary::StreamSummary;
use crate::{
    namespaces::{Host, INTERFACE},
    pair::GROUP,
};

/// One delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Kernel receive time of its datagram, ns since 1970 UTC.
    pub time_ns: u64,
    /// The epoch that the receiver had accepted at that time.
    pub epoch: Epoch,
    /// The message, gap or end.
    pub item: DeliveredItem,
}

/// What a receiver hands to its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveredItem {
    /// A message's records.
    Message {
        /// Session and sequence.
        id: (Session, u64),
        /// A hash of its records.
        content_hash: u64,
        /// Whether its book is suspect.
        is_suspect: bool,
    },
    /// This many messages were declared missing by the gateway.
    Gap(u64),
    /// This many messages were given up by the receiver.
    Lost(u64),
    /// The session's end.
    End,
}

/// Everything that a receiver recorded.
#[derive(Clone, Debug, Default)]
pub struct ReceiverLog {
    /// All deliveries, in order.
    pub delivered: Vec<Delivered>,
    /// Time of the first packet of each epoch, ns since 1970 UTC.
    pub first_packets: Vec<(Epoch, u64)>,
    /// Datagrams that the library refused.
    pub refused: u64,
    /// Whether the last packet of each epoch ended inside a message.
    pub ends_mid_message: BTreeMap<Epoch, bool>,
}

/// What a receiver keeps.
#[derive(Clone, Copy, Debug)]
pub enum Recording<'a> {
    /// Every delivery, and every packet in a capture at this path.
    Everything(&'a Path),
    /// A summary that does not grow with the stream. `is_permanent`: the receiver starts before the venue.
    Summary {
        /// Whether the receiver starts before the venue.
        is_permanent: bool,
    },
}

/// What a receiver that kept a summary has received.
#[derive(Clone, Debug)]
pub struct ReceivedSummary {
    /// Counts, silences, latencies and hashes of what the receiver delivered.
    pub stream: StreamSummary,
    /// Of the published packets, by the verifier of `mdgw ha verify`.
    pub verdict: Verdict,
    /// Datagrams that the library refused.
    pub refused: u64,
    /// Datagrams that the kernel dropped, since the receiver was too slow.
    pub socket_drops: u64,
}

/// A running receiver.
#[derive(Debug)]
pub struct Receiver {
    received: Arc<Mutex<Received>>,
    stop: Arc<(AtomicBool, EpollSet)>,
    thread: Option<JoinHandle<io::Result<Verified>>>,
}

/// Of a receiver that keeps a summary: the verdict on its packets, and the datagrams that its socket dropped.
type Verified = Option<(Verdict, u64)>;

/// What the deliveries to a receiver have come to.
#[derive(Debug, Default)]
struct Received {
    count: usize,
    last: Option<Delivered>,
    last_message_id: Option<(Session, u64)>,
    log: ReceiverLog,
    /// Kept instead of [`ReceiverLog::delivered`].
    summary: Option<StreamSummary>,
}

/// A hash of one message's records.
#[must_use]
pub fn content_hash(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

impl Receiver {
    /// Joins the group on that host, and requests missing messages from one of `services`; without any, what does not arrive
    /// is lost. A capture holds only what `publishers` send.
    ///
    /// # Panics
    /// When a socket or the capture can't be opened.
    #[must_use]
    pub fn start(
        host: &Host,
        group: SocketAddrV4,
        publishers: Vec<Ipv4Addr>,
        services: &[SocketAddrV4],
        tags: TagPolicy,
        recording: Recording<'_>,
    ) -> Self {
        let set = EpollSet::new().expect("the kernel gives an epoll set");
        let (line, request_sockets) = host.namespace.run(|| {
            let interface = INTERFACE.parse().unwrap_or_else(|never| match never {});
            let options =
                ReceiveOptions { receive_buffer_bytes: 64 << 20, ..ReceiveOptions::new(group, Some(interface)) };
            let request_sockets = services.iter().map(|service| {
                let socket = UdpSocket::bind((host.address, 0)).and_then(|socket| {
                    socket.connect(service)?;
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                });
                socket.expect("a request socket opens")
            });
            let request_sockets: Vec<UdpSocket> = request_sockets.collect();
            (open_receive(&options).expect("a receiver joins"), request_sockets)
        });
        let of = |line| Handle { channel: ChannelIndex(0), line };
        let sockets = request_sockets.iter().map(|socket| (socket.as_fd(), Line::RECOVERY));
        for (socket, line) in [(line.as_fd(), Line::A)].into_iter().chain(sockets) {
            set.add(socket, of(line)).expect("sockets are watched");
        }
        let stop = Arc::new((AtomicBool::new(false), set));
        let (packets, summary, start) = match recording {
            Recording::Everything(capture) => {
                let file = File::create(capture).expect("a capture can be created");
                let writer = PcapWriter::new(BufWriter::with_capacity(1 << 20, file));
                (PacketSink::Capture(writer.expect("a capture can be begun")), None, StartFrom::OldestOfSession)
            }
            Recording::Summary { is_permanent } => {
                let options = VerifyOptions { names_max: VERIFIED_NAMES_MAX, ..VerifyOptions::default() };
                let start = if is_permanent { StartFrom::OldestOfSession } else { StartFrom::Live };
                let verifier = Box::new(Verifier::new(options));
                (PacketSink::Verifier(verifier), Some(StreamSummary::new(is_permanent)), start)
            }
        };
        let received = Arc::new(Mutex::new(Received { summary, ..Received::default() }));
        let receiving = ReceiverThread {
            sockets: (line, request_sockets),
            selector: ServiceSelector::new(services.len()),
            group,
            services: services.to_vec(),
            publishers,
            packets,
            packet_count: 0,
            protocol: Protocol::new(ReceiverConfig {
                group: GROUP,
                lines: 1,
                window_packets: 16_384,
                start,
                tags,
                // Many attempts, since a killed gateway may have to be restarted before its service answers.
                service: (!services.is_empty()).then(|| ServiceConfig {
                    attempts_max: 400,
                    service_count: u8::try_from(services.len()).expect("few gateways"),
                    ..ServiceConfig::default()
                }),
                ..ReceiverConfig::default()
            }),
            received: Arc::clone(&received),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::spawn(move || receiving.run());
        Self { received, stop, thread: Some(thread) }
    }

    /// Number of deliveries, and the epoch of the last delivery.
    #[must_use]
    pub fn progress(&self) -> (usize, Epoch) {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        (received.count, received.last.map(|last| last.epoch).unwrap_or_default())
    }

    /// Whether the session's end is the last that was delivered.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.last.is_some_and(|last| last.item == DeliveredItem::End)
    }

    /// The last message that was delivered.
    #[must_use]
    pub fn last_message_id(&self) -> Option<(Session, u64)> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).last_message_id
    }

    /// Ends the receiver, and returns its log.
    ///
    /// # Panics
    /// When it has failed.
    #[must_use]
    pub fn finish(mut self) -> ReceiverLog {
        let _verdict = self.end().expect("the receiver records what it receives");
        std::mem::take(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner).log)
    }

    /// Ends the receiver, and returns its summary.
    ///
    /// # Panics
    /// When it has failed, or keeps everything.
    #[must_use]
    pub fn finish_summary(mut self) -> ReceivedSummary {
        let verified = self.end().expect("the receiver receives");
        let (verdict, socket_drops) = verified.expect("the receiver keeps a summary");
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = received.summary.take().expect("the receiver keeps a summary");
        ReceivedSummary { stream, verdict, refused: received.log.refused, socket_drops }
    }

    fn end(&mut self) -> io::Result<Verified> {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.wake();
        self.thread
            .take()
            .map_or(Ok(None), |thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.wake();
    }
}

/// Where a receiver's packets go.
enum PacketSink {
    Capture(PcapWriter<BufWriter<File>>),
    Verifier(Box<Verifier>),
}

impl PacketSink {
    fn accept(
        &mut self,
        number: u64,
        time_ns: u64,
        src: SocketAddrV4,
        dst: SocketAddrV4,
        payload: &[u8],
    ) -> io::Result<()> {
        match self {
            Self::Capture(writer) => writer.datagram(time_ns, src, dst, payload),
            Self::Verifier(verifier) => {
                let location = Location { file: 0, number };
                verifier.accept(&CapturedPacket { location, time_ns, dst: dst.into(), payload });
                Ok(())
            }
        }
    }
}

struct ReceiverThread {
    sockets: (ReceiveSocket, Vec<UdpSocket>),
    selector: ServiceSelector,
    group: SocketAddrV4,
    services: Vec<SocketAddrV4>,
    publishers: Vec<Ipv4Addr>,
    packets: PacketSink,
    packet_count: u64,
    protocol: Protocol,
    received: Arc<Mutex<Received>>,
    stop: Arc<(AtomicBool, EpollSet)>,
}

impl ReceiverThread {
    fn run(mut self) -> io::Result<Verified> {
        let shared = Arc::clone(&self.stop);
        let (is_stopped, set) = &*shared;
        let mut thread = set.thread_io()?;
        let mut batch = ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX);
        let request_sockets = self.sockets.1.iter().map(|socket| (Line::RECOVERY, socket.as_raw_fd()));
        let sockets: Vec<_> = [(Line::A, self.sockets.0.raw_fd())].into_iter().chain(request_sockets).collect();
        let mut events = Vec::new();
        loop {
            // Read before the sockets, so that datagrams that are queued now are still received.
            let is_last = is_stopped.load(Ordering::Acquire);
            loop {
                batch.clear();
                // An error means that a service does not listen (yet); the request to it is repeated.
                let unfinished = thread.receive(&sockets, &mut batch).unwrap_or_default();
                for datagram in batch.iter() {
                    let time_ns = datagram.ts_recv.unwrap_or_else(unix_now);
                    self.accept_datagram(datagram.line, datagram.bytes, time_ns.0, datagram.source)?;
                }
                if unfinished.is_empty() {
                    break;
                }
            }
            let received = &self.received;
            let now = unix_now().0;
            self.protocol.on_deadline(mono_now(), &mut |output| deliver(received, &output, now, None));
            while let Some(mut request) = self.protocol.poll_request() {
                let service = self.selector.select(&request);
                request.nonce = self.protocol.request_nonce(u8::try_from(service).expect("few gateways"));
                // If the send is refused, the request is repeated.
                let _sent = self.sockets.1[service].send(request.to_packet().as_bytes());
            }
            if is_last {
                self.protocol.finish(&mut |output| deliver(received, &output, now, None));
                return match self.packets {
                    PacketSink::Capture(writer) => writer.finish().map(|_writer| None),
                    PacketSink::Verifier(verifier) => Ok(Some((verifier.finish(), socket_drops(&self.sockets.0)?))),
                };
            }
            set.set_timer(self.protocol.next_deadline());
            events.clear();
            thread.wait(Wait::Block, 16, &mut events)?;
        }
    }

    fn accept_datagram(&mut self, line: Line, bytes: &[u8], time_ns: u64, source: SocketAddrV4) -> io::Result<()> {
        let local = if line == Line::A { self.group } else { address_of(&self.sockets.1[0])? };
        if self.publishers.contains(source.ip()) {
            self.packet_count += 1;
            self.packets.accept(self.packet_count, time_ns, source, local, bytes)?;
        }
        let before = self.protocol.epoch();
        let received = &self.received;
        let packet = parse_packet(bytes).ok();
        let epoch = packet.as_ref().map(|packet| packet.meta.epoch);
        let service = self.services.iter().position(|service| *service == source).unwrap_or(0);
        let service = u8::try_from(service).expect("few gateways");
        let datagram = PublishedDatagram { line, service, bytes, ts_recv: mdgw_feeds::time::UnixNs(time_ns) };
        let accepted =
            self.protocol.accept(datagram, mono_now(), &mut |output| deliver(received, &output, time_ns, epoch));
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        let received = &mut received.log;
        received.refused += u64::from(accepted.is_err());
        if let Some(packet) = packet.filter(|_| line == Line::A && accepted.is_ok()) {
            let is_mid_message = StreamPosition::range_of_packet(&packet).1.part > 0;
            received.ends_mid_message.insert(packet.meta.epoch, is_mid_message);
        }
        if let Some(epoch) = self.protocol.epoch()
            && before != Some(epoch)
        {
            received.first_packets.push((epoch, time_ns));
        }
        Ok(())
    }
}

/// Datagrams that the kernel has dropped since the socket was opened.
fn socket_drops(socket: &ReceiveSocket) -> io::Result<u64> {
    let mut drops = SocketDrops::default();
    let total = drops.add(Handle { channel: ChannelIndex(0), line: Line::A }, Arc::clone(socket.socket()));
    drops.read(|_, _| {})?;
    Ok(total.load(Ordering::Relaxed))
}

fn address_of(socket: &UdpSocket) -> io::Result<SocketAddrV4> {
    match socket.local_addr()? {
        std::net::SocketAddr::V4(address) => Ok(address),
        std::net::SocketAddr::V6(_) => Err(io::Error::other("not an IPv4 socket")),
    }
}

/// `epoch`: epoch of the datagram that delivered the item; for an item from a deadline, the last known epoch.
fn deliver(received: &Mutex<Received>, output: &Output<'_>, time_ns: u64, epoch: Option<Epoch>) {
    let mut ts_recv_ns = 0;
    let item = match output.item {
        Item::Message { header, body } => {
            ts_recv_ns = header.ts_recv.get();
            DeliveredItem::Message {
                id: (output.session, header.sequence.get()),
                content_hash: content_hash(body),
                is_suspect: FrameFlags(header.flags).contains(FrameFlags::SUSPECT),
            }
        }
        Item::Gap(gap) => DeliveredItem::Gap(gap.count()),
        Item::Lost(gap) => DeliveredItem::Lost(gap.count()),
        Item::EndOfSession => DeliveredItem::End,
        Item::Session
        | Item::Definition { .. }
        | Item::Snapshot { .. }
        | Item::Repeated { .. }
        | Item::Books(_)
        | Item::State(_) => return,
    };
    let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
    let epoch = epoch.or_else(|| received.last.map(|last| last.epoch)).unwrap_or_default();
    let delivered = Delivered { time_ns, epoch, item };
    received.count += 1;
    received.last = Some(delivered);
    if let DeliveredItem::Message { id, .. } = item {
        received.last_message_id = Some(id);
    }
    match &mut received.summary {
        Some(summary) => summary.add(&delivered, ts_recv_ns),
        None => received.log.delivered.push(delivered),
    }
}

/// Items whose content each receiver's verifier remembers.
const VERIFIED_NAMES_MAX: usize = 1 << 20;
