//! A receiver that counts packets and measures their latency.
//!
//! The n-th packet received at a destination is the n-th that was sent there: a socket keeps the order, and the first
//! loss ends the search. So no latency is reported after a loss.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    net::SocketAddrV4,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, receive_round_robin},
    clock::mono_now,
    drops::SocketDrops,
    handle::{ChannelIndex, Handle},
    poll,
    sockets::{Interface, ReceiveOptions, ReceiveSocket, SocketError, Stamps, open_receive},
};

use super::{LossCounter, SinkTotals, histogram};

/// The sender's side of the sink.
#[derive(Debug)]
pub(super) struct ReceiverSink {
    drops: SocketDrops,
    dropped: Vec<Arc<AtomicU64>>,
    socket_indexes: BTreeMap<SocketAddrV4, usize>,
    sent: Option<Sender<Sent>>,
    shared: Arc<SinkState>,
    thread: Option<JoinHandle<Vec<hdrhistogram::Histogram<u64>>>>,
}

#[derive(Debug, Default)]
struct SinkState {
    stop: AtomicBool,
    arrived: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    socket_index: usize,
    intended: MonoNs,
    step: u32,
}

impl ReceiverSink {
    /// Listens on all destinations.
    pub(super) fn open(
        destinations: &BTreeSet<SocketAddrV4>,
        interface: Option<&Interface>,
    ) -> Result<Self, SocketError> {
        let mut sockets = Vec::new();
        let (mut drops, mut dropped) = (SocketDrops::default(), Vec::new());
        for destination in destinations {
            let mut options = ReceiveOptions::new(*destination, interface.cloned());
            options.stamps = Stamps::None;
            let socket = open_receive(&options)?;
            dropped.push(drops.add(Handle { channel: ChannelIndex(0), line: Line::A }, Arc::clone(socket.socket())));
            sockets.push(socket);
        }
        let (sent, sent_packets) = channel();
        let shared = Arc::new(SinkState::default());
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mdgw-sink".to_owned())
            .spawn(move || SinkThread::new(sockets, sent_packets, thread_shared).run())
            .map_err(|source| SocketError {
                action: "start the thread of a sink".to_owned(),
                address: destinations.first().copied().unwrap_or_else(|| SocketAddrV4::new([0; 4].into(), 0)),
                source,
            })?;
        let socket_indexes = destinations.iter().copied().zip(0..).collect();
        Ok(Self { drops, dropped, socket_indexes, sent: Some(sent), shared, thread: Some(thread) })
    }
}

impl LossCounter for ReceiverSink {
    fn sent(&mut self, destination: SocketAddrV4, intended: MonoNs, step: u32) {
        if let (Some(sent), Some(socket_index)) = (&self.sent, self.socket_indexes.get(&destination)) {
            // If the sink thread has ended, the query for received packets fails.
            let _ = sent.send(Sent { socket_index: *socket_index, intended, step });
        }
    }

    fn dropped(&mut self) -> io::Result<u64> {
        self.drops.read(|_, _| {})?;
        Ok(self.dropped.iter().map(|dropped| dropped.load(Ordering::Relaxed)).sum())
    }

    fn finish_counting(&mut self, sent: u64) -> io::Result<Option<SinkTotals>> {
        let (mut last, mut since) = (0, Instant::now());
        while since.elapsed() < QUIET_TIMEOUT {
            let arrived = self.shared.arrived.load(Ordering::Acquire);
            if arrived + self.dropped()? >= sent {
                break;
            }
            if arrived != last {
                (last, since) = (arrived, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.stop.store(true, Ordering::Release);
        self.sent = None;
        let ended = self.thread.take().map(JoinHandle::join);
        let steps = ended.and_then(Result::ok).ok_or_else(|| io::Error::other("the sink thread has ended"))?;
        Ok(Some(SinkTotals { packets: self.shared.arrived.load(Ordering::Acquire), steps }))
    }

    fn description(&self) -> &'static str {
        "drops of the sink's sockets (SO_MEMINFO), and sent packets that were not received"
    }
}

impl Drop for ReceiverSink {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

/// After this time without a packet, the sink stops waiting.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);

/// State of the thread that receives what the replay sends, and matches each packet with its send time.
struct SinkThread {
    sockets: Vec<ReceiveSocket>,
    sent_packets: Receiver<Sent>,
    shared: Arc<SinkState>,
    /// By destination: packets sent and not received yet, and times of packets received whose sending is not known yet.
    sent: Vec<VecDeque<Sent>>,
    arrived: Vec<VecDeque<MonoNs>>,
    steps: Vec<hdrhistogram::Histogram<u64>>,
}

impl SinkThread {
    fn new(sockets: Vec<ReceiveSocket>, sent_packets: Receiver<Sent>, shared: Arc<SinkState>) -> Self {
        let socket_count = sockets.len();
        Self {
            sockets,
            sent_packets,
            shared,
            sent: vec![VecDeque::new(); socket_count],
            arrived: vec![VecDeque::new(); socket_count],
            steps: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<hdrhistogram::Histogram<u64>> {
        let mut batch = ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX);
        while !self.shared.stop.load(Ordering::Acquire) {
            let mut count = 0;
            for (socket_index, socket) in self.sockets.iter().enumerate() {
                batch.clear();
                if receive_round_robin(&[(Line::A, socket.raw_fd())], &mut batch).is_err() {
                    continue;
                }
                let now = mono_now();
                count += batch.len();
                if let Some(arrived) = self.arrived.get_mut(socket_index) {
                    arrived.extend(std::iter::repeat_n(now, batch.len()));
                }
            }
            self.shared.arrived.fetch_add(count as u64, Ordering::Release);
            self.match_up();
            if count == 0 {
                // A failed wait shows in the next read.
                let _ = poll::readable(self.sockets.iter().map(|socket| socket.as_fd()), Duration::from_millis(5));
            }
        }
        self.match_up();
        self.steps
    }

    fn match_up(&mut self) {
        for sent in self.sent_packets.try_iter() {
            if let Some(waiting) = self.sent.get_mut(sent.socket_index) {
                waiting.push_back(sent);
            }
        }
        for (sent, arrived) in self.sent.iter_mut().zip(&mut self.arrived) {
            while let (Some(packet), Some(at)) = (sent.front().copied(), arrived.front().copied()) {
                sent.pop_front();
                arrived.pop_front();
                let step = packet.step as usize;
                while self.steps.len() <= step && self.steps.len() < STEPS_MAX {
                    self.steps.push(histogram());
                }
                if let Some(step) = self.steps.get_mut(step) {
                    step.saturating_record(at.since(packet.intended));
                }
            }
        }
    }
}

/// Steps whose latencies are kept.
const STEPS_MAX: usize = 1_000;
