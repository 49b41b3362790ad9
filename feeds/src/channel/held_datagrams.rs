//! Holds datagrams of the next session that arrived before the last messages of the current one.
//!
//! The faster line begins the next session while the slower line still delivers messages of the current session that
//! the faster line lost. The next session waits here until that gap is filled or declared.

use crate::{identity::Line, time::UnixNs};

/// Bounded, allocated once, in the order of arrival.
#[derive(Debug)]
pub struct HeldDatagrams {
    /// Line and receive time of each; its bytes end where the next one's begin.
    held: Vec<(Line, UnixNs, usize)>,
    bytes: Vec<u8>,
}

impl HeldDatagrams {
    /// Room for so many datagrams of the usual size: as many as may wait within a numbering.
    #[must_use]
    pub fn with_capacity(datagrams_max: usize) -> Self {
        Self::of(datagrams_max, DATAGRAM_BYTES)
    }

    /// Room for so many datagrams of that size.
    #[must_use]
    pub fn of(datagrams_max: usize, datagram_bytes: usize) -> Self {
        Self {
            held: Vec::with_capacity(datagrams_max),
            bytes: Vec::with_capacity(datagrams_max.saturating_mul(datagram_bytes)),
        }
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds one more; `false` where there is no room.
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

    /// Forgets what waited.
    pub fn clear(&mut self) {
        self.held.clear();
        self.bytes.clear();
    }

    /// Memory held for their bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// What a datagram takes that fills an Ethernet frame.
const DATAGRAM_BYTES: usize = 1_500;
