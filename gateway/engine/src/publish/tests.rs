//! From frames to datagrams, over loopback.

use std::{
    cell::RefCell,
    io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
};

use mdgw_feeds::{
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Epoch, Feed, GroupId, Line, Sequence, Session},
    published::{
        packet::{PacketFlags, parse_packet},
        position::StreamPosition,
        receiver::{Item, Output, PublishedDatagram, Receiver, ReceiverConfig},
        tag::{TagKey, TagPolicy, TagUse},
    },
    time::{MonoNs, TradingDate, UnixNs},
};
use mdgw_publog::{LogOptions, OpenedLog, SegmentMaintenance};
use mdgw_sys::{
    batch::{self, OutputIndex, Outputs, ReceiveBatch, SendBatch, SendBuffers},
    clock::mono_now,
    fence::Fence,
    handle::{Handle, LineSet},
};

use super::{publisher::PublishMode, *};
use crate::handle_set::{
    Event, HandleSet, ThreadIo, Wait,
    epoll::{EpollIo, EpollSet},
};

/// An I/O that really sends, but can be made to refuse packets.
struct TestIo {
    inner: EpollIo,
    /// Number of hand-overs to refuse.
    refuse: usize,
    /// Called after each hand-over.
    after: Option<Box<dyn FnMut()>>,
}

impl ThreadIo for TestIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        self.inner.wait(wait, room, events)
    }

    fn release_wait(&mut self) -> io::Result<()> {
        self.inner.release_wait()
    }

    fn receive(&mut self, sockets: &[(Line, i32)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        self.inner.receive(sockets, batch)
    }

    fn take_provided(&mut self, handle: Handle, batch: &mut ReceiveBatch) {
        self.inner.take_provided(handle, batch);
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        if self.refuse > 0 {
            self.refuse -= 1;
            return Ok(0);
        }
        let taken = self.inner.send(packets);
        if let Some(after) = self.after.as_mut() {
            after();
        }
        taken
    }
}

struct Harness {
    directory: tempfile::TempDir,
    log: LogSink,
    maintenance: SegmentMaintenance,
    takeover: Arc<TakeoverShared>,
    publisher: Publisher,
    buffers: SendBuffers,
    io: TestIo,
    receivers: Vec<UdpSocket>,
    /// What every received packet must fulfil.
    tags: TagPolicy,
}

/// Parameters of a [`Harness`].
struct HarnessConfig {
    lines: usize,
    broken_line: Option<usize>,
    catch_up_packets_per_s: u64,
    is_tagged: bool,
}

impl Default for HarnessConfig {
    fn default() -> Self {
        Self { lines: 1, broken_line: None, catch_up_packets_per_s: 1_000_000_000_000, is_tagged: false }
    }
}

impl Harness {
    fn new(setup: &HarnessConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options =
            LogOptions { segment_bytes: 64 << 10, private_bytes: 64 << 10, ..LogOptions::new(directory.path(), 3) };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, NOW.0).unwrap();
        let mut log = LogSink::new(writer);
        log.begin(NOW);
        let mut receivers = Vec::new();
        let mut outputs = Vec::new();
        for line in 0..setup.lines {
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            receiver.set_nonblocking(true).unwrap();
            let SocketAddr::V4(address) = receiver.local_addr().unwrap() else { unreachable!() };
            receivers.push(receiver);
            // Broadcast without SO_BROADCAST is refused.
            let unreachable_address = "255.255.255.255:9".parse().unwrap();
            outputs.push(batch::Output {
                socket: Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into()),
                destination: Some(if setup.broken_line == Some(line) { unreachable_address } else { address }),
            });
        }
        let config = PublisherConfig {
            group: GroupId(2),
            channel: ChannelId(3),
            outputs: (0..setup.lines).map(|line| OutputIndex(u16::try_from(line).unwrap())).collect(),
            heartbeat_ns: 1_000_000_000,
            catch_up_packets_per_s: setup.catch_up_packets_per_s,
            send_ns_max: 10_000_000,
            log_directory: directory.path().to_owned(),
            tag_key: setup.is_tagged.then(|| TagKey::new(&[7; 32])),
        };
        let tags = TagPolicy { keys: config.tag_key.iter().cloned().collect(), accepts_untagged: false };
        let takeover = Arc::new(TakeoverShared::default());
        let publisher = Publisher::new(config, &log, Arc::clone(&takeover));
        let io = TestIo { inner: EpollSet::new().unwrap().thread_io().unwrap(), refuse: 0, after: None };
        let buffers = SendBuffers::new(Outputs::new(outputs));
        Self { directory, log, maintenance, takeover, publisher, buffers, io, receivers, tags }
    }

    /// With the session begun, and its messages before `next` in the log.
    fn in_session(setup: &HarnessConfig, next: u64) -> Self {
        let mut harness = Self::new(setup);
        harness.log.session(session(), Sequence(1));
        harness.messages(1, next);
        harness
    }

    /// Messages `[first, next)` as one datagram each.
    fn messages(&mut self, first: u64, next: u64) {
        for sequence in first..next {
            self.maintenance.run_once(NOW.0);
            self.log.frame(&message(sequence), 1, &RECORD);
            self.log.flush();
        }
    }

    /// A message of five records, cut into three parts.
    fn long_message(&mut self, sequence: u64) {
        let mut record = [0; 560];
        record[0] = 140;
        self.log.frame(&message(sequence), 5, &record.repeat(5));
        self.log.flush();
    }

    /// Sets the watermark: another gateway has published everything before that position.
    fn set_watermark(&self, epoch: u64, restart: u32, sequence: u64, part: u16) {
        let position = StreamPosition { session: Session { restart, ..session() }, sequence: Sequence(sequence), part };
        self.takeover.received_through.set(ReceiveWatermark { received_through: Some(position), epoch: Epoch(epoch) });
    }

    fn send(&mut self, fence: &Fence) {
        self.publisher.send_from(&mut self.log, fence, &mut self.buffers, &mut self.io);
    }

    fn deadline(&mut self, now: MonoNs, fence: &Fence) {
        self.publisher.on_deadline(now, &mut self.log, fence, &mut self.buffers, &mut self.io);
    }

    /// Packets that `line` received since the last call: `epoch [first,next) letters`, letters for flags and frames.
    fn received(&self, line: usize) -> Vec<String> {
        self.received_datagrams(line).iter().map(|datagram| text_of(datagram)).collect()
    }

    fn received_datagrams(&self, line: usize) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        let mut datagram = [0; 2_048];
        while let Ok(length) = self.receivers[line].recv(&mut datagram) {
            assert_eq!(self.tags.check(TagUse::Published, &datagram[..length]), Ok(()));
            datagrams.push(datagram[..length].to_vec());
        }
        datagrams
    }
}

