//! The commit protocol: one word states whether an entry is committed.
//!
//! Generic over a trait, so that the model checker runs these functions on its own atomics.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word in shared memory that commits data: the first word of an entry, or the count of index slots.
pub(crate) trait CommitWord {
    /// Release store: earlier writes are visible to an acquire load of this word.
    fn store_release(&self, value: u64);
    /// Relaxed store: it orders no other memory.
    fn store_relaxed(&self, value: u64);
    /// Acquire load: the writer's earlier writes are visible.
    fn load_acquire(&self) -> u64;
}

impl CommitWord for AtomicU64 {
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

/// Content at a position where an entry could begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitState {
    /// Not committed yet.
    Uncommitted,
    /// A committed entry.
    Committed {
        /// Length of header, payload and padding together, bytes.
        length_bytes: u32,
        /// CRC-32C of the entry; 0 if the log has no checksums.
        crc: u32,
    },
    /// Sealed: the log continues in the next segment.
    Sealed,
}

const SEALED: u64 = u64::MAX;

/// Commits the entry that begins at `word`. `next_word` is where the next entry will begin.
#[inline]
pub(crate) fn commit<W: CommitWord>(word: &W, next_word: &W, length_bytes: u32, crc: u32) {
    next_word.store_relaxed(0);
    // Release pairs with the Acquire in `observe`: header, payload and the 0 after them become visible with it.
    word.store_release(u64::from(length_bytes) | u64::from(crc) << 32);
}

/// Seals the segment at `word`.
#[inline]
pub(crate) fn seal<W: CommitWord>(word: &W) {
    // Release pairs with the Acquire in `observe`: a reader of this word also sees the next segment.
    word.store_release(SEALED);
}

/// Reads what the word says now.
#[inline]
pub(crate) fn observe<W: CommitWord>(word: &W) -> CommitState {
    match word.load_acquire() {
        0 => CommitState::Uncommitted,
        SEALED => CommitState::Sealed,
        value => CommitState::Committed { length_bytes: (value & 0xffff_ffff) as u32, crc: (value >> 32) as u32 },
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use loom::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
        thread,
    };

    use super::*;

    impl CommitWord for AtomicU64 {
        fn store_release(&self, value: u64) {
            self.store(value, Ordering::Release);
        }

        fn store_relaxed(&self, value: u64) {
            self.store(value, Relaxed);
        }

        fn load_acquire(&self) -> u64 {
            self.load(Ordering::Acquire)
        }
    }

    /// Two entries and a seal, in memory with remains of earlier use.
    struct Segment {
        words: [AtomicU64; 3],
        payloads: [AtomicU64; 2],
        /// Represents the next segment, which must exist for every reader that sees the seal.
        next: AtomicU64,
    }

    type Commit = fn(&AtomicU64, &AtomicU64, u32, u32);
    type Seal = fn(&AtomicU64);

    const LEFT_OVER: u64 = 0x1234_0000_0040;

    /// One writer and one reader that tails it: every observed entry must be complete. Payloads are stored and loaded
    /// without ordering, so only the commit word can make them visible.
    fn check(commit: Commit, seal: Seal) {
        loom::model(move || {
            let segment = Arc::new(Segment {
                words: [AtomicU64::new(0), AtomicU64::new(LEFT_OVER), AtomicU64::new(LEFT_OVER)],
                payloads: [AtomicU64::new(0), AtomicU64::new(0)],
                next: AtomicU64::new(0),
            });
            let writer = {
                let segment = Arc::clone(&segment);
                thread::spawn(move || {
                    for index in 0..2_u32 {
                        let at = index as usize;
                        segment.payloads[at].store(u64::from(70 + index), Relaxed);
                        commit(&segment.words[at], &segment.words[at + 1], 64 + index, 70 + index);
                    }
                    segment.next.store(1, Relaxed);
                    seal(&segment.words[2]);
                })
            };
            let mut at = 0;
            for _ in 0..4 {
                match observe(&segment.words[at.min(2)]) {
                    CommitState::Uncommitted => thread::yield_now(),
                    CommitState::Committed { length_bytes, crc } => {
                        assert!(at < 2 && length_bytes as usize == 64 + at, "left over memory was taken for an entry");
                        assert_eq!(segment.payloads[at].load(Relaxed), u64::from(crc), "torn entry");
                        at += 1;
                    }
                    CommitState::Sealed => {
                        assert_eq!((at, segment.next.load(Relaxed)), (2, 1), "a seal without a next segment");
                        break;
                    }
                }
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_reader_sees_whole_entries_in_order_and_then_the_seal() {
        check(commit, seal);
    }

    #[test]
    #[should_panic(expected = "torn entry")]
    fn a_relaxed_commit_word_is_caught() {
        check(
            |word, next_word, length_bytes, _| {
                next_word.store_relaxed(0);
                word.store_relaxed(u64::from(length_bytes) | u64::from(length_bytes + 6) << 32);
            },
            seal,
        );
    }

    #[test]
    #[should_panic(expected = "left over memory")]
    fn a_next_word_cleared_too_late_is_caught() {
        check(
            |word, next_word, length_bytes, crc| {
                word.store_release(u64::from(length_bytes) | u64::from(crc) << 32);
                next_word.store_relaxed(0);
            },
            seal,
        );
    }

    #[test]
    #[should_panic(expected = "a seal without a next segment")]
    fn a_relaxed_seal_is_caught() {
        check(commit, |word| word.store_relaxed(SEALED));
    }
}
