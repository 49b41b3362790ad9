//! Removal of old journals: by days, and by bytes of all journals. An open journal is never removed.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use mdgw_sys::clock::unix_now;
use mdgw_wire::time::{TradingDate, UnixNs};

use crate::{
    JournalError,
    paths::{self, COMPRESSED, DATA, JournalName, JournalPaths, NAMES, dataset_folders},
};

/// What may stay; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetentionLimits {
    /// Days since the trading date.
    pub(crate) days: u32,
    /// Bytes of all journals, the open ones included.
    pub(crate) bytes: u64,
}

/// A closed journal.
#[derive(Debug)]
struct ClosedJournal {
    name: JournalName,
    paths: JournalPaths,
    bytes: u64,
    /// The newest of its dataset and schemas: the next start reads from it where the channels are.
    is_newest: bool,
}

/// Removes the oldest closed journals until the limits hold. Returns the files.
pub(crate) fn remove_old(directory: &Path, limits: RetentionLimits) -> Result<Vec<PathBuf>, JournalError> {
    remove_old_at(directory, limits, unix_now())
}

fn remove_old_at(directory: &Path, limits: RetentionLimits, now: UnixNs) -> Result<Vec<PathBuf>, JournalError> {
    let mut removed = Vec::new();
    if limits == RetentionLimits::default() {
        return Ok(removed);
    }
    let mut total_bytes = 0;
    let mut journals = Vec::new();
    for folder in dataset_folders(directory)? {
        total_bytes += bytes_of_folder(&folder)?;
        let mut newest = BTreeMap::new();
        let names = paths::list(&folder, &[NAMES, DATA, COMPRESSED])?;
        names.iter().for_each(|name| _ = newest.insert(name.schemas.clone(), name.clone()));
        for name in names {
            let paths = name.paths(&folder);
            // A crash while it was closed: the next start completes it.
            if paths.open_names().exists() {
                continue;
            }
            let bytes = files_of(&paths).iter().map(|path| bytes_of(path)).sum();
            let is_newest = newest.get(&name.schemas) == Some(&name);
            journals.push(ClosedJournal { name, paths, bytes, is_newest });
        }
    }
    journals.sort_by(|a, b| a.name.cmp(&b.name));
    let oldest_day = (limits.days > 0)
        .then(|| TradingDate::in_utc(UnixNs(now.0.saturating_sub(u64::from(limits.days).saturating_mul(NS_PER_DAY)))));
    for journal in journals {
        let is_too_old = oldest_day.is_some_and(|oldest| journal.name.date < oldest);
        let is_too_much = limits.bytes > 0 && total_bytes > limits.bytes && !journal.is_newest;
        if !is_too_old && !is_too_much {
            continue;
        }
        // Records first: names alone are found again, and do not pass for a journal.
        for path in files_of(&journal.paths) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => {
                    result.map_err(JournalError::io("remove", &path))?;
                    removed.push(path);
                }
            }
        }
        total_bytes = total_bytes.saturating_sub(journal.bytes);
    }
    Ok(removed)
}

fn files_of(paths: &JournalPaths) -> [PathBuf; 3] {
    [paths.data(), paths.compressed(), paths.names()]
}

fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn bytes_of_folder(folder: &Path) -> Result<u64, JournalError> {
    let entries = fs::read_dir(folder).map_err(JournalError::io("list", folder))?;
    let bytes = entries.map(|entry| entry.map(|entry| bytes_of(&entry.path())));
    bytes.sum::<io::Result<u64>>().map_err(JournalError::io("list", folder))
}

const NS_PER_DAY: u64 = 86_400 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Journals of these dates with 100 bytes of records and names each.
    fn folder(dates: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let dataset = directory.path().join("XNAS.ITCH");
        fs::create_dir(&dataset).unwrap();
        for date in dates {
            fs::write(dataset.join(format!("{date}.mbo.dbn")), [0; 60]).unwrap();
            fs::write(dataset.join(format!("{date}.mbo.names")), [0; 40]).unwrap();
        }
        directory
    }

    fn left(directory: &Path) -> Vec<String> {
        let names = paths::list(&directory.join("XNAS.ITCH"), &[NAMES, DATA]).unwrap();
        names.iter().map(|name| name.date.to_string()).collect()
    }

    #[test]
    fn the_oldest_go_by_days() {
        let directory = folder(&["2026-11-20", "2026-11-24", "2026-11-25"]);
        let now = "2026-11-26".parse::<TradingDate>().unwrap().midnight_utc();
        let limits = RetentionLimits { days: 2, bytes: 0 };
        let removed = remove_old_at(directory.path(), limits, now).unwrap();
        assert_eq!(
            (removed.len(), left(directory.path())),
            (2, vec!["2026-11-24".to_owned(), "2026-11-25".to_owned()])
        );
    }

    #[test]
    fn the_oldest_go_by_bytes_but_neither_the_open_nor_the_newest() {
        let directory = folder(&["2026-11-20", "2026-11-24", "2026-11-25"]);
        let dataset = directory.path().join("XNAS.ITCH");
        fs::write(dataset.join("2026-11-26.mbo.dbn.part"), [0; 100]).unwrap();
        fs::write(dataset.join("2026-11-26.mbo.names.part"), [0; 64]).unwrap();
        let remove = |bytes| remove_old_at(directory.path(), RetentionLimits { days: 0, bytes }, UnixNs(0)).unwrap();
        assert!(remove(464).is_empty());
        assert_eq!(remove(463).len(), 2);
        assert_eq!(left(directory.path()), ["2026-11-24", "2026-11-25"]);
        assert_eq!(remove(1).len(), 2);
        assert_eq!(left(directory.path()), ["2026-11-25"]);
        assert!(dataset.join("2026-11-26.mbo.dbn.part").exists());
    }
}
