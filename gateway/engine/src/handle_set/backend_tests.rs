//! Promises of every backend, tested once for all of them on loopback.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{HEADER_BYTES, Output, OutputIndex, Outputs, ReceiveBatch, ReceivedDatagram, SendBuffers, StampKind},
    clock::mono_now,
    handle::{ChannelIndex, Handle},
    sockets,
};

use crate::handle_set::{EVENTS_MAX, Event, HandleSet, ThreadIo, Wait};

/// One `#[test]` for each promise, with sets made by the given closure.
macro_rules! for_each_backend_test {
    ($make:expr) => {
        $crate::handle_set::backend_tests::for_each_backend_test!($make;
            a_wake_up_ends_the_current_and_the_next_wait,
            the_timer_expires_once_per_setting,
            each_arrival_is_reported_once,
            a_burst_larger_than_a_batch_is_received_complete_and_in_order,
            datagrams_carry_stamp_source_and_truncation,
            a_small_event_limit_loses_no_event,
            datagrams_queued_before_a_socket_was_added_are_received,
            adding_and_removing_wakes_the_waiting_leader,
            a_removed_socket_reports_nothing_and_can_be_added_again,
            sent_packets_arrive,
            no_packet_of_100000_is_lost,
        );
    };
    (several threads: $make:expr) => {
        $crate::handle_set::backend_tests::for_each_backend_test!($make);
        $crate::handle_set::backend_tests::for_each_backend_test!($make; leadership_moves_between_threads_without_loss, one_wait_returns_as_many_events_as_a_turn_may_claim,);
    };
    ($make:expr; $($backend_test:ident,)*) => {
        $(#[test]
        fn $backend_test() {
            backend_tests::$backend_test(&($make)());
        })*
    };
}
pub(super) use for_each_backend_test;

/// A receiving socket with its handle, and a socket that sends to it.
pub(super) struct SocketPair {
    pub(super) handle: Handle,
    pub(super) receiver: UdpSocket,
    pub(super) sender: UdpSocket,
}

impl SocketPair {
    pub(super) fn new(channel: u32, line: Line) -> Self {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        sockets::request_stamps(&receiver, sockets::Stamps::Kernel).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        Self { handle: Handle { channel: ChannelIndex(channel), line }, receiver, sender }
    }

    fn added_to(self, set: &impl HandleSet) -> Self {
        set.add(self.receiver.as_fd(), self.handle).unwrap();
        self
    }
}

/// A thread with its part of a set, and the sockets that the set may report.
pub(super) struct EventReader<'f, I> {
    pub(super) io: I,
    pairs: &'f [SocketPair],
    events: Vec<Event>,
    batch: ReceiveBatch,
}

impl<'f, I: ThreadIo> EventReader<'f, I> {
    pub(super) fn new<S: HandleSet<Io = I>>(set: &S, pairs: &'f [SocketPair]) -> Self {
        let batch = ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX);
        Self { io: set.thread_io().unwrap(), pairs, events: Vec::with_capacity(64), batch }
    }

    /// Waits once; returns the events after reading all sockets until short.
    fn wait_and_read(
        &mut self,
        wait: Wait,
        room: usize,
        mut each: impl FnMut(Handle, &ReceivedDatagram<'_>),
    ) -> Vec<Event> {
        self.events.clear();
        self.io.wait(wait, room, &mut self.events).unwrap();
        assert!(self.events.len() <= room);
        for event in &self.events {
            match *event {
                Event::Ready(handle) => loop {
                    self.batch.clear();
                    let pair = self.pairs.iter().find(|pair| pair.handle == handle).unwrap();
                    let sockets = [(handle.line, pair.receiver.as_raw_fd())];
                    let unfinished = self.io.receive(&sockets, &mut self.batch).unwrap();
                    self.batch.iter().for_each(|datagram| each(handle, &datagram));
                    if unfinished.is_empty() {
                        break;
                    }
                },
                Event::Provided(handle) => loop {
                    self.batch.clear();
                    self.io.take_provided(handle, &mut self.batch);
                    if self.batch.is_empty() {
                        break;
                    }
                    self.batch.iter().for_each(|datagram| each(handle, &datagram));
                },
                Event::Timer | Event::Wake => {}
            }
        }
        self.events.clone()
    }

    /// Blocks until `count` datagrams have been received; returns their bytes, in order.
    fn read(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            self.wait_and_read(Wait::Block, 64, |_, datagram| bytes.push(datagram.bytes.to_vec()));
        }
        bytes
    }

    /// Discards the wake-up of `add` or `remove`.
    fn drain_events(&mut self) {
        while !self.wait_and_read(Wait::Block, 64, |_, _| {}).contains(&Event::Wake) {}
        while !self.wait_and_read(Wait::Poll, 64, |_, _| {}).is_empty() {}
    }
}