fn text_of(datagram: &[u8]) -> String {
    let packet = parse_packet(datagram).unwrap();
    let meta = packet.meta;
    assert_eq!((meta.group, meta.channel), (GroupId(2), ChannelId(3)));
    assert!(meta.send_time_ns > NOW.0);
    let names = [(PacketFlags::HEARTBEAT, 'h'), (PacketFlags::RETRANSMISSION, 'r'), (PacketFlags::END_OF_SESSION, 'e')];
    let flags: String = names.iter().filter(|(flag, _)| meta.flags.contains(*flag)).map(|(_, letter)| letter).collect();
    let restart = if meta.session == session() { String::new() } else { format!("#{} ", meta.session.restart) };
    let part = packet.part.map_or(String::new(), |part| format!(".{}", part.part));
    let (first, next) = (meta.first.0, meta.next.0);
    format!("{} {restart}[{first},{next}){part} {flags}{}", meta.epoch.0, packet.frame_count)
}

fn message(sequence: u64) -> FrameMeta {
    FrameMeta::message(Sequence(sequence), NOW, 0)
}

/// A record of 80 bytes. Its first byte is its length in units of four bytes.
const RECORD: [u8; 80] = {
    let mut record = [0; 80];
    record[0] = 20;
    record
};

const NOW: UnixNs = UnixNs(1_600_000_000_000_000_000);

fn session() -> Session {
    Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 0 }
}

fn live(epoch: u64, range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|sequence| format!("{epoch} [{sequence},{}) 1", sequence + 1)).collect()
}

/// The same packets, as a takeover's catch-up sends them.
fn retransmitted(epoch: u64, range: std::ops::Range<u64>) -> Vec<String> {
    live(epoch, range).iter().map(|text| text.replace(") 1", ") r1")).collect()
}

#[test]
fn each_committed_entry_is_sent_once_per_line_in_order() {
    let mut harness = Harness::in_session(&HarnessConfig { lines: 2, ..HarnessConfig::default() }, 1);
    let fence = Fence::standalone(Epoch(5));
    harness.send(&fence);
    for line in 0..2 {
        assert_eq!(harness.received(line), ["5 [1,1) h0"], "the opening is published at once");
    }
    // More than a batch, and across the borders of several segments.
    for round in 0..8 {
        let first = 1 + round * 100;
        harness.messages(first, first + 100);
        harness.send(&fence);
        harness.send(&fence);
        for line in 0..2 {
            assert_eq!(harness.received(line), live(5, first..first + 100));
        }
    }
    assert!(harness.log.writer().counts().segments > 1);
    assert_eq!(harness.publisher.counts().packets, 2 * 801);
    assert_eq!(harness.publisher.counts().memory_overruns, 0);
}

