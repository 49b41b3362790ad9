//! The page that the gateway shares with its sentinel: one piece of shared memory, new for each incarnation.
//!
//! ```text
//!  block 0                           1        2 …                      66 …
//!  | magic | closed | kill refused | mutex  | epoch, deadline of group | count of hot thread |    blocks of 128 bytes
//! ```
//! One thread of the gateway holds the mutex for the life of the process. The listener of a group's leadership writes
//! the group's atomics; each hot thread writes its own counter. The sentinel writes only that the kernel refused its kill.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use mdgw_sys::{
    robust_mutex::{Acquired, RobustMutex},
    shared_atomics::SharedAtomics,
};
use mdgw_wire::{identity::Epoch, time::MonoNs};

pub use mdgw_sys::progress::ProgressCounter;

/// The shared page, on either side.
#[derive(Debug)]
pub struct SharedPage {
    memory: SharedAtomics,
    mutex: RobustMutex,
}

impl SharedPage {
    /// Makes a new page. Its gateway does not lead yet.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn create() -> io::Result<Self> {
        let memory = SharedAtomics::create("mdgw-sentinel", WORDS)?;
        let mutex = RobustMutex::create(mutex_atomics(&memory))?;
        memory.atomics()[MAGIC_AT].store(MAGIC, Release);
        Ok(Self { memory, mutex })
    }

    /// Opens the page that a gateway sent.
    ///
    /// # Errors
    /// When the memory is not a page, or one of another version.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let memory = SharedAtomics::open(descriptor, WORDS)?;
        if memory.atomics()[MAGIC_AT].load(Acquire) != MAGIC {
            return Err(io::Error::other("the shared memory is not from a gateway of this version"));
        }
        let mutex = RobustMutex::open(mutex_atomics(&memory));
        Ok(Self { memory, mutex })
    }

    /// Holds the mutex until [`Self::close`] or the end of the calling thread. There is no guard to drop, since the
    /// sentinel must notice any other end of the thread.
    ///
    /// # Errors
    /// When the mutex is held already.
    pub fn hold(&self) -> io::Result<()> {
        match self.mutex.try_lock()? {
            Some(Acquired::Free) => Ok(()),
            Some(Acquired::OwnerDied) | None => Err(io::Error::other("the shared page is already in use")),
        }
    }

    /// Announces an orderly end to the sentinel: leadership is released, nothing more will be sent. Must be called by
    /// the thread that [holds](Self::hold) the mutex.
    ///
    /// # Errors
    /// When the calling thread does not hold the mutex.
    pub fn close(&self) -> io::Result<()> {
        // Release pairs with the Acquire in `is_closed`; unlocking would order the store as well.
        self.memory.atomics()[CLOSED_AT].store(1, Release);
        self.mutex.unlock()
    }

    /// Whether the mutex is held, as it must be before a notice can be relied on.
    ///
    /// # Errors
    /// When the memory holds no valid mutex.
    pub(crate) fn is_held(&self) -> io::Result<bool> {
        match self.mutex.try_lock()? {
            Some(Acquired::Free) => self.mutex.unlock().map(|()| false),
            // The mutex is not repaired, since the next waiter must detect the death as well.
            Some(Acquired::OwnerDied) => Ok(false),
            None => Ok(true),
        }
    }

    /// Waits for the end of the thread that holds the mutex.
    ///
    /// # Errors
    /// When the memory holds no valid mutex.
    pub(crate) fn wait_for_end(&self) -> io::Result<GatewayEnd> {
        let acquired = self.mutex.lock()?;
        Ok(if acquired == Acquired::Free && self.is_closed() { GatewayEnd::Clean } else { GatewayEnd::Died })
    }

    /// Whether the gateway announced an orderly end.
    #[must_use]
    pub(crate) fn is_closed(&self) -> bool {
        // Acquire pairs with the Release in `close`.
        self.memory.atomics()[CLOSED_AT].load(Acquire) == 1
    }

    /// Reports to the gateway that the kernel refused to kill it.
    pub(crate) fn report_kill_refused(&self) {
        self.memory.atomics()[KILL_REFUSED_AT].store(1, Relaxed);
    }

    /// Whether the sentinel wanted to kill this gateway, and the kernel refused.
    #[must_use]
    pub fn is_kill_refused(&self) -> bool {
        self.memory.atomics()[KILL_REFUSED_AT].load(Relaxed) != 0
    }

    /// The shared atomics of the group with that index.
    ///
    /// # Panics
    /// From [`GROUPS_MAX`] on.
    #[must_use]
    pub fn group(&self, index: usize) -> GroupFenceAtomics {
        assert!(index < GROUPS_MAX, "group {index} of {GROUPS_MAX}");
        let block = GROUPS_BLOCK + index;
        GroupFenceAtomics { epoch: self.atomic_at(block, 0), deadline: self.atomic_at(block, 1) }
    }

    /// The progress counter of the hot thread with that index.
    ///
    /// # Panics
    /// From [`THREADS_MAX`] on.
    #[must_use]
    pub fn thread(&self, index: usize) -> ProgressCounter {
        assert!(index < THREADS_MAX, "thread {index} of {THREADS_MAX}");
        ProgressCounter::new(self.atomic_at(THREADS_BLOCK + index, 0))
    }

    fn atomic_at(&self, block: usize, index: usize) -> &'static AtomicU64 {
        &self.memory.atomics()[block * BLOCK_U64S + index]
    }
}

