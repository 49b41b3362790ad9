//! Names of journals in their folder: `DIRECTORY/DATASET/DATE.SCHEMAS[.NUMBER].dbn[.zst]`.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use mdgw_feeds::channel::SchemaSet;
use mdgw_wire::{identity::Feed, time::TradingDate};
use rustix::fs::statvfs;

use crate::{JournalError, JournalPlace, JournalRecords, RecordsError};

/// One journal of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JournalName {
    /// Trading date.
    pub(crate) date: TradingDate,
    /// Names of the schemas, joined by `+`.
    pub(crate) schemas: String,
    /// 1, or higher where earlier ones of the day were closed already.
    pub(crate) number: u32,
}

/// The files of one journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalPaths {
    folder: PathBuf,
    stem: String,
}

/// Names of the schemas in a file's name.
pub(crate) fn schemas_text(schemas: SchemaSet) -> String {
    let names = SchemaSet::NAMES.into_iter().filter(|(schema, _)| schemas.contains(*schema));
    names.map(|(_, name)| name).collect::<Vec<_>>().join("+")
}

impl fmt::Display for JournalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.date, self.schemas)?;
        if self.number > 1 { write!(f, ".{}", self.number) } else { Ok(()) }
    }
}

impl JournalName {
    /// Reads what [`Display`](fmt::Display) writes.
    pub(crate) fn parse(stem: &str) -> Option<Self> {
        let mut parts = stem.split('.');
        let date = parts.next()?.parse().ok()?;
        let schemas = parts.next()?.to_owned();
        let number = parts.next().map_or(Some(1), |number| number.parse().ok())?;
        (parts.next().is_none() && !schemas.is_empty()).then_some(Self { date, schemas, number })
    }

    pub(crate) fn paths(&self, folder: &Path) -> JournalPaths {
        JournalPaths { folder: folder.to_owned(), stem: self.to_string() }
    }
}

impl JournalPaths {
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records, while the journal is open.
    pub(crate) fn open_data(&self) -> PathBuf {
        self.with(OPEN_DATA)
    }

    /// Names, while the journal is open.
    pub(crate) fn open_names(&self) -> PathBuf {
        self.with(OPEN_NAMES)
    }

    /// Records of a closed journal.
    pub(crate) fn data(&self) -> PathBuf {
        self.with(DATA)
    }

    /// Records of a closed journal, compressed.
    pub(crate) fn compressed(&self) -> PathBuf {
        self.with(COMPRESSED)
    }

    /// Names of a closed journal.
    pub(crate) fn names(&self) -> PathBuf {
        self.with(NAMES)
    }

    /// A file that is being made beside the journal.
    pub(crate) fn unfinished(&self) -> PathBuf {
        self.folder.join(format!(".{}{UNFINISHED}", self.stem))
    }

    /// The copy of an open journal's records with more space for its metadata.
    pub(crate) fn moving(&self) -> PathBuf {
        self.folder.join(format!(".{}.moving", self.stem))
    }

    /// Opens the records and the names, whatever their present names are. `None` if one of them has gone.
    pub(crate) fn open_records(&self, place: JournalPlace) -> Result<Option<JournalRecords>, RecordsError> {
        // In the order in which a journal gets its names: a file that is renamed meanwhile is found by its next name.
        for names in [self.open_names(), self.names()] {
            for data in [self.open_data(), self.data(), self.compressed()] {
                match JournalRecords::open_files(&data, names.clone(), place) {
                    Err(error) if error.is_not_found() => {}
                    opened => return opened.map(Some),
                }
            }
        }
        Ok(None)
    }

    /// Whether any file of the journal exists.
    pub(crate) fn exist(&self) -> bool {
        let ends = [OPEN_DATA, OPEN_NAMES, DATA, COMPRESSED, NAMES];
        let damaged = [OPEN_DATA, OPEN_NAMES].map(|end| format!("{end}{DAMAGED}"));
        ends.into_iter().chain(damaged.iter().map(String::as_str)).any(|end| self.with(end).exists())
    }

