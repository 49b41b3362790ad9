//! Exchange simulator: sends a feed on redundant lines with configured loss, duplication, reordering and delay, and
//! answers MoldUDP64 requests for retransmission. It runs on cold threads and may allocate and sleep.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io,
    net::SocketAddrV4,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_captures::{
    impairment::{ImpairedLines, LineImpairment, LossPolicy},
    pacer::{Pace, Pacer},
};
use mdgw_sys::{
    batch::Output,
    clock::mono_now,
    sockets::{Interface, OutputOptions, SocketError, open_output},
};

pub use super::request_server::ServedRequests;
pub(crate) use super::source::SourceError;
use super::{
    history::History,
    request_server::RequestServer,
    source::{FeedSource, Source, SourcePacket},
};

/// Configuration of an exchange: the feed, its lines and their impairments.
#[derive(Clone, Debug)]
pub struct ExchangeConfig {
    /// Source of the packets.
    pub feed: FeedSource,
    /// The lines, A first.
    pub lines: Vec<ExchangeLine>,
    /// Which packets may be lost.
    pub loss_policy: LossPolicy,
    /// Seed of the impairments; the same seed repeats the same impairments.
    pub seed: u64,
    /// Pace of the packets.
    pub pace: Pace,
    /// Outgoing interface of the lines.
    pub interface: Option<Interface>,
    /// Address of the MoldUDP64 request server; `None`: no server.
    pub request_server: Option<SocketAddrV4>,
    /// Probability that an answer is dropped, 0 to 1.
    pub answer_loss: f64,
}

/// One line of the exchange.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLine {
    /// Multicast group (or host) and port.
    pub destination: SocketAddrV4,
    /// Impairment of its packets.
    pub impairment: LineImpairment,
}

/// Error that prevented the start.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The feed can't be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A line's socket failed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The request server or a thread failed.
    #[error("cannot open the simulator's {what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Packets of the source.
    pub packets: u64,
    /// Messages in them.
    pub messages: u64,
    /// Copies handed to the kernel, all lines together.
    pub copies: u64,
    /// Copies that the kernel refused.
    pub refused: u64,
    /// Requests for retransmission.
    pub requests: ServedRequests,
}

/// A running exchange.
#[derive(Debug)]
pub struct Exchange {
    shared: Arc<PlayerState>,
    player: Option<JoinHandle<Result<(), SourceError>>>,
    server: Option<RequestServer>,
}

#[derive(Debug, Default)]
struct PlayerState {
    stop: AtomicBool,
    done: AtomicBool,
    packets: AtomicU64,
    messages: AtomicU64,
    copies: AtomicU64,
    refused: AtomicU64,
}

