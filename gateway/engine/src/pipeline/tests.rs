//! Batches of datagrams through a whole pipeline, over loopback sockets: what becomes a packet, and when it leaves.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    panic::{AssertUnwindSafe, catch_unwind},
};

use mdgw_feeds::{
    channel::ChannelConfig,
    identity::{Epoch, Feed, GroupId},
    published::{
        packet::{PacketFlags, parse_packet},
        position::StreamPosition,
        tag::{TagKey, TagPolicy, TagUse},
    },
    time::TradingDate,
    transport::moldudp64::{self, MoldSession},
};
use mdgw_publog::{LogOptions, OpenedLog, SegmentMaintenance};
use mdgw_sys::{
    batch::{Output, OutputIndex, Outputs, SendBatch},
    clock::unix_now,
    sockets::{ReceiveOptions, open_receive},
};
use mdgw_telemetry::{
    channel_metrics::channel_recorder_pair,
    counters::Registry,
    stages::{StageCollector, stage_recorder_pair},
};

use super::*;
use crate::{
    handle_set::{
        Event, HandleSet, Wait,
        epoll::{EpollIo, EpollSet},
    },
    publish::PublisherConfig,
};

/// An I/O that really sends, and then calls `after_send`.
struct TestIo {
    inner: EpollIo,
    after_send: Option<Box<dyn FnMut()>>,
}

impl ThreadIo for TestIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        self.inner.wait(wait, room, events)
    }

    fn release_wait(&mut self) -> io::Result<()> {
        self.inner.release_wait()
    }

    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        self.inner.receive(sockets, batch)
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        let taken = self.inner.send(packets);
        self.after_send.iter_mut().for_each(|after| after());
        taken
    }
}

/// A channel with two lines and one output, whose packets hold four orders. Message 1 has been published.
struct Harness {
    _directory: tempfile::TempDir,
    pipeline: ChannelPipeline,
    local: PipelineLocal,
    io: TestIo,
    fence: Arc<Fence>,
    _collector: StageCollector,
    _maintenance: SegmentMaintenance,
    venue: UdpSocket,
    addresses: [SocketAddrV4; 2],
    output: UdpSocket,
    tags: TagPolicy,
}

const SESSION: MoldSession = *b"FIRST00001";
const NEXT_SESSION: MoldSession = *b"SECOND0001";
const LINES: [Line; 2] = [Line::A, Line::B];
const EPOCH: Epoch = Epoch(5);

impl Harness {
    fn new() -> Self {
        Self::with_tags(None)
    }

