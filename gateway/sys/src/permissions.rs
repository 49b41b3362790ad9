//! What this process may do, asked without trying.

use std::{io, path::Path};

use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    process::{getegid, geteuid, getgroups},
};

/// Whether this process may make files in a directory, by its effective user and groups. Makes none.
///
/// # Errors
/// As faccessat(2): a file system that is mounted read-only is an error for root too.
pub fn check_may_write_in(directory: &Path) -> io::Result<()> {
    // A file that is no directory is refused by its trailing separator.
    let directory = directory.join("");
    Ok(accessat(CWD, &directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// The effective user of this process, who owns the files that it makes.
#[must_use]
pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

/// Whether this process may give files of its own to that group, as chown(2) decides: root to any, others to a group of theirs.
#[must_use]
pub fn may_give_to_group(group: u32) -> bool {
    let is_member = || getgroups().is_ok_and(|groups| groups.iter().any(|own| own.as_raw() == group));
    effective_user() == 0 || getegid().as_raw() == group || is_member()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn directories_are_asked_about_and_nothing_is_made_there() {
        let folder = tempfile::tempdir().unwrap();
        check_may_write_in(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(check_may_write_in(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(check_may_write_in(&folder.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn files_may_be_given_to_the_own_group() {
        assert!(may_give_to_group(getegid().as_raw()));
        assert_eq!(may_give_to_group(u32::MAX - 1), effective_user() == 0);
    }
}
