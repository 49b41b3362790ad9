//! Two in-process gateways whose leader the test sets, a scripted leader that stops at any position, a venue, and a
//! consumer that records all deliveries.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use mdgw_election::auth::SharedKey;
use mdgw_feeds::{
    consumer_edge::TsRecvMode,
    frame::{FrameFlags, FrameKind},
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::{
        packet::{Frames, PACKET_HEADER_BYTES, PacketFlags, PacketHeader, PacketMeta, write_packet},
        position::StreamPosition,
        tag::{TagKey, TagPolicy, TagUse},
    },
    time::MonoNs,
};
use mdgw_pair::{
    pair_link::{LinkHandle, PairEndpoints, PeerEndpoint},
    standby::ChannelStatus,
};
use mdgw_publog::Reader;
use mdgw_runtime::{
    config::Resolved,
    gateway::{Gateway, GatewayReport, GroupHandle, Leadership, Overrides, StartMode},
};
use mdgw_subscriber::{Item, LineAddress, Output, Subscriber, SubscriberConfig};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use zerocopy::FromBytes as _;

use crate::{
    feeds::Packet,
    gateway_fixture::{GatewayFixture, GatewayOptions, dropped_datagrams, free_address, wait_until_joined},
    process::{TEST_TIMEOUT, wait_until},
};

/// Group id of a [`GatewayFixture`].
pub const GROUP: GroupId = GroupId(1);
/// Channel id of a [`GatewayFixture`].
pub const CHANNEL: ChannelId = ChannelId(1);

/// Starts a gateway whose leadership the test decides.
///
/// # Panics
/// When it doesn't start.
#[must_use]
pub fn start_gateway(config: &Path, beginning: StartMode) -> Gateway {
    let config = Resolved::load(config).expect("the configuration is sound");
    let date = Some("2019-01-30".parse().expect("a date"));
    let overrides = Overrides {
        date,
        ts_recv: TsRecvMode::None,
        leadership: Leadership::Elected,
        beginning,
        copy_peer_state: false,
        stall_limit: None,
    };
    Gateway::start(&config, overrides).expect("the gateway starts")
}

/// A gateway that runs inside the test process.
#[derive(Debug)]
pub struct InProcessGateway {
    /// Addresses, directory and configuration.
    pub fixture: GatewayFixture,
    gateway: Gateway,
}

impl InProcessGateway {
    /// Starts a gateway with this configuration as a standby.
    #[must_use]
    pub fn start(fixture: GatewayFixture, options: &GatewayOptions) -> Self {
        Self::start_with(fixture, options, StartMode::default())
    }

    /// Starts a gateway with this configuration as a standby. `beginning`: from its own log, or with a replay of the
    /// whole session.
    #[must_use]
    pub fn start_with(fixture: GatewayFixture, options: &GatewayOptions, beginning: StartMode) -> Self {
        let gateway = start_gateway(&fixture.config(options), beginning);
        Self { fixture, gateway }
    }

    /// The group's handle.
    ///
    /// # Panics
    /// Never: the configuration has that group.
    #[must_use]
    pub fn handle(&self) -> &GroupHandle {
        self.gateway.group(GROUP).expect("the configuration has one group")
    }

    /// Status of the gateway's channel: its own positions, and the positions received from the peer.
    ///
    /// # Panics
    /// When the gateway has no standby receiver.
    #[must_use]
    pub fn channel_status(&self) -> ChannelStatus {
        self.gateway.status_table().and_then(|table| table.get(CHANNEL)).expect("a standby listens")
    }

    /// Runs the periodic work of a gateway once, and waits until the channel has handled its inbox.
    pub fn update_state(&mut self) {
        self.gateway.update_health();
        self.handle().on_fence_change();
        wait_until("the channel has read its inbox", || self.handle().drained().is_some());
    }

    /// Opens the fence under `epoch`: the gateway becomes the leader.
    pub fn open_fence(&self, epoch: Epoch) {
        self.handle().fence().open(epoch, MonoNs(u64::MAX));
        self.handle().on_fence_change();
    }

    /// All entries of the gateway's publication log.
    #[must_use]
    pub fn log(&self) -> Vec<LogEntry> {
        log_entries(&self.fixture)
    }

    /// Waits until the gateway's publication log reaches the position.
    pub fn wait_until_ready(&self, position: StreamPosition) {
        wait_until("the log reaches the position", || self.log().last().is_some_and(|entry| entry.until() >= position));
    }

