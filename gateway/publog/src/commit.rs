//! The commit protocol: one word says whether an entry is there.
//!
//! Written over a trait, so that the model checker runs these very functions on its own atomics.

use std::sync::atomic::{AtomicU64, Ordering};

/// The word at the beginning of an entry, and the count of index slots.
pub(crate) trait Word {
    /// Stores; what was written before is visible to whoever loads this.
    fn store_release(&self, value: u64);
    /// Stores without ordering anything.
    fn store_relaxed(&self, value: u64);
    /// Loads; what its writer had written before is visible.
    fn load_acquire(&self) -> u64;
}

impl Word for AtomicU64 {
    #[inline]
    fn store_release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn store_relaxed(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline]
    fn load_acquire(&self) -> u64 {
        self.load(Ordering::Acquire)
    }
}

/// What stands at a place where an entry could begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Nothing yet.
    Open,
    /// An entry of that many bytes, header and padding included.
    Committed {
        /// Header, payload and padding.
        length_bytes: u32,
        /// CRC-32C, or 0.
        crc: u32,
    },
    /// Nothing ever: the log goes on in the next segment.
    Sealed,
}

const SEALED: u64 = u64::MAX;

/// Makes the entry visible that `word` begins. `behind` is the word where the next one will begin.
#[inline]
pub(crate) fn commit<W: Word>(word: &W, behind: &W, length_bytes: u32, crc: u32) {
    behind.store_relaxed(0);
    // Release pairs with the Acquire in `observe`: header, payload and the 0 behind are visible with it.
    word.store_release(u64::from(length_bytes) | u64::from(crc) << 32);
}

/// Ends the segment at `word`.
#[inline]
pub(crate) fn seal<W: Word>(word: &W) {
    // Release pairs with the Acquire in `observe`: the next segment exists for whoever sees this.
    word.store_release(SEALED);
}

/// What stands there now.
#[inline]
pub(crate) fn observe<W: Word>(word: &W) -> Mark {
    match word.load_acquire() {
        0 => Mark::Open,
        SEALED => Mark::Sealed,
        value => Mark::Committed { length_bytes: (value & 0xffff_ffff) as u32, crc: (value >> 32) as u32 },
    }
}
