//! Names and listing of segment files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::LogError;

/// Path of segment `number`.
pub(crate) fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:016}.{EXTENSION}"))
}

/// Path of a segment that is being made, before its rename.
pub(crate) fn unfinished_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:016}.unfinished"))
}

/// The file that a writer locks.
pub(crate) fn lock_path(directory: &Path) -> PathBuf {
    directory.join("writer.lock")
}

/// Numbers of the existing segments, ascending.
pub(crate) fn segment_numbers(directory: &Path) -> Result<Vec<u64>, LogError> {
    let mut numbers = Vec::new();
    for item in fs::read_dir(directory).map_err(LogError::io("list", directory))? {
        let path = item.map_err(LogError::io("list", directory))?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            numbers.extend(path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok()));
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes a crashed writer's unfinished files.
pub(crate) fn remove_unfinished(directory: &Path) -> Result<(), LogError> {
    for item in fs::read_dir(directory).map_err(LogError::io("list", directory))? {
        let path = item.map_err(LogError::io("list", directory))?.path();
        if path.extension().is_some_and(|extension| extension == "unfinished") {
            fs::remove_file(&path).map_err(LogError::io("remove", path))?;
        }
    }
    Ok(())
}

const EXTENSION: &str = "segment";
