//! A mutex in shared memory that reports the death of its owner: the kernel walks a dying thread's list of such mutexes
//! early in its exit, long before it has freed the memory of a large process.
//!
//! The mutex is the one of glibc (`PTHREAD_PROCESS_SHARED`, `PTHREAD_MUTEX_ROBUST`): a thread has only one list of
//! robust mutexes, and glibc owns that list.

#![allow(unsafe_code, reason = "glibc's mutex")]

use std::{io, mem::MaybeUninit, ptr, sync::atomic::AtomicU64, sync::atomic::Ordering::Relaxed};

/// A mutex in [`ATOMIC_COUNT`](Self::ATOMIC_COUNT) atomics of memory that is never unmapped. Shared only between
/// processes that trust each other: glibc follows pointers stored in it.
#[derive(Clone, Copy, Debug)]
pub struct RobustMutex {
    atomics: &'static [AtomicU64; Self::ATOMIC_COUNT],
}

/// How a mutex was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// No thread held the mutex.
    Free,
    /// The owning thread ended while it held the mutex.
    OwnerDied,
}

impl RobustMutex {
    /// Size of the mutex in 64-bit atomics.
    pub const ATOMIC_COUNT: usize = size_of::<libc::pthread_mutex_t>() / size_of::<AtomicU64>();

    /// Creates a free mutex in atomics that are all 0.
    ///
    /// # Errors
    /// If one is not 0, so that a mutex in use cannot be overwritten; or without memory.
    pub fn create(atomics: &'static [AtomicU64; Self::ATOMIC_COUNT]) -> io::Result<Self> {
        if atomics.iter().any(|word| word.load(Relaxed) != 0) {
            return Err(io::Error::other("the memory of a new mutex must be all 0"));
        }
        let mutex = Self { atomics };
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: pthread_mutexattr_init(3) writes the attributes, which are a live local.
        check_errno(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: the attributes are initialised.
        check_errno(unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) })?;
        // SAFETY: the attributes are initialised.
        check_errno(unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) })?;
        // SAFETY: the attributes are initialised; the mutex's memory has the required size and alignment, is not in use
        // yet, and is never unmapped.
        check_errno(unsafe { libc::pthread_mutex_init(mutex.as_ptr(), attributes) })?;
        // SAFETY: the attributes are initialised and not used again.
        check_errno(unsafe { libc::pthread_mutexattr_destroy(attributes) })?;
        Ok(mutex)
    }

    /// Opens the mutex that another process created in these atomics.
    #[must_use]
    pub fn open(atomics: &'static [AtomicU64; Self::ATOMIC_COUNT]) -> Self {
        Self { atomics }
    }

    /// Waits for the mutex. It then belongs to the calling thread until [`Self::unlock`] or the thread's end.
    ///
    /// # Errors
    /// If it is no robust mutex, or was unlocked after its owner's death without being repaired.
    pub fn lock(self) -> io::Result<Acquired> {
        // SAFETY: the memory is a mutex (`create`) or was passed as one by a trusted process. It is never unmapped,
        // also while the mutex is on this thread's list.
        acquire_result(unsafe { libc::pthread_mutex_lock(self.as_ptr()) })
    }

    /// Takes the mutex if it is free; `None` if another thread holds it.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn try_lock(self) -> io::Result<Option<Acquired>> {
        // SAFETY: as in `lock`.
        let result = unsafe { libc::pthread_mutex_trylock(self.as_ptr()) };
        if result == libc::EBUSY { Ok(None) } else { acquire_result(result).map(Some) }
    }

    /// Unlocks the mutex.
    ///
    /// # Errors
    /// If the calling thread does not hold it.
    pub fn unlock(self) -> io::Result<()> {
        // SAFETY: as in `lock`; a robust mutex refuses a thread that does not own it.
        check_errno(unsafe { libc::pthread_mutex_unlock(self.as_ptr()) })
    }

    fn as_ptr(self) -> *mut libc::pthread_mutex_t {
        ptr::from_ref(self.atomics).cast_mut().cast()
    }
}

const _: () = assert!(RobustMutex::ATOMIC_COUNT * size_of::<AtomicU64>() == size_of::<libc::pthread_mutex_t>());
const _: () = assert!(align_of::<libc::pthread_mutex_t>() <= align_of::<AtomicU64>());

fn acquire_result(result: libc::c_int) -> io::Result<Acquired> {
    if result == libc::EOWNERDEAD {
        return Ok(Acquired::OwnerDied);
    }
    check_errno(result).map(|()| Acquired::Free)
}

/// Converts the result of a pthread function, which is an error number.
fn check_errno(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_atomics::SharedAtomics;

    fn atomics() -> &'static [AtomicU64; RobustMutex::ATOMIC_COUNT] {
        let memory = SharedAtomics::create("mdgw-test", RobustMutex::ATOMIC_COUNT).unwrap();
        memory.atomics().try_into().unwrap()
    }

    #[test]
    fn owner_death_is_reported_and_a_normal_unlock_is_not() {
        let mutex = RobustMutex::create(atomics()).unwrap();
        std::thread::spawn(move || mutex.lock().unwrap()).join().unwrap();
        assert_eq!(mutex.lock().unwrap(), Acquired::OwnerDied);

        let mutex = RobustMutex::create(atomics()).unwrap();
        let releasing_thread = std::thread::spawn(move || {
            mutex.lock().unwrap();
            mutex.unlock().unwrap();
        });
        releasing_thread.join().unwrap();
        assert_eq!(mutex.lock().unwrap(), Acquired::Free);
    }

    #[test]
    fn a_held_mutex_is_busy_and_its_waiter_sees_owner_death() {
        let mutex = RobustMutex::create(atomics()).unwrap();
        let (held, is_held) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let owner = std::thread::spawn(move || {
            held.send(mutex.lock().unwrap()).unwrap();
            let _ = ends.recv();
        });
        assert_eq!(is_held.recv().unwrap(), Acquired::Free);
        assert_eq!(mutex.try_lock().unwrap(), None);
        assert!(mutex.unlock().is_err(), "not ours");
        let waiter = std::thread::spawn(move || mutex.lock().unwrap());
        drop(end);
        owner.join().unwrap();
        assert_eq!(waiter.join().unwrap(), Acquired::OwnerDied);
    }

    #[test]
    fn a_mutex_in_use_is_not_reinitialised() {
        let atomics = atomics();
        RobustMutex::create(atomics).unwrap();
        assert!(RobustMutex::create(atomics).is_err());
    }
}
