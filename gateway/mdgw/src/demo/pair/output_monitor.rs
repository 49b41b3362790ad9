//! Receives the published output: writes it to a capture, verifies it, and tracks the leader.

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
use mdgw_tools::verify::{CapturedPacket, Location, Verdict, Verifier, VerifyOptions};
use socket2::{Domain, Protocol, Socket, Type};

use super::Leader;

/// A receiver on a separate thread.
#[derive(Debug)]
pub(super) struct OutputMonitor {
    shared: Arc<MonitorState>,
    thread: Option<JoinHandle<io::Result<Verdict>>>,
}

#[derive(Debug, Default)]
struct MonitorState {
    stop: AtomicBool,
    state: Mutex<ObservedOutput>,
    changed: Condvar,
}

/// The current leader and the blackout of the last change.
#[derive(Clone, Copy, Debug, Default)]
struct ObservedOutput {
    epoch: Option<Epoch>,
    /// End of the content received so far, from any leader.
    received_through: Option<(Session, Sequence)>,
    /// Receive time of the last packet, ns since 1970 UTC.
    packet_ns: u64,
    /// Set while the current epoch has not published new content: receive time of the last packet of the previous
    /// epoch.
    blackout_since_ns: Option<u64>,
    blackout: Duration,
}

impl OutputMonitor {
    pub(super) fn start(group: SocketAddrV4, capture: &Path) -> anyhow::Result<Self> {
        let socket = open(group).with_context(|| format!("join {group}"))?;
        let file = File::create(capture).with_context(|| format!("write {}", capture.display()))?;
        let writer = PcapWriter::new(BufWriter::new(file))?;
        let shared = Arc::new(MonitorState::default());
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mdgw-monitor".to_owned())
            .spawn(move || thread_shared.run_receiver(&socket, group, writer))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn leader(&self) -> Option<Leader> {
        self.shared.lock().leader()
    }

    /// Waits until a later leader has published new content. Returns that leader and the blackout.
    pub(super) fn wait_for_content_after(
        &self,
        before: Leader,
        timeout: Duration,
    ) -> anyhow::Result<(Leader, Duration)> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            if let Some(leader) = state.leader().filter(|leader| leader.epoch > before.epoch)
                && state.blackout_since_ns.is_none()
            {
                return Ok((leader, state.blackout));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no takeover within {} s; see the gateways' logs", timeout.as_secs());
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn stop(mut self) -> anyhow::Result<Verdict> {
        self.shared.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { bail!("the capture thread has ended") };
        let judged = thread.join().map_err(|_| anyhow::anyhow!("the capture thread panicked"))?;
        judged.context("write the capture of the output")
    }
}

impl Drop for OutputMonitor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

impl MonitorState {
    fn run_receiver(
        &self,
        socket: &UdpSocket,
        group: SocketAddrV4,
        mut writer: PcapWriter<BufWriter<File>>,
    ) -> io::Result<Verdict> {
        let mut verifier = Verifier::new(VerifyOptions::default());
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let mut number = 0;
        loop {
            // Read before the loop, so that packets already in the socket are still received.
            let is_last = self.stop.load(Ordering::Acquire);
            while let Ok(length) = socket.recv(&mut datagram) {
                let (time_ns, payload) = (unix_now().0, datagram.get(..length).unwrap_or_default());
                number += 1;
                writer.datagram(time_ns, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), group, payload)?;
                let location = Location { file: 0, number };
                verifier.accept(&CapturedPacket { location, time_ns, dst: SocketAddr::V4(group), payload });
                if let Ok(packet) = parse_packet(payload) {
                    self.lock().observe(&packet, time_ns);
                    self.changed.notify_all();
                }
            }
            if is_last {
                writer.finish()?;
                return Ok(verifier.finish());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ObservedOutput> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedOutput {
    fn leader(&self) -> Option<Leader> {
        self.epoch.map(|epoch| Leader { node: epoch.node(), epoch: epoch.count() })
    }

    fn observe(&mut self, packet: &Packet<'_>, time_ns: u64) {
        let meta = &packet.meta;
        if self.epoch.is_some_and(|epoch| meta.epoch < epoch) {
            return;
        }
        if self.epoch.is_some_and(|epoch| meta.epoch > epoch) {
            self.blackout_since_ns.get_or_insert(self.packet_ns);
        }
        (self.epoch, self.packet_ns) = (Some(meta.epoch), time_ns);
        let received_through = (meta.session, meta.next);
        if packet.frame_count > 0 && self.received_through.is_none_or(|before| received_through > before) {
            self.received_through = Some(received_through);
            if let Some(since_ns) = self.blackout_since_ns.take() {
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
/// Large, since a packet lost here would count as a loss of the gateways.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
