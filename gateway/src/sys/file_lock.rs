//! Locks of whole files, which end with the process that has them.

use std::{fs::File, io, os::fd::AsRawFd};

/// Locks `file` for as long as it is open. `false` when somebody else has the lock.
///
/// # Errors
/// As flock(2), other than "would block".
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock(2) takes a descriptor, which `file` keeps open over the call, and touches no memory of ours.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}
