//! Locks of whole files, released at the end of the owning process.

use std::{fs::File, io, thread, time::Duration};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// Locks `file` for as long as it is open. Returns `false` if another process holds the lock for more than a moment. A
/// child process has copies of all its parent's descriptors between fork and exec, so a lock outlives a closed file for
/// that time.
///
/// # Errors
/// As flock(2), other than "would block".
pub fn try_lock(file: &File) -> io::Result<bool> {
    for _ in 0..ATTEMPTS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);