#[test]
fn lines_are_added_and_removed_without_a_packet_lost_or_repeated() {
    let mut harness = Harness::in_session(&HarnessConfig { lines: 3, ..HarnessConfig::default() }, 1);
    let fence = Fence::standalone(Epoch(5));
    let lines = |lines: &[u16]| lines.iter().map(|line| OutputIndex(*line)).collect::<Vec<_>>();
    harness.publisher.set_outputs(&lines(&[0]), &harness.log);
    harness.send(&fence);
    harness.messages(1, 5);
    harness.send(&fence);
    assert_eq!(harness.received(0), [vec!["5 [1,1) h0".to_owned()], live(5, 1..5)].concat());
    assert!(harness.received(1).is_empty() && harness.received(2).is_empty());

    // Entries that wait at the change are the new line's first.
    harness.messages(5, 8);
    harness.publisher.set_outputs(&lines(&[2, 0]), &harness.log);
    harness.send(&fence);
    assert_eq!((harness.received(0), harness.received(2)), (live(5, 5..8), live(5, 5..8)));
    // Without a message, a new line has its heartbeat at once.
    harness.publisher.set_outputs(&lines(&[0, 1, 2]), &harness.log);
    let now = mono_now();
    assert!(harness.publisher.next_deadline().is_some_and(|due| due <= now));
    harness.deadline(now, &fence);
    assert_eq!(harness.received(1), ["5 [8,8) h0"]);
    drop([harness.received(0), harness.received(2)]);

    harness.publisher.set_outputs(&lines(&[1]), &harness.log);
    harness.messages(8, 12);
    harness.send(&fence);
    assert!(harness.received(0).is_empty() && harness.received(2).is_empty());
    assert_eq!(harness.received(1), live(5, 8..12));
    // All lines at once are replaced, with entries waiting.
    harness.messages(12, 15);
    harness.publisher.set_outputs(&lines(&[0, 2]), &harness.log);
    harness.send(&fence);
    assert!(harness.received(1).is_empty());
    assert_eq!((harness.received(0), harness.received(2)), (live(5, 12..15), live(5, 12..15)));
    assert_eq!(harness.publisher.counts().memory_overruns, 0);
}

#[test]
fn entries_of_an_earlier_run_are_not_published_again() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 4);
    harness.publisher = Publisher::new(
        PublisherConfig {
            group: GroupId(2),
            channel: ChannelId(3),
            outputs: vec![OutputIndex(0)],
            heartbeat_ns: 1,
            catch_up_packets_per_s: 1,
            send_ns_max: 1,
            log_directory: "/nowhere".into(),
            tag_key: None,
        },
        &harness.log,
        Arc::default(),
    );
    harness.send(&Fence::standalone(Epoch(1)));
    assert_eq!(harness.received(0), ["1 [4,4) h0"]);
    assert_eq!(harness.publisher.mode(), PublishMode::Live);
}

#[test]
fn a_closed_fence_sends_nothing_and_every_opening_starts_with_catch_up() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 4);
    let fence = Fence::closed();
    harness.send(&fence);
    assert_eq!(harness.received(0), [""; 0]);
    assert_eq!(harness.publisher.mode(), PublishMode::Closed);

    fence.open(Epoch(7), MonoNs(u64::MAX));
    harness.send(&fence);
    harness.messages(4, 5);
    harness.send(&fence);
    let caught_up_packets = ["7 [1,1) h0", "7 [1,2) r1", "7 [2,3) r1", "7 [3,4) r1", "7 [4,5) 1"];
    assert_eq!(harness.received(0), caught_up_packets);

    fence.close();
    harness.messages(5, 7);
    harness.send(&fence);
    assert_eq!(harness.received(0), [""; 0]);
    assert_eq!(harness.publisher.counts().fence_closures, 1);

    // Expired and reopened between two checks: still a takeover.
    fence.open(Epoch(8), MonoNs(u64::MAX));
    fence.close();
    fence.open(Epoch(9), MonoNs(u64::MAX));
    harness.send(&fence);
    assert_eq!(harness.received(0), ["9 [5,5) h0", "9 [5,6) r1", "9 [6,7) r1"]);
    fence.open(Epoch(10), MonoNs(u64::MAX));
    harness.send(&fence);
    assert_eq!(harness.received(0), ["10 [7,7) h0"]);
}

#[test]
fn a_takeover_starts_at_the_receive_watermark() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
    // Several segments: the place is no longer in the writer's memory.
    harness.messages(1, 3_000);
    harness.set_watermark(1, 0, 2_900, 0);
    harness.send(&Fence::standalone(Epoch(2)));
    while harness.publisher.mode() == PublishMode::CatchUp {
        harness.send(&Fence::standalone(Epoch(2)));
    }
    let mut expected = vec!["2 [2900,2900) h0".to_owned()];
    expected.extend(retransmitted(2, 2_900..3_000));
    assert_eq!(harness.received(0), expected);
    assert!(harness.takeover.sent.get().unwrap() <= harness.log.writer().end());
    harness.messages(3_000, 3_002);
    assert!(harness.takeover.sent.get().unwrap() < harness.log.writer().end(), "committed entries are not sent yet");
    harness.send(&Fence::standalone(Epoch(2)));
    assert_eq!(harness.received(0), live(2, 3_000..3_002));
    assert_eq!(harness.takeover.sent.get(), Some(harness.log.writer().end()));
}

