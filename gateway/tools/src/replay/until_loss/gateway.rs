//! Losses of a gateway on this host: packets dropped by its sockets, and messages in gaps that it declared. Also its
//! wire to wire latency, as reported for each of its intervals.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mdgw_feeds::time::MonoNs;
use mdgw_status::{
    control::{Request, send_request},
    snapshot::{Snapshot, StageSnapshot},
};
use mdgw_telemetry::stages::Stage;

use super::{LossCounter, SinkTotals, host::HostDrops};
use crate::replay::wire::Lateness;

/// A gateway with a control socket.
#[derive(Debug)]
pub(super) struct GatewayLosses {
    host: HostDrops,
    socket: PathBuf,
    /// Messages in gaps declared before the first packet was sent.
    baseline: u64,
    gap_messages: u64,
    /// Wire to wire latency of each channel and interval.
    intervals: Vec<LatencyInterval>,
    refreshed_at: Instant,
}

/// Latency interval of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LatencyInterval {
    channel: u16,
    stage: StageSnapshot,
}

impl GatewayLosses {
    pub(super) fn of(socket: &Path, destinations: &BTreeSet<SocketAddrV4>) -> io::Result<Self> {
        let baseline = gap_messages(&read_snapshot(socket)?);
        let host = HostDrops::of(destinations)?;
        let intervals = Vec::new();
        Ok(Self { host, socket: socket.to_owned(), baseline, gap_messages: 0, intervals, refreshed_at: Instant::now() })
    }

    /// A destination without listener, if any.
    pub(super) fn destination_without_listener(&self) -> Option<SocketAddrV4> {
        self.host.destination_without_listener()
    }

    fn refresh(&mut self) -> io::Result<Snapshot> {
        let snapshot = read_snapshot(&self.socket)?;
        self.refreshed_at = Instant::now();
        self.gap_messages = gap_messages(&snapshot).saturating_sub(self.baseline);
        for channel in &snapshot.channels {
            let Some(stage) = channel.stage(Stage::WireToWire.name()) else { continue };
            // The same interval appears in many answers.
            let last = self.intervals.iter().rev().find(|intervals| intervals.channel == channel.id);
            if last.is_none_or(|last| last.stage != *stage) && self.intervals.len() < INTERVALS_MAX {
                self.intervals.push(LatencyInterval { channel: channel.id, stage: stage.clone() });
            }
        }
        Ok(snapshot)
    }
}

impl LossCounter for GatewayLosses {
    fn sent(&mut self, _destination: SocketAddrV4, _intended: MonoNs, _step: u32) {}

    fn dropped(&mut self) -> io::Result<u64> {
        self.host.dropped()
    }

    fn gap_messages(&mut self) -> io::Result<Option<u64>> {
        if self.refreshed_at.elapsed() >= POLL_INTERVAL {
            self.refresh()?;
        }
        Ok(Some(self.gap_messages))
    }

    fn gateway_latency(&self, begin: MonoNs, end: MonoNs) -> Option<Lateness> {
        let within = |stage: &&StageSnapshot| begin.0 <= stage.begin_ns && stage.end_ns <= end.0 && stage.count > 0;
        let worst =
            self.intervals.iter().map(|intervals| &intervals.stage).filter(within).max_by_key(|stage| stage.p99_ns);
        worst.map(|stage| Lateness {
            p50_ns: stage.p50_ns,
            p99_ns: stage.p99_ns,
            p999_ns: stage.p999_ns,
            max_ns: stage.max_ns,
        })
    }

    /// Waits until no more packets arrive and no gap is open: by then missing messages were declared.
    fn finish_counting(&mut self, _sent: u64) -> io::Result<Option<SinkTotals>> {
        let started = Instant::now();
        let mut last = self.refresh()?;
        while started.elapsed() < LAST_COUNTS_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
            let now = self.refresh()?;
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

    fn description(&self) -> &'static str {
        "drops of the sockets bound to the destinations (/proc/net/udp), and messages in gaps that the gateway declared"
    }
}

fn gap_messages(snapshot: &Snapshot) -> u64 {
    snapshot.channels.iter().map(|channel| channel.gap_messages).sum()
}

fn read_snapshot(socket: &Path) -> io::Result<Snapshot> {
    let value = send_request(socket, &Request::Snapshot {}).map_err(io::Error::other)?;
    Ok(serde_json::from_value(value)?)
}

/// Interval between two queries while packets are sent.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longer than any sensible gap timeout; heartbeats of other feeds may go on forever.
const LAST_COUNTS_TIMEOUT: Duration = Duration::from_secs(3);
/// Intervals remembered: some hours of the shortest ones.
const INTERVALS_MAX: usize = 100_000;