    /// Waits until the gateway has received the peer's output exactly up to the position.
    ///
    /// # Panics
    /// When the gateway has no standby receiver.
    pub fn wait_until_received(&self, position: StreamPosition) {
        let status_table = self.gateway.status_table().expect("a standby listens");
        wait_until("the output of the leader is received", || {
            status_table.get(CHANNEL).is_some_and(|status| status.received.received_through == Some(position))
        });
    }

    /// Stops the gateway in order, and starts it again on its own log.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn restart(self, options: &GatewayOptions) -> Self {
        self.restart_after(options, |_| {})
    }

    /// As [`Self::restart`]; `between` is called while no gateway runs.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn restart_after(self, options: &GatewayOptions, between: impl FnOnce(&GatewayFixture)) -> Self {
        let Self { fixture, gateway } = self;
        let _report = gateway.stop().expect("the gateway ends in order");
        between(&fixture);
        // Latency logs of one process are named by the second.
        std::thread::sleep(Duration::from_millis(1_100));
        Self::start_with(fixture, options, StartMode::OwnLog)
    }

    /// Stops the gateway in order.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn stop(self) -> GatewayReport {
        self.gateway.stop().expect("the gateway ends in order")
    }
}

/// Links two gateways. Returns the link handles of both once they are connected.
///
/// # Panics
/// When a link can't be opened, or the gateways don't connect.
#[must_use]
pub fn link(members: [&mut InProcessGateway; 2]) -> [Arc<LinkHandle>; 2] {
    let [a, b] = [free_address(), free_address()];
    let mut addresses = [(a, b), (b, a)].into_iter();
    let handles = members.map(|member| {
        let (listen, peer) = addresses.next().expect("two members");
        let peers = vec![PeerEndpoint { node: None, address: peer }];
        let endpoints = PairEndpoints { listen, peers, key: SharedKey::new(&[7; 32]), period_ns: 5_000_000 };
        Arc::clone(member.gateway.link(endpoints).expect("the link starts"))
    });
    wait_until("the gateways are connected", || handles.iter().all(|handle| !handle.peer_nodes().is_empty()));
    handles
}

/// One entry of a publication log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Session of the entry.
    pub session: Session,
    /// First input sequence that it covers.
    pub first: Sequence,
    /// The input sequence after the last that it covers.
    pub next: Sequence,
    /// Packet flags with which the entry was committed.
    pub flags: PacketFlags,
    /// The frames of the entry, back to back, as they go into a packet.
    pub payload: Vec<u8>,
}

impl LogEntry {
    /// The stream position before the entry.
    #[must_use]
    pub fn from(&self) -> StreamPosition {
        StreamPosition::range_of_body(self.session, (self.first, self.next), &self.payload).0
    }

    /// The stream position after the entry.
    #[must_use]
    pub fn until(&self) -> StreamPosition {
        StreamPosition::range_of_body(self.session, (self.first, self.next), &self.payload).1
    }
}

/// Whether the log says of any messages that they are missing.
#[must_use]
pub fn has_gap(entries: &[LogEntry]) -> bool {
    let mut frames = entries.iter().flat_map(|entry| Frames::of_body(&entry.payload));
    frames.any(|(header, _)| header.kind == FrameKind::Gap as u8)
}

/// All entries of a gateway's publication log.
#[must_use]
pub fn log_entries(fixture: &GatewayFixture) -> Vec<LogEntry> {
    let reader = Reader::open(fixture.path("log").join(CHANNEL.0.to_string()), CHANNEL.0);
    reader.map(read_entries).unwrap_or_default()
}

/// All entries that a reader returns.
#[must_use]
pub fn read_entries(mut reader: Reader) -> Vec<LogEntry> {
    let mut entries = Vec::new();
    while let Some(entry) = reader.next() {
        let Some(session) = Session::from_bytes(entry.session) else { continue };
        let [flags, _] = entry.flags.to_le_bytes();
        entries.push(LogEntry {
            session,
            first: Sequence(entry.first),
            next: Sequence(entry.next),
            flags: PacketFlags(flags),
            payload: entry.payload.to_vec(),
        });
    }
    entries
}

/// The messages in a log, with parts joined: what a consumer must get.
#[must_use]
pub fn messages_of(entries: &[LogEntry]) -> BTreeMap<(Session, u64), Vec<u8>> {
    let mut messages: BTreeMap<_, Vec<u8>> = BTreeMap::new();
    for entry in entries {
        for (header, body) in Frames::of_body(&entry.payload) {
            if header.kind == FrameKind::Message as u8 {
                messages.entry((entry.session, header.sequence.get())).or_default().extend_from_slice(body);
            }
        }
    }
    messages
}

