//! A log, and what the snapshot thread sends of it to a socket.

use std::{net::UdpSocket, ops::Range, sync::Arc};

use mdgw_engine::publish::LogSink;
use mdgw_feeds::{
    book::BookLimits,
    frame::{FrameKind, FrameMeta, FrameSink, GapBody},
    identity::{Epoch, Feed, Sequence, Session},
    published::{
        packet::parse_packet,
        snapshot::{ChunkOutcome, SnapshotAssembly, SnapshotChunk},
        tag::{TagKey, TagPolicy},
    },
    time::{TradingDate, UnixNs},
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_publog::{LogOptions, OpenedLog, Retention, SegmentMaintenance};
use mdgw_sys::{
    fence::Fence,
    sockets::{OutputOptions, open_output},
};
use zerocopy::IntoBytes as _;

use super::*;
use crate::{
    config::resolved::OutputLine,
    retransmit::snapshots::{Readiness, SnapshotTaker},
};

const GROUP: GroupId = GroupId(2);
const OTHER_GROUP: GroupId = GroupId(3);
const NOW: UnixNs = UnixNs(1_600_000_000_000_000_000);
const MS: u64 = 1_000_000;
/// Bytes of frames in a packet: a chunk has at most five orders.
const FRAME_BYTES_MAX: usize = 400;

/// A channel's log.
struct Log {
    directory: tempfile::TempDir,
    sink: LogSink,
    _maintenance: SegmentMaintenance,
    channel: ChannelId,
    group: GroupId,
}

impl Log {
    /// The log of a channel with that many resting orders.
    fn new(channel: u16, orders: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let retention = Retention { bytes_max: 4 << 20, age_ns_max: None, protected_bytes_max: 4 << 20 };
        let options = LogOptions {
            segment_bytes: 1 << 20,
            private_bytes: 1 << 20,
            retention,
            ..LogOptions::new(directory.path(), channel)
        };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, NOW.0).unwrap();
        let mut sink = LogSink::new(writer);
        sink.begin(NOW);
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        sink.session(Session { feed: Feed::NasdaqItch, date, restart: 0 }, Sequence(1));
        let channel = ChannelId(channel);
        let mut log = Self { directory, sink, _maintenance: maintenance, channel, group: GROUP };
        log.orders(1..orders + 1);
        log
    }

    fn orders(&mut self, sequences: Range<u64>) {
        for sequence in sequences {
            let mut record = [0; 56];
            (record[0], record[1]) = (14, dbn::enums::rtype::MBO);
            record[4..8].copy_from_slice(&7_u32.to_le_bytes());
            record[16..24].copy_from_slice(&sequence.to_le_bytes());
            record[24..32].copy_from_slice(&(sequence * 1_000_000_000).to_le_bytes());
            record[32..36].copy_from_slice(&100_u32.to_le_bytes());
            (record[36], record[38], record[39]) = (dbn::flags::LAST, b'A', b'B');
            self.sink.frame(&FrameMeta::message(Sequence(sequence), NOW, 0), 1, &record);
        }
        self.sink.flush();
    }

    fn gap(&mut self, first: u64, next: u64) {
        let body = GapBody { first: first.into(), next: next.into() };
        self.sink.frame(&FrameMeta::control(FrameKind::Gap, Sequence(first), Sequence(next)), 0, body.as_bytes());
        self.sink.flush();
    }
}

struct Harness {
    taker: SnapshotTaker,
    receiver: UdpSocket,
    fence: Arc<Fence>,
    /// Of the channels of another group than [`GROUP`].
    other_fence: Arc<Fence>,
    registry: Arc<Registry>,
    tags: TagPolicy,
    now: MonoNs,
}

/// A chunk as it arrived: channel, epoch, image, chunk and the position.
type Received = (u16, u64, u32, u32, u64);

impl Harness {
    fn new(logs: &[&Log], change: impl FnOnce(&mut OutputSnapshots)) -> Self {
        Self::with_tags(logs, TagPolicy::default(), change)
    }

    fn with_tags(logs: &[&Log], tags: TagPolicy, change: impl FnOnce(&mut OutputSnapshots)) -> Self {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let std::net::SocketAddr::V4(address) = receiver.local_addr().unwrap() else { panic!("IPv4") };
        let line =
            OutputLine { address, interface: "lo".parse().unwrap(), ttl: 1, loopback: true, sources: Vec::new() };
        let mut config = OutputSnapshots { line, interval_ns: 1_000 * MS, bytes_per_second: 10_000_000, passes: 2 };
        change(&mut config);
        let [fence, other_fence] = [(); 2].map(|()| Arc::new(Fence::closed()));
        let registry = Arc::default();
        let served: Vec<_> = logs
            .iter()
            .map(|log| ServedChannel {
                group: log.group,
                channel: log.channel,
                name: format!("channel {}", log.channel.0),
                log_directory: log.directory.path().to_owned(),
                frame_bytes_max: FRAME_BYTES_MAX,
                tag_key: tags.keys.first().cloned(),
                fence: Arc::clone(if log.group == GROUP { &fence } else { &other_fence }),
                epochs: Arc::new(KnownEpochs::new(Epoch(9), 1)),
                books: BookLimits::default(),
                initial: None,
            })
            .collect();
        let mut taker = SnapshotTaker::behind_image(10, &served, &registry).unwrap();
        let output = open_output(&OutputOptions::new(address, None)).unwrap();
        taker.send_to(SnapshotGroup::new(&config, vec![GROUP, OTHER_GROUP], output), &served);
        Self { taker, receiver, fence, other_fence, registry, tags, now: MonoNs(1_000_000 * MS) }
    }

