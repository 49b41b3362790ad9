//! A process by descriptor: unlike a process number, the descriptor never refers to another process later.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::poll;

/// A descriptor of a process.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// A descriptor of the calling process, which can be handed to another process.
    ///
    /// # Errors
    /// Before Linux 5.3, or if a seccomp filter forbids it.
    pub fn own() -> io::Result<Self> {
        Self::of(getpid())
    }

    /// The process of that number. Only its parent should call this, since for the parent the number still refers to
    /// its child.
    ///
    /// # Errors
    /// If there is no such process; as [`Self::own`].
    pub fn of(process: Pid) -> io::Result<Self> {
        Ok(Self(pidfd_open(process, PidfdFlags::empty())?))
    }

    /// Accepts a descriptor that process `sender` has passed.
    ///
    /// # Errors
    /// If it is no pidfd, or refers to another process than its sender: the sender may lack the right to kill that
    /// process.
    pub fn from_sender(descriptor: OwnedFd, sender: Pid) -> io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
        let process = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok());
        match process {
            // -1: the process has ended meanwhile, and cannot be killed any more.
            Some(process) if process == sender.as_raw_nonzero().get() || process == -1 => Ok(Self(descriptor)),
            Some(process) => Err(io::Error::other(format!("pidfd refers to process {process}, not to its sender"))),
            None => Err(io::Error::other("not a pidfd")),
        }
    }

    /// Kills the process, whatever state it is in. Succeeds too if it has already ended.
    ///
    /// # Errors
    /// If this process may not kill it.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.0, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for its end, at most `limit`. `true`: all of its threads have ended.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait_for_end(&self, limit: Duration) -> io::Result<bool> {
        poll::readable([self.as_fd()], limit)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::Command};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_is_killed_by_its_descriptor_and_only_once() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = PidFd::of(Pid::from_child(&child)).unwrap();
        assert!(!process.wait_for_end(Duration::ZERO).unwrap());
        process.kill().unwrap();
        assert!(process.wait_for_end(TIMEOUT).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        process.kill().unwrap();
    }

    #[test]
    fn a_pidfd_of_another_process_is_refused() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let child_pidfd = PidFd::of(Pid::from_child(&child)).unwrap();
        let text = PidFd::from_sender(child_pidfd.0, getpid()).unwrap_err().to_string();
        assert!(text.contains(&child.id().to_string()), "{text}");
        PidFd::from_sender(PidFd::own().unwrap().0, getpid()).unwrap();
        assert!(PidFd::from_sender(tempfile::tempfile().unwrap().into(), getpid()).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
