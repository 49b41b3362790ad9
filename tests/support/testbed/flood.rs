//! Floods of junk on the addresses of a pair, from one more host on its network. That host holds no key.
//!
//! Each datagram and each connection is counted with the reasons for which its recipient may refuse it, so that a test can
//! compare what was sent with what was counted.

mod connections;
mod junk;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mdgw_captures::random::Random;
use socket2::{Domain, Socket, Type};

use self::junk::{JunkMaker, Knowledge, Source};
use super::{LINES, LINK_PORT, OUTPUT, RETRANSMISSION_PORT, Testbed, VOTE_PORT, address};

/// Listeners that are flooded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FloodTarget {
    /// The groups of the venue's lines.
    FeedGroups,
    /// The group of the gateways' output.
    OutputGroups,
    /// The retransmission services, by requests that are junk or ask for huge ranges.
    Retransmission,
    /// The pair links, by datagrams and by connections.
    PairLink,
    /// The sockets for votes, of gateways and witnesses.
    Votes,
}

impl FloodTarget {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::FeedGroups, Self::OutputGroups, Self::Retransmission, Self::PairLink, Self::Votes];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FeedGroups => "feed groups",
            Self::OutputGroups => "output groups",
            Self::Retransmission => "retransmission",
            Self::PairLink => "pair link",
            Self::Votes => "votes",
        }
    }
}

/// How much junk is sent.
#[derive(Clone, Copy, Debug)]
pub struct FloodOptions {
    /// Datagrams in a second to each target.
    pub datagrams_per_second: u64,
    /// Connections in a second to each pair link.
    pub connections_per_second: u64,
    /// Whether a part of the junk comes under addresses of other hosts: those of gateways and of receivers.
    pub forges_addresses: bool,
}

/// Junk that was sent to one recipient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentJunk {
    /// Datagrams and connections that the recipient must refuse.
    pub refusable: u64,
    /// Those that it may count as normal: copies of what it has, requests that it answers.
    pub others: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Every reason for which the recipient may refuse any of it.
    pub reasons: BTreeSet<&'static str>,
}

impl SentJunk {
    fn add(&mut self, reasons: &[&'static str], bytes: u64) {
        if reasons.is_empty() {
            self.others += 1;
        } else {
            self.refusable += 1;
        }
        self.bytes += bytes;
        self.reasons.extend(reasons);
    }
}

/// What was sent: by target and node id. Junk on a group reaches every gateway, and counts for node 0.
pub type SentByTarget = BTreeMap<(FloodTarget, u8), SentJunk>;

/// What the threads of a flood have sent so far.
#[derive(Clone, Debug, Default)]
struct SentSoFar(Arc<Mutex<SentByTarget>>);

impl SentSoFar {
    fn add(&self, recipient: (FloodTarget, u8), reasons: &[&'static str], bytes: u64) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.entry(recipient).or_default().add(reasons, bytes);
    }

    fn get(&self) -> SentByTarget {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running flood. Dropping it ends it.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: SentSoFar,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Starts to flood these targets. The venue's session must be open, and something must have been published.
    ///
    /// # Panics
    /// When a socket can't be opened.
    #[must_use]
    pub fn start(testbed: &Testbed, targets: &[FloodTarget], options: &FloodOptions) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), SentSoFar::default());
        let host = testbed.flooder();
        let knowledge = Knowledge::of(testbed);
        let gateways: Vec<u8> = testbed.nodes().collect();
        let mut threads = Vec::new();
        for target in targets {
            let recipients = recipients(*target, testbed);
            let (stop, namespace, own, options) = (Arc::clone(&stop), host.namespace.clone(), host.address, *options);
            let maker = JunkMaker::new(*target, knowledge, options.forges_addresses);
            let (gateways, sent) = (gateways.clone(), sent.clone());
            let flooder = DatagramFlooder { target: *target, recipients, gateways, maker, sent };
            threads.push(std::thread::spawn(move || {
                namespace.enter();
                flooder.run(own, options.datagrams_per_second, &stop)
            }));
        }
        if targets.contains(&FloodTarget::PairLink) {
            for node in gateways {
                let (stop, sent, namespace) = (Arc::clone(&stop), sent.clone(), host.namespace.clone());
                let (to, per_second) = (SocketAddrV4::new(address(node), LINK_PORT), options.connections_per_second);
                threads.push(std::thread::spawn(move || {
                    namespace.enter();
                    let on_sent = |reasons: &[_], bytes| sent.add((FloodTarget::PairLink, node), reasons, bytes);
                    connections::flood(to, per_second, &stop, on_sent);
                }));
            }
        }
        Self { stop, sent, threads }
    }

