//! Waits for a few descriptors: for cold threads only; the pool waits on its handle set.

use std::{io, os::fd::BorrowedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Waits, at most `limit`, until one of the descriptors is readable or closed at its other end. `false`: the limit has
/// passed, or a signal interrupted the wait.
///
/// # Errors
/// As poll(2).
pub fn readable<'f>(descriptors: impl IntoIterator<Item = BorrowedFd<'f>>, limit: Duration) -> io::Result<bool> {
    let mut polled: Vec<_> =
        descriptors.into_iter().map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    // A limit that a timespec cannot hold counts as no limit.
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut polled, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
