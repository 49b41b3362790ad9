//! Who may read a log: its owner and, if configured, the members of one group.
//!
//! Files are made for their owner alone, and opened to the group afterwards: at no time can anybody else open them, whatever
//! the umask is.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown},
    path::Path,
};

use crate::LogError;

/// Number of the group whose members may read a log. They cannot change it, and cannot keep its writer from anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderGroup(pub u32);

/// Makes the directory above the logs of several channels, with those above it, so that the group can reach the logs. A directory that
/// already lets the group in stays as it is.
///
/// # Errors
/// If the directory cannot be made, or exists and neither lets the group in nor belongs to this user.
pub fn create_log_root(directory: &Path, group: Option<ReaderGroup>) -> Result<(), LogError> {
    let Some(group) = group else { return fs::create_dir_all(directory).map_err(LogError::io("make", directory)) };
    create_directory(directory, group)?;
    let metadata = fs::metadata(directory).map_err(LogError::io("stat", directory))?;
    if lets_in(&metadata, group) {
        return Ok(());
    }
    grant_directory(directory, group)
}

/// Makes the directory of one log. With a group, no other user can open it.
pub(crate) fn create_log_directory(directory: &Path, group: Option<ReaderGroup>) -> Result<(), LogError> {
    let Some(group) = group else { return fs::create_dir_all(directory).map_err(LogError::io("make", directory)) };
    create_directory(directory, group)?;
    grant_directory(directory, group)
}

/// Creates a file that must not exist.
pub(crate) fn create_file(path: &Path, group: Option<ReaderGroup>) -> Result<File, LogError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    if group.is_some() {
        options.mode(OWNER_FILE);
    }
    let file = options.open(path).map_err(LogError::io("create", path))?;
    if let Some(group) = group {
        grant_file(&file, path, group)?;
    }
    Ok(file)
}

/// Lets the group read a segment of an earlier run, which may have had another configuration.
pub(crate) fn grant_existing(path: &Path, group: ReaderGroup) -> Result<(), LogError> {
    let file = File::open(path).map_err(LogError::io("open", path))?;
    grant_file(&file, path, group)
}

fn create_directory(directory: &Path, group: ReaderGroup) -> Result<(), LogError> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(LogError::io("make", parent))?;
    }
    match DirBuilder::new().mode(OWNER_DIRECTORY).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(LogError::io("make", directory)(error)),
        Ok(()) => grant_directory(directory, group),
    }
}

/// Whether members of the group can list the directory and open files in it.
fn lets_in(metadata: &fs::Metadata, group: ReaderGroup) -> bool {
    let mode = metadata.mode();
    mode & 0o005 == 0o005 || metadata.gid() == group.0 && mode & 0o050 == 0o050
}

fn grant_directory(directory: &Path, group: ReaderGroup) -> Result<(), LogError> {
    chown(directory, None, Some(group.0)).map_err(refused(directory, group))?;
    fs::set_permissions(directory, Permissions::from_mode(GROUP_DIRECTORY)).map_err(refused(directory, group))
}

fn grant_file(file: &File, path: &Path, group: ReaderGroup) -> Result<(), LogError> {
    fchown(file, None, Some(group.0)).map_err(refused(path, group))?;
    file.set_permissions(Permissions::from_mode(GROUP_FILE)).map_err(refused(path, group))
}

fn refused(path: &Path, group: ReaderGroup) -> impl FnOnce(io::Error) -> LogError {
    move |source| LogError::Group { path: path.to_owned(), group: group.0, source }
}

const OWNER_FILE: u32 = 0o600;
const OWNER_DIRECTORY: u32 = 0o700;
const GROUP_FILE: u32 = 0o640;
const GROUP_DIRECTORY: u32 = 0o750;
