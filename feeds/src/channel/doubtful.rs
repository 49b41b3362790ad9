//! Packets so far ahead that only more of their line make them credible: kept until that is known.

use super::Ahead;
use crate::{
    arbiter::JUMP_CONFIRMATIONS,
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
    transport::Packet,
};

/// Of each line the latest ones in a row that continue each other; allocated once.
#[derive(Debug)]
pub struct Doubtful {
    rows: [Row; Line::COUNT_MAX],
    /// Whether there is any.
    is_any: bool,
    /// When the last one came, if nothing has come since that would speak against it.
    last_word: Option<MonoNs>,
}

#[derive(Debug)]
struct Row {
    packets: Ahead,
    first: Sequence,
    next: Sequence,
}

impl Doubtful {
    /// Room for datagrams of so many bytes.
    #[must_use]
    pub fn new(datagram_bytes_max: usize) -> Self {
        let row =
            || Row { packets: Ahead::of(ROW_PACKETS_MAX, datagram_bytes_max), first: Sequence(0), next: Sequence(0) };
        Self { rows: std::array::from_fn(|_| row()), is_any: false, last_word: None }
    }

    /// Whether there is any: nothing else needs to be asked then.
    #[inline]
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// A packet was refused for its place. It stays with those of its line that it continues, else in their stead.
    pub fn hold(&mut self, line: Line, packet: &Packet<'_>, ts_recv: UnixNs, datagram: &[u8], now: MonoNs) {
        let Some(row) = self.rows.get_mut(usize::from(line.0)) else { return };
        if row.packets.is_empty() || row.next != packet.first {
            row.packets.clear();
            row.first = packet.first;
        }
        if row.packets.hold(line, ts_recv, datagram) {
            row.next = packet.next();
            self.is_any = true;
            self.last_word = Some(now);
        }
    }

    /// Whether what begins at `first` continues those of its line.
    #[inline]
    #[must_use]
    pub fn is_continued(&self, line: Line, first: Sequence) -> bool {
        let is_continued = |row: &Row| !row.packets.is_empty() && row.next == first;
        self.is_any && self.rows.get(usize::from(line.0)).is_some_and(is_continued)
    }

    /// Something came on the line that was taken as it is, or for a copy: it speaks against those that it doesn't continue.
    pub fn contradict(&mut self, line: Line) {
        if let Some(row) = self.rows.get_mut(usize::from(line.0)) {
            row.packets.clear();
        }
        self.last_word = None;
        self.is_any = self.rows.iter().any(|row| !row.packets.is_empty());
    }

    /// Those of a line, now that they are believed, and where they begin. To be [put back](Self::put_back).
    pub fn take(&mut self, line: Line) -> Option<(Sequence, Ahead)> {
        let row = self.rows.get_mut(usize::from(line.0)).filter(|row| !row.packets.is_empty())?;
        Some((row.first, std::mem::replace(&mut row.packets, Ahead::with_room(0))))
    }

    /// The memory of what was [taken](Self::take).
    pub fn put_back(&mut self, line: Line, mut packets: Ahead) {
        packets.clear();
        if let Some(row) = self.rows.get_mut(usize::from(line.0)) {
            row.packets = packets;
        }
        self.is_any = self.rows.iter().any(|row| !row.packets.is_empty());
    }

    /// When the latest ones are believed if nothing comes any more: venues send heartbeats every second, so after
    /// [`DOUBT_NS`] nothing will speak against them.
    #[must_use]
    pub fn deadline(&self) -> Option<MonoNs> {
        self.last_word.map(|last_word| last_word.plus(DOUBT_NS))
    }

    /// Whether the latest ones came last of all. They don't any more.
    pub fn take_last_word(&mut self) -> bool {
        self.last_word.take().is_some()
    }

    /// Another session begins.
    pub fn clear(&mut self) {
        self.rows.iter_mut().for_each(|row| row.packets.clear());
        (self.is_any, self.last_word) = (false, None);
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.packets.bytes()).sum()
    }
}

/// The one after these confirms them.
const ROW_PACKETS_MAX: usize = JUMP_CONFIRMATIONS as usize - 1;
/// Silence after which what came last is believed, ns: three heartbeats.
pub const DOUBT_NS: u64 = 3_000_000_000;
