//! Whether a log has a writer, for readers that may not open the file that the writer locks.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use crate::directory::lock_path;

/// What a look for a log's writer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWriter {
    /// A process has the log open for writing.
    Present,
    /// No process has, or there is no log.
    Absent,
    /// None is visible, but there may be one: the kernel hides the locks of processes in other PID namespaces, and some file systems
    /// name their files otherwise in the list of locks.
    Hidden,
}

/// Looks for the process that has the log open for writing. Takes no lock, so a writer that starts meanwhile is not disturbed.
///
/// # Errors
/// If the lock's file or the kernel's lists cannot be read.
pub fn find_writer(directory: &Path) -> io::Result<LogWriter> {
    let lock = match fs::metadata(lock_path(directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LogWriter::Absent),
        lock => lock?,
    };
    let (major, minor) = (libc::major(lock.dev()), libc::minor(lock.dev()));
    // "1: FLOCK  ADVISORY  WRITE 708 fe:01:1835022 0 EOF"; a process that waits for a lock has "->" before the kind.
    let wanted = format!("{major:02x}:{minor:02x}:{}", lock.ino());
    for _ in 0..READS {
        let locks = fs::read_to_string("/proc/locks")?;
        let mut held = locks.lines().filter(|line| !line.contains("->"));
        if held.any(|line| line.split_whitespace().any(|word| word == wanted)) {
            return Ok(LogWriter::Present);
        }
    }
    let sees_all = fs::read_link("/proc/self/ns/pid")? == Path::new(INITIAL_PID_NAMESPACE);
    Ok(if sees_all && is_device_of_mount(major, minor)? { LogWriter::Absent } else { LogWriter::Hidden })
}

/// Whether that device is one of a whole file system, as in the list of locks. Files of btrfs, and some of overlayfs, have another one.
fn is_device_of_mount(major: u32, minor: u32) -> io::Result<bool> {
    let device = format!("{major}:{minor}");
    // "36 25 254:1 / / rw,relatime shared:1 - ext4 /dev/vda rw"
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts.lines().any(|line| line.split_whitespace().nth(2) == Some(device.as_str())))
}

/// The kernel returns the list in pieces. While other locks come and go, one that stays may be in none of them.
const READS: usize = 3;
/// The kernel's first PID namespace, whose processes see the locks of all others: `PROC_PID_INIT_INO` in its `proc_ns.h`.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogOptions, open};

    #[test]
    fn a_log_has_a_writer_from_its_opening_to_the_writers_end() {
        let directory = tempfile::tempdir().unwrap();
        let find = || find_writer(directory.path()).unwrap();
        assert_eq!(find(), LogWriter::Absent, "there is no log");
        let log = open(LogOptions { segment_bytes: 1 << 16, ..LogOptions::new(directory.path(), 1) }, 0).unwrap();
        assert_eq!(find(), LogWriter::Present);
        drop(log);
        assert_ne!(find(), LogWriter::Present);
    }
}