    fn with_tags(tag_key: Option<TagKey>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions {
            segment_bytes: 1 << 20,
            private_bytes: 64 << 10,
            payload_bytes_max: 4 * ORDER_FRAME_BYTES,
            ..LogOptions::new(directory.path(), 1)
        };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, unix_now().0).unwrap();
        let sink = LogSink::new(writer);
        let output = UdpSocket::bind("127.0.0.1:0").unwrap();
        output.set_nonblocking(true).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let outputs = Outputs::new(vec![Output {
            socket: Arc::new(sender.into()),
            destination: Some(address_of(output.local_addr().unwrap())),
        }]);
        let tags = TagPolicy { keys: tag_key.iter().cloned().collect(), accepts_untagged: false };
        let publisher = PublisherConfig {
            group: GroupId(2),
            channel: ChannelId(1),
            outputs: vec![OutputIndex(0)],
            heartbeat_ns: 3_600_000_000_000,
            catch_up_packets_per_s: 1_000_000_000_000,
            send_ns_max: 10_000_000,
            log_directory: directory.path().to_owned(),
            tag_key,
        };
        let mut config = ChannelConfig::new(ChannelId(1), Feed::NasdaqItch);
        config.date = TradingDate::from_yyyymmdd(20_190_130);
        (config.books.orders_max, config.books.levels_max) = (1_024, 1_024);
        let lines = LINES.map(|line| LineSocket {
            line,
            socket: open_receive(&ReceiveOptions::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None)).unwrap(),
            filter: SourceFilter::new(&[]),
        });
        let address = |line: &LineSocket| address_of(line.socket.socket().local_addr().unwrap().as_socket().unwrap());
        let addresses = [address(&lines[0]), address(&lines[1])];
        let fence = Arc::new(Fence::closed());
        fence.open(EPOCH, MonoNs(u64::MAX));
        let (metrics, _) = channel_recorder_pair(&LINES);
        let pipeline = ChannelPipeline::new(PipelineParts {
            index: ChannelIndex(0),
            channel: Channel::new(config),
            lines: lines.into(),
            recovery: None,
            peer_gap_requests: Arc::new(PeerGapRequests::new(1)),
            publisher: Publisher::new(publisher, &sink, Arc::default()),
            sink,
            fence: Arc::clone(&fence),
            counters: Registry::default().register("one"),
            drop_counters: Registry::default().register("one"),
            book_fault_counters: Registry::default().register("one"),
            metrics,
            sessions: Arc::new(ArrayQueue::new(4)),
        });
        let (recorder, collector) = stage_recorder_pair(1, 2);
        let mut harness = Self {
            _directory: directory,
            pipeline,
            local: PipelineLocal::new(ReceiveBatch::new(64, 2_048), SendBuffers::new(outputs), recorder),
            io: TestIo { inner: EpollSet::new().unwrap().thread_io().unwrap(), after_send: None },
            fence,
            _collector: collector,
            _maintenance: maintenance,
            venue: UdpSocket::bind("127.0.0.1:0").unwrap(),
            addresses,
            output,
            tags,
        };
        // The first message of a stock has more records than the others.
        harness.send(Line::A, &orders(1, 1));
        harness.run_batch();
        let first = harness.received();
        assert_eq!(first[0], "[1,1) h0", "{first:?}");
        harness
    }

    fn send(&self, line: Line, datagram: &[u8]) {
        self.venue.send_to(datagram, self.addresses[usize::from(line.0)]).unwrap();
    }

    /// Sends one message in each datagram.
    fn send_each(&self, line: Line, sequences: impl IntoIterator<Item = u64>) {
        sequences.into_iter().for_each(|sequence| self.send(line, &orders(sequence, 1)));
    }

    /// Processes everything sent so far as one batch.
    fn run_batch(&mut self) {
        let Self { pipeline, local, io, .. } = self;
        let mut context = TurnContext { io, local, now: mono_now(), woken_at: unix_now(), thread: 0 };
        let lines = LINES.into_iter().fold(LineSet::default(), LineSet::with);
        let progress = pipeline.on_ready(lines, 64, &mut context).unwrap();
        assert!(progress.unfinished_lines.is_empty());
        assert!(!pipeline.sink.has_open_frames());
        let position = pipeline.channel.position().map(|(session, next)| StreamPosition::at(session, next));
        assert_eq!(pipeline.sink.committed_through(), position, "the log ends where a state copy would begin");
    }

    /// Packets received since the last call: `[first,next) flags frames`.
    fn received(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let mut datagram = [0; 2_048];
        while let Ok(length) = self.output.recv(&mut datagram) {
            let bytes = &datagram[..length];
            assert_eq!(self.tags.check(TagUse::Published, bytes), Ok(()));
            let packet = parse_packet(bytes).unwrap();
            let meta = packet.meta;
            let names = [
                (PacketFlags::HEARTBEAT, 'h'),
                (PacketFlags::RETRANSMISSION, 'r'),
                (PacketFlags::END_OF_SESSION, 'e'),
                (PacketFlags::SNAPSHOT, 's'),
            ];
            let flags: String =
                names.iter().filter(|(flag, _)| meta.flags.contains(*flag)).map(|(_, letter)| letter).collect();
            let restart = if meta.session.restart == 0 { "" } else { "#1 " };
            texts.push(format!("{restart}[{},{}) {flags}{}", meta.first.0, meta.next.0, packet.frame_count));
        }
        texts
    }

    /// Processes a batch whose first send panics, and then the failure, as the pool does. Returns the packets received
    /// before and after.
    fn received_around_panic(&mut self) -> [Vec<String>; 2] {
        self.io.after_send = Some(Box::new(|| panic!("injected")));
        assert!(catch_unwind(AssertUnwindSafe(|| self.run_batch())).is_err());
        let before = self.received();
        self.io.after_send = None;
        let Self { pipeline, local, io, .. } = self;
        let mut context = TurnContext { io, local, now: mono_now(), woken_at: unix_now(), thread: 0 };
        pipeline.on_failed(&FailReason::Panicked("injected".into()), &mut context);
        [before, self.received()]
    }

    /// Values recorded for a stage.
    fn recorded(&mut self, stage: Stage) -> u64 {
        let histograms = self.local.stages.histograms();
        histograms.recorded().filter(|recorded| recorded.stage == stage).map(|recorded| recorded.histogram.len()).sum()
    }

    /// Reads what was sent so far into the batch, without processing it. Returns the first datagram with new messages.
    fn first_new_in_batch(&mut self) -> Option<usize> {
        let sockets: Vec<_> = self.pipeline.sockets().map(|(line, socket)| (line, socket.raw_fd())).collect();
        let batch = &mut self.local.batch;
        batch.clear();
        self.io.receive(&sockets, batch).unwrap();
        let mut order: Vec<_> =
            (0_u16..).zip(batch.iter()).map(|(place, datagram)| (datagram.ts_recv.unwrap().0, place)).collect();
        order.sort_unstable();
        self.pipeline.next_with_new_messages(batch, &order, 0)
    }
}

