//! What do the backends of a handle set cost? Each backend receives and sends the same datagrams over loopback.
//!
//! The result decides which backend `io = "auto"` selects. One thread does everything, so only the calls themselves are
//! timed: the datagrams are sent first (loopback delivers them before the send returns), then the backend's turn is
//! timed. Every round measures all backends. The result of a round is the median of its turns, since interruptions on a
//! shared machine dominate the mean. The report shows the median over the rounds, and the median ratio to epoll.
//!
//! `cargo bench -p mdgw-bench --bench net`
#![allow(clippy::print_stdout, missing_docs, reason = "a bench prints what it measured")]

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use mdgw_engine::handle_set::{
    Event, HandleSet, ThreadIo, Wait,
    epoll::EpollSet,
    ring::{EpollWaitMethod, MultishotSet, RingSet},
};
use mdgw_feeds::identity::Line;
use mdgw_sys::{
    batch::{HEADER_BYTES, Output, OutputIndex, Outputs, ReceiveBatch, SendBuffers},
    handle::{ChannelIndex, Handle},
    sockets::{Stamps, request_stamps},
};

const CHANNELS: usize = 64;
const ROUNDS: usize = 15;
const TURNS: usize = 2_000;

fn main() {
    // `cargo test --benches` runs this too: one short round shows that it works.
    let (rounds, turns) = if std::env::args().any(|word| word == "--bench") { (ROUNDS, TURNS) } else { (1, 10) };
    let ready = [(1, 1), (1, 2), (4, 2), (16, 2)];
    println!("ns per turn, {CHANNELS} channels of 2 sockets, {rounds} rounds of {turns} turns; (ratio to epoll)\n");
    println!("{:<44}{:>16}{:>20}{:>20}{:>20}", "", "epoll", "ring, events", "ring, readiness", "multishot");
    let mut tables: Vec<(String, Vec<[f64; 4]>)> = Vec::new();
    for _ in 0..rounds {
        let mut results: [Vec<(String, f64)>; 4] = Default::default();
        results[0] = measure(&EpollSet::new().expect("epoll"), &ready, turns);
        results[1] = measure(&RingSet::new(EpollWaitMethod::Events).expect("ring"), &ready, turns);
        results[2] = measure(&RingSet::new(EpollWaitMethod::Readiness).expect("ring"), &ready, turns);
        results[3] = measure(&MultishotSet::new(MultishotSet::BUFFERS).expect("ring"), &ready, turns);
        for (row, (name, _)) in results[0].iter().enumerate() {
            let values = [0, 1, 2, 3].map(|backend| results[backend][row].1);
            match tables.get_mut(row) {
                Some((_, rounds)) => rounds.push(values),
                None => tables.push((name.clone(), vec![values])),
            }
        }
    }
    for (name, rounds) in tables {
        let medians = [0, 1, 2, 3].map(|backend| median(rounds.iter().map(|values| values[backend])));
        let ratios = [0, 1, 2, 3].map(|backend| median(rounds.iter().map(|values| values[backend] / values[0])));
        let columns: Vec<_> =
            (1..4).map(|i| format!("{:>20}", format!("{:.0} ({:.2})", medians[i], ratios[i]))).collect();
        println!("{name:<44}{:>16.0}{}", medians[0], columns.concat());
    }
}