pub(super) fn a_wake_up_ends_the_current_and_the_next_wait<S: HandleSet>(set: &S) {
    let mut reader = EventReader::new(set, &[]);
    set.wake();
    set.wake();
    assert_eq!(reader.wait_and_read(Wait::Block, 8, |_, _| {}), [Event::Wake]);
    assert_eq!(reader.wait_and_read(Wait::Poll, 8, |_, _| {}), [], "two wake-ups before a wait are one event");
    thread::scope(|scope| {
        scope.spawn(|| set.wake());
        assert_eq!(reader.wait_and_read(Wait::Block, 8, |_, _| {}), [Event::Wake]);
    });
}

pub(super) fn the_timer_expires_once_per_setting<S: HandleSet>(set: &S) {
    let mut reader = EventReader::new(set, &[]);
    for at in [MonoNs(0), MonoNs(1)] {
        set.set_timer(Some(at));
        assert_eq!(
            reader.wait_and_read(Wait::Block, 8, |_, _| {}),
            [Event::Timer],
            "a time in the past expires at once"
        );
        assert_eq!(reader.wait_and_read(Wait::Poll, 8, |_, _| {}), []);
    }
    let soon = mono_now().plus(2_000_000);
    set.set_timer(Some(soon));
    assert_eq!(reader.wait_and_read(Wait::Block, 8, |_, _| {}), [Event::Timer]);
    assert!(mono_now() >= soon, "not before its time");

    set.set_timer(Some(MonoNs(1)));
    set.set_timer(None);
    assert_eq!(reader.wait_and_read(Wait::Poll, 8, |_, _| {}), [], "cleared");
    set.set_timer(Some(MonoNs(u64::MAX)));
    assert_eq!(reader.wait_and_read(Wait::Poll, 8, |_, _| {}), [], "a timer far in the future does not expire");
}

pub(super) fn each_arrival_is_reported_once<S: HandleSet>(set: &S) {
    let pairs = [SocketPair::new(7, Line::B).added_to(set)];
    let mut reader = EventReader::new(set, &pairs);
    reader.drain_events();
    for round in 0..3_u8 {
        pairs[0].sender.send(&[round]).unwrap();
        let mut seen = Vec::new();
        let events =
            reader.wait_and_read(Wait::Block, 8, |handle, datagram| seen.push((handle, datagram.bytes.to_vec())));
        assert_eq!(seen, [(pairs[0].handle, vec![round])]);
        assert_eq!(events.len(), 1);
        assert_eq!(reader.wait_and_read(Wait::Poll, 8, |_, _| {}), [], "read until short: no event is left");
    }
}

pub(super) fn a_burst_larger_than_a_batch_is_received_complete_and_in_order<S: HandleSet>(set: &S) {
    let pairs = [SocketPair::new(0, Line::A).added_to(set)];
    let mut reader = EventReader::new(set, &pairs);
    reader.drain_events();
    for number in 0..200_u8 {
        pairs[0].sender.send(&[number; 100]).unwrap();
    }
    let expected: Vec<_> = (0..200).map(|number| vec![number; 100]).collect();
    assert_eq!(reader.read(200), expected);
}

pub(super) fn datagrams_carry_stamp_source_and_truncation<S: HandleSet>(set: &S) {
    let pairs = [SocketPair::new(0, Line::B).added_to(set)];
    let mut reader = EventReader::new(set, &pairs);
    let source = pairs[0].sender.local_addr().unwrap();
    let mut stamped_count = 0_u64;
    // The kernel begins to timestamp a moment after the request.
    while stamped_count < 3 {
        pairs[0].sender.send(&[1; 2_048]).unwrap();
        pairs[0].sender.send(&[2; 2_049]).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            reader.wait_and_read(Wait::Block, 8, |_, datagram| {
                assert_eq!(SocketAddr::from(datagram.source), source);
                assert_eq!(datagram.line, Line::B);
                assert_eq!(datagram.ts_recv.is_some(), datagram.stamp == StampKind::Kernel);
                stamped_count += u64::from(datagram.ts_recv.is_some_and(|stamp| stamp.0 > 1_600_000_000_000_000_000));
                seen.push((datagram.bytes.len(), datagram.bytes[0], datagram.truncated));
            });
        }
        assert_eq!(seen, [(2_048, 1, false), (2_048, 2, true)]);
    }
}