fn address_of(address: SocketAddr) -> SocketAddrV4 {
    let SocketAddr::V4(address) = address else { unreachable!() };
    address
}

/// A datagram with `count` new orders from `first` on, all of one stock.
fn orders(first: u64, count: u64) -> Vec<u8> {
    orders_in(SESSION, first, count)
}

fn orders_in(session: MoldSession, first: u64, count: u64) -> Vec<u8> {
    let mut datagram = Vec::new();
    let mut packet = moldudp64::PacketWriter::begin(&mut datagram, session, Sequence(first), 1_400);
    for sequence in first..first + count {
        let (locate_tracking, time) = ([0, 7, 0, 0], [0, 1, 0, 0, 0, 0]);
        let price_e4 = 100_000_u32.to_be_bytes();
        let id = sequence.to_be_bytes();
        let parts = [&b"A"[..], &locate_tracking, &time, &id, b"B", &100_u32.to_be_bytes(), b"STOCK   ", &price_e4];
        assert!(packet.push(&parts.concat()));
    }
    packet.finish();
    datagram
}

fn end_of_session(session: MoldSession, next: u64) -> Vec<u8> {
    let mut datagram = Vec::new();
    moldudp64::write_end_of_session(&mut datagram, session, Sequence(next));
    datagram
}

/// An order's frame: header and one MBO record.
const ORDER_FRAME_BYTES: usize = mdgw_feeds::frame::FRAME_HEADER_BYTES + 56;

#[test]
fn datagrams_of_a_batch_share_packets_up_to_their_limit() {
    for tag_key in [None, Some(TagKey::new(&[7; 32]))] {
        let mut harness = Harness::with_tags(tag_key);
        // One datagram of two messages is cut by the limit.
        harness.send_each(Line::A, 2..5);
        harness.send(Line::A, &orders(5, 2));
        harness.send_each(Line::A, 7..12);
        harness.run_batch();
        assert_eq!(harness.received(), ["[2,6) 4", "[6,10) 4", "[10,12) 2"]);
        for stage in [Stage::WireToUser, Stage::DecodeAndBook, Stage::Publish, Stage::WireToWire] {
            assert_eq!(harness.recorded(stage), 1 + 9, "each datagram has its own value of {stage:?}");
        }
    }
}

#[test]
fn a_datagram_that_comes_alone_leaves_alone() {
    let mut harness = Harness::new();
    for sequence in 2..6 {
        harness.send_each(Line::A, [sequence]);
        harness.run_batch();
        assert_eq!(harness.received(), [format!("[{sequence},{}) 1", sequence + 1)]);
    }
}

#[test]
fn copies_of_the_other_line_neither_end_a_packet_nor_keep_it_open() {
    let mut harness = Harness::new();
    for sequence in 2..5 {
        LINES.into_iter().for_each(|line| harness.send_each(line, [sequence]));
    }
    harness.run_batch();
    assert_eq!(harness.received(), ["[2,5) 3"]);
    assert_eq!(harness.recorded(Stage::WireToWire), 1 + 3, "copies have no output");

    // What comes after message 4, and where the open packet's wait ends.
    let mut heartbeat = Vec::new();
    moldudp64::write_heartbeat(&mut heartbeat, SESSION, Sequence(5));
    for (datagrams, expected) in [
        (vec![orders(4, 1), orders(3, 2)], None),
        (vec![orders(4, 1), orders(5, 1), orders(5, 1)], Some(1)),
        (vec![orders(6, 1), orders(4, 2)], Some(1)),
        (vec![orders(6, 1), orders(7, 9)], None),
        (vec![heartbeat, end_of_session(SESSION, 5)], None),
        (vec![orders_in(NEXT_SESSION, 5, 1), orders(5, 1)[..19].to_vec()], None),
    ] {
        datagrams.iter().for_each(|datagram| harness.send(Line::B, datagram));
        assert_eq!(harness.first_new_in_batch(), expected, "{datagrams:?}");
    }
}

