//! What a gateway of this host lost: packets that its sockets dropped, and messages in gaps that it declared. And how long it
//! took: wire to wire, as it tells it for each of its intervals.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mdgw_feeds::time::MonoNs;
use mdgw_status::{
    control::{Request, ask},
    snapshot::{Snapshot, StageSnapshot},
};
use mdgw_telemetry::stages::Stage;

use super::{Arrived, Counts, host::HostDrops};
use crate::replay::wire::Lateness;

/// The gateway behind a control socket.
#[derive(Debug)]
pub(super) struct GatewayLosses {
    host: HostDrops,
    socket: PathBuf,
    /// Messages in gaps before anything was sent.
    before: u64,
    gap_messages: u64,
    /// Wire to wire of each channel and interval.
    measured: Vec<Measured>,
    asked: Instant,
}

/// One interval of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Measured {
    channel: u16,
    stage: StageSnapshot,
}

impl GatewayLosses {
    pub(super) fn of(socket: &Path, destinations: &BTreeSet<SocketAddrV4>) -> io::Result<Self> {
        let before = gap_messages(&look(socket)?);
        let host = HostDrops::of(destinations)?;
        let measured = Vec::new();
        Ok(Self { host, socket: socket.to_owned(), before, gap_messages: 0, measured, asked: Instant::now() })
    }

    /// A destination that nobody listens to.
    pub(super) fn unheard(&self) -> Option<SocketAddrV4> {
        self.host.unheard()
    }

    fn ask(&mut self) -> io::Result<Snapshot> {
        let snapshot = look(&self.socket)?;
        self.asked = Instant::now();
        self.gap_messages = gap_messages(&snapshot).saturating_sub(self.before);
        for channel in &snapshot.channels {
            let Some(stage) = channel.stage(Stage::WireToWire.name()) else { continue };
            // One interval is seen many times.
            let last = self.measured.iter().rev().find(|measured| measured.channel == channel.id);
            if last.is_none_or(|last| last.stage != *stage) && self.measured.len() < INTERVALS_MAX {
                self.measured.push(Measured { channel: channel.id, stage: stage.clone() });
            }
        }
        Ok(snapshot)
    }
}

impl Counts for GatewayLosses {
    fn sent(&mut self, _destination: SocketAddrV4, _intended: MonoNs, _step: u32) {}

    fn dropped(&mut self) -> io::Result<u64> {
        self.host.dropped()
    }

    fn gap_messages(&mut self) -> io::Result<Option<u64>> {
        if self.asked.elapsed() >= PERIOD {
            self.ask()?;
        }
        Ok(Some(self.gap_messages))
    }

    fn gateway_latency(&self, begin: MonoNs, end: MonoNs) -> Option<Lateness> {
        let within = |stage: &&StageSnapshot| begin.0 <= stage.begin_ns && stage.end_ns <= end.0 && stage.count > 0;
        let worst =
            self.measured.iter().map(|measured| &measured.stage).filter(within).max_by_key(|stage| stage.p99_ns);
        worst.map(|stage| Lateness {
            p50_ns: stage.p50_ns,
            p99_ns: stage.p99_ns,
            p999_ns: stage.p999_ns,
            max_ns: stage.max_ns,
        })
    }

    /// Until nothing more comes in and no gap is open: what is missing has been declared then.
    fn settle(&mut self, _sent: u64) -> io::Result<Option<Arrived>> {
        let begun = Instant::now();
        let mut last = self.ask()?;
        while begun.elapsed() < PATIENCE {
            std::thread::sleep(PERIOD);
            let now = self.ask()?;
            let datagrams =
                |snapshot: &Snapshot| snapshot.channels.iter().map(|channel| channel.datagrams).sum::<u64>();
            let has_open_gap =
                now.channels.iter().any(|channel| matches!(channel.state.as_str(), "gap" | "recovering"));
            if !has_open_gap && datagrams(&now) == datagrams(&last) {
                break;
            }
            last = now;
        }
        Ok(None)
    }

    fn described(&self) -> &'static str {
        "drops of the sockets bound to the destinations (/proc/net/udp), and messages in gaps that the gateway declared"
    }
}

fn gap_messages(snapshot: &Snapshot) -> u64 {
    snapshot.channels.iter().map(|channel| channel.gap_messages).sum()
}

fn look(socket: &Path) -> io::Result<Snapshot> {
    let value = ask(socket, &Request::Snapshot {}).map_err(io::Error::other)?;
    Ok(serde_json::from_value(value)?)
}

/// Between two questions while packets are sent.
const PERIOD: Duration = Duration::from_millis(50);
/// Longer than any sensible gap time-out; heartbeats of other feeds may come on and on.
const PATIENCE: Duration = Duration::from_secs(3);
/// Intervals that are remembered: some hours of the shortest ones.
const INTERVALS_MAX: usize = 100_000;
