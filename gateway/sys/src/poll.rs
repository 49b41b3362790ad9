//! Waits for a few descriptors: for cold threads only; the pool waits on its handle set.

use std::{io, os::fd::BorrowedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Waits until one of the descriptors is readable or closed at its other end, at most `limit`. `true`: one is. After an
/// interruption the call returns as after `limit`.
///
/// # Errors
/// As poll(2).
pub fn readable<'f>(descriptors: impl IntoIterator<Item = BorrowedFd<'f>>, limit: Duration) -> io::Result<bool> {
    let mut polled: Vec<_> =
        descriptors.into_iter().map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    // Without a limit, if it exceeds what a timespec holds.
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut polled, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
