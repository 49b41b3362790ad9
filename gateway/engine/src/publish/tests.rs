//! From frames to datagrams, over loopback.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use mdgw_feeds::{
    frame::{FrameFlags, FrameKind, FrameMeta, FrameSink},
    identity::{ChannelId, Epoch, Feed, GroupId, Line, Sequence, Session},
    published::{
        packet::{PacketFlags, parse_packet},
        position::StreamPosition,
        receiver::{Item, Output, PublishedDatagram, Receiver, ReceiverConfig},
    },
    time::{MonoNs, TradingDate, UnixNs},
};
use mdgw_publog::{Keeper, LogOptions, Opened};
use mdgw_sys::{
    batch::{self, OutputIndex, Outputs, ReceiveBatch, SendBatch, SendBuffers},
    clock::mono_now,
    fence::Fence,
    handle::{Handle, LineSet},
};

use super::*;
use crate::handle_set::{
    Event, HandleSet, ThreadIo, Wait,
    epoll::{EpollIo, EpollSet},
};

/// An I/O that sends for real but can be made to refuse.
struct TestIo {
    inner: EpollIo,
    /// Hand-overs to refuse.
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

    fn lent(&mut self, handle: Handle, batch: &mut ReceiveBatch) {
        self.inner.lent(handle, batch);
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

struct World {
    directory: tempfile::TempDir,
    log: LogSink,
    keeper: Keeper,
    words: Arc<TakeoverWords>,
    publisher: Publisher,
    buffers: SendBuffers,
    io: TestIo,
    receivers: Vec<UdpSocket>,
}

/// What a test wants different.
struct Setup {
    lines: usize,
    broken_line: Option<usize>,
    tail_packets_per_s: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { lines: 1, broken_line: None, tail_packets_per_s: 1_000_000_000_000 }
    }
}

impl World {
    fn new(setup: &Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options =
            LogOptions { segment_bytes: 64 << 10, private_bytes: 64 << 10, ..LogOptions::new(directory.path(), 3) };
        let Opened { writer, keeper, .. } = mdgw_publog::open(options, NOW.0).unwrap();
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
            let nowhere = "255.255.255.255:9".parse().unwrap();
            outputs.push(batch::Output {
                socket: Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into()),
                destination: Some(if setup.broken_line == Some(line) { nowhere } else { address }),
            });
        }
        let config = PublisherConfig {
            group: GroupId(2),
            channel: ChannelId(3),
            outputs: (0..setup.lines).map(|line| OutputIndex(u16::try_from(line).unwrap())).collect(),
            heartbeat_ns: 1_000_000_000,
            tail_packets_per_s: setup.tail_packets_per_s,
            send_ns_max: 10_000_000,
            log_directory: directory.path().to_owned(),
        };
        let words = Arc::new(TakeoverWords::default());
        let publisher = Publisher::new(config, &log, Arc::clone(&words));
        let io = TestIo { inner: EpollSet::new().unwrap().thread_io().unwrap(), refuse: 0, after: None };
        let buffers = SendBuffers::new(Outputs::new(outputs));
        Self { directory, log, keeper, words, publisher, buffers, io, receivers }
    }

    /// Messages `[first, next)` as one datagram each.
    fn messages(&mut self, first: u64, next: u64) {
        for sequence in first..next {
            self.keeper.turn(NOW.0);
            self.log.frame(&message(sequence), 1, &RECORD);
            self.log.flush();
        }
    }

    /// A message of four records, cut into three parts.
    fn long_message(&mut self, sequence: u64) {
        let meta = FrameMeta {
            sequence: Sequence(sequence),
            next: Sequence(sequence + 1),
            kind: FrameKind::Message,
            flags: FrameFlags::default(),
            ts_recv: NOW.0,
            ts_in_delta_ns: 0,
        };
        let mut record = [0; 560];
        record[0] = 140;
        self.log.frame(&meta, 5, &record.repeat(5));
        self.log.flush();
    }

    /// Another gateway has been heard to publish what is before that place.
    fn hear(&self, epoch: u64, restart: u32, sequence: u64, part: u16) {
        let position = StreamPosition { session: Session { restart, ..session() }, sequence: Sequence(sequence), part };
        self.words.heard.set(Heard { on_wire: Some(position), epoch: Epoch(epoch), confirmed: None });
    }

    fn send(&mut self, fence: &Fence) {
        self.publisher.send_from(&mut self.log, fence, &mut self.buffers, &mut self.io);
    }

    fn deadline(&mut self, now: MonoNs, fence: &Fence) {
        self.publisher.on_deadline(now, &mut self.log, fence, &mut self.buffers, &mut self.io);
    }

    /// What line `line` received since last asked: `epoch [first,next) letters`, letters for flags and frames.
    fn received(&self, line: usize) -> Vec<String> {
        let mut texts = Vec::new();
        let mut datagram = [0; 2_048];
        while let Ok(length) = self.receivers[line].recv(&mut datagram) {
            texts.push(text_of(&datagram[..length]));
        }
        texts
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
    FrameMeta {
        sequence: Sequence(sequence),
        next: Sequence(sequence + 1),
        kind: FrameKind::Message,
        flags: FrameFlags::default(),
        ts_recv: NOW.0,
        ts_in_delta_ns: 0,
    }
}

