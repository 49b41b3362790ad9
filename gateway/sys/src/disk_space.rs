//! Free space of a file system, and errors of disks.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{fs::FsWord, io::Errno};

/// Bytes that this user may still write where the folder is, or will be: in its nearest folder that exists.
///
/// # Errors
/// As statvfs(3).
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(&nearest_existing(folder)?)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Whether the folder is, or will be, on a file system in memory.
#[must_use]
pub fn is_in_memory(folder: &Path) -> bool {
    nearest_existing(folder)
        .and_then(|existing| Ok(rustix::fs::statfs(&existing)?))
        .is_ok_and(|found| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&found.f_type))
}

/// `linux/magic.h`.
const TMPFS_MAGIC: FsWord = 0x0102_1994;
const RAMFS_MAGIC: FsWord = 0x8584_58f6;

/// Bytes that the files of a folder take. What cannot be read counts as 0.
#[must_use]
pub fn used_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let bytes = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks().saturating_mul(BLOCK_BYTES)));
    bytes.fold(0, u64::saturating_add)
}

/// stat(2): the unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

fn nearest_existing(folder: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(folder)?;
    Ok(absolute.ancestors().find(|place| place.exists()).unwrap_or_else(|| Path::new("/")).to_owned())
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
    fn a_folder_below_dev_shm_is_in_memory_and_its_files_are_counted() {
        assert!(is_in_memory(Path::new("/dev/shm/to/be/made")));
        assert!(!is_in_memory(Path::new("/proc")));
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(used_bytes(&folder.path().join("none")), 0);
        assert_eq!(used_bytes(folder.path()), 0);
        fs::write(folder.path().join("one"), vec![1; 8_192]).unwrap();
        fs::write(folder.path().join("other"), vec![1; 16_384]).unwrap();
        assert_eq!(used_bytes(folder.path()), 8_192 + 16_384);
    }

    #[test]
    fn a_folder_that_does_not_exist_has_the_space_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("to/be/made")).unwrap() > 0);
        assert_eq!(free_bytes(Path::new("/proc")).unwrap(), 0, "it stores nothing");
    }
}
