//! Sees everything that is published: writes it down, judges it, and knows who leads.

use std::{
    fs::File,
    io::{self, BufWriter},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mdgw_captures::capture_file::PcapWriter;
use mdgw_feeds::{
    identity::{Epoch, Sequence, Session},
    published::packet::{Packet, parse_packet},
};
use mdgw_sys::clock::unix_now;
use mdgw_tools::verify::{Place, Seen, Verdict, Verifier, VerifyOptions};
use socket2::{Domain, Protocol, Socket, Type};

use super::Leader;

/// A receiver on a thread of its own.
#[derive(Debug)]
pub(super) struct Witness {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<Verdict>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    sight: Mutex<Sight>,
    changed: Condvar,
}

/// Who leads, and what the last change cost.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    epoch: Option<Epoch>,
    /// How far content has come, whoever said it.
    reached: Option<(Session, Sequence)>,
    /// When the last packet came, ns since 1970 UTC.
    packet_ns: u64,
    /// The present epoch has said nothing new yet: when the one before was last heard.
    waits_since_ns: Option<u64>,
    blackout: Duration,
}

impl Witness {
    pub(super) fn start(group: SocketAddrV4, capture: &Path) -> anyhow::Result<Self> {
        let socket = open(group).with_context(|| format!("join {group}"))?;
        let file = File::create(capture).with_context(|| format!("write {}", capture.display()))?;
        let writer = PcapWriter::new(BufWriter::new(file))?;
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mdgw-witness".to_owned())
            .spawn(move || of_thread.look(&socket, group, writer))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn leader(&self) -> Option<Leader> {
        self.shared.lock().leader()
    }

    /// Waits until a later leader has said something new; what the change cost.
    pub(super) fn wait_for_content_after(
        &self,
        before: Leader,
        patience: Duration,
    ) -> anyhow::Result<(Leader, Duration)> {
        let deadline = Instant::now() + patience;
        let mut sight = self.shared.lock();
        loop {
            if let Some(leader) = sight.leader().filter(|leader| leader.epoch > before.epoch)
                && sight.waits_since_ns.is_none()
            {
                return Ok((leader, sight.blackout));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("nobody took over for {} s; the gateways' logs tell why", patience.as_secs());
            }
            sight = self.shared.changed.wait_timeout(sight, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn stop(mut self) -> anyhow::Result<Verdict> {
        self.shared.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { bail!("the witness has ended") };
        let judged = thread.join().map_err(|_| anyhow::anyhow!("the witness panicked"))?;
        judged.context("write the capture of the output")
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

impl Shared {
    fn look(
        &self,
        socket: &UdpSocket,
        group: SocketAddrV4,
        mut writer: PcapWriter<BufWriter<File>>,
    ) -> io::Result<Verdict> {
        let mut verifier = Verifier::new(VerifyOptions::default());
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let mut number = 0;
        loop {
            // Asked before, so that what lay in the socket then is still seen.
            let is_last = self.stop.load(Ordering::Acquire);
            while let Ok(length) = socket.recv(&mut datagram) {
                let (time_ns, payload) = (unix_now().0, datagram.get(..length).unwrap_or_default());
                number += 1;
                writer.datagram(time_ns, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), group, payload)?;
                let place = Place { file: 0, number };
                verifier.accept(&Seen { place, time_ns, dst: SocketAddr::V4(group), payload });
                if let Ok(packet) = parse_packet(payload) {
                    self.lock().see(&packet, time_ns);
                    self.changed.notify_all();
                }
            }
            if is_last {
                writer.finish()?;
                return Ok(verifier.finish());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sight> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sight {
    fn leader(&self) -> Option<Leader> {
        self.epoch.map(|epoch| Leader { node: epoch.node(), epoch: epoch.count() })
    }

    fn see(&mut self, packet: &Packet<'_>, time_ns: u64) {
        let meta = &packet.meta;
        if self.epoch.is_some_and(|epoch| meta.epoch < epoch) {
            return;
        }
        if self.epoch.is_some_and(|epoch| meta.epoch > epoch) {
            self.waits_since_ns.get_or_insert(self.packet_ns);
        }
        (self.epoch, self.packet_ns) = (Some(meta.epoch), time_ns);
        let reached = (meta.session, meta.next);
        if packet.frame_count > 0 && self.reached.is_none_or(|before| reached > before) {
            self.reached = Some(reached);
            if let Some(since_ns) = self.waits_since_ns.take() {
                self.blackout = Duration::from_nanos(time_ns.saturating_sub(since_ns));
            }
        }
    }
}

fn open(group: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind(&group.into())?;
    socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket.into())
}

const DATAGRAM_BYTES_MAX: usize = 2_048;
/// The witness must not lose what it judges.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