#[test]
fn a_takeover_reads_no_files_for_entries_in_memory() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
    // The place is one segment before the last.
    harness.messages(1, 1_000);
    harness.set_watermark(1, 0, 800, 0);
    std::fs::remove_dir_all(harness.directory.path()).unwrap();
    harness.send(&Fence::standalone(Epoch(2)));
    assert!(harness.log.writer().counts().segments > 2, "{:?}", harness.log.writer().counts());
    let mut expected = vec!["2 [800,800) h0".to_owned()];
    expected.extend(retransmitted(2, 800..1_000));
    assert_eq!(harness.received(0), expected);
    let counts = harness.publisher.counts();
    assert_eq!((counts.log_failures, counts.memory_overruns), (0, 0));
}

#[test]
fn entries_evicted_during_catch_up_are_read_from_the_files() {
    let mut harness =
        Harness::in_session(&HarnessConfig { catch_up_packets_per_s: 2_000, ..HarnessConfig::default() }, 40);
    let fence = Fence::standalone(Epoch(2));
    harness.set_watermark(1, 0, 5, 0);
    // Received after each hand-over: on a machine that runs late, the packets due at once exceed the socket's buffer.
    let (sender, received) = std::sync::mpsc::channel();
    let receiver = harness.receivers[0].try_clone().unwrap();
    harness.io.after = Some(Box::new(move || {
        let mut datagram = [0; 2_048];
        while let Ok(length) = receiver.recv(&mut datagram) {
            sender.send(text_of(&datagram[..length])).unwrap();
        }
    }));
    harness.send(&fence);
    let begun_at = harness.takeover.sent.get().unwrap();
    harness.messages(40, 3_000);
    assert!(harness.log.writer().pending(begun_at).is_none(), "the place is still in memory");
    while harness.publisher.mode() == PublishMode::CatchUp {
        harness.deadline(mono_now(), &fence);
    }
    harness.send(&fence);
    let mut sent_packets: Vec<String> = received.try_iter().collect();
    sent_packets.retain(|text| !text.contains('h'));
    assert_eq!(sent_packets, [retransmitted(2, 5..40), live(2, 40..3_000)].concat());
    assert_eq!(harness.publisher.counts().memory_overruns, 0);
}

#[test]
fn a_takeover_inside_a_split_message_continues_with_its_next_part() {
    // The long message's first part covers the messages without frames before it.
    for (part, expected) in [
        (0, &["2 [4,4) h0", "2 [2,4).0 r1", "2 [4,4).1 r1", "2 [4,5).2 r1", "2 [5,6) r1"][..]),
        (1, &["2 [4,4) h0", "2 [4,4).1 r1", "2 [4,5).2 r1", "2 [5,6) r1"]),
        (2, &["2 [4,4) h0", "2 [4,5).2 r1", "2 [5,6) r1"]),
    ] {
        let mut harness = Harness::in_session(&HarnessConfig::default(), 2);
        harness.log.covered_through(Sequence(4));
        harness.long_message(4);
        harness.messages(5, 6);
        harness.set_watermark(1, 0, 4, part);
        harness.send(&Fence::standalone(Epoch(2)));
        assert_eq!(harness.received(0), expected, "{part} parts were received");
    }
}

#[test]
fn a_takeover_inside_a_filled_packet_delivers_each_message_once() {
    // Two gateways cut the same input differently: each received other batches.
    let in_packets = |cuts: &[u64]| {
        let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
        for sequence in 1..13 {
            harness.log.frame(&message(sequence), 1, &RECORD);
            harness.log.end_datagram();
            if cuts.contains(&(sequence + 1)) {
                harness.log.flush();
            }
        }
        harness
    };
    for (sent, watermark, expected) in [
        (0, None, &["2 [1,1) h0", "2 [1,2) r1", "2 [2,9) r7", "2 [9,13) r4"][..]),
        (1, Some(4), &["2 [4,4) h0", "2 [2,9) r7", "2 [9,13) r4"]),
        (2, Some(9), &["2 [9,9) h0", "2 [9,13) r4"]),
        (3, Some(12), &["2 [12,12) h0", "2 [9,13) r4"]),
        (4, Some(13), &["2 [13,13) h0"]),
    ] {
        let mut old_leader = in_packets(&[4, 9, 12, 13]);
        let mut subscriber = Subscriber::new();
        old_leader.send(&Fence::standalone(Epoch(1)));
        // The opening's heartbeat, and the packets that the old leader sent before it died.
        old_leader.received_datagrams(0)[..1 + sent].iter().for_each(|datagram| subscriber.accept(datagram));
        let mut successor = in_packets(&[2, 9, 13]);
        if let Some(watermark) = watermark {
            successor.set_watermark(1, 0, watermark, 0);
        }
        successor.send(&Fence::standalone(Epoch(2)));
        let taken_over = successor.received_datagrams(0);
        let texts: Vec<_> = taken_over.iter().map(|datagram| text_of(datagram)).collect();
        assert_eq!(texts, expected, "after {sent} packets");
        taken_over.iter().for_each(|datagram| subscriber.accept(datagram));
        let all: Vec<_> =
            std::iter::once("session".to_owned()).chain((1..13).map(|n| format!("message {n}"))).collect();
        assert_eq!(subscriber.items, all, "after {sent} packets");
    }
}

