//! Holds packets so far ahead of the expected sequence that only further packets of their line confirm them.

use super::HeldDatagrams;
use crate::transport::Packet;
use mdgw_wire::{
    arbiter::JUMP_CONFIRMATIONS,
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
};

/// For each line the latest run of packets that continue each other. Allocated once.
#[derive(Debug)]
pub struct UnconfirmedJumps {
    runs: [JumpRun; Line::COUNT_MAX],
    /// Whether any line holds a run.
    has_any: bool,
    /// When the latest packet was held. `None` once a packet has arrived that contradicts it.
    uncontradicted_since: Option<MonoNs>,
}

#[derive(Debug)]
struct JumpRun {
    packets: HeldDatagrams,
    first: Sequence,
    next: Sequence,
}

impl UnconfirmedJumps {
    /// With room for datagrams of up to `datagram_bytes_max` bytes.
    #[must_use]
    pub fn new(datagram_bytes_max: usize) -> Self {
        let run = || JumpRun {
            packets: HeldDatagrams::with_datagram_bytes(RUN_PACKETS_MAX, datagram_bytes_max),
            first: Sequence(0),
            next: Sequence(0),
        };
        Self { runs: std::array::from_fn(|_| run()), has_any: false, uncontradicted_since: None }
    }

    /// Whether any packet is held. If not, the caller can skip all other checks.
    #[inline]
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.has_any
    }

    /// Holds a packet that was rejected as a jump. It joins its line's run if it continues it, else it replaces the
    /// run.
    pub fn hold(&mut self, line: Line, packet: &Packet<'_>, ts_recv: UnixNs, datagram: &[u8], now: MonoNs) {
        let Some(run) = self.runs.get_mut(usize::from(line.0)) else { return };
        if run.packets.is_empty() || run.next != packet.first {
            run.packets.clear();
            run.first = packet.first;
        }
        if run.packets.hold(line, ts_recv, datagram) {
            run.next = packet.next();
            self.has_any = true;
            self.uncontradicted_since = Some(now);
        }
    }

    /// Whether a packet that begins at `first` continues its line's run.
    #[inline]
    #[must_use]
    pub fn is_continued(&self, line: Line, first: Sequence) -> bool {
        let is_continued = |run: &JumpRun| !run.packets.is_empty() && run.next == first;
        self.has_any && self.runs.get(usize::from(line.0)).is_some_and(is_continued)
    }

    /// Discards the line's run: a packet was accepted, or counted as a duplicate, that the run does not continue.
    pub fn discard_run(&mut self, line: Line) {
        if let Some(run) = self.runs.get_mut(usize::from(line.0)) {
            run.packets.clear();
        }
        self.uncontradicted_since = None;
        self.has_any = self.runs.iter().any(|run| !run.packets.is_empty());
    }

    /// Takes a confirmed line's run and its first sequence. Hand the buffer [back](Self::return_buffer) afterwards.
    pub fn take_run(&mut self, line: Line) -> Option<(Sequence, HeldDatagrams)> {
        let run = self.runs.get_mut(usize::from(line.0)).filter(|run| !run.packets.is_empty())?;
        Some((run.first, std::mem::replace(&mut run.packets, HeldDatagrams::with_capacity(0))))
    }

    /// Returns the buffer of a run that was [taken](Self::take_run).
    pub fn return_buffer(&mut self, line: Line, mut packets: HeldDatagrams) {
        packets.clear();
        if let Some(run) = self.runs.get_mut(usize::from(line.0)) {
            run.packets = packets;
        }
        self.has_any = self.runs.iter().any(|run| !run.packets.is_empty());
    }

    /// When the latest packets count as confirmed without further input. Venues send heartbeats every second, so
    /// after [`CONFIRMATION_SILENCE_NS`] no packet will contradict them.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<MonoNs> {
        self.uncontradicted_since.map(|uncontradicted_since| uncontradicted_since.plus(CONFIRMATION_SILENCE_NS))
    }

    /// Whether no packet has contradicted the latest run; resets the timer.
    pub fn take_uncontradicted(&mut self) -> bool {
        self.uncontradicted_since.take().is_some()
    }

    /// Forgets all runs: another session begins.
    pub fn clear(&mut self) {
        self.runs.iter_mut().for_each(|run| run.packets.clear());
        (self.has_any, self.uncontradicted_since) = (false, None);
    }

    /// Memory held, bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.packets.bytes()).sum()
    }
}

/// The packet that confirms a run is accepted directly, so it needs no room.
const RUN_PACKETS_MAX: usize = JUMP_CONFIRMATIONS as usize - 1;
/// Silence that confirms the last packets received, ns: three heartbeats.
pub(crate) const CONFIRMATION_SILENCE_NS: u64 = 3_000_000_000;
