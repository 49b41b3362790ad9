//! Locks of whole files, released at the end of the owning process.

#![allow(unsafe_code, reason = "system calls")]

use std::{fs::File, io, os::fd::AsRawFd, thread, time::Duration};

/// Locks `file` for as long as it is open. Returns `false` if another process holds the lock for more than a moment. A
/// child process has copies of all its parent's descriptors between fork and exec, so a lock outlives a closed file for
/// that time.
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