#[test]
fn a_takeover_across_sessions_publishes_the_rest_of_the_old_session_first() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 4);
    harness.log.session(Session { restart: 1, ..session() }, Sequence(1));
    harness.messages(1, 3);
    harness.set_watermark(1, 0, 3, 0);
    harness.send(&Fence::standalone(Epoch(2)));
    assert_eq!(harness.received(0), ["2 [3,3) h0", "2 [3,4) r1", "2 [4,4) r0", "2 #1 [1,2) r1", "2 #1 [2,3) r1"]);
}

#[test]
fn a_leader_behind_its_predecessor_publishes_nothing_new_until_caught_up() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 4);
    let fence = Fence::standalone(Epoch(2));
    harness.set_watermark(1, 0, 6, 0);
    harness.send(&fence);
    assert_eq!(harness.received(0), ["2 [6,6) h0"]);
    harness.messages(4, 5);
    harness.send(&fence);
    assert_eq!(harness.received(0), [""; 0]);
    let heartbeat = harness.publisher.next_deadline().unwrap();
    assert!(heartbeat > mono_now(), "only new input lets it continue");
    harness.deadline(heartbeat, &fence);
    assert_eq!(harness.received(0), ["2 [6,6) h0"]);
    harness.messages(5, 8);
    harness.send(&fence);
    assert_eq!(harness.received(0), ["2 [6,7) 1", "2 [7,8) 1"]);
    assert_eq!(harness.publisher.counts().skipped_entries, 2);
}

#[test]
fn a_returning_leader_continues_where_it_stopped_or_at_what_it_received_since() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 3);
    let fence = Fence::closed();
    harness.set_watermark(1, 0, 2, 0);
    fence.open(Epoch(2), MonoNs(u64::MAX));
    harness.send(&fence);
    assert_eq!(harness.received(0), ["2 [2,2) h0", "2 [2,3) r1"]);
    // The lease expires, and no other gateway has led meanwhile.
    fence.close();
    harness.send(&fence);
    harness.messages(3, 6);
    fence.open(Epoch(3), MonoNs(u64::MAX));
    harness.send(&fence);
    assert_eq!(harness.received(0), ["3 [3,3) h0", "3 [3,4) r1", "3 [4,5) r1", "3 [5,6) r1"]);
    // The lease expires, and another gateway has led: 8 messages of its output were received.
    fence.close();
    harness.send(&fence);
    harness.messages(6, 10);
    harness.set_watermark(4, 0, 8, 0);
    fence.open(Epoch(5), MonoNs(u64::MAX));
    harness.send(&fence);
    assert_eq!(harness.received(0), ["5 [8,8) h0", "5 [8,9) r1", "5 [9,10) r1"]);
    // The same, and this gateway itself had sent more than the other one received of it.
    fence.close();
    harness.send(&fence);
    harness.set_watermark(6, 0, 9, 0);
    fence.open(Epoch(7), MonoNs(u64::MAX));
    harness.send(&fence);
    assert_eq!(harness.received(0), ["7 [9,9) h0", "7 [9,10) r1"]);
}

#[test]
fn entries_committed_during_catch_up_are_not_sent_in_a_burst() {
    let mut harness =
        Harness::in_session(&HarnessConfig { catch_up_packets_per_s: 2_000, ..HarnessConfig::default() }, 40);
    let fence = Fence::standalone(Epoch(2));
    harness.set_watermark(1, 0, 1, 0);
    harness.send(&fence);
    let mut sent_packets = harness.received(0);
    assert_eq!(sent_packets.len(), 1 + 32);
    harness.messages(40, 400);
    // Twice the input's rate at its highest: 360 entries within the shortest time over which a rate is measured.
    let packets_per_ms_max = 2 * 360 / 20;
    let begin = harness.publisher.next_deadline().unwrap();
    // Received after each hand-over: a socket holds some 270 packets, and a call that a busy machine delays sends more.
    let received = Rc::new(RefCell::new(Vec::new()));
    let (receiver, collected) = (harness.receivers[0].try_clone().unwrap(), Rc::clone(&received));
    harness.io.after = Some(Box::new(move || {
        let mut collected = collected.borrow_mut();
        let mut datagram = [0; 2_048];
        while let Ok(length) = receiver.recv(&mut datagram) {
            collected.push(text_of(&datagram[..length]));
        }
        let elapsed_ms = usize::try_from(mono_now().since(begin).div_ceil(1_000_000)).unwrap();
        // The first portion and a heartbeat, and the entries that go out at once when fewer than a portion are left.
        let allowed = 2 * 32 + 1 + packets_per_ms_max * elapsed_ms;
        assert!(collected.len() <= allowed, "{} within {elapsed_ms} ms, {allowed} allowed", collected.len());
    }));
    while harness.publisher.mode() == PublishMode::CatchUp {
        let due = harness.publisher.next_deadline().unwrap();
        while mono_now() < due {
            std::hint::spin_loop();
        }
        harness.deadline(due, &fence);
    }
    sent_packets.extend(received.take());
    sent_packets.retain(|text| !text.contains('h'));
    assert_eq!(sent_packets, [retransmitted(2, 1..40), live(2, 40..400)].concat());
}

