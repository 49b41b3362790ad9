//! Replays captures to the network: each datagram at its time, to its own address or another.

mod address;
mod in_transit;
mod report;

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, SocketAddrV4},
    ops::ControlFlow,
    time::Duration,
};

use mdgw_captures::{
    capture_file::CaptureError,
    pacer::{Pace, Pacer},
};
use mdgw_feeds::time::MonoNs;
use mdgw_sys::{
    clock::mono_now,
    sockets::{Interface, OutputOptions, SocketError, open_output},
};
use socket2::Socket;

pub use self::address::{AddressMap, AddressRewrite, InvalidRewrite};
pub use self::in_transit::{LineSendCounts, Rehearsal};
pub use self::report::{Lateness, WireSummary};
use self::{in_transit::PacketsInTransit, report::Timing};
use super::capture_merge::CaptureMerge;

/// Options of sending.
#[derive(Clone, Debug)]
pub struct WireOptions {
    /// Pace of the packets.
    pub pace: Pace,
    /// Destination addresses.
    pub addresses: AddressMap,
    /// Outgoing interface for multicast; `None` leaves the choice to the routing table.
    pub interface: Option<Interface>,
    /// Multicast TTL.
    pub ttl: u8,
    /// Number of rounds; 0: until the caller breaks off.
    pub rounds: u64,
    /// Rehearsal: send each packet on these lines instead of one address, with these impairments.
    pub rehearsal: Option<Rehearsal>,
}

/// Progress of a replay.
#[derive(Clone, Copy, Debug)]
pub struct WireProgress {
    /// Bytes of the files on disk read in this round.
    pub file_bytes: u64,
}

/// Errors of a replay. Damage inside a capture is reported in the summary.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A capture could not be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A socket could not be opened.
    #[error("replay: cannot open a socket")]
    Socket(#[from] SocketError),
    /// A datagram could not be sent.
    #[error("send to {destination}")]
    Send {
        /// Destination address.
        destination: SocketAddrV4,
        /// Error of the system.
        source: io::Error,
    },
    /// The captures contain no packets.
    #[error("replay: no packets in {0}")]
    NoPackets(String),
    /// A file has no addresses, and no destination was given.
    #[error("replay: {path} has no addresses: give the destination with --to ADDR:PORT")]
    NoAddress {
        /// Path of the file.
        path: String,
    },
    /// The destination is not IPv4.
    #[error("replay: cannot send to {0}: only IPv4 is supported; rewrite it with --to or --map")]
    NotIpv4(SocketAddr),
}

/// Sends all captures that `open` opens, once for each round. If `on_progress` breaks off, the summary covers the
/// packets sent so far.
///
/// # Errors
/// See [`WireError`].
pub fn run(
    open: impl Fn() -> Result<CaptureMerge, CaptureError>,
    options: &WireOptions,
    on_progress: &mut dyn FnMut(WireProgress) -> ControlFlow<()>,
) -> Result<WireSummary, WireError> {
    run_observed(open, options, on_progress, &mut |_, _| {})
}

/// As [`run`], with an observer: for each packet that has an intended time, `sent` gets its destination and that time.
///
/// # Errors
/// See [`WireError`].
pub(crate) fn run_observed(
    open: impl Fn() -> Result<CaptureMerge, CaptureError>,
    options: &WireOptions,
    on_progress: &mut dyn FnMut(WireProgress) -> ControlFlow<()>,
    sent: &mut dyn FnMut(SocketAddrV4, MonoNs),
) -> Result<WireSummary, WireError> {
    let mut pacer = Pacer::new(options.pace, mono_now().0);
    let started = mono_now();
    let mut player = Player {
        sender: Sender { options, sockets: HashMap::new() },
        timing: Timing::new(),
        in_transit: options.rehearsal.as_ref().map(PacketsInTransit::new),
        packets_until_check: PACKETS_PER_CHECK,
        on_progress,
        sent,
    };
    let mut round = 0;
    let (damages, truncated, is_interrupted) = loop {
        let mut merge = open()?;
        let offered_before = player.timing.offered();
        let flow = player.play(&mut merge, &mut pacer)?;
        round += 1;
        let offered = player.timing.offered() - offered_before;
        if offered == 0
            && flow.is_continue()
            && merge.damages().is_empty()
            && merge.files().all(|file| file.counts().frames == 0)
        {
            let files: Vec<String> = merge.files().map(|file| file.path().display().to_string()).collect();
            return Err(WireError::NoPackets(files.join(", ")));
        }
        if flow.is_break() || round == options.rounds || offered == 0 {
            let flow = if flow.is_continue() { player.send_remaining(&merge)? } else { flow };
            let truncated = merge.truncated();
            break (merge.into_damages(), truncated, flow.is_break());
        }
        pacer.begin_round(offered);
    };
    let lines = player.in_transit.as_ref().map_or(&[][..], PacketsInTransit::lines);
    Ok(player.timing.summary(round, mono_now().since(started), &damages, truncated, is_interrupted, lines))
}

/// Sends one packet after the other, each at its time.
struct Player<'a> {
    sender: Sender<'a>,
    timing: Timing,
    in_transit: Option<PacketsInTransit>,
    packets_until_check: u32,
    on_progress: &'a mut dyn FnMut(WireProgress) -> ControlFlow<()>,
    sent: &'a mut dyn FnMut(SocketAddrV4, MonoNs),
}

