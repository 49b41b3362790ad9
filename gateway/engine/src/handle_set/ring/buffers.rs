//! The ring of provided buffers: this thread provides them, the kernel takes them.

#![allow(unsafe_code, reason = "requests whose memory the kernel holds")]

use std::{
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use io_uring::types::BufRingEntry;
use mdgw_sys::batch::{
    pinned_array::PinnedArray,
    provided::{ProvidedBuffers, STRIDE},
};

use super::submission::Ring;

/// The one group of buffers in a ring.
pub(super) const GROUP: u16 = 0;

/// Buffers in the order in which the kernel takes them. Only the thread of the ring with which they are registered
/// writes.
#[derive(Debug)]
pub(super) struct BufferRing {
    pub(super) buffers: Arc<ProvidedBuffers>,
    entries: PinnedArray<RingPage>,
    count: u16,
    tail: u16,
    /// Buffers that the kernel has and has not filled yet.
    available: u16,
}

/// Rings of buffers begin at a page.
#[repr(C, align(4096))]
struct RingPage([u8; 4_096]);

const ENTRIES_PER_PAGE: usize = 4_096 / size_of::<BufRingEntry>();

impl BufferRing {
    /// Allocates `count` buffers and registers them, all owned by the kernel.
    pub(super) fn new(ring: &Ring, count: u16) -> io::Result<Self> {
        let pages = usize::from(count).div_ceil(ENTRIES_PER_PAGE);
        let entries = PinnedArray::new(pages, |_| RingPage([0; 4_096]));
        let mut buffers =
            Self { buffers: Arc::new(ProvidedBuffers::new(count)), entries, count, tail: 0, available: 0 };
        // SAFETY: `entries` has room for `count` entries, begins at a page, and is freed only after it was unregistered
        // (`unregister`).
        unsafe { ring.register_buffers(buffers.entries.at(0) as u64, count, GROUP)? };
        (0..count).for_each(|id| buffers.provide(id));
        Ok(buffers)
    }

    /// Gives a buffer to the kernel. The caller owned it and no longer does.
    pub(super) fn provide(&mut self, id: u16) {
        let entry = self.entry(usize::from(self.tail & (self.count - 1)));
        // SAFETY: `entry` is one of `count` entries in `entries`. The kernel reads only those before the tail, and this
        // entry is behind it: no more than `count` buffers exist.
        let entry = unsafe { &mut *entry };
        entry.set_addr(self.buffers.at(id) as u64);
        entry.set_len(u32::try_from(STRIDE).unwrap_or(0));
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        self.available += 1;
        // SAFETY: the ring's memory lives and its first entry is initialised (zeroed, then only by this type).
        let tail = unsafe { BufRingEntry::tail(self.entry(0)) };
        // SAFETY: the tail is aligned to 2 bytes, lives as long as `entries`, and this thread is its only writer.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Release pairs with the kernel's acquiring load: it sees the entry before the tail that covers it.
        tail.store(self.tail, Ordering::Release);
    }

    /// Gives the kernel the buffers that batches have returned.
    pub(super) fn provide_returned(&mut self) {
        while let Some(id) = self.buffers.take_returned() {
            self.provide(id);
        }
    }

    /// The kernel has filled a buffer.
    pub(super) fn on_buffer_used(&mut self) {
        self.available = self.available.saturating_sub(1);
    }

    pub(super) fn has_available(&self) -> bool {
        self.available > 0
    }

    /// Takes all buffers back from the kernel. If the kernel refuses, the memory is leaked rather than freed under it.
    pub(super) fn unregister(&mut self, ring: &Ring) {
        if ring.unregister_buffers(GROUP).is_err() {
            mem::forget(Arc::clone(&self.buffers));
            mem::forget(mem::replace(&mut self.entries, PinnedArray::new(0, |_| unreachable!())));
        }
    }

    fn entry(&self, index: usize) -> *mut BufRingEntry {
        let page = self.entries.at(index / ENTRIES_PER_PAGE);
        page.cast::<BufRingEntry>().wrapping_add(index % ENTRIES_PER_PAGE)
    }
}