#[test]
fn catch_up_is_paced_and_live_packets_wait_behind_it() {
    let mut harness =
        Harness::in_session(&HarnessConfig { catch_up_packets_per_s: 1, ..HarnessConfig::default() }, 101);
    let fence = Fence::standalone(Epoch(1));
    harness.send(&fence);
    let portion = harness.received(0).len() - 1;
    assert_eq!(portion, 32);
    harness.messages(101, 102);
    harness.send(&fence);
    assert_eq!(harness.received(0), [""; 0]);
    let deadline = harness.publisher.next_deadline().unwrap();
    assert!(deadline <= mono_now().plus(1_000_000_000), "the heartbeat comes first");
    assert_eq!(harness.publisher.counts().catch_up_packets, 32);
}

#[test]
fn the_fence_is_checked_before_each_send_call() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
    let fence = Arc::new(Fence::closed());
    fence.open(Epoch(1), MonoNs(u64::MAX));
    harness.send(&fence);
    harness.received(0);
    harness.messages(1, 201);
    let closing = Arc::clone(&fence);
    harness.io.after = Some(Box::new(move || closing.close()));
    harness.send(&fence);
    assert_eq!(harness.received(0), live(1, 1..65), "one hand-over, then the fence was closed");
    assert_eq!(harness.publisher.mode(), PublishMode::Closed);
}

#[test]
fn a_refused_send_is_retried_from_the_cursor() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
    let fence = Fence::standalone(Epoch(1));
    harness.send(&fence);
    harness.received(0);
    harness.messages(1, 3);
    harness.io.refuse = 2;
    harness.send(&fence);
    assert_eq!((harness.received(0).len(), harness.publisher.counts().refused), (0, 1));
    let retry_at = harness.publisher.next_deadline().unwrap();
    assert!(retry_at <= mono_now().plus(1_000_000), "soon");
    harness.messages(3, 4);
    harness.deadline(retry_at, &fence);
    assert_eq!((harness.received(0).len(), harness.publisher.counts().refused), (0, 2));
    harness.deadline(retry_at, &fence);
    assert_eq!(harness.received(0), live(1, 1..4));
}

#[test]
fn every_packet_has_a_tag_of_its_own_on_every_line() {
    // With a line that fails, the lines carry different entries in one batch.
    for broken_line in [None, Some(0), Some(1)] {
        let config = HarnessConfig { lines: 2, broken_line, is_tagged: true, ..HarnessConfig::default() };
        let mut harness = Harness::in_session(&config, 1);
        let fence = Fence::closed();
        // The parts of a long message have equal headers: only their frames tell them apart.
        for sequence in [1, 2] {
            harness.long_message(sequence);
        }
        fence.open(Epoch(7), MonoNs(u64::MAX));
        harness.set_watermark(6, 0, 1, 0);
        let mut received = [const { Vec::new() }; 2];
        let mut collect = |harness: &Harness| {
            for (line, received) in received.iter_mut().enumerate() {
                received.extend(harness.received(line));
            }
        };
        harness.send(&fence);
        while harness.publisher.mode() != PublishMode::Live {
            let due = harness.publisher.next_deadline().unwrap();
            while mono_now() < due {}
            harness.deadline(due, &fence);
        }
        collect(&harness);
        for sequence in 3..20 {
            harness.long_message(sequence);
            harness.send(&fence);
            collect(&harness);
        }
        for (line, received) in received.iter().enumerate() {
            let parts = received.iter().filter(|text| !text.contains('h')).count();
            let expected = if broken_line == Some(line) { 0 } else { 3 * 19 };
            assert_eq!(parts, expected, "line {line} of {broken_line:?}: {received:?}");
        }
    }
}

#[test]
fn a_failing_line_does_not_delay_the_other_line() {
    for broken_line in 0..2 {
        let mut harness = Harness::in_session(
            &HarnessConfig { lines: 2, broken_line: Some(broken_line), ..HarnessConfig::default() },
            1,
        );
        let fence = Fence::standalone(Epoch(1));
        harness.send(&fence);
        // Far more than the writer keeps for a line that makes no progress.
        let mut expected = Vec::new();
        for first in (1..2_001).step_by(50) {
            harness.messages(first, first + 50);
            harness.send(&fence);
            expected.extend(harness.received(1 - broken_line));
        }
        expected.retain(|text| !text.contains('h'));
        assert_eq!(expected, live(1, 1..2_001));
        let counts = harness.publisher.counts();
        assert!(counts.errors + counts.refused >= 40 && counts.memory_overruns > 0, "{counts:?}");
    }
}