/// 80 bytes, as its first byte says in units of four.
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

/// The same as a takeover's tail.
fn again(epoch: u64, range: std::ops::Range<u64>) -> Vec<String> {
    live(epoch, range).iter().map(|text| text.replace(") 1", ") r1")).collect()
}

#[test]
fn what_is_committed_goes_out_once_on_each_line_in_order() {
    let mut world = World::new(&Setup { lines: 2, ..Setup::default() });
    let fence = Fence::stand_alone(Epoch(5));
    world.log.session(session(), Sequence(1));
    world.send(&fence);
    for line in 0..2 {
        assert_eq!(world.received(line), ["5 [1,1) h0"], "the opening is told at once");
    }
    // More than a batch, and over the borders of several segments.
    for round in 0..8 {
        let first = 1 + round * 100;
        world.messages(first, first + 100);
        world.send(&fence);
        world.send(&fence);
        for line in 0..2 {
            assert_eq!(world.received(line), live(5, first..first + 100));
        }
    }
    assert!(world.log.writer().counts().segments > 1);
    assert_eq!(world.publisher.counts().packets, 2 * 801);
    assert_eq!(world.publisher.counts().overruns, 0);
}

#[test]
fn an_earlier_run_is_not_published_again() {
    let mut world = World::new(&Setup::default());
    world.log.session(session(), Sequence(1));
    world.messages(1, 4);
    world.publisher = Publisher::new(
        PublisherConfig {
            group: GroupId(2),
            channel: ChannelId(3),
            outputs: vec![OutputIndex(0)],
            heartbeat_ns: 1,
            tail_packets_per_s: 1,
            send_ns_max: 1,
            log_directory: "/nowhere".into(),
        },
        &world.log,
        Arc::default(),
    );
    world.send(&Fence::stand_alone(Epoch(1)));
    assert_eq!(world.received(0), ["1 [4,4) h0"]);
    assert_eq!(world.publisher.mode(), PublishMode::Live);
}

