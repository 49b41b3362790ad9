//! Waits for a few descriptors: for cold threads only; the pool waits on its handle set.

#![allow(unsafe_code, reason = "system calls")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

/// Waits until one of the descriptors is readable or closed at its other end, at most `limit`. `true`: one is. After an
/// interruption the call returns as after `limit`.
///
/// # Errors
/// As poll(2).
pub fn readable<'f>(descriptors: impl IntoIterator<Item = BorrowedFd<'f>>, limit: Duration) -> io::Result<bool> {
    let mut polled: Vec<_> = descriptors
        .into_iter()
        .map(|descriptor| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(polled.len()).unwrap_or(0);
    // SAFETY: poll(2) reads and writes `count` elements of `polled`, which has that many.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), count, limit_ms) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    Ok(ready > 0)
}
