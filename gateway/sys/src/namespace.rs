//! A network namespace for one test: it belongs to the calling thread and ends with that thread, also after a panic.

#![allow(unsafe_code, reason = "unshare(2), unsafe in rustix too")]

use std::{io, process::Command, thread};

use crate::skip::skip;

/// Moves the calling thread into a new namespace. `None`, with a message on standard error, if the process may not: the
/// test is skipped.
pub(crate) fn enter() -> Option<()> {
    // SAFETY: unshare(2) takes no pointer; of this thread's state only the network namespace changes.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = io::Error::last_os_error();
        skip(
            thread::current().name().unwrap_or("a test"),
            &format!("no network namespace of its own ({error}); run as root"),
        );
        return None;
    }
    ip("link set lo up");
    Some(())
}

/// Runs `ip` with these arguments in the thread's namespace.
pub(crate) fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
}