    /// Ends the flood, and returns what was sent. Every connection has been closed by then.
    ///
    /// # Panics
    /// When a thread has failed.
    #[must_use]
    pub fn finish(mut self) -> SentByTarget {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("the flooder floods");
        }
        self.sent.get()
    }

    /// What was sent so far.
    #[must_use]
    pub fn sent(&self) -> SentByTarget {
        self.sent.get()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Node ids and addresses of the listeners of a target. Node 0: a group.
fn recipients(target: FloodTarget, testbed: &Testbed) -> Vec<(u8, SocketAddrV4)> {
    let at = |port: u16| move |node: u8| (node, SocketAddrV4::new(address(node), port));
    match target {
        FloodTarget::FeedGroups => LINES.map(|line| (0, line)).into(),
        FloodTarget::OutputGroups => vec![(0, OUTPUT)],
        FloodTarget::Retransmission => testbed.nodes().map(at(RETRANSMISSION_PORT)).collect(),
        FloodTarget::PairLink => testbed.nodes().map(at(LINK_PORT)).collect(),
        FloodTarget::Votes => testbed.nodes().chain(testbed.witness_nodes()).map(at(VOTE_PORT)).collect(),
    }
}

struct DatagramFlooder {
    target: FloodTarget,
    recipients: Vec<(u8, SocketAddrV4)>,
    gateways: Vec<u8>,
    maker: JunkMaker,
    sent: SentSoFar,
}

impl DatagramFlooder {
    /// Sends junk at that rate until `stop`. After a delay it does not catch up.
    fn run(mut self, own: Ipv4Addr, per_second: u64, stop: &AtomicBool) {
        let mut random = Random::new(FLOOD_SEED + self.target as u64);
        let mut sockets: BTreeMap<Ipv4Addr, UdpSocket> = BTreeMap::new();
        let (begun, mut number) = (Instant::now(), 0);
        while !stop.load(Ordering::Relaxed) {
            let elapsed_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            let due = elapsed_us.saturating_mul(per_second) / 1_000_000;
            for turn in number.max(due.saturating_sub(BURST_DATAGRAMS_MAX))..due {
                let recipients = self.recipients.len() as u64;
                let index = usize::try_from(turn % recipients).unwrap_or_default();
                let (node, to) = self.recipients[index];
                let junk = self.maker.make(turn / recipients, &mut random);
                let from = match junk.source {
                    Source::Own => own,
                    // The first other gateway; a witness has only others.
                    Source::Peer => address(*self.gateways.iter().find(|peer| **peer != node).unwrap_or(&1)),
                    Source::Other(last) => address(last),
                };
                let socket = sockets.entry(from).or_insert_with(|| socket_from(from, own));
                if socket.send_to(&junk.bytes, to).is_ok() {
                    self.sent.add((self.target, node), junk.reasons, junk.bytes.len() as u64);
                }
            }
            number = due;
            std::thread::sleep(TICK);
        }
    }
}

/// A socket that sends from that address, whether it is one of this host or not.
fn socket_from(from: Ipv4Addr, own: Ipv4Addr) -> UdpSocket {
    let open = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        if from != own {
            socket.set_ip_transparent_v4(true)?;
        }
        socket.set_multicast_if_v4(&own)?;
        socket.bind(&SocketAddrV4::new(from, 0).into())?;
        Ok::<_, std::io::Error>(socket)
    };
    open().expect("root may send from any address").into()
}

const FLOOD_SEED: u64 = 20_261_125;
/// Most datagrams of a target that are sent without a pause.
const BURST_DATAGRAMS_MAX: u64 = 64;
const TICK: Duration = Duration::from_millis(1);