impl AsFd for SharedPage {
    /// The descriptor of the shared memory, to be sent to the sentinel.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// How a gateway ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatewayEnd {
    /// The gateway announced an orderly end.
    Clean,
    /// The thread that held the mutex has ended without announcing an orderly end.
    Died,
}

/// The fence of one group as the sentinel sees it.
#[derive(Clone, Copy, Debug)]
pub struct GroupFenceAtomics {
    epoch: &'static AtomicU64,
    deadline: &'static AtomicU64,
}

impl GroupFenceAtomics {
    /// The fence is about to open under a new epoch, or was renewed.
    pub fn open(&self, epoch: Epoch, deadline: MonoNs) {
        self.epoch.store(epoch.0, Relaxed);
        // Release pairs with the Acquire in `is_open`.
        self.deadline.store(deadline.0, Release);
    }

    /// The fence has closed.
    pub fn close(&self) {
        self.deadline.store(0, Release);
    }

    /// Whether the owner opened the fence and has not closed it since. A passed deadline alone does not count as
    /// closed: the owner may be stopped before a send.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        self.deadline.load(Acquire) != 0
    }

    /// Epoch of the present or last opening; 0 if there was none.
    #[must_use]
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Relaxed))
    }
}

/// Maximum number of groups of one gateway.
pub const GROUPS_MAX: usize = 64;
/// Maximum number of hot threads of one gateway, the election thread included.
pub const THREADS_MAX: usize = 64;

/// Length of a block, in 64-bit values: two cache lines, since neighbouring lines are fetched in pairs.
const BLOCK_U64S: usize = 16;
const MAGIC_AT: usize = 0;
const CLOSED_AT: usize = 1;
/// 0 from a sentinel of an earlier version.
const KILL_REFUSED_AT: usize = 2;
const MUTEX_BLOCK: usize = 1;
const GROUPS_BLOCK: usize = 2;
const THREADS_BLOCK: usize = GROUPS_BLOCK + GROUPS_MAX;
const WORDS: usize = (THREADS_BLOCK + THREADS_MAX) * BLOCK_U64S;
/// `MDGWPAG` and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"MDGWPAG\x01");

const _: () = assert!(RobustMutex::ATOMIC_COUNT <= BLOCK_U64S);