#[test]
fn nothing_passes_a_closed_fence_and_every_opening_starts_with_the_tail() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::closed();
    world.log.session(session(), Sequence(1));
    world.messages(1, 4);
    world.send(&fence);
    assert_eq!(world.received(0), [""; 0]);
    assert_eq!(world.publisher.mode(), PublishMode::Closed);

    fence.open(Epoch(7), MonoNs(u64::MAX));
    world.send(&fence);
    world.messages(4, 5);
    world.send(&fence);
    let tail = ["7 [1,1) h0", "7 [1,2) r1", "7 [2,3) r1", "7 [3,4) r1", "7 [4,5) 1"];
    assert_eq!(world.received(0), tail);

    fence.close();
    world.messages(5, 7);
    world.send(&fence);
    assert_eq!(world.received(0), [""; 0]);
    assert_eq!(world.publisher.counts().fenced, 1);

    // Lapsed and back between two looks: still a takeover.
    fence.open(Epoch(8), MonoNs(u64::MAX));
    fence.close();
    fence.open(Epoch(9), MonoNs(u64::MAX));
    world.send(&fence);
    assert_eq!(world.received(0), ["9 [5,5) h0", "9 [5,6) r1", "9 [6,7) r1"]);
    fence.open(Epoch(10), MonoNs(u64::MAX));
    world.send(&fence);
    assert_eq!(world.received(0), ["10 [7,7) h0"]);
}

#[test]
fn a_takeover_begins_where_the_old_leader_was_heard_last() {
    let mut world = World::new(&Setup::default());
    world.log.session(session(), Sequence(1));
    // Several segments: the place is no longer in the writer's memory.
    world.messages(1, 3_000);
    world.hear(1, 0, 2_900, 0);
    world.send(&Fence::stand_alone(Epoch(2)));
    while world.publisher.mode() == PublishMode::Tail {
        world.send(&Fence::stand_alone(Epoch(2)));
    }
    let mut expected = vec!["2 [2900,2900) h0".to_owned()];
    expected.extend(again(2, 2_900..3_000));
    assert_eq!(world.received(0), expected);
    assert!(world.words.sent.get().unwrap() <= world.log.writer().end());
    world.messages(3_000, 3_002);
    assert!(world.words.sent.get().unwrap() < world.log.writer().end(), "committed isn't sent");
    world.send(&Fence::stand_alone(Epoch(2)));
    assert_eq!(world.received(0), live(2, 3_000..3_002));
    assert_eq!(world.words.sent.get(), Some(world.log.writer().end()));
}

#[test]
fn a_takeover_needs_no_files_for_what_memory_has() {
    let mut world = World::new(&Setup::default());
    world.log.session(session(), Sequence(1));
    // The place stands a segment before the last.
    world.messages(1, 1_000);
    world.hear(1, 0, 800, 0);
    std::fs::remove_dir_all(world.directory.path()).unwrap();
    world.send(&Fence::stand_alone(Epoch(2)));
    assert!(world.log.writer().counts().segments > 2, "{:?}", world.log.writer().counts());
    let mut expected = vec!["2 [800,800) h0".to_owned()];
    expected.extend(again(2, 800..1_000));
    assert_eq!(world.received(0), expected);
    let counts = world.publisher.counts();
    assert_eq!((counts.log_failures, counts.overruns), (0, 0));
}

#[test]
fn what_memory_gives_up_during_a_tail_comes_from_the_files() {
    let mut world = World::new(&Setup { tail_packets_per_s: 2_000, ..Setup::default() });
    let fence = Fence::stand_alone(Epoch(2));
    world.log.session(session(), Sequence(1));
    world.messages(1, 40);
    world.hear(1, 0, 5, 0);
    // Heard after each hand-over: what is due at once on a machine that came late is more than a socket holds.
    let (hear, heard) = std::sync::mpsc::channel();
    let receiver = world.receivers[0].try_clone().unwrap();
    world.io.after = Some(Box::new(move || {
        let mut datagram = [0; 2_048];
        while let Ok(length) = receiver.recv(&mut datagram) {
            hear.send(text_of(&datagram[..length])).unwrap();
        }
    }));
    world.send(&fence);
    let begun_at = world.words.sent.get().unwrap();
    world.messages(40, 3_000);
    assert!(world.log.writer().pending(begun_at).is_none(), "memory still has it");
    while world.publisher.mode() == PublishMode::Tail {
        world.deadline(mono_now(), &fence);
    }
    world.send(&fence);
    let mut said: Vec<String> = heard.try_iter().collect();
    said.retain(|text| !text.contains('h'));
    assert_eq!(said, [again(2, 5..40), live(2, 40..3_000)].concat());
    assert_eq!(world.publisher.counts().overruns, 0);
}

