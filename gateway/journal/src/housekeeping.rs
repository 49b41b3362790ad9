//! A thread that compresses closed journals and removes old ones, so that neither delays the reading of the logs.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError, SyncSender},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    JournalError,
    paths::{self, DATA, JournalPaths, UNFINISHED, dataset_folders, free_bytes, sync_folder},
    retention::{self, RetentionLimits},
};

/// Compression of closed journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// Zstandard, after a journal was closed.
    Zstd,
}

/// What the thread does.
#[derive(Clone, Debug)]
pub(crate) struct HousekeepingTasks {
    pub(crate) directory: PathBuf,
    pub(crate) compression: Compression,
    pub(crate) limits: RetentionLimits,
    pub(crate) free_bytes_min: u64,
}

/// The running thread. Dropping it waits for the journal that is being compressed.
#[derive(Debug)]
pub(crate) struct Housekeeper {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    pub(crate) fn start(tasks: HousekeepingTasks) -> io::Result<Self> {
        let (wake, woken) = mpsc::sync_channel(1);
        let body = move || {
            let mut reported = String::new();
            loop {
                let failure = tasks.run().err().map(|error| error.to_string()).unwrap_or_default();
                // Each failure once: the next attempt follows soon.
                if !failure.is_empty() && failure != reported {
                    tracing::warn!(error = failure, "journal: housekeeping failed, trying again");
                }
                reported = failure;
                if woken.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("mdgw-journal".to_owned()).spawn(body)?;
        Ok(Self { wake: Some(wake), thread: Some(thread) })
    }

    /// A journal was closed.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // A wake that waits already is enough.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl HousekeepingTasks {
    fn run(&self) -> Result<(), JournalError> {
        for folder in dataset_folders(&self.directory)? {
            remove_unfinished(&folder)?;
            for name in paths::list(&folder, &[DATA])? {
                let paths = name.paths(&folder);
                // Without final names it is not closed.
                if self.compression == Compression::Zstd && paths.names().exists() {
                    self.compress(&paths)?;
                }
            }
        }
        for removed in retention::remove_old(&self.directory, self.limits)? {
            tracing::info!(path = %removed.display(), "journal: removed by its retention");
        }
        Ok(())
    }

    /// Compresses the records of a closed journal. The plain file goes once the compressed one is on the disk.
    fn compress(&self, paths: &JournalPaths) -> Result<(), JournalError> {
        let (plain, compressed, unfinished) = (paths.data(), paths.compressed(), paths.unfinished());
        if !compressed.exists() {
            let bytes = fs::metadata(&plain).map_err(JournalError::io("examine", &plain))?.len();
            let (free_bytes, free_bytes_min) =
                (free_bytes(paths.folder())?, self.free_bytes_min.saturating_add(bytes / 2));
            if free_bytes < free_bytes_min {
                return Err(JournalError::LittleSpace { path: unfinished, free_bytes, free_bytes_min });
            }
            let made = write_compressed(&plain, &unfinished).inspect_err(|_| {
                let _may_be_missing = fs::remove_file(&unfinished);
            });
            made.map_err(JournalError::io("write", &unfinished))?;
            fs::rename(&unfinished, &compressed).map_err(JournalError::io("rename", &unfinished))?;
            sync_folder(paths.folder())?;
        }
        fs::remove_file(&plain).map_err(JournalError::io("remove", &plain))?;
        tracing::info!(path = %compressed.display(), "journal: compressed");
        Ok(())
    }
}

/// One frame with a checksum: not every reader continues behind the first frame.
fn write_compressed(from: &Path, to: &Path) -> io::Result<()> {
    let mut plain = File::open(from)?;
    let mut encoder = zstd::Encoder::new(File::create(to)?, zstd::DEFAULT_COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    io::copy(&mut plain, &mut encoder)?;
    encoder.finish()?.sync_all()
}

/// Removes what an interrupted compression left.
fn remove_unfinished(folder: &Path) -> Result<(), JournalError> {
    for entry in fs::read_dir(folder).map_err(JournalError::io("list", folder))? {
        let path = entry.map_err(JournalError::io("list", folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.ends_with(UNFINISHED)) {
            fs::remove_file(&path).map_err(JournalError::io("remove", &path))?;
        }
    }
    Ok(())
}

const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(directory: &Path) -> HousekeepingTasks {
        HousekeepingTasks {
            directory: directory.to_owned(),
            compression: Compression::Zstd,
            limits: RetentionLimits::default(),
            free_bytes_min: 0,
        }
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn closed_journals_are_compressed_and_open_ones_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("XNAS.ITCH");
        fs::create_dir(&folder).unwrap();
        let write = |name: &str, content: &[u8]| fs::write(folder.join(name), content).unwrap();
        write("2026-11-26.mbo.dbn", b"closed");
        write("2026-11-26.mbo.names", b"");
        write("2026-11-27.mbo.dbn.part", b"open");
        write("2026-11-27.mbo.names.part", b"");
        // Being closed: its names do not have their final name yet.
        write("2026-11-25.mbo.dbn", b"closing");
        write("2026-11-25.mbo.names.part", b"");
        // A crash in the middle of a compression, and one before its last step.
        write(".2026-11-26.mbo.unfinished", b"half");
        write("2026-11-24.mbo.dbn", b"compressed already");
        write("2026-11-24.mbo.dbn.zst", b"complete");
        write("2026-11-24.mbo.names", b"");
        for _ in 0..2 {
            tasks(directory.path()).run().unwrap();
            let expected = [
                "2026-11-24.mbo.dbn.zst",
                "2026-11-24.mbo.names",
                "2026-11-25.mbo.dbn",
                "2026-11-25.mbo.names.part",
                "2026-11-26.mbo.dbn.zst",
                "2026-11-26.mbo.names",
                "2026-11-27.mbo.dbn.part",
                "2026-11-27.mbo.names.part",
            ];
            assert_eq!(names_in(&folder), expected);
        }
        let compressed = File::open(folder.join("2026-11-26.mbo.dbn.zst")).unwrap();
        assert_eq!(zstd::decode_all(compressed).unwrap(), b"closed");
    }

    #[test]
    fn without_space_a_closed_journal_stays_plain() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("XNAS.ITCH");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("2026-11-26.mbo.dbn"), b"closed").unwrap();
        fs::write(folder.join("2026-11-26.mbo.names"), b"").unwrap();
        let error = HousekeepingTasks { free_bytes_min: u64::MAX, ..tasks(directory.path()) }.run().unwrap_err();
        assert!(matches!(error, JournalError::LittleSpace { .. }), "{error}");
        assert_eq!(names_in(&folder), ["2026-11-26.mbo.dbn", "2026-11-26.mbo.names"]);
    }
}