fn mutex_atomics(memory: &SharedAtomics) -> &'static [AtomicU64; RobustMutex::ATOMIC_COUNT] {
    let from_mutex = &memory.atomics()[MUTEX_BLOCK * BLOCK_U64S..];
    from_mutex.first_chunk().unwrap_or_else(|| unreachable!("a page has more than one block"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::formats::check;

    fn both_sides() -> (SharedPage, SharedPage) {
        let ours = SharedPage::create().unwrap();
        let theirs = SharedPage::open(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        (ours, theirs)
    }

    #[test]
    fn an_unannounced_exit_is_a_death_and_a_clean_close_is_not() {
        for (closes, end) in [(true, GatewayEnd::Clean), (false, GatewayEnd::Died)] {
            let (gateway, sentinel) = both_sides();
            let (holds, held) = mpsc::channel();
            let (end_it, ends) = mpsc::channel::<()>();
            let election = std::thread::spawn(move || {
                gateway.hold().unwrap();
                holds.send(()).unwrap();
                let _ = ends.recv();
                if closes {
                    gateway.close().unwrap();
                }
            });
            held.recv().unwrap();
            assert!(sentinel.is_held().unwrap());
            let waiter = std::thread::spawn(move || sentinel.wait_for_end().unwrap());
            drop(end_it);
            election.join().unwrap();
            assert_eq!(waiter.join().unwrap(), end);
        }
    }

    #[test]
    fn unlocking_the_mutex_without_close_is_a_death() {
        let (gateway, sentinel) = both_sides();
        gateway.hold().unwrap();
        gateway.mutex.unlock().unwrap();
        assert!(!sentinel.is_held().unwrap());
        assert_eq!(sentinel.wait_for_end().unwrap(), GatewayEnd::Died);
    }

    #[test]
    fn the_sentinel_reads_fences_and_progress_counters() {
        let (gateway, sentinel) = both_sides();
        let (group, thread) = (gateway.group(GROUPS_MAX - 1), gateway.thread(THREADS_MAX - 1));
        group.open(Epoch::new(3, 1), MonoNs(9));
        assert!(sentinel.group(GROUPS_MAX - 1).is_open());
        group.close();
        assert!(!sentinel.group(GROUPS_MAX - 1).is_open());
        assert_eq!(sentinel.group(GROUPS_MAX - 1).epoch(), Epoch::new(3, 1));
        assert!(!sentinel.group(0).is_open());
        let counts = [
            ProgressCounter::mark_busy,
            ProgressCounter::mark_busy,
            ProgressCounter::mark_idle,
            ProgressCounter::mark_idle,
            ProgressCounter::mark_busy,
        ];
        let counts = counts.map(|act| {
            act(&thread);
            sentinel.thread(THREADS_MAX - 1).count()
        });
        assert_eq!(counts, [1, 3, 4, 4, 5]);
    }

    #[test]
    fn shared_memory_of_another_layout_is_refused() {
        let foreign_memory = SharedAtomics::create("mdgw-test", WORDS).unwrap();
        assert!(SharedPage::open(foreign_memory.as_fd().try_clone_to_owned().unwrap()).is_err());
        let short = SharedAtomics::create("mdgw-test", WORDS - 1).unwrap();
        assert!(SharedPage::open(short.as_fd().try_clone_to_owned().unwrap()).is_err());
    }

    /// Offset and content of a 64-bit value.
    #[derive(Debug, PartialEq)]
    struct WordAt(u32, u64);

    #[test]
    fn a_page_written_by_0_1_0_is_read() {
        let page = SharedPage::create().unwrap();
        page.hold().unwrap();
        for (index, epoch) in [(0, Epoch::new(3, 1)), (GROUPS_MAX - 1, Epoch::new(4, 1))] {
            page.group(index).open(epoch, MonoNs(9));
        }
        for index in [0, THREADS_MAX - 1] {
            page.thread(index).mark_busy();
        }
        page.close().unwrap();
        // The C library defines the memory layout of a mutex.
        let mutex = MUTEX_BLOCK * BLOCK_U64S..(MUTEX_BLOCK + 1) * BLOCK_U64S;
        let words = page.memory.atomics().iter().enumerate().filter(|(index, _)| !mutex.contains(index));
        let words = words.map(|(index, word)| WordAt(u32::try_from(8 * index).unwrap(), word.load(Relaxed)));
        let words: Vec<WordAt> = words.filter(|word| word.1 != 0).collect();
        check(
            include_str!("../../../../tests/data/formats/sentinel_page.hex"),
            &words,
            |bytes| {
                let (offset, word) = bytes.split_at(4);
                WordAt(u32::from_be_bytes(offset.try_into().unwrap()), u64::from_le_bytes(word.try_into().unwrap()))
            },
            |word| [&word.0.to_be_bytes()[..], &word.1.to_le_bytes()].concat(),
        );
        assert_eq!(WORDS, 2_080);
    }
}