impl Exchange {
    /// Opens sockets and the source, and starts to send.
    ///
    /// # Errors
    /// The feed can't be read, or a socket can't be opened.
    pub fn start(config: &ExchangeConfig) -> Result<Self, ExchangeError> {
        let source = Source::open(&config.feed)?;
        let outputs = config
            .lines
            .iter()
            .map(|line| open_output(&OutputOptions::new(line.destination, config.interface.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        let history = config.request_server.map(|_| Arc::new(History::default()));
        let server = match (config.request_server, &history) {
            (Some(address), Some(history)) => {
                let server = RequestServer::start(address, Arc::clone(history), config.answer_loss, config.seed);
                Some(server.map_err(|source| ExchangeError::Io { what: "request server", source })?)
            }
            _ => None,
        };
        let shared = Arc::new(PlayerState::default());
        let impairment: Vec<_> = config.lines.iter().map(|line| line.impairment).collect();
        let player = Player {
            source,
            outputs,
            impaired: ImpairedLines::new(&impairment, config.loss_policy, config.seed),
            due: BinaryHeap::new(),
            number: 0,
            history,
            pace: config.pace,
            shared: Arc::clone(&shared),
        };
        let player = std::thread::Builder::new()
            .name("mdgw-exchange".to_owned())
            .spawn(move || player.run())
            .map_err(|source| ExchangeError::Io { what: "thread", source })?;
        Ok(Self { shared, player: Some(player), server })
    }

    /// Whether all packets were sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Counts so far.
    #[must_use]
    pub fn report(&self) -> ExchangeReport {
        ExchangeReport {
            packets: self.shared.packets.load(Ordering::Relaxed),
            messages: self.shared.messages.load(Ordering::Relaxed),
            copies: self.shared.copies.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            requests: self.server.as_ref().map(RequestServer::served).unwrap_or_default(),
        }
    }

    /// Stops sending and answering. Packets counted in the report were sent, followed by the end of the session.
    ///
    /// # Errors
    /// The source failed; its packets before the failure were sent.
    pub fn stop(mut self) -> Result<ExchangeReport, SourceError> {
        self.shared.stop.store(true, Ordering::Release);
        let played = self.player.take().map_or(Ok(Ok(())), JoinHandle::join);
        let report = self.report();
        played.unwrap_or(Err(SourceError::Panicked))?;
        Ok(report)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

/// A copy in transit: due time in ns, order among copies that are due at the same time, line, bytes.
type Due = Reverse<(u64, u64, usize, Arc<[u8]>)>;

struct Player {
    source: Source,
    outputs: Vec<Output>,
    impaired: ImpairedLines<Arc<[u8]>>,
    /// Copies in transit; the one that is due first is on top.
    due: BinaryHeap<Due>,
    number: u64,
    history: Option<Arc<History>>,
    pace: Pace,
    shared: Arc<PlayerState>,
}

/// Heartbeats sent after the last packet. They announce the next sequence, so that receivers notice a loss at the end.
/// There are enough of them even if some are lost.
const CLOSING_HEARTBEATS: u32 = 20;
/// Interval between closing heartbeats, ns.
const CLOSING_HEARTBEAT_INTERVAL_NS: u64 = 50_000_000;

impl Player {
    fn run(mut self) -> Result<(), SourceError> {
        let start_ns = mono_now().0;
        let mut pacer = Pacer::new(self.pace, start_ns);
        let mut outcome = Ok(());
        while !self.shared.stop.load(Ordering::Acquire) {
            let packet = match self.source.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            let target_ns = pacer.target_ns(packet.time_ns).unwrap_or_else(|| mono_now().0);
            self.send_due_until(target_ns);
            self.wait_until(target_ns);
            self.play(&packet, target_ns);
        }
        self.finish();
        self.shared.done.store(true, Ordering::Release);
        outcome
    }

    fn play(&mut self, packet: &SourcePacket, target_ns: u64) {
        // Recorded before sending: a message can be requested before any receiver can miss it.
        if let Some(history) = &self.history {
            history.record(&packet.bytes);
        }
        self.shared.packets.fetch_add(1, Ordering::Relaxed);
        self.shared.messages.fetch_add(packet.message_count, Ordering::Relaxed);
        let Self { impaired, due, number, .. } = self;
        impaired.transmit(&packet.bytes, |line, skew_ns, bytes| {
            due.push(Reverse((target_ns + skew_ns, *number, line, Arc::clone(bytes))));
            *number += 1;
        });
    }

    /// Sends the copies that are due up to `target_ns`, each at its time. If the exchange is stopped, the copies are
    /// sent at once.
    fn send_due_until(&mut self, target_ns: u64) {
        while let Some(Reverse((due_ns, ..))) = self.due.peek()
            && *due_ns <= target_ns
        {
            let Some(Reverse((due_ns, _, line, bytes))) = self.due.pop() else { return };
            // After a stop, packets already counted are still sent, at once.
            self.wait_until(due_ns);
            self.send(line, &bytes);
        }
    }

    /// Waits; returns whether the exchange was stopped.
    fn wait_until(&self, target_ns: u64) -> bool {
        loop {
            if self.shared.stop.load(Ordering::Acquire) {
                return true;
            }
            let left_ns = target_ns.saturating_sub(mono_now().0);
            match left_ns {
                0 => return false,
                // Sleeping is accurate to some 60 us; the rest is spun.
                1..=80_000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_nanos((left_ns - 60_000).min(50_000_000))),
            }
        }
    }

    fn finish(&mut self) {
        let Self { impaired, due, number, .. } = self;
        let now_ns = mono_now().0;
        impaired.finish(|line, skew_ns, bytes| {
            due.push(Reverse((now_ns + skew_ns, *number, line, Arc::clone(bytes))));
            *number += 1;
        });
        self.send_due_until(u64::MAX);
        for _ in 0..CLOSING_HEARTBEATS {
            let Some(heartbeat) = self.source.end_packet() else { return };
            for line in 0..self.outputs.len() {
                self.send(line, &heartbeat);
            }
            if self.wait_until(mono_now().plus(CLOSING_HEARTBEAT_INTERVAL_NS).0) {
                return;
            }
        }
    }

    fn send(&self, line: usize, bytes: &[u8]) {
        let Some(output) = self.outputs.get(line) else { return };
        let socket = socket2::SockRef::from(&*output.socket);
        let sent = match output.destination {
            Some(destination) => socket.send_to(bytes, &destination.into()),
            None => socket.send(bytes),
        };
        let counter = if sent.is_ok() { &self.shared.copies } else { &self.shared.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