#[test]
fn a_line_that_takes_nothing_is_blocked_until_it_takes_a_packet_again() {
    let mut harness =
        Harness::in_session(&HarnessConfig { lines: 2, broken_line: Some(1), ..HarnessConfig::default() }, 1);
    let fence = Fence::standalone(Epoch(1));
    harness.send(&fence);
    let mut blocked_ns = 0;
    for first in 1..20 {
        harness.messages(first, first + 1);
        harness.send(&fence);
        let blocked = harness.publisher.blocked_lines();
        assert_eq!((blocked.mask, blocked.all_blocked_ns), (0b10, 0), "line 1 alone");
        assert!(harness.publisher.blocked_lines().blocked_ns >= blocked_ns);
        blocked_ns = harness.publisher.blocked_lines().blocked_ns;
    }
    assert!(blocked_ns > 0 && !harness.received(0).is_empty());
    fence.close();
    harness.send(&fence);
    assert_eq!(harness.publisher.blocked_lines(), BlockedLines::default(), "nothing is to be sent");

    let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
    let fence = Fence::standalone(Epoch(1));
    harness.send(&fence);
    assert_eq!(harness.publisher.blocked_lines(), BlockedLines::default());
    harness.messages(1, 2);
    harness.io.refuse = 2;
    harness.send(&fence);
    assert_eq!(
        harness.publisher.blocked_lines(),
        BlockedLines { mask: 1, ..BlockedLines::default() },
        "one refusal lasts no time"
    );
    let retry_at = harness.publisher.next_deadline().unwrap();
    harness.deadline(retry_at, &fence);
    let blocked = harness.publisher.blocked_lines();
    assert!(blocked.blocked_ns > 0 && blocked.all_blocked_ns == blocked.blocked_ns, "the only line");
    harness.deadline(retry_at, &fence);
    assert_eq!(harness.publisher.blocked_lines(), BlockedLines::default());
}

#[test]
fn heartbeats_go_on_beside_a_line_whose_packets_wait() {
    for broken_line in 0..2 {
        let mut harness = Harness::in_session(
            &HarnessConfig { lines: 2, broken_line: Some(broken_line), ..HarnessConfig::default() },
            1,
        );
        let fence = Fence::standalone(Epoch(1));
        harness.send(&fence);
        harness.messages(1, 2);
        harness.send(&fence);
        let sent = harness.received(1 - broken_line);
        assert!(sent.last().is_some_and(|text| !text.contains('h')), "{sent:?}");
        let heartbeat_due = mono_now().plus(1_000_000_000);
        for _ in 0..3 {
            let retry_at = harness.publisher.next_deadline().unwrap();
            harness.deadline(retry_at, &fence);
        }
        assert_eq!(harness.received(1 - broken_line), Vec::<String>::new());
        harness.deadline(heartbeat_due, &fence);
        assert_eq!(harness.received(1 - broken_line), ["1 [2,2) h0"], "retries do not put it off");
    }
}

#[test]
fn blocked_lines_are_numbered_in_the_order_of_the_outputs() {
    let mut harness =
        Harness::in_session(&HarnessConfig { lines: 3, broken_line: Some(0), ..HarnessConfig::default() }, 1);
    let fence = Fence::standalone(Epoch(1));
    harness.publisher.set_outputs(&[OutputIndex(1), OutputIndex(2)], &harness.log);
    harness.send(&fence);
    harness.publisher.set_outputs(&[OutputIndex(0), OutputIndex(2)], &harness.log);
    harness.messages(1, 2);
    harness.send(&fence);
    assert_eq!(harness.publisher.blocked_lines().mask, 0b01);
}

#[test]
fn a_failing_line_does_not_keep_a_takeover_from_completing() {
    for broken_line in 0..2 {
        let mut harness = Harness::in_session(
            &HarnessConfig { lines: 2, broken_line: Some(broken_line), ..HarnessConfig::default() },
            201,
        );
        let fence = Fence::standalone(Epoch(7));
        harness.send(&fence);
        for _ in 0..1_000 {
            if harness.publisher.mode() == PublishMode::Live {
                break;
            }
            let due = harness.publisher.next_deadline().unwrap();
            while mono_now() < due {}
            harness.deadline(due, &fence);
        }
        assert_eq!(harness.publisher.mode(), PublishMode::Live, "line {broken_line} is broken");
        let mut sent_packets = harness.received(1 - broken_line);
        sent_packets.retain(|text| !text.contains('h'));
        assert_eq!(sent_packets.len(), 200, "each once: {sent_packets:?}");
    }
}

#[test]
fn a_refused_catch_up_is_retried_soon_and_is_not_counted() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 11);
    harness.io.refuse = 2;
    let fence = Fence::standalone(Epoch(7));
    // The first refusal is the opening's heartbeat.
    harness.send(&fence);
    assert_eq!((harness.received(0).len(), harness.publisher.counts().refused), (0, 2));
    let retry_at = harness.publisher.next_deadline().unwrap();
    assert!(retry_at <= mono_now().plus(1_000_000), "soon");
    harness.deadline(retry_at, &fence);
    assert_eq!(harness.received(0).iter().filter(|text| !text.contains('h')).count(), 10);
}