    fn lead(&self, epoch: u64) {
        self.fence.open(Epoch(epoch), MonoNs(u64::MAX));
    }

    /// What is sent within so many milliseconds, a turn each.
    fn run(&mut self, ms: u64) -> Vec<Received> {
        let mut all = Vec::new();
        for _ in 0..ms {
            while self.taker.turn(self.now) {}
            self.now = self.now.plus(MS);
            let mut datagram = [0; 2_048];
            while let Ok(length) = self.receiver.recv(&mut datagram) {
                assert_eq!(self.tags.check(TagUse::Published, &datagram[..length]), Ok(()));
                let packet = parse_packet(&datagram[..length]).unwrap();
                assert!([GROUP, OTHER_GROUP].contains(&packet.meta.group));
                assert_eq!(packet.is_tagged, !self.tags.keys.is_empty());
                let chunk = SnapshotChunk::from_packet(&packet).unwrap();
                let (channel, epoch) = (packet.meta.channel.0, packet.meta.epoch.0);
                all.push((channel, epoch, chunk.image.image, chunk.chunk, chunk.image.next.0));
            }
        }
        all
    }

    fn counts(&self, channel: u16) -> SnapshotsSent {
        let blocks = self.registry.values::<SnapshotsSent>().into_iter();
        let name = format!("channel {channel}");
        blocks.filter(|(scope, _)| *scope == name).map(|(_, counts)| counts).next().unwrap()
    }
}

/// Images in the order of their first chunks.
fn images(received: &[Received]) -> Vec<(u16, u32)> {
    let mut images: Vec<_> = received.iter().map(|(channel, _, image, ..)| (*channel, *image)).collect();
    images.dedup();
    images
}

#[test]
fn every_channel_has_its_turn_and_every_image_its_passes() {
    let (one, two) = (Log::new(1, 12), Log::new(2, 3));
    let mut harness = Harness::new(&[&one, &two], |_| {});
    harness.lead(5);
    let received = harness.run(2_500);
    assert_eq!(images(&received), [(1, 11), (2, 12), (1, 13), (2, 14), (1, 15), (2, 16)]);
    let of_first: Vec<u32> =
        received.iter().filter(|(.., image, _, _)| *image == 11).map(|(.., chunk, _)| *chunk).collect();
    let chunks = u32::try_from(of_first.len()).unwrap() / 2;
    assert!(chunks > 1, "{of_first:?}");
    assert_eq!(of_first, (0..chunks).chain(0..chunks).collect::<Vec<_>>());
    let counts = harness.counts(1);
    assert_eq!((counts.snapshot_group_images, counts.snapshot_group_chunks), (3, 3 * 2 * u64::from(chunks)));
    assert_eq!((counts.snapshot_group_suspect, counts.snapshot_group_cut), (0, 0));
}

#[test]
fn the_chunks_of_a_pass_are_a_whole_image() {
    let log = Log::new(1, 40);
    let mut harness = Harness::new(&[&log], |config| config.passes = 1);
    harness.lead(5);
    let mut assembly = SnapshotAssembly::new(1 << 20);
    let mut outcome = None;
    for _ in 0..50 {
        while harness.taker.turn(harness.now) {}
        harness.now = harness.now.plus(MS);
        let mut datagram = [0; 2_048];
        while let Ok(length) = harness.receiver.recv(&mut datagram) {
            let packet = parse_packet(&datagram[..length]).unwrap();
            outcome = Some(assembly.add(&SnapshotChunk::from_packet(&packet).unwrap()).unwrap());
        }
    }
    assert_eq!(outcome, Some(ChunkOutcome::Complete));
    let totals = assembly.image().unwrap();
    assert_eq!((totals.next, totals.order_count, totals.is_suspect), (Sequence(41), 40, false));
}

#[test]
fn a_gateway_whose_fence_is_closed_sends_nothing() {
    let log = Log::new(1, 40);
    let mut harness = Harness::new(&[&log], |_| {});
    assert_eq!(harness.run(3_000), []);
    assert_eq!(harness.counts(1), SnapshotsSent::default(), "no image is taken in vain");
    harness.lead(5);
    assert!(!harness.run(2).is_empty(), "a new leader does not wait for a round");
}