#[test]
fn a_takeover_inside_a_message_goes_on_with_its_next_part() {
    // Silent messages before the long one are settled by its first part.
    for (part, expected) in [
        (0, &["2 [4,4) h0", "2 [2,4).0 r1", "2 [4,4).1 r1", "2 [4,5).2 r1", "2 [5,6) r1"][..]),
        (1, &["2 [4,4) h0", "2 [4,4).1 r1", "2 [4,5).2 r1", "2 [5,6) r1"]),
        (2, &["2 [4,4) h0", "2 [4,5).2 r1", "2 [5,6) r1"]),
    ] {
        let mut world = World::new(&Setup::default());
        world.log.session(session(), Sequence(1));
        world.messages(1, 2);
        world.log.settled(Sequence(4));
        world.long_message(4);
        world.messages(5, 6);
        world.hear(1, 0, 4, part);
        world.send(&Fence::stand_alone(Epoch(2)));
        assert_eq!(world.received(0), expected, "{part} parts were heard");
    }
}

#[test]
fn a_takeover_across_a_new_numbering_says_the_rest_of_the_old_one_first() {
    let mut world = World::new(&Setup::default());
    world.log.session(session(), Sequence(1));
    world.messages(1, 4);
    world.log.session(Session { restart: 1, ..session() }, Sequence(1));
    world.messages(1, 3);
    world.hear(1, 0, 3, 0);
    world.send(&Fence::stand_alone(Epoch(2)));
    assert_eq!(world.received(0), ["2 [3,3) h0", "2 [3,4) r1", "2 #1 [1,2) r1", "2 #1 [2,3) r1"]);
}

#[test]
fn whoever_is_behind_says_nothing_new_until_it_has_caught_up() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::stand_alone(Epoch(2));
    world.log.session(session(), Sequence(1));
    world.messages(1, 4);
    let confirmed = Some(StreamPosition::at(session(), Sequence(6)));
    world.words.heard.set(Heard { on_wire: None, epoch: Epoch(1), confirmed });
    world.send(&fence);
    assert_eq!(world.received(0), ["2 [6,6) h0"]);
    world.messages(4, 5);
    world.send(&fence);
    assert_eq!(world.received(0), [""; 0]);
    let heartbeat = world.publisher.next_deadline().unwrap();
    assert!(heartbeat > mono_now(), "only its input brings it on");
    world.deadline(heartbeat, &fence);
    assert_eq!(world.received(0), ["2 [6,6) h0"]);
    world.messages(5, 8);
    world.send(&fence);
    assert_eq!(world.received(0), ["2 [6,7) 1", "2 [7,8) 1"]);
    assert_eq!(world.publisher.counts().passed_over, 2);
}

#[test]
fn what_was_heard_beyond_the_own_input_is_not_believed() {
    let mut world = World::new(&Setup::default());
    world.log.session(session(), Sequence(1));
    world.messages(1, 4);
    // Forged: neither the input nor the peer has it.
    world.hear(1, 0, 1 << 40, 0);
    world.send(&Fence::stand_alone(Epoch(2)));
    world.messages(4, 5);
    world.send(&Fence::stand_alone(Epoch(2)));
    assert_eq!(world.received(0), ["2 [4,4) h0", "2 [4,5) 1"]);
}

