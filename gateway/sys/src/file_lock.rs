//! Locks of whole files, which end with the process that has them.

#![allow(unsafe_code, reason = "system calls")]

use std::{fs::File, io, os::fd::AsRawFd, thread, time::Duration};

/// Locks `file` for as long as it is open. `false` when somebody else has the lock, and not for a moment only: between its
/// beginning and its program, a child has copies of all descriptors of its parent, so a lock outlives a closed file that
/// long.
///
/// # Errors
/// As flock(2), other than "would block".
pub fn try_lock(file: &File) -> io::Result<bool> {
    for _ in 0..ATTEMPTS {
        // SAFETY: flock(2) takes a descriptor, which `file` keeps open over the call, and touches no memory of ours.
        let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        if result == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        thread::sleep(PAUSE);
    }
    Ok(false)
}

const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);