pub(super) fn a_small_event_limit_loses_no_event<S: HandleSet>(set: &S) {
    let pairs: Vec<_> = (0..5).map(|channel| SocketPair::new(channel, Line::A).added_to(set)).collect();
    let mut reader = EventReader::new(set, &pairs);
    reader.drain_events();
    pairs.iter().for_each(|pair| assert_eq!(pair.sender.send(b"x").unwrap(), 1));
    let mut seen = Vec::new();
    while seen.len() < pairs.len() {
        reader.wait_and_read(Wait::Block, 1, |handle, _| seen.push(handle.channel.0));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

/// For sets that deliver readiness: a ring that delivers data hands over as many completions as the kernel runs at a time.
pub(super) fn one_wait_returns_as_many_events_as_a_turn_may_claim<S: HandleSet>(set: &S) {
    let pairs: Vec<_> = (0..100).map(|channel| SocketPair::new(channel, Line::A).added_to(set)).collect();
    let mut reader = EventReader::new(set, &pairs);
    while !reader.wait_and_read(Wait::Block, EVENTS_MAX, |_, _| {}).contains(&Event::Wake) {}
    while !reader.wait_and_read(Wait::Poll, EVENTS_MAX, |_, _| {}).is_empty() {}
    pairs.iter().for_each(|pair| assert_eq!(pair.sender.send(b"x").unwrap(), 1));
    assert_eq!(reader.wait_and_read(Wait::Block, EVENTS_MAX, |_, _| {}).len(), pairs.len());
}

pub(super) fn datagrams_queued_before_a_socket_was_added_are_received<S: HandleSet>(set: &S) {
    let pair = SocketPair::new(0, Line::A);
    pair.sender.send(b"early").unwrap();
    let pairs = [pair.added_to(set)];
    assert_eq!(EventReader::new(set, &pairs).read(1), [b"early"]);
}

pub(super) fn adding_and_removing_wakes_the_waiting_leader<S: HandleSet>(set: &S) {
    let pair = SocketPair::new(0, Line::A);
    let (events_out, events) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut reader = EventReader::new(set, &[]);
            for _ in 0..2 {
                events_out.send(reader.wait_and_read(Wait::Block, 8, |_, _| {})).unwrap();
            }
        });
        set.add(pair.receiver.as_fd(), pair.handle).unwrap();
        assert_eq!(events.recv().unwrap(), [Event::Wake]);
        set.remove(pair.receiver.as_fd()).unwrap();
        assert_eq!(events.recv().unwrap(), [Event::Wake]);
    });
}

pub(super) fn a_removed_socket_reports_nothing_and_can_be_added_again<S: HandleSet>(set: &S) {
    let pairs = [SocketPair::new(0, Line::A).added_to(set), SocketPair::new(1, Line::A).added_to(set)];
    let mut reader = EventReader::new(set, &pairs);
    reader.drain_events();
    set.remove(pairs[0].receiver.as_fd()).unwrap();
    reader.drain_events();
    pairs[0].sender.send(b"unseen").unwrap();
    pairs[1].sender.send(b"seen").unwrap();
    assert_eq!(reader.read(1), [b"seen"]);
    assert_eq!(reader.wait_and_read(Wait::Poll, 8, |_, _| {}), []);
    assert!(set.remove(pairs[0].receiver.as_fd()).is_err(), "the socket is not in the set");

    set.add(pairs[0].receiver.as_fd(), pairs[0].handle).unwrap();
    assert!(set.add(pairs[0].receiver.as_fd(), pairs[0].handle).is_err(), "it is there");
    assert_eq!(reader.read(1), [b"unseen"]);
    pairs[0].sender.send(b"again").unwrap();
    assert_eq!(reader.read(1), [b"again"]);
}

