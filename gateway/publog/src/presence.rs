//! Whether a log has a writer, for readers that may not open the file that the writer locks.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use crate::directory::lock_path;

/// Whether a process has the log open for writing, as far as this process can see: a kernel hides the locks of processes that
/// are in another PID namespace.
///
/// # Errors
/// If the directory has no log, or the kernel's list of locks cannot be read.
pub fn has_writer(directory: &Path) -> io::Result<bool> {
    let lock = fs::metadata(lock_path(directory))?;
    let locks = fs::read_to_string("/proc/locks")?;
    let (major, minor) = (libc::major(lock.dev()), libc::minor(lock.dev()));
    // "1: FLOCK  ADVISORY  WRITE 708 fe:01:1835022 0 EOF"; a process that waits for a lock has "->" before the kind.
    let wanted = format!("{major:02x}:{minor:02x}:{}", lock.ino());
    Ok(locks.lines().filter(|line| !line.contains("->")).any(|line| line.split_whitespace().any(|word| word == wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogOptions, open};

    #[test]
    fn a_log_has_a_writer_from_its_opening_to_the_writers_end() {
        let directory = tempfile::tempdir().unwrap();
        assert!(has_writer(directory.path()).is_err(), "there is no log");
        let log = open(LogOptions { segment_bytes: 1 << 16, ..LogOptions::new(directory.path(), 1) }, 0).unwrap();
        assert!(has_writer(directory.path()).unwrap());
        drop(log);
        assert!(!has_writer(directory.path()).unwrap());
    }
}
