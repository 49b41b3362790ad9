//! Holds datagrams of the next session that arrived before the last messages of the current one.
//!
//! The faster line begins the next session while the slower line still delivers messages of the current session that
//! the faster line lost. The next session waits here until that gap is filled or declared.

use mdgw_wire::{identity::Line, time::UnixNs};

/// Bounded, allocated once, in order of arrival.
#[derive(Debug)]
pub struct HeldDatagrams {
    /// Line, receive time and end offset of each datagram. A datagram begins at the previous one's end.
    held: Vec<(Line, UnixNs, usize)>,
    bytes: Vec<u8>,
}

impl HeldDatagrams {
    /// With room for `datagrams_max` datagrams of the usual size.
    #[must_use]
    pub fn with_capacity(datagrams_max: usize) -> Self {
        Self::with_datagram_bytes(datagrams_max, DATAGRAM_BYTES)
    }

    /// With room for `datagrams_max` datagrams of `datagram_bytes`.
    #[must_use]
    pub(crate) fn with_datagram_bytes(datagrams_max: usize, datagram_bytes: usize) -> Self {
        Self {
            held: Vec::with_capacity(datagrams_max),
            bytes: Vec::with_capacity(datagrams_max.saturating_mul(datagram_bytes)),
        }
    }

    /// Whether no datagram is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds a datagram; `false` if there is no room.
    pub fn hold(&mut self, line: Line, ts_recv: UnixNs, datagram: &[u8]) -> bool {
        let has_room =
            self.held.len() < self.held.capacity() && self.bytes.len() + datagram.len() <= self.bytes.capacity();
        if has_room {
            self.bytes.extend_from_slice(datagram);
            self.held.push((line, ts_recv, self.bytes.len()));
        }
        has_room
    }

    /// The `index`th datagram held.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(Line, UnixNs, &[u8])> {
        let (line, ts_recv, end) = *self.held.get(index)?;
        let start = index.checked_sub(1).and_then(|before| self.held.get(before)).map_or(0, |(_, _, end)| *end);
        Some((line, ts_recv, self.bytes.get(start..end)?))
    }

    /// Drops all held datagrams.
    pub fn clear(&mut self) {
        self.held.clear();
        self.bytes.clear();
    }

    /// Memory held for their bytes, in bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Size of a datagram that fills an Ethernet frame, bytes.
const DATAGRAM_BYTES: usize = 1_500;
