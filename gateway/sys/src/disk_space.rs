//! Free space of a file system.

use std::{io, path::Path};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_does_not_exist_has_the_space_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("to/be/made")).unwrap() > 0);
        assert_eq!(free_bytes(Path::new("/proc")).unwrap(), 0, "it stores nothing");
    }
}