#[test]
fn a_gateway_that_comes_back_goes_on_from_whoever_was_later() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::closed();
    world.log.session(session(), Sequence(1));
    world.messages(1, 3);
    world.hear(1, 0, 2, 0);
    fence.open(Epoch(2), MonoNs(u64::MAX));
    world.send(&fence);
    assert_eq!(world.received(0), ["2 [2,2) h0", "2 [2,3) r1"]);
    // It lapses, and nobody else has led meanwhile.
    fence.close();
    world.send(&fence);
    world.messages(3, 6);
    fence.open(Epoch(3), MonoNs(u64::MAX));
    world.send(&fence);
    assert_eq!(world.received(0), ["3 [3,3) h0", "3 [3,4) r1", "3 [4,5) r1", "3 [5,6) r1"]);
    // It lapses, and another one has led up to 8.
    fence.close();
    world.send(&fence);
    world.messages(6, 10);
    world.hear(4, 0, 8, 0);
    fence.open(Epoch(5), MonoNs(u64::MAX));
    world.send(&fence);
    assert_eq!(world.received(0), ["5 [8,8) h0", "5 [8,9) r1", "5 [9,10) r1"]);
}

#[test]
fn what_comes_while_the_tail_is_worked_off_does_not_go_out_in_a_burst() {
    let mut world = World::new(&Setup { tail_packets_per_s: 2_000, ..Setup::default() });
    let fence = Fence::stand_alone(Epoch(2));
    world.log.session(session(), Sequence(1));
    world.messages(1, 40);
    world.hear(1, 0, 1, 0);
    world.send(&fence);
    let mut said = world.received(0);
    assert_eq!(said.len(), 1 + 32);
    world.messages(40, 400);
    while world.publisher.mode() == PublishMode::Tail {
        let due = world.publisher.next_deadline().unwrap();
        while mono_now() < due {
            std::hint::spin_loop();
        }
        world.deadline(due, &fence);
        let more = world.received(0);
        // One portion, and what a late timer has let pile up.
        assert!(more.len() <= 4 * 32 + 1, "{} at once", more.len());
        said.extend(more);
    }
    said.retain(|text| !text.contains('h'));
    assert_eq!(said, [again(2, 1..40), live(2, 40..400)].concat());
}

#[test]
fn the_tail_is_paced_and_live_packets_wait_behind_it() {
    let mut world = World::new(&Setup { tail_packets_per_s: 1, ..Setup::default() });
    let fence = Fence::stand_alone(Epoch(1));
    world.log.session(session(), Sequence(1));
    world.messages(1, 101);
    world.send(&fence);
    let portion = world.received(0).len() - 1;
    assert_eq!(portion, 32);
    world.messages(101, 102);
    world.send(&fence);
    assert_eq!(world.received(0), [""; 0]);
    let deadline = world.publisher.next_deadline().unwrap();
    assert!(deadline <= mono_now().plus(1_000_000_000), "the heartbeat comes first");
    assert_eq!(world.publisher.counts().tail_packets, 32);
}

#[test]
fn the_fence_is_asked_at_each_hand_over() {
    let mut world = World::new(&Setup::default());
    let fence = Arc::new(Fence::closed());
    fence.open(Epoch(1), MonoNs(u64::MAX));
    world.log.session(session(), Sequence(1));
    world.send(&fence);
    world.received(0);
    world.messages(1, 201);
    let closing = Arc::clone(&fence);
    world.io.after = Some(Box::new(move || closing.close()));
    world.send(&fence);
    assert_eq!(world.received(0), live(1, 1..65), "one hand-over, then the fence was closed");
    assert_eq!(world.publisher.mode(), PublishMode::Closed);
}

#[test]
fn what_the_kernel_refuses_is_tried_again_from_the_cursor() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::stand_alone(Epoch(1));
    world.log.session(session(), Sequence(1));
    world.send(&fence);
    world.received(0);
    world.messages(1, 3);
    world.io.refuse = 2;
    world.send(&fence);
    assert_eq!((world.received(0).len(), world.publisher.counts().refused), (0, 1));
    let retry_at = world.publisher.next_deadline().unwrap();
    assert!(retry_at <= mono_now().plus(1_000_000), "soon");
    world.messages(3, 4);
    world.deadline(retry_at, &fence);
    assert_eq!((world.received(0).len(), world.publisher.counts().refused), (0, 2));
    world.deadline(retry_at, &fence);
    assert_eq!(world.received(0), live(1, 1..4));
}