    /// Renames the open files, so that nothing writes to them any longer.
    pub(crate) fn set_aside(&self) -> Result<(), JournalError> {
        for path in [self.open_data(), self.open_names()] {
            let mut aside = path.clone().into_os_string();
            aside.push(DAMAGED);
            match fs::rename(&path, &aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(JournalError::io("rename", &path)(error));
                }
                _ => {}
            }
        }
        sync_folder(&self.folder)
    }

    fn with(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{}{end}", self.stem))
    }
}

/// Journals of which a file with one of these ends exists, in their order.
pub(crate) fn list(folder: &Path, ends: &[&str]) -> Result<Vec<JournalName>, JournalError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(JournalError::io("list", folder))?,
    };
    for entry in entries {
        let name = entry.map_err(JournalError::io("list", folder))?.file_name();
        let Some(name) = name.to_str() else { continue };
        let stem = ends.iter().find_map(|end| name.strip_suffix(end));
        found.extend(stem.and_then(JournalName::parse));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// A journal, whichever files it has at the moment: open, closed or compressed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalId {
    name: JournalName,
    folder: PathBuf,
}

impl JournalId {
    pub(crate) fn of(name: JournalName, folder: &Path) -> Self {
        Self { name, folder: folder.to_owned() }
    }

    /// The trading date of its records.
    #[must_use]
    pub fn date(&self) -> TradingDate {
        self.name.date
    }

    /// Its number among the journals of the date, from 1 on.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.name.number
    }

    /// Opens it. `None` if it has gone.
    ///
    /// # Errors
    /// One of the files cannot be read, or is not what a journal has.
    pub fn open(&self, place: JournalPlace) -> Result<Option<JournalRecords>, RecordsError> {
        self.name.paths(&self.folder).open_records(place)
    }
}

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.join(self.name.to_string()).display().fmt(f)
    }
}

/// The journals with these schemas of a feed, the oldest first. An open journal is among them.
///
/// # Errors
/// When the folder cannot be listed. A folder that does not exist has no journals.
pub fn list_journals(directory: &Path, feed: Feed, schemas: SchemaSet) -> Result<Vec<JournalId>, JournalError> {
    let folder = directory.join(feed.dataset());
    let schemas = schemas_text(schemas);
    let names = list(&folder, &[OPEN_DATA, DATA, COMPRESSED])?.into_iter().filter(|name| name.schemas == schemas);
    Ok(names.map(|name| JournalId::of(name, &folder)).collect())
}

/// Folders of datasets.
pub(crate) fn dataset_folders(directory: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(directory).map_err(JournalError::io("list", directory))? {
        let path = entry.map_err(JournalError::io("list", directory))?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Bytes that are free for this process on the disk of a folder.
pub(crate) fn free_bytes(path: &Path) -> Result<u64, JournalError> {
    let disk = statvfs(path).map_err(|error| JournalError::io("examine the disk of", path)(error.into()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Writes the names in a folder to its disk.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), JournalError> {
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(JournalError::io("sync", folder))
}

pub(crate) const OPEN_DATA: &str = ".dbn.part";
pub(crate) const OPEN_NAMES: &str = ".names.part";
pub(crate) const DATA: &str = ".dbn";
pub(crate) const COMPRESSED: &str = ".dbn.zst";
pub(crate) const NAMES: &str = ".names";
pub(crate) const UNFINISHED: &str = ".unfinished";
const DAMAGED: &str = ".damaged";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let date = TradingDate::from_yyyymmdd(20_261_127).unwrap();
        for number in [1, 2, 11] {
            let name = JournalName { date, schemas: "mbo+mbp-10".to_owned(), number };
            assert_eq!(JournalName::parse(&name.to_string()), Some(name));
        }
        for other in ["", "2026-11-27", "2026-11-27.", "x.mbo", "2026-11-27.mbo.x", "2026-11-27.mbo.2.3"] {
            assert_eq!(JournalName::parse(other), None, "{other}");
        }
    }
}