/// Two groups on one output, of which this gateway leads one.
#[test]
fn channels_of_a_group_that_another_gateway_leads_are_left_out() {
    let (one, mut two) = (Log::new(1, 12), Log::new(2, 3));
    two.group = OTHER_GROUP;
    let mut harness = Harness::new(&[&one, &two], |_| {});
    harness.lead(5);
    assert_eq!(images(&harness.run(1_500)), [(1, 11), (1, 12)]);
    assert_eq!(harness.counts(2), SnapshotsSent::default());
    harness.other_fence.open(Epoch(6), MonoNs(u64::MAX));
    assert_eq!(images(&harness.run(1_000)), [(1, 13), (2, 14)]);
}

/// The leader loses its lease in the middle of an image, and leads again later.
#[test]
fn a_fence_that_closes_ends_the_image() {
    let log = Log::new(1, 400);
    let mut harness = Harness::new(&[&log], |config| config.bytes_per_second = 500_000);
    harness.lead(5);
    let before = harness.run(20);
    let last_chunk = before.last().unwrap().3;
    assert!(before.iter().all(|(_, epoch, image, ..)| (*epoch, *image) == (5, 11)));
    harness.fence.close();
    assert_eq!(harness.run(100), []);
    assert_eq!(harness.counts(1).snapshot_group_cut, 1);
    harness.lead(6);
    let after = harness.run(20);
    assert!(after.iter().all(|(_, epoch, image, ..)| (*epoch, *image) == (6, 12)), "{after:?}");
    assert_eq!((after[0].3, last_chunk > 0), (0, true));
}

/// As after a forged epoch: the same leadership goes on.
#[test]
fn a_raised_epoch_goes_on_with_the_image() {
    let log = Log::new(1, 400);
    let mut harness = Harness::new(&[&log], |config| config.bytes_per_second = 500_000);
    harness.lead(5);
    let before = harness.run(20);
    harness.fence.raise(Epoch(8), MonoNs(u64::MAX));
    let after = harness.run(20);
    assert_eq!(after[0], (1, 8, 11, before.last().unwrap().3 + 1, 401));
}

#[test]
fn chunks_leave_at_the_configured_rate() {
    let log = Log::new(1, 4_000);
    for (bytes_per_second, ms) in [(1_000_000, 300), (9_999, 10_000)] {
        let mut harness = Harness::new(&[&log], |config| config.bytes_per_second = bytes_per_second);
        harness.lead(5);
        harness.run(ms);
        let (bytes, wanted) = (harness.counts(1).snapshot_group_bytes, bytes_per_second * ms / 1_000);
        // A bucket of 10 ms, or of one large packet.
        let burst = (bytes_per_second / 100).max(PACKET_BYTES_MAX);
        assert!(bytes <= wanted + burst && bytes >= wanted * 95 / 100, "{bytes} of {wanted}");
    }
}

#[test]
fn suspect_books_are_not_sent() {
    let mut log = Log::new(1, 10);
    log.gap(11, 13);
    log.orders(13..20);
    let mut harness = Harness::new(&[&log], |_| {});
    harness.lead(5);
    assert_eq!(harness.run(2_500), []);
    let counts = harness.counts(1);
    assert_eq!((counts.snapshot_group_suspect, counts.snapshot_group_images), (3, 0));
    assert_eq!(harness.taker.readiness(ChannelId(1)), Some(Readiness::Suspect), "logged once, not for each image");
}

#[test]
fn a_channel_without_a_session_is_left_out() {
    let (mut one, two) = (Log::new(1, 0), Log::new(2, 3));
    let mut harness = Harness::new(&[&one, &two], |_| {});
    harness.lead(5);
    assert_eq!(images(&harness.run(500)), [(2, 11)]);
    assert_eq!(harness.counts(1).snapshot_group_early, 1);
    let readiness = |harness: &Harness| [1, 2].map(|channel| harness.taker.readiness(ChannelId(channel)).unwrap());
    assert_eq!(readiness(&harness), [Readiness::Empty, Readiness::Ready]);
    one.orders(1..2);
    assert_eq!(images(&harness.run(1_000)), [(1, 12), (2, 13)]);
    assert_eq!(readiness(&harness), [Readiness::Ready; 2]);
}

#[test]
fn a_removed_channel_is_sent_no_more() {
    let (one, two) = (Log::new(1, 12), Log::new(2, 3));
    let mut harness = Harness::new(&[&one, &two], |_| {});
    harness.lead(5);
    harness.run(1);
    harness.taker.remove(ChannelId(1));
    assert_eq!(images(&harness.run(100)), [(2, 12)], "the round goes on");
    let received = harness.run(3_500);
    assert!(received.iter().all(|(channel, ..)| *channel == 2) && !received.is_empty(), "{received:?}");
}

#[test]
fn chunks_have_the_tag_of_a_published_packet() {
    let log = Log::new(1, 12);
    let tags = TagPolicy { keys: vec![TagKey::new(&[7; 32])], accepts_untagged: false };
    let mut harness = Harness::with_tags(&[&log], tags, |_| {});
    harness.lead(5);
    // Each was checked.
    assert!(!harness.run(100).is_empty());
}