/// A leader that publishes log entries only up to the position that the test sets.
#[derive(Debug)]
pub struct ScriptedLeader {
    socket: UdpSocket,
    output: SocketAddrV4,
    epoch: Epoch,
    /// Key of the packets' tags; without a key they have none.
    tag_key: Option<TagKey>,
}

impl ScriptedLeader {
    /// A leader that publishes to that group, under that epoch.
    ///
    /// # Panics
    /// When it can't have a socket.
    #[must_use]
    pub fn new(output: SocketAddrV4, epoch: Epoch) -> Self {
        Self { socket: sender(), output, epoch, tag_key: None }
    }

    /// A leader at another address of the loopback interface.
    ///
    /// # Panics
    /// When it can't have a socket.
    #[must_use]
    pub fn at(address: Ipv4Addr, output: SocketAddrV4, epoch: Epoch) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("a socket");
        SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("loopback sends multicast");
        Self { socket, output, epoch, tag_key: None }
    }

    /// The same leader with a tag under this key on each packet.
    #[must_use]
    pub fn with_key(self, key: &TagKey) -> Self {
        Self { tag_key: Some(key.clone()), ..self }
    }

    /// Publishes entries, one packet each.
    ///
    /// # Panics
    /// When loopback doesn't take a datagram.
    pub fn publish(&self, entries: &[LogEntry]) {
        let mut datagram = [0; 2_048];
        for entry in entries {
            let meta = PacketMeta {
                flags: entry.flags,
                group: GROUP,
                channel: CHANNEL,
                epoch: self.epoch,
                session: entry.session,
                first: entry.first,
                next: entry.next,
                send_time_ns: 1,
            };
            let length = write_packet(&meta, &entry.payload, &mut datagram).expect("an entry fits a packet");
            let packet = &datagram[..length];
            let packet = self.tag_key.as_ref().map_or_else(|| packet.to_vec(), |key| with_tag(packet, key));
            self.socket.send_to(&packet, self.output).expect("loopback takes a datagram");
        }
    }
}

/// The packet with a tag.
///
/// # Panics
/// When it is shorter than a header.
#[must_use]
pub fn with_tag(packet: &[u8], key: &TagKey) -> Vec<u8> {
    let (mut header, frames) = PacketHeader::read_from_prefix(packet).expect("a packet");
    header.flags |= PacketFlags::TAGGED.0;
    let header: [u8; PACKET_HEADER_BYTES] = zerocopy::transmute!(header);
    [&header[..], frames, &key.tag(TagUse::Published, &header, frames)].concat()
}

/// A venue that sends the given packets in order, on the given lines.
#[derive(Debug)]
pub struct VenueSender(UdpSocket);

impl Default for VenueSender {
    fn default() -> Self {
        Self(sender())
    }
}

impl VenueSender {
    /// Sends packets on a line, no faster than a receiver on a crowded machine can follow.
    ///
    /// # Panics
    /// When loopback doesn't take a datagram.
    pub fn send(&self, line: SocketAddrV4, packets: &[Packet]) {
        for (number, (_, bytes)) in packets.iter().enumerate() {
            self.0.send_to(bytes, line).expect("loopback takes a datagram");
            if number % 64 == 63 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn sender() -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("loopback is an interface");
    socket.set_multicast_loop_v4(true).expect("multicast loopback is on");
    socket.into()
}

/// A subscriber, and everything that was delivered to it.
#[derive(Debug)]
pub struct RecordingConsumer {
    subscriber: Subscriber,
    /// Of its line.
    address: SocketAddrV4,
    /// All deliveries, in order.
    pub deliveries: Vec<Delivery>,
}

/// One delivery to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A message with its records, and whether its book is suspect.
    Message(Session, u64, Vec<u8>, bool),
    /// The gateway declared `[first, next)` missing.
    Gap(u64, u64),
    /// The receiver gave up `[first, next)`.
    Lost(u64, u64),
    /// The session's end.
    End(Session),
}

impl RecordingConsumer {
    /// Subscribes to a gateway's output, and requests missing messages from that gateway.
    ///
    /// # Panics
    /// When it can't.
    #[must_use]
    pub fn open(fixture: &GatewayFixture, members: u32) -> Self {
        Self::open_with_tags(fixture, members, TagPolicy::default())
    }

    /// The same, with a policy for packet tags.
    ///
    /// # Panics
    /// When it can't.
    #[must_use]
    pub fn open_with_tags(fixture: &GatewayFixture, members: u32, tags: TagPolicy) -> Self {
        let line = LineAddress::new(fixture.output, Ipv4Addr::LOCALHOST);
        let mut config = SubscriberConfig::new(vec![line]);
        config.receiver.group = GROUP;
        config.receiver.tags = tags;
        config.services = vec![fixture.retransmission];
        Self::open_with_config(config, fixture, members)
    }

