//! Free space of a file system, and errors of disks.

use std::{io, path::Path};

use rustix::io::Errno;

/// Bytes that this user may still write where the folder is, or will be: in its nearest folder that exists.
///
/// # Errors
/// As statvfs(3).
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let absolute = std::path::absolute(folder)?;
    let existing = absolute.ancestors().find(|place| place.exists()).unwrap_or_else(|| Path::new("/"));
    let space = rustix::fs::statvfs(existing)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Whether a file cannot be written because of the state of its disk: no space, no quota, read-only, or failing. The file may be
/// writable later, without any change of the configuration.
#[must_use]
pub fn is_disk_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || Errno::from_io_error(error) == Some(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_failing_disk_is_no_wrong_path() {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO] {
            assert!(is_disk_unwritable(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOTDIR, Errno::ACCESS, Errno::NOENT] {
            assert!(!is_disk_unwritable(&errno.into()), "{errno}");
        }
    }

    #[test]
    fn a_folder_that_does_not_exist_has_the_space_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("to/be/made")).unwrap() > 0);
        assert_eq!(free_bytes(Path::new("/proc")).unwrap(), 0, "it stores nothing");
    }
}
