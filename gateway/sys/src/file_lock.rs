//! Locks of whole files, released at the end of the owning process.

use std::{fs::File, io, thread, time::Duration};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// Locks `file` for as long as it is open. Returns `false` if another process still holds the lock after 100 ms. The
/// retries are needed because a child process has copies of its parent's descriptors between fork and exec: for that
/// time a lock outlives the closed file.
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
