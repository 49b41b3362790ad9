//! Packets so far ahead that only more of their line make them credible: kept until that is known.

use super::HeldDatagrams;
use crate::{
    arbiter::JUMP_CONFIRMATIONS,
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
    transport::Packet,
};

/// Of each line the latest ones in a row that continue each other; allocated once.
#[derive(Debug)]
pub struct UnconfirmedJumps {
    runs: [JumpRun; Line::COUNT_MAX],
    /// Whether there is any.
    has_any: bool,
    /// When the last one came, if nothing has come since that would speak against it.
    uncontradicted_since: Option<MonoNs>,
}

#[derive(Debug)]
struct JumpRun {
    packets: HeldDatagrams,
    first: Sequence,
    next: Sequence,
}

impl UnconfirmedJumps {
    /// Room for datagrams of so many bytes.
    #[must_use]
    pub fn new(datagram_bytes_max: usize) -> Self {
        let row = || JumpRun {
            packets: HeldDatagrams::of(RUN_PACKETS_MAX, datagram_bytes_max),
            first: Sequence(0),
            next: Sequence(0),
        };
        Self { runs: std::array::from_fn(|_| row()), has_any: false, uncontradicted_since: None }
    }

    /// Whether there is any: nothing else needs to be asked then.
    #[inline]
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.has_any
    }

    /// A packet was refused for its place. It stays with those of its line that it continues, else in their stead.
    pub fn hold(&mut self, line: Line, packet: &Packet<'_>, ts_recv: UnixNs, datagram: &[u8], now: MonoNs) {
        let Some(row) = self.runs.get_mut(usize::from(line.0)) else { return };
        if row.packets.is_empty() || row.next != packet.first {
            row.packets.clear();
            row.first = packet.first;
        }
        if row.packets.hold(line, ts_recv, datagram) {
            row.next = packet.next();
            self.has_any = true;
            self.uncontradicted_since = Some(now);
        }
    }

    /// Whether what begins at `first` continues those of its line.
    #[inline]
    #[must_use]
    pub fn is_continued(&self, line: Line, first: Sequence) -> bool {
        let is_continued = |row: &JumpRun| !row.packets.is_empty() && row.next == first;
        self.has_any && self.runs.get(usize::from(line.0)).is_some_and(is_continued)
    }

    /// Something came on the line that was taken as it is, or for a copy: it speaks against those that it doesn't continue.
    pub fn contradict(&mut self, line: Line) {
        if let Some(row) = self.runs.get_mut(usize::from(line.0)) {
            row.packets.clear();
        }
        self.uncontradicted_since = None;
        self.has_any = self.runs.iter().any(|row| !row.packets.is_empty());
    }

    /// Those of a line, now that they are believed, and where they begin. To be [put back](Self::return_buffer).
    pub fn take(&mut self, line: Line) -> Option<(Sequence, HeldDatagrams)> {
        let row = self.runs.get_mut(usize::from(line.0)).filter(|row| !row.packets.is_empty())?;
        Some((row.first, std::mem::replace(&mut row.packets, HeldDatagrams::with_capacity(0))))
    }

    /// The memory of what was [taken](Self::take).
    pub fn return_buffer(&mut self, line: Line, mut packets: HeldDatagrams) {
        packets.clear();
        if let Some(row) = self.runs.get_mut(usize::from(line.0)) {
            row.packets = packets;
        }
        self.has_any = self.runs.iter().any(|row| !row.packets.is_empty());
    }

    /// When the latest ones are believed if nothing comes any more: venues send heartbeats every second, so after
    /// [`CONFIRMATION_SILENCE_NS`] nothing will speak against them.
    #[must_use]
    pub fn deadline(&self) -> Option<MonoNs> {
        self.uncontradicted_since.map(|uncontradicted_since| uncontradicted_since.plus(CONFIRMATION_SILENCE_NS))
    }

    /// Whether the latest ones came last of all. They don't any more.
    pub fn take_uncontradicted(&mut self) -> bool {
        self.uncontradicted_since.take().is_some()
    }

    /// Another session begins.
    pub fn clear(&mut self) {
        self.runs.iter_mut().for_each(|row| row.packets.clear());
        (self.has_any, self.uncontradicted_since) = (false, None);
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|row| row.packets.bytes()).sum()
    }
}

/// The one after these confirms them.
const RUN_PACKETS_MAX: usize = JUMP_CONFIRMATIONS as usize - 1;
/// Silence after which what came last is believed, ns: three heartbeats.
pub const CONFIRMATION_SILENCE_NS: u64 = 3_000_000_000;