    /// A consumer that requests missing messages from both gateways, as ops/guide/upgrade.md asks for: each log may lack what was
    /// published while its gateway was stopped.
    ///
    /// # Panics
    /// When it can't.
    #[must_use]
    pub fn open_with_both_services(fixtures: [&GatewayFixture; 2], members: u32) -> Self {
        let [first, second] = fixtures;
        let mut config = SubscriberConfig::new(vec![LineAddress::new(first.output, Ipv4Addr::LOCALHOST)]);
        config.receiver.group = GROUP;
        config.services = vec![first.retransmission, second.retransmission];
        Self::open_with_config(config, first, members)
    }

    fn open_with_config(config: SubscriberConfig, fixture: &GatewayFixture, members: u32) -> Self {
        let subscriber = Subscriber::open(config).expect("the subscriber opens");
        wait_until_joined(fixture.output, members);
        Self { subscriber, address: fixture.output, deliveries: Vec::new() }
    }

    /// Receives until `is_done`.
    ///
    /// # Panics
    /// When [`TEST_TIMEOUT`] ends before.
    pub fn receive_until(&mut self, what: &str, mut is_done: impl FnMut(&[Delivery]) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_done(&self.deliveries) {
            assert!(Instant::now() < deadline, "never: {what}; {} deliveries", self.deliveries.len());
            let deliveries = &mut self.deliveries;
            let polled =
                self.subscriber.poll(Duration::from_millis(10), &mut |output| deliveries.extend(Delivery::of(&output)));
            let _count = polled.expect("loopback can be read");
        }
    }

    /// Receives until the session has ended.
    pub fn receive_to_session_end(&mut self, session: Session) {
        self.receive_until("the session ends", |deliveries| deliveries.contains(&Delivery::End(session)));
    }

    /// Highest epoch that the subscriber has accepted.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.subscriber.receiver().epoch()
    }

    /// Compares the deliveries with the expected messages.
    ///
    /// # Errors
    /// The first message that is lost, duplicated, out of order, or different.
    pub fn check_deliveries(&self, expected: &BTreeMap<(Session, u64), Vec<u8>>) -> Result<(), String> {
        // The sockets are the consumer's and those of the gateways that listen.
        let with_drops = |violation| format!("{violation}; dropped at sockets: {:?}", dropped_datagrams(self.address));
        check_deliveries(&self.deliveries, expected).map_err(with_drops)
    }
}

impl Delivery {
    /// The delivery to record for that output, if any.
    #[must_use]
    pub fn of(output: &Output<'_>) -> Option<Self> {
        let session = output.session;
        Some(match output.item {
            Item::Message { header, body } => {
                let is_suspect = FrameFlags(header.flags).contains(FrameFlags::SUSPECT);
                Self::Message(session, header.sequence.get(), body.to_vec(), is_suspect)
            }
            Item::Gap(gap) => Self::Gap(gap.first().0, gap.next().0),
            Item::Lost(gap) => Self::Lost(gap.first().0, gap.next().0),
            Item::EndOfSession => Self::End(session),
            Item::Session
            | Item::Definition { .. }
            | Item::Snapshot { .. }
            | Item::Repeated { .. }
            | Item::Books(_)
            | Item::State(_) => return None,
        })
    }
}

/// Checks that every message was delivered once, in order, with its own records, and without gaps.
///
/// # Errors
/// Describes the first violation.
pub fn check_deliveries(deliveries: &[Delivery], expected: &BTreeMap<(Session, u64), Vec<u8>>) -> Result<(), String> {
    let mut expected_messages = expected.iter();
    for delivery in deliveries {
        match delivery {
            Delivery::Message(session, sequence, body, _) => {
                let Some((name, records)) = expected_messages.next() else {
                    return Err(format!("{sequence}: one too many"));
                };
                if *name != (*session, *sequence) {
                    return Err(format!("{session} {sequence} delivered where {} {} was expected", name.0, name.1));
                }
                if records != body {
                    return Err(format!("{session} {sequence}: other records"));
                }
            }
            Delivery::Gap(first, next) => return Err(format!("gap [{first}, {next})")),
            Delivery::Lost(first, next) => return Err(format!("lost [{first}, {next})")),
            Delivery::End(_) => {}
        }
    }
    expected_messages.next().map_or(Ok(()), |(name, _)| Err(format!("{} {}: never delivered", name.0, name.1)))
}