#[test]
fn a_broken_line_does_not_hold_the_other() {
    for broken_line in 0..2 {
        let mut world = World::new(&Setup { lines: 2, broken_line: Some(broken_line), ..Setup::default() });
        let fence = Fence::stand_alone(Epoch(1));
        world.log.session(session(), Sequence(1));
        world.send(&fence);
        // Far more than the writer keeps for a line that doesn't get on.
        let mut expected = Vec::new();
        for first in (1..2_001).step_by(50) {
            world.messages(first, first + 50);
            world.send(&fence);
            expected.extend(world.received(1 - broken_line));
        }
        expected.retain(|text| !text.contains('h'));
        assert_eq!(expected, live(1, 1..2_001));
        let counts = world.publisher.counts();
        assert!(counts.errors + counts.refused >= 40 && counts.overruns > 0, "{counts:?}");
    }
}

#[test]
fn a_broken_line_keeps_no_takeover_from_its_end() {
    for broken_line in 0..2 {
        let mut world = World::new(&Setup { lines: 2, broken_line: Some(broken_line), ..Setup::default() });
        world.log.session(session(), Sequence(1));
        world.messages(1, 201);
        let fence = Fence::stand_alone(Epoch(7));
        world.send(&fence);
        for _ in 0..1_000 {
            if world.publisher.mode() == PublishMode::Live {
                break;
            }
            let due = world.publisher.next_deadline().unwrap();
            while mono_now() < due {}
            world.deadline(due, &fence);
        }
        assert_eq!(world.publisher.mode(), PublishMode::Live, "line {broken_line} is broken");
        let mut told = world.received(1 - broken_line);
        told.retain(|text| !text.contains('h'));
        assert_eq!(told.len(), 200, "each once: {told:?}");
    }
}

#[test]
fn a_tail_that_nobody_takes_is_tried_again_soon_and_counts_for_nothing() {
    let mut world = World::new(&Setup::default());
    world.log.session(session(), Sequence(1));
    world.messages(1, 11);
    world.io.refuse = 2;
    let fence = Fence::stand_alone(Epoch(7));
    // The first refusal is the opening's heartbeat.
    world.send(&fence);
    assert_eq!((world.received(0).len(), world.publisher.counts().refused), (0, 2));
    let retry_at = world.publisher.next_deadline().unwrap();
    assert!(retry_at <= mono_now().plus(1_000_000), "soon");
    world.deadline(retry_at, &fence);
    assert_eq!(world.received(0).iter().filter(|text| !text.contains('h')).count(), 10);
}

#[test]
fn idle_channels_say_where_they_stand() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::stand_alone(Epoch(1));
    let due = world.publisher.next_deadline().unwrap();
    world.deadline(due, &fence);
    assert_eq!(world.received(0), [""; 0], "no session yet");
    world.log.session(session(), Sequence(1));
    world.messages(1, 3);
    world.send(&fence);
    assert_eq!(world.received(0), live(1, 1..3));
    let due = world.publisher.next_deadline().unwrap();
    world.deadline(MonoNs(due.0 - 1), &fence);
    assert_eq!(world.received(0), [""; 0]);
    world.deadline(due, &fence);
    assert_eq!(world.received(0), ["1 [3,3) h0"]);
    // Messages that produced nothing.
    world.log.settled(Sequence(9));
    world.deadline(due.plus(2_000_000_000), &fence);
    assert_eq!(world.received(0), ["1 [3,9) h0"]);
    world.log.end_of_session();
    world.send(&fence);
    assert_eq!(world.received(0), ["1 [9,9) he0"]);
    world.deadline(due.plus(4_000_000_000), &fence);
    assert_eq!(world.received(0), ["1 [9,9) he0"]);
    assert_eq!(world.publisher.counts().heartbeats, 2);
}