#[test]
fn an_idle_channel_publishes_its_position_in_heartbeats() {
    let mut harness = Harness::new(&HarnessConfig::default());
    let fence = Fence::standalone(Epoch(1));
    let due = harness.publisher.next_deadline().unwrap();
    harness.deadline(due, &fence);
    assert_eq!(harness.received(0), [""; 0], "no session yet");
    harness.log.session(session(), Sequence(1));
    harness.messages(1, 3);
    harness.send(&fence);
    assert_eq!(harness.received(0), live(1, 1..3));
    let due = harness.publisher.next_deadline().unwrap();
    harness.deadline(MonoNs(due.0 - 1), &fence);
    assert_eq!(harness.received(0), [""; 0]);
    harness.deadline(due, &fence);
    assert_eq!(harness.received(0), ["1 [3,3) h0"]);
    // Messages that produced no frame.
    harness.log.covered_through(Sequence(9));
    harness.deadline(due.plus(2_000_000_000), &fence);
    assert_eq!(harness.received(0), ["1 [3,9) h0"]);
    harness.log.end_of_session();
    harness.send(&fence);
    assert_eq!(harness.received(0), ["1 [9,9) he0"]);
    harness.deadline(due.plus(4_000_000_000), &fence);
    assert_eq!(harness.received(0), ["1 [9,9) he0"]);
    assert_eq!(harness.publisher.counts().heartbeats, 2);
}

#[test]
fn a_restarted_gateway_publishes_its_recovered_position_at_once() {
    for (has_ended, expected) in [(false, "9 [4,4) h0"), (true, "9 [4,4) he0")] {
        let mut harness = Harness::new(&HarnessConfig::default());
        let start = harness.publisher.next_deadline().unwrap();
        assert!(start <= mono_now(), "the first heartbeat is due at the start");
        harness.log.resume(session(), Sequence(4), has_ended);
        harness.deadline(mono_now(), &Fence::standalone(Epoch(9)));
        assert_eq!(harness.received(0), [expected]);
        // The venue sends again.
        harness.log.session(session(), Sequence(4));
        harness.messages(4, 5);
        harness.send(&Fence::standalone(Epoch(9)));
        assert_eq!(harness.received(0), live(9, 4..5));
    }
}

#[test]
fn a_failed_channel_is_published_at_once_and_in_every_heartbeat() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 3);
    let fence = Fence::standalone(Epoch(1));
    harness.send(&fence);
    let mut early = Subscriber::new();
    early.receive(&harness);
    // The third message was being written into the log, and the fourth had produced no frame.
    harness.log.frame(&message(3), 1, &RECORD);
    harness.log.covered_through(Sequence(5));
    harness.log.fail();
    harness.send(&fence);
    early.receive(&harness);
    assert_eq!(early.items, ["session", "message 1", "message 2", "state Failed"]);
    let mut late = Subscriber::new();
    for _ in 0..2 {
        let due = harness.publisher.next_deadline().unwrap();
        harness.deadline(due, &fence);
        late.receive(&harness);
    }
    assert_eq!(late.items, ["session", "state Failed"]);
    assert_eq!(harness.publisher.counts().heartbeats, 3);
    assert_eq!(harness.log.session_progress().unwrap().committed, Sequence(3));
}

/// A consumer of the published stream.
struct Subscriber {
    receiver: Receiver,
    items: Vec<String>,
}

impl Subscriber {
    fn new() -> Self {
        let config = ReceiverConfig { group: GroupId(2), ..ReceiverConfig::default() };
        Self { receiver: Receiver::new(config), items: Vec::new() }
    }

    fn receive(&mut self, harness: &Harness) {
        harness.received_datagrams(0).iter().for_each(|datagram| self.accept(datagram));
    }

    fn accept(&mut self, datagram: &[u8]) {
        let Self { receiver, items } = self;
        let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: datagram, ts_recv: NOW };
        let mut deliver = |output: Output<'_>| {
            items.push(match output.item {
                Item::Session => "session".to_owned(),
                Item::Message { header, .. } => format!("message {}", header.sequence),
                Item::State(state) => format!("state {state:?}"),
                other => panic!("{other:?}"),
            });
        };
        receiver.accept(datagram, MonoNs(1), &mut deliver).unwrap();
    }
}

#[test]
fn a_closed_fence_stops_heartbeats() {
    let mut harness = Harness::in_session(&HarnessConfig::default(), 1);
    let fence = Fence::standalone(Epoch(1));
    harness.send(&fence);
    harness.received(0);
    fence.close();
    let due = harness.publisher.next_deadline().unwrap();
    harness.deadline(due, &fence);
    assert_eq!(harness.received(0), [""; 0]);
    fence.open(Epoch(2), MonoNs(u64::MAX));
    let due = harness.publisher.next_deadline().unwrap();
    harness.deadline(due, &fence);
    assert_eq!(harness.received(0), ["2 [1,1) h0"], "an opening is noticed at the next deadline");
}