pub(super) fn sent_packets_arrive<S: HandleSet>(set: &S) {
    let (first, second) = (SocketPair::new(0, Line::A), SocketPair::new(1, Line::A));
    let SocketAddr::V4(second_address) = second.receiver.local_addr().unwrap() else { unreachable!() };
    let outputs = Outputs::new(vec![
        Output { socket: Arc::new(first.sender.try_clone().unwrap().into()), destination: None },
        Output { socket: Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into()), destination: Some(second_address) },
    ]);
    let mut io = set.thread_io().unwrap();
    let mut buffers = SendBuffers::new(outputs);
    let body = [7; 200];
    for round in 0..3_u8 {
        let mut batch = buffers.begin();
        assert_eq!(io.send(&batch).unwrap(), 0, "an empty batch is sent at once");
        for length in 0..20 {
            batch.push(&[round; HEADER_BYTES], &body[..length * 10], None, OutputIndex(0)).unwrap();
        }
        for length in 0..20 {
            batch.push(&[round; HEADER_BYTES], &body[..length * 10], None, OutputIndex(1)).unwrap();
        }
        assert_eq!(io.send(&batch).unwrap(), 40);
        for pair in [&first, &second] {
            for length in 0..20 {
                let mut bytes = [0; 300];
                let received = pair.receiver.recv(&mut bytes).unwrap();
                assert_eq!(bytes[..received], [&[round; HEADER_BYTES][..], &body[..length * 10]].concat());
            }
        }
    }
}

/// One reader; the sender keeps no more in flight than the socket holds.
pub(super) fn no_packet_of_100000_is_lost<S: HandleSet>(set: &S) {
    let pairs = [SocketPair::new(0, Line::A).added_to(set), SocketPair::new(0, Line::B).added_to(set)];
    let received = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| send_within_window(&pairs, &received));
        let mut reader = EventReader::new(set, &pairs);
        let mut next = [0_u32; 2];
        while received.load(Ordering::Relaxed) < PACKETS {
            reader.wait_and_read(Wait::Block, 8, |handle, datagram| {
                check_next(&mut next[usize::from(handle.line.0)], datagram);
                received.fetch_add(1, Ordering::Release);
            });
        }
    });
}

/// The lead moves from thread to thread after every wait; nothing is lost, and a thread that does not lead gets no
/// event.
pub(super) fn leadership_moves_between_threads_without_loss<S: HandleSet>(set: &S) {
    let pairs = [SocketPair::new(0, Line::A).added_to(set), SocketPair::new(0, Line::B).added_to(set)];
    let (received, lead) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let next = std::sync::Mutex::new([0_u32; 2]);
    thread::scope(|scope| {
        scope.spawn(|| send_within_window(&pairs, &received));
        for index in 0..THREADS {
            let (pairs, received, lead, next) = (&pairs, &received, &lead, &next);
            scope.spawn(move || {
                let mut reader = EventReader::new(set, pairs);
                while received.load(Ordering::Acquire) < PACKETS {
                    if lead.load(Ordering::Acquire) % THREADS != index {
                        thread::yield_now();
                        continue;
                    }
                    let mut next = next.lock().unwrap();
                    // Only the leader receives, so it cannot block for good while something is missing.
                    let wait = if lead.load(Ordering::Relaxed) % 3 == 0 { Wait::Block } else { Wait::Poll };
                    reader.wait_and_read(wait, 8, |handle, datagram| {
                        check_next(&mut next[usize::from(handle.line.0)], datagram);
                        received.fetch_add(1, Ordering::Release);
                    });
                    drop(next);
                    reader.io.release_wait().unwrap();
                    lead.fetch_add(1, Ordering::Release);
                }
            });
        }
    });
}

fn send_within_window(pairs: &[SocketPair; 2], received: &AtomicUsize) {
    for number in 0..PACKETS / 2 {
        for pair in pairs {
            pair.sender.send(&u32::try_from(number).unwrap().to_le_bytes()).unwrap();
        }
        while number * 2 > received.load(Ordering::Acquire) + WINDOW {
            thread::yield_now();
        }
    }
}

fn check_next(next: &mut u32, datagram: &ReceivedDatagram<'_>) {
    assert_eq!(datagram.bytes, next.to_le_bytes());
    *next += 1;
}

const PACKETS: usize = 100_000;
/// Packets in flight: small packets that fit a socket of the default size (212,992 bytes).
const WINDOW: usize = 128;
const THREADS: usize = 2;