#[test]
fn a_restarted_gateway_says_at_once_where_the_run_before_had_got() {
    for (has_ended, expected) in [(false, "9 [4,4) h0"), (true, "9 [4,4) he0")] {
        let mut world = World::new(&Setup::default());
        let start = world.publisher.next_deadline().unwrap();
        assert!(start <= mono_now(), "the first heartbeat is due at the start");
        world.log.resume(session(), Sequence(4), has_ended);
        world.deadline(mono_now(), &Fence::stand_alone(Epoch(9)));
        assert_eq!(world.received(0), [expected]);
        // The venue is heard again.
        world.log.session(session(), Sequence(4));
        world.messages(4, 5);
        world.send(&Fence::stand_alone(Epoch(9)));
        assert_eq!(world.received(0), live(9, 4..5));
    }
}

#[test]
fn a_channel_out_of_service_is_told_at_once_and_to_who_comes_later() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::stand_alone(Epoch(1));
    world.log.session(session(), Sequence(1));
    world.messages(1, 3);
    world.send(&fence);
    let mut early = Subscriber::new();
    early.hear(&world);
    // The third message was on its way into the log, and the fourth had been found to produce nothing.
    world.log.frame(&message(3), 1, &RECORD);
    world.log.settled(Sequence(5));
    world.log.fail();
    world.send(&fence);
    early.hear(&world);
    assert_eq!(early.heard, ["session", "message 1", "message 2", "state Failed"]);
    let mut late = Subscriber::new();
    for _ in 0..2 {
        let due = world.publisher.next_deadline().unwrap();
        world.deadline(due, &fence);
        late.hear(&world);
    }
    assert_eq!(late.heard, ["session", "state Failed"]);
    assert_eq!(world.publisher.counts().heartbeats, 3);
    assert_eq!(world.log.numbering().unwrap().committed, Sequence(3));
}

/// What a consumer hears.
struct Subscriber {
    receiver: Receiver,
    heard: Vec<String>,
}

impl Subscriber {
    fn new() -> Self {
        let config = ReceiverConfig { group: GroupId(2), ..ReceiverConfig::default() };
        Self { receiver: Receiver::new(config), heard: Vec::new() }
    }

    fn hear(&mut self, world: &World) {
        let Self { receiver, heard } = self;
        let mut datagram = [0; 2_048];
        while let Ok(length) = world.receivers[0].recv(&mut datagram) {
            let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &datagram[..length], ts_recv: NOW };
            let mut deliver = |output: Output<'_>| {
                heard.push(match output.item {
                    Item::Session => "session".to_owned(),
                    Item::Message { header, .. } => format!("message {}", header.sequence),
                    Item::State(state) => format!("state {state:?}"),
                    other => panic!("{other:?}"),
                });
            };
            receiver.accept(datagram, MonoNs(1), &mut deliver).unwrap();
        }
    }
}

#[test]
fn a_closed_fence_stops_heartbeats_too() {
    let mut world = World::new(&Setup::default());
    let fence = Fence::stand_alone(Epoch(1));
    world.log.session(session(), Sequence(1));
    world.send(&fence);
    world.received(0);
    fence.close();
    let due = world.publisher.next_deadline().unwrap();
    world.deadline(due, &fence);
    assert_eq!(world.received(0), [""; 0]);
    fence.open(Epoch(2), MonoNs(u64::MAX));
    let due = world.publisher.next_deadline().unwrap();
    world.deadline(due, &fence);
    assert_eq!(world.received(0), ["2 [1,1) h0"], "an opening is noticed at the next deadline");
}
