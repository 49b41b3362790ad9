//! A small file system in memory that a test can fill.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{gateway_fixture::text, skip::skip};

/// A file system in memory. Unmounted when it is dropped, by a panicking test too.
#[derive(Debug)]
pub struct TmpfsMount(PathBuf);

impl TmpfsMount {
    /// Creates `path` and mounts a file system of that size (`256k`, `64m`) there. Without the permission to mount it
    /// returns `None`: `test` is then skipped.
    ///
    /// # Panics
    /// When the directory can't be made.
    #[must_use]
    pub fn new(test: &str, path: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir_all(&path).expect("a directory can be made");
        let options = format!("size={size}");
        if !succeeds("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", text(&path)]) {
            skip(test, "mounting a small file system takes root");
            return None;
        }
        Some(Self(path))
    }

    /// Directory at which the file system is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills it with a filler file, page by page: a tmpfs allocates whole pages.
    ///
    /// # Panics
    /// On any error but a full disk.
    pub fn fill(&self) {
        let file = File::options().create(true).append(true).open(self.filler());
        let mut file = file.expect("a file can be made");
        loop {
            match file.write(&[0; 4_096]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return,
                Err(error) => panic!("{}: {error}", self.0.display()),
            }
        }
    }

    /// Removes the filler file.
    ///
    /// # Panics
    /// When it was not filled.
    pub fn remove_filler(&self) {
        fs::remove_file(self.filler()).expect("it was filled");
    }

    /// Makes it read-only, or writable again.
    ///
    /// # Panics
    /// When it can't be mounted anew, for example while a file is open for writing.
    pub fn set_read_only(&self, is_read_only: bool) {
        let options = if is_read_only { "remount,ro" } else { "remount,rw" };
        assert!(succeeds("mount", &["-o", options, text(&self.0)]), "the file system is mounted anew");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for TmpfsMount {
    fn drop(&mut self) {
        // Lazy unmount: after a panic a gateway may still have files open.
        succeeds("umount", &["--lazy", text(&self.0)]);
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
}
