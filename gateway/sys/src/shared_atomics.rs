//! Memory shared by two processes: a memfd of 64-bit atomics. Every bit pattern is valid, whatever the other process
//! writes.

#![allow(unsafe_code, reason = "memory that other processes map")]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};

/// The mapping of the memory. It lasts as long as the process, since the memory of a robust mutex must stay mapped
/// while the mutex is held.
#[derive(Debug)]
pub struct SharedAtomics {
    memory: OwnedFd,
    atomics: &'static [AtomicU64],
}

impl SharedAtomics {
    /// Creates `count` atomics, all 0, with a name that is shown in `/proc`.
    ///
    /// # Errors
    /// Without memory, or if memfd_create(2) is not available.
    pub fn create(name: &str, count: usize) -> io::Result<Self> {
        let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, bytes_of(count)?)?;
        fcntl_add_seals(&memory, SIZE_SEALS)?;
        Self::map(memory, count)
    }

    /// Opens the memory that another process created.
    ///
    /// # Errors
    /// If it has another size than `count` atomics, or can still change its size (an access might then raise SIGBUS).
    pub fn open(memory: OwnedFd, count: usize) -> io::Result<Self> {
        let bytes = u64::try_from(fstat(&memory)?.st_size).unwrap_or(0);
        if bytes != bytes_of(count)? {
            return Err(io::Error::other(format!("shared memory has {bytes} bytes, expected {count} words")));
        }
        if !fcntl_get_seals(&memory)?.contains(SIZE_SEALS) {
            return Err(io::Error::other("shared memory whose size is not sealed"));
        }
        Self::map(memory, count)
    }

    /// The atomics. The other process may change each of them at any time.
    #[must_use]
    pub fn atomics(&self) -> &'static [AtomicU64] {
        self.atomics
    }

    fn map(memory: OwnedFd, count: usize) -> io::Result<Self> {
        let bytes = count * size_of::<AtomicU64>();
        // SAFETY: mmap(2) chooses a fresh address, so nothing that exists is touched.
        let address =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &memory, 0) }?;
        // SAFETY: the mapping is page-aligned, `count` atomics long, backed by a file of that size which is sealed
        // against shrinking, and never unmapped. Other processes may change atomics at any time, and every bit pattern
        // is valid.
        let atomics = unsafe { std::slice::from_raw_parts(address.cast::<AtomicU64>(), count) };
        Ok(Self { memory, atomics })
    }
}

impl AsFd for SharedAtomics {
    /// The descriptor, to be passed to the other process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn bytes_of(count: usize) -> io::Result<u64> {
    let bytes = count.checked_mul(size_of::<AtomicU64>()).and_then(|bytes| u64::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| io::Error::other("invalid size of shared memory"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn both_processes_see_the_same_atomics() {
        let ours = SharedAtomics::create("mdgw-test", 600).unwrap();
        let theirs = SharedAtomics::open(ours.as_fd().try_clone_to_owned().unwrap(), 600).unwrap();
        assert!(!ptr::eq(ours.atomics(), theirs.atomics()), "two mappings");
        ours.atomics()[599].store(7, SeqCst);
        assert_eq!(theirs.atomics()[599].load(SeqCst), 7);
        assert_eq!(theirs.atomics()[0].load(SeqCst), 0);
    }

    #[test]
    fn memory_of_wrong_or_unsealed_size_is_refused() {
        let ours = SharedAtomics::create("mdgw-test", 600).unwrap();
        let clone = || ours.as_fd().try_clone_to_owned().unwrap();
        assert!(SharedAtomics::open(clone(), 599).unwrap_err().to_string().contains("4800 bytes"));
        assert!(SharedAtomics::create("mdgw-test", 0).is_err());
        assert!(SharedAtomics::open(tempfile::tempfile().unwrap().into(), 600).is_err());
        let unsealed = memfd_create("mdgw-test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4_800).unwrap();
        assert!(SharedAtomics::open(unsealed, 600).unwrap_err().to_string().contains("sealed"));
        assert!(ftruncate(clone(), 8).is_err(), "sealed");
    }
}