#[test]
fn a_packet_waits_for_few_datagrams_only() {
    for (copies, expected) in [(7, &["[2,4) 2"][..]), (8, &["[2,3) 1", "[3,4) 1"])] {
        let mut harness = Harness::new();
        harness.send_each(Line::A, [2]);
        (0..copies).for_each(|_| harness.send_each(Line::B, [2]));
        harness.send_each(Line::A, [3]);
        harness.run_batch();
        assert_eq!(harness.received(), expected, "with {copies} copies between");
    }
}

#[test]
fn a_packet_does_not_wait_behind_a_gap_but_for_the_datagram_that_fills_it() {
    let mut harness = Harness::new();
    harness.send_each(Line::A, [2, 3, 5, 6]);
    assert_eq!(harness.first_new_in_batch(), Some(0));
    harness.send_each(Line::A, [2, 3, 5, 6]);
    harness.run_batch();
    assert_eq!(harness.received(), ["[2,4) 2"]);
    harness.send_each(Line::B, [4, 5, 6]);
    harness.run_batch();
    assert_eq!(harness.received(), ["[4,7) 3"]);

    harness.send_each(Line::A, [7, 8, 10, 11]);
    harness.send_each(Line::B, [7, 8, 9]);
    harness.run_batch();
    assert_eq!(harness.received(), ["[7,11) 4", "[11,12) 1"]);
    assert_eq!(harness.pipeline.channel().counters().gaps, 0);
}

#[test]
fn a_session_that_ends_inside_a_batch_ends_its_last_packet() {
    let mut harness = Harness::new();
    harness.send_each(Line::A, [2, 3]);
    harness.send(Line::A, &end_of_session(SESSION, 4));
    harness.send(Line::A, &orders_in(NEXT_SESSION, 1, 1));
    harness.send(Line::A, &orders_in(NEXT_SESSION, 2, 1));
    harness.send(Line::A, &orders_in(NEXT_SESSION, 3, 1));
    harness.run_batch();
    // Frames that cover nothing: the channel has ended, and is live again.
    let expected = ["[2,4) 2", "[4,4) 1", "[4,4) he0", "#1 [1,2) 1", "#1 [2,4) 3"];
    assert_eq!(harness.received(), expected);
}

#[test]
fn a_panic_inside_a_batch_keeps_the_output_of_earlier_datagrams() {
    let mut harness = Harness::new();
    harness.send_each(Line::A, 2..5);
    harness.send(Line::A, &orders(5, 2));
    harness.send_each(Line::A, 7..9);
    // The fourth datagram filled a packet. Its second message was in the next one when the first packet left. The
    // publisher does not know that the first packet has left. Then the second message, and the channel's state.
    assert_eq!(harness.received_around_panic(), [&["[2,6) 4"][..], &["[2,6) 4", "[6,7) 1", "[7,7) 1"]]);
}

#[test]
fn a_full_packet_leaves_before_the_next_datagram_is_processed() {
    let mut harness = Harness::new();
    harness.send_each(Line::A, 2..9);
    // Nothing of a fifth datagram was there when the packet left.
    assert_eq!(harness.received_around_panic(), [&["[2,6) 4"][..], &["[2,6) 4", "[6,6) 1"]]);
}

#[test]
fn a_fence_that_closes_inside_a_batch_stops_its_later_packets() {
    let mut harness = Harness::new();
    harness.send_each(Line::A, 2..12);
    let fence = Arc::clone(&harness.fence);
    harness.io.after_send = Some(Box::new(move || fence.close()));
    harness.run_batch();
    assert_eq!(harness.received(), ["[2,6) 4"], "one hand-over, then the fence was closed");
    harness.io.after_send = None;
    harness.fence.open(Epoch(6), MonoNs(u64::MAX));
    harness.send_each(Line::A, [12]);
    harness.run_batch();
    assert_eq!(harness.received(), ["[6,6) h0", "[6,10) r4", "[10,12) r2", "[12,13) r1"]);
    assert_eq!(harness.recorded(Stage::WireToWire), 1 + 4 + 1, "what leaves with a later catch-up has no value");
}