impl Player<'_> {
    /// Sends one round.
    fn play(&mut self, merge: &mut CaptureMerge, pacer: &mut Pacer) -> Result<ControlFlow<()>, WireError> {
        while merge.advance() {
            let Some((file, datagram)) = merge.current() else { break };
            let target = pacer.target_ns(datagram.time_ns).map(MonoNs);
            self.timing.count_offered();
            let flow = if let Some(in_transit) = &mut self.in_transit {
                let due_ns = target.unwrap_or_else(mono_now).0;
                in_transit.offer(file, due_ns, datagram.payload);
                self.arrive(due_ns, target.is_some(), merge)?
            } else {
                let destination = self.sender.destination(file, datagram.dst, merge)?;
                self.send_at(destination, target, datagram.payload, merge)?
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// After the last round: delivers the copies still in transit.
    fn send_remaining(&mut self, merge: &CaptureMerge) -> Result<ControlFlow<()>, WireError> {
        let Some(in_transit) = &mut self.in_transit else { return Ok(ControlFlow::Continue(())) };
        in_transit.finish(mono_now().0);
        self.arrive(u64::MAX, true, merge)
    }

    /// Sends the copies that are due up to this time.
    fn arrive(&mut self, until_ns: u64, is_paced: bool, merge: &CaptureMerge) -> Result<ControlFlow<()>, WireError> {
        while let Some(copy) = self.in_transit.as_mut().and_then(|in_transit| in_transit.next_due(until_ns)) {
            let target = is_paced.then_some(MonoNs(copy.due_ns));
            let flow = self.send_at(copy.destination, target, &copy.payload, merge)?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Waits for the packet's time and sends it.
    fn send_at(
        &mut self,
        destination: SocketAddrV4,
        target: Option<MonoNs>,
        payload: &[u8],
        merge: &CaptureMerge,
    ) -> Result<ControlFlow<()>, WireError> {
        let mut check = || (self.on_progress)(WireProgress { file_bytes: merge.file_bytes_read() });
        self.packets_until_check -= 1;
        if self.packets_until_check == 0 {
            self.packets_until_check = PACKETS_PER_CHECK;
            if check().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if let Some(target) = target
            && wait_until(target, &mut check).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        // Taken before the call: the packet has left when the call returns.
        let late_ns = target.map(|target| mono_now().since(target));
        self.sender.send(destination, payload)?;
        self.timing.sent(payload.len(), late_ns);
        if let Some(target) = target {
            (self.sent)(destination, target);
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Sleeps until shortly before the target and spins the rest: sleep alone is late by the timer slack.
fn wait_until(target: MonoNs, check: &mut dyn FnMut() -> ControlFlow<()>) -> ControlFlow<()> {
    loop {
        let left_ns = target.since(mono_now());
        if left_ns == 0 {
            return ControlFlow::Continue(());
        }
        if left_ns <= SPIN_NS {
            std::hint::spin_loop();
            continue;
        }
        if left_ns > CHECK_INTERVAL_NS {
            check()?;
        }
        std::thread::sleep(Duration::from_nanos((left_ns - SPIN_NS).min(CHECK_INTERVAL_NS)));
    }
}

/// One socket for each destination.
struct Sender<'a> {
    options: &'a WireOptions,
    sockets: HashMap<SocketAddrV4, (Socket, Option<SocketAddrV4>)>,
}

impl Sender<'_> {
    fn destination(&self, file: usize, dst: SocketAddr, merge: &CaptureMerge) -> Result<SocketAddrV4, WireError> {
        match self.options.addresses.rewrite(file, dst) {
            SocketAddr::V4(address) if address.ip().is_unspecified() => Err(WireError::NoAddress {
                path: merge.files().nth(file).map(|file| file.path().display().to_string()).unwrap_or_default(),
            }),
            SocketAddr::V4(address) => Ok(address),
            address @ SocketAddr::V6(_) => Err(WireError::NotIpv4(address)),
        }
    }

    fn send(&mut self, destination: SocketAddrV4, payload: &[u8]) -> Result<(), WireError> {
        if !self.sockets.contains_key(&destination) {
            self.open(destination)?;
        }
        let Some((socket, address)) = self.sockets.get(&destination) else { return Ok(()) };
        loop {
            let sent = match address {
                None => socket.send(payload),
                Some(address) => socket.send_to(payload, &(*address).into()),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(WireError::Send { destination, source }),
            }
        }
    }

    #[cold]
    fn open(&mut self, destination: SocketAddrV4) -> Result<(), WireError> {
        let options =
            OutputOptions { ttl: self.options.ttl, ..OutputOptions::new(destination, self.options.interface.clone()) };
        let output = open_output(&options)?;
        let source = |source| WireError::Send { destination, source };
        let socket = Socket::from(output.socket.try_clone().map_err(source)?);
        // Waits while the send buffer is full: the pace slows down, and the report shows the delay.
        socket.set_nonblocking(false).map_err(source)?;
        self.sockets.insert(destination, (socket, output.destination));
        Ok(())
    }
}

/// Longest spin before a packet. Covers the kernel's timer slack (50 us) and the exit from an idle state.
const SPIN_NS: u64 = 200_000;
/// Interval between two progress calls.
const CHECK_INTERVAL_NS: u64 = 50_000_000;
/// Packets between two progress calls while packets leave without waiting.
const PACKETS_PER_CHECK: u32 = 1_024;

#[cfg(test)]
mod tests;
