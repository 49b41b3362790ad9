//! Reorder window: packets ahead of the expected sequence, in memory allocated at the start.
//!
//! ```text
//! expected                 frontier (known to exist)
//!    |··gap··[frag][frag]··gap··[frag]··gap··|
//!               \    /             |
//!               slot 4           slot 9       whole packets, counted references
//! ```
//! A held packet occupies one slot and contributes fragments: disjoint, ascending, never below the expected sequence.
//! A packet that overlaps others contributes only the messages they lack, possibly in several fragments.

use std::collections::VecDeque;

use crate::{
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
};

use super::Arrival;

#[derive(Debug)]
pub(super) struct Window {
    fragments: VecDeque<Fragment>,
    slots: Box<[HeldPacket]>,
    /// Free slots.
    free: Vec<u16>,
    /// `slot_bytes` of storage per slot.
    bytes: Box<[u8]>,
    slot_bytes: usize,
}

/// Messages `[from, until)` of the packet in `slot`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) from: Sequence,
    pub(super) until: Sequence,
    /// When the gap before this fragment was detected or last shrank.
    pub(super) gap_since: MonoNs,
    slot: u16,
}

/// A held packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldPacket {
    pub(super) line: Line,
    pub(super) first: Sequence,
    pub(super) next: Sequence,
    pub(super) ts_recv: UnixNs,
    pub(super) send_time: Option<UnixNs>,
    block_bytes: usize,
    fragment_count: u16,
}

/// Part of an arriving packet that the window already holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    pub(super) count: u64,
    pub(super) line: Line,
    pub(super) ts_recv: UnixNs,
}

impl Window {
    pub(super) fn new(packets: usize, slot_bytes: usize) -> Self {
        let packets = packets.min(PACKETS_MAX);
        Self {
            // Every border of a fragment is a border of a held packet, so n packets make at most 2n - 1 fragments.
            fragments: VecDeque::with_capacity(2 * packets),
            slots: vec![HeldPacket::default(); packets].into_boxed_slice(),
            free: (0..u16::try_from(packets).unwrap_or(u16::MAX)).rev().collect(),
            bytes: vec![0; packets * slot_bytes].into_boxed_slice(),
            slot_bytes,
        }
    }

    pub(super) fn clear(&mut self) {
        while self.pop_front().is_some() {}
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn front(&self) -> Option<&Fragment> {
        self.fragments.front()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Fragment> {
        self.fragments.front_mut()
    }

    /// First sequence after everything held.
    pub(super) fn end(&self) -> Option<Sequence> {
        self.fragments.back().map(|fragment| fragment.until)
    }

    /// Whether at least half of the window is free.
    pub(super) fn is_half_free(&self) -> bool {
        self.free.len() >= self.slots.len() / 2
    }

    /// The first sequence from `from` on that is not held, and the fragment after it.
    pub(super) fn first_missing_from(&self, from: Sequence) -> (Sequence, Option<&Fragment>) {
        let mut position = from;
        for fragment in self.fragments.range(self.index_of(from)..) {
            if fragment.from > position {
                return (position, Some(fragment));
            }
            position = fragment.until;
        }
        (position, None)
    }

    /// Whether all of `[from, next)` is held.
    pub(super) fn covers(&self, from: Sequence, next: Sequence) -> bool {
        let mut position = from;
        for fragment in self.fragments.range(self.index_of(from)..) {
            if position >= next || fragment.from > position {
                break;
            }
            position = fragment.until;
        }
        position >= next
    }

    /// Holds the messages of `[from, arrival.next)` that are not held yet and reports the others. Returns the number
    /// of new messages. The window must not be full, and the block must fit a slot.
    pub(super) fn hold(&mut self, arrival: &Arrival<'_>, from: Sequence, mut overlap: impl FnMut(Overlap)) -> u64 {
        let Some(slot_index) = self.free.pop() else { return 0 };
        let mut added = 0;
        let mut fragment_count = 0;
        let mut position = from;
        let mut index = self.index_of(from);
        while position < arrival.next {
            let hole_end = self.fragments.get(index).map_or(arrival.next, |held| held.from.min(arrival.next));
            if position < hole_end {
                if let Some(following) = self.fragments.get_mut(index) {
                    following.gap_since = arrival.now;
                }
                let fragment = Fragment { from: position, until: hole_end, gap_since: arrival.now, slot: slot_index };
                self.fragments.insert(index, fragment);
                index += 1;
                fragment_count += 1;
                added += hole_end.0 - position.0;
                position = hole_end;
            }
            let Some(held) = self.fragments.get(index).filter(|held| held.from < arrival.next) else { break };
            let until = held.until.min(arrival.next);
            if let Some(slot) = self.slots.get(usize::from(held.slot)) {
                let count = until.0.saturating_sub(position.0);
                overlap(Overlap { count, line: slot.line, ts_recv: slot.ts_recv });
            }
            position = until.max(position);
            index += 1;
        }
        if fragment_count == 0 {
            self.free.push(slot_index);
            return 0;
        }
        self.store_packet(slot_index, arrival, fragment_count);
        added
    }

    /// Removes the first fragment. Its packet stays readable until the next [`Self::hold`].
    pub(super) fn pop_front(&mut self) -> Option<(Fragment, HeldPacket, &[u8])> {
        let fragment = self.fragments.pop_front()?;
        let index = usize::from(fragment.slot);
        let slot = self.slots.get_mut(index)?;
        slot.fragment_count = slot.fragment_count.saturating_sub(1);
        if slot.fragment_count == 0 {
            // `free` was allocated with room for every slot.
            self.free.push(fragment.slot);
        }
        let start = index * self.slot_bytes;
        let block = self.bytes.get(start..start + slot.block_bytes)?;
        Some((fragment, *slot, block))
    }

    /// Line and timestamp of the packet that holds the first fragment.
    pub(super) fn front_origin(&self) -> Option<(Line, UnixNs)> {
        let slot = self.slots.get(usize::from(self.fragments.front()?.slot))?;
        Some((slot.line, slot.ts_recv))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.len()
            + size_of_val(&*self.slots)
            + self.free.capacity() * size_of::<u16>()
            + self.fragments.capacity() * size_of::<Fragment>()
    }

    /// Index of the first fragment that ends after `from`. Packets mostly arrive in order, so the last fragment is
    /// tried first.
    fn index_of(&self, from: Sequence) -> usize {
        match self.fragments.back() {
            Some(last) if last.until > from => self.fragments.partition_point(|held| held.until <= from),
            _ => self.fragments.len(),
        }
    }

    fn store_packet(&mut self, slot_index: u16, arrival: &Arrival<'_>, fragment_count: u16) {
        let index = usize::from(slot_index);
        let start = index * self.slot_bytes;
        let block_bytes = arrival.block.len().min(self.slot_bytes);
        let source = arrival.block.get(..block_bytes);
        if let (Some(target), Some(source)) = (self.bytes.get_mut(start..start + block_bytes), source) {
            target.copy_from_slice(source);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = HeldPacket {
                line: arrival.line,
                first: arrival.first,
                next: arrival.next,
                ts_recv: arrival.ts_recv,
                send_time: arrival.send_time,
                block_bytes,
                fragment_count,
            };
        }
    }
}

/// Slots are addressed by 16 bits.
pub(super) const PACKETS_MAX: usize = 1 << 15;