/// Measures one backend in one round. Returns the name of each measurement, and ns per turn, datagram or packet.
fn measure<S: HandleSet>(set: &S, ready: &[(usize, usize)], turns: usize) -> Vec<(String, f64)> {
    let socket_pairs: Vec<_> = (0..CHANNELS).map(|_| [SocketPair::new(), SocketPair::new()]).collect();
    for (channel, lines) in socket_pairs.iter().enumerate() {
        for (line, feed) in lines.iter().enumerate() {
            let channel = ChannelIndex(u32::try_from(channel).expect("few"));
            let handle = Handle { channel, line: Line(u8::try_from(line).expect("two")) };
            set.add(feed.receiver.as_fd(), handle).expect("added");
        }
    }
    let mut turn = Turn {
        io: set.thread_io().expect("thread's part"),
        events: Vec::with_capacity(64),
        batch: ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX),
    };
    (0..10).for_each(|_| _ = turn.take(&socket_pairs));
    let mut results = Vec::new();
    let started = Instant::now();
    (0..turns).for_each(|_| _ = turn.take(&socket_pairs));
    results.push(("turn, nothing ready".to_owned(), ns_each(started, turns)));
    for &(packets, lines) in ready {
        let mut samples = Vec::with_capacity(turns);
        for number in 0..turns {
            let channel = &socket_pairs[number % CHANNELS];
            for _ in 0..packets {
                channel[..lines].iter().for_each(|feed| assert_eq!(feed.sender.send(&[0; 120]).expect("sent"), 120));
            }
            let started = Instant::now();
            let mut received = turn.take(&socket_pairs);
            samples.push(ns_each(started, packets * lines));
            // A poll seldom misses a datagram; further receives count towards the same turn.
            while received < packets * lines {
                received += turn.take(&socket_pairs);
            }
        }
        let name = format!("turn, {packets} datagrams on {lines} lines, for each");
        results.push((name, median(samples.into_iter())));
    }
    for packets in [1, 8] {
        results.push((format!("send of {packets}, for each packet"), send(&mut turn.io, packets, turns)));
    }
    results
}

/// State of a pool's only thread: it holds the leader token in every wait, and processes what it receives itself.
struct Turn<I> {
    io: I,
    events: Vec<Event>,
    batch: ReceiveBatch,
}

impl<I: ThreadIo> Turn<I> {
    /// Takes one turn: waits without blocking, releases the wait, receives. Returns the number of datagrams.
    fn take(&mut self, socket_pairs: &[[SocketPair; 2]]) -> usize {
        self.events.clear();
        self.io.wait(Wait::Poll, 64, &mut self.events).expect("wait");
        if self.events.is_empty() {
            return 0; // without an event the thread remains leader
        }
        self.io.release_wait().expect("release");
        let mut received = 0;
        let mut sockets = [(Line::A, -1); 2];
        let mut count = 0;
        for event in &self.events {
            match *event {
                Event::Ready(handle) => {
                    let feed = &socket_pairs[handle.channel.0 as usize][usize::from(handle.line.0)];
                    sockets[count] = (handle.line, feed.receiver.as_raw_fd());
                    count += 1;
                }
                Event::Provided(handle) => {
                    self.batch.clear();
                    self.io.take_provided(handle, &mut self.batch);
                    received += self.batch.len();
                }
                Event::Timer | Event::Wake => {}
            }
            if count == sockets.len() {
                break;
            }
        }
        if count > 0 {
            self.batch.clear();
            self.io.receive(&sockets[..count], &mut self.batch).expect("receive");
            received += self.batch.len();
        }
        received
    }
}

fn send(io: &mut impl ThreadIo, packets: usize, turns: usize) -> f64 {
    let feed = SocketPair::new();
    let socket: Arc<OwnedFd> = Arc::new(feed.sender.try_clone().expect("descriptor").into());
    let mut buffers = SendBuffers::new(Outputs::new(vec![Output { socket, destination: None }]));
    let (body, mut bytes) = ([0; 136], [0; 256]);
    let mut samples = Vec::with_capacity(turns);
    for _ in 0..turns {
        let mut batch = buffers.begin();
        for _ in 0..packets {
            batch.push(&[0; HEADER_BYTES], &body, None, OutputIndex(0)).expect("room");
        }
        let started = Instant::now();
        assert_eq!(io.send(&batch).expect("sent"), packets);
        samples.push(ns_each(started, packets));
        while feed.receiver.recv(&mut bytes).is_ok() {}
    }
    median(samples.into_iter())
}

/// A receiving socket on loopback, and a socket that sends to it.
struct SocketPair {
    receiver: UdpSocket,
    sender: UdpSocket,
}

impl SocketPair {
    fn new() -> Self {
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("socket");
        receiver.set_nonblocking(true).expect("option");
        request_stamps(&receiver, Stamps::Kernel).expect("option");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let SocketAddr::V4(address) = receiver.local_addr().expect("address") else { unreachable!() };
        sender.connect(address).expect("connected");
        Self { receiver, sender }
    }
}

fn ns_each(started: Instant, count: usize) -> f64 {
    started.elapsed().as_nanos() as f64 / count as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
